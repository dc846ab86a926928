//! Topics of ours that no lane thread reads: the changelog and the dead letters, read and written outside of the group.

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
