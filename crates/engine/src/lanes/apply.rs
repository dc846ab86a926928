//! Carries decisions out: the one place where a record that was admitted changes timers, and gets its way.
//!
//! # Invariants
//! 1. A record is in exactly one place afterwards: it waits, it hops, or its offset finishes with a write.
//! 2. A decision and the writes that follow from it are one step: nothing else is decided between them.

use std::sync::Arc;

use super::super::header::{self, Refusal};
use super::super::hold::Held;
use super::super::messages::{
    Action, Answer, ChangeReason, Destination, HeaderRewrite, Outcome, Produce,
};
use super::super::setup::Tracking;
use super::super::state::Kind;
use super::super::timers::{
    CancelMark, Pending, Replaced, TimerFields, TimerId, TimerState, Version,
};
use super::super::verdict::{self, Origin, PendingRecord, StateChange, Verdict};
use super::admission::{Admission, Change, Facts, GoOn};
use super::duplicates::HOPS_MAX;
use super::hops::last_for_overdue;
use super::lifecycle::{answer, fields_of_cancel};
use super::past::{History, Waiting};
use super::writes::PendingWrite;
use super::{Lane, LaneEngine, Millis, Offset, Record, Source, TopicId, UnixMillis};

impl LaneEngine {
    /// All that is known when a record is decided about.
    pub(super) fn facts(&self) -> Facts<'_> {
        let Self { setup, timers, poison, targets, partitions, .. } = self;
        Facts { setup, timers, poison, targets, partitions }
    }

    pub(super) fn is_full(&self) -> bool {
        self.setup.limits.tracking == Tracking::Full
    }

    /// Takes a record that its partition let go.
    pub(super) fn accept(
        &mut self,
        now: UnixMillis,
        source: Source,
        held: Held,
        out: &mut Vec<Action>,
    ) {
        let setup = Arc::clone(&self.setup);
        let Held { offset, appended, record } = held;
        let at = (source, offset);
        if self.is_of_task(source, &record) {
            return self.accept_task(now, at, appended, record, out);
        }
        match verdict::accept(&setup, &self.targets, at, appended, record) {
            Verdict::Cancel(entry) | Verdict::Wait(entry) => {
                let entry = self.with_version(entry);
                self.admit(now, entry, out);
            }
            Verdict::Move(entry, lane) => {
                let admission = self.facts().decide_move(&entry, lane);
                self.apply(now, entry, admission, out);
            }
            Verdict::Refuse(record, refusal) => {
                self.refuse_broken(now, at, appended, record, refusal);
            }
        }
    }

    /// Versions that come by a recreated intake are compared by their times: what is remembered may be of the log that was
    /// there before.
    pub(super) fn with_version(&self, mut entry: Box<PendingRecord>) -> Box<PendingRecord> {
        if self.timers.is_recreated() && entry.source.topic == TopicId(0) {
            let mark = self.setup.topics.mark(entry.source.topic);
            entry.order.offset = Version::not_in_log_order(entry.version().offset_in_log(), mark);
        }
        entry
    }

    /// Admits a record of this lane, once all is known that counts for that.
    pub(super) fn admit(
        &mut self,
        now: UnixMillis,
        mut entry: Box<PendingRecord>,
        out: &mut Vec<Action>,
    ) {
        if entry.task.is_some() || self.is_of_task(entry.source, &entry.record) {
            return self.admit_task(now, entry, out);
        }
        let Some(past) = (match self.facts().history(now, &entry) {
            History::Known(past) => Some(past),
            History::Unknown => None,
        }) else {
            return self.ask_for(now, entry);
        };
        entry.order.offset = self.timers.recognised(&entry, past).offset;
        let admission = self.facts().decide(now, &entry, past);
        self.apply(now, entry, admission, out);
    }

    /// Carries out what was decided about a record.
    fn apply(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
        admission: Admission,
        out: &mut Vec<Action>,
    ) {
        use Admission::{Move, RefuseMove, SetAside};
        if !matches!(admission, SetAside(_) | Move(..) | RefuseMove(_)) {
            self.timers.no_more_aside(&entry);
        }
        match admission {
            Admission::GoOn(go_on) => self.go_on(now, entry, go_on, out),
            Admission::Finish(outcome) => self.finish(&entry, answer(&entry, outcome)),
            Admission::Duplicate => {
                // One that was set aside was counted then.
                if !matches!(entry.origin, Origin::Hop | Origin::Duplicate) {
                    self.timers.count_duplicate();
                }
                self.finish(&entry, answer(&entry, Outcome::Absent));
            }
            SetAside(of) => self.set_aside(now, of, entry),
            Admission::Suppress(outcome) => {
                let answer = answer(&entry, outcome);
                self.suppress(now, *entry, answer);
            }
            Admission::Miss(outcome) => {
                let answer = answer(&entry, outcome);
                self.miss(now, *entry, answer);
            }
            Admission::End(live, mark) => self.end_by_cancel(now, *entry, live, mark),
            Admission::Record(mark, outcome) => {
                let lane = entry.source.lane;
                self.write_cancel_mark(lane, mark, ChangeReason::Recorded);
                self.follow(now, lane, &mark, &entry);
                let answer = answer(&entry, outcome);
                self.writes.complete_with((entry.source, entry.offset), entry.record);
                self.writes.reply_with(answer);
            }
            Move(lane, intake, sealed) => {
                let done = Some((entry.source, entry.offset));
                let PendingRecord { record, due, .. } = *entry;
                let send = Produce {
                    to: Destination::Lane(intake),
                    partition: Some(i32::from(lane.0)),
                    record,
                    rewrite: HeaderRewrite::State(*sealed),
                    due,
                    expires: None,
                };
                self.writes.push(PendingWrite::of(done, send));
            }
            RefuseMove(refusal) => {
                let PendingRecord { source, offset, appended, record, timer_id, .. } = *entry;
                let letter = self.letter((source, offset), appended, record, refusal);
                self.write_dead_letter(letter, timer_id.is_some());
            }
            Admission::Refuse(refusal) => self.refuse(now, *entry, refusal),
        }
    }

    // It goes on.

    fn go_on(
        &mut self,
        now: UnixMillis,
        mut entry: Box<PendingRecord>,
        GoOn { change, looks_up, is_known }: GoOn,
        out: &mut Vec<Action>,
    ) {
        entry.decided = matches!(change, Change::Live);
        if let Some(timer_id) = entry.timer_id.filter(|_| entry.decided) {
            self.timers.here(entry.source.lane, timer_id);
        }
        if looks_up {
            // That its intake allows it was checked only for one that is new.
            let allowed = entry.intake.filter(|_| !entry.origin.was_accepted());
            self.look(now, &entry.target, allowed, out);
        }
        let is_known = is_known.and_then(|is_known| {
            self.change_timer(now, &mut entry, change)?;
            Ok(is_known)
        });
        match is_known {
            Ok(true) => self.route(now, entry),
            // With no room it goes on as if its target were there: that is asked again when it is due.
            Ok(false) => {
                if let Some(entry) = self.targets.park(&self.setup.limits, entry) {
                    self.route(now, entry);
                }
            }
            Err(refusal) => self.refuse(now, *entry, refusal),
        }
    }

    /// Changes the timer of a record that goes on.
    ///
    /// # Errors
    /// Its headers cannot be read.
    fn change_timer(
        &mut self,
        now: UnixMillis,
        entry: &mut PendingRecord,
        change: Change,
    ) -> Result<(), Refusal> {
        let lane = entry.source.lane;
        let Some(timer_id) = entry.timer_id else { return Ok(()) };
        if entry.origin == Origin::Duplicate {
            // It goes on as any other.
            entry.origin = Origin::Hop;
        }
        match change {
            Change::None => {}
            Change::Live => {
                // Read again: it was answered, or nobody asks any more; but in a batch that failed it was not.
                let answer = answer(entry, Outcome::Replaced);
                self.writes.extend(answer.map(PendingWrite::answer));
            }
            Change::Create | Change::Revive => self.make_live(now, entry, timer_id, None)?,
            Change::Replace(old) => {
                let answer = answer(entry, old.map_or(Outcome::Created, |_| Outcome::Replaced));
                let before = self.timers.table().replaced(lane, timer_id);
                let replaced = old.map(|(old, _)| Replaced::by(old.version, before));
                self.make_live(now, entry, timer_id, replaced)?;
                if let Some((_, mark)) = old {
                    self.writes.keep_with_next();
                    self.write_cancel_mark(lane, mark, ChangeReason::Superseded);
                }
                self.writes.reply_with(answer);
            }
            Change::Mark(mark) => {
                if self.timers.table().cancel_mark(lane, timer_id) != Some(mark) {
                    self.write_cancel_mark(lane, mark, ChangeReason::Superseded);
                }
                self.writes.reply_with(answer(entry, Outcome::Recorded));
            }
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
        self.timers.make_live(entry, timer_id, label, supersedes);
        if let Some(record) = verdict::timer_change(entry, &directive, stage) {
            let lane = entry.source.lane;
            self.writes.push(PendingWrite::timer_change(lane, record, ChangeReason::Created));
        }
        Ok(())
    }

    /// By what remains: into the wheel, or to the largest tier that lets it go in time.
    pub(super) fn route(&mut self, now: UnixMillis, entry: Box<PendingRecord>) {
        let limits = &self.setup.limits;
        let remains = entry.due - now;
        let large = entry.record.size() > limits.large_bytes;
        let horizon = if large { limits.large_horizon.min(limits.horizon) } else { limits.horizon };
        let ladder = &self.setup.topics.ladder;
        let tier = if remains > horizon { self.hops.pick(ladder, now, remains) } else { None };
        match tier {
            None => {
                self.agenda.wake(entry.due);
                if self.is_strict() && entry.record.key().is_some() {
                    self.want_all(now, entry.source.lane, entry.due);
                } else if entry.timer_id.is_some() {
                    let intake = entry.intake.unwrap_or_default();
                    self.want_commands(now, intake, entry.source.lane, entry.due);
                }
                self.agenda.insert(entry);
            }
            Some(tier) => self.hop(now, tier, entry),
        }
    }

    pub(super) fn hop(&mut self, now: UnixMillis, tier: usize, entry: Box<PendingRecord>) {
        if let Err(refusal) = self.hops.permits(&entry) {
            return self.refuse(now, *entry, refusal);
        }
        let lane = entry.source.lane;
        if self.is_strict() {
            self.strict_order.leaves(lane, (entry.due, entry.order));
        }
        self.hops.push(now, tier, lane, entry);
        if let Some(ripe) = self.hops.ripe_at(self.linger()) {
            self.agenda.wake(ripe);
        }
    }

    pub(super) fn linger(&self) -> Millis {
        if self.memory.is_draining() { Millis(0) } else { self.setup.limits.hop_linger }
    }

    // Nothing is to be done with it.

    /// A record waits until the index has told what became of its timer.
    fn ask_for(&mut self, now: UnixMillis, entry: Box<PendingRecord>) {
        let Some(timer_id) = entry.timer_id else { return };
        let of = (entry.source.lane, timer_id);
        if !self.timers.past.has_waiting(of) {
            if self.is_strict() {
                self.strict_order.lower_floor(of.0, (entry.due, entry.order));
            }
            self.agenda.wake(now);
        }
        self.timers.past.wait(of, Waiting::Entry(entry));
    }

    /// Finishes a record without a write of its own.
    pub(super) fn finish(&mut self, entry: &PendingRecord, answer: Option<Answer>) {
        self.writes.push(PendingWrite::done((entry.source, entry.offset), &entry.record));
        self.writes.reply_with(answer);
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

    /// The same, where only this is left of it.
    pub(super) fn suppress_record(
        &mut self,
        now: UnixMillis,
        (source, offset): (Source, Offset),
        named: Option<(TimerId, Version)>,
        record: Record,
    ) {
        let mark = named.and_then(|(timer_id, version)| {
            let mark = self.timers.table().cancel_mark(source.lane, timer_id);
            mark.filter(|mark| mark.covers(version))
        });
        match mark.filter(|mark| !mark.seen || !self.is_full()) {
            Some(mark) => {
                // Another submit of it, by a producer that did not hear of the first, comes soon or never.
                let soon = now + self.setup.limits.history;
                let until = if self.is_full() || mark.may_repeat { mark.until } else { soon };
                let mark = CancelMark { until, seen: true, ..mark };
                self.write_cancel_mark(source.lane, mark, ChangeReason::Suppressed);
                self.writes.complete_with((source, offset), record);
            }
            None => self.writes.push(PendingWrite::done((source, offset), &record)),
        }
    }

    /// Suppresses a record that was cancelled before it came, and writes that it was cancelled.
    fn miss(&mut self, now: UnixMillis, entry: PendingRecord, answer: Option<Answer>) {
        let lane = entry.source.lane;
        let directive = header::read(entry.record.headers()).unwrap_or_default();
        let said =
            verdict::timer_change(&entry, &directive, StateChange::new(TimerState::Cancelled, now));
        if let (Some(timer_id), Some(record)) = (entry.timer_id, said) {
            self.timers.end(now, lane, timer_id);
            let record = PendingWrite::timer_change(lane, record, ChangeReason::Missed);
            self.writes.push_with_next(record);
        }
        self.suppress(now, entry, answer);
    }

    // Cancels, and what comes late to one.

    /// A cancel ends a version.
    fn end_by_cancel(
        &mut self,
        now: UnixMillis,
        cancel: PendingRecord,
        live: Pending,
        mark: CancelMark,
    ) {
        let (lane, timer_id) = (cancel.source.lane, mark.timer_id);
        let table = self.timers.table();
        let (at, words) = ((live.version, live.due), table.words(live));
        let supersedes = table.replaced(lane, timer_id);
        let fields = TimerFields {
            supersedes,
            ..fields_of_cancel(&cancel, TimerState::Cancelled, now, at, words)
        };
        let record = verdict::timer_record(timer_id, &fields);
        self.timers.end(now, lane, timer_id);
        let record = PendingWrite::timer_change(lane, record, ChangeReason::Cancelled);
        self.writes.push_with_next(record);
        self.write_cancel_mark(lane, mark, ChangeReason::Recorded);
        self.follow(now, lane, &mark, &cancel);
        let answer = answer(&cancel, Outcome::Cancelled);
        self.writes.complete_with((cancel.source, cancel.offset), cancel.record);
        self.writes.reply_with(answer);
    }

    pub(super) fn write_cancel_mark(&mut self, lane: Lane, mark: CancelMark, reason: ChangeReason) {
        self.timers.put_cancel_mark(lane, mark);
        let (key, value) = (CancelMark::key(mark.timer_id), mark.value());
        let record = Record::new(Some(&key), Some(&value), std::iter::empty());
        self.writes.push(PendingWrite::timer_change(lane, record, reason));
    }

    /// A cancel was decided. If it came late and nothing is pending, the first of what was taken for a duplicate and was
    /// submitted after the cancel is pending now. Behind a cancel that came straight to its lane, what stands there counts first.
    fn follow(&mut self, now: UnixMillis, lane: Lane, mark: &CancelMark, cancel: &PendingRecord) {
        let by = cancel.version();
        let is_late = cancel.origin == Origin::Cancel(None) && by.is_not_in_log_order();
        // Where timers are not tracked none is pending, and none was set aside.
        if !is_late || !self.is_full() {
            return;
        }
        let Some(note) = self.timers.follow(lane, mark, by) else { return };
        let at = (note.version, note.due);
        let words = (&*note.target, note.label.as_deref());
        let fields = fields_of_cancel(cancel, TimerState::Delay, now, at, words);
        let record = verdict::timer_record(mark.timer_id, &fields);
        self.writes.keep_with_next();
        self.writes.push(PendingWrite::timer_change(lane, record, ChangeReason::Created));
    }

    /// Has a duplicate wait in a tier.
    fn set_aside(&mut self, now: UnixMillis, of: Version, mut entry: Box<PendingRecord>) {
        let (lane, Some(timer_id)) = (entry.source.lane, entry.timer_id) else { return };
        if self.timers.is_copy(timer_id, &entry) {
            return self.finish(&entry, None);
        }
        self.timers.no_more_aside(&entry);
        let is_new = entry.origin != Origin::Duplicate;
        if is_new {
            self.timers.count_duplicate();
        }
        // Not much longer than it may matter. In time for its due time if that is ahead; else not much later than it is.
        let kept_until = self.facts().kept_until(&entry);
        let most = kept_until - now + Millis(self.setup.limits.duplicates_kept.0 / 8);
        let ladder = &self.setup.topics.ladder;
        let pick = |remains: Millis| {
            let tier = self.hops.pick(ladder, now, remains.min(most));
            tier.unwrap_or_else(|| ladder.shortest())
        };
        let tier = match entry.due > now {
            true => pick(entry.due - now),
            // The roll call for lost timers looks there.
            false => pick(now - entry.first_appended).min(last_for_overdue(&self.setup)),
        };
        let to = Destination::Lane(self.setup.topics.of_tier(tier));
        // One under suspicion would leave later than what is decided after it.
        let may_leave = entry.hops < HOPS_MAX
            && self.hops.permits(&entry).is_ok()
            && self.poison.permits_record(entry.source, entry.offset).is_ok()
            && self.poison.group(entry.source, entry.offset, &to).is_none();
        let sealed = verdict::seal(&self.setup, &entry, Kind::Duplicate).ok().filter(|_| may_leave);
        entry.origin = Origin::Duplicate;
        // Last: it may cost another one its place.
        let sealed = sealed.filter(|_| self.timers.set_aside(timer_id, of, &entry, is_new));
        let Some(sealed) = sealed else { return self.finish(&entry, None) };
        let PendingRecord { source, offset, record, .. } = *entry;
        let partition = Some(i32::from(lane.0));
        // Nothing waits for it: it may come to stand late.
        let (rewrite, due, expires) = (HeaderRewrite::State(sealed), UnixMillis(u64::MAX), None);
        let send = Produce { to, partition, record, rewrite, due, expires };
        self.writes.push(PendingWrite::of(Some((source, offset)), send));
    }
}
