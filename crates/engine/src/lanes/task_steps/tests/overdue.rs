//! Overdue tasks that wait in tiers are counted by what they wait for.

use super::super::super::TasksOverdue;
use super::world::{World, failed, finished};
use crate::timers::TimerState;

const MANY: u32 = 1_500;

fn overdue(world: &World) -> TasksOverdue {
    world.figures().tasks_overdue
}

#[test]
fn those_of_a_paused_project_are_counted_until_they_may_go() {
    let mut world = World::new(|_, _| (5, finished()));
    world.set_registry("project/shop", r#"{"paused":true}"#);
    let ids: Vec<_> = (0..300).map(|n| world.create(n, 2_000, "")).collect();
    assert_eq!(overdue(&world), TasksOverdue::default(), "none is due");
    world.after(30_000);
    assert_eq!(overdue(&world), TasksOverdue { paused: 300, ..TasksOverdue::default() });
    world.cancel(&ids[7]);
    world.after(1_000);
    assert_eq!(overdue(&world).paused, 299);
    world.take_lanes_over();
    world.after(60_000);
    assert_eq!(overdue(&world).paused, 299, "after a take-over they are counted as they come up");
    world.set_registry("project/shop", "{}");
    world.after(60_000);
    assert_eq!((overdue(&world), world.calls.len()), (TasksOverdue::default(), 299));
}

#[test]
fn one_that_waits_long_for_its_next_turn_is_neither_overdue_nor_lost() {
    let retry = r#","retry":{"count":2,"interval":3600}"#;
    let mut world = World::new(|_, nth| (5, if nth < 2 { failed(500) } else { finished() }));
    let id = world.create(1, 1_000, retry);
    world.after(1_000_000);
    world.take_lanes_over();
    world.after(2_000_000);
    assert_eq!((world.state(&id), world.figures().lost_timers), (Some(TimerState::Delay), 0));
    world.take_lanes_over();
    world.after(8_000_000);
    let turns: Vec<u32> = world.calls_of(&id).iter().map(|call| call.turn).collect();
    assert_eq!((turns, world.figures().lost_timers), (vec![1, 2, 3], 0));
}

#[test]
fn those_over_the_limit_and_those_behind_a_breaker_are_told_apart() {
    let mut world = World::new(|_, _| (2_000, finished()));
    (0..MANY).for_each(|n| drop(world.create(n, 1_000, "")));
    world.after(6_000);
    let TasksOverdue { paused, limit, breaker } = overdue(&world);
    assert!(limit > 100 && (paused, breaker) == (0, 0), "{:?}", overdue(&world));
    world.after(3_600_000);
    assert_eq!((overdue(&world), world.calls.len()), (TasksOverdue::default(), MANY as usize));

    let retry = r#","retry":{"count":99,"interval":1}"#;
    let mut world = World::new(|_, _| (5, failed(503)));
    (0..MANY).for_each(|n| drop(world.create(n, 1_000, retry)));
    world.after(60_000);
    let TasksOverdue { paused, limit, breaker } = overdue(&world);
    assert!(breaker > 100 && (paused, limit) == (0, 0), "{:?}", overdue(&world));
}
