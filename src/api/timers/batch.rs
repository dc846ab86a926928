//! Many timers by their names, at once. What is wrong with one of them fails that one only, but for what is wrong with
//! the request itself.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::IntoResponse as _;
use serde_json::{Map, Value, json};

use super::ask::{Asker, Told, What};
use super::known::{Answer, Command, Name, Order, Timer, Trouble};
use super::problem::Problem;
use super::shown;
use super::token::Ticket;
use super::{Answered, BATCH_MAX, key_needed, keyed, read, single, tracked};

/// One object of a batch, and where it stands.
type Element = (String, Map<String, Value>);

/// Reads `timers`, an array of objects with these members.
fn timers(body: &mut Map<String, Value>, known: &[&str]) -> Result<Vec<Element>, Problem> {
    let all: Option<Vec<Value>> = read::member(body, "body", "timers", "an array")?;
    let all = all.unwrap_or_default();
    if !(1..=BATCH_MAX).contains(&all.len()) {
        let detail = format!("it has {} elements; want 1 to {BATCH_MAX}", all.len());
        return Err(Problem::bad("bad_batch", "body.timers", detail));
    }
    let read = |(n, value)| {
        let at = format!("body.timers[{n}]");
        read::object(value, &at, known).map(|map| (at, map))
    };
    all.into_iter().enumerate().map(read).collect()
}

/// `POST /v1/timers:batchGet`: for each name its timer, or `"state": "unknown"`.
pub(super) async fn get(
    State(asker): State<Asker>,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    let mut body = read::body(body, &["timers"])?;
    let mut names = Vec::new();
    for (at, mut map) in timers(&mut body, &["id", "key", "key_base64"])? {
        names.push(read::name(&mut map, &at)?);
    }
    tracked(asker.timers())?;
    let found = asker.split(&names, |name| name, What::Find, read_found).await;
    let missing = names.iter().zip(&found).filter(|(name, found)| is_missing(name, found));
    let keyed = keyed(&asker, missing.map(|(name, _)| name.id.clone()).collect()).await;
    let mut all = Vec::with_capacity(names.len());
    for (n, (name, found)) in names.iter().zip(found).enumerate() {
        let told = match found {
            Ok(Some(timer)) => Ok(shown::timer(&timer)),
            found if is_missing(name, &found) => {
                forgotten(&keyed, name, n).map_or_else(|| Ok(unknown(name)), Err)
            }
            Ok(None) => Ok(unknown(name)),
            Err(trouble) => Err(trouble.into()),
        };
        all.push(told.unwrap_or_else(|problem| failed(name, &problem)));
    }
    Ok(Json(json!({ "timers": all })).into_response())
}

/// Whether nobody has this name, and its key may have been forgotten.
fn is_missing(name: &Name, found: &Result<Option<Timer>, Trouble>) -> bool {
    name.key.is_none() && matches!(found, Ok(None))
}

/// What is wrong with a name that nobody has: others have its id with a key, or that is not known.
fn forgotten(
    keyed: &Result<BTreeMap<String, Vec<Timer>>, Trouble>,
    name: &Name,
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

fn unknown(name: &Name) -> Value {
    let mut map = shown::name(name);
    map.insert("state".to_owned(), json!("unknown"));
    Value::Object(map)
}

fn read_found(told: Told) -> Vec<Result<Option<Timer>, Trouble>> {
    match told {
        Told::Found(found) => found.into_iter().map(Ok).collect(),
        _ => Vec::new(),
    }
}

fn failed(name: &Name, problem: &Problem) -> Value {
    let mut map = shown::name(name);
    map.insert("problem".to_owned(), problem.as_json());
    Value::Object(map)
}

/// `POST /v1/timers:batchCancel`: for each name what became of its cancel.
pub(super) async fn cancel(
    State(asker): State<Asker>,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    let mut body = read::body(body, &["timers", "wait"])?;
    let wait: Option<String> = read::member(&mut body, "body", "wait", "a string")?;
    let wait_ms = single::wait(&asker, wait, "body.wait")?;
    let mut commands = Vec::new();
    for (at, mut map) in timers(&mut body, &["id", "key", "key_base64", "version"])? {
        let name = read::name(&mut map, &at)?;
        let text: Option<String> = read::member(&mut map, &at, "version", "a string")?;
        let version = single::version(asker.timers(), text, &format!("{at}.version"))?;
        commands.push(Command { name, version, order: Order::Cancel });
    }
    // What is wrong with one does not keep the others from it.
    let names: Vec<&Name> = commands.iter().map(|command| &command.name).collect();
    let refused = refused(&asker, &names).await;
    let meant = commands.iter().zip(&refused).filter(|(_, problem)| problem.is_none());
    let meant: Vec<Command> = meant.map(|(command, _)| command.clone()).collect();
    let mut done = carry_out(&asker, &meant, wait_ms).await.into_iter();
    let mut all = Vec::with_capacity(commands.len());
    for (Command { name, .. }, problem) in commands.into_iter().zip(refused) {
        let told = problem.map_or_else(
            || done.next().unwrap_or_else(|| Err(super::ask::fault())).map_err(Problem::from),
            Err,
        );
        all.push(match told {
            Ok((ticket, answer)) => {
                shown::outcome(&Ticket { name, ticket, puts_off: false }, &answer)
            }
            Err(problem) => failed(&name, &problem),
        });
    }
    Ok(Json(json!({ "timers": all })).into_response())
}

/// For each name, why a cancel of it is not carried out: no timer has it, and others have its id with a key.
async fn refused(asker: &Asker, names: &[&Name]) -> Vec<Option<Problem>> {
    let mut refused: Vec<Option<Problem>> = names.iter().map(|_| None).collect();
    if !asker.timers().tracks() {
        return refused;
    }
    let keyless = names.iter().enumerate().filter(|(_, name)| name.key.is_none());
    let keyless: Vec<(usize, Name)> = keyless.map(|(n, name)| (n, (*name).clone())).collect();
    let ask =
        |part: Vec<(usize, Name)>| What::Find(part.into_iter().map(|(_, name)| name).collect());
    let found = asker.split(&keyless, |(_, name)| name, ask, read_found).await;
    let missing = keyless.iter().zip(&found).filter(|((_, name), found)| is_missing(name, found));
    let keyed = keyed(asker, missing.map(|((_, name), _)| name.id.clone()).collect()).await;
    for ((n, name), found) in keyless.iter().zip(found) {
        refused[*n] = match found {
            Ok(Some(_)) => None,
            Ok(None) => forgotten(&keyed, name, *n),
            Err(trouble) => Some(trouble.into()),
        };
    }
    refused
}

/// Hands commands to the owners of their lanes; for each its ticket, and what became of it.
pub(super) async fn carry_out(
    asker: &Asker,
    commands: &[Command],
    wait_ms: u64,
) -> Vec<Result<(String, Answer), Trouble>> {
    let what = |commands| What::Do { commands, wait_ms };
    asker.split(commands, |command| &command.name, what, read_done).await
}

fn read_done(told: Told) -> Vec<Result<(String, Answer), Trouble>> {
    match told {
        Told::Done(done) => done,
        _ => Vec::new(),
    }
}
