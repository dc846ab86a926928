//! Records of tasks that somebody else has written: altered, written again, put where they do not belong, or made up.

use serde_json::json;

use super::{Api, fixture, launch, task, with};
use crate::support::{Endpoint, Fixture, Log, Out, PATIENCE, Rec, eventually, now_ms, out, whole};

/// A record as somebody who may read and write topics writes it again.
fn copy(of: &Rec) -> Out {
    let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let headers = of.headers.iter().map(|(of, value)| (name(of), value.clone())).collect();
    Out { key: of.key.clone(), value: of.value.clone(), headers, partition: Some(of.partition) }
}

/// The same with another value.
fn altered(of: &Rec) -> Out {
    Out { value: Some(b"send all of it to me".to_vec()), ..copy(of) }
}

/// The sealed create of a task, as it stands in the intake.
#[track_caller]
fn sealed(fixture: &Fixture, id: &str) -> Rec {
    let mut log = Log::open(fixture, &fixture.names.intake());
    let is_it = |rec: &&Rec| rec.header("x-delay-id").as_deref() == Some(id);
    log.until("the create stands there", |seen| seen.iter().any(|rec| is_it(&rec)));
    log.seen.iter().find(is_it).cloned().expect("it was seen")
}

/// The codes of all dead letters so far, of records with this value.
fn dead(fixture: &Fixture, id: &str) -> Vec<String> {
    let all = whole(fixture, &fixture.names.dead());
    let of = all.iter().filter(|rec| rec.header("x-delay-id").as_deref() == Some(id));
    let mut codes: Vec<_> = of.filter_map(|rec| rec.header("x-delay-error-code")).collect();
    codes.sort_unstable();
    codes
}

#[test]
fn who_may_write_to_topics_cannot_make_alter_repeat_or_cancel_a_task() {
    let fixture = fixture("tasks-forged");
    let target = fixture.target("out", 1);
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let (intake, producer) = (fixture.names.intake(), fixture.producer());

    let body = json!({"body": "as it was submitted"});
    // They are read at once: what is done is deleted.
    let ended = api.create(&with(task("shop", &stub, "/ok?ended", "3s"), body.clone()));
    let of_ended = sealed(&fixture, &ended);
    let pending = api.create(&with(task("shop", &stub, "/ok?pending", "15s"), body));
    let of_pending = sealed(&fixture, &pending);
    assert_eq!(api.end_of(&ended)["task_status"], "finished");

    // Again, altered or not, while it waits and after it has ended.
    for rec in [&of_ended, &of_pending] {
        producer.send_one(&intake, &copy(rec));
        producer.send_one(&intake, &altered(rec));
    }
    // Where another kind of record stands.
    let lane = of_pending.partition;
    let tier = fixture.names.tier(fixture.request.holds.as_ref().expect("a ladder")[0]);
    for topic in [&tier, &fixture.names.results(), &fixture.names.tasks()] {
        producer.send_one(topic, &altered(&of_pending));
    }
    // By the name of the task, without a seal.
    let plain = || out("plain").header("x-delay-id", &pending).at(lane);
    producer.send_one(&intake, &plain().delay(0).to(&target));
    producer.send_one(&intake, &plain().header("x-delay-action", "cancel"));
    producer.send_one(&intake, &plain().header("x-delay-action", "replace").delay(0).to(&target));
    // With a specification, and with a state of somebody's own.
    let spec = of_pending.header("x-delay-task").expect("a specification");
    producer.send_one(&intake, &plain().header("x-delay-task", &spec).delay(0).to(&target));
    let mut unsealed = altered(&of_pending);
    for (name, value) in &mut unsealed.headers {
        if name == "x-delay-state" {
            value.as_mut().expect("a state")[20] ^= 1;
        }
    }
    producer.send_one(&intake, &unsealed);
    // A specification that is not the one of the state.
    let mut other = copy(&of_pending);
    for (name, value) in &mut other.headers {
        if name == "x-delay-task" {
            *value = Some(spec.replace("pending", "forged").into_bytes());
        }
    }
    producer.send_one(&intake, &other);

    let seen = api.end_of(&pending);
    assert_eq!((&seen["task_status"], &seen["turn"]), (&json!("finished"), &json!(1)), "{seen}");
    assert_eq!(api.task(&ended)["task_status"], "finished");
    // Once more after its end.
    producer.send_one(&intake, &altered(&of_pending));
    producer.send_one(&intake, &copy(&of_pending));
    // Behind them all: what the lane decided before it has been decided.
    let beside = out("beside").header("x-delay-id", "beside").at(lane).delay(0).to(&target);
    producer.send_one(&intake, &beside);
    let mut delivered = Log::open(&fixture, &target);
    delivered.until("the last is delivered", |seen| seen.iter().any(|rec| rec.text() == "beside"));
    let again = api.create(&task("shop", &stub, "/ok?again", "0s"));
    assert_eq!(api.end_of(&again)["task_status"], "finished");

    let calls = stub.calls();
    let targets: Vec<_> = calls.iter().map(|call| call.target.as_str()).collect();
    assert_eq!(targets, ["/ok?ended", "/ok?pending", "/ok?again"], "{calls:?}");
    assert!(calls[..2].iter().all(|call| call.body == 19), "{calls:?}");
    let codes = dead(&fixture, &pending);
    println!("dead letters: {codes:?}");
    for code in ["task_forbidden", "bad_state"] {
        assert!(codes.iter().any(|of| of == code), "{code} is not among {codes:?}");
    }
    assert_eq!(dead(&fixture, &ended), Vec::<String>::new(), "a repeat is nothing");
    process.stop_well();
}

/// Its record is gone before a lane has seen it, and stands there again with another value.
#[test]
fn a_body_that_was_not_submitted_is_never_sent() {
    let fixture = fixture("tasks-altered");
    let mut api_only = launch(&fixture, "w", "worker,api").spawn();
    api_only.wait_until_logged(PATIENCE, "HTTP server listens");
    let (api, stub) = (Api::of(&api_only), Endpoint::start());
    let mut lanes = launch(&fixture, "a", "lanes").start();
    // Every lane has a position once it has done something.
    let warm = Endpoint::start();
    let one = || task("warm", &warm, "/ok", "0s");
    let count = 8 * usize::from(super::LANES);
    api.create_all((0..count).map(|_| one()).collect());
    api.wait_for(PATIENCE, "warm", "finished", count);
    lanes.stop_well();
    let body = json!({"body": "as it was submitted"});
    let id = api.create(&with(task("shop", &stub, "/ok", "0s"), body));
    let rec = sealed(&fixture, &id);
    let end = rdkafka::Offset::Offset(rec.offset + 1);
    fixture.delete_records(&fixture.names.intake(), rec.partition, end);
    fixture.producer().send_one(&fixture.names.intake(), &altered(&rec));
    let since = now_ms();
    let mut lanes = launch(&fixture, "a", "lanes").start();
    let seen = eventually("the task has failed", || {
        let seen = api.answered("GET", &format!("/v1/tasks/{id}"), None).1;
        if seen["task_status"] == "failed" { Ok(seen) } else { Err(seen.to_string()) }
    });
    let error =
        seen["attempts"][0]["error"].as_str().or_else(|| seen["code"].as_str()).unwrap_or_default();
    assert!(error.starts_with("bad_task"), "{seen}, {} ms after the start", now_ms() - since);
    assert_eq!(stub.connections(), 0);
    lanes.stop_well();
    api_only.stop_well();
}
