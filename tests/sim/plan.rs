//! What a seed stands for: the shape of the world, its limits, what goes wrong and until when.

mod draw;
mod tasks;

use std::collections::BTreeSet;
use std::sync::Arc;

use waterclock::engine::{Millis, Setup};

use crate::broker::{Place, Time};
use crate::chance::Chance;
use crate::options::Options;
pub use tasks::{Tasks, WORKER_SESSION};

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
/// The same for the neighbours of records that brokers refuse: each failure takes the lanes over again; and a user's
/// transaction that hangs hides what stands behind it, of a record that is moved in two lanes.
pub const LATENESS_POISON: Time = 50 * SECOND;
/// The same for the neighbours of hostile producers: what these write is read, looked at and written besides.
pub const LATENESS_HOSTILE: Time = 2 * SECOND;
/// And where a partition of their targets loses its leader: a batch that is on its way there is waited for, for as long as a
/// transaction may take, and fails; then the lanes are taken over again.
pub const LATENESS_LEADERLESS: Time = TRANSACTION + LATENESS_HOSTILE;
/// After the last fault and the last due time everything is done within this: a session and a transaction that
/// time out, one after the other, the coordinator's scan, and what was waiting because of them.
pub const RECOVERY: Time = 120 * SECOND;

/// Longer than a partition of an intake stands still.
pub const DUPLICATES_KEPT: Time = 240 * SECOND;

/// How hops, deliveries and offsets leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Delivery {
    ExactlyOnce,
    AtLeastOnce,
}

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Nothing goes wrong: order and lateness are checked, too.
    Healthy,
    /// Liveness: anything goes wrong until `heal_at`; then all must be through within a bound.
    Faulty,
    /// Safety: anything goes wrong to the end; what has not arrived stands somewhere.
    Storm,
    /// As `Faulty`, with `order = "strict"`, leaders that stall and little memory: the order holds through all of it.
    Strict,
    /// As `Faulty`, and all are away for so long that the group's offsets are gone.
    Away,
    /// As `Faulty`, and an intake or a tier deletes by time what it still holds: that is never silent.
    Retention,
    /// As `Faulty`, and clocks step back and forth: those of brokers and those of processes.
    Clocks,
    /// Nothing goes wrong but that brokers refuse some records: the others wait some seconds at most.
    Poison,
    /// Hostile producers beside the others: unknown targets by the thousand, floods of what breaks the contract, stolen states.
    /// In most of them nothing else goes wrong, and nobody else may be late.
    Hostile,
    /// More pending records in a partition than a commit's metadata can name.
    Flood,
    /// Tasks: lanes, workers and endpoints, all of which misbehave.
    Tasks,
}

impl Kind {
    pub const ALL: [Self; 11] = [
        Self::Healthy,
        Self::Faulty,
        Self::Storm,
        Self::Strict,
        Self::Away,
        Self::Retention,
        Self::Clocks,
        Self::Poison,
        Self::Hostile,
        Self::Flood,
        Self::Tasks,
    ];
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
    /// The clock of a node steps.
    Clock { node: usize, by: i64 },
    /// The wall clock of a slot's machine steps.
    Wall { slot: usize, by: i64 },
    /// Another node leads a partition.
    Leader { place: Place, node: usize },
    /// Nothing is heard of a partition of a lane topic: no record, no answer about its end.
    Silence { topic: usize, partition: usize, lasts: Time },
    /// A node stands still: whatever needs it waits, or gives up.
    Stall { node: usize, lasts: Time },
    /// A partition of a lane topic deletes what is older than this.
    Retention { topic: usize, partition: usize, keep: Time },
    /// Everyone goes and stays away until the group's offsets are gone: all of them, or some.
    Away { lasts: Time, whole: bool },
    /// A lane's changelog is compacted.
    Compact { lane: usize },
    /// A partition of a target has no leader.
    Leaderless { lasts: Time },
    /// A worker dies at once, and starts again after a while.
    KillWorker { worker: usize, back_after: Time },
    /// It ends its calls, commits, leaves, and starts again after a while.
    StopWorker { worker: usize, back_after: Time },
    /// It stands still and goes on as if nothing had happened.
    FreezeWorker { worker: usize, lasts: Time },
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
    /// A commit's request is held up, or its offsets are; the client asks again and succeeds, and the first one arrives some time later.
    pub commit_held: u32,
    /// Percent of answers to clients that never arrive.
    pub answers_lost: u32,
}

/// How many records hostile producers write.
#[derive(Clone, Copy, Debug)]
pub struct Hostile {
    /// For targets that do not exist, each for another one.
    pub ghosts: usize,
    /// That break the contract, in one lane within a moment.
    pub malformed: usize,
    /// Cancels and replaces of ids that nobody made.
    pub commands: usize,
    /// All else.
    pub others: usize,
}

/// All of it.
pub struct Plan {
    pub kind: Kind,
    pub delivery: Delivery,
    pub setup: Arc<Setup>,
    pub slots: usize,
    /// When the last of them starts, at most.
    pub start_max: Time,
    /// Faults between steps, at most: each costs the run a session or a transaction's time.
    pub step_faults_max: u64,
    pub skews: Vec<i64>,
    /// A node whose clock nobody asks.
    pub unprobed: Option<usize>,
    /// Targets keep the time of their appends; else that of the writer (CreateTime), and nobody is told when they were.
    pub stamped: bool,
    /// How old a clock's answer may be when it arrives, at most.
    pub lag_max: u64,
    pub network: Network,
    pub faults: Vec<(Time, Fault)>,
    pub heal_at: Time,
    /// When the first record is submitted, and the last.
    pub submits: (Time, Time),
    pub submissions: usize,
    /// Keys that they have.
    pub keys: usize,
    /// Timers that their clients create, replace and cancel again and again.
    pub stories: usize,
    /// Records have ids.
    pub ids: bool,
    pub delay_max: Time,
    /// How far an index is behind the changelog, at most, as long as something comes.
    pub index_lag_max: Time,
    /// How long the changelog keeps a tombstone.
    pub tombstones: Time,
    /// How long before its due time a cancel must be readable to win for certain.
    pub settle: Time,
    /// How long a foreign transaction on an intake is waited for.
    pub foreign_wait: Time,
    /// Percent of submissions that brokers refuse when they are delivered.
    pub poison: u32,
    pub hostile: Option<Hostile>,
    pub tasks: Option<Tasks>,
    /// Nothing may be later than this; `None`: no such promise in this weather.
    pub late_max: Option<Time>,
    /// Records that one poll hands over, at most.
    pub poll_max: u64,
    /// Large records are among them.
    pub large: bool,
    /// The workload's and the world's luck.
    pub luck: (Chance, Chance),
    /// The submissions that are made; `None`: all that are drawn.
    pub only: Option<BTreeSet<usize>>,
}

impl Plan {
    /// The plan that these options stand for.
    pub fn of(options: &Options) -> Self {
        let (kind, delivery) = options.mode();
        let mut plan = match kind {
            Kind::Poison => Self::poison(options.seed, delivery),
            Kind::Hostile => Self::hostile(options.seed, delivery),
            Kind::Flood => Self::flood(options.seed, delivery),
            Kind::Tasks => Self::tasks(options.seed),
            kind => Self::new(options.seed, kind, delivery),
        };
        for _ in 0..options.luck {
            plan.luck.1 = plan.luck.1.split();
        }
        if let Some(only) = &options.faults {
            let faults = std::mem::take(&mut plan.faults).into_iter().enumerate();
            plan.faults = faults.filter(|(at, _)| only.contains(at)).map(|(_, of)| of).collect();
        }
        if let Some(only) = &options.chances {
            plan.network.keep(only);
        }
        plan.only = options.submissions.clone();
        plan
    }

    fn new(seed: u64, kind: Kind, delivery: Delivery) -> Self {
        let mut chance = Chance::new(seed);
        let healthy = kind == Kind::Healthy;
        let lanes = chance.between(1, 4) as u16;
        let (holds, delay_max) = draw::ladder(&mut chance);
        let span = *chance.pick(&[SECOND, 20 * SECOND, 5 * MINUTE]);
        let first = 5 * SECOND;
        let heal_at = if healthy {
            0
        } else {
            first + span + chance.spread(SECOND, delay_max.max(30 * SECOND))
        };
        let skew = match kind {
            Kind::Healthy => 40,
            Kind::Clocks => *chance.pick(&[0, 40, 2_000, 30_000]),
            _ => *chance.pick(&[0, 40, 2_000]),
        };
        let nodes = chance.between(1, 3) as usize;
        let skews = (0..nodes).map(|_| chance.between(0, skew) as i64 - skew as i64 / 2).collect();
        // What is early there can be aborted.
        let is_unprobed = kind == Kind::Clocks
            && delivery == Delivery::ExactlyOnce
            && nodes > 1
            && chance.percent(40);
        let unprobed = is_unprobed.then(|| chance.below(nodes));
        let slots = chance.between(1, 4) as usize;
        let large = chance.percent(25);
        let limits = draw::limits(&mut chance, kind, delivery, large);
        let settle = limits.settle.map_or(0, |settle| settle.0);
        let setup = Arc::new(draw::setup(lanes, &holds, limits));
        let network = draw::network(&mut chance, healthy);
        let mut plan = Self {
            kind,
            delivery,
            setup,
            slots,
            start_max: if healthy { SECOND } else { 20 * SECOND },
            step_faults_max: 8,
            skews,
            unprobed,
            // Drawn by itself, so a seed keeps its meaning. Early records by a clock that nobody asks are not found
            // out.
            stamped: is_unprobed || Chance::new(!seed).percent(50),
            lag_max: chance.between(0, 8),
            network,
            faults: Vec::new(),
            heal_at,
            submits: (first, first + span),
            submissions: chance.spread(20, 250) as usize,
            keys: *chance.pick(&[8, 8, 8, 1, 2, 500]),
            stories: chance.between(0, 12) as usize,
            ids: true,
            delay_max,
            index_lag_max: if healthy { 20 } else { chance.spread(1, 5 * SECOND) },
            tombstones: *chance.pick(&[MINUTE, HOUR, DAY]),
            settle,
            foreign_wait: *chance.pick(&[SECOND, 10 * SECOND]),
            large,
            poison: 0,
            hostile: None,
            tasks: None,
            late_max: healthy.then_some(LATENESS_HEALTHY),
            poll_max: 60,
            luck: (chance.split(), chance.split()),
            only: None,
        };
        if kind == Kind::Retention {
            // What became of a timer whose record was deleted is nobody's promise.
            (plan.stories, plan.ids) = (0, false);
        }
        if !healthy {
            plan.faults(&mut chance);
            plan.poison = *chance.pick(&[0, 0, 1, 3]);
        }
        plan
    }

    /// The only fault: brokers refuse some records. The bound is on how long the other records wait because of it.
    fn poison(seed: u64, delivery: Delivery) -> Self {
        let mut plan = Self::new(seed, Kind::Healthy, delivery);
        plan.kind = Kind::Poison;
        plan.poison = 2;
        plan.late_max = Some(LATENESS_POISON);
        plan
    }

    /// Hostile producers: in two of three such worlds nothing else goes wrong, but that a target of theirs may lose a leader.
    fn hostile(seed: u64, delivery: Delivery) -> Self {
        // Drawn by itself: the world is that of the other kind.
        let mut chance = Chance::new(!seed).split();
        let is_fair = chance.percent(66);
        let base = if is_fair { Kind::Healthy } else { Kind::Faulty };
        let mut plan = Self::new(seed, base, delivery);
        plan.kind = Kind::Hostile;
        plan.poison = 0;
        let hostile = Hostile {
            ghosts: *chance.pick(if is_fair { &[0, 100, 3_000] } else { &[0, 30, 300] }),
            malformed: *chance.pick(if is_fair { &[0, 300, 4_000] } else { &[0, 30, 300] }),
            commands: *chance.pick(if is_fair { &[0, 100, 1_500] } else { &[0, 30, 300] }),
            others: chance.between(20, 150) as usize,
        };
        plan.hostile = Some(hostile);
        let setup = Arc::make_mut(&mut plan.setup);
        if chance.percent(40) {
            setup.limits.tracked_max = chance.spread(50, 1_000) as usize;
        }
        // The longest delay that is allowed is waited for, and so is each that the others ask for.
        let (from, to) = plan.submits;
        let longest = 2 * plan.delay_max + plan.heal_at + (to - from) + HOUR;
        setup.limits.max_delay = Millis(longest);
        plan.late_max = is_fair.then_some(LATENESS_HOSTILE);
        // Where nothing can be aborted a batch that fails may be delivered twice: then it is no fair weather.
        if chance.percent(40) && (plan.exactly_once() || !is_fair) {
            for _ in 0..chance.between(1, 2) {
                let at = chance.between(from, to + plan.delay_max.min(MINUTE));
                let lasts = chance.spread(SECOND, MINUTE);
                plan.faults.push((at, Fault::Leaderless { lasts }));
                plan.heal_at = if is_fair { 0 } else { plan.heal_at.max(at + lasts) };
            }
            plan.late_max = is_fair.then_some(LATENESS_LEADERLESS);
        }
        plan
    }

    /// One lane, one member, and more pending records in a partition than a commit's metadata can name.
    fn flood(seed: u64, delivery: Delivery) -> Self {
        let mut chance = Chance::new(seed);
        let mut limits = draw::limits(&mut chance, Kind::Healthy, delivery, false);
        limits.memory_bytes = 64 << 20;
        let network = Network { latency_max: 2, ..draw::network(&mut chance, true) };
        let first = 5 * SECOND;
        let kill = Fault::Kill { slot: 0, back_after: 200 };
        let kills = (0..chance.between(0, 2)).map(|_| (first + chance.between(0, 2_500), kill));
        Self {
            kind: Kind::Flood,
            setup: Arc::new(draw::setup(1, &[SECOND, MINUTE], limits)),
            slots: 1,
            start_max: SECOND,
            skews: vec![0],
            network,
            faults: kills.collect(),
            heal_at: first + 3 * SECOND,
            submits: (first, first + 100),
            submissions: 32_000,
            stories: 0,
            delay_max: 2 * SECOND,
            large: false,
            poll_max: 2_000,
            poison: 0,
            ..Self::new(seed, Kind::Faulty, delivery)
        }
    }

    /// How long after the last due time everything is done.
    pub fn recovery(&self) -> Time {
        // Ten failures for each poison record, of at most three seconds each.
        let poison = self.submissions as u64 * u64::from(self.poison) / 100 * 30 * SECOND;
        RECOVERY + poison + self.hostile.map_or(0, |_| 2 * MINUTE)
    }

    /// How far the brokers' clocks are apart, at most, with what they step.
    pub fn clocks_apart(&self) -> u64 {
        let (low, high) = (self.skews.iter().min(), self.skews.iter().max());
        let steps = self.faults.iter().map(|(_, fault)| match fault {
            Fault::Clock { by, .. } => by.unsigned_abs(),
            _ => 0,
        });
        low.zip(high).map_or(0, |(low, high)| high.abs_diff(*low)) + steps.sum::<u64>()
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

    /// Nothing goes wrong but what users do.
    pub fn healthy(&self) -> bool {
        self.kind == Kind::Healthy || self.kind == Kind::Hostile && self.heal_at == 0
    }
}
