//! Tasks over gRPC, asked by clients that are not ours: Python's grpcio, and grpcurl.

use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::tokens::{start, token_of};
use super::{Api, fixture, launch, with};
use crate::clients::python;
use crate::support::{Endpoint, Log, Process, eventually, free_address, now_ms, start_all};

/// The codes of gRPC for what is refused.
const INVALID_ARGUMENT: u64 = 3;
pub(super) const NOT_FOUND: u64 = 5;
pub(super) const PERMISSION_DENIED: u64 = 7;
pub(super) const FAILED_PRECONDITION: u64 = 9;
pub(super) const ABORTED: u64 = 10;
const UNAVAILABLE: u64 = 14;
pub(super) const UNAUTHENTICATED: u64 = 16;

/// Runs it to its end, and gives back what it printed.
#[track_caller]
pub(super) fn output(command: &mut Command) -> String {
    let ended = command.output().expect("it starts");
    let (out, error) =
        (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{command:?}: {out}{error}");
    out.into_owned()
}

/// The code in Python that protoc makes of these files, each of which stands in a directory that its imports begin at.
#[track_caller]
pub(super) fn made_of(files: &[(&str, &str)]) -> tempfile::TempDir {
    let made = tempfile::tempdir().expect("a directory");
    let mut protoc = Command::new(python());
    protoc.args(["-m", "grpc_tools.protoc"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    for kind in ["--python_out", "--grpc_python_out"] {
        protoc.arg(format!("{kind}={}", made.path().display()));
    }
    for &(directory, file) in files {
        protoc.args(["-I", directory, &format!("{directory}/{file}")]);
    }
    output(&mut protoc);
    made
}

/// A program of the documents, with the code that is made for it as its page says.
pub(super) struct Program {
    made: tempfile::TempDir,
    path: PathBuf,
}

impl Program {
    pub(super) fn new(name: &str) -> Self {
        let made = made_of(&[("proto", "waterclock/v1/tasks.proto")]);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/clients").join(name);
        Self { made, path }
    }

    /// As it would be run.
    pub(super) fn prepared(&self, process: &Process, arguments: &[&str]) -> Command {
        let mut program = Command::new(python());
        program.arg(&self.path).env("PYTHONPATH", self.made.path());
        // One imports the other: nothing is to stand beside them.
        program.env("PYTHONDONTWRITEBYTECODE", "1");
        program.arg(process.address().expect("an address")).args(arguments);
        program
    }

    /// The lines that it prints.
    #[track_caller]
    pub(super) fn run(&self, process: &Process, arguments: &[&str]) -> Vec<String> {
        let mut program = self.prepared(process, arguments);
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
fn the_python_program_of_payments_is_asked_until_the_result_is_final() {
    let fixture = fixture("tasks-grpc-payment");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (program, host) = (Program::new("payment_grpc.py"), free_address());
    let payment = [&*host, "payment-17"];
    let end = "TASK_STATUS_FINISHED after 2 rounds: paid";
    let want = ["payment-17 is not final", "payment-17 is not final", "payment-17 is final", end];
    assert_eq!(program.run(&process, &payment), want);
    // Started again it finds the same task, and its service is not asked.
    assert_eq!(program.run(&process, &payment), [end]);

    let api = Api::of(&process);
    let listed = api.list("project=shop");
    let [task] = &listed[..] else { panic!("one task: {listed:?}") };
    let task = api.task(task["task_id"].as_str().expect("an id"));
    let of = |name: &str| &task[name];
    assert_eq!((of("task_type"), of("host")), (&json!("grpc"), &json!(host)), "{task}");
    // Rounds are no attempts, and come at equal intervals.
    assert_eq!((of("rounds"), of("attempts_total")), (&json!(2), &json!(1)), "{task}");
    let took = task["last"]["started"].as_u64().zip(task["trigger_at"].as_u64());
    assert!(took.is_some_and(|(last, first)| last - first >= 2_000), "{task}");
    process.stop_well();
}

/// What grpcurl prints; the path behind the address, and what is sent.
#[track_caller]
pub(super) fn grpcurl(process: &Process, method: &str, request: Option<&Value>) -> String {
    grpcurl_by(&["-plaintext"], process, method, request)
}

/// The same with further options.
#[track_caller]
pub(super) fn grpcurl_by(
    options: &[&str],
    process: &Process,
    method: &str,
    request: Option<&Value>,
) -> String {
    output(&mut grpcurl_command(options, process, method, request))
}

#[allow(clippy::disallowed_methods, reason = "a test must be told where it is")]
#[track_caller]
pub(super) fn grpcurl_command(
    options: &[&str],
    process: &Process,
    method: &str,
    request: Option<&Value>,
) -> Command {
    let program = std::env::var("WATERCLOCK_TEST_GRPCURL").unwrap_or_else(|_| {
        panic!("WATERCLOCK_TEST_GRPCURL is not set: scripts/test sets it to grpcurl, built by go")
    });
    let mut command = Command::new(program);
    command.args(options);
    if let Some(request) = request {
        command.arg("-d").arg(request.to_string());
    }
    command.arg(process.address().expect("an address")).arg(method);
    command
}

/// What grpcurl is told of a method of `waterclock.v1`.
#[track_caller]
pub(super) fn asked(process: &Process, method: &str, request: &Value) -> Value {
    asked_by(None, process, method, request).unwrap_or_else(|refused| panic!("{refused:?}"))
}

/// The same for who holds this token, or none; or the code of gRPC and the reason of a refusal that is no "try again".
#[track_caller]
pub(super) fn asked_by(
    token: Option<&str>,
    process: &Process,
    method: &str,
    request: &Value,
) -> Result<Value, (u64, String)> {
    let header = token.map(|token| format!("authorization: Bearer {token}"));
    let mut options = vec!["-plaintext", "-format-error"];
    if let Some(header) = &header {
        options.extend(["-H", header]);
    }
    let method = format!("waterclock.v1.{method}");
    eventually(&format!("{method} is answered"), || {
        let mut command = grpcurl_command(&options, process, &method, Some(request));
        let ended = command.output().expect("it starts");
        let read = |text: &[u8]| -> Value {
            let text = String::from_utf8_lossy(text);
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("{command:?}: {text}"))
        };
        if ended.status.success() {
            return Ok(Ok(read(&ended.stdout)));
        }
        let problem = read(&ended.stderr);
        match problem["code"].as_u64().unwrap_or_else(|| panic!("{problem}")) {
            UNAVAILABLE => Err(problem.to_string()),
            code => Ok(Err((code, reason(&problem)))),
        }
    })
}

/// The reason of a problem, as a person reads it: reflection says what details of errors look like.
#[track_caller]
fn reason(problem: &Value) -> String {
    let mut details = problem["details"].as_array().into_iter().flatten();
    let info = details.find(|of| of["@type"] == "type.googleapis.com/google.rpc.ErrorInfo");
    let reason = info.and_then(|of| of["reason"].as_str());
    reason.unwrap_or_else(|| panic!("{problem}")).to_owned()
}

#[test]
fn the_go_program_of_grpcurl_asks_by_reflection_any_instance() {
    let fixture = fixture("tasks-grpcurl");
    let target = fixture.target("out", 1);
    let [mut first, mut second] = start_all([
        launch(&fixture, "a", "lanes,worker,api"),
        launch(&fixture, "b", "lanes,worker,api"),
    ]);
    let services = grpcurl(&first, "list", None);
    let of_ours = ["Tasks", "Projects", "Schedules", "Runs"];
    let of_ours = of_ours.map(|name| format!("waterclock.v1.{name}"));
    for service in of_ours.iter().map(String::as_str).chain(["grpc.health.v1.Health"]) {
        assert!(services.lines().any(|line| line == service), "{services}");
    }
    let ask = |process: &Process, method: &str, request: Value| asked(process, method, &request);
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
            "options": {"expires_at": trigger_at + 60_000},
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
        assert_eq!(told["expiresAt"], (trigger_at + 60_000).to_string(), "{told}");
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

/// A task that asks the health service of a process how this service of it is, in an hour.
fn check_of(process: &Process, service: &str, request_id: &str) -> Value {
    json!({
        "trigger_at": now_ms() + 3_600_000, "service": "grpc.health.v1.Health", "retry": {"count": 3, "interval": 7},
        "project": "shop", "method": "Check", "host": process.address().expect("an address"), "group": "orders",
        "format": "GRPC_BODY_FORMAT_JSON", "body": STANDARD.encode(json!({ "service": service }).to_string()),
        "request_id": request_id,
    })
}

/// A task that has ended, as grpcurl shows it.
#[track_caller]
pub(super) fn end_of(process: &Process, id: &Value) -> Value {
    eventually(&format!("task {id} ends"), || {
        let task = asked(process, "Tasks/GetTask", &json!({ "task_id": id }));
        let has_ended = task["endedAt"].is_string();
        if has_ended { Ok(task) } else { Err(task.to_string()) }
    })
}

#[test]
fn the_go_program_of_grpcurl_creates_grpc_tasks_and_follows_them() {
    let fixture = fixture("tasks-grpcurl-calls");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let ask = |method: &str, request: Value| asked(&process, &format!("Tasks/{method}"), &request);
    let lists = |filter: Value, want: Value| {
        eventually(&format!("{filter} lists {want}"), || {
            let listed = ask("ListTasks", with(json!({"project": "shop"}), filter.clone()));
            let tasks = listed["tasks"].as_array().cloned().unwrap_or_default();
            let ids: Vec<_> = tasks.iter().map(|task| &task["taskId"]).collect();
            if json!(ids) == want { Ok(()) } else { Err(listed.to_string()) }
        });
    };
    let wanted = check_of(&process, "", "check-17");
    let created = ask("CreateGrpcTask", wanted.clone());
    assert_eq!(created["triggerAt"], wanted["trigger_at"].to_string());
    assert_eq!(ask("CreateGrpcTask", wanted.clone()), created, "one request is one task");
    let id = &created["taskId"];
    let shown = ask("GetTask", json!({"task_id": id, "payload": true}));
    let fields = [
        "taskId",
        "taskType",
        "taskStatus",
        "triggerAt",
        "nextAt",
        "project",
        "group",
        "requestId",
        "retry",
        "host",
        "grpcService",
        "method",
        "format",
        "payload",
    ];
    let told: serde_json::Map<_, _> =
        fields.map(|name| (name.to_owned(), shown[name].clone())).into_iter().collect();
    let retry = json!({"count": 3, "interval": 7, "backoff": "BACKOFF_FIXED", "maxInterval": "3600s", "jitter": 0});
    let want = json!({
        "taskId": id, "taskType": "TASK_TYPE_GRPC", "taskStatus": "TASK_STATUS_DELAY",
        "triggerAt": wanted["trigger_at"].to_string(), "nextAt": wanted["trigger_at"].to_string(),
        "project": "shop", "group": "orders", "requestId": "check-17", "retry": retry,
        "host": wanted["host"], "grpcService": "grpc.health.v1.Health", "method": "Check", "format": "GRPC_BODY_FORMAT_JSON",
        "payload": {"body": wanted["body"]},
    });
    assert_eq!(Value::Object(told), want, "{shown}");

    lists(json!({"type": "TASK_TYPE_GRPC", "group": "orders"}), json!([id]));
    lists(json!({"type": "TASK_TYPE_HTTP"}), json!([]));
    let cancelled = ask("CancelTask", json!({ "task_id": id }));
    assert_eq!(cancelled, json!({"taskId": id, "outcome": "CANCEL_OUTCOME_CANCELLED"}));
    assert_eq!(end_of(&process, id)["taskStatus"], "TASK_STATUS_CANCELLED");
    lists(json!({"status": "TASK_STATUS_CANCELLED"}), json!([id]));
    lists(json!({"status": "TASK_STATUS_DELAY"}), json!([]));

    // By hand: one that waits for its hour, and one that has failed. What is finished stays so.
    let waits = ask("CreateGrpcTask", check_of(&process, "", "check-18"));
    ask("RetryTask", json!({"task_id": waits["taskId"]}));
    let ended = end_of(&process, &waits["taskId"]);
    assert_eq!(
        (&ended["taskStatus"], &ended["attemptsTotal"]),
        (&json!("TASK_STATUS_FINISHED"), &json!(1))
    );
    let response = STANDARD.encode(r#"{"status":"SERVING"}"#);
    assert_eq!(ended["last"]["response"], response, "{ended}");
    let now = json!({"trigger_at": now_ms(), "retry": {"count": 1, "interval": 1}});
    let fails = ask("CreateGrpcTask", with(check_of(&process, "nobody", "check-19"), now));
    let fails = &fails["taskId"];
    let attempts = |task: &Value| (task["taskStatus"].clone(), task["attemptsTotal"].clone());
    assert_eq!(attempts(&end_of(&process, fails)), (json!("TASK_STATUS_FAILED"), json!(2)));
    ask("RetryTask", json!({ "task_id": fails }));
    eventually("it was called again, and fails again", || {
        let task = end_of(&process, fails);
        let is_so = attempts(&task) == (json!("TASK_STATUS_FAILED"), json!(4));
        if is_so { Ok(()) } else { Err(task.to_string()) }
    });
    let refused = |id: &Value| asked_by(None, &process, "Tasks/RetryTask", &json!({"task_id": id}));
    let too_late = Err((FAILED_PRECONDITION, "not_retryable".to_owned()));
    assert_eq!(refused(&waits["taskId"]), too_late);
    assert_eq!(refused(id), too_late);
    let nobody = Err((NOT_FOUND, "unknown_task".to_owned()));
    assert_eq!(refused(&json!("0123456789abcdef0123456789abcdef")), nobody);
    process.stop_well();
}

#[test]
fn the_go_program_of_grpcurl_creates_a_batch_and_is_told_of_each_of_it() {
    let fixture = fixture("tasks-grpcurl-batch");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let target = fixture.target("out", 1);
    let http = json!({"project": "shop", "group": "orders", "url": "http://169.254.169.254/", "trigger_at": now_ms()});
    let kafka = json!({"project": "shop", "group": "orders", "topic": target, "trigger_at": now_ms(), "value": "dg=="});
    let batch = json!({"tasks": [{"grpc": check_of(&process, "", "check-17")}, {"http": http}, {}, {"kafka": kafka}]});
    let told = asked(&process, "Tasks/BatchCreateTasks", &batch);
    let told = told["tasks"].as_array().expect("one for each").clone();
    let problems: Vec<_> = told.iter().map(|one| &one["problem"]).collect();
    let of = |field: &str| json!([INVALID_ARGUMENT, "wrong_fields", field]);
    let short = |problem: &&Value| {
        json!([problem["grpcCode"], problem["code"], problem["errors"][0]["field"]])
    };
    let short: Vec<_> = problems.iter().map(short).collect();
    let none = json!([null, null, null]);
    assert_eq!(short, [none.clone(), of("url"), of("task"), none], "{told:?}");
    // In the order of their due times; and nothing of the others.
    let want = json!([told[3]["taskId"], told[0]["taskId"]]);
    eventually("both are listed", || {
        let listed = asked(&process, "Tasks/ListTasks", &json!({"project": "shop"}));
        let listed = listed["tasks"].as_array().cloned().unwrap_or_default();
        let ids: Vec<_> = listed.iter().map(|task| &task["taskId"]).collect();
        if json!(ids) == want { Ok(()) } else { Err(json!(listed).to_string()) }
    });
    assert_eq!(Log::open(&fixture, &target).count(1)[0].text(), "v");
    let none = asked_by(None, &process, "Tasks/BatchCreateTasks", &json!({"tasks": []}));
    assert_eq!(none, Err((INVALID_ARGUMENT, "wrong_fields".to_owned())));
    process.stop_well();
}

#[test]
fn the_go_program_of_grpcurl_reports_for_an_executor() {
    let fixture = fixture("tasks-grpcurl-reports");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let target = fixture.target("work", 1);
    let task = json!({
        "project": "shop", "group": "imports", "topic": target, "trigger_at": now_ms(), "value": "dg==",
        "retry": {"count": 1, "interval": 1}, "options": {"feedback": {"deadline": "3600s"}},
    });
    let created = asked(&process, "Tasks/CreateKafkaTask", &task);
    let id = &created["taskId"];
    let mut log = Log::open(&fixture, &target);
    let mut ticket = |turn: usize| {
        let handed = &log.count(turn)[turn - 1];
        handed.header("x-delay-ticket").expect("a ticket")
    };
    let beat = |ticket: &str| {
        let sign = json!({"task_id": id, "ticket": ticket, "worker": "w-1", "cursor": "row:7", "percent": 40});
        asked_by(None, &process, "Tasks/Heartbeat", &sign)
    };
    let report = |ticket: &str, more: Value| {
        let result = with(json!({"task_id": id, "ticket": ticket}), more);
        asked_by(None, &process, "Tasks/ReportResult", &result)
    };
    let first = ticket(1);
    let sent = now_ms();
    let next_at = beat(&first).expect("it is heard")["nextAt"].clone();
    let next_at: u64 = next_at.as_str().and_then(|at| at.parse().ok()).expect("a time");
    assert!(next_at >= sent + 3_500_000, "{next_at}, and now is {sent}");
    let shown = asked(&process, "Tasks/GetTask", &json!({ "task_id": id }));
    let last = &shown["last"];
    assert_eq!(shown["taskStatus"], "TASK_STATUS_RUNNING", "{shown}");
    let told = [&last["worker"], &last["cursor"], &last["percent"], &shown["nextAt"]];
    assert_eq!(
        told,
        [&json!("w-1"), &json!("row:7"), &json!(40), &json!(next_at.to_string())],
        "{shown}"
    );

    let unsaid = report(&first, json!({}));
    assert_eq!(unsaid, Err((INVALID_ARGUMENT, "wrong_fields".to_owned())));
    let failed = json!({"outcome": "REPORTED_OUTCOME_FAILED", "error": "no stock"});
    assert_eq!(report(&first, failed), Ok(json!({"outcome": "retrying"})));
    let second = ticket(2);
    let stale = Err((ABORTED, "stale".to_owned()));
    assert_eq!(beat(&first), stale);
    let finished = json!({"outcome": "REPORTED_OUTCOME_FINISHED"});
    let mut forged = second.clone().into_bytes();
    forged[24] = if forged[24] == b'A' { b'B' } else { b'A' };
    let forged = String::from_utf8(forged).expect("text");
    let wrong = Err((PERMISSION_DENIED, "wrong_ticket".to_owned()));
    assert_eq!(report(&forged, finished.clone()), wrong);
    assert!(beat(&second).is_ok(), "nothing came of that");
    assert_eq!(report(&second, finished.clone()), Ok(json!({"outcome": "finished"})));
    assert_eq!(beat(&second), stale);
    let ended = end_of(&process, id);
    let told = [&ended["taskStatus"], &ended["turn"], &ended["attempts"][0]["error"]];
    assert_eq!(told, [&json!("TASK_STATUS_FINISHED"), &json!(2), &json!("no stock")], "{ended}");
    process.stop_well();
}

#[test]
fn the_go_program_of_grpcurl_is_let_in_by_its_token() {
    let fixture = fixture("tasks-grpcurl-tokens");
    let (reader, writer) = (token_of("reader", "*", "read"), token_of("writer", "shop", "write"));
    let mut process = start(&fixture, "a", &[&reader, &writer]);
    let wanted = check_of(&process, "", "check-17");
    let ask = |token: Option<&str>, method: &str, request: &Value| {
        asked_by(token, &process, &format!("Tasks/{method}"), request)
    };
    let refused = |code: u64, reason: &str| Err((code, reason.to_owned()));
    let create = |token| ask(token, "CreateGrpcTask", &wanted);
    let (read, write) = (Some(&*reader.text), Some(&*writer.text));
    assert_eq!(create(None), refused(UNAUTHENTICATED, "no_credentials"));
    assert_eq!(create(Some("wct_wrong")), refused(UNAUTHENTICATED, "bad_credentials"));
    assert_eq!(create(read), refused(PERMISSION_DENIED, "role_denied"));
    let listed = ask(read, "ListTasks", &json!({}));
    assert_eq!(listed, Ok(json!({})), "nothing was created");
    let id = create(write).expect("created")["taskId"].clone();
    let id = json!({ "task_id": id });
    // What needs no role needs a token.
    for method in ["GetTask", "ListTasks", "CancelTask", "RetryTask"] {
        let asked = if method == "ListTasks" { &json!({}) } else { &id };
        assert_eq!(
            ask(None, method, asked),
            refused(UNAUTHENTICATED, "no_credentials"),
            "{method}"
        );
    }
    for method in ["CancelTask", "RetryTask"] {
        let told = ask(read, method, &id);
        assert_eq!(told, refused(PERMISSION_DENIED, "role_denied"), "{method}");
    }
    let batch = json!({"tasks": [{ "grpc": wanted }]});
    let told = ask(read, "BatchCreateTasks", &batch);
    assert_eq!(told, refused(PERMISSION_DENIED, "role_denied"));
    let of_bank = with(wanted.clone(), json!({"project": "bank"}));
    let told = ask(write, "CreateGrpcTask", &of_bank);
    assert_eq!(told, refused(NOT_FOUND, "unknown_project"));
    for token in [read, write] {
        let shown = ask(token, "GetTask", &id).expect("it is shown");
        assert_eq!(shown["taskStatus"], "TASK_STATUS_DELAY", "{shown}");
    }
    let cancelled = ask(write, "CancelTask", &id).expect("cancelled");
    assert_eq!(cancelled["outcome"], "CANCEL_OUTCOME_CANCELLED");
    process.stop_well();
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
