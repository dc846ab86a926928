//! A model of a process that makes calls: it reads `<ns>.tasks`, feeds the worker engine as it ships, carries out its actions, and
//! commits results and offsets in one transaction.
//!
//! # Invariants
//! 1. A commit carries the generation of the assignment that its results are of.
//! 2. A sign that it has its partitions is an answer of the group's coordinator, counted from when it was asked for.
//! 3. Answers to requests of an older round are void: a round ends when partitions go.

mod batches;
mod group;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use waterclock::engine::member::{Positions, TakeOver};
use waterclock::engine::sealed::{self, Work};
use waterclock::engine::task::digest;
use waterclock::engine::task::registry::Registry;
use waterclock::engine::task::result::{Outcome, TaskResult};
use waterclock::engine::work::{
    CallEnd, CallId, Now, Task, Turn, WorkAction, WorkEngine, WorkEvent, WorkLimits,
};
use waterclock::engine::{Lane, Millis, Offset};

use crate::broker::{Place, Time, WORKER, Writer};
use crate::member::Up;
use crate::mutation::Mutation;
use crate::network::Scheduled;
use crate::plan::{SECOND, WORKER_SESSION};
use crate::world::{Called, World, stop_of};
pub use batches::Flight;
pub use group::{WorkerReply, WorkerRequest};

/// How long calls may go on when the group forms again, and when the process is to stop.
const HAND_OVER: Time = 5 * SECOND;
const DRAIN: Time = 20 * SECOND;
const HEARTBEAT: Time = SECOND;
/// Longer than any world.
const NEVER: Time = u64::MAX / 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waits for its first producer.
    Starting,
    Joining,
    /// Takes its partitions over.
    Taking,
    Running,
}

/// What happens in a worker's process; put off while it is frozen, void once it is dead.
#[derive(Clone, Debug)]
pub enum WorkerEvent {
    Tick,
    Poll,
    Heartbeat,
    /// The group's round is over.
    Assigned,
    /// An answer to a request of this round.
    Reply(u64, WorkerReply),
    /// Ask again.
    Again(u64, WorkerRequest),
    /// A call has ended.
    Ended(CallId),
    /// It hears of projects and services as they are now.
    Registry,
    Stop,
}

/// A call that is open.
#[derive(Debug)]
struct Open {
    /// Its place in the list of calls; `None`: there was nobody to call.
    called: Option<usize>,
    result: TaskResult,
    is_away: bool,
}

pub struct Worker {
    pub life: u32,
    pub up: Up,
    /// Since when it has not stood still.
    pub awake_since: Time,
    pub name: String,
    generation: u32,
    phase: Phase,
    round: u64,
    writer: Option<Writer>,
    known: Positions,
    taking: Option<TakeOver>,
    engine: Option<WorkEngine>,
    reading: BTreeMap<u16, Offset>,
    paused: BTreeSet<u16>,
    partitions: Vec<u16>,
    flight: Option<Flight>,
    calls: BTreeMap<CallId, Open>,
    has_let_go: bool,
    /// The engine was told that its partitions go.
    is_ending: bool,
    is_stopping: bool,
    back_after: Time,
    /// When the coordinator heard of it last.
    seen: Time,
    /// Projects and services, as it has heard of them.
    heard: Arc<Registry>,
    /// Turns whose cancels it has read (for a mutation).
    cancelled: HashSet<Turn>,
    /// It has sent a batch in this assignment (for a mutation).
    has_sent: bool,
    ticks: BTreeSet<Time>,
    is_polling: bool,
}

impl Worker {
    pub fn new() -> Self {
        Self {
            life: 0,
            up: Up::Dead,
            awake_since: 0,
            name: String::new(),
            generation: 0,
            phase: Phase::Starting,
            round: 0,
            writer: None,
            known: Positions::default(),
            taking: None,
            engine: None,
            reading: BTreeMap::new(),
            paused: BTreeSet::new(),
            partitions: Vec::new(),
            flight: None,
            calls: BTreeMap::new(),
            has_let_go: false,
            is_ending: false,
            is_stopping: false,
            back_after: 0,
            seen: 0,
            heard: Arc::default(),
            cancelled: HashSet::new(),
            has_sent: false,
            ticks: BTreeSet::new(),
            is_polling: false,
        }
    }
}

impl World {
    fn worker(&mut self, worker: usize) -> &mut Worker {
        &mut self.workers[worker]
    }

    fn worker_wakes(&mut self, worker: usize, wait: Time, event: WorkerEvent) {
        let life = self.workers[worker].life;
        self.after(wait, Scheduled::Worker(worker, life, event));
    }

    pub fn tell_worker_of_registry(&mut self, worker: usize, wait: Time) {
        self.worker_wakes(worker, wait, WorkerEvent::Registry);
    }

    // Life of a process.

    pub fn start_worker(&mut self, worker: usize) {
        if self.workers[worker].up != Up::Dead {
            return;
        }
        let fresh = match self.mutation {
            Some(Mutation::CallsUnfresh) => Millis(NEVER),
            _ => Millis(WORKER_SESSION - 2 * SECOND),
        };
        let bytes = if self.plan.tasks.is_some_and(|of| of.large) { 8 << 20 } else { 1 << 20 };
        let limits = WorkLimits { calls: 100, bytes, fresh, commit_within: Millis(SECOND) };
        let heard = self.heard_now();
        let engine = WorkEngine::new(limits, self.plan.setup.lanes, Arc::clone(&heard));
        let life = self.workers[worker].life + 1;
        self.workers[worker] = Worker {
            life,
            up: Up::Alive,
            awake_since: self.at,
            engine: Some(engine),
            heard,
            ..Worker::new()
        };
        self.name_worker(worker);
        self.count("workers started");
        self.worker_inits(worker);
        self.worker_wakes(worker, HEARTBEAT, WorkerEvent::Heartbeat);
    }

    fn name_worker(&mut self, worker: usize) {
        let life = self.workers[worker].life;
        // Who is given which partitions does not follow from who came first.
        let luck = self.chance.between(0, 0xffff);
        self.worker(worker).name = format!("{WORKER}-{luck:04x}-{worker}-{life}");
    }

    pub fn kill_worker(&mut self, worker: usize, back_after: Time) {
        if self.workers[worker].up == Up::Dead {
            return;
        }
        self.count("workers killed");
        self.end_worker(worker, back_after);
    }

    /// Its process ends, with all its calls.
    fn end_worker(&mut self, worker: usize, back_after: Time) {
        self.note(|| format!("worker {worker} ends"));
        let open = std::mem::take(&mut self.worker(worker).calls);
        open.into_values().for_each(|call| self.call_ends(call.called));
        let of = self.worker(worker);
        (of.up, of.engine) = (Up::Dead, None);
        self.after(back_after, Scheduled::StartWorker(worker));
    }

    pub fn stop_worker(&mut self, worker: usize, back_after: Time) {
        if self.workers[worker].up == Up::Dead || self.workers[worker].is_stopping {
            return;
        }
        self.count("workers stopped");
        self.worker(worker).back_after = back_after;
        self.worker_wakes(worker, 0, WorkerEvent::Stop);
    }

    pub fn freeze_worker(&mut self, worker: usize, lasts: Time) {
        if self.workers[worker].up != Up::Alive {
            return;
        }
        self.count(if lasts >= WORKER_SESSION {
            "workers beyond session"
        } else {
            "workers frozen"
        });
        self.note(|| format!("worker {worker} stands still for {lasts} ms"));
        self.worker(worker).up = Up::Frozen { since: self.at, until: self.at + lasts };
        self.worker_wakes(worker, lasts, WorkerEvent::Poll);
    }

    pub fn in_worker(&mut self, worker: usize, life: u32, event: WorkerEvent) {
        if self.workers[worker].life != life {
            return;
        }
        if let WorkerEvent::Ended(call) = &event
            && let Some(open) = self.workers[worker].calls.get(call)
        {
            // It ends where it was made, whether anybody takes note or not.
            let called = open.called;
            self.call_ends(called);
        }
        match self.workers[worker].up {
            Up::Dead => {}
            Up::Frozen { until, .. } if self.at < until => {
                self.push(until, Scheduled::Worker(worker, life, event));
            }
            Up::Frozen { .. } => {
                self.worker(worker).up = Up::Alive;
                self.worker(worker).awake_since = self.at;
                self.awake_worker(worker, event);
            }
            Up::Alive => self.awake_worker(worker, event),
        }
    }

    fn awake_worker(&mut self, worker: usize, event: WorkerEvent) {
        let round = self.workers[worker].round;
        match event {
            WorkerEvent::Tick => {
                let at = self.at;
                self.worker(worker).ticks.retain(|tick| *tick > at);
                self.work(worker, WorkEvent::Tick);
            }
            WorkerEvent::Poll => {
                self.worker(worker).is_polling = false;
                self.worker_polls(worker);
            }
            WorkerEvent::Heartbeat => self.worker_beats(worker),
            WorkerEvent::Assigned => self.worker_assigned(worker),
            WorkerEvent::Reply(of, reply) if of == round => self.worker_reply(worker, reply),
            WorkerEvent::Again(of, request) if of == round => self.worker_asks_for(worker, request),
            WorkerEvent::Reply(..) | WorkerEvent::Again(..) => {}
            WorkerEvent::Ended(call) => {
                if let Some(Open { mut result, is_away, .. }) =
                    self.worker(worker).calls.remove(&call)
                {
                    result.ended = Some(self.work_now().broker);
                    let end = Box::new(CallEnd { result, is_away });
                    self.work(worker, WorkEvent::Ended { call, end });
                }
            }
            WorkerEvent::Registry => {
                let registry = self.heard_now();
                self.worker(worker).heard = Arc::clone(&registry);
                self.work(worker, WorkEvent::Registry(registry));
            }
            WorkerEvent::Stop => {
                self.worker(worker).is_stopping = true;
                if self.workers[worker].phase == Phase::Running {
                    self.work(worker, WorkEvent::Ending(Millis(DRAIN)));
                } else {
                    self.worker_leaves(worker);
                }
            }
        }
    }

    // The engine.

    fn work_now(&self) -> Now {
        Now { monotonic: Millis(self.at), broker: self.broker.slowest_clock(self.at) }
    }

    fn work(&mut self, worker: usize, event: WorkEvent) {
        let now = self.work_now();
        let Some(engine) = self.worker(worker).engine.as_mut() else { return };
        let actions = engine.step(now, event);
        let next = engine.next_tick();
        for action in actions {
            self.note(|| format!("worker {worker} -> {}", brief(&action)));
            self.carry_out_work(worker, action);
        }
        if let Some(at) = next {
            let at = at.0.max(self.at + 1);
            if self.worker(worker).ticks.insert(at) {
                let wait = at - self.at;
                self.worker_wakes(worker, wait, WorkerEvent::Tick);
            }
        }
        self.worker_steps(worker);
        self.worker_lets_go(worker);
    }

    fn carry_out_work(&mut self, worker: usize, action: WorkAction) {
        match action {
            WorkAction::Pause(partition) => drop(self.worker(worker).paused.insert(partition.0)),
            WorkAction::Resume(partition) => {
                self.worker(worker).paused.remove(&partition.0);
                self.stirred = true;
            }
            WorkAction::Call(call, task) => self.worker_calls(worker, call, &task),
            WorkAction::Cut(call) => {
                if let Some(open) = self.worker(worker).calls.remove(&call) {
                    self.count("calls cut");
                    self.call_ends(open.called);
                }
            }
            WorkAction::Commit(batch) => self.worker_commits(worker, batch),
            WorkAction::LetGo => self.worker(worker).has_let_go = true,
            WorkAction::Lost(..) | WorkAction::Damaged(..) => {
                self.breach("never lost", format!("worker {worker}: {action:?}"));
            }
        }
    }

    fn worker_calls(&mut self, worker: usize, call: CallId, task: &Task) {
        self.follow_creates();
        let Some(index) = self.tasks.of.get(&task.turn.name).copied() else {
            return self.breach("model", format!("{:?} is no task", task.turn));
        };
        let now = self.work_now().broker;
        // As the caller of workers does before each call.
        let is_as_submitted = digest(&task.record) == task.sealed.digest
            || self.mutation == Some(Mutation::CallsChanged);
        if is_as_submitted && task.record.value() != Some(&*self.tasks.drafts[index].body) {
            let what = format!("task {index} sends {} bytes of another", task.record.size());
            self.breach("your bytes", what);
        }
        let is_copied = self.is_copy(task);
        if is_copied {
            self.count("copies called");
            if !self.may_be_called_again(task) {
                self.breach("one call a turn", format!("a copy of task {index} is called"));
            }
        }
        let (takes, result, is_away, called) =
            match stop_of(&self.workers[worker].heard, &task.scope) {
                _ if !is_as_submitted => {
                    self.count("changed bodies at workers");
                    (0, TaskResult::new(Outcome::Gone), false, None)
                }
                Some("deleted") => {
                    *self.tasks.refused.entry(index).or_default() += 1;
                    self.count("calls of nobody");
                    (0, TaskResult::new(Outcome::Failed), false, None)
                }
                _ => {
                    let called = Called {
                        task: index,
                        version: task.turn.version,
                        turn: task.turn.turn,
                        is_copied,
                        at: self.at,
                        now,
                        scope: task.scope.clone(),
                        worker,
                        is_open: true,
                        traced: task.traced.clone(),
                    };
                    let (takes, mut result, is_away) = self.called(called);
                    if self.mutation == Some(Mutation::FinishesAccepted)
                        && result.outcome == Outcome::Accepted
                    {
                        result.outcome = Outcome::Finished;
                    }
                    (takes, result, is_away, Some(self.tasks.calls.len() - 1))
                }
            };
        let result = TaskResult { started: Some(now), ..result };
        self.worker(worker).calls.insert(call, Open { called, result, is_away });
        self.worker_wakes(worker, takes.max(1), WorkerEvent::Ended(call));
    }

    fn call_ends(&mut self, called: Option<usize>) {
        if let Some(called) = called {
            self.tasks.calls[called].is_open = false;
        }
    }

    // Reading.

    fn tasks_place(&self, partition: u16) -> Place {
        Place { topic: self.tasks.tasks_topic, partition: i32::from(partition) }
    }

    /// Polls those who could read something.
    pub fn rouse_workers(&mut self) {
        for worker in 0..self.workers.len() {
            let of = &self.workers[worker];
            if of.up != Up::Alive || of.phase != Phase::Running || of.is_polling {
                continue;
            }
            let has_more = of.reading.iter().any(|(partition, next)| {
                let log = self.broker.partition(self.tasks_place(*partition));
                !of.paused.contains(partition) && log.is_some_and(|log| *next < log.last_stable())
            });
            if has_more {
                let wait = self.latency();
                self.worker(worker).is_polling = true;
                self.worker_wakes(worker, wait, WorkerEvent::Poll);
            }
        }
    }

    fn worker_polls(&mut self, worker: usize) {
        let round = self.workers[worker].round;
        for partition in self.workers[worker].partitions.clone() {
            for _ in 0..self.chance.between(1, 30) {
                if self.workers[worker].round != round || !self.worker_reads(worker, partition) {
                    break;
                }
            }
        }
        if self.workers[worker].phase == Phase::Running {
            self.work(worker, WorkEvent::Tick);
        }
        self.stirred = true;
    }

    fn worker_reads(&mut self, worker: usize, partition: u16) -> bool {
        let of = &self.workers[worker];
        let Some(next) = of.reading.get(&partition).copied() else { return false };
        if of.phase != Phase::Running || of.paused.contains(&partition) {
            return false;
        }
        let place = self.tasks_place(partition);
        let (key, lanes) = (self.plan.setup.key.clone(), self.plan.setup.lanes);
        let fetched = match self.broker.fetch(place, next) {
            Ok(found) => {
                found.map(|(offset, entry)| (offset, (entry.appended, entry.record.clone())))
            }
            Err(_) => {
                let current = self.broker.workers.assignment(&of.name);
                if current.is_some_and(|(generation, _)| generation == of.generation) {
                    self.breach(
                        "model",
                        format!("worker {worker} deleted {place:?} beyond its reader"),
                    );
                }
                // Its partition is another's, who has deleted what was done: the group says so soon.
                return false;
            }
        };
        let partition = Lane(partition);
        let Some((offset, (appended, Some(record)))) = fetched else {
            let stable = self.broker.partition(place).map_or(next, |log| log.last_stable());
            if stable > next {
                self.worker(worker).reading.insert(partition.0, stable);
                self.work(worker, WorkEvent::Read { partition, next: stable });
            }
            return false;
        };
        let record = self.as_it_stands(place, (offset, appended), record);
        self.worker(worker).reading.insert(partition.0, offset.next());
        let event = match sealed::read_work(&key, lanes, (partition, appended), record) {
            Ok(Work::Task(mut task)) => {
                if self.mutation == Some(Mutation::CallsExpired) {
                    task.sealed.expires = None;
                }
                WorkEvent::Task { partition, offset, task: Arc::from(task) }
            }
            Ok(Work::Cancel(turn, id)) => {
                self.worker(worker).cancelled.insert(turn);
                WorkEvent::Cancel { partition, offset, turn, id }
            }
            Err((_, refusal)) if !self.tasks.foreign.contains(&(place, offset)) => {
                self.breach("model", format!("{partition:?} {offset:?}: {refusal:?}"));
                return false;
            }
            Err((record, refusal)) => {
                WorkEvent::Foreign { partition, offset, appended, record, refusal }
            }
        };
        self.work(worker, event);
        true
    }
}

fn brief(action: &WorkAction) -> String {
    match action {
        WorkAction::Call(call, task) => format!("{call:?} {:?}", task.turn),
        other => {
            let mut text = format!("{other:?}");
            text.truncate(300);
            text
        }
    }
}
