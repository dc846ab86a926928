//! The simulation: engines, shells and a Kafka, all of them models but the engine, in one thread without a clock.
//!
//! ```text
//!  seed ──▶ plan ──▶ workload ──▶ world (one queue of events) ──▶ checkers
//!                                  │ members (shell + engine) ◀── network ──▶ broker
//! ```
//!
//! A seed decides everything: the kind of world ([`plan::Kind`]; how often each comes: `options.rs`), who is killed, which
//! answer is lost, how long a fetch takes. `scripts/sim` runs many, and one alone. What fails is made smaller and printed as
//! the command that repeats it; [`REGRESSIONS`] keeps the seed.
#![allow(unreachable_pub, missing_docs, reason = "a test exports nothing")]

mod bites;
mod broker;
mod chance;
mod checkers;
mod checkpoint;
mod linear;
mod member;
mod mutation;
mod network;
mod options;
mod plan;
mod shrink;
mod worker;
mod workload;
mod world;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use options::{Command, Options};
use parking_lot::Mutex;
use plan::{Delivery, Kind, Plan};
use shrink::Shrinking;
use waterclock::engine::header::Code;
use world::{Breach, World};

/// Seeds that failed once. They stay, though a change of the workload gives them another run.
const REGRESSIONS: &[u64] = &[
    50,
    146,
    498,
    652,
    837,
    3114,
    4352,
    5317,
    104_311,
    104_364,
    104_828,
    117_258,
    408_174,
    600_837,
    1_002_218,
    1_005_863,
    1_007_693,
    1_014_022,
    1_014_124,
    2_001_342,
    7_400_062,
    20_005_109,
    1_795_400_015_393,
    1_795_700_005_145,
    1_795_700_007_878,
    1_796_500_006_888,
    1_796_500_017_411,
    1_796_700_002_006,
    1_796_900_013_143,
    1_797_000_000_166,
    1_797_200_000_574,
    1_798_000_003_071,
    1_798_000_004_212,
    1_798_000_028_722,
    1_798_000_040_313,
    1_796_900_042_118,
    1_798_000_045_131,
    1_798_000_054_403,
];
/// The same, of worlds with tasks.
const TASK_REGRESSIONS: &[u64] = &[
    1_113_668, 1_515_138, 3_208_843, 7_001_187, 7_303_560, 7_303_823, 7_801_193, 7_951_735,
    7_953_295, 8_702_111, 8_702_343, 159, 197, 373, 415, 589,
];
/// How many of the last events a failure tells.
const HISTORY: usize = 120;
/// How many seeds a test run tries.
const SEEDS: u64 = 500;
/// How many worlds with tasks it tries.
const TASK_SEEDS: u64 = 150;
/// Failures that are shrunk and told, at most.
const TOLD_MAX: usize = 3;

fn run(options: &Options, history_max: usize) -> World {
    let mut world = World::new(options, history_max);
    world.run();
    checkers::check(&mut world);
    world
}

/// What `scripts/sim` was asked for.
#[expect(clippy::disallowed_methods, reason = "a test is told by its environment what to run")]
fn command() -> Command {
    let text = std::env::var("SIM").unwrap_or_default();
    text.parse().unwrap_or_else(|error| panic!("SIM={text:?}: {error}"))
}

/// Does this with each of them, on all cores.
fn on_all_cores<T: Sync>(all: &[T], each: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    each(one);
                }
            });
        }
    });
}

type Met = BTreeMap<&'static str, u64>;

/// A failure: what was asked for, and what was found.
type Failure = (Options, Vec<Breach>);

/// Runs all of them.
fn run_all(all: &[Options]) -> (Met, Vec<Failure>) {
    let done = Mutex::new((Met::new(), Vec::new()));
    on_all_cores(all, |options| {
        let world = run(options, 0);
        let mut done = done.lock();
        for (what, times) in world.seen {
            *done.0.entry(what).or_default() += times;
        }
        if !world.breaches.is_empty() {
            eprintln!("{options}: {}", world.breaches[0].promise);
            done.1.push((options.clone(), world.breaches));
        }
    });
    done.into_inner()
}

/// The report of a failure: what is broken, the least plan that breaks it, and how to see it again.
fn tell((options, breaches): &Failure, command: &Command) -> String {
    let promise = breaches[0].promise;
    let whole = command.whole || options.mode().0 == Kind::Flood;
    let least =
        if whole { options.clone() } else { Shrinking::new(options.clone(), promise).run() };
    let world = run(&least, command.history.unwrap_or(HISTORY));
    let mut text = vec![format!("scripts/sim {options}")];
    text.extend(breaches.iter().take(5).map(|of| format!("  {}: {}", of.promise, of.what)));
    text.push(format!("\nscripts/sim {least}"));
    text.extend(world.breaches.iter().take(5).map(|of| format!("  {}: {}", of.promise, of.what)));
    let submissions = world.workload.submissions.iter().enumerate();
    let made = |at: &usize| least.submissions.as_ref().is_none_or(|only| only.contains(at));
    text.push("\nfaults:".to_owned());
    let faults = world.plan.faults.iter().take(40);
    text.extend(faults.map(|(at, fault)| format!("  {at:>10} {fault:?}")));
    text.push("submissions:".to_owned());
    let some = submissions.filter(|(at, _)| made(at)).take(20);
    text.extend(some.map(|(at, of)| format!("  {:>10} n={at} {}", of.at, of.brief())));
    text.push("last events:".to_owned());
    text.extend(world.history.into_iter().flatten());
    text.join("\n")
}

/// Runs them, and fails with what is to be known of the first that fail.
fn all_hold(all: &[Options], command: &Command) -> Met {
    let (met, failed) = run_all(all);
    if failed.is_empty() {
        return met;
    }
    let told: Vec<String> = failed.iter().take(TOLD_MAX).map(|of| tell(of, command)).collect();
    let of = |(options, found): &Failure| {
        format!("scripts/sim {options}: {}: {}", found[0].promise, found[0].what)
    };
    let every: Vec<String> = failed.iter().map(of).collect();
    panic!("{}\n\n{} failed:\n{}", told.join("\n\n"), failed.len(), every.join("\n"));
}

/// What must have been met by many seeds, or their faults were none.
#[rustfmt::skip]
const MUST_MEET: &[&str] = &[
    "kills", "stops", "zombies", "freezes", "faults between steps", "timed out", "commit aborted", "fenced",
    "old generation", "refused", "revoked in flight", "revoked after finishing", "rewinds", "spilled",
    "commits held up", "offsets held up", "commits slow", "leaders changed", "nodes stalled", "silences",
    "requests to nodes that stand still", "retention deleted", "losses told", "offsets expired", "checkpoints taken",
    "indexes torn", "indexes missing", "indexes refused", "changelogs compacted", "clocks stepped back",
    "clocks stepped forward", "steps back seen", "clocks learned", "early deliveries aborted", "wall clocks stepped",
    "foreign transactions seen", "members fenced",
    "targets without a leader", "states copied to other records", "states copied to other topics", "states changed",
    "states used twice",
    "lanes counted",
    "cancels", "cancelled", "forgotten", "recalled as ended", "moves", "hops", "deliveries", "dead letters", "answers lost",
];

#[test]
fn every_seed_keeps_every_promise() {
    let command = command();
    let count = command.seeds.unwrap_or(SEEDS);
    let all: Vec<Options> = match &command.one {
        Some(one) => vec![one.clone()],
        None => {
            let first = command.first_seed.unwrap_or_default();
            let seeds = (first..first + count).chain(REGRESSIONS.iter().copied());
            let with = |seed| {
                let Command { kind, delivery, .. } = command;
                Options { kind, delivery, ..Options::seed(seed) }
            };
            seeds.map(with).collect()
        }
    };
    let met = all_hold(&all, &command);
    eprintln!("{} runs; met, and how often:", all.len());
    for (what, times) in &met {
        eprintln!("{times:>12} {what}");
    }
    if command.one.is_none() && command.kind.is_none() && count >= SEEDS {
        for what in MUST_MEET {
            assert!(met.contains_key(what), "no {what} in all seeds: {met:?}");
        }
    }
}

#[test]
fn a_window_that_is_full_frees_itself_and_loses_nothing() {
    let (mut spilled, mut longest) = (0, 0);
    for seed in 0..4 {
        let delivery = if seed % 2 == 0 { Delivery::ExactlyOnce } else { Delivery::AtLeastOnce };
        let options = Options::new(seed, Kind::Flood, delivery);
        let world = run(&options, 0);
        assert_eq!(world.breaches, [], "scripts/sim {options}, met: {:?}", world.seen);
        longest = longest.max(world.longest_metadata);
        spilled += world.seen.get("spilled").copied().unwrap_or_default();
    }
    assert!(spilled > 0, "no window was full");
    assert!(longest > broker::METADATA_BYTES_MAX - 100, "{longest} bytes bound nothing");
}

/// So many worlds of a kind, every other one in the other mode of delivery; what they met.
fn in_both(kind: Kind, count: u64) -> Met {
    let of = |seed| match seed % 2 {
        0 => Options::new(seed, kind, Delivery::ExactlyOnce),
        _ => Options::new(seed, kind, Delivery::AtLeastOnce),
    };
    let all: Vec<Options> = (0..count).map(of).collect();
    all_hold(&all, &Command::default())
}

#[test]
fn what_brokers_refuse_is_found_and_its_neighbours_wait_some_seconds_at_most() {
    let met = in_both(Kind::Poison, 60);
    assert!(met.get("refused").is_some_and(|times| *times > 60), "{met:?}");
}

#[test]
fn hostile_producers_hold_up_nobody_and_each_of_their_records_ends_as_the_contract_says() {
    let met = in_both(Kind::Hostile, 40);
    // No client's record can hop too often, and no intake is taken out of the configuration. The last five are of tasks: these
    // worlds have none, and tests of the engine and on Kafka provoke each.
    let out_of_reach = [
        Code::TooManyHops,
        Code::UnknownIntake,
        Code::TaskForbidden,
        Code::BadTask,
        Code::StaleSubmit,
        Code::TaskFailed,
        Code::ProjectDeleted,
    ];
    for code in Code::ALL.iter().filter(|code| !out_of_reach.contains(code)) {
        assert!(met.contains_key(code.as_str()), "no {code:?} in all worlds: {met:?}");
    }
}

/// What must have been met by some worlds with tasks.
#[rustfmt::skip]
const TASKS_MUST_MEET: &[&str] = &[
    "workers killed", "workers stopped", "workers frozen", "workers beyond session", "workers lost",
    "workers struck between steps", "workers' commits unknown", "workers' commits failed", "calls", "calls cut",
    "creations replayed", "sealed records copied", "tasks to be cancelled", "cancels of tasks answered", "results: started",
    "results: deferred", "results: in doubt", "results: cut", "results: cancelled", "results: absent", "results: ended", "kills", "zombies",
    "recalled as ended", "calls of nobody", "expired", "project_deleted", "target_missing",
    "foreign records", "dispatches copied", "dispatches altered", "changed bodies at workers", "retries by hand", "retries taken", "retries outrun",
    "schedules made", "schedules replayed", "schedules cancelled", "changes of schedules taken", "changes of schedules outrun",
    "occurrences", "tasks of schedules by hand", "follow-ups",
    "runs made", "runs replayed", "runs cancelled", "retries of runs taken", "shards", "news of shards",
    "runs of schedules", "runs of schedules that wait for others", "runs of schedules cancelled",
];

#[test]
fn tasks_end_once_whoever_dies_and_whatever_endpoints_answer() {
    let of = |seed| Options::new(seed, Kind::Tasks, Delivery::ExactlyOnce);
    let all: Vec<Options> =
        (0..TASK_SEEDS).chain(TASK_REGRESSIONS.iter().copied()).map(of).collect();
    let met = all_hold(&all, &Command::default());
    for what in TASKS_MUST_MEET {
        assert!(met.contains_key(what), "no {what} in all worlds with tasks: {met:?}");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let tasks = |seed| Options::new(seed, Kind::Tasks, Delivery::ExactlyOnce);
    for options in (0..20).map(Options::seed).chain((0..20).map(tasks)) {
        let history = || run(&options, HISTORY).history;
        assert_eq!(history(), history(), "scripts/sim {options}");
    }
}

#[test]
fn every_kind_of_world_is_drawn_by_some_seed() {
    for kind in Kind::ALL.iter().filter(|kind| !matches!(kind, Kind::Flood | Kind::Tasks)) {
        assert!((0..20).any(|seed| Plan::of(&Options::seed(seed)).kind == *kind), "{kind:?}");
    }
}
