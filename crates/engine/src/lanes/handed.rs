//! Remembers deliveries of records that expire, where a failed batch may yet have been carried out (`at_least_once`): a
//! record that may be in its target must not become a dead letter, too.
//!
//! A record may stand in several places: its hop, or its move to another lane, was written twice. So the memory goes by
//! what all its copies have in common: its bytes, and its times.
//!
//! # Invariants
//! 1. It outlives the take-over that follows a failure, but not the process, and does not go with a lane. After a crash
//!    such a record may be delivered and become a dead letter, as it may be delivered twice.
//! 2. It remembers the last [`MOST`] of them, which is more than can be on their way.
//! 3. Only a copy with the same place in the order of its lane counts as the one that is there for certain: two records
//!    of one producer may be the same in all else.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::super::header;
use super::super::state::SubmissionOrder;
use super::super::verdict::PendingRecord;

/// How many are remembered.
const MOST: usize = 1 << 16;

/// A record that expires, and which one of its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    record: u64,
    order: SubmissionOrder,
}

impl Mark {
    pub(super) fn of(entry: &PendingRecord) -> Self {
        let PendingRecord { source, record, due, order, first_appended, expires, .. } = entry;
        let mut hasher = DefaultHasher::new();
        (source.lane, due, first_appended, expires).hash(&mut hasher);
        (record.key(), record.value()).hash(&mut hasher);
        // Each copy has a state of its own.
        let own = record.headers().filter(|(name, _)| *name != header::STATE.as_bytes());
        own.for_each(|header| header.hash(&mut hasher));
        Self { record: hasher.finish(), order: *order }
    }
}

/// How much is known of a record that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum There {
    /// One of its copies may be in its target.
    Perhaps,
    /// This copy is.
    Surely,
}

/// The deliveries that were handed over, each with the copy that was acknowledged last.
#[derive(Debug, Default)]
pub(super) struct Handed {
    records: HashMap<u64, Option<SubmissionOrder>>,
    order: VecDeque<u64>,
}

impl Handed {
    pub(super) fn insert(&mut self, mark: Mark) {
        if self.records.contains_key(&mark.record) {
            return;
        }
        self.records.insert(mark.record, None);
        self.order.push_back(mark.record);
        if self.order.len() > MOST
            && let Some(first) = self.order.pop_front()
        {
            self.records.remove(&first);
        }
    }

    /// It is in its target.
    pub(super) fn acknowledged(&mut self, mark: Mark) {
        if let Some(known) = self.records.get_mut(&mark.record) {
            *known = Some(mark.order);
        }
    }

    /// `None`: it was not handed over.
    pub(super) fn is_there(&self, mark: Mark) -> Option<There> {
        let acknowledged = self.records.get(&mark.record)?;
        Some(if *acknowledged == Some(mark.order) { There::Surely } else { There::Perhaps })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Offset, UnixMillis};
    use super::*;

    fn mark(record: u64, offset: i64) -> Mark {
        Mark { record, order: SubmissionOrder { appended: UnixMillis(0), offset: Offset(offset) } }
    }

    #[test]
    fn the_last_are_remembered_and_no_more() {
        let (mut handed, most) = (Handed::default(), MOST as u64);
        let is_known = |handed: &Handed, at| handed.is_there(mark(at, 0)).is_some();
        (0..most).chain(0..5).for_each(|at| handed.insert(mark(at, 0)));
        assert!(is_known(&handed, 0) && is_known(&handed, most - 1));
        handed.insert(mark(most, 0));
        assert!(!is_known(&handed, 0) && is_known(&handed, 1));
        assert_eq!((handed.records.len(), handed.order.len()), (MOST, MOST));
    }

    #[test]
    fn a_copy_of_another_place_may_be_another_record() {
        let mut handed = Handed::default();
        handed.acknowledged(mark(1, 7));
        assert_eq!(handed.is_there(mark(1, 7)), None);
        handed.insert(mark(1, 7));
        assert_eq!(handed.is_there(mark(1, 7)), Some(There::Perhaps));
        handed.acknowledged(mark(1, 7));
        handed.insert(mark(1, 8));
        let of = |offset| handed.is_there(mark(1, offset));
        assert_eq!((of(7), of(8)), (Some(There::Surely), Some(There::Perhaps)));
    }
}
