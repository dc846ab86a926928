//! One membership of the group, from joining to leaving.

mod asks;
mod lanes;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use super::settings::{HEARTBEAT, settings};
use super::{Error, Plan, Shared, Status, millis};
use crate::client::errors::{self, ErrorKind, On};
use crate::client::log_limiter::LogLimiter;
use crate::client::outages::Bootstrap;
use crate::client::raw;
use crate::client::raw::Waker;
use crate::cluster::end_offsets;
use crate::cluster::stalls::Fetched;
use crate::cluster::targets::Answer;
use crate::cluster::wall_clock_steps::Waits;
use crate::member::commit::{AssignmentEpoch, Committer, CommitterConfig, Delivery, Report, TURNS};
use crate::member::fence::Fence;
use crate::member::inventory;
use crate::member::lane_batches::LaneBatches;
use crate::member::rebalance::{Context, Who};
use crate::member::timers::AssignmentEvent;
use waterclock_engine::member::{Failure, LateHop, Life, QueryGoals, ReadGoals};
use waterclock_engine::{
    Action, BatchId, Commit, Event, Figures, Lane, LaneEngine, Millis, Offset, Read, Source,
    UnixMillis,
};
use waterclock_telemetry::{LaneFigures, LaneLevels};

/// The longest wait in one poll: a rebalance, a stop and the figures are noticed within it.
const POLL_MAX: Duration = Duration::from_millis(100);
/// The wait while an answer from another thread is awaited, which does not wake a poll. Up to this long it is the
/// answers that are waited for, since they come sooner than a poll returns, and end to the microsecond.
const POLL_SHORT: Duration = Duration::from_millis(1);
/// Records read in one turn, at most: about two milliseconds' work.
const TURN_MAX: usize = 2_000;
/// Positions are committed this often in `at_least_once`.
const COMMIT_EVERY: Duration = Duration::from_millis(500);
/// How often done records are deleted from our own topics.
const TRIM_EVERY: Duration = Duration::from_secs(30);
/// Gauges are told this often.
const FIGURES_EVERY: Duration = Duration::from_secs(1);

type Consumer = BaseConsumer<Context>;

/// A batch on its way.
struct InFlight {
    id: BatchId,
    since: Instant,
    /// The low watermarks that it commits.
    lows: Vec<(Source, Offset)>,
    /// Answers to give once their batch is committed.
    answers: Vec<waterclock_engine::Answer>,
}

/// A group membership, from joining to leaving.
pub(super) struct Session<'a> {
    plan: &'a Plan,
    shared: &'a Shared,
    figures: &'a Arc<LaneFigures>,
    status: &'a Status,
    committer: Arc<Committer>,
    /// Has the consumer woken when this machine's clock is set; gone before it.
    waits: Option<Waits>,
    /// How often that was, when it was last looked at.
    steps: u64,
    bootstrap: Bootstrap,
    consumer: Consumer,
    engine: LaneEngine,
    levels: LaneLevels,
    /// What the metrics have been told of.
    counted: Figures,
    /// Errors of the consumer that were shown.
    log_limiter: LogLimiter,
    /// The right to commit, of the assignment in force.
    epoch: Option<Arc<AssignmentEpoch>>,
    answers: (Sender<Answer>, Receiver<Answer>),
    /// Look-ups of targets that are not answered yet.
    lookups_open: usize,
    end_offsets: (Sender<end_offsets::Answer>, Receiver<end_offsets::Answer>),
    /// Partitions whose ends are asked for.
    ends_asked: usize,
    /// Partitions whose end nobody reported, to be asked for again then.
    retry_ends: Vec<(Instant, Source)>,
    /// Where every partition began: its position until something of it was polled.
    starts: HashMap<Source, Offset>,
    /// Partitions that are to be read to where they ended.
    read_goals: ReadGoals,
    timer_events: (Sender<AssignmentEvent>, Receiver<AssignmentEvent>),
    /// The assignment in force.
    assignment: Option<u64>,
    /// Lanes of which it is not known yet what is pending.
    unknown: usize,
    /// Lanes whose query for ended timers is open.
    recalls: usize,
    /// While this is alive, the rest of some lanes is read for this assignment.
    counting: Arc<()>,
    /// Batches on their way.
    in_flight: VecDeque<InFlight>,
    /// Low watermarks committed since the last trim, as far as the group's coordinator has said so.
    lows: BTreeMap<Source, Offset>,
    /// When its own time began.
    began: Instant,
    /// Whether it has lanes, and when it takes them over again or leaves the group.
    life: Life,
    out: Vec<Action>,
    /// Which change of the policies the engine has been told.
    policies: u64,
    /// Intakes that are held: records are not admitted.
    held: bool,
    /// Partitions that the engine wants paused.
    paused: HashSet<Source>,
    /// How often topics had been created again when the lanes were taken over last.
    recreated: u64,
    /// Those who look timers up, and wait until what they may know of is decided.
    queries: QueryGoals,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        shared: &'a Shared,
        figures: &'a Arc<LaneFigures>,
        status: &'a Status,
        rejoin_after: Millis,
    ) -> Result<Self, Error> {
        let process = format!("waterclock/{}/", plan.instance);
        let client_prefix = format!("{process}{}/", plan.thread);
        let group_instance_id = format!("{}.{}.{}", plan.instance, plan.thread, plan.directory_id);
        let client_id = format!("{client_prefix}{}", plan.incarnation);
        let setting = CommitterConfig {
            connection: plan.connection.clone(),
            transactional_id: format!("{}/{}/{}", plan.namespace, plan.instance, plan.thread),
            transaction_timeout: plan.transaction_timeout,
            delivery: plan.delivery,
            batch_bytes: Arc::clone(shared.lookup.record_bytes_least()),
        };
        let (setup, written) = (Arc::clone(&plan.setup), Arc::clone(&shared.written));
        let batches = Arc::new(LaneBatches::new(setup, written, Arc::clone(figures)));
        let committer = Committer::start(setting, batches, Arc::clone(&shared.clock))
            .map_err(|e| Error::Client { what: "producer thread", source: Box::new(e) })?;
        let committer = Arc::new(committer);
        let who = Who {
            group: plan.namespace.clone(),
            instance: plan.instance.clone(),
            client_id: client_id.clone(),
            client_prefix,
            process,
            group_instance_id: group_instance_id.clone(),
            lanes: plan.setup.topics.names().to_vec(),
            intakes: plan.setup.topics.intakes.len(),
            count: plan.setup.lanes,
            timers: plan.setup.topics.timers(),
            meta: plan.setup.topics.meta(),
            first_intake: plan.first_intake.clone(),
            embedded: plan.embedded,
        };
        let failed = |e: KafkaError| Error::Client { what: "consumer", source: Box::new(e) };
        let fence = Fence::new(
            plan.connection.clone(),
            plan.namespace.clone(),
            plan.transaction_timeout,
            if plan.delivery == Delivery::ExactlyOnce { TURNS } else { 0 },
            Arc::clone(&shared.roster),
        );
        let context = Context::new(
            who,
            Arc::clone(&committer),
            plan.connection.clone(),
            shared.ends.clone(),
            fence,
            Arc::clone(&status.taking),
        );
        let consumer: Consumer = settings(plan, &client_id, &group_instance_id)
            .create_with_context(context)
            .map_err(failed)?;
        let names: Vec<&str> = plan.setup.topics.names().iter().map(|name| &**name).collect();
        consumer.subscribe(&names).map_err(failed)?;
        let (policies, setup) = shared.policies.now();
        let waits = Waker::of_consumer(consumer.client()).map(|waker| shared.steps.wake(waker));
        Ok(Self {
            plan,
            shared,
            figures,
            status,
            committer,
            waits,
            steps: shared.steps.count(),
            bootstrap: Bootstrap::new(&plan.connection),
            consumer,
            levels: LaneLevels::new(plan.thread, setup.limits.memory_bytes as u64),
            engine: LaneEngine::new(setup),
            policies,
            held: false,
            paused: HashSet::new(),
            recreated: shared.seen.recreated(),
            counted: Figures::default(),
            log_limiter: LogLimiter::default(),
            epoch: None,
            answers: crossbeam_channel::unbounded(),
            lookups_open: 0,
            end_offsets: crossbeam_channel::unbounded(),
            ends_asked: 0,
            retry_ends: Vec::new(),
            starts: HashMap::new(),
            read_goals: ReadGoals::new(plan.setup.topics.intakes.len(), millis(plan.foreign_wait)),
            timer_events: crossbeam_channel::unbounded(),
            assignment: None,
            unknown: 0,
            recalls: 0,
            counting: Arc::default(),
            in_flight: VecDeque::new(),
            lows: BTreeMap::new(),
            began: Instant::now(),
            life: Life::new(rejoin_after),
            out: Vec::new(),
            queries: QueryGoals::new(plan.setup.limits.hop_linger),
        })
    }

    fn now(&self) -> UnixMillis {
        // The process waits for the first probe before it starts its lanes, so there is one.
        self.shared.clock.now(Instant::now()).unwrap_or_default()
    }

    pub(super) fn run(mut self) -> Result<(), Error> {
        let result = self.serve();
        self.leave(!matches!(result, Err(Error::Nobodys { .. })));
        result
    }

    fn serve(&mut self) -> Result<(), Error> {
        let mut stop_by = None;
        let (mut committed, mut trimmed, mut told, mut woken) =
            (Instant::now(), Instant::now(), Instant::now(), Instant::now());
        loop {
            if stop_by.is_none() && self.shared.stop.load(Ordering::Relaxed) {
                stop_by = Some(Instant::now() + self.shared.drain);
                self.step(Event::Drain);
            }
            if let Some(by) = stop_by
                && (self.engine.is_drained() || Instant::now() > by)
            {
                break;
            }
            fail::fail_point!("lane_stalls");
            self.turn()?;
            self.status.beat();
            let at = Instant::now();
            if self.plan.delivery == Delivery::AtLeastOnce && at - committed >= COMMIT_EVERY {
                committed = at;
                self.consumer.context().commit(&self.consumer, CommitMode::Async);
            }
            if at - woken >= HEARTBEAT {
                woken = at;
                // Any request wakes librdkafka's main thread, which then checks whether a heartbeat is due.
                let _ = self.consumer.assignment();
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
                self.look_what_hangs();
                self.status.own(self.engine.lanes());
            }
        }
        Ok(())
    }

    /// Every wait of a batch is bounded, by what librdkafka is told; if it waits on all the same, the lanes are taken over again,
    /// which abandons it (seen once in some hundred changes of leaders).
    fn look_what_hangs(&mut self) {
        let Some(first) = self.in_flight.front() else { return };
        let (batch, waits) = (first.id.0, first.since.elapsed());
        if waits <= self.committer.patience().for_batch() {
            return;
        }
        let (seconds, step) = (waits.as_secs(), self.committer.step());
        let why = format!("batch {batch} hangs for {seconds} s, at {step}");
        tracing::warn!(thread = self.plan.thread, "{why}");
        self.status.tell(Some(why));
        self.fail(Failure::Work);
    }

    /// Time as the core counts it.
    fn at(&self) -> Millis {
        millis(self.began.elapsed())
    }

    /// Drops everything. The lanes are taken over again in time.
    fn fail(&mut self, failure: Failure) {
        self.give_up();
        self.life.failed(self.at(), failure);
    }

    /// Tells the metrics what is held, and what was counted since the last time.
    fn tell(&mut self, figures: Figures) {
        self.levels.pending.set(figures.waiting as u64);
        self.levels.memory_bytes.set(figures.memory_bytes as u64);
        self.levels.lanes.set(figures.lanes as u64);
        self.levels.paused.set(figures.paused as u64);
        self.levels.cancels.set(figures.remembered as u64);
        self.levels.timers.set(figures.live as u64);
        self.levels.gated.set(figures.gated as u64);
        self.levels.ordered.set(figures.ordered as u64);
        self.levels.window(figures.window_permille);
        let now = self.shared.clock.now(Instant::now());
        let overdue = now.zip(figures.first_due).map(|(now, due)| now - due);
        self.levels.overdue(overdue.unwrap_or_default());
        self.figures.lost(figures.lost - self.counted.lost);
        self.figures.late_hops(figures.late_hops - self.counted.late_hops);
        self.figures.spilled(figures.spilled - self.counted.spilled);
        self.figures.put_off(figures.deferred - self.counted.deferred);
        self.figures.unreadable(figures.unreadable - self.counted.unreadable);
        self.levels.suspects.set(figures.suspects as u64);
        let lost = figures.lost_timers - self.counted.lost_timers;
        if lost > 0 {
            tracing::error!(
                thread = self.plan.thread,
                timers = lost,
                "timers are lost, as their records are gone: `list --state lost` shows them. Somebody has deleted records or topics \
                 that were not done"
            );
            self.figures.lost_timers(lost);
        }
        self.figures.timers(
            figures.duplicates - self.counted.duplicates,
            figures.superseded - self.counted.superseded,
        );
        self.figures.halved(figures.halvings - self.counted.halvings);
        self.counted = figures;
        if self.status.reads.is_asked() {
            let reads = self.engine.read_positions();
            self.status.reads.tell(reads.map(|read| self.fetched(read)).collect());
        }
    }

    fn fetched(&self, read: Read) -> Fetched {
        let Source { topic, lane } = read.source;
        let is_held = self.held && self.is_intake(read.source);
        let is_paused = is_held || self.paused.contains(&read.source);
        let topic = self.plan.setup.topics.name(topic);
        let end = raw::partitions::known_end(self.consumer.client(), topic, i32::from(lane.0));
        Fetched { read, is_paused, end }
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
        self.take_answers();
        if let Some((change, setup)) = self.shared.policies.since(self.policies) {
            self.policies = change;
            self.step(Event::Policies(setup));
        }
        if self.life.resumes_in(self.at()) == Some(Millis(0)) {
            self.take_over_again()?;
        }
        self.rejoin_when_due()?;
        self.bootstrap.after_outage(self.consumer.client());
        self.look_at_steps();
        self.look_at_topics();
        self.look_at_positions();
        self.step(Event::Tick);
        self.look_at_goals();
        Ok(())
    }

    /// When this machine's clock was set, librdkafka's own thread may wait for as long as that was: an order wakes it.
    fn look_at_steps(&mut self) {
        let steps = self.shared.steps.count();
        if steps != self.steps {
            self.steps = steps;
            let _ = self.consumer.assignment();
        }
    }

    /// Carries out what was seen of the topics: holds the intakes or lets them go on, and starts again in topics that are
    /// others now.
    fn look_at_topics(&mut self) {
        let recreated = self.shared.seen.recreated();
        if recreated != self.recreated && self.assignment.is_some() {
            self.recreated = recreated;
            self.status.tell(Some("a topic was deleted and created again".to_owned()));
            self.fail(Failure::Work);
        }
        let holds = self.shared.seen.holds();
        if holds != self.held {
            self.held = holds;
            let intakes: Vec<Source> = self.intakes().collect();
            if holds {
                self.pause(&intakes);
            } else {
                let go_on: Vec<Source> =
                    intakes.into_iter().filter(|source| !self.paused.contains(source)).collect();
                self.resume(&go_on);
            }
        }
    }

    fn is_intake(&self, source: Source) -> bool {
        usize::from(source.topic.0) < self.plan.setup.topics.intakes.len()
    }

    /// The intakes of the assignment in force.
    fn intakes(&self) -> impl Iterator<Item = Source> {
        self.starts.keys().copied().filter(|source| self.is_intake(*source))
    }

    fn pause(&self, sources: &[Source]) {
        if !sources.is_empty()
            && let Err(error) = self.consumer.pause(&self.list(sources))
        {
            tracing::warn!(%error, partitions = sources.len(), "could not pause");
        }
    }

    fn resume(&self, sources: &[Source]) {
        if !sources.is_empty()
            && let Err(error) = self.consumer.resume(&self.list(sources))
        {
            tracing::warn!(%error, partitions = sources.len(), "could not resume");
        }
    }

    /// How long the next wait may take.
    fn patience(&self) -> Duration {
        let until = self.engine.wake_at().map_or(POLL_MAX, |at| {
            let now_us = self.shared.clock.now_us(Instant::now()).unwrap_or_default();
            Duration::from_micros((at.0 * 1_000).saturating_sub(now_us))
        });
        let awaited = !self.in_flight.is_empty()
            || self.lookups_open > 0
            || self.ends_asked > 0
            || self.unknown > 0
            || self.recalls > 0
            || self.engine.is_counting()
            || self.life.is_resting();
        let soon = self.read_goals.patience(|source| self.engine.is_awaited(source));
        let soon = soon.or_else(|| self.shared.timers.has_goals().then_some(QueryGoals::EVERY));
        let soon = soon.map(|soon| Duration::from_millis(soon.0));
        let most = match (awaited, soon) {
            (true, _) => POLL_SHORT,
            // That a marker was passed does not end a poll.
            (false, Some(soon)) => soon,
            (false, None) => POLL_MAX,
        };
        until.min(most)
    }

    /// Copies a message of librdkafka's into a record of ours.
    fn own(&self, message: &BorrowedMessage<'_>) -> Option<Event> {
        let topic = self.plan.setup.topics.find(message.topic())?;
        let lane = u16::try_from(message.partition()).ok()?;
        let appended = message.timestamp().to_millis().and_then(|ms| u64::try_from(ms).ok());
        Some(Event::Record {
            source: Source { topic, lane: Lane(lane) },
            offset: Offset(message.offset()),
            // Without a time a record of ours cannot be: it counts from now rather than from 1970.
            appended: appended.map_or_else(|| self.now(), UnixMillis),
            record: raw::copy_bounded(message, self.plan.setup.limits.record_bytes_max),
        })
    }

    /// Tells the engine one fact and carries out what it orders.
    fn step(&mut self, event: Event) {
        let now = self.now();
        let mut out = std::mem::take(&mut self.out);
        self.engine.step(now, event, &mut out);
        let (mut pause, mut resume) = (Vec::new(), Vec::new());
        for order in out.drain(..) {
            match order {
                Action::Pause(source) => {
                    self.paused.insert(source);
                    pause.push(source);
                }
                Action::Resume(source) => {
                    self.paused.remove(&source);
                    if !(self.held && self.is_intake(source)) {
                        resume.push(source);
                    }
                }
                Action::Seek(source, offset) => self.seek_to(source, offset),
                Action::DescribeTarget(topic) => {
                    self.lookups_open += 1;
                    self.shared.lookup.ask(topic, self.answers.0.clone());
                }
                Action::ListEndOffsets(sources) => self.ask_for_ends(&sources, false),
                Action::ListExpired(lane) => {
                    if let Some(assignment) = self.assignment {
                        let before = now - self.plan.setup.limits.history;
                        self.shared.timers.list_expired(
                            assignment,
                            lane,
                            before,
                            &self.timer_events.0,
                        );
                    }
                }
                Action::Recall { lane, timers } => {
                    if let Some(assignment) = self.assignment {
                        self.recalls += 1;
                        self.shared.timers.recall(assignment, lane, timers, &self.timer_events.0);
                    }
                }
                Action::Overdue { lane, before, after } => {
                    if let Some(assignment) = self.assignment {
                        let of = (lane, before, after);
                        self.shared.timers.list_overdue(assignment, of, &self.timer_events.0);
                    }
                }
                Action::Inventory { lane, from } => self.take_inventory(lane, from),
                Action::Batch(mut batch) => {
                    let lows = batch.commits.iter().map(|c: &Commit| (c.source, c.next)).collect();
                    let answers = std::mem::take(&mut batch.answers);
                    let since = Instant::now();
                    self.in_flight.push_back(InFlight { id: batch.id, since, lows, answers });
                    if let Some(epoch) = &self.epoch {
                        self.committer.submit(batch, Arc::clone(epoch));
                    }
                }
            }
        }
        self.out = out;
        self.pause(&pause);
        self.resume(&resume);
    }

    fn take_inventory(&mut self, lane: Lane, from: Vec<(Source, Offset)>) {
        let Some(assignment) = self.assignment else { return };
        let order = inventory::InventoryRequest {
            connection: self.plan.connection.clone(),
            setup: Arc::clone(&self.plan.setup),
            ends: self.shared.ends.clone(),
            assignment,
            lane,
            from,
            stands: Arc::downgrade(&self.counting),
            to: self.timer_events.0.clone(),
        };
        if let Err(error) = inventory::begin(order) {
            tracing::warn!(%error, lane = lane.0, "could not start a thread to read what is left of a lane");
            self.step(Event::Counted { lane, is_complete: false });
        }
    }

    fn list(&self, sources: &[Source]) -> TopicPartitionList {
        let mut list = TopicPartitionList::with_capacity(sources.len());
        for source in sources {
            list.add_partition(self.plan.setup.topics.name(source.topic), i32::from(source.lane.0));
        }
        list
    }

    fn seek_to(&self, source: Source, offset: Offset) {
        let topic = self.plan.setup.topics.name(source.topic);
        let partition = i32::from(source.lane.0);
        // No waiting: the partition is paused, and what was fetched before is dropped by librdkafka.
        let sought = self.consumer.seek(topic, partition, At::Offset(offset.0), Duration::ZERO);
        if let Err(error) = sought {
            tracing::warn!(
                %error,
                topic = &**topic,
                partition,
                offset = offset.0,
                "the consumer could not seek back to this offset to read a record again"
            );
        }
    }

    fn report(&mut self, report: Report) {
        match report {
            Report::Done(id, late) => {
                if self.in_flight.front().is_some_and(|first| first.id == id)
                    && let Some(InFlight { lows, answers, .. }) = self.in_flight.pop_front()
                {
                    // Acknowledged is not committed yet.
                    if self.plan.delivery == Delivery::ExactlyOnce {
                        self.lows.extend(lows);
                    }
                    answers.iter().for_each(|answer| self.figures.answered(answer.outcome));
                    self.shared.timers.answered(answers);
                }
                for LateHop { source, offset, due } in late {
                    self.step(Event::Late { source, offset, due });
                }
                self.step(Event::Committed(id));
            }
            Report::Failed { why, refused, doubted, acknowledged } => {
                self.status.tell(Some(why));
                self.step(Event::InvalidateTargets(doubted));
                self.step(Event::PartlyAcknowledged(acknowledged));
                if let Some(refused) = refused {
                    // Brokers are there, so this is quick; otherwise what was acknowledged before would be delivered again
                    // with each try to find out who it was (`at_least_once`).
                    self.consumer.context().commit(&self.consumer, CommitMode::Sync);
                    self.step(Event::Refused(refused));
                }
                self.fail(Failure::Work);
            }
        }
    }

    fn read_failed(&mut self, error: KafkaError) -> Result<(), Error> {
        match errors::kind(&error) {
            ErrorKind::OffsetOutOfRange => {
                // Records were deleted under us, or the log was cut: never passed over in silence. Or only
                // done records were deleted before this reader passed them: the committed position tells, when the
                // lanes are taken over again. Not at once: a thread that lost its lanes meanwhile learns of that first.
                tracing::warn!(%error, "a position is outside of its log, taking the lanes over again");
                self.status.tell(Some("a position is outside of its log".to_owned()));
                self.consumer.context().is_outside();
                self.fail(Failure::Outside);
            }
            ErrorKind::MemberFenced => {
                return Err(Error::Fenced {
                    instance: self.plan.instance.clone(),
                    group: self.plan.namespace.clone(),
                });
            }
            _ if errors::is_consumer_lost(&error) => {
                return Err(Error::Consumer { group: self.plan.namespace.clone(), source: error });
            }
            ErrorKind::BrokerAway | ErrorKind::AllBrokersAway => {
                tracing::debug!(%error, "consumer lost a broker");
            }
            ErrorKind::BadCompression => {
                // A batch after others of one answer, for which there was no room; one for which too much is inflated for now; or
                // one that is not what was written, for good.
                tracing::warn!(
                    %error,
                    "a batch was not read: it inflates to too much for now, or its checksum is wrong; asking for it again"
                );
            }
            ErrorKind::NoRight(On::Group) => {
                let group = &self.plan.namespace;
                tracing::error!(%error, group, "no right to be a member of the group; asking again");
                // Until lanes are taken over again.
                self.status.tell(Some(format!("no right to be a member of group {group} (Read)")));
            }
            _ => {
                if self.log_limiter.admits(errors::code(&error), Instant::now()) {
                    tracing::warn!(%error, "read failed, retrying (logged once a minute)");
                }
            }
        }
        Ok(())
    }

    fn trim(&mut self) {
        let Some(trim) = &self.shared.trim else { return };
        let names = &self.plan.setup.topics;
        // A position that was put right when the lanes were taken over may be older than what was committed since.
        for (source, low) in self.consumer.context().take_acknowledged() {
            let committed = self.lows.entry(source).or_insert(low);
            *committed = low.max(*committed);
        }
        let lows = std::mem::take(&mut self.lows).into_iter().map(|(source, low)| {
            let topic: &str = names.name(source.topic);
            (topic.to_owned(), i32::from(source.lane.0), low.0)
        });
        trim.ask(lows.collect());
    }
}
