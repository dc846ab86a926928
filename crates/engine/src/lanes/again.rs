//! Records that wait for their order and are dropped from memory meanwhile, for others that are due before them: they are
//! read again when it is their turn.
//!
//! Another hop would free the memory, too. But it takes a batch for every few of them, and whoever takes the lane over
//! next has them all before them again: with more that is late than memory holds, and batches that fail now and then,
//! a lane would never come to deliver. To drop and to read takes no batch.
//!
//! # Invariants
//! 1. What is missing was let go by a tier, is pending in its window, and bounds its lane's floor by its place.
//! 2. A partition is read again, from the first that is missing, once its lane waits for nothing before what is missing
//!    there; or as soon as its window is full. Nothing but what is missing is taken up then, and while memory is full
//!    nothing that would be the first to be dropped.
//! 3. Only offsets and places are kept of what is missing, outside of the memory budget. Windows bound how many there are.

use std::collections::{BTreeMap, BTreeSet};

use super::super::hold::Held;
use super::super::verdict::Entry;
use super::floor::Rank;
use super::{Engine, Lane, Offset, Output, Source, UnixMillis};

/// What is missing of one partition.
#[derive(Debug, Default)]
pub(super) struct Missing {
    ranks: BTreeMap<Offset, Rank>,
    ordered: BTreeSet<(Rank, Offset)>,
    /// It is being read again, up to this one.
    last: Option<Offset>,
}

impl Missing {
    pub(super) fn len(&self) -> usize {
        self.ranks.len()
    }

    /// The first place among them.
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

impl Engine {
    /// Whether a record can be dropped and read again: from an intake it goes on by a hop, which is for good, and from a
    /// full window it must.
    pub(super) fn may_drop(&self, now: UnixMillis, Source { topic, lane }: Source) -> bool {
        let hold = self.holds[usize::from(topic.0)][usize::from(lane.0)].as_ref();
        self.setup.topics.tier_of(topic).is_some() && hold.is_some_and(|hold| !hold.blocked(now))
    }

    /// Drops a record that waits for its order.
    pub(super) fn drop_for_now(&mut self, entry: &Entry) {
        let missing = self.floors.missing.entry(entry.source).or_default();
        missing.insert(entry.offset, (entry.due, entry.order));
        self.figures.memory_bytes -= entry.record.size();
    }

    /// Whether a partition is being read again.
    pub(super) fn is_again(&self, source: Source) -> bool {
        self.floors.missing.get(&source).is_some_and(|missing| missing.last.is_some())
    }

    /// Has a partition read again, if it is time for that.
    pub(super) fn begin_again(&mut self, now: UnixMillis, source: Source, out: &mut Vec<Output>) {
        let Some(missing) = self.floors.missing.get(&source) else { return };
        let (Some(rank), None) = (missing.first(), missing.last) else { return };
        let Some(hold) = self.hold(source) else { return };
        let (is_blocked, is_paused) = (hold.blocked(now), hold.is_paused());
        if self.draining || self.is_brimful() || !is_blocked && self.floor_now(source.lane) < rank {
            return;
        }
        if !is_paused && let Some(hold) = self.hold(source) {
            hold.pause();
            out.push(Output::Pause(source));
        }
        let Some(missing) = self.floors.missing.get_mut(&source) else { return };
        missing.last = missing.ranks.last_key_value().map(|(offset, _)| *offset);
        let first = missing.ranks.first_key_value().map(|(offset, _)| *offset);
        out.extend(first.map(|first| Output::Rewind(source, first)));
    }

    /// Ends it, once it is read so far; be it that reading went on behind that, since what was read ahead was dropped.
    pub(super) fn end_again(&mut self, source: Source, offset: Offset) {
        if let Some(missing) = self.floors.missing.get_mut(&source)
            && missing.last.is_some_and(|last| offset >= last)
        {
            missing.last = None;
        }
    }

    /// Takes what was read before, and is read again: nothing, or what is missing.
    pub(super) fn read_again(
        &mut self,
        now: UnixMillis,
        source: Source,
        held: Held,
        out: &mut Vec<Output>,
    ) {
        let last = if self.stopped && self.may_drop(now, source) {
            self.floors.last_waiting()
        } else {
            None
        };
        let Some(missing) = self.floors.missing.get_mut(&source) else { return };
        let Some(rank) = missing.ranks.get(&held.offset) else { return };
        if last.is_some_and(|last| last < *rank) {
            return;
        }
        missing.remove(held.offset);
        if missing.len() == 0 {
            self.floors.missing.remove(&source);
        }
        self.figures.memory_bytes += held.record.size();
        self.accept(now, source, held, out);
        self.wake(now);
    }

    /// The place of what the lane is to deliver first, of what was let go: it waits, or is missing.
    pub(super) fn first_ordered(&self, lane: Lane) -> Option<Rank> {
        let waiting = self.floors.waiting.get(usize::from(lane.0))?;
        let first = waiting.first_key_value().map(|((due, order, ..), _)| (*due, *order));
        let missing = self.floors.missing.iter().filter(|(source, _)| source.lane == lane);
        missing.filter_map(|(_, missing)| missing.first()).chain(first).min()
    }
}
