//! What is read from outside, given any bytes: it must neither panic nor contradict itself.
//!
//! One function a target. Under `cargo fuzz` (nightly) the coverage of the last run chooses the next bytes; `tests/corpus.rs`
//! runs all of them over the corpus with the pinned toolchain, so that what was found once stays found.
//!
//! Tokens and the index belong to rooms that cannot be built without Kafka's client and the store. Their files stand by
//! themselves and are taken in by path.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    unused_imports,
    clippy::unwrap_used,
    clippy::duplicate_mod,
    reason = "parts of other rooms, and what a test may do"
)]

use waterclock::engine;

mod api;
mod input;
mod parts;
mod run;
mod store;

pub use parts::{changelog, headers, index, metadata, state, texts, tokens};
pub use run::records;
