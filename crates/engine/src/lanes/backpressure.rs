//! Backpressure: keeps memory and windows bounded. Pauses and resumes partitions, drops what can be read again, and lets
//! records hop once more.

use std::sync::Arc;

use super::super::verdict::PendingRecord;
use super::strict_order::pick;
use super::{Action, Lane, LaneEngine, Millis, Offset, Source, TopicId, Turn, UnixMillis};

/// Spilling is tried again after this long; it looks through the whole wheel.
const SPILL_AGAIN: Millis = Millis(250);
/// Pending records of one partition that one spill takes, at most.
const SPILL_MAX: usize = 1_000;
/// The same bound in strict order, where a record that holds a window up waits for records behind it.
const SPILL_MAX_STRICT: usize = 8_000;

impl LaneEngine {
    /// Frees windows that hold their partitions up: their lowest pending records hop once more.
    fn unblock(&mut self, now: UnixMillis) {
        if self.unblock_at > now {
            return self.wake(self.unblock_at);
        }
        let lanes = usize::from(self.setup.lanes);
        let mut cuts: Vec<Option<Offset>> = Vec::new();
        let most = if self.is_strict() { SPILL_MAX_STRICT } else { SPILL_MAX };
        for (topic, holds) in self.holds.iter().enumerate() {
            for (lane, hold) in holds.iter().enumerate() {
                if let Some(hold) = hold.as_ref().filter(|hold| hold.blocked(now)) {
                    cuts.resize(self.holds.len() * lanes, None);
                    cuts[topic * lanes + lane] = hold.window.lowest(most).last();
                }
            }
        }
        if cuts.is_empty() {
            return;
        }
        self.unblock_at = now + SPILL_AGAIN;
        self.wake(self.unblock_at);
        let which = |entry: &PendingRecord| {
            let Source { topic, lane } = entry.source;
            let cut = cuts[usize::from(topic.0) * lanes + usize::from(lane.0)];
            cut.is_some_and(|cut| entry.offset <= cut)
        };
        self.spill(now, which);
        self.spill_ordered(now, which);
    }

    /// Takes records out of the wheel that can still make it through a tier.
    fn spill(&mut self, now: UnixMillis, mut which: impl FnMut(&PendingRecord) -> bool) {
        let setup = Arc::clone(&self.setup);
        let (ladder, margin) = (&setup.topics.ladder, self.margin(now));
        let pick = |due: UnixMillis| pick(ladder, margin, due - now);
        let taken = self.wheel.take_where(|entry| pick(entry.due).is_some() && which(entry));
        for (due, _, entry) in taken {
            if let Some(tier) = pick(due) {
                self.figures.spilled += 1;
                self.hop(now, tier, entry);
            }
        }
        self.spill_waiting(now, &mut which);
        self.spill_parked(now, which);
    }

    /// Pauses or resumes one partition, as follows from what is held.
    pub(super) fn update_fetching(
        &mut self,
        now: UnixMillis,
        source: Source,
        out: &mut Vec<Action>,
    ) {
        let limits = &self.setup.limits;
        let reach = (limits.read_ahead, limits.resume_lead);
        let lanes = usize::from(self.setup.lanes).max(1);
        // One partition may hold a lot as long as all together do not; then each is kept to its share.
        let share = if self.held_bytes <= limits.memory_bytes / 4 {
            limits.memory_bytes / 8
        } else {
            (limits.memory_bytes / 4 / (self.holds.len() * lanes)).max(64 << 10)
        };
        self.stopped = self.draining
            || if self.stopped {
                self.figures.memory_bytes > limits.memory_bytes / 4 * 3
            } else {
                self.figures.memory_bytes > limits.memory_bytes
            };
        let none = self.draining || self.is_over_hard_limit();
        let stop = self.stopped && (none || !self.is_read_first(source));
        let share = (!self.is_reread(source)).then_some(share);
        let Some(hold) = self.hold(source) else { return };
        match hold.update_fetching(now, reach, share, stop) {
            Some(Turn::Pause) => out.push(Action::Pause(source)),
            Some(Turn::Resume) => out.push(Action::Resume(source)),
            None => {}
        }
    }

    pub(super) fn update_fetching_everywhere(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        for topic in 0..self.holds.len() {
            for lane in 0..self.holds[topic].len() {
                let source = Source { topic: TopicId(topic as u16), lane: Lane(lane as u16) };
                self.update_fetching(now, source, out);
            }
        }
    }

    /// One tick. It looks at every partition, releases due records, pauses, resumes and makes room. Then it computes
    /// the time of the next tick.
    pub(super) fn tick(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        self.wake = None;
        let lead = self.setup.limits.resume_lead;
        for topic in 0..self.holds.len() {
            for lane in 0..self.holds[topic].len() {
                let source = Source { topic: TopicId(topic as u16), lane: Lane(lane as u16) };
                if self.holds[topic][lane].is_none() {
                    continue;
                }
                self.release_due(now, source, out);
                self.begin_reread(now, source, out);
                self.update_fetching(now, source, out);
                if let Some(at) = self.hold(source).and_then(|hold| hold.wake_at(lead))
                    && at > now
                {
                    self.wake(at);
                }
            }
        }
        self.list_end_offsets(now, out);
        self.list_expired(now, out);
        self.ask_for_past(out);
        self.look_for_lost(now, out);
        self.unblock(now);
        if self.stopped && !self.draining {
            // What waits for its gate waits for no time: nothing else may wake us.
            if self.spill_at <= now { self.make_room(now, out) } else { self.wake(self.spill_at) }
        }
    }

    /// Over the budget: drop what was read of far tiers, and let what can still make it through a tier hop.
    fn make_room(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        self.spill_at = now + SPILL_AGAIN;
        self.wake(now + SPILL_AGAIN);
        let soon = now + self.setup.limits.resume_lead;
        for topic in 0..self.holds.len() {
            for lane in 0..self.holds[topic].len() {
                let source = Source { topic: TopicId(topic as u16), lane: Lane(lane as u16) };
                if let Some((offset, freed)) =
                    self.hold(source).and_then(|hold| hold.drop_buffer(soon))
                {
                    self.figures.memory_bytes -= freed;
                    self.held_bytes -= freed;
                    out.push(Action::Seek(source, offset));
                }
            }
        }
        let over = self.figures.memory_bytes.saturating_sub(self.setup.limits.memory_bytes / 4 * 3);
        let mut freed = 0;
        self.spill(now, |entry| {
            let take = freed < over;
            freed += if take { entry.record.size() } else { 0 };
            take
        });
        self.spill_last(now, over);
    }
}
