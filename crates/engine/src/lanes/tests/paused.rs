//! Targets that somebody pauses.

use super::*;
use crate::messages::Outcome;
use crate::task::registry::{Change, Registry, TargetTopic};

fn registry(paused: bool) -> Event {
    let mut registry = Registry::default();
    let of = TargetTopic { revision: 1, paused, ..TargetTopic::NEVER_PUT };
    registry.apply(Change::of_target("orders.expire", Some(of))).expect("room");
    Event::Registry(Arc::new(registry))
}

/// Submits a record with this value, due then.
fn submit(world: &mut World, key: &str, delay: &str, more: &[(&str, &str)]) {
    let mut headers = vec![("x-delay", delay), ("x-delay-target", "orders.expire")];
    headers.extend(more);
    let lane = murmur2::partition(b"k", LANES);
    let named = headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
    let record = Record::new(Some(b"k"), Some(key.as_bytes()), named);
    for action in world.record(source(0, lane), record) {
        if let Action::DescribeTarget(name) = action {
            world.tell(Event::Target(name, FOUND));
        }
    }
}

/// Goes on for so long; gives what was delivered, and what went into tiers.
fn go_on(world: &mut World, ms: u64) -> (Vec<String>, Vec<(TopicId, Record)>) {
    let (mut delivered, mut hops) = (Vec::new(), Vec::new());
    let until = world.now + Millis(ms);
    while world.now < until {
        let mut out = world.after(50);
        while let Some(at) = out.iter().position(|action| matches!(action, Action::Batch(_))) {
            let Action::Batch(batch) = out.remove(at) else { break };
            for send in &batch.sends {
                let value = send.record.value().unwrap_or_default();
                match send.to {
                    Destination::Target(_) => {
                        delivered.push(String::from_utf8_lossy(value).into_owned());
                    }
                    Destination::Lane(topic) => hops.push((topic, written(send))),
                    _ => {}
                }
            }
            out.extend(world.tell(Event::Committed(batch.id)));
        }
    }
    (delivered, hops)
}

#[test]
fn what_is_due_for_a_paused_target_waits_and_goes_on_in_order_after_the_end() {
    let mut world = World::new(&[1, 5, 60], Limits::default());
    world.tell(registry(true));
    for (key, delay) in [("c", "1300"), ("a", "1100"), ("d", "1400"), ("b", "1200")] {
        submit(&mut world, key, delay, &[]);
    }
    let lane = murmur2::partition(b"k", LANES);
    let elsewhere = [("x-delay", "1s"), ("x-delay-target", "orders.other")];
    world.record(source(0, lane), record("k", &elsewhere));
    world.tell(Event::Target("orders.other".into(), FOUND));
    assert_eq!(go_on(&mut world, 60_000).0, ["value"], "no other target waits");
    assert_eq!(world.engine.targets.paused().len(), 4);
    world.tell(registry(false));
    submit(&mut world, "e", "100", &[]);
    assert_eq!(go_on(&mut world, 1_000).0, ["a", "b", "c", "d", "e"]);
    assert_eq!((world.engine.targets.paused().len(), world.engine.figures().memory_bytes), (0, 0));
}

#[test]
fn one_that_waits_is_cancelled_at_once_and_never_delivered() {
    let limits = Limits { settle: Some(Millis(0)), ..Limits::default() };
    let mut world = World::new(&[1, 5, 60], limits);
    world.tell(registry(true));
    submit(&mut world, "a", "1s", &[("x-delay-id", "one")]);
    submit(&mut world, "b", "1s", &[]);
    go_on(&mut world, 5_000);
    let cancel = [("x-delay-id", "one"), ("x-delay-action", "cancel")];
    let lane = murmur2::partition(b"k", LANES);
    let mut out = world.record(source(0, lane), record("k", &cancel));
    out.extend(world.after(50));
    let batch = batch(out);
    assert_eq!(batch.answers.first().map(|answer| answer.outcome), Some(Outcome::Cancelled));
    world.tell(Event::Committed(batch.id));
    world.tell(registry(false));
    assert_eq!(go_on(&mut world, 60_000).0, ["b"]);
}

#[test]
fn what_finds_no_room_waits_in_tiers_and_nothing_later_overtakes_it() {
    let limits = Limits { memory_bytes: 8_000, ..Limits::default() };
    let mut world = World::new(&[1, 5, 60], limits);
    world.tell(registry(true));
    for n in 10..20 {
        submit(&mut world, &n.to_string(), &format!("1{n}0"), &[]);
    }
    let (delivered, hops) = go_on(&mut world, 3_000);
    assert!(delivered.is_empty());
    let kept = world.engine.targets.paused().len();
    assert!((1..10).contains(&kept) && kept + hops.len() == 10, "{kept} and {}", hops.len());
    world.tell(registry(false));
    submit(&mut world, "20", "100", &[]);
    let (first, _) = go_on(&mut world, 1_000);
    assert_eq!(first, (10..10 + kept).map(|n| n.to_string()).collect::<Vec<_>>());
    let lane = murmur2::partition(b"k", LANES);
    for (topic, back) in hops {
        world.record(Source { topic, lane: Lane(lane) }, back);
    }
    let (rest, _) = go_on(&mut world, 12_000);
    assert_eq!(rest, (10 + kept..21).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[test]
fn a_pause_stays_when_lanes_move() {
    let mut world = World::new(&[1, 5], Limits::default());
    world.tell(registry(true));
    submit(&mut world, "a", "100", &[]);
    go_on(&mut world, 1_000);
    world.tell(Event::Revoked);
    world.next.clear();
    world.assign(&[]);
    submit(&mut world, "a", "100", &[]);
    assert!(go_on(&mut world, 1_000).0.is_empty());
    assert_eq!(world.engine.targets.paused().len(), 1);
    world.tell(registry(false));
    assert_eq!(go_on(&mut world, 1_000).0, ["a"]);
}

#[test]
fn nothing_goes_to_a_target_before_pauses_and_rates_are_heard_of_with_tasks_or_without() {
    for has_tasks in [false, true] {
        nothing_goes_to_a_target_before_pauses_are_heard_of(has_tasks);
    }
}

fn nothing_goes_to_a_target_before_pauses_are_heard_of(has_tasks: bool) {
    let mut world = World::new(&[1, 5, 60], Limits::default());
    let mut setup = Setup::clone(&world.engine.setup);
    if has_tasks {
        setup.topics = setup.topics.with_tasks();
    }
    world.engine = LaneEngine::new(Arc::new(setup));
    world.assign(&[]);
    submit(&mut world, "b", "200", &[]);
    submit(&mut world, "a", "100", &[]);
    let lane = murmur2::partition(b"k", LANES);
    let elsewhere = [("x-delay", "100"), ("x-delay-target", "orders.other")];
    world.record(source(0, lane), record("k", &elsewhere));
    world.tell(Event::Target("orders.other".into(), FOUND));
    assert!(go_on(&mut world, 1_000).0.is_empty(), "it may be paused");
    world.tell(registry(true));
    assert_eq!(go_on(&mut world, 1_000).0, ["value"], "the other target is not paused");
    world.tell(registry(false));
    assert_eq!(go_on(&mut world, 1_000).0, ["a", "b"]);
}

#[test]
fn a_record_that_stands_there_twice_goes_through_no_tier_after_the_end() {
    // Room for either three of the first ones or both of the last.
    let limits = Limits { memory_bytes: 12_000, ..Limits::default() };
    let mut world = World::new(&[1, 5, 60], limits);
    world.tell(registry(true));
    for n in 10..20 {
        submit(&mut world, &n.to_string(), &format!("1{n}0"), &[]);
    }
    submit(&mut world, "twice", "6s", &[]);
    let (_, hops) = go_on(&mut world, 3_000);
    world.tell(registry(false));
    let lane = Lane(murmur2::partition(b"k", LANES));
    let again = hops.iter().find(|(_, record)| record.value() == Some(b"twice")).cloned();
    let (topic, again) = again.expect("it waits in a tier");
    // In at_least_once it may stand there twice. It is due after the end, so it waits for what comes up.
    for record in [again.clone(), again] {
        world.record(Source { topic, lane }, record);
    }
    let (mut delivered, mut hops) = go_on(&mut world, 3_200);
    assert_eq!(world.engine.targets.paused().len(), 1, "of the two one waits, and one goes on");
    let (rest, later) = go_on(&mut world, 20_000);
    delivered.extend(rest);
    hops.extend(later);
    assert_eq!(delivered.iter().filter(|value| *value == "twice").count(), 2, "{delivered:?}");
    assert!(hops.is_empty(), "{hops:?}");
}
