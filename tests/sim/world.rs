//! The executor: one queue of events, one at a time, in an order that the seed alone decides.
//!
//! Time jumps from event to event, so seven days of waiting cost nothing.

pub mod cluster;
mod faults;
mod hostile;
mod tasks;
mod users;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use waterclock::engine::{Arrival, Offset, timers};

pub use cluster::COORDINATOR;
pub use tasks::{
    Called, CancelTold, Command, Create, Planned, PlannedRun, Report, RunAct, RunCommand,
    ScheduleAct, Shard, Submitted, Tasks, Wrote, plain_value, stop_of,
};

use crate::broker::{Broker, EPOCH_MS, Place, Time, Writer};
use crate::chance::Chance;
use crate::checkpoint::META;
use crate::member::{Member, Up};
use crate::mutation::Mutation;
use crate::network::{Process, Scheduled, Told, Wake};
use crate::options::Options;
use crate::plan::{DUPLICATES_KEPT, Kind, Plan, SECOND, TRANSACTION};
use crate::worker::Worker;
use crate::workload::{self, DENIED, End, TARGETS, WIDENED, Workload};

/// Duplicates are kept for so long from a take-over on, and a bit, before they are found to be duplicates.
const KEPT: Time = DUPLICATES_KEPT / 4 * 5;
/// More events than this in one millisecond mean that something spins.
const EVENTS_AT_ONCE_MAX: u64 = 100_000;
/// More than this in a run do so, too.
const EVENTS_MAX: u64 = 3_000_000;

/// All that can be broken; each has a mutation that makes it object.
pub const PROMISES: &[&str] = &[
    "never early",
    "never lost",
    "never silent",
    "exactly once",
    "in order",
    "strictly in order",
    "your bytes",
    "as agreed",
    "on time",
    "dead letters",
    "memory",
    "liveness",
    "no phantom",
    "cancelled",
    "cancelled in time",
    "delivered",
    "linearizable",
    "timers",
    "answers",
    "one task",
    "one end",
    "cancelled means never",
    "none later",
    "one call a turn",
    "attempts",
    "interruptions",
    "open calls",
    "rates",
    "rates of topics",
    "paused",
    "paused topics",
    "deleted",
    "deleted ends",
    "retries",
    "expired",
    "credits",
    "feedback",
    "one executor",
    "follow-ups",
    "cursors",
    "one occurrence",
    "no time left out",
    "no overlap",
    "changes of schedules",
    "shards",
    "runs agree",
    "runs end in time",
    "cancelled shards",
    "no shard later",
];
/// What only an engine that asks for the impossible, or a model that is wrong, can break.
const OTHERS: &[&str] = &["contract", "model", "too wide"];

/// A breach, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    pub promise: &'static str,
    pub what: String,
}

/// An answer that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    pub told: Told,
    /// When, in the order of all that happened in the cluster.
    pub moment: u64,
}

/// The world of one seed.
pub struct World {
    pub plan: Plan,
    pub at: Time,
    pub broker: Broker,
    pub workload: Workload,
    /// Where each submission was acknowledged.
    pub accepted: BTreeMap<usize, (Place, Offset)>,
    pub members: Vec<Member>,
    pub tasks: Tasks,
    pub workers: Vec<Worker>,
    pub chance: Chance,
    pub mutation: Option<Mutation>,
    /// The versions that submissions name.
    pub named: BTreeMap<usize, timers::Version>,
    /// What clients were told of their commands.
    pub told: BTreeMap<usize, Vec<Answered>>,
    /// Partitions from which nothing comes, and until when.
    silent: BTreeMap<Place, Time>,
    /// Nodes that stand still, and until when.
    stalled: BTreeMap<usize, Time>,
    /// Partitions of targets that have no leader, and until when.
    leaderless: BTreeMap<Place, Time>,
    /// Nobody comes back before this.
    pub away_until: Time,
    /// What waterclock said that it lost: offsets of a partition, from the first to before the last.
    pub told_lost: Vec<(Place, Offset, Offset)>,
    /// What retention has deleted, in the same way.
    pub deleted: Vec<(Place, Offset, Offset)>,
    /// When a node's clock stepped back, and by how much.
    pub stepped_back: Vec<(usize, Time, u64)>,
    /// How far each slot's wall clock is off.
    pub walls: Vec<i64>,
    /// Submissions that a crash may double (`at_least_once`).
    pub exposed: BTreeSet<u32>,
    /// Submissions that expire and that a process (its slot and life) has handed over (`at_least_once`).
    pub handed_over: BTreeSet<(usize, u32, u32)>,
    /// What was seen to be wrong while it ran.
    pub breaches: Vec<Breach>,
    /// How often the named thing happened: faults that never bite prove nothing.
    pub seen: BTreeMap<&'static str, u64>,
    /// Bytes of the longest metadata of a commit.
    pub longest_metadata: usize,
    /// Lane topics by the engine's index.
    pub lane_topics: Vec<usize>,
    pub timers_topic: usize,
    pub meta_topic: usize,
    queue: BTreeMap<(Time, u64), Scheduled>,
    sequence: u64,
    writers: BTreeMap<usize, Writer>,
    marker_queued: bool,
    /// Something became readable, or someone may read again.
    pub stirred: bool,
    /// By then all must be through.
    deadline: Time,
    /// The deadline is never put off beyond this.
    deadline_max: Time,
    pub history: Option<VecDeque<String>>,
    /// Events that are kept for the report of a failure.
    history_max: usize,
}

impl World {
    pub fn new(options: &Options, history_max: usize) -> Self {
        let (mut plan, mutation) = (Plan::of(options), options.mutation);
        if matches!(mutation, Some(Mutation::SkipsSettle | Mutation::SkipsGate)) {
            Arc::make_mut(&mut plan.setup).limits.settle = None;
        }
        if mutation == Some(Mutation::IgnoresStrict) {
            Arc::make_mut(&mut plan.setup).limits.arrival = Arrival::ByDue;
        }
        let mut broker = Broker::new(plan.skews.clone());
        broker.hands_out_unstable = mutation == Some(Mutation::TakesUnstable);
        broker.forgives_generations = mutation == Some(Mutation::OldGenerations);
        broker.reads_uncommitted = mutation == Some(Mutation::ReadsUncommitted);
        let lanes = usize::from(plan.setup.lanes);
        let names = plan.setup.topics.names();
        let lane_topics = names.iter().map(|name| broker.create(name, lanes, 4 << 20)).collect();
        broker.create(&plan.setup.topics.dead(), lanes, 8 << 20);
        let timers_topic = broker.create(&plan.setup.topics.timers(), lanes, 1 << 20);
        for (name, partitions, limit) in TARGETS.iter().filter(|(name, ..)| *name != "later") {
            let topic = broker.create(name, *partitions, *limit);
            broker.topics[topic].picky = true;
        }
        let meta_topic = broker.create(META, lanes.min(2), 1 << 20);
        let denied = broker.create(DENIED, 2, 1 << 20);
        broker.topics[denied].denied = true;
        for (name, partitions, limit) in workload::hostile::TARGETS {
            if plan.kind == Kind::Hostile {
                broker.create(name, partitions, limit);
            }
        }
        let (mut for_load, chance) =
            std::mem::replace(&mut plan.luck, (Chance::new(0), Chance::new(0)));
        let workload = workload::draw(&plan, &mut for_load);
        let tasks_topic = broker.create(&plan.setup.topics.tasks(), lanes, 4 << 20);
        let tasks = Tasks::draw(&plan, mutation, tasks_topic, &mut for_load);
        let workers = (0..plan.tasks.map_or(0, |of| of.workers)).map(|_| Worker::new()).collect();
        let slots = plan.slots;
        let members = (0..slots).map(|slot| Member::new(slot, &plan)).collect();
        let ends = workload.submissions.iter().map(|s| {
            let appended = EPOCH_MS + s.at;
            s.when.due(appended).max(appended + plan.hold_of(s.topic))
        });
        let made = |at: &usize| plan.only.as_ref().is_none_or(|only| only.contains(at));
        let ends = ends.enumerate().filter(|(at, _)| made(at)).map(|(_, end)| end);
        let last_due = ends.max().unwrap_or_default().saturating_sub(EPOCH_MS);
        let safety = plan.kind == Kind::Storm;
        let healed = last_due.max(plan.heal_at).max(plan.submits.1)
            + plan.recovery()
            + 12 * plan.clocks_apart()
            + KEPT;
        let healed = if plan.tasks.is_some() {
            tasks.ends.max(plan.heal_at) + tasks::PATIENCE
        } else {
            healed
        };
        let deadline = if safety { plan.heal_at } else { healed };
        let deadline_max = if safety { deadline } else { healed + 4 * DUPLICATES_KEPT };
        let mut world = Self {
            plan,
            at: 0,
            broker,
            workload,
            accepted: BTreeMap::new(),
            named: BTreeMap::new(),
            told: BTreeMap::new(),
            silent: BTreeMap::new(),
            stalled: BTreeMap::new(),
            leaderless: BTreeMap::new(),
            away_until: 0,
            told_lost: Vec::new(),
            deleted: Vec::new(),
            stepped_back: Vec::new(),
            walls: vec![0; slots],
            members,
            tasks,
            workers,
            chance,
            mutation,
            exposed: BTreeSet::new(),
            handed_over: BTreeSet::new(),
            breaches: Vec::new(),
            seen: BTreeMap::new(),
            longest_metadata: 0,
            lane_topics,
            timers_topic,
            meta_topic,
            queue: BTreeMap::new(),
            sequence: 0,
            writers: BTreeMap::new(),
            marker_queued: false,
            stirred: false,
            deadline,
            deadline_max,
            history: (history_max > 0).then(VecDeque::new),
            history_max,
        };
        world.lay_out();
        world
    }

    /// Puts everything into the queue that is known from the start.
    fn lay_out(&mut self) {
        for index in 0..self.workload.submissions.len() {
            if self.plan.only.as_ref().is_none_or(|only| only.contains(&index)) {
                self.push(self.workload.submissions[index].at, Scheduled::Submit(index));
            }
        }
        self.lay_out_tasks();
        for index in 0..self.workload.transactions.len() {
            match self.workload.transactions[index] {
                End::Commit(at) | End::Abort(at) => self.push(at, Scheduled::EndTransaction(index)),
                End::Hang => {}
            }
        }
        for slot in 0..self.plan.slots {
            let at = self.chance.between(0, self.plan.start_max);
            self.push(at, Scheduled::Start(slot));
        }
        for index in 0..self.plan.faults.len() {
            self.push(self.plan.faults[index].0, Scheduled::Fault(index));
        }
        let (from, to) = self.plan.submits;
        let at = self.chance.between(from, to + 10 * SECOND);
        self.push(at, Scheduled::MakeTarget);
        if !self.plan.healthy() {
            let at = self.chance.between(from, to + 10 * SECOND);
            self.push(at, Scheduled::WidenTarget);
        }
    }

    pub fn push(&mut self, at: Time, event: Scheduled) {
        self.sequence += 1;
        self.queue.insert((at.max(self.at), self.sequence), event);
    }

    pub fn after(&mut self, wait: Time, event: Scheduled) {
        self.push(self.at + wait, event);
    }

    pub fn wake(&mut self, process: Process, wait: Time, wake: Wake) {
        self.after(wait, Scheduled::Process(process, wake));
    }

    pub fn latency(&mut self) -> Time {
        self.chance.latency(self.plan.network.latency_max)
    }

    pub fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(history) = &mut self.history {
            if history.len() == self.history_max {
                history.pop_front();
            }
            history.push_back(format!("{:>12} {}", self.at, what()));
        }
    }

    pub fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    pub fn breach(&mut self, promise: &'static str, what: String) {
        assert!(
            PROMISES.contains(&promise) || OTHERS.contains(&promise),
            "{promise} is no promise"
        );
        self.note(|| format!("BREACH {promise}: {what}"));
        self.breaches.push(Breach { promise, what });
    }

    /// The cancels that a submission is covered by for sure: of the same timer, and appended after it.
    pub fn cancels_of(&self, number: usize) -> impl Iterator<Item = (usize, Place, Offset)> {
        let of = self.workload.submissions.get(number).filter(|of| !of.act.cancels());
        let cancels = of.and_then(|of| self.workload.cancels.get(&of.timer?));
        let own = self.appended(number);
        cancels.into_iter().flatten().filter_map(move |&cancel| {
            let (own, (at, place, offset)) = (own?, self.appended(cancel)?);
            let follows = place == own.1 && offset > own.2;
            // In further intakes times count, also within a partition: a new leader's clock may be behind.
            let after = if place == own.1 && place.topic == 0 {
                follows
            } else {
                self.stepped_back.is_empty() && (at > own.0 || at == own.0 && follows)
            };
            after.then_some((cancel, place, offset))
        })
    }

    /// Whether a submission's timer was ever forgotten.
    pub fn was_forgotten(&self, number: usize) -> bool {
        let timer = self.workload.submissions.get(number).and_then(|of| of.timer);
        let logs = &self.broker.topics[self.timers_topic].partitions;
        logs.iter().flat_map(|log| log.ledger()).any(|(_, entry)| {
            entry.record.as_ref().is_some_and(|record| {
                let name = record.key().and_then(|key| key.get(..16));
                record.value().is_none() && name == timer.as_ref().map(|t| &t.0[..])
            })
        })
    }

    /// Where and when a submission was appended, once its transaction is committed.
    pub fn appended(&self, number: usize) -> Option<(u64, Place, Offset)> {
        let &(place, offset) = self.accepted.get(&number)?;
        let entry = self.broker.partition(place)?.read(offset)?;
        Some((entry.appended.0, place, offset))
    }

    pub fn healed(&self) -> bool {
        self.at >= self.plan.heal_at
    }

    /// Lanes were taken over. Duplicates in them are kept for so long from now on, however long ago all was healed.
    pub fn taken_over(&mut self) {
        self.deadline = self.deadline.max((self.at + KEPT).min(self.deadline_max));
    }

    /// Runs to the deadline, or to the first breach that is seen on the way.
    pub fn run(&mut self) {
        let (mut events, mut at_once) = (0, 0);
        while let Some(((at, _), event)) = self.queue.pop_first() {
            if at > self.deadline || !self.breaches.is_empty() {
                break;
            }
            at_once = if at == self.at { at_once + 1 } else { 0 };
            self.at = at;
            self.happen(event);
            if std::mem::take(&mut self.stirred) {
                self.rouse();
                self.rouse_workers();
            }
            events += 1;
            if events == EVENTS_MAX || at_once == EVENTS_AT_ONCE_MAX {
                let what = format!("{events} events, {at_once} of them at once: something spins");
                self.breach("liveness", what);
            }
        }
        // What is on its way at the end of a storm may be there, too.
        for member in &self.members {
            member.expose(&mut self.exposed);
        }
        *self.seen.entry("events").or_default() += events;
    }

    fn happen(&mut self, event: Scheduled) {
        match event {
            Scheduled::Submit(index) => self.submit(index),
            Scheduled::EndTransaction(index) => self.end_transaction(index),
            Scheduled::Start(slot) if self.at < self.away_until => {
                self.push(self.away_until, Scheduled::Start(slot));
            }
            Scheduled::Start(slot) => self.start(slot),
            Scheduled::ExpireOffsets { whole } => self.expire_offsets(whole),
            Scheduled::Process(process, wake) => match self.members[process.slot].up {
                _ if self.members[process.slot].life != process.life => {}
                Up::Dead => {}
                // What comes for a frozen process waits for it.
                Up::Frozen { until, .. } if self.at >= until => {
                    self.members[process.slot].up = Up::Alive;
                    self.awaken(process, wake);
                    self.stirred = true;
                }
                Up::Frozen { until, .. } => self.push(until, Scheduled::Process(process, wake)),
                Up::Alive => self.awaken(process, wake),
            },
            Scheduled::Arrives(process, round, request) => self.arrives(process, round, request),
            Scheduled::Marker => self.marker(),
            Scheduled::Expire(id) => {
                self.broker.expire(self.at, &id, TRANSACTION);
                self.want_marker();
            }
            Scheduled::Silent(process, member) => self.silent(process, &member),
            Scheduled::Fault(index) => self.fault(self.plan.faults[index].1),
            Scheduled::MakeTarget => self.make_target(),
            Scheduled::Told(number, told) => self.told_client(number, told),
            Scheduled::Stir => self.stirred = true,
            Scheduled::Task(act) => self.act(act),
            Scheduled::StartWorker(worker) => self.start_worker(worker),
            Scheduled::Worker(worker, life, event) => self.in_worker(worker, life, event),
            Scheduled::WorkerAsks(worker, life, round, request) => {
                self.worker_asks(worker, life, round, request);
            }
            Scheduled::WorkerSilent(worker, name, heard) => {
                self.worker_silent(worker, &name, heard);
            }
            Scheduled::WidenTarget => {
                let (name, partitions) = WIDENED;
                if let Some(topic) = self.broker.topic(name) {
                    self.broker.widen(topic, partitions);
                    self.tell_of(name);
                }
            }
        }
    }
}
