//! The life of timers: records with an id are created, replaced, cancelled, delivered. Each transition is decided once, in
//! [`admission`](super::admission), and passes through here: so all that depends on what is pending hears of it.
//!
//! # Invariants
//! 1. At most one version of a timer is pending: the *live* one. Only the live version is ever delivered or becomes a
//!    dead letter. The lane checks this when it releases the record, and again when the record leaves.
//! 2. A *cancel mark* covers a version that was live and no longer is, for as long as a record of it may still come up:
//!    the mark goes only once that record has surely been seen. After a restart, nothing else tells such a version from
//!    one that the lane has forgotten.
//! 3. A transition goes to `<ns>.timers` in the batch that carries its effect, or the command that caused it. The
//!    changes of one timer are written in the order in which they were decided. So writes
//!    wait in one queue ([`writes`](super::writes)).
//! 4. Some offsets finish without a record to send. Such an offset finishes only once its cause is in a batch.
//! 5. The answer to a command is in the batch that carries its effect.
//! 6. A lane decides about no record with an id before it knows all of its timers.
//! 7. Of two versions of one id, the older one is superseded or a duplicate, also when the newer one has ended. A
//!    create is a duplicate of the version that was pending when it was submitted. The lane compares late records with
//!    what has ended ([`past`](super::past)).

use super::super::header;
use super::super::messages::{Answer, Outcome};
use super::super::timers::{
    About, CancelMark, Cursor, Ended, Live, Progress, Remembered, Replaced, RunProgress,
    TimerFields, TimerId, TimerState, Version,
};
use super::super::verdict::tasks::{scope_of, topics_of};
use super::super::verdict::{Origin, PendingRecord};
use super::super::work::Scope;
use super::duplicates::{Duplicates, Note};
use super::figures::Figures;
use super::lost::Calling;
use super::past::Past;
use super::retention::Retention;
use super::tasks::Tasks;
use super::{Lane, Millis, UnixMillis};

/// A cancel mark is kept for this much longer than until its version is due, at least: a late record of it may still come,
/// and in `at_least_once` come again.
pub(super) const CANCEL_MARK_SLACK: Millis = Millis(600_000);

/// A version of a timer that is about to leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub(super) timer_id: TimerId,
    pub(super) version: Version,
    /// It was the live one when it was let go.
    pub(super) decided: bool,
    /// Of a task: the turn that it stands for.
    pub(super) turn: Option<u32>,
    /// Of a task that goes to its worker: how far it is then.
    pub(super) task: Option<Progress>,
}

impl PendingRecord {
    /// What it stands for, as a version of its timer.
    pub(super) fn named_as(&self, timer_id: TimerId) -> Named {
        let (version, decided, turn) = (self.version(), self.decided, self.turn());
        Named { timer_id, version, decided, turn, task: None }
    }

    /// The same, if it has a timer.
    pub(super) fn named(&self) -> Option<Named> {
        self.timer_id.map(|timer_id| self.named_as(timer_id))
    }
}

/// What has happened to timers since the start.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    duplicates: u64,
    superseded: u64,
    lost: u64,
}

/// The timers of all lanes.
#[derive(Debug)]
pub(super) struct Timers {
    table: Remembered,
    duplicates: Duplicates,
    /// What has ended, for records that come late.
    pub(super) past: Past,
    /// What is to be forgotten.
    pub(super) retention: Retention,
    /// Timers whose records are gone.
    pub(super) calling: Calling,
    /// How far those are that are tasks.
    pub(super) tasks: Tasks,
    /// The main intake was recreated.
    is_recreated: bool,
    counts: Counts,
}

impl Timers {
    pub(super) fn new(lanes: u16) -> Self {
        Self {
            table: Remembered::new(lanes),
            duplicates: Duplicates::default(),
            past: Past::default(),
            retention: Retention::default(),
            calling: Calling::default(),
            tasks: Tasks::new(lanes),
            is_recreated: false,
            counts: Counts::default(),
        }
    }

    /// The lanes are gone. Those of which records were found gone are still to be counted.
    pub(super) fn reset(&mut self, lanes: u16) {
        let calling = self.calling.renewed();
        let tasks = self.tasks.renewed();
        *self = Self { calling, tasks, counts: self.counts, ..Self::new(lanes) };
    }

    /// The timers that are remembered.
    pub(super) fn table(&self) -> &Remembered {
        &self.table
    }

    /// Counts for the metrics.
    pub(super) fn count(&self, figures: &mut Figures) {
        figures.live = self.table.live_len();
        figures.remembered = self.table.cancel_marks_len();
        figures.recalling = self.past.waiting();
        figures.due(self.past.first_due());
        let Counts { duplicates, superseded, lost } = self.counts;
        (figures.duplicates, figures.superseded) = (duplicates, superseded);
        figures.lost_timers = lost;
        self.tasks.count(figures);
    }

    // What passes through.

    /// Takes in a part of a lane's timers. `is_full`: all of them are tracked.
    pub(super) fn know(
        &mut self,
        lane: Lane,
        live: &[Live],
        cancel_marks: Vec<CancelMark>,
        is_full: bool,
    ) {
        // In at_least_once an owner that is none any more may have written that it is pending after another one had ended it.
        for live in live.iter().filter(|_| is_full) {
            let mark = self.table.cancel_mark(lane, live.timer_id);
            if !mark.is_some_and(|mark| mark.covers(live.version)) {
                self.table.know_live(lane, live);
                self.tasks.set_follow_up(live.timer_id, live.follow_up.clone());
                if let Some(progress) = live.task {
                    self.know_task(lane, live, progress);
                }
                if let Some(Cursor { number, text, open }) = live.cursor.clone() {
                    if let Some(text) = text {
                        self.tasks.set_cursor(live.timer_id, text);
                    }
                    let attempts = live.task.map_or(0, |task| task.attempts);
                    if let Some(open) = open.filter(|_| number == attempts.saturating_add(1)) {
                        self.tasks.begin(live.timer_id, open);
                    }
                }
                if let Some(run) = &live.run {
                    self.tasks.set_run(live.timer_id, RunProgress::clone(run));
                }
            }
        }
        for mark in cancel_marks {
            let live = self.table.live(lane, mark.timer_id);
            if live.is_some_and(|live| mark.covers(live.version)) {
                self.end_task(lane, mark.timer_id);
                self.table.end(lane, mark.timer_id);
            }
            self.table.put_cancel_mark(lane, mark);
        }
    }

    /// The version of a record is pending from now on, and replaces these.
    pub(super) fn make_live(
        &mut self,
        entry: &PendingRecord,
        timer_id: TimerId,
        label: Option<&str>,
        supersedes: Option<Replaced>,
    ) {
        let lane = entry.source.lane;
        let at = (entry.version(), entry.due);
        self.table.put_live(lane, timer_id, at, (&entry.target, label));
        self.table.put_replaced(lane, timer_id, supersedes);
        self.counts.superseded += u64::from(supersedes.is_some());
        self.duplicates.come_after(timer_id, entry.version());
        self.here(lane, timer_id);
    }

    /// A record of the pending version of a timer is here.
    pub(super) fn here(&mut self, lane: Lane, timer_id: TimerId) {
        self.table.set_here(lane, timer_id, true);
        self.calling.found(lane, timer_id);
    }

    /// A record of the pending version of a timer stands in a tier, and nowhere else.
    pub(super) fn stands_in_tier(&mut self, lane: Lane, timer_id: TimerId) {
        self.table.set_here(lane, timer_id, false);
    }

    /// A version is no longer pending.
    pub(super) fn end(&mut self, now: UnixMillis, lane: Lane, timer_id: TimerId) {
        let live = self.table.live(lane, timer_id);
        let at = live.map_or(now, |live| now.max(live.version.first_appended));
        self.past.note(lane, timer_id, at);
        self.end_task(lane, timer_id);
        self.table.end(lane, timer_id);
        self.retention.note(timer_id);
    }

    /// The record of a pending version is gone.
    pub(super) fn lose(&mut self, now: UnixMillis, lane: Lane, timer_id: TimerId) {
        self.counts.lost += 1;
        self.end(now, lane, timer_id);
    }

    // Tasks.

    /// Takes in how far a task is by what is committed.
    fn know_task(&mut self, lane: Lane, live: &Live, progress: Progress) {
        // A run that is creating its shards has begun, and has had no turn yet.
        if progress.turn == 0 && progress.attempts == 0 && !progress.begun {
            return;
        }
        let label = live.label.as_deref().unwrap_or_default();
        let scope = scope_of(label, &live.target);
        self.tasks.set(lane, live.timer_id, scope.as_ref(), progress);
        // No record of it stands in the line.
        self.table.set_here(lane, live.timer_id, progress.held.is_some());
    }

    /// Whose limits a pending task is under, if it makes calls.
    pub(super) fn scope(&self, lane: Lane, timer_id: TimerId) -> Option<Scope> {
        let live = self.table.live(lane, timer_id)?;
        let (target, label) = self.table.words(live);
        scope_of(label.unwrap_or_default(), target)
    }

    /// A task is that far now.
    pub(super) fn set_progress(&mut self, lane: Lane, timer_id: TimerId, progress: Progress) {
        let scope = self.scope(lane, timer_id);
        self.tasks.set(lane, timer_id, scope.as_ref(), progress);
    }

    /// A task waits in a tier though it is overdue, or no more.
    pub(super) fn set_put_off(&mut self, lane: Lane, timer_id: TimerId, is_put_off: bool) {
        if !self.table.set_put_off(lane, timer_id, is_put_off) {
            return;
        }
        let Some(live) = self.table.live(lane, timer_id) else { return };
        let (target, label) = self.table.words(live);
        let label = label.unwrap_or_default();
        let scope = scope_of(label, target).unwrap_or_else(|| topics_of(label));
        self.tasks.put_off(lane, &scope, is_put_off);
    }

    fn end_task(&mut self, lane: Lane, timer_id: TimerId) {
        self.set_put_off(lane, timer_id, false);
        self.tasks.forget(timer_id);
        if self.tasks.progress(timer_id).is_some() {
            let scope = self.scope(lane, timer_id);
            self.tasks.end(lane, timer_id, scope.as_ref());
        }
    }

    /// A cancel mark is written.
    pub(super) fn put_cancel_mark(&mut self, lane: Lane, mark: CancelMark) {
        self.table.put_cancel_mark(lane, mark);
    }

    /// Forgets cancel marks whose time is over, in the lanes that may forget; at most so many.
    pub(super) fn forget(
        &mut self,
        now: UnixMillis,
        most: usize,
        may: impl Fn(Lane) -> bool,
    ) -> Vec<(Lane, TimerId)> {
        self.table.forget(now, most, may)
    }

    /// The index has listed the expired timers of a lane. Returns those to forget; `None`: too much has happened meanwhile, or
    /// there was no such query.
    pub(super) fn expired(&mut self, lane: Lane, timers: Vec<TimerId>) -> Option<Vec<TimerId>> {
        let table = &self.table;
        let is_live = |timer_id| table.live(lane, timer_id).is_some();
        self.retention.answered(lane, timers, is_live)
    }

    // Versions.

    /// Versions that come by a recreated intake are compared by their times from now on: what is remembered may be of the
    /// log that was there before.
    pub(super) fn recreate(&mut self) {
        self.is_recreated = true;
    }

    pub(super) fn is_recreated(&self) -> bool {
        self.is_recreated
    }

    /// The version of a record as it is remembered. An older program did not write the topic into versions: one of that form
    /// means the same record.
    pub(super) fn recognised(&self, entry: &PendingRecord, past: Option<Ended>) -> Version {
        let Some(timer_id) = entry.timer_id else { return entry.version() };
        let old = entry.version().without_topic();
        let live = self.table.live(entry.source.lane, timer_id).map(|live| live.version);
        let is_old = live == Some(old) || past.is_some_and(|ended| ended.version == old);
        if is_old { old } else { entry.version() }
    }

    /// Whether a record may go on: it is the live version of its timer, or of none.
    pub(super) fn stands(&self, entry: &PendingRecord) -> bool {
        entry.named().is_none_or(|named| self.is_standing(entry.source.lane, named))
    }

    /// The same, of what is left of it.
    pub(super) fn is_standing(&self, lane: Lane, named: Named) -> bool {
        let Named { timer_id, version, decided, turn, .. } = named;
        if let Some(turn) = turn {
            let progress = self.tasks.progress(timer_id).unwrap_or_default();
            if progress.turn != turn || progress.held.is_some() {
                return false;
            }
        }
        if decided {
            return self.table.live(lane, timer_id).is_some_and(|live| live.version == version);
        }
        !self.table.cancel_mark(lane, timer_id).is_some_and(|mark| mark.covers(version))
    }

    // Duplicates.

    /// A record has become a duplicate.
    pub(super) fn count_duplicate(&mut self) {
        self.counts.duplicates += 1;
    }

    /// Whether another copy of a duplicate waits in a tier.
    pub(super) fn is_copy(&self, timer_id: TimerId, entry: &PendingRecord) -> bool {
        self.duplicates.is_copy(timer_id, entry.version(), entry.hops)
    }

    /// Remembers a duplicate of this version, which waits in a tier; false: there is no room. `is_new`: it may take the
    /// place of another one.
    pub(super) fn set_aside(
        &mut self,
        timer_id: TimerId,
        of: Version,
        entry: &PendingRecord,
        is_new: bool,
    ) -> bool {
        let has_room = self.duplicates.make_room(timer_id, is_new);
        if has_room {
            self.duplicates.note(timer_id, of, entry);
        }
        has_room
    }

    /// A duplicate has come up, and is being decided.
    pub(super) fn no_more_aside(&mut self, entry: &PendingRecord) {
        if let Some(timer_id) = entry.timer_id.filter(|_| entry.origin == Origin::Duplicate) {
            self.duplicates.forget(timer_id, entry.version());
        }
    }

    /// A cancel came late: this version is its own. If nothing is pending, the first of what was taken for a duplicate and was submitted after the
    /// cancel is pending now.
    pub(super) fn follow(&mut self, lane: Lane, mark: &CancelMark, by: Version) -> Option<Note> {
        if self.table.live(lane, mark.timer_id).is_some() {
            return None;
        }
        let note = self.duplicates.take_first(mark, by)?;
        let words = (&*note.target, note.label.as_deref());
        self.table.put_live(lane, mark.timer_id, (note.version, note.due), words);
        Some(note)
    }

    // Records that are gone.

    /// Begins to search a lane for the records of its pending timers; says how many there are.
    pub(super) fn miss(&mut self, lane: Lane) -> usize {
        self.table.miss(lane)
    }

    /// A record of a version was found; `None`: of some version.
    pub(super) fn found(&mut self, lane: Lane, timer_id: TimerId, version: Option<Version>) {
        self.table.found(lane, timer_id, version);
    }
}

/// The timer change of a version that a cancel ends; key and id are those of the cancel.
pub(super) fn fields_of_cancel<'a>(
    cancel: &'a PendingRecord,
    state: TimerState,
    since: UnixMillis,
    (version, due): (Version, UnixMillis),
    (target, label): (&'a str, Option<&'a str>),
) -> TimerFields<'a> {
    let directive = header::read(cancel.record.headers()).unwrap_or_default();
    TimerFields {
        state,
        version,
        supersedes: None,
        due,
        since,
        target,
        label: label.map(str::as_bytes),
        id: directive.id.unwrap_or_default(),
        key: cancel.record.key(),
        code: None,
        task: None,
    }
}

/// The answer for the caller that waits for it, if there is one.
pub(super) fn answer(entry: &PendingRecord, outcome: Outcome) -> Option<Answer> {
    let PendingRecord { source, offset, timer_id: Some(timer_id), origin, .. } = *entry else {
        return None;
    };
    origin.is_command().then(|| Answer { source, offset, timer_id, about: about(entry), outcome })
}

/// What a command is about.
pub(super) fn about(entry: &PendingRecord) -> About {
    match entry.origin {
        Origin::Replace(Some(version)) => About::Replace(version, entry.version()),
        Origin::Cancel(Some(version)) => About::Version(version),
        _ => About::Before(entry.version()),
    }
}

#[cfg(test)]
mod tests;
