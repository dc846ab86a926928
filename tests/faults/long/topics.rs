//! F29, F31: what own topics hold is taken away.

use std::time::Duration;

use rdkafka::Offset;
use waterclock::engine::Millis;
use waterclock::kafka::topics::{apply, delete};

use crate::load::mode;
use crate::one::topics::{arrived, ids, send};
use crate::support::{Fixture, Log, assert_promise, eventually, whole};

const REMADE: &str = "waterclock_topics_remade_total";
const LOST: &str = "waterclock_records_lost_total";

#[test]
#[ignore = "scripts/faults --long: half a minute until a lost topic is believed"]
fn f29_a_tier_or_a_target_that_is_created_again_is_told_and_stops_nothing_else() {
    let fixture = Fixture::new("f29");
    let [target, other] = ["out", "other"].map(|name| fixture.target(name, 1));
    let tier = fixture.names.tier(Millis(5_000));
    let mut process = fixture.start(mode());
    let [gone, later, elsewhere] = ["gone", "later", "elsewhere"].map(|name| ids(name, 40));
    // Some of these stand in the tier when it is deleted.
    send(&fixture, &target, &gone, 25_000);
    eventually("a record is in the tier", || {
        let seen = count(&fixture, &tier);
        if seen > 0 { Ok(()) } else { Err("none".to_owned()) }
    });
    delete(&fixture.connection, std::slice::from_ref(&tier)).expect("deleted");
    eventually("the tier is created again", || {
        apply(&fixture.connection, &fixture.request).map_err(|error| format!("{error:?}"))
    });
    eventually("it is seen", || match process.metric(REMADE) {
        found if found >= 1.0 => Ok(()),
        found => Err(format!("{found}")),
    });
    assert!(process.log().contains("was deleted and created again"), "{}", process.log());
    // Through that tier, and past it.
    send(&fixture, &target, &later, 6_900);
    send(&fixture, &other, &elsewhere, 0);
    Log::open(&fixture, &other).count(elsewhere.len());
    Log::open(&fixture, &target)
        .until("what came later arrives", |seen| arrived(seen, &later) == later.len());
    let seen = whole(&fixture, &target);
    assert_promise(
        mode(),
        later.iter().cloned(),
        &seen.iter().filter(|rec| later.contains(&rec.text())).cloned().collect::<Vec<_>>(),
    );
    let of_gone = arrived(&seen, &gone);
    assert!(of_gone < gone.len(), "none of them stood in the tier");

    // A target: dead letters while it is away, deliveries when it is there again, the other one never waits.
    let [missed, back, beside] = ["missed", "back", "beside"].map(|name| ids(name, 20));
    delete(&fixture.connection, std::slice::from_ref(&target)).expect("deleted");
    send(&fixture, &target, &missed, 0);
    send(&fixture, &other, &beside, 0);
    Log::open(&fixture, &other).count(elsewhere.len() + beside.len());
    let dead = fixture.names.dead();
    Log::open(&fixture, &dead).until("dead letters", |seen| arrived(seen, &missed) == missed.len());
    let target = fixture.target("out", 1);
    eventually("the target is used again", || {
        let id = format!("try-{}", uuid::Uuid::new_v4().simple());
        send(&fixture, &target, std::slice::from_ref(&id), 0);
        let mut log = Log::open(&fixture, &target);
        log.read_on(Duration::from_secs(1));
        if log.seen.is_empty() { Err("it is thought missing".to_owned()) } else { Ok(()) }
    });
    send(&fixture, &target, &back, 0);
    Log::open(&fixture, &target).until("they arrive", |seen| arrived(seen, &back) == back.len());
    process.stop_well();
    println!("f29: {of_gone} of {} outlived their tier, {} after it", gone.len(), later.len());
}

#[test]
#[ignore = "scripts/faults --long: half a minute until a lost topic is believed"]
fn f31_records_that_are_deleted_under_us_are_counted_and_told() {
    let fixture = Fixture::new("f31");
    let target = fixture.target("out", 1);
    let tier = fixture.names.tier(Millis(5_000));
    let mut process = fixture.start(mode());
    let [gone, kept] = ["gone", "kept"].map(|name| ids(name, 60));
    send(&fixture, &target, &gone, 30_000);
    eventually("they are in the tier", || {
        let seen = count(&fixture, &tier);
        if seen >= gone.len() { Ok(()) } else { Err(format!("{seen}")) }
    });
    process.kill();
    for lane in 0..i32::from(fixture.lanes()) {
        fixture.delete_records(&tier, lane, Offset::End);
    }

    let mut process = fixture.start(mode());
    send(&fixture, &target, &kept, 6_900);
    eventually("it is counted", || match process.metric(LOST) {
        lost if lost > 0.0 => Ok(()),
        lost => Err(format!("{lost}")),
    });
    let said = "the position is outside of the log";
    assert!(process.log().contains(said) && process.log().contains(&tier), "{}", process.log());
    Log::open(&fixture, &target)
        .until("the others arrive", |seen| arrived(seen, &kept) == kept.len());
    fixture.wait_until_nothing_is_pending();
    let lost = process.metric(LOST);
    process.stop_well();
    let seen = whole(&fixture, &target);
    let missing = gone.len() - arrived(&seen, &gone);
    assert!(missing > 0 && lost >= missing as f64, "{missing} are missing, {lost} counted");
    assert_eq!(arrived(&seen, &kept), kept.len(), "each of the others once");
    println!("f31: {missing} records deleted in a tier, {lost} offsets counted as lost");
}

/// How many records stand in a topic.
fn count(fixture: &Fixture, topic: &str) -> usize {
    let mut log = Log::open(fixture, topic);
    log.read_on(Duration::from_millis(500));
    log.seen.len()
}
