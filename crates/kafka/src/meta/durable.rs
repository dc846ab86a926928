//! Writes one record to `<ns>.meta`, so that all replicas in sync have it: by a producer of its own, which ends with the record.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::message::{DeliveryResult, Message as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};

use super::PARTITION;
use super::log::{Error, kafka};
use crate::client::Connection;
use crate::client::errors;
use crate::client::oauth::tokens;
use waterclock_engine::Offset;

/// How much longer librdkafka may take to say that the time of a record is over.
const SLACK: Duration = Duration::from_secs(5);

/// Keeps what became of the last record: where it stands, or why it is not there.
#[derive(Clone, Default)]
pub(super) struct Outcome(Arc<Mutex<Option<Result<Offset, KafkaError>>>>);

impl Outcome {
    /// What became of it, if that was told since the last time.
    pub(super) fn take(&self) -> Option<Result<Offset, KafkaError>> {
        self.0.lock().take()
    }
}

impl ClientContext for Outcome {
    tokens!();

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "writer of meta");
    }
}

impl ProducerContext for Outcome {
    type DeliveryOpaque = usize;

    fn delivery(&self, delivery: &DeliveryResult<'_>, _: usize) {
        let result = match delivery {
            Ok(message) => Ok(Offset(message.offset())),
            Err((error, _)) => Err(error.clone()),
        };
        *self.0.lock() = Some(result);
    }
}

/// Writes a value under a key of [`PARTITION`], or takes away what stands there.
///
/// Blocks for at most 5 s longer than `most`.
///
/// # Errors
/// [`Error::Unacknowledged`]: it may be there or not; read again. Others: it is not.
pub(super) fn write(
    connection: &Connection,
    topic: &str,
    key: &str,
    value: Option<&str>,
    most: Duration,
) -> Result<(), Error> {
    let outcome = Outcome::default();
    let mut config = connection.client("waterclock-meta");
    config
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("linger.ms", "0")
        .set("message.timeout.ms", most.as_millis().to_string())
        .set("allow.auto.create.topics", "false");
    let producer: BaseProducer<Outcome> = config
        .create_with_context(outcome.clone())
        .map_err(|source| kafka("make a writer of", topic, source))?;
    let mut record: BaseRecord<'_, str, str, usize> =
        BaseRecord::with_opaque_to(topic, 0).partition(PARTITION).key(key);
    record.payload = value;
    producer.send(record).map_err(|(error, _)| kafka("write", topic, error))?;
    let flushed = producer.flush(most + SLACK);
    let result = outcome.take();
    match (result, flushed) {
        (Some(Ok(_)), _) => Ok(()),
        (Some(Err(source)), _) | (None, Err(source)) if !errors::kind(&source).may_be_written() => {
            Err(kafka("write", topic, source))
        }
        _ => Err(Error::Unacknowledged { topic: topic.to_owned(), key: key.to_owned() }),
    }
}
