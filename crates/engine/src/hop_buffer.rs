//! Collects hops in a buffer, so that a transaction touches few partitions.
//!
//! A transaction's cost grows with the partitions that it touches (measured: 2.4 ms for one, 128 ms for 264), so
//! hops wait a little and leave tier by tier. What a hop waits here comes out of the slack of the tier it was
//! chosen for, so it costs no lateness.
//!
//! # Invariants
//! 1. Hops of one partition leave in the order in which they came.
//! 2. Nothing waits longer than the linger once a batch can be closed, but for batches being full.

use std::collections::VecDeque;

use super::{Lane, Millis, UnixMillis};

/// Hops for one partition of a tier.
#[derive(Debug)]
struct Group<T> {
    lane: Lane,
    /// When the first of them came.
    since: UnixMillis,
    hops: VecDeque<T>,
}

/// Collected hops, by tier and lane.
#[derive(Debug)]
pub(super) struct HopBuffer<T> {
    tiers: Vec<Vec<Group<T>>>,
    len: usize,
}

impl<T> HopBuffer<T> {
    pub(super) fn new(tiers: usize) -> Self {
        Self { tiers: (0..tiers).map(|_| Vec::new()).collect(), len: 0 }
    }

    pub(super) fn push(&mut self, now: UnixMillis, tier: usize, lane: Lane, hop: T) {
        self.len += 1;
        let groups = &mut self.tiers[tier];
        match groups.iter_mut().find(|group| group.lane == lane) {
            Some(group) => group.hops.push_back(hop),
            None => groups.push(Group { lane, since: now, hops: VecDeque::from([hop]) }),
        }
    }

    /// When the oldest hop must leave.
    pub(super) fn ripe_at(&self, linger: Millis) -> Option<UnixMillis> {
        self.tiers.iter().flatten().map(|group| group.since + linger).min()
    }

    /// Takes hops out, the tier with the oldest first: of at most `partitions`, until `take` says that there is no
    /// more room. A tier leaves only once one of its groups is ripe.
    pub(super) fn take(
        &mut self,
        now: UnixMillis,
        linger: Millis,
        mut partitions: usize,
        mut take: impl FnMut(usize, Lane, T) -> bool,
    ) {
        while partitions > 0 {
            let oldest = |groups: &Vec<Group<T>>| groups.iter().map(|group| group.since).min();
            let ripe = self
                .tiers
                .iter()
                .enumerate()
                .filter_map(|(tier, groups)| oldest(groups).map(|since| (since, tier)))
                .min()
                .filter(|(since, _)| *since + linger <= now);
            let Some((_, tier)) = ripe else { return };
            self.tiers[tier].sort_by_key(|group| group.since);
            while partitions > 0 && !self.tiers[tier].is_empty() {
                partitions -= 1;
                let group = &mut self.tiers[tier][0];
                while let Some(hop) = group.hops.pop_front() {
                    self.len -= 1;
                    if !take(tier, group.lane, hop) {
                        if group.hops.is_empty() {
                            self.tiers[tier].remove(0);
                        }
                        return;
                    }
                }
                self.tiers[tier].remove(0);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }
}
