//! Kafka refuses what a worker says of a turn.

use super::*;
use crate::header::{RESULT, STATE};

fn header<'r>(record: &'r Record, wanted: &str) -> &'r [u8] {
    let found = record.headers().find(|(name, _)| *name == wanted.as_bytes());
    found.and_then(|(_, value)| value).unwrap_or_default()
}

fn has_response(record: &Record) -> bool {
    let result = TaskResult::parse(header(record, RESULT)).expect("sound");
    result.response.is_some()
}

fn with_response(of: TaskResult) -> TaskResult {
    TaskResult { response: Some(b"an answer".to_vec()), ..of }
}

#[test]
fn a_result_that_is_refused_goes_without_its_response_and_the_task_goes_on() {
    let answer = |nth| with_response(if nth == 0 { failed(500) } else { finished() });
    let mut world = World::new(move |_, nth| (5, answer(nth)));
    world.refuses = has_response;
    let id = world.create(1, 1_000, r#","retry":{"count":1,"interval":1}"#);
    let other = world.create(2, 1_000, r#","retry":{"count":1,"interval":2}"#);
    world.after(20_000);
    assert_eq!(world.calls_of(&id).len(), 2, "its body came back for the second attempt");
    assert_eq!(world.calls_of(&id)[1].body, b"body");
    for id in [&id, &other] {
        assert_eq!(world.state(id), Some(TimerState::Delivered));
        let said = world.attempts(id);
        assert!(said.iter().all(|attempt| attempt.result.response.is_none()), "{said:?}");
    }
    assert!(world.refused <= 8, "refused {} times", world.refused);
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn a_task_whose_body_finds_no_way_back_fails_and_its_body_is_a_dead_letter() {
    let mut world = World::new(|_, _| (5, failed(500)));
    world.refuses = |record| record.value().is_some();
    let id = world.create(1, 1_000, r#","retry":{"count":3,"interval":1}"#);
    world.after(20_000);
    assert_eq!((world.calls_of(&id).len(), world.refused), (1, 2), "whole, then short");
    assert_eq!(world.state(&id), Some(TimerState::Dead));
    let [(detail, code, value)] = &world.dead[..] else { panic!("{:?}", world.dead) };
    assert_eq!((*code, value.as_deref()), (Code::TaskFailed, Some(&b"body"[..])));
    assert!(detail.contains("turn 1") && detail.contains("too large"), "{detail}");
    let attempts = world.attempts(&id);
    assert_eq!((attempts.len(), attempts[0].result.status), (1, Some(500)));
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn what_is_always_refused_stays_where_it_is_and_the_others_go_on() {
    let mut world = World::new(|id, _| {
        (
            5,
            with_response(if id.starts_with(&world::id(1).to_string()) {
                failed(500)
            } else {
                finished()
            }),
        )
    });
    // Of no task but the first one: a result of a task that has failed.
    world.refuses = |record| {
        TaskResult::parse(header(record, RESULT)).is_ok_and(|of| of.outcome == CallOutcome::Failed)
    };
    let bad = world.create(1, 1_000, "");
    let good: Vec<_> = (2..30).map(|n| world.create(n, 1_000 + u64::from(n) * 500, "")).collect();
    world.after(60_000);
    assert!(good.iter().all(|id| world.state(id) == Some(TimerState::Delivered)));
    assert_eq!(world.state(&bad), Some(TimerState::Delay), "a worker still holds it");
    assert!((10..40).contains(&world.refused), "refused {} times in a minute", world.refused);
    world.refuses = |_| false;
    world.after(61_000);
    assert_eq!(world.state(&bad), Some(TimerState::Dead));
    let said = &world.attempts(&bad)[0].result;
    assert_eq!(said.response.as_deref(), Some(&b"an answer"[..]), "it was tried whole again");
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn a_worker_that_dies_with_a_refused_result_leaves_the_task_to_the_next_one() {
    let mut world = World::new(|_, _| (5, with_response(finished())));
    world.refuses = |record| !header(record, STATE).is_empty();
    let id = world.create(1, 1_000, "");
    let other = world.create(2, 1_500, "");
    world.after(8_000);
    assert!(world.refused > 2);
    world.kill_worker();
    world.refuses = |_| false;
    world.start_worker();
    world.after(10_000);
    for id in [&id, &other] {
        assert_eq!(world.state(id), Some(TimerState::Delivered));
        assert_eq!(world.calls_of(id).len(), 2, "it was in doubt, and called again");
    }
}
