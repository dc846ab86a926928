//! Outages of targets: a partition has no leader for a while, and no record is to blame.
//!
//! One such partition would fail its whole batch, and every batch after it, for as long as the outage lasts. So its records
//! are deferred: they wait in a tier and come up again. All others go on.
//!
//! # Invariants
//! 1. A deferred record is late by the time of the outage, and at most [`OVERDUE_MAX`] more. It is not lost, and its hops do
//!    not count.
//! 2. No overdue record hops into a tier beyond [`last_for_overdue`](super::hops::last_for_overdue).

use super::super::setup::Arrival;
use super::super::verdict::PendingRecord;
use super::hops::OVERDUE_MAX;
use super::{LaneEngine, Millis, UnixMillis};

/// How long a record is deferred at first. At most: [`OVERDUE_MAX`].
const WAIT_MIN: Millis = Millis(5_000);
impl LaneEngine {
    /// Defers a due record whose target has an outage, or cannot be described yet: it waits in a tier. The longer the outage, the
    /// longer the wait.
    pub(super) fn defer(&mut self, now: UnixMillis, mut entry: Box<PendingRecord>) {
        let since = self.targets.away_since(&entry.target);
        let wait = Millis((now - since.unwrap_or(now)).0 / 4).clamp(WAIT_MIN, OVERDUE_MAX);
        // In strict order a hop may only be late in the shortest one, and holds up what is due after it.
        let tier = match self.setup.limits.arrival {
            Arrival::Strict => self.setup.topics.ladder.shortest(),
            Arrival::ByDue => self.setup.topics.ladder.pick(wait).unwrap_or(0),
        };
        entry.deferred = self.setup.limits.arrival == Arrival::ByDue;
        self.targets.count_deferred();
        // However often, it is no fault of the record's.
        entry.hops = entry.hops.saturating_sub(1);
        self.hop(now, tier, entry);
    }
}
