//! `/openapi.json`: the API of tasks and projects for programs that make clients, made from the code.
//!
//! The API of timers stands in `docs/http-api.md`.

use std::sync::LazyLock;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse as _;
use axum::routing::get;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};

use super::projects::{self, services, targets};
use super::tasks::{create, single};

/// Where the document is.
const PATH: &str = "/openapi.json";
/// The name of the tokens in it.
const TOKEN: &str = "token";

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "waterclock",
        description = "Tasks that call back, and the projects that they are of.",
    ),
    tags(
        (name = "tasks", description = "Timers that call a URL, or write a record, when they are due."),
        (name = "targets", description = "Topics that records go to, and their pauses."),
        (name = "projects", description = "Limits, pauses, and the services that tasks call."),
    ),
    paths(
        create::http, create::kafka, create::batch,
        single::list, single::get, single::cancel, single::retry,
        projects::list, projects::show, projects::put, projects::delete, projects::pause, projects::resume,
        services::put_service, services::delete_service, services::pause_service, services::resume_service,
        targets::list, targets::show_target, targets::put_target, targets::pause_target, targets::resume_target,
    ),
    // A caller on this machine needs no token while none is configured.
    security((), ("token" = [])),
    modifiers(&Tokens),
)]
struct Document;

struct Tokens;

impl utoipa::Modify for Tokens {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_default().add_security_scheme(TOKEN, scheme);
    }
}

/// The document never changes while a process runs.
static TEXT: LazyLock<String> =
    LazyLock::new(|| serde_json::to_string(&Document::openapi()).unwrap_or_default());

pub(super) fn router() -> Router {
    let answer =
        || async { ([(header::CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response() };
    Router::new().route(PATH, get(answer))
}

#[cfg(test)]
pub(super) mod tests;
