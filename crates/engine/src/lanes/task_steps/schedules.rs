//! Schedules: the chain of their nominal times, and their changes.
//!
//! One record of a schedule stands in the line. It comes up at the next nominal time. Then one transaction has the creates of the tasks,
//! the record for the time after it, and how far the schedule is.
//!
//! # Invariants
//! 1. A nominal time is passed once: with its task, or without one as `overlap` and `misfire` say. Its task's id follows from the time,
//!    so even a create that is written twice is one task.
//! 2. A change holds for every nominal time that has not been passed. It follows one version: of two changes of one version the second
//!    changes nothing.
//! 3. With an overlap other than `allow`, a task counts as open from when its create is written, not from when it is read.
//! 4. No time is left out for a task that has ended: where only the index knows whether it has, the schedule waits for its answer.

use std::sync::Arc;

use super::super::super::Millis;
use super::super::super::header;
use super::super::super::messages::{ChangeReason, Destination, HeaderRewrite, Outcome, Produce};
use super::super::super::schedule::{GRACE, NEVER, Overlap, Place, Schedule, Submitted};
use super::super::super::sealed::{self, Submission};
use super::super::super::state::Kind;
use super::super::super::task::id::TaskId;
use super::super::super::timers::{
    CancelMark, Pending, Progress, SCHEDULE_TARGET, TimerId, TimerState, group_of,
};
use super::super::super::verdict::{self, Origin, PendingRecord, StateChange, refusal};
use super::super::builder::BatchBuilder;
use super::super::hops::PUT_OFF_MAX;
use super::super::lifecycle::{CANCEL_MARK_SLACK, Named, answer};
use super::super::past::Waiting;
use super::super::poison::Beside;
use super::super::writes::PendingWrite;
use super::by_hand::Followed;
use super::{Code, Lane, LaneEngine, Refusal, UnixMillis, project_deleted};

/// What a schedule does now.
struct Step {
    creates: Vec<Produce>,
    /// The tasks that they create, where it matters whether those have ended.
    announced: Vec<TimerId>,
    after: Progress,
    /// `None`: it has no more times.
    next: Option<UnixMillis>,
    skipped: u64,
}

impl LaneEngine {
    /// A nominal time of a schedule has come.
    pub(super) fn occur(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
        schedule: &Schedule,
        builder: &mut BatchBuilder,
    ) {
        let Some(timer_id) = entry.timer_id else { return };
        let before = self.timers.tasks.progress(timer_id).unwrap_or_default();
        let entry = match schedule.timing().overlap() {
            Overlap::Allow => Some(entry),
            Overlap::Skip | Overlap::QueueOne => self
                .unless_asked(entry, before)
                .and_then(|entry| self.unless_to_be_written(now, entry, builder)),
        };
        let Some(mut entry) = entry else { return };
        // One that was never acted on has its first time as its trigger: its due time may be that of a later one, which it waited for.
        let trigger = entry.task.as_ref().map_or(entry.due, |task| task.trigger);
        let first = if before.next_at > UnixMillis(0) { before.next_at } else { trigger };
        let last = schedule.timing().last_passed(first, now).filter(|_| !schedule.is_paused());
        // One that has waited for that is not to wait again, though others have passed meanwhile: they have their turn.
        let has_waited = entry.due > first;
        if let Some(last) = last.filter(|last| *last > entry.due && !has_waited) {
            // Several times have passed: what was said before the last of them counts for all of them.
            entry.due = last;
            match self.let_through(now, entry) {
                Some(back) => entry = back,
                None => return,
            }
        }
        let upto = entry.due;
        let named = entry.named_as(timer_id);
        let step = self.step_of_schedule(now, &entry, schedule, before, (first, upto));
        let made = step.and_then(|step| {
            if let (Some(next), Some(task)) = (step.next, entry.task.as_mut()) {
                (entry.due, task.turn) = (next, step.after.turn);
            }
            let sealed = verdict::seal(&self.setup, &entry, Kind::Hop)?;
            let directive = header::read(entry.record.headers())?;
            let stage =
                StateChange { task: Some(step.after), ..StateChange::new(TimerState::Delay, now) };
            let said = verdict::timer_change(&entry, &directive, stage);
            Ok((step, sealed, said))
        });
        let (step, sealed, said) = match made {
            Ok(made) => made,
            Err(refusal) => return self.refuse(now, *entry, refusal),
        };
        let Step { creates, announced, after, next, skipped } = step;
        self.timers.tasks.count_occurrences(creates.len() as u64, skipped);
        for timer_id in announced {
            self.timers.tasks.announce(now, timer_id);
        }
        let Some(next) = next else {
            return self.end_schedule(now, *entry, timer_id, after, creates);
        };
        let lane = entry.source.lane;
        let ladder = &self.setup.topics.ladder;
        let tier = self.hops.pick(ladder, now, next - now).unwrap_or_else(|| ladder.shortest());
        let PendingRecord { source, offset, record, order, .. } = *entry;
        let send = Produce {
            to: Destination::Lane(self.setup.topics.of_tier(tier)),
            partition: Some(i32::from(lane.0)),
            record,
            rewrite: HeaderRewrite::State(sealed),
            // Of a short period the shortest tier may let it go after its time. That is no harm to any order.
            due: UnixMillis(u64::MAX),
            expires: None,
        };
        let named = Named { task: Some(after), ..named };
        let beside = Beside { timer: said, submitted: creates, ..Beside::default() };
        self.load(now, builder, (source, offset), (send, order, None), Some(named), beside);
    }

    fn step_of_schedule(
        &self,
        now: UnixMillis,
        entry: &PendingRecord,
        schedule: &Schedule,
        before: Progress,
        (first, upto): (UnixMillis, UnixMillis),
    ) -> Result<Step, Refusal> {
        let directive = header::read(entry.record.headers())?;
        let id = sealed::task_id(&directive)?;
        let label = entry.task.as_ref().map(|task| &*task.label);
        let of @ (project, _) = group_of(label).unwrap_or_default();
        if self.timers.tasks.registry().project(project).is_deleted {
            return Err(project_deleted(project));
        }
        let lane = entry.source.lane;
        let mut step = Step {
            creates: Vec::new(),
            announced: Vec::new(),
            after: Progress { turn: before.turn.saturating_add(1), ..before },
            next: Some(NEVER),
            skipped: 0,
        };
        if !schedule.is_paused() {
            let late = schedule.timing().late(first - Millis(1), (upto, now), GRACE);
            step.skipped = u64::from(late.has_skipped);
            step.next = late.next;
            let may_be_in_the_way = schedule.timing().overlap() != Overlap::Allow;
            let mut last = self.open_task_of(now, lane, &id, before);
            for nominal in late.create {
                let after = match schedule.place(last) {
                    // If the create of the last one was hidden for so long that the lane did not wait for it, it may be open all the same.
                    // Who reads this one has read that.
                    Place::Free => step.after.last_nominal().filter(|_| may_be_in_the_way),
                    Place::Behind(other) => Some(other),
                    Place::None => {
                        step.skipped += 1;
                        continue;
                    }
                };
                let task = id.occurrence(nominal);
                let submitted = schedule.occurrence(of, task, (nominal, now), after);
                let submitted = submitted.map_err(|wrongs| {
                    let wrong = wrongs.first().map(ToString::to_string).unwrap_or_default();
                    refusal(Code::BadTask, format!("its task: {wrong}"))
                })?;
                if may_be_in_the_way {
                    step.announced.push(TimerId::task(&submitted.id));
                }
                step.creates.push(self.create_of(now, lane, &submitted));
                step.after = step.after.with_occurrence(nominal, after);
                last = Some((nominal, false));
            }
        }
        step.after.next_at = step.next.unwrap_or(now);
        Ok(step)
    }

    /// The index is asked for what became of a task that may be in the way: its create is read after a take-over, or was written once
    /// more, or somebody has copied it in a tier. The schedule waits behind that record. Gives it back if nothing is asked.
    fn unless_asked(
        &mut self,
        entry: Box<PendingRecord>,
        progress: Progress,
    ) -> Option<Box<PendingRecord>> {
        let directive = header::read(entry.record.headers());
        let id = directive.and_then(|directive| sealed::task_id(&directive));
        let Ok(id) = id else { return Some(entry) };
        let lane = entry.source.lane;
        let mut of = last_tasks(&id, progress).map(|(_, timer_id)| (lane, timer_id));
        match of.find(|of| self.timers.past.has_waiting(*of)) {
            Some(of) => self.timers.past.wait(of, Waiting::Entry(entry)),
            None => return Some(entry),
        }
        None
    }

    /// The task of a schedule that has not ended, and whether it was begun.
    fn open_task_of(
        &self,
        now: UnixMillis,
        lane: Lane,
        id: &TaskId,
        progress: Progress,
    ) -> Option<(UnixMillis, bool)> {
        let tasks = &self.timers.tasks;
        last_tasks(id, progress)
            .find(|(_, timer_id)| {
                // Its create is on its way; or it is pending.
                tasks.is_announced(now, *timer_id)
                    || self.timers.table().live(lane, *timer_id).is_some()
            })
            .map(|(nominal, timer_id)| {
                (nominal, tasks.progress(timer_id).is_some_and(|of| of.turn > 0))
            })
    }

    fn create_of(&self, now: UnixMillis, lane: Lane, of: &Submitted) -> Produce {
        let submission = Submission {
            id: &of.id,
            spec: &of.spec,
            due: of.due,
            expires: of.expires,
            key: of.key.as_deref(),
            value: of.value.as_deref(),
            headers: &of.headers,
        };
        Produce::submitted(lane, now, sealed::submit(&self.setup.key, now, &submission))
    }

    /// A schedule has no more times.
    fn end_schedule(
        &mut self,
        now: UnixMillis,
        entry: PendingRecord,
        timer_id: TimerId,
        after: Progress,
        creates: Vec<Produce>,
    ) {
        for send in creates {
            self.writes.push_with_next(PendingWrite::send(send));
        }
        self.write_progress(now, &entry, after, TimerState::Delivered);
        self.timers.end(now, entry.source.lane, timer_id);
        self.writes.complete_with((entry.source, entry.offset), entry.record);
    }

    /// A task is not begun before that of another time has ended. Gives it back if it has.
    pub(super) fn unless_behind(
        &mut self,
        now: UnixMillis,
        mut entry: Box<PendingRecord>,
        builder: &mut BatchBuilder,
    ) -> Option<Box<PendingRecord>> {
        let lane = entry.source.lane;
        let other = entry.task.as_ref().filter(|task| task.turn == 0).and_then(|task| task.after);
        let Some(other) = other else { return Some(entry) };
        if self.timers.table().live(lane, other).is_none() {
            return self.unless_to_be_written(now, entry, builder);
        }
        if let Err(refusal) = self.is_sound(now, &entry) {
            self.refuse(now, *entry, refusal);
            return None;
        }
        entry.deferred = true;
        // However often, it is no fault of the task's.
        entry.hops = entry.hops.saturating_sub(1);
        let shortest = self.setup.topics.ladder.shortest();
        self.hop(now, shortest, entry);
        None
    }

    /// The end of the task before it may be decided and not written yet. No later batch may say so than the one that says what comes of
    /// this record: so that waits for the next batch, if this one has no room for both.
    fn unless_to_be_written(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
        builder: &mut BatchBuilder,
    ) -> Option<Box<PendingRecord>> {
        self.load_ready(now, builder);
        if self.writes.in_order() == 0 {
            return Some(entry);
        }
        self.agenda.insert(entry);
        None
    }

    // Changes.

    /// Decides about a change of a schedule.
    pub(super) fn change_schedule(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
        schedule: &Arc<Schedule>,
        (timer_id, followed): (TimerId, Followed),
    ) {
        // As it was sealed: see `sealed::change_schedule`.
        let is_anew = entry.task.as_ref().is_some_and(|task| task.progress.attempts > 0);
        match followed {
            Followed::Pending(live) if !is_anew => {
                let before = self.timers.tasks.progress(timer_id).unwrap_or_default();
                // Its first time, of one that was never acted on.
                let next_at =
                    if before.next_at > UnixMillis(0) { before.next_at } else { live.due };
                // It may come right after a time that was passed, and have been appended before it.
                let since = entry.appended.min(next_at - Millis(1));
                let since = since.max(before.last_nominal().unwrap_or_default());
                let of = (entry.source.lane, timer_id);
                let until = self.schedule_is_up_by(now);
                let mark = self.timers.table().mark_before(of, live.version.next(), until);
                self.make_schedule(now, entry, schedule, (timer_id, before, since), Some(mark));
            }
            Followed::Ended(_) if is_anew => {
                let since = entry.appended;
                let none = Progress::default();
                match self.may_be_created(&entry) {
                    Ok(()) => {
                        self.make_schedule(now, entry, schedule, (timer_id, none, since), None);
                    }
                    Err(refusal) => self.refuse_retry(&entry, refusal.code),
                }
            }
            _ => self.outrun(&entry),
        }
    }

    /// A version of a schedule is the one that counts from now on. `since`: its first nominal time is after that.
    fn make_schedule(
        &mut self,
        now: UnixMillis,
        mut entry: Box<PendingRecord>,
        schedule: &Arc<Schedule>,
        (timer_id, before, since): (TimerId, Progress, UnixMillis),
        mark: Option<CancelMark>,
    ) {
        if let Err(refusal) = self.poison.permits_record(entry.source, entry.offset) {
            return self.refuse_retry(&entry, refusal.code);
        }
        let told = answer(&entry, Outcome::Replaced);
        let next = match schedule.is_paused() {
            true => Some(NEVER),
            false => schedule.timing().next_after(since),
        };
        let turn = entry.turn().unwrap_or_default();
        entry.due = next.unwrap_or(now);
        if let Some(task) = &mut entry.task {
            task.trigger = entry.due;
        }
        let after = Progress { turn, next_at: entry.due, ..before };
        if let Err(refusal) = self.begin_task(now, &mut entry, timer_id, Some(after)) {
            return self.refuse_retry(&entry, refusal.code);
        }
        if let Some(mark) = mark {
            self.writes.keep_with_next();
            self.write_cancel_mark(entry.source.lane, mark, ChangeReason::Superseded);
        }
        self.writes.reply_with(told);
        entry.origin = Origin::Hop;
        // One that has no time any more ends when it comes up, which is now.
        self.route(now, entry);
    }

    /// By when the record of a schedule comes up that stands in the line now, whenever its next time is: it waits in one tier.
    fn schedule_is_up_by(&self, now: UnixMillis) -> UnixMillis {
        let longest = self.setup.topics.ladder.tiers().iter().map(|tier| tier.hold).max();
        now + longest.unwrap_or_default() + PUT_OFF_MAX + CANCEL_MARK_SLACK
    }

    /// Until when the mark of a cancel is kept at most; `None`: it is not about a schedule.
    pub(super) fn longest_mark(&self, now: UnixMillis, live: Pending) -> Option<UnixMillis> {
        let (target, _) = self.timers.table().words(live);
        target.starts_with(SCHEDULE_TARGET).then(|| self.schedule_is_up_by(now))
    }
}

/// The tasks that may be in the way of another one: the last one, and the one that it waits for, or waited for.
fn last_tasks(id: &TaskId, progress: Progress) -> impl Iterator<Item = (UnixMillis, TimerId)> {
    let each = [progress.last_nominal(), progress.nominal_before()].into_iter().flatten();
    each.map(|nominal| (nominal, TimerId::task(&id.occurrence(nominal))))
}
