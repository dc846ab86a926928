//! The room of runs behind its real router, with lanes in memory.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use super::super::tasks::model::{Attempt, TaskStatus};
use super::super::tasks::tests::{Api, NOW, Told, task};
use super::*;
use crate::engine::timers::{
    LaneTimer, Progress, RunProgress, TaskCounts, Timer, TimerId, TimerState, Version,
};
use crate::engine::{Lane, Offset};

/// The id of the run that is there.
pub(in crate::api) const ID: &str = "9f2c";
const PATH: &str = "/v1/runs/9f2c";
/// When its shards were to have ended.
const UNTIL: u64 = NOW + 60_000;

/// A shard that nobody has begun, and so on: as its run remembers them.
pub(in crate::api) const WAITING: u8 = 0;
pub(in crate::api) const EXECUTING: u8 = 1;
pub(in crate::api) const AGAIN: u8 = 3;
pub(in crate::api) const FINISHED: u8 = 5;
pub(in crate::api) const FAILED: u8 = 13;

fn run(more: &Value) -> Value {
    let mut all = json!({
        "project": "shop", "group": "reports", "delay": "1m", "shards": 5,
        "task": {"type": "http", "url": "https://a.example/part", "body": "{}"},
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        match value {
            Value::Null => drop(all.as_object_mut().expect("an object").remove(name)),
            value => all[name] = value.clone(),
        }
    }
    all
}

/// How far the shards of a run are: those that were created have these marks.
pub(in crate::api) fn progress(shards: u32, marks: &[u8]) -> RunProgress {
    let mut value = vec![1];
    value.extend(shards.to_be_bytes());
    value.extend((marks.len() as u32).to_be_bytes());
    value.extend(UNTIL.to_be_bytes());
    value.push(0);
    let of = |index: u32| marks.get(index as usize).copied().unwrap_or_default();
    value.extend((0..shards).step_by(2).map(|index| of(index) | of(index + 1) << 4));
    RunProgress::read(&value).expect("a progress")
}

/// What a lane keeps of a run.
pub(in crate::api) fn kept(spec: &Value, of: Option<RunProgress>, state: TimerState) -> TaskRecord {
    let spec = Spec::parse(spec.to_string().as_bytes()).expect("a run");
    let id = TaskId::parse(ID).expect("an id");
    let timer = Timer {
        timer_id: TimerId::task(&id),
        state,
        version: Version { first_appended: UnixMillis(NOW - 1), offset: Offset(42) },
        supersedes: None,
        due: UnixMillis(NOW),
        since: UnixMillis(NOW + 7),
        target: "run:http".into(),
        label: Some(format!("{}/{}", spec.project(), spec.group()).into()),
        id: id.as_str().as_bytes().into(),
        key: None,
        key_cut: false,
        code: None,
        task: Some(Progress { next_at: UnixMillis(NOW), ..Progress::default() }),
    };
    let json = Some(spec.to_json().into_boxed_str());
    let of_lane = LaneTimer { lane: Lane(0), timer };
    let task = TaskRecord::new(of_lane, json, Vec::new()).expect("an id");
    TaskRecord { run: of.map(Box::new), ..task }
}

/// The specification of the run of [`run`].
pub(in crate::api) fn spec(more: &Value) -> Value {
    let mut all = run(more);
    all["delay"].take();
    all.as_object_mut().expect("an object").remove("delay");
    all["type"] = "run".into();
    all
}

/// There is a run whose shards stand like that.
pub(in crate::api) fn put(api: &Api, marks: &[u8], state: TimerState) {
    let of = (!marks.is_empty()).then(|| progress(5, marks));
    api.world().runs.insert(ID.to_owned(), kept(&spec(&json!({})), of, state));
}

async fn ask(api: &Api, method: &str, path: &str, body: &Value) -> Told {
    api.ask("", method, path, body).await
}

async fn create(api: &Api, more: &Value) -> Told {
    ask(api, "POST", "/v1/runs", &run(more)).await
}

fn places(told: &Told) -> Vec<&str> {
    let errors = told.json["errors"].as_array();
    errors.into_iter().flatten().filter_map(|error| error["at"].as_str()).collect()
}

#[tokio::test]
async fn a_run_is_created_as_a_task_is() {
    let api = Api::new();
    let told = create(&api, &json!({"deadline": "2h", "on_finished": {"topic": "done"}})).await;
    assert_eq!(told.status, 201, "{told:?}");
    let id = told.json["run_id"].as_str().expect("an id").to_owned();
    assert_eq!(told.json, json!({"run_id": id, "trigger_at": NOW + 60_000}));
    assert_eq!(told.headers["location"], format!("/v1/runs/{id}"));
    let submission = api.world().submitted.pop().expect("one");
    assert_eq!((submission.id.as_str(), submission.due.0), (id.as_str(), NOW + 60_000));
    assert_eq!((submission.key, submission.value), (None, None));
    assert_eq!((submission.spec.type_name(), submission.spec.project()), ("run", "shop"));
    let of = submission.spec.run().expect("a run");
    assert_eq!((of.shards(), of.deadline().0, of.type_of_task()), (5, 7_200_000, "http"));

    let named = create(&api, &json!({"request_id": "night-7"})).await;
    let again = Request::builder().method("POST").uri("/v1/runs");
    let again = again.header("content-type", "application/json");
    let again = again.header("idempotency-key", "night-7");
    let again = api.send(again, Body::from(run(&json!({})).to_string())).await;
    assert_eq!((again.status, &again.json["run_id"]), (201, &named.json["run_id"]));
    let want = TaskId::run_of_request("shop", "night-7").expect("an id");
    assert_eq!(named.json["run_id"], want.as_str());
    // A task may have the same request id, and is another thing.
    let of_task = json!({
        "project": "shop", "group": "reports", "delay": "1m", "url": "https://a.example/", "request_id": "night-7",
    });
    let told = ask(&api, "POST", "/v1/tasks/http", &of_task).await;
    let of_task = TaskId::of_request("shop", "night-7", None).expect("an id");
    assert_eq!((told.status, &told.json["task_id"]), (201, &json!(of_task)), "{told:?}");
    // One of a batch, and the task of each time of a schedule.
    let mut of_batch = run(&json!({}));
    of_batch["type"] = "run".into();
    of_batch["request_id"] = "night-7".into();
    let batch = json!({"tasks": [of_batch]});
    let told = ask(&api, "POST", "/v1/tasks:batchCreate", &batch).await;
    let of_batch = &told.json["tasks"][0];
    assert_eq!((&of_batch["status"], &of_batch["task_id"]), (&json!(201), &json!(want)));
    let mut template = spec(&json!({}));
    for of_schedule in ["project", "group"] {
        template.as_object_mut().expect("an object").remove(of_schedule);
    }
    let mut schedule = json!({"project": "shop", "group": "g", "name": "nightly", "every": "1d"});
    schedule["task"] = template.clone();
    let told = ask(&api, "POST", "/v1/schedules", &schedule).await;
    assert_eq!((told.status, &told.json["task"]), (201, &template), "{told:?}");
    let path = "/v1/schedules/schedule.shop.nightly:trigger";
    assert_eq!(ask(&api, "POST", path, &Value::Null).await.status, 201);
    let submission = api.world().submitted.pop().expect("one");
    assert_eq!(submission.spec.run().map(|run| run.shards()), Some(5));
    assert!(submission.spec.occurrence().is_some());
}

#[tokio::test]
async fn what_is_wrong_is_named_also_in_its_task() {
    let api = Api::new();
    let kafka = json!({"type": "kafka", "topic": "parts"});
    let awaited =
        |topic: &str| json!({"type": "kafka", "topic": topic, "feedback": {"deadline": "1m"}});
    let of_http = |more: &Value| {
        let mut task = json!({"type": "http", "url": "https://a.example/"});
        for (name, value) in more.as_object().into_iter().flatten() {
            task[name] = value.clone();
        }
        json!({ "task": task })
    };
    #[rustfmt::skip]
    let cases = [
        (json!({"shards": null}),                                  vec!["shards"]),
        (json!({"shards": 0}),                                     vec!["shards"]),
        (json!({"shards": 10_001}),                                vec!["shards"]),
        (json!({"deadline": "10ms"}),                              vec!["deadline"]),
        (json!({"on_shard_failure": "wait"}),                      vec!["on_shard_failure"]),
        (json!({"on_finished": {}}),                               vec!["on_finished"]),
        (json!({"on_finished": {"topic": "wc.tasks"}}),            vec!["on_finished.topic"]),
        (json!({"on_finished": {"url": "http://169.254.169.254/"}}), vec!["on_finished.url"]),
        (json!({"on_result": {"topic": "done"}}),                  vec!["on_result"]),
        (json!({"retry": {"count": 1}}),                           vec!["retry"]),
        (json!({"type": "http"}),                                  vec!["type"]),
        (json!({"delay": null}),                                   vec!["trigger_at"]),
        (json!({"delay": "1000d"}),                                vec!["delay"]),
        (json!({"task": null}),                                    vec!["task"]),
        (json!({"task": {"type": "http"}}),                        vec!["task.url"]),
        (json!({"task": kafka}),                                   vec!["task.feedback"]),
        (json!({"task": awaited("wc.tasks")}),                     vec!["task.topic"]),
        (of_http(&json!({"url": "http://169.254.169.254/"})),      vec!["task.url"]),
        (of_http(&json!({"delay": "1s"})),                         vec!["task.delay"]),
        (of_http(&json!({"type": "schedule"})),                    vec!["task.type"]),
        (json!({"task": spec(&json!({}))}),                        vec!["task.type"]),
    ];
    for (more, want) in cases {
        let told = create(&api, &more).await;
        assert_eq!((told.status, places(&told)), (422, want), "{more}: {told:?}");
    }
    let mut large = of_http(&json!({"body": "x".repeat(2_000)}));
    large["shards"] = 10_000.into();
    let told = create(&api, &large).await;
    assert_eq!((told.status, places(&told)), (422, vec!["task.body"]), "{told:?}");
    // What is within one another is not read twice as long for each.
    let mut deep = spec(&json!({}));
    for _ in 0..50 {
        deep = spec(&json!({ "task": deep }));
    }
    let told = create(&api, &json!({ "task": deep })).await;
    assert_eq!((told.status, places(&told)), (422, vec!["task.type"]), "{told:?}");
    assert!(api.world().submitted.is_empty());
}

#[tokio::test]
async fn a_run_takes_the_room_of_its_shards_too_and_one_create_of_the_rate() {
    let api = Api::new();
    let project = json!({"max_pending": 14, "create_rate": 0.001, "create_burst": 2});
    assert_eq!(ask(&api, "PUT", "/v1/projects/shop", &project).await.status, 200);
    let counts = TaskCounts { delay: 4, ..TaskCounts::default() };
    api.world().counts.insert("shop".to_owned(), counts);
    api.count().await;
    let told = create(&api, &json!({"shards": 10})).await;
    assert_eq!((told.status, told.code()), (429, "over_pending"), "{told:?}");
    assert!(told.json["detail"].as_str().is_some_and(|said| said.contains("11 of them")));
    assert_eq!(create(&api, &json!({"shards": 5})).await.status, 201);
    let told = create(&api, &json!({"shards": 4})).await;
    assert_eq!((told.status, told.code()), (429, "over_pending"), "{told:?}");
    assert_eq!(create(&api, &json!({"shards": 1})).await.status, 201);
    let told = create(&api, &json!({"shards": 1})).await;
    assert_eq!((told.status, told.code()), (429, "over_create_rate"), "{told:?}");
}

#[tokio::test]
async fn a_run_that_is_made_anew_takes_the_same_room() {
    let api = Api::new();
    let retry = format!("{PATH}:retry");
    let settings = |max_pending: u64| json!({"max_pending": max_pending, "create_rate": 0.001, "create_burst": 1});
    // It has five shards, and counts itself.
    let counts = TaskCounts { delay: 4, ..TaskCounts::default() };
    api.world().counts.insert("shop".to_owned(), counts);
    assert_eq!(ask(&api, "PUT", "/v1/projects/shop", &settings(9)).await.status, 200);
    api.count().await;
    put(&api, &[FINISHED, FAILED], TimerState::Dead);
    let told = ask(&api, "POST", &retry, &Value::Null).await;
    assert_eq!((told.status, told.code()), (429, "over_pending"), "{told:?}");
    assert!(api.world().retried.is_empty());
    assert_eq!(ask(&api, "PUT", "/v1/projects/shop", &settings(10)).await.status, 200);
    let told = ask(&api, "POST", &retry, &Value::Null).await;
    assert_eq!((told.status, &told.json["run_status"]), (200, &json!("waiting")), "{told:?}");
    // It goes on: that is said first, and takes nothing.
    let told = ask(&api, "POST", &retry, &Value::Null).await;
    assert_eq!((told.status, told.code()), (409, "not_retryable"), "{told:?}");
    assert_eq!(ask(&api, "PUT", "/v1/projects/shop", &settings(100)).await.status, 200);
    put(&api, &[FINISHED, FAILED], TimerState::Expired);
    let told = ask(&api, "POST", &retry, &Value::Null).await;
    assert_eq!((told.status, told.code()), (429, "over_create_rate"), "{told:?}");
    assert_eq!(api.world().retried, [ID]);
}

#[tokio::test]
async fn a_run_is_shown_with_the_state_of_each_shard() {
    let api = Api::new();
    put(&api, &[], TimerState::Delay);
    let shown = ask(&api, "GET", PATH, &Value::Null).await;
    let waiting = json!({
        "run_id": ID, "run_status": "waiting", "project": "shop", "group": "reports",
        "version": format!("{}-42", NOW - 1), "trigger_at": NOW, "created_at": NOW - 1, "shards": 5,
        "counts": {"created": 0, "begun": 0, "again": 0, "finished": 0, "failed": 0},
        "deadline": shown.json["deadline"], "on_shard_failure": "continue",
        "task": {"type": "http", "url": "https://a.example/part", "body": "{}"},
    });
    assert_eq!((shown.status, &shown.json), (200, &waiting), "{shown:?}");
    assert_eq!(shown.json["deadline"], 86_400, "{shown:?}");
    let marks = [FINISHED, FAILED, EXECUTING, WAITING];
    put(&api, &marks, TimerState::Delay);
    let shown = ask(&api, "GET", PATH, &Value::Null).await.json;
    assert_eq!((&shown["grid"], &shown["deadline_at"]), (&json!("#x>o."), &json!(UNTIL)));
    let counts = json!({"created": 4, "begun": 3, "again": 0, "finished": 1, "failed": 1});
    assert_eq!((&shown["counts"], &shown["run_status"]), (&counts, &json!("executing")));
    let listed = ask(&api, "GET", "/v1/runs?status=executing&group=reports", &Value::Null).await;
    let mut brief = shown.clone();
    brief.as_object_mut().expect("an object").remove("grid");
    assert_eq!(listed.json, json!({ "runs": [brief] }), "{listed:?}");
    let listed = ask(&api, "GET", "/v1/runs?status=finished", &Value::Null).await;
    assert_eq!(listed.json, json!({"runs": []}));
    #[rustfmt::skip]
    let cases = [
        (&[WAITING, WAITING][..],             TimerState::Delay,     "triggered"),
        (&[EXECUTING; 5],                     TimerState::Delay,     "locked"),
        (&[AGAIN, WAITING],                   TimerState::Delay,     "re-executing"),
        (&[FINISHED; 5],                      TimerState::Delivered, "finished"),
        (&[FINISHED, FAILED],                 TimerState::Dead,      "failed"),
        (&[FINISHED, WAITING],                TimerState::Expired,   "expired"),
        (&[],                                 TimerState::Cancelled, "cancelled"),
    ];
    for (marks, state, want) in cases {
        put(&api, marks, state);
        let shown = ask(&api, "GET", PATH, &Value::Null).await.json;
        assert_eq!(shown["run_status"], want, "{shown}");
        assert_eq!(shown.get("ended_at").is_some(), state.is_final(), "{shown}");
    }
    // Shards that had not ended were cancelled with their run; one that was never created is not there.
    put(&api, &[FINISHED, WAITING, EXECUTING, AGAIN], TimerState::Cancelled);
    let shown = ask(&api, "GET", PATH, &Value::Null).await.json;
    let counts = json!({"created": 4, "begun": 3, "again": 0, "finished": 1, "failed": 3});
    assert_eq!((&shown["grid"], &shown["counts"]), (&json!("#xxx."), &counts), "{shown}");
    let listed = ask(&api, "GET", "/v1/runs?status=cancelled", &Value::Null).await.json;
    assert_eq!(listed["runs"][0]["counts"], counts, "{listed}");
    for (state, want) in [("waiting", 0), ("executing", 0), ("again", 0), ("failed", 3)] {
        let path = format!("{PATH}/shards?state={state}");
        let shards = ask(&api, "GET", &path, &Value::Null).await.json;
        assert_eq!(shards["shards"].as_array().map(Vec::len), Some(want), "{state}: {shards}");
    }
    for query in ["status=ready", "limit=0", "limit=1001", "project=A", "state=finished"] {
        let told = ask(&api, "GET", &format!("/v1/runs?{query}"), &Value::Null).await;
        assert_eq!(told.status, 400, "{query}: {told:?}");
    }
    // It was refused when it came: nothing says what it was to be.
    put(&api, &[], TimerState::Dead);
    api.world().runs.get_mut(ID).expect("one").spec = None;
    let shown = ask(&api, "GET", PATH, &Value::Null).await;
    assert_eq!(
        (shown.status, &shown.json["run_status"], &shown.json["project"]),
        (200, &json!("failed"), &json!("shop"))
    );
}

#[tokio::test]
async fn a_run_that_goes_on_says_how_many_are_there_to_execute_it() {
    let api = Api::new();
    let task =
        |topic: &str| json!({"type": "kafka", "topic": topic, "feedback": {"deadline": "1h"}});
    let there_is = |topic: &str, state: TimerState| {
        let spec = spec(&json!({"task": task(topic)}));
        api.world().runs.insert(ID.to_owned(), kept(&spec, Some(progress(5, &[EXECUTING])), state));
    };
    api.world().readers.extend([("parts".to_owned(), 3), ("empty".to_owned(), 0)]);
    #[rustfmt::skip]
    let cases = [
        ("parts",   TimerState::Delay,     json!(3)),
        ("empty",   TimerState::Delay,     json!(0)),
        ("unknown", TimerState::Delay,     Value::Null),
        ("parts",   TimerState::Delivered, Value::Null),
        ("parts",   TimerState::Cancelled, Value::Null),
    ];
    for (topic, state, want) in cases {
        there_is(topic, state);
        let shown = ask(&api, "GET", PATH, &Value::Null).await;
        assert_eq!((shown.status, &shown.json["members"]), (200, &want), "{topic}: {shown:?}");
        assert_eq!(shown.json.get("members").is_some(), !want.is_null(), "{shown:?}");
    }
    there_is("parts", TimerState::Delay);
    let listed = ask(&api, "GET", "/v1/runs", &Value::Null).await.json;
    assert_eq!(
        (&listed["runs"][0]["run_id"], listed["runs"][0].get("members")),
        (&json!(ID), None)
    );
}

#[tokio::test]
async fn its_shards_are_shown_page_by_page_with_what_their_tasks_do() {
    let api = Api::new();
    put(&api, &[FINISHED, FAILED, EXECUTING, WAITING], TimerState::Delay);
    let id = |index: u32| {
        let version = (UnixMillis(NOW - 1), Offset(42));
        TaskId::parse(ID).expect("an id").shard(version, index).to_string()
    };
    let mut running = task(&id(2), "shop");
    running.task_status = TaskStatus::Running;
    running.cursor = Some("row 7".to_owned());
    let last = Attempt {
        worker: Some("w1".to_owned()),
        started: Some(NOW),
        percent: Some(40),
        ..running.attempts[0].clone()
    };
    running.last = Some(last);
    api.world().tasks.insert(id(2), running);
    api.world().looks.clear();
    let shards = format!("{PATH}/shards");
    let told = ask(&api, "GET", &format!("{shards}?limit=3"), &Value::Null).await;
    let of = |index: u32, status: &str, state: &str| {
        json!({
            "index": index, "task_id": id(index), "task_status": status, "shard_state": state,
            "turn": 0, "attempts_total": 0,
        })
    };
    let executing = json!({
        "index": 2, "task_id": id(2), "task_status": "running", "shard_state": "executing", "worker": "w1",
        "turn": 1, "attempts_total": 1, "started": NOW, "percent": 40, "cursor": "row 7",
    });
    let first = [of(0, "finished", "finished"), of(1, "failed", "failed"), executing.clone()];
    assert_eq!((told.status, &told.json), (200, &json!({"shards": first, "next": "3"})));
    let told = ask(&api, "GET", &format!("{shards}?page=3"), &Value::Null).await;
    let rest = [of(3, "ready", "waiting"), of(4, "delay", "to_create")];
    assert_eq!(told.json, json!({ "shards": rest }));
    // What is not there yet is not looked for.
    let mut looks: Vec<_> = api.world().looks.iter().map(TaskId::to_string).collect();
    looks.retain(|look| look != ID);
    looks.sort_unstable();
    assert_eq!(looks, [id(0), id(1), id(2), id(3)]);
    let told = ask(&api, "GET", &format!("{shards}?state=executing&limit=1"), &Value::Null).await;
    assert_eq!(told.json, json!({ "shards": [executing] }));
    // One that was refused has no attempt: its code says why.
    let mut refused = task(&id(1), "shop");
    (refused.task_status, refused.last) = (TaskStatus::Failed, None);
    refused.code = Some("target_denied".to_owned());
    api.world().tasks.insert(id(1), refused);
    let told = ask(&api, "GET", &format!("{shards}?state=failed"), &Value::Null).await.json;
    assert_eq!(told["shards"][0]["error"], "target_denied", "{told}");
    for query in ["state=done", "limit=101", "limit=0", "page=x", "page=-1", "status=ready"] {
        let told = ask(&api, "GET", &format!("{shards}?{query}"), &Value::Null).await;
        assert_eq!(told.status, 400, "{query}: {told:?}");
    }
    // Before there are any.
    put(&api, &[], TimerState::Delay);
    let told = ask(&api, "GET", &shards, &Value::Null).await;
    assert_eq!(told.json["shards"].as_array().map(Vec::len), Some(5));
    api.world().failure = Some(Failure::Away("no broker answers".to_owned()));
    assert_eq!(ask(&api, "GET", &shards, &Value::Null).await.code(), "kafka_away");
}

#[tokio::test]
async fn a_run_is_cancelled_as_a_task_is() {
    let api = Api::new();
    put(&api, &[EXECUTING, WAITING], TimerState::Delay);
    api.world().outcome = Some(CancelOutcome::Stopped);
    let told = ask(&api, "DELETE", PATH, &Value::Null).await;
    assert_eq!((told.status, told.json), (200, json!({"run_id": ID, "outcome": "stopped"})));
    api.world().outcome = Some(CancelOutcome::Pending);
    let told = ask(&api, "DELETE", &format!("{PATH}?wait=0s"), &Value::Null).await;
    let pending = json!({"run_id": ID, "outcome": "pending", "again": PATH});
    assert_eq!((told.status, told.json), (202, pending));
    assert_eq!(api.world().cancelled, [ID, ID]);
    let told = ask(&api, "DELETE", &format!("{PATH}?wait=2m"), &Value::Null).await;
    assert_eq!(told.status, 400, "{told:?}");
}

#[tokio::test]
async fn only_a_run_that_has_failed_or_expired_is_made_anew() {
    let api = Api::new();
    let retry = format!("{PATH}:retry");
    for (marks, state) in [
        (&[][..], TimerState::Delay),
        (&[EXECUTING], TimerState::Delay),
        (&[FINISHED; 5], TimerState::Delivered),
        (&[FINISHED], TimerState::Cancelled),
    ] {
        put(&api, marks, state);
        let told = ask(&api, "POST", &retry, &Value::Null).await;
        assert_eq!((told.status, told.code()), (409, "not_retryable"), "{state:?}: {told:?}");
    }
    assert!(api.world().retried.is_empty());
    for state in [TimerState::Dead, TimerState::Expired] {
        put(&api, &[FINISHED, FAILED], state);
        let told = ask(&api, "POST", &retry, &Value::Null).await;
        assert_eq!((told.status, &told.json["run_status"]), (200, &json!("waiting")), "{told:?}");
        assert_eq!(told.json["version"], format!("{}-43", NOW - 1));
    }
    let told = ask(&api, "POST", &format!("{PATH}:pause"), &Value::Null).await;
    assert_eq!((told.status, told.code()), (405, "no_such_method"));
}

#[tokio::test]
async fn who_may_not_know_of_a_project_finds_no_run_of_it_and_a_task_is_none() {
    let api = Api::with_tokens();
    put(&api, &[EXECUTING], TimerState::Delay);
    let of = [
        ("GET", PATH.to_owned()),
        ("GET", format!("{PATH}/shards")),
        ("DELETE", PATH.to_owned()),
        ("POST", format!("{PATH}:retry")),
    ];
    let home = kept(&spec(&json!({"project": "home"})), None, TimerState::Delay);
    let no_run = crate::api::schedules::tests::kept(
        &TaskId::parse(ID).expect("an id"),
        home.timer.version,
        &Spec::parse(br#"{"type":"http","project":"shop","group":"g","url":"https://a.example/"}"#)
            .expect("a task"),
        UnixMillis(NOW),
    );
    for other in [Some(home.clone()), Some(no_run), None] {
        let is_there = other.is_some();
        {
            let mut world = api.world();
            world.runs.remove(ID);
            world.runs.extend(other.map(|other| (ID.to_owned(), other)));
        }
        for (method, path) in &of {
            api.world().looks.clear();
            let told = api.ask("writer", method, path, &Value::Null).await;
            assert_eq!((told.status, told.code()), (404, "unknown_run"), "{method} {path}");
            assert_eq!(api.world().looks.len(), 1 + usize::from(is_there), "{method} {path}");
        }
    }
    assert!(api.world().cancelled.is_empty() && api.world().retried.is_empty());
    api.world().runs.insert(ID.to_owned(), home);
    assert_eq!(api.ask("reader", "GET", "/v1/runs", &Value::Null).await.json, json!({"runs": []}));
    let all = api.ask("admin", "GET", "/v1/runs", &Value::Null).await.json;
    assert_eq!(all["runs"].as_array().map(Vec::len), Some(1), "{all}");
    let of_home = api.ask("writer", "GET", "/v1/runs?project=home", &Value::Null).await;
    assert_eq!(of_home.status, 404);
    let told = api.ask("writer", "POST", "/v1/runs", &run(&json!({"project": "home"}))).await;
    assert_eq!((told.status, told.code()), (404, "unknown_project"));

    put(&api, &[FAILED], TimerState::Dead);
    for (method, path) in &of {
        let told = api.ask("reader", method, path, &Value::Null).await;
        let want = if *method == "GET" { 200 } else { 403 };
        assert_eq!(told.status, want, "{method} {path}: {told:?}");
    }
    let told = api.ask("reader", "POST", "/v1/runs", &run(&json!({}))).await;
    assert_eq!((told.status, told.code()), (403, "role_denied"));
    assert_eq!(api.ask("", "GET", PATH, &Value::Null).await.status, 401);
}
