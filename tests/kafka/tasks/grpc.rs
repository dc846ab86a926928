//! Tasks over gRPC, asked by clients that are not ours: Python's grpcio, and grpcurl.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{Api, fixture, launch, with};
use crate::clients::python;
use crate::support::{Endpoint, Process, eventually, now_ms};

/// Runs it to its end, and gives back what it printed.
#[track_caller]
fn output(command: &mut Command) -> String {
    let ended = command.output().expect("it starts");
    let (out, error) =
        (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{command:?}: {out}{error}");
    out.into_owned()
}

/// A program of the documents, with the code that is made for it as its page says.
struct Program {
    made: tempfile::TempDir,
    path: PathBuf,
}

impl Program {
    fn new(name: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let made = tempfile::tempdir().expect("a directory");
        let mut protoc = Command::new(python());
        protoc.args(["-m", "grpc_tools.protoc", "-I", "proto"]).current_dir(root);
        for kind in ["--python_out", "--grpc_python_out"] {
            protoc.arg(format!("{kind}={}", made.path().display()));
        }
        output(protoc.arg("proto/waterclock/v1/tasks.proto"));
        Self { made, path: root.join("docs/clients").join(name) }
    }

    /// The lines that it prints.
    #[track_caller]
    fn run(&self, process: &Process, arguments: &[&str]) -> Vec<String> {
        let mut program = Command::new(python());
        program.arg(&self.path).env("PYTHONPATH", self.made.path());
        // One imports the other: nothing is to stand beside them.
        program.env("PYTHONDONTWRITEBYTECODE", "1");
        program.arg(process.address().expect("an address")).args(arguments);
        output(&mut program).lines().map(str::to_owned).collect()
    }
}

#[test]
fn the_python_program_of_grpc_does_what_it_says() {
    let fixture = fixture("tasks-grpc");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let told = Program::new("tasks_grpc.py").run(&process, &[&stub.url("/fail?n=1")]);
    let want = ["the same task", "TASK_STATUS_FINISHED 2", "CANCEL_OUTCOME_CANCELLED"];
    assert_eq!(told, want);
    let calls = stub.calls();
    assert_eq!(calls.len(), 2, "{calls:?}");
    // HTTP shows the same tasks.
    let (status, listed) = api.answered("GET", "/v1/tasks?project=shop", None);
    let listed = listed["tasks"].as_array().expect("tasks");
    let ended: Vec<_> = listed.iter().map(|task| task["task_status"].clone()).collect();
    assert_eq!((status, ended), (200, vec![json!("finished"), json!("cancelled")]));
    assert_eq!(listed[0]["task_id"], calls[0].id, "{listed:?}");
    process.stop_well();
}

#[test]
fn the_python_program_of_payments_looks_on_until_the_result_is_final() {
    let fixture = fixture("tasks-grpc-payment");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let stub = Endpoint::start();
    let (program, url) = (Program::new("payment_grpc.py"), stub.url("/notyet?n=2"));
    // Started again it finds the same task.
    for _ in 0..2 {
        let told = program.run(&process, &[&url, "payment-17"]);
        assert_eq!(told, ["TASK_STATUS_FINISHED after 2 rounds"]);
    }
    let calls = stub.calls();
    assert_eq!(calls.len(), 3, "{calls:?}");
    let apart = calls.windows(2).map(|pair| pair[1].began - pair[0].began);
    assert!(apart.clone().all(|apart| apart >= 1_000), "{:?}", apart.collect::<Vec<_>>());
    process.stop_well();
}

/// What grpcurl prints; the path behind the address, and what is sent.
#[track_caller]
fn grpcurl(process: &Process, method: &str, request: Option<&Value>) -> String {
    grpcurl_by(&["-plaintext"], process, method, request)
}

/// The same with further options.
#[allow(clippy::disallowed_methods, reason = "a test must be told where it is")]
#[track_caller]
pub(super) fn grpcurl_by(
    options: &[&str],
    process: &Process,
    method: &str,
    request: Option<&Value>,
) -> String {
    let program = std::env::var("WATERCLOCK_TEST_GRPCURL").unwrap_or_else(|_| {
        panic!("WATERCLOCK_TEST_GRPCURL is not set: scripts/test sets it to grpcurl, built by go")
    });
    let mut command = Command::new(program);
    command.args(options);
    if let Some(request) = request {
        command.arg("-d").arg(request.to_string());
    }
    output(command.arg(process.address().expect("an address")).arg(method))
}

#[test]
fn the_go_program_of_grpcurl_asks_by_reflection_any_instance() {
    let fixture = fixture("tasks-grpcurl");
    let target = fixture.target("out", 1);
    let mut first = launch(&fixture, "a", "lanes,worker,api").start();
    let mut second = launch(&fixture, "b", "lanes,worker,api").start();
    let services = grpcurl(&first, "list", None);
    for service in ["waterclock.v1.Tasks", "waterclock.v1.Projects", "grpc.health.v1.Health"] {
        assert!(services.lines().any(|line| line == service), "{services}");
    }
    let ask = |process: &Process, method: &str, request: Value| -> Value {
        let told = grpcurl(process, &format!("waterclock.v1.{method}"), Some(&request));
        serde_json::from_str(&told).unwrap_or_else(|_| panic!("{told}"))
    };
    eventually("both are ready, says the health of gRPC", || {
        let health = [&first, &second].map(|of| grpcurl(of, "grpc.health.v1.Health/Check", None));
        let are_serving = health.iter().all(|told| told.contains("\"SERVING\""));
        if are_serving { Ok(()) } else { Err(health.concat()) }
    });
    let trigger_at = now_ms() + 3_600_000;
    let mut ids = Vec::new();
    for n in 0..8 {
        let task = json!({
            "project": "shop", "group": "orders", "topic": target, "key": "aw==", "value": "dg==", "trigger_at": trigger_at,
            "request_id": format!("r{n}"), "headers": [{"name": "a", "value": "b"}],
        });
        let told = ask(&first, "Tasks/CreateKafkaTask", task);
        assert_eq!(told["triggerAt"], trigger_at.to_string(), "{told}");
        ids.push(told["taskId"].clone());
    }
    // Whichever has the lane: both know each task.
    for (n, id) in ids.iter().enumerate() {
        let process = [&second, &first][n % 2];
        let told = ask(process, "Tasks/GetTask", json!({"task_id": id, "payload": true}));
        assert_eq!(
            (&told["taskId"], &told["taskStatus"]),
            (id, &json!("TASK_STATUS_DELAY")),
            "{told}"
        );
        assert_eq!(
            told["payload"],
            json!({
                "body": "dg==", "key": "aw==", "headers": [{"name": "a", "value": "b"}]
            })
        );
        let told = ask(process, "Tasks/CancelTask", json!({"task_id": id}));
        assert_eq!(told["outcome"], "CANCEL_OUTCOME_CANCELLED", "{told}");
    }
    let listed = ask(
        &second,
        "Tasks/ListTasks",
        json!({"project": "shop", "status": "TASK_STATUS_CANCELLED"}),
    );
    assert_eq!(listed["tasks"].as_array().map(Vec::len), Some(8), "{listed}");
    // A pause by gRPC is in force for what HTTP creates.
    let paused =
        ask(&second, "Projects/Put", json!({"project": "shop", "settings": {"paused": true}}));
    assert_eq!(paused["revision"], "1", "{paused}");
    eventually("the other has heard of it", || {
        let shown = ask(&first, "Projects/Get", json!({"project": "shop"}));
        if shown["settings"]["paused"] == true { Ok(()) } else { Err(shown.to_string()) }
    });
    first.stop_well();
    second.stop_well();
}

/// Bodies in JSON, protobuf, retries and polling: the target is the health service of another instance, which has reflection.
#[test]
fn a_grpc_task_calls_a_service_of_tonic_by_its_reflection() {
    let fixture = fixture("tasks-grpc-out");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let api = Api::of(&process);
    let host = process.address().expect("an address").to_owned();
    let rpc = |more: Value| {
        let task = json!({
            "project": "shop", "group": "o", "delay": "1s", "host": host, "service": "grpc.health.v1.Health",
            "method": "Check", "format": "json", "retry": {"count": 2, "interval": 1},
        });
        with(task, more)
    };
    let create = |task: &Value| {
        let (status, told) = api.answered("POST", "/v1/tasks/grpc", Some(task));
        assert_eq!(status, 201, "{told}");
        told["task_id"].as_str().expect("an id").to_owned()
    };
    let healthy = create(&rpc(json!({"body": {"service": ""}})));
    let bytes = create(&rpc(json!({"format": "protobuf"})));
    let unknown = create(&rpc(json!({"body": {"service": "nobody"}})));
    let wrong = create(&rpc(json!({"body": {"servise": ""}, "retry": {"count": 0}})));
    let handed = create(&rpc(json!({"feedback": {"deadline": "8s"}, "retry": {"count": 0}})));

    let task = api.end_of(&healthy);
    let last = &task["last"];
    assert_eq!((&task["task_status"], &task["task_type"]), (&json!("finished"), &json!("grpc")));
    assert_eq!((&task["host"], &task["method"]), (&json!(host), &json!("Check")));
    assert_eq!(
        (&last["status"], &last["response"]),
        (&json!(0), &json!(r#"{"status":"SERVING"}"#))
    );
    assert_eq!(api.end_of(&bytes)["task_status"], "finished");
    let task = api.end_of(&unknown);
    assert_eq!((&task["task_status"], &task["attempts_total"]), (&json!("failed"), &json!(3)));
    let error = task["last"]["error"].as_str().expect("an error");
    assert!(error.starts_with("grpc_status: NOT_FOUND (5)"), "{error}");
    let task = api.end_of(&wrong);
    let error = task["last"]["error"].as_str().expect("an error");
    assert!(error.starts_with("body_mismatch: ") && error.contains("servise"), "{error}");

    // OK hands it over, and nobody reports: by the deadline, which counts from the answer, it has failed.
    let task = api.end_of(&handed);
    let last = &task["last"];
    assert_eq!(
        (&task["task_status"], &last["error"].as_str().map(|error| &error[..7])),
        (&json!("failed"), &Some("timeout")),
        "{task}"
    );
    let took =
        last["ended"].as_u64().expect("a time") - task["trigger_at"].as_u64().expect("a time");
    assert!(took >= 8_000, "{task}");

    let listed = api.list("project=shop&type=grpc");
    assert_eq!(listed.len(), 5, "{listed:?}");
    assert!(api.list("project=shop&type=http").is_empty());
    process.stop_well();
}
