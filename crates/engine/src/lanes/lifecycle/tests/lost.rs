//! Timers whose records are gone, and those that only wait for long.

use std::sync::Arc;

use super::kafka::{Kafka, TARGET, lane_of, record, source};
use crate::messages::{ChangeReason, Outcome};
use crate::setup::Limits;
use crate::timers::TimerState;
use crate::{Lane, Millis, Source};

fn create<'a>(n: &'a str, delay: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![("x-delay", delay), ("x-delay-target", TARGET), ("x-delay-id", "i"), ("n", n)]
}

/// Lets time pass until it has ended, or for ten minutes; what it says then.
fn ended(kafka: &mut Kafka) -> Option<TimerState> {
    for _ in 0..120 {
        kafka.after(Millis(5_000));
        if state(kafka).is_none_or(TimerState::is_final) {
            break;
        }
    }
    state(kafka)
}

fn state(kafka: &Kafka) -> Option<TimerState> {
    kafka.timer("k", "i").map(|timer| timer.state)
}

fn kafka() -> Kafka {
    Kafka::new(Limits { lost_after: Millis(60_000), ..Kafka::limits() })
}

/// One that is in a tier, with its owner gone.
fn in_a_tier() -> Kafka {
    let mut kafka = kafka();
    kafka.submit("k", &create("a", "30s"));
    kafka.after(Millis(1_000));
    kafka.stop();
    kafka
}

#[test]
fn what_a_leader_that_is_ahead_has_appended_is_waited_for() {
    for taken_over in [false, true] {
        let mut kafka = kafka();
        kafka.ahead = Millis(200_000);
        kafka.submit("k", &create("a", "30s"));
        kafka.after(Millis(1_000));
        kafka.ahead = Millis(0);
        if taken_over {
            kafka.take_over(&[]);
        }
        assert_eq!(ended(&mut kafka), Some(TimerState::Delivered), "taken over: {taken_over}");
        assert_eq!(kafka.figures().lost_timers, 0, "taken over: {taken_over}");
    }
}

/// Deletes all that stands in the tiers and intakes of its lane.
fn delete_all(kafka: &mut Kafka) {
    for topic in 0..4 {
        kafka.delete(source(topic, lane_of("k")));
    }
}

#[test]
fn a_timer_whose_record_was_deleted_ends_as_lost_and_its_id_is_free() {
    let mut kafka = in_a_tier();
    delete_all(&mut kafka);
    kafka.take_over(&[]);
    kafka.after(Millis(60_000));
    assert_eq!(state(&kafka), Some(TimerState::Delay), "it is only just due");
    assert_eq!(ended(&mut kafka), Some(TimerState::Lost));
    let lost = kafka.timer("k", "i").expect("its history is kept");
    assert_eq!(
        (lost.state, &*lost.id, lost.key.as_deref()),
        (TimerState::Lost, &b"i"[..], Some(&b"k"[..]))
    );
    assert_eq!((kafka.figures().lost_timers, kafka.figures().live), (1, 0));
    assert_eq!(kafka.said.iter().filter(|(reason, _)| *reason == ChangeReason::Lost).count(), 1);
    kafka.submit("k", &[("x-delay-action", "cancel"), ("x-delay-id", "i")]);
    kafka.after(Millis(100));
    assert_eq!(kafka.answers.last().map(|answer| answer.outcome), Some(Outcome::Absent));
    kafka.submit("k", &create("b", "1s"));
    kafka.after(Millis(5_000));
    assert_eq!(
        (state(&kafka), kafka.out.len()),
        (Some(TimerState::Delivered), 1),
        "a create is a create"
    );
    assert_eq!(kafka.figures().duplicates, 0);
}

/// Submits one timer of half an hour, another of 30 s in the same lane, and stops when both are in a tier.
fn two_in_tiers() -> (Kafka, String) {
    let other = (0..).map(|n: u32| n.to_string()).find(|key| lane_of(key) == lane_of("k"));
    let other = other.expect("a key of the same lane");
    let mut kafka = kafka();
    kafka.submit("k", &create("a", "30m"));
    kafka.submit(&other, &create("b", "4s"));
    kafka.after(Millis(1_000));
    kafka.stop();
    (kafka, other)
}

/// The tier that one of half an hour waits in.
fn longest() -> Source {
    source(3, lane_of("k"))
}

#[test]
fn what_is_found_gone_is_lost_at_once_and_nothing_else_is() {
    let (mut kafka, other) = two_in_tiers();
    kafka.delete(longest());
    kafka.is_told_gone = true;
    kafka.take_over(&[]);
    kafka.after(Millis(1_000));
    assert_eq!(
        (state(&kafka), kafka.inventories),
        (Some(TimerState::Lost), 1),
        "half an hour before"
    );
    let there = kafka.timer(&other, "i").map(|timer| timer.state);
    assert_eq!(there, Some(TimerState::Delay), "its record is in another tier");
    assert_eq!((kafka.figures().lost_timers, kafka.figures().live), (1, 1));
    kafka.submit("k", &create("c", "1s"));
    kafka.after(Millis(10_000));
    let out: Vec<&str> = kafka.out.iter().map(|out| out.n.as_str()).collect();
    assert_eq!(out, ["c", "b"], "a create after it is a create");
    // Once: not at each further start.
    kafka.stop();
    kafka.is_told_gone = false;
    kafka.take_over(&[]);
    kafka.after(Millis(100_000));
    assert_eq!(kafka.inventories, 1);
}

#[test]
fn a_copy_of_what_was_done_is_no_record() {
    // The intake has it still, behind one that is not done there.
    let mut kafka = kafka();
    let other = (0..).map(|n: u32| n.to_string()).find(|key| lane_of(key) == lane_of("k"));
    let other = other.expect("a key of the same lane");
    kafka.submit(&other, &create("b", "1500"));
    kafka.submit("k", &create("a", "30m"));
    kafka.after(Millis(100));
    kafka.stop();
    kafka.delete(longest());
    kafka.is_told_gone = true;
    kafka.take_over(&[]);
    kafka.after(Millis(100));
    assert_eq!((state(&kafka), kafka.figures().lost_timers), (Some(TimerState::Lost), 1));
    kafka.after(Millis(5_000));
    let state = kafka.timer(&other, "i").map(|timer| timer.state);
    assert_eq!(state, Some(TimerState::Delivered));
}

#[test]
fn a_lane_that_cannot_be_read_loses_nothing_and_is_counted_again() {
    let (mut kafka, _) = two_in_tiers();
    kafka.delete(longest());
    (kafka.is_told_gone, kafka.unreadable) = (true, vec![longest().lane]);
    kafka.take_over(&[]);
    kafka.after(Millis(30_000));
    assert_eq!((state(&kafka), kafka.inventories), (Some(TimerState::Delay), 1));
    // A batch fails meanwhile: that does not make it forget what is to be counted.
    kafka.fails = true;
    kafka.submit("k", &[("x-delay", "0"), ("x-delay-target", TARGET), ("n", "d")]);
    kafka.after(Millis(1_000));
    (kafka.is_told_gone, kafka.unreadable) = (false, Vec::new());
    kafka.after(Millis(60_000));
    assert_eq!(state(&kafka), Some(TimerState::Lost));
}

#[test]
fn a_lane_that_cannot_be_read_keeps_no_other_waiting() {
    let of_lane = |lane| (0..).map(|n: u32| n.to_string()).find(|key| lane_of(key) == lane);
    let keys = [0, 1].map(|lane| of_lane(lane).expect("a key of each lane"));
    let mut kafka = kafka();
    for key in &keys {
        kafka.submit(key, &create(key, "30m"));
    }
    kafka.after(Millis(1_000));
    kafka.stop();
    kafka.delete(source(3, 1));
    // The lane is counted first.
    (kafka.is_told_gone, kafka.unreadable) = (true, vec![Lane(0)]);
    kafka.take_over(&[]);
    kafka.after(Millis(10_000));
    let phases = keys.map(|key| kafka.timer(&key, "i").map(|timer| timer.state));
    assert_eq!(phases, [Some(TimerState::Delay), Some(TimerState::Lost)]);
}

#[test]
fn what_hops_while_what_is_left_is_read_is_not_lost() {
    // From the tier that is read last into one that was read before.
    let mut kafka = kafka();
    kafka.counts_late = true;
    kafka.submit("k", &create("a", "66s"));
    kafka.after(Millis(1_000));
    kafka.stop();
    kafka.is_told_gone = true;
    kafka.take_over(&[]);
    kafka.after(Millis(1_000));
    for _ in 0..3 {
        kafka.read_left();
    }
    assert_eq!(kafka.end(source(2, lane_of("k"))).0, 0, "it has not hopped");
    kafka.after(Millis(58_500));
    assert_eq!(kafka.end(source(2, lane_of("k"))).0, 1, "it has");
    kafka.read_left();
    kafka.read_left();
    assert_eq!((ended(&mut kafka), kafka.figures().lost_timers), (Some(TimerState::Delivered), 0));
}

#[test]
fn what_was_said_in_a_batch_that_failed_is_said_again() {
    let (mut kafka, _) = two_in_tiers();
    kafka.delete(longest());
    (kafka.is_told_gone, kafka.fails) = (true, true);
    kafka.take_over(&[]);
    // The batch that reports it fails. The next take-over finds the positions in order.
    kafka.is_told_gone = false;
    kafka.after(Millis(1_000));
    assert_eq!((state(&kafka), kafka.inventories), (Some(TimerState::Lost), 2));
}

#[test]
fn what_came_by_an_intake_that_was_created_again_is_found() {
    let mut kafka = kafka();
    kafka.submit("k", &create("old", "1h"));
    kafka.after(Millis(1_000));
    kafka.stop();
    kafka.remake_intake();
    kafka.take_over(&[]);
    kafka.after(Millis(1_000));
    let other = (0..).map(|n: u32| n.to_string()).find(|key| lane_of(key) == lane_of("k"));
    let other = other.expect("a key of the same lane");
    // In the wheel, and nowhere but in the new intake.
    kafka.submit(&other, &create("new", "1500"));
    kafka.after(Millis(10));
    kafka.stop();
    // Read only after it was counted.
    kafka.stalled.insert(source(0, lane_of("k")));
    kafka.is_told_gone = true;
    kafka.take_over(&[]);
    kafka.after(Millis(100));
    assert_eq!((kafka.inventories, kafka.figures().lost_timers), (1, 0));
    kafka.stalled.clear();
    kafka.after(Millis(5_000));
    let state = kafka.timer(&other, "i").map(|timer| timer.state);
    assert_eq!(state, Some(TimerState::Delivered));
}

#[test]
fn what_may_wait_in_an_intake_that_is_not_configured_any_more_is_not_lost() {
    let limits = Limits { lost_after: Millis(60_000), ..Kafka::limits() };
    let mut kafka = Kafka::with_intakes(limits.clone(), &["", "eu"]);
    kafka.append(source(1, lane_of("k")), record("k", &create("a", "30s")));
    kafka.after(Millis(1_000));
    assert_eq!(state(&kafka), Some(TimerState::Delay));
    kafka.stop();
    for topic in 0..5 {
        kafka.delete(source(topic, lane_of("k")));
    }
    kafka.setup = Arc::clone(&Kafka::with_intakes(limits, &["", "us"]).setup);
    kafka.is_told_gone = true;
    kafka.take_over(&[]);
    assert_eq!((ended(&mut kafka), kafka.figures().lost_timers), (Some(TimerState::Delay), 0));
}

#[test]
fn what_leaves_memory_while_it_is_counted_is_not_lost() {
    // It hops from one tier to the next at about the time of the count.
    for wait in [0, 10, 50, 100, 500, 1_000, 4_000, 28_000, 29_000, 31_000] {
        let mut kafka = kafka();
        kafka.submit("k", &create("a", "62s"));
        kafka.after(Millis(wait));
        kafka.is_told_gone = true;
        kafka.stop();
        kafka.take_over(&[]);
        assert_eq!(ended(&mut kafka), Some(TimerState::Delivered), "after {wait} ms");
        assert_eq!(kafka.figures().lost_timers, 0, "after {wait} ms");
    }
}

#[test]
fn what_is_on_its_way_when_a_lane_is_counted_is_not_lost() {
    // It hops at about the time when the lane is counted again, a minute after the first count; it lands in a tier that was
    // read before, and the one that it left is read after that. Nor has its owner read it there.
    let mut again = 0;
    for wait in (0..2_500).step_by(50) {
        let (mut kafka, _) = two_in_tiers();
        (kafka.is_told_gone, kafka.unreadable) = (true, vec![longest().lane]);
        kafka.take_over(&[]);
        kafka.after(Millis(10));
        kafka.unreadable.clear();
        kafka.counts_late = true;
        kafka.after(Millis(wait));
        let other = (10..).map(|n: u32| n.to_string()).find(|key| lane_of(key) == lane_of("k"));
        let other = other.expect("a key of the same lane");
        kafka.submit(&other, &create("c", "66s"));
        kafka.after(Millis(50_000));
        kafka.flight = Millis(500);
        for _ in 0..150 {
            kafka.after(Millis(100));
            if kafka.inventories == 2 {
                kafka.stalled.extend((0..4).map(|topic| source(topic, lane_of("k"))));
                (0..3).for_each(|_| kafka.read_left());
                kafka.after(Millis(600));
                (0..2).for_each(|_| kafka.read_left());
                kafka.after(Millis(1_000));
                kafka.stalled.clear();
                again += 1;
                break;
            }
        }
        kafka.after(Millis(30_000));
        let state = kafka.timer(&other, "i").map(|timer| timer.state);
        assert_eq!(state, Some(TimerState::Delivered), "{wait} ms");
        assert_eq!(kafka.figures().lost_timers, 0, "{wait} ms");
    }
    assert_eq!(again, 50, "it was counted again");
}

#[test]
fn a_duplicate_that_is_pending_and_has_not_left_for_its_tier_is_not_lost() {
    // At a take-over its intake tells a create over one that is pending, and a cancel from between the two: the create is
    // pending by that when the lane is counted, and stands nowhere but in what waits for a batch.
    let lane = lane_of("k");
    let (intake, stray) = (source(0, lane), source(0, 1 - lane));
    let mut kafka = kafka();
    kafka.submit("k", &create("a", "1h"));
    kafka.after(Millis(1_000));
    kafka.stalled.insert(intake);
    kafka.append(stray, record("k", &[("x-delay-action", "cancel"), ("x-delay-id", "i")]));
    kafka.now = kafka.now + Millis(5);
    kafka.submit("k", &create("b", "1h"));
    kafka.after(Millis(100));
    kafka.stop();
    kafka.stalled.clear();
    (kafka.is_told_gone, kafka.counts_late, kafka.flight) = (true, true, Millis(500));
    kafka.take_over(&[]);
    kafka.after(Millis(10));
    // All is read before it stands there, if that is not waited for.
    (0..4).for_each(|_| kafka.read_left());
    kafka.after(Millis(600));
    (0..5).for_each(|_| kafka.read_left());
    kafka.after(Millis(10_000));
    assert_eq!((kafka.inventories, kafka.figures().lost_timers), (1, 0));
    kafka.flight = Millis(0);
    kafka.after(Millis(3_600_000));
    let out: Vec<&str> = kafka.out.iter().map(|out| out.n.as_str()).collect();
    assert_eq!((state(&kafka), out), (Some(TimerState::Delivered), vec!["b"]));
}

#[test]
fn what_is_overdue_and_not_read_is_not_lost() {
    // Nobody ran for an hour, and then nobody tells where the logs end: what comes up is late, and was never lost.
    let mut kafka = in_a_tier();
    kafka.after(Millis(3_600_000));
    kafka.silent = true;
    kafka.take_over(&[]);
    kafka.after(Millis(600_000));
    assert_eq!((kafka.figures().lost_timers, state(&kafka)), (0, Some(TimerState::Delay)));
    kafka.silent = false;
    kafka.stop();
    kafka.take_over(&[]);
    assert_eq!((ended(&mut kafka), kafka.figures().lost_timers), (Some(TimerState::Delivered), 0));
}

#[test]
fn nothing_is_lost_by_an_end_that_nobody_tells() {
    let mut kafka = in_a_tier();
    delete_all(&mut kafka);
    kafka.silent = true;
    kafka.take_over(&[]);
    kafka.after(Millis(1_200_000));
    assert_eq!(kafka.figures().lost_timers, 0, "it may stand behind what was read");
    kafka.silent = false;
    // An open query is not repeated before its answer; another owner asks.
    kafka.stop();
    kafka.take_over(&[]);
    assert_eq!(ended(&mut kafka), Some(TimerState::Lost));
}

#[test]
fn what_comes_up_after_all_is_delivered() {
    let mut kafka = in_a_tier();
    let tiers: Vec<_> = (1..4).map(|topic| source(topic, lane_of("k"))).collect();
    let moved = kafka.hide(&tiers);
    kafka.take_over(&[]);
    assert_eq!(ended(&mut kafka), Some(TimerState::Lost));
    kafka.stop();
    kafka.show(moved);
    kafka.take_over(&[]);
    kafka.after(Millis(10_000));
    assert_eq!((state(&kafka), kafka.out.len()), (Some(TimerState::Delivered), 1));
}

#[test]
fn an_intake_that_was_created_again_swallows_nothing() {
    let cancel = [("x-delay-action", "cancel"), ("x-delay-id", "i")];
    let mut kafka = kafka();
    // What makes offsets of the first log larger than all of the second.
    for n in 0..20 {
        kafka.submit("k", &[("x-delay", "0"), ("x-delay-target", TARGET), ("n", &n.to_string())]);
    }
    kafka.submit("k", &create("cancelled", "1h"));
    kafka.after(Millis(1_000));
    kafka.submit("k", &cancel);
    kafka.submit("other", &create("old", "1h"));
    kafka.after(Millis(1_000));
    assert_eq!(state(&kafka), Some(TimerState::Cancelled));
    kafka.stop();
    kafka.remake_intake();
    for restart in 0..2 {
        kafka.take_over(&[]);
        kafka.submit("k", &create(&format!("new {restart}"), "1s"));
        kafka.after(Millis(10_000));
        let is_there = kafka.out.iter().any(|out| out.n == format!("new {restart}"));
        assert!(is_there, "a create after a mark of the first log, restart {restart}");
        kafka.stop();
    }
    // A later cancel ends a version that was pending before it, and the mark of the first log still holds.
    kafka.take_over(&[]);
    kafka.submit("other", &cancel);
    kafka.after(Millis(7_200_000));
    assert_eq!(kafka.answers.last().map(|answer| answer.outcome), Some(Outcome::Cancelled));
    let out: Vec<&str> = kafka.out[20..].iter().map(|out| out.n.as_str()).collect();
    assert_eq!(out, ["new 0", "new 1"]);
}
