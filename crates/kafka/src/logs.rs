//! Topics of ours that no lane thread reads: the changelog and the dead letters, read and written outside of the group.

mod changelog;
mod dead_letters;
mod demo_reader;
mod demo_writer;
mod log;

pub use changelog::{Changelog, Logged};
pub use dead_letters::{DeadLetters, DeadRecord};
pub use demo_reader::{DemoReader, Seen};
pub use demo_writer::{Ack, DemoWriter};
pub use log::LogError;
