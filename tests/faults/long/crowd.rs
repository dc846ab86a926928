//! F41: a million records that are due at the same instant, and five million in one tier, in 512 MiB of memory.
//!
//! With control groups, as root, the kernel holds the process to that; without, what it takes is read from `/proc`.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::{Offset, TopicPartitionList};
use waterclock::engine::Millis;

use crate::load::mode;
use crate::root::Group;
use crate::support::{Fixture, Launch, Process, Producer, now_ms, out};

/// What the process may take.
const MEMORY: u64 = 512 << 20;
const PARTITIONS: i32 = 6;
/// How long nothing may arrive before the rest counts as stuck.
const SILENCE: Duration = Duration::from_secs(60);

/// A process that is held to [`MEMORY`], as far as this machine can.
struct Held {
    process: Process,
    group: Option<Group>,
}

impl Held {
    #[track_caller]
    fn start(name: &str, launch: Launch<'_>) -> Self {
        let limit = MEMORY.to_string();
        let group = Group::try_new(
            name,
            "memory",
            &[("memory.limit_in_bytes", &limit)],
            &[("memory.max", &limit), ("memory.swap.max", "0")],
        );
        let Some(group) = group else { return Self { process: launch.start(), group: None } };
        let enter = group.enter();
        let enter = enter.each_ref().map(|word| &**word);
        Self { process: launch.through(&enter).start(), group: Some(group) }
    }

    /// The most that the process itself has taken, in MiB; files that it has read or written are not its own.
    fn most_mib(&self) -> u64 {
        self.process.memory_peak_kib() / 1024
    }

    #[track_caller]
    fn end(mut self, name: &str) {
        let most = self.most_mib();
        let limited = self.group.is_some();
        println!("{name}: at most {most} MiB of memory; held to 512 MiB by the kernel: {limited}");
        assert!(most < MEMORY >> 20, "{most} MiB");
        self.process.stop_well();
    }
}

/// When each of so many records arrived in a topic, by its append time: each once, and nothing else.
#[track_caller]
fn arrivals(fixture: &Fixture, topic: &str, count: usize, quiet_until: u64) -> Vec<u64> {
    let mut config = fixture.client();
    config
        .set("group.id", "reads-without-a-group")
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .set("fetch.queue.backoff.ms", "5");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    let mut list = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        list.add_partition_offset(topic, partition, Offset::Beginning).expect("an offset");
    }
    consumer.assign(&list).expect("assigned");
    let mut seen = vec![0; count];
    let (mut left, mut last) = (count, now_ms().max(quiet_until));
    while left > 0 {
        let Some(message) = consumer.poll(Duration::from_millis(200)) else {
            let silent = Duration::from_millis(now_ms().saturating_sub(last));
            assert!(silent < SILENCE, "{left} of {count} have not arrived");
            continue;
        };
        let message = match message {
            Ok(message) => message,
            // The broker has more to do than it can; librdkafka goes on by itself.
            Err(KafkaError::MessageConsumption(RDKafkaErrorCode::AllBrokersDown)) => continue,
            Err(error) => panic!("{error}"),
        };
        let text = std::str::from_utf8(message.payload().expect("a value")).expect("a number");
        let number: usize = text.trim_end_matches('.').parse().expect("a number");
        assert_eq!(seen[number], 0, "{number} arrived twice");
        seen[number] = message.timestamp().to_millis().expect("a time") as u64;
        left -= 1;
        last = last.max(now_ms());
    }
    let more = consumer.poll(Duration::from_secs(3));
    assert!(more.is_none_or(|more| more.is_err()), "more than {count} arrived");
    seen
}

/// A hundred bytes that begin with a number.
fn value(number: usize) -> String {
    format!("{number}{:.<100}", "")
}

fn lateness(name: &str, late: &mut [u64]) {
    late.sort_unstable();
    let at = |part: usize| late[(late.len() - 1) * part / 1_000];
    println!(
        "{name}: {} records, late by p50 {} ms, p99 {} ms, at most {} ms",
        late.len(),
        at(500),
        at(990),
        at(1_000)
    );
}

#[test]
#[ignore = "scripts/faults --long"]
fn f41_a_million_due_at_the_same_instant_in_512_mib() {
    const COUNT: usize = 1_000_000;
    let fixture = Fixture::with("f41-instant", |request| {
        request.lanes = Some(6);
        request.holds = Some([1, 3, 10, 30, 60].map(|s| Millis(s * 1_000)).to_vec());
    });
    let target = fixture.target("out", PARTITIONS);
    let held = Held::start("f41-instant", fixture.launch(mode()));
    let producer =
        Producer::new(&fixture, &[("partitioner", "murmur2_random"), ("linger.ms", "20")]);
    let due = now_ms() + 150_000;
    for number in 0..COUNT {
        let record = out(value(number)).key(format!("k{}", number % 10_007)).to(&target);
        producer.send(&fixture.names.intake(), &record.header("x-delay-until", due.to_string()));
    }
    let acks = producer.acks();
    let last = acks.iter().map(|ack| ack.at).max().unwrap_or_default();
    assert!(last < due, "it took longer than 150 s to write them");
    let seen = arrivals(&fixture, &target, COUNT, due);
    let mut late: Vec<u64> = seen.iter().map(|at| at.checked_sub(due).expect("early")).collect();
    lateness("f41-instant", &mut late);
    held.end("f41-instant");
}

#[test]
#[ignore = "scripts/faults --long"]
fn f41_five_million_in_one_tier_in_512_mib() {
    const COUNT: usize = 5_000_000;
    const HOLD: u64 = 180_000;
    let fixture = Fixture::with("f41-tier", |request| {
        request.lanes = Some(6);
        request.holds = Some([1_000, HOLD].map(Millis).to_vec());
    });
    let target = fixture.target("out", PARTITIONS);
    let held = Held::start("f41-tier", fixture.launch(mode()));
    let producer =
        Producer::new(&fixture, &[("partitioner", "murmur2_random"), ("linger.ms", "20")]);
    let tier = fixture.names.tier(Millis(HOLD));
    for number in 0..COUNT {
        producer.send(&tier, &out(value(number)).key(format!("k{}", number % 10_007)).to(&target));
    }
    let acks = producer.acks();
    let took = acks.last().map_or(0, |ack| ack.at - acks[0].at);
    println!("f41-tier: written in {} s", took / 1_000);
    let seen = arrivals(&fixture, &target, COUNT, acks[0].at + HOLD);
    let due = acks.iter().map(|ack| ack.at + HOLD);
    let mut late: Vec<u64> =
        seen.iter().zip(due).map(|(at, due)| at.checked_sub(due).expect("early")).collect();
    lateness("f41-tier", &mut late);
    held.end("f41-tier");
}
