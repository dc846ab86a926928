//! `/v1/runs`: so many shards of one task, which count as one. They are created, looked at, listed, cancelled and made anew here.
//!
//! A run is a task, and is created and cancelled as one. How far its shards are, its own lane knows; what each of them does, the lane of
//! that shard. `docs/runs.md` is the manual.
//!
//! # Invariants
//! 1. A request that is wrong is refused, and the answer names every field that is wrong, those of the task too. Nothing is created then.
//! 2. A run of a project that the caller's token does not cover is as if it were not there, and so is a task that is no run.
//! 3. However many shards a run has, at most [`LOOKS_MAX`](shards::LOOKS_MAX) of them are looked up at once for one request.

pub mod model;
pub(super) mod shards;

#[cfg(test)]
pub(super) mod tests;

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::IntoResponse as _;
use axum::routing::{MethodRouter, get};
use axum::{Extension, Json, Router};

use super::auth::{Caller, Role};
use super::guard::Came;
use super::problem::Problem;
use super::serve::Front;
use super::tasks::model::{CancelOutcome, Created, Problem as ProblemBody};
use super::tasks::single::{self, Asked};
use super::tasks::{
    self, Answered, Failure, LIST_MAX, LOOK_MAX, Tasks, create, pending_of, take_room, time, within,
};
use super::timers::params::{self, Query};
use super::timers::{no_such_method, single as timers};
use crate::engine::UnixMillis;
use crate::engine::task::id::TaskId;
use crate::engine::task::request::TaskType;
use crate::engine::task::spec::{RUN, Spec};
use crate::engine::timers::{RunStatus, ShardState, TaskRecord, group_of};
use model::{RunCancelled, RunCreated, RunPage, RunRequest, RunSettings, RunView, ShardCounts};

use shards::list_shards;

/// Begins the path of one run.
const RUNS: &str = "/v1/runs/";
/// Ends the path of a retry.
const RETRY: &str = ":retry";

/// The routes, as the document at `/openapi.json` has to have them; `:retry` is a part of the last segment.
pub(super) fn routes() -> [(&'static str, MethodRouter<Tasks>); 3] {
    [
        ("/v1/runs", get(list_runs).post(create_run)),
        ("/v1/runs/{id}", get(get_run).delete(cancel_run).post(act)),
        ("/v1/runs/{id}/shards", get(list_shards)),
    ]
}

pub(super) fn router(tasks: Tasks, front: &Front) -> Router {
    let mut router = Router::new();
    for (path, methods) in routes() {
        router = router.route(path, methods);
    }
    tasks::finish(router, tasks, front)
}

/// There is no such run, as far as this caller may know.
pub(super) fn nobody() -> Problem {
    let detail = "there is no run with this id: it was never created, or its history has run out";
    Problem::new(StatusCode::NOT_FOUND, "unknown_run", detail)
}

/// Why there is no answer about a run.
fn of_run(failure: Failure) -> Problem {
    if failure == Failure::NoTask { nobody() } else { failure.into() }
}

/// The run of a path that ends with this.
fn id_of(uri: &Uri, end: &str) -> Result<TaskId, Problem> {
    let path = uri.path().strip_suffix(end).unwrap_or_default();
    let text = params::id_of_path(path, RUNS)?;
    TaskId::parse(&text).map_err(|error| Problem::bad("bad_id", "path.id", error.to_string()))
}

/// What is kept of a run, and what it is.
pub(in crate::api) struct Kept {
    record: TaskRecord,
    /// One that was refused when it came has none.
    spec: Option<Spec>,
}

impl Kept {
    /// `None`: it is no run.
    fn of(record: TaskRecord) -> Option<Self> {
        if record.timer.type_of_task() != RUN {
            return None;
        }
        let spec = record.spec.as_deref().and_then(|spec| Spec::parse(spec.as_bytes()).ok());
        Some(Self { record, spec: spec.filter(|spec| spec.run().is_some()) })
    }

    /// Its project and its group.
    fn names(&self) -> (&str, &str) {
        let of_label = group_of(self.record.timer.label.as_deref()).unwrap_or_default();
        self.spec.as_ref().map_or(of_label, |spec| (spec.project(), spec.group()))
    }

    fn status(&self) -> RunStatus {
        RunStatus::of(self.record.timer.state, self.record.run.as_deref())
    }

    /// Where a shard stands. One that had not ended when its run did was cancelled with it, and counts as failed.
    fn shard_state(&self, index: u32) -> ShardState {
        let run = self.record.run.as_deref();
        match run.map_or(ShardState::ToCreate, |run| run.state(index)) {
            ShardState::Waiting | ShardState::Executing | ShardState::Again
                if self.record.timer.state.is_final() =>
            {
                ShardState::Failed
            }
            state => state,
        }
    }

    /// How many of its shards stand where, as [`Self::shard_state`] has it.
    fn counts(&self) -> ShardCounts {
        let counts =
            self.record.run.as_deref().map(|run| match self.record.timer.state.is_final() {
                true => run.counts_at_end(),
                false => run.counts(),
            });
        counts.map(ShardCounts::from).unwrap_or_default()
    }

    /// Its grid: one character a shard.
    fn grid(&self) -> Option<String> {
        let run = self.record.run.as_deref()?;
        Some((0..run.shards()).map(|index| self.shard_state(index).as_char()).collect())
    }

    /// What it is, where that is kept.
    pub(super) const fn spec(&self) -> Option<&Spec> {
        self.spec.as_ref()
    }

    /// What it is, with its defaults.
    fn settings(&self) -> RunSettings {
        // What is written is what these fields are called.
        let said = self.spec.as_ref().and_then(|spec| serde_json::from_str(&spec.to_json()).ok());
        said.unwrap_or_else(|| {
            let (project, group) = self.names();
            let (project, group) = (project.to_owned(), group.to_owned());
            RunSettings { project, group, ..RunSettings::default() }
        })
    }

    /// The run as callers see it in lists.
    pub(super) fn brief(&self) -> RunView {
        let TaskRecord { id, timer, run, .. } = &self.record;
        let (run, status) = (run.as_deref(), self.status());
        RunView {
            run_id: id.to_string(),
            run_status: status,
            version: timer.version.to_string(),
            trigger_at: timer.due.0,
            nominal_at: id.nominal().map(|at| at.0),
            created_at: timer.version.first_appended.0,
            deadline_at: run.map(|run| run.until().0),
            ended_at: status.is_final().then(|| timer.shown_since().0),
            code: timer.code.map(|code| code.as_str().to_owned()),
            counts: self.counts(),
            grid: None,
            members: None,
            settings: self.settings(),
        }
    }

    /// The same with the state of each shard.
    pub(super) fn view(&self) -> RunView {
        RunView { grid: self.grid(), ..self.brief() }
    }

    /// The same with how many are there to execute its shards.
    pub(super) async fn whole(&self, tasks: &Tasks) -> RunView {
        let mut view = self.view();
        if let Some(spec) = self.spec().filter(|_| !view.run_status.is_final()) {
            view.members = tasks.members_for(spec).await;
        }
        view
    }
}

/// The run, if this caller may know of it.
pub(super) async fn seen(tasks: &Tasks, caller: &Caller, id: &TaskId) -> Result<Kept, Problem> {
    tasks.desk.in_force()?;
    let found = within(LOOK_MAX, tasks.desk.kept(id)).await??;
    let is_there = found.is_some();
    match found.and_then(Kept::of).filter(|kept| caller.sees(kept.names().0)) {
        Some(kept) => Ok(kept),
        None => {
            if is_there {
                // A look at nothing takes longer. So the time of the answer does not say that something has this id.
                within(LOOK_MAX, tasks.desk.kept(&id.absent_beside())).await??;
            }
            Err(nobody())
        }
    }
}

/// Creates a run: when it is due, its shards are created, each a task of its own.
#[utoipa::path(
    post,
    path = "/v1/runs", tag = "runs", operation_id = "createRun",
    request_body = RunRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same as request_id.")),
    responses(
        (status = 201, description = "It is written; the same request id again has the same run_id", body = RunCreated),
        (status = 429, description = "The project has created, or has with these shards, as many tasks as it may; Retry-After says when to come back", body = ProblemBody),
        (status = "4XX", description = "Nothing was created", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn create_run(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    Extension(came): Extension<Came>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    let who = (came, &caller);
    let created = create::asked_for(TaskType::Run, &tasks, who, &headers, body).await?;
    let Created { task_id: run_id, trigger_at } = created;
    Ok(create::at(format!("{RUNS}{run_id}"), RunCreated { run_id, trigger_at }))
}

/// Shows a run, and how far each of its shards is.
#[utoipa::path(
    get,
    path = "/v1/runs/{id}", tag = "runs", operation_id = "getRun",
    params(("id" = String, Path, description = "The id of the run.")),
    responses(
        (status = 200, description = "The run as it is now", body = RunView),
        (status = "4XX", description = "404: there is none", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn get_run(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answered {
    let id = id_of(&uri, "")?;
    Query::read(uri.query(), &[])?;
    let kept = seen(&tasks, &caller, &id).await?;
    Ok(Json(kept.whole(&tasks).await).into_response())
}

/// Lists runs in the order of their due times, without the state of each shard.
#[utoipa::path(
    get,
    path = "/v1/runs", tag = "runs", operation_id = "listRuns",
    params(
        ("project" = Option<String>, Query, description = "Only those of this project."),
        ("group" = Option<String>, Query, description = "Only those of this group."),
        ("status" = Option<String>, Query, description = "Only those with this run_status."),
        ("limit" = Option<u32>, Query, description = "At most so many, from 1 to 1000; 100 unless told. A page may have fewer though there is a next."),
        ("page" = Option<String>, Query, description = "The next of the page before, with the same filters."),
    ),
    responses(
        (status = 200, description = "A page; go on while there is a next", body = RunPage),
        (status = "4XX", description = "The request is wrong", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn list_runs(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    Extension(came): Extension<Came>,
    uri: Uri,
) -> Answered {
    let mut query = Query::read(uri.query(), &["project", "group", "status", "limit", "page"])?;
    let status = query.text("status")?.map(|text| status(&text)).transpose()?;
    let asked = Asked::read(&mut query)?;
    let (all, next) = listed(&tasks, &caller, (time(came)?, status), asked).await?;
    let runs = all.iter().map(Kept::brief).collect();
    Ok(Json(RunPage { runs, next }).into_response())
}

fn status(text: &str) -> Result<RunStatus, Problem> {
    let found = RunStatus::ALL.into_iter().find(|status| status.as_str() == text);
    found.ok_or_else(|| {
        let all = RunStatus::ALL.map(RunStatus::as_str).join(", ");
        let detail = format!("{text:?} is no status; want one of {all}");
        Problem::bad("bad_state", "query.status", detail)
    })
}

/// A page of the runs that the caller may know of, and where to go on.
pub(super) async fn listed(
    tasks: &Tasks,
    caller: &Caller,
    (now, status): (UnixMillis, Option<RunStatus>),
    asked: Asked,
) -> Result<(Vec<Kept>, Option<String>), Problem> {
    let (records, next) = single::records(tasks, caller, (RUN, now), asked).await?;
    let all = records.into_iter().filter_map(Kept::of);
    // The status follows from the shards, which the index does not look at.
    let all = all.filter(|kept| status.is_none_or(|status| kept.status() == status));
    Ok((all.collect(), next))
}

/// Cancels a run, and with it its shards that have not ended; says what became of it.
#[utoipa::path(
    delete,
    path = "/v1/runs/{id}", tag = "runs", operation_id = "cancelRun",
    params(
        ("id" = String, Path, description = "The id of the run."),
        ("wait" = Option<String>, Query, description = "How long to wait for what becomes of it, with a unit; 5s unless told, at most 1m."),
    ),
    responses(
        (status = 200, description = "It is decided", body = RunCancelled),
        (status = 202, description = "It is written, and not decided within the wait", body = RunCancelled),
        (status = "4XX", description = "404: there is none", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn cancel_run(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answered {
    let id = id_of(&uri, "")?;
    let mut query = Query::read(uri.query(), &["wait"])?;
    let wait = timers::wait(query.text("wait")?, "query.wait")?;
    let answer = cancel(&tasks, &caller, &id, wait).await?;
    let is_pending = answer.outcome == CancelOutcome::Pending;
    let status = if is_pending { StatusCode::ACCEPTED } else { StatusCode::OK };
    Ok((status, Json(answer)).into_response())
}

/// Cancels a run, and waits so long for what becomes of that.
pub(in crate::api) async fn cancel(
    tasks: &Tasks,
    caller: &Caller,
    id: &TaskId,
    wait: Duration,
) -> Result<RunCancelled, Problem> {
    caller.may(Role::Write)?;
    seen(tasks, caller, id).await?;
    let answer = single::end(tasks, id, wait).await.map_err(of_run)?;
    let is_pending = answer.outcome == CancelOutcome::Pending;
    Ok(RunCancelled {
        run_id: answer.task_id,
        outcome: answer.outcome,
        again: is_pending.then(|| format!("{RUNS}{id}")),
    })
}

/// What is behind a colon in the path of one run.
pub(in crate::api) async fn act(
    tasks: State<Tasks>,
    caller: Extension<Caller>,
    uri: Uri,
) -> Answered {
    if uri.path().ends_with(RETRY) {
        return retry_run(tasks, caller, uri).await;
    }
    Err(no_such_method(uri).await)
}

/// Makes a run anew that has failed or expired: as another version, with shards of its own.
#[utoipa::path(
    post,
    path = "/v1/runs/{id}:retry", tag = "runs", operation_id = "retryRun",
    params(("id" = String, Path, description = "The id of the run.")),
    responses(
        (status = 200, description = "The run as it is now", body = RunView),
        (status = 409, description = "It has not ended, is finished or was cancelled (not_retryable)", body = ProblemBody),
        (status = 429, description = "The project has created, or has with these shards, as many tasks as it may; Retry-After says when to come back", body = ProblemBody),
        (status = "4XX", description = "404: there is none", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn retry_run(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answered {
    let id = id_of(&uri, RETRY)?;
    Query::read(uri.query(), &[])?;
    Ok(Json(again(&tasks, &caller, &id).await?.view()).into_response())
}

/// Makes a run anew; gives it back as it is then.
pub(in crate::api) async fn again(
    tasks: &Tasks,
    caller: &Caller,
    id: &TaskId,
) -> Result<Kept, Problem> {
    caller.may(Role::Write)?;
    let kept = seen(tasks, caller, id).await?;
    if let Some(detail) = not_retryable(kept.status()) {
        return Err(Failure::NotRetryable(detail.to_owned()).into());
    }
    // One that was refused when it came is not made anew.
    if let Some(spec) = kept.spec() {
        // All its shards are created once more, as if it was a new one.
        take_room(tasks, spec.project(), (1, pending_of(spec)))?;
    }
    within(LIST_MAX, tasks.desk.retry(id)).await?.map_err(of_run)?;
    seen(tasks, caller, id).await
}

/// Why a run that goes on is not made anew.
pub const NOT_ENDED: &str =
    "it has not ended; wait for its end, or retry the task of a shard that has failed";

/// Why a run with this status is not made anew.
const fn not_retryable(status: RunStatus) -> Option<&'static str> {
    match status {
        RunStatus::Failed | RunStatus::Expired => None,
        RunStatus::Finished => Some("it is finished; to do it once more, create another run"),
        RunStatus::Cancelled => Some("it was cancelled; create another run"),
        RunStatus::Waiting
        | RunStatus::Triggered
        | RunStatus::Executing
        | RunStatus::Locked
        | RunStatus::ReExecuting => Some(NOT_ENDED),
    }
}
