//! The life of timers: records with an id are created, replaced, cancelled, delivered. Each transition is decided once.
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

use super::super::header::{self, Code, Refusal};
use super::super::messages::{Answer, ChangeReason, Outcome};
use super::super::setup::Tracking;
use super::super::timers::{
    About, CancelMark, Ended, Live, Pending, Remembered, Replaced, TimerId, TimerState, Told,
    Version, VersionBound,
};
use super::super::verdict::{self, Origin, PendingRecord, StateChange, Verdict, refusal};
use super::{Lane, LaneEngine, Millis, Offset, PendingWrite, Record, Source, TopicId, UnixMillis};

/// A cancel mark is kept for this much longer than until its version is due, at least: a late record of it may still come,
/// and in `at_least_once` come again.
pub(super) const CANCEL_MARK_SLACK: Millis = Millis(600_000);

/// What to do with a record with an id that was let go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// Nothing is decided about it: it has no id, or timers are not tracked.
    None,
    /// It is the live version.
    Live,
    /// Nothing is pending: it is the live version from now on.
    Create,
    /// The index has lost this timer: treat it as pending.
    Revive,
    /// The live version from now on: it replaces that one.
    Replace(Option<Pending>),
    /// A cancel mark covers it.
    Void,
    /// The same, by a cancel that had found nothing: it was about this one, and nobody knows of it yet.
    Cancelled,
    /// Another version is live: there is nothing to do.
    Duplicate,
    /// The same, unless a cancel comes late that was submitted between that version, which may have ended since, and this one.
    Aside(Version),
    /// It came too late to replace anything, or that is gone.
    Idle(Outcome),
}

/// A version of a timer that is about to leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub(super) timer_id: TimerId,
    pub(super) version: Version,
    /// It was the live one when it was let go.
    pub(super) decided: bool,
}

impl LaneEngine {
    fn is_full(&self) -> bool {
        self.setup.limits.tracking == Tracking::Full
    }

    /// Whether a record may go on: it is the live version of its timer, or of none.
    pub(super) fn stands(&self, entry: &PendingRecord) -> bool {
        stands(&self.timers, entry)
    }

    /// Versions that come by a recreated intake are compared by their times: what is remembered may be of the log that was
    /// there before.
    pub(super) fn with_version(&self, source: Source, mut verdict: Verdict) -> Verdict {
        if self.is_recreated
            && source.topic == TopicId(0)
            && let Verdict::Wait(entry) | Verdict::Cancel(entry) = &mut verdict
        {
            let mark = self.setup.topics.mark(source.topic);
            entry.order.offset = Version::not_in_log_order(entry.version().offset_in_log(), mark);
        }
        verdict
    }

    /// An older program did not write the topic into versions. A remembered version of that form means the same record.
    pub(super) fn recognise(&self, entry: &mut PendingRecord, past: Option<Ended>) {
        let (Some(timer_id), old) = (entry.timer_id, entry.version().without_topic()) else {
            return;
        };
        let live = self.timers.live(entry.source.lane, timer_id).map(|live| live.version);
        if live == Some(old) || past.is_some_and(|ended| ended.version == old) {
            entry.order.offset = old.offset;
        }
    }

    /// Decides the fate of a record that its lane let go. `past`: what has ended of its timer, if that counts for it.
    pub(super) fn decide_fate(
        &self,
        now: UnixMillis,
        entry: &PendingRecord,
        past: Option<Ended>,
    ) -> Fate {
        let Some(timer_id) = entry.timer_id else { return Fate::None };
        let (lane, version) = (entry.source.lane, entry.version());
        let live = if self.is_full() { self.timers.live(lane, timer_id) } else { None };
        if live.is_some_and(|live| live.version == version) {
            return Fate::Live;
        }
        let mark = self.timers.cancel_mark(lane, timer_id);
        if let Some(mark) = mark.filter(|mark| mark.covers(version)) {
            if entry.origin == Origin::Duplicate {
                return Fate::Duplicate;
            }
            // The remembered version is one of three: this version itself, read again; a newer one; or one that this is
            // a duplicate of.
            let is_known =
                past.is_some_and(|ended| ended.version == version || ended.counts_for(version));
            let is_first = !mark.seen && !is_known && self.past_counts(entry);
            return if is_first { Fate::Cancelled } else { Fate::Void };
        }
        // Where a batch failed in at_least_once it may be said of a version itself that it ended.
        let past = past.filter(|ended| ended.version != version);
        if !self.is_full() {
            return match entry.origin {
                Origin::Replace(_) => Fate::Replace(None),
                // It was one while all was tracked; a cancel from before it says that it is none.
                Origin::Duplicate if !mark.is_some_and(|mark| mark.cancels) => Fate::Duplicate,
                _ => Fate::None,
            };
        }
        let is_parted = |ended: Ended| mark.is_some_and(|mark| mark.parts(ended.version, version));
        match (entry.origin, live) {
            (Origin::Create | Origin::Tier | Origin::Duplicate, Some(live)) => {
                self.duplicate(now, entry, live.version)
            }
            (Origin::Duplicate, None) => match past {
                Some(ended) if is_parted(ended) => Fate::Create,
                Some(ended) => self.duplicate(now, entry, ended.version),
                None => Fate::Duplicate,
            },
            (Origin::Create | Origin::Tier, None)
                if let Some(ended) = past
                    && ended.counts_for(version)
                    && !is_parted(ended) =>
            {
                self.duplicate(now, entry, ended.version)
            }
            (Origin::Create | Origin::Tier, None) => Fate::Create,
            (Origin::Replace(None), None)
                if past.is_some_and(|ended| version.is_before(ended.version)) =>
            {
                Fate::Idle(Outcome::Superseded)
            }
            (Origin::Replace(None), None) => Fate::Replace(None),
            (Origin::Hop, None) => Fate::Revive,
            (Origin::Hop, Some(_)) => Fate::Duplicate,
            (Origin::Replace(None), Some(live)) if live.version.is_before(version) => {
                Fate::Replace(Some(live))
            }
            (Origin::Replace(Some(meant)), Some(live))
                if live.version == meant && meant.is_before(version) =>
            {
                Fate::Replace(Some(live))
            }
            (Origin::Replace(None), Some(_)) => Fate::Idle(Outcome::Superseded),
            (Origin::Replace(Some(_)), _) => {
                Fate::Idle(self.missed((lane, timer_id), about(entry)))
            }
            // It has its own way.
            (Origin::Cancel(_), _) => Fate::Idle(Outcome::Absent),
        }
    }

    /// What a command comes to that is about what is not pending. Only of a version that was replaced by the pending one this
    /// is known here; whether one was delivered or cancelled no mark tells.
    fn missed(&self, (lane, timer_id): (Lane, TimerId), about: About) -> Outcome {
        let was = |version| self.timers.replaced(lane, timer_id).is_some_and(|of| of.has(version));
        match about {
            About::Replace(version, own) if was(version) && was(own) => Outcome::Replaced,
            About::Version(version) | About::Replace(version, _) if was(version) => {
                Outcome::Superseded
            }
            _ => Outcome::Absent,
        }
    }

    /// Drops a record that nothing is to be done with; gives back any other.
    pub(super) fn drop_noop(
        &mut self,
        entry: Box<PendingRecord>,
        fate: Fate,
        now: UnixMillis,
    ) -> Option<Box<PendingRecord>> {
        let outcome = match fate {
            Fate::None
            | Fate::Live
            | Fate::Create
            | Fate::Revive
            | Fate::Replace(_)
            | Fate::Aside(_) => {
                return Some(entry);
            }
            Fate::Void | Fate::Cancelled => match (entry.timer_id, entry.origin) {
                (Some(timer_id), Origin::Replace(Some(_))) => {
                    self.missed((entry.source.lane, timer_id), about(&entry))
                }
                _ => Outcome::Superseded,
            },
            Fate::Duplicate => {
                // One that was set aside was counted then.
                let is_new = !matches!(entry.origin, Origin::Hop | Origin::Duplicate);
                self.figures.duplicates += u64::from(is_new);
                Outcome::Absent
            }
            Fate::Idle(outcome) => outcome,
        };
        let answer = answer(&entry, outcome);
        match fate {
            Fate::Void => self.suppress(now, *entry, answer),
            Fate::Cancelled => self.miss(now, *entry, answer),
            _ => self.finish(&entry, answer),
        }
        None
    }

    /// Applies what was decided about a record that goes on.
    ///
    /// # Errors
    /// It is one too many, and is to be dead-lettered.
    pub(super) fn apply(
        &mut self,
        now: UnixMillis,
        entry: &mut PendingRecord,
        fate: Fate,
    ) -> Result<(), Refusal> {
        let (lane, version) = (entry.source.lane, entry.version());
        let Some(timer_id) = entry.timer_id else { return Ok(()) };
        if entry.origin == Origin::Duplicate {
            // It goes on as any other.
            entry.origin = Origin::Hop;
        }
        match fate {
            Fate::Live => {
                entry.decided = true;
                // Read again: it was answered, or nobody asks any more; but in a batch that failed it was not.
                let answer = answer(entry, Outcome::Replaced);
                self.writes.extend(answer.map(PendingWrite::answer));
            }
            Fate::Create | Fate::Revive => {
                if !matches!(fate, Fate::Revive) {
                    self.room()?;
                }
                self.make_live(now, entry, timer_id, None)?;
            }
            Fate::Replace(old) if self.is_full() => {
                self.room()?;
                let answer = answer(entry, old.map_or(Outcome::Created, |_| Outcome::Replaced));
                let before = self.timers.replaced(lane, timer_id);
                let replaced = old.map(|old| Replaced::by(old.version, before));
                self.make_live(now, entry, timer_id, replaced)?;
                if let Some(old) = old {
                    self.figures.superseded += 1;
                    let mark = self.mark_for_pending(now, (lane, timer_id), version, old);
                    self.writes.keep_with_next();
                    self.write_cancel_mark(lane, mark, ChangeReason::Superseded);
                }
                self.writes.reply_with(answer);
            }
            Fate::Replace(_) => {
                self.room()?;
                let mark = self.mark_for_unknown(now, (lane, timer_id), version, false);
                if self.timers.cancel_mark(lane, timer_id) != Some(mark) {
                    self.write_cancel_mark(lane, mark, ChangeReason::Superseded);
                }
                self.writes.reply_with(answer(entry, Outcome::Recorded));
            }
            _ => {}
        }
        Ok(())
    }

    fn make_live(
        &mut self,
        now: UnixMillis,
        entry: &mut PendingRecord,
        timer_id: TimerId,
        supersedes: Option<Replaced>,
    ) -> Result<(), Refusal> {
        entry.decided = true;
        let directive = header::read(entry.record.headers())?;
        let stage = StateChange { supersedes, ..StateChange::new(TimerState::Delay, now) };
        let label = directive.label.and_then(|label| std::str::from_utf8(label).ok());
        let lane = entry.source.lane;
        let at = (entry.version(), entry.due);
        self.timers.put_live(lane, timer_id, at, (&entry.target, label));
        self.timers.put_replaced(lane, timer_id, supersedes);
        self.duplicates.come_after(timer_id, entry.version());
        self.here(lane, timer_id);
        if let Some(record) = verdict::said(entry, &directive, stage) {
            self.writes.push(PendingWrite::timer_change(lane, record, ChangeReason::Created));
        }
        Ok(())
    }

    /// Whether one more timer may be remembered.
    fn room(&self) -> Result<(), Refusal> {
        self.room_for(self.setup.limits.tracked_max)
    }

    fn room_for(&self, most: usize) -> Result<(), Refusal> {
        let len = self.timers.len();
        if len < most {
            return Ok(());
        }
        let detail = format!("{len} timers are remembered already; max-tracked allows no more");
        Err(refusal(Code::TooManyTimers, detail))
    }

    /// A cancel was let go by an intake of its lane.
    pub(super) fn cancel(&mut self, now: UnixMillis, entry: PendingRecord) {
        let (Some(timer_id), Origin::Cancel(meant)) = (entry.timer_id, entry.origin) else {
            return;
        };
        let (lane, version) = (entry.source.lane, entry.version());
        let mut before = meant.map_or(version, Version::next);
        let old = self.timers.cancel_mark(lane, timer_id);
        if !self.is_full() {
            if old.is_none()
                && let Err(refusal) = self.room()
            {
                return self.refuse(now, entry, refusal);
            }
            let mark = self.mark_for_unknown(now, (lane, timer_id), before, meant.is_none());
            let answer = answer(&entry, Outcome::Recorded);
            if old == Some(mark) {
                // It is read again. To write all marks again at each new start may take longer than until the next one.
                return self.finish(&entry, answer);
            }
            self.write_cancel_mark(lane, mark, ChangeReason::Recorded);
            self.writes.complete_with((entry.source, entry.offset), entry.record);
            return self.writes.reply_with(answer);
        }
        let live = self.timers.live(lane, timer_id);
        let ends = live.filter(|live| match meant {
            Some(meant) => live.version == meant,
            None => live.version.is_before(version),
        });
        if let Some(live) = ends {
            if before.is_not_in_log_order() && !version.is_not_in_log_order() {
                // The clock that its time is of may be ahead of the lane's. What comes straight to the lane after the cancel
                // is not meant, whatever its time is; what came before it is not pending any more, since that version is.
                let first_appended = live.version.first_appended + Millis(1);
                before = Version { first_appended, offset: version.offset };
            }
            let mark = self.mark_for_pending(now, (lane, timer_id), before, live);
            let mark = CancelMark { cancels: meant.is_none(), ..mark };
            self.write_cancelled(now, (lane, timer_id), live, &entry);
            self.writes.keep_with_next();
            self.write_cancel_mark(lane, mark, ChangeReason::Recorded);
            self.follow(now, lane, &mark, &entry);
            let answer = answer(&entry, Outcome::Cancelled);
            self.writes.complete_with((entry.source, entry.offset), entry.record);
            return self.writes.reply_with(answer);
        }
        // It may be about a record that its producer wrote to a tier, which is not known before it comes up.
        let known = old.map(|old| old.before).unwrap_or_default();
        if meant.is_none() && known.or(version) != known {
            // Those for which nothing was pending shall not keep others from being pending.
            if let (None, Err(refusal)) =
                (old, self.room_for(self.setup.limits.tracked_max / 4 * 3))
            {
                return self.refuse(now, entry, refusal);
            }
            let until = now + self.longest_hold() + CANCEL_MARK_SLACK;
            let until = old.map_or(until, |old| until.max(old.until));
            let before = known.or(version);
            let mark = CancelMark {
                timer_id,
                before,
                until,
                seen: false,
                may_repeat: false,
                cancels: true,
            };
            self.write_cancel_mark(lane, mark, ChangeReason::Recorded);
            self.follow(now, lane, &mark, &entry);
            let answer = answer(&entry, Outcome::Absent);
            self.writes.complete_with((entry.source, entry.offset), entry.record);
            return self.writes.reply_with(answer);
        }
        let answer = answer(&entry, self.missed((lane, timer_id), about(&entry)));
        self.finish(&entry, answer);
    }

    fn longest_hold(&self) -> Millis {
        self.setup.topics.ladder.tiers().last().map(|tier| tier.hold).unwrap_or_default()
    }

    /// The mark that covers everything before a version, and what was live until now.
    fn mark_for_pending(
        &self,
        now: UnixMillis,
        (lane, timer_id): (Lane, TimerId),
        before: Version,
        live: Pending,
    ) -> CancelMark {
        let mut until = live.due.max(now) + CANCEL_MARK_SLACK;
        if self.timers.cancel_marks_len() < self.setup.limits.tracked_max / 4 {
            // An older one may have been written to a tier, and come up after this one would have been due.
            until = until.max(now + self.longest_hold() + CANCEL_MARK_SLACK);
        }
        let old = self.timers.cancel_mark(lane, timer_id);
        CancelMark {
            timer_id,
            before: old.map(|old| old.before).unwrap_or_default().or(before),
            until: old.map_or(until, |old| until.max(old.until)),
            seen: true,
            may_repeat: false,
            cancels: false,
        }
    }

    /// The same, where it is not known which records may still come.
    fn mark_for_unknown(
        &self,
        now: UnixMillis,
        (lane, timer_id): (Lane, TimerId),
        before: Version,
        cancels: bool,
    ) -> CancelMark {
        let limits = &self.setup.limits;
        // Nothing from before it is due later than that; and there is some time for one that is late.
        let until = (before.first_appended + limits.max_delay).max(now) + limits.history;
        match self.timers.cancel_mark(lane, timer_id) {
            None => {
                let before = VersionBound::of(before);
                CancelMark { timer_id, before, until, seen: false, may_repeat: false, cancels }
            }
            // An older one that comes late: it was moved here, or is read again.
            Some(old) if old.before.or(before) == old.before => old,
            Some(old) => CancelMark {
                timer_id,
                before: old.before.or(before),
                until: until.max(old.until),
                seen: false,
                // What the older one was about may not have been seen.
                may_repeat: !old.seen || old.may_repeat,
                cancels,
            },
        }
    }

    /// Suppresses a record that a cancel mark covers: it never gets to its target.
    pub(super) fn suppress(
        &mut self,
        now: UnixMillis,
        entry: PendingRecord,
        answer: Option<Answer>,
    ) {
        let named = entry.timer_id.map(|timer_id| (timer_id, entry.version()));
        self.suppress_record(now, (entry.source, entry.offset), named, entry.record);
        self.writes.reply_with(answer);
    }

    /// Suppresses a record that was cancelled before it came, and writes that it was cancelled.
    fn miss(&mut self, now: UnixMillis, entry: PendingRecord, answer: Option<Answer>) {
        let lane = entry.source.lane;
        let directive = header::read(entry.record.headers()).unwrap_or_default();
        let said = verdict::said(&entry, &directive, StateChange::new(TimerState::Cancelled, now));
        if let (Some(timer_id), Some(record)) = (entry.timer_id, said) {
            self.end(now, lane, timer_id);
            self.writes.push(PendingWrite::timer_change(lane, record, ChangeReason::Missed));
            self.writes.keep_with_next();
        }
        self.suppress(now, entry, answer);
    }

    /// The same, where only this is left of it.
    pub(super) fn suppress_record(
        &mut self,
        now: UnixMillis,
        (source, offset): (Source, Offset),
        named: Option<(TimerId, Version)>,
        record: Record,
    ) {
        let mark = named.and_then(|(timer_id, version)| {
            self.timers.cancel_mark(source.lane, timer_id).filter(|mark| mark.covers(version))
        });
        match mark.filter(|mark| !mark.seen || !self.is_full()) {
            Some(mark) => {
                // Another submit of it, by a producer that did not hear of the first, comes soon or never.
                let soon = now + self.setup.limits.history;
                let until = if self.is_full() || mark.may_repeat { mark.until } else { soon };
                self.write_cancel_mark(
                    source.lane,
                    CancelMark { until, seen: true, ..mark },
                    ChangeReason::Suppressed,
                );
                self.writes.complete_with((source, offset), record);
            }
            None => self.writes.push(PendingWrite::done((source, offset), &record)),
        }
    }

    /// Nothing is to be done with a record.
    pub(super) fn finish(&mut self, entry: &PendingRecord, answer: Option<Answer>) {
        self.writes.push(PendingWrite::done((entry.source, entry.offset), &entry.record));
        self.writes.reply_with(answer);
    }

    /// A record of the pending version of a timer is here.
    pub(super) fn here(&mut self, lane: Lane, timer_id: TimerId) {
        self.timers.set_here(lane, timer_id, true);
        self.calling.met(lane, timer_id);
    }

    /// A version is pending no more.
    pub(super) fn end(&mut self, now: UnixMillis, lane: Lane, timer_id: TimerId) {
        let live = self.timers.live(lane, timer_id);
        let at = live.map_or(now, |live| now.max(live.version.first_appended));
        self.past.note(lane, timer_id, at);
        self.timers.end(lane, timer_id);
        self.retention.note(timer_id);
    }

    /// Ends the live version with its dead letter, and gives the record that says so; none for any other record.
    pub(super) fn end_dead(
        &mut self,
        now: UnixMillis,
        entry: &PendingRecord,
        code: Code,
    ) -> Option<Record> {
        let timer_id = entry.timer_id.filter(|_| entry.decided)?;
        let directive = header::read(entry.record.headers()).ok()?;
        let state = if code == Code::Expired { TimerState::Expired } else { TimerState::Dead };
        let supersedes = self.timers.replaced(entry.source.lane, timer_id);
        // The leader's clock may be ahead of ours; what is dead since before it came never was pending.
        let since = now.max(entry.first_appended);
        let stage = StateChange { code: Some(code), supersedes, ..StateChange::new(state, since) };
        let record = verdict::said(entry, &directive, stage);
        self.end(now, entry.source.lane, timer_id);
        record
    }

    /// The timer change for a record that is refused before it was pending. The timer counts as dead since before the
    /// record came, which tells this record from the version that was pending. There is no change if another version is
    /// pending, or if the record creates no version.
    pub(super) fn unborn(&self, entry: &PendingRecord, code: Code) -> Option<(TimerId, Record)> {
        let makes = !matches!(entry.origin, Origin::Cancel(_) | Origin::Replace(Some(_)));
        let timer_id = entry.timer_id.filter(|_| makes && !entry.decided)?;
        if !self.is_news(entry.source.lane, timer_id) {
            return None;
        }
        let directive = header::read(entry.record.headers()).ok()?;
        let state = if code == Code::Expired { TimerState::Expired } else { TimerState::Dead };
        let stage = StateChange {
            code: Some(code),
            ..StateChange::new(state, verdict::before(entry.first_appended))
        };
        Some((timer_id, verdict::said(entry, &directive, stage)?))
    }

    /// Whether it may be said what became of a record of this timer that was refused.
    pub(super) fn is_news(&self, lane: Lane, timer_id: TimerId) -> bool {
        self.is_full() && self.timers.live(lane, timer_id).is_none()
    }

    fn write_cancelled(
        &mut self,
        now: UnixMillis,
        (lane, timer_id): (Lane, TimerId),
        live: Pending,
        cancel: &PendingRecord,
    ) {
        let (target, label) = self.timers.words(live);
        let (at, words) = ((live.version, live.due), (target, label));
        let supersedes = self.timers.replaced(lane, timer_id);
        let told = Told { supersedes, ..told(cancel, TimerState::Cancelled, now, at, words) };
        let record = verdict::timer_record(timer_id, &told);
        self.end(now, lane, timer_id);
        self.writes.push(PendingWrite::timer_change(lane, record, ChangeReason::Cancelled));
    }

    fn write_cancel_mark(&mut self, lane: Lane, mark: CancelMark, reason: ChangeReason) {
        self.timers.put_cancel_mark(lane, mark);
        let record = Record::new(
            Some(&CancelMark::key(mark.timer_id)),
            Some(&mark.value()),
            std::iter::empty(),
        );
        self.writes.push(PendingWrite::timer_change(lane, record, reason));
    }

    /// Takes in a part of a lane's timers.
    pub(super) fn know(&mut self, lane: Lane, live: &[Live], cancel_marks: Vec<CancelMark>) {
        // In at_least_once an owner that is none any more may have written that it is pending after another one had ended it.
        if self.is_full() {
            for live in live {
                let mark = self.timers.cancel_mark(lane, live.timer_id);
                if !mark.is_some_and(|mark| mark.covers(live.version)) {
                    self.timers.know_live(lane, live);
                }
            }
        }
        for mark in cancel_marks {
            let live = self.timers.live(lane, mark.timer_id);
            if live.is_some_and(|live| mark.covers(live.version)) {
                self.timers.end(lane, mark.timer_id);
            }
            self.timers.put_cancel_mark(lane, mark);
        }
    }
}

/// Whether a record may go on: it is the live version of its timer, or of none.
pub(super) fn stands(timers: &Remembered, entry: &PendingRecord) -> bool {
    let Some(timer_id) = entry.timer_id else { return true };
    let named = Named { timer_id, version: entry.version(), decided: entry.decided };
    is_standing(timers, entry.source.lane, named)
}

/// The same, of what is left of it.
pub(super) fn is_standing(timers: &Remembered, lane: Lane, named: Named) -> bool {
    let Named { timer_id, version, decided } = named;
    if decided {
        return timers.live(lane, timer_id).is_some_and(|live| live.version == version);
    }
    !timers.cancel_mark(lane, timer_id).is_some_and(|mark| mark.covers(version))
}

/// What a cancel leads to for a version, with the names that the cancel has for its timer.
pub(super) fn told<'a>(
    cancel: &'a PendingRecord,
    state: TimerState,
    since: UnixMillis,
    (version, due): (Version, UnixMillis),
    (target, label): (&'a str, Option<&'a str>),
) -> Told<'a> {
    let directive = header::read(cancel.record.headers()).unwrap_or_default();
    Told {
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
fn about(entry: &PendingRecord) -> About {
    match entry.origin {
        Origin::Replace(Some(version)) => About::Replace(version, entry.version()),
        Origin::Cancel(Some(version)) => About::Version(version),
        _ => About::Before(entry.version()),
    }
}

#[cfg(test)]
mod tests;
