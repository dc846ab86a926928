//! F52, F53: an owner of lanes, and a worker, that dies between any two steps of a commit while tasks are dispatched, called,
//! retried, cancelled and ended.
//!
//! What must hold, judged by the services that are called, by Kafka's topics, and by what the API says when all is over: each task
//! ends once, as it should; a turn is dispatched once and has one result; a call is made again only where its result cannot have
//! been committed; `webhook-id` and the number of the attempt say which call it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::workers::{PROJECT, launch};
use crate::support::tasks::{Api, is_final, task, with};
use crate::support::{
    Call, Endpoint, Fixture, Log, PATIENCE, Rec, assert_each_once, eventually, now_ms, patience,
    whole,
};

/// The steps of a commit between which a process dies.
const COMMIT: [&str; 6] = [
    "before_begin",
    "before_produce",
    "after_produce",
    "after_send_offsets",
    "before_commit",
    "after_commit",
];
/// An owner of lanes takes one more.
const INDEX: &str = "before_index_write";
/// Commits that go well before the one that does not: soon after a take-over, and later.
const GOOD: [usize; 2] = [8, 40];
/// It dies so often more, until a turn was in the transaction in which it died.
const MORE_MAX: usize = 40;
/// Between two batches of tasks, one of each kind.
const BEAT: Duration = Duration::from_millis(400);
/// A result that a worker has may not be committed yet when it dies, after so long.
const UNCOMMITTED_MS: u64 = 1_000;

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fine,
    Slow,
    /// Its first call fails.
    Retried,
    /// Both of its calls fail.
    Broken,
    /// Its first call says "not yet".
    Polled,
    Gone,
    /// Its record goes to a topic.
    Record,
    /// It is cancelled about when it is due.
    Cancelled,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Fine,
        Self::Slow,
        Self::Retried,
        Self::Broken,
        Self::Polled,
        Self::Gone,
        Self::Record,
        Self::Cancelled,
    ];

    /// The `n`th task, which is of this kind.
    fn task(self, n: usize, stub: &Endpoint, topic: &str) -> Value {
        // Not all at one moment: more transactions have some in them then.
        let delay = format!("{}ms", 700 + n * 53 % 400);
        let http = |target: &str| task(PROJECT, stub, target, &delay);
        let retry = |count: u32| json!({"retry": {"count": count, "interval": 1}});
        let of = match self {
            Self::Fine => http("/ok"),
            Self::Slow | Self::Cancelled => http("/slow?ms=300"),
            Self::Retried => with(http("/fail?n=1"), retry(3)),
            Self::Broken => with(http("/status?is=500"), retry(1)),
            Self::Polled => {
                with(http("/notyet?n=1"), json!({"poll": {"interval": "1s", "rounds": 5}}))
            }
            Self::Gone => with(http("/410"), retry(3)),
            Self::Record => json!({
                "type": "kafka", "project": PROJECT, "group": "g", "delay": delay,
                "topic": topic, "value": n.to_string(),
            }),
        };
        with(of, json!({"request_id": n.to_string()}))
    }

    /// How it ends; `None`: as its cancel says.
    fn status(self) -> Option<&'static str> {
        match self {
            Self::Fine | Self::Slow | Self::Retried | Self::Polled | Self::Record => {
                Some("finished")
            }
            Self::Broken | Self::Gone => Some("failed"),
            Self::Cancelled => None,
        }
    }

    /// What its service answers to its `nth` call, counted from 0.
    fn answer(self, nth: usize) -> u16 {
        match (self, nth) {
            (Self::Broken, _) | (Self::Retried, 0) => 500,
            (Self::Polled, 0) => 202,
            (Self::Gone, _) => 410,
            _ => 200,
        }
    }
}

/// A task, and what was asked for.
struct Asked {
    id: String,
    kind: Kind,
    n: usize,
}

/// Ends what goes on beside a test, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Creates tasks until it is over, and cancels some.
fn flow(api: &Api, stub: &Endpoint, topic: &str, is_over: &AtomicBool) -> Vec<Asked> {
    let (mut all, mut cancels): (Vec<Asked>, Vec<(Instant, String)>) = (Vec::new(), Vec::new());
    while !is_over.load(SeqCst) {
        let beat = Instant::now();
        let first = all.len();
        let numbered = || Kind::ALL.into_iter().zip(first..);
        let batch = numbered().map(|(kind, n)| kind.task(n, stub, topic)).collect();
        for (id, (kind, n)) in api.create_all(batch).into_iter().zip(numbered()) {
            if kind == Kind::Cancelled {
                let after = Duration::from_millis(700 + n as u64 * 37 % 700);
                cancels.push((beat + after, id.clone()));
            }
            all.push(Asked { id, kind, n });
        }
        while beat.elapsed() < BEAT {
            let now = Instant::now();
            for (_, id) in cancels.extract_if(.., |(at, _)| *at <= now) {
                // Its outcome is asked for when all is over: here nobody may be there to say it.
                api.ask("DELETE", &format!("/v1/tasks/{id}?wait=0s"), None);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
    all
}

/// Reads a topic until it is over, before anything of it is deleted, and says meanwhile how many turns were written `again`.
fn read(mut log: Log, is_over: &AtomicBool, again: &AtomicUsize) -> Vec<Rec> {
    while !is_over.load(SeqCst) {
        log.read_on(Duration::from_millis(200));
        again.store(written_again(&log.seen), SeqCst);
    }
    log.read_on(Duration::from_secs(1));
    log.seen
}

/// What became of a run.
struct Run {
    fixture: Fixture,
    stub: Endpoint,
    asked: Vec<Asked>,
    told: Vec<Value>,
    /// When the process was seen to be dead.
    kills: Vec<u64>,
    /// All of the topic that the process writes to, committed or not.
    uncommitted: Vec<Rec>,
    committed: Vec<Rec>,
}

/// A process with the roles `dies` dies at each step, and comes back; the one that `stays` has the API.
#[track_caller]
fn run(row: &str, stays: &str, dies: &str, steps: &[&str], topic: fn(&Fixture) -> String) -> Run {
    let fixture = Fixture::with(row, |request| request.lanes = Some(super::workers::LANES));
    let brokers = &fixture.connection.brokers;
    let mut other = launch(&fixture, "stays", stays, brokers).spawn();
    let start = || launch(&fixture, "dies", dies, brokers).start();
    let mut first = start();
    other.wait_until_ready();
    first.stop_well();
    let (api, stub, target) = (Api::of(&other), Endpoint::start(), fixture.target("out", 2));
    let written = topic(&fixture);
    let mut logs = [Log::uncommitted(&fixture, &written), Log::open(&fixture, &written)].map(Some);
    let again = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let (no_more, all_read) = (AtomicBool::new(false), AtomicBool::new(false));
    let (asked, told, kills, uncommitted, committed) = thread::scope(|scope| {
        let (no_more, all_read) = (Over(&no_more), Over(&all_read));
        let again = &again;
        let readers = [0, 1].map(|n| {
            let (log, is_over) = (logs[n].take().expect("a log"), all_read.0);
            scope.spawn(move || read(log, is_over, &again[n]))
        });
        let asking = scope.spawn(|| flow(&api, &stub, &target, no_more.0));
        let mut kills = Vec::new();
        let mut die = |step: &str, good: usize| {
            let failpoint = format!("{step}={good}*off->return");
            let launch = launch(&fixture, "dies", dies, brokers).env("FAILPOINTS", &failpoint);
            let mut process = launch.spawn();
            assert_eq!(process.wait(PATIENCE), None, "a signal was to end it at {failpoint}");
            kills.push(now_ms());
        };
        for step in steps {
            let calls = stub.begun();
            GOOD.into_iter().for_each(|good| die(step, good));
            assert!(stub.begun() > calls, "nothing was called beside the deaths at {step}");
        }
        // Whether the transaction in which it dies has a turn in it is chance. Only behind the flush the records are written for
        // sure: the offsets may be sent before the first record is.
        for more in 0..MORE_MAX {
            if again[0].load(SeqCst) > 0 {
                break;
            }
            die("before_commit", GOOD[1] + more);
        }
        let mut last = start();
        drop(no_more);
        let asked = asking.join().expect("all were created");
        let all = eventually("all have ended", || {
            let all = api.list(&format!("project={PROJECT}"));
            let open: Vec<_> = all.iter().filter(|task| !is_final(task)).take(3).collect();
            let is_over = open.is_empty() && all.len() == asked.len();
            if is_over {
                Ok(all)
            } else {
                Err(format!("{} of {}; {open:?}", all.len(), asked.len()))
            }
        });
        println!("{row}: {} tasks, {} deaths", all.len(), kills.len());
        let told = asked.iter().map(|asked| api.task(&asked.id)).collect();
        check_cancels(row, &api, &stub, &asked);
        drop(all_read);
        let [uncommitted, committed] = readers.map(|reader| reader.join().expect("all was read"));
        last.stop_well();
        (asked, told, kills, uncommitted, committed)
    });
    other.stop_well();
    Run { fixture, stub, asked, told, kills, uncommitted, committed }
}

/// What a cancel says is so, whenever it is asked.
#[track_caller]
fn check_cancels(row: &str, api: &Api, stub: &Endpoint, asked: &[Asked]) {
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    for Asked { id, .. } in asked.iter().filter(|asked| asked.kind == Kind::Cancelled) {
        let (outcome, task, calls) = (api.cancel(id), api.task(id), stub.calls_of(id));
        let is_right = match (outcome.as_str(), task["task_status"].as_str()) {
            ("cancelled", Some("cancelled")) => calls.is_empty(),
            ("stopped", Some("cancelled")) => true,
            ("finished", Some("finished")) => !calls.is_empty(),
            _ => false,
        };
        assert!(is_right, "{outcome}: {task}, {calls:?}");
        *outcomes.entry(outcome).or_default() += 1;
    }
    println!("{row}: what the cancels said: {outcomes:?}");
    assert!(outcomes.contains_key("cancelled"), "none came before the call: {outcomes:?}");
}

/// Which round of its polling a call belongs to.
#[track_caller]
fn round(call: &Call, id: &str) -> u64 {
    match call.id.strip_prefix(id).map(|rest| rest.strip_prefix(".r")) {
        Some(None) if call.id == id => 0,
        Some(Some(round)) => round.parse().unwrap_or_else(|_| panic!("{call:?}")),
        _ => panic!("webhook-id is the id of the task: {call:?}"),
    }
}

/// The calls of a task agree with what is told of it. Gives those whose answer nobody has heard.
#[track_caller]
fn unheard(kind: Kind, told: &Value, calls: &[Call]) -> Vec<Call> {
    let id = told["task_id"].as_str().expect("an id");
    assert!(
        calls.windows(2).all(|two| two[0].turn < two[1].turn),
        "a turn is called once, and none after a later one: {calls:?}"
    );
    let attempts = told["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
    assert_eq!(told["attempts_total"], attempts.len(), "{told}");
    let mut heard = BTreeSet::new();
    for attempt in attempts {
        let nth = calls.iter().position(|call| attempt["turn"] == call.turn);
        let nth = nth.unwrap_or_else(|| panic!("no such call was made: {attempt}, {calls:?}"));
        let status = kind.answer(nth);
        assert_eq!(attempt["status"], status, "{told}: {calls:?}");
        let outcome = match status {
            200 => "finished",
            410 => "gone",
            _ => "failed",
        };
        assert_eq!(attempt["outcome"], outcome, "{told}");
        heard.insert(calls[nth].turn);
    }
    // The last call of each round but the last one was heard to say "not yet".
    let rounds = told["rounds"].as_u64().unwrap_or_default();
    for n in 0..rounds {
        let last = calls.iter().rfind(|call| round(call, id) == n);
        heard.insert(last.unwrap_or_else(|| panic!("no call of round {n}: {calls:?}")).turn);
    }
    assert!(calls.iter().is_sorted_by_key(|call| round(call, id)), "{calls:?}");
    assert!(calls.iter().all(|call| round(call, id) <= rounds), "{told}: {calls:?}");
    if kind.status().is_some() {
        let last = calls.last().map(|call| call.turn);
        assert_eq!(heard.last().copied(), last, "a call after the result: {told}, {calls:?}");
    }
    for call in calls {
        let before = attempts.iter().filter(|of| of["turn"].as_u64() < Some(call.turn.into()));
        assert_eq!(call.attempt as usize, 1 + before.count(), "{call:?}: {told}");
    }
    calls.iter().filter(|call| !heard.contains(&call.turn)).cloned().collect()
}

impl Run {
    /// What must hold; gives the calls whose answer nobody has heard.
    #[track_caller]
    fn check(&self) -> Vec<Call> {
        let mut by_task: BTreeMap<String, Vec<Call>> = BTreeMap::new();
        for call in self.stub.calls() {
            by_task.entry(call.task().to_owned()).or_default().push(call);
        }
        let mut unheard_of = Vec::new();
        for (asked, told) in self.asked.iter().zip(&self.told) {
            let status = asked.kind.status();
            let is_right = status.is_none_or(|status| told["task_status"] == status);
            assert!(is_right, "{:?}: {told}", asked.kind);
            let calls = by_task.remove(&asked.id).unwrap_or_default();
            if asked.kind == Kind::Record {
                assert_eq!(calls.len(), 0, "{told}: {calls:?}");
                continue;
            }
            let attempts = told["attempts_total"].as_u64();
            let most = if matches!(asked.kind, Kind::Broken | Kind::Retried) { 2 } else { 1 };
            let exact = !matches!(asked.kind, Kind::Retried | Kind::Cancelled);
            let is_right =
                attempts.is_some_and(|count| if exact { count == most } else { count <= most });
            assert!(is_right, "{:?}: {told}", asked.kind);
            unheard_of.extend(unheard(asked.kind, told, &calls));
        }
        assert!(by_task.is_empty(), "nobody asked for these: {by_task:?}");
        let of = |kind: Kind| self.asked.iter().filter(move |asked| asked.kind == kind);
        let topic = self.fixture.name("out");
        assert_each_once(
            of(Kind::Record).map(|asked| asked.n.to_string()),
            &whole(&self.fixture, &topic),
        );
        let dead = whole(&self.fixture, &self.fixture.names.dead());
        let id = |rec: &Rec| rec.header("x-delay-id").unwrap_or_default();
        let mut dead: Vec<_> = dead.iter().map(id).collect();
        let failed = of(Kind::Broken).chain(of(Kind::Gone));
        let mut failed: Vec<_> = failed.map(|asked| asked.id.clone()).collect();
        dead.sort_unstable();
        failed.sort_unstable();
        assert_eq!(dead, failed, "what has failed is one dead letter, and nothing else is");
        unheard_of
    }
}

/// The turn in `x-delay-state` of a record of a task: four bytes behind these.
const BEFORE_TURN: usize = 52;

/// How often each turn of each task stands there: as it was dispatched, or with the result that ends it.
fn turns(seen: &[Rec]) -> BTreeMap<(String, u32), usize> {
    let mut found = BTreeMap::new();
    let is_turn = |rec: &&Rec| {
        let result = rec.header("x-delay-result").unwrap_or_default();
        // A worker that reads a cancel behind a turn that was reported by the one before says that it has nothing of it: that is
        // no result, and has no specification.
        rec.header("x-delay-action").is_none()
            && rec.header("x-delay-task").is_some()
            && !result.contains(r#""outcome":"started""#)
    };
    for rec in seen.iter().filter(is_turn) {
        let id = rec.header("x-delay-id").expect("an id");
        let state = rec.headers.iter().find(|(name, _)| name == b"x-delay-state");
        let state = state.and_then(|(_, value)| value.as_deref()).expect("a state");
        let (turn, _) = state[BEFORE_TURN..].split_first_chunk().expect("a turn");
        *found.entry((id, u32::from_be_bytes(*turn))).or_default() += 1;
    }
    found
}

/// Turns that were written once more after a transaction was aborted, for who reads what is not committed, too.
fn written_again(seen: &[Rec]) -> usize {
    turns(seen).values().filter(|count| **count > 1).count()
}

/// Each turn is there once for who reads what is committed; says how many were written again after an abort.
#[track_caller]
fn check_turns(row: &str, run: &Run) -> usize {
    let committed = turns(&run.committed);
    let twice: Vec<_> = committed.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "a turn is there more than once: {twice:?}");
    let all = turns(&run.uncommitted);
    assert!(committed.keys().all(|turn| all.contains_key(turn)), "one reader has not read all");
    let again = written_again(&run.uncommitted);
    println!("{row}: {} turns, {again} of them were written again", committed.len());
    again
}

#[test]
fn f52_an_owner_of_lanes_dies_between_any_two_steps_and_each_call_is_made_once() {
    let steps = [&COMMIT[..], &[INDEX]].concat();
    let run = run("f52", "worker,api", "lanes", &steps, |fixture| fixture.names.tasks());
    let unheard = run.check();
    assert!(unheard.is_empty(), "no worker died: {unheard:?}");
    assert!(check_turns("f52", &run) > 0, "no transaction with a dispatch was open at a death");
}

#[test]
fn f53_a_worker_dies_between_any_two_steps_and_what_it_committed_is_not_called_again() {
    let run = run("f53", "lanes,api", "worker", &COMMIT, |fixture| fixture.names.results());
    let unheard = run.check();
    println!("f53: of {} calls the answer was never heard", unheard.len());
    assert!(!unheard.is_empty(), "no call was open at a death");
    let slack = UNCOMMITTED_MS * u64::from(patience());
    for call in &unheard {
        let was_open = |kill: &u64| call.was_open(kill.saturating_sub(slack), *kill);
        assert!(run.kills.iter().any(was_open), "no worker died in {call:?}: {:?}", run.kills);
    }
    assert!(check_turns("f53", &run) > 0, "no transaction with a result was open at a death");
}
