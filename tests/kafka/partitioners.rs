//! One id, one record, whatever the partitioner. Producers with librdkafka's default partitioner (CRC32) write beside a
//! key's lane, those of Java write into it. The owner of the wrong partition may stand still meanwhile.

use std::time::Duration;

use serde_json::Value;
use waterclock::engine::murmur2;

use crate::support::{
    Fixture, Log, Mode, Out, PATIENCE, Process, Producer, Rec, assert_each_once, client,
    eventually, in_both_modes, out, whole,
};

in_both_modes!(
    a_create_that_is_moved_late_is_not_delivered_beside_what_came_straight,
    a_create_behind_a_cancel_that_is_moved_is_delivered,
    a_create_behind_a_cancel_that_is_moved_is_delivered_in_strict_order_too,
    a_cancel_right_behind_a_create_beside_its_lane_says_nothing_of_what_ended_before,
    a_cancel_waits_for_an_owner_that_stands_still_before_it_says_delivered,
);

const LANES: u16 = 2;
/// Keys of each kind.
const KEYS: usize = 5;
/// The owner of the wrong partition stands still for this long: less than a session.
const STALL: Duration = Duration::from_secs(4);

fn record(target: &str, kind: &str, key: &str, n: usize, delay_ms: u64) -> Out {
    out(format!("{kind} {n}")).key(key).header("x-delay-id", "i").delay(delay_ms).to(target)
}

/// Two members with a lane each, the first of them with a lane of these keys; the other one stands still while this is done.
fn with_a_stall(
    fixture: &Fixture,
    launch: impl Fn(&str) -> Process,
    while_it_stands: impl FnOnce(&Process, Vec<String>),
) -> [Process; 2] {
    let (a, b) = (launch("a"), launch("b"));
    eventually("each has a lane", || match (a.lanes(), b.lanes()) {
        (1, 1) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let lane = fixture.lane_of(&a);
    b.freeze();
    let since = std::time::Instant::now();
    while_it_stands(&a, fixture.astray(lane).take(3 * KEYS).collect());
    std::thread::sleep(STALL.saturating_sub(since.elapsed()));
    b.thaw();
    [a, b]
}

/// Creates by CRC32, then by murmur2 the same again, another one, and a replace; gives what is to arrive.
fn submit_both_ways(fixture: &Fixture, target: &str, keys: &[String]) -> Vec<String> {
    let wrong = Producer::new(fixture, &[("partitioner", "consistent_random")]);
    let right = Producer::new(fixture, &[("partitioner", "murmur2_random")]);
    let intake = fixture.names.intake();
    for (n, key) in keys.iter().enumerate() {
        wrong.send(&intake, &record(target, "wrong", key, n, 1_500));
    }
    wrong.acks();
    let mut want = Vec::new();
    for (n, key) in keys.iter().enumerate() {
        let (kind, action) = match n % 3 {
            // What its producer submits again because it heard nothing.
            0 => ("again", "create"),
            1 => ("another", "create"),
            _ => ("newer", "replace"),
        };
        let delay = if n % 3 == 0 { 1_500 } else { 200 };
        let twin = record(target, kind, key, n, delay).header("x-delay-action", action);
        right.send(&intake, &twin);
        want.push(format!("{kind} {n}"));
    }
    let apart = wrong.acks().into_iter().zip(right.acks());
    assert!(apart.into_iter().all(|(wrong, right)| wrong.partition != right.partition));
    want
}

fn a_create_that_is_moved_late_is_not_delivered_beside_what_came_straight(mode: Mode) {
    let orders = if mode == Mode::ExactlyOnce { &["by-due", "strict"][..] } else { &["by-due"] };
    for order in orders {
        let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
        let fixture = Fixture::with(&format!("one-id-{short}-{order}"), |request| {
            request.lanes = Some(LANES)
        });
        // As Kafka makes topics by default.
        let target = fixture.target_with("out", 3, &[("message.timestamp.type", "CreateTime")]);
        let mut log = Log::open(&fixture, &target);
        let launch =
            |data: &str| fixture.launch(mode).env("WATERCLOCK_ORDER", order).data(data).start();
        let mut want = Vec::new();
        let members = with_a_stall(&fixture, launch, |_, keys| {
            want = submit_both_ways(&fixture, &target, &keys);
            log.count(want.len());
        });
        fixture.wait_until_nothing_is_pending();
        assert_each_once(want, &whole(&fixture, &target));
        for mut member in members {
            member.stop_well();
        }
    }
}

/// Of each key a create, a cancel by the wrong partitioner, and a create again, one acknowledged before the other is written, and
/// in a later millisecond; gives what is to arrive.
fn create_cancel_create(
    fixture: &Fixture,
    target: &str,
    keys: &[String],
    delays: &[(u64, u64)],
) -> Vec<String> {
    let wrong = Producer::new(fixture, &[("partitioner", "consistent_random")]);
    let right = Producer::new(fixture, &[("partitioner", "murmur2_random")]);
    let intake = fixture.names.intake();
    let mut want = Vec::new();
    for (n, (key, (first, second))) in keys.iter().zip(delays.iter().cycle()).enumerate() {
        right.send_one(&intake, &record(target, "first", key, n, *first));
        let cancel = out("").key(key).header("x-delay-id", "i").header("x-delay-action", "cancel");
        // In one millisecond with the create the cancel would count as the first.
        std::thread::sleep(Duration::from_millis(2));
        wrong.send_one(&intake, &cancel);
        right.send_one(&intake, &record(target, "second", key, n, *second));
        want.push(format!("second {n}"));
    }
    want
}

fn a_create_behind_a_cancel_that_is_moved_is_delivered(mode: Mode) {
    each_that_is_made_again_is_delivered(mode, "by-due");
}

fn a_create_behind_a_cancel_that_is_moved_is_delivered_in_strict_order_too(mode: Mode) {
    each_that_is_made_again_is_delivered(mode, "strict");
}

#[track_caller]
fn each_that_is_made_again_is_delivered(mode: Mode, order: &str) {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    let fixture = Fixture::with(&format!("made-again-{short}-{order}"), |request| {
        request.lanes = Some(LANES);
    });
    let [held, past, swift] = ["held", "past", "swift"].map(|name| fixture.target(name, 3));
    let launch = |data: &str| {
        let launch = fixture.launch(mode).env("WATERCLOCK_ORDER", order).data(data);
        // However long the stall takes on a busy machine, it is less than a session.
        launch.env("WATERCLOCK_SESSION_TIMEOUT", "1m").start()
    };
    let (mut want, mut both) = (Vec::new(), Vec::new());
    let members = with_a_stall(&fixture, launch, |_, keys| {
        // The cancel comes before the first would be due; the second is due before that, or after.
        let delays = [(30_000, 30_500), (30_000, 1_000), (9_000, 12_000)];
        want = create_cancel_create(&fixture, &held, &keys[..KEYS], &delays);
        // The first is delivered before the cancel comes; the second is due before that, or after.
        let delays = [(300, 500), (300, 12_000), (300, 300)];
        both = create_cancel_create(&fixture, &past, &keys[KEYS..2 * KEYS], &delays);
        let first: Vec<String> = (0..KEYS).map(|n| format!("first {n}")).collect();
        eventually("the first of each key is delivered before its cancel comes", || {
            let there: Vec<String> = whole(&fixture, &past).iter().map(Rec::text).collect();
            if first.iter().all(|first| there.contains(first)) {
                Ok(())
            } else {
                Err(format!("{there:?}"))
            }
        });
        both.extend(first);
    });
    let lane = fixture.lane_of(&members[0]);
    let keys: Vec<String> = fixture.astray(lane).skip(3 * KEYS).take(KEYS).collect();
    let at_once = create_cancel_create(&fixture, &swift, &keys, &[(2_000, 2_000)]);
    fixture.wait_until_nothing_is_pending();
    assert_each_once(want, &whole(&fixture, &held));
    assert_each_once(both, &whole(&fixture, &past));
    assert_each_once(at_once, &whole(&fixture, &swift));
    for mut member in members {
        member.stop_well();
    }
}

#[test]
fn a_create_that_was_cancelled_before_it_was_moved_is_told_as_cancelled() {
    let fixture = Fixture::with("one-id-cancelled", |request| request.lanes = Some(LANES));
    let target = fixture.target("out", 3);
    let launch = |data: &str| fixture.launch(Mode::ExactlyOnce).data(data).start();
    let client = client(PATIENCE);
    let mut asked = None;
    let members = with_a_stall(&fixture, launch, |a, keys| {
        let wrong = Producer::new(&fixture, &[("partitioner", "consistent_random")]);
        wrong.send_one(&fixture.names.intake(), &record(&target, "wrong", &keys[0], 0, 60_000));
        let url = format!("http://{}/v1/timers/i?key={}", a.address().expect("it serves"), keys[0]);
        eventually("the cancel finds nothing", || {
            let told = client.delete(format!("{url}&wait=20s")).send();
            let told = told.and_then(|told| told.text()).map_err(|error| error.to_string())?;
            if told.contains("\"unknown\"") { Ok(()) } else { Err(told) }
        });
        asked = Some(url);
    });
    let url = asked.expect("it was asked");
    eventually("it is told as cancelled", || {
        let told = client.get(&url).send().map_err(|error| error.to_string())?;
        let (status, body) = (told.status(), told.text().unwrap_or_default());
        if body.contains("\"cancelled\"") { Ok(()) } else { Err(format!("{status}: {body}")) }
    });
    fixture.wait_until_nothing_is_pending();
    assert_each_once(Vec::new(), &whole(&fixture, &target));
    for mut member in members {
        member.stop_well();
    }
}

/// Status and body of an answer.
#[track_caller]
fn asked(client: &reqwest::blocking::Client, method: &str, url: &str) -> (u16, Value) {
    let told = client.request(method.parse().expect("a method"), url).send().expect("it answers");
    let status = told.status().as_u16();
    (status, told.json().expect("JSON"))
}

#[track_caller]
fn wait_until_delivered(client: &reqwest::blocking::Client, url: &str) -> String {
    eventually("it is told as delivered", || {
        let (status, told) = asked(client, "GET", url);
        if told["state"] != "delivered" {
            return Err(format!("{status}: {told}"));
        }
        Ok(told["version"].as_str().expect("a version").to_owned())
    })
}

/// What a cancel comes to in the end, if it was not decided at first.
#[track_caller]
fn in_the_end(client: &reqwest::blocking::Client, base: &str, told: &Value) -> String {
    let word = |told: &Value| told["outcome"].as_str().unwrap_or_default().to_owned();
    let Some(again) = told["again"].as_str() else { return word(told) };
    eventually("it is decided", || {
        let (status, told) = asked(client, "GET", &format!("{base}{again}?wait=5s"));
        if status == 200 { Ok(word(&told)) } else { Err(format!("{status}: {told}")) }
    })
}

fn a_cancel_right_behind_a_create_beside_its_lane_says_nothing_of_what_ended_before(mode: Mode) {
    const ROUNDS: usize = 21;
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    let fixture = Fixture::with(&format!("late-create-{short}"), |request| {
        request.lanes = Some(LANES);
        request.further_intakes = vec!["more".to_owned()];
    });
    let target = fixture.target("out", 2);
    let mut process = fixture.launch(mode).config("[intakes.more]\n").start();
    let base = format!("http://{}", process.address().expect("it serves"));
    let client = client(PATIENCE);
    let (intake, further) = (fixture.names.intake(), fixture.names.further_intake("more"));
    let producer = fixture.producer();
    // With a key, without one, and by another intake.
    let timer = |n: usize, value: &str, delay_ms: u64| {
        let record = out(format!("{value} {n}")).delay(delay_ms).to(&target);
        let (id, key) = (format!("i{n}"), format!("k{n}"));
        let record = record.header("x-delay-id", &id);
        if n % 3 == 1 { (record, id) } else { (record.key(&key), key) }
    };
    let url = |n: usize| match n % 3 {
        1 => format!("{base}/v1/timers/i{n}?"),
        _ => format!("{base}/v1/timers/i{n}?key=k{n}"),
    };
    for n in 0..ROUNDS {
        let (record, of) = timer(n, "first", 100);
        let lane = murmur2::partition(of.as_bytes(), LANES);
        producer.send(&intake, &record.at(i32::from(lane)));
    }
    producer.acks();
    let mut told = Vec::new();
    for n in 0..ROUNDS {
        wait_until_delivered(&client, &url(n));
        let (record, of) = timer(n, "second", 60_000);
        let lane = i32::from(murmur2::partition(of.as_bytes(), LANES));
        if n % 3 == 2 {
            producer.send_one(&further, &record.at(lane));
        } else {
            producer.send_one(&intake, &record.at(1 - lane));
        }
        told.push(asked(&client, "DELETE", &format!("{}&wait=2s", url(n))));
    }
    for (n, (status, told)) in told.iter().enumerate() {
        assert!([200, 202].contains(status), "{n}: {told}");
        let is_of_another = told["outcome"] == "delivered" || told["state"].is_string();
        assert!(!is_of_another, "{n}: it is about what ended before: {told}");
        assert_eq!(in_the_end(&client, &base, told), "cancelled", "{n}");
    }
    // A timer that ended and has no other beside it is reported as that, with and without its version.
    let (record, _) = timer(ROUNDS, "first", 100);
    producer.send_one(&intake, &record);
    let url = url(ROUNDS);
    let version = wait_until_delivered(&client, &url);
    for named in [String::new(), format!("&version={version}")] {
        let (status, told) = asked(&client, "DELETE", &format!("{url}&wait=20s{named}"));
        assert_eq!((status, told["outcome"].as_str()), (200, Some("delivered")), "{told}");
    }
    process.stop_well();
    assert_each_once((0..=ROUNDS).map(|n| format!("first {n}")), &whole(&fixture, &target));
}

fn a_cancel_waits_for_an_owner_that_stands_still_before_it_says_delivered(mode: Mode) {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    let fixture = Fixture::with(&format!("late-owner-{short}"), |request| {
        request.lanes = Some(LANES);
    });
    let target = fixture.target("out", 3);
    let launch = |data: &str| fixture.launch(mode).data(data).start();
    let client = client(PATIENCE);
    let (mut base, mut pending) = (String::new(), Value::Null);
    let members = with_a_stall(&fixture, launch, |a, keys| {
        let wrong = Producer::new(&fixture, &[("partitioner", "consistent_random")]);
        let (intake, key) = (fixture.names.intake(), &keys[0]);
        base = format!("http://{}", a.address().expect("it serves"));
        let url = format!("{base}/v1/timers/i?key={key}");
        fixture.producer().send_one(&intake, &record(&target, "first", key, 0, 100));
        let version = wait_until_delivered(&client, &url);
        wrong.send_one(&intake, &record(&target, "second", key, 0, 60_000));
        let (status, told) = asked(&client, "DELETE", &format!("{url}&wait=500ms"));
        assert_eq!((status, told["outcome"].as_str()), (202, Some("pending")), "{told}");
        pending = told;
        // Nobody else's record is of that version.
        let named = format!("{url}&version={version}&wait=500ms");
        let (status, told) = asked(&client, "DELETE", &named);
        assert_eq!((status, told["outcome"].as_str()), (200, Some("delivered")), "{told}");
    });
    assert_eq!(in_the_end(&client, &base, &pending), "cancelled");
    fixture.wait_until_nothing_is_pending();
    assert_each_once(["first 0".to_owned()], &whole(&fixture, &target));
    for mut member in members {
        member.stop_well();
    }
}
