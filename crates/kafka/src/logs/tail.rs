//! Reads topics from their beginning, as an onlooker: no group membership, no commit. For the demo.

use std::time::Duration;

use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use crate::client::connect::{Isolation, Reader, is_outside};
use crate::client::{Connection, raw};
use waterclock_engine::{Record, UnixMillis};

/// A record, and where it stands.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Which of the topics given to [`Tail::new`].
    pub topic: usize,
    /// Its timestamp: the broker's append time where the topic is set so, else its producer's.
    pub stamped: UnixMillis,
    /// Key, value and headers.
    pub record: Record,
}

/// A `read_committed` consumer of whole topics.
pub struct Tail {
    consumer: Reader,
    topics: Vec<String>,
}

impl Tail {
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
        let consumer = connection.reader("waterclock-tail", Isolation::Committed, wait)?;
        let mut list = TopicPartitionList::new();
        for topic in &topics {
            for partition in 0..partitions {
                list.add_partition_offset(topic, i32::from(partition), At::Beginning)?;
            }
        }
        consumer.assign(&list)?;
        Ok(Self { consumer, topics })
    }

    /// The next record; `None` when there is none within `most`.
    ///
    /// # Errors
    /// Reading cannot go on. A broker that is away for a while is no error: reading goes on when it is back.
    pub fn next(&self, most: Duration) -> Result<Option<Seen>, KafkaError> {
        let message = match self.consumer.poll(most) {
            None => return Ok(None),
            Some(Ok(message)) => message,
            Some(Err(error)) => {
                return match error.rdkafka_error_code() {
                    Some(RDKafkaErrorCode::Fatal | RDKafkaErrorCode::TopicAuthorizationFailed) => {
                        Err(error)
                    }
                    _ if is_outside(&error) => Err(error),
                    _ => Ok(None),
                };
            }
        };
        let Some(topic) = self.topics.iter().position(|name| name == message.topic()) else {
            return Ok(None);
        };
        let stamped = message.timestamp().to_millis().and_then(|ms| u64::try_from(ms).ok());
        Ok(Some(Seen {
            topic,
            stamped: UnixMillis(stamped.unwrap_or_default()),
            record: raw::copy_record(&message),
        }))
    }
}
