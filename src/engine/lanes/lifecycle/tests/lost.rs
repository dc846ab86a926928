//! Timers whose records are gone, and those that only wait for long.

use super::kafka::{Kafka, TARGET, lane_of, source};
use crate::engine::Millis;
use crate::engine::orders::{Because, Outcome};
use crate::engine::setup::Limits;
use crate::engine::timers::Phase;

fn create<'a>(n: &'a str, delay: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![("x-delay", delay), ("x-delay-target", TARGET), ("x-delay-id", "i"), ("n", n)]
}

/// Lets time pass until it has ended, or for ten minutes; what it says then.
fn ended(kafka: &mut Kafka) -> Option<Phase> {
    for _ in 0..120 {
        kafka.after(Millis(5_000));
        if phase(kafka).is_none_or(Phase::is_final) {
            break;
        }
    }
    phase(kafka)
}

fn phase(kafka: &Kafka) -> Option<Phase> {
    kafka.timer("k", "i").map(|timer| timer.phase)
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
    assert_eq!(phase(&kafka), Some(Phase::Delay), "it is only just due");
    assert_eq!(ended(&mut kafka), Some(Phase::Lost));
    let lost = kafka.timer("k", "i").expect("its history is kept");
    assert_eq!(
        (lost.phase, &*lost.id, lost.key.as_deref()),
        (Phase::Lost, &b"i"[..], Some(&b"k"[..]))
    );
    assert_eq!((kafka.figures().lost_timers, kafka.figures().live), (1, 0));
    assert_eq!(kafka.said.iter().filter(|(because, _)| *because == Because::Lost).count(), 1);
    kafka.submit("k", &[("x-delay-action", "cancel"), ("x-delay-id", "i")]);
    kafka.after(Millis(100));
    assert_eq!(kafka.answers.last().map(|answer| answer.outcome), Some(Outcome::Absent));
    kafka.submit("k", &create("b", "1s"));
    kafka.after(Millis(5_000));
    assert_eq!(
        (phase(&kafka), kafka.out.len()),
        (Some(Phase::Delivered), 1),
        "a create is a create"
    );
    assert_eq!(kafka.figures().duplicates, 0);
}

#[test]
fn what_is_overdue_and_not_read_is_not_lost() {
    // Nobody ran for an hour, and then nobody tells where the logs end: what comes up is late, and was never lost.
    let mut kafka = in_a_tier();
    kafka.after(Millis(3_600_000));
    kafka.silent = true;
    kafka.take_over(&[]);
    kafka.after(Millis(600_000));
    assert_eq!((kafka.figures().lost_timers, phase(&kafka)), (0, Some(Phase::Delay)));
    kafka.silent = false;
    kafka.stop();
    kafka.take_over(&[]);
    assert_eq!((ended(&mut kafka), kafka.figures().lost_timers), (Some(Phase::Delivered), 0));
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
    // What was asked is not asked again before it is answered: another owner asks.
    kafka.stop();
    kafka.take_over(&[]);
    assert_eq!(ended(&mut kafka), Some(Phase::Lost));
}

#[test]
fn what_comes_up_after_all_is_delivered() {
    let mut kafka = in_a_tier();
    let tiers: Vec<_> = (1..4).map(|topic| source(topic, lane_of("k"))).collect();
    let moved = kafka.hide(&tiers);
    kafka.take_over(&[]);
    assert_eq!(ended(&mut kafka), Some(Phase::Lost));
    kafka.stop();
    kafka.show(moved);
    kafka.take_over(&[]);
    kafka.after(Millis(10_000));
    assert_eq!((phase(&kafka), kafka.out.len()), (Some(Phase::Delivered), 1));
}

#[test]
fn an_intake_that_was_made_anew_swallows_nothing() {
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
    assert_eq!(phase(&kafka), Some(Phase::Cancelled));
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
    // What is pending since before is cancelled by what comes after, and the mark of the first log still holds.
    kafka.take_over(&[]);
    kafka.submit("other", &cancel);
    kafka.after(Millis(7_200_000));
    assert_eq!(kafka.answers.last().map(|answer| answer.outcome), Some(Outcome::Cancelled));
    let out: Vec<&str> = kafka.out[20..].iter().map(|out| out.n.as_str()).collect();
    assert_eq!(out, ["new 0", "new 1"]);
}
