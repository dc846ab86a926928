//! Backpressure: keeps memory and windows bounded. Pauses and resumes partitions, drops what can be read again, and lets
//! records hop once more.
//!
//! # Invariants
//! 1. Over the budget nothing is read, but for the one partition that a lane waits for before all others. What is held
//!    goes away without reading: the wheel within the horizon, hops within the linger, buffers of far tiers by being dropped.
//! 2. A window that holds its partition up is freed: its lowest pending records hop once more.

use std::sync::Arc;

use super::super::hold::{Held, Turn};
use super::super::verdict::PendingRecord;
use super::{Action, LaneEngine, Offset, Source, UnixMillis};

/// Pending records of one partition that one spill takes, at most.
const SPILL_MAX: usize = 1_000;
/// The same bound in strict order, where a record that holds a window up waits for records behind it.
const SPILL_MAX_STRICT: usize = 8_000;

impl LaneEngine {
    /// One tick. It looks at every partition, releases due records, pauses, resumes and makes room. Then it computes
    /// the time of the next tick.
    pub(super) fn tick(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        self.agenda.forget_wake();
        let lead = self.setup.limits.resume_lead;
        for source in self.partitions.sources() {
            if self.partitions.get(source).is_none() {
                continue;
            }
            self.release_due(now, source, out);
            self.begin_reread(now, source, out);
            self.update_fetching(now, source, out);
            if let Some(at) = self.partitions.get(source).and_then(|hold| hold.wake_at(lead))
                && at > now
            {
                self.agenda.wake(at);
            }
        }
        self.list_end_offsets(now, out);
        self.list_expired(now, out);
        self.ask_for_past(out);
        self.look_for_lost(now, out);
        self.unblock(now);
        self.look_at_tasks(now);
        self.end_waits_for_paused(now);
        if self.memory.is_stopped() && !self.memory.is_draining() {
            // What waits for its gate waits for no time: nothing else may wake us.
            let (may, again_at) = self.memory.begin_spill(now);
            self.agenda.wake(again_at);
            if may {
                self.make_room(now, out);
            }
        }
    }

    // Reading.

    /// Pauses or resumes one partition, as follows from what is held.
    pub(super) fn update_fetching(
        &mut self,
        now: UnixMillis,
        source: Source,
        out: &mut Vec<Action>,
    ) {
        let limits = &self.setup.limits;
        let reach = (limits.read_ahead, limits.resume_lead);
        // One partition may hold a lot as long as all together do not; then each is kept to its share.
        let share = self.memory.share(limits.memory_bytes, self.partitions.len().max(1));
        let is_stopped = self.memory.update(limits.memory_bytes);
        let none = self.memory.is_draining() || self.is_over_hard_limit();
        let stop =
            is_stopped && (none || !self.strict_order.is_read_first(self.elsewhere(), source));
        let share = (!self.strict_order.is_reread(source)).then_some(share);
        let Some(hold) = self.partitions.get_mut(source) else { return };
        match hold.update_fetching(now, reach, share, stop) {
            Some(Turn::Pause) => out.push(Action::Pause(source)),
            Some(Turn::Resume) => out.push(Action::Resume(source)),
            None => {}
        }
    }

    pub(super) fn update_fetching_everywhere(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        for source in self.partitions.sources() {
            self.update_fetching(now, source, out);
        }
    }

    /// Whether memory is over the hard limit: then not even what others wait for is read. The very first record that waits does
    /// not count, since it cannot be let go.
    pub(super) fn is_over_hard_limit(&self) -> bool {
        let budget = self.setup.limits.memory_bytes;
        self.memory.is_over_hard_limit(budget, || self.strict_order.first_size())
    }

    /// Has a partition reread, if it is time for that.
    fn begin_reread(&mut self, now: UnixMillis, source: Source, out: &mut Vec<Action>) {
        let Some(hold) = self.partitions.get(source) else { return };
        if self.memory.is_draining()
            || self.is_over_hard_limit()
            || !self.strict_order.may_reread(self.elsewhere(), source, hold.blocked(now))
        {
            return;
        }
        if let Some(hold) = self.partitions.get_mut(source).filter(|hold| !hold.is_paused()) {
            hold.pause();
            out.push(Action::Pause(source));
        }
        let first = self.strict_order.begin_reread(source);
        out.extend(first.map(|first| Action::Seek(source, first)));
    }

    /// Takes a record that is read again: only if it was evicted.
    pub(super) fn read_again(
        &mut self,
        now: UnixMillis,
        source: Source,
        held: Held,
        out: &mut Vec<Action>,
    ) {
        let is_full = self.memory.is_stopped() && self.may_drop(now, source);
        if self.strict_order.take_evicted(source, held.offset, is_full) {
            self.memory.hold(held.record.size());
            self.accept(now, source, held, out);
            self.agenda.wake(now);
        }
    }

    // Room.

    /// Over the budget: drop what was read of far tiers, and let what can still make it through a tier hop.
    fn make_room(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        let soon = now + self.setup.limits.resume_lead;
        for source in self.partitions.sources() {
            let hold = self.partitions.get_mut(source);
            if let Some((offset, freed)) = hold.and_then(|hold| hold.drop_buffer(soon)) {
                self.memory.unbuffer(freed);
                self.memory.free(freed);
                out.push(Action::Seek(source, offset));
            }
        }
        let over = self.memory.excess(self.setup.limits.memory_bytes);
        let mut freed = 0;
        self.spill(now, |entry| {
            let take = freed < over;
            freed += if take { entry.record.size() } else { 0 };
            take
        });
        self.spill_last(now, over);
    }

    /// Frees windows that hold their partitions up: their lowest pending records hop once more.
    fn unblock(&mut self, now: UnixMillis) {
        let unblock_at = self.memory.unblock_at();
        if unblock_at > now {
            return self.agenda.wake(unblock_at);
        }
        let lanes = usize::from(self.setup.lanes);
        let at = |Source { topic, lane }| usize::from(topic.0) * lanes + usize::from(lane.0);
        let mut cuts: Vec<Option<Offset>> = Vec::new();
        let most = if self.is_strict() { SPILL_MAX_STRICT } else { SPILL_MAX };
        for (source, hold) in self.partitions.iter().filter(|(_, hold)| hold.blocked(now)) {
            cuts.resize(self.partitions.len(), None);
            cuts[at(source)] = hold.window.lowest(most).last();
        }
        if cuts.is_empty() {
            return;
        }
        let again_at = self.memory.begin_unblock(now);
        self.agenda.wake(again_at);
        let which =
            |entry: &PendingRecord| cuts[at(entry.source)].is_some_and(|cut| entry.offset <= cut);
        self.spill(now, which);
        let ordered = self.strict_order.take_where(which);
        self.spill_late(now, ordered);
    }

    /// Takes records out of the wheel that can still make it through a tier, and those that wait for something.
    fn spill(&mut self, now: UnixMillis, mut which: impl FnMut(&PendingRecord) -> bool) {
        let setup = Arc::clone(&self.setup);
        let (ladder, hops) = (&setup.topics.ladder, &self.hops);
        let pick = |due: UnixMillis| hops.pick(ladder, now, due - now);
        let taken = self.agenda.take_where(|entry| pick(entry.due).is_some() && which(entry));
        let tiers: Vec<_> = taken.iter().map(|entry| pick(entry.due)).collect();
        for (entry, tier) in taken.into_iter().zip(tiers) {
            if let Some(tier) = tier {
                self.memory.count_spilled(1);
                self.hop(now, tier, entry);
            }
        }
        let waiting = self.watermarks.take_where(&mut which);
        self.spill_late(now, waiting);
        self.spill_parked(now, &mut which);
        self.spill_paused(now, &mut which);
        self.spill_rated(now, which);
    }

    /// Overdue records go into the shortest tier once more.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    pub(super) fn spill_late(&mut self, now: UnixMillis, entries: Vec<Box<PendingRecord>>) {
        let tier = self.setup.topics.ladder.shortest();
        for mut entry in entries {
            self.memory.count_spilled(1);
            // However long it takes, it is no fault of the record's.
            entry.hops = entry.hops.saturating_sub(1);
            self.hop(now, tier, entry);
        }
    }

    /// Takes those out of memory that are due last, until so many bytes are free once all that is leaving has left.
    fn spill_last(&mut self, now: UnixMillis, bytes: usize) {
        let bytes = bytes.saturating_sub(self.hops.bytes() + self.batches.bytes());
        let mut out = Vec::new();
        for entry in self.strict_order.take_last(bytes) {
            if self.may_drop(now, entry.source) {
                self.strict_order.evict(&entry);
                self.memory.free(entry.record.size());
            } else {
                out.push(entry);
            }
        }
        self.spill_late(now, out);
    }

    /// Whether a record can be dropped and read again: from an intake it goes on by a hop, which is for good, and from a
    /// full window it must.
    fn may_drop(&self, now: UnixMillis, source: Source) -> bool {
        let hold = self.partitions.get(source);
        self.setup.topics.tier_of(source.topic).is_some()
            && hold.is_some_and(|hold| !hold.blocked(now))
    }
}
