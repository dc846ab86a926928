//! How the commands of waterclock talk to their caller.
//!
//! | | |
//! |---|---|
//! | [`output`] | results on standard output; foreign bytes made fit for a terminal |
//! | [`Exit`], [`Failure`], [`Outcome`] | how a command ended |
//! | [`Progress`] | one line on standard error that says how far a long command is |
//! | [`Screen`] | the terminal while a command draws on it, and its keys |
//! | [`Stop`] | whether a signal or a key asked a command to end |
//!
//! The command line of the server and the tools (`bench`, `demo`) share it. So it brings no library that draws.

mod exit;
mod failure;
pub mod output;
mod progress;
mod screen;
mod stop;

pub use exit::Exit;
pub use failure::{Failure, Outcome};
pub use progress::Progress;
pub use screen::{Key, Screen, columns};
pub use stop::{ONE_SIGNAL, Stop};
