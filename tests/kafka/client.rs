//! The Rust client on a real Kafka, with instances that run: where it writes, and what it is told.

use std::time::Duration;

use tokio::runtime::Runtime;
use waterclock::client::{Client, ClientConfig, Delayed, Error, Message};
use waterclock::engine::murmur2;

use crate::support::{Fixture, Log, Mode, PATIENCE, Rec, eventually_within, whole};

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
        assert_eq!(sent.due, Some(sent.appended + delay), "{why}");
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
            assert_eq!(sent.due, Some(sent.appended + interval));
        }
    }
    process.stop_well();
    assert_eq!(whole(&fixture, &target).len(), 3);
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
