//! What a task sends, wherever its record stands: it is shown, and called by hand.

use rdkafka::Offset;
use serde_json::{Value, json};
use waterclock::engine::Millis;

use super::{Api, LANES, launch, task, turns, with};
use crate::support::{Endpoint, Fixture, eventually, now_ms, whole};

/// What is due sooner stays in memory.
const HORIZON: u64 = 60_000;
const HOLDS: [u64; 2] = [HORIZON, 600_000];
const SOON: &str = "50s";
const LATE: &str = "30m";

/// The body that is shown; `None`: none is.
#[track_caller]
fn payload(api: &Api, id: &str) -> Option<Value> {
    let (status, told) = api.answered("GET", &format!("/v1/tasks/{id}?payload=1"), None);
    assert_eq!(status, 200, "{told}");
    told.get("payload").cloned()
}

#[track_caller]
fn retry(api: &Api, id: &str) -> (u16, Value) {
    api.answered("POST", &format!("/v1/tasks/{id}:retry"), None)
}

#[test]
fn what_a_task_sends_is_shown_and_called_by_hand_wherever_its_record_stands() {
    let fixture = Fixture::with("tasks-payload", |request| {
        request.lanes = Some(LANES);
        request.holds = Some(HOLDS.map(Millis).to_vec());
        request.horizon = Millis(HORIZON);
    });
    let launch = launch(&fixture, "a", "lanes,worker,api");
    let mut process = launch.env("WATERCLOCK_HORIZON", "1m").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let create = |target: &str, delay: &str, body: &str, more: Value| {
        let more = with(more, json!({ "body": body }));
        api.create(&with(task("shop", &stub, target, delay), more))
    };
    let is_shown = |id: &str, body: &str| {
        assert_eq!(payload(&api, id), Some(json!({ "body": body })), "{body}");
    };
    let again = json!({"retry": {"count": 1, "interval": LATE}});
    let unborn = create("/ok", LATE, "waits for its first turn", json!({}));
    let failed = create("/fail?n=1", "0s", "waits for its retry", again);
    let dead = create("/fail?n=1", "0s", "is a dead letter", json!({}));
    let stands_in = |topic: &str, id: &str| {
        let all = whole(&fixture, topic);
        all.iter().any(|rec| rec.header("x-delay-id").as_deref() == Some(id))
    };
    let tiers = HOLDS.map(|hold| fixture.names.tier(Millis(hold)));
    let is_in_a_tier = |id: &str| tiers.iter().any(|tier| stands_in(tier, id));
    for id in [&unborn, &failed] {
        eventually("it is in a tier", || if is_in_a_tier(id) { Ok(()) } else { Err(id.clone()) });
    }
    assert_eq!(api.end_of(&dead)["task_status"], "failed");
    let soon = create("/ok", SOON, "waits in memory", json!({}));
    is_shown(&unborn, "waits for its first turn");
    is_shown(&failed, "waits for its retry");
    is_shown(&dead, "is a dead letter");
    is_shown(&soon, "waits in memory");

    for (id, turn, body) in [
        (&unborn, 1, "waits for its first turn"),
        (&failed, 2, "waits for its retry"),
        (&soon, 1, "waits in memory"),
    ] {
        let due = api.task(id)["trigger_at"].clone();
        let asked = now_ms();
        let (status, told) = retry(&api, id);
        assert_eq!(status, 200, "{body}: {told}");
        let told = api.end_of(id);
        let state = [&told["task_status"], &told["attempts_total"], &told["failures"]];
        assert_eq!(state, [&json!("finished"), &json!(turn), &json!(turn - 1)], "{body}: {told}");
        // The time of one that was never dispatched is that of the retry.
        let at = told["trigger_at"].as_u64().expect("a time");
        let is_new = (asked..=now_ms()).contains(&at);
        assert_eq!((is_new, told["trigger_at"] == due), (turn == 1, turn != 1), "{body}: {told}");
        let calls = stub.calls_of(id);
        assert_eq!(turns(&calls), (1..=turn).collect::<Vec<_>>(), "{body}");
        assert!(calls.iter().all(|call| call.body == body.len()), "{body}: {calls:?}");
    }
    assert!(!is_in_a_tier(&soon), "it was in memory all the time");

    for lane in 0..i32::from(LANES) {
        fixture.delete_records(&fixture.names.dead(), lane, Offset::End);
    }
    assert_eq!(payload(&api, &dead), None, "its dead letter is gone");
    let (status, told) = retry(&api, &dead);
    assert_eq!((status, &told["code"]), (409, &json!("payload_gone")), "{told}");
    assert_eq!(turns(&stub.calls_of(&dead)), [1]);
    assert_eq!(api.task(&dead)["task_status"], "failed");
    process.stop_well();
}
