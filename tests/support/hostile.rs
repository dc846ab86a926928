//! A producer who means harm: what he writes is small on the wire, and large in the memory of its reader.

use super::wire::{self, NONE, ZSTD, batch, number, text};
use super::{Fixture, Out, Producer, out};

/// The largest that librdkafka sends, before it is compressed.
const LARGEST: (&str, &str) = ("message.max.bytes", "1000000000");
const MIB: usize = 1 << 20;
/// Records of the batch of [`many`].
pub const MANY: usize = 300;
/// Batches of [`wide`].
pub const WIDE: usize = 4;
/// Records of [`tiny`].
pub const TINY: usize = 200_000;
/// Records of [`crowded`].
pub const CROWDS: usize = 20;

fn producer(fixture: &Fixture, codec: &str, more: &[(&str, &str)]) -> Producer {
    let all = [
        LARGEST,
        ("compression.type", codec),
        ("partitioner", "murmur2_random"),
        ("queue.buffering.max.kbytes", "2000000"),
    ];
    Producer::new(fixture, &[&all, more].concat())
}

fn bomb(name: &str, bytes: usize, target: &str) -> Out {
    let bomb = Out { value: Some(vec![0; bytes]), ..out("") };
    bomb.key(name).header("mine", name).delay(500).to(target)
}

/// One record of zeros for each codec that makes nothing of them, with what it is compressed by as its key.
pub fn zeros(fixture: &Fixture, target: &str) -> Vec<&'static str> {
    // The broker takes two megabytes and a little of each. lz4 makes a 255th of zeros at best, snappy a 21st.
    let all = [("gzip", 600), ("zstd", 600), ("lz4", 400), ("snappy", 40)];
    for (codec, mib) in all {
        let producer = producer(fixture, codec, &[]);
        producer.send_one(&fixture.names.intake(), &bomb(codec, mib * MIB, target));
    }
    all.map(|(codec, _)| codec).to_vec()
}

/// One batch of records of a mebibyte, each of which may be as large as that.
pub fn many(fixture: &Fixture, target: &str) {
    let patient =
        [("linger.ms", "5000"), ("batch.size", "1000000000"), ("batch.num.messages", "300")];
    let producer = producer(fixture, "gzip", &patient);
    for _ in 0..MANY {
        producer.send(&fixture.names.intake(), &bomb("many", MIB, target));
    }
    producer.acks();
}

/// Records that consist of headers: as many as librdkafka reads, and, of every second one, as many as the broker takes.
pub fn crowded(fixture: &Fixture, target: &str) {
    let producer = producer(fixture, "none", &[]);
    for n in 0..CROWDS {
        let mut crowd = out("crowd").key("crowd").delay(500).to(target);
        let count = if n % 2 == 0 { 90_000 } else { 500_000 };
        crowd.headers.extend((0..count).map(|_| ("h".to_owned(), Some(Vec::new()))));
        producer.send_one(&fixture.names.intake(), &crowd);
    }
}

/// Batches of 20 kB each of one record of 600 MiB, which have their reader keep 128 MiB of what it has made of them.
pub fn wide(fixture: &Fixture, target: &str) {
    const BYTES: usize = 600 * MIB;
    let (mut before, mut behind) = (vec![0, 0, 0], Vec::new());
    text(&mut before, b"wide");
    number(&mut before, BYTES as i64);
    number(&mut behind, 2);
    for (name, value) in [("x-delay", "500"), ("x-delay-target", target)] {
        text(&mut behind, name.as_bytes());
        text(&mut behind, value.as_bytes());
    }
    let mut record = Vec::new();
    number(&mut record, (before.len() + BYTES + behind.len()) as i64);
    record.extend(before);
    let wide = batch(&wire::zstd(&record, BYTES, &behind), 1, ZSTD);
    for _ in 0..WIDE {
        wire::send(fixture, &fixture.names.intake(), 0, &wide);
    }
}

/// A batch of as many records as fit into one: nothing is in them.
pub fn tiny(fixture: &Fixture) {
    let mut records = Vec::new();
    for at in 0..TINY {
        let mut body = vec![0, 0];
        for value in [at as i64, -1, -1, 0] {
            number(&mut body, value);
        }
        text(&mut records, &body);
    }
    wire::send(fixture, &fixture.names.intake(), 0, &batch(&records, TINY as i32, NONE));
}
