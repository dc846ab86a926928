//! `/openapi.json`: the API of tasks and projects for programs that make clients, made from the code.
//!
//! The API of timers stands in `docs/http-api.md`.

use std::sync::LazyLock;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse as _;
use axum::routing::get;
use utoipa::OpenApi as _;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Content, OpenApi, RefOr};

use super::projects::{self, services, stats, targets};
use super::runs::{self, shards};
use super::schedules::{self, of_one, times};
use super::tasks::{create, report, single};
use super::{members, problem};

/// Where the document is.
const PATH: &str = "/openapi.json";
/// Where a problem is described in it.
const PROBLEM_SCHEMA: &str = "#/components/schemas/Problem";
/// What answers and requests are.
const JSON: &str = "application/json";
/// The name of the tokens in it.
const TOKEN: &str = "token";

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "waterclock",
        description = "Tasks that call back, what submits them again and again, and the projects that they are of.",
    ),
    tags(
        (name = "tasks", description = "Timers that call a URL, or write a record, when they are due."),
        (name = "targets", description = "Topics that records go to, and their pauses."),
        (name = "schedules", description = "What submits tasks again and again, by a pattern or a period."),
        (name = "runs", description = "So many shards of one task, which count as one."),
        (name = "projects", description = "Limits, pauses, and the services that tasks call."),
        (name = "members", description = "The instances that run."),
    ),
    paths(
        create::http, create::kafka, create::grpc, create::batch,
        single::list, single::get, single::cancel, single::retry,
        report::result, report::heartbeat,
        projects::list, projects::show, projects::put, projects::delete, projects::pause, projects::resume,
        services::put_service, services::delete_service, services::pause_service, services::resume_service,
        stats::show_stats,
        schedules::list_schedules, of_one::create_schedule, of_one::get_schedule, of_one::put_schedule,
        of_one::delete_schedule, of_one::pause_schedule, of_one::resume_schedule,
        times::preview_schedule, times::trigger_schedule, times::backfill_schedule,
        runs::create_run, runs::list_runs, runs::get_run, runs::cancel_run, runs::retry_run, shards::list_shards,
        targets::list, targets::show_target, targets::put_target, targets::pause_target, targets::resume_target,
        members::list_members,
    ),
    // A caller on this machine needs no token while none is configured.
    security((), ("token" = [])),
    modifiers(&Tokens, &Problems),
)]
struct Document;

struct Tokens;

impl utoipa::Modify for Tokens {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_default().add_security_scheme(TOKEN, scheme);
    }
}

/// Says of each problem that it is `application/problem+json`, as it is answered.
struct Problems;

impl utoipa::Modify for Problems {
    fn modify(&self, document: &mut OpenApi) {
        let items = document.paths.paths.values_mut();
        let operations = items.flat_map(|item| {
            let of = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
            of.into_iter().flatten()
        });
        let responses = operations.flat_map(|operation| operation.responses.responses.values_mut());
        for response in responses {
            let RefOr::T(response) = response else { continue };
            let is_problem = |content: &RefOr<Content>| match content {
                RefOr::T(Content { schema: Some(RefOr::Ref(schema)), .. }) => {
                    schema.ref_location == PROBLEM_SCHEMA
                }
                _ => false,
            };
            if response.content.get(JSON).is_some_and(is_problem)
                && let Some(content) = response.content.shift_remove(JSON)
            {
                response.content.insert(problem::CONTENT_TYPE.to_owned(), content);
            }
        }
    }
}

/// The document never changes while a process runs.
static TEXT: LazyLock<String> =
    LazyLock::new(|| serde_json::to_string(&Document::openapi()).unwrap_or_default());

pub(super) fn router() -> Router {
    let answer = || async { ([(header::CONTENT_TYPE, JSON)], TEXT.as_str()).into_response() };
    Router::new().route(PATH, get(answer))
}

#[cfg(test)]
pub(super) mod tests;
