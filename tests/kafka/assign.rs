//! What a search for a record relies on of librdkafka: one client reads one topic after the other without a pause.

use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::topic_partition_list::Offset;

use crate::support::{Fixture, PATIENCE, out, patient};

/// A client that is assigned a topic which is new to it hears of that when it looks for leaders next, up to a second later.
/// One that has asked for the topic's metadata before hears of it at once. A search gives a partition up after 500 ms.
#[test]
fn a_reader_that_has_asked_for_a_topics_metadata_hears_of_it_at_once() {
    let fixture = Fixture::new("assign");
    let topics: Vec<String> = (0..6).map(|n| fixture.target(&format!("t{n}"), 1)).collect();
    for topic in &topics {
        fixture.producer().send_one(topic, &out("v"));
    }
    let heard = |reader: &BaseConsumer, topic: &str, is_asked: bool| {
        let began = Instant::now();
        if is_asked {
            reader.fetch_metadata(Some(topic), PATIENCE).expect("metadata");
        }
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, 0, Offset::Beginning).expect("a partition");
        reader.assign(&list).expect("assigned");
        while began.elapsed() < PATIENCE {
            if let Some(Ok(_)) = reader.poll(Duration::from_millis(20)) {
                break;
            }
        }
        began.elapsed()
    };
    let of = |is_asked: bool| -> Vec<Duration> {
        let mut config = fixture.client();
        config.set("group.id", fixture.namespace()).set("fetch.wait.max.ms", "50");
        config.set("enable.partition.eof", "true").set("allow.auto.create.topics", "false");
        let reader: BaseConsumer = config.create().expect("a reader");
        topics.iter().map(|topic| heard(&reader, topic, is_asked)).skip(1).collect()
    };
    let (asked, unasked) = (of(true), of(false));
    println!("after it has asked {asked:?}, without {unasked:?}");
    // The best of five: the machine may be busy.
    let best = asked.iter().min().expect("five");
    assert!(*best < patient(Duration::from_millis(300)), "{asked:?}");
}
