//! Schedules: each nominal time is one task, through take-overs, changes and pauses.

use std::collections::BTreeSet;

use super::world::LANES;
use super::*;
use crate::schedule::Schedule;
use crate::sealed::{Follows, Submission};
use crate::setup::Limits;
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

    /// Writes the creates of all times that have passed.
    fn backfill(&mut self, id: &TaskId, spec: &Spec) {
        for nominal in of(spec).timing().times(BEGAN, self.now, 1_000).times {
            self.put_task_of(id, spec, nominal, None);
        }
    }

    /// Writes the create of the task of a time. `after`: the time whose task is to have ended before.
    fn put_task_of(
        &mut self,
        id: &TaskId,
        spec: &Spec,
        nominal: UnixMillis,
        after: Option<UnixMillis>,
    ) -> TaskId {
        let task = id.occurrence(nominal);
        let made = of(spec).occurrence(("shop", "g"), task, (nominal, self.now), after);
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
        let record = sealed::submit(&self.setup.key, self.now, &submission);
        self.append_to_intake(&made.id, record);
        made.id
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

/// What is asserted is minutes from the change of the clocks on.
#[test]
fn tasks_come_by_the_clock_of_the_zone_over_both_of_its_changes() {
    // At 1 o'clock UTC the clocks of Berlin jump over half past two on 28 March 2027, and show it twice on 31 October.
    let spring = (UnixMillis(1_806_195_600_000), 0, 1_410);
    let autumn = (UnixMillis(1_824_944_400_000), -30, 1_470);
    for (change, this_night, next_night) in [spring, autumn] {
        let mut world = World::new(|_, _| (5, finished()));
        world.now = change - Millis(3 * 3_600_000);
        let minutes = |at: UnixMillis| (at.0 as i64 - change.0 as i64) / 60_000;
        let zoned = |name: &str, cron: &str| {
            schedule(name, &format!(r#""cron":"{cron}","zone":"Europe/Berlin""#))
        };
        let night = world.put(&zoned("night", "30 2 * * *"));
        let hour = world.put(&zoned("hour", "30 * * * *"));
        for _ in 0..3 {
            world.after(2 * 3_600_000);
            world.take_lanes_over();
        }
        let called = |id: &TaskId| -> Vec<i64> {
            let called = world.called(id).into_iter();
            called.map(|at| minutes(BEGAN + Millis(at * 1_000))).collect()
        };
        assert_eq!(called(&night), [this_night]);
        let progress = world.timer(&night).and_then(|timer| timer.task).expect("its progress");
        assert_eq!(minutes(progress.next_at), next_night);
        assert_eq!(called(&hour), (-150..=150).step_by(60).collect::<Vec<_>>());
        for call in &world.calls {
            let nominal = call.id.rsplit_once('@').expect("its time").1.parse::<u64>().expect("ms");
            assert!((nominal..nominal + 300).contains(&call.at.0), "{call:?}");
        }
    }
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

/// A schedule whose tasks are runs, which nobody executes.
fn runs(name: &str, more: &str) -> Spec {
    let json = format!(
        r#"{{"type":"schedule","project":"shop","group":"g","name":"{name}",{more},
            "task":{{"type":"run","shards":3,"deadline":"5s","task":
                {{"type":"kafka","topic":"orders.out","value":"work","feedback":{{"deadline":"10m"}}}}}}}}"#
    );
    Spec::parse(json.as_bytes()).unwrap_or_else(|wrongs| panic!("{json}: {wrongs:?}"))
}

/// The deadline of a run is over in the moment in which what waits for that is due. The transaction that has no room for more is the last
/// one that lands.
#[test]
fn a_run_has_no_shards_before_the_end_of_the_one_before_it_is_written() {
    for fails_in in 0..4 {
        let limits = Limits { batch_records_max: 4, ..Limits::default() };
        let mut world = World::within(limits, |_, _| (5, finished()));
        let spec = runs("nightly", r#""every":"1h","overlap":"queue_one""#);
        let (id, at) = (id_of("nightly"), BEGAN + Millis(1_000));
        let first = world.put_task_of(&id, &spec, at, None);
        world.after(2_000);
        let until = world.shards(&first).expect("it has shards").until();
        let second = world.put_task_of(&id, &spec, until, Some(at));
        world.after((until - world.now).0 - 1);
        world.fails_in = Some(fails_in);
        world.step_lanes();
        assert_eq!(world.now, until);
        let has_ended = world.state(&first) == Some(TimerState::Expired);
        assert!(has_ended || world.shards(&second).is_none(), "{fails_in}");
        world.after(20_000);
        assert_eq!(world.state(&first), Some(TimerState::Expired));
        assert_eq!(world.state(&second), Some(TimerState::Expired), "{fails_in}");
    }
}

/// The same of the create of the next one, once nobody was there when the deadline passed.
#[test]
fn a_time_has_no_task_before_the_end_of_the_one_before_it_is_written() {
    for fails_in in 0..4 {
        let limits = Limits { batch_records_max: 4, ..Limits::default() };
        let mut world = World::within(limits, |_, _| (5, finished()));
        let id = world.put(&runs("nightly", r#""every":"10s","overlap":"skip""#));
        world.after(12_000);
        let [first, second] = [10_000, 20_000].map(|at| id.occurrence(BEGAN + Millis(at)));
        assert!(world.shards(&first).is_some());
        world.now = BEGAN + Millis(20_999);
        world.fails_in = Some(fails_in);
        for _ in 0..4 {
            world.step_lanes();
            let has_ended = world.state(&first) == Some(TimerState::Expired);
            assert!(has_ended || world.submitted(&second) == 0, "{fails_in}");
        }
        world.after(2_000);
        assert_eq!(world.state(&first), Some(TimerState::Expired));
        assert_eq!(world.submitted(&second), 1, "{fails_in}");
    }
}

#[test]
fn a_time_does_not_wait_for_dead_letters() {
    let mut world = World::new(|_, _| (5, finished()));
    let id = world.put(&schedule("report", r#""every":"10s","overlap":"skip""#));
    world.after(9_999);
    let headers = [(&b"x-delay"[..], Some(&b"soon"[..]))];
    world.append_to_intake(&id, Record::new(None, Some(b"{}"), headers.into_iter()));
    // Both are decided in one step.
    world.step_lanes();
    world.after(1_000);
    assert_eq!(world.submitted(&id.occurrence(BEGAN + Millis(10_000))), 1);
}

/// The create of a task stands behind the open transaction of an instance that stands still. Meanwhile its lane is taken over, and waits
/// for that no longer.
#[test]
fn a_task_waits_for_the_one_before_it_though_the_create_of_that_was_hidden() {
    for overlap in ["skip", "queue_one"] {
        let mut world = World::new(|_, _| (15_000, finished()));
        let more = format!(r#""every":"10s","overlap":"{overlap}""#);
        let id = world.put(&schedule("report", &more));
        world.after(9_999);
        world.intake_hangs = true;
        world.after(101);
        let [first, second] = [10_000, 20_000].map(|at| id.occurrence(BEGAN + Millis(at)));
        assert_eq!(world.submitted(&first), 1);
        world.take_lanes_over();
        world.after(10_000);
        world.give_up_hidden();
        world.after(100);
        assert_eq!((world.submitted(&second), world.calls.len()), (1, 0), "{overlap}");
        world.intake_hangs = false;
        world.after(60_000);
        assert_eq!(world.called(&id)[..2], [10, 20], "{overlap}");
        for pair in world.calls.windows(2) {
            assert!(pair[1].at >= pair[0].at + Millis(15_000), "{overlap}: {pair:?}");
        }
    }
}

/// The create of the last task is written once more, and the index is asked what became of that task in the moment in which the next
/// time comes.
#[test]
fn a_task_that_has_ended_is_in_nobodys_way_while_the_index_is_asked_for_it() {
    for overlap in ["skip", "queue_one"] {
        let mut world = World::new(|_, _| (5, finished()));
        let spec = schedule("report", &format!(r#""every":"10s","overlap":"{overlap}""#));
        let id = world.put(&spec);
        world.after(19_998);
        assert_eq!(world.called(&id), [10]);
        world.now = world.now + Millis(1);
        world.backfill(&id, &spec);
        world.step_lanes();
        assert_eq!(world.now, BEGAN + Millis(20_000));
        world.after(5_000);
        let mut called = world.called(&id);
        called.sort_unstable();
        assert_eq!(called, [0, 10, 20], "{overlap}");
        assert_eq!(world.figures().occurrences_skipped, 0, "{overlap}");
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
fn a_schedule_has_no_task_at_its_end_or_after_it() {
    let mut world = World::new(|_, _| (5, finished()));
    let until = |end: u64| schedule("tick", &format!(r#""every":"2s","end":{}"#, BEGAN.0 + end));
    let id = world.put(&until(60_000));
    world.after(5_000);
    // One that was changed ends as the change says.
    world.change(&until(10_000), world.version(&id));
    world.after(1_500);
    world.take_lanes_over();
    world.after(30_000);
    assert_eq!(world.called(&id), [2, 4, 6, 8]);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn with_jitter_each_task_comes_later_than_its_time_and_its_schedule_does_not() {
    let mut world = World::new(|_, _| (5, finished()));
    world.put(&schedule("spread", r#""every":"10s","jitter":"25s""#));
    for _ in 0..20 {
        // The tasks of several times wait.
        world.after(30_000);
        world.take_lanes_over();
    }
    world.after(25_000);
    let (mut called, mut delays) = (BTreeSet::new(), BTreeSet::new());
    for call in &world.calls {
        let task = TaskId::parse(&call.id).expect("an id");
        let nominal = call.id.rsplit_once('@').expect("its time").1.parse::<u64>().expect("ms");
        let delay = task.offset_in(Millis(25_000)).0;
        let due = nominal + delay;
        assert!((due..due + 300).contains(&call.at.0), "{call:?}: it is due at {due}");
        called.insert((nominal - BEGAN.0) / 1_000);
        delays.insert(delay / 5_000);
    }
    assert!(called.iter().copied().eq((10..=called.len() as u64 * 10).step_by(10)), "{called:?}");
    assert!(called.len() >= 60, "{called:?}");
    assert_eq!(delays, BTreeSet::from([0, 1, 2, 3, 4]), "they are spread over all of it");
}

#[test]
fn a_count_holds_through_changes_and_pauses_and_a_preview_says_so() {
    let mut world = World::new(|_, _| (5, finished()));
    let more = format!(r#""cron":"*/10 * * * * *","start":{},"count":6"#, BEGAN.0 + 5_000);
    let kept = |world: &World, id: &TaskId| {
        let definition = world.definition(id).expect("it has one");
        Spec::parse(definition.as_bytes()).expect("sound")
    };
    let id = world.put(&schedule("six", &more));
    world.after(25_000);
    world.change(&schedule("six", &format!(r#"{more},"overlap":"skip""#)), world.version(&id));
    world.after(10_000);
    world.change(&kept(&world, &id).with_paused(true), world.version(&id));
    world.after(10_000);
    world.change(&kept(&world, &id).with_paused(false), world.version(&id));
    world.after(60_000);
    assert_eq!(world.called(&id), [10, 20, 30, 50, 60]);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    let listed = of(&kept(&world, &id)).timing().times(BEGAN, UnixMillis(u64::MAX), 10);
    let listed: Vec<u64> = listed.times.iter().map(|at| (*at - BEGAN).0 / 1_000).collect();
    assert_eq!(listed, [10, 20, 30, 40, 50, 60]);
}

#[test]
fn a_backfill_runs_nothing_that_ran() {
    let mut world = World::new(|_, _| (5, finished()));
    let spec = schedule("report", r#""every":"10s""#);
    let id = world.put(&spec);
    world.after(25_000);
    assert_eq!(world.called(&id), [10, 20]);
    for _ in 0..2 {
        world.backfill(&id, &spec);
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
    // Nobody reports on them, and they say for which time they are all the same.
    assert_eq!(world.nominals, [5_000, 10_000].map(|at| Some(BEGAN + Millis(at))));
    world.change(&spec("forbidden"), world.version(&id));
    world.after(10_000);
    assert_eq!((world.delivered.len(), world.dead.len()), (2, 2), "{:?}", world.dead);
    assert_eq!(world.state(&id), Some(TimerState::Delay));
    // A timer has the id that its producer likes, and is of no time.
    let task = id.occurrence(BEGAN + Millis(5_000));
    let headers =
        [(header::DELAY, "1s"), (header::TARGET, "orders.out"), (header::ID, task.as_str())];
    let headers = headers.map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
    let timer = Record::new(None, Some(b"timer"), headers.into_iter());
    world.append_to_intake(&task, timer);
    world.after(3_000);
    assert_eq!(
        world.delivered.last().map(|(_, value)| value.as_deref()),
        Some(Some(&b"timer"[..]))
    );
    assert_eq!((world.nominals.len(), world.nominals.last()), (3, Some(&None)));
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
