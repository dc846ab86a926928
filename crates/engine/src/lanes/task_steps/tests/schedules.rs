//! Schedules: each nominal time is one task, through take-overs, changes and pauses.

use super::world::LANES;
use super::*;
use crate::schedule::Schedule;
use crate::sealed::{Follows, Submission};
use crate::task::spec::Spec;

/// A schedule that is written like that; its task is called at once.
fn schedule(name: &str, more: &str) -> Spec {
    let json = format!(
        r#"{{"type":"schedule","project":"shop","group":"g","name":"{name}",{more},
            "task":{{"type":"http","url":"http://a.example/{name}","body":"run"}}}}"#
    );
    Spec::parse(json.as_bytes()).unwrap_or_else(|wrongs| panic!("{json}: {wrongs:?}"))
}

fn id_of(name: &str) -> TaskId {
    TaskId::schedule("shop", name).expect("a name")
}

fn of(spec: &Spec) -> &Schedule {
    spec.schedule().expect("a schedule")
}

impl World {
    fn submission_of<'a>(&self, id: &'a TaskId, spec: &'a Spec) -> Submission<'a> {
        let due = of(spec).first_after(self.now).expect("it has a time");
        Submission { id, spec, due, expires: None, key: None, value: None, headers: &[] }
    }

    fn put(&mut self, spec: &Spec) -> TaskId {
        let id = id_of(of(spec).name());
        let record = sealed::submit(&self.setup.key, self.now, &self.submission_of(&id, spec));
        self.append_to_intake(&id, record);
        id
    }

    fn change(&mut self, spec: &Spec, version: Version) -> Offset {
        self.follow(spec, Follows { version, has_ended: false })
    }

    /// Makes one anew that has ended.
    fn anew(&mut self, spec: &Spec, version: Version) -> Offset {
        self.follow(spec, Follows { version, has_ended: true })
    }

    fn follow(&mut self, spec: &Spec, follows: Follows) -> Offset {
        let id = id_of(of(spec).name());
        let submission = self.submission_of(&id, spec);
        let record = sealed::change_schedule(&self.setup.key, self.now, follows, &submission);
        self.append_to_intake(&id, record)
    }

    fn version(&self, id: &TaskId) -> Version {
        self.timer(id).expect("it is known").version
    }

    /// The nominal times that were called, by the calls: in seconds since the world began.
    fn called(&self, id: &TaskId) -> Vec<u64> {
        let of = format!("{}@", id.as_str());
        let nominal = |call: &Called| call.id.split_once(&of)?.1.parse::<u64>().ok();
        self.calls.iter().filter_map(nominal).map(|at| (at - BEGAN.0) / 1_000).collect()
    }

    /// Nobody is there for so long.
    fn nobody_for(&mut self, ms: u64) {
        self.kill_worker();
        self.now = self.now + Millis(ms);
        self.take_lanes_over();
        self.start_worker();
    }
}

use world::Called;

#[test]
fn each_second_has_its_task_though_lanes_are_taken_over() {
    let mut world = World::new(|_, _| (5, finished()));
    let id = world.put(&schedule("tick", r#""every":"1s""#));
    for at in 0..60 {
        if at == 20 || at == 40 {
            world.take_lanes_over();
        }
        if at % 7 == 3 {
            // A transaction is lost, and its member with it.
            world.fails_in = Some(at % 5);
        }
        world.after(1_000);
    }
    // A call is made again if its worker dies before it has said so.
    let mut called = world.called(&id);
    called.dedup();
    assert_eq!(called, (1..=60).collect::<Vec<_>>());
    for call in world.calls.iter().filter(|call| call.turn == 1) {
        let nominal = call.id.rsplit_once('@').expect("its time").1.parse::<u64>().expect("ms");
        assert!((nominal..nominal + 300).contains(&call.at.0), "{call:?}");
    }
    for at in 1..60 {
        let task = id.occurrence(BEGAN + Millis(at * 1_000));
        assert_eq!((world.submitted(&task), world.state(&task)), (1, Some(TimerState::Delivered)));
    }
    let progress = world.timer(&id).and_then(|timer| timer.task).expect("its progress");
    assert!(progress.turn >= 59 && progress.attempts >= 59, "{progress:?}");
    assert_eq!(world.figures().occurrences_skipped, 0);
    assert_eq!(world.state(&id), Some(TimerState::Delay));
}

#[test]
fn a_task_of_a_schedule_is_in_its_lane_and_says_whose_it_is() {
    let mut world = World::new(|_, _| (5, finished()));
    let id = world.put(&schedule("tick", r#""every":"10s""#));
    world.after(10_500);
    let task = id.occurrence(BEGAN + Millis(10_000));
    assert_eq!(task.lane_of(LANES), id.lane_of(LANES));
    let timer = world.timer(&task).expect("it was created");
    assert_eq!((timer.state, timer.due), (TimerState::Delivered, BEGAN + Millis(10_000)));
    assert_eq!(&world.calls[0].body[..], b"run");
    assert_eq!(world.timer(&id).expect("its own").type_of_task(), "schedule");
    assert!(world.has_definition(&id));
}

#[test]
fn times_that_nobody_was_there_for_are_made_up_for_as_the_schedule_says() {
    for (misfire, want) in
        [("fire_once", vec![5]), ("skip", vec![]), ("fire_all", vec![1, 2, 3, 4, 5])]
    {
        let mut world = World::new(|_, _| (5, finished()));
        let more = format!(r#""every":"1m","misfire":"{misfire}""#);
        let id = world.put(&schedule("minutely", &more));
        world.after(30_000);
        world.nobody_for(300_000);
        world.after(20_000);
        let called: Vec<u64> = world.called(&id).iter().map(|at| at / 60).collect();
        assert_eq!(called, want, "{misfire}");
        world.after(15_000);
        assert_eq!(world.called(&id).last(), Some(&360), "{misfire}: it goes on");
    }
    // A take-over is no outage.
    let mut world = World::new(|_, _| (5, finished()));
    let id = world.put(&schedule("tick", r#""every":"1s","misfire":"skip""#));
    world.after(1_500);
    world.nobody_for(12_000);
    world.after(2_000);
    assert_eq!(world.called(&id), (1..=15).collect::<Vec<_>>());
}

#[test]
fn with_skip_no_two_tasks_are_open() {
    let mut world = World::new(|_, _| (3_000, finished()));
    let id = world.put(&schedule("slow", r#""every":"1s","overlap":"skip""#));
    for at in 0..40 {
        if at == 15 {
            world.take_lanes_over();
        }
        world.after(1_000);
    }
    let mut ends = UnixMillis(0);
    for call in &world.calls {
        assert!(call.at >= ends, "{call:?} while another one is open");
        ends = call.at + Millis(3_000);
    }
    let called = world.called(&id);
    assert!(called.len() >= 9 && called[0] == 1, "{called:?}");
    assert!(world.figures().occurrences_skipped > 10);
}

#[test]
fn with_queue_one_the_next_one_waits_and_further_ones_have_no_task() {
    let mut world = World::new(|_, _| (10_500, finished()));
    let more = r#""every":"1s","overlap":"queue_one""#;
    let id = world.put(&schedule("slow", more));
    world.after(24_000);
    // The one of the second second waits for the first, and the next one is that of the second behind its begin.
    let called = world.called(&id);
    assert_eq!(called[..2], [1, 2], "{called:?}");
    let first_end = world.calls[0].at + Millis(10_500);
    let second = &world.calls[1];
    assert!(
        (first_end..first_end + Millis(1_200)).contains(&second.at),
        "{second:?}, {first_end:?}"
    );
    assert_eq!(world.calls.len(), 3, "{:?}", world.calls);

    // One that waits too long ends as expired.
    let mut world = World::new(|_, _| (10_500, finished()));
    let more = r#""every":"1s","overlap":"queue_one","expires":"2s""#;
    let id = world.put(&schedule("slow", more));
    world.after(6_000);
    assert_eq!(world.state(&id.occurrence(BEGAN + Millis(2_000))), Some(TimerState::Expired));
    assert_eq!(world.called(&id), [1], "the first one is open all the time");
    world.cancel(&id.occurrence(BEGAN + Millis(5_000)));
    world.after(1_000);
    assert_eq!(world.called(&id), [1]);
    world.after(20_000);
    assert_eq!(world.called(&id), [1, 10, 21]);
    for pair in world.calls.windows(2) {
        assert!(pair[1].at >= pair[0].at + Millis(10_500), "{pair:?}");
    }
}

#[test]
fn a_change_holds_for_each_time_that_has_not_come() {
    let mut world = World::new(|_, _| (5, finished()));
    let id = world.put(&schedule("report", r#""every":"10s""#));
    world.after(9_000);
    let first = world.version(&id);
    let offset = world.change(&schedule("report", r#""every":"4s""#), first);
    let late = world.change(&schedule("report", r#""every":"1s""#), first);
    world.after(20_000);
    assert_eq!(outcome_of(&world, offset), Some(Outcome::Replaced));
    assert_eq!(outcome_of(&world, late), Some(Outcome::Superseded), "it follows what is no more");
    assert_eq!(world.called(&id), [12, 16, 20, 24, 28]);
    let second = world.version(&id);
    assert_ne!(first, second);
    // A change that only repeats what is there runs nothing twice and leaves nothing out, whenever it comes.
    for _ in 0..20 {
        world.after(437);
        let version = world.version(&id);
        world.change(&schedule("report", r#""every":"4s""#), version);
        world.after(300);
    }
    world.take_lanes_over();
    world.after(5_000);
    let called = world.called(&id);
    let last = *called.last().expect("some");
    assert_eq!(called, (12..=last).step_by(4).collect::<Vec<_>>());
    assert!(last >= 44, "{called:?}");
}

#[test]
fn a_paused_schedule_has_no_task_until_it_is_resumed() {
    let mut world = World::new(|_, _| (5, finished()));
    let spec = schedule("report", r#""every":"10s""#);
    let id = world.put(&spec);
    world.after(9_000);
    world.change(&spec.clone().with_paused(true), world.version(&id));
    world.after(30_000);
    world.take_lanes_over();
    world.after(6_000);
    assert_eq!(world.called(&id), [0; 0]);
    assert_eq!(world.state(&id), Some(TimerState::Delay));
    world.change(&spec, world.version(&id));
    world.after(10_000);
    assert_eq!(world.called(&id), [50], "what fell into the pause is not made up for");
    // One that is made paused, too.
    let paused = world.put(&schedule("other", r#""every":"1s","paused":true"#));
    world.after(600_000);
    assert_eq!(world.called(&paused), [0; 0]);
    let other = schedule("other", r#""every":"1s""#);
    world.change(&other, world.version(&paused));
    world.after(2_500);
    assert_eq!(world.called(&paused).len(), 2);
}

#[test]
fn a_deleted_schedule_has_no_task_and_can_be_made_anew() {
    let mut world = World::new(|_, _| (5, finished()));
    world.set_registry("project/shop", r#"{"history":"1h"}"#);
    let spec = schedule("report", r#""every":"10s""#);
    let id = world.put(&spec);
    world.after(12_000);
    let cancel = world.cancel(&id);
    world.after(60_000);
    assert_eq!(outcome_of(&world, cancel), Some(Outcome::Cancelled));
    assert_eq!((world.called(&id), world.state(&id)), (vec![10], Some(TimerState::Cancelled)));
    // To create it again is to find it: only who knows that it has ended brings it back.
    world.put(&spec);
    world.after(20_000);
    assert_eq!(world.called(&id), [10]);
    let ended = world.version(&id);
    // A change of one that goes on does not bring it back.
    let late = world.change(&spec, ended);
    world.after(20_000);
    assert_eq!(outcome_of(&world, late), Some(Outcome::Superseded));
    assert_eq!(world.called(&id), [10]);
    let again = world.anew(&spec, ended);
    let twice = world.anew(&spec, ended);
    world.after(10_000);
    assert_eq!(outcome_of(&world, again), Some(Outcome::Replaced));
    assert_eq!(outcome_of(&world, twice), Some(Outcome::Superseded));
    assert_eq!(world.called(&id), [10, 120]);
    // A paused one is forgotten as well: its mark does not stay for good.
    world.change(&spec.clone().with_paused(true), world.version(&id));
    world.after(1_000);
    world.cancel(&id);
    world.after(5 * 3_600_000);
    assert_eq!((world.state(&id), world.timers.len()), (None, 0), "{:?}", world.timers);
}

#[test]
fn a_schedule_ends_with_its_last_time() {
    let mut world = World::new(|_, _| (5, finished()));
    let start = BEGAN.0 + 2_000;
    let more = format!(r#""every":"2s","start":{start},"count":3"#);
    let id = world.put(&schedule("thrice", &more));
    world.after(20_000);
    assert_eq!(world.called(&id), [2, 4, 6]);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn a_backfill_runs_nothing_that_ran() {
    let mut world = World::new(|_, _| (5, finished()));
    let spec = schedule("report", r#""every":"10s""#);
    let id = world.put(&spec);
    world.after(25_000);
    assert_eq!(world.called(&id), [10, 20]);
    for _ in 0..2 {
        let times = of(&spec).timing().times(BEGAN, world.now, 1_000).times;
        for nominal in times {
            let made = of(&spec).occurrence(
                ("shop", "g"),
                id.occurrence(nominal),
                (nominal, world.now),
                None,
            );
            let made = made.expect("a task");
            let submission = Submission {
                id: &made.id,
                spec: &made.spec,
                due: made.due,
                expires: made.expires,
                key: made.key.as_deref(),
                value: made.value.as_deref(),
                headers: &made.headers,
            };
            let record = sealed::submit(&world.setup.key, world.now, &submission);
            world.append_to_intake(&made.id, record);
        }
        world.after(1_000);
    }
    assert_eq!(world.called(&id), [10, 20, 0]);
}

#[test]
fn a_topic_is_checked_when_its_task_is_created_and_the_schedule_goes_on() {
    let mut world = World::new(|_, _| (5, finished()));
    let spec = |topic: &str| {
        let json = format!(
            r#"{{"type":"schedule","project":"shop","group":"g","name":"t","every":"5s",
                "task":{{"type":"kafka","topic":"{topic}","key":"k","value":"v","headers":{{"a":"b"}}}}}}"#
        );
        Spec::parse(json.as_bytes()).expect("sound")
    };
    let id = world.put(&spec("orders.out"));
    world.after(11_000);
    let values: Vec<_> = world.delivered.iter().map(|(_, value)| value.clone()).collect();
    assert_eq!(values, vec![Some(b"v".to_vec()); 2]);
    world.change(&spec("forbidden"), world.version(&id));
    world.after(10_000);
    assert_eq!((world.delivered.len(), world.dead.len()), (2, 2), "{:?}", world.dead);
    assert_eq!(world.state(&id), Some(TimerState::Delay));
}

/// A lane that stood still learns first what was said before the last of the times that have passed.
#[test]
fn a_pause_holds_for_times_that_pass_while_the_lane_stands_still() {
    let mut world = World::new(|_, _| (5, finished()));
    let spec = schedule("tick", r#""every":"1s","misfire":"fire_all""#);
    let id = world.put(&spec);
    world.after(2_500);
    // Nobody moves for a while, and reads nothing of the intake yet.
    world.intake_hangs = true;
    let version = world.version(&id);
    world.now = world.now + Millis(4_000);
    world.change(&spec.clone().with_paused(true), version);
    world.now = world.now + Millis(8_000);
    world.after(1_000);
    world.intake_hangs = false;
    world.after(5_000);
    let called = world.called(&id);
    assert!(called.len() >= 2 && called.iter().all(|at| *at <= 6), "{called:?}");
}
