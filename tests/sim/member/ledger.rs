//! The committer's decisions about what delivery reports and ends of transactions say: those that ship (`member` of the engine).
//!
//! The model is what brokers and the client do: where records stand, which request is refused, whom a report names.

use std::sync::Arc;
use std::time::Duration;

use waterclock::engine::header::Code;
use waterclock::engine::member::{
    Appended, Broken, Course, Dirty, ErrorClass, LateHop, Patience, Step, Untimely,
};
use waterclock::engine::messages::{Destination, Event, HeaderRewrite, Produce};
use waterclock::engine::{BatchId, Offset, UnixMillis};

use super::number_of;
use crate::mutation::Mutation;
use crate::plan::TRANSACTION;
use crate::workload::DENIED;
use crate::world::World;
use crate::world::cluster::PATIENCE;

const PATIENT: Patience = Patience {
    socket_timeout: Duration::from_millis(PATIENCE),
    transaction_timeout: Duration::from_millis(TRANSACTION),
};

/// What a topic is that brokers may refuse records of: none of our own.
fn is_target(topic: &str) -> bool {
    !topic.starts_with("waterclock.")
}

impl World {
    /// The first batch is about to be produced.
    pub(super) fn begin_batch(&mut self, slot: usize) {
        if self.members[slot].flights.front().is_none_or(|flight| flight.began.is_some()) {
            return;
        }
        let (clocks, at) = (self.known_clocks(slot), self.at);
        let member = self.member(slot);
        let Some(flight) = member.flights.front_mut() else { return };
        flight.began = Some(at);
        let times = flight.outgoing.iter().map(|sent| sent.timing).collect();
        member.appends.begin(flight.id, times, clocks);
    }

    /// The last request of the first batch: its place in the batch and its topic, of each record.
    fn asked(&self, slot: usize) -> Vec<((BatchId, usize), Arc<str>)> {
        let Some(flight) = self.members[slot].flights.front() else { return Vec::new() };
        let first = flight.before_asked();
        let place = |(at, topic): (usize, &Arc<str>)| ((flight.id, first + at), Arc::clone(topic));
        flight.asked.iter().enumerate().map(place).collect()
    }

    /// The records of the last request are there.
    pub(super) fn written(&mut self, slot: usize, stand: &[(Offset, UnixMillis, usize)]) {
        for ((place, topic), (offset, time, node)) in self.asked(slot).into_iter().zip(stand) {
            let is_stamped = self.plan.stamped || !is_target(&topic);
            let leader = i32::try_from(*node).ok().filter(|_| is_stamped);
            let told = Appended { offset: Some(*offset), time: Some(*time), leader };
            if let Some(news) = self.member(slot).appends.appended(place, told, &topic) {
                self.learn_clock(slot, news);
            }
        }
    }

    /// Whether the open transaction may be committed; if not, it is given up.
    pub(super) fn may_commit(&mut self, slot: usize) -> bool {
        let now = self.now(slot);
        let Some(batch) = self.members[slot].flights.front().map(|flight| flight.id) else {
            return true;
        };
        let found = match self.member(slot).appends.before_commit(batch, Some(now)) {
            Ok(()) => return true,
            Err(found) => found,
        };
        let why = match found {
            Untimely::Early(_) => "early deliveries aborted",
            Untimely::Expired(_) => "expired deliveries aborted",
            Untimely::Late(_) => "hops refused",
        };
        match (self.mutation, &found) {
            (Some(Mutation::CommitsEarly), Untimely::Early(_))
            | (Some(Mutation::CommitsExpired), Untimely::Expired(_)) => return true,
            (_, Untimely::Early(_)) => self.doubt_clocks(slot),
            _ => {}
        }
        self.fail(slot, &Dirty::untimely(found), why);
        false
    }

    /// Whether the commit, which said OK, was clean; if not, its producer is not used again.
    pub(super) fn is_clean(&mut self, slot: usize) -> bool {
        let since = |then| Duration::from_millis(self.at - then);
        let Some(flight) = self.members[slot].flights.front() else { return true };
        let took = flight.began.map(since).unwrap_or_default();
        let (commit, disconnected) = (since(flight.step.1), self.members[slot].disconnected);
        match (Course { took, commit, disconnected }).clean(PATIENT) {
            Err(dirty) if self.mutation != Some(Mutation::ReusesDirty) => {
                self.fail(slot, &dirty, "commits slow");
                false
            }
            _ => true,
        }
    }

    /// Nothing came for too long.
    pub(super) fn timed_out(&mut self, slot: usize) {
        let class = self.class_of_trouble();
        let step = self.members[slot].flights.front().map(|flight| flight.step.0);
        if step == Some(Step::Produce) {
            for (place, topic) in self.asked(slot) {
                let failures = &mut self.member(slot).failures;
                failures.add(Some(place), class, &topic, || "timed out".to_owned());
            }
        }
        self.broken(slot, ErrorClass::Other, "timed out");
    }

    /// What trouble of brokers is taken for.
    fn class_of_trouble(&self) -> ErrorClass {
        match self.mutation {
            Some(Mutation::BlamesBrokers) => ErrorClass::TooLarge,
            _ => ErrorClass::Other,
        }
    }

    /// A step failed.
    pub(super) fn broken(&mut self, slot: usize, class: ErrorClass, why: &'static str) {
        let class = if class == ErrorClass::Other { self.class_of_trouble() } else { class };
        let of_partitions = class == ErrorClass::Forbidden;
        // Of records that were not written the commit tells, which waits for them.
        let step = match self.members[slot].flights.front().map(|flight| flight.step.0) {
            None | Some(Step::Produce) => Step::Commit,
            Some(step) => step,
        };
        let broken = Broken { class, of_partitions, detail: why.to_owned() };
        self.fail(slot, &Dirty::broken(step, broken), why);
    }

    /// A broker refuses something of the first batch's last request. All of it that went to the same topics may be
    /// named; in a transaction it may be nobody, and never whose target we may not write to.
    pub(super) fn refused(&mut self, slot: usize, class: ErrorClass) {
        let is_denied = class == ErrorClass::Forbidden;
        if self.plan.exactly_once() && (is_denied || self.chance.percent(40)) {
            return self.broken(slot, class, "refused");
        }
        let is_refused = |topic: &str| if is_denied { topic == DENIED } else { is_target(topic) };
        for (place, topic) in self.asked(slot) {
            if is_refused(&topic) {
                let failures = &mut self.member(slot).failures;
                failures.add(Some(place), class, &topic, || "refused".to_owned());
            }
        }
        self.broken(slot, ErrorClass::Other, "refused");
    }

    /// The producer is dropped, and the engine is told why; then the lanes are taken over again.
    fn fail(&mut self, slot: usize, dirty: &Dirty, why: &'static str) {
        let aborts = self.plan.exactly_once();
        // Only of a transaction it is known which batch has failed.
        let batch = self.members[slot].flights.front().map(|flight| flight.id);
        let batch = batch.filter(|_| aborts);
        let failed = dirty.to_failure(batch, true, &mut self.member(slot).failures);
        // Not running: a step's orders are not carried out any more.
        let busy = std::mem::replace(&mut self.member(slot).busy, true);
        if !failed.doubted.is_empty() {
            self.step(slot, Event::InvalidateTargets(failed.doubted));
        }
        // What the requests before the refused one carried is there, and stays.
        if let Some(refused) = &failed.refused
            && let Some(flight) = self.members[slot].flights.front().filter(|_| !aborts)
            && flight.id == refused.batch
        {
            let id = flight.id;
            let acknowledged = (0..flight.before_asked()).map(|at| (id, at)).collect();
            self.step(slot, Event::PartlyAcknowledged(acknowledged));
        }
        if let Some(refused) = failed.refused
            && self.mutation != Some(Mutation::KeepsSilent)
        {
            self.step(slot, Event::Refused(refused));
            self.count("batches refused");
        }
        self.member(slot).busy = busy;
        self.discard(slot, why);
    }

    /// The engine gets the event of hops that stand too late before the event that their batch is done.
    pub(super) fn tell_late(&mut self, slot: usize, batch: BatchId) {
        let round = self.members[slot].round;
        for LateHop { source, offset, due } in self.member(slot).appends.end(batch) {
            self.count("hops late");
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
