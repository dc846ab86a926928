//! Retries, polling, cancels, and services that misbehave.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Api, fixture, launch, task, turns, with};
use crate::support::{Call, Endpoint, Process, eventually, now_ms, patience, start_all};

/// How late a call may be on a machine that does little else, in milliseconds.
const LATE: u64 = 1_000;

/// Between two polling rounds a second apart, at most, in milliseconds.
const ROUND_MOST: u64 = 1_200;

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
    let between = gaps(&calls);
    println!("gaps between polling rounds: {between:?}");
    let most = ROUND_MOST * u64::from(patience());
    assert!(between.iter().all(|gap| (1_000..most).contains(gap)), "{between:?}");

    // What was cancelled is not called any more, long after its next call would have been due.
    assert_eq!(stub.calls_of(&unborn).len(), 0);
    assert_eq!([&slow, &broken].map(|id| stub.calls_of(id).len()), [1, 1]);
    process.stop_well();
}

#[test]
fn one_request_is_one_task_after_its_end_over_another_instance_and_after_a_restart() {
    let fixture = fixture("tasks-again");
    let of = |data: &str| launch(&fixture, data, "lanes,worker,api");
    let [mut a, mut b] = start_all(["a", "b"].map(of));
    let stub = Endpoint::start();
    let asked = |request: &str, target: &str| {
        with(task("shop", &stub, target, "0s"), json!({ "request_id": request }))
    };
    let requests = [asked("fine", "/ok"), asked("gone", "/410"), asked("cancelled", "/hang")];
    // It is cancelled before it is due.
    let requests = requests.map(|one| match one["request_id"].as_str() {
        Some("cancelled") => with(one, json!({"delay": "1h"})),
        _ => one,
    });
    let create = |process: &Process| {
        let api = Api::of(process);
        requests.iter().map(|one| api.create(one)).collect::<Vec<_>>()
    };
    let ids = create(&a);
    assert_eq!(Api::of(&b).cancel(&ids[2]), "cancelled");
    let ends = |process: &Process| {
        let api = Api::of(process);
        let of = |id: &String| {
            let end = api.end_of(id);
            ["task_status", "turn", "created_at", "ended_at"].map(|of| end[of].clone())
        };
        ids.iter().map(of).collect::<Vec<_>>()
    };
    let first = ends(&a);
    let status: Vec<_> = first.iter().map(|of| &of[0]).collect();
    assert_eq!(json!(status), json!(["finished", "failed", "cancelled"]));

    // What would come of it has come before something that was asked for later.
    let check = |process: &Process| {
        assert_eq!(create(process), ids, "the same tasks");
        let api = Api::of(process);
        let later = api.create_all(vec![task("shop", &stub, "/ok", "0s"); 16]);
        later.iter().for_each(|id| drop(api.end_of(id)));
        assert_eq!(ends(process), first, "nothing has changed");
        let calls: Vec<_> = ids.iter().map(|id| stub.calls_of(id).len()).collect();
        assert_eq!(calls, [1, 1, 0]);
    };
    check(&a);
    check(&b);
    b.stop_well();
    a.stop_well();
    // One that has its index, and one that has to read it again.
    let [mut a, mut c] = start_all(["a", "c"].map(of));
    check(&a);
    check(&c);
    c.stop_well();
    a.stop_well();
}

#[test]
fn a_cancel_says_that_it_is_too_late_or_not_decided_yet() {
    let fixture = fixture("tasks-late-cancel");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let failed = api.create(&task("shop", &stub, "/410", "0s"));
    assert_eq!(api.end_of(&failed)["task_status"], "failed");
    assert_eq!(api.cancel(&failed), "failed");
    assert_eq!(api.task(&failed)["task_status"], "failed");
    let (status, told) = api.answered("PUT", "/v1/projects/paused", Some(&json!({"paused": true})));
    assert_eq!(status, 200, "{told}");
    let soon = json!({"expires_at": now_ms() + 4_000});
    let expired = api.create(&with(task("paused", &stub, "/ok", "0s"), soon));
    assert_eq!(api.end_of(&expired)["task_status"], "expired");
    assert_eq!(api.cancel(&expired), "expired");

    let fine = api.create(&task("fine", &stub, "/slow?ms=3000", "0s"));
    let retry = json!({"retry": {"count": 5, "interval": 1}});
    let broken = with(task("broken", &stub, "/slow?ms=3000&status=500", "0s"), retry);
    let broken = api.create(&broken);
    let open = [fine, broken];
    eventually("the calls are open", || {
        let running = open.each_ref().map(|id| api.task(id)["task_status"].clone());
        if running.iter().all(|of| of == "running") { Ok(()) } else { Err(format!("{running:?}")) }
    });
    for id in &open {
        let path = format!("/v1/tasks/{id}");
        let (status, told) = api.answered("DELETE", &format!("{path}?wait=0s"), None);
        let want = json!({"task_id": id, "outcome": "pending", "again": path});
        assert_eq!((status, told), (202, want));
    }
    assert_eq!(stub.ended(), 1, "the calls were open");
    let ends = open.each_ref().map(|id| api.end_of(id)["task_status"].clone());
    assert_eq!(ends, [json!("finished"), json!("cancelled")]);
    let again = open.each_ref().map(|id| api.cancel(id));
    assert_eq!(again, ["finished", "stopped"], "it says what became of it");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(open.each_ref().map(|id| stub.calls_of(id).len()), [1, 1], "none follows");
    process.stop_well();
}
