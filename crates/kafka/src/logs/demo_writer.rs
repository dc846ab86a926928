//! Writes many records without waiting for each, and reports of each whether it was written. For the demo.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::producer::{DeliveryResult, Producer as _, ProducerContext};

use crate::client::Connection;
use crate::client::errors::{self, ErrorKind};
use crate::client::oauth::tokens;
use crate::client::raw::TopicProducer;
use waterclock_engine::Record;

/// Longest wait for room in the client's queue.
const ROOM_MAX: Duration = Duration::from_secs(10);

/// What became of one record.
#[derive(Clone, Debug)]
pub struct Ack {
    /// As given to [`DemoWriter::send`].
    pub token: usize,
    /// Whether all in-sync replicas have it.
    pub written: Result<(), KafkaError>,
}

struct Acks<F>(F);

impl<F: Fn(Ack) + Send + Sync> ClientContext for Acks<F> {
    tokens!();
}

impl<F: Fn(Ack) + Send + Sync> ProducerContext for Acks<F> {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, token: usize) {
        let written = result.as_ref().map(drop).map_err(|(error, _)| error.clone());
        (self.0)(Ack { token, written });
    }
}

/// A producer that hands every acknowledgement to a function, which must be quick.
pub struct DemoWriter<F: Fn(Ack) + Send + Sync + 'static> {
    producer: TopicProducer<Acks<F>>,
}

impl<F: Fn(Ack) + Send + Sync + 'static> DemoWriter<F> {
    /// Makes the producer; connects in the background.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub fn new(connection: &Connection, acked: F) -> Result<Self, KafkaError> {
        let mut config = connection.client("waterclock-feed");
        config
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("partitioner", "murmur2_random")
            .set("linger.ms", "2");
        Ok(Self { producer: TopicProducer::create(&config, Acks(acked))? })
    }

    /// Enqueues one record, to this partition or its key's.
    ///
    /// # Errors
    /// It was not enqueued: the client's queue stayed full, or the record cannot be produced.
    pub fn send(
        &mut self,
        topic: &Arc<str>,
        partition: Option<i32>,
        record: &Record,
        token: usize,
    ) -> Result<(), KafkaError> {
        let until = Instant::now() + ROOM_MAX;
        loop {
            let sent = self.producer.produce(
                topic,
                partition,
                // What it writes to has the time of the append.
                None,
                record,
                |each| record.headers().for_each(|(name, value)| each(name, value)),
                token,
            );
            match sent {
                Err(error)
                    if errors::kind(&error) == ErrorKind::QueueFull && Instant::now() < until =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                sent => return sent,
            }
        }
    }

    /// Waits until everything is acknowledged or has failed.
    ///
    /// # Errors
    /// Something still is on its way after `most`.
    pub fn flush(&self, most: Duration) -> Result<(), KafkaError> {
        self.producer.inner().flush(most)
    }
}
