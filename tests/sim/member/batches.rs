//! Carrying out batches: produce, send offsets, commit, tell; and what goes wrong between two of these steps.

use std::collections::VecDeque;
use std::sync::Arc;

use waterclock::engine::member::{ErrorClass, Step};
use waterclock::engine::messages::{
    Answer, Batch, ChangeReason, Destination, Event, HeaderRewrite, Produce,
};
use waterclock::engine::task::spec::{self, Spec};
use waterclock::engine::{BatchId, Limits, Offset, Record, TopicId, UnixMillis};

use super::mutating::reverse_ties;
use super::{Flight, Phase, Positions, Up, number_of};
use crate::broker::{Position, Refusal, Time, Writer};
use crate::mutation::Mutation;
use crate::network::{NOBODY, Outgoing, Reply, Request, Scheduled, Wake};
use crate::plan::SECOND;
use crate::workload::java_partition;
use crate::world::World;
use crate::world::cluster::PATIENCE;

/// Records that one produce request carries, at most.
const PRODUCE_MAX: u64 = 40;
/// After this long all that is left of a batch is in one request.
const PRODUCES_FOR: Time = 2 * SECOND;

impl World {
    // Batches.

    pub(super) fn take_batch(&mut self, slot: usize, batch: Batch) {
        let Batch { id, sends, commits, answers } = batch;
        let numbers: Vec<u32> = sends.iter().filter_map(|send| number_of(&send.record)).collect();
        numbers.iter().for_each(|number| self.member(slot).tally.give_back(*number));
        let positions: Positions = commits
            .into_iter()
            .map(|c| (self.place(c.source), Position { next: c.next.0, metadata: c.metadata }))
            .collect();
        let longest = positions.iter().map(|(_, position)| position.metadata.len());
        self.longest_metadata = self.longest_metadata.max(longest.max().unwrap_or_default());
        for send in &sends {
            self.count(match send.to {
                Destination::Lane(topic) if self.plan.setup.topics.tier_of(topic).is_none() => {
                    "moves"
                }
                Destination::Lane(_) => "hops",
                Destination::Target(_) => "deliveries",
                Destination::Dead => "dead letters",
                Destination::Tasks => "tasks",
                Destination::Submitted if is_occurrence(send) => "occurrences",
                Destination::Submitted if is_of_shard(send) => "creates and cancels of shards",
                Destination::Results => "news of shards",
                Destination::Submitted => "follow-ups",
                Destination::Timers => match &send.rewrite {
                    HeaderRewrite::Timer(said) => because(said.reason),
                    _ => "timers",
                },
            });
        }
        self.check_known(slot, &sends);
        self.check_expired(slot, &sends);
        let dues: Vec<UnixMillis> = sends.iter().map(|send| send.due).collect();
        let mutation = self.mutation;
        let mut outgoing: VecDeque<Outgoing> = VecDeque::new();
        for send in sends.iter().filter(|send| !is_forgotten(mutation, send)) {
            let sent = self.outgoing(send);
            if mutation == Some(Mutation::SubmitsTwice) && is_occurrence(send) {
                outgoing.push_back(sent.clone());
            }
            let other = match mutation {
                Some(Mutation::CountsShardsTwice) => self.end_of_another_shard(send, &sent),
                Some(Mutation::RenamesShards) => self.shard_of_another_version(send, &sent),
                _ => None,
            };
            outgoing.extend(other);
            outgoing.push_back(sent);
        }
        self.mutate(&mut outgoing);
        if self.mutation == Some(Mutation::ReversesTies) {
            reverse_ties(&mut outgoing, &dues);
        }
        if self.plan.exactly_once() {
            let checkpoints = self.checkpoints_of(&positions);
            outgoing.extend(checkpoints);
        }
        if self.mutation == Some(Mutation::CommitsFirst) {
            let identity = self.members[slot].identity();
            let process = self.members[slot].process();
            self.request(process, NOBODY, Request::CommitOffsets(identity, positions.clone()));
        }
        self.count(if outgoing.is_empty() { "batches of offsets only" } else { "batches" });
        if self.plan.exactly_once() && !self.members[slot].flights.is_empty() {
            self.breach("contract", "two batches at once in exactly_once".to_owned());
        }
        if self.mutation == Some(Mutation::AnswersEarly) {
            answers.iter().for_each(|answer| self.answer(slot, answer));
        }
        let flight = Flight {
            id,
            outgoing,
            positions,
            numbers,
            answers,
            offsets_sent: false,
            sent: 0,
            asked: Vec::new(),
            began: None,
            step: (Step::Begin, self.at),
        };
        self.member(slot).flights.push_back(flight);
    }

    pub fn outgoing(&mut self, send: &Produce) -> Outgoing {
        let mut headers: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
        send.headers(|name, value| headers.push((name.to_vec(), value.map(<[u8]>::to_vec))));
        let body = send.body();
        let record = crate::workload::record(body.key(), body.value(), &headers);
        let topic = match &send.to {
            Destination::Lane(topic) => Arc::clone(self.plan.setup.topics.name(*topic)),
            Destination::Target(name) => Arc::clone(name),
            Destination::Dead => self.plan.setup.topics.dead(),
            Destination::Timers => self.plan.setup.topics.timers(),
            Destination::Tasks => self.plan.setup.topics.tasks(),
            Destination::Submitted => Arc::clone(self.plan.setup.topics.name(TopicId(0))),
            Destination::Results => {
                let results = self.plan.setup.topics.results().expect("tasks are in force");
                Arc::clone(self.plan.setup.topics.name(results))
            }
        };
        let count = self.broker.topic(&topic).map_or(1, |t| self.broker.topics[t].partitions.len());
        let partition = match (send.partition, send.record.key()) {
            (Some(partition), _) => partition,
            (None, Some(key)) => java_partition(key, count as u32),
            (None, None) => self.chance.below(count) as i32,
        };
        Outgoing { topic, partition, record, timing: self.plan.setup.timing(send) }
    }

    /// No record leaves that a cancel covers which its owner could have read: it stood in the lane's intake when the lane
    /// was taken over.
    fn check_known(&mut self, slot: usize, sends: &[Produce]) {
        let mut found = Vec::new();
        if !self.plan.exactly_once() && !self.plan.healthy() {
            // A zombie's word may come after the new owner's.
            return;
        }
        if self.plan.setup.limits.tracked_max < Limits::default().tracked_max {
            // A cancel may have been refused, since there was no room for it.
            return;
        }
        for send in sends.iter().filter(|send| matches!(send.to, Destination::Target(_))) {
            let Some(number) = number_of(&send.record).map(|number| number as usize) else {
                continue;
            };
            let ends = &self.members[slot].ends;
            let known = self.cancels_of(number).find(|(cancel, place, offset)| {
                let submission = &self.workload.submissions[*cancel];
                submission.own_lane
                    && submission.transaction.is_none()
                    && ends.get(place).is_some_and(|end| offset < end)
                    && self.was_readable(*place, *offset)
            });
            // Its time was over: it had been met by another record of the same timer.
            if let Some((cancel, ..)) = known.filter(|_| !self.was_forgotten(number)) {
                found.push(format!(
                    "n={number} leaves, though n={cancel} stood before the take-over"
                ));
            }
        }
        for what in found {
            self.breach("cancelled in time", what);
        }
    }

    pub(super) fn commits_fail(&mut self, percent: u32) -> bool {
        !self.healed() && percent > 0 && self.chance.percent(percent)
    }

    /// Takes the next step of the first batch, unless one is being taken.
    pub(super) fn drive(&mut self, slot: usize) {
        let member = &self.members[slot];
        let able = matches!(member.phase, Phase::Running | Phase::Finishing);
        if member.busy || !able || member.flights.is_empty() {
            return;
        }
        self.member(slot).busy = true;
        self.fault_between_steps(slot);
        if self.members[slot].up == Up::Dead {
            return;
        }
        let most = self.chance.between(1, PRODUCE_MAX) as usize;
        self.begin_batch(slot);
        let at = self.at;
        let Some(flight) = self.member(slot).flights.front_mut() else { return };
        if !flight.outgoing.is_empty() {
            // The real one has them all on their way at once.
            let is_soon = flight.began.is_none_or(|began| at - began < PRODUCES_FOR);
            let most = if is_soon { most } else { usize::MAX };
            let count = most.min(flight.outgoing.len());
            let records: Vec<Outgoing> = flight.outgoing.drain(..count).collect();
            flight.step = (Step::Produce, at);
            flight.asked = records.iter().map(|of| Arc::clone(&of.topic)).collect();
            flight.sent += count;
            return self.produce_some(slot, records);
        }
        if !self.plan.exactly_once() {
            return self.acknowledged(slot);
        }
        let Some(writer) = self.members[slot].writer.clone() else { return };
        let Some(flight) = self.member(slot).flights.front_mut() else { return };
        if !flight.offsets_sent && !flight.positions.is_empty() {
            flight.offsets_sent = true;
            flight.step = (Step::SendOffsets, at);
            let positions = flight.positions.clone();
            if self.mutation == Some(Mutation::RecordsAlone) {
                return self.reply(slot, Reply::OffsetsSent(Ok(())));
            }
            let identity = self.members[slot].identity();
            let request = Request::SendOffsets(writer, identity, positions);
            return self.ask_for_offsets(slot, request);
        }
        if flight.sent == 0 && flight.positions.is_empty() {
            // Nothing but answers: there is no transaction to commit.
            return self.finished(slot);
        }
        if !self.may_commit(slot) {
            return;
        }
        if let Some(flight) = self.member(slot).flights.front_mut() {
            flight.step = (Step::Commit, at);
        }
        self.commit(slot, writer);
    }

    /// Kills or freezes the process here: what was sent before is on its way, what comes next is not sent, or late.
    pub(super) fn fault_between_steps(&mut self, slot: usize) {
        let spent = self.seen.get("faults between steps").copied().unwrap_or_default();
        if spent >= self.plan.step_faults_max || !self.commits_fail(self.plan.network.step_faults) {
            return;
        }
        self.count("faults between steps");
        if self.chance.percent(50) {
            self.kill(slot);
            let back_after = self.chance.spread(50, 40 * SECOND);
            self.after(back_after, Scheduled::Start(slot));
        } else {
            let lasts = self.chance.spread(SECOND, 40 * SECOND);
            self.freeze(slot, lasts);
        }
    }

    pub(super) fn produce_some(&mut self, slot: usize, records: Vec<Outgoing>) {
        if self.mutation == Some(Mutation::OffsetsAlone) && self.chance.percent(10) {
            return self.reply(slot, Reply::Produced(Ok(Vec::new())));
        }
        let fails = self.commits_fail(self.plan.network.produce_fails);
        let writer = self.members[slot].writer.clone();
        let request = Request::Produce(writer, records);
        if !fails {
            return self.ask(slot, request);
        }
        let process = self.members[slot].process();
        if self.chance.percent(50) {
            // It arrives, and nobody learns of it.
            self.request(process, NOBODY, request);
        }
        let wait = self.chance.between(100, 6 * SECOND);
        let round = self.members[slot].round;
        self.wake(process, wait, Wake::Reply(round, Reply::TimedOut));
    }

    /// Holds the first request with offsets up, perhaps: the client asks again, and is answered (F17).
    fn ask_for_offsets(&mut self, slot: usize, request: Request) {
        if !self.commits_fail(self.plan.network.commit_held) {
            return self.ask(slot, request);
        }
        self.count("offsets held up");
        let looks_well = self.mutation == Some(Mutation::ReusesAfterOffsets);
        self.ask_again(slot, request, looks_well);
    }

    /// The first of two requests is held up. The client asks again at once, since its connection has ended, or when it had no
    /// answer for long enough.
    fn ask_again(&mut self, slot: usize, request: Request, looks_well: bool) {
        let (process, round) = (self.members[slot].process(), self.members[slot].round);
        let late = self.chance.spread(100, 30 * SECOND);
        self.after(late, Scheduled::Arrives(process, NOBODY, request.clone()));
        if looks_well {
            self.ask(slot, request);
        } else if self.chance.percent(50) {
            self.member(slot).disconnected = true;
            self.ask(slot, request);
        } else {
            self.after(PATIENCE, Scheduled::Arrives(process, round, request));
        }
    }

    pub(super) fn commit(&mut self, slot: usize, writer: Writer) {
        let process = self.members[slot].process();
        let round = self.members[slot].round;
        if self.commits_fail(self.plan.network.commit_aborts) {
            let late = if self.chance.percent(50) { 0 } else { self.chance.spread(1, 20 * SECOND) };
            let abort = Request::EndTransaction(writer, false);
            self.after(late, Scheduled::Arrives(process, NOBODY, abort));
            let wait = self.chance.between(1, 50);
            self.wake(process, wait, Wake::Reply(round, Reply::Ended(Err(Refusal::InvalidState))));
            return;
        }
        if self.commits_fail(self.plan.network.commit_held) {
            // The client gave up on the first request, asked again, and is told that it is done (F16).
            self.count("commits held up");
            return self.ask_again(slot, Request::EndTransaction(writer, true), false);
        }
        if !self.commits_fail(self.plan.network.commit_unknown) {
            return self.ask(slot, Request::EndTransaction(writer, true));
        }
        match self.chance.between(0, 2) {
            0 => self.request(process, NOBODY, Request::EndTransaction(writer, true)),
            1 => {
                let late = self.chance.spread(100, 20 * SECOND);
                self.after(
                    late,
                    Scheduled::Arrives(process, NOBODY, Request::EndTransaction(writer, true)),
                );
            }
            _ => {}
        }
        let wait = self.chance.between(SECOND, 6 * SECOND);
        self.wake(process, wait, Wake::Reply(round, Reply::TimedOut));
    }

    pub(super) fn reply(&mut self, slot: usize, reply: Reply) {
        match reply {
            Reply::Init(Ok(writer)) => {
                self.member(slot).writer = Some(writer);
                self.member(slot).disconnected = false;
                match self.members[slot].phase {
                    Phase::Starting => self.join(slot),
                    _ => self.fetch_committed(slot),
                }
            }
            Reply::Committed(Ok(committed)) => self.told_committed(slot, committed),
            Reply::Checkpoints(Ok(found)) => self.told_checkpoints(slot, found),
            Reply::Logs(logs) => self.told_logs(slot, logs),
            Reply::End(source, at, end) => self.told_end(slot, source, at, end),
            Reply::Changelog(lane, why, end) => self.wait_for_index(slot, lane, why, end),
            Reply::Produced(Ok(stand)) => {
                self.written(slot, &stand);
                self.member(slot).busy = false;
                self.drive(slot);
            }
            Reply::OffsetsSent(Ok(())) => {
                self.member(slot).busy = false;
                self.drive(slot);
            }
            Reply::Ended(Ok(())) => {
                if self.is_clean(slot) {
                    self.finished(slot);
                }
            }
            Reply::OffsetsCommitted(Ok(())) => self.offsets_committed(slot),
            Reply::TimedOut if self.mutation == Some(Mutation::GoesOnAfterUnknown) => {
                let ended = self.members[slot].flights.front().is_some_and(|f| f.offsets_sent);
                if ended { self.finished(slot) } else { self.discard(slot, "timed out") }
            }
            Reply::TimedOut => self.timed_out(slot),
            Reply::Produced(Err(refusal))
            | Reply::OffsetsSent(Err(refusal))
            | Reply::Ended(Err(refusal))
            | Reply::OffsetsCommitted(Err(refusal)) => match refusal {
                Refusal::IllegalGeneration => {
                    self.broken(slot, ErrorClass::Other, "old generation")
                }
                Refusal::Fenced => self.broken(slot, ErrorClass::Fenced, "fenced"),
                Refusal::InvalidState => self.broken(slot, ErrorClass::Other, "commit aborted"),
                Refusal::Poison => self.refused(slot, ErrorClass::TooLarge),
                Refusal::Denied => self.refused(slot, ErrorClass::Forbidden),
                refusal => {
                    self.breach("liveness", format!("a batch that can never pass: {refusal:?}"))
                }
            },
            Reply::Init(Err(refusal))
            | Reply::Committed(Err(refusal))
            | Reply::Checkpoints(Err(refusal)) => {
                self.breach("model", format!("{refusal:?} has no answer"));
            }
            Reply::Described(..) => {}
        }
    }

    /// A transaction is committed.
    pub(super) fn finished(&mut self, slot: usize) {
        let Some(flight) = self.member(slot).flights.pop_front() else {
            self.member(slot).busy = false;
            return;
        };
        self.answer_all(slot, &flight.answers);
        self.delete_records(slot, flight.positions);
        self.tell_late(slot, flight.id);
        self.tell(slot, flight.id);
    }

    /// `at_least_once`: all records of the first batch are there.
    pub(super) fn acknowledged(&mut self, slot: usize) {
        let Some(flight) = self.member(slot).flights.pop_front() else {
            self.member(slot).busy = false;
            return;
        };
        self.answer_all(slot, &flight.answers);
        let member = self.member(slot);
        member.acknowledged.extend(&flight.numbers);
        member.positions.extend(flight.positions);
        self.commit_offsets(slot);
        self.tell_late(slot, flight.id);
        self.tell(slot, flight.id);
    }

    fn answer_all(&mut self, slot: usize, answers: &[Answer]) {
        if self.mutation != Some(Mutation::AnswersEarly) {
            answers.iter().for_each(|answer| self.answer(slot, answer));
        }
    }

    pub(super) fn tell(&mut self, slot: usize, id: BatchId) {
        match self.members[slot].phase {
            Phase::Finishing if self.members[slot].idle() => {
                self.revoke(slot);
                self.join(slot);
            }
            Phase::Finishing => self.drive(slot),
            _ if self.mutation == Some(Mutation::ForgetsAnswer) => {}
            _ => self.step(slot, Event::Committed(id)),
        }
    }

    pub(super) fn commit_offsets(&mut self, slot: usize) {
        if self.mutation == Some(Mutation::RecordsAlone) {
            self.member(slot).positions.clear();
            self.member(slot).acknowledged.clear();
            return;
        }
        let member = self.member(slot);
        if member.committing.is_some() || member.positions.is_empty() {
            return;
        }
        let numbers = std::mem::take(&mut member.acknowledged);
        let positions: Positions = std::mem::take(&mut member.positions).into_iter().collect();
        member.committing = Some((numbers, positions.clone()));
        let identity = member.identity();
        self.ask(slot, Request::CommitBoth(identity, positions));
    }

    pub(super) fn offsets_committed(&mut self, slot: usize) {
        if let Some((_, positions)) = self.member(slot).committing.take() {
            self.delete_records(slot, positions);
        }
        self.commit_offsets(slot);
        if self.members[slot].phase == Phase::Finishing && self.members[slot].idle() {
            self.revoke(slot);
            self.join(slot);
        }
    }

    /// After a clean commit, what is done may be deleted.
    pub(super) fn delete_records(&mut self, slot: usize, positions: Positions) {
        if positions.is_empty() || !self.chance.percent(30) {
            return;
        }
        let until = positions.into_iter().map(|(place, p)| (place, Offset(p.next))).collect();
        let process = self.members[slot].process();
        let wait = self.chance.spread(1, 5 * SECOND);
        self.after(wait, Scheduled::Arrives(process, NOBODY, Request::DeleteRecords(until)));
    }
}

/// The specification of a task or a schedule that a record has.
fn spec_of(record: &Record) -> Option<Spec> {
    let (_, json) = record.headers().find(|(name, _)| *name == spec::HEADER.as_bytes())?;
    Spec::parse(json?).ok()
}

/// Whether a lane submits the task of a schedule by this.
fn is_occurrence(send: &Produce) -> bool {
    send.to == Destination::Submitted
        && spec_of(&send.record).is_some_and(|spec| spec.occurrence().is_some())
}

/// Whether a lane creates or cancels a shard by this.
fn is_of_shard(send: &Produce) -> bool {
    let mut headers = send.record.headers();
    send.to == Destination::Submitted
        && headers.any(|(name, value)| {
            name == b"x-delay-id" && value.is_some_and(|id| id.starts_with(b"r."))
        })
}

/// Whether a mutation has this stay unwritten.
fn is_forgotten(mutation: Option<Mutation>, send: &Produce) -> bool {
    match mutation {
        Some(Mutation::ForgetsFollowUps) => {
            send.to == Destination::Submitted && !is_occurrence(send) && !is_of_shard(send)
        }
        Some(Mutation::ForgetsOccurrences) => is_occurrence(send),
        Some(Mutation::ForgetsQueued) => {
            let spec = spec_of(&send.record).filter(|_| send.to == Destination::Submitted);
            let after = spec.and_then(|spec| spec.occurrence().and_then(|of| of.after));
            after.is_some()
        }
        Some(Mutation::ForgetsToCancelShards) => {
            is_of_shard(send) && spec_of(&send.record).is_none()
        }
        Some(Mutation::LosesSchedules) => {
            matches!(send.to, Destination::Lane(_))
                && spec_of(&send.record).is_some_and(|spec| spec.schedule().is_some())
        }
        _ => false,
    }
}

fn because(reason: ChangeReason) -> &'static str {
    match reason {
        ChangeReason::Created => "created",
        ChangeReason::Delivered => "timers delivered",
        ChangeReason::Cancelled => "timers cancelled",
        ChangeReason::Dead => "timers dead",
        ChangeReason::Recorded => "cancels",
        ChangeReason::Superseded => "superseded",
        ChangeReason::Suppressed => "cancelled",
        ChangeReason::Missed => "cancelled before they came",
        ChangeReason::Forgotten => "forgotten",
        ChangeReason::Lost => "timers lost",
        ChangeReason::Dispatched => "tasks dispatched",
        ChangeReason::Reported => "tasks reported",
    }
}
