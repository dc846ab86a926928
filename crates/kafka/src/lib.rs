//! The shell around Kafka: it moves records and decides nothing. The only crate that knows librdkafka.
//!
//! Eight rooms. Each knows the rooms below it, and none above:
//!
//! | room | what it does |
//! |---|---|
//! | [`mod@bench`] | what a benchmark does to Kafka |
//! | [`doctor`] | facts of a cluster, and what follows from them |
//! | [`member`] | the lane threads: members of the group, their commits, rebalances and checkpoints |
//! | `logs` | reads a topic from its beginning to its end, or as an onlooker |
//! | `cluster` | what is known of the brokers: time, ends, targets, backlog, topics that change |
//! | [`topics`] | the topics of a namespace as data: wanted, found, compared, in force |
//! | [`meta`] | `<ns>.meta`: what is in force, and what the members say |
//! | `client` | every client of ours: how it reaches the brokers, and the raw calls |

pub mod bench;
mod client;
mod cluster;
pub mod doctor;
mod logs;
pub mod member;
pub mod meta;
pub mod topics;

pub use client::raw::inflate::{bound as bound_batches, damaged};
/// A record by a cached topic handle, and what a record of rdkafka is, without its copies.
pub use client::raw::{TopicProducer, copy_record, place};
pub use client::{
    Connection, Embedded, GroupConsumer, GroupRecord, Isolation, NoAnswer, Receipt, Secret, Stands,
    SubmitError, Submitter, TopicReader, is_loopback, settings, topic_reader, wall_clock,
};
pub use cluster::{BrokerClock, Probe, Subscribers, Subscriptions, Wanted, end_offsets};
pub use logs::{
    Ack, Changelog, DeadLetters, DeadRecord, DemoReader, DemoWriter, LogError, Logged, Seen,
};
pub use member::{
    Calls, ClusterView, Delivery, Ends, EndsHeard, LaneThreads, Settings, TakeOverError,
    WorkerParts, WorkerPlan, WorkerThread, WorkerView, Written,
};
pub use meta::{Load, Member, Members, PutError, Registrar, RegistryFeed, Roster};
pub use rdkafka::error::KafkaError;
/// A record that a consumer of rdkafka gives.
pub use rdkafka::message::BorrowedMessage;
