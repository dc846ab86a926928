//! F19: the clock of a broker is set.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::checkers::{Wish, arrivals, breaches, check, summary};
use crate::load::{History, Load, Mix, STAMPED, mode};
use crate::support::{Clock, Cluster, Fixture, Mode, Process, eventually, patience};

const SKEW: &str = "waterclock_clock_skew_seconds";
const STEPS: &str = "waterclock_clock_steps_total";
/// How far the clock is set, in milliseconds.
const FAR: i64 = 600_000;
/// How often it is set back and forward again: each time is a chance for what was on its way.
const ROUNDS: u32 = 3;
/// By how much more a step may look, since records are not appended at every moment.
const BETWEEN: i64 = 10_000;
/// The broker's own timers go off with its clock: sessions, transactions.
const AT_ONCE: Wish = Wish { recovery: Duration::from_secs(20) };

#[track_caller]
fn skewed(process: &Process, ahead_ms: i64) {
    eventually("the skew is a metric", || match process.metric(SKEW) {
        skew if (skew - ahead_ms as f64 / 1e3).abs() < 1.0 => Ok(()),
        skew => Err(format!("{skew} s")),
    });
}

/// By how much the append times of a target went back and forward at the most, from one record of a partition to the next.
fn steps(history: &History) -> RangeInclusive<i64> {
    let mut of: BTreeMap<i32, Vec<(i64, i64)>> = BTreeMap::new();
    for rec in &history.late {
        of.entry(rec.partition).or_default().push((rec.offset, rec.at.cast_signed()));
    }
    let mut steps = 0..=0;
    for mut appends in of.into_values() {
        appends.sort_unstable();
        for pair in appends.windows(2) {
            let step = pair[1].1 - pair[0].1;
            steps = (*steps.start()).min(step)..=(*steps.end()).max(step);
        }
    }
    steps
}

/// Every promise but the one that needs a transaction: what leaves before a step is noticed is early by it, and is not taken
/// back. That is a second's worth of records at each step.
#[track_caller]
fn check_but_for_early(history: &History) {
    println!("{}", summary(history));
    let mut found = breaches(history, AT_ONCE);
    found.retain(|(promise, _)| *promise != "never early");
    assert!(found.is_empty(), "{}: {found:?}", history.name);
    let early = arrivals(history).filter(|(_, rec, due)| rec.at < *due).count();
    println!("{}: {early} early by the steps", history.name);
    let most = ROUNDS as usize * Mix::default().rate as usize * patience() as usize;
    assert!(early <= most, "{early} early, at most {most} may be");
}

#[test]
#[ignore = "scripts/faults --long: a broker of its own"]
fn f19_nothing_is_early_by_the_clock_of_a_broker_that_is_set() {
    let clock = Clock::new();
    let cluster = Cluster::start_with("", &clock.environment());
    let [first, second] =
        ["f19-ahead", "f19-behind"].map(|name| Fixture::on(cluster.connection(), name, |_| {}));
    let [mut ahead, mut behind] = [&first, &second].map(|f| f.start(mode()));
    skewed(&ahead, 0);

    // Ten minutes forward: whatever is pending is due by that clock.
    let load = Load::begin(&first, Mix { target: STAMPED.to_vec(), ..Mix::default() });
    load.cancel_through(&[&ahead]);
    load.wait_for_more(60);
    clock.set(FAR);
    load.healed_by(FAR);
    skewed(&ahead, FAR);
    let told = "the clocks of a broker and of this machine differ";
    ahead.wait_until_logged(Duration::from_secs(10), told);
    let (_, body) = ahead.get("/health/ready").expect("an answer");
    assert!(body.contains("ahead of this machine's"), "{body}");
    load.wait_for_more(200);
    let history = load.finish("f19-ahead");
    let seen = steps(&history);
    assert!((FAR - BETWEEN..FAR + BETWEEN).contains(seen.end()), "{seen:?}");
    check(&history, AT_ONCE);

    // Twenty back: whatever is pending is due in twenty minutes, and not before. Then forward again, which is mended.
    // Keys of their own, and no cancels: what was first is told by append times.
    let target = STAMPED.to_vec();
    let mix = Mix { keys: usize::MAX, cancelled_every: 0, target, ..Mix::default() };
    let load = Load::begin(&second, mix);
    load.wait_for_more(100);
    for round in 1..=ROUNDS {
        clock.set(-FAR);
        skewed(&behind, -FAR);
        assert!(behind.metric(STEPS) >= f64::from(round), "that it went back is counted");
        load.wait_for_more(60);
        clock.set(FAR);
        load.healed_by(FAR);
        skewed(&behind, FAR);
        load.wait_for_more(60);
    }
    load.wait_for_more(200);
    let history = load.finish("f19-behind");
    let seen = steps(&history);
    assert!((-2 * FAR - BETWEEN..-2 * FAR + BETWEEN).contains(seen.start()), "{seen:?}");
    match mode() {
        Mode::ExactlyOnce => check(&history, AT_ONCE),
        Mode::AtLeastOnce => check_but_for_early(&history),
    }
    for process in [&mut ahead, &mut behind] {
        let log = process.log();
        println!(
            "f19: {} batches failed, {} of them for what came to stand early; lanes were taken over {} times",
            log.matches("renewing the producer").count(),
            log.matches("before it is due, as if a clock was set back").count(),
            log.matches("lanes taken over").count(),
        );
        process.stop_well();
    }
}
