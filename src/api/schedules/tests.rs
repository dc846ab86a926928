//! The room of schedules behind its real router, with lanes in memory that decide at once.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use super::super::tasks::tests::{Api, NOW, Told};
use super::*;
use crate::engine::timers::{LaneTimer, Progress, Timer, TimerId};
use crate::engine::{Lane, Offset};

/// What a lane keeps of a schedule.
pub(in crate::api) fn kept(
    id: &TaskId,
    version: Version,
    spec: &Spec,
    due: UnixMillis,
) -> TaskRecord {
    let of_type = spec.schedule().map(|schedule| schedule.type_of_task()).unwrap_or_default();
    let timer = Timer {
        timer_id: TimerId::task(id),
        state: TimerState::Delay,
        version,
        supersedes: None,
        due,
        since: version.first_appended,
        target: format!("schedule:{of_type}").into(),
        label: Some(format!("{}/{}", spec.project(), spec.group()).into()),
        id: id.as_str().as_bytes().into(),
        key: None,
        key_cut: false,
        code: None,
        task: Some(Progress { next_at: due, ..Progress::default() }),
    };
    let json = Some(spec.to_json().into_boxed_str());
    TaskRecord::new(LaneTimer { lane: Lane(0), timer }, json, Vec::new()).expect("an id")
}

const ID: &str = "schedule.shop.nightly";
const PATH: &str = "/v1/schedules/schedule.shop.nightly";

fn nightly(more: &Value) -> Value {
    let mut all = json!({
        "project": "shop", "group": "reports", "name": "nightly", "cron": "30 2 * * *",
        "zone": "Europe/Berlin", "task": {"type": "http", "url": "https://a.example/run"},
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        match value {
            Value::Null => drop(all.as_object_mut().expect("an object").remove(name)),
            value => all[name] = value.clone(),
        }
    }
    all
}

async fn create(api: &Api, more: &Value) -> Told {
    api.ask("", "POST", "/v1/schedules", &nightly(more)).await
}

async fn ask(api: &Api, method: &str, path: &str, body: &Value) -> Told {
    api.ask("", method, path, body).await
}

fn places(told: &Told) -> Vec<&str> {
    let errors = told.json["errors"].as_array();
    errors.into_iter().flatten().filter_map(|error| error["at"].as_str()).collect()
}

/// It ends like that.
fn ends(api: &Api, state: TimerState) {
    let mut world = api.world();
    world.schedules.get_mut(ID).expect("one").timer.state = state;
}

#[tokio::test]
async fn a_schedule_is_made_once_and_shown_with_its_defaults() {
    let api = Api::new();
    let told = create(&api, &json!({})).await;
    assert_eq!((told.status, told.json["schedule_id"].as_str()), (201, Some(ID)), "{told:?}");
    assert_eq!(told.headers["location"], PATH);
    let version = told.json["version"].as_str().expect("a version").to_owned();
    assert_eq!(told.headers["etag"], format!("\"{version}\""));
    let shown = ask(&api, "GET", PATH, &Value::Null).await;
    assert_eq!(shown.json, told.json);
    let of = &shown.json;
    assert_eq!(
        (&of["status"], &of["misfire"], &of["overlap"]),
        (&json!("active"), &json!("fire_once"), &json!("allow"))
    );
    assert_eq!((&of["cron"], &of["zone"]), (&json!("30 2 * * *"), &json!("Europe/Berlin")));
    assert_eq!(of["task"], nightly(&json!({}))["task"]);
    assert!(of["next_at"].as_u64() > Some(NOW) && of.get("last_at").is_none(), "{of}");
    assert_eq!(of.get("type"), None);
    // The same again finds it; another one of that name is refused.
    let again = create(&api, &json!({"misfire": "fire_once"})).await;
    assert_eq!((again.status, &again.json["version"]), (200, &json!(version)), "{again:?}");
    let other = create(&api, &json!({"cron": "@daily"})).await;
    assert_eq!((other.status, other.code()), (409, "schedule_exists"));
    assert_eq!(other.json["current"], version);
    // One that has ended is made anew.
    ends(&api, TimerState::Cancelled);
    let shown = ask(&api, "GET", PATH, &Value::Null).await;
    assert_eq!((shown.status, &shown.json["status"]), (200, &json!("deleted")));
    assert!(shown.json.get("next_at").is_none() && shown.json["ended_at"].is_u64());
    let anew = create(&api, &json!({"cron": "@daily"})).await;
    assert_eq!((anew.status, &anew.json["cron"]), (201, &json!("@daily")));
}

#[tokio::test]
async fn a_schedule_that_goes_on_says_how_many_are_there_to_execute_its_tasks() {
    let api = Api::new();
    api.world().readers.insert("parts".to_owned(), 2);
    let reported = json!({"type": "kafka", "topic": "parts", "feedback": {"deadline": "1h"}});
    let run = json!({"type": "run", "shards": 5, "task": reported});
    let told_only = json!({"type": "kafka", "topic": "parts"});
    for (task, want) in [(reported, Some(2)), (run, Some(2)), (told_only, None)] {
        let made = create(&api, &json!({"task": task})).await;
        assert_eq!((made.status, made.json.get("members")), (201, None), "{made:?}");
        let members = |shown: &Value| shown.get("members").and_then(Value::as_u64);
        let shown = ask(&api, "GET", PATH, &Value::Null).await.json;
        assert_eq!(members(&shown), want, "{shown}");
        let listed = ask(&api, "GET", "/v1/schedules", &Value::Null).await.json;
        let listed = &listed["schedules"][0];
        assert_eq!((&listed["schedule_id"], members(listed)), (&json!(ID), None));
        ends(&api, TimerState::Cancelled);
        let shown = ask(&api, "GET", PATH, &Value::Null).await.json;
        assert_eq!((&shown["status"], members(&shown)), (&json!("deleted"), None), "{shown}");
    }
}

#[tokio::test]
async fn what_is_wrong_is_named_also_in_its_task() {
    let api = Api::new();
    #[rustfmt::skip]
    let cases = [
        (json!({"name": "a.b"}),                                     vec!["name"]),
        (json!({"cron": "61 * * * *"}),                              vec!["cron"]),
        (json!({"zone": "Europe/Bärlin"}),                           vec!["zone"]),
        (json!({"every": "10s"}),                                    vec!["every"]),
        (json!({"type": "schedule"}),                                vec!["type"]),
        (json!({"retry": {"count": 1}}),                             vec!["retry"]),
        (json!({"overlap": "never"}),                                vec!["overlap"]),
        (json!({"expires": "10ms"}),                                 vec!["expires"]),
        (json!({"task": null}),                                      vec!["task"]),
        (json!({"task": {"type": "http"}}),                          vec!["task.url"]),
        (json!({"task": {"type": "schedule"}}),                      vec!["task.type"]),
        (json!({"task": {"type": "http", "url": "http://169.254.169.254/"}}), vec!["task.url"]),
        (json!({"task": {"type": "kafka", "topic": "wc.tasks"}}),    vec!["task.topic"]),
        (json!({"task": {"type": "http", "url": "https://a.example/", "delay": "1s", "project": "x"}}), vec!["task.project", "task.delay"]),
        (json!({"cron": "0 0 30 2 *"}),                              vec!["cron"]),
        (json!({"start": "2020-01-01T00:00:00Z", "count": 1}),       vec!["count"]),
    ];
    for (more, want) in cases {
        let told = create(&api, &more).await;
        assert_eq!((told.status, places(&told)), (422, want), "{more}: {told:?}");
    }
    assert!(api.world().schedules.is_empty());
    let told = ask(&api, "PUT", "/v1/schedules/schedule.shop.other", &nightly(&json!({}))).await;
    assert_eq!(places(&told), ["name"], "the path names another one: {told:?}");
    for id in ["nightly", "schedule.shop", "schedule.shop.", "schedule.SHOP.a", "schedule.a@b.c"] {
        let told = ask(&api, "GET", &format!("/v1/schedules/{id}"), &Value::Null).await;
        assert_eq!((told.status, told.code()), (400, "bad_id"), "{id}: {told:?}");
    }
    let told = ask(&api, "GET", "/v1/schedules/schedule.shop.none", &Value::Null).await;
    assert_eq!((told.status, told.code()), (404, "unknown_schedule"));
}

#[tokio::test]
async fn a_change_names_the_version_that_it_follows() {
    let api = Api::new();
    let put = |more: Value, version: Option<&str>| {
        let mut request = Request::builder().method("PUT").uri(PATH);
        if let Some(version) = version {
            request = request.header("if-match", format!("\"{version}\""));
        }
        let request = request.header("content-type", "application/json");
        (request, Body::from(nightly(&more).to_string()))
    };
    let (request, body) = put(json!({"name": null, "project": null}), None);
    let first = api.send(request, body).await;
    assert_eq!(first.status, 201, "{first:?}");
    let first = first.json["version"].as_str().expect("one").to_owned();
    let (request, body) = put(json!({"cron": "0 3 * * *"}), Some(&first));
    let second = api.send(request, body).await;
    assert_eq!((second.status, &second.json["cron"]), (200, &json!("0 3 * * *")), "{second:?}");
    let (request, body) = put(json!({}), Some(&first));
    let late = api.send(request, body).await;
    assert_eq!((late.status, late.code()), (409, "version_conflict"));
    assert_eq!(late.json["current"], second.json["version"]);
    let (request, body) = put(json!({}), Some("7"));
    assert_eq!(api.send(request, body).await.code(), "bad_if_match");
    // Another change that came between the look and the write.
    api.world().written = Some(Written::Superseded(None));
    let told = ask(&api, "PUT", PATH, &nightly(&json!({}))).await;
    assert_eq!((told.status, told.code()), (409, "version_conflict"));
    // One that followed this change before anybody looked: this one was made all the same, and what is there now is shown.
    let other =
        Spec::read_schedule(nightly(&json!({"cron": "0 5 * * *"})).to_string().as_bytes(), None);
    let version = Version { first_appended: UnixMillis(NOW), offset: Offset(99) };
    let id = TaskId::parse(ID).expect("an id");
    let other = kept(&id, version, &other.expect("a schedule"), UnixMillis(NOW + 1));
    api.world().written = Some(Written::Replaced(Box::new(other)));
    let told = ask(&api, "PUT", PATH, &nightly(&json!({"cron": "0 4 * * *"}))).await;
    let want = (200, &json!("0 5 * * *"), &json!(version.to_string()));
    assert_eq!((told.status, &told.json["cron"], &told.json["version"]), want, "{told:?}");
    api.world().written = Some(Written::Pending);
    let told = ask(&api, "PUT", PATH, &nightly(&json!({}))).await;
    assert_eq!((told.status, told.code()), (503, "lane_moving"), "{told:?}");
}

#[tokio::test]
async fn a_pause_changes_nothing_else_and_a_second_one_nothing() {
    let api = Api::new();
    let before = create(&api, &json!({"jitter": "90s"})).await.json;
    let paused = ask(&api, "POST", &format!("{PATH}:pause"), &Value::Null).await;
    assert_eq!((paused.status, &paused.json["status"]), (200, &json!("paused")), "{paused:?}");
    assert_eq!((&paused.json["paused"], paused.json.get("next_at")), (&json!(true), None));
    let again = ask(&api, "POST", &format!("{PATH}:pause"), &Value::Null).await;
    assert_eq!(again.json["version"], paused.json["version"]);
    let resumed = ask(&api, "POST", &format!("{PATH}:resume"), &Value::Null).await;
    let mut want = before.clone();
    for name in ["version", "changed_at"] {
        want[name] = resumed.json[name].clone();
    }
    assert_eq!(resumed.json, want);
    assert_ne!(resumed.json["version"], before["version"]);
    ends(&api, TimerState::Delivered);
    let told = ask(&api, "POST", &format!("{PATH}:pause"), &Value::Null).await;
    assert_eq!((told.status, told.code()), (409, "schedule_ended"), "{told:?}");
    let told = ask(&api, "POST", "/v1/schedules/schedule.shop.none:pause", &Value::Null).await;
    assert_eq!((told.status, told.code()), (404, "unknown_schedule"));
}

#[tokio::test]
async fn a_pause_is_taken_though_its_task_is_not_allowed_any_more() {
    let api = Api::new();
    create(&api, &json!({})).await;
    let project = json!({"hosts": ["b.example"]});
    assert_eq!(ask(&api, "PUT", "/v1/projects/shop", &project).await.status, 200);
    let told = create(&api, &json!({"name": "other"})).await;
    assert_eq!((told.status, places(&told)), (422, vec!["task.url"]), "{told:?}");
    let told = ask(&api, "POST", &format!("{PATH}:pause"), &Value::Null).await;
    assert_eq!((told.status, &told.json["status"]), (200, &json!("paused")), "{told:?}");
    let told = ask(&api, "POST", &format!("{PATH}:resume"), &Value::Null).await;
    assert_eq!((told.status, places(&told)), (422, vec!["task.url"]), "{told:?}");
}

#[tokio::test]
async fn what_its_project_has_no_room_for_is_not_made_and_a_backfill_takes_what_there_is() {
    let api = Api::new();
    create(&api, &json!({"cron": null, "zone": null, "every": "10s"})).await;
    let project = json!({"create_rate": 0.001, "create_burst": 3});
    assert_eq!(ask(&api, "PUT", "/v1/projects/shop", &project).await.status, 200);
    let span = json!({"from": NOW - 100_000, "to": NOW});
    let told = ask(&api, "POST", &format!("{PATH}:backfill"), &span).await;
    assert_eq!(
        (told.status, told.json["tasks"].as_array().map(Vec::len)),
        (200, Some(3)),
        "{told:?}"
    );
    let first = (NOW - 100_000).div_ceil(10_000) * 10_000;
    assert_eq!(told.json["next_from"], first + 30_000);
    for path in [format!("{PATH}:backfill"), format!("{PATH}:trigger")] {
        let body = if path.ends_with("fill") { span.clone() } else { Value::Null };
        let told = ask(&api, "POST", &path, &body).await;
        assert_eq!((told.status, told.code()), (429, "over_create_rate"), "{path}: {told:?}");
    }
    let told = create(&api, &json!({"name": "other"})).await;
    assert_eq!((told.status, told.code()), (429, "over_create_rate"), "{told:?}");
    // One that is there is changed all the same, and is no new task.
    let told = ask(&api, "PUT", PATH, &nightly(&json!({}))).await;
    assert_eq!(told.status, 200, "{told:?}");
    api.world().written = Some(Written::Refused("too_many_timers"));
    let told = ask(&api, "PUT", PATH, &nightly(&json!({}))).await;
    assert_eq!((told.status, told.code()), (409, "refused"), "{told:?}");
}

#[tokio::test]
async fn a_schedule_is_deleted_once() {
    let api = Api::new();
    create(&api, &json!({})).await;
    let stale = Request::builder().method("DELETE").uri(PATH).header("if-match", "\"1-1\"");
    let told = api.send(stale, Body::empty()).await;
    assert_eq!((told.status, told.code()), (409, "version_conflict"), "{told:?}");
    api.world().outcome = Some(tasks::model::CancelOutcome::Cancelled);
    // Another one comes first, between the look and the cancel.
    api.world().cancel_failure = Some(Failure::NoTask);
    let told = ask(&api, "DELETE", PATH, &Value::Null).await;
    assert_eq!((told.status, told.code()), (404, "unknown_schedule"), "{told:?}");
    api.world().cancel_failure = None;
    let told = ask(&api, "DELETE", PATH, &Value::Null).await;
    assert_eq!((told.status, &told.json["outcome"]), (200, &json!("deleted")), "{told:?}");
    ends(&api, TimerState::Cancelled);
    let told = ask(&api, "DELETE", PATH, &Value::Null).await;
    assert_eq!((told.status, told.code()), (404, "unknown_schedule"));
    // It is no task: nobody cancels, shows or retries it as one.
    let of_task = format!("/v1/tasks/{ID}");
    for (method, path) in [
        ("GET", of_task.clone()),
        ("DELETE", of_task.clone()),
        ("POST", format!("{of_task}:retry")),
    ] {
        let told = ask(&api, method, &path, &Value::Null).await;
        assert_eq!((told.status, told.code()), (404, "unknown_task"), "{method}");
    }
}

#[tokio::test]
async fn a_task_is_asked_for_now_and_for_times_that_have_passed() {
    let api = Api::new();
    create(
        &api,
        &json!({"cron": null, "zone": null, "every": "10s", "jitter": "1h", "expires": "5m"}),
    )
    .await;
    let told = ask(&api, "POST", &format!("{PATH}:trigger"), &Value::Null).await;
    assert_eq!((told.status, &told.json["trigger_at"]), (201, &json!(NOW)), "{told:?}");
    let task = told.json["task_id"].as_str().expect("an id").to_owned();
    assert!(task.contains("-schedule.shop.nightly@manual-"), "{task}");
    {
        let world = api.world();
        let of = &world.submitted[0];
        assert_eq!((of.id.as_str(), of.due, of.expires.is_some()), (&*task, UnixMillis(NOW), true));
        assert_eq!(
            (of.spec.project(), of.spec.group(), of.spec.type_name()),
            ("shop", "reports", "http")
        );
        assert_eq!(of.spec.occurrence().map(|of| &*of.schedule), Some("nightly"));
    }
    let backfill = format!("{PATH}:backfill");
    let from = NOW - 60_000;
    let told = ask(&api, "POST", &backfill, &json!({"from": from, "to": NOW + 60_000})).await;
    assert_eq!(told.status, 200, "{told:?}");
    let tasks = told.json["tasks"].as_array().expect("tasks");
    assert_eq!((tasks.len(), told.json.get("next_from")), (6, None), "nothing that is to come");
    let first =
        TaskId::parse(ID).expect("one").occurrence(UnixMillis(from.div_ceil(10_000) * 10_000));
    assert_eq!(tasks[0]["task_id"], first.as_str());
    let far = json!({"from": NOW - 20_000_000, "to": NOW});
    let told = ask(&api, "POST", &backfill, &far).await;
    assert_eq!(told.json["tasks"].as_array().map(Vec::len), Some(1_000));
    let next = told.json["next_from"].as_u64().expect("more");
    assert_eq!(next, (NOW - 20_000_000).div_ceil(10_000) * 10_000 + 10_000_000);
    for (body, want) in [
        (json!({"from": NOW, "to": NOW}), "bad_span"),
        (json!({"from": NOW}), "bad_time"),
        (json!({"from": 1, "to": NOW, "more": 1}), "unknown_member"),
    ] {
        let told = ask(&api, "POST", &backfill, &body).await;
        assert_eq!((told.status, told.code()), (400, want), "{body}: {told:?}");
    }
}

#[tokio::test]
async fn the_next_times_are_shown_on_the_clock_of_its_zone() {
    let api = Api::new();
    create(&api, &json!({"paused": true})).await;
    let path = format!("{PATH}/preview?count=3&from=2027-03-27T00:00:00Z");
    let told = ask(&api, "GET", &path, &Value::Null).await;
    let shown: Vec<&str> =
        told.json["shown"].as_array().expect("times").iter().filter_map(Value::as_str).collect();
    // 02:30 is jumped over on the 28th.
    assert_eq!(shown.len(), 3, "{told:?}");
    for (shown, want) in
        shown.iter().zip(["2027-03-27T02:30:00", "2027-03-28T03:00:00", "2027-03-29T02:30:00"])
    {
        assert!(shown.replace(' ', "T").starts_with(want), "{shown} for {want}");
    }
    assert_eq!(told.json["has_more"], true);
    for bad in ["count=0", "count=1001", "from=yesterday", "to=1"] {
        let told = ask(&api, "GET", &format!("{PATH}/preview?{bad}"), &Value::Null).await;
        assert_eq!(told.status, 400, "{bad}: {told:?}");
    }
}

#[tokio::test]
async fn who_may_not_know_of_a_project_finds_no_schedule_of_it() {
    let api = Api::new();
    create(&api, &json!({})).await;
    create(&api, &json!({"project": "home"})).await;
    api.let_in(Vec::new());
    let of = |token, method, path: String, body| {
        let api = &api;
        async move { api.ask(token, method, &path, &body).await }
    };
    let list = of("reader", "GET", "/v1/schedules".into(), Value::Null).await;
    let ids: Vec<&Value> = list.json["schedules"]
        .as_array()
        .expect("some")
        .iter()
        .map(|of| &of["schedule_id"])
        .collect();
    assert_eq!(ids, [ID]);
    let all = of("admin", "GET", "/v1/schedules".into(), Value::Null).await;
    assert_eq!(all.json["schedules"].as_array().map(Vec::len), Some(2));
    let home = "/v1/schedules/schedule.home.nightly";
    for (method, path) in [
        ("GET", home.to_owned()),
        ("DELETE", home.to_owned()),
        ("POST", format!("{home}:pause")),
        ("POST", format!("{home}:resume")),
        ("POST", format!("{home}:trigger")),
        ("POST", format!("{home}:backfill")),
        ("GET", format!("{home}/preview")),
    ] {
        // What is no JSON is refused before any id is looked at.
        let is_told = path.ends_with(":backfill");
        let body = if is_told { json!({"from": 1, "to": 2}) } else { Value::Null };
        let told = of("writer", method, path.clone(), body).await;
        assert_eq!((told.status, told.code()), (404, "unknown_schedule"), "{method} {path}");
    }
    let told = of("writer", "PUT", home.into(), nightly(&json!({"project": "home"}))).await;
    assert_eq!((told.status, told.code()), (404, "unknown_schedule"));
    let told =
        of("writer", "POST", "/v1/schedules".into(), nightly(&json!({"project": "home"}))).await;
    assert_eq!(told.status, 404, "{told:?}");
    let told = of("reader", "POST", format!("{PATH}:pause"), Value::Null).await;
    assert_eq!(told.status, 403, "{told:?}");
    let told = of("", "GET", PATH.into(), Value::Null).await;
    assert_eq!(told.status, 401);
}
