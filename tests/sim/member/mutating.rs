//! What mutations do to what leaves, and to what is read.

use std::collections::VecDeque;

use waterclock::engine::header::{self, Code};
use waterclock::engine::state::{Kind, State, StateKey};
use waterclock::engine::timers::{self, Change};
use waterclock::engine::{Record, Source, UnixMillis};

use super::number_of;
use crate::mutation::Mutation;
use crate::network::Outgoing;
use crate::workload::Act;
use crate::world::World;

impl World {
    /// The record, or what a mutation makes of it: one without an id, which is delivered whatever is said of its timer.
    pub(super) fn unnamed(&mut self, source: Source, record: Record) -> Record {
        let number = number_of(&record).map(|number| number as usize);
        let of = number.and_then(|number| self.workload.submissions.get(number));
        let Some(of) = of.filter(|of| source.topic.0 == 0 && of.own_lane && of.act == Act::Create)
        else {
            return record;
        };
        let others = self
            .workload
            .submissions
            .iter()
            .enumerate()
            .filter(|(other, _)| Some(*other) != number && self.accepted.contains_key(other));
        let mut of_timer =
            others.filter(|(_, other)| of.timer.is_some() && other.timer == of.timer);
        let strip = match self.mutation {
            Some(Mutation::DeliversDuplicates) => {
                of_timer.any(|(_, other)| other.act == Act::Create)
            }
            Some(Mutation::DeliversCancelled) => {
                of_timer.any(|(_, other)| other.act == Act::Cancel)
            }
            _ => false,
        };
        if !strip || !self.chance.percent(50) {
            return record;
        }
        let kept = record.headers().filter(|(name, _)| *name != b"x-delay-id");
        Record::new(record.key(), record.value(), kept)
    }

    /// Writes something else of a timer than what was decided.
    fn misstate(&mut self, sent: &mut Outgoing) {
        let changed = match Change::decode(sent.record.key(), sent.record.value()) {
            Ok(Change::Timer(timer))
                if self.mutation == Some(Mutation::FreesEarly)
                    && timer.state == timers::TimerState::Delay =>
            {
                Change::Timer(timers::Timer { state: timers::TimerState::Cancelled, ..timer })
            }
            Ok(Change::Timer(timer))
                if self.mutation == Some(Mutation::BlamesCalls)
                    && timer.code == Some(Code::ProjectDeleted) =>
            {
                Change::Timer(timers::Timer { code: Some(Code::TaskFailed), ..timer })
            }
            Ok(Change::Timer(timer)) if self.mutation == Some(Mutation::CountsNoBytes) => {
                let one = |held| timers::HeldBy { credits: 1, ..held };
                let of =
                    |task: timers::Progress| timers::Progress { held: task.held.map(one), ..task };
                Change::Timer(timers::Timer { task: timer.task.map(of), ..timer })
            }
            Ok(Change::CancelMark(mark)) if self.mutation == Some(Mutation::ForgetsUnmet) => {
                Change::ForgottenCancelMark(mark.timer_id)
            }
            _ => return,
        };
        if sent.topic == self.plan.setup.topics.timers() && self.chance.percent(50) {
            let (key, value) = changed.encode();
            sent.record = crate::workload::record(Some(&key), value.as_deref(), &[]);
        }
    }

    /// Does to a batch what a mutation asks for, now and then.
    pub(super) fn mutate(&mut self, outgoing: &mut VecDeque<Outgoing>) {
        let Some(mutation) = self.mutation else { return };
        if mutation == Mutation::DropsTimers {
            let changelog = self.plan.setup.topics.timers();
            outgoing.retain(|sent| sent.topic != changelog);
        }
        let key = self.plan.setup.key.clone();
        if mutation == Mutation::FinishesDuplicates {
            outgoing.retain(|sent| as_pending(&sent.record, &key).is_none());
        }
        if mutation == Mutation::FollowsAny {
            for sent in outgoing.iter_mut() {
                if let Some(pending) = as_pending(&sent.record, &key) {
                    sent.record = pending;
                }
            }
        }
        outgoing.iter_mut().for_each(|sent| self.misstate(sent));
        if outgoing.is_empty() || !self.chance.percent(20) {
            return;
        }
        let index = self.chance.below(outgoing.len());
        let target = !outgoing[index].topic.starts_with("waterclock.");
        match mutation {
            Mutation::DropsSend => drop(outgoing.remove(index)),
            Mutation::SendsTwice => {
                let again = outgoing[index].clone();
                outgoing.push_back(again);
            }
            Mutation::Swaps if index + 1 < outgoing.len() => outgoing.swap(index, index + 1),
            Mutation::WrongPartition if target => outgoing[index].partition ^= 1,
            Mutation::KeepsControl if target => rewrite(&mut outgoing[index], |_, headers| {
                headers.push((b"x-delay-target".to_vec(), Some(b"t0".to_vec())));
            }),
            Mutation::NullBecomesEmpty if target => rewrite(&mut outgoing[index], |value, _| {
                value.get_or_insert_default();
            }),
            Mutation::Misleads => rewrite(&mut outgoing[index], |_, headers| {
                for (name, value) in headers {
                    if name == b"x-delay-error-offset" {
                        *value = Some(b"999999".to_vec());
                    }
                }
            }),
            Mutation::TurnsHeaders if target => {
                rewrite(&mut outgoing[index], |_, headers| headers.reverse());
            }
            _ => {}
        }
    }
}

/// A record that is kept as a duplicate, as it were if it was pending; `None`: it is no such record.
fn as_pending(record: &Record, key: &StateKey) -> Option<Record> {
    let directive = header::read(record.headers()).ok()?;
    let bound = directive.bound(record.key());
    let state = State::open(directive.state?, key, &bound).ok()?;
    if state.kind != Kind::Duplicate {
        return None;
    }
    let sealed = State { kind: Kind::Hop, ..state }.seal(key, &bound);
    let other = |(name, value): (&[u8], Option<&[u8]>)| match name {
        b"x-delay-state" => (name.to_vec(), Some(sealed.as_ref().to_vec())),
        _ => (name.to_vec(), value.map(<[u8]>::to_vec)),
    };
    let headers: Headers = record.headers().map(other).collect();
    Some(crate::workload::record(record.key(), record.value(), &headers))
}

/// Neighbours that are due at the same time leave the other way round.
pub(super) fn reverse_ties(outgoing: &mut VecDeque<Outgoing>, dues: &[UnixMillis]) {
    let outgoing = outgoing.make_contiguous();
    let mut from = 0;
    for at in 1..=outgoing.len().min(dues.len()) {
        if dues.get(at) != dues.get(from) {
            outgoing[from..at].reverse();
            from = at;
        }
    }
}

type Headers = Vec<(Vec<u8>, Option<Vec<u8>>)>;

fn rewrite(outgoing: &mut Outgoing, edit: impl FnOnce(&mut Option<Vec<u8>>, &mut Headers)) {
    let record = &outgoing.record;
    let mut value = record.value().map(<[u8]>::to_vec);
    let mut headers: Headers =
        record.headers().map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec))).collect();
    edit(&mut value, &mut headers);
    outgoing.record = crate::workload::record(record.key(), value.as_deref(), &headers);
}
