//! Tests on a real Kafka: the one of `KAFKA_BOOTSTRAP`, as `scripts/kafka start` prints it.
#![allow(unreachable_pub, reason = "a test target has no outside")]
#![allow(clippy::print_stdout, reason = "what a test saw is printed when it fails")]
#![allow(clippy::unwrap_used, reason = "in a test that is how a wish is stated")]

mod bench;
mod delivery;
#[allow(dead_code, unused_imports, reason = "the tests of crashes use the rest")]
mod support;
mod topics;
