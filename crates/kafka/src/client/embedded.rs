//! A stand-in broker inside this process: librdkafka's mock cluster, for the demo.
//!
//! It serves producers, consumers and groups, so that a real instance runs on it. It is no Kafka, and proves no
//! promise: nothing is on disk, transactions are accepted without isolation or fencing, there is no LogAppendTime, no
//! admin API and no DeleteRecords.
//!
//! # Invariants
//! 1. Topics are made here, before any client asks for them. A client's question would make a missing topic, with
//!    another number of partitions.
//! 2. [`Embedded`] outlives every client of it: end them first.
//!
//! A partition keeps its newest 5 MiB or 100,000 records and drops older ones in silence. Its writers see to it that
//! less is pending.

use rdkafka::error::KafkaError;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

use super::Connection;
use super::settings::Given;

/// The broker; it ends when dropped.
pub struct Embedded {
    cluster: MockCluster<'static, DefaultProducerContext>,
}

impl Embedded {
    /// Starts one broker on a free port of loopback, with these topics and as many partitions in each.
    ///
    /// # Errors
    /// The operating system gives no port, or a name is no topic's.
    pub fn start<'a>(
        topics: impl IntoIterator<Item = &'a str>,
        partitions: u16,
    ) -> Result<Self, KafkaError> {
        let cluster = MockCluster::new(1)?;
        for topic in topics {
            cluster.create_topic(topic, i32::from(partitions), 1)?;
        }
        Ok(Self { cluster })
    }

    /// How to reach it.
    #[must_use]
    pub fn connection(&self) -> Connection {
        Connection::new(&self.cluster.bootstrap_servers(), Given::new())
    }
}
