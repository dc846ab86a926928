//! Finds out what is wrong with a cluster for a namespace, before it hurts: asks the brokers, and draws conclusions.
//!
//! Asking (`ask`, `clocks`) gives [`Facts`]; concluding (`cluster`, `lanes`, `rights`) is pure: the same facts and the
//! same [`Wish`] give the same [`Finding`]s.
//!
//! # Invariants
//! 1. Nothing is changed. Unless the doctor is to read only, it writes small probe records to `<ns>.meta`, as a running
//!    instance does, some of them in transactions under `<ns>/doctor`.
//! 2. A question that is not answered is a finding, not an error; only a cluster that does not answer at all is one.
//! 3. Every question has a bound in time.
//!
//! It knows nothing of this machine but its clock: the data directory is the caller's matter.

mod acls;
mod ask;
mod clocks;
mod cluster;
mod lanes;
mod rights;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rdkafka::error::KafkaError;

use crate::client::NoAnswer;
pub use crate::client::raw::ask::{Group, Member, Right, Rights};
use crate::topics::{Request, Survey};
use waterclock_engine::allow::Allow;
use waterclock_engine::{Millis, UnixMillis};

pub use acls::{AclResource, AclRole, Acls, Grant, acls};
pub use ask::ask;

/// What is configured, as far as it asks something of the cluster.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Namespace, intakes, lanes, ladder.
    pub request: Request,
    /// Transactions are used.
    pub exactly_once: bool,
    /// `session.timeout.ms`.
    pub session_timeout: Millis,
    /// `transaction.timeout.ms`.
    pub transaction_timeout: Millis,
    /// How long hops are collected.
    pub hop_linger: Millis,
    /// Least time between two commits.
    pub commit_interval: Millis,
    /// Which topics may be delivered to: those that one of these permits.
    pub allow: Vec<Allow>,
    /// Whose lists these are.
    pub allow_of: AllowOf,
    /// Where two instances answer that have said lists which differ, if there are any.
    pub allow_differs: Option<[String; 2]>,
    /// Where instances answer that do not say that they know tasks.
    pub without_tasks: Vec<String>,
    /// `run` refuses to start, since nobody said which topics are meant.
    pub is_ajar: bool,
    /// How long all instances may be away without the loss of their positions.
    pub outage: Millis,
    /// No probe, no transaction.
    pub read_only: bool,
}

impl Wish {
    /// How bad it is that a topic cannot be used. Where every topic is allowed, a strange one may not be meant.
    fn worst(&self, facts: &Facts, topic: &str) -> Severity {
        let is_strange = self.is_open() && facts.targets.iter().any(|name| name == topic);
        if is_strange { Severity::Note } else { Severity::Problem }
    }

    /// Whether every topic may be delivered to.
    fn is_open(&self) -> bool {
        self.allow.iter().any(Allow::is_open)
    }

    /// Whether this topic may be delivered to.
    fn permits(&self, topic: &str) -> bool {
        self.allow.iter().any(|allow| allow.permits(topic).is_ok())
    }
}

/// Whose allow-lists are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowOf {
    /// Those of so many instances that run.
    Instances(usize),
    /// That of the configuration which the one who asks has: no instance has said its own.
    Configuration,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A promise cannot be kept, or the service does not run.
    Problem,
    /// It works, and a person should know.
    Note,
    /// Looked at, and in order.
    Ok,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Problem => "problem",
            Self::Note => "note",
            Self::Ok => "ok",
        })
    }
}

/// What was looked at, in the order in which it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Area {
    /// The brokers that are there, and their settings.
    Brokers,
    /// This machine's clock and the brokers'.
    Clocks,
    /// Own topics as they should be.
    Topics,
    /// What our principal may do.
    Permissions,
    /// Lead and hold against what the way takes.
    Timing,
    /// Transactions that stay open.
    Transactions,
    /// Members, and who owns which lane.
    Group,
    /// Committed positions.
    Positions,
    /// Where records may go.
    Targets,
    /// This machine.
    Machine,
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Brokers => "brokers",
            Self::Clocks => "clocks",
            Self::Topics => "topics",
            Self::Permissions => "permissions",
            Self::Timing => "timing",
            Self::Transactions => "transactions",
            Self::Group => "group",
            Self::Positions => "positions",
            Self::Targets => "targets",
            Self::Machine => "machine",
        })
    }
}

/// One thing that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at.
    pub area: Area,
    /// Where, if it is in one place.
    pub at: Location,
    /// What was seen.
    pub what: String,
    /// What to do: a command, or a sentence; empty where nothing is to be done.
    pub remedy: String,
}

/// Where something was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// A topic.
    pub topic: Option<String>,
    /// One of its partitions, or a lane where there is no topic.
    pub partition: Option<i32>,
    /// A broker.
    pub broker: Option<i32>,
}

impl Location {
    /// Nowhere in particular.
    pub const NONE: Self = Self { topic: None, partition: None, broker: None };

    /// A topic.
    #[must_use]
    pub fn topic(topic: &str) -> Self {
        Self { topic: Some(topic.to_owned()), ..Self::NONE }
    }

    /// A partition of it.
    #[must_use]
    pub fn partition(topic: &str, partition: i32) -> Self {
        Self { partition: Some(partition), ..Self::topic(topic) }
    }

    /// A broker.
    #[must_use]
    pub fn broker(id: i32) -> Self {
        Self { broker: Some(id), ..Self::NONE }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.topic, self.partition, self.broker) {
            (Some(topic), Some(partition), _) => write!(f, "{topic}/{partition}"),
            (Some(topic), None, _) => f.write_str(topic),
            (None, Some(lane), _) => write!(f, "lane {lane}"),
            (None, None, Some(broker)) => write!(f, "broker {broker}"),
            (None, None, None) => Ok(()),
        }
    }
}

/// What the brokers said.
#[derive(Clone, Debug)]
pub struct Facts {
    /// How to reach them, for the commands that mend.
    pub bootstrap: String,
    /// Those that are in the cluster's metadata.
    pub brokers: BTreeMap<i32, Broker>,
    /// Which of them leads the cluster.
    pub controller: Option<i32>,
    /// What is in force, wanted and there; or why that is unknown.
    pub survey: Result<Survey, String>,
    /// Partitions of own topics, of targets that are there and allowed, and of Kafka's own.
    pub partitions: BTreeMap<(String, i32), Partition>,
    /// Topics that are there and that `allow` permits.
    pub targets: Vec<String>,
    /// What our principal may do with own topics and targets; or why that is not known.
    pub rights: BTreeMap<String, Result<Rights, String>>,
    /// The group; or why it is not known.
    pub group: Result<Group, String>,
    /// The group of the workers; or why it is not known. `None`: tasks are not in force.
    pub workers: Option<Result<Group, String>>,
    /// What the group has committed in its lane topics; `None` where it has not.
    pub committed: Result<BTreeMap<(String, i32), Option<Position>>, String>,
    /// Clocks, by broker; empty when read only.
    pub clocks: BTreeMap<i32, Skew>,
    /// How long a small transaction took at best, or why there was none; `None` when it was not tried.
    pub commit: Option<Result<Duration, String>>,
}

/// One broker.
#[derive(Clone, Debug, Default)]
pub struct Broker {
    /// Host and port as it advertises them.
    pub address: String,
    /// Its settings, the defaults among them; or why they are not known.
    pub settings: Settings,
}

/// What is known of a broker's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settings {
    /// All of them.
    Known(BTreeMap<String, String>),
    /// It answers, and does not let us see them.
    Refused,
    /// It does not answer.
    Silent(String),
}

impl Default for Settings {
    fn default() -> Self {
        Self::Known(BTreeMap::new())
    }
}

/// One partition, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// Who leads it.
    pub leader: Option<i32>,
    /// The brokers that should have it.
    pub replicas: Vec<i32>,
    /// The brokers that have all of it.
    pub in_sync: Vec<i32>,
    /// First offset.
    pub first: Option<i64>,
    /// End for a `read_committed` reader.
    pub stable: Option<i64>,
    /// End.
    pub last: Option<i64>,
    /// Since when the transaction is open that holds `stable` back.
    pub open_since: Option<UnixMillis>,
}

/// A committed position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The next offset to read.
    pub next: i64,
    /// Offsets read and pending above it, and one past the last that was read; `None` if that cannot be read.
    pub window: Option<(usize, i64)>,
}

/// A broker's clock minus this machine's, between these bounds, in microseconds; and the shortest round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skew {
    /// At least.
    pub least_us: i64,
    /// At most.
    pub most_us: i64,
    /// From sending a record to its acknowledgement.
    pub round_trip: Duration,
}

/// How much of a lane topic is not done yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// The topic.
    pub topic: String,
    /// Offsets that are not done: records, and marks of transactions behind them.
    pub pending: u64,
}

/// Nothing can be asked.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// No broker answers; look at addresses, network and credentials.
    #[error("could not reach Kafka")]
    Silent(#[source] NoAnswer),
    /// librdkafka refused its settings; mend the configuration.
    #[error("could not make a Kafka client")]
    Client(#[source] KafkaError),
}

/// Draws all conclusions, worst first within an area; an area without a finding is told as in order.
#[must_use]
pub fn findings(wish: &Wish, facts: &Facts, now: UnixMillis) -> Vec<Finding> {
    let mut list = List(Vec::new());
    cluster::brokers(wish, facts, &mut list);
    cluster::clocks(wish, facts, &mut list);
    cluster::topics(facts, &mut list);
    // Without topics there is nothing else to be seen.
    if facts.survey.as_ref().is_ok_and(|survey| survey.applied) {
        cluster::timing(wish, facts, &mut list);
        rights::rights(wish, facts, &mut list);
        lanes::transactions(wish, facts, now, &mut list);
        lanes::without_tasks(wish, facts, &mut list);
        lanes::workers(wish, facts, &mut list);
        lanes::group(wish, facts, &mut list);
        lanes::positions(wish, facts, &mut list);
    }
    rights::targets(wish, facts, &mut list);
    let mut list = list.0;
    list.sort_by_key(|finding| (finding.area, finding.severity));
    list
}

/// How much is pending in each lane topic, in the order of the ladder.
#[must_use]
pub fn backlog(facts: &Facts) -> Vec<Backlog> {
    let (Ok(survey), Ok(committed)) = (&facts.survey, &facts.committed) else { return Vec::new() };
    let of_topic = |topic: &String| {
        let pending = (0..i32::from(survey.lanes)).map(|lane| {
            let at = (topic.clone(), lane);
            let Some(partition) = facts.partitions.get(&at) else { return 0 };
            let (first, last) = (partition.first.unwrap_or(0), partition.last.unwrap_or(0));
            match committed.get(&at).copied().flatten() {
                Some(Position { window: Some((pending, upto)), .. }) => {
                    pending as u64 + last.saturating_sub(upto).max(0) as u64
                }
                Some(Position { next, window: None }) => last.saturating_sub(next).max(0) as u64,
                None => last.saturating_sub(first).max(0) as u64,
            }
        });
        Backlog { topic: topic.clone(), pending: pending.sum() }
    };
    survey.topics.iter().map(of_topic).collect()
}

/// Findings as they are made.
struct List(Vec<Finding>);

impl List {
    fn add(
        &mut self,
        severity: Severity,
        area: Area,
        at: Location,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.0.push(Finding { severity, area, at, what: what.into(), remedy: remedy.into() });
    }

    /// Tells what was seen in an area that has no problem.
    fn fine(&mut self, area: Area, what: impl Into<String>) {
        let bad = |finding: &Finding| finding.area == area && finding.severity == Severity::Problem;
        if !self.0.iter().any(bad) {
            self.add(Severity::Ok, area, Location::NONE, what, "");
        }
    }
}

#[cfg(test)]
mod tests;
