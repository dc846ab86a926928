//! Feedback: what executors say of their turns, written to the intake of the task's lane.
//!
//! # Invariants
//! 1. What ends an attempt without a success is written with the payload of its task, or not at all.
//! 2. What is written counts, whether its answer is heard or not.

use std::time::{Duration, Instant};

use super::find_task::FoundTask;
use super::replies::Reply;
use super::service::{Error, Service};
use crate::engine::messages::Reported;
use crate::engine::sealed;
use crate::engine::sealed::{BadTicket, Ticket};
use crate::engine::task::id::TaskId;
use crate::engine::task::result::{Outcome as Said, TaskResult};
use crate::engine::task::spec::{Kind, Spec};
use crate::engine::timers::{TaskReport, Timer, TimerState};
use crate::engine::{Offset, Outcome, Source, TopicId};

/// How much of its time must be left for writing feedback, and for the lane's answer, once its record is found.
const DECIDED_MIN: Duration = Duration::from_secs(3);

impl Service {
    /// The turn of a task that a ticket is for.
    ///
    /// # Errors
    /// It is no ticket of this task.
    pub fn ticket_of(&self, id: &TaskId, ticket: &str) -> Result<Ticket, BadTicket> {
        Ticket::read(ticket, &self.setup.key, id)
    }

    /// A ticket of this task, as executors have it.
    #[must_use]
    pub fn ticket(&self, id: &TaskId, ticket: Ticket) -> String {
        ticket.to_text(&self.setup.key, id)
    }

    /// Writes feedback that needs no payload, wherever the lane of its task runs, and does not wait for what it comes to.
    ///
    /// # Errors
    /// Nothing was written, unless it says that this is not known. To report again is safe.
    pub async fn write_report(
        &self,
        id: &TaskId,
        ticket: Ticket,
        result: &TaskResult,
        by: Instant,
    ) -> Result<Offset, Error> {
        let now = self.now().ok_or(Error::Timeless)?;
        let record = sealed::feedback(&self.setup.key, now, (id, ticket), result, None);
        Ok(self.write_of_task(id, record, by).await?.offset)
    }

    /// Writes feedback about a task whose lane runs here, and waits until its lane has decided it or it is `by`.
    ///
    /// # Errors
    /// Nothing was written, unless it says that this is not known. To report again is safe. [`Error::NotFound`]: the payload was
    /// not found in time.
    pub async fn report_task(
        &self,
        id: &TaskId,
        ticket: Ticket,
        result: &TaskResult,
        by: Instant,
    ) -> Result<TaskReport, Error> {
        let (lane, timer_id) = self.place(id);
        let mut open = Ok(TaskReport::Open);
        let offset = match result.outcome.carries_payload() {
            false => self.write_report(id, ticket, result, by).await?,
            true => {
                let now = self.now().ok_or(Error::Timeless)?;
                let Some(task) = self.task(id).await? else { return Ok(TaskReport::Absent) };
                if !is_called(task.spec.as_deref()) {
                    open = Err(Error::Behind(lane));
                }
                let timer = task.timer;
                match without_payload(&timer, ticket, result.outcome) {
                    Some(TaskReport::Open) => return open,
                    Some(known) => return Ok(known),
                    None => {}
                }
                let search_by = by.checked_sub(DECIDED_MIN).unwrap_or(by);
                let found = self.find_task(lane, id, &timer, now, search_by).await?;
                let FoundTask::Copy(record, terms) = found else { return Err(Error::NotFound) };
                let copy = Some((&record, terms, timer.due));
                let record = sealed::feedback(&self.setup.key, now, (id, ticket), result, copy);
                self.write_of_task(id, record, by).await?.offset
            }
        };
        let source = Source { topic: TopicId(0), lane };
        let outcome = match self.replies.wait(source, offset, by).await {
            Reply::Answer(answer) if answer.timer_id == timer_id => answer.outcome,
            Reply::Answer(_) | Reply::Before | Reply::Nothing | Reply::Gone => {
                return Ok(TaskReport::Pending);
            }
        };
        Ok(match outcome {
            Outcome::Reported(Reported::Finished) => TaskReport::Finished,
            Outcome::Reported(Reported::Retrying) => TaskReport::Retrying,
            Outcome::Reported(Reported::Failed) => TaskReport::Failed,
            Outcome::Reported(Reported::Running(until)) => TaskReport::Running(until),
            Outcome::Reported(Reported::Stale) => TaskReport::Stale,
            Outcome::Underway => return open,
            // It has ended: the index knows how by now.
            Outcome::Absent => {
                let last = self.look(&[lane], move |reader| reader.find(lane, timer_id)).await?;
                last.map_or(TaskReport::Absent, |last| ended(&last, ticket, result.outcome))
            }
            // It was sealed long before it was appended.
            _ => return Err(Error::Undecided(lane)),
        })
    }
}

/// Whether turns of a task are handed over by calls. One that is delivered has none that could be open: what the index has not heard of
/// yet it hears of soon.
fn is_called(spec: Option<&str>) -> bool {
    let spec = spec.and_then(|spec| Spec::parse(spec.as_bytes()).ok());
    !spec.is_some_and(|spec| matches!(spec.kind(), Kind::Kafka(_)))
}

/// What a failure comes to by the state of its task alone; `None`: its payload is needed.
fn without_payload(timer: &Timer, ticket: Ticket, said: Said) -> Option<TaskReport> {
    let progress = timer.task.unwrap_or_default();
    let is_same = timer.version == ticket.version;
    match timer.state {
        // Nobody has a ticket of a turn that has not begun: the index has not heard of it yet.
        _ if timer.version.is_before(ticket.version) || is_same && progress.turn < ticket.turn => {
            Some(TaskReport::Open)
        }
        TimerState::Delay if !is_same || progress.turn != ticket.turn => Some(TaskReport::Stale),
        TimerState::Delay if progress.held.is_some() => Some(TaskReport::Open),
        TimerState::Delay if progress.with_executor => None,
        // It was heard before, or the deadline was over first.
        TimerState::Delay if said == Said::Failed => Some(TaskReport::Retrying),
        TimerState::Delay => Some(TaskReport::Stale),
        _ => Some(ended(timer, ticket, said)),
    }
}

/// What is said of feedback about a task that has ended: the same that ended it is taken, as it may be sent again.
fn ended(last: &Timer, ticket: Ticket, said: Said) -> TaskReport {
    match (last.state, said) {
        _ if last.version != ticket.version => TaskReport::Stale,
        (TimerState::Delivered, Said::Finished) => TaskReport::Finished,
        (TimerState::Dead, Said::Failed | Said::Gone) => TaskReport::Failed,
        (TimerState::Cancelled, _) => TaskReport::Cancelled,
        _ => TaskReport::Stale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::task::scope::TasksPartition;
    use crate::engine::timers::{HeldBy, Progress, TimerId, Version};
    use crate::engine::{Millis, UnixMillis};

    fn timer(state: TimerState, progress: Progress) -> Timer {
        Timer {
            timer_id: TimerId([1; 16]),
            state,
            version: Version { first_appended: UnixMillis(1), offset: Offset(1) },
            supersedes: None,
            due: UnixMillis(2),
            since: UnixMillis(2),
            target: "orders".into(),
            label: None,
            id: b"a".as_slice().into(),
            key: None,
            key_cut: false,
            code: None,
            task: Some(progress),
        }
    }

    #[test]
    fn a_failure_needs_its_payload_only_where_its_turn_is_awaited() {
        let held = Some(HeldBy { partition: TasksPartition(0), credits: 1 });
        let waits = Progress { turn: 2, ..Progress::default() };
        let awaited = Progress { with_executor: true, ..waits };
        let with_worker = Progress { held, ..waits };
        let of = |state, progress, turn, said| {
            let timer = timer(state, progress);
            let ticket = Ticket { version: timer.version, turn, heartbeat: Millis(1) };
            without_payload(&timer, ticket, said)
        };
        let (failed, delay) = (Said::Failed, TimerState::Delay);
        #[rustfmt::skip]
        let cases = [
            (delay,                 awaited,     2, failed,      None),
            (delay,                 awaited,     1, failed,      Some(TaskReport::Stale)),
            (delay,                 waits,       3, failed,      Some(TaskReport::Open)),
            (delay,                 with_worker, 2, failed,      Some(TaskReport::Open)),
            (delay,                 waits,       2, failed,      Some(TaskReport::Retrying)),
            (delay,                 waits,       2, Said::Gone,  Some(TaskReport::Stale)),
            (TimerState::Dead,      waits,       2, failed,      Some(TaskReport::Failed)),
            (TimerState::Dead,      waits,       2, Said::Gone,  Some(TaskReport::Failed)),
            (TimerState::Delivered, waits,       2, failed,      Some(TaskReport::Stale)),
            (TimerState::Cancelled, waits,       2, failed,      Some(TaskReport::Cancelled)),
        ];
        for (state, progress, turn, said, want) in cases {
            assert_eq!(of(state, progress, turn, said), want, "{state:?} {progress:?} {turn}");
        }
    }

    #[test]
    fn what_ended_a_task_may_be_said_again() {
        let of = |state, version: u64, said| {
            let timer = timer(state, Progress { turn: 1, ..Progress::default() });
            let version = Version { first_appended: UnixMillis(version), offset: Offset(1) };
            ended(&timer, Ticket { version, turn: 1, heartbeat: Millis(1) }, said)
        };
        assert_eq!(of(TimerState::Delivered, 1, Said::Finished), TaskReport::Finished);
        assert_eq!(of(TimerState::Delivered, 2, Said::Finished), TaskReport::Stale);
        assert_eq!(of(TimerState::Delivered, 1, Said::Started), TaskReport::Stale);
        assert_eq!(of(TimerState::Dead, 1, Said::Finished), TaskReport::Stale);
        assert_eq!(of(TimerState::Cancelled, 1, Said::Started), TaskReport::Cancelled);
    }

    #[test]
    fn a_record_that_was_delivered_is_no_open_call() {
        let kafka =
            r#"{"type":"kafka","project":"p","group":"g","topic":"t","feedback":{"deadline":60}}"#;
        let http = r#"{"type":"http","project":"p","group":"g","url":"https://a.example/"}"#;
        assert!(!is_called(Some(kafka)));
        assert!(is_called(Some(http)));
        assert!(is_called(None), "it is not known");
    }
}
