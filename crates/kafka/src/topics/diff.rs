//! Compares the wanted state with the actual one. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{Kind, META_PARTITIONS_MIN, MIN_INSYNC, Names, REPLICATION_MAX, STEP_BYTES, TopicSpec};

const MAX_BYTES: &str = "max.message.bytes";

/// What was found in a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// How to reach it, for the commands that mend.
    pub bootstrap: String,
    /// The cluster's id, if it tells.
    pub cluster_id: Option<String>,
    /// The ids of the brokers that are there.
    pub brokers: BTreeSet<i32>,
    /// All topics of the namespace, by name.
    pub topics: BTreeMap<String, FoundTopic>,
}

/// One topic as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundTopic {
    /// How many partitions it has.
    pub partitions: i32,
    /// The fewest replicas of any of them.
    pub replication: i32,
    /// The brokers that lead a partition.
    pub leaders: BTreeSet<i32>,
    /// Partitions that nobody leads at the moment.
    pub leaderless: i32,
    /// All settings, the defaults among them.
    pub settings: BTreeMap<String, String>,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The topic is not there; `topics apply` creates it.
    Missing,
    /// A promise cannot be kept; `run` refuses to start.
    Wrong,
    /// It works, and loses what was acknowledged when one broker is lost, though there are enough to survive that.
    Weak,
    /// It works, and could be better.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Missing => "missing",
            Self::Wrong => "wrong",
            Self::Weak => "weak",
            Self::Note => "note",
        })
    }
}

/// One difference between the wanted state and the actual one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The topic's full name.
    pub topic: String,
    /// The setting, `partitions`, `replication`, `leaders`, or `topic` for the whole.
    pub what: String,
    /// What it is.
    pub found: String,
    /// What it should be.
    pub wanted: String,
    /// How bad that is.
    pub severity: Severity,
    /// What to do: a command, or a sentence.
    pub remedy: String,
}

impl Finding {
    /// Whether a promise cannot be kept as long as this is so.
    #[must_use]
    pub fn refuses(&self) -> bool {
        matches!(self.severity, Severity::Missing | Severity::Wrong)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topic, what, found, wanted, remedy, .. } = self;
        write!(f, "{topic}: {what} is {found}, want {wanted}; {remedy}")
    }
}

/// Every difference, the worst first within a topic, topics in the order wanted.
#[must_use]
pub fn diff(names: &Names, wanted: &[TopicSpec], found: &Found) -> Vec<Finding> {
    let mut findings = Vec::new();
    for spec in wanted {
        let mut of_topic =
            Findings { topic: &spec.name, bootstrap: &found.bootstrap, list: Vec::new() };
        match found.topics.get(&spec.name) {
            None => of_topic.missing(spec),
            Some(topic) => {
                of_topic.partitions(spec, topic);
                of_topic.replication(spec, topic, found);
                of_topic.settings(spec, topic);
                of_topic.bytes(spec, topic, bytes_before(spec.kind, wanted, found));
            }
        }
        of_topic.list.sort_by_key(|finding| finding.severity);
        findings.append(&mut of_topic.list);
    }
    let tiers = names.tier_prefix();
    let stray = found.topics.keys().filter(|name| name.starts_with(&tiers));
    for name in stray.filter(|name| !wanted.iter().any(|spec| spec.name == **name)) {
        let mut of_topic = Findings { topic: name, bootstrap: &found.bootstrap, list: Vec::new() };
        let remedy = format!(
            "nobody reads it: delete it once it is empty: {}",
            of_topic.command("kafka-topics.sh", "--delete --topic")
        );
        of_topic.add(
            "topic",
            "there".into(),
            "no tier of the ladder".into(),
            Severity::Note,
            remedy,
        );
        findings.append(&mut of_topic.list);
    }
    findings
}

/// The largest `max.message.bytes` found in topics from which records come into one of this kind.
fn bytes_before(kind: Kind, wanted: &[TopicSpec], found: &Found) -> Option<u64> {
    let comes_from: &[Kind] = match kind {
        Kind::Intake | Kind::Meta | Kind::Timers => &[],
        Kind::Delay | Kind::Tasks | Kind::Results => &[Kind::Intake],
        Kind::Dead => &[Kind::Intake, Kind::Delay, Kind::Results],
    };
    let before = wanted.iter().filter(|spec| comes_from.contains(&spec.kind));
    before
        .filter_map(|spec| found.topics.get(&spec.name)?.settings.get(MAX_BYTES)?.parse().ok())
        .max()
}

struct Findings<'a> {
    topic: &'a str,
    bootstrap: &'a str,
    list: Vec<Finding>,
}

impl Findings<'_> {
    fn add(
        &mut self,
        what: &str,
        found: String,
        wanted: String,
        severity: Severity,
        remedy: String,
    ) {
        let (topic, what) = (self.topic.to_owned(), what.to_owned());
        self.list.push(Finding { topic, what, found, wanted, severity, remedy });
    }

    fn command(&self, tool: &str, rest: &str) -> String {
        format!("{tool} --bootstrap-server {} {rest} {}", self.bootstrap, self.topic)
    }

    fn set(&self, name: &str, value: &str) -> String {
        let rest =
            format!("--alter --add-config {name}={value} --entity-type topics --entity-name");
        self.command("kafka-configs.sh", &rest)
    }

    fn missing(&mut self, spec: &TopicSpec) {
        let wanted =
            format!("{} partitions, replication factor {}", spec.partitions, spec.replication);
        let remedy = "run `waterclock topics apply`".to_owned();
        self.add("topic", "not there".into(), wanted, Severity::Missing, remedy);
    }

    fn partitions(&mut self, spec: &TopicSpec, topic: &FoundTopic) {
        let (is, want) = (topic.partitions, spec.partitions);
        let severity = match spec.kind {
            Kind::Intake | Kind::Delay | Kind::Timers | Kind::Tasks | Kind::Results
                if is != want =>
            {
                Severity::Wrong
            }
            Kind::Dead if is < want => Severity::Wrong,
            // A lane's checkpoints stand in one of these.
            Kind::Meta if is < META_PARTITIONS_MIN as i32 => Severity::Wrong,
            _ => return,
        };
        let remedy = if is < want {
            let rest = format!("--alter --partitions {want} --topic");
            format!("{}   # while it is empty", self.command("kafka-topics.sh", &rest))
        } else {
            "a topic cannot lose partitions: docs/operations.md, \"More partitions than lanes\", says what to do"
                .to_owned()
        };
        self.add("partitions", is.to_string(), want.to_string(), severity, remedy);
    }

    fn replication(&mut self, spec: &TopicSpec, topic: &FoundTopic, found: &Found) {
        if topic.replication < spec.replication {
            let remedy =
                "more replicas survive the loss of more brokers: kafka-reassign-partitions.sh"
                    .to_owned();
            let (is, want) = (topic.replication.to_string(), spec.replication.to_string());
            self.add("replication", is, want, Severity::Note, remedy);
        }
        if topic.leaderless > 0 {
            let is = format!("{} partitions without a leader", topic.leaderless);
            let remedy = "its lanes stand still until the brokers are back".to_owned();
            self.add("leaders", is, "one for each".into(), Severity::Note, remedy);
        }
        let blind: Vec<String> =
            found.brokers.difference(&topic.leaders).map(i32::to_string).collect();
        if spec.kind == Kind::Meta && !blind.is_empty() && topic.leaderless == 0 {
            let rest = format!(
                "--alter --partitions {} --topic",
                topic.partitions.max(spec.partitions) + 1
            );
            let remedy = format!(
                "elect the preferred leaders, or: {}",
                self.command("kafka-topics.sh", &rest)
            );
            let is = format!("none of broker {}, whose clock is not read there", blind.join(", "));
            self.add("leaders", is, "a partition of every broker".into(), Severity::Note, remedy);
        }
        self.in_sync(topic);
    }

    /// Judged by the replicas that are there, not by those that were wanted.
    fn in_sync(&mut self, topic: &FoundTopic) {
        let Some(value) = topic.settings.get(MIN_INSYNC) else { return };
        let Ok(is) = value.parse::<i32>() else { return };
        let enough = if topic.replication >= REPLICATION_MAX as i32 { 2 } else { 1 };
        let (severity, why) = if is > topic.replication {
            // Kafka 4.3 asks for no more than there are (seen).
            (
                Severity::Note,
                "it asks for more replicas than there are: Kafka 4.3 takes that as all of them, and older versions may acknowledge no write",
            )
        } else if is < enough {
            (Severity::Weak, "what one broker acknowledged is lost with it")
        } else if is > 1 && is == topic.replication {
            (Severity::Note, "one broker down stops every write")
        } else {
            return;
        };
        let remedy = format!("{why}: {}", self.set(MIN_INSYNC, &enough.to_string()));
        let is = format!("{value} of {} replicas", topic.replication);
        self.add(MIN_INSYNC, is, enough.to_string(), severity, remedy);
    }

    fn settings(&mut self, spec: &TopicSpec, topic: &FoundTopic) {
        let must = spec.must.iter().map(|setting| (setting, Severity::Wrong));
        let advice = spec.advice.iter().map(|setting| (setting, Severity::Note));
        for ((name, want), severity) in must.chain(advice) {
            // These two are judged by more than their equality.
            if name == MAX_BYTES || name == MIN_INSYNC {
                continue;
            }
            match topic.settings.get(name) {
                Some(is) if is == want => {}
                Some(is) => {
                    self.add(name, is.clone(), want.clone(), severity, self.set(name, want));
                }
                None => {
                    let remedy =
                        "the broker does not know this setting: Kafka 2.4 or later is needed"
                            .to_owned();
                    self.add(name, "not known".into(), want.clone(), Severity::Note, remedy);
                }
            }
        }
    }

    /// A record must fit into whatever it can come to.
    fn bytes(&mut self, spec: &TopicSpec, topic: &FoundTopic, before: Option<u64>) {
        let Some(least) = spec.must.get(MAX_BYTES).and_then(|least| least.parse::<u64>().ok())
        else {
            return;
        };
        let least = before.map_or(least, |before| least.max(before.saturating_add(STEP_BYTES)));
        let is =
            topic.settings.get(MAX_BYTES).and_then(|is| is.parse::<u64>().ok()).unwrap_or_default();
        if is < least {
            let remedy = self.set(MAX_BYTES, &least.to_string());
            self.add(
                MAX_BYTES,
                is.to_string(),
                format!("at least {least}"),
                Severity::Wrong,
                remedy,
            );
        }
    }
}
