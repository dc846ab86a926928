//! Records of tasks that somebody else has written: altered, written again, put where they do not belong, or made up.

use serde_json::json;

use super::{Api, LANES, fixture, launch, share, task, turns, with};
use crate::support::{
    Endpoint, Fixture, Log, Out, PATIENCE, Rec, eventually, now_ms, out, patience, whole,
};

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

/// The same in another partition.
fn moved(of: &Rec, by: i32) -> Out {
    Out { partition: Some((of.partition + by) % i32::from(LANES)), ..copy(of) }
}

/// The same with another text in a header.
#[track_caller]
fn reworded(of: &Rec, header: &str, from: &str, to: &str) -> Out {
    let before = of.header(header).expect("the header");
    let after = before.replace(from, to);
    assert_ne!(before, after, "{from} is not in {header}");
    let mut out = copy(of);
    for (_, value) in out.headers.iter_mut().filter(|(name, _)| name == header) {
        *value = Some(after.clone().into_bytes());
    }
    out
}

/// The first record of a topic that is about a task and has this text in a header.
#[track_caller]
fn about(fixture: &Fixture, topic: &str, id: &str, header: &str, text: &str) -> Rec {
    let mut log = Log::open(fixture, topic);
    let is_it = |rec: &&Rec| {
        let has_text = rec.header(header).is_some_and(|value| value.contains(text));
        has_text && rec.header("x-delay-id").as_deref() == Some(id)
    };
    log.until("the record stands there", |seen| seen.iter().any(|rec| is_it(&rec)));
    log.seen.iter().find(is_it).cloned().expect("it was seen")
}

/// The sealed create of a task, as it stands in the intake.
#[track_caller]
fn sealed(fixture: &Fixture, id: &str) -> Rec {
    about(fixture, &fixture.names.intake(), id, "x-delay-task", "")
}

/// The dispatch of a task, as it stands in `<ns>.tasks`.
#[track_caller]
fn dispatched(fixture: &Fixture, id: &str) -> Rec {
    about(fixture, &fixture.names.tasks(), id, "x-delay-task", "")
}

/// What was said of a turn first, as it stands in `<ns>.results`.
#[track_caller]
fn result(fixture: &Fixture, id: &str, outcome: &str) -> Rec {
    about(fixture, &fixture.names.results(), id, "x-delay-result", outcome)
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
    // What was sealed, as a cancel.
    let mut cancel = copy(&of_pending).header("x-delay-action", "cancel");
    producer.send_one(&intake, &cancel);
    cancel.value = None;
    producer.send_one(&intake, &cancel);
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
    producer.send_one(&intake, &reworded(&of_pending, "x-delay-task", "pending", "forged"));

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
    for code in ["task_forbidden", "bad_state", "bad_task"] {
        assert!(codes.iter().any(|of| of == code), "{code} is not among {codes:?}");
    }
    assert_eq!(dead(&fixture, &ended), Vec::<String>::new(), "a repeat is nothing");
    process.stop_well();
}

const STARTED: &str = r#""outcome":"started""#;
const FAILED: &str = r#""outcome":"failed""#;
const FINISHED: &str = r#""outcome":"finished""#;

#[test]
fn results_and_dispatches_that_were_altered_or_moved_are_dead_letters_and_end_no_task() {
    let fixture = fixture("tasks-results");
    let (mut a, mut b) = (
        launch(&fixture, "a", "lanes,worker,api").start(),
        launch(&fixture, "b", "worker").start(),
    );
    share(&[&a, &b]);
    let (api, stub) = (Api::of(&a), Endpoint::start());
    // Another namespace has tasks of the same ids, which finish at once.
    let other = super::fixture("tasks-results-other");
    let (mut of_other, fine) = (launch(&other, "a", "lanes,worker,api").start(), Endpoint::start());

    // What is forged is written and judged within this long.
    let seconds = 8 * patience();
    let ask = |api: &Api, stub: &Endpoint, request: &str, target: &str| {
        let more = json!({
            "request_id": request, "body": "as it was submitted", "timeout": "60s",
            "retry": {"count": 3, "interval": seconds},
        });
        api.create(&with(task("shop", stub, target, "0s"), more))
    };
    // One waits for its second call, and the first call of the other is open.
    let waits = ask(&api, &stub, "waits", "/fail?n=1");
    let open = ask(&api, &stub, "open", &format!("/slow?ms={seconds}000"));
    let theirs = [&waits, &open].map(|id| {
        let request = if *id == waits { "waits" } else { "open" };
        assert_eq!(ask(&Api::of(&of_other), &fine, request, "/ok"), *id);
        (dispatched(&other, id), result(&other, id, FINISHED))
    });
    let failed = result(&fixture, &waits, FAILED);
    let started = result(&fixture, &open, STARTED);
    let (of_waits, of_open) = (dispatched(&fixture, &waits), dispatched(&fixture, &open));

    let (results, tasks) = (fixture.names.results(), fixture.names.tasks());
    let plain = |of: &Rec| out("").header("x-delay-id", &open).at(of.partition);
    // Each with the code of its dead letter, if it is one.
    let mut forged: Vec<(&str, Out, Option<&str>)> = vec![
        (&results, reworded(&started, "x-delay-result", "started", "finished"), Some("bad_state")),
        (&results, reworded(&failed, "x-delay-result", "failed", "finished"), Some("bad_state")),
        (&results, moved(&started, 1), Some("bad_task")),
        (&results, altered(&failed), Some("bad_task")),
        (&results, copy(&failed), None),
        (&results, copy(&of_open), Some("bad_task")),
        (
            &results,
            plain(&started).header("x-delay-result", format!("{{{FINISHED}}}")),
            Some("task_forbidden"),
        ),
        // The worker that has the turn knows it, and any other one that it was not for it.
        (&tasks, altered(&of_open), Some("bad_task")),
        (&tasks, Out { value: altered(&of_open).value, ..moved(&of_open, 2) }, Some("bad_task")),
        (&tasks, altered(&of_waits), Some("bad_task")),
        (&tasks, reworded(&of_waits, "x-delay-task", "/fail", "/forged"), Some("bad_state")),
        (&tasks, copy(&failed), Some("bad_task")),
        (&tasks, plain(&of_open).header("x-delay-action", "cancel"), Some("bad_task")),
        (&tasks, copy(&of_open).header("x-delay-action", "cancel"), Some("bad_task")),
    ];
    for (dispatch, result) in &theirs {
        forged.push((&tasks, copy(dispatch), Some("bad_state")));
        forged.push((&results, copy(result), Some("bad_state")));
    }
    let producer = fixture.producer();
    for (topic, record, _) in &forged {
        producer.send_one(topic, record);
    }
    let mut want: Vec<_> = forged.iter().filter_map(|(_, _, code)| *code).collect();
    want.sort_unstable();
    let codes = || {
        let mut all = [dead(&fixture, &waits), dead(&fixture, &open)].concat();
        all.sort_unstable();
        all
    };
    eventually("they are dead letters", || {
        let codes = codes();
        if codes.len() >= want.len() { Ok(()) } else { Err(format!("{codes:?}")) }
    });
    let status = [&waits, &open].map(|id| api.task(id)["task_status"].clone());
    assert_eq!(status, [json!("delay"), json!("running")], "as if nothing had come");

    let ends = [&waits, &open].map(|id| api.end_of(id));
    let told = ends.each_ref().map(|end| (&end["task_status"], &end["attempts_total"]));
    let finished = json!("finished");
    assert_eq!(told, [(&finished, &json!(2)), (&finished, &json!(1))], "{ends:?}");
    let calls = [&waits, &open].map(|id| turns(&stub.calls_of(id)));
    assert_eq!(calls, [vec![1, 2], vec![1]]);
    assert_eq!((stub.begun(), fine.begun()), (3, 2), "nothing else was called");
    assert!(stub.calls().iter().all(|call| call.body == 19), "{:?}", stub.calls());
    assert_eq!(codes(), want);
    of_other.stop_well();
    b.stop_well();
    a.stop_well();
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
    let count = 8 * usize::from(LANES);
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
