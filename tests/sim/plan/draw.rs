//! Drawing ladders, limits, networks, and what goes wrong.

use waterclock::engine::allow::Allow;
use waterclock::engine::ladder::Ladder;
use waterclock::engine::state::StateKey;
use waterclock::engine::{Arrival, Intake, Limits, Millis, Setup, Topics, Tracking};

use super::{DAY, Delivery, Fault, HOUR, Kind, MINUTE, Network, Plan, SECOND, SESSION};
use crate::broker::{Place, Time};
use crate::chance::Chance;
use crate::workload::TARGETS;

/// Holds, and the longest delay that makes sense with them.
pub(super) fn ladder(chance: &mut Chance) -> (Vec<u64>, Time) {
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

pub(super) fn limits(chance: &mut Chance, kind: Kind, delivery: Delivery, large: bool) -> Limits {
    let healthy = kind == Kind::Healthy;
    let mut limits = Limits {
        hop_linger: Millis(*chance.pick(&[0, 50, 250, 500])),
        batches_max: if delivery == Delivery::ExactlyOnce {
            1
        } else {
            chance.between(1, 4) as usize
        },
        aborts: delivery == Delivery::ExactlyOnce,
        batch_gap: Millis(*chance.pick(&[0, 5, 50])),
        history: Millis(*chance.pick(&[MINUTE, HOUR, DAY])),
        tracking: *chance.pick(&[
            Tracking::Full,
            Tracking::Full,
            Tracking::Full,
            Tracking::Cancellations,
        ]),
        settle: Some(Millis(*chance.pick(&[50, 50, 50, 10, 200]))),
        // Never less than the lead of a resume: they would take turns.
        read_ahead: Millis(*chance.pick(&[1_500, 3_000, 10_000])),
        duplicates_kept: Millis(super::DUPLICATES_KEPT),
        arrival: if kind == Kind::Strict { Arrival::Strict } else { Arrival::ByDue },
        ..Limits::default()
    };
    if !healthy || chance.percent(30) {
        limits.hop_partitions_max = chance.between(1, 8) as usize;
    }
    let narrow = !healthy && chance.percent(50);
    if narrow {
        limits.memory_bytes = chance.spread(8 << 10, 1 << 20) as usize;
        limits.batch_records_max = chance.spread(1, 200) as usize;
        limits.batch_bytes_max = chance.spread(1 << 10, 1 << 20) as usize;
    }
    if large {
        limits.large_bytes = 4 << 10;
    }
    limits
}

pub(super) fn network(chance: &mut Chance, healthy: bool) -> Network {
    if healthy {
        return Network {
            latency_max: chance.between(0, 12),
            resume_max: chance.between(0, SECOND),
            marker_max: 5,
            produce_fails: 0,
            commit_aborts: 0,
            step_faults: 0,
            commit_unknown: 0,
            commit_held: 0,
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
        commit_held: *chance.pick(&[0, 2, 10]),
        answers_lost: *chance.pick(&[0, 10, 50]),
    }
}

/// The intakes: the main one, and one whose defaults let a record without headers wait.
pub(super) fn setup(lanes: u16, holds: &[u64], limits: Limits) -> Setup {
    let holds: Vec<Millis> = holds.iter().copied().map(Millis).collect();
    let ladder = Ladder::new(&holds, &[], Millis(2_000)).expect("the plan's ladders are sound");
    ladder.check(limits.horizon).expect("the plan's ladders fit the horizon");
    let patterns = ["t[0-9]", "later", "gone", "x-[a-z0-9-]+"].map(str::to_owned);
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

impl Network {
    /// Only these chances stay; the names are those of the fields.
    pub(super) fn keep(&mut self, only: &std::collections::BTreeSet<String>) {
        for (name, percent) in self.chances() {
            if !only.contains(name) {
                *percent = 0;
            }
        }
    }

    /// What goes wrong by itself, by name.
    pub fn chances(&mut self) -> [(&'static str, &mut u32); 6] {
        [
            ("produce-fails", &mut self.produce_fails),
            ("commit-aborts", &mut self.commit_aborts),
            ("step-faults", &mut self.step_faults),
            ("commit-unknown", &mut self.commit_unknown),
            ("commit-held", &mut self.commit_held),
            ("answers-lost", &mut self.answers_lost),
        ]
    }
}

impl Plan {
    pub(super) fn faults(&mut self, chance: &mut Chance) {
        for _ in 0..chance.between(1, 12) {
            // Half of them while most is on its way.
            let busy = (self.submits.1 + 20 * SECOND).min(self.heal_at);
            let at = if chance.percent(50) {
                chance.between(self.submits.0, busy)
            } else {
                chance.spread(SECOND, self.heal_at)
            };
            let special = match self.kind {
                Kind::Strict if chance.percent(60) => Some(self.stall(chance)),
                Kind::Clocks if chance.percent(60) => Some(self.clocks(chance)),
                Kind::Retention if chance.percent(50) => Some(self.retention(chance)),
                _ => None,
            };
            let fault = special.unwrap_or_else(|| self.any(chance));
            self.faults.push((at, fault));
        }
        if self.kind == Kind::Away || chance.percent(5) {
            self.away(chance);
        }
    }

    fn any(&self, chance: &mut Chance) -> Fault {
        let slot = chance.below(self.slots);
        let back_after = chance.spread(50, MINUTE);
        let topics = self.setup.topics.names().len();
        let lanes = usize::from(self.setup.lanes);
        match chance.between(0, 13) {
            0..=2 => Fault::Kill { slot, back_after },
            3..=4 => Fault::Stop { slot, back_after },
            5 => Fault::Freeze { slot, lasts: chance.spread(20, 5 * SECOND) },
            6..=7 => Fault::Freeze { slot, lasts: chance.between(SESSION, 4 * SESSION) },
            8 => Fault::Clock {
                node: chance.below(self.skews.len()),
                by: chance.spread(1, 20 * SECOND) as i64,
            },
            9 => Fault::Silence {
                // Mostly an intake.
                topic: if chance.percent(70) { 0 } else { chance.below(topics) },
                partition: chance.below(lanes),
                lasts: chance.spread(50, MINUTE),
            },
            10 => self.stall(chance),
            11 => Fault::Compact { lane: chance.below(lanes) },
            _ => self.leader(chance, topics, lanes),
        }
    }

    fn stall(&self, chance: &mut Chance) -> Fault {
        let topics = self.setup.topics.names().len();
        let lasts = chance.spread(50, MINUTE);
        if chance.percent(50) {
            return Fault::Stall { node: chance.below(self.skews.len()), lasts };
        }
        let partition = chance.below(usize::from(self.setup.lanes));
        Fault::Silence { topic: chance.below(topics), partition, lasts }
    }

    fn clocks(&self, chance: &mut Chance) -> Fault {
        let by = chance.spread(1, 5 * MINUTE) as i64;
        let by = if chance.percent(60) { -by } else { by };
        if chance.percent(50) {
            Fault::Clock { node: chance.below(self.skews.len()), by }
        } else {
            Fault::Wall { slot: chance.below(self.slots), by }
        }
    }

    fn retention(&self, chance: &mut Chance) -> Fault {
        let topics = self.setup.topics.names().len();
        Fault::Retention {
            topic: if chance.percent(40) { 0 } else { chance.below(topics) },
            partition: chance.below(usize::from(self.setup.lanes)),
            keep: chance.spread(1, self.delay_max),
        }
    }

    /// A lane topic's partition, or a target's: those were made next, behind the dead letters and the changelog.
    fn leader(&self, chance: &mut Chance, topics: usize, lanes: usize) -> Fault {
        let node = chance.below(self.skews.len());
        let place = if chance.percent(70) {
            Place { topic: chance.below(topics), partition: chance.below(lanes) as i32 }
        } else {
            let made = TARGETS.len() + 2;
            Place { topic: topics + chance.below(made), partition: chance.below(lanes) as i32 }
        };
        Fault::Leader { place, node }
    }

    /// All members go; what heals after that heals after they came back.
    fn away(&mut self, chance: &mut Chance) {
        let at = chance.between(self.submits.0, self.heal_at);
        let lasts = *chance.pick(&[2 * MINUTE, HOUR, 8 * DAY]);
        self.faults.push((at, Fault::Away { lasts, whole: chance.percent(80) }));
        self.heal_at = self.heal_at.max(at + lasts + chance.spread(SECOND, 30 * SECOND));
    }
}
