//! What waits for a time: records in the wheel, and the next time at which there is anything to do.
//!
//! # Invariants
//! 1. Nothing leaves before its due time by the `now` that is given.
//! 2. Due records that had to wait for something go through the wheel once more: what leaves together leaves by due time,
//!    and at the same due time by submission.
//! 3. The next time is never later than what was asked for since it was last forgotten.

use std::collections::VecDeque;

use super::super::verdict::PendingRecord;
use super::super::wheel::Wheel;
use super::figures::Figures;
use super::{Millis, UnixMillis};

/// What waits for a time.
#[derive(Debug)]
pub(super) struct Agenda {
    wheel: Wheel<Box<PendingRecord>>,
    /// Due records that had to wait for something.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    late: VecDeque<Box<PendingRecord>>,
    /// Nothing changes before this unless something is told.
    wake_at: Option<UnixMillis>,
}

impl Agenda {
    pub(super) fn new(horizon: Millis) -> Self {
        Self { wheel: Wheel::new(horizon), late: VecDeque::new(), wake_at: None }
    }

    /// There is something to do then.
    pub(super) fn wake(&mut self, at: UnixMillis) {
        self.wake_at = Some(self.wake_at.map_or(at, |wake| wake.min(at)));
    }

    /// All that is to be done at any time is looked through now.
    pub(super) fn forget_wake(&mut self) {
        self.wake_at = None;
    }

    pub(super) fn wake_at(&self) -> Option<UnixMillis> {
        self.wake_at
    }

    /// A record waits until it is due.
    pub(super) fn insert(&mut self, entry: Box<PendingRecord>) {
        self.wheel.insert(entry.due, entry.order, entry);
    }

    /// Due records wait for nothing any more.
    pub(super) fn put_back(&mut self, entries: impl IntoIterator<Item = Box<PendingRecord>>) {
        self.late.extend(entries);
    }

    /// Puts what was put back among what is due.
    pub(super) fn settle(&mut self) {
        for entry in std::mem::take(&mut self.late) {
            self.insert(entry);
        }
    }

    /// Takes what is due, at most so many.
    pub(super) fn pop_due(
        &mut self,
        now: UnixMillis,
        limit: usize,
        mut each: impl FnMut(Box<PendingRecord>),
    ) {
        self.wheel.pop_due(now, limit, |_, _, entry| each(entry));
    }

    /// Takes the records of the wheel that `which` says, by due time and order.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    pub(super) fn take_where(
        &mut self,
        mut which: impl FnMut(&PendingRecord) -> bool,
    ) -> Vec<Box<PendingRecord>> {
        let taken = self.wheel.take_where(|entry| which(entry));
        taken.into_iter().map(|(_, _, entry)| entry).collect()
    }

    /// When the next record of the wheel is due.
    pub(super) fn next_due(&self) -> Option<UnixMillis> {
        self.wheel.next_due()
    }

    /// Counts for the metrics.
    pub(super) fn count(&self, figures: &mut Figures) {
        figures.waiting = self.wheel.len();
        let late = self.late.iter().map(|entry| entry.due);
        figures.due(late.chain(self.wheel.next_due()).min());
    }

    /// Whether a due record waits for its batch.
    pub(super) fn has_late(&self) -> bool {
        !self.late.is_empty()
    }
}
