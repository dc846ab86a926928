//! Produces batches and commits them, on a thread of its own, so that the lane thread never waits.
//!
//! In `exactly_once` a batch is one transaction: begin, produce, send offsets, commit. In `at_least_once` it is
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

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use rdkafka::ClientContext;
use rdkafka::consumer::ConsumerGroupMetadata;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::producer::{DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use super::raw::Outlet;
use super::{BrokerClock, Connection};
use crate::engine::Millis;
use crate::engine::header::Code;
use crate::engine::{Batch, BatchId, Commit, Edit, Source, To, Topics};
use crate::telemetry::{LaneFigures, Renewed};

/// Partitions in one call that sends offsets, at most: the broker's record of them has a limit, too.
const OFFSETS_PER_CALL: usize = 100;
/// Bytes of metadata in one such call, at most.
const OFFSETS_BYTES_PER_CALL: usize = 512 << 10;
/// `batch.size` where every target takes as much: below Kafka's own default of `max.message.bytes`.
const BATCH_BYTES_MAX: usize = 900_000;
/// `socket.timeout.ms` of every client (see `Connection`); a commit slower than half of it is dirty.
pub(super) const SOCKET_TIMEOUT: Duration = Duration::from_secs(8);

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
    /// Namespace, instance and thread: unique among live processes.
    pub transactional_id: String,
    /// `transaction.timeout.ms`.
    pub transaction_timeout: Duration,
    /// Exactly or at least once.
    pub delivery: Delivery,
    /// The least `max.message.bytes` of the targets met so far: no batch may be larger, since a broker refuses a
    /// whole batch for its size, however small its records are.
    pub batch_bytes: Arc<AtomicUsize>,
}

/// A batch with the right to commit its offsets.
struct Job {
    batch: Batch,
    group: Arc<ConsumerGroupMetadata>,
}

enum Order {
    /// Make a producer, if there is none that is clean.
    Ready,
    /// A record was refused after it was enqueued (`at_least_once`, where no commit would say so).
    Failed(String),
    Batch(Box<Job>),
    Stop,
}

/// What the committer reports.
#[derive(Debug)]
pub(super) enum Report {
    /// Every record of the batch is acknowledged and, in `exactly_once`, its transaction committed.
    Done(BatchId),
    /// A batch failed, or may have: take the lanes over anew once [`Committer::ready`] says so.
    Failed(String),
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
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
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
            outlet: None,
            batch_bytes: 0,
            ledger: Arc::default(),
        };
        let thread =
            std::thread::Builder::new().name("wc-commit".into()).spawn(move || work.run(&inbox))?;
        Ok(Self { orders, reports, shared, thread: Some(thread) })
    }

    /// Hands a batch over. At most the engine's `batches_max` are open, which bounds the channel.
    pub(super) fn submit(&self, batch: Batch, group: Arc<ConsumerGroupMetadata>) {
        self.shared.update(|progress| progress.open += 1);
        let _ = self.orders.send(Order::Batch(Box::new(Job { batch, group })));
    }

    /// What has been finished since the last call.
    pub(super) fn reports(&self) -> &Receiver<Report> {
        &self.reports
    }

    /// Makes a clean producer if there is none, and waits for it: what an earlier one left open is decided then.
    ///
    /// # Errors
    /// Says why there is none: `fatal` ones will not go away by trying again.
    pub(super) fn ready(&self, most: Duration) -> Result<(), NotReady> {
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
}

impl Names {
    /// The names of a namespace's topics.
    #[must_use]
    pub(super) fn new(topics: &Topics) -> Self {
        Self {
            lanes: topics.names().to_vec(),
            tiers_from: topics.intakes.len(),
            dead: topics.dead(),
        }
    }

    fn of<'a>(&'a self, to: &'a To) -> &'a Arc<str> {
        match to {
            To::Lane(topic) => &self.lanes[usize::from(topic.0)],
            To::Target(name) => name,
            To::Dead => &self.dead,
        }
    }
}

/// What the delivery reports say: how much of each batch is still on its way.
#[derive(Debug, Default)]
struct Ledger {
    batches: Mutex<VecDeque<Open>>,
    /// Connections lost; compared before and after a commit.
    disconnects: AtomicU64,
    failed: Mutex<Option<String>>,
}

#[derive(Debug)]
struct Open {
    id: BatchId,
    left: usize,
    commits: Vec<Commit>,
    told: Told,
}

/// What is told to the metrics when a batch is done.
#[derive(Debug, Default)]
struct Told {
    due: Vec<u64>,
    forwarded: Vec<(usize, u64)>,
    moved: u64,
    dead: Vec<Code>,
}

struct Context {
    ledger: Arc<Ledger>,
    done: Option<Done>,
}

/// What a delivery report needs in `at_least_once`, where it is what finishes a batch.
struct Done {
    orders: Sender<Order>,
    shared: Arc<Shared>,
    reports: Sender<Report>,
    clock: Arc<BrokerClock>,
    figures: Arc<LaneFigures>,
}

impl ClientContext for Context {
    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        if matches!(
            code,
            Some(
                RDKafkaErrorCode::BrokerTransportFailure
                    | RDKafkaErrorCode::AllBrokersDown
                    | RDKafkaErrorCode::OperationTimedOut
                    | RDKafkaErrorCode::Resolve
            )
        ) {
            self.ledger.disconnects.fetch_add(1, Ordering::SeqCst);
            tracing::info!(%error, reason, "producer lost a broker");
        } else {
            tracing::warn!(%error, reason, "producer");
        }
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, id: usize) {
        if let Err((error, message)) = result {
            let what = format!("{} partition {}: {error}", message.topic(), message.partition());
            let mut failed = self.ledger.failed.lock().unwrap_or_else(PoisonError::into_inner);
            if failed.is_none()
                && let Some(done) = &self.done
            {
                let _ = done.orders.send(Order::Failed(what.clone()));
            }
            failed.get_or_insert(what);
            return;
        }
        let Some(done) = &self.done else { return };
        let mut batches = self.ledger.batches.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = batches.iter_mut().find(|open| open.id.0 as usize == id) {
            open.left = open.left.saturating_sub(1);
        }
        done.finish(&mut batches);
    }
}

impl Done {
    /// Reports the batches at the front that are complete. One whose record failed never is: it stays, and nothing
    /// after it is reported.
    fn finish(&self, batches: &mut VecDeque<Open>) {
        while batches.front().is_some_and(|open| open.left == 0)
            && let Some(open) = batches.pop_front()
        {
            open.told.tell(&self.clock, &self.figures);
            self.shared.update(|progress| {
                progress.open = progress.open.saturating_sub(1);
                progress.commits.extend(open.commits.into_iter().map(|c| (c.source, c)));
            });
            let _ = self.reports.send(Report::Done(open.id));
        }
    }
}

impl Told {
    fn of(batch: &Batch, tiers_from: usize) -> Self {
        let mut told = Self::default();
        for send in &batch.sends {
            match (&send.to, &send.edit) {
                (To::Target(_), _) => told.due.push(send.due.0),
                (To::Lane(topic), _) if usize::from(topic.0) < tiers_from => told.moved += 1,
                (To::Lane(topic), _) => {
                    let tier = usize::from(topic.0) - tiers_from;
                    match told.forwarded.iter_mut().find(|(known, _)| *known == tier) {
                        Some((_, count)) => *count += 1,
                        None => told.forwarded.push((tier, 1)),
                    }
                }
                (To::Dead, Edit::Dead(letter)) => told.dead.push(letter.code),
                (To::Dead, _) => {}
            }
        }
        told
    }

    fn tell(&self, clock: &BrokerClock, figures: &LaneFigures) {
        let now = clock.now(Instant::now()).map_or(0, |now| now.0);
        figures.delivered(self.due.iter().map(|due| Millis(now.saturating_sub(*due))));
        for (tier, count) in &self.forwarded {
            figures.forwarded(*tier, *count);
        }
        figures.moved(self.moved);
        for code in &self.dead {
            figures.dead_letter(*code);
        }
    }
}

type Producer = ThreadedProducer<Context>;

/// The committing thread's own state.
struct Work {
    setting: Setting,
    topics: Arc<Names>,
    clock: Arc<BrokerClock>,
    figures: Arc<LaneFigures>,
    shared: Arc<Shared>,
    orders: Sender<Order>,
    reports: Sender<Report>,
    outlet: Option<Outlet<Context>>,
    /// `batch.size` of the producer that there is.
    batch_bytes: usize,
    ledger: Arc<Ledger>,
}

impl Work {
    fn run(&mut self, inbox: &Receiver<Order>) {
        for order in inbox {
            match order {
                Order::Stop => break,
                Order::Failed(detail) if self.outlet.is_some() => {
                    self.fail(&Dirty { step: "produce", reason: Renewed::Aborted, detail });
                }
                Order::Failed(_) => {}
                Order::Ready => self.make_ready(),
                Order::Batch(job) => self.batch(*job),
            }
        }
        // Whatever waits for this thread waits no longer.
        self.outlet = None;
        self.shared.update(|progress| progress.open = 0);
    }

    fn batch(&mut self, job: Job) {
        let id = job.batch.id;
        // After a failure the engine starts over; what it had handed over before is void.
        if self.outlet.is_none() {
            self.shared.update(|progress| progress.open = progress.open.saturating_sub(1));
            return;
        }
        if self.setting.batch_bytes.load(Ordering::Relaxed).min(BATCH_BYTES_MAX) < self.batch_bytes
            && let Err(dirty) = self.shrink()
        {
            return self.fail(&dirty);
        }
        let started = Instant::now();
        let result = match self.setting.delivery {
            Delivery::ExactlyOnce => self.transaction(job),
            Delivery::AtLeastOnce => self.produce_only(job),
        };
        match result {
            Ok(Some(told)) => {
                self.figures.committed(started.elapsed());
                told.tell(&self.clock, &self.figures);
                self.shared.update(|progress| progress.open = progress.open.saturating_sub(1));
                let _ = self.reports.send(Report::Done(id));
            }
            Ok(None) => {}
            Err(dirty) => self.fail(&dirty),
        }
    }

    /// A target takes smaller batches than the producer makes: a new one, with smaller ones.
    fn shrink(&mut self) -> Result<(), Dirty> {
        tracing::info!(
            from = self.batch_bytes,
            "a target takes smaller batches, renewing the producer"
        );
        if let Some(outlet) = &self.outlet {
            outlet.producer().flush(SOCKET_TIMEOUT).map_err(|e| Dirty::new("flush", &e))?;
        }
        let ledger = std::mem::take(&mut self.ledger);
        self.outlet = None;
        if ledger.failed.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            let detail = "a record failed".to_owned();
            return Err(Dirty { step: "flush", reason: Renewed::Aborted, detail });
        }
        self.outlet = Some(self.make().map_err(|e| Dirty::new("init", &e))?);
        Ok(())
    }

    fn fail(&mut self, dirty: &Dirty) {
        tracing::warn!(step = dirty.step, error = %dirty.detail, "batch failed, renewing the producer");
        self.figures.renewed(dirty.reason);
        self.outlet = None;
        self.ledger = Arc::default();
        self.shared.update(|progress| {
            progress.open = 0;
            progress.ready = false;
            progress.commits.clear();
        });
        let _ = self.reports.send(Report::Failed(format!("{}: {}", dirty.step, dirty.detail)));
    }

    /// One transaction; `Ok(Some)` is told when it committed cleanly.
    fn transaction(&mut self, job: Job) -> Result<Option<Told>, Dirty> {
        let Some(outlet) = &mut self.outlet else { return Ok(None) };
        let Job { batch, group } = job;
        let told = Told::of(&batch, self.topics.tiers_from);
        let before = self.ledger.disconnects.load(Ordering::SeqCst);
        let timeout = self.setting.transaction_timeout;
        fail::fail_point!("before_begin", |_| std::process::abort());
        outlet.producer().begin_transaction().map_err(|e| Dirty::new("begin", &e))?;
        fail::fail_point!("before_produce", |_| std::process::abort());
        produce(outlet, &self.topics, &batch)?;
        fail::fail_point!("after_produce", |_| std::process::abort());
        for chunk in chunks(&batch.commits) {
            let offsets = offsets_of(chunk, &self.topics.lanes)?;
            outlet
                .producer()
                .send_offsets_to_transaction(&offsets, &group, timeout)
                .map_err(|e| Dirty::new("send_offsets", &e))?;
        }
        fail::fail_point!("after_send_offsets", |_| std::process::abort());
        let commit = Instant::now();
        outlet.commit(timeout).map_err(|e| Dirty {
            step: "commit",
            reason: Renewed::Unknown,
            detail: self.why(e),
        })?;
        fail::fail_point!("after_commit", |_| std::process::abort());
        let took = commit.elapsed();
        if keeps_dirty_producers() {
            return Ok(Some(told));
        }
        if took > SOCKET_TIMEOUT / 2 {
            let detail = format!("the commit took {took:?}");
            return Err(Dirty { step: "commit", reason: Renewed::Slow, detail });
        }
        if self.ledger.disconnects.load(Ordering::SeqCst) != before {
            let detail = "a broker disconnected during the transaction".to_owned();
            return Err(Dirty { step: "commit", reason: Renewed::Disconnected, detail });
        }
        Ok(Some(told))
    }

    /// What went wrong, with the first record that failed if one is known.
    fn why(&self, error: String) -> String {
        let failed = self.ledger.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        match failed {
            Some(failed) => format!("{error}; {failed}"),
            None => error,
        }
    }

    /// Hands the batch to the producer; its delivery reports finish it.
    fn produce_only(&mut self, job: Job) -> Result<Option<Told>, Dirty> {
        let Some(outlet) = &mut self.outlet else { return Ok(None) };
        let batch = job.batch;
        let told = Told::of(&batch, self.topics.tiers_from);
        let open =
            Open { id: batch.id, left: batch.sends.len(), commits: batch.commits.clone(), told };
        self.ledger.batches.lock().unwrap_or_else(PoisonError::into_inner).push_back(open);
        produce(outlet, &self.topics, &batch)?;
        if batch.sends.is_empty() {
            // Nothing will be acknowledged: look whether it is at the front now.
            let mut batches = self.ledger.batches.lock().unwrap_or_else(PoisonError::into_inner);
            self.done().finish(&mut batches);
        }
        Ok(None)
    }

    fn done(&self) -> Done {
        Done {
            orders: self.orders.clone(),
            shared: Arc::clone(&self.shared),
            reports: self.reports.clone(),
            clock: Arc::clone(&self.clock),
            figures: Arc::clone(&self.figures),
        }
    }

    fn make_ready(&mut self) {
        if self.outlet.is_some() {
            return self.shared.update(|progress| progress.ready = true);
        }
        match self.make() {
            Ok(outlet) => {
                self.outlet = Some(outlet);
                self.shared.update(|progress| progress.ready = true);
            }
            Err(error) => {
                let fatal = matches!(
                    error.rdkafka_error_code(),
                    Some(
                        RDKafkaErrorCode::TransactionalIdAuthorizationFailed
                            | RDKafkaErrorCode::ClusterAuthorizationFailed
                            | RDKafkaErrorCode::InvalidTransactionTimeout
                            | RDKafkaErrorCode::UnsupportedFeature
                    )
                );
                tracing::warn!(%error, fatal, "no producer yet");
                if fatal {
                    self.shared.update(|progress| progress.fatal = Some(error.to_string()));
                }
            }
        }
    }

    /// A new producer; with a transactional id it fences the one before and decides what that left open.
    fn make(&mut self) -> Result<Outlet<Context>, KafkaError> {
        self.ledger = Arc::default();
        self.batch_bytes = self.setting.batch_bytes.load(Ordering::Relaxed).min(BATCH_BYTES_MAX);
        let exactly_once = self.setting.delivery == Delivery::ExactlyOnce;
        let mut config = self.setting.connection.client(&self.setting.transactional_id);
        let timeout_ms = self.setting.transaction_timeout.as_millis().to_string();
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("partitioner", "murmur2_random")
            .set("queue.buffering.max.messages", "200000")
            // Bounded by the batch; one record may be larger than any batch, once it is not compressed any more.
            .set("queue.buffering.max.kbytes", "2097151")
            .set("message.max.bytes", "1000000000")
            .set("batch.size", self.batch_bytes.max(1).to_string())
            .set("batch.num.messages", "10000")
            .set("topic.metadata.propagation.max.ms", "2000")
            .set("retry.backoff.ms", "2")
            .set("retry.backoff.max.ms", "50")
            .set("message.timeout.ms", &timeout_ms);
        if exactly_once {
            config
                .set("transactional.id", &self.setting.transactional_id)
                .set("transaction.timeout.ms", &timeout_ms)
                // The commit flushes; a linger only fills the batches of one transaction.
                .set("linger.ms", "1")
                .set("delivery.report.only.error", "true");
        } else {
            config.set("linger.ms", "0");
        }
        let done = (!exactly_once).then(|| self.done());
        let context = Context { ledger: Arc::clone(&self.ledger), done };
        let producer: Producer = config.create_with_context(context)?;
        if exactly_once {
            producer
                .init_transactions(self.setting.transaction_timeout + Duration::from_secs(15))?;
        }
        Ok(Outlet::new(producer).compressing(&self.topics.dead))
    }
}

/// For the test that shows what happens without invariant 2.
fn keeps_dirty_producers() -> bool {
    fail::fail_point!("keep_dirty_producer", |_| true);
    false
}

/// Why a producer is not used again.
#[derive(Debug)]
struct Dirty {
    step: &'static str,
    reason: Renewed,
    detail: String,
}

impl Dirty {
    fn new(step: &'static str, error: &KafkaError) -> Self {
        let fenced = matches!(
            error.rdkafka_error_code(),
            Some(RDKafkaErrorCode::Fenced | RDKafkaErrorCode::ProducerFenced)
        );
        let reason = if fenced { Renewed::Fenced } else { Renewed::Aborted };
        Self { step, reason, detail: error.to_string() }
    }
}

/// Enqueues every record of a batch; waits while the client's queue is full.
fn produce(outlet: &mut Outlet<Context>, topics: &Names, batch: &Batch) -> Result<(), Dirty> {
    let opaque = batch.id.0 as usize;
    let deadline = Instant::now() + Duration::from_secs(15);
    for send in &batch.sends {
        loop {
            let topic = topics.of(&send.to);
            match outlet.produce(
                topic,
                send.partition,
                &send.record,
                |add| send.headers(add),
                opaque,
            ) {
                Ok(()) => break,
                Err(error)
                    if error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull)
                        && Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => {
                    let detail = format!("{topic}: {error}");
                    return Err(Dirty { step: "produce", reason: Renewed::Aborted, detail });
                }
            }
        }
    }
    Ok(())
}

/// Positions in the pieces that one call may carry.
fn chunks(commits: &[Commit]) -> impl Iterator<Item = &[Commit]> {
    let mut rest = commits;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = rest.iter().take(OFFSETS_PER_CALL).take_while(|commit| {
            bytes += commit.metadata.len();
            bytes <= OFFSETS_BYTES_PER_CALL
        });
        let count = fits.count();
        let (chunk, left) = rest.split_at(count);
        rest = left;
        (!chunk.is_empty()).then_some(chunk)
    })
}

/// Positions as librdkafka takes them. Metadata is set once per element: setting it again would leak.
pub(super) fn offsets_of(
    commits: &[Commit],
    lanes: &[Arc<str>],
) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::with_capacity(commits.len());
    for Commit { source, next, metadata } in commits {
        let topic = &lanes[usize::from(source.topic.0)];
        let mut element = list.add_partition(topic, i32::from(source.lane.0));
        element.set_offset(At::Offset(next.0))?;
        if !metadata.is_empty() {
            element.set_metadata(metadata);
        }
    }
    Ok(list)
}

impl From<KafkaError> for Dirty {
    fn from(error: KafkaError) -> Self {
        Self::new("offsets", &error)
    }
}
