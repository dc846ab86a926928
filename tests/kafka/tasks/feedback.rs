//! Feedback: the executor of a Kafka task reports in time, late, never, or that it failed; and the owner of the lanes dies meanwhile.

mod calls;

use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Api, fixture, launch, with};
use crate::support::{Fixture, Log, Rec, eventually, now_ms, patience};

/// So long before its deadline a report is written that is to count.
const BEFORE_MS: u64 = 400;

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
    let slow = u64::from(patience());
    let deadline = 6 * slow;
    let retry = json!({"count": 1, "interval": 1});
    let feedback = json!({"deadline": deadline});

    let more = json!({"feedback": feedback, "retry": retry});
    let in_time = create(&api, &topic, "in time", more.clone());
    let silent = create(&api, &topic, "silent", more.clone());
    let failing =
        create(&api, &topic, "failing", json!({"feedback": {"deadline": "1h"}, "retry": retry}));
    let first = topic.turn("in time", 1);
    let (first_silent, failed) = (topic.turn("silent", 1), topic.turn("failing", 1));
    let seen = api.task(&in_time);
    assert_eq!((&seen["task_status"], &seen["turn"]), (&json!("running"), &json!(1)), "{seen}");

    // A failure is handed over again after the backoff, once, long before its deadline.
    assert_eq!(
        report(&api, &failing, &failed.ticket, "failed"),
        (200, json!({"outcome": "retrying"}))
    );
    let again = topic.turn("failing", 2);
    assert_eq!((&*again.attempt, &*again.value), ("2", "failing"));
    assert!(again.at >= failed.at + 1_000, "{} {}", again.at, failed.at);

    // A success that stands there in time is one.
    wait_until(next_at(&seen) - BEFORE_MS);
    let told = report(&api, &in_time, &first.ticket, "finished");
    assert_eq!(told, (200, json!({"outcome": "finished"})));

    // Silence is a failure. The first executor hears that it is late, and what it has done counts all the same.
    topic.turn("silent", 2);
    let (status, told) = beat(&api, &silent, &first_silent.ticket, "x");
    assert_eq!((status, &told["code"]), (409, &json!("stale")), "{told}");
    let told = report(&api, &silent, &first_silent.ticket, "finished");
    assert_eq!(told, (200, json!({"outcome": "finished"})));

    // A ticket of another task, and one that somebody has changed.
    let mut changed = again.ticket.clone().into_bytes();
    changed[24] = if changed[24] == b'A' { b'B' } else { b'A' };
    let changed = String::from_utf8(changed).expect("text");
    for ticket in [&first.ticket, &changed] {
        let (status, told) = report(&api, &failing, ticket, "finished");
        assert_eq!((status, &told["code"]), (403, &json!("wrong_ticket")), "{told}");
    }
    assert_eq!(
        report(&api, &failing, &again.ticket, "failed"),
        (200, json!({"outcome": "failed"}))
    );
    let ended = api.task(&failing);
    assert_eq!((&ended["task_status"], &ended["code"]), (&json!("failed"), &json!("task_failed")));
    assert_eq!(ended["last"]["error"], "no stock", "{ended}");

    sleep(Duration::from_secs(deadline + 3));
    let counts = ["in time", "silent", "failing"].map(|value| topic.handed(value).len());
    assert_eq!(counts, [1, 2, 2], "no turn follows an end");
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
        "feedback": {"deadline": deadline}, "retry": {"count": 1, "interval": 1},
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
    assert_eq!(report(&api, &silent, &quiet.ticket, "finished").0, 200);
    for id in [&reported, &silent, &failing] {
        assert_eq!(api.end_of(id)["task_status"], "finished");
    }
    sleep(Duration::from_secs(deadline + 3));
    let counts = ["reported", "silent", "failing"].map(|value| topic.handed(value).len());
    assert_eq!(counts, [1, 2, 2], "each turn is handed over once");
    other.stop_well();
}
