//! Reads topics from their beginning, as an onlooker: no group membership, no commit. For the demo.

use std::time::Duration;

use rdkafka::error::KafkaError;

use crate::client::connect::Isolation;
use crate::client::topic_reader::{Polled, StartAt, is_lasting};
use crate::client::{Connection, TopicReader};
use waterclock_engine::{Record, UnixMillis};

/// A record, and where it stands.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Which of the topics given to [`DemoReader::new`].
    pub topic: usize,
    /// Its timestamp: the broker's append time where the topic is set so, else its producer's.
    pub stamped: UnixMillis,
    /// Key, value and headers.
    pub record: Record,
}

/// A `read_committed` consumer of whole topics.
pub struct DemoReader {
    reader: TopicReader,
    topics: Vec<String>,
}

impl DemoReader {
    /// Reads these topics, all of as many partitions. `wait` bounds how long the broker holds an empty answer back:
    /// short where an append does not end the wait (the embedded broker).
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub fn new(
        connection: &Connection,
        topics: Vec<String>,
        partitions: u16,
        wait: Duration,
    ) -> Result<Self, KafkaError> {
        let mut reader =
            TopicReader::new(connection, "waterclock-tail", Isolation::Committed, wait)?;
        let of = |topic| (0..partitions).map(move |at| (topic, i32::from(at), StartAt::Beginning));
        reader.assign_all(topics.iter().map(String::as_str).flat_map(of))?;
        Ok(Self { reader, topics })
    }

    /// The next record; `None` when there is none within `most`.
    ///
    /// # Errors
    /// Reading cannot go on. A broker that is away for a while is no error: reading goes on when it is back.
    pub fn next(&mut self, most: Duration) -> Result<Option<Seen>, KafkaError> {
        let record = match self.reader.poll(most) {
            Some(Polled::Record(record)) => record,
            Some(Polled::Outside(_, error)) => return Err(error),
            Some(Polled::Failed(error, _)) if is_lasting(&error) => return Err(error),
            Some(Polled::End(_) | Polled::Failed(..)) | None => return Ok(None),
        };
        let topic = self.topics.iter().position(|name| name == record.topic());
        Ok(topic.map(|topic| Seen {
            topic,
            stamped: record.appended().unwrap_or_default(),
            record: record.copy(),
        }))
    }
}
