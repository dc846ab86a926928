//! Retries, polling, cancels, and services that misbehave.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Api, fixture, launch, task, turns, with};
use crate::support::{Call, Endpoint, eventually, now_ms, patience};

/// How late a call may be on a machine that does little else, in milliseconds.
const LATE: u64 = 1_000;

fn late() -> u64 {
    LATE * u64::from(patience())
}

fn number(of: &Value) -> u64 {
    of.as_u64().unwrap_or_else(|| panic!("{of} is no number"))
}

/// Between the begin of each call and the end of the one before it.
fn gaps(calls: &[Call]) -> Vec<u64> {
    let ended = |call: &Call| call.ended.expect("it has ended");
    calls.windows(2).map(|two| two[1].began - ended(&two[0])).collect()
}

#[test]
fn a_task_is_called_until_it_succeeds_or_is_cancelled() {
    let fixture = fixture("tasks-calls");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (&Api::of(&process), Endpoint::start());

    let asked = json!({"request_id": "a", "retry": {"count": 3, "interval": 1}});
    let retried = with(task("shop", &stub, "/fail?n=2", "2s"), asked);
    let first = api.create(&retried);
    assert_eq!(api.create(&retried), first, "one request is one task");
    let polled = json!({"poll": {"interval": "1s", "rounds": 10}});
    let polled = api.create(&with(task("shop", &stub, "/notyet?n=5", "1s"), polled));
    let slow = api.create(&task("slow", &stub, "/slow?ms=2500", "0s"));
    let retry = json!({"retry": {"count": 5, "interval": 1}});
    let broken = with(task("broken", &stub, "/slow?ms=2500&status=500", "0s"), retry);
    let broken = api.create(&broken);

    // While their calls are open.
    let are_open = || {
        let open = [&slow, &broken].map(|id| stub.calls_of(id).len());
        if open == [1, 1] { Ok(()) } else { Err(format!("{open:?}")) }
    };
    eventually("the calls are open", are_open);
    std::thread::scope(|scope| {
        let cancels = [&slow, &broken].map(|id| scope.spawn(move || api.cancel(id)));
        let outcomes = cancels.map(|cancel| cancel.join().expect("it is answered"));
        assert_eq!(outcomes, ["finished", "stopped"]);
    });
    let outcomes = [&slow, &broken].map(|id| api.task(id)["task_status"].clone());
    assert_eq!(outcomes, ["finished", "cancelled"]);

    // A second before it is due.
    let unborn = api.create(&task("unborn", &stub, "/ok", "3s"));
    let due = number(&api.task(&unborn)["trigger_at"]);
    while now_ms() + 1_000 < due {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(api.cancel(&unborn), "cancelled");
    let seen = api.task(&unborn);
    assert_eq!((&seen["task_status"], &seen["turn"]), (&json!("cancelled"), &json!(0)));

    let ended = api.end_of(&first);
    assert_eq!(ended["task_status"], "finished", "{ended}");
    let attempts = ended["attempts"].as_array().expect("attempts");
    let told: Vec<_> = attempts.iter().map(|one| (&one["turn"], &one["outcome"])).collect();
    let want = json!([[1, "failed"], [2, "failed"], [3, "finished"]]);
    assert_eq!(json!(told), want, "{ended}");
    assert_eq!((&ended["attempts_total"], &ended["request_id"]), (&json!(3), &json!("a")));
    let calls = stub.calls_of(&first);
    assert_eq!(turns(&calls), [1, 2, 3]);
    assert_eq!(calls.iter().map(|call| call.attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(calls.iter().all(|call| call.id == first), "one id: {calls:?}");
    let due = number(&ended["trigger_at"]);
    assert!((due..due + late()).contains(&calls[0].began), "due {due}: {calls:?}");
    let between = gaps(&calls);
    assert!(between.iter().all(|gap| (1_000..1_000 + late()).contains(gap)), "{between:?}");

    let ended = api.end_of(&polled);
    let told = ["task_status", "rounds", "attempts_total", "failures"].map(|of| ended[of].clone());
    assert_eq!(told, [json!("finished"), json!(5), json!(1), json!(0)], "{ended}");
    let calls = stub.calls_of(&polled);
    assert_eq!(turns(&calls), [1, 2, 3, 4, 5, 6]);
    let ids: Vec<_> = calls.iter().map(|call| call.id.strip_prefix(&*polled)).collect();
    assert_eq!(ids, ["", ".r1", ".r2", ".r3", ".r4", ".r5"].map(Some));
    let mut between = gaps(&calls);
    println!("gaps between polling rounds: {between:?}");
    between.sort_unstable();
    assert!(between[0] >= 1_000 && between[2] < 1_000 + late() / 5, "{between:?}");

    // What was cancelled is not called any more, long after its next call would have been due.
    assert_eq!(stub.calls_of(&unborn).len(), 0);
    assert_eq!([&slow, &broken].map(|id| stub.calls_of(id).len()), [1, 1]);
    process.stop_well();
}
