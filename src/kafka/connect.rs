//! How every client of ours reaches the brokers.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientConfig, ClientContext};

/// A consumer that reads a topic to its end and leaves: that it has reached it is no error.
pub(super) type Reader = BaseConsumer<Quiet>;

/// The context of a [`Reader`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Quiet;

impl ClientContext for Quiet {
    fn error(&self, error: KafkaError, reason: &str) {
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::PartitionEOF) => {}
            _ => tracing::debug!(%error, reason, "reader"),
        }
    }
}

impl ConsumerContext for Quiet {}

/// `socket.timeout.ms` of every client: a leader that is paused rather than dead is noticed after this long (faults F8).
/// A commit slower than half of it is dirty.
pub(super) const SOCKET_TIMEOUT: Duration = Duration::from_secs(8);

/// Where the brokers are, and what every client needs to speak to them.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// `host:port`, comma-separated.
    pub brokers: String,
    /// Settings of librdkafka that every client gets (security, timeouts); ours win over these.
    pub settings: BTreeMap<String, String>,
}

impl Connection {
    /// A configuration for one client, named `client_id` in the brokers' logs and in the group.
    #[must_use]
    pub fn client(&self, client_id: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (name, value) in &self.settings {
            config.set(name, value);
        }
        config.set("bootstrap.servers", &self.brokers).set("client.id", client_id);
        config.set("socket.timeout.ms", SOCKET_TIMEOUT.as_millis().to_string());
        config.set("reconnect.backoff.ms", "50").set("reconnect.backoff.max.ms", "1000");
        config
    }
}
