//! Many timers by their names, at once. A mistake in one of them fails that one only. A mistake in the request itself
//! fails all of them.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::IntoResponse as _;
use axum::{Extension, Json};
use serde_json::{Map, Value, json};

use super::super::guard::Came;
use super::super::problem::Problem;
use super::deadline::{self, Deadline};
use super::json;
use super::model::{CommandKind, CommandStatus, LaneTimer, TimerCommand, TimerName, TimersError};
use super::peer::{Owners, PeerReply, PeerRequest};
use super::token::Ticket;
use super::{Answered, BATCH_MAX, key_needed, keyed, params, single, tracked};

/// An element of a batch, or what is wrong with it.
type Element<T> = Result<T, Wrong>;

/// An element that is not valid.
struct Wrong {
    /// As it was sent, so that its sender recognizes it.
    name: Map<String, Value>,
    problem: Problem,
}

/// Reads `timers`, an array of objects with these members, each by itself. A batch without a valid element is refused.
fn elements<T>(
    body: &mut Map<String, Value>,
    known: &[&str],
    read_one: impl Fn(&mut Map<String, Value>, &str) -> Result<T, Problem>,
) -> Result<Vec<Element<T>>, Problem> {
    let all: Option<Vec<Value>> = params::member(body, "body", "timers", "an array")?;
    let all = all.unwrap_or_default();
    if !(1..=BATCH_MAX).contains(&all.len()) {
        let detail = format!("it has {} elements; want 1 to {BATCH_MAX}", all.len());
        return Err(Problem::bad("bad_batch", "body.timers", detail));
    }
    let mut elements = Vec::with_capacity(all.len());
    for (n, value) in all.into_iter().enumerate() {
        let (at, name) = (format!("body.timers[{n}]"), as_sent(&value));
        let read = params::object(value, &at, known).and_then(|mut map| read_one(&mut map, &at));
        elements.push(read.map_err(|problem| Wrong { name, problem }));
    }
    if elements.iter().any(Result::is_ok) {
        return Ok(elements);
    }
    match elements.into_iter().next() {
        Some(Err(wrong)) => Err(wrong.problem),
        // There is at least one, and none is right.
        _ => Err(super::peer::fault().into()),
    }
}

/// What an element says of its name.
fn as_sent(value: &Value) -> Map<String, Value> {
    let sent = |member: &str| Some((member.to_owned(), value.get(member)?.clone()));
    ["id", "key", "key_base64"].into_iter().filter_map(sent).collect()
}

/// The answers to the valid elements, each at its place among all elements.
fn in_place<T>(elements: Vec<Element<T>>, answers: impl IntoIterator<Item = Value>) -> Vec<Value> {
    let mut answers = answers.into_iter();
    let all = elements.into_iter().map(|element| match element {
        Ok(_) => answers.next().unwrap_or_default(),
        Err(Wrong { name, problem }) => failed(name, &problem),
    });
    all.collect()
}

/// `POST /v1/timers:batchGet`: for each name its timer, or `"state": "unknown"`.
pub(super) async fn get(
    State(owners): State<Owners>,
    Extension(came): Extension<Came>,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    let deadline = Deadline::new(came.at, deadline::LOOK);
    let mut body = params::body(body, &["timers"])?;
    let elements = elements(&mut body, &["id", "key", "key_base64"], params::name)?;
    let names: Vec<TimerName> =
        elements.iter().filter_map(|name| name.as_ref().ok().cloned()).collect();
    tracked(owners.timers())?;
    let found = owners.split(&names, |name| name, PeerRequest::Find, read_found, deadline).await;
    let missing = names.iter().zip(&found).filter(|(name, found)| is_missing(name, found));
    let keyed = keyed(&owners, missing.map(|(name, _)| name.id.clone()).collect(), deadline).await;
    let mut all = Vec::with_capacity(names.len());
    let places = elements.iter().enumerate().filter(|(_, element)| element.is_ok());
    for ((n, _), (name, found)) in places.zip(names.iter().zip(found)) {
        let shown = match found {
            Ok(Some(timer)) => Ok(json::timer(&timer)),
            found if is_missing(name, &found) => {
                forgotten(&keyed, name, n).map_or_else(|| Ok(unknown(name)), Err)
            }
            Ok(None) => Ok(unknown(name)),
            Err(trouble) => Err(trouble.into()),
        };
        all.push(shown.unwrap_or_else(|problem| failed(json::name(name), &problem)));
    }
    Ok(Json(json!({ "timers": in_place(elements, all) })).into_response())
}

/// Whether no timer has this name, and its key may have been forgotten.
fn is_missing(name: &TimerName, found: &Result<Option<LaneTimer>, TimersError>) -> bool {
    name.key.is_none() && matches!(found, Ok(None))
}

/// The problem with a name that no timer has: timers with a key have its id, or that is not known.
fn forgotten(
    keyed: &Result<BTreeMap<String, Vec<LaneTimer>>, TimersError>,
    name: &TimerName,
    n: usize,
) -> Option<Problem> {
    match keyed {
        Ok(keyed) => {
            let timers = keyed.get(&name.id)?;
            Some(key_needed(timers, &format!("body.timers[{n}].key")))
        }
        Err(trouble) => Some(trouble.clone().into()),
    }
}

fn unknown(name: &TimerName) -> Value {
    let mut map = json::name(name);
    map.insert("state".to_owned(), json!("unknown"));
    Value::Object(map)
}

fn read_found(reply: PeerReply) -> Vec<Result<Option<LaneTimer>, TimersError>> {
    match reply {
        PeerReply::Found(found) => found.into_iter().map(Ok).collect(),
        _ => Vec::new(),
    }
}

fn failed(mut map: Map<String, Value>, problem: &Problem) -> Value {
    map.insert("problem".to_owned(), problem.as_json());
    Value::Object(map)
}

/// `POST /v1/timers:batchCancel`: for each name what became of its cancel.
pub(super) async fn cancel(
    State(owners): State<Owners>,
    Extension(came): Extension<Came>,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    let mut body = params::body(body, &["timers", "wait"])?;
    let want = "a length of time as text, as in \"5s\"";
    let wait: Option<String> = params::member(&mut body, "body", "wait", want)?;
    let deadline = Deadline::new(came.at, single::wait(wait, "body.wait")?);
    let known = ["id", "key", "key_base64", "version"];
    let elements = elements(&mut body, &known, |map, at| {
        let name = params::name(map, at)?;
        let text: Option<String> = params::member(map, at, "version", "a string")?;
        let at = format!("{at}.version");
        let version = text.map(|text| params::version(&text, &at)).transpose()?;
        Ok(TimerCommand { name, version, kind: CommandKind::Cancel })
    })?;
    let right = elements.iter().enumerate().filter_map(|(n, of)| Some((n, of.as_ref().ok()?)));
    let commands: Vec<(usize, TimerCommand)> = right.map(|(n, of)| (n, of.clone())).collect();
    owners.started()?;
    // A mistake in one does not stop the others.
    let refused = refused(&owners, &commands, deadline.before_command()).await;
    let meant = commands.iter().zip(&refused).filter(|(_, problem)| problem.is_none());
    let meant: Vec<TimerCommand> = meant.map(|((_, command), _)| command.clone()).collect();
    let mut done = carry_out(&owners, &meant, deadline).await.into_iter();
    let mut all = Vec::with_capacity(commands.len());
    for ((_, TimerCommand { name, .. }), problem) in commands.into_iter().zip(refused) {
        let result = problem.map_or_else(
            || done.next().unwrap_or_else(|| Err(super::peer::fault())).map_err(Problem::from),
            Err,
        );
        all.push(match result {
            Ok((ticket, answer)) => {
                let ticket = Ticket { name, ticket, puts_off: false };
                json!(json::outcome(&ticket, &answer))
            }
            Err(problem) => failed(json::name(&name), &problem),
        });
    }
    Ok(Json(json!({ "timers": in_place(elements, all) })).into_response())
}

/// For each command, with its place in the batch, why a cancel of it is not carried out: no timer has it, and others have its id with a key.
async fn refused(
    owners: &Owners,
    commands: &[(usize, TimerCommand)],
    deadline: Deadline,
) -> Vec<Option<Problem>> {
    let mut refused: Vec<Option<Problem>> = commands.iter().map(|_| None).collect();
    if !owners.timers().tracks() {
        return refused;
    }
    let keyless = commands.iter().enumerate().filter(|(_, (_, of))| of.name.key.is_none());
    let keyless: Vec<(usize, usize, TimerName)> =
        keyless.map(|(at, (n, of))| (at, *n, of.name.clone())).collect();
    let ask = |part: Vec<(usize, usize, TimerName)>| {
        PeerRequest::Find(part.into_iter().map(|(_, _, name)| name).collect())
    };
    let found = owners.split(&keyless, |(_, _, name)| name, ask, read_found, deadline).await;
    let missing =
        keyless.iter().zip(&found).filter(|((_, _, name), found)| is_missing(name, found));
    let keyed =
        keyed(owners, missing.map(|((_, _, name), _)| name.id.clone()).collect(), deadline).await;
    for ((at, n, name), found) in keyless.iter().zip(found) {
        refused[*at] = match (found, &keyed) {
            (Ok(Some(_)), _) => None,
            (Err(TimersError::Busy(detail)), _) => Some(TimersError::Busy(detail).into()),
            // If that cannot be looked up, the cancel goes on as it is, as a single cancel does.
            (Err(_), _)
            | (
                Ok(None),
                Err(TimersError::Moving(_) | TimersError::Away(_) | TimersError::NoIndex(_)),
            ) => None,
            (Ok(None), keyed) => forgotten(keyed, name, *n),
        };
    }
    refused
}

/// Hands commands to the owners of their lanes; for each its ticket, and what became of it.
pub(super) async fn carry_out(
    owners: &Owners,
    commands: &[TimerCommand],
    deadline: Deadline,
) -> Vec<Result<(String, CommandStatus), TimersError>> {
    owners.split(commands, |command| &command.name, PeerRequest::Do, read_done, deadline).await
}

fn read_done(reply: PeerReply) -> Vec<Result<(String, CommandStatus), TimersError>> {
    match reply {
        PeerReply::Done(done) => done,
        _ => Vec::new(),
    }
}
