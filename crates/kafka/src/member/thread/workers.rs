//! The role of a worker: the [worker engine](waterclock_engine::work) decides which calls begin, and what is committed of them.
//!
//! # Invariants
//! 1. A call's end is told to the engine that began it. Numbers of calls are never used twice in a process.
//! 2. When partitions are gone, so are their calls: they are cut before the session goes on.

mod batch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use tokio::sync::watch;

use super::role::{Committed, Polled, Role};
use super::session::{Membership, POLL_MAX, POLL_SHORT};
use crate::member::commit::{BatchOwner, Report};
use crate::member::fence::Members;
use crate::member::rebalance::Taken;
use crate::member::work_batches::WorkBatches;
use crate::member::workers::SEND_WITHIN;
use batch::{Flying, Writer};
use waterclock_engine::member::WorkRules;
use waterclock_engine::sealed::{Work, read_work};
use waterclock_engine::task::registry::Registry;
use waterclock_engine::work::{
    CallEnd, CallId, Now, Position, Taken as TakenPart, Task, WorkAction, WorkEngine, WorkEvent,
    WorkLimits,
};
use waterclock_engine::{BatchId, Lane, Millis, Offset, Refused, Setup, Source, TopicId};
use waterclock_telemetry::{WorkerFigures, WorkerLevels};

type Member<'a> = Membership<'a, WorkRules>;

/// Makes the calls of tasks.
pub trait Calls: Send {
    /// Begins a call. How it ends is told by the channel of ended calls, once. What is not on its way by that time must not be
    /// sent: the process stood still, and its task may be another worker's.
    fn begin(&self, call: CallId, task: Arc<Task>, by: Instant);

    /// Ends a call at once. Nobody asks any more how it ends.
    fn cut(&self, call: CallId);
}

/// A call that has ended, and how.
pub(in crate::member) type Ended = (CallId, Box<CallEnd>);

/// What the worker of a process works with.
pub(in crate::member) struct WorkParts {
    pub(in crate::member) namespace: String,
    pub(in crate::member) setup: Arc<Setup>,
    /// As results name who has worked.
    pub(in crate::member) instance: String,
    pub(in crate::member) limits: WorkLimits,
    pub(in crate::member) calls: Box<dyn Calls>,
    /// Calls that have ended. This thread is unparked for each.
    pub(in crate::member) ended: Receiver<Ended>,
    pub(in crate::member) registry: watch::Receiver<Arc<Registry>>,
    pub(in crate::member) drain: Duration,
    pub(in crate::member) figures: Arc<WorkerFigures>,
}

/// Bits of a call's number that count the calls of one membership; those above count memberships.
const CALL_BITS: u32 = 40;
/// Tells the engines of a process apart.
static MEMBERSHIPS: AtomicU64 = AtomicU64::new(1);

/// The worker, while it is in the group.
pub(super) struct Workers<'a> {
    parts: &'a WorkParts,
    registry: watch::Receiver<Arc<Registry>>,
    engine: WorkEngine,
    writer: Writer<'a>,
    /// The batch that is on its way.
    flying: Option<Flying>,
    /// The number of this membership.
    membership: u64,
    /// Up to where each partition was read, as the engine was told.
    read: BTreeMap<Source, Offset>,
    /// Where the partitions ended when they were taken over, as long as they are not read up to there.
    unread: BTreeMap<Source, Offset>,
    /// The engine has let go of the partitions.
    has_let_go: bool,
    /// The process stops.
    drains: bool,
    levels: WorkerLevels,
}

impl<'a> Workers<'a> {
    pub(super) fn new(parts: &'a WorkParts) -> Self {
        let mut registry = parts.registry.clone();
        let now = Arc::clone(&registry.borrow_and_update());
        Self {
            engine: WorkEngine::new(parts.limits, parts.setup.lanes, now),
            writer: Writer::new(parts),
            registry,
            flying: None,
            membership: MEMBERSHIPS.fetch_add(1, Ordering::Relaxed),
            read: BTreeMap::new(),
            unread: BTreeMap::new(),
            has_let_go: false,
            drains: false,
            levels: WorkerLevels::default(),
            parts,
        }
    }

    /// Tells the engine one fact and carries out what it orders.
    fn step(&mut self, member: &mut Member<'_>, event: WorkEvent) {
        // Taken before the engine's time, so that a stop between the two makes it earlier.
        let by = Instant::now() + SEND_WITHIN;
        let now = Now { monotonic: member.at(), broker: member.now() };
        for action in self.engine.step(now, event) {
            match action {
                WorkAction::Pause(partition) => member.pause(&[source(partition)]),
                WorkAction::Resume(partition) => member.resume(vec![source(partition)]),
                WorkAction::Call(call, task) => {
                    self.parts.calls.begin(self.told(call), task, by);
                }
                WorkAction::Cut(call) => self.parts.calls.cut(self.told(call)),
                WorkAction::Commit(batch) => {
                    let (batch, flying) = self.writer.write(batch);
                    self.flying = Some(flying);
                    member.submit(batch);
                }
                WorkAction::LetGo => self.has_let_go = true,
                WorkAction::Lost(partition, tasks) => {
                    self.parts.figures.lost(tasks);
                    let topic = member.topics().name(source(partition));
                    tracing::error!(
                        %topic,
                        partition = partition.0,
                        tasks,
                        "tasks were deleted before they were done. Find out who did it (retention, DeleteRecords)"
                    );
                }
                WorkAction::Damaged(partition, error) => {
                    let topic = member.topics().name(source(partition));
                    tracing::error!(
                        %topic,
                        partition = partition.0,
                        %error,
                        "the committed position cannot be read: all that stands in the partition is reported as in doubt, and \
                         its lane dispatches it again"
                    );
                }
            }
        }
    }

    /// A call of this membership, as the process knows it.
    fn told(&self, CallId(call): CallId) -> CallId {
        CallId(self.membership << CALL_BITS | call)
    }

    /// Takes the calls that have ended meanwhile.
    fn take_ended(&mut self, member: &mut Member<'_>) {
        while let Ok((CallId(call), end)) = self.parts.ended.try_recv() {
            // One of an earlier membership was cut with it.
            if call >> CALL_BITS == self.membership {
                let call = CallId(call & ((1 << CALL_BITS) - 1));
                self.step(member, WorkEvent::Ended { call, end });
            }
        }
    }

    /// Tells the engine how far these partitions are read, where no record says so: marks of transactions stand behind the last.
    fn look_at_positions(&mut self, member: &mut Member<'_>, of: &[Source]) {
        for (source, next) in member.positions(of) {
            let read = self.read.entry(source).or_insert(Offset(0));
            if *read >= next {
                continue;
            }
            *read = next;
            if self.unread.get(&source).is_some_and(|end| next >= *end) {
                self.unread.remove(&source);
            }
            self.step(member, WorkEvent::Read { partition: source.lane, next });
        }
    }
}

/// A partition of `<ns>.tasks`.
fn source(lane: Lane) -> Source {
    Source { topic: TopicId(0), lane }
}

impl Role for Workers<'_> {
    type Rules = WorkRules;
    const MEMBERS: Members = Members::Worker;
    const LETS_GO_LATER: bool = true;
    const GOES_ON: bool = true;
    const WAITS: bool = true;

    fn batches(&self) -> Arc<dyn BatchOwner> {
        let WorkParts { namespace, setup, figures, .. } = self.parts;
        Arc::new(WorkBatches::new(namespace, setup, Arc::clone(figures)))
    }

    fn begin(&mut self, member: &mut Member<'_>, assignment: u64, taken: Taken) {
        self.has_let_go = false;
        self.read = taken.starts.iter().map(|start| (start.source, start.next)).collect();
        let behind = taken.starts.iter().filter(|start| start.next < start.end);
        self.unread = behind.map(|start| (start.source, start.end)).collect();
        let parts = taken.starts.into_iter().map(|start| TakenPart {
            partition: start.source.lane,
            start: start.next,
            end: start.end,
            position: Some(Position { next: start.next, metadata: start.metadata }),
        });
        let parts: Vec<TakenPart> = parts.collect();
        let partitions = parts.len();
        self.step(member, WorkEvent::Assigned(parts));
        if self.drains {
            self.step(member, WorkEvent::Ending(super::millis(self.parts.drain)));
        }
        tracing::info!(assignment, partitions, "worker has taken partitions over");
    }

    fn revoked(&mut self, member: &mut Member<'_>, _: Option<u64>) {
        self.step(member, WorkEvent::Gone);
        // Nobody hears any more what becomes of it, and the engine commits nothing while it waits for that.
        if let Some(flying) = self.flying.take() {
            self.step(member, WorkEvent::Failed(flying.id));
        }
        self.read.clear();
        self.unread.clear();
    }

    fn ending(&mut self, member: &mut Member<'_>, within: Millis) {
        self.step(member, WorkEvent::Ending(within));
    }

    fn has_let_go(&self) -> bool {
        self.has_let_go
    }

    fn heard(&mut self, member: &mut Member<'_>, since: Millis) {
        self.step(member, WorkEvent::Fresh { since });
    }

    fn read(&mut self, member: &mut Member<'_>, polled: Polled) {
        let Polled { source, offset, appended, record, .. } = polled;
        self.read.insert(source, offset.next());
        let partition = source.lane;
        let setup = &self.parts.setup;
        let event = match read_work(&setup.key, setup.lanes, (partition, appended), record) {
            Ok(Work::Task(task)) => {
                self.parts.figures.read();
                WorkEvent::Task { partition, offset, task: Arc::from(task) }
            }
            Ok(Work::Cancel(turn, id)) => WorkEvent::Cancel { partition, offset, turn, id },
            Err((record, refusal)) => {
                WorkEvent::Foreign { partition, offset, appended, record, refusal }
            }
        };
        self.step(member, event);
    }

    fn committed(&mut self, member: &mut Member<'_>, batch: Committed) {
        if let Some(flying) = self.flying.take_if(|flying| flying.id == batch.id) {
            member.shared.work.done(flying.ended());
            flying.tell(&self.parts.figures);
        }
        self.step(member, WorkEvent::Committed(batch.id));
    }

    fn failed(&mut self, member: &mut Member<'_>, _: Vec<Arc<str>>, _: Vec<(BatchId, usize)>) {
        if let Some(flying) = self.flying.take() {
            self.step(member, WorkEvent::Failed(flying.id));
        }
    }

    /// The session has logged it. The engine sends again what it can, and the rest shorter.
    fn refused(&mut self, member: &mut Member<'_>, refused: Refused) {
        self.step(member, WorkEvent::Refused(refused));
    }

    fn patience(&self, member: &Member<'_>) -> Duration {
        let until = self.engine.next_tick().map(|at| at.saturating_sub(member.at()));
        until.map_or(POLL_MAX, |until| Duration::from_millis(until.0))
    }

    fn wait(&mut self, member: &mut Member<'_>, most: Duration) -> Option<Report> {
        let reports = member.reports();
        if most <= POLL_SHORT {
            // A report does not unpark this thread.
            return if most.is_zero() { None } else { reports.recv_timeout(most).ok() };
        }
        let by = Instant::now() + most;
        loop {
            if !self.parts.ended.is_empty() || member.has_events() {
                return None;
            }
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return reports.try_recv().ok();
            }
            thread::park_timeout(left);
        }
    }

    fn turn(&mut self, member: &mut Member<'_>) {
        self.take_ended(member);
        // The sender may be gone while the process stops.
        if self.registry.has_changed().unwrap_or(false) {
            let now = Arc::clone(&self.registry.borrow_and_update());
            self.step(member, WorkEvent::Registry(now));
        }
        if !self.unread.is_empty() {
            let of: Vec<Source> = self.unread.keys().copied().collect();
            self.look_at_positions(member, &of);
        }
        if self.engine.next_tick().is_some_and(|at| at <= member.at()) {
            self.step(member, WorkEvent::Tick);
        }
    }

    fn tell_figures(&mut self, member: &mut Member<'_>) {
        let of: Vec<Source> = self.read.keys().copied().collect();
        self.look_at_positions(member, &of);
        let figures = self.engine.figures();
        if figures.waiting > 0 {
            member.shared.clock.want();
        }
        member.shared.work.calls(figures.open);
        self.levels.waiting.set(figures.waiting as u64);
        self.levels.paused.set(figures.paused as u64);
        self.levels.memory_bytes.set(figures.bytes as u64);
    }

    fn drain(&mut self, member: &mut Member<'_>) {
        self.drains = true;
        self.step(member, WorkEvent::Ending(super::millis(self.parts.drain)));
    }

    fn is_drained(&self) -> bool {
        self.drains && self.has_let_go
    }

    fn lanes(&self) -> Vec<Lane> {
        self.engine.partitions().collect()
    }
}
