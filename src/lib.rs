//! Delayed delivery for Apache Kafka: a header in, a record out, on time, exactly once, in order.

pub mod api;
pub mod app;
pub mod cli;
pub mod config;
pub mod engine;
pub mod index;
pub mod kafka;
pub mod telemetry;
