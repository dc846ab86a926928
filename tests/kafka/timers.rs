//! Tracked timers on a real Kafka: what a cancel is answered is what the target shows, whenever and wherever it comes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::producer::Producer as _;
use serde_json::{Value, json};

use crate::support::{
    Fixture, Log, Mode, Out, PATIENCE, Process, Rec, client, eventually, eventually_within,
    in_both_modes, open_transaction, out, patience, patient, whole,
};

in_both_modes!(
    what_a_cancel_is_answered_is_what_the_target_shows,
    of_a_timer_that_is_created_twice_replaced_and_cancelled_the_right_one_arrives,
    answers_stay_true_while_lanes_move,
);

fn fixture(test: &str, mode: Mode) -> Fixture {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    Fixture::with(&format!("{test}-{short}"), |request| request.lanes = Some(3))
}

fn timer(target: &str, value: &str, key: &str, delay_ms: u64) -> Out {
    out(value).key(key).header("x-delay-id", "i").delay(delay_ms).to(target)
}

fn action(record: Out, action: &str) -> Out {
    record.header("x-delay-action", action)
}

/// Asks a process about timers.
struct Asker {
    client: reqwest::blocking::Client,
    base: String,
}

impl Asker {
    fn new(process: &Process) -> Self {
        let client = client(PATIENCE);
        let base = format!("http://{}/v1/timers", process.address().expect("it serves"));
        Self { client, base }
    }

    fn url(&self, key: &str) -> String {
        format!("{}/i?key={key}&wait=20s", self.base)
    }

    fn told(answer: reqwest::Result<reqwest::blocking::Response>) -> Result<Value, String> {
        let answer = answer.map_err(|error| error.to_string())?;
        let status = answer.status();
        let body = answer.text().map_err(|error| error.to_string())?;
        if !status.is_success() {
            return Err(format!("{status}: {body}"));
        }
        serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))
    }

    /// What a cancel is answered, if it is.
    fn try_cancel(&self, key: &str) -> Result<String, String> {
        let told = Self::told(self.client.delete(self.url(key)).send())?;
        told["outcome"].as_str().map(str::to_owned).ok_or_else(|| told.to_string())
    }

    /// In a word what came of asking for a cancel: its outcome, or status and code of a problem.
    fn answer(&self, key: &str) -> String {
        let Ok(answer) = self.client.delete(self.url(key)).send() else {
            return "no answer".to_owned();
        };
        let status = answer.status().as_u16();
        let Ok(body) = answer.text() else { return "no answer".to_owned() };
        let told: Value = serde_json::from_str(&body).unwrap_or_default();
        match (status, told["outcome"].as_str(), told["code"].as_str()) {
            (200, Some(outcome), _) if outcome != "pending" => outcome.to_owned(),
            (202, Some("pending"), _) => "pending".to_owned(),
            (503, _, Some(code)) => format!("503 {code}"),
            _ => format!("{status}: {body}"),
        }
    }

    /// What a cancel is answered, however often it must be asked for.
    #[track_caller]
    fn cancel(&self, key: &str) -> String {
        eventually("a cancel is answered", || self.try_cancel(key))
    }

    fn try_state(&self, key: &str) -> Result<String, String> {
        let told = Self::told(self.client.get(format!("{}/i?key={key}", self.base)).send())?;
        told["state"].as_str().map(str::to_owned).ok_or_else(|| told.to_string())
    }

    #[track_caller]
    fn is_in(&self, key: &str, state: &str) {
        eventually(&format!("{key} is in state {state}"), || {
            let seen = self.try_state(key)?;
            if seen == state { Ok(()) } else { Err(seen) }
        });
    }

    #[track_caller]
    fn reschedule(&self, key: &str, body: &Value) -> String {
        eventually("another time is answered", || {
            let told = Self::told(self.client.patch(self.url(key)).json(body).send())?;
            told["outcome"].as_str().map(str::to_owned).ok_or_else(|| told.to_string())
        })
    }
}

fn wait_until(at: Instant) {
    let left = at.saturating_duration_since(Instant::now());
    std::thread::sleep(left);
}

fn arrived(fixture: &Fixture, target: &str) -> BTreeSet<String> {
    fixture.wait_until_nothing_is_pending();
    whole(fixture, target).iter().map(Rec::text).collect()
}

/// Fails unless every answer is what the target shows.
#[track_caller]
fn assert_true(outcomes: &BTreeMap<String, String>, seen: &BTreeSet<String>) {
    for (key, outcome) in outcomes {
        let is_there = seen.contains(key);
        match outcome.as_str() {
            "cancelled" => assert!(!is_there, "{key} was cancelled, and is in the target"),
            "delivered" => assert!(is_there, "{key} was delivered, and is not in the target"),
            other => panic!("{key}: {other}"),
        }
    }
}

/// Milliseconds before the due time at which a cancel is sent.
const BEFORE: [i64; 8] = [5_000, 1_000, 200, 50, 10, 0, -10, -300];

fn what_a_cancel_is_answered_is_what_the_target_shows(mode: Mode) {
    let fixture = fixture("timers-when", mode);
    let target = fixture.target("out", 3);
    let mut process = fixture.start(mode);
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    let asker = Asker::new(&process);
    assert_eq!(asker.cancel("nobody"), "unknown");

    let delay = Duration::from_secs(7);
    let mut cancels = Vec::new();
    for round in 0..4 {
        for before in BEFORE {
            let key = format!("{round}.{before}");
            // Two clients at once, every other time.
            cancels.push((key, before, 1 + round % 2));
        }
    }
    let sent = Instant::now();
    for (key, ..) in &cancels {
        producer.send(&intake, &timer(&target, key, key, delay.as_millis() as u64));
    }
    producer.acks();
    // By the machine's clock, which is the broker's; when the answer is read does not matter, that it is true does.
    let acked = Instant::now();
    let due = sent + (acked - sent) / 2 + delay;
    let outcomes: BTreeMap<String, String> = std::thread::scope(|scope| {
        let mut clients = Vec::new();
        for (key, before, count) in &cancels {
            for _ in 0..*count {
                let asker = &asker;
                clients.push(scope.spawn(move || {
                    let at = if *before >= 0 {
                        due - Duration::from_millis(before.unsigned_abs())
                    } else {
                        due + Duration::from_millis(before.unsigned_abs())
                    };
                    wait_until(at);
                    (key.clone(), *before, asker.cancel(key))
                }));
            }
        }
        let mut outcomes: BTreeMap<String, String> = BTreeMap::new();
        for client in clients {
            let (key, before, outcome) = client.join().expect("answered");
            // A second of lead is enough on any machine that works.
            assert!(before < 1_000 || outcome == "cancelled", "{key}: {outcome}");
            if let Some(other) = outcomes.insert(key.clone(), outcome.clone()) {
                assert_eq!(other, outcome, "two clients, of {key}");
            }
        }
        outcomes
    });
    let seen = arrived(&fixture, &target);
    assert_true(&outcomes, &seen);
    let gone = whole(&fixture, &target);
    if mode == Mode::ExactlyOnce {
        assert_eq!(gone.len(), seen.len(), "nothing twice");
    }
    // Long after, too.
    for (key, outcome) in outcomes.iter().take(10) {
        assert_eq!(asker.cancel(key), *outcome, "once more, of {key}");
        asker.is_in(key, outcome);
    }
    process.stop_well();
}

fn of_a_timer_that_is_created_twice_replaced_and_cancelled_the_right_one_arrives(mode: Mode) {
    let fixture = fixture("timers-way", mode);
    let target = fixture.target("out", 3);
    let mut process = fixture.start(mode);
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    let asker = Asker::new(&process);
    let send = |record: &Out| producer.send(&intake, record);
    send(&timer(&target, "twice", "twice", 3_000));
    send(&timer(&target, "twice, again", "twice", 2_500));
    send(&timer(&target, "replaced", "replaced", 3_000));
    send(&action(timer(&target, "replacing", "replaced", 4_000), "replace"));
    send(&action(timer(&target, "replacing nothing", "nothing", 3_000), "replace"));
    send(&timer(&target, "cancelled", "again", 3_000));
    send(&action(out("").key("again").header("x-delay-id", "i"), "cancel"));
    send(&timer(&target, "created again", "again", 3_000));
    send(&action(out("").key("early").header("x-delay-id", "i"), "cancel"));
    send(&timer(&target, "created later", "early", 3_000));
    send(&timer(&target, "put off", "put off", 3_000));
    send(&timer(&target, "brought forward", "forward", 60_000));
    producer.acks();
    for key in ["put off", "forward"] {
        asker.is_in(key, "delay");
    }
    let began = Instant::now();
    assert_eq!(asker.reschedule("put off", &json!({"delay": "9s"})), "replaced");
    assert_eq!(asker.reschedule("forward", &json!({"delay": "1s"})), "replaced");
    let mut log = Log::open(&fixture, &target);
    log.count(7);
    let seen = arrived(&fixture, &target);
    let took = began.elapsed();
    let want = [
        "twice",
        "replacing",
        "replacing nothing",
        "created again",
        "created later",
        "put off",
        "brought forward",
    ];
    assert_eq!(seen, want.map(str::to_owned).into(), "the right ones, and no others");
    assert!(took >= Duration::from_secs(9), "what was put off was early: {took:?}");
    assert!(process.metric("waterclock_duplicates_total") >= 1.0);
    for key in ["twice", "replaced", "nothing", "again", "early", "put off", "forward"] {
        asker.is_in(key, "delivered");
    }
    process.stop_well();
}

/// What a cancel of a timer that was submitted seconds before may be answered while lanes move.
const WHILE_LANES_MOVE: [&str; 4] = ["cancelled", "delivered", "pending", "no answer"];

fn answers_stay_true_while_lanes_move(mode: Mode) {
    let fixture = fixture("timers-move", mode);
    let target = fixture.target("out", 3);
    let mut first = fixture.launch(mode).data("a").start();
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    let keys: Vec<String> = (0..120).map(|n| format!("{n}")).collect();
    for (n, key) in keys.iter().enumerate() {
        // Some fall due while lanes move, some afterwards.
        producer.send(&intake, &timer(&target, key, key, 4_000 + 60 * n as u64));
    }
    producer.acks();
    let (asker, began) = (Asker::new(&first), Instant::now());
    let mut answers = BTreeMap::new();
    let mut second: Option<Process> = None;
    for (n, key) in keys.iter().enumerate() {
        wait_until(began + Duration::from_millis(3_700 + 60 * n as u64));
        if n == 20 {
            second = Some(fixture.launch(mode).data("b").spawn());
        }
        if n == 60 {
            // One that has not started takes no cancel.
            let second = second.as_ref().expect("started");
            eventually("the second instance takes cancels", || {
                second.address()?;
                let told = Asker::new(second).answer("nobody");
                if told.starts_with("503") { Err(told) } else { Ok(()) }
            });
            first.terminate();
        }
        let other = second
            .as_ref()
            .filter(|_| n >= 60)
            .and_then(|second| second.address().is_ok().then(|| Asker::new(second)));
        let answer = other.as_ref().unwrap_or(&asker).answer(key);
        // Only the one that was told to stop may be silent.
        assert!(answer != "no answer" || n >= 60 && other.is_none(), "{key} was not answered");
        answers.insert(key.clone(), answer);
    }
    let mut second = second.expect("started");
    assert_eq!(first.wait(PATIENCE), Some(0));
    let seen = arrived(&fixture, &target);
    let mut counts = BTreeMap::<&str, usize>::new();
    for answer in answers.values() {
        *counts.entry(answer).or_default() += 1;
    }
    println!("{} cancels: {counts:?}", answers.len());
    assert_eq!(answers.len(), keys.len(), "each has one answer");
    for answer in counts.keys() {
        assert!(WHILE_LANES_MOVE.contains(answer), "{answer:?} is no answer to this: {answers:?}");
    }
    // What was not decided may be written all the same: nothing is made of it.
    answers.retain(|_, answer| matches!(answer.as_str(), "cancelled" | "delivered"));
    assert!(answers.len() >= 40, "most are decided: {answers:?}");
    assert_true(&answers, &seen);
    second.stop_well();
}

#[test]
fn answers_stay_true_through_a_kill() {
    let mode = Mode::ExactlyOnce;
    let fixture = fixture("timers-kill", mode);
    let target = fixture.target("out", 3);
    let mut first = fixture.launch(mode).data("a").start();
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    let keys: Vec<String> = (0..100).map(|n| format!("{n}")).collect();
    for key in &keys {
        producer.send(&intake, &timer(&target, key, key, 5_000));
    }
    producer.acks();
    let sent = Instant::now();
    Asker::new(&first).is_in("99", "delay");
    wait_until(sent + Duration::from_millis(4_500));
    let asker = Asker::new(&first);
    let heard = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for some in keys.chunks(10) {
            let (asker, heard) = (&asker, &heard);
            scope.spawn(move || {
                for (n, key) in some.iter().enumerate() {
                    wait_until(sent + Duration::from_millis(4_500 + 100 * n as u64));
                    let Ok(outcome) = asker.try_cancel(key) else { return };
                    heard.lock().insert(key.clone(), outcome);
                }
            });
        }
        wait_until(sent + Duration::from_millis(5_050));
        // A slow machine answers later: without answers there would be nothing to hold it to.
        eventually("some are answered", || match heard.lock().len() {
            answered if answered >= 20 => Ok(()),
            answered => Err(format!("{answered}")),
        });
        first.kill();
    });
    let outcomes = heard.into_inner();
    println!("{} of {} answered before the kill", outcomes.len(), keys.len());
    let mut second = fixture.launch(mode).data("b").start();
    let seen = arrived(&fixture, &target);
    assert_true(&outcomes, &seen);
    // The next owner says the same.
    let asker = Asker::new(&second);
    for (key, outcome) in outcomes.iter().take(10) {
        asker.is_in(key, outcome);
    }
    second.stop_well();
}

#[test]
fn what_is_due_waits_for_a_foreign_transaction_and_not_for_ever() {
    let mode = Mode::ExactlyOnce;
    let fixture = fixture("timers-foreign", mode);
    let target = fixture.target("out", 3);
    let mut process = fixture.launch(mode).env("WATERCLOCK_FOREIGN_WAIT", "4s").start();
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    let asker = Asker::new(&process);
    let cancel = |key: &str| action(out("").key(key).header("x-delay-id", "i"), "cancel");

    // A cancel in it that is committed in time. The delay leaves a slow machine
    // the time to open the transaction before the record is due.
    let delay = Duration::from_secs(8);
    let send = |what: &str| {
        producer.send_one(&intake, &timer(&target, what, "k", 8_000));
        Instant::now() + delay
    };
    let due = send("in time");
    let foreign = open_transaction(&fixture, &intake, None, &cancel("k"));
    wait_until(due + Duration::from_millis(1_500));
    foreign.commit_transaction(PATIENCE).expect("committed");
    asker.is_in("k", "cancelled");
    drop(foreign);

    // This one stays open: a due record is late by no more than the wait.
    let due = send("after the wait");
    let foreign = open_transaction(&fixture, &intake, None, &cancel("k"));
    assert!(Instant::now() < due, "the machine was too slow: the record was due before");
    Log::open(&fixture, &target).count(1);
    let late = Instant::now().saturating_duration_since(due);
    assert!(late < patient(Duration::from_secs(18)), "{late:?}");
    assert!(late > Duration::from_secs(1), "it did not wait: {late:?}");
    assert!(process.metric("waterclock_foreign_waits_total") >= 1.0);
    foreign.abort_transaction(PATIENCE).expect("aborted");
    let seen = arrived(&fixture, &target);
    assert_eq!(seen, ["after the wait".to_owned()].into());
    asker.is_in("k", "delivered");
    process.stop_well();
}

#[test]
fn what_was_delivered_is_known_after_the_index_was_built_again() {
    let mode = Mode::ExactlyOnce;
    let fixture = fixture("timers-again", mode);
    let target = fixture.target("out", 3);
    let mut first = fixture.start(mode);
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    for n in 0..20 {
        let key = format!("{n}");
        let delay = if n < 10 { 1_000 } else { 600_000 };
        producer.send(&intake, &timer(&target, &key, &key, delay));
    }
    producer.acks();
    Log::open(&fixture, &target).count(10);
    let asker = Asker::new(&first);
    asker.is_in("15", "delay");
    assert_eq!(asker.cancel("19"), "cancelled");
    first.stop_well();
    std::fs::remove_dir_all(fixture.path("a").join("index")).expect("removed");
    let mut second = fixture.start(mode);
    let asker = Asker::new(&second);
    for key in ["0", "9"] {
        asker.is_in(key, "delivered");
        assert_eq!(asker.cancel(key), "delivered");
    }
    assert_eq!(asker.cancel("19"), "cancelled");
    assert_eq!(asker.cancel("15"), "cancelled");
    asker.is_in("16", "delay");
    second.stop_well();
}

#[test]
fn an_idle_system_answers_soon_and_fires_in_time() {
    let mode = Mode::ExactlyOnce;
    let fixture = fixture("timers-idle", mode);
    let target = fixture.timed_target("out", 3);
    let mut process = fixture.start(mode);
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    let asker = Asker::new(&process);
    producer.send_one(&intake, &timer(&target, "warm", "warm", 100));
    let mut log = Log::open(&fixture, &target);
    log.count(1);
    for n in 0..20 {
        let key = format!("{n}");
        producer.send(&intake, &timer(&target, &key, &key, 60_000 + 1_000 * n));
    }
    producer.acks();
    asker.is_in("19", "delay");
    let mut took: Vec<Duration> = Vec::new();
    for n in 0..20 {
        let began = Instant::now();
        assert_eq!(asker.cancel(&format!("{n}")), "cancelled");
        took.push(began.elapsed());
    }
    took.sort_unstable();
    println!("cancels took {took:?}");
    // Nothing else comes in, so the ends of intakes are asked for: and that before the record is due.
    let late: Vec<u64> = (0..5)
        .map(|n| {
            let key = format!("alone {n}");
            let ack = producer.send_one(&intake, &timer(&target, &key, &key, 1_500));
            let seen = eventually_within(PATIENCE, "it arrives", || {
                let seen = whole(&fixture, &target);
                seen.iter().find(|rec| rec.text() == key).cloned().ok_or_else(String::new)
            });
            seen.at - (ack.at + 1_500)
        })
        .collect();
    println!("late by {late:?} ms");
    assert!(
        late.iter().min() < Some(&(200 * u64::from(patience()))),
        "an idle system is late: {late:?}"
    );
    process.stop_well();
}
