//! Strict order: a keyed record may fire only when nothing still unread or in transit in its lane could sort before it.
//! The first rank that such a record could have is the lane's *floor*. See `docs/adr/0013-strict-order.md`.
//!
//! # Invariants
//! 1. Keyed records of a lane fire by due time, and at the same due time by submission. The exception is a record that
//!    was not readable in the lane `settle` before it was due: it fires at once.
//! 2. Every committed hop comes up before it is due ([`Setup::timing`](super::super::Setup)), or it stands in the
//!    shortest tier. There it is remembered until it is let go, and the next owner of the lane waits for that.
//! 3. A record waits only for partitions whose floor is at or below its due time. The lane's lowest such partition is
//!    read up to a quarter beyond the memory budget; no other is. Held records then go away by themselves. Of the
//!    records that wait, all but the very first hop, or are evicted and [reread](super::reread).
//! 4. A record without a key never waits here. In `by-due` no record does.

use std::collections::BTreeMap;

use super::super::setup::{Arrival, Setup};
use super::super::state::SubmissionOrder;
use super::super::verdict::PendingRecord;
use super::figures::Figures;
use super::intake_watermark::reach;
use super::partitions::Partitions;
use super::past::Past;
use super::poison::Poison;
use super::rank::{Rank, Waiting, rank_key};
use super::reread::Evicted;
use super::{Lane, Offset, Source, UnixMillis};

/// Where else records may be that must fire before others: besides those that wait here, and those that hop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elsewhere<'a> {
    pub(super) setup: &'a Setup,
    pub(super) partitions: &'a Partitions,
    pub(super) poison: &'a Poison,
    pub(super) past: &'a Past,
}

/// What strict order has to remember.
#[derive(Debug)]
pub(super) struct StrictOrder {
    /// By lane: due records that wait for their order.
    waiting: Vec<Waiting>,
    /// Those of them that were evicted, and are reread.
    evicted: Evicted,
    /// By lane: how many hops have this rank, of those that are collected, held for a test or in flight.
    leaving: Vec<BTreeMap<Rank, usize>>,
    /// Hops that came to stand late: everything there up to the offset has this rank or a later one.
    late: Vec<(Source, Offset, Rank)>,
    /// By lane: what was found for this batch.
    found: Vec<Option<Rank>>,
}

impl StrictOrder {
    pub(super) fn new(lanes: u16) -> Self {
        let lanes = usize::from(lanes);
        Self {
            waiting: (0..lanes).map(|_| Waiting::new()).collect(),
            evicted: Evicted::default(),
            leaving: vec![BTreeMap::new(); lanes],
            late: Vec::new(),
            found: vec![None; lanes],
        }
    }

    /// Counts for the metrics.
    pub(super) fn count(&self, figures: &mut Figures) {
        let waiting: usize = self.waiting.iter().map(Waiting::len).sum();
        figures.ordered = self.evicted.len() + waiting;
        figures.due(self.very_first().map(|entry| entry.due));
    }

    /// The size of the very first of those in memory.
    pub(super) fn first_size(&self) -> usize {
        self.very_first().map_or(0, |entry| entry.record.size())
    }

    fn very_first(&self) -> Option<&PendingRecord> {
        let firsts = self.waiting.iter().filter_map(Waiting::first_key_value);
        firsts.min_by_key(|(key, _)| **key).map(|(_, entry)| &**entry)
    }

    /// The rank of the first record that the lane is to deliver, of those that were let go: it waits, or was evicted.
    pub(super) fn first(&self, lane: Lane) -> Option<Rank> {
        let waiting = self.waiting.get(usize::from(lane.0))?;
        let first = waiting.first_key_value().map(|((due, order, ..), _)| (*due, *order));
        self.evicted.first_of_lane(lane).into_iter().chain(first).min()
    }

    // Hops.

    /// A hop is collected.
    pub(super) fn leaves(&mut self, lane: Lane, rank: Rank) {
        *self.leaving[usize::from(lane.0)].entry(rank).or_default() += 1;
        self.lower_floor(lane, rank);
    }

    /// It stands in its tier, or will not go there.
    pub(super) fn left(&mut self, lane: Lane, rank: Rank) {
        let leaving = &mut self.leaving[usize::from(lane.0)];
        if let Some(count) = leaving.get_mut(&rank) {
            *count -= 1;
            if *count == 0 {
                leaving.remove(&rank);
            }
        }
    }

    /// A hop came to stand late.
    pub(super) fn note_late(&mut self, source: Source, offset: Offset, rank: Rank) {
        self.late.push((source, offset, rank));
    }

    // The floor.

    /// The first rank that a record in this partition can have which was not let go.
    fn floor_of(&self, Elsewhere { setup, partitions, .. }: Elsewhere<'_>, source: Source) -> Rank {
        let before = |due| (due, SubmissionOrder::default());
        // Tasks take no part in it.
        let is_of_workers = setup.topics.results() == Some(source.topic);
        let hold = partitions.get(source).filter(|_| !is_of_workers);
        let Some(hold) = hold else { return before(UnixMillis(u64::MAX)) };
        let brief = setup.topics.tier_of(source.topic).is_none_or(|tier| {
            // Any of these may have been the shortest of the owner before.
            setup.topics.ladder.tiers()[tier].reach() <= setup.limits.horizon
        });
        if brief && !hold.caught_up() {
            return before(UnixMillis(0));
        }
        let read = before(hold.floor(reach(setup, source.topic).unwrap_or_default()));
        let late = self.late.iter().filter(|(of, ..)| *of == source);
        let late = late.map(|(.., rank)| *rank);
        late.chain(self.evicted.first(source)).fold(read, Rank::min)
    }

    /// The lane's floor as it is now.
    pub(super) fn floor_now(&self, elsewhere: Elsewhere<'_>, lane: Lane) -> Rank {
        let Elsewhere { partitions, poison, past, .. } = elsewhere;
        let open = if partitions.is_open(lane) { UnixMillis(u64::MAX) } else { UnixMillis(0) };
        let mut floor = (open, SubmissionOrder::default());
        for source in partitions.of_lane(lane) {
            floor = floor.min(self.floor_of(elsewhere, source));
        }
        let leaving = self.leaving[usize::from(lane.0)].first_key_value();
        let leaving = leaving.map(|(rank, _)| *rank);
        poison.ranks(lane).chain(leaving).chain(past.first(lane)).fold(floor, Rank::min)
    }

    /// The same; found once for each batch.
    fn floor(&mut self, elsewhere: Elsewhere<'_>, lane: Lane) -> Rank {
        let at = usize::from(lane.0);
        if let Some(found) = self.found[at] {
            return found;
        }
        let floor = self.floor_now(elsewhere, lane);
        self.found[at] = Some(floor);
        floor
    }

    /// A record is held for a test, or hops: records with a later rank wait for it.
    pub(super) fn lower_floor(&mut self, lane: Lane, rank: Rank) {
        if let Some(found) = &mut self.found[usize::from(lane.0)] {
            *found = rank.min(*found);
        }
    }

    /// Whether the first that waits in the lane waits for this partition.
    pub(super) fn is_awaited(&self, elsewhere: Elsewhere<'_>, source: Source) -> bool {
        self.first(source.lane).is_some_and(|first| self.floor_of(elsewhere, source) <= first)
    }

    /// Whether it is the one that the lane waits for before all others.
    pub(super) fn is_read_first(&self, elsewhere: Elsewhere<'_>, source: Source) -> bool {
        let floor = |source| self.floor_of(elsewhere, source);
        self.is_awaited(elsewhere, source)
            && elsewhere.partitions.of_lane(source.lane).map(floor).min() == Some(floor(source))
    }

    // Records that wait.

    /// Returns a due record if it is its turn, and keeps it otherwise.
    pub(super) fn let_arrive(
        &mut self,
        elsewhere: Elsewhere<'_>,
        entry: Box<PendingRecord>,
    ) -> Option<Box<PendingRecord>> {
        let lane = entry.source.lane;
        let is_strict = elsewhere.setup.limits.arrival == Arrival::Strict;
        let is_bound = is_strict && entry.record.key().is_some();
        if !is_bound || (entry.due, entry.order) <= self.floor(elsewhere, lane) {
            return Some(entry);
        }
        self.waiting[usize::from(lane.0)].insert(rank_key(&entry), entry);
        None
    }

    /// Takes those that wait for nothing any more. All floors are found again.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    pub(super) fn take_free(&mut self, elsewhere: Elsewhere<'_>) -> Vec<Box<PendingRecord>> {
        let partitions = elsewhere.partitions;
        self.late.retain(|(source, offset, _)| {
            partitions.get(*source).is_some_and(|hold| !hold.is_gone(*offset))
        });
        self.found.fill(None);
        let mut free = Vec::new();
        for lane in 0..self.waiting.len() {
            if self.waiting[lane].is_empty() {
                continue;
            }
            let floor = self.floor(elsewhere, Lane(lane as u16));
            // With those at the floor: a record does not wait for a copy of its own.
            while let Some(first) = self.waiting[lane].first_entry()
                && (first.key().0, first.key().1) <= floor
            {
                free.push(first.remove());
            }
        }
        free
    }

    /// Takes those that wait and that `which` says; of each lane not the first.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    pub(super) fn take_where(
        &mut self,
        mut which: impl FnMut(&PendingRecord) -> bool,
    ) -> Vec<Box<PendingRecord>> {
        let mut out = Vec::new();
        for waiting in &mut self.waiting {
            let Some((first, entry)) = waiting.pop_first() else { continue };
            out.extend(waiting.extract_if(.., |_, entry| which(entry)).map(|(_, entry)| entry));
            waiting.insert(first, entry);
        }
        out
    }

    /// Takes those that are due last, until they have so many bytes; the very first one stays. So in the end the records that
    /// are due first are here together, and no record circles for ever.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    pub(super) fn take_last(&mut self, bytes: usize) -> Vec<Box<PendingRecord>> {
        let (mut out, mut freed) = (Vec::new(), 0);
        let first = self.waiting.iter().filter_map(Waiting::first_key_value);
        let first = first.map(|(key, _)| *key).min();
        while freed < bytes {
            let lasts = self.waiting.iter_mut();
            let last = lasts.max_by_key(|waiting| waiting.last_key_value().map(|(key, _)| *key));
            let last =
                last.filter(|waiting| waiting.last_key_value().map(|(key, _)| *key) != first);
            let Some((_, entry)) = last.and_then(Waiting::pop_last) else { break };
            freed += entry.record.size();
            out.push(entry);
        }
        out
    }

    // Records that were evicted.

    /// Evicts a record that waits for its order.
    pub(super) fn evict(&mut self, entry: &PendingRecord) {
        self.evicted.insert(entry);
    }

    /// Takes a record that is read again: only if it was evicted. `is_full`: none that would be the first to be evicted.
    pub(super) fn take_evicted(&mut self, source: Source, offset: Offset, is_full: bool) -> bool {
        let lasts = self.waiting.iter().filter_map(Waiting::last_key_value);
        let last = lasts.map(|((due, order, ..), _)| (*due, *order)).max();
        self.evicted.take(source, offset, last.filter(|_| is_full))
    }

    /// Whether a partition is being reread.
    pub(super) fn is_reread(&self, source: Source) -> bool {
        self.evicted.is_reread(source)
    }

    /// Whether it is time to reread a partition. `is_blocked`: its window is full.
    pub(super) fn may_reread(
        &self,
        elsewhere: Elsewhere<'_>,
        source: Source,
        is_blocked: bool,
    ) -> bool {
        let Some(rank) = self.evicted.first(source) else { return false };
        let is_turn = || is_blocked || rank <= self.floor_now(elsewhere, source.lane);
        !self.is_reread(source) && is_turn()
    }

    /// Begins to reread a partition; says from where.
    pub(super) fn begin_reread(&mut self, source: Source) -> Option<Offset> {
        self.evicted.begin(source)
    }

    /// A reread has come so far.
    pub(super) fn end_reread(&mut self, source: Source, offset: Offset) {
        self.evicted.end(source, offset);
    }
}

#[cfg(test)]
mod tests;
