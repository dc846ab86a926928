//! Positions that are gone: offsets of a group that was away for too long expire.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::support::{Fixture, Log, Mode, PATIENCE, eventually, out, whole};

/// Deletes what is done before an offset, as waterclock does, and the group, as the broker does after
/// `offsets.retention.minutes`.
fn forget(fixture: &Fixture, topic: &str, partition: i32, before: i64) {
    let admin: AdminClient<DefaultClientContext> =
        fixture.client().create().expect("an admin client");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let options = AdminOptions::new().request_timeout(Some(Duration::from_secs(10)));
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, partition, Offset::Offset(before)).expect("an offset");
    runtime.block_on(admin.delete_records(&list, &options)).expect("records deleted");
    eventually("the group is deleted", || {
        let deleted = runtime.block_on(admin.delete_groups(&[fixture.namespace()], &options));
        match deleted.expect("an answer").pop() {
            Some(Ok(_)) => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    });
}

#[test]
fn a_lane_whose_position_has_expired_is_not_guessed() {
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

    forget(&fixture, &intake, last.partition, last.offset);
    let mut again = fixture.launch(Mode::ExactlyOnce).spawn();
    let code = again.wait(PATIENCE);
    assert_eq!(code, Some(78), "{}", again.log());
    let said = format!("has no committed offset for {intake}/{}", last.partition);
    assert!(again.log().contains(&said), "{}", again.log());
    assert_eq!(whole(&fixture, &target).len(), 4, "nothing was delivered again");
}
