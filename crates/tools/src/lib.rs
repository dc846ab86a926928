//! `waterclock bench` and `waterclock demo`.
//!
//! They are commands of the binary, and bring libraries that draw, which a server does not need. So they are a crate of their
//! own, and the feature `tools` of the package `waterclock` (on by default) takes them in. The binary depends on this crate
//! and not the other way round: what the tools need of the program is a trait, [`Program`].

mod bench;
mod corner;
mod demo;
mod lateness;
mod line;
mod machine;
mod service;
mod stub;

use std::path::Path;

use waterclock_engine::Millis;
use waterclock_engine::ladder::Ladder;
use waterclock_engine::state::StateKey;
use waterclock_kafka::topics::Request;
use waterclock_kafka::{Connection, Delivery, LaneThreads};
use waterclock_terminal::Failure;

pub use bench::Bench;
pub use demo::Demo;

/// The program that the tools are commands of: its arguments, its configuration, and its lane threads.
pub trait Program {
    /// Whether results are for programs: JSON.
    fn is_json(&self) -> bool;

    /// The file of the configuration, if one was named.
    fn config_file(&self) -> Option<&Path>;

    /// Whether brokers were named in the arguments.
    fn names_brokers(&self) -> bool;

    /// The token that the configuration sends to instances, if it has one.
    ///
    /// # Errors
    /// The configuration is wrong.
    fn api_token(&self) -> Result<Option<String>, Failure>;

    /// How the configuration reaches Kafka. To be called once.
    ///
    /// # Errors
    /// The configuration is wrong.
    fn connection(&self) -> Result<Connection, Failure>;

    /// The topics that the configuration wants in this namespace for so many lanes.
    ///
    /// # Errors
    /// The configuration is wrong.
    fn bench_topics(&self, namespace: &str, lanes: u16) -> Result<Request, Failure>;

    /// The topics that the demo needs.
    fn demo_topics(&self, config: &DemoConfig) -> Request;

    /// Starts the lane threads that `waterclock run` runs, as the demo wants them, on this broker.
    ///
    /// # Errors
    /// They could not be started.
    fn start_demo(&self, config: &DemoConfig, broker: DemoBroker) -> Result<LaneThreads, Failure>;
}

/// What the demo sets of the configuration; all else is as it is by default.
#[derive(Clone, Debug)]
pub struct DemoConfig {
    /// The namespace, which is the demo's alone.
    pub namespace: String,
    /// The only topic that the allow-list allows.
    pub target: String,
    /// How records are delivered.
    pub delivery: Delivery,
    /// The ladder.
    pub holds: Vec<Millis>,
    /// How long before its due time a record is in memory.
    pub horizon: Millis,
    /// How long hops are collected.
    pub hop_linger: Millis,
    /// How many lanes.
    pub lanes: u16,
    /// How long a stop may take.
    pub drain: Millis,
}

/// The broker of a demo, and what is in force there.
#[derive(Debug)]
pub struct DemoBroker {
    /// How to reach it.
    pub connection: Connection,
    /// The ladder of the topics there.
    pub ladder: Ladder,
    /// What `x-delay-state` is sealed with.
    pub key: StateKey,
    /// Whether it is the stand-in inside this process.
    pub is_embedded: bool,
}
