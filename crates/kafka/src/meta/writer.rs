//! What a process writes to `<ns>.meta` for as long as it lives, by one producer: probes of the brokers' clocks, and what it
//! announces of itself.
//!
//! # Invariants
//! 1. A record is acknowledged by its leader alone. A probe is to tell a broker's time even where replicas are missing; an
//!    announcement is repeated until it has been read back.
//! 2. A record is written within [`WRITE_MAX`] or not at all: what is older says nothing.
//! 3. The thread that takes the events learns of an acknowledgement at once. It is the clock's thread, which needs to know when
//!    one came.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::client::Client;
use rdkafka::error::KafkaError;
use rdkafka::message::{Message as _, Timestamp};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext};

use crate::client::Connection;
use crate::client::oauth::tokens;
use crate::client::raw;
use crate::client::raw::bell::Bell;
use waterclock_engine::UnixMillis;

/// How the client is named in the brokers' logs.
const CLIENT: &str = "waterclock-meta";
/// How long a record may take.
const WRITE_MAX: Duration = Duration::from_secs(5);
/// Between two looks at the events of one who waits for a record.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A record that was written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// The broker that has acknowledged it, -1 where that is not known.
    pub(crate) broker: i32,
    /// When it was appended, by that broker's clock; `None`: the topic does not tell.
    pub(crate) appended: Option<UnixMillis>,
    /// When that was known here.
    pub(crate) acked: Instant,
}

type Report = Result<Written, KafkaError>;

/// Is told what became of a record. It must be quick, and wait for nobody.
struct Tell(Box<dyn FnOnce(Report) + Send + Sync>);

/// See the module.
pub struct MetaWriter {
    producer: BaseProducer<Context>,
    topic: String,
    connection: Connection,
}

impl std::fmt::Debug for MetaWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetaWriter").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl MetaWriter {
    /// Makes the producer; connects in the background. `topic` is `<ns>.meta`.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub(crate) fn new(connection: &Connection, topic: &str) -> Result<Arc<Self>, KafkaError> {
        let mut config = connection.client(CLIENT);
        config
            .set("acks", "1")
            .set("linger.ms", "0")
            .set("message.timeout.ms", WRITE_MAX.as_millis().to_string());
        let producer: BaseProducer<Context> = config.create_with_context(Context)?;
        let connection = connection.clone();
        Ok(Arc::new(Self { producer, topic: topic.to_owned(), connection }))
    }

    /// The topic.
    pub(crate) fn topic(&self) -> &str {
        &self.topic
    }

    /// For questions about the topic.
    pub(crate) fn client(&self) -> &Client<impl ClientContext + use<>> {
        self.producer.client()
    }

    /// How it reaches Kafka.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Enqueues one record; without a value it takes away what stands under the key. `tell` is told what became of it.
    ///
    /// # Errors
    /// It was not enqueued, and nobody is told anything.
    pub(crate) fn write(
        &self,
        partition: i32,
        key: &str,
        value: Option<&str>,
        tell: impl FnOnce(Report) + Send + Sync + 'static,
    ) -> Result<(), KafkaError> {
        let tell = Box::new(Tell(Box::new(tell)));
        let mut record: BaseRecord<'_, str, str, Box<Tell>> =
            BaseRecord::with_opaque_to(&self.topic, tell).partition(partition).key(key);
        record.payload = value;
        self.producer.send(record).map_err(|(error, _)| error)
    }

    /// The same, which waits for the acknowledgement; false: there was none in time.
    pub(crate) fn write_and_wait(
        &self,
        partition: i32,
        key: &str,
        value: Option<&str>,
        most: Duration,
    ) -> bool {
        let (sender, reports) = sync_channel(1);
        let tell = move |report: Report| {
            let _ = sender.send(report.is_ok());
        };
        if let Err(error) = self.write(partition, key, value, tell) {
            tracing::debug!(%error, key, "not written to meta");
            return false;
        }
        let until = Instant::now() + most;
        while Instant::now() < until {
            match reports.recv_timeout(LOOK_EVERY) {
                Ok(is_written) => return is_written,
                Err(RecvTimeoutError::Disconnected) => return false,
                // The thread that takes the events may have ended.
                Err(RecvTimeoutError::Timeout) => self.producer.poll(Duration::ZERO),
            }
        }
        false
    }

    /// Takes the events on this thread, which waits until `is_enough` or for `most`.
    pub(crate) fn take_events(&self, bell: &Bell, most: Duration, is_enough: impl Fn() -> bool) {
        let until = Instant::now() + most;
        loop {
            while bell.has_events() {
                self.producer.poll(Duration::ZERO);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || is_enough() {
                return;
            }
            std::thread::park_timeout(left);
        }
    }

    /// Wakes this thread for events. It must not outlive the producer.
    pub(crate) fn bell(&self) -> Bell {
        Bell::of(self.producer.client(), std::thread::current())
    }
}

struct Context;

impl ClientContext for Context {
    tokens!();

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "writing to meta");
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = Box<Tell>;

    fn delivery(&self, result: &DeliveryResult<'_>, tell: Box<Tell>) {
        let acked = Instant::now();
        let report = match result {
            Err((error, _)) => Err(error.clone()),
            Ok(message) => {
                let appended = match message.timestamp() {
                    Timestamp::LogAppendTime(at) => u64::try_from(at).ok().map(UnixMillis),
                    _ => None,
                };
                Ok(Written { broker: raw::broker_of(message), appended, acked })
            }
        };
        (tell.0)(report);
    }
}
