//! Clients hash keys differently: what arrives in another partition than its lane is moved there, once.

use std::collections::BTreeMap;

use waterclock::engine::murmur2;

use crate::support::{
    Fixture, Log, Mode, Producer, Rec, assert_each_once, in_both_modes, out, whole,
};

in_both_modes!(
    records_of_another_partitioner_are_moved_once_and_stay_in_order,
    producers_with_different_partitioners_share_a_key,
);

fn fixture(test: &str, mode: Mode) -> Fixture {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    Fixture::new(&format!("{test}-{short}"))
}

/// librdkafka's default for records with a key: CRC32.
fn crc32(fixture: &Fixture) -> Producer {
    Producer::new(fixture, &[("partitioner", "consistent_random")])
}

fn lane(fixture: &Fixture, key: &str) -> i32 {
    i32::from(murmur2::partition(key.as_bytes(), fixture.lanes()))
}

fn records_of_another_partitioner_are_moved_once_and_stay_in_order(mode: Mode) {
    let fixture = fixture("moved", mode);
    let target = fixture.timed_target("out", 2);
    let mut process = fixture.start(mode);
    let producer = crc32(&fixture);
    let (keys, each) = (12, 20);
    let mut sent = Vec::new();
    for n in 0..keys * each {
        let key = format!("key-{}", n % keys);
        let record = out(format!("{n}")).key(&key).delay(3_000).to(&target);
        producer.send(&fixture.names.intake(), &record);
        sent.push(key);
    }
    let acks = producer.acks();
    let wrong = (0..sent.len()).filter(|n| acks[*n].partition != lane(&fixture, &sent[*n])).count();
    assert!(wrong > 0 && wrong < sent.len(), "{wrong} of {} in another partition", sent.len());
    Log::open(&fixture, &target).count(sent.len());
    let moved = process.metric("waterclock_moved_total");
    process.stop_well();
    assert_eq!(moved as usize, wrong, "each moved once");

    let intake = whole(&fixture, &fixture.names.intake());
    let mut stood: BTreeMap<String, Vec<(i32, bool)>> = BTreeMap::new();
    for rec in &intake {
        let is_moved = rec.headers.iter().any(|(name, _)| name == b"x-delay-state");
        stood.entry(rec.text()).or_default().push((rec.partition, is_moved));
    }
    for (n, key) in sent.iter().enumerate() {
        let mut places = stood.remove(&n.to_string()).expect("it was written");
        places.sort_by_key(|(_, is_moved)| *is_moved);
        let (first, lane) = (acks[n].partition, lane(&fixture, key));
        let wanted =
            if first == lane { vec![(first, false)] } else { vec![(first, false), (lane, true)] };
        assert_eq!(places, wanted, "record {n} of {key}");
    }

    let seen = whole(&fixture, &target);
    assert_each_once((0..sent.len()).map(|n| n.to_string()), &seen);
    let mut of_key: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for rec in &seen {
        let n: usize = rec.text().parse().unwrap();
        // The first append counts, not that of the move.
        assert!(rec.at >= acks[n].at + 3_000, "early: {rec:?}");
        let key = String::from_utf8_lossy(rec.key.as_deref().unwrap_or_default()).into_owned();
        of_key.entry(key).or_default().push(n);
    }
    for (key, numbers) in of_key {
        assert!(numbers.is_sorted(), "{key} arrived as {numbers:?}");
    }
}

fn producers_with_different_partitioners_share_a_key(mode: Mode) {
    let fixture = fixture("shared", mode);
    let target = fixture.timed_target("out", 1);
    let mut process = fixture.start(mode);
    let crc = crc32(&fixture);
    let java = fixture.producer();
    let intake = fixture.names.intake();
    // A key that the two hash to different partitions.
    let key = (0..100)
        .map(|n| format!("probe-{n}"))
        .find(|key| {
            let ack = crc.send_one(&intake, &out("probe").key(key).delay(0).to(&target));
            ack.partition != lane(&fixture, key)
        })
        .expect("a key that they hash differently");
    let mut due = Vec::new();
    // Later ones are due earlier, so order is by due time and not by arrival.
    for n in 0..20_u64 {
        let producer = if n % 2 == 0 { &crc } else { &java };
        let delay = 6_000 - 100 * n;
        let ack =
            producer.send_one(&intake, &out(format!("{n}")).key(&key).delay(delay).to(&target));
        due.push(ack.at + delay);
    }
    let numbers = |seen: &[Rec]| -> Vec<usize> {
        seen.iter().filter_map(|rec| rec.text().parse().ok()).collect()
    };
    Log::open(&fixture, &target).until("all 20", |seen| numbers(seen).len() >= 20);
    process.stop_well();
    let seen = whole(&fixture, &target);
    let arrived = numbers(&seen);
    assert_eq!(arrived.len(), 20, "{seen:#?}");
    let mut wanted: Vec<usize> = (0..20).collect();
    wanted.sort_by_key(|n| due[*n]);
    let last_sent = due[19] - (6_000 - 1_900);
    // Of those whose place was known in time: all were readable well before they were due.
    assert!(
        due.iter().all(|due| *due > last_sent + 50),
        "the machine took too long to send: {due:?}"
    );
    let of_due = |order: &[usize]| -> Vec<u64> { order.iter().map(|n| due[*n]).collect() };
    assert_eq!(of_due(&arrived), of_due(&wanted));
}
