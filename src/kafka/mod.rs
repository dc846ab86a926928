//! The shell around Kafka: moves records, decides nothing.

#[cfg(feature = "server")]
mod backlog;
#[cfg(feature = "server")]
pub mod bench;
#[cfg(feature = "server")]
mod changelog;
#[cfg(feature = "server")]
mod checkpoint;
mod clock;
#[cfg(feature = "server")]
mod committer;
mod connect;
#[cfg(feature = "server")]
mod dead;
#[cfg(feature = "server")]
pub mod doctor;
#[cfg(feature = "server")]
pub mod driver;
#[cfg(feature = "server")]
pub mod embedded;
#[cfg(feature = "server")]
pub mod ends;
#[cfg(feature = "server")]
mod feed;
#[cfg(feature = "server")]
mod fence;
#[cfg(feature = "server")]
mod inventory;
#[cfg(feature = "server")]
mod members;
pub mod meta;
mod oauth;
#[cfg(feature = "server")]
mod open;
#[cfg(feature = "server")]
mod probe;
#[cfg(feature = "server")]
mod processor;
pub mod raw;
#[cfg(feature = "server")]
mod rebalance;
#[cfg(feature = "server")]
mod resilient_admin;
mod roster;
#[cfg(feature = "server")]
mod seldom;
pub mod settings;
#[cfg(feature = "server")]
mod sieve;
#[cfg(feature = "server")]
mod steps;
mod submit;
#[cfg(feature = "server")]
mod tail;
#[cfg(feature = "server")]
mod targets;
#[cfg(feature = "server")]
pub mod timers;
#[cfg(feature = "server")]
pub mod topic_reader;
#[cfg(feature = "server")]
pub mod topics;
#[cfg(feature = "server")]
mod trim;
#[cfg(feature = "server")]
mod watch;
#[cfg(feature = "server")]
mod whole;
#[cfg(feature = "server")]
mod written;

#[cfg(feature = "server")]
pub use changelog::{Changelog, Logged};
pub use clock::{BrokerClock, wall_clock};
#[cfg(feature = "server")]
pub use committer::Delivery;
pub(crate) use connect::is_loopback;
pub use connect::{Connection, Isolation, NoAnswer};
#[cfg(feature = "server")]
pub use dead::{DeadLetters, DeadRecord};
#[cfg(feature = "server")]
pub use embedded::Embedded;
#[cfg(feature = "server")]
pub use feed::{Ack, Feed};
#[cfg(feature = "server")]
pub use members::Members;
#[cfg(feature = "server")]
pub use probe::{PROBE_KEY, Probe};
#[cfg(feature = "server")]
pub use processor::{ClusterView, Processor, Settings};
#[cfg(feature = "server")]
pub use raw::inflate::bound as bound_batches;
#[cfg(feature = "server")]
pub(crate) use raw::inflate::damaged;
pub use rdkafka::error::KafkaError;
#[cfg(feature = "server")]
pub use rebalance::Error as TakeOverError;
pub use roster::{Heard, Member, Roster};
pub use settings::Secret;
pub use submit::{Receipt, Stands, SubmitError, Submitter};
#[cfg(feature = "server")]
pub use tail::{Seen, Tail};
#[cfg(feature = "server")]
pub use targets::Lookup;
#[cfg(feature = "server")]
pub use topic_reader::TopicReader;
#[cfg(feature = "server")]
pub use trim::Trim;
#[cfg(feature = "server")]
pub use watch::Wanted;
#[cfg(feature = "server")]
pub use whole::ReadError;
#[cfg(feature = "server")]
pub use written::Written;
