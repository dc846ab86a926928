//! What projects may do: which hosts they call, how many tasks they may have, and how many they have.

use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Api, command, fixture, launch, put_service, task};
use crate::support::{Endpoint, eventually};

fn put(api: &Api, settings: &Value) {
    let (status, told) = api.answered("PUT", "/v1/projects/shop", Some(settings));
    assert_eq!(status, 200, "{told}");
}

/// The field that is wrong with a request.
fn wrong(api: &Api, method: &str, path: &str, body: &Value) -> Result<String, String> {
    let (status, told) = api.answered(method, path, Some(body));
    let at = told["errors"][0]["at"].as_str().filter(|_| status == 422);
    at.map(str::to_owned).ok_or_else(|| told.to_string())
}

#[test]
fn the_hosts_of_a_project_hold_for_tasks_that_wait() {
    let fixture = fixture("tasks-hosts");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    put(&api, &json!({"hosts": ["127.0.0.1"]}));
    let service = json!({"address": stub.url("/")});
    put_service(&api, "shop", "billing", &service);
    let raw = api.create(&task("shop", &stub, "/ok", "6s"));
    let named = json!({"project": "shop", "group": "g", "delay": "6s", "service": "billing", "path": "/ok"});
    let named = api.create(&named);

    put(&api, &json!({"hosts": ["*.shop.example"]}));
    let at = eventually("another host is refused", || {
        wrong(&api, "POST", "/v1/tasks/http", &task("shop", &stub, "/ok", "1h"))
    });
    assert_eq!(at, "url");
    let at = wrong(&api, "PUT", "/v1/projects/shop/services/billing", &service);
    assert_eq!(at.as_deref(), Ok("address"));
    for id in [&raw, &named] {
        let ended = api.end_of(id);
        let error = ended["last"]["error"].as_str().unwrap_or_default();
        assert_eq!(ended["task_status"], "failed", "{ended}");
        assert!(error.starts_with("address_denied: 127.0.0.1 is not in the hosts of"), "{ended}");
    }
    assert_eq!(stub.begun(), 0);

    put(&api, &json!({"hosts": ["127.0.0.1"]}));
    let ended = eventually("the host is called again", || {
        let ended = api.end_of(&api.create(&task("shop", &stub, "/ok", "0s")));
        if ended["task_status"] == "finished" { Ok(ended) } else { Err(ended.to_string()) }
    });
    assert_eq!(ended["attempts_total"], 1);
    process.stop_well();
}

/// One process holds the lanes, another one takes the tasks: it has to ask.
#[test]
fn a_project_gets_no_more_pending_tasks_than_it_may_have_and_its_stats_count_them() {
    let fixture = fixture("tasks-quotas");
    let mut lanes = launch(&fixture, "a", "lanes").start();
    let mut door = launch(&fixture, "b", "worker,api").start();
    let (api, stub) = (Api::of(&door), Endpoint::start());
    let told = |words: &[&str]| {
        let ended = command(&door, words);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended
    };
    let stats = || told(&["project", "stats", "shop", "--json"]).json();
    let done = api.create(&task("shop", &stub, "/ok", "0s"));
    assert_eq!(api.end_of(&done)["task_status"], "finished");
    api.create_all((0..3).map(|_| task("shop", &stub, "/ok", "1h")).collect());
    api.create(&task("other", &stub, "/ok", "1h"));
    eventually("all are counted", || {
        let now = stats();
        let is_right = now["pending"]
            == json!({"total": 3, "delay": 3, "ready": 0, "overdue": 0, "running": 0})
            && now["ended"] == json!({"finished": 1, "failed": 0, "cancelled": 0, "expired": 0});
        if is_right { Ok(()) } else { Err(now.to_string()) }
    });

    told(&["project", "put", "shop", "--max-pending", "4"]);
    let create = |want: u16| {
        let (status, told) =
            api.ask("POST", "/v1/tasks/http", Some(&task("shop", &stub, "/ok", "1h")));
        if status == want {
            return Ok(told);
        }
        sleep(Duration::from_secs(1));
        Err(told.to_string())
    };
    let refused = eventually("creates are refused", || create(429));
    assert_eq!(refused["code"], "over_pending");
    let (status, answer) =
        api.answered("POST", "/v1/tasks/http", Some(&task("other", &stub, "/ok", "1h")));
    assert_eq!(status, 201, "another project: {answer}");
    let pending = api.list("project=shop&status=delay");
    assert!((4..20).contains(&pending.len()), "a soft bound: {}", pending.len());
    let now = stats();
    assert_eq!(now["pending"]["total"], pending.len(), "{now}");
    assert!(now["refused"]["over_pending"].as_u64() >= Some(1), "{now}");
    let text = told(&["project", "stats", "shop"]).said;
    assert!(text.contains("over_pending") && text.contains("finished"), "{text}");

    // What ends makes room.
    for task in &pending {
        assert_eq!(api.cancel(task["task_id"].as_str().expect("an id")), "cancelled");
    }
    eventually("a create is taken", || create(201));
    let now = stats();
    assert_eq!(now["ended"]["cancelled"], pending.len(), "{now}");
    door.stop_well();
    lanes.stop_well();
}
