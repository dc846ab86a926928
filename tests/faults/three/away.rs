//! F41, the part of a target that is away: its only replica is gone, and the others go on.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::load::mode;
use crate::support::{Log, PATIENCE, Producer, Rec, assert_promise, out, whole};

use super::{Bed, Through, row};

/// The broker counts as dead. One batch with a record for the target has to time out before the cause is known
/// (`transaction-timeout`, 15 s).
const OTHERS: Duration = Duration::from_secs(40);
/// Between two records for the target.
const EVERY: Duration = Duration::from_millis(200);
/// Their delays, in milliseconds: between the first and the last so much, in turns.
const DELAYS: (u64, u64) = (1_000, 50_000);
/// How many others are to be delivered meanwhile, a second; 30 are sent.
const OTHERS_A_SECOND: u64 = 20;

/// How long it is away: a minute, or as many as `TEST_AWAY_MINUTES` says.
#[allow(clippy::disallowed_methods, reason = "a test is told how long it is to take")]
fn away() -> Duration {
    let told = std::env::var("TEST_AWAY_MINUTES").ok();
    let minutes = told.map_or(1, |told| told.parse().expect("TEST_AWAY_MINUTES: a number"));
    Duration::from_secs(60 * minutes)
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f41_a_target_that_is_away_holds_up_no_other() {
    row("f41-away", Through::Nothing, OTHERS, |bed: &Bed<'_>| {
        let alone = bed.fixture.lonely_target("alone");
        let mut log = Log::open(bed.fixture, &alone);
        let producer = Producer::new(bed.fixture, &[("enable.idempotence", "true")]);
        let mut delays: Vec<u64> = Vec::new();
        let mut send_until = |until: Instant| {
            while Instant::now() < until {
                let n = delays.len() as u64;
                let delay = DELAYS.0 + n * 1_000 % (DELAYS.1 - DELAYS.0);
                let record = out(format!("{n}")).key(format!("k{}", n % 7)).delay(delay).to(&alone);
                producer.send(&bed.fixture.names.intake(), &record);
                delays.push(delay);
                std::thread::sleep(EVERY);
            }
        };
        send_until(Instant::now() + Duration::from_secs(3));
        log.count(5);
        let node = bed.nodes.leader(&alone, 0);
        bed.nodes.kill(node);
        let (killed, away) = (Instant::now(), away());
        bed.load.healed();
        // Long enough for the one batch that fails; from then on the others flow.
        send_until(killed + OTHERS);
        let before = bed.load.seen();
        send_until(killed + away);
        let others = bed.load.seen() - before;
        let least = (away - OTHERS).as_secs() * OTHERS_A_SECOND;
        assert!(others as u64 > least, "{others} others in {:?}", away - OTHERS);
        let put_off = bed.process.metric("waterclock_put_off_total");
        assert!(put_off > 0.0, "nothing was put off, so nothing was away");
        bed.nodes.restart(node);
        let back = Instant::now();
        log.until_within(PATIENCE + Duration::from_secs(60), "all of its records", |seen| {
            // Some may be there twice, where that is allowed.
            seen.iter().map(Rec::text).collect::<BTreeSet<_>>().len() >= delays.len()
        });
        let took = back.elapsed();
        let (seen, acks) = (whole(bed.fixture, &alone), producer.acks());
        assert_promise(mode(), (0..delays.len()).map(|n| n.to_string()), &seen);
        for rec in &seen {
            let n: usize = rec.text().parse().unwrap();
            assert!(rec.at >= acks[n].at + delays[n], "early: delay {}: {rec:?}", delays[n]);
        }
        println!(
            "f41-away: away for {away:?}; of {} records for it all came within {took:?} of its return, put off {put_off} times; \
             {others} others meanwhile; at most {} MiB of memory",
            seen.len(),
            bed.process.memory_peak_kib() / 1024
        );
    });
}
