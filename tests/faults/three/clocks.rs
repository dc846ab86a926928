//! F19, the part that one broker cannot show: a clock that is behind, of a broker that leads nothing which is probed.

use std::time::Duration;

use crate::load::mode;
use crate::support::{
    Clock, Fixture, Log, Mode, Nodes, PATIENCE, Rec, assert_promise, eventually_within, out, tool,
    whole,
};

/// How far it is behind, in milliseconds.
const BEHIND: i64 = 3_000;
const DELAY: u64 = 1_000;
/// Records, one every fifth of a second.
const RECORDS: usize = 150;
const EVERY: Duration = Duration::from_millis(200);
/// In `at_least_once`: so many may be on their way before the first tells of the clock.
const EARLY_MAX: usize = 8;
const REASSIGN: &str = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand";

/// A node that goes by another clock, until this is dropped.
struct Astray<'a> {
    nodes: &'a Nodes,
    node: i32,
    _clock: Clock,
}

impl<'a> Astray<'a> {
    fn new(nodes: &'a Nodes, node: i32, ahead_ms: i64) -> Self {
        let clock = Clock::new();
        clock.set(ahead_ms);
        nodes.stop(node);
        nodes.restart_with(node, &clock.environment());
        Self { nodes, node, _clock: clock }
    }
}

impl Drop for Astray<'_> {
    fn drop(&mut self) {
        self.nodes.stop(self.node);
        self.nodes.restart(self.node);
    }
}

/// Has all partitions of a topic led by others than this node.
fn move_away(fixture: &Fixture, nodes: &Nodes, topic: &str, node: i32) {
    let others: Vec<i32> = nodes.all.iter().copied().filter(|other| *other != node).collect();
    let partitions = nodes.partitions().expect("an answer");
    let count = partitions.keys().filter(|(name, _)| name == topic).count();
    let moves: Vec<_> = (0..count)
        .map(|partition| {
            let (first, second) = (others[partition % 2], others[(partition + 1) % 2]);
            serde_json::json!({ "topic": topic, "partition": partition, "replicas": [first, second] })
        })
        .collect();
    let file = fixture.path("reassign.json");
    let plan = serde_json::json!({ "version": 1, "partitions": moves });
    std::fs::write(&file, plan.to_string()).expect("written");
    let file = file.display().to_string();
    tool(REASSIGN, &["--execute", "--reassignment-json-file", &file]);
    eventually_within(PATIENCE, "another node leads each of them", || {
        let partitions = nodes.partitions()?;
        let of_topic = partitions.iter().filter(|((name, _), _)| name == topic);
        let left = of_topic.filter(|(_, found)| found.leader == node || found.replicas != 2);
        match left.count() {
            0 => Ok(()),
            left => Err(format!("{left} of {count}")),
        }
    });
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f19_a_broker_behind_whose_clock_nobody_asks_is_known_by_what_it_appends() {
    let nodes = Nodes::ours();
    nodes.heal();
    let fixture = Fixture::new("f19-unasked");
    let target = fixture.lonely_target("behind");
    let node = nodes.leader(&target, 0);
    move_away(&fixture, &nodes, &format!("{}.meta", fixture.namespace()), node);
    let astray = Astray::new(&nodes, node, -BEHIND);
    assert_eq!(nodes.leader(&target, 0), node, "nobody else has it");

    let mut process = fixture.start(mode());
    let producer = fixture.producer();
    for n in 0..RECORDS {
        let record = out(n.to_string()).key(format!("k{}", n % 7)).delay(DELAY).to(&target);
        producer.send(&fixture.names.intake(), &record);
        std::thread::sleep(EVERY);
    }
    let acks = producer.acks();
    let mut log = Log::open(&fixture, &target);
    log.count(RECORDS);
    let seen = whole(&fixture, &target);
    assert_promise(mode(), (0..RECORDS).map(|n| n.to_string()), &seen);
    let due = |rec: &Rec| acks[rec.text().parse::<usize>().expect("its number")].at + DELAY;
    let early: Vec<&Rec> = seen.iter().filter(|rec| rec.at < due(rec)).collect();
    // Without a transaction the first cannot be taken back.
    let most = if mode() == Mode::ExactlyOnce { 0 } else { EARLY_MAX };
    assert!(early.len() <= most, "early by its clock: {early:?}");
    let lateness = seen.iter().map(|rec| rec.at.saturating_sub(due(rec))).max().expect("some");
    // By so much the other two are ahead of the one that is known to be behind.
    let ahead = process.metric("waterclock_clock_offset_seconds");
    process.stop_well();
    let said = process.log();
    let failed = said.matches("before it is due, as if a clock was set back").count();
    println!(
        "f19-unasked: the others are {ahead} s ahead, {failed} batches failed for what came to stand early, {} records were \
         early, late at most {lateness} ms by its clock",
        early.len()
    );
    assert!((ahead - 6.0).abs() < 1.0, "it is not known to be behind: {ahead} s");
    // One tells; the lanes' other committers may have had one on their way.
    assert!(failed <= 4, "{failed} batches failed: it was not learned from the first");
    drop(astray);
    nodes.heal();
}
