//! What users do: submissions, transactions of their own, answers that they get.

use std::sync::Arc;

use waterclock::engine::{Offset, TopicId, timers};

use super::{Answered, World};
use crate::broker::{EPOCH_MS, Place, Refusal, Writer};
use crate::network::{Scheduled, Told, Wake};
use crate::plan::{SECOND, TRANSACTION};
use crate::workload::{self, End, TARGETS, When};

impl World {
    pub(super) fn submit(&mut self, index: usize) {
        let of = &self.workload.submissions[index];
        let place = Place { topic: self.lane_topics[of.topic], partition: of.partition };
        if let Some(until) = self.stalled_until(place).filter(|_| of.transaction.is_none()) {
            return self.push(until, Scheduled::Submit(index));
        }
        if let Some(theft) = self.workload.submissions[index].theft {
            self.steal(index, theft);
        }
        let of = &self.workload.submissions[index];
        let place = Place { topic: self.lane_topics[of.topic], partition: of.partition };
        if self.workload.submissions[index].act.names_a_version() && !self.name_version(index) {
            return;
        }
        let submission = &self.workload.submissions[index];
        let record = submission.record.clone();
        let writer = match submission.transaction {
            None => None,
            Some(transaction) => match self.users_writer(transaction) {
                Some(writer) => Some(writer),
                None => return,
            },
        };
        match self.broker.produce(self.at, writer.as_ref(), place, record) {
            Ok(offset) => {
                self.note(|| format!("submit n={index} to {place:?} at {offset:?}"));
                self.accepted.insert(index, (place, offset));
                self.stirred = true;
            }
            // Its transaction has ended already: the user was told, nothing was submitted.
            Err(Refusal::Fenced) => {}
            Err(refusal) => {
                self.breach("model", format!("submission {index} refused: {refusal:?}"))
            }
        }
    }

    /// Seals a command about one version, which its client has learned of by now; `false`: it has not.
    fn name_version(&mut self, index: usize) -> bool {
        let submission = &self.workload.submissions[index];
        let (Some(of), Some(timer_id)) = (submission.act.version(), submission.timer) else {
            return false;
        };
        let Some((appended, _, offset)) = self.appended(of) else { return false };
        let made = &self.workload.submissions[of];
        let stays = made.own_lane && made.topic < self.plan.setup.topics.intakes.len();
        let place = Place { topic: self.timers_topic, partition: submission.partition };
        let log = self.broker.partition(place);
        let said = log.into_iter().flat_map(|log| log.ledger()).filter_map(|(_, entry)| {
            let record = entry.record.as_ref()?;
            match timers::Change::decode(record.key(), record.value()) {
                Ok(timers::Change::Timer(timer)) if timer.timer_id == timer_id => {
                    Some(timer.version)
                }
                _ => None,
            }
        });
        let elsewhere = !(made.own_lane && made.topic == 0);
        // Of two that were appended at once at one offset of two topics the mark tells which is which.
        let mark = self.plan.setup.topics.mark(TopicId(made.topic as u16));
        let stands = match elsewhere {
            true => timers::Version::not_in_log_order(offset, mark),
            false => offset,
        };
        let is_it = |version: &timers::Version| {
            version.first_appended.0 == appended
                && version.is_not_in_log_order() == elsewhere
                && (!stays || version.offset == stands)
        };
        // Where it will stand its client does not know; of two that were appended at once it cannot tell which is which.
        let may_be_another = |(at, other): (usize, &workload::Submission)| {
            let elsewhere = !(other.own_lane && other.topic == 0);
            let appended_then = || self.appended(at).is_some_and(|(then, ..)| then == appended);
            at != of && other.timer == Some(timer_id) && elsewhere && appended_then()
        };
        if !stays && self.workload.submissions.iter().enumerate().any(may_be_another) {
            return false;
        }
        let version = said.filter(is_it).last();
        let Some(version) = version else { return false };
        let due = match submission.when {
            When::At(due) => due,
            When::After(_) => EPOCH_MS + self.at,
        };
        let sealed = workload::amend(&submission.record, version, due, &self.plan.setup.key);
        self.workload.submissions[index].record = sealed;
        self.named.insert(index, version);
        self.count("amends");
        true
    }

    /// Whether nobody's transaction hid what stands there for as long as such a one is waited for.
    pub fn was_readable(&self, place: Place, offset: Offset) -> bool {
        let hidden = self.broker.partition(place).and_then(|log| log.hidden_for(offset));
        hidden.is_some_and(|hidden| hidden < self.plan.foreign_wait)
    }

    /// How far the brokers' clocks are apart, at most, with what they have stepped.
    pub fn clocks_apart(&self) -> u64 {
        self.plan.clocks_apart()
    }

    fn users_writer(&mut self, transaction: usize) -> Option<Writer> {
        if let Some(writer) = self.writers.get(&transaction) {
            return Some(writer.clone());
        }
        let id: Arc<str> = format!("user-{transaction}").into();
        let writer = self.broker.init(&id).ok()?;
        self.writers.insert(transaction, writer.clone());
        self.after(TRANSACTION + SECOND, Scheduled::Expire(id));
        Some(writer)
    }

    pub(super) fn end_transaction(&mut self, index: usize) {
        let commit = matches!(self.workload.transactions[index], End::Commit(_));
        if let Some(writer) = self.writers.get(&index).cloned() {
            let ended = self.broker.end(&writer, commit);
            self.note(|| format!("user's transaction {index} ends, commit {commit}: {ended:?}"));
            self.want_marker();
        }
    }

    pub(super) fn make_target(&mut self) {
        let Some((name, partitions, limit)) = TARGETS.iter().find(|(name, ..)| *name == "later")
        else {
            return;
        };
        self.broker.create(name, *partitions, *limit);
        self.tell_of(name);
    }

    /// Some notice by themselves that a target changed, others when they ask again.
    pub(super) fn tell_of(&mut self, name: &str) {
        for slot in 0..self.members.len() {
            let process = self.members[slot].process();
            let wait = self.chance.between(0, 5 * SECOND);
            if self.chance.percent(50) {
                self.wake(process, wait, Wake::TargetChanged(Arc::from(name)));
            }
        }
    }

    /// A client learns what became of its command.
    pub(super) fn told_client(&mut self, number: usize, told: Told) {
        self.note(|| format!("n={number} is told {told:?}"));
        let moment = self.broker.next_moment();
        let answers = self.told.entry(number).or_default();
        if let Some(before) = answers.iter().find(|before| before.told != told) {
            let before = before.told;
            // A record that is read again after a crash is decided again.
            // A replace is its own record: it is read, and answered, again as long as it is pending.
            let replaces = self.workload.submissions[number].act.replaces();
            if self.plan.exactly_once() && !replaces {
                self.breach("answers", format!("n={number}: {before:?}, then {told:?}"));
            }
            return;
        }
        answers.push(Answered { told, moment });
        self.count("answers");
    }
}
