//! What a committer must know of the batches of lanes: names, when records may be appended, what the metrics get.

mod letters;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::changelog_end::Written;
use super::commit::{BatchOwner, OnDone};
use super::group_topics::GroupTopics;
use super::load::Work;
use waterclock_engine::header;
use waterclock_engine::member::{Renewed, Timing};
use waterclock_engine::messages::{ChangeReason, DeadLetter};
use waterclock_engine::task::id::TaskId;
use waterclock_engine::timers::RunStatus;
use waterclock_engine::{
    Batch, Destination, HeaderRewrite, Lane, Offset, Produce, Record, Setup, TopicId, UnixMillis,
};
use waterclock_telemetry::LaneFigures;

/// The batches of one lane thread.
pub(crate) struct LaneBatches {
    setup: Arc<Setup>,
    topics: GroupTopics,
    dead: Arc<str>,
    timers: Arc<str>,
    tasks: Arc<str>,
    /// How far `<ns>.timers` is written.
    written: Arc<Written>,
    figures: Arc<LaneFigures>,
    work: Arc<Work>,
}

impl LaneBatches {
    /// `first_intake`: the id of the main intake that was there first, if it was written down.
    pub(crate) fn new(
        setup: Arc<Setup>,
        first_intake: Option<String>,
        written: Arc<Written>,
        (figures, work): (Arc<LaneFigures>, Arc<Work>),
    ) -> Self {
        let (dead, timers) = (setup.topics.dead(), setup.topics.timers());
        let tasks = setup.topics.tasks();
        let topics = GroupTopics {
            names: setup.topics.names().to_vec(),
            intakes: setup.topics.intakes.len(),
            count: setup.lanes,
            changelog: Some(Arc::clone(&timers)),
            checkpoints: Some(setup.topics.meta()),
            sign: None,
            first_id: first_intake,
        };
        Self { setup, topics, dead, timers, tasks, written, figures, work }
    }
}

impl BatchOwner for LaneBatches {
    fn topic<'a>(&'a self, to: &'a Destination) -> &'a Arc<str> {
        match to {
            Destination::Lane(topic) => self.setup.topics.name(*topic),
            Destination::Target(name) => name,
            Destination::Dead => &self.dead,
            Destination::Timers => &self.timers,
            Destination::Tasks => &self.tasks,
            Destination::Submitted => self.setup.topics.name(TopicId(0)),
            // Tasks are in force where a lane has shards.
            Destination::Results => {
                let results = self.setup.topics.results().unwrap_or(TopicId(0));
                self.setup.topics.name(results)
            }
        }
    }

    fn topics(&self) -> &GroupTopics {
        &self.topics
    }

    fn timing(&self, send: &Produce) -> Timing {
        self.setup.timing(send)
    }

    fn is_followed(&self, send: &Produce) -> bool {
        send.to == Destination::Timers
    }

    fn stands(&self, partition: i32, offset: Option<Offset>) {
        if let Ok(lane) = u16::try_from(partition) {
            self.written.raise(Lane(lane), offset);
        }
    }

    fn on_done(&self, batch: &Batch) -> OnDone {
        let told = BatchMetrics::of(batch, self.setup.topics.intakes.len());
        let (figures, work) = (Arc::clone(&self.figures), Arc::clone(&self.work));
        Box::new(move |now| {
            work.done(told.delivered.len());
            told.tell(now, &figures);
        })
    }

    fn committed(&self, took: Duration) {
        self.figures.committed(took);
    }

    fn renewed(&self, why: Renewed) {
        self.figures.renewed(why);
    }
}

/// What the metrics get when a batch is done.
#[derive(Debug, Default)]
struct BatchMetrics {
    /// Where each waited last, and from when on it could have been there: its due time, or later its submission.
    delivered: Vec<(TopicId, UnixMillis)>,
    labels: HashMap<Box<str>, u64>,
    forwarded: Vec<(usize, u64)>,
    moved: u64,
    /// Each with the task that it is of, if it is of one.
    dead: Vec<(DeadLetter, Option<TaskId>)>,
    recorded: u64,
    cancelled: u64,
    runs: Vec<RunStatus>,
}

impl BatchMetrics {
    fn of(batch: &Batch, tiers_from: usize) -> Self {
        let mut told = Self::default();
        for send in &batch.sends {
            match (&send.to, &send.rewrite) {
                (Destination::Target(_), rewrite) => {
                    let (from, since) = match rewrite {
                        HeaderRewrite::Deliver { from, first_appended, .. } => {
                            (*from, send.due.max(*first_appended))
                        }
                        _ => (TopicId(0), send.due),
                    };
                    told.delivered.push((from, since));
                    if let Some(label) = label_of(&send.record) {
                        *told.labels.entry(label.into()).or_default() += 1;
                    }
                }
                (Destination::Lane(topic), _) if usize::from(topic.0) < tiers_from => {
                    told.moved += 1
                }
                (Destination::Lane(topic), _) => {
                    let tier = usize::from(topic.0) - tiers_from;
                    match told.forwarded.iter_mut().find(|(known, _)| *known == tier) {
                        Some((_, count)) => *count += 1,
                        None => told.forwarded.push((tier, 1)),
                    }
                }
                (Destination::Dead, HeaderRewrite::Dead(letter)) => {
                    told.dead.push(((**letter).clone(), task_of(&send.record)));
                }
                (Destination::Timers, HeaderRewrite::Timer(timer)) => {
                    match timer.reason {
                        ChangeReason::Recorded => told.recorded += 1,
                        ChangeReason::Suppressed | ChangeReason::Cancelled => told.cancelled += 1,
                        _ => {}
                    }
                    told.runs.extend(RunStatus::end_in(&timer.record));
                }
                (
                    Destination::Dead
                    | Destination::Timers
                    | Destination::Tasks
                    | Destination::Submitted
                    | Destination::Results,
                    _,
                ) => {}
            }
        }
        told
    }

    fn tell(&self, now: UnixMillis, figures: &LaneFigures) {
        figures.delivered(self.delivered.iter().map(|(from, since)| (*from, now - *since)));
        self.labels.iter().for_each(|(label, count)| figures.labelled(label, *count));
        for (tier, count) in &self.forwarded {
            figures.forwarded(*tier, *count);
        }
        figures.moved(self.moved);
        figures.cancels(self.recorded, self.cancelled);
        self.runs.iter().for_each(|end| figures.run_ended(*end));
        for (letter, task) in &self.dead {
            figures.dead_letter(letter.code);
            letters::tell(letter, task.as_ref());
        }
    }
}

/// The label of a record that is delivered, if it has one.
fn label_of(record: &Record) -> Option<&str> {
    text(record, header::LABEL).filter(|label| !label.is_empty())
}

/// The task of a record, as the record says: somebody else may have written that, so it is good for a log only.
fn task_of(record: &Record) -> Option<TaskId> {
    text(record, header::TASK)?;
    TaskId::parse(text(record, header::ID)?).ok()
}

/// A header that is text.
fn text<'a>(record: &'a Record, wanted: &str) -> Option<&'a str> {
    let mut headers = record.headers();
    let value =
        headers.find(|(name, _)| *name == wanted.as_bytes()).and_then(|(_, value)| value)?;
    std::str::from_utf8(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_letter_of_a_task_is_logged_with_its_id_and_one_of_a_timer_without() {
        let of = |headers: &[(&str, &str)]| {
            let headers =
                headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
            task_of(&Record::new(None, None, headers)).map(|id| id.to_string())
        };
        let id = "k0123456789abcdef";
        assert_eq!(of(&[("x-delay-id", id), ("x-delay-task", "{}")]).as_deref(), Some(id));
        assert_eq!(of(&[("x-delay-task", "{}"), ("x-delay-id", "a line\nmore")]), None);
        assert_eq!(of(&[("x-delay-id", id)]), None);
        assert_eq!(of(&[("x-delay-task", "{}")]), None);
    }
}
