//! Targets that cannot be written to for a while, for which nobody is to blame: a partition without a leader.
//!
//! One such partition in a batch would fail all of it, and the batches after it, for as long as it is away. So its
//! records stand in a tier meanwhile and come up again, and all others go on.
//!
//! # Invariants
//! 1. A record for a partition that is known to be away is in no batch as a delivery.
//! 2. It is late by the time that its target is away, and at most [`WAIT_MAX`] more; nothing of it is lost, and its hops
//!    do not count.
//! 3. A target whose partitions are away is asked about every two seconds, as long as there are records for it.

use std::sync::Arc;

use super::super::murmur2;
use super::super::setup::Arrival;
use super::super::verdict::Entry;
use super::{Engine, Millis, Target, UnixMillis};

/// What a record is put off by at first.
const WAIT_MIN: Millis = Millis(5_000);
/// And at most: waiting longer spares the brokers work while the target is away, and is late once it is back.
const WAIT_MAX: Millis = Millis(30_000);

impl Engine {
    /// These partitions of a target have no leader now; none: all of them have.
    pub(super) fn away(&mut self, now: UnixMillis, name: &Arc<str>, partitions: Arc<[i32]>) {
        let Some(known) = self.targets.get_mut(name) else { return };
        known.away_since = match known.away_since {
            _ if partitions.is_empty() => None,
            Some(since) => Some(since),
            None => Some(now),
        };
        known.away = partitions;
    }

    /// Nothing is known of these targets any more; of those that are no targets nothing was.
    pub(super) fn doubt(&mut self, names: &[Arc<str>]) {
        for name in names {
            if let Some(known) = self.targets.get_mut(name) {
                known.target = None;
            }
        }
    }

    /// Where a record goes that is due: the partition that was asked for, be it any; `None`: that one is away.
    pub(super) fn within_reach(&self, entry: &Entry, asked: Option<i32>) -> Option<Option<i32>> {
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

    /// Lets a due record whose target is away, or cannot be asked for yet, wait in a tier: the longer, the longer it has been.
    pub(super) fn put_off(&mut self, now: UnixMillis, mut entry: Box<Entry>) {
        let since = self.targets.get(&entry.target).and_then(|known| known.away_since);
        let wait = Millis((now - since.unwrap_or(now)).0 / 4).clamp(WAIT_MIN, WAIT_MAX);
        // In strict order a hop may only be late in the shortest one, and holds up what is due after it.
        let tier = match self.setup.limits.arrival {
            Arrival::Strict => self.setup.topics.ladder.shortest(),
            Arrival::ByDue => self.setup.topics.ladder.pick(wait).unwrap_or(0),
        };
        entry.put_off = self.setup.limits.arrival == Arrival::ByDue;
        self.figures.put_off += 1;
        // However often, it is no fault of the record's.
        entry.hops = entry.hops.saturating_sub(1);
        self.hop(now, tier, entry);
    }
}
