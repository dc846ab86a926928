//! Workers and owners of lanes that are killed, stand still, come and go while calls are open.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Api, fixture, launch, task, turns, with};
use crate::support::{
    Call, Endpoint, Fixture, Process, eventually, eventually_within, now_ms, patience, patient,
};

const TASKS: usize = 600;
const PROJECT: &str = "shop";
/// Requests that may be on their way at one moment: the connection of each has it, and no byte of it was sent.
const ON_THEIR_WAY: usize = 4;
/// A result that a worker has taken may not be committed yet when it dies, after so long.
const UNCOMMITTED_MS: u64 = 1_000;

/// Two workers that share the partitions; the first one owns the lanes and serves the API, too.
fn pair(fixture: &Fixture) -> (Process, Process) {
    let a = launch(fixture, "a", "lanes,worker,api").start();
    let b = launch(fixture, "b", "worker").start();
    share(&[&a, &b]);
    (a, b)
}

/// Partitions of tasks that the worker of a process has taken over last.
fn partitions(worker: &Process) -> usize {
    let log = worker.log();
    let taken = log.lines().rfind(|line| line.contains("worker has taken partitions over"));
    let count =
        taken.and_then(|line| line.split_once("partitions=")?.1.split(' ').next()?.parse().ok());
    count.unwrap_or_default()
}

/// Waits until each has partitions of the workers' group, and none has another's.
#[track_caller]
fn share(workers: &[&Process]) {
    eventually("all workers have partitions", || {
        let owned: Vec<usize> = workers.iter().map(|worker| partitions(worker)).collect();
        let all: usize = owned.iter().sum();
        let is_shared = all == usize::from(super::LANES) && !owned.contains(&0);
        if is_shared { Ok(()) } else { Err(format!("{owned:?}")) }
    });
}

/// Creates tasks that take 300 ms each, and waits until half of their calls have ended.
fn half(api: &Api, stub: &Endpoint) -> Vec<String> {
    let one = || task(PROJECT, stub, "/slow?ms=300", "1s");
    let ids = api.create_all((0..TASKS).map(|_| one()).collect());
    eventually("half of the calls have ended", || {
        let ended = stub.ended();
        if ended >= TASKS / 2 { Ok(()) } else { Err(format!("{ended}")) }
    });
    ids
}

/// The calls of each task.
fn by_task(calls: Vec<Call>) -> BTreeMap<String, Vec<Call>> {
    let mut found: BTreeMap<String, Vec<Call>> = BTreeMap::new();
    for call in calls {
        found.entry(call.task().to_owned()).or_default().push(call);
    }
    // A worker that stood still may send one late.
    found.values_mut().for_each(|of| of.sort_by_key(|call| call.turn));
    found
}

/// All are finished, and each was called; says which were called more than once.
#[track_caller]
fn check(api: &Api, stub: &Endpoint, ids: &[String], within: Duration) -> Vec<Vec<Call>> {
    let finished = api.wait_for(within, PROJECT, "finished", ids.len());
    assert!(finished.iter().all(|task| task["failures"] == 0), "{finished:?}");
    let calls = by_task(stub.calls());
    let lost: Vec<_> = ids.iter().filter(|id| !calls.contains_key(*id)).collect();
    assert!(lost.is_empty() && calls.len() == ids.len(), "never called: {lost:?}");
    for of in calls.values() {
        assert!(
            of.windows(2).all(|two| two[0].turn < two[1].turn),
            "a turn is called once: {of:?}"
        );
    }
    calls.into_values().filter(|of| of.len() > 1).collect()
}

#[test]
fn of_a_worker_that_is_killed_only_open_calls_are_made_again() {
    let fixture = fixture("tasks-killed");
    let (mut a, mut b) = pair(&fixture);
    let (api, stub) = (Api::of(&a), Endpoint::start());
    let ids = half(&api, &stub);
    let before = now_ms();
    b.kill();
    let (killed, began) = (now_ms(), Instant::now());
    let twice = check(&api, &stub, &ids, Duration::from_secs(30));
    let open = stub.calls().iter().filter(|call| call.was_open(before, killed)).count();
    println!(
        "{} of {TASKS} were called twice, {open} were open, all are finished {:?} after the kill",
        twice.len(),
        began.elapsed()
    );
    for of in &twice {
        assert_eq!(of.len(), 2, "{of:?}");
        let since = before - UNCOMMITTED_MS * u64::from(patience());
        assert!(of[0].was_open(since, killed), "it was open when the worker died: {of:?}");
        assert!(of[1].began > killed, "{of:?}");
    }
    assert!(!twice.is_empty(), "the kill came while calls were open");
    a.stop_well();
}

#[test]
fn a_worker_that_stood_still_makes_no_call_of_before() {
    let fixture = fixture("tasks-frozen");
    let mut a = launch(&fixture, "a", "lanes,worker,api").start();
    // It takes its time for each call, so that some of those that it has begun are not on their way when it freezes.
    let slow = launch(&fixture, "b", "worker").env("FAILPOINTS", "call_waits=sleep(20)");
    let mut b = slow.start();
    share(&[&a, &b]);
    let (api, stub) = (Api::of(&a), Endpoint::start());
    let ids = half(&api, &stub);
    let before = now_ms();
    b.freeze();
    let (frozen, began) = (now_ms(), Instant::now());
    // What it had is called by the other one meanwhile.
    api.wait_for(Duration::from_secs(30), PROJECT, "finished", ids.len());
    let awake = patient(Duration::from_secs(15));
    std::thread::sleep(awake.saturating_sub(began.elapsed()));
    let begun = stub.begun();
    b.thaw();
    std::thread::sleep(Duration::from_secs(4));
    // A request that was on its way when it froze arrives now. A call that it had begun, and whose request was not made yet, is
    // not sent any more.
    let late = stub.calls().split_off(begun);
    println!("{} calls were sent after it woke", late.len());
    assert!(late.len() <= ON_THEIR_WAY, "{} calls: {late:?}", late.len());
    let made_before = late.iter().all(|call| call.made <= frozen / 1_000 + 1);
    assert!(made_before, "a request was made after {frozen}: {late:?}");
    let last = |of: &Call| stub.calls_of(of.task()).iter().map(|call| call.turn).max();
    assert!(late.iter().all(|call| Some(call.turn) < last(call)), "an older turn: {late:?}");
    let twice = check(&api, &stub, &ids, Duration::from_secs(30));
    println!("{} of {TASKS} were called twice", twice.len());
    for of in &twice {
        let since = before - UNCOMMITTED_MS * u64::from(patience());
        let is_late = late.iter().any(|call| call.id == of[0].id);
        let was_open = of[0].was_open(since, frozen);
        assert!(is_late || was_open, "it was open when the worker froze: {of:?}");
    }
    // It is a worker again.
    share(&[&a, &b]);
    let more = api.create(&task("later", &stub, "/ok", "0s"));
    assert_eq!(api.end_of(&more)["task_status"], "finished");
    b.stop_well();
    a.stop_well();
}

#[test]
fn a_worker_that_comes_and_goes_has_no_task_called_twice() {
    let fixture = fixture("tasks-third");
    let (mut a, mut b) = pair(&fixture);
    let (api, stub) = (Api::of(&a), Endpoint::start());
    let ids = half(&api, &stub);
    let mut c = launch(&fixture, "c", "worker").spawn();
    eventually("it has partitions", || {
        if partitions(&c) > 0 { Ok(()) } else { Err("none".to_owned()) }
    });
    // It stops while it has calls open.
    let more = half_more(&api, &stub);
    c.stop_well();
    let all: Vec<String> = ids.into_iter().chain(more).collect();
    let twice = check(&api, &stub, &all, Duration::from_secs(30));
    assert!(twice.is_empty(), "{twice:?}");
    b.stop_well();
    a.stop_well();
}

/// The same again behind what is there.
fn half_more(api: &Api, stub: &Endpoint) -> Vec<String> {
    let begun = stub.ended();
    let one = || task(PROJECT, stub, "/slow?ms=300", "0s");
    let ids = api.create_all((0..TASKS / 2).map(|_| one()).collect());
    eventually("some of them were called", || {
        let ended = stub.ended() - begun;
        if ended >= TASKS / 4 { Ok(()) } else { Err(format!("{ended}")) }
    });
    ids
}

#[test]
fn a_retry_is_made_once_and_in_time_though_the_owner_of_its_lane_was_killed() {
    let fixture = fixture("tasks-owner");
    let mut worker = launch(&fixture, "w", "worker,api").spawn();
    let mut first = launch(&fixture, "a", "lanes").start();
    worker.wait_until_ready();
    let mut second = launch(&fixture, "b", "lanes").start();
    eventually("the lanes are shared", || {
        let own = [first.lanes(), second.lanes()];
        if own == [2, 2] { Ok(()) } else { Err(format!("{own:?}")) }
    });
    let (api, stub) = (Api::of(&worker), Endpoint::start());
    let retry = json!({"retry": {"count": 3, "interval": "1500ms"}});
    let one = || with(task(PROJECT, &stub, "/fail?n=1", "1s"), retry.clone());
    let ids = api.create_all((0..24).map(|_| one()).collect());
    // Their failures are known to the lanes, and they wait for their second call in the wheel.
    eventually_within(Duration::from_secs(20), "all have failed once", || {
        let all = api.list(&format!("project={PROJECT}"));
        let failed = all.iter().filter(|task| task["failures"] == 1).count();
        if failed == ids.len() { Ok(()) } else { Err(format!("{failed}")) }
    });
    let calls = stub.begun();
    first.kill();
    let killed = now_ms();
    assert_eq!(calls, ids.len(), "the kill came before the second calls");
    let finished = api.wait_for(Duration::from_secs(30), PROJECT, "finished", ids.len());
    assert!(finished.iter().all(|task| task["attempts_total"] == 2), "{finished:?}");
    let mut last = 0;
    for (id, calls) in by_task(stub.calls()) {
        assert_eq!(turns(&calls), [1, 2], "{id}: {calls:?}");
        let due = calls[0].ended.expect("it has ended") + 1_500;
        assert!(calls[1].began >= due, "{id}: {calls:?}");
        last = last.max(calls[1].began);
    }
    println!("the last second call began {} ms after the kill", last - killed);
    let most = patient(Duration::from_secs(12)).as_millis() as u64;
    assert!(last - killed < most, "{} ms after the kill", last - killed);
    second.stop_well();
    worker.stop_well();
}
