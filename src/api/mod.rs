//! What a running process serves on `--http`: health, metrics, timers, tasks and projects.
//!
//! For the binary: a service that runs an instance needs only `run` and `Config` of the crate.
//!
//! It knows the process only through [`Status`], [`timers::model::Timers`], [`tasks::Desk`],
//! [`projects::Projects`], [`schedules::Schedules`] and [`members::Members`].
//!
//! # Invariants
//! 1. A client may send slowly, send much, read its responses slowly, or open many connections. It costs a bounded
//!    amount and a bounded time.
//! 2. Health and metrics are made from what the process knows at that moment. Such a request waits for nothing, and one
//!    connection stays free for it, however busy the others are.
//! 3. A web page reaches no timers. It may reach health and metrics, which name no id, key or target.

mod answer;
mod audit;
pub mod auth;
mod etag;
mod gate;
mod grpc;
mod guard;
mod health;
mod hosts;
pub mod members;
mod openapi;
mod problem;
pub mod projects;
pub mod runs;
pub mod schedules;
mod serve;
mod stream;
pub mod tasks;
pub mod timers;
pub mod tls;

pub use gate::Gate;
pub use health::{Report, Status};
pub use hosts::Hosts;
pub use serve::{Front, Rooms, serve};
