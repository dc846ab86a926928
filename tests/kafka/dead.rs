//! What cannot be delivered goes to the dead letters, whole, and holds nothing up.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use waterclock::engine::header::Code;

use crate::support::{
    Ack, Endpoint, Fixture, Log, Mode, Out, Rec, ask, assert_each_once, eventually, in_both_modes,
    out, patience, waterclock, whole,
};

in_both_modes!(every_refusal_is_a_dead_letter_and_stops_nothing);

/// What the error headers are called, in their order.
const ERRORS: [&str; 7] = ["code", "detail", "topic", "partition", "offset", "timestamp", "intake"];

/// The command's outcome: code and standard output.
fn dead(fixture: &Fixture, arguments: &[&str]) -> (Option<i32>, String) {
    let (code, said, _) = dead_told(fixture, arguments);
    (code, said)
}

/// The same with what it says on standard error.
fn dead_told(fixture: &Fixture, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = waterclock();
    command.args(["dead"]).args(arguments);
    command.args(["--brokers", &fixture.connection.brokers, "--namespace", fixture.namespace()]);
    let output = command.output().expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let error = text(&output.stderr);
    println!("{arguments:?}: {error}");
    (output.status.code(), text(&output.stdout), error)
}

#[test]
fn dead_letters_are_listed_shown_and_replayed_as_an_operator_does_it() {
    let fixture = Fixture::new("replay");
    let good = fixture.timed_target("good", 1);
    let late = fixture.name("late");
    let mut process = fixture.start(Mode::ExactlyOnce);
    let producer = fixture.producer();
    for n in 0..5 {
        let record = out(format!("{n}")).key(format!("k{n}")).header("mine", "\u{1b}[2J\u{ff}");
        producer.send(&fixture.names.intake(), &record.delay("20s").to(&late));
    }
    let bad = out("bad").key("k").header("x-delay", "soon").to(&good);
    producer.send(&fixture.names.intake(), &bad);
    let expired = out("expired").key("k").delay(100).header("x-delay-expires", "50").to(&good);
    producer.send(&fixture.names.intake(), &expired);
    let acks = producer.acks();
    Log::open(&fixture, &fixture.names.dead()).count(7);

    let lines = |arguments: &[&str]| -> Vec<Value> {
        let (code, text) = dead(&fixture, &[arguments, &["--json"]].concat());
        assert_eq!(code, Some(0), "{arguments:?}");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let missing = lines(&["list", "--code", "target_missing", "--since", "1h"]);
    assert_eq!(missing.len(), 5, "{missing:?}");
    assert_eq!(lines(&["list", "--target", &good]).len(), 2);
    assert_eq!(lines(&["list", "--until", "1h"]).len(), 0);
    let place = format!("{}@{}", missing[0]["partition"], missing[0]["offset"]);
    let (_, shown) = dead(&fixture, &["show", &place]);
    assert!(shown.contains("target_missing") && !shown.contains('\u{1b}'), "{shown}");

    assert_eq!(dead(&fixture, &["replay"]).0, Some(2), "it says which, or nothing happens");
    assert_eq!(dead(&fixture, &["replay", &place, "0@99999"]).0, Some(1));
    let would = lines(&["replay", "--code", "target_missing", "--dry-run"]);
    assert!(would.len() == 5 && would.iter().all(|line| line["replayed"].is_null()), "{would:?}");

    let log = process.log();
    let told = log.lines().filter(|line| line.contains("see `waterclock dead list`"));
    let told: Vec<_> = told.filter(|line| line.contains("target_missing")).collect();
    assert_eq!(told.len(), 1, "the first of each code is said, and not each: {log}");

    // What was known of the target counts for two seconds.
    let answered = acks.iter().map(|ack| ack.at).max().unwrap_or_default();
    eventually("it is asked for again", || {
        let age = jiff::Timestamp::now().as_millisecond() as u64 - answered;
        if age > 4_000 { Ok(()) } else { Err(format!("{age} ms")) }
    });
    // The target is there by now, and what was due 20 s after its submission is so still.
    let made = fixture.timed_target("late", 2);
    assert_eq!(made, late);
    let replayed = lines(&["replay", "--code", "target_missing", "--code", "expired"]);
    assert_eq!(replayed.len(), 6);
    let seen = Log::open(&fixture, &late).count(5).to_vec();
    for rec in &seen {
        let n: usize = rec.text().parse().expect("a number");
        assert!(rec.at >= acks[n].at + 20_000, "early: {rec:?}");
        assert!(rec.at < acks[n].at + 40_000, "the delay was counted again: {rec:?}");
        let mine = (b"mine".to_vec(), Some("\u{1b}[2J\u{ff}".as_bytes().to_vec()));
        assert_eq!(rec.headers, [mine], "as if it had never been dead");
    }
    Log::open(&fixture, &good).count(1);
    // Replay one by its place, under another intake's rules or none: the faulty record is refused again.
    let soon = lines(&["list", "--code", "bad_delay"]);
    let place = format!("{}@{}", soon[0]["partition"], soon[0]["offset"]);
    assert_eq!(dead(&fixture, &["replay", &place]).0, Some(0));
    Log::open(&fixture, &fixture.names.dead()).count(8);
    assert_eq!(dead(&fixture, &["replay", &place, "--now"]).0, Some(0));
    Log::open(&fixture, &good).count(2);
    fixture.wait_until_nothing_is_pending();
    process.stop_well();
    assert_eq!(whole(&fixture, &fixture.names.dead()).len(), 8, "what is replayed stays there");
}

#[test]
fn the_dead_letter_of_a_task_is_not_replayed_and_the_command_names_the_one_that_retries_it() {
    let fixture = Fixture::new("replay-task");
    let good = fixture.timed_target("good", 1);
    let launch = fixture.launch(Mode::ExactlyOnce);
    let mut process = launch.config("[callbacks]\nnetworks = [\"127.0.0.0/8\"]\n").start();
    let stub = Endpoint::start();
    let url = stub.url("/fail?n=1");
    let body = json!({"project": "shop", "group": "g", "delay": 0, "url": url});
    let id = eventually("a task is created", || {
        let told = ask(&process, "POST", "/v1/tasks/http", Some(&body)).body;
        told["task_id"].as_str().map(str::to_owned).ok_or_else(|| told.to_string())
    });
    let letter = Log::open(&fixture, &fixture.names.dead()).count(1)[0].clone();
    let place = format!("{}@{}", letter.partition, letter.offset);
    let named = format!("{}/{place}", fixture.names.dead());
    let retry = format!("task retry {id}`");

    // Beside it one that is replayed.
    let producer = fixture.producer();
    producer
        .send(&fixture.names.intake(), &out("bad").key("k").header("x-delay", "soon").to(&good));
    Log::open(&fixture, &fixture.names.dead()).count(2);
    let (_, list) = dead(&fixture, &["list", "--code", "bad_delay", "--json"]);
    let other: Value = serde_json::from_str(list.trim()).expect("one line");
    let other = format!("{}@{}", other["partition"], other["offset"]);
    for arguments in [
        &["replay", &*place][..],
        &["replay", &other, &place, "--now"],
        &["replay", &place, "--dry-run"],
        &["replay", "--code", "task_failed"],
    ] {
        let (code, said, error) = dead_told(&fixture, arguments);
        assert_eq!((code, &*said), (Some(1), ""), "nothing is sent: {arguments:?}");
        assert!(error.contains(&named) && error.contains(&retry), "{arguments:?}: {error}");
    }
    let (code, said, error) = dead_told(&fixture, &["replay", "--all", "--now"]);
    assert_eq!(code, Some(1));
    assert!(said.starts_with(&format!("{other} -> ")) && said.lines().count() == 1, "{said}");
    assert!(error.contains("1 are of tasks") && error.contains(&retry), "{error}");
    let seen = Log::open(&fixture, &good).count(1)[0].text();
    assert_eq!(seen, "bad", "the other one is delivered");

    // What it names does what the replay was to do.
    let server = format!("http://{}", process.address().expect("it serves"));
    let mut command = waterclock();
    let told = command.args(["task", "retry", &id, "--server", &server]).output();
    let told = told.expect("the binary runs");
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    eventually("the task is finished", || {
        let told = ask(&process, "GET", &format!("/v1/tasks/{id}"), None).body;
        if told["task_status"] == "finished" { Ok(()) } else { Err(told.to_string()) }
    });
    process.stop_well();
    assert_eq!(whole(&fixture, &fixture.names.dead()).len(), 2, "no replay made another one");
}

/// Bytes that compress badly, so that a record is as large as it seems.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let step = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..count).map(step).collect()
}

/// One record for each way to be refused, with the code that it must get.
fn refusable(fixture: &Fixture, good: &str, small: &str, table: &str) -> Vec<(Code, Out)> {
    let soon = |id: &str| out(id).key(id).delay(50);
    let fine = |id: &str| soon(id).to(good);
    let untimed = |id: &str| out(id).key(id).to(good);
    let mut crowded = fine("1001 headers");
    while crowded.headers.len() <= 1_000 {
        crowded = crowded.header("h", "v");
    }
    let mut large = noise(5_000);
    large[..5].copy_from_slice(b"large");
    #[rustfmt::skip]
    let cases = vec![
        (Code::MissingDelay,          untimed("no time")),
        (Code::BadDelay,              untimed("words").header("x-delay", "soon")),
        (Code::BadDelay,              untimed("a space").header("x-delay", " 5")),
        (Code::BadDelay,              untimed("not UTF-8 is no time").header("x-delay", "5x")),
        (Code::NegativeDelay,         untimed("negative").header("x-delay", "-1")),
        (Code::DelayOverflow,         untimed("overflow").header("x-delay", "99999999999999999999")),
        (Code::DelayTooLong,          untimed("too long").header("x-delay", "401d")),
        (Code::BadUntil,              untimed("no zone").header("x-delay-until", "2030-01-31T08:00:00")),
        (Code::AmbiguousTimestamp,    untimed("seconds").header("x-delay-until", "1900000000")),
        (Code::ConflictingDirectives, fine("both").header("x-delay-until", "2030-01-31T08:00:00Z")),
        (Code::MissingTarget,         soon("no target")),
        (Code::BadTarget,             soon("a slash").to("a/b")),
        (Code::TargetForbidden,       soon("Kafka's own").to("__consumer_offsets")),
        (Code::TargetForbidden,       soon("our own").to(&fixture.names.intake())),
        (Code::TargetDenied,          soon("not on the list").to(&fixture.name("denied"))),
        (Code::TargetMissing,         soon("nowhere").to(&fixture.name("nowhere"))),
        (Code::MissingKey,            out("no key").delay(50).to(table)),
        (Code::BadPartition,          fine("no number").header("x-delay-partition", "one")),
        (Code::BadPartition,          fine("not there").header("x-delay-partition", "99")),
        (Code::MissingId,             fine("a cancel of nothing").header("x-delay-action", "cancel")),
        (Code::BadId,                 fine("an empty id").header("x-delay-id", "")),
        (Code::BadAction,             fine("unheard of").header("x-delay-action", "pause")),
        (Code::BadExpires,            fine("expires badly").header("x-delay-expires", "never")),
        (Code::Expired,               untimed("too late").header("x-delay", "1s").header("x-delay-expires", "500ms")),
        (Code::BadLabel,              fine("a long label").header("x-delay-label", [b'l'; 65])),
        (Code::BadTrace,              fine("trace").header("x-delay-trace", "yes")),
        (Code::BadHeader,             fine("a null label").null_header("x-delay-label")),
        (Code::BadHeader,             fine("an id not in UTF-8").header("x-delay-label", [0xff])),
        (Code::DuplicateHeader,       fine("twice").header("x-delay", "50")),
        (Code::UnknownHeader,         fine("unknown").header("x-delay-colour", "red")),
        (Code::TooManyHeaders,        crowded),
        (Code::TooLarge,              out(large).key("large").delay(50).to(small)),
        (Code::BadState,              fine("forged").header("x-delay-state", [1; 68])),
        (Code::TaskForbidden,         fine("a task of one's own").header("x-delay-task", "{}")),
    ];
    cases
}

fn every_refusal_is_a_dead_letter_and_stops_nothing(mode: Mode) {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    let fixture = Fixture::new(&format!("dead-{short}"));
    let good = fixture.timed_target("good", 3);
    let small = fixture.target_with("small", 1, &[("max.message.bytes", "2000")]);
    let table = fixture.target_with("table", 1, &[("cleanup.policy", "compact")]);
    let allowed = ".*-(good|small|table|nowhere)";
    let mut process = fixture.launch(mode).arg("--allow").arg(allowed).start();
    let producer = fixture.producer();
    let intake = fixture.names.intake();
    let cases = refusable(&fixture, &good, &small, &table);
    // A neighbour after each, of the same key, and small ones around the large one.
    let mut numbers = Vec::new();
    for (n, (_, record)) in cases.iter().enumerate() {
        let mut neighbour = out(format!("{n}")).delay(1_500).to(&good);
        neighbour.key = record.key.clone();
        let tiny = out(format!("tiny {n}")).key("large").delay(50).to(&small);
        for record in [record, &neighbour, &tiny] {
            producer.send(&intake, record);
        }
        numbers.push(n.to_string());
    }
    let acks = producer.acks();
    let neighbours = Log::open(&fixture, &good).count(cases.len()).to_vec();
    let tinies = cases.len();
    Log::open(&fixture, &small).count(tinies);
    Log::open(&fixture, &fixture.names.dead()).count(cases.len());
    fixture.wait_until_nothing_is_pending();
    process.stop_well();

    let dead = whole(&fixture, &fixture.names.dead());
    assert_eq!(dead.len(), cases.len(), "{dead:#?}");
    let by_place: BTreeMap<(String, String), &Rec> = dead
        .iter()
        .map(|rec| {
            let of = |name: &str| rec.header(&format!("x-delay-error-{name}")).unwrap_or_default();
            ((of("partition"), of("offset")), rec)
        })
        .collect();
    for (n, (code, record)) in cases.iter().enumerate() {
        let ack = acks[3 * n];
        let place = (ack.partition.to_string(), ack.offset.to_string());
        let letter = by_place.get(&place).unwrap_or_else(|| panic!("{code}: {place:?}: {dead:#?}"));
        assert_letter(*code, record, ack, &intake, letter);
    }
    let met: BTreeSet<Code> = cases.iter().map(|(code, _)| *code).collect();
    let unmet: Vec<&Code> = Code::ALL.iter().filter(|code| !met.contains(code)).collect();
    // What a broker refuses is in poison.rs, what a tier does not take in cancel.rs, what an intake leaves behind that is
    // configured no more in intakes.rs, what cannot be read in batches.rs, nobody outside can make a record hop that often, and too many timers are a
    // thousand at least. The others are of sealed tasks, which nobody outside can make: see workers.rs and tasks.rs.
    let elsewhere = [
        &Code::TargetRefused,
        &Code::UnsupportedAction,
        &Code::TooManyTimers,
        &Code::Unreadable,
        &Code::TooManyHops,
        &Code::UnknownIntake,
        &Code::BadTask,
        &Code::StaleSubmit,
        &Code::TaskFailed,
        &Code::ProjectDeleted,
    ];
    assert_eq!(unmet, elsewhere, "every code of the contract is provoked");

    assert_each_once(numbers.iter().cloned(), &whole(&fixture, &good));
    let tiny = (0..tinies).map(|n| format!("tiny {n}"));
    assert_each_once(tiny, &whole(&fixture, &small));
    for rec in &neighbours {
        let n: usize = rec.text().parse().unwrap();
        let due = acks[3 * n + 1].at + 1_500;
        // The bound is loose, since other tests run beside this one. The point is that nothing waits for a dead letter.
        let most = due + 15_000 * u64::from(patience());
        assert!((due..most).contains(&rec.at), "due {due}: {rec:?}");
    }
}

fn assert_letter(code: Code, sent: &Out, ack: Ack, intake: &str, letter: &Rec) {
    let split = letter.headers.len() - ERRORS.len();
    let (kept, errors) = letter.headers.split_at(split);
    let names: Vec<String> =
        errors.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect();
    assert_eq!(names, ERRORS.map(|name| format!("x-delay-error-{name}")), "{code}");
    let error = |name: &str| letter.header(&format!("x-delay-error-{name}")).unwrap();
    assert_eq!(error("code"), code.as_str(), "{letter:?}");
    let detail = error("detail");
    assert!(!detail.is_empty() && detail.len() <= 256, "{code}: {detail}");
    assert!(detail.bytes().all(|b| (b' '..=b'~').contains(&b)), "{code}: {detail}");
    assert_eq!((error("topic"), error("intake")), (intake.into(), intake.into()), "{code}");
    assert_eq!(error("timestamp"), ack.at.to_string(), "{code}");
    assert_eq!(letter.key, sent.key, "{code}");
    assert_eq!(letter.value, sent.value, "{code}");
    let forged = |name: &str| name == "x-delay-state";
    let wanted: Vec<(Vec<u8>, Option<Vec<u8>>)> = sent
        .headers
        .iter()
        .filter(|(name, _)| !forged(name))
        .map(|(name, value)| (name.as_bytes().to_vec(), value.clone()))
        .collect();
    assert_eq!(kept, wanted, "{code}: headers as they were");
}
