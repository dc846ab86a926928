//! Makes a batch of Kafka's out of what the worker engine wants to be written, and counts it once it is committed.

use std::sync::Arc;

use super::WorkParts;
use waterclock_engine::header::Code;
use waterclock_engine::messages::DeadLetter;
use waterclock_engine::sealed::{absent_record, result_record};
use waterclock_engine::task::result::Outcome;
use waterclock_engine::work::{Entry, Said, WorkBatch};
use waterclock_engine::{
    Batch, BatchId, Commit, Destination, HeaderRewrite, Lane, Produce, Record, Topics, UnixMillis,
};
use waterclock_telemetry::WorkerFigures;

/// A batch that is on its way.
pub(super) struct Flying {
    pub(super) id: BatchId,
    /// What it says of turns, and whether that is said since a turn is in doubt.
    results: Vec<(Outcome, bool)>,
    /// Its dead letters.
    dead: Vec<DeadLetter>,
}

impl Flying {
    /// How many calls have ended by it.
    pub(super) fn ended(&self) -> usize {
        let is_end = |outcome| !matches!(outcome, Outcome::Started | Outcome::Deferred);
        self.results.iter().filter(|(outcome, _)| is_end(*outcome)).count()
    }

    /// It is committed.
    pub(super) fn tell(self, figures: &WorkerFigures) {
        figures.batch();
        for (outcome, in_doubt) in self.results {
            figures.result(outcome, in_doubt);
        }
        for letter in self.dead {
            figures.dead_letter(letter.code);
            let DeadLetter { code, detail, topic, partition, offset, .. } = letter;
            let is_task = code == Code::TaskFailed;
            let (code, offset) = (code.as_str(), offset.0);
            if is_task {
                tracing::error!(
                    code,
                    detail,
                    %topic,
                    partition,
                    offset,
                    "Kafka takes no result with this task's value; the task has failed and is a dead letter. Compare \
                     max.message.bytes of the topics of results and of tasks (waterclock doctor)"
                );
            } else {
                tracing::warn!(
                    code,
                    detail,
                    %topic,
                    partition,
                    offset,
                    "a record that waterclock has not written stood among the tasks; it is a dead letter"
                );
            }
        }
    }
}

/// Writes results and dead letters.
pub(super) struct Writer<'a> {
    parts: &'a WorkParts,
    tasks: Arc<str>,
    results: Arc<str>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(parts: &'a WorkParts) -> Self {
        let tasks = Topics::tasks_topic(&parts.namespace).into();
        let results = Topics::results_topic(&parts.namespace).into();
        Self { parts, tasks, results }
    }

    /// The batch as the committer takes it.
    pub(super) fn write(&self, batch: WorkBatch) -> (Batch, Flying) {
        let WorkBatch { id, entries, positions } = batch;
        let mut flying = Flying { id, results: Vec::new(), dead: Vec::new() };
        let sends = entries.into_iter().map(|entry| match entry {
            Entry::Result(task, said, form) => {
                flying.results.push(outcome(&said));
                let key = &self.parts.setup.key;
                let record = result_record(key, &task, &said, &self.parts.instance, form);
                let to = Destination::Target(Arc::clone(&self.results));
                produce(to, task.lane, record, HeaderRewrite::Whole)
            }
            Entry::Absent { partition, lane, turn, id } => {
                let (key, worker) = (&self.parts.setup.key, &self.parts.instance);
                let record = absent_record(key, (turn, &id), partition, worker);
                let to = Destination::Target(Arc::clone(&self.results));
                produce(to, lane, record, HeaderRewrite::Whole)
            }
            Entry::Dead { partition, offset, appended, record, refusal } => {
                let letter = DeadLetter {
                    code: refusal.code,
                    detail: refusal.detail,
                    topic: Arc::clone(&self.tasks),
                    partition: i32::from(partition.0),
                    offset,
                    timestamp: appended,
                    intake: "".into(),
                };
                flying.dead.push(letter.clone());
                let rewrite = HeaderRewrite::Dead(Box::new(letter));
                produce(Destination::Dead, partition, *record, rewrite)
            }
        });
        let sends = sends.collect();
        let commits = positions.into_iter().map(|(lane, position)| Commit {
            source: super::source(lane),
            next: position.next,
            metadata: position.metadata,
        });
        let commits = commits.collect();
        (Batch { id, sends, commits, answers: Vec::new() }, flying)
    }
}

fn produce(to: Destination, lane: Lane, record: Record, rewrite: HeaderRewrite) -> Produce {
    let partition = Some(i32::from(lane.0));
    Produce { to, partition, record, rewrite, due: UnixMillis(0), expires: None }
}

/// What is said, and whether a turn is in doubt.
fn outcome(said: &Said) -> (Outcome, bool) {
    match said {
        Said::Started(_) => (Outcome::Started, false),
        Said::Deferred { .. } => (Outcome::Deferred, false),
        Said::Interrupted { in_doubt } => (Outcome::Interrupted, *in_doubt),
        Said::Cancelled => (Outcome::Cancelled, false),
        Said::Ended(result) => (result.outcome, false),
    }
}
