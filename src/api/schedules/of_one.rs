//! One schedule: made, looked at, changed, paused and deleted.

use axum::Extension;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};

use super::super::auth::{Caller, Role};
use super::super::guard::Came;
use super::super::problem::Problem;
use super::super::tasks::model::{CancelOutcome, Problem as ProblemBody};
use super::super::tasks::{Answered, Failure, Tasks, single, time};
use super::super::timers::no_such_method;
use super::super::timers::params::Query;
use super::super::timers::single as timers;
use super::model::{DeletedSchedule, ScheduleSettings, ScheduleView};
use super::{
    Kept, conflict, decided, id_of, if_match, is_asked_for, look, may_change, nobody, read,
    revisions, shown, times, view, whole_view, write,
};
use crate::engine::UnixMillis;
use crate::engine::schedule::NEVER;
use crate::engine::task::id::TaskId;
use crate::engine::task::spec::Spec;
use crate::engine::timers::Version;

/// Makes a schedule.
#[utoipa::path(
    post,
    path = "/v1/schedules", tag = "schedules", operation_id = "createSchedule",
    request_body = ScheduleSettings,
    responses(
        (status = 201, description = "It is in force", body = ScheduleView),
        (status = 200, description = "It was there already, and is the same", body = ScheduleView),
        (status = 409, description = "Another one of this name is in force (schedule_exists), or its lane has refused it (refused)", body = ProblemBody),
        (status = "4XX", description = "Nothing was changed", body = ProblemBody),
        (status = 503, description = "Look at it, and ask again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn create_schedule(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    Extension(came): Extension<Came>,
    uri: Uri,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    may_change(&tasks, &caller)?;
    Query::read(uri.query(), &[])?;
    let spec = read(body, None)?;
    let (kept, is_new) = create(&tasks, &caller, time(came)?, &spec).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let mut answer = shown(status, view(&kept));
    if is_new {
        answer.extensions_mut().insert(revisions(None, Some(&kept)));
    }
    Ok(answer)
}

/// Makes a schedule; with it: whether it is new.
pub(in crate::api) async fn create(
    tasks: &Tasks,
    caller: &Caller,
    now: UnixMillis,
    spec: &Spec,
) -> Result<(Kept, bool), Problem> {
    caller.may_name(spec.project())?;
    let id = id_of_spec(spec)?;
    let before = look(tasks, &id).await?;
    match before {
        Some(kept) if !kept.is_over() => same_or_exists(kept, spec),
        before => match write(tasks, now, (&id, before.as_ref()), spec).await {
            Ok(kept) => Ok((kept, true)),
            // Another one came first: it may be the same request, asked twice.
            Err(problem) if problem.code() == "version_conflict" => {
                let other = look(tasks, &id).await?.ok_or(problem)?;
                same_or_exists(other, spec)
            }
            Err(problem) => Err(problem),
        },
    }
}

fn same_or_exists(kept: Kept, spec: &Spec) -> Result<(Kept, bool), Problem> {
    if kept.spec == *spec && !kept.is_over() {
        return Ok((kept, false));
    }
    let detail = "a schedule of this name is there, and is another one; PUT it to change it";
    let current = kept.version().to_string().into();
    Err(Problem::new(StatusCode::CONFLICT, "schedule_exists", detail).with("current", current))
}

fn id_of_spec(spec: &Spec) -> Result<TaskId, Problem> {
    let name = spec.schedule().map(|schedule| schedule.name()).unwrap_or_default();
    TaskId::schedule(spec.project(), name)
        .map_err(|error| Problem::bad("bad_id", "name", error.to_string()))
}

/// Shows a schedule, and how far it is.
#[utoipa::path(
    get,
    path = "/v1/schedules/{id}", tag = "schedules", operation_id = "getSchedule",
    params(("id" = String, Path, description = "Its id: schedule.PROJECT.NAME")),
    responses(
        (status = 200, description = "The schedule as it is now", body = ScheduleView),
        (status = "4XX", description = "404: there is none", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn get_schedule(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answered {
    let id = id_of(&uri, "", &caller)?;
    Query::read(uri.query(), &[])?;
    let kept = look(&tasks, &id).await?.ok_or_else(nobody)?;
    Ok(shown(StatusCode::OK, whole_view(&tasks, &kept).await))
}

/// Makes a schedule, or changes it: what is not said has its default.
#[utoipa::path(
    put,
    path = "/v1/schedules/{id}", tag = "schedules", operation_id = "putSchedule",
    params(
        ("id" = String, Path, description = "Its id: schedule.PROJECT.NAME"),
        ("If-Match" = Option<String>, Header, description = "The version to change, in quotes."),
    ),
    request_body = ScheduleSettings,
    responses(
        (status = 200, description = "It is in force for each time that has not come", body = ScheduleView),
        (status = 201, description = "It is in force, and there was none", body = ScheduleView),
        (status = 409, description = "Another version is in force (version_conflict), or its lane has refused it (refused)", body = ProblemBody),
        (status = "4XX", description = "Nothing was changed", body = ProblemBody),
        (status = 503, description = "Look at it, and ask again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn put_schedule(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    Extension(came): Extension<Came>,
    headers: HeaderMap,
    uri: Uri,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    may_change(&tasks, &caller)?;
    let id = id_of(&uri, "", &caller)?;
    Query::read(uri.query(), &[])?;
    let asked = if_match(&headers)?;
    let spec = read(body, Some(&id))?;
    let (before, after) = put(&tasks, time(came)?, (&id, asked), &spec).await?;
    let before = before.filter(|before| !before.is_over());
    let status = if before.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    let mut answer = shown(status, view(&after));
    answer.extensions_mut().insert(revisions(before.as_ref(), Some(&after)));
    Ok(answer)
}

/// Makes a schedule, or changes it; with it: what was there before.
pub(in crate::api) async fn put(
    tasks: &Tasks,
    now: UnixMillis,
    (id, asked): (&TaskId, Option<Version>),
    spec: &Spec,
) -> Result<(Option<Kept>, Kept), Problem> {
    let before = look(tasks, id).await?;
    is_asked_for(asked, before.as_ref())?;
    let after = write(tasks, now, (id, before.as_ref()), spec).await?;
    Ok((before, after))
}

/// Deletes a schedule. Tasks that it has submitted stay as they are.
#[utoipa::path(
    delete,
    path = "/v1/schedules/{id}", tag = "schedules", operation_id = "deleteSchedule",
    params(
        ("id" = String, Path, description = "Its id: schedule.PROJECT.NAME"),
        ("If-Match" = Option<String>, Header, description = "The version to delete, in quotes."),
        ("wait" = Option<String>, Query, description = "How long to wait until that is decided, with a unit; 5s unless told, at most 1m."),
    ),
    responses(
        (status = 200, description = "It has no more times", body = DeletedSchedule),
        (status = 202, description = "It is written, and not decided within the wait", body = DeletedSchedule),
        (status = 409, description = "Another version is in force (version_conflict)", body = ProblemBody),
        (status = "4XX", description = "404: there is none", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn delete_schedule(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
) -> Answered {
    may_change(&tasks, &caller)?;
    let id = id_of(&uri, "", &caller)?;
    let mut query = Query::read(uri.query(), &["wait"])?;
    let wait = timers::wait(query.text("wait")?, "query.wait")?;
    let asked = if_match(&headers)?;
    let answer = delete(&tasks, &caller, (&id, asked), wait).await?;
    let is_decided = answer.outcome == DELETED;
    let status = if is_decided { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(answer)).into_response())
}

/// The outcome of a delete that is decided.
pub(in crate::api) const DELETED: &str = "deleted";
const PENDING: &str = "pending";

/// Deletes a schedule, and waits so long until that is decided.
pub(in crate::api) async fn delete(
    tasks: &Tasks,
    caller: &Caller,
    (id, asked): (&TaskId, Option<Version>),
    wait: std::time::Duration,
) -> Result<DeletedSchedule, Problem> {
    caller.may(Role::Write)?;
    let there = look(tasks, id).await?;
    let has_ended = there.as_ref().is_some_and(Kept::is_over);
    let kept = there.filter(|kept| !kept.is_over());
    is_asked_for(asked, kept.as_ref())?;
    if has_ended {
        return Err(ended());
    }
    kept.ok_or_else(nobody)?;
    let answer = single::end(tasks, id, wait).await;
    // Its last time, or another delete, came first.
    let answer = answer.map_err(|failure| match failure {
        Failure::NoTask => ended(),
        failure => failure.into(),
    })?;
    let outcome = if answer.outcome == CancelOutcome::Pending { PENDING } else { DELETED };
    Ok(DeletedSchedule { schedule_id: id.to_string(), outcome: outcome.to_owned() })
}

fn ended() -> Problem {
    let detail = "the schedule has ended already, so there is nothing to delete";
    Problem::new(StatusCode::NOT_FOUND, "unknown_schedule", detail)
}

/// What is behind a colon in the path of one schedule.
pub(in crate::api) async fn act(
    tasks: State<Tasks>,
    caller: Extension<Caller>,
    came: Extension<Came>,
    headers: HeaderMap,
    uri: Uri,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    match uri.path().rsplit_once(':') {
        Some((_, "pause")) => pause_schedule(tasks, caller, came, headers, uri).await,
        Some((_, "resume")) => resume_schedule(tasks, caller, came, headers, uri).await,
        Some((_, "trigger")) => times::trigger_schedule(tasks, caller, came, uri).await,
        Some((_, "backfill")) => times::backfill_schedule(tasks, caller, came, uri, body).await,
        _ => Err(no_such_method(uri).await),
    }
}

/// Pauses a schedule: it has no tasks until it is resumed, and what fell into the pause is not made up for.
#[utoipa::path(
    post,
    path = "/v1/schedules/{id}:pause", tag = "schedules", operation_id = "pauseSchedule",
    params(
        ("id" = String, Path, description = "Its id: schedule.PROJECT.NAME"),
        ("If-Match" = Option<String>, Header, description = "The version to pause, in quotes."),
    ),
    responses(
        (status = 200, description = "It is paused", body = ScheduleView),
        (status = 409, description = "Another version is in force (version_conflict), it has ended (schedule_ended), or its lane has refused the change (refused)", body = ProblemBody),
        (status = "4XX", description = "404: there is none", body = ProblemBody),
        (status = 503, description = "Look at it, and ask again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn pause_schedule(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    Extension(came): Extension<Came>,
    headers: HeaderMap,
    uri: Uri,
) -> Answered {
    set_paused((tasks, caller, came), &headers, &uri, (":pause", true)).await
}

/// Ends the pause of a schedule.
#[utoipa::path(
    post,
    path = "/v1/schedules/{id}:resume", tag = "schedules", operation_id = "resumeSchedule",
    params(
        ("id" = String, Path, description = "Its id: schedule.PROJECT.NAME"),
        ("If-Match" = Option<String>, Header, description = "The version to resume, in quotes."),
    ),
    responses(
        (status = 200, description = "It goes on with its next time", body = ScheduleView),
        (status = 409, description = "Another version is in force (version_conflict), it has ended (schedule_ended), or its lane has refused the change (refused)", body = ProblemBody),
        (status = "4XX", description = "404: there is none", body = ProblemBody),
        (status = 503, description = "Look at it, and ask again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn resume_schedule(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    Extension(came): Extension<Came>,
    headers: HeaderMap,
    uri: Uri,
) -> Answered {
    set_paused((tasks, caller, came), &headers, &uri, (":resume", false)).await
}

async fn set_paused(
    (tasks, caller, came): (Tasks, Caller, Came),
    headers: &HeaderMap,
    uri: &Uri,
    (end, paused): (&str, bool),
) -> Result<Response, Problem> {
    may_change(&tasks, &caller)?;
    let id = id_of(uri, end, &caller)?;
    Query::read(uri.query(), &[])?;
    let asked = if_match(headers)?;
    let (before, after) = pause(&tasks, time(came)?, (&id, asked), paused).await?;
    let mut answer = shown(StatusCode::OK, view(&after));
    let before = before.as_ref();
    answer.extensions_mut().insert(revisions(before.or(Some(&after)), Some(&after)));
    Ok(answer)
}

/// Pauses a schedule, or ends its pause; with it: what was there before, if that was changed.
pub(in crate::api) async fn pause(
    tasks: &Tasks,
    now: UnixMillis,
    (id, asked): (&TaskId, Option<Version>),
    paused: bool,
) -> Result<(Option<Kept>, Kept), Problem> {
    let kept = look(tasks, id).await?.ok_or_else(nobody)?.alive()?;
    if asked.is_some_and(|asked| asked != kept.version()) {
        return Err(conflict(Some(kept.version())));
    }
    let is_so = kept.spec.schedule().is_some_and(|schedule| schedule.is_paused()) == paused;
    if is_so {
        return Ok((None, kept));
    }
    let spec = kept.spec.clone().with_paused(paused);
    // A pause is taken whatever is wrong with the task by now: it is what one wants then.
    let after = match paused {
        true => decided(tasks, (id, Some(&kept)), &spec, NEVER).await?,
        false => write(tasks, now, (id, Some(&kept)), &spec).await?,
    };
    Ok((Some(kept), after))
}
