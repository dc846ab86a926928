//! Records that wait for their order may be evicted from memory, to make room for others that are due before them. They are
//! reread when it is their turn.
//!
//! Another hop would free the memory, too. But it takes a batch for every few of them, and the next owner of the lane has
//! all of them to do again: with more late records than memory holds, and a batch that fails now and then, a lane would
//! never deliver. To evict and to reread takes no batch.
//!
//! # Invariants
//! 1. An evicted record was let go by a tier, is pending in its window, and bounds its lane's floor by its rank.
//! 2. A partition is reread, from its first evicted record, once its lane waits for nothing before the evicted ones there;
//!    or as soon as its window is full. Only evicted records are admitted then, and while memory is full none that would be
//!    the first to be evicted.
//! 3. Only offset and rank of an evicted record are kept, outside of the memory budget. Windows bound how many there are.

use std::collections::{BTreeMap, BTreeSet};

use super::super::verdict::PendingRecord;
use super::rank::Rank;
use super::{Lane, Offset, Source};

/// The evicted records of one partition.
#[derive(Debug, Default)]
struct OfPartition {
    ranks: BTreeMap<Offset, Rank>,
    ordered: BTreeSet<(Rank, Offset)>,
    /// It is being reread, up to this one.
    last: Option<Offset>,
}

impl OfPartition {
    /// The first rank among them.
    fn first(&self) -> Option<Rank> {
        self.ordered.first().map(|(rank, _)| *rank)
    }

    fn insert(&mut self, offset: Offset, rank: Rank) {
        self.ranks.insert(offset, rank);
        self.ordered.insert((rank, offset));
    }

    fn remove(&mut self, offset: Offset) {
        if let Some(rank) = self.ranks.remove(&offset) {
            self.ordered.remove(&(rank, offset));
        }
    }
}

/// All evicted records.
#[derive(Debug, Default)]
pub(super) struct Evicted {
    of: BTreeMap<Source, OfPartition>,
}

impl Evicted {
    /// Evicts a record.
    pub(super) fn insert(&mut self, entry: &PendingRecord) {
        let of = self.of.entry(entry.source).or_default();
        of.insert(entry.offset, (entry.due, entry.order));
    }

    /// Takes a record out that is read again: only if it was evicted, and has no later rank than this.
    pub(super) fn take(&mut self, source: Source, offset: Offset, last: Option<Rank>) -> bool {
        let Some(of) = self.of.get_mut(&source) else { return false };
        let Some(rank) = of.ranks.get(&offset) else { return false };
        if last.is_some_and(|last| last < *rank) {
            return false;
        }
        of.remove(offset);
        if of.ranks.is_empty() {
            self.of.remove(&source);
        }
        true
    }

    pub(super) fn len(&self) -> usize {
        self.of.values().map(|of| of.ranks.len()).sum()
    }

    /// The first rank in a partition.
    pub(super) fn first(&self, source: Source) -> Option<Rank> {
        self.of.get(&source)?.first()
    }

    /// The first rank in a lane.
    pub(super) fn first_of_lane(&self, lane: Lane) -> Option<Rank> {
        let of_lane = self.of.iter().filter(|(source, _)| source.lane == lane);
        of_lane.filter_map(|(_, of)| of.first()).min()
    }

    // Rereading.

    /// Whether a partition is being reread.
    pub(super) fn is_reread(&self, source: Source) -> bool {
        self.of.get(&source).is_some_and(|of| of.last.is_some())
    }

    /// Begins to reread a partition; says from where.
    pub(super) fn begin(&mut self, source: Source) -> Option<Offset> {
        let of = self.of.get_mut(&source)?;
        of.last = of.ranks.last_key_value().map(|(offset, _)| *offset);
        of.ranks.first_key_value().map(|(offset, _)| *offset)
    }

    /// Ends the reread, once it has come so far. Reading may have gone on beyond that, since records that were read
    /// ahead were dropped.
    pub(super) fn end(&mut self, source: Source, offset: Offset) {
        if let Some(of) = self.of.get_mut(&source)
            && of.last.is_some_and(|last| offset >= last)
        {
            of.last = None;
        }
    }
}
