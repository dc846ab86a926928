//! What a running instance tells of itself, scraped over HTTP.

use std::collections::BTreeSet;
use std::time::Duration;

use waterclock::engine::Millis;
use waterclock::telemetry::{ALL, Kind};

use rdkafka::producer::{BaseRecord, Producer as _};
use serde_json::json;

use crate::support::{
    Clock, Fixture, Log, Mode, PATIENCE, Process, ask, eventually, eventually_within,
    open_transaction, out,
};

/// The names in a scrape, without what histograms add to them.
fn names(text: &str) -> BTreeSet<&str> {
    let lines = text.lines().filter(|line| line.starts_with("waterclock_"));
    lines
        .map(|line| {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let of_histogram = ["_bucket", "_sum", "_count"].into_iter().find_map(|end| {
                let stem = name.strip_suffix(end)?;
                ALL.iter().any(|m| m.name == stem && m.kind == Kind::Histogram).then_some(stem)
            });
            of_histogram.unwrap_or(name)
        })
        .collect()
}

/// How far the clock of the process is ahead of the brokers'.
const AHEAD_S: f64 = 100.0;
/// Records that are due at once, and as many between them that wait in memory for a while.
const EACH: usize = 200;

/// Fails unless each value is in its range, ends included.
#[track_caller]
fn in_range(process: &Process, cases: &[(&str, f64, f64)]) {
    let (_, text) = process.get("/metrics").expect("an answer");
    for (what, least, most) in cases {
        let value = process.metric(what);
        assert!(
            (*least..=*most).contains(&value),
            "{what} is {value}, not {least} to {most}\n{text}"
        );
    }
}

#[test]
fn every_metric_is_there_with_a_value_that_makes_sense() {
    // Long enough a tier for pausing: for short waits a partition is read on.
    let fixture = Fixture::with("metrics", |request| {
        request.holds = Some([1_000, 2_000, 5_000, 20_000].map(Millis).to_vec());
    });
    let target = fixture.target("orders", 1);
    let clock = Clock::new();
    clock.set((AHEAD_S * 1_000.0) as i64);
    let mut launch = fixture.launch(Mode::ExactlyOnce).env("WATERCLOCK_HORIZON", "1m");
    for (name, value) in clock.environment() {
        launch = launch.env(name, &value);
    }
    let mut process = launch.env("WATERCLOCK_CALLBACKS__NETWORKS", "127.0.0.0/8").start();
    process.wait_until_ready();
    // A call of a task, to the process itself.
    let url = format!("http://{}/health/live", process.address().expect("it serves"));
    let task = json!({"project": "p", "group": "g", "url": url, "method": "GET", "delay": "0s"});
    // Ready for records; that it has read of projects may take a second more.
    eventually("a task is created", || {
        let told = ask(&process, "POST", "/v1/tasks/http", Some(&task));
        if told.status == 201 { Ok(()) } else { Err(told.body.to_string()) }
    });
    let producer = fixture.producer();
    let intake = fixture.names.intake();
    for n in 0..20 {
        let id = format!("later {n}");
        producer.send(&intake, &out(&id).key(&id).to(&target).delay(900_000));
    }
    producer.send(&intake, &out("bad").key("bad").to(&target).header("x-delay", "never"));
    for n in 0..EACH {
        for (when, delay) in [("at once", 100), ("soon", 50_000)] {
            let id = format!("{when} {n}");
            let record = out(&id).key(&id).to(&target).header("x-delay-label", when);
            // A time that is long past makes nothing late.
            let record = match delay == 100 && n % 2 == 0 {
                true => record.header("x-delay-until", "2020-01-01T00:00:00Z"),
                false => record.delay(delay),
            };
            producer.send(&intake, &record);
        }
    }
    producer.acks();
    let each = EACH as f64;
    eventually("what is due soon waits in memory, and nothing else", || {
        let values = ["waterclock_delivered_total", "waterclock_pending_in_memory"];
        let values = values.map(|name| process.metric(name));
        if values == [each, each] { Ok(()) } else { Err(format!("{values:?}")) }
    });
    #[rustfmt::skip]
    in_range(&process, &[
        // The records themselves, at the least: value, key, and the name of their target.
        ("waterclock_memory_bytes",      each * 40.0, 1e6),
        // Every second offset is pending in each of the windows, which hold some thousands.
        ("waterclock_window_fill_ratio", 0.001,       0.5),
    ]);

    // Pending records, and held ones, are each looked at every 15 seconds, and hops wait for their linger.
    let want: BTreeSet<&str> = ALL.iter().map(|metric| metric.name).collect();
    eventually("pending is counted from the offsets, the hops are committed, all is there", || {
        let pending = process.metric("waterclock_pending");
        let forwarded = process.metric("waterclock_forwarded_total");
        if pending < 20.0 || forwarded < 20.0 {
            return Err(format!("{pending} pending, {forwarded} hops"));
        }
        let (_, text) = process.get("/metrics")?;
        let missing: Vec<_> = want.difference(&names(&text)).copied().collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("without {missing:?}")) }
    });
    let (code, text) = process.get("/metrics").unwrap();
    assert_eq!(code, 200);
    assert_eq!(names(&text), want, "{text}");
    #[rustfmt::skip]
    in_range(&process, &[
        // what                                              least            most
        ("waterclock_lateness_seconds_count",                each,            2.0 * each),
        ("waterclock_lateness_seconds_sum",                  0.001,           60.0 * each),
        ("waterclock_delivered_total",                       each,            2.0 * each),
        ("waterclock_delivered_by_label_total{label=\"at once\"}", each,         each),
        ("waterclock_forwarded_total",                       20.0,            1_000.0),
        ("waterclock_moved_total",                           0.0,             0.0),
        ("waterclock_spilled_total",                         0.0,             0.0),
        ("waterclock_dead_letters_total",                    1.0,             1.0),
        ("waterclock_dead_letters_total{code=\"bad_delay\"}", 1.0,            1.0),
        ("waterclock_pending",                               20.0,            1_000.0),
        ("waterclock_memory_limit_bytes",                    (128 << 20) as f64, (128 << 20) as f64),
        ("waterclock_commit_seconds_count",                  1.0,             10_000.0),
        ("waterclock_producers_renewed_total",               0.0,             0.0),
        ("waterclock_lanes_owned",                           3.0,             3.0),
        ("waterclock_ready",                                 1.0,             1.0),
        ("waterclock_api_requests",                          0.0,             0.0),
        ("waterclock_api_refused_total",                     0.0,             0.0),
        // Of one broker: how far it is ahead of itself.
        ("waterclock_clock_offset_seconds",                  0.0,             0.0),
        ("waterclock_clock_skew_seconds",                    -AHEAD_S - 5.0,  -AHEAD_S + 5.0),
        ("waterclock_clock_steps_total",                     0.0,             0.0),
        ("waterclock_records_lost_total",                    0.0,             0.0),
        ("waterclock_partitions_unreadable_total",           0.0,             0.0),
    ]);
    // A tier pauses while its head has long to wait: those that are due in 15 minutes go through the longest again and again.
    eventually("a tier's partition is paused", || {
        match process.metric("waterclock_paused_partitions") {
            paused if paused > 0.0 => Ok(()),
            paused => Err(paused.to_string()),
        }
    });
    eventually("all are delivered, and memory is empty", || {
        let values = ["waterclock_delivered_total", "waterclock_pending_in_memory"];
        let values = values.map(|name| process.metric(name));
        if values == [2.0 * each, 0.0] { Ok(()) } else { Err(format!("{values:?}")) }
    });
    in_range(&process, &[("waterclock_lateness_seconds_count", 2.0 * each, 2.0 * each)]);
    process.stop_well();
}

#[test]
fn a_process_without_kafka_is_alive_and_says_why_it_is_not_ready() {
    let fixture = Fixture::new("health");
    let mut process = fixture.launch(Mode::ExactlyOnce).brokers("127.0.0.1:1").spawn();
    eventually_within(Duration::from_secs(30), "it says that Kafka does not answer", || {
        let (code, body) = process.get("/health/ready")?;
        assert_eq!(code, 503, "{body}");
        if body.contains("Kafka does not answer at 127.0.0.1:1") { Ok(()) } else { Err(body) }
    });
    assert_eq!(process.get("/health/live").unwrap().0, 200);
    assert_eq!(process.metric("waterclock_ready"), 0.0);
    process.stop_well();
}

#[test]
fn a_transaction_that_stays_open_is_measured_where_it_holds_readers_back() {
    let fixture = Fixture::new("metrics-open");
    let target = fixture.target("orders", 2);
    let intake = fixture.names.intake();
    let mut process = fixture.start(Mode::ExactlyOnce);
    // A target is looked at once records went there.
    fixture.producer().send_one(&intake, &out("one").key("k").to(&target).delay(0));
    Log::open(&fixture, &target).count(1);
    let never = out("never").key("k").to(&target).delay(0);
    let foreign = open_transaction(&fixture, &intake, Some(0), &never);
    let record: BaseRecord<'_, str, str> = BaseRecord::to(&target).partition(1).payload("never");
    foreign.send(record).map_err(|(error, _)| error).expect("sent");
    foreign.flush(PATIENCE).expect("written");

    let of = |what: &str, tier: &str| {
        process.metric(&format!("waterclock_held_back_{what}{{tier=\"{tier}\"}}"))
    };
    // Looks are 15 seconds apart: the second one knows for how long.
    eventually("both are seen to stay open", || {
        let ages = [of("seconds", "intake"), of("seconds", "targets")];
        if ages.iter().all(|age| *age >= 10.0) { Ok(()) } else { Err(format!("{ages:?}")) }
    });
    assert_eq!([of("offsets", "intake"), of("offsets", "targets")], [1.0, 1.0]);
    let others = process.metric("waterclock_held_back_offsets") - 2.0;
    assert!(of("seconds", "1s") == 0.0 && others < 5.0, "{others} elsewhere");
    foreign.abort_transaction(PATIENCE).expect("aborted");
    eventually("neither is any more", || {
        let ages = [of("seconds", "intake"), of("seconds", "targets")];
        if ages == [0.0, 0.0] { Ok(()) } else { Err(format!("{ages:?}")) }
    });
    process.stop_well();
}
