//! Produces batches and commits them, on a thread of its own, so that the lane thread never waits.
//!
//! In `exactly_once` a batch is one transaction: begin, produce, send offsets, commit; two producers take turns, one
//! transaction at a time (docs/adr/0007). In `at_least_once` it is
//! produced at once, and done when every record of it is acknowledged; its offsets are committed a little later by
//! the lane thread.
//!
//! # Invariants
//! 1. Batches are reported done in the order in which they were handed over.
//! 2. After anything but a clean commit (an error, an unknown outcome, one slower than half of `socket.timeout.ms`, a
//!    broker that disconnected meanwhile) the producer is dropped and made anew with the same transactional id, which
//!    fences what is still on its way, before anything else is produced. librdkafka speaks EndTxn v1, so that a
//!    delayed one could end a later transaction (KAFKA-17754; librdkafka 5423; faults 0.1).
//! 3. After that the lanes are taken over from what is committed: what this process remembers does not count.
//! 4. In `exactly_once` nothing is committed that its target's leader appended before it was due.

mod blame;
mod early;
mod hops;
mod ledger;
mod work;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use rdkafka::consumer::ConsumerGroupMetadata;

use super::written::Written;
use super::{BrokerClock, Connection};
use crate::engine::{Batch, BatchId, Commit, Refused, Setup, Source, To, Topics};
use crate::telemetry::LaneFigures;

pub(super) use hops::Late;
use work::Work;
pub(super) use work::{TURNS, chunks, offsets_of};

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
pub(super) struct Setting {
    /// How to reach the brokers.
    pub connection: Connection,
    /// Namespace, instance and thread: unique among live processes. A producer adds its turn to it.
    pub transactional_id: String,
    /// `transaction.timeout.ms`.
    pub transaction_timeout: Duration,
    /// Exactly or at least once.
    pub delivery: Delivery,
    /// The least `max.message.bytes` of the targets met so far: no batch may be larger, since a broker refuses a
    /// whole batch for its size, however small its records are.
    pub batch_bytes: Arc<AtomicUsize>,
    /// Told how far `<ns>.timers` is written.
    pub written: Arc<Written>,
    /// What the engine is given.
    pub setup: Arc<Setup>,
}

/// What a member has of an assignment: the right to commit its offsets.
pub(super) struct Tenure {
    /// The group's metadata of it.
    pub(super) group: ConsumerGroupMetadata,
    /// The ids of the lane topics, by [`TopicId`](crate::engine::TopicId); empty where no checkpoints are written (the
    /// embedded broker).
    pub(super) ids: Vec<String>,
}

/// A batch with the right to commit its offsets.
struct Job {
    batch: Batch,
    tenure: Arc<Tenure>,
}

enum Order {
    /// Make a producer, if there is none that is clean.
    Ready,
    /// A record was refused after it was enqueued (`at_least_once`, where no commit would say so).
    Failed(String),
    Batch(Box<Job>),
    /// Positions that are acknowledged, for `<ns>.meta` (`at_least_once`).
    Checkpoint(Vec<Commit>, Arc<Tenure>),
    Stop,
}

/// What the committer reports.
#[derive(Debug)]
pub(super) enum Report {
    /// Every record of the batch is acknowledged and, in `exactly_once`, its transaction committed.
    /// With hops in it that came to stand late.
    Done(BatchId, Vec<Late>),
    /// A batch failed, or may have: take the lanes over anew once [`Committer::ready`] says so. With what Kafka refused,
    /// if that is why, and the topics of records that were not taken in time.
    Failed { why: String, refused: Option<Refused>, doubted: Vec<Arc<str>> },
}

/// How far the committer is; shared with the rebalance callback, which waits for it.
#[derive(Debug, Default)]
struct Progress {
    /// Orders handed over and not finished.
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
    /// What the client was asked last.
    step: Mutex<&'static str>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client is asked something that it may not come back from.
    fn at(&self, step: &'static str) {
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = step;
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
            progress =
                self.changed.wait_timeout(progress, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Handle on the committing thread.
#[derive(Debug)]
pub(super) struct Committer {
    orders: Sender<Order>,
    reports: Receiver<Report>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    /// Starts the thread; the producer is made when it is first needed.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub(super) fn start(
        setting: Setting,
        topics: Arc<Names>,
        clock: Arc<BrokerClock>,
        figures: Arc<LaneFigures>,
    ) -> std::io::Result<Self> {
        let (orders, inbox) = crossbeam_channel::unbounded();
        let (outbox, reports) = crossbeam_channel::unbounded();
        let shared = Arc::new(Shared::default());
        let mut work = Work {
            setting,
            topics,
            clock,
            figures,
            shared: Arc::clone(&shared),
            orders: orders.clone(),
            reports: outbox,
            outlets: VecDeque::new(),
            batch_bytes: 0,
            ledger: Arc::default(),
        };
        let thread =
            std::thread::Builder::new().name("wc-commit".into()).spawn(move || work.run(&inbox))?;
        Ok(Self { orders, reports, shared, thread: Some(thread) })
    }

    /// Hands a batch over. At most the engine's `batches_max` are open, which bounds the channel.
    pub(super) fn submit(&self, batch: Batch, tenure: Arc<Tenure>) {
        self.shared.update(|progress| progress.open += 1);
        let _ = self.orders.send(Order::Batch(Box::new(Job { batch, tenure })));
    }

    /// Writes positions that are acknowledged and about to be committed to `<ns>.meta`, too (`at_least_once`).
    pub(super) fn checkpoint(&self, commits: Vec<Commit>, tenure: Arc<Tenure>) {
        let _ = self.orders.send(Order::Checkpoint(commits, tenure));
    }

    /// What the client was asked last.
    pub(super) fn step(&self) -> &'static str {
        *self.shared.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has been finished since the last call.
    pub(super) fn reports(&self) -> &Receiver<Report> {
        &self.reports
    }

    /// Waits until nothing is on its way, makes a clean producer if there is none, and waits for it: what an earlier one left
    /// open is decided then. The broker need not fence what is on its way: a member that comes back to its seat can
    /// be given its old generation.
    ///
    /// # Errors
    /// Says why there is none: `fatal` ones will not go away by trying again.
    pub(super) fn ready(&self, most: Duration) -> Result<(), NotReady> {
        // What is said of a batch that is still on its way is of no use.
        self.shared.update(|progress| progress.ready = false);
        let _ = self.orders.send(Order::Ready);
        let answer = self.shared.wait(most, |progress| match (&progress.fatal, progress.ready) {
            (Some(why), _) => Some(Err(NotReady { why: why.clone(), fatal: true })),
            (None, true) => Some(Ok(())),
            (None, false) => None,
        });
        answer.unwrap_or_else(|| {
            let why = format!("no answer from the transaction coordinator within {most:?}");
            Err(NotReady { why, fatal: false })
        })
    }

    /// Waits until nothing is on its way; false if it still is.
    pub(super) fn settle(&self, most: Duration) -> bool {
        self.shared.wait(most, |progress| (progress.open == 0).then_some(())).is_some()
    }

    /// Takes the positions that are acknowledged and not committed yet (`at_least_once`).
    #[must_use]
    pub(super) fn take_commits(&self) -> Vec<Commit> {
        std::mem::take(&mut self.shared.lock().commits).into_values().collect()
    }

    /// Forgets them: their lanes are being taken over anew.
    pub(super) fn drop_commits(&self) {
        self.shared.lock().commits.clear();
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop);
        // A hanging client must not hold the process up: it is left to the exit.
        if self.settle(Duration::from_secs(3))
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// Why there is no producer.
#[derive(Debug, thiserror::Error)]
#[error("no producer: {why}")]
pub(super) struct NotReady {
    why: String,
    /// Trying again is of no use.
    pub fatal: bool,
}

/// Topic names as a batch needs them.
#[derive(Debug)]
pub(super) struct Names {
    lanes: Vec<Arc<str>>,
    tiers_from: usize,
    dead: Arc<str>,
    timers: Arc<str>,
    meta: Arc<str>,
}

impl Names {
    /// The names of a namespace's topics.
    #[must_use]
    pub(super) fn new(topics: &Topics) -> Self {
        Self {
            lanes: topics.names().to_vec(),
            tiers_from: topics.intakes.len(),
            dead: topics.dead(),
            timers: topics.timers(),
            meta: topics.meta(),
        }
    }

    fn of<'a>(&'a self, to: &'a To) -> &'a Arc<str> {
        match to {
            To::Lane(topic) => &self.lanes[usize::from(topic.0)],
            To::Target(name) => name,
            To::Dead => &self.dead,
            To::Timers => &self.timers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_not_taken_over_while_a_batch_is_on_its_way() {
        let (orders, inbox) = crossbeam_channel::unbounded();
        let (_reporter, reports) = crossbeam_channel::unbounded();
        let shared = Arc::new(Shared::default());
        // As it is while the committing thread works on a batch.
        shared.update(|progress| (progress.ready, progress.open) = (true, 1));
        let committer = Committer { orders, reports, shared: Arc::clone(&shared), thread: None };
        let asked = committer.ready(Duration::from_millis(50));
        assert!(asked.is_err(), "the batch may still commit");
        std::thread::spawn(move || {
            let order = inbox.iter().nth(1);
            assert!(matches!(order, Some(Order::Ready)), "the second question");
            shared.update(|progress| (progress.ready, progress.open) = (true, 0));
        });
        assert!(committer.ready(Duration::from_secs(60)).is_ok());
    }
}
