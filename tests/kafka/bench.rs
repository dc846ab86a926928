//! `waterclock bench`, small: it measures every case, checks itself, and leaves nothing behind.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::Value;

use crate::support::{eventually, variable, waterclock};

fn topics_of(brokers: &str, prefix: &str) -> Vec<String> {
    let consumer: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
    let metadata = consumer.fetch_metadata(None, Duration::from_secs(20)).unwrap();
    let names = metadata.topics().iter().map(|topic| topic.name().to_owned());
    names.filter(|name| name.starts_with(prefix)).collect()
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
