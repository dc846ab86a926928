//! Calls over gRPC to servers that are not ours: Python's grpcio, which misbehaves as it is asked to, and sockets that speak none.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use waterclock::engine::UnixMillis;
use waterclock::engine::task::id::TaskId;

use super::grpc::made_of;
use super::misbehaving::{LATE, NOT_PUBLIC};
use super::run_executors::is_finished;
use super::tls::{Issuer, authority};
use super::{Api, fixture, launch, launch_for, put_service, with};
use crate::callbacks::{Line, Service};
use crate::clients::python;
use crate::support::{Endpoint, Fixture, eventually, now_ms, patient};

/// The service of the program in Python.
const STOCK: &str = "shop.stock.v1.Stock";
/// With what calls are signed: 32 bytes.
const KEY: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
/// What its RetryInfo asks for, in milliseconds.
const AGAIN_MS: u64 = 2_000;

/// The program in Python, which says what it sees.
struct Stock {
    service: Service,
    port: u64,
    /// Code that it runs. It goes after the program.
    _made: tempfile::TempDir,
}

impl Stock {
    #[track_caller]
    fn start(arguments: &[&str]) -> Self {
        let files = [("proto", "waterclock/v1/tasks.proto"), ("tests/kafka/tasks", "stock.proto")];
        let made = made_of(&files);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kafka/tasks/grpc_service.py");
        let mut program = Command::new(python());
        program.arg(path).args(arguments);
        program.env("PYTHONPATH", made.path()).env("PYTHONDONTWRITEBYTECODE", "1");
        let mut this = Self { service: Service::start(program), port: 0, _made: made };
        this.port = eventually("it says its port", || {
            let lines = this.lines();
            lines
                .first()
                .and_then(|line| line["port"].as_u64())
                .ok_or_else(|| "nothing yet; an error would be on stderr".to_owned())
        });
        this
    }

    fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// What it has said so far.
    fn lines(&self) -> Vec<Value> {
        let read = |(_, line): &Line| -> Value {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
        };
        self.service.lines.lock().iter().map(read).collect()
    }

    /// What it has said that has this field.
    fn lines_with(&self, field: &str) -> Vec<Value> {
        self.lines().into_iter().filter(|line| !line[field].is_null()).collect()
    }

    /// The calls of one task, of all its polling rounds.
    fn calls_of(&self, id: &str) -> Vec<Value> {
        let is_of = |call: &Value| {
            let webhook = call["metadata"]["webhook-id"].as_str();
            webhook.and_then(|of| of.split(".r").next()) == Some(id)
        };
        self.lines_with("call").into_iter().filter(is_of).collect()
    }
}

/// A task that calls the stock now.
fn release(project: &str, more: Value) -> Value {
    let task = json!({"project": project, "group": "g", "delay": 0, "service": STOCK, "method": "Release"});
    with(task, more)
}

/// The same at a host, with a body in JSON.
fn release_at(host: &str, project: &str, body: &Value, more: Value) -> Value {
    with(release(project, json!({"host": host, "format": "json", "body": body})), more)
}

/// The body that has the stock do this with the first calls of a task. 0: with each.
fn then(then: &str, times: u32) -> Value {
    json!({"order_id": "order-17", "then": then, "times": times})
}

#[track_caller]
fn create(api: &Api, task: &Value) -> String {
    let (status, told) = api.answered("POST", "/v1/tasks/grpc", Some(task));
    assert_eq!(status, 201, "{task}: {told}");
    told["task_id"].as_str().expect("an id").to_owned()
}

#[track_caller]
fn number(of: &Value) -> u64 {
    of.as_u64().unwrap_or_else(|| panic!("{of} is no number"))
}

/// What the error of an attempt begins with; empty if it has none.
fn word(attempt: &Value) -> &str {
    let error = attempt["error"].as_str().unwrap_or_default();
    error.split(':').next().unwrap_or_default()
}

#[test]
fn the_python_program_of_a_stock_is_called_by_its_reflection() {
    let fixture = fixture("tasks-grpc-stock");
    let launch = launch(&fixture, "a", "lanes,worker,api");
    let launch = launch.env("WATERCLOCK_SECRETS__SIGNING__VALUE", KEY);
    let mut process = launch.env("WATERCLOCK_SECRETS__SIGNING__PROJECTS", "shop").start();
    let (api, stock) = (Api::of(&process), Stock::start(&["--secret", KEY]));
    let address = format!("http://{}", stock.host());
    let service = json!({"address": address, "protocol": "grpc", "secret": "signing"});
    put_service(&api, "shop", "stock", &service);
    // Names as JSON has them; the other tests have them as the file does. A message takes both.
    let order = json!({
        "orderId": "order-17", "lines": [{"sku": "a", "count": 299}, {"sku": "b", "count": "1"}], "labels": {"shop": "7"},
        "reason": "REASON_EXPIRED", "seal": "AP8=", "held": "1.500s", "weight": 0.0,
    });
    let note = STANDARD.encode("röh");
    let more = json!({
        "named_service": "stock", "format": "json", "body": order, "headers": {"x-shop": "7", "x-note-bin": note},
    });
    let in_json = create(&api, &release("shop", more));
    let task = api.end_of(&in_json);
    let want = json!({"orderId": "order-17", "pieces": "300", "reason": "REASON_EXPIRED"});
    assert_eq!(task["task_status"], "finished", "{task}");
    let shown = task["last"]["response"].as_str().map(serde_json::from_str::<Value>);
    assert_eq!(shown.expect("an answer").expect("JSON"), want, "{task}");

    let calls = stock.calls_of(&in_json);
    let [call] = &calls[..] else { panic!("one call: {calls:?}") };
    let want = with(
        order.clone(),
        json!({"lines": [{"sku": "a", "count": "299"}, {"sku": "b", "count": "1"}]}),
    );
    assert_eq!(call["order"], want, "{call}");
    let metadata = &call["metadata"];
    for (name, want) in [
        ("webhook-id", &*in_json),
        ("idempotency-key", &*in_json),
        ("waterclock-turn", "1"),
        ("waterclock-attempt", "1"),
        ("x-shop", "7"),
        ("x-note-bin", "röh"),
    ] {
        assert_eq!(metadata[name], want, "{name}: {metadata}");
    }
    let due: Option<u64> = metadata["waterclock-due"].as_str().and_then(|due| due.parse().ok());
    assert_eq!(due, task["trigger_at"].as_u64(), "{metadata}");
    let agent = metadata["user-agent"].as_str().unwrap_or_default();
    assert!(agent.starts_with("waterclock/"), "{metadata}");
    assert_eq!(metadata["waterclock-ticket"], Value::Null, "{metadata}");
    let left = call["left"].as_f64().unwrap_or_default();
    assert!(left > 0.0 && left < 11.0, "a call has 10 s: {call}");
    assert_eq!(call["signed"], true, "the message is signed that was sent: {call}");

    // grpcio has the older version of reflection. What is about the task is not told to it.
    let asked = |stock: &Stock| -> Vec<Value> {
        let is_reflection = |line: &Value| {
            line["asked"].as_str().is_some_and(|method| method.starts_with("/grpc.reflection."))
        };
        stock.lines().into_iter().filter(is_reflection).collect()
    };
    let questions = asked(&stock);
    let path =
        |version: &str| format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
    let methods: Vec<_> = questions.iter().map(|of| &of["asked"]).collect();
    assert!(methods.len() > 1 && *methods[0] == path("v1"), "{methods:?}");
    assert!(methods[1..].iter().all(|of| **of == path("v1alpha")), "{methods:?}");
    for question in &questions {
        let names = question["metadata"].as_object().expect("an object");
        let is_of_task = |name: &String| {
            ["webhook-", "waterclock-", "idempotency-"].iter().any(|of| name.starts_with(of))
        };
        assert!(!names.keys().any(is_of_task), "{question}");
    }

    // The same as bytes arrives as it is, and so is the answer shown.
    let more = json!({"named_service": "stock", "body_b64": call["message"]});
    let in_bytes = create(&api, &release("shop", more));
    let task = api.end_of(&in_bytes);
    assert_eq!(task["task_status"], "finished", "{task}");
    let want = STANDARD.encode(b"\x0a\x08order-17\x10\xac\x02\x18\x01");
    assert_eq!(task["last"]["response_b64"], want, "{task}");
    let calls = stock.calls_of(&in_bytes);
    let [again] = &calls[..] else { panic!("one call: {calls:?}") };
    for field in ["order", "message", "signed", "peer"] {
        assert_eq!(again[field], call[field], "{field}: calls of one project share a connection");
    }
    assert_eq!(asked(&stock).len(), questions.len(), "bytes need no reflection");

    // A schedule does the same at each of its times, which the call says.
    let start = (now_ms() + 2_000).div_ceil(1_000) * 1_000;
    let twice = json!({
        "project": "shop", "group": "g", "name": "twice", "every": "1s", "start": start, "count": 2,
        "task": {
            "type": "grpc", "named_service": "stock", "service": STOCK, "method": "Release", "format": "json", "body": order,
        },
    });
    let (status, told) = api.answered("POST", "/v1/schedules", Some(&twice));
    assert_eq!(status, 201, "{told}");
    let schedule = TaskId::schedule("shop", "twice").expect("an id");
    for at in [start, start + 1_000] {
        let id = schedule.occurrence(UnixMillis(at));
        let of_time = eventually(&format!("{id} is called"), || {
            stock.calls_of(id.as_str()).pop().ok_or_else(|| stock.lines().len().to_string())
        });
        assert_eq!(of_time["metadata"]["waterclock-nominal"], at.to_string(), "{of_time}");
        for field in ["order", "message", "signed"] {
            assert_eq!(of_time[field], call[field], "{field}");
        }
        let task = api.end_of(id.as_str());
        assert_eq!(task["task_status"], "finished", "{task}");
        assert_eq!((&task["nominal_at"], &task["attempts_total"]), (&json!(at), &json!(1)));
    }
    process.stop_well();
}

/// How a task ends, and what was called for it.
struct End {
    /// Its own project, so that no breaker and no connection of another one is in its way.
    project: &'static str,
    task: Value,
    status: &'static str,
    /// Of its last attempt: the status of gRPC, and the word that its error begins with.
    last: (Option<u8>, &'static str),
    attempts: u64,
    calls: usize,
}

#[test]
fn the_python_program_of_a_stock_answers_what_its_tasks_end_by() {
    let fixture = fixture("tasks-grpc-ends");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stock) = (Api::of(&process), Stock::start(&[]));
    let mute = Stock::start(&["--no-reflection"]);
    let (host, at_mute) = (stock.host(), mute.host());
    let once = json!({"retry": {"count": 1, "interval": 1}});
    let end = |project, status, last, attempts, calls, (body, more): (Value, Value)| End {
        project,
        task: release_at(&host, project, &body, more),
        status,
        last,
        attempts,
        calls,
    };
    let quick = with(once.clone(), json!({"timeout": "1s"}));
    let polls = json!({"poll": {"interval": "1s", "rounds": 3}});
    let plain = || then("", 0);
    #[rustfmt::skip]
    let mut ends = vec![
        end("twice",     "finished", (Some(0), ""),               3, 3, (then("UNAVAILABLE", 2), json!({"retry": {"count": 3, "interval": 1}}))),
        end("again",     "finished", (Some(0), ""),               2, 2, (then("retry info", 1), once.clone())),
        end("polls",     "finished", (Some(0), ""),               1, 2, (then("retry info", 1), polls)),
        end("hangs",     "finished", (Some(0), ""),               2, 2, (then("hang", 1), quick)),
        end("compress",  "failed",   (None, "call_broken"),       1, 1, (then("compress", 0), json!({}))),
        end("missing",   "failed",   (Some(5), "grpc_status"),    2, 2, (then("NOT_FOUND", 0), once.clone())),
        end("not-yet",   "failed",   (Some(9), "grpc_status"),    2, 2, (then("FAILED_PRECONDITION", 0), once.clone())),
        end("wrong",     "failed",   (Some(3), "grpc_status"),    1, 1, (then("INVALID_ARGUMENT", 0), json!({}))),
        end("large",     "failed",   (None, "answer_too_large"),  1, 1, (then("large", 0), json!({}))),
        end("field",     "failed",   (None, "body_mismatch"),     2, 0, (json!({"order_idd": "order-17"}), once)),
        end("kind",      "failed",   (None, "body_mismatch"),     1, 0, (json!({"lines": 7}), json!({}))),
        end("method",    "failed",   (None, "method_unknown"),    1, 0, (plain(), json!({"method": "Releese"}))),
        end("service",   "failed",   (None, "method_unknown"),    1, 0, (plain(), json!({"service": "shop.stock.v1.Stok"}))),
        end("streams",   "failed",   (None, "method_streams"),    1, 0, (plain(), json!({"method": "Watch"}))),
        end("mute",      "failed",   (None, "reflection_missing"), 1, 0, (plain(), json!({ "host": at_mute }))),
    ];
    // Of bytes the worker knows nothing: it is the server that refuses.
    ends.push(End {
        project: "bytes",
        task: release("bytes", json!({"host": host, "method": "Releese"})),
        status: "failed",
        last: (Some(12), "grpc_status"),
        attempts: 1,
        calls: 0,
    });
    let ids: Vec<String> = ends.iter().map(|end| create(&api, &end.task)).collect();
    for (end, id) in ends.iter().zip(&ids) {
        let task = api.end_of(id);
        assert_eq!(task["task_status"], end.status, "{}: {task}", end.project);
        assert_eq!(task["attempts_total"], end.attempts, "{}: {task}", end.project);
        let last = &task["last"];
        assert_eq!((&last["status"], word(last)), (&json!(end.last.0), end.last.1), "{task}");
        assert_eq!(stock.calls_of(id).len(), end.calls, "{}: {task}", end.project);
    }
    assert!(mute.lines_with("call").is_empty(), "nobody knows what to send");

    let of = |project: &str| {
        let at = ends.iter().position(|end| end.project == project).expect("there");
        (api.task(&ids[at]), stock.calls_of(&ids[at]))
    };
    let (task, calls) = of("twice");
    let attempts = task["attempts"].as_array().expect("attempts");
    let told: Vec<_> = attempts.iter().map(|of| (&of["turn"], &of["outcome"])).collect();
    assert_eq!(json!(told), json!([[1, "failed"], [2, "failed"], [3, "finished"]]), "{task}");
    for (call, nth) in calls.iter().zip(["1", "2", "3"]) {
        let metadata = &call["metadata"];
        let told = ["webhook-id", "waterclock-turn", "waterclock-attempt"].map(|of| &metadata[of]);
        assert_eq!(told, [&task["task_id"], &json!(nth), &json!(nth)], "{calls:?}");
        assert_eq!(call["peer"], calls[0]["peer"], "a status is no reason to connect anew");
    }
    let gap = |calls: &[Value]| number(&calls[1]["at"]) - number(&calls[0]["at"]);
    assert!(gap(&calls) >= 1_000 && gap(&calls[1..]) >= 1_000, "{calls:?}");
    let (_, calls) = of("again");
    let (gap, most) = (gap(&calls), AGAIN_MS + patient(LATE).as_millis() as u64);
    assert!((AGAIN_MS..most).contains(&gap), "its RetryInfo is kept: {gap} ms");
    let (task, calls) = of("polls");
    assert_eq!(task["rounds"], 1, "{task}");
    let id = task["task_id"].as_str().expect("an id");
    let told: Vec<_> = calls.iter().map(|call| &call["metadata"]["webhook-id"]).collect();
    assert_eq!(json!(told), json!([id, format!("{id}.r1")]), "each round has an id of its own");
    let (task, _) = of("missing");
    let want = "grpc_status: NOT_FOUND (5): as asked: größer than 100%, order-17";
    assert_eq!(task["last"]["error"], want, "{task}");

    // The server is told the time, too: it may say first that this is over.
    let (task, calls) = of("hangs");
    let first = &task["attempts"][0];
    let by_server = [&first["error"], &first["status"]];
    println!("a call that hangs ended with {by_server:?}");
    let is_late = word(first) == "timeout";
    assert!(is_late || first["status"] == 4 || word(first) == "call_broken", "{task}");
    let left = calls[0]["left"].as_f64().unwrap_or_default();
    assert!(left > 0.0 && left < 1.1, "it has a second: {calls:?}");
    if is_late {
        assert_ne!(calls[0]["peer"], calls[1]["peer"], "that connection serves no further call");
    }
    eventually("the server hears that nobody waits", || {
        let left = stock.lines_with("left_alone");
        if left.iter().any(|of| of["left_alone"] == task["task_id"]) {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    });
    process.stop_well();
}

#[test]
fn the_python_program_of_a_stock_reports_what_it_took() {
    let fixture = fixture("tasks-grpc-took");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let api = Api::of(&process);
    let stock = Stock::start(&["--waterclock", &process.address().expect("an address")]);
    let more = json!({"feedback": {"deadline": "1h"}, "retry": {"count": 3, "interval": 1}});
    let id = create(&api, &release_at(&stock.host(), "shop", &then("take", 0), more));
    // The method has answered at once, and it works for a second.
    eventually("the task is running", || {
        let task = api.task(&id);
        if task["task_status"] == "running" { Ok(()) } else { Err(task.to_string()) }
    });
    let task = api.end_of(&id);
    assert_eq!(task["task_status"], "finished", "{task}");
    assert_eq!((&task["turn"], &task["attempts_total"]), (&json!(2), &json!(2)), "{task}");
    let first = &task["attempts"][0];
    let told = [&first["outcome"], &first["error"], &first["worker"]];
    assert_eq!(told, [&json!("failed"), &json!("no stock"), &json!("stock")], "{task}");

    let calls = stock.calls_of(&id);
    let [taken, again] = &calls[..] else { panic!("two calls: {calls:?}") };
    let of = |name: &str| [taken, again].map(|call| call["metadata"][name].clone());
    assert_eq!(of("webhook-id"), [&*id, &*id], "{calls:?}");
    assert_eq!(of("waterclock-attempt"), ["1", "2"], "{calls:?}");
    assert_eq!(of("waterclock-cursor-bin"), [Value::Null, json!("rów:7")], "{calls:?}");
    let tickets = of("waterclock-ticket");
    assert!(tickets.iter().all(Value::is_string) && tickets[0] != tickets[1], "{tickets:?}");

    // It may still be on its way to say what it was told.
    let reports = eventually("it was told of each report", || {
        let reports = stock.lines_with("reported");
        if reports.len() == 3 { Ok(reports) } else { Err(format!("{:?}", stock.lines())) }
    });
    let told: Vec<_> = reports.iter().map(|of| &of["told"]["outcome"]).collect();
    assert_eq!(json!(told), json!([null, "retrying", "finished"]), "{reports:?}");
    let works: Vec<_> = stock.lines_with("works").iter().map(|of| number(&of["at"])).collect();
    let [failed, finished] = works[..] else { panic!("two turns: {works:?}") };
    assert!(number(&again["at"]) >= failed + 1_000, "the retry has waited: {calls:?}");
    assert!(number(&task["ended_at"]) >= finished, "it ended by the report: {task}");
    process.stop_well();
}

/// Creates a run of so many shards that call a stock, and says its id.
#[track_caller]
fn run_of(api: &Api, stock: &Stock, shards: usize, body: &Value, more: Value) -> String {
    let task = json!({
        "type": "grpc", "host": stock.host(), "service": STOCK, "method": "Release",
        "format": "json", "body": body,
    });
    let run = json!({
        "project": "shop", "group": "g", "shards": shards, "delay": "1s", "task": with(task, more),
    });
    let (status, told) = api.answered("POST", "/v1/runs", Some(&run));
    assert_eq!(status, 201, "{run}: {told}");
    told["run_id"].as_str().expect("an id").to_owned()
}

#[test]
fn the_python_program_of_a_stock_is_called_for_each_shard_of_a_run() {
    const SHARDS: usize = 5;
    let fixture = fixture("tasks-grpc-shards");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let api = Api::of(&process);
    let stock = Stock::start(&["--waterclock", &process.address().expect("an address")]);
    let answers = run_of(&api, &stock, SHARDS, &then("", 0), json!({}));
    // These work on after they have answered. Each fails once.
    let more = json!({"feedback": {"deadline": "1h"}, "retry": {"count": 3, "interval": 1}});
    let takes = run_of(&api, &stock, SHARDS, &then("take", 0), more);
    for (run, want) in [(&answers, &["1"][..]), (&takes, &["1", "2"][..])] {
        is_finished(&api, run, SHARDS);
        let (status, told) = api.answered("GET", &format!("/v1/runs/{run}/shards"), None);
        assert_eq!(status, 200, "{told}");
        let shards = told["shards"].as_array().expect("shards");
        assert_eq!(shards.len(), SHARDS, "{told}");
        for (index, shard) in shards.iter().enumerate() {
            let calls = stock.calls_of(shard["task_id"].as_str().expect("an id"));
            let of = |name: &str| -> Vec<&str> {
                calls.iter().filter_map(|call| call["metadata"][name].as_str()).collect()
            };
            assert_eq!(of("waterclock-attempt"), want, "{shard}: {calls:?}");
            let told = vec![format!("{index}/{SHARDS}"); want.len()];
            assert_eq!(of("waterclock-shard"), told, "{shard}: {calls:?}");
        }
    }
    assert_eq!(stock.lines_with("call").len(), 3 * SHARDS, "and nothing else");
    process.stop_well();
}

/// Writes a key, and a certificate of 127.0.0.1 by this authority, and says where they stand: the certificate first.
fn pair(fixture: &Fixture, name: &str, by: &Issuer) -> [String; 2] {
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, by).expect("signed");
    [("pem", certificate.pem()), ("key", key.serialize_pem())].map(|(kind, text)| {
        let path = fixture.path(&format!("{name}.{kind}"));
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    })
}

#[test]
fn the_python_program_of_a_stock_is_called_over_tls_if_its_authority_is_trusted() {
    let fixture = fixture("tasks-grpc-tls");
    let (trusted, stranger) = (authority("trusted"), authority("stranger"));
    let file = fixture.path("trusted.pem");
    std::fs::write(&file, trusted.pem()).expect("written");
    let file = file.display().to_string();
    let launch = launch(&fixture, "a", "lanes,worker,api").env("SSL_CERT_FILE", &file);
    let mut process = launch.start();
    let api = Api::of(&process);
    let serve = |name: &str, by: &Issuer| {
        let [certificate, key] = pair(&fixture, name, by);
        Stock::start(&["--cert", &certificate, "--key", &key])
    };
    let (known, unknown) = (serve("known", &trusted), serve("unknown", &stranger));
    let tls = json!({"tls": true, "retry": {"count": 1, "interval": 1}});
    let at = |stock: &Stock, project: &str| {
        create(&api, &release_at(&stock.host(), project, &then("", 0), tls.clone()))
    };
    let (fine, refused) = (at(&known, "fine"), at(&unknown, "refused"));
    let address = format!("https://{}", known.host());
    put_service(&api, "fine", "stock", &json!({"address": address, "protocol": "grpc"}));
    let more = json!({"named_service": "stock", "format": "json", "body": then("", 0)});
    let by_name = create(&api, &release("fine", more));

    for id in [&fine, &by_name] {
        let task = api.end_of(id);
        assert_eq!(task["task_status"], "finished", "{task}");
        assert_eq!(known.calls_of(id).len(), 1, "{task}");
    }
    let task = api.end_of(&refused);
    assert_eq!(task["task_status"], "failed", "{task}");
    assert_eq!(task["attempts_total"], 2, "{task}");
    for attempt in task["attempts"].as_array().expect("attempts") {
        let error = attempt["error"].as_str().unwrap_or_default();
        let says_so = error.starts_with("connection_failed: ") && error.contains("certificate");
        assert!(says_so, "{task}");
    }
    let seen = unknown.lines_with("asked");
    assert!(seen.is_empty(), "{seen:?}");
    process.stop_well();
}

/// A frame of HTTP/2 with no settings, and the kind of one with headers.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
const HEADERS: u8 = 1;
/// What a client of HTTP/2 begins with, in bytes.
const PREFACE: usize = 24;

/// A server on loopback, of which each connection is served so.
fn raw(serve: fn(&mut TcpStream) -> io::Result<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // The other side goes when it likes.
            std::thread::spawn(move || drop(serve(&mut stream)));
        }
    });
    address
}

/// Reads until the other side goes, and says nothing.
fn is_silent(stream: &mut TcpStream) -> io::Result<()> {
    io::copy(stream, &mut io::sink()).map(drop)
}

fn speaks_http_1(stream: &mut TcpStream) -> io::Result<()> {
    stream.read_exact(&mut [0; PREFACE])?;
    let answer = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    stream.write_all(answer.as_bytes())?;
    is_silent(stream)
}

/// Speaks HTTP/2 until a call has come, and closes the connection.
fn hangs_up(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(&SETTINGS)?;
    stream.read_exact(&mut [0; PREFACE])?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let [high, middle, low, kind, ..] = head;
        if kind == HEADERS {
            return Ok(());
        }
        let length = u32::from_be_bytes([0, high, middle, low]);
        stream.read_exact(&mut vec![0; length as usize])?;
    }
}

#[test]
fn a_server_that_speaks_no_grpc_fails_its_own_calls_and_holds_up_no_others() {
    let fixture = fixture("tasks-grpc-raw");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let api = Api::of(&process);
    // A port on which nobody listens any more.
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let servers = [
        ("closes", raw(|_| Ok(())), "call_broken"),
        ("silent", raw(is_silent), "timeout"),
        ("http-1", raw(speaks_http_1), "call_broken"),
        ("hangs-up", raw(hangs_up), "call_broken"),
        ("nobody", closed, "no_connection"),
    ];
    // In both formats: the worker asks for the descriptors, or calls at once.
    let formats = [json!({"format": "json", "body": {}}), json!({"format": "protobuf"})];
    let more = json!({"timeout": "3s", "retry": {"count": 1, "interval": 1}});
    let mut tasks = Vec::new();
    for (project, address, want) in servers {
        for format in &formats {
            let task = release(project, json!({ "host": address.to_string() }));
            let id = create(&api, &with(with(task, format.clone()), more.clone()));
            tasks.push((id, project, want));
        }
    }
    // Those of other services are called meanwhile: the health of this process over gRPC, and a stub over HTTP.
    let stub = Endpoint::start();
    let health = json!({
        "host": process.address().expect("an address"), "service": "grpc.health.v1.Health", "method": "Check",
    });
    let fine = [
        create(&api, &release("fine", health)),
        api.create(&super::task("fine", &stub, "/ok", "0s")),
    ];
    for id in &fine {
        let task = api.end_of(id);
        assert_eq!(task["task_status"], "finished", "{task}");
    }
    for (id, project, want) in &tasks {
        let task = api.end_of(id);
        assert_eq!(task["task_status"], "failed", "{project}: {task}");
        assert_eq!(task["attempts_total"], 2, "{project}: {task}");
        for attempt in task["attempts"].as_array().expect("attempts") {
            let told = (&attempt["status"], word(attempt));
            assert_eq!(told, (&Value::Null, *want), "{project}: {task}");
        }
        if *project == "silent" {
            for other in &fine {
                let [other, this] =
                    [api.task(other), task.clone()].map(|of| number(&of["ended_at"]));
                assert!(other < this, "a silent server held it up: {task}");
            }
        }
    }
    // The worker goes on.
    let last = api.create(&super::task("fine", &stub, "/ok", "0s"));
    assert_eq!(api.end_of(&last)["task_status"], "finished");
    process.stop_well();
}

#[test]
fn hosts_of_grpc_tasks_that_are_not_public_are_never_connected_to() {
    let fixture = fixture("tasks-grpc-denied");
    // So 127.0.0.1 stands for what a worker can reach and must not.
    let mut process = launch_for(&fixture, "a", "lanes,worker,api", "127.0.0.2/32").start();
    let api = Api::of(&process);
    let (inside, may) = (Endpoint::start(), Endpoint::on("127.0.0.2"));
    let port = inside.address.port();
    let mut created = Vec::new();
    for host in NOT_PUBLIC.map(|host| format!("{host}:{port}")) {
        // For a body in JSON the worker would ask the host for its descriptors first.
        let forms = [json!({}), json!({"tls": true}), json!({"format": "json", "body": {}})];
        for more in forms.map(|form| with(form, json!({ "host": host }))) {
            let task = release("denied", more);
            match api.answered("POST", "/v1/tasks/grpc", Some(&task)) {
                (201, told) => {
                    let id = told["task_id"].as_str().expect("an id").to_owned();
                    created.push((host.clone(), id));
                }
                (status, told) => {
                    let told_of = (status, &told["errors"][0]["at"]);
                    assert_eq!(told_of, (422, &json!("host")), "{host}: {told}");
                }
            }
        }
    }
    println!("found out at the call: {created:?}");
    assert!(
        created.iter().any(|(host, _)| host.contains("localhost")),
        "a name is looked up later"
    );
    let address = format!("http://localhost:{port}");
    put_service(&api, "denied", "s", &json!({"address": address, "protocol": "grpc"}));
    created.push((address, create(&api, &release("denied", json!({"named_service": "s"})))));
    for (host, id) in &created {
        let task = api.end_of(id);
        assert_eq!(task["task_status"], "failed", "{host}: {task}");
        assert_eq!(word(&task["attempts"][0]), "address_denied", "{host}: {task}");
    }
    // What may be called is connected to, though no gRPC is spoken there.
    let fine = json!({ "host": may.address.to_string() });
    let task = api.end_of(&create(&api, &release("fine", fine)));
    assert_eq!(word(&task["last"]), "call_broken", "{task}");
    assert!(may.connections() >= 1, "{task}");
    assert_eq!(inside.connections(), 0, "{:?}", inside.calls());
    process.stop_well();
}
