//! Schedules over gRPC, compared with what HTTP does.

use std::collections::BTreeSet;

use axum::http::Uri;
use serde_json::{Map, Value, json};
use tonic::{Code, Status};
use tracing::Instrument as _;
use tracing::instrument::WithSubscriber as _;
use waterclock_proto::v1;
use waterclock_proto::v1::header::Content;
use waterclock_proto::v1::new_task::Task as New;
use waterclock_proto::v1::on_result::To;
use waterclock_proto::v1::schedules_client::SchedulesClient;

use super::super::super::audit::tests::Lines;
use super::super::super::schedules::Written;
use super::super::super::schedules::model::{ScheduleSettings, ScheduleStatus, ScheduleView};
use super::super::super::tasks::Failure;
use super::super::super::tasks::model::{CancelOutcome, Length};
use super::super::super::tasks::tests::{Api, NOW};
use super::{Channel, channel, fields, header, new, reason, span};
use crate::engine::timers::TimerState;

const ID: &str = "schedule.shop.nightly";
const PATH: &str = "/v1/schedules/schedule.shop.nightly";
/// That of a project that only the token `admin` covers.
const HOME: &str = "schedule.home.nightly";

fn schedules(api: &Api, token: &str) -> SchedulesClient<Channel> {
    SchedulesClient::with_origin(channel(api, token), Uri::from_static("http://localhost"))
}

fn http() -> v1::CreateHttpTaskRequest {
    v1::CreateHttpTaskRequest {
        url: "https://a.example/run".to_owned(),
        ..v1::CreateHttpTaskRequest::default()
    }
}

fn kafka() -> v1::CreateKafkaTaskRequest {
    v1::CreateKafkaTaskRequest {
        topic: "orders.late".to_owned(),
        ..v1::CreateKafkaTaskRequest::default()
    }
}

fn grpc() -> v1::CreateGrpcTaskRequest {
    v1::CreateGrpcTaskRequest {
        host: "shop.example:50051".to_owned(),
        service: "shop.v1.Orders".to_owned(),
        method: "Expire".to_owned(),
        ..v1::CreateGrpcTaskRequest::default()
    }
}

/// The least that a schedule needs.
fn nightly() -> v1::ScheduleSettings {
    v1::ScheduleSettings {
        project: "shop".to_owned(),
        group: "reports".to_owned(),
        name: "nightly".to_owned(),
        cron: "30 2 * * *".to_owned(),
        zone: "Europe/Berlin".to_owned(),
        task: Some(new(New::Http(http()))),
        ..v1::ScheduleSettings::default()
    }
}

/// The same with a period.
fn every_10s() -> v1::ScheduleSettings {
    let (cron, zone) = (String::new(), String::new());
    v1::ScheduleSettings { cron, zone, every: span(10, 0), ..nightly() }
}

/// The same with this task.
fn with(task: New) -> v1::ScheduleSettings {
    v1::ScheduleSettings { task: Some(new(task)), ..nightly() }
}

fn create(settings: v1::ScheduleSettings) -> v1::CreateScheduleRequest {
    v1::CreateScheduleRequest { settings: Some(settings) }
}

fn get(id: &str) -> v1::GetScheduleRequest {
    v1::GetScheduleRequest { schedule_id: id.to_owned() }
}

fn update(id: &str, settings: v1::ScheduleSettings, version: &str) -> v1::UpdateScheduleRequest {
    v1::UpdateScheduleRequest {
        schedule_id: id.to_owned(),
        settings: Some(settings),
        if_version: version.to_owned(),
    }
}

fn change(id: &str, version: &str) -> v1::ChangeScheduleRequest {
    v1::ChangeScheduleRequest { schedule_id: id.to_owned(), if_version: version.to_owned() }
}

fn delete(id: &str) -> v1::DeleteScheduleRequest {
    v1::DeleteScheduleRequest { schedule_id: id.to_owned(), ..v1::DeleteScheduleRequest::default() }
}

fn trigger(id: &str) -> v1::TriggerScheduleRequest {
    v1::TriggerScheduleRequest { schedule_id: id.to_owned() }
}

fn backfill(id: &str, (start, end): (u64, u64)) -> v1::BackfillScheduleRequest {
    v1::BackfillScheduleRequest { schedule_id: id.to_owned(), start: start as i64, end: end as i64 }
}

fn preview(id: &str) -> v1::PreviewScheduleRequest {
    v1::PreviewScheduleRequest { schedule_id: id.to_owned(), count: 0, start: 0 }
}

/// The code and the reason of a refusal.
fn why(status: &Status) -> (Code, String) {
    (status.code(), reason(status))
}

fn want(code: Code, reason: &str) -> (Code, String) {
    (code, reason.to_owned())
}

/// Each wrong field once: a field may have two mistakes.
fn places(status: &Status) -> BTreeSet<String> {
    fields(status).into_iter().collect()
}

/// It ends like that.
fn ends(api: &Api, state: TimerState) {
    api.world().schedules.get_mut(ID).expect("one").timer.state = state;
}

#[tokio::test]
async fn a_schedule_that_is_created_over_grpc_is_the_one_that_http_creates() {
    let api = Api::new();
    let mut client = schedules(&api, "");
    let everything = v1::ScheduleSettings {
        aligned: Some(false),
        start: NOW as i64 + 1_000,
        end: NOW as i64 + 86_400_000,
        count: 7,
        jitter: span(90, 0),
        misfire: v1::Misfire::FireAll.into(),
        overlap: v1::Overlap::QueueOne.into(),
        expires: span(300, 500_000_000),
        paused: true,
        ..every_10s()
    };
    let same = json!({
        "project": "shop", "group": "reports", "name": "nightly", "every": 10, "aligned": false, "start": NOW + 1_000,
        "end": NOW + 86_400_000, "count": 7, "jitter": "90s", "misfire": "fire_all", "overlap": "queue_one",
        "expires": "5m500ms", "paused": true, "task": {"type": "http", "url": "https://a.example/run"},
    });
    let told = client.create(create(everything.clone())).await.expect("made").into_inner();
    let over_http = api.ask("", "POST", "/v1/schedules", &same).await;
    assert_eq!(over_http.status, 200, "it is there, and the same: {over_http:?}");
    let expected = v1::Schedule {
        schedule_id: ID.to_owned(),
        version: over_http.json["version"].as_str().expect("a version").to_owned(),
        status: v1::ScheduleStatus::Paused.into(),
        changed_at: NOW as i64,
        settings: Some(everything.clone()),
        ..v1::Schedule::default()
    };
    assert_eq!(told, expected);
    let again = client.create(create(everything)).await.expect("the same").into_inner();
    assert_eq!(again, told);
    assert_eq!(client.get(get(ID)).await.expect("there").into_inner(), told);
    let status = client.create(create(nightly())).await.expect_err("another one");
    assert_eq!(why(&status), want(Code::AlreadyExists, "schedule_exists"));

    // With its defaults; and over HTTP it is the same.
    ends(&api, TimerState::Cancelled);
    let shown = client.get(get(ID)).await.expect("there").into_inner();
    assert_eq!(shown.status(), v1::ScheduleStatus::Deleted);
    assert!(shown.ended_at > 0, "{shown:?}");
    let told = client.create(create(nightly())).await.expect("made anew").into_inner();
    assert_eq!(told.status(), v1::ScheduleStatus::Active);
    let settings = v1::ScheduleSettings {
        jitter: span(0, 0),
        misfire: v1::Misfire::FireOnce.into(),
        overlap: v1::Overlap::Allow.into(),
        ..nightly()
    };
    assert_eq!(told.settings, Some(settings));
    let shown = api.ask("", "GET", PATH, &Value::Null).await.json;
    assert_eq!(
        (json!(told.version), json!(told.next_at)),
        (shown["version"].clone(), shown["next_at"].clone())
    );
    assert!(told.next_at > NOW as i64, "{told:?}");
}

/// What a task of this request has beside its specification.
type Sent = (Option<Vec<u8>>, Option<Vec<u8>>, Vec<(String, Option<Vec<u8>>)>);

fn sent(task: &New) -> Sent {
    let body = |body: &Vec<u8>| Some(body.clone()).filter(|body| !body.is_empty());
    match task {
        New::Http(task) => (None, body(&task.body), Vec::new()),
        New::Run(_) => (None, None, Vec::new()),
        New::Grpc(task) => (None, body(&task.body), Vec::new()),
        New::Kafka(task) => {
            let header = |of: &v1::Header| match &of.content {
                Some(Content::Value(text)) => (of.name.clone(), Some(text.clone().into_bytes())),
                other => panic!("a header of text: {other:?}"),
            };
            (task.key.clone(), task.value.clone(), task.headers.iter().map(header).collect())
        }
    }
}

#[tokio::test]
async fn a_task_of_each_type_comes_back_as_it_was_asked_for() {
    let api = Api::new();
    let mut client = schedules(&api, "");
    let of = v1::Options::default;
    let retry = Some(v1::RetryInfo {
        count: 3,
        interval_exact: span(1, 500_000_000),
        backoff: v1::Backoff::Exponential.into(),
        max_interval: span(60, 0),
        jitter: Some(0.25),
        ..v1::RetryInfo::default()
    });
    let told = |to| Some(v1::OnResult { to: Some(to) });
    let poll = Some(v1::Poll { interval: span(10, 0), rounds: 9 });
    let feedback = Some(v1::Feedback { deadline: span(3_600, 0), heartbeat: span(30, 0) });
    let tasks = [
        New::Http(http()),
        New::Http(v1::CreateHttpTaskRequest {
            url: String::new(),
            method: "PUT".to_owned(),
            headers: vec![header("x-a", "b"), header("x-a", "c")],
            body: b"{}".to_vec(),
            expect: "2xx,404".to_owned(),
            path: "/run".to_owned(),
            retry,
            options: Some(v1::Options {
                poll,
                timeout: span(7, 0),
                on_result: told(To::Topic("done".to_owned())),
                named_service: "billing".to_owned(),
                ..of()
            }),
            ..http()
        }),
        New::Http(v1::CreateHttpTaskRequest {
            body: vec![0xff, 0],
            retry: Some(v1::RetryInfo { count: 1, interval: 5, ..v1::RetryInfo::default() }),
            options: Some(v1::Options {
                feedback: Some(v1::Feedback { deadline: span(60, 0), heartbeat: None }),
                on_result: told(To::Url("https://a.example/done".to_owned())),
                ..of()
            }),
            ..http()
        }),
        // No value is a tombstone, which an empty one is not.
        New::Kafka(v1::CreateKafkaTaskRequest { key: Some(b"k".to_vec()), ..kafka() }),
        New::Kafka(v1::CreateKafkaTaskRequest { value: Some(Vec::new()), ..kafka() }),
        New::Kafka(v1::CreateKafkaTaskRequest {
            key: Some(vec![0xff]),
            value: Some("Grüße".into()),
            partition: Some(3),
            headers: vec![header("a", "b"), header("a", "")],
            options: Some(v1::Options {
                feedback,
                on_result: told(To::Service("billing".to_owned())),
                ..of()
            }),
            ..kafka()
        }),
        New::Grpc(grpc()),
        // These bytes are text, too.
        New::Grpc(v1::CreateGrpcTaskRequest {
            format: v1::GrpcBodyFormat::Protobuf.into(),
            body: vec![8, 7],
            headers: vec![header("x-a", "b")],
            options: Some(v1::Options { tls: true, poll, ..of() }),
            ..grpc()
        }),
        New::Grpc(v1::CreateGrpcTaskRequest { body: vec![10, 1, 0xff], ..grpc() }),
        New::Grpc(v1::CreateGrpcTaskRequest {
            host: String::new(),
            format: v1::GrpcBodyFormat::Json.into(),
            body: br#"{"id":7}"#.to_vec(),
            retry,
            options: Some(v1::Options {
                named_service: "billing".to_owned(),
                timeout: span(0, 250_000_000),
                ..of()
            }),
            ..grpc()
        }),
    ];
    for (n, task) in tasks.into_iter().enumerate() {
        let name = format!("task-{n}");
        let settings = v1::ScheduleSettings { name, ..with(task.clone()) };
        let told = client.create(create(settings)).await.expect("made").into_inner();
        let id = told.schedule_id.clone();
        let shown = client.get(get(&id)).await.expect("there").into_inner();
        assert_eq!(shown, told);
        let settings = shown.settings.expect("settings");
        assert_eq!(settings.task, Some(new(task.clone())));
        // What is shown is the same again.
        let again = client.create(create(settings)).await;
        let is_same = again.is_ok_and(|again| again.into_inner().version == told.version);
        assert!(is_same, "{task:?}");
        client.trigger(trigger(&id)).await.expect("created");
        let submitted = api.world().submitted.pop().expect("one");
        assert_eq!((submitted.key, submitted.value, submitted.headers), sent(&task), "{task:?}");
    }
}

#[tokio::test]
async fn what_is_wrong_is_named_as_the_messages_have_it_and_nothing_is_kept() {
    let api = Api::new();
    let mut client = schedules(&api, "");
    let of = v1::Options::default;
    let of_http = |task: v1::CreateHttpTaskRequest| with(New::Http(task));
    let of_kafka = |task: v1::CreateKafkaTaskRequest| with(New::Kafka(task));
    let of_grpc = |task: v1::CreateGrpcTaskRequest| with(New::Grpc(task));
    let options = |options| of_http(v1::CreateHttpTaskRequest { options: Some(options), ..http() });
    let bytes = |name: &str| {
        vec![v1::Header { name: name.to_owned(), content: Some(Content::ValueBytes(vec![0xff])) }]
    };
    let backoff = v1::RetryInfo { backoff: 7, ..v1::RetryInfo::default() };
    let named = v1::Options { named_service: "B".to_owned(), ..of() };
    let json: i32 = v1::GrpcBodyFormat::Json.into();
    #[rustfmt::skip]
    let cases: Vec<(v1::ScheduleSettings, &[&str])> = vec![
        (v1::ScheduleSettings::default(),                                       &["project", "group", "name", "cron", "task"]),
        (v1::ScheduleSettings { name: "a.b".into(), ..nightly() },              &["name"]),
        (v1::ScheduleSettings { cron: "61 * * * *".into(), ..nightly() },       &["cron"]),
        (v1::ScheduleSettings { zone: "Europe/Bärlin".into(), ..nightly() },    &["zone"]),
        (v1::ScheduleSettings { every: span(10, 0), ..nightly() },              &["every"]),
        (v1::ScheduleSettings { every: span(0, 1), ..every_10s() },             &["every"]),
        (v1::ScheduleSettings { aligned: Some(true), ..nightly() },             &["aligned"]),
        (v1::ScheduleSettings { start: -1, ..nightly() },                       &["start"]),
        (v1::ScheduleSettings { end: 7, ..nightly() },                          &["end"]),
        (v1::ScheduleSettings { count: 3, ..nightly() },                        &["count"]),
        (v1::ScheduleSettings { jitter: span(7_200, 0), ..nightly() },          &["jitter"]),
        (v1::ScheduleSettings { misfire: 7, ..nightly() },                      &["misfire"]),
        (v1::ScheduleSettings { overlap: 7, ..nightly() },                      &["overlap"]),
        (v1::ScheduleSettings { expires: span(-1, 0), ..nightly() },            &["expires"]),
        (v1::ScheduleSettings { task: None, ..nightly() },                      &["task"]),
        (v1::ScheduleSettings { task: Some(v1::NewTask { task: None }), ..nightly() }, &["task"]),
        (of_http(v1::CreateHttpTaskRequest::default()),                         &["task.url"]),
        (of_http(v1::CreateHttpTaskRequest { url: "http://169.254.169.254/".into(), ..http() }), &["task.url"]),
        (of_http(v1::CreateHttpTaskRequest { project: "shop".into(), ..http() }), &["task.project"]),
        (of_http(v1::CreateHttpTaskRequest { group: "g".into(), ..http() }),    &["task.group"]),
        (of_http(v1::CreateHttpTaskRequest { trigger_at: NOW as i64, ..http() }), &["task.trigger_at"]),
        (of_http(v1::CreateHttpTaskRequest { request_id: "r".into(), ..http() }), &["task.request_id"]),
        (of_http(v1::CreateHttpTaskRequest { headers: bytes("x-a"), ..http() }), &["task.headers[0][1]"]),
        (of_http(v1::CreateHttpTaskRequest { retry: Some(backoff), ..http() }), &["task.retry.backoff"]),
        (of_http(v1::CreateHttpTaskRequest { body: vec![b'a'; 70 << 10], ..http() }), &["schedule"]),
        (of_http(v1::CreateHttpTaskRequest { url: String::new(), options: Some(named.clone()), ..http() }), &["task.options.named_service"]),
        (options(v1::Options { delay: span(1, 0), ..of() }),                    &["task.options.delay"]),
        (options(v1::Options { expires_at: NOW as i64, ..of() }),               &["task.options.expires_at"]),
        (options(v1::Options { window: span(5, 0), ..of() }),                   &["task.options.window"]),
        (options(v1::Options { timeout: span(-1, 0), ..of() }),                 &["task.options.timeout"]),
        (options(v1::Options { poll: Some(v1::Poll { interval: span(1, 0), rounds: 0 }), ..of() }), &["task.options.poll.rounds"]),
        (of_kafka(v1::CreateKafkaTaskRequest { topic: "wc.tasks".into(), ..kafka() }), &["task.topic"]),
        (of_kafka(v1::CreateKafkaTaskRequest { headers: bytes("a"), ..kafka() }), &["task.headers[0]"]),
        (of_kafka(v1::CreateKafkaTaskRequest { headers: vec![header("a", "b"), header("x-delay", "1")], ..kafka() }), &["task.headers[1]"]),
        (of_kafka(v1::CreateKafkaTaskRequest { key: Some(vec![0xff; 1_025]), ..kafka() }), &["task.key"]),
        (of_grpc(v1::CreateGrpcTaskRequest { service: "a b".into(), ..grpc() }), &["task.service"]),
        (of_grpc(v1::CreateGrpcTaskRequest { host: String::new(), options: Some(named), ..grpc() }), &["task.options.named_service"]),
        (of_grpc(v1::CreateGrpcTaskRequest { format: json, body: b"{".to_vec(), ..grpc() }), &["task.body"]),
        (of_grpc(v1::CreateGrpcTaskRequest { format: json, body: vec![0xff], ..grpc() }), &["task.body"]),
        (of_grpc(v1::CreateGrpcTaskRequest { format: 7, ..grpc() }),            &["task.format"]),
    ];
    for (settings, wrong) in cases {
        let shown = format!("{settings:?}").chars().take(300).collect::<String>();
        let wrong: BTreeSet<String> = wrong.iter().map(|at| (*at).to_owned()).collect();
        let status = client.create(create(settings.clone())).await.expect_err("wrong");
        assert_eq!(why(&status), want(Code::InvalidArgument, "wrong_fields"), "{shown}");
        assert_eq!(places(&status), wrong, "{shown}: {status}");
        if wrong.contains("project") || wrong.contains("name") {
            continue;
        }
        let status = client.update(update(ID, settings, "")).await.expect_err("wrong");
        assert_eq!(places(&status), wrong, "{shown}: {status}");
    }
    assert!(api.world().schedules.is_empty());
    let none = v1::CreateScheduleRequest { settings: None };
    let status = client.create(none).await.expect_err("nothing");
    assert!(places(&status).contains("cron"), "{status}");
    let other = update("schedule.shop.other", nightly(), "");
    assert_eq!(fields(&client.update(other).await.expect_err("two names")), ["name"]);
    for id in
        ["nightly", "", "schedule.shop", "schedule.shop.", "schedule.SHOP.a", "schedule.a@b.c"]
    {
        let status = client.get(get(id)).await.expect_err(id);
        assert_eq!(why(&status), want(Code::InvalidArgument, "wrong_fields"), "{id}");
        assert_eq!(fields(&status), ["schedule_id"], "{id}");
        let status = client.trigger(trigger(id)).await.expect_err(id);
        assert_eq!(fields(&status), ["schedule_id"], "{id}");
    }
    let status = client.get(get("schedule.shop.none")).await.expect_err("none");
    assert_eq!(why(&status), want(Code::NotFound, "unknown_schedule"));
}

#[tokio::test]
async fn a_change_names_the_version_that_it_follows() {
    let api = Api::new();
    let mut client = schedules(&api, "");
    let bare = v1::ScheduleSettings { project: String::new(), name: String::new(), ..nightly() };
    let first = client.update(update(ID, bare, "")).await.expect("made").into_inner();
    let later = v1::ScheduleSettings { cron: "0 3 * * *".to_owned(), ..nightly() };
    let told = client.update(update(ID, later, &first.version)).await;
    let second = told.expect("changed").into_inner();
    assert_ne!(second.version, first.version);
    assert_eq!(second.settings.as_ref().map(|of| of.cron.as_str()), Some("0 3 * * *"));
    let conflict = want(Code::Aborted, "version_conflict");
    let status = client.update(update(ID, nightly(), &first.version)).await.expect_err("late");
    assert_eq!(why(&status), conflict);
    let status = client.update(update(ID, nightly(), "7")).await.expect_err("no version");
    assert_eq!(fields(&status), ["if_version"]);
    // Another change that came between the look and the write.
    api.world().written = Some(Written::Superseded(None));
    let status = client.update(update(ID, nightly(), "")).await.expect_err("another came first");
    assert_eq!(why(&status), conflict);
    api.world().written = Some(Written::Pending);
    let status = client.update(update(ID, nightly(), "")).await.expect_err("not decided");
    assert_eq!(why(&status), want(Code::Unavailable, "lane_moving"));

    let status = client.pause(change(ID, &first.version)).await.expect_err("an old version");
    assert_eq!(why(&status), conflict);
    let status = client.pause(change(ID, "\"7\"")).await.expect_err("no version");
    assert_eq!(fields(&status), ["if_version"]);
    let paused = client.pause(change(ID, &second.version)).await.expect("paused").into_inner();
    assert_eq!((paused.status(), paused.next_at), (v1::ScheduleStatus::Paused, 0));
    assert_eq!(paused.settings.as_ref().map(|of| of.paused), Some(true));
    let again = client.pause(change(ID, "")).await.expect("it is so").into_inner();
    assert_eq!(again, paused);
    let resumed = client.resume(change(ID, &paused.version)).await.expect("resumed").into_inner();
    assert_ne!(resumed.version, paused.version);
    let as_before = v1::Schedule { version: second.version.clone(), ..resumed };
    assert_eq!(as_before, second);

    ends(&api, TimerState::Delivered);
    let shown = client.get(get(ID)).await.expect("there").into_inner();
    assert_eq!(shown.status(), v1::ScheduleStatus::Finished);
    let ended = want(Code::FailedPrecondition, "schedule_ended");
    assert_eq!(why(&client.pause(change(ID, "")).await.expect_err("it is over")), ended);
    assert_eq!(why(&client.trigger(trigger(ID)).await.expect_err("it is over")), ended);
    api.ask("", "PUT", "/v1/projects/shop", &json!({})).await;
    api.ask("", "DELETE", "/v1/projects/shop", &Value::Null).await;
    let status = client.create(create(nightly())).await.expect_err("its project is gone");
    assert_eq!(why(&status), want(Code::FailedPrecondition, "project_deleted"));
}

#[tokio::test]
async fn a_schedule_is_listed_and_deleted_as_over_http() {
    let api = Api::new();
    let mut client = schedules(&api, "");
    for name in ["nightly", "weekly"] {
        let settings = v1::ScheduleSettings { name: name.to_owned(), ..nightly() };
        client.create(create(settings)).await.expect("made");
    }
    let asked = v1::ListSchedulesRequest {
        project: "shop".to_owned(),
        group: "reports".to_owned(),
        limit: 7,
        page: String::new(),
    };
    let listed = client.list(asked.clone()).await.expect("listed").into_inner();
    let path = "/v1/schedules?project=shop&group=reports&limit=7";
    let over_http = api.ask("", "GET", path, &Value::Null).await.json;
    let ids: Vec<_> = listed.schedules.iter().map(|of| json!(of.schedule_id)).collect();
    let over_http = over_http["schedules"].as_array().expect("schedules");
    let want_ids: Vec<_> = over_http.iter().map(|of| of["schedule_id"].clone()).collect();
    assert_eq!((&ids, ids.len()), (&want_ids, 2));
    assert_eq!(listed.next, "");
    let first = client.get(get(&listed.schedules[0].schedule_id)).await.expect("there");
    assert_eq!(first.into_inner(), listed.schedules[0]);
    let other = v1::ListSchedulesRequest { group: "other".to_owned(), ..asked.clone() };
    assert!(client.list(other).await.expect("listed").into_inner().schedules.is_empty());
    let empty = v1::ListSchedulesRequest::default;
    #[rustfmt::skip]
    let cases = [
        ("limit",   v1::ListSchedulesRequest { limit: 1_001, ..empty() }),
        ("project", v1::ListSchedulesRequest { project: "A b".into(), ..empty() }),
        ("group",   v1::ListSchedulesRequest { group: "/".into(), ..empty() }),
    ];
    for (field, asked) in cases {
        assert_eq!(fields(&client.list(asked).await.expect_err(field)), [field]);
    }

    api.world().outcome = Some(CancelOutcome::Pending);
    let of = |if_version: &str| v1::DeleteScheduleRequest {
        if_version: if_version.to_owned(),
        ..delete(ID)
    };
    let status = client.delete(of("1-1")).await.expect_err("another one is in force");
    assert_eq!(why(&status), want(Code::Aborted, "version_conflict"));
    let status = client.delete(of("x")).await.expect_err("no version");
    assert_eq!(fields(&status), ["if_version"]);
    assert!(api.world().cancelled.is_empty());
    let version = client.get(get(ID)).await.expect("there").into_inner().version;
    let told = client.delete(of(&version)).await.expect("written").into_inner();
    assert_eq!((told.schedule_id.as_str(), told.outcome()), (ID, v1::DeleteOutcome::Pending));
    api.world().outcome = Some(CancelOutcome::Cancelled);
    let told = client.delete(delete(ID)).await.expect("decided").into_inner();
    assert_eq!(told.outcome(), v1::DeleteOutcome::Deleted);
    let long = v1::DeleteScheduleRequest { wait: span(61, 0), ..delete(ID) };
    assert_eq!(fields(&client.delete(long).await.expect_err("too long")), ["wait"]);
    ends(&api, TimerState::Cancelled);
    let status = client.delete(delete(ID)).await.expect_err("it has ended");
    assert_eq!(why(&status), want(Code::NotFound, "unknown_schedule"));
    let listed = client.list(asked).await.expect("listed").into_inner().schedules;
    assert_eq!(listed.len(), 1, "one that has ended is not listed: {listed:?}");
}

#[tokio::test]
async fn a_task_is_asked_for_now_and_for_times_that_have_passed() {
    let api = Api::new();
    let mut client = schedules(&api, "");
    let settings = v1::ScheduleSettings { jitter: span(60, 0), ..every_10s() };
    client.create(create(settings)).await.expect("made");
    let told = client.trigger(trigger(ID)).await.expect("created").into_inner();
    assert_eq!(told.trigger_at, NOW as i64);
    let submitted = api.world().submitted.pop().expect("one");
    assert_eq!(submitted.id.as_str(), told.task_id);
    assert_eq!(submitted.spec.occurrence().map(|of| &*of.schedule), Some("nightly"));

    for (start, end) in [(NOW - 60_000, NOW + 60_000), (NOW - 20_000_000, NOW)] {
        let told = client.backfill(backfill(ID, (start, end))).await.expect("created").into_inner();
        let over_grpc: Vec<_> = api.world().submitted.drain(..).collect();
        let span = json!({"from": start, "to": end});
        let same = api.ask("", "POST", &format!("{PATH}:backfill"), &span).await.json;
        let over_http: Vec<_> = api.world().submitted.drain(..).collect();
        assert_eq!(over_grpc, over_http);
        let task =
            |of: &v1::ScheduledTask| json!({"task_id": of.task_id, "trigger_at": of.trigger_at});
        assert_eq!(same["tasks"], told.tasks.iter().map(task).collect::<Value>());
        assert_eq!(same["next_from"].as_i64().unwrap_or(0), told.next_start);
        assert_eq!(
            (told.tasks.len(), told.next_start > 0),
            match end {
                NOW => (1_000, true),
                _ => (6, false),
            }
        );
    }
    for (span, field, code) in [
        ((NOW, NOW), "end", "bad_span"),
        ((0, NOW), "start", "bad_time"),
        ((NOW - 1, 7), "end", "bad_time"),
    ] {
        let status = client.backfill(backfill(ID, span)).await.expect_err(code);
        assert_eq!(why(&status), want(Code::InvalidArgument, code), "{span:?}");
        assert_eq!(fields(&status), [field], "{span:?}");
    }
    assert!(api.world().submitted.is_empty());
}

#[tokio::test]
async fn the_next_times_are_those_that_http_shows() {
    let api = Api::new();
    let mut client = schedules(&api, "");
    let settings = v1::ScheduleSettings { paused: true, ..nightly() };
    client.create(create(settings)).await.expect("made");
    // Over a change of the clock in Berlin.
    let start = NOW + 100 * 86_400_000;
    for (asked, query) in [
        (preview(ID), String::new()),
        (
            v1::PreviewScheduleRequest { count: 30, start: start as i64, ..preview(ID) },
            format!("?count=30&from={start}"),
        ),
    ] {
        let told = client.preview(asked.clone()).await.expect("shown").into_inner();
        let path = format!("{PATH}/preview{query}");
        let shown = api.ask("", "GET", &path, &Value::Null).await.json;
        let over_grpc = json!({
            "times": told.times, "shown": told.shown, "has_more": told.has_more, "zones": told.zones,
        });
        assert_eq!(over_grpc, shown);
        let count = if asked.count == 0 { 10 } else { 30 };
        assert_eq!(told.times.len(), count);
    }
    for (field, asked) in [
        ("count", v1::PreviewScheduleRequest { count: 1_001, ..preview(ID) }),
        ("start", v1::PreviewScheduleRequest { start: -1, ..preview(ID) }),
    ] {
        assert_eq!(fields(&client.preview(asked).await.expect_err(field)), [field]);
    }
}

#[tokio::test]
async fn who_may_not_know_of_a_project_finds_no_schedule_of_it() {
    let api = Api::with_tokens();
    let home = || v1::ScheduleSettings { project: "home".to_owned(), ..nightly() };
    let mut admin = schedules(&api, "admin");
    for settings in [nightly(), home()] {
        admin.create(create(settings)).await.expect("made");
    }
    let mut writer = schedules(&api, "writer");
    let refused = [
        writer.get(get(HOME)).await.err(),
        writer.update(update(HOME, home(), "")).await.err(),
        writer.delete(delete(HOME)).await.err(),
        writer.pause(change(HOME, "")).await.err(),
        writer.resume(change(HOME, "")).await.err(),
        writer.trigger(trigger(HOME)).await.err(),
        writer.backfill(backfill(HOME, (NOW - 1, NOW))).await.err(),
        writer.preview(preview(HOME)).await.err(),
    ];
    for status in refused {
        let status = status.expect("refused");
        assert_eq!(why(&status), want(Code::NotFound, "unknown_schedule"), "{status}");
    }
    let unknown = want(Code::NotFound, "unknown_project");
    assert_eq!(why(&writer.create(create(home())).await.expect_err("refused")), unknown);
    let of_home = v1::ListSchedulesRequest { project: "home".into(), ..Default::default() };
    assert_eq!(why(&writer.list(of_home).await.expect_err("refused")), unknown);
    let all = v1::ListSchedulesRequest::default;
    let mut reader = schedules(&api, "reader");
    let listed = reader.list(all()).await.expect("listed").into_inner().schedules;
    let ids: Vec<_> = listed.iter().map(|of| of.schedule_id.as_str()).collect();
    assert_eq!(ids, [ID]);
    let listed = admin.list(all()).await.expect("listed").into_inner().schedules;
    assert_eq!(listed.len(), 2);
    reader.preview(preview(ID)).await.expect("shown");

    let refused = [
        reader.create(create(nightly())).await.err(),
        reader.update(update(ID, nightly(), "")).await.err(),
        reader.delete(delete(ID)).await.err(),
        reader.pause(change(ID, "")).await.err(),
        reader.resume(change(ID, "")).await.err(),
        reader.trigger(trigger(ID)).await.err(),
        reader.backfill(backfill(ID, (NOW - 1, NOW))).await.err(),
    ];
    for status in refused {
        let status = status.expect("refused");
        assert_eq!(why(&status), want(Code::PermissionDenied, "role_denied"), "{status}");
    }
    let status = schedules(&api, "").get(get(ID)).await.expect_err("nobody");
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(api.world().submitted.is_empty());
}

#[tokio::test]
async fn each_change_of_a_schedule_has_a_line_in_the_audit_log_whatever_becomes_of_it() {
    let lines = Lines::default();
    let test = Box::pin(async {
        let api = Api::with_tokens();
        let (all, one, none) = ("schedules", format!("schedules/{ID}"), Value::Null);
        // The only line since the last time.
        let said = |by: &str,
                    action: &str,
                    key: &str,
                    (before, after): (&Value, &Value),
                    outcome: &str| {
            assert_eq!(lines.take(), [json!([by, action, key, before, after, outcome])]);
        };
        let now = json!(NOW);
        let nothing = (&none, &none);
        let mut writer = schedules(&api, "writer");
        let mut reader = schedules(&api, "reader");
        let mut chief = schedules(&api, "chief");

        writer.create(create(every_10s())).await.expect("made");
        said("writer", "create", all, (&json!(0), &now), "done");
        writer.create(create(every_10s())).await.expect("the same");
        said("writer", "create", all, nothing, "done");
        writer.create(create(nightly())).await.expect_err("another one");
        said("writer", "create", all, nothing, "schedule_exists");
        writer.create(create(v1::ScheduleSettings::default())).await.expect_err("wrong");
        said("writer", "create", all, nothing, "wrong_fields");
        reader.create(create(every_10s())).await.expect_err("a reader");
        said("reader", "create", all, nothing, "role_denied");

        let put = |version: &str| update(ID, every_10s(), version);
        writer.update(put("")).await.expect("put");
        said("writer", "put", &one, (&now, &now), "done");
        writer.update(put("1764000000000-42")).await.expect_err("another version");
        said("writer", "put", &one, nothing, "version_conflict");
        writer.update(put("7")).await.expect_err("no version");
        said("writer", "put", &one, nothing, "wrong_fields");
        writer.pause(change(ID, "")).await.expect("paused");
        said("writer", "pause", &one, (&now, &now), "done");
        writer.resume(change(ID, "")).await.expect("resumed");
        said("writer", "resume", &one, (&now, &now), "done");
        reader.resume(change(ID, "")).await.expect_err("a reader");
        said("reader", "resume", &one, nothing, "role_denied");
        writer.trigger(trigger(ID)).await.expect("created");
        said("writer", "trigger", &one, nothing, "done");
        chief.trigger(trigger(HOME)).await.expect_err("another project");
        said("chief", "trigger", &format!("schedules/{HOME}"), nothing, "unknown_schedule");
        writer.backfill(backfill(ID, (NOW - 60_000, NOW))).await.expect("created");
        said("writer", "backfill", &one, nothing, "done");
        writer.backfill(backfill(ID, (NOW, NOW))).await.expect_err("no span");
        said("writer", "backfill", &one, nothing, "bad_span");
        api.world().outcome = Some(CancelOutcome::Cancelled);
        writer.delete(delete(ID)).await.expect("deleted");
        said("writer", "delete", &one, nothing, "done");
        api.world().failure = Some(Failure::Away("no broker answers".to_owned()));
        writer.delete(delete(ID)).await.expect_err("Kafka is away");
        said("writer", "delete", &one, nothing, "kafka_away");
        api.world().failure = None;
        // One that was over is made anew.
        ends(&api, TimerState::Cancelled);
        writer.update(put("")).await.expect("put");
        said("writer", "put", &one, (&json!(0), &now), "done");

        // No changes: looks, what names no schedule at all, and what nobody asks for who is known.
        writer.get(get(ID)).await.expect("there");
        writer.list(v1::ListSchedulesRequest::default()).await.expect("listed");
        writer.preview(preview(ID)).await.expect("shown");
        writer.delete(delete("nightly")).await.expect_err("no id");
        schedules(&api, "").delete(delete(ID)).await.expect_err("nobody");
        assert_eq!(lines.take(), Vec::<Value>::new());
    });
    test.in_current_span().with_subscriber(lines.subscriber()).await;
}

/// Every member of a schedule that HTTP shows is in the messages, so that none is forgotten.
#[test]
fn a_message_has_what_http_shows_of_a_schedule() {
    let file = include_str!("../../../../proto/waterclock/v1/schedules.proto");
    let message = |name: &str| {
        let (_, message) = file.split_once(&format!("message {name} {{")).expect("the message");
        message.split_once("\n}").expect("its end").0
    };
    let settings = ScheduleSettings {
        project: String::new(),
        group: String::new(),
        name: String::new(),
        cron: Some(String::new()),
        zone: Some(String::new()),
        every: Some(Length::Seconds(1)),
        aligned: Some(true),
        start: Some(json!(1)),
        end: Some(json!(1)),
        count: Some(1),
        jitter: Some(Length::Seconds(1)),
        misfire: Some(String::new()),
        overlap: Some(String::new()),
        expires: Some(Length::Seconds(1)),
        paused: true,
        task: Map::new(),
    };
    let shown = ScheduleView {
        schedule_id: String::new(),
        version: String::new(),
        status: ScheduleStatus::Active,
        next_at: Some(1),
        last_at: Some(1),
        last_task_id: Some(String::new()),
        tasks_total: 1,
        changed_at: 1,
        ended_at: Some(1),
        code: Some(String::new()),
        members: Some(1),
        settings,
    };
    let names = serde_json::to_value(&shown).expect("JSON");
    let messages = [message("Schedule"), message("ScheduleSettings")].concat();
    for name in names.as_object().expect("an object").keys() {
        assert!(messages.contains(&format!(" {name} = ")), "{name} is in no message");
    }
}
