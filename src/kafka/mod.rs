//! The shell around Kafka: moves records, decides nothing.

pub mod bench;
mod clock;
mod committer;
mod connect;
mod dead;
pub mod driver;
pub mod embedded;
mod feed;
pub mod meta;
mod probe;
mod processor;
pub mod raw;
mod rebalance;
mod submit;
mod tail;
mod targets;
pub mod timers;
pub mod topics;
mod trim;

pub use clock::{BrokerClock, wall_clock};
pub use committer::Delivery;
pub use connect::Connection;
pub use dead::{DeadError, DeadLetters, DeadRecord};
pub use embedded::Embedded;
pub use feed::{Ack, Feed};
pub use probe::{PROBE_KEY, Probe};
pub use processor::{Processor, Settings};
pub use rdkafka::error::KafkaError;
pub use rebalance::Error as TakeOverError;
pub use submit::{Receipt, SubmitError, Submitter};
pub use tail::{Seen, Tail};
pub use targets::Lookup;
pub use timers::{Changelog, Timers};
pub use trim::Trim;
