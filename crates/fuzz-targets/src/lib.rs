//! What is read from outside, given any bytes: it must neither panic nor contradict itself.
//!
//! One function a target. Under `cargo fuzz` (`fuzz/`, nightly) the coverage of the last run chooses the next bytes;
//! `tests/corpus.rs` runs all of them over the corpus with the pinned toolchain, so that what was found once stays found.
#![allow(clippy::unwrap_used, reason = "what a test may do")]

mod api;
mod input;
mod parts;
mod run;
mod tasks;

pub use parts::{
    changelog, headers, index, metadata, registry, state, task_reports, task_result,
    task_specification, texts, tokens,
};
pub use run::records;
pub use tasks::task_records;
