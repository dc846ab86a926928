//! Retries by hand: somebody looks a task up, finds what brings its payload, and has it called now.

use waterclock::engine::messages::{Answer, Outcome};
use waterclock::engine::sealed::{self, WantedCopy};
use waterclock::engine::timers::{Timer, TimerState, Version};
use waterclock::engine::{Record, UnixMillis};

use crate::broker::{EPOCH_MS, Place};
use crate::mutation::Mutation;
use crate::world::World;

/// Percent of retries by somebody whose view of the task is old.
const OLD_VIEWS: u32 = 30;

/// A retry that was written.
#[derive(Clone, Debug)]
pub struct Retry {
    pub task: usize,
    /// What it follows.
    pub follows: Version,
    pub turn: u32,
    /// Where it stands: this is its version, if it makes one.
    place: Place,
    pub version: Version,
    /// What its client is told, each time.
    pub told: Vec<Outcome>,
}

impl World {
    /// When a task is called at the earliest: when it is due, or when somebody has it called.
    pub fn due_of(&self, task: usize) -> UnixMillis {
        let retries = self.tasks.retries.iter().filter(|retry| retry.task == task);
        let first = retries.map(|retry| retry.version.first_appended).min();
        let due = UnixMillis(EPOCH_MS + self.tasks.drafts[task].due);
        first.map_or(due, |first| first.min(due))
    }

    /// Does what the API does.
    pub(super) fn retry_by_hand(&mut self, task: usize) {
        self.follow_tasks();
        let Some(timer) = self.task_as_seen(task) else { return };
        let (now, progress) = (self.api_now(), timer.task.unwrap_or_default());
        let may_be = match timer.state {
            TimerState::Delay => {
                progress.held.is_none() && !progress.with_executor && progress.next_at > now
            }
            state => state == TimerState::Dead,
        };
        if !may_be {
            return;
        }
        let id = self.tasks.drafts[task].id.clone();
        let wanted =
            WantedCopy { id: &id, version: timer.version, turn: progress.turn, trigger: timer.due };
        let Some((record, terms)) = self.payload_of(&timer, &wanted) else {
            return self.count("payloads not found");
        };
        let key = &self.plan.setup.key;
        let record = sealed::retry(key, now, (&record, terms), &wanted, &progress);
        let lane = id.lane_of(self.plan.setup.lanes);
        let place = Place { topic: self.lane_topics[0], partition: i32::from(lane.0) };
        self.stirred = true;
        match self.broker.produce(self.at, None, place, record) {
            Ok(offset) => {
                self.count("retries by hand");
                let first_appended = self.broker.clock(self.broker.leader(place), self.at);
                let version = Version { first_appended, offset };
                let (follows, turn, told) = (timer.version, progress.turn, Vec::new());
                self.tasks.retries.push(Retry { task, follows, turn, place, version, told });
            }
            Err(refusal) => self.breach("model", format!("a retry of {task}: {refusal:?}")),
        }
    }

    /// A task as its user sees it, or saw it a moment ago.
    fn task_as_seen(&mut self, task: usize) -> Option<Timer> {
        let count = self.tasks.seen.get(&task).map_or(0, Vec::len);
        let is_old = count > 1 && self.chance.percent(OLD_VIEWS);
        let back = if is_old { self.chance.between(1, count as u64 - 1) as usize } else { 0 };
        let (_, timer) = self.tasks.seen.get(&task)?.get(count.checked_sub(back + 1)?)?;
        Some(timer.clone())
    }

    /// What brings the payload of a task: its dead letter, or a copy of it in a topic of waterclock's.
    pub(super) fn payload_of(
        &self,
        timer: &Timer,
        wanted: &WantedCopy<'_>,
    ) -> Option<(Record, sealed::CopyTerms)> {
        let partition = i32::from(wanted.id.lane_of(self.plan.setup.lanes).0);
        let is_letter = timer.state == TimerState::Dead;
        let topics = match is_letter {
            true => vec![self.broker.topic(&self.plan.setup.topics.dead())?],
            false => self.lane_topics.clone(),
        };
        let logs = topics
            .into_iter()
            .filter_map(|topic| self.broker.partition(Place { topic, partition }));
        let entries: Vec<_> = logs.flat_map(|log| log.ledger()).collect();
        entries.into_iter().rev().find_map(|(offset, entry)| {
            let record = entry.record.as_ref()?;
            let at = (offset, entry.appended);
            let (record, at) = match is_letter {
                true => sealed::of_letter(record)?,
                false => (record.clone(), at),
            };
            let terms = sealed::copy_of(&self.plan.setup.key, &record, at, wanted)?;
            Some((record, terms))
        })
    }

    /// What became of a retry may be told; `false`: the answer is that of another command.
    pub(super) fn retry_answered(&mut self, answer: &Answer) -> bool {
        let place = self.place(answer.source);
        let is_it = |of: &&mut Retry| (of.place, of.version.offset) == (place, answer.offset);
        let Some(retry) = self.tasks.retries.iter_mut().find(is_it) else { return false };
        let outcome = match answer.outcome {
            Outcome::Superseded if self.mutation == Some(Mutation::SaysRetried) => {
                Outcome::Replaced
            }
            outcome => outcome,
        };
        retry.told.push(outcome);
        self.count(match outcome {
            Outcome::Replaced => "retries taken",
            Outcome::Underway => "retries of held ones",
            Outcome::Superseded => "retries outrun",
            Outcome::Refused(_) => "retries refused",
            _ => "retries with another answer",
        });
        true
    }
}
