//! Requests for the lanes of an instance that was killed, before another one has them. A cancel is written and decided
//! all the same, by whichever way it comes. A request that needs the owner is refused in time.

use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use waterclock::engine::murmur2;

use crate::support::{
    Fixture, Mode, Out, PATIENCE, Rec, Told, ask, eventually, in_both_modes, out, patient,
    start_all, waterclock, whole,
};

in_both_modes!(a_cancel_for_the_lanes_of_a_killed_instance_is_written_at_once_and_decided);

const LANES: u16 = 2;
/// A timer that is not cancelled is due so long after it was submitted.
const DUE: Duration = Duration::from_secs(30);
/// What an answer may take beyond its wait, as docs/http-api.md says, and what this machine may take beyond that.
const GRACE: Duration = Duration::from_secs(2);
const SLACK: Duration = Duration::from_secs(1);

/// Names of a lane: keys, and ids that stand for one.
fn names_of(prefix: &str, lane: u16, count: usize) -> Vec<String> {
    let all = (0..).map(|n| format!("{prefix}-{n}"));
    all.filter(|name| murmur2::partition(name.as_bytes(), LANES) == lane).take(count).collect()
}

fn timer(target: &str, key: Option<&str>, id: &str) -> Out {
    let due = patient(DUE).as_millis();
    let record = out(key.unwrap_or(id)).header("x-delay-id", id).delay(due).to(target);
    Out { key: key.map(|key| key.as_bytes().to_vec()), ..record }
}

fn path(key: &str, query: &str) -> String {
    format!("/v1/timers/i?key={key}{query}")
}

fn cli(fixture: &Fixture, arguments: &[&str]) -> Output {
    let mut command = waterclock();
    command.args(["--brokers", &fixture.connection.brokers, "--namespace", fixture.namespace()]);
    command.args(arguments).output().expect("the binary runs")
}

/// A cancel by the command line: the code that it ends with, and what it says.
fn cancel_by_cli(fixture: &Fixture, key: &str, wait: &str) -> (Option<i32>, String) {
    let told = cli(fixture, &["cancel", "i", "--key", key, "--wait", wait]);
    let word = String::from_utf8_lossy(&told.stdout).trim().to_owned();
    (told.status.code(), format!("{word}{}", String::from_utf8_lossy(&told.stderr)))
}

fn a_cancel_for_the_lanes_of_a_killed_instance_is_written_at_once_and_decided(mode: Mode) {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    let fixture = Fixture::with(&format!("killed-{short}"), |request| request.lanes = Some(LANES));
    let target = fixture.target("out", 1);
    let [mut a, mut b] = start_all(["a", "b"].map(|data| fixture.launch(mode).data(data)));
    eventually("each has a lane and knows the other", || {
        let own = [a.lanes(), b.lanes()];
        let told = [a.get("/v1/timers")?.0, b.get("/v1/timers")?.0];
        if (own, told) == ([1, 1], [200, 200]) { Ok(()) } else { Err(format!("{own:?} {told:?}")) }
    });
    let lane = fixture.lane_of(&b);
    let keys = names_of("key", lane, 12);
    let keyless = names_of("id", lane, 1).remove(0);
    let own = names_of("own", 1 - lane, 1).remove(0);
    let producer = fixture.producer();
    for key in keys.iter().chain([&own]) {
        producer.send_one(&fixture.names.intake(), &timer(&target, Some(key), "i"));
    }
    producer.send_one(&fixture.names.intake(), &timer(&target, None, &keyless));
    let find = |path: &str| {
        eventually("it is known", || match ask(&a, "GET", path, None) {
            Told { status: 200, body, .. } => Ok(body),
            Told { body, .. } => Err(body.to_string()),
        })
    };
    let versions: Vec<Value> = keys.iter().map(|key| find(&path(key, ""))).collect();
    find(&path(&own, ""));
    find(&format!("/v1/timers/{keyless}"));
    let version = |n: usize| versions[n]["version"].as_str().expect("a version").to_owned();

    b.kill();
    let killed = Instant::now();
    let began = || Duration::from_millis(killed.elapsed().as_millis() as u64);
    let names = |keys: &[&String], wait: &str| {
        let names: Vec<Value> = keys.iter().map(|key| json!({ "id": "i", "key": key })).collect();
        json!({ "timers": names, "wait": wait })
    };
    let at_once = |method: &str, path: &str, body: Option<&Value>| {
        let told = ask(&a, method, path, body);
        println!("{:?}: {method} {path}: {} {} {:?}", began(), told.status, told.body, told.took);
        assert!(told.took < GRACE + patient(SLACK), "{method} {path} took {:?}", told.took);
        told
    };
    // At once: each is written, and nothing is decided yet.
    let of = version(1);
    #[rustfmt::skip]
    let pending = [
        path(&keys[0], "&wait=0s"),
        path(&keys[1], &format!("&wait=0s&version={of}")),
        format!("/v1/timers/{keyless}?wait=0s"),
    ];
    let mut again = Vec::new();
    for path in &pending {
        let told = at_once("DELETE", path, None);
        let seen = (told.status, &told.body["outcome"]);
        assert_eq!(seen, (202, &json!("pending")), "{path}: {}", told.body);
        again.push(told.body["again"].as_str().expect("where to ask again").to_owned());
    }
    let batch = names(&[&keys[2], &own, &keys[3]], "0s");
    let told = at_once("POST", "/v1/timers:batchCancel", Some(&batch));
    let outcome = |n: usize| told.body["timers"][n]["outcome"].clone();
    assert_eq!((outcome(0), outcome(2)), (json!("pending"), json!("pending")), "{}", told.body);
    assert!(["pending", "cancelled"].map(Value::from).contains(&outcome(1)), "{}", told.body);
    for n in [0, 2] {
        let path = told.body["timers"][n]["again"].as_str().expect("where to ask again");
        again.push(path.to_owned());
    }
    let told = at_once("GET", &format!("{}?wait=0s", again[0]), None);
    let seen = (told.status, &told.body["outcome"]);
    assert_eq!(seen, (202, &json!("pending")), "{}", told.body);
    // Another time needs the owner, and is refused: nothing is done.
    let told = at_once("PATCH", &path(&keys[11], "&wait=0s"), Some(&json!({ "delay": "1h" })));
    let seen = (told.status, &told.body["code"]);
    assert_eq!(seen, (503, &json!("lane_moving")), "{}", told.body);
    let told = at_once("GET", &path(&keys[11], ""), None);
    let seen = (told.status, &told.body["code"]);
    assert_eq!(seen, (503, &json!("lane_moving")), "{}", told.body);
    let told = cancel_by_cli(&fixture, &keys[4], "0s");
    println!("{:?}: by the command line: {told:?}", began());
    assert!(told.0 == Some(75) && told.1.starts_with("pending"), "{told:?}");

    // A waiting caller gets the decision once another process has the lane.
    let wait = format!("{}s", patient(Duration::from_secs(30)).as_secs().min(60));
    let (asked, fixture, wait) = (&a, &fixture, wait.as_str());
    std::thread::scope(|scope| {
        for key in &keys[5..7] {
            scope.spawn(move || {
                let told = ask(asked, "DELETE", &path(key, &format!("&wait={wait}")), None);
                println!("{key}: {} {} {:?}", told.status, told.body, told.took);
                let seen = (told.status, &told.body["outcome"]);
                assert_eq!(seen, (200, &json!("cancelled")), "{}", told.body);
            });
        }
        let two = names(&[&keys[7], &keys[8]], wait);
        scope.spawn(move || {
            let told = ask(asked, "POST", "/v1/timers:batchCancel", Some(&two));
            let outcomes = [0, 1].map(|n| told.body["timers"][n]["outcome"].clone());
            assert_eq!(outcomes, [json!("cancelled"), json!("cancelled")], "{}", told.body);
        });
        let key = &keys[9];
        scope.spawn(move || {
            let told = cancel_by_cli(fixture, key, wait);
            assert_eq!(told, (Some(0), "cancelled".to_owned()), "by the command line");
        });
        for path in &again {
            scope.spawn(move || {
                let told = ask(asked, "GET", &format!("{path}?wait={wait}"), None);
                let seen = (told.status, &told.body["outcome"]);
                assert_eq!(seen, (200, &json!("cancelled")), "{path}: {}", told.body);
            });
        }
    });
    println!("decided {:?} after the kill", began());

    let state = |path: &str| find(path)["state"].clone();
    for key in keys[..10].iter().chain([&own]) {
        assert_eq!(state(&path(key, "")), "cancelled", "{key}");
    }
    assert_eq!(state(&format!("/v1/timers/{keyless}")), "cancelled");
    let left = find(&path(&keys[11], ""));
    assert_eq!(left["version"], version(11), "it was not given another time");
    // A timer that was reported as cancelled is never seen; all others are.
    fixture.wait_until_nothing_is_pending_within(DUE + PATIENCE);
    a.stop_well();
    let mut seen: Vec<String> = whole(fixture, &target).iter().map(Rec::text).collect();
    seen.sort();
    let mut want = keys[10..].to_vec();
    want.sort();
    assert_eq!(seen, want);
}
