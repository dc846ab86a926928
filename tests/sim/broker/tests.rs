//! The model itself: a simulation over a wrong Kafka proves nothing.

use std::sync::Arc;

use waterclock::engine::{Offset, Record};

use super::*;

fn record(value: &str) -> Record {
    Record::new(None, Some(value.as_bytes()), std::iter::empty())
}

fn broker() -> (Broker, Place) {
    let mut broker = Broker::new(vec![0, 40]);
    let topic = broker.create("t", 2, 1_000);
    (broker, Place { topic, partition: 0 })
}

fn writer(broker: &mut Broker, id: &str) -> Writer {
    loop {
        match broker.init(&Arc::from(id)) {
            Ok(writer) => return writer,
            Err(Refusal::Concurrent) => settle(broker),
            Err(refusal) => panic!("init of {id} refused: {refusal:?}"),
        }
    }
}

fn settle(broker: &mut Broker) {
    for marker in broker.missing_markers() {
        broker.write_marker(9, marker);
    }
}

fn seen(broker: &Broker, place: Place) -> Vec<String> {
    let (mut from, mut seen) = (Offset(0), Vec::new());
    while let Some((offset, entry)) = broker.fetch(place, from).unwrap() {
        let value = entry.record.as_ref().and_then(Record::value).unwrap_or_default();
        seen.push(String::from_utf8_lossy(value).into_owned());
        from = offset.next();
    }
    seen
}

fn at(place: Place, next: i64) -> Vec<(Place, Position)> {
    vec![(place, Position { next, metadata: String::new() })]
}

#[test]
fn a_reader_stops_before_the_first_open_transaction_and_never_sees_an_aborted_record() {
    let (mut broker, place) = broker();
    let (a, b) = (writer(&mut broker, "a"), writer(&mut broker, "b"));
    broker.produce(1, None, place, record("0")).unwrap();
    broker.produce(1, Some(&a), place, record("a")).unwrap();
    broker.produce(1, Some(&b), place, record("b")).unwrap();
    broker.produce(1, None, place, record("1")).unwrap();
    broker.end(&b, true).unwrap();
    settle(&mut broker);
    assert_eq!(seen(&broker, place), ["0"], "a is open, so b, though committed, waits");
    assert_eq!(broker.partition(place).unwrap().last_stable(), Offset(1));
    broker.end(&a, false).unwrap();
    assert_eq!(seen(&broker, place), ["0"], "decided is not marked");
    settle(&mut broker);
    assert_eq!(seen(&broker, place), ["0", "b", "1"]);
}

#[test]
fn a_second_producer_of_one_id_fences_the_first_and_aborts_what_it_left_open() {
    let (mut broker, place) = broker();
    let old = writer(&mut broker, "a");
    broker.produce(1, Some(&old), place, record("lost")).unwrap();
    let new = writer(&mut broker, "a");
    assert_eq!(broker.produce(2, Some(&old), place, record("zombie")), Err(Refusal::Fenced));
    assert_eq!(broker.end(&old, true), Err(Refusal::Fenced));
    broker.produce(2, Some(&new), place, record("new")).unwrap();
    broker.end(&new, true).unwrap();
    settle(&mut broker);
    assert_eq!(seen(&broker, place), ["new"]);
}

#[test]
fn a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced() {
    let (mut broker, place) = broker();
    let slow = writer(&mut broker, "a");
    broker.produce(100, Some(&slow), place, record("slow")).unwrap();
    broker.expire(15_099, &slow.id, 15_000);
    assert_eq!(broker.missing_markers(), [], "not before its time");
    broker.expire(15_100, &slow.id, 15_000);
    assert_eq!(broker.end(&slow, true), Err(Refusal::Fenced));
    settle(&mut broker);
    assert_eq!(seen(&broker, place), [""; 0]);
}

#[test]
fn a_late_end_of_the_same_epoch_ends_the_next_transaction() {
    let (mut broker, place) = broker();
    let a = writer(&mut broker, "a");
    broker.produce(1, Some(&a), place, record("1")).unwrap();
    broker.end(&a, true).unwrap();
    assert_eq!(broker.end(&a, true), Err(Refusal::Concurrent), "its markers are being written");
    settle(&mut broker);
    assert_eq!(broker.end(&a, true), Ok(()), "the same again is no error");
    broker.produce(1, Some(&a), place, record("2")).unwrap();
    broker.end(&a, true).unwrap();
    settle(&mut broker);
    assert_eq!(
        seen(&broker, place),
        ["1", "2"],
        "KAFKA-17754: the late one committed a half transaction"
    );
}

#[test]
fn offsets_of_a_transaction_cannot_be_fetched_until_its_marker_and_fall_with_it() {
    let (mut broker, place) = broker();
    broker.group.join("m");
    assert!(broker.group.complete(2));
    let a = writer(&mut broker, "a");
    for (commit, next, then) in [(true, 5, 5), (false, 7, 5)] {
        broker.send_offsets(1, &a, "m", 1, &at(place, next)).unwrap();
        assert_eq!(broker.committed(&[place]), Err(Refusal::Unstable));
        broker.end(&a, commit).unwrap();
        assert_eq!(broker.committed(&[place]), Err(Refusal::Unstable), "decided is not marked");
        settle(&mut broker);
        let committed = broker.committed(&[place]).unwrap();
        assert_eq!(committed, [Some(Position { next: then, metadata: String::new() })]);
    }
}

#[test]
fn an_old_generation_is_refused_once_the_next_one_began_and_not_before() {
    let (mut broker, place) = broker();
    broker.group.join("a");
    assert!(broker.group.complete(2));
    broker.group.join("b");
    assert!(!broker.group.complete(2), "a has not joined again");
    assert_eq!(
        broker.commit("a", 1, &at(place, 1)),
        Ok(()),
        "the round is open, the generation is not over"
    );
    broker.group.join("a");
    assert!(broker.group.complete(2));
    let a = writer(&mut broker, "a");
    let refused = broker.send_offsets(1, &a, "a", 1, &at(place, 2));
    assert_eq!(refused, Err(Refusal::IllegalGeneration));
    assert_eq!(broker.commit("a", 1, &at(place, 2)), Err(Refusal::IllegalGeneration));
    broker.group.remove("b");
    assert_eq!(broker.commit("b", 2, &at(place, 2)), Err(Refusal::IllegalGeneration));
    assert_eq!(broker.commit("a", 2, &at(place, 2)), Ok(()));
}

#[test]
fn range_gives_every_lane_to_one_member() {
    for (members, lanes, each) in [(1, 4, vec![4]), (3, 4, vec![2, 1, 1]), (3, 2, vec![1, 1, 0])] {
        let mut group = Group::default();
        let names: Vec<String> = (0..members).map(|m| format!("m{m}")).collect();
        names.iter().for_each(|name| group.join(name));
        assert!(group.complete(lanes));
        let of = |name: &String| group.assignment(name).map_or(0, |(_, lanes)| lanes.len());
        assert_eq!(names.iter().map(of).collect::<Vec<_>>(), each, "{members} over {lanes}");
    }
}

#[test]
fn what_is_deleted_cannot_be_read_but_stays_in_the_ledger() {
    let (mut broker, place) = broker();
    for value in ["0", "1", "2"] {
        broker.produce(1, None, place, record(value)).unwrap();
    }
    broker.delete_records(place, Offset(2));
    broker.delete_records(place, Offset(1));
    assert_eq!(broker.fetch(place, Offset(1)).err(), Some(Refusal::OutOfRange));
    assert_eq!(broker.fetch(place, Offset(2)).unwrap().map(|(offset, _)| offset), Some(Offset(2)));
    assert_eq!(broker.partition(place).unwrap().ledger().count(), 3);
}

#[test]
fn the_leader_stamps_and_a_record_above_the_topics_limit_is_refused() {
    let (mut broker, place) = broker();
    let other = Place { partition: 1, ..place };
    broker.produce(5, None, place, record("x")).unwrap();
    broker.produce(5, None, other, record("x")).unwrap();
    let stamp = |place| broker.fetch(place, Offset(0)).unwrap().unwrap().1.appended.0;
    assert_eq!((stamp(place), stamp(other)), (EPOCH_MS + 5, EPOCH_MS + 45));
    assert_eq!(broker.slowest_clock(5).0, EPOCH_MS + 5);
    let fits = 1_000 - 61 - 2 - 7;
    let exact = record(&"v".repeat(fits));
    assert_eq!(batch_bytes(&exact), 1_000);
    assert!(broker.produce(5, None, place, exact).is_ok());
    let above = record(&"v".repeat(fits + 1));
    assert_eq!(broker.produce(5, None, place, above), Err(Refusal::RecordTooLarge));
}
