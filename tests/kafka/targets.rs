//! What lies in the targets, and in the clock of the machine: it costs the records of others nothing.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::{
    Clock, Fixture, Log, Mode, Rec, Right, allow_only, assert_promise, eventually, in_both_modes,
    out, patience, variable, whole,
};

in_both_modes!(
    a_clock_two_hours_ahead_costs_nothing,
    a_clock_two_hours_behind_costs_nothing,
    seven_hundred_unknown_targets_hold_nobody_up,
    ten_thousand_unknown_targets_hold_nobody_up,
    a_target_that_may_not_be_written_to_any_more_costs_one_batch_at_most,
    a_target_that_takes_no_time_but_its_own_stops_nothing,
    batches_are_small_as_long_as_a_target_that_takes_no_others_is_there,
    a_target_that_gains_a_partition_costs_no_batch,
);

/// Kafka's own default: a topic keeps the times that its writers give, and refuses those of an hour ahead.
const CREATE_TIME: (&str, &str) = ("message.timestamp.type", "CreateTime");

fn fixture(test: &str, mode: Mode) -> Fixture {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    Fixture::new(&format!("{test}-{short}"))
}

fn a_clock_two_hours_ahead_costs_nothing(mode: Mode) {
    wrong_clock("clock-ahead", mode, 7_200_000, &[CREATE_TIME]);
}

fn a_clock_two_hours_behind_costs_nothing(mode: Mode) {
    let settings = [CREATE_TIME, ("message.timestamp.before.max.ms", "3600000")];
    wrong_clock("clock-behind", mode, -7_200_000, &settings);
}

/// Records through memory and through a tier, dead letters and commands, by a process whose clock is wrong from its start on.
fn wrong_clock(test: &str, mode: Mode, ahead_ms: i64, settings: &[(&str, &str)]) {
    let fixture = fixture(test, mode);
    let target = fixture.target_with("out", 2, settings);
    let clock = Clock::new();
    clock.set(ahead_ms);
    let mut launch = fixture.launch(mode);
    for (name, value) in clock.environment() {
        launch = launch.env(name, &value);
    }
    let mut process = launch.start();
    let before = process.metric("waterclock_producers_renewed_total");
    let producer = fixture.producer();
    let intake = fixture.names.intake();
    for n in 0..40 {
        let record = out(format!("{n}")).key(format!("k{}", n % 5)).to(&target);
        let record = if n % 2 == 0 { record } else { record.header("x-delay-id", format!("{n}")) };
        producer.send(&intake, &record.delay(if n % 4 == 0 { 4_000 } else { 500 }));
    }
    producer.send(&intake, &out("bad").key("k").delay("soon").to(&target));
    let acks = producer.acks();
    let seen = Log::open(&fixture, &target).ids(40).to_vec();
    Log::open(&fixture, &fixture.names.dead()).count(1);
    assert_eq!(process.metric("waterclock_producers_renewed_total"), before, "nothing was refused");
    fixture.wait_until_nothing_is_pending();
    process.stop_well();
    assert_promise(mode, (0..40).map(|n| n.to_string()), &whole(&fixture, &target));
    let dead = whole(&fixture, &fixture.names.dead());
    assert_eq!(dead.len(), 1, "only what was meant to: {dead:?}");
    for rec in &seen {
        let n: usize = rec.text().parse().expect("a number");
        let due = acks[n].at + if n.is_multiple_of(4) { 4_000 } else { 500 };
        let most = due + 20_000 * u64::from(patience());
        assert!((due..most).contains(&rec.at), "not the time of its delivery, due {due}: {rec:?}");
    }
}

fn seven_hundred_unknown_targets_hold_nobody_up(mode: Mode) {
    unknown_targets("unknown-700", mode, 700);
}

fn ten_thousand_unknown_targets_hold_nobody_up(mode: Mode) {
    unknown_targets("unknown-10000", mode, 10_000);
}

/// Records each of which names a target that is not there, among records of every lane for one that is.
fn unknown_targets(test: &str, mode: Mode, count: usize) {
    let fixture = fixture(test, mode);
    // By append time, so that the test measures when the record was there.
    let good = fixture.timed_target("good", 3);
    let mut process = fixture.start(mode);
    let producer = fixture.producer();
    let intake = fixture.names.intake();
    let innocent = |n: usize| {
        let record = out(format!("{n}")).key(format!("k{n}")).delay(1_000).to(&good);
        producer.send(&intake, &record);
    };
    // What the first batches of a process take is not what is measured.
    innocent(0);
    producer.acks();
    Log::open(&fixture, &good).count(1);
    let others = fixture.producer();
    for n in 0..count {
        let target = fixture.name(&format!("nowhere-{n}"));
        let delay = [0, 1_000, 3_000][n % 3];
        others.send(&intake, &out(format!("x{n}")).key(format!("k{n}")).delay(delay).to(&target));
    }
    let until = Instant::now() + Duration::from_secs(8);
    let mut innocents = 1;
    while Instant::now() < until {
        innocent(innocents);
        innocents += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    let acks = producer.acks();
    let acked = others.acks().iter().map(|ack| ack.at).max().unwrap_or_default();
    let seen = Log::open(&fixture, &good).ids(innocents).to_vec();
    let mut dead = Log::open(&fixture, &fixture.names.dead());
    let last = dead.ids(count).iter().map(|rec| rec.at).max().unwrap_or_default();
    let late = |rec: &Rec| {
        let n: usize = rec.text().parse().expect("a number");
        rec.at.saturating_sub(acks[n].at + 1_000)
    };
    let mut lateness: Vec<u64> = seen.iter().map(late).collect();
    lateness.sort_unstable();
    let (median, worst) = (lateness[lateness.len() / 2], lateness[lateness.len() - 1]);
    println!(
        "{count} unknown targets, {mode:?}: {innocents} others late by {median} ms, {worst} ms at most; \
         the last dead letter {} ms after the last was written",
        last.saturating_sub(acked)
    );
    assert!(worst < 1_000 * u64::from(patience()), "{worst} ms late");
    fixture.wait_until_nothing_is_pending();
    process.stop_well();
    let ids = (0..count).map(|n| format!("x{n}"));
    let dead = whole(&fixture, &fixture.names.dead());
    assert_promise(mode, ids, &dead);
    let is_missing =
        |rec: &Rec| rec.header("x-delay-error-code").as_deref() == Some("target_missing");
    assert!(dead.iter().all(is_missing));
    assert_promise(mode, (0..innocents).map(|n| n.to_string()), &whole(&fixture, &good));
}

/// Neighbours, one each 20 ms for so long, of records for another target. The result is the worst lateness of a neighbour.
fn beside(
    fixture: &Fixture,
    (mode, round, lasts): (Mode, &str, Duration),
    (good, other): (&str, &str),
    mut during: impl FnMut(usize),
) -> (u64, usize) {
    let producer = fixture.producer();
    let intake = fixture.names.intake();
    let mut sent = 0;
    let until = Instant::now() + lasts;
    while Instant::now() < until {
        during(sent);
        let record = out(format!("{round}{sent}")).key(format!("k{}", sent % 7)).delay(500);
        producer.send(&intake, &record.clone().to(good));
        producer.send(&intake, &record.to(other));
        sent += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    let acks = producer.acks();
    let of_round = |rec: &&Rec| rec.text().starts_with(round);
    let mut log = Log::open(fixture, good);
    let all = |seen: &[Rec]| {
        let ids: BTreeSet<String> = seen.iter().filter(of_round).map(Rec::text).collect();
        ids.len() == sent
    };
    let seen: Vec<Rec> =
        log.until("the neighbours", all).iter().filter(of_round).cloned().collect();
    let late = |rec: &Rec| {
        let n: usize = rec.text()[round.len()..].parse().expect("a number");
        rec.at.saturating_sub(acks[2 * n].at + 500)
    };
    let worst = seen.iter().map(late).max().unwrap_or_default();
    assert_promise(mode, (0..sent).map(|n| format!("{round}{n}")), &seen);
    (worst, sent)
}

/// The producer knows the target as it was.
fn a_target_that_gains_a_partition_costs_no_batch(mode: Mode) {
    let fixture = fixture("grows", mode);
    let target = fixture.target("out", 1);
    let mut process = fixture.start(mode);
    let (producer, intake) = (fixture.producer(), fixture.names.intake());
    let to = |n: u32, partition: u32| {
        let partition = partition.to_string();
        out(format!("{n}")).key("k").to(&target).header("x-delay-partition", &partition)
    };
    producer.send(&intake, &to(0, 0).delay(0));
    let mut log = Log::open(&fixture, &target);
    log.until("the first", |seen| seen.len() == 1);
    let renewed = process.metric("waterclock_producers_renewed_total");
    for partition in 1..4 {
        fixture.grow(&target, partition as usize + 1);
        // What is known of a target is believed for two seconds.
        producer.send(&intake, &to(partition, partition).delay(2_500));
        let ids = (0..=partition).map(|n| n.to_string());
        eventually("it is in the new partition", || {
            let seen = whole(&fixture, &target);
            let seen: BTreeSet<String> = seen.iter().map(Rec::text).collect();
            if ids.clone().all(|id| seen.contains(&id)) { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }
    assert_eq!(process.metric("waterclock_producers_renewed_total"), renewed, "no batch failed");
    process.stop_well();
}

fn a_target_that_may_not_be_written_to_any_more_costs_one_batch_at_most(mode: Mode) {
    let fixture = fixture("revoked", mode);
    let (good, closed) = (fixture.timed_target("good", 2), fixture.timed_target("closed", 2));
    let mut process = fixture.start(mode);
    let renewed = || process.metric("waterclock_producers_renewed_total");
    let before = renewed();
    let lasts = Duration::from_secs(8);
    let (worst, sent) = beside(&fixture, (mode, "a", lasts), (&good, &closed), |n| {
        if n == 50 {
            allow_only(
                &closed,
                &[Right::Describe, Right::DescribeConfigs, Right::Read, Right::Delete],
            );
        }
    });
    let failures = renewed() - before;
    println!("rights taken away, {mode:?}: {failures} failures, others {worst} ms late at most");
    // One batch that fails, and the lanes that are taken over for it.
    assert!(worst < 4_000 * u64::from(patience()), "{worst} ms late");
    assert!(failures <= 1.0, "{failures} failures");
    // The target is known now. It is described again every half minute: other targets do not notice that either.
    let lasts = Duration::from_secs(36);
    let (worst, again) = beside(&fixture, (mode, "b", lasts), (&good, &closed), |_| {});
    let more = renewed() - before - failures;
    println!("rights known to be away, {mode:?}: {more} failures, others {worst} ms late at most");
    assert!(more < 1.0, "{more} failures of what is known");
    assert!(worst < 500 * u64::from(patience()), "{worst} ms late");
    fixture.wait_until_nothing_is_pending();
    process.stop_well();
    let (there, dead) = (whole(&fixture, &closed).len(), whole(&fixture, &fixture.names.dead()));
    assert!(there + dead.len() >= sent + again, "{there} + {}", dead.len());
    let code = |rec: &Rec| rec.header("x-delay-error-code").unwrap_or_default();
    assert!(!dead.is_empty() && dead.iter().all(|rec| code(rec) == "target_refused"));
}

/// A topic that takes no time but that of its own clock refuses the marks of the coordinator, too: a transaction with a record for it
/// would never end, and no other could begin.
fn a_target_that_takes_no_time_but_its_own_stops_nothing(mode: Mode) {
    let fixture = fixture("narrow", mode);
    let good = fixture.target_with("good", 2, &[CREATE_TIME]);
    let settings = [CREATE_TIME, ("message.timestamp.before.max.ms", "0")];
    let narrow = fixture.target_with("narrow", 2, &settings);
    let mut process = fixture.start(mode);
    let before = process.metric("waterclock_producers_renewed_total");
    let producer = fixture.producer();
    for n in 0..40 {
        let target = if n % 2 == 0 { &good } else { &narrow };
        let record = out(format!("{n}")).key(format!("k{}", n % 5)).delay(1_000).to(target);
        producer.send(&fixture.names.intake(), &record);
    }
    producer.acks();
    Log::open(&fixture, &good).ids(20);
    Log::open(&fixture, &fixture.names.dead()).ids(20);
    assert_eq!(process.metric("waterclock_producers_renewed_total"), before, "known before");
    fixture.wait_until_nothing_is_pending();
    process.stop_well();
    assert_promise(mode, (0..40).step_by(2).map(|n| n.to_string()), &whole(&fixture, &good));
    let dead = whole(&fixture, &fixture.names.dead());
    let code = |rec: &Rec| rec.header("x-delay-error-code").unwrap_or_default();
    assert!(dead.iter().all(|rec| code(rec) == "target_refused"), "{dead:?}");
    assert_promise(mode, (1..40).step_by(2).map(|n| n.to_string()), &dead);
}

/// The bytes of each batch that holds records in the only partition of a topic, by the offset of its first, as they lie on the
/// broker's disk.
fn batches(topic: &str) -> Vec<(i64, usize)> {
    let nodes = std::fs::read_dir(variable("WATERCLOCK_KAFKA_DIR")).expect("the broker's files");
    let paths = nodes.map(|node| node.expect("a file").path().join("data"));
    let file = format!("{topic}-0/00000000000000000000.log");
    let path = paths.map(|data| data.join(&file)).find(|path| Path::exists(path));
    let log = std::fs::read(path.expect("a log")).expect("readable");
    let (mut rest, mut found) = (&log[..], Vec::new());
    // Offset, length of what follows, and, among that, the attributes; a file may be longer than what was written.
    while let Some((head, of)) = rest.split_at_checked(12) {
        let first = i64::from_be_bytes(head[..8].try_into().expect("eight"));
        let length = i32::from_be_bytes(head[8..].try_into().expect("four"));
        let Some((batch, left)) = usize::try_from(length).ok().and_then(|n| of.split_at_checked(n))
        else {
            break;
        };
        if batch.is_empty() {
            break;
        }
        let is_marker = batch[10] & 0b10_0000 != 0;
        if !is_marker {
            found.push((first, head.len() + batch.len()));
        }
        rest = left;
    }
    found
}

/// One target takes batches of 2,000 bytes: those to others are as small, since a client has one size for all; and are not any
/// more once it is gone.
fn batches_are_small_as_long_as_a_target_that_takes_no_others_is_there(mode: Mode) {
    const SMALL: usize = 2_000;
    const RECORDS: usize = 200;
    let fixture = fixture("batches", mode);
    let good = fixture.timed_target("good", 1);
    let small = fixture.target_with("small", 1, &[("max.message.bytes", &SMALL.to_string())]);
    let mut process = fixture.start(mode);
    let (producer, intake) = (fixture.producer(), fixture.names.intake());
    let mut log = Log::open(&fixture, &good);
    // The largest batch of many records that are due at the same instant.
    let mut largest = |round: usize| {
        let due = crate::support::now_ms() + 2_000;
        let from = batches(&good).last().map_or(-1, |(first, _)| *first);
        for n in 0..RECORDS {
            let record = out(format!("{round}-{n:0>200}")).key("k").to(&good);
            producer.send(&intake, &record.header("x-delay-until", due.to_string()));
        }
        producer.acks();
        log.count((round + 1) * RECORDS);
        eventually("the batches are on the disk", || {
            let of_round = batches(&good).into_iter().filter(|(first, _)| *first > from);
            of_round.map(|(_, bytes)| bytes).max().ok_or_else(|| "none".to_owned())
        })
    };
    let to_small = |id: &str| {
        producer.send_one(&intake, &out(id).key("k").delay(0).to(&small));
    };
    let before = largest(0);
    to_small("there");
    Log::open(&fixture, &small).count(1);
    let meanwhile = largest(1);
    fixture.delete_target(&small);
    to_small("gone");
    let mut dead = Log::open(&fixture, &fixture.names.dead());
    let code = dead.count(1)[0].header("x-delay-error-code");
    assert_eq!(code.as_deref(), Some("target_missing"));
    let after = largest(2);
    println!("{mode:?}: at most {before}, {meanwhile}, {after} bytes");
    assert!(meanwhile <= SMALL, "{meanwhile} bytes, more than the small one takes");
    for large in [before, after] {
        assert!(large > 5 * SMALL, "{large} bytes at most: they are small without a reason");
    }
    let renewed = "the targets in use take batches of another size";
    assert_eq!(process.log().matches(renewed).count(), 2, "{}", process.log());
    process.stop_well();
    let ids = (0..3).flat_map(|round| (0..RECORDS).map(move |n| format!("{round}-{n:0>200}")));
    assert_promise(mode, ids, &whole(&fixture, &good));
}
