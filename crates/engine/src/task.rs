//! Tasks: timers with a specification of what is to be done when they are due.
//!
//! What stands here is about one task, or about the limits that tasks are under. Whether a topic exists, and what becomes of a
//! task, is decided by the lanes and the workers.
//!
//! # Invariants
//! 1. What is read here comes from outside: it is in order, or every mistake in it is named.
//! 2. What is written here is read back as it was.

pub mod answer;
pub mod bucket;
mod digest;
pub(crate) mod fields;
pub mod follow_up;
pub mod hosts;
pub mod id;
pub mod registry;
pub mod report;
pub mod request;
pub mod result;
pub mod retry;
pub mod scope;
pub mod spec;
pub(crate) mod template;

pub use digest::digest;
pub use fields::Wrong;
