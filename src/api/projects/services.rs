//! `/v1/projects/{project}/services/{service}`: a service of a project.

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::routing::{MethodRouter, post};

use super::super::auth::Caller;
use super::super::problem::Problem;
use super::super::tasks::Tasks;
use super::super::tasks::model::Problem as ProblemBody;
use super::super::timers::no_such_method;
use super::model::{Changed, ServiceSettings};
use super::{Action, Answered, act_on, put_any};
use crate::engine::task::registry::{Change, Registry, Service};

/// What its path answers to.
pub(super) fn methods() -> MethodRouter<Tasks> {
    post(act_on_service).put(put_service).delete(delete_service)
}

fn no_service(name: &str) -> Problem {
    let detail = format!("there is no service {name} in this project");
    Problem::new(StatusCode::NOT_FOUND, "unknown_service", detail)
}

/// Puts a service: what is not said has its default.
#[utoipa::path(
    put,
    path = "/v1/projects/{project}/services/{service}", tag = "projects", operation_id = "putService",
    params(
        ("project" = String, Path, description = "The name of the project."),
        ("service" = String, Path, description = "The name of the service."),
        ("If-Match" = Option<String>, Header, description = "The revision to change, in quotes; \"0\": none yet."),
    ),
    request_body = ServiceSettings,
    responses(
        (status = 200, description = "It is written, and in force everywhere within two seconds", body = Changed),
        (status = 409, description = "Another revision is in force", body = ProblemBody),
        (status = "4XX", description = "Nothing was changed", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn put_service(
    state: State<Tasks>,
    caller: Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    put_any(state.0, &caller, &headers, &uri, body).await
}

/// Deletes a service: tasks for it fail.
#[utoipa::path(
    delete,
    path = "/v1/projects/{project}/services/{service}", tag = "projects", operation_id = "deleteService",
    params(
        ("project" = String, Path, description = "The name of the project."),
        ("service" = String, Path, description = "The name of the service."),
        ("If-Match" = Option<String>, Header, description = "The revision to delete, in quotes."),
    ),
    responses(
        (status = 200, description = "It is written", body = Changed),
        (status = 409, description = "Another revision is in force", body = ProblemBody),
        (status = "4XX", description = "404: there is none", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn delete_service(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
) -> Answered {
    act_on(&tasks, &caller, &headers, &uri, "", Action::Delete).await
}

/// The change that does this to a service, which has to be there, and the revision that it changes.
pub(super) fn change(
    registry: &Registry,
    project: &str,
    name: &str,
    action: Action,
) -> Result<(u64, Change), Problem> {
    let service = registry.service(project, name).cloned().ok_or_else(|| no_service(name))?;
    let revision = service.revision;
    let service = match action {
        Action::Delete => None,
        Action::Pause => Some(Service { paused: true, ..service }),
        Action::Resume => Some(Service { paused: false, ..service }),
    };
    Ok((revision, Change::of_service(project, name, service)))
}

/// What is behind a colon in the path of a service.
async fn act_on_service(
    tasks: State<Tasks>,
    caller: Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
) -> Answered {
    match uri.path().rsplit_once(':') {
        Some((_, "pause")) => pause_service(tasks, caller, headers, uri).await,
        Some((_, "resume")) => resume_service(tasks, caller, headers, uri).await,
        _ => Err(no_such_method(uri).await),
    }
}

/// Pauses a service: within two seconds none of its tasks is dispatched.
#[utoipa::path(
    post,
    path = "/v1/projects/{project}/services/{service}:pause", tag = "projects", operation_id = "pauseService",
    params(
        ("project" = String, Path, description = "The name of the project."),
        ("service" = String, Path, description = "The name of the service."),
        ("If-Match" = Option<String>, Header, description = "The revision to change, in quotes."),
    ),
    responses(
        (status = 200, description = "It is written, and in force everywhere within two seconds", body = Changed),
        (status = 409, description = "Another revision is in force", body = ProblemBody),
        (status = "4XX", description = "Nothing was changed", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn pause_service(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
) -> Answered {
    act_on(&tasks, &caller, &headers, &uri, ":pause", Action::Pause).await
}

/// Ends the pause of a service.
#[utoipa::path(
    post,
    path = "/v1/projects/{project}/services/{service}:resume", tag = "projects", operation_id = "resumeService",
    params(
        ("project" = String, Path, description = "The name of the project."),
        ("service" = String, Path, description = "The name of the service."),
        ("If-Match" = Option<String>, Header, description = "The revision to change, in quotes."),
    ),
    responses(
        (status = 200, description = "It is written, and in force everywhere within two seconds", body = Changed),
        (status = 409, description = "Another revision is in force", body = ProblemBody),
        (status = "4XX", description = "Nothing was changed", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn resume_service(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
) -> Answered {
    act_on(&tasks, &caller, &headers, &uri, ":resume", Action::Resume).await
}
