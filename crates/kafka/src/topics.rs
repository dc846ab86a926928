//! The topics that waterclock owns: their names, what they must be, and what is there.
//!
//! What they must be is data, in `topics/`, with the reasons in `topics/README.md`.
//!
//! # Invariants
//! 1. No existing topic is changed: only missing topics are created.
//! 2. The ladder in force changes only while the group has no member. A tier that is taken away stays *draining* (read,
//!    not written to) until nothing is pending in it.
//! 3. The number of lanes of a namespace never changes.
//! 4. Tasks come into force once, as a changed ladder does: while the group has no member. Until then their two topics are
//!    neither made nor looked at. A namespace that is new has tasks from its start.
//!
//! All calls block, for a bounded time each: call them before the start, or on a thread of their own.

mod admin;
mod diff;
mod in_force;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use serde::Deserialize;

use crate::client::NoAnswer;
use crate::client::errors::{self, ErrorKind};
use crate::meta;
use waterclock_engine::ladder::{Ladder, LadderError};
use waterclock_engine::{Millis, Topics};

pub(crate) use admin::{block, inspect_with};
pub use admin::{create, delete, delete_group, inspect, live_members};
pub use diff::{Finding, Found, FoundTopic, Severity, diff};
pub use in_force::{
    Applied, InForce, Request, Survey, apply, check, compare, note_first_intake, survey,
};

/// Lanes of a namespace for which no number was asked.
pub const LANES_DEFAULT: u16 = 6;
/// More replicas cost more than the third already gives.
const REPLICATION_MAX: usize = 3;
/// Fewest partitions of `<ns>.meta`: brokers may be added later.
const META_PARTITIONS_MIN: usize = 6;
/// What each step from intake to tier to dead letters must add to `max.message.bytes`: the headers that it adds.
const STEP_BYTES: u64 = 64 << 10;

/// The names of one namespace's topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    namespace: String,
}

impl Names {
    /// Names below `namespace`, which is also the consumer group's name.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned() }
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The main intake.
    #[must_use]
    pub fn intake(&self) -> String {
        self.of(Kind::Intake)
    }

    /// A further intake.
    #[must_use]
    pub fn further_intake(&self, name: &str) -> String {
        format!("{}.{name}", self.of(Kind::Intake))
    }

    /// The tier of a hold, as in `waterclock.delay.1m30s`.
    #[must_use]
    pub fn tier(&self, hold: Millis) -> String {
        format!("{}{hold}", self.tier_prefix())
    }

    /// Dead letters.
    #[must_use]
    pub fn dead(&self) -> String {
        self.of(Kind::Dead)
    }

    /// The changelog of tracked timers.
    #[must_use]
    pub fn timers(&self) -> String {
        self.of(Kind::Timers)
    }

    /// What is in force.
    #[must_use]
    pub fn meta(&self) -> String {
        self.of(Kind::Meta)
    }

    /// What lanes have given to workers.
    #[must_use]
    pub fn tasks(&self) -> String {
        Topics::tasks_topic(&self.namespace)
    }

    /// What workers say of it.
    #[must_use]
    pub fn results(&self) -> String {
        Topics::results_topic(&self.namespace)
    }

    /// The group of the workers.
    #[must_use]
    pub fn workers_group(&self) -> String {
        format!("{}-workers", self.namespace)
    }

    fn of(&self, kind: Kind) -> String {
        format!("{}.{}", self.namespace, template(kind).name)
    }

    fn tier_prefix(&self) -> String {
        format!("{}.", self.of(Kind::Delay))
    }

    /// The topics of the lanes in the order of the engine's `TopicId`: the main intake, the further ones in the
    /// order given, then the tiers, shortest hold first.
    #[must_use]
    pub fn of_lanes(&self, further_intakes: &[String], ladder: &Ladder) -> Vec<String> {
        let further = further_intakes.iter().map(|name| self.further_intake(name));
        let tiers = ladder.tiers().iter().map(|tier| self.tier(tier.hold));
        std::iter::once(self.intake()).chain(further).chain(tiers).collect()
    }
}

/// What a topic is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The lanes' command log.
    Intake,
    /// A tier.
    Delay,
    /// Dead letters.
    Dead,
    /// What is in force, and the clocks.
    Meta,
    /// The changelog of tracked timers.
    Timers,
    /// What lanes have given to workers.
    Tasks,
    /// What workers say of it.
    Results,
}

impl Kind {
    /// Whether it is there for tasks alone.
    #[must_use]
    pub fn is_of_tasks(self) -> bool {
        matches!(self, Self::Tasks | Self::Results)
    }
}

/// One of the files in `topics/`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Template {
    name: String,
    partitions: Partitions,
    must: BTreeMap<String, String>,
    advice: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Partitions {
    Lanes,
    Brokers,
}

fn template(kind: Kind) -> &'static Template {
    static FILES: LazyLock<[Template; 7]> = LazyLock::new(|| {
        [
            include_str!("../../../topics/intake.toml"),
            include_str!("../../../topics/delay.toml"),
            include_str!("../../../topics/dead.toml"),
            include_str!("../../../topics/meta.toml"),
            include_str!("../../../topics/timers.toml"),
            include_str!("../../../topics/tasks.toml"),
            include_str!("../../../topics/results.toml"),
        ]
        // Part of the program, not input; a test reads all of them.
        .map(|text| {
            toml::from_str(text).unwrap_or_else(|error| panic!("a file in topics/: {error}"))
        })
    });
    &FILES[kind as usize]
}

/// What one topic must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicSpec {
    /// Its full name.
    pub name: String,
    /// What it is for.
    pub kind: Kind,
    /// How many partitions it is created with.
    pub partitions: i32,
    /// How many replicas it is created with.
    pub replication: i32,
    /// Settings that a promise rests on.
    pub must: BTreeMap<String, String>,
    /// Settings that serve well.
    pub advice: BTreeMap<String, String>,
}

/// Every topic that this namespace needs: intakes, tiers (those being drained, too), dead letters, meta, timers; and with
/// tasks their two.
#[must_use]
pub fn wanted(
    names: &Names,
    lanes: u16,
    ladder: &Ladder,
    further_intakes: &[String],
    brokers: usize,
    with_tasks: bool,
) -> Vec<TopicSpec> {
    let replication = brokers.clamp(1, REPLICATION_MAX);
    let spec = |name: String, kind: Kind| {
        let template = template(kind);
        let partitions = match template.partitions {
            Partitions::Lanes => i32::from(lanes),
            Partitions::Brokers => (2 * brokers).max(META_PARTITIONS_MIN) as i32,
        };
        let mut advice = template.advice.clone();
        let in_sync = if replication >= REPLICATION_MAX { "2" } else { "1" };
        advice.insert(MIN_INSYNC.to_owned(), in_sync.to_owned());
        let must = template.must.clone();
        TopicSpec { name, kind, partitions, replication: replication as i32, must, advice }
    };
    let of_lanes = names.of_lanes(further_intakes, ladder);
    let intakes = 1 + further_intakes.len();
    let mut specs: Vec<TopicSpec> = of_lanes
        .into_iter()
        .enumerate()
        .map(|(at, name)| spec(name, if at < intakes { Kind::Intake } else { Kind::Delay }))
        .collect();
    specs.push(spec(names.dead(), Kind::Dead));
    specs.push(spec(names.meta(), Kind::Meta));
    specs.push(spec(names.timers(), Kind::Timers));
    if with_tasks {
        specs.push(spec(names.tasks(), Kind::Tasks));
        specs.push(spec(names.results(), Kind::Results));
    }
    specs
}

/// Named here since it depends on the replicas, which no file can know.
const MIN_INSYNC: &str = "min.insync.replicas";

/// Why the topics could not be looked at, or are not fit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing was changed. It says why, if anybody knows.
    #[error("could not list the topics")]
    Away(#[from] NoAnswer),
    /// Nothing was changed. Look at brokers, network and permissions.
    #[error("could not {what}")]
    Kafka {
        /// What was tried.
        what: String,
        /// Kafka's answer.
        #[source]
        source: KafkaError,
    },
    /// Kafka refused one topic; others may have been created. Mend the cause and apply again.
    #[error("could not {what} topic {topic}")]
    Topic {
        /// What was tried.
        what: &'static str,
        /// The topic's name.
        topic: String,
        /// Kafka's answer.
        #[source]
        source: RDKafkaErrorCode,
    },
    /// Topics were created, but had no leader in time. Apply again.
    #[error(
        "topic {topic} has no leader for every partition yet; run `waterclock topics apply` again"
    )]
    NoLeader {
        /// The first such topic.
        topic: String,
    },
    /// What is in force could not be read or written.
    #[error("what is in force is not known")]
    Meta(#[from] meta::Error),
    /// The topics cannot hold what is promised. Mend what is listed.
    #[error("{}", Listed(.0))]
    Misconfigured(Vec<Finding>),
    /// Nothing is in force. Apply first.
    #[error("namespace {namespace} has no topics yet; run `waterclock topics apply`")]
    NotApplied {
        /// The namespace.
        namespace: String,
    },
    /// Lanes are fixed. Take the number in force, or another namespace.
    #[error(
        "lanes: {requested} asked, {in_force} in force in namespace {namespace}; the number of lanes is fixed for a \
         namespace: leave it out, or choose another namespace"
    )]
    Lanes {
        /// The namespace.
        namespace: String,
        /// The number that was set.
        requested: u16,
        /// The number that stands in meta.
        in_force: u16,
    },
    /// The instance was told another ladder than the one in force.
    #[error(
        "ladder: {requested} asked, {in_force} in force in namespace {namespace}; leave it out, or stop all instances \
         and run `waterclock topics apply --ladder {requested}`"
    )]
    Ladder {
        /// The namespace.
        namespace: String,
        /// The holds that were set.
        requested: String,
        /// The holds that stand in meta.
        in_force: String,
    },
    /// Members would go on with the old ladder. Stop them first.
    #[error(
        "the ladder of namespace {namespace} cannot change while its group has live members ({members}); stop all \
         instances, then run `waterclock topics apply --ladder {requested}` again"
    )]
    Live {
        /// The namespace, which is the group's name.
        namespace: String,
        /// How many members the group has.
        members: usize,
        /// The holds that were asked.
        requested: String,
    },
    /// Members of before know nothing of tasks, and the others would go on without. Stop them first.
    #[error(
        "tasks cannot come into force in namespace {namespace} while its group has live members ({members}); stop all \
         instances, then run `waterclock topics apply --tasks` again"
    )]
    LiveForTasks {
        /// The namespace, which is the group's name.
        namespace: String,
        /// How many members the group has.
        members: usize,
    },
    /// The holds are no ladder, or do not go with the horizon.
    #[error("the ladder does not hold")]
    BadLadder(#[from] LadderError),
}

/// Nobody was asked: no broker takes a connection.
impl From<KafkaError> for Error {
    fn from(source: KafkaError) -> Self {
        Self::Kafka { what: "look at the topics".to_owned(), source }
    }
}

impl Error {
    /// Whether a group was not deleted since it has members.
    #[must_use]
    pub fn is_busy_group(&self) -> bool {
        matches!(self, Self::Kafka { source, .. } if errors::kind(source) == ErrorKind::GroupBusy)
    }

    /// Whether it is only that Kafka did not answer: trying again may help.
    #[must_use]
    pub fn is_away(&self) -> bool {
        matches!(
            self,
            Self::Away(_)
                | Self::Kafka { .. }
                | Self::NoLeader { .. }
                | Self::Meta(
                    meta::Error::Away(_)
                        | meta::Error::Kafka { .. }
                        | meta::Error::Slow { .. }
                        | meta::Error::Read(_)
                        | meta::Error::Unacknowledged { .. }
                )
        )
    }
}

/// Findings as one text, one a line.
struct Listed<'a>(&'a [Finding]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0.len();
        write!(
            f,
            "{n} {} not fit for what is promised:",
            if n == 1 { "topic setting is" } else { "topic settings are" }
        )?;
        for finding in self.0 {
            write!(f, "\n  {finding}")?;
        }
        Ok(())
    }
}

/// Holds as one writes them on a command line: `1s,3s,5s`.
#[must_use]
pub fn holds_text(holds: &[Millis]) -> String {
    holds.iter().map(Millis::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests;
