//! Schedules over gRPC: grpcurl asks one instance, and the other one shows what came of it.

use serde_json::{Value, json};

use super::grpc::{ABORTED, NOT_FOUND, asked, asked_by, end_of};
use super::{fixture, launch, with};
use crate::support::{Endpoint, Process, eventually, now_ms, start_all};

/// Asks a method of `waterclock.v1.Schedules`.
#[track_caller]
fn ask(process: &Process, method: &str, request: &Value) -> Value {
    asked(process, &format!("Schedules/{method}"), request)
}

/// Waits until an instance lists these schedules of the project shop.
#[track_caller]
fn lists(process: &Process, want: &Value) {
    eventually(&format!("{want} is listed"), || {
        let listed = ask(process, "List", &json!({"project": "shop"}));
        let all = listed["schedules"].as_array().cloned().unwrap_or_default();
        let ids: Vec<_> = all.iter().map(|of| of["scheduleId"].clone()).collect();
        if json!(ids) == *want { Ok(()) } else { Err(listed.to_string()) }
    });
}

#[test]
fn the_go_program_of_grpcurl_changes_a_schedule_at_one_instance_and_the_other_one_shows_it() {
    let fixture = fixture("tasks-grpc-schedules");
    let [mut first, mut second] = start_all([
        launch(&fixture, "a", "lanes,worker,api"),
        launch(&fixture, "b", "lanes,worker,api"),
    ]);
    let stub = Endpoint::start();
    let of = json!({"schedule_id": "schedule.shop.nightly"});
    let nobody = Err((NOT_FOUND, "unknown_schedule".to_owned()));
    assert_eq!(asked_by(None, &second, "Schedules/Get", &of), nobody, "it was never made");

    let task =
        json!({"http": {"url": stub.url("/ok"), "body": "e30=", "options": {"timeout": "7s"}}});
    let settings = json!({
        "project": "shop", "group": "orders", "name": "nightly", "cron": "30 2 * * *", "zone": "Europe/Berlin", "task": task,
    });
    let made = ask(&first, "Create", &json!({ "settings": settings }));
    assert_eq!(made["status"], "SCHEDULE_STATUS_ACTIVE", "{made}");
    let shown = ask(&second, "Get", &of);
    assert_eq!(shown["version"], made["version"], "{shown}");
    assert_eq!(shown["settings"]["task"], task, "{shown}");
    let times = ask(&second, "Preview", &with(of.clone(), json!({"count": 3})));
    assert_eq!(times["times"].as_array().map(Vec::len), Some(3), "{times}");
    lists(&second, &json!(["schedule.shop.nightly"]));

    // A pause, and a task by hand meanwhile.
    let version = with(of.clone(), json!({"if_version": made["version"]}));
    let paused = ask(&second, "Pause", &version);
    let shown = ask(&first, "Get", &of);
    assert_eq!(shown["status"], "SCHEDULE_STATUS_PAUSED", "{shown}");
    assert_eq!(shown["version"], paused["version"], "{shown}");
    let conflict = Err((ABORTED, "version_conflict".to_owned()));
    assert_eq!(asked_by(None, &first, "Schedules/Resume", &version), conflict);
    let id = ask(&first, "Trigger", &of)["taskId"].clone();
    assert_eq!(end_of(&second, &id)["taskStatus"], "TASK_STATUS_FINISHED");
    assert_eq!(stub.calls_of(id.as_str().expect("an id")).len(), 1);

    // What is changed holds at both, and stays paused if the change says so.
    let every = json!({
        "group": "orders", "every": "1s", "paused": true, "task": {"http": {"url": stub.url("/ok?of=new")}},
    });
    let update =
        |if_version: &Value| with(of.clone(), json!({"settings": every, "if_version": if_version}));
    let changed = ask(&first, "Update", &update(&paused["version"]));
    assert_eq!(changed["status"], "SCHEDULE_STATUS_PAUSED", "{changed}");
    let again = asked_by(None, &second, "Schedules/Update", &update(&paused["version"]));
    assert_eq!(again, conflict, "another version is in force");
    let shown = ask(&second, "Get", &of);
    assert_eq!(shown["version"], changed["version"], "{shown}");
    let settings = &shown["settings"];
    assert_eq!((&settings["every"], &settings["name"]), (&json!("1s"), &json!("nightly")));
    assert_eq!((&settings["cron"], &shown["nextAt"]), (&Value::Null, &Value::Null), "{shown}");

    // The times that have passed are made up for, each once.
    let from = now_ms() / 1_000 * 1_000 - 3_600_000;
    let span = with(of.clone(), json!({"start": from, "end": from + 5_000}));
    let wanted: Vec<u64> = (0..5).map(|n| from + n * 1_000).collect();
    let mut ids = Vec::new();
    for process in [&second, &first] {
        let told = ask(process, "Backfill", &span);
        let tasks = told["tasks"].as_array().cloned().unwrap_or_default();
        let times: Vec<_> = tasks.iter().map(|task| task["triggerAt"].clone()).collect();
        assert_eq!(json!(times), json!(wanted.iter().map(u64::to_string).collect::<Vec<_>>()));
        assert_eq!(told["nextStart"], Value::Null, "that was all: {told}");
        ids = tasks.into_iter().map(|task| task["taskId"].clone()).collect();
        for id in &ids {
            assert_eq!(end_of(&first, id)["taskStatus"], "TASK_STATUS_FINISHED", "{id}");
        }
    }
    let nominals = |ids: &[Value]| -> Vec<Option<u64>> {
        let of = |id: &Value| stub.calls_of(id.as_str().expect("an id"));
        ids.iter().flat_map(of).map(|call| call.nominal).collect()
    };
    assert_eq!(nominals(&ids), wanted.iter().copied().map(Some).collect::<Vec<_>>());

    // It goes on, and what fell into the pause has no task.
    let resumed_at = now_ms();
    let version = with(of.clone(), json!({"if_version": changed["version"]}));
    let resumed = ask(&second, "Resume", &version);
    assert_eq!(resumed["status"], "SCHEDULE_STATUS_ACTIVE", "{resumed}");
    let of_times = || -> Vec<u64> {
        let calls = stub.calls();
        let of_new = calls.iter().filter(|call| call.target == "/ok?of=new");
        let times = of_new.filter_map(|call| call.nominal);
        let mut times: Vec<u64> = times.filter(|at| !wanted.contains(at)).collect();
        times.sort_unstable();
        times
    };
    eventually("three of its times are called", || match of_times() {
        times if times.len() >= 3 => Ok(()),
        times => Err(format!("{times:?}")),
    });
    assert!(of_times()[0] >= resumed_at, "{:?}, {resumed_at}", of_times());
    assert_eq!(ask(&first, "Get", &of)["status"], "SCHEDULE_STATUS_ACTIVE");

    // What is deleted has ended at both.
    let deleted = ask(&second, "Delete", &of);
    assert_eq!(deleted["outcome"], "DELETE_OUTCOME_DELETED", "{deleted}");
    for process in [&first, &second] {
        let shown = ask(process, "Get", &of);
        assert_eq!(shown["status"], "SCHEDULE_STATUS_DELETED", "{shown}");
        lists(process, &json!([]));
    }
    first.stop_well();
    second.stop_well();
}
