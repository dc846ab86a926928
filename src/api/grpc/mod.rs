//! The same API over gRPC: `waterclock.v1`, with health and reflection. `docs/grpc.md` is the manual.
//!
//! What a call does stands in the rooms of tasks, schedules, runs and projects. Here stands only how it is asked for and told.
//!
//! # Invariants
//! 1. Who may ask, how much at once, and how long a message may take is as over HTTP: the same guard stands before both.
//! 2. A status has the code of HTTP as its reason, names every field that is wrong, and says when to come again.

mod convert;
mod health;
mod projects;
mod runs;
mod schedules;
mod status;
mod tasks;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use tonic::server::NamedService;
use tonic_reflection::server::Builder;

use super::answer::Endless;
use super::auth::{Access, Caller, Peer};
use super::gate::Kind;
use super::guard::{self, Form, Rules};
use super::hosts::Hosts;
use super::problem::Problem;
use super::serve::Front;
use super::tasks::{BATCH_BYTES_MAX, Tasks, bytes_max};
use waterclock_proto::DESCRIPTORS;
use waterclock_proto::v1::projects_server::ProjectsServer;
use waterclock_proto::v1::runs_server::{RunsServer, SERVICE_NAME as RUNS};
use waterclock_proto::v1::schedules_server::SchedulesServer;
use waterclock_proto::v1::tasks_server::TasksServer;

pub(super) use health::{follow, server as health};
pub(super) use status::{of_problem, told};

/// What a question for descriptors may have, in bytes.
const QUESTION_BYTES_MAX: usize = 16 << 10;

/// Whether a request is one of gRPC. One of a web page (`grpc-web`) is none.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(|kind| kind.as_bytes());
    let behind = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    behind.is_some_and(|behind| behind.is_empty() || [b'+', b';'].contains(&behind[0]))
}

/// Tasks, schedules, runs and projects.
pub(super) fn router(tasks: Tasks, front: &Front) -> Router {
    let desk = Arc::clone(&tasks.desk);
    let guard = front.guard(RULES, Arc::new(move || desk.now().map(|now| now.0)));
    let projects = ProjectsServer::new(projects::Service(tasks.clone()))
        .max_decoding_message_size(BATCH_BYTES_MAX);
    let schedules = SchedulesServer::new(schedules::Service(tasks.clone()))
        .max_decoding_message_size(BATCH_BYTES_MAX);
    let runs =
        RunsServer::new(runs::Service(tasks.clone())).max_decoding_message_size(BATCH_BYTES_MAX);
    let tasks = TasksServer::new(tasks::Service(tasks)).max_decoding_message_size(BATCH_BYTES_MAX);
    serve(serve(serve(serve(Router::new(), tasks), projects), schedules), runs)
        .layer(middleware::from_fn_with_state(guard, guard::callers))
}

/// Health, and what there is to ask: of tasks only where they are served. They are open, as `/health/ready` and `/openapi.json` are.
pub(super) fn open_router(hosts: Hosts, health: health::Server, has_tasks: bool) -> Router {
    let descriptors = || {
        let all = Builder::configure()
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // The details of errors.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET);
        if has_tasks { all.register_encoded_file_descriptor_set(DESCRIPTORS) } else { all }
    };
    let mut router = serve(Router::new(), health);
    // Clients ask by the older name, too. Of descriptors that are committed nothing is wrong; a test asks for them.
    if let (Ok(v1), Ok(v1alpha)) = (descriptors().build_v1(), descriptors().build_v1alpha()) {
        router = serve(router, v1.max_decoding_message_size(QUESTION_BYTES_MAX));
        router = serve(router, v1alpha.max_decoding_message_size(QUESTION_BYTES_MAX));
    }
    router.layer(middleware::from_fn_with_state(hosts, open))
}

/// Lets a request through that asks for nothing of anybody's.
async fn open(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    if let Err(why) = hosts.check(&request) {
        return of_problem(&guard::foreign(why)).into_http();
    }
    let mut response = next.run(request).await;
    response.extensions_mut().insert(Endless);
    response
}

fn serve<S>(router: Router, service: S) -> Router
where
    S: NamedService
        + tower_service::Service<
            Request,
            Response: axum::response::IntoResponse,
            Error = std::convert::Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static,
{
    router.route_service(&format!("/{}/{{*method}}", S::NAME), service)
}

const RULES: Rules = Rules {
    kind,
    bytes_max,
    form: Form::Grpc,
    is_bodyless: |_| false,
    is_nothing: |_, _| false,
    caller,
};

fn caller(access: &Access, request: &Request) -> Result<Caller, Problem> {
    access.of_tasks(request)
}

fn kind(_: &Method, path: &str) -> Kind {
    let (service, method) = path.rsplit_once('/').unwrap_or_default();
    match method {
        "Create" if service.strip_prefix('/') == Some(RUNS) => Kind::Create,
        "CreateHttpTask" | "CreateKafkaTask" | "CreateGrpcTask" => Kind::Create,
        "GetTask" | "Get" | "GetStats" | "Preview" => Kind::Look,
        "ListTasks" | "BatchCreateTasks" | "List" | "ListShards" => Kind::Large,
        _ => Kind::Wait,
    }
}

/// Where a request comes from.
fn peer<T>(request: &tonic::Request<T>) -> Option<Peer> {
    request.extensions().get().copied()
}

/// Who asks, and when the request came: the guard has said it.
fn asked_by<T>(request: &tonic::Request<T>) -> Result<(Caller, guard::Came), tonic::Status> {
    let (caller, came) = (request.extensions().get::<Caller>(), request.extensions().get());
    caller
        .cloned()
        .zip(came.copied())
        .ok_or_else(|| tonic::Status::internal("nobody has let it in"))
}

#[cfg(test)]
mod tests;
