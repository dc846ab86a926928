//! What a committer must know of the batches of workers: names, and what the metrics get.

use std::sync::Arc;
use std::time::Duration;

use super::commit::{BatchOwner, OnDone};
use super::group_topics::GroupTopics;
use waterclock_engine::member::{Renewed, Timing};
use waterclock_engine::{Batch, Destination, Offset, Produce, Setup, Topics};
use waterclock_telemetry::WorkerFigures;

/// The batches of a worker.
pub(crate) struct WorkBatches {
    topics: GroupTopics,
    dead: Arc<str>,
    figures: Arc<WorkerFigures>,
}

impl WorkBatches {
    /// Those of a worker of this namespace.
    pub(crate) fn new(namespace: &str, setup: &Setup, figures: Arc<WorkerFigures>) -> Self {
        let topics = GroupTopics {
            names: vec![Topics::tasks_topic(namespace).into()],
            intakes: 0,
            count: setup.lanes,
            changelog: None,
            checkpoints: None,
            sign: Some(Topics::results_topic(namespace).into()),
            first_id: None,
        };
        Self { topics, dead: setup.topics.dead(), figures }
    }
}

impl BatchOwner for WorkBatches {
    fn topic<'a>(&'a self, to: &'a Destination) -> &'a Arc<str> {
        match to {
            Destination::Target(name) => name,
            // A worker writes results, which name their topic, and dead letters.
            Destination::Dead
            | Destination::Lane(_)
            | Destination::Timers
            | Destination::Tasks
            | Destination::Submitted
            | Destination::Results => &self.dead,
        }
    }

    fn topics(&self) -> &GroupTopics {
        &self.topics
    }

    fn timing(&self, _: &Produce) -> Timing {
        Timing::Any
    }

    fn is_followed(&self, _: &Produce) -> bool {
        false
    }

    fn stands(&self, _: i32, _: Option<Offset>) {}

    fn on_done(&self, _: &Batch) -> OnDone {
        // The worker counts what it said, once the batch is reported.
        Box::new(|_| {})
    }

    fn committed(&self, took: Duration) {
        self.figures.committed(took);
    }

    fn renewed(&self, why: Renewed) {
        self.figures.renewed(why);
    }
}
