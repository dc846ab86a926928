//! Schedules as their room reads them, and as it shows them.
//!
//! # Invariants
//! 1. A message that is read twice is the same schedule.
//! 2. The task that is shown is the one that was asked for: what nobody said is not there. Addresses are as they are kept.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use waterclock_proto::v1;
use waterclock_proto::v1::header::Content;
use waterclock_proto::v1::new_task::Task as New;
use waterclock_proto::v1::on_result::To;

use super::super::super::schedules::model::{
    Backfilled, DeletedSchedule, Preview, ScheduleSettings, ScheduleStatus, ScheduleView, Triggered,
};
use super::super::super::schedules::of_one::DELETED;
use super::super::super::tasks::model::RetryInfo;
use super::{length, maybe_time, put, put_some, put_span, put_text, time, to_span};
use crate::engine::schedule::NEVER;
use crate::engine::task::request::{Header, Payload, Request};
use crate::engine::task::retry::Retry;
use crate::engine::task::spec::{Address, Kind, OnResult, Spec};

/// What is said of a schedule, as its reader takes it.
pub(in super::super) fn fields(of: v1::ScheduleSettings) -> Map<String, Value> {
    let mut map = Map::new();
    put_text(&mut map, "project", of.project);
    put_text(&mut map, "group", of.group);
    put_text(&mut map, "name", of.name);
    put_text(&mut map, "cron", of.cron);
    put_text(&mut map, "zone", of.zone);
    put_span(&mut map, "every", of.every);
    put_some(&mut map, "aligned", of.aligned);
    put(&mut map, "start", of.start, of.start != 0);
    put(&mut map, "end", of.end, of.end != 0);
    put(&mut map, "count", of.count, of.count != 0);
    put_span(&mut map, "jitter", of.jitter);
    match v1::Misfire::try_from(of.misfire) {
        Ok(v1::Misfire::Unspecified) => {}
        Ok(v1::Misfire::FireOnce) => put(&mut map, "misfire", "fire_once", true),
        Ok(v1::Misfire::Skip) => put(&mut map, "misfire", "skip", true),
        Ok(v1::Misfire::FireAll) => put(&mut map, "misfire", "fire_all", true),
        Err(_) => put(&mut map, "misfire", of.misfire, true),
    }
    match v1::Overlap::try_from(of.overlap) {
        Ok(v1::Overlap::Unspecified) => {}
        Ok(v1::Overlap::Allow) => put(&mut map, "overlap", "allow", true),
        Ok(v1::Overlap::Skip) => put(&mut map, "overlap", "skip", true),
        Ok(v1::Overlap::QueueOne) => put(&mut map, "overlap", "queue_one", true),
        Err(_) => put(&mut map, "overlap", of.overlap, true),
    }
    put_span(&mut map, "expires", of.expires);
    put(&mut map, "paused", of.paused, of.paused);
    put_some(&mut map, "task", of.task.and_then(|task| task.task).map(task_fields));
    map
}

/// A request for a task, as a schedule keeps it: with its type, and with what it sends.
fn task_fields(task: New) -> Value {
    let is_grpc = matches!(task, New::Grpc(_));
    let (of_type, value_at, (mut map, payload)) = match task {
        New::Http(task) => ("http", "body", super::http(task)),
        New::Kafka(task) => ("kafka", "value", super::kafka(task)),
        New::Grpc(task) => ("grpc", "body", super::grpc(task)),
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

/// A schedule. `spec`: what it is, of which the view has the task in JSON.
pub(in super::super) fn schedule(of: ScheduleView, spec: &Spec) -> v1::Schedule {
    v1::Schedule {
        schedule_id: of.schedule_id,
        version: of.version,
        status: status(of.status).into(),
        next_at: maybe_time(of.next_at),
        last_at: maybe_time(of.last_at),
        last_task_id: of.last_task_id.unwrap_or_default(),
        tasks_total: of.tasks_total,
        changed_at: time(of.changed_at),
        ended_at: maybe_time(of.ended_at),
        code: of.code.unwrap_or_default(),
        settings: Some(settings(of.settings, new_task(spec))),
    }
}

fn status(of: ScheduleStatus) -> v1::ScheduleStatus {
    match of {
        ScheduleStatus::Active => v1::ScheduleStatus::Active,
        ScheduleStatus::Paused => v1::ScheduleStatus::Paused,
        ScheduleStatus::Finished => v1::ScheduleStatus::Finished,
        ScheduleStatus::Deleted => v1::ScheduleStatus::Deleted,
        ScheduleStatus::Failed => v1::ScheduleStatus::Failed,
    }
}

fn settings(of: ScheduleSettings, task: Option<v1::NewTask>) -> v1::ScheduleSettings {
    let point = |at: Option<Value>| maybe_time(at.as_ref().and_then(Value::as_u64));
    v1::ScheduleSettings {
        project: of.project,
        group: of.group,
        name: of.name,
        cron: of.cron.unwrap_or_default(),
        zone: of.zone.unwrap_or_default(),
        every: of.every.as_ref().and_then(length),
        aligned: of.aligned,
        start: point(of.start),
        end: point(of.end),
        count: of.count.unwrap_or_default(),
        jitter: of.jitter.as_ref().and_then(length),
        misfire: match of.misfire.as_deref() {
            Some("fire_once") => v1::Misfire::FireOnce,
            Some("skip") => v1::Misfire::Skip,
            Some("fire_all") => v1::Misfire::FireAll,
            _ => v1::Misfire::Unspecified,
        }
        .into(),
        overlap: match of.overlap.as_deref() {
            Some("allow") => v1::Overlap::Allow,
            Some("skip") => v1::Overlap::Skip,
            Some("queue_one") => v1::Overlap::QueueOne,
            _ => v1::Overlap::Unspecified,
        }
        .into(),
        expires: of.expires.as_ref().and_then(length),
        paused: of.paused,
        task,
    }
}

/// The task of each time, as it is asked for. A schedule that was read has one.
fn new_task(spec: &Spec) -> Option<v1::NewTask> {
    let schedule = spec.schedule()?;
    let said = schedule.task();
    let if_said = |name: &str, text: &str| match said.contains_key(name) {
        true => text.to_owned(),
        false => String::new(),
    };
    let request = schedule.request((spec.project(), spec.group()), NEVER).ok()?;
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
        Kind::Kafka(_) | Kind::Schedule(_) => (None, false),
    };
    let options = v1::Options {
        poll: of
            .poll()
            .map(|of| v1::Poll { interval: Some(to_span(of.interval)), rounds: of.rounds }),
        feedback: of.feedback().map(|of| v1::Feedback {
            deadline: Some(to_span(of.deadline)),
            heartbeat: Some(of.heartbeat).filter(|beat| *beat != of.deadline).map(to_span),
        }),
        on_result: of.on_result().map(|to| {
            let to = match to {
                OnResult::Topic(topic) => To::Topic(topic.clone()),
                OnResult::Service(name) => To::Service(name.clone()),
                OnResult::Url(url) => To::Url(url.to_string()),
            };
            v1::OnResult { to: Some(to) }
        }),
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

pub(in super::super) fn deleted(of: DeletedSchedule) -> v1::DeleteScheduleResponse {
    let outcome = match of.outcome == DELETED {
        true => v1::DeleteOutcome::Deleted,
        false => v1::DeleteOutcome::Pending,
    };
    v1::DeleteScheduleResponse { schedule_id: of.schedule_id, outcome: outcome.into() }
}

pub(in super::super) fn triggered(of: Triggered) -> v1::ScheduledTask {
    v1::ScheduledTask { task_id: of.task_id, trigger_at: time(of.trigger_at) }
}

pub(in super::super) fn backfilled(of: Backfilled) -> v1::BackfillScheduleResponse {
    v1::BackfillScheduleResponse {
        tasks: of.tasks.into_iter().map(triggered).collect(),
        next_start: maybe_time(of.next_from),
    }
}

pub(in super::super) fn preview(of: Preview) -> v1::PreviewScheduleResponse {
    v1::PreviewScheduleResponse {
        times: of.times.into_iter().map(time).collect(),
        shown: of.shown,
        has_more: of.has_more,
        zones: of.zones,
    }
}
