//! Results that Kafka refuses: the task ends as the page about tasks says, and no other task is harmed.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Api, fixture, is_final, launch, task, turns, with};
use crate::support::{Endpoint, Fixture, eventually, eventually_within, now_ms, whole};

/// What `<ns>.results` takes, in bytes.
const RESULTS_MAX: usize = 20_400;
/// A task with such a body fits into no result.
const LARGE: usize = 40_000;
/// A task with such a body fits into a result without the body of the answer, and not with it.
const MEDIUM: usize = 19_000;
/// Tasks of others.
const OTHERS: usize = 60;

/// Has a topic take batches of so many bytes. Its other settings stay as `topics/` has them.
fn take_at_most(fixture: &Fixture, topic: &str, bytes: usize) {
    let bytes = bytes.to_string();
    let settings = [
        ("cleanup.policy", "delete"),
        ("max.message.bytes", &*bytes),
        ("message.timestamp.type", "LogAppendTime"),
        ("retention.bytes", "-1"),
        ("retention.ms", "-1"),
        ("unclean.leader.election.enable", "false"),
    ];
    fixture.configure(topic, &settings);
}

fn attempts(task: &Value) -> Vec<(Value, Value, Value)> {
    let each = task["attempts"].as_array().expect("attempts").iter();
    each.map(|one| (one["turn"].clone(), one["outcome"].clone(), one["status"].clone())).collect()
}

#[test]
fn a_task_whose_result_kafka_refuses_is_tried_again_or_is_a_dead_letter_and_others_go_on() {
    let fixture = fixture("tasks-refused");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    take_at_most(&fixture, &fixture.names.results(), RESULTS_MAX);

    let body = |bytes: usize| "b".repeat(bytes);
    let thrice = json!({"retry": {"count": 3, "interval": 1}});
    let failing = |target: &str, bytes: usize| {
        let of = with(task("shop", &stub, target, "2s"), json!({ "body": body(bytes) }));
        with(of, thrice.clone())
    };
    let small: Vec<Value> = (0..OTHERS)
        .map(|n| match n % 3 {
            0 => with(task("other", &stub, "/fail?n=1", "2s"), thrice.clone()),
            _ => task("other", &stub, "/ok", "2s"),
        })
        .collect();
    // The same partitions have all of them.
    let large = api.create_all(vec![failing("/fail?n=1", LARGE); 4]);
    let medium = api.create_all(vec![failing("/long?n=2", MEDIUM); 4]);
    let others = api.create_all(small);
    // A success brings no body back.
    let fine = api.create(&with(task("shop", &stub, "/ok", "2s"), json!({"body": body(LARGE)})));

    let created = Instant::now();
    let finished = api.wait_for(Duration::from_secs(20), "other", "finished", OTHERS);
    println!("all others are finished {:?} after they were created", created.elapsed());
    assert!(finished.iter().all(|task| task["turn"] == task["attempts_total"]), "{finished:?}");
    for id in &others {
        let told = turns(&stub.calls_of(id));
        assert!([vec![1], vec![1, 2]].contains(&told), "{id}: {told:?}");
    }
    assert_eq!(api.end_of(&fine)["task_status"], "finished");

    for id in &medium {
        let told = api.end_of(id);
        assert_eq!(told["task_status"], "finished", "{told}");
        let of =
            |turn: u32, outcome: &str, status: u16| (json!(turn), json!(outcome), json!(status));
        let want = [of(1, "failed", 500), of(2, "failed", 500), of(3, "finished", 200)];
        assert_eq!(attempts(&told), want, "{told}");
        let errors = told["attempts"].as_array().expect("attempts").iter();
        assert!(errors.take(2).all(|one| one["error"].is_null()), "short: {told}");
        let calls = stub.calls_of(id);
        assert_eq!(turns(&calls), [1, 2, 3], "{calls:?}");
        assert!(calls.iter().all(|call| call.body == MEDIUM), "the body comes back: {calls:?}");
    }
    for id in &large {
        let told = api.end_of(id);
        assert_eq!(
            (&told["task_status"], &told["code"]),
            (&json!("failed"), &json!("task_failed")),
            "{told}"
        );
        assert_eq!(attempts(&told), [(json!(1), json!("failed"), json!(500))], "{told}");
        assert_eq!(turns(&stub.calls_of(id)), [1]);
    }
    let letters = || whole(&fixture, &fixture.names.dead());
    let dead = letters();
    assert_eq!(dead.len(), large.len(), "{dead:?}");
    for letter in &dead {
        assert_eq!(letter.header("x-delay-error-code").as_deref(), Some("task_failed"));
        assert_eq!(letter.value.as_deref().map(<[u8]>::len), Some(LARGE), "{letter:?}");
    }
    assert!(process.log().contains("Kafka takes no result with this task's value"));

    // Its dead letter is enough to call it again.
    take_at_most(&fixture, &fixture.names.results(), 2_228_224);
    let (status, told) = api.answered("POST", &format!("/v1/tasks/{}:retry", large[0]), None);
    assert_eq!(status, 200, "{told}");
    eventually("the task is finished", || {
        let told = api.task(&large[0]);
        if told["task_status"] == "finished" { Ok(()) } else { Err(told.to_string()) }
    });
    let calls = stub.calls_of(&large[0]);
    assert_eq!(turns(&calls), [1, 2]);
    assert!(calls.iter().all(|call| call.body == LARGE), "{calls:?}");
    process.stop_well();
}

#[test]
fn a_task_whose_dead_letter_kafka_refuses_too_stays_pending_until_it_takes_it() {
    let fixture = fixture("tasks-refused-twice");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let (results, dead) = (fixture.names.results(), fixture.names.dead());
    take_at_most(&fixture, &results, RESULTS_MAX);
    take_at_most(&fixture, &dead, RESULTS_MAX);
    let large = json!({"body": "b".repeat(LARGE)});
    let id = api.create(&with(task("shop", &stub, "/status?is=500", "2s"), large));
    eventually("it was called", || if stub.ended() == 1 { Ok(()) } else { Err(String::new()) });
    let refused = || process.metric("waterclock_producers_renewed_total");
    eventually_within(Duration::from_secs(30), "it is refused in all its forms", || {
        let count = refused();
        if count >= 4.0 { Ok(()) } else { Err(format!("{count} batches were refused")) }
    });
    // Others of its worker go on meanwhile.
    let began = now_ms();
    let others = api.create_all((0..OTHERS).map(|_| task("other", &stub, "/ok", "0s")).collect());
    api.wait_for(Duration::from_secs(20), "other", "finished", others.len());
    println!("others are finished {} ms after they were created", now_ms() - began);
    let told = api.task(&id);
    assert!(!is_final(&told), "nothing is lost: {told}");
    take_at_most(&fixture, &dead, 2_228_224);
    let raised = Instant::now();
    let told = api.end_of(&id);
    println!("it has failed {:?} after its dead letter fits", raised.elapsed());
    assert_eq!(told["task_status"], "failed", "{told}");
    assert_eq!(turns(&stub.calls_of(&id)), [1], "it is called once");
    let letters = whole(&fixture, &dead);
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(letters[0].value.as_deref().map(<[u8]>::len), Some(LARGE));
    process.stop_well();
}
