//! Reads topics of ours outside of any group's work: from the beginning to the end, or as an onlooker.

mod changelog;
mod dead_letters;
mod feed;
mod log;
mod tail;

pub use changelog::{Changelog, Logged};
pub use dead_letters::{DeadLetters, DeadRecord};
pub use feed::{Ack, Feed};
pub use log::LogError;
pub use tail::{Seen, Tail};
