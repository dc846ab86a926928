//! What tracking keeps, where it stops, and what a cancel comes to where less is kept: on a real Kafka, as a user sees it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{
    Fixture, Log, Mode, Out, PATIENCE, Process, client, eventually, in_both_modes, out, waterclock,
    whole,
};

in_both_modes!(
    with_cancellations_only_a_cancel_is_recorded_and_wins,
    one_timer_too_many_is_a_dead_letter_and_harms_no_other,
    what_was_replaced_is_superseded_and_what_replaced_it_arrives,
);

fn fixture(test: &str, mode: Mode) -> Fixture {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    Fixture::new(&format!("{test}-{short}"))
}

fn timer(target: &str, key: &str, delay_ms: u64) -> Out {
    out(key).key(key).header("x-delay-id", "i").delay(delay_ms).to(target)
}

/// Asks an instance: status and body.
fn ask(process: &Process, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
    let client = client(PATIENCE);
    let url = format!("http://{}{path}", process.address().expect("it serves"));
    let request = client.request(method.parse().expect("a method"), url);
    let request = match body {
        Some(body) => request.header("content-type", "application/json").body(body.to_string()),
        None => request,
    };
    let answer = request.send().expect("it answers");
    let (status, body) = (answer.status().as_u16(), answer.text().expect("a body"));
    (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

/// The outcome of a cancel, once it is decided.
#[track_caller]
fn cancel(process: &Process, key: &str, version: Option<&str>) -> String {
    let version = version.map(|version| format!("&version={version}")).unwrap_or_default();
    let path = format!("/v1/timers/i?key={key}&wait=20s{version}");
    eventually("a cancel is answered", || {
        let (status, told) = ask(process, "DELETE", &path, None);
        match (status, told["outcome"].as_str()) {
            (200, Some(outcome)) => Ok(outcome.to_owned()),
            _ => Err(format!("{status}: {told}")),
        }
    })
}

/// A timer once the index has it, in a state.
#[track_caller]
fn known(process: &Process, key: &str, state: &str) -> Value {
    eventually(&format!("{key} is known as {state}"), || {
        let (status, told) = ask(process, "GET", &format!("/v1/timers/i?key={key}"), None);
        if status == 200 && told["state"] == state {
            Ok(told)
        } else {
            Err(format!("{status}: {told}"))
        }
    })
}

fn values(fixture: &Fixture, target: &str) -> Vec<String> {
    let mut values: Vec<String> = whole(fixture, target).iter().map(|rec| rec.text()).collect();
    values.sort();
    values
}

fn with_cancellations_only_a_cancel_is_recorded_and_wins(mode: Mode) {
    let fixture = fixture("cancellations", mode);
    let target = fixture.target("out", 1);
    let launch = fixture.launch(mode).env("WATERCLOCK_TRACKING", "cancellations");
    let mut process = launch.start();
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    for key in ["stays", "goes"] {
        producer.send(&intake, &timer(&target, key, 6_000));
    }
    producer.acks();
    // The process does not know what is pending: it writes every cancel down, whatever it is about.
    assert_eq!(cancel(&process, "goes", None), "recorded");
    assert_eq!(cancel(&process, "nobody", None), "recorded");
    assert_eq!(process.metric("waterclock_timers_pending"), 0.0);
    Log::open(&fixture, &target).count(1);
    fixture.wait_until_nothing_is_pending();
    assert_eq!(values(&fixture, &target), ["stays"]);
    // The same id is free for what is submitted after the cancel.
    producer.send_one(&intake, &timer(&target, "goes", 1_000));
    Log::open(&fixture, &target).count(2);
    fixture.wait_until_nothing_is_pending();
    assert_eq!(values(&fixture, &target), ["goes", "stays"]);
    process.stop_well();
}

#[track_caller]
fn pending(process: &Process, count: usize) {
    eventually(&format!("{count} timers are pending"), || {
        let pending = process.metric("waterclock_timers_pending") as usize;
        if pending == count { Ok(()) } else { Err(pending.to_string()) }
    });
}

fn one_timer_too_many_is_a_dead_letter_and_harms_no_other(mode: Mode) {
    const MOST: usize = 1_000;
    let fixture = fixture("too-many", mode);
    let target = fixture.target("out", 1);
    let launch = fixture.launch(mode).env("WATERCLOCK_MAX_TRACKED", &MOST.to_string());
    let mut process = launch.start();
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    for n in 0..MOST {
        producer.send(&intake, &timer(&target, &format!("{n}"), 3_600_000));
    }
    producer.acks();
    pending(&process, MOST);
    producer.send_one(&intake, &timer(&target, "too many", 1_000));
    // Records without an id are not counted.
    producer.send_one(&intake, &out("no timer").key("k").delay(1_000).to(&target));
    Log::open(&fixture, &fixture.names.dead()).count(1);
    Log::open(&fixture, &target).count(1);
    let dead = whole(&fixture, &fixture.names.dead());
    let letters = dead.iter().map(|rec| (rec.text(), rec.header("x-delay-error-code")));
    let letters: BTreeSet<_> = letters.collect();
    assert_eq!(letters, [("too many".to_owned(), Some("too_many_timers".to_owned()))].into());
    // One that goes makes room for one that comes; a cancel needs room itself, and finds it.
    assert_eq!(cancel(&process, "0", None), "cancelled");
    assert_eq!(cancel(&process, "1", None), "cancelled");
    pending(&process, MOST - 2);
    assert_eq!(values(&fixture, &target), ["no timer"]);
    process.stop_well();
}

fn what_was_replaced_is_superseded_and_what_replaced_it_arrives(mode: Mode) {
    let fixture = fixture("superseded", mode);
    let target = fixture.target("out", 1);
    let mut process = fixture.start(mode);
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    producer.send_one(&intake, &timer(&target, "k", 600_000));
    let first = known(&process, "k", "delay")["version"].as_str().expect("a version").to_owned();
    let second = Out { value: Some(b"second".to_vec()), ..timer(&target, "k", 8_000) };
    producer.send_one(&intake, &second.header("x-delay-action", "replace"));
    eventually("the second version is the pending one", || {
        let told = known(&process, "k", "delay");
        if told["supersedes"] == json!(first) { Ok(()) } else { Err(told.to_string()) }
    });
    assert_eq!(cancel(&process, "k", Some(&first)), "superseded");
    eventually("it is counted", || match process.metric("waterclock_superseded_total") {
        1.0 => Ok(()),
        other => Err(other.to_string()),
    });
    Log::open(&fixture, &target).count(1);
    fixture.wait_until_nothing_is_pending();
    assert_eq!(values(&fixture, &target), ["second"]);
    known(&process, "k", "delivered");
    // Now, too, and not what became of the second.
    assert_eq!(cancel(&process, "k", Some(&first)), "superseded");
    process.stop_well();
}

#[test]
fn a_cancel_by_a_further_intake_reaches_the_timer_that_came_by_it() {
    let name = "slow".to_owned();
    let fixture = Fixture::with("cancel-intake", |request| request.further_intakes.push(name));
    let target = fixture.target("out", 1);
    let launch = fixture.launch(Mode::ExactlyOnce).config("[intakes.slow]\n");
    let mut process = launch.start();
    let (slow, producer) = (fixture.names.further_intake("slow"), fixture.producer());
    for key in ["stays", "goes"] {
        producer.send(&slow, &timer(&target, key, 8_000));
    }
    producer.acks();
    let mut cancel = waterclock();
    cancel.args(["cancel", "i", "--key", "goes", "--intake", "slow", "--wait", "30s"]);
    cancel.args(["--brokers", &fixture.connection.brokers, "--namespace", fixture.namespace()]);
    let output = cancel.output().expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(said.trim(), "cancelled");
    known(&process, "goes", "cancelled");
    Log::open(&fixture, &target).count(1);
    fixture.wait_until_nothing_is_pending();
    assert_eq!(values(&fixture, &target), ["stays"]);
    process.stop_well();
}

#[test]
fn with_json_every_line_of_the_log_is_an_object_of_its_own() {
    let fixture = Fixture::new("json");
    let target = fixture.target("out", 1);
    let mut process =
        fixture.launch(Mode::ExactlyOnce).env("WATERCLOCK_LOG__FORMAT", "json").spawn();
    process.wait_until_logged(PATIENCE, "lanes taken over");
    let record = out("one").key("a \"quoted\" key").delay(100).to(&target);
    fixture.producer().send_one(&fixture.names.intake(), &record);
    Log::open(&fixture, &target).count(1);
    process.stop_well();
    let log = process.log();
    let mut messages = BTreeSet::new();
    for line in log.lines() {
        let told: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(told["timestamp"].is_string() && told["level"].is_string(), "{line}");
        messages.insert(told["fields"]["message"].as_str().expect("a message").to_owned());
    }
    assert!(messages.contains("lanes taken over") && messages.contains("stopped"), "{messages:?}");
}
