//! Workers and owners of lanes that are killed, stand still, come and go while calls are open.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;
use waterclock::engine::task::scope::SERVICE_CONCURRENCY;
use waterclock::engine::{Millis, murmur2};

use super::{Api, LANES, fixture, launch, partitions, put_service, share, task, turns, with};
use crate::support::{
    Call, Endpoint, Fixture, Process, eventually, eventually_within, now_ms, patience, patient,
    start_all,
};

const TASKS: usize = 2_000;
const PROJECT: &str = "shop";
/// Requests that may be on their way at one moment: the connection of each has it, and no byte of it was sent.
const ON_THEIR_WAY: usize = 4;
/// Services that may have one call open, each in a project of its own; each partition serves as many of them.
const NARROW: usize = 8;
const NARROW_TASKS: usize = 120;
/// How long their calls take.
const NARROW_MS: u64 = 100;
/// Tasks whose calls take longer than a rebalance waits for them.
const LONG: usize = 12;
/// The session timeout, until which nobody knows that an owner of lanes is dead, and what the take-over takes besides.
const TAKEN_OVER: Duration = Duration::from_secs(6 + 4);
/// A result that a worker has taken may not be committed yet when it dies, after so long.
const UNCOMMITTED_MS: u64 = 1_000;

/// Two workers that share the partitions; the first one owns the lanes and serves the API, too.
fn pair(fixture: &Fixture) -> (Process, Process) {
    let [a, b] =
        start_all([launch(fixture, "a", "lanes,worker,api"), launch(fixture, "b", "worker")]);
    share(&[&a, &b]);
    (a, b)
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
    let last = twice.iter().map(|of| of[1].began).max().expect("calls were open at the kill");
    println!(
        "{} of {TASKS} were called twice, the last one {} ms after the kill; {open} were open; all are finished {:?} after it",
        twice.len(),
        last - killed,
        began.elapsed()
    );
    // Half of the partitions are its own, and lanes give each twice as many tasks as it may have open calls.
    let most = SERVICE_CONCURRENCY as usize;
    assert!(twice.len() <= most, "{} were called twice, {open} were open", twice.len());
    let most = patient(Duration::from_secs(10)).as_millis() as u64;
    assert!(last - killed < most, "called again {} ms after the kill", last - killed);
    for of in &twice {
        assert_eq!(of.len(), 2, "{of:?}");
        let since = before - UNCOMMITTED_MS * u64::from(patience());
        assert!(of[0].was_open(since, killed), "it was open when the worker died: {of:?}");
        assert!(of[1].began > killed, "{of:?}");
    }
    a.stop_well();
}

#[test]
fn a_worker_that_stood_still_makes_no_call_of_before() {
    let fixture = fixture("tasks-frozen");
    let mut a = launch(&fixture, "a", "lanes,worker,api").start();
    // It takes its time for each call, so that some of those that it has begun are not on their way when it freezes. That holds up
    // no call that has ended: its result would be committed late.
    let slow = launch(&fixture, "b", "worker").env("FAILPOINTS", "call_waits=return(100)");
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
fn a_service_that_may_have_one_call_open_never_has_two_while_workers_come_and_go() {
    let fixture = fixture("tasks-narrow");
    let (mut a, mut b) = pair(&fixture);
    let (api, stub) = (Api::of(&a), Endpoint::start());
    // By the hash that says at which partition a project begins.
    let names = (0..100).map(|n| format!("narrow-{n}"));
    let (mut projects, mut begin_at) = (Vec::new(), [0; LANES as usize]);
    for name in names {
        let count = &mut begin_at[usize::from(murmur2::partition(name.as_bytes(), LANES))];
        if *count < NARROW / usize::from(LANES) {
            *count += 1;
            projects.push(name);
        }
    }
    assert_eq!(projects.len(), NARROW, "each partition serves some: {begin_at:?}");
    for (n, project) in projects.iter().enumerate() {
        let service = json!({"address": stub.url(""), "concurrency": 1});
        put_service(&api, project, "narrow", &service);
        let one = json!({
            "project": project, "group": "g", "delay": "3s",
            "service": "narrow", "path": format!("/slow?ms={NARROW_MS}&of={n}"),
        });
        api.create_all(vec![one; NARROW_TASKS]);
    }
    let all = NARROW * NARROW_TASKS;
    let ended = |count: usize| {
        eventually(&format!("{count} calls have ended"), || {
            let ended = stub.ended();
            if ended >= count { Ok(()) } else { Err(format!("{ended}")) }
        });
    };
    ended(all / 5);
    let mut c = launch(&fixture, "c", "worker").spawn();
    share(&[&a, &b, &c]);
    ended(stub.ended() + all / 10);
    b.stop_well();
    share(&[&a, &c]);
    let left = all - stub.begun();
    assert!(left > all / 20, "only {left} were left when the last worker had gone");
    for project in &projects {
        let tasks = api.wait_for(Duration::from_secs(60), project, "finished", NARROW_TASKS);
        assert!(tasks.iter().all(|task| task["failures"] == 0), "{tasks:?}");
    }
    let mut of_service: BTreeMap<String, Vec<Call>> = BTreeMap::new();
    for (id, calls) in by_task(stub.calls()) {
        assert_eq!(calls.len(), 1, "{id} was called twice: {calls:?}");
        of_service.entry(calls[0].target.clone()).or_default().extend(calls);
    }
    assert_eq!(of_service.len(), NARROW);
    for calls in of_service.values_mut() {
        assert_eq!(calls.len(), NARROW_TASKS);
        calls.sort_by_key(|call| call.began);
        // Its answer was not written before.
        let two = calls.windows(2).find(|two| two[1].began < two[0].began + NARROW_MS);
        assert_eq!(two.map(|two| format!("{two:?}")), None, "two were open");
    }
    c.stop_well();
    a.stop_well();
}

#[test]
fn tasks_that_five_rebalances_cut_off_are_finished_without_a_failure() {
    let fixture = fixture("tasks-cut");
    let (mut a, mut b) = pair(&fixture);
    let (api, stub) = (Api::of(&a), Endpoint::start());
    let one = with(task(PROJECT, &stub, "/slow?ms=20000", "0s"), json!({"timeout": "1m"}));
    let ids = api.create_all(vec![one; LONG]);
    let all_run = || {
        let filter = format!("project={PROJECT}&status=running");
        eventually("all calls are open", || {
            let running = api.list(&filter).len();
            if running == ids.len() { Ok(()) } else { Err(format!("{running}")) }
        });
    };
    let mut third: Option<Process> = None;
    for _ in 0..5 {
        all_run();
        match third.take() {
            None => {
                let c = launch(&fixture, "c", "worker").spawn();
                share(&[&a, &b, &c]);
                third = Some(c);
            }
            Some(mut c) => {
                c.stop_well();
                share(&[&a, &b]);
            }
        }
    }
    let finished = api.wait_for(Duration::from_secs(60), PROJECT, "finished", ids.len());
    let calls = by_task(stub.calls());
    println!("calls of each: {:?}", calls.values().map(Vec::len).collect::<Vec<_>>());
    for task in &finished {
        let id = task["task_id"].as_str().expect("an id");
        let told = ["failures", "attempts_total"].map(|of| task[of].clone());
        assert_eq!(told, [json!(0), json!(1)], "only the call that ended counts: {task}");
        let turns = turns(&calls[id]);
        assert!(turns.len() > 5, "each rebalance cut its call off: {turns:?}");
        assert!(turns.windows(2).all(|two| two[0] < two[1]), "a turn is called once: {turns:?}");
    }
    third.expect("it was started last").stop_well();
    b.stop_well();
    a.stop_well();
}

#[test]
fn a_call_that_lasts_longer_than_a_stop_may_is_made_again_by_another_worker() {
    let fixture = fixture("tasks-drain");
    let [mut a, mut b] =
        start_all([launch(&fixture, "a", "lanes,api"), launch(&fixture, "b", "worker")]);
    let (api, stub) = (Api::of(&a), Endpoint::start());
    let one = with(task(PROJECT, &stub, "/slow?ms=20000", "0s"), json!({"timeout": "1m"}));
    let ids = api.create_all(vec![one; LONG]);
    let are_open = |count: usize| {
        eventually("all calls are open", || {
            let begun = stub.begun();
            if begun == count { Ok(()) } else { Err(format!("{begun}")) }
        });
    };
    are_open(LONG);
    let (code, took) = b.stop();
    println!("the worker has ended after {took:?}");
    assert_eq!(code, Some(0));
    // Of the 8 s that a stop may take, the last ones are for what is to be written.
    assert!(took >= Duration::from_secs(4), "it waited for its calls: {took:?}");
    assert!(took < patient(Duration::from_secs(8)), "and no longer than it may: {took:?}");
    assert_eq!(stub.ended(), 0, "no call had ended");
    let mut c = launch(&fixture, "c", "worker").spawn();
    are_open(2 * LONG);
    let finished = api.wait_for(Duration::from_secs(30), PROJECT, "finished", ids.len());
    for task in &finished {
        let told = ["failures", "attempts_total"].map(|of| task[of].clone());
        assert_eq!(told, [json!(0), json!(1)], "{task}");
    }
    for (id, calls) in by_task(stub.calls()) {
        assert_eq!(turns(&calls), [1, 2], "{id}: {calls:?}");
    }
    c.stop_well();
    a.stop_well();
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
    let most = patient(TAKEN_OVER).as_millis() as u64;
    assert!(last - killed < most, "{} ms after the kill", last - killed);
    second.stop_well();
    worker.stop_well();
}

/// How long a lane looks for a timer that is overdue, before it is lost: 20 s by the fail point, and its looks.
const LOOKED_FOR: Duration = Duration::from_secs(45);

/// A task that has failed once waits for its retry where nobody looks for what is overdue.
#[test]
fn a_task_that_waits_long_for_its_retry_is_not_taken_for_lost() {
    let fixture = Fixture::with("tasks-long-retry", |request| {
        request.lanes = Some(LANES);
        request.holds = Some([1_000, 660_000].map(Millis).to_vec());
    });
    let lost_soon = launch(&fixture, "a", "lanes,worker,api").env("FAILPOINTS", "lost_soon=return");
    let mut process = lost_soon.start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let retry = json!({"retry": {"count": 1, "interval": "15m"}});
    let poll = json!({"poll": {"interval": "15m", "rounds": 2}});
    let ids = [("/fail?n=1", retry), ("/notyet?n=1", poll)]
        .map(|(path, more)| api.create(&with(task(PROJECT, &stub, path, "1s"), more)));
    eventually("both wait again", || {
        let told = ids.each_ref().map(|id| api.task(id));
        let waits = told.iter().all(|task| task["turn"] == 1 && task["task_status"] == "delay");
        if waits { Ok(()) } else { Err(format!("{told:?}")) }
    });
    std::thread::sleep(LOOKED_FOR);
    for id in &ids {
        let task = api.task(id);
        assert_eq!(task["task_status"], "delay", "{task}");
        let (status, told) = api.answered("POST", &format!("/v1/tasks/{id}:retry"), None);
        assert_eq!(status, 200, "{told}");
        assert_eq!(api.end_of(id)["task_status"], "finished");
        assert_eq!(stub.calls_of(id).len(), 2);
    }
    assert!(process.metric("waterclock_timers_lost_total") < 0.5);
    process.stop_well();
}
