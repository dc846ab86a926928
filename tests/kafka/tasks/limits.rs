//! Projects that are paused, and projects that are slow; rates, and services that are away.

mod alone;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use waterclock::engine::Millis;

use super::{Api, LANES, command, fixture, launch, partitions, put_service, share, task, with};
use crate::support::{
    Endpoint, Fixture, PATIENCE, Process, eventually, eventually_within, now_ms, patience, patient,
};

/// More than the lanes keep in memory for one service.
const PAUSED: usize = 1_000;
const PAUSE: Duration = Duration::from_secs(60);
/// Tasks of a service that is paused while it is called.
const FLOWING: usize = 1_000;
/// Calls of it in a second, at least. Its rate is 100.
const FLOW: usize = 60;
/// Calls in a second.
const RATE: usize = 5;
const RATED: usize = 200;
/// Tasks of a service that is away.
const AWAY: usize = 40;
/// So many calls of a service fail before its breaker opens.
const FAILURES: usize = 10;

#[test]
fn of_a_paused_project_nothing_is_called_until_it_goes_on() {
    let fixture = fixture("tasks-paused");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let (status, told) = api.answered("POST", "/v1/projects/shop:pause", None);
    assert_eq!(status, 200, "{told}");
    let paused = Instant::now();
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
    std::thread::sleep(PAUSE.saturating_sub(paused.elapsed()));
    assert_eq!(stub.begun(), 1, "nothing of the paused project was called");
    assert_eq!(api.list("project=shop&status=ready").len(), PAUSED - 1, "they wait all the time");
    assert!(process.metric("waterclock_tasks_put_off_total") > 0.0, "memory was not enough");

    let (status, told) = api.answered("POST", "/v1/projects/shop:resume", None);
    assert_eq!(status, 200, "{told}");
    let resumed = now_ms();
    api.wait_for(Duration::from_secs(90), "shop", "finished", PAUSED - 1);
    let last = stub.calls().iter().map(|call| call.began).max().expect("calls") - resumed;
    println!("the last call began {last} ms after the pause ended");
    let most = patient(Duration::from_secs(60)).as_millis() as u64;
    assert!(last < most, "the last call began {last} ms after the pause ended");
    let called: BTreeSet<_> = stub.calls().iter().map(|call| call.task().to_owned()).collect();
    assert!(!called.contains(&ids[0]) && called.len() == PAUSED, "{}", called.len());
    assert_eq!(stub.begun(), PAUSED, "each once");
    assert_eq!(api.task(&ids[0])["task_status"], "cancelled");
    process.stop_well();
}

/// What is put off goes to longer tiers, the longer it is blocked.
fn with_longer_tiers(test: &str) -> Fixture {
    Fixture::with(test, |request| {
        request.lanes = Some(LANES);
        request.holds = Some([1, 2, 5, 10, 30, 60, 300, 600].map(|of| Millis(of * 1_000)).to_vec());
    })
}

#[test]
fn after_a_service_hung_its_large_tasks_are_called_within_a_quarter_of_that_time() {
    const HUNG: Duration = Duration::from_secs(40);
    let fixture = with_longer_tiers("tasks-hung");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let service = json!({"address": stub.url(""), "concurrency": 2, "timeout": "5m"});
    put_service(&api, "shop", "billing", &service);
    let one = json!({
        "project": "shop", "group": "g", "delay": "1s", "service": "billing", "path": "/stuck", "body": "x".repeat(300_000),
    });
    for _ in 0..24 {
        api.create(&one);
    }
    eventually("calls are open", || if stub.begun() > 0 { Ok(()) } else { Err("none".to_owned()) });
    std::thread::sleep(HUNG);
    assert!(stub.begun() < 12, "most of them wait in tiers");
    stub.free();
    let freed = now_ms();
    api.wait_for(Duration::from_secs(120), "shop", "finished", 24);
    let last = stub.calls().iter().map(|call| call.began.saturating_sub(freed)).max();
    println!("the last call began {last:?} ms after the service was free");
    let most = HUNG / 4 + patient(Duration::from_secs(10));
    assert!(last < Some(most.as_millis() as u64), "{last:?} ms");
    process.stop_well();
}

/// Pauses with this command what is called, and has it go on; says how long after the answer the last call began.
#[track_caller]
fn pause_in_flow(process: &Process, stub: &Endpoint, of: [&str; 3]) {
    let [what, project, service] = of;
    let act = |action: &str| {
        let words = [what, action, project, service];
        let ended = command(process, words.strip_suffix(&[""]).unwrap_or(&words));
        assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
    };
    eventually("it is called all the time", || {
        let since = now_ms() - 1_000;
        let calls = stub.calls().iter().filter(|call| call.began > since).count();
        if calls >= FLOW { Ok(()) } else { Err(format!("{calls} calls in a second")) }
    });
    act("pause");
    let answered = now_ms();
    let most = patient(Duration::from_secs(2));
    std::thread::sleep(most + Duration::from_secs(3));
    let calls = stub.calls();
    let last = calls.iter().map(|call| call.began).max().expect("calls");
    let late = last.saturating_sub(answered);
    println!("{what}: the last of {} calls began {late} ms after the answer", calls.len());
    assert!(late < most.as_millis() as u64, "{late} ms after the answer");
    assert!(calls.len() < FLOWING - FLOW, "there was nothing left to call");
    act("resume");
}

#[test]
fn a_pause_stops_what_is_called_all_the_time_within_two_seconds() {
    let fixture = fixture("tasks-flow");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let service = json!({"address": stub.url(""), "concurrency": 64, "rate": 100});
    put_service(&api, "shop", "billing", &service);
    let one = json!({
        "project": "shop", "group": "g", "delay": "1s", "service": "billing", "path": "/slow?ms=50",
    });
    let ids = api.create_all(vec![one; FLOWING]);
    pause_in_flow(&process, &stub, ["service", "shop", "billing"]);
    pause_in_flow(&process, &stub, ["project", "shop", ""]);
    api.wait_for(Duration::from_secs(60), "shop", "finished", FLOWING);
    let called: BTreeSet<_> = stub.calls().iter().map(|call| call.task().to_owned()).collect();
    assert_eq!(called, ids.into_iter().collect());
    assert_eq!(stub.begun(), FLOWING, "each once");
    process.stop_well();
}

/// Checks that calls of a project come at [`RATE`] while partitions move. `limit` puts it, with this burst, and says what tasks call.
#[track_caller]
fn rate_is_reached(test: &str, burst: usize, limit: impl Fn(&Api, &Endpoint) -> Value) {
    let fixture = fixture(test);
    let mut a = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&a), Endpoint::start());
    // The limit is in force everywhere within two seconds.
    let one = json!({"project": "shop", "group": "g", "delay": "3s"});
    api.create_all(vec![with(one, limit(&api, &stub)); RATED]);
    let begun = |count: usize| {
        // With fewer partitions than lanes, one has the tasks of two lanes, and is the last to end.
        eventually_within(2 * PATIENCE, &format!("{count} calls have begun"), || {
            let begun = stub.begun();
            if begun >= count { Ok(()) } else { Err(format!("{begun}")) }
        });
    };
    begun(60);
    let mut b = launch(&fixture, "b", "worker").spawn();
    share(&[&a, &b]);
    begun(120);
    b.stop_well();
    begun(RATED);
    api.wait_for(Duration::from_secs(30), "shop", "finished", RATED);
    assert_eq!(partitions(&a), usize::from(LANES), "it has all again");
    let mut calls: Vec<u64> = stub.calls().iter().map(|call| call.began).collect();
    calls.sort_unstable();
    assert_eq!(calls.len(), RATED, "each once");
    let behind = |from: u64| calls.iter().filter(|at| (from..from + 10_000).contains(at)).count();
    let most = calls.iter().map(|from| behind(*from)).max().expect("calls");
    let took = calls[59] - calls[0];
    println!("{most} calls in 10 s at most; the first 60 in {took} ms");
    assert!(most <= 10 * RATE + burst + 1, "{most} calls in 10 s");
    assert!(took < 12_000 + 2_000 * u64::from(patience()), "the first 60 took {took} ms");
    a.stop_well();
}

#[test]
fn a_rate_is_reached_and_kept_while_partitions_move() {
    // Its burst is the rate of one second.
    rate_is_reached("tasks-rate", RATE, |api, stub| {
        let service = json!({"address": stub.url(""), "rate": RATE});
        put_service(api, "shop", "billing", &service);
        json!({"service": "billing", "path": "/ok"})
    });
}

#[test]
fn a_rate_of_a_project_is_reached_and_kept_while_partitions_move() {
    const BURST: usize = 3;
    rate_is_reached("tasks-project-rate", BURST, |api, stub| {
        let limits = json!({"rate": RATE, "burst": BURST});
        let (status, told) = api.answered("PUT", "/v1/projects/shop", Some(&limits));
        assert_eq!(status, 200, "{told}");
        json!({ "url": stub.url("/ok") })
    });
}

#[test]
fn an_open_breaker_keeps_tasks_back_and_takes_no_attempt_of_theirs() {
    let fixture = fixture("tasks-breaker");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    // All of its calls are in one partition, and so behind one breaker.
    let service = |address: String| json!({"address": address, "concurrency": 1});
    put_service(&api, "shop", "billing", &service(stub.url("/away")));
    let one = json!({
        "project": "shop", "group": "g", "delay": "1s", "service": "billing", "path": "/ok",
        "retry": {"count": 9, "interval": 1, "backoff": "fixed"},
    });
    let ids = api.create_all(vec![one; AWAY]);
    let untried = eventually("the breaker has sent tasks back that were never called", || {
        let all = api.list("project=shop&status=ready");
        let held = all.into_iter().filter(|task| task["waits_for"] == "breaker");
        let held: Vec<_> = held.filter(|task| task["attempts_total"] == 0).collect();
        if held.len() >= FAILURES { Ok(held) } else { Err(format!("{} are", held.len())) }
    });
    assert!(untried.iter().all(|task| task["failures"] == 0 && task["turn"] != 0), "{untried:?}");
    // After 1 s, 2 s more, 4 s more it lets one call through.
    std::thread::sleep(Duration::from_secs(8));
    let calls = stub.begun();
    println!("{calls} calls failed in the first eight seconds");
    assert!((FAILURES..=FAILURES + 5).contains(&calls), "{calls}");

    put_service(&api, "shop", "billing", &service(stub.url("")));
    let finished = api.wait_for(Duration::from_secs(60), "shop", "finished", ids.len());
    for task in &finished {
        let id = task["task_id"].as_str().expect("an id");
        let calls = stub.calls_of(id);
        let failed = calls.iter().filter(|call| call.target != "/ok").count();
        let told = ["failures", "attempts_total"].map(|of| task[of].clone());
        assert_eq!((told, calls.len()), ([json!(failed), json!(failed + 1)], failed + 1), "{task}");
    }
    process.stop_well();
}
