//! From a configuration to running lane threads: name, topics in force, engine's setup.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::config::{self, Config, Delivery, MAIN_INTAKE};
use crate::engine::allow::{Allow, BadPattern};
use crate::engine::ladder::Ladder;
use crate::engine::state::StateKey;
use crate::engine::{Arrival, Intake, Limits, Millis, Setup, Topics, Tracking};
use crate::kafka::meta::Secret;
use crate::kafka::topics::{self, Finding, Request, Severity};
use crate::kafka::{self, BrokerClock, Connection, LaneThreads, Member, Members, Settings, Wanted};

use crate::timers::{self, Indexing, Service, index};

use super::instance::{self, Instance};
use super::workers::{self, Worker};

/// Kafka is asked again after this long when it does not answer at the start.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// Between two lines that say so.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Where the index is, below the data directory.
const INDEX: &str = "index";

/// Why the lane threads could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This process has no name of its own; give it a data directory.
    #[error(transparent)]
    Instance(#[from] instance::Error),
    /// The topics are not there or cannot hold what is promised; every finding says what to do.
    #[error("the topics are not ready")]
    Topics(#[from] topics::Error),
    /// One broker alone may have what topics acknowledged, and nobody said that this is meant. Nothing has started.
    #[error(
        "{topics} topics with three replicas acknowledge what one broker alone has, and lose it with that broker: \
         {topic} has min.insync.replicas={is}. \
         If it is meant: --weak-topics (weak-topics = true). Else mend each: {remedy}"
    )]
    Weak {
        /// How many of them.
        topics: usize,
        /// The first of them.
        topic: String,
        /// What it asks for.
        is: String,
        /// The command that mends the first.
        remedy: String,
    },
    /// The index cannot be used, and a person must mend that.
    #[error("no index")]
    Index(#[from] index::Error),
    /// Calls of tasks cannot be made.
    #[error("no worker")]
    Worker(#[from] workers::Error),
    /// A client could not be made.
    #[error("could not make a Kafka client")]
    Client(#[source] kafka::KafkaError),
    /// A pattern of an allow-list is not a regular expression.
    #[error("allow-list of intake {intake}")]
    Allow {
        /// Which intake's.
        intake: String,
        /// What is wrong.
        #[source]
        source: BadPattern,
    },
}

/// How to reach the brokers of a configuration.
#[must_use]
pub fn connection(config: &Config) -> Connection {
    Connection::new(&config.brokers, config.kafka.given().clone())
}

/// What `topics` needs to know of a configuration.
#[must_use]
pub fn request(config: &Config) -> Request {
    Request {
        namespace: config.namespace.clone(),
        further_intakes: config.further_intakes().map(str::to_owned).collect(),
        lanes: config.lanes,
        holds: config.holds(),
        lead_max: config.lead(),
        horizon: config.horizon,
        tasks: false,
    }
}

/// What [`start`] has started.
pub struct Started {
    /// The lane threads.
    pub lane_threads: LaneThreads,
    /// Answers for the timers of their lanes.
    pub service: Arc<Service>,
    /// The name of this process, for as long as they run.
    pub instance: Instance,
    /// Makes the calls of tasks, where this process has that role.
    pub worker: Option<Worker>,
    /// Tells the others, and knows them.
    pub members: Members,
    /// The secret of the namespace.
    pub secret: Secret,
}

/// How long a tracked timer is overdue at least before it can be lost; a test does not wait for that.
fn lost_after() -> Millis {
    fail::fail_point!("lost_soon", |_| Millis(20_000));
    Limits::default().lost_after
}

/// Claims a name, checks the topics and starts the lane threads, which the others reach at `address`. Blocks while Kafka is asked, and, while Kafka does
/// not answer, asks again until `stopping` is set, having told why to `waits`.
///
/// # Errors
/// See [`Error`]; nothing runs then.
pub fn start(
    config: &Config,
    address: String,
    (runtime, stopping): (&Handle, &AtomicBool),
    waits: impl Fn(&str),
) -> Result<Started, Error> {
    let fresh = uuid::Uuid::new_v4().simple().to_string();
    let instance =
        Instance::claim(config.data_dir.as_deref(), config.instance.as_deref(), &fresh[..12])?;
    let connection = connection(config);
    let mut warned_at: Option<Instant> = None;
    let in_force = loop {
        match topics::check(&connection, &request(config)) {
            Err(error) if error.is_away() && !stopping.load(Ordering::Relaxed) => {
                if warned_at.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
                    warned_at = Some(Instant::now());
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        brokers = config.brokers,
                        "Kafka does not answer, trying again; if it runs elsewhere, set --brokers or WATERCLOCK_BROKERS"
                    );
                }
                waits(&format!("Kafka does not answer at {}", config.brokers));
                std::thread::sleep(RETRY_EVERY);
            }
            answer => break answer?,
        }
    };
    if !config.weak_topics {
        refuse_weak(&in_force.notes)?;
    }
    for note in &in_force.notes {
        tracing::warn!(topic = note.topic, what = %note.what, remedy = %note.remedy, "a topic setting could be better");
    }
    let mut first_intake = in_force.first_intake.clone();
    // An instance that ran without this note would, at a later start, take the intake that it finds then for the first
    // one.
    while first_intake.is_none() && !stopping.load(Ordering::Relaxed) {
        match topics::note_first_intake(&connection, &config.namespace) {
            Ok(id) => first_intake = Some(id),
            Err(error) => {
                let why = &error as &dyn std::error::Error;
                tracing::warn!(
                    error = why,
                    "could not record the topic id of the main intake, trying again"
                );
                waits(&format!(
                    "could not record the topic id of the main intake in {}.meta: {error}; trying again",
                    config.namespace
                ));
                std::thread::sleep(RETRY_EVERY);
            }
        }
    }
    let directory = instance.directory.join(INDEX);
    let indexing = Indexing::open(&config.namespace, &in_force, &directory)?;
    let key = StateKey::new(in_force.secret.bytes());
    let setup = setup(config, in_force.lanes, in_force.ladder, key, in_force.tasks)?;
    let (name, directory_id) = (&*instance.name, &*instance.directory_id);
    let settings =
        settings(config, connection, (name, directory_id), &BrokerClock::incarnation(), setup);
    let names = topics::Names::new(&config.namespace);
    let watched = Some(Wanted { names, specs: in_force.specs });
    let settings = Settings { watched, first_intake, ..settings };
    let has_worker = config.roles.worker && in_force.tasks && workers::are_possible(config);
    let me = Member {
        instance: instance.name.clone(),
        incarnation: settings.incarnation.clone(),
        address,
        tls: config.api.tls.certificate.is_some(),
        lanes: Vec::new(),
        threads: if config.roles.lanes { config.threads } else { 0 },
        allow: None,
        max_delay: Some(config.max_delay),
        tasks: true,
        worker: has_worker,
        api: config.roles.api,
        program: Some(env!("CARGO_PKG_VERSION").to_owned()),
        since: Some(kafka::wall_clock()),
        load: None,
    };
    tracing::info!(
        instance = instance.name,
        data_dir = %instance.directory.display(),
        namespace = config.namespace,
        lanes = in_force.lanes,
        threads = config.threads,
        delivery = %config.delivery,
        advertise = me.address,
        "starting"
    );
    let (lane_threads, service, view) =
        timers::start(&settings, indexing).map_err(Error::Client)?;
    let members = lane_threads.announce(me).map_err(Error::Client)?;
    let worker = match has_worker {
        true => {
            let registry = members.registry();
            Some(workers::start(config, &settings, view, registry, runtime)?)
        }
        false => None,
    };
    Ok(Started { lane_threads, service, worker, instance, members, secret: in_force.secret })
}

/// Refuses topics in which one broker alone may have what was acknowledged.
fn refuse_weak(notes: &[Finding]) -> Result<(), Error> {
    let weak = || notes.iter().filter(|note| note.severity == Severity::Weak);
    let Some(first) = weak().next() else { return Ok(()) };
    let (topic, is, remedy) = (first.topic.clone(), first.found.clone(), first.remedy.clone());
    Err(Error::Weak { topics: weak().count(), topic, is, remedy })
}

/// What every engine of this process is given.
///
/// # Errors
/// A pattern of an allow-list is wrong.
pub fn setup(
    config: &Config,
    lanes: u16,
    ladder: Ladder,
    key: StateKey,
    has_tasks: bool,
) -> Result<Arc<Setup>, Error> {
    let allow = |name: &str| -> Result<Allow, Error> {
        config.allow(name).map_err(|source| Error::Allow { intake: name.to_owned(), source })
    };
    let intake = |name: &str, set: &str| -> Result<Intake, Error> {
        let of = config.intake(set);
        Ok(Intake::new(name, of.delay, of.target.as_deref(), allow(set)?))
    };
    let mut intakes = vec![intake("", MAIN_INTAKE)?];
    for name in config.further_intakes() {
        intakes.push(intake(name, name)?);
    }
    let exactly_once = config.delivery == Delivery::ExactlyOnce;
    let limits = Limits {
        horizon: config.horizon,
        hop_linger: config.hop_linger(),
        // Without a transaction a batch is only what is acknowledged together: several may be on their way.
        batches_max: if exactly_once { 1 } else { 4 },
        aborts: exactly_once,
        batch_gap: if exactly_once { config.commit_interval } else { Millis(0) },
        memory_bytes: usize::try_from(config.memory.0).unwrap_or(usize::MAX)
            / usize::from(config.threads).max(1),
        max_delay: config.max_delay,
        history: config.history,
        lost_after: lost_after(),
        tracking: match config.tracking {
            config::Tracking::Full => Tracking::Full,
            config::Tracking::Cancellations => Tracking::Cancellations,
        },
        settle: Some(config.settle),
        arrival: match config.order {
            config::Order::ByDue => Arrival::ByDue,
            config::Order::Strict => Arrival::Strict,
        },
        tracked_max: usize::try_from(config.max_tracked).unwrap_or(usize::MAX)
            / usize::from(config.threads).max(1),
        ..Limits::default()
    };
    let topics = Topics::new(&config.namespace, intakes, ladder);
    let topics = if has_tasks { topics.with_tasks() } else { topics };
    Ok(Arc::new(Setup { lanes, topics, key, limits }))
}

/// What the lane threads are made from.
#[must_use]
pub fn settings(
    config: &Config,
    connection: Connection,
    (instance, directory_id): (&str, &str),
    incarnation: &str,
    setup: Arc<Setup>,
) -> Settings {
    let duration = |ms: Millis| Duration::from_millis(ms.0);
    Settings {
        connection,
        namespace: config.namespace.clone(),
        instance: instance.to_owned(),
        directory_id: directory_id.to_owned(),
        incarnation: incarnation.to_owned(),
        setup,
        delivery: match config.delivery {
            Delivery::ExactlyOnce => kafka::Delivery::ExactlyOnce,
            Delivery::AtLeastOnce => kafka::Delivery::AtLeastOnce,
        },
        threads: if config.roles.lanes { usize::from(config.threads) } else { 0 },
        session_timeout: duration(config.session_timeout),
        transaction_timeout: duration(config.transaction_timeout),
        drain: duration(config.drain),
        foreign_wait: duration(config.foreign_wait),
        watched: None,
        first_intake: None,
        embedded: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_that_one_broker_alone_may_have_are_refused_with_what_mends_them_and_others_are_not() {
        let finding = |topic: &str, severity| Finding {
            topic: topic.to_owned(),
            what: "min.insync.replicas".to_owned(),
            found: "1 of 3 replicas".to_owned(),
            wanted: "2".to_owned(),
            severity,
            remedy: format!("mend {topic}"),
        };
        assert!(refuse_weak(&[]).is_ok());
        assert!(refuse_weak(&[finding("a", Severity::Note)]).is_ok());
        let notes = [
            finding("a", Severity::Note),
            finding("b", Severity::Weak),
            finding("c", Severity::Weak),
        ];
        let error = refuse_weak(&notes).expect_err("two are weak").to_string();
        for word in ["2 topics", "b has", "1 of 3", "mend b", "--weak-topics"] {
            assert!(error.contains(word), "{word:?} is not in {error:?}");
        }
    }
}
