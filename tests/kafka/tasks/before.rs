//! A namespace of the version before there were tasks: nothing changes by itself, and no timer is lost by the change.

use std::time::{Duration, Instant};

use serde_json::json;
use waterclock::engine::ladder::Ladder;
use waterclock::kafka::meta::{self, LadderInForce, Value};
use waterclock::kafka::topics::{create, wanted};

use super::targets::target;
use super::{Api, launch, task};
use crate::support::{
    Endpoint, Fixture, Log, Process, assert_each_once, eventually, now_ms, out, waterclock, whole,
};

const TIMERS: usize = 1_000;
/// Records that are due before a start, for each of two targets.
const OVERDUE: usize = 200;
/// How long the timers take, in milliseconds: they are pending over the change.
const DELAY: u64 = 25_000;

/// What a version without tasks has left.
fn of_before(test: &str) -> Fixture {
    let fixture = Fixture::cold(test);
    let holds = fixture.request.holds.clone().expect("a ladder");
    let ladder = Ladder::new(&holds, &[], fixture.request.lead_max).expect("a ladder");
    let specs = wanted(&fixture.names, fixture.lanes(), &ladder, &[], 1, false);
    create(&fixture.connection, &specs).expect("created");
    let began = LadderInForce { lanes: fixture.lanes(), holds, draining: Vec::new() };
    let first = Value::first(began, false).expect("a secret");
    meta::write(&fixture.connection, &fixture.names.meta(), &first).expect("in force");
    fixture
}

/// `waterclock topics apply --tasks`: its exit code, and what it says.
fn apply_tasks(fixture: &Fixture) -> (Option<i32>, String) {
    let mut command = waterclock();
    command.args(["topics", "apply", "--tasks", "--brokers", &fixture.connection.brokers]);
    let ended = command.args(["--namespace", fixture.namespace()]).output().expect("it runs");
    let said = [ended.stdout, ended.stderr].concat();
    (ended.status.code(), String::from_utf8_lossy(&said).into_owned())
}

/// An instance that takes some seconds to read what is known of projects: what the API answers before and after it says that it is
/// ready.
#[track_caller]
fn first_answer_when_ready(fixture: &Fixture) -> (u16, serde_json::Value) {
    let late = "registry_unread=3*return->off";
    let process = launch(fixture, "ready", "lanes,worker,api").env("FAILPOINTS", late).spawn();
    let mut waited = false;
    eventually("it is ready", || {
        let (status, why) = process.get("/health/ready")?;
        waited |= why.contains("the projects in the meta topic are not read yet");
        if status == 200 { Ok(()) } else { Err(why) }
    });
    let stub = Endpoint::start();
    let asked = task("shop", &stub, "/ok", "1h");
    let answer = Api::of(&process).ask("POST", "/v1/tasks/http", Some(&asked));
    assert!(waited, "it was ready before it had read of projects");
    answer
}

#[test]
fn an_instance_that_says_it_is_ready_creates_tasks_or_says_that_there_are_none() {
    let (status, told) = first_answer_when_ready(&super::fixture("tasks-ready"));
    assert_eq!(status, 201, "{told}");
    let (status, told) = first_answer_when_ready(&of_before("tasks-ready-before"));
    assert_eq!((status, &told["code"]), (409, &json!("not_available")), "{told}");
}

#[test]
fn what_is_overdue_at_a_start_waits_for_a_paused_target_where_there_are_no_tasks() {
    let fixture = of_before("tasks-before-paused");
    let (paused, other) = (fixture.timed_target("paused", 2), fixture.timed_target("other", 2));
    let mut first = launch(&fixture, "a", "lanes,api").start();
    target(&fixture, "pause", &paused);
    first.stop_well();

    let producer = fixture.producer();
    for n in 0..OVERDUE {
        for to in [&paused, &other] {
            let record = out(n.to_string()).key(format!("k{}", n % 31)).delay(1).to(to);
            producer.send(&fixture.names.intake(), &record);
        }
    }
    producer.acks();
    // It reads of the pause some time after it has its lanes.
    let late = launch(&fixture, "a", "lanes,api");
    let mut second = late.env("FAILPOINTS", "registry_unread=30*return->off").spawn();
    eventually("it has its lanes", || {
        let lanes = second.metric("waterclock_lanes_owned");
        if lanes >= f64::from(fixture.lanes()) { Ok(()) } else { Err(format!("{lanes}")) }
    });
    std::thread::sleep(Duration::from_secs(2));
    let delivered = [&paused, &other].map(|topic| whole(&fixture, topic).len());
    let (_, why) = second.get("/health/ready").expect("it answers");
    let is_unread = why.contains("the projects in the meta topic are not read yet");
    assert!(is_unread, "it has read of the pause too soon for this test: {why}");
    assert_eq!(delivered, [0, 0], "each of them could be paused");
    let unread = Instant::now();
    Log::open(&fixture, &other).count(OVERDUE);
    println!("it had read of the pause {:?} later", unread.elapsed());
    assert_eq!(whole(&fixture, &paused), [], "nothing went to the paused target");
    target(&fixture, "resume", &paused);
    Log::open(&fixture, &paused).count(OVERDUE);
    fixture.wait_until_nothing_is_pending();
    for topic in [&paused, &other] {
        assert_each_once((0..OVERDUE).map(|n| n.to_string()), &whole(&fixture, topic));
    }
    assert_eq!(whole(&fixture, &fixture.names.dead()), [], "nothing is a dead letter");
    second.stop_well();
}

#[test]
fn tasks_come_into_force_between_two_starts_and_timers_go_on() {
    let fixture = of_before("tasks-before");
    let target = fixture.target("out", 2);
    let start = |data: &str| launch(&fixture, data, "lanes,worker,api").start();
    let mut members = [start("a"), start("b")];
    let stub = Endpoint::start();

    let producer = fixture.producer();
    let submitted = now_ms();
    for n in 0..TIMERS {
        // Some come up before the change, most after it.
        let delay = DELAY * (n % 4 + 1) as u64 / 4;
        let record = out(n.to_string()).key(format!("k{}", n % 31)).delay(delay).to(&target);
        let record = record.header("x-delay-id", format!("t{n}"));
        producer.send(&fixture.names.intake(), &record);
    }
    producer.acks();
    let asked = task("shop", &stub, "/ok", "0s");
    let refuses = |member: &Process| {
        let (status, told) = Api::of(member).answered("POST", "/v1/tasks/http", Some(&asked));
        assert_eq!((status, &told["code"]), (409, &json!("not_available")), "{told}");
        let detail = told["detail"].as_str().unwrap_or_default();
        assert!(detail.contains("topics apply --tasks"), "{told}");
    };
    // One after the other is started again, while timers fall due.
    for (n, data) in ["a", "b"].into_iter().enumerate() {
        members.iter().for_each(refuses);
        members[n].stop_well();
        members[n] = start(data);
    }
    println!("both were started again {} ms after the first submit", now_ms() - submitted);
    let (code, said) = apply_tasks(&fixture);
    assert!(code != Some(0) && said.contains("live members"), "{code:?}: {said}");
    members.iter().for_each(refuses);
    assert!(now_ms() < submitted + DELAY, "timers are due after the change, too");

    members.iter_mut().for_each(Process::stop_well);
    let (code, said) = apply_tasks(&fixture);
    assert_eq!(code, Some(0), "{said}");
    let mut new = start("a");
    let api = Api::of(&new);
    let id = api.create(&asked);
    assert_eq!(api.end_of(&id)["task_status"], "finished");
    assert_eq!(stub.calls_of(&id).len(), 1);

    let mut log = Log::open(&fixture, &target);
    log.ids(TIMERS);
    assert_each_once((0..TIMERS).map(|n| n.to_string()), &log.seen);
    println!("all timers were delivered {} ms after the first submit", now_ms() - submitted);
    assert_eq!(whole(&fixture, &fixture.names.dead()), [], "nothing is a dead letter");
    new.stop_well();
}
