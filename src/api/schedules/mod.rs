//! `/v1/schedules`: what submits tasks again and again. They are created, changed, paused, deleted, and their tasks asked for here.
//!
//! A schedule is written to Kafka as a task is, and its lane decides: what an answer says was decided. `docs/schedules.md` is the manual.
//!
//! # Invariants
//! 1. A request that is wrong is refused, and the answer names every field that is wrong, those of the task too. Nothing is changed then.
//! 2. A change follows one version. If another change came first, it is refused, whether its caller named a version or not.
//! 3. A schedule of a project that the caller's token does not cover is as if it were not there.

pub mod model;
pub(super) mod of_one;
pub(super) mod times;

#[cfg(test)]
pub(super) mod tests;

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get};
use axum::{Extension, Json, Router};

use super::audit::Revisions;
use super::auth::{Caller, Role};
use super::etag::{self, with_etag};
use super::guard::Came;
use super::problem::Problem;
use super::serve::Front;
use super::tasks::create::{is_there, not_permitted, of_task, whole};
use super::tasks::model::Problem as ProblemBody;
use super::tasks::single::{self, Asked};
use super::tasks::{self, Answered, Failure, LOOK_MAX, Tasks, take_room, time, within};
use super::timers::model::Soon;
use super::timers::params::Query;
use crate::engine::UnixMillis;
use crate::engine::schedule::NEVER;
use crate::engine::sealed::Follows;
use crate::engine::task::Wrong;
use crate::engine::task::id::TaskId;
use crate::engine::task::registry;
use crate::engine::task::spec::{SCHEDULE, Spec};
use crate::engine::timers::{TaskRecord, TimerState, Version};
use model::{SchedulePage, ScheduleSettings, ScheduleStatus, ScheduleView};

use of_one::{create_schedule, delete_schedule, get_schedule, put_schedule};
use times::preview_schedule;

/// Begins the path of one schedule.
const SCHEDULES: &str = "/v1/schedules/";
/// How long a lane may take to decide about a change.
const DECIDED_MAX: Duration = Duration::from_secs(10);

/// What has become of a schedule that was written.
#[derive(Clone, Debug)]
pub enum Written {
    /// It is in force.
    Done(Box<TaskRecord>),
    /// It was in force, and another change has followed it; what is there now.
    Replaced(Box<TaskRecord>),
    /// Another change came first; what is there now.
    Superseded(Option<Box<TaskRecord>>),
    /// Its lane has refused it, with this code: it is a dead letter.
    Refused(&'static str),
    /// It is not decided yet.
    Pending,
}

/// Changes schedules, wherever their lanes run. Nothing here blocks the calling thread.
pub trait Schedules: Send + Sync + 'static {
    /// Writes a schedule that is due then, in the place of a version or of none, and waits for at most so long until its lane has decided.
    ///
    /// # Errors
    /// See [`Failure`]. To look and ask again is safe.
    fn write<'a>(
        &'a self,
        id: &'a TaskId,
        follows: Option<Follows>,
        spec: &'a Spec,
        due_and_wait: (UnixMillis, Duration),
    ) -> Soon<'a, Result<Written, Failure>>;
}

/// The routes, as the document at `/openapi.json` has to have them; actions are a part of the last segment.
pub(super) fn routes() -> [(&'static str, MethodRouter<Tasks>); 3] {
    [
        ("/v1/schedules", get(list_schedules).post(create_schedule)),
        (
            "/v1/schedules/{id}",
            get(get_schedule).put(put_schedule).delete(delete_schedule).post(of_one::act),
        ),
        ("/v1/schedules/{id}/preview", get(preview_schedule)),
    ]
}

pub(super) fn router(tasks: Tasks, front: &Front) -> Router {
    let mut router = Router::new();
    for (path, methods) in routes() {
        router = router.route(path, methods);
    }
    tasks::finish(router, tasks, front)
}

/// There is no such schedule, as far as this caller may know.
pub(super) fn nobody() -> Problem {
    let detail =
        "there is no schedule with this id: it was never created, or its history has run out";
    Problem::new(StatusCode::NOT_FOUND, "unknown_schedule", detail)
}

/// The schedule of a path that ends with this, if the caller may know of its project.
fn id_of(uri: &Uri, end: &str, caller: &Caller) -> Result<TaskId, Problem> {
    let path = uri.path().strip_suffix(end).unwrap_or_default();
    let text = super::timers::params::id_of_path(path, SCHEDULES)?;
    let id = parsed(&text).ok_or_else(|| Problem::bad("bad_id", "path.id", ID_WANTED))?;
    is_seen(&id, caller)?;
    Ok(id)
}

/// What the id of a schedule looks like.
pub(super) const ID_WANTED: &str = "want schedule.PROJECT.NAME, as in schedule.shop.nightly";

/// The id of a schedule; `None`: this text is none.
pub(super) fn parsed(text: &str) -> Option<TaskId> {
    let id = TaskId::parse(text).ok()?;
    let (project, name) = id.as_schedule()?;
    let is_sound = registry::is_name(project) && registry::is_name(name);
    is_sound.then_some(id)
}

/// Whether the caller may know of the project of a schedule.
pub(super) fn is_seen(id: &TaskId, caller: &Caller) -> Result<(), Problem> {
    let is_seen = id.as_schedule().is_some_and(|(project, _)| caller.sees(project));
    if is_seen { Ok(()) } else { Err(nobody()) }
}

/// What is kept of a schedule, and what it is.
pub(in crate::api) struct Kept {
    record: TaskRecord,
    pub(super) spec: Spec,
}

impl Kept {
    /// `None`: it is no schedule. One that was refused when it came has no definition, and never was one.
    fn of(record: TaskRecord) -> Option<Self> {
        let spec = Spec::parse(record.spec.as_deref()?.as_bytes()).ok()?;
        spec.schedule().is_some().then_some(Self { record, spec })
    }

    fn version(&self) -> Version {
        self.record.timer.version
    }

    /// What a change of it takes the place of.
    fn followed(&self) -> Follows {
        Follows { version: self.version(), has_ended: self.is_over() }
    }

    /// Whether it has ended.
    pub(super) fn is_over(&self) -> bool {
        self.record.timer.state.is_final()
    }

    /// The same, if it goes on.
    fn alive(self) -> Result<Self, Problem> {
        if !self.is_over() {
            return Ok(self);
        }
        let status = status(&self.record, &self.spec).as_str();
        let detail = format!("it is {status}; put it again to use it");
        Err(Problem::new(StatusCode::CONFLICT, "schedule_ended", detail))
    }
}

/// What is kept of a schedule, if there is anything.
pub(super) async fn look(tasks: &Tasks, id: &TaskId) -> Result<Option<Kept>, Problem> {
    tasks.desk.in_force()?;
    let record = within(LOOK_MAX, tasks.desk.kept(id)).await??;
    Ok(record.and_then(Kept::of))
}

/// The schedule as callers see it.
pub(super) fn view(kept: &Kept) -> ScheduleView {
    let Kept { record, spec } = kept;
    let progress = record.timer.task.unwrap_or_default();
    let status = status(record, spec);
    let next = Some(progress.next_at).filter(|at| *at > UnixMillis(0) && *at < NEVER);
    let next = next.or_else(|| Some(record.timer.due).filter(|due| *due < NEVER));
    let last = progress.last_nominal();
    ScheduleView {
        schedule_id: record.id.to_string(),
        version: record.timer.version.to_string(),
        status,
        next_at: next.filter(|_| status == ScheduleStatus::Active).map(|at| at.0),
        last_at: last.map(|at| at.0),
        last_task_id: last.map(|at| record.id.occurrence(at).to_string()),
        tasks_total: progress.attempts,
        changed_at: record.timer.version.first_appended.0,
        ended_at: status.is_final().then(|| record.timer.shown_since().0),
        code: record.timer.code.map(|code| code.as_str().to_owned()),
        members: None,
        settings: settings(spec),
    }
}

/// The same with how many are there to execute its tasks.
pub(super) async fn whole_view(tasks: &Tasks, kept: &Kept) -> ScheduleView {
    let members = if kept.is_over() { None } else { tasks.members_for(&kept.spec).await };
    ScheduleView { members, ..view(kept) }
}

fn status(record: &TaskRecord, spec: &Spec) -> ScheduleStatus {
    let is_paused = spec.schedule().is_some_and(|schedule| schedule.is_paused());
    match record.timer.state {
        TimerState::Delay if is_paused => ScheduleStatus::Paused,
        TimerState::Delay => ScheduleStatus::Active,
        TimerState::Delivered => ScheduleStatus::Finished,
        TimerState::Cancelled => ScheduleStatus::Deleted,
        TimerState::Expired | TimerState::Dead | TimerState::Lost => ScheduleStatus::Failed,
    }
}

/// What it is, with its defaults.
fn settings(spec: &Spec) -> ScheduleSettings {
    // What is written is what these fields are called.
    serde_json::from_str(&spec.to_json()).unwrap_or_default()
}

/// The answer with a schedule, and its version as `ETag`.
fn shown(status: StatusCode, view: ScheduleView) -> Response {
    let location = HeaderValue::try_from(format!("{SCHEDULES}{}", view.schedule_id));
    let version = view.version.clone();
    let mut answer = with_etag(version, (status, Json(view)).into_response());
    if let (StatusCode::CREATED, Ok(location)) = (status, location) {
        answer.headers_mut().insert(header::LOCATION, location);
    }
    answer
}

/// The version that an `If-Match` asks for.
fn if_match(headers: &HeaderMap) -> Result<Option<Version>, Problem> {
    etag::if_match(headers, "version in quotes, as ETag has it: \"1764000000000-42\"")
}

/// Another version is in force.
fn conflict(current: Option<Version>) -> Problem {
    let (what, of) = match current {
        Some(version) => (format!("the version {version} is in force"), version.to_string()),
        None => ("there is no such schedule any more".to_owned(), String::new()),
    };
    let detail = format!("{what}; look at it and ask again");
    Problem::new(StatusCode::CONFLICT, "version_conflict", detail).with("current", of.into())
}

/// Whether a version that the caller has named is in force.
fn is_asked_for(asked: Option<Version>, kept: Option<&Kept>) -> Result<(), Problem> {
    let current = kept.filter(|kept| !kept.is_over()).map(Kept::version);
    match asked {
        Some(asked) if current != Some(asked) => Err(conflict(current)),
        _ => Ok(()),
    }
}

/// What is to be in force, once it was checked.
fn checked(tasks: &Tasks, now: UnixMillis, spec: &Spec) -> Result<UnixMillis, Problem> {
    let Some(schedule) = spec.schedule() else {
        return Err(Problem::wrong_fields(&[]));
    };
    let registry = tasks.projects.registry()?;
    is_there(&registry, spec.project())?;
    let request = schedule.request((spec.project(), spec.group()), now);
    let wrongs = match &request {
        Ok(request) => not_permitted(tasks, &registry, request),
        Err(wrongs) => wrongs.clone(),
    };
    let mut wrongs: Vec<Wrong> = wrongs.into_iter().map(of_task).collect();
    let due = schedule.first_after(now).map_err(|wrong| wrongs.push(wrong));
    match due {
        Ok(due) if wrongs.is_empty() => Ok(due),
        _ => Err(Problem::wrong_fields(&wrongs)),
    }
}

/// Writes a schedule in the place of what is kept of it, and waits for its lane.
async fn write(
    tasks: &Tasks,
    now: UnixMillis,
    (id, before): (&TaskId, Option<&Kept>),
    spec: &Spec,
) -> Result<Kept, Problem> {
    let due = checked(tasks, now, spec)?;
    if before.is_none_or(Kept::is_over) {
        // It is one more task of its project.
        take_room(tasks, spec.project(), (1, 1))?;
    }
    decided(tasks, (id, before), spec, due).await
}

/// Writes what was checked.
pub(super) async fn decided(
    tasks: &Tasks,
    (id, before): (&TaskId, Option<&Kept>),
    spec: &Spec,
    due: UnixMillis,
) -> Result<Kept, Problem> {
    let (follows, terms) = (before.map(Kept::followed), (due, DECIDED_MAX));
    let most = DECIDED_MAX + Duration::from_secs(5);
    match within(most, tasks.schedules.write(id, follows, spec, terms)).await?? {
        Written::Done(record) => Ok(Kept { record: *record, spec: spec.clone() }),
        Written::Replaced(now) => Kept::of(*now).ok_or_else(nobody),
        Written::Superseded(other) => {
            let other = other.map(|other| other.timer);
            let live = other.filter(|other| !other.state.is_final());
            Err(conflict(live.map(|live| live.version)))
        }
        Written::Refused(code) => {
            let detail = format!("its lane has refused it ({code}), and it is a dead letter");
            Err(Problem::new(StatusCode::CONFLICT, "refused", detail))
        }
        Written::Pending => Err(Failure::Unknown(format!(
            "its lane has not decided within {} s; look at the schedule and ask again",
            DECIDED_MAX.as_secs()
        ))
        .into()),
    }
}

/// Whether this caller may change schedules, here and now.
pub(super) fn may_change(tasks: &Tasks, caller: &Caller) -> Result<(), Problem> {
    caller.may(Role::Write)?;
    Ok(tasks.desk.in_force()?)
}

/// Reads a schedule that is asked for. `of`: the one that the path names.
fn read(body: Result<Bytes, BytesRejection>, of: Option<&TaskId>) -> Result<Spec, Problem> {
    let body = whole(body)?;
    let of = of.and_then(TaskId::as_schedule);
    Spec::read_schedule(&body, of).map_err(|wrongs| Problem::wrong_fields(&wrongs))
}

/// What a change did, for the audit log: the millisecond in which each version was made.
pub(super) fn revisions(before: Option<&Kept>, after: Option<&Kept>) -> Revisions {
    let of = |kept: Option<&Kept>| kept.map_or(0, |kept| kept.version().first_appended.0);
    Revisions { before: of(before), after: of(after) }
}

/// Lists the schedules that go on, in the order of the first time that each had when it was made, or last changed or resumed. Those
/// that are paused come last.
#[utoipa::path(
    get,
    path = "/v1/schedules", tag = "schedules", operation_id = "listSchedules",
    params(
        ("project" = Option<String>, Query, description = "Only those of this project."),
        ("group" = Option<String>, Query, description = "Only those of this group."),
        ("limit" = Option<u32>, Query, description = "At most so many, from 1 to 1000; 100 unless told. A page may have fewer though there is a next."),
        ("page" = Option<String>, Query, description = "The next of the page before, with the same filters."),
    ),
    responses(
        (status = 200, description = "A page; go on while there is a next", body = SchedulePage),
        (status = "4XX", description = "The request is wrong", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(super) async fn list_schedules(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    Extension(came): Extension<Came>,
    uri: Uri,
) -> Answered {
    let mut query = Query::read(uri.query(), &["project", "group", "limit", "page"])?;
    let asked = Asked::read(&mut query)?;
    Ok(Json(page(&tasks, &caller, time(came)?, asked).await?).into_response())
}

/// A page of the schedules that the caller may know of.
async fn page(
    tasks: &Tasks,
    caller: &Caller,
    now: UnixMillis,
    asked: Asked,
) -> Result<SchedulePage, Problem> {
    let (all, next) = listed(tasks, caller, now, asked).await?;
    Ok(SchedulePage { schedules: all.iter().map(view).collect(), next })
}

/// The schedules of that page, as they are kept, and where to go on.
pub(super) async fn listed(
    tasks: &Tasks,
    caller: &Caller,
    now: UnixMillis,
    asked: Asked,
) -> Result<(Vec<Kept>, Option<String>), Problem> {
    let (records, next) = single::records(tasks, caller, (SCHEDULE, now), asked).await?;
    let live = records.into_iter().filter(|record| !record.timer.state.is_final());
    Ok((live.filter_map(Kept::of).collect(), next))
}
