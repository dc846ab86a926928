//! The shell around Kafka: moves records, decides nothing.

mod connect;
pub mod meta;
pub mod topics;

pub use connect::Connection;
