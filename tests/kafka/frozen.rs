//! Requests whose lane's owner, or whose Kafka, stands still: each is answered within its wait and a little more.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{
    Fixture, Mode, Out, PRODUCE, Process, Proxy, State, Told, ask, eventually, out, patient,
    waterclock, whole,
};

/// What an answer may take beyond the wait, as docs/http-api.md says.
const GRACE: Duration = Duration::from_secs(2);
/// What this machine may take beyond that.
const SLACK: Duration = Duration::from_secs(1);
const LANES: u16 = 2;
const HOUR: u64 = 3_600_000;

fn fixture(test: &str) -> Fixture {
    Fixture::with(test, |request| request.lanes = Some(LANES))
}

/// Two instances that have a lane each and know each other.
fn pair(fixture: &Fixture, session: &str) -> [Process; 2] {
    let start = |data: &str| {
        let launch = fixture.launch(Mode::ExactlyOnce).data(data);
        launch.env("WATERCLOCK_SESSION_TIMEOUT", session).start()
    };
    let both = [start("a"), start("b")];
    eventually("each has a lane and knows the other", || {
        let own = [both[0].lanes(), both[1].lanes()];
        let told = [both[0].get("/v1/timers")?.0, both[1].get("/v1/timers")?.0];
        if (own, told) == ([1, 1], [200, 200]) { Ok(()) } else { Err(format!("{own:?} {told:?}")) }
    });
    both
}

/// The same, which is to be answered within so many seconds and a little more.
#[track_caller]
fn within(seconds: u64, process: &Process, method: &str, path: &str, body: Option<&Value>) -> Told {
    let told = ask(process, method, path, body);
    let most = Duration::from_secs(seconds) + GRACE + patient(SLACK);
    assert!(
        told.took < most,
        "{method} {path} took {:?}: {} {}",
        told.took,
        told.status,
        told.body
    );
    told
}

fn path(key: &str, query: &str) -> String {
    format!("/v1/timers/i?key={key}{query}")
}

/// A timer of each of these keys, once it is known.
fn submit(fixture: &Fixture, process: &Process, target: &str, keys: &[String]) {
    let producer = fixture.producer();
    for key in keys {
        producer.send_one(&fixture.names.intake(), &timer(target, key));
        eventually("it is known", || match ask(process, "GET", &path(key, ""), None) {
            Told { status: 200, .. } => Ok(()),
            Told { body, .. } => Err(body.to_string()),
        });
    }
}

fn timer(target: &str, key: &str) -> Out {
    out(key).key(key).header("x-delay-id", "i").delay(HOUR).to(target)
}

#[test]
fn beside_an_owner_that_stands_still_all_is_answered_within_the_wait() {
    let fixture = fixture("frozen-owner");
    let target = fixture.target("out", 1);
    // It keeps its lane for as long as this takes.
    let [mut a, mut b] = pair(&fixture, "60s");
    let (own, other) = (fixture.keys_of(&a, 3), fixture.keys_of(&b, 6));
    submit(&fixture, &a, &target, &own);
    submit(&fixture, &a, &target, &other);
    let bulk = "/v1/timers:bulkCancel";
    let counted = within(20, &a, "POST", bulk, Some(&json!({ "all": true })));
    assert_eq!(counted.body["count"], 9, "{}", counted.body);
    b.freeze();

    // A cancel is written all the same, and says where to ask again.
    let mut again = Vec::new();
    for (key, wait) in other.iter().zip([0, 1, 3]) {
        let query = format!("&wait={wait}s");
        let told = within(wait, &a, "DELETE", &path(key, &query), None);
        let seen = (told.status, &told.body["outcome"]);
        assert_eq!(seen, (202, &json!("pending")), "{}", told.body);
        again.push(told.body["again"].as_str().expect("where to ask again").to_owned());
    }
    let told = within(1, &a, "GET", &format!("{}?wait=1s", again[0]), None);
    assert_eq!((told.status, &told.body["outcome"]), (202, &json!("pending")), "{}", told.body);

    // What has to be looked up at the owner is refused in time, and nothing is done.
    let delay = json!({ "delay": "2h" });
    let token = json!({ "token": counted.body["token"] });
    #[rustfmt::skip]
    let refused = [
        (5,  "GET",    path(&other[5], ""),                None),
        (2,  "PATCH",  path(&other[5], "&wait=2s"),        Some(&delay)),
        // These need every lane.
        (18, "GET",    "/v1/timers".to_owned(),            None),
        (18, "GET",    "/v1/forecast".to_owned(),          None),
        (18, "POST",   bulk.to_owned(),                    Some(&token)),
    ];
    std::thread::scope(|scope| {
        for (seconds, method, path, body) in &refused {
            let a = &a;
            scope.spawn(move || {
                let told = within(*seconds, a, method, path, *body);
                let seen = (told.status, &told.body["code"]);
                assert_eq!(seen, (503, &json!("lane_moving")), "{method} {path}: {}", told.body);
            });
        }
    });

    // Nobody can say whether the key of this one was forgotten: it is taken as it was said.
    let told = within(2, &a, "DELETE", "/v1/timers/i?wait=2s", None);
    let seen = (told.status, told.body["outcome"].as_str().unwrap_or_default());
    assert!([(200, "unknown"), (202, "pending")].contains(&seen), "{}", told.body);

    // In a batch the others are answered as if nothing were.
    let names = |keys: [&String; 2]| keys.map(|key| json!({ "id": "i", "key": key }));
    let batch = json!({ "timers": names([&own[0], &other[3]]), "wait": "2s" });
    let told = within(2, &a, "POST", "/v1/timers:batchCancel", Some(&batch));
    let outcomes = [0, 1].map(|n| told.body["timers"][n]["outcome"].clone());
    assert_eq!(
        (told.status, outcomes),
        (200, ["cancelled", "pending"].map(|w| json!(w))),
        "{}",
        told.body
    );
    let batch = json!({ "timers": names([&own[1], &other[5]]) });
    let told = within(5, &a, "POST", "/v1/timers:batchGet", Some(&batch));
    let timers = &told.body["timers"];
    let seen = (&timers[0]["state"], &timers[1]["problem"]["code"]);
    assert_eq!(seen, (&json!("delay"), &json!("lane_moving")), "{}", told.body);

    // It goes on, and carries out what was written and nothing of what was refused.
    b.thaw();
    for (key, again) in other.iter().zip(&again) {
        let told = eventually("it is decided", || {
            let told = ask(&a, "GET", &format!("{again}?wait=5s"), None);
            if told.status == 200 { Ok(told) } else { Err(told.body.to_string()) }
        });
        assert_eq!(told.body["outcome"], "cancelled", "{key}: {}", told.body);
    }
    let states = |keys: &[String]| -> Vec<Value> {
        let state = |key: &String| {
            eventually("it is looked up", || match ask(&a, "GET", &path(key, ""), None) {
                Told { status: 200, body, .. } => Ok(body["state"].clone()),
                Told { body, .. } => Err(body.to_string()),
            })
        };
        keys.iter().map(state).collect()
    };
    assert_eq!(states(&own), ["cancelled", "delay", "delay"]);
    assert_eq!(
        states(&other),
        ["cancelled", "cancelled", "cancelled", "cancelled", "delay", "delay"]
    );
    let told = ask(&a, "GET", &path(&other[5], ""), None);
    assert!(told.body["supersedes"].is_null(), "it was not put off: {}", told.body);
    a.stop_well();
    b.stop_well();
    assert_eq!(whole(&fixture, &target), []);
}

/// A request to Kafka for records.
const FETCH: i16 = 1;

/// A request to Kafka for the ends of partitions.
const LIST_OFFSETS: i16 = 2;

#[test]
fn a_leader_that_does_not_say_where_its_log_ends_is_not_taken_for_one_that_has_nothing() {
    let fixture = fixture("frozen-ends");
    let proxy = Proxy::shared();
    // One question is not answered, and it is asked again.
    let hold = proxy.hold(LIST_OFFSETS, "waterclock-meta", None);
    let mut command = waterclock();
    command.args(["topics", "check", "--brokers", &*proxy.brokers]);
    let told = command.args(["--namespace", fixture.namespace()]).output().expect("it runs");
    assert!(hold.state() >= State::Held, "nobody has asked");
    let [shown, error] = [&told.stdout, &told.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(told.status.code() == Some(0) && shown.starts_with("fit"), "{shown} {error}");
}

#[test]
fn beside_a_kafka_that_stands_still_a_command_is_answered_within_its_wait() {
    let fixture = fixture("frozen-kafka");
    let target = fixture.target("out", 1);
    let proxy = Proxy::shared();
    let mut process = fixture.launch(Mode::ExactlyOnce).brokers(&proxy.brokers).start();
    let keys = ["a", "b", "c"].map(str::to_owned);
    submit(&fixture, &process, &target, &keys);
    let delay = json!({ "delay": "2h" });

    // The record that is to be put off cannot be read.
    let hold = proxy.hold(FETCH, "waterclock-find", None);
    let told = within(1, &process, "PATCH", &path("a", "&wait=1s"), Some(&delay));
    let seen = (told.status, &told.body["code"]);
    assert_eq!(seen, (503, &json!("record_not_found")), "{}", told.body);
    assert!(hold.state() >= State::Held, "nobody has read");
    hold.release();

    // The command cannot be written. Whether it will be, nobody knows.
    let hold = proxy.hold(PRODUCE, "waterclock-send", None);
    let batch =
        json!({ "timers": [{ "id": "i", "key": "a" }, { "id": "i", "key": "b" }], "wait": "1s" });
    let told = within(1, &process, "DELETE", &path("a", "&wait=1s"), None);
    assert_eq!((told.status, &told.body["code"]), (503, &json!("kafka_away")), "{}", told.body);
    assert!(hold.state() >= State::Held, "nothing was written");
    let told = within(1, &process, "POST", "/v1/timers:batchCancel", Some(&batch));
    let code = |n: usize| told.body["timers"][n]["problem"]["code"].clone();
    assert_eq!((code(0), code(1)), (json!("kafka_away"), json!("kafka_away")), "{}", told.body);
    hold.release();

    // To ask again is safe.
    let told = eventually("it is cancelled", || {
        let told = ask(&process, "DELETE", &path("a", "&wait=20s"), None);
        if told.status == 200 { Ok(told) } else { Err(told.body.to_string()) }
    });
    assert_eq!(told.body["outcome"], "cancelled", "{}", told.body);
    let told = ask(&process, "GET", &path("c", ""), None);
    assert_eq!(told.body["state"], "delay", "{}", told.body);
    process.stop_well();
}

/// What the command line takes to find a member that answers, beyond the time in which that one does.
const FINDING: Duration = Duration::from_secs(10);

/// The code that a command ends with, and what it says; in so many seconds at most.
#[track_caller]
fn command(fixture: &Fixture, seconds: u64, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = waterclock();
    command.args(["--brokers", &fixture.connection.brokers, "--namespace", fixture.namespace()]);
    let began = Instant::now();
    let told = command.args(arguments).output().expect("the binary runs");
    let took = began.elapsed();
    let text = [told.stdout, told.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let text = text.concat();
    let most = Duration::from_secs(seconds) + patient(FINDING);
    assert!(took < most, "{arguments:?} took {took:?}: {text}");
    (told.status.code(), text)
}

#[test]
fn the_command_line_passes_over_a_member_that_stands_still() {
    let fixture = fixture("frozen-cli");
    let target = fixture.target("out", 1);
    let [mut a, mut b] = pair(&fixture, "60s");
    let (of_a, of_b) = (fixture.keys_of(&a, 2), fixture.keys_of(&b, 2));
    submit(&fixture, &a, &target, &of_a);
    submit(&fixture, &b, &target, &of_b);
    // Longer than the command would wait by itself: whether it is decided is asked here, not how soon. The one that stands
    // still is not given all this time: that would be more than the command may take.
    let cancel = |key: &str| command(&fixture, 22, &["cancel", "i", "--key", key, "--wait", "1m"]);
    let status = |key: &str| command(&fixture, 7, &["status", "i", "--key", key]);

    // Whichever of them is asked first.
    for (frozen, keys) in [(&b, &of_a), (&a, &of_b)] {
        frozen.freeze();
        let (code, text) = status(&keys[0]);
        assert!(code == Some(0) && text.contains("delay"), "{code:?}: {text}");
        assert_eq!(cancel(&keys[0]), (Some(0), "cancelled\n".to_owned()));
        frozen.thaw();
        eventually("it answers again", || match ask(frozen, "GET", "/v1/timers", None) {
            Told { status: 200, .. } => Ok(()),
            Told { body, .. } => Err(body.to_string()),
        });
    }

    // Nobody can be asked: a cancel is written, a question is not answered.
    a.freeze();
    b.freeze();
    let (code, text) = command(&fixture, 7, &["cancel", "i", "--key", &of_a[1]]);
    assert!(code == Some(75) && text.starts_with("pending\n"), "{code:?}: {text}");
    let (code, text) = status(&of_b[1]);
    assert!(code == Some(69) && text.contains("no instance answers"), "{code:?}: {text}");
    assert!(!text.contains("waiting for one"), "neither is starting: {text}");
    // One that is named is not passed over; it may have heard the cancel, and does in the end.
    let named = format!("http://{}", b.address().expect("it serves"));
    let arguments = ["cancel", "i", "--key", &of_b[1], "--wait", "1s", "--server", &named];
    let (code, text) = command(&fixture, 1, &arguments);
    assert!(code == Some(69) && text.contains("may have done it"), "{code:?}: {text}");
    a.thaw();
    b.thaw();
    for key in [&of_a[1], &of_b[1]] {
        eventually("it is cancelled", || match ask(&a, "GET", &path(key, ""), None) {
            Told { body, .. } if body["state"] == "cancelled" => Ok(()),
            Told { body, .. } => Err(body.to_string()),
        });
    }
    a.stop_well();
    b.stop_well();
    assert_eq!(whole(&fixture, &target), []);
}

/// A lane whose owner was killed is nobody's until the session is over. The first answer is that it is on its way.
#[test]
fn a_status_waits_for_the_next_owner_of_a_lane_whose_owner_was_killed() {
    let fixture = fixture("killed-cli");
    let target = fixture.target("out", 1);
    let [mut a, mut b] = pair(&fixture, "6s");
    let [key] = <[String; 1]>::try_from(fixture.keys_of(&b, 1)).expect("one key");
    submit(&fixture, &b, &target, std::slice::from_ref(&key));
    b.kill();
    let server = format!("http://{}", a.address().expect("it serves"));
    for more in [&[][..], &["--server", &server]] {
        let arguments = [&["status", "i", "--key", &key][..], more].concat();
        let (code, text) = command(&fixture, 30, &arguments);
        assert!(code == Some(0) && text.contains("delay"), "{more:?}: {code:?}: {text}");
    }
    a.stop_well();
}
