//! What a broker refuses, and whom the engine is told to suspect.

use waterclock::engine::messages::Event;
use waterclock::engine::{Blame, Refused};

use crate::mutation::Mutation;
use crate::workload::DENIED;
use crate::world::World;

impl World {
    /// A broker refuses something of the first batch's last request. All of it that went to the same topics may be
    /// named; in a transaction it may be nobody, and never whose target we may not write to.
    pub(super) fn refused(&mut self, slot: usize, blame: Blame) {
        let silent =
            self.plan.exactly_once() && (blame == Blame::Target || self.chance.percent(40));
        let Some(flight) = self.members[slot].flights.front() else { return };
        let first = flight.sent - flight.asked.len();
        let suspect = |topic: &str| match blame {
            Blame::Target => topic == DENIED,
            _ => !topic.starts_with("waterclock."),
        };
        let of = flight.asked.iter().enumerate().filter(|(_, topic)| suspect(topic));
        let named = if silent { Vec::new() } else { of.map(|(at, _)| first + at).collect() };
        let refused = Refused { batch: flight.id, named, blame, why: "refused".into() };
        if self.mutation != Some(Mutation::KeepsSilent) {
            self.tell_refused(slot, refused);
        }
        self.discard(slot, "refused");
    }

    pub(super) fn tell_refused(&mut self, slot: usize, refused: Refused) {
        // Not running: a step's orders are not carried out any more.
        let busy = std::mem::replace(&mut self.member(slot).busy, true);
        self.step(slot, Event::Refused(refused));
        self.count("batches refused");
        self.member(slot).busy = busy;
    }

    pub(super) fn blame_brokers(&mut self, slot: usize) {
        if self.mutation == Some(Mutation::BlamesBrokers)
            && let Some(batch) = self.members[slot].flights.front().map(|flight| flight.id)
        {
            let (named, blame) = (Vec::new(), Blame::Record);
            self.tell_refused(slot, Refused { batch, named, blame, why: "away".into() });
        }
    }
}
