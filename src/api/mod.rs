//! What a running process answers on `--http`: health, metrics and timers.
//!
//! It knows the process only through [`Status`] and [`timers::known::Timers`].
//!
//! # Invariants
//! 1. A client that sends slowly, or much, or takes its answers slowly, or opens many connections, costs a bounded amount
//!    and a bounded time.
//! 2. Health and metrics are made from what is known at that moment: such a request waits for nothing, and a connection is
//!    left for it whatever else is asked.
//! 3. A page of the web reaches no timers. It may reach health and metrics, which name no id, key or target.

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
