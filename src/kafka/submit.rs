//! Submits one record: finds its lane, produces, waits for the acknowledgement of all in-sync replicas.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use rdkafka::ClientContext;
use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::producer::{DeliveryResult, ProducerContext, ThreadedProducer};

use super::oauth::tokens;
use super::raw::Outlet;
use super::{Connection, NoAnswer};
use crate::engine::{Offset, Record, UnixMillis, murmur2};

/// Longest wait for a first answer of the brokers.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the acknowledgement, as librdkafka counts it.
const DELIVERY_MS_MAX: &str = "10000";
/// A little longer than that, so that it is librdkafka that says what happened.
const RECEIPT_MAX: Duration = Duration::from_secs(12);
/// What own topics take: 2 MiB, and the state header.
const RECORD_BYTES_MAX: &str = "2097152";

/// Where a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Partition of the intake.
    pub partition: i32,
    /// Offset in it.
    pub offset: Offset,
    /// When the broker appended it.
    pub appended: UnixMillis,
}

/// Why a record was not submitted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// Nobody answered, nothing was sent; try again.
    #[error("could not reach Kafka")]
    Unreachable(#[from] NoAnswer),
    /// Another namespace or intake is meant, or `waterclock topics apply` is still to be run.
    #[error("there is no topic {topic}")]
    NoTopic {
        /// The intake.
        topic: String,
    },
    /// Kafka refused the record, or librdkafka its settings; nothing was written.
    #[error("could not write to {topic}")]
    Refused {
        /// The intake.
        topic: String,
        /// What librdkafka said.
        #[source]
        source: KafkaError,
    },
    /// Nobody knows whether the record was written. With an id, submitting it again is safe.
    #[error("no acknowledgement from {topic}; the record may have been written")]
    Unacknowledged {
        /// The intake.
        topic: String,
    },
}

/// A producer for single records.
pub struct Submitter {
    outlet: Outlet<Reports>,
    reports: crossbeam_channel::Receiver<Report>,
    connection: Connection,
}

type Report = Result<Receipt, KafkaError>;

/// Hands delivery reports on.
struct Reports(Sender<Report>);

impl ClientContext for Reports {
    tokens!();
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, _: usize) {
        let report = match result {
            Err((error, _)) => Err(error.clone()),
            Ok(message) => {
                let appended =
                    message.timestamp().to_millis().and_then(|ms| u64::try_from(ms).ok());
                Ok(Receipt {
                    partition: message.partition(),
                    offset: Offset(message.offset()),
                    appended: UnixMillis(appended.unwrap_or_default()),
                })
            }
        };
        // Nobody waits any more when the command has given up.
        let _ = self.0.send(report);
    }
}

impl Submitter {
    /// Makes the producer; connects in the background.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub fn new(connection: &Connection) -> Result<Self, SubmitError> {
        let (sender, reports) = crossbeam_channel::bounded(1);
        let mut config = connection.client("waterclock-send");
        config
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("partitioner", "murmur2_random")
            .set("message.timeout.ms", DELIVERY_MS_MAX)
            .set("message.max.bytes", RECORD_BYTES_MAX)
            .set("linger.ms", "0");
        let producer = ThreadedProducer::from_config_and_context(&config, Reports(sender))
            .map_err(|source| SubmitError::Refused { topic: "Kafka".to_owned(), source })?;
        Ok(Self { outlet: Outlet::new(producer), reports, connection: connection.clone() })
    }

    /// How many partitions each of these topics has; `None` for one that is not there. Creates none.
    ///
    /// # Errors
    /// Nobody answered.
    pub fn partitions(&self, topics: &[&str]) -> Result<Vec<Option<i32>>, SubmitError> {
        let metadata = self.connection.metadata(ANSWER_MAX)?;
        let count = |name: &&str| {
            let found = metadata.topics().iter().find(|found| found.name() == *name)?;
            let count = i32::try_from(found.partitions().len()).ok()?;
            (count > 0).then_some(count)
        };
        Ok(topics.iter().map(count).collect())
    }

    /// Writes one record to its lane, which `lane_key` decides (none: any), and waits for the acknowledgement.
    ///
    /// # Errors
    /// See [`SubmitError`] for whether something was written.
    pub fn submit(
        &mut self,
        topic: &str,
        partitions: i32,
        lane_key: Option<&[u8]>,
        record: &Record,
    ) -> Result<Receipt, SubmitError> {
        let lanes = u16::try_from(partitions).unwrap_or(u16::MAX);
        let partition = lane_key.map(|key| i32::from(murmur2::partition(key, lanes)));
        let refused = |source| SubmitError::Refused { topic: topic.to_owned(), source };
        self.outlet
            .produce(
                &Arc::from(topic),
                partition,
                record,
                |each| record.headers().for_each(|(name, value)| each(name, value)),
                0,
            )
            .map_err(refused)?;
        match self.reports.recv_timeout(RECEIPT_MAX) {
            Ok(Ok(receipt)) => Ok(receipt),
            Ok(Err(error)) if !is_unknown(&error) => Err(refused(error)),
            _ => Err(SubmitError::Unacknowledged { topic: topic.to_owned() }),
        }
    }
}

fn is_unknown(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{
        BrokerTransportFailure, MessageTimedOut, PurgeInflight, RequestTimedOut,
    };
    let code = error.rdkafka_error_code();
    code.is_some_and(|code| {
        matches!(code, MessageTimedOut | RequestTimedOut | BrokerTransportFailure | PurgeInflight)
    })
}
