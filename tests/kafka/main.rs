//! Tests on a real Kafka: the one of `KAFKA_BOOTSTRAP`, as `scripts/kafka start` prints it.
#![allow(unreachable_pub, reason = "a test target has no outside")]
#![allow(clippy::print_stdout, reason = "what a test saw is printed when it fails")]
#![allow(clippy::unwrap_used, reason = "in a test that is how a wish is stated")]

mod api;
mod assign;
mod batches;
mod bench;
mod bytes;
mod callbacks;
mod cancel;
mod client;
mod clients;
mod commands;
mod cookbook;
mod damaged;
mod dead;
mod delivery;
mod doctor;
mod embed;
mod frozen;
mod health;
mod index;
mod intakes;
mod killed;
mod lanes;
mod limits;
mod members;
mod metrics;
mod namespaces;
mod order;
mod partitioners;
mod poison;
mod positions;
mod readme;
mod refused;
mod registry;
mod reload;
mod runs;
mod seats;
mod secure;
mod starts;
#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "the fault suite uses another part of it"
)]
#[path = "../support/mod.rs"]
mod support;
mod targets;
mod tasks;
mod timers;
mod topics;
mod tracking;
mod versions;
mod web;
mod workers;
