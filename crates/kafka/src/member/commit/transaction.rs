//! The committing thread: one batch after the other, and a new producer whenever the last one is in doubt.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::producer::{Producer as _, PurgeConfig};
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use super::delivery_reports::{Context, DeliveryReports, Done, Open};
use super::error_class::{broken, class, class_of};
use super::place::{CHECKPOINT, Of};
use super::{
    AssignmentEpoch, BatchOwner, CommitterConfig, Delivery, Job, OnDone, Report, Request, Shared,
};
use crate::client::connect::{SOCKET_TIMEOUT, close};
use crate::client::errors::{self, ErrorKind};
use crate::client::events::Events;
use crate::client::outages::Bootstrap;
use crate::client::raw::{AddHeader, TopicProducer, ask};
use crate::cluster::BrokerClock;
use crate::member::checkpoint;
use crate::meta::CHECKPOINT_PARTITION;
use waterclock_engine::member::{
    Broken, Course, Dirty, ErrorClass, Failed, LateHop, Patience, Step, Untimely,
};
use waterclock_engine::{Batch, BatchId, Commit, UnixMillis};

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

/// Longest wait for a producer's first connection.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Longest wait for the answers to what was sent beside a record that a broker has refused.
const ANSWERS_MAX: Duration = Duration::from_millis(500);
/// Longest wait for a producer to close; it takes a tenth of a second.
const CLOSE_MAX: Duration = Duration::from_secs(3);

/// How long a batch waits until its producer knows the partitions that were added to its targets.
const HEARD_MAX: Duration = Duration::from_secs(2);
/// Longest wait for room in the client's queue.
const ENQUEUE_MAX: Duration = Duration::from_secs(15);

/// The committing thread's own state.
pub(super) struct CommitLoop {
    pub(super) setting: CommitterConfig,
    pub(super) owner: Arc<dyn BatchOwner>,
    pub(super) clock: Arc<BrokerClock>,
    pub(super) shared: Arc<Shared>,
    pub(super) requests: Sender<Request>,
    pub(super) reports: Sender<Report>,
    /// Clean producers, the next to be used in front; empty after a failure, until they are created again.
    pub(super) producers: VecDeque<TopicProducer<Context>>,
    /// `batch.size` of the producers that there are.
    pub(super) batch_bytes: usize,
    pub(super) delivery_reports: Arc<DeliveryReports>,
    pub(super) bootstrap: Bootstrap,
}

impl CommitLoop {
    pub(super) fn run(&mut self, inbox: &Receiver<Request>) {
        for request in inbox {
            match request {
                _ if self.shared.is_abandoned() => break,
                Request::Stop => break,
                Request::Failed(detail) if !self.producers.is_empty() => {
                    self.fail(&Dirty::not_written(Step::Produce, detail), None);
                }
                Request::Failed(_) => {}
                Request::Ready => self.make_ready(),
                Request::Batch(job) => self.batch(*job),
                Request::Checkpoint(commits, epoch) => self.checkpoint(&commits, &epoch),
            }
        }
        if let (Some(producer), Delivery::AtLeastOnce) =
            (self.producers.front(), self.setting.delivery)
            && let Err(error) = producer.inner().flush(FLUSH_MAX)
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
        if self.producers.is_empty() {
            self.shared.update(|progress| progress.open = progress.open.saturating_sub(1));
            return;
        }
        if self.batch_bytes() != self.batch_bytes
            && let Err(dirty) = self.resize()
        {
            return self.fail(&dirty, None);
        }
        let producers = self.producers.iter().map(|producer| producer.inner().client());
        self.bootstrap.all_after_outage(producers);
        let started = Instant::now();
        let result = match self.setting.delivery {
            Delivery::ExactlyOnce => self.transaction(job),
            Delivery::AtLeastOnce => self.produce_only(job),
        };
        match result {
            Ok(Some(on_done)) => {
                self.owner.committed(started.elapsed());
                self.producers.rotate_left(1);
                on_done(self.clock.now(Instant::now()).unwrap_or_default());
                self.shared.update(|progress| progress.open = progress.open.saturating_sub(1));
                let late: Vec<LateHop> = self.delivery_reports.appends().end(id);
                let _ = self.reports.send(Report::Done(id, late));
            }
            Ok(None) => {}
            Err(dirty) => self.fail(&dirty, Some(id)),
        }
    }

    /// Writes positions to `<ns>.meta` that are committed otherwise: all in `at_least_once`, and those of lanes that begin.
    /// One that does not get there is behind what was done: what it does not know of would be delivered twice, should the
    /// offsets expire before the next one.
    fn checkpoint(&mut self, commits: &[Commit], epoch: &AssignmentEpoch) {
        let Some(producer) = self.producers.front_mut() else { return };
        let exactly_once = self.setting.delivery == Delivery::ExactlyOnce;
        let timeout = self.setting.transaction_timeout;
        let began = Instant::now();
        let mut took = Duration::ZERO;
        let mut write = || -> Result<(), Dirty> {
            if exactly_once {
                producer.inner().begin_transaction().map_err(|e| failed(Step::Begin, &e))?;
            }
            checkpoints(producer, &*self.owner, commits, epoch, BatchId(0))?;
            if exactly_once {
                let commit = Instant::now();
                let committed = producer.commit(timeout);
                committed.map_err(|(_, text)| Dirty::not_written(Step::Commit, text))?;
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
            Ok(()) => self.producers.rotate_left(1),
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
        for producer in &self.producers {
            producer.inner().flush(SOCKET_TIMEOUT).map_err(|e| failed(Step::Flush, &e))?;
        }
        self.close();
        if self.delivery_reports.failures().any() {
            return Err(Dirty::not_written(Step::Produce, "a record failed".to_owned()));
        }
        self.make().map_err(|e| failed(Step::Init, &e))
    }

    /// Closes the producers. One that hangs is abandoned: the next producer of its id fences it.
    fn close(&mut self) {
        if !close(self.producers.drain(..), CLOSE_MAX) {
            tracing::warn!("a producer does not close and is abandoned");
        }
    }

    /// Drops the producer and says why; `batch`: the only one that can have failed.
    fn fail(&mut self, dirty: &Dirty, batch: Option<BatchId>) {
        let step = dirty.step.as_str();
        if self.shared.is_abandoned() {
            tracing::info!(step, error = %dirty.detail, "an abandoned committer came back, and its batch has failed, as it should");
            return self.close();
        }
        self.shared.at("may_checkpoint");
        let may_write = !dirty.must_ask_for_rights() || self.may_checkpoint();
        self.wait_for_answers();
        self.shared.at("close");
        // Before the delivery reports are read: a producer that is dropped hands out its last delivery reports.
        self.close();
        let acknowledged = self.delivery_reports.acknowledged();
        let Failed { reason, refused, doubted } =
            dirty.to_failure(batch, may_write, &mut self.delivery_reports.failures());
        let label = waterclock_telemetry::reason_of(reason);
        tracing::warn!(
            step,
            reason = label,
            named = refused.as_ref().map_or(0, |refused| refused.named.len()),
            acknowledged = acknowledged.len(),
            error = %dirty.detail,
            "batch failed, renewing the producer"
        );
        self.owner.renewed(reason);
        self.shared.update(|progress| {
            progress.open = 0;
            progress.ready = false;
            // Acknowledged records stay: the lane thread may commit them before it takes the lanes over.
        });
        let why = format!("{step}: {}", dirty.detail);
        let _ = self.reports.send(Report::Failed { why, refused, doubted, acknowledged });
    }

    /// A broker refused something, and nothing is aborted (`at_least_once`): what was sent besides may be written, and its answer
    /// is a moment away. What was not sent stays unsent.
    fn wait_for_answers(&self) {
        let is_refused = self.delivery_reports.failures().is_any_refused();
        if let (Some(producer), Delivery::AtLeastOnce, true) =
            (self.producers.front(), self.setting.delivery, is_refused)
        {
            self.shared.at("answers");
            producer.inner().purge(PurgeConfig::default().queue());
            producer.flush(ANSWERS_MAX);
        }
    }

    /// Whether we may write checkpoints. Every transaction does, and one whose partitions cannot be added does not say
    /// which: what is wrong with a topic of our own must not be blamed on records.
    fn may_checkpoint(&self) -> bool {
        let Some(producer) = self.producers.front() else { return false };
        let Some(topic) = &self.owner.topics().checkpoints else { return true };
        match ask::topics(producer.inner().client(), &[topic.to_string()], SOCKET_TIMEOUT) {
            Ok(told) => told.iter().all(|(_, rights)| {
                rights.as_ref().is_ok_and(|rights| rights.contains(&ask::Right::Write))
            }),
            Err(error) => {
                tracing::warn!(%error, "a batch failed, and Kafka did not say whether checkpoints may be written: no record is blamed");
                false
            }
        }
    }

    /// One transaction; `Ok(Some)` is told when it committed cleanly.
    fn transaction(&mut self, job: Job) -> Result<Option<OnDone>, Dirty> {
        let Some(producer) = self.producers.front_mut() else { return Ok(None) };
        let Job { batch, epoch } = job;
        let on_done = self.owner.on_done(&batch);
        let (began, patience) = (Instant::now(), patience(&self.setting));
        fail::fail_point!("before_begin", |_| std::process::abort());
        self.shared.at("begin");
        producer.inner().begin_transaction().map_err(|e| failed(Step::Begin, &e))?;
        self.shared.at("produce");
        fail::fail_point!("before_produce", |_| std::process::abort());
        self.delivery_reports.begin(&batch, &*self.owner, &self.clock);
        produce(producer, &*self.owner, &batch, &self.delivery_reports, self.clock.now(began))?;
        checkpoints(producer, &*self.owner, &batch.commits, &epoch, batch.id)?;
        fail::fail_point!("after_produce", |_| std::process::abort());
        self.shared.at("send_offsets");
        for chunk in chunks(&batch.commits) {
            let offsets = offsets_of(chunk, &self.owner.topics().names)
                .map_err(|e| failed(Step::SendOffsets, &e))?;
            producer
                .inner()
                .send_offsets_to_transaction(&offsets, &epoch.group, patience.for_offsets())
                .map_err(|e| failed(Step::SendOffsets, &e))?;
        }
        fail::fail_point!("after_send_offsets", |_| std::process::abort());
        self.shared.at("flush");
        // The commit reports a failure, as it waits for the same records.
        producer.flush(patience.transaction_timeout);
        let verdict =
            self.delivery_reports.appends().before_commit(batch.id, self.clock.now(Instant::now()));
        if let Err(untimely) = verdict {
            if matches!(untimely, Untimely::Early(_)) {
                self.clock.doubt();
            }
            return Err(Dirty::untimely(untimely));
        }
        self.shared.at("commit");
        let commit = Instant::now();
        fail::fail_point!("commit_hangs");
        fail::fail_point!("before_commit", |_| std::process::abort());
        producer.commit(patience.for_commit(began.elapsed())).map_err(|(code, text)| {
            Dirty::broken(Step::Commit, self.with_first(broken(class_of(code), text)))
        })?;
        fail::fail_point!("after_commit", |_| std::process::abort());
        self.delivery_reports.tell_followed(&*self.owner);
        self.clean(began, commit.elapsed())?;
        Ok(Some(on_done))
    }

    /// Whether a transaction whose commit said OK was clean.
    fn clean(&self, began: Instant, commit: Duration) -> Result<(), Dirty> {
        if keeps_dirty_producers() {
            return Ok(());
        }
        let disconnected = self.delivery_reports.lost.load(Ordering::SeqCst) > 0;
        Course { took: began.elapsed(), commit, disconnected }.clean(patience(&self.setting))
    }

    /// What went wrong, with the first record that failed if one is known.
    fn with_first(&self, broken: Broken) -> Broken {
        match self.delivery_reports.failures().take_first() {
            Some(first) => Broken { detail: format!("{}; {first}", broken.detail), ..broken },
            None => broken,
        }
    }

    /// Hands the batch to the producer; its delivery reports finish it.
    fn produce_only(&mut self, job: Job) -> Result<Option<OnDone>, Dirty> {
        let Some(producer) = self.producers.front_mut() else { return Ok(None) };
        let batch = job.batch;
        let on_done = self.owner.on_done(&batch);
        let (sends, commits) = (batch.sends.len(), batch.commits.clone());
        let acknowledged = Vec::with_capacity(sends);
        let open = Open { id: batch.id, sends, acknowledged, commits, on_done };
        self.delivery_reports.batches.lock().push_back(open);
        self.delivery_reports.begin(&batch, &*self.owner, &self.clock);
        let at = self.clock.now(Instant::now());
        fail::fail_point!("before_produce", |_| std::process::abort());
        produce(producer, &*self.owner, &batch, &self.delivery_reports, at)?;
        fail::fail_point!("after_produce", |_| std::process::abort());
        if batch.sends.is_empty() {
            // Nothing will be acknowledged: look whether it is at the front now.
            let mut batches = self.delivery_reports.batches.lock();
            self.done().finish(&mut batches, &self.delivery_reports);
        }
        Ok(None)
    }

    fn done(&self) -> Done {
        Done {
            requests: self.requests.clone(),
            shared: Arc::clone(&self.shared),
            reports: self.reports.clone(),
            clock: Arc::clone(&self.clock),
            owner: Arc::clone(&self.owner),
        }
    }

    fn make_ready(&mut self) {
        if !self.producers.is_empty() {
            return self.shared.update(|progress| progress.ready = true);
        }
        match self.make() {
            Ok(()) => self.shared.update(|progress| progress.ready = true),
            Err(error) => {
                self.close();
                let fatal = class(&error) == ErrorClass::NeverAllowed;
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
        let aborts = self.setting.delivery == Delivery::ExactlyOnce;
        self.delivery_reports = Arc::new(DeliveryReports::new(aborts));
        self.batch_bytes = self.batch_bytes();
        let turns = if self.setting.delivery == Delivery::ExactlyOnce { TURNS } else { 1 };
        // Those that are created again have another thread: the one before may hang with them.
        let events = Events::start("wc-reports")?;
        for turn in 0..turns {
            let producer =
                self.make_one(&events, &format!("{}/{turn}", self.setting.transactional_id))?;
            self.producers.push_back(producer);
        }
        // These producers may have fenced the thread that commits now. That thread makes new ones, and these do
        // nothing.
        if self.shared.is_abandoned() { Err(KafkaError::Canceled) } else { Ok(()) }
    }

    fn make_one(
        &self,
        events: &Events,
        transactional_id: &str,
    ) -> Result<TopicProducer<Context>, KafkaError> {
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
        let (delivery_reports, clock) =
            (Arc::clone(&self.delivery_reports), Arc::clone(&self.clock));
        let context = Context { delivery_reports, clock, done };
        let producer = events.producer(&config, context)?;
        if exactly_once {
            // A client without a connection looks for its coordinator every half second only; any question makes one first.
            if let Err(error) = ask::reach(producer.client(), CONNECT_MAX) {
                tracing::debug!(%error, "a new producer is not connected yet");
            }
            producer
                .init_transactions(self.setting.transaction_timeout + Duration::from_secs(15))?;
        }
        Ok(TopicProducer::new(producer))
    }
}

/// For the test that shows what happens without invariant 2 of the committer.
fn keeps_dirty_producers() -> bool {
    fail::fail_point!("keep_dirty_producer", |_| true);
    false
}

pub(super) fn patience(setting: &CommitterConfig) -> Patience {
    let transaction_timeout = setting.transaction_timeout;
    Patience { socket_timeout: SOCKET_TIMEOUT, transaction_timeout }
}

/// A call of the client has failed.
fn failed(step: Step, error: &KafkaError) -> Dirty {
    Dirty::broken(step, broken(class(error), error.to_string()))
}

/// Enqueues every record of a batch. They have the brokers' time: a target that keeps its writers' times refuses those of a
/// clock that is an hour off.
fn produce(
    producer: &mut TopicProducer<Context>,
    owner: &dyn BatchOwner,
    batch: &Batch,
    delivery_reports: &DeliveryReports,
    at_time: Option<UnixMillis>,
) -> Result<(), Dirty> {
    let deadline = Instant::now() + ENQUEUE_MAX;
    let mut heard_by = None;
    for (at, send) in batch.sends.iter().enumerate() {
        let topic = owner.topic(&send.to);
        let place = (batch.id, at);
        let opaque = Of { batch: batch.id, at, is_followed: owner.is_followed(send) }.opaque();
        let enqueued = loop {
            let enqueued = enqueue(deadline, || {
                let headers = |add: &mut AddHeader<'_>| send.headers(add);
                producer.produce(topic, send.partition, at_time, send.body(), headers, opaque)
            });
            let is_new = enqueued.as_ref().is_err_and(errors::is_partition_unknown);
            if !is_new {
                break enqueued;
            }
            let by = *heard_by.get_or_insert_with(|| Instant::now() + HEARD_MAX);
            if !hears_of(producer, topic, by) {
                break enqueued;
            }
        };
        if let Err(error) = enqueued {
            let detail = format!("{topic}: {error}");
            delivery_reports.failures().refuse(place, class(&error), &detail);
            return Err(Dirty::not_written(Step::Produce, detail));
        }
    }
    Ok(())
}

/// The engine has seen a partition that this client does not know: the target has gained it. Has the client ask for the
/// topic's partitions again; false: the time for that is over.
fn hears_of(producer: &TopicProducer<Context>, topic: &str, by: Instant) -> bool {
    let left = by.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return false;
    }
    if let Err(error) = producer.inner().client().fetch_metadata(Some(topic), left) {
        tracing::debug!(%error, topic, "no answer about a partition that was added");
    }
    // The broker that answers may not have heard of it either.
    std::thread::sleep(Duration::from_millis(1));
    true
}

/// Enqueues the checkpoints of these positions.
fn checkpoints(
    producer: &mut TopicProducer<Context>,
    owner: &dyn BatchOwner,
    commits: &[Commit],
    epoch: &AssignmentEpoch,
    batch: BatchId,
) -> Result<(), Dirty> {
    fail::fail_point!("no_checkpoints", |_| Ok(()));
    let deadline = Instant::now() + ENQUEUE_MAX;
    let Some(meta) = &owner.topics().checkpoints else { return Ok(()) };
    let opaque = Of { batch, at: CHECKPOINT, is_followed: false }.opaque();
    for commit in commits {
        let topic = usize::from(commit.source.topic.0);
        let Some(id) = epoch.ids.get(topic) else { continue };
        let record = checkpoint::record(&owner.topics().names[topic], id, commit);
        let partition = Some(CHECKPOINT_PARTITION);
        enqueue(deadline, || producer.produce(meta, partition, None, &record, |_| {}, opaque))
            .map_err(|error| Dirty::not_written(Step::Produce, format!("{meta}: {error}")))?;
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
                if errors::kind(&error) == ErrorKind::QueueFull && Instant::now() < deadline =>
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
