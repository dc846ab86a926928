//! Executors of runs: the programs of `docs/clients/`, as they stand there, and that of the Rust client. They are judged by the lines that
//! they print.

mod pool;
mod rust;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::{Value, json};

use super::{Api, fixture, launch};
use crate::callbacks::Service;
use crate::clients::Client;
use crate::support::{Fixture, PATIENCE, Process, eventually, eventually_within, now_ms, patient};

/// `heartbeat` of all runs here.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// How long a turn of a shard was in the hands of an executor.
struct Span {
    executor: usize,
    /// As in `x-delay-shard`.
    shard: String,
    turn: u32,
    /// Where it began: a cursor, or `-`.
    cursor: String,
    from: u64,
    /// None: its executor has not said that it is over.
    until: Option<u64>,
    /// As the executor says it: `end finished`, `stop unheard`. Empty while it is open.
    how: String,
    /// How many rows it has settled, and their sum, if its executor says that.
    settled: Option<(u64, u64)>,
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { executor, shard, turn, cursor, from, until, how, settled } = self;
        let until = until.map_or_else(String::new, |until| until.to_string());
        let settled = settled.map_or_else(String::new, |(rows, _)| format!(", {rows} rows"));
        write!(
            f,
            "\nexecutor {executor}: {shard} turn {turn} from {cursor}, {from} to {until}: {how}{settled}"
        )
    }
}

/// A line of an executor.
struct Line<'a> {
    shard: &'a str,
    turn: u32,
    what: What<'a>,
    at: u64,
}

enum What<'a> {
    /// Work begins at this cursor.
    Begins(&'a str),
    /// Work is over, and how; and what was settled.
    Ends(String, Option<(u64, u64)>),
}

/// Reads a line of the programs of the documents, `WORD SHARD turn TURN WHAT at MILLISECONDS`, or of `crates/client/examples/worker.rs`,
/// whose work is over when it has settled its last row.
fn read(line: &str) -> Option<Line<'_>> {
    let words: Vec<&str> = line.split(' ').collect();
    let (shard, turn, what, at) = match words[..] {
        ["begin", shard, "turn", turn, "from", cursor, "at", at]
        | ["begin", _, "shard", shard, "turn", turn, "cursor", cursor, "mono", at, "wall", _] => {
            (shard, turn, What::Begins(cursor), at)
        }
        [word @ ("end" | "stop"), shard, "turn", turn, how, "at", at] => {
            (shard, turn, What::Ends(format!("{word} {how}"), None), at)
        }
        [
            "end",
            _,
            "shard",
            shard,
            "turn",
            turn,
            "cursor",
            _,
            "mono",
            _,
            "wall",
            _,
            ref more @ ..,
        ] => {
            let ["last", last, "rows", rows, "sum", sum, how @ ..] = more else { return None };
            let settled = (rows.parse().ok()?, sum.parse().ok()?);
            let how = format!("end {}", how.join(" "));
            (shard, turn, What::Ends(how, Some(settled)), *last)
        }
        _ => return None,
    };
    Some(Line { shard, turn: turn.parse().ok()?, what, at: at.parse().ok()? })
}

/// What executors have said.
#[track_caller]
fn spans(executors: &[Service]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for (executor, service) in executors.iter().enumerate() {
        for (_, line) in service.lines.lock().iter() {
            let Some(Line { shard, turn, what, at }) = read(line) else {
                panic!("executor {executor} has printed another line: {line}");
            };
            match what {
                What::Begins(cursor) => spans.push(Span {
                    executor,
                    shard: shard.to_owned(),
                    turn,
                    cursor: cursor.to_owned(),
                    from: at,
                    until: None,
                    how: String::new(),
                    settled: None,
                }),
                What::Ends(how, settled) => {
                    let is_it = |span: &&mut Span| {
                        let of = (span.executor, &*span.shard, span.turn, span.until);
                        of == (executor, shard, turn, None)
                    };
                    let began = spans.iter_mut().find(is_it).expect("what ends has begun");
                    // Who has settled nothing has no time of a last row.
                    began.until = Some(at.max(began.from));
                    (began.how, began.settled) = (how, settled);
                }
            }
        }
    }
    spans
}

/// Two turns of one shard that were worked on at one time. What has no end is open until now.
fn overlaps(spans: &[Span]) -> Vec<(&Span, &Span)> {
    let until = |span: &Span| span.until.unwrap_or(u64::MAX);
    let pairs = spans
        .iter()
        .enumerate()
        .flat_map(|(n, one)| spans[n + 1..].iter().map(move |other| (one, other)));
    pairs
        .filter(|(one, other)| one.shard == other.shard)
        .filter(|(one, other)| one.from < until(other) && other.from < until(one))
        .collect()
}

/// Creates a run whose shards have this value, and says its id.
#[track_caller]
fn create(api: &Api, topic: &str, shards: usize, value: &str) -> String {
    let run = json!({
        "project": "shop", "group": "settlement", "delay": "1s", "shards": shards, "deadline": "10m",
        "task": {
            "type": "kafka", "topic": topic, "value": value,
            "feedback": {"deadline": "10m", "heartbeat": format!("{}s", HEARTBEAT.as_secs())},
            "retry": {"count": 5, "interval": 1},
        },
    });
    let (status, told) = api.answered("POST", "/v1/runs", Some(&run));
    assert_eq!(status, 201, "{told}");
    told["run_id"].as_str().expect("an id").to_owned()
}

/// Waits until the run is finished, and with it all of its shards.
#[track_caller]
pub(super) fn is_finished(api: &Api, run: &str, shards: usize) {
    let run = eventually_within(3 * PATIENCE, &format!("run {run} is finished"), || {
        let (status, told) = api.answered("GET", &format!("/v1/runs/{run}"), None);
        assert_eq!(status, 200, "{told}");
        if told["run_status"] == "finished" { Ok(told) } else { Err(told.to_string()) }
    });
    assert_eq!((&run["shards"], &run["counts"]["finished"]), (&json!(shards), &json!(shards)));
    assert_eq!(run["grid"], "#".repeat(shards), "{run}");
}

/// Waits until so many executors share the partitions of this topic.
#[track_caller]
fn wait_for_members(fixture: &Fixture, topic: &str, count: usize) {
    let consumer: BaseConsumer = fixture.client().create().expect("a client");
    let group = format!("{topic}-executors");
    eventually_within(PATIENCE, &format!("{group} has {count} members"), || {
        let list = consumer.fetch_group_list(Some(&group), patient(PATIENCE));
        let list = list.map_err(|error| error.to_string())?;
        let found = list.groups().iter().find(|found| found.name() == group);
        let (state, members) =
            found.map_or(("", 0), |found| (found.state(), found.members().len()));
        let is_shared = state == "Stable" && members == count;
        if is_shared { Ok(()) } else { Err(format!("{state}, {members}")) }
    });
}

/// Executors of one kind, as a test starts them and looks at them.
struct Kind<F> {
    start: F,
    /// The clock by which they say what they did when.
    clock: fn() -> u64,
    /// Of each shard.
    rows: usize,
    /// How many rows of this shard are settled if its cursor is this one.
    below: fn(&str, usize) -> usize,
    /// One of them is told to leave by SIGTERM, too.
    leaves: bool,
}

/// A shard that a process had begun, and how many of its rows were settled at least.
struct Held {
    shard: usize,
    turn: u32,
    rows: usize,
}

impl Held {
    fn is_of(&self, span: &Span) -> bool {
        shard_of(span) == self.shard && span.turn == self.turn
    }
}

/// Which shard it is, as a number.
#[track_caller]
fn shard_of(span: &Span) -> usize {
    let index = span.shard.split_once('/').and_then(|(index, _)| index.parse().ok());
    index.unwrap_or_else(|| panic!("of no shard: {span:?}"))
}

/// Of the executors, in the order in which they start: that which is killed.
const DIES: usize = 1;
/// That which stands still for longer than its heartbeat may.
const FREEZES: usize = 2;
/// That which is told to stop, if one is.
const LEAVES: usize = 3;

/// What became of executors, each of which had a shard, and when.
struct Losses {
    lost: Held,
    killed: u64,
    frozen: Held,
    froze: u64,
    woke: u64,
    left: Option<Held>,
}

#[track_caller]
fn pid_of(executor: &Service) -> Pid {
    i32::try_from(executor.pid()).ok().and_then(Pid::from_raw).expect("the id of a process")
}

/// Waits until an executor that had SIGTERM has ended by itself.
#[track_caller]
fn has_left(executor: &Service) {
    // NOWAIT: it is waited for once more when it is dropped.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let ended = eventually("it has ended", || {
        let ended = waitid(WaitId::Pid(pid_of(executor)), options);
        let ended = ended.map_err(|error| error.to_string())?;
        ended.ok_or_else(|| "it runs".to_owned())
    });
    // A JVM that has ended in order says 143 behind SIGTERM.
    assert!(matches!(ended.exit_status(), Some(0 | 143)), "{ended:?}");
}

impl<F: Fn(usize) -> Service> Kind<F> {
    /// A shard that this process works on: waterclock knows that some of it is done, and most is left.
    #[track_caller]
    fn held_by(&self, api: &Api, run: &str, executor: &Service) -> Held {
        let pid = format!("-{}", executor.pid());
        eventually(&format!("worker{pid} has said how far its shard is"), || {
            let path = format!("/v1/runs/{run}/shards?state=executing");
            let (status, told) = api.answered("GET", &path, None);
            assert_eq!(status, 200, "{told}");
            let shards = told["shards"].as_array().expect("shards");
            let is_its = |shard: &&Value| {
                shard["worker"].as_str().is_some_and(|worker| worker.ends_with(&pid))
            };
            let mut held = shards.iter().filter(is_its).filter_map(|of| {
                let shard = of["index"].as_u64()? as usize;
                let rows = (self.below)(of["cursor"].as_str()?, shard);
                Some(Held { shard, turn: of["turn"].as_u64()? as u32, rows })
            });
            let most = self.rows / 2;
            held.find(|held| (1..most).contains(&held.rows)).ok_or_else(|| told.to_string())
        })
    }

    /// Kills one executor, has another one stand still, and may tell a third one to stop, each with a shard. Then it starts one more.
    /// Whose heartbeat is over wakes up while somebody else is at work on its shard.
    #[track_caller]
    fn lose(&self, api: &Api, run: &str, executors: &mut Vec<Service>) -> Losses {
        let lost = self.held_by(api, run, &executors[DIES]);
        executors[DIES].kill();
        let killed = (self.clock)();
        let frozen = self.held_by(api, run, &executors[FREEZES]);
        executors[FREEZES].freeze();
        let froze = (self.clock)();
        let left = self.leaves.then(|| {
            let left = self.held_by(api, run, &executors[LEAVES]);
            kill_process(pid_of(&executors[LEAVES]), Signal::TERM).expect("it is there");
            left
        });
        let comes = (self.start)(executors.len());
        executors.push(comes);
        if self.leaves {
            has_left(&executors[LEAVES]);
        }
        eventually_within(2 * PATIENCE, "somebody goes on with what stands still", || {
            let spans = spans(executors);
            let is_next = |span: &Span| shard_of(span) == frozen.shard && span.turn > frozen.turn;
            if spans.iter().any(is_next) { Ok(()) } else { Err(format!("{spans:?}")) }
        });
        let woke = (self.clock)();
        executors[FREEZES].thaw();
        Losses { lost, killed, frozen, froze, woke, left }
    }

    /// What the executors did, once nothing is open: no shard was worked on twice at one time, and somebody went on with each that was
    /// lost where it had come, as far as that was said. `stops`: how that which stood still says that it is not its shard any more.
    #[track_caller]
    fn judge(&self, executors: &[Service], losses: &Losses, stops: &[&str]) -> Vec<Span> {
        let Losses { lost, killed, frozen, froze, woke, left } = losses;
        let mut spans = eventually("the executors have nothing open", || {
            let mut spans = spans(executors);
            // Who was killed says nothing more.
            for span in spans.iter_mut().filter(|span| span.executor == DIES) {
                if span.until.is_none() {
                    (span.until, span.how) = (Some(*killed), "killed".to_owned());
                }
            }
            let is_over = spans.iter().all(|span| span.until.is_some());
            if is_over { Ok(spans) } else { Err(format!("{spans:?}")) }
        });
        let left = left.as_ref().map(|left| (left, LEAVES, &["stop stopping"][..]));
        let of_two = [(lost, DIES, &["killed"][..]), (frozen, FREEZES, stops)];
        let all = || of_two.into_iter().chain(left);
        for (held, executor, hows) in all() {
            let span = spans.iter_mut().find(|span| held.is_of(span)).expect("it had begun");
            assert!(span.executor == executor && hows.contains(&&*span.how), "{span:?}");
            if executor == FREEZES && span.how.starts_with("stop ") {
                // It has said so as soon as it woke up. Until it stood still it was at work.
                let until = span.until.expect("it is over");
                let awake = Duration::from_millis(until.saturating_sub(*woke));
                assert!(awake <= patient(Duration::from_secs(1)), "{span:?} from {woke}");
                span.until = Some(*froze);
            }
        }
        let overlaps = overlaps(&spans);
        assert!(overlaps.is_empty(), "{overlaps:?}");
        for (held, _, _) in all() {
            let later = spans.iter().filter(|of| shard_of(of) == held.shard && of.turn > held.turn);
            let next = later.min_by_key(|span| span.turn);
            let next = next.unwrap_or_else(|| panic!("nobody went on: {spans:?}"));
            let rows = (self.below)(&next.cursor, held.shard);
            assert!(rows >= held.rows, "{} and more: {next:?}", held.rows);
        }
        spans
    }
}

/// Rows that are settled below a cursor of theirs.
#[track_caller]
fn rows_done(cursor: &str, _: usize) -> usize {
    match cursor.strip_prefix("row:").map(str::parse) {
        None if cursor == "-" => 0,
        Some(Ok(rows)) => rows,
        _ => panic!("no cursor: {cursor}"),
    }
}

/// Executors finish all shards of a run, each shard once, while one is killed, one stands still, one leaves, and one comes.
#[track_caller]
fn executes_the_shards_of_a_run(name: &str, client: fn(&Fixture, &Process) -> Client) {
    /// Each partition has one, and each of the executors of the beginning has two partitions.
    const SHARDS: usize = 8;
    /// A shard takes 4 s, and heartbeats come more than once in half of that.
    const ROWS: usize = 40;
    let fixture = fixture(name);
    let topic = fixture.target("settlement", SHARDS as i32);
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let api = Api::of(&process);
    let client = client(&fixture, &process);
    let start = |_| Service::start(client.prepared(&[&topic]));
    let mut executors: Vec<Service> = (0..=LEAVES).map(start).collect();
    wait_for_members(&fixture, &topic, executors.len());
    let rows = json!({"rows": ROWS * SHARDS, "ms": 100}).to_string();
    let run = create(&api, &topic, SHARDS, &rows);
    let kind = Kind { start, clock: now_ms, rows: ROWS, below: rows_done, leaves: true };
    let losses = kind.lose(&api, &run, &mut executors);
    is_finished(&api, &run, SHARDS);

    let spans = kind.judge(&executors, &losses, &["stop unheard", "stop stale"]);
    let mut finished = BTreeMap::<usize, Vec<u32>>::new();
    for span in spans.iter().filter(|span| span.how == "end finished") {
        finished.entry(shard_of(span)).or_default().push(executors[span.executor].pid());
    }
    let once = finished.values().all(|of| of.len() == 1);
    assert!(once && finished.keys().copied().eq(0..SHARDS), "{spans:?}");
    // Each names itself. So it can be seen who did which shard.
    eventually("it is known who did each shard", || {
        let (status, told) = api.answered("GET", &format!("/v1/runs/{run}/shards"), None);
        assert_eq!(status, 200, "{told}");
        let shards = told["shards"].as_array().cloned().unwrap_or_default();
        let is_known = shards.iter().zip(finished.values()).all(|(shard, by)| {
            let worker = shard["worker"].as_str().unwrap_or_default();
            worker.ends_with(&format!("-{}", by[0]))
        });
        if is_known && shards.len() == SHARDS { Ok(()) } else { Err(told.to_string()) }
    });
    drop(executors);
    process.stop_well();
}

#[test]
fn the_python_program_of_runs_executes_their_shards_while_processes_die_stand_still_and_come() {
    executes_the_shards_of_a_run("runs-python", Client::python_executor);
}

/// Its name lets scripts/test leave it out where the jars are missing.
#[test]
fn the_java_program_of_tasks_executes_the_shards_of_a_run_while_processes_die_stand_still_and_come()
{
    executes_the_shards_of_a_run("runs-java", Client::java_executor);
}

/// Its name, too, lets scripts/test leave it out.
#[test]
fn the_java_program_of_tasks_and_two_of_python_share_the_shards_of_a_run() {
    /// Two for each partition.
    const SHARDS: usize = 12;
    let fixture = fixture("runs-mixed");
    let topic = fixture.target("settlement", 6);
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let api = Api::of(&process);
    let python = Client::python_executor(&fixture, &process);
    let java = Client::java_executor(&fixture, &process);
    let executors =
        [&python, &python, &java].map(|client| Service::start(client.prepared(&[&topic])));
    wait_for_members(&fixture, &topic, executors.len());
    let rows = json!({"rows": 10 * SHARDS, "ms": 100}).to_string();
    let run = create(&api, &topic, SHARDS, &rows);
    is_finished(&api, &run, SHARDS);
    let spans = eventually("the executors have nothing open", || {
        let spans = spans(&executors);
        let is_over = spans.iter().all(|span| span.until.is_some());
        if is_over { Ok(spans) } else { Err(format!("{spans:?}")) }
    });
    let overlaps = overlaps(&spans);
    assert!(overlaps.is_empty(), "{overlaps:?}");
    let finished: Vec<&Span> = spans.iter().filter(|span| span.how == "end finished").collect();
    let mut shards: Vec<usize> = finished.iter().map(|span| shard_of(span)).collect();
    shards.sort_unstable();
    assert_eq!(shards, (0..SHARDS).collect::<Vec<_>>(), "each once: {spans:?}");
    let has_some = |executor| finished.iter().any(|span| span.executor == executor);
    assert!((0..executors.len()).all(has_some), "each has shards: {spans:?}");
    drop(executors);
    process.stop_well();
}
