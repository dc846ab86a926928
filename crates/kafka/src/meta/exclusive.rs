//! The one writer that changes what is known of projects and services in `<ns>.meta`.
//!
//! It is a producer of transactions under one id of the namespace. Who begins under that id fences the writer before, in whichever
//! process: Kafka ends the transaction that it has open, and refuses all that it writes from then on.
//!
//! # Invariants
//! 1. What is committed was committed while no other writer had begun since this one.
//! 2. No transaction stays open for longer than [`STEP_MAX`], as the readers of the topic wait for its end.

use std::time::Duration;

use rdkafka::producer::{BaseRecord, Producer as _};

use super::PARTITION;
use super::durable::Outcome;
use super::log::{Error, kafka};
use crate::client::Connection;
use crate::client::errors;
use crate::client::raw::TopicProducer;
use crate::client::raw::ask;
use waterclock_engine::Offset;

/// Longest wait for each step: to begin, and to commit.
const STEP_MAX: Duration = Duration::from_secs(5);

/// Why nothing was written.
#[derive(Debug)]
pub(super) enum Lost {
    /// Another writer has begun. Of what was being written it may be unknown whether it stands: begin again, and read it.
    Fenced,
    /// Kafka did not take it, or did not say so.
    Failed(Error),
}

/// The only writer, until another one begins.
pub(super) struct ExclusiveWriter {
    producer: TopicProducer<Outcome>,
    outcome: Outcome,
    topic: String,
}

impl ExclusiveWriter {
    /// Begins under this transactional id.
    ///
    /// Blocks for at most two [steps](STEP_MAX).
    ///
    /// # Errors
    /// [`Lost::Fenced`]: another one has begun meanwhile.
    pub(super) fn begin(connection: &Connection, topic: &str, id: &str) -> Result<Self, Lost> {
        let step_ms = STEP_MAX.as_millis().to_string();
        let mut config = connection.client("waterclock-registry");
        config
            .set("transactional.id", id)
            // librdkafka wants it no longer than the transaction.
            .set("socket.timeout.ms", &step_ms)
            .set("transaction.timeout.ms", &step_ms)
            .set("message.timeout.ms", &step_ms)
            .set("linger.ms", "0")
            .set("retry.backoff.ms", "2")
            .set("retry.backoff.max.ms", "50")
            .set("allow.auto.create.topics", "false");
        let failed = |source| Lost::Failed(kafka("make a writer of", topic, source));
        let outcome = Outcome::default();
        let producer = TopicProducer::create(&config, outcome.clone()).map_err(failed)?;
        let client = producer.inner().client();
        connection.token(client);
        // A client without a connection looks for its coordinator every half second only; any question makes one first.
        let _ = ask::reach(client, STEP_MAX);
        let writer = Self { producer, outcome, topic: topic.to_owned() };
        match writer.producer.inner().init_transactions(STEP_MAX) {
            Ok(()) => Ok(writer),
            Err(_) if writer.is_fenced() => Err(Lost::Fenced),
            Err(source) => Err(Lost::Failed(kafka("begin to change", topic, source))),
        }
    }

    /// Commits these records of [`PARTITION`], all or none of them; `None` takes away what stands under a key. Gives back where the
    /// last one stands.
    ///
    /// # Errors
    /// See [`Lost`]. Begin another one then.
    pub(super) fn write(&self, records: &[(&str, Option<String>)]) -> Result<Offset, Lost> {
        let topic = &self.topic;
        let failed = |source| match self.is_fenced() {
            true => Lost::Fenced,
            false => Lost::Failed(kafka("write", topic, source)),
        };
        self.outcome.take();
        let producer = self.producer.inner();
        producer.begin_transaction().map_err(failed)?;
        for (key, value) in records {
            let mut record: BaseRecord<'_, str, str, usize> =
                BaseRecord::with_opaque_to(topic, 0).partition(PARTITION).key(key);
            record.payload = value.as_deref();
            if let Err((error, _)) = producer.send(record) {
                let _ = producer.abort_transaction(STEP_MAX);
                return Err(failed(error));
            }
        }
        let committed = self.producer.commit(STEP_MAX);
        let written = self.outcome.take();
        let refused = written.as_ref().and_then(|written| errors::code(written.as_ref().err()?));
        let mut said = committed.as_ref().err().map(|(code, _)| *code).into_iter().chain(refused);
        let is_fenced = said.any(errors::is_of_old_epoch) || self.is_fenced();
        match (committed, written) {
            (Ok(()), Some(Ok(offset))) => Ok(offset),
            (Err(_), _) if is_fenced => Err(Lost::Fenced),
            (_, Some(Err(source))) if !errors::kind(&source).may_be_written() => {
                let _ = producer.abort_transaction(STEP_MAX);
                Err(failed(source))
            }
            (committed, _) => {
                if let Err((_, told)) = committed {
                    tracing::warn!(topic, error = told, "could not commit a change of projects");
                }
                // What was not committed ends with this, or at its time limit.
                let _ = producer.abort_transaction(STEP_MAX);
                let key = records.last().map_or("", |(key, _)| *key).to_owned();
                Err(Lost::Failed(Error::Unacknowledged { topic: topic.clone(), key }))
            }
        }
    }

    fn is_fenced(&self) -> bool {
        let fatal = self.producer.inner().client().fatal_error();
        fatal.is_some_and(|(code, _)| errors::is_of_old_epoch(code))
    }
}
