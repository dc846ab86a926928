//! Admission: what becomes of a record that its partition let go. One pure decision, by the record and what is known;
//! [`LaneEngine::apply`](super::LaneEngine) carries it out.
//!
//! # Invariants
//! 1. A decision reads, and changes nothing. The same record and the same knowledge give the same decision.
//! 2. A decision is about a record of this lane only when all that counts for it is known: its lane's timers, and how its
//!    timer ended if it comes late ([`Facts::history`]).
//! 3. What is refused is refused for the first of these reasons: Kafka refused the record alone; its intake does not allow
//!    its target; its target cannot take it; too many timers are remembered. Intake and target count when a record is accepted
//!    and when it is due, not on its way down.
//! 4. The cancel mark of a decision covers everything that the marks before it covered, for at least as long.

use super::super::header::{Code, Refusal};
use super::super::messages::Outcome;
use super::super::setup::{Setup, Tracking};
use super::super::state::{Kind, Sealed};
use super::super::targets::Targets;
use super::super::timers::{About, CancelMark, Ended, Pending, TimerId, Version, VersionBound};
use super::super::verdict::{self, Origin, PendingRecord, refusal};
use super::lifecycle::{CANCEL_MARK_SLACK, Timers, about};
use super::partitions::Partitions;
use super::past::History;
use super::poison::Poison;
use super::{Lane, Millis, TopicId, UnixMillis};

/// What becomes of a record.
#[derive(Debug)]
pub(super) enum Admission {
    /// It goes on: to its target, or down the ladder.
    GoOn(GoOn),
    /// Nothing is to be done with it.
    Finish(Outcome),
    /// The same: another version of its timer is pending.
    Duplicate,
    /// The same, unless a cancel comes late that was submitted between that version, which may have ended since, and this one.
    /// So it waits in a tier.
    SetAside(Version),
    /// A cancel mark covers it.
    Suppress(Outcome),
    /// The same, by a cancel that had found nothing: it was about this one, and nobody knows of it yet.
    Miss(Outcome),
    /// A cancel: it ends this version, with this mark.
    End(Pending, CancelMark),
    /// A cancel that ends nothing. Its mark may cover what comes later.
    Record(CancelMark, Outcome),
    /// It belongs to another lane, and is moved there in this intake.
    Move(Lane, TopicId, Box<Sealed>),
    /// It cannot be moved: a dead letter that says nothing of its timer, which is of another lane.
    RefuseMove(Refusal),
    /// A dead letter.
    Refuse(Refusal),
}

/// A record that goes on.
#[derive(Debug)]
pub(super) struct GoOn {
    pub(super) change: Change,
    /// Its target is to be looked up for it.
    pub(super) looks_up: bool,
    /// Whether its target is known.
    pub(super) is_known: Result<bool, Refusal>,
}

/// What a record that goes on means for its timer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// Nothing: it has no id, or timers are not tracked.
    None,
    /// It is the live version.
    Live,
    /// Nothing is pending: it is the live version from now on.
    Create,
    /// The index has lost this timer: treat it as pending.
    Revive,
    /// The live version from now on: it replaces that one, with this mark.
    Replace(Option<(Pending, CancelMark)>),
    /// The same, where only cancelled timers are tracked.
    Mark(CancelMark),
}

/// What is known when a record is decided about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) setup: &'a Setup,
    pub(super) timers: &'a Timers,
    pub(super) poison: &'a Poison,
    pub(super) targets: &'a Targets,
    pub(super) partitions: &'a Partitions,
}

impl Facts<'_> {
    /// How a record's timer has ended, as far as it counts for that record.
    pub(super) fn history(&self, now: UnixMillis, entry: &PendingRecord) -> History {
        let Some(timer_id) = entry.timer_id else { return History::Known(None) };
        let (lane, past) = (entry.source.lane, &self.timers.past);
        if past.has_waiting((lane, timer_id)) {
            return History::Unknown;
        }
        if !self.past_counts(entry) {
            return History::Known(None);
        }
        // Of what stood here at the take-over an owner before may have told the end, whatever clocks say.
        let hold = self.partitions.get(entry.source);
        let stood = hold.is_some_and(|hold| hold.stood_at_take_over(entry.offset));
        let ends_from = self.partitions.ends_from(lane).filter(|_| !stood);
        past.of(now, (lane, timer_id), entry, ends_from)
    }

    /// Whether it matters for a record what has ended.
    fn past_counts(&self, entry: &PendingRecord) -> bool {
        let makes = matches!(
            entry.origin,
            Origin::Create | Origin::Tier | Origin::Duplicate | Origin::Replace(None)
        );
        let Some(timer_id) = entry.timer_id.filter(|_| makes) else { return false };
        let (table, lane, version) = (self.timers.table(), entry.source.lane, entry.version());
        // A cancel mark that is seen for the first time was about this record, or about one that ended since.
        let mark = table.cancel_mark(lane, timer_id).filter(|mark| mark.covers(version));
        // Of a duplicate it must be known in any case: whether what was pending was cancelled, or delivered.
        let counts = match entry.origin {
            Origin::Duplicate => mark.is_none(),
            _ => version.is_not_in_log_order() && mark.is_none_or(|mark| !mark.seen),
        };
        counts && self.is_full() && table.live(lane, timer_id).is_none()
    }

    /// Decides about a record of this lane. `past`: what has ended of its timer, if that counts for it.
    pub(super) fn decide(
        &self,
        now: UnixMillis,
        entry: &PendingRecord,
        past: Option<Ended>,
    ) -> Admission {
        if let (Some(timer_id), Origin::Cancel(meant)) = (entry.timer_id, entry.origin) {
            return self.cancel(now, entry, timer_id, meant);
        }
        match entry.timer_id {
            None => self.go_on(now, entry, Change::None),
            Some(timer_id) => self.named(now, entry, timer_id, past),
        }
    }

    /// Decides about a record that belongs to another lane.
    pub(super) fn decide_move(&self, entry: &PendingRecord, lane: Lane) -> Admission {
        let seal = || {
            self.poison.permits_record(entry.source, entry.offset)?;
            // A record with an id is refused where its timer is: no other lane may report its outcome.
            if entry.timer_id.is_none() {
                verdict::allowed(self.setup, self.targets, entry.intake, &entry.target)?;
            }
            verdict::seal(self.setup, entry, Kind::Move)
        };
        match seal() {
            // One without an intake is refused before it gets here.
            Ok(sealed) => {
                let intake = TopicId(entry.intake.unwrap_or_default());
                Admission::Move(lane, intake, Box::new(sealed))
            }
            Err(refusal) => Admission::RefuseMove(refusal),
        }
    }

    /// A record with an id that is no cancel.
    fn named(
        &self,
        now: UnixMillis,
        entry: &PendingRecord,
        timer_id: TimerId,
        past: Option<Ended>,
    ) -> Admission {
        let (table, lane, version) = (self.timers.table(), entry.source.lane, entry.version());
        let live = if self.is_full() { table.live(lane, timer_id) } else { None };
        let go_on = |change| self.go_on(now, entry, change);
        if live.is_some_and(|live| live.version == version) {
            return go_on(Change::Live);
        }
        let mark = table.cancel_mark(lane, timer_id);
        if let Some(mark) = mark.filter(|mark| mark.covers(version)) {
            return self.covered(entry, timer_id, mark, past);
        }
        // Where a batch failed in at_least_once it may be said of a version itself that it ended.
        let past = past.filter(|ended| ended.version != version);
        if !self.is_full() {
            return match entry.origin {
                Origin::Replace(_) => go_on(Change::Mark(self.mark_for_unknown(
                    now,
                    (lane, timer_id),
                    version,
                    false,
                ))),
                // It was one while all was tracked; a cancel from before it says that it is none.
                Origin::Duplicate if !mark.is_some_and(|mark| mark.cancels) => Admission::Duplicate,
                _ => go_on(Change::None),
            };
        }
        let is_parted = |ended: Ended| mark.is_some_and(|mark| mark.parts(ended.version, version));
        let replace = |live: Pending| {
            let mark = self.mark_for_pending(now, (lane, timer_id), version, live);
            go_on(Change::Replace(Some((live, mark))))
        };
        match (entry.origin, live) {
            (Origin::Create | Origin::Tier | Origin::Duplicate, Some(live)) => {
                self.duplicate(now, entry, live.version)
            }
            (Origin::Duplicate, None) => match past {
                Some(ended) if is_parted(ended) => go_on(Change::Create),
                Some(ended) => self.duplicate(now, entry, ended.version),
                None => Admission::Duplicate,
            },
            (Origin::Create | Origin::Tier, None)
                if let Some(ended) = past
                    && ended.counts_for(version)
                    && !is_parted(ended) =>
            {
                self.duplicate(now, entry, ended.version)
            }
            (Origin::Create | Origin::Tier, None) => go_on(Change::Create),
            (Origin::Replace(None), None)
                if past.is_some_and(|ended| version.is_before(ended.version)) =>
            {
                Admission::Finish(Outcome::Superseded)
            }
            (Origin::Replace(None), None) => go_on(Change::Replace(None)),
            (Origin::Hop, None) => go_on(Change::Revive),
            (Origin::Hop, Some(_)) => Admission::Duplicate,
            (Origin::Replace(None), Some(live)) if live.version.is_before(version) => replace(live),
            (Origin::Replace(Some(meant)), Some(live))
                if live.version == meant && meant.is_before(version) =>
            {
                replace(live)
            }
            (Origin::Replace(None), Some(_)) => Admission::Finish(Outcome::Superseded),
            (Origin::Replace(Some(_)), _) => {
                Admission::Finish(self.missed((lane, timer_id), about(entry)))
            }
            // It has its own way.
            (Origin::Cancel(_), _) => Admission::Finish(Outcome::Absent),
        }
    }

    /// A record that this cancel mark covers.
    fn covered(
        &self,
        entry: &PendingRecord,
        timer_id: TimerId,
        mark: CancelMark,
        past: Option<Ended>,
    ) -> Admission {
        if entry.origin == Origin::Duplicate {
            return Admission::Duplicate;
        }
        let version = entry.version();
        let outcome = match entry.origin {
            Origin::Replace(Some(_)) => self.missed((entry.source.lane, timer_id), about(entry)),
            _ => Outcome::Superseded,
        };
        // The remembered version is one of three: this version itself, read again; a newer one; or one that this is
        // a duplicate of.
        let is_known =
            past.is_some_and(|ended| ended.version == version || ended.counts_for(version));
        let is_first = !mark.seen && !is_known && self.past_counts(entry);
        if is_first { Admission::Miss(outcome) } else { Admission::Suppress(outcome) }
    }

    /// A create that is a duplicate of this version by all that is known: a cancel from between them may come.
    fn duplicate(&self, now: UnixMillis, entry: &PendingRecord, of: Version) -> Admission {
        // Straight to the one log that there is, nothing comes late.
        let ways = usize::from(self.setup.lanes) * self.setup.topics.intakes.len();
        let may_follow = ways > 1 && of.is_before(entry.version()) && now < self.kept_until(entry);
        if may_follow { Admission::SetAside(of) } else { Admission::Duplicate }
    }

    /// A cancel that is moved to its lane later than this does not find a duplicate any more. While nobody owned the lane,
    /// nobody may have moved anything.
    pub(super) fn kept_until(&self, entry: &PendingRecord) -> UnixMillis {
        let ends_from = self.partitions.ends_from(entry.source.lane).unwrap_or_default();
        entry.first_appended.max(ends_from) + self.setup.limits.duplicates_kept
    }

    /// A record that goes on, unless something refuses it.
    fn go_on(&self, now: UnixMillis, entry: &PendingRecord, change: Change) -> Admission {
        let mut looks_up = false;
        let mut check = || {
            self.poison.permits_record(entry.source, entry.offset)?;
            // Its intake may be configured again before it is due.
            let mut is_known = true;
            if let Some(intake) = entry.intake {
                let is_new = !entry.origin.was_accepted();
                if is_new {
                    verdict::allowed(self.setup, self.targets, entry.intake, &entry.target)?;
                }
                let target;
                (target, looks_up) =
                    self.targets.get(now, &self.setup.limits, &entry.target, intake);
                // One that was accepted is checked again when it is due, and not on its way down. Its target is only asked for,
                // so that the answer is there by then.
                if is_new {
                    is_known = target.is_some();
                    target.map(|target| verdict::present(&entry.target, target)).transpose()?;
                }
            }
            match change {
                Change::None | Change::Live | Change::Revive => {}
                Change::Create | Change::Replace(_) | Change::Mark(_) => self.room()?,
            }
            Ok(is_known)
        };
        // One that is in its target already is decided about when it is due.
        let is_there = self.poison.is_delivered(entry.source, entry.offset);
        let is_known = check().or_else(|refusal| is_there.then_some(true).ok_or(refusal));
        Admission::GoOn(GoOn { change, looks_up, is_known })
    }

    /// A cancel that was let go by an intake of its lane. `meant`: it is of this version only.
    fn cancel(
        &self,
        now: UnixMillis,
        entry: &PendingRecord,
        timer_id: TimerId,
        meant: Option<Version>,
    ) -> Admission {
        let (table, lane, version) = (self.timers.table(), entry.source.lane, entry.version());
        let mut before = meant.map_or(version, Version::next);
        let old = table.cancel_mark(lane, timer_id);
        if !self.is_full() {
            if old.is_none()
                && let Err(refusal) = self.room()
            {
                return Admission::Refuse(refusal);
            }
            let mark = self.mark_for_unknown(now, (lane, timer_id), before, meant.is_none());
            // It is read again. To write all marks again at each new start may take longer than until the next one.
            let is_same = old == Some(mark);
            return match is_same {
                true => Admission::Finish(Outcome::Recorded),
                false => Admission::Record(mark, Outcome::Recorded),
            };
        }
        let live = table.live(lane, timer_id);
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
            return Admission::End(live, CancelMark { cancels: meant.is_none(), ..mark });
        }
        // It may be about a record that its producer wrote to a tier, which is not known before it comes up.
        let known = old.map(|old| old.before).unwrap_or_default();
        if meant.is_none() && known.or(version) != known {
            // Those for which nothing was pending shall not keep others from being pending.
            if let (None, Err(refusal)) =
                (old, self.room_for(self.setup.limits.tracked_max / 4 * 3))
            {
                return Admission::Refuse(refusal);
            }
            let until = now + self.longest_hold() + CANCEL_MARK_SLACK;
            let mark = CancelMark {
                timer_id,
                before: known.or(version),
                until: old.map_or(until, |old| until.max(old.until)),
                seen: false,
                may_repeat: false,
                // Of what only a cancel of one version covers, or a replace, it parts nothing.
                cancels: old.is_none_or(|old| old.cancels || old.before.is_within(version)),
            };
            return Admission::Record(mark, Outcome::Absent);
        }
        Admission::Finish(self.missed((lane, timer_id), about(entry)))
    }

    fn is_full(&self) -> bool {
        self.setup.limits.tracking == Tracking::Full
    }

    /// What a command comes to that is about what is not pending. Only of a version that was replaced by the pending one this
    /// is known here; whether one was delivered or cancelled no mark tells.
    fn missed(&self, (lane, timer_id): (Lane, TimerId), about: About) -> Outcome {
        let replaced = self.timers.table().replaced(lane, timer_id);
        let was = |version| replaced.is_some_and(|of| of.has(version));
        match about {
            About::Replace(version, own) if was(version) && was(own) => Outcome::Replaced,
            About::Version(version) | About::Replace(version, _) if was(version) => {
                Outcome::Superseded
            }
            _ => Outcome::Absent,
        }
    }

    /// Whether one more timer may be remembered.
    pub(super) fn room(&self) -> Result<(), Refusal> {
        self.room_for(self.setup.limits.tracked_max)
    }

    /// Whether one more task of a project may be remembered. There must be a third as many free places as the project takes up:
    /// so whatever a project leaves pending, there is room for others, and it takes three quarters if it is alone.
    pub(super) fn room_of(&self, project: &str) -> Result<(), Refusal> {
        self.room()?;
        let (table, most) = (self.timers.table(), self.setup.limits.tracked_max);
        let (of_project, free) = (table.len_of(project), most.saturating_sub(table.len()));
        if of_project / 3 < free {
            return Ok(());
        }
        let detail = format!(
            "{of_project} tasks of the project {project} are pending, and only {free} places are free: max-tracked keeps those for others"
        );
        Err(refusal(Code::TooManyTimers, detail))
    }

    fn room_for(&self, most: usize) -> Result<(), Refusal> {
        let len = self.timers.table().len();
        if len < most {
            return Ok(());
        }
        let detail = format!("{len} timers are remembered already; max-tracked allows no more");
        Err(refusal(Code::TooManyTimers, detail))
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
        let table = self.timers.table();
        let mut until = live.due.max(now) + CANCEL_MARK_SLACK;
        if table.cancel_marks_len() < self.setup.limits.tracked_max / 4 {
            // An older one may have been written to a tier, and come up after this one would have been due.
            until = until.max(now + self.longest_hold() + CANCEL_MARK_SLACK);
        }
        CancelMark { cancels: false, ..table.mark_before((lane, timer_id), before, until) }
    }

    /// The mark that covers everything before a version, where it is not known which records may still come.
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
        match self.timers.table().cancel_mark(lane, timer_id) {
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
}

#[cfg(test)]
mod tests;
