//! Outages of targets: a partition has no leader for a while, and no record is to blame.
//!
//! One such partition would fail its whole batch, and every batch after it, for as long as the outage lasts. So its records
//! are deferred: they wait in a tier and come up again. All others go on.
//!
//! # Invariants
//! 1. A record for a partition that is known to have no leader is in no batch as a delivery.
//! 2. It is late by the time of the outage, and at most [`WAIT_MAX`] more. It is not lost, and its hops do not count.
//! 3. A target in an outage is described every two seconds, as long as there are records for it.

use std::sync::Arc;

use super::super::murmur2;
use super::super::setup::Arrival;
use super::super::verdict::PendingRecord;
use super::{LaneEngine, Millis, Target, UnixMillis};

/// How long a record is deferred at first.
const WAIT_MIN: Millis = Millis(5_000);
/// And at most: a longer wait spares the brokers work during the outage, but the record is later after it.
const WAIT_MAX: Millis = Millis(30_000);

impl LaneEngine {
    /// These partitions of a target have no leader now; none: all of them have.
    pub(super) fn target_outage(
        &mut self,
        now: UnixMillis,
        name: &Arc<str>,
        partitions: Arc<[i32]>,
    ) {
        let Some(known) = self.targets.get_mut(name) else { return };
        known.away_since = match known.away_since {
            _ if partitions.is_empty() => None,
            Some(since) => Some(since),
            None => Some(now),
        };
        known.away = partitions;
    }

    /// Forgets what is known of these targets. Names that are no targets are ignored.
    pub(super) fn invalidate_targets(&mut self, names: &[Arc<str>]) {
        for name in names {
            if let Some(known) = self.targets.get_mut(name) {
                known.target = None;
            }
        }
    }

    /// Where a due record goes: the partition that it asks for, or any. `None`: that one has no leader.
    pub(super) fn within_reach(
        &self,
        entry: &PendingRecord,
        asked: Option<i32>,
    ) -> Option<Option<i32>> {
        let known = self.targets.get(&entry.target)?;
        if known.away.is_empty() {
            return Some(asked);
        }
        let Some(Target::Found { partitions, .. }) = known.target else { return Some(asked) };
        let is_away = |partition: i32| known.away.contains(&partition);
        let wanted = match (asked, entry.record.key()) {
            (Some(asked), _) => asked,
            (None, Some(key)) => {
                let count = u16::try_from(partitions).ok()?;
                i32::from(murmur2::partition(key, count))
            }
            // Any other will do; they take turns.
            (None, None) => {
                let from = entry.offset.0.rem_euclid(i64::from(partitions.max(1))) as i32;
                let mut others = (from..partitions).chain(0..from);
                return others.find(|partition| !is_away(*partition)).map(Some);
            }
        };
        (!is_away(wanted)).then_some(asked)
    }

    /// The last tier into which a record may hop that is overdue.
    pub(super) fn last_for_overdue(&self) -> usize {
        let ladder = &self.setup.topics.ladder;
        ladder.pick(WAIT_MAX).unwrap_or(0).max(ladder.shortest())
    }

    /// Defers a due record whose target has an outage, or cannot be described yet: it waits in a tier. The longer the outage, the
    /// longer the wait.
    pub(super) fn defer(&mut self, now: UnixMillis, mut entry: Box<PendingRecord>) {
        let since = self.targets.get(&entry.target).and_then(|known| known.away_since);
        let wait = Millis((now - since.unwrap_or(now)).0 / 4).clamp(WAIT_MIN, WAIT_MAX);
        // In strict order a hop may only be late in the shortest one, and holds up what is due after it.
        let tier = match self.setup.limits.arrival {
            Arrival::Strict => self.setup.topics.ladder.shortest(),
            Arrival::ByDue => self.setup.topics.ladder.pick(wait).unwrap_or(0),
        };
        entry.deferred = self.setup.limits.arrival == Arrival::ByDue;
        self.figures.deferred += 1;
        // However often, it is no fault of the record's.
        entry.hops = entry.hops.saturating_sub(1);
        self.hop(now, tier, entry);
    }
}
