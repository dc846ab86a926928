//! Descriptions of targets, and the records that wait for one.
//!
//! # Invariants
//! 1. Nothing is produced to a target without a description for [`TARGET_STALE`] times `target_fresh`: its limits may
//!    not count any more, and its rights may be gone. A target is described once at a time.
//! 2. The records that wait for a description are bounded, in number and in bytes.
//! 3. A record for a partition that is known to have no leader is in no batch as a delivery.
//! 4. A target in an outage is described every two seconds, as long as there are records for it.

pub(super) mod paused;
pub(super) mod rated;

use std::collections::HashMap;
use std::sync::Arc;

use super::header::{Code, Refusal};
use super::messages::Target;
use super::murmur2;
use super::setup::Limits;
use super::verdict::PendingRecord;
use super::{Millis, UnixMillis};
use paused::Paused;
use rated::Rated;

/// Names of targets to remember; beyond that, those that no record needs are forgotten.
const TARGETS_MAX: usize = 4_096;
/// Records that may wait for descriptions, which come within a second.
const PARKED_MAX: usize = 16_384;
/// The part of the memory budget that they may take.
const PARKED_SHARE: usize = 8;
/// A description that is this many times older than `target_fresh` is not valid: four minutes. The shell keeps the limits of a
/// target for five.
const TARGET_STALE: u64 = 8;

/// The description of a target, and since when it is known.
#[derive(Debug)]
struct TargetState {
    target: Option<Target>,
    /// When it was described; zero: never.
    described_at: UnixMillis,
    /// It is being described.
    is_requested: bool,
    /// Intakes whose policy lets a record go there, as bits: checked once for each intake, not for every record.
    allowed: u64,
    /// Records that wait for the answer.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    parked: Vec<Box<PendingRecord>>,
    /// Partitions that have no leader.
    leaderless: Arc<[i32]>,
    /// Since when there are such.
    leaderless_since: Option<UnixMillis>,
}

impl TargetState {
    fn new() -> Self {
        Self {
            target: None,
            described_at: UnixMillis(0),
            is_requested: false,
            allowed: 0,
            parked: Vec::new(),
            leaderless: Arc::default(),
            leaderless_since: None,
        }
    }

    fn allows(&self, intake: u16) -> bool {
        self.allowed.checked_shr(u32::from(intake)).is_some_and(|bits| bits & 1 == 1)
    }

    /// The description, if it is valid now; and whether it is time to describe the target again.
    fn answer(&self, now: UnixMillis, fresh: Millis) -> (Option<Target>, bool) {
        let age = now - self.described_at;
        match self.target {
            None => (None, true),
            Some(Target::Found { .. }) if age.0 > fresh.0 * TARGET_STALE => (None, true),
            // Describe it again soon, so that a topic that was just made does not cause dead letters for long.
            Some(target) if !is_there(target) && age.0 > fresh.0 / 15 => (None, true),
            Some(target) if !self.leaderless.is_empty() => (Some(target), age.0 > fresh.0 / 15),
            Some(target) => (Some(target), age > fresh),
        }
    }
}

/// Whether records can be produced to it.
fn is_there(target: Target) -> bool {
    matches!(target, Target::Found { .. })
}

/// All targets by name.
#[derive(Debug)]
pub(super) struct Targets {
    by_name: HashMap<Arc<str>, TargetState>,
    /// Beyond this many names, those that no record needs are forgotten.
    names_max: usize,
    /// How many records wait for descriptions, and their bytes.
    parked: (usize, usize),
    /// Due records that went back to a tier because of an outage of their target, and because of a pause.
    deferred: u64,
    put_off_paused: u64,
    paused: Paused,
    rated: Rated,
}

impl Targets {
    /// None. `lanes`: how many the installation has.
    pub(super) fn new(lanes: u16) -> Self {
        Self {
            by_name: HashMap::new(),
            names_max: TARGETS_MAX,
            parked: (0, 0),
            deferred: 0,
            put_off_paused: 0,
            paused: Paused::default(),
            rated: Rated::new(lanes),
        }
    }

    /// The lanes are gone, with the records that wait. Targets are described again.
    pub(super) fn reset(&mut self, now: UnixMillis, lanes: u16) {
        let mut paused = std::mem::take(&mut self.paused);
        paused.reset();
        let mut rated = std::mem::replace(&mut self.rated, Rated::new(lanes));
        rated.begin(now);
        let Self { deferred, put_off_paused, .. } = *self;
        *self = Self { deferred, put_off_paused, paused, rated, ..Self::new(lanes) };
    }

    /// Those that somebody has paused, and what waits for them.
    pub(super) fn paused(&mut self) -> &mut Paused {
        &mut self.paused
    }

    /// Those that have a rate, and what waits for them.
    pub(super) fn rated(&self) -> &Rated {
        &self.rated
    }

    /// The same, to change it.
    pub(super) fn rated_mut(&mut self) -> &mut Rated {
        &mut self.rated
    }

    // Names, and who may use them.

    /// The name of a target: one allocation per name, not per record.
    pub(super) fn name(&self, target: &str) -> Arc<str> {
        let state = self.by_name.get_key_value(target);
        state.map_or_else(|| Arc::from(target), |(name, _)| Arc::clone(name))
    }

    /// Whether the policy of this intake is known to let a record go there.
    pub(super) fn is_allowed(&self, target: &str, intake: u16) -> bool {
        self.by_name.get(target).is_some_and(|state| state.allows(intake))
    }

    /// The policies have changed.
    pub(super) fn forget_policies(&mut self) {
        self.by_name.values_mut().for_each(|state| state.allowed = 0);
    }

    // Descriptions.

    /// The description of a target, if one counts now. And whether there is more to it, for a record that this intake allows
    /// to go there: the target must be asked for, or that it is allowed is not noted.
    pub(super) fn get(
        &self,
        now: UnixMillis,
        limits: &Limits,
        name: &str,
        intake: u16,
    ) -> (Option<Target>, bool) {
        let Some(state) = self.by_name.get(name) else { return (None, true) };
        let (answer, is_time) = state.answer(now, limits.target_fresh);
        (answer, is_time && !state.is_requested || !state.allows(intake))
    }

    /// The description of a target for a record that is for it; and whether it must be asked for, which counts as done. The
    /// policy of this intake allows it, until the policies change.
    pub(super) fn look(
        &mut self,
        now: UnixMillis,
        limits: &Limits,
        name: &Arc<str>,
        allowed: Option<u16>,
    ) -> (Option<Target>, bool) {
        if self.by_name.len() >= self.names_max && !self.by_name.contains_key(name) {
            self.by_name
                .retain(|name, state| Arc::strong_count(name) > 1 || !state.parked.is_empty());
            // Looking through them costs the less the rarer it is.
            self.names_max = TARGETS_MAX.max(self.by_name.len() * 2);
        }
        let state = self.by_name.entry(Arc::clone(name)).or_insert_with(TargetState::new);
        if let Some(intake) = allowed {
            state.allowed |= 1_u64.checked_shl(u32::from(intake)).unwrap_or(0);
        }
        let (answer, is_time) = state.answer(now, limits.target_fresh);
        (answer, is_time && !std::mem::replace(&mut state.is_requested, true))
    }

    /// Whether a target may have gained the partition that it lacked when it was described, so that the record must wait;
    /// and whether it must be asked for. Those behind the record wait, too, or they would overtake it.
    pub(super) fn may_have_grown(
        &mut self,
        now: UnixMillis,
        limits: &Limits,
        name: &str,
        refusal: &Refusal,
    ) -> (bool, bool) {
        let Some(state) = self.by_name.get_mut(name) else { return (false, false) };
        let is_old = (now - state.described_at).0 > limits.target_fresh.0 / 15;
        if refusal.code != Code::BadPartition || !is_old {
            return (false, false);
        }
        state.target = None;
        (true, !std::mem::replace(&mut state.is_requested, true))
    }

    /// Takes the description of a target. Gives back the records that wait for it, and whether any can go there.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    pub(super) fn describe(
        &mut self,
        now: UnixMillis,
        name: &str,
        target: Target,
    ) -> Option<(Vec<Box<PendingRecord>>, bool)> {
        let state = self.by_name.get_mut(name)?;
        state.target = Some(target);
        state.described_at = now;
        state.is_requested = false;
        let entries = std::mem::take(&mut state.parked);
        self.unpark(&entries);
        Some((entries, is_there(target)))
    }

    /// Forgets the descriptions of these targets. Names that are no targets are ignored.
    pub(super) fn invalidate(&mut self, names: &[Arc<str>]) {
        for name in names {
            if let Some(state) = self.by_name.get_mut(name) {
                state.target = None;
            }
        }
    }

    // Outages.

    /// These partitions of a target have no leader now; none: all of them have.
    pub(super) fn set_outage(&mut self, now: UnixMillis, name: &str, partitions: Arc<[i32]>) {
        let Some(state) = self.by_name.get_mut(name) else { return };
        state.leaderless_since = match state.leaderless_since {
            _ if partitions.is_empty() => None,
            Some(since) => Some(since),
            None => Some(now),
        };
        state.leaderless = partitions;
    }

    /// Since when partitions of a target have no leader.
    pub(super) fn away_since(&self, name: &str) -> Option<UnixMillis> {
        self.by_name.get(name)?.leaderless_since
    }

    /// Where a due record goes: the partition that it asks for, or any. `None`: that one has no leader.
    pub(super) fn partition_for(
        &self,
        entry: &PendingRecord,
        explicit: Option<i32>,
    ) -> Option<Option<i32>> {
        let state = self.by_name.get(&entry.target)?;
        if state.leaderless.is_empty() {
            return Some(explicit);
        }
        let Some(Target::Found { partitions, .. }) = state.target else { return Some(explicit) };
        let is_leaderless = |partition: i32| state.leaderless.contains(&partition);
        let wanted = match (explicit, entry.record.key()) {
            (Some(explicit), _) => explicit,
            (None, Some(key)) => {
                let count = u16::try_from(partitions).ok()?;
                i32::from(murmur2::partition(key, count))
            }
            // Any other will do; they take turns.
            (None, None) => {
                let from = entry.offset.0.rem_euclid(i64::from(partitions.max(1))) as i32;
                let mut others = (from..partitions).chain(0..from);
                return others.find(|partition| !is_leaderless(*partition)).map(Some);
            }
        };
        (!is_leaderless(wanted)).then_some(explicit)
    }

    /// A due record goes back to a tier: its target has an outage.
    pub(super) fn count_deferred(&mut self) {
        self.deferred += 1;
    }

    /// The same: its target is paused.
    pub(super) fn count_paused(&mut self) {
        self.put_off_paused += 1;
    }

    /// Due records that went back to a tier since the start, for an outage and for a pause, and when the first is due of those
    /// that wait.
    pub(super) fn counts(&self) -> (u64, u64, Option<UnixMillis>) {
        let parked = self.by_name.values().flat_map(|state| &state.parked);
        (self.deferred, self.put_off_paused, parked.map(|entry| entry.due).min())
    }

    // Records that wait.

    /// Keeps a record until its target is known; gives it back when there is no room.
    pub(super) fn park(
        &mut self,
        limits: &Limits,
        entry: Box<PendingRecord>,
    ) -> Option<Box<PendingRecord>> {
        let size = entry.record.size();
        let bytes_max = limits.memory_bytes / PARKED_SHARE;
        let (records, bytes) = self.parked;
        // One always has room: else one that is larger would never be told.
        if records >= PARKED_MAX || records > 0 && bytes + size > bytes_max {
            return Some(entry);
        }
        let Some(state) = self.by_name.get_mut(&entry.target) else { return Some(entry) };
        self.parked = (records + 1, bytes + size);
        state.parked.push(entry);
        None
    }

    /// Takes those that wait and that `which` says, in the order in which they were read.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    pub(super) fn take_parked(
        &mut self,
        mut which: impl FnMut(&PendingRecord) -> bool,
    ) -> Vec<Box<PendingRecord>> {
        let at = |entry: &PendingRecord| (entry.source, entry.offset);
        let first = |state: &TargetState| state.parked.first().map(|entry| at(entry));
        let mut waiting: Vec<&mut TargetState> =
            self.by_name.values_mut().filter(|state| !state.parked.is_empty()).collect();
        // Not in the order of a table of names, which is another one in each process: neither who is asked about, since some may
        // be enough, nor what is taken.
        waiting.sort_by_key(|state| first(state));
        let mut taken: Vec<Box<PendingRecord>> = Vec::new();
        for state in waiting {
            taken.extend(state.parked.extract_if(.., |entry| which(entry)));
        }
        taken.sort_by_key(|entry| at(entry));
        self.unpark(&taken);
        taken
    }

    fn unpark(&mut self, entries: &[Box<PendingRecord>]) {
        self.parked.0 -= entries.len();
        self.parked.1 -= entries.iter().map(|entry| entry.record.size()).sum::<usize>();
    }

    #[cfg(test)]
    pub(super) fn parked_len(&self) -> usize {
        self.parked.0
    }
}
