//! What a running process serves on `--http`: health, metrics and timers.
//!
//! For the binary: a service that runs an instance needs only `run` and `Config` of the crate.
//!
//! It knows the process only through [`Status`] and [`timers::model::Timers`].
//!
//! # Invariants
//! 1. A client may send slowly, send much, read its responses slowly, or open many connections. It costs a bounded
//!    amount and a bounded time.
//! 2. Health and metrics are made from what the process knows at that moment. Such a request waits for nothing, and one
//!    connection stays free for it, however busy the others are.
//! 3. A web page reaches no timers. It may reach health and metrics, which name no id, key or target.

mod gate;
mod health;
mod hosts;
mod serve;
mod stream;
pub mod timers;

pub use gate::Gate;
pub use health::{Report, Status};
pub use hosts::Hosts;
pub use serve::serve;
