//! The pure part: decides what happens to every record, and when.
//!
//! `step(now, input) -> outputs`. No clock, no I/O, no async, no randomness, no lock: inputs are facts, outputs
//! are orders, the shell carries them out and reports back as the next input. What the engine keeps of a lane
//! can be thrown away at any time and rebuilt from what is committed.
//!
//! # Invariants
//! 1. A delivery leaves the engine at or after its due time, by the `now` it was given.
//! 2. An offset is committed as done only in the batch that carries what became of its record, or later.
//! 3. Whatever was read is in exactly one place: a hold's buffer, the wheel, waiting for its target, the outbox, or a batch.
//! 4. Memory is bounded by the budget: over it, reading stops; nothing that is held needs reading to go away.

pub mod allow;
pub mod header;
mod hold;
mod ids;
pub mod ladder;
mod lanes;
pub mod murmur2;
pub mod orders;
mod outbox;
mod record;
mod setup;
pub mod state;
mod time;
pub mod timers;
mod verdict;
pub mod wheel;
pub mod window;

pub use ids::{BatchId, Lane, Offset, Source, TopicId};
pub use lanes::{After, Engine, Figures, Read};
pub use orders::{
    Answer, Batch, Blame, Commit, Edit, Input, Left, Outcome, Output, Refused, Send, Start, Target,
    To,
};
pub use record::{Cut, CutBy, HEADER_BESIDE, Headers, KEPT_BYTES, NOT_KEPT, Record};
pub use setup::{Arrival, Intake, Limits, Setup, Tardy, Topics, Tracking};
pub use time::{Millis, UnixMillis};
pub use verdict::left;
