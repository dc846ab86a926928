//! Descriptions of targets arrive; and the records that wait for them go on.
//!
//! # Invariants
//! 1. A record for which there is no room to wait goes on. Before it is due, it goes on as if its target were there. When
//!    it is due, it goes into a tier, from which it comes up and asks again. It holds up nobody meanwhile.
//! 2. A record that holds up a window, or memory, waits in a tier instead, as everything else does.

use std::sync::Arc;

use super::super::header::Refusal;
use super::super::messages::{Action, Target};
use super::super::verdict::{self, PendingRecord};
use super::{LaneEngine, UnixMillis};

impl LaneEngine {
    /// The description of a target; `None` when it must be asked for first. `allowed`: the policy of this intake allows it.
    pub(super) fn look(
        &mut self,
        now: UnixMillis,
        name: &Arc<str>,
        allowed: Option<u16>,
        out: &mut Vec<Action>,
    ) -> Option<Target> {
        let (answer, ask) = self.targets.look(now, &self.setup.limits, name, allowed);
        if ask {
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
        let (may, ask) = self.targets.may_have_grown(now, &self.setup.limits, name, refusal);
        if ask {
            out.push(Action::DescribeTarget(Arc::clone(name)));
        }
        may
    }

    /// Takes the description of a target.
    pub(super) fn target(&mut self, now: UnixMillis, name: &Arc<str>, target: Target) {
        let Some((entries, is_there)) = self.targets.describe(now, name, target) else { return };
        if !is_there {
            // Nothing is produced to it, so nothing has to be tested.
            self.poison.clear_target(name);
        }
        for entry in entries {
            // While it is paused it may be made anew.
            let entry = if entry.due <= now { self.unless_paused(now, entry) } else { Some(entry) };
            let Some(entry) = entry else { continue };
            match verdict::present(&entry.target, target) {
                Err(refusal) => {
                    if let Some(entry) = self.try_again(now, entry, &refusal) {
                        self.refuse(now, *entry, refusal);
                    }
                }
                Ok(_) if entry.due <= now => self.agenda.put_back([entry]),
                Ok(_) => self.route(now, entry),
            }
        }
        self.agenda.wake(now);
    }

    /// Lets those that wait for an answer wait in a tier, whichever are said.
    pub(super) fn spill_parked(
        &mut self,
        now: UnixMillis,
        which: impl FnMut(&PendingRecord) -> bool,
    ) {
        let taken = self.targets.take_parked(which);
        let ladder = &self.setup.topics.ladder;
        let tiers: Vec<_> =
            taken.iter().map(|entry| self.hops.pick(ladder, now, entry.due - now)).collect();
        let mut late = Vec::new();
        for (entry, tier) in taken.into_iter().zip(tiers) {
            match tier {
                Some(tier) => {
                    self.memory.count_spilled(1);
                    self.hop(now, tier, entry);
                }
                None => late.push(entry),
            }
        }
        self.spill_late(now, late);
    }
}
