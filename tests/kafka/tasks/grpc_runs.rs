//! Runs over gRPC: grpcurl asks one instance, and the other one shows what came of it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::grpc::{FAILED_PRECONDITION, NOT_FOUND, asked, asked_by};
use super::{Api, fixture, launch, with};
use crate::support::{Endpoint, Process, eventually, start_all};

const SHARDS: usize = 3;

/// Asks a method of `waterclock.v1.Runs`.
#[track_caller]
fn ask(process: &Process, method: &str, request: &Value) -> Value {
    asked(process, &format!("Runs/{method}"), request)
}

/// Waits until an instance shows the run with this status.
#[track_caller]
fn until(process: &Process, of: &Value, status: &str) -> Value {
    eventually(&format!("{of} is {status}"), || {
        let run = ask(process, "Get", of);
        if run["runStatus"] == status { Ok(run) } else { Err(run.to_string()) }
    })
}

#[test]
fn the_go_program_of_grpcurl_creates_a_run_follows_its_shards_and_cancels_and_retries_others() {
    let fixture = fixture("tasks-grpc-runs");
    let [mut first, mut second] = start_all([
        launch(&fixture, "a", "lanes,worker,api"),
        launch(&fixture, "b", "lanes,worker,api"),
    ]);
    let stub = Endpoint::start();
    let nobody = Err((NOT_FOUND, "unknown_run".to_owned()));
    assert_eq!(asked_by(None, &second, "Runs/Get", &json!({"run_id": "nobody"})), nobody);

    let url = stub.url("/ok");
    let wanted = json!({
        "project": "shop", "group": "nightly", "shards": SHARDS, "request_id": "tonight",
        "deadline": "3600s", "on_shard_failure": "ON_SHARD_FAILURE_STOP",
        "options": {"delay": "1s"}, "task": {"http": {"url": url, "body": "e30="}},
    });
    let created = ask(&first, "Create", &wanted);
    let again = ask(&second, "Create", &wanted);
    assert_eq!(again["runId"], created["runId"], "one request is one run");
    let id = created["runId"].as_str().expect("an id").to_owned();
    let of = json!({"run_id": id});
    let run = until(&second, &of, "RUN_STATUS_FINISHED");
    assert_eq!((&run["shards"], &run["grid"]), (&json!(SHARDS), &json!("###")), "{run}");
    let counts = &run["counts"];
    assert_eq!((&counts["created"], &counts["finished"]), (&json!(SHARDS), &json!(SHARDS)));
    assert_eq!((&run["triggerAt"], &run["requestId"]), (&created["triggerAt"], &json!("tonight")));
    let said = (&run["deadline"], &run["onShardFailure"]);
    assert_eq!(said, (&json!("3600s"), &json!("ON_SHARD_FAILURE_STOP")), "{run}");
    assert_eq!(run["task"]["http"]["url"], url, "{run}");
    let called: BTreeSet<_> = stub.calls().into_iter().filter_map(|call| call.shard).collect();
    let all = (0..SHARDS).map(|shard| format!("{shard}/{SHARDS}"));
    assert_eq!((stub.calls().len(), called), (SHARDS, all.collect()));

    // Its shards, page by page.
    let shards = eventually("each shard is shown as finished", || {
        let page = ask(&first, "ListShards", &with(of.clone(), json!({"limit": 2})));
        let next = with(of.clone(), json!({"limit": 2, "page": page["next"]}));
        let next = ask(&first, "ListShards", &next);
        let pages = [page, next].map(|page| page["shards"].as_array().cloned().unwrap_or_default());
        assert_eq!(pages.each_ref().map(Vec::len), [2, 1], "{pages:?}");
        let shards = pages.concat();
        let is_finished = |shard: &Value| shard["taskStatus"] == "TASK_STATUS_FINISHED";
        if shards.iter().all(is_finished) { Ok(shards) } else { Err(format!("{shards:?}")) }
    });
    for (index, shard) in shards.iter().enumerate() {
        // A 0 is not shown.
        assert_eq!(shard["index"].as_u64().unwrap_or_default(), index as u64, "{shard}");
        assert_eq!(shard["shardState"], "SHARD_STATE_FINISHED", "{shard}");
    }
    let failed = with(of.clone(), json!({"state": "SHARD_STATE_FAILED"}));
    assert_eq!(ask(&second, "ListShards", &failed)["shards"], Value::Null);
    // HTTP shows the same run.
    let (status, told) = Api::of(&first).answered("GET", &format!("/v1/runs/{id}"), None);
    assert_eq!(
        (status, &told["run_status"], &told["grid"]),
        (200, &json!("finished"), &run["grid"])
    );

    let later = json!({"request_id": "tomorrow", "options": {"delay": "3600s"}});
    let later = ask(&second, "Create", &with(wanted.clone(), later))["runId"].clone();
    let of_later = json!({"run_id": later});
    until(&first, &of_later, "RUN_STATUS_WAITING");
    let cancelled = ask(&first, "Cancel", &with(of_later.clone(), json!({"wait": "20s"})));
    assert_eq!(cancelled, json!({"runId": later, "outcome": "CANCEL_OUTCOME_CANCELLED"}));
    until(&second, &of_later, "RUN_STATUS_CANCELLED");
    for run in [&of, &of_later] {
        let refused = Err((FAILED_PRECONDITION, "not_retryable".to_owned()));
        assert_eq!(asked_by(None, &second, "Runs/Retry", run), refused, "{run}");
    }

    // One that has failed is made anew: as another version, with shards of its own.
    let broken = Endpoint::start();
    let fails = json!({
        "group": "broken", "request_id": "broken", "task": {"http": {"url": broken.url("/broken")}},
    });
    let fails = ask(&first, "Create", &with(wanted, fails))["runId"].clone();
    let of_fails = json!({"run_id": fails});
    let failed = until(&second, &of_fails, "RUN_STATUS_FAILED");
    broken.free();
    let again = ask(&second, "Retry", &of_fails);
    assert_eq!(again["runId"], fails, "{again}");
    assert_ne!(again["version"], failed["version"], "{again}");
    let run = until(&first, &of_fails, "RUN_STATUS_FINISHED");
    assert_eq!((&run["version"], &run["grid"]), (&again["version"], &json!("###")), "{run}");
    let of_version = format!(".{}.", run["version"].as_str().expect("a version"));
    let ids = broken.calls().into_iter().map(|call| call.id);
    let ids: BTreeSet<_> = ids.filter(|id| id.contains(&of_version)).collect();
    assert_eq!(ids.len(), SHARDS, "{ids:?}");

    eventually("both are listed", || {
        let listed = ask(&second, "List", &json!({"project": "shop", "group": "nightly"}));
        let runs = listed["runs"].as_array().cloned().unwrap_or_default();
        let ids: Vec<_> = runs.iter().map(|run| &run["runId"]).collect();
        if json!(ids) == json!([id, later]) { Ok(()) } else { Err(listed.to_string()) }
    });
    assert_eq!(stub.calls().len(), SHARDS, "a run that was cancelled calls nobody");
    first.stop_well();
    second.stop_well();
}
