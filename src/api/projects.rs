//! `/v1/projects`: projects, their services, their pauses, and how many tasks they have. `/v1/targets`: pauses of topics.
//!
//! # Invariants
//! 1. A change that names a revision (`If-Match`) is made only to that revision.
//! 2. A pause and a resume change nothing else: one that meets another change at the same time is refused.
//! 3. What a token does not cover is as if it were not there.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get};
use axum::{Extension, Json, Router};
use url::Url;

use super::audit::Revisions;
use super::auth::{Caller, Role};
use super::problem::Problem;
use super::serve::Front;
use super::tasks::model::Problem as ProblemBody;
use super::tasks::{self, Failure, Tasks};
use super::timers::model::Soon;
use super::timers::no_such_method;
use super::timers::params::Query;
use crate::engine::Millis;
use crate::engine::task::Wrong;
use crate::engine::task::registry::{Change, NAME_WANTED, Project, Registry, Service, is_name};

mod changes;
pub mod model;
pub(super) mod services;
pub(super) mod stats;
pub(super) mod targets;

pub(super) use stats::stats;

use changes::{asked_for, changed, if_match, in_force, with_etag, write};
use model::{
    Changed, ProjectList, ProjectRow, ProjectSettings, ProjectView, ServiceSettings, ServiceView,
};

/// Begins the path of one project.
const PROJECTS: &str = "/v1/projects/";

type Answered = Result<Response, Problem>;

/// Why a project, a service or a target was not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutError {
    /// Another revision is in force.
    Conflict {
        /// That one; 0: it was never put.
        current: u64,
    },
    /// There are too many of them, or they are too large.
    NoRoom(Wrong),
    /// The project of a service was deleted.
    Deleted(Wrong),
    /// Kafka does not answer; the text says whether the change may have been written.
    Unavailable(String),
}

/// Projects, services and targets, which every instance hears of.
pub trait Projects: Send + Sync + 'static {
    /// What this instance has heard, at most two seconds old.
    ///
    /// # Errors
    /// [`Failure::Moving`]: it has not heard anything yet.
    fn registry(&self) -> Result<Arc<Registry>, Failure>;
    /// Writes a change, and gives back its revision; `revision`: only if that one is in force, 0 meaning that it was never
    /// put.
    ///
    /// # Errors
    /// See [`PutError`].
    fn put(&self, change: Change, revision: Option<u64>) -> Soon<'_, Result<u64, PutError>>;
}

impl From<PutError> for Problem {
    fn from(error: PutError) -> Self {
        match error {
            PutError::Conflict { current } => {
                let detail =
                    format!("the revision {current} is in force; look at it and ask again");
                let problem = Self::new(StatusCode::CONFLICT, "revision_conflict", detail);
                problem.with("current", current.into())
            }
            PutError::NoRoom(wrong) => {
                Self::new(StatusCode::CONFLICT, "no_room", wrong.to_string())
            }
            PutError::Deleted(wrong) => {
                Self::new(StatusCode::CONFLICT, "project_deleted", wrong.detail)
            }
            PutError::Unavailable(detail) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "kafka_away", detail).later(5)
            }
        }
    }
}

/// The routes, as the document at `/openapi.json` has to have them; actions are a part of the last segment.
pub(super) fn routes() -> [(&'static str, MethodRouter<Tasks>); 6] {
    [
        ("/v1/projects", get(list)),
        ("/v1/projects/{project}", get(show).put(put).delete(delete).post(act)),
        ("/v1/projects/{project}/services/{service}", services::methods()),
        ("/v1/projects/{project}/stats", stats::methods()),
        ("/v1/targets", get(targets::list)),
        ("/v1/targets/{topic}", targets::methods()),
    ]
}

pub(super) fn router(tasks: Tasks, front: &Front) -> Router {
    let mut router = Router::new();
    for (path, methods) in routes() {
        router = router.route(path, methods);
    }
    tasks::finish(router, tasks, front)
}

/// A project, or a service of it.
pub(super) struct Named<'a> {
    project: &'a str,
    service: Option<&'a str>,
}

impl<'a> Named<'a> {
    /// Reads a path that ends with this.
    fn of(uri: &'a Uri, end: &str) -> Result<Self, Problem> {
        Query::read(uri.query(), &[])?;
        let rest = uri.path().strip_prefix(PROJECTS).unwrap_or_default();
        let rest = rest.strip_suffix(end).unwrap_or(rest);
        let (project, service) = match rest.split_once("/services/") {
            Some((project, service)) => (project, Some(service)),
            None => (rest, None),
        };
        Self::new(project, service, "path.")
    }

    /// With these names; `at` is where they stand, and begins what an answer calls them.
    pub(super) fn new(
        project: &'a str,
        service: Option<&'a str>,
        at: &str,
    ) -> Result<Self, Problem> {
        for (field, name) in [("project", Some(project)), ("service", service)] {
            if name.is_some_and(|name| !is_name(name)) {
                let detail = format!("want {NAME_WANTED}");
                return Err(Problem::bad("bad_name", format!("{at}{field}"), detail));
            }
        }
        Ok(Self { project, service })
    }

    /// What follows `/v1/` in its path.
    pub(super) fn path(&self) -> String {
        match self.service {
            Some(service) => format!("projects/{}/services/{service}", self.project),
            None => format!("projects/{}", self.project),
        }
    }

    fn key(&self) -> String {
        match self.service {
            Some(service) => format!("service/{}/{service}", self.project),
            None => format!("project/{}", self.project),
        }
    }
}

/// There is no such project, as far as this caller may know.
pub(super) fn no_project(name: &str) -> Problem {
    let detail = format!(
        "there is no project {name}: nothing was put, it was deleted, or the token does not cover it"
    );
    Problem::new(StatusCode::NOT_FOUND, "unknown_project", detail)
}

/// The typed form of what meta has.
fn settings<T: serde::de::DeserializeOwned>(change: &Change) -> Result<T, Problem> {
    let value = change.value().unwrap_or_default();
    serde_json::from_str(&value).map_err(|error| {
        let detail = format!("what is known of it cannot be shown: {error}");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", detail)
    })
}

fn view(name: &str, project: &Project) -> Result<ProjectView, Problem> {
    let service = |(service, of): (&String, &Service)| {
        let settings = settings(&Change::of_service(name, service, Some(of.clone())))?;
        Ok((service.clone(), ServiceView { revision: of.revision, settings }))
    };
    Ok(ProjectView {
        project: name.to_owned(),
        revision: project.revision,
        settings: settings(&Change::of_project(name, project.clone()))?,
        services: project.services.iter().map(service).collect::<Result<_, Problem>>()?,
    })
}

/// Lists the projects of which something was put.
#[utoipa::path(
    get,
    path = "/v1/projects", tag = "projects", operation_id = "listProjects",
    responses(
        (status = 200, description = "By name", body = ProjectList),
        (status = "4XX", description = "The request is wrong", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(super) async fn list(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answered {
    Query::read(uri.query(), &[])?;
    Ok(Json(all(&tasks, &caller)?).into_response())
}

/// The projects of which something was put, and that the caller may know of, by name.
pub(super) fn all(tasks: &Tasks, caller: &Caller) -> Result<ProjectList, Problem> {
    let registry = tasks.projects.registry()?;
    let seen = |(name, project): &(&str, &Project)| !project.is_deleted && caller.sees(name);
    let row = |(name, project): (&str, &Project)| ProjectRow {
        project: name.to_owned(),
        revision: project.revision,
        paused: project.paused,
        concurrency: project.concurrency,
        services: project.services.keys().cloned().collect(),
    };
    let projects = registry.projects().filter(seen).map(row).collect();
    Ok(ProjectList { projects })
}

/// Shows a project and its services.
#[utoipa::path(
    get,
    path = "/v1/projects/{project}", tag = "projects", operation_id = "getProject",
    params(("project" = String, Path, description = "The name of the project.")),
    responses(
        (status = 200, description = "The project; ETag has its revision", body = ProjectView),
        (status = "4XX", description = "404: there is none", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(super) async fn show(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answered {
    let project = look(&tasks, &caller, Named::of(&uri, "")?.project)?;
    Ok(with_etag(project.revision, project))
}

/// A project and its services.
pub(super) fn look(tasks: &Tasks, caller: &Caller, name: &str) -> Result<ProjectView, Problem> {
    let registry = tasks.projects.registry()?;
    view(name, known(&registry, caller, name)?)
}

/// A project of which something was put, if this caller may know of it.
fn known<'r>(registry: &'r Registry, caller: &Caller, name: &str) -> Result<&'r Project, Problem> {
    let project = registry.project(name);
    let is_there = *project != Project::NEVER_PUT && !project.is_deleted;
    if is_there && caller.sees(name) { Ok(project) } else { Err(no_project(name)) }
}

/// Puts a project: what is not said has its default. Its services stay.
#[utoipa::path(
    put,
    path = "/v1/projects/{project}", tag = "projects", operation_id = "putProject",
    params(
        ("project" = String, Path, description = "The name of the project."),
        ("If-Match" = Option<String>, Header, description = "The revision to change, in quotes; \"0\": none yet."),
    ),
    request_body = ProjectSettings,
    responses(
        (status = 200, description = "It is written, and in force everywhere within two seconds", body = Changed),
        (status = 409, description = "Another revision is in force", body = ProblemBody),
        (status = "4XX", description = "Nothing was changed", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(super) async fn put(
    state: State<Tasks>,
    caller: Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    put_any(state.0, &caller, &headers, &uri, body).await
}

async fn put_any(
    tasks: Tasks,
    caller: &Caller,
    headers: &HeaderMap,
    uri: &Uri,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    let named = Named::of(uri, "")?;
    may_change(caller, &named)?;
    let revision = if_match(headers)?;
    let body = body.map_err(|error| Problem::new(error.status(), "no_body", error.body_text()))?;
    Ok(changed(set(&tasks, caller, &named, &body, revision).await?))
}

/// Refuses who may not change this project.
fn may_change(caller: &Caller, named: &Named<'_>) -> Result<(), Problem> {
    caller.may(Role::Admin)?;
    caller.may_name(named.project)
}

/// Puts a project or a service with these settings in JSON, and says what that made. `revision`: only if that one is in
/// force.
pub(super) async fn set(
    tasks: &Tasks,
    caller: &Caller,
    named: &Named<'_>,
    settings_json: &[u8],
    revision: Option<u64>,
) -> Result<Revisions, Problem> {
    may_change(caller, named)?;
    let change = asked_for(&named.key(), settings_json)?;
    let longest = tasks.desk.max_delay();
    // Nothing is known of it before the instance has started.
    let too_long = |delay: &Millis| longest > Millis(0) && *delay > longest;
    if let Some(delay) = change.project().and_then(|project| project.max_delay).filter(too_long) {
        let detail =
            format!("is {delay}; want at most {longest}, the longest delay here (max-delay)");
        return Err(Problem::wrong_fields(&[Wrong { at: "max_delay".to_owned(), detail }]));
    }
    if named.service.is_some() {
        let service: ServiceSettings = settings(&change)?;
        let detail = match Url::parse(&service.address) {
            Ok(address) => {
                let registry = tasks.projects.registry()?;
                tasks.screened(registry.project(named.project), &address).err()
            }
            Err(error) => Some(format!("is no URL: {error}")),
        };
        if let Some(detail) = detail {
            return Err(Problem::wrong_fields(&[Wrong { at: "address".to_owned(), detail }]));
        }
    }
    write(tasks, change, revision).await
}

/// Deletes a project: it takes no more tasks, and those that wait end.
#[utoipa::path(
    delete,
    path = "/v1/projects/{project}", tag = "projects", operation_id = "deleteProject",
    params(
        ("project" = String, Path, description = "The name of the project."),
        ("If-Match" = Option<String>, Header, description = "The revision to delete, in quotes."),
    ),
    responses(
        (status = 200, description = "It is written", body = Changed),
        (status = 409, description = "Another revision is in force", body = ProblemBody),
        (status = "4XX", description = "404: there is none", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(super) async fn delete(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
) -> Answered {
    act_on(&tasks, &caller, &headers, &uri, "", Action::Delete).await
}

/// What can be done to a project or a service besides putting it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// It takes no more tasks, and those that wait end.
    Delete,
    /// None of its tasks is dispatched.
    Pause,
    /// The end of a pause.
    Resume,
}

/// Does what a request says to the project or the service that its path names.
async fn act_on(
    tasks: &Tasks,
    caller: &Caller,
    headers: &HeaderMap,
    uri: &Uri,
    end: &str,
    action: Action,
) -> Answered {
    let named = Named::of(uri, end)?;
    may_change(caller, &named)?;
    let asked = if_match(headers)?;
    Ok(changed(apply(tasks, caller, &named, action, asked).await?))
}

/// Does this to a project or a service, and changes nothing that another caller changes meanwhile. Says what that made.
/// `asked`: only if that one is in force.
pub(super) async fn apply(
    tasks: &Tasks,
    caller: &Caller,
    named: &Named<'_>,
    action: Action,
    asked: Option<u64>,
) -> Result<Revisions, Problem> {
    may_change(caller, named)?;
    let registry = in_force(tasks, asked, |of| match named.service {
        Some(name) => of.service(named.project, name).map_or(0, |of| of.revision),
        None => of.project(named.project).revision,
    })
    .await?;
    let (revision, change) = match named.service {
        Some(name) => services::change(&registry, named.project, name, action)?,
        None => {
            let mut project = registry.project(named.project).clone();
            if action == Action::Delete {
                known(&registry, caller, named.project)?;
            } else if project.is_deleted {
                return Err(no_project(named.project));
            }
            let revision = project.revision;
            match action {
                Action::Delete => project.is_deleted = true,
                Action::Pause => project.paused = true,
                Action::Resume => project.paused = false,
            }
            (revision, Change::of_project(named.project, project))
        }
    };
    write(tasks, change, Some(revision)).await
}

/// What is behind a colon in the path of a project.
async fn act(
    tasks: State<Tasks>,
    caller: Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
) -> Answered {
    match uri.path().rsplit_once(':') {
        Some((_, "pause")) => pause(tasks, caller, headers, uri).await,
        Some((_, "resume")) => resume(tasks, caller, headers, uri).await,
        _ => Err(no_such_method(uri).await),
    }
}

/// Pauses a project: within two seconds none of its tasks is dispatched.
#[utoipa::path(
    post,
    path = "/v1/projects/{project}:pause", tag = "projects", operation_id = "pauseProject",
    params(
        ("project" = String, Path, description = "The name of the project."),
        ("If-Match" = Option<String>, Header, description = "The revision to change, in quotes."),
    ),
    responses(
        (status = 200, description = "It is written, and in force everywhere within two seconds", body = Changed),
        (status = 409, description = "Another revision is in force", body = ProblemBody),
        (status = "4XX", description = "Nothing was changed", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(super) async fn pause(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
) -> Answered {
    act_on(&tasks, &caller, &headers, &uri, ":pause", Action::Pause).await
}

/// Ends the pause of a project.
#[utoipa::path(
    post,
    path = "/v1/projects/{project}:resume", tag = "projects", operation_id = "resumeProject",
    params(
        ("project" = String, Path, description = "The name of the project."),
        ("If-Match" = Option<String>, Header, description = "The revision to change, in quotes."),
    ),
    responses(
        (status = 200, description = "It is written, and in force everywhere within two seconds", body = Changed),
        (status = 409, description = "Another revision is in force", body = ProblemBody),
        (status = "4XX", description = "Nothing was changed", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(super) async fn resume(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
) -> Answered {
    act_on(&tasks, &caller, &headers, &uri, ":resume", Action::Resume).await
}

#[cfg(test)]
mod tests;
