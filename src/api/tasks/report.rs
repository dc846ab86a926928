//! What executors say of their turns.
//!
//! [`take_result`] and [`take_heartbeat`] know nothing of HTTP: gRPC calls them, too.

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{StatusCode, Uri};

use super::super::audit;
use super::super::auth::{Caller, Peer, Role};
use super::super::problem::Problem;
use super::create::whole;
use super::model::{self, HeartbeatAnswer, ReportAnswer, ReportOutcome};
use super::single::{id_of, is_of_caller, nobody};
use super::{Answered, Failure, LIST_MAX, SMALL_BYTES_MAX, Tasks, json, within};
use crate::engine::UnixMillis;
use crate::engine::task::id::TaskId;
use crate::engine::task::report::{self, Report};
use crate::engine::task::result::{Outcome, TaskResult};
use crate::engine::timers::TaskReport;

/// Ends the path of a result.
const RESULT: &str = "/result";
/// Ends the path of a heartbeat.
const HEARTBEAT: &str = "/heartbeat";

/// What is answered of feedback that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// The turn has ended.
    Ended(ReportOutcome),
    /// It goes on, and is to report again by then.
    Running(UnixMillis),
}

/// Takes what the executor of a task says.
///
/// # Errors
/// It does not count, or it is not known whether it does. What to do then stands in the problem.
async fn take(
    tasks: &Tasks,
    (caller, from): (&Caller, Option<Peer>),
    id: &TaskId,
    report: &Report,
) -> Result<Taken, Problem> {
    let Report { ticket, result } = report;
    match ticket {
        Some(ticket) => {
            caller.may(Role::Write)?;
            tasks.desk.in_force()?;
            tasks.desk.is_ticket(id, ticket)?;
            is_of_caller(tasks, caller, id).await?;
            told(tasks, id, ticket, result).await
        }
        None => {
            let said = match result.outcome {
                Outcome::Finished => "report_finished",
                Outcome::Gone => "report_gone",
                Outcome::Failed => "report_failed",
                _ => "heartbeat",
            };
            let what = (said, format!("tasks/{id}"));
            let took = take_of_admin(tasks, caller, id, result);
            audit::made((caller, from), what, took, |_| None).await
        }
    }
}

/// Takes what somebody says who has no ticket, of the last turn.
async fn take_of_admin(
    tasks: &Tasks,
    caller: &Caller,
    id: &TaskId,
    result: &TaskResult,
) -> Result<Taken, Problem> {
    // Who forgot his ticket is to learn that.
    let detail = "a report needs the ticket of its turn, which goes with the role write; without one the role admin may report";
    let denied = |_| Problem::new(StatusCode::FORBIDDEN, "role_denied", detail);
    caller.may(Role::Admin).map_err(denied)?;
    tasks.desk.in_force()?;
    is_of_caller(tasks, caller, id).await?;
    let ticket = within(LIST_MAX, tasks.desk.last_ticket(id)).await??;
    let Some(ticket) = ticket else {
        let detail = "no turn of this task is reported: it has no feedback, or none has begun";
        return Err(Problem::new(StatusCode::CONFLICT, "stale", detail));
    };
    told(tasks, id, &ticket, result).await
}

/// What the lane says of a report.
async fn told(
    tasks: &Tasks,
    id: &TaskId,
    ticket: &str,
    result: &TaskResult,
) -> Result<Taken, Problem> {
    let conflict = |code: &str, detail: &str| Problem::new(StatusCode::CONFLICT, code, detail);
    let ended = |outcome| Ok(Taken::Ended(outcome));
    match within(LIST_MAX, tasks.desk.report(id, ticket, result)).await?? {
        TaskReport::Finished => ended(ReportOutcome::Finished),
        TaskReport::Retrying => ended(ReportOutcome::Retrying),
        TaskReport::Failed => ended(ReportOutcome::Failed),
        TaskReport::Cancelled => ended(ReportOutcome::Cancelled),
        TaskReport::Running(next_at) => Ok(Taken::Running(next_at)),
        TaskReport::Stale => Err(conflict(
            "stale",
            "this turn is over: stop working on it. Another turn has begun, or the task has ended",
        )),
        TaskReport::Open => {
            let detail = "the call that handed this turn over is open: answer it, and report again";
            Err(conflict("attempt_open", detail).later(1))
        }
        TaskReport::Absent => Err(nobody()),
        TaskReport::Pending => Err(Failure::Unknown(
            "the report is written, and its lane has not decided it yet; report again".to_owned(),
        )
        .into()),
    }
}

/// Takes what came of a turn, and says what became of the task by that.
///
/// # Errors
/// As of [`take`].
pub(in crate::api) async fn take_result(
    tasks: &Tasks,
    caller: (&Caller, Option<Peer>),
    id: &TaskId,
    report: &Report,
) -> Result<ReportOutcome, Problem> {
    match take(tasks, caller, id, report).await? {
        Taken::Ended(outcome) => Ok(outcome),
        Taken::Running(_) => {
            let detail = "the lane took a result for a heartbeat; see the log";
            Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", detail))
        }
    }
}

/// Takes a heartbeat, and says by when to report again.
///
/// # Errors
/// As of [`take`].
pub(in crate::api) async fn take_heartbeat(
    tasks: &Tasks,
    caller: (&Caller, Option<Peer>),
    id: &TaskId,
    report: &Report,
) -> Result<UnixMillis, Problem> {
    match take(tasks, caller, id, report).await? {
        Taken::Running(next_at) => Ok(next_at),
        Taken::Ended(outcome) => {
            let detail = format!("the task is {}: stop working on it", outcome.as_str());
            Err(Problem::new(StatusCode::CONFLICT, "stale", detail))
        }
    }
}

/// Takes what came of a turn of a task with feedback.
#[utoipa::path(
    post,
    path = "/v1/tasks/{id}/result", tag = "tasks", operation_id = "reportResult",
    request_body = model::ResultReport,
    params(("id" = String, Path, description = "The id of the task.")),
    responses(
        (status = 200, description = "What became of the task by that", body = ReportAnswer),
        (status = 403, description = "The ticket is not one of this task (wrong_ticket), or there is none and the role is not admin (role_denied)", body = model::Problem),
        (status = 409, description = "The turn is over (stale), or the call that handed it over is open (attempt_open)", body = model::Problem),
        (status = "4XX", description = "404: there is none", body = model::Problem),
        (status = 503, description = "Try again", body = model::Problem),
    ),
)]
pub(in crate::api) async fn result(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    from: Option<Extension<Peer>>,
    uri: Uri,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    let id = id_of(&uri, RESULT)?;
    let report = report::read_result(&whole(body)?, SMALL_BYTES_MAX);
    let report = report.map_err(|wrongs| Problem::wrong_fields(&wrongs))?;
    let outcome = take_result(&tasks, (&caller, from.map(|from| from.0)), &id, &report).await?;
    Ok(json(StatusCode::OK, ReportAnswer { outcome }))
}

/// Takes a sign that the executor of a turn is at work.
#[utoipa::path(
    post,
    path = "/v1/tasks/{id}/heartbeat", tag = "tasks", operation_id = "heartbeat",
    request_body = model::HeartbeatReport,
    params(("id" = String, Path, description = "The id of the task.")),
    responses(
        (status = 200, description = "By when the next one has to come", body = HeartbeatAnswer),
        (status = 403, description = "The ticket is not one of this task (wrong_ticket), or there is none and the role is not admin (role_denied)", body = model::Problem),
        (status = 409, description = "The turn is over, or the task was cancelled: stop working (stale)", body = model::Problem),
        (status = "4XX", description = "404: there is none", body = model::Problem),
        (status = 503, description = "Try again", body = model::Problem),
    ),
)]
pub(in crate::api) async fn heartbeat(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    from: Option<Extension<Peer>>,
    uri: Uri,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    let id = id_of(&uri, HEARTBEAT)?;
    let report = report::read_heartbeat(&whole(body)?, SMALL_BYTES_MAX);
    let report = report.map_err(|wrongs| Problem::wrong_fields(&wrongs))?;
    let next_at = take_heartbeat(&tasks, (&caller, from.map(|from| from.0)), &id, &report).await?.0;
    Ok(json(StatusCode::OK, HeartbeatAnswer { next_at }))
}
