//! The Rust client of tasks, and the programs of the documents that do the same in other languages, as callers and as executors.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use waterclock::client::Message;
use waterclock::client::tasks::{
    CancelOutcome, Error, Feedback, GrpcTask, Handed, HttpTask, KafkaTask, NewTask, Over, Reported,
    Retry, TaskFilter, TaskStatus, Tasks, TasksConfig,
};

use super::grpc::Program;
use super::{Api, fixture, launch};
use crate::callbacks::Service;
use crate::clients::Client;
use crate::support::{
    Endpoint, Fixture, Log, PATIENCE, Process, Rec, eventually, out, patience, start_all,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn connect(processes: &[&Process]) -> Tasks {
    let address = |process: &&Process| format!("http://{}", process.address().expect("it serves"));
    let config = TasksConfig::new("");
    let servers = processes.iter().map(address).collect();
    let worker = Some("the test".to_owned());
    Tasks::new(TasksConfig { servers, worker, within: PATIENCE, ..config }).expect("a client")
}

/// What was handed over of the task with this value: the last of so many turns.
#[track_caller]
fn turn(log: &mut Log, value: &str, turns: usize) -> Handed {
    let of = |seen: &[Rec]| -> Vec<Rec> {
        seen.iter().filter(|rec| rec.text() == value).cloned().collect()
    };
    let last = eventually(&format!("turn {turns} of {value}"), || {
        log.read_on(Duration::from_millis(200));
        let mut seen = of(&log.seen);
        if seen.len() == turns { Ok(seen.remove(turns - 1)) } else { Err(seen.len().to_string()) }
    });
    let headers = last.headers.iter().map(|(name, value)| (&name[..], value.as_deref()));
    let message = Message::new("work", last.partition, None, None, headers);
    Handed::of(message.headers()).expect("it is of a task with feedback")
}

#[test]
fn tasks_are_created_once_looked_up_listed_and_cancelled() {
    let fixture = fixture("tasks-client");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let stub = Endpoint::start();
    let tasks = connect(&[&process]);
    runtime().block_on(async {
        let call = |id: &str, target: &str| {
            HttpTask::to_url("shop", "orders", stub.url(target)).body("{}").request_id(id)
        };
        let soon =
            call("soon", "/fail?n=1").retry(Retry::times(2).interval(Duration::from_secs(1)));
        let first = tasks.create(&soon).await.expect("created");
        let again = tasks.create(soon.after(HOUR)).await.expect("answered");
        assert_eq!(first.task_id, again.task_id);
        let ended = async {
            loop {
                let task = tasks.get(&first.task_id).await.expect("answered").expect("there");
                if task.task_status.is_final() {
                    return task;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let ended = tokio::time::timeout(PATIENCE, ended).await.expect("it ends");
        assert_eq!((ended.task_status, ended.attempts.len()), (TaskStatus::Finished, 2));
        assert_eq!(ended.attempts[1].outcome, "finished");

        let many: Vec<NewTask> = (0..30)
            .map(|n| call(&format!("n{n}"), "/ok").after(HOUR + Duration::from_secs(n)).into())
            .chain([HttpTask::to_url("shop", "orders", "no URL").request_id("wrong").into()])
            .collect();
        let mut all = tasks.create_all(&many).await.expect("answered");
        let wrong = all.pop().expect("the last");
        assert!(matches!(&wrong, Err(Error::Refused { status: 422, .. })), "{wrong:?}");
        let ids: Vec<String> = all.into_iter().map(|each| each.expect("created").task_id).collect();
        let filter = TaskFilter {
            project: Some("shop".to_owned()),
            status: Some(TaskStatus::Delay),
            ..TaskFilter::default()
        };
        // What was created a moment ago is found by its id, and in lists soon after.
        let listed = async {
            loop {
                let listed = tasks.list(&filter).await.expect("answered");
                if listed.len() >= ids.len() {
                    return listed;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let listed = tokio::time::timeout(PATIENCE, listed).await.expect("all are listed");
        let listed: Vec<_> = listed.iter().map(|task| &*task.task_id).collect();
        assert_eq!(listed, ids);
        let limited = TaskFilter { limit: Some(3), ..filter };
        let limited = tasks.list(&limited).await.expect("answered");
        assert_eq!(limited.iter().map(|task| &*task.task_id).collect::<Vec<_>>(), ids[..3]);

        for _ in 0..2 {
            let outcome = tasks.cancel(&ids[0], Duration::from_secs(20)).await.expect("answered");
            assert_eq!(outcome, CancelOutcome::Cancelled);
        }
        let outcome = tasks.cancel(&first.task_id, Duration::from_secs(20)).await;
        assert_eq!(outcome.expect("answered"), CancelOutcome::Finished);
        let nobody = tasks.cancel("nobody", Duration::from_secs(20)).await;
        assert!(matches!(&nobody, Err(Error::Refused { status: 404, .. })), "{nobody:?}");
        assert_eq!(tasks.get("nobody").await.expect("answered"), None);

        // One that waits is called now; one that is finished is not called again.
        let now = tasks.retry(&ids[1]).await.expect("retried");
        assert_eq!(now.task_id, ids[1]);
        let over = tasks.retry(&first.task_id).await;
        assert!(matches!(&over, Err(Error::Refused { code, .. }) if code == "not_retryable"));
    });
    let called = eventually("both were called", || {
        let calls = stub.calls();
        if calls.len() == 3 { Ok(calls) } else { Err(format!("{calls:?}")) }
    });
    assert_eq!(called[2].target, "/ok");
    process.stop_well();
}

fn import(topic: &str, value: &str, feedback: Feedback) -> KafkaTask {
    let retry = Retry::times(2).interval(Duration::from_secs(1));
    KafkaTask::to("shop", "imports", topic).value(value).feedback(feedback).retry(retry)
}

#[test]
fn a_turn_lives_by_its_heartbeats_and_its_work_hears_when_it_is_over() {
    let fixture = fixture("tasks-executor");
    let topic = fixture.timed_target("work", 2);
    let mut log = Log::open(&fixture, &topic);
    let [mut first, mut second] = start_all([
        launch(&fixture, "a", "lanes,worker,api"),
        launch(&fixture, "b", "lanes,worker,api"),
    ]);
    let tasks = connect(&[&first, &second]);
    let api = Api::of(&second);
    // Lanes may be without an owner for as long as a session lasts.
    let period = Duration::from_secs(12 * u64::from(patience()));
    let runtime = runtime();
    let create = |value: &str, feedback: Feedback| -> String {
        let task = import(&topic, value, feedback).request_id(value);
        runtime.block_on(tasks.create(task)).expect("created").task_id
    };
    let long = create("long", Feedback::within(HOUR).heartbeat(period));
    let cancelled =
        create("cancelled", Feedback::within(HOUR).heartbeat(3 * Duration::from_secs(1)));
    let failing = create("failing", Feedback::within(HOUR));

    // It works for two periods, and an instance dies meanwhile.
    let handed = turn(&mut log, "long", 1);
    assert_eq!((handed.task_id(), handed.attempt(), handed.cursor()), (&*long, 1, None));
    let of_long = runtime.block_on(tasks.begin(handed)).expect("begun");
    of_long.progress("row:9", Some(40)).expect("sound");

    // Its work is dropped once the task is cancelled.
    let handed = turn(&mut log, "cancelled", 1);
    let of_cancelled = runtime.block_on(tasks.begin(handed)).expect("begun");
    assert_eq!(of_cancelled.is_over(), None);
    let outcome = runtime.block_on(tasks.cancel(&cancelled, Duration::from_secs(20)));
    assert_eq!(outcome.expect("answered"), CancelOutcome::Stopped);
    let over = runtime.block_on(async {
        let work = of_cancelled.unless_over(std::future::pending::<()>());
        tokio::time::timeout(PATIENCE, work).await.expect("it hears of it")
    });
    assert!(matches!(over, Err(Over::Stale { .. })), "{over:?}");
    assert_eq!(runtime.block_on(of_cancelled.finished()).expect("answered"), Reported::Cancelled);

    // A failure brings the next turn, which is told how far the first one came.
    let handed = turn(&mut log, "failing", 1);
    let of_failing = runtime.block_on(tasks.begin(handed.clone())).expect("begun");
    of_failing.progress("row:5", None).expect("sound");
    let told = runtime.block_on(of_failing.failed("no stock", None)).expect("answered");
    assert_eq!(told, Reported::Retrying);
    let again = turn(&mut log, "failing", 2);
    assert_eq!((again.attempt(), again.cursor()), (2, Some("row:5")));
    let late = runtime.block_on(tasks.begin(handed));
    assert!(matches!(late, Err(Error::Stale { .. })), "{late:?}");
    let of_failing = runtime.block_on(tasks.begin(again)).expect("begun");
    let told = runtime.block_on(of_failing.gone("no such file")).expect("answered");
    assert_eq!(told, Reported::Failed);
    let ended = api.task(&failing);
    assert_eq!(ended["last"]["error"], "no such file", "{ended}");
    assert_eq!(ended["last"]["worker"], "the test", "{ended}");

    first.kill();
    runtime.block_on(async {
        let work = tokio::time::sleep(2 * period);
        of_long.unless_over(work).await.expect("it is ours all the while");
    });
    let seen = api.task(&long);
    assert_eq!(seen["attempts"][0]["cursor"], "row:9", "{seen}");
    assert_eq!((&seen["turn"], &seen["attempts"][0]["percent"]), (&1.into(), &40.into()), "{seen}");
    assert_eq!(runtime.block_on(of_long.finished()).expect("answered"), Reported::Finished);
    assert_eq!(api.end_of(&long)["task_status"], "finished");
    second.stop_well();
}

#[test]
fn calls_over_http_hand_turns_over_and_methods_of_grpc_are_called() {
    let fixture = fixture("tasks-client-calls");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let (tasks, runtime) = (connect(&[&process]), runtime());
    let called = HttpTask::to_url("shop", "imports", stub.url("/slow?ms=0&status=202"))
        .feedback(Feedback::within(HOUR))
        .retry(Retry::times(1).interval(Duration::from_secs(1)));
    let created = runtime.block_on(tasks.create(called)).expect("created");
    // What the service would have, who is called.
    let handed = |count: usize| {
        let call = eventually(&format!("call {count}"), || {
            let mut calls = stub.calls();
            if calls.len() == count { Ok(calls.remove(count - 1)) } else { Err(String::new()) }
        });
        let attempt = call.attempt.to_string();
        let mut headers = vec![("webhook-id", call.id.as_bytes())];
        headers.push(("waterclock-attempt", attempt.as_bytes()));
        let ticket = call.ticket.as_deref().map(|of| ("waterclock-ticket", of.as_bytes()));
        let cursor = call.cursor.as_deref().map(|of| ("waterclock-cursor", of.as_bytes()));
        Handed::of_call(headers.into_iter().chain(ticket).chain(cursor)).expect("handed over")
    };
    let first = handed(1);
    assert_eq!((first.task_id(), first.attempt(), first.cursor()), (&*created.task_id, 1, None));
    let turn = runtime.block_on(tasks.begin(first)).expect("begun");
    turn.progress("row:5", Some(50)).expect("sound");
    // While its call is open, a failure is told to come back.
    let told = runtime.block_on(turn.failed("no stock", None)).expect("answered");
    assert_eq!(told, Reported::Retrying);
    let again = handed(2);
    assert_eq!((again.attempt(), again.cursor()), (2, Some("row:5")));
    let turn = runtime.block_on(tasks.begin(again)).expect("begun");
    let told = runtime.block_on(turn.finished()).expect("answered");
    assert_eq!(told, Reported::Finished);
    assert_eq!(api.end_of(&created.task_id)["task_status"], "finished");

    let health = |service: &str, method: &str| {
        let host = process.address().expect("an address");
        GrpcTask::to_host("shop", "checks", host, service, method)
    };
    let good = health("grpc.health.v1.Health", "Check")
        .json(r#"{"service": "waterclock.v1.Tasks"}"#)
        .request_id("health");
    let bad = health("grpc.health.v1.Nobody", "Check").json("{}").request_id("nobody");
    let both = [NewTask::from(good), NewTask::from(bad)];
    let both = runtime.block_on(tasks.create_all(&both)).expect("answered");
    let ended: Vec<Value> =
        both.into_iter().map(|each| api.end_of(&each.expect("created").task_id)).collect();
    assert_eq!(
        (&ended[0]["task_status"], &ended[0]["task_type"]),
        (&json!("finished"), &json!("grpc"))
    );
    assert_eq!(ended[1]["task_status"], "failed", "{}", ended[1]);
    let error = ended[1]["last"]["error"].as_str().expect("an error");
    assert!(error.starts_with("method_unknown"), "{error}");
    process.stop_well();
}

/// Runs a program of the documents, and judges it by what it prints, by the calls, and by what HTTP shows.
#[track_caller]
fn does_what_its_document_says(
    name: &str,
    client: fn(&Fixture, &Process) -> Client,
    words: &[&str],
) {
    let fixture = fixture(name);
    let topic = fixture.target("imports", 1);
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let url = stub.url("/fail?n=1");
    let client = client(&fixture, &process);
    let told = client.run(&[words, &[&topic, &url]].concat());
    let want = [
        "the same task",
        "90 rows: turn 1",
        "from row 0",
        "finished",
        "finished 1",
        "finished 2",
        "cancelled",
    ];
    assert_eq!(told.lines().collect::<Vec<_>>(), want);
    assert_eq!(stub.calls().len(), 2, "{:?}", stub.calls());
    let listed = api.list("project=shop");
    let ended: Vec<_> = listed.iter().map(|task| task["task_status"].as_str()).collect();
    let want = ["finished", "finished", "cancelled"].map(Some);
    assert_eq!(ended, want, "{listed:?}");
    process.stop_well();
}

#[test]
fn the_rust_program_of_tasks() {
    does_what_its_document_says("tasks-rust", Client::rust_tasks, &[]);
}

#[test]
fn the_go_program_of_tasks_over_http() {
    does_what_its_document_says("tasks-go-http", Client::go_tasks, &["http"]);
}

#[test]
fn the_go_program_of_tasks_over_grpc() {
    does_what_its_document_says("tasks-go-grpc", Client::go_tasks, &["grpc"]);
}

#[test]
fn the_java_program_of_tasks_over_http() {
    does_what_its_document_says("tasks-java-http", Client::java_tasks, &["http"]);
}

#[test]
fn the_java_program_of_tasks_over_grpc() {
    does_what_its_document_says("tasks-java-grpc", Client::java_tasks, &["grpc"]);
}

/// How many rows the executor has said that it has done, of the turn that this is the attempt of.
fn rows(attempt: &Value) -> u32 {
    let cursor = attempt["cursor"].as_str().and_then(|cursor| cursor.strip_prefix("row:"));
    cursor.map_or(0, |rows| rows.parse().expect("a number"))
}

/// Runs a program of the documents as an executor. Work that fails is reported, and work whose task was cancelled stops. The turn that
/// follows on one whose executor was killed begins at the row that was said last.
#[track_caller]
fn goes_on_where_a_killed_one_came(
    (process, topic): (&Process, &str),
    executor: impl Fn() -> Command,
) {
    let api = Api::of(process);
    let create = |rows: &str, retries: u32| -> String {
        let task = json!({
            "project": "shop", "group": "imports", "delay": "1s", "topic": topic, "value": rows,
            "feedback": {"deadline": "1h", "heartbeat": "6s"}, "retry": {"count": retries, "interval": 1},
        });
        let (status, told) = api.answered("POST", "/v1/tasks/kafka", Some(&task));
        assert_eq!(status, 201, "{told}");
        told["task_id"].as_str().expect("an id").to_owned()
    };
    let until_rows = |id: &str, count: u32| {
        eventually(&format!("{count} rows are done"), || {
            let task = api.task(id);
            let done = task["attempts"].get(0).map_or(0, rows);
            if done >= count { Ok(()) } else { Err(task.to_string()) }
        });
    };
    let first = Service::start(executor());
    let task = api.end_of(&create("ninety", 0));
    assert_eq!((&task["task_status"], &task["turn"]), (&json!("failed"), &json!(1)), "{task}");
    let error = task["last"]["error"].as_str().expect("an error");
    assert!(["ninety", "invalid digit"].iter().any(|own| error.contains(own)), "{error}");

    // It would last for hours. The next task waits behind it.
    let cancelled = create("100000", 0);
    until_rows(&cancelled, 1);
    assert_eq!(api.cancel(&cancelled), "stopped");
    let long = create("90", 2);
    first.said("90 rows: turn 1");
    until_rows(&long, 10);
    drop(first);

    let second = Service::start(executor());
    second.said("90 rows: turn 2");
    let task = api.end_of(&long);
    let attempts = task["attempts"].as_array().expect("a list");
    assert_eq!((&task["task_status"], attempts.len()), (&json!("finished"), 2), "{task}");
    let done = rows(&attempts[0]);
    assert!((10..90).contains(&done), "{task}");
    // It says so once it has heard it, too.
    let want = ["90 rows: turn 2", &format!("from row {done}"), "finished"];
    eventually("the second one says what it has done", || {
        let said = second.lines.lock().iter().map(|(_, line)| line.clone()).collect::<Vec<_>>();
        if said == want { Ok(()) } else { Err(format!("{said:?}")) }
    });
}

/// A topic of an executor, into which somebody else has written: that record is of no task.
fn with_a_stranger(fixture: &Fixture) -> String {
    let topic = fixture.target("imports", 1);
    let producer = fixture.producer();
    producer.send(&topic, &out("of no task"));
    producer.acks();
    topic
}

/// The same of a program that has two ways to ask, by that of these words.
#[track_caller]
fn goes_on(name: &str, client: fn(&Fixture, &Process) -> Client, words: &[&str]) {
    let fixture = fixture(name);
    let topic = with_a_stranger(&fixture);
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let client = client(&fixture, &process);
    goes_on_where_a_killed_one_came((&process, &topic), || {
        client.prepared(&[words, &[&topic]].concat())
    });
    process.stop_well();
}

#[test]
fn the_rust_program_of_tasks_goes_on_where_a_killed_one_came() {
    goes_on("executor-rust", Client::rust_tasks, &[]);
}

#[test]
fn the_go_program_of_tasks_over_http_goes_on_where_a_killed_one_came() {
    goes_on("executor-go-http", Client::go_tasks, &["http"]);
}

#[test]
fn the_go_program_of_tasks_over_grpc_goes_on_where_a_killed_one_came() {
    goes_on("executor-go-grpc", Client::go_tasks, &["grpc"]);
}

#[test]
fn the_java_program_of_tasks_over_http_goes_on_where_a_killed_one_came() {
    goes_on("executor-java-http", Client::java_tasks, &["http"]);
}

#[test]
fn the_java_program_of_tasks_over_grpc_goes_on_where_a_killed_one_came() {
    goes_on("executor-java-grpc", Client::java_tasks, &["grpc"]);
}

#[test]
fn the_python_program_of_executors_goes_on_where_a_killed_one_came() {
    let fixture = fixture("executor-python");
    let topic = with_a_stranger(&fixture);
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let program = Program::new("tasks_executor.py");
    let executor = || {
        let mut command = program.prepared(&process, &[&topic]);
        command.env("BROKERS", &fixture.connection.brokers);
        // What it has printed is read before it is killed.
        command.env("PYTHONUNBUFFERED", "1");
        command
    };
    let created = program.run(&process, &[&topic, "3"]);
    goes_on_where_a_killed_one_came((&process, &topic), executor);
    let task = Api::of(&process).end_of(&created[0]);
    assert_eq!((&task["task_status"], &task["turn"]), (&json!("finished"), &json!(1)), "{task}");
    process.stop_well();
}
