//! Retries by hand: each that was taken has one series of calls, and no other has any.

use waterclock::engine::messages::Outcome;
use waterclock::engine::timers::{Timer, TimerState};

use crate::broker::Time;
use crate::checkers::Found;
use crate::world::World;

/// `lives`: the versions of a task, in their order.
pub(super) fn check(world: &World, task: usize, lives: &[&[(Time, Timer)]], found: &mut Found) {
    let retries = || world.tasks.retries.iter().filter(|retry| retry.task == task);
    for pair in lives.windows(2) {
        let ([.., (_, last)], [(_, next), ..]) = (pair[0], pair[1]) else { continue };
        let Some(retry) = retries().find(|retry| retry.version == next.version) else {
            let versions = (last.version, next.version);
            found.push(("one task", format!("task {task} was created as {versions:?}")));
            continue;
        };
        let is_to_be = match last.state {
            TimerState::Dead => true,
            // A task that was never dispatched has another time.
            TimerState::Delay => last.task.is_none_or(|progress| progress.turn == 0),
            _ => false,
        };
        if !is_to_be || retry.follows != last.version {
            let what = format!("task {task} is {:?}, and {retry:?} brings it back", last.state);
            found.push(("retries", what));
        }
    }
    for retry in retries() {
        let life = lives.iter().position(|life| life[0].1.version == retry.version);
        for told in &retry.told {
            let is_true = match told {
                // It has a version of its own, or it was one more copy of the turn, which the next one has taken.
                Outcome::Replaced => {
                    life.is_some() || has_gone_on(lives, retry.follows, retry.turn)
                }
                // It was read again, and by then somebody had cancelled or retried what it made.
                Outcome::Superseded => life.is_none_or(|at| is_over(lives, at)),
                _ => life.is_none(),
            };
            if !is_true {
                found.push((
                    "retries",
                    format!("task {task}: {retry:?}, and its version is {life:?}"),
                ));
            }
        }
    }
}

/// Whether a version has ended, or another one has followed.
fn is_over(lives: &[&[(Time, Timer)]], at: usize) -> bool {
    at + 1 < lives.len() || lives[at].last().is_some_and(|(_, of)| of.state.is_final())
}

/// Whether a version that was dispatched was dispatched once more, or has ended.
fn has_gone_on(
    lives: &[&[(Time, Timer)]],
    version: waterclock::engine::timers::Version,
    turn: u32,
) -> bool {
    let life = lives.iter().find(|life| life[0].1.version == version);
    turn > 0
        && life.is_some_and(|life| {
            let turns = life.iter().filter_map(|(_, of)| of.task).map(|progress| progress.turn);
            let ended = life.last().is_some_and(|(_, of)| of.state.is_final());
            turns.max().is_some_and(|last| last > turn) || ended
        })
}
