//! What a benchmark does to Kafka: writes many records, copies them, and reads them with the time of their arrival.
//!
//! All of it goes the same raw way as in a lane thread: `raw::copy_record` in, [`TopicProducer`](crate::client::raw::TopicProducer) out.
//!
//! # Invariants
//! 1. Every loop looks at its [`Watch`], so that Ctrl-C ends it within a tenth of a second.
//! 2. A record that Kafka refused ends the measurement with an error: a rate of lost records is no rate.
//!
//! It does not judge: counts, duplicates and lateness are for the caller to make of what was read.

mod copy;
mod own_topics;
mod reader;
mod writer;

use rdkafka::error::KafkaError;

pub use copy::{Copied, copy};
pub use own_topics::{create, delete};
pub use reader::{Arrival, read};
pub use writer::{Directions, Payload, SEQUENCE, Writer, id, key};

/// Looks at a measurement while it runs.
pub trait Watch: Sync {
    /// So many are done.
    fn done(&self, count: u64);
    /// Whether to give up.
    fn stopped(&self) -> bool;
}

/// Why a measurement ended without a figure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A client could not be made, or could not do its part; what was measured so far is worth nothing.
    #[error("could not {what}")]
    Kafka {
        /// What was tried.
        what: &'static str,
        /// What librdkafka said.
        #[source]
        source: KafkaError,
    },
    /// A transaction did not commit; the broker is too slow for a measurement.
    #[error("could not commit the copies: {0}")]
    Commit(String),
    /// Kafka refused records, or did not acknowledge them in time.
    #[error("{count} records to {topic} were not acknowledged; the first: {first}")]
    Unacknowledged {
        /// Where to.
        topic: String,
        /// How many.
        count: u64,
        /// What was said of the first.
        first: String,
    },
    /// Records that were written did not come back.
    #[error("nothing more to read from {topic} after {seen} of {expected} records")]
    Silent {
        /// Where from.
        topic: String,
        /// How many came.
        seen: u64,
        /// How many were written.
        expected: u64,
    },
    /// The caller asked for the end.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    fn kafka(what: &'static str) -> impl FnOnce(KafkaError) -> Self {
        move |source| Self::Kafka { what, source }
    }
}

/// The version of librdkafka.
#[must_use]
pub fn librdkafka() -> String {
    rdkafka::util::get_rdkafka_version().1
}
