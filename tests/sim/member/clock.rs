//! The brokers' time, as the shell has it: the least of lower bounds of all nodes' clocks, each renewed by a probe.
//!
//! A node that answers nobody keeps the bound that it has. One that never answered a process since its start has none in
//! the real shell, which may then be early there by as much as the node is behind all others; the model leaves that out.

use waterclock::engine::UnixMillis;

use crate::broker::{EPOCH_MS, Time};
use crate::mutation::Mutation;
use crate::plan::SECOND;
use crate::world::World;

/// How long a probe's answer is believed.
pub const PROBE: Time = SECOND;

/// A lower bound of a node's clock, and when it was that.
#[derive(Clone, Copy, Debug)]
struct Bound {
    clock: u64,
    at: Time,
}

impl Bound {
    fn now(self, at: Time) -> u64 {
        self.clock + (at - self.at)
    }
}

/// The bounds of all nodes.
#[derive(Debug, Default)]
pub struct Clocks {
    nodes: Vec<Option<Bound>>,
    /// When they were asked last.
    probed: Option<Time>,
}

impl World {
    /// A lower bound of every broker's clock. It goes back only where a node's clock was seen to have done so.
    pub(super) fn now(&mut self, slot: usize) -> UnixMillis {
        match self.mutation {
            Some(Mutation::Hasty(by)) => {
                return UnixMillis(self.broker.slowest_clock(self.at).0 + by);
            }
            Some(Mutation::TrustsWallClock) => {
                return UnixMillis((EPOCH_MS + self.at).saturating_add_signed(self.walls[slot]));
            }
            _ => {}
        }
        if self.members[slot].clocks.probed.is_none_or(|probed| self.at >= probed + PROBE) {
            self.probe(slot);
        }
        let member = &self.members[slot];
        let bounds = member.clocks.nodes.iter().flatten().map(|bound| bound.now(self.at));
        let now = UnixMillis(bounds.min().unwrap_or_default()).max(member.last_now);
        self.member(slot).last_now = now;
        now
    }

    fn probe(&mut self, slot: usize) {
        let count = self.broker.nodes();
        self.member(slot).clocks.nodes.resize(count, None);
        self.member(slot).clocks.probed = Some(self.at);
        for node in 0..count {
            // A node that was silent since this process began is taken to be known all the same: see the module.
            if self.standstill(node).is_some() && self.members[slot].clocks.nodes[node].is_some() {
                continue;
            }
            let took = self.chance.between(0, self.plan.lag_max);
            let clock = self.broker.clock(node, self.at).0 - took;
            let fresh = Bound { clock, at: self.at };
            let known = self.members[slot].clocks.nodes[node].map(|bound| bound.now(self.at));
            let stepped_back = known.is_some_and(|known| known > clock + took);
            if stepped_back && self.mutation == Some(Mutation::IgnoresStepBack) {
                continue;
            }
            if stepped_back {
                self.count("steps back seen");
                self.member(slot).last_now = UnixMillis(0);
            }
            if stepped_back || known.is_none_or(|known| clock >= known) {
                self.member(slot).clocks.nodes[node] = Some(fresh);
            }
        }
    }
}
