//! What is known of the brokers: their time, where partitions end, which targets there are, what is pending, and topics
//! that change.

pub(crate) mod backlog;
mod clock;
pub(crate) mod delete_records;
pub mod end_offsets;
mod open_transactions;
pub(crate) mod probe;
pub(crate) mod stalls;
mod subscribers;
pub(crate) mod targets;
pub(crate) mod topic_monitor;
pub(crate) mod upkeep;
pub(crate) mod wall_clock_steps;

pub use clock::BrokerClock;
pub(crate) use probe::PROBE_KEY;
pub use probe::Probe;
pub use subscribers::{Subscribers, Subscriptions};
pub(crate) use targets::Lookup;
pub use topic_monitor::Wanted;
