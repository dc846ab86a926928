//! `/v1/projects/{project}/services/{service}`: a service of a project.

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::routing::{MethodRouter, post};

use super::super::auth::{Caller, Role};
use super::super::problem::Problem;
use super::super::tasks::Tasks;
use super::super::tasks::model::Problem as ProblemBody;
use super::super::timers::no_such_method;
use super::changes::{if_match, write};
use super::model::{Changed, ServiceSettings};
use super::{Answered, Named, put_any};
use crate::engine::task::registry::{Change, Service};

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
    change_service(&tasks, &caller, &headers, &Named::of(&uri, "")?, |_| None).await
}

/// Changes what is known of a service, which has to be there, and nothing that another caller changes meanwhile.
async fn change_service(
    tasks: &Tasks,
    caller: &Caller,
    headers: &HeaderMap,
    named: &Named<'_>,
    change: impl FnOnce(Service) -> Option<Service>,
) -> Answered {
    let name = named.service.unwrap_or_default();
    caller.may(Role::Admin)?;
    caller.may_name(named.project)?;
    let asked = if_match(headers)?;
    let registry = tasks.projects.registry()?;
    let service = registry.service(named.project, name).cloned().ok_or_else(|| no_service(name))?;
    let revision = asked.unwrap_or(service.revision);
    let change = Change::of_service(named.project, name, change(service));
    write(tasks, caller, change, Some(revision)).await
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
    let named = Named::of(&uri, ":pause")?;
    let change = |service| Some(Service { paused: true, ..service });
    change_service(&tasks, &caller, &headers, &named, change).await
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
    let named = Named::of(&uri, ":resume")?;
    let change = |service| Some(Service { paused: false, ..service });
    change_service(&tasks, &caller, &headers, &named, change).await
}
