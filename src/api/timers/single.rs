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

use super::ask::{Asker, Told, What, fault};
use super::deadline::{self, Deadline};
use super::guard::Came;
use super::known::{Answer, Command, Name, Order, Timer, Timers, Trouble};
use super::problem::Problem;
use super::read::{self, Query};
use super::shown;
use super::token::Ticket;
use super::{Answered, WAIT_MS, WAIT_MS_MAX, key_needed, keyed, tracked};

/// Begins the path of one timer.
pub(super) const TIMERS: &str = "/v1/timers/";
/// Begins the path of one ticket.
pub(super) const CANCELS: &str = "/v1/cancels/";

pub(super) fn methods() -> MethodRouter<Asker> {
    get(find).delete(cancel).patch(reschedule)
}

async fn find(State(asker): State<Asker>, Extension(came): Extension<Came>, uri: Uri) -> Answered {
    let deadline = Deadline::new(came.at, deadline::LOOK);
    let id = read::id_of_path(uri.path(), TIMERS)?;
    let mut query = Query::read(uri.query(), &["key", "key_base64"])?;
    let name = Name { id, key: query.key()? };
    tracked(asker.timers())?;
    match found(&asker, &name, deadline).await? {
        Some(timer) => Ok(Json(shown::timer(&timer)).into_response()),
        None => Err(nobody(&asker, &name, deadline).await),
    }
}

async fn found(asker: &Asker, name: &Name, deadline: Deadline) -> Result<Option<Timer>, Trouble> {
    let what = What::Find(vec![name.clone()]);
    match asker.one(asker.timers().lane_of(name), what, deadline).await? {
        Told::Found(mut found) => Ok(found.pop().flatten()),
        _ => Err(fault()),
    }
}

/// Why there is no timer of this name.
async fn nobody(asker: &Asker, name: &Name, deadline: Deadline) -> Problem {
    if let Err(problem) = must_have_no_key(asker, name, deadline).await {
        return problem;
    }
    Problem::new(
        StatusCode::NOT_FOUND,
        "unknown_timer",
        "it was never submitted, or its history has run out, or it was written straight to a tier and not met yet",
    )
    .with("state", Value::from("unknown"))
}

async fn cancel(
    State(asker): State<Asker>,
    Extension(came): Extension<Came>,
    uri: Uri,
) -> Answered {
    let id = read::id_of_path(uri.path(), TIMERS)?;
    let mut query = Query::read(uri.query(), &["key", "key_base64", "version", "wait"])?;
    let name = Name { id, key: query.key()? };
    let version = version(asker.timers(), query.text("version")?, "query.version")?;
    let deadline = Deadline::new(came.at, wait(&asker, query.text("wait")?, "query.wait")?);
    // Without its key a timer is not meant; somebody has forgotten it.
    if name.key.is_none() && asker.timers().tracks() {
        may_have_no_key(&asker, &name, deadline.before_command()).await?;
    }
    let command = Command { name: name.clone(), version, order: Order::Cancel };
    answered(&name, false, done(&asker, command, deadline).await?)
}

/// Refuses a cancel without a key that means no timer, but for one whose key was forgotten. Where that cannot be looked up the
/// cancel is taken as it was said: it may be meant so, and be urgent, and it does nothing to a timer with a key.
async fn may_have_no_key(asker: &Asker, name: &Name, deadline: Deadline) -> Result<(), Problem> {
    let keyed = match found(asker, name, deadline).await {
        Ok(Some(_)) => return Ok(()),
        Ok(None) => keyed(asker, vec![name.id.clone()], deadline).await,
        Err(trouble) => Err(trouble),
    };
    match keyed {
        Ok(keyed) => match keyed.get(&name.id) {
            Some(timers) => Err(key_needed(timers, "query.key")),
            None => Ok(()),
        },
        Err(Trouble::Busy(detail)) => Err(Trouble::Busy(detail).into()),
        Err(_) => Ok(()),
    }
}

/// Refuses a name without a key of an id that timers with a key have.
async fn must_have_no_key(asker: &Asker, name: &Name, deadline: Deadline) -> Result<(), Problem> {
    if name.key.is_some() {
        return Ok(());
    }
    match keyed(asker, vec![name.id.clone()], deadline).await?.get(&name.id) {
        Some(timers) => Err(key_needed(timers, "query.key")),
        None => Ok(()),
    }
}

/// A version as answers show it.
pub(super) fn version(
    timers: &dyn Timers,
    text: Option<String>,
    at: &str,
) -> Result<Option<String>, Problem> {
    let bad = |detail: String| Problem::bad("bad_version", at, detail);
    text.as_deref().map(|text| timers.version(text).map_err(bad)).transpose()?;
    Ok(text)
}

/// How long to wait for what becomes of a command.
pub(super) fn wait(asker: &Asker, text: Option<String>, at: &str) -> Result<Duration, Problem> {
    let read = |text: String| {
        // Headers take a bare number for milliseconds. Here it is far more often meant as seconds.
        if text.bytes().all(|byte| byte.is_ascii_digit()) && text.bytes().any(|byte| byte != b'0') {
            let detail = format!("{text:?} has no unit; want one, as in \"{text}s\" or \"500ms\"");
            return Err(Problem::bad("bad_duration", at, detail));
        }
        read::span(asker.timers(), &text, at, WAIT_MS_MAX)
    };
    text.map_or(Ok(WAIT_MS), read).map(Duration::from_millis)
}

async fn reschedule(
    State(asker): State<Asker>,
    Extension(came): Extension<Came>,
    uri: Uri,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    let id = read::id_of_path(uri.path(), TIMERS)?;
    let mut query = Query::read(uri.query(), &["key", "key_base64", "version", "wait"])?;
    let name = Name { id, key: query.key()? };
    let version = version(asker.timers(), query.text("version")?, "query.version")?;
    let deadline = Deadline::new(came.at, wait(&asker, query.text("wait")?, "query.wait")?);
    let mut body = read::body(body, &["due", "delay"])?;
    let due = match (body.remove("due"), body.remove("delay")) {
        (Some(due), None) => read::moment(asker.timers(), &due, "body.due")?,
        (None, Some(delay)) => {
            let text = match delay {
                Value::String(text) => text,
                Value::Number(number) => number.to_string(),
                _ => {
                    let detail = "want a length of time, as in \"1h30m\", or milliseconds";
                    return Err(Problem::bad("bad_duration", "body.delay", detail));
                }
            };
            let delay = read::span(asker.timers(), &text, "body.delay", u64::MAX)?;
            came.time.ok_or_else(no_time)?.checked_add(delay).ok_or_else(|| {
                Problem::bad("bad_duration", "body.delay", "it ends after the end of time")
            })?
        }
        _ => {
            return Err(Problem::bad("no_time", "body", "say due or delay, and only one of them"));
        }
    };
    tracked(asker.timers())?;
    let command = Command { name: name.clone(), version, order: Order::Reschedule(due) };
    match done(&asker, command, deadline).await {
        // Its lane's owner has seen all that stood there by then: there is none, or nothing of it is pending.
        Err(Trouble::NotPending(None)) => Err(match found(&asker, &name, deadline).await? {
            Some(_) => Trouble::NotPending(None).into(),
            None => nobody(&asker, &name, deadline).await,
        }),
        done => answered(&name, true, done?),
    }
}

pub(super) fn no_time() -> Problem {
    Trouble::Away("the brokers' time is not known yet".to_owned()).into()
}

/// Has a command carried out; its ticket, and what became of it.
async fn done(
    asker: &Asker,
    command: Command,
    deadline: Deadline,
) -> Result<(String, Answer), Trouble> {
    let lane = asker.timers().lane_of(&command.name);
    match asker.one(lane, What::Do(vec![command]), deadline).await? {
        Told::Done(mut done) => done.pop().unwrap_or_else(|| Err(fault())),
        _ => Err(fault()),
    }
}

fn answered(name: &Name, puts_off: bool, (ticket, answer): (String, Answer)) -> Answered {
    told(&Ticket { name: name.clone(), ticket, puts_off }, &answer)
}

/// 200 with what is decided, or 202 with where to ask again. Another time that was not given is a conflict.
fn told(ticket: &Ticket, answer: &Answer) -> Answered {
    let body = Json(shown::outcome(ticket, answer));
    Ok(match answer {
        Answer::Decided { outcome, state, code, .. }
            if ticket.puts_off && outcome != "replaced" =>
        {
            return Err(not_put_off(outcome, state.as_deref(), code.as_deref()));
        }
        Answer::Decided { .. } => body.into_response(),
        Answer::Pending | Answer::Lost => {
            (StatusCode::ACCEPTED, [(header::LOCATION, shown::again(ticket))], body).into_response()
        }
    })
}

/// Why a timer is not due at another time now.
fn not_put_off(outcome: &str, state: Option<&str>, code: Option<&str>) -> Problem {
    let refused = |code: &str, detail: String| Trouble::Refused(code.to_owned(), detail).into();
    match outcome {
        "superseded" => {
            let detail = "another version was put in its place before this was decided";
            refused("superseded", detail.to_owned())
        }
        "refused" => {
            let code = code.unwrap_or("unknown");
            let detail = format!("its record with the other time is a dead letter ({code})");
            refused("refused", detail)
        }
        "delivered" | "cancelled" => Trouble::NotPending(Some(outcome.to_owned())).into(),
        _ => Trouble::NotPending(state.map(str::to_owned)).into(),
    }
}

/// Asks again what became of a command.
pub(super) async fn again(
    State(asker): State<Asker>,
    Extension(came): Extension<Came>,
    uri: Uri,
) -> Answered {
    let mut query = Query::read(uri.query(), &["wait"])?;
    let deadline = Deadline::new(came.at, wait(&asker, query.text("wait")?, "query.wait")?);
    let text = uri.path().strip_prefix(CANCELS).unwrap_or_default();
    let ticket = Ticket::decode(text).ok_or_else(|| {
        Problem::bad("bad_ticket", "path.ticket", "it is not one that an answer gave")
    })?;
    let lane = asker.timers().lane_of(&ticket.name);
    let what = What::Answer(ticket.ticket.clone());
    match asker.one(lane, what, deadline).await? {
        Told::Answer(Answer::Lost) => lost(&asker, &ticket, deadline).await,
        Told::Answer(answer) => told(&ticket, &answer),
        _ => Err(fault().into()),
    }
}

/// The instance that knew the outcome does not run the lane any more: the timer's present state tells most of it.
async fn lost(asker: &Asker, ticket: &Ticket, deadline: Deadline) -> Answered {
    let state = match found(asker, &ticket.name, deadline).await? {
        Some(timer) => shown::timer(&timer),
        None => Value::Null,
    };
    Err(Problem::new(
        StatusCode::GONE,
        "answer_lost",
        "its lane has another owner since, or that one has restarted. The timer's state says whether it took effect; the same command may be sent again",
    )
    .with("timer", state))
}
