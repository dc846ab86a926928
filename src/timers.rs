//! Timers of the lanes that run here: kept up with the changelog, looked up, commanded.
//!
//! | | |
//! |---|---|
//! | `service`, `commands`, `find_record`, `ticket` | answers for timers, and writes commands about them |
//! | `tasks` | the same for tasks; writes their creates |
//! | `replies` | what lane threads report: which lanes are here, and the outcome of commands |
//! | `changelog` | reads `<ns>.timers` into the index, and tells lane threads what holds |
//! | `index` | the copy on disk; the only room that knows the store |
//!
//! This room is the [`Timers`] of the lane threads, which know nothing of it.

mod changelog;
mod commands;
mod find_record;
mod find_task;
pub mod index;
mod replies;
pub mod service;
mod task_report;
mod task_retry;
mod tasks;
mod ticket;

use std::sync::Arc;

use crossbeam_channel::Sender;

use crate::engine::timers::{Forgettable, TimerId};
use crate::engine::{After, Answer, Lane, Offset, Source, UnixMillis};
use crate::kafka::member::{AssignmentEvent, TakenOver, Timers};
use crate::kafka::{ClusterView, KafkaError, LaneThreads, Settings, WorkerView};

pub use changelog::Indexing;
pub use service::Service;

use changelog::Follower;
use replies::{Done, Replies};

/// Starts the lane threads, and what keeps the timers of their lanes and answers for them. Without an index what was
/// cancelled is read from the changelog's start whenever lanes are taken over. Also gives what a worker of this process shares with
/// them.
///
/// # Errors
/// A client could not be made: the configuration is wrong. Nothing runs then.
pub fn start(
    settings: &Settings,
    indexing: Option<Indexing>,
) -> Result<(LaneThreads, Arc<Service>, WorkerView), KafkaError> {
    let view = ClusterView::new(settings)?;
    let setup = &settings.setup;
    let replies = Arc::new(Replies::new(setup.lanes));
    let follower = Follower::start(changelog::Plan {
        connection: settings.connection.clone(),
        topic: setup.topics.timers(),
        lanes: setup.lanes,
        indexing,
        clock: Arc::clone(view.clock()),
        ends: view.ends().clone(),
        written: Arc::clone(view.written()),
    })?;
    let service = Service::new(service::Plan {
        connection: settings.connection.clone(),
        submitter: view.submitter(&settings.connection)?,
        setup: Arc::clone(setup),
        clock: Arc::clone(view.clock()),
        replies: Arc::clone(&replies),
        progress: Arc::clone(follower.progress()),
        written: Arc::clone(view.written()),
        ends: view.ends().clone(),
        reader: follower.reader().cloned(),
    });
    // The lane threads alone hold it: the last of them to end closes the index.
    let keeper = Arc::new(Keeper { follower, replies });
    let for_worker = view.for_worker();
    let lane_threads = LaneThreads::start(settings, view, keeper)?;
    Ok((lane_threads, Arc::new(service), for_worker))
}

/// What lane threads speak to.
#[derive(Debug)]
struct Keeper {
    follower: Follower,
    replies: Arc<Replies>,
}

impl Timers for Keeper {
    fn begin(&self, taken: TakenOver, to: &Sender<AssignmentEvent>) {
        let TakenOver { assignment, lanes, changelogs, intakes } = taken;
        let done = intakes.iter().map(|of| (of.source, Done::new(of.next, &of.metadata)));
        let ends: Vec<_> = intakes.iter().map(|of| (of.source, of.end)).collect();
        self.replies.begin(assignment, &lanes, done, &ends);
        self.follower.begin(assignment, changelogs, to);
    }

    fn loaded(&self, assignment: u64, lane: Lane) {
        self.replies.loaded(assignment, lane);
    }

    fn release(&self, assignment: u64) {
        self.follower.release(assignment);
        self.replies.release(assignment);
    }

    fn list_expired(
        &self,
        assignment: u64,
        lane: Lane,
        what: Forgettable,
        to: &Sender<AssignmentEvent>,
    ) {
        self.follower.list_expired(assignment, lane, what, to);
    }

    fn recall(
        &self,
        assignment: u64,
        lane: Lane,
        timers: Vec<TimerId>,
        to: &Sender<AssignmentEvent>,
    ) {
        self.follower.recall(assignment, lane, timers, to);
    }

    fn list_overdue(
        &self,
        assignment: u64,
        of: (Lane, UnixMillis, Option<After>),
        to: &Sender<AssignmentEvent>,
    ) {
        self.follower.overdue(assignment, of, to);
    }

    fn answered(&self, answers: Vec<Answer>) {
        self.replies.give(answers);
    }

    fn has_goals(&self) -> bool {
        self.replies.has_goals()
    }

    fn goals(&self, assignment: u64) -> Vec<(u64, Vec<(Source, Offset)>)> {
        self.replies.goals(assignment)
    }

    fn reached(&self, goals: &[u64]) {
        self.replies.reached(goals);
    }
}
