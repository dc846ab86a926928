//! Messages as the rooms of tasks, schedules, runs and projects read them, and what those say as messages.

use serde_json::{Map, Value, json};
use waterclock_proto::v1;
use waterclock_proto::v1::header::Content;
use waterclock_proto::v1::on_result::To;

use super::super::projects::model::{
    EndedTasks, PendingTasks, ProjectRow, ProjectSettings, ProjectStats, ProjectView,
    RefusedCreates, ServiceSettings, ServiceView,
};
use super::super::tasks::model::{
    self, CancelOutcome, Length, PausedBy, ResultTo, RetryInfo, TaskStatus, TaskView, WaitsFor,
};
use crate::engine::Millis;
use crate::engine::header::duration_with_unit;
use crate::engine::task::request::Payload;
use crate::engine::task::spec::RUN;

pub(super) mod runs;
pub(super) mod schedules;
pub(super) mod template;

/// A length of time of protobuf.
pub(super) type Span = prost_types::Duration;

/// Fields of a task, and its payload.
pub(super) type Fields = (Map<String, Value>, Payload);

/// A field that is not said has the value that it has without being there.
fn put(map: &mut Map<String, Value>, name: &str, value: impl Into<Value>, is_said: bool) {
    if is_said {
        map.insert(name.to_owned(), value.into());
    }
}

/// A field that may be absent.
fn put_some(map: &mut Map<String, Value>, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        map.insert(name.to_owned(), value.into());
    }
}

fn put_text(map: &mut Map<String, Value>, name: &str, value: String) {
    if !value.is_empty() {
        map.insert(name.to_owned(), value.into());
    }
}

/// A length of time as the readers of JSON take it. What is none is refused there, by the name of its field.
fn span(span: Span) -> Value {
    let ms = i128::from(span.seconds) * 1_000 + i128::from(span.nanos) / 1_000_000;
    let rest = span.nanos % 1_000_000;
    if rest == 0 && ms >= 0 {
        format!("{ms}ms").into()
    } else {
        format!("{}s {}ns", span.seconds, span.nanos).into()
    }
}

fn put_span(map: &mut Map<String, Value>, name: &str, of: Option<Span>) {
    put_some(map, name, of.map(span));
}

fn retry_fields(retry: v1::RetryInfo) -> Value {
    let mut map = Map::new();
    put(&mut map, "count", retry.count, retry.count != 0);
    put(&mut map, "interval", retry.interval, retry.interval != 0);
    if let Some(exact) = retry.interval_exact {
        // Said twice it has two meanings.
        let both = format!("{} s and interval_exact; want one of them", retry.interval);
        map.insert(
            "interval".to_owned(),
            if retry.interval == 0 { span(exact) } else { both.into() },
        );
    }
    match v1::Backoff::try_from(retry.backoff) {
        Ok(v1::Backoff::Unspecified) => {}
        Ok(v1::Backoff::Fixed) => put(&mut map, "backoff", "fixed", true),
        Ok(v1::Backoff::Exponential) => put(&mut map, "backoff", "exponential", true),
        Err(_) => put(&mut map, "backoff", retry.backoff, true),
    }
    put_span(&mut map, "max_interval", retry.max_interval);
    put_some(&mut map, "jitter", retry.jitter);
    Value::Object(map)
}

/// What every task has.
fn base(
    trigger_at: i64,
    (project, group, request_id): (String, String, String),
    retry: Option<v1::RetryInfo>,
    options: Option<v1::Options>,
) -> Map<String, Value> {
    let mut map = Map::new();
    put(&mut map, "trigger_at", trigger_at, trigger_at != 0);
    put_text(&mut map, "project", project);
    put_text(&mut map, "group", group);
    put_text(&mut map, "request_id", request_id);
    put_some(&mut map, "retry", retry.map(retry_fields));
    let options = options.unwrap_or_default();
    put_span(&mut map, "delay", options.delay);
    put(&mut map, "expires_at", options.expires_at, options.expires_at != 0);
    put_span(&mut map, "window", options.window);
    put_span(&mut map, "timeout", options.timeout);
    put_text(&mut map, "service", options.named_service);
    // A task that does not have it is refused with its name.
    put(&mut map, "tls", options.tls, options.tls);
    if let Some(feedback) = options.feedback {
        let mut fields = Map::new();
        put_span(&mut fields, "deadline", feedback.deadline);
        put_span(&mut fields, "heartbeat", feedback.heartbeat);
        map.insert("feedback".to_owned(), fields.into());
    }
    if let Some(on_result) = options.on_result {
        map.insert("on_result".to_owned(), on_result_fields(on_result));
    }
    if let Some(poll) = options.poll {
        let mut fields = Map::new();
        put_span(&mut fields, "interval", poll.interval);
        put(&mut fields, "rounds", poll.rounds, poll.rounds != 0);
        map.insert("poll".to_owned(), fields.into());
    }
    map
}

fn on_result_fields(of: v1::OnResult) -> Value {
    let to = of.to.map(|to| match to {
        To::Topic(topic) => ("topic", topic),
        To::Service(service) => ("service", service),
        To::Url(url) => ("url", url),
    });
    // None of the three is refused by the reader.
    let fields = to.into_iter().map(|(name, value)| (name.to_owned(), value.into()));
    fields.collect::<Map<String, Value>>().into()
}

fn on_result(ResultTo { topic, service, url }: ResultTo) -> v1::OnResult {
    let to = topic.map(To::Topic).or_else(|| service.map(To::Service));
    v1::OnResult { to: to.or_else(|| url.map(To::Url)) }
}

/// What every report of an executor has, as its reader takes it.
pub(super) fn report_fields(
    (ticket, worker, cursor): (String, String, String),
    percent: Option<u32>,
) -> Map<String, Value> {
    let mut map = Map::new();
    put_text(&mut map, "ticket", ticket);
    put_text(&mut map, "worker", worker);
    put_text(&mut map, "cursor", cursor);
    if let Some(percent) = percent {
        map.insert("percent".to_owned(), percent.into());
    }
    map
}

/// What came of a turn, as its reader takes it.
pub(super) fn result_fields(of: v1::ReportResultRequest) -> Map<String, Value> {
    let mut map = report_fields((of.ticket, of.worker, of.cursor), of.percent);
    match v1::ReportedOutcome::try_from(of.outcome) {
        Ok(v1::ReportedOutcome::Unspecified) => {}
        Ok(v1::ReportedOutcome::Finished) => put(&mut map, "outcome", "finished", true),
        Ok(v1::ReportedOutcome::Failed) => put(&mut map, "outcome", "failed", true),
        Ok(v1::ReportedOutcome::Gone) => put(&mut map, "outcome", "gone", true),
        Err(_) => put(&mut map, "outcome", of.outcome, true),
    }
    put_text(&mut map, "error", of.error);
    put_span(&mut map, "retry_after", of.retry_after);
    map
}

fn put_call_headers(map: &mut Map<String, Value>, headers: Vec<v1::Header>) {
    let headers = headers.into_iter().map(|header| match header.content {
        Some(Content::Value(value)) => json!([header.name, value]),
        // Refused by the reader: a call has headers of text.
        Some(Content::ValueBytes(_)) | None => json!([header.name, null]),
    });
    let headers: Vec<Value> = headers.collect();
    let is_said = !headers.is_empty();
    put(map, "headers", headers, is_said);
}

pub(super) fn http(request: v1::CreateHttpTaskRequest) -> Fields {
    let names = (request.project, request.group, request.request_id);
    let mut map = base(request.trigger_at, names, request.retry, request.options);
    put_text(&mut map, "url", request.url);
    put_text(&mut map, "method", request.method);
    put_text(&mut map, "expect", request.expect);
    put_text(&mut map, "path", request.path);
    put_call_headers(&mut map, request.headers);
    let value = Some(request.body).filter(|body| !body.is_empty());
    (map, Payload { value, ..Payload::default() })
}

pub(super) fn grpc(mut request: v1::CreateGrpcTaskRequest) -> Fields {
    let names = (request.project, request.group, request.request_id);
    let options = request.options.as_mut();
    // That of an HTTP task is called `service`, which is the service of gRPC here.
    let named = options.map(|options| std::mem::take(&mut options.named_service));
    let mut map = base(request.trigger_at, names, request.retry, request.options);
    put_text(&mut map, "named_service", named.unwrap_or_default());
    put_text(&mut map, "host", request.host);
    put_text(&mut map, "service", request.service);
    put_text(&mut map, "method", request.method);
    match v1::GrpcBodyFormat::try_from(request.format) {
        Ok(v1::GrpcBodyFormat::Unspecified) => {}
        Ok(v1::GrpcBodyFormat::Protobuf) => put(&mut map, "format", "protobuf", true),
        Ok(v1::GrpcBodyFormat::Json) => put(&mut map, "format", "json", true),
        Err(_) => put(&mut map, "format", request.format, true),
    }
    put_call_headers(&mut map, request.headers);
    let value = Some(request.body).filter(|body| !body.is_empty());
    (map, Payload { value, ..Payload::default() })
}

pub(super) fn kafka(request: v1::CreateKafkaTaskRequest) -> Fields {
    let names = (request.project, request.group, request.request_id);
    let mut map = base(request.trigger_at, names, request.retry, request.options);
    put_text(&mut map, "topic", request.topic);
    put_some(&mut map, "partition", request.partition);
    let headers = request.headers.into_iter().map(|header| {
        let value = header.content.map(|content| match content {
            Content::Value(text) => text.into_bytes(),
            Content::ValueBytes(bytes) => bytes,
        });
        (header.name, value)
    });
    (map, Payload { key: request.key, value: request.value, headers: headers.collect() })
}

/// Epoch milliseconds; more than there are in a message is the most.
fn time(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

fn maybe_time(ms: Option<u64>) -> i64 {
    ms.map_or(0, time)
}

fn to_span(length: Millis) -> Span {
    Span {
        seconds: time(length.0 / 1_000),
        nanos: i32::try_from(length.0 % 1_000 * 1_000_000).unwrap_or_default(),
    }
}

/// A length that we have written ourselves.
fn length(length: &Length) -> Option<Span> {
    match length {
        Length::Seconds(seconds) => Some(Span { seconds: time(*seconds), nanos: 0 }),
        Length::Text(text) => duration_with_unit(text).map(to_span),
    }
}

fn retry(retry: &RetryInfo) -> v1::RetryInfo {
    let interval = retry.interval.as_ref().and_then(length);
    let is_whole = interval.as_ref().is_some_and(|interval| interval.nanos == 0);
    let seconds = interval.as_ref().and_then(|interval| u32::try_from(interval.seconds).ok());
    v1::RetryInfo {
        count: retry.count.unwrap_or_default(),
        interval: seconds.filter(|_| is_whole).unwrap_or_default(),
        interval_exact: interval.filter(|_| !is_whole || seconds.is_none()),
        backoff: match retry.backoff.as_deref() {
            Some("fixed") => v1::Backoff::Fixed,
            Some("exponential") => v1::Backoff::Exponential,
            _ => v1::Backoff::Unspecified,
        }
        .into(),
        max_interval: retry.max_interval.as_ref().and_then(length),
        jitter: retry.jitter,
    }
}

/// Text, or bytes in base64 that we have written ourselves.
fn bytes(text: Option<String>, base64: Option<&str>) -> Option<Vec<u8>> {
    use base64::Engine as _;
    let decoded = || base64::engine::general_purpose::STANDARD.decode(base64?).ok();
    text.map(String::into_bytes).or_else(decoded)
}

fn attempt(of: model::Attempt) -> v1::Attempt {
    v1::Attempt {
        turn: of.turn,
        started: maybe_time(of.started),
        ended: maybe_time(of.ended),
        status: of.status.map_or(0, u32::from),
        outcome: of.outcome,
        error: of.error.unwrap_or_default(),
        worker: of.worker.unwrap_or_default(),
        response: bytes(of.response, of.response_b64.as_deref()).unwrap_or_default(),
        cursor: of.cursor.unwrap_or_default(),
        percent: of.percent.map(u32::from),
    }
}

fn payload(of: model::Payload) -> v1::Payload {
    let header = |of: model::PayloadHeader| v1::Header {
        name: of.name,
        content: match (of.value, of.value_b64) {
            (Some(text), _) => Some(Content::Value(text)),
            (None, base64) => bytes(None, base64.as_deref()).map(Content::ValueBytes),
        },
    };
    v1::Payload {
        body: bytes(of.body, of.body_b64.as_deref()),
        key: bytes(of.key, of.key_b64.as_deref()),
        headers: of.headers.into_iter().map(header).collect(),
    }
}

fn status(of: TaskStatus) -> v1::TaskStatus {
    match of {
        TaskStatus::Delay => v1::TaskStatus::Delay,
        TaskStatus::Ready => v1::TaskStatus::Ready,
        TaskStatus::Running => v1::TaskStatus::Running,
        TaskStatus::Finished => v1::TaskStatus::Finished,
        TaskStatus::Failed => v1::TaskStatus::Failed,
        TaskStatus::Cancelled => v1::TaskStatus::Cancelled,
        TaskStatus::Expired => v1::TaskStatus::Expired,
    }
}

/// A status to look for; `None`: any.
///
/// # Errors
/// What is wrong with it.
pub(super) fn wanted_status(number: i32) -> Result<Option<TaskStatus>, String> {
    match v1::TaskStatus::try_from(number) {
        Ok(v1::TaskStatus::Unspecified) => Ok(None),
        Ok(want) => Ok(TaskStatus::ALL.into_iter().find(|of| status(*of) == want)),
        Err(_) => Err(format!("is {number}; want one of TaskStatus")),
    }
}

/// A type to look for; `None`: any.
///
/// # Errors
/// What is wrong with it.
pub(super) fn wanted_type(number: i32) -> Result<Option<String>, String> {
    match v1::TaskType::try_from(number) {
        Ok(v1::TaskType::Unspecified) => Ok(None),
        Ok(v1::TaskType::Http) => Ok(Some("http".to_owned())),
        Ok(v1::TaskType::Kafka) => Ok(Some("kafka".to_owned())),
        Ok(v1::TaskType::Grpc) => Ok(Some("grpc".to_owned())),
        Ok(v1::TaskType::Run) => Err("is that of runs; they have a list of their own".to_owned()),
        Err(_) => Err(format!("is {number}; want one of TaskType")),
    }
}

pub(super) fn outcome(of: CancelOutcome) -> v1::CancelOutcome {
    match of {
        CancelOutcome::Cancelled => v1::CancelOutcome::Cancelled,
        CancelOutcome::Stopped => v1::CancelOutcome::Stopped,
        CancelOutcome::Finished => v1::CancelOutcome::Finished,
        CancelOutcome::Failed => v1::CancelOutcome::Failed,
        CancelOutcome::Expired => v1::CancelOutcome::Expired,
        CancelOutcome::Pending => v1::CancelOutcome::Pending,
    }
}

const fn waits_for(of: WaitsFor) -> &'static str {
    match of {
        WaitsFor::Paused => "paused",
        WaitsFor::Limit => "limit",
        WaitsFor::Breaker => "breaker",
        WaitsFor::Worker => "worker",
    }
}

const fn paused_by(of: PausedBy) -> &'static str {
    match of {
        PausedBy::Project => "project",
        PausedBy::Service => "service",
        PausedBy::Topic => "topic",
    }
}

pub(super) fn task(of: TaskView) -> v1::Task {
    let task_type = match of.task_type.as_str() {
        "http" => v1::TaskType::Http,
        "kafka" => v1::TaskType::Kafka,
        "grpc" => v1::TaskType::Grpc,
        RUN => v1::TaskType::Run,
        _ => v1::TaskType::Unspecified,
    };
    // Each of the two is called `service` by the tasks that have it.
    let (grpc_service, named_service) = match task_type {
        v1::TaskType::Grpc => (of.service, of.named_service),
        _ => (None, of.service),
    };
    let format = match of.format.as_deref() {
        Some("protobuf") => v1::GrpcBodyFormat::Protobuf,
        Some("json") => v1::GrpcBodyFormat::Json,
        _ => v1::GrpcBodyFormat::Unspecified,
    };
    let header =
        |(name, value): (String, String)| v1::Header { name, content: Some(Content::Value(value)) };
    v1::Task {
        task_id: of.task_id,
        task_type: task_type.into(),
        task_status: status(of.task_status).into(),
        trigger_at: time(of.trigger_at),
        project: of.project,
        group: of.group,
        request_id: of.request_id.unwrap_or_default(),
        created_at: time(of.created_at),
        retry: of.retry.as_ref().map(retry),
        turn: of.turn,
        attempts_total: of.attempts_total,
        failures: of.failures,
        rounds: of.rounds,
        attempts: of.attempts.into_iter().map(attempt).collect(),
        next_at: maybe_time(of.next_at),
        waits_for: of.waits_for.map(waits_for).unwrap_or_default().to_owned(),
        last: of.last.map(attempt),
        cursor: of.cursor.unwrap_or_default(),
        payload: of.payload.map(payload),
        outcome: of.outcome.map_or(v1::CancelOutcome::Unspecified, outcome).into(),
        method: of.method.unwrap_or_default(),
        url: of.url.unwrap_or_default(),
        named_service: named_service.unwrap_or_default(),
        host: of.host.unwrap_or_default(),
        tls: of.tls.unwrap_or_default(),
        grpc_service: grpc_service.unwrap_or_default(),
        format: format.into(),
        path: of.path.unwrap_or_default(),
        timeout: of.timeout.as_ref().and_then(length),
        expect: of.expect.unwrap_or_default(),
        poll: of
            .poll
            .map(|poll| v1::Poll { interval: length(&poll.interval), rounds: poll.rounds }),
        headers: of.headers.into_iter().map(header).collect(),
        topic: of.topic.unwrap_or_default(),
        partition: of.partition,
        interruptions: of.interruptions,
        cancelling: of.cancelling,
        paused_by: of.paused_by.into_iter().map(|by| paused_by(by).to_owned()).collect(),
        ended_at: maybe_time(of.ended_at),
        code: of.code.unwrap_or_default(),
        feedback: of.feedback.map(|of| v1::Feedback {
            deadline: length(&of.deadline),
            heartbeat: of.heartbeat.as_ref().and_then(length),
        }),
        on_result: of.on_result.map(on_result),
        follow_up: of.follow_up.unwrap_or_default(),
        expires_at: maybe_time(of.expires_at),
        nominal_at: maybe_time(of.nominal_at),
    }
}

/// What is said of a project, as its reader takes it.
pub(super) fn project_fields(of: v1::ProjectSettings) -> Value {
    let mut map = Map::new();
    put_some(&mut map, "paused", of.paused);
    put_some(&mut map, "concurrency", of.concurrency);
    put_some(&mut map, "rate", of.rate);
    put_some(&mut map, "burst", of.burst);
    put_some(&mut map, "create_rate", of.create_rate);
    put_some(&mut map, "create_burst", of.create_burst);
    put_some(&mut map, "targets", of.targets.map(|targets| targets.patterns));
    put_span(&mut map, "history", of.history);
    put_some(&mut map, "max_pending", of.max_pending);
    put_span(&mut map, "max_delay", of.max_delay);
    put_some(&mut map, "max_body", of.max_body);
    put_span(&mut map, "window", of.window);
    put_some(&mut map, "hosts", of.hosts.map(|hosts| hosts.hosts));
    map.into()
}

/// What is said of a service, as its reader takes it.
pub(super) fn service_fields(of: v1::ServiceSettings) -> Value {
    let mut map = Map::new();
    put_text(&mut map, "address", of.address);
    put_some(&mut map, "protocol", of.protocol);
    put_some(&mut map, "paused", of.paused);
    put_some(&mut map, "concurrency", of.concurrency);
    put_some(&mut map, "rate", of.rate);
    put_some(&mut map, "burst", of.burst);
    put_span(&mut map, "timeout", of.timeout);
    put_some(&mut map, "retry", of.retry.map(retry_fields));
    put_some(&mut map, "secret", of.secret);
    put_some(&mut map, "bearer", of.bearer);
    put_some(&mut map, "client_certificate", of.client_certificate);
    map.into()
}

fn project_settings(of: ProjectSettings) -> v1::ProjectSettings {
    v1::ProjectSettings {
        paused: of.paused,
        concurrency: of.concurrency,
        rate: of.rate,
        burst: of.burst,
        create_rate: of.create_rate,
        create_burst: of.create_burst,
        targets: of.targets.map(|patterns| v1::Patterns { patterns }),
        history: of.history.as_ref().and_then(length),
        max_pending: of.max_pending,
        max_delay: of.max_delay.as_ref().and_then(length),
        max_body: of.max_body,
        window: of.window.as_ref().and_then(length),
        hosts: of.hosts.map(|hosts| v1::Hosts { hosts }),
    }
}

fn service_settings(of: ServiceSettings) -> v1::ServiceSettings {
    v1::ServiceSettings {
        address: of.address,
        protocol: of.protocol,
        paused: of.paused,
        concurrency: of.concurrency,
        rate: of.rate,
        burst: of.burst,
        timeout: of.timeout.as_ref().and_then(length),
        retry: of.retry.as_ref().map(retry),
        secret: of.secret,
        bearer: of.bearer,
        client_certificate: of.client_certificate,
    }
}

pub(super) fn project(of: ProjectView) -> v1::Project {
    let service = |of: ServiceView| v1::Service {
        revision: of.revision,
        settings: Some(service_settings(of.settings)),
    };
    v1::Project {
        project: of.project,
        revision: of.revision,
        settings: Some(project_settings(of.settings)),
        services: of.services.into_iter().map(|(name, of)| (name, service(of))).collect(),
    }
}

pub(super) fn project_stats(of: ProjectStats) -> v1::ProjectStats {
    let PendingTasks { total, delay, ready, overdue, running } = of.pending;
    let EndedTasks { finished, failed, cancelled, expired } = of.ended;
    let RefusedCreates { over_create_rate, over_pending } = of.refused;
    v1::ProjectStats {
        project: of.project,
        pending: Some(v1::PendingTasks { total, delay, ready, overdue, running }),
        ended: Some(v1::EndedTasks { finished, failed, cancelled, expired }),
        refused: Some(v1::RefusedCreates { over_create_rate, over_pending }),
    }
}

pub(super) fn project_row(of: ProjectRow) -> v1::ProjectRow {
    v1::ProjectRow {
        project: of.project,
        revision: of.revision,
        paused: of.paused,
        concurrency: of.concurrency,
        services: of.services,
    }
}
