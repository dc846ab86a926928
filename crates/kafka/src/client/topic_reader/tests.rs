use std::cell::Cell;

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use super::*;
use crate::client::Embedded;

const T: &str = "t";

fn assigned(from: StartAt, to: i64) -> Assigned {
    let mut assigned = Assigned::default();
    assigned.add(T, 0, from, Some(Offset(to)));
    assigned
}

#[test]
fn a_partition_is_read_once_the_position_is_at_its_end_and_not_by_its_last_record() {
    let mut of = assigned(StartAt::Offset(Offset(3)), 7);
    assert!(!of.pass(T, 0, Offset(2)), "it was read before");
    assert!(!of.pass(T, 1, Offset(3)) && !of.pass("u", 0, Offset(3)), "of an earlier assignment");
    assert!(of.pass(T, 0, Offset(3)));
    assert!(of.pass(T, 0, Offset(5)), "4 was compacted, or a mark");
    assert!(!of.pass(T, 0, Offset(5)), "twice");
    let open = of.open().map(|at| at.to_string());
    assert_eq!(open.as_deref(), Some("t/0@6"), "6 may be a mark, and nothing says so yet");
    // As an end of librdkafka's does.
    of.get(T, 0).unwrap().next = Some(Offset(7));
    assert_eq!(of.open(), None);
}

#[test]
fn of_nothing_nothing_is_read() {
    for (from, to) in [(StartAt::Beginning, 0), (StartAt::Offset(Offset(4)), 4)] {
        let mut of = assigned(from, to);
        of.forget_whole();
        assert!(of.open().is_none() && of.0.is_empty(), "{from:?}");
    }
    let mut of = assigned(StartAt::Beginning, 1);
    of.forget_whole();
    assert_eq!(
        of.open().map(|at| at.to_string()).as_deref(),
        Some("t/0"),
        "where it begins is not known"
    );
}

/// A broker with so many records in each of the partitions.
fn broker(records: [i32; 2]) -> (Embedded, Connection) {
    let broker = Embedded::start([T, "u"], 2).unwrap();
    let connection = broker.connection();
    let producer: BaseProducer =
        ClientConfig::new().set("bootstrap.servers", &connection.brokers).create().unwrap();
    for topic in [T, "u"] {
        for (partition, count) in (0..).zip(records) {
            for n in 0..count {
                let value = format!("{topic}/{partition}@{n}");
                let record: BaseRecord<'_, (), str> =
                    BaseRecord::to(topic).partition(partition).payload(&value);
                producer.send(record).unwrap();
            }
        }
    }
    producer.flush(Duration::from_secs(30)).unwrap();
    (broker, connection)
}

fn reader(connection: &Connection) -> TopicReader {
    let wait = Duration::from_millis(20);
    TopicReader::to_ends(connection, "test", Isolation::Committed, wait).unwrap()
}

fn span(partition: i32, from: i64, to: i64) -> Span {
    Span { partition, from: StartAt::Offset(Offset(from)), to: Offset(to) }
}

/// The values that were handed over, and how it ended.
fn read(
    reader: &mut TopicReader,
    topic: &str,
    spans: &[Span],
    silence: Duration,
) -> (Vec<String>, Result<Ended, ReadError>) {
    let mut values = Vec::new();
    let patience = Patience::silence(silence);
    let ended = reader.read(topic, spans.iter().copied(), patience, |record| {
        values.push(String::from_utf8(record.value().unwrap().to_vec()).unwrap());
        Ok(ControlFlow::Continue(()))
    });
    (values, ended)
}

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn what_is_read_is_what_was_asked_for_whatever_was_read_before() {
    let (_broker, connection) = broker([10, 3]);
    let mut reader = reader(&connection);
    let ends = reader.offsets(T, 0..2, reader.end(), PATIENCE).unwrap();
    assert_eq!(ends, BTreeMap::from([(0, Offset(10)), (1, Offset(3))]));
    let places = |topic: &str, partition: i32, all: std::ops::Range<i64>| -> Vec<String> {
        all.map(|n| format!("{topic}/{partition}@{n}")).collect()
    };
    #[rustfmt::skip]
    let cases = [
        ("the middle",            T,   vec![span(0, 2, 7)],                places(T, 0, 2..7)),
        ("again, by an overlap",  T,   vec![span(0, 5, 8)],                places(T, 0, 5..8)),
        ("backwards",             T,   vec![span(0, 0, 10)],               places(T, 0, 0..10)),
        ("the same of another",   "u", vec![span(0, 1, 3)],                places("u", 0, 1..3)),
        ("to the end and nothing", T,  vec![span(1, 0, 3), span(0, 4, 4)], places(T, 1, 0..3)),
    ];
    for (why, topic, spans, want) in cases {
        let (values, ended) = read(&mut reader, topic, &spans, PATIENCE);
        assert_eq!(values, want, "{why}");
        assert!(matches!(ended, Ok(Ended::Whole)), "{why}: {ended:?}");
    }
    let (mut both, ended) = read(&mut reader, T, &[span(0, 8, 10), span(1, 1, 3)], PATIENCE);
    both.sort_unstable();
    assert_eq!(both, [places(T, 0, 8..10), places(T, 1, 1..3)].concat());
    assert!(matches!(ended, Ok(Ended::Whole)), "{ended:?}");
}

#[test]
fn reading_ends_when_it_is_enough_or_nobody_waits_or_nothing_comes_and_says_where() {
    let (_broker, connection) = broker([10, 3]);
    let mut reader = reader(&connection);
    let mut seen = 0;
    let enough = reader.read(T, [span(0, 0, 10)], Patience::silence(PATIENCE), |_| {
        seen += 1;
        Ok::<_, ReadError>(if seen == 4 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    });
    assert!(matches!(enough, Ok(Ended::Enough)) && seen == 4, "{enough:?} {seen}");

    let wanted = Cell::new(3);
    let is_wanted = || wanted.get() > 0;
    let patience = Patience { silence: PATIENCE, by: None, is_wanted: &is_wanted };
    let unwanted = reader.read(T, [span(0, 0, 10)], patience, |_| {
        wanted.set(wanted.get() - 1);
        Ok::<_, ReadError>(ControlFlow::Continue(()))
    });
    assert!(matches!(unwanted, Ok(Ended::Unwanted)), "{unwanted:?}");

    // An end that is not there yet, as a leader says it that has just become one.
    let (values, silent) = read(&mut reader, T, &[span(0, 7, 20)], Duration::from_millis(300));
    assert_eq!(values.len(), 3, "what is there is handed over");
    match silent {
        Err(ReadError::Silent { at, .. }) => assert_eq!(at.to_string(), "t/0@10"),
        other => panic!("{other:?}"),
    }

    let (values, cut) = read(&mut reader, T, &[span(0, 50, 60)], PATIENCE);
    assert_eq!(values.len(), 0);
    match cut {
        Err(ReadError::Cut { at, end }) => {
            assert_eq!((at.to_string().as_str(), end), ("t/0@50", Offset(10)));
        }
        other => panic!("{other:?}"),
    }
}
