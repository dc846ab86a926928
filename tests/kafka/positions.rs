//! Positions that are gone: offsets of a group that was away for too long expire.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseRecord, Producer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::support::{Fixture, Log, Mode, PATIENCE, eventually, in_both_modes, out, whole};

/// Deletes the group, as the broker does after `offsets.retention.minutes`.
fn forget(fixture: &Fixture) {
    let admin: AdminClient<DefaultClientContext> =
        fixture.client().create().expect("an admin client");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let options = AdminOptions::new().request_timeout(Some(Duration::from_secs(10)));
    eventually("the group is deleted", || {
        let deleted = runtime.block_on(admin.delete_groups(&[fixture.namespace()], &options));
        match deleted.expect("an answer").pop() {
            Some(Ok(_)) => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    });
}

/// Deletes what is done before an offset, as waterclock does.
fn trim(fixture: &Fixture, topic: &str, partition: i32, before: i64) {
    let admin: AdminClient<DefaultClientContext> =
        fixture.client().create().expect("an admin client");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let options = AdminOptions::new().request_timeout(Some(Duration::from_secs(10)));
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, partition, Offset::Offset(before)).expect("an offset");
    runtime.block_on(admin.delete_records(&list, &options)).expect("records deleted");
}

/// Takes every checkpoint out of meta: as if it had been made anew.
fn forget_checkpoints(fixture: &Fixture) {
    let producer: rdkafka::producer::BaseProducer = fixture.client().create().expect("a producer");
    let meta = fixture.names.meta();
    for topic in fixture.lane_topics() {
        for lane in 0..i32::from(fixture.lanes()) {
            let key = format!("position/{topic}/{lane}");
            let record: BaseRecord<'_, str, str> = BaseRecord::to(&meta).partition(1).key(&key);
            producer.send(record).expect("enqueued");
        }
    }
    producer.flush(PATIENCE).expect("flushed");
}

#[test]
fn a_group_that_is_gone_goes_on_from_its_checkpoints() {
    let fixture = Fixture::with("positions", |request| request.lanes = Some(2));
    let target = fixture.target("out", 1);
    let mut log = Log::open(&fixture, &target);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let producer = fixture.producer();
    for n in 0..4 {
        let record = out(n.to_string()).key("k").to(&target).delay(0);
        producer.send(&fixture.names.intake(), &record);
    }
    log.count(4);
    process.stop_well();

    forget(&fixture);
    let mut again = fixture.start(Mode::ExactlyOnce);
    producer.send_one(&fixture.names.intake(), &out("4").key("k").to(&target).delay(0));
    log.count(5);
    again.stop_well();
    assert_eq!(whole(&fixture, &target).len(), 5, "nothing was delivered again");
}

#[test]
fn a_lane_whose_position_is_known_to_nobody_is_not_guessed() {
    let fixture = Fixture::with("positions", |request| request.lanes = Some(2));
    let target = fixture.target("out", 1);
    let intake = fixture.names.intake();
    let mut log = Log::open(&fixture, &target);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let producer = fixture.producer();
    let mut last = None;
    for n in 0..4 {
        last = Some(producer.send_one(&intake, &out(n.to_string()).key("k").to(&target).delay(0)));
    }
    let last = last.expect("four were sent");
    log.count(4);
    process.stop_well();

    trim(&fixture, &intake, last.partition, last.offset);
    forget(&fixture);
    forget_checkpoints(&fixture);
    let mut again = fixture.launch(Mode::ExactlyOnce).spawn();
    let code = again.wait(PATIENCE);
    assert_eq!(code, Some(78), "{}", again.log());
    let said = format!("has no committed offset for {intake}/{}", last.partition);
    assert!(again.log().contains(&said), "{}", again.log());
    assert_eq!(whole(&fixture, &target).len(), 4, "nothing was delivered again");
}

fn what_is_done_is_known_after_a_clean_stop_and_no_offsets(mode: Mode) {
    let fixture = Fixture::new("positions");
    let target = fixture.target("out", 1);
    let mut log = Log::open(&fixture, &target);
    let mut process = fixture.start(mode);
    let producer = fixture.producer();
    for n in 0..100 {
        let record = out(n.to_string()).key(n.to_string()).to(&target).delay(n * 50);
        producer.send(&fixture.names.intake(), &record);
    }
    log.count(100);
    process.stop_well();
    forget(&fixture);
    let mut again = fixture.start(mode);
    fixture.wait_until_nothing_is_pending();
    again.stop_well();
    assert_eq!(whole(&fixture, &target).len(), 100, "{mode:?}: a clean stop repeats nothing");
}

in_both_modes!(what_is_done_is_known_after_a_clean_stop_and_no_offsets);
