//! The first simulation: engines, shells and a Kafka, all of them models but the engine, in one thread without a clock.
//!
//! ```text
//!  seed ──▶ plan ──▶ workload ──▶ world (one queue of events) ──▶ checkers
//!                                  │ members (shell + engine) ◀── network ──▶ broker
//! ```
//!
//! A seed decides everything: who is killed, which answer is lost, how long a fetch takes. `SEED=n cargo test --test
//! sim` repeats one and tells its last events; `scripts/sim N` runs many. What a seed has found stays in [`REGRESSIONS`].
#![allow(unreachable_pub, missing_docs, reason = "a test exports nothing")]

mod broker;
mod chance;
mod checkers;
mod linear;
mod member;
mod mutation;
mod network;
mod plan;
mod workload;
mod world;

use std::collections::BTreeMap;

use mutation::Mutation;
use plan::{Delivery, Plan, Weather};
use world::{Breach, World};

/// Seeds that failed once. They stay, though a change of the workload gives them another run.
const REGRESSIONS: &[u64] = &[50, 146, 498, 652, 837, 3114, 4352, 104_828, 117_258];
/// How many of the last events a failure tells.
const HISTORY: usize = 120;
/// How many seeds a test run tries, over all modes.
const SEEDS: u64 = 200;

/// The mode of a seed: crashes with transactions are where most can go wrong.
fn mode_of(seed: u64) -> (Weather, Delivery) {
    match seed % 5 {
        0 => (Weather::Healthy, Delivery::ExactlyOnce),
        1 => (Weather::Healthy, Delivery::AtLeastOnce),
        2 => (Weather::Faulty, Delivery::AtLeastOnce),
        _ => (Weather::Faulty, Delivery::ExactlyOnce),
    }
}

fn run(plan: Plan, mutation: Option<Mutation>, history_max: usize) -> World {
    let mut world = World::new(plan, mutation, history_max);
    world.run();
    checkers::check(&mut world);
    world
}

fn breaches(seed: u64, mutation: Option<Mutation>) -> (Vec<Breach>, BTreeMap<&'static str, u64>) {
    let (weather, delivery) = mode_of(seed);
    let world = run(Plan::new(seed, weather, delivery), mutation, 0);
    (world.breaches, world.seen)
}

/// Runs a failed seed again to tell what happened last.
fn tell(seed: u64, found: &[Breach]) -> String {
    let (weather, delivery) = mode_of(seed);
    let again = run(
        Plan::new(seed, weather, delivery),
        None,
        HISTORY.max(number_from("HISTORY").unwrap_or_default() as usize),
    );
    let history: Vec<String> = again.history.into_iter().flatten().collect();
    let found: Vec<String> = found
        .iter()
        .take(10)
        .map(|breach| format!("{}: {}", breach.promise, breach.what))
        .collect();
    format!(
        "SEED={seed} ({weather:?}, {delivery:?})\n{}\n\nlast events:\n{}\n\nSEED={seed}, met: {:?}",
        found.join("\n"),
        history.join("\n"),
        again.seen,
    )
}

#[expect(clippy::disallowed_methods, reason = "a test is told by its environment what to run")]
fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The seeds of one shard; `SEED` names a single one, `SEEDS` says how many, `FIRST_SEED` from where on.
fn seeds(which: impl Fn(u64) -> bool) -> Vec<u64> {
    if let Some(seed) = number_from("SEED") {
        return [seed].into_iter().filter(|seed| which(*seed)).collect();
    }
    let first = number_from("FIRST_SEED").unwrap_or_default();
    let count = number_from("SEEDS").unwrap_or(SEEDS);
    REGRESSIONS.iter().copied().chain(first..first + count).filter(|seed| which(*seed)).collect()
}

fn run_seeds(weather: Weather, delivery: Delivery) -> BTreeMap<&'static str, u64> {
    let mut met: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut failed = Vec::new();
    for seed in seeds(|seed| mode_of(seed) == (weather, delivery)) {
        let (found, seen) = breaches(seed, None);
        for (what, times) in seen {
            *met.entry(what).or_default() += times;
        }
        if !found.is_empty() {
            failed.push((seed, found));
        }
    }
    if let Some((seed, found)) = failed.first() {
        let all: Vec<String> = failed
            .iter()
            .map(|(seed, found)| format!("SEED={seed} {}: {}", found[0].promise, found[0].what))
            .collect();
        panic!("{}\n\n{} seeds failed:\n{}", tell(*seed, found), failed.len(), all.join("\n"));
    }
    met
}

/// What a run over many seeds must have met, or its faults were none.
fn must_have_met(seen: &BTreeMap<&'static str, u64>, what: &[&str]) {
    if number_from("SEED").is_none() && number_from("SEEDS").is_none_or(|count| count >= SEEDS) {
        for what in what {
            assert!(
                seen.get(what).is_some_and(|times| *times > 0),
                "no {what} in all seeds: {seen:?}"
            );
        }
    }
}

#[test]
fn exactly_once_in_good_weather_is_in_order_and_on_time_too() {
    let seen = run_seeds(Weather::Healthy, Delivery::ExactlyOnce);
    must_have_met(&seen, &["batches", "assignments"]);
}

#[test]
fn at_least_once_in_good_weather_doubles_nothing() {
    let seen = run_seeds(Weather::Healthy, Delivery::AtLeastOnce);
    must_have_met(&seen, &["batches", "assignments"]);
}

#[test]
fn exactly_once_holds_through_crashes_zombies_rebalances_and_lost_answers() {
    let seen = run_seeds(Weather::Faulty, Delivery::ExactlyOnce);
    let faults = [
        "kills",
        "stops",
        "zombies",
        "timed out",
        "commit aborted",
        "fenced",
        "old generation",
        "refused",
    ];
    must_have_met(&seen, &faults);
    must_have_met(&seen, &["revoked in flight", "revoked after finishing", "rewinds"]);
    must_have_met(&seen, &["cancels", "cancelled", "forgotten"]);
}

#[test]
fn at_least_once_loses_nothing_through_crashes_and_doubles_only_what_was_in_flight() {
    let seen = run_seeds(Weather::Faulty, Delivery::AtLeastOnce);
    must_have_met(&seen, &["kills", "stops", "zombies", "old generation"]);
}

#[test]
fn a_window_that_is_full_frees_itself_and_loses_nothing() {
    let (mut spilled, mut longest) = (0, 0);
    for seed in 0..4 {
        let delivery = if seed % 2 == 0 { Delivery::ExactlyOnce } else { Delivery::AtLeastOnce };
        let world = run(Plan::flood(seed, delivery), None, 0);
        assert_eq!(world.breaches, [], "SEED={seed}, met: {:?}", world.seen);
        longest = longest.max(world.longest_metadata);
        spilled += world.seen.get("spilled").copied().unwrap_or_default();
    }
    assert!(spilled > 0, "no window was full");
    assert!(longest > broker::METADATA_BYTES_MAX - 100, "{longest} bytes bound nothing");
}

#[test]
fn what_brokers_refuse_is_found_and_its_neighbours_wait_some_seconds_at_most() {
    let mut met = 0;
    let seeds = number_from("POISON").map_or(0..60, |seed| seed..seed + 1);
    for seed in seeds {
        let delivery = if seed % 2 == 0 { Delivery::ExactlyOnce } else { Delivery::AtLeastOnce };
        let told = number_from("HISTORY").unwrap_or_default() as usize;
        let world = run(Plan::poison(seed, delivery), None, told);
        let history: Vec<&String> = world.history.iter().flatten().collect();
        assert_eq!(world.breaches, [], "POISON={seed}, met: {:?}\n{history:#?}", world.seen);
        met += world.seen.get("refused").copied().unwrap_or_default();
    }
    assert!(met > 60, "{met} batches refused");
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..5 {
        let (weather, delivery) = mode_of(seed);
        let history = || run(Plan::new(seed, weather, delivery), None, HISTORY).history;
        assert_eq!(history(), history(), "seed {seed}");
    }
}

/// Runs mutated worlds until a checker of one of these promises objects.
fn bites(mutation: Mutation, promises: &[&str]) {
    const TRIES: u64 = 500;
    let mut others = Vec::new();
    for seed in 1_000..1_000 + TRIES {
        let (found, _) = breaches(seed, Some(mutation));
        match found.iter().find(|breach| promises.contains(&breach.promise)) {
            Some(_) => return,
            None => others.extend(found.into_iter().map(|breach| breach.promise)),
        }
    }
    panic!(
        "{mutation:?} went through {TRIES} seeds unseen by {promises:?}; others saw: {others:?}"
    );
}

#[test]
fn a_delivery_that_is_a_millisecond_early_is_seen() {
    bites(Mutation::Hasty(1), &["never early"]);
}

#[test]
fn a_record_that_is_dropped_is_seen() {
    bites(Mutation::DropsSend, &["never lost"]);
    bites(Mutation::OffsetsAlone, &["never lost"]);
}

#[test]
fn a_record_that_arrives_twice_is_seen() {
    bites(Mutation::SendsTwice, &["exactly once"]);
    bites(Mutation::RecordsAlone, &["exactly once"]);
}

#[test]
fn a_record_that_overtakes_another_is_seen() {
    bites(Mutation::Swaps, &["in order"]);
}

#[test]
fn a_byte_that_changes_is_seen() {
    bites(Mutation::KeepsControl, &["your bytes"]);
    bites(Mutation::NullBecomesEmpty, &["your bytes"]);
    bites(Mutation::TurnsHeaders, &["your bytes"]);
}

#[test]
fn a_record_in_another_partition_is_seen() {
    bites(Mutation::WrongPartition, &["as agreed"]);
}

#[test]
fn a_delivery_that_is_late_for_no_reason_is_seen() {
    bites(Mutation::Oversleeps, &["on time"]);
}

#[test]
fn a_dead_letter_that_does_not_say_where_it_stood_is_seen() {
    bites(Mutation::Misleads, &["dead letters"]);
}

#[test]
fn memory_over_the_budget_is_seen() {
    bites(Mutation::NeverPauses, &["memory"]);
}

#[test]
fn standing_still_is_seen() {
    bites(Mutation::ForgetsAnswer, &["never lost"]);
    bites(Mutation::NeverResumes, &["never lost"]);
}

/// What objects to a wrong end of a timer.
const TIMERS: &[&str] =
    &["cancelled", "cancelled in time", "delivered", "linearizable", "timers", "answers"];

#[test]
fn a_record_that_was_cancelled_and_arrives_is_seen() {
    bites(Mutation::DropsTimers, TIMERS);
    bites(Mutation::DeliversCancelled, TIMERS);
    bites(Mutation::ForgetsVoids, &["cancelled", "cancelled in time", "linearizable"]);
    bites(Mutation::ForgetsUnmet, &["cancelled", "cancelled in time", "linearizable"]);
}

#[test]
fn a_timer_that_does_not_wait_for_a_cancel_in_time_is_seen() {
    bites(Mutation::SkipsGate, &["cancelled in time", "linearizable"]);
    bites(Mutation::SkipsSettle, &["cancelled in time", "linearizable"]);
    bites(Mutation::PassesUnread, &["cancelled in time", "linearizable"]);
}

#[test]
fn an_answer_that_is_not_true_is_seen() {
    bites(Mutation::AnswersEarly, &["cancelled", "delivered", "answers", "linearizable"]);
}

#[test]
fn a_second_timer_of_a_pending_id_is_seen() {
    bites(Mutation::DeliversDuplicates, &["linearizable"]);
    bites(Mutation::FreesEarly, TIMERS);
    bites(Mutation::ForgetsLive, TIMERS);
    bites(Mutation::DropsLastPiece, TIMERS);
}

#[test]
fn a_record_that_was_made_after_a_cancel_and_does_not_arrive_is_seen() {
    bites(Mutation::ComparesWithoutOrder, &["never lost", "linearizable"]);
}

#[test]
fn what_a_user_took_back_is_seen() {
    bites(Mutation::ReadsUncommitted, &["no phantom"]);
}

#[test]
fn a_record_that_is_blamed_for_a_broker_or_never_found_is_seen() {
    bites(Mutation::BlamesBrokers, &["as agreed"]);
    bites(Mutation::KeepsSilent, &["never lost"]);
}

#[test]
fn without_the_rules_about_commits_the_promises_break() {
    bites(Mutation::GoesOnAfterUnknown, &["never lost", "exactly once"]);
    bites(Mutation::TakesUnstable, &["exactly once"]);
    bites(Mutation::OldGenerations, &["never lost", "exactly once"]);
}
