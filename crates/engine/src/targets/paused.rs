//! Targets that somebody has paused: what is due for them waits here, in memory as far as there is room.
//!
//! # Invariants
//! 1. Nothing of a paused target goes on. After its end what has waited goes on by due time, before what is due later.
//! 2. What waits in memory is bounded, in number and in bytes. What finds no room waits in tiers: those records come up one after
//!    the other, and what is due after the end of the pause waits until all of them have come up.
//! 3. What waits is gone with the lanes. That a target is paused stays.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::setup::Limits;
use super::super::task::registry::Registry;
use super::super::verdict::PendingRecord;
use super::super::{Lane, Millis, UnixMillis};
use crate::state::SubmissionOrder;

/// Records that may wait.
const RECORDS_MAX: usize = 16_384;
/// The part of the memory budget that they may take.
const SHARE: usize = 8;
/// How long a record is on its way out of its tier, at most, beside its wait there.
const COMES_UP_WITHIN: Millis = Millis(5_000);

type Place = (UnixMillis, SubmissionOrder, Lane);

/// One target.
#[derive(Debug)]
struct State {
    since: UnixMillis,
    /// Its pause has ended then.
    ended: Option<UnixMillis>,
    /// What waits in tiers has come up by then.
    up_by: UnixMillis,
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    waiting: BTreeMap<Place, Box<PendingRecord>>,
}

/// What becomes of a due record.
#[derive(Debug)]
pub(crate) enum Held {
    /// It goes on.
    No(Box<PendingRecord>),
    /// It waits in memory.
    Yes,
    /// It has to wait in a tier: its target is paused since then.
    InTier(Box<PendingRecord>, UnixMillis),
}

/// All targets that are paused, or were a moment ago.
#[derive(Debug, Default)]
pub(crate) struct Paused {
    by_name: BTreeMap<Arc<str>, State>,
    records: usize,
    bytes: usize,
}

impl Paused {
    /// The lanes are gone, and what was held of them.
    pub(crate) fn reset(&mut self) {
        (self.records, self.bytes) = (0, 0);
        self.by_name.retain(|_, state| state.ended.is_none());
        for state in self.by_name.values_mut() {
            state.waiting.clear();
            state.up_by = UnixMillis(0);
        }
    }

    /// Takes in which targets are paused now. Gives back what goes on by that, by due time.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    pub(crate) fn set(&mut self, now: UnixMillis, registry: &Registry) -> Vec<Box<PendingRecord>> {
        for name in registry.paused_targets() {
            let new = || State {
                since: now,
                ended: None,
                up_by: UnixMillis(0),
                waiting: BTreeMap::new(),
            };
            let state = match self.by_name.get_mut(name) {
                Some(state) => state,
                None => self.by_name.entry(name.into()).or_insert_with(new),
            };
            if state.ended.take().is_some() {
                state.since = now;
            }
        }
        let mut free = Vec::new();
        for (name, state) in &mut self.by_name {
            if !registry.is_target_paused(name) && state.ended.is_none() {
                state.ended = Some(now);
                free.extend(std::mem::take(&mut state.waiting).into_values());
            }
        }
        self.release(&free);
        free.extend(self.end_waits(now));
        free
    }

    /// What was due after the end of a pause goes on, if all that was due before has come up.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    pub(crate) fn end_waits(&mut self, now: UnixMillis) -> Vec<Box<PendingRecord>> {
        if self.by_name.is_empty() {
            return Vec::new();
        }
        let over =
            self.by_name.extract_if(.., |_, state| state.ended.is_some() && state.up_by <= now);
        let free: Vec<_> = over.flat_map(|(_, state)| state.waiting.into_values()).collect();
        self.release(&free);
        free
    }

    /// When [`end_waits`](Self::end_waits) has something to do.
    pub(crate) fn next_at(&self) -> Option<UnixMillis> {
        let ended = self.by_name.values().filter(|state| state.ended.is_some());
        ended.map(|state| state.up_by).min()
    }

    /// Keeps a due record whose target is paused, or which would overtake others that have waited for the end of a pause.
    pub(crate) fn hold(&mut self, limits: &Limits, entry: Box<PendingRecord>) -> Held {
        let Some(state) = self.by_name.get_mut(&entry.target) else { return Held::No(entry) };
        if state.ended.is_some_and(|ended| entry.due <= ended) {
            return Held::No(entry);
        }
        let size = entry.record.size();
        let has_room = self.records < RECORDS_MAX
            && (self.records == 0 || self.bytes + size <= limits.memory_bytes / SHARE);
        if !has_room {
            // After the end it is better out of order than late.
            return match state.ended {
                Some(_) => Held::No(entry),
                None => Held::InTier(entry, state.since),
            };
        }
        let place = (entry.due, entry.order, entry.source.lane);
        self.records += 1;
        self.bytes += size;
        if let Some(before) = state.waiting.insert(place, entry) {
            // Of one place there is one record; what was read twice goes on, for its offset to be done. After the end it does not go
            // through a tier again: those that wait for what comes up would wait for ever.
            self.records -= 1;
            self.bytes -= before.record.size();
            return match state.ended {
                Some(_) => Held::No(before),
                None => Held::InTier(before, state.since),
            };
        }
        Held::Yes
    }

    /// A record of this target waits in a tier for so long.
    pub(crate) fn put_off(&mut self, now: UnixMillis, target: &str, wait: Millis) {
        if let Some(state) = self.by_name.get_mut(target) {
            state.up_by = state.up_by.max(now + wait + COMES_UP_WITHIN);
        }
    }

    /// Takes those out of memory that `which` says, by due time, each with the time since which its target is paused.
    pub(crate) fn take_where(
        &mut self,
        mut which: impl FnMut(&PendingRecord) -> bool,
    ) -> Vec<(Box<PendingRecord>, UnixMillis)> {
        let mut taken = Vec::new();
        for state in self.by_name.values_mut() {
            let of = state.waiting.extract_if(.., |_, entry| which(entry));
            taken.extend(of.map(|(_, entry)| (entry, state.since)));
        }
        self.records -= taken.len();
        self.bytes -= taken.iter().map(|(entry, _)| entry.record.size()).sum::<usize>();
        taken.sort_by_key(|(entry, _)| (entry.due, entry.order));
        taken
    }

    /// How many wait in memory.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.records
    }

    fn release(&mut self, entries: &[Box<PendingRecord>]) {
        self.records -= entries.len();
        self.bytes -= entries.iter().map(|entry| entry.record.size()).sum::<usize>();
    }
}
