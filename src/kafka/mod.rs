//! The shell around Kafka: moves records, decides nothing.

mod connect;
pub mod raw;

pub use connect::Connection;
