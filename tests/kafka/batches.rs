//! Batches that a broker takes and no client would make. A client that may write to an intake may send them.

use crate::support::wire::{NONE, SNAPPY, batch, number, send, text};
use crate::support::{Fixture, Mode, Producer, Rec, assert_each_once, in_both_modes, out, whole};

in_both_modes!(
    a_record_that_names_an_offset_ahead_takes_nothing_of_others_with_it,
    a_batch_that_cannot_be_read_stops_nothing,
);

/// What is written by others before a batch, and behind it, in each lane.
const OTHERS: usize = 60;

/// A record for a target, with the offset that it says to have. It has no key, and a header without a value; both say so by
/// this length.
fn record(target: &str, value: &str, offset: i64, null: i64) -> Vec<u8> {
    let mut body = vec![0, 0];
    number(&mut body, offset);
    number(&mut body, null);
    text(&mut body, value.as_bytes());
    number(&mut body, 3);
    for (name, value) in [("x-delay", "1s"), ("x-delay-target", target)] {
        text(&mut body, name.as_bytes());
        text(&mut body, value.as_bytes());
    }
    text(&mut body, b"empty");
    number(&mut body, null);
    let mut out = Vec::new();
    text(&mut out, &body);
    out
}

/// As Java's library makes it: pieces with their lengths, behind a header of its own.
fn snappy(pieces: &[&[u8]]) -> Vec<u8> {
    let mut out = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
    for piece in pieces {
        let made = snap::raw::Encoder::new().compress_vec(piece).expect("compressed");
        out.extend((made.len() as u32).to_be_bytes());
        out.extend(made);
    }
    out
}

fn fixture(test: &str, mode: Mode) -> Fixture {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    Fixture::new(&format!("{test}-{short}"))
}

/// Others' records in one lane; gives their values.
fn others(fixture: &Fixture, target: &str, lane: i32, when: &str) -> Vec<String> {
    let producer = Producer::new(fixture, &[("partitioner", "murmur2_random")]);
    let key = fixture.keys(lane as u16).next().expect("a key");
    let values: Vec<_> = (0..OTHERS).map(|n| format!("{lane} {when} {n}")).collect();
    for value in &values {
        producer.send(&fixture.names.intake(), &out(value).key(&key).delay(1_000).to(target));
    }
    producer.acks();
    values
}

/// Broken ones in each lane among what others write, through a restart: gives what has to arrive but for what is in them.
fn among_others(fixture: &Fixture, mode: Mode, target: &str, broken: &[Vec<u8>]) -> Vec<String> {
    let mut process = fixture.start(mode);
    let intake = fixture.names.intake();
    let mut want = Vec::new();
    for (lane, batch) in (0..).zip(broken) {
        want.extend(others(fixture, target, lane, "before"));
        assert_eq!(send(fixture, &intake, lane, batch), OTHERS as i64);
        want.extend(others(fixture, target, lane, "after"));
    }
    fixture.wait_until_nothing_is_pending();
    process.stop_well();
    let mut process = fixture.start(mode);
    for (lane, _) in (0..).zip(broken) {
        want.extend(others(fixture, target, lane, "later"));
    }
    fixture.wait_until_nothing_is_pending();
    assert!(process.metric("waterclock_records_lost_total") < 0.5);
    process.stop_well();
    want
}

fn a_record_that_names_an_offset_ahead_takes_nothing_of_others_with_it(mode: Mode) {
    let fixture = fixture("ahead", mode);
    let target = fixture.target("out", 3);
    let record = |value: &str, offset| record(&target, value, offset, -1);
    let batches = [
        batch(&record("ahead", 40), 1, NONE),
        batch(&[record("far ahead", (1 << 31) - 1), record("its neighbour", 1)].concat(), 2, NONE),
        batch(&[record("one", 0), record("two", 0), record("three", -9)].concat(), 3, NONE),
    ];
    let mut want = among_others(&fixture, mode, &target, &batches);
    want.extend(["ahead", "far ahead", "its neighbour", "one", "two", "three"].map(str::to_owned));
    assert_each_once(want, &whole(&fixture, &target));
    assert_eq!(whole(&fixture, &fixture.names.dead()).len(), 0);
}

fn a_batch_that_cannot_be_read_stops_nothing(mode: Mode) {
    let fixture = fixture("unreadable", mode);
    let target = fixture.target("out", 3);
    let good = |value: &str, offset| record(&target, value, offset, -1);
    let both = [good("split", 0), good("in two", 1)].concat();
    let streams = [snappy(&[&both[..40]]), snappy(&[]), snappy(&[&both[40..]])].concat();
    let odd = [good("before the odd one", 0), record(&target, "odd", 1, -2), good("after it", 2)];
    // A record that is longer than its batch, which the broker does not see.
    let whole_one = record(&target, "long", 0, -2);
    let behind_length = whole_one.iter().position(|byte| byte & 0x80 == 0).expect("a length") + 1;
    let body = &whole_one[behind_length..];
    let mut long = Vec::new();
    number(&mut long, body.len() as i64 + 1);
    long.extend_from_slice(body);
    let batches = [
        batch(&streams, 2, SNAPPY),
        batch(&snappy(&[&odd.concat()]), 3, SNAPPY),
        batch(&snappy(&[&long]), 1, SNAPPY),
    ];
    let mut want = among_others(&fixture, mode, &target, &batches);
    let also = ["split", "in two", "before the odd one", "odd", "after it"];
    want.extend(also.map(str::to_owned));
    assert_each_once(want, &whole(&fixture, &target));
    let dead = whole(&fixture, &fixture.names.dead());
    let of = |rec: &Rec, name: &str| rec.header(name).unwrap_or_default();
    let told: Vec<_> = dead
        .iter()
        .map(|rec| {
            ["code", "partition", "offset"].map(|what| of(rec, &format!("x-delay-error-{what}")))
        })
        .collect();
    assert_eq!(told, [["unreadable", "2", &OTHERS.to_string()]].map(|row| row.map(str::to_owned)));
}
