//! The Rust client on a real Kafka, with instances that run: where it writes, and which answers it gets.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use rdkafka::producer::{BaseProducer, BaseRecord};
use tokio::runtime::Runtime;
use waterclock::client::{
    Client, ClientConfig, Delayed, Error, Filter, Message, Outcome, Rescheduled, Timer,
};
use waterclock::engine::murmur2;

use crate::support::{
    Fixture, Log, Mode, PATIENCE, Rec, eventually_within, free_address, start_all, whole,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn config(fixture: &Fixture) -> ClientConfig {
    ClientConfig {
        namespace: fixture.namespace().to_owned(),
        // Lanes may move for as long as a session lasts.
        within: Duration::from_secs(30),
        ..ClientConfig::new(&*fixture.connection.brokers)
    }
}

fn connect(runtime: &Runtime, config: ClientConfig) -> Client {
    runtime.block_on(Client::connect(config)).expect("connected")
}

fn texts(records: &[Rec]) -> Vec<String> {
    let mut texts: Vec<String> = records.iter().map(Rec::text).collect();
    texts.sort();
    texts
}

/// Many instances say something of themselves more often than a fetch waits for.
#[test]
fn a_client_knows_that_it_is_up_to_date_while_many_instances_write_to_meta() {
    let fixture = Fixture::new("client-busy");
    let target = fixture.target("out", 3);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let runtime = runtime();
    let client = connect(&runtime, config(&fixture));
    let producer: BaseProducer = fixture.client().create().expect("a producer");
    let meta = fixture.names.meta();
    let began = Instant::now();
    let tier = fixture.names.tier(waterclock::engine::Millis(2_000));
    let delayed = Delayed::to(&*target).key("k").value("v").after(Duration::from_secs(2));
    while began.elapsed() < Duration::from_secs(8) {
        let farewell: BaseRecord<'_, str, str> =
            BaseRecord::to(&meta).partition(0).key("member/nobody");
        producer.send(farewell).expect("enqueued");
        producer.poll(Duration::from_millis(20));
    }
    let sent = runtime.block_on(client.send(&delayed)).expect("sent");
    assert_eq!(sent.topic, tier, "it does not know whether the ladder is the one in force");
    process.stop_well();
}

#[test]
fn a_delay_of_a_hold_goes_straight_to_its_tier_and_all_else_to_the_intake() {
    let fixture = Fixture::new("client-tier");
    let target = fixture.target("out", 3);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let runtime = runtime();
    let client = connect(&runtime, config(&fixture));
    let to = |text: &str| Delayed::to(&*target).key("k").value(text);
    let (two, three) = (Duration::from_secs(2), Duration::from_secs(3));
    let tier = fixture.names.tier(waterclock::engine::Millis(2_000));
    let intake = fixture.names.intake();
    let cases = [
        ("a hold", to("a hold").after(two), &tier),
        ("no hold", to("no hold").after(three), &intake),
        ("a hold, but an id", to("a hold, but an id").after(two).id("i"), &intake),
    ];
    let lane = i32::from(murmur2::partition(b"k", fixture.lanes()));
    for (why, delayed, topic) in &cases {
        let sent = runtime.block_on(client.send(delayed)).expect(why);
        assert_eq!((&sent.topic, sent.partition), (*topic, lane), "{why}");
        let delay = if *why == "no hold" { three } else { two };
        assert_eq!(sent.due, sent.appended.map(|appended| appended + delay), "{why}");
    }
    Log::open(&fixture, &target).count(3);
    process.stop_well();
    assert_eq!(texts(&whole(&fixture, &target)), ["a hold", "a hold, but an id", "no hold"]);
}

#[test]
fn nothing_goes_straight_to_a_tier_while_no_instance_is_heard() {
    let fixture = Fixture::new("client-stale");
    let runtime = runtime();
    let client = connect(&runtime, config(&fixture));
    let delayed = Delayed::to(fixture.name("out")).after(Duration::from_secs(2));
    eventually_within(PATIENCE, "what is known is too old", || {
        let sent = runtime.block_on(client.send(&delayed)).expect("sent");
        if sent.topic == fixture.names.intake() { Ok(()) } else { Err(sent.topic) }
    });
}

#[test]
fn a_cancel_is_answered_and_the_answer_is_true() {
    let fixture = Fixture::new("client-cancel");
    let target = fixture.target("out", 3);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let runtime = runtime();
    let client = connect(&runtime, config(&fixture));
    runtime.block_on(async {
        let to = |text: &str| Delayed::to(&*target).value(text);
        for text in ["keyed", "keyed again"] {
            client.send(&to(text).key("k").after(HOUR).id("a/b c")).await.expect("sent");
        }
        client.send(&to("keyless").after(HOUR).id("keyless").label("l")).await.expect("sent");
        client.send(&to("arrives").key("k").after(Duration::ZERO).id("now")).await.expect("sent");

        // Its owner may still have to read it.
        let known = async {
            loop {
                if let Some(found) = client.find(None, "keyless").await.expect("asked") {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let found = tokio::time::timeout(PATIENCE, known).await.expect("pending");
        assert_eq!((&*found.state, found.target.as_deref()), ("delay", Some(&*target)));
        assert_eq!(found.label.as_deref(), Some("l"));

        for _ in 0..2 {
            let outcome = client.cancel(Some(b"k"), "a/b c").await.expect("answered");
            assert_eq!(outcome, Outcome::Cancelled, "asked again, answered again");
        }
        let version = found.version.expect("it has one");
        for (version, want) in [
            ("1-1x", Outcome::Unknown { state: None, code: None }),
            (&*version, Outcome::Cancelled),
        ] {
            let outcome = client.cancel_version(None, "keyless", version).await.expect("answered");
            assert_eq!(outcome, want, "{version}");
        }
        let outcome = client.cancel(Some(b"k"), "never was").await.expect("answered");
        assert!(matches!(outcome, Outcome::Unknown { .. }), "{outcome:?}");
        assert_eq!(client.find(Some(b"k"), "nor was this").await.expect("asked"), None);

        tokio::task::block_in_place(|| Log::open(&fixture, &target).count(1).len());
        let outcome = client.cancel(Some(b"k"), "now").await.expect("answered");
        assert_eq!(outcome, Outcome::Delivered);
        let found = client.find(Some(b"k"), "a/b c").await.expect("asked").expect("remembered");
        assert_eq!(found.state, "cancelled");

        let refused = client.cancel(None, "").await;
        assert!(matches!(refused, Err(Error::Refused { status: 400, .. })), "{refused:?}");
    });
    process.stop_well();
    assert_eq!(texts(&whole(&fixture, &target)), ["arrives"]);
}

#[test]
fn timers_of_a_further_intake_are_listed_put_off_and_cancelled_together() {
    let fixture = Fixture::with("client-many", |request| {
        request.further_intakes = vec!["more".to_owned()];
    });
    let target = fixture.target("out", 3);
    let mut process = fixture.launch(Mode::ExactlyOnce).config("[intakes.more]\n").start();
    let runtime = runtime();
    let further = ClientConfig { intake: Some("more".to_owned()), ..config(&fixture) };
    let client = connect(&runtime, further);
    runtime.block_on(async {
        for n in 0..5 {
            // The hold of a tier, and no id: in the main intake it would go straight there.
            let timer = Delayed::to(&*target).key("k").value(format!("{n}")).after(HOUR);
            let sent = client.send(&timer.id(format!("i{n}")).label("l")).await.expect("sent");
            assert_eq!(sent.topic, fixture.names.further_intake("more"));
        }
        let plain = Delayed::to(&*target).value("plain").after(HOUR);
        let sent = client.send(&plain).await.expect("sent");
        assert_eq!(sent.topic, fixture.names.further_intake("more"));

        let filter = Filter { label: Some("l".to_owned()), ..Filter::default() };
        let ids = |timers: &[Timer]| -> Vec<String> {
            timers.iter().map(|timer| timer.id.clone()).collect()
        };
        let known = async {
            loop {
                let timers = client.list(&filter).await.expect("asked");
                if timers.len() == 5 {
                    return timers;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let timers = tokio::time::timeout(PATIENCE, known).await.expect("all are known");
        let due = UNIX_EPOCH + Duration::from_millis(timers[0].due);
        let limited = client.list(&Filter { limit: Some(2), ..filter.clone() }).await;
        assert_eq!(ids(&limited.expect("asked")), ids(&timers[..2]), "the earliest");
        let later = Filter { due_after: Some(due + HOUR), ..filter.clone() };
        assert_eq!(client.list(&later).await.expect("asked"), Vec::new());

        let (first, version) = (&*timers[0].id, timers[0].version.as_deref());
        let (later, soon) = (due + HOUR, due - HOUR + Duration::from_secs(2));
        for (version, due, want) in [
            (version, later, Rescheduled::Replaced),
            (version, later, Rescheduled::Superseded),
            (None, soon, Rescheduled::Replaced),
        ] {
            let put_off = client.reschedule(Some(b"k"), first, version, due).await;
            assert_eq!(put_off.expect("answered"), want, "{version:?}");
        }
        let nobody = client.reschedule(Some(b"k"), "nobody", None, later).await;
        assert_eq!(nobody.expect("answered"), Rescheduled::NotPending);
        let far = client.reschedule(Some(b"k"), "i4", None, due + 9_600 * HOUR).await;
        assert!(matches!(far, Err(Error::Refused { .. })), "{far:?}");
        tokio::task::block_in_place(|| Log::open(&fixture, &target).count(1).len());
        let too_late = client.reschedule(Some(b"k"), first, None, later).await;
        assert_eq!(too_late.expect("answered"), Rescheduled::NotPending);

        let others: Vec<&str> = timers[1..].iter().map(|timer| &*timer.id).collect();
        let mut names: Vec<(Option<&[u8]>, &str)> =
            others.iter().map(|id| (Some(&b"k"[..]), *id)).collect();
        names.extend([(Some(&b"\xff"[..]), "never was"), (None, "")]);
        let mut outcomes = client.cancel_all(&names).await.expect("answered");
        let wrong = outcomes.pop().expect("the last");
        assert!(matches!(wrong, Err(Error::Refused { status: 400, .. })), "{wrong:?}");
        let never = outcomes.pop().expect("the one before").expect("answered");
        assert_eq!(never, Outcome::Unknown { state: None, code: None });
        for outcome in outcomes {
            assert_eq!(outcome.expect("answered"), Outcome::Cancelled);
        }
    });
    process.stop_well();
    assert_eq!(whole(&fixture, &target).len(), 1, "the one that was due soon");
}

#[test]
fn a_replaced_timer_arrives_as_its_last_version_at_its_last_time() {
    let fixture = Fixture::new("client-replace");
    let target = fixture.target("out", 3);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let runtime = runtime();
    let client = connect(&runtime, config(&fixture));
    let timer = |text: &str| Delayed::to(&*target).key("k").value(text).id("i");
    runtime.block_on(async {
        client.send(&timer("old").after(Duration::from_secs(3))).await.expect("sent");
        client.replace(&timer("newer").after(HOUR)).await.expect("sent");
        client.replace(&timer("newest").after(Duration::from_secs(4))).await.expect("sent");
        // No pending one of this name: it is made.
        let other = Delayed::to(&*target).value("made").id("other").after(Duration::from_secs(1));
        client.replace(&other).await.expect("sent");
        let without = Delayed::to(&*target).after(HOUR);
        assert!(matches!(client.replace(&without).await, Err(Error::NoId)));
    });
    Log::open(&fixture, &target)
        .until("the newest", |seen| seen.iter().any(|r| r.text() == "newest"));
    process.stop_well();
    assert_eq!(texts(&whole(&fixture, &target)), ["made", "newest"]);
}

#[test]
fn a_consumed_record_comes_again_after_the_same_interval() {
    let fixture = Fixture::new("client-again");
    let target = fixture.target("out", 3);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let runtime = runtime();
    let client = connect(&runtime, config(&fixture));
    let interval = Duration::from_secs(2);
    let first = Delayed::to(&*target).key("k").value("is it there?").header("mine", "1");
    runtime.block_on(client.send(&first.after(interval).trace())).expect("sent");
    let mut log = Log::open(&fixture, &target);
    for round in 1..=3 {
        let record = log.count(round)[round - 1].clone();
        let headers = record.headers.iter().map(|(name, value)| (&name[..], value.as_deref()));
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        let message = Message::new(&target, record.partition, key, value, headers);
        assert_eq!(message.attempt() as usize, round);
        assert_eq!(message.interval(), Some(interval));
        assert_eq!(record.header("mine").as_deref(), Some("1"));
        assert_eq!(record.partition, log.seen[0].partition, "back to the same consumer");
        if round < 3 {
            let sent = runtime.block_on(client.again(&message)).expect("sent");
            assert_eq!(sent.due, sent.appended.map(|appended| appended + interval));
        }
    }
    process.stop_well();
    assert_eq!(whole(&fixture, &target).len(), 3);
}

#[test]
fn any_instance_behind_a_load_balancer_cancels_the_timers_of_all_lanes() {
    let fixture = Fixture::new("client-balanced");
    let target = fixture.target("out", 3);
    let [mut first, mut second] = start_all([
        fixture.launch(Mode::ExactlyOnce).data("a"),
        fixture.launch(Mode::ExactlyOnce).data("b"),
    ]);
    eventually_within(PATIENCE, "both have lanes", || {
        let lanes = (first.lanes(), second.lanes());
        if lanes.0 > 0 && lanes.1 > 0 { Ok(()) } else { Err(format!("{lanes:?}")) }
    });
    let balancer = balance([first.address().unwrap(), second.address().unwrap()]);
    let runtime = runtime();
    let named = ClientConfig { server: Some(format!("http://{balancer}")), ..config(&fixture) };
    let (named, found) = (connect(&runtime, named), connect(&runtime, config(&fixture)));
    runtime.block_on(async {
        for n in 0..12 {
            let key = format!("{n}");
            let timer = Delayed::to(&*target).key(&*key).value(&*key).after(HOUR).id("i");
            named.send(&timer).await.expect("sent");
        }
        for n in 0..12 {
            let client = if n % 2 == 0 { &named } else { &found };
            let outcome = client.cancel(Some(format!("{n}").as_bytes()), "i").await;
            assert_eq!(outcome.expect("answered"), Outcome::Cancelled, "{n}");
        }
    });
    first.kill();
    // Nobody owns its lanes for a while. A caller is asked to wait, or finds nobody, and asks again.
    runtime.block_on(async {
        for n in 0..12 {
            let outcome = found.cancel(Some(format!("{n}").as_bytes()), "i").await;
            assert_eq!(outcome.expect("answered"), Outcome::Cancelled, "{n}");
        }
    });
    second.stop_well();
    assert_eq!(whole(&fixture, &target).len(), 0);
}

/// Passes each connection on to the next of these in turn.
fn balance(upstreams: [String; 2]) -> String {
    let address = free_address();
    let listener = TcpListener::bind(&address).expect("a free port");
    let turn = Arc::new(AtomicUsize::new(0));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let upstream = upstreams[turn.fetch_add(1, Ordering::Relaxed) % 2].clone();
            std::thread::spawn(move || pass(&stream, &upstream));
        }
    });
    address
}

fn pass(down: &TcpStream, upstream: &str) {
    let Ok(up) = TcpStream::connect(upstream) else { return };
    std::thread::scope(|scope| {
        scope.spawn(|| copy(down, &up));
        copy(&up, down);
    });
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    let mut bytes = [0; 4_096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[test]
fn a_namespace_that_is_not_there_is_said_to_be_so() {
    let fixture = Fixture::new("client-nowhere");
    let runtime = runtime();
    let nowhere = ClientConfig { namespace: fixture.name("nowhere"), ..config(&fixture) };
    let error = runtime.block_on(Client::connect(nowhere)).expect_err("nothing was applied");
    assert!(matches!(error, Error::Meta { .. }), "{error:?}");
    let mut strange = config(&fixture);
    strange.kafka.insert("no.such.setting".to_owned(), "1".to_owned());
    let error = runtime.block_on(Client::connect(strange)).expect_err("no such setting");
    assert!(matches!(error, Error::Setting(_)), "{error:?}");

    // There, but nobody runs it.
    let client = connect(&runtime, ClientConfig { within: Duration::ZERO, ..config(&fixture) });
    let error = runtime.block_on(client.cancel(None, "i")).expect_err("nobody to ask");
    assert!(matches!(error, Error::NoInstance { .. }), "{error:?}");
    assert!(error.is_safe_to_repeat());
}
