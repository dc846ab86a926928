//! The promises about tasks: what an endpoint sees, and who asks what became of one.

mod arrivals;
mod feedback;
mod follow_ups;
mod letters;
mod limits;
mod retries;
mod runs;
mod schedules;

use std::collections::BTreeSet;

use waterclock::engine::header::{self, Code};
use waterclock::engine::messages::Outcome as AnswerOutcome;
use waterclock::engine::state::State;
use waterclock::engine::task::result::{Outcome, TaskResult};
use waterclock::engine::timers::{Progress, Timer, TimerState, Version};

use super::{Found, is_unborn};
use crate::broker::{EPOCH_MS, Place};
use crate::world::{Called, CancelTold, World};

/// So many turns in doubt are a failed attempt.
const DOUBTS: usize = 5;

pub fn check(world: &World, found: &mut Found) {
    for task in 0..world.tasks.drafts.len() {
        let Some(seen) = world.tasks.seen.get(&task) else { continue };
        one_task(world, task, seen, found);
    }
    for told in &world.tasks.cancels_told {
        cancel_told(world, told, found);
    }
    everything_ends(world, found);
    interruptions(world, found);
    limits::rates(world, found);
    arrivals::check(world, found);
    letters::check(world, found);
    feedback::check(world, found);
    follow_ups::check(world, found);
    schedules::check(world, found);
    runs::check(world, found);
}

/// How tasks have ended, by code.
pub fn met(world: &World) -> Vec<&'static str> {
    let ends = world.tasks.seen.keys().filter_map(|task| world.task_now(*task)?.code);
    ends.map(Code::as_str).collect()
}

/// How a task has ended, as a cancel of it is answered: `cancelled`, `stopped`, `finished`, `failed`.
fn end_of(timer: &Timer) -> Option<(TimerState, bool)> {
    let is_stopped = timer.state == TimerState::Cancelled && timer.task.is_some_and(|of| of.begun);
    timer.state.is_final().then_some((timer.state, is_stopped))
}

/// A final answer to a cancel is how its task has ended, and stays so.
fn cancel_told(world: &World, told: &CancelTold, found: &mut Found) {
    let CancelTold { task, outcome, seen: by_then } = *told;
    if outcome == AnswerOutcome::Cancelled {
        let state = world.task_now(task).map(|timer| timer.state);
        if state != Some(TimerState::Cancelled) {
            found.push(("one end", format!("task {task} was said to be cancelled, and {state:?}")));
        }
    }
    let Some(seen) = world.tasks.seen.get(&task) else { return };
    let is_final = |timer: &&Timer| timer.state.is_final();
    let mut since = seen.iter().map(|(_, timer)| timer).skip(by_then.saturating_sub(1));
    let answer = match outcome {
        AnswerOutcome::Absent => since.next().filter(is_final),
        AnswerOutcome::Cancelled => since.find(is_final),
        // It was pending, and who asked waits for its end. What was known may be the end of the version before.
        AnswerOutcome::Underway => since.skip(1).find(is_final),
        _ => None,
    };
    let Some(answer) = answer else { return };
    let last = seen.iter().map(|(_, of)| of).rfind(|of| of.version == answer.version);
    if last.and_then(end_of) != end_of(answer) {
        let what = format!("a cancel was answered with {answer:?}, and it became {last:?}");
        found.push(("one end", format!("task {task}: {what}")));
    }
}

fn everything_ends(world: &World, found: &mut Found) {
    for task in (0..world.tasks.drafts.len()).filter(|task| world.is_made(*task)) {
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
    // Of a version that was refused when it came there never was a task.
    let lives = seen.chunk_by(|(_, one), (_, next)| one.version == next.version);
    let lives: Vec<&[(u64, Timer)]> = lives.filter(|of| !is_unborn(&of[0].1)).collect();
    retries::check(world, task, &lives, found);
    if let [.., (at, last)] = seen
        && last.state.is_final()
    {
        limits::deleted(world, task, (*at, last), found);
    }
    for life in lives {
        one_life(world, task, life, found);
    }
}

/// What became of one version of a task.
fn one_life(world: &World, task: usize, seen: &[(u64, Timer)], found: &mut Found) {
    let draft = &world.tasks.drafts[task];
    let version = seen[0].1.version;
    let calls = world.tasks.calls.iter().filter(|of| of.task == task && of.version == version);
    let calls = calls.filter(|of| !of.is_copied);
    let calls: Vec<&Called> = calls.collect();
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
    // A shard may be cancelled with its run.
    if was_cancelled && draft.cancels.is_empty() && !draft.is_shard {
        found.push(("one end", format!("nobody has cancelled task {task}")));
    }
    // A cancel went after it to its worker: whatever that turn comes to, none follows.
    let cancelling = seen.iter().filter_map(|(_, of)| of.task).find(|of| of.cancelling);
    if let Some(Progress { turn, .. }) = cancelling
        && let Some(later) = calls.iter().find(|call| call.turn > turn)
    {
        let what = format!("task {task} was being cancelled in turn {turn}: {later:?}");
        found.push(("cancelled means never", what));
    }
    let has_feedback = draft.spec.feedback().is_some();
    if has_feedback {
        feedback::one_life(world, task, seen, found);
    }
    // A late success ends a task of which a worker holds the next turn, and may begin it.
    let may_begin = has_feedback && end.state == TimerState::Delivered;
    if let Some(late) = calls.iter().find(|call| call.at > *at && !may_begin) {
        found.push(("none later", format!("task {task} ended at {at}: {late:?}")));
    }
    let latest = world.broker.slowest_clock(*at).0 + world.plan.clocks_apart();
    let is_over = draft.expires.is_some_and(|expires| latest >= EPOCH_MS + expires);
    // What goes to a topic is to be there before it expires, so it ends a bit earlier.
    let makes_calls = draft.topic.is_none();
    if makes_calls && end.state == TimerState::Expired && !is_over {
        found.push(("expired", format!("task {task} ended at {at}, before {:?}", draft.expires)));
    }
    let before = seen[0].1.task.unwrap_or_default().attempts;
    let attempts = progress.attempts.saturating_sub(before) as usize;
    let most = draft.retries as usize + 1;
    if draft.topic.is_some() {
        if attempts > most {
            let what = format!("task {task} has {attempts} attempts; it may have {most}");
            found.push(("attempts", what));
        }
        return;
    }
    let said = results(world, task, version);
    let of = |is_it: &dyn Fn(&TaskResult) -> bool| -> usize {
        let turns = said.iter().filter(|(_, result)| is_it(result)).map(|(turn, _)| *turn);
        turns.collect::<BTreeSet<u32>>().len()
    };
    let interrupted = of(&|result| result.outcome == Outcome::Interrupted);
    // Five turns of which nobody knows whether they were called are one attempt.
    let doubted = of(&|result| result.in_doubt) / DOUBTS;
    // Its worker knew nobody to call.
    let refused = world.tasks.refused.get(&task).copied().unwrap_or_default();
    let is_put_by = matches!(end.code, Some(Code::ProjectDeleted | Code::Expired));
    // Somebody has changed its body, which a worker or its lane has seen.
    let is_altered = end.code == Some(Code::BadTask) && world.tasks.altered.contains(&task);
    let needs_call = !was_cancelled && !is_put_by && !is_altered;
    if needs_call && calls.is_empty() && doubted + refused == 0 {
        found.push(("one end", format!("task {task} is {:?} without a call", end.state)));
    }
    if attempts > calls.len() + doubted + refused {
        let what = format!("task {task} tells of {attempts} attempts, of {} calls", calls.len());
        found.push(("attempts", what));
    }
    if !draft.polls && (attempts > most || calls.len() > most + interrupted) {
        let what = format!(
            "task {task} has {attempts} attempts, {} calls, {interrupted} interruptions; it may have {most} attempts",
            calls.len()
        );
        found.push(("attempts", what));
    }
}

/// What workers have said of a version of a task, and of which turn.
fn results(world: &World, task: usize, version: Version) -> Vec<(u32, TaskResult)> {
    let draft = &world.tasks.drafts[task];
    let Some(topic) = world.plan.setup.topics.results() else { return Vec::new() };
    let topic = world.lane_topics[usize::from(topic.0)];
    let partition = i32::from(draft.id.lane_of(world.plan.setup.lanes).0);
    let log = world.broker.partition(Place { topic, partition });
    let entries = log.into_iter().flat_map(|log| log.ledger());
    let read = entries.filter_map(|(_, entry)| {
        let record = entry.record.as_ref()?;
        let directive = header::read(record.headers()).ok()?;
        // Without its task a worker says only that it has not that turn.
        if directive.id != Some(draft.id.as_str().as_bytes()) || directive.task.is_none() {
            return None;
        }
        let bound = directive.bound(record.key());
        let state = State::open(directive.state?, &world.plan.setup.key, &bound).ok()?;
        let of = Version { first_appended: state.first_appended, offset: state.order.offset };
        let result = TaskResult::parse(directive.result?).ok()?;
        Some((state.task.filter(|_| of == version)?.turn, result))
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
