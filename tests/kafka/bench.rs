//! `waterclock bench` and `waterclock demo`, small: they check themselves, and leave nothing behind.

use std::process::Stdio;
use std::time::Duration;

use parking_lot::RwLock;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::support::terminal::ignores_hangup;
use crate::support::{eventually, variable, waterclock};

fn topics_of(brokers: &str, prefix: &str) -> Vec<String> {
    let consumer: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
    let metadata = consumer.fetch_metadata(None, Duration::from_secs(20)).unwrap();
    let names = metadata.topics().iter().map(|topic| topic.name().to_owned());
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// The controller has answered when a command ends; each broker hears of it a little later.
#[track_caller]
fn until_gone(brokers: &str, namespace: &str) {
    eventually("the topics are gone", || match topics_of(brokers, namespace) {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
}

/// Topics do not say which process made them: who looks for those of its own writes here, all others read.
static MAKING_TOPICS: RwLock<()> = RwLock::new(());

/// A terminal that is closed sends SIGHUP.
#[test]
fn a_bench_and_a_demo_whose_terminal_is_closed_delete_their_topics() {
    if ignores_hangup() {
        return;
    }
    let _alone = MAKING_TOPICS.write();
    let brokers = variable("KAFKA_BOOTSTRAP");
    for (command, prefix) in [("bench", "waterclock-bench-"), ("demo", "waterclock-demo-")] {
        let before = topics_of(&brokers, prefix);
        let own = || -> Vec<String> {
            let all = topics_of(&brokers, prefix).into_iter();
            all.filter(|topic| !before.contains(topic)).collect()
        };
        let mut child = waterclock()
            .args([command, "--json", "--brokers", &brokers])
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary runs");
        eventually("it has topics", || if own().is_empty() { Err(String::new()) } else { Ok(()) });
        // The demo makes a second one beside it, whose name is longer.
        let of = own();
        let namespaces = of.iter().filter_map(|topic| topic.split('.').next());
        let namespace = namespaces.min_by_key(|name| name.len()).expect("a namespace").to_owned();
        rustix::process::kill_process(Pid::from_child(&child), Signal::HUP).expect("it runs");
        eventually("it ends", || {
            let ended = child.try_wait().map_err(|error| error.to_string())?;
            ended.ok_or_else(|| "it goes on".to_owned())
        });
        until_gone(&brokers, &namespace);
    }
}

#[test]
fn a_demo_has_its_tasks_called_each_as_it_should_be_and_leaves_nothing_behind() {
    let _beside = MAKING_TOPICS.read();
    let brokers = variable("KAFKA_BOOTSTRAP");
    let output = waterclock()
        .args(["demo", "--json", "--plain", "--seconds", "8", "--brokers", &brokers])
        .output()
        .expect("the binary runs");
    let told = String::from_utf8_lossy(&output.stderr);
    let demo: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("no summary: {error}\n{told}"));
    let calls = &demo["callbacks"];
    let count = |name: &str| calls[name].as_u64().unwrap_or_else(|| panic!("{name}: {demo}"));
    // One for every ten records, of 200 a second. Of 40 the one with the number 17 fails, three times.
    let (created, failed) = (count("created"), count("failed"));
    assert!(created > 80, "{demo}");
    assert_eq!(failed, (0..created).filter(|n| n % 40 == 17).count() as u64, "{demo}");
    assert_eq!(count("finished"), created - failed, "{demo}");
    let again = (0..created).filter(|n| n % 8 == 5).count() as u64 + 2 * failed;
    assert!(count("retried") >= again && count("called") >= created + again, "{demo}");
    assert_eq!(count("called") - count("retried"), created, "{demo}");
    for nothing in ["open", "pending", "wrong"] {
        assert_eq!(count(nothing), 0, "{nothing}: {demo}");
    }
    assert!(calls["lateness_ms"]["p99"].is_u64(), "{demo}");
    assert_eq!(demo["delivery"], "exactly_once");
    // Of the records beside them, as tests/demo.rs has it.
    let number = |name: &str| demo[name].as_u64().unwrap_or_else(|| panic!("{name}: {demo}"));
    assert!(number("delivered") > 100, "{demo}");
    assert_eq!(number("delivered"), number("sent") - number("bad") - number("cancelled"), "{demo}");
    assert!(told.contains("  calls "), "{told}");
    assert_eq!(output.status.code(), Some(0), "{demo}\n{told}");
    let namespace = demo["namespace"].as_str().expect("its namespace");
    until_gone(&brokers, namespace);
}

#[test]
fn a_small_bench_checks_itself_and_leaves_nothing_behind() {
    let _beside = MAKING_TOPICS.read();
    let brokers = variable("KAFKA_BOOTSTRAP");
    let kept = tempfile::tempdir().unwrap();
    let file = kept.path().join("bench.json");
    let output = waterclock()
        .args(["bench", "--json", "--brokers", &brokers, "--lanes", "2"])
        .args(["--records", "2000", "--rate", "200", "--seconds", "2", "--delay", "3s"])
        .args(["--delivery", "exactly_once", "--json-file"])
        .arg(&file)
        .arg("--svg")
        .arg(kept.path().join("pictures"))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {told}", output.status);

    let bench: Value = serde_json::from_slice(&output.stdout).unwrap();
    let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(bench, written);
    assert_eq!(bench["ok"], true, "{bench}");
    assert!(bench["ratios"][0]["spike_tiers_of_copy"].as_f64().unwrap() > 0.0, "{bench}");
    let report = &bench["report"];
    let held: Vec<_> = report["spikes"].as_array().unwrap().iter().map(|s| &s["held"]).collect();
    assert_eq!(held, ["tiers", "memory"]);
    for spike in report["spikes"].as_array().unwrap() {
        assert_eq!(spike["check"]["seen"], 2_000, "{bench}");
    }
    assert_eq!(report["steady"][0]["check"]["seen"], 400, "{bench}");
    let course = report["steady"][0]["course"].as_array().unwrap();
    assert!(course.len() > 10 && course.iter().any(|point| point["p99_ms"].is_number()), "{bench}");
    for picture in ["steady-exactly_once", "spike-tiers-exactly_once", "spike-memory-exactly_once"]
    {
        let path = kept.path().join("pictures").join(picture).with_extension("svg");
        assert!(std::fs::read_to_string(&path).unwrap().contains("<polyline"), "{picture}");
    }
    assert_eq!(report["copies"][0]["rounds_per_second"].as_array().unwrap().len(), 3);
    let namespace = report["namespace"].as_str().unwrap();
    until_gone(&brokers, namespace);
}

/// A case of few records, and what was measured: it and its arguments.
#[track_caller]
fn small_bench(case: &[&str]) -> Value {
    let brokers = variable("KAFKA_BOOTSTRAP");
    let output = waterclock()
        .args(["bench", "--json", "--brokers", &brokers, "--lanes", "2", "--records", "1000"])
        .arg("--case")
        .args(case)
        .output()
        .expect("the binary runs");
    let told = String::from_utf8_lossy(&output.stderr);
    let bench: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("no summary: {error}\n{told}"));
    assert!(output.status.success() && bench["ok"] == true, "{bench}\n{told}");
    bench
}

#[test]
fn a_small_bench_of_tasks_calls_each_and_leaves_nothing_behind() {
    let _beside = MAKING_TOPICS.read();
    let bench = small_bench(&["tasks", "--seconds", "1", "--delay", "4s"]);
    let tasks = &bench["report"]["tasks"];
    for (place, least) in [
        ("/memory/pending", 1_000),
        ("/single/per_second", 1),
        ("/batched/per_second", 1),
        ("/calls/check/seen", 200),
        ("/steady/check/seen", 500),
        ("/faults/check/seen", 1),
        ("/faults/killed/calls", 1),
        ("/company/single/per_second", 1),
        ("/company/batched/per_second", 1),
        ("/company/at_rate/0/per_second", 1),
        ("/company/at_rate/1/answer_ms/p99", 0),
        ("/company/many/checks/0/seen", 200),
        ("/company/many/checks/1/seen", 200),
        ("/company/noisy/hanging", 250),
        ("/company/noisy/check/seen", 100),
    ] {
        let value = tasks.pointer(place).and_then(Value::as_f64);
        assert!(value >= Some(f64::from(least)), "{place}: {tasks:#}");
    }
    let namespace = bench["report"]["namespace"].as_str().expect("its namespace");
    until_gone(&variable("KAFKA_BOOTSTRAP"), namespace);
}

#[test]
fn a_small_bench_of_schedules_has_each_time_and_each_shard_called() {
    let _beside = MAKING_TOPICS.read();
    let bench = small_bench(&["schedules", "--seconds", "2"]);
    let found = &bench["report"]["schedules"];
    assert_eq!(found["schedules"]["check"]["seen"], 40, "{found:#}");
    assert_eq!(found["run"]["check"]["seen"], 50, "{found:#}");
    assert!(
        found["run"]["finished_ms"].as_f64() >= found["run"]["created_ms"].as_f64(),
        "{found:#}"
    );
    let namespace = bench["report"]["namespace"].as_str().expect("its namespace");
    until_gone(&variable("KAFKA_BOOTSTRAP"), namespace);
}
