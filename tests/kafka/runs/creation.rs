//! What takes its time: shards are created; meanwhile the owner of the lane dies or stands still, a worker dies, or the run is cancelled.

use std::sync::mpsc::{self, TryRecvError};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::json;
use waterclock::engine::task::id::TaskId;

use super::calls::{by_shard, called_again};
use super::executors::{Crew, What, Work};
use super::{
    books, call, check_finished, count, create, end_of, get, run_for, run_of, shards, status, until,
};
use crate::support::tasks::Api;
use crate::support::{
    Fixture, Launch, Log, PATIENCE, Process, Rec, eventually, eventually_within, now_ms, patient,
    start_all,
};
use crate::tasks::{fixture, has_all_lanes, launch, share, share_lanes};

/// Thousands of shards are over within.
const LONG: Duration = Duration::from_secs(240);
/// How often the test tries to be there while shards are created.
const TRIES: usize = 5;
/// Bytes of a body. Shards are created a MiB at a time, so a run of some has several transactions.
const LARGE: usize = 48 << 10;

/// A process that owns lanes, and one that does all else.
#[track_caller]
fn beside_a_server(fixture: &Fixture, owner: Launch<'_>) -> [Process; 2] {
    start_all([owner, launch(fixture, "api", "worker,api")])
}

/// The same. Between two transactions there is time to kill or to stop the owner.
#[track_caller]
fn slow_owner(fixture: &Fixture) -> [Process; 2] {
    let slow = launch(fixture, "a", "lanes").env("FAILPOINTS", "before_commit=sleep(500)");
    beside_a_server(fixture, slow)
}

#[test]
fn an_owner_that_dies_while_it_creates_shards_leaves_none_out_and_makes_none_twice() {
    const SHARDS: u32 = 2_000;
    let fixture = fixture("runs-created-killed");
    let [mut owner, mut server] = slow_owner(&fixture);
    let (api, stub) = books(&server, json!({}));
    let run = run_of(SHARDS, call("/ok", json!({})), json!({"delay": "5s"}));
    let id = create(&api, &run);
    let shown = until(&api, &id, LONG, "has its first shards", |run| count_or_0(run) > 0);
    owner.kill();
    let created = count(&shown, "created");
    println!("{created} of {SHARDS} shards were created when the owner was killed");
    assert!(created < u64::from(SHARDS), "the kill came in the middle: {shown}");
    let mut owner = launch(&fixture, "b", "lanes").start();
    end_of(&api, &id, LONG);
    check_finished(&api, &id, SHARDS);
    let calls = by_shard(stub.calls(), SHARDS);
    let again = calls.values().filter(|calls| calls.len() > 1).count();
    assert_eq!(again, 0, "no worker died: no call is made twice");
    owner.stop_well();
    server.stop_well();
}

/// How many shards there are; 0 before there are counts.
fn count_or_0(run: &serde_json::Value) -> u64 {
    run["counts"]["created"].as_u64().unwrap_or_default()
}

/// Which shard of this run is created by a record of the intake.
fn created_by(rec: &Rec, run: &str) -> Option<u32> {
    rec.header("x-delay-task")?;
    let id = TaskId::parse(&rec.header("x-delay-id")?).ok()?;
    let (of, _, index) = id.as_shard()?;
    (of.as_str() == run).then_some(index)
}

#[test]
fn an_owner_that_stands_still_while_it_creates_shards_makes_none_twice_when_it_wakes() {
    const SHARDS: u32 = 120;
    let fixture = fixture("runs-created-frozen");
    let [mut owner, mut server] = slow_owner(&fixture);
    // It is read all the while: lanes delete what they have read.
    let mut intake = Log::open(&fixture, &fixture.names.intake());
    let (is_open, over) = mpsc::channel::<()>();
    let reading = spawn(move || {
        while over.try_recv() == Err(TryRecvError::Empty) {
            intake.read_on(Duration::from_millis(200));
        }
        intake.seen
    });
    let (api, stub) = books(&server, json!({"concurrency": 16}));
    let task = call("/slow?ms=200", json!({"body": "x".repeat(LARGE)}));
    let id = create(&api, &run_of(SHARDS, task, json!({})));
    let shown = until(&api, &id, LONG, "has its first shards", |run| count_or_0(run) > 0);
    owner.freeze();
    let created = count(&shown, "created");
    println!("{created} of {SHARDS} shards were created when the owner stood still");
    assert!(created < u64::from(SHARDS), "that came in the middle: {shown}");
    let mut other = launch(&fixture, "b", "lanes").start();
    has_all_lanes(&other);
    owner.thaw();
    share_lanes([&owner, &other]);
    end_of(&api, &id, LONG);
    check_finished(&api, &id, SHARDS);
    for calls in by_shard(stub.calls(), SHARDS).values() {
        assert_eq!(calls.len(), 1, "no worker stood still: {calls:?}");
    }
    drop(is_open);
    let submitted = reading.join().expect("it reads");
    let mut indices: Vec<u32> = submitted.iter().filter_map(|rec| created_by(rec, &id)).collect();
    indices.sort_unstable();
    assert_eq!(indices, (0..SHARDS).collect::<Vec<_>>(), "each is created once");
    owner.stop_well();
    other.stop_well();
    server.stop_well();
}

#[test]
fn a_run_outlives_workers_that_die_and_stand_still_and_come_from_its_first_shards_on() {
    const SHARDS: u32 = 120;
    let fixture = fixture("runs-created-workers");
    // Between two transactions there is time to kill a worker.
    let slow = launch(&fixture, "a", "lanes,api").env("FAILPOINTS", "before_commit=sleep(300)");
    let mut owner = slow.start();
    let [mut dies, first] =
        start_all([launch(&fixture, "b", "worker"), launch(&fixture, "c", "worker")]);
    share(&[&dies, &first]);
    let (api, stub) = books(&owner, json!({"concurrency": 8}));
    let task = call("/slow?ms=800", json!({"body": "x".repeat(LARGE)}));
    let id = create(&api, &run_of(SHARDS, task, json!({})));
    let has_calls = |of: &Process| of.metric("waterclock_calls_open") >= 1.0;
    eventually("it calls for the first shards", || {
        if has_calls(&dies) { Ok(()) } else { Err(stub.begun().to_string()) }
    });
    let shown = get(&api, &id);
    let killed_from = now_ms();
    dies.kill();
    let killed = killed_from..=now_ms();
    let created = count(&shown, "created");
    println!("{created} of {SHARDS} shards were created when a worker was killed");
    assert!(created < u64::from(SHARDS), "the kill came in the middle: {shown}");

    // One that comes has some of its partitions. Whichever has calls open stands still for so long that the other one has all.
    let mut workers = [first, launch(&fixture, "d", "worker").start()];
    share(&workers.each_ref());
    let stands = eventually("one has calls open", || {
        workers.iter().position(has_calls).ok_or_else(|| get(&api, &id).to_string())
    });
    let frozen_from = now_ms();
    workers[stands].freeze();
    let frozen = frozen_from..=now_ms();
    share(&[&workers[1 - stands]]);
    assert_ne!(status(&get(&api, &id)), "finished", "all of that was in the middle");
    workers[stands].thaw();
    end_of(&api, &id, LONG);
    share(&workers.each_ref());
    check_finished(&api, &id, SHARDS);
    let again = called_again(&stub, SHARDS, &[killed, frozen]);
    println!("{again} shards were called again");
    assert!(again > 0, "no call was open when a worker was lost");
    let new_one = workers[1].metric("waterclock_calls_total");
    assert!(new_one >= 1.0, "the new worker calls");
    workers.iter_mut().for_each(Process::stop_well);
    owner.stop_well();
}

#[test]
fn no_shard_of_a_run_begins_after_it_was_cancelled_while_they_were_created() {
    const SHARDS: u32 = 5_000;
    let fixture = fixture("runs-created-cancelled");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let api = Api::of(&process);
    let topic = fixture.target("settlement", 6);
    let mut delivered = Log::open(&fixture, &topic);
    let crew = Crew::new(&fixture, &topic, 5, &[&process]);
    let executors = ["one", "two", "three"].map(|name| crew.start(name));
    let is_hit = (0..TRIES).any(|_| {
        let run = run_for(&crew, SHARDS, Work { rows: 1, ms: 20 }, json!({}));
        let id = create(&api, &run);
        until(&api, &id, LONG, "has its first shards", |run| count_or_0(run) > 0);
        let (code, told) = api.answered("DELETE", &format!("/v1/runs/{id}?wait=30s"), None);
        let answered = Instant::now();
        assert_eq!((code, &told["outcome"]), (200, &json!("stopped")), "{told}");
        let is_cancelled = |run: &serde_json::Value| status(run) == "cancelled";
        let shown = until(&api, &id, PATIENCE, "is shown as cancelled", is_cancelled);
        let created = count(&shown, "created");
        let quiet = patient(Duration::from_secs(2));
        sleep(quiet.saturating_sub(answered.elapsed()));
        // Nothing is delivered any more from now on, and nothing begins; what is read of it is passed over.
        let read = |delivered: &mut Log| {
            delivered.read_on(Duration::from_millis(500));
            delivered.seen.len()
        };
        let mut before = read(&mut delivered);
        eventually("all that was delivered is read", || {
            let now = read(&mut delivered);
            let was = std::mem::replace(&mut before, now);
            let late = delivered.seen[was..].iter().map(|rec| rec.at).max().unwrap_or_default();
            if now == was { Ok(()) } else { Err(format!("{now} are, the last one at {late}")) }
        });
        let at = now_ms();
        eventually_within(LONG, "executors have passed over what is over", || {
            let dealt = crew.begun() + crew.passed_over();
            if dealt >= before { Ok(()) } else { Err(format!("{dealt} of {before}")) }
        });
        sleep(quiet);
        assert_eq!(read(&mut delivered), before, "delivered behind {at}");
        let log = crew.log();
        let begins = log.iter().filter(|line| matches!(line.what, What::Begin(_)));
        let late: Vec<_> = begins.filter(|line| line.at > answered + quiet).collect();
        assert!(late.is_empty(), "begun after {quiet:?}: {late:?}");
        // Each shard that there is has ended, and there are no more.
        let is_there = |shard: &serde_json::Value| shard["shard_state"] != "to_create";
        let all = eventually("all shards have ended", || {
            let all = shards(&api, &id, "");
            let open = all.iter().filter(|shard| is_there(shard)).find(|shard| {
                let status = shard["task_status"].as_str().unwrap_or_default();
                !["cancelled", "finished"].contains(&status)
            });
            match open {
                None => Ok(all),
                Some(open) => Err(open.to_string()),
            }
        });
        let there = all.iter().filter(|shard| is_there(shard)).count();
        assert_eq!(there as u64, created, "what was created is there");
        let shown = get(&api, &id);
        println!(
            "{created} of {SHARDS} were created, {there} are there, {before} delivered: {}",
            shown["counts"]
        );
        assert_eq!((status(&shown), count(&shown, "created")), ("cancelled", created), "{shown}");
        created < u64::from(SHARDS)
    });
    assert!(is_hit, "{TRIES} times all shards had been created when the cancel came");
    drop(executors);
    process.stop_well();
}

#[test]
fn ten_thousand_shards_are_created_soon_and_cost_their_owner_little() {
    const SHARDS: u32 = 10_000;
    /// What the shards may cost, in KiB: 50 MB, while they are created and executed, and behind that.
    const COST: u64 = 50_000_000 >> 10;
    /// Until all are there.
    const CREATED: Duration = Duration::from_secs(5);
    let fixture = fixture("runs-many");
    let [mut owner, mut server] = beside_a_server(&fixture, launch(&fixture, "a", "lanes"));
    let (api, stub) = books(&server, json!({}));
    // What the first run costs stays: buffers of clients, say.
    let first = run_of(1_000, call("/ok?of=first", json!({})), json!({}));
    let first = create(&api, &first);
    end_of(&api, &first, LONG);
    check_finished(&api, &first, 1_000);

    owner.begin_memory_peak();
    let before = owner.memory_kib();
    let run = run_of(SHARDS, call("/ok?of=many", json!({})), json!({"delay": "2s"}));
    let id = create(&api, &run);
    let due = get(&api, &id)["trigger_at"].as_u64().expect("its time");
    let all = |run: &serde_json::Value| count_or_0(run) == u64::from(SHARDS);
    until(&api, &id, LONG, "has all its shards", all);
    let created = now_ms() - due;
    end_of(&api, &id, LONG);
    let ended = now_ms() - due;
    let (most, after) = (owner.memory_peak_kib(), owner.memory_kib());
    println!(
        "{SHARDS} shards were created {created} ms after they were due, and finished after {ended} ms"
    );
    println!(
        "its owner has {before} KiB before, {after} behind, and {} more at most in between",
        most - before
    );
    check_finished(&api, &id, SHARDS);
    let calls = stub.calls().into_iter().filter(|call| call.target.ends_with("many")).collect();
    let again = by_shard(calls, SHARDS).values().filter(|calls| calls.len() > 1).count();
    assert_eq!(again, 0, "each is called once");
    assert!(created < patient(CREATED).as_millis() as u64, "created after {created} ms");
    let cost = most.saturating_sub(before);
    assert!(cost < COST, "{before} KiB before, {cost} more at most");
    owner.stop_well();
    server.stop_well();
}
