//! Creates that come while a version of their timer is pending. Each is a duplicate, unless a cancel was submitted between
//! the two and comes late: then it is the version that is pending after that. So it is not finished at once. It waits in a
//! tier for as long as such a cancel may be on its way, and not beyond its due time without need.
//!
//! # Invariants
//! 1. A duplicate leaves for its tier in the order in which it was decided, and before whatever is decided later about its
//!    timer: no crash finds it in its intake after the pending version has ended, where it would be a new one.
//! 2. It becomes pending if none is, and a cancel was submitted between the version that was pending last and this one: the
//!    mark of that cancel says so ([`CancelMark::parts`]). In any doubt it is nothing: a version too many is never delivered.
//! 3. What is noted here only says earlier what the mark says when the record comes up: that it is pending.
//! 4. Of one timer the last [`OF_ONE_MAX`] are kept, behind which a late cancel stands least, and in all no more than
//!    [`IN_ALL_MAX`]: what is created without end while it is pending costs a hop each, and is finished when it comes up. Beyond
//!    that it is finished at once.

use super::super::messages::{ChangeReason, Destination, HeaderRewrite, Produce};
use super::super::state::Kind;
use super::super::timers::{ByName, CancelMark, TimerId, TimerState, Version};
use super::super::verdict::{self, Origin, PendingRecord};
use super::lifecycle::{Fate, told};
use super::strict_order;
use super::{Arc, Lane, LaneEngine, Millis, PendingWrite, UnixMillis, header};

/// A producer may create again and again before it cancels: the last one stands behind every cancel that any of them does.
const OF_ONE_MAX: usize = 4;
/// In a thread.
const IN_ALL_MAX: usize = 2_048;
/// Where owners change without end, each of them keeps it anew.
const HOPS_MAX: u16 = 512;

/// The duplicates that wait in tiers.
#[derive(Debug, Default)]
pub(super) struct Duplicates {
    of: ByName<Vec<Note>>,
    len: usize,
}

/// One of them, as it would be pending.
#[derive(Debug)]
struct Note {
    version: Version,
    /// The version that was pending last.
    of: Version,
    due: UnixMillis,
    /// How often it had hopped when it left.
    hops: u16,
    target: Arc<str>,
    label: Option<Box<str>>,
}

/// The one that stands first, with its number.
fn earliest<'a>(notes: impl Iterator<Item = (usize, &'a Note)>) -> Option<(usize, &'a Note)> {
    notes.reduce(|a, b| if b.1.version.is_before(a.1.version) { b } else { a })
}

impl Duplicates {
    /// Makes room for one that is new, or has come up again.
    fn make_room(&mut self, timer_id: TimerId, is_new: bool) -> bool {
        let notes = self.of.get(&timer_id).map_or(&[][..], Vec::as_slice);
        if notes.len() < OF_ONE_MAX && self.len < IN_ALL_MAX {
            return true;
        }
        let Some((_, oldest)) = earliest(notes.iter().enumerate()).filter(|_| is_new) else {
            return false;
        };
        let oldest = oldest.version;
        self.forget(timer_id, oldest);
        true
    }

    fn note(&mut self, timer_id: TimerId, note: Note) {
        self.of.entry(timer_id).or_default().push(note);
        self.len += 1;
    }

    /// This version is pending from now on: what was submitted before it is behind nothing any more.
    pub(super) fn come_after(&mut self, timer_id: TimerId, version: Version) {
        self.keep(timer_id, |note| version.is_before(note.version));
        self.of.get_mut(&timer_id).into_iter().flatten().for_each(|note| note.of = version);
    }

    fn keep(&mut self, timer_id: TimerId, which: impl Fn(&Note) -> bool) {
        let Some(notes) = self.of.get_mut(&timer_id) else { return };
        let count = notes.len();
        notes.retain(which);
        self.len -= count - notes.len();
        if notes.is_empty() {
            self.of.remove(&timer_id);
        }
    }

    /// Whether another copy of it waits: in `at_least_once` a crash may leave some, and each would hop on.
    fn is_copy(&self, timer_id: TimerId, version: Version, hops: u16) -> bool {
        let mut notes = self.of.get(&timer_id).into_iter().flatten();
        notes.any(|note| note.version == version && note.hops != hops)
    }

    /// It has come up, or is finished.
    fn forget(&mut self, timer_id: TimerId, version: Version) {
        self.keep(timer_id, |note| note.version != version);
    }

    /// Takes out the first of a timer that is behind a cancel.
    fn first(&mut self, timer_id: TimerId, mark: &CancelMark) -> Option<Note> {
        let notes = self.of.get_mut(&timer_id)?;
        let standing =
            notes.iter().enumerate().filter(|(_, note)| mark.parts(note.of, note.version));
        let (first, _) = earliest(standing)?;
        let note = notes.swap_remove(first);
        self.len -= 1;
        self.come_after(timer_id, note.version);
        Some(note)
    }
}

impl LaneEngine {
    /// What becomes of a create that is a duplicate of this version by all that is known: a cancel from between them may come.
    pub(super) fn duplicate(&self, now: UnixMillis, entry: &PendingRecord, of: Version) -> Fate {
        // Straight to the one log that there is, nothing comes late.
        let ways = usize::from(self.setup.lanes) * self.setup.topics.intakes.len();
        let may_follow = ways > 1 && of.is_before(entry.version()) && now < self.kept_until(entry);
        if may_follow { Fate::Aside(of) } else { Fate::Duplicate }
    }

    /// A cancel that is moved to its lane later than this does not find a duplicate any more. While nobody owned the lane,
    /// nobody may have moved anything.
    fn kept_until(&self, entry: &PendingRecord) -> UnixMillis {
        let gate = &self.gates[usize::from(entry.source.lane.0)];
        entry.first_appended.max(gate.ends_from) + self.setup.limits.duplicates_kept
    }

    /// Has a duplicate wait in a tier.
    pub(super) fn set_aside(
        &mut self,
        now: UnixMillis,
        of: Version,
        mut entry: Box<PendingRecord>,
    ) {
        let (lane, Some(timer_id)) = (entry.source.lane, entry.timer_id) else { return };
        if self.duplicates.is_copy(timer_id, entry.version(), entry.hops) {
            return self.finish(&entry, None);
        }
        self.no_more_aside(&entry);
        self.figures.duplicates += u64::from(entry.origin != Origin::Duplicate);
        // Not much longer than it may matter. In time for its due time if that is ahead; else not much later than it is.
        let most = self.kept_until(&entry) - now + Millis(self.setup.limits.duplicates_kept.0 / 8);
        let ladder = &self.setup.topics.ladder;
        let pick = |remains: Millis| {
            let tier = strict_order::pick(ladder, self.margin(now), remains.min(most));
            tier.unwrap_or_else(|| ladder.shortest())
        };
        let tier = match entry.due > now {
            true => pick(entry.due - now),
            // The roll call for lost timers looks there.
            false => pick(now - entry.first_appended).min(self.last_for_overdue()),
        };
        let to = Destination::Lane(self.setup.topics.of_tier(tier));
        // One under suspicion would leave later than what is decided after it.
        let is_new = entry.origin != Origin::Duplicate;
        let may_leave = entry.hops < self.hops_limit.min(HOPS_MAX)
            && self.poison.permits_record(entry.source, entry.offset).is_ok()
            && self.poison.group(entry.source, entry.offset, &to).is_none();
        let sealed = verdict::seal(&self.setup, &entry, Kind::Duplicate).ok().filter(|_| may_leave);
        // Last: it may cost another one its place.
        let Some(sealed) = sealed.filter(|_| self.duplicates.make_room(timer_id, is_new)) else {
            return self.finish(&entry, None);
        };
        entry.origin = Origin::Duplicate;
        self.note_duplicate(timer_id, of, &entry);
        let PendingRecord { source, offset, record, .. } = *entry;
        let partition = Some(i32::from(lane.0));
        // Nothing waits for it: it may come to stand late.
        let (rewrite, due, expires) = (HeaderRewrite::State(sealed), UnixMillis(u64::MAX), None);
        let send = Produce { to, partition, record, rewrite, due, expires };
        self.writes.push(PendingWrite::of(Some((source, offset)), send));
    }

    fn note_duplicate(&mut self, timer_id: TimerId, of: Version, entry: &PendingRecord) {
        let directive = header::read(entry.record.headers()).unwrap_or_default();
        let label = directive.label.and_then(|label| std::str::from_utf8(label).ok());
        let note = Note {
            version: entry.version(),
            of,
            due: entry.due,
            hops: entry.hops.saturating_add(1),
            target: Arc::clone(&entry.target),
            label: label.map(Box::from),
        };
        self.duplicates.note(timer_id, note);
    }

    /// A duplicate has come up, and is decided about.
    pub(super) fn no_more_aside(&mut self, entry: &PendingRecord) {
        if let Some(timer_id) = entry.timer_id.filter(|_| entry.origin == Origin::Duplicate) {
            self.duplicates.forget(timer_id, entry.version());
        }
    }

    /// A cancel was decided. If it came late and nothing is pending, the first of what was taken for a duplicate and was
    /// submitted after the cancel is pending now. Behind a cancel that came straight to its lane, what stands there counts first.
    pub(super) fn follow(
        &mut self,
        now: UnixMillis,
        lane: Lane,
        mark: &CancelMark,
        cancel: &PendingRecord,
    ) {
        let is_late = mark.cancels && cancel.version().is_not_in_log_order();
        if !is_late || self.timers.live(lane, mark.timer_id).is_some() {
            return;
        }
        let Some(note) = self.duplicates.first(mark.timer_id, mark) else { return };
        let at = (note.version, note.due);
        let words = (&*note.target, note.label.as_deref());
        let record =
            verdict::timer_record(mark.timer_id, &told(cancel, TimerState::Delay, now, at, words));
        self.timers.put_live(lane, mark.timer_id, at, words);
        self.writes.keep_with_next();
        self.writes.push(PendingWrite::timer_change(lane, record, ChangeReason::Created));
    }
}
