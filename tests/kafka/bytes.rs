//! Key, value and headers arrive byte for byte, whatever they are and however they were compressed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::producer::{DeliveryResult, Producer as _, ProducerContext};
use waterclock::engine::Record;
use waterclock::kafka::TopicProducer;

use crate::support::{Fixture, Log, Mode, Out, PATIENCE, Producer, Rec, in_both_modes, out, whole};

in_both_modes!(
    every_kind_of_record_arrives_as_it_was,
    keys_go_to_the_partitions_that_java_gives_them,
);

fn fixture(test: &str, mode: Mode) -> Fixture {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    Fixture::new(&format!("{test}-{short}"))
}

/// A mebibyte that no codec makes smaller.
fn mebibyte() -> Vec<u8> {
    let mut state = 1_u64;
    let step = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..1 << 20).map(step).collect()
}

/// Each kind of record once, told apart by a header.
fn kinds() -> Vec<(&'static str, Out)> {
    let all_bytes: Vec<u8> = (0..=255).collect();
    let none = || Out { value: None, ..out("") };
    vec![
        ("plain", out("value").key("key")),
        ("null key", out("value")),
        ("empty key", out("value").key("")),
        ("null value", none().key("key")),
        ("empty value", out("").key("key")),
        ("nothing at all", none()),
        ("every byte", out(&all_bytes).key(&all_bytes).header("bytes", &all_bytes)),
        ("null and empty headers", out("v").key("k").null_header("n").header("e", "")),
        (
            "names repeated, in order",
            out("v")
                .key("k")
                .header("a", "1")
                .header("b", "2")
                .header("a", "3")
                .null_header("a")
                .header("a", "1"),
        ),
        ("a name that is empty", out("v").key("k").header("", "empty")),
        ("a name not of ASCII", out("v").key("k").header("größe", "käse")),
        (
            "names that look like ours",
            out("v").key("k").header("X-Delay", "1").header("x-delayed", "2"),
        ),
        ("a tombstone with headers", none().key("gone").header("why", "deleted").null_header("n")),
        ("a mebibyte", out(mebibyte()).key("large").header("h", "v")),
        ("much that is alike", out(vec![b'a'; 200_000]).key("alike")),
    ]
}

type Add<'a> = dyn FnMut(&[u8], Option<&[u8]>) + 'a;
type Headers = Vec<(Vec<u8>, Option<Vec<u8>>)>;

fn every_kind_of_record_arrives_as_it_was(mode: Mode) {
    let fixture = fixture("bytes", mode);
    let target = fixture.target("out", 2);
    let mut process = fixture.start(mode);
    let intake = fixture.names.intake();
    let mut wanted = BTreeMap::new();
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let settings = [("compression.type", codec), ("partitioner", "murmur2_random")];
        let producer = Producer::new(&fixture, &settings);
        for (n, (kind, record)) in kinds().into_iter().enumerate() {
            let name = format!("{codec}: {kind}");
            // Ours before and after theirs; some wait in a tier, some in the wheel only.
            let mut sent = record.clone();
            let delay = if n % 2 == 0 { "2500" } else { "300" };
            sent.headers.insert(0, ("x-delay".to_owned(), Some(delay.into())));
            let sent = sent.header("case", &name).to(&target).header("x-delay-label", "l");
            producer.send(&intake, &sent);
            wanted.insert(name.clone(), record.header("case", &name));
        }
        producer.acks();
    }
    Log::open(&fixture, &target).count(wanted.len());
    process.stop_well();
    let seen = whole(&fixture, &target);
    assert_eq!(seen.len(), wanted.len(), "each once");
    for rec in &seen {
        let name = rec.header("case").expect("a case");
        let sent = wanted.remove(&name).unwrap_or_else(|| panic!("twice: {rec:?}"));
        assert!(rec.key == sent.key, "{name}: key of {rec:?}");
        assert!(rec.value == sent.value, "{name}: value of {rec:?}");
        let headers: Headers =
            sent.headers.into_iter().map(|(name, value)| (name.into_bytes(), value)).collect();
        assert_eq!(rec.headers, headers, "{name}: headers, ours gone");
    }
    assert!(wanted.is_empty(), "{:?}", wanted.keys());
}

fn keys_go_to_the_partitions_that_java_gives_them(mode: Mode) {
    let fixture = fixture("keys", mode);
    // A number that is no multiple or divisor of the lanes.
    let (target, direct) = (fixture.target("out", 7), fixture.target("direct", 7));
    let mut process = fixture.start(mode);
    let producer = fixture.producer();
    let mut keys: Vec<Vec<u8>> = (0..60).map(|n| format!("key-{n}").into_bytes()).collect();
    // High bytes: where a signed and an unsigned byte differ, in every place of a group of four.
    for length in 0..9_usize {
        keys.push(vec![0xff; length]);
        keys.push((0..length as u8).map(|n| 0x80 | (n * 17)).collect());
    }
    keys.sort();
    keys.dedup();
    for key in &keys {
        producer.send(&fixture.names.intake(), &out("v").key(key).delay(200).to(&target));
        // librdkafka's own murmur2_random, which is written to be Java's, says where the key belongs.
        producer.send(&direct, &out("v").key(key));
    }
    producer.acks();
    Log::open(&fixture, &target).count(keys.len());
    Log::open(&fixture, &direct).count(keys.len());
    process.stop_well();
    let places = |topic: &str| -> BTreeMap<Option<Vec<u8>>, i32> {
        whole(&fixture, topic).into_iter().map(|rec| (rec.key, rec.partition)).collect()
    };
    let (ours, theirs) = (places(&target), places(&direct));
    assert_eq!(ours.len(), keys.len());
    assert_eq!(ours, theirs);
}

struct Quiet;
impl ClientContext for Quiet {}
impl ProducerContext for Quiet {
    type DeliveryOpaque = usize;
    fn delivery(&self, result: &DeliveryResult<'_>, _: usize) {
        assert!(result.is_ok(), "{result:?}");
    }
}

#[test]
fn a_header_name_that_is_not_utf_8_passes() {
    let fixture = fixture("names", Mode::ExactlyOnce);
    let target = fixture.target("out", 1);
    let mut process = fixture.start(Mode::ExactlyOnce);
    // rdkafka's safe calls cannot write such a name; ours can, and any C client.
    let mut producer = TopicProducer::create(&fixture.client(), Quiet).expect("a producer");
    let record = Record::new(Some(b"k"), Some(b"v"), std::iter::empty());
    let headers = |add: &mut Add<'_>| {
        add(b"x-delay", Some(b"1500"));
        add(b"\xff\xfe", Some(b"\x80"));
        add(b"x-delay-target", Some(target.as_bytes()));
        add(b"caf\xe9", None);
    };
    let intake: Arc<str> = fixture.names.intake().into();
    producer.produce(&intake, None, None, &record, headers, 0).expect("enqueued");
    producer.inner().flush(PATIENCE).expect("flushed");
    // What follows it is not held up either.
    fixture.producer().send_one(&intake, &out("next").key("k").delay(1_600).to(&target));
    let seen: Vec<Rec> = Log::open(&fixture, &target)
        .until_within(Duration::from_secs(60), "both", |seen| seen.len() >= 2)
        .to_vec();
    process.stop_well();
    let first = seen.iter().find(|rec| rec.text() == "v").expect("delivered");
    let headers: Headers =
        vec![(b"\xff\xfe".to_vec(), Some(b"\x80".to_vec())), (b"caf\xe9".to_vec(), None)];
    assert_eq!(first.headers, headers);
}
