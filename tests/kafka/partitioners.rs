//! One id, one record, whatever the partitioner: producers of librdkafka's default one (CRC32) write beside a key's lane, those
//! of Java's into it, and whoever owns the wrong partition may stand still meanwhile.

use std::time::Duration;

use waterclock::engine::murmur2;
use waterclock::kafka::Roster;

use crate::support::{
    Fixture, Log, Mode, Out, PATIENCE, Process, Producer, assert_each_once, eventually,
    in_both_modes, out, whole,
};

in_both_modes!(
    a_create_that_is_moved_late_is_not_delivered_beside_what_came_straight,
    a_create_behind_a_cancel_that_is_moved_is_delivered,
);

const LANES: u16 = 2;
/// Keys of each kind.
const KEYS: usize = 5;
/// The owner of the wrong partition stands still for this long: less than a session.
const STALL: Duration = Duration::from_secs(4);

/// What librdkafka's `consistent_random` hashes a key with.
fn crc32(key: &str) -> u32 {
    let of = |crc: u32, byte: u8| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 }
        })
    };
    !key.bytes().fold(!0, of)
}

/// Keys whose lane is this one, and which librdkafka's default partitioner writes to the other.
fn astray(lane: u16) -> impl Iterator<Item = String> {
    (0..).map(|n| format!("key-{n}")).filter(move |key| {
        let other = crc32(key) % u32::from(LANES) != u32::from(lane);
        murmur2::partition(key.as_bytes(), LANES) == lane && other
    })
}

/// The lane that a process runs.
fn lane_of(fixture: &Fixture, process: &Process) -> u16 {
    let (meta, address) = (fixture.names.meta(), process.address().expect("it serves"));
    eventually("it has a lane", || {
        let roster = Roster::read(&fixture.connection, &meta, fixture.namespace());
        let roster = roster.map_err(|error| error.to_string())?;
        let member = roster.members().find(|member| member.address == address);
        match member.map(|member| &member.lanes[..]) {
            Some([lane]) => Ok(lane.0),
            other => Err(format!("{other:?}")),
        }
    })
}

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
    let lane = lane_of(fixture, &a);
    b.freeze();
    let since = std::time::Instant::now();
    while_it_stands(&a, astray(lane).take(3 * KEYS).collect());
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

/// Of each key a create, a cancel by the wrong partitioner, and a create again, one acknowledged before the other is written;
/// gives what is to arrive.
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
        wrong.send_one(&intake, &cancel);
        right.send_one(&intake, &record(target, "second", key, n, *second));
        want.push(format!("second {n}"));
    }
    want
}

fn a_create_behind_a_cancel_that_is_moved_is_delivered(mode: Mode) {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    let fixture =
        Fixture::with(&format!("made-again-{short}"), |request| request.lanes = Some(LANES));
    let (held, swift) = (fixture.target("held", 3), fixture.target("swift", 3));
    let launch = |data: &str| fixture.launch(mode).data(data).start();
    let mut want = Vec::new();
    let members = with_a_stall(&fixture, launch, |_, keys| {
        // The cancel comes before the first would be due; the second is due before that, or after.
        let delays = [(30_000, 30_500), (30_000, 1_000), (9_000, 12_000)];
        want = create_cancel_create(&fixture, &held, &keys[..KEYS], &delays);
    });
    let lane = lane_of(&fixture, &members[0]);
    let keys: Vec<String> = astray(lane).skip(3 * KEYS).take(KEYS).collect();
    let at_once = create_cancel_create(&fixture, &swift, &keys, &[(2_000, 2_000)]);
    fixture.wait_until_nothing_is_pending();
    assert_each_once(want, &whole(&fixture, &held));
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
    let client = reqwest::blocking::Client::builder().timeout(PATIENCE).build().expect("a client");
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
