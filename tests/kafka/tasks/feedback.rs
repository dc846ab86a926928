//! Feedback: the executor of a Kafka task reports in time, late, never, or that it failed; and the owner of the lanes dies meanwhile.

mod calls;
mod raced;

use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Api, fixture, launch, with};
use crate::support::{Fixture, Log, Rec, eventually, now_ms, patience, patient};

/// So long before its deadline a report is made that is to count.
const BEFORE_MS: u64 = 100;
/// A report counts that was appended so long before its deadline: `settle`, as it is unless told.
const SETTLE_MS: u64 = 50;
/// How often a report may be appended too late, by a machine that does much else, before the test gives up.
const TRIES: u32 = 5;
/// A turn that is due is handed over within so long.
const HANDED_OVER: Duration = Duration::from_secs(5);

/// What an executor is handed.
struct Handed {
    at: u64,
    value: String,
    ticket: String,
    attempt: String,
}

impl Handed {
    fn of(rec: &Rec) -> Self {
        let header = |name: &str| rec.header(name).unwrap_or_else(|| panic!("{name}: {rec:?}"));
        let (ticket, attempt) = (header("x-delay-ticket"), header("x-delay-attempt"));
        Self { at: rec.at, value: rec.text(), ticket, attempt }
    }
}

/// A topic of executors.
struct Topic {
    log: Log,
    name: String,
}

impl Topic {
    fn new(fixture: &Fixture) -> Self {
        let name = fixture.timed_target("work", 2);
        Self { log: Log::open(fixture, &name), name }
    }

    /// What was handed over of the task with this value, by now.
    fn handed(&mut self, value: &str) -> Vec<Handed> {
        self.log.read_on(Duration::from_millis(300));
        self.seen(value)
    }

    /// The same of what was read so far.
    fn seen(&self, value: &str) -> Vec<Handed> {
        let mut of: Vec<_> = self.log.seen.iter().filter(|rec| rec.text() == value).collect();
        of.sort_by_key(|rec| rec.at);
        of.into_iter().map(Handed::of).collect()
    }

    /// Waits for so many turns of the task with this value, and gives the last.
    #[track_caller]
    fn turn(&mut self, value: &str, turns: usize) -> Handed {
        eventually(&format!("turn {turns} of {value} is handed over"), || {
            let mut handed = self.handed(value);
            let found = handed.len();
            if found == turns { Ok(handed.remove(found - 1)) } else { Err(found.to_string()) }
        })
    }
}

/// A report as it stands in the intake.
#[derive(Debug)]
struct Appended {
    /// By the broker's clock.
    at: u64,
    outcome: String,
    worker: Option<String>,
}

impl Appended {
    /// Whether it counts for a turn that is over by then.
    fn is_in_time(&self, next_at: u64) -> bool {
        self.at + SETTLE_MS <= next_at
    }
}

/// What is reported. It is opened before the first report: lanes delete what they have read.
struct Intake(Log);

impl Intake {
    fn open(fixture: &Fixture) -> Self {
        Self(Log::open(fixture, &fixture.names.intake()))
    }

    /// All reports about a task that were read so far, in the order in which its lane reads them.
    fn seen(&self, id: &str) -> Vec<Appended> {
        let is_report = |rec: &&Rec| {
            rec.header("x-delay-action").as_deref() == Some("result")
                && rec.header("x-delay-id").as_deref() == Some(id)
        };
        let read = |rec: &Rec| {
            let result = rec.header("x-delay-result").unwrap_or_else(|| panic!("{rec:?}"));
            let result: Value = serde_json::from_str(&result).expect("JSON");
            let text = |name: &str| result[name].as_str().map(str::to_owned);
            let outcome = text("outcome").unwrap_or_else(|| panic!("{rec:?}"));
            Appended { at: rec.at, outcome, worker: text("worker") }
        };
        self.0.seen.iter().filter(is_report).map(read).collect()
    }

    /// Waits for the first report about a task.
    #[track_caller]
    fn first(&mut self, id: &str) -> Appended {
        eventually(&format!("a report about {id} is read"), || {
            self.0.read_on(Duration::from_millis(100));
            let first = self.seen(id).into_iter().next();
            first.ok_or_else(|| format!("{} records", self.0.seen.len()))
        })
    }
}

fn create(api: &Api, topic: &Topic, value: &str, more: Value) -> String {
    let task = json!({
        "project": "shop", "group": "g", "delay": "1s", "topic": topic.name, "value": value,
    });
    let (status, told) = api.answered("POST", "/v1/tasks/kafka", Some(&with(task, more)));
    assert_eq!(status, 201, "{told}");
    told["task_id"].as_str().expect("an id").to_owned()
}

fn report(api: &Api, id: &str, ticket: &str, outcome: &str) -> (u16, Value) {
    let body = json!({"outcome": outcome, "ticket": ticket, "error": "no stock"});
    api.answered("POST", &format!("/v1/tasks/{id}/result"), Some(&body))
}

fn beat(api: &Api, id: &str, ticket: &str, cursor: &str) -> (u16, Value) {
    let body = json!({"ticket": ticket, "cursor": cursor, "percent": 40});
    api.answered("POST", &format!("/v1/tasks/{id}/heartbeat"), Some(&body))
}

/// Checks that a turn came a second after a failure that was reported from `sent` on, and soon then.
#[track_caller]
fn came_after_backoff(sent: u64, again: u64) {
    let due = sent + 1_000;
    let by = due + patient(HANDED_OVER).as_millis() as u64;
    assert!((due..by).contains(&again), "reported at {sent}, again at {again}");
}

fn wait_until(at: u64) {
    sleep(Duration::from_millis(at.saturating_sub(now_ms())));
}

fn next_at(task: &Value) -> u64 {
    task["next_at"].as_u64().unwrap_or_else(|| panic!("{task}"))
}

#[test]
fn who_takes_a_task_reports_and_silence_is_a_failure() {
    let fixture = fixture("tasks-feedback");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, mut topic) = (Api::of(&process), Topic::new(&fixture));
    let deadline = 6 * u64::from(patience());
    let long = |count: u32| json!({"feedback": {"deadline": "1h"}, "retry": {"count": count, "interval": 1}});
    let short = with(long(3), json!({"feedback": {"deadline": deadline}}));
    let silent = create(&api, &topic, "silent", short);
    let failing = create(&api, &topic, "failing", long(3));
    let exhausted = create(&api, &topic, "exhausted", long(1));
    let first_silent = topic.turn("silent", 1);
    let [failed, first] = ["failing", "exhausted"].map(|value| topic.turn(value, 1));

    // A failure is handed over again after the backoff, once, long before its deadline.
    let retrying = (200, json!({"outcome": "retrying"}));
    let sent = now_ms();
    assert_eq!(report(&api, &failing, &failed.ticket, "failed"), retrying);
    assert_eq!(report(&api, &exhausted, &first.ticket, "failed"), retrying);
    let again = topic.turn("failing", 2);
    assert_eq!((&*again.attempt, &*again.value), ("2", "failing"));
    came_after_backoff(sent, again.at);

    // A ticket of another task, and one that somebody has changed.
    let mut changed = again.ticket.clone().into_bytes();
    changed[24] = if changed[24] == b'A' { b'B' } else { b'A' };
    let changed = String::from_utf8(changed).expect("text");
    for ticket in [&first.ticket, &changed] {
        let (status, told) = report(&api, &failing, ticket, "finished");
        assert_eq!((status, &told["code"]), (403, &json!("wrong_ticket")), "{told}");
    }
    let finished = (200, json!({"outcome": "finished"}));
    assert_eq!(report(&api, &failing, &again.ticket, "finished"), finished);
    let last = topic.turn("exhausted", 2);
    let told = report(&api, &exhausted, &last.ticket, "failed");
    assert_eq!(told, (200, json!({"outcome": "failed"})), "no retry is left");

    // Silence is a failure. The first executor hears that it is late, and what it has done counts all the same.
    topic.turn("silent", 2);
    let (status, told) = beat(&api, &silent, &first_silent.ticket, "x");
    assert_eq!((status, &told["code"]), (409, &json!("stale")), "{told}");
    assert_eq!(report(&api, &silent, &first_silent.ticket, "finished"), finished);

    sleep(Duration::from_secs(deadline + 3));
    let counts = ["silent", "failing", "exhausted"].map(|value| topic.handed(value).len());
    assert_eq!(counts, [2, 2, 2], "no turn follows an end");
    for id in [&silent, &failing] {
        assert_eq!(api.task(id)["task_status"], "finished");
    }
    let ended = api.task(&exhausted);
    assert_eq!((&ended["task_status"], &ended["code"]), (&json!("failed"), &json!("task_failed")));
    assert_eq!(ended["last"]["error"], "no stock", "{ended}");
    process.stop_well();
}

#[test]
fn a_success_that_stands_there_before_its_deadline_counts() {
    let fixture = fixture("tasks-feedback-in-time");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, mut topic, mut intake) =
        (Api::of(&process), Topic::new(&fixture), Intake::open(&fixture));
    let deadline = 3 * u64::from(patience());
    let more = json!({
        "feedback": {"deadline": deadline}, "retry": {"count": 3, "interval": 1},
    });
    let in_time = (0..TRIES).find_map(|nth| {
        let value = format!("task {nth}");
        let id = create(&api, &topic, &value, more.clone());
        let first = topic.turn(&value, 1);
        let seen = api.task(&id);
        let turn = (&seen["task_status"], &seen["turn"]);
        assert_eq!(turn, (&json!("running"), &json!(1)), "{seen}");
        let next_at = next_at(&seen);
        wait_until(next_at - BEFORE_MS);
        let told = report(&api, &id, &first.ticket, "finished");
        let appended = intake.first(&id);
        println!(
            "{} ms before its deadline: {told:?}",
            next_at.cast_signed() - appended.at.cast_signed()
        );
        if !appended.is_in_time(next_at) {
            return None;
        }
        assert_eq!(told, (200, json!({"outcome": "finished"})));
        Some((id, value))
    });
    let (id, value) = in_time.expect("a report is appended in time");
    sleep(Duration::from_secs(deadline + 3));
    assert_eq!(topic.handed(&value).len(), 1, "no turn follows an end");
    let ended = api.task(&id);
    assert_eq!(ended["task_status"], "finished", "{ended}");
    assert_eq!((&ended["turn"], &ended["attempts_total"]), (&json!(1), &json!(1)), "{ended}");
    process.stop_well();
}

#[test]
fn heartbeats_keep_a_turn_and_how_far_it_is() {
    let fixture = fixture("tasks-heartbeats");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, mut topic) = (Api::of(&process), Topic::new(&fixture));
    let period = 2 * u64::from(patience());
    let more = json!({
        "feedback": {"deadline": period + 1, "heartbeat": period},
        "retry": {"count": 1, "interval": 1},
    });
    let id = create(&api, &topic, "beats", more);
    let first = topic.turn("beats", 1);
    let until = now_ms() + 10 * period * 1_000;
    let mut last = 0;
    while now_ms() < until {
        let (status, told) = beat(&api, &id, &first.ticket, &format!("row:{last}"));
        assert_eq!(status, 200, "{told}");
        last += 1;
        sleep(Duration::from_millis(period * 400));
    }
    assert_eq!(topic.handed("beats").len(), 1, "it gave signs for ten heartbeats");
    let seen = api.task(&id);
    let open = &seen["attempts"][0];
    assert_eq!(open["cursor"], format!("row:{}", last - 1), "{seen}");
    // It gives none any more: the next one is told how far it came.
    topic.turn("beats", 2);
    let rec = topic.log.seen.iter().rev().find_map(|rec| rec.header("x-delay-cursor"));
    assert_eq!(rec, Some(format!("row:{}", last - 1)));
    let told = report(&api, &id, &topic.turn("beats", 2).ticket, "finished");
    assert_eq!(told, (200, json!({"outcome": "finished"})));
    process.stop_well();
}

#[test]
fn a_dead_owner_of_the_lanes_loses_neither_a_report_nor_a_deadline() {
    let fixture = fixture("tasks-feedback-killed");
    let mut owner = launch(&fixture, "a", "lanes,worker,api").start();
    let mut topic = Topic::new(&fixture);
    let deadline = 12 * u64::from(patience());
    let more = json!({
        "feedback": {"deadline": deadline}, "retry": {"count": 3, "interval": 1},
    });
    let api = Api::of(&owner);
    let [reported, silent, failing] =
        ["reported", "silent", "failing"].map(|value| create(&api, &topic, value, more.clone()));
    let [first, quiet, failed] =
        ["reported", "silent", "failing"].map(|value| topic.turn(value, 1));
    assert_eq!(report(&api, &reported, &first.ticket, "finished").0, 200);
    assert_eq!(report(&api, &failing, &failed.ticket, "failed").0, 200);
    owner.kill();
    let mut other = launch(&fixture, "b", "lanes,worker,api").start();
    let api = Api::of(&other);
    let again = topic.turn("failing", 2);
    assert_eq!(report(&api, &failing, &again.ticket, "finished").0, 200);
    topic.turn("silent", 2);
    let (status, told) = beat(&api, &silent, &quiet.ticket, "x");
    assert_eq!((status, &told["code"]), (409, &json!("stale")), "{told}");
    assert_eq!(report(&api, &silent, &quiet.ticket, "finished").0, 200);
    sleep(Duration::from_secs(deadline + 3));
    let counts = ["reported", "silent", "failing"].map(|value| topic.handed(value).len());
    assert_eq!(counts, [1, 2, 2], "each turn is handed over once");
    for id in [&reported, &silent, &failing] {
        assert_eq!(api.task(id)["task_status"], "finished");
    }
    other.stop_well();
}
