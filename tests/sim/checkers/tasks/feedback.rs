//! Feedback: what stood in the intake in time counts, nobody gives a turn up that gives signs, and no two executors work at once.

use waterclock::engine::messages::{Outcome, Reported};
use waterclock::engine::sealed::Ticket;
use waterclock::engine::task::result::Outcome as Said;
use waterclock::engine::timers::{Timer, TimerState};
use waterclock::engine::{Millis, UnixMillis};

use crate::broker::Time;
use crate::checkers::Found;
use crate::world::{Report, World};

/// An executor stops so many percent of its period after it sent the last heartbeat that was answered (docs/runs.md).
const WORKS: u64 = 80;

pub(super) fn check(world: &World, found: &mut Found) {
    one_executor(world, found);
    for report in &world.tasks.executors.reports {
        let is_finished = Outcome::Reported(Reported::Finished);
        let state = world.task_now(report.task).map(|timer| timer.state);
        if report.told.contains(&is_finished) && state != Some(TimerState::Delivered) {
            let what = format!("task {} is {state:?}, and {report:?}", report.task);
            found.push(("feedback", what));
        }
    }
    for (task, draft) in world.tasks.drafts.iter().enumerate() {
        let state = world.task_now(task).map(|timer| timer.state);
        let is_done = |(_, of): (_, &Report)| of.task == task && of.said == Said::Finished;
        if draft.spec.feedback().is_some()
            && state == Some(TimerState::Delivered)
            && !reports(world).any(is_done)
        {
            found.push(("feedback", format!("nobody has said that task {task} is done")));
        }
    }
}

/// What goes to a topic is not handed out again while the executor of an earlier turn may work on it. Of a call nobody promises that:
/// its worker may die before it has written that an executor has the task.
fn one_executor(world: &World, found: &mut Found) {
    let executors = &world.tasks.executors;
    let counts = |told: &Outcome| matches!(told, Outcome::Reported(Reported::Running(_)));
    for beat in executors.reports.iter().filter(|of| of.told.iter().any(counts)) {
        let (task, Ticket { version, turn, heartbeat }) = (beat.task, beat.ticket);
        let Some(sent) = beat.sent else { continue };
        let stops = sent + heartbeat.0 * WORKS / 100;
        let is_early = |(of, next, at): &&(usize, Ticket, Time)| {
            *of == task && next.version == version && next.turn > turn && *at < stops
        };
        let Some((_, next, at)) = executors.handed.iter().find(is_early) else { continue };
        // It has stopped by then if it has said so, or if its task had ended: somebody may have had that called again.
        let has_said_so = executors.reports.iter().any(|of| {
            (of.task, of.ticket.version, of.ticket.turn) == (task, version, turn)
                && of.said != Said::Started
                && of.sent.is_some_and(|sent| sent <= *at)
        });
        let seen = world.tasks.seen.get(&task).map_or(&[][..], Vec::as_slice);
        let had_ended = seen
            .iter()
            .any(|(since, of)| of.version == version && of.state.is_final() && since <= at);
        if !has_said_so && !had_ended {
            let what = format!(
                "turn {} of task {task} is handed out at {at}, and the executor of turn {turn} works until {stops}",
                next.turn
            );
            found.push(("one executor", what));
        }
    }
}

/// One version of a task with feedback.
pub(super) fn one_life(world: &World, task: usize, seen: &[(Time, Timer)], found: &mut Found) {
    let version = seen[0].1.version;
    let apart = Millis(world.plan.clocks_apart());
    let settle = Millis(world.plan.settle);
    let progress = |timer: &Timer| timer.task.unwrap_or_default();
    let turns = seen.iter().map(|(_, timer)| progress(timer).turn).max().unwrap_or_default();
    for turn in 1..=turns {
        let is_of_turn = |timer: &Timer| progress(timer).turn == turn;
        let awaited = seen.iter().position(|(_, of)| is_of_turn(of) && progress(of).with_executor);
        let Some(first) = awaited else { continue };
        let mut reports: Vec<(UnixMillis, &Report)> = reports(world)
            .filter(|(_, of)| of.task == task && of.ticket.version == version)
            .collect();
        reports.sort_by_key(|(appended, _)| *appended);
        let of_turn = reports.iter().filter(|(_, of)| of.ticket.turn == turn);
        // By when it has to report at least: each heartbeat in time moves that.
        let mut deadline = progress(&seen[first].1).next_at;
        let mut success = None;
        for (appended, report) in of_turn.clone() {
            // Where a transaction hid it for long, nobody waits for it. It may count nevertheless: a first sign brings the deadline forward.
            let was_readable = report.places.iter().any(|(at, of)| world.was_readable(*at, *of));
            let beat_until = *appended + report.ticket.heartbeat;
            if *appended + settle + apart > deadline || !was_readable {
                if report.said == Said::Started {
                    deadline = deadline.min(beat_until);
                }
                break;
            }
            match report.said {
                Said::Started => deadline = beat_until,
                Said::Finished => {
                    success = Some(appended);
                    break;
                }
                // It ends by that, if its payload stood where it says.
                _ => break,
            }
        }
        if let Some(success) = success
            && turns > turn
        {
            let what = format!(
                "turn {} of task {task} was dispatched, and turn {turn} was a success at {success:?}, by {deadline:?}",
                turn + 1
            );
            found.push(("feedback", what));
        }
        let has_failed = of_turn.clone().any(|(_, of)| of.said.carries_payload());
        let end =
            seen[first..].iter().find(|(_, of)| !is_of_turn(of) || !progress(of).with_executor);
        // A success of an earlier turn ends it, or a cancel.
        let silence =
            end.filter(|(_, of)| matches!(of.state, TimerState::Delay | TimerState::Dead));
        if let Some((_, end)) = silence
            && !has_failed
            && end.since + apart < deadline
        {
            let what = format!(
                "turn {turn} of task {task} was given up at {:?}, and had until {deadline:?}",
                end.since
            );
            found.push(("feedback", what));
        }
    }
}

fn reports(world: &World) -> impl Iterator<Item = (UnixMillis, &Report)> {
    world.tasks.executors.reports.iter().filter_map(|report| Some((report.appended?, report)))
}
