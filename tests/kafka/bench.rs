//! `waterclock bench`, small: it measures every case, checks itself, and leaves nothing behind.

use std::process::Stdio;
use std::time::Duration;

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

/// A terminal that is closed sends SIGHUP.
#[test]
fn a_bench_and_a_demo_whose_terminal_is_closed_delete_their_topics() {
    if ignores_hangup() {
        return;
    }
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
        let namespace = own()[0].split('.').next().expect("a namespace").to_owned();
        rustix::process::kill_process(Pid::from_child(&child), Signal::HUP).expect("it runs");
        eventually("it ends", || {
            let ended = child.try_wait().map_err(|error| error.to_string())?;
            ended.ok_or_else(|| "it goes on".to_owned())
        });
        eventually("the topics are gone", || match topics_of(&brokers, &namespace) {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{command}: {left:?}")),
        });
    }
}

#[test]
fn a_small_bench_checks_itself_and_leaves_nothing_behind() {
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
    // The controller has answered; each broker hears of it a little later.
    eventually("the topics are gone", || match topics_of(&brokers, namespace) {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
}
