//! What a seed stands for: the shape of the world, its limits, what goes wrong and until when.

use std::sync::Arc;

use waterclock::engine::allow::Allow;
use waterclock::engine::ladder::Ladder;
use waterclock::engine::state::StateKey;
use waterclock::engine::{Intake, Limits, Millis, Setup, Topics, Tracking};

use crate::broker::Time;
use crate::chance::Chance;

pub const SECOND: Time = 1_000;
pub const MINUTE: Time = 60 * SECOND;
pub const HOUR: Time = 60 * MINUTE;
pub const DAY: Time = 24 * HOUR;

/// The group waits this long for a silent member.
pub const SESSION: Time = 10 * SECOND;
/// `transaction.timeout.ms`.
pub const TRANSACTION: Time = 15 * SECOND;
/// Nothing may be late by more than this while nothing goes wrong.
pub const LATENESS_HEALTHY: Time = SECOND;
/// The same for the neighbours of records that brokers refuse: each failure takes the lanes over anew; and a user's
/// transaction that hangs hides what stands behind it, of a record that is moved in two lanes.
pub const LATENESS_POISON: Time = 50 * SECOND;
/// After the last fault and the last due time everything is done within this: a session and a transaction that
/// time out, one after the other, the coordinator's scan, and what was waiting because of them.
pub const RECOVERY: Time = 120 * SECOND;

/// How hops, deliveries and offsets leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    ExactlyOnce,
    AtLeastOnce,
}

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Nothing goes wrong: order and lateness are checked, too.
    Healthy,
    /// Crashes, pauses, joins and leaves, lost answers, failed commits, until `heal_at`.
    Faulty,
}

/// What happens to a member or to the cluster.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The process dies at once, and starts again after a while.
    Kill { slot: usize, back_after: Time },
    /// It stops as asked (drain, commit, leave), and starts again after a while.
    Stop { slot: usize, back_after: Time },
    /// It stands still and goes on as if nothing had happened.
    Freeze { slot: usize, lasts: Time },
    /// The clock of a node steps forward.
    ClockStep { node: usize, by: u64 },
    /// Another node leads a partition of a lane topic.
    Leader { topic: usize, partition: usize, node: usize },
    /// Nothing is heard of a partition of a lane topic: no record, no answer about its end.
    Silence { topic: usize, partition: usize, lasts: Time },
}

/// Percentages of what goes wrong by itself before `heal_at`, and how long things take.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// A request's way, at most.
    pub latency_max: Time,
    /// A fetch after a resume, at most: librdkafka took up to a second.
    pub resume_max: Time,
    /// A transaction's marker, at most: 49 ms were seen.
    pub marker_max: Time,
    pub produce_fails: u32,
    pub commit_aborts: u32,
    /// The process dies, or stands still, between two steps of a commit; per hundred steps.
    pub step_faults: u32,
    /// The answer to a commit is lost; it was carried out, was not, or will be later.
    pub commit_unknown: u32,
    /// Percent of answers to clients that never arrive.
    pub answers_lost: u32,
}

/// All of it.
pub struct Plan {
    pub weather: Weather,
    pub delivery: Delivery,
    pub setup: Arc<Setup>,
    pub slots: usize,
    /// When the last of them starts, at most.
    pub start_max: Time,
    /// Faults between steps, at most: each costs the run a session or a transaction's time.
    pub step_faults_max: u64,
    pub skews: Vec<i64>,
    /// How far the shell's `now` may be behind the slowest broker.
    pub lag_max: u64,
    pub network: Network,
    pub faults: Vec<(Time, Fault)>,
    pub heal_at: Time,
    /// When the first record is submitted, and the last.
    pub submits: (Time, Time),
    pub submissions: usize,
    /// Timers that their clients create, replace and cancel again and again.
    pub stories: usize,
    pub delay_max: Time,
    /// How far an index is behind the changelog, at most, as long as something comes.
    pub index_lag_max: Time,
    /// How long before its due time a cancel must be readable to win for certain.
    pub settle: Time,
    /// How long a foreign transaction on an intake is waited for.
    pub foreign_wait: Time,
    /// So many at once, all due within the horizon, that a window gets full.
    pub flood: bool,
    /// Percent of submissions that brokers refuse when they are delivered.
    pub poison: u32,
    /// Nothing may be later than this; `None`: no such promise in this weather.
    pub late_max: Option<Time>,
    /// Records that one poll hands over, at most.
    pub poll_max: u64,
    /// Large records are among them.
    pub large: bool,
    /// The workload's and the world's luck.
    pub luck: (Chance, Chance),
}

impl Plan {
    /// The plan of a seed, in this weather and mode.
    pub fn new(seed: u64, weather: Weather, delivery: Delivery) -> Self {
        let mut chance = Chance::new(seed);
        let healthy = weather == Weather::Healthy;
        let lanes = chance.between(1, 4) as u16;
        let (holds, delay_max) = ladder(&mut chance);
        let span = *chance.pick(&[SECOND, 20 * SECOND, 5 * MINUTE]);
        let first = 5 * SECOND;
        let heal_at = if healthy {
            0
        } else {
            first + span + chance.spread(SECOND, delay_max.max(30 * SECOND))
        };
        let skew = if healthy { 40 } else { *chance.pick(&[0, 40, 2_000]) };
        let nodes = chance.between(1, 3) as usize;
        let skews = (0..nodes).map(|_| chance.between(0, skew) as i64 - skew as i64 / 2).collect();
        let slots = chance.between(1, 4) as usize;
        let large = chance.percent(25);
        let limits = limits(&mut chance, healthy, delivery, large);
        let settle = limits.settle.map_or(0, |settle| settle.0);
        let setup = Arc::new(setup(lanes, &holds, limits));
        let network = network(&mut chance, healthy);
        let topics = setup.topics.names().len();
        let mut plan = Self {
            weather,
            delivery,
            setup,
            slots,
            start_max: if healthy { SECOND } else { 20 * SECOND },
            step_faults_max: 8,
            skews,
            lag_max: chance.between(0, 8),
            network,
            faults: Vec::new(),
            heal_at,
            submits: (first, first + span),
            submissions: chance.spread(20, 250) as usize,
            stories: chance.between(0, 12) as usize,
            delay_max,
            index_lag_max: if healthy { 20 } else { chance.spread(1, 5 * SECOND) },
            settle,
            foreign_wait: *chance.pick(&[SECOND, 10 * SECOND]),
            large,
            flood: false,
            poison: 0,
            late_max: healthy.then_some(LATENESS_HEALTHY),
            poll_max: 60,
            luck: (chance.split(), chance.split()),
        };
        if !healthy {
            plan.faults(&mut chance, topics);
            plan.poison = *chance.pick(&[0, 0, 1, 3]);
        }
        plan
    }

    /// No fault but that brokers refuse some records: what is bounded is how long the others wait because of it.
    pub fn poison(seed: u64, delivery: Delivery) -> Self {
        let mut plan = Self::new(seed, Weather::Healthy, delivery);
        plan.weather = Weather::Faulty;
        plan.poison = 2;
        plan.late_max = Some(LATENESS_POISON);
        plan
    }

    /// How long after the last due time everything is done.
    pub fn recovery(&self) -> Time {
        // Ten failures for each poison record, of at most three seconds each.
        RECOVERY + self.submissions as u64 * u64::from(self.poison) / 100 * 30 * SECOND
    }

    /// One lane, one member, and more pending records in a partition than a commit's metadata can name.
    pub fn flood(seed: u64, delivery: Delivery) -> Self {
        let mut chance = Chance::new(seed);
        let mut limits = limits(&mut chance, true, delivery, false);
        limits.memory_bytes = 64 << 20;
        let network = Network { latency_max: 2, ..network(&mut chance, true) };
        let first = 5 * SECOND;
        let kill = Fault::Kill { slot: 0, back_after: 200 };
        let kills = (0..chance.between(0, 2)).map(|_| (first + chance.between(0, 2_500), kill));
        Self {
            setup: Arc::new(setup(1, &[SECOND, MINUTE], limits)),
            slots: 1,
            start_max: SECOND,
            skews: vec![0],
            network,
            faults: kills.collect(),
            heal_at: first + 3 * SECOND,
            submits: (first, first + 100),
            submissions: 32_000,
            delay_max: 2 * SECOND,
            large: false,
            flood: true,
            poll_max: 2_000,
            ..Self::new(seed, Weather::Faulty, delivery)
        }
    }

    fn faults(&mut self, chance: &mut Chance, topics: usize) {
        for _ in 0..chance.between(1, 12) {
            // Half of them while most is on its way.
            let busy = (self.submits.1 + 20 * SECOND).min(self.heal_at);
            let at = if chance.percent(50) {
                chance.between(self.submits.0, busy)
            } else {
                chance.spread(SECOND, self.heal_at)
            };
            let slot = chance.below(self.slots);
            let back_after = chance.spread(50, MINUTE);
            let fault = match chance.between(0, 10) {
                0..=2 => Fault::Kill { slot, back_after },
                3..=4 => Fault::Stop { slot, back_after },
                5 => Fault::Freeze { slot, lasts: chance.spread(20, 5 * SECOND) },
                6..=7 => Fault::Freeze { slot, lasts: chance.between(SESSION, 4 * SESSION) },
                8 => Fault::ClockStep {
                    node: chance.below(self.skews.len()),
                    by: chance.spread(1, 20 * SECOND),
                },
                9 => Fault::Silence {
                    // Mostly an intake.
                    topic: if chance.percent(70) { 0 } else { chance.below(topics) },
                    partition: chance.below(usize::from(self.setup.lanes)),
                    lasts: chance.spread(50, MINUTE),
                },
                _ => Fault::Leader {
                    topic: chance.below(topics),
                    partition: chance.below(usize::from(self.setup.lanes)),
                    node: chance.below(self.skews.len()),
                },
            };
            self.faults.push((at, fault));
        }
    }

    /// How long a lane topic keeps what is written to it: nothing for an intake.
    pub fn hold_of(&self, topic: usize) -> u64 {
        let topics = &self.setup.topics;
        let tier = topic.checked_sub(topics.intakes.len());
        tier.map_or(0, |tier| topics.ladder.tiers()[tier].hold.0)
    }

    pub fn exactly_once(&self) -> bool {
        self.delivery == Delivery::ExactlyOnce
    }

    pub fn healthy(&self) -> bool {
        self.weather == Weather::Healthy
    }
}

/// Holds, and the longest delay that makes sense with them.
fn ladder(chance: &mut Chance) -> (Vec<u64>, Time) {
    let (holds, longest): (&[u64], Time) = match chance.between(0, 2) {
        0 => (&[SECOND, MINUTE, HOUR], 10 * MINUTE),
        1 => (
            &[
                SECOND,
                2 * SECOND,
                5 * SECOND,
                30 * SECOND,
                MINUTE,
                5 * MINUTE,
                HOUR,
                6 * HOUR,
                DAY,
                7 * DAY,
            ],
            7 * DAY,
        ),
        _ => (&[SECOND, 3 * SECOND, 20 * SECOND, 2 * MINUTE, 15 * MINUTE, 2 * HOUR, DAY], 3 * DAY),
    };
    let delay_max = *chance.pick(&[3 * SECOND, 30 * SECOND, 10 * MINUTE, HOUR, longest]);
    (holds.to_vec(), delay_max.min(longest))
}

fn limits(chance: &mut Chance, healthy: bool, delivery: Delivery, large: bool) -> Limits {
    let mut limits = Limits {
        hop_linger: Millis(*chance.pick(&[0, 50, 250, 500])),
        batches_max: if delivery == Delivery::ExactlyOnce {
            1
        } else {
            chance.between(1, 4) as usize
        },
        batch_gap: Millis(*chance.pick(&[0, 5, 50])),
        history: Millis(*chance.pick(&[MINUTE, HOUR, DAY])),
        tracking: *chance.pick(&[
            Tracking::Full,
            Tracking::Full,
            Tracking::Full,
            Tracking::Cancellations,
        ]),
        settle: Some(Millis(*chance.pick(&[50, 50, 50, 10, 200]))),
        read_ahead: Millis(*chance.pick(&[1_000, 3_000, 10_000])),
        ..Limits::default()
    };
    if !healthy || chance.percent(30) {
        limits.hop_partitions_max = chance.between(1, 8) as usize;
    }
    if !healthy && chance.percent(50) {
        limits.memory_bytes = chance.spread(8 << 10, 1 << 20) as usize;
        limits.batch_records_max = chance.spread(1, 200) as usize;
        limits.batch_bytes_max = chance.spread(1 << 10, 1 << 20) as usize;
    }
    if large {
        limits.large_bytes = 4 << 10;
    }
    limits
}

fn network(chance: &mut Chance, healthy: bool) -> Network {
    if healthy {
        return Network {
            latency_max: chance.between(0, 12),
            resume_max: chance.between(0, SECOND),
            marker_max: 5,
            produce_fails: 0,
            commit_aborts: 0,
            step_faults: 0,
            commit_unknown: 0,
            answers_lost: 0,
        };
    }
    Network {
        latency_max: chance.spread(1, 400),
        resume_max: chance.between(0, 2 * SECOND),
        marker_max: *chance.pick(&[5, 50, 500]),
        produce_fails: *chance.pick(&[0, 0, 1, 5]),
        step_faults: *chance.pick(&[0, 1, 5, 20]),
        commit_aborts: *chance.pick(&[0, 1, 10]),
        commit_unknown: *chance.pick(&[0, 2, 10]),
        answers_lost: *chance.pick(&[0, 10, 50]),
    }
}

/// The intakes: the main one, and one whose defaults let a record without headers wait.
fn setup(lanes: u16, holds: &[u64], limits: Limits) -> Setup {
    let holds: Vec<Millis> = holds.iter().copied().map(Millis).collect();
    let ladder = Ladder::new(&holds, &[], Millis(2_000)).expect("the plan's ladders are sound");
    ladder.check(limits.horizon).expect("the plan's ladders fit the horizon");
    let patterns = ["t[0-9]", "later", "gone"].map(str::to_owned);
    let all = || Allow::new("waterclock", Some(&patterns)).expect("no pattern is wrong");
    let intakes = vec![
        Intake::new("", None, None, all()),
        Intake::new("orders", Some(Millis(4_500)), Some("t0"), all()),
    ];
    Setup {
        lanes,
        topics: Topics::new("waterclock", intakes, ladder),
        key: StateKey::new([7; 32]),
        limits,
    }
}
