//! Projects over gRPC: grpcurl asks one instance, and the other one shows what came of it.

use std::time::Duration;

use serde_json::{Value, json};

use super::grpc::{ABORTED, FAILED_PRECONDITION, NOT_FOUND, asked, asked_by, end_of};
use super::{fixture, launch, with};
use crate::support::{Endpoint, Process, eventually, eventually_within, now_ms, start_all};

/// How long a change may take to be known everywhere. The documents say two seconds; grpcurl is started each time.
const KNOWN: Duration = Duration::from_secs(10);

/// Asks a method of `waterclock.v1.Projects`.
#[track_caller]
fn ask(process: &Process, method: &str, request: &Value) -> Value {
    asked(process, &format!("Projects/{method}"), request)
}

/// Asks it for a change, and says the revision that this made.
#[track_caller]
fn change(process: &Process, method: &str, request: Value) -> u64 {
    let told = ask(process, method, &request);
    // grpcurl leaves a zero out, which is that of what was taken away.
    let revision = told["revision"].as_str().unwrap_or("0").parse().ok();
    revision.unwrap_or_else(|| panic!("{method}: {told}"))
}

/// The code and the reason with which it is refused.
#[track_caller]
fn refused(process: &Process, method: &str, request: &Value) -> (u64, String) {
    match asked_by(None, process, method, request) {
        Err(refused) => refused,
        Ok(told) => panic!("{method} is not refused: {told}"),
    }
}

/// Waits until an instance shows the project shop so.
#[track_caller]
fn shows(process: &Process, what: &str, so: impl Fn(&Value) -> bool) -> Value {
    eventually_within(KNOWN, what, || {
        match asked_by(None, process, "Projects/Get", &json!({"project": "shop"})) {
            Ok(shown) if so(&shown) => Ok(shown),
            told => Err(format!("{told:?}")),
        }
    })
}

/// Creates an HTTP task, and says its id.
#[track_caller]
fn create(process: &Process, more: Value) -> Value {
    let task = with(json!({"project": "shop", "group": "orders"}), more);
    asked(process, "Tasks/CreateHttpTask", &task)["taskId"].clone()
}

/// Waits until a task is kept back by a pause, and says what is paused.
#[track_caller]
fn paused_by(process: &Process, id: &Value) -> Value {
    eventually(&format!("task {id} is due, and waits"), || {
        let task = asked(process, "Tasks/GetTask", &json!({ "task_id": id }));
        let is_so = task["taskStatus"] == "TASK_STATUS_READY" && task["waitsFor"] == "paused";
        if is_so { Ok(task["pausedBy"].clone()) } else { Err(task.to_string()) }
    })
}

#[test]
fn the_go_program_of_grpcurl_changes_a_project_at_one_instance_and_the_other_one_shows_it() {
    let fixture = fixture("tasks-grpc-projects");
    let [mut first, mut second] = start_all([
        launch(&fixture, "a", "lanes,worker,api"),
        launch(&fixture, "b", "lanes,worker,api"),
    ]);
    let stub = Endpoint::start();
    let shop = json!({"project": "shop"});
    let of_shop = |more: Value| with(shop.clone(), more);
    let conflict = (ABORTED, "revision_conflict".to_owned());
    assert_eq!(
        refused(&second, "Projects/Get", &shop),
        (NOT_FOUND, "unknown_project".to_owned()),
        "it was never put"
    );
    assert_eq!(ask(&second, "List", &json!({})), json!({}));

    // A project. The history comes in seconds, and is shown so.
    let settings = json!({"concurrency": 10, "history": "86400s"});
    let put = of_shop(json!({"settings": settings, "if_revision": 0}));
    let one = change(&first, "Put", put.clone());
    let revision = |shown: &Value, of: u64| {
        let told = shown["revision"].as_str().and_then(|text| text.parse().ok());
        told == Some(of)
    };
    let shown = shows(&second, "the project is known", |shown| revision(shown, one));
    let told = [&shown["settings"]["concurrency"], &shown["settings"]["history"]];
    assert_eq!(told, [&json!(10), &json!("86400s")], "{shown}");
    for process in [&second, &first] {
        assert_eq!(refused(process, "Projects/Put", &put), conflict, "it was put by now");
    }

    // A service of it.
    let service = of_shop(json!({"service": "billing"}));
    let settings = json!({"address": stub.url(""), "concurrency": 3, "timeout": "7s"});
    let put = with(service.clone(), json!({"settings": settings, "if_revision": 0}));
    let two = change(&second, "PutService", put.clone());
    let shown =
        shows(&first, "the service is known", |shown| revision(&shown["services"]["billing"], two));
    let of_service = &shown["services"]["billing"]["settings"];
    let told = [&of_service["address"], &of_service["concurrency"], &of_service["timeout"]];
    assert_eq!(told, [&json!(stub.url("")), &json!(3), &json!("7s")], "{shown}");
    assert_eq!(refused(&first, "Projects/PutService", &put), conflict);
    let listed = ask(&first, "List", &json!({}));
    let row = &listed["projects"][0];
    let told = [&row["project"], &row["concurrency"], &row["services"], &row["paused"]];
    assert_eq!(told, [&json!("shop"), &json!(10), &json!(["billing"]), &Value::Null], "{listed}");

    // A task that falls due in a pause waits, and is called after its end.
    let paused = change(&second, "Pause", of_shop(json!({ "if_revision": one })));
    for process in [&first, &second] {
        shows(process, "the pause is known", |shown| shown["settings"]["paused"] == true);
    }
    let listed = ask(&first, "List", &json!({}));
    assert_eq!(listed["projects"][0]["paused"], true, "{listed}");
    // It is in force two seconds after the pause at the latest.
    let url = json!({"url": stub.url("/ok"), "options": {"delay": "2s"}});
    let waiting = create(&first, url.clone());
    assert_eq!(paused_by(&second, &waiting), json!(["project"]));
    let other = create(&second, with(url, json!({"project": "other"})));
    assert_eq!(end_of(&first, &other)["taskStatus"], "TASK_STATUS_FINISHED");
    let calls = |id: &Value| stub.calls_of(id.as_str().expect("an id"));
    assert_eq!((calls(&other).len(), calls(&waiting).len()), (1, 0), "another project is called");
    let old = of_shop(json!({ "if_revision": one }));
    assert_eq!(refused(&first, "Projects/Resume", &old), conflict);
    let resumed = now_ms();
    change(&first, "Resume", of_shop(json!({ "if_revision": paused })));
    assert_eq!(end_of(&second, &waiting)["taskStatus"], "TASK_STATUS_FINISHED");
    let called = calls(&waiting);
    assert!(called.len() == 1 && called[0].began >= resumed, "{resumed}: {called:?}");

    // The same for a service.
    let paused = change(&first, "PauseService", with(service.clone(), json!({"if_revision": two})));
    for process in [&first, &second] {
        shows(process, "the pause of the service is known", |shown| {
            shown["services"]["billing"]["settings"]["paused"] == true
        });
    }
    let named = json!({"path": "/ok", "options": {"delay": "2s", "named_service": "billing"}});
    let waiting = create(&second, named);
    assert_eq!(paused_by(&first, &waiting), json!(["service"]));
    assert_eq!(calls(&waiting).len(), 0);
    let old = with(service.clone(), json!({ "if_revision": two }));
    assert_eq!(refused(&second, "Projects/ResumeService", &old), conflict);
    let resumed = now_ms();
    let resume = with(service.clone(), json!({ "if_revision": paused }));
    change(&second, "ResumeService", resume);
    assert_eq!(end_of(&first, &waiting)["taskStatus"], "TASK_STATUS_FINISHED");
    let called = calls(&waiting);
    assert!(called.len() == 1 && called[0].began >= resumed, "{resumed}: {called:?}");

    // Both count the tasks of all lanes.
    let in_an_hour = json!({"url": stub.url("/ok"), "options": {"delay": "3600s"}});
    create(&first, in_an_hour.clone());
    for process in [&first, &second] {
        eventually("all are counted", || {
            let stats = ask(process, "GetStats", &shop);
            let (pending, ended) = (&stats["pending"], &stats["ended"]);
            let is_so = (pending, ended)
                == (&json!({"total": "1", "delay": "1"}), &json!({"finished": "2"}));
            if is_so { Ok(()) } else { Err(stats.to_string()) }
        });
    }

    // What is deleted is gone at both.
    change(&first, "DeleteService", service.clone());
    shows(&second, "the service is gone", |shown| shown["services"].is_null());
    let gone = (NOT_FOUND, "unknown_service".to_owned());
    assert_eq!(refused(&second, "Projects/DeleteService", &service), gone);
    let old = of_shop(json!({ "if_revision": one }));
    assert_eq!(refused(&second, "Projects/Delete", &old), conflict);
    change(&second, "Delete", shop.clone());
    let gone = Err((NOT_FOUND, "unknown_project".to_owned()));
    for process in [&first, &second] {
        eventually_within(KNOWN, "the project is gone", || {
            let told = asked_by(None, process, "Projects/Get", &shop);
            if told == gone { Ok(()) } else { Err(format!("{told:?}")) }
        });
        assert_eq!(ask(process, "List", &json!({})), json!({}));
        let task = of_shop(with(json!({"group": "orders"}), in_an_hour.clone()));
        let deleted = (FAILED_PRECONDITION, "project_deleted".to_owned());
        assert_eq!(refused(process, "Tasks/CreateHttpTask", &task), deleted);
    }
    second.stop_well();
    first.stop_well();
}
