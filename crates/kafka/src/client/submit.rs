//! Submits one record: finds its lane, produces, waits for the acknowledgement of all in-sync replicas.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::time::Instant;

use rdkafka::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use rdkafka::producer::{DeliveryResult, Producer as _, ProducerContext};
use tokio::sync::oneshot;

use super::errors::{self, ErrorKind};
use super::events::{Events, Producer};
use super::oauth::tokens;
use super::outages::{Bootstrap, OutageWatch};
use super::raw::TopicProducer;
use super::{Connection, NoAnswer};
use waterclock_engine::{Offset, Record, UnixMillis, murmur2};

/// Longest wait for a first answer of the brokers.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the acknowledgement, as librdkafka counts it.
const DELIVERY_MS_MAX: &str = "10000";
/// A little longer than that, so that it is librdkafka that says what happened.
const RECEIPT_MAX: Duration = Duration::from_secs(12);
/// librdkafka's largest: what a topic takes its brokers know.
const RECORD_BYTES_MAX: &str = "1000000000";

impl SubmitError {
    /// Whether the record is larger than its topic takes: no other attempt fares better.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::Refused { source, .. } if errors::kind(source) == ErrorKind::TooLarge)
    }
}

/// A record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Partition of the intake.
    pub partition: i32,
    /// Where it stands there; `None`: it was sent again, Kafka had it already, and does not say where.
    pub stands: Option<Stands>,
}

/// Where a record stands in its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stands {
    /// Its offset.
    pub offset: Offset,
    /// When the broker appended it.
    pub appended: UnixMillis,
}

/// Why a record was not submitted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// Nobody answered, nothing was sent; try again.
    #[error("could not reach Kafka")]
    Unreachable(#[from] NoAnswer),
    /// Another namespace or intake is meant, or `waterclock topics apply` is still to be run.
    #[error(
        "there is no topic {topic}; `waterclock topics apply` makes those of the namespace and of the intakes in the configuration ([intakes.NAME])"
    )]
    NoTopic {
        /// The intake.
        topic: String,
    },
    /// As many records wait for their acknowledgement as librdkafka holds; nothing was written, try again.
    #[error("too many records wait for {topic}")]
    Full {
        /// The intake.
        topic: String,
    },
    /// Kafka refused the record, or librdkafka its settings; nothing was written.
    #[error("could not write to {topic}")]
    Refused {
        /// The intake.
        topic: String,
        /// What librdkafka said.
        #[source]
        source: KafkaError,
    },
    /// Nobody knows whether the record was written. With an id, submitting it again is safe.
    #[error("no acknowledgement from {topic}; the record may have been written")]
    Unacknowledged {
        /// The intake.
        topic: String,
    },
}

/// A producer for single records. Any number of them may be under way at once.
pub struct Submitter {
    topic_producer: Mutex<TopicProducer<Reports>>,
    /// The same one, for what takes long: tasks wait for the lock.
    producer: Arc<Producer<Reports>>,
    waiting: Waiting,
    connection: Connection,
    bootstrap: Mutex<Bootstrap>,
}

type Report = Result<Receipt, KafkaError>;

/// Takes a report, on a thread of librdkafka.
type Take = Box<dyn FnOnce(Report) + Send>;

/// Who waits for which report.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<Places>>);

#[derive(Default)]
struct Places {
    next: usize,
    taken: HashMap<usize, Take>,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Places> {
        self.0.lock()
    }

    fn add(&self, take: Take) -> usize {
        let mut places = self.lock();
        places.next = places.next.wrapping_add(1);
        let place = places.next;
        places.taken.insert(place, take);
        place
    }

    fn remove(&self, place: usize) -> Option<Take> {
        self.lock().taken.remove(&place)
    }
}

/// Hands delivery reports on.
struct Reports {
    waiting: Waiting,
    outages: Mutex<OutageWatch>,
}

impl ClientContext for Reports {
    tokens!();
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, place: usize) {
        let report = match result {
            Err((error, _)) => {
                let is_silent = errors::kind(error).is_silence();
                self.outages.lock().look(Instant::now(), is_silent);
                Err(error.clone())
            }
            Ok(message) => {
                let appended = message.timestamp().to_millis();
                let stands = stands(message.offset(), appended);
                Ok(Receipt { partition: message.partition(), stands })
            }
        };
        if let Some(take) = self.waiting.remove(place) {
            take(report);
        }
    }
}

impl Submitter {
    /// Makes the producer; connects in the background.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub fn new(connection: &Connection) -> Result<Self, SubmitError> {
        Self::with_events(connection, || Events::start("wc-acks"))
    }

    /// The same, whose events are taken by a thread that is there.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub(crate) fn with_events(
        connection: &Connection,
        events: impl FnOnce() -> Result<Events, KafkaError>,
    ) -> Result<Self, SubmitError> {
        let waiting = Waiting::default();
        let mut config = connection.client("waterclock-send");
        config
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("partitioner", "murmur2_random")
            .set("message.timeout.ms", DELIVERY_MS_MAX)
            .set("message.max.bytes", RECORD_BYTES_MAX)
            .set("linger.ms", "0");
        let outages = Mutex::new(OutageWatch::new(connection));
        let reports = Reports { waiting: waiting.clone(), outages };
        let producer = events()
            .and_then(|events| events.producer(&config, reports))
            .map_err(|source| SubmitError::Refused { topic: "Kafka".to_owned(), source })?;
        let producer = Arc::new(producer);
        let topic_producer = Mutex::new(TopicProducer::new(Arc::clone(&producer)));
        let bootstrap = Mutex::new(Bootstrap::new(connection));
        let connection = connection.clone();
        Ok(Self { topic_producer, producer, waiting, connection, bootstrap })
    }

    /// How many partitions each of these topics has; `None` for one that is not there. Creates none.
    ///
    /// # Errors
    /// Nobody answered.
    pub fn partitions(&self, topics: &[&str]) -> Result<Vec<Option<i32>>, SubmitError> {
        let metadata = self.connection.metadata(ANSWER_MAX)?;
        let count = |name: &&str| {
            let found = metadata.topics().iter().find(|found| found.name() == *name)?;
            let count = i32::try_from(found.partitions().len()).ok()?;
            (count > 0).then_some(count)
        };
        Ok(topics.iter().map(count).collect())
    }

    /// Writes one record to its lane, which `lane_key` decides (none: any), and waits for the acknowledgement.
    ///
    /// # Errors
    /// See [`SubmitError`] for whether something was written.
    pub fn submit(
        &self,
        topic: &str,
        partitions: i32,
        lane_key: Option<&[u8]>,
        record: &Record,
    ) -> Result<Receipt, SubmitError> {
        let (sender, reports) = mpsc::sync_channel(1);
        let take: Take = Box::new(move |report| {
            // Nobody waits any more when the command has given up.
            let _ = sender.send(report);
        });
        self.enqueue(topic, lane(partitions, lane_key), record, take)?;
        receipt(topic, reports.recv_timeout(RECEIPT_MAX).ok())
    }

    /// Has the client find out what it needs to write to a topic, so that the first record does not wait for that.
    pub fn get_ready(&self, topic: &str) {
        let client = rdkafka::producer::Producer::client(&**self.producer);
        let asked = client.fetch_metadata(Some(topic), ANSWER_MAX);
        if let Err(error) = asked {
            tracing::debug!(%error, topic, "a producer could not get ready");
        }
    }

    /// Writes records to one partition, and waits for all their acknowledgements without holding a thread, until `by`
    /// at the latest. Records in flight at that time, or when the future is dropped, may still be written.
    ///
    /// # Errors
    /// For each by itself: see [`SubmitError`] for whether it was written.
    pub async fn submit_all(
        &self,
        topic: &str,
        records: impl IntoIterator<Item = (i32, &Record)>,
        by: Instant,
    ) -> Vec<Result<Receipt, SubmitError>> {
        let enqueued: Vec<_> = records
            .into_iter()
            .map(|(partition, record)| {
                let (sender, report) = oneshot::channel();
                let take: Take = Box::new(move |report| {
                    let _ = sender.send(report);
                });
                self.enqueue(topic, Some(partition), record, take).map(|()| report)
            })
            .collect();
        let by = by.min(Instant::now() + RECEIPT_MAX).into();
        let mut receipts = Vec::with_capacity(enqueued.len());
        for enqueued in enqueued {
            receipts.push(match enqueued {
                Ok(report) => {
                    let report = tokio::time::timeout_at(by, report).await;
                    receipt(topic, report.ok().and_then(Result::ok))
                }
                Err(error) => Err(error),
            });
        }
        receipts
    }

    /// As [`submit`](Self::submit), but it waits without holding a thread. A record in flight when the future is
    /// dropped may still be written.
    ///
    /// # Errors
    /// See [`SubmitError`] for whether something was written.
    pub async fn submitted(
        &self,
        topic: &str,
        partitions: i32,
        lane_key: Option<&[u8]>,
        record: &Record,
    ) -> Result<Receipt, SubmitError> {
        let (sender, report) = oneshot::channel();
        let take: Take = Box::new(move |report| {
            let _ = sender.send(report);
        });
        self.enqueue(topic, lane(partitions, lane_key), record, take)?;
        receipt(topic, report.await.ok())
    }

    fn enqueue(
        &self,
        topic: &str,
        partition: Option<i32>,
        record: &Record,
        take: Take,
    ) -> Result<(), SubmitError> {
        let place = self.waiting.add(take);
        let mut topic_producer = self.topic_producer.lock();
        self.bootstrap.lock().after_outage(topic_producer.inner().client());
        let enqueued = topic_producer.produce(
            &Arc::from(topic),
            partition,
            // An intake, or a tier: they have the time of the append.
            None,
            record,
            |each| record.headers().for_each(|(name, value)| each(name, value)),
            place,
        );
        enqueued.map_err(|source| {
            self.waiting.remove(place);
            let topic = topic.to_owned();
            match errors::kind(&source) {
                ErrorKind::QueueFull => SubmitError::Full { topic },
                _ => SubmitError::Refused { topic, source },
            }
        })
    }
}

/// Where a record stands by its report. Of a duplicate that it takes for delivered librdkafka knows neither offset nor time.
fn stands(offset: i64, appended: Option<i64>) -> Option<Stands> {
    fail::fail_point!("acknowledged_duplicate", |_| None);
    let appended = appended.and_then(|ms| u64::try_from(ms).ok()).unwrap_or_default();
    (offset >= 0).then_some(Stands { offset: Offset(offset), appended: UnixMillis(appended) })
}

fn lane(partitions: i32, lane_key: Option<&[u8]>) -> Option<i32> {
    let lanes = u16::try_from(partitions).unwrap_or(u16::MAX);
    lane_key.map(|key| i32::from(murmur2::partition(key, lanes)))
}

/// What a report means; none came if there is none.
fn receipt(topic: &str, report: Option<Report>) -> Result<Receipt, SubmitError> {
    let topic = topic.to_owned();
    match report {
        Some(Ok(receipt)) => Ok(receipt),
        Some(Err(source)) => match errors::kind(&source) {
            ErrorKind::TopicMissing => Err(SubmitError::NoTopic { topic }),
            kind if kind.may_be_written() => Err(SubmitError::Unacknowledged { topic }),
            _ => Err(SubmitError::Refused { topic, source }),
        },
        None => Err(SubmitError::Unacknowledged { topic }),
    }
}
