//! Decided writes that wait for a batch.
//!
//! # Invariants
//! 1. Writes leave in the order in which they were decided. A write that belongs to the next one leaves in the same batch.
//! 2. An offset and an answer leave with the write that is their cause, and not before it.
//! 3. Dead letters of records without an id wait apart: no decision depends on when they leave. So they may leave last.

use std::collections::VecDeque;

use super::super::messages::{
    Answer, ChangeReason, Destination, HeaderRewrite, Produce, TimerChange,
};
use super::super::timers::TimerId;
use super::{Lane, Offset, Record, Source, UnixMillis};

/// What goes with the next batch, in this order.
#[derive(Debug, Default)]
pub(super) struct PendingWrite {
    /// The offset that finishes with it.
    pub(super) done: Option<(Source, Offset)>,
    pub(super) send: Option<Produce>,
    /// Bytes of the budget that it gives back.
    pub(super) held: usize,
    pub(super) answer: Option<Answer>,
    /// It is in the same batch as the next one.
    pub(super) with_next: bool,
    /// In place of a send: how far the shards of this run are once this leaves.
    pub(super) shards: Option<(Lane, TimerId)>,
}

/// What is written of a timer that is dead, beside its letter.
#[derive(Debug)]
pub(super) struct DeadTimer {
    pub(super) change: Record,
    /// Of a task: who wishes it is told.
    pub(super) follow_up: Option<Produce>,
}

impl PendingWrite {
    /// A send, and the offset that finishes with it.
    pub(super) fn of(done: Option<(Source, Offset)>, send: Produce) -> Self {
        Self { done, held: send.record.size(), send: Some(send), ..Self::default() }
    }

    /// A send that finishes no offset.
    pub(super) fn send(send: Produce) -> Self {
        Self { send: Some(send), ..Self::default() }
    }

    /// A timer change.
    pub(super) fn timer_change(lane: Lane, record: Record, reason: ChangeReason) -> Self {
        let rewrite = HeaderRewrite::Timer(Box::new(TimerChange { record, reason }));
        let partition = Some(i32::from(lane.0));
        let due = UnixMillis(0);
        let (record, expires) = (Record::empty(), None);
        Self::send(Produce { to: Destination::Timers, partition, record, rewrite, due, expires })
    }

    /// How far the shards of a run are. All that is heard of them until it leaves is in it.
    pub(super) fn shards(lane: Lane, timer_id: TimerId) -> Self {
        Self { shards: Some((lane, timer_id)), ..Self::default() }
    }

    /// The shards are that far.
    pub(super) fn settle_shards(&mut self, change: Record) {
        if let Some((lane, _)) = self.shards.take() {
            self.send = Self::timer_change(lane, change, ChangeReason::Reported).send;
        }
    }

    /// An offset that finishes without a record to send.
    pub(super) fn done(done: (Source, Offset), record: &Record) -> Self {
        Self { done: Some(done), held: record.size(), ..Self::default() }
    }

    /// An answer to a command.
    pub(super) fn answer(answer: Answer) -> Self {
        Self { answer: Some(answer), ..Self::default() }
    }

    /// Whether this timer change reports a timer as lost.
    fn is_of_a_lost_one(&self) -> bool {
        let rewrite = self.send.as_ref().map(|send| &send.rewrite);
        matches!(rewrite, Some(HeaderRewrite::Timer(change)) if change.reason == ChangeReason::Lost)
    }
}

/// All writes that wait for a batch.
#[derive(Debug, Default)]
pub(super) struct Writes {
    /// Moves, dead letters of records with an id, timer changes, and offsets that finish without a record.
    ready: VecDeque<PendingWrite>,
    /// Dead letters of records that follow nothing of the contract, or have no id.
    letters: VecDeque<PendingWrite>,
    /// How many were taken out of `ready`.
    taken: u64,
}

impl Writes {
    pub(super) fn push(&mut self, write: PendingWrite) {
        self.ready.push_back(write);
    }

    /// A write that leaves together with the next one.
    pub(super) fn push_with_next(&mut self, write: PendingWrite) {
        self.ready.push_back(PendingWrite { with_next: true, ..write });
    }

    pub(super) fn extend(&mut self, writes: impl IntoIterator<Item = PendingWrite>) {
        self.ready.extend(writes);
    }

    /// A dead letter of a record without an id.
    pub(super) fn push_letter(&mut self, letter: PendingWrite) {
        self.letters.push_back(letter);
    }

    /// The last write leaves together with the next one.
    pub(super) fn keep_with_next(&mut self) {
        if let Some(last) = self.ready.back_mut() {
            last.with_next = true;
        }
    }

    /// A run ends, and its shards are that far: so says a write of them that waits. What was heard of them is done with it.
    pub(super) fn settle_shards(&mut self, timer_id: TimerId, change: &Record) {
        let waiting = self.ready.iter_mut();
        for write in waiting.filter(|write| write.shards.is_some_and(|(_, of)| of == timer_id)) {
            write.settle_shards(change.clone());
        }
    }

    /// An answer leaves with the last write.
    pub(super) fn reply_with(&mut self, answer: Option<Answer>) {
        let Some(answer) = answer else { return };
        match self.ready.back_mut() {
            Some(last) if last.answer.is_none() => last.answer = Some(answer),
            _ => self.ready.push_back(PendingWrite::answer(answer)),
        }
    }

    /// Completes a record with the last write, which leaves in its place.
    pub(super) fn complete_with(&mut self, done: (Source, Offset), record: Record) {
        let Some(last) = self.ready.back_mut() else { return };
        (last.done, last.held) = (Some(done), record.size());
        if let Some(send) = &mut last.send {
            send.record = record;
        }
    }

    /// Takes the first write.
    pub(super) fn pop(&mut self) -> Option<PendingWrite> {
        let write = self.ready.pop_front()?;
        self.taken += 1;
        Some(write)
    }

    /// Takes the first dead letter of those that wait apart.
    pub(super) fn pop_letter(&mut self) -> Option<PendingWrite> {
        self.letters.pop_front()
    }

    /// How many writes wait in order: all but the dead letters that wait apart.
    pub(super) fn in_order(&self) -> usize {
        self.ready.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.letters.is_empty()
    }

    /// The number of the next write, counted from the take-over.
    pub(super) fn next_number(&self) -> u64 {
        self.taken + self.ready.len() as u64
    }

    /// Whether all writes before this number were taken.
    pub(super) fn are_taken(&self, before: u64) -> bool {
        self.taken >= before
    }

    /// Whether a timer change waits that reports a timer as lost.
    pub(super) fn reports_a_loss(&self) -> bool {
        self.ready.iter().any(PendingWrite::is_of_a_lost_one)
    }
}
