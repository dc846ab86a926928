//! Reads `<ns>.timers`, lane by lane, from its beginning to its end: for whoever compares an index with it, or makes one.
//!
//! A consumer without offsets of its own: it commits nothing, and no group is rebalanced by it.

use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::{Offset as At, TopicPartitionList};

use super::connect::{Isolation, Reader};
use super::{Connection, NoAnswer};
use crate::engine::timers::{Change, DecodeError};
use crate::engine::{Lane, Offset, UnixMillis};

/// How it is named in the brokers' logs.
const CLIENT: &str = "waterclock-index";
/// Longest wait for a first answer of the brokers.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the next record, once they have answered.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long one poll waits.
const POLL: Duration = Duration::from_millis(100);
/// How long a broker holds a fetch for which there is nothing.
const WAIT: Duration = Duration::from_millis(50);

/// One record of the changelog.
#[derive(Debug)]
pub struct Logged<'a> {
    /// Where it stands in its lane.
    pub offset: Offset,
    /// When it was appended.
    pub at: UnixMillis,
    /// Its key as it stands there.
    pub key: &'a [u8],
    /// What it says.
    pub change: Result<Change, DecodeError>,
}

/// Why the changelog could not be read. Nothing has changed by it.
#[derive(Debug, thiserror::Error)]
pub enum ChangelogError {
    /// Nobody answered; try again.
    #[error("could not reach Kafka")]
    Unreachable(#[from] NoAnswer),
    /// Another namespace is meant, or `waterclock topics apply` is still to be run.
    #[error("there is no topic {topic}")]
    NoTopic {
        /// The changelog.
        topic: String,
    },
    /// The brokers answer, but not with this.
    #[error("could not read {topic}")]
    Read {
        /// The changelog.
        topic: String,
        /// What librdkafka said.
        #[source]
        source: KafkaError,
    },
    /// The brokers stopped answering in the middle.
    #[error("no answer from {topic} for {} s", SILENCE_MAX.as_secs())]
    Silent {
        /// The changelog.
        topic: String,
    },
}

/// The changelog of one namespace, ready to be read.
pub struct Changelog {
    consumer: Reader,
    topic: String,
    /// First offset and end of every lane, as they were when this was opened.
    ends: Vec<(Offset, Offset)>,
}

impl Changelog {
    /// Finds the topic and its ends.
    ///
    /// # Errors
    /// Kafka cannot be reached, or there is no such topic.
    pub fn open(connection: &Connection, namespace: &str) -> Result<Self, ChangelogError> {
        let topic = format!("{namespace}.timers");
        let read = |source| ChangelogError::Read { topic: topic.clone(), source };
        let metadata = connection.metadata(ANSWER_MAX)?;
        let consumer =
            connection.reader_to_ends(CLIENT, CLIENT, Isolation::Committed, WAIT).map_err(read)?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let found = found.filter(|t| t.error().is_none() && !t.partitions().is_empty());
        let Some(found) = found else { return Err(ChangelogError::NoTopic { topic }) };
        let mut ends = Vec::with_capacity(found.partitions().len());
        for lane in 0..found.partitions().len() {
            let partition = i32::try_from(lane).unwrap_or(i32::MAX);
            let (low, end) =
                consumer.fetch_watermarks(&topic, partition, ANSWER_MAX).map_err(read)?;
            ends.push((Offset(low), Offset(end)));
        }
        Ok(Self { consumer, topic, ends })
    }

    /// All lanes that it has.
    #[must_use]
    pub fn lanes(&self) -> Vec<Lane> {
        (0..self.ends.len()).filter_map(|lane| u16::try_from(lane).ok()).map(Lane).collect()
    }

    /// Offsets of a lane that are to be read: more than records, as those that are compacted count, too.
    #[must_use]
    pub fn span(&self, lane: Lane) -> u64 {
        let ends = self.ends.get(usize::from(lane.0));
        ends.map_or(0, |(low, end)| u64::try_from(end.0 - low.0).unwrap_or(0))
    }

    /// Tells every committed record of a lane in order, until told to stop; then, where reading ended.
    ///
    /// # Errors
    /// Reading failed in the middle; what was told before is right. `E` is what stopped it.
    pub fn read<E: From<ChangelogError>>(
        &self,
        lane: Lane,
        mut each: impl FnMut(Logged<'_>) -> Result<(), E>,
    ) -> Result<Offset, E> {
        let read = |source| ChangelogError::Read { topic: self.topic.clone(), source };
        let partition = i32::from(lane.0);
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic, partition, At::Beginning).map_err(read)?;
        self.consumer.assign(&list).map_err(read)?;
        let mut heard = Instant::now();
        let mut next = self.ends.get(usize::from(lane.0)).map_or(Offset(0), |(low, _)| *low);
        while heard.elapsed() < SILENCE_MAX {
            match self.consumer.poll(POLL) {
                None => continue,
                Some(Ok(message)) if message.partition() == partition => {
                    let offset = Offset(message.offset());
                    let at = message.timestamp().to_millis().and_then(|ms| u64::try_from(ms).ok());
                    let change = Change::decode(message.key(), message.payload());
                    let key = message.key().unwrap_or_default();
                    each(Logged { offset, at: UnixMillis(at.unwrap_or_default()), key, change })?;
                    next = offset.next();
                }
                // Of a lane that was read before.
                Some(Ok(_)) => continue,
                Some(Err(KafkaError::PartitionEOF(ended))) if ended == partition => {
                    // The position is also beyond marks of transactions, which leave no record.
                    let positions = self.consumer.position().map_err(read)?;
                    let at = positions.find_partition(&self.topic, partition);
                    return match at.map(|at| at.offset()) {
                        Some(At::Offset(at)) => Ok(next.max(Offset(at))),
                        _ => Ok(next),
                    };
                }
                // librdkafka tries again by itself, and only silence is final.
                Some(Err(KafkaError::PartitionEOF(_))) => continue,
                Some(Err(error)) if is_passing(&error) => continue,
                Some(Err(source)) => return Err(read(source).into()),
            }
            heard = Instant::now();
        }
        Err(ChangelogError::Silent { topic: self.topic.clone() }.into())
    }
}

fn is_passing(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{AllBrokersDown, BrokerTransportFailure, OperationTimedOut, Resolve};
    let code = error.rdkafka_error_code();
    code.is_some_and(|code| {
        matches!(code, AllBrokersDown | BrokerTransportFailure | OperationTimedOut | Resolve)
    })
}
