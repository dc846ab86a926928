//! Where hops came to stand, and what the engine is told of those that stand too late for their tier.

use std::collections::BTreeMap;
use std::sync::Arc;

use waterclock::engine::messages::Event;
use waterclock::engine::{Blame, Lane, Offset, Refused, Source, Tardy, UnixMillis};

use crate::mutation::Mutation;
use crate::network::{NOBODY, Outgoing, Request};
use crate::world::World;

impl World {
    /// Whether the hops of the last request came to stand where the order of their lanes is not broken; if one did not, the
    /// batch is given up.
    pub(super) fn stands_in_time(&mut self, slot: usize, stand: &[(Offset, UnixMillis)]) -> bool {
        let setup = Arc::clone(&self.plan.setup);
        let Some(flight) = self.member(slot).flights.front_mut() else { return true };
        let hops = std::mem::take(&mut flight.hops);
        let mut refused = false;
        for (hop, (offset, appended)) in hops.into_iter().zip(stand) {
            let Some((source, due)) = hop else { continue };
            match setup.tardiness(source.topic, due, *appended) {
                Tardy::No => {}
                Tardy::Refuse if self.plan.exactly_once() => refused = true,
                Tardy::Refuse | Tardy::Tell => {
                    self.count("hops late");
                    if let Some(flight) = self.member(slot).flights.front_mut() {
                        flight.late.push((source, *offset, due));
                    }
                }
            }
        }
        if refused {
            self.count("hops refused");
            self.refuse(slot, Blame::Late);
        }
        !refused
    }

    /// Something stands where nobody may see it: its transaction is aborted, and the record goes another way.
    pub(super) fn refuse(&mut self, slot: usize, blame: Blame) {
        let Some(writer) = self.members[slot].writer.clone() else { return };
        let process = self.members[slot].process();
        self.request(process, NOBODY, Request::EndTransaction(writer, false));
        if let Some(batch) = self.members[slot].flights.front().map(|flight| flight.id) {
            let refused = Refused { batch, named: Vec::new(), blame, why: "late".into() };
            self.tell_refused(slot, refused);
        }
        self.discard(slot, "commit aborted");
    }

    /// The engine gets the event of hops that stand too late before the event that their batch is done.
    pub(super) fn tell_late(&mut self, slot: usize, late: Vec<(Source, Offset, UnixMillis)>) {
        let round = self.members[slot].round;
        let mut of: BTreeMap<Source, (Offset, UnixMillis)> = BTreeMap::new();
        for (source, offset, due) in late {
            let known = of.entry(source).or_insert((offset, due));
            *known = (known.0.max(offset), known.1.min(due));
        }
        for (source, (offset, due)) in of {
            if self.members[slot].round == round && self.mutation != Some(Mutation::ForgetsLateHops)
            {
                self.step(slot, Event::Late { source, offset, due });
            }
        }
        // Not before: the next batch may be back at once, and batches come back in order.
        if self.members[slot].round == round {
            self.member(slot).busy = false;
        }
    }
}

/// Which hop a record is.
pub(super) fn hop_of(sent: &Outgoing) -> Option<(Source, UnixMillis)> {
    let (topic, due) = sent.hop?;
    Some((Source { topic, lane: Lane(u16::try_from(sent.partition).ok()?) }, due))
}
