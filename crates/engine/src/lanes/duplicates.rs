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

use std::sync::Arc;

use super::super::header;
use super::super::timers::{ByName, CancelMark, TimerId, Version};
use super::super::verdict::PendingRecord;
use super::UnixMillis;

/// A producer may create again and again before it cancels: the last one stands behind every cancel that any of them does.
const OF_ONE_MAX: usize = 4;
/// In a thread.
const IN_ALL_MAX: usize = 2_048;
/// Where owners change without end, each of them keeps it again.
pub(super) const HOPS_MAX: u16 = 512;

/// The duplicates that wait in tiers.
#[derive(Debug, Default)]
pub(super) struct Duplicates {
    of: ByName<Vec<Note>>,
    len: usize,
}

/// One of them, as it would be pending.
#[derive(Debug)]
pub(super) struct Note {
    pub(super) version: Version,
    /// The version that was pending last.
    of: Version,
    pub(super) due: UnixMillis,
    /// How often it had hopped when it left.
    hops: u16,
    pub(super) target: Arc<str>,
    pub(super) label: Option<Box<str>>,
}

impl Note {
    /// A duplicate that is about to leave for its tier.
    fn new(of: Version, entry: &PendingRecord) -> Self {
        let directive = header::read(entry.record.headers()).unwrap_or_default();
        let label = directive.label.and_then(|label| std::str::from_utf8(label).ok());
        Self {
            version: entry.version(),
            of,
            due: entry.due,
            hops: entry.hops.saturating_add(1),
            target: Arc::clone(&entry.target),
            label: label.map(Box::from),
        }
    }
}

/// The one that stands first, with its number.
fn earliest<'a>(notes: impl Iterator<Item = (usize, &'a Note)>) -> Option<(usize, &'a Note)> {
    notes.reduce(|a, b| if b.1.version.is_before(a.1.version) { b } else { a })
}

impl Duplicates {
    /// Makes room for one that is new, or has come up again.
    pub(super) fn make_room(&mut self, timer_id: TimerId, is_new: bool) -> bool {
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

    /// A duplicate of this version leaves for its tier.
    pub(super) fn note(&mut self, timer_id: TimerId, of: Version, entry: &PendingRecord) {
        let note = Note::new(of, entry);
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
    pub(super) fn is_copy(&self, timer_id: TimerId, version: Version, hops: u16) -> bool {
        let mut notes = self.of.get(&timer_id).into_iter().flatten();
        notes.any(|note| note.version == version && note.hops != hops)
    }

    /// It has come up, or is finished.
    pub(super) fn forget(&mut self, timer_id: TimerId, version: Version) {
        self.keep(timer_id, |note| note.version != version);
    }

    /// Takes out the first of a timer that is behind a cancel, if that covers what was pending. What its mark covers
    /// besides, other commands have ended: they part nothing.
    pub(super) fn take_first(&mut self, mark: &CancelMark, by: Version) -> Option<Note> {
        let timer_id = mark.timer_id;
        let notes = self.of.get_mut(&timer_id)?;
        let parts = |note: &Note| note.of.is_before(by) && !mark.covers(note.version);
        let standing = notes.iter().enumerate().filter(|(_, note)| parts(note));
        let (first, _) = earliest(standing)?;
        let note = notes.swap_remove(first);
        self.len -= 1;
        self.come_after(timer_id, note.version);
        Some(note)
    }
}
