//! The worker engine: decides which calls begin, and what is committed of them.
//!
//! `step(now, event) -> actions`, pure, as the engine of the lanes. A worker owns partitions of `<ns>.tasks`. It reads tasks from
//! them, begins calls, and writes what became of each to `<ns>.results`, in one transaction with the offset of the task.
//!
//! # Invariants
//! 1. An offset is committed as done only in the batch that carries what became of its task, or in a later one.
//! 2. Of a task that its owner before may have begun to call, no call begins here: it is reported as in doubt.
//! 3. A call begins only while this member surely has its partitions ([`WorkLimits::fresh`] after a sign of that), and only once a
//!    position is committed which says that calls may have begun. So a worker that says of a turn "it was never called" is right.
//! 4. No call outlives its assignment.
//! 5. What has ended and is not committed is never dropped in an assignment: it goes again. What Kafka refuses goes by itself and
//!    shorter, and holds up no other ([`refused`]).
//! 6. Memory is bounded: over three quarters of it, what cannot begin soon goes back to its lane; where that does not help,
//!    reading stops.
//!
//! It does not make calls, parse records, or talk to Kafka.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::header::{Code, Refusal};
use crate::messages::TracedTurn;
use crate::task::id::TaskId;
use crate::task::registry::Registry;
use crate::task::result::TaskResult;
use crate::timers::{TimerId, Version};
use crate::window::{OffsetState, WindowError};
use crate::{BatchId, Lane, Millis, Offset, Record, Refused, UnixMillis};

mod breaker;
mod part;
mod recent;
mod refused;
mod shares;
mod waiting;

pub use part::Position;

use part::Part;
use recent::Seen;
use refused::{FailedBatch, Suspects};
use shares::Shares;
use waiting::{At, Bounds, Next, Room, Waiting};

/// One dispatch of one task: what a result is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Turn {
    /// The task's name.
    pub name: TimerId,
    /// Which task of that name.
    pub version: Version,
    /// Which dispatch of it; the first is 1.
    pub turn: u32,
}

/// Whose limits a task is under.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// Its project.
    pub project: Arc<str>,
    /// What it calls.
    pub callee: Callee,
}

/// What a task calls: all calls of one are under one limit and one breaker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Callee {
    /// A named service of the project.
    Service(Arc<str>),
    /// The host of a URL, with its port if it is not the usual one.
    Host(Arc<str>),
}

/// A task that was dispatched.
#[derive(Clone, Debug)]
pub struct Task {
    /// Which dispatch it is.
    pub turn: Turn,
    /// The lane that it came from: its results go there.
    pub lane: Lane,
    /// Whose limits it is under.
    pub scope: Scope,
    /// What its call says of it.
    pub sealed: Dispatch,
    /// Of a task with feedback: what its call tells the executor.
    pub traced: Option<TracedTurn>,
    /// The record as it stands in `<ns>.tasks`.
    pub record: Record,
}

/// What the lane has sealed into a dispatch, beside its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dispatch {
    /// When the task was due first.
    pub due: UnixMillis,
    /// Which attempt this is, from 1: a turn that was deferred or interrupted is none.
    pub attempt: u32,
    /// How often it was asked and was not ready yet.
    pub round: u32,
    /// Past it no call begins: the lane ends the task.
    pub expires: Option<UnixMillis>,
    /// Of the record's value and its user's headers: [`digest`](crate::task::digest) of what is to be sent.
    pub digest: [u8; 16],
    /// When its lane wrote it, by the brokers' time. Older programs did not say: when this turn was due.
    pub dispatched: UnixMillis,
    /// When it was appended to `<ns>.tasks`.
    pub appended: UnixMillis,
}

impl Task {
    /// Bytes of memory that it takes, for the budget.
    #[must_use]
    pub fn size(&self) -> usize {
        self.record.size() + size_of::<Self>() + TASK_BESIDE
    }
}

/// What a task takes in the tables that know it.
const TASK_BESIDE: usize = 256;

/// Now, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Milliseconds since any moment, by a clock that only goes on. It does not stand still while the process does.
    pub monotonic: Millis,
    /// The brokers' time.
    pub broker: UnixMillis,
}

/// A partition that was given to this worker.
#[derive(Clone, Debug)]
pub struct Taken {
    /// Which.
    pub partition: Lane,
    /// What the group has committed there.
    pub position: Option<Position>,
    /// Where its log begins.
    pub start: Offset,
    /// Where its log ended when it was given.
    pub end: Offset,
}

/// One call, within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// How a call has ended.
#[derive(Clone, Debug)]
pub struct CallEnd {
    /// What is told of it.
    pub result: TaskResult,
    /// The other side is away or overloaded: no connection, no answer in time, 429, 502 to 504.
    pub is_away: bool,
}

/// What a worker says of a turn.
#[derive(Clone, Debug)]
pub enum Said {
    /// Its call is open since then.
    Started(UnixMillis),
    /// It was not called, and comes again at that time at the earliest.
    Deferred {
        /// That time.
        until: UnixMillis,
        /// The other side has failed too often: calls to it begin again then.
        breaker: bool,
    },
    /// It may have been called, and nobody knows what came of it.
    Interrupted {
        /// Its owner before has gone; otherwise the call was cut because partitions move or the process stops.
        in_doubt: bool,
    },
    /// It was never called, and will not be.
    Cancelled,
    /// Its call has ended.
    Ended(Box<TaskResult>),
}

/// A fact.
#[derive(Clone)]
pub enum WorkEvent {
    /// The group has given partitions to this member: all that it has now.
    Assigned(Vec<Taken>),
    /// A sign that this member has its partitions: the group's coordinator has heard from it after `since`, in this assignment.
    Fresh {
        /// When the sign was asked for, by the monotonic clock.
        since: Millis,
    },
    /// The partitions are to be let go within that time: the group gives them anew, or the process stops.
    Ending(Millis),
    /// The partitions have gone.
    Gone,
    /// A task was read.
    Task {
        /// From this partition.
        partition: Lane,
        /// Where it stood.
        offset: Offset,
        /// What it is.
        task: Arc<Task>,
    },
    /// A cancel was read, which stands behind its task.
    Cancel {
        /// From this partition.
        partition: Lane,
        /// Where it stood.
        offset: Offset,
        /// What it is about.
        turn: Turn,
        /// The task's id.
        id: TaskId,
    },
    /// A record was read that is nothing waterclock has written there.
    Foreign {
        /// From this partition.
        partition: Lane,
        /// Where it stood.
        offset: Offset,
        /// When it was appended there.
        appended: UnixMillis,
        /// The record.
        record: Box<Record>,
        /// What is wrong with it.
        refusal: Refusal,
    },
    /// Reading has come to this offset, and found no record between the last one and it.
    Read {
        /// In this partition.
        partition: Lane,
        /// Where it goes on.
        next: Offset,
    },
    /// A call has ended.
    Ended {
        /// Which.
        call: CallId,
        /// How.
        end: Box<CallEnd>,
    },
    /// A batch is committed.
    Committed(BatchId),
    /// Kafka refused something of the batch on its way; [`Failed`](Self::Failed) follows.
    Refused(Refused),
    /// A batch is not committed, and never will be.
    Failed(BatchId),
    /// Projects or services have changed, or were heard of for the first time.
    Registry(Arc<Registry>),
    /// Time has passed.
    Tick,
}

/// How much of a result is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// All of it.
    #[default]
    Whole,
    /// Only what the lane decides by: no response, no error, no name of the worker. The task's record is complete.
    Short,
    /// As short, and without the task's value and headers. They stand in a dead letter of the same batch, and the task fails.
    Letter,
}

/// One entry of a batch.
#[derive(Clone, Debug)]
pub enum Entry {
    /// To `<ns>.results`, to the lane of the task.
    Result(Arc<Task>, Said, Form),
    /// To `<ns>.results`, to the lane of the task: a turn was to be cancelled of which nothing stands in the partition that is not
    /// done. Either what became of it was said before, or its dispatch was deleted.
    Absent {
        /// Where the cancel stood.
        partition: Lane,
        /// The lane of the task.
        lane: Lane,
        /// What it was about.
        turn: Turn,
        /// The task's id.
        id: TaskId,
    },
    /// To `<ns>.dead`: a record that waterclock has not written, or a task whose result has no room for it.
    Dead {
        /// Where it stood.
        partition: Lane,
        /// Where it stood there.
        offset: Offset,
        /// When it was appended there.
        appended: UnixMillis,
        /// The record.
        record: Box<Record>,
        /// What is wrong with it.
        refusal: Refusal,
    },
}

/// What is to be written and committed in one transaction.
#[derive(Clone, Debug)]
pub struct WorkBatch {
    /// Its number.
    pub id: BatchId,
    /// What is to be written, in this order.
    pub entries: Vec<Entry>,
    /// The positions to commit; at least one.
    pub positions: Vec<(Lane, Position)>,
}

/// What the shell is to do.
#[derive(Clone, Debug)]
pub enum WorkAction {
    /// Read no more from a partition for now.
    Pause(Lane),
    /// Read on.
    Resume(Lane),
    /// Begin a call, and tell how it ends.
    Call(CallId, Arc<Task>),
    /// Stop a call at once. It is reported already.
    Cut(CallId),
    /// Write and commit, and tell what became of it.
    Commit(WorkBatch),
    /// Let all partitions go: everything is committed.
    LetGo,
    /// So many tasks were deleted from a partition before they were done.
    Lost(Lane, u64),
    /// A committed position cannot be read: everything in the partition up to its end counts as in doubt.
    Damaged(Lane, WindowError),
}

/// Lengths and sizes.
#[derive(Clone, Copy, Debug)]
pub struct WorkLimits {
    /// Calls that may be open in the process.
    pub calls: usize,
    /// Bytes of tasks that may be in memory.
    pub bytes: usize,
    /// For how long after a sign that it has its partitions a worker may begin calls: the session less what a member may be
    /// silent in it.
    pub fresh: Millis,
    /// How long open calls may go on when the partitions are to be let go. Less than [`WorkEvent::Ending`] says: the rest is for
    /// the commit.
    pub commit_within: Millis,
}

/// What a worker holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkFigures {
    /// Calls that are open.
    pub open: usize,
    /// Tasks that were read, and whose calls have not begun.
    pub waiting: usize,
    /// Partitions that are not read for now.
    pub paused: usize,
    /// Bytes of tasks in memory.
    pub bytes: usize,
}

/// Between two batches.
const GAP: Millis = Millis(5);
/// Results in a batch.
const BATCH_MAX: usize = 1_000;
/// Bytes of tasks in a batch; one more may go over it.
const BATCH_BYTES: usize = 4 << 20;
/// A call that is open for longer is told as begun.
const TOLD_AFTER: Millis = Millis(200);
/// How long a task stays away that was deferred for want of room.
const PUT_OFF: Millis = Millis(1_000);
/// Between two looks for scopes of which nothing is left.
const SWEEP: Millis = Millis(60_000);
/// Above so much, in thousandths, what cannot begin soon is deferred; reading stops, too, if there is no such thing.
const FULL: u32 = 750;
/// Below that it goes on.
const ROOM: u32 = 500;

/// What has ended or needs no call, and is in no committed batch.
#[derive(Debug)]
struct Done {
    partition: Lane,
    /// Where its record stood.
    offset: Offset,
    entry: Option<Entry>,
    /// The task whose memory goes when it is committed.
    held: Option<Arc<Task>>,
    /// Kafka's words, if it has refused every other form.
    why: Option<Box<str>>,
}

/// A call that is open.
#[derive(Debug)]
struct Open {
    at: At,
    /// When it began.
    since: Now,
    /// It was told as begun.
    is_told: bool,
}

/// A batch that is on its way.
#[derive(Debug)]
struct Flying {
    id: BatchId,
    /// The assignment that it belongs to.
    assignment: u64,
    done: Vec<Done>,
    /// Which positions it has, and whether they say that nothing has begun.
    positions: Vec<(Lane, bool)>,
    /// Calls that it tells as begun.
    told: Vec<CallId>,
    /// Its entries behind those calls: which of `done` each belongs to.
    owners: Vec<usize>,
    /// What Kafka refused of it.
    refused: Option<Refused>,
}

/// The partitions are to be let go.
#[derive(Clone, Copy, Debug)]
struct Ending {
    /// Calls that are open then are cut.
    cut_at: Millis,
    is_let_go: bool,
}

/// The worker engine.
pub struct WorkEngine {
    limits: WorkLimits,
    shares: Shares,
    parts: BTreeMap<Lane, Part>,
    waiting: Waiting,
    /// Where the tasks stand that wait or are called, for their cancels.
    places: HashMap<Turn, Place>,
    open: BTreeMap<CallId, Open>,
    /// When to tell of which call that it has begun, if it is open then.
    untold: VecDeque<(Millis, CallId)>,
    done: VecDeque<Done>,
    /// What Kafka may have refused.
    suspects: Suspects,
    flying: Option<Flying>,
    ending: Option<Ending>,
    /// Counted up when partitions are given, and when they go.
    assignment: u64,
    /// Calls may begin until then.
    fresh_until: Millis,
    /// When the last batch ended.
    landed: Option<Millis>,
    paused: Vec<Lane>,
    next_call: u64,
    next_batch: u64,
    swept: Millis,
    wake: Option<Millis>,
}

/// Where a task stands that is not reported yet.
#[derive(Debug)]
struct Place {
    partition: Lane,
    offset: Offset,
    scope: Scope,
    /// Its call is open.
    is_called: bool,
}

impl WorkEngine {
    /// A worker that has no partitions. `lanes`: how many partitions `<ns>.tasks` has.
    #[must_use]
    pub fn new(limits: WorkLimits, lanes: u16, registry: Arc<Registry>) -> Self {
        Self {
            limits,
            shares: Shares { registry, lanes },
            parts: BTreeMap::new(),
            waiting: Waiting::new(Bounds { calls: limits.calls, bytes: limits.bytes }),
            places: HashMap::new(),
            open: BTreeMap::new(),
            untold: VecDeque::new(),
            done: VecDeque::new(),
            suspects: Suspects::default(),
            flying: None,
            ending: None,
            assignment: 0,
            fresh_until: Millis(0),
            landed: None,
            paused: Vec::new(),
            next_call: 0,
            next_batch: 0,
            swept: Millis(0),
            wake: None,
        }
    }

    /// When a [`Tick`](WorkEvent::Tick) is due, if nothing happens before; `None`: not before something happens.
    #[must_use]
    pub fn next_tick(&self) -> Option<Millis> {
        self.wake
    }

    /// What it holds now.
    #[must_use]
    pub fn figures(&self) -> WorkFigures {
        WorkFigures {
            open: self.open.len(),
            waiting: self.places.len().saturating_sub(self.open.len()),
            paused: self.paused.len(),
            bytes: self.waiting.bytes(),
        }
    }

    /// The partitions that it has, ascending.
    pub fn partitions(&self) -> impl Iterator<Item = Lane> {
        self.parts.keys().copied()
    }

    /// Takes a fact in; the actions are to be carried out in their order.
    pub fn step(&mut self, now: Now, event: WorkEvent) -> Vec<WorkAction> {
        let mut out = Vec::new();
        let is_read = matches!(
            event,
            WorkEvent::Task { .. }
                | WorkEvent::Cancel { .. }
                | WorkEvent::Foreign { .. }
                | WorkEvent::Read { .. }
        );
        if let Some(event) = self.hold_back(event) {
            self.take(now, event, &mut out);
        }
        if is_read {
            // All that was read together is looked at together.
            self.wake = Some(now.monotonic);
        } else {
            self.go_on(now, &mut out);
        }
        out
    }

    /// Keeps what was read while a position cannot say more: reading stops, but what is on its way still comes.
    fn hold_back(&mut self, event: WorkEvent) -> Option<WorkEvent> {
        let (partition, at) = match &event {
            WorkEvent::Task { partition, offset, .. }
            | WorkEvent::Cancel { partition, offset, .. }
            | WorkEvent::Foreign { partition, offset, .. } => (partition, Some(*offset)),
            WorkEvent::Read { partition, .. } => (partition, None),
            _ => return Some(event),
        };
        let Some(part) = self.parts.get_mut(partition) else { return Some(event) };
        if part.backlog.is_empty() && at.is_none_or(|offset| part.has_room(offset)) {
            return Some(event);
        }
        part.backlog.push_back(event);
        None
    }

    fn take(&mut self, now: Now, event: WorkEvent, out: &mut Vec<WorkAction>) {
        match event {
            WorkEvent::Assigned(taken) => self.assigned(now, taken, out),
            WorkEvent::Fresh { since } => {
                self.fresh_until = self.fresh_until.max(since + self.limits.fresh);
            }
            WorkEvent::Ending(within) => self.begin_ending(now, within),
            WorkEvent::Gone => self.gone(now, out),
            WorkEvent::Task { partition, offset, task } => {
                self.task(now, partition, offset, task, out);
            }
            WorkEvent::Cancel { partition, offset, turn, id } => {
                self.cancel(partition, offset, (turn, id), out);
            }
            WorkEvent::Foreign { partition, offset, appended, record, refusal } => {
                let entry = Entry::Dead { partition, offset, appended, record, refusal };
                if self.begin(partition, offset, out).is_some() {
                    self.report(partition, offset, Some(entry), None);
                }
            }
            WorkEvent::Read { partition, next } => {
                if let Some(part) = self.parts.get_mut(&partition) {
                    lost(partition, part.pass(next).into(), out);
                }
            }
            WorkEvent::Ended { call, end } => self.ended(now, call, *end),
            WorkEvent::Committed(id) => self.committed(now, id, out),
            WorkEvent::Refused(refused) => {
                let flying = self.flying.as_mut().filter(|flying| flying.id == refused.batch);
                if let Some(flying) = flying {
                    flying.refused = Some(refused);
                }
            }
            WorkEvent::Failed(id) => self.failed(now, id),
            WorkEvent::Registry(registry) => self.shares.registry = registry,
            WorkEvent::Tick => {}
        }
    }

    // Partitions.

    fn assigned(&mut self, now: Now, taken: Vec<Taken>, out: &mut Vec<WorkAction>) {
        self.gone(now, out);
        self.waiting.begin_again();
        for Taken { partition, position, start, end } in taken {
            let (part, gone) = Part::take_over(position.as_ref(), start, end);
            lost(partition, gone.lost, out);
            if let Some(error) = gone.damaged {
                out.push(WorkAction::Damaged(partition, error));
            }
            self.parts.insert(partition, part);
        }
    }

    /// Forgets everything of this assignment. What is open is cut: it may have happened, and the next owner says so.
    fn gone(&mut self, now: Now, out: &mut Vec<WorkAction>) {
        // What is on its way belongs to no assignment any more.
        self.assignment += 1;
        let mut dropped = self.waiting.take_all();
        for (call, Open { at, .. }) in std::mem::take(&mut self.open) {
            out.push(WorkAction::Cut(call));
            self.waiting.end(now.monotonic, at.partition, &at.task.scope, None);
            dropped.push(at);
        }
        for at in dropped {
            self.drop_task(now, &at);
        }
        let done = std::mem::take(&mut self.done).into_iter().chain(self.suspects.take_all());
        for task in done.filter_map(|done| done.held) {
            self.waiting.release(now.monotonic, &task);
        }
        self.parts.clear();
        self.places.clear();
        self.paused.clear();
        self.ending = None;
        self.fresh_until = Millis(0);
    }

    fn begin_ending(&mut self, now: Now, within: Millis) {
        let cut_at = now.monotonic + within.saturating_sub(self.limits.commit_within);
        let cut_at = self.ending.map_or(cut_at, |ending| ending.cut_at.min(cut_at));
        self.ending = Some(Ending { cut_at, is_let_go: false });
        // The next owner reads what has not begun.
        for at in self.waiting.take_all() {
            self.drop_task(now, &at);
        }
    }

    /// Nobody hears of a task from here: it stays pending in its partition.
    fn drop_task(&mut self, now: Now, at: &At) {
        self.places.remove(&at.task.turn);
        self.waiting.leave(&at.task);
        self.waiting.release(now.monotonic, &at.task);
    }

    // What is read.

    /// Takes a record in. `None`: it is not to be looked at. `Some(true)`: it is in doubt.
    fn begin(
        &mut self,
        partition: Lane,
        offset: Offset,
        out: &mut Vec<WorkAction>,
    ) -> Option<bool> {
        let part = self.parts.get_mut(&partition)?;
        let (began, is_in_doubt) = part.begin(offset);
        lost(partition, began.lost.into(), out);
        (began.state != OffsetState::Done).then_some(is_in_doubt)
    }

    fn task(
        &mut self,
        now: Now,
        partition: Lane,
        offset: Offset,
        task: Arc<Task>,
        out: &mut Vec<WorkAction>,
    ) {
        let seen = self.parts.get_mut(&partition).map(|part| {
            part.recent.seen(task.turn, offset, (task.sealed.dispatched, task.sealed.appended))
        });
        let Some(is_in_doubt) = self.begin(partition, offset, out) else { return };
        if seen == Some(Seen::Before) {
            let detail = "this dispatch of the task stands in the partition before";
            let refusal = Refusal::new(Code::BadTask, detail);
            let (appended, record) = (task.sealed.appended, Box::new(task.record.clone()));
            let entry = Entry::Dead { partition, offset, appended, record, refusal };
            return self.report(partition, offset, Some(entry), None);
        }
        if self.ending.is_some() && !is_in_doubt {
            // It stays pending, and the next owner reads it.
            return;
        }
        if self.places.contains_key(&task.turn) {
            // A dispatch stands in the log once. A second one would be called twice. One that waits or is called is known for longer
            // than others.
            return self.report(partition, offset, None, None);
        }
        self.waiting.hold(&task);
        if is_in_doubt {
            self.say(partition, offset, task, Said::Interrupted { in_doubt: true });
            return;
        }
        if seen == Some(Seen::Unsure) {
            // It may be a copy of what was called long ago. Its lane knows, and dispatches it anew if it is none.
            let said = Said::Deferred { until: now.broker, breaker: false };
            return self.say(partition, offset, task, said);
        }
        let place = Place { partition, offset, scope: task.scope.clone(), is_called: false };
        self.places.insert(task.turn, place);
        let at = At { partition, offset, task };
        self.waiting.push(at);
    }

    fn cancel(
        &mut self,
        partition: Lane,
        offset: Offset,
        (turn, id): (Turn, TaskId),
        out: &mut Vec<WorkAction>,
    ) {
        if self.begin(partition, offset, out).is_none() {
            return;
        }
        if self.ending.is_some() {
            // It stays pending behind its task: a worker that reads the one reads the other.
            return;
        }
        let place = self.places.get(&turn);
        let is_placed = place.is_some();
        let waits = place.filter(|place| place.partition == partition && !place.is_called);
        let at = waits.and_then(|of| self.waiting.remove(partition, of.offset, &of.scope));
        if let Some(at) = at {
            self.places.remove(&turn);
            self.say(partition, at.offset, at.task, Said::Cancelled);
        }
        // Of a call that is open its own result decides, and what was reported is reported.
        let is_absent = !is_placed && !self.was_read(partition, turn);
        let lane = id.lane_of(self.shares.lanes);
        let entry = is_absent.then_some(Entry::Absent { partition, lane, turn, id });
        self.report(partition, offset, entry, None);
    }

    /// Whether a turn was read here lately, or what became of it is not committed yet.
    fn was_read(&self, partition: Lane, turn: Turn) -> bool {
        let is_recent = self.parts.get(&partition).is_some_and(|part| part.recent.knows(turn));
        let is_of = |done: &Done| done.held.as_ref().is_some_and(|task| task.turn == turn);
        let flying = self.flying.iter().flat_map(|flying| &flying.done);
        is_recent || self.done.iter().chain(flying).any(is_of) || self.suspects.iter().any(is_of)
    }

    // What is done.

    fn say(&mut self, partition: Lane, offset: Offset, task: Arc<Task>, said: Said) {
        self.waiting.leave(&task);
        let entry = Entry::Result(Arc::clone(&task), said, Form::Whole);
        self.report(partition, offset, Some(entry), Some(task));
    }

    fn report(
        &mut self,
        partition: Lane,
        offset: Offset,
        entry: Option<Entry>,
        held: Option<Arc<Task>>,
    ) {
        if let Some(part) = self.parts.get_mut(&partition) {
            part.ended += 1;
        }
        self.done.push_back(Done { partition, offset, entry, held, why: None });
    }

    fn ended(&mut self, now: Now, call: CallId, end: CallEnd) {
        // One that was cut is reported already.
        let Some(Open { at, .. }) = self.open.remove(&call) else { return };
        self.waiting.end(now.monotonic, at.partition, &at.task.scope, Some(end.is_away));
        self.close(at, Said::Ended(Box::new(end.result)));
    }

    /// A call is open no more.
    fn close(&mut self, at: At, said: Said) {
        if let Some(part) = self.parts.get_mut(&at.partition) {
            part.open = part.open.saturating_sub(1);
        }
        self.places.remove(&at.task.turn);
        self.say(at.partition, at.offset, at.task, said);
    }

    fn committed(&mut self, now: Now, id: BatchId, out: &mut Vec<WorkAction>) {
        let Some(flying) = self.flying.take_if(|flying| flying.id == id) else { return };
        self.landed = Some(now.monotonic);
        for task in flying.done.iter().filter_map(|done| done.held.as_ref()) {
            self.waiting.release(now.monotonic, task);
        }
        if flying.assignment != self.assignment {
            return;
        }
        self.suspects.committed();
        for done in &flying.done {
            if let Some(part) = self.parts.get_mut(&done.partition) {
                part.finish(done.offset);
            }
        }
        for (partition, is_clean) in flying.positions {
            if let Some(part) = self.parts.get_mut(&partition) {
                part.committed(is_clean);
            }
        }
        self.resume(out);
    }

    fn failed(&mut self, now: Now, id: BatchId) {
        let Some(flying) = self.flying.take_if(|flying| flying.id == id) else { return };
        self.landed = Some(now.monotonic);
        if flying.assignment != self.assignment {
            for task in flying.done.into_iter().filter_map(|done| done.held) {
                self.waiting.release(now.monotonic, &task);
            }
            return;
        }
        for (partition, _) in flying.positions {
            if let Some(part) = self.parts.get_mut(&partition) {
                part.touch();
            }
        }
        for done in &flying.done {
            if let Some(part) = self.parts.get_mut(&done.partition) {
                part.ended += 1;
            }
        }
        let Flying { told, done, owners, refused, .. } = flying;
        let batch = FailedBatch { told, done, owners, refused };
        let (told, done) = self.suspects.failed(now.monotonic, batch);
        for call in told {
            if let Some(open) = self.open.get_mut(&call) {
                open.is_told = false;
                self.untold.push_back((now.monotonic, call));
            }
        }
        for done in done.into_iter().rev() {
            self.done.push_front(done);
        }
    }

    // What follows.

    fn go_on(&mut self, now: Now, out: &mut Vec<WorkAction>) {
        self.wake = None;
        if now.monotonic.saturating_sub(self.swept) >= SWEEP {
            self.swept = now.monotonic;
            self.waiting.sweep(now.monotonic);
        }
        self.catch_up(now, out);
        match self.ending {
            None => {
                self.begin_calls(now, out);
                self.make_room(now, out);
            }
            Some(ending) if now.monotonic >= ending.cut_at => self.cut(now, out),
            Some(ending) => self.wake_at(ending.cut_at),
        }
        self.commit(now, out);
        if let Some(ending) = &mut self.ending
            && !ending.is_let_go
            && (self.flying.is_none() || self.parts.is_empty())
            && self.done.is_empty()
            && !self.suspects.hold_up_the_end()
            && self.open.is_empty()
            && !self.parts.values().any(|part| part.wants_commit(true) || part.has_changed())
        {
            ending.is_let_go = true;
            out.push(WorkAction::LetGo);
        }
    }

    /// Takes in what was kept back, as far as there is room.
    fn catch_up(&mut self, now: Now, out: &mut Vec<WorkAction>) {
        let behind = self.parts.iter().filter(|(_, part)| !part.backlog.is_empty());
        for partition in behind.map(|(of, _)| *of).collect::<Vec<_>>() {
            let backlog =
                self.parts.get_mut(&partition).map(|part| std::mem::take(&mut part.backlog));
            for event in backlog.unwrap_or_default() {
                if let Some(event) = self.hold_back(event) {
                    self.take(now, event, out);
                }
            }
        }
    }

    fn wake_at(&mut self, at: Millis) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    fn begin_calls(&mut self, now: Now, out: &mut Vec<WorkAction>) {
        let is_fresh = now.monotonic < self.fresh_until;
        loop {
            let parts = &self.parts;
            let may_begin =
                |partition| is_fresh && parts.get(&partition).is_some_and(Part::is_marked);
            match self.waiting.next(now, &self.shares, may_begin) {
                Next::Begin(at) => {
                    let call = CallId(self.next_call);
                    self.next_call += 1;
                    if let Some(part) = self.parts.get_mut(&at.partition) {
                        part.open += 1;
                    }
                    if let Some(place) = self.places.get_mut(&at.task.turn) {
                        place.is_called = true;
                    }
                    out.push(WorkAction::Call(call, Arc::clone(&at.task)));
                    self.open.insert(call, Open { at, since: now, is_told: false });
                    self.untold.push_back((now.monotonic + TOLD_AFTER, call));
                }
                Next::Defer(at, until, breaker) => {
                    self.places.remove(&at.task.turn);
                    let said = Said::Deferred { until, breaker };
                    self.say(at.partition, at.offset, at.task, said);
                }
                Next::Nothing(wake) => {
                    if let Some(at) = wake {
                        self.wake_at(at);
                    }
                    return;
                }
            }
        }
    }

    /// Open calls have had their time.
    fn cut(&mut self, now: Now, out: &mut Vec<WorkAction>) {
        for (call, Open { at, .. }) in std::mem::take(&mut self.open) {
            out.push(WorkAction::Cut(call));
            self.waiting.end(now.monotonic, at.partition, &at.task.scope, None);
            self.close(at, Said::Interrupted { in_doubt: false });
        }
    }

    fn memory_permille(&self) -> u32 {
        (self.waiting.bytes().saturating_mul(1_000) / self.limits.bytes.max(1)).min(1_000) as u32
    }

    /// Defers what cannot begin soon where memory or a window is nearly full, and stops reading where that does not help.
    fn make_room(&mut self, now: Now, out: &mut Vec<WorkAction>) {
        let is_full = self.memory_permille() >= FULL;
        let windows = self.parts.iter().filter(|(_, part)| part.fill_permille() >= FULL);
        let windows: Vec<_> = windows.map(|(of, _)| Room::Window(*of)).collect();
        let rooms =
            is_full.then_some(Room::Memory).into_iter().chain([Room::Shares]).chain(windows);
        for room in rooms {
            while let Some(At { partition, offset, task }) =
                self.waiting.take_least_urgent(now.monotonic, room)
            {
                self.places.remove(&task.turn);
                let said = Said::Deferred { until: now.broker + PUT_OFF, breaker: false };
                self.say(partition, offset, task, said);
            }
        }
        for (partition, part) in &self.parts {
            if (is_full || part.fill_permille() >= FULL) && !self.paused.contains(partition) {
                self.paused.push(*partition);
                out.push(WorkAction::Pause(*partition));
            }
        }
    }

    fn resume(&mut self, out: &mut Vec<WorkAction>) {
        if self.memory_permille() >= ROOM {
            return;
        }
        let parts = &self.parts;
        self.paused.retain(|partition| {
            let has_room = parts.get(partition).is_some_and(|part| part.fill_permille() < ROOM);
            if has_room {
                out.push(WorkAction::Resume(*partition));
            }
            !has_room
        });
    }

    /// A call that is open for long has a batch of its own, if no other goes. Partitions that are to be let go do not wait for that.
    fn look_at_untold(&mut self, now: Now) {
        if self.ending.is_some() {
            return;
        }
        while let Some((at, call)) = self.untold.front().copied() {
            let Some(open) = self.open.get(&call).filter(|open| !open.is_told) else {
                self.untold.pop_front();
                continue;
            };
            match at <= now.monotonic {
                true => {
                    if let Some(part) = self.parts.get_mut(&open.at.partition) {
                        part.touch();
                    }
                }
                false => self.wake_at(at),
            }
            return;
        }
    }

    fn commit(&mut self, now: Now, out: &mut Vec<WorkAction>) {
        self.look_at_untold(now);
        let is_ending = self.ending.is_some();
        let wants =
            self.parts.values().any(|part| part.wants_commit(is_ending) || part.has_changed());
        if self.flying.is_some() {
            return;
        }
        let others = !self.done.is_empty() || wants;
        let is_test = self.suspects.are_next(now.monotonic, others);
        if !others && !is_test {
            if let Some(at) = self.suspects.next_at() {
                self.wake_at(at);
            }
            return;
        }
        if let Some(at) = self.landed.map(|at| at + GAP).filter(|at| *at > now.monotonic) {
            return self.wake_at(at);
        }
        let (mut entries, mut told) = (Vec::new(), Vec::new());
        let done = match is_test {
            true => self.suspects.take(now.monotonic),
            false => self.take_done(),
        };
        let tell = self.open.iter_mut().filter(|_| !is_test);
        for (call, open) in tell {
            let is_long = now.monotonic.saturating_sub(open.since.monotonic) >= TOLD_AFTER;
            if is_long && !open.is_told && told.len() < BATCH_MAX {
                open.is_told = true;
                told.push(*call);
                let said = Said::Started(open.since.broker);
                entries.push(Entry::Result(Arc::clone(&open.at.task), said, Form::Short));
            }
        }
        let mut owners = Vec::new();
        let mut finished: BTreeMap<Lane, Vec<Offset>> = BTreeMap::new();
        for (nth, of) in done.iter().enumerate() {
            if let Some(part) = self.parts.get_mut(&of.partition) {
                part.ended = part.ended.saturating_sub(1);
            }
            finished.entry(of.partition).or_default().push(of.offset);
            let before = entries.len();
            entries.extend(refused::entries(of));
            owners.resize(owners.len() + entries.len() - before, nth);
        }
        let mut positions = Vec::new();
        for (partition, part) in &mut self.parts {
            let finished = finished.remove(partition).unwrap_or_default();
            if !finished.is_empty() || part.has_changed() || part.wants_commit(is_ending) {
                positions.push((*partition, part.position(is_ending, &finished)));
            }
        }
        // Without a position nothing would fence what a member says that is none any more.
        debug_assert!(!positions.is_empty(), "a batch without a position");
        let id = BatchId(self.next_batch);
        self.next_batch += 1;
        self.flying = Some(Flying {
            id,
            assignment: self.assignment,
            done,
            positions: positions.iter().map(|(of, (_, is_clean))| (*of, *is_clean)).collect(),
            told,
            owners,
            refused: None,
        });
        let positions = positions.into_iter().map(|(of, (position, _))| (of, position)).collect();
        out.push(WorkAction::Commit(WorkBatch { id, entries, positions }));
    }

    /// What goes into the next batch.
    fn take_done(&mut self) -> Vec<Done> {
        let (mut done, mut bytes) = (Vec::new(), 0);
        while done.len() < BATCH_MAX
            && bytes < BATCH_BYTES
            && let Some(next) = self.done.pop_front()
        {
            bytes += next.held.as_ref().map_or(0, |task| task.size());
            done.push(next);
        }
        done
    }
}

/// Tells of tasks that were deleted, if there are any.
fn lost(partition: Lane, count: u64, out: &mut Vec<WorkAction>) {
    if count > 0 {
        out.push(WorkAction::Lost(partition, count));
    }
}

#[cfg(test)]
mod tests;
