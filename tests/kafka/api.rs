//! Two instances on a real Kafka: either answers for every timer, truly or not at all; and the command line that asks them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Output;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::{Value, json};

use crate::support::{
    Fixture, Log, Mode, Out, PATIENCE, Process, bulk_cancelled, client, eventually, out, patient,
    start_all, waterclock, whole,
};

const LANES: u16 = 4;

fn fixture(test: &str) -> Fixture {
    Fixture::with(test, |request| request.lanes = Some(LANES))
}

/// Two instances that share the lanes.
fn pair(fixture: &Fixture) -> (Process, Process) {
    let [a, b] = start_all([
        fixture.launch(Mode::ExactlyOnce).data("a"),
        fixture.launch(Mode::ExactlyOnce).data("b"),
    ]);
    eventually("the lanes are shared", || {
        let own = [a.lanes(), b.lanes()];
        if own == [2, 2] { Ok(()) } else { Err(format!("{own:?}")) }
    });
    (a, b)
}

/// Submits timers of all lanes, due in an hour; every fourth is labelled.
fn submit(fixture: &Fixture, target: &str, count: usize) {
    let producer = fixture.producer();
    for n in 0..count {
        let record = out(format!("v{n}")).header("x-delay-id", format!("t{n}"));
        let record = record.delay(3_600_000).to(target);
        let record = if n % 4 == 0 { record.header("x-delay-label", "fourth") } else { record };
        // Keys of text, keys that are none, and no key.
        let key = match n % 5 {
            0 => None,
            1 => Some(vec![0xff, n as u8]),
            _ => Some(format!("k/{n} &").into_bytes()),
        };
        producer.send_one(&fixture.names.intake(), &Out { key, ..record });
    }
}

/// Asks an instance: status, `Retry-After`, body.
fn ask(process: &Process, method: &str, path: &str, body: Option<&Value>) -> (u16, bool, Value) {
    let client = client(PATIENCE);
    let url = format!("http://{}{path}", process.address().expect("it serves"));
    let method = method.parse().expect("a method");
    let request = client.request(method, url);
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    let answer = request.send().expect("it answers");
    let (status, later) = (answer.status().as_u16(), answer.headers().contains_key("retry-after"));
    let body = answer.text().expect("a body");
    (status, later, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

/// The same once it is an answer: lanes that move are waited for.
#[track_caller]
fn answered(process: &Process, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
    eventually(&format!("{method} {path} is answered"), || {
        let (status, later, told) = ask(process, method, path, body);
        if status == 503 {
            assert!(later, "{told}");
            return Err(told.to_string());
        }
        Ok((status, told))
    })
}

/// All pages of a list.
fn list(process: &Process, filter: &str) -> Vec<Value> {
    let (mut all, mut page) = (Vec::new(), String::new());
    loop {
        let (status, told) =
            answered(process, "GET", &format!("/v1/timers?limit=7{filter}{page}"), None);
        assert_eq!(status, 200, "{told}");
        all.extend(told["timers"].as_array().expect("timers").clone());
        match told["next"].as_str() {
            Some(next) => page = format!("&page={next}"),
            None => return all,
        }
    }
}

fn ids(timers: &[Value]) -> BTreeSet<String> {
    timers.iter().map(|timer| timer["id"].as_str().expect("an id").to_owned()).collect()
}

#[track_caller]
fn wait_for(process: &Process, count: usize) -> Vec<Value> {
    eventually("all timers are known", || {
        let all = list(process, "");
        if all.len() == count { Ok(all) } else { Err(format!("{} of {count}", all.len())) }
    })
}

/// A name as batches take it.
fn name(timer: &Value) -> Value {
    match timer["key_base64"].as_str() {
        Some(key) => json!({ "id": timer["id"], "key_base64": key }),
        None => json!({ "id": timer["id"], "key": timer["key"] }),
    }
}

#[test]
fn either_of_two_instances_answers_for_every_timer() {
    let fixture = fixture("api");
    let target = fixture.target("out", 2);
    let (mut a, mut b) = pair(&fixture);
    submit(&fixture, &target, 40);
    let all = wait_for(&a, 40);
    assert_eq!(all, list(&b, ""));
    assert!(all.windows(2).all(|two| two[0]["due"].as_u64() <= two[1]["due"].as_u64()));
    let lanes: BTreeSet<_> = all.iter().map(|timer| timer["lane"].as_u64()).collect();
    assert_eq!(lanes.len(), usize::from(LANES), "every lane has some");
    for filter in ["&label=fourth", "&state=delay&label=fourth", &format!("&target={target}")] {
        let (of_a, of_b) = (list(&a, filter), list(&b, filter));
        assert_eq!(of_a, of_b, "{filter}");
        assert_eq!(of_a.len(), if filter.contains("fourth") { 10 } else { 40 }, "{filter}");
    }
    assert_eq!(list(&a, "&state=delivered"), Vec::<Value>::new());

    let names = json!({ "timers": all.iter().map(name).collect::<Vec<_>>() });
    for process in [&a, &b] {
        let (_, told) = answered(process, "POST", "/v1/timers:batchGet", Some(&names));
        assert_eq!(told["timers"], Value::Array(all.clone()));
        let (_, told) = answered(process, "GET", "/v1/forecast", None);
        assert_eq!(told["targets"][0]["total"], 40, "{told}");
        assert_eq!(told["targets"][0]["target"], target.as_str(), "{told}");
    }

    // Every second one by each process, whichever owns it.
    for (n, timer) in all.iter().enumerate().filter(|(n, _)| n % 2 == 0) {
        let process = if n % 4 == 0 { &a } else { &b };
        let batch = json!({ "timers": [name(timer)], "wait": "20s" });
        let (_, told) = answered(process, "POST", "/v1/timers:batchCancel", Some(&batch));
        assert_eq!(told["timers"][0]["outcome"], "cancelled", "{told}");
        let (_, told) = answered(&b, "POST", "/v1/timers:batchGet", Some(&batch_of(timer)));
        assert_eq!(told["timers"][0]["state"], "cancelled", "{told}");
    }
    assert_eq!(list(&a, "&state=cancelled").len(), 20);
    assert_eq!(list(&b, "&state=delay").len(), 20);

    // One is put off, and one is brought forward.
    let pending = list(&a, "&state=delay");
    let of_text = pending.iter().filter(|timer| timer["key"].is_string()).collect::<Vec<_>>();
    for (process, timer, body) in
        [(&a, of_text[0], json!({ "delay": "2h" })), (&b, of_text[1], json!({ "delay": "1s" }))]
    {
        let key = timer["key"].as_str().expect("text").replace(' ', "%20").replace('&', "%26");
        let id = timer["id"].as_str().expect("text");
        let path = format!("/v1/timers/{id}?key={key}&wait=20s");
        let (status, told) = answered(process, "PATCH", &path, Some(&body));
        assert_eq!((status, &told["outcome"]), (200, &json!("replaced")), "{told}");
    }
    eventually("the one that was brought forward is delivered", || {
        let delivered = list(&b, "&state=delivered");
        if ids(&delivered) == ids(&[of_text[1].clone()]) {
            Ok(())
        } else {
            Err(format!("{delivered:?}"))
        }
    });
    a.stop_well();
    b.stop_well();
}

fn batch_of(timer: &Value) -> Value {
    json!({ "timers": [name(timer)] })
}

#[test]
fn while_lanes_move_an_answer_is_right_or_there_is_none() {
    let fixture = fixture("api-moves");
    let target = fixture.target("out", 2);
    let (mut a, b) = pair(&fixture);
    submit(&fixture, &target, 30);
    let all = wait_for(&a, 30);
    let batch = json!({ "timers": all.iter().map(name).collect::<Vec<_>>() });
    let mut b = Some(b);
    let mut c = None;
    let mut again = 0;
    // b dies, c comes, and a is asked all the time.
    let began = Instant::now();
    let mut calm = 0;
    while calm < 20 {
        assert!(began.elapsed() < patient(PATIENCE), "the lanes do not come to rest");
        match began.elapsed().as_secs() {
            2.. if b.is_some() => {
                let mut dead = b.take().expect("it lives");
                dead.kill();
            }
            4.. if c.is_none() => c = Some(fixture.launch(Mode::ExactlyOnce).data("c").spawn()),
            _ => {}
        }
        let (status, _, told) = ask(&a, "POST", "/v1/timers:batchGet", Some(&batch));
        assert_eq!(status, 200, "{told}");
        let mut whole = true;
        for (told, timer) in told["timers"].as_array().expect("timers").iter().zip(&all) {
            if told["problem"].is_object() {
                assert_eq!(told["problem"]["code"], "lane_moving", "{told}");
                (again, whole) = (again + 1, false);
            } else {
                assert_eq!(told, timer);
            }
        }
        let (status, later, told) = ask(&a, "GET", "/v1/timers?limit=100", None);
        match status {
            200 => assert_eq!(told["timers"], Value::Array(all.clone())),
            503 => assert!(later, "{told}"),
            _ => panic!("{status}: {told}"),
        }
        let shared = c.as_ref().is_some_and(|c: &Process| c.lanes() == 2);
        calm = if whole && status == 200 && shared { calm + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(again > 0, "nothing moved while it was asked");
    // What dead and new owners decided in turn holds everywhere.
    let batch = json!({ "timers": batch["timers"], "wait": "20s" });
    let (_, told) = answered(&a, "POST", "/v1/timers:batchCancel", Some(&batch));
    let outcomes = told["timers"].as_array().expect("timers").iter();
    assert!(outcomes.clone().all(|told| told["outcome"] == "cancelled"), "{told}");
    assert_eq!(list(c.as_ref().expect("it runs"), "&state=cancelled").len(), 30);
    a.stop_well();
}

#[test]
fn many_are_cancelled_after_they_were_counted() {
    let fixture = fixture("api-bulk");
    let target = fixture.target("out", 2);
    let (mut a, mut b) = pair(&fixture);
    submit(&fixture, &target, 40);
    wait_for(&b, 40);
    // What is submitted in the moment of the count is not meant: the brokers' time is known to some milliseconds only.
    std::thread::sleep(Duration::from_millis(500));
    let filter = json!({ "target": target, "label": "fourth" });
    let (status, told) = answered(&a, "POST", "/v1/timers:bulkCancel", Some(&filter));
    assert_eq!((status, &told["count"]), (200, &json!(10)), "{told}");
    assert_eq!(list(&b, "&state=delay").len(), 40, "a count changes nothing");
    // Two more that fit the filter, after the count: the token does not mean them.
    for id in ["late 0", "late 4"] {
        let record = out("").key("late").header("x-delay-id", id).header("x-delay-label", "fourth");
        let record = record.delay(3_600_000).to(&target);
        fixture.producer().send_one(&fixture.names.intake(), &record);
    }
    wait_for(&b, 42);
    let (mut page, mut cancelled) = (Value::Null, 0);
    loop {
        let body = json!({ "token": told["token"], "page": page, "limit": 3 });
        let (status, told) = answered(&b, "POST", "/v1/timers:bulkCancel", Some(&body));
        assert_eq!(status, 200, "{told}");
        cancelled += bulk_cancelled(&told);
        page = told["next"].clone();
        if page.is_null() {
            break;
        }
    }
    assert_eq!(cancelled, 10);
    let rest = left(&a, 32);
    let late: Vec<_> = rest.iter().filter(|timer| timer["label"] == "fourth").collect();
    assert_eq!(late.len(), 2, "{late:?}");

    // The same by the command line.
    let told = run(&fixture, &["cancel", "--target", &target, "--json"]);
    let told: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    assert_eq!(told["count"], 32);
    let token = told["token"].as_str().expect("a token");
    let done = run(&fixture, &["cancel", "--token", token]);
    let line = text(&done.stdout);
    match done.status.code() {
        Some(0) => assert_eq!(line, "32 cancelled\n"),
        _ => assert!(line.contains(" pending"), "{line}"),
    }
    left(&a, 0);
    let done = run(&fixture, &["cancel", "--token", token]);
    assert_eq!(text(&done.stdout), "nothing was left to cancel\n");
    a.stop_well();
    b.stop_well();
}

/// The outcomes that a page of a bulk cancel tells.
fn of_page(told: &Value) -> impl Iterator<Item = (String, u64)> + use<> {
    let outcomes = told["outcomes"].as_object().expect("an object").clone();
    outcomes.into_iter().map(|(word, n)| (word, n.as_u64().expect("a number")))
}

/// So many are pending, once all is decided that is written.
#[track_caller]
fn left(process: &Process, count: usize) -> Vec<Value> {
    eventually(&format!("{count} are left"), || {
        let left = list(process, "&state=delay");
        if left.len() == count { Ok(left) } else { Err(left.len().to_string()) }
    })
}

/// How often each outcome is there.
fn count(outcomes: impl IntoIterator<Item = (String, u64)>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for (outcome, count) in outcomes {
        *counts.entry(outcome).or_default() += count;
    }
    counts
}

#[test]
fn a_batch_says_of_each_what_became_of_it() {
    let fixture = fixture("api-outcomes");
    let target = fixture.target("out", 2);
    let (mut a, mut b) = pair(&fixture);
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    let send = |id: &str, key: &str, delay_ms: u64, more: &[(&str, &str)]| {
        let record = out(id).key(key).header("x-delay-id", id).delay(delay_ms).to(&target);
        let record = more.iter().fold(record, |record, (name, value)| record.header(name, value));
        producer.send_one(&intake, &record);
    };
    let timer = |id: &str, key: &str| {
        let body = json!({ "timers": [{ "id": id, "key": key }] });
        answered(&a, "POST", "/v1/timers:batchGet", Some(&body)).1["timers"][0].clone()
    };
    let wait = |id: &str, key: &str, state: &str| {
        eventually(&format!("{id} is {state}"), || {
            let told = timer(id, key);
            if told["state"] == state { Ok(told) } else { Err(told.to_string()) }
        })
    };
    // Of each kind as many as there are lanes at least, so that both instances have some.
    let keys: Vec<String> = (0..3 * LANES).map(|n| format!("k{n}")).collect();
    let mut batch = Vec::new();
    let mut want = Vec::new();
    for key in &keys {
        for id in ["delivered", "dead"] {
            let code = if id == "dead" { "x-delay-partition" } else { "mine" };
            send(id, key, 0, &[(code, "99")]);
        }
        for id in ["pending", "replaced", "cancelled"] {
            send(id, key, 3_600_000, &[]);
        }
    }
    for key in &keys {
        let old = wait("replaced", key, "delay")["version"].clone();
        send("replaced", key, 3_600_000, &[("x-delay-action", "replace")]);
        let new = eventually("it is replaced", || {
            let told = timer("replaced", key);
            if told["supersedes"] == old { Ok(told) } else { Err(told.to_string()) }
        });
        let gone = wait("cancelled", key, "delay")["version"].clone();
        let path = format!("/v1/timers/cancelled?key={key}&wait=20s");
        let (_, told) = answered(&b, "DELETE", &path, None);
        assert_eq!(told["outcome"], "cancelled", "{told}");
        for (id, state) in [("pending", "delay"), ("delivered", "delivered"), ("dead", "dead")] {
            wait(id, key, state);
        }
        let none = &Value::Null;
        for (id, version, outcome, state) in [
            ("pending", none, "cancelled", none),
            ("delivered", none, "delivered", none),
            ("replaced", &old, "superseded", none),
            ("replaced", &new["version"], "cancelled", none),
            ("cancelled", &gone, "cancelled", none),
            ("cancelled", none, "cancelled", none),
            ("dead", none, "unknown", &json!("dead")),
            ("never", none, "unknown", none),
            // One that nobody has.
            ("delivered", &json!("1764000000000-1"), "unknown", none),
        ] {
            let mut name = json!({ "id": id, "key": key });
            if !version.is_null() {
                name["version"] = version.clone();
            }
            batch.push(name);
            want.push((format!("{id} {version}"), json!(outcome), state.clone()));
        }
        batch.push(json!({ "id": "", "key": key }));
        want.push(("no id".to_owned(), json!("bad_id"), Value::Null));
    }
    let body = json!({ "timers": batch, "wait": "20s" });
    for process in [&a, &b, &a] {
        let (status, told) = answered(process, "POST", "/v1/timers:batchCancel", Some(&body));
        assert_eq!(status, 200, "{told}");
        let all = told["timers"].as_array().expect("timers");
        assert_eq!(all.len(), want.len(), "each has its answer");
        for ((told, (what, outcome, state)), asked) in all.iter().zip(&want).zip(&batch) {
            let seen = match &told["problem"]["code"] {
                Value::Null => &told["outcome"],
                code => code,
            };
            assert_eq!((&told["id"], &told["key"]), (&asked["id"], &asked["key"]), "{told}");
            assert_eq!((seen, &told["state"]), (outcome, state), "{what}: {told}");
        }
    }
    a.stop_well();
    b.stop_well();
    let there = count(whole(&fixture, &target).iter().map(|rec| (rec.text(), 1)));
    assert_eq!(there, [("delivered".to_owned(), keys.len() as u64)].into());
}

#[test]
fn what_a_bulk_cancel_counts_is_what_the_target_shows() {
    let fixture = fixture("api-bulk-due");
    let target = fixture.target("out", 2);
    let (mut a, mut b) = pair(&fixture);
    let producer = fixture.producer();
    let (all, first) = (400, patient(Duration::from_secs(5)).as_millis() as u64);
    // They become due one after the other, and the first of them while page after page is cancelled. The last is due long after.
    for n in 0..all {
        let record = out(n.to_string()).key(n.to_string()).header("x-delay-id", "i");
        let after = if n < all / 2 { first + 20 * n } else { 3_600_000 };
        producer.send(&fixture.names.intake(), &record.delay(after).to(&target));
    }
    producer.acks();
    let mut log = Log::open(&fixture, &target);
    let filter = json!({ "target": target });
    let told = eventually("all are counted", || {
        let (_, told) = answered(&b, "POST", "/v1/timers:bulkCancel", Some(&filter));
        if told["count"] == all { Ok(told) } else { Err(told.to_string()) }
    });
    let counted = told["count"].clone();
    log.count(1);
    let (mut page, mut outcomes) = (Value::Null, BTreeMap::new());
    loop {
        let body = json!({ "token": told["token"], "page": page, "limit": 5 });
        let (status, told) = answered(&b, "POST", "/v1/timers:bulkCancel", Some(&body));
        assert_eq!((status, &told["count"]), (200, &counted), "{told}");
        outcomes = count(outcomes.into_iter().chain(of_page(&told)));
        page = told["next"].clone();
        if page.is_null() {
            break;
        }
    }
    fixture.wait_until_nothing_is_pending();
    let there = whole(&fixture, &target).len() as u64;
    let of = |word: &str| outcomes.get(word).copied().unwrap_or_default();
    let undecided = of("pending") + of("failed");
    println!("{counted} counted, {there} delivered, {outcomes:?}");
    assert_eq!(of("cancelled") + of("delivered") + undecided, outcomes.values().sum::<u64>());
    // A cancel that is not decided in time is written, and counts or not.
    let kept = all - there;
    assert!(
        (of("cancelled")..=of("cancelled") + undecided).contains(&kept),
        "{kept} were kept back"
    );
    assert!(of("delivered") <= there && of("cancelled") > 0 && there > 0, "{there}: {outcomes:?}");
    a.stop_well();
    b.stop_well();
}

/// How many records the intake and the changelog have.
fn written(fixture: &Fixture) -> i64 {
    let mut config = rdkafka::ClientConfig::new();
    config.set("bootstrap.servers", &fixture.connection.brokers).set("group.id", "written");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    let of = |topic: &str| -> i64 {
        let end = |lane| consumer.fetch_watermarks(topic, lane, PATIENCE).expect("an end").1;
        (0..i32::from(LANES)).map(end).sum()
    };
    of(&fixture.names.intake()) + of(&format!("{}.timers", fixture.namespace()))
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let fixture = fixture("api-bad");
    let target = fixture.target("out", 2);
    let (mut a, mut b) = pair(&fixture);
    submit(&fixture, &target, 10);
    let all = wait_for(&a, 10);
    let before = written(&fixture);
    let long = format!("/v1/timers/{}?key=k", "x".repeat(256));
    let none = json!({});
    let far = json!({ "delay": "500d" });
    #[rustfmt::skip]
    let cases = [
        ("an empty id",             "DELETE", "/v1/timers/",                      None,        400, "bad_id"),
        ("an id that is too long",  "DELETE", &long,                              None,        400, "bad_id"),
        ("an id not in UTF-8",      "DELETE", "/v1/timers/%ff",                   None,        400, "bad_id"),
        ("a control character",     "DELETE", "/v1/timers/a%00",                  None,        400, "bad_id"),
        ("no key of a keyed timer", "DELETE", "/v1/timers/t2",                    None,        400, "key_needed"),
        ("a broken page token",     "GET",    "/v1/timers?page=AAAA",             None,        400, "bad_page"),
        ("no token for all",        "POST",   "/v1/timers:bulkCancel",            Some(&none), 400, "means_all"),
        ("a limit of nothing",      "GET",    "/v1/timers?limit=0",               None,        400, "bad_limit"),
        ("a time without a zone",   "GET",    "/v1/timers?due_before=2030-01-01", None,        400, "bad_time"),
        ("later than max-delay",    "PATCH",  "/v1/timers/t2?key=k/2+%26",        Some(&far),  400, "delay_too_long"),
        ("no such timer",           "PATCH",  "/v1/timers/t2?key=other",          Some(&far),  404, "unknown_timer"),
    ];
    for (why, method, path, body, status, code) in cases {
        for process in [&a, &b] {
            let (told_status, told) = answered(process, method, path, body);
            assert_eq!((told_status, &told["code"]), (status, &json!(code)), "{why}: {told}");
        }
    }
    assert_eq!(written(&fixture), before, "something was written");
    assert_eq!(list(&b, ""), all);
    a.stop_well();
    b.stop_well();
}

fn run(fixture: &Fixture, arguments: &[&str]) -> Output {
    let mut command = waterclock();
    command.args(["--brokers", &fixture.connection.brokers, "--namespace", fixture.namespace()]);
    command.args(arguments).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_command_line_finds_a_member_and_says_what_was_decided() {
    let fixture = fixture("api-cli");
    let target = fixture.target("out", 2);
    let (mut a, mut b) = pair(&fixture);
    for id in ["soon", "late", "last"] {
        let after = if id == "soon" { "1s" } else { "1h" };
        let sent = ["send", "--target", &target, "--in", after, "--key", "k", "--id", id, "v"];
        assert_eq!(run(&fixture, &sent).status.code(), Some(0));
    }
    let state = |id: &str| {
        let told = run(&fixture, &["status", id, "--key", "k", "--json"]);
        serde_json::from_slice::<Value>(&told.stdout).unwrap_or_default()["state"].clone()
    };
    eventually("the first is delivered", || {
        let state = state("soon");
        if state == "delivered" { Ok(()) } else { Err(state.to_string()) }
    });
    let named = format!("http://{}", b.address().expect("it serves"));
    #[rustfmt::skip]
    let cases: [(&str, &[&str], i32, &str); 9] = [
        ("pending",             &["cancel", "late", "--key", "k", "--wait", "20s"],     0, "cancelled\n"),
        ("again",               &["cancel", "late", "--key", "k", "--wait", "20s"],     0, "cancelled\n"),
        ("too late",            &["cancel", "soon", "--key", "k", "--wait", "20s"],     1, "delivered\n"),
        ("never there",         &["cancel", "nobody", "--key", "k", "--wait", "20s"],   1, "unknown\n"),
        ("of a named instance", &["cancel", "nobody", "--key", "k", "--server", &named], 1, "unknown\n"),
        ("without its key",     &["cancel", "last"],                                    2, ""),
        ("unknown",             &["status", "nobody"],                                  1, "unknown\n"),
        ("an id that is none",  &["status", ""],                                        2, ""),
        ("nobody listens",      &["status", "x", "--server", "http://127.0.0.1:1"],     69, ""),
    ];
    for (why, arguments, code, want) in cases {
        let told = run(&fixture, arguments);
        let is = (told.status.code(), text(&told.stdout));
        assert_eq!(is, (Some(code), want.to_owned()), "{why}: {}", text(&told.stderr));
    }
    let listed = text(&run(&fixture, &["list", "--json"]).stdout);
    let states: Vec<String> = listed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .map(|timer| format!("{} {}", timer["id"], timer["state"]))
        .collect();
    assert_eq!(states, [r#""soon" "delivered""#, r#""late" "cancelled""#, r#""last" "delay""#]);
    let limited = text(&run(&fixture, &["list", "--limit", "1", "--state", "delay"]).stdout);
    assert!(limited.lines().count() == 2 && limited.contains("last"), "{limited}");
    let forecast = text(&run(&fixture, &["forecast"]).stdout);
    assert!(forecast.contains(&target), "{forecast}");

    // With nobody there it is written all the same, and decided when somebody comes.
    a.stop_well();
    b.stop_well();
    let told = run(&fixture, &["cancel", "last", "--key", "k"]);
    assert_eq!((told.status.code(), text(&told.stdout)), (Some(75), "pending\n".to_owned()));
    assert_eq!(run(&fixture, &["list"]).status.code(), Some(69));
    let mut c = fixture.launch(Mode::ExactlyOnce).data("c").start();
    eventually("it is decided", || {
        let state = state("last");
        if state == "cancelled" { Ok(()) } else { Err(state.to_string()) }
    });
    c.stop_well();
}

#[test]
fn a_record_as_large_as_the_intake_takes_is_put_off_and_one_that_would_be_larger_is_refused_for_that()
 {
    let fixture = fixture("api-large");
    let target = fixture.target("out", 1);
    let mut process = fixture.launch(Mode::ExactlyOnce).start();
    let producer = fixture.producer();
    let put_off = |id: &str, bytes: usize| {
        let record = out(vec![b'a'; bytes]).key("k").to(&target).header("x-delay", "2h");
        producer.send_one(&fixture.names.intake(), &record.header("x-delay-id", id));
        answered(
            &process,
            "PATCH",
            &format!("/v1/timers/{id}?key=k&wait=20s"),
            Some(&json!({ "delay": "3h" })),
        )
    };
    for bytes in [2_097_000, 2_157_152] {
        let (status, told) = put_off(&format!("of-{bytes}"), bytes);
        assert_eq!((status, &told["outcome"]), (200, &json!("replaced")), "{bytes}: {told}");
    }
    // It came while the intake took more.
    let settings = [
        ("retention.ms", "-1"),
        ("retention.bytes", "-1"),
        ("message.timestamp.type", "LogAppendTime"),
        ("max.message.bytes", "1048588"),
    ];
    fixture.configure(&fixture.names.intake(), &settings);
    let path = "/v1/timers/of-2097000?key=k&wait=20s";
    let (status, told) = answered(&process, "PATCH", path, Some(&json!({ "delay": "4h" })));
    assert_eq!((status, &told["code"]), (409, &json!("record_too_large")), "{told}");
    let (_, told) = answered(&process, "GET", "/v1/timers/of-2097000?key=k", None);
    assert_eq!(told["state"], "delay", "{told}");
    process.stop_well();
}
