//! Follow-ups: who wishes it is told once how a task ended.

use serde_json::{Value, json};

use super::*;
use crate::task::id::TaskId;

const TO_URL: &str = r#","on_result":{"url":"http://told.example/x"}"#;
const HOUR: u64 = 3_600_000;

fn to_topic(topic: &str, more: &str) -> Spec {
    let json =
        format!(r#"{{"type":"kafka","project":"shop","group":"g","topic":"{topic}"{more}}}"#);
    Spec::parse(json.as_bytes()).expect("sound")
}

/// A world in which follow-ups are heard, and other calls get this.
fn world(mut answer: impl FnMut(usize) -> TaskResult + 'static) -> World {
    World::new(move |id, nth| (5, if id.starts_with('k') { finished() } else { answer(nth) }))
}

/// The id of the follow-up of a task as it is now.
fn follow_up(world: &World, id: &TaskId) -> TaskId {
    let version = world.timer(id).expect("known").version;
    id.follow_up((version.first_appended, version.offset))
}

/// What is told by calls of how a task ended.
fn told(world: &World, id: &TaskId) -> Vec<Value> {
    let calls = world.calls_of(&follow_up(world, id)).into_iter();
    calls.map(|call| serde_json::from_slice(&call.body).expect("JSON")).collect()
}

fn the_one(mut told: Vec<Value>) -> Value {
    assert_eq!(told.len(), 1, "{told:?}");
    told.remove(0)
}

#[test]
fn a_task_that_is_finished_tells_so_once() {
    let answer = TaskResult { response: Some(b"paid".to_vec()), ..finished() };
    let mut world = world(move |_| answer.clone());
    let request = r#","request_id":"r-17""#;
    let id = world.create(1, 1_000, &format!("{request}{TO_URL}"));
    world.after(10_000);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    let body = the_one(told(&world, &id));
    let ended = world.timer(&id).expect("known").since.0;
    let mut want = json!({
        "task_id": id.as_str(), "task_type": "http", "task_status": "finished", "project": "shop", "group": "g",
        "request_id": "r-17", "trigger_at": (BEGAN + Millis(1_000)).0, "ended_at": ended, "turn": 1,
        "attempts_total": 1, "failures": 0,
    });
    let last = &body["last"];
    assert_eq!((&last["outcome"], &last["status"]), (&json!("finished"), &json!(200)));
    assert_eq!((&last["response_b64"], &last["worker"]), (&json!("cGFpZA=="), &json!("w")));
    want["last"] = last.clone();
    assert_eq!(body, want);
    // It is a task like any other, and nobody is told how it ends.
    let follow_up = follow_up(&world, &id);
    assert_eq!(world.state(&follow_up), Some(TimerState::Delivered));
    assert_eq!(follow_up.lane_of(world::LANES), id.lane_of(world::LANES));
    assert_eq!((world.calls.len(), told(&world, &follow_up).len()), (2, 0));
}

#[test]
fn a_result_that_is_read_twice_tells_once() {
    let mut world = world(|_| finished());
    let id = world.create(1, 1_000, r#","on_result":{"topic":"orders.out"}"#);
    world.after(5_000);
    assert_eq!(world.delivered.len(), 1);
    world.say_last_again(id.lane_of(world::LANES));
    world.after(5_000);
    world.take_lanes_over();
    world.after(5_000);
    assert_eq!((world.delivered.len(), world.submitted(&follow_up(&world, &id))), (1, 1));
}

#[test]
fn a_task_that_has_failed_for_good_tells_so_and_one_that_is_tried_again_does_not() {
    let mut world = world(|_| failed(500));
    let id = world.create(1, 1_000, &format!(r#","retry":{{"count":1,"interval":20}}{TO_URL}"#));
    world.after(10_000);
    assert_eq!(world.calls.len(), 1, "it waits for its second attempt");
    world.after(30_000);
    assert_eq!(world.state(&id), Some(TimerState::Dead));
    let body = the_one(told(&world, &id));
    assert_eq!((&body["task_status"], &body["code"]), (&json!("failed"), &json!("task_failed")));
    assert_eq!((&body["attempts_total"], &body["failures"]), (&json!(2), &json!(2)));
    assert_eq!(body["last"]["status"], json!(500));
    assert!(body["detail"].as_str().is_some_and(|of| of.contains("attempt 2")), "{body}");
    // By hand it comes back, and its second end is another one.
    let first = follow_up(&world, &id);
    world.retry(&id);
    world.after(60_000);
    assert_eq!(world.state(&id), Some(TimerState::Dead));
    assert_ne!(follow_up(&world, &id), first);
    assert_eq!((told(&world, &id).len(), world.calls_of(&first).len()), (1, 1));
}

#[test]
fn a_task_whose_worker_wrote_its_letter_tells_so() {
    let mut world = world(|_| failed(500));
    world.refuses = |record| record.value().is_some();
    let id = world.create(1, 1_000, &format!(r#","retry":{{"count":3,"interval":1}}{TO_URL}"#));
    world.after(20_000);
    assert_eq!(world.state(&id), Some(TimerState::Dead));
    let body = the_one(told(&world, &id));
    assert_eq!((&body["code"], &body["last"]["status"]), (&json!("task_failed"), &json!(500)));
}

#[test]
fn nobody_is_told_of_what_was_cancelled_or_has_expired() {
    let mut world = world(|_| finished());
    let cancelled = world.create(1, 30_000, TO_URL);
    world.set_registry("project/shop", r#"{"paused":true}"#);
    let expires = Some(world.now + Millis(5_000));
    let expired = world.create_spec(2, 1_000, &spec(TO_URL), expires);
    world.after(10_000);
    world.cancel(&cancelled);
    world.after(1_000);
    world.set_registry("project/shop", r#"{"paused":false}"#);
    world.after(60_000);
    assert_eq!(world.state(&cancelled), Some(TimerState::Cancelled));
    assert_eq!(world.state(&expired), Some(TimerState::Expired));
    for id in [&cancelled, &expired] {
        assert_eq!(world.submitted(&follow_up(&world, id)), 0);
    }
}

#[test]
fn a_kafka_task_tells_of_its_delivery_and_of_a_topic_that_is_not_there() {
    let mut world = world(|_| finished());
    let spec = to_topic("orders.out", r#","on_result":{"topic":"orders.out"}"#);
    let id = world.create_spec(1, 1_000, &spec, None);
    world.after(5_000);
    let values = world.delivered.iter().map(|(_, value)| value.as_deref().expect("a value"));
    let [first, second] = values.collect::<Vec<_>>()[..] else { panic!("{:?}", world.delivered) };
    let body: Value = serde_json::from_slice(second).expect("JSON");
    assert_eq!(first, b"body");
    assert_eq!((&body["task_id"], &body["task_type"]), (&json!(id.as_str()), &json!("kafka")));
    assert_eq!((&body["task_status"], &body["turn"]), (&json!("finished"), &json!(1)));
    let missing = r#","retry":{"count":1,"interval":1}"#;
    let spec = to_topic("orders.none", &format!("{missing}{TO_URL}"));
    let id = world.create_spec(2, 1_000, &spec, None);
    // Its project may have changed, and waterclock's own list was never looked at before.
    let forbidden = world.create_spec(3, 1_000, &to_topic("bills.out", TO_URL), None);
    world.after(60_000);
    let body = the_one(told(&world, &id));
    assert_eq!((&body["code"], &body["attempts_total"]), (&json!("target_missing"), &json!(2)));
    assert_eq!(body["last"]["outcome"], json!("failed"));
    let body = the_one(told(&world, &forbidden));
    assert_eq!((&body["code"], &body["turn"]), (&json!("target_denied"), &json!(0)));
}

#[test]
fn what_an_executor_reports_is_told_also_by_an_owner_that_has_seen_nothing_of_the_task() {
    let more = format!(r#","feedback":{{"deadline":"1h"}}{TO_URL}"#);
    for is_taken_over in [false, true] {
        let mut world = world(|_| finished());
        let id = world.create_spec(1, 2_000, &to_topic("orders.out", &more), None);
        world.after(3_000);
        let handed = world.handed[0].clone();
        if is_taken_over {
            world.take_lanes_over();
        }
        let result = TaskResult { cursor: Some("row:9".to_owned()), ..of(CallOutcome::Finished) };
        world.report(&handed, &result);
        world.report(&handed, &result);
        world.after(5_000);
        assert_eq!(world.state(&id), Some(TimerState::Delivered));
        let body = the_one(told(&world, &id));
        assert_eq!((&body["task_status"], &body["turn"]), (&json!("finished"), &json!(1)));
        assert_eq!(
            (&body["last"]["cursor"], &body["attempts_total"]),
            (&json!("row:9"), &json!(1))
        );
        assert_eq!(body["trigger_at"], json!((BEGAN + Millis(2_000)).0));
        world.after(2 * HOUR);
        assert_eq!(world.submitted(&follow_up(&world, &id)), 1);
    }
}

#[test]
fn an_executor_that_fails_or_is_silent_until_the_last_deadline_is_told() {
    let more = format!(r#","feedback":{{"deadline":"10s"}}{TO_URL}"#);
    let mut world = world(|_| finished());
    let silent = world.create_spec(1, 2_000, &to_topic("orders.out", &more), None);
    let failing = world.create_spec(2, 2_000, &to_topic("orders.out", &more), None);
    world.after(3_000);
    let handed = world.handed.iter().find(|handed| handed.id == failing).expect("it").clone();
    let no_stock = TaskResult { error: Some("no stock".to_owned()), ..of(CallOutcome::Failed) };
    world.report(&handed, &no_stock);
    world.after(60_000);
    assert_eq!(the_one(told(&world, &failing))["last"]["error"], json!("no stock"));
    let error = the_one(told(&world, &silent))["last"]["error"].clone();
    assert!(error.as_str().is_some_and(|error| error.contains("timeout")), "{error}");
}

#[test]
fn a_task_is_told_of_once_whenever_somebody_dies() {
    for fails_in in 0..25 {
        let more = format!(r#","retry":{{"count":1,"interval":1}}{TO_URL}"#);
        let mut world = world(|nth| if nth == 0 { failed(500) } else { finished() });
        world.fails_in = Some(fails_in);
        let called = world.create(1, 1_000, &more);
        let feedback = format!(r#","feedback":{{"deadline":"1h"}}{TO_URL}"#);
        let awaited = world.create_spec(2, 1_000, &to_topic("orders.out", &feedback), None);
        world.after(5_000);
        let handed = world.handed.last().expect("it is handed over").clone();
        world.report(&handed, &of(CallOutcome::Finished));
        world.after(30_000);
        for id in [&called, &awaited] {
            let follow_up = follow_up(&world, id);
            assert!(world.state(id).is_some_and(TimerState::is_final), "{fails_in}");
            assert_eq!(world.submitted(&follow_up), 1, "{fails_in}");
            assert_eq!(world.state(&follow_up), Some(TimerState::Delivered), "{fails_in}");
        }
    }
}

fn of(outcome: CallOutcome) -> TaskResult {
    TaskResult::new(outcome)
}
