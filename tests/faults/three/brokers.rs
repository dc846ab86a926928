//! F7, F8, F9, F33, F36: brokers that are killed, frozen, stopped, and too few.

use std::time::Duration;

use crate::load::mode;
use crate::support::{Mode, OFFSET_COMMIT, State, TXN_OFFSET_COMMIT, eventually};

use super::{Bed, Through, row};

/// A killed broker counts as dead after the cluster's `broker.session.timeout.ms` (6 s here, 9 s by default), which begins
/// again if it was the active controller; its partitions have other leaders a moment later. What was seen stands in
/// docs/performance.md; these bounds leave room for a machine that does much else.
const KILLED: Duration = Duration::from_secs(25);
/// A frozen one keeps its connections open: `socket.timeout.ms` runs beside that.
const FROZEN: Duration = Duration::from_secs(30);

/// Kills the leader of a partition, which proves to have been one by having a successor.
fn kill_leader(bed: &Bed<'_>, topic: &str, partition: i32) {
    let node = bed.nodes.leader(topic, partition);
    bed.nodes.kill(node);
    bed.load.healed();
    wait_for_successor(bed, topic, partition, node);
    bed.load.wait_for_more(200);
}

fn wait_for_successor(bed: &Bed<'_>, topic: &str, partition: i32, before: i32) {
    eventually(&format!("{topic}/{partition} has another leader than {before}"), || {
        match bed.nodes.leader(topic, partition) {
            now if now == before => Err(now.to_string()),
            _ => Ok(()),
        }
    });
}

/// The partitions of this row's namespace that a node leads.
fn own_partitions_led_by(bed: &Bed<'_>, node: i32) -> Vec<(String, i32)> {
    let partitions = eventually("partitions are known", || bed.nodes.partitions());
    let own = format!("{}.", bed.fixture.namespace());
    let led = partitions.into_iter().filter(|(_, found)| found.leader == node);
    led.map(|(partition, _)| partition).filter(|(topic, _)| topic.starts_with(&own)).collect()
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f7_the_leader_of_an_intake_is_killed() {
    row("f7-intake", Through::Nothing, KILLED, |bed| {
        kill_leader(bed, &bed.fixture.names.intake(), 0);
    });
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f7_the_leader_of_a_tier_is_killed() {
    row("f7-tier", Through::Nothing, KILLED, |bed| {
        let tiers = bed.fixture.lane_topics();
        kill_leader(bed, &tiers[tiers.len() - 1], 0);
    });
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f7_the_leader_of_a_target_is_killed() {
    row("f7-target", Through::Nothing, KILLED, |bed| kill_leader(bed, &bed.load.target, 0));
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f7_the_leader_of_the_changelog_is_killed() {
    row("f7-timers", Through::Nothing, KILLED, |bed| {
        kill_leader(bed, &format!("{}.timers", bed.fixture.namespace()), 0);
    });
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f7_the_coordinator_of_the_group_is_killed() {
    row("f7-group", Through::Nothing, KILLED, |bed| {
        let node = bed.coordinator();
        bed.nodes.kill(node);
        bed.load.healed();
        eventually("the group has another coordinator", || {
            if bed.coordinator() == node { Err(node.to_string()) } else { Ok(()) }
        });
        bed.load.wait_for_more(200);
    });
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f7_the_coordinator_of_the_transactions_is_killed() {
    row("f7-transactions", Through::Nothing, KILLED, |bed| {
        let name = std::fs::read_to_string(bed.fixture.path("a").join("instance")).unwrap();
        let name = name.lines().next().unwrap_or_default();
        let id = format!("{}/{name}/0/0", bed.fixture.namespace());
        let coordinator = || bed.nodes.transaction_coordinator(&id);
        let node = coordinator();
        bed.nodes.kill(node);
        bed.load.healed();
        eventually("the transactions have another coordinator", || {
            if coordinator() == node { Err(node.to_string()) } else { Ok(()) }
        });
        bed.load.wait_for_more(200);
    });
}

/// Freezes the coordinator of the group for so long. Its connections stay open and say nothing.
fn freeze(bed: &Bed<'_>, long: Duration) {
    let node = bed.coordinator();
    bed.nodes.pause(node);
    bed.load.healed();
    let since = std::time::Instant::now();
    eventually("the group has another coordinator", || {
        if bed.coordinator() == node { Err(node.to_string()) } else { Ok(()) }
    });
    bed.load.wait_for_more(100);
    std::thread::sleep(long.saturating_sub(since.elapsed()));
    bed.nodes.resume(node);
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f8_a_broker_is_frozen_for_15_s() {
    row("f8-15s", Through::Nothing, FROZEN, |bed| freeze(bed, Duration::from_secs(15)));
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f8_a_broker_is_frozen_for_60_s() {
    row("f8-60s", Through::Nothing, FROZEN, |bed| freeze(bed, Duration::from_secs(60)));
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f9_all_brokers_are_restarted_one_after_the_other() {
    row("f9", Through::Nothing, KILLED, |bed| {
        bed.load.healed();
        for node in &bed.nodes.all {
            let led = own_partitions_led_by(bed, *node);
            assert!(!led.is_empty(), "{node} leads nothing of ours: its stop shows nothing");
            bed.nodes.stop(*node);
            for (topic, partition) in &led {
                wait_for_successor(bed, topic, *partition, *node);
            }
            bed.load.wait_for_more(60);
            bed.nodes.restart(*node);
            bed.nodes.heal();
        }
    });
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f33_a_target_has_too_few_replicas_for_30_s() {
    row("f33", Through::Nothing, KILLED, |bed| {
        // All three, so that one that is away is too few.
        let id = bed.fixture.name("strict");
        let _ = bed.fixture.target_with("strict", 1, &[("min.insync.replicas", "3")]);
        let producer = bed.fixture.producer();
        let node = bed.nodes.all[0];
        bed.nodes.kill(node);
        let record = crate::support::out("too few").key("k").delay(1_000).to(&id);
        producer.send_one(&bed.fixture.names.intake(), &record);
        // At once if the target is looked up now, else when the batch with it has failed. From then on the others flow.
        eventually("it waits in a tier", || match bed.process.metric("waterclock_put_off_total") {
            0.0 => Err("it does not".to_owned()),
            _ => Ok(()),
        });
        let before = bed.load.seen();
        std::thread::sleep(Duration::from_secs(20));
        let others = bed.load.seen() - before;
        assert!(others > 300, "{others} others in 20 s");
        assert_eq!(bed.process.get("/health/live").unwrap().0, 200);
        bed.nodes.restart(node);
        bed.nodes.heal();
        bed.load.healed();
        let mut log = crate::support::Log::open(bed.fixture, &id);
        log.count(1);
    });
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f36_the_coordinator_moves_in_the_middle_of_a_commit() {
    row("f36", Through::TheProxy, FROZEN, |bed| {
        let node = bed.coordinator();
        // A producer commits within its transaction, else the consumer does.
        let hold = match mode() {
            Mode::ExactlyOnce => bed.proxy().hold(TXN_OFFSET_COMMIT, bed.fixture.namespace(), None),
            Mode::AtLeastOnce => bed.proxy().hold(OFFSET_COMMIT, "waterclock/", None),
        };
        hold.wait_until(State::Held);
        bed.nodes.kill(node);
        bed.load.healed();
        hold.release();
        eventually("the group has another coordinator", || {
            if bed.coordinator() == node { Err(node.to_string()) } else { Ok(()) }
        });
        bed.load.wait_for_more(200);
    });
}
