//! F41, the part of a target that is away: its only replica is gone for a minute, and the others go on.

use std::time::Duration;

use crate::support::{Log, PATIENCE, Producer, assert_each_once, out, whole};

use super::{Bed, Through, row};

/// The broker counts as dead, and one batch with a record for the target has to time out before it is known why
/// (`transaction-timeout`, 15 s).
const OTHERS: Duration = Duration::from_secs(40);
const AWAY: Duration = Duration::from_secs(60);
/// Records for the target, due all the time that it is away.
const RECORDS: u64 = 300;

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f41_a_target_that_is_away_for_a_minute_holds_up_no_other() {
    row("f41-away", Through::Nothing, OTHERS, |bed: &Bed<'_>| {
        let alone = bed.fixture.lonely_target("alone");
        let mut log = Log::open(bed.fixture, &alone);
        let producer = Producer::new(bed.fixture, &[("enable.idempotence", "true")]);
        let delays: Vec<u64> = (0..RECORDS).map(|n| 1_000 + n * 60_000 / RECORDS).collect();
        for (n, delay) in delays.iter().enumerate() {
            let record = out(format!("{n}")).key(format!("k{}", n % 7)).delay(delay).to(&alone);
            producer.send(&bed.fixture.names.intake(), &record);
        }
        let acks = producer.acks();
        log.count(5);
        let node = bed.nodes.leader(&alone, 0);
        bed.nodes.kill(node);
        bed.load.healed();
        // Long enough for the one batch that fails; from then on the others flow.
        std::thread::sleep(OTHERS);
        let before = bed.load.seen();
        std::thread::sleep(AWAY - OTHERS);
        let seen = bed.load.seen() - before;
        assert!(seen > 400, "{seen} others in {:?}", AWAY - OTHERS);
        let put_off = bed.process.metric("waterclock_put_off_total");
        assert!(put_off > 0.0, "nothing was put off, so nothing was away");
        bed.nodes.restart(node);
        log.until_within(PATIENCE + Duration::from_secs(60), "all of its records", |seen| {
            seen.len() >= RECORDS as usize
        });
        let seen = whole(bed.fixture, &alone);
        assert_each_once((0..RECORDS).map(|n| n.to_string()), &seen);
        for rec in &seen {
            let n: usize = rec.text().parse().unwrap();
            assert!(rec.at >= acks[n].at + delays[n], "early: delay {}: {rec:?}", delays[n]);
        }
        println!("f41-away: {put_off} put off, {} others meanwhile", bed.load.seen() - before);
    });
}
