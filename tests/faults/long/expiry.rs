//! Offsets of a group that is away for too long expire.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::support::{
    Cluster, Fixture, Log, Mode, Process, assert_promise, eventually, eventually_within, out, whole,
};

/// The load of one mode: what is pending when everything is down for longer than offsets are kept.
struct Away {
    mode: Mode,
    fixture: Fixture,
    target: String,
    process: Process,
}

const RECORDS: usize = 600;

#[test]
#[ignore = "scripts/faults --long: offsets are kept for a minute"]
fn f27_offsets_that_expire_lose_nothing_and_repeat_nothing() {
    let cluster =
        Cluster::start("offsets.retention.minutes=1\noffsets.retention.check.interval.ms=5000\n");
    let mut away: Vec<Away> = [Mode::ExactlyOnce, Mode::AtLeastOnce]
        .map(|mode| {
            let fixture = Fixture::on(cluster.connection(), "expiry", |_| {});
            let target = fixture.target("out", 3);
            let process = fixture.start(mode);
            Away { mode, fixture, target, process }
        })
        .into();
    for Away { fixture, target, .. } in &away {
        let producer = fixture.producer();
        for n in 0..RECORDS {
            let delay = n * 7_919 % 20_000;
            let record = out(n.to_string()).key(format!("k{}", n % 50)).to(target).delay(delay);
            producer.send(&fixture.names.intake(), &record);
        }
        producer.acks();
    }
    for Away { fixture, target, process, mode } in &mut away {
        let mut log = Log::open(fixture, target);
        log.count(RECORDS / 4);
        eventually("marks of what is pending are committed", || match committed(fixture)? {
            (_, marks) if marks >= 3 => Ok(()),
            found => Err(format!("{found:?}")),
        });
        process.kill();
        let seen = whole(fixture, target).len();
        assert!(seen < RECORDS, "{mode:?}: all of them were delivered before the kill");
    }
    for Away { fixture, .. } in &away {
        eventually_within(
            Duration::from_secs(150),
            "all offsets have expired",
            || match committed(fixture)? {
                (0, _) => Ok(()),
                found => Err(format!("{found:?}")),
            },
        );
    }
    for Away { mode, fixture, target, .. } in &away {
        let mut again = fixture.start(*mode);
        assert!(again.log().contains("looked among the checkpoints"), "{}", again.log());
        Log::open(fixture, target).ids(RECORDS);
        fixture.wait_until_nothing_is_pending();
        again.stop_well();
        let ids = (0..RECORDS).map(|n| n.to_string());
        assert_promise(*mode, ids, &whole(fixture, target));
    }
}

/// What the group has committed: how many positions, and how many of them with marks of what is pending.
fn committed(fixture: &Fixture) -> Result<(usize, usize), String> {
    let mut config = fixture.client();
    config.set("group.id", fixture.namespace()).set("enable.auto.commit", "false");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    let mut wanted = TopicPartitionList::new();
    for topic in fixture.lane_topics() {
        wanted.add_partition_range(&topic, 0, i32::from(fixture.lanes()) - 1);
    }
    let told = consumer.committed_offsets(wanted, Duration::from_secs(10));
    let told = told.map_err(|error| error.to_string())?;
    let elements = told.elements();
    let positions = elements.iter().filter(|e| matches!(e.offset(), Offset::Offset(_)));
    let marks = elements.iter().filter(|e| !e.metadata().is_empty());
    Ok((positions.count(), marks.count()))
}
