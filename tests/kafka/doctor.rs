//! `waterclock doctor` on a real Kafka: what it says of a healthy cluster, and of a broken one.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::{Value, json};
use waterclock::engine::Millis;
use waterclock::kafka::topics::delete;

use crate::support::tasks::Api;
use crate::support::{Fixture, Mode, eventually, out, waterclock};

/// Exit code and report.
fn doctor(fixture: &Fixture, arguments: &[&str]) -> (Option<i32>, Value) {
    let mut command = waterclock();
    command
        .args(["--json", "--brokers", &fixture.connection.brokers])
        .args(["--namespace", fixture.namespace(), "doctor"])
        .arg("--data-dir")
        .arg(fixture.path("doctor"))
        .args(arguments);
    let output = command.output().expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let report = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr))
    });
    (output.status.code(), report)
}

/// What was seen in an area, as `severity what`.
fn seen(report: &Value, area: &str) -> Vec<String> {
    let findings = report["findings"].as_array().expect("findings");
    let of_area = findings.iter().filter(|finding| finding["area"] == area);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    of_area
        .map(|f| format!("{} {} {}", text(&f["severity"]), text(&f["topic"]), text(&f["what"])))
        .collect()
}

/// A configuration that allows one target: other tests make and delete theirs on the same broker meanwhile.
fn only(fixture: &Fixture, target: &str) -> String {
    let path = fixture.path("doctor.toml");
    std::fs::write(&path, format!("allow = ['{target}']\n")).unwrap();
    path.display().to_string()
}

/// The sum of all ends of the meta topic.
fn written(fixture: &Fixture) -> i64 {
    let mut config = fixture.client();
    let consumer: BaseConsumer = config.set("group.id", "test").create().unwrap();
    let most = Duration::from_secs(20);
    let topic = fixture.names.meta();
    let metadata = consumer.fetch_metadata(Some(&topic), most).unwrap();
    let partitions = metadata.topics()[0].partitions();
    partitions.iter().map(|p| consumer.fetch_watermarks(&topic, p.id(), most).unwrap().1).sum()
}

#[test]
fn a_running_service_on_a_healthy_cluster_has_no_problem() {
    let fixture = Fixture::new("doctor-well");
    let target = fixture.target("orders", 2);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let producer = fixture.producer();
    for n in 0..30 {
        let id = n.to_string();
        let record = out(&id).key(&id).to(&target).delay(600_000);
        producer.send_one(&fixture.names.intake(), &record);
    }

    let allow = only(&fixture, &target);
    // Records hop within the linger; a commit may be on its way at any single look.
    eventually("all is well and 30 are pending", || {
        let (code, report) = doctor(&fixture, &["--config", &allow]);
        let pending = report["pending"].as_array().expect("pending");
        let pending: u64 = pending.iter().filter_map(|topic| topic["pending"].as_u64()).sum();
        let group = seen(&report, "group");
        let is_owned = group.iter().any(|what| what.contains("1 member owns 3 of 3 lanes"));
        let areas = ["clocks", "topics", "permissions", "timing", "transactions", "positions"];
        let seen: Vec<String> = areas.iter().flat_map(|area| seen(&report, area)).collect();
        let is_well = seen.iter().all(|what| what.starts_with("ok "));
        if code == Some(0) && is_well && is_owned && pending >= 30 {
            Ok(())
        } else {
            Err(format!("{code:?}: {report:#}"))
        }
    });
    process.stop_well();
}

#[test]
fn what_is_broken_is_named_and_the_exit_code_is_1() {
    let fixture = Fixture::new("doctor-ill");
    let tier = |seconds: u64| fixture.names.tier(Millis(seconds * 1_000));
    let (forgets, gone, wide, meta) = (tier(1), tier(2), tier(5), fixture.names.meta());
    fixture.configure(&forgets, &[("retention.ms", "1000")]);
    fixture.configure(&meta, &[("cleanup.policy", "delete")]);
    fixture.grow(&wide, 4);
    delete(&fixture.connection, std::slice::from_ref(&gone)).unwrap();

    eventually("all four are named", || {
        let (code, report) = doctor(&fixture, &[]);
        let topics = seen(&report, "topics");
        let want = [
            format!("problem {forgets} retention.ms is 1000"),
            format!("problem {meta} cleanup.policy is delete"),
            format!("problem {wide} partitions is 4"),
            format!("problem {gone} topic is not there"),
        ];
        let missing: Vec<_> =
            want.iter().filter(|want| !topics.iter().any(|seen| seen.starts_with(*want))).collect();
        if code == Some(1) && missing.is_empty() {
            Ok(())
        } else {
            Err(format!("{code:?}, {missing:?} of {topics:#?}"))
        }
    });
}

#[test]
fn tasks_that_nobody_calls_are_named() {
    let fixture = Fixture::new("doctor-tasks");
    let group =
        format!("tasks are in force, and group {}-workers has no members", fixture.namespace());
    let allow = only(&fixture, &fixture.target("orders", 1));
    let says = |severity: &str, code: i32| {
        let want = format!("{severity}  {group}");
        eventually(&want, || {
            let (seen_code, report) = doctor(&fixture, &["--config", &allow]);
            let group = seen(&report, "group");
            match seen_code == Some(code) && group.iter().any(|what| what.starts_with(&want)) {
                true => Ok(()),
                false => Err(format!("{seen_code:?}: {report:#}")),
            }
        });
    };
    let launch = fixture.launch(Mode::ExactlyOnce);
    let mut process = launch.arg("--roles").arg("lanes,api").start();
    // Nobody may want a task here.
    says("note", 0);
    let task = json!({"project": "shop", "group": "g", "delay": "1s", "url": "https://a.example/"});
    Api::of(&process).create(&task);
    says("problem", 1);
    process.stop_well();
}

#[test]
fn an_open_transaction_is_seen_and_reading_only_writes_nothing() {
    let fixture = Fixture::new("doctor-open");
    let target = fixture.target("orders", 1);
    let mut config = fixture.client();
    config.set("transactional.id", fixture.name("stranger"));
    let producer: BaseProducer = config.create().unwrap();
    let most = Duration::from_secs(20);
    producer.init_transactions(most).unwrap();
    producer.begin_transaction().unwrap();
    let record: BaseRecord<'_, str, str> = BaseRecord::to(&target).payload("v");
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(most).unwrap();

    let before = written(&fixture);
    let allow = only(&fixture, &target);
    let open = |report: &Value| {
        seen(report, "transactions").iter().any(|what| what.contains("1 partitions have one open"))
    };
    let (code, report) = doctor(&fixture, &["--read-only", "--config", &allow]);
    assert_eq!(code, Some(0), "{report:#}");
    assert!(open(&report), "{report:#}");
    assert!(seen(&report, "clocks").iter().all(|what| what.starts_with("note ")), "{report:#}");
    assert_eq!(written(&fixture), before, "something was written to the meta topic");

    producer.abort_transaction(most).unwrap();
    let (code, report) = doctor(&fixture, &["--config", &allow]);
    assert_eq!(code, Some(0), "{report:#}");
    assert!(!open(&report), "{report:#}");
    assert!(written(&fixture) > before, "the probe was written");
}
