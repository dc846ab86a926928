//! `/v1/tasks`: timers that call back. They are created, looked up, listed, cancelled and retried here.
//!
//! A create is checked and handed to the [`Desk`], which writes it to Kafka; no owner of a lane is asked. Everything else
//! the desk asks the owner of the task's lane. `docs/tasks.md` and `docs/http-api.md` are the manual.
//!
//! # Invariants
//! 1. A request that is wrong is refused, and the answer names every field that is wrong. Nothing is created then.
//! 2. The same project and request id have the same task id, whichever instance is asked.
//! 3. A task of a project that the caller's token does not cover is as if it were not there.
//!
//! This room knows neither Kafka nor the index.

pub(super) mod create;
pub mod model;
mod quota;
pub(super) mod report;
pub(super) mod single;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get, post};
use url::Url;

use super::audit;
use super::auth::{Access, Caller};
use super::gate::Kind;
use super::guard::{self, Came, Form, Rules};
use super::members::Members;
use super::problem::Problem;
use super::projects::Projects;
use super::schedules::Schedules;
use super::serve::Front;
use super::timers::model::{NOT_READY, Soon};
use super::timers::no_such_method;
use crate::engine::allow::Allow;
use crate::engine::task::id::TaskId;
use crate::engine::task::registry::Project;
use crate::engine::task::result::TaskResult;
use crate::engine::task::spec::Spec;
use crate::engine::timers::{self, TaskCounts, TaskRecord, TaskReport};
use crate::engine::{Millis, UnixMillis};
use model::{CancelAnswer, Payload, Submission, TaskFilter, TaskPage, TaskView};
pub use quota::{Quotas, count_pending};
pub(super) use quota::{pending_of, take_room};

/// Bytes of a request for one task: a body of 1 MiB in base64 takes 1.4 MiB.
const CREATE_BYTES_MAX: usize = 2 << 20;
/// Bytes of a batch.
pub(super) const BATCH_BYTES_MAX: usize = 4 << 20;
/// Bytes of what is about one task or project and brings no payload.
const SMALL_BYTES_MAX: usize = 128 << 10;
/// How long Kafka may take to acknowledge creates.
pub(super) const CREATE_MAX: Duration = Duration::from_secs(15);
/// How long a look-up of one task may take.
pub(super) const LOOK_MAX: Duration = Duration::from_secs(7);
/// How long a list may take.
pub(super) const LIST_MAX: Duration = Duration::from_secs(20);
/// What a cancel may take beyond its wait.
const GRACE: Duration = Duration::from_secs(2);

pub(super) type Answered = Result<Response, Problem>;

/// A page of what is kept of tasks, schedules or runs, and where to go on.
pub type Page = (Vec<TaskRecord>, Option<String>);

/// Whether a URL may be called at all, as far as that is known without a look-up of its name: what is wrong with it, as a
/// sentence whose subject is the URL.
pub type Screen = Arc<dyn Fn(&Url) -> Result<(), String> + Send + Sync>;

/// What the rooms of tasks, projects, targets and members need of the instance.
#[derive(Clone)]
pub struct Tasks {
    /// Takes creates, and answers for tasks.
    pub desk: Arc<dyn Desk>,
    /// Keeps schedules.
    pub schedules: Arc<dyn Schedules>,
    /// Knows projects and services.
    pub projects: Arc<dyn Projects>,
    /// Knows the instances.
    pub members: Arc<dyn Members>,
    /// Refuses URLs.
    pub screen: Screen,
    /// Refuses topics that are no targets by their names. What the lists of the lanes say besides, only the lanes know.
    pub topics: Arc<Allow>,
    /// Refuses creates beyond a project's rate.
    pub quotas: Arc<Quotas>,
}

impl Tasks {
    /// Whether tasks of a project may call a URL, as far as that is known without a look-up of its name.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence whose subject is the URL.
    pub(super) fn screened(&self, project: &Project, url: &Url) -> Result<(), String> {
        (self.screen)(url)?;
        if project.permits_host_of(url) {
            return Ok(());
        }
        let host = url.host_str().unwrap_or_default();
        Err(format!("is refused: {host} is not among the hosts of its project"))
    }

    /// Whether records may go to a topic at all, as far as its name says.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence whose subject is the topic.
    pub(super) fn takes_records(&self, topic: &str) -> Result<(), String> {
        let forbidden = |_| "is a topic of waterclock's or of Kafka's own: no record may go there";
        self.topics.permits(topic).map_err(forbidden).map_err(str::to_owned)
    }

    /// How many members of consumer groups are there to execute this; `None`: nobody has to be, or it is not known.
    pub(super) async fn members_for(&self, spec: &Spec) -> Option<u32> {
        self.desk.readers(&spec.executed_from()?).await
    }

    /// Whether tasks of a project may deliver to a topic, as far as is known here.
    ///
    /// # Errors
    /// As [`Tasks::takes_records`].
    fn is_target(&self, project: &Project, topic: &str) -> Result<(), String> {
        self.takes_records(topic)?;
        let denied = |_| "is not among the targets of its project".to_owned();
        project.permits(topic).map_err(denied)
    }
}

/// Why there is no answer about a task. Nothing was changed, unless it says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Tasks are not in force in this namespace; the text says what a person has to do.
    NotAvailable(String),
    /// The lane is on its way from one member to another, or its owner does not answer; soon it will.
    Moving(String),
    /// It may have been done, or be done yet.
    Unknown(String),
    /// Kafka does not answer.
    Away(String),
    /// As much is asked already as may be at once.
    Busy(String),
    /// The owner has no index in this run; a person must mend that.
    NoIndex(String),
    /// There is no such task, or its history has run out.
    NoTask,
    /// The task is in a state in which it cannot be retried.
    NotRetryable(String),
    /// What was to be sent is not there any more.
    PayloadGone(String),
    /// The ticket of an executor is none of this task.
    WrongTicket(String),
    /// The record is larger than the intake takes.
    TooLarge(String),
    /// The token of a page is none, was altered, or was given for another filter.
    BadPage(String),
}

impl Failure {
    /// The instance is starting, or has lost Kafka; soon it is ready.
    pub(super) fn not_ready() -> Self {
        Self::Moving(NOT_READY.to_owned())
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let unavailable =
            |code, detail: String| Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail);
        match failure {
            Failure::NotAvailable(detail) => {
                Self::new(StatusCode::CONFLICT, "not_available", detail)
            }
            Failure::Moving(detail) => unavailable("lane_moving", detail).later(1),
            Failure::Unknown(detail) => unavailable("lane_moving", detail).later(1),
            Failure::Away(detail) => unavailable("kafka_away", detail).later(5),
            Failure::Busy(detail) => Self::busy(detail),
            Failure::NoIndex(detail) => unavailable("no_index", detail).later(30),
            Failure::NoTask => single::nobody(),
            Failure::NotRetryable(detail) => {
                Self::new(StatusCode::CONFLICT, "not_retryable", detail)
            }
            Failure::WrongTicket(detail) => {
                Self::new(StatusCode::FORBIDDEN, "wrong_ticket", detail)
            }
            Failure::BadPage(detail) => Self::bad("bad_page", "query.page", detail),
            Failure::PayloadGone(detail) => Self::new(StatusCode::CONFLICT, "payload_gone", detail),
            Failure::TooLarge(detail) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "record_too_large", detail)
            }
        }
    }
}

/// Takes creates, and answers for all tasks of the namespace, wherever their lanes run. Nothing here blocks the calling
/// thread. What takes longer than its time is dropped.
pub trait Desk: Send + Sync + 'static {
    /// Whether tasks can be taken here and now.
    ///
    /// # Errors
    /// [`Failure::NotAvailable`], or [`Failure::Moving`] while the instance starts.
    fn in_force(&self) -> Result<(), Failure>;
    /// How many lanes there are; 0 until the instance has started.
    fn lanes(&self) -> u16;
    /// How many instances take creates, this one, too: at least 1.
    fn instances(&self) -> u16;
    /// The brokers' time; `None` before it is known.
    fn now(&self) -> Option<UnixMillis>;
    /// The longest delay that the lanes accept.
    fn max_delay(&self) -> Millis;
    /// Writes creates, and answers for each once Kafka has acknowledged it, in the same order.
    fn submit(&self, tasks: Vec<Submission>) -> Soon<'_, Vec<Result<(), Failure>>>;
    /// A task. One whose create was acknowledged before is found.
    ///
    /// # Errors
    /// See [`Failure`]; that there is none is no failure.
    fn get<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<Option<TaskView>, Failure>>;
    /// All that is kept of a task, a schedule or a run, also of one that has ended. One whose create or change was acknowledged before is
    /// found.
    ///
    /// # Errors
    /// See [`Failure`]; that there is none is no failure.
    fn kept<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<Option<TaskRecord>, Failure>>;
    /// What is kept of those that are meant, in the order of due time and without their attempts, behind the page with this token.
    ///
    /// # Errors
    /// See [`Failure`].
    fn records<'a>(
        &'a self,
        filter: &'a timers::TaskFilter,
        page: Option<&'a str>,
        limit: usize,
    ) -> Soon<'a, Result<Page, Failure>>;
    /// What a task sends; `None`: that is not there any more.
    ///
    /// # Errors
    /// See [`Failure`].
    fn payload<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<Option<Payload>, Failure>>;
    /// Tasks in the order of due time, without their attempts.
    ///
    /// # Errors
    /// See [`Failure`].
    fn list<'a>(&'a self, filter: &'a TaskFilter) -> Soon<'a, Result<TaskPage, Failure>>;
    /// Cancels a task, and waits at most so long for what becomes of that.
    ///
    /// # Errors
    /// See [`Failure`].
    fn cancel<'a>(
        &'a self,
        id: &'a TaskId,
        wait: Duration,
    ) -> Soon<'a, Result<CancelAnswer, Failure>>;
    /// How many tasks of these projects there are, by where they stand. A project without any is not told.
    ///
    /// # Errors
    /// See [`Failure`].
    fn counts<'a>(
        &'a self,
        projects: &'a BTreeSet<String>,
    ) -> Soon<'a, Result<BTreeMap<String, TaskCounts>, Failure>>;
    /// Makes a task due now that waits or has failed; gives it back as it is then.
    ///
    /// # Errors
    /// See [`Failure`].
    fn retry<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<TaskView, Failure>>;
    /// Whether a ticket is one of this task, of whatever turn.
    ///
    /// # Errors
    /// [`Failure::WrongTicket`]; [`Failure::Moving`] while the instance starts.
    fn is_ticket(&self, id: &TaskId, ticket: &str) -> Result<(), Failure>;
    /// The ticket of the last turn of a task with feedback; `None`: no turn has begun, or nobody reports.
    ///
    /// # Errors
    /// See [`Failure`].
    fn last_ticket<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<Option<String>, Failure>>;
    /// Takes what is said of a turn, with a ticket that is one of this task.
    ///
    /// # Errors
    /// See [`Failure`]. To report again is safe.
    fn report<'a>(
        &'a self,
        id: &'a TaskId,
        ticket: &'a str,
        result: &'a TaskResult,
    ) -> Soon<'a, Result<TaskReport, Failure>>;
    /// How many members of consumer groups read a topic; `None`: Kafka does not say, or not within a second.
    fn readers<'a>(&'a self, topic: &'a str) -> Soon<'a, Option<u32>>;
}

/// The routes, as the document at `/openapi.json` has to have them; `:retry` is a part of the last segment.
pub(super) fn routes() -> [(&'static str, MethodRouter<Tasks>); 8] {
    [
        ("/v1/tasks", get(single::list)),
        ("/v1/tasks/http", post(create::http)),
        ("/v1/tasks/kafka", post(create::kafka)),
        ("/v1/tasks/grpc", post(create::grpc)),
        (BATCH_CREATE, post(create::batch)),
        ("/v1/tasks/{id}", get(single::get).delete(single::cancel).post(single::act)),
        ("/v1/tasks/{id}/result", post(report::result)),
        ("/v1/tasks/{id}/heartbeat", post(report::heartbeat)),
    ]
}

/// The path of a batch.
const BATCH_CREATE: &str = "/v1/tasks:batchCreate";

pub(super) fn router(tasks: Tasks, front: &Front) -> Router {
    let mut router = Router::new();
    for (path, methods) in routes() {
        router = router.route(path, methods);
    }
    finish(router, tasks, front)
}

/// What the rooms of tasks and projects have in common.
pub(super) fn finish(router: Router<Tasks>, tasks: Tasks, front: &Front) -> Router {
    let desk = Arc::clone(&tasks.desk);
    let guard = front.guard(RULES, Arc::new(move || desk.now().map(|now| now.0)));
    router
        .method_not_allowed_fallback(no_such_task_method)
        .layer(DefaultBodyLimit::max(BATCH_BYTES_MAX))
        .with_state(tasks)
        .layer(middleware::from_fn(audit::changes))
        .layer(middleware::from_fn_with_state(guard, guard::callers))
}

/// A path that does not take this method. Who wants to create a task and guessed the path learns the right one.
pub(super) async fn no_such_task_method(method: Method, uri: Uri) -> Problem {
    if method != Method::POST || !uri.path().starts_with("/v1/tasks") {
        return no_such_method(uri).await;
    }
    let is_action = uri.path().rsplit('/').next().is_some_and(|last| last.contains(':'));
    let hint = if is_action {
        "a task has the action :retry; to cancel it, DELETE it"
    } else {
        "to create a task, POST to /v1/tasks/http, /v1/tasks/kafka or /v1/tasks/grpc"
    };
    let detail = format!("{} does not take this method; {hint}", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "no_such_method", detail)
}

const RULES: Rules = Rules { kind, bytes_max, form: Form::Json, is_bodyless, is_nothing, caller };

fn caller(access: &Access, request: &Request) -> Result<Caller, Problem> {
    access.of_tasks(request)
}

fn kind(method: &Method, path: &str) -> Kind {
    const OF_ONE: [&str; 5] =
        ["/v1/tasks/", "/v1/projects/", "/v1/targets/", "/v1/schedules/", "/v1/runs/"];
    let of_one = OF_ONE.iter().find_map(|start| path.strip_prefix(start));
    match of_one {
        Some("http" | "kafka" | "grpc") => Kind::Create,
        None if path == "/v1/runs" && !method.is_safe() => Kind::Create,
        Some(of_run) if of_run.ends_with("/shards") && path.starts_with("/v1/runs/") => Kind::Large,
        Some(_) if method.is_safe() => Kind::Look,
        Some(_) => Kind::Wait,
        None => Kind::Large,
    }
}

pub(super) const fn bytes_max(kind: Kind) -> usize {
    match kind {
        Kind::Create => CREATE_BYTES_MAX,
        Kind::Large => BATCH_BYTES_MAX,
        Kind::Wait | Kind::Look => SMALL_BYTES_MAX,
    }
}

/// Actions have no fields: the path says it all.
fn is_bodyless(path: &str) -> bool {
    [":retry", ":pause", ":resume", ":trigger"].iter().any(|action| path.ends_with(action))
}

/// A method that no path of this kind takes, or an action that there is not.
fn is_nothing(method: &Method, path: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or_default();
    if let Some((_, action)) = last.split_once(':') {
        return !is_bodyless(path) && !["batchCreate", "backfill"].contains(&action);
    }
    let of_all = ["/v1/tasks", "/v1/projects", "/v1/targets"];
    of_all.contains(&path)
        || *method == Method::PUT
            && ["/v1/tasks/", "/v1/runs"].iter().any(|start| path.starts_with(start))
}

/// The brokers' time when a request came.
pub(super) fn time(came: Came) -> Result<UnixMillis, Problem> {
    Ok(came.time.map(UnixMillis).ok_or_else(Failure::not_ready)?)
}

/// Waits for the instance, but not for ever.
pub(super) async fn within<T>(most: Duration, soon: Soon<'_, T>) -> Result<T, Failure> {
    tokio::time::timeout(most, soon).await.map_err(|_| {
        Failure::Unknown(format!(
            "no answer within {} s; what was to be changed may be changed, and to ask again is safe",
            most.as_secs()
        ))
    })
}

/// How many tasks of these projects there are, by where they stand.
pub(super) async fn counts(
    tasks: &Tasks,
    projects: &BTreeSet<String>,
) -> Result<BTreeMap<String, TaskCounts>, Problem> {
    tasks.desk.in_force()?;
    Ok(within(LOOK_MAX, tasks.desk.counts(projects)).await??)
}

/// The answer with JSON.
fn json(status: StatusCode, of: impl serde::Serialize) -> Response {
    (status, axum::Json(of)).into_response()
}

#[cfg(test)]
pub(super) mod tests;
