//! Feedback: who takes a task reports, in time, late, twice or never.

use super::*;
use crate::messages::Reported;
use crate::task::id::TaskId;
use world::Handed;

const HOUR: u64 = 3_600_000;

fn to_topic(more: &str) -> Spec {
    let json =
        format!(r#"{{"type":"kafka","project":"shop","group":"g","topic":"orders.out"{more}}}"#);
    Spec::parse(json.as_bytes()).expect("sound")
}

/// A world with one task that its executor has.
fn handed(more: &str) -> (World, TaskId, Handed) {
    let mut world = World::new(|_, _| (5, finished()));
    let id = world.create_spec(1, 2_000, &to_topic(more), None);
    world.after(3_000);
    let handed = world.handed.first().expect("it is handed over").clone();
    assert_eq!((&handed.id, &*handed.attempt, &handed.cursor), (&id, "1", &None));
    (world, id, handed)
}

fn of(outcome: CallOutcome) -> TaskResult {
    TaskResult::new(outcome)
}

fn beat(cursor: &str, percent: u8) -> TaskResult {
    TaskResult {
        cursor: Some(cursor.to_owned()),
        percent: Some(percent),
        ..of(CallOutcome::Started)
    }
}

fn reported(world: &World, offset: Offset) -> Reported {
    match outcome_of(world, offset) {
        Some(Outcome::Reported(reported)) => reported,
        other => panic!("{other:?}"),
    }
}

fn progress(world: &World, id: &TaskId) -> Progress {
    world.timer(id).and_then(|timer| timer.task).expect("a task")
}

/// The last call of a task, as its executor takes it.
fn called(world: &World, id: &TaskId) -> Handed {
    let call = world.calls_of(id).pop().expect("it is called").clone();
    let traced = call.traced.expect("it has feedback");
    let cursor = traced.cursor.as_deref().map(str::to_owned);
    let attempt = call.attempt.to_string();
    Handed {
        at: call.at,
        id: id.clone(),
        ticket: traced.ticket,
        attempt,
        cursor,
        shard: None,
        nominal: None,
        partition: None,
    }
}

#[test]
fn a_task_is_running_until_its_executor_reports() {
    let (mut world, id, handed) = handed(r#","feedback":{"deadline":"1h"}"#);
    world.after(HOUR / 2);
    assert_eq!(world.state(&id), Some(TimerState::Delay));
    let running = progress(&world, &id);
    assert!(running.with_executor && running.begun && running.held.is_none());
    assert_eq!((running.turn, running.attempts), (1, 0));
    assert_eq!(running.next_at, handed.at + Millis(HOUR));
    let at = world.report(&handed, &of(CallOutcome::Finished));
    world.after(100);
    assert_eq!(reported(&world, at), Reported::Finished);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    let attempts = world.attempts(&id);
    assert_eq!((attempts.len(), attempts[0].result.outcome), (1, CallOutcome::Finished));
    // Nothing follows, also where its copy comes up.
    let again = world.report(&handed, &of(CallOutcome::Finished));
    world.after(2 * HOUR);
    assert_eq!(outcome_of(&world, again), Some(Outcome::Absent));
    assert_eq!((world.handed.len(), world.dead.len()), (1, 0));
}

#[test]
fn silence_until_the_deadline_is_a_failure_and_the_record_is_handed_over_again() {
    let more = r#","feedback":{"deadline":"1m"},"retry":{"count":1,"interval":5}"#;
    let (mut world, id, first) = handed(more);
    world.after(70_000);
    assert_eq!(world.handed.len(), 2);
    let second = world.handed[1].clone();
    let gap = (second.at - first.at).0;
    assert!((65_000..66_500).contains(&gap), "{gap}");
    assert_eq!(&*second.attempt, "2");
    assert_ne!(first.ticket, second.ticket);
    assert!(world.delivered.iter().all(|(_, value)| value.as_deref() == Some(b"body")));
    let attempts = world.attempts(&id);
    assert!(attempts[0].result.error.as_deref().is_some_and(|error| error.contains("timeout")));
    // The first executor still works: its heartbeat is stale, and a success of its is a success.
    let stale = world.report(&first, &beat("x", 1));
    world.after(100);
    assert_eq!(reported(&world, stale), Reported::Stale);
    let late = world.report(&first, &of(CallOutcome::Finished));
    world.after(100);
    assert_eq!(reported(&world, late), Reported::Finished);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    world.after(HOUR);
    assert_eq!((world.handed.len(), world.dead.len()), (2, 0));
    assert_eq!(progress(&world, &id).attempts, 2);
}

#[test]
fn a_task_whose_turns_all_end_in_silence_is_a_dead_letter_with_its_body() {
    let more = r#","feedback":{"deadline":"10s"},"retry":{"count":2,"interval":1}"#;
    let (mut world, id, _) = handed(more);
    world.after(120_000);
    assert_eq!(world.handed.len(), 3);
    assert_eq!(world.state(&id), Some(TimerState::Dead));
    let (detail, code, value) = &world.dead[0];
    assert_eq!((*code, value.as_deref()), (Code::TaskFailed, Some(&b"body"[..])));
    assert!(detail.contains("attempt 3") && detail.contains("timeout"), "{detail}");
    assert_eq!(world.attempts(&id).len(), 3);
}

#[test]
fn a_success_while_the_next_turn_is_waited_for_ends_the_task() {
    let more = r#","feedback":{"deadline":"10s"},"retry":{"count":2,"interval":60}"#;
    let (mut world, id, handed) = handed(more);
    world.after(30_000);
    assert!(!progress(&world, &id).with_executor, "it waits for its second turn");
    let late = world.report(&handed, &of(CallOutcome::Finished));
    world.after(HOUR);
    assert_eq!(reported(&world, late), Reported::Finished);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    assert_eq!((world.handed.len(), progress(&world, &id).attempts), (1, 1));
    assert_eq!(world.attempts(&id).len(), 1);
}

#[test]
fn the_next_turn_learns_how_far_the_last_came_at_another_owner_of_its_lane_too() {
    let more = r#","feedback":{"deadline":"1m","heartbeat":"5s"},"retry":{"count":3,"interval":1}"#;
    let (mut world, _, first) = handed(more);
    world.after(3_000);
    world.report(&first, &beat("row:1", 1));
    world.after(1_000);
    world.take_lanes_over();
    world.after(12_000);
    assert_eq!(world.handed.len(), 2, "it was silent");
    assert_eq!(world.handed[1].cursor.as_deref(), Some("row:1"));
    // A failure may say how far it came, and it need not.
    let failed = TaskResult { cursor: Some("row:7".to_owned()), ..of(CallOutcome::Failed) };
    let record = world.feedback(&world.handed[1], &failed).expect("a copy of it");
    let id = world.handed[1].id.clone();
    world.append_to_intake(&id, record);
    world.after(2_000);
    assert_eq!(world.handed.len(), 3);
    assert_eq!(world.handed[2].cursor.as_deref(), Some("row:7"));
    let record = world.feedback(&world.handed[2], &of(CallOutcome::Failed)).expect("a copy of it");
    world.append_to_intake(&id, record);
    world.after(100);
    world.take_lanes_over();
    world.after(3_000);
    assert_eq!(world.handed.len(), 4);
    assert_eq!(world.handed[3].cursor.as_deref(), Some("row:7"));
}

#[test]
fn a_failure_is_handed_over_again_after_the_backoff_and_once() {
    let more = r#","feedback":{"deadline":"1h"},"retry":{"count":1,"interval":20}"#;
    let (mut world, id, first) = handed(more);
    let failed = TaskResult { error: Some("no stock".to_owned()), ..of(CallOutcome::Failed) };
    let began = world.now;
    let record = world.feedback(&first, &failed).expect("a copy of it");
    let one = world.append_to_intake(&id, record.clone());
    let two = world.append_to_intake(&id, record);
    world.after(10_000);
    assert_eq!(
        (reported(&world, one), reported(&world, two)),
        (Reported::Retrying, Reported::Retrying)
    );
    assert_eq!(world.handed.len(), 1);
    world.after(11_000);
    assert_eq!(world.handed.len(), 2);
    let gap = (world.handed[1].at - began).0;
    assert!((20_000..20_500).contains(&gap), "{gap}");
    // The same failure once more is about a turn that is over.
    let record = world.feedback(&world.handed[1], &failed).expect("a copy of it");
    let stale = world.report(&first, &beat("x", 1));
    world.after(100);
    assert_eq!(reported(&world, stale), Reported::Stale);
    let last = world.append_to_intake(&id, record);
    world.after(100);
    assert_eq!(reported(&world, last), Reported::Failed);
    // The copies that waited for the old deadlines come up, and do nothing.
    world.after(3 * HOUR);
    assert_eq!((world.handed.len(), world.dead.len()), (2, 1));
    assert_eq!(world.state(&id), Some(TimerState::Dead));
}

#[test]
fn the_last_failure_and_one_for_good_are_dead_letters_at_once() {
    for (outcome, retries) in [(CallOutcome::Failed, 0), (CallOutcome::Gone, 5)] {
        let more = format!(
            r#","feedback":{{"deadline":"1h"}},"retry":{{"count":{retries},"interval":1}}"#
        );
        let (mut world, id, handed) = handed(&more);
        let failed = TaskResult { error: Some("no stock".to_owned()), ..of(outcome) };
        let at = world.report(&handed, &failed);
        world.after(100);
        assert_eq!(reported(&world, at), Reported::Failed);
        assert_eq!(world.state(&id), Some(TimerState::Dead));
        let (detail, code, value) = &world.dead[0];
        assert_eq!((*code, value.as_deref()), (Code::TaskFailed, Some(&b"body"[..])));
        assert!(detail.contains("no stock"), "{detail}");
        world.after(2 * HOUR);
        assert_eq!((world.handed.len(), world.dead.len()), (1, 1));
    }
}

#[test]
fn heartbeats_move_the_deadline_and_keep_how_far_it_is() {
    let more = r#","feedback":{"deadline":"1m","heartbeat":"5s"},"retry":{"count":1,"interval":1}"#;
    let (mut world, id, first) = handed(more);
    for n in 0..10 {
        world.after(3_000);
        let at = world.report(&first, &beat(&format!("row:{n}"), 10 * n));
        world.after(1_000);
        let Reported::Running(next_at) = reported(&world, at) else { panic!("it is running") };
        assert_eq!((next_at + Millis(1_000)).0, world.now.0 + 5_000);
    }
    assert_eq!(world.handed.len(), 1, "it gave signs for as long");
    let open = world.attempts(&id);
    let said = &open[0].result;
    assert_eq!((said.cursor.as_deref(), said.percent), (Some("row:9"), Some(90)));
    // From the first on, they count more than the deadline.
    world.after(12_000);
    assert_eq!(world.handed.len(), 2);
    assert_eq!(world.handed[1].cursor.as_deref(), Some("row:9"));
    let ended = world.attempts(&id);
    assert_eq!(ended[0].result.cursor.as_deref(), Some("row:9"), "of the turn that was lost");
    let second = world.handed[1].clone();
    let at = world.report(&second, &of(CallOutcome::Finished));
    world.after(HOUR);
    assert_eq!(reported(&world, at), Reported::Finished);
    assert_eq!(world.handed.len(), 2);
    assert_eq!(world.attempts(&id).len(), 2);
}

#[test]
fn what_is_awaited_for_long_hops_on_without_end() {
    let more = r#","feedback":{"deadline":"12h","heartbeat":"1m"}"#;
    let (mut world, id, handed) = handed(more);
    world.after(10 * HOUR);
    assert_eq!((world.state(&id), world.dead.len()), (Some(TimerState::Delay), 0));
    assert!(world.hops < 700, "{} hops in 600 heartbeats", world.hops);
    let at = world.report(&handed, &of(CallOutcome::Finished));
    world.after(1_000);
    assert_eq!(reported(&world, at), Reported::Finished);
}

#[test]
fn feedback_that_stands_there_in_time_counts_though_it_is_read_late() {
    let more = r#","feedback":{"deadline":"20s"},"retry":{"count":1,"interval":1}"#;
    let (mut world, id, handed) = handed(more);
    let settle = world.setup.limits.settle.expect("it is waited for").0;
    let due = progress(&world, &id).next_at;
    world.after((due - world.now).0 - settle - 20);
    // The lane reads nothing, and its owner changes.
    world.report(&handed, &of(CallOutcome::Finished));
    world.now = due + Millis(500);
    world.take_lanes_over();
    world.after(HOUR);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    assert_eq!(world.handed.len(), 1);
}

#[test]
fn a_deadline_is_over_only_once_the_intake_is_read_that_far() {
    // Without a retry left the task would have failed; with one the record would be handed over again.
    for more in [
        r#","feedback":{"deadline":"20s"},"retry":{"count":0}"#,
        r#","feedback":{"deadline":"20s"},"retry":{"count":1,"interval":1}"#,
    ] {
        let (mut world, id, handed) = handed(more);
        let settle = world.setup.limits.settle.expect("it is waited for").0;
        let due = progress(&world, &id).next_at;
        world.after((due - world.now).0 - settle - 20);
        world.intake_hangs = true;
        world.report(&handed, &of(CallOutcome::Finished));
        world.after(settle + 5_000);
        assert_eq!((world.handed.len(), world.state(&id)), (1, Some(TimerState::Delay)));
        world.intake_hangs = false;
        world.after(HOUR);
        assert_eq!((world.handed.len(), world.state(&id)), (1, Some(TimerState::Delivered)));
        assert_eq!((progress(&world, &id).attempts, world.dead.len()), (1, 0), "{more}");
    }
}

#[test]
fn a_cancel_of_what_is_awaited_stops_it() {
    let more = r#","feedback":{"deadline":"1m"},"retry":{"count":3,"interval":1}"#;
    let (mut world, id, handed) = handed(more);
    world.report(&handed, &beat("half", 50));
    world.after(100);
    world.set_registry("project/shop", r#"{"history":"1h"}"#);
    let cancel = world.cancel(&id);
    world.after(1_000);
    assert_eq!(outcome_of(&world, cancel), Some(Outcome::Cancelled));
    assert_eq!(world.state(&id), Some(TimerState::Cancelled));
    assert!(progress(&world, &id).begun, "it was stopped");
    assert_eq!(progress(&world, &id).attempts, 1, "its slot is wiped with it");
    let late = world.report(&handed, &beat("x", 60));
    world.after(HOUR / 2);
    assert_eq!(outcome_of(&world, late), Some(Outcome::Absent));
    assert_eq!((world.handed.len(), world.dead.len()), (1, 0));
    world.after(HOUR);
    assert_eq!((world.state(&id), world.attempts(&id).len()), (None, 0));
}

/// Seed 150 of the simulation: the second copy was dispatched at once, and the changelog said the two steps in the wrong order.
#[test]
fn of_two_copies_the_second_waits_for_the_backoff_too() {
    let more = r#","feedback":{"deadline":"10s"},"retry":{"count":1,"interval":20}"#;
    let (mut world, id, _) = handed(more);
    assert!(world.copy_tiers() > 0);
    world.after(15_000);
    assert_eq!((world.handed.len(), progress(&world, &id).attempts), (1, 1));
    world.take_lanes_over();
    world.after(18_000);
    assert_eq!(world.handed.len(), 2);
    assert_eq!(progress(&world, &id).turn, 2);
    let gap = (world.handed[1].at - world.handed[0].at).0;
    assert!((30_000..31_000).contains(&gap), "{gap}");
    // A policy by which the next turn comes at once.
    let more = r#","feedback":{"deadline":"10s"},"retry":{"count":1,"interval":1,"jitter":1}"#;
    let (mut world, id, _) = handed(more);
    world.copy_tiers();
    world.after(12_500);
    let task = world.timer(&id).and_then(|timer| timer.task).expect("a task");
    assert_eq!((world.handed.len(), task.turn, task.with_executor), (2, 2, true));
}

#[test]
fn what_is_awaited_is_not_retried_by_hand() {
    let (mut world, id, _) = handed(r#","feedback":{"deadline":"1h"}"#);
    let retry = world.retry(&id);
    world.after(HOUR / 2);
    assert_eq!(outcome_of(&world, retry), Some(Outcome::Underway));
    assert_eq!(world.handed.len(), 1);
}

#[test]
fn a_take_over_at_any_step_changes_nothing() {
    let more =
        r#","feedback":{"deadline":"30s","heartbeat":"10s"},"retry":{"count":2,"interval":2}"#;
    for fails_in in 0..14 {
        let mut world = World::new(|_, _| (5, finished()));
        let id = world.create_spec(1, 2_000, &to_topic(more), None);
        world.fails_in = Some(fails_in);
        world.after(3_000);
        let first = world.handed.last().expect("handed over").clone();
        assert_eq!(world.handed.len(), 1, "{fails_in}");
        world.report(&first, &beat("a", 1));
        world.after(5_000);
        world.report(&first, &of(CallOutcome::Failed));
        world.after(1_000);
        world.take_lanes_over();
        world.after(4_000);
        assert_eq!(world.handed.len(), 2, "{fails_in}: {:?}", world.timer(&id));
        // Its second executor is silent, and its third is not.
        world.after(33_000);
        assert_eq!(world.handed.len(), 3, "{fails_in}: {:?}", world.timer(&id));
        let third = world.handed[2].clone();
        world.take_lanes_over();
        world.report(&third, &of(CallOutcome::Finished));
        world.take_lanes_over();
        world.after(HOUR);
        assert_eq!(world.state(&id), Some(TimerState::Delivered), "{fails_in}");
        assert_eq!((world.handed.len(), world.dead.len()), (3, 0), "{fails_in}");
        assert_eq!(progress(&world, &id).attempts, 3, "{fails_in}");
    }
}

#[test]
fn what_is_said_while_a_call_is_open_is_known_to_the_next_turn_at_another_owner_too() {
    for answer in [CallOutcome::Accepted, CallOutcome::Failed] {
        let mut world = World::new(move |_, _| (1_000, of(answer)));
        let more =
            r#","feedback":{"deadline":"10s","heartbeat":"5s"},"retry":{"count":1,"interval":5}"#;
        let id = world.create(1, 2_000, more);
        world.after(2_500);
        let handed = called(&world, &id);
        world.report(&handed, &beat("row:3", 1));
        world.after(1_500);
        world.take_lanes_over();
        world.after(20_000);
        let again = called(&world, &id);
        assert_eq!((again.attempt.as_str(), again.cursor.as_deref()), ("2", Some("row:3")));
    }
}

#[test]
fn a_report_that_is_not_to_be_tried_again_is_stale_once_its_deadline_is_over() {
    let more = r#","feedback":{"deadline":"10s"},"retry":{"count":1,"interval":60}"#;
    let (mut world, id, first) = handed(more);
    let gone = world.feedback(&first, &of(CallOutcome::Gone)).expect("a copy of it");
    let failed = world.feedback(&first, &of(CallOutcome::Failed)).expect("a copy of it");
    world.after(12_000);
    assert_eq!(world.state(&id), Some(TimerState::Delay), "it waits for its retry");
    let gone = world.append_to_intake(&id, gone);
    let failed = world.append_to_intake(&id, failed);
    world.after(100);
    assert_eq!(reported(&world, gone), Reported::Stale);
    assert_eq!(reported(&world, failed), Reported::Retrying);
    world.after(70_000);
    assert_eq!(world.handed.len(), 2);
}

#[test]
fn how_far_a_failure_behind_its_deadline_came_is_known_at_another_owner_too() {
    let more = r#","feedback":{"deadline":"10s"},"retry":{"count":1,"interval":60}"#;
    let (mut world, id, first) = handed(more);
    world.report(&first, &beat("row:3", 1));
    world.after(12_000);
    let failed = TaskResult { cursor: Some("row:4".to_owned()), ..of(CallOutcome::Failed) };
    let failed = world.report(&first, &failed);
    world.after(1_000);
    assert_eq!(reported(&world, failed), Reported::Retrying);
    assert_eq!(progress(&world, &id).attempts, 1);
    world.take_lanes_over();
    world.after(70_000);
    let second = &world.handed[1];
    assert_eq!((second.attempt.as_str(), second.cursor.as_deref()), ("2", Some("row:4")));
}

#[test]
fn a_turn_that_was_lost_says_who_had_it_and_how_far_it_was() {
    for has_another_owner in [false, true] {
        let more =
            r#","feedback":{"deadline":"1m","heartbeat":"5s"},"retry":{"count":1,"interval":60}"#;
        let (mut world, id, first) = handed(more);
        let began = world.now;
        let named = TaskResult { worker: Some("node-1".to_owned()), ..beat("row:3", 7) };
        world.report(&first, &named);
        world.after(3_000);
        // One that does not say its name again, and not how far it is.
        world.report(&first, &of(CallOutcome::Started));
        world.after(1_000);
        if has_another_owner {
            world.take_lanes_over();
        }
        world.after(12_000);
        let attempts = world.attempts(&id);
        let [Attempt { result, .. }] = &attempts[..] else { panic!("{attempts:?}") };
        assert_eq!(result.outcome, CallOutcome::Failed);
        assert_eq!((result.worker.as_deref(), result.percent), (Some("node-1"), Some(7)));
        assert!(result.started.is_some_and(|at| at >= began && at < began + Millis(1_000)));
        assert!(result.error.as_deref().is_some_and(|error| error.starts_with("timeout: ")));
    }
}

#[test]
fn a_call_that_is_accepted_is_awaited_in_the_same_way() {
    let accepted = || TaskResult { status: Some(202), ..of(CallOutcome::Accepted) };
    let mut world = World::new(move |_, _| (1_000, accepted()));
    let more =
        r#","feedback":{"deadline":"1m","heartbeat":"20s"},"retry":{"count":1,"interval":1}"#;
    let id = world.create(1, 2_000, more);
    world.after(2_500);
    let handed = called(&world, &id);
    let turn = 1;
    // Its call is open: what came of that is said first.
    let early = world.append_to_intake(&id, {
        let copy = world.dispatched().next().expect("with its worker").clone();
        let version = world.timer(&id).expect("known").version;
        let wanted = sealed::WantedCopy { id: &id, version, turn, trigger: world.now };
        let terms = sealed::copy_of(&world.setup.key, &copy, (Offset(0), world.now), &wanted);
        let ticket = sealed::Ticket::read(&handed.ticket, &world.setup.key, &id);
        let of_turn = (&id, ticket.expect("ours"));
        let copy = Some((&copy, terms.expect("it is one"), world.now));
        sealed::feedback(&world.setup.key, world.now, of_turn, &of(CallOutcome::Failed), copy)
    });
    let alive = world.report(&handed, &beat("a", 1));
    world.after(100);
    assert_eq!(outcome_of(&world, early), Some(Outcome::Underway));
    assert!(matches!(reported(&world, alive), Reported::Running(_)));
    world.after(2_000);
    let running = progress(&world, &id);
    assert!(running.with_executor && running.held.is_none(), "{running:?}");
    assert_eq!((world.credits(), running.attempts), ((0, 0), 0));
    // It is silent from then on, and called again; then somebody says that it is done.
    world.after(62_000);
    assert_eq!(world.calls_of(&id).iter().map(|call| call.turn).collect::<Vec<_>>(), [1, 2]);
    let again = called(&world, &id);
    assert_eq!((handed.cursor.as_deref(), again.cursor.as_deref()), (None, Some("a")));
    assert_ne!(handed.ticket, again.ticket);
    let late = world.report(&handed, &of(CallOutcome::Finished));
    world.after(HOUR);
    assert_eq!(reported(&world, late), Reported::Finished);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    assert_eq!((world.calls.len(), world.credits()), (2, (0, 0)));
}

#[test]
fn a_success_while_a_worker_holds_the_next_turn_frees_its_credits() {
    let mut world = World::new(|_, nth| match nth {
        0 => (5, of(CallOutcome::Accepted)),
        _ => (30_000, of(CallOutcome::Accepted)),
    });
    let more = r#","feedback":{"deadline":"10s"},"retry":{"count":1,"interval":1}"#;
    let id = world.create(1, 2_000, more);
    world.after(3_000);
    let handed = called(&world, &id);
    world.after(13_000);
    assert_eq!(world.calls_of(&id).len(), 2);
    let late = world.report(&handed, &of(CallOutcome::Finished));
    world.after(100);
    assert_eq!(reported(&world, late), Reported::Finished);
    assert_eq!(world.credits(), (0, 0));
    world.after(HOUR);
    assert_eq!((world.calls.len(), world.dead.len()), (2, 0));
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
}

#[test]
fn a_success_from_inside_of_its_call_ends_the_task() {
    let mut world = World::new(|_, _| (1_000, of(CallOutcome::Accepted)));
    let more = r#","feedback":{"deadline":"10s"},"retry":{"count":1,"interval":1}"#;
    let id = world.create(1, 2_000, more);
    world.after(2_500);
    let handed = called(&world, &id);
    let fast = world.report(&handed, &of(CallOutcome::Finished));
    world.after(100);
    assert_eq!(reported(&world, fast), Reported::Finished);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    let attempts = world.attempts(&id);
    assert_eq!((attempts.len(), attempts[0].result.outcome), (1, CallOutcome::Finished));
    // What its worker says then is of a task that has ended.
    world.after(HOUR / 2);
    assert_eq!((world.calls.len(), world.dead.len(), world.credits()), (1, 0, (0, 0)));
    assert_eq!((progress(&world, &id).attempts, world.attempts(&id).len()), (1, 1));
}

#[test]
fn a_call_is_only_made_again_where_nobody_knows_that_it_was_accepted() {
    for (takes, is_known) in [(5, true), (5_000, false)] {
        let mut world = World::new(move |_, _| (takes, of(CallOutcome::Accepted)));
        let id = world.create(
            1,
            2_000,
            r#","feedback":{"deadline":"1h"},"retry":{"count":1,"interval":1}"#,
        );
        world.after(3_000);
        let first = called(&world, &id);
        world.take_lanes_over();
        world.kill_worker();
        world.start_worker();
        world.after(20_000);
        let turns: Vec<u32> = world.calls_of(&id).iter().map(|call| call.turn).collect();
        assert_eq!(turns, if is_known { vec![1] } else { vec![1, 2] });
        // The first executor works on, and its success counts in both cases.
        let at = world.report(&first, &of(CallOutcome::Finished));
        world.after(HOUR / 2);
        assert_eq!(reported(&world, at), Reported::Finished);
        assert_eq!(world.state(&id), Some(TimerState::Delivered));
        assert_eq!((world.calls.len(), world.dead.len()), (turns.len(), 0));
    }
}

#[test]
fn no_executor_says_what_only_a_worker_may_say() {
    let (mut world, id, handed) = handed(r#","feedback":{"deadline":"1h"}"#);
    for outcome in [CallOutcome::Cancelled, CallOutcome::Accepted, CallOutcome::Interrupted] {
        let record = world.feedback(&handed, &of(outcome)).expect("a copy of it");
        world.append_to_intake(&id, record);
    }
    world.after(1_000);
    let codes: Vec<Code> = world.dead.iter().map(|of| of.1).collect();
    assert_eq!(codes, [Code::BadTask; 3]);
    assert!(progress(&world, &id).with_executor, "the task is unharmed");
}
