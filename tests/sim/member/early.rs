//! Deliveries that came to stand before they are due, by a clock that was not known, or after they had expired: their
//! transaction is aborted.

use std::sync::Arc;

use waterclock::engine::header::Code;
use waterclock::engine::messages::{Destination, HeaderRewrite, Produce};
use waterclock::engine::{Blame, Offset, UnixMillis};

use super::number_of;
use crate::broker::Place;
use crate::mutation::Mutation;
use crate::network::{NOBODY, Outgoing, Request};
use crate::world::World;

/// Where a record went, and from when to when it may be there if that is its target.
pub type Went = (Arc<str>, i32, Option<(UnixMillis, Option<UnixMillis>)>);

impl World {
    /// Whether no delivery of the last request came to stand early, or had expired; if one did, the batch is given up, and the
    /// clock known.
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
        let (mut any, mut expired) = (false, false);
        for ((topic, partition, due), (_, appended)) in went.into_iter().zip(stand) {
            if due.is_some() && !self.plan.stamped {
                continue;
            }
            let Some(topic) = self.broker.topic(&topic) else { continue };
            let node = self.broker.leader(Place { topic, partition });
            self.learn_clock(slot, node, *appended, *appended < since);
            any |= due.is_some_and(|(due, _)| *appended < due);
            let expires = due.and_then(|(_, expires)| expires);
            expired |= expires.is_some_and(|expires| *appended > expires);
        }
        if expired && !any && self.mutation != Some(Mutation::CommitsExpired) {
            self.count("expired deliveries aborted");
            self.refuse(slot, Blame::Expired);
            return false;
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

    /// Whether something of the batch that is to be committed has expired, by the clock that its owner knows.
    pub(super) fn has_expired(&mut self, slot: usize) -> bool {
        let expires = self.members[slot].flights.front().and_then(|flight| flight.expires);
        if expires.is_none() || self.mutation == Some(Mutation::CommitsExpired) {
            return false;
        }
        let now = self.now(slot);
        let has_expired = expires.is_some_and(|expires| now > expires);
        if has_expired {
            self.count("expired batches aborted");
        }
        has_expired
    }

    /// What one process has handed over, where that cannot be taken back, is no dead letter of its own besides.
    pub(super) fn check_expired(&mut self, slot: usize, sends: &[Produce]) {
        if self.plan.exactly_once() {
            return;
        }
        let process = self.members[slot].process();
        for send in sends {
            let Some(number) = number_of(&send.record) else { continue };
            match &send.rewrite {
                HeaderRewrite::Deliver { .. }
                    if matches!(send.to, Destination::Target(_)) && send.expires.is_some() =>
                {
                    self.handed_over.insert((process.slot, process.life, number));
                }
                HeaderRewrite::Dead(letter)
                    if letter.code == Code::Expired
                        && self.handed_over.contains(&(process.slot, process.life, number)) =>
                {
                    let what = format!("n={number} was handed over, and is a dead letter, too");
                    self.breach("as agreed", what);
                }
                _ => {}
            }
        }
    }
}

/// Where a record goes, and from when to when it may be there if that is its target.
pub(super) fn went(sent: &Outgoing) -> Went {
    (Arc::clone(&sent.topic), sent.partition, sent.due)
}
