//! Reads topics outside of any group's work: from the beginning to the end, or as an onlooker.

mod changelog;
mod dead_letters;
mod feed;
mod tail;
mod whole;

pub use changelog::{Changelog, Logged};
pub use dead_letters::{DeadLetters, DeadRecord};
pub use feed::{Ack, Feed};
pub use tail::{Seen, Tail};
pub use whole::ReadError;
