//! `waterclock task`, `project` and `target`, as a shell runs them: what they print, and their exit codes.

use serde_json::{Value, json};

use super::{Api, command, fixture, is_final, launch};
use crate::support::tasks::Ended;
use crate::support::{Endpoint, Log, Process, eventually};

const PROJECT: &str = "shop";
/// An id that no task has.
const NONE: &str = "0123456789abcdef0123456789abcdef";

/// A command that must end with this code.
#[track_caller]
fn ends(process: &Process, code: i32, words: &[&str]) -> Ended {
    let ended = command(process, words);
    assert_eq!(ended.code, Some(code), "{words:?}: {ended:?}");
    ended
}

/// `task create http`, with further words; says the id of the task.
#[track_caller]
fn create(process: &Process, url: &str, delay: &str, more: &[&str]) -> String {
    let words = ["task", "create", "http", "--project", PROJECT, "--group", "orders"];
    let words = [&words, &["--in", delay, "--url", url, "--json"][..], more].concat();
    let told = ends(process, 0, &words).json();
    told["task_id"].as_str().expect("an id").to_owned()
}

#[track_caller]
fn get(process: &Process, id: &str) -> Value {
    ends(process, 0, &["task", "get", id, "--json"]).json()
}

#[track_caller]
fn end_of(process: &Process, id: &str) -> Value {
    eventually("the task has ended", || {
        let task = get(process, id);
        if is_final(&task) { Ok(task) } else { Err(task.to_string()) }
    })
}

#[test]
fn the_commands_about_tasks_say_what_became_of_them() {
    let fixture = fixture("tasks-commands");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let stub = Endpoint::start();

    let retries = ["--retries", "3", "--retry-interval", "1s", "--request-id", "a"];
    let retried = || create(&process, &stub.url("/fail?n=2"), "2s", &retries);
    let id = retried();
    assert_eq!(retried(), id, "one request is one task");
    let ended = end_of(&process, &id);
    assert_eq!(ended["task_status"], "finished", "{ended}");
    assert_eq!(ended["attempts"].as_array().map(Vec::len), Some(3), "{ended}");
    let said = ends(&process, 0, &["task", "get", &id]).said;
    assert!(said.contains(&id) && said.contains("finished"), "{said}");
    let history = ends(&process, 0, &["task", "history", &id, "--json"]).lines();
    let told: Vec<_> = history.iter().map(|of| (&of["turn"], &of["outcome"])).collect();
    assert_eq!(json!(told), json!([[1, "failed"], [2, "failed"], [3, "finished"]]));
    let said = ends(&process, 0, &["task", "history", &id]).said;
    let failed = said.lines().filter(|line| line.contains("failed") && line.contains("500"));
    assert_eq!(failed.count(), 2, "{said}");

    // What has ended stays as it is; what has failed is called again.
    assert_eq!(ends(&process, 1, &["task", "cancel", &id, "--wait", "20s"]).said, "finished\n");
    let refused = ends(&process, 1, &["task", "retry", &id]);
    assert!(refused.error.contains("refused") && refused.said.is_empty(), "{refused:?}");
    let failed = create(&process, &stub.url("/fail?n=1"), "0s", &[]);
    assert_eq!(end_of(&process, &failed)["task_status"], "failed");
    let listed = ["task", "list", "--project", PROJECT, "--status", "failed"];
    let ids = |words: &[&str]| {
        let lines = ends(&process, 0, &[words, &["--json"]].concat()).lines();
        lines.iter().map(|task| task["task_id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&listed), [json!(failed)]);
    let said = ends(&process, 0, &listed).said;
    assert!(said.contains(&failed) && said.lines().count() >= 2, "{said}");
    assert_eq!(ends(&process, 1, &["task", "cancel", &failed, "--wait", "20s"]).said, "failed\n");
    ends(&process, 0, &["task", "retry", &failed]);
    eventually("it is finished", || {
        let task = get(&process, &failed);
        if task["task_status"] == "finished" { Ok(()) } else { Err(task.to_string()) }
    });
    assert_eq!(stub.calls_of(&failed).len(), 2);
    assert_eq!(ends(&process, 0, &listed).said, "no tasks\n");

    let unborn = create(&process, &stub.url("/ok"), "1h", &[]);
    assert_eq!(ends(&process, 0, &["task", "history", &unborn]).said, "no attempts\n");
    assert_eq!(
        ends(&process, 0, &["task", "cancel", &unborn, "--wait", "20s"]).said,
        "cancelled\n"
    );
    assert_eq!(get(&process, &unborn)["task_status"], "cancelled");
    let open = create(&process, &stub.url("/slow?ms=4000&status=500"), "0s", &["--retries", "2"]);
    eventually("its call is open", || {
        let task = get(&process, &open);
        if task["task_status"] == "running" { Ok(()) } else { Err(task.to_string()) }
    });
    let words = ["task", "cancel", &open, "--wait"];
    assert_eq!(ends(&process, 75, &[&words[..], &["0s"]].concat()).said, "pending\n");
    assert_eq!(ends(&process, 0, &[&words[..], &["20s"]].concat()).said, "stopped\n");
    assert_eq!(stub.calls_of(&open).len(), 1);
    assert_eq!(ids(&["task", "list", "--project", PROJECT]).len(), 4);
    assert_eq!(ids(&["task", "list", "--project", PROJECT, "--limit", "3"]).len(), 3);

    // No answer, and no sense.
    for word in ["get", "history", "cancel", "retry"] {
        let ended = ends(&process, 1, &["task", word, NONE]);
        assert!(ended.error.contains("there is no task") && ended.said.is_empty(), "{ended:?}");
    }
    let words = ["task", "create", "http", "--project", PROJECT, "--group", "g", "--in", "1h"];
    let denied = ends(&process, 2, &[&words[..], &["--url", "http://169.254.169.254/"]].concat());
    assert!(denied.error.contains("url"), "{denied:?}");
    ends(&process, 2, &words);
    process.stop_well();
    ends(&process, 69, &["task", "get", &id]);
}

#[test]
fn projects_and_targets_are_paused_and_go_on_by_commands() {
    let fixture = fixture("tasks-paused-by-hand");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let is_paused = |what: &str, name: &str| {
        let told = ends(&process, 0, &[what, "get", name, "--json"]).json();
        told["paused"].as_bool().unwrap_or_default()
    };
    let unknown = ends(&process, 1, &["project", "get", PROJECT]);
    assert!(unknown.error.contains("nothing was put"), "{unknown:?}");
    assert_eq!(
        ends(&process, 0, &["project", "pause", PROJECT]).said,
        "revision 1 (nothing was put there before)\n"
    );
    assert!(is_paused("project", PROJECT));
    let http = create(&process, &stub.url("/ok"), "3s", &["--body", r#"{"order":17}"#]);
    let shown = ends(&process, 0, &["task", "get", &http, "--payload"]).said;
    assert!(shown.contains(r#"{"order":17}"#), "{shown}");
    let waits = |id: &str, by: &str| {
        eventually("it is paused", || {
            let task = get(&process, id);
            let why = (&task["waits_for"], &task["paused_by"]);
            if why == (&json!("paused"), &json!([by])) { Ok(()) } else { Err(task.to_string()) }
        });
    };
    waits(&http, "project");
    assert_eq!(stub.begun(), 0);
    assert_eq!(ends(&process, 0, &["project", "resume", PROJECT]).said, "revision 2\n");
    assert!(!is_paused("project", PROJECT));
    assert_eq!(end_of(&process, &http)["task_status"], "finished");

    let put = |options: &[&str]| {
        ends(&process, 0, &[&["project", "put", PROJECT], options].concat()).said
    };
    assert_eq!(put(&["--max-pending", "9", "--window", "1m"]), "revision 3\n");
    // A person learns what a put has changed without a word of it.
    let lost = "max_pending was 9, and has its default now: the command did not name it\n\
                window was 1m, and has its default now: the command did not name it\n";
    assert_eq!(put(&["--create-rate", "100"]), format!("revision 4\n{lost}"));
    let follows = "create_burst was 100, and is 200 now: the command did not name it\n";
    assert_eq!(put(&["--create-rate", "200"]), format!("revision 5\n{follows}"));
    assert_eq!(put(&["--create-rate", "200"]), "revision 6\n");

    let topic = fixture.target("out", 1);
    assert!(!is_paused("target", &topic));
    assert_eq!(
        ends(&process, 0, &["target", "pause", &topic]).said,
        "revision 1 (nothing was put there before)\n"
    );
    assert!(is_paused("target", &topic));
    let refused = ends(&process, 1, &["target", "resume", &topic, "--if-revision", "7"]);
    assert!(refused.error.contains("refused"), "{refused:?}");
    assert!(is_paused("target", &topic));
    let words = ["task", "create", "kafka", "--project", PROJECT, "--group", "g", "--in", "3s"];
    let words = [&words[..], &["--topic", &topic, "--key", "k", "--value", "v"]].concat();
    let said = ends(&process, 0, &words).said;
    let (kafka, _) = said.split_once("  due ").unwrap_or_else(|| panic!("{said}"));
    waits(kafka, "topic");
    assert_eq!(ends(&process, 0, &["target", "resume", &topic]).said, "revision 2\n");
    assert_eq!(end_of(&process, kafka)["task_status"], "finished");
    let seen = Log::open(&fixture, &topic).count(1).to_vec();
    assert_eq!((seen.len(), seen[0].text()), (1, "v".to_owned()));
    ends(&process, 0, &["service", "put", PROJECT, "billing", "--address", &stub.url("/")]);
    let told = ends(&process, 0, &["service", "get", PROJECT, "billing", "--json"]).json();
    assert_eq!((&told["address"], &told["service"]), (&stub.url("/").into(), &"billing".into()));
    let unknown = ends(&process, 1, &["service", "get", PROJECT, "bill"]);
    assert!(unknown.error.contains("there is no service bill"), "{unknown:?}");
    let of_project = api.list(&format!("project={PROJECT}&status=finished"));
    assert_eq!(of_project.len(), 2);
    process.stop_well();
}
