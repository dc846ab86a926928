//! What goes between members and brokers: requests that arrive later, answers that arrive later still or never.
//!
//! A request carries all that it needs, because its sender may be dead when it arrives.

use std::collections::VecDeque;
use std::sync::Arc;

use waterclock::engine::member::{LogBounds, Timing};
use waterclock::engine::messages::{Outcome, Target};
use waterclock::engine::timers::{Found, TimerId};
use waterclock::engine::{Lane, Offset, Record, Source, UnixMillis};

use crate::broker::{Place, Position, Refusal, Time, Writer};
use crate::worker::{WorkerEvent, WorkerRequest};
use crate::world::{RunAct, ScheduleAct};

/// A record on its way to a topic.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub topic: Arc<str>,
    pub partition: i32,
    pub record: Record,
    /// When it may be appended.
    pub timing: Timing,
}

/// What a member asks of the cluster.
#[derive(Clone, Debug)]
pub enum Request {
    Init(Arc<str>),
    Join(String),
    Leave(String),
    FetchCommitted(Vec<Place>),
    /// The checkpoints of these partitions.
    Checkpoints(Vec<Place>),
    /// Where the logs of a take-over begin and end.
    Logs(Vec<Place>),
    /// Where one partition ends, asked at this time of the shell's.
    End(Source, Place, UnixMillis),
    /// Where the changelog of a lane ends, and what for.
    Changelog(i32, Why),
    Produce(Option<Writer>, Vec<Outgoing>),
    SendOffsets(Writer, Identity, Vec<(Place, Position)>),
    EndTransaction(Writer, bool),
    CommitOffsets(Identity, Vec<(Place, Position)>),
    /// The same, and the checkpoints, if that was taken.
    CommitBoth(Identity, Vec<(Place, Position)>),
    DeleteRecords(Vec<(Place, Offset)>),
    Describe(Arc<str>),
    /// The same, once brokers have taken their time.
    DescribeSlowly(Arc<str>),
}

/// A member as the group knows it, and the assignment that it acts on.
#[derive(Clone, Debug)]
pub struct Identity {
    pub member: String,
    pub generation: u32,
}

/// What the index is asked for once it has passed an end of the changelog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// All that holds of a lane's timers.
    Known,
    /// Those that ended long ago.
    Ended,
    /// How these ended.
    Recall(Vec<TimerId>),
}

/// What a client is told of its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    By(Outcome),
    /// Nothing was pending; this is what the index had of what it was about.
    Found(Found),
}

/// What comes back.
#[derive(Debug)]
pub enum Reply {
    Init(Result<Writer, Refusal>),
    Committed(Result<Vec<Option<Position>>, Refusal>),
    Checkpoints(Result<Vec<(Place, Position)>, Refusal>),
    Logs(Vec<LogBounds>),
    /// The end of a partition, as it was asked for.
    End(Source, UnixMillis, Offset),
    Changelog(i32, Why, Offset),
    /// Where each record stands now, since when, and the node whose clock says so.
    Produced(Result<Vec<(Offset, UnixMillis, usize)>, Refusal>),
    OffsetsSent(Result<(), Refusal>),
    Ended(Result<(), Refusal>),
    OffsetsCommitted(Result<(), Refusal>),
    /// What a target is, and which of its partitions have no leader.
    Described(Arc<str>, Target, Arc<[i32]>),
    /// Nothing came for too long.
    TimedOut,
}

/// The round of a request whose answer nobody waits for.
pub const NOBODY: u64 = u64::MAX;

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
    /// A heartbeat said that the group forms again.
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
    /// The index goes on.
    Follow,
    /// The next piece of what is known of a lane; of this round.
    Piece(u64, i32),
    /// The rest of a lane is read: the partitions still to be read, each from its offset; of this round.
    Left(u64, Lane, VecDeque<(Place, Offset)>),
    /// It is time to look how far partitions are read; of this round.
    Look(u64),
    /// It is time to take lanes over again; of this round.
    Resume(u64),
    /// It hears of projects and services as they are now.
    Registry,
    /// A partition is read to where it ended then; of this round. (For a mutation.)
    ReadUpTo(u64, Source, UnixMillis),
}

/// What is done to tasks: numbers are places in the list of tasks.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// It is created, or asked for again.
    Create(usize),
    /// The record that created it is written once more.
    Replay(usize),
    Cancel(usize),
    /// Somebody has it called now.
    Retry(usize),
    /// A record is submitted that is no task: its place in the list of those.
    Plain(usize),
    /// What stands in a topic of waterclock's is written there once more, by somebody who may.
    Copy(u64),
    /// Somebody writes what waterclock has not written there.
    Foreign(u64),
    /// Somebody does something to a schedule: its place in the list of schedules.
    Schedule(usize, ScheduleAct),
    /// The same, to a run: its place in the list of runs.
    Run(usize, RunAct),
    /// Projects and services are those of this version from now on.
    Publish(usize),
    /// An executor says what it was to say: its place in the list of what they say.
    Report(usize),
    /// What users see is looked at.
    Look,
}

/// What happens next in the world.
#[derive(Debug)]
pub enum Scheduled {
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
    /// A command is answered: its submission.
    Told(usize, Told),
    /// Something can be read again.
    Stir,
    /// The group was away for long enough; all its offsets are gone, or some.
    ExpireOffsets {
        whole: bool,
    },
    /// Somebody does something to a task, or a project.
    Task(Act),
    /// Something happens in a worker's process: which one, and which of its lives.
    Worker(usize, u32, WorkerEvent),
    /// A worker's request arrives: of which life, and of which round.
    WorkerAsks(usize, u32, u64, WorkerRequest),
    StartWorker(usize),
    /// The group may have heard nothing of this worker since then.
    WorkerSilent(usize, String, Time),
}
