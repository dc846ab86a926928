//! Tasks: looks them up, writes creates and cancels of them, reports what became of a cancel.
//!
//! # Invariants
//! 1. That there is no task of an id is reported only once everything is decided that stood in the intakes of its lane when
//!    that was asked. So a task is found right after its create was acknowledged.
//! 2. A cancel has an end only if its lane has decided it, or the index has the end of its task.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::replies::Reply;
use super::service::{Error, Service, Ticket};
use crate::engine::sealed::{self, Follows, Submission};
use crate::engine::task::id::TaskId;
use crate::engine::timers::{
    TaskCancel, TaskCounts, TaskFilter, TaskRecord, Timer, TimerId, TimerState,
};
use crate::engine::{Answer, Lane, Outcome, Record, Source, TopicId};
use crate::timers::index::{After, Reader, TaskListing};

/// How long a look-up that found nothing waits until the lane has decided what stands in its intakes.
const DECIDED_MAX: Duration = Duration::from_secs(1);
/// How long the lane's word on a change may come after the index has a later version.
const REPLY_MAX: Duration = Duration::from_secs(1);
/// Between two looks at a task whose worker has been told of its cancel.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Service {
    /// The task of this id, with its attempts, as long as it is kept. One whose create was acknowledged before is found.
    ///
    /// # Errors
    /// As all that look timers up: ask the owner of the lane, or again soon.
    pub async fn task(&self, id: &TaskId) -> Result<Option<TaskRecord>, Error> {
        let (lane, timer_id) = self.place(id);
        let find = move |reader: &Reader| reader.task(lane, timer_id);
        if let Some(task) = self.look(&[lane], find).await? {
            return Ok(Some(task));
        }
        self.settle(&[lane], Instant::now() + DECIDED_MAX).await?;
        self.look(&[lane], find).await
    }

    /// A lane's tasks by due time, behind a place, without their attempts; at most so many.
    ///
    /// # Errors
    /// As those of [`task`](Self::task).
    pub async fn tasks(
        &self,
        lane: Lane,
        filter: TaskFilter,
        after: Option<After>,
        most: usize,
    ) -> Result<TaskListing, Error> {
        self.look(&[lane], move |reader| reader.tasks(lane, &filter, after, most)).await
    }

    /// How many tasks of these projects these lanes have together, by where they stand now.
    ///
    /// # Errors
    /// As those of [`task`](Self::task).
    pub async fn task_counts(
        &self,
        lanes: Vec<Lane>,
        projects: BTreeSet<String>,
    ) -> Result<BTreeMap<String, TaskCounts>, Error> {
        let now = self.now().ok_or(Error::Timeless)?;
        let of = lanes.clone();
        let count = move |reader: &Reader| {
            let mut all: BTreeMap<String, TaskCounts> = BTreeMap::new();
            for lane in of {
                for (project, counts) in reader.task_counts(lane, &projects, now)? {
                    all.entry(project).or_default().add(counts);
                }
            }
            Ok(all)
        };
        self.look(&lanes, count).await
    }

    /// Writes the creates of tasks, wherever their lanes run, and waits until each is acknowledged or it is `by`.
    ///
    /// # Errors
    /// For each by itself: nothing was written, unless it says that this is not known. To create the same again is safe
    /// where its id is of a request.
    pub async fn submit_tasks(
        &self,
        tasks: &[Submission<'_>],
        by: Instant,
    ) -> Vec<Result<(), Error>> {
        let Some(now) = self.now() else {
            return tasks.iter().map(|_| Err(Error::Timeless)).collect();
        };
        let records: Vec<(i32, Record)> = tasks
            .iter()
            .map(|task| {
                let lane = task.id.lane_of(self.lanes());
                (i32::from(lane.0), sealed::submit(&self.setup.key, now, task))
            })
            .collect();
        let each = records.iter().map(|(partition, record)| (*partition, record));
        let receipts = self.submitter.submit_all(&self.intake(), each, by).await;
        receipts.into_iter().map(|receipt| Ok(receipt.map(drop)?)).collect()
    }

    /// Writes a schedule or a run in the place of this version, or of none, wherever its lane runs; says where its record stands. That
    /// is what [`schedule_taken`](Self::schedule_taken) is asked with.
    ///
    /// # Errors
    /// Nothing was written, unless it says that this is not known. To look is safe.
    pub async fn write_version(
        &self,
        follows: Option<Follows>,
        of: &Submission<'_>,
        by: Instant,
    ) -> Result<Ticket, Error> {
        let now = self.now().ok_or(Error::Timeless)?;
        let record = match follows {
            Some(follows) => sealed::change_schedule(&self.setup.key, now, follows, of),
            None => sealed::submit(&self.setup.key, now, of),
        };
        self.write_of_task(of.id, record, by).await
    }

    /// Whether the change of a schedule that was written there was in force: its lane has said so, and that is remembered here.
    ///
    /// # Errors
    /// The lane is not here.
    pub async fn schedule_taken(&self, ticket: &Ticket) -> Result<bool, Error> {
        let Ticket { lane, offset, timer_id } = *ticket;
        let source = Source { topic: TopicId(0), lane };
        match self.replies.wait(source, offset, Instant::now() + REPLY_MAX).await {
            Reply::Gone => Err(Error::Moving(lane)),
            Reply::Answer(Answer { timer_id: of, outcome, .. }) => {
                Ok(of == timer_id && outcome == Outcome::Replaced)
            }
            Reply::Before | Reply::Nothing => Ok(false),
        }
    }

    /// Writes the cancel of whatever is pending of a task, wherever its lane runs; gives what its answer is asked for with.
    ///
    /// # Errors
    /// Nothing was written, unless it says that this is not known. To cancel again is safe.
    pub async fn cancel_task(&self, id: &TaskId, by: Instant) -> Result<Ticket, Error> {
        let now = self.now().ok_or(Error::Timeless)?;
        let record = sealed::cancel(&self.setup.key, now, id);
        self.write_of_task(id, record, by).await
    }

    /// Writes a record about a task to its intake; gives what its answer is asked for with.
    pub(super) async fn write_of_task(
        &self,
        id: &TaskId,
        record: Record,
        by: Instant,
    ) -> Result<Ticket, Error> {
        let (lane, timer_id) = self.place(id);
        let offset = self.write(lane, &[record], by).await.pop().ok_or(Error::Fault)??;
        Ok(Ticket { lane, offset, timer_id })
    }

    /// What became of the cancel of a task, waiting for at most so long.
    ///
    /// # Errors
    /// The cancel stands; ask again.
    pub async fn task_cancel(&self, ticket: &Ticket, wait: Duration) -> Result<TaskCancel, Error> {
        let by = Instant::now() + wait;
        let source = Source { topic: TopicId(0), lane: ticket.lane };
        let heard = match self.replies.wait(source, ticket.offset, by).await {
            Reply::Answer(answer) if answer.timer_id == ticket.timer_id => {
                Heard::of(answer.outcome).ok_or(Error::Undecided(ticket.lane))?
            }
            // It was decided, and what was reported of it is lost.
            Reply::Answer(_) | Reply::Before => Heard::Somehow,
            Reply::Nothing => return Ok(TaskCancel::Pending),
            Reply::Gone => return Err(Error::Moving(ticket.lane)),
        };
        loop {
            let (lane, timer_id) = (ticket.lane, ticket.timer_id);
            // What was decided before is in the index by now.
            let last = self.look(&[lane], move |reader| reader.find(lane, timer_id)).await?;
            match heard.end(last.as_ref()) {
                Some(end) => return Ok(end),
                None if Instant::now() >= by => return Ok(TaskCancel::Pending),
                None => sleep(LOOK_EVERY).await,
            }
        }
    }

    pub(super) fn place(&self, id: &TaskId) -> (Lane, TimerId) {
        (id.lane_of(self.lanes()), TimerId::task(id))
    }
}

/// What the lane has said of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    /// It has ended the task.
    Cancelled,
    /// Nothing was pending.
    Absent,
    /// A worker was told of it.
    Underway,
    /// It is decided, and nobody remembers how.
    Somehow,
}

impl Heard {
    /// `None`: the lane has not done it.
    fn of(outcome: Outcome) -> Option<Self> {
        match outcome {
            Outcome::Cancelled => Some(Self::Cancelled),
            Outcome::Absent => Some(Self::Absent),
            Outcome::Underway => Some(Self::Underway),
            // It was appended long after it was sealed; or tasks are not tracked here, or it is about a version.
            Outcome::Refused(_)
            | Outcome::Reported(_)
            | Outcome::Recorded
            | Outcome::Superseded
            | Outcome::Replaced
            | Outcome::Created => None,
        }
    }

    /// How it ended, by the last state of its task; `None`: it has not.
    fn end(self, last: Option<&Timer>) -> Option<TaskCancel> {
        let Some(last) = last else {
            return match self {
                // Its history has run out since.
                Self::Cancelled => Some(TaskCancel::Cancelled),
                Self::Absent | Self::Underway | Self::Somehow => Some(TaskCancel::Absent),
            };
        };
        let is_told = last.task.is_some_and(|task| task.cancelling);
        // What was there when the cancel was decided: it had failed, if it was retried by hand since.
        let is_back = last.task.is_some_and(|task| task.attempts > 0);
        let before = if is_back { TaskCancel::Failed } else { TaskCancel::Absent };
        match (self, TaskCancel::of(last)) {
            // A later version of it, which the cancel was not about, has ended otherwise since.
            (Self::Cancelled, _) if last.state != TimerState::Cancelled => {
                Some(TaskCancel::Stopped)
            }
            (_, Some(end)) => Some(end),
            (Self::Absent, None) => Some(before),
            // Where its worker was told, it ends. Else this is a later version.
            (Self::Somehow, None) if !is_told => Some(before),
            (Self::Cancelled | Self::Underway | Self::Somehow, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::timers::{Progress, Version};
    use crate::engine::{Offset, UnixMillis};

    fn timer(state: TimerState, begun: bool, cancelling: bool) -> Timer {
        Timer {
            timer_id: TimerId([1; 16]),
            state,
            version: Version { first_appended: UnixMillis(1), offset: Offset(1) },
            supersedes: None,
            due: UnixMillis(2),
            since: UnixMillis(2),
            target: "shop/billing".into(),
            label: None,
            id: b"a".as_slice().into(),
            key: None,
            key_cut: false,
            code: None,
            task: Some(Progress { begun, cancelling, ..Progress::default() }),
        }
    }

    #[test]
    fn a_cancel_ends_as_its_lane_and_the_end_of_its_task_say() {
        use TaskCancel::{Absent, Cancelled, Failed, Finished, Stopped};
        use TimerState::{Dead, Delay, Delivered};
        let pending = timer(Delay, true, false);
        let told = timer(Delay, true, true);
        let cancelled = timer(TimerState::Cancelled, false, false);
        let stopped = timer(TimerState::Cancelled, true, false);
        let attempted = Progress { attempts: 1, ..Progress::default() };
        let retried = Timer { task: Some(attempted), ..pending.clone() };
        let (finished, failed) = (timer(Delivered, true, false), timer(Dead, true, false));
        #[rustfmt::skip]
        let cases = [
            // the lane             the index         the end
            (Heard::Cancelled, Some(&cancelled), Some(Cancelled)),
            (Heard::Cancelled, Some(&stopped),   Some(Stopped)),
            (Heard::Cancelled, None,             Some(Cancelled)),
            (Heard::Cancelled, Some(&pending),   Some(Stopped)),
            (Heard::Absent,    None,             Some(Absent)),
            (Heard::Absent,    Some(&finished),  Some(Finished)),
            (Heard::Absent,    Some(&failed),    Some(Failed)),
            (Heard::Absent,    Some(&pending),   Some(Absent)),
            (Heard::Absent,    Some(&retried),   Some(Failed)),
            (Heard::Underway,  Some(&told),      None),
            (Heard::Underway,  Some(&cancelled), Some(Cancelled)),
            (Heard::Underway,  Some(&finished),  Some(Finished)),
            (Heard::Somehow,   Some(&told),      None),
            (Heard::Somehow,   Some(&pending),   Some(Absent)),
            (Heard::Somehow,   Some(&retried),   Some(Failed)),
            (Heard::Somehow,   Some(&stopped),   Some(Stopped)),
            (Heard::Somehow,   None,             Some(Absent)),
        ];
        for (heard, last, want) in cases {
            assert_eq!(heard.end(last), want, "{heard:?} {last:?}");
        }
    }
}
