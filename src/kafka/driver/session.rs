//! One membership of the group, from joining to leaving.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerGroupMetadata};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use super::{Error, Plan, Shared, Status};
use crate::engine::{
    BatchId, Commit, Engine, Figures, Input, Lane, Offset, Output, Source, UnixMillis,
};
use crate::kafka::committer::{Committer, Delivery, Names, Report, Setting};
use crate::kafka::raw;
use crate::kafka::rebalance::{Context, Event, Taken, Who};
use crate::kafka::targets::Answer;
use crate::telemetry::{LaneFigures, LaneLevels};

/// The longest wait in one poll: a rebalance, a stop and the figures are noticed within it.
const POLL_MAX: Duration = Duration::from_millis(100);
/// The wait while an answer from another thread is awaited, which does not wake a poll. Up to this long it is the
/// answers that are waited for, since they come sooner than a poll returns, and end to the microsecond.
const POLL_SHORT: Duration = Duration::from_millis(1);
/// Records read in one turn, at most: about two milliseconds' work.
const TURN_MAX: usize = 2_000;
/// Positions are committed this often in `at_least_once`.
const COMMIT_EVERY: Duration = Duration::from_millis(500);
/// What is done is deleted from own topics this often.
const TRIM_EVERY: Duration = Duration::from_secs(30);
/// Gauges are told this often.
const FIGURES_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked whether intakes are read to where they ended when their lanes were taken over.
const LOOK_AT_INTAKES: Duration = Duration::from_millis(5);
/// The same for tiers, for which nothing waits.
const LOOK_AT_TIERS: Duration = Duration::from_secs(1);
/// An intake that is not read to there for longer is told of this often.
const SAY_BEHIND: Duration = Duration::from_secs(10);
/// How long a heartbeat may take to say that the lanes are another's.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long leaving the group and closing is waited for: together with the drain (8 s), a stop takes less than 10 s.
const CLOSE_MAX: Duration = Duration::from_millis(1_500);

type Consumer = BaseConsumer<Context>;

/// A group membership, from joining to leaving.
pub(super) struct Session<'a> {
    plan: &'a Plan,
    shared: &'a Shared,
    figures: &'a Arc<LaneFigures>,
    status: &'a Status,
    committer: Arc<Committer>,
    consumer: Consumer,
    engine: Engine,
    levels: LaneLevels,
    /// What the metrics have been told of.
    counted: Figures,
    /// The group's metadata of the assignment in force.
    group: Option<Arc<ConsumerGroupMetadata>>,
    answers: (Sender<Answer>, Receiver<Answer>),
    /// Partitions that are not known to be read to where they ended when they were taken over.
    behind: Behind,
    /// Lookups on their way.
    asked: usize,
    /// Batches on their way, with the low watermarks that they commit.
    flying: VecDeque<(BatchId, Vec<(Source, Offset)>)>,
    /// Low watermarks committed since the last trim.
    lows: BTreeMap<Source, Offset>,
    /// A batch failed: take the lanes over anew, not before this.
    retake: Option<Instant>,
    out: Vec<Output>,
    /// Which change of the policies the engine has been told.
    policies: u64,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        shared: &'a Shared,
        figures: &'a Arc<LaneFigures>,
        status: &'a Status,
    ) -> Result<Self, Error> {
        let slot = format!("waterclock/{}/{}/", plan.instance, plan.thread);
        let client_id = format!("{slot}{}", plan.boot);
        let setting = Setting {
            connection: plan.connection.clone(),
            transactional_id: format!("{}/{}/{}", plan.namespace, plan.instance, plan.thread),
            transaction_timeout: plan.transaction_timeout,
            delivery: plan.delivery,
            batch_bytes: Arc::clone(shared.lookup.record_bytes_least()),
            written: Arc::clone(&shared.written),
        };
        let names = Arc::new(Names::new(&plan.setup.topics));
        let committer =
            Committer::start(setting, names, Arc::clone(&shared.clock), Arc::clone(figures))
                .map_err(|e| Error::Client { what: "producer thread", source: Box::new(e) })?;
        let committer = Arc::new(committer);
        let who = Who {
            group: plan.namespace.clone(),
            instance: plan.instance.clone(),
            client_id: client_id.clone(),
            slot,
            lanes: plan.setup.topics.names().to_vec(),
            embedded: plan.embedded,
        };
        let failed = |e: KafkaError| Error::Client { what: "consumer", source: Box::new(e) };
        let context = Context::new(
            who,
            Arc::clone(&committer),
            shared.ends.clone(),
            Arc::clone(&shared.timers),
        );
        let consumer: Consumer =
            settings(plan, &client_id).create_with_context(context).map_err(failed)?;
        let names: Vec<&str> = plan.setup.topics.names().iter().map(|name| &**name).collect();
        consumer.subscribe(&names).map_err(failed)?;
        let (policies, setup) = shared.policies.now();
        Ok(Self {
            plan,
            shared,
            figures,
            status,
            committer,
            consumer,
            levels: LaneLevels::new(plan.thread, setup.limits.memory_bytes as u64),
            engine: Engine::new(setup),
            policies,
            counted: Figures::default(),
            group: None,
            answers: crossbeam_channel::unbounded(),
            behind: Behind::default(),
            asked: 0,
            flying: VecDeque::new(),
            lows: BTreeMap::new(),
            retake: None,
            out: Vec::new(),
        })
    }

    fn now(&self) -> UnixMillis {
        // The process waits for the first probe before it starts its lanes, so there is one.
        self.shared.clock.now(Instant::now()).unwrap_or_default()
    }

    pub(super) fn run(mut self) -> Result<(), Error> {
        let result = self.serve();
        self.leave();
        result
    }

    fn serve(&mut self) -> Result<(), Error> {
        let mut stop_by = None;
        let (mut committed, mut trimmed, mut told) =
            (Instant::now(), Instant::now(), Instant::now());
        loop {
            if stop_by.is_none() && self.shared.stop.load(Ordering::Relaxed) {
                stop_by = Some(Instant::now() + self.shared.drain);
                self.step(Input::Drain);
            }
            if let Some(by) = stop_by
                && (self.engine.is_drained() || Instant::now() > by)
            {
                break;
            }
            self.turn()?;
            self.status.beat();
            let at = Instant::now();
            if self.plan.delivery == Delivery::AtLeastOnce && at - committed >= COMMIT_EVERY {
                committed = at;
                self.consumer.context().commit(&self.consumer, CommitMode::Async);
            }
            if at - trimmed >= TRIM_EVERY {
                trimmed = at;
                self.trim();
            }
            if at - told >= FIGURES_EVERY {
                told = at;
                let figures = self.engine.figures();
                if figures.waiting > 0 {
                    self.shared.clock.want();
                }
                self.tell(figures);
                self.status.own(self.engine.lanes());
            }
        }
        Ok(())
    }

    /// Tells the metrics what is held, and what was counted since the last time.
    fn tell(&mut self, figures: Figures) {
        self.levels.pending.set(figures.waiting as u64);
        self.levels.memory_bytes.set(figures.memory_bytes as u64);
        self.levels.lanes.set(figures.lanes as u64);
        self.levels.paused.set(figures.paused as u64);
        self.levels.cancels.set(figures.remembered as u64);
        self.levels.gated.set(figures.gated as u64);
        self.levels.window(figures.window_permille);
        self.figures.lost(figures.lost - self.counted.lost);
        self.figures.spilled(figures.spilled - self.counted.spilled);
        self.figures.unreadable(figures.unreadable - self.counted.unreadable);
        self.levels.suspects.set(figures.suspects as u64);
        self.figures.halved(figures.halvings - self.counted.halvings);
        self.counted = figures;
        if self.status.asks_for_reads() {
            self.status.tell_reads(self.engine.standings().collect());
        }
    }

    /// One turn: read, tell, order.
    fn turn(&mut self) -> Result<(), Error> {
        let mut timeout = self.patience();
        if timeout <= POLL_SHORT {
            self.await_answers(timeout);
            timeout = Duration::ZERO;
        }
        for _ in 0..TURN_MAX {
            let polled =
                self.consumer.poll(timeout).map(|polled| polled.map(|message| self.own(&message)));
            timeout = Duration::ZERO;
            self.events()?;
            match polled {
                None => break,
                Some(Ok(Some(record))) => self.step(record),
                Some(Ok(None)) => {}
                Some(Err(error)) => self.read_failed(error)?,
            }
        }
        while let Ok(report) = self.committer.reports().try_recv() {
            self.report(report);
        }
        while let Ok(answer) = self.answers.1.try_recv() {
            self.answer(answer);
        }
        if let Some((change, setup)) = self.shared.policies.since(self.policies) {
            self.policies = change;
            self.step(Input::Policies(setup));
        }
        if self.retake.is_some_and(|at| at <= Instant::now()) {
            self.take_over_anew()?;
        }
        self.look_behind();
        self.step(Input::Tick);
        Ok(())
    }

    /// How long the next wait may take.
    fn patience(&self) -> Duration {
        let until = self.engine.wake_at().map_or(POLL_MAX, |at| {
            let now_us = self.shared.clock.now_us(Instant::now()).unwrap_or_default();
            Duration::from_micros((at.0 * 1_000).saturating_sub(now_us))
        });
        let awaited = !self.flying.is_empty() || self.asked > 0 || self.retake.is_some();
        let most = match (awaited, self.behind.has_intakes()) {
            (true, _) => POLL_SHORT,
            // That a marker was passed does not end a poll.
            (false, true) => LOOK_AT_INTAKES,
            (false, false) => POLL_MAX,
        };
        until.min(most)
    }

    /// Waits for another thread's answer, and takes it.
    fn await_answers(&mut self, most: Duration) {
        crossbeam_channel::select! {
            recv(self.committer.reports()) -> report => if let Ok(report) = report { self.report(report) },
            recv(self.answers.1) -> answer => if let Ok(answer) = answer { self.answer(answer) },
            default(most) => {}
        }
    }

    fn answer(&mut self, (name, target): Answer) {
        self.asked = self.asked.saturating_sub(1);
        self.step(Input::Target(name, target));
    }

    /// Copies a message of librdkafka's into a record of ours.
    fn own(&self, message: &BorrowedMessage<'_>) -> Option<Input> {
        let topic = self.plan.setup.topics.find(message.topic())?;
        let lane = u16::try_from(message.partition()).ok()?;
        let appended = message.timestamp().to_millis().and_then(|ms| u64::try_from(ms).ok());
        Some(Input::Record {
            source: Source { topic, lane: Lane(lane) },
            offset: Offset(message.offset()),
            // Without a time a record of ours cannot be: it counts from now rather than from 1970.
            appended: appended.map_or_else(|| self.now(), UnixMillis),
            record: raw::copy_record(message),
        })
    }

    /// Tells the engine one fact and carries out what it orders.
    fn step(&mut self, input: Input) {
        let now = self.now();
        let mut out = std::mem::take(&mut self.out);
        self.engine.step(now, input, &mut out);
        let (mut pause, mut resume) = (Vec::new(), Vec::new());
        for order in out.drain(..) {
            match order {
                Output::Pause(source) => pause.push(source),
                Output::Resume(source) => resume.push(source),
                Output::Rewind(source, offset) => self.rewind(source, offset),
                Output::Lookup(topic) => {
                    self.asked += 1;
                    self.shared.lookup.ask(topic, self.answers.0.clone());
                }
                // Not ordered with the limits that `app` gives.
                Output::Ask(_) | Output::Forgettable(_) => {}
                Output::Batch(batch) => {
                    let lows = batch.commits.iter().map(|c: &Commit| (c.source, c.next)).collect();
                    self.flying.push_back((batch.id, lows));
                    if let Some(group) = &self.group {
                        self.committer.submit(batch, Arc::clone(group));
                    }
                }
            }
        }
        self.out = out;
        if !pause.is_empty()
            && let Err(error) = self.consumer.pause(&self.list(&pause))
        {
            tracing::warn!(%error, partitions = pause.len(), "could not pause");
        }
        if !resume.is_empty()
            && let Err(error) = self.consumer.resume(&self.list(&resume))
        {
            tracing::warn!(%error, partitions = resume.len(), "could not resume");
        }
    }

    fn list(&self, sources: &[Source]) -> TopicPartitionList {
        let mut list = TopicPartitionList::with_capacity(sources.len());
        for source in sources {
            list.add_partition(self.plan.setup.topics.name(source.topic), i32::from(source.lane.0));
        }
        list
    }

    fn rewind(&self, source: Source, offset: Offset) {
        let topic = self.plan.setup.topics.name(source.topic);
        let partition = i32::from(source.lane.0);
        // No waiting: the partition is paused, and what was fetched before is dropped by librdkafka.
        let sought = self.consumer.seek(topic, partition, At::Offset(offset.0), Duration::ZERO);
        if let Err(error) = sought {
            tracing::warn!(%error, topic = &**topic, partition, offset = offset.0, "could not read again from here");
        }
    }

    fn report(&mut self, report: Report) {
        match report {
            Report::Done(id) => {
                if self.flying.front().is_some_and(|(first, _)| *first == id)
                    && let Some((_, lows)) = self.flying.pop_front()
                {
                    self.lows.extend(lows);
                }
                self.step(Input::Committed(id));
            }
            Report::Failed { why, refused } => {
                self.status.tell(Some(why));
                if let Some(refused) = refused {
                    // Brokers are there, so this is quick; otherwise what was acknowledged before would be delivered again
                    // with each try to find out who it was (`at_least_once`).
                    self.consumer.context().commit(&self.consumer, CommitMode::Sync);
                    self.step(Input::Refused(refused));
                }
                self.give_up();
                self.retake = Some(Instant::now());
            }
        }
    }

    /// Drops everything that is held of the lanes.
    fn give_up(&mut self) {
        self.flying.clear();
        self.lows.clear();
        self.group = None;
        self.behind = Behind::default();
        self.step(Input::Revoked);
    }

    fn events(&mut self) -> Result<(), Error> {
        for event in self.consumer.context().events() {
            match event {
                Event::Assigned(taken) => self.begin(taken),
                Event::Revoked => {
                    self.retake = None;
                    self.give_up();
                    self.status.own(Vec::new());
                    self.status.joined.store(true, Ordering::Relaxed);
                }
                Event::Failed(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn begin(&mut self, taken: Taken) {
        let Taken { starts, cancelled, group } = taken;
        self.give_up();
        self.retake = None;
        self.group = Some(group);
        // A batch of the assignment before may still be reported.
        while self.committer.reports().try_recv().is_ok() {}
        let partitions = starts.len();
        self.behind = Behind::new(
            starts.iter().filter(|s| s.next < s.end).map(|s| (s.source, s.end)),
            self.plan.setup.topics.intakes.len(),
        );
        self.step(Input::Assigned { starts });
        for (lane, voids) in cancelled {
            self.step(Input::Known { lane, live: Vec::new(), voids, whole: true });
        }
        let figures = self.engine.figures();
        tracing::info!(
            thread = self.plan.thread,
            lanes = figures.lanes,
            partitions,
            unreadable = figures.unreadable,
            cancelled = figures.remembered,
            "lanes taken over"
        );
        self.status.own(self.engine.lanes());
        self.status.joined.store(true, Ordering::Relaxed);
        self.status.tell(None);
    }

    /// After a failed batch: what counts is what is committed.
    fn take_over_anew(&mut self) -> Result<(), Error> {
        let assignment = match self.consumer.assignment() {
            Ok(assignment) if assignment.count() > 0 => assignment,
            // A rebalance is under way, which takes over itself.
            Ok(_) | Err(_) => {
                self.retake = None;
                return Ok(());
            }
        };
        match self.consumer.context().take_over(&self.consumer, &assignment) {
            Ok(taken) => {
                self.begin(taken);
                Ok(())
            }
            Err(error) => {
                let error = Error::from(error);
                if error.is_final() {
                    return Err(error);
                }
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not take over anew yet"
                );
                self.retake = Some(Instant::now() + Duration::from_millis(500));
                Ok(())
            }
        }
    }

    /// Tells the engine which partitions are read to where they ended when they were taken over. What stands last may be a
    /// marker, which leaves no record; the consumer's position passes it.
    fn look_behind(&mut self) {
        let now = Instant::now();
        if !self.behind.is_due(now) {
            return;
        }
        let Ok(positions) = self.consumer.position() else { return };
        let mut passed = Vec::new();
        for element in positions.elements() {
            let (Some(topic), Ok(lane), At::Offset(next)) = (
                self.plan.setup.topics.find(element.topic()),
                u16::try_from(element.partition()),
                element.offset(),
            ) else {
                continue;
            };
            let source = Source { topic, lane: Lane(lane) };
            if self.behind.reached(source, Offset(next)) {
                passed.push(source);
            }
        }
        for source in passed {
            self.step(Input::Passed { source, at: UnixMillis(0) });
        }
        if self.behind.is_to_be_told(now) {
            tracing::warn!(
                thread = self.plan.thread,
                waiting = self.engine.figures().gated,
                "intakes are not read yet to where they ended when their lanes were taken over; due records with an id wait for that. A producer's transaction may be open"
            );
        }
    }

    fn read_failed(&mut self, error: KafkaError) -> Result<(), Error> {
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
                // Records were deleted under us, or the log was cut: never passed over in silence (faults 0.4). Or only
                // what was done already was deleted before this reader passed it: the committed position tells, when
                // the lanes are taken over anew. Not at once: who lost its lanes meanwhile hears of it before.
                tracing::warn!(%error, "a position is outside of its log, taking the lanes over anew");
                self.consumer.context().look_at_ends();
                self.give_up();
                self.retake = Some(Instant::now() + LOOK_AGAIN);
            }
            Some(RDKafkaErrorCode::Fatal) => {
                return Err(Error::Consumer { group: self.plan.namespace.clone(), source: error });
            }
            Some(RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::AllBrokersDown) => {
                tracing::debug!(%error, "consumer lost a broker");
            }
            _ => tracing::warn!(%error, "could not read"),
        }
        Ok(())
    }

    fn trim(&mut self) {
        let Some(trim) = &self.shared.trim else { return };
        let names = &self.plan.setup.topics;
        let lows = std::mem::take(&mut self.lows).into_iter().map(|(source, low)| {
            let topic: &str = names.name(source.topic);
            (topic.to_owned(), i32::from(source.lane.0), low.0)
        });
        trim.ask(lows.collect());
    }

    /// Leaves the group: what is acknowledged is committed, and the others take over at once.
    ///
    /// With the brokers away this can take long, and closing can hang for ever (rust-rdkafka 509): it has a thread of
    /// its own, and the process its own end.
    fn leave(self) {
        let drained = self.engine.is_drained();
        let Self { consumer, committer, plan, .. } = self;
        let (done, closed) = crossbeam_channel::bounded(1);
        let closing = std::thread::Builder::new().name("wc-close".into()).spawn(move || {
            consumer.unsubscribe();
            let by = Instant::now() + CLOSE_MAX;
            let gone = |consumer: &Consumer| {
                consumer.context().events().iter().any(|event| matches!(event, Event::Revoked))
            };
            while Instant::now() < by && !gone(&consumer) {
                let _ = consumer.poll(POLL_SHORT * 20);
            }
            drop(consumer);
            drop(committer);
            let _ = done.send(());
        });
        if closing.is_ok() && closed.recv_timeout(CLOSE_MAX).is_err() {
            tracing::warn!(
                thread = plan.thread,
                "closing takes too long, left to the end of the process"
            );
        }
        tracing::info!(thread = plan.thread, drained, "lanes let go");
    }
}

/// Partitions that are not known to be read to where they ended when their lanes were taken over.
#[derive(Debug)]
struct Behind {
    ends: HashMap<Source, Offset>,
    /// How many of them are intakes.
    intakes: usize,
    tiers_from: usize,
    looked: Instant,
    told: Instant,
}

impl Default for Behind {
    fn default() -> Self {
        Self::new(std::iter::empty(), 0)
    }
}

impl Behind {
    fn new(ends: impl Iterator<Item = (Source, Offset)>, tiers_from: usize) -> Self {
        let now = Instant::now();
        let ends: HashMap<Source, Offset> = ends.collect();
        let intakes = ends.keys().filter(|s| usize::from(s.topic.0) < tiers_from).count();
        Self { ends, intakes, tiers_from, looked: now, told: now }
    }

    fn has_intakes(&self) -> bool {
        self.intakes > 0
    }

    /// Whether it is time to look at the consumer's positions.
    fn is_due(&mut self, now: Instant) -> bool {
        let every = if self.has_intakes() { LOOK_AT_INTAKES } else { LOOK_AT_TIERS };
        let is_due = !self.ends.is_empty() && now - self.looked >= every;
        if is_due {
            self.looked = now;
        }
        is_due
    }

    /// Whether a partition has passed its end with this position; says so once.
    fn reached(&mut self, source: Source, next: Offset) -> bool {
        if self.ends.get(&source).is_none_or(|end| next < *end) {
            return false;
        }
        self.ends.remove(&source);
        self.intakes -= usize::from(usize::from(source.topic.0) < self.tiers_from);
        true
    }

    /// Whether somebody should hear that intakes are not read for long.
    fn is_to_be_told(&mut self, now: Instant) -> bool {
        let is = self.has_intakes() && now - self.told >= SAY_BEHIND;
        if is {
            self.told = now;
        }
        is
    }
}

/// The consumer's settings: what our promises rest on.
fn settings(plan: &Plan, client_id: &str) -> rdkafka::ClientConfig {
    let mut config = plan.connection.client(client_id);
    let session_ms = plan.session_timeout.as_millis();
    config
        .set("group.id", &plan.namespace)
        // 848's protocol has a fatal error after a slow poll in this librdkafka (faults 6, 10).
        .set("group.protocol", "classic")
        // Equal partition numbers of all topics to one member: the others do not (core notes 2).
        .set("partition.assignment.strategy", "range")
        .set("session.timeout.ms", session_ms.to_string())
        .set("heartbeat.interval.ms", (session_ms / 10).clamp(200, 1_000).to_string())
        .set("max.poll.interval.ms", "180000")
        .set("isolation.level", "read_committed")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "error")
        .set("allow.auto.create.topics", "false")
        .set("fetch.queue.backoff.ms", "5")
        .set("fetch.wait.max.ms", if plan.embedded { "10" } else { "500" })
        .set("fetch.message.max.bytes", "1048576")
        .set("fetch.max.bytes", "16777216")
        .set("receive.message.max.bytes", "100000000")
        .set("queued.max.messages.kbytes", "16384");
    config
}
