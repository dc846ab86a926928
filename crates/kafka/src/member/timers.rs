//! What lane threads need of the part that keeps their lanes' timers. They know neither the index nor the API.
//!
//! The keeper is called by many lane threads. It never blocks them: what it finds it sends later, as [`AssignmentEvent`].

use std::fmt;

use crossbeam_channel::Sender;

use waterclock_engine::timers::{Forgettable, TimerId};
use waterclock_engine::{After, Answer, Event, Lane, Offset, Source, Start, UnixMillis};

/// What a lane thread is told, and for which of its assignments: of another one it drops this.
#[derive(Debug)]
pub struct AssignmentEvent {
    /// The assignment.
    pub assignment: u64,
    /// What the engine is to know.
    pub event: Event,
}

/// Lanes that a thread has taken over.
#[derive(Debug)]
pub struct TakenOver {
    /// Tells assignments apart, those of all threads.
    pub assignment: u64,
    /// Which lanes run.
    pub lanes: Vec<Lane>,
    /// Where the changelog of each ended.
    pub changelogs: Vec<(Lane, Offset)>,
    /// What was committed in their intakes, and where these ended.
    pub intakes: Vec<Start>,
}

/// Keeps the timers of the lanes that run here.
pub trait Timers: fmt::Debug + Send + Sync {
    /// Has a lane thread told which timers hold in the lanes that it took over. The last [`Event::TimersLoaded`] of a lane
    /// says so.
    fn begin(&self, lanes: TakenOver, to: &Sender<AssignmentEvent>);

    /// A lane thread has been told all timers of a lane.
    fn loaded(&self, assignment: u64, lane: Lane);

    /// The lanes of this assignment are another's from now on, or will be taken over again.
    fn release(&self, assignment: u64);

    /// Has a lane thread told which timers of a lane may be forgotten, in all that is committed by now:
    /// [`Event::Expired`].
    fn list_expired(
        &self,
        assignment: u64,
        lane: Lane,
        what: Forgettable,
        to: &Sender<AssignmentEvent>,
    );

    /// Has a lane thread told how timers of a lane ended, by all that is committed by now: [`Event::Recalled`].
    fn recall(
        &self,
        assignment: u64,
        lane: Lane,
        timers: Vec<TimerId>,
        to: &Sender<AssignmentEvent>,
    );

    /// Has a lane thread told which pending timers of a lane were due before a time, from a place on:
    /// [`Event::Overdue`].
    fn list_overdue(
        &self,
        assignment: u64,
        of: (Lane, UnixMillis, Option<After>),
        to: &Sender<AssignmentEvent>,
    );

    /// The batch of these answers was committed.
    fn answered(&self, answers: Vec<Answer>);

    /// Whether somebody waits until a lane has decided what stands in its intakes. Asked in every turn.
    fn has_goals(&self) -> bool;

    /// What is waited for in the lanes of an assignment: by number, up to where everything must be decided and committed.
    fn goals(&self, assignment: u64) -> Vec<(u64, Vec<(Source, Offset)>)>;

    /// All that stands before these goals is decided and committed.
    fn reached(&self, goals: &[u64]);
}
