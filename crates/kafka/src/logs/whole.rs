//! Reads a topic of ours from its beginning to where it ended when asked, outside of any group's work.
//!
//! A consumer without offsets of its own: it commits nothing, and no group is rebalanced by it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use rdkafka::{Offset as Position, TopicPartitionList};

use crate::client::connect::{Isolation, Reader};
use crate::client::{Connection, NoAnswer};
use waterclock_engine::Offset;

/// Longest wait for a first answer of the brokers.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the next record, once they have answered.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long one poll waits.
const POLL: Duration = Duration::from_millis(100);
/// How long a broker holds a fetch for which there is nothing.
const WAIT: Duration = Duration::from_millis(50);

/// Why a topic could not be read. Nothing has changed by it.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Nobody answered; try again.
    #[error("could not reach Kafka")]
    Unreachable(#[from] NoAnswer),
    /// Another namespace is meant, or `waterclock topics apply` is still to be run.
    #[error("there is no topic {topic}; `waterclock topics apply` makes those of a namespace")]
    NoTopic {
        /// Its name.
        topic: String,
    },
    /// The brokers answer, but not with this.
    #[error("could not read {topic}")]
    Read {
        /// Its name.
        topic: String,
        /// What librdkafka said.
        #[source]
        source: KafkaError,
    },
    /// The brokers stopped answering in the middle; what was told before is right, but not all.
    #[error("no answer from {topic} for {} s", SILENCE_MAX.as_secs())]
    Silent {
        /// Its name.
        topic: String,
    },
}

/// One topic, ready to be read.
pub(crate) struct Whole {
    consumer: Reader,
    topic: String,
    /// First offset and end of every partition, as they were when this was opened.
    ends: BTreeMap<i32, (i64, i64)>,
}

impl Whole {
    /// Finds a topic and its ends. `client` and `group` are what it is named by in the brokers' logs and rights.
    ///
    /// # Errors
    /// Kafka cannot be reached, or there is no such topic.
    pub(crate) fn open(
        connection: &Connection,
        topic: String,
        (client, group): (&str, &str),
    ) -> Result<Self, ReadError> {
        let read = |source| ReadError::Read { topic: topic.clone(), source };
        let metadata = connection.metadata(ANSWER_MAX)?;
        let consumer =
            connection.reader_to_ends(client, group, Isolation::Committed, WAIT).map_err(read)?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let found = found.filter(|t| t.error().is_none() && !t.partitions().is_empty());
        let Some(found) = found else { return Err(ReadError::NoTopic { topic }) };
        let mut ends = BTreeMap::new();
        for partition in found.partitions() {
            let ends_of = consumer.fetch_watermarks(&topic, partition.id(), ANSWER_MAX);
            ends.insert(partition.id(), ends_of.map_err(read)?);
        }
        Ok(Self { consumer, topic, ends })
    }

    /// First offset and end of every partition, as they were when this was opened.
    pub(crate) fn ends(&self) -> &BTreeMap<i32, (i64, i64)> {
        &self.ends
    }

    fn failed(&self, source: KafkaError) -> ReadError {
        ReadError::Read { topic: self.topic.clone(), source }
    }

    /// Has these partitions read, each from there.
    ///
    /// # Errors
    /// librdkafka refused it.
    pub(crate) fn assign(
        &self,
        places: impl IntoIterator<Item = (i32, Position)>,
    ) -> Result<(), ReadError> {
        let mut list = TopicPartitionList::new();
        let assigned = places
            .into_iter()
            .try_for_each(|(partition, position)| {
                list.add_partition_offset(&self.topic, partition, position)
            })
            .and_then(|()| self.consumer.assign(&list));
        assigned.map_err(|source| self.failed(source))
    }

    /// Where reading stands in a partition, marks of transactions included, which leave no record.
    ///
    /// # Errors
    /// librdkafka does not know.
    pub(crate) fn position(&self, partition: i32) -> Result<Option<Offset>, ReadError> {
        let positions = self.consumer.position().map_err(|source| self.failed(source))?;
        let at = positions.find_partition(&self.topic, partition).map(|at| at.offset());
        Ok(match at {
            Some(Position::Offset(at)) => Some(Offset(at)),
            _ => None,
        })
    }

    /// Tells records and, by number, partitions that ended, until `each` has seen enough.
    ///
    /// # Errors
    /// Reading failed in the middle; what was told before is right. `E` is what stopped it.
    pub(crate) fn poll<E: From<ReadError>>(
        &self,
        mut each: impl FnMut(Result<BorrowedMessage<'_>, i32>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut heard = Instant::now();
        while heard.elapsed() < SILENCE_MAX {
            let event = match self.consumer.poll(POLL) {
                None => continue,
                Some(Ok(message)) => Ok(message),
                Some(Err(KafkaError::PartitionEOF(partition))) => Err(partition),
                // librdkafka tries again by itself, and only silence is final.
                Some(Err(error)) if is_passing(&error) => continue,
                Some(Err(source)) => return Err(self.failed(source).into()),
            };
            heard = Instant::now();
            if each(event)? {
                return Ok(());
            }
        }
        Err(ReadError::Silent { topic: self.topic.clone() }.into())
    }
}

fn is_passing(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{AllBrokersDown, BrokerTransportFailure, OperationTimedOut, Resolve};
    let code = error.rdkafka_error_code();
    code.is_some_and(|code| {
        matches!(code, AllBrokersDown | BrokerTransportFailure | OperationTimedOut | Resolve)
    })
}
