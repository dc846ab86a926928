//! Runs whose shards are HTTP calls.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use waterclock::engine::task::id::TaskId;

use super::{
    Watch, books, call, check_finished, count, create, end_of, run_of, shards, status, until,
};
use crate::support::tasks::with;
use crate::support::{Call, Endpoint, eventually, patience, start_all};
use crate::tasks::{fixture, launch, put_service, share};

/// A run of these calls is over within.
const SOON: Duration = Duration::from_secs(60);
/// Requests that may be on their way at one moment: the connection of each has it, and no byte of it was sent.
const ON_THEIR_WAY: usize = 4;
/// A result that a worker has taken may not be committed yet when it is lost, after so long.
const UNCOMMITTED_MS: u64 = 1_000;
/// What was sent before a worker was lost is read by the endpoint within.
const READ_MS: u64 = 200;
/// How long a call takes that is shown as begun before it ends.
const OPEN_MS: u64 = 600;

/// The calls of each shard, as the header says it.
#[track_caller]
pub(super) fn by_shard(calls: Vec<Call>, shards: u32) -> BTreeMap<u32, Vec<Call>> {
    let mut found: BTreeMap<u32, Vec<Call>> = BTreeMap::new();
    for call in calls {
        let shard = call.shard.as_deref().unwrap_or_else(|| panic!("of no shard: {call:?}"));
        let (index, count) = shard.split_once('/').unwrap_or_else(|| panic!("{call:?}"));
        assert_eq!(count, shards.to_string(), "{call:?}");
        found.entry(index.parse().expect("a number")).or_default().push(call);
    }
    assert!(found.keys().copied().eq(0..shards), "each shard is called: {:?}", found.keys());
    for calls in found.values() {
        let tasks: BTreeSet<&str> = calls.iter().map(Call::task).collect();
        assert_eq!(tasks.len(), 1, "one shard is one task: {calls:?}");
    }
    found
}

/// How many shards were called again. No turn is called twice. Each call that was made again was open when a worker was lost, in one of
/// these times; or it was on its way then, and arrives when the worker wakes.
#[track_caller]
pub(super) fn called_again(stub: &Endpoint, shards: u32, lost: &[RangeInclusive<u64>]) -> usize {
    let slow = u64::from(patience());
    let (mut again, mut late) = (0, 0);
    for mut calls in by_shard(stub.calls(), shards).into_values() {
        calls.sort_by_key(|call| call.turn);
        let is_once = calls.windows(2).all(|two| two[0].turn < two[1].turn);
        assert!(is_once, "a turn is called once: {calls:?}");
        again += usize::from(calls.len() > 1);
        for call in &calls[..calls.len() - 1] {
            let was_open = |at: &RangeInclusive<u64>| {
                call.was_open(at.start() - UNCOMMITTED_MS * slow, at.end() + READ_MS * slow)
            };
            if !lost.iter().any(was_open) {
                late += 1;
                let was_made = lost.iter().any(|at| call.made <= at.end() / 1_000 + 1);
                assert!(was_made, "it was not open when a worker was lost: {calls:?}, {lost:?}");
            }
        }
    }
    assert!(late <= ON_THEIR_WAY, "{late} were sent by a worker that woke");
    again
}

#[test]
fn a_service_is_called_once_for_each_shard_and_told_which_it_is() {
    const SHARDS: u32 = 200;
    let fixture = fixture("runs-calls");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = books(&process, json!({}));
    let task = call("/ok", json!({"body": "close"}));
    let run = run_of(SHARDS, task, json!({"request_id": "tonight"}));
    let id = create(&api, &run);
    assert_eq!(create(&api, &run), id, "the same run");
    // A task may have the same request id, whichever came first.
    let of_task = json!({
        "project": "shop", "group": "named", "url": stub.url("/never"), "delay": "1h", "request_id": "tonight",
    });
    let of_task = api.create(&of_task);
    assert_ne!(of_task, id);
    assert_eq!(api.task(&of_task)["task_type"], "http");
    assert_eq!(create(&api, &run), id, "the same run");
    end_of(&api, &id, SOON);
    check_finished(&api, &id, SHARDS);
    for calls in by_shard(stub.calls(), SHARDS).values() {
        assert!(calls.len() == 1 && calls[0].turn == 1 && calls[0].body == 5, "{calls:?}");
    }
    assert_eq!(create(&api, &run), id, "it has ended, and is the same");
    // Shards are tasks, and the run is among neither.
    assert_eq!(api.list("project=shop&group=nightly").len(), SHARDS as usize);
    process.stop_well();
}

/// A request as it came.
#[derive(Clone, Debug)]
struct Request {
    /// Its first line, and its headers.
    head: Vec<String>,
    body: Value,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        let mut pairs = self.head.iter().filter_map(|line| line.split_once(": "));
        pairs.find(|(of, _)| of.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// A service that answers 200 and keeps each request with its body; and its address.
fn keeper() -> (String, Arc<Mutex<Vec<Request>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    let kept = Arc::<Mutex<Vec<Request>>>::default();
    let to = Arc::clone(&kept);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
            let lines = reader.by_ref().lines().map_while(Result::ok);
            let head = lines.take_while(|line| !line.is_empty()).collect();
            let mut request = Request { head, body: Value::Null };
            let length = request.header("content-length").and_then(|length| length.parse().ok());
            let mut body = vec![0; length.unwrap_or_default()];
            reader.read_exact(&mut body).expect("a body");
            request.body = serde_json::from_slice(&body).expect("JSON");
            to.lock().push(request);
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            stream.write_all(answer).expect("answered");
        }
    });
    (address, kept)
}

#[test]
fn a_service_is_called_once_when_a_run_is_finished_and_told_of_its_shards() {
    const SHARDS: u32 = 20;
    let fixture = fixture("runs-told");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = books(&process, json!({}));
    let (address, kept) = keeper();
    put_service(&api, "shop", "told", &json!({"address": format!("{address}/runs")}));
    let told = json!({"request_id": "tonight", "on_finished": {"service": "told"}});
    let id = create(&api, &run_of(SHARDS, call("/ok", json!({})), told));
    let shown = end_of(&api, &id, SOON);
    check_finished(&api, &id, SHARDS);
    assert_eq!(shown["on_finished"], json!({"service": "told"}), "{shown}");
    // A follow-up is a task of the same group, and no shard.
    let [follow_up] = eventually("it has a follow-up", || {
        let ids = api.list("project=shop&group=nightly").into_iter();
        let ids = ids.filter_map(|task| task["task_id"].as_str().map(str::to_owned));
        let is_shard = |id: &String| TaskId::parse(id).is_ok_and(|id| id.as_shard().is_some());
        let others: Vec<String> = ids.filter(|id| !is_shard(id)).collect();
        <[String; 1]>::try_from(others).map_err(|others| format!("{others:?}"))
    });
    let ended = api.end_of(&follow_up);
    let counts = ["attempts_total", "failures"].map(|of| ended[of].as_u64());
    assert_eq!(ended["task_status"], "finished", "{ended}");
    assert_eq!(counts, [Some(1), Some(0)], "{ended}");

    let kept = kept.lock().clone();
    let [request] = &kept[..] else { panic!("it is called once: {kept:?}") };
    assert_eq!(request.head[0], "POST /runs HTTP/1.1", "{request:?}");
    let headers = ["content-type", "webhook-id"].map(|name| request.header(name));
    assert_eq!(headers, [Some("application/json"), Some(&*follow_up)], "{request:?}");
    let body = &request.body;
    let said = ["task_id", "task_type", "task_status", "project", "group", "request_id"];
    let said = said.map(|of| body[of].as_str().unwrap_or_default());
    assert_eq!(said, [&*id, "run", "finished", "shop", "nightly", "tonight"], "{body}");
    for (of, want) in [("created", SHARDS), ("finished", SHARDS), ("failed", 0)] {
        assert_eq!(body["shards"][of], want, "{body}");
    }
    assert!(body["ended_at"].is_u64(), "{body}");
    // The service of the shards is told of nothing.
    for calls in by_shard(stub.calls(), SHARDS).values() {
        assert_eq!(calls.len(), 1, "{calls:?}");
    }
    process.stop_well();
}

#[test]
fn a_run_outlives_a_worker_that_dies_while_it_calls() {
    const SHARDS: u32 = 120;
    let fixture = fixture("runs-worker");
    let [mut a, mut b] =
        start_all([launch(&fixture, "a", "lanes,worker,api"), launch(&fixture, "b", "worker")]);
    share(&[&a, &b]);
    let (api, stub) = books(&a, json!({"concurrency": 8}));
    let id = create(&api, &run_of(SHARDS, call("/slow?ms=500", json!({})), json!({})));
    eventually("a third of the calls have ended", || {
        let ended = stub.ended();
        if ended >= SHARDS as usize / 3 { Ok(()) } else { Err(ended.to_string()) }
    });
    b.kill();
    end_of(&api, &id, SOON);
    check_finished(&api, &id, SHARDS);
    let calls = by_shard(stub.calls(), SHARDS);
    let again = calls.values().filter(|calls| calls.len() > 1).count();
    println!("{again} shards were called again");
    assert!(again <= 16, "more than could be open: {again}");
    a.stop_well();
}

#[test]
fn shards_that_poll_are_open_until_their_service_says_that_they_are_done() {
    const SHARDS: u32 = 3;
    const WAIT_MS: u64 = 1_000;
    let fixture = fixture("runs-polled");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    // One after the other, so that some wait while others were begun.
    let (api, stub) = books(&process, json!({"concurrency": 1}));
    let open = OPEN_MS * u64::from(patience());
    let poll = json!({"poll": {"interval": format!("{WAIT_MS}ms"), "rounds": 10}});
    let task = call(&format!("/notyet?n=2&ms={open}"), poll);
    let id = create(&api, &run_of(SHARDS, task, json!({})));
    let watch = Watch::start(&process, &id);
    let shown = until(&api, &id, SOON, "executes", |run| status(run) == "executing");
    assert!((1..u64::from(SHARDS)).contains(&count(&shown, "begun")), "{shown}");
    assert_eq!(count(&shown, "finished"), 0, "{shown}");
    end_of(&api, &id, SOON);
    let seen = watch.seen();
    assert!(seen.iter().all(|status| status != "re-executing"), "a round is no new try: {seen:?}");
    for shard in check_finished(&api, &id, SHARDS) {
        let task = api.task(shard["task_id"].as_str().expect("an id"));
        let told = ["rounds", "attempts_total", "failures"].map(|of| task[of].as_u64());
        assert_eq!(told, [Some(2), Some(1), Some(0)], "rounds are no attempts: {task}");
    }
    for calls in by_shard(stub.calls(), SHARDS).values() {
        let [first, second, third] = &calls[..] else { panic!("three calls: {calls:?}") };
        let rounds = [first, second, third].map(|call| call.id.strip_prefix(first.task()));
        assert_eq!(rounds, [Some(""), Some(".r1"), Some(".r2")], "{calls:?}");
        let waited = calls.windows(2).all(|two| two[1].began >= two[0].began + open + WAIT_MS);
        assert!(waited, "{calls:?}");
    }
    process.stop_well();
}

#[test]
fn shards_whose_calls_were_accepted_are_open_until_their_executors_have_reported() {
    const SHARDS: u32 = 4;
    let fixture = fixture("runs-accepted");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    // One after the other, so that some wait while others were begun.
    let (api, stub) = books(&process, json!({"concurrency": 1}));
    let open = OPEN_MS * u64::from(patience());
    let path = format!("/slow?ms={open}&status=202");
    let task = call(&path, json!({"feedback": {"deadline": "1h"}}));
    let id = create(&api, &run_of(SHARDS, task, json!({})));
    let shown = until(&api, &id, SOON, "executes", |run| status(run) == "executing");
    assert!((1..u64::from(SHARDS)).contains(&count(&shown, "begun")), "{shown}");
    eventually("all calls were accepted", || match stub.ended() {
        ended if ended == SHARDS as usize => Ok(()),
        ended => Err(ended.to_string()),
    });
    let is_locked = |run: &Value, finished: u32| {
        status(run) == "locked" && count(run, "finished") == u64::from(finished)
    };
    until(&api, &id, SOON, "waits for its executors", |run| is_locked(run, 0));

    let calls: Vec<Call> = by_shard(stub.calls(), SHARDS).into_values().flatten().collect();
    assert_eq!(calls.len(), SHARDS as usize, "{calls:?}");
    let report = |call: &Call, what: &str, more: Value| {
        let ticket = call.ticket.as_deref().unwrap_or_else(|| panic!("no ticket: {call:?}"));
        let body = with(json!({"ticket": ticket, "worker": "w-1"}), more);
        let path = format!("/v1/tasks/{}/{what}", call.task());
        let (code, told) = api.answered("POST", &path, Some(&body));
        assert_eq!(code, 200, "{told}");
        told
    };
    eventually("its first shard shows how far it is", || {
        // Of what is said before the lane knows that the call was accepted, it keeps the cursor only. The next one says it again.
        report(&calls[0], "heartbeat", json!({"cursor": "row:7", "percent": 40}));
        let shard = shards(&api, &id, "").swap_remove(0);
        let told = ["shard_state", "worker", "cursor", "percent"].map(|of| shard[of].clone());
        let want = [json!("executing"), json!("w-1"), json!("row:7"), json!(40)];
        if told == want { Ok(()) } else { Err(shard.to_string()) }
    });
    for call in &calls[1..] {
        let told = report(call, "result", json!({"outcome": "finished"}));
        assert_eq!(told["outcome"], "finished", "{told}");
    }
    until(&api, &id, SOON, "waits for the first one", |run| is_locked(run, SHARDS - 1));
    report(&calls[0], "result", json!({"outcome": "finished"}));
    end_of(&api, &id, SOON);
    for shard in check_finished(&api, &id, SHARDS) {
        let told = (&shard["worker"], shard["turn"].as_u64(), shard["attempts_total"].as_u64());
        assert_eq!(told, (&json!("w-1"), Some(1), Some(1)), "{shard}");
    }
    assert_eq!(stub.begun(), SHARDS as usize, "no shard is called again");
    process.stop_well();
}
