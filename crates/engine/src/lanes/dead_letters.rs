//! What is refused becomes a dead letter, unless it is in its target already.
//!
//! # Invariants
//! 1. A dead letter stands in the partition of its lane, with its code and the place where its record stood.
//! 2. Of a record with an id it leaves in the order of what is decided: a cancel that comes after it must not be committed
//!    before it.
//! 3. What is said of its timer goes with it: that the pending version is dead; or, of a record that was never pending, that
//!    it is dead since before it came, if nothing else is known of the timer.

use std::sync::Arc;

use super::super::header::{self, Code, Refusal};
use super::super::messages::{
    Answer, ChangeReason, DeadLetter, Destination, HeaderRewrite, Outcome, Produce,
};
use super::super::timers::{About, Progress, TimerId, TimerState, Version};
use super::super::verdict::{self, Origin, PendingRecord, StateChange};
use super::lifecycle::answer;
use super::past::{Of, Waiting};
use super::writes::{DeadTimer, PendingWrite};
use super::{Lane, LaneEngine, Offset, Record, Source, UnixMillis};

impl LaneEngine {
    /// Refuses a record whose headers were read.
    pub(super) fn refuse(&mut self, now: UnixMillis, entry: PendingRecord, refusal: Refusal) {
        if !self.timers.stands(&entry) {
            return self.suppress(now, entry, None);
        }
        if self.poison.is_delivered(entry.source, entry.offset) {
            return self.finish_delivered(now, entry);
        }
        let live = entry.timer_id.and_then(|of| self.timers.table().live(entry.source.lane, of));
        if let (Some(timer_id), Some(live)) = (entry.timer_id.filter(|_| entry.decided), live) {
            self.cancel_shards_of(now, &entry.record, (entry.source.lane, timer_id, live));
        }
        let dead = self.end_dead(now, &entry, refusal.code, Some(&refusal));
        let answer =
            if entry.decided { None } else { answer(&entry, Outcome::Refused(refusal.code)) };
        let never_pending = self.never_pending(now, &entry, &refusal);
        let PendingRecord { source, offset, appended, record, timer_id, .. } = entry;
        let letter =
            PendingWrite { answer, ..self.letter((source, offset), appended, record, refusal) };
        match (dead, never_pending) {
            (None, Some((timer_id, dead))) => {
                self.write_once_recalled(now, (source.lane, timer_id), letter, dead);
            }
            (dead @ Some(_), _) => self.write_dead_letter_and_change(source.lane, letter, dead),
            (None, None) => self.write_dead_letter(letter, timer_id.is_some()),
        }
    }

    /// Refuses a record that breaks the contract.
    pub(super) fn refuse_broken(
        &mut self,
        now: UnixMillis,
        (source, offset): (Source, Offset),
        appended: UnixMillis,
        record: Record,
        refusal: Refusal,
    ) {
        let setup = Arc::clone(&self.setup);
        let timer_id = timer_of_command(&record).filter(|_| setup.topics.is_intake(source.topic));
        let outcome = Outcome::Refused(refusal.code);
        let never_pending = verdict::never_pending(&setup, source, offset, appended, &record);
        let never_pending =
            never_pending.filter(|(timer_id, _)| self.is_news(source.lane, *timer_id));
        let change = never_pending.map(|(timer_id, make)| {
            (timer_id, DeadTimer { change: make(refusal.code), follow_up: None })
        });
        let letter = self.letter((source, offset), appended, record, refusal);
        // A refused caller gets no other answer.
        let about = About::Before(Version { first_appended: appended, offset });
        let answer = timer_id.map(|timer_id| Answer { source, offset, timer_id, about, outcome });
        let letter = PendingWrite { answer, ..letter };
        match change {
            Some((timer_id, change)) => {
                self.write_once_recalled(now, (source.lane, timer_id), letter, change)
            }
            None => self.writes.push_letter(letter),
        }
    }

    /// Finishes a record that would be refused, and is in its target: its batch failed, but it was acknowledged.
    fn finish_delivered(&mut self, now: UnixMillis, entry: PendingRecord) {
        match self.end_live(now, &entry, StateChange::new(TimerState::Delivered, now)) {
            None => self.finish(&entry, None),
            Some(said) => {
                let lane = entry.source.lane;
                self.writes.push(PendingWrite::timer_change(lane, said, ChangeReason::Delivered));
                self.writes.complete_with((entry.source, entry.offset), entry.record);
            }
        }
    }

    /// Ends the live version with its dead letter, and gives the record that says so; none for any other record.
    fn end_dead(
        &mut self,
        now: UnixMillis,
        entry: &PendingRecord,
        code: Code,
        refusal: Option<&Refusal>,
    ) -> Option<DeadTimer> {
        let progress = entry.timer_id.and_then(|timer_id| self.timers.tasks.progress(timer_id));
        let failed = Some((code, refusal));
        let follow_up = self.follow_up(now, entry, progress.unwrap_or_default(), failed);
        // The leader's clock may be ahead of ours; what is dead since before it came never was pending.
        let change = self.end_live(now, entry, dead(code, now.max(entry.first_appended)))?;
        Some(DeadTimer { change, follow_up })
    }

    /// Says that a task is dead whose letter somebody else has written.
    pub(super) fn end_without_letter(
        &mut self,
        now: UnixMillis,
        entry: &PendingRecord,
        code: Code,
    ) {
        if let Some(DeadTimer { change, follow_up }) = self.end_dead(now, entry, code, None) {
            let reason = ChangeReason::Dead;
            self.write_follow_up(follow_up);
            self.writes.push(PendingWrite::timer_change(entry.source.lane, change, reason));
        }
    }

    /// Ends the live version, and gives the record that says so; none for any other record.
    fn end_live(
        &mut self,
        now: UnixMillis,
        entry: &PendingRecord,
        stage: StateChange,
    ) -> Option<Record> {
        let timer_id = entry.timer_id.filter(|_| entry.decided)?;
        let directive = header::read(entry.record.headers()).ok()?;
        let supersedes = self.timers.table().replaced(entry.source.lane, timer_id);
        let task = entry.task.as_ref().map(|task| {
            let progress = self.timers.tasks.progress(timer_id).unwrap_or_default();
            self.kept(now, Some(&task.project), progress)
        });
        let stage = StateChange { supersedes, task, ..stage };
        let record = verdict::timer_change(entry, &directive, stage);
        self.timers.end(now, entry.source.lane, timer_id);
        record
    }

    /// The timer change for a record that is refused before it was pending. The timer counts as dead since before the
    /// record came, which tells this record from the version that was pending. There is no change if another version is
    /// pending, or if the record creates no version.
    fn never_pending(
        &self,
        now: UnixMillis,
        entry: &PendingRecord,
        refusal: &Refusal,
    ) -> Option<(TimerId, DeadTimer)> {
        let code = refusal.code;
        let makes = !matches!(entry.origin, Origin::Cancel(_) | Origin::Replace(Some(_)));
        let timer_id = entry.timer_id.filter(|_| makes && !entry.decided)?;
        if !self.is_news(entry.source.lane, timer_id) {
            return None;
        }
        let directive = header::read(entry.record.headers()).ok()?;
        let task = entry
            .task
            .as_ref()
            .map(|task| self.kept(entry.first_appended, Some(&task.project), Progress::default()));
        let stage = StateChange { task, ..dead(code, verdict::before(entry.first_appended)) };
        let change = verdict::timer_change(entry, &directive, stage)?;
        let failed = Some((code, Some(refusal)));
        let follow_up = self.follow_up(now, entry, Progress::default(), failed);
        Some((timer_id, DeadTimer { change, follow_up }))
    }

    /// Whether it may be said what became of a record of this timer that was refused.
    pub(super) fn is_news(&self, lane: Lane, timer_id: TimerId) -> bool {
        self.is_full() && self.timers.table().live(lane, timer_id).is_none()
    }

    /// A dead letter of a record that never was pending, and the timer change to write if nothing is known of the
    /// timer.
    fn write_once_recalled(
        &mut self,
        now: UnixMillis,
        of: Of,
        letter: PendingWrite,
        dead: DeadTimer,
    ) {
        self.timers.past.wait(of, Waiting::Refused(Box::new((letter, dead))));
        self.agenda.wake(now);
    }

    /// A dead letter of a record with an id, together with what is said of its timer.
    pub(super) fn write_dead_letter_and_change(
        &mut self,
        lane: Lane,
        letter: PendingWrite,
        dead: Option<DeadTimer>,
    ) {
        let with_next = dead.is_some();
        self.writes.push(PendingWrite { with_next, ..letter });
        if let Some(DeadTimer { change, follow_up }) = dead {
            self.write_follow_up(follow_up);
            self.writes.push(PendingWrite::timer_change(lane, change, ChangeReason::Dead));
        }
    }

    /// A dead letter waits for its batch.
    pub(super) fn write_dead_letter(&mut self, letter: PendingWrite, has_id: bool) {
        if has_id { self.writes.push(letter) } else { self.writes.push_letter(letter) }
    }

    pub(super) fn letter(
        &self,
        (source, offset): (Source, Offset),
        timestamp: UnixMillis,
        record: Record,
        refusal: Refusal,
    ) -> PendingWrite {
        let letter = DeadLetter {
            intake: verdict::came_by(&self.setup, source.topic, &record),
            code: refusal.code,
            detail: refusal.detail,
            topic: Arc::clone(self.setup.topics.name(source.topic)),
            partition: i32::from(source.lane.0),
            offset,
            timestamp,
        };
        let rewrite = HeaderRewrite::Dead(Box::new(letter));
        // Its own lane: few partitions per transaction, and in the order of the lane.
        let partition = Some(i32::from(source.lane.0));
        let (due, expires) = (timestamp, None);
        let send = Produce { to: Destination::Dead, partition, record, rewrite, due, expires };
        PendingWrite::of(Some((source, offset)), send)
    }
}

/// A timer is dead by this code.
fn dead(code: Code, since: UnixMillis) -> StateChange {
    let state = if code == Code::Expired { TimerState::Expired } else { TimerState::Dead };
    StateChange { code: Some(code), ..StateChange::new(state, since) }
}

/// The timer that a record which breaks the contract is about, if it is a command.
fn timer_of_command(record: &Record) -> Option<TimerId> {
    let of = |wanted: &str| {
        let mut headers = record.headers();
        headers.find(|(name, _)| *name == wanted.as_bytes()).and_then(|(_, value)| value)
    };
    let is_command = of(header::ACTION).is_some_and(|action| action != b"create");
    is_command.then(|| TimerId::new(record.key(), of(header::ID).unwrap_or_default()))
}
