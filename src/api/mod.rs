//! What a running process answers on `--http`: health and metrics.
//!
//! It knows the process only through [`Status`]. Handlers do not wait for anything but the connection.
//!
//! # Invariants
//! 1. A client that sends slowly, or much, or opens many connections, costs a bounded amount and a bounded time.
//! 2. An answer is made from what is known at that moment: no request reaches Kafka.

mod health;
mod serve;

pub use health::{Report, Status};
pub use serve::serve;
