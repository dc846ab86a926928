//! What a running process answers on `--http`: health, metrics and timers.
//!
//! It knows the process only through [`Status`] and [`timers::known::Timers`].
//!
//! # Invariants
//! 1. A client that sends slowly, or much, or opens many connections, costs a bounded amount and a bounded time.
//! 2. Health and metrics are made from what is known at that moment: such a request waits for nothing but the connection.

mod health;
mod serve;
pub mod timers;

pub use health::{Report, Status};
pub use serve::serve;
