//! The fault suite: one test a row of `rows.txt`, on a real Kafka. `scripts/faults` runs it, `scripts/faults --list` tells of it.
//!
//! A row runs a load, breaks something, proves that the fault bit, heals it, and hands what was acknowledged and what
//! readers saw to the same checkers as every other row.
//!
//! - `one`: on the one broker that all its rows share, or on one of its own; these run beside each other.
//! - `three`: on a cluster of three; ignored but for `scripts/faults --brokers 3`.
//! - `root`: with a kernel's help; ignored but for `scripts/faults --root`.
//! - `long`: over a minute and a half; ignored but for `scripts/faults --long`.
#![allow(unreachable_pub, reason = "a test target has no outside")]
#![allow(clippy::print_stdout, reason = "what a row saw is printed")]
#![allow(clippy::unwrap_used, reason = "in a test that is how a wish is stated")]

mod checkers;
mod load;
mod long;
mod one;
mod root;
mod rows;
#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "the tests on a real Kafka use another part of it"
)]
#[path = "../support/mod.rs"]
mod support;
mod three;
