//! Outages of targets: a partition has no leader for a while, and no record is to blame. And pauses and rates, which people set.
//!
//! One such partition would fail its whole batch, and every batch after it, for as long as the outage lasts. So its records
//! are deferred: they wait in a tier and come up again. All others go on.
//!
//! # Invariants
//! 1. A deferred record is late by the time of the outage, and at most [`OVERDUE_MAX`] more. It is not lost, and its hops do
//!    not count.
//! 2. No overdue record hops into a tier beyond [`last_for_overdue`].
//! 3. A record that is over the rate of its target delays no record of another one. The exception is a keyed record in strict order
//!    that finds no room in memory: as with a pause, what is due after it in its lane waits for it.

use super::super::setup::Arrival;
use super::super::targets::paused::Held;
use super::super::targets::rated::Rationed;
use super::super::task::registry::Registry;
use super::super::verdict::PendingRecord;
use super::hops::{OVERDUE_MAX, last_for_overdue};
use super::{LaneEngine, Millis, UnixMillis};

/// How long a record is deferred at first. At most: [`OVERDUE_MAX`].
const WAIT_MIN: Millis = Millis(5_000);

/// How long a record waits in a tier, if it could not leave since then.
fn wait_of(now: UnixMillis, since: UnixMillis) -> Millis {
    Millis((now - since).0 / 4).clamp(WAIT_MIN, OVERDUE_MAX)
}

/// How often due records come up while nothing was heard of pauses, which is while a process starts.
const LOOK_FOR_PAUSES: Millis = Millis(50);

impl LaneEngine {
    /// Defers a due record whose target has an outage, or cannot be described yet: it waits in a tier. The longer the outage, the
    /// longer the wait.
    pub(super) fn defer(&mut self, now: UnixMillis, entry: Box<PendingRecord>) {
        let since = self.targets.away_since(&entry.target).unwrap_or(now);
        let wait = wait_of(now, since);
        self.targets.count_deferred();
        self.wait_in_tier(now, entry, wait);
    }

    fn wait_in_tier(&mut self, now: UnixMillis, entry: Box<PendingRecord>, wait: Millis) {
        let tier = self.setup.topics.ladder.pick(wait).unwrap_or(0);
        self.wait_in(now, entry, tier);
    }

    fn wait_in(&mut self, now: UnixMillis, mut entry: Box<PendingRecord>, tier: usize) {
        // In strict order a hop may only be late in the shortest one, and holds up what is due after it.
        let tier = match self.setup.limits.arrival {
            Arrival::Strict => self.setup.topics.ladder.shortest(),
            Arrival::ByDue => tier,
        };
        entry.deferred = self.setup.limits.arrival == Arrival::ByDue;
        // However often, it is no fault of the record's.
        entry.hops = entry.hops.saturating_sub(1);
        self.hop(now, tier, entry);
    }

    // Pauses.

    /// Projects, services and targets are others now: what goes to a target that is paused no more goes on.
    pub(super) fn set_paused_targets(&mut self, now: UnixMillis, registry: &Registry) {
        let free = self.targets.paused().set(now, registry);
        self.agenda.put_back(free);
        self.agenda.wake(now);
    }

    /// Gives a due record back, unless its target is paused: then it waits. While nothing was heard of pauses and rates yet, it
    /// goes back among those that are due. Targets have them in namespaces without tasks, too.
    pub(super) fn unless_paused(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
    ) -> Option<Box<PendingRecord>> {
        if !self.timers.tasks.is_known() {
            self.agenda.put_back([entry]);
            self.agenda.wake(now + LOOK_FOR_PAUSES);
            return None;
        }
        match self.targets.paused().hold(&self.setup.limits, entry) {
            Held::No(entry) => Some(entry),
            Held::Yes => None,
            Held::InTier(entry, since) => {
                self.put_off_paused(now, entry, since);
                None
            }
        }
    }

    /// What was due after the end of a pause may go on now.
    pub(super) fn end_waits_for_paused(&mut self, now: UnixMillis) {
        let free = self.targets.paused().end_waits(now);
        if !free.is_empty() {
            self.agenda.put_back(free);
            self.agenda.wake(now);
        }
        if let Some(at) = self.targets.paused().next_at() {
            self.agenda.wake(at);
        }
    }

    /// Lets those wait in a tier that wait in memory for the end of a pause, whichever are said.
    pub(super) fn spill_paused(
        &mut self,
        now: UnixMillis,
        which: impl FnMut(&PendingRecord) -> bool,
    ) {
        for (entry, since) in self.targets.paused().take_where(which) {
            self.memory.count_spilled(1);
            self.put_off_paused(now, entry, since);
        }
    }

    fn put_off_paused(&mut self, now: UnixMillis, entry: Box<PendingRecord>, since: UnixMillis) {
        let wait = wait_of(now, since);
        self.targets.paused().put_off(now, &entry.target, wait);
        self.targets.count_paused();
        self.wait_in_tier(now, entry, wait);
    }

    // Rates.

    /// Targets have other rates now: what goes to one that has none any more goes on.
    pub(super) fn set_rated_targets(&mut self, now: UnixMillis, registry: &Registry) {
        let free = self.targets.rated_mut().set(now, registry);
        self.agenda.put_back(free);
        self.agenda.wake(now);
    }

    /// Gives a due record back if the rate of its target lets it go: that counts as done. Else it waits.
    pub(super) fn unless_over_rate(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
    ) -> Option<Box<PendingRecord>> {
        match self.targets.rated_mut().take(now, &self.setup.limits, entry) {
            Rationed::Go(entry) => Some(entry),
            Rationed::Wait(rest) => {
                for (entry, wait) in rest {
                    self.put_off_rated(now, entry, wait);
                }
                None
            }
        }
    }

    /// Puts those among what is due which the rates of their targets let go now.
    pub(super) fn release_rated(&mut self, now: UnixMillis) {
        let free = self.targets.rated_mut().take_free(now);
        self.agenda.put_back(free);
    }

    /// Lets those wait in a tier that wait in memory for the rate of their target, whichever are said.
    pub(super) fn spill_rated(
        &mut self,
        now: UnixMillis,
        which: impl FnMut(&PendingRecord) -> bool,
    ) {
        for (entry, wait) in self.targets.rated_mut().take_where(now, which) {
            self.memory.count_spilled(1);
            self.put_off_rated(now, entry, wait);
        }
    }

    fn put_off_rated(&mut self, now: UnixMillis, entry: Box<PendingRecord>, wait: Millis) {
        self.targets.rated_mut().count_put_off();
        let ladder = &self.setup.topics.ladder;
        // The tier below: a hop more costs less than a token that nobody takes.
        let tier = ladder.pick(wait).unwrap_or(0).min(last_for_overdue(&self.setup));
        self.wait_in(now, entry, tier);
    }
}
