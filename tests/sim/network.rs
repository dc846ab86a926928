//! What goes between members and brokers: requests that arrive later, answers that arrive later still or never.
//!
//! A request carries all that it needs, because its sender may be dead when it arrives.

use std::sync::Arc;

use waterclock::engine::timers::Void;
use waterclock::engine::{Lane, Offset, Record};

use crate::broker::{Place, Position, Refusal, Writer};

/// A record on its way to a topic.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub topic: Arc<str>,
    pub partition: i32,
    pub record: Record,
}

/// What a member asks of the cluster.
#[derive(Clone, Debug)]
pub enum Request {
    Init(Arc<str>),
    Join(String),
    Leave(String),
    FetchCommitted(Vec<Place>),
    /// What was cancelled in the lanes, and where the logs end; the committed positions come along.
    Remember(Vec<Place>, Vec<Option<Position>>),
    Produce(Option<Writer>, Vec<Outgoing>),
    SendOffsets(Writer, Identity, Vec<(Place, Position)>),
    End(Writer, bool),
    CommitOffsets(Identity, Vec<(Place, Position)>),
    DeleteRecords(Vec<(Place, Offset)>),
    Describe(Arc<str>),
}

/// A member as the group knows it, and the assignment that it acts on.
#[derive(Clone, Debug)]
pub struct Identity {
    pub member: String,
    pub generation: u32,
}

/// All that a take-over needs.
#[derive(Debug)]
pub struct Taken {
    pub places: Vec<Place>,
    pub committed: Vec<Option<Position>>,
    pub ends: Vec<Offset>,
    pub cancelled: Vec<(Lane, Vec<Void>)>,
}

/// What comes back.
#[derive(Debug)]
pub enum Reply {
    Init(Result<Writer, Refusal>),
    Committed(Vec<Place>, Result<Vec<Option<Position>>, Refusal>),
    Remembered(Result<Taken, Refusal>),
    Produced(Result<(), Refusal>),
    OffsetsSent(Result<(), Refusal>),
    Ended(Result<(), Refusal>),
    OffsetsCommitted(Result<(), Refusal>),
    /// Partitions, and the largest record.
    Described(Arc<str>, Option<(i32, u64)>),
    /// Nothing came for too long.
    TimedOut,
}

/// A process of a slot: the same slot starts again with a higher life and the same transactional id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub slot: usize,
    pub life: u32,
}

/// What happens in a process; put off while it is frozen, void once it is dead.
#[derive(Debug)]
pub enum Wake {
    Tick,
    Poll,
    /// A heartbeat said that the group forms anew.
    Rebalance,
    /// The round is over.
    Assigned,
    /// An answer, to a request of this round.
    Reply(u64, Reply),
    /// Ask again.
    Again(u64, Request),
    Drain,
    /// The time for draining is over.
    DrainEnds,
    TargetChanged(Arc<str>),
}

/// What happens next in the world.
#[derive(Debug)]
pub enum Event {
    Submit(usize),
    EndTransaction(usize),
    Start(usize),
    Process(Process, Wake),
    Arrives(Process, u64, Request),
    Marker,
    Expire(Arc<str>),
    /// A member was silent for a session.
    Silent(Process, String),
    Fault(usize),
    MakeTarget,
    WidenTarget,
}
