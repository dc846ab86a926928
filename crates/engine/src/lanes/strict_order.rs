//! Strict order: a keyed record may fire only when nothing still unread or in transit in its lane could sort before it.
//! The first rank that such a record could have is the lane's *floor*. See `docs/adr/0013-strict-order.md`.
//!
//! # Invariants
//! 1. Keyed records of a lane fire by due time, and at the same due time by submission. The exception is a record that
//!    was not readable in the lane `settle` before it was due: it fires at once.
//! 2. Every committed hop comes up before it is due ([`Setup::tardiness`](super::super::Setup)), or it stands in the
//!    shortest tier. There it is remembered until it is let go, and the next owner of the lane waits for that.
//! 3. A record waits only for partitions whose floor is at or below its due time. The lane's lowest such partition is
//!    read up to a quarter beyond the memory budget; no other is. Held records then go away by themselves. Of the
//!    records that wait, all but the very first hop, or are evicted and [reread](super::reread).
//! 4. A record without a key never waits here. In `by-due` no record does.

use std::collections::BTreeMap;

use super::super::ladder::Ladder;
use super::super::setup::Arrival;
use super::super::state::SubmissionOrder;
use super::super::verdict::PendingRecord;
use super::intake_watermark::{Waiting, rank_key};
use super::reread::Evicted;
use super::{Lane, LaneEngine, Millis, Offset, Source, TopicId, UnixMillis};

/// A rank in the order of a lane: when a record is due, and which of those was submitted first.
pub(super) type Rank = (UnixMillis, SubmissionOrder);

/// What a hop may take between the closing of its batch and its append, as long as none took longer; in both orders.
pub(super) const MARGIN: Millis = Millis(250);

/// What strict order has to remember.
#[derive(Debug)]
pub(super) struct StrictOrder {
    /// By lane: due records that wait for their order.
    pub(super) waiting: Vec<Waiting>,
    /// Those of them that were evicted, and are reread.
    pub(super) evicted: BTreeMap<Source, Evicted>,
    /// By lane: how many hops have this rank, of those that are collected, held for a test or in flight.
    leaving: Vec<BTreeMap<Rank, usize>>,
    /// Hops that came to stand late: everything there up to the offset has this rank or a later one.
    late: Vec<(Source, Offset, Rank)>,
    /// By lane: what was found for this batch.
    found: Vec<Option<Rank>>,
    /// Bytes of hops that are collected.
    pub(super) collected: usize,
}

impl StrictOrder {
    pub(super) fn new(lanes: u16) -> Self {
        let lanes = usize::from(lanes);
        Self {
            waiting: (0..lanes).map(|_| Waiting::new()).collect(),
            evicted: BTreeMap::new(),
            leaving: vec![BTreeMap::new(); lanes],
            late: Vec::new(),
            found: vec![None; lanes],
            collected: 0,
        }
    }

    /// How many records wait for their order, in memory or not.
    pub(super) fn waiting(&self) -> usize {
        let evicted: usize = self.evicted.values().map(Evicted::len).sum();
        evicted + self.waiting.iter().map(Waiting::len).sum::<usize>()
    }

    /// When the first of those in memory is due.
    pub(super) fn first_due(&self) -> Option<UnixMillis> {
        let firsts = self.waiting.iter().filter_map(Waiting::first_key_value);
        firsts.map(|((due, ..), _)| *due).min()
    }

    /// The last rank of those that wait in memory.
    pub(super) fn last_waiting(&self) -> Option<Rank> {
        let lasts = self.waiting.iter().filter_map(Waiting::last_key_value);
        lasts.map(|((due, order, ..), _)| (*due, *order)).max()
    }

    /// A hop is collected.
    pub(super) fn leaves(&mut self, lane: Lane, rank: Rank) {
        *self.leaving[usize::from(lane.0)].entry(rank).or_default() += 1;
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
}

/// The tier to wait in next: the longest that leaves so much in hand, and the shortest if none does.
pub(super) fn pick(ladder: &Ladder, margin: Millis, remains: Millis) -> Option<usize> {
    let with_margin = ladder.pick(remains.saturating_sub(margin));
    with_margin.or_else(|| ladder.pick(remains).map(|_| ladder.shortest()))
}

impl LaneEngine {
    pub(super) fn is_strict(&self) -> bool {
        self.setup.limits.arrival == Arrival::Strict
    }

    /// What a hop has to have in hand beyond what its tier needs.
    pub(super) fn margin(&self, now: UnixMillis) -> Millis {
        self.hops_margin.at(now)
    }

    /// How much time a hop into this tier must have left now, so that it comes up in time if its append takes no more than
    /// the margin. The shortest tier takes what has less, too.
    pub(super) fn needs(&self, now: UnixMillis, tier: usize) -> Option<Millis> {
        let needs = self.setup.needs(tier)?;
        (tier != self.setup.topics.ladder.shortest()).then(|| needs + self.margin(now))
    }

    /// A hop that was collected will not be one.
    pub(super) fn hops_not(&mut self, entry: &PendingRecord) {
        if self.is_strict() {
            self.strict_order.left(entry.source.lane, (entry.due, entry.order));
        }
    }

    /// A hop was appended late.
    pub(super) fn late_hop(&mut self, source: Source, offset: Offset, due: UnixMillis) {
        self.figures.late_hops += 1;
        if self.is_strict() && self.hold(source).is_some_and(|hold| !hold.is_gone(offset)) {
            // Of those that are due then the first that may be meant.
            let ranks = self.batches.hops().filter(|(lane, rank)| *lane == source.lane && rank.0 == due);
            let rank = ranks
                .map(|(_, rank)| *rank)
                .min()
                .unwrap_or_else(|| (due, SubmissionOrder::default()));
            self.strict_order.late.push((source, offset, rank));
        }
    }

    // The floor.

    /// The first rank that a record in this partition can have which was not let go.
    fn floor_of(&self, source: Source) -> Rank {
        let (at, lane) = (usize::from(source.topic.0), usize::from(source.lane.0));
        let before = |due| (due, SubmissionOrder::default());
        let Some(hold) = self.holds[at][lane].as_ref() else { return before(UnixMillis(u64::MAX)) };
        let brief = self.setup.topics.tier_of(source.topic).is_none_or(|tier| {
            // Any of these may have been the shortest of the owner before.
            self.setup.topics.ladder.tiers()[tier].reach() <= self.setup.limits.horizon
        });
        if brief && !hold.caught_up() {
            return before(UnixMillis(0));
        }
        let read = before(hold.floor(self.reach(source.topic).unwrap_or_default()));
        let late = self.strict_order.late.iter().filter(|(of, ..)| *of == source);
        let late = late.map(|(.., rank)| *rank);
        let evicted = self.strict_order.evicted.get(&source).and_then(Evicted::first);
        late.chain(evicted).fold(read, Rank::min)
    }

    /// The lane's floor; found once for each batch.
    fn floor(&mut self, lane: Lane) -> Rank {
        let at = usize::from(lane.0);
        if let Some(found) = self.strict_order.found[at] {
            return found;
        }
        let floor = self.floor_now(lane);
        self.strict_order.found[at] = Some(floor);
        floor
    }

    /// The same as it is now.
    pub(super) fn floor_now(&self, lane: Lane) -> Rank {
        let open = if self.is_open(lane) { UnixMillis(u64::MAX) } else { UnixMillis(0) };
        let mut floor = (open, SubmissionOrder::default());
        for topic in 0..self.holds.len() {
            floor = floor.min(self.floor_of(Source { topic: TopicId(topic as u16), lane }));
        }
        let leaving = self.strict_order.leaving[usize::from(lane.0)].first_key_value();
        let leaving = leaving.map(|(rank, _)| *rank);
        let asking = self.past.first(lane);
        self.poison.ranks(lane).chain(leaving).chain(asking).fold(floor, Rank::min)
    }

    /// Something is held for a test, or hops: what is to come after it waits for that.
    pub(super) fn lower_floor(&mut self, lane: Lane, rank: Rank) {
        if let Some(found) = &mut self.strict_order.found[usize::from(lane.0)] {
            *found = rank.min(*found);
        }
    }

    /// Gives a record back whose turn it is, and keeps one that must wait.
    pub(super) fn let_arrive(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
    ) -> Option<Box<PendingRecord>> {
        let (lane, due) = (entry.source.lane, entry.due);
        let is_bound = self.is_strict() && entry.record.key().is_some();
        if !is_bound || (due, entry.order) <= self.floor(lane) {
            return Some(entry);
        }
        self.strict_order.waiting[usize::from(lane.0)].insert(rank_key(&entry), entry);
        self.want_all(now, lane, due);
        None
    }

    /// Has those fire that wait for nothing any more, by putting them back among what is due.
    pub(super) fn fire_ordered(&mut self) {
        if !self.is_strict() {
            return;
        }
        if !self.strict_order.late.is_empty() {
            let (holds, late) = (&self.holds, &mut self.strict_order.late);
            late.retain(|(Source { topic, lane }, offset, _)| {
                let hold = &holds[usize::from(topic.0)][usize::from(lane.0)];
                hold.as_ref().is_some_and(|hold| !hold.is_gone(*offset))
            });
        }
        self.strict_order.found.fill(None);
        for lane in 0..self.strict_order.waiting.len() {
            if self.strict_order.waiting[lane].is_empty() {
                continue;
            }
            let floor = self.floor(Lane(lane as u16));
            let waiting = &mut self.strict_order.waiting[lane];
            // With those at the floor: a record does not wait for a copy of its own.
            while let Some(first) = waiting.first_entry()
                && (first.key().0, first.key().1) <= floor
            {
                self.late.push_back(first.remove());
            }
        }
    }

    /// Something became known of a lane: the next tick looks which waiting records fire by that.
    pub(super) fn wake_waiting(&mut self, lane: Lane) {
        if self.first_ordered(lane).is_some() {
            self.wake(UnixMillis(0));
        }
    }

    /// A record with a key is due then: by that time all partitions of its lane must be known about.
    pub(super) fn want_all(&mut self, now: UnixMillis, lane: Lane, due: UnixMillis) {
        for topic in 0..self.holds.len() {
            self.want(now, Source { topic: TopicId(topic as u16), lane }, due + Millis(1));
        }
    }

    /// What waits longest must know of everything that may hold it up.
    pub(super) fn want_for_order(&mut self, now: UnixMillis) {
        for lane in 0..self.strict_order.waiting.len() {
            let lane = Lane(lane as u16);
            if let Some((due, _)) = self.first_ordered(lane) {
                self.want_all(now, lane, due);
            }
        }
    }

    // Backpressure.

    /// Whether memory is over the hard limit: then not even what others wait for is read. The very first record that waits does
    /// not count, since it cannot be let go.
    pub(super) fn is_over_hard_limit(&self) -> bool {
        let most = self.setup.limits.memory_bytes / 4 * 5;
        self.figures.memory_bytes > most && {
            let firsts = self.strict_order.waiting.iter().filter_map(Waiting::first_key_value);
            let first = firsts.min_by_key(|(key, _)| **key).map(|(_, entry)| entry.record.size());
            self.figures.memory_bytes > most + first.unwrap_or_default()
        }
    }

    /// Whether the first that waits in the lane for its order waits for this partition: the shell should be quick to tell
    /// how far it is read.
    #[must_use]
    pub fn is_awaited(&self, source: Source) -> bool {
        self.first_ordered(source.lane).is_some_and(|first| self.floor_of(source) <= first)
    }

    /// Whether it is the one that the lane waits for before all others: then it is read beyond the budget.
    pub(super) fn is_read_first(&self, source: Source) -> bool {
        let floor = |topic| self.floor_of(Source { topic: TopicId(topic as u16), ..source });
        self.is_awaited(source)
            && (0..self.holds.len()).map(floor).min() == Some(self.floor_of(source))
    }

    /// Lets records that wait for their order hop once more, whichever are said; of each lane not the first.
    pub(super) fn spill_ordered(
        &mut self,
        now: UnixMillis,
        mut which: impl FnMut(&PendingRecord) -> bool,
    ) {
        let mut out = Vec::new();
        for waiting in &mut self.strict_order.waiting {
            let Some((first, entry)) = waiting.pop_first() else { continue };
            out.extend(waiting.extract_if(.., |_, entry| which(entry)).map(|(_, entry)| entry));
            waiting.insert(first, entry);
        }
        self.spill_late(now, out);
    }

    /// Takes those out of memory that are due last, until so many bytes are free once all that is leaving has left; the very
    /// first stays. So in the end those that are due first are here together, and nothing goes round for ever.
    pub(super) fn spill_last(&mut self, now: UnixMillis, bytes: usize) {
        let bytes = bytes.saturating_sub(self.strict_order.collected + self.batches.bytes());
        let (mut out, mut freed) = (Vec::new(), 0);
        let first = self.strict_order.waiting.iter().filter_map(Waiting::first_key_value);
        let first = first.map(|(key, _)| *key).min();
        while freed < bytes {
            let lasts = self.strict_order.waiting.iter_mut();
            let last = lasts.max_by_key(|waiting| waiting.last_key_value().map(|(key, _)| *key));
            let last =
                last.filter(|waiting| waiting.last_key_value().map(|(key, _)| *key) != first);
            let Some((_, entry)) = last.and_then(Waiting::pop_last) else { break };
            freed += entry.record.size();
            if self.may_drop(now, entry.source) {
                self.drop_for_now(&entry);
            } else {
                out.push(entry);
            }
        }
        self.spill_late(now, out);
    }
}

#[cfg(test)]
mod tests;
