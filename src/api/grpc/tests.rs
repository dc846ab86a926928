//! The gRPC room behind the real router, with a desk in memory. What it does is compared with what HTTP does.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Uri, header};
use serde_json::{Value, json};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use tracing::Instrument as _;
use tracing::instrument::WithSubscriber as _;
use waterclock_proto::v1::on_result::To;
use waterclock_proto::v1::projects_client::ProjectsClient;
use waterclock_proto::v1::tasks_client::TasksClient;
use waterclock_proto::v1::{self, header::Content, new_task};

use super::super::audit::tests::Lines;
use super::super::auth::Peer;
use super::super::tasks::Failure;
use super::super::tasks::model::{CancelOutcome, FeedbackInfo, Length, ResultTo};
use super::super::tasks::tests::{Api, FORGED, NOW, TICKET, task};
use super::convert::{self, Span};
use crate::engine::UnixMillis;
use crate::engine::timers::TaskReport;

mod runs;
mod schedules;

/// What a client speaks to: the router, from this machine.
#[derive(Clone)]
struct Channel {
    router: Router,
    token: String,
}

impl tower_service::Service<axum::http::Request<tonic::body::Body>> for Channel {
    type Response = axum::http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: axum::http::Request<tonic::body::Body>) -> Self::Future {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Peer(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        if !self.token.is_empty() {
            let bearer = HeaderValue::try_from(format!("Bearer {}", self.token)).expect("text");
            request.headers_mut().insert(header::AUTHORIZATION, bearer);
        }
        let mut router = self.router.clone();
        Box::pin(async move { router.call(request).await })
    }
}

fn channel(api: &Api, token: &str) -> Channel {
    Channel { router: api.router.clone(), token: token.to_owned() }
}

fn tasks(api: &Api, token: &str) -> TasksClient<Channel> {
    TasksClient::with_origin(channel(api, token), Uri::from_static("http://localhost"))
}

fn projects(api: &Api, token: &str) -> ProjectsClient<Channel> {
    ProjectsClient::with_origin(channel(api, token), Uri::from_static("http://localhost"))
}

fn span(seconds: i64, nanos: i32) -> Option<Span> {
    Some(Span { seconds, nanos })
}

fn header(name: &str, value: &str) -> v1::Header {
    v1::Header { name: name.to_owned(), content: Some(Content::Value(value.to_owned())) }
}

/// The least that a call needs.
fn call() -> v1::CreateHttpTaskRequest {
    v1::CreateHttpTaskRequest {
        trigger_at: NOW as i64 + 1_000,
        url: "https://shop.example/expire".to_owned(),
        project: "shop".to_owned(),
        group: "orders".to_owned(),
        ..v1::CreateHttpTaskRequest::default()
    }
}

/// The least that a record needs.
fn record() -> v1::CreateKafkaTaskRequest {
    v1::CreateKafkaTaskRequest {
        topic: "orders.late".to_owned(),
        project: "shop".to_owned(),
        group: "orders".to_owned(),
        options: Some(v1::Options { delay: span(900, 0), ..v1::Options::default() }),
        ..v1::CreateKafkaTaskRequest::default()
    }
}

/// A task of a batch.
fn new(task: new_task::Task) -> v1::NewTask {
    v1::NewTask { task: Some(task) }
}

fn reason(status: &Status) -> String {
    status.get_details_error_info().map(|info| info.reason).unwrap_or_default()
}

fn fields(status: &Status) -> Vec<String> {
    let wrong = status.get_details_bad_request().map(|of| of.field_violations).unwrap_or_default();
    wrong.into_iter().map(|of| of.field).collect()
}

#[tokio::test]
async fn reflection_names_what_this_instance_answers() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    for has_tasks in [true, false] {
        let router = super::open_router(super::Hosts::new([]), super::health().0, has_tasks);
        let channel = Channel { router, token: String::new() };
        let origin = Uri::from_static("http://localhost");
        let mut client = ServerReflectionClient::with_origin(channel, origin);
        let all = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let asked = client.server_reflection_info(tonic::codegen::tokio_stream::once(all)).await;
        let told = asked.expect("an answer").into_inner().message().await.expect("read");
        let Some(MessageResponse::ListServicesResponse(told)) =
            told.and_then(|told| told.message_response)
        else {
            panic!("a list")
        };
        let named = |name: &str| told.service.iter().any(|service| service.name == name);
        assert!(named("grpc.health.v1.Health"), "{told:?}");
        for name in ["Tasks", "Projects", "Schedules", "Runs"] {
            assert_eq!(named(&format!("waterclock.v1.{name}")), has_tasks, "{name}: {told:?}");
        }
    }
}

#[tokio::test]
async fn a_task_that_is_created_over_grpc_is_the_one_that_http_creates() {
    let api = Api::new();
    let mut client = tasks(&api, "");
    let everything = v1::CreateHttpTaskRequest {
        trigger_at: 0,
        url: String::new(),
        method: "PUT".to_owned(),
        headers: vec![header("x-a", "b"), header("x-a", "c")],
        body: b"{}".to_vec(),
        request_id: "o-17".to_owned(),
        expect: "2xx,404".to_owned(),
        path: "/expire".to_owned(),
        retry: Some(v1::RetryInfo {
            count: 3,
            interval_exact: span(1, 500_000_000),
            backoff: v1::Backoff::Exponential.into(),
            max_interval: span(60, 0),
            jitter: Some(0.25),
            ..v1::RetryInfo::default()
        }),
        options: Some(v1::Options {
            delay: span(2, 250_000_000),
            poll: Some(v1::Poll { interval: span(10, 0), rounds: 9 }),
            expires_at: NOW as i64 + 60_000,
            timeout: span(7, 0),
            window: span(5, 0),
            feedback: None,
            on_result: Some(v1::OnResult { to: Some(To::Topic("done".to_owned())) }),
            tls: false,
            named_service: "billing".to_owned(),
        }),
        ..call()
    };
    let same = json!({
        "project": "shop", "group": "orders", "delay": "2250ms", "service": "billing", "path": "/expire", "method": "PUT",
        "headers": [["x-a", "b"], ["x-a", "c"]], "body": "{}", "request_id": "o-17", "expect": "2xx,404", "timeout": 7, "window": "5s",
        "retry": {"count": 3, "interval": "1500ms", "backoff": "exponential", "max_interval": "1m", "jitter": 0.25},
        "poll": {"interval": "10s", "rounds": 9}, "expires_at": NOW + 60_000, "on_result": {"topic": "done"},
    });
    let least = v1::CreateHttpTaskRequest { request_id: "least".to_owned(), ..call() };
    let same_least = json!({
        "project": "shop", "group": "orders", "trigger_at": NOW + 1_000, "url": "https://shop.example/expire", "request_id": "least",
    });
    let retried = v1::RetryInfo { count: 1, interval: 5, ..v1::RetryInfo::default() };
    let retried = v1::CreateHttpTaskRequest { retry: Some(retried), ..least.clone() };
    let mut same_retried = same_least.clone();
    same_retried["retry"] = json!({"count": 1, "interval": 5});
    let feedback = v1::Feedback { deadline: span(3_600, 0), heartbeat: span(30, 0) };
    let options = v1::Options { feedback: Some(feedback), ..v1::Options::default() };
    let reported = v1::CreateHttpTaskRequest { options: Some(options), ..least.clone() };
    let mut same_reported = same_least.clone();
    same_reported["feedback"] = json!({"deadline": "1h", "heartbeat": 30});
    for (over_grpc, over_http) in [
        (everything, same),
        (least, same_least),
        (retried, same_retried),
        (reported, same_reported),
    ] {
        let told = client.create_http_task(over_grpc).await.expect("created").into_inner();
        let http = api.ask("", "POST", "/v1/tasks/http", &over_http).await;
        assert_eq!(http.status, 201, "{http:?}");
        assert_eq!(
            (json!(told.task_id), json!(told.trigger_at)),
            (http.json["task_id"].clone(), http.json["trigger_at"].clone())
        );
        let submitted: Vec<_> = api.world().submitted.drain(..).collect();
        assert_eq!(submitted[0], submitted[1]);
    }
    let everything = v1::CreateKafkaTaskRequest {
        key: Some(b"k".to_vec()),
        value: Some(b"v".to_vec()),
        partition: Some(3),
        headers: vec![header("a", "b")],
        request_id: "o-18".to_owned(),
        options: Some(v1::Options {
            delay: span(900, 0),
            feedback: Some(v1::Feedback { deadline: span(3_600, 0), heartbeat: span(30, 0) }),
            ..v1::Options::default()
        }),
        ..record()
    };
    let same = json!({
        "project": "shop", "group": "orders", "delay": "15m", "topic": "orders.late", "partition": 3, "key": "k", "value": "v",
        "headers": {"a": "b"}, "request_id": "o-18", "feedback": {"deadline": "1h", "heartbeat": 30},
    });
    client.create_kafka_task(everything.clone()).await.expect("created");
    assert_eq!(api.ask("", "POST", "/v1/tasks/kafka", &same).await.status, 201);
    let submitted: Vec<_> = api.world().submitted.drain(..).collect();
    assert_eq!(submitted[0], submitted[1]);
    let grpc = |format, body: &[u8], options| v1::CreateGrpcTaskRequest {
        host: "shop.example:50051".to_owned(),
        service: "shop.v1.Orders".to_owned(),
        method: "Expire".to_owned(),
        project: "shop".to_owned(),
        group: "orders".to_owned(),
        request_id: "o-19".to_owned(),
        headers: vec![header("x-a", "b")],
        format: v1::GrpcBodyFormat::into(format),
        body: body.to_vec(),
        options: Some(v1::Options { delay: span(900, 0), ..options }),
        ..v1::CreateGrpcTaskRequest::default()
    };
    let of = v1::Options::default;
    let named = v1::CreateGrpcTaskRequest {
        host: String::new(),
        ..grpc(
            v1::GrpcBodyFormat::Unspecified,
            &[8, 7],
            v1::Options { named_service: "billing".to_owned(), timeout: span(7, 0), ..of() },
        )
    };
    let poll = Some(v1::Poll { interval: span(10, 0), rounds: 9 });
    let same = json!({
        "project": "shop", "group": "orders", "delay": "15m", "host": "shop.example:50051", "service": "shop.v1.Orders",
        "method": "Expire", "headers": {"x-a": "b"}, "request_id": "o-19",
    });
    let with = |more: Value, without: &str| {
        let mut task = same.clone();
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task.as_object_mut().unwrap().remove(without);
        task
    };
    for (over_grpc, over_http) in [
        (
            grpc(v1::GrpcBodyFormat::Json, br#"{"id":7}"#, v1::Options { tls: true, poll, ..of() }),
            with(
                json!({"format": "json", "tls": true, "body": {"id": 7}, "poll": {"interval": 10, "rounds": 9}}),
                "",
            ),
        ),
        (grpc(v1::GrpcBodyFormat::Protobuf, &[8, 7], of()), with(json!({"body_b64": "CAc="}), "")),
        (
            named,
            with(json!({"body_b64": "CAc=", "named_service": "billing", "timeout": 7}), "host"),
        ),
    ] {
        let batch = v1::BatchCreateTasksRequest {
            tasks: vec![new(new_task::Task::Grpc(over_grpc.clone()))],
        };
        client.create_grpc_task(over_grpc).await.expect("created");
        let told = client.batch_create_tasks(batch).await.expect("told").into_inner();
        assert!(told.tasks[0].problem.is_none(), "{told:?}");
        let http = api.ask("", "POST", "/v1/tasks/grpc", &over_http).await;
        assert_eq!(http.status, 201, "{http:?}");
        let submitted: Vec<_> = api.world().submitted.drain(..).collect();
        assert_eq!((&submitted[0], &submitted[1]), (&submitted[2], &submitted[2]));
    }
    // What JSON cannot say: bytes in a header, and a header without a value. And no value is a tombstone, which an empty one is not.
    let bytes = v1::Header { name: "a".to_owned(), content: Some(Content::ValueBytes(vec![0xff])) };
    let none = v1::Header { name: "a".to_owned(), content: None };
    let headers = vec![bytes, none];
    for (value, key) in [(None, None), (Some(Vec::new()), Some(vec![0xff]))] {
        let task = v1::CreateKafkaTaskRequest {
            value: value.clone(),
            key: key.clone(),
            headers: headers.clone(),
            ..everything.clone()
        };
        client.create_kafka_task(task).await.expect("created");
        let submitted = api.world().submitted.pop().expect("one");
        assert_eq!((submitted.value, submitted.key), (value, key));
        let seen = [("a".to_owned(), Some(vec![0xff])), ("a".to_owned(), None)];
        assert_eq!(submitted.headers, seen);
    }
}

#[tokio::test]
async fn what_is_wrong_is_named_as_the_messages_have_it_and_nothing_is_created() {
    let api = Api::new();
    let mut client = tasks(&api, "");
    let options = |options| v1::CreateHttpTaskRequest { options: Some(options), ..call() };
    let retry = |retry| v1::CreateHttpTaskRequest { retry: Some(retry), ..call() };
    let headers = |headers| v1::CreateHttpTaskRequest { headers, ..call() };
    let bytes = v1::Header { name: "a".to_owned(), content: Some(Content::ValueBytes(vec![1])) };
    let of = v1::Options::default;
    let told = |to| v1::Options { on_result: Some(v1::OnResult { to }), ..of() };
    #[rustfmt::skip]
    let cases: [(&str, v1::CreateHttpTaskRequest, &[&str]); 16] = [
        ("nobody is told",      options(told(None)),                                                &["options.on_result"]),
        ("no name of a topic",  options(told(Some(To::Topic("a b".into())))),                       &["options.on_result.topic"]),
        ("nothing",             v1::CreateHttpTaskRequest::default(),                               &["project", "group", "url", "trigger_at"]),
        ("two times",           options(v1::Options { delay: span(1, 0), ..of() }),                 &["options.delay"]),
        ("seconds",             v1::CreateHttpTaskRequest { trigger_at: 1_795_293_475, ..call() },  &["trigger_at"]),
        ("before 1970",         v1::CreateHttpTaskRequest { trigger_at: -1, ..call() },             &["trigger_at"]),
        ("url and service",     options(v1::Options { named_service: "a".into(), ..of() }),         &["url"]),
        ("a negative timeout",  options(v1::Options { timeout: span(-1, 0), ..of() }),              &["options.timeout"]),
        ("a nanosecond",        options(v1::Options { timeout: span(1, 1), ..of() }),               &["options.timeout"]),
        ("no rounds",           options(v1::Options { poll: Some(v1::Poll { interval: span(1, 0), rounds: 0 }), ..of() }), &["options.poll.rounds"]),
        ("over before it is due", options(v1::Options { expires_at: NOW as i64, ..of() }),          &["options.expires_at"]),
        ("no backoff",          retry(v1::RetryInfo { backoff: 7, ..v1::RetryInfo::default() }),    &["retry.backoff"]),
        ("two intervals",       retry(v1::RetryInfo { interval: 1, interval_exact: span(1, 0), ..v1::RetryInfo::default() }), &["retry.interval"]),
        ("a header of bytes",   headers(vec![bytes]),                                               &["headers[0][1]"]),
        ("a forbidden address", v1::CreateHttpTaskRequest { url: "http://169.254.169.254/".into(), ..call() }, &["url"]),
        ("a large body",        v1::CreateHttpTaskRequest { body: vec![0; (1 << 20) + 1], ..call() }, &["body"]),
    ];
    for (why, request, want) in cases {
        let status = client.create_http_task(request.clone()).await.expect_err(why);
        assert_eq!(
            (status.code(), reason(&status)),
            (Code::InvalidArgument, "wrong_fields".into())
        );
        let (mut seen, mut want) = (fields(&status), want.to_vec());
        seen.sort_unstable();
        want.sort_unstable();
        assert_eq!(seen, want, "{why}: {status}");
        // In a batch the others are created.
        let http = |task| new(new_task::Task::Http(task));
        let batch = v1::BatchCreateTasksRequest { tasks: vec![http(call()), http(request)] };
        let told = client.batch_create_tasks(batch).await.expect(why).into_inner().tasks;
        assert!(told[0].problem.is_none() && !told[0].task_id.is_empty(), "{why}");
        let problem = told[1].problem.clone().expect(why);
        assert_eq!(problem.grpc_code, Code::InvalidArgument as i32, "{why}");
        assert_eq!(problem.errors.len(), want.len(), "{why}: {problem:?}");
        assert_eq!(problem.retry_after, None, "{why}: to wait does not help");
        assert_eq!(api.world().submitted.drain(..).count(), 1, "{why}");
    }
    let name = v1::Header { name: "x-delay".to_owned(), content: None };
    let wrong = v1::CreateKafkaTaskRequest {
        headers: vec![name],
        key: Some(vec![0; 1_025]),
        value: Some(vec![0; (1 << 20) + 1]),
        ..record()
    };
    let status = client.create_kafka_task(wrong).await.expect_err("three are wrong");
    assert_eq!(fields(&status), ["key", "value", "headers[0]"], "{status}");
    let wrong = v1::CreateGrpcTaskRequest {
        project: "shop".to_owned(),
        group: "orders".to_owned(),
        service: "a b".to_owned(),
        method: "m".to_owned(),
        format: 7,
        options: Some(v1::Options {
            delay: span(1, 0),
            tls: true,
            named_service: "B".to_owned(),
            ..of()
        }),
        ..v1::CreateGrpcTaskRequest::default()
    };
    let status = client.create_grpc_task(wrong).await.expect_err("four are wrong");
    assert_eq!(
        fields(&status),
        ["options.named_service", "options.tls", "service", "format"],
        "{status}"
    );
    let tls = options(v1::Options { delay: None, tls: true, ..of() });
    let status = client.create_http_task(tls).await.expect_err("a URL says that");
    assert_eq!(fields(&status), ["options.tls"], "{status}");
    let none = v1::BatchCreateTasksRequest { tasks: vec![] };
    let status = client.batch_create_tasks(none).await.expect_err("no tasks");
    assert_eq!(fields(&status), ["tasks"], "{status}");
    let missing = v1::BatchCreateTasksRequest { tasks: vec![v1::NewTask { task: None }] };
    let told = client.batch_create_tasks(missing).await.expect("told").into_inner().tasks;
    assert_eq!(told[0].problem.as_ref().expect("a problem").errors[0].field, "task");
    assert!(api.world().submitted.is_empty());
}

#[tokio::test]
async fn a_status_says_why_and_when_to_come_again() {
    let api = Api::with_tokens();
    let create = async |token: &str, project: &str| {
        let task = v1::CreateHttpTaskRequest { project: project.to_owned(), ..call() };
        tasks(&api, token).create_http_task(task).await.err()
    };
    let code = |status: Option<Status>| {
        let status = status.expect("a refusal");
        (status.code(), reason(&status))
    };
    #[rustfmt::skip]
    let cases = [
        ("",        "shop",  Code::Unauthenticated,  "no_credentials"),
        ("nobody",  "shop",  Code::Unauthenticated,  "bad_credentials"),
        ("reader",  "shop",  Code::PermissionDenied, "role_denied"),
        ("writer",  "other", Code::NotFound,         "unknown_project"),
    ];
    for (token, project, want, why) in cases {
        assert_eq!(code(create(token, project).await), (want, why.to_owned()), "{token} {project}");
    }
    assert!(create("writer", "shop").await.is_none());
    api.put_task("a1", "shop");
    api.put_task("b1", "other");
    let get = async |id: &str| {
        let request = v1::GetTaskRequest { task_id: id.to_owned(), payload: false };
        tasks(&api, "reader").get_task(request).await.err()
    };
    assert!(get("a1").await.is_none());
    for id in ["b1", "c1"] {
        assert_eq!(code(get(id).await), (Code::NotFound, "unknown_task".to_owned()), "{id}");
    }
    let retry = v1::RetryTaskRequest { task_id: "a1".to_owned() };
    #[rustfmt::skip]
    let cases = [
        (Failure::Moving("a".into()),       Code::Unavailable,          "lane_moving",   Some(1)),
        (Failure::Away("a".into()),         Code::Unavailable,          "kafka_away",    Some(5)),
        (Failure::Busy("a".into()),         Code::Unavailable,          "too_busy",      Some(1)),
        (Failure::NotRetryable("a".into()), Code::FailedPrecondition,   "not_retryable", None),
        (Failure::PayloadGone("a".into()),  Code::FailedPrecondition,   "payload_gone",  None),
        (Failure::NotAvailable("a".into()), Code::FailedPrecondition,   "not_available", None),
        (Failure::TooLarge("a".into()),     Code::InvalidArgument,      "record_too_large", None),
    ];
    for (failure, want, why, seconds) in cases {
        api.world().failure = Some(failure);
        let status = tasks(&api, "admin").retry_task(retry.clone()).await.expect_err(why);
        assert_eq!((status.code(), reason(&status)), (want, why.to_owned()));
        let later = status.get_details_retry_info().and_then(|info| info.retry_delay);
        assert_eq!(later, seconds.map(Duration::from_secs), "{why}");
    }
    api.world().failure = None;
    let rate = json!({"create_rate": 0.001, "create_burst": 1});
    assert_eq!(api.ask("admin", "PUT", "/v1/projects/shop", &rate).await.status, 200);
    assert!(create("writer", "shop").await.is_none());
    let status = create("writer", "shop").await.expect("too many");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let later = status.get_details_retry_info().and_then(|info| info.retry_delay);
    assert!(later.is_some_and(|later| later.as_secs() > 900), "{later:?}");
    let batch = vec![new(new_task::Task::Http(call()))];
    let batch = v1::BatchCreateTasksRequest { tasks: batch };
    let told = tasks(&api, "writer").batch_create_tasks(batch).await.expect("told").into_inner();
    let problem = told.tasks[0].problem.clone().expect("too many");
    assert_eq!(problem.code, "over_create_rate");
    assert!(problem.retry_after.is_some_and(|seconds| seconds > 900), "{problem:?}");
}

#[tokio::test]
async fn what_is_asked_in_another_form_is_refused() {
    let api = Api::new();
    let path = "/waterclock.v1.Tasks/CreateHttpTask";
    for kind in ["application/json", "application/grpc-web", "application/grpc-web+proto", ""] {
        let request = axum::http::Request::builder().method("POST").uri(path);
        let request = request.header(header::CONTENT_TYPE, kind);
        let told = api.send(request, Body::empty()).await;
        assert_eq!((told.status, told.code()), (415, "not_grpc"), "{kind}: {told:?}");
    }
    let page = axum::http::Request::builder().method("POST").uri(path);
    let page = page.header(header::CONTENT_TYPE, "application/grpc");
    let page = page.header(header::ORIGIN, "https://evil.example");
    let told = api.send(page, Body::empty()).await;
    assert_eq!(told.headers["grpc-status"], "7", "{told:?}");
    assert!(api.world().submitted.is_empty());
}

#[tokio::test]
async fn a_task_is_shown_whole_and_listed_by_what_is_asked_for() {
    let api = Api::new();
    let mut client = tasks(&api, "");
    api.put_task("a1", "shop");
    let asked = v1::GetTaskRequest { task_id: "a1".to_owned(), payload: true };
    let shown = client.get_task(asked).await.expect("there").into_inner();
    let attempt = v1::Attempt {
        turn: 1,
        status: 503,
        outcome: "failed".to_owned(),
        ..v1::Attempt::default()
    };
    let want = v1::Task {
        task_id: "a1".to_owned(),
        task_type: v1::TaskType::Http.into(),
        task_status: v1::TaskStatus::Ready.into(),
        trigger_at: NOW as i64,
        project: "shop".to_owned(),
        group: "orders".to_owned(),
        created_at: NOW as i64 - 1,
        retry: Some(v1::RetryInfo { count: 3, ..v1::RetryInfo::default() }),
        turn: 1,
        attempts_total: 1,
        failures: 1,
        attempts: vec![attempt],
        next_at: NOW as i64,
        waits_for: "paused".to_owned(),
        payload: Some(v1::Payload { body: Some(b"of a1".to_vec()), ..v1::Payload::default() }),
        method: "POST".to_owned(),
        url: "http://a.example/x".to_owned(),
        timeout: span(5, 0),
        expect: "2xx".to_owned(),
        poll: Some(v1::Poll { interval: span(60, 0), rounds: 9 }),
        headers: vec![header("x-a", "b")],
        cancelling: true,
        paused_by: vec!["project".to_owned()],
        ..v1::Task::default()
    };
    assert_eq!(shown, want);
    let grpc = |name: Option<&str>, host: Option<&str>| {
        let text = |of: &str| Some(of.to_owned());
        let view = crate::api::tasks::model::TaskView {
            task_type: "grpc".to_owned(),
            service: text("shop.v1.Orders"),
            method: text("Expire"),
            named_service: name.map(str::to_owned),
            host: host.map(str::to_owned),
            tls: host.map(|_| true),
            format: text("json"),
            ..task("g1", "shop")
        };
        let of = convert::task(view);
        assert_eq!(of.task_type(), v1::TaskType::Grpc);
        assert_eq!((of.grpc_service.as_str(), of.method.as_str()), ("shop.v1.Orders", "Expire"));
        assert_eq!(of.format(), v1::GrpcBodyFormat::Json);
        (of.named_service, of.host, of.tls)
    };
    assert_eq!(grpc(Some("billing"), None), ("billing".to_owned(), String::new(), false));
    assert_eq!(grpc(None, Some("a:1")), (String::new(), "a:1".to_owned(), true));
    let told = crate::api::tasks::model::TaskView {
        on_result: Some(ResultTo { topic: Some("done".to_owned()), ..ResultTo::default() }),
        follow_up: Some("k1".to_owned()),
        ..task("h1", "shop")
    };
    let of = convert::task(told);
    let to = v1::OnResult { to: Some(To::Topic("done".to_owned())) };
    assert_eq!((of.on_result, of.follow_up.as_str()), (Some(to), "k1"));
    let asked = v1::ListTasksRequest {
        project: "shop".to_owned(),
        group: "orders".to_owned(),
        status: v1::TaskStatus::Ready.into(),
        r#type: v1::TaskType::Http.into(),
        due_before: NOW as i64,
        limit: 7,
        page: "after".to_owned(),
    };
    client.list_tasks(asked).await.expect("listed");
    let over_grpc = api.world().filter.take().expect("a filter");
    let path = format!(
        "/v1/tasks?project=shop&group=orders&status=ready&type=http&due_before={NOW}&limit=7&page=after"
    );
    assert_eq!(api.ask("", "GET", &path, &Value::Null).await.status, 200);
    assert_eq!(Some(over_grpc), api.world().filter.take());
    let listed = client.list_tasks(v1::ListTasksRequest::default()).await.expect("listed");
    assert_eq!(listed.into_inner().tasks[0].task_id, "a1");
    let over_grpc = api.world().filter.take();
    assert_eq!(api.ask("", "GET", "/v1/tasks", &Value::Null).await.status, 200);
    assert_eq!(over_grpc, api.world().filter.take());
    #[rustfmt::skip]
    let cases = [
        ("limit",      v1::ListTasksRequest { limit: 1_001, ..v1::ListTasksRequest::default() }),
        ("status",     v1::ListTasksRequest { status: 99, ..v1::ListTasksRequest::default() }),
        ("type",       v1::ListTasksRequest { r#type: 99, ..v1::ListTasksRequest::default() }),
        ("due_before", v1::ListTasksRequest { due_before: -1, ..v1::ListTasksRequest::default() }),
        ("project",    v1::ListTasksRequest { project: "A b".into(), ..v1::ListTasksRequest::default() }),
        ("group",      v1::ListTasksRequest { group: "/".into(), ..v1::ListTasksRequest::default() }),
    ];
    for (field, asked) in cases {
        assert_eq!(fields(&client.list_tasks(asked).await.expect_err(field)), [field]);
    }
}

#[tokio::test]
async fn a_cancel_and_a_retry_say_what_became_of_them() {
    let api = Api::new();
    let mut client = tasks(&api, "");
    api.put_task("a1", "shop");
    let cancel = |wait| v1::CancelTaskRequest { task_id: "a1".to_owned(), wait };
    #[rustfmt::skip]
    let cases = [
        (CancelOutcome::Cancelled, v1::CancelOutcome::Cancelled),
        (CancelOutcome::Stopped,   v1::CancelOutcome::Stopped),
        (CancelOutcome::Finished,  v1::CancelOutcome::Finished),
        (CancelOutcome::Failed,    v1::CancelOutcome::Failed),
        (CancelOutcome::Expired,   v1::CancelOutcome::Expired),
        (CancelOutcome::Pending,   v1::CancelOutcome::Pending),
    ];
    for (outcome, want) in cases {
        api.world().outcome = Some(outcome);
        let told = client.cancel_task(cancel(None)).await.expect("told").into_inner();
        assert_eq!((told.task_id.as_str(), told.outcome()), ("a1", want));
    }
    for wait in [span(61, 0), span(-1, 0), span(0, -1)] {
        assert_eq!(fields(&client.cancel_task(cancel(wait)).await.expect_err("a wait")), ["wait"]);
    }
    // It hangs: to ask again is safe.
    api.world().outcome = None;
    let told = client.cancel_task(cancel(span(0, 0))).await.expect("told").into_inner();
    assert_eq!(told.outcome(), v1::CancelOutcome::Pending);
    let retry = |id: &str| v1::RetryTaskRequest { task_id: id.to_owned() };
    let told = client.retry_task(retry("a1")).await.expect("there").into_inner();
    assert_eq!(told.task_id, "a1");
    let status = client.retry_task(retry("b1")).await.expect_err("not there");
    assert_eq!(status.code(), Code::NotFound);
    assert_eq!(fields(&client.retry_task(retry("a b")).await.expect_err("no id")), ["task_id"]);
}

#[tokio::test]
async fn an_executor_reports_over_grpc_as_over_http() {
    let api = Api::new();
    let mut client = tasks(&api, "");
    let result = v1::ReportResultRequest {
        task_id: "a1".to_owned(),
        ticket: TICKET.to_owned(),
        outcome: v1::ReportedOutcome::Failed.into(),
        error: "no stock".to_owned(),
        retry_after: span(60, 0),
        worker: "w".to_owned(),
        cursor: "row:7".to_owned(),
        percent: Some(70),
    };
    let beat = v1::HeartbeatRequest {
        task_id: "a1".to_owned(),
        ticket: TICKET.to_owned(),
        worker: "w".to_owned(),
        cursor: "row:7".to_owned(),
        percent: Some(0),
    };
    api.world().report = Some(TaskReport::Retrying);
    let told = client.report_result(result.clone()).await.expect("taken").into_inner();
    assert_eq!(told.outcome, "retrying");
    api.world().report = Some(TaskReport::Running(UnixMillis(9)));
    let told = client.heartbeat(beat.clone()).await.expect("taken").into_inner();
    assert_eq!(told.next_at, 9);
    let over_grpc: Vec<_> = api.world().reported.drain(..).collect();
    let same = json!({
        "outcome": "failed", "ticket": TICKET, "error": "no stock", "retry_after": "1m", "worker": "w", "cursor": "row:7", "percent": 70,
    });
    api.ask("", "POST", "/v1/tasks/a1/result", &same).await;
    let same = json!({"ticket": TICKET, "worker": "w", "cursor": "row:7", "percent": 0});
    api.ask("", "POST", "/v1/tasks/a1/heartbeat", &same).await;
    assert_eq!(over_grpc, api.world().reported);
    api.world().reported.clear();
    #[rustfmt::skip]
    let cases = [
        (TaskReport::Stale,   Code::Aborted,     "stale"),
        (TaskReport::Open,    Code::Unavailable, "attempt_open"),
        (TaskReport::Absent,  Code::NotFound,    "unknown_task"),
        (TaskReport::Pending, Code::Unavailable, "lane_moving"),
    ];
    for (became, code, why) in cases {
        api.world().report = Some(became);
        for status in [
            client.report_result(result.clone()).await.expect_err(why),
            client.heartbeat(beat.clone()).await.expect_err(why),
        ] {
            assert_eq!((status.code(), reason(&status).as_str()), (code, why));
        }
    }
    let forged = v1::ReportResultRequest { ticket: FORGED.to_owned(), ..result.clone() };
    let status = client.report_result(forged).await.expect_err("forged");
    assert_eq!((status.code(), reason(&status).as_str()), (Code::PermissionDenied, "wrong_ticket"));
    for outcome in [0, 99] {
        let wrong = v1::ReportResultRequest { outcome, ticket: String::new(), ..result.clone() };
        let mut seen = fields(&client.report_result(wrong).await.expect_err("wrong"));
        seen.sort_unstable();
        assert_eq!(seen, ["outcome"]);
    }
}

#[tokio::test]
async fn a_project_and_its_services_are_put_shown_and_changed_as_over_http() {
    let api = Api::with_tokens();
    let mut client = projects(&api, "admin");
    let settings = v1::ProjectSettings {
        paused: Some(true),
        concurrency: Some(10),
        rate: Some(2.5),
        burst: Some(7),
        create_rate: Some(100.0),
        create_burst: Some(200),
        targets: Some(v1::Patterns { patterns: vec!["orders[.].*".to_owned()] }),
        history: span(86_400, 0),
        max_pending: Some(1_000),
        max_delay: span(3_600, 0),
        max_body: Some(4_096),
        window: span(60, 0),
        hosts: Some(v1::Hosts { hosts: vec!["billing.example".to_owned()] }),
    };
    let put = v1::PutProjectRequest {
        project: "shop".to_owned(),
        settings: Some(settings.clone()),
        if_revision: Some(0),
    };
    let told = client.put(put.clone()).await.expect("put").into_inner();
    assert_eq!(told.revision, 1);
    let service = v1::ServiceSettings {
        address: "https://billing.example".to_owned(),
        protocol: Some("http".to_owned()),
        paused: Some(false),
        concurrency: Some(3),
        rate: Some(4.0),
        burst: Some(5),
        timeout: span(9, 0),
        retry: Some(v1::RetryInfo {
            count: 2,
            interval: 3,
            backoff: v1::Backoff::Fixed.into(),
            max_interval: span(3_600, 0),
            jitter: Some(0.5),
            ..v1::RetryInfo::default()
        }),
        secret: Some("a".to_owned()),
        bearer: Some("b".to_owned()),
        client_certificate: Some("c".to_owned()),
    };
    let put_service = v1::PutServiceRequest {
        project: "shop".to_owned(),
        service: "billing".to_owned(),
        settings: Some(service.clone()),
        if_revision: None,
    };
    let told = client.put_service(put_service).await.expect("put").into_inner();
    assert_eq!(told.revision, 2);
    let get = v1::GetProjectRequest { project: "shop".to_owned() };
    let shown = client.get(get.clone()).await.expect("there").into_inner();
    let services = [("billing".to_owned(), v1::Service { revision: 2, settings: Some(service) })];
    let want = v1::Project {
        project: "shop".to_owned(),
        revision: 1,
        settings: Some(settings),
        services: services.into(),
    };
    assert_eq!(shown, want);
    // The same, as HTTP has it: what is shown is put again.
    let over_http = api.ask("admin", "GET", "/v1/projects/shop", &Value::Null).await.json;
    assert_eq!(over_http["services"]["billing"]["retry"]["max_interval"], 3_600, "{over_http}");
    let stats = client.get_stats(get.clone()).await.expect("counted").into_inner();
    let over_http = api.ask("admin", "GET", "/v1/projects/shop/stats", &Value::Null).await.json;
    assert_eq!(over_http["pending"]["total"], stats.pending.expect("counts").total, "{over_http}");
    assert_eq!(over_http["ended"]["failed"], stats.ended.expect("counts").failed, "{over_http}");
    assert_eq!(over_http["refused"]["over_pending"], stats.refused.expect("counts").over_pending);
    let status = client.put(put).await.expect_err("it was put by now");
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Aborted, "revision_conflict"));
    let change = |if_revision| v1::ChangeProjectRequest { project: "shop".into(), if_revision };
    client.resume(change(None)).await.expect("resumed");
    let of_service = v1::ChangeServiceRequest {
        project: "shop".to_owned(),
        service: "billing".to_owned(),
        if_revision: None,
    };
    client.pause_service(of_service.clone()).await.expect("paused");
    let shown = client.get(get.clone()).await.expect("there").into_inner();
    assert_eq!(shown.settings.expect("settings").paused, Some(false));
    let paused = shown.services["billing"].settings.as_ref().and_then(|of| of.paused);
    assert_eq!(paused, Some(true));
    client.resume_service(of_service.clone()).await.expect("resumed");
    client.pause(change(Some(3))).await.expect("paused");
    let row = client.list(v1::ListProjectsRequest {}).await.expect("listed").into_inner();
    let row = row.projects.first().expect("one");
    assert!(row.paused && row.concurrency == 10 && row.services == ["billing"], "{row:?}");
    client.delete_service(of_service.clone()).await.expect("deleted");
    let status = client.delete_service(of_service).await.expect_err("gone");
    assert_eq!((status.code(), reason(&status).as_str()), (Code::NotFound, "unknown_service"));
    client.delete(change(None)).await.expect("deleted");
    let status = client.get(get).await.expect_err("gone");
    assert_eq!((status.code(), reason(&status).as_str()), (Code::NotFound, "unknown_project"));
    let wrong = v1::ProjectSettings {
        concurrency: Some(0),
        history: span(1, 0),
        ..v1::ProjectSettings::default()
    };
    let put =
        v1::PutProjectRequest { project: "shop".into(), settings: Some(wrong), if_revision: None };
    let status = client.put(put.clone()).await.expect_err("wrong");
    let mut seen = fields(&status);
    seen.sort_unstable();
    assert_eq!(seen, ["concurrency", "history"]);
    let status =
        client.get(v1::GetProjectRequest { project: "..".into() }).await.expect_err("no name");
    assert_eq!(fields(&status), ["project"]);
    for token in ["reader", "writer"] {
        let status = projects(&api, token).put(put.clone()).await.expect_err(token);
        assert_eq!(status.code(), Code::PermissionDenied, "{token}");
    }
}

#[tokio::test]
async fn each_change_over_grpc_has_a_line_in_the_audit_log_whatever_becomes_of_it() {
    let lines = Lines::default();
    let test = Box::pin(async {
        let api = Api::with_tokens();
        let none = Value::Null;
        let (shop, billing) = ("projects/shop", "projects/shop/services/billing");
        // The only line since the last time.
        let said = |want: Value| assert_eq!(lines.take(), [want]);
        let refused = |status: Status, want: Value| {
            assert_eq!(reason(&status), want[5].as_str().unwrap_or_default(), "{status}");
            said(want);
        };
        let mut admin = projects(&api, "admin");
        let mut chief = projects(&api, "chief");
        let mut writer = projects(&api, "writer");

        let put = |project: &str, concurrency| v1::PutProjectRequest {
            project: project.to_owned(),
            settings: Some(v1::ProjectSettings { concurrency, ..v1::ProjectSettings::default() }),
            if_revision: None,
        };
        admin.put(put("shop", None)).await.expect("put");
        said(json!(["admin", "put", shop, 0, 1, "done"]));
        let settings = v1::ServiceSettings {
            address: "https://billing.example".to_owned(),
            ..v1::ServiceSettings::default()
        };
        let put_service = v1::PutServiceRequest {
            project: "shop".to_owned(),
            service: "billing".to_owned(),
            settings: Some(settings),
            if_revision: None,
        };
        admin.put_service(put_service).await.expect("put");
        said(json!(["admin", "put", billing, 0, 2, "done"]));
        let status = chief.put(put("bank", None)).await.expect_err("another project");
        refused(status, json!(["chief", "put", "projects/bank", none, none, "unknown_project"]));
        let status = admin.put(put("shop", Some(0))).await.expect_err("too few");
        refused(status, json!(["admin", "put", shop, none, none, "wrong_fields"]));
        let status = writer.put(put("shop", None)).await.expect_err("no admin");
        refused(status, json!(["writer", "put", shop, none, none, "role_denied"]));

        let of = |if_revision| v1::ChangeProjectRequest { project: "shop".into(), if_revision };
        chief.pause(of(None)).await.expect("paused");
        said(json!(["chief", "pause", shop, 1, 3, "done"]));
        let status = admin.resume(of(Some(1))).await.expect_err("an old revision");
        refused(status, json!(["admin", "resume", shop, 3, none, "revision_conflict"]));
        let status = writer.resume(of(None)).await.expect_err("no admin");
        refused(status, json!(["writer", "resume", shop, none, none, "role_denied"]));
        admin.resume(of(Some(3))).await.expect("resumed");
        said(json!(["admin", "resume", shop, 3, 4, "done"]));
        let of_service = v1::ChangeServiceRequest {
            project: "shop".to_owned(),
            service: "billing".to_owned(),
            if_revision: None,
        };
        chief.pause_service(of_service.clone()).await.expect("paused");
        said(json!(["chief", "pause", billing, 2, 5, "done"]));
        chief.resume_service(of_service.clone()).await.expect("resumed");
        said(json!(["chief", "resume", billing, 5, 6, "done"]));
        chief.delete_service(of_service.clone()).await.expect("deleted");
        said(json!(["chief", "delete", billing, 6, 7, "done"]));
        let status = chief.delete_service(of_service).await.expect_err("gone");
        refused(status, json!(["chief", "delete", billing, none, none, "unknown_service"]));
        admin.delete(of(None)).await.expect("deleted");
        said(json!(["admin", "delete", shop, 4, 8, "done"]));

        // Tasks: those of the project other are nothing to who may ask for shop alone.
        api.put_task("a1", "shop");
        api.put_task("b1", "other");
        let (mut admin, mut chief) = (tasks(&api, "admin"), tasks(&api, "chief"));
        let mut writer = tasks(&api, "writer");
        let retry = |id: &str| v1::RetryTaskRequest { task_id: id.to_owned() };
        writer.retry_task(retry("a1")).await.expect("retried");
        said(json!(["writer", "retry", "tasks/a1", none, none, "done"]));
        let status = writer.retry_task(retry("b1")).await.expect_err("another project");
        refused(status, json!(["writer", "retry", "tasks/b1", none, none, "unknown_task"]));
        let report = |id: &str, ticket: &str, outcome: v1::ReportedOutcome| {
            let (task_id, ticket) = (id.to_owned(), ticket.to_owned());
            let outcome = outcome.into();
            v1::ReportResultRequest { task_id, ticket, outcome, ..Default::default() }
        };
        use v1::ReportedOutcome::{Failed, Finished, Gone};
        admin.report_result(report("a1", "", Finished)).await.expect("taken");
        said(json!(["admin", "report_finished", "tasks/a1", none, none, "done"]));
        chief.report_result(report("a1", "", Gone)).await.expect("taken");
        said(json!(["chief", "report_gone", "tasks/a1", none, none, "done"]));
        let status = chief.report_result(report("b1", "", Failed)).await.expect_err("another's");
        refused(status, json!(["chief", "report_failed", "tasks/b1", none, none, "unknown_task"]));
        let status = writer.report_result(report("a1", "", Failed)).await.expect_err("no admin");
        refused(status, json!(["writer", "report_failed", "tasks/a1", none, none, "role_denied"]));
        let beat = v1::HeartbeatRequest { task_id: "a1".to_owned(), ..Default::default() };
        admin.heartbeat(beat).await.expect("taken");
        said(json!(["admin", "heartbeat", "tasks/a1", none, none, "done"]));
        api.world().failure = Some(Failure::Away("no broker answers".to_owned()));
        let status = admin.retry_task(retry("a1")).await.expect_err("Kafka is away");
        refused(status, json!(["admin", "retry", "tasks/a1", none, none, "kafka_away"]));
        api.world().failure = None;

        // No changes of an administrator: a report with its ticket, a look, and what nobody asks for who is known.
        writer.report_result(report("a1", TICKET, Finished)).await.expect("taken");
        let look = v1::GetTaskRequest { task_id: "a1".to_owned(), payload: false };
        admin.get_task(look).await.expect("there");
        projects(&api, "admin").list(v1::ListProjectsRequest {}).await.expect("listed");
        for token in ["", "nobody"] {
            let status = projects(&api, token).put(put("shop", None)).await.expect_err(token);
            assert_eq!(status.code(), Code::Unauthenticated, "{token}");
        }
        assert_eq!(lines.take(), Vec::<Value>::new());
    });
    test.in_current_span().with_subscriber(lines.subscriber()).await;
}

/// Every member of a task that HTTP shows is in the message, so that none is forgotten.
#[test]
fn a_message_has_what_http_shows() {
    let file = include_str!("../../../proto/waterclock/v1/tasks.proto");
    let (_, message) = file.split_once("message Task {").expect("the message");
    let (message, _) = message.split_once("\n}").expect("its end");
    let mut shown = task("a1", "shop");
    // What is absent in the one has to be there as well.
    shown.outcome = Some(CancelOutcome::Stopped);
    shown.topic = Some("t".to_owned());
    shown.partition = Some(1);
    shown.path = Some("/".to_owned());
    shown.request_id = Some("r".to_owned());
    shown.ended_at = Some(1);
    shown.expires_at = Some(NOW);
    shown.nominal_at = Some(NOW - 1);
    shown.code = Some("c".to_owned());
    shown.last = shown.attempts.first().cloned();
    shown.payload = Some(Default::default());
    shown.feedback =
        Some(FeedbackInfo { deadline: Length::Seconds(1), heartbeat: Some(Length::Seconds(1)) });
    let names = serde_json::to_value(&shown).expect("JSON");
    for name in names.as_object().expect("an object").keys() {
        assert!(message.contains(&format!(" {name} = ")), "{name} is in no message");
    }
    let times = |of: v1::Task| (of.expires_at, of.nominal_at);
    assert_eq!(times(convert::task(shown)), (NOW as i64, NOW as i64 - 1));
    let none = times(convert::task(task("a1", "shop")));
    assert_eq!(none, (0, 0), "it never expires, and is of no schedule");
}
