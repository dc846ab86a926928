//! F10 for a moment: what an operator sees while Kafka is away, and after it.

use std::time::Duration;

use crate::load::mode;
use crate::support::{Cluster, Fixture, assert_promise, eventually, eventually_within, out, whole};

/// The age of the oldest overdue record, of the lane thread that has it.
const OVERDUE: &str = "waterclock_overdue_seconds";
/// What the age is to reach: longer than any commit takes here.
const OVERDUE_S: f64 = 3.0;
/// Lines from the outage to the end of the stop, of which librdkafka alone would have written hundreds.
const LINES_MAX: usize = 30;

#[test]
fn f10_a_kafka_that_is_away_is_told_in_one_line_and_what_is_overdue_has_an_age() {
    let cluster = Cluster::start("");
    let fixture = Fixture::on(cluster.connection(), "f10-told", |_| {});
    let target = fixture.target("in", 1);
    let mut process = fixture.start(mode());
    let record = out("a").to(&target).delay(1_900);
    fixture.producer().send_one(&fixture.names.intake(), &record);
    eventually("the record is in memory", || {
        match process.metric("waterclock_pending_in_memory") {
            1.0.. => Ok(()),
            is => Err(is.to_string()),
        }
    });
    assert!(process.metric(OVERDUE) < 1.0, "it is not due yet, or only just");
    let before = process.log().lines().count();
    cluster.kill();

    eventually("what is overdue grows older", || match process.metric(OVERDUE) {
        OVERDUE_S.. => Ok(()),
        is => Err(is.to_string()),
    });
    eventually("it says that Kafka is away", || {
        let log = process.log();
        if log.contains("Kafka is away") { Ok(()) } else { Err(log) }
    });
    cluster.restart();
    eventually_within(Duration::from_secs(60), "nothing is overdue any more", || {
        let (is, log) = (process.metric(OVERDUE), process.log());
        if is == 0.0 && log.contains("Kafka is back") {
            Ok(())
        } else {
            Err(format!("{is}\n{log}"))
        }
    });
    fixture.wait_until_nothing_is_pending();
    assert_promise(mode(), ["a".to_owned()], &whole(&fixture, &target));
    process.stop_well();

    let log = process.log();
    for line in ["Kafka is away", "Kafka is back"] {
        assert_eq!(log.matches(line).count(), 1, "{line}:\n{log}");
    }
    assert!(!log.contains("librdkafka"), "its lines are for debug:\n{log}");
    let lines = log.lines().count() - before;
    assert!(lines <= LINES_MAX, "{lines} lines of one outage and a stop:\n{log}");
}
