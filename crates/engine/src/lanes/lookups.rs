//! Targets: known, asked for, described; and the records that wait for the description.
//!
//! # Invariants
//! 1. The records that wait for a description are bounded, in number and in bytes. Beyond that a record goes on. Before
//!    it is due, it goes on as if its target were there. When it is due, it goes into a tier, from which it comes up
//!    and asks again. It holds up nobody meanwhile.
//! 2. A record that holds up a window, or memory, waits in a tier instead, as everything else does.
//! 3. Nothing is produced to a target without a description for [`TARGET_STALE`] times `target_fresh`: its limits may
//!    not count any more, and its rights may be gone.

use std::sync::Arc;

use super::super::header::{Code, Refusal};
use super::super::messages::{Action, Target};
use super::super::verdict::{self, Known, PendingRecord};
use super::strict_order::pick;
use super::{LaneEngine, UnixMillis};

/// Names of targets remembered; beyond it those that no record is for are forgotten.
pub(super) const TARGETS_MAX: usize = 4_096;
/// Records that wait for answers, at most: all of them are asked for within a second.
const PARKED_MAX: usize = 16_384;
/// The part of the memory budget that they may take.
const PARKED_SHARE: usize = 8;
/// So much older than `target_fresh` an answer is none: four minutes. The shell remembers for five what a target takes.
const TARGET_STALE: u64 = 8;

/// What waits for answers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parked {
    records: usize,
    bytes: usize,
}

impl Parked {
    #[cfg(test)]
    pub(super) fn records(self) -> usize {
        self.records
    }
}

impl LaneEngine {
    /// The description of a target; `None` when it must be asked for first.
    pub(super) fn look(
        &mut self,
        now: UnixMillis,
        name: &Arc<str>,
        out: &mut Vec<Action>,
    ) -> Option<Target> {
        if self.targets.len() >= self.targets_max && !self.targets.contains_key(name) {
            self.targets
                .retain(|name, known| Arc::strong_count(name) > 1 || !known.parked.is_empty());
            // Looking through them costs the less the rarer it is.
            self.targets_max = TARGETS_MAX.max(self.targets.len() * 2);
        }
        let fresh = self.setup.limits.target_fresh;
        let known = self.targets.entry(Arc::clone(name)).or_insert_with(|| Known {
            target: None,
            told: UnixMillis(0),
            asked: false,
            allowed: 0,
            parked: Vec::new(),
            away: Arc::default(),
            away_since: None,
        });
        let age = now - known.told;
        let (ask, answer) = match known.target {
            None => (true, None),
            Some(Target::Found { .. }) if age.0 > fresh.0 * TARGET_STALE => (true, None),
            // Asked again soon: a topic made a moment ago shall not cost a dead letter for long.
            Some(target) if !is_there(target) && age.0 > fresh.0 / 15 => (true, None),
            Some(target) if !known.away.is_empty() => (age.0 > fresh.0 / 15, Some(target)),
            Some(target) => (age > fresh, Some(target)),
        };
        if ask && !known.asked {
            known.asked = true;
            out.push(Action::DescribeTarget(Arc::clone(name)));
        }
        answer
    }

    /// Whether a target may have gained the partition that it lacked when it was described. If so, it is described
    /// again.
    pub(super) fn may_have_grown(
        &mut self,
        now: UnixMillis,
        name: &Arc<str>,
        refusal: &Refusal,
        out: &mut Vec<Action>,
    ) -> bool {
        let Some(known) = self.targets.get_mut(name) else { return false };
        let is_old = (now - known.told).0 > self.setup.limits.target_fresh.0 / 15;
        if refusal.code != Code::BadPartition || !is_old {
            return false;
        }
        if !known.asked {
            known.asked = true;
            out.push(Action::DescribeTarget(Arc::clone(name)));
        }
        true
    }

    /// Keeps a record until its target is known; gives it back when there is no room.
    pub(super) fn park(&mut self, entry: Box<PendingRecord>) -> Option<Box<PendingRecord>> {
        let size = entry.record.size();
        let bytes_max = self.setup.limits.memory_bytes / PARKED_SHARE;
        let Parked { records, bytes } = self.parked;
        // One always has room: else one that is larger would never be told.
        if records >= PARKED_MAX || records > 0 && bytes + size > bytes_max {
            return Some(entry);
        }
        let Some(known) = self.targets.get_mut(&entry.target) else { return Some(entry) };
        self.parked = Parked { records: records + 1, bytes: bytes + size };
        known.parked.push(entry);
        None
    }

    /// Takes the description of a target.
    pub(super) fn target(&mut self, now: UnixMillis, name: &Arc<str>, target: Target) {
        let Some(known) = self.targets.get_mut(name) else { return };
        known.target = Some(target);
        known.told = now;
        known.asked = false;
        let parked = std::mem::take(&mut known.parked);
        if !is_there(target) {
            // Nothing is produced to it, so nothing has to be tested.
            self.poison.acquit(name);
        }
        for entry in parked {
            self.unpark(&entry);
            match verdict::present(&entry.target, target) {
                Err(refusal) => self.refuse(now, *entry, refusal),
                Ok(_) if entry.due <= now => self.late.push_back(entry),
                Ok(_) => self.route(now, entry),
            }
        }
        self.wake(now);
    }

    fn unpark(&mut self, entry: &PendingRecord) {
        self.parked.records -= 1;
        self.parked.bytes -= entry.record.size();
    }

    /// Lets those that wait for an answer wait in a tier, whichever are said.
    pub(super) fn spill_parked(
        &mut self,
        now: UnixMillis,
        mut which: impl FnMut(&PendingRecord) -> bool,
    ) {
        let at = |entry: &PendingRecord| (entry.source, entry.offset);
        let first = |known: &Known| known.parked.first().map(|entry| at(entry));
        let mut waiting: Vec<&mut Known> =
            self.targets.values_mut().filter(|known| !known.parked.is_empty()).collect();
        // Not in the order of a table of names, which is another one in each process: neither who is asked about, since some may
        // be enough, nor what is taken.
        waiting.sort_by_key(|known| first(known));
        let mut taken: Vec<Box<PendingRecord>> = Vec::new();
        for known in waiting {
            taken.extend(known.parked.extract_if(.., |entry| which(entry)));
        }
        taken.sort_by_key(|entry| at(entry));
        let (ladder, margin) = (&self.setup.topics.ladder, self.margin(now));
        let tiers: Vec<_> =
            taken.iter().map(|entry| pick(ladder, margin, entry.due - now)).collect();
        let mut late = Vec::new();
        for (entry, tier) in taken.into_iter().zip(tiers) {
            self.unpark(&entry);
            match tier {
                Some(tier) => {
                    self.figures.spilled += 1;
                    self.hop(now, tier, entry);
                }
                None => late.push(entry),
            }
        }
        self.spill_late(now, late);
    }
}

/// Whether records can be produced to it.
fn is_there(target: Target) -> bool {
    matches!(target, Target::Found { .. })
}
