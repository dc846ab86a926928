//! What follows from what a worker or an executor says of a turn: the state machine of a task, pure.
//!
//! # Invariants
//! 1. A result counts only for the live turn, while a worker holds it: the caller has checked that. Feedback counts only for the
//!    live turn, but for a success: that of any turn is one, however late.
//! 2. A turn that was deferred or interrupted is no attempt. An answer "not yet" is none either: it is a round.
//! 3. While a task is being cancelled only a success ends it in another way.
//! 4. A task whose body stands in a dead letter has ended: no turn of it can follow.

use super::super::super::header::Code;
use super::super::super::task::result::{Outcome, TaskResult};
use super::super::super::task::retry::Retry;
use super::super::super::task::spec::{Feedback, Poll};
use super::super::super::timers::{Progress, TimerState};
use super::UnixMillis;

/// So many turns in a row of which nobody knows whether they were called are one failed attempt: the task may be what ends its
/// workers.
pub(crate) const IN_DOUBT_MAX: u16 = 5;

/// What becomes of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Its call is open.
    Running(Progress),
    /// It was taken: its executor reports.
    Awaited(Progress),
    /// It waits for its next turn.
    Again(Progress),
    /// It has ended.
    Ended(Progress, TimerState),
    /// It has failed: a dead letter.
    Failed(Progress, Code),
}

/// By which rules it is called again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy<'a> {
    pub(crate) retry: &'a Retry,
    pub(crate) poll: Option<Poll>,
    pub(crate) feedback: Option<Feedback>,
    /// Decides what jitter takes away.
    pub(crate) luck: u64,
}

/// What follows from a result that was appended then; and whether an attempt has ended by it.
pub(crate) fn decide(
    progress: Progress,
    result: &TaskResult,
    policy: Policy<'_>,
    appended: UnixMillis,
) -> (Next, bool) {
    let ended = progress.ended();
    let begun = Progress { begun: true, ..ended };
    let known = Progress { interruptions: 0, ..begun };
    let attempt = Progress { attempts: progress.attempts.saturating_add(1), ..known };
    if result.letter {
        let is_attempt = !matches!(result.outcome, Outcome::Deferred | Outcome::Interrupted);
        let after = match is_attempt {
            true => Progress { failures: progress.failures.saturating_add(1), ..attempt },
            false => ended,
        };
        return (cancelled_or(progress, after, Next::Failed(after, Code::TaskFailed)), is_attempt);
    }
    let next = match result.outcome {
        Outcome::Started => {
            return (Next::Running(Progress { begun: true, open: true, ..progress }), false);
        }
        Outcome::Finished => return (Next::Ended(attempt, TimerState::Delivered), true),
        Outcome::Cancelled => Next::Ended(ended, TimerState::Cancelled),
        Outcome::Deferred => {
            let next_at = result.until.unwrap_or(appended).max(appended);
            Next::Again(Progress { next_at, breaker: result.breaker, ..ended })
        }
        Outcome::Interrupted => {
            let interruptions = progress.interruptions + u16::from(result.in_doubt);
            let again = Progress { interruptions, next_at: appended, ..begun };
            match interruptions >= IN_DOUBT_MAX {
                true => return failed(progress, attempt, result, policy, appended),
                false => Next::Again(again),
            }
        }
        Outcome::NotYet => {
            let rounds = progress.rounds.saturating_add(1);
            let poll = policy.poll.filter(|poll| rounds < poll.rounds);
            let Some(poll) = poll else {
                let attempt = Progress { rounds, ..attempt };
                return (
                    cancelled_or(progress, attempt, Next::Failed(attempt, Code::TaskFailed)),
                    true,
                );
            };
            let next_at = appended + poll.interval;
            Next::Again(Progress { rounds, failures: 0, next_at, ..known })
        }
        Outcome::Gone => {
            let attempt = Progress { failures: progress.failures.saturating_add(1), ..attempt };
            return (
                cancelled_or(progress, attempt, Next::Failed(attempt, Code::TaskFailed)),
                true,
            );
        }
        Outcome::Accepted if let Some(feedback) = policy.feedback => {
            if progress.cancelling {
                return (Next::Ended(attempt, TimerState::Cancelled), true);
            }
            // A heartbeat may have come before.
            let next_at = (appended + feedback.deadline).max(progress.next_at);
            Next::Awaited(Progress { with_executor: true, next_at, ..known })
        }
        // Nobody reports on a task without feedback.
        Outcome::Failed | Outcome::Accepted => {
            return failed(progress, attempt, result, policy, appended);
        }
    };
    (cancelled_or(progress, next.progress(), next), false)
}

impl Next {
    /// How far the task is then.
    pub(crate) fn progress(&self) -> Progress {
        let (Self::Running(of)
        | Self::Awaited(of)
        | Self::Again(of)
        | Self::Ended(of, _)
        | Self::Failed(of, _)) = *self;
        of
    }
}

/// What feedback means for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Nothing: that turn is over.
    Stale,
    /// Nothing yet: the worker that holds the turn has not said what came of its call.
    AttemptOpen,
    /// Its executor is at work.
    Beat(Progress),
    /// The turn is over, and this follows.
    Ended(Next),
}

/// What follows from what an executor said of a turn, in a record that was appended then. A heartbeat counts until `beat_until`.
pub(crate) fn hear(
    progress: Progress,
    (turn, result): (u32, &TaskResult),
    policy: Policy<'_>,
    (appended, beat_until): (UnixMillis, UnixMillis),
) -> Heard {
    let is_live = turn == progress.turn;
    let ended = progress.ended();
    let begun = Progress { begun: true, interruptions: 0, cancelling: false, ..ended };
    let is_open = progress.with_executor || progress.held.is_some();
    match result.outcome {
        Outcome::Finished if (1..=progress.turn).contains(&turn) => {
            // Of one that waits for its next turn the last attempt has ended; and nobody knows whether a worker that holds the next
            // one has begun.
            let is_attempt = progress.with_executor || is_live && progress.held.is_some();
            let attempts = progress.attempts.saturating_add(u32::from(is_attempt)).max(1);
            let next = Next::Ended(Progress { attempts, ..begun }, TimerState::Delivered);
            Heard::Ended(next)
        }
        Outcome::Started if is_live && is_open => {
            Heard::Beat(Progress { begun: true, open: true, next_at: beat_until, ..progress })
        }
        Outcome::Failed | Outcome::Gone if is_live && progress.held.is_some() => Heard::AttemptOpen,
        Outcome::Failed | Outcome::Gone if is_live && progress.with_executor => {
            let attempts = progress.attempts.saturating_add(1);
            let attempt = Progress { attempts, ..begun };
            Heard::Ended(match result.outcome {
                Outcome::Gone => {
                    let failures = attempt.failures.saturating_add(1);
                    Next::Failed(Progress { failures, ..attempt }, Code::TaskFailed)
                }
                _ => failed(progress, attempt, result, policy, appended).0,
            })
        }
        _ => Heard::Stale,
    }
}

/// An attempt has failed.
fn failed(
    progress: Progress,
    attempt: Progress,
    result: &TaskResult,
    policy: Policy<'_>,
    appended: UnixMillis,
) -> (Next, bool) {
    let failures = progress.failures.saturating_add(1);
    let attempt = Progress { failures, ..attempt };
    let next = match policy.retry.is_left(failures) {
        true => {
            let wait = policy.retry.after(failures, result.retry_after, policy.luck);
            Next::Again(Progress { next_at: appended + wait, ..attempt })
        }
        false => Next::Failed(attempt, Code::TaskFailed),
    };
    (cancelled_or(progress, attempt, next), true)
}

/// A task that is being cancelled ends, whatever else would follow.
fn cancelled_or(progress: Progress, after: Progress, next: Next) -> Next {
    let is_ended = matches!(next, Next::Ended(..));
    if progress.cancelling && !is_ended {
        let after = Progress { cancelling: false, ..after };
        return Next::Ended(after, TimerState::Cancelled);
    }
    match next {
        Next::Ended(of, state) => Next::Ended(Progress { cancelling: false, ..of }, state),
        other => other,
    }
}
