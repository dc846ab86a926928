//! What is in force for a namespace, kept in the compacted topic `<ns>.meta`.
//!
//! # Invariants
//! 1. Our values all stand in [`PARTITION`]: partitions may be added to the topic, and the last value of a key still
//!    wins.
//! 2. A value that cannot be read never hides one that can: the last readable one counts, with a warning. If there is
//!    none, that is an error and not an absence. Otherwise a new secret would be made, and every waiting record be
//!    taken for forged.
//! 3. The secret is neither printed nor logged.
//! 4. Of several first starts at once one counts: that of the first record in the log. Each writes under a key of its
//!    own. So compaction keeps all of them, in their order, and one that is written late never takes the place of the
//!    first. The same holds for the id of the first intake.
//!
//! What it does not do: probes of the brokers' clocks, the members' announcements, and what is known of projects and services
//! stand in the same topic, under keys that begin with [`CLOCK`] and [`MEMBER`], or that [`registry::is_key`] knows. This room
//! passes over them.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rand::TryRngCore as _;
use rand::rngs::OsRng;
use rdkafka::error::KafkaError;
use serde::{Deserialize, Serialize};

use super::durable;
use crate::client::connect::{Isolation, aside};
use crate::client::topic_reader::{Consumed, Patience, ReadError, Span, StartAt};
use crate::client::{Connection, NoAnswer, TopicReader};
use waterclock_engine::header::duration;
use waterclock_engine::task::registry;
use waterclock_engine::{Millis, Offset};

/// The partition in which all values stand.
pub const PARTITION: i32 = 0;
/// Where checkpoints stand: what is in force has a partition for itself.
pub const CHECKPOINT_PARTITION: i32 = 1;
/// Begins the key of every probe of a broker's clock.
pub const CLOCK: &str = "clock";
/// Begins the key of what a member says of itself; its name follows.
pub const MEMBER: &str = "member/";
/// The form of the values that this program writes. It does not understand a newer one.
const VERSION: u32 = 1;
/// The form of a ladder where there are tasks. A program that knows none does not understand it, and does not start: it would
/// make a dead letter of each task that it meets.
const WITH_TASKS: u32 = 2;
/// Longest time for reading the topic from its beginning; it holds a few kilobytes when compacted.
const READ_MAX: Duration = Duration::from_secs(30);
/// Longest wait for an acknowledgement: three brokers that had just made 174 topics on two cores took more than 20 s.
const WRITE_MAX: Duration = Duration::from_secs(60);
/// How long a broker holds a fetch for which there is nothing.
const WAIT: Duration = Duration::from_millis(50);
/// Longest wait for one answer about the topic.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Ladder and lanes in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LadderInForce {
    /// Partitions of every lane topic.
    pub lanes: u16,
    /// Holds that are written to, ascending.
    pub holds: Vec<Millis>,
    /// Holds that are still read, ascending.
    pub draining: Vec<Millis>,
}

/// What the states of records are sealed with; all instances of a namespace share it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Makes one from the operating system's random source.
    ///
    /// # Errors
    /// The source is not there; nothing can be sealed.
    pub fn random() -> Result<Self, Error> {
        let mut bytes = [0; 32];
        OsRng.try_fill_bytes(&mut bytes).map_err(Error::Random)?;
        Ok(Self(bytes))
    }

    /// The bytes, for the key of the seal only.
    #[must_use]
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Everything that is in force; what was never put there is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Ladder and lanes.
    pub ladder: Option<LadderInForce>,
    /// The secret of the namespace.
    pub secret: Option<Secret>,
    /// The id of the intake that was there first: what was said of timers is told from what stands in a later one.
    pub intake: Option<String>,
    /// The version of tasks; without it there are none.
    pub tasks: Option<u32>,
}

impl Meta {
    /// Whether there is all that an instance needs.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.ladder.is_some() && self.secret.is_some()
    }
}

/// One value that can be put in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A ladder in the place of the one before, under the key `ladder`.
    Ladder {
        /// The ladder.
        ladder: LadderInForce,
        /// There are tasks: no program may start that knows none.
        tasks: bool,
    },
    /// All that a namespace begins with, under the key `first/` and a name of its own. It is in force if no other one stands
    /// before it.
    First {
        /// Tells it from those of others.
        name: String,
        /// The secret of the namespace.
        secret: Secret,
        /// Ladder and lanes.
        ladder: LadderInForce,
        /// There are tasks: no program may start that knows none.
        tasks: bool,
    },
    /// A topic's id, under the key `intake/` and a name of its own. It is the first intake's if no other one stands before it.
    Intake {
        /// Tells it from those of others.
        name: String,
        /// The topic's id.
        id: String,
    },
    /// Tasks, in the version that this program knows, under the key `tasks`.
    Tasks,
}

const LADDER: &str = "ladder";
/// Older programs put the secret under a key of its own.
const SECRET: &str = "secret";
const FIRST: &str = "first/";
const INTAKE: &str = "intake/";
const TASKS: &str = "tasks";
/// Begins the keys of what is said of Kafka targets. This program passes over them.
const TARGET: &str = "target/";
/// Programs from before this one put it under a key that they shared.
const OLD_INTAKE: &str = "intake";

impl Value {
    /// What a namespace may begin with: a new secret, with this ladder.
    ///
    /// # Errors
    /// There is no random source.
    pub fn first(ladder: LadderInForce, tasks: bool) -> Result<Self, Error> {
        Ok(Self::First { name: random_name()?, secret: Secret::random()?, ladder, tasks })
    }

    /// What may be the first intake's id.
    ///
    /// # Errors
    /// There is no random source.
    pub fn intake(id: String) -> Result<Self, Error> {
        Ok(Self::Intake { name: random_name()?, id })
    }

    /// The key that it stands under.
    #[must_use]
    pub fn key(&self) -> String {
        match self {
            Self::Ladder { .. } => LADDER.to_owned(),
            Self::First { name, .. } => format!("{FIRST}{name}"),
            Self::Intake { name, .. } => format!("{INTAKE}{name}"),
            Self::Tasks => TASKS.to_owned(),
        }
    }

    fn encode(&self) -> String {
        let version = |tasks: bool| if tasks { WITH_TASKS } else { VERSION };
        let value = match self {
            Self::Ladder { ladder, tasks } => serde_json::to_value(LadderText {
                version: version(*tasks),
                lanes: ladder.lanes,
                holds: ladder.holds.iter().map(Millis::to_string).collect(),
                draining: ladder.draining.iter().map(Millis::to_string).collect(),
            }),
            Self::First { secret, ladder, tasks, .. } => serde_json::to_value(FirstText {
                version: version(*tasks),
                key: hex(&secret.0),
                lanes: ladder.lanes,
                holds: ladder.holds.iter().map(Millis::to_string).collect(),
            }),
            Self::Intake { id, .. } => {
                serde_json::to_value(IntakeText { version: VERSION, id: id.clone() })
            }
            Self::Tasks => serde_json::to_value(VersionText { version: VERSION }),
        };
        // Plain structs of numbers and strings: nothing in them can fail.
        value.unwrap_or_default().to_string()
    }
}

#[derive(Serialize, Deserialize)]
struct LadderText {
    version: u32,
    lanes: u16,
    holds: Vec<String>,
    #[serde(default)]
    draining: Vec<String>,
}

#[derive(Serialize)]
struct FirstText {
    version: u32,
    key: String,
    lanes: u16,
    holds: Vec<String>,
}

#[derive(Deserialize)]
struct SecretText {
    key: String,
}

#[derive(Serialize, Deserialize)]
struct IntakeText {
    version: u32,
    id: String,
}

#[derive(Serialize, Deserialize)]
struct VersionText {
    version: u32,
}

/// Why the settings in force are unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The topic is not there: nothing was ever put in force.
    #[error("topic {topic} is not there; run `waterclock topics apply`")]
    Missing {
        /// Its name.
        topic: String,
    },
    /// Nobody answered; nothing was changed. It says why, if anybody knows.
    #[error("could not look for the topic")]
    Away(#[from] NoAnswer),
    /// Kafka did not let us; nothing was changed.
    #[error("could not {what} {topic}/{PARTITION}")]
    Kafka {
        /// What was tried.
        what: &'static str,
        /// The topic.
        topic: String,
        /// Kafka's answer.
        #[source]
        source: KafkaError,
    },
    /// The end was not reached in time. Try again when the brokers are less busy.
    #[error("could not read {topic}/{PARTITION} to its end within {} s", READ_MAX.as_secs())]
    Slow {
        /// The topic.
        topic: String,
        /// How far it was read.
        #[source]
        source: ReadError,
    },
    /// Kafka did not let us read it, or it is damaged; nothing was changed.
    #[error(transparent)]
    Read(ReadError),
    /// The value was handed over, and it is not known whether it arrived. Read before writing again.
    #[error(
        "no acknowledgement of {key} from {topic}/{PARTITION}; run `waterclock topics apply` again"
    )]
    Unacknowledged {
        /// The topic.
        topic: String,
        /// The key.
        key: String,
    },
    /// Every value under a key is broken. Put the right one back by hand; do not guess a secret.
    #[error(
        "{topic}/{PARTITION}@{offset}: the value under {key} cannot be read, and there is no other"
    )]
    Unreadable {
        /// The topic.
        topic: String,
        /// Where the last such value stands.
        offset: i64,
        /// The key.
        key: &'static str,
    },
    /// A newer waterclock wrote it. Use that one.
    #[error(
        "{topic}/{PARTITION}@{offset}: {key} has version {version}, this program knows {}",
        newest(key)
    )]
    Newer {
        /// The topic.
        topic: String,
        /// Where it stands.
        offset: i64,
        /// The key.
        key: &'static str,
        /// The version found.
        version: u32,
    },
    /// No thread can be started.
    #[error("could not start a thread")]
    Thread(#[source] std::io::Error),
    /// No random source.
    #[error("could not make a secret")]
    Random(#[source] rand::rand_core::OsError),
}

/// The newest form of the values under a key that this program understands.
fn newest(key: &str) -> u32 {
    match key {
        LADDER | FIRST => WITH_TASKS,
        _ => VERSION,
    }
}

/// The last values under one key, as reading goes on.
#[derive(Clone, Debug)]
struct LastValue<T> {
    key: &'static str,
    value: Option<T>,
    /// The offset of the last value that could not be read.
    broken: Option<i64>,
    /// The last value, if it is of a version that is not known.
    newer: Option<(i64, u32)>,
}

impl<T> LastValue<T> {
    fn new(key: &'static str) -> Self {
        Self { key, value: None, broken: None, newer: None }
    }

    fn take(&mut self, offset: i64, bytes: Option<&[u8]>, read: impl FnOnce(&[u8]) -> Option<T>) {
        let Some(bytes) = bytes else {
            *self = Self::new(self.key);
            return;
        };
        let version = serde_json::from_slice::<VersionText>(bytes).map(|text| text.version).ok();
        match version {
            Some(version) if version > newest(self.key) => self.newer = Some((offset, version)),
            _ => match read(bytes) {
                Some(value) => {
                    self.value = Some(value);
                    self.newer = None;
                }
                None => {
                    tracing::warn!(key = self.key, offset, "skipped a broken value in meta");
                    self.broken = Some(offset);
                }
            },
        }
    }

    /// The last value that can be read, or else the first of all.
    fn or(&self, first: Option<T>, topic: &str) -> Result<Option<T>, Error>
    where
        T: Clone,
    {
        let (topic, key) = (topic.to_owned(), self.key);
        match (self.newer, &self.value, self.broken) {
            (Some((offset, version)), _, _) => Err(Error::Newer { topic, offset, key, version }),
            (None, Some(value), _) => Ok(Some(value.clone())),
            (None, None, _) if first.is_some() => Ok(first),
            (None, None, Some(offset)) => Err(Error::Unreadable { topic, offset, key }),
            (None, None, None) => Ok(None),
        }
    }
}

fn read_ladder(bytes: &[u8]) -> Option<LadderInForce> {
    let text: LadderText = serde_json::from_slice(bytes).ok()?;
    let holds = |texts: &[String]| -> Option<Vec<Millis>> {
        let mut holds: Vec<Millis> =
            texts.iter().map(|text| duration(text).ok()).collect::<Option<_>>()?;
        holds.sort_unstable();
        Some(holds)
    };
    let (holds, draining) = (holds(&text.holds)?, holds(&text.draining)?);
    (text.lanes > 0 && !holds.is_empty()).then_some(LadderInForce {
        lanes: text.lanes,
        holds,
        draining,
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A name that nobody else has.
fn random_name() -> Result<String, Error> {
    Ok(hex(&Secret::random()?.0[..16]))
}

fn read_intake(bytes: &[u8]) -> Option<String> {
    serde_json::from_slice(bytes).ok().map(|text: IntakeText| text.id)
}

fn read_tasks(bytes: &[u8]) -> Option<u32> {
    let text: VersionText = serde_json::from_slice(bytes).ok()?;
    (text.version > 0).then_some(text.version)
}

fn read_secret(bytes: &[u8]) -> Option<Secret> {
    let text: SecretText = serde_json::from_slice(bytes).ok()?;
    let mut key = [0; 32];
    if text.key.len() != 2 * key.len() || !text.key.is_ascii() {
        return None;
    }
    for (byte, at) in key.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(text.key.get(at..at + 2)?, 16).ok()?;
    }
    Some(Secret(key))
}

fn read_first(bytes: &[u8]) -> Option<(Secret, LadderInForce)> {
    read_secret(bytes).zip(read_ladder(bytes))
}

/// Values of which the first one counts, by where they stand; each under a key of its own, which begins so.
#[derive(Clone, Debug)]
struct Firsts<T> {
    begins: &'static str,
    at: BTreeMap<i64, (Vec<u8>, First<T>)>,
}

#[derive(Clone, Debug)]
enum First<T> {
    Sound(T),
    Newer(u32),
    Broken,
}

impl<T: Clone> Firsts<T> {
    fn new(begins: &'static str) -> Self {
        Self { begins, at: BTreeMap::new() }
    }

    fn take(
        &mut self,
        offset: i64,
        key: &[u8],
        bytes: Option<&[u8]>,
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) {
        self.at.retain(|_, (known, _)| known != key);
        let Some(bytes) = bytes else { return };
        let version = serde_json::from_slice::<VersionText>(bytes).map(|text| text.version).ok();
        let first = match (version, read(bytes)) {
            (Some(version), _) if version > newest(self.begins) => First::Newer(version),
            (_, Some(value)) => First::Sound(value),
            _ => {
                tracing::warn!(key = self.begins, offset, "skipped a broken value in meta");
                First::Broken
            }
        };
        self.at.insert(offset, (key.to_vec(), first));
    }

    fn found(&self, topic: &str) -> Result<Option<T>, Error> {
        let (topic, key) = (topic.to_owned(), self.begins);
        for (&offset, (_, first)) in &self.at {
            match first {
                First::Sound(value) => return Ok(Some(value.clone())),
                First::Newer(version) => {
                    return Err(Error::Newer { topic, offset, key, version: *version });
                }
                First::Broken => {}
            }
        }
        match self.at.last_key_value() {
            Some((&offset, _)) => Err(Error::Unreadable { topic, offset, key }),
            None => Ok(None),
        }
    }
}

/// The secret that a namespace has, by the records of meta that were read so far.
#[derive(Clone, Debug)]
pub(super) struct SecretInForce {
    firsts: Firsts<Secret>,
    last: LastValue<Secret>,
}

impl Default for SecretInForce {
    fn default() -> Self {
        Self { firsts: Firsts::new(FIRST), last: LastValue::new(SECRET) }
    }
}

impl SecretInForce {
    /// Takes in the next record.
    pub(super) fn take(&mut self, offset: i64, key: Option<&[u8]>, value: Option<&[u8]>) {
        match key {
            Some(key) if key == SECRET.as_bytes() => self.last.take(offset, value, read_secret),
            Some(key) if key.starts_with(FIRST.as_bytes()) => {
                self.firsts.take(offset, key, value, read_secret);
            }
            _ => {}
        }
    }

    /// That secret; none where it was not read, or cannot be.
    pub(super) fn get(&self) -> Option<Secret> {
        let first = || self.firsts.found("").ok().flatten();
        self.last.value.clone().or_else(first)
    }
}

/// Whether tasks are in force, by the records of meta that were read so far.
#[derive(Clone, Debug)]
pub(super) struct TasksInForce(LastValue<u32>);

impl Default for TasksInForce {
    fn default() -> Self {
        Self(LastValue::new(TASKS))
    }
}

impl TasksInForce {
    /// Takes in the next record.
    pub(super) fn take(&mut self, offset: i64, key: Option<&[u8]>, value: Option<&[u8]>) {
        if key == Some(TASKS.as_bytes()) {
            self.0.take(offset, value, read_tasks);
        }
    }

    /// A version that this program does not know counts, too: tasks are in force.
    pub(super) fn are(&self) -> bool {
        self.0.value.is_some() || self.0.newer.is_some()
    }
}

/// Whether a key is of what is known of projects, services and targets: another reader has those.
fn is_of_registry(key: &[u8]) -> bool {
    std::str::from_utf8(key).is_ok_and(|key| registry::is_key(key) || key.starts_with(TARGET))
}

/// Collects what is in force from records in the order of their offsets.
#[derive(Debug)]
pub(super) struct Reading {
    firsts: Firsts<(Secret, LadderInForce)>,
    ladder: LastValue<LadderInForce>,
    secret: LastValue<Secret>,
    intakes: Firsts<String>,
    old_intake: LastValue<String>,
    tasks: TasksInForce,
}

impl Reading {
    pub(super) fn new() -> Self {
        Self {
            firsts: Firsts::new(FIRST),
            ladder: LastValue::new(LADDER),
            secret: LastValue::new(SECRET),
            intakes: Firsts::new(INTAKE),
            old_intake: LastValue::new(OLD_INTAKE),
            tasks: TasksInForce::default(),
        }
    }

    pub(super) fn record(&mut self, offset: i64, key: Option<&[u8]>, value: Option<&[u8]>) {
        match key {
            Some(key) if key == LADDER.as_bytes() => self.ladder.take(offset, value, read_ladder),
            Some(key) if key == SECRET.as_bytes() => self.secret.take(offset, value, read_secret),
            Some(key) if key.starts_with(FIRST.as_bytes()) => {
                self.firsts.take(offset, key, value, read_first);
            }
            Some(key) if key.starts_with(INTAKE.as_bytes()) => {
                self.intakes.take(offset, key, value, read_intake);
            }
            Some(key) if key == OLD_INTAKE.as_bytes() => {
                self.old_intake.take(offset, value, read_intake);
            }
            Some(key) if key == TASKS.as_bytes() => self.tasks.take(offset, Some(key), value),
            Some(key) if [CLOCK, MEMBER].iter().any(|begin| key.starts_with(begin.as_bytes())) => {}
            Some(key) if is_of_registry(key) => {}
            _ => tracing::warn!(offset, "skipped a record of unknown key in meta"),
        }
    }

    /// What was put in force later, or what the namespace began with.
    pub(super) fn found(&self, topic: &str) -> Result<Meta, Error> {
        let (secret, ladder) = match (&self.secret.value, &self.ladder.value) {
            (Some(_), Some(_)) => (None, None),
            _ => self.firsts.found(topic)?.unzip(),
        };
        let (ladder, secret) = (self.ladder.or(ladder, topic)?, self.secret.or(secret, topic)?);
        let intake = match self.old_intake.or(None, topic)? {
            Some(id) => Some(id),
            None => self.intakes.found(topic)?,
        };
        let tasks = self.tasks.0.or(None, topic)?;
        Ok(Meta { ladder, secret, intake, tasks })
    }
}

/// Reads what is in force, up to the end that the topic has now.
///
/// Blocks for at most 40 s. `topic` is `<ns>.meta`, `group` the namespace (nothing is committed).
///
/// # Errors
/// [`Error::Missing`]: nothing was ever applied. Others: see there; do not start.
pub fn read(connection: &Connection, topic: &str, group: &str) -> Result<Meta, Error> {
    let mut reading = Reading::new();
    each(connection, topic, group, |record| {
        reading.record(record.offset().0, record.key(), record.value());
    })?;
    reading.found(topic)
}

/// Hands over every record of [`PARTITION`] that was there when it was asked, in order.
pub(crate) fn each(
    connection: &Connection,
    topic: &str,
    group: &str,
    take: impl FnMut(&Consumed<'_>),
) -> Result<(), Error> {
    let mut reader = open(connection, topic, group, WAIT)?;
    let read = to_end(&mut reader, topic, take);
    aside(reader);
    read.map(drop)
}

/// A reader of the topic, which is there. `wait` as in [`TopicReader::new`].
pub(super) fn open(
    connection: &Connection,
    topic: &str,
    group: &str,
    wait: Duration,
) -> Result<TopicReader, Error> {
    let metadata = connection.metadata(ANSWER_MAX)?;
    let who = ("waterclock-meta", group);
    let reader = TopicReader::in_group(connection, who, Isolation::Committed, wait)
        .map_err(|source| kafka("make a reader of", topic, source))?;
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    if found.is_none_or(|found| found.partitions().is_empty()) {
        return Err(Error::Missing { topic: topic.to_owned() });
    }
    Ok(reader)
}

/// Hands over every record of [`PARTITION`] up to the end that it has now, and gives that end.
pub(super) fn to_end(
    reader: &mut TopicReader,
    topic: &str,
    mut take: impl FnMut(&Consumed<'_>),
) -> Result<Offset, Error> {
    let failed = |error: ReadError| match error {
        ReadError::Silent { .. } => Error::Slow { topic: topic.to_owned(), source: error },
        error => Error::Read(error),
    };
    // The leader of a topic that was made a moment ago may not know yet that it leads.
    let told = reader.offsets(topic, [PARTITION], reader.end(), ANSWER_MAX).map_err(failed)?;
    let to = told.get(&PARTITION).copied().unwrap_or_default();
    let span = Span { partition: PARTITION, from: StartAt::Beginning, to };
    let patience = Patience::by(Instant::now() + READ_MAX);
    let read = reader.read(topic, [span], patience, |record| {
        take(record);
        Ok::<_, ReadError>(ControlFlow::Continue(()))
    });
    read.map(|_| to).map_err(failed)
}

pub(super) fn kafka(what: &'static str, topic: &str, source: KafkaError) -> Error {
    Error::Kafka { what, topic: topic.to_owned(), source }
}

/// Puts one value in force; when this returns, all replicas in sync have it.
///
/// Blocks for at most 65 s.
///
/// # Errors
/// [`Error::Unacknowledged`]: it may be in force or not; read again. Others: it is not.
pub fn write(connection: &Connection, topic: &str, value: &Value) -> Result<(), Error> {
    let (key, text) = (value.key(), value.encode());
    durable::write(connection, topic, &key, Some(&text), WRITE_MAX)
}

#[cfg(test)]
mod tests;
