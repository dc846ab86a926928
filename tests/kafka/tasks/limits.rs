//! Projects that are paused, and projects that are slow.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Api, fixture, launch, task, with};
use crate::support::{Endpoint, eventually_within, now_ms, patient};

/// More than the lanes keep in memory for one service.
const PAUSED: usize = 1_000;
const FAST: usize = 150;

#[test]
fn of_a_paused_project_nothing_is_called_until_it_goes_on() {
    let fixture = fixture("tasks-paused");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let (status, told) = api.answered("POST", "/v1/projects/shop:pause", None);
    assert_eq!(status, 200, "{told}");
    // It is in force everywhere within two seconds.
    let ids = api.create_all((0..PAUSED).map(|_| task("shop", &stub, "/ok", "3s")).collect());
    let waiting = eventually_within(Duration::from_secs(30), "all are ready", || {
        let ready = api.list("project=shop&status=ready");
        if ready.len() == PAUSED { Ok(ready) } else { Err(format!("{} are ready", ready.len())) }
    });
    let waits_for: BTreeSet<_> = waiting.iter().map(|task| task["waits_for"].as_str()).collect();
    assert_eq!(waits_for, BTreeSet::from([Some("paused")]));
    assert_eq!(api.cancel(&ids[0]), "cancelled");
    // Another project is called meanwhile.
    let other = api.create(&task("other", &stub, "/ok", "0s"));
    assert_eq!(api.end_of(&other)["task_status"], "finished");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(stub.begun(), 1, "nothing of the paused project was called");
    assert!(process.metric("waterclock_tasks_put_off_total") > 0.0, "memory was not enough");

    let (status, told) = api.answered("POST", "/v1/projects/shop:resume", None);
    assert_eq!(status, 200, "{told}");
    let resumed = Instant::now();
    api.wait_for(Duration::from_secs(60), "shop", "finished", PAUSED - 1);
    println!("all were called {:?} after the pause ended", resumed.elapsed());
    let called: BTreeSet<_> = stub.calls().iter().map(|call| call.task().to_owned()).collect();
    assert!(!called.contains(&ids[0]) && called.len() == PAUSED, "{}", called.len());
    assert_eq!(stub.begun(), PAUSED, "each once");
    assert_eq!(api.task(&ids[0])["task_status"], "cancelled");
    process.stop_well();
}

/// How late the calls of a fast project began, in milliseconds: all but one of a hundred were quicker.
fn p99(api: &Api, stub: &Endpoint, project: &str) -> u64 {
    let mut late = Vec::new();
    // Spread over five seconds.
    for n in 0..FAST {
        let due = now_ms() + 1_000 + (n * 5_000 / FAST) as u64;
        let asked =
            json!({"project": project, "group": "g", "url": stub.url("/ok"), "trigger_at": due});
        late.push((api.create(&asked), due));
    }
    api.wait_for(Duration::from_secs(60), project, "finished", FAST);
    let begins = |(id, due): (String, u64)| {
        let calls = stub.calls_of(&id);
        assert_eq!(calls.len(), 1, "{calls:?}");
        assert!(calls[0].began >= due, "{calls:?}, due at {due}");
        calls[0].began - due
    };
    let mut late: Vec<u64> = late.into_iter().map(begins).collect();
    late.sort_unstable();
    late[FAST * 99 / 100 - 1]
}

#[test]
fn a_slow_project_does_not_hold_up_a_fast_one() {
    let fixture = fixture("tasks-slow");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub, fast) = (Api::of(&process), Endpoint::start(), Endpoint::start());
    let alone = p99(&api, &fast, "alone");
    let hang = json!({"timeout": "5m"});
    for _ in 0..2 {
        let one = || with(task("slow", &stub, "/hang", "0s"), hang.clone());
        api.create_all((0..1_000).map(|_| one()).collect());
    }
    let large = with(hang, json!({"body": "x".repeat(1 << 20)}));
    for _ in 0..60 {
        api.create(&with(task("slow", &stub, "/hang?large", "0s"), large.clone()));
    }
    eventually_within(Duration::from_secs(30), "the slow project has calls open", || {
        let open = stub.begun();
        if open >= 32 { Ok(()) } else { Err(format!("{open}")) }
    });
    let beside = p99(&api, &fast, "beside");
    println!("p99 alone: {alone} ms; beside a slow project: {beside} ms");
    let most = patient(Duration::from_secs(1)).as_millis() as u64;
    assert!(beside < most.max(2 * alone), "{beside} ms, and {alone} ms alone");
    assert_eq!(stub.ended(), 0, "the slow project was slow all the time");
    // Its calls are open: it is not waited for.
    process.kill();
}
