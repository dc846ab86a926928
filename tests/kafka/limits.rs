//! The edges of what a broker takes: sizes to the byte, headers by the thousand, timestamps from another age.

use std::time::Duration;

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use crate::support::{
    Fixture, Log, Mode, Out, PATIENCE, Process, Producer, Rec, eventually, hostile, out, whole,
};

/// A record batch of one record with this key and value and no headers, as Kafka counts it (message format 2).
fn batch_bytes(key: usize, value: usize) -> usize {
    // The length of a number, zigzag: one bit for the sign, seven bits to the byte.
    let varint =
        |number: usize| (usize::BITS - (number << 1 | 1).leading_zeros()).div_ceil(7) as usize;
    let body = 3 + varint(key) + key + varint(value) + value + varint(0);
    61 + varint(body) + body
}

fn renewed(process: &Process) -> f64 {
    process.metric("waterclock_producers_renewed_total")
}

fn code(rec: &Rec) -> String {
    rec.header("x-delay-error-code").unwrap_or_default()
}

#[test]
fn a_value_at_the_limit_of_its_target_is_delivered_and_one_byte_more_is_a_dead_letter() {
    let fixture = Fixture::new("at-limit");
    const LIMIT: usize = 10_000;
    let target = fixture.target_with("small", 1, &[("max.message.bytes", &LIMIT.to_string())]);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let before = renewed(&process);
    let fits = (1..LIMIT).rev().find(|value| batch_bytes(1, *value) <= LIMIT).unwrap();
    let producer = fixture.producer();
    for value in [fits - 1, fits, fits + 1, 5] {
        producer
            .send(&fixture.names.intake(), &out(vec![b'v'; value]).key("k").delay(500).to(&target));
    }
    producer.acks();
    Log::open(&fixture, &target).count(3);
    Log::open(&fixture, &fixture.names.dead()).count(1);
    assert_eq!(renewed(&process), before, "nothing had to fail to know it");
    process.stop_well();
    let length = |rec: &Rec| rec.value.as_ref().map_or(0, Vec::len);
    let mut delivered: Vec<usize> = whole(&fixture, &target).iter().map(length).collect();
    delivered.sort_unstable();
    assert_eq!(delivered, [5, fits - 1, fits]);
    let dead = whole(&fixture, &fixture.names.dead());
    assert_eq!((length(&dead[0]), code(&dead[0]).as_str()), (fits + 1, "too_large"));
}

#[test]
fn a_mebibyte_may_be_in_the_key_or_in_a_header_and_ten_thousand_headers_are_too_many() {
    let fixture = Fixture::new("mebibyte");
    let target = fixture.target("out", 2);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let before = renewed(&process);
    let mebibyte = vec![b'm'; 1 << 20];
    let mut crowd = out("crowd").key("k").delay(500).to(&target);
    crowd.headers.extend((0..10_000).map(|n| (format!("h{n}"), Some(b"v".to_vec()))));
    let producer = fixture.producer();
    let intake = fixture.names.intake();
    for record in [
        out("key").key(&mebibyte),
        out("header").key("k").header("large", &mebibyte),
        out("value").key("k").header("h", "v"),
    ] {
        // Through a tier, with a state header in addition.
        producer.send(&intake, &record.delay(2_500).to(&target));
    }
    producer.send(&intake, &crowd);
    producer.acks();
    let seen = Log::open(&fixture, &target).count(3).to_vec();
    let dead = Log::open(&fixture, &fixture.names.dead()).count(1).to_vec();
    assert_eq!(renewed(&process), before);
    process.stop_well();
    let of = |text: &str| seen.iter().find(|rec| rec.text() == text).unwrap();
    assert!(of("key").key.as_deref() == Some(&mebibyte), "the key is whole");
    let large = (b"large".to_vec(), Some(mebibyte.clone()));
    assert!(of("header").headers == [large], "the header is whole, and alone");
    assert_eq!((dead[0].text().as_str(), code(&dead[0]).as_str()), ("crowd", "too_many_headers"));
    assert_eq!(dead[0].headers.len(), 10_002 + 7);
}

#[test]
fn ten_mebibytes_that_came_in_compressed_are_a_dead_letter_without_them_and_hold_nobody_up() {
    let fixture = Fixture::new("compressed");
    let target = fixture.target("out", 1);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let before = renewed(&process);
    let settings = [
        ("compression.type", "zstd"),
        ("message.max.bytes", "20000000"),
        ("partitioner", "murmur2_random"),
    ];
    let producer = Producer::new(&fixture, &settings);
    let intake = fixture.names.intake();
    let large = out(vec![0; 10 << 20]).key("k").header("mine", "yes").delay(100).to(&target);
    let large = producer.send_one(&intake, &large);
    producer.send(&intake, &out("next").key("k").delay(100).to(&target));
    producer.acks();
    Log::open(&fixture, &target).count(1);
    let dead = Log::open(&fixture, &fixture.names.dead()).count(1).to_vec();
    assert_eq!(renewed(&process), before);
    process.stop_well();
    assert_eq!((code(&dead[0]).as_str(), &dead[0].value), ("too_large", &None));
    assert_eq!(dead[0].key.as_deref(), Some(&b"k"[..]));
    let headers = ["mine", "x-delay", "x-delay-target", "x-delay-error-offset"];
    let headers = headers.map(|name| dead[0].header(name).unwrap_or_default());
    assert_eq!(headers, ["yes", "100", &target, &large.offset.to_string()]);
    assert_eq!(dead[0].headers.len(), 3 + 7, "no mark of ours");
    let detail = dead[0].header("x-delay-error-detail").unwrap_or_default();
    assert!(detail.contains("its value is not kept"), "{detail}");
}

/// Peak memory of a process with `memory = "128MiB"`, whatever a producer does. See docs/reliability.md.
const PEAK_KIB: u64 = 300 << 10;

#[test]
fn records_that_inflate_to_hundreds_of_mebibytes_are_dead_letters_and_cost_no_memory() {
    let fixture = Fixture::with("zeros", |request| request.lanes = Some(1));
    let target = fixture.target("out", 1);
    let mut process = fixture.launch(Mode::ExactlyOnce).config("memory = \"128MiB\"\n").start();
    let producer = fixture.producer();
    let intake = fixture.names.intake();
    let codecs = hostile::zeros(&fixture, &target);
    producer.send_one(&intake, &out("after zeros").delay(100).to(&target));
    let dead = Log::open(&fixture, &fixture.names.dead()).count(codecs.len()).to_vec();
    for (dead, codec) in dead.iter().zip(&codecs) {
        assert_eq!((code(dead).as_str(), &dead.value), ("too_large", &None), "{codec}");
        assert_eq!(dead.key.as_deref(), Some(codec.as_bytes()));
        assert_eq!(dead.header("mine").as_deref(), Some(*codec));
    }
    println!("peak after zeros: {} KiB", process.memory_peak_kib());
    assert!(process.memory_peak_kib() < PEAK_KIB, "{} KiB", process.memory_peak_kib());

    hostile::wide(&fixture, &target);
    producer.send_one(&intake, &out("after wide").delay(100).to(&target));
    let known = codecs.len() + hostile::WIDE;
    let dead = Log::open(&fixture, &fixture.names.dead()).count(known).to_vec();
    for dead in &dead[codecs.len()..] {
        assert_eq!((code(dead).as_str(), &dead.value), ("too_large", &None));
        assert_eq!(dead.key.as_deref(), Some(&b"wide"[..]));
    }
    println!("peak after wide: {} KiB", process.memory_peak_kib());
    assert!(process.memory_peak_kib() < PEAK_KIB, "{} KiB", process.memory_peak_kib());

    hostile::many(&fixture, &target);
    producer.send_one(&intake, &out("after many").delay(100).to(&target));
    let texts = |rec: &Rec| rec.text();
    let mut log = Log::open(&fixture, &target);
    log.until("the innocents", |seen| seen.iter().any(|rec| rec.text() == "after many"));
    let mut letters = Log::open(&fixture, &fixture.names.dead());
    let is_whole = |rec: &&Rec| rec.value.as_ref().is_some_and(|it| it.len() == 1 << 20);
    let whole = eventually("each of the batch is delivered, or a dead letter", || {
        log.read_on(Duration::from_millis(50));
        letters.read_on(Duration::from_millis(50));
        let whole = log.seen.iter().filter(is_whole).count();
        let dead = letters.seen.len() - known.min(letters.seen.len());
        if whole + dead == hostile::MANY { Ok(whole) } else { Err(format!("{whole}, {dead} dead")) }
    });
    let lost = letters.seen;
    assert!((20..=32).contains(&whole), "{whole} of the batch are whole");
    let lost = &lost[known..];
    assert!(lost.iter().all(|dead| code(dead) == "too_large" && dead.value.is_none()));
    assert!(lost.iter().all(|dead| dead.header("mine").as_deref() == Some("many")));
    println!("peak after many: {} KiB", process.memory_peak_kib());
    assert!(process.memory_peak_kib() < PEAK_KIB, "{} KiB", process.memory_peak_kib());

    hostile::crowded(&fixture, &target);
    producer.send_one(&intake, &out("after crowds").delay(100).to(&target));
    let dead = hostile::MANY - whole + known;
    let crowds = Log::open(&fixture, &fixture.names.dead()).count(dead + hostile::CROWDS).to_vec();
    for (n, crowd) in crowds[dead..].iter().enumerate() {
        assert_eq!((code(crowd).as_str(), &crowd.value), ("too_large", &None));
        let kept = crowd.headers.len() - 7;
        assert!(if n % 2 == 0 { (500..1_100).contains(&kept) } else { kept == 0 }, "{kept} kept");
        let detail = crowd.header("x-delay-error-detail").unwrap_or_default();
        assert!(detail.contains("headers are not kept"), "{detail}");
    }
    let seen = log.until("the last", |seen| seen.iter().any(|rec| rec.text() == "after crowds"));
    assert!(seen.iter().map(texts).any(|text| text == "after zeros"));
    println!("peak after crowds: {} KiB", process.memory_peak_kib());
    assert!(process.memory_peak_kib() < PEAK_KIB, "{} KiB", process.memory_peak_kib());

    hostile::tiny(&fixture);
    producer.send_one(&intake, &out("after tiny").delay(100).to(&target));
    log.until("the very last", |seen| seen.iter().any(|rec| rec.text() == "after tiny"));
    println!("peak after tiny: {} KiB", process.memory_peak_kib());
    assert!(process.memory_peak_kib() < PEAK_KIB, "{} KiB", process.memory_peak_kib());
    process.stop_well();
}

#[test]
fn the_timestamp_of_a_producer_does_not_count() {
    let fixture = Fixture::new("timestamps");
    let target = fixture.timed_target("out", 1);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let producer: BaseProducer = fixture.client().create().expect("a producer");
    let header = |key, value| Header { key, value: Some(value) };
    // librdkafka takes 0 for now; 1 is as old as can be said.
    let ages = [
        ("1970", 1),
        ("before 2000", 946_684_799_000),
        ("9999", 253_402_300_799_000),
        ("none", -1),
    ];
    for (age, timestamp) in ages {
        let headers = OwnedHeaders::new()
            .insert(header("x-delay", "1s"))
            .insert(header("x-delay-target", &target));
        let intake = fixture.names.intake();
        let record = BaseRecord::to(&intake).key("k").payload(age).timestamp(timestamp);
        producer.send(record.headers(headers)).expect("enqueued");
    }
    let now_ms = || jiff::Timestamp::now().as_millisecond() as u64;
    let sent = now_ms();
    producer.flush(PATIENCE).expect("flushed");
    let seen = Log::open(&fixture, &target).count(ages.len()).to_vec();
    process.stop_well();
    for Out { value, .. } in ages.map(|(age, _)| out(age)) {
        let rec = seen.iter().find(|rec| rec.value == value).expect("delivered");
        assert!((sent + 1_000..now_ms() + 1_000).contains(&rec.at), "sent {sent}: {rec:?}");
    }
}
