//! `/v1`: timers by id, in lists, in batches, and when they fall due.
//!
//! Any instance answers for any timer: it asks the owner of the timer's lane, which is itself or another instance.
//! `docs/http-api.md` is the manual.
//!
//! # Invariants
//! 1. An answer is the owner's, or there is none: while a lane moves, the client gets 503 with `Retry-After`.
//! 2. A bad request is refused with a [`Problem`] before anything is changed.
//! 3. A cancel or another time is decided where the timer's record is, in the order of the lane's commands. This room
//!    only hands it on and waits for it.
//!
//! PeerRequest it does not do: it knows neither Kafka nor the index, but only [`Timers`].

mod batch;
mod bulk;
mod deadline;
mod forecast;
mod json;
mod list;
pub mod model;
pub(super) mod params;
mod peer;
mod seal;
pub(super) mod single;
pub mod tasks;
pub mod token;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};

use super::audit;
use super::auth::{Access, Caller, Role};
use super::gate::{Gate, Held, Kind, Who};
use super::guard::{self, Form, Rules};
use super::problem::Problem;
use super::serve::Front;
use deadline::Deadline;
use model::{LaneTimer, TimerName, Timers, TimersError};
use peer::{Owners, PeerQuestion, PeerReply, PeerRequest};
use seal::UsedSeals;

pub use peer::Peers;

/// Bytes of a body: a batch of names with keys.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Bytes of a body that is about one timer.
const SMALL_BYTES_MAX: usize = 16 << 10;
/// Bytes of a request of another instance: a batch, with its keys in base64.
const PEER_BYTES_MAX: usize = 4 << 20;
/// Seals of changes that are remembered at once: each for a few seconds, as long as its caller waits.
const SEALS_MAX: usize = 100_000;
/// How long a caller waits for the outcome of a command by default.
pub(super) const WAIT_MS: u64 = 5_000;
/// The longest wait that it may set.
pub(super) const WAIT_MS_MAX: u64 = 60_000;
/// Names in one batch.
const BATCH_MAX: usize = 1_000;
/// Names shown where a key is missing.
const KEYS_SHOWN: usize = 10;
/// A batch of look-ups, which changes nothing.
const BATCH_GET: &str = "/v1/timers:batchGet";

type Answered = Result<Response, Problem>;

/// The answer to a request for which there is no time left, since this instance stops; `reads`: it changes nothing.
pub(super) fn stopping(reads: bool) -> Problem {
    peer::stopping(reads).into()
}

const RULES: Rules = Rules {
    kind,
    bytes_max,
    form: Form::Json,
    is_bodyless: |_| false,
    is_nothing: |_, _| false,
    caller,
};

fn kind(method: &Method, path: &str) -> Kind {
    let is_single = path.starts_with(single::TIMERS);
    if path.starts_with(single::CANCELS)
        || is_single && ![Method::GET, Method::HEAD].contains(method)
    {
        Kind::Wait
    } else if is_single {
        Kind::Look
    } else {
        Kind::Large
    }
}

fn bytes_max(kind: Kind) -> usize {
    if kind == Kind::Large { BODY_BYTES_MAX } else { SMALL_BYTES_MAX }
}

/// Timers are of no project: once there are tokens, a caller needs one of all projects.
fn caller(access: &Access, request: &Request) -> Result<Caller, Problem> {
    let is_read = request.method().is_safe() || request.uri().path() == BATCH_GET;
    access.of_timers(request, if is_read { Role::Read } else { Role::Write })
}

pub(super) fn router(timers: Arc<dyn Timers>, front: &Front) -> Router {
    let owners = Owners::new(Arc::clone(&timers), front.peers.clone());
    let seen = UsedSeals::new(SEALS_MAX);
    let peers = Arc::new(PeerGate { gate: Arc::clone(&front.gate), seen });
    let guard = front.guard(RULES, Arc::new(move || timers.now()));
    let peer = Router::new()
        .route(peer::PATH, post(peer))
        .method_not_allowed_fallback(no_such_method)
        .with_state((owners.clone(), peers));
    let nothing = get(no_such).post(no_such).put(no_such).delete(no_such);
    Router::new()
        .route("/v1/timers", get(list::list))
        .route("/v1/timers/", single::methods())
        .route("/v1/timers/{id}", single::methods())
        .route(BATCH_GET, post(batch::get))
        .route("/v1/timers:batchCancel", post(batch::cancel))
        .route("/v1/timers:bulkCancel", post(bulk::cancel))
        .route("/v1/cancels/{ticket}", get(single::again))
        .route("/v1/forecast", get(forecast::forecast))
        .route("/v1/", nothing.clone())
        .route("/v1/{*rest}", nothing)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(owners)
        .layer(middleware::from_fn(audit::changes))
        .layer(middleware::from_fn_with_state(guard, guard::callers))
        .merge(peer)
}

pub(super) async fn no_such(uri: Uri) -> Problem {
    let mut detail = format!("there is nothing at {}", uri.path());
    let of_api = ["/v1/tasks", "/v1/projects", "/v1/targets"];
    if of_api.iter().any(|of| uri.path().starts_with(of)) {
        detail += "; only instances with the role api answer for tasks, projects and targets";
    }
    Problem::new(StatusCode::NOT_FOUND, "no_such_page", detail)
}

pub(super) async fn no_such_method(uri: Uri) -> Problem {
    let detail = format!("{} does not take this method", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "no_such_method", detail)
}

/// Checks the requests of other instances.
struct PeerGate {
    gate: Arc<Gate>,
    seen: UsedSeals,
}

/// Answers another instance about lanes that run here. The seal in the headers is checked before any of the body is read. No
/// browser can make one, so this path takes any host name.
async fn peer(
    State((owners, peers)): State<(Owners, Arc<PeerGate>)>,
    request: Request,
) -> Answered {
    let arrived = Instant::now();
    let path = request.uri().path_and_query().map_or(peer::PATH, |path| path.as_str());
    let target = (request.method().as_str(), path);
    let sealed = seal::question(owners.timers(), target, request.headers())?;
    let held = request.extensions().get::<Held>().cloned();
    let body = guard::whole(request.into_body(), PEER_BYTES_MAX).await?;
    sealed.check(&body)?;
    let question: PeerQuestion = serde_json::from_slice(&body).map_err(|error| {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "not_a_question", error.to_string())
    })?;
    let kind = question.what.kind();
    let permit = peers.gate.enter(Who::Peer, kind);
    let times = question.times.after(sealed.underway_ms());
    let reply = match (&permit, times) {
        (Ok(_), Some(times)) => {
            if question.what.is_change() {
                // Somebody may have recorded the request: it is carried out once, and here only.
                let to = question.to.as_deref();
                sealed.is_first(owners.timers(), &peers.seen, to, question.times.left_ms)?;
            }
            let deadline = Deadline::of_question(arrived, times);
            peer::answer(owners.timers(), &question.lanes, &question.what, deadline).await
        }
        // This instance hung, or the network did. The caller no longer waits.
        (Ok(_), None) => Err(TimersError::Moving("it was asked too long ago".to_owned())),
        (Err(full), _) => Err(TimersError::Busy(format!("of other instances {full}"))),
    };
    let body = serde_json::to_vec(&reply).unwrap_or_default();
    let seal = sealed.answer(owners.timers(), &body);
    if let Ok(permit) = permit {
        guard::finish((kind, permit), held);
    }
    let json = HeaderValue::from_static("application/json");
    Ok(([(HeaderName::from_static(seal::SEAL), seal), (header::CONTENT_TYPE, json)], body)
        .into_response())
}

/// Refuses what needs tracked timers if there are none.
fn tracked(timers: &dyn Timers) -> Result<(), Problem> {
    if timers.lanes() == 0 {
        return Err(TimersError::not_ready().into());
    }
    if timers.tracks() {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::CONFLICT,
        "not_tracked",
        "tracking = \"cancellations\" is configured: only what was cancelled is remembered",
    ))
}

/// The timers with a key that have these ids, by id: a request that left a key out may mean one of them.
async fn keyed(
    owners: &Owners,
    ids: Vec<String>,
    deadline: Deadline,
) -> Result<BTreeMap<String, Vec<LaneTimer>>, TimersError> {
    let mut keyed: BTreeMap<String, Vec<LaneTimer>> = BTreeMap::new();
    if ids.is_empty() {
        return Ok(keyed);
    }
    for reply in owners.all(PeerRequest::ByIds(ids), deadline).await? {
        let PeerReply::Timers(found) = reply else { return Err(peer::fault()) };
        for of in found.into_iter().filter(|of| of.timer.key.is_some()) {
            keyed.entry(of.name().id).or_default().push(of);
        }
    }
    Ok(keyed)
}

/// The problem that a key is missing, with the names that were perhaps meant.
fn key_needed(timers: &[LaneTimer], at: &str) -> Problem {
    let mut names: Vec<TimerName> = timers.iter().map(LaneTimer::name).collect();
    names.sort();
    let names: Vec<_> = names.iter().take(KEYS_SHOWN).map(json::name).collect();
    let detail = "the timer of this id has a key, which is a part of its name: say it, too";
    Problem::bad("key_needed", at, detail).with("timers", serde_json::json!(names))
}

#[cfg(test)]
pub(super) mod tests;
