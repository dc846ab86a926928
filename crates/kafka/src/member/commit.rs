//! Produces batches and commits them, on a thread of its own, so that the lane thread never waits.
//!
//! In `exactly_once` a batch is one transaction: begin, produce, send offsets, commit. Two producers take turns, one
//! transaction at a time (docs/adr/0007). In `at_least_once` a batch is produced at once, and done when every record of
//! it is acknowledged. The lane thread commits its offsets a little later.
//!
//! The decisions are the engine's ([`waterclock_engine::member`]). The committer knows batches: produces, offsets, and what to
//! tell when they are done. The part that decides about their records is a [`BatchOwner`]: lanes today, workers next.
//!
//! # Invariants
//! 1. Batches are reported done in the order in which they were handed over.
//! 2. After anything but a clean commit, the committer drops the producer and makes a new one with the same
//!    transactional id. This fences what is still on its way, before anything else is produced. What is clean the engine
//!    says ([`Course::clean`](waterclock_engine::member::Course::clean)).
//! 3. After that, the lanes are taken over from the committed state: what this process remembers does not count.
//! 4. In `exactly_once` nothing is committed that was appended at a time when it may not be
//!    ([`Timing`]): that is known before the commit begins.
//! 5. A member that has lost its lanes abandons the commit thread. So does a member that takes lanes over while a batch
//!    takes longer than a moment: another thread's producers fence its producer, which decides its transaction. An
//!    abandoned thread produces nothing by a producer that it initialises after that, and nobody hears its reports
//!    (docs/adr/0017).

mod delivery_reports;
mod error_class;
mod place;
mod transaction;

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use rdkafka::consumer::ConsumerGroupMetadata;

use super::group_topics::GroupTopics;
use crate::client::Connection;
use crate::client::outages::Bootstrap;
use crate::cluster::BrokerClock;
use waterclock_engine::member::{LateHop, Patience, Renewed, Timing};
use waterclock_engine::{
    Batch, BatchId, Commit, Destination, Offset, Produce, Refused, Source, UnixMillis,
};

use delivery_reports::DeliveryReports;
use transaction::CommitLoop;
pub(crate) use transaction::{TURNS, chunks, offsets_of};

/// How long a take-over waits for a batch in flight: a batch takes milliseconds, unless a broker is away.
const ON_ITS_WAY_MAX: Duration = Duration::from_millis(500);

/// How often a thread that waits for a producer logs it.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// How records get to Kafka.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Hops, deliveries, offsets and pending marks in one transaction.
    ExactlyOnce,
    /// Acknowledged produces, offsets after them: nothing lost, duplicates of what was in flight at a crash.
    AtLeastOnce,
}

/// What a committer works with.
#[derive(Clone, Debug)]
pub(crate) struct CommitterConfig {
    /// How to reach the brokers.
    pub connection: Connection,
    /// Namespace, instance and thread: unique among live processes. A producer adds its turn to it.
    pub transactional_id: String,
    /// `transaction.timeout.ms`.
    pub transaction_timeout: Duration,
    /// Exactly or at least once.
    pub delivery: Delivery,
    /// The least `max.message.bytes` of the targets in use: no batch may be larger, since a broker refuses a
    /// whole batch for its size, however small its records are.
    pub batch_bytes: Arc<AtomicUsize>,
}

/// What is told once a batch is done; it is given the brokers' time.
pub(crate) type OnDone = Box<dyn FnOnce(UnixMillis) + Send>;

/// Who decides about the records of the batches: lanes today, workers next. What a committer must know of it.
pub(crate) trait BatchOwner: Send + Sync {
    /// The topic that a record goes to.
    fn topic<'a>(&'a self, to: &'a Destination) -> &'a Arc<str>;
    /// The topics of the offsets that are committed.
    fn topics(&self) -> &GroupTopics;
    /// When a record may be appended.
    fn timing(&self, send: &Produce) -> Timing;
    /// Whether it matters where a record stands: [`stands`](Self::stands) is told.
    fn is_followed(&self, send: &Produce) -> bool;
    /// A record that is followed counts from now on; without an offset nobody knows where it stands.
    fn stands(&self, partition: i32, offset: Option<Offset>);
    /// What to tell once this batch is done.
    fn on_done(&self, batch: &Batch) -> OnDone;
    /// A transaction took so long.
    fn committed(&self, took: Duration);
    /// A producer is renewed.
    fn renewed(&self, why: Renewed);
}

/// What a member has of an assignment: the right to commit its offsets.
pub(crate) struct AssignmentEpoch {
    /// The group's metadata of it.
    pub(crate) group: ConsumerGroupMetadata,
    /// The ids of the group's topics, by [`TopicId`](waterclock_engine::TopicId); empty where no checkpoints are written (the
    /// embedded broker).
    pub(crate) ids: Vec<String>,
}

/// A batch with the right to commit its offsets.
struct Job {
    batch: Batch,
    epoch: Arc<AssignmentEpoch>,
}

enum Request {
    /// Make a producer, if there is none that is clean.
    Ready,
    /// A record was refused after it was enqueued (`at_least_once`, where no commit would say so).
    Failed(String),
    Batch(Box<Job>),
    /// Positions that are acknowledged, for `<ns>.meta` (`at_least_once`).
    Checkpoint(Vec<Commit>, Arc<AssignmentEpoch>),
    Stop,
}

/// What the committer reports.
#[derive(Debug)]
pub(crate) enum Report {
    /// Every record of the batch is acknowledged and, in `exactly_once`, its transaction committed.
    /// With hops in it that came to stand late.
    Done(BatchId, Vec<LateHop>),
    /// A batch failed, or may have: take the lanes over again once [`Committer::ready`] says so. With what Kafka refused,
    /// if that is why, and the topics of records that were not taken in time. `acknowledged`: what is there nevertheless
    /// (`at_least_once`), by batch and place in it.
    Failed {
        why: String,
        refused: Option<Refused>,
        doubted: Vec<Arc<str>>,
        acknowledged: Vec<(BatchId, usize)>,
    },
}

/// How far the committer is; shared with the rebalance callback, which waits for it.
#[derive(Debug, Default)]
struct Progress {
    /// Batches handed over and not finished.
    open: usize,
    /// A producer is there, and clean.
    ready: bool,
    /// Why there will never be one.
    fatal: Option<String>,
    /// Acknowledged and not committed (`at_least_once`).
    commits: BTreeMap<Source, Commit>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Another thread commits instead of this one.
    abandoned: AtomicBool,
    /// What the client was asked last.
    step: Mutex<&'static str>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock()
    }

    /// Whether this thread is abandoned, and another one commits instead. The thread asks this after it has initialised
    /// a producer: either it learns here that it is abandoned, or the other thread fences it.
    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// The client is asked something that it may not come back from.
    fn at(&self, step: &'static str) {
        *self.step.lock() = step;
    }

    fn update<T>(&self, change: impl FnOnce(&mut Progress) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// Waits until `done` says something, or the time is over.
    fn wait<T>(
        &self,
        most: Duration,
        mut done: impl FnMut(&mut Progress) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now() + most;
        let mut progress = self.lock();
        loop {
            if let Some(result) = done(&mut progress) {
                return Some(result);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.changed.wait_for(&mut progress, left);
        }
    }
}

/// The committing thread: the one that counts, if others were abandoned.
pub(crate) struct Committer {
    parts: Parts,
    current: Mutex<CommitThread>,
}

/// What each thread is made from.
struct Parts {
    setting: CommitterConfig,
    owner: Arc<dyn BatchOwner>,
    clock: Arc<BrokerClock>,
}

/// What one thread is handed, and what it says.
struct CommitThread {
    requests: Sender<Request>,
    reports: Receiver<Report>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Parts {
    fn start(&self) -> std::io::Result<CommitThread> {
        let (requests, inbox) = crossbeam_channel::unbounded();
        let (report_sender, reports) = crossbeam_channel::unbounded();
        let shared = Arc::new(Shared::default());
        let mut commit_loop = CommitLoop {
            setting: self.setting.clone(),
            owner: Arc::clone(&self.owner),
            clock: Arc::clone(&self.clock),
            shared: Arc::clone(&shared),
            requests: requests.clone(),
            reports: report_sender,
            producers: VecDeque::new(),
            batch_bytes: 0,
            delivery_reports: Arc::new(DeliveryReports::new(false)),
            bootstrap: Bootstrap::new(&self.setting.connection),
        };
        let thread = std::thread::Builder::new()
            .name("wc-commit".into())
            .spawn(move || commit_loop.run(&inbox))?;
        Ok(CommitThread { requests, reports, shared, thread: Some(thread) })
    }
}

impl Committer {
    /// Starts the thread; the producer is made when it is first needed.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub(crate) fn start(
        setting: CommitterConfig,
        owner: Arc<dyn BatchOwner>,
        clock: Arc<BrokerClock>,
    ) -> std::io::Result<Self> {
        let parts = Parts { setting, owner, clock };
        let current = Mutex::new(parts.start()?);
        Ok(Self { parts, current })
    }

    fn current(&self) -> MutexGuard<'_, CommitThread> {
        self.current.lock()
    }

    fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.current().shared)
    }

    /// Hands a batch over. At most the engine's `batches_max` are open, which bounds the channel.
    pub(crate) fn submit(&self, batch: Batch, epoch: Arc<AssignmentEpoch>) {
        let current = self.current();
        current.shared.update(|progress| progress.open += 1);
        let _ = current.requests.send(Request::Batch(Box::new(Job { batch, epoch })));
    }

    /// Writes positions that are acknowledged and about to be committed to `<ns>.meta`, too (`at_least_once`).
    pub(crate) fn checkpoint(&self, commits: Vec<Commit>, epoch: Arc<AssignmentEpoch>) {
        let _ = self.current().requests.send(Request::Checkpoint(commits, epoch));
    }

    /// How long its client's calls may take.
    pub(crate) fn patience(&self) -> Patience {
        transaction::patience(&self.parts.setting)
    }

    /// What the client was asked last.
    pub(crate) fn step(&self) -> &'static str {
        *self.shared().step.lock()
    }

    /// The reports of batches that have finished since the last call, until lanes are taken over again.
    pub(crate) fn reports(&self) -> Receiver<Report> {
        self.current().reports.clone()
    }

    /// Sees to it that nothing is on its way any more and a clean producer is there: what an earlier one left open is decided
    /// then. The broker need not fence what is on its way: a member that comes back under its `group.instance.id` can be given its old
    /// generation. So the thread of a batch that does not end soon is abandoned, for the new producers to fence.
    ///
    /// # Errors
    /// Says why there is none: `fatal` ones will not go away by trying again.
    pub(crate) fn ready(&self, most: Duration) -> Result<(), NotReady> {
        if !self.settle(ON_ITS_WAY_MAX) {
            self.abandon()?;
        }
        let shared = {
            let current = self.current();
            // The earlier report is of no use: a checkpoint may be on its way.
            current.shared.update(|progress| progress.ready = false);
            let _ = current.requests.send(Request::Ready);
            Arc::clone(&current.shared)
        };
        let answer = |progress: &mut Progress| match (&progress.fatal, progress.ready) {
            (Some(why), _) => Some(Err(NotReady { why: why.clone(), fatal: true })),
            (None, true) => Some(Ok(())),
            (None, false) => None,
        };
        let began = Instant::now();
        let answer = loop {
            let left = most.saturating_sub(began.elapsed());
            match shared.wait(left.min(SAY_EVERY), answer) {
                None if left > SAY_EVERY => {
                    let (waited, step) = (began.elapsed(), self.step());
                    tracing::info!(
                        ?waited,
                        step,
                        "no producer yet: earlier transactions are being decided"
                    );
                }
                answer => break answer,
            }
        };
        answer.unwrap_or_else(|| {
            // The answer may never come. The next caller gets another thread.
            self.abandon()?;
            let why = format!("no answer from the transaction coordinator within {most:?}");
            Err(NotReady { why, fatal: false })
        })
    }

    /// Asks for a clean producer, and does not wait for it: [`is_ready`](Self::is_ready) says when it is there. Only after a
    /// report of a batch that failed: then nothing is on its way.
    pub(crate) fn ask_ready(&self) {
        let current = self.current();
        current.shared.update(|progress| progress.ready = false);
        let _ = current.requests.send(Request::Ready);
    }

    /// Whether the producer is there that was [asked for](Self::ask_ready).
    ///
    /// # Errors
    /// There will never be one.
    pub(crate) fn is_ready(&self) -> Result<bool, NotReady> {
        let shared = self.shared();
        let progress = shared.lock();
        match &progress.fatal {
            Some(why) => Err(NotReady { why: why.clone(), fatal: true }),
            None => Ok(progress.ready),
        }
    }

    /// Abandons the thread, with whatever it waits for, and starts another one, whose producers know nothing of brokers that
    /// do not answer.
    ///
    /// # Errors
    /// The operating system gives no thread; the old one goes on.
    pub(crate) fn abandon(&self) -> Result<(), NotReady> {
        let failed = |error| NotReady { why: format!("no thread: {error}"), fatal: false };
        let mut current = self.current();
        let next = self.parts.start().map_err(failed)?;
        let abandoned = std::mem::replace(&mut *current, next);
        drop(current);
        abandoned.shared.abandoned.store(true, Ordering::SeqCst);
        // It ends as soon as it comes back, and nobody waits for that.
        let _ = abandoned.requests.send(Request::Stop);
        let step = *abandoned.shared.step.lock();
        let open = abandoned.shared.lock().open;
        if open > 0 {
            // It may yet be carried out.
            self.parts.owner.renewed(Renewed::Unknown);
        }
        tracing::info!(
            open,
            step,
            "the committer does not come back and is abandoned; another one fences its batches"
        );
        Ok(())
    }

    /// Waits until nothing is on its way; false if it still is.
    pub(crate) fn settle(&self, most: Duration) -> bool {
        self.shared().wait(most, |progress| (progress.open == 0).then_some(())).is_some()
    }

    /// Takes the positions that are acknowledged and not committed yet (`at_least_once`).
    #[must_use]
    pub(crate) fn take_commits(&self) -> Vec<Commit> {
        std::mem::take(&mut self.shared().lock().commits).into_values().collect()
    }

    /// Forgets them: their lanes are being taken over again.
    pub(crate) fn drop_commits(&self) {
        self.shared().lock().commits.clear();
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        let _ = self.current().requests.send(Request::Stop);
        // A hanging client must not hold the process up: it is left to the exit.
        if self.settle(Duration::from_secs(3)) {
            let thread = self.current().thread.take();
            let _ = thread.map(JoinHandle::join);
        }
    }
}

/// Why there is no producer.
#[derive(Debug, thiserror::Error)]
#[error("no producer: {why}")]
pub(crate) struct NotReady {
    why: String,
    /// Trying again is of no use.
    pub fatal: bool,
}

#[cfg(test)]
mod tests {
    use super::super::changelog_end::Written;
    use super::super::lane_batches::LaneBatches;
    use super::*;
    use crate::client::settings::Given;
    use waterclock_engine::allow::Allow;
    use waterclock_engine::ladder::Ladder;
    use waterclock_engine::state::StateKey;
    use waterclock_engine::{Intake, Limits, Millis, Setup, Topics};
    use waterclock_telemetry::LaneFigures;

    /// In `at_least_once` a producer is there at once, and no broker needs to be.
    fn committer() -> Committer {
        let ladder = Ladder::new(&[Millis(1_000)], &[], Millis(2_000)).unwrap();
        let intake = Intake::new("", None, None, Allow::new("ns", None).unwrap());
        let topics = Topics::new("ns", vec![intake], ladder);
        let (key, limits) = (StateKey::new([1; 32]), Limits::default());
        let setting = CommitterConfig {
            connection: Connection::new("127.0.0.1:1", Given::new()),
            transactional_id: "test".to_owned(),
            transaction_timeout: Duration::from_secs(1),
            delivery: Delivery::AtLeastOnce,
            batch_bytes: Arc::new(AtomicUsize::new(1_000)),
        };
        let setup = Arc::new(Setup { lanes: 1, topics, key, limits });
        let figures = Arc::new(LaneFigures::new(["intake".to_owned()], [Millis(1_000)]));
        let owner =
            LaneBatches::new(setup, None, Arc::new(Written::new(1)), (figures, Arc::default()));
        Committer::start(setting, Arc::new(owner), Arc::new(BrokerClock::new())).unwrap()
    }

    #[test]
    fn a_batch_that_ends_soon_is_waited_for_before_lanes_are_taken_over() {
        let committer = committer();
        let shared = committer.shared();
        shared.update(|progress| progress.open = 1);
        let batch = Arc::clone(&shared);
        std::thread::spawn(move || batch.update(|progress| progress.open = 0));
        committer.ready(Duration::from_secs(60)).unwrap();
        assert!(!shared.is_abandoned());
        assert!(shared.lock().ready);
    }

    #[test]
    fn a_batch_that_hangs_is_abandoned_and_nobody_hears_of_it_any_more() {
        let committer = committer();
        let (shared, said) = {
            let current = committer.current();
            (Arc::clone(&current.shared), current.reports.clone())
        };
        shared.update(|progress| progress.open = 1);
        committer.ready(Duration::from_secs(60)).unwrap();
        assert!(shared.is_abandoned());
        assert!(!shared.lock().ready, "another one makes the producers");
        assert!(committer.settle(Duration::ZERO), "of which nothing is on its way");
        assert!(!committer.reports().same_channel(&said));
        // It does not carry out requests that it still gets: its producers would fence those that count.
        let ended = said.recv_timeout(Duration::from_secs(60));
        assert!(ended.is_err_and(|error| error.is_disconnected()), "its thread has ended");
    }
}
