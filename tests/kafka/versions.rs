//! Answers about versions on a real Kafka: each is about the version that was named, or about what stood before the command,
//! and never about what came afterwards.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Barrier;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Fixture, Log, Mode, Out, PATIENCE, Process, Producer, Rec, bulk_cancelled, client, eventually,
    in_both_modes, now_ms, out, start_all, waterclock, whole,
};

in_both_modes!(
    a_cancel_of_a_version_is_answered_with_what_became_of_that_one,
    a_cancel_that_found_nothing_says_nothing_of_what_came_after_it,
    a_version_that_is_shown_is_taken_wherever_one_is,
    another_time_is_replaced_or_a_conflict_and_nothing_else,
    of_two_other_times_at_once_one_is_given_and_delivered,
    of_two_other_times_at_once_at_two_instances_one_is_given_and_delivered,
    another_time_is_about_the_version_that_was_pending_when_its_request_came,
    another_time_is_given_however_soon_after_the_create,
    another_time_is_given_at_once_to_what_kafka_has_acknowledged,
    who_has_just_taken_a_lane_over_does_not_say_that_there_is_no_such_timer,
    a_timer_without_a_key_is_not_the_one_whose_key_is_its_id,
);

in_both_modes!(
    #[cfg_attr(not(feature = "failpoints"), ignore = "needs --features failpoints")]
    a_cancel_that_kafka_had_already_is_answered_and_another_time_may_be_asked_for_again,
);

const HOUR: u64 = 3_600_000;

fn fixture(test: &str, mode: Mode) -> Fixture {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    Fixture::with(&format!("{test}-{short}"), |request| request.lanes = Some(2))
}

/// A timer of this key, with the id `i`.
fn timer(target: &str, key: &str, value: &str, delay_ms: u64) -> Out {
    out(value).key(key).header("x-delay-id", "i").delay(delay_ms).to(target)
}

fn replacing(record: Out) -> Out {
    record.header("x-delay-action", "replace")
}

/// A process that is asked over HTTP.
struct Asked<'a> {
    client: reqwest::blocking::Client,
    process: &'a Process,
}

impl<'a> Asked<'a> {
    fn new(process: &'a Process) -> Self {
        let client = client(PATIENCE);
        Self { client, process }
    }

    /// Status and body, once the lane is there.
    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        eventually(&format!("{method} {path} is answered"), || {
            let (status, told) = self.once(method, path, body);
            if status == 503 { Err(told.to_string()) } else { Ok((status, told)) }
        })
    }

    #[track_caller]
    fn once(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let url = format!("http://{}{path}", self.process.address().expect("it serves"));
        let request = self.client.request(method.parse().expect("a method"), url);
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        let answer = request.send().expect("it answers");
        let status = answer.status().as_u16();
        let body = answer.text().expect("a body");
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    /// The version that is in this state, once it is and is none of these.
    #[track_caller]
    fn version(&self, key: &str, state: &str, not: &[&str]) -> String {
        eventually(&format!("{key} is in state {state}"), || {
            let (_, told) = self.once("GET", &format!("/v1/timers/i?key={key}"), None);
            let version = told["version"].as_str().unwrap_or_default();
            if told["state"] == state && !not.contains(&version) {
                return Ok(version.to_owned());
            }
            Err(told.to_string())
        })
    }

    /// What a cancel comes to, and what state it tells beside.
    #[track_caller]
    fn cancel(&self, key: &str, version: Option<&str>) -> (String, Option<String>) {
        let version = version.map(|version| format!("&version={version}")).unwrap_or_default();
        let path = format!("/v1/timers/i?key={key}{version}&wait=20s");
        let (status, told) = self.ask("DELETE", &path, None);
        assert_eq!(status, 200, "{told}");
        outcome(&told)
    }

    #[track_caller]
    fn reschedule(&self, key: &str, query: &str, body: &Value) -> (u16, Value) {
        self.once("PATCH", &format!("/v1/timers/i?key={key}{query}&wait=20s"), Some(body))
    }
}

#[track_caller]
fn outcome(told: &Value) -> (String, Option<String>) {
    let word = told["outcome"].as_str().unwrap_or_else(|| panic!("no outcome: {told}"));
    (word.to_owned(), told["state"].as_str().map(str::to_owned))
}

fn plain(word: &str) -> (String, Option<String>) {
    (word.to_owned(), None)
}

fn a_cancel_of_a_version_is_answered_with_what_became_of_that_one(mode: Mode) {
    let fixture = fixture("versions", mode);
    let target = fixture.target("out", 2);
    let mut process = fixture.start(mode);
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    let send = |record: &Out| {
        producer.send_one(&intake, record);
    };
    let asked = Asked::new(&process);

    // Delivered, and another one made afterwards, which is cancelled.
    send(&timer(&target, "made-again", "first", 100));
    let first = asked.version("made-again", "delivered", &[]);
    assert_eq!(asked.cancel("made-again", Some(&first)), plain("delivered"));
    send(&timer(&target, "made-again", "second", HOUR));
    let second = asked.version("made-again", "delay", &[]);
    assert_eq!(asked.cancel("made-again", Some(&first)), plain("unknown"), "it is not kept");
    assert_eq!(asked.cancel("made-again", Some(&second)), plain("cancelled"));
    assert_eq!(asked.cancel("made-again", Some(&first)), plain("unknown"), "it was delivered");
    assert_eq!(asked.cancel("made-again", Some(&second)), plain("cancelled"), "once more");
    assert_eq!(asked.cancel("made-again", None), plain("cancelled"), "once more");

    // Replaced twice, delivered at last.
    send(&timer(&target, "replaced", "first", HOUR));
    let first = asked.version("replaced", "delay", &[]);
    send(&replacing(timer(&target, "replaced", "second", HOUR)));
    let second = asked.version("replaced", "delay", &[&first]);
    assert_eq!(asked.cancel("replaced", Some(&first)), plain("superseded"));
    send(&replacing(timer(&target, "replaced", "third", 3_000)));
    let third = asked.version("replaced", "delay", &[&first, &second]);
    for old in [&first, &second] {
        assert_eq!(asked.cancel("replaced", Some(old)), plain("superseded"), "it is pending");
    }
    assert_eq!(asked.version("replaced", "delivered", &[]), third);
    for old in [&first, &second] {
        assert_eq!(asked.cancel("replaced", Some(old)), plain("superseded"), "it was delivered");
    }
    assert_eq!(asked.cancel("replaced", Some(&third)), plain("delivered"));
    let (_, told) = asked.ask("GET", "/v1/timers/i?key=replaced", None);
    assert_eq!(told["supersedes"], json!(second), "an end does not hide it");

    // Replaced and cancelled, in other hands by the time that somebody asks.
    send(&timer(&target, "handed-on", "first", HOUR));
    let first = asked.version("handed-on", "delay", &[]);
    send(&replacing(timer(&target, "handed-on", "second", HOUR)));
    let second = asked.version("handed-on", "delay", &[&first]);
    // A dead letter is told as such.
    send(&timer(&target, "expired", "late", 2_000).header("x-delay-expires", "1s"));
    let expired = asked.version("expired", "expired", &[]);
    let told = ("unknown".to_owned(), Some("expired".to_owned()));
    assert_eq!(asked.cancel("expired", Some(&expired)), told);
    assert_eq!(asked.cancel("expired", None), told);
    send(&timer(&target, "expired", "again", HOUR));
    asked.version("expired", "delay", &[]);
    assert_eq!(asked.cancel("expired", Some(&expired)), plain("unknown"));
    process.stop_well();

    let mut process = fixture.start(mode);
    let asked = Asked::new(&process);
    assert_eq!(asked.cancel("handed-on", Some(&first)), plain("superseded"));
    assert_eq!(asked.cancel("handed-on", Some(&second)), plain("cancelled"));
    assert_eq!(asked.cancel("handed-on", Some(&first)), plain("superseded"));
    assert_eq!(asked.cancel("handed-on", Some("1764000000000-1")), plain("unknown"), "nobody's");
    process.stop_well();
}

fn a_cancel_that_found_nothing_says_nothing_of_what_came_after_it(mode: Mode) {
    let fixture = fixture("versions-after", mode);
    let target = fixture.target("out", 2);
    let mut process = fixture.start(mode);
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    let asked = Asked::new(&process);
    let ticket = |key: &str, version: &str| {
        let path = format!("/v1/timers/i?key={key}{version}&wait=0s");
        let (status, told) = asked.ask("DELETE", &path, None);
        if status != 202 {
            // On a busy machine it can be decided before it is answered. Then another one is asked about.
            assert_eq!((status, outcome(&told)), (200, plain("unknown")), "{told}");
            return Err(told.to_string());
        }
        Ok(told["again"].as_str().expect("where to ask again").to_owned())
    };
    let mut keys = (0..).map(|n| format!("k{n}"));
    let (key, tickets) = eventually("neither of two is decided yet", || {
        let key = keys.next().expect("one more");
        let tickets = [ticket(&key, "")?, ticket(&key, "&version=1764000000000-1")?];
        Ok((key, tickets))
    });
    producer.send_one(&intake, &timer(&target, &key, "after it", 100));
    Log::open(&fixture, &target).count(1);
    asked.version(&key, "delivered", &[]);
    for ticket in &tickets {
        let (status, told) = asked.ask("GET", &format!("{ticket}?wait=20s"), None);
        assert_eq!((status, outcome(&told)), (200, plain("unknown")), "{told}");
    }
    process.stop_well();
}

fn a_version_that_is_shown_is_taken_wherever_one_is(mode: Mode) {
    let fixture = fixture("versions-shown", mode);
    let target = fixture.target("out", 2);
    let mut process = fixture.start(mode);
    let asked = Asked::new(&process);
    // By another client's partitioner half of them stand beside their lane, are moved there, and have an x in their version.
    let foreign = Producer::new(&fixture, &[("partitioner", "consistent_random")]);
    let mut moved = Vec::new();
    for n in 0.. {
        let key = format!("k{n}");
        foreign.send_one(&fixture.names.intake(), &timer(&target, &key, &key, HOUR));
        let version = asked.version(&key, "delay", &[]);
        if version.contains('x') {
            moved.push((key, version));
        } else {
            assert_eq!(asked.cancel(&key, None), plain("cancelled"));
        }
        if moved.len() == 4 {
            break;
        }
    }
    let [(by_query, seen), (in_batch, second), (put_off, third), _] = &moved[..] else {
        panic!("four of them");
    };
    assert_eq!(asked.cancel(by_query, Some(seen)), plain("cancelled"));
    let base = format!("http://{}", process.address().expect("it serves"));
    let cancel =
        ["cancel", "i", "--key", by_query, "--only", seen, "--wait", "20s", "--server", &base];
    let told = waterclock().args(cancel).output();
    let told = told.expect("it runs").stdout;
    assert_eq!(String::from_utf8_lossy(&told), "cancelled\n", "by the command line");
    let one = json!({"id": "i", "key": in_batch, "version": second});
    let (status, told) =
        asked.ask("POST", "/v1/timers:batchCancel", Some(&json!({"timers": [one], "wait": "20s"})));
    assert_eq!((status, outcome(&told["timers"][0])), (200, plain("cancelled")));
    let again = json!({"delay": "2h"});
    let (status, told) = asked.reschedule(put_off, &format!("&version={third}"), &again);
    assert_eq!((status, outcome(&told)), (200, plain("replaced")));
    // What was put off in the moment of the count is not cancelled by its token: the brokers' time is known to some
    // milliseconds only.
    std::thread::sleep(Duration::from_millis(500));
    let (_, told) = asked.ask("POST", "/v1/timers:bulkCancel", Some(&json!({"all": true})));
    let token = json!({"token": told["token"]});
    let (_, told) = asked.ask("POST", "/v1/timers:bulkCancel", Some(&token));
    assert_eq!((bulk_cancelled(&told), &told["count"]), (2, &json!(2)), "{told}");

    let one = |version: &str| json!({"timers": [{"id": "i", "key": "k", "version": version}], "wait": "20s"});
    let (status, told) =
        asked.ask("POST", "/v1/timers:batchCancel", Some(&one("1764000000000-1x")));
    assert_eq!((status, outcome(&told["timers"][0])), (200, plain("unknown")));
    for wrong in ["99999999999999999999-1", "1-1y", "x"] {
        let (status, told) = asked.ask("POST", "/v1/timers:batchCancel", Some(&one(wrong)));
        assert_eq!((status, &told["code"]), (400, &json!("bad_version")), "{told}");
    }
    process.stop_well();
    assert_eq!(whole(&fixture, &target), []);
}

fn another_time_is_replaced_or_a_conflict_and_nothing_else(mode: Mode) {
    let fixture = fixture("versions-patch", mode);
    let target = fixture.target("out", 2);
    let mut process = fixture.start(mode);
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    let asked = Asked::new(&process);
    let is_conflict = |status: u16, told: &Value| {
        status == 409 && (told["code"] == "superseded" || told["code"] == "not_pending")
    };
    for round in 0..6 {
        // Two at once.
        let key = format!("two-{round}");
        producer.send_one(&intake, &timer(&target, &key, "v", HOUR));
        asked.version(&key, "delay", &[]);
        let barrier = Barrier::new(2);
        let both: Vec<(u16, Value)> = std::thread::scope(|scope| {
            let ask = |delay| {
                let (asked, key, barrier) = (&asked, &key, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    asked.reschedule(key, "", &json!({"delay": delay}))
                })
            };
            let both = ["2h", "3h"].map(ask);
            both.into_iter().map(|one| one.join().expect("answered")).collect()
        });
        let is_replaced =
            |status: u16, told: &Value| status == 200 && told["outcome"] == "replaced";
        let is_superseded =
            |status: u16, told: &Value| status == 409 && told["code"] == "superseded";
        let won = both.iter().filter(|(status, told)| is_replaced(*status, told)).count();
        let lost = both.iter().filter(|(status, told)| is_superseded(*status, told)).count();
        assert_eq!((won, lost), (1, 1), "{both:?}");
        asked.version(&key, "delay", &[]);

        // Beside a cancel.
        let key = format!("beside-{round}");
        producer.send_one(&intake, &timer(&target, &key, "v", 2_500 + 300 * round));
        asked.version(&key, "delay", &[]);
        std::thread::scope(|scope| {
            let patched = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20 * round));
                asked.reschedule(&key, "", &json!({"delay": "1h"}))
            });
            assert_eq!(asked.cancel(&key, None), plain("cancelled"));
            let (status, told) = patched.join().expect("answered");
            let is_replaced = status == 200 && told["outcome"] == "replaced";
            assert!(is_replaced || is_conflict(status, &told), "{status} {told}");
        });
    }
    // Of a version that is not there any more.
    producer.send_one(&intake, &timer(&target, "k", "first", HOUR));
    let first = asked.version("k", "delay", &[]);
    producer.send_one(&intake, &replacing(timer(&target, "k", "second", HOUR)));
    let second = asked.version("k", "delay", &[&first]);
    let again = json!({"delay": "2h"});
    let (status, told) = asked.reschedule("k", &format!("&version={first}"), &again);
    assert_eq!((status, &told["code"]), (409, &json!("superseded")), "{told}");
    assert_eq!(asked.cancel("k", Some(&second)), plain("cancelled"));
    let (status, told) = asked.reschedule("k", "", &again);
    let state = json!("cancelled");
    assert_eq!((status, &told["code"], &told["state"]), (409, &json!("not_pending"), &state));
    process.stop_well();
}

/// A request for another time on a connection of its own.
struct Patch {
    stream: TcpStream,
    body: String,
}

impl Patch {
    /// Connects, and sends nothing.
    fn open(process: &Process, due: u64) -> Self {
        let stream = TcpStream::connect(process.address().expect("it serves")).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        Self { stream, body: json!({ "due": due }).to_string() }
    }

    fn head(&self, key: &str, further: &str) -> String {
        format!(
            "PATCH /v1/timers/i?key={key}&wait=20s HTTP/1.1\r\nHost: localhost\r\n{further}\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.body.len()
        )
    }

    /// Status, and the outcome or the code.
    fn answer(&mut self) -> (u16, String) {
        let mut answer = String::new();
        self.stream.read_to_string(&mut answer).expect("an answer");
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
        let told: Value = serde_json::from_str(body).expect("JSON");
        let word = told["outcome"].as_str().or_else(|| told["code"].as_str()).unwrap_or_default();
        (status.unwrap_or_default(), word.to_owned())
    }
}

/// Two at once, round by round, each at one of these processes: one is given, and it is the one that is delivered.
fn two_at_once(fixture: &Fixture, processes: [&Process; 2]) {
    let target = fixture.target("out", 2);
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    let asked = Asked::new(processes[0]);
    let (given, refused) = ((200, "replaced".to_owned()), (409, "superseded".to_owned()));
    let mut won: BTreeMap<String, u64> = BTreeMap::new();
    for round in 0..20 {
        let key = format!("k{round}");
        let record = timer(&target, &key, &key, HOUR).header("x-delay-trace", "1");
        producer.send_one(&intake, &record);
        asked.version(&key, "delay", &[]);
        std::thread::sleep(Duration::from_millis(15 * round));
        let soon = now_ms() + 10_000;
        let (dues, barrier) = ([soon, soon + 7], Barrier::new(2));
        let told = std::thread::scope(|scope| {
            let one = |n: usize| {
                let mut patch = Patch::open(processes[n], dues[n]);
                let (key, barrier) = (&key, &barrier);
                scope.spawn(move || {
                    let whole = patch.head(key, "") + &patch.body;
                    barrier.wait();
                    patch.stream.write_all(whole.as_bytes()).expect("sent");
                    patch.answer()
                })
            };
            [one(0), one(1)].map(|one| one.join().expect("answered"))
        });
        match &told {
            [a, b] if *a == given && *b == refused => won.insert(key, dues[0]),
            [a, b] if *b == given && *a == refused => won.insert(key, dues[1]),
            _ => panic!("{round}: {told:?}"),
        };
    }
    let mut log = Log::open(fixture, &target);
    log.count(20);
    fixture.wait_until_nothing_is_pending();
    let seen = whole(fixture, &target);
    let due = |rec: &Rec| rec.header("x-delay-due").and_then(|due| due.parse().ok());
    let dues: BTreeMap<String, u64> =
        seen.iter().filter_map(|rec| Some((rec.text(), due(rec)?))).collect();
    assert_eq!((seen.len(), dues), (20, won));
}

fn of_two_other_times_at_once_one_is_given_and_delivered(mode: Mode) {
    let fixture = fixture("versions-two", mode);
    let mut process = fixture.start(mode);
    two_at_once(&fixture, [&process, &process]);
    process.stop_well();
}

fn of_two_other_times_at_once_at_two_instances_one_is_given_and_delivered(mode: Mode) {
    let fixture = fixture("versions-two-at-two", mode);
    let [mut a, mut b] =
        start_all([fixture.launch(mode).data("a"), fixture.launch(mode).data("b")]);
    eventually("the lanes are shared", || match [a.lanes(), b.lanes()] {
        [1, 1] => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let mut asked = Vec::new();
    for process in [&a, &b] {
        eventually("each knows the other", || match process.get("/v1/timers") {
            Ok((200, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        asked.push(process);
    }
    two_at_once(&fixture, [asked[0], asked[1]]);
    a.stop_well();
    b.stop_well();
}

fn another_time_is_about_the_version_that_was_pending_when_its_request_came(mode: Mode) {
    let fixture = fixture("versions-came", mode);
    let target = fixture.target("out", 2);
    let mut process = fixture.start(mode);
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    let asked = Asked::new(&process);
    producer.send_one(&intake, &timer(&target, "k", "v", HOUR));
    asked.version("k", "delay", &[]);
    let mut slow = Patch::open(&process, now_ms() + 2 * HOUR);
    let head = slow.head("k", "Expect: 100-continue\r\n");
    slow.stream.write_all(head.as_bytes()).expect("sent");
    let mut go_on = [0; 25];
    slow.stream.read_exact(&mut go_on).expect("told to go on");
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    // Another one is faster than its body.
    let (status, told) = asked.reschedule("k", "", &json!({"delay": "3h"}));
    assert_eq!((status, outcome(&told)), (200, plain("replaced")), "{told}");
    let body = slow.body.clone();
    slow.stream.write_all(body.as_bytes()).expect("sent");
    assert_eq!(slow.answer(), (409, "superseded".to_owned()));
    // What came after the answer is about the version of that answer.
    let (status, told) = asked.reschedule("k", "", &json!({"delay": "4h"}));
    assert_eq!((status, outcome(&told)), (200, plain("replaced")), "{told}");
    process.stop_well();
}

fn another_time_is_given_however_soon_after_the_create(mode: Mode) {
    // While its hop is collected, on its way and there: its record stands in its intake all the time.
    let fixture = fixture("versions-soon", mode);
    let target = fixture.target("out", 2);
    let mut process = fixture.start(mode);
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    let asked = Asked::new(&process);
    for n in 0..24_u64 {
        let key = format!("k{n}");
        producer.send_one(&intake, &timer(&target, &key, "v", HOUR));
        asked.version(&key, "delay", &[]);
        std::thread::sleep(Duration::from_millis(n % 8 * 70));
        let (status, told) = asked.reschedule(&key, "", &json!({"delay": "3h"}));
        assert_eq!((status, outcome(&told)), (200, plain("replaced")), "{n}: {told}");
    }
    process.stop_well();
}

fn another_time_is_given_at_once_to_what_kafka_has_acknowledged(mode: Mode) {
    let fixture = Fixture::with("versions-at-once", |request| {
        request.lanes = Some(2);
        request.further_intakes = vec!["more".to_owned()];
    });
    let target = fixture.target("out", 2);
    let mut process = fixture.launch(mode).config("[intakes.more]\n").start();
    let producer = fixture.producer();
    let asked = Asked::new(&process);
    for n in 0..12_u64 {
        // Of either intake; every other one was made, and cancelled, before.
        let intake = match n % 4 {
            0 | 1 => fixture.names.intake(),
            _ => fixture.names.further_intake("more"),
        };
        let key = format!("k{n}");
        if n % 2 == 1 {
            producer.send_one(&fixture.names.intake(), &timer(&target, &key, "before", HOUR));
            asked.version(&key, "delay", &[]);
            assert_eq!(asked.cancel(&key, None), plain("cancelled"), "{n}");
        }
        producer.send_one(&intake, &timer(&target, &key, "v", HOUR));
        // While its index is behind, as on a busy machine, the instance says so, and to ask again.
        let (status, told) = eventually("it is known", || {
            let (status, told) = asked.reschedule(&key, "", &json!({"delay": "3h"}));
            if status == 503 { Err(told.to_string()) } else { Ok((status, told)) }
        });
        assert_eq!((status, outcome(&told)), (200, plain("replaced")), "{n}: {told}");
    }
    // What there is not, or is not pending, is said as before.
    let (status, told) = asked.reschedule("never", "", &json!({"delay": "3h"}));
    assert_eq!((status, told["code"].as_str()), (404, Some("unknown_timer")), "{told}");
    assert_eq!(asked.cancel("k0", None), plain("cancelled"));
    let (status, told) = asked.reschedule("k0", "", &json!({"delay": "3h"}));
    let seen = (status, told["code"].as_str(), told["state"].as_str());
    assert_eq!(seen, (409, Some("not_pending"), Some("cancelled")), "{told}");
    process.stop_well();
}

fn who_has_just_taken_a_lane_over_does_not_say_that_there_is_no_such_timer(mode: Mode) {
    let fixture = fixture("versions-behind", mode);
    let target = fixture.target("out", 2);
    let producer = fixture.producer();
    let mut first = fixture.start(mode);
    first.stop_well();
    // Nobody runs: all of this stands in the intake and is not decided. The last one comes last.
    let (intake, last) = (fixture.names.intake(), "k4999");
    for n in 0..5_000_u64 {
        producer.send(&intake, &timer(&target, &format!("k{n}"), "v", HOUR));
    }
    producer.acks();
    let mut process = fixture.start(mode);
    let asked = Asked::new(&process);
    let path = format!("/v1/timers/i?key={last}");
    let mut seen = BTreeMap::<u16, usize>::new();
    eventually("it is known", || {
        let (status, told) = asked.once("GET", &path, None);
        *seen.entry(status).or_default() += 1;
        assert!([200, 503].contains(&status), "{told}");
        if status == 200 { Ok(()) } else { Err(told.to_string()) }
    });
    println!("{seen:?}");
    let (status, told) = asked.ask("GET", "/v1/timers/i?key=never", None);
    assert_eq!((status, told["code"].as_str()), (404, Some("unknown_timer")), "{told}");
    process.stop_well();
}

fn a_timer_without_a_key_is_not_the_one_whose_key_is_its_id(mode: Mode) {
    let fixture = fixture("versions-keyless", mode);
    let target = fixture.target("out", 2);
    let mut process = fixture.start(mode);
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    let asked = Asked::new(&process);
    let keyless = out("keyless").header("x-delay-id", "i").delay(6_000).to(&target);
    producer.send_one(&intake, &keyless);
    producer.send_one(&intake, &timer(&target, "i", "keyed", 6_000));
    asked.version("i", "delay", &[]);
    // Each may stand in a lane of its own, and until its lane is read there is only the other one.
    let told = eventually("the one without a key is known", || {
        let (status, told) = asked.ask("GET", "/v1/timers/i", None);
        if status == 200 { Ok(told) } else { Err(told.to_string()) }
    });
    assert_eq!((&told["key"], &told["state"]), (&Value::Null, &json!("delay")), "{told}");
    assert_eq!(asked.cancel("i", None), plain("cancelled"));
    let (_, told) = asked.ask("GET", "/v1/timers/i", None);
    assert_eq!(told["state"], "delay", "it is another one");
    let mut log = Log::open(&fixture, &target);
    log.count(1);
    fixture.wait_until_nothing_is_pending();
    let seen: Vec<String> = whole(&fixture, &target).iter().map(|rec| rec.text()).collect();
    assert_eq!(seen, ["keyless"]);
    process.stop_well();
}

fn a_cancel_that_kafka_had_already_is_answered_and_another_time_may_be_asked_for_again(mode: Mode) {
    let fixture = fixture("versions-twice", mode);
    let target = fixture.target("out", 2);
    // The first report of each kind says neither offset nor time, as librdkafka's of a duplicate.
    let twice = "acknowledged_duplicate=2*return->off";
    let mut process = fixture.launch(mode).env("FAILPOINTS", twice).start();
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    let asked = Asked::new(&process);
    let made = ["cancelled", "put-off"].map(|key| {
        producer.send_one(&intake, &timer(&target, key, "v", HOUR));
        asked.version(key, "delay", &[])
    });
    let path = "/v1/timers/i?key=cancelled&wait=20s";
    let (status, told) = asked.ask("DELETE", path, None);
    assert_eq!((status, outcome(&told)), (200, plain("cancelled")), "its answer is found");
    // It is found where it stands. A second one would end also what is made between the two.
    let is_cancel = |rec: &&Rec| rec.header("x-delay-action").as_deref() == Some("cancel");
    let cancels = whole(&fixture, &intake).iter().filter(is_cancel).count();
    assert_eq!(cancels, 1, "it is written once");
    let (status, told) = asked.reschedule("put-off", "", &json!({"delay": "2h"}));
    assert_eq!((status, &told["code"]), (503, &json!("kafka_away")), "{told}");
    asked.version("put-off", "delay", &[&made[1]]);
    let (status, told) = asked.reschedule("put-off", "", &json!({"delay": "3h"}));
    assert_eq!((status, outcome(&told)), (200, plain("replaced")), "{told}");
    process.stop_well();
}
