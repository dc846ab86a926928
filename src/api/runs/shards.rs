//! The shards of one run, page by page: what its lane knows of each, and what the lane of its task says.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::IntoResponse as _;
use axum::{Extension, Json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::super::auth::Caller;
use super::super::problem::Problem;
use super::super::tasks::model::{Problem as ProblemBody, TaskView};
use super::super::tasks::{Answered, Failure, LIST_MAX, Tasks, single, within};
use super::super::timers::params::Query;
use super::model::{ShardPage, ShardState, ShardView};
use super::{Kept, id_of, seen};
use crate::engine::task::id::TaskId;

/// Shards on a page, and also if nothing is said.
pub(in crate::api) const PAGE_MAX: usize = 100;
/// Tasks that are looked up at once for one page.
pub(super) const LOOKS_MAX: usize = 16;

/// Which shards of a run are wanted.
pub(in crate::api) struct AskedShards {
    pub(in crate::api) state: Option<ShardState>,
    pub(in crate::api) limit: usize,
    /// The first one that may be meant.
    pub(in crate::api) from: u32,
}

/// Where a page goes on: the number of a shard.
pub(in crate::api) fn from(page: Option<&str>) -> Result<u32, Failure> {
    let none = || Failure::BadPage("is none of this list".to_owned());
    page.map_or(Ok(0), |page| page.parse().map_err(|_| none()))
}

/// Shows the shards of a run, each with what its task does.
#[utoipa::path(
    get,
    path = "/v1/runs/{id}/shards", tag = "runs", operation_id = "listShards",
    params(
        ("id" = String, Path, description = "The id of the run."),
        ("state" = Option<ShardState>, Query, description = "Only those that stand there."),
        ("limit" = Option<u32>, Query, description = "At most so many, from 1 to 100; 100 unless told."),
        ("page" = Option<String>, Query, description = "The next of the page before."),
    ),
    responses(
        (status = 200, description = "A page; go on while there is a next", body = ShardPage),
        (status = "4XX", description = "404: there is no such run", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn list_shards(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answered {
    let id = id_of(&uri, "/shards")?;
    let mut query = Query::read(uri.query(), &["state", "limit", "page"])?;
    let asked = AskedShards {
        state: query.text("state")?.map(|text| state(&text)).transpose()?,
        limit: query.text("limit")?.map_or(Ok(PAGE_MAX), |text| single::limit(&text, PAGE_MAX))?,
        from: from(query.text("page")?.as_deref())?,
    };
    let kept = seen(&tasks, &caller, &id).await?;
    Ok(Json(shards(&tasks, &kept, &asked).await?).into_response())
}

fn state(text: &str) -> Result<ShardState, Problem> {
    let found = ShardState::ALL.into_iter().find(|state| state.as_str() == text);
    found.ok_or_else(|| {
        let all = ShardState::ALL.map(ShardState::as_str).join(", ");
        let detail = format!("{text:?} is no state; want one of {all}");
        Problem::bad("bad_state", "query.state", detail)
    })
}

/// A page of the shards of a run.
pub(in crate::api) async fn shards(
    tasks: &Tasks,
    kept: &Kept,
    asked: &AskedShards,
) -> Result<ShardPage, Problem> {
    let run = kept.record.run.as_deref();
    let count = kept.spec().and_then(|spec| spec.run()).map_or(0, |run| run.shards());
    let count = run.map_or(count, |run| run.shards());
    let state_of = |index: u32| ShardState::from(kept.shard_state(index));
    let is_meant = |index: &u32| asked.state.is_none_or(|state| state == state_of(*index));
    let mut meant = (asked.from..count).filter(is_meant);
    let version = kept.record.timer.version;
    let page: Vec<(u32, TaskId, ShardState)> = meant
        .by_ref()
        .take(asked.limit)
        .map(|index| {
            let id = kept.record.id.shard((version.first_appended, version.offset), index);
            (index, id, state_of(index))
        })
        .collect();
    let next = meant.next().map(|index| index.to_string());
    let found = within(LIST_MAX, Box::pin(look_up(tasks, &page))).await??;
    let all = page.into_iter().zip(found);
    let shards = all.map(|((index, id, state), task)| view(index, &id, state, task)).collect();
    Ok(ShardPage { shards, next })
}

/// The tasks of shards, in their order; `None`: it is not there yet, or not kept any more.
async fn look_up(
    tasks: &Tasks,
    page: &[(u32, TaskId, ShardState)],
) -> Result<Vec<Option<TaskView>>, Failure> {
    let mut found: Vec<Option<TaskView>> = page.iter().map(|_| None).collect();
    let (places, mut asking) = (Arc::new(Semaphore::new(LOOKS_MAX)), JoinSet::new());
    let created = page.iter().enumerate().filter(|(_, (.., state))| *state != ShardState::ToCreate);
    for (at, (_, id, _)) in created {
        let (desk, places, id) = (Arc::clone(&tasks.desk), Arc::clone(&places), id.clone());
        asking.spawn(async move {
            // Nobody closes it.
            let _place = places.acquire().await;
            (at, desk.get(&id).await)
        });
    }
    while let Some(asked) = asking.join_next().await {
        let (at, task) = asked.map_err(|error| {
            tracing::error!(%error, "a look-up of a shard panicked");
            Failure::Unknown("internal error; see the log".to_owned())
        })?;
        if let Some(place) = found.get_mut(at) {
            *place = task?;
        }
    }
    Ok(found)
}

fn view(index: u32, id: &TaskId, state: ShardState, task: Option<TaskView>) -> ShardView {
    let mut of = ShardView {
        index,
        task_id: id.to_string(),
        task_status: state.status(),
        shard_state: state,
        worker: None,
        turn: 0,
        attempts_total: 0,
        started: None,
        ended: None,
        error: None,
        percent: None,
        cursor: None,
    };
    let Some(task) = task else { return of };
    (of.task_status, of.turn, of.attempts_total) =
        (task.task_status, task.turn, task.attempts_total);
    of.cursor = task.cursor;
    if let Some(last) = task.last {
        (of.worker, of.started, of.ended) = (last.worker, last.started, last.ended);
        (of.error, of.percent) = (last.error, last.percent);
    }
    // One that was refused has no attempt, and a status is no text.
    of.error = of.error.or(task.code);
    of
}
