//! Tasks: who asks for them, what endpoints answer, and what users see of them.

mod draft;
mod executors;
mod foreign;
mod mutating;
mod retry;
mod runs;
mod schedules;
mod settings;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use waterclock::engine::messages::{Answer, Outcome, TracedTurn};
use waterclock::engine::sealed::{self, Submission};
use waterclock::engine::task::registry::Registry;
use waterclock::engine::task::result::{Outcome as CallOutcome, TaskResult};
use waterclock::engine::timers::{Change, Timer, TimerId, Version};
use waterclock::engine::work::{Scope, Turn};
use waterclock::engine::{Offset, Record, UnixMillis};

use super::World;
use crate::broker::{EPOCH_MS, Place, Time};
use crate::member::Up;
use crate::network::{Act, Scheduled, Wake};
use crate::plan::{MINUTE, SECOND};
pub use draft::{Draft, Plain};
use executors::Executors;
pub use executors::Report;
pub use retry::Retry;
use runs::Runs;
pub use runs::{PlannedRun, RunAct, RunCommand, Shard};
use schedules::Schedules;
pub use schedules::{Command, Create, Planned, ScheduleAct, Submitted, Wrote};
pub use watch::stop_of;

/// How often it is looked what users see.
const LOOK_EVERY: Time = 500;
/// Members hear of another version of projects and services within this.
const HEARD_WITHIN: Time = 1_900;
/// All that waits has its turn within this, once nothing goes wrong any more.
pub(super) const PATIENCE: Time = 40 * MINUTE;
/// Users look on for so long after the last task has ended.
const AFTERMATH: Time = 30 * SECOND;
/// What is counted and what stands in the changelog may differ for so many looks while nothing is on its way.
const MISCOUNTS_MAX: u32 = 8;

/// A call as its endpoint saw it.
#[derive(Clone, Debug)]
pub struct Called {
    pub task: usize,
    pub version: Version,
    pub turn: u32,
    /// Its dispatch is a copy that somebody else has written, in a way that is left.
    pub is_copied: bool,
    pub at: Time,
    /// By the slowest broker's clock.
    pub now: UnixMillis,
    pub scope: Scope,
    pub worker: usize,
    pub is_open: bool,
    /// What it tells the executor.
    pub traced: Option<TracedTurn>,
}

/// What a lane has said of a cancel of a task.
pub struct CancelTold {
    pub task: usize,
    pub outcome: Outcome,
    /// How many changes of the task users had seen by then.
    pub seen: usize,
}

/// All that is known of tasks in a world.
#[derive(Default)]
pub struct Tasks {
    /// Those that users ask for, then those of schedules as they come.
    pub drafts: Vec<Draft>,
    pub of: BTreeMap<TimerId, usize>,
    /// How many users ask for.
    pub asked: usize,
    pub tasks_topic: usize,
    pub plains: Vec<Plain>,
    /// Projects, services and topics, and since when each version is in force.
    pub versions: Vec<settings::Version>,
    published: usize,
    /// By task: calls that workers did not make, as they knew nobody to call.
    pub refused: BTreeMap<usize, usize>,
    pub calls: Vec<Called>,
    /// What was appended of each creation first.
    created: BTreeMap<usize, Record>,
    /// What the changelog says of each task, in its order, and when it was appended.
    pub seen: BTreeMap<usize, Vec<(Time, Timer)>>,
    /// How far each lane's changelog was looked at.
    looked: BTreeMap<i32, Offset>,
    /// Dispatches that somebody has written once more, and when.
    copies: Vec<(UnixMillis, Turn)>,
    /// When workers were given partitions.
    pub assigned: Vec<Time>,
    /// Where records stand that waterclock has not written there.
    pub foreign: BTreeSet<(Place, Offset)>,
    /// Tasks of which somebody has changed a dispatch where it stands.
    pub altered: BTreeSet<usize>,
    /// How many dispatches somebody is to change before they are read.
    alters: usize,
    /// Retries by hand, in the order in which they were written.
    pub retries: Vec<Retry>,
    pub executors: Executors,
    pub schedules: Schedules,
    pub runs: Runs,
    /// What the lanes have said of cancels.
    pub cancels_told: Vec<CancelTold>,
    /// When the last task is due, and faults of users are over.
    pub ends: Time,
    is_quiet: bool,
    /// By slot: how often what it counts was wrong, and how much users had seen by then.
    miscounts: BTreeMap<usize, (u32, usize)>,
}

/// What a record that is no task has as its value.
pub fn plain_value(index: usize) -> String {
    format!("plain-{index}")
}

impl World {
    /// What is to happen to tasks.
    pub(super) fn lay_out_tasks(&mut self) {
        let Some(plan) = self.plan.tasks else { return };
        for index in 0..self.tasks.drafts.len() {
            if self.plan.only.as_ref().is_some_and(|only| !only.contains(&index)) {
                continue;
            }
            let Draft { at, again, replays, cancels, retries_by_hand, .. } =
                self.tasks.drafts[index].clone();
            self.push(at, Scheduled::Task(Act::Create(index)));
            let acts = [(again, Act::Create(index)), (replays, Act::Replay(index))];
            let commands = [(cancels, Act::Cancel(index)), (retries_by_hand, Act::Retry(index))];
            for (times, act) in acts.into_iter().chain(commands) {
                times.into_iter().for_each(|at| self.push(at, Scheduled::Task(act)));
            }
        }
        for (at, index, act) in self.acts_on_schedules() {
            self.push(at, Scheduled::Task(Act::Schedule(index, act)));
        }
        for (at, index, act) in self.acts_on_runs() {
            self.push(at, Scheduled::Task(Act::Run(index, act)));
        }
        for (index, plain) in self.tasks.plains.clone().into_iter().enumerate() {
            self.push(plain.at, Scheduled::Task(Act::Plain(index)));
        }
        for version in 1..self.tasks.versions.len() {
            self.push(self.tasks.versions[version].since, Scheduled::Task(Act::Publish(version)));
        }
        for worker in 0..plan.workers {
            let at = self.chance.between(0, 5 * SECOND);
            self.push(at, Scheduled::StartWorker(worker));
        }
        for _ in 0..plan.foreigners {
            let at = self.chance.between(self.plan.submits.0, self.plan.heal_at);
            let luck = self.chance.between(0, u64::MAX);
            self.push(at, Scheduled::Task(Act::Foreign(luck)));
        }
        if !plan.lanes_are_well {
            for _ in 0..self.chance.between(0, 20) {
                let at = self.chance.between(self.plan.submits.0, self.plan.heal_at);
                let luck = self.chance.between(0, u64::MAX);
                self.push(at, Scheduled::Task(Act::Copy(luck)));
            }
        }
        self.push(LOOK_EVERY, Scheduled::Task(Act::Look));
    }

    pub(super) fn act(&mut self, act: Act) {
        self.note(|| format!("{act:?}"));
        match act {
            Act::Create(index) => {
                let record = self.creation(index);
                self.tasks.created.entry(index).or_insert_with(|| record.clone());
                self.append_to_intake(index, record);
            }
            Act::Replay(index) => {
                if let Some(record) = self.tasks.created.get(&index).cloned() {
                    self.count("creations replayed");
                    self.append_to_intake(index, record);
                }
            }
            Act::Cancel(index) => {
                if self.tasks.created.contains_key(&index) {
                    self.count("tasks to be cancelled");
                    let now = self.api_now();
                    let id = &self.tasks.drafts[index].id;
                    let record = sealed::cancel(&self.plan.setup.key, now, id);
                    self.append_to_intake(index, record);
                }
            }
            Act::Retry(index) => self.retry_by_hand(index),
            Act::Schedule(index, act) => self.act_on_schedule(index, act),
            Act::Run(index, act) => self.act_on_run(index, act),
            Act::Plain(index) => self.submit_plain(index),
            Act::Copy(luck) => self.copy_some(luck),
            Act::Foreign(luck) => self.write_foreign(luck),
            Act::Publish(version) => self.publish(version),
            Act::Report(report) => self.report(report),
            Act::Look => self.look_at_tasks(),
        }
    }

    fn api_now(&self) -> UnixMillis {
        self.broker.slowest_clock(self.at)
    }

    fn creation(&self, index: usize) -> Record {
        let Draft { id, spec, due, expires, body, .. } = &self.tasks.drafts[index];
        let submission = Submission {
            id,
            spec,
            due: UnixMillis(EPOCH_MS + due),
            expires: expires.map(|expires| UnixMillis(EPOCH_MS + expires)),
            key: None,
            value: Some(body),
            headers: &[],
        };
        sealed::submit(&self.plan.setup.key, self.api_now(), &submission)
    }

    fn append_to_intake(&mut self, index: usize, record: Record) {
        let lane = self.tasks.drafts[index].id.lane_of(self.plan.setup.lanes);
        let place = Place { topic: self.lane_topics[0], partition: i32::from(lane.0) };
        if let Err(refusal) = self.broker.produce(self.at, None, place, record) {
            self.breach("model", format!("task {index} is refused: {refusal:?}"));
        }
        self.stirred = true;
    }

    fn submit_plain(&mut self, index: usize) {
        let Plain { due, topic, partition, .. } = self.tasks.plains[index];
        let headers =
            [("x-delay-until", (EPOCH_MS + due).to_string()), ("x-delay-target", topic.to_owned())];
        // Every other one is a timer with an id.
        let id = index.is_multiple_of(2).then(|| ("x-delay-id", plain_value(index)));
        let headers = headers.iter().chain(&id);
        let headers = headers.map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
        let record = Record::new(None, Some(plain_value(index).as_bytes()), headers);
        let place = Place { topic: self.lane_topics[0], partition };
        if let Err(refusal) = self.broker.produce(self.at, None, place, record) {
            self.breach("model", format!("record {index} is refused: {refusal:?}"));
        }
        self.stirred = true;
    }

    // Projects and services.

    fn publish(&mut self, version: usize) {
        self.tasks.published = version;
        for slot in 0..self.members.len() {
            let wait = self.chance.between(0, HEARD_WITHIN);
            self.wake(self.members[slot].process(), wait, Wake::Registry);
        }
        for worker in 0..self.workers.len() {
            let wait = self.chance.between(0, HEARD_WITHIN);
            self.tell_worker_of_registry(worker, wait);
        }
    }

    /// A process that has started hears of projects and services, or that there are none: at once, or after a while.
    pub fn hear_registry(&mut self, slot: usize) {
        let restarts = Time::from(self.members[slot].life) - 1;
        let wait = match self.plan.tasks {
            Some(_) => self.chance.between(0, HEARD_WITHIN),
            // Most have read of them before they have their lanes.
            None if restarts % 3 == 2 => HEARD_WITHIN,
            None => 0,
        };
        let process = self.members[slot].process();
        self.wake(process, wait, Wake::Registry);
    }

    /// Projects and services, as a process hears of them now. Where there are no tasks, there are none.
    pub fn heard_now(&self) -> Arc<Registry> {
        let version = self.tasks.versions.get(self.tasks.published);
        version.map(|version| Arc::clone(&version.heard)).unwrap_or_default()
    }

    // Endpoints.

    /// A call begins: how long it takes, what comes of it, and whether its endpoint seems to be away.
    pub fn called(&mut self, called: Called) -> (Time, TaskResult, bool) {
        self.count("calls");
        let Called { task, turn, at, .. } = called;
        let draft = &self.tasks.drafts[task];
        let nth = self.tasks.calls.iter().filter(|of| of.task == task).count();
        let (answer, expires) = (draft.answer(nth), draft.expires);
        let due = self.due_of(task);
        if called.now < due {
            let what = format!("task {task} is called at {}, due {}", called.now.0, due.0);
            self.breach("never early", what);
        }
        if expires.is_some_and(|expires| called.now.0 > EPOCH_MS + expires) {
            let what = format!("task {task} is called at {}, {expires:?}", called.now.0);
            self.breach("expired", what);
        }
        let is_again = self.tasks.calls.iter().any(|of| of.task == task && of.turn == turn);
        if is_again && !called.is_copied {
            self.breach("one call a turn", format!("turn {turn} of task {task} is called again"));
        }
        self.check_stopped(&called);
        if let Some(traced) = called.traced.clone() {
            self.check_cursor(task, &traced.ticket, traced.cursor.as_deref());
            if answer.1.outcome == CallOutcome::Accepted {
                self.take_ticket(task, &traced.ticket);
            }
        }
        self.tasks.calls.push(called);
        self.check_open(self.tasks.calls.len() - 1);
        self.note(|| format!("task {task} turn {turn} is called at {at}"));
        answer
    }

    // What users see.

    /// Reads on in the changelog, as users see it.
    pub fn follow_tasks(&mut self) {
        // What it says of a task stands behind the create of that.
        self.follow_creates();
        for partition in 0..i32::from(self.plan.setup.lanes) {
            let place = Place { topic: self.timers_topic, partition };
            let mut next = self.tasks.looked.get(&partition).copied().unwrap_or_default();
            while let Ok(Some((offset, entry))) = self.broker.fetch(place, next) {
                next = offset.next();
                let Some(record) = &entry.record else { continue };
                let at = entry.at;
                match Change::decode(record.key(), record.value()) {
                    Ok(Change::Timer(timer)) => match self.tasks.of.get(&timer.timer_id) {
                        Some(task) => {
                            self.tasks.seen.entry(*task).or_default().push((at, timer));
                        }
                        None => {
                            self.tasks.runs.see(timer.clone());
                            self.tasks.schedules.see(timer);
                        }
                    },
                    Ok(_) => {}
                    Err(error) => {
                        self.breach("timers", format!("{offset:?} of lane {partition}: {error:?}"));
                        return;
                    }
                }
            }
            self.tasks.looked.insert(partition, next);
        }
    }

    /// What users see of a task now.
    pub fn task_now(&self, task: usize) -> Option<&Timer> {
        self.tasks.seen.get(&task).and_then(|seen| seen.last()).map(|(_, timer)| timer)
    }

    fn look_at_tasks(&mut self) {
        self.follow_tasks();
        self.follow_topics();
        self.check_credits();
        self.check_credits_of_scopes();
        let is_time = !self.tasks.is_quiet && self.at >= self.plan.heal_at.max(self.tasks.ends);
        if is_time {
            self.end_paused_schedules();
        }
        let made = self.tasks.created.keys();
        let is_over = |task: &usize| self.task_now(*task).is_some_and(|of| of.state.is_final());
        let asked = self.tasks.asked;
        let is_made = self.plan.only.as_ref().map_or(asked, |only| only.range(..asked).count());
        if is_time
            && made.len() == is_made
            && self.tasks.created.keys().all(is_over)
            && (asked..self.tasks.drafts.len()).all(|task| is_over(&task))
            && self.are_schedules_over()
            && self.are_runs_over()
            && self.have_plains_arrived()
            && self.are_lanes_idle()
        {
            self.tasks.is_quiet = true;
            self.deadline = self.at + AFTERMATH;
            self.deadline_max = self.deadline;
        } else if !self.tasks.is_quiet && self.at + LOOK_EVERY > self.deadline {
            return;
        }
        self.after(LOOK_EVERY, Scheduled::Task(Act::Look));
    }

    /// The lanes have done with all that was written to their intakes, and users have seen what came of it. A command that waits
    /// there may bring back what has ended.
    fn are_lanes_idle(&self) -> bool {
        let is_idle = |partition: i32| {
            let [intake, changelog] =
                [self.lane_topics[0], self.timers_topic].map(|topic| Place { topic, partition });
            let next =
                self.broker.stable(intake).map_or(Offset(0), |position| Offset(position.next));
            let is_decided = |place| {
                self.broker.partition(place).is_some_and(|log| log.last_stable() == log.end())
            };
            is_decided(intake)
                && is_decided(changelog)
                && matches!(self.broker.fetch(intake, next), Ok(None))
        };
        (0..i32::from(self.plan.setup.lanes)).all(is_idle)
    }

    /// The lanes count the credits of those tasks that workers hold, and of no others.
    fn check_credits(&mut self) {
        for slot in 0..self.members.len() {
            let Some(lanes) = self.members[slot].settled_lanes().map(<[u16]>::to_vec) else {
                self.tasks.miscounts.remove(&slot);
                continue;
            };
            let engine = self.members[slot].engine.as_ref();
            let counted = engine.map_or(0, |engine| engine.figures().tasks_credits);
            // What it has written cannot be read as long as another one's transaction is open there.
            let is_open = |lane: &u16| {
                let place = Place { topic: self.timers_topic, partition: i32::from(*lane) };
                self.broker.partition(place).is_some_and(|of| of.last_stable() < of.end())
            };
            if lanes.iter().any(is_open) {
                self.tasks.miscounts.remove(&slot);
                continue;
            }
            let is_here = |task: usize| {
                let lane = self.tasks.drafts[task].id.lane_of(self.plan.setup.lanes);
                lanes.contains(&lane.0)
            };
            let pending = self.tasks.seen.keys().filter(|task| is_here(**task));
            let pending = pending.filter_map(|task| self.task_now(*task));
            let held = pending.filter(|timer| !timer.state.is_final());
            let held = held.filter_map(|timer| timer.task?.held);
            let held: usize = held.map(|held| usize::from(held.credits)).sum();
            let upto = self.tasks.seen.values().map(Vec::len).sum();
            let miscounts = self.tasks.miscounts.entry(slot).or_default();
            // What it decides now is not there yet.
            let is_again = counted != held && miscounts.1 == upto;
            *miscounts = (if is_again { miscounts.0 + 1 } else { 0 }, upto);
            if miscounts.0 > MISCOUNTS_MAX {
                let what = format!("slot {slot} counts {counted} credits, and workers hold {held}");
                self.breach("credits", what);
            }
        }
    }

    /// What became of a cancel may be told.
    pub fn task_answered(&mut self, answer: &Answer) {
        let is_other = self.retry_answered(answer)
            || self.report_answered(answer)
            || self.schedule_answered(answer)
            || self.run_answered(answer);
        if is_other {
            return;
        }
        self.count("cancels of tasks answered");
        if let Some(&task) = self.tasks.of.get(&answer.timer_id) {
            // Who asked looks there now.
            self.follow_tasks();
            let seen = self.tasks.seen.get(&task).map_or(0, Vec::len);
            let outcome = answer.outcome;
            self.tasks.cancels_told.push(CancelTold { task, outcome, seen });
        }
    }

    /// Whether a task is asked for in this run, or a schedule has submitted it.
    pub fn is_made(&self, task: usize) -> bool {
        task >= self.tasks.asked || self.plan.only.as_ref().is_none_or(|only| only.contains(&task))
    }

    pub fn is_live_worker(&self, worker: usize) -> bool {
        let of = &self.workers[worker];
        of.up == Up::Alive && self.broker.workers.knows(&of.name)
    }
}
