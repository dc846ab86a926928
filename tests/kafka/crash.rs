//! The process dies between every two steps of a commit, and comes back on the same data directory.
//!
//! The fail points abort the process: nothing is closed, flushed or told to anybody, as with `kill -9`.

use std::time::Duration;

use crate::support::{Fixture, Log, Mode, PATIENCE, Rec, assert_each_once, out, whole};

/// Commits that go well before the one that does not.
const GOOD: usize = 12;

#[track_caller]
fn dies_at(step: &str) {
    let fixture = Fixture::new(&format!("crash-{}", step.replace('_', "-")));
    let target = fixture.target("out", 3);
    let mut log = Log::open(&fixture, &target);
    let failpoint = format!("{step}={GOOD}*off->return");
    let mut first = fixture.launch(Mode::ExactlyOnce).env("FAILPOINTS", &failpoint).start();
    let producer = fixture.producer();
    let delays: Vec<u64> = (0..400).map(|n| (n * 53) % 6_000).collect();
    for (n, delay) in delays.iter().enumerate() {
        let record = out(format!("{n}")).key(format!("k{}", n % 23)).delay(delay).to(&target);
        producer.send(&fixture.names.intake(), &record);
    }
    let acks = producer.acks();
    assert_eq!(first.wait(PATIENCE), None, "it was to be ended by a signal at {step}");
    let mut second = fixture.start(Mode::ExactlyOnce);
    // A session and a transaction of the dead one may have to run out first.
    log.until_within(PATIENCE + Duration::from_secs(20), "all ids", |seen| {
        seen.iter().map(Rec::text).collect::<std::collections::BTreeSet<_>>().len() >= 400
    });
    fixture.wait_until_nothing_is_pending();
    second.stop_well();
    let seen = whole(&fixture, &target);
    assert_each_once((0..400).map(|n| n.to_string()), &seen);
    for rec in &seen {
        let n: usize = rec.text().parse().unwrap();
        assert!(rec.at >= acks[n].at + delays[n], "early: delay {}: {rec:?}", delays[n]);
    }
}

#[test]
fn before_a_transaction_begins() {
    dies_at("before_begin");
}

#[test]
fn before_anything_is_produced() {
    dies_at("before_produce");
}

#[test]
fn after_records_were_produced() {
    dies_at("after_produce");
}

#[test]
fn after_offsets_were_sent() {
    dies_at("after_send_offsets");
}

#[test]
fn after_the_commit() {
    dies_at("after_commit");
}
