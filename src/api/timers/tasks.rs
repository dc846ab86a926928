//! Asks the owners of lanes about tasks: this instance, or others as [`peer`](mod@super::peer) does it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout_at};

use super::super::gate::Kind;
use super::deadline::{self, Deadline};
use super::list::{ROUNDS_MAX, merged};
use super::model::{
    Cursor, PAGE_BYTES_MAX, Page, TaskCancel, TaskCounts, TaskFilter, TaskPayload, TaskRecord,
    TaskReport, TaskRetry, Timers, TimersError,
};
use super::peer::{Owners, PAUSE, PeerReply, PeerRequest, Peers, fault};
use super::token::{self, BadToken};
use crate::engine::UnixMillis;
use crate::engine::task::id::TaskId;
use crate::engine::task::result::TaskResult;

/// What an owner of lanes is asked about tasks. Only a retry and a report change anything.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum TaskQuestion {
    /// The task of this id, of the one lane.
    Find(TaskId),
    /// A page of all lanes.
    Page { filter: TaskFilter, after: Option<Cursor>, most: usize },
    /// How many tasks of these projects all lanes have, by where they stand.
    Count(BTreeSet<String>),
    /// What became of a cancel that stands in the one lane.
    Cancelled(String),
    /// Whether a change of a schedule that stands in the one lane was in force.
    Taken(String),
    /// The task of this id, of the one lane, is to be called now.
    Retry(TaskId),
    /// What the executor of the task of this id, of the one lane, says with this ticket.
    Report { id: TaskId, ticket: String, result: String },
    /// What the task of this id, of the one lane, sends.
    Payload(TaskId),
}

/// The answer to a [`TaskQuestion`] of the same kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum TaskReply {
    Found(Option<Box<TaskRecord>>),
    Page(Page<TaskRecord>),
    Counted(BTreeMap<String, TaskCounts>),
    Cancelled(TaskCancel),
    Taken(bool),
    Retried(TaskRetry),
    Reported(TaskReport),
    Payload(Option<Box<TaskPayload>>),
}

impl TaskQuestion {
    /// The kind of work that the answer costs.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Find(_) | Self::Taken(_) => Kind::Look,
            Self::Page { .. } | Self::Count(_) => Kind::Large,
            Self::Cancelled(_) | Self::Retry(_) | Self::Report { .. } => Kind::Wait,
            // It may have a megabyte, and takes as long as a search does.
            Self::Payload(_) => Kind::Large,
        }
    }

    /// Whether something is done for it.
    pub(super) fn is_change(&self) -> bool {
        matches!(self, Self::Retry(_) | Self::Report { .. })
    }
}

/// Answers a question about lanes that run here.
pub(super) async fn answer(
    timers: &dyn Timers,
    lanes: &[u16],
    what: &TaskQuestion,
    deadline: Deadline,
) -> Result<TaskReply, TimersError> {
    Ok(match what {
        TaskQuestion::Find(id) => TaskReply::Found(timers.task(id).await?.map(Box::new)),
        TaskQuestion::Page { filter, after, most } => {
            let mut page = Page::default();
            for lane in lanes {
                let of_lane = timers.tasks(*lane, filter, *after, *most).await?;
                let (timers, more) = merged(vec![page, of_lane], (*most, PAGE_BYTES_MAX));
                page = Page { timers, more };
            }
            TaskReply::Page(page)
        }
        TaskQuestion::Count(projects) => {
            TaskReply::Counted(timers.task_counts(lanes, projects).await?)
        }
        TaskQuestion::Cancelled(ticket) => {
            let lane = lanes.first().copied().unwrap_or_default();
            let answer = timers.task_cancel(lane, ticket, deadline.wait_left());
            // It may be decided, and the state that says how cannot be read.
            let by = deadline.request_times().by;
            let answer = timeout_at(by.into(), answer).await.unwrap_or(Ok(TaskCancel::Pending));
            TaskReply::Cancelled(answer?)
        }
        TaskQuestion::Taken(ticket) => {
            let lane = lanes.first().copied().unwrap_or_default();
            TaskReply::Taken(timers.schedule_taken(lane, ticket).await?)
        }
        TaskQuestion::Retry(id) => {
            TaskReply::Retried(timers.task_retry(id, deadline.request_times().by).await?)
        }
        TaskQuestion::Report { id, ticket, result } => {
            let by = deadline.request_times().by;
            TaskReply::Reported(timers.task_report(id, (ticket, result), by).await?)
        }
        TaskQuestion::Payload(id) => {
            let payload = timers.task_payload(id, deadline.request_times().by).await?;
            TaskReply::Payload(payload.map(Box::new))
        }
    })
}

/// Asks the owners of lanes about tasks.
#[derive(Clone)]
pub struct TaskOwners(Owners);

impl TaskOwners {
    /// `timers`: this instance. `peers`: how it asks others.
    #[must_use]
    pub fn new(timers: Arc<dyn Timers>, peers: Peers) -> Self {
        Self(Owners::new(timers, peers))
    }

    /// The task of an id, which is of this lane, with its attempts.
    ///
    /// # Errors
    /// See [`TimersError`].
    pub async fn find(&self, lane: u16, id: &TaskId) -> Result<Option<TaskRecord>, TimersError> {
        let deadline = Deadline::new(Instant::now(), deadline::LOOK);
        let what = PeerRequest::Task(TaskQuestion::Find(id.clone()));
        match self.0.one(lane, what, deadline).await? {
            PeerReply::Task(TaskReply::Found(task)) => Ok(task.map(|task| *task)),
            _ => Err(fault()),
        }
    }

    /// Whether a change of a schedule that was written to this lane was in force, as far as its owner remembers.
    ///
    /// # Errors
    /// See [`TimersError`].
    pub async fn taken(&self, lane: u16, ticket: String) -> Result<bool, TimersError> {
        let deadline = Deadline::new(Instant::now(), deadline::LOOK);
        let what = PeerRequest::Task(TaskQuestion::Taken(ticket));
        match self.0.one(lane, what, deadline).await? {
            PeerReply::Task(TaskReply::Taken(is_taken)) => Ok(is_taken),
            _ => Err(fault()),
        }
    }

    /// Has the task of an id, which is of this lane, called now, if it waits for its time or has failed.
    ///
    /// # Errors
    /// See [`TimersError`]. To ask again is safe.
    pub async fn retry(&self, lane: u16, id: &TaskId) -> Result<TaskRetry, TimersError> {
        let deadline = Deadline::new(Instant::now(), deadline::SEARCH);
        let what = PeerRequest::Task(TaskQuestion::Retry(id.clone()));
        match self.0.one(lane, what, deadline).await? {
            PeerReply::Task(TaskReply::Retried(end)) => Ok(end),
            _ => Err(fault()),
        }
    }

    /// Hands what an executor says to the owner of this lane, and hears what becomes of that.
    ///
    /// # Errors
    /// See [`TimersError`]. To report again is safe.
    pub async fn report(
        &self,
        lane: u16,
        id: &TaskId,
        ticket: &str,
        result: &TaskResult,
    ) -> Result<TaskReport, TimersError> {
        // A failure needs its payload, which is searched for.
        let most = if result.outcome.carries_payload() { deadline::SEARCH } else { deadline::LOOK };
        let deadline = Deadline::new(Instant::now(), most);
        let (id, ticket, result) = (id.clone(), ticket.to_owned(), result.to_json());
        let what = PeerRequest::Task(TaskQuestion::Report { id, ticket, result });
        match self.0.one(lane, what, deadline).await? {
            PeerReply::Task(TaskReply::Reported(report)) => Ok(report),
            _ => Err(fault()),
        }
    }

    /// What the task of an id, which is of this lane, sends; `None`: that is not there any more.
    ///
    /// # Errors
    /// See [`TimersError`]; [`TimersError::NotFound`]: it was not found in time.
    pub async fn payload(
        &self,
        lane: u16,
        id: &TaskId,
    ) -> Result<Option<TaskPayload>, TimersError> {
        let deadline = Deadline::new(Instant::now(), deadline::SEARCH);
        let what = PeerRequest::Task(TaskQuestion::Payload(id.clone()));
        match self.0.one(lane, what, deadline).await? {
            PeerReply::Task(TaskReply::Payload(payload)) => Ok(payload.map(|payload| *payload)),
            _ => Err(fault()),
        }
    }

    /// Tasks by due time behind a place, without their attempts, and where to go on; `None`: there are no more. At most
    /// `limit`, none behind the one that fills [`PAGE_BYTES_MAX`], and perhaps fewer though there are more.
    ///
    /// # Errors
    /// See [`TimersError`].
    pub async fn page(
        &self,
        filter: &TaskFilter,
        mut after: Option<Cursor>,
        limit: usize,
    ) -> Result<(Vec<TaskRecord>, Option<Cursor>), TimersError> {
        let deadline = Deadline::new(Instant::now(), deadline::ALL_LANES);
        let (mut all, mut bytes) = (Vec::new(), PAGE_BYTES_MAX);
        for _ in 0..ROUNDS_MAX {
            let most = limit.saturating_sub(all.len());
            let what = TaskQuestion::Page { filter: filter.clone(), after, most };
            let mut pages = Vec::new();
            for reply in self.0.all(PeerRequest::Task(what), deadline).await? {
                let PeerReply::Task(TaskReply::Page(page)) = reply else { return Err(fault()) };
                pages.push(page);
            }
            let (tasks, more) = merged(pages, (most, bytes));
            bytes = bytes.saturating_sub(tasks.iter().map(TaskRecord::bytes).sum());
            all.extend(tasks);
            if more.is_none() || all.len() >= limit || bytes == 0 {
                return Ok((all, more));
            }
            after = more;
        }
        Ok((all, after))
    }

    /// How many tasks of these projects there are, by where they stand. A project without any is not told.
    ///
    /// # Errors
    /// See [`TimersError`].
    pub async fn counts(
        &self,
        projects: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, TaskCounts>, TimersError> {
        let deadline = Deadline::new(Instant::now(), deadline::LOOK);
        let mut all: BTreeMap<String, TaskCounts> = BTreeMap::new();
        let what = PeerRequest::Task(TaskQuestion::Count(projects.clone()));
        for reply in self.0.all(what, deadline).await? {
            let PeerReply::Task(TaskReply::Counted(counts)) = reply else { return Err(fault()) };
            for (project, counts) in counts {
                all.entry(project).or_default().add(counts);
            }
        }
        Ok(all)
    }

    /// What became of a cancel that is written to this lane, waiting for at most so long, by the owner that the lane has by
    /// then.
    ///
    /// # Errors
    /// See [`TimersError`]; the cancel stands.
    pub async fn cancelled(
        &self,
        lane: u16,
        ticket: String,
        wait: Duration,
    ) -> Result<TaskCancel, TimersError> {
        let deadline = Deadline::new(Instant::now(), wait);
        loop {
            let what = PeerRequest::Task(TaskQuestion::Cancelled(ticket.clone()));
            match self.0.one(lane, what, deadline.of_turn()).await {
                Ok(PeerReply::Task(TaskReply::Cancelled(TaskCancel::Pending)))
                | Err(TimersError::Moving(_) | TimersError::Away(_)) => {}
                Ok(PeerReply::Task(TaskReply::Cancelled(end))) => return Ok(end),
                Ok(_) => return Err(fault()),
                Err(error) => return Err(error),
            }
            if deadline.is_wait_over() {
                return Ok(TaskCancel::Pending);
            }
            sleep(PAUSE.min(deadline.wait_left())).await;
        }
    }
}

/// The token of the page behind a place; it goes with its filter.
#[must_use]
pub fn page_token(cursor: Cursor, filter: &TaskFilter) -> String {
    token::of_page(cursor, &timeless(filter))
}

/// The place of the token of a page.
///
/// # Errors
/// [`BadToken::Broken`], [`BadToken::OtherFilter`].
pub fn place_of(token: &str, filter: &TaskFilter) -> Result<Cursor, BadToken> {
    token::page(token, &timeless(filter))
}

/// The same filter at any time.
fn timeless(filter: &TaskFilter) -> TaskFilter {
    TaskFilter { now: UnixMillis(0), ..filter.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_a_page_goes_with_its_filter_at_any_time() {
        let cursor = Cursor { due: 7, order: [3; 16] };
        let filter = TaskFilter { group: Some("g".to_owned()), ..TaskFilter::default() };
        let token = page_token(cursor, &filter);
        let later = TaskFilter { now: UnixMillis(9), ..filter.clone() };
        assert_eq!(place_of(&token, &later), Ok(cursor));
        let other = TaskFilter { group: None, ..filter };
        assert_eq!(place_of(&token, &other), Err(BadToken::OtherFilter));
        assert_eq!(place_of("x", &other), Err(BadToken::Broken));
    }
}
