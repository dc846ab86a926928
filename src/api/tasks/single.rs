//! Tasks by id, and in lists.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};

use super::super::auth::{Caller, Role};
use super::super::problem::Problem;
use super::super::timers::{params, params::Query, single};
use super::model::{self, CancelAnswer, CancelOutcome, TaskFilter, TaskPage, TaskStatus, TaskView};
use super::{Answered, Failure, GRACE, LIST_MAX, LOOK_MAX, Page, Tasks, json, within};
use crate::engine::UnixMillis;
use crate::engine::task::id::TaskId;
use crate::engine::task::registry::is_name;
use crate::engine::timers;

/// Begins the path of one task.
const TASKS: &str = "/v1/tasks/";
/// Ends the path of a retry.
const RETRY: &str = ":retry";
/// Tasks on a page, if nothing is said.
pub(in crate::api) const LIMIT: usize = 100;
/// The most.
pub(in crate::api) const LIMIT_MAX: usize = 1_000;

/// There is no such task, as far as this caller may know.
pub(in crate::api) fn nobody() -> Problem {
    let detail = "there is no task with this id: it was never created, or its history has run out";
    Problem::new(StatusCode::NOT_FOUND, "unknown_task", detail)
}

pub(super) fn id_of(uri: &Uri, end: &str) -> Result<TaskId, Problem> {
    let path = uri.path().strip_suffix(end).unwrap_or_default();
    let text = params::id_of_path(path, TASKS)?;
    TaskId::parse(&text).map_err(|error| Problem::bad("bad_id", "path.id", error.to_string()))
}

/// The task of an id, which a schedule has none of.
fn is_task(id: &TaskId) -> Result<(), Problem> {
    if id.as_schedule().is_some() { Err(nobody()) } else { Ok(()) }
}

/// The task, if this caller may know of it.
pub(super) async fn seen(tasks: &Tasks, caller: &Caller, id: &TaskId) -> Result<TaskView, Problem> {
    is_task(id)?;
    let task = within(LOOK_MAX, tasks.desk.get(id)).await??;
    match task {
        Some(task) if caller.sees(&task.project) => Ok(task),
        Some(_) => {
            // A look at nothing takes longer. So the time of the answer does not say that there is such a task.
            within(LOOK_MAX, tasks.desk.get(&id.absent_beside())).await??;
            Err(nobody())
        }
        None => Err(nobody()),
    }
}

/// A caller of some projects acts on their tasks only; one of all projects is not made to wait for a look.
pub(super) async fn is_of_caller(
    tasks: &Tasks,
    caller: &Caller,
    id: &TaskId,
) -> Result<(), Problem> {
    is_task(id)?;
    if caller.projects().is_some() {
        seen(tasks, caller, id).await?;
    }
    Ok(())
}

/// Shows a task with its attempts, and with its payload where that is asked for.
#[utoipa::path(
    get,
    path = "/v1/tasks/{id}", tag = "tasks", operation_id = "getTask",
    params(
        ("id" = String, Path, description = "The id of the task."),
        ("payload" = Option<String>, Query, description = "1: with what it sends, as long as that stands anywhere; 0 unless told."),
    ),
    responses(
        (status = 200, description = "The task as it is now", body = TaskView),
        (status = "4XX", description = "404: there is none", body = model::Problem),
        (status = 503, description = "Try again", body = model::Problem),
    ),
)]
pub(in crate::api) async fn get(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answered {
    let id = id_of(&uri, "")?;
    let mut query = Query::read(uri.query(), &["payload"])?;
    let with_payload = match query.text("payload")?.as_deref() {
        None | Some("0") => false,
        Some("1") => true,
        Some(other) => {
            let detail = format!("{other:?} is neither 0 nor 1");
            return Err(Problem::bad("wrong_type", "query.payload", detail));
        }
    };
    Ok(json(StatusCode::OK, look(&tasks, &caller, &id, with_payload).await?))
}

/// A task with its attempts, and with its payload where that is asked for.
pub(in crate::api) async fn look(
    tasks: &Tasks,
    caller: &Caller,
    id: &TaskId,
    with_payload: bool,
) -> Result<TaskView, Problem> {
    tasks.desk.in_force()?;
    let mut task = seen(tasks, caller, id).await?;
    if with_payload {
        task.payload = within(LIST_MAX, tasks.desk.payload(id)).await??;
    }
    Ok(task)
}

/// Lists tasks in the order of their due times, without their attempts.
#[utoipa::path(
    get,
    path = "/v1/tasks", tag = "tasks", operation_id = "listTasks",
    params(
        ("project" = Option<String>, Query, description = "Only those of this project."),
        ("group" = Option<String>, Query, description = "Only those of this group."),
        ("status" = Option<TaskStatus>, Query, description = "Only those with this status."),
        ("type" = Option<String>, Query, description = "Only those of this type: http, kafka or grpc."),
        ("due_before" = Option<String>, Query, description = "Only those due before: RFC 3339 with a zone, or epoch milliseconds."),
        ("limit" = Option<u32>, Query, description = "At most so many, from 1 to 1000; 100 unless told."),
        ("page" = Option<String>, Query, description = "The next of the page before, with the same filters."),
    ),
    responses(
        (status = 200, description = "A page; go on while there is a next", body = TaskPage),
        (status = "4XX", description = "The request is wrong", body = model::Problem),
        (status = 503, description = "Try again", body = model::Problem),
    ),
)]
pub(in crate::api) async fn list(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answered {
    const KNOWN: [&str; 7] = ["project", "group", "status", "type", "due_before", "limit", "page"];
    let mut query = Query::read(uri.query(), &KNOWN)?;
    let project = word(&mut query, "project")?;
    let filter = TaskFilter {
        projects: None,
        group: word(&mut query, "group")?,
        status: query.text("status")?.map(|text| status(&text)).transpose()?,
        task_type: query.text("type")?.map(task_type).transpose()?,
        due_before: query
            .text("due_before")?
            .map(|text| params::moment(&text.into(), "query.due_before"))
            .transpose()?,
        page: query.text("page")?,
        limit: query.text("limit")?.map_or(Ok(LIMIT), |text| limit(&text, LIMIT_MAX))?,
    };
    Ok(json(StatusCode::OK, page(&tasks, &caller, project, filter).await?))
}

/// A page of the tasks of this project, or of all that the caller may know of.
pub(in crate::api) async fn page(
    tasks: &Tasks,
    caller: &Caller,
    project: Option<String>,
    filter: TaskFilter,
) -> Result<TaskPage, Problem> {
    let projects = projects(caller, project)?;
    tasks.desk.in_force()?;
    Ok(within(LIST_MAX, tasks.desk.list(&TaskFilter { projects, ..filter })).await??)
}

/// This project, or all that the caller may know of; `None`: any.
fn projects(caller: &Caller, project: Option<String>) -> Result<Option<BTreeSet<String>>, Problem> {
    let Some(project) = project else { return Ok(caller.projects().cloned()) };
    caller.may_name(&project)?;
    Ok(Some([project].into()))
}

/// Which schedules or runs are wanted.
pub(in crate::api) struct Asked {
    pub(in crate::api) project: Option<String>,
    pub(in crate::api) group: Option<String>,
    pub(in crate::api) limit: usize,
    pub(in crate::api) page: Option<String>,
}

impl Asked {
    /// Takes what says it from a query.
    pub(in crate::api) fn read(query: &mut Query) -> Result<Self, Problem> {
        Ok(Self {
            project: word(query, "project")?,
            group: word(query, "group")?,
            limit: query.text("limit")?.map_or(Ok(LIMIT), |text| limit(&text, LIMIT_MAX))?,
            page: query.text("page")?,
        })
    }
}

/// A page of what is kept of the schedules, or of the runs, that the caller may know of.
pub(in crate::api) async fn records(
    tasks: &Tasks,
    caller: &Caller,
    (of_type, now): (&str, UnixMillis),
    Asked { project, group, limit, page }: Asked,
) -> Result<Page, Problem> {
    let projects = projects(caller, project)?;
    tasks.desk.in_force()?;
    let filter = timers::TaskFilter {
        projects,
        group,
        status: None,
        of_type: Some(of_type.to_owned()),
        due_before: None,
        now,
    };
    Ok(within(LIST_MAX, tasks.desk.records(&filter, page.as_deref(), limit)).await??)
}

/// A name of a project or a group.
pub(in crate::api) fn word(query: &mut Query, name: &str) -> Result<Option<String>, Problem> {
    let text = query.text(name)?;
    if text.as_deref().is_some_and(|text| !is_name(text)) {
        let detail = "want 1 to 64 of a-z 0-9 . _ -, not . or ..";
        return Err(Problem::bad("bad_name", format!("query.{name}"), detail));
    }
    Ok(text)
}

fn status(text: &str) -> Result<TaskStatus, Problem> {
    let found = TaskStatus::ALL.into_iter().find(|status| status.as_str() == text);
    found.ok_or_else(|| {
        let all = TaskStatus::ALL.map(TaskStatus::as_str).join(", ");
        Problem::bad(
            "bad_state",
            "query.status",
            format!("{text:?} is no status; want one of {all}"),
        )
    })
}

fn task_type(text: String) -> Result<String, Problem> {
    if ["http", "kafka", "grpc"].contains(&text.as_str()) {
        return Ok(text);
    }
    let detail = format!("{text:?} is no type; want http, kafka or grpc");
    Err(Problem::bad("bad_type", "query.type", detail))
}

/// How many are wanted on a page.
pub(in crate::api) fn limit(text: &str, max: usize) -> Result<usize, Problem> {
    let limit = text.parse().ok().filter(|limit| (1..=max).contains(limit));
    limit.ok_or_else(|| {
        Problem::bad("bad_limit", "query.limit", format!("want an integer from 1 to {max}"))
    })
}

/// Cancels a task, and says what became of it.
#[utoipa::path(
    delete,
    path = "/v1/tasks/{id}", tag = "tasks", operation_id = "cancelTask",
    params(
        ("id" = String, Path, description = "The id of the task."),
        ("wait" = Option<String>, Query, description = "How long to wait for what becomes of it, with a unit; 5s unless told, at most 1m."),
    ),
    responses(
        (status = 200, description = "It is decided", body = CancelAnswer),
        (status = 202, description = "It is written, and not decided within the wait", body = CancelAnswer),
        (status = "4XX", description = "404: there is none", body = model::Problem),
        (status = 503, description = "Try again", body = model::Problem),
    ),
)]
pub(in crate::api) async fn cancel(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answered {
    let id = id_of(&uri, "")?;
    let mut query = Query::read(uri.query(), &["wait"])?;
    let wait = single::wait(query.text("wait")?, "query.wait")?;
    let answer = stop(&tasks, &caller, &id, wait).await?;
    let is_pending = answer.outcome == CancelOutcome::Pending;
    Ok(json(if is_pending { StatusCode::ACCEPTED } else { StatusCode::OK }, answer))
}

/// Cancels a task, and waits so long for what becomes of that.
pub(in crate::api) async fn stop(
    tasks: &Tasks,
    caller: &Caller,
    id: &TaskId,
    wait: Duration,
) -> Result<CancelAnswer, Problem> {
    caller.may(Role::Write)?;
    tasks.desk.in_force()?;
    is_of_caller(tasks, caller, id).await?;
    Ok(end(tasks, id, wait).await?)
}

/// Cancels what is pending of an id, and waits so long for what becomes of that.
pub(in crate::api) async fn end(
    tasks: &Tasks,
    id: &TaskId,
    wait: Duration,
) -> Result<CancelAnswer, Failure> {
    match within(wait + GRACE, tasks.desk.cancel(id, wait)).await {
        Ok(answer) => Ok(answer?),
        // Written or not, to ask again is safe.
        Err(Failure::Unknown(_)) => Ok(CancelAnswer {
            task_id: id.to_string(),
            outcome: CancelOutcome::Pending,
            again: Some(format!("{TASKS}{id}")),
        }),
        Err(failure) => Err(failure),
    }
}

/// What is behind a colon in the path of one task.
pub(in crate::api) async fn act(
    tasks: State<Tasks>,
    caller: Extension<Caller>,
    method: Method,
    uri: Uri,
) -> Answered {
    if uri.path().ends_with(RETRY) {
        return retry(tasks, caller, uri).await;
    }
    Err(super::no_such_task_method(method, uri).await)
}

/// Makes a task due now that waits for its time, or that has failed.
#[utoipa::path(
    post,
    path = "/v1/tasks/{id}:retry", tag = "tasks", operation_id = "retryTask",
    params(("id" = String, Path, description = "The id of the task.")),
    responses(
        (status = 200, description = "The task as it is now", body = TaskView),
        (status = 409, description = "It is in no state in which it can be retried (not_retryable), or its payload is gone (payload_gone)", body = model::Problem),
        (status = "4XX", description = "404: there is none", body = model::Problem),
        (status = 503, description = "Try again", body = model::Problem),
    ),
)]
pub(in crate::api) async fn retry(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answered {
    let id = id_of(&uri, RETRY)?;
    Query::read(uri.query(), &[])?;
    Ok(json(StatusCode::OK, again(&tasks, &caller, &id).await?))
}

/// Makes a task due now; gives it back as it is then.
pub(in crate::api) async fn again(
    tasks: &Tasks,
    caller: &Caller,
    id: &TaskId,
) -> Result<TaskView, Problem> {
    caller.may(Role::Write)?;
    tasks.desk.in_force()?;
    is_of_caller(tasks, caller, id).await?;
    Ok(within(LIST_MAX, tasks.desk.retry(id)).await??)
}
