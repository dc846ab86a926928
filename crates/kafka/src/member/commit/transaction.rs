//! The committing thread: one batch after the other, and a new producer whenever the last one is in doubt.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{Producer as _, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use super::blame::{self, CHECKPOINT, Named, Of};
use super::delivery_reports::{Context, DeliveryReports, Done, Open, Told};
use super::early::{Began, Untimely};
use super::late_hops::LateHops;
use super::{AssignmentEpoch, CommitterConfig, Delivery, Job, Late, Names, Order, Report, Shared};
use crate::client::connect::{SOCKET_TIMEOUT, close};
use crate::client::raw::{AddHeader, Outlet, ask};
use crate::cluster::BrokerClock;
use crate::member::checkpoint;
use crate::meta::CHECKPOINT_PARTITION;
use waterclock_engine::{Batch, BatchId, Blame, Commit, Destination, Refused, UnixMillis};
use waterclock_telemetry::{LaneFigures, Renewed};

/// Partitions in one call that sends offsets, at most: the broker's record of them has a limit, too.
const OFFSETS_PER_CALL: usize = 100;
/// Bytes of metadata in one such call, at most.
const OFFSETS_BYTES_PER_CALL: usize = 512 << 10;
/// `batch.size` where every target takes as much: below Kafka's own default of `max.message.bytes`.
const BATCH_BYTES_MAX: usize = 900_000;

/// How long a flush may take at the end. Only checkpoints are left then, since batches were waited for.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// Producers that take turns in `exactly_once`. After a commit the coordinator still writes its markers, and a producer
/// that begins again meanwhile is told to wait: librdkafka does so for 20 ms. The other one need not.
pub(crate) const TURNS: usize = 2;

/// Longest wait for a commit where all before it has taken `socket.timeout.ms`: its producers are not used again anyway.
const DOUBTED_COMMIT_MAX: Duration = Duration::from_secs(2);

/// Longest wait for a producer's first connection.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Longest wait for a transaction's offsets: a coordinator that stands still is asked once more, on a new connection. Another
/// client finds another one sooner.
const OFFSETS_MAX: Duration = SOCKET_TIMEOUT.saturating_add(CONNECT_MAX);
/// Longest wait for a producer to close; it takes a tenth of a second.
const CLOSE_MAX: Duration = Duration::from_secs(3);

/// Longest wait for room in the client's queue.
const ENQUEUE_MAX: Duration = Duration::from_secs(15);

type Producer = ThreadedProducer<Context>;

/// The committing thread's own state.
pub(super) struct Work {
    pub(super) setting: CommitterConfig,
    pub(super) topics: Arc<Names>,
    pub(super) clock: Arc<BrokerClock>,
    pub(super) figures: Arc<LaneFigures>,
    pub(super) shared: Arc<Shared>,
    pub(super) orders: Sender<Order>,
    pub(super) reports: Sender<Report>,
    /// Clean producers, the next to be used in front; empty after a failure, until they are made anew.
    pub(super) outlets: VecDeque<Outlet<Context>>,
    /// `batch.size` of the producers that there are.
    pub(super) batch_bytes: usize,
    pub(super) ledger: Arc<DeliveryReports>,
}

impl Work {
    pub(super) fn run(&mut self, inbox: &Receiver<Order>) {
        for order in inbox {
            match order {
                _ if self.shared.is_left() => break,
                Order::Stop => break,
                Order::Failed(detail) if !self.outlets.is_empty() => {
                    self.fail(&Dirty::produce(detail), None);
                }
                Order::Failed(_) => {}
                Order::Ready => self.make_ready(),
                Order::Batch(job) => self.batch(*job),
                Order::Checkpoint(commits, tenure) => self.checkpoint(&commits, &tenure),
            }
        }
        if let (Some(outlet), Delivery::AtLeastOnce) = (self.outlets.front(), self.setting.delivery)
            && let Err(error) = outlet.producer().flush(FLUSH_MAX)
        {
            tracing::debug!(%error, "not all checkpoints were acknowledged");
        }
        // Whatever waits for this thread waits no longer.
        self.close();
        self.shared.update(|progress| progress.open = 0);
    }

    fn batch(&mut self, job: Job) {
        let id = job.batch.id;
        // After a failure the engine starts over; what it had handed over before is void.
        if self.outlets.is_empty() {
            self.shared.update(|progress| progress.open = progress.open.saturating_sub(1));
            return;
        }
        if self.batch_bytes() != self.batch_bytes
            && let Err(dirty) = self.resize()
        {
            return self.fail(&dirty, None);
        }
        let started = Instant::now();
        let result = match self.setting.delivery {
            Delivery::ExactlyOnce => self.transaction(job),
            Delivery::AtLeastOnce => self.produce_only(job),
        };
        match result {
            Ok(Some(told)) => {
                self.figures.committed(started.elapsed());
                self.outlets.rotate_left(1);
                told.tell(&self.clock, &self.figures);
                self.shared.update(|progress| progress.open = progress.open.saturating_sub(1));
                let _ = self.reports.send(Report::Done(id, self.late(id)));
            }
            Ok(None) => {}
            Err(dirty) => self.fail(&dirty, Some(id)),
        }
    }

    /// Writes positions to `<ns>.meta` that are committed otherwise: all in `at_least_once`, and those of lanes that begin.
    /// One that does not get there is behind what was done: what it does not know of would be delivered twice, should the
    /// offsets expire before the next one.
    fn checkpoint(&mut self, commits: &[Commit], tenure: &AssignmentEpoch) {
        let Some(outlet) = self.outlets.front_mut() else { return };
        let exactly_once = self.setting.delivery == Delivery::ExactlyOnce;
        let timeout = self.setting.transaction_timeout;
        let began = Instant::now();
        let mut took = Duration::ZERO;
        let mut write = || -> Result<(), Dirty> {
            if exactly_once {
                outlet.producer().begin_transaction().map_err(|e| Dirty::new("begin", &e))?;
            }
            checkpoints(outlet, &self.topics, commits, tenure, BatchId(0))?;
            if exactly_once {
                let commit = Instant::now();
                let committed = outlet.commit(timeout);
                committed.map_err(|(_, text)| Dirty { step: "commit", ..Dirty::produce(text) })?;
                took = commit.elapsed();
            }
            Ok(())
        };
        let written = write();
        if !exactly_once {
            if let Err(dirty) = written {
                tracing::warn!(error = %dirty.detail, "could not write checkpoints");
            }
            return;
        }
        match written.and_then(|()| self.clean(began, took)) {
            Ok(()) => self.outlets.rotate_left(1),
            Err(dirty) => self.fail(&dirty, None),
        }
    }

    /// `batch.size` as it should be: what all targets in use take.
    fn batch_bytes(&self) -> usize {
        self.setting.batch_bytes.load(Ordering::SeqCst).min(BATCH_BYTES_MAX)
    }

    /// A target takes smaller batches than the producer makes, or the one that did is in use no more: a new producer.
    fn resize(&mut self) -> Result<(), Dirty> {
        tracing::info!(
            from = self.batch_bytes,
            to = self.batch_bytes(),
            "the targets in use take batches of another size, renewing the producer"
        );
        for outlet in &self.outlets {
            outlet.producer().flush(SOCKET_TIMEOUT).map_err(|e| Dirty::new("flush", &e))?;
        }
        let ledger = std::mem::take(&mut self.ledger);
        self.close();
        if ledger.failed().first.is_some() {
            let dirty = Dirty::produce("a record failed".to_owned());
            self.ledger = ledger;
            return Err(dirty);
        }
        self.make().map_err(|e| Dirty::new("init", &e))
    }

    /// Closes the producers. One that hangs is left behind: the next producer of its id fences it.
    fn close(&mut self) {
        if !close(self.outlets.drain(..), CLOSE_MAX) {
            tracing::warn!("a producer does not close, left behind");
        }
    }

    /// Drops the producer and says why; `batch`: the only one that can have failed.
    fn fail(&mut self, dirty: &Dirty, batch: Option<BatchId>) {
        if self.shared.is_left() {
            tracing::info!(step = dirty.step, error = %dirty.detail, "what was left behind has failed");
            return self.close();
        }
        self.shared.at("may_checkpoint");
        // What came too late was found out by us: no right of ours has to do with it.
        let is_ours = |blame: &Blame| matches!(blame, Blame::Late | Blame::Expired);
        let blame = dirty.blame.filter(|blame| is_ours(blame) || self.may_checkpoint());
        self.shared.at("close");
        // Before the ledger is read: a producer that is dropped hands out its last delivery reports.
        self.close();
        let ledger = std::mem::take(&mut self.ledger);
        let named = std::mem::take(&mut ledger.failed().refused);
        let doubted = std::mem::take(&mut ledger.failed().doubted);
        let refused = blame::gather(named).or_else(|| {
            let (batch, blame) = (batch?, blame?);
            Some(Refused { batch, named: Vec::new(), blame, why: dirty.detail.as_str().into() })
        });
        let is_refusal = refused
            .as_ref()
            .is_some_and(|refused| !matches!(refused.blame, Blame::Late | Blame::Expired));
        let reason = if is_refusal { Renewed::Refused } else { dirty.reason };
        tracing::warn!(
            step = dirty.step,
            reason = reason.as_str(),
            named = refused.as_ref().map_or(0, |refused| refused.named.len()),
            error = %dirty.detail,
            "batch failed, renewing the producer"
        );
        self.figures.renewed(reason);
        self.shared.update(|progress| {
            progress.open = 0;
            progress.ready = false;
            // Acknowledged records stay: the lane thread may commit them before it takes the lanes over.
        });
        let why = format!("{}: {}", dirty.step, dirty.detail);
        let _ = self.reports.send(Report::Failed { why, refused, doubted });
    }

    /// Whether we may write to `<ns>.meta`. Every transaction does, and one whose partitions cannot be added does not say
    /// which: what is wrong with a topic of our own must not be blamed on records.
    fn may_checkpoint(&self) -> bool {
        let Some(outlet) = self.outlets.front() else { return false };
        let meta = self.topics.meta.to_string();
        match ask::topics(outlet.producer().client(), &[meta], SOCKET_TIMEOUT) {
            Ok(told) => told.iter().all(|(_, rights)| {
                rights.as_ref().is_ok_and(|rights| rights.contains(&ask::Right::Write))
            }),
            Err(error) => {
                tracing::warn!(%error, "not known what is wrong with a batch");
                false
            }
        }
    }

    /// One transaction; `Ok(Some)` is told when it committed cleanly.
    fn transaction(&mut self, job: Job) -> Result<Option<Told>, Dirty> {
        let Some(outlet) = self.outlets.front_mut() else { return Ok(None) };
        let Job { batch, tenure } = job;
        let told = Told::of(&batch, self.topics.tiers_from);
        let (began, timeout) = (Instant::now(), self.setting.transaction_timeout);
        fail::fail_point!("before_begin", |_| std::process::abort());
        self.shared.at("begin");
        outlet.producer().begin_transaction().map_err(|e| Dirty::new("begin", &e))?;
        self.shared.at("produce");
        fail::fail_point!("before_produce", |_| std::process::abort());
        if let Some(hops) = &self.ledger.hops {
            hops.begin(&batch);
        }
        self.ledger.early().begin(&batch, Began::new(&self.clock));
        produce(outlet, &self.topics, &batch, &self.ledger, self.clock.now(began))?;
        checkpoints(outlet, &self.topics, &batch.commits, &tenure, batch.id)?;
        fail::fail_point!("after_produce", |_| std::process::abort());
        self.shared.at("send_offsets");
        for chunk in chunks(&batch.commits) {
            let offsets = offsets_of(chunk, &self.topics.lanes)?;
            outlet
                .producer()
                .send_offsets_to_transaction(&offsets, &tenure.group, timeout.min(OFFSETS_MAX))
                .map_err(|e| Dirty::new("send_offsets", &e))?;
        }
        fail::fail_point!("after_send_offsets", |_| std::process::abort());
        self.shared.at("flush");
        // The commit reports a failure, as it waits for the same records.
        outlet.flush(timeout);
        let (shown, untimely) = self.ledger.early().take(self.clock.now(Instant::now()));
        shown.iter().for_each(|append| append.tell(&self.clock));
        let aborted = |reason, blame, detail| Err(Dirty { step: "commit", reason, blame, detail });
        match untimely {
            Some(Untimely::Early(detail)) => {
                self.clock.doubt();
                return aborted(Renewed::Early, None, detail);
            }
            Some(Untimely::Expired(detail)) => {
                return aborted(Renewed::Expired, Some(Blame::Expired), detail);
            }
            None => {}
        }
        if let Some(detail) = self.ledger.hops.as_ref().and_then(LateHops::refused) {
            return aborted(Renewed::Late, Some(Blame::Late), detail);
        }
        self.shared.at("commit");
        let commit = Instant::now();
        fail::fail_point!("commit_hangs");
        fail::fail_point!("before_commit", |_| std::process::abort());
        // Its coordinator may be what stands still; others find a new one.
        let most = if began.elapsed() < SOCKET_TIMEOUT { timeout } else { DOUBTED_COMMIT_MAX };
        outlet.commit(most).map_err(|(code, text)| Dirty {
            step: "commit",
            reason: Renewed::Unknown,
            blame: blame::of_transaction(code, &text),
            detail: self.why(text),
        })?;
        fail::fail_point!("after_commit", |_| std::process::abort());
        self.ledger.count_timers(&self.setting.written);
        self.clean(began, commit.elapsed())?;
        Ok(Some(told))
    }

    /// Whether a transaction whose commit said OK was clean: none of its requests, neither the commit nor its offsets,
    /// was sent again while the first one may still be on its way. librdkafka sends a request again after
    /// `socket.timeout.ms`, without an error, and when a connection has ended.
    fn clean(&self, began: Instant, commit: Duration) -> Result<(), Dirty> {
        if keeps_dirty_producers() {
            return Ok(());
        }
        let dirty = |reason, detail| Err(Dirty { step: "commit", reason, blame: None, detail });
        if commit > SOCKET_TIMEOUT / 2 {
            return dirty(Renewed::Slow, format!("the commit took {commit:?}"));
        }
        let took = began.elapsed();
        if took >= SOCKET_TIMEOUT {
            return dirty(Renewed::Slow, format!("the transaction took {took:?}"));
        }
        // Since the producer was made: of a second one at the same broker within 30 s librdkafka says nothing.
        if self.ledger.lost.load(Ordering::SeqCst) > 0 {
            return dirty(Renewed::Disconnected, "a connection to a broker ended".to_owned());
        }
        Ok(())
    }

    /// What went wrong, with the first record that failed if one is known.
    fn why(&self, error: String) -> String {
        match self.ledger.failed().first.take() {
            Some(failed) => format!("{error}; {failed}"),
            None => error,
        }
    }

    /// Hands the batch to the producer; its delivery reports finish it.
    fn produce_only(&mut self, job: Job) -> Result<Option<Told>, Dirty> {
        let Some(outlet) = self.outlets.front_mut() else { return Ok(None) };
        let batch = job.batch;
        let told = Told::of(&batch, self.topics.tiers_from);
        let (left, commits) = (batch.sends.len(), batch.commits.clone());
        let open = Open { id: batch.id, left, commits, told, began: Began::new(&self.clock) };
        self.ledger.batches.lock().push_back(open);
        if let Some(hops) = &self.ledger.hops {
            hops.begin(&batch);
        }
        let at = self.clock.now(Instant::now());
        fail::fail_point!("before_produce", |_| std::process::abort());
        produce(outlet, &self.topics, &batch, &self.ledger, at)?;
        fail::fail_point!("after_produce", |_| std::process::abort());
        if batch.sends.is_empty() {
            // Nothing will be acknowledged: look whether it is at the front now.
            let mut batches = self.ledger.batches.lock();
            self.done().finish(&mut batches, self.ledger.hops.as_ref());
        }
        Ok(None)
    }

    fn late(&self, batch: BatchId) -> Vec<Late> {
        self.ledger.hops.as_ref().map_or_else(Vec::new, |hops| hops.take(batch))
    }

    fn done(&self) -> Done {
        Done {
            orders: self.orders.clone(),
            shared: Arc::clone(&self.shared),
            reports: self.reports.clone(),
            clock: Arc::clone(&self.clock),
            figures: Arc::clone(&self.figures),
            written: Arc::clone(&self.setting.written),
        }
    }

    fn make_ready(&mut self) {
        if !self.outlets.is_empty() {
            return self.shared.update(|progress| progress.ready = true);
        }
        match self.make() {
            Ok(()) => self.shared.update(|progress| progress.ready = true),
            Err(error) => {
                self.close();
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

    /// New producers; with a transactional id each fences the one before and decides what that left open.
    fn make(&mut self) -> Result<(), KafkaError> {
        self.shared.at("init");
        let refuses = self.setting.delivery == Delivery::ExactlyOnce;
        let hops = LateHops::new(Arc::clone(&self.setting.setup), refuses);
        self.ledger = Arc::new(DeliveryReports::new(Some(hops)));
        self.batch_bytes = self.batch_bytes();
        let turns = if self.setting.delivery == Delivery::ExactlyOnce { TURNS } else { 1 };
        for turn in 0..turns {
            let outlet = self.make_one(&format!("{}/{turn}", self.setting.transactional_id))?;
            self.outlets.push_back(outlet);
        }
        // These producers may have fenced the thread that commits now. That thread makes new ones, and these do
        // nothing.
        if self.shared.is_left() { Err(KafkaError::Canceled) } else { Ok(()) }
    }

    fn make_one(&self, transactional_id: &str) -> Result<Outlet<Context>, KafkaError> {
        let exactly_once = self.setting.delivery == Delivery::ExactlyOnce;
        let mut config = self.setting.connection.client(transactional_id);
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
            .set("message.timeout.ms", &timeout_ms)
            // In a transaction, records wait for its partitions to be added: that fills the batches.
            .set("linger.ms", "0");
        if exactly_once {
            config
                .set("transactional.id", transactional_id)
                .set("transaction.timeout.ms", &timeout_ms);
        }
        // Ends of connections are told at this level, however little of it is shown.
        if (config.log_level as i32) < RDKafkaLogLevel::Info as i32 {
            config.set_log_level(RDKafkaLogLevel::Info);
        }
        let done = (!exactly_once).then(|| self.done());
        let context = Context { ledger: Arc::clone(&self.ledger), done };
        let producer: Producer = config.create_with_context(context)?;
        if exactly_once {
            // A client without a connection looks for its coordinator every half second only; any question makes one first.
            if let Err(error) = ask::controller(producer.client(), CONNECT_MAX) {
                tracing::debug!(%error, "a new producer is not connected yet");
            }
            producer
                .init_transactions(self.setting.transaction_timeout + Duration::from_secs(15))?;
        }
        Ok(Outlet::new(producer))
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
    /// What the failure may be due to, if no record was named.
    blame: Option<Blame>,
    detail: String,
}

impl Dirty {
    fn new(step: &'static str, error: &KafkaError) -> Self {
        let fenced = matches!(
            error.rdkafka_error_code(),
            Some(RDKafkaErrorCode::Fenced | RDKafkaErrorCode::ProducerFenced)
        );
        let reason = if fenced { Renewed::Fenced } else { Renewed::Aborted };
        let detail = error.to_string();
        let code = error.rdkafka_error_code();
        Self {
            step,
            reason,
            blame: code.and_then(|code| blame::of_transaction(code, &detail)),
            detail,
        }
    }

    /// A record was refused, or could not be handed over: the ledger knows which.
    fn produce(detail: String) -> Self {
        Self { step: "produce", reason: Renewed::Aborted, blame: None, detail }
    }
}

/// Enqueues every record of a batch. They have the brokers' time: a target that keeps its writers' times refuses those of a
/// clock that is an hour off.
fn produce(
    outlet: &mut Outlet<Context>,
    topics: &Names,
    batch: &Batch,
    ledger: &DeliveryReports,
    at_time: Option<UnixMillis>,
) -> Result<(), Dirty> {
    let deadline = Instant::now() + ENQUEUE_MAX;
    for (at, send) in batch.sends.iter().enumerate() {
        let topic = topics.of(&send.to);
        let opaque = Of { batch: batch.id, at, is_timer: send.to == Destination::Timers }.opaque();
        let enqueued = enqueue(deadline, || {
            let headers = |add: &mut AddHeader<'_>| send.headers(add);
            outlet.produce(topic, send.partition, at_time, send.body(), headers, opaque)
        });
        if let Err(error) = enqueued {
            let detail = format!("{topic}: {error}");
            if let Some(blame) = error.rdkafka_error_code().and_then(blame::blame) {
                let why = detail.as_str().into();
                ledger.failed().refused.push(Named { batch: batch.id, at, blame, why });
            }
            return Err(Dirty::produce(detail));
        }
    }
    Ok(())
}

/// Enqueues the checkpoints of these positions.
fn checkpoints(
    outlet: &mut Outlet<Context>,
    topics: &Names,
    commits: &[Commit],
    tenure: &AssignmentEpoch,
    batch: BatchId,
) -> Result<(), Dirty> {
    fail::fail_point!("no_checkpoints", |_| Ok(()));
    let deadline = Instant::now() + ENQUEUE_MAX;
    let opaque = Of { batch, at: CHECKPOINT, is_timer: false }.opaque();
    for commit in commits {
        let topic = usize::from(commit.source.topic.0);
        let Some(id) = tenure.ids.get(topic) else { continue };
        let record = checkpoint::record(&topics.lanes[topic], id, commit);
        let partition = Some(CHECKPOINT_PARTITION);
        enqueue(deadline, || {
            outlet.produce(&topics.meta, partition, None, &record, |_| {}, opaque)
        })
        .map_err(|error| Dirty::produce(format!("{}: {error}", topics.meta)))?;
    }
    Ok(())
}

/// Waits while the client's queue is full.
fn enqueue(
    deadline: Instant,
    mut produce: impl FnMut() -> Result<(), KafkaError>,
) -> Result<(), KafkaError> {
    loop {
        match produce() {
            Err(error)
                if error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull)
                    && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            enqueued => return enqueued,
        }
    }
}

/// Positions in the pieces that one call may carry.
pub(crate) fn chunks(commits: &[Commit]) -> impl Iterator<Item = &[Commit]> {
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
pub(crate) fn offsets_of(
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
