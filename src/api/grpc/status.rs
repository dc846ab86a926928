//! Problems as gRPC tells them.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::super::problem::Problem;

/// Who says the reason of a status.
const DOMAIN: &str = "waterclock";

/// The code of gRPC for a problem.
pub(super) fn code_of(problem: &Problem) -> Code {
    match (problem.status(), problem.code()) {
        (StatusCode::UNAUTHORIZED, _) => Code::Unauthenticated,
        (StatusCode::FORBIDDEN, _) => Code::PermissionDenied,
        (StatusCode::NOT_FOUND, _) => Code::NotFound,
        (StatusCode::METHOD_NOT_ALLOWED, _) => Code::Unimplemented,
        (StatusCode::REQUEST_TIMEOUT, _) => Code::DeadlineExceeded,
        (StatusCode::CONFLICT, "revision_conflict" | "version_conflict" | "stale") => Code::Aborted,
        (StatusCode::CONFLICT, "schedule_exists") => Code::AlreadyExists,
        (StatusCode::CONFLICT, "attempt_open") => Code::Unavailable,
        (StatusCode::CONFLICT, "no_room") | (StatusCode::TOO_MANY_REQUESTS, _) => {
            Code::ResourceExhausted
        }
        (StatusCode::CONFLICT, _) => Code::FailedPrecondition,
        (StatusCode::SERVICE_UNAVAILABLE, _) => Code::Unavailable,
        (status, _) if status.is_client_error() => Code::InvalidArgument,
        _ => Code::Internal,
    }
}

/// Before the name of a field that stands in the message itself, though a field of options has its name over HTTP.
pub(super) const OF_MESSAGE: &str = "message.";

/// Before the name of a field of the task of a schedule or of a run.
pub(super) const OF_TASK: &str = "task.";

/// A field by its name in the messages: over HTTP what is ours stands beside the others.
pub(super) fn field(at: &str) -> String {
    const OPTIONS: [&str; 10] = [
        "delay",
        "poll",
        "feedback",
        "on_result",
        "expires_at",
        "window",
        "timeout",
        "service",
        "named_service",
        "tls",
    ];
    if let Some(own) = at.strip_prefix(OF_MESSAGE) {
        return own.to_owned();
    }
    if let Some(of_task) = at.strip_prefix(OF_TASK) {
        // The task of a schedule stands in JSON, where bytes have other names.
        let of_task = of_task.strip_suffix("_b64").unwrap_or(of_task);
        return format!("{OF_TASK}{}", field(of_task));
    }
    let at = at.strip_prefix("body.").or_else(|| at.strip_prefix("path.")).unwrap_or(at);
    let first = at.split(['.', '[']).next().unwrap_or_default();
    match first {
        // Of the span of a backfill. The other end is no name in Python.
        "to" => "end".to_owned(),
        "service" => format!("options.named_{at}"),
        first if OPTIONS.contains(&first) => format!("options.{at}"),
        _ => at.to_owned(),
    }
}

/// A problem as a status, with its details.
pub(in super::super) fn of_problem(problem: &Problem) -> Status {
    let mut details = ErrorDetails::new();
    details.set_error_info(problem.code(), DOMAIN, []);
    if let Some(seconds) = problem.retry_s() {
        details.set_retry_info(Some(Duration::from_secs(seconds.into())));
    }
    for (at, description) in problem.wrong_fields_named() {
        details.add_bad_request_violation(field(&at), description);
    }
    Status::with_error_details(code_of(problem), problem.detail(), details)
}

/// A problem in the form in which was asked.
pub(in super::super) fn told(is_grpc: bool, problem: Problem) -> Response {
    if is_grpc { of_problem(&problem).into_http() } else { problem.into_response() }
}
