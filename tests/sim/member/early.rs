//! Deliveries that came to stand before they are due, by a clock that was not known: their transaction is aborted.

use std::sync::Arc;

use waterclock::engine::{Offset, UnixMillis};

use crate::broker::Place;
use crate::mutation::Mutation;
use crate::network::{NOBODY, Outgoing, Request};
use crate::world::World;

impl World {
    /// Whether no delivery of the last request came to stand early; if one did, the batch is given up, and the clock known.
    pub(super) fn stands_late_enough(
        &mut self,
        slot: usize,
        stand: &[(Offset, UnixMillis)],
    ) -> bool {
        let Some(flight) = self.member(slot).flights.front_mut() else { return true };
        let (went, since) = (std::mem::take(&mut flight.went), flight.since);
        if !self.plan.exactly_once() || self.mutation == Some(Mutation::CommitsEarly) {
            return true;
        }
        let mut any = false;
        for ((topic, partition, due), (_, appended)) in went.into_iter().zip(stand) {
            let Some(topic) = self.broker.topic(&topic) else { continue };
            let node = self.broker.leader(Place { topic, partition });
            self.learn_clock(slot, node, *appended, *appended < since);
            any |= due.is_some_and(|due| *appended < due);
        }
        if !any {
            return true;
        }
        let Some(writer) = self.members[slot].writer.clone() else { return false };
        let process = self.members[slot].process();
        self.request(process, NOBODY, Request::EndTransaction(writer, false));
        self.discard(slot, "early deliveries aborted");
        false
    }
}

/// Where a record goes, and when it is due if that is its target.
pub(super) fn went(sent: &Outgoing) -> (Arc<str>, i32, Option<UnixMillis>) {
    (Arc::clone(&sent.topic), sent.partition, sent.due)
}
