//! Follow-ups: who wishes it is told how a task ended, once, also where the owner of the lanes dies meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Api, fixture, launch, put_service, task, with};
use crate::support::{Endpoint, Fixture, Log, eventually, start_all};

/// Tasks that end about when the owner of the lanes is killed.
const TASKS: usize = 200;

fn create_kafka(api: &Api, topic: &str, more: Value) -> String {
    let task = json!({
        "project": "shop", "group": "g", "delay": "1s", "topic": topic, "value": "v",
    });
    let (status, told) = api.answered("POST", "/v1/tasks/kafka", Some(&with(task, more)));
    assert_eq!(status, 201, "{told}");
    told["task_id"].as_str().expect("an id").to_owned()
}

/// Topics of a test: where tasks go, and where is told how they ended.
fn topics(fixture: &Fixture) -> (String, String, Log) {
    let (work, done) = (fixture.target("work", 2), fixture.target("done", 2));
    let log = Log::open(fixture, &done);
    (work, done, log)
}

/// What a topic was told of each task, by their ids.
fn told(log: &mut Log) -> BTreeMap<String, Vec<Value>> {
    log.read_on(Duration::from_millis(300));
    let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for rec in &log.seen {
        let body: Value = serde_json::from_str(&rec.text()).expect("JSON");
        let id = body["task_id"].as_str().expect("an id").to_owned();
        assert_eq!(rec.key.as_deref(), Some(id.as_bytes()), "one task, one partition");
        assert_eq!(rec.header("content-type").as_deref(), Some("application/json"));
        all.entry(id).or_default().push(body);
    }
    all
}

/// Waits until the follow-up of a task that has ended is finished, and gives its id.
#[track_caller]
fn followed(api: &Api, id: &str) -> String {
    let ended = api.end_of(id);
    let follow_up = ended["follow_up"].as_str().unwrap_or_else(|| panic!("{ended}")).to_owned();
    let told = api.end_of(&follow_up);
    assert_eq!(told["task_status"], "finished", "{told}");
    assert!(told.get("on_result").is_none() && told.get("follow_up").is_none(), "{told}");
    follow_up
}

#[test]
fn who_wishes_it_is_told_how_a_task_ended() {
    let fixture = fixture("tasks-follow-ups");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let (work, done, mut log) = topics(&fixture);
    put_service(&api, "shop", "told", &json!({"address": stub.url("/ok")}));
    let to_topic = json!({"on_result": {"topic": done}});
    let to_url = json!({"on_result": {"url": stub.url("/fail?n=1")}});
    let to_service = json!({"on_result": {"service": "told"}});
    let of = |target: &str, more: &Value| {
        api.create(&with(task("shop", &stub, target, "1s"), more.clone()))
    };

    let finished = of("/ok", &to_topic);
    let retry = json!({"retry": {"count": 1, "interval": 1}});
    let failed = of("/status?is=500", &with(retry.clone(), to_topic.clone()));
    // The first call of this follow-up fails: it is made again, as of any task.
    let by_url = of("/ok", &to_url);
    let by_service = create_kafka(&api, &work, to_service);
    let cancelled = api.create(&with(task("shop", &stub, "/ok", "1h"), to_topic.clone()));
    assert_eq!(api.cancel(&cancelled), "cancelled");

    for id in [&finished, &failed] {
        followed(&api, id);
    }
    let told_of = told(&mut log);
    let one = |id: &String| match told_of.get(id).map(Vec::as_slice) {
        Some([body]) => body.clone(),
        other => panic!("{id}: {other:?}"),
    };
    let body = one(&finished);
    assert_eq!((&body["task_status"], &body["task_type"]), (&json!("finished"), &json!("http")));
    assert_eq!((&body["project"], &body["last"]["status"]), (&json!("shop"), &json!(200)));
    let body = one(&failed);
    assert_eq!((&body["task_status"], &body["code"]), (&json!("failed"), &json!("task_failed")));
    assert_eq!((&body["attempts_total"], &body["last"]["status"]), (&json!(2), &json!(500)));

    let follow_up = followed(&api, &by_url);
    let calls = stub.calls_of(&follow_up);
    assert_eq!(calls.iter().map(|call| call.turn).collect::<Vec<_>>(), [1, 2]);
    assert!(calls.iter().all(|call| call.body > 100), "{calls:?}");
    let follow_up = followed(&api, &by_service);
    assert_eq!(stub.calls_of(&follow_up).len(), 1);
    let shown = api.task(&by_service);
    assert_eq!(shown["on_result"], json!({"service": "told"}), "{shown}");
    let shown = api.task(&cancelled);
    assert!(shown.get("follow_up").is_none(), "{shown}");
    assert!(!told(&mut log).contains_key(&cancelled));
    process.stop_well();
}

#[test]
fn a_dead_owner_of_the_lanes_neither_forgets_a_follow_up_nor_writes_it_twice() {
    let fixture = fixture("tasks-follow-ups-killed");
    let [mut owner, mut worker] =
        start_all([launch(&fixture, "a", "lanes,api"), launch(&fixture, "w", "worker")]);
    let (api, stub) = (Api::of(&owner), Endpoint::start());
    let (work, done, mut log) = topics(&fixture);
    let to_topic = json!({"on_result": {"topic": done}});
    // An executor has this one while the owner dies, and reports to one that has seen nothing of it.
    let feedback = with(json!({"feedback": {"deadline": "1h"}}), to_topic.clone());
    let awaited = create_kafka(&api, &work, feedback);
    let mut handed = Log::open(&fixture, &work);
    let ticket = eventually("it is handed over", || {
        handed.read_on(Duration::from_millis(300));
        handed
            .seen
            .iter()
            .find_map(|rec| rec.header("x-delay-ticket"))
            .ok_or_else(|| "not yet".to_owned())
    });
    let some = |n: usize| {
        let target = if n.is_multiple_of(2) { "/slow?ms=50" } else { "/status?is=500" };
        with(task("shop", &stub, target, "1s"), to_topic.clone())
    };
    let mut ids = api.create_all((0..TASKS).map(some).collect());
    eventually("half of the calls have ended", || {
        let ended = stub.ended();
        if ended >= TASKS / 2 { Ok(()) } else { Err(format!("{ended}")) }
    });
    owner.kill();
    let mut other = launch(&fixture, "b", "lanes,api").start();
    let api = Api::of(&other);
    let body = json!({"outcome": "finished", "ticket": ticket, "cursor": "row:9"});
    let path = format!("/v1/tasks/{awaited}/result");
    assert_eq!(api.answered("POST", &path, Some(&body)), (200, json!({"outcome": "finished"})));
    ids.push(awaited.clone());
    let told_of = eventually("all are told of", || {
        let told_of = told(&mut log);
        if told_of.len() == ids.len() { Ok(told_of) } else { Err(format!("{}", told_of.len())) }
    });
    for id in &ids {
        let ended = api.task(id);
        let bodies = &told_of[id];
        assert_eq!(bodies.len(), 1, "{id}: {bodies:?}");
        assert_eq!(bodies[0]["task_status"], ended["task_status"], "{ended}");
    }
    assert_eq!(told_of[&awaited][0]["last"]["cursor"], "row:9");
    let again: usize = told(&mut log).values().map(Vec::len).sum();
    assert_eq!(again, ids.len());
    worker.stop_well();
    other.stop_well();
}
