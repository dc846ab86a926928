//! All lane threads of a process, and what they share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use rdkafka::error::KafkaError;
use tokio::sync::Notify;

use super::Delivery;
use super::changelog_end::Written;
use super::load::{Meter, Work};
use super::thread::{self, LaneParts, Plan, Policies, Shared, Status};
use super::timers::Timers;
use super::workers::WorkerView;
use crate::client::events::Events;
use crate::client::resilient_admin::ResilientAdmin;
use crate::client::{Connection, SubmitError, Submitter};
use crate::cluster::backlog::{self, Backlog, Count};
use crate::cluster::delete_records::Deletes;
use crate::cluster::end_offsets::EndOffsets;
use crate::cluster::topic_monitor::{Look, TopicHealth, Wanted};
use crate::cluster::upkeep::{Needs, Upkeep};
use crate::cluster::wall_clock_steps::{Looking, Steps};
use crate::cluster::{BrokerClock, Lookup, Probe};
use crate::meta::{Load, Member, Members, MetaWriter, RegistryFeed, SharedRoster};
use waterclock_engine::allow::Allow;
use waterclock_engine::{Lane, Setup, TopicId};
use waterclock_telemetry::LaneFigures;

/// What the lane threads of a process are made from.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How to reach the brokers.
    pub connection: Connection,
    /// The namespace, which is the group.
    pub namespace: String,
    /// This process's name.
    pub instance: String,
    /// Tells its data directory from others: the process that has it may take the place of the last one that had it.
    pub directory_id: String,
    /// Tells this start from the one before.
    pub incarnation: String,
    /// What every engine is given.
    pub setup: Arc<Setup>,
    /// Exactly or at least once.
    pub delivery: Delivery,
    /// How many lane threads.
    pub threads: usize,
    /// `session.timeout.ms`.
    pub session_timeout: Duration,
    /// `transaction.timeout.ms`.
    pub transaction_timeout: Duration,
    /// How long a stop may take to finish what has begun.
    pub drain: Duration,
    /// How long what is due waits for a transaction of somebody else that stays open on an intake.
    pub foreign_wait: Duration,
    /// The topics as they must be, looked at now and then; `None`: nobody looks.
    pub watched: Option<Wanted>,
    /// The id of the main intake that was there first, if it was written down.
    pub first_intake: Option<String>,
    /// A broker inside the process (the demo).
    pub embedded: bool,
}

/// What is known of the brokers, for lane threads and for the part that keeps their lanes' timers.
pub struct ClusterView {
    admin: ResilientAdmin,
    clock: Arc<BrokerClock>,
    ends: EndOffsets,
    written: Arc<Written>,
    steps: Arc<Steps>,
    looking: Looking,
    meta: Option<Arc<MetaWriter>>,
    probe: Option<Probe>,
    events: Events,
    seen: Arc<TopicHealth>,
    roster: SharedRoster,
    work: Arc<Work>,
    deletes: Deletes,
}

impl ClusterView {
    /// Makes the clients, which ask from now on.
    ///
    /// # Errors
    /// A client could not be made: the configuration is wrong.
    pub fn new(settings: &Settings) -> Result<Self, KafkaError> {
        let Settings { connection, embedded, .. } = settings;
        let clock = Arc::new(if *embedded { BrokerClock::local() } else { BrokerClock::new() });
        let steps = Arc::new(Steps::default());
        let events = Events::start("wc-events")?;
        let looking = Looking::start(Arc::clone(&steps), &events)?;
        // The embedded broker has one member, and tells no time.
        let meta = match *embedded {
            true => None,
            false => Some(MetaWriter::new(connection, &format!("{}.meta", settings.namespace))?),
        };
        let probe =
            |meta: &Arc<MetaWriter>| Probe::start_with(Arc::clone(meta), Arc::clone(&clock));
        let probe = meta.as_ref().map(probe).transpose()?;
        // One client for all questions. None of them stays with a broker for long.
        let admin = ResilientAdmin::new(connection, "waterclock-admin")?;
        let ends = EndOffsets::new(admin.clone(), Arc::clone(&clock));
        let written = Arc::new(Written::new(settings.setup.lanes));
        let (seen, roster, work) = (Arc::default(), SharedRoster::default(), Arc::default());
        let deletes = Deletes::new(admin.clone());
        Ok(Self {
            admin,
            clock,
            ends,
            written,
            steps,
            looking,
            meta,
            probe,
            events,
            seen,
            roster,
            work,
            deletes,
        })
    }

    /// A producer of commands, whose events are taken by the thread that takes those of the whole process.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub fn submitter(&self, connection: &Connection) -> Result<Submitter, KafkaError> {
        Submitter::with_events(connection, || Ok(self.events.clone())).map_err(
            |error| match error {
                SubmitError::Refused { source, .. } => source,
                _ => KafkaError::Canceled,
            },
        )
    }

    /// What the worker of this process shares with its lane threads. What a worker has done with is deleted only while there
    /// are [`LaneThreads`].
    #[must_use]
    pub fn for_worker(&self) -> WorkerView {
        WorkerView(Shared {
            seen: Arc::clone(&self.seen),
            steps: Arc::clone(&self.steps),
            clock: Arc::clone(&self.clock),
            ends: self.ends.clone(),
            roster: Arc::clone(&self.roster),
            work: Arc::clone(&self.work),
            trim: Some(self.deletes.trim()),
            stop: Arc::default(),
            drain: Duration::ZERO,
        })
    }

    /// The brokers' time.
    #[must_use]
    pub fn clock(&self) -> &Arc<BrokerClock> {
        &self.clock
    }

    /// Says where partitions end.
    #[must_use]
    pub fn ends(&self) -> &EndOffsets {
        &self.ends
    }

    /// How far the changelog is written.
    #[must_use]
    pub fn written(&self) -> &Arc<Written> {
        &self.written
    }
}

/// The lane threads of a process, running.
#[derive(Debug)]
pub struct LaneThreads {
    stop: Arc<AtomicBool>,
    statuses: Vec<Arc<Status>>,
    ended: Receiver<Result<(), thread::Error>>,
    ends: Arc<Notify>,
    clock: Arc<BrokerClock>,
    policies: Arc<Policies>,
    roster: SharedRoster,
    work: Arc<Work>,
    registry: RegistryFeed,
    connection: Connection,
    meta: Option<Arc<MetaWriter>>,
    _probe: Option<Probe>,
    backlog: Backlog,
    seen: Arc<TopicHealth>,
    _upkeep: Upkeep,
    _looking: Looking,
    events: Events,
}

/// Says that a thread of a member ends, and why.
pub(super) struct End {
    pub(super) results: Option<Sender<Result<(), thread::Error>>>,
    pub(super) ends: Arc<Notify>,
}

impl End {
    pub(super) fn tell(self, result: Result<(), thread::Error>) {
        if let Some(results) = &self.results {
            let _ = results.send(result);
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // Before: who wakes finds the result, or that there will be none.
        drop(self.results.take());
        self.ends.notify_one();
    }
}

impl LaneThreads {
    /// Starts the lane threads; they join the group once the brokers' time is known. They alone hold `timers`.
    ///
    /// # Errors
    /// A client could not be made: the configuration is wrong. Nothing runs then.
    pub fn start(
        settings: &Settings,
        view: ClusterView,
        timers: Arc<dyn Timers>,
    ) -> Result<Self, KafkaError> {
        let Settings { connection, embedded, .. } = settings;
        let ClusterView {
            admin,
            clock,
            ends,
            written,
            steps,
            looking,
            meta,
            probe,
            events,
            seen,
            roster,
            work,
            deletes,
        } = view;
        let stop = Arc::new(AtomicBool::new(false));
        let policies = Arc::new(Policies::new(Arc::clone(&settings.setup)));
        let look = settings
            .watched
            .clone()
            .map(|wanted| Look::new(connection, admin.clone(), wanted, Arc::clone(&seen)));
        let lookup = Lookup::new(admin.clone(), *embedded);
        let shared = Shared {
            seen: Arc::clone(&seen),
            steps,
            clock: Arc::clone(&clock),
            ends,
            trim: (!*embedded).then(|| deletes.trim()),
            roster: Arc::clone(&roster),
            work: Arc::clone(&work),
            stop: Arc::clone(&stop),
            drain: settings.drain,
        };
        let topics = &settings.setup.topics;
        let figures = Arc::new(LaneFigures::new(
            (0..topics.intakes.len()).map(|at| backlog::label(topics, TopicId(at as u16))),
            topics.ladder.tiers().iter().map(|tier| tier.hold),
        ));
        let registry = RegistryFeed::default();
        let parts = LaneParts {
            setup: Arc::clone(&settings.setup),
            policies: Arc::clone(&policies),
            foreign_wait: settings.foreign_wait,
            first_intake: settings.first_intake.clone(),
            lookup: lookup.clone(),
            timers,
            written,
            figures,
            work: Arc::clone(&work),
            registry: registry.clone(),
        };
        let (results, ended) = crossbeam_channel::unbounded();
        let ends = Arc::new(Notify::new());
        let mut statuses = Vec::with_capacity(settings.threads);
        for thread in 0..settings.threads {
            let status = Arc::new(Status::default());
            statuses.push(Arc::clone(&status));
            let (shared, parts) = (shared.clone(), parts.clone());
            let end = End { results: Some(results.clone()), ends: Arc::clone(&ends) };
            let plan = Plan {
                connection: connection.clone(),
                namespace: settings.namespace.clone(),
                group: settings.namespace.clone(),
                instance: settings.instance.clone(),
                directory_id: settings.directory_id.clone(),
                thread,
                thread_name: thread.to_string(),
                incarnation: settings.incarnation.clone(),
                record_bytes_max: settings.setup.limits.record_bytes_max,
                batch_bytes: Arc::clone(lookup.record_bytes_least()),
                delivery: settings.delivery,
                session_timeout: settings.session_timeout,
                transaction_timeout: settings.transaction_timeout,
                embedded: *embedded,
            };
            std::thread::Builder::new()
                .name(format!("wc-lanes-{thread}"))
                .spawn(move || {
                    while shared.clock.now(Instant::now()).is_none() {
                        if shared.stop.load(Ordering::Relaxed) {
                            drop(parts);
                            return end.tell(Ok(()));
                        }
                        status.beat();
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    let run = || thread::run_lanes(&plan, &shared, &parts, &status);
                    let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
                        let what = panic.downcast_ref::<String>().cloned();
                        let what =
                            what.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                        Err(thread::Error::Panicked { thread, what: what.unwrap_or_default() })
                    });
                    // Before: once the last thread is known to have ended, nothing uses the data directory any more.
                    drop(parts);
                    end.tell(result);
                })
                .map_err(|_| KafkaError::Canceled)?;
        }
        let backlog = Backlog::default();
        // The embedded broker lists no offsets.
        let count = (!*embedded).then(|| {
            let reads = statuses.iter().map(|status| Arc::clone(&status.reads)).collect();
            Count::new(admin, Arc::clone(&settings.setup), reads, lookup, &backlog, connection)
        });
        let upkeep = Upkeep::start(Needs { deletes, look, count }, &events)?;
        Ok(Self {
            stop,
            statuses,
            ended,
            ends,
            clock,
            policies,
            roster,
            work,
            registry,
            connection: connection.clone(),
            meta,
            _probe: probe,
            backlog,
            seen,
            _upkeep: upkeep,
            _looking: looking,
            events,
        })
    }

    /// In place of [`announce`](Self::announce): this process is alone in its namespace, and nobody pauses a target there or gives it
    /// a rate. Without one of the two no record goes to a target.
    pub fn stay_alone(&self) {
        self.registry.publish_nothing();
    }

    /// Announces this process to the other members, as `me` with the lanes that its threads run, the allow-lists that are in
    /// force and what it has to do, and hears the others: that shows which of them died.
    ///
    /// # Errors
    /// The reader could not be made: the configuration is wrong. Or this is the embedded broker, which has one member.
    pub fn announce(&self, me: Member) -> Result<Members, KafkaError> {
        let writer = self.meta.clone().ok_or(KafkaError::Canceled)?;
        let (statuses, policies) = (self.statuses.clone(), Arc::clone(&self.policies));
        let describe = move || {
            let lanes = owned(&statuses);
            Member { lanes, allow: Some(policies.said()), ..me.clone() }
        };
        let (statuses, backlog) = (self.statuses.clone(), self.backlog.clone());
        let mut meter = Meter::new(Arc::clone(&self.work));
        let load = move || {
            let timers = statuses.iter().map(|status| status.timers()).sum::<Option<u64>>()?;
            let pending = backlog.in_lanes(&owned(&statuses))?;
            Some(Load { pending, timers, ..meter.read(Instant::now()) })
        };
        let seen = Arc::clone(&self.seen);
        let recreated = move || seen.recreated();
        let roster = Arc::clone(&self.roster);
        let registry = self.registry.clone();
        Members::start(
            &self.connection,
            writer,
            (describe, load),
            recreated,
            roster,
            registry,
            &self.events,
        )
    }

    /// What is known of projects and services; nothing before [`announce`](Self::announce).
    #[must_use]
    pub fn registry(&self) -> &RegistryFeed {
        &self.registry
    }

    /// How many records stand in each intake and tier, in the lanes that run here, as counted every 15 seconds.
    #[must_use]
    pub fn backlog(&self) -> Vec<(String, u64)> {
        self.backlog.counted()
    }

    /// What each thread is doing.
    #[must_use]
    pub fn statuses(&self) -> &[Arc<Status>] {
        &self.statuses
    }

    /// Puts other allow-lists in force, one for each intake, in their order: for what comes in, and for what fires.
    pub fn allow(&self, allow: impl IntoIterator<Item = Allow>) {
        self.policies.allow(allow);
    }

    /// How long no broker has acknowledged a probe of its clock; they are asked every second. `None` before the first.
    #[must_use]
    pub fn silence(&self) -> Option<Duration> {
        self.clock.silence(Instant::now())
    }

    /// Brokers whose clocks differ much from this machine's, and by how many milliseconds they are ahead.
    #[must_use]
    pub fn skewed(&self) -> Vec<(i32, i64)> {
        self.clock.skewed()
    }

    /// The problems of the topics, for people. While there are any, no new record is admitted.
    #[must_use]
    pub fn misconfigured(&self) -> Vec<String> {
        self.seen.misconfigured()
    }

    /// What of the topics one lost broker would take along, for people.
    #[must_use]
    pub fn weak(&self) -> Vec<String> {
        self.seen.weak()
    }

    /// One message for each thread that has ended, with why it did.
    #[must_use]
    pub fn ended(&self) -> &Receiver<Result<(), thread::Error>> {
        &self.ended
    }

    /// Waits until a thread has ended since this was called the last time; for one caller. Then [`ended`](Self::ended) has it.
    pub async fn ends(&self) {
        self.ends.notified().await;
    }

    /// Tells every thread to finish what has begun and leave; [`ended`](Self::ended) says when.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Drop for LaneThreads {
    /// Threads that nobody can stop any more must not go on.
    fn drop(&mut self) {
        self.stop();
    }
}

/// The lanes of all threads, ascending.
fn owned(statuses: &[Arc<Status>]) -> Vec<Lane> {
    let mut lanes: Vec<Lane> = statuses.iter().flat_map(|status| status.owned()).collect();
    lanes.sort_unstable();
    lanes.dedup();
    lanes
}
