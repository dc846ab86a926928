//! A retry by hand: a task that waits is called now, and one that has failed is called once more.
//!
//! # Invariants
//! 1. A retry counts only if the version and the turn that it follows are the last ones: neither a replay nor a second caller brings
//!    an old one back.
//! 2. Of a task that was dispatched the retry is one more copy of its turn: the first copy up takes the next one.
//! 3. Of a task that never was, it is a version of its own, and a cancel mark covers the one before: so there are never two copies
//!    of turn 0.
//! 4. Only what failed is brought back. Who cancelled a task has the last word.

use super::super::super::messages::{Action, ChangeReason, Outcome};
use super::super::super::state::SubmissionOrder;
use super::super::super::timers::{Ended, Pending, Progress, TimerId, TimerState, Version};
use super::super::super::verdict::{Origin, PendingRecord};
use super::super::lifecycle::answer;
use super::super::writes::PendingWrite;
use super::{LaneEngine, UnixMillis, copy_is_up_by};

/// What a record finds that follows a version of its task.
pub(super) enum Followed {
    /// That version is pending.
    Pending(Pending),
    /// It has ended, and none came after it.
    Ended(Ended),
}

impl LaneEngine {
    /// The version that a record follows, if that is the last one. `None`: the record is decided, or it waits for what is known of the
    /// past.
    pub(super) fn followed(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
        (timer_id, follows): (TimerId, Version),
    ) -> Option<(Box<PendingRecord>, Followed)> {
        let of = (entry.source.lane, timer_id);
        match self.timers.table().live(of.0, timer_id) {
            // It was decided, and is read again.
            Some(live) if live.version == entry.version() => self.copy_of_own(now, entry, timer_id),
            Some(live) if live.version == follows => return Some((entry, Followed::Pending(live))),
            Some(_) => self.outrun(&entry),
            None if self.is_covered(&entry, timer_id) => self.outrun(&entry),
            None => match self.timers.past.recalled(of) {
                None => self.wait_for_past(now, entry, timer_id),
                Some(Some(ended)) if ended.version == follows => {
                    return Some((entry, Followed::Ended(ended)));
                }
                Some(_) => self.outrun(&entry),
            },
        }
        None
    }

    /// Decides about a retry of a task.
    pub(super) fn retry_by_hand(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
        (timer_id, followed): (TimerId, Followed),
        out: &mut Vec<Action>,
    ) {
        match followed {
            Followed::Pending(live) => {
                let progress = self.timers.tasks.progress(timer_id).unwrap_or_default();
                match progress {
                    _ if entry.turn() != Some(progress.turn) => self.outrun(&entry),
                    Progress { held: Some(_), .. } | Progress { with_executor: true, .. } => {
                        let answer = answer(&entry, Outcome::Underway);
                        self.finish(&entry, answer);
                    }
                    Progress { turn: 0, .. } => {
                        self.retry_first(now, entry, (timer_id, live), progress)
                    }
                    _ => self.retry_turn(now, entry, (timer_id, live.version), progress),
                }
            }
            // What was read before its last turn is about another one.
            Followed::Ended(Ended { state: TimerState::Dead, turn, .. })
                if entry.turn() == Some(turn) =>
            {
                self.bring_back(now, entry, timer_id, out);
            }
            Followed::Ended(_) => self.outrun(&entry),
        }
    }

    /// It follows what is not the last one any more.
    pub(super) fn outrun(&mut self, entry: &PendingRecord) {
        self.timers.tasks.count_stale();
        self.finish(entry, answer(entry, Outcome::Superseded));
    }

    fn copy_of_own(&mut self, now: UnixMillis, mut entry: Box<PendingRecord>, timer_id: TimerId) {
        // In a batch that failed it was not answered.
        self.writes.extend(answer(&entry, Outcome::Replaced).map(PendingWrite::answer));
        entry.origin = Origin::Hop;
        if entry.turn() == Some(0) {
            set_trigger(&mut entry);
        }
        self.copy(now, entry, timer_id);
    }

    /// A task that was dispatched waits for its next turn: that is now.
    fn retry_turn(
        &mut self,
        now: UnixMillis,
        mut entry: Box<PendingRecord>,
        (timer_id, follows): (TimerId, Version),
        before: Progress,
    ) {
        let lane = entry.source.lane;
        let answer = answer(&entry, Outcome::Replaced);
        let Version { first_appended, offset } = follows;
        entry.first_appended = first_appended;
        entry.order = SubmissionOrder { appended: first_appended, offset };
        entry.origin = Origin::Hop;
        let after = Progress { next_at: before.next_at.min(entry.appended), ..before };
        if after != before {
            self.timers.set_progress(lane, timer_id, after);
            self.write_progress(now, &entry, after, TimerState::Delay);
            self.writes.keep_with_next();
        }
        self.writes.extend(answer.map(PendingWrite::answer));
        self.copy(now, entry, timer_id);
    }

    /// A task that was never dispatched waits for its time: that is now.
    fn retry_first(
        &mut self,
        now: UnixMillis,
        mut entry: Box<PendingRecord>,
        (timer_id, live): (TimerId, Pending),
        before: Progress,
    ) {
        let lane = entry.source.lane;
        if let Err(refusal) = self.poison.permits_record(entry.source, entry.offset) {
            return self.refuse_retry(&entry, refusal.code);
        }
        let answer = answer(&entry, Outcome::Replaced);
        let until = copy_is_up_by(now, live, before);
        let mark = self.timers.table().mark_before((lane, timer_id), live.version.next(), until);
        self.timers.set_put_off(lane, timer_id, false);
        set_trigger(&mut entry);
        let after = Progress { next_at: entry.due, ..before };
        match self.begin_task(now, &mut entry, timer_id, Some(after)) {
            Ok(()) => {
                self.writes.keep_with_next();
                self.write_cancel_mark(lane, mark, ChangeReason::Superseded);
                self.writes.reply_with(answer);
                entry.origin = Origin::Hop;
                self.route(now, entry);
            }
            Err(refusal) => self.refuse_retry(&entry, refusal.code),
        }
    }

    /// A task that has failed is pending again.
    fn bring_back(
        &mut self,
        now: UnixMillis,
        mut entry: Box<PendingRecord>,
        timer_id: TimerId,
        out: &mut Vec<Action>,
    ) {
        let answer = answer(&entry, Outcome::Replaced);
        let after = entry.task.as_ref().map(|task| task.progress);
        if after.is_some_and(|after| after.turn == 0) {
            set_trigger(&mut entry);
        }
        let begun = self.may_be_created(&entry);
        let begun = begun.and_then(|()| self.begin_task(now, &mut entry, timer_id, after));
        if let Err(refusal) = begun {
            return self.refuse_retry(&entry, refusal.code);
        }
        self.writes.reply_with(answer);
        entry.origin = Origin::Hop;
        if entry.task.as_ref().is_some_and(|task| task.scope.is_none()) {
            self.look(now, &entry.target, entry.intake, out);
        }
        self.route(now, entry);
    }

    /// Nothing is lost by that: what the retry brings stands where it was found.
    pub(super) fn refuse_retry(&mut self, entry: &PendingRecord, code: super::Code) {
        self.finish(entry, answer(entry, Outcome::Refused(code)));
    }
}

/// A task that never was dispatched has another time from now on.
fn set_trigger(entry: &mut PendingRecord) {
    let due = entry.due;
    if let Some(task) = &mut entry.task {
        task.trigger = due;
    }
}
