//! One timer by its id: show it, cancel it, give it another time.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{StatusCode, Uri, header};
use axum::response::IntoResponse as _;
use axum::routing::{MethodRouter, get};
use axum::{Extension, Json};
use serde_json::Value;

use super::super::guard::Came;
use super::super::problem::Problem;
use super::deadline::{self, Deadline};
use super::json;
use super::model::{
    CommandKind, CommandOutcome, CommandStatus, LaneTimer, TimerCommand, TimerName, TimerState,
    TimersError,
};
use super::params::{self, Query};
use super::peer::{Owners, PeerReply, PeerRequest, fault};
use super::token::Ticket;
use super::{Answered, WAIT_MS, WAIT_MS_MAX, key_needed, keyed, tracked};
use crate::engine::UnixMillis;
use crate::engine::header::Code;
use crate::engine::timers::Version;

/// Begins the path of one timer.
pub(super) const TIMERS: &str = "/v1/timers/";
/// Begins the path of one ticket.
pub(super) const CANCELS: &str = "/v1/cancels/";

pub(super) fn methods() -> MethodRouter<Owners> {
    get(find).delete(cancel).patch(reschedule)
}

async fn find(
    State(owners): State<Owners>,
    Extension(came): Extension<Came>,
    uri: Uri,
) -> Answered {
    let deadline = Deadline::new(came.at, deadline::LOOK);
    let id = params::id_of_path(uri.path(), TIMERS)?;
    let mut query = Query::read(uri.query(), &["key", "key_base64"])?;
    let name = TimerName { id, key: query.key()? };
    tracked(owners.timers())?;
    match found(&owners, &name, deadline).await? {
        Some(timer) => Ok(Json(json::timer(&timer)).into_response()),
        None => Err(nobody(&owners, &name, deadline).await),
    }
}

async fn found(
    owners: &Owners,
    name: &TimerName,
    deadline: Deadline,
) -> Result<Option<LaneTimer>, TimersError> {
    let what = PeerRequest::Find(vec![name.clone()]);
    match owners.one(owners.timers().lane_of(name), what, deadline).await? {
        PeerReply::Found(mut found) => Ok(found.pop().flatten()),
        _ => Err(fault()),
    }
}

/// Why there is no timer of this name.
async fn nobody(owners: &Owners, name: &TimerName, deadline: Deadline) -> Problem {
    if let Err(problem) = must_have_no_key(owners, name, deadline).await {
        return problem;
    }
    Problem::new(
        StatusCode::NOT_FOUND,
        "unknown_timer",
        "it was never submitted, or its history has run out, or it was written straight to a tier and not read yet",
    )
    .with("state", Value::from("unknown"))
}

async fn cancel(
    State(owners): State<Owners>,
    Extension(came): Extension<Came>,
    uri: Uri,
) -> Answered {
    let id = params::id_of_path(uri.path(), TIMERS)?;
    let mut query = Query::read(uri.query(), &["key", "key_base64", "version", "wait"])?;
    let name = TimerName { id, key: query.key()? };
    let version = version(&mut query)?;
    let deadline = Deadline::new(came.at, wait(query.text("wait")?, "query.wait")?);
    // The caller may have forgotten the key.
    if name.key.is_none() && owners.timers().tracks() {
        may_have_no_key(&owners, &name, deadline.before_command()).await?;
    }
    let command = TimerCommand { name: name.clone(), version, kind: CommandKind::Cancel };
    answered(&name, None, done(&owners, command, deadline).await?)
}

/// Refuses a cancel without a key if no timer has that name, but timers with a key have its id: the caller forgot the key. If
/// that cannot be looked up, the cancel goes on as it is: it may be meant so, and urgent, and cannot hit a timer with a key.
async fn may_have_no_key(
    owners: &Owners,
    name: &TimerName,
    deadline: Deadline,
) -> Result<(), Problem> {
    let keyed = match found(owners, name, deadline).await {
        Ok(Some(_)) => return Ok(()),
        Ok(None) => keyed(owners, vec![name.id.clone()], deadline).await,
        Err(trouble) => Err(trouble),
    };
    match keyed {
        Ok(keyed) => match keyed.get(&name.id) {
            Some(timers) => Err(key_needed(timers, "query.key")),
            None => Ok(()),
        },
        Err(TimersError::Busy(detail)) => Err(TimersError::Busy(detail).into()),
        Err(_) => Ok(()),
    }
}

/// Refuses a name without a key of an id that timers with a key have.
async fn must_have_no_key(
    owners: &Owners,
    name: &TimerName,
    deadline: Deadline,
) -> Result<(), Problem> {
    if name.key.is_some() {
        return Ok(());
    }
    match keyed(owners, vec![name.id.clone()], deadline).await?.get(&name.id) {
        Some(timers) => Err(key_needed(timers, "query.key")),
        None => Ok(()),
    }
}

/// The version that a request is about.
fn version(query: &mut Query) -> Result<Option<Version>, Problem> {
    let text = query.text("version")?;
    text.map(|text| params::version(&text, "query.version")).transpose()
}

/// How long to wait for what becomes of a command.
pub(in crate::api) fn wait(text: Option<String>, at: &str) -> Result<Duration, Problem> {
    let read = |text: String| {
        // In headers a bare number means milliseconds. Here callers far more often mean seconds.
        if text.bytes().all(|byte| byte.is_ascii_digit()) && text.bytes().any(|byte| byte != b'0') {
            let detail = format!("{text:?} has no unit; want one, as in \"{text}s\" or \"500ms\"");
            return Err(Problem::bad("bad_duration", at, detail));
        }
        params::span(&text, at, WAIT_MS_MAX)
    };
    text.map_or(Ok(WAIT_MS), read).map(Duration::from_millis)
}

async fn reschedule(
    State(owners): State<Owners>,
    Extension(came): Extension<Came>,
    uri: Uri,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    let id = params::id_of_path(uri.path(), TIMERS)?;
    let mut query = Query::read(uri.query(), &["key", "key_base64", "version", "wait"])?;
    let name = TimerName { id, key: query.key()? };
    let version = version(&mut query)?;
    let deadline = Deadline::new(came.at, wait(query.text("wait")?, "query.wait")?);
    let mut body = params::body(body, &["due", "delay"])?;
    let due = match (body.remove("due"), body.remove("delay")) {
        (Some(due), None) => params::moment(&due, "body.due")?,
        (None, Some(delay)) => {
            let text = match delay {
                Value::String(text) => text,
                Value::Number(number) => number.to_string(),
                _ => {
                    let detail = "want a length of time, as in \"1h30m\", or milliseconds";
                    return Err(Problem::bad("bad_duration", "body.delay", detail));
                }
            };
            let delay = params::span(&text, "body.delay", u64::MAX)?;
            came.time.ok_or_else(no_time)?.checked_add(delay).map(UnixMillis).ok_or_else(|| {
                Problem::bad("bad_duration", "body.delay", "it ends after the end of time")
            })?
        }
        _ => {
            return Err(Problem::bad("no_time", "body", "say due or delay, and only one of them"));
        }
    };
    tracked(owners.timers())?;
    let command = TimerCommand { name: name.clone(), version, kind: CommandKind::Reschedule(due) };
    match done(&owners, command, deadline).await {
        // The lane's owner has decided all that stood there: there is no such timer, or it is not pending.
        Err(TimersError::NotPending(None)) => Err(match found(&owners, &name, deadline).await? {
            Some(_) => TimersError::NotPending(None).into(),
            None => nobody(&owners, &name, deadline).await,
        }),
        done => answered(&name, Some(due), done?),
    }
}

pub(super) fn no_time() -> Problem {
    TimersError::Away("the brokers' time is not known yet".to_owned()).into()
}

/// Has a command carried out; returns its ticket and its outcome.
async fn done(
    owners: &Owners,
    command: TimerCommand,
    deadline: Deadline,
) -> Result<(String, CommandStatus), TimersError> {
    let lane = owners.timers().lane_of(&command.name);
    match owners.one(lane, PeerRequest::Do(vec![command]), deadline).await? {
        PeerReply::Done(mut done) => done.pop().unwrap_or_else(|| Err(fault())),
        _ => Err(fault()),
    }
}

/// `due`: the other time that was asked for.
fn answered(
    name: &TimerName,
    due: Option<UnixMillis>,
    (ticket, answer): (String, CommandStatus),
) -> Answered {
    respond(&Ticket { name: name.clone(), ticket, puts_off: due.is_some() }, due, &answer)
}

/// 200 with the outcome, or 202 with the path to ask again. A reschedule that did not succeed is a conflict. `due`: the other
/// time, if it is at hand.
fn respond(ticket: &Ticket, due: Option<UnixMillis>, answer: &CommandStatus) -> Answered {
    let mut told = json::outcome(ticket, answer);
    if let CommandStatus::Decided { outcome: CommandOutcome::Replaced, .. } = answer {
        told.due = due.map(|due| due.0);
    }
    let body = Json(told);
    Ok(match answer {
        CommandStatus::Decided { outcome, state, code, .. }
            if ticket.puts_off && *outcome != CommandOutcome::Replaced =>
        {
            return Err(not_put_off(*outcome, *state, *code));
        }
        CommandStatus::Decided { .. } => body.into_response(),
        CommandStatus::Pending | CommandStatus::Lost => {
            (StatusCode::ACCEPTED, [(header::LOCATION, json::status_path(ticket))], body)
                .into_response()
        }
    })
}

/// Why a reschedule did not succeed.
fn not_put_off(outcome: CommandOutcome, state: Option<TimerState>, code: Option<Code>) -> Problem {
    let refused = |code: &str, detail: String| TimersError::Refused(code.to_owned(), detail).into();
    match outcome {
        CommandOutcome::Superseded => {
            let detail = "another version was put in its place before this was decided";
            refused("superseded", detail.to_owned())
        }
        CommandOutcome::Refused => {
            let code = code.map_or("unknown", Code::as_str);
            let detail = format!("its record with the other time is a dead letter ({code})");
            refused("refused", detail)
        }
        CommandOutcome::Delivered => TimersError::NotPending(Some(TimerState::Delivered)).into(),
        CommandOutcome::Cancelled => TimersError::NotPending(Some(TimerState::Cancelled)).into(),
        _ => TimersError::NotPending(state).into(),
    }
}

/// Asks again what became of a command.
pub(super) async fn again(
    State(owners): State<Owners>,
    Extension(came): Extension<Came>,
    uri: Uri,
) -> Answered {
    let mut query = Query::read(uri.query(), &["wait"])?;
    let deadline = Deadline::new(came.at, wait(query.text("wait")?, "query.wait")?);
    let text = uri.path().strip_prefix(CANCELS).unwrap_or_default();
    let ticket = Ticket::decode(text).ok_or_else(|| {
        Problem::bad("bad_ticket", "path.ticket", "it is not one that an answer gave")
    })?;
    let lane = owners.timers().lane_of(&ticket.name);
    let what = PeerRequest::Answer(ticket.ticket.clone());
    match owners.one(lane, what, deadline).await? {
        PeerReply::Answer(CommandStatus::Lost) => lost(&owners, &ticket, deadline).await,
        PeerReply::Answer(answer) => respond(&ticket, None, &answer),
        _ => Err(fault().into()),
    }
}

/// The instance that knew the outcome no longer runs the lane: the timer's present state says most of it.
async fn lost(owners: &Owners, ticket: &Ticket, deadline: Deadline) -> Answered {
    let state = match found(owners, &ticket.name, deadline).await? {
        Some(timer) => json::timer(&timer),
        None => Value::Null,
    };
    Err(Problem::new(
        StatusCode::GONE,
        "answer_lost",
        "the lane has moved, or its owner restarted. The timer's state says whether the command took effect; the same command may be sent again",
    )
    .with("timer", state))
}
