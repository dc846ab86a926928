//! Reads the partitions that it is given, as an onlooker: it joins no group and commits nothing.
//!
//! For rooms that read a topic and know nothing of librdkafka.

use std::time::Duration;

use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use super::connect::{Isolation, Reader, is_outside};
use super::{Connection, raw};
use waterclock_engine::{Offset, Record, UnixMillis};

/// Where reading of a partition begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// With the first record that is there.
    Beginning,
    /// With the first record from this offset on.
    Offset(Offset),
    /// With what is appended from now on.
    End,
}

/// What a poll came to.
pub enum Polled<'a> {
    /// A record.
    Record(Consumed<'a>),
    /// This partition is read to its end. Only a reader that was made with [`TopicReader::to_ends`] says so.
    End(i32),
    /// A partition is not read on: its position is not in the log, since what was to be read next was deleted.
    Outside(KafkaError),
    /// Something went wrong. Reading goes on by itself, unless it [`is_lasting`].
    Failed(KafkaError),
}

/// Whether an error of reading lasts until a person mends it.
#[must_use]
pub fn is_lasting(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::Fatal
                | RDKafkaErrorCode::TopicAuthorizationFailed
                | RDKafkaErrorCode::UnknownTopicOrPartition
        )
    )
}

/// A record that was polled; it is librdkafka's until it is copied.
pub struct Consumed<'a>(BorrowedMessage<'a>);

impl Consumed<'_> {
    /// Its topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        self.0.topic()
    }

    /// Its partition.
    #[must_use]
    pub fn partition(&self) -> i32 {
        self.0.partition()
    }

    /// Its offset.
    #[must_use]
    pub fn offset(&self) -> Offset {
        Offset(self.0.offset())
    }

    /// Its timestamp: when it was appended, where the topic is set so.
    #[must_use]
    pub fn appended(&self) -> Option<UnixMillis> {
        self.0.timestamp().to_millis().and_then(|ms| u64::try_from(ms).ok()).map(UnixMillis)
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.0.key()
    }

    /// Its value.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        self.0.payload()
    }

    /// Whether it has this header with this value.
    #[must_use]
    pub fn has_header(&self, name: &[u8], value: &[u8]) -> bool {
        raw::has_header(&self.0, name, value)
    }

    /// A copy of it; of one that is larger than `most` bytes, what is kept of such.
    #[must_use]
    pub fn record(&self, most: usize) -> Record {
        raw::copy_bounded(&self.0, most)
    }
}

/// See the module.
pub struct TopicReader(Reader);

impl TopicReader {
    /// A reader with this name in the brokers' logs. `wait`: how long a broker holds a fetch for which there is nothing.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub fn new(
        connection: &Connection,
        client_id: &str,
        isolation: Isolation,
        wait: Duration,
    ) -> Result<Self, KafkaError> {
        connection.reader(client_id, isolation, wait).map(Self)
    }

    /// The same, which says when it is at a partition's end.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub fn to_ends(
        connection: &Connection,
        client_id: &str,
        isolation: Isolation,
        wait: Duration,
    ) -> Result<Self, KafkaError> {
        connection.reader_to_ends(client_id, client_id, isolation, wait).map(Self)
    }

    /// Has these partitions of a topic read, and no others.
    ///
    /// # Errors
    /// librdkafka refused it.
    pub fn assign(
        &self,
        topic: &str,
        partitions: impl IntoIterator<Item = (i32, StartAt)>,
    ) -> Result<(), KafkaError> {
        let mut list = TopicPartitionList::new();
        for (partition, from) in partitions {
            let from = match from {
                StartAt::Beginning => At::Beginning,
                StartAt::Offset(offset) => At::Offset(offset.0),
                StartAt::End => At::End,
            };
            list.add_partition_offset(topic, partition, from)?;
        }
        self.0.assign(&list)
    }

    /// What comes next; `None`: nothing within this time.
    #[must_use]
    pub fn poll(&self, most: Duration) -> Option<Polled<'_>> {
        Some(match self.0.poll(most)? {
            Ok(message) => Polled::Record(Consumed(message)),
            Err(KafkaError::PartitionEOF(partition)) => Polled::End(partition),
            Err(error) if is_outside(&error) => Polled::Outside(error),
            Err(error) => Polled::Failed(error),
        })
    }

    /// How far the partitions of a topic are read: one past the last record, and past the marks of transactions behind
    /// that. Those of which nothing was polled yet are left out.
    ///
    /// # Errors
    /// librdkafka does not know.
    pub fn positions(&self, topic: &str) -> Result<Vec<(i32, Offset)>, KafkaError> {
        let positions = self.0.position()?;
        let of_topic = positions.elements_for_topic(topic).into_iter();
        let known = of_topic.filter_map(|element| match element.offset() {
            At::Offset(next) => Some((element.partition(), Offset(next))),
            _ => None,
        });
        Ok(known.collect())
    }

    /// First offset and end of a partition.
    ///
    /// # Errors
    /// Its leader did not answer.
    pub fn ends(
        &self,
        topic: &str,
        partition: i32,
        most: Duration,
    ) -> Result<(Offset, Offset), KafkaError> {
        let (first, end) = self.0.fetch_watermarks(topic, partition, most)?;
        Ok((Offset(first), Offset(end)))
    }

    /// The first offset of a partition that has this time or a later one; `None`: nothing is as late.
    ///
    /// # Errors
    /// Its leader did not answer.
    pub fn offset_at(
        &self,
        topic: &str,
        partition: i32,
        time: UnixMillis,
        most: Duration,
    ) -> Result<Option<Offset>, KafkaError> {
        let mut asked = TopicPartitionList::with_capacity(1);
        asked.add_partition_offset(topic, partition, At::Offset(time.0.cast_signed()))?;
        let answer = self.0.offsets_for_times(asked, most)?;
        Ok(match answer.find_partition(topic, partition).map(|at| at.offset()) {
            Some(At::Offset(offset)) => Some(Offset(offset)),
            _ => None,
        })
    }

    /// Finds out who leads the partitions of a topic, before one of them is assigned. If a topic is new to a client that runs
    /// already, librdkafka itself asks for its leaders only once a second: the partition is silent for 500 to 1,000 ms, and
    /// for 100 ms if they are known (measured).
    ///
    /// # Errors
    /// Nobody answered.
    pub fn find_leaders(&self, topic: &str, most: Duration) -> Result<(), KafkaError> {
        self.0.fetch_metadata(Some(topic), most).map(drop)
    }
}
