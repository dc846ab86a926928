//! Runs: each of their shards ends once, and so do they, also if owners of lanes die.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::world::{Handed, LANES};
use super::*;
use crate::Lane;
use crate::sealed::{Follows, Submission};
use crate::setup::Limits;
use crate::state::StateKey;
use crate::task::spec::Spec;
use crate::timers::progress::shards_key;
use crate::timers::{
    Change, RunProgress, RunStatus, ShardCounts, ShardNews, ShardReport, Timer, TimerId,
};

const HOUR: u64 = 3_600_000;
const AWAITED: &str = r#"{"type":"kafka","topic":"orders.out","value":"work","feedback":{"deadline":"10m","heartbeat":"5s"},"retry":{"count":1,"interval":1}}"#;
const CALLED: &str = r#"{"type":"http","url":"http://a.example/work","body":"work","retry":{"count":1,"interval":1}}"#;
const TOLD: &str = r#","on_finished":{"url":"http://told.example/x"}"#;

fn run_of(shards: u32, more: &str, task: &str) -> Spec {
    let json = format!(
        r#"{{"type":"run","project":"shop","group":"g","shards":{shards}{more},"task":{task}}}"#
    );
    Spec::parse(json.as_bytes()).unwrap_or_else(|wrongs| panic!("{json}: {wrongs:?}"))
}

fn of(outcome: CallOutcome) -> TaskResult {
    TaskResult::new(outcome)
}

fn beat() -> TaskResult {
    of(CallOutcome::Started)
}

impl World {
    fn run(&mut self, n: u32, delay: u64, spec: &Spec) -> TaskId {
        let id = world::id(n);
        let due = self.now + Millis(delay);
        let submission =
            Submission { id: &id, spec, due, expires: None, key: None, value: None, headers: &[] };
        let record = sealed::submit(&self.setup.key, self.now, &submission);
        self.append_to_intake(&id, record);
        id
    }

    fn run_again(&mut self, id: &TaskId, spec: &Spec, version: Version) -> Offset {
        let follows = Follows { version, has_ended: true };
        let submission = Submission {
            id,
            spec,
            due: self.now,
            expires: None,
            key: None,
            value: None,
            headers: &[],
        };
        let record = sealed::change_schedule(&self.setup.key, self.now, follows, &submission);
        self.append_to_intake(id, record)
    }

    /// How far the shards of a run are, as `<ns>.timers` says.
    pub(super) fn shards(&self, id: &TaskId) -> Option<&RunProgress> {
        let key = (id.lane_of(LANES).0, shards_key(TimerId::task(id)).to_vec());
        match self.timers.get(&key)? {
            Change::Shards(_, run) => Some(run),
            other => panic!("{other:?}"),
        }
    }

    fn grid(&self, id: &TaskId) -> String {
        self.shards(id).expect("it has shards").grid()
    }

    fn counts(&self, id: &TaskId) -> ShardCounts {
        self.shards(id).expect("it has shards").counts()
    }

    fn status(&self, id: &TaskId) -> RunStatus {
        RunStatus::of(self.state(id).expect("it is known"), self.shards(id))
    }

    fn shard(&self, id: &TaskId, index: u32) -> TaskId {
        let version = self.timer(id).expect("it is known").version;
        id.shard((version.first_appended, version.offset), index)
    }

    /// The timers of all shards that this run ever had.
    fn timers_of_shards(&self, id: &TaskId) -> Vec<&Timer> {
        let is_of = |timer: &Timer| {
            let shard = std::str::from_utf8(&timer.id).ok().and_then(|id| TaskId::parse(id).ok());
            shard.and_then(|shard| shard.as_shard()).is_some_and(|(run, ..)| run == *id)
        };
        let timers = self.timers.values().filter_map(|change| match change {
            Change::Timer(timer) => Some(timer),
            _ => None,
        });
        timers.filter(|timer| is_of(timer)).collect()
    }

    /// How many shards of its last version are in this state.
    fn in_state(&self, id: &TaskId, state: TimerState) -> usize {
        let all = 0..self.shards(id).expect("it has shards").shards();
        all.filter(|index| self.state(&self.shard(id, *index)) == Some(state)).count()
    }

    /// What executors were handed last of each shard, in the order of the shards.
    fn last_handed(&self, id: &TaskId) -> Vec<Handed> {
        let shards = self.shards(id).expect("it has shards").shards();
        let last = |index| {
            let shard = self.shard(id, index);
            self.handed.iter().rfind(|handed| handed.id == shard).cloned()
        };
        (0..shards).filter_map(last).collect()
    }

    /// Executors of all shards that were handed out say that.
    fn all_say(&mut self, id: &TaskId, result: &TaskResult) {
        for handed in self.last_handed(id) {
            if self.state(&handed.id) == Some(TimerState::Delay) {
                self.report(&handed, result);
            }
        }
    }

    /// The lane of a shard says that of its first turn to the run of this version.
    fn say_of_shard(&mut self, run: &TaskId, version: Version, (index, news): (u32, ShardNews)) {
        let said = ShardReport { index, turn: 1, news };
        let record = sealed::shard_record(&self.setup.key, (run, version), said);
        self.append_result(run.lane_of(LANES), record);
    }

    /// The executor of the second of three shards gives it up, and the run has heard so. Gives that shard.
    fn second_of_three_fails(&mut self, id: &TaskId) -> TaskId {
        let shard = self.shard(id, 1);
        let handed = self.last_handed(id);
        let of_shard = handed.iter().find(|handed| handed.id == shard).expect("it was handed out");
        self.report(of_shard, &of(CallOutcome::Gone));
        self.after(1_000);
        assert_eq!(self.grid(id), "oxo");
        shard
    }

    /// The bodies of the calls that told of the end of a version of a run.
    fn told_of(&self, id: &TaskId, version: Version) -> Vec<Value> {
        let follow_up = id.follow_up((version.first_appended, version.offset));
        let calls = self.calls_of(&follow_up).into_iter();
        calls.map(|call| serde_json::from_slice(&call.body).expect("JSON")).collect()
    }

    /// A run has ended like that, all its shards have ended, and it was told of as often as that, with the counts that are shown.
    fn has_ended(&self, id: &TaskId, state: TimerState, told: usize) {
        let timer = self.timer(id).expect("it is known");
        assert_eq!(timer.state, state);
        let all = self.ends_of_runs.iter();
        let of = all.filter(|of| (of.0, of.1) == (timer.timer_id, timer.version));
        let ends: Vec<RunStatus> = of.map(|of| of.2).collect();
        assert_eq!(ends, [RunStatus::of(state, None)], "its end is counted once");
        let open: Vec<_> =
            self.timers_of_shards(id).into_iter().filter(|shard| !shard.state.is_final()).collect();
        assert!(open.is_empty(), "{} are open, as {:?}", open.len(), open[0]);
        let mut bodies = self.told_of(id, timer.version);
        // Of a worker that died the call is made again.
        bodies.dedup();
        assert_eq!(bodies.len(), told, "{bodies:?}");
        let follow_up = id.follow_up((timer.version.first_appended, timer.version.offset));
        assert_eq!(self.submitted(&follow_up), told);
        let word = if state == TimerState::Delivered { "finished" } else { "failed" };
        assert!(bodies.iter().all(|body| body["task_status"] == word), "{bodies:?}");
        for body in bodies {
            let of = self.shards(id).expect("it has shards").counts_at_end();
            assert_eq!(body["shards"], json!(of), "{body}");
        }
    }
}

/// A world whose calls are answered like that, by which shard it is, if it is one.
fn world_of(mut answer: impl FnMut(Option<u32>, usize) -> (u64, TaskResult) + 'static) -> World {
    World::new(move |id, nth| {
        let shard = TaskId::parse(id).ok().and_then(|id| id.as_shard());
        answer(shard.map(|(.., index)| index), nth)
    })
}

/// What a lane has said of a command about a task: those about its shards have offsets in other lanes.
fn said_of(world: &World, id: &TaskId, offset: Offset) -> Option<Outcome> {
    let timer_id = TimerId::task(id);
    let mut answers = world.answers.iter();
    answers.find(|of| (of.timer_id, of.offset) == (timer_id, offset)).map(|of| of.outcome)
}

fn world() -> World {
    world_of(|_, _| (5, finished()))
}

#[test]
fn a_run_has_its_shards_when_it_is_due_and_ends_with_the_last_of_them() {
    let mut world = world();
    let id = world.run(1, 2_000, &run_of(60, TOLD, AWAITED));
    world.after(1_900);
    assert_eq!((world.status(&id), world.shards(&id)), (RunStatus::Waiting, None));
    assert_eq!(world.timer(&id).expect("it is known").type_of_task(), "run");
    world.after(1_000);
    assert_eq!((world.status(&id), world.grid(&id)), (RunStatus::Triggered, "o".repeat(60)));
    assert_eq!(world.figures().runs_open, 1);
    let run = world.shards(&id).expect("some");
    assert!((run.until() - BEGAN).0.abs_diff(2_000 + 24 * HOUR) < 300, "{:?}", run.until());
    // Each is an ordinary task of its own lane.
    let lanes: BTreeSet<Lane> =
        (0..60).map(|index| world.shard(&id, index).lane_of(LANES)).collect();
    assert_eq!(lanes.len(), usize::from(LANES));
    for index in 0..60 {
        let shard = world.shard(&id, index);
        let timer = world.timer(&shard).expect("it was created");
        assert_eq!((timer.type_of_task(), world.submitted(&shard)), ("kafka", 1));
        assert!(world.has_definition(&shard));
    }
    // Who takes it learns which it is; and they take turns over the partitions of their topic.
    let handed = world.last_handed(&id);
    assert_eq!((handed.len(), world.handed.len()), (60, 60));
    for (index, handed) in handed.iter().enumerate() {
        assert_eq!((handed.shard.clone(), handed.nominal), (Some(format!("{index}/60")), None));
        assert_eq!(handed.partition, Some(index as i32 % 3));
        assert!(handed.at >= BEGAN + Millis(2_000), "{handed:?}");
    }
    assert!(world.delivered.iter().all(|(_, value)| value.as_deref() == Some(b"work")));
    // The first sign of each.
    world.report(&handed[0], &beat());
    world.after(100);
    assert_eq!((world.status(&id), &world.grid(&id)[..2]), (RunStatus::Executing, ">o"));
    world.all_say(&id, &beat());
    world.after(100);
    assert_eq!((world.status(&id), world.grid(&id)), (RunStatus::Locked, ">".repeat(60)));
    // All but one give signs, and that one is handed out once more.
    for _ in 0..3 {
        world.after(3_000);
        for handed in world
            .last_handed(&id)
            .iter()
            .filter(|handed| handed.id != world.shard(&id, 7))
            .cloned()
            .collect::<Vec<_>>()
        {
            world.report(&handed, &beat());
        }
    }
    world.after(1_000);
    assert_eq!(world.handed.len(), 61);
    assert_eq!(world.handed[60].shard.as_deref(), Some("7/60"));
    assert_eq!((world.status(&id), &world.grid(&id)[6..9]), (RunStatus::ReExecuting, ">r>"));
    let again = world.handed[60].clone();
    world.report(&again, &of(CallOutcome::Finished));
    world.after(100);
    assert_eq!((world.status(&id), &world.grid(&id)[6..9]), (RunStatus::Locked, ">#>"));
    assert_eq!(world.state(&id), Some(TimerState::Delay));
    world.all_say(&id, &of(CallOutcome::Finished));
    world.after(1_000);
    assert_eq!((world.status(&id), world.grid(&id)), (RunStatus::Finished, "#".repeat(60)));
    world.has_ended(&id, TimerState::Delivered, 1);
    // Its record comes up, and finds nothing to do.
    world.after(25 * HOUR);
    assert_eq!((world.handed.len(), world.dead.len(), world.figures().shards_created), (61, 0, 60));
    assert_eq!((world.figures().live, world.figures().runs_open), (0, 0));
}

#[test]
fn calls_are_shards_too() {
    let mut world = world_of(|_, nth| match nth {
        0 => (400, failed(500)),
        _ => (400, finished()),
    });
    let id = world.run(1, 1_000, &run_of(40, TOLD, CALLED));
    world.after(1_300);
    let counts = world.counts(&id);
    assert!(counts.created == 40 && counts.begun > 0, "calls are open: {counts:?}");
    world.after(1_400);
    let counts = world.counts(&id);
    assert!(counts.again > 0 && world.status(&id) == RunStatus::ReExecuting, "{counts:?}");
    world.after(10_000);
    let want = ShardCounts { created: 40, begun: 40, again: 0, finished: 40, failed: 0 };
    assert_eq!(world.counts(&id), want);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    assert_eq!(world.credits(), (0, 0));
}

#[test]
fn a_run_of_which_a_shard_has_failed_goes_on_and_has_failed() {
    for is_taken_over in [false, true] {
        let mut world = world_of(|index, _| match index {
            Some(3) => (5, failed(500)),
            Some(4) => (9_000, finished()),
            _ => (5, finished()),
        });
        let id = world.run(1, 1_000, &run_of(10, TOLD, CALLED));
        world.after(5_000);
        assert_eq!(
            (world.grid(&id), world.state(&id)),
            ("###x>#####".to_owned(), Some(TimerState::Delay))
        );
        if is_taken_over {
            world.take_lanes_over();
        }
        world.after(10_000);
        assert_eq!(world.grid(&id), "###x######");
        world.has_ended(&id, TimerState::Dead, 1);
        let version = world.timer(&id).expect("it is known").version;
        let body = world.told_of(&id, version).remove(0);
        assert_eq!((&body["task_type"], &body["code"]), (&json!("run"), &json!("task_failed")));
        assert_eq!(world.in_state(&id, TimerState::Delivered), 9);
    }
}

#[test]
fn with_stop_the_first_failure_ends_the_run_and_cancels_the_others() {
    let mut world = world();
    let id =
        world.run(1, 1_000, &run_of(60, &format!(r#","on_shard_failure":"stop"{TOLD}"#), AWAITED));
    world.after(2_000);
    let handed = world.last_handed(&id);
    handed[..10].iter().for_each(|handed| {
        world.report(handed, &of(CallOutcome::Finished));
    });
    world.after(100);
    let gone = of(CallOutcome::Gone);
    world.report(&handed[20], &gone);
    world.report(&handed[21], &gone);
    world.after(5_000);
    world.has_ended(&id, TimerState::Dead, 1);
    // Those that were cancelled have failed, as for anybody who looks at the run.
    let version = world.timer(&id).expect("it is known").version;
    let want = json!({"created": 60, "finished": 10, "failed": 50});
    assert_eq!(world.told_of(&id, version)[0]["shards"], want);
    assert_eq!(world.in_state(&id, TimerState::Delivered), 10);
    assert_eq!(world.in_state(&id, TimerState::Dead), 2);
    assert_eq!(world.in_state(&id, TimerState::Cancelled), 48);
    // Who still works learns it by its next sign.
    let at = world.report(&handed[30], &beat());
    world.after(100);
    assert_eq!(said_of(&world, &handed[30].id, at), Some(Outcome::Absent));
    world.after(25 * HOUR);
    assert_eq!((world.handed.len(), world.status(&id)), (60, RunStatus::Failed));
}

#[test]
fn a_deadline_ends_the_run_and_what_has_not_ended() {
    for is_taken_over in [false, true] {
        let mut world = world();
        let id = world.run(1, 1_000, &run_of(20, &format!(r#","deadline":"10s"{TOLD}"#), AWAITED));
        world.after(2_000);
        world.last_handed(&id)[..5].to_vec().iter().for_each(|handed| {
            world.report(handed, &of(CallOutcome::Finished));
        });
        world.after(1_000);
        if is_taken_over {
            world.take_lanes_over();
        }
        world.after(7_900);
        assert_eq!(world.state(&id), Some(TimerState::Delay));
        world.after(1_000);
        world.has_ended(&id, TimerState::Expired, 0);
        let since = (world.timer(&id).expect("it is known").since - BEGAN).0;
        assert!((11_000..12_000).contains(&since), "{since}");
        assert_eq!(world.in_state(&id, TimerState::Delivered), 5);
        assert_eq!(world.in_state(&id, TimerState::Cancelled), 15);
        world.after(HOUR);
        assert_eq!(world.handed.len(), 20);
    }
}

#[test]
fn a_run_whose_shards_are_created_in_some_transactions_has_its_deadline_too() {
    let mut world = world();
    let id = world.run(1, 1_000, &run_of(1_100, r#","deadline":"10s""#, AWAITED));
    world.after(10_900);
    assert_eq!(world.state(&id), Some(TimerState::Delay));
    world.after(1_000);
    world.has_ended(&id, TimerState::Expired, 0);
}

#[test]
fn a_run_is_cancelled_before_it_has_shards_and_when_it_has_all() {
    let mut world = world();
    let before = world.run(1, 10_000, &run_of(20, TOLD, AWAITED));
    let after = world.run(2, 1_000, &run_of(20, TOLD, AWAITED));
    world.after(3_000);
    let (one, two) = (world.cancel(&before), world.cancel(&after));
    world.after(3_000);
    for (id, at) in [(&before, one), (&after, two)] {
        assert_eq!(said_of(&world, id, at), Some(Outcome::Cancelled));
    }
    world.has_ended(&before, TimerState::Cancelled, 0);
    world.has_ended(&after, TimerState::Cancelled, 0);
    assert_eq!((world.shards(&before), world.timers_of_shards(&before).len()), (None, 0));
    assert_eq!(world.in_state(&after, TimerState::Cancelled), 20);
    let begun =
        |world: &World, id| world.timer(id).and_then(|timer| timer.task).map(|task| task.begun);
    assert_eq!((begun(&world, &before), begun(&world, &after)), (Some(false), Some(true)));
    // And when it has ended.
    let at = world.cancel(&after);
    world.after(25 * HOUR);
    assert_eq!(said_of(&world, &after, at), Some(Outcome::Absent));
    assert_eq!((world.handed.len(), world.figures().live), (20, 0));
}

#[test]
fn many_shards_are_created_in_some_transactions_and_each_once() {
    let mut world = world();
    let id = world.run(1, 1_000, &run_of(2_500, "", CALLED));
    world.after(60_000);
    let steps: Vec<u32> = {
        let mut steps = world.created.clone();
        steps.dedup();
        steps
    };
    assert_eq!(steps, [1_000, 2_000, 2_500]);
    assert_eq!(world.grid(&id), "#".repeat(2_500));
    world.has_ended(&id, TimerState::Delivered, 0);
    let called: BTreeSet<&str> = world.calls.iter().map(|call| &*call.id).collect();
    assert_eq!((called.len(), world.calls.len()), (2_500, 2_500));
    assert!((0..2_500).all(|index| world.submitted(&world.shard(&id, index)) == 1));
}

#[test]
fn shards_are_created_once_though_owners_die_meanwhile() {
    for fails_in in 0..14 {
        let mut world = world();
        let id = world.run(1, 1_000, &run_of(2_500, TOLD, CALLED));
        world.fails_in = Some(fails_in);
        world.after(90_000);
        assert!(world.fails_in.is_none(), "{fails_in}: it was met");
        assert_eq!(world.grid(&id), "#".repeat(2_500), "{fails_in}");
        world.has_ended(&id, TimerState::Delivered, 1);
        let shards = world.timers_of_shards(&id).len();
        let once = (0..2_500).all(|index| world.submitted(&world.shard(&id, index)) == 1);
        assert!(shards == 2_500 && once, "{fails_in}: {shards}");
    }
}

#[test]
fn a_cancel_while_shards_are_created_ends_those_that_there_are() {
    // After so many transactions, by the shards that there are then.
    for (is_taken_over, stops_at) in [(false, 1_000), (true, 1_000), (true, 2_000), (false, 2_500)]
    {
        let mut world = world();
        let id = world.run(1, 1_000, &run_of(2_500, TOLD, AWAITED));
        let wanted = |world: &World| world.created.last().copied().unwrap_or_default() >= stops_at;
        world.now = world.now + Millis(900);
        while !wanted(&world) {
            world.step_lanes();
        }
        let there = world.created.last().copied().expect("some");
        if is_taken_over {
            world.take_lanes_over();
        }
        let at = world.cancel(&id);
        world.after(10_000);
        let created = world.shards(&id).expect("some").created();
        assert!(created >= there, "{created} of {there}");
        let outcome = said_of(&world, &id, at);
        assert_eq!(outcome, Some(Outcome::Cancelled), "{there}");
        world.has_ended(&id, TimerState::Cancelled, 0);
        assert_eq!(world.in_state(&id, TimerState::Cancelled), created as usize);
        let begun = world.timer(&id).and_then(|timer| timer.task).map(|task| task.begun);
        assert_eq!(begun, Some(true), "there were shards: {is_taken_over} {there}");
        let handed = world.handed.len();
        world.after(25 * HOUR);
        assert_eq!(
            (world.handed.len(), world.timers_of_shards(&id).len()),
            (handed, created as usize)
        );
    }
}

/// Lets a run live until it ends like that, and somebody die in between.
fn dies_in(fails_in: usize, end: TimerState) {
    let more = match end {
        TimerState::Expired => r#","deadline":"3s""#,
        TimerState::Dead => r#","on_shard_failure":"stop","deadline":"10m""#,
        _ => r#","deadline":"10m""#,
    };
    let mut world = world();
    let id = world.run(1, 1_000, &run_of(30, &format!("{more}{TOLD}"), AWAITED));
    world.after(2_000);
    let handed = world.last_handed(&id);
    assert_eq!(handed.len(), 30);
    world.all_say(&id, &beat());
    handed[..3].iter().for_each(|handed| {
        world.report(handed, &of(CallOutcome::Finished));
    });
    world.fails_in = Some(fails_in);
    let at = match end {
        TimerState::Dead => Some(world.report(&handed[4], &of(CallOutcome::Gone))),
        TimerState::Cancelled => Some(world.cancel(&id)),
        TimerState::Delivered => {
            world.all_say(&id, &of(CallOutcome::Finished));
            None
        }
        _ => None,
    };
    world.after(3_500);
    let told = usize::from(matches!(end, TimerState::Dead | TimerState::Delivered));
    world.has_ended(&id, end, told);
    if end == TimerState::Cancelled {
        assert_eq!(
            said_of(&world, &id, at.expect("a cancel")),
            Some(Outcome::Cancelled),
            "{fails_in}"
        );
    }
    let finished = if end == TimerState::Delivered { 30 } else { 3 };
    assert_eq!(world.in_state(&id, TimerState::Delivered), finished, "{end:?} {fails_in}");
    world.after(HOUR / 4);
    assert_eq!((world.handed.len(), world.figures().live), (30, 0), "{end:?} {fails_in}");
}

#[test]
fn a_run_ends_once_though_owners_die() {
    for end in [TimerState::Delivered, TimerState::Dead, TimerState::Expired, TimerState::Cancelled]
    {
        for fails_in in 0..12 {
            dies_in(fails_in, end);
        }
    }
}

#[test]
fn what_ends_a_run_may_be_written_in_a_batch_before_its_end_and_that_one_is_lost() {
    let stop = r#","on_shard_failure":"stop""#;
    for (more, last, end) in [
        ("", ShardNews::Finished, TimerState::Delivered),
        (stop, ShardNews::Failed, TimerState::Dead),
    ] {
        for fails_in in 0..6 {
            // One write for each batch.
            let limits = Limits { batch_records_max: 1, ..Limits::default() };
            let mut world = World::within(limits, |_, _| (5, finished()));
            let id = world.run(1, 1_000, &run_of(2, &format!("{more}{TOLD}"), AWAITED));
            world.after(2_000);
            let handed = world.last_handed(&id);
            world.report(&handed[0], &of(CallOutcome::Finished));
            world.after(500);
            world.fails_in = Some(fails_in);
            let version = world.timer(&id).expect("it is known").version;
            for news in [ShardNews::Begun, last] {
                world.say_of_shard(&id, version, (1, news));
            }
            world.after(1_000);
            world.all_say(&id, &of(CallOutcome::Finished));
            world.after(2_000);
            world.has_ended(&id, end, 1);
        }
    }
}

#[test]
fn between_the_cancels_of_many_shards_and_the_end_somebody_may_die() {
    for end in [TimerState::Dead, TimerState::Cancelled, TimerState::Expired] {
        for fails_in in 0..6 {
            let more = match end {
                TimerState::Dead => r#","on_shard_failure":"stop""#,
                TimerState::Expired => r#","deadline":"10s""#,
                _ => "",
            };
            let mut world = world();
            let id = world.run(1, 1_000, &run_of(2_500, &format!("{more}{TOLD}"), AWAITED));
            world.after(8_000);
            let handed = world.last_handed(&id);
            assert_eq!(handed.len(), 2_500);
            world.fails_in = Some(fails_in);
            match end {
                TimerState::Dead => {
                    world.report(&handed[4], &of(CallOutcome::Gone));
                }
                TimerState::Cancelled => {
                    world.cancel(&id);
                }
                _ => {}
            }
            world.after(10_000);
            world.has_ended(&id, end, usize::from(end == TimerState::Dead));
        }
    }
}

#[test]
fn one_that_is_cancelled_is_not_taken_for_one_that_failed_as_its_shards_were_cancelled() {
    for fails_in in 0..6 {
        let spec = run_of(2_500, &format!(r#","on_shard_failure":"stop"{TOLD}"#), AWAITED);
        let mut world = world();
        let id = world.run(1, 1_000, &spec);
        world.after(8_000);
        assert_eq!(world.handed.len(), 2_500);
        world.fails_in = Some(fails_in);
        // Who takes the lane over reads last what stands in the intake.
        world.intake_hangs_with_loss = true;
        let at = world.cancel(&id);
        world.after(5_000);
        world.intake_hangs = false;
        world.after(10_000);
        assert_eq!(said_of(&world, &id, at), Some(Outcome::Cancelled), "{fails_in}");
        world.has_ended(&id, TimerState::Cancelled, 0);
    }
}

#[test]
fn a_run_that_failed_is_made_again_with_other_shards() {
    for fails_in in 0..8 {
        let spec = run_of(6, &format!(r#","deadline":"1h"{TOLD}"#), AWAITED);
        let mut world = world();
        let id = world.run(1, 1_000, &spec);
        world.after(2_000);
        let first = world.timer(&id).expect("it is known").version;
        let early = world.run_again(&id, &spec, first);
        world.after(1_000);
        assert_eq!(said_of(&world, &id, early), Some(Outcome::Superseded), "it goes on");
        world.all_say(&id, &of(CallOutcome::Gone));
        world.after(2_000);
        world.has_ended(&id, TimerState::Dead, 1);
        let old = world.last_handed(&id);
        world.fails_in = Some(fails_in);
        let again = world.run_again(&id, &spec, first);
        let twice = world.run_again(&id, &spec, first);
        world.after(2_000);
        assert_eq!(said_of(&world, &id, again), Some(Outcome::Replaced), "{fails_in}");
        assert_eq!(said_of(&world, &id, twice), Some(Outcome::Superseded), "{fails_in}");
        let second = world.timer(&id).expect("it is known").version;
        assert_ne!(second, first);
        assert_eq!(world.grid(&id), "o".repeat(6), "{fails_in}");
        let handed = world.last_handed(&id);
        assert_eq!(handed.len(), 6);
        assert!(handed.iter().all(|handed| old.iter().all(|old| old.id != handed.id)));
        assert!((world.shards(&id).expect("some").until() - world.now).0 > HOUR - 5_000);
        // What is said of shards of the first version changes nothing.
        world.take_lanes_over();
        for news in [ShardNews::Begun, ShardNews::Again, ShardNews::Finished, ShardNews::Failed] {
            world.say_of_shard(&id, first, (2, news));
        }
        world.after(1_000);
        assert_eq!((world.grid(&id), world.figures().tasks_stale), ("o".repeat(6), 4));
        world.all_say(&id, &of(CallOutcome::Finished));
        world.after(2_000);
        world.has_ended(&id, TimerState::Delivered, 1);
        // Nor is one made again that is finished.
        let late = world.run_again(&id, &spec, second);
        world.after(2_000);
        assert_eq!(said_of(&world, &id, late), Some(Outcome::Superseded));
        assert_eq!(world.timers_of_shards(&id).len(), 12);
    }
}

#[test]
fn an_expired_run_is_made_again_and_a_cancelled_one_is_not() {
    let spec = run_of(4, r#","deadline":"5s""#, AWAITED);
    let mut world = world();
    let (expired, cancelled) = (world.run(1, 1_000, &spec), world.run(2, 1_000, &spec));
    world.after(2_000);
    world.cancel(&cancelled);
    world.after(10_000);
    let version = |world: &World, id| world.timer(id).expect("it is known").version;
    let of_expired = version(&world, &expired);
    let one = world.run_again(&expired, &spec, of_expired);
    let of_cancelled = version(&world, &cancelled);
    let other = world.run_again(&cancelled, &spec, of_cancelled);
    world.after(1_000);
    assert_eq!(said_of(&world, &expired, one), Some(Outcome::Replaced));
    assert_eq!(said_of(&world, &cancelled, other), Some(Outcome::Superseded));
    assert_eq!(world.grid(&expired), "oooo");
    world.all_say(&expired, &of(CallOutcome::Finished));
    world.after(1_000);
    world.has_ended(&expired, TimerState::Delivered, 0);
}

#[test]
fn news_that_are_read_twice_count_once() {
    let mut world = world();
    let id = world.run(1, 1_000, &run_of(8, TOLD, AWAITED));
    world.after(2_000);
    let version = world.timer(&id).expect("it is known").version;
    let lane = id.lane_of(LANES);
    for handed in &world.last_handed(&id)[..3] {
        world.report(handed, &of(CallOutcome::Finished));
    }
    world.after(500);
    for (index, news) in [
        (0, ShardNews::Finished),
        (0, ShardNews::Failed),
        (9, ShardNews::Failed),
        (1, ShardNews::Finished),
    ] {
        for _ in 0..5 {
            world.say_of_shard(&id, version, (index, news));
        }
        world.after(500);
        world.take_lanes_over();
        world.after(500);
    }
    assert_eq!(
        (world.grid(&id), world.state(&id)),
        ("###ooooo".to_owned(), Some(TimerState::Delay))
    );
    let want = ShardCounts { created: 8, begun: 3, again: 0, finished: 3, failed: 0 };
    assert_eq!(world.counts(&id), want);
    world.all_say(&id, &of(CallOutcome::Finished));
    world.after(2_000);
    world.say_last_again(lane);
    world.after(2_000);
    world.has_ended(&id, TimerState::Delivered, 1);
}

#[test]
fn who_takes_the_lane_over_knows_all_that_was_heard() {
    let mut world = world();
    let id = world.run(1, 1_000, &run_of(30, TOLD, AWAITED));
    world.after(2_000);
    let handed = world.last_handed(&id);
    for (nth, handed) in handed.iter().enumerate() {
        if nth % 3 == 0 {
            world.take_lanes_over();
        }
        world.report(handed, &beat());
        world.after(7);
        if nth % 2 == 0 {
            world.report(handed, &of(CallOutcome::Finished));
        }
        world.fails_in = Some(nth % 4);
        world.after(200);
        let counts = world.counts(&id);
        assert_eq!((counts.begun, counts.finished), (nth as u32 + 1, nth as u32 / 2 + 1), "{nth}");
    }
    world.fails_in = None;
    world.all_say(&id, &of(CallOutcome::Finished));
    world.after(5_000);
    world.has_ended(&id, TimerState::Delivered, 1);
}

#[test]
fn a_shard_that_cannot_be_is_one_that_has_failed() {
    let mut world = world();
    // Nobody may deliver to that topic, and another one is not there.
    let denied = AWAITED.replace("orders.out", "bills.out");
    let missing = AWAITED.replace("orders.out", "orders.none");
    let one = world.run(1, 1_000, &run_of(5, TOLD, &denied));
    let two = world.run(2, 1_000, &run_of(5, TOLD, &missing));
    world.after(30_000);
    for id in [&one, &two] {
        assert_eq!(world.grid(id), "xxxxx");
        world.has_ended(id, TimerState::Dead, 1);
    }
}

/// A create that was sealed with this key so long before, with this before the fields of its specification.
fn sealed_else(
    (ours, key): (&StateKey, &StateKey),
    create: &Record,
    before: Millis,
    more: &str,
) -> Record {
    let directive = header::read(create.headers()).expect("ours");
    let bound = directive.bound(create.key());
    let state = State::open(directive.state.expect("sealed"), ours, &bound).expect("sealed");
    let spec = std::str::from_utf8(directive.task.expect("its specification")).expect("JSON");
    let spec = spec.replacen('{', &format!("{{{more}"), 1);
    let state = State { first_appended: state.first_appended - before, ..state };
    let sealed = state.seal(key, &Bound { task: Some(spec.as_bytes()), ..bound });
    let names = [header::STATE.as_bytes(), header::TASK.as_bytes()];
    let kept = create.headers().filter(|(name, _)| !names.contains(name));
    let values = [Some(sealed.as_ref()), Some(spec.as_bytes())];
    Record::new(create.key(), create.value(), kept.chain(names.into_iter().zip(values)))
}

const LONG: Millis = Millis(660_000);

#[test]
fn a_shard_whose_create_breaks_the_contract_has_failed() {
    let ours = StateKey::new([7; 32]);
    let cases = [
        (Code::StaleSubmit, LONG, "", &ours),
        // As a newer release may write it.
        (Code::BadTask, Millis(0), r#""flavour":"sweet","#, &ours),
    ];
    for (code, before, more, key) in cases {
        for fails_in in [None, Some(0), Some(1), Some(2), Some(3)] {
            let mut world = world();
            let id = world.run(1, 1_000, &run_of(5, TOLD, CALLED));
            world.after(500);
            world.intake_hangs = true;
            world.after(1_000);
            assert_eq!(world.grid(&id), "ooooo");
            let shard = world.shard(&id, 3);
            world.change_create(&shard, |create| sealed_else((&ours, key), create, before, more));
            world.fails_in = fails_in;
            world.intake_hangs = false;
            world.after(5_000);
            assert_eq!(world.grid(&id), "###x#", "{code:?} {fails_in:?}");
            world.has_ended(&id, TimerState::Dead, 1);
            assert_eq!(world.timer(&shard).and_then(|timer| timer.code), Some(code));
            assert!(matches!(&world.dead[..], [(_, of, _)] if *of == code), "{:?}", world.dead);
        }
    }
}

#[test]
fn what_waterclock_has_not_sealed_says_nothing_of_a_shard() {
    let (ours, other) = (StateKey::new([7; 32]), StateKey::new([8; 32]));
    let mut world = world();
    let id = world.run(1, 1_000, &run_of(5, r#","deadline":"1m""#, CALLED));
    world.after(500);
    world.intake_hangs = true;
    world.after(1_000);
    let shard = world.shard(&id, 3);
    world.change_create(&shard, |create| sealed_else((&ours, &other), create, LONG, ""));
    world.intake_hangs = false;
    world.after(5_000);
    assert_eq!((world.grid(&id), world.dead.len()), ("###o#".to_owned(), 1));
    world.after(60_000);
    world.has_ended(&id, TimerState::Expired, 0);
}

#[test]
fn a_copy_of_a_create_that_comes_late_or_stands_elsewhere_says_nothing_of_its_shard() {
    let ours = StateKey::new([7; 32]);
    let mut world = world();
    let id = world.run(1, 1_000, &run_of(6, "", AWAITED));
    world.after(500);
    world.intake_hangs = true;
    world.after(1_000);
    let shard = world.shard(&id, 3);
    let mut copies = Vec::new();
    world.change_create(&shard, |create| {
        copies = [LONG, Millis(0)].map(|of| sealed_else((&ours, &ours), create, of, "")).into();
        create.clone()
    });
    let mut all = (0..6).map(|index| world.shard(&id, index));
    let elsewhere = all.find(|of| of.lane_of(LANES) != shard.lane_of(LANES));
    let elsewhere = elsewhere.expect("shards are spread");
    // In another lane it may come first.
    world.append_to_intake(&elsewhere, copies[1].clone());
    world.intake_hangs = false;
    world.after(1_000);
    world.append_to_intake(&elsewhere, copies[0].clone());
    world.append_to_intake(&shard, copies[0].clone());
    world.after(1_000);
    assert_eq!((world.grid(&id), world.dead.len()), ("oooooo".to_owned(), 3));
    world.all_say(&id, &of(CallOutcome::Finished));
    world.after(1_000);
    world.append_to_intake(&shard, copies[0].clone());
    world.after(1_000);
    world.has_ended(&id, TimerState::Delivered, 0);
    assert_eq!((world.grid(&id), world.dead.len()), ("######".to_owned(), 4));
}

#[test]
fn a_project_that_is_paused_or_deleted_begins_no_shard() {
    let mut world = world();
    world.set_registry("project/shop", r#"{"paused":true}"#);
    let id = world.run(1, 1_000, &run_of(5, TOLD, CALLED));
    world.after(5_000);
    assert_eq!((world.grid(&id), world.calls.len()), ("ooooo".to_owned(), 0));
    world.set_registry("project/shop", r#"{"paused":false}"#);
    world.after(60_000);
    world.has_ended(&id, TimerState::Delivered, 1);
}

#[test]
fn a_run_that_is_refused_once_it_has_shards_tells_of_them() {
    let mut world = world();
    let id = world.run(1, 1_000, &run_of(2_500, TOLD, AWAITED));
    world.now = world.now + Millis(900);
    while world.created.last().is_none() {
        world.step_lanes();
    }
    world.delete_project("shop");
    world.after(10_000);
    let timer = world.timer(&id).expect("it is known");
    assert_eq!((timer.state, timer.code), (TimerState::Dead, Some(Code::ProjectDeleted)));
    // That project calls nobody any more: who was to be told stands in a dead letter.
    let of = world.shards(&id).expect("it has some").counts_at_end();
    assert!(of.created < 2_500, "{of:?}");
    let bodies = world.dead.iter().filter_map(|(.., value)| value.as_deref());
    let mut bodies = bodies.filter_map(|body| serde_json::from_slice::<Value>(body).ok());
    let told = bodies.find(|body| body["task_type"] == "run").expect("somebody was to be told");
    assert_eq!((&told["code"], &told["shards"]), (&json!("project_deleted"), &json!(of)));
}

#[test]
fn a_shard_that_is_cancelled_by_hand_has_failed() {
    let mut world = world();
    let id = world.run(1, 1_000, &run_of(3, TOLD, AWAITED));
    world.after(2_000);
    let shard = world.shard(&id, 1);
    world.cancel(&shard);
    world.after(500);
    assert_eq!(world.grid(&id), "oxo");
    world.all_say(&id, &of(CallOutcome::Finished));
    world.after(2_000);
    assert_eq!(world.grid(&id), "#x#");
    world.has_ended(&id, TimerState::Dead, 1);
}

#[test]
fn a_shard_that_was_retried_by_hand_and_not_handed_out_yet_is_cancelled_with_its_run() {
    let mut world = world();
    let id = world.run(1, 1_000, &run_of(3, "", AWAITED));
    world.after(2_000);
    let shard = world.second_of_three_fails(&id);
    world.set_registry("project/shop", r#"{"paused":true}"#);
    world.retry(&shard);
    world.after(1_000);
    assert_eq!(world.state(&shard), Some(TimerState::Delay), "it waits for its project");
    world.cancel(&id);
    world.after(1_000);
    world.set_registry("project/shop", r#"{"paused":false}"#);
    world.after(60_000);
    assert_eq!(world.state(&shard), Some(TimerState::Cancelled));
    assert_eq!(world.last_handed(&id).len(), 3, "nothing was handed out again");
}

#[test]
fn copies_of_news_of_a_shard_that_has_failed_keep_its_run_from_no_end() {
    for ends in [CallOutcome::Finished, CallOutcome::Gone] {
        let mut world = world();
        let id = world.run(1, 1_000, &run_of(3, TOLD, AWAITED));
        world.after(2_000);
        let version = world.timer(&id).expect("it is known").version;
        world.second_of_three_fails(&id);
        for news in [ShardNews::Begun, ShardNews::Again] {
            world.say_of_shard(&id, version, (1, news));
        }
        world.after(1_000);
        assert_eq!(world.grid(&id), "oxo");
        world.all_say(&id, &of(ends));
        world.after(2_000);
        world.has_ended(&id, TimerState::Dead, 1);
    }
}

#[test]
fn what_is_known_of_a_run_and_its_shards_is_forgotten_with_it() {
    let mut world = world();
    world.set_registry("project/shop", r#"{"history":"1h"}"#);
    let id = world.run(1, 1_000, &run_of(20, TOLD, AWAITED));
    world.after(2_000);
    world.all_say(&id, &of(CallOutcome::Finished));
    world.after(2_000);
    world.has_ended(&id, TimerState::Delivered, 1);
    world.after(30 * HOUR);
    assert_eq!((world.state(&id), world.timers.len()), (None, 0), "{:?}", world.timers);
}

#[test]
fn a_schedule_has_runs() {
    let mut world = world();
    let json = format!(
        r#"{{"type":"schedule","project":"shop","group":"g","name":"nightly","every":"10s","overlap":"skip",
            "task":{{"type":"run","shards":3{TOLD},"task":{AWAITED}}}}}"#
    );
    let spec = Spec::parse(json.as_bytes()).unwrap_or_else(|wrongs| panic!("{json}: {wrongs:?}"));
    let id = TaskId::schedule("shop", "nightly").expect("a name");
    let due = spec.schedule().and_then(|of| of.first_after(world.now).ok()).expect("it has a time");
    let submission = Submission {
        id: &id,
        spec: &spec,
        due,
        expires: None,
        key: None,
        value: None,
        headers: &[],
    };
    let record = sealed::submit(&world.setup.key, world.now, &submission);
    world.append_to_intake(&id, record);
    let run = |at: u64| id.occurrence(BEGAN + Millis(at));
    world.after(25_000);
    assert_eq!(
        (world.grid(&run(10_000)), world.state(&run(20_000))),
        ("ooo".to_owned(), None),
        "the first one is open"
    );
    // One is handed out once more, by another owner of its lane.
    let first = run(10_000);
    let failed = world.last_handed(&first)[0].clone();
    world.report(&failed, &of(CallOutcome::Failed));
    world.take_lanes_over();
    world.after(2_000);
    world.all_say(&first, &of(CallOutcome::Finished));
    world.after(10_000);
    world.has_ended(&first, TimerState::Delivered, 1);
    assert_eq!(world.grid(&run(30_000)), "ooo");
    // Each shard says for which time it is, in each of its turns, and so does what tells of the end of the run.
    let nominals: Vec<_> = world.handed.iter().map(|handed| handed.nominal).collect();
    let of_time = |at: u64, times: usize| vec![Some(BEGAN + Millis(at)); times];
    assert_eq!(nominals, [of_time(10_000, 4), of_time(30_000, 3)].concat());
    let version = world.timer(&first).expect("it is known").version;
    assert_eq!(world.told_of(&first, version)[0]["nominal_at"], (BEGAN + Millis(10_000)).0);

    // One that somebody asks for by hand is of no time.
    let by_hand = id.triggered([7; 8]);
    let times = (world.now, world.now);
    let schedule = spec.schedule().expect("a schedule");
    let made = schedule.occurrence(("shop", "g"), by_hand.clone(), times, None).expect("a run");
    let submission = Submission { id: &made.id, spec: &made.spec, due: made.due, ..submission };
    let record = sealed::submit(&world.setup.key, world.now, &submission);
    world.append_to_intake(&by_hand, record);
    world.after(2_000);
    let handed = world.last_handed(&by_hand);
    assert_eq!(handed.iter().map(|handed| handed.nominal).collect::<Vec<_>>(), [None; 3]);
    world.all_say(&by_hand, &of(CallOutcome::Finished));
    world.after(2_000);
    world.has_ended(&by_hand, TimerState::Delivered, 1);
    let version = world.timer(&by_hand).expect("it is known").version;
    assert!(world.told_of(&by_hand, version)[0].get("nominal_at").is_none());
}
