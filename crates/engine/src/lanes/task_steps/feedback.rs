//! Tasks with feedback: after its dispatch a task stays in the line until its executor reports, or its deadline is over.
//!
//! The record that brings the payload stands in a tier meanwhile, and comes up once in each heartbeat. What it finds in the progress
//! of its task then says whether it waits on.
//!
//! # Invariants
//! 1. A turn is over by its deadline only if the main intake is read up to `settle` before it: feedback that stood there by then
//!    counts.
//! 2. While a task is awaited a record that brings its payload stands in the line, and moves at most once in each heartbeat.
//! 3. What feedback brings, of a task that goes on, is a copy like any other: of two copies the first one up takes the next turn.

use std::sync::Arc;

use super::super::super::messages::{
    Answer, ChangeReason, Destination, HeaderRewrite, Outcome, Produce, Reported, TracedTurn,
};
use super::super::super::sealed::Ticket;
use super::super::super::state::Kind;
use super::super::super::task::result::{Outcome as CallOutcome, TaskResult};
use super::super::super::task::spec::{Feedback, HEARTBEAT_MIN_LARGE, LARGE_BYTES, Spec};
use super::super::super::timers::{About, OpenTurn, Pending, Progress, TimerId, TimerState};
use super::super::super::verdict::tasks::Feedback as Said;
use super::super::super::verdict::{self, PendingRecord};
use super::super::super::{Millis, header, sealed};
use super::super::tasks::decide::{Heard, Next, Policy, decide, hear};
use super::super::writes::PendingWrite;
use super::follow_up::Of;
use super::{LaneEngine, Refusal, Retry, UnixMillis, failure, luck};

/// When the record of an awaited task comes up next: its executor may begin to give signs meanwhile, and then its deadline is another.
fn looks_at(
    now: UnixMillis,
    next_at: UnixMillis,
    feedback: Option<Feedback>,
    bytes: usize,
) -> UnixMillis {
    let Some(Feedback { heartbeat, .. }) = feedback else { return next_at };
    let least = if bytes > LARGE_BYTES { HEARTBEAT_MIN_LARGE } else { Millis(0) };
    next_at.min(now + heartbeat.max(least))
}

/// What the lane decides itself of a due record is written behind what leaves in the same batch: so its next turn is in another one.
pub(super) fn not_at_once(now: UnixMillis, next: Next) -> Next {
    match next {
        Next::Again(after) => {
            Next::Again(Progress { next_at: after.next_at.max(now + Millis(1)), ..after })
        }
        next => next,
    }
}

fn body_bytes(entry: &PendingRecord) -> usize {
    entry.record.value().map_or(0, <[u8]>::len)
}

impl LaneEngine {
    /// What the executor of a task that is delivered now learns; `None`: the task ends with its delivery.
    pub(crate) fn traced_turn(&self, entry: &PendingRecord) -> Option<TracedTurn> {
        let (task, timer_id) = (entry.task.as_ref()?, entry.timer_id?);
        let feedback = task.feedback?;
        let directive = header::read(entry.record.headers()).ok()?;
        let id = sealed::task_id(&directive).ok()?;
        let turn = task.progress.turn.saturating_add(1);
        let ticket = Ticket { version: entry.version(), turn, heartbeat: feedback.heartbeat };
        let ticket = ticket.to_text(&self.setup.key, &id);
        let cursor = self.timers.tasks.cursor(timer_id);
        Some(TracedTurn { ticket, cursor, shard: task.shard })
    }

    /// What goes with a dispatch to a worker: how far an executor came in an earlier turn.
    pub(super) fn said_by_executor(&self, entry: &PendingRecord) -> Option<String> {
        entry.task.as_ref()?.feedback?;
        let cursor = Some(self.timers.tasks.cursor(entry.timer_id?)?.to_string());
        Some(TaskResult { cursor, ..TaskResult::new(CallOutcome::Started) }.to_json())
    }

    /// The copy of a task that its executor has from now on: it goes into a tier in the batch of the delivery.
    ///
    /// # Errors
    /// Its headers cannot be read.
    pub(crate) fn copy_of_awaited(
        &self,
        now: UnixMillis,
        entry: &mut PendingRecord,
        after: Progress,
    ) -> Result<Produce, Refusal> {
        let feedback = entry.task.as_ref().and_then(|task| task.feedback);
        let due = looks_at(now, after.next_at, feedback, body_bytes(entry));
        let (old_due, old_hops) = (entry.due, entry.hops);
        (entry.due, entry.hops) = (due, 0);
        if let Some(task) = &mut entry.task {
            task.turn = after.turn;
        }
        let sealed = verdict::seal(&self.setup, entry, Kind::Hop);
        (entry.due, entry.hops) = (old_due, old_hops);
        let ladder = &self.setup.topics.ladder;
        let tier = self.hops.pick(ladder, now, due - now).unwrap_or_else(|| ladder.shortest());
        Ok(Produce {
            to: Destination::Lane(self.setup.topics.of_tier(tier)),
            partition: Some(i32::from(entry.source.lane.0)),
            record: entry.record.clone(),
            rewrite: HeaderRewrite::State(sealed?),
            // Nobody minds if it comes up a little late.
            due: UnixMillis(u64::MAX),
            expires: None,
        })
    }

    /// The record of an awaited task waits on.
    pub(super) fn wait_for_feedback(
        &mut self,
        now: UnixMillis,
        mut entry: Box<PendingRecord>,
        progress: Progress,
    ) {
        let feedback = entry.task.as_ref().and_then(|task| task.feedback);
        entry.due = looks_at(now, progress.next_at, feedback, body_bytes(&entry));
        // However often it comes up, it has not gone in circles. Nor does anybody mind if it is late.
        (entry.hops, entry.deferred) = (0, true);
        self.route(now, entry);
    }

    /// Looks at a record that is due. A copy waits on whose task is to be acted on later: since it began to wait the deadline was
    /// moved, or another copy was there when the turn was over. Any other record is given back.
    pub(crate) fn unless_ahead(
        &mut self,
        now: UnixMillis,
        mut entry: Box<PendingRecord>,
    ) -> Option<Box<PendingRecord>> {
        let timer_id = entry.timer_id.filter(|_| entry.task.is_some());
        let progress = timer_id.and_then(|timer_id| self.timers.tasks.progress(timer_id));
        let Some(progress) = progress.filter(|progress| progress.next_at > entry.due) else {
            return Some(entry);
        };
        if progress.with_executor {
            self.wait_for_feedback(now, entry, progress);
        } else {
            entry.due = progress.next_at;
            self.route(now, entry);
        }
        None
    }

    fn with_executor(&self, entry: &PendingRecord) -> Option<Progress> {
        let timer_id = entry.timer_id.filter(|_| entry.task.is_some())?;
        self.timers.tasks.progress(timer_id).filter(|progress| progress.with_executor)
    }

    /// The turn of an awaited task is over by its deadline; any other record is given back.
    pub(crate) fn unless_silent(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
    ) -> Option<Box<PendingRecord>> {
        let Some(before) = self.with_executor(&entry) else { return Some(entry) };
        let mut entry = self.unless_run_is_over(now, entry)?;
        let timer_id = entry.timer_id?;
        let spec =
            header::read(entry.record.headers()).and_then(|directive| sealed::spec(&directive));
        let spec = match spec {
            Ok(spec) => spec,
            Err(refusal) => {
                self.refuse(now, *entry, refusal);
                return None;
            }
        };
        let mut result = TaskResult {
            error: Some("timeout: neither a report nor a heartbeat came in time".to_owned()),
            ended: Some(now),
            ..TaskResult::new(CallOutcome::Failed)
        };
        if let Some(turn) = self.timers.tasks.end_turn(timer_id) {
            turn.complete(&mut result);
        }
        let (next, _) = self.with_policy(&spec, luck(timer_id, before.turn), |policy| {
            decide(before, &result, policy, now)
        });
        let next = not_at_once(now, next);
        entry.deferred = false;
        self.end_turn(now, entry, (timer_id, before), &next, result);
        None
    }

    /// Does something by the rules by which a task is called again.
    pub(super) fn with_policy<T>(
        &self,
        spec: &Spec,
        luck: u64,
        decide: impl FnOnce(Policy<'_>) -> T,
    ) -> T {
        let registry = Arc::clone(self.timers.tasks.registry());
        let default = Retry::default();
        let retry = super::retry_of(spec, &registry, &default);
        decide(Policy { retry, poll: None, feedback: spec.feedback(), luck })
    }

    /// A turn has failed, and `entry` brings the payload: it goes on with that, or becomes a dead letter.
    fn end_turn(
        &mut self,
        now: UnixMillis,
        mut entry: Box<PendingRecord>,
        (timer_id, before): (TimerId, Progress),
        next: &Next,
        result: TaskResult,
    ) {
        let (lane, after) = (entry.source.lane, next.progress());
        self.write_attempt(lane, timer_id, before, next, result.clone());
        self.timers.set_progress(lane, timer_id, after);
        entry.decided = true;
        match next {
            Next::Failed(after, code) => {
                entry.ends_with(&result);
                let refusal = Refusal::new(*code, failure(&result, *after));
                self.refuse(now, *entry, refusal);
            }
            _ => {
                self.write_progress(now, &entry, after, TimerState::Delay);
                self.timers.here(lane, timer_id);
                entry.due = after.next_at;
                self.route(now, entry);
            }
        }
    }

    /// Takes what an executor says.
    pub(super) fn hear(&mut self, now: UnixMillis, mut entry: Box<PendingRecord>, said: Said) {
        let (lane, Some(timer_id)) = (entry.source.lane, entry.timer_id) else { return };
        let Said { mut result, turn, heartbeat, spec } = said;
        let live = self.timers.table().live(lane, timer_id);
        let live = live.filter(|live| live.version == entry.version());
        let Some(live) = live else {
            // The index knows how it ended.
            return self.reply(&entry, timer_id, Outcome::Absent);
        };
        let before = self.timers.tasks.progress(timer_id).unwrap_or_default();
        let beat_until = entry.appended + heartbeat;
        let of = (turn, &result);
        let at = (entry.appended, beat_until);
        let luck = luck(timer_id, before.turn);
        let heard = match &spec {
            Some(spec) => self.with_policy(spec, luck, |policy| hear(before, of, policy, at)),
            None => {
                let retry = Retry::default();
                let policy = Policy { retry: &retry, poll: None, feedback: None, luck };
                hear(before, of, policy, at)
            }
        };
        match heard {
            Heard::Stale
                if spec.is_some()
                    && before.held.is_none()
                    && turn == before.turn
                    && result.outcome == CallOutcome::Failed =>
            {
                // It was decided, and is read again; or it is said twice, or after its deadline. It has the body of the turn that
                // follows, and may say how far this one came: who takes the lane over is to know that, too.
                let known = self.timers.tasks.cursor(timer_id);
                let is_new =
                    result.cursor.is_some() && result.cursor.as_deref() != known.as_deref();
                self.note_cursor(timer_id, &result);
                if is_new && before.attempts > 0 {
                    result.ended.get_or_insert(entry.appended);
                    self.write_attempt(lane, timer_id, before, &Next::Again(before), result);
                }
                let reported = Outcome::Reported(Reported::Retrying);
                self.writes.push(PendingWrite::answer(self.answer_to(&entry, timer_id, reported)));
                self.copy(now, entry, timer_id);
            }
            Heard::Stale => {
                self.timers.tasks.count_stale();
                self.reply(&entry, timer_id, Outcome::Reported(Reported::Stale));
            }
            Heard::AttemptOpen => self.reply(&entry, timer_id, Outcome::Underway),
            Heard::Beat(after) => {
                if !before.open {
                    self.timers.tasks.begin(timer_id, OpenTurn::of(entry.appended, &result));
                }
                result.started = None;
                if let Some(turn) = self.timers.tasks.open_turn(timer_id) {
                    turn.hear(&result);
                    turn.complete(&mut result);
                }
                self.beat(now, *entry, (timer_id, live), after, result);
            }
            Heard::Ended(next @ Next::Ended(..)) => {
                result.ended.get_or_insert(entry.appended);
                // A late success says nothing of the turn that is open.
                let open = self.timers.tasks.open_turn(timer_id).filter(|_| turn == before.turn);
                if let Some(open) = open {
                    open.complete(&mut result);
                }
                self.end_by_feedback(now, *entry, (timer_id, live), (turn, before), &next, result);
            }
            Heard::Ended(next) => {
                result.ended.get_or_insert(entry.appended);
                if let Some(turn) = self.timers.tasks.end_turn(timer_id) {
                    turn.complete(&mut result);
                }
                self.note_cursor(timer_id, &result);
                let reported = match next {
                    Next::Failed(..) => Reported::Failed,
                    _ => Reported::Retrying,
                };
                let answer = self.answer_to(&entry, timer_id, Outcome::Reported(reported));
                entry.hops = 0;
                self.writes.push_with_next(PendingWrite::answer(answer));
                self.end_turn(now, entry, (timer_id, before), &next, result);
            }
        }
    }

    /// The next turn learns how far this one came.
    fn note_cursor(&mut self, timer_id: TimerId, result: &TaskResult) {
        if let Some(cursor) = &result.cursor {
            self.timers.tasks.set_cursor(timer_id, Arc::from(&**cursor));
        }
    }

    /// The executor is at work: its deadline is another, and how far it is stands in the attempt that is open.
    fn beat(
        &mut self,
        now: UnixMillis,
        entry: PendingRecord,
        of: (TimerId, Pending),
        after: Progress,
        result: TaskResult,
    ) {
        let (lane, timer_id) = (entry.source.lane, of.0);
        self.note_cursor(timer_id, &result);
        // One that a worker holds may end without an attempt.
        if after.with_executor {
            let open = Progress { attempts: after.attempts.saturating_add(1), ..after };
            self.write_attempt(lane, timer_id, after, &Next::Awaited(open), result);
        }
        let said = self.said_by_cancel(now, &entry, of, after, (TimerState::Delay, None));
        self.timers.set_progress(lane, timer_id, after);
        self.writes.push(PendingWrite::timer_change(lane, said, ChangeReason::Reported));
        let outcome = Outcome::Reported(Reported::Running(after.next_at));
        let answer = self.answer_to(&entry, timer_id, outcome);
        self.writes.complete_with((entry.source, entry.offset), entry.record);
        self.writes.reply_with(Some(answer));
    }

    /// A success ends the task, wherever its record stands.
    fn end_by_feedback(
        &mut self,
        now: UnixMillis,
        entry: PendingRecord,
        of: (TimerId, Pending),
        (turn, before): (u32, Progress),
        next: &Next,
        result: TaskResult,
    ) {
        let (lane, (timer_id, live)) = (entry.source.lane, of);
        self.write_attempt(lane, timer_id, Progress { turn, ..before }, next, result.clone());
        let told = self.timers.tasks.follow_up(timer_id).and_then(|follow_up| {
            let of = Of {
                lane,
                follow_up: &follow_up,
                record: &entry.record,
                version: live.version,
                trigger: live.due,
                last: Some(&result),
                shards: None,
            };
            self.follow_up_of(now, of, next.progress(), None)
        });
        self.write_follow_up(told);
        let end = (TimerState::Delivered, None);
        let said = self.said_by_cancel(now, &entry, of, next.progress(), end);
        let answer = self.answer_to(&entry, timer_id, Outcome::Reported(Reported::Finished));
        self.writes.push(PendingWrite::timer_change(lane, said, ChangeReason::Delivered));
        let scope = self.timers.scope(lane, timer_id);
        self.timers.end(now, lane, timer_id);
        match before.held {
            Some(held) => {
                self.writes.keep_with_next();
                self.note_to_worker(now, entry, of, (before.turn, held.partition.0), Some(answer));
                self.let_go_of_turn(now, lane, scope, held.credits);
            }
            None => {
                self.writes.complete_with((entry.source, entry.offset), entry.record);
                self.writes.reply_with(Some(answer));
            }
        }
    }

    fn answer_to(&self, entry: &PendingRecord, timer_id: TimerId, outcome: Outcome) -> Answer {
        let PendingRecord { source, offset, .. } = *entry;
        Answer { source, offset, timer_id, about: About::Version(entry.version()), outcome }
    }

    fn reply(&mut self, entry: &PendingRecord, timer_id: TimerId, outcome: Outcome) {
        let answer = self.answer_to(entry, timer_id, outcome);
        self.finish(entry, Some(answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_up_once_in_a_heartbeat_and_a_large_one_less_often() {
        let of = |next: u64, heartbeat: u64, bytes| {
            let (deadline, heartbeat) = (Millis(3_600_000), Millis(heartbeat));
            let feedback = Some(Feedback { deadline, heartbeat });
            looks_at(UnixMillis(1_000_000), UnixMillis(next), feedback, bytes).0
        };
        assert_eq!(of(2_000_000, 5_000, 100), 1_005_000);
        assert_eq!(of(1_002_000, 5_000, 100), 1_002_000, "its deadline comes first");
        assert_eq!(of(2_000_000, 5_000, LARGE_BYTES + 1), 1_030_000);
        assert_eq!(of(2_000_000, 60_000, LARGE_BYTES + 1), 1_060_000);
        assert_eq!(of(900_000, 60_000, 1), 900_000, "it is over");
        assert_eq!(looks_at(UnixMillis(1), UnixMillis(9), None, 1), UnixMillis(9));
    }
}
