//! Where the demo plays: a broker, topics of its own, and how the lane threads are set up there.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use waterclock_engine::Millis;
use waterclock_engine::ladder::{Ladder, LadderError};
use waterclock_engine::state::StateKey;
use waterclock_kafka::topics::{self, Kind, Names, Request, TopicSpec};
use waterclock_kafka::{Connection, Delivery, Embedded, KafkaError, LaneThreads};
use waterclock_terminal::{Exit, Failure, Stop};

use super::kafka_script::{KafkaScriptError, ScriptedKafka};
use super::spec::Spec;
use crate::{DemoBroker, DemoConfig, Program};

/// A ladder short enough to be seen filling and emptying.
const HOLDS_MS: [u64; 5] = [1_000, 2_000, 5_000, 10_000, 20_000];
/// Half of the default, so that the short tiers are used, too.
const HORIZON: Millis = Millis(1_000);
/// Below the slack of the shortest tier (a quarter of its hold), so that collecting hops makes nothing late.
const HOP_LINGER: Millis = Millis(150);
/// Lanes, and partitions of the target.
pub(super) const LANES: u16 = 4;
/// What is left of a stop: the demo has waited for what it wants to see by then.
const DRAIN: Millis = Millis(3_000);
/// How long it may take until the group has no members any more: the session of one that could not leave.
const EMPTY_MAX: Duration = Duration::from_secs(15);
/// Between two looks at that.
const EMPTY_LOOK: Duration = Duration::from_millis(250);

/// Which broker is asked for.
#[derive(Clone, Debug)]
pub(super) enum Choice<'a> {
    /// The stand-in inside this process.
    Embedded,
    /// A Kafka that runs.
    Brokers(Connection),
    /// A Kafka of `scripts/kafka`, at this path or where it is found.
    Script(Option<&'a Path>),
}

/// Why there is no environment.
#[derive(Debug, thiserror::Error)]
enum EnvironmentError {
    #[error("could not start the embedded broker")]
    Embedded(#[source] KafkaError),
    #[error("could not get a Kafka for the demo")]
    Script(#[source] KafkaScriptError),
    #[error("could not make the demo's topics")]
    Topics(#[source] topics::Error),
    #[error("the demo's ladder does not hold")]
    Ladder(#[source] LadderError),
}

/// Everything that the demo stands on; what was made for it goes when this is dropped, so drop the clients first.
pub(super) struct Environment {
    pub(super) connection: Connection,
    pub(super) namespace: String,
    pub(super) target: Arc<str>,
    pub(super) ladder: Ladder,
    pub(super) horizon: Millis,
    pub(super) is_embedded: bool,
    config: DemoConfig,
    key: StateKey,
    broker: String,
    // Dropped in this order: topics before the broker that has them.
    _made: Option<MadeTopics>,
    _embedded: Option<Embedded>,
    _scripted: Option<ScriptedKafka>,
}

impl Environment {
    /// Gets the broker and makes the topics.
    pub(super) fn prepare(
        program: &dyn Program,
        choice: &Choice<'_>,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let tag = uuid::Uuid::new_v4().simple().to_string();
        let namespace = format!("waterclock-demo-{}", &tag[..8]);
        let target: Arc<str> = format!("{namespace}.leaves").into();
        let config = config(&namespace, &target, !matches!(choice, Choice::Embedded));
        let request = program.demo_topics(&config);
        let ladder = Ladder::new(&config.holds, &[], request.lead_max)
            .and_then(|ladder| ladder.check(config.horizon).map(|()| ladder))
            .map_err(|error| Failure::new(Exit::Internal, EnvironmentError::Ladder(error)))?;

        let scripted = match choice {
            Choice::Script(path) => Some(ScriptedKafka::start(*path, stop).map_err(|error| {
                Failure::new(Exit::Unavailable, EnvironmentError::Script(error))
            })?),
            _ => None,
        };
        let names = own_topics(&namespace, &target, &ladder);
        let embedded = match choice {
            Choice::Embedded => {
                Some(Embedded::start(names.iter().map(String::as_str), LANES).map_err(|error| {
                    Failure::new(Exit::Internal, EnvironmentError::Embedded(error))
                })?)
            }
            _ => None,
        };
        let (connection, broker) = match (choice, &embedded, &scripted) {
            (_, Some(embedded), _) => {
                (embedded.connection(), "embedded stand-in broker".to_owned())
            }
            (_, _, Some(scripted)) => {
                let connection = Connection::new(&scripted.brokers, BTreeMap::new());
                let broker = format!("Kafka by scripts/kafka at {}", scripted.brokers);
                (connection, broker)
            }
            (Choice::Brokers(connection), ..) => {
                (connection.clone(), format!("Kafka at {}", connection.brokers))
            }
            _ => unreachable!("a choice without a broker"),
        };
        let (made, key) = if embedded.is_some() {
            let secret = [*uuid::Uuid::new_v4().as_bytes(), *uuid::Uuid::new_v4().as_bytes()];
            let mut bytes = [0; 32];
            bytes.copy_from_slice(secret.as_flattened());
            (None, StateKey::new(bytes))
        } else {
            let (made, key) =
                make_topics(&connection, &request, names, &target).map_err(|error| {
                    let exit =
                        if error.is_away() { Exit::Unavailable } else { Exit::Configuration };
                    Failure::new(exit, EnvironmentError::Topics(error))
                })?;
            (Some(made), key)
        };

        Ok(Self {
            connection,
            namespace,
            target,
            ladder,
            horizon: config.horizon,
            is_embedded: embedded.is_some(),
            config,
            key,
            broker,
            _made: made,
            _embedded: embedded,
            _scripted: scripted,
        })
    }

    /// Starts the lane threads.
    pub(super) fn start(&self, program: &dyn Program) -> Result<LaneThreads, Failure> {
        let broker = DemoBroker {
            connection: self.connection.clone(),
            ladder: self.ladder.clone(),
            key: self.key.clone(),
            is_embedded: self.is_embedded,
        };
        program.start_demo(&self.config, broker)
    }

    /// What is to be said about it.
    pub(super) fn spec(&self, total: Millis, rate: u32) -> Spec {
        let (delivery, note, measured) = if self.is_embedded {
            (
                "at_least_once",
                "A stand-in: nothing on disk, no isolation or fencing. Exactly once: --kafka",
                "due time to arrival in the consumer (it stamps no append time)",
            )
        } else {
            (
                "exactly_once",
                "A real Kafka; topics of this demo only, deleted at the end",
                "due time to append time in the target, by the broker's clock",
            )
        };
        Spec {
            namespace: self.namespace.clone(),
            broker: self.broker.clone(),
            delivery,
            note: note.to_owned(),
            measured,
            tiers: self.ladder.tiers().iter().map(|tier| tier.hold.to_string()).collect(),
            lanes: LANES,
            total,
            rate,
        }
    }
}

fn config(namespace: &str, target: &str, exactly_once: bool) -> DemoConfig {
    DemoConfig {
        namespace: namespace.to_owned(),
        target: target.to_owned(),
        delivery: if exactly_once { Delivery::ExactlyOnce } else { Delivery::AtLeastOnce },
        holds: HOLDS_MS.map(Millis).to_vec(),
        horizon: HORIZON,
        hop_linger: HOP_LINGER,
        lanes: LANES,
        drain: DRAIN,
    }
}

/// Lane topics in the engine's order, then dead letters, timers and the target; without `meta`, which only Kafka has.
fn own_topics(namespace: &str, target: &str, ladder: &Ladder) -> Vec<String> {
    let names = Names::new(namespace);
    let mut all = names.of_lanes(&[], ladder, false);
    all.extend([names.dead(), names.timers(), target.to_owned()]);
    all
}

/// Makes the topics on a real Kafka as `topics apply` does, and the target beside them.
fn make_topics(
    connection: &Connection,
    request: &Request,
    mut names: Vec<String>,
    target: &str,
) -> Result<(MadeTopics, StateKey), topics::Error> {
    let own = Names::new(&request.namespace);
    names.extend([own.meta(), own.tasks(), own.results()]);
    // First, so that what was made before something failed goes, too.
    let made = MadeTopics {
        connection: connection.clone(),
        group: request.namespace.clone(),
        topics: names,
    };
    if let Err(error) = topics::apply(connection, request) {
        if matches!(error, topics::Error::Away(_)) {
            // Nothing was made, and nobody answers who could delete it.
            std::mem::forget(made);
        }
        return Err(error);
    }
    let stamped = ("message.timestamp.type".to_owned(), "LogAppendTime".to_owned());
    let spec = TopicSpec {
        name: target.to_owned(),
        kind: Kind::Dead,
        partitions: i32::from(LANES),
        replication: -1,
        must: BTreeMap::from([stamped]),
        advice: BTreeMap::new(),
    };
    topics::create(connection, &[spec])?;
    let in_force = topics::check(connection, request)?;
    Ok((made, StateKey::new(in_force.secret.bytes())))
}

/// Topics that were made for the demo, deleted when dropped.
struct MadeTopics {
    connection: Connection,
    group: String,
    topics: Vec<String>,
}

impl Drop for MadeTopics {
    fn drop(&mut self) {
        let group = &self.group;
        if let Err(error) = topics::delete(&self.connection, &self.topics) {
            super::tell(&format!("the topics {group}.* may be left: {}", because(&error)));
        }
        let until = Instant::now() + EMPTY_MAX;
        loop {
            match topics::delete_group(&self.connection, group) {
                Ok(()) => return,
                Err(error) if error.is_busy_group() && Instant::now() < until => {
                    std::thread::sleep(EMPTY_LOOK);
                }
                Err(error) => {
                    return super::tell(&format!(
                        "the group {group} is left: {}; Kafka forgets an empty one in time",
                        because(&error)
                    ));
                }
            }
        }
    }
}

/// The error and what it came from.
fn because(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}
