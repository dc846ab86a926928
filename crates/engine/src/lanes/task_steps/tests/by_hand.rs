//! Retries by hand.

use super::*;

const NONE_LEFT: &str = "";
const IN_TEN_MINUTES: &str = r#","retry":{"count":9,"interval":600}"#;

fn turns(world: &World, id: &TaskId) -> Vec<u32> {
    world.calls_of(id).iter().map(|call| call.turn).collect()
}

#[test]
fn a_task_that_waits_for_its_next_turn_is_called_at_once() {
    let mut world = World::new(|_, nth| (5, if nth < 2 { failed(500) } else { finished() }));
    let id = world.create(1, 1_000, IN_TEN_MINUTES);
    world.after(5_000);
    assert_eq!(turns(&world, &id), [1]);
    let record = world.retry_record(&id).expect("a copy of it");
    let retry = world.append_to_intake(&id, record.clone());
    world.after(2_000);
    assert_eq!(outcome_of(&world, retry), Some(Outcome::Replaced));
    assert_eq!(turns(&world, &id), [1, 2]);
    assert!(world.calls.iter().all(|call| call.body == b"body"));
    // It waits anew, and the same record again is about a turn that is over.
    let replay = world.append_to_intake(&id, record);
    world.after(5_000);
    assert_eq!(outcome_of(&world, replay), Some(Outcome::Superseded));
    assert_eq!(turns(&world, &id), [1, 2]);
    // The copies that wait for the old times come up, and count no more.
    world.after(1_300_000);
    assert_eq!(turns(&world, &id), [1, 2, 3]);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    let progress = world.timer(&id).and_then(|timer| timer.task).expect("a task");
    assert_eq!((progress.attempts, progress.failures), (3, 2));
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn a_task_that_was_never_called_is_called_at_once_and_only_once() {
    let mut world = World::new(|_, _| (5, finished()));
    world.set_registry("project/shop", r#"{"history":"1h"}"#);
    let id = world.create(1, 7_200_000, "");
    world.after(5_000);
    let record = world.retry_record(&id).expect("a copy of it");
    let retry = world.append_to_intake(&id, record.clone());
    // Another caller read the same state.
    let second = world.append_to_intake(&id, record.clone());
    world.after(1_000);
    assert_eq!(outcome_of(&world, retry), Some(Outcome::Replaced));
    assert_eq!(outcome_of(&world, second), Some(Outcome::Superseded));
    assert_eq!(turns(&world, &id), [1]);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    // The copy that its create made comes up while the end is remembered, and when nobody remembers it.
    world.after(1_000_000);
    world.take_lanes_over();
    world.after(3_000_000);
    assert_eq!(world.state(&id), None);
    world.append_to_intake(&id, record);
    world.after(5_000_000);
    assert_eq!(turns(&world, &id), [1]);
    assert_eq!(world.state(&id), None);
}

#[test]
fn a_take_over_between_a_retry_and_its_call_loses_neither() {
    for more in [NONE_LEFT, IN_TEN_MINUTES] {
        for has_failed in [false, true] {
            let mut world =
                World::new(move |_, nth| (5, if nth == 0 { failed(500) } else { finished() }));
            let delay = if has_failed { 1_000 } else { 1_000_000 };
            let id = world.create(1, delay, more);
            world.after(5_000);
            let called = world.calls.len();
            world.set_registry("project/shop", r#"{"paused":true}"#);
            let retry = world.retry(&id);
            world.after(700);
            world.take_lanes_over();
            world.after(2_000);
            world.take_lanes_over();
            world.after(2_000);
            assert_eq!(world.calls.len(), called, "it is paused");
            assert_eq!(outcome_of(&world, retry), Some(Outcome::Replaced));
            assert_eq!(world.state(&id), Some(TimerState::Delay));
            world.set_registry("project/shop", "{}");
            world.after(20_000);
            assert_eq!(world.calls.len(), called + 1, "{more} {has_failed}");
            world.after(2_000_000);
            // What failed for good, and what waits, are each called until they succeed.
            let calls = turns(&world, &id);
            assert!(calls.windows(2).all(|pair| pair[0] < pair[1]), "{calls:?}");
        }
    }
}

#[test]
fn a_failed_task_is_brought_back_from_its_letter_once_for_each_end() {
    let mut world = World::new(|_, nth| (5, if nth < 2 { failed(500) } else { finished() }));
    world.set_registry("project/shop", r#"{"history":"1h"}"#);
    let id = world.create(1, 1_000, NONE_LEFT);
    world.after(5_000);
    assert_eq!(world.state(&id), Some(TimerState::Dead));
    let first = world.retry_record(&id).expect("its letter");
    let retry = world.append_to_intake(&id, first.clone());
    world.after(2_000);
    assert_eq!(outcome_of(&world, retry), Some(Outcome::Replaced));
    // Its turns and attempts go on.
    assert_eq!(turns(&world, &id), [1, 2]);
    assert_eq!(world.attempts(&id).len(), 2);
    assert_eq!(world.state(&id), Some(TimerState::Dead));
    // The retry is about the version that had failed first.
    let replay = world.append_to_intake(&id, first.clone());
    world.after(2_000);
    assert_eq!(outcome_of(&world, replay), Some(Outcome::Superseded));
    assert_eq!(turns(&world, &id), [1, 2]);
    world.retry(&id);
    world.after(2_000);
    assert_eq!(turns(&world, &id), [1, 2, 3]);
    assert!(world.calls.iter().all(|call| call.body == b"body"));
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    assert!(world.has_definition(&id));
    assert_eq!(world.timer(&id).and_then(|timer| timer.task).map(|of| of.failures), Some(0));
    // Nor is it brought back once nobody remembers it.
    world.after(3_800_000);
    assert_eq!(world.state(&id), None);
    let late = world.append_to_intake(&id, first);
    world.after(2_000);
    assert_eq!(outcome_of(&world, late), Some(Outcome::Superseded));
    assert_eq!(turns(&world, &id), [1, 2, 3]);
}

#[test]
fn a_failed_task_is_not_brought_back_by_what_was_read_before_its_last_turn() {
    const ONE_MORE: &str = r#","retry":{"count":1,"interval":600}"#;
    let mut world = World::new(|_, _| (5, failed(500)));
    let id = world.create(1, 1_000, ONE_MORE);
    world.after(5_000);
    let early = world.retry_record(&id).expect("a copy of it");
    world.retry(&id);
    world.after(2_000);
    assert_eq!((turns(&world, &id), world.state(&id)), (vec![1, 2], Some(TimerState::Dead)));
    let early = world.append_to_intake(&id, early);
    world.after(2_000);
    assert_eq!(outcome_of(&world, early), Some(Outcome::Superseded));
    assert_eq!(turns(&world, &id), [1, 2]);
    world.retry(&id);
    world.after(2_000);
    assert_eq!(turns(&world, &id), [1, 2, 3]);
}

#[test]
fn what_was_cancelled_or_succeeded_is_not_brought_back() {
    let mut world = World::new(|_, nth| (5, if nth < 1 { failed(500) } else { finished() }));
    let cancelled = world.create(1, 1_000, IN_TEN_MINUTES);
    let finished = world.create(2, 1_000, IN_TEN_MINUTES);
    world.after(5_000);
    let of_cancelled = world.retry_record(&cancelled).expect("a copy of it");
    world.cancel(&cancelled);
    let late = world.append_to_intake(&cancelled, of_cancelled);
    let of_finished = world.retry_record(&finished).expect("a copy of it");
    world.append_to_intake(&finished, of_finished.clone());
    world.after(2_000);
    assert_eq!(world.state(&finished), Some(TimerState::Delivered));
    let again = world.append_to_intake(&finished, of_finished);
    world.after(2_000_000);
    assert_eq!(outcome_of(&world, late), Some(Outcome::Superseded));
    assert_eq!(world.state(&cancelled), Some(TimerState::Cancelled));
    assert_eq!(turns(&world, &cancelled), [1]);
    assert_eq!(outcome_of(&world, again), Some(Outcome::Superseded));
    assert_eq!(turns(&world, &finished), [1, 2]);
}

#[test]
fn a_task_that_a_worker_holds_is_not_called_twice() {
    let mut world = World::new(|_, _| (30_000, finished()));
    let id = world.create(1, 1_000, "");
    world.after(500);
    let early = world.retry_record(&id).expect("a copy of it");
    world.after(2_000);
    let timer = world.timer(&id).expect("known");
    let progress = timer.task.expect("a task");
    assert!(progress.held.is_some());
    let early = world.append_to_intake(&id, early);
    // One that names the turn that is open.
    let (version, turn, trigger) = (timer.version, progress.turn, timer.due);
    let wanted = sealed::WantedCopy { id: &id, version, turn, trigger };
    let work = world.dispatched().next().expect("dispatched").clone();
    let place = (Offset(0), world.now);
    let terms = sealed::copy_of(&world.setup.key, &work, place, &wanted).expect("it is one");
    let record = sealed::retry(&world.setup.key, world.now, (&work, terms), &wanted, &progress);
    let open = world.append_to_intake(&id, record);
    world.after(60_000);
    assert_eq!(outcome_of(&world, early), Some(Outcome::Superseded));
    assert_eq!(outcome_of(&world, open), Some(Outcome::Underway));
    assert_eq!(turns(&world, &id), [1]);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
}

#[test]
fn copies_of_one_turn_that_wait_in_memory_are_one() {
    let mut world = World::new(|_, nth| match nth {
        0 => (5, failed(500)),
        _ => (20_000, finished()),
    });
    world.set_registry("service/shop/slow", r#"{"address":"http://a.example","concurrency":1}"#);
    let to = r#"{"type":"http","project":"shop","group":"g","service":"slow","retry":{"count":3,"interval":30}}"#;
    let spec = Spec::parse(to.as_bytes()).expect("sound");
    let ids: Vec<_> = (0..100).map(|n| world.create_spec(n, 1_000, &spec, None)).collect();
    world.after(10_000);
    // All have failed once, and all are called again at one time, though there is no room.
    for _ in 0..3 {
        for id in &ids {
            if let Some(record) = world.retry_record(id) {
                world.append_to_intake(id, record);
            }
        }
        world.after(500);
    }
    world.after(4_000_000);
    for id in &ids {
        assert_eq!(turns(&world, id), [1, 2]);
        assert_eq!(world.state(id), Some(TimerState::Delivered));
    }
    assert_eq!((world.figures().tasks_waiting, world.credits()), (0, (0, 0)));
}

#[test]
fn a_deleted_project_is_not_called_by_hand() {
    let mut world = World::new(|_, _| (5, failed(500)));
    let id = world.create(1, 1_000, NONE_LEFT);
    world.after(5_000);
    world.delete_project("shop");
    let retry = world.retry(&id);
    world.after(2_000);
    assert_eq!(outcome_of(&world, retry), Some(Outcome::Refused(Code::ProjectDeleted)));
    assert_eq!(world.dead.len(), 1, "its letter is there already");
    assert_eq!(world.state(&id), Some(TimerState::Dead));
}

#[test]
fn a_retry_with_another_body_or_a_forged_seal_is_none() {
    let mut world = World::new(|_, _| (5, failed(500)));
    let id = world.create(1, 1_000, IN_TEN_MINUTES);
    world.after(5_000);
    let timer = world.timer(&id).expect("known");
    let (version, trigger) = (timer.version, timer.due);
    let wanted = sealed::WantedCopy { id: &id, version, turn: 1, trigger };
    let sound = world.retry_record(&id).expect("a copy of it");
    let place = (Offset(7), world.now);
    let is_copy =
        |record: &Record| sealed::copy_of(&world.setup.key, record, place, &wanted).is_some();
    assert!(is_copy(&sound));
    assert!(!is_copy(&Record::new(None, Some(b"another body"), sound.headers())));
    let of_turn = |turn| sealed::WantedCopy { turn, ..wanted };
    assert!(sealed::copy_of(&world.setup.key, &sound, place, &of_turn(2)).is_none());
    // A create has another seal.
    let of_create = world.sealed(&id, 0, &spec(IN_TEN_MINUTES), None);
    let state = of_create.headers().filter(|(name, _)| *name == b"x-delay-state");
    let kept = sound.headers().filter(|(name, _)| *name != b"x-delay-state");
    let forged = Record::new(None, sound.value(), kept.chain(state));
    world.append_to_intake(&id, forged);
    world.after(5_000);
    assert_eq!(turns(&world, &id), [1]);
    assert_eq!(world.dead.last().map(|(_, code, _)| *code), Some(Code::BadTask));
}

#[test]
fn a_cancel_from_before_a_retry_cancels_nothing_when_it_is_written_again() {
    let mut world = World::new(|_, nth| (5, if nth == 0 { failed(500) } else { not_yet() }));
    let id = world.create(1, 1_000, r#","poll":{"interval":"5s","rounds":100}"#);
    world.after(5_000);
    assert_eq!(world.state(&id), Some(TimerState::Dead));
    let old = sealed::cancel(&world.setup.key, world.now, &id);
    world.after(20_000);
    world.retry(&id);
    world.after(2_000);
    let again = world.append_to_intake(&id, old);
    world.after(20_000);
    assert_eq!(outcome_of(&world, again), Some(Outcome::Absent));
    assert_eq!(world.state(&id), Some(TimerState::Delay));
    // One that is asked for now is another matter.
    let cancel = world.cancel(&id);
    world.after(10_000);
    assert_eq!(outcome_of(&world, cancel), Some(Outcome::Cancelled));
    assert_eq!(world.state(&id), Some(TimerState::Cancelled));
}

#[test]
fn an_end_is_remembered_for_400_days_also_if_its_project_has_a_short_history_by_then() {
    const DAY: Millis = Millis::DAY;
    let mut world = World::new(|_, _| (5, finished()));
    world.set_registry("project/shop", r#"{"history":"400d"}"#);
    let id = world.create(1, 1_000, "");
    world.after(5_000);
    assert_eq!((world.state(&id), world.calls_of(&id).len()), (Some(TimerState::Delivered), 1));
    // The same request again is the same task.
    let asks_in_vain = |world: &mut World| {
        world.create(1, 1_000, "");
        world.after(60_000);
        assert_eq!((world.state(&id), world.calls_of(&id).len()), (Some(TimerState::Delivered), 1));
        assert!(world.has_definition(&id) && world.attempts(&id).len() == 1);
    };
    // Longer than the default.
    world.now = BEGAN + Millis(8 * DAY.0);
    asks_in_vain(&mut world);
    // A change counts for what ends from then on.
    world.set_registry("project/shop", r#"{"history":"1h"}"#);
    let later = world.create(2, 1_000, "");
    world.after(5_000);
    assert_eq!(world.state(&later), Some(TimerState::Delivered));
    world.after(3_500_000);
    assert_eq!(world.state(&later), Some(TimerState::Delivered), "its hour is not over");
    world.after(200_000);
    assert_eq!(world.state(&later), None);
    assert!(!world.has_definition(&later) && world.attempts(&later).is_empty());
    world.create(2, 1_000, "");
    world.after(5_000);
    assert_eq!(world.calls_of(&later).len(), 2, "it is another task");
    asks_in_vain(&mut world);
    // As it is for who takes the lanes over.
    world.take_lanes_over();
    world.now = BEGAN + Millis(399 * DAY.0);
    asks_in_vain(&mut world);
    world.now = BEGAN + Millis(400 * DAY.0 + 60_000);
    world.after(60_000);
    assert_eq!(world.state(&id), None, "400 days are over");
    assert!(!world.has_definition(&id) && world.attempts(&id).is_empty());
    world.create(1, 1_000, "");
    world.after(5_000);
    assert_eq!(world.calls_of(&id).len(), 2);
}

#[test]
fn an_end_is_remembered_for_as_long_as_its_project_says() {
    let mut world = World::new(|_, nth| (5, if nth == 0 { failed(500) } else { finished() }));
    world.set_registry("project/shop", r#"{"history":"2h"}"#);
    let (failed, cancelled) = (world.create(1, 1_000, ""), world.create(2, 60_000, ""));
    let retried = world.create(3, 1_000, r#","retry":{"count":1,"interval":1}"#);
    let to = r#"{"type":"kafka","project":"shop","group":"g","topic":"orders.out"}"#;
    let to_topic = world.create_spec(4, 1_000, &Spec::parse(to.as_bytes()).expect("sound"), None);
    let to = to.replace("orders.out", "secret");
    let refused = world.create_spec(5, 1_000, &Spec::parse(to.as_bytes()).expect("sound"), None);
    world.after(1_000);
    world.cancel(&cancelled);
    world.after(10_000);
    let other = r#"{"type":"http","project":"home","group":"g","url":"http://a.example/x"}"#;
    world.set_registry("project/home", r#"{"history":"1h"}"#);
    let of_other = world.create_spec(6, 0, &Spec::parse(other.as_bytes()).expect("sound"), None);
    world.after(10_000);
    let all = [&failed, &cancelled, &retried, &to_topic, &refused];
    let states: Vec<_> = all.iter().filter_map(|id| world.state(id)).collect();
    assert_eq!(
        states,
        [
            TimerState::Dead,
            TimerState::Cancelled,
            TimerState::Delivered,
            TimerState::Delivered,
            TimerState::Dead,
        ]
    );
    // A change counts for what ends from then on.
    world.set_registry("project/shop", r#"{"history":"10h"}"#);
    world.after(3_800_000);
    assert_eq!(world.state(&of_other), None);
    assert!(all.iter().all(|id| world.state(id).is_some()));
    world.after(3_200_000);
    assert!(all.iter().all(|id| world.state(id).is_some()));
    world.after(400_000);
    assert!(all.iter().all(|id| world.state(id).is_none()));
    assert!(all.iter().all(|id| !world.has_definition(id) && world.attempts(id).is_empty()));
}
