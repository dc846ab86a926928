//! Finds out about targets, on a thread of its own: does the topic exist, how many partitions, how large a record, must it have a key.
//!
//! Asked before anything is produced: an unknown topic would stall a whole transaction for 30 s (faults 0.6). A
//! consumer's client is used for it, since a producer's question may create the topic it asks for.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rdkafka::admin::{AdminOptions, ResourceSpecifier};
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::{Metadata, MetadataPartition};

use super::Connection;
use super::connect::{Admin, Quiet, Reader, aside};
use super::envoy::Envoy;
use crate::engine::Target;
use crate::engine::allow::{SIGNS, namespaces_of};

/// How the clients are named in the brokers' logs.
const CLIENT: &str = "waterclock-targets";
/// How long one question may take.
const ASK: Duration = Duration::from_secs(5);
/// How long the first one may take after one that was answered: most are within milliseconds, and a client may go on asking
/// a broker that stands still.
const ASK_FIRST: Duration = Duration::from_millis(500);
/// The same about the limits of a topic that were told before, and that are taken for what they were if nobody answers.
const ASK_AGAIN_MAX: Duration = Duration::from_millis(500);
/// A question without an answer is asked again after this long.
const ASK_AGAIN: Duration = Duration::from_millis(300);
/// A topic is missing when no broker has known it for this long.
const MISSING_AFTER: Duration = Duration::from_millis(1_500);
/// Kafka's own default of `max.message.bytes`, for brokers that do not tell (the embedded one).
const RECORD_BYTES_MAX: u64 = 1_048_588;

/// A target that nobody asked about for longer is not in use.
const IN_USE: Duration = Duration::from_secs(300);
/// Partitions of targets in use that are told, at most.
const IN_USE_MAX: usize = 1_000;

/// What is known of a topic.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) name: Arc<str>,
    pub(super) target: Target,
    /// Partitions that take nothing now: without a leader, or with fewer replicas in sync than the topic must have.
    pub(super) away: Arc<[i32]>,
}

/// A question: which topic, and who wants to know.
type Question = (Arc<str>, Sender<Answer>);

/// Targets that were found, with their partitions, and when they were asked about last.
type Used = BTreeMap<Arc<str>, (i32, Instant)>;

/// Handle on the asking thread; it ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Lookup {
    questions: Sender<Question>,
    record_bytes_least: Arc<AtomicUsize>,
    used: Arc<Mutex<Used>>,
}

impl Lookup {
    /// Starts the thread.
    ///
    /// # Errors
    /// The clients could not be made: the configuration is wrong.
    pub fn start(connection: &Connection, embedded: bool) -> Result<Self, KafkaError> {
        let (questions, inbox) = crossbeam_channel::unbounded();
        let mut clients = Clients {
            connection: connection.clone(),
            consumer: reader(connection)?,
            patience: ASK_FIRST,
            envoy: if embedded { None } else { Some(Envoy::new(connection, CLIENT)?) },
            limits: BTreeMap::new(),
            used: Arc::default(),
        };
        let used = Arc::clone(&clients.used);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(|_| KafkaError::Canceled)?;
        let record_bytes_least = Arc::new(AtomicUsize::new(usize::MAX));
        let least = Arc::clone(&record_bytes_least);
        std::thread::Builder::new()
            .name("wc-targets".into())
            .spawn(move || answer(&inbox, &mut clients, &runtime, &least))
            .map_err(|_| KafkaError::Canceled)?;
        Ok(Self { questions, record_bytes_least, used })
    }

    /// The least `max.message.bytes` of all targets asked about.
    #[must_use]
    pub fn record_bytes_least(&self) -> &Arc<AtomicUsize> {
        &self.record_bytes_least
    }

    /// The partitions of the targets that records go to now; of those that came up last, if there are very many.
    pub(super) fn in_use(&self) -> Vec<(String, i32)> {
        in_use(&mut self.used.lock().unwrap_or_else(PoisonError::into_inner), Instant::now())
    }

    /// Asks about a topic; the answer comes by `reply`, however long it takes.
    pub(super) fn ask(&self, topic: Arc<str>, reply: Sender<Answer>) {
        let _ = self.questions.send((topic, reply));
    }
}

/// What a topic takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    /// `max.message.bytes`.
    record_bytes_max: u64,
    /// It is compacted, so that every record must have a key.
    keyed: bool,
    /// `min.insync.replicas`.
    in_sync_min: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { record_bytes_max: RECORD_BYTES_MAX, keyed: false, in_sync_min: 1 }
    }
}

/// Who is asked.
struct Clients {
    connection: Connection,
    consumer: Reader,
    /// How long it is given for an answer: more each time that there is none.
    patience: Duration,
    /// None for the embedded broker, which has no settings to tell.
    envoy: Option<Envoy>,
    /// What was told last of each topic.
    limits: BTreeMap<String, Limits>,
    used: Arc<Mutex<Used>>,
}

impl Clients {
    /// Keeps in mind that a target is in use, or is not there any more.
    fn note(&self, topic: &Arc<str>, target: &Target) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        match target {
            Target::Found { partitions, .. } => {
                used.insert(Arc::clone(topic), (*partitions, Instant::now()));
            }
            _ => {
                used.remove(topic);
            }
        }
    }

    /// The partitions of a topic, by a new client if this one has no answer.
    fn metadata(&mut self, topic: &str) -> Result<Metadata, KafkaError> {
        self.connection.token(self.consumer.client());
        let told = self.consumer.fetch_metadata(Some(topic), self.patience);
        self.patience = if told.is_ok() { ASK_FIRST } else { ASK.min(self.patience * 2) };
        if told.is_err() {
            let fresh = reader(&self.connection)?;
            // Closing the old one takes a while, and can hang.
            aside(std::mem::replace(&mut self.consumer, fresh));
        }
        told
    }

    /// Whether there is such a topic, as far as we may see.
    fn is_there(&mut self, topic: &str) -> Result<bool, KafkaError> {
        let metadata = self.metadata(topic)?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        Ok(found.is_some_and(|found| !found.partitions().is_empty()))
    }

    /// The limits of a topic.
    ///
    /// Where nobody answers, what was told before holds.
    fn limits(
        &mut self,
        runtime: &tokio::runtime::Runtime,
        topic: &str,
    ) -> Result<Limits, KafkaError> {
        let Some(envoy) = &mut self.envoy else { return Ok(Limits::default()) };
        let before = self.limits.get(topic).copied();
        let most = if before.is_some() { ASK_AGAIN_MAX } else { ASK };
        match envoy.ask(|admin| runtime.block_on(limits(admin, topic, most))) {
            Ok(told) => {
                self.limits.insert(topic.to_owned(), told);
                Ok(told)
            }
            Err(error) => {
                let before = before.ok_or(error)?;
                tracing::info!(topic, "nobody told the limits of a target; those from before hold");
                Ok(before)
            }
        }
    }
}

/// A client that knows nothing yet, and asks whoever answers.
fn reader(connection: &Connection) -> Result<Reader, KafkaError> {
    connection.consumer(CLIENT).create_with_context(Quiet)
}

fn answer(
    inbox: &Receiver<Question>,
    clients: &mut Clients,
    runtime: &tokio::runtime::Runtime,
    least: &AtomicUsize,
) {
    let mut again: Vec<Again> = Vec::new();
    loop {
        // What has no answer yet is asked again, in its time; new questions come first.
        let next = if again.is_empty() {
            match inbox.recv() {
                Ok(question) => Again { question, since: Instant::now() },
                Err(_) => return,
            }
        } else {
            match inbox.recv_timeout(ASK_AGAIN) {
                Ok(question) => Again { question, since: Instant::now() },
                Err(RecvTimeoutError::Timeout) => again.remove(0),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        };
        let (topic, reply) = &next.question;
        match look(clients, runtime, topic) {
            // A broker may not have heard yet of a topic that was made a moment ago.
            Ok((Target::Missing | Target::Hidden, _)) if next.since.elapsed() < MISSING_AFTER => {
                again.push(next)
            }
            Ok((target, away)) => {
                if !away.is_empty() {
                    tracing::warn!(topic = &**topic, partitions = ?away, "partitions of a target have no leader, or too few replicas in sync");
                }
                if let Target::Found { record_bytes_max, .. } = target {
                    // Before the answer: the first batch with a record for it has to know.
                    least.fetch_min(
                        usize::try_from(record_bytes_max).unwrap_or(usize::MAX),
                        Ordering::SeqCst,
                    );
                }
                clients.note(topic, &target);
                let _ = reply.send(Answer { name: Arc::clone(topic), target, away });
            }
            Err(error) => {
                let topic = &**topic;
                tracing::warn!(%error, topic, "could not find out about a target, asking again");
                again.push(next);
            }
        }
    }
}

/// Forgets what is not in use any more; gives the partitions of the rest.
fn in_use(used: &mut Used, now: Instant) -> Vec<(String, i32)> {
    used.retain(|_, (_, asked)| now.saturating_duration_since(*asked) < IN_USE);
    let mut newest: Vec<_> = used.iter().collect();
    newest.sort_by_key(|(_, (_, asked))| std::cmp::Reverse(*asked));
    let partitions = newest.into_iter().flat_map(|(topic, (count, _))| {
        (0..*count).map(|partition| (topic.to_string(), partition))
    });
    partitions.take(IN_USE_MAX).collect()
}

/// A question without an answer yet.
struct Again {
    question: Question,
    /// When it was asked first.
    since: Instant,
}

fn look(
    clients: &mut Clients,
    runtime: &tokio::runtime::Runtime,
    topic: &str,
) -> Result<(Target, Arc<[i32]>), KafkaError> {
    let without = |target| Ok((target, Arc::default()));
    let metadata = clients.metadata(topic)?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return without(Target::Missing);
    };
    match found.error().map(RDKafkaErrorCode::from) {
        None => {}
        Some(
            RDKafkaErrorCode::UnknownTopicOrPartition
            | RDKafkaErrorCode::UnknownTopic
            | RDKafkaErrorCode::InvalidTopic,
        ) => return without(Target::Missing),
        Some(RDKafkaErrorCode::TopicAuthorizationFailed) => return without(Target::Hidden),
        Some(code) => return Err(KafkaError::MetadataFetch(code)),
    }
    let partitions = found.partitions().len() as i32;
    if partitions == 0 {
        return without(Target::Missing);
    }
    for namespace in namespaces_of(topic) {
        let mut is_owned = true;
        for sign in SIGNS {
            is_owned = is_owned && clients.is_there(&format!("{namespace}.{sign}"))?;
        }
        if is_owned {
            return without(Target::Owned);
        }
    }
    let Limits { record_bytes_max, keyed, in_sync_min } = clients.limits(runtime, topic)?;
    // A leader that has too few replicas beside it takes nothing either.
    let is_away = |partition: &&MetadataPartition| {
        partition.leader() < 0 || partition.isr().len() < in_sync_min
    };
    let mut away: Vec<i32> =
        found.partitions().iter().filter(is_away).map(MetadataPartition::id).collect();
    away.sort_unstable();
    let keyed = keyed && !forgets_compaction();
    Ok((Target::Found { partitions, record_bytes_max, keyed }, away.into()))
}

/// For the test of what happens when a broker refuses what we had not foreseen.
fn forgets_compaction() -> bool {
    fail::fail_point!("forget_compaction", |_| true);
    false
}

/// The limits of a topic; without the right to ask, Kafka's defaults.
async fn limits(admin: &Admin, topic: &str, most: Duration) -> Result<Limits, KafkaError> {
    let options = AdminOptions::new().request_timeout(Some(most));
    let resources = [ResourceSpecifier::Topic(topic)];
    let answers = admin.describe_configs(&resources, &options).await?;
    let told = answers.into_iter().next().and_then(Result::ok);
    let value = |name| told.as_ref().and_then(|of| of.get(name)).and_then(|of| of.value.as_deref());
    let usual = Limits::default();
    let bytes = value("max.message.bytes").and_then(|bytes| bytes.parse().ok());
    let in_sync = value("min.insync.replicas").and_then(|count| count.parse().ok());
    // A broker wants keys as soon as a topic is compacted, be it that records are deleted by age, too.
    let keyed = value("cleanup.policy").is_some_and(|policy| policy.contains("compact"));
    Ok(Limits {
        record_bytes_max: bytes.unwrap_or(usual.record_bytes_max),
        keyed,
        in_sync_min: in_sync.unwrap_or(usual.in_sync_min),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_in_use_for_minutes_and_very_many_are_not_all_told() {
        let now = Instant::now();
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap();
        let mut used = Used::from([
            ("newest".into(), (1, now)),
            ("old".into(), (5, ago(300))),
            ("second".into(), (2, ago(299))),
        ]);
        let told = |topic: &str, partition| (topic.to_owned(), partition);
        assert_eq!(
            in_use(&mut used, now),
            [told("newest", 0), told("second", 0), told("second", 1)]
        );
        assert_eq!(used.len(), 2, "what is not in use takes no memory");
        used.insert("wide".into(), (5_000, ago(1)));
        let many = in_use(&mut used, now);
        assert_eq!((many.len(), &many[0]), (IN_USE_MAX, &told("newest", 0)));
        assert!(many.iter().all(|(topic, _)| topic != "second"), "the one of long ago is left out");
    }
}
