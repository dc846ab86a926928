//! Tasks from their creation to their end, with the engine of the lanes and that of the workers.

mod by_hand;
mod cost;
mod feedback;
mod follow_up;
mod overdue;
mod refused;
mod runs;
mod schedules;
mod world;

use std::collections::BTreeSet;

use super::super::super::Millis;
use super::*;
use crate::header::{self, Code};
use crate::messages::Outcome;
use crate::sealed;
use crate::setup::Limits;
use crate::state::{Bound, Dispatched, Kind, State, SubmissionOrder, TaskState};
use crate::task::id::TaskId;
use crate::task::result::TaskResult;
use crate::timers::{TimerState, Version};
use crate::{Event, Offset, Record, Target};
use world::{BEGAN, World, failed, finished, not_yet, spec};

fn outcome_of(world: &World, offset: Offset) -> Option<Outcome> {
    world.answers.iter().find(|answer| answer.offset == offset).map(|answer| answer.outcome)
}

#[test]
fn a_task_is_called_once_when_it_is_due_and_is_finished() {
    let mut world = World::new(|_, _| (20, finished()));
    let id = world.create(1, 15_000, "");
    world.after(14_900);
    assert_eq!(world.state(&id), Some(TimerState::Delay));
    assert!(world.has_definition(&id) && world.calls.is_empty());
    world.after(2_000);
    let calls = world.calls_of(&id);
    assert_eq!(calls.len(), 1);
    assert!(calls[0].at >= BEGAN + Millis(15_000) && calls[0].at < BEGAN + Millis(15_200));
    assert_eq!((calls[0].turn, calls[0].attempt, &calls[0].body[..]), (1, 1, &b"body"[..]));
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    let attempts = world.attempts(&id);
    assert_eq!(attempts.len(), 1);
    assert_eq!(attempts[0].result.status, Some(200));
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn a_failed_attempt_is_made_again_as_its_policy_says() {
    let mut world = World::new(|_, nth| (5, if nth < 2 { failed(500) } else { finished() }));
    let id = world.create(1, 2_000, r#","retry":{"count":3,"interval":5}"#);
    world.after(20_000);
    let calls: Vec<(u32, u64)> =
        world.calls_of(&id).iter().map(|call| (call.turn, (call.at - BEGAN).0)).collect();
    assert_eq!(calls.iter().map(|(turn, _)| *turn).collect::<Vec<_>>(), [1, 2, 3]);
    for pair in calls.windows(2) {
        let gap = pair[1].1 - pair[0].1;
        assert!((5_000..5_300).contains(&gap), "{calls:?}");
    }
    let timer = world.timer(&id).expect("known");
    assert_eq!(timer.state, TimerState::Delivered);
    let progress = timer.task.expect("a task");
    assert_eq!((progress.attempts, progress.failures, progress.turn), (3, 2, 3));
    assert_eq!(world.attempts(&id).len(), 3);
}

#[test]
fn a_task_that_fails_for_good_is_a_dead_letter_with_its_body() {
    let mut world = World::new(|_, _| (5, failed(500)));
    let id = world.create(1, 1_000, r#","retry":{"count":1,"interval":1}"#);
    world.after(10_000);
    assert_eq!(world.calls_of(&id).len(), 2);
    assert_eq!(world.state(&id), Some(TimerState::Dead));
    let (detail, code, value) = &world.dead[0];
    assert_eq!((*code, value.as_deref()), (Code::TaskFailed, Some(&b"body"[..])));
    assert!(detail.contains("attempt 2") && detail.contains("500"), "{detail}");
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn gone_is_final_at_once() {
    let gone = TaskResult { status: Some(410), ..TaskResult::new(CallOutcome::Gone) };
    let mut world = World::new(move |_, _| (5, gone.clone()));
    let id = world.create(1, 1_000, r#","retry":{"count":9,"interval":1}"#);
    world.after(10_000);
    assert_eq!(world.calls_of(&id).len(), 1);
    assert_eq!(world.state(&id), Some(TimerState::Dead));
}

#[test]
fn not_yet_asks_again_at_equal_intervals_and_is_no_attempt() {
    let mut world = World::new(|_, nth| (5, if nth < 5 { not_yet() } else { finished() }));
    let id = world.create(1, 1_000, r#","poll":{"interval":"1s","rounds":10}"#);
    world.after(15_000);
    let calls = world.calls_of(&id);
    let rounds: Vec<u32> = calls.iter().map(|call| call.round).collect();
    assert_eq!(rounds, [0, 1, 2, 3, 4, 5]);
    assert!(calls.iter().all(|call| call.attempt == 1));
    for pair in calls.windows(2) {
        let gap = (pair[1].at - pair[0].at).0;
        assert!((1_000..1_200).contains(&gap), "{calls:?}");
    }
    let progress = world.timer(&id).and_then(|timer| timer.task).expect("a task");
    assert_eq!((progress.rounds, progress.attempts), (5, 1));

    let mut world = World::new(|_, _| (5, not_yet()));
    let id = world.create(1, 1_000, r#","poll":{"interval":"1s","rounds":3}"#);
    world.after(15_000);
    assert_eq!(world.calls_of(&id).len(), 3, "it is asked no more than it may be");
    assert_eq!(world.state(&id), Some(TimerState::Dead));
}

#[test]
fn one_request_is_one_task_however_often_it_is_made_and_after_its_end() {
    let mut world = World::new(|_, _| (5, finished()));
    world.set_registry("project/shop", r#"{"history":"1h"}"#);
    let id = world.create(1, 1_000, "");
    world.create(1, 1_000, "");
    let replayed = world.sealed(&id, 0, &spec(""), None);
    world.after(5_000);
    assert_eq!(world.calls_of(&id).len(), 1);
    world.create(1, 1_000, "");
    world.append_to_intake(&id, replayed.clone());
    world.take_lanes_over();
    world.append_to_intake(&id, replayed.clone());
    world.after(60_000);
    assert_eq!(world.calls_of(&id).len(), 1);
    // It is remembered no more: so it is another one. But what was sealed long ago creates nothing.
    world.after(3_700_000);
    assert_eq!(world.state(&id), None);
    assert!(!world.has_definition(&id) && world.attempts(&id).is_empty());
    world.append_to_intake(&id, replayed);
    world.after(5_000);
    assert_eq!(world.calls_of(&id).len(), 1);
    assert_eq!(world.dead.last().map(|(_, code, _)| *code), Some(Code::StaleSubmit));
    world.create(1, 1_000, "");
    world.after(5_000);
    assert_eq!(world.calls_of(&id).len(), 2);
}

#[test]
fn a_cancel_in_the_line_is_decided_there() {
    let mut world = World::new(|_, _| (5, failed(500)));
    let id = world.create(1, 30_000, "");
    world.after(29_000);
    let cancel = world.cancel(&id);
    world.after(60_000);
    assert_eq!(outcome_of(&world, cancel), Some(Outcome::Cancelled));
    assert_eq!(world.state(&id), Some(TimerState::Cancelled));
    assert!(world.calls.is_empty());
    // After a failed attempt, it is stopped: a call was made, and none follows.
    let id = world.create(2, 1_000, r#","retry":{"count":5,"interval":30}"#);
    world.after(10_000);
    let cancel = world.cancel(&id);
    world.after(120_000);
    assert_eq!(outcome_of(&world, cancel), Some(Outcome::Cancelled));
    let timer = world.timer(&id).expect("known");
    assert_eq!(timer.state, TimerState::Cancelled);
    assert!(timer.task.expect("a task").begun);
    assert_eq!(world.calls_of(&id).len(), 1);
    // Of what there is not it says so.
    let cancel = world.cancel(&world::id(9));
    world.after(1_000);
    assert_eq!(outcome_of(&world, cancel), Some(Outcome::Absent));
}

#[test]
fn a_cancel_of_what_a_worker_holds_follows_it() {
    // Its call is open: it decides.
    let mut world = World::new(|_, _| (3_000, failed(500)));
    let id = world.create(1, 1_000, r#","retry":{"count":5,"interval":1}"#);
    world.after(2_000);
    assert_eq!(world.calls_of(&id).len(), 1);
    let cancel = world.cancel(&id);
    world.after(1_000);
    assert_eq!(outcome_of(&world, cancel), Some(Outcome::Underway));
    assert_eq!(world.state(&id), Some(TimerState::Delay));
    let again = world.cancel(&id);
    world.after(20_000);
    assert_eq!(outcome_of(&world, again), Some(Outcome::Underway));
    assert_eq!(world.state(&id), Some(TimerState::Cancelled));
    assert_eq!(world.calls_of(&id).len(), 1, "no call follows");
    assert!(world.timer(&id).and_then(|timer| timer.task).expect("a task").begun, "it was stopped");

    // It had not begun: no call ever begins.
    let mut world = World::new(|_, _| (10_000, finished()));
    // Two of one lane, of which one may be called at a time.
    let (numbers, spec) = of_one_place(&mut world);
    world.create_spec(numbers[0], 1_000, &spec, None);
    world.after(200);
    let id = world.create_spec(numbers[1], 1_000, &spec, None);
    world.after(2_000);
    assert_eq!((world.dispatched().count(), world.calls.len()), (2, 1));
    let cancel = world.cancel(&id);
    world.after(1_000);
    assert_eq!(outcome_of(&world, cancel), Some(Outcome::Underway));
    world.after(15_000);
    assert_eq!(world.state(&id), Some(TimerState::Cancelled));
    assert_eq!(world.calls.len(), 1);
    assert!(!world.timer(&id).and_then(|timer| timer.task).expect("a task").begun);
    assert_eq!(world.credits(), (0, 0));
}

/// A service with one call at a time, and numbers of tasks of one lane that call it.
fn of_one_place(world: &mut World) -> (Vec<u32>, Spec) {
    let one = r#"{"address":"http://a.example","concurrency":1}"#;
    world.set_registry("service/shop/one", one);
    let spec = br#"{"type":"http","project":"shop","group":"g","service":"one"}"#;
    let spec = Spec::parse(spec).expect("sound");
    let lane_of = |n: &u32| world::id(*n).lane_of(world::LANES);
    ((1..40).filter(|n| lane_of(n) == lane_of(&1)).collect(), spec)
}

#[test]
fn a_cancel_ends_a_task_whose_dispatch_was_deleted_and_frees_its_place() {
    for is_note_deleted in [false, true] {
        let mut world = World::new(|_, _| (5, finished()));
        let (numbers, spec) = of_one_place(&mut world);
        world.kill_worker();
        let create = |n: &u32| world.create_spec(*n, 1_000, &spec, None);
        let ids: Vec<_> = numbers.iter().map(create).collect();
        world.after(3_000);
        let is_held = |world: &World, id: &TaskId| {
            world.timer(id).and_then(|timer| timer.task).is_some_and(|task| task.held.is_some())
        };
        let (gone, wait): (Vec<_>, Vec<_>) = ids.iter().partition(|id| is_held(&world, id));
        let count = gone.len();
        assert_eq!((world.dispatched().count(), world.credits()), (count, (count, count)));
        assert!(count > 0 && !wait.is_empty(), "some wait for a place");
        if is_note_deleted {
            world.cancel(gone[0]);
            world.after(1_000);
            assert_eq!(world.dispatched().count(), count + 1);
        }
        world.delete_dispatched();
        world.start_worker();
        world.after(60_000);
        assert!(ids.iter().all(|id| world.state(id) == Some(TimerState::Delay)));
        assert_eq!((world.calls.len(), world.credits()), (0, (count, count)));
        for id in &gone {
            let cancel = world.cancel(id);
            world.after(1_000);
            assert_eq!(outcome_of(&world, cancel), Some(Outcome::Underway));
            assert_eq!(world.state(id), Some(TimerState::Cancelled));
            // Nobody knows whether it was called before it was deleted.
            assert!(world.timer(id).and_then(|timer| timer.task).expect("a task").begun);
        }
        world.after(60_000);
        assert!(wait.iter().all(|id| world.state(id) == Some(TimerState::Delivered)));
        assert_eq!((world.calls.len(), world.credits()), (wait.len(), (0, 0)));
        assert!(world.dead.is_empty(), "{:?}", world.dead);
        // So it is after a take-over, too.
        world.take_lanes_over();
        world.after(5_000);
        assert!(gone.iter().all(|id| world.state(id) == Some(TimerState::Cancelled)));
    }
}

#[test]
fn a_worker_that_has_not_a_turn_ends_only_what_was_cancelled_there() {
    let mut world = World::new(|_, _| (20_000, finished()));
    let id = world.create(1, 1_000, "");
    world.after(2_000);
    let lane = id.lane_of(world::LANES);
    let version = world.timer(&id).expect("known").version;
    let here = world.dispatched_to();
    let elsewhere = Lane((here.0 + 1) % world::LANES);
    let key = world.setup.key.clone();
    let absent_of = |version: Version, turn: u32, partition: Lane| {
        let turn = Turn { name: TimerId::task(&id), version, turn };
        sealed::absent_record(&key, (turn, &id), partition, "w")
    };
    let absent = |turn: u32, partition: Lane| absent_of(version, turn, partition);
    let before = Version { offset: Offset(version.offset.0 + 7), ..version };
    let says_in_vain = |world: &mut World, records: &[Record]| {
        for record in records {
            world.append_result(lane, record.clone());
        }
        world.after(1_000);
        assert_eq!(world.state(&id), Some(TimerState::Delay));
    };
    // Nobody has cancelled it.
    says_in_vain(&mut world, &[absent(1, here), absent(1, elsewhere)]);
    world.cancel(&id);
    world.after(1_000);
    // Its call is open, and a copy of the note was read where it never was; or was of another turn, or of another task of its id.
    says_in_vain(&mut world, &[absent(1, elsewhere), absent(0, here), absent(2, here)]);
    says_in_vain(&mut world, &[absent_of(before, 1, here)]);
    world.after(30_000);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    // It has ended, and nothing changes that.
    world.append_result(lane, absent(1, here));
    world.after(1_000);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    assert!(world.dead.is_empty(), "{:?}", world.dead);
    // Nothing else is said without the task.
    let said = TaskResult::new(crate::task::result::Outcome::Finished).to_json();
    let id = (header::ID.as_bytes(), Some(id.as_str().as_bytes()));
    let state = State {
        kind: Kind::Result,
        due: UnixMillis(0),
        first_appended: version.first_appended,
        order: SubmissionOrder { appended: UnixMillis(0), offset: version.offset },
        expires: None,
        intake: Dispatched { partition: here, at: UnixMillis(0) }.to_word(),
        name: None,
        target: None,
        hops: 0,
        task: Some(TaskState { turn: 1, ..TaskState::default() }),
    };
    let bound = Bound { id: id.1, result: Some(said.as_bytes()), ..Bound::default() };
    let sealed = state.seal(&key, &bound);
    let headers = [
        id,
        (header::RESULT.as_bytes(), Some(said.as_bytes())),
        (header::STATE.as_bytes(), Some(sealed.as_ref())),
    ];
    world.append_result(lane, Record::new(None, None, headers.into_iter()));
    world.after(1_000);
    let codes: Vec<_> = world.dead.iter().map(|(_, code, _)| *code).collect();
    assert_eq!(codes, [Code::BadTask]);
}

#[test]
fn a_success_that_comes_while_it_is_cancelled_is_a_success() {
    let mut world = World::new(|_, _| (3_000, finished()));
    let id = world.create(1, 1_000, "");
    world.after(2_000);
    world.cancel(&id);
    world.after(10_000);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
}

#[test]
fn a_paused_project_waits_and_is_called_once_it_may_be() {
    let mut world = World::new(|_, _| (5, finished()));
    world.set_registry("project/shop", r#"{"paused":true}"#);
    let ids: Vec<_> = (0..300).map(|n| world.create(n, 2_000, "")).collect();
    world.after(30_000);
    assert!(world.calls.is_empty());
    let cancel = world.cancel(&ids[7]);
    world.after(1_000);
    assert_eq!(outcome_of(&world, cancel), Some(Outcome::Cancelled));
    world.set_registry("project/shop", r#"{"paused":false}"#);
    world.after(60_000);
    assert_eq!(world.calls.len(), 299);
    assert_eq!(world.figures().tasks_waiting, 0);
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn what_is_paused_for_long_costs_little() {
    let mut world = World::new(|_, _| (5, finished()));
    world.set_registry("project/shop", r#"{"paused":true}"#);
    (0..200).for_each(|n| drop(world.create(n, 1_000, "")));
    world.after(3_000_000);
    let before = world.hops;
    world.after(600_000);
    let hops = world.hops - before;
    assert!(hops <= 3 * 200, "{hops} hops of 200 tasks in ten minutes");
}

#[test]
fn paused_tasks_that_go_to_a_topic_cost_as_little_and_all_come_after_the_end() {
    let mut world = World::new(|_, _| (5, finished()));
    world.set_registry("project/shop", r#"{"paused":true}"#);
    let json = r#"{"type":"kafka","project":"shop","group":"g","topic":"orders.out"}"#;
    let spec = Spec::parse(json.as_bytes()).expect("sound");
    (0..200).for_each(|n| drop(world.create_spec(n, 1_000, &spec, None)));
    world.after(3_000_000);
    let before = world.hops;
    world.after(600_000);
    let hops = world.hops - before;
    assert!(hops <= 3 * 200, "{hops} hops of 200 tasks in ten minutes");
    assert_eq!(world.delivered.len(), 0);
    world.set_registry("project/shop", "{}");
    world.after(700_000);
    assert_eq!(world.delivered.len(), 200);
    // The long pause is over: what is due now does not wait for it.
    world.create_spec(1_000, 1_000, &spec, None);
    world.after(3_000);
    assert_eq!(world.delivered.len(), 201);
}

#[test]
fn a_project_says_to_which_topics_its_tasks_may_go() {
    let mut world = World::new(|_, _| (5, finished()));
    let spec = |topic: &str| {
        let json = format!(r#"{{"type":"kafka","project":"shop","group":"g","topic":"{topic}"}}"#);
        Spec::parse(json.as_bytes()).expect("sound")
    };
    world.targets.insert("orders.other".to_owned());
    world.set_registry("project/shop", r#"{"targets":["orders\\.out"]}"#);
    let may = world.create_spec(1, 3_000, &spec("orders.out"), None);
    let may_not = world.create_spec(2, 3_000, &spec("orders.other"), None);
    world.after(1_000);
    assert_eq!(world.state(&may_not), Some(TimerState::Dead), "it is not created");
    assert_eq!(world.dead.last().map(|of| of.1), Some(Code::TargetDenied));
    world.after(5_000);
    assert_eq!(world.state(&may), Some(TimerState::Delivered));
    // It is looked at again when the task is due.
    let later = world.create_spec(3, 3_000, &spec("orders.out"), None);
    world.after(1_000);
    world.set_registry("project/shop", r#"{"targets":[]}"#);
    world.after(5_000);
    assert_eq!(world.state(&later), Some(TimerState::Dead));
    assert_eq!(world.delivered.len(), 1);
}

#[test]
fn a_copy_with_another_value_is_a_dead_letter_and_harms_no_task() {
    let mut world = World::new(|_, _| (5, finished()));
    let json = r#"{"type":"kafka","project":"shop","group":"g","topic":"orders.out"}"#;
    let to_topic =
        world.create_spec(1, 30_000, &Spec::parse(json.as_bytes()).expect("sound"), None);
    let called = world.create(2, 30_000, "");
    world.after(2_000);
    for id in [&to_topic, &called] {
        world.copy_with(id, b"evil");
    }
    world.after(5_000);
    let codes: Vec<Code> = world.dead.iter().map(|of| of.1).collect();
    assert_eq!(codes, [Code::BadTask, Code::BadTask]);
    world.after(60_000);
    for id in [&to_topic, &called] {
        assert_eq!(world.state(id), Some(TimerState::Delivered));
    }
    let values: Vec<_> = world.delivered.iter().map(|of| of.1.as_deref()).collect();
    assert_eq!(values, [Some(&b"body"[..])]);
    assert_eq!(world.calls_of(&called).len(), 1);
}

#[test]
fn two_copies_of_one_task_that_wait_for_a_credit_are_one() {
    let mut world = World::new(|id, nth| match (id == world::id(1).as_str(), nth) {
        (true, 0) => (5, failed(500)),
        (true, _) => (5, finished()),
        (false, _) => (30_000, finished()),
    });
    world.set_registry("service/shop/one", r#"{"address":"http://a.example","concurrency":1}"#);
    let spec = |retry: &str| {
        let json =
            format!(r#"{{"type":"http","project":"shop","group":"g","service":"one"{retry}}}"#);
        Spec::parse(json.as_bytes()).expect("sound")
    };
    let lane = world::id(1).lane_of(world::LANES);
    let id = world.create_spec(1, 500, &spec(r#","retry":{"count":2,"interval":5}"#), None);
    world.after(2_000);
    assert_eq!(world.calls_of(&id).len(), 1);
    world.say_last_again(lane);
    // The others take all credits before it is called again.
    let others = (2..200).filter(|n| world::id(*n).lane_of(world::LANES) == lane).take(16);
    others.for_each(|n| drop(world.create_spec(n, 500, &spec(""), None)));
    world.after(5_000);
    assert_eq!(world.figures().tasks_waiting, 1, "both copies are one task");
    world.after(600_000);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    assert_eq!(world.calls_of(&id).iter().map(|call| call.turn).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((world.figures().tasks_waiting, world.figures().memory_bytes), (0, 0));
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn a_slow_service_takes_no_more_than_its_credits() {
    let mut world = World::new(|_, _| (60_000, finished()));
    world.set_registry("project/shop", "{}");
    let to = r#"{"type":"http","project":"shop","group":"g","service":"slow"}"#;
    let spec = Spec::parse(to.as_bytes()).expect("sound");
    world.set_registry("service/shop/slow", r#"{"address":"http://a.example","concurrency":2}"#);
    (0..200).for_each(|n| drop(world.create_spec(n, 1_000, &spec, None)));
    world.after(10_000);
    let held = world.dispatched().count();
    assert!(held <= 2 * 16, "{held} stand with workers");
    assert!(world.calls.len() <= 2, "{}", world.calls.len());
    // Another project is not held up by it.
    let other = r#"{"type":"http","project":"fast","group":"g","url":"http://b.example/"}"#;
    let other = Spec::parse(other.as_bytes()).expect("sound");
    let id = world.create_spec(1_000, 1_000, &other, None);
    world.after(2_000);
    assert_eq!(world.calls_of(&id).len(), 1);
    // In the end each is called once.
    world.after(7_000_000);
    assert_eq!(world.calls.len(), 201);
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn an_open_breaker_burns_no_attempts() {
    let mut world = World::new(|_, nth| (5, if nth < 3 { failed(503) } else { finished() }));
    let ids: Vec<_> =
        (0..20).map(|n| world.create(n, 1_000, r#","retry":{"count":9,"interval":1}"#)).collect();
    let is_kept_back = |world: &World, id| {
        world.timer(id).and_then(|timer| timer.task).is_some_and(|task| task.breaker)
    };
    let mut kept_back = BTreeSet::new();
    for _ in 0..3_000 {
        world.after(100);
        kept_back.extend(ids.iter().filter(|id| is_kept_back(&world, id)).cloned());
    }
    assert!(kept_back.len() > 1, "it opened");
    for id in ids {
        assert_eq!(world.state(&id), Some(TimerState::Delivered));
        let progress = world.timer(&id).and_then(|timer| timer.task).expect("a task");
        assert_eq!((progress.attempts, world.calls_of(&id).len()), (4, 4));
    }
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn what_is_not_to_begin_any_more_expires() {
    let mut world = World::new(|_, _| (5, finished()));
    world.set_registry("project/shop", r#"{"paused":true}"#);
    let expires = Some(BEGAN + Millis(8_000));
    let id = world.create_spec(1, 2_000, &spec(""), expires);
    world.after(5_000);
    world.set_registry("project/shop", r#"{"paused":true,"concurrency":5}"#);
    world.after(20_000);
    assert_eq!(world.state(&id), Some(TimerState::Expired));
    assert!(world.calls.is_empty());
}

#[test]
fn what_waits_at_its_worker_is_not_called_once_it_has_expired() {
    let mut world = World::new(|_, _| (10_000, finished()));
    world.set_registry("project/shop", r#"{"concurrency":1}"#);
    let first = world.create(1, 1_000, "");
    world.after(2_000);
    let second = world.create_spec(2, 1_000, &spec(""), Some(BEGAN + Millis(6_000)));
    let third = world.create(3, 2_000, "");
    world.after(5_000);
    assert_eq!(world.dispatched().count(), 3, "all three are with the worker");
    world.after(30_000);
    let states = [&first, &second, &third].map(|id| world.state(id));
    let [called, expired] = [TimerState::Delivered, TimerState::Expired].map(Some);
    assert_eq!(states, [called, expired, called]);
    assert!(world.calls_of(&second).is_empty() && world.attempts(&second).is_empty());
    let begun = world.calls_of(&third)[0].at;
    assert!(begun < BEGAN + Millis(12_000), "others of its service do not wait for it: {begun:?}");
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn a_deleted_project_takes_no_task_and_ends_those_that_wait() {
    let mut world = World::new(|_, _| (5, finished()));
    let waits = world.create(1, 5_000, "");
    world.after(1_000);
    world.delete_project("shop");
    let late = world.create(2, 1_000, "");
    world.after(10_000);
    assert_eq!(world.state(&waits), Some(TimerState::Dead));
    assert_eq!(world.state(&late), Some(TimerState::Dead));
    assert!(world.calls.is_empty());
}

/// Seed 1113668 of the simulation: it came back, and waited for ever.
#[test]
fn a_task_that_is_cancelled_while_its_topic_is_looked_up_does_not_come_back() {
    let mut world = World::new(|_, _| (100, finished()));
    let json = r#"{"type":"kafka","project":"shop","group":"g","topic":"orders.late","retry":{"count":20,"interval":20}}"#;
    let id = world.create_spec(1, 5_000, &Spec::parse(json.as_bytes()).expect("sound"), None);
    world.after(4_000);
    world.asked = Some(Vec::new());
    world.after(1_500);
    world.cancel(&id);
    world.after(100);
    assert_eq!(world.state(&id), Some(TimerState::Cancelled));
    let asked = world.asked.take().expect("some");
    assert!(!asked.is_empty(), "its topic is looked up when it is due");
    for name in asked {
        world.tell_lanes(Event::Target(name, Target::Missing));
    }
    world.after(60_000);
    assert_eq!(world.state(&id), Some(TimerState::Cancelled));
    assert!(world.attempts(&id).is_empty(), "no attempt was made");
}

#[test]
fn a_task_for_a_topic_is_delivered_and_tried_again_while_the_topic_is_missing() {
    let mut world = World::new(|_, _| (5, finished()));
    let json = r#"{"type":"kafka","project":"shop","group":"g","topic":"orders.out"}"#;
    let id = world.create_spec(1, 3_000, &Spec::parse(json.as_bytes()).expect("sound"), None);
    world.after(5_000);
    assert_eq!(world.delivered.len(), 1);
    assert_eq!(world.delivered[0].1.as_deref(), Some(&b"body"[..]));
    assert_eq!(world.state(&id), Some(TimerState::Delivered));

    let json = r#"{"type":"kafka","project":"shop","group":"g","topic":"orders.late","retry":{"count":20,"interval":20}}"#;
    let id = world.create_spec(2, 3_000, &Spec::parse(json.as_bytes()).expect("sound"), None);
    world.after(30_000);
    assert_eq!(world.state(&id), Some(TimerState::Delay));
    world.targets.insert("orders.late".to_owned());
    world.after(120_000);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    let progress = world.timer(&id).and_then(|timer| timer.task).expect("a task");
    assert!(progress.attempts >= 2, "{progress:?}");

    let json = r#"{"type":"kafka","project":"shop","group":"g","topic":"secret"}"#;
    let id = world.create_spec(3, 3_000, &Spec::parse(json.as_bytes()).expect("sound"), None);
    world.after(10_000);
    assert_eq!(world.state(&id), Some(TimerState::Dead), "the intake does not allow it");
    assert_eq!(world.delivered.len(), 2);
}

#[test]
fn five_turns_in_doubt_are_one_failed_attempt() {
    let mut world = World::new(|_, _| (600_000, finished()));
    let id = world.create(1, 1_000, "");
    for _ in 0..5 {
        world.after(5_000);
        world.kill_worker();
        world.start_worker();
    }
    world.after(10_000);
    assert_eq!(world.calls_of(&id).len(), 5);
    assert_eq!(world.state(&id), Some(TimerState::Dead));
    assert_eq!(world.timer(&id).and_then(|timer| timer.task).map(|of| of.attempts), Some(1));
    let attempts = world.attempts(&id);
    let error = attempts[0].result.error.as_deref().unwrap_or_default();
    assert!(error.starts_with("worker_lost: its worker was lost 5 times in a row"), "{error}");
    assert!(error.ends_with("waterclock task retry") && attempts.len() == 1, "{attempts:?}");
}

#[test]
fn five_turns_in_doubt_of_a_task_that_has_retries_name_no_remedy() {
    let mut world = World::new(|_, nth| (if nth < 5 { 600_000 } else { 5 }, finished()));
    let id = world.create(1, 1_000, r#","retry":{"count":1,"interval":1}"#);
    for _ in 0..5 {
        world.after(5_000);
        world.kill_worker();
        world.start_worker();
    }
    world.after(30_000);
    assert_eq!(world.state(&id), Some(TimerState::Delivered), "it is called again by its policy");
    let errors: Vec<_> = world.attempts(&id).into_iter().map(|of| of.result.error).collect();
    let lost = errors[0].as_deref().unwrap_or_default();
    assert!(lost.starts_with("worker_lost") && !lost.contains("task retry"), "{errors:?}");
    assert_eq!(errors[1..], [None]);
}

#[test]
fn what_is_forged_or_stands_elsewhere_harms_no_task() {
    let mut world = World::new(|_, _| (5, finished()));
    let id = world.create(1, 20_000, "");
    world.after(1_000);
    let sealed = world.sealed(&id, 20_000, &spec(""), None);
    let with_value = Record::new(None, Some(b"another body"), sealed.headers());
    let headers = |kept: &'static [&'static str]| {
        sealed.headers().filter(move |(name, _)| kept.iter().any(|kept| kept.as_bytes() == *name))
    };
    let plain = Record::new(None, Some(b"x"), headers(&["x-delay-id", "x-delay-task"]));
    let lane = id.lane_of(world::LANES);
    world.append_to_intake(&id, with_value);
    world.append_to_intake(&id, plain);
    world.append_result(lane, sealed.clone());
    world.append_result(lane, Record::new(Some(b"k"), Some(b"v"), std::iter::empty()));
    let cancel: [(&[u8], Option<&[u8]>); 2] =
        [(b"x-delay-id", Some(id.as_str().as_bytes())), (b"x-delay-action", Some(b"cancel"))];
    world.append_to_intake(&id, Record::new(None, None, cancel.into_iter()));
    // The action is not under the seal.
    let with_cancel = || sealed.headers().chain([cancel[1]]);
    world.append_to_intake(&id, Record::new(None, sealed.value(), with_cancel()));
    world.append_to_intake(&id, Record::new(None, None, with_cancel()));
    // In another lane than its own.
    let other = Lane((lane.0 + 1) % world::LANES);
    let of_other = (0..100).map(world::id).find(|id| id.lane_of(world::LANES) == other);
    let of_other = of_other.expect("one of a hundred");
    let stray = world.sealed(&of_other, 1_000, &spec(""), None);
    world.append_to_intake(&id, stray);
    world.after(25_000);
    assert_eq!(world.calls_of(&id).len(), 1);
    assert_eq!(world.calls.len(), 1);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    let mut codes: Vec<&str> = world.dead.iter().map(|(_, code, _)| code.as_str()).collect();
    codes.sort_unstable();
    let bad_tasks = [Code::BadTask.as_str(); 5];
    assert_eq!(codes, [&bad_tasks[..], &[Code::TaskForbidden.as_str()]].concat());
}

#[test]
fn a_copy_of_what_stood_in_a_tier_is_not_called_once_more() {
    let mut world = World::new(|_, _| (5, finished()));
    let id = world.create(1, 60_000, "");
    world.after(70_000);
    assert_eq!(world.calls_of(&id).len(), 1);
    assert!(world.copy_tiers() > 0, "it was in a tier");
    world.after(120_000);
    world.take_lanes_over();
    world.copy_tiers();
    world.after(120_000);
    assert_eq!(world.calls_of(&id).len(), 1);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
}

#[test]
fn a_body_that_was_changed_on_its_way_is_seen() {
    let world = World::new(|_, _| (5, finished()));
    let id = world::id(1);
    let sealed = world.sealed(&id, 0, &spec(""), None);
    let changed = Record::new(None, Some(b"another body"), sealed.headers());
    assert_ne!(crate::task::digest(&sealed), crate::task::digest(&changed));
    let at = (Lane(0), BEGAN);
    let refused = sealed::read_work(&world.setup.key, world::LANES, at, changed);
    assert!(refused.is_err(), "a submission is no dispatch");
}

#[test]
fn a_dispatch_that_is_written_again_is_not_called_again() {
    let mut world = World::new(|_, _| (5, finished()));
    let id = world.create(1, 1_000, "");
    world.after(2_000);
    let first = world.dispatched_to();
    let other = Lane((first.0 + 1) % world::LANES);
    assert_eq!(world.calls_of(&id).len(), 1);
    // At once, when the worker has surely forgotten it, and where another worker would call it.
    world.dispatch_again(first);
    world.dispatch_again(other);
    world.after(60_000);
    world.dispatch_again(first);
    world.after(60_000);
    assert_eq!(world.calls_of(&id).len(), 1);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    let codes: Vec<Code> = world.dead.iter().map(|(_, code, _)| *code).collect();
    assert_eq!(codes, [Code::BadTask, Code::BadTask], "the third is stale for its lane");
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn no_copy_of_a_dispatch_makes_a_cancel_untrue() {
    let mut world = World::new(|_, _| (5, failed(503)));
    let id = world.create(1, 1_000, r#","retry":{"count":3,"interval":40}"#);
    world.after(2_000);
    let (first, began) = (world.dispatched_to(), world.calls_of(&id).len());
    let cancel = world.cancel(&id);
    world.after(100);
    assert_eq!(outcome_of(&world, cancel), Some(Outcome::Cancelled));
    for wait in [1_000, 60_000] {
        for partition in (0..world::LANES).map(Lane) {
            world.dispatch_again(partition);
        }
        world.after(wait);
    }
    world.dispatch_again(first);
    world.after(60_000);
    assert_eq!((world.calls_of(&id).len(), began), (1, 1));
    assert_eq!(world.state(&id), Some(TimerState::Cancelled));
}

#[test]
fn a_copy_of_a_dispatch_that_is_open_or_waits_for_long_changes_nothing() {
    let mut world = World::new(|_, _| (100_000, finished()));
    world.set_registry("project/shop", r#"{"concurrency":1}"#);
    let open = world.create(1, 1_000, "");
    world.after(2_000);
    let waits = world.create(2, 1_000, "");
    world.after(2_000);
    assert_eq!(world.calls.len(), 1, "one at a time");
    assert_eq!(world.dispatched().count(), 2, "both are at the worker");
    // The worker remembers neither as one that was read lately.
    world.after(40_000);
    world.dispatch_all_again();
    world.after(1_000);
    let cancel = world.cancel(&waits);
    world.after(20_000);
    assert_eq!(world.timer(&open).and_then(|timer| timer.task).map(|task| task.turn), Some(1));
    assert_eq!(outcome_of(&world, cancel), Some(Outcome::Underway));
    assert_eq!(world.state(&waits), Some(TimerState::Cancelled));
    world.after(200_000);
    assert_eq!(world.state(&open), Some(TimerState::Delivered));
    assert_eq!((world.calls_of(&open).len(), world.calls_of(&waits).len()), (1, 0));
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn a_dispatch_of_an_older_program_is_called_and_no_copy_of_it() {
    let mut world = World::new(|_, _| (5, finished()));
    world.dispatches_as_before = true;
    let id = world.create(1, 1_000, "");
    world.after(5_000);
    let first = world.dispatched_to();
    assert_eq!(world.calls_of(&id).len(), 1);
    for _ in 0..2 {
        world.after(40_000);
        (0..world::LANES).for_each(|at| world.dispatch_again(Lane(at)));
        world.dispatch_again(first);
        world.after(5_000);
    }
    assert_eq!(world.calls_of(&id).len(), 1);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn a_dispatch_whose_body_is_another_ends_its_task_without_a_call() {
    let mut world = World::new(|_, _| (5, finished()));
    let id = world.create(1, 1_000, r#","retry":{"count":3,"interval":1}"#);
    world.kill_worker();
    world.after(2_000);
    world.alter_dispatched();
    world.start_worker();
    world.after(5_000);
    assert!(world.calls.is_empty());
    assert_eq!(world.state(&id), Some(TimerState::Dead));
    let letters: Vec<_> =
        world.dead.iter().map(|(_, code, value)| (*code, value.as_deref())).collect();
    assert_eq!(letters, [(Code::BadTask, Some(&b"another body"[..]))]);
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn a_copy_from_a_tier_is_no_task_once_its_history_is_over() {
    let mut world = World::new(|_, _| (5, finished()));
    world.set_registry("project/shop", r#"{"history":"1h"}"#);
    let id = world.create(1, 60_000, "");
    world.after(70_000);
    assert_eq!(world.calls_of(&id).len(), 1);
    world.after(3 * 3_600_000);
    assert_eq!(world.state(&id), None, "its history is over");
    assert!(world.copy_tiers() > 0, "it was in a tier");
    world.after(120_000);
    assert_eq!(world.calls_of(&id).len(), 1);
    let is_dead = |(detail, code, _): &(String, Code, _)| {
        *code == Code::BadTask && detail.contains("nothing is known")
    };
    assert!(!world.dead.is_empty() && world.dead.iter().all(is_dead), "{:?}", world.dead);
}

/// Luck that a seed decides.
struct Luck(u64);

impl Luck {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

/// Tasks of all kinds, while lanes and workers die between any two transactions.
fn live(seed: u64) {
    let mut of_endpoint = Luck(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut world = World::new(move |_, _| {
        let takes = [1, 30, 400, 4_000][of_endpoint.below(4) as usize];
        let result = match of_endpoint.below(8) {
            0 => failed(500),
            1 => failed(503),
            2 => not_yet(),
            _ => finished(),
        };
        (takes, result)
    });
    let mut luck = Luck(seed | 1);
    let mut created = Vec::new();
    let mut cancels = Vec::new();
    let mut retries = Vec::new();
    for step in 0..60 {
        match luck.below(12) {
            0..5 => {
                let more = [
                    "",
                    r#","retry":{"count":2,"interval":1}"#,
                    r#","retry":{"count":4,"interval":3,"backoff":"exponential"}"#,
                    r#","poll":{"interval":"1s","rounds":4},"retry":{"count":3,"interval":2}"#,
                ][luck.below(4) as usize];
                let delay = luck.below(20_000);
                created.push(world.create(step, delay, more));
            }
            5 if !created.is_empty() => {
                let at = luck.below(created.len() as u64) as usize;
                let id = created[at].clone();
                cancels.push((world.cancel(&id), id));
            }
            6 => world.take_lanes_over(),
            7 => {
                world.kill_worker();
                world.start_worker();
            }
            8 => world.fails_in = Some(luck.below(6) as usize),
            9 | 10 if !created.is_empty() => {
                let at = luck.below(created.len() as u64) as usize;
                let id = created[at].clone();
                if let Some(record) = world.retry_record(&id) {
                    retries.push((world.append_to_intake(&id, record.clone()), id.clone()));
                    if luck.below(3) == 0 {
                        retries.push((world.append_to_intake(&id, record), id));
                    }
                }
            }
            _ => {
                let paused = luck.below(2) == 0;
                world.set_registry("project/shop", &format!(r#"{{"paused":{paused}}}"#));
            }
        }
        let wait = luck.below(2_500);
        world.after(wait);
    }
    world.set_registry("project/shop", "{}");
    world.after(3_000_000);
    for id in &created {
        let timer = world.timer(id).unwrap_or_else(|| panic!("seed {seed}: {id} is unknown"));
        let task = timer.task.expect("a task");
        assert!(timer.state.is_final(), "seed {seed}: {id} {timer:?}");
        let calls = world.calls_of(id);
        let turns: BTreeSet<u32> = calls.iter().map(|call| call.turn).collect();
        assert_eq!(turns.len(), calls.len(), "seed {seed}: a turn of {id} was called twice");
        match timer.state {
            TimerState::Delivered | TimerState::Dead => {
                assert!(!calls.is_empty(), "seed {seed}: {id}");
            }
            TimerState::Cancelled if !task.begun => {
                assert!(calls.is_empty(), "seed {seed}: {id} was called, and is cancelled");
            }
            _ => {}
        }
        let ended = timer.since;
        assert!(
            calls.iter().all(|call| call.at <= ended),
            "seed {seed}: {id} was called after its end"
        );
        let cancelled = cancels.iter().any(|(_, of)| of == id);
        assert!(cancelled || timer.state != TimerState::Cancelled, "seed {seed}: {id}");
    }
    let (counted, held) = world.credits();
    assert_eq!((counted, held), (0, 0), "seed {seed}");
    for (offset, id) in cancels.into_iter().chain(retries) {
        let lane = id.lane_of(world::LANES);
        let answered = world.answers.iter().any(|of| of.offset == offset && of.source.lane == lane);
        assert!(answered, "seed {seed}: a command about {id} was never answered");
    }
}

#[test]
fn every_task_ends_once_whichever_side_dies() {
    let from: u64 = option_env!("TASK_SEEDS_FROM").and_then(|from| from.parse().ok()).unwrap_or(1);
    let count: u64 = option_env!("TASK_SEEDS").and_then(|count| count.parse().ok()).unwrap_or(60);
    (from..from + count).for_each(live);
}

use crate::task::spec::Spec;

#[test]
fn a_project_that_leaves_its_tasks_pending_leaves_room_for_others() {
    const MOST: u32 = 40;
    let of = |project: &str| {
        let spec = format!(
            r#"{{"type":"http","project":"{project}","group":"orders","url":"https://shop.example.com/x"}}"#
        );
        Spec::parse(spec.as_bytes()).expect("sound")
    };
    let limits = Limits { tracked_max: MOST as usize, ..Limits::default() };
    let mut world = World::within(limits, |_, _| (5, finished()));
    world.set_registry("project/slow", r#"{"paused":true}"#);
    for n in 0..MOST {
        world.create_spec(n, 1_000, &of("slow"), None);
    }
    world.after(3_000);
    let refused = world.dead.iter().filter(|(_, code, _)| *code == Code::TooManyTimers).count();
    assert_eq!(refused, 10, "it takes three quarters");
    assert!(world.dead[0].0.contains("30 tasks of the project slow"), "{}", world.dead[0].0);
    // Another project is served meanwhile, and leaves nothing behind.
    for n in MOST..MOST + 20 {
        let id = world.create_spec(n, 1_000, &of("quick"), None);
        world.after(2_000);
        assert_eq!(world.state(&id), Some(TimerState::Delivered));
    }
    // What is pending was counted anew with the lanes.
    world.take_lanes_over();
    let one_more = world.create_spec(900, 1_000, &of("slow"), None);
    let other = world.create_spec(901, 1_000, &of("quick"), None);
    world.after(3_000);
    assert_eq!(world.state(&one_more), Some(TimerState::Dead));
    assert_eq!(world.state(&other), Some(TimerState::Delivered));
    // It goes on where it stood as soon as its tasks end.
    world.set_registry("project/slow", r#"{"paused":false}"#);
    world.after(120_000);
    let id = world.create_spec(902, 1_000, &of("slow"), None);
    world.after(3_000);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
}
