//! Finds a record that brings the payload of a task, where it stands: for a retry by hand, and for who wants to see the payload.
//!
//! | the task | its payload stands in |
//! |---|---|
//! | waits for its first turn | its intake, or a tier: as any timer's ([`find_record`](super::find_record)) |
//! | waits for its next turn | what its worker said of the last one; later a tier |
//! | is with a worker | `<ns>.tasks` |
//! | has failed or expired | `<ns>.dead` |
//! | has ended otherwise | nowhere |
//!
//! # Invariants
//! 1. The result brings the last turn of the last version: its seal says so, and its digest is that of the payload.
//! 2. The search takes a bounded time, and ends as soon as the task is further on.

use std::sync::Arc;
use std::time::Instant;

use super::find_record::{
    EARLY_MAX, SearchRange, appended, around, down_the_ladder, look, places, reader,
};
use crate::engine::sealed::{self, CopyTerms, WantedCopy};
use crate::engine::task::id::TaskId;
use crate::engine::timers::{Timer, TimerState};
use crate::engine::{Lane, Record, Setup, TopicId, UnixMillis};
use crate::kafka::Connection;
use crate::kafka::topic_reader::{Consumed, ReadError};

/// What a search comes to.
#[derive(Debug)]
pub(super) enum FoundTask {
    /// This record brings it.
    Copy(Record, CopyTerms),
    /// It is in none of the places where it could be.
    Nowhere,
    /// There was no time to look everywhere, or the task is further on.
    Unfinished,
}

/// Where to look: a partition, and what of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    topic: Arc<str>,
    partition: i32,
    range: SearchRange,
    is_letter: bool,
}

/// A search for one task's payload.
pub(super) struct TaskSearch<'a> {
    pub(super) connection: &'a Connection,
    pub(super) setup: &'a Setup,
    pub(super) lane: Lane,
    pub(super) id: &'a TaskId,
    pub(super) timer: &'a Timer,
    pub(super) by: Instant,
}

impl TaskSearch<'_> {
    /// Looks until it is found, or as long as the task `stands` as it was.
    ///
    /// # Errors
    /// Kafka does not let us read.
    pub(super) fn run(
        &self,
        now: UnixMillis,
        stands: &dyn Fn() -> bool,
    ) -> Result<FoundTask, ReadError> {
        let places = places_of_task(self.setup, self.lane, self.timer, now);
        let Some(first) = places.first() else { return Ok(FoundTask::Nowhere) };
        let mut reader = reader(self.connection, (&first.topic, first.partition))?;
        for (n, place) in places.iter().enumerate() {
            if Instant::now() > self.by || n > 0 && !stands() {
                return Ok(FoundTask::Unfinished);
            }
            let at = (&*place.topic, place.partition);
            let found = look(&mut reader, at, place.range, self.by, |message| {
                self.recognize(place.is_letter, message)
            });
            match found {
                Ok(Some((record, terms))) => return Ok(FoundTask::Copy(record, terms)),
                Ok(None) => {}
                // There was no time left for a last request: that is no error of Kafka.
                Err(_) if Instant::now() + EARLY_MAX >= self.by => {
                    return Ok(FoundTask::Unfinished);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(if Instant::now() > self.by { FoundTask::Unfinished } else { FoundTask::Nowhere })
    }

    fn recognize(&self, is_letter: bool, message: &Consumed<'_>) -> Option<(Record, CopyTerms)> {
        let id = self.id.as_str().as_bytes();
        if !message.has_header(crate::engine::header::ID.as_bytes(), id) {
            return None;
        }
        let record = message.record(self.setup.limits.record_bytes_max);
        if record.is_cut().is_some() {
            return None;
        }
        let place = (message.offset(), appended(message));
        let (record, place) = if is_letter { sealed::of_letter(&record)? } else { (record, place) };
        let wanted = wanted(self.id, self.timer);
        let terms = sealed::copy_of(&self.setup.key, &record, place, &wanted)?;
        Some((record, terms))
    }
}

/// What brings the payload of a task as it is.
pub(super) fn wanted<'a>(id: &'a TaskId, timer: &Timer) -> WantedCopy<'a> {
    let turn = timer.task.map_or(0, |task| task.turn);
    WantedCopy { id, version: timer.version, turn, trigger: timer.due }
}

/// Where the payload of a task may be, the likeliest place first. Pure.
fn places_of_task(setup: &Setup, lane: Lane, timer: &Timer, now: UnixMillis) -> Vec<Place> {
    let topics = &setup.topics;
    let in_lane = |(topic, range): (TopicId, SearchRange)| Place {
        topic: Arc::clone(topics.name(topic)),
        partition: i32::from(lane.0),
        range,
        is_letter: false,
    };
    let progress = timer.task.unwrap_or_default();
    match (timer.state, progress.held) {
        (TimerState::Dead | TimerState::Expired, _) => {
            let of = |range| Place {
                topic: topics.dead(),
                partition: i32::from(lane.0),
                range,
                is_letter: true,
            };
            vec![of(around(timer.since)), of(SearchRange::All)]
        }
        (TimerState::Delay, Some(held)) => {
            let of = |range| Place {
                topic: topics.tasks(),
                partition: i32::from(held.partition.0),
                range,
                is_letter: false,
            };
            vec![of(around(timer.since)), of(SearchRange::All)]
        }
        (TimerState::Delay, None) if progress.turn == 0 && progress.attempts == 0 => {
            places(setup, timer, now).into_iter().map(in_lane).collect()
        }
        (TimerState::Delay, None) => {
            // It began to wait when its last turn ended, or when it was retried by hand.
            let tiers = down_the_ladder(setup, (timer.since, progress.next_at), now);
            let began = topics.results().into_iter().chain([TopicId(0)]);
            let began: Vec<_> = began.map(|topic| (topic, around(timer.since))).collect();
            let all = (0..topics.ladder.tiers().len()).map(|tier| topics.of_tier(tier));
            let all = all.chain(topics.results()).map(|topic| (topic, SearchRange::All));
            tiers.into_iter().chain(began).chain(all).map(in_lane).collect()
        }
        (TimerState::Delivered | TimerState::Cancelled | TimerState::Lost, _) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::allow::Allow;
    use crate::engine::ladder::Ladder;
    use crate::engine::state::StateKey;
    use crate::engine::task::scope::TasksPartition;
    use crate::engine::timers::{HeldBy, Progress, TimerId, Version};
    use crate::engine::{Intake, Limits, Millis, Offset, Topics};

    const BORN: UnixMillis = UnixMillis(1_767_225_600_000);

    fn setup() -> Setup {
        let allow = Allow::new("ns", None).unwrap();
        let intakes = vec![Intake::new("", None, None, allow)];
        let ladder = Ladder::new(&[1_000, 10_000, 60_000].map(Millis), &[], Millis(2_000)).unwrap();
        let topics = Topics::new("ns", intakes, ladder).with_tasks();
        Setup { lanes: 4, topics, key: StateKey::new([1; 32]), limits: Limits::default() }
    }

    fn looked_for_in(state: TimerState, progress: Progress, due: u64, now: u64) -> Vec<String> {
        let timer = Timer {
            timer_id: TimerId([1; 16]),
            state,
            version: Version { first_appended: BORN, offset: Offset(42) },
            supersedes: None,
            due: BORN + Millis(due),
            since: BORN,
            target: "host:a.example".into(),
            label: None,
            id: b"a".as_slice().into(),
            key: None,
            key_cut: false,
            code: None,
            task: Some(progress),
        };
        let setup = setup();
        let places = places_of_task(&setup, Lane(3), &timer, BORN + Millis(now));
        let shown = places.iter().map(|place| {
            let range = match place.range {
                SearchRange::At(offset) => format!("@{offset}"),
                SearchRange::Between(from, _) => format!("+{}", from.0 + 2_000 - BORN.0),
                SearchRange::All => String::new(),
            };
            assert_eq!(place.is_letter, &*place.topic == "ns.dead");
            format!("{}/{}{range}", place.topic, place.partition)
        });
        shown.collect()
    }

    #[test]
    fn a_payload_is_looked_for_where_the_state_of_its_task_has_it() {
        let waits = Progress { turn: 1, next_at: BORN + Millis(60_000), ..Progress::default() };
        let held = Some(HeldBy { partition: TasksPartition(2), credits: 1 });
        let soon = Progress { next_at: BORN + Millis(1_500), ..waits };
        let first = Progress { turn: 0, ..waits };
        let setup = setup();
        let tier = |at: usize, end: &str| {
            format!("{}/3{end}", setup.topics.name(setup.topics.of_tier(at)))
        };
        let all = || [tier(0, ""), tier(1, ""), tier(2, "")];
        let of = |state, progress| looked_for_in(state, progress, 60_000, 30_000);
        let began = || ["ns.results/3+0".to_owned(), "ns.intake/3+0".to_owned()];
        let results = || ["ns.results/3".to_owned()];
        let mut want = vec![tier(2, "+0")];
        want.extend(began().into_iter().chain(all()).chain(results()));
        assert_eq!(of(TimerState::Delay, waits), want);
        let want: Vec<_> = began().into_iter().chain(all()).chain(results()).collect();
        assert_eq!(of(TimerState::Delay, soon), want, "it waits in memory");
        let mut want = vec![tier(2, "+0"), "ns.intake/3@42".to_owned()];
        want.extend(all());
        assert_eq!(of(TimerState::Delay, first), want);
        let with_worker = Progress { held, ..waits };
        assert_eq!(of(TimerState::Delay, with_worker), ["ns.tasks/2+0", "ns.tasks/2"]);
        for state in [TimerState::Dead, TimerState::Expired] {
            assert_eq!(of(state, waits), ["ns.dead/3+0", "ns.dead/3"]);
        }
        for state in [TimerState::Delivered, TimerState::Cancelled, TimerState::Lost] {
            assert_eq!(of(state, waits), [""; 0]);
        }
    }
}
