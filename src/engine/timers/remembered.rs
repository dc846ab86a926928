//! Which versions of its lanes' timers a thread remembers as void.
//!
//! # Invariants
//! 1. Looking one up touches one place in memory, and forgetting touches only what is to be forgotten: they stand in
//!    buckets by the hour in which they may be forgotten.
//! 2. Nothing is forgotten before its `until`.

use std::collections::{BTreeMap, HashMap};

use super::super::{Lane, UnixMillis};
use super::{Place, TimerKey, Void};

const HOUR_MS: u64 = 3_600_000;

/// A [`Void`] without its timer.
#[derive(Clone, Copy, Debug)]
struct Kept {
    before: Place,
    until: UnixMillis,
    met: bool,
    several: bool,
}

/// Void versions by lane.
#[derive(Debug, Default)]
pub(in crate::engine) struct Remembered {
    lanes: Vec<HashMap<TimerKey, Kept>>,
    /// By the hour at whose beginning they may be forgotten. One that is remembered for longer by now is in another
    /// bucket, too.
    hours: BTreeMap<u64, Vec<(Lane, TimerKey)>>,
    len: usize,
}

impl Remembered {
    pub(in crate::engine) fn new(lanes: u16) -> Self {
        let lanes = (0..lanes).map(|_| HashMap::new()).collect();
        Self { lanes, ..Self::default() }
    }

    /// How many.
    pub(in crate::engine) fn len(&self) -> usize {
        self.len
    }

    /// What holds of a timer.
    pub(in crate::engine) fn find(&self, lane: Lane, timer: TimerKey) -> Option<Void> {
        let Kept { before, until, met, several } =
            *self.lanes.get(usize::from(lane.0))?.get(&timer)?;
        Some(Void { name: timer, before, until, met, several })
    }

    /// Sets what holds of a timer.
    pub(in crate::engine) fn put(&mut self, lane: Lane, void: Void) {
        let Some(of_lane) = self.lanes.get_mut(usize::from(lane.0)) else { return };
        let Void { name, before, until, met, several } = void;
        let old = of_lane.insert(name, Kept { before, until, met, several });
        self.len += usize::from(old.is_none());
        let hour = hour_after(until);
        if old.is_none_or(|old| hour_after(old.until) != hour) {
            self.hours.entry(hour).or_default().push((lane, name));
        }
    }

    /// When to look again for what may be forgotten.
    pub(in crate::engine) fn forget_at(&self) -> Option<UnixMillis> {
        self.hours.keys().next().map(|hour| UnixMillis(hour.saturating_mul(HOUR_MS)))
    }

    /// Forgets at most `most` whose time is over, of lanes that `may` forget; those of others are asked for again
    /// in an hour.
    pub(in crate::engine) fn forget(
        &mut self,
        now: UnixMillis,
        most: usize,
        may: impl Fn(Lane) -> bool,
    ) -> Vec<(Lane, TimerKey)> {
        let mut forgotten = Vec::new();
        let this_hour = now.0 / HOUR_MS;
        while forgotten.len() < most
            && let Some(mut first) = self.hours.first_entry()
            && *first.key() <= this_hour
        {
            let Some((lane, timer)) = first.get_mut().pop() else {
                first.remove();
                continue;
            };
            let Some(of_lane) = self.lanes.get_mut(usize::from(lane.0)) else { continue };
            if of_lane.get(&timer).is_none_or(|kept| kept.until > now) {
                continue;
            }
            if may(lane) {
                of_lane.remove(&timer);
                self.len -= 1;
                forgotten.push((lane, timer));
            } else {
                self.hours.entry(this_hour + 1).or_default().push((lane, timer));
            }
        }
        forgotten
    }
}

fn hour_after(at: UnixMillis) -> u64 {
    at.0 / HOUR_MS + 1
}
