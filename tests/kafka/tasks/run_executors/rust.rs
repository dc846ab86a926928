//! `crates/client/examples/worker.rs`: processes that die, stand still and come while a run executes.

use std::collections::BTreeSet;

use rustix::time::{ClockId, clock_gettime};

use super::*;

const SHARDS: usize = 24;
/// Rows of a shard. Five are settled at a time, so a shard takes longer than a heartbeat may.
const ROWS: usize = 300;
/// How long a row takes, in milliseconds.
const PAUSE: &str = "125";
/// Parts of a shard, each of which has a cursor.
const PARTS: usize = 3;

/// Which executor comes.
const COMES: usize = 3;
/// Executors in the order in which they start, each with how many shards it works on at a time.
const WEIGHTS: [&str; 4] = ["1", "2", "2", "2"];

/// The clock of the executors.
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000
}

/// The rows of this shard that are below a cursor of its pool: of each part the last row that is settled with all before it.
#[track_caller]
pub(super) fn rows_below(cursor: &str, shard: usize, shards: usize) -> BTreeSet<usize> {
    if cursor == "-" {
        return BTreeSet::new();
    }
    let parts: Vec<Option<String>> = serde_json::from_str(cursor).expect("a list");
    assert_eq!(parts.len(), PARTS, "{cursor}");
    let mut rows = BTreeSet::new();
    for (part, last) in parts.iter().enumerate() {
        let Some(last) = last else { continue };
        let (last, first): (usize, usize) = (last.parse().expect("a row"), shard + shards * part);
        assert_eq!(last % (shards * PARTS), first, "{cursor} is of shard {shard} of {shards}");
        rows.extend((first..=last).step_by(shards * PARTS));
    }
    rows
}

/// No row below the cursor of a turn is settled by it, and each one above it once. Gives how many turns went on from a cursor.
#[track_caller]
fn judge_rows(spans: &[Span]) -> usize {
    let mut went_on = 0;
    for shard in 0..SHARDS {
        let mut turns: Vec<&Span> = spans.iter().filter(|of| shard_of(of) == shard).collect();
        turns.sort_by_key(|span| span.turn);
        for pair in turns.windows(2) {
            let [from, to] = [pair[0], pair[1]].map(|span| rows_below(&span.cursor, shard, SHARDS));
            assert!(pair[0].turn < pair[1].turn, "one turn begins once: {turns:?}");
            assert!(from.is_subset(&to), "no cursor goes back: {turns:?}");
            if let Some((rows, _)) = pair[0].settled {
                let least = (to.len() - from.len()) as u64;
                assert!(rows >= least, "what is below a cursor is settled: {turns:?}");
            }
            went_on += usize::from(!to.is_empty());
        }
        let is_done = |span: &&&Span| span.how == "end done";
        assert!(turns.iter().any(|span| is_done(&span)), "shard {shard} is done: {turns:?}");
        for span in turns.iter().filter(is_done) {
            let below = rows_below(&span.cursor, shard, SHARDS);
            let all = (shard..ROWS * SHARDS).step_by(SHARDS);
            let left: Vec<usize> = all.filter(|row| !below.contains(row)).collect();
            let sum = left.iter().sum::<usize>() as u64;
            assert_eq!(span.settled, Some((left.len() as u64, sum)), "{span:?}");
        }
    }
    went_on
}

#[test]
fn the_rust_program_of_runs_executes_their_shards_while_processes_die_stand_still_and_come() {
    let fixture = fixture("runs-rust");
    let topic = fixture.target("settlement", 8);
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let api = Api::of(&process);
    let client = Client::rust_worker(&fixture, &process);
    let start = |executor: usize| {
        let mut command = client.prepared(&[&topic, WEIGHTS[executor]]);
        command.env("PAUSE", PAUSE).env_remove("TOKEN");
        Service::start(command)
    };
    let mut executors: Vec<Service> = (0..COMES).map(start).collect();
    // Each shard that a process works on at a time is a member of its own.
    wait_for_members(&fixture, &topic, 5);
    let run = create(&api, &topic, SHARDS, &(ROWS * SHARDS).to_string());
    let below = |cursor: &str, shard| rows_below(cursor, shard, SHARDS).len();
    let kind = Kind { start, clock: monotonic, rows: ROWS, below, leaves: false };
    let losses = kind.lose(&api, &run, &mut executors);
    is_finished(&api, &run, SHARDS);

    let spans = kind.judge(&executors, &losses, &["end dropped"]);
    let went_on = judge_rows(&spans);
    println!("{} turns were begun, {went_on} of them from a cursor", spans.len());
    let has_come = spans.iter().any(|span| span.executor == COMES && span.how == "end done");
    assert!(has_come, "who comes has shards: {spans:?}");
    drop(executors);
    process.stop_well();
}
