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

/// `position/<topic>/<partition>` of one partition only.
fn forget_checkpoint(fixture: &Fixture, topic: &str, partition: i32) {
    let producer: rdkafka::producer::BaseProducer = fixture.client().create().expect("a producer");
    let (meta, key) = (fixture.names.meta(), format!("position/{topic}/{partition}"));
    let record: BaseRecord<'_, str, str> = BaseRecord::to(&meta).partition(1).key(&key);
    producer.send(record).expect("enqueued");
    producer.flush(PATIENCE).expect("flushed");
}

#[test]
fn what_was_deleted_while_nobody_knew_a_position_is_said_and_a_new_topic_says_nothing() {
    let fixture = Fixture::with("positions", |request| request.lanes = Some(2));
    let target = fixture.target("out", 1);
    let intake = fixture.names.intake();
    let send =
        |id: &str| fixture.producer().send_one(&intake, &out(id).key("k").to(&target).delay(0));
    const LOST: &str = "waterclock_records_lost_total";
    let mut log = Log::open(&fixture, &target);
    // Before the first start: they may have been anything.
    let before = [send("0"), send("1")][1];
    trim(&fixture, &intake, before.partition, before.offset + 1);
    let mut process = fixture.start(Mode::ExactlyOnce);
    send("2");
    log.count(1);
    let said = "were deleted before it was read for the first time";
    assert_eq!(process.log().matches(said).count(), 1, "of one partition: {}", process.log());
    assert_eq!((process.metric(LOST), process.log().matches("is lost").count()), (0.0, 0));
    process.stop_well();

    // While the group was away, with a checkpoint: of the other lane, whose position never changed.
    let other = 1 - before.partition;
    let producer = fixture.producer();
    let (mut elsewhere, mut delivered) = (None, 1);
    for n in 0..64 {
        let ack = producer.send_one(&intake, &out("never").key(n.to_string()).to(&target).delay(0));
        if ack.partition == other {
            elsewhere = Some(ack);
            break;
        }
        delivered += 1;
    }
    let elsewhere = elsewhere.expect("a key of the other lane");
    trim(&fixture, &intake, other, elsewhere.offset + 1);
    forget(&fixture);
    let mut process = fixture.start(Mode::ExactlyOnce);
    assert!(process.log().contains("the position is outside of the log"), "{}", process.log());
    assert_eq!(process.metric(LOST), (elsewhere.offset + 1) as f64);
    log.count(delivered);
    process.stop_well();

    // The same without: a lane that was read before has lost its position.
    let last = send("never");
    trim(&fixture, &intake, last.partition, last.offset + 1);
    forget(&fixture);
    forget_checkpoint(&fixture, &intake, last.partition);
    let mut process = fixture.start(Mode::ExactlyOnce);
    assert!(process.log().contains("nobody knows what of them was done"), "{}", process.log());
    assert!(process.metric(LOST) >= (last.offset + 1) as f64, "{}", process.metric(LOST));
    send("3");
    log.count(delivered + 1);
    process.stop_well();
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
