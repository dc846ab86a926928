//! Creates that come while a version of their timer is pending. Each is a duplicate, unless a cancel was submitted between
//! the two and comes late: then it is the version that is pending after that. So it is not finished at once. It waits in a
//! tier for as long as such a cancel may be on its way, and not beyond its due time without need.
//!
//! # Invariants
//! 1. A duplicate leaves for its tier in the order in which it was decided, and before whatever is decided later about its
//!    timer: no crash finds it in its intake after the pending version has ended, where it would be a new one.
//! 2. It becomes pending if none is, and a cancel was submitted between the version that was pending last and this one: the
//!    mark of that cancel says so ([`Void::parts`]). In any doubt it is nothing: a version too many is never delivered.
//! 3. What is noted here only says earlier what the mark says when the record comes up: that it is pending.
//! 4. Of one timer no more than [`OF_ONE_MAX`] are kept, and in all no more than [`IN_ALL_MAX`]: whoever creates what is pending
//!    without end costs no more hops than that. The others are finished at once.

use super::super::orders::{Because, Edit, Send, To};
use super::super::state::Kind;
use super::super::timers::{ByName, Phase, Place, TimerKey, Told, Void};
use super::super::verdict::{self, Entry, Way};
use super::floor;
use super::lifecycle::Fate;
use super::{Arc, Engine, Lane, Millis, Ready, UnixMillis, header};

/// A second create that is no duplicate is rare, and of several the first counts.
const OF_ONE_MAX: usize = 4;
/// In a thread.
const IN_ALL_MAX: usize = 2_048;
/// Where owners change without end, each of them keeps it anew.
const HOPS_MAX: u16 = 512;

/// What is known of duplicates that wait in tiers.
#[derive(Debug, Default)]
pub(super) struct Duplicates {
    of: ByName<Vec<Note>>,
    len: usize,
}

/// One of them, as it would be pending.
#[derive(Debug)]
struct Note {
    lane: Lane,
    place: Place,
    /// The version that was pending last.
    of: Place,
    due: UnixMillis,
    /// How often it had hopped when it left.
    hops: u16,
    target: Arc<str>,
    label: Option<Box<str>>,
}

impl Duplicates {
    fn has_room(&self, name: TimerKey) -> bool {
        self.len < IN_ALL_MAX && self.of.get(&name).is_none_or(|notes| notes.len() < OF_ONE_MAX)
    }

    fn note(&mut self, name: TimerKey, note: Note) {
        self.of.entry(name).or_default().push(note);
        self.len += 1;
    }

    /// This version is pending from now on: what was submitted before it is behind nothing any more.
    pub(super) fn come_after(&mut self, name: TimerKey, version: Place) {
        let Some(notes) = self.of.get_mut(&name) else { return };
        let count = notes.len();
        notes.retain(|note| version.is_before(note.place));
        notes.iter_mut().for_each(|note| note.of = version);
        self.len -= count - notes.len();
        if notes.is_empty() {
            self.of.remove(&name);
        }
    }

    /// Whether another copy of it waits: in `at_least_once` a crash may leave some, and each would hop on.
    fn is_copy(&self, name: TimerKey, place: Place, hops: u16) -> bool {
        let mut notes = self.of.get(&name).into_iter().flatten();
        notes.any(|note| note.place == place && note.hops != hops)
    }

    /// It has come up, or is finished.
    fn forget(&mut self, name: TimerKey, place: Place) {
        let Some(notes) = self.of.get_mut(&name) else { return };
        let count = notes.len();
        notes.retain(|note| note.place != place);
        self.len -= count - notes.len();
        if notes.is_empty() {
            self.of.remove(&name);
        }
    }

    /// Takes out the first of a timer that is behind a cancel.
    fn first(&mut self, name: TimerKey, void: &Void) -> Option<Note> {
        let notes = self.of.get_mut(&name)?;
        let standing = notes.iter().enumerate().filter(|(_, note)| void.parts(note.of, note.place));
        let is_first = |a: &Note, b: &Note| a.place.is_before(b.place);
        let (first, _) = standing.reduce(|a, b| if is_first(b.1, a.1) { b } else { a })?;
        let note = notes.swap_remove(first);
        self.len -= 1;
        self.come_after(name, note.place);
        Some(note)
    }
}

impl Engine {
    /// What becomes of a create that is a duplicate of this version by all that is known: a cancel from between them may come.
    pub(super) fn duplicate(&self, now: UnixMillis, entry: &Entry, of: Place) -> Fate {
        // Straight to the one log that there is, nothing comes late.
        let ways = usize::from(self.setup.lanes) * self.setup.topics.intakes.len();
        let may_follow = ways > 1 && of.is_before(entry.place()) && now < self.kept_until(entry);
        if may_follow { Fate::Aside(of) } else { Fate::Duplicate }
    }

    /// A cancel that is moved to its lane later than this does not find a duplicate any more. While nobody owned the lane,
    /// nobody may have moved anything.
    fn kept_until(&self, entry: &Entry) -> UnixMillis {
        let gate = &self.gates[usize::from(entry.source.lane.0)];
        entry.first_appended.max(gate.ends_from) + self.setup.limits.duplicates_kept
    }

    /// Has a duplicate wait in a tier.
    pub(super) fn set_aside(&mut self, now: UnixMillis, of: Place, mut entry: Box<Entry>) {
        let (lane, Some(name)) = (entry.source.lane, entry.timer) else { return };
        self.figures.duplicates += u64::from(entry.way != Way::Duplicate);
        // Not much longer than it may matter. In time for its due time if that is ahead; else not much later than it is.
        let most = self.kept_until(&entry) - now + Millis(self.setup.limits.duplicates_kept.0 / 8);
        let ladder = &self.setup.topics.ladder;
        let pick = |remains: Millis| {
            let tier = floor::pick(ladder, self.margin(now), remains.min(most));
            tier.unwrap_or_else(|| ladder.shortest())
        };
        let tier = match entry.due > now {
            true => pick(entry.due - now),
            // Who looks for lost timers looks there.
            false => pick(now - entry.first_appended).min(self.last_for_overdue()),
        };
        let to = To::Lane(self.setup.topics.of_tier(tier));
        // One under suspicion would leave later than what is decided after it.
        if self.duplicates.is_copy(name, entry.place(), entry.hops) {
            return self.finish(&entry, None);
        }
        self.no_more_aside(&entry);
        let may_leave = self.duplicates.has_room(name)
            && entry.hops < self.hops_limit.min(HOPS_MAX)
            && self.innocent(entry.source, entry.offset).is_ok()
            && self.suspects.group(entry.source, entry.offset, &to).is_none();
        let sealed = verdict::seal(&self.setup, &entry, Kind::Duplicate);
        let (true, Ok(sealed)) = (may_leave, sealed) else { return self.finish(&entry, None) };
        entry.way = Way::Duplicate;
        self.note_duplicate(name, of, &entry);
        let Entry { source, offset, record, .. } = *entry;
        let partition = Some(i32::from(lane.0));
        // Nothing waits for it: it may come to stand late.
        let (edit, due, expires) = (Edit::State(sealed), UnixMillis(u64::MAX), None);
        let send = Send { to, partition, record, edit, due, expires };
        self.ready.push_back(Ready::of(Some((source, offset)), send));
    }

    fn note_duplicate(&mut self, name: TimerKey, of: Place, entry: &Entry) {
        let directive = header::read(entry.record.headers()).unwrap_or_default();
        let label = directive.label.and_then(|label| std::str::from_utf8(label).ok());
        let note = Note {
            lane: entry.source.lane,
            place: entry.place(),
            of,
            due: entry.due,
            hops: entry.hops.saturating_add(1),
            target: Arc::clone(&entry.target),
            label: label.map(Box::from),
        };
        self.duplicates.note(name, note);
    }

    /// A duplicate has come up, and is decided about.
    pub(super) fn no_more_aside(&mut self, entry: &Entry) {
        if let Some(name) = entry.timer.filter(|_| entry.way == Way::Duplicate) {
            self.duplicates.forget(name, entry.place());
        }
    }

    /// Nothing is pending, and a cancel has come late: what was taken for a duplicate, and was submitted after the cancel, is
    /// pending now. This is for cancels that did not come straight to their lane: behind those that did, what stands there counts
    /// first.
    pub(super) fn follow(&mut self, now: UnixMillis, lane: Lane, void: &Void, cancel: &Entry) {
        let Some(note) = self.duplicates.first(void.name, void) else { return };
        debug_assert_eq!(note.lane, lane, "a timer has one lane");
        let directive = header::read(cancel.record.headers()).unwrap_or_default();
        let told = Told {
            phase: Phase::Delay,
            version: note.place,
            supersedes: None,
            due: note.due,
            since: now,
            target: &note.target,
            label: note.label.as_deref().map(str::as_bytes),
            id: directive.id.unwrap_or_default(),
            key: cancel.record.key(),
            code: None,
        };
        let record = verdict::timer_record(void.name, &told);
        let words = (&*note.target, note.label.as_deref());
        self.timers.put_live(lane, void.name, (note.place, note.due), words);
        self.glue();
        self.ready.push_back(Ready::said(lane, record, Because::Created));
    }
}
