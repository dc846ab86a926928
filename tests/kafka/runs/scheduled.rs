//! Schedules whose tasks are runs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use waterclock::engine::task::id::TaskId;

use super::{check_finished, status};
use crate::support::tasks::Api;
use crate::support::{Call, Endpoint, Log, eventually, eventually_within, now_ms};
use crate::tasks::{fixture, launch};

const SCHEDULE: &str = "schedule.shop.drain";

/// Of which run a call is.
#[track_caller]
fn run_of(call: &Call) -> String {
    let id = TaskId::parse(call.task()).unwrap_or_else(|error| panic!("{error}: {call:?}"));
    let (run, _, _) = id.as_shard().unwrap_or_else(|| panic!("of no run: {call:?}"));
    run.as_str().to_owned()
}

#[test]
fn a_schedule_of_runs_that_may_not_overlap_begins_none_before_the_last_one_has_ended() {
    const SHARDS: u32 = 3;
    const TIMES: u64 = 10;
    let fixture = fixture("runs-scheduled");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let start = (now_ms() + 4_000).div_ceil(1_000) * 1_000;
    let task = json!({"type": "http", "url": stub.url("/slow?ms=3000"), "timeout": "1m"});
    let schedule = json!({
        "project": "shop", "group": "nightly", "name": "drain",
        "every": "2s", "start": start, "count": TIMES, "overlap": "skip",
        "task": {"type": "run", "shards": SHARDS, "deadline": "1h", "task": task},
    });
    let (code, told) = api.answered("POST", "/v1/schedules", Some(&schedule));
    assert_eq!(code, 201, "{told}");
    assert_eq!(told["task"]["type"], "run", "{told}");
    let topic = fixture.target("settlement", 2);
    let of_records = schedules_of_records(&api, &topic);
    let shown = eventually_within(Duration::from_secs(90), "it has ended", || {
        let (code, told) = api.answered("GET", &format!("/v1/schedules/{SCHEDULE}"), None);
        let is_over = code == 200 && told["status"] == "finished";
        if is_over { Ok(told) } else { Err(told.to_string()) }
    });
    let runs = eventually("all its runs have ended", || {
        let (code, told) = api.answered("GET", "/v1/runs?project=shop&group=nightly", None);
        assert_eq!(code, 200, "{told}");
        let runs: Vec<Value> = told["runs"].as_array().cloned().unwrap_or_default();
        let is_over = !runs.is_empty() && runs.iter().all(|run| status(run) == "finished");
        if is_over { Ok(runs) } else { Err(told.to_string()) }
    });
    assert_eq!(shown["tasks_total"], runs.len(), "{shown}");
    // Each takes at least 3 s.
    assert!((3..=TIMES as usize / 2).contains(&runs.len()), "{}: {shown}", runs.len());
    assert!(runs.iter().all(|run| run["grid"].is_null()), "a list shows no grids: {runs:?}");

    let mut spans: BTreeMap<String, Vec<Call>> = BTreeMap::new();
    for call in stub.calls() {
        spans.entry(run_of(&call)).or_default().push(call);
    }
    let known: BTreeSet<String> =
        runs.iter().filter_map(|run| run["run_id"].as_str().map(str::to_owned)).collect();
    assert_eq!(spans.keys().cloned().collect::<BTreeSet<_>>(), known);
    let mut times = Vec::new();
    for (id, calls) in &spans {
        let nominal = id.split_once(&format!("{SCHEDULE}@")).and_then(|(_, at)| at.parse().ok());
        let nominal: u64 = nominal.unwrap_or_else(|| panic!("of no time: {id}"));
        assert!(nominal >= start && (nominal - start).is_multiple_of(2_000), "{id}");
        check_finished(&api, id, SHARDS);
        let shown = runs.iter().find(|run| run["run_id"] == **id).expect("it is listed");
        assert_eq!(shown["nominal_at"], nominal, "{shown}");
        let mut indices: Vec<_> = calls.iter().map(|call| call.shard.clone()).collect();
        indices.sort_unstable();
        let want: Vec<_> = (0..SHARDS).map(|n| Some(format!("{n}/{SHARDS}"))).collect();
        assert_eq!(indices, want, "{id}");
        assert!(calls.iter().all(|call| call.nominal == Some(nominal)), "{id}: {calls:?}");
        let began = calls.iter().map(|call| call.began).min().expect("some");
        let ended = calls.iter().filter_map(|call| call.ended).max().expect("they have ended");
        assert!(began >= nominal, "{id}: {calls:?}");
        times.push((began, ended));
    }
    times.sort_unstable();
    for pair in times.windows(2) {
        // An answer is known a moment before it was written down.
        assert!(pair[1].0 + 20 >= pair[0].1, "two runs are open: {times:?}");
    }
    check_records(&api, Log::open(&fixture, &topic), of_records);
    process.stop_well();
}

/// A schedule of records on which nobody reports, and one of runs of two shards that nobody executes. Gives their first time, behind which
/// there is one two seconds later, and a task of the first one that was asked for by hand.
#[track_caller]
fn schedules_of_records(api: &Api, topic: &str) -> (u64, String) {
    let start = (now_ms() + 10_000).div_ceil(1_000) * 1_000;
    let record = |value: &str| json!({"type": "kafka", "topic": topic, "value": value});
    let mut shard = record("shard");
    shard["feedback"] = json!({"deadline": "1h"});
    let run = json!({"type": "run", "shards": 2, "task": shard});
    for (name, task) in [("record", record("record")), ("run", run)] {
        let schedule = json!({
            "project": "shop", "group": "records", "name": name,
            "every": "2s", "start": start, "count": 2, "task": task,
        });
        let (code, told) = api.answered("POST", "/v1/schedules", Some(&schedule));
        assert_eq!(code, 201, "{told}");
    }
    let path = "/v1/schedules/schedule.shop.record:trigger";
    let (code, told) = api.answered("POST", path, None);
    assert_eq!(code, 201, "{told}");
    (start, told["task_id"].as_str().expect("an id").to_owned())
}

/// Each of these records says for which nominal time it is, and so does its task; one that was asked for by hand says none.
#[track_caller]
fn check_records(api: &Api, mut log: Log, (start, by_hand): (u64, String)) {
    let of_time = |at: u64| {
        let shard = |index: u32| ("shard", Some(format!("{index}/2")), Some(at));
        [("record", None, Some(at)), shard(0), shard(1)]
    };
    let mut want =
        [&[("record", None, None)][..], &of_time(start), &of_time(start + 2_000)].concat();
    let mut seen = Vec::new();
    for rec in log.count(want.len()) {
        let nominal = rec.header("x-delay-nominal").map(|at| at.parse().expect("ms"));
        let word = if rec.text() == "shard" { "shard" } else { "record" };
        seen.push((word, rec.header("x-delay-shard"), nominal));
        // Of a task with feedback the record has the id.
        if let Some(id) = rec.header("x-delay-id") {
            assert_eq!(api.task(&id)["nominal_at"].as_u64(), nominal, "{id}");
        }
    }
    want.sort_unstable();
    seen.sort_unstable();
    assert_eq!(seen, want);
    let told = api.task(&by_hand);
    assert!(told["task_status"] == "finished" && told.get("nominal_at").is_none(), "{told}");
}
