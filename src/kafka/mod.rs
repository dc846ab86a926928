//! The shell around Kafka: moves records, decides nothing.

mod connect;

pub use connect::Connection;
