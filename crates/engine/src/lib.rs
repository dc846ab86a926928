//! The pure part: decides what happens to every record, and when.
//!
//! `step(now, event) -> actions`. No clock, no I/O, no async, no randomness, no lock. Events are facts. The shell carries
//! the actions out and reports back with the next event. What the engine keeps of a lane can be thrown away at any time and
//! rebuilt from what is committed.
//!
//! # Invariants
//! 1. A delivery leaves the engine at or after its due time, by the `now` it was given.
//! 2. An offset is committed as done only in the batch that carries what became of its record, or later.
//! 3. Whatever was read is in exactly one place: a hold's buffer, the wheel, waiting for its target, the hop buffer, or a batch.
//! 4. Memory is bounded by the budget: over it, reading stops; nothing that is held needs reading to go away.

pub mod allow;
pub mod header;
mod hold;
mod hop_buffer;
mod ids;
pub mod ladder;
mod lanes;
pub mod member;
pub mod messages;
pub mod murmur2;
mod record;
pub mod run;
pub mod schedule;
pub mod sealed;
mod setup;
pub mod state;
mod targets;
pub mod task;
mod time;
pub mod timers;
mod verdict;
pub mod wheel;
pub mod window;
pub mod work;

pub use ids::{BatchId, Lane, Offset, Source, TopicId};
pub use lanes::{Decided, Figures, LaneEngine, Read, TasksOverdue};
pub use messages::{
    Action, Answer, Batch, Blame, Commit, Destination, Event, HeaderRewrite, Left, Outcome,
    Produce, Refused, Start, Target,
};
pub use record::{Cut, CutBy, HEADER_BESIDE, Headers, KEPT_BYTES, NOT_KEPT, Record};
pub use setup::{Arrival, Intake, Limits, Setup, Topics, Tracking};
pub use time::{Millis, UnixMillis};
pub use timers::After;
pub use verdict::left;
