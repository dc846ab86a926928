//! Creates tasks, one or many.

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::super::auth::{Caller, Role};
use super::super::guard::Came;
use super::super::problem::Problem;
use super::model::{self, Created, CreatedBatch, CreatedEach, Submission};
use super::quota::{Refusal, pending_of};
use super::{
    Answered, BATCH_BYTES_MAX, CREATE_BYTES_MAX, CREATE_MAX, Failure, LOOK_MAX, Tasks, json, time,
    within,
};
use crate::engine::schedule::NEVER;
use crate::engine::task::Wrong;
use crate::engine::task::id::TaskId;
use crate::engine::task::registry::{Protocol, Registry};
use crate::engine::task::request::{self, Batch, Due, Request, TaskType};
use crate::engine::task::spec::{
    Address, Feedback, GrpcAddress, HEARTBEAT_MIN_LARGE, Kind, LARGE_BYTES, OnResult,
};
use crate::engine::{Millis, UnixMillis};

/// The field of a schedule or a run that has its task.
const TASK: &str = "task";
/// Says the same as `request_id`.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Creates a task that calls a URL or a service.
#[utoipa::path(
    post,
    path = "/v1/tasks/http", tag = "tasks", operation_id = "createHttpTask",
    request_body = model::HttpTask,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same as request_id.")),
    responses(
        (status = 201, description = "It is written; the same request id again has the same task_id", body = Created),
        (status = 429, description = "The project has created, or has, as many tasks as it may; Retry-After says when to come back", body = model::Problem),
        (status = "4XX", description = "Nothing was created", body = model::Problem),
        (status = 503, description = "Try again", body = model::Problem),
    ),
)]
pub(in crate::api) async fn http(
    tasks: State<Tasks>,
    came: Extension<Came>,
    caller: Extension<Caller>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    one(TaskType::Http, tasks.0, came.0, &caller, &headers, body).await
}

/// Creates a task that writes a record to a topic.
#[utoipa::path(
    post,
    path = "/v1/tasks/kafka", tag = "tasks", operation_id = "createKafkaTask",
    request_body = model::KafkaTask,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same as request_id.")),
    responses(
        (status = 201, description = "It is written; the same request id again has the same task_id", body = Created),
        (status = 429, description = "The project has created, or has, as many tasks as it may; Retry-After says when to come back", body = model::Problem),
        (status = "4XX", description = "Nothing was created", body = model::Problem),
        (status = 503, description = "Try again", body = model::Problem),
    ),
)]
pub(in crate::api) async fn kafka(
    tasks: State<Tasks>,
    came: Extension<Came>,
    caller: Extension<Caller>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    one(TaskType::Kafka, tasks.0, came.0, &caller, &headers, body).await
}

/// Creates a task that calls a method of a gRPC service.
#[utoipa::path(
    post,
    path = "/v1/tasks/grpc", tag = "tasks", operation_id = "createGrpcTask",
    request_body = model::GrpcTask,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same as request_id.")),
    responses(
        (status = 201, description = "It is written; the same request id again has the same task_id", body = Created),
        (status = 429, description = "The project has created, or has, as many tasks as it may; Retry-After says when to come back", body = model::Problem),
        (status = "4XX", description = "Nothing was created", body = model::Problem),
        (status = 503, description = "Try again", body = model::Problem),
    ),
)]
pub(in crate::api) async fn grpc(
    tasks: State<Tasks>,
    came: Extension<Came>,
    caller: Extension<Caller>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    one(TaskType::Grpc, tasks.0, came.0, &caller, &headers, body).await
}

/// Creates up to 1,000 tasks, each for itself.
#[utoipa::path(
    post,
    path = "/v1/tasks:batchCreate", tag = "tasks", operation_id = "batchCreateTasks",
    request_body = model::TaskBatch,
    responses(
        (status = 200, description = "What became of each, in order; those of a project that has created, or has, as many tasks as it may have the status 429", body = CreatedBatch),
        (status = "4XX", description = "Nothing was created", body = model::Problem),
        (status = 503, description = "Try again", body = model::Problem),
    ),
)]
pub(in crate::api) async fn batch(
    State(tasks): State<Tasks>,
    Extension(came): Extension<Came>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    may_create(&tasks, &caller)?;
    if headers.contains_key(IDEMPOTENCY_KEY) {
        let detail = "is of one task; give each task of a batch a request_id".to_owned();
        return Err(Problem::wrong_fields(&[Wrong { at: "Idempotency-Key".to_owned(), detail }]));
    }
    let body = whole(body)?;
    let batch = request::read_batch(&body, BATCH_BYTES_MAX)
        .map_err(|wrongs| Problem::wrong_fields(&wrongs))?;
    let each = |created: Result<Created, Problem>| match created {
        Ok(Created { task_id, trigger_at }) => CreatedEach {
            status: StatusCode::CREATED.as_u16(),
            task_id: Some(task_id),
            trigger_at: Some(trigger_at),
            problem: None,
        },
        Err(problem) => CreatedEach {
            status: problem.status().as_u16(),
            task_id: None,
            trigger_at: None,
            problem: Some(problem.as_json()),
        },
    };
    let tasks = create_all(&tasks, came, &caller, batch).await?.into_iter().map(each).collect();
    Ok(json(StatusCode::OK, CreatedBatch { tasks }))
}

/// Whether this caller may create tasks, here and now.
pub(in crate::api) fn may_create(tasks: &Tasks, caller: &Caller) -> Result<(), Problem> {
    caller.may(Role::Write)?;
    Ok(tasks.desk.in_force()?)
}

/// Creates one task.
pub(in crate::api) async fn create(
    tasks: &Tasks,
    came: Came,
    caller: &Caller,
    request: Request,
) -> Result<Created, Problem> {
    let (submission, room) = checked(tasks, came, caller, request)?;
    let created = created(&submission);
    if let Err(refusal) = room {
        match exists(tasks, &submission).await {
            true => return Ok(created),
            false => return Err(tasks.quotas.refuse(submission.spec.project(), refusal)),
        }
    }
    let told = within(CREATE_MAX, tasks.desk.submit(vec![submission])).await?;
    told.into_iter().next().unwrap_or_else(|| Err(unsaid()))?;
    Ok(created)
}

/// What is to become of one task of a batch.
enum Each {
    /// It is handed to the desk.
    Submitted(Created),
    /// It was there before.
    Existed(Created),
    /// It is not created.
    Refused(Problem),
}

/// Creates many tasks, each for itself: what became of each, in order.
pub(in crate::api) async fn create_all(
    tasks: &Tasks,
    came: Came,
    caller: &Caller,
    batch: Batch,
) -> Result<Vec<Result<Created, Problem>>, Problem> {
    let looked_up_until = Instant::now() + LOOK_MAX;
    let mut submissions = Vec::with_capacity(batch.len());
    let mut all = Vec::with_capacity(batch.len());
    for read in batch {
        let checked = read
            .map_err(|wrongs| Problem::wrong_fields(&wrongs))
            .and_then(|request| checked(tasks, came, caller, request));
        all.push(match checked {
            Err(problem) => Each::Refused(problem),
            Ok((submission, Ok(()))) => {
                let created = created(&submission);
                submissions.push(submission);
                Each::Submitted(created)
            }
            Ok((submission, Err(refusal))) => {
                let look_up = exists(tasks, &submission);
                match timeout_at(looked_up_until, look_up).await {
                    Ok(true) => Each::Existed(created(&submission)),
                    Ok(false) | Err(_) => {
                        Each::Refused(tasks.quotas.refuse(submission.spec.project(), refusal))
                    }
                }
            }
        });
    }
    let told = match submissions.is_empty() {
        true => Vec::new(),
        false => within(CREATE_MAX, tasks.desk.submit(submissions)).await?,
    };
    let mut told = told.into_iter();
    let each = |each: Each| match each {
        Each::Submitted(created) => {
            told.next().unwrap_or_else(|| Err(unsaid()))?;
            Ok(created)
        }
        Each::Existed(created) => Ok(created),
        Each::Refused(problem) => Err(problem),
    };
    Ok(all.into_iter().map(each).collect())
}

/// Whether a task that is over a quota was created by an earlier request; only one with a request id can be. If that cannot be
/// known now, the answer is no: who asks again later learns it.
async fn exists(tasks: &Tasks, submission: &Submission) -> bool {
    submission.request_id.is_some()
        && matches!(within(LOOK_MAX, tasks.desk.get(&submission.id)).await, Ok(Ok(Some(_))))
}

/// The desk has said nothing of a task that it was given.
fn unsaid() -> Failure {
    Failure::Unknown(
        "it is not known whether the task was written; to ask again is safe".to_owned(),
    )
}

async fn one(
    of: TaskType,
    tasks: Tasks,
    came: Came,
    caller: &Caller,
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    let created = asked_for(of, &tasks, (came, caller), headers, body).await?;
    Ok(at(format!("/v1/tasks/{}", created.task_id), created))
}

/// The answer to a create, which says where the new thing is.
pub(in crate::api) fn at(location: String, created: impl serde::Serialize) -> Response {
    let mut answer = json(StatusCode::CREATED, created);
    if let Ok(location) = HeaderValue::try_from(location) {
        answer.headers_mut().insert(header::LOCATION, location);
    }
    answer
}

/// Creates the one task of this type that a request over HTTP asks for.
pub(in crate::api) async fn asked_for(
    of: TaskType,
    tasks: &Tasks,
    (came, caller): (Came, &Caller),
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Created, Problem> {
    may_create(tasks, caller)?;
    let body = whole(body)?;
    let named = idempotency_key(headers);
    let read = request::read(of, &body, CREATE_BYTES_MAX);
    let mut request = match (read, &named) {
        (Ok(request), Ok(_)) => request,
        (read, named) => {
            let mut wrongs = read.err().unwrap_or_default();
            wrongs.extend(named.as_ref().err().cloned());
            return Err(Problem::wrong_fields(&wrongs));
        }
    };
    if let Ok(Some(named)) = named {
        let is_other = request.request_id.as_ref().is_some_and(|given| *given != named);
        if is_other {
            let detail = "is another one than that of the header Idempotency-Key".to_owned();
            let wrong = Wrong { at: "request_id".to_owned(), detail };
            return Err(Problem::wrong_fields(&[wrong]));
        }
        request.request_id = Some(named);
    }
    create(tasks, came, caller, request).await
}

fn created(submission: &Submission) -> Created {
    Created { task_id: submission.id.to_string(), trigger_at: submission.due.0 }
}

pub(in crate::api) fn whole(body: Result<Bytes, BytesRejection>) -> Result<Bytes, Problem> {
    body.map_err(|error| {
        let status = error.status();
        let code = if status == StatusCode::PAYLOAD_TOO_LARGE { "too_large" } else { "no_body" };
        Problem::new(status, code, error.body_text())
    })
}

/// The request id that a header names.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Wrong> {
    let wrong = |detail: String| Wrong { at: "Idempotency-Key".to_owned(), detail };
    let mut all = headers.get_all(IDEMPOTENCY_KEY).iter();
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err(wrong("is there more than once; want it once".to_owned())),
        (Some(value), None) => {
            let value = std::str::from_utf8(value.as_bytes())
                .map_err(|_| wrong("is not UTF-8".to_owned()))?;
            request::request_id(&Value::from(value)).map(Some).map_err(wrong)
        }
    }
}

/// Over how long a time a task is spread that may have this window. Nothing that was asked for is refused because of a window: it
/// ends where the longest delay does, and has half of the time until the task expires.
fn window(
    window: Millis,
    due: UnixMillis,
    expires: Option<UnixMillis>,
    latest: UnixMillis,
) -> Millis {
    let until_expired = expires.map(|expires| Millis((expires - due).0 / 2));
    window.min(latest - due).min(until_expired.unwrap_or(window))
}

/// Whether tasks of a project are taken: it was not deleted.
pub(in crate::api) fn is_there(registry: &Registry, project: &str) -> Result<(), Problem> {
    if !registry.project(project).is_deleted {
        return Ok(());
    }
    let detail = format!("the project {project} was deleted; put it again to use it");
    Err(Problem::new(StatusCode::CONFLICT, "project_deleted", detail))
}

/// What is wrong with the task of a schedule or of a run.
pub(in crate::api) fn of_task(wrong: Wrong) -> Wrong {
    Wrong { at: format!("{TASK}.{}", wrong.at), ..wrong }
}

/// What is wrong with a request by what its project and this instance permit, whenever it is due.
pub(in crate::api) fn not_permitted(
    tasks: &Tasks,
    registry: &Registry,
    request: &Request,
) -> Vec<Wrong> {
    let project = request.spec.project();
    let project_of = registry.project(project);
    let mut wrongs = Vec::new();
    let mut add = |at: &str, detail: String| wrongs.push(Wrong { at: at.to_owned(), detail });
    let (host_at, host, service_at, protocol) = match request.spec.kind() {
        Kind::Http(http) => {
            let url = match &http.address {
                Address::Url(url) => Some(url),
                Address::Service { .. } => None,
            };
            ("url", url, "service", Protocol::Http)
        }
        Kind::Grpc(grpc) => {
            let host = match &grpc.address {
                GrpcAddress::Host(url) => Some(url),
                GrpcAddress::Service(_) => None,
            };
            ("host", host, "named_service", Protocol::Grpc)
        }
        Kind::Kafka(_) | Kind::Schedule(_) | Kind::Run(_) => ("", None, "", Protocol::default()),
    };
    if let Some(Err(detail)) = host.map(|url| tasks.screened(project_of, url)) {
        add(host_at, detail);
    }
    // One that is not known yet may be put before the task is due.
    let service = request.spec.service().and_then(|name| registry.service(project, name));
    if let Some(service) = service.filter(|service| service.protocol != protocol) {
        let (is, want) = (service.protocol.as_str(), protocol.as_str());
        add(
            service_at,
            format!("is a service that is called over {is}; want one of protocol {want}"),
        );
    }
    if let Kind::Kafka(kafka) = request.spec.kind()
        && let Err(detail) = tasks.is_target(project_of, &kafka.topic)
    {
        add("topic", detail);
    }
    let mut told_at = "on_result";
    if let Kind::Run(run) = request.spec.kind() {
        told_at = "on_finished";
        // It was read with all of it, so this is legal whenever it is due.
        let shard = run.request((project, request.spec.group()), NEVER);
        let of_shard = shard.map_or_else(|wrongs| wrongs, |of| not_permitted(tasks, registry, &of));
        of_shard.into_iter().map(of_task).for_each(|Wrong { at, detail }| add(&at, detail));
    }
    // A follow-up is created by a lane, once the task has ended: what can be seen of it now is checked now.
    match request.spec.on_result() {
        Some(OnResult::Url(url)) => {
            if let Err(detail) = tasks.screened(project_of, url) {
                add(&format!("{told_at}.url"), detail);
            }
        }
        Some(OnResult::Topic(topic)) => {
            if let Err(detail) = tasks.is_target(project_of, topic) {
                add(&format!("{told_at}.topic"), detail);
            }
        }
        Some(OnResult::Service(name)) => {
            let service = registry.service(project, name).map(|service| service.protocol);
            if let Some(protocol) = service.filter(|protocol| *protocol != Protocol::Http) {
                let detail = format!(
                    "is a service that is called over {}; want one of protocol http",
                    protocol.as_str()
                );
                add(&format!("{told_at}.service"), detail);
            }
        }
        None => {}
    }
    if let Some(Feedback { heartbeat, .. }) = request.spec.feedback() {
        let bytes = request.value.as_ref().map_or(0, Vec::len);
        if bytes > LARGE_BYTES && heartbeat < HEARTBEAT_MIN_LARGE {
            let detail = format!(
                "is {heartbeat}; want {HEARTBEAT_MIN_LARGE} or more with a {} of more than {LARGE_BYTES} bytes",
                request.value_at
            );
            add("feedback.heartbeat", detail);
        }
    }
    let bytes = request.value.as_ref().map_or(0, Vec::len);
    if let Some(max) = project_of.max_body.filter(|max| bytes > *max) {
        let detail = format!("has {bytes} bytes; its project permits {max} (max_body)");
        add(request.value_at, detail);
    }
    wrongs
}

/// Checks what cannot be seen in the request alone, and gives the task its id. With it: whether its project has room for it.
fn checked(
    tasks: &Tasks,
    came: Came,
    caller: &Caller,
    request: Request,
) -> Result<(Submission, Result<(), Refusal>), Problem> {
    let project = request.spec.project();
    caller.may_name(project)?;
    let now = time(came)?;
    let lanes = tasks.desk.lanes();
    if lanes == 0 {
        return Err(Failure::not_ready().into());
    }
    let registry = tasks.projects.registry()?;
    is_there(&registry, project)?;
    let project_of = registry.project(project);
    let mut wrongs = not_permitted(tasks, &registry, &request);
    let mut add = |at: &str, detail: String| wrongs.push(Wrong { at: at.to_owned(), detail });
    let (at, due) = match request.due {
        Due::At(at) => ("trigger_at", at),
        Due::In(delay) => ("delay", now + delay),
    };
    let max = tasks.desk.max_delay();
    let of_project = project_of.max_delay.filter(|of_project| *of_project < max);
    if let Some(max) = of_project.filter(|max| due > now + *max) {
        add(
            at,
            format!(
                "is more than {max} ahead, which is the longest delay of its project (max_delay)"
            ),
        );
    } else if due > now + max {
        add(at, format!("is more than {max} ahead, which is the longest delay here (max-delay)"));
    }
    if let Some(expires) = request.expires.filter(|expires| *expires <= due.max(now)) {
        add("expires_at", request::expires_too_early(expires, due.max(now)));
    }
    let key = request.key.as_deref();
    let id = match &request.request_id {
        Some(named) if request.spec.run().is_some() => TaskId::run_of_request(project, named),
        Some(named) => TaskId::of_request(project, named, key),
        None => Ok(TaskId::random(rand::random(), key)),
    };
    let id = match id {
        Ok(id) if wrongs.is_empty() => id,
        Ok(_) => return Err(Problem::wrong_fields(&wrongs)),
        Err(error) => {
            wrongs.push(Wrong { at: "request_id".to_owned(), detail: format!("is {error}") });
            return Err(Problem::wrong_fields(&wrongs));
        }
    };
    let window =
        window(request.window.unwrap_or(project_of.window), due, request.expires, now + max);
    let due = due + id.offset_in(window);
    let shared = (tasks.desk.instances(), pending_of(&request.spec));
    let room = tasks.quotas.take(project, project_of, shared);
    let submission = Submission {
        lane: id.lane_of(lanes),
        id,
        created: now,
        due,
        expires: request.expires,
        spec: request.spec,
        request_id: request.request_id,
        key: request.key,
        value: request.value,
        headers: request.headers,
    };
    Ok((submission, room))
}
