//! The brokers' time, as the shell has it: the least of lower bounds of all nodes' clocks, each renewed by a probe.
//!
//! A node that answers nobody keeps the bound that it has. A node that never answered a process since the process
//! started has no bound, like one that nobody asks. If a record is early there, it is aborted, and the abort tells that
//! node's clock (`early`). In `at_least_once` nothing can be aborted, and where targets keep their writers' times
//! nobody learns the clock. There such a node is taken to be known, as nothing is promised of it.

use std::time::Duration;

use waterclock::engine::{UnixMillis, member};

use crate::broker::{EPOCH_MS, Time};
use crate::mutation::Mutation;
use crate::plan::SECOND;
use crate::world::World;

/// How long a probe's answer is believed.
pub const PROBE: Time = SECOND;
/// How long what an append has told is, of a node that is not probed.
const LEARNED_FOR: Time = 60 * SECOND;

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

    /// What is known of the clocks now.
    pub(super) fn known_clocks(&mut self, slot: usize) -> member::Clocks {
        let (now, at) = (self.now(slot), Duration::from_millis(self.at));
        let nodes = &self.members[slot].clocks.nodes;
        let of = self.plan.unprobed.filter(|node| nodes.get(*node).is_some_and(Option::is_some));
        let unprobed = of.and_then(|node| i32::try_from(node).ok()).into_iter().collect();
        member::Clocks { at, now, unprobed }
    }

    /// What an append tells of a node's clock.
    pub(super) fn learn_clock(&mut self, slot: usize, news: member::News) {
        let fresh = Bound { clock: news.appended.0, at: self.at };
        let took = self.at - news.since.as_millis() as Time;
        let Some(bound) = usize::try_from(news.leader)
            .ok()
            .and_then(|node| self.members[slot].clocks.nodes.get_mut(node))
        else {
            return;
        };
        let known = bound.map(|known| known.now(self.at));
        let stepped_back = known.is_some_and(|known| known > fresh.clock + took);
        if stepped_back && self.mutation == Some(Mutation::IgnoresStepBack) {
            return;
        }
        if stepped_back || known.is_none_or(|known| known <= fresh.clock) {
            *bound = Some(fresh);
        }
        if stepped_back || known.is_none() {
            self.member(slot).last_now = UnixMillis(0);
            self.count(if known.is_some() { "steps back seen" } else { "clocks learned" });
        }
    }

    /// A clock is behind its bound: all are asked at once.
    pub(super) fn doubt_clocks(&mut self, slot: usize) {
        self.member(slot).clocks.probed = None;
    }

    fn probe(&mut self, slot: usize) {
        let count = self.broker.nodes();
        self.member(slot).clocks.nodes.resize(count, None);
        self.member(slot).clocks.probed = Some(self.at);
        for node in 0..count {
            let known = self.members[slot].clocks.nodes[node];
            if self.plan.unprobed == Some(node) {
                let is_fresh = known.is_some_and(|known| self.at < known.at + LEARNED_FOR);
                self.member(slot).clocks.nodes[node] = known.filter(|_| is_fresh);
                continue;
            }
            // The shell joins no lanes before somebody has answered; here the first does, however it stands.
            let needs_none = known.is_some()
                || self.plan.exactly_once()
                    && self.plan.stamped
                    && self.members[slot].clocks.nodes.iter().any(Option::is_some);
            if self.standstill(node).is_some() && needs_none {
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
