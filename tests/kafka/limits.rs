//! The edges of what a broker takes: sizes to the byte, headers by the thousand, timestamps from another age.

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use crate::support::{Fixture, Log, Mode, Out, PATIENCE, Process, Producer, Rec, out, whole};

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
    assert_eq!(dead[0].headers.len(), 10_002 + 6);
}

#[test]
fn ten_mebibytes_that_came_in_compressed_are_a_dead_letter_and_hold_nobody_up() {
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
    producer.send(&intake, &out(vec![0; 10 << 20]).key("k").delay(100).to(&target));
    producer.send(&intake, &out("next").key("k").delay(100).to(&target));
    producer.acks();
    Log::open(&fixture, &target).count(1);
    let dead = Log::open(&fixture, &fixture.names.dead()).count(1).to_vec();
    assert_eq!(renewed(&process), before);
    process.stop_well();
    assert_eq!(code(&dead[0]), "too_large");
    assert!(dead[0].value.as_deref() == Some(&vec![0; 10 << 20]), "byte for byte");
}

#[test]
fn the_timestamp_of_a_producer_does_not_count() {
    let fixture = Fixture::new("timestamps");
    let target = fixture.target("out", 1);
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
