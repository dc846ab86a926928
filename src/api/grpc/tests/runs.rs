//! Runs over gRPC, compared with what HTTP does.

use axum::http::Uri;
use serde_json::{Value, json};
use tonic::{Code, Status};
use tracing::Instrument as _;
use tracing::instrument::WithSubscriber as _;
use waterclock_proto::v1;
use waterclock_proto::v1::new_task::Task as New;
use waterclock_proto::v1::on_result::To;
use waterclock_proto::v1::runs_client::RunsClient;
use waterclock_proto::v1::schedules_client::SchedulesClient;

use super::super::super::audit::tests::Lines;
use super::super::super::runs::model::{RunView, ShardView};
use super::super::super::runs::tests::{EXECUTING, FAILED, FINISHED, ID, WAITING, kept, put, spec};
use super::super::super::tasks::model::{Attempt, CancelOutcome};
use super::super::super::tasks::tests::{Api, NOW, task};
use super::{Channel, channel, fields, new, reason, span, tasks};
use crate::engine::timers::TimerState;

fn runs(api: &Api, token: &str) -> RunsClient<Channel> {
    RunsClient::with_origin(channel(api, token), Uri::from_static("http://localhost"))
}

fn http() -> v1::CreateHttpTaskRequest {
    v1::CreateHttpTaskRequest {
        url: "https://a.example/part".to_owned(),
        body: b"{}".to_vec(),
        ..v1::CreateHttpTaskRequest::default()
    }
}

fn grpc() -> v1::CreateGrpcTaskRequest {
    v1::CreateGrpcTaskRequest {
        host: "shop.example:50051".to_owned(),
        service: "shop.v1.Parts".to_owned(),
        method: "Sum".to_owned(),
        body: vec![8, 7],
        ..v1::CreateGrpcTaskRequest::default()
    }
}

/// The least that a run of this task needs.
fn of(task: New) -> v1::CreateRunRequest {
    v1::CreateRunRequest {
        shards: 5,
        project: "shop".to_owned(),
        group: "reports".to_owned(),
        task: Some(Box::new(new(task))),
        options: Some(v1::Options { delay: span(60, 0), ..v1::Options::default() }),
        ..v1::CreateRunRequest::default()
    }
}

fn least() -> v1::CreateRunRequest {
    of(New::Http(http()))
}

fn get(id: &str) -> v1::GetRunRequest {
    v1::GetRunRequest { run_id: id.to_owned() }
}

fn shards(id: &str) -> v1::ListShardsRequest {
    v1::ListShardsRequest { run_id: id.to_owned(), ..v1::ListShardsRequest::default() }
}

fn cancel(id: &str) -> v1::CancelRunRequest {
    v1::CancelRunRequest { run_id: id.to_owned(), wait: None }
}

fn retry(id: &str) -> v1::RetryRunRequest {
    v1::RetryRunRequest { run_id: id.to_owned() }
}

/// The code and the reason of a refusal.
fn why(status: &Status) -> (Code, String) {
    (status.code(), reason(status))
}

fn want(code: Code, reason: &str) -> (Code, String) {
    (code, reason.to_owned())
}

#[tokio::test]
async fn a_run_that_is_created_over_grpc_is_the_one_that_http_creates() {
    let api = Api::new();
    let mut client = runs(&api, "");
    let everything = v1::CreateRunRequest {
        deadline: span(7_200, 0),
        on_shard_failure: v1::OnShardFailure::Stop.into(),
        on_finished: Some(v1::OnResult { to: Some(To::Topic("done".to_owned())) }),
        request_id: "night-7".to_owned(),
        options: Some(v1::Options {
            delay: span(60, 0),
            expires_at: NOW as i64 + 90_000,
            window: span(5, 0),
            ..v1::Options::default()
        }),
        ..of(New::Kafka(v1::CreateKafkaTaskRequest {
            topic: "parts".to_owned(),
            key: Some(vec![0xff]),
            value: Some(b"v".to_vec()),
            options: Some(v1::Options {
                feedback: Some(v1::Feedback { deadline: span(3_600, 0), heartbeat: span(30, 0) }),
                ..v1::Options::default()
            }),
            ..v1::CreateKafkaTaskRequest::default()
        }))
    };
    let same = json!({
        "project": "shop", "group": "reports", "delay": "1m", "expires_at": NOW + 90_000, "window": "5s", "shards": 5, "deadline": "2h",
        "on_shard_failure": "stop", "on_finished": {"topic": "done"}, "request_id": "night-7",
        "task": {"type": "kafka", "topic": "parts", "key_b64": "/w==", "value": "v", "feedback": {"deadline": "3600000ms", "heartbeat": "30000ms"}},
    });
    let named = v1::CreateRunRequest { request_id: "grpc-7".to_owned(), ..of(New::Grpc(grpc())) };
    let same_named = json!({
        "project": "shop", "group": "reports", "delay": "1m", "shards": 5, "request_id": "grpc-7",
        "task": {"type": "grpc", "host": "shop.example:50051", "service": "shop.v1.Parts", "method": "Sum", "body_b64": "CAc="},
    });
    for (over_grpc, over_http) in [(everything.clone(), same), (named, same_named)] {
        let told = client.create(over_grpc).await.expect("created").into_inner();
        let http = api.ask("", "POST", "/v1/runs", &over_http).await;
        let created = json!({"run_id": told.run_id, "trigger_at": told.trigger_at});
        assert_eq!((http.status, &http.json), (201, &created), "{http:?}");
        let submitted: Vec<_> = api.world().submitted.drain(..).collect();
        assert_eq!(submitted[0], submitted[1]);
    }
    let run = New::Run(Box::new(everything));
    let batch = v1::BatchCreateTasksRequest { tasks: vec![new(run)] };
    let told = tasks(&api, "").batch_create_tasks(batch).await.expect("told").into_inner();
    assert!(told.tasks[0].problem.is_none(), "{told:?}");
    let of_type = v1::ListTasksRequest {
        r#type: v1::TaskType::Run.into(),
        ..v1::ListTasksRequest::default()
    };
    let status = tasks(&api, "").list_tasks(of_type).await.expect_err("no tasks");
    assert_eq!(fields(&status), ["type"]);
}

#[tokio::test]
async fn what_is_wrong_is_named_as_the_messages_have_it_and_nothing_is_created() {
    let api = Api::new();
    let mut client = runs(&api, "");
    let options = v1::Options::default;
    let with = |options| v1::CreateRunRequest { options: Some(options), ..least() };
    let of_http = |task: v1::CreateHttpTaskRequest| of(New::Http(task));
    let bare = v1::CreateKafkaTaskRequest { topic: "parts".into(), ..Default::default() };
    let poll = Some(v1::Poll { interval: span(1, 0), rounds: 1 });
    #[rustfmt::skip]
    let cases: Vec<(v1::CreateRunRequest, &[&str])> = vec![
        (v1::CreateRunRequest::default(),                                       &["project", "group", "shards", "task", "trigger_at"]),
        (v1::CreateRunRequest { shards: 10_001, ..least() },                    &["shards"]),
        (v1::CreateRunRequest { deadline: span(0, 1), ..least() },              &["deadline"]),
        (v1::CreateRunRequest { on_shard_failure: 7, ..least() },               &["on_shard_failure"]),
        (v1::CreateRunRequest { on_finished: Some(v1::OnResult { to: None }), ..least() }, &["on_finished"]),
        (v1::CreateRunRequest { on_finished: Some(v1::OnResult { to: Some(To::Topic("wc.tasks".into())) }), ..least() }, &["on_finished.topic"]),
        (v1::CreateRunRequest { task: None, ..least() },                        &["task"]),
        (with(v1::Options { delay: span(86_400_000, 0), ..options() }),         &["options.delay"]),
        (with(v1::Options { delay: span(60, 0), poll, ..options() }),           &["options.poll"]),
        (with(v1::Options { delay: span(60, 0), expires_at: NOW as i64, ..options() }), &["options.expires_at"]),
        (of_http(v1::CreateHttpTaskRequest::default()),                         &["task.url"]),
        (of_http(v1::CreateHttpTaskRequest { url: "http://169.254.169.254/".into(), ..http() }), &["task.url"]),
        (of_http(v1::CreateHttpTaskRequest { project: "shop".into(), ..http() }), &["task.project"]),
        (of_http(v1::CreateHttpTaskRequest { options: Some(v1::Options { delay: span(1, 0), ..options() }), ..http() }), &["task.options.delay"]),
        (of(New::Kafka(bare)),                                                  &["task.options.feedback"]),
        (of(New::Grpc(v1::CreateGrpcTaskRequest { service: "a b".into(), ..grpc() })), &["task.service"]),
        (of(New::Run(Box::new(least()))),                                       &["task.type"]),
    ];
    for (request, mut want_fields) in cases.into_iter().map(|(of, at)| (of, at.to_vec())) {
        let shown = format!("{request:?}").chars().take(300).collect::<String>();
        let status = client.create(request).await.expect_err("wrong");
        assert_eq!(why(&status), want(Code::InvalidArgument, "wrong_fields"), "{shown}");
        let mut seen = fields(&status);
        seen.sort_unstable();
        want_fields.sort_unstable();
        assert_eq!(seen, want_fields, "{shown}: {status}");
    }
    assert!(api.world().submitted.is_empty());
    for id in ["", "a\nb"] {
        assert_eq!(fields(&client.get(get(id)).await.expect_err("no id")), ["run_id"]);
    }
    put(&api, &[EXECUTING], TimerState::Delay);
    let all = v1::ListRunsRequest::default;
    #[rustfmt::skip]
    let lists = [
        ("limit",   v1::ListRunsRequest { limit: 1_001, ..all() }),
        ("status",  v1::ListRunsRequest { status: 99, ..all() }),
        ("project", v1::ListRunsRequest { project: "A b".into(), ..all() }),
    ];
    for (field, asked) in lists {
        assert_eq!(fields(&client.list(asked).await.expect_err(field)), [field]);
    }
    #[rustfmt::skip]
    let pages = [
        ("limit", "wrong_fields", v1::ListShardsRequest { limit: 101, ..shards(ID) }),
        ("state", "wrong_fields", v1::ListShardsRequest { state: 99, ..shards(ID) }),
        ("query.page", "bad_page", v1::ListShardsRequest { page: "x".into(), ..shards(ID) }),
    ];
    for (field, code, asked) in pages {
        let status = client.list_shards(asked).await.expect_err(field);
        assert_eq!((fields(&status), reason(&status)), (vec![field.to_owned()], code.to_owned()));
    }
}

#[tokio::test]
async fn a_run_is_shown_as_over_http_and_its_task_as_it_was_asked_for() {
    let api = Api::new();
    let mut client = runs(&api, "");
    put(&api, &[FINISHED, FAILED, EXECUTING, WAITING], TimerState::Delay);
    let told = client.get(get(ID)).await.expect("there").into_inner();
    let over_http = api.ask("", "GET", "/v1/runs/9f2c", &Value::Null).await.json;
    let counts = told.counts.expect("counts");
    let of_grpc = json!({
        "run_id": told.run_id, "project": told.project, "group": told.group, "version": told.version,
        "trigger_at": told.trigger_at, "created_at": told.created_at, "deadline_at": told.deadline_at, "shards": told.shards,
        "grid": told.grid, "run_status": "executing", "on_shard_failure": "continue",
        "counts": {
            "created": counts.created, "begun": counts.begun, "again": counts.again, "finished": counts.finished,
            "failed": counts.failed,
        },
        "deadline": over_http["deadline"], "task": over_http["task"],
    });
    assert_eq!(of_grpc, over_http);
    assert_eq!(told.run_status(), v1::RunStatus::Executing);
    assert_eq!(told.on_shard_failure(), v1::OnShardFailure::Continue);
    assert_eq!((told.deadline, told.task.clone()), (span(86_400, 0), Some(new(New::Http(http())))));
    let asked = v1::ListRunsRequest {
        project: "shop".to_owned(),
        group: "reports".to_owned(),
        status: v1::RunStatus::Executing.into(),
        limit: 7,
        page: String::new(),
    };
    let listed = client.list(asked.clone()).await.expect("listed").into_inner();
    assert_eq!(listed.runs, [v1::Run { grid: String::new(), ..told }]);
    let other = v1::ListRunsRequest { status: v1::RunStatus::Locked.into(), ..asked };
    assert!(client.list(other).await.expect("listed").into_inner().runs.is_empty());

    let first = client.list_shards(shards(ID)).await.expect("listed").into_inner().shards;
    let id = first[2].task_id.clone();
    let mut running = task(&id, "shop");
    running.last = Some(Attempt {
        worker: Some("w1".to_owned()),
        started: Some(NOW),
        ended: Some(NOW + 1),
        error: Some("no".to_owned()),
        percent: Some(40),
        ..running.attempts[0].clone()
    });
    running.cursor = Some("row 7".to_owned());
    api.world().tasks.insert(id, running);
    let path = "/v1/runs/9f2c/shards?state=executing&limit=1";
    let over_http = api.ask("", "GET", path, &Value::Null).await.json;
    let asked =
        v1::ListShardsRequest { state: v1::ShardState::Executing.into(), limit: 1, ..shards(ID) };
    let listed = client.list_shards(asked).await.expect("listed").into_inner();
    let [shard] = &listed.shards[..] else { panic!("one: {listed:?}") };
    let of_grpc = json!({
        "index": shard.index, "task_id": shard.task_id, "task_status": "ready", "shard_state": "executing", "worker": shard.worker,
        "turn": shard.turn, "attempts_total": shard.attempts_total, "started": shard.started, "ended": shard.ended,
        "error": shard.error, "percent": shard.percent, "cursor": shard.cursor,
    });
    assert_eq!(over_http, json!({"shards": [of_grpc]}));
    let states = (shard.task_status(), shard.shard_state());
    assert_eq!(states, (v1::TaskStatus::Ready, v1::ShardState::Executing));
    let first = client.list_shards(shards(ID)).await.expect("listed").into_inner().shards;
    let page = v1::ListShardsRequest { limit: 2, page: "1".to_owned(), ..shards(ID) };
    let listed = client.list_shards(page).await.expect("listed").into_inner();
    assert_eq!((&listed.shards[..], &*listed.next), (&first[1..3], "3"));
}

#[tokio::test]
async fn a_run_and_a_schedule_say_how_many_are_there_to_execute_them() {
    let api = Api::new();
    let task = json!({"type": "kafka", "topic": "parts", "feedback": {"deadline": "1h"}});
    let run = spec(&json!({ "task": task }));
    api.world().runs.insert(ID.to_owned(), kept(&run, None, TimerState::Delay));
    let schedule = json!({
        "project": "shop", "group": "reports", "name": "nightly", "every": "1d", "task": task,
    });
    assert_eq!(api.ask("", "POST", "/v1/schedules", &schedule).await.status, 201);
    let origin = Uri::from_static("http://localhost");
    let mut schedules = SchedulesClient::with_origin(channel(&api, ""), origin);
    let mut runs = runs(&api, "");
    // That nobody is there is another thing than that nobody knows.
    for members in [None, Some(0), Some(2)] {
        api.world().readers.extend(members.map(|members| ("parts".to_owned(), members)));
        let told = runs.get(get(ID)).await.expect("there").into_inner();
        assert_eq!(told.members, members);
        let asked = v1::GetScheduleRequest { schedule_id: "schedule.shop.nightly".to_owned() };
        assert_eq!(schedules.get(asked).await.expect("there").into_inner().members, members);
        let listed = runs.list(v1::ListRunsRequest::default()).await.expect("listed").into_inner();
        assert_eq!((listed.runs.len(), listed.runs[0].members), (1, None));
    }
}

#[tokio::test]
async fn a_run_that_a_schedule_has_comes_back_as_it_was_asked_for() {
    let api = Api::new();
    let origin = Uri::from_static("http://localhost");
    let mut client = SchedulesClient::with_origin(channel(&api, ""), origin);
    let template = |of: v1::CreateRunRequest| v1::CreateRunRequest {
        project: String::new(),
        group: String::new(),
        options: None,
        ..of
    };
    let all = v1::CreateRunRequest {
        deadline: span(7_200, 0),
        on_shard_failure: v1::OnShardFailure::Continue.into(),
        on_finished: Some(v1::OnResult { to: Some(To::Service("billing".to_owned())) }),
        ..of(New::Grpc(grpc()))
    };
    for (n, run) in [least(), all].into_iter().map(template).enumerate() {
        let settings = v1::ScheduleSettings {
            project: "shop".to_owned(),
            group: "reports".to_owned(),
            name: format!("nightly-{n}"),
            every: span(86_400, 0),
            task: Some(new(New::Run(Box::new(run.clone())))),
            ..v1::ScheduleSettings::default()
        };
        let create = v1::CreateScheduleRequest { settings: Some(settings) };
        let told = client.create(create).await.expect("made").into_inner();
        let task = told.settings.and_then(|settings| settings.task);
        assert_eq!(task, Some(new(New::Run(Box::new(run)))));
    }
    let wrong =
        template(of(New::Grpc(v1::CreateGrpcTaskRequest { service: "a b".into(), ..grpc() })));
    let settings = v1::ScheduleSettings {
        project: "shop".to_owned(),
        group: "reports".to_owned(),
        name: "nightly".to_owned(),
        every: span(86_400, 0),
        task: Some(new(New::Run(Box::new(wrong)))),
        ..v1::ScheduleSettings::default()
    };
    let create = v1::CreateScheduleRequest { settings: Some(settings) };
    assert_eq!(fields(&client.create(create).await.expect_err("wrong")), ["task.task.service"]);
}

#[tokio::test]
async fn a_run_is_cancelled_and_made_anew_and_each_retry_has_a_line_in_the_audit_log() {
    let lines = Lines::default();
    let test = Box::pin(async {
        let api = Api::with_tokens();
        let mut client = runs(&api, "writer");
        put(&api, &[EXECUTING], TimerState::Delay);
        for (outcome, told) in [
            (CancelOutcome::Stopped, v1::CancelOutcome::Stopped),
            (CancelOutcome::Pending, v1::CancelOutcome::Pending),
        ] {
            api.world().outcome = Some(outcome);
            let answer = client.cancel(cancel(ID)).await.expect("told").into_inner();
            assert_eq!((answer.run_id.as_str(), answer.outcome()), (ID, told));
        }
        let long = v1::CancelRunRequest { wait: span(61, 0), ..cancel(ID) };
        assert_eq!(fields(&client.cancel(long).await.expect_err("too long")), ["wait"]);
        assert_eq!(lines.take(), Vec::<Value>::new());
        let status = client.retry(retry(ID)).await.expect_err("it has not ended");
        assert_eq!(why(&status), want(Code::FailedPrecondition, "not_retryable"));
        let said = |outcome: &str| {
            let line = json!(["writer", "retry", "runs/9f2c", null, null, outcome]);
            assert_eq!(lines.take(), [line]);
        };
        said("not_retryable");
        put(&api, &[FINISHED, FAILED], TimerState::Dead);
        let told = client.retry(retry(ID)).await.expect("anew").into_inner();
        assert_eq!(told.run_status(), v1::RunStatus::Waiting);
        said("done");
    });
    test.in_current_span().with_subscriber(lines.subscriber()).await;
}

#[tokio::test]
async fn who_may_not_know_of_a_project_finds_no_run_of_it() {
    let api = Api::with_tokens();
    let home = kept(&spec(&json!({"project": "home"})), None, TimerState::Dead);
    api.world().runs.insert(ID.to_owned(), home);
    let mut writer = runs(&api, "writer");
    let refused = [
        writer.get(get(ID)).await.err(),
        writer.list_shards(shards(ID)).await.err(),
        writer.cancel(cancel(ID)).await.err(),
        writer.retry(retry(ID)).await.err(),
    ];
    for status in refused {
        let status = status.expect("refused");
        assert_eq!(why(&status), want(Code::NotFound, "unknown_run"), "{status}");
    }
    let of_home = v1::CreateRunRequest { project: "home".to_owned(), ..least() };
    let status = writer.create(of_home).await.expect_err("another project");
    assert_eq!(why(&status), want(Code::NotFound, "unknown_project"));
    let all = v1::ListRunsRequest::default;
    assert!(writer.list(all()).await.expect("listed").into_inner().runs.is_empty());
    assert_eq!(runs(&api, "admin").list(all()).await.expect("all").into_inner().runs.len(), 1);
    put(&api, &[FAILED], TimerState::Dead);
    let mut reader = runs(&api, "reader");
    reader.get(get(ID)).await.expect("shown");
    reader.list_shards(shards(ID)).await.expect("shown");
    let refused = [
        reader.create(least()).await.err(),
        reader.cancel(cancel(ID)).await.err(),
        reader.retry(retry(ID)).await.err(),
    ];
    for status in refused {
        let status = status.expect("refused");
        assert_eq!(why(&status), want(Code::PermissionDenied, "role_denied"), "{status}");
    }
    let status = runs(&api, "").get(get(ID)).await.expect_err("nobody");
    assert_eq!(status.code(), Code::Unauthenticated);
    let world = api.world();
    assert!(world.submitted.is_empty() && world.cancelled.is_empty() && world.retried.is_empty());
}

/// Every member of a run, and of a shard, that HTTP shows is in the messages, so that none is forgotten.
#[test]
fn a_message_has_what_http_shows_of_a_run() {
    let file = include_str!("../../../../proto/waterclock/v1/runs.proto");
    let message = |name: &str| {
        let (_, message) = file.split_once(&format!("message {name} {{")).expect("the message");
        message.split_once("\n}").expect("its end").0
    };
    let run: RunView = serde_json::from_value(json!({
        "run_id": "", "run_status": "finished", "version": "", "trigger_at": 1, "nominal_at": 1, "created_at": 1, "deadline_at": 1, "ended_at": 1,
        "code": "", "counts": {"created": 1, "begun": 1, "again": 1, "finished": 1, "failed": 1}, "grid": "", "members": 1, "project": "",
        "group": "", "request_id": "", "shards": 1, "deadline": 1, "on_shard_failure": "stop", "on_finished": {}, "task": {},
    }))
    .expect("a run");
    let shard: ShardView = serde_json::from_value(json!({
        "index": 1, "task_id": "", "task_status": "ready", "shard_state": "again", "worker": "", "turn": 1, "attempts_total": 1,
        "started": 1, "ended": 1, "error": "", "percent": 1, "cursor": "",
    }))
    .expect("a shard");
    let (run, shard) = (serde_json::to_value(run), serde_json::to_value(shard));
    let (run, shard) = (run.expect("JSON"), shard.expect("JSON"));
    for (of, name) in [(&run, "Run"), (&run["counts"], "ShardCounts"), (&shard, "Shard")] {
        let message = message(name);
        for member in of.as_object().expect("an object").keys() {
            assert!(message.contains(&format!(" {member} = ")), "{member} is not in {name}");
        }
    }
}
