//! The times of one schedule: shown, and tasks of them that somebody asks for.

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse as _;
use axum::{Extension, Json};
use serde_json::Value;

use super::super::auth::Caller;
use super::super::guard::Came;
use super::super::problem::Problem;
use super::super::tasks::create::{is_there, whole};
use super::super::tasks::model::{Problem as ProblemBody, Submission};
use super::super::tasks::{Answered, CREATE_MAX, Tasks, pending_of, take_room, time, within};
use super::super::timers::params::{Query, json, moment, object};
use super::model::{BackfillRequest, Backfilled, Preview, Triggered};
use super::{Kept, id_of, look, may_change, nobody};
use crate::engine::UnixMillis;
use crate::engine::schedule::{LISTED_MAX, Schedule, Submitted, Zone, database_version};
use crate::engine::task::id::TaskId;

/// Times that are shown, if nothing is said.
pub(in crate::api) const SHOWN: usize = 10;

/// What a schedule is, of one that is kept.
fn of(kept: &Kept) -> Result<&Schedule, Problem> {
    kept.spec.schedule().ok_or_else(nobody)
}

/// Shows the next times of a schedule, whether it is paused or not.
#[utoipa::path(
    get,
    path = "/v1/schedules/{id}/preview", tag = "schedules", operation_id = "previewSchedule",
    params(
        ("id" = String, Path, description = "Its id: schedule.PROJECT.NAME"),
        ("count" = Option<u32>, Query, description = "How many, from 1 to 1000; 10 unless told."),
        ("from" = Option<String>, Query, description = "From then on: RFC 3339 with a zone, or epoch milliseconds; now unless told."),
    ),
    responses(
        (status = 200, description = "The times", body = Preview),
        (status = "4XX", description = "404: there is none", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn preview_schedule(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    Extension(came): Extension<Came>,
    uri: Uri,
) -> Answered {
    let id = id_of(&uri, "/preview", &caller)?;
    let mut query = Query::read(uri.query(), &["count", "from"])?;
    let count = query.text("count")?.map_or(Ok(SHOWN), |text| {
        let count = text.parse().ok().filter(|count| (1..=LISTED_MAX).contains(count));
        count.ok_or_else(|| {
            let detail = format!("want an integer from 1 to {LISTED_MAX}");
            Problem::bad("bad_count", "query.count", detail)
        })
    })?;
    let from = query.text("from")?.map(|text| moment(&text.into(), "query.from")).transpose()?;
    let from = from.map_or_else(|| time(came), Ok)?;
    Ok(Json(preview(&tasks, &id, (from, count)).await?).into_response())
}

/// The next times of a schedule from then on.
pub(in crate::api) async fn preview(
    tasks: &Tasks,
    id: &TaskId,
    (from, count): (UnixMillis, usize),
) -> Result<Preview, Problem> {
    let kept = look(tasks, id).await?.ok_or_else(nobody)?;
    let timing = of(&kept)?.timing();
    let listed = timing.times(from, UnixMillis(u64::MAX), count);
    let zone = timing.zone().cloned().unwrap_or_default();
    let show = |at: &UnixMillis| Zone::show(&zone, *at);
    Ok(Preview {
        times: listed.times.iter().map(|at| at.0).collect(),
        shown: listed.times.iter().map(show).collect(),
        has_more: listed.has_more,
        zones: database_version().to_owned(),
    })
}

/// Creates a task of a schedule now, beside those of its times, also while it is paused.
#[utoipa::path(
    post,
    path = "/v1/schedules/{id}:trigger", tag = "schedules", operation_id = "triggerSchedule",
    params(("id" = String, Path, description = "Its id: schedule.PROJECT.NAME")),
    responses(
        (status = 201, description = "The task is written", body = Triggered),
        (status = 409, description = "It has ended (schedule_ended)", body = ProblemBody),
        (status = 429, description = "The project has created, or has, as many tasks as it may; Retry-After says when to come back", body = ProblemBody),
        (status = "4XX", description = "404: there is none", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn trigger_schedule(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    Extension(came): Extension<Came>,
    uri: Uri,
) -> Answered {
    may_change(&tasks, &caller)?;
    let id = id_of(&uri, ":trigger", &caller)?;
    Query::read(uri.query(), &[])?;
    let triggered = trigger(&tasks, &id, time(came)?).await?;
    Ok((StatusCode::CREATED, Json(triggered)).into_response())
}

/// Creates a task of a schedule now.
pub(in crate::api) async fn trigger(
    tasks: &Tasks,
    id: &TaskId,
    now: UnixMillis,
) -> Result<Triggered, Problem> {
    let kept = look(tasks, id).await?.ok_or_else(nobody)?.alive()?;
    let task = id.triggered(rand::random());
    let mut submitted = submitted(&kept, task, (now, now))?;
    // It is asked for now: nothing spreads it.
    submitted.due = now;
    is_there(&*tasks.projects.registry()?, kept.spec.project())?;
    take_room(tasks, kept.spec.project(), (1, pending_of(&submitted.spec)))?;
    submit(tasks, vec![submitted], now).await?.pop().ok_or_else(|| {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "kafka_away", "the task was not written")
    })
}

/// Creates tasks for the times of a span that has passed. What ran does not run again, as long as it is remembered.
#[utoipa::path(
    post,
    path = "/v1/schedules/{id}:backfill", tag = "schedules", operation_id = "backfillSchedule",
    params(("id" = String, Path, description = "Its id: schedule.PROJECT.NAME")),
    request_body = BackfillRequest,
    responses(
        (status = 200, description = "They are written, 1,000 at most: go on from next_from", body = Backfilled),
        (status = 409, description = "It has ended (schedule_ended)", body = ProblemBody),
        (status = 429, description = "The project has created, or has, as many tasks as it may; Retry-After says when to come back", body = ProblemBody),
        (status = "4XX", description = "400: the span is wrong; 404: there is none", body = ProblemBody),
        (status = 503, description = "Try again: what was written is found then", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn backfill_schedule(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    Extension(came): Extension<Came>,
    uri: Uri,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    may_change(&tasks, &caller)?;
    let id = id_of(&uri, ":backfill", &caller)?;
    Query::read(uri.query(), &[])?;
    let body = whole(body)?;
    let span = span(&body)?;
    Ok(Json(backfill(&tasks, &id, span, time(came)?).await?).into_response())
}

/// Reads a span.
fn span(body: &[u8]) -> Result<(UnixMillis, UnixMillis), Problem> {
    let map = object(json(body)?, "body", &["from", "to"])?;
    let of = |name: &str| moment(map.get(name).unwrap_or(&Value::Null), name);
    Ok((of("from")?, of("to")?))
}

/// Creates tasks for the times of a span that has passed.
pub(in crate::api) async fn backfill(
    tasks: &Tasks,
    id: &TaskId,
    (from, to): (UnixMillis, UnixMillis),
    now: UnixMillis,
) -> Result<Backfilled, Problem> {
    if from >= to {
        return Err(Problem::bad("bad_span", "to", "want a time after from"));
    }
    let kept = look(tasks, id).await?.ok_or_else(nobody)?.alive()?;
    let timing = of(&kept)?.timing();
    let listed = timing.times(from, to.min(now), LISTED_MAX);
    let mut times = listed.times;
    is_there(&*tasks.projects.registry()?, kept.spec.project())?;
    let each = times.first().map(|at| submitted(&kept, id.occurrence(*at), (*at, now)));
    let pending = each.transpose()?.map_or(1, |of| pending_of(&of.spec));
    let room = take_room(tasks, kept.spec.project(), (times.len(), pending))?;
    let has_more = listed.has_more || room < times.len();
    times.truncate(room);
    let next = times.last().filter(|_| has_more);
    let next_from = next.and_then(|last| timing.next_after(*last)).map(|at| at.0);
    let each = times.iter().map(|at| submitted(&kept, id.occurrence(*at), (*at, now)));
    let all = each.collect::<Result<Vec<_>, Problem>>()?;
    Ok(Backfilled { tasks: submit(tasks, all, now).await?, next_from })
}

fn submitted(
    kept: &Kept,
    task: TaskId,
    (at, now): (UnixMillis, UnixMillis),
) -> Result<Submitted, Problem> {
    let of_spec = (kept.spec.project(), kept.spec.group());
    of(kept)?
        .occurrence(of_spec, task, (at, now), None)
        .map_err(|wrongs| Problem::wrong_fields(&wrongs))
}

/// Writes creates.
async fn submit(
    tasks: &Tasks,
    all: Vec<Submitted>,
    now: UnixMillis,
) -> Result<Vec<Triggered>, Problem> {
    let told: Vec<Triggered> = all
        .iter()
        .map(|of| Triggered { task_id: of.id.to_string(), trigger_at: of.due.0 })
        .collect();
    let lanes = tasks.desk.lanes();
    let each = all.into_iter().map(|of| Submission {
        lane: of.id.lane_of(lanes),
        id: of.id,
        created: now,
        due: of.due,
        expires: of.expires,
        spec: of.spec,
        request_id: None,
        key: of.key,
        value: of.value,
        headers: of.headers,
    });
    let written = within(CREATE_MAX, tasks.desk.submit(each.collect())).await?;
    written.into_iter().collect::<Result<Vec<()>, _>>()?;
    Ok(told)
}
