//! Reads the dead letters, from the beginning to where they ended when asked.
//!
//! A consumer without offsets of its own: it commits nothing, and no group is rebalanced by it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::{Offset as Position, TopicPartitionList};

use super::connect::{Isolation, Reader};
use super::raw::copy_record;
use super::{Connection, NoAnswer};
use crate::engine::{Offset, Record, UnixMillis};

/// Longest wait for a first answer of the brokers.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the next record, once they have answered.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long one poll waits.
const POLL: Duration = Duration::from_millis(100);
/// How long a broker holds a fetch for which there is nothing.
const WAIT: Duration = Duration::from_millis(50);

/// One dead letter, where it stands now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadRecord {
    /// Partition of `<ns>.dead`.
    pub partition: i32,
    /// Offset in it.
    pub offset: Offset,
    /// When it was put there.
    pub timestamp: UnixMillis,
    /// Its bytes, with what was added at the end of its headers.
    pub record: Record,
}

/// Why the dead letters could not be read. Nothing has changed by it.
#[derive(Debug, thiserror::Error)]
pub enum DeadError {
    /// Nobody answered; try again.
    #[error("could not reach Kafka")]
    Unreachable(#[from] NoAnswer),
    /// Another namespace is meant, or `waterclock topics apply` is still to be run.
    #[error("there is no topic {topic}")]
    NoTopic {
        /// The topic of the dead letters.
        topic: String,
    },
    /// The brokers answer, but not with this.
    #[error("could not read {topic}")]
    Read {
        /// The topic of the dead letters.
        topic: String,
        /// What librdkafka said.
        #[source]
        source: KafkaError,
    },
    /// The brokers stopped answering in the middle; what was told before is right, but not all.
    #[error("no answer from {topic} for {} s", SILENCE_MAX.as_secs())]
    Silent {
        /// The topic of the dead letters.
        topic: String,
    },
}

/// The dead letters of one namespace, ready to be read.
pub struct DeadLetters {
    consumer: Reader,
    topic: String,
    /// First offset and end of every partition, as they were when this was opened.
    ends: BTreeMap<i32, (i64, i64)>,
}

impl DeadLetters {
    /// Finds the topic and its ends.
    ///
    /// # Errors
    /// Kafka cannot be reached, or there is no such topic.
    pub fn open(connection: &Connection, namespace: &str) -> Result<Self, DeadError> {
        let topic = format!("{namespace}.dead");
        let read = |source| DeadError::Read { topic: topic.clone(), source };
        let metadata = connection.metadata(ANSWER_MAX)?;
        let group = format!("{namespace}-dead");
        let consumer = connection
            .reader_to_ends("waterclock-dead", &group, Isolation::Committed, WAIT)
            .map_err(read)?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let found = found.filter(|t| t.error().is_none() && !t.partitions().is_empty());
        let Some(found) = found else { return Err(DeadError::NoTopic { topic }) };
        let mut ends = BTreeMap::new();
        for partition in found.partitions() {
            let ends_of = consumer.fetch_watermarks(&topic, partition.id(), ANSWER_MAX);
            ends.insert(partition.id(), ends_of.map_err(read)?);
        }
        Ok(Self { consumer, topic, ends })
    }

    /// How many offsets there are to be read: a few more than dead letters, as marks of transactions count, too.
    #[must_use]
    pub fn span(&self) -> u64 {
        self.ends.values().map(|(low, end)| end.saturating_sub(*low).max(0) as u64).sum()
    }

    /// Tells every dead letter, in the order of each partition.
    ///
    /// # Errors
    /// Reading failed in the middle; what was told before is right.
    pub fn read(&self, mut each: impl FnMut(DeadRecord)) -> Result<(), DeadError> {
        let mut open: BTreeMap<i32, i64> = self
            .ends
            .iter()
            .filter(|(_, (low, end))| low < end)
            .map(|(p, (_, end))| (*p, *end))
            .collect();
        if open.is_empty() {
            return Ok(());
        }
        self.assign(open.keys().map(|partition| (*partition, Position::Beginning)))?;
        self.poll(|event| {
            match event {
                Ok(message) => {
                    let partition = message.partition();
                    if let Some(end) = open.get(&partition) {
                        let last = message.offset() + 1 >= *end;
                        if message.offset() < *end {
                            each(dead_record(&message));
                        }
                        if last {
                            open.remove(&partition);
                        }
                    }
                }
                // An end that is a transaction's mark is never told as a record.
                Err(partition) => {
                    open.remove(&partition);
                }
            }
            open.is_empty()
        })
    }

    /// The dead letter at one place; `None` when there is none.
    ///
    /// # Errors
    /// Reading failed.
    pub fn at(&self, partition: i32, offset: Offset) -> Result<Option<DeadRecord>, DeadError> {
        let Some((low, end)) = self.ends.get(&partition) else { return Ok(None) };
        if !(*low..*end).contains(&offset.0) {
            return Ok(None);
        }
        self.assign([(partition, Position::Offset(offset.0))].into_iter())?;
        let mut found = None;
        self.poll(|event| {
            found = event.ok().filter(|m| m.offset() == offset.0).map(|m| dead_record(&m));
            true
        })?;
        Ok(found)
    }

    fn assign(&self, places: impl Iterator<Item = (i32, Position)>) -> Result<(), DeadError> {
        let mut list = TopicPartitionList::new();
        let assigned = places
            .into_iter()
            .try_for_each(|(partition, position)| {
                list.add_partition_offset(&self.topic, partition, position)
            })
            .and_then(|()| self.consumer.assign(&list));
        assigned.map_err(|source| DeadError::Read { topic: self.topic.clone(), source })
    }

    /// Tells records and, by number, partitions that ended, until `each` has seen enough.
    fn poll(
        &self,
        mut each: impl FnMut(Result<BorrowedMessage<'_>, i32>) -> bool,
    ) -> Result<(), DeadError> {
        let mut heard = Instant::now();
        while heard.elapsed() < SILENCE_MAX {
            let event = match self.consumer.poll(POLL) {
                None => continue,
                Some(Ok(message)) => Ok(message),
                Some(Err(KafkaError::PartitionEOF(partition))) => Err(partition),
                // librdkafka tries again by itself, and only silence is final.
                Some(Err(error)) if is_passing(&error) => continue,
                Some(Err(source)) => {
                    return Err(DeadError::Read { topic: self.topic.clone(), source });
                }
            };
            heard = Instant::now();
            if each(event) {
                return Ok(());
            }
        }
        Err(DeadError::Silent { topic: self.topic.clone() })
    }
}

fn is_passing(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{AllBrokersDown, BrokerTransportFailure, OperationTimedOut, Resolve};
    let code = error.rdkafka_error_code();
    code.is_some_and(|code| {
        matches!(code, AllBrokersDown | BrokerTransportFailure | OperationTimedOut | Resolve)
    })
}

fn dead_record(message: &BorrowedMessage<'_>) -> DeadRecord {
    let timestamp = message.timestamp().to_millis().and_then(|ms| u64::try_from(ms).ok());
    DeadRecord {
        partition: message.partition(),
        offset: Offset(message.offset()),
        timestamp: UnixMillis(timestamp.unwrap_or_default()),
        record: copy_record(message),
    }
}
