//! What Kafka refuses after every check of ours: found out, put to the dead letters, and hardly felt by its neighbours.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;

use crate::support::{
    Fixture, Log, Mode, Out, Process, Producer, Rec, Right, allow_only, assert_promise, eventually,
    in_both_modes, out, whole,
};

in_both_modes!(
    a_target_that_we_may_not_write_to_costs_one_failure_and_not_one_per_record,
    a_target_that_we_may_not_see_is_a_dead_letter,
    a_limit_that_is_lowered_under_a_record_stops_nothing,
    #[cfg_attr(not(feature = "failpoints"), ignore = "needs --features failpoints")]
    one_record_of_two_that_a_broker_refuses_does_not_hold_the_other_up,
    #[cfg_attr(not(feature = "failpoints"), ignore = "needs --features failpoints")]
    some_records_among_many_that_a_broker_refuses_are_found,
);

/// Neighbours are delivered within this, though other tests run beside this one; alone it takes two seconds.
const SOON: Duration = Duration::from_secs(20);

fn fixture(test: &str, mode: Mode) -> Fixture {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    Fixture::new(&format!("{test}-{short}"))
}

/// Code and value of every dead letter, in the order of the values.
fn dead(fixture: &Fixture) -> Vec<(String, String)> {
    let letters = whole(fixture, &fixture.names.dead());
    let of = |rec: &Rec| (rec.header("x-delay-error-code").unwrap_or_default(), rec.text());
    let mut dead: Vec<_> = letters.iter().map(of).collect();
    dead.sort();
    dead.dedup();
    dead
}

fn coded(code: &str, ids: impl IntoIterator<Item = String>) -> Vec<(String, String)> {
    let mut dead: Vec<_> = ids.into_iter().map(|id| (code.to_owned(), id)).collect();
    dead.sort();
    dead
}

fn renewed(process: &Process) -> f64 {
    process.metric("waterclock_producers_renewed_total")
}

fn a_target_that_we_may_not_write_to_costs_one_failure_and_not_one_per_record(mode: Mode) {
    let fixture = fixture("denied", mode);
    let good = fixture.target("good", 2);
    let closed = fixture.target("closed", 2);
    let rights = [Right::Describe, Right::DescribeConfigs, Right::Read, Right::Delete];
    allow_only(&closed, &rights);
    let plain = Producer::new(&fixture, &[("message.timeout.ms", "5000")]);
    eventually("the broker knows of the rights", || {
        plain.send(&closed, &out("probe").key("k"));
        match plain.settled().pop().flatten() {
            Some(Err(why)) if why.contains("TopicAuthorizationFailed") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    let mut process = fixture.start(mode);
    let before = renewed(&process);
    let producer = fixture.producer();
    for n in 0..40 {
        let target = if n % 2 == 0 { &good } else { &closed };
        let record = out(format!("{n}")).key(format!("k{}", n % 5)).delay(1_000).to(target);
        producer.send(&fixture.names.intake(), &record);
    }
    producer.acks();
    Log::open(&fixture, &good).until_within(SOON, "the neighbours", |seen| seen.len() >= 20);
    Log::open(&fixture, &fixture.names.dead()).ids(20);
    // Known by now: nothing more is tried there for half a minute.
    let failures = renewed(&process);
    for n in 40..60 {
        let record = out(format!("{n}")).key("k").delay(10).to(&closed);
        producer.send(&fixture.names.intake(), &record);
    }
    producer.acks();
    Log::open(&fixture, &fixture.names.dead()).ids(40);
    assert_eq!(renewed(&process), failures, "what is known costs no failure");
    assert!(failures - before <= 6.0, "{} failures", failures - before);
    fixture.wait_until_nothing_is_pending();
    process.stop_well();
    let odd = (0..40).filter(|n| n % 2 == 1).chain(40..60).map(|n| n.to_string());
    assert_eq!(dead(&fixture), coded("target_refused", odd));
    let even = (0..40).filter(|n| n % 2 == 0).map(|n| n.to_string());
    assert_promise(mode, even, &whole(&fixture, &good));
}

fn a_target_that_we_may_not_see_is_a_dead_letter(mode: Mode) {
    let fixture = fixture("hidden", mode);
    let good = fixture.target("good", 1);
    let hidden = fixture.name("hidden");
    allow_only(&hidden, &[Right::AlterConfigs]);
    let mut process = fixture.start(mode);
    let producer = fixture.producer();
    for (id, target) in [("1", &hidden), ("2", &good)] {
        producer.send(&fixture.names.intake(), &out(id).key("k").delay(100).to(target));
    }
    producer.acks();
    Log::open(&fixture, &good).until_within(SOON, "the neighbour", |seen| seen.len() == 1);
    Log::open(&fixture, &fixture.names.dead()).count(1);
    fixture.wait_until_nothing_is_pending();
    process.stop_well();
    assert_eq!(dead(&fixture), coded("target_refused", ["1".to_owned()]));
}

fn a_limit_that_is_lowered_under_a_record_stops_nothing(mode: Mode) {
    let fixture = fixture("lowered", mode);
    let target = fixture.target("out", 1);
    let mut process = fixture.start(mode);
    let producer = fixture.producer();
    let intake = fixture.names.intake();
    // The first makes the target known, with the limit that it has now.
    producer.send_one(&intake, &out("first").key("k").delay(0).to(&target));
    Log::open(&fixture, &target).count(1);
    let large = Out { value: Some(vec![b'l'; 5_000]), ..out("") }.key("k").delay(4_000).to(&target);
    for n in 0..10 {
        if n == 5 {
            producer.send(&intake, &large);
        }
        producer.send(&intake, &out(format!("{n}")).key("k").delay(4_000).to(&target));
    }
    producer.acks();
    let admin: AdminClient<DefaultClientContext> = fixture.client().create().expect("a client");
    let lowered =
        AlterConfig::new(ResourceSpecifier::Topic(&target)).set("max.message.bytes", "2000");
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(admin.alter_configs([&lowered], &AdminOptions::new()))
        .expect("answered");
    let wait = SOON + Duration::from_secs(4);
    Log::open(&fixture, &target).until_within(wait, "the neighbours", |seen| seen.len() >= 11);
    Log::open(&fixture, &fixture.names.dead()).count(1);
    fixture.wait_until_nothing_is_pending();
    process.stop_well();
    assert_eq!(dead(&fixture), coded("too_large", ["l".repeat(5_000)]));
    let ids = (0..10).map(|n| n.to_string()).chain(["first".to_owned()]);
    assert_promise(mode, ids, &whole(&fixture, &target));
}

/// A compacted topic and a process that does not know that such a topic takes no record without a key.
fn unforeseen(fixture: &Fixture, mode: Mode) -> (String, Process) {
    let settings = [("cleanup.policy", "compact"), ("message.timestamp.type", "LogAppendTime")];
    let table = fixture.target_with("table", 2, &settings);
    let launch = fixture.launch(mode).env("FAILPOINTS", "forget_compaction=return");
    (table, launch.start())
}

fn one_record_of_two_that_a_broker_refuses_does_not_hold_the_other_up(mode: Mode) {
    let fixture = fixture("one-of-two", mode);
    let (table, mut process) = unforeseen(&fixture, mode);
    let producer = fixture.producer();
    // Without a key the id stands for it: both are of one lane.
    let poison = out("poison").header("x-delay-id", "k").delay(1_500).to(&table);
    let good = out("good").key("k").delay(1_500).to(&table);
    producer.send(&fixture.names.intake(), &poison);
    producer.send(&fixture.names.intake(), &good);
    let due = producer.acks()[1].at + 1_500;
    let mut log = Log::open(&fixture, &table);
    let at = log.until_within(SOON, "the other", |seen| !seen.is_empty())[0].at;
    println!("delivered {} ms after it was due", at - due);
    Log::open(&fixture, &fixture.names.dead()).count(1);
    fixture.wait_until_nothing_is_pending();
    process.stop_well();
    assert_eq!(dead(&fixture), coded("target_refused", ["poison".to_owned()]));
    assert_promise(mode, ["good".to_owned()], &whole(&fixture, &table));
    let letter = &whole(&fixture, &fixture.names.dead())[0];
    let detail = letter.header("x-delay-error-detail").unwrap();
    assert!(detail.contains(&table), "says where: {detail}");
}

fn some_records_among_many_that_a_broker_refuses_are_found(mode: Mode) {
    let fixture = fixture("some-of-many", mode);
    let (table, mut process) = unforeseen(&fixture, mode);
    let good = fixture.target("good", 3);
    let producer = fixture.producer();
    let poison = |n: i32| n == 77 || n == 300;
    for n in 0..400 {
        let record = out(format!("{n}")).delay(2_000);
        let record = match n {
            n if poison(n) => record.header("x-delay-id", format!("{n}")).to(&table),
            n if n % 2 == 0 => record.key(format!("k{n}")).to(&table),
            n => record.key(format!("k{n}")).to(&good),
        };
        producer.send(&fixture.names.intake(), &record);
    }
    producer.acks();
    let elsewhere = (0..400).filter(|n| n % 2 == 1 && !poison(*n)).count();
    Log::open(&fixture, &good)
        .until_within(SOON, "those of another target", |seen| seen.len() >= elsewhere);
    Log::open(&fixture, &table).ids(400 - elsewhere - 2);
    Log::open(&fixture, &fixture.names.dead()).ids(2);
    fixture.wait_until_nothing_is_pending();
    println!(
        "{} producers renewed, {} groups halved",
        renewed(&process),
        process.metric("waterclock_suspects_halved_total")
    );
    process.stop_well();
    assert_eq!(dead(&fixture), coded("target_refused", ["300".to_owned(), "77".to_owned()]));
    let ids = |which: &dyn Fn(i32) -> bool| -> Vec<String> {
        (0..400).filter(|n| which(*n) && !poison(*n)).map(|n| n.to_string()).collect()
    };
    assert_promise(mode, ids(&|n| n % 2 == 1), &whole(&fixture, &good));
    assert_promise(mode, ids(&|n| n % 2 == 0), &whole(&fixture, &table));
}
