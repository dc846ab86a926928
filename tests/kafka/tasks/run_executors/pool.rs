//! The pool of `crates/client/examples/worker.rs`, with three producers and five consumers: its process is killed in the middle of a
//! shard. It is judged by its ledger, which has a line for each row that was settled.

use std::collections::BTreeSet;
use std::path::Path;

use super::rust::rows_below;
use super::*;

/// Of the only shard. They take 9 s, and heartbeats come more than once in half of that.
const ROWS: usize = 900;
/// How long a row takes, in milliseconds.
const PAUSE: &str = "50";

/// A line of the ledger: `0/1 turn 1 row 7`.
#[derive(Debug)]
struct Settled {
    turn: u32,
    row: usize,
}

#[track_caller]
fn settled(ledger: &Path) -> Vec<Settled> {
    let text = std::fs::read_to_string(ledger).unwrap_or_default();
    let read = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        ["0/1", "turn", turn, "row", row] => {
            Some(Settled { turn: turn.parse().ok()?, row: row.parse().ok()? })
        }
        _ => None,
    };
    text.lines().map(|line| read(line).unwrap_or_else(|| panic!("another line: {line}"))).collect()
}

/// The rows of a turn, each of which it has settled once.
#[track_caller]
fn of_turn(settled: &[Settled], turn: u32) -> BTreeSet<usize> {
    let mut rows = BTreeSet::new();
    for of in settled.iter().filter(|of| of.turn == turn) {
        assert!(rows.insert(of.row), "turn {turn} has settled row {} twice", of.row);
    }
    rows
}

#[test]
fn a_pool_whose_process_is_killed_leaves_no_row_out_and_settles_none_below_its_cursor_twice() {
    let fixture = fixture("runs-pool");
    let topic = fixture.target("settlement", 1);
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let api = Api::of(&process);
    let client = Client::rust_worker(&fixture, &process);
    let ledger = fixture.path("ledger");
    let start = || {
        let mut command = client.prepared(&[&topic]);
        command.env("PAUSE", PAUSE).env("LEDGER", &ledger).env_remove("TOKEN");
        Service::start(command)
    };
    let mut killed = start();
    let run = create(&api, &topic, 1, &ROWS.to_string());
    // waterclock answers for what it shows: the heartbeat was taken.
    let acknowledged = eventually_within(2 * PATIENCE, "half of the rows are settled", || {
        let (status, told) = api.answered("GET", &format!("/v1/runs/{run}/shards"), None);
        assert_eq!(status, 200, "{told}");
        let settled = settled(&ledger).len();
        let cursor = told["shards"][0]["cursor"].as_str().unwrap_or("-").to_owned();
        let is_half = settled >= ROWS / 2 && cursor != "-";
        if is_half { Ok(cursor) } else { Err(format!("{settled} are: {told}")) }
    });
    killed.kill();
    let before = settled(&ledger).len();
    assert!(before < ROWS, "the kill came in the middle");
    let next = start();
    is_finished(&api, &run, 1);

    let executors = [killed, next];
    let spans = eventually("the second one has nothing open", || {
        let spans = spans(&executors);
        let is_over = spans.iter().any(|span| span.executor == 1 && span.how == "end done");
        if is_over { Ok(spans) } else { Err(format!("{spans:?}")) }
    });
    let next = spans.iter().position(|span| span.executor == 1).expect("it has begun");
    let [acknowledged, below] = [&acknowledged, &spans[next].cursor].map(|of| rows_below(of, 0, 1));
    assert!(!acknowledged.is_empty() && acknowledged.is_subset(&below), "{spans:?}");

    let (lines, mut done, mut again) = (settled(&ledger), BTreeSet::new(), 0);
    for span in &spans {
        let (below, rows) = (rows_below(&span.cursor, 0, 1), of_turn(&lines, span.turn));
        assert!(below.is_subset(&done), "what is below a cursor is settled: {span:?}");
        assert!(rows.is_disjoint(&below), "nothing below it is settled again: {span:?}");
        if span.how == "end done" {
            assert_eq!(rows.len() + below.len(), ROWS, "all that is not below it: {span:?}");
            let sum = rows.iter().sum::<usize>() as u64;
            assert_eq!(span.settled, Some((rows.len() as u64, sum)), "{span:?}");
        }
        again += done.intersection(&rows).count();
        done.extend(rows);
    }
    assert_eq!(done, (0..ROWS).collect(), "no row is left out");
    assert_eq!(lines.len(), ROWS + again, "by no other turn");
    println!(
        "{before} of {ROWS} rows were settled at the kill, {} of them below the cursor; {again} were settled twice",
        below.len()
    );
    drop(executors);
    process.stop_well();
}
