//! `/v1/targets`: topics that records go to, their pauses and rates. They are of no project: of timers and tasks alike.

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, Uri};
use axum::response::IntoResponse as _;
use axum::routing::{MethodRouter, get};
use axum::{Extension, Json};

use super::super::auth::{Caller, Role};
use super::super::problem::Problem;
use super::super::tasks::Tasks;
use super::super::tasks::model::Problem as ProblemBody;
use super::super::timers::no_such_method;
use super::super::timers::params::Query;
use super::changes::{asked_for, changed, if_match, in_force, with_etag, write};
use super::model::{Changed, TargetList, TargetSettings, TargetView};
use super::{Answered, settings};
use crate::engine::task::Wrong;
use crate::engine::task::registry::{Change, TargetTopic, is_topic};

/// Begins the path of one target.
const TARGETS: &str = "/v1/targets/";

/// What the path of one answers to.
pub(super) fn methods() -> MethodRouter<Tasks> {
    get(show_target).put(put_target).post(act_on_target)
}

/// The topic that a path names which ends with this.
fn named<'u>(uri: &'u Uri, end: &str) -> Result<&'u str, Problem> {
    Query::read(uri.query(), &[])?;
    let topic = uri.path().strip_prefix(TARGETS).unwrap_or_default();
    let topic = topic.strip_suffix(end).unwrap_or(topic);
    if is_topic(topic) {
        return Ok(topic);
    }
    let detail = "want the name of a topic: 1 to 249 of a-z A-Z 0-9 . _ -, not . or ..";
    Err(Problem::bad("bad_name", "path.topic", detail))
}

/// Topics are of no project, so a caller that looks at them or changes them needs a token of all projects.
fn permitted(caller: &Caller, role: Role) -> Result<(), Problem> {
    caller.may_with_all_projects(role, "a target")
}

/// Refuses a change of a topic to which no record ever goes: it would do nothing.
fn may_be_put(tasks: &Tasks, topic: &str) -> Result<(), Problem> {
    let wrong = |detail| Problem::wrong_fields(&[Wrong { at: "path.topic".to_owned(), detail }]);
    tasks.takes_records(topic).map_err(wrong)
}

fn view(topic: &str, target: TargetTopic) -> Result<TargetView, Problem> {
    let TargetSettings { rate, burst, .. } = settings(&Change::of_target(topic, Some(target)))?;
    let TargetTopic { revision, paused, .. } = target;
    Ok(TargetView { topic: topic.to_owned(), revision, paused, rate, burst })
}

/// Lists the topics of which something was put.
#[utoipa::path(
    get,
    path = "/v1/targets", tag = "targets", operation_id = "listTargets",
    responses(
        (status = 200, description = "By name", body = TargetList),
        (status = "4XX", description = "The request is wrong", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn list(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answered {
    Query::read(uri.query(), &[])?;
    permitted(&caller, Role::Read)?;
    let registry = tasks.projects.registry()?;
    let targets = registry.targets().map(|(topic, target)| view(topic, target));
    Ok(Json(TargetList { targets: targets.collect::<Result<_, _>>()? }).into_response())
}

/// Shows whether a topic is paused, and its rate. One of which nothing was put is not, and has none.
#[utoipa::path(
    get,
    path = "/v1/targets/{topic}", tag = "targets", operation_id = "getTarget",
    params(("topic" = String, Path, description = "The name of the topic.")),
    responses(
        (status = 200, description = "The topic; ETag has its revision", body = TargetView),
        (status = "4XX", description = "The request is wrong", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn show_target(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answered {
    let topic = named(&uri, "")?;
    permitted(&caller, Role::Read)?;
    let target = tasks.projects.registry()?.target(topic);
    Ok(with_etag(target.revision, view(topic, target)?))
}

/// Puts a topic: what is not said has its default.
#[utoipa::path(
    put,
    path = "/v1/targets/{topic}", tag = "targets", operation_id = "putTarget",
    params(
        ("topic" = String, Path, description = "The name of the topic."),
        ("If-Match" = Option<String>, Header, description = "The revision to change, in quotes; \"0\": none yet."),
    ),
    request_body = TargetSettings,
    responses(
        (status = 200, description = "It is written, and in force everywhere within two seconds", body = Changed),
        (status = 409, description = "Another revision is in force", body = ProblemBody),
        (status = "4XX", description = "Nothing was changed", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn put_target(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    let topic = named(&uri, "")?;
    permitted(&caller, Role::Admin)?;
    may_be_put(&tasks, topic)?;
    let revision = if_match(&headers)?;
    let body = body.map_err(|error| Problem::new(error.status(), "no_body", error.body_text()))?;
    let change = asked_for(&format!("target/{topic}"), &body)?;
    Ok(changed(write(&tasks, change, revision).await?))
}

/// What is behind a colon in the path of a target.
async fn act_on_target(
    tasks: State<Tasks>,
    caller: Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
) -> Answered {
    match uri.path().rsplit_once(':') {
        Some((_, "pause")) => pause_target(tasks, caller, headers, uri).await,
        Some((_, "resume")) => resume_target(tasks, caller, headers, uri).await,
        _ => Err(no_such_method(uri).await),
    }
}

/// Pauses a topic: within two seconds no record goes there, neither of timers nor of tasks. Its rate stays.
#[utoipa::path(
    post,
    path = "/v1/targets/{topic}:pause", tag = "targets", operation_id = "pauseTarget",
    params(
        ("topic" = String, Path, description = "The name of the topic."),
        ("If-Match" = Option<String>, Header, description = "The revision to change, in quotes."),
    ),
    responses(
        (status = 200, description = "It is written, and in force everywhere within two seconds", body = Changed),
        (status = 409, description = "Another revision is in force", body = ProblemBody),
        (status = "4XX", description = "Nothing was changed", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn pause_target(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
) -> Answered {
    set_paused(&tasks, &caller, &headers, named(&uri, ":pause")?, true).await
}

/// Ends the pause of a topic: what has waited goes there in the order of due time.
#[utoipa::path(
    post,
    path = "/v1/targets/{topic}:resume", tag = "targets", operation_id = "resumeTarget",
    params(
        ("topic" = String, Path, description = "The name of the topic."),
        ("If-Match" = Option<String>, Header, description = "The revision to change, in quotes."),
    ),
    responses(
        (status = 200, description = "It is written, and in force everywhere within two seconds", body = Changed),
        (status = 409, description = "Another revision is in force", body = ProblemBody),
        (status = "4XX", description = "Nothing was changed", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn resume_target(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
) -> Answered {
    set_paused(&tasks, &caller, &headers, named(&uri, ":resume")?, false).await
}

/// Changes this, and nothing that another caller changes meanwhile.
async fn set_paused(
    tasks: &Tasks,
    caller: &Caller,
    headers: &HeaderMap,
    topic: &str,
    paused: bool,
) -> Answered {
    permitted(caller, Role::Admin)?;
    let asked = if_match(headers)?;
    let registry = in_force(tasks, asked, |of| of.target(topic).revision).await?;
    let target = registry.target(topic);
    // An older version has taken a pause of any topic: that can be ended.
    let ends_one = !paused && target.paused;
    if !ends_one {
        may_be_put(tasks, topic)?;
    }
    let revision = target.revision;
    let change = Change::of_target(topic, Some(TargetTopic { paused, ..target }));
    Ok(changed(write(tasks, change, Some(revision)).await?))
}
