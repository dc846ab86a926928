//! Cancels on a real Kafka: a pending record is kept from its target, through kills, takeovers and outages.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{
    Fixture, Log, Mode, Out, PATIENCE, Rec, eventually_within, in_both_modes, out, whole,
};

in_both_modes!(
    what_is_cancelled_in_a_tier_or_in_the_wheel_never_arrives,
    a_cancel_outlives_a_kill_and_a_takeover,
    a_cancel_written_while_all_are_away_is_in_time_for_what_is_overdue,
);

fn fixture(test: &str, mode: Mode) -> Fixture {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    Fixture::with(&format!("{test}-{short}"), |request| request.lanes = Some(3))
}

fn create(target: &str, value: &str, key: Option<&str>, id: &str, delay_ms: u64) -> Out {
    let record = out(value).header("x-delay-id", id).delay(delay_ms).to(target);
    Out { key: key.map(|key| key.as_bytes().to_vec()), ..record }
}

fn cancel(key: Option<&str>, id: &str) -> Out {
    let record = out("").header("x-delay-action", "cancel").header("x-delay-id", id);
    Out { key: key.map(|key| key.as_bytes().to_vec()), value: None, ..record }
}

/// What arrived once nothing is pending any more.
fn arrived(fixture: &Fixture, target: &str) -> BTreeSet<String> {
    fixture.wait_until_nothing_is_pending();
    whole(fixture, target).iter().map(Rec::text).collect()
}

fn set(values: &[&str]) -> BTreeSet<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

fn what_is_cancelled_in_a_tier_or_in_the_wheel_never_arrives(mode: Mode) {
    let fixture = fixture("cancel", mode);
    let target = fixture.target("out", 3);
    let mut process = fixture.start(mode);
    let intake = fixture.names.intake();
    let producer = fixture.producer();
    // librdkafka's own partitioner: nearly every second record stands in another partition than its lane.
    let foreign = crate::support::Producer::new(&fixture, &[("partitioner", "consistent_random")]);
    let send = |record: &Out| producer.send_one(&intake, record);
    send(&create(&target, "tier", Some("k"), "tier", 6_000));
    send(&create(&target, "wheel", Some("k"), "wheel", 1_900));
    send(&create(&target, "other key", Some("l"), "wheel", 1_900));
    send(&create(&target, "keyless", None, "keyless", 4_000));
    send(&create(&target, "without", None, "as key", 4_000));
    send(&create(&target, "its id as key", Some("as key"), "as key", 4_000));
    send(&create(&target, "twice", Some("t"), "twice", 4_000));
    send(&create(&target, "twice", Some("t"), "twice", 4_100));
    for n in 0..8 {
        let key = format!("foreign {n}");
        foreign.send_one(&intake, &create(&target, &key, Some(&key), "i", 5_000));
    }
    send(&create(&target, "once more, before", Some("again"), "i", 4_000));
    send(&cancel(Some("k"), "wheel"));
    send(&cancel(Some("k"), "tier"));
    send(&cancel(None, "keyless"));
    send(&cancel(None, "as key"));
    send(&cancel(Some("t"), "twice"));
    send(&cancel(Some("again"), "i"));
    send(&create(&target, "once more, after", Some("again"), "i", 4_000));
    for n in 0..8 {
        foreign.send_one(&intake, &cancel(Some(&format!("foreign {n}")), "i"));
    }
    send(&out("no id").key("k").header("x-delay-action", "cancel"));
    // In a tier a cancel is refused.
    let tier = fixture.lane_topics().pop().unwrap();
    producer.send_one(&tier, &cancel(Some("k"), "in a tier"));
    Log::open(&fixture, &fixture.names.dead()).count(1);
    eventually_within(PATIENCE, "all cancels are recorded and met", || {
        let (cancels, met, duplicates) = (
            process.metric("waterclock_cancels_total"),
            process.metric("waterclock_cancelled_total"),
            process.metric("waterclock_duplicates_total"),
        );
        if cancels >= 14.0 && met >= 14.0 && duplicates >= 1.0 {
            Ok(())
        } else {
            Err(format!("{cancels} cancels, {met} met, {duplicates} duplicates"))
        }
    });
    Log::open(&fixture, &target).count(3);
    process.stop_well();
    let seen: BTreeSet<String> = whole(&fixture, &target).iter().map(Rec::text).collect();
    assert_eq!(seen, set(&["other key", "its id as key", "once more, after"]));
}

fn a_cancel_outlives_a_kill_and_a_takeover(mode: Mode) {
    let fixture = fixture("cancel-kill", mode);
    let target = fixture.target("out", 3);
    let mut first = fixture.launch(mode).data("a").start();
    let intake = fixture.names.intake();
    let producer = fixture.producer();
    for n in 0..12 {
        let key = format!("{n}");
        producer.send_one(&intake, &create(&target, &key, Some(&key), "i", 25_000));
    }
    for n in 0..6 {
        producer.send_one(&intake, &cancel(Some(&format!("{n}")), "i"));
    }
    eventually_within(PATIENCE, "the cancels are recorded", || {
        let cancels = first.metric("waterclock_cancels_total");
        if cancels >= 6.0 { Ok(()) } else { Err(format!("{cancels}")) }
    });
    first.kill();
    let mut second = fixture.launch(mode).data("b").start();
    Log::open(&fixture, &target).until_within(
        PATIENCE + Duration::from_secs(30),
        "what was not cancelled",
        |seen| seen.len() >= 6,
    );
    let seen = arrived(&fixture, &target);
    second.stop_well();
    assert_eq!(seen, set(&["6", "7", "8", "9", "10", "11"]));
}

fn a_cancel_written_while_all_are_away_is_in_time_for_what_is_overdue(mode: Mode) {
    let fixture = fixture("cancel-away", mode);
    let target = fixture.target("out", 3);
    let mut first = fixture.start(mode);
    let intake = fixture.names.intake();
    let producer = fixture.producer();
    for n in 0..30 {
        let key = format!("{n}");
        producer.send_one(&intake, &create(&target, &key, Some(&key), "i", 4_000));
    }
    first.stop_well();
    for n in 0..15 {
        producer.send_one(&intake, &cancel(Some(&format!("{n}")), "i"));
    }
    // Overdue by the time it is back.
    std::thread::sleep(Duration::from_secs(5));
    let mut second = fixture.start(mode);
    Log::open(&fixture, &target).count(15);
    let seen = arrived(&fixture, &target);
    second.stop_well();
    let want: BTreeSet<String> = (15..30).map(|n| n.to_string()).collect();
    assert_eq!(seen, want);
}
