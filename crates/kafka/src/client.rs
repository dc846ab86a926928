//! Every client of ours: how it reaches the brokers, what it may be told by a person, and the raw calls into librdkafka.

pub(crate) mod connect;
pub(crate) mod consumer_protocol;
mod embedded;
pub(crate) mod errors;
pub(crate) mod events;
mod group_consumer;
pub(crate) mod log_limiter;
pub(crate) mod oauth;
pub(crate) mod outages;
pub(crate) mod raw;
pub(crate) mod resilient_admin;
pub mod settings;
mod sieve;
mod submit;
pub mod topic_reader;
mod wall_clock;

pub use connect::{Connection, Isolation, NoAnswer, is_loopback};
pub use embedded::Embedded;
pub use group_consumer::{GroupConsumer, GroupRecord};
pub use settings::Secret;
pub use submit::{Receipt, Stands, SubmitError, Submitter};
pub use topic_reader::TopicReader;
pub use wall_clock::wall_clock;
pub(crate) use wall_clock::wall_clock_us;
