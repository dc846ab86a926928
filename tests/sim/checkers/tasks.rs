//! The promises about tasks: what an endpoint sees, and who asks what became of one.

use std::collections::BTreeSet;

use waterclock::engine::task::result::{Outcome, TaskResult};
use waterclock::engine::timers::{Timer, TimerState};
use waterclock::engine::{Millis, header};

use super::Found;
use crate::broker::{EPOCH_MS, Place};
use crate::world::{Called, World};

/// Nothing is delivered later than this where all is well with lanes.
const LATE_MAX: u64 = 1_000;
/// Who asks for a task later than that before it is due does not ask in time for that.
const IN_TIME: u64 = 5_000;
/// So many turns in doubt are a failed attempt.
const DOUBTS: usize = 5;

pub fn check(world: &World, found: &mut Found) {
    for task in 0..world.tasks.drafts.len() {
        let Some(seen) = world.tasks.seen.get(&task) else { continue };
        one_task(world, task, seen, found);
    }
    for task in &world.tasks.cancelled {
        let state = world.task_now(*task).map(|timer| timer.state);
        if state != Some(TimerState::Cancelled) {
            found.push(("one end", format!("task {task} was said to be cancelled, and {state:?}")));
        }
    }
    everything_ends(world, found);
    interruptions(world, found);
    if world.plan.tasks.is_some_and(|of| of.lanes_are_well) {
        on_time(world, found);
    }
}

fn everything_ends(world: &World, found: &mut Found) {
    let made = |task: &usize| world.plan.only.as_ref().is_none_or(|only| only.contains(task));
    for task in (0..world.tasks.drafts.len()).filter(made) {
        let now = world.task_now(task);
        if !now.is_some_and(|timer| timer.state.is_final()) {
            found.push(("liveness", format!("task {task} waits for ever: {now:?}")));
        }
    }
    if found.iter().all(|(promise, _)| *promise != "liveness") {
        let open = world.tasks.calls.iter().filter(|call| call.is_open).count();
        if open > 0 {
            found.push(("liveness", format!("{open} calls are open though all tasks have ended")));
        }
    }
}

fn one_task(world: &World, task: usize, seen: &[(u64, Timer)], found: &mut Found) {
    let draft = &world.tasks.drafts[task];
    let calls: Vec<&Called> = world.tasks.calls.iter().filter(|of| of.task == task).collect();
    let versions: BTreeSet<_> = seen
        .iter()
        .map(|(_, timer)| (timer.version.first_appended, timer.version.offset))
        .collect();
    if versions.len() > 1 {
        found.push(("one task", format!("task {task} was created as {versions:?}")));
    }
    let ended = seen.iter().position(|(_, timer)| timer.state.is_final());
    let Some(ended) = ended else { return };
    let (at, end) = &seen[ended];
    if let Some((_, other)) = seen[ended..].iter().find(|(_, of)| of.state != end.state) {
        found.push(("one end", format!("task {task} is {:?}, then {:?}", end.state, other.state)));
    }
    let progress = end.task.unwrap_or_default();
    let was_cancelled = end.state == TimerState::Cancelled;
    if was_cancelled && !progress.begun && !calls.is_empty() {
        let what = format!("task {task} is cancelled, never to be called, and was: {calls:?}");
        found.push(("cancelled means never", what));
    }
    if was_cancelled && draft.cancels.is_empty() {
        found.push(("one end", format!("nobody has cancelled task {task}")));
    }
    if let Some(late) = calls.iter().find(|call| call.at > *at) {
        found.push(("none later", format!("task {task} ended at {at}: {late:?}")));
    }
    if draft.is_kafka {
        return;
    }
    let said = results(world, task);
    let of = |is_it: &dyn Fn(&TaskResult) -> bool| -> usize {
        let turns = said.iter().filter(|(_, result)| is_it(result)).map(|(turn, _)| *turn);
        turns.collect::<BTreeSet<u32>>().len()
    };
    let interrupted = of(&|result| result.outcome == Outcome::Interrupted);
    // Five turns of which nobody knows whether they were called are one attempt.
    let doubted = of(&|result| result.in_doubt) / DOUBTS;
    let attempts = progress.attempts as usize;
    if !was_cancelled && calls.is_empty() && doubted == 0 {
        found.push(("one end", format!("task {task} is {:?} without a call", end.state)));
    }
    if attempts > calls.len() + doubted {
        let what = format!("task {task} tells of {attempts} attempts, of {} calls", calls.len());
        found.push(("attempts", what));
    }
    let most = draft.retries as usize + 1;
    if !draft.polls && (attempts > most || calls.len() > most + interrupted) {
        let what = format!(
            "task {task} has {attempts} attempts, {} calls, {interrupted} interruptions; it may have {most} attempts",
            calls.len()
        );
        found.push(("attempts", what));
    }
}

/// What workers have said of a task, and of which turn.
fn results(world: &World, task: usize) -> Vec<(u32, TaskResult)> {
    use waterclock::engine::state::State;
    let draft = &world.tasks.drafts[task];
    let Some(topic) = world.plan.setup.topics.results() else { return Vec::new() };
    let topic = world.lane_topics[usize::from(topic.0)];
    let partition = i32::from(draft.id.lane_of(world.plan.setup.lanes).0);
    let log = world.broker.partition(Place { topic, partition });
    let entries = log.into_iter().flat_map(|log| log.ledger());
    let read = entries.filter_map(|(_, entry)| {
        let record = entry.record.as_ref()?;
        let directive = header::read(record.headers()).ok()?;
        if directive.id != Some(draft.id.as_str().as_bytes()) {
            return None;
        }
        let bound = directive.bound(record.key());
        let state = State::open(directive.state?, &world.plan.setup.key, &bound).ok()?;
        Some((state.task?.turn, TaskResult::parse(directive.result?).ok()?))
    });
    read.collect()
}

/// Where workers only come and go as they should, no call is ever in doubt.
fn interruptions(world: &World, found: &mut Found) {
    if !world.plan.tasks.is_some_and(|of| of.workers_are_gentle) {
        return;
    }
    for (task, seen) in &world.tasks.seen {
        let doubted = seen.iter().filter_map(|(_, of)| of.task).find(|of| of.interruptions > 0);
        if let Some(progress) = doubted {
            let what = format!("task {task} was in doubt, and no worker has died: {progress:?}");
            found.push(("interruptions", what));
        }
    }
}

/// What goes to a topic waits for no worker.
fn on_time(world: &World, found: &mut Found) {
    let Some(topic) = world.broker.topic("t0") else { return };
    for (_, _, entry, record) in super::ledger(world, topic) {
        let id = record.value().unwrap_or_default();
        let drafts = world.tasks.drafts.iter();
        let Some(draft) = drafts.into_iter().find(|of| of.id.as_str().as_bytes() == id) else {
            found.push(("no phantom", format!("{record:?} was never asked for")));
            continue;
        };
        let due = Millis(EPOCH_MS + draft.due);
        if entry.appended.0 < due.0 {
            found.push(("never early", format!("task {draft:?} at {}", entry.appended.0)));
        }
        let was_asked_in_time = draft.due >= draft.at + IN_TIME;
        if was_asked_in_time && entry.appended.0 > due.0 + LATE_MAX + world.plan.clocks_apart() {
            let late = entry.appended.0 - due.0;
            found.push(("on time", format!("task {} is {late} ms late", draft.id)));
        }
    }
}
