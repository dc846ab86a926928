//! Tasks that their owner keeps, as they are asked for: that of each time of a schedule, that of each shard of a run.
//!
//! # Invariants
//! 1. The task that is shown is the one that was asked for: what nobody said is not there. Addresses are as they are kept.
//! 2. A mistake is named by the field of the message that has it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use waterclock_proto::v1;
use waterclock_proto::v1::header::Content;
use waterclock_proto::v1::new_task::Task as New;

use super::super::super::tasks::model::RetryInfo;
use super::super::status::{OF_MESSAGE, OF_TASK};
use super::{Fields, on_result, put, to_span};
use crate::engine::task::Wrong;
use crate::engine::task::request::{Header, Payload, Request, TaskType};
use crate::engine::task::retry::Retry;
use crate::engine::task::spec::{Address, Kind, RUN, Spec};

/// A request for a task, as its reader takes it.
pub(in super::super) fn request(task: New) -> (TaskType, Fields) {
    match task {
        New::Http(task) => (TaskType::Http, super::http(task)),
        New::Kafka(task) => (TaskType::Kafka, super::kafka(task)),
        New::Grpc(task) => (TaskType::Grpc, super::grpc(task)),
        New::Run(run) => (TaskType::Run, super::runs::request(*run)),
    }
}

/// Where the service of gRPC stands that a task calls. That of no other task is a service of its project there.
pub(in super::super) fn service_of_grpc(task: &New) -> Option<String> {
    match task {
        New::Grpc(_) => Some("service".to_owned()),
        New::Run(run) => service_within(run.task.as_deref()),
        New::Http(_) | New::Kafka(_) => None,
    }
}

/// The same of a task that its owner keeps.
pub(in super::super) fn service_within(task: Option<&v1::NewTask>) -> Option<String> {
    let within = service_of_grpc(task?.task.as_ref()?)?;
    Some(format!("{OF_TASK}{within}"))
}

/// Says of mistakes with the service of gRPC, which stands there, that it is one of the message.
pub(in super::super) fn name_service(wrongs: &mut [Wrong], at: Option<&str>) {
    let of_service = wrongs.iter_mut().filter(|wrong| at.is_some_and(|at| at == wrong.at));
    for wrong in of_service {
        let owner = wrong.at.strip_suffix("service").unwrap_or_default();
        wrong.at = format!("{owner}{OF_MESSAGE}service");
    }
}

/// A request for a task, as its owner keeps it: with its type, and with what it sends.
pub(super) fn fields(task: New) -> Value {
    let is_grpc = matches!(task, New::Grpc(_));
    let (of_type, value_at, (mut map, payload)) = match task {
        New::Http(task) => ("http", "body", super::http(task)),
        New::Kafka(task) => ("kafka", "value", super::kafka(task)),
        New::Grpc(task) => ("grpc", "body", super::grpc(task)),
        New::Run(run) => (RUN, "", super::runs::request(*run)),
    };
    let Payload { key, value, headers } = payload;
    // A message of protobuf is bytes, even if they happen to be text.
    let may_be_text = !is_grpc || map.get("format").is_some_and(|format| format == "json");
    put(&mut map, "type", of_type, true);
    put_bytes(&mut map, value_at, value, may_be_text);
    put_bytes(&mut map, "key", key, true);
    if !headers.is_empty() {
        // JSON has no bytes. A header whose value is no text is refused by the reader.
        let pair = |(name, value): Header| {
            let text = value.and_then(|value| String::from_utf8(value).ok());
            json!([name, text])
        };
        let pairs: Vec<Value> = headers.into_iter().map(pair).collect();
        put(&mut map, "headers", pairs, true);
    }
    map.into()
}

/// Bytes: as text where they may be and are, else in base64.
fn put_bytes(map: &mut Map<String, Value>, name: &str, bytes: Option<Vec<u8>>, may_be_text: bool) {
    let Some(bytes) = bytes else { return };
    match std::str::from_utf8(&bytes) {
        Ok(text) if may_be_text => put(map, name, text, true),
        _ => put(map, &format!("{name}_b64"), STANDARD.encode(&bytes), true),
    }
}

/// A task that was read, as it is asked for. `said`: as it was written.
pub(super) fn message(said: &Map<String, Value>, request: Request) -> Option<v1::NewTask> {
    let if_said = |name: &str, text: &str| match said.contains_key(name) {
        true => text.to_owned(),
        false => String::new(),
    };
    let Request { spec: of, key, value, headers, .. } = request;
    let retry = of.retry().map(|of| retry(of, said));
    let options = options(&of);
    let task = match of.kind() {
        Kind::Http(http) => {
            let (url, path) = match &http.address {
                Address::Url(url) => (url.to_string(), String::new()),
                Address::Service { path, .. } => (String::new(), path.clone().unwrap_or_default()),
            };
            New::Http(v1::CreateHttpTaskRequest {
                url,
                path,
                method: if_said("method", http.method.as_str()),
                expect: if_said("expect", &http.expect.to_string()),
                headers: call_headers(&http.headers),
                body: value.unwrap_or_default(),
                retry,
                options,
                ..v1::CreateHttpTaskRequest::default()
            })
        }
        Kind::Kafka(kafka) => New::Kafka(v1::CreateKafkaTaskRequest {
            topic: kafka.topic.clone(),
            partition: kafka.partition,
            key,
            value,
            headers: headers.into_iter().map(record_header).collect(),
            retry,
            options,
            ..v1::CreateKafkaTaskRequest::default()
        }),
        Kind::Grpc(grpc) => New::Grpc(v1::CreateGrpcTaskRequest {
            host: grpc.host().map(|(host, _)| host).unwrap_or_default(),
            service: grpc.service.clone(),
            method: grpc.method.clone(),
            format: match if_said("format", grpc.format.as_str()).as_str() {
                "protobuf" => v1::GrpcBodyFormat::Protobuf,
                "json" => v1::GrpcBodyFormat::Json,
                _ => v1::GrpcBodyFormat::Unspecified,
            }
            .into(),
            headers: call_headers(&grpc.headers),
            body: value.unwrap_or_default(),
            retry,
            options,
            ..v1::CreateGrpcTaskRequest::default()
        }),
        Kind::Run(run) => New::Run(Box::new(super::runs::asked_for(said, &of, run))),
        Kind::Schedule(_) => return None,
    };
    Some(v1::NewTask { task: Some(task) })
}

/// A policy, without what nobody said.
fn retry(of: &Retry, task: &Map<String, Value>) -> v1::RetryInfo {
    let said = task.get("retry").and_then(Value::as_object);
    let is_said = |name: &str| said.is_some_and(|said| said.contains_key(name));
    super::retry(&RetryInfo {
        count: Some(of.count()),
        interval: is_said("interval").then(|| of.interval().into()),
        backoff: is_said("backoff").then(|| of.backoff().as_str().to_owned()),
        max_interval: is_said("max_interval").then(|| of.max_interval().into()),
        jitter: is_said("jitter").then(|| f64::from(of.jitter_thousandths()) / 1_000.0),
    })
}

/// What is ours beside the fields of a request; `None`: nothing is.
fn options(of: &Spec) -> Option<v1::Options> {
    let (timeout, tls) = match of.kind() {
        Kind::Http(http) => (http.timeout, false),
        Kind::Grpc(grpc) => (grpc.timeout, grpc.host().is_some_and(|(_, tls)| tls)),
        Kind::Kafka(_) | Kind::Schedule(_) | Kind::Run(_) => (None, false),
    };
    let options = v1::Options {
        poll: of
            .poll()
            .map(|of| v1::Poll { interval: Some(to_span(of.interval)), rounds: of.rounds }),
        feedback: of.feedback().map(|of| v1::Feedback {
            deadline: Some(to_span(of.deadline)),
            heartbeat: Some(of.heartbeat).filter(|beat| *beat != of.deadline).map(to_span),
        }),
        // That of a run is a field of its own.
        on_result: of.on_result().filter(|_| of.run().is_none()).map(|to| on_result(to.into())),
        timeout: timeout.map(to_span),
        tls,
        named_service: of.service().unwrap_or_default().to_owned(),
        ..v1::Options::default()
    };
    Some(options).filter(|options| *options != v1::Options::default())
}

fn call_headers(of: &[(String, String)]) -> Vec<v1::Header> {
    let header = |(name, value): &(String, String)| v1::Header {
        name: name.clone(),
        content: Some(Content::Value(value.clone())),
    };
    of.iter().map(header).collect()
}

fn record_header((name, value): Header) -> v1::Header {
    let content = value.map(|value| match String::from_utf8(value) {
        Ok(text) => Content::Value(text),
        Err(error) => Content::ValueBytes(error.into_bytes()),
    });
    v1::Header { name, content }
}
