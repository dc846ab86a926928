use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::task::request::{self, Due, TaskType};
use crate::task::spec::{OnResult, Shard, Spec};

const MAX: usize = 2 << 20;

/// A run that is written in full, with these fields in place of its own.
fn written(more: &Value) -> Value {
    let mut run = json!({
        "project": "shop", "group": "settlement", "shards": 60, "task": {
            "type": "kafka", "topic": "settle", "value": "{}", "retry": {"count": 2, "interval": 5},
            "feedback": {"deadline": "10m", "heartbeat": "5s"},
        },
    });
    let to = run.as_object_mut().expect("an object");
    for (name, value) in more.as_object().expect("an object") {
        match value {
            Value::Null => drop(to.remove(name)),
            value => drop(to.insert(name.clone(), value.clone())),
        }
    }
    run
}

/// As it stands in a record.
fn spec(more: &Value) -> Result<Spec, Vec<String>> {
    let mut run = written(more);
    run["type"] = "run".into();
    let wrongs = |wrongs: Vec<Wrong>| wrongs.iter().map(ToString::to_string).collect();
    Spec::parse(run.to_string().as_bytes()).map_err(wrongs)
}

/// As somebody asks for it.
fn requested(more: &Value) -> Result<Request, Vec<Wrong>> {
    let mut run = written(more);
    if run.get("delay").is_none() && run.get("trigger_at").is_none() {
        run["delay"] = "15m".into();
    }
    request::read(TaskType::Run, run.to_string().as_bytes(), MAX)
}

fn http(more: &Value) -> Value {
    let mut task = json!({"type": "http", "url": "https://shop.example/settle"});
    for (name, value) in more.as_object().expect("an object") {
        task[name] = value.clone();
    }
    task
}

#[test]
fn a_run_is_read_with_all_its_fields_and_written_as_it_was() {
    let full = json!({
        "request_id": "2026-11-30", "deadline": "6h", "on_shard_failure": "stop",
        "on_finished": {"topic": "settled"},
    });
    let read = spec(&full).expect("all is right");
    assert_eq!((read.type_name(), read.project(), read.group()), ("run", "shop", "settlement"));
    assert_eq!(
        (read.request_id(), read.scope(), read.feedback()),
        (Some("2026-11-30"), None, None)
    );
    assert_eq!(read.on_result(), Some(&OnResult::Topic("settled".to_owned())));
    let run = read.run().expect("a run");
    assert_eq!((run.shards(), run.deadline()), (60, Millis(6 * 3_600_000)));
    assert_eq!((run.on_shard_failure(), run.type_of_task()), (OnShardFailure::Stop, "kafka"));
    let json: Value = serde_json::from_str(&read.to_json()).expect("JSON");
    assert_eq!(json["task"], written(&full)["task"], "as somebody wrote it");
    assert_eq!((&json["on_finished"], json.get("on_result")), (&full["on_finished"], None));
    assert_eq!(Spec::parse(read.to_json().as_bytes()), Ok(read.clone()));
    assert!(!format!("{run:?}").contains("settle"), "what it sends is not for a log");

    let short = spec(&json!({})).expect("all is right");
    let run = short.run().expect("a run");
    assert_eq!((run.deadline(), run.on_shard_failure()), (Millis::DAY, OnShardFailure::Continue));
    assert_eq!((short.on_result(), short.shard()), (None, None));
}

#[test]
fn each_shard_is_a_legal_task_that_says_which_it_is() {
    let read = spec(&json!({})).expect("all is right");
    let run = read.run().expect("a run");
    let due = UnixMillis(1_795_295_275_106);
    let request = run.request((read.project(), read.group()), due).expect("a task");
    assert_eq!((request.due, request.value.as_deref()), (Due::At(due), Some(&b"{}"[..])));
    let shard = request.spec.with_shard(Shard { index: 3, count: run.shards() });
    assert_eq!(
        (shard.type_name(), shard.project(), shard.group()),
        ("kafka", "shop", "settlement")
    );
    let json: Value = serde_json::from_str(&shard.to_json()).expect("JSON");
    assert_eq!(json["shard"], "3/60");
    let back = Spec::parse(shard.to_json().as_bytes()).expect("what was written");
    assert_eq!(back.shard(), Some(Shard { index: 3, count: 60 }));
    assert_eq!(back, shard);
    assert_eq!(back.shard().map(|shard| shard.to_string()).as_deref(), Some("3/60"));
}

#[test]
fn what_shard_it_is_is_of_those_that_there_are() {
    let of = |shard: &str| {
        let json = format!(
            r#"{{"type":"http","project":"p","group":"g","url":"http://a.example/","shard":{shard}}}"#
        );
        Spec::parse(json.as_bytes()).map(|spec| spec.shard())
    };
    let shard = |index, count| Ok(Some(Shard { index, count }));
    assert_eq!(of(r#""0/1""#), shard(0, 1));
    assert_eq!(of(r#""9999/10000""#), shard(9_999, 10_000));
    for wrong in [
        r#""1/1""#,
        r#""-1/2""#,
        r#""1""#,
        r#""1/2/3""#,
        r#""a/2""#,
        "3",
        r#""0/0""#,
        r#""0/10001""#,
    ] {
        let wrongs = of(wrong).expect_err(wrong);
        assert_eq!(wrongs.iter().map(|of| &*of.at).collect::<Vec<_>>(), ["shard"], "{wrong}");
    }
    // A request says no such thing.
    let wrongs = request::read(
        TaskType::Http,
        br#"{"project":"p","group":"g","url":"http://a.example/","delay":1,"shard":"0/1"}"#,
        MAX,
    );
    assert_eq!(wrongs.expect_err("nobody's").remove(0).at, "shard");
}

#[test]
fn a_request_becomes_a_run_that_is_due_then() {
    let request = requested(&json!({"request_id": "n-1", "expires_at": 1_795_295_275_106_u64}));
    let request = request.expect("all is right");
    assert_eq!(
        (request.due, request.request_id.as_deref()),
        (Due::In(Millis(900_000)), Some("n-1"))
    );
    assert_eq!(request.expires, Some(UnixMillis(1_795_295_275_106)));
    assert_eq!((&request.value, &request.key), (&None, &None));
    assert_eq!(Spec::parse(request.spec.to_json().as_bytes()), Ok(request.spec.clone()));
    let at = requested(&json!({"trigger_at": 1_795_295_275_106_u64})).expect("all is right");
    assert_eq!(at.due, Due::At(UnixMillis(1_795_295_275_106)));
    let both = json!({"delay": 1, "trigger_at": 1_795_295_275_106_u64});
    assert_eq!(requested(&both).expect_err("one of them").remove(0).at, "delay");
}

#[test]
fn every_wrong_field_of_a_run_is_named() {
    let body = "x".repeat(2_000);
    let long = json!({"type": "http", "url": "http://a.example/", "body": body});
    let kafka = |more: &Value| {
        let mut task = written(&json!({}))["task"].clone();
        for (name, value) in more.as_object().expect("an object") {
            match value {
                Value::Null => drop(task.as_object_mut().expect("an object").remove(name)),
                value => task[name] = value.clone(),
            }
        }
        json!({"task": task})
    };
    #[rustfmt::skip]
    let cases: Vec<(Value, &[&str])> = vec![
        (json!({"shards": null}),                            &["shards"]),
        (json!({"shards": 0}),                               &["shards"]),
        (json!({"shards": 10_001}),                          &["shards"]),
        (json!({"shards": "60"}),                            &["shards"]),
        (json!({"shards": 1.5}),                             &["shards"]),
        (json!({"deadline": "999ms"}),                       &["deadline"]),
        (json!({"deadline": "31d"}),                         &["deadline"]),
        (json!({"deadline": "soon"}),                        &["deadline"]),
        (json!({"on_shard_failure": "retry"}),               &["on_shard_failure"]),
        (json!({"on_shard_failure": 1}),                     &["on_shard_failure"]),
        (json!({"on_finished": {}}),                         &["on_finished"]),
        (json!({"on_finished": {"topic": "a b"}}),           &["on_finished.topic"]),
        (json!({"on_result": {"topic": "a"}}),               &["on_result"]),
        (json!({"retry": {"count": 1}}),                     &["retry"]),
        (json!({"feedback": {"deadline": "1m"}}),            &["feedback"]),
        (json!({"shard": "0/1"}),                            &["shard"]),
        (json!({"task": null}),                              &["task"]),
        (json!({"task": 7}),                                 &["task"]),
        (json!({"task": {}}),                                &["task.type"]),
        (json!({"task": {"type": "http"}}),                  &["task.url"]),
        (kafka(&json!({"feedback": null})),                  &["task.feedback"]),
        (kafka(&json!({"colour": 1, "topic": "a b"})),       &["task.colour", "task.topic"]),
        (kafka(&json!({"project": "shop", "group": "g"})),   &["task.project", "task.group"]),
        (kafka(&json!({"trigger_at": 1, "delay": 1})),       &["task.trigger_at", "task.delay"]),
        (kafka(&json!({"window": 1, "expires_at": 1})),      &["task.window", "task.expires_at"]),
        (kafka(&json!({"request_id": "a"})),                 &["task.request_id"]),
        (kafka(&json!({"shard": "0/1", "occurrence": {}})),  &["task.occurrence", "task.shard"]),
        (json!({"shards": 10_000, "task": long}),                &["task.body"]),
        (json!({"task": {"type": "run", "shards": 2, "task": http(&json!({}))}}), &["task.type"]),
        (json!({"task": {"type": "schedule", "every": "1s"}}), &["task.type"]),
        (json!({"project": "Shop", "shards": 0, "deadline": 0, "task": {"type": "http", "project": "a"}}),
                                                             &["project", "shards", "deadline", "task.project"]),
    ];
    for (more, want) in cases {
        let shown = |text: String| text.chars().take(200).collect::<String>();
        let wrongs = spec(&more).err().unwrap_or_default();
        let at = |wrong: &String| wrong.split(' ').next().unwrap_or_default().to_owned();
        assert_eq!(wrongs.iter().map(at).collect::<Vec<_>>(), want, "{}", shown(more.to_string()));
        let wrongs = requested(&more).err().unwrap_or_default();
        let at: Vec<&str> = wrongs.iter().map(|wrong| &*wrong.at).collect();
        assert_eq!(at, want, "{}: {wrongs:?}", shown(more.to_string()));
    }
}

#[test]
fn bodies_of_all_shards_are_bounded_together() {
    let of = |shards: u32, bytes: usize| {
        let task = http(&json!({"body": "x".repeat(bytes)}));
        requested(&json!({"shards": shards, "task": task})).map(drop)
    };
    assert_eq!(of(SHARDS_MAX, BODIES_MAX / SHARDS_MAX as usize), Ok(()));
    let wrongs = of(SHARDS_MAX, BODIES_MAX / SHARDS_MAX as usize + 1).expect_err("too much");
    let [wrong] = &wrongs[..] else { panic!("{wrongs:?}") };
    assert_eq!(wrong.at, "task.body");
    assert_eq!(wrong.detail, "has 1678 bytes; want at most 1677 for 10000 shards");
    // In another encoding it is as long as it is.
    let task = http(&json!({"body_b64": "eHh4".repeat(560)}));
    let wrongs = requested(&json!({"shards": SHARDS_MAX, "task": task})).expect_err("too much");
    assert_eq!(wrongs[0].at, "task.body_b64");
}

fn any_run() -> impl Strategy<Value = Value> {
    let task = prop_oneof![
        "[a-z]{1,8}".prop_map(|value| json!({
            "type": "kafka", "topic": "t", "value": value, "feedback": {"deadline": 60},
        })),
        "[a-z]{1,8}".prop_map(|body| http(&json!({"body": body, "headers": {"x-a": "b"}}))),
        Just(json!({"type": "grpc", "host": "a.example:1", "service": "s.S", "method": "M"})),
    ];
    let told = prop_oneof![
        Just(Value::Null),
        Just(json!({"topic": "t"})),
        Just(json!({"service": "s"})),
        Just(json!({"url": "http://a.example/"})),
    ];
    let stops = prop_oneof![Just(Value::Null), Just(json!("stop")), Just(json!("continue"))];
    let deadline = prop_oneof![Just(Value::Null), (1u32..2_592_000).prop_map(Value::from)];
    (1u32..=SHARDS_MAX, task, told, stops, deadline).prop_map(
        |(shards, task, told, stops, deadline)| {
            json!({
                "shards": shards, "task": task, "on_finished": told, "on_shard_failure": stops,
                "deadline": deadline,
            })
        },
    )
}

proptest! {
    #[test]
    fn what_was_asked_for_is_read_back(run in any_run()) {
        let request = requested(&run).expect("all is right");
        let read = Spec::parse(request.spec.to_json().as_bytes());
        prop_assert_eq!(read, Ok(request.spec.clone()));
        prop_assert_eq!(Ok(request.spec), spec(&run));
    }
}
