//! The same of tasks that are called: the call hands a turn over, and its executor reports later, or from inside of the call.

use std::thread::{scope, sleep};
use std::time::Duration;

use serde_json::{Value, json};

use super::super::{Api, command, fixture, launch, share, task, with};
use super::{BEFORE_MS, Intake, TRIES, beat, came_after_backoff, next_at, report, wait_until};
use crate::support::{Call, Endpoint, eventually, now_ms, patience, start_all};

const PROJECT: &str = "shop";
/// Its endpoint takes what it is called with, and does it later.
const TAKES: &str = "/status?is=202";
/// Heartbeats that are written about when their deadline is over.
const RACES: u64 = 8;

fn create(api: &Api, stub: &Endpoint, target: &str, feedback: &Value) -> String {
    let more = json!({"feedback": feedback, "retry": {"count": 3, "interval": 1}});
    api.create(&with(task(PROJECT, stub, target, "1s"), more))
}

/// Waits for so many calls of a task, and gives the last.
#[track_caller]
fn call(stub: &Endpoint, id: &str, count: usize) -> Call {
    eventually(&format!("call {count} of {id}"), || {
        let mut calls = stub.calls_of(id);
        let found = calls.len();
        if found == count { Ok(calls.remove(found - 1)) } else { Err(format!("{calls:?}")) }
    })
}

fn ticket(call: &Call) -> &str {
    call.ticket.as_deref().unwrap_or_else(|| panic!("no ticket: {call:?}"))
}

/// Waits until a task is with its executor. Its call took no time, so it is never running before.
#[track_caller]
fn awaited(api: &Api, id: &str) -> Value {
    eventually(&format!("task {id} is running"), || {
        let task = api.task(id);
        if task["task_status"] == "running" { Ok(task) } else { Err(task.to_string()) }
    })
}

#[test]
fn who_accepts_a_call_reports_and_silence_is_a_failure() {
    let fixture = fixture("tasks-accepted");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let deadline = 6 * u64::from(patience());
    let (long, short) = (json!({"deadline": "1h"}), json!({"deadline": deadline}));
    let beats = json!({"deadline": "1h", "heartbeat": 2 * u64::from(patience())});
    let of = |feedback: &Value| create(&api, &stub, TAKES, feedback);
    let (done, failing, silent, beating) = (of(&long), of(&long), of(&short), of(&beats));

    let first = call(&stub, &done, 1);
    let seen = awaited(&api, &done);
    assert_eq!(seen["feedback"], json!({"deadline": 3_600, "heartbeat": 3_600}), "{seen}");
    assert_eq!((&seen["turn"], &seen["attempts_total"]), (&json!(1), &json!(0)), "{seen}");
    let end = next_at(&seen);
    // The endpoint notes when it has answered, a moment after the answer is on its way.
    let answered = eventually("the answer of the first call is noted", || {
        call(&stub, &done, 1).ended.ok_or_else(|| format!("{first:?}"))
    });
    assert!(end.abs_diff(answered + 3_600_000) < 5_000, "{answered} {first:?} {seen}");

    // By the command line, as a shell script that is called would.
    let failed = call(&stub, &failing, 1);
    awaited(&api, &failing);
    let said = |code: i32, words: &[&str]| {
        let ended = command(&process, words);
        assert_eq!(ended.code, Some(code), "{words:?}: {ended:?}");
        ended
    };
    let words = ["task", "report", &failing, "failed", "--ticket", ticket(&failed)];
    let sent = now_ms();
    let told = said(0, &[&words[..], &["--error", "no stock", "--worker", "w-1"]].concat());
    assert_eq!(told.said, "retrying\n");
    let again = call(&stub, &failing, 2);
    assert_eq!((again.turn, again.attempt), (2, 2), "{again:?}");
    came_after_backoff(sent, again.began);
    let words = ["task", "heartbeat", &failing, "--ticket", ticket(&again), "--json"];
    let next = said(0, &words).json();
    assert!(next_at(&next) > now_ms() + 3_500_000, "{next}");
    said(1, &["task", "heartbeat", &failing, "--ticket", ticket(&failed)]);
    said(1, &["task", "report", &failing, "gone", "--ticket", ticket(&first)]);
    let words = ["task", "report", &failing, "gone", "--ticket", ticket(&again), "--json"];
    assert_eq!(said(0, &words).json(), json!({"outcome": "failed"}));
    let ended = api.task(&failing);
    assert_eq!((&ended["task_status"], &ended["code"]), (&json!("failed"), &json!("task_failed")));
    let attempts = &ended["attempts"];
    assert_eq!(
        (&attempts[0]["error"], &attempts[0]["worker"]),
        (&json!("no stock"), &json!("w-1"))
    );

    // It says how far it is, and is silent then: the next call is told.
    let lost = call(&stub, &beating, 1);
    awaited(&api, &beating);
    assert_eq!(beat(&api, &beating, ticket(&lost), "row:7").0, 200);
    let next = call(&stub, &beating, 2);
    assert_eq!((lost.cursor, next.cursor.as_deref()), (None, Some("row:7")));
    let told = report(&api, &beating, next.ticket.as_deref().expect("a ticket"), "finished");
    assert_eq!(told, (200, json!({"outcome": "finished"})));

    // What the first one has done counts, though it is late.
    let quiet = call(&stub, &silent, 1);
    let again = call(&stub, &silent, 2);
    let gap = again.began - quiet.began;
    assert!(gap >= (deadline + 1) * 1_000, "called again after {gap} ms");
    let (status, told) = beat(&api, &silent, ticket(&quiet), "x");
    assert_eq!((status, &told["code"]), (409, &json!("stale")), "{told}");
    let told = report(&api, &silent, ticket(&quiet), "finished");
    assert_eq!(told, (200, json!({"outcome": "finished"})));

    assert_eq!(awaited(&api, &done)["turn"], 1);
    let told = report(&api, &done, ticket(&first), "finished");
    assert_eq!(told, (200, json!({"outcome": "finished"})));
    sleep(Duration::from_secs(deadline + 3));
    let counts = [&done, &failing, &silent, &beating].map(|id| stub.calls_of(id).len());
    assert_eq!(counts, [1, 2, 2, 2], "no call follows an end");
    let ends = [&done, &failing, &silent, &beating].map(|id| api.task(id)["task_status"].clone());
    assert_eq!(ends, ["finished", "failed", "finished", "finished"]);
    process.stop_well();
}

#[test]
fn a_report_may_come_before_its_call_is_answered() {
    let fixture = fixture("tasks-accepted-fast");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let takes = 4_000 * u64::from(patience());
    let target = format!("/slow?ms={takes}&status=202");
    let long = json!({"deadline": "1h"});
    let (fast, failing) =
        (create(&api, &stub, &target, &long), create(&api, &stub, &target, &long));
    let first = call(&stub, &fast, 1);
    let told = report(&api, &fast, ticket(&first), "finished");
    assert_eq!(told, (200, json!({"outcome": "finished"})));
    assert_eq!(api.task(&fast)["task_status"], "finished");
    let failed = call(&stub, &failing, 1);
    let (status, told) = report(&api, &failing, ticket(&failed), "failed");
    assert_eq!((status, &told["code"]), (409, &json!("attempt_open")), "{told}");
    assert_eq!(beat(&api, &failing, ticket(&failed), "row:1").0, 200, "it is at work");
    assert!(call(&stub, &failing, 1).ended.is_none(), "the call was open all the while");
    let told = eventually("the failure is taken", || {
        match report(&api, &failing, ticket(&failed), "failed") {
            (409, told) if told["code"] == "attempt_open" => {
                sleep(Duration::from_secs(1));
                Err(told.to_string())
            }
            told => Ok(told),
        }
    });
    assert_eq!(told, (200, json!({"outcome": "retrying"})));
    let again = call(&stub, &failing, 2);
    assert_eq!((again.turn, again.cursor.as_deref()), (2, Some("row:1")));
    assert_eq!(report(&api, &failing, ticket(&again), "finished").0, 200);
    sleep(Duration::from_millis(takes + 2_000));
    for (id, calls) in [(&fast, 1), (&failing, 2)] {
        let ended = api.task(id);
        assert_eq!(ended["task_status"], "finished", "{ended}");
        assert_eq!((stub.calls_of(id).len(), &ended["attempts_total"]), (calls, &json!(calls)));
    }
    process.stop_well();
}

#[test]
fn of_dead_workers_and_owners_only_open_calls_are_made_again() {
    let fixture = fixture("tasks-accepted-killed");
    let [mut owner, mut worker] =
        start_all([launch(&fixture, "a", "lanes,api"), launch(&fixture, "b", "worker")]);
    share(&[&worker]);
    let (api, stub) = (Api::of(&owner), Endpoint::start());
    let long = json!({"deadline": "1h"});
    let accepted: Vec<_> = (0..8).map(|_| create(&api, &stub, TAKES, &long)).collect();
    accepted.iter().for_each(|id| drop(awaited(&api, id)));
    let slow = format!("/slow?ms={}&status=202", 3_000 * u64::from(patience()));
    let open: Vec<_> = (0..8).map(|_| create(&api, &stub, &slow, &long)).collect();
    let firsts: Vec<Call> = open.iter().map(|id| call(&stub, id, 1)).collect();
    worker.kill();
    assert!(stub.calls_of(&open[0])[0].ended.is_none(), "its call was open");
    let mut other = launch(&fixture, "c", "worker").start();
    share(&[&other]);
    for id in &open {
        assert_eq!(call(&stub, id, 2).turn, 2);
    }
    eventually("the second calls are accepted", || {
        let ended = open.iter().filter(|id| call(&stub, id, 2).ended.is_some()).count();
        let awaited = open.iter().filter(|id| api.task(id)["next_at"].as_u64() > Some(now_ms()));
        let awaited = awaited.count();
        if (ended, awaited) == (8, 8) { Ok(()) } else { Err(format!("{ended} {awaited}")) }
    });
    owner.kill();
    let mut next = launch(&fixture, "d", "lanes,api").start();
    let api = Api::of(&next);
    // Of a call that may have come twice both executors may be at work: the success of either counts.
    for (id, first) in open.iter().zip(&firsts) {
        let told = report(&api, id, ticket(first), "finished");
        assert_eq!(told, (200, json!({"outcome": "finished"})), "{id}");
    }
    for (n, id) in accepted.iter().enumerate() {
        let first = call(&stub, id, 1);
        let outcome = if n % 2 == 0 { ("finished", "finished") } else { ("gone", "failed") };
        let told = report(&api, id, ticket(&first), outcome.0);
        assert_eq!(told, (200, json!({"outcome": outcome.1})), "{id}");
    }
    sleep(Duration::from_secs(3));
    let ends = |ids: &[String]| -> Vec<Value> {
        ids.iter().map(|id| api.task(id)["task_status"].clone()).collect()
    };
    assert_eq!(ends(&open), vec!["finished"; 8]);
    assert_eq!(ends(&accepted), ["finished", "failed"].repeat(4));
    let counts = |ids: &[String]| ids.iter().map(|id| stub.calls_of(id).len()).collect::<Vec<_>>();
    assert_eq!((counts(&accepted), counts(&open)), (vec![1; 8], vec![2; 8]));
    other.stop_well();
    next.stop_well();
}

/// A heartbeat that was made about when its deadline was over.
struct Raced {
    id: String,
    /// By when its turn was over without it.
    next_at: u64,
    /// By when it has to be followed by another one, if it was heard.
    heard: Option<u64>,
    again: Call,
}

#[test]
fn a_heartbeat_about_the_deadline_keeps_its_turn_or_is_stale() {
    let fixture = fixture("tasks-accepted-raced");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (stub, mut intake) = (Endpoint::start(), Intake::open(&fixture));
    let slow = u64::from(patience());
    let feedback = json!({"deadline": 6 * slow, "heartbeat": 4 * slow});
    let race = |nth: u64| {
        let api = Api::of(&process);
        let id = create(&api, &stub, TAKES, &feedback);
        let first = call(&stub, &id, 1);
        let next_at = next_at(&awaited(&api, &id));
        // The first one is to stand there in time, and the others come around then.
        wait_until(next_at - if nth == 0 { BEFORE_MS } else { 40 - 10 * nth.min(4) });
        sleep(Duration::from_millis(10 * nth.saturating_sub(4)));
        let (status, told) = beat(&api, &id, ticket(&first), "x");
        let heard = (status == 200).then(|| super::next_at(&told));
        if heard.is_none() {
            assert_eq!((status, &told["code"]), (409, &json!("stale")), "{nth}: {told}");
        }
        let again = call(&stub, &id, 2);
        assert_eq!(again.turn, 2, "{nth}");
        assert_eq!(report(&api, &id, ticket(&again), "finished").0, 200, "{nth}");
        Raced { id, next_at, heard, again }
    };
    let mut in_time = 0;
    let mut all = Vec::new();
    for _ in 0..TRIES {
        let raced: Vec<Raced> = scope(|scope| {
            let race = &race;
            let races: Vec<_> = (0..RACES).map(|nth| scope.spawn(move || race(nth))).collect();
            races.into_iter().map(|race| race.join().expect("it is answered")).collect()
        });
        println!("heard: {:?}", raced.iter().map(|of| of.heard.is_some()).collect::<Vec<_>>());
        for Raced { id, next_at, heard, again } in raced {
            let is_in_time = intake.first(&id).is_in_time(next_at);
            assert!(heard.is_some() || !is_in_time, "{id}: it stood there in time");
            let until = heard.unwrap_or(next_at);
            assert!(again.began >= until, "{id}: it had until {until}: {again:?}");
            in_time += u32::from(is_in_time);
            all.push(id);
        }
        if in_time > 0 {
            break;
        }
    }
    assert!(in_time > 0, "one stood there in time");
    sleep(Duration::from_secs(6 * slow + 3));
    let api = Api::of(&process);
    for id in &all {
        assert_eq!(stub.calls_of(id).len(), 2, "{id}: no call follows an end");
        assert_eq!(api.task(id)["task_status"], "finished", "{id}");
    }
    process.stop_well();
}
