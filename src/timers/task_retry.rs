//! Retries of tasks by hand, and their payloads: both need the record that stands for a task.
//!
//! # Invariants
//! 1. A retry names the version and the turn that were the last ones when its payload was found. The lane decides whether they
//!    still are.
//! 2. A task that is due is not retried: it is called as soon as it may be.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::find_record;
use super::find_task::{FoundTask, TaskSearch, wanted};
use super::replies::Reply;
use super::service::{Error, Service, Ticket, in_turn};
use crate::engine::sealed::{self, Follows, Submission};
use crate::engine::task::id::TaskId;
use crate::engine::task::spec::{RUN, Spec};
use crate::engine::timers::{TaskPayload, TaskRecord, TaskRetry, Timer, TimerState};
use crate::engine::{Lane, Outcome, Source, TopicId, UnixMillis};

/// How much of its time must be left for writing a retry, and for the lane's answer, once its record is found.
const DECIDED_MIN: Duration = Duration::from_secs(3);

impl Service {
    /// Has a task called now that waits for its time or has failed, and waits until its lane has decided that or it is `by`.
    ///
    /// # Errors
    /// Nothing was written, unless it says that this is not known. To retry again is safe.
    pub async fn retry_task(&self, id: &TaskId, by: Instant) -> Result<TaskRetry, Error> {
        let now = self.now().ok_or(Error::Timeless)?;
        let Some(task) = self.task(id).await? else { return Ok(TaskRetry::Absent) };
        if task.timer.type_of_task() == RUN {
            return self.run_again(&task, now, by).await;
        }
        let (lane, timer) = (task.lane, task.timer);
        if let Some(known) = without_payload(&timer, now) {
            return Ok(known);
        }
        let search_by = by.checked_sub(DECIDED_MIN).unwrap_or(by);
        let (record, terms) = match self.find_task(lane, id, &timer, now, search_by).await? {
            FoundTask::Copy(record, terms) => (record, terms),
            FoundTask::Nowhere if timer.state == TimerState::Dead => return Ok(TaskRetry::Gone),
            FoundTask::Nowhere | FoundTask::Unfinished => return Err(Error::NotFound),
        };
        let progress = timer.task.unwrap_or_default();
        let (key, wanted) = (&self.setup.key, wanted(id, &timer));
        let retry = sealed::retry(key, now, (&record, terms), &wanted, &progress);
        let ticket = self.write_of_task(id, retry, by).await?;
        Ok(self.retry_heard(ticket, by).await)
    }

    /// Has a run that has failed or expired made anew. Its definition is all that this needs.
    async fn run_again(
        &self,
        run: &TaskRecord,
        now: UnixMillis,
        by: Instant,
    ) -> Result<TaskRetry, Error> {
        let spec = match definition(run) {
            Ok(spec) => spec,
            Err(known) => return Ok(known),
        };
        let follows = Follows { version: run.timer.version, has_ended: true };
        let (id, spec) = (&run.id, &spec);
        let submission =
            Submission { id, spec, due: now, expires: None, key: None, value: None, headers: &[] };
        let ticket = self.write_version(Some(follows), &submission, by).await?;
        Ok(self.retry_heard(ticket, by).await)
    }

    /// What a lane says of a retry.
    async fn retry_heard(
        &self,
        Ticket { lane, offset, timer_id }: Ticket,
        by: Instant,
    ) -> TaskRetry {
        let source = Source { topic: TopicId(0), lane };
        match self.replies.wait(source, offset, by).await {
            Reply::Answer(answer) if answer.timer_id == timer_id => retried(answer.outcome),
            Reply::Answer(_) | Reply::Before | Reply::Nothing | Reply::Gone => TaskRetry::Pending,
        }
    }

    /// What is sent to whom a task calls, as long as it stands anywhere.
    ///
    /// # Errors
    /// As those that look timers up; [`Error::NotFound`]: it was not found in time.
    pub async fn task_payload(
        &self,
        id: &TaskId,
        by: Instant,
    ) -> Result<Option<TaskPayload>, Error> {
        let now = self.now().ok_or(Error::Timeless)?;
        let Some(task) = self.task(id).await? else { return Ok(None) };
        match self.find_task(task.lane, id, &task.timer, now, by).await? {
            FoundTask::Copy(record, _) => Ok(Some(TaskPayload::of(&record))),
            FoundTask::Nowhere => Ok(None),
            FoundTask::Unfinished => Err(Error::NotFound),
        }
    }

    pub(super) async fn find_task(
        &self,
        lane: Lane,
        id: &TaskId,
        timer: &Timer,
        now: UnixMillis,
        by: Instant,
    ) -> Result<FoundTask, Error> {
        let by = by.min(Instant::now() + find_record::MAX);
        let (connection, setup) = (self.connection.clone(), Arc::clone(&self.setup));
        let reader = self.reader.clone().ok_or(Error::Without)?;
        let (id, timer) = (id.clone(), timer.clone());
        let found = in_turn(&self.searches, move || {
            let is_same = |of: &Timer| {
                (of.version, of.state, of.task) == (timer.version, timer.state, timer.task)
            };
            let stands = || {
                let now = reader.find(lane, timer.timer_id);
                matches!(now, Ok(Some(now)) if is_same(&now))
            };
            let (connection, setup, id, timer) = (&connection, &*setup, &id, &timer);
            TaskSearch { connection, setup, lane, id, timer, by }.run(now, &stands)
        });
        found.await?.map_err(Error::Search)
    }
}

/// What a retry comes to by the state of its task alone; `None`: its payload is needed.
fn without_payload(timer: &Timer, now: UnixMillis) -> Option<TaskRetry> {
    let progress = timer.task.unwrap_or_default();
    match timer.state {
        TimerState::Delay if progress.held.is_some() || progress.with_executor => {
            Some(TaskRetry::Held)
        }
        TimerState::Delay if progress.next_at <= now => Some(TaskRetry::Due),
        TimerState::Dead if timer.ended().is_none() => {
            let code = timer.code.map_or("refused", |code| code.as_str());
            Some(TaskRetry::Unborn(code.to_owned()))
        }
        TimerState::Delay | TimerState::Dead => None,
        TimerState::Lost => Some(TaskRetry::Gone),
        TimerState::Delivered | TimerState::Cancelled | TimerState::Expired => {
            Some(TaskRetry::Ended(timer.state))
        }
    }
}

/// What a run is that may be made anew; else what its retry comes to.
fn definition(run: &TaskRecord) -> Result<Spec, TaskRetry> {
    let TaskRecord { timer, spec, .. } = run;
    match timer.state {
        TimerState::Dead | TimerState::Expired => {}
        TimerState::Delay => return Err(TaskRetry::Open),
        TimerState::Lost => return Err(TaskRetry::Gone),
        TimerState::Delivered | TimerState::Cancelled => {
            return Err(TaskRetry::Ended(timer.state));
        }
    }
    let spec = spec.as_deref().and_then(|spec| Spec::parse(spec.as_bytes()).ok());
    spec.ok_or_else(|| {
        let code = timer.code.map_or("refused", |code| code.as_str());
        TaskRetry::Unborn(code.to_owned())
    })
}

/// What a lane has said of a retry.
fn retried(outcome: Outcome) -> TaskRetry {
    match outcome {
        Outcome::Replaced => TaskRetry::Due,
        Outcome::Underway => TaskRetry::Held,
        Outcome::Refused(code) => TaskRetry::Refused(code.as_str().to_owned()),
        Outcome::Superseded
        | Outcome::Reported(_)
        | Outcome::Absent
        | Outcome::Recorded
        | Outcome::Cancelled
        | Outcome::Created => TaskRetry::Superseded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Offset;
    use crate::engine::task::scope::TasksPartition;
    use crate::engine::timers::{HeldBy, LaneTimer, Progress, TimerId, Version};

    #[test]
    fn a_run_that_has_failed_or_expired_is_made_anew_from_what_is_kept_of_it() {
        let json = r#"{"type":"run","project":"shop","group":"g","shards":2,"task":{"type":"http","url":"https://a.example/"}}"#;
        let of = |state, spec: Option<&str>| {
            let timer = Timer {
                timer_id: TimerId([1; 16]),
                state,
                version: Version { first_appended: UnixMillis(1), offset: Offset(1) },
                supersedes: None,
                due: UnixMillis(2),
                since: UnixMillis(2),
                target: "run:http".into(),
                label: None,
                id: b"a".as_slice().into(),
                key: None,
                key_cut: false,
                code: None,
                task: Some(Progress::default()),
            };
            let timer = LaneTimer { lane: Lane(0), timer };
            let run = TaskRecord::new(timer, spec.map(Into::into), Vec::new()).expect("an id");
            definition(&run).map(|spec| spec.run().map(|run| run.shards()))
        };
        let ended = |state| Err(TaskRetry::Ended(state));
        #[rustfmt::skip]
        let cases = [
            (TimerState::Dead,      Some(json), Ok(Some(2))),
            (TimerState::Expired,   Some(json), Ok(Some(2))),
            (TimerState::Dead,      None,       Err(TaskRetry::Unborn("refused".to_owned()))),
            (TimerState::Delay,     Some(json), Err(TaskRetry::Open)),
            (TimerState::Lost,      Some(json), Err(TaskRetry::Gone)),
            (TimerState::Delivered, Some(json), ended(TimerState::Delivered)),
            (TimerState::Cancelled, Some(json), ended(TimerState::Cancelled)),
        ];
        for (state, spec, want) in cases {
            assert_eq!(of(state, spec), want, "{state:?}");
        }
    }

    #[test]
    fn only_what_waits_or_has_failed_needs_its_payload() {
        let held = Some(HeldBy { partition: TasksPartition(0), credits: 1 });
        let waits = Progress { turn: 1, next_at: UnixMillis(100), ..Progress::default() };
        let with_worker = Progress { held, ..waits };
        let awaited = Progress { with_executor: true, ..waits };
        let of = |state, progress, now| {
            let timer = Timer {
                timer_id: TimerId([1; 16]),
                state,
                version: Version { first_appended: UnixMillis(1), offset: Offset(1) },
                supersedes: None,
                due: UnixMillis(2),
                since: UnixMillis(2),
                target: "host:a.example".into(),
                label: None,
                id: b"a".as_slice().into(),
                key: None,
                key_cut: false,
                code: None,
                task: Some(progress),
            };
            without_payload(&timer, UnixMillis(now))
        };
        let ended = |state| (state, waits, 99, Some(TaskRetry::Ended(state)));
        #[rustfmt::skip]
        let cases = [
            (TimerState::Delay, waits,       99,  None),
            (TimerState::Delay, waits,       100, Some(TaskRetry::Due)),
            (TimerState::Delay, with_worker, 99,  Some(TaskRetry::Held)),
            (TimerState::Delay, awaited,     101, Some(TaskRetry::Held)),
            (TimerState::Dead,  waits,       99,  None),
            (TimerState::Lost,  waits,       99,  Some(TaskRetry::Gone)),
            ended(TimerState::Delivered),
            ended(TimerState::Cancelled),
            ended(TimerState::Expired),
        ];
        for (state, progress, now, want) in cases {
            assert_eq!(of(state, progress, now), want, "{state:?} {progress:?} {now}");
        }
    }
}
