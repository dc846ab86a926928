//! Drawing worlds with tasks.

use std::sync::Arc;

use waterclock::engine::{Millis, Tracking};

use super::{DAY, Delivery, Fault, Kind, MINUTE, Plan, SECOND};
use crate::broker::Time;
use crate::chance::Chance;

/// The workers' group waits this long for a silent member.
pub const WORKER_SESSION: Time = 6 * SECOND;

/// What there is of tasks in a world.
#[derive(Clone, Copy, Debug)]
pub struct Tasks {
    /// Processes that make calls.
    pub workers: usize,
    /// Tasks that are created, at most.
    pub count: usize,
    /// Records that are no tasks, and go to the same topics.
    pub plains: usize,
    /// Records that somebody writes to topics of waterclock's.
    pub foreigners: usize,
    /// Bodies are large: credits go by their bytes.
    pub large: bool,
    /// Some tasks have feedback, some are called over gRPC, and of some is told how they ended. Some topics have a rate.
    pub newer_kinds: bool,
    /// There are schedules; what they are drawn from.
    pub schedules: Option<u64>,
    /// The tasks of some of them are runs.
    pub schedules_of_runs: bool,
    /// Some schedules go by a pattern, or are aligned, have an end or a jitter, and some tasks of theirs are asked for by hand.
    pub more_of_schedules: bool,
    /// There are runs; what they are drawn from.
    pub runs: Option<u64>,
    /// Nothing goes wrong with lanes: then what is delivered is on time, whatever workers do.
    pub lanes_are_well: bool,
    /// Workers only come and go as they should: then no call is ever in doubt.
    pub workers_are_gentle: bool,
    /// Percent of a worker's steps between two of which it dies or stands still.
    pub step_faults: u32,
    /// Percent of a worker's commits of which it never hears.
    pub commit_unknown: u32,
}

impl Plan {
    /// Lanes, workers and endpoints.
    pub(super) fn tasks(seed: u64) -> Self {
        let mut chance = Chance::new(!seed ^ 0x7461_736b).split();
        let lanes_are_well = chance.percent(50);
        let base = if lanes_are_well { Kind::Healthy } else { Kind::Faulty };
        let mut plan = Self::new(seed, base, Delivery::ExactlyOnce);
        let workers_are_gentle = chance.percent(30);
        let is_rough = !workers_are_gentle;
        let tasks = Tasks {
            workers: chance.between(1, 3) as usize,
            count: chance.spread(5, 60) as usize,
            plains: chance.between(0, 10) as usize,
            foreigners: *chance.pick(&[0, 0, 3, 20]),
            large: chance.percent(8),
            // So an even seed stands for the world that it stood for before there were any.
            newer_kinds: seed % 2 == 1,
            // All other seeds stand for the worlds that they stood for.
            schedules: (seed % 4 == 3).then_some(seed),
            schedules_of_runs: seed % 8 == 7,
            more_of_schedules: seed % 16 == 7,
            runs: (seed % 8 == 5).then_some(seed),
            lanes_are_well,
            workers_are_gentle,
            step_faults: if is_rough { *chance.pick(&[0, 2, 8]) } else { 0 },
            commit_unknown: if is_rough { *chance.pick(&[0, 5, 20]) } else { 0 },
        };
        plan.kind = Kind::Tasks;
        plan.tasks = Some(tasks);
        (plan.submissions, plan.stories, plan.poison, plan.large) = (0, 0, 0, false);
        let span = *chance.pick(&[5 * SECOND, 30 * SECOND, 2 * MINUTE]);
        let from = plan.submits.0;
        plan.submits.1 = from + span;
        plan.delay_max = *chance.pick(&[3 * SECOND, 20 * SECOND, 2 * MINUTE]);
        let until = from + span + plan.delay_max + 30 * SECOND;
        // All offsets of the group are kept, and clocks only run apart: tasks are late with them, and nothing else is shown by that.
        plan.faults.retain(|(_, fault)| !matches!(fault, Fault::Away { .. } | Fault::Clock { .. }));
        for (at, _) in &mut plan.faults {
            *at = (*at).min(until);
        }
        for _ in 0..chance.between(1, 8) {
            let (at, worker) = (chance.between(from, until), chance.below(tasks.workers));
            let back_after = chance.spread(50, 20 * SECOND);
            let fault = match chance.between(0, 5) {
                _ if workers_are_gentle => Fault::StopWorker { worker, back_after },
                0..=1 => Fault::KillWorker { worker, back_after },
                2 => Fault::StopWorker { worker, back_after },
                3 => Fault::FreezeWorker { worker, lasts: chance.spread(50, 5 * SECOND) },
                _ => {
                    let lasts = chance.between(WORKER_SESSION, 4 * WORKER_SESSION);
                    Fault::FreezeWorker { worker, lasts }
                }
            };
            plan.faults.push((at, fault));
        }
        // Brokers that stand still put a worker that is well out of its group, and then a call may be in doubt.
        let brokers_stall =
            plan.faults.iter().any(|(_, fault)| matches!(fault, Fault::Stall { .. }));
        if let Some(tasks) = &mut plan.tasks {
            tasks.workers_are_gentle &= !brokers_stall;
        }
        plan.heal_at = until + MINUTE;
        let setup = Arc::make_mut(&mut plan.setup);
        setup.topics = setup.topics.clone().with_tasks();
        setup.limits.tracking = Tracking::Full;
        setup.limits.history = Millis(DAY);
        // Tasks are larger than other records, and wait for each other.
        let least = if tasks.large { 8 << 20 } else { 256 << 10 };
        setup.limits.memory_bytes = setup.limits.memory_bytes.max(least);
        plan
    }
}
