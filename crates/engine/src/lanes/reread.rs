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

use super::super::hold::Held;
use super::super::verdict::PendingRecord;
use super::strict_order::Rank;
use super::{Action, Lane, LaneEngine, Offset, Source, UnixMillis};

/// The evicted records of one partition.
#[derive(Debug, Default)]
pub(super) struct Evicted {
    ranks: BTreeMap<Offset, Rank>,
    ordered: BTreeSet<(Rank, Offset)>,
    /// It is being reread, up to this one.
    last: Option<Offset>,
}

impl Evicted {
    pub(super) fn len(&self) -> usize {
        self.ranks.len()
    }

    /// The first rank among them.
    pub(super) fn first(&self) -> Option<Rank> {
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

impl LaneEngine {
    /// Whether a record can be dropped and read again: from an intake it goes on by a hop, which is for good, and from a
    /// full window it must.
    pub(super) fn may_drop(&self, now: UnixMillis, Source { topic, lane }: Source) -> bool {
        let hold = self.holds[usize::from(topic.0)][usize::from(lane.0)].as_ref();
        self.setup.topics.tier_of(topic).is_some() && hold.is_some_and(|hold| !hold.blocked(now))
    }

    /// Evicts a record that waits for its order.
    pub(super) fn drop_for_now(&mut self, entry: &PendingRecord) {
        let evicted = self.strict_order.evicted.entry(entry.source).or_default();
        evicted.insert(entry.offset, (entry.due, entry.order));
        self.figures.memory_bytes -= entry.record.size();
    }

    /// Whether a partition is being reread.
    pub(super) fn is_reread(&self, source: Source) -> bool {
        self.strict_order.evicted.get(&source).is_some_and(|evicted| evicted.last.is_some())
    }

    /// Has a partition reread, if it is time for that.
    pub(super) fn begin_reread(&mut self, now: UnixMillis, source: Source, out: &mut Vec<Action>) {
        let Some(evicted) = self.strict_order.evicted.get(&source) else { return };
        let (Some(rank), None) = (evicted.first(), evicted.last) else { return };
        let Some(hold) = self.hold(source) else { return };
        let (is_blocked, is_paused) = (hold.blocked(now), hold.is_paused());
        if self.draining
            || self.is_over_hard_limit()
            || !is_blocked && self.floor_now(source.lane) < rank
        {
            return;
        }
        if !is_paused && let Some(hold) = self.hold(source) {
            hold.pause();
            out.push(Action::Pause(source));
        }
        let Some(evicted) = self.strict_order.evicted.get_mut(&source) else { return };
        evicted.last = evicted.ranks.last_key_value().map(|(offset, _)| *offset);
        let first = evicted.ranks.first_key_value().map(|(offset, _)| *offset);
        out.extend(first.map(|first| Action::Seek(source, first)));
    }

    /// Ends the reread, once it has come so far. Reading may have gone on beyond that, since records that were read
    /// ahead were dropped.
    pub(super) fn end_reread(&mut self, source: Source, offset: Offset) {
        if let Some(evicted) = self.strict_order.evicted.get_mut(&source)
            && evicted.last.is_some_and(|last| offset >= last)
        {
            evicted.last = None;
        }
    }

    /// Takes a record that is read again: only if it was evicted.
    pub(super) fn read_again(
        &mut self,
        now: UnixMillis,
        source: Source,
        held: Held,
        out: &mut Vec<Action>,
    ) {
        let last = if self.stopped && self.may_drop(now, source) {
            self.strict_order.last_waiting()
        } else {
            None
        };
        let Some(evicted) = self.strict_order.evicted.get_mut(&source) else { return };
        let Some(rank) = evicted.ranks.get(&held.offset) else { return };
        if last.is_some_and(|last| last < *rank) {
            return;
        }
        evicted.remove(held.offset);
        if evicted.len() == 0 {
            self.strict_order.evicted.remove(&source);
        }
        self.figures.memory_bytes += held.record.size();
        self.accept(now, source, held, out);
        self.wake(now);
    }

    /// The rank of what the lane is to deliver first, of what was let go: it waits, or was evicted.
    pub(super) fn first_ordered(&self, lane: Lane) -> Option<Rank> {
        let waiting = self.strict_order.waiting.get(usize::from(lane.0))?;
        let first = waiting.first_key_value().map(|((due, order, ..), _)| (*due, *order));
        let evicted = self.strict_order.evicted.iter().filter(|(source, _)| source.lane == lane);
        evicted.filter_map(|(_, evicted)| evicted.first()).chain(first).min()
    }
}
