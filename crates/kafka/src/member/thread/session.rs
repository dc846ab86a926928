//! One membership of the group, from joining to leaving. A [`Role`] decides about its records.

mod assignments;
mod letting_go;
mod membership;
mod renewal;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::KafkaError;

use super::role::{Committed, Role};
use super::settings::{HEARTBEAT, settings};
use super::{Error, Plan, Shared, Status};
use crate::client::errors::{self, ErrorKind, On};
use crate::client::log_limiter::LogLimiter;
use crate::client::outages::{Bootstrap, OutageWatch};
use crate::client::raw::Waker;
use crate::client::raw::bell::Bell;
use crate::cluster::wall_clock_steps::Waits;
use crate::member::commit::{Committer, CommitterConfig, Delivery, Report, TURNS};
use crate::member::fence::Fence;
use crate::member::rebalance::{Context, Who};
pub(super) use membership::Membership;
use renewal::Renewal;
use waterclock_engine::Millis;
use waterclock_engine::member::{Failure, Life};

/// The longest wait in one poll: a rebalance, a stop and the figures are noticed within it.
pub(super) const POLL_MAX: Duration = Duration::from_millis(100);
/// The wait while an answer from another thread is awaited, which does not wake a poll. Up to this long it is the
/// answers that are waited for, since they come sooner than a poll returns, and end to the microsecond.
pub(super) const POLL_SHORT: Duration = Duration::from_millis(1);
/// The wait while a producer is made.
const RENEWAL_POLL: Duration = Duration::from_millis(5);
/// Records read in one turn, at most: about two milliseconds' work.
const TURN_MAX: usize = 2_000;
/// Positions are committed this often in `at_least_once`.
const COMMIT_EVERY: Duration = Duration::from_millis(500);
/// How often done records are deleted from our own topics.
const TRIM_EVERY: Duration = Duration::from_secs(30);
/// A consumer that waits for its share of the group for so long may have forgotten its brokers. Others that hear them do not
/// notice, and it has no partition that could show it.
const SHARE_MAX: Duration = Duration::from_secs(15);
/// Gauges are told this often.
const FIGURES_EVERY: Duration = Duration::from_secs(1);

/// A group membership, from joining to leaving, and the role that decides about its records.
pub(super) struct Session<'a, R: Role> {
    member: Membership<'a, R::Rules>,
    role: R,
    /// Has the consumer woken when this machine's clock is set; gone before it.
    waits: Option<Waits>,
    /// How often that was, when it was last looked at.
    steps: u64,
    bootstrap: Bootstrap,
    outages: OutageWatch,
    /// Errors of the consumer that were shown.
    log_limiter: LogLimiter,
    /// How often topics had been created again when the partitions were taken over last.
    recreated: u64,
    /// The group wants the partitions back: until then they are let go.
    let_go_by: Option<Instant>,
    /// A batch has failed, and its producer is made anew.
    renewal: Option<Renewal>,
    /// When a producer was made anew last.
    renewed: Option<Instant>,
}

impl<'a, R: Role> Session<'a, R> {
    pub(super) fn new(
        plan: &'a Plan,
        shared: &'a Shared,
        status: &'a Status,
        rejoin_after: Millis,
        role: R,
    ) -> Result<Self, Error> {
        let process = format!("waterclock/{}/", plan.instance);
        let client_prefix = format!("{process}{}/", plan.thread_name);
        let group_instance_id =
            format!("{}.{}.{}", plan.instance, plan.thread_name, plan.directory_id);
        let client_id = format!("{client_prefix}{}", plan.incarnation);
        let setting = CommitterConfig {
            connection: plan.connection.clone(),
            transactional_id: format!("{}/{}/{}", plan.namespace, plan.instance, plan.thread_name),
            transaction_timeout: plan.transaction_timeout,
            delivery: plan.delivery,
            batch_bytes: Arc::clone(&plan.batch_bytes),
        };
        let batches = role.batches();
        let topics = batches.topics().clone();
        let committer = Committer::start(setting, batches, Arc::clone(&shared.clock))
            .map_err(|e| Error::Client { what: "producer thread", source: Box::new(e) })?;
        let committer = Arc::new(committer);
        let names = topics.names.clone();
        let who = Who {
            group: plan.group.clone(),
            instance: plan.instance.clone(),
            client_id: client_id.clone(),
            client_prefix,
            process,
            group_instance_id: group_instance_id.clone(),
            topics,
            embedded: plan.embedded,
        };
        let failed = |e: KafkaError| Error::Client { what: "consumer", source: Box::new(e) };
        let fence = Fence::new(
            plan.connection.clone(),
            plan.namespace.clone(),
            plan.transaction_timeout,
            if plan.delivery == Delivery::ExactlyOnce { TURNS } else { 0 },
            R::MEMBERS,
            Arc::clone(&shared.roster),
        );
        let context = Context::new(
            who,
            Arc::clone(&committer),
            plan.connection.clone(),
            shared.ends.clone(),
            fence,
            Arc::clone(&status.taking),
            R::LETS_GO_LATER,
        );
        let consumer: BaseConsumer<Context<R::Rules>> =
            settings(plan, &client_id, &group_instance_id)
                .create_with_context(context)
                .map_err(failed)?;
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        consumer.subscribe(&names).map_err(failed)?;
        let bell =
            R::WAITS.then(|| Bell::of_member(consumer.client(), std::thread::current())).flatten();
        let waits = Waker::of_consumer(consumer.client()).map(|waker| shared.steps.wake(waker));
        let member = Membership {
            plan,
            shared,
            status,
            bell,
            consumer,
            committer,
            epoch: None,
            assignment: None,
            life: Life::new(rejoin_after),
            began: Instant::now(),
            starts: HashMap::new(),
            paused: HashSet::new(),
            held: false,
            in_flight: VecDeque::new(),
            lows: BTreeMap::new(),
            signed: None,
        };
        Ok(Self {
            member,
            role,
            waits,
            steps: shared.steps.count(),
            bootstrap: Bootstrap::new(&plan.connection),
            outages: OutageWatch::rarely(&plan.connection),
            log_limiter: LogLimiter::default(),
            recreated: shared.seen.recreated(),
            let_go_by: None,
            renewal: None,
            renewed: None,
        })
    }

    pub(super) fn run(mut self) -> Result<(), Error> {
        let result = self.serve();
        self.leave(!matches!(result, Err(Error::Nobodys { .. })));
        result
    }

    fn serve(&mut self) -> Result<(), Error> {
        let Membership { plan, shared, status, .. } = self.member;
        let mut stop_by = None;
        let (mut committed, mut trimmed, mut told, mut woken) =
            (Instant::now(), Instant::now(), Instant::now(), Instant::now());
        let mut had_its_share = Instant::now();
        loop {
            if stop_by.is_none() && shared.stop.load(Ordering::Relaxed) {
                stop_by = Some(Instant::now() + shared.drain);
                self.role.drain(&mut self.member);
            }
            if let Some(by) = stop_by
                && (self.role.is_drained() || Instant::now() > by)
            {
                break;
            }
            fail::fail_point!("lane_stalls");
            self.turn()?;
            status.beat();
            let at = Instant::now();
            if plan.delivery == Delivery::AtLeastOnce && at - committed >= COMMIT_EVERY {
                committed = at;
                self.commit(CommitMode::Async);
            }
            if at - woken >= HEARTBEAT {
                woken = at;
                self.wake_client();
            }
            self.ask_for_sign(at);
            if at - trimmed >= TRIM_EVERY {
                trimmed = at;
                self.trim();
            }
            if at - told >= FIGURES_EVERY {
                told = at;
                self.role.tell_figures(&mut self.member);
                self.look_what_hangs();
                status.own(self.role.lanes());
                if status.joined.load(Ordering::Relaxed) {
                    had_its_share = at;
                }
                self.outages.look(at, at - had_its_share >= SHARE_MAX);
            }
        }
        Ok(())
    }

    fn commit(&self, mode: CommitMode) {
        let consumer = &self.member.consumer;
        consumer.context().commit(consumer, mode);
    }

    /// Any request wakes librdkafka's main thread, which then checks whether a heartbeat is due.
    fn wake_client(&self) {
        let _ = self.member.consumer.assignment();
    }

    /// Every wait of a batch is bounded, by what librdkafka is told; if it waits on all the same, the lanes are taken over again,
    /// which abandons it (seen once in some hundred changes of leaders).
    fn look_what_hangs(&mut self) {
        let Membership { plan, status, committer, .. } = &self.member;
        let Some(first) = self.member.in_flight.front() else { return };
        let (batch, waits) = (first.id.0, first.since.elapsed());
        if waits <= committer.patience().for_batch() {
            return;
        }
        let (seconds, step) = (waits.as_secs(), committer.step());
        let why = format!("batch {batch} hangs for {seconds} s, at {step}");
        tracing::warn!(thread = plan.thread, "{why}");
        status.tell(Some(why));
        if R::GOES_ON { self.abandon_and_renew() } else { self.fail(Failure::Work) }
    }

    /// Drops everything. The lanes are taken over again in time.
    fn fail(&mut self, failure: Failure) {
        self.give_up();
        let now = self.member.at();
        self.member.life.failed(now, failure);
    }

    /// One turn: read, tell, order.
    fn turn(&mut self) -> Result<(), Error> {
        let mut timeout = self.patience();
        if R::WAITS || timeout <= POLL_SHORT {
            if let Some(report) = self.role.wait(&mut self.member, timeout) {
                self.report(report);
            }
            timeout = Duration::ZERO;
        }
        for _ in 0..TURN_MAX {
            let polled = self.member.consumer.poll(timeout);
            let polled = polled.map(|polled| polled.map(|message| self.member.own(&message)));
            timeout = Duration::ZERO;
            self.events()?;
            match polled {
                None => break,
                Some(Ok(Some(record))) => self.role.read(&mut self.member, record),
                Some(Ok(None)) => {}
                Some(Err(error)) => self.read_failed(error)?,
            }
        }
        let reports = self.member.reports();
        while let Ok(report) = reports.try_recv() {
            self.report(report);
        }
        self.take_sign();
        self.renew_when_ready()?;
        self.let_go_when_due()?;
        if self.member.life.resumes_in(self.member.at()) == Some(Millis(0)) {
            self.take_over_again()?;
        }
        self.rejoin_when_due()?;
        self.bootstrap.after_outage(self.member.consumer.client());
        self.look_at_steps();
        self.look_at_topics();
        self.role.turn(&mut self.member);
        Ok(())
    }

    /// How long the next wait may take.
    fn patience(&self) -> Duration {
        let is_awaited = !self.member.in_flight.is_empty() || self.member.life.is_resting();
        let most = match &self.renewal {
            _ if is_awaited => POLL_SHORT,
            Some(_) => RENEWAL_POLL,
            None => POLL_MAX,
        };
        self.role.patience(&self.member).min(most)
    }

    /// When this machine's clock was set, librdkafka's own thread may wait for as long as that was: an order wakes it.
    fn look_at_steps(&mut self) {
        let steps = self.member.shared.steps.count();
        if steps != self.steps {
            self.steps = steps;
            self.wake_client();
        }
    }

    /// Carries out what was seen of the topics: holds the intakes or lets them go on, and starts again in topics that are
    /// others now.
    fn look_at_topics(&mut self) {
        let Membership { shared, status, assignment, held, .. } = self.member;
        let recreated = shared.seen.recreated();
        if recreated != self.recreated && assignment.is_some() {
            self.recreated = recreated;
            status.tell(Some("a topic was deleted and created again".to_owned()));
            self.fail(Failure::Work);
        }
        let holds = shared.seen.holds();
        if holds != held {
            self.member.hold(holds);
        }
    }

    fn report(&mut self, report: Report) {
        match report {
            Report::Done(id, late) => {
                let mut answers = Vec::new();
                let in_flight = &mut self.member.in_flight;
                if let Some(first) = in_flight.pop_front_if(|first| first.id == id) {
                    // Acknowledged is not committed yet.
                    if self.member.plan.delivery == Delivery::ExactlyOnce {
                        self.member.lows.extend(first.lows);
                    }
                    answers = first.answers;
                }
                self.role.committed(&mut self.member, Committed { id, answers, late });
            }
            Report::Failed { why, refused, doubted, acknowledged } => {
                self.member.status.tell(Some(why));
                if R::GOES_ON {
                    return self.renew(refused);
                }
                self.role.failed(&mut self.member, doubted, acknowledged);
                if let Some(refused) = refused {
                    // Brokers are there, so this is quick; otherwise what was acknowledged before would be delivered again
                    // with each try to find out who it was (`at_least_once`).
                    self.commit(CommitMode::Sync);
                    self.role.refused(&mut self.member, refused);
                }
                self.fail(Failure::Work);
            }
        }
    }

    fn read_failed(&mut self, error: KafkaError) -> Result<(), Error> {
        match errors::kind(&error) {
            ErrorKind::OffsetOutOfRange => {
                // Records were deleted under us, or the log was cut: never passed over in silence. The committed position tells
                // whether they were done, when the lanes are taken over again. Not at once: a thread that lost its lanes
                // meanwhile learns of that first.
                tracing::warn!(%error, "a position is outside of its log, taking the lanes over again");
                self.member.status.tell(Some("a position is outside of its log".to_owned()));
                self.member.consumer.context().is_outside();
                self.fail(Failure::Outside);
            }
            ErrorKind::MemberFenced => {
                return Err(Error::Fenced {
                    instance: self.member.plan.instance.clone(),
                    group: self.member.plan.group.clone(),
                });
            }
            _ if errors::is_consumer_lost(&error) => {
                return Err(Error::Consumer {
                    group: self.member.plan.group.clone(),
                    source: error,
                });
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
                let group = &self.member.plan.group;
                tracing::error!(%error, group, "no right to be a member of the group; asking again");
                // Until lanes are taken over again.
                self.member
                    .status
                    .tell(Some(format!("no right to be a member of group {group} (Read)")));
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
        let Some(trim) = &self.member.shared.trim else { return };
        // A position that was put right when the lanes were taken over may be older than what was committed since.
        for (source, low) in self.member.consumer.context().take_acknowledged() {
            let committed = self.member.lows.entry(source).or_insert(low);
            *committed = low.max(*committed);
        }
        let due = self.member.take_passed();
        let lows = due.into_iter().map(|(source, low)| {
            let (topic, partition) = self.member.topics().place(source);
            (topic.to_string(), partition, low.0)
        });
        trim.ask(lows.collect());
    }
}
