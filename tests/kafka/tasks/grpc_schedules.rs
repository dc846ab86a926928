//! Schedules over gRPC: grpcurl asks one instance, and the other one shows what came of it.

use serde_json::{Value, json};

use super::grpc::{ABORTED, NOT_FOUND, asked, asked_by, end_of};
use super::{fixture, launch, with};
use crate::support::{Endpoint, Process, eventually};

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
fn what_grpcurl_changes_of_a_schedule_at_one_instance_the_other_one_shows() {
    let fixture = fixture("tasks-grpc-schedules");
    let mut first = launch(&fixture, "a", "lanes,worker,api").start();
    let mut second = launch(&fixture, "b", "lanes,worker,api").start();
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
