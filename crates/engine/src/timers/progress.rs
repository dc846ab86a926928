//! How far a task is: what `<ns>.timers` says of it beside what it says of every timer.
//!
//! ```text
//! in a timer's value, of version 3, behind `since`: turn u32, attempts u32, failures u32, rounds u32, interruptions u16,
//!        flags u8 (1: held, 2: begun, 4: open, 8: cancelling, 16: breaker, 32: awaited), partition u16, credits u16, next at u64
//! key = name, 2, slot u8:  an attempt: version u8, turn u32, number u32, the result as JSON
//! key = name, 3:           the definition: version u8, the specification as JSON
//! key = name, 4:           of a run: how far its shards are
//! ```

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{DecodeError, TimerId};
use crate::task::result::{Outcome, TaskResult};
use crate::task::scope::TasksPartition;
use crate::{Millis, UnixMillis};

/// The version of what is about tasks.
pub(super) const VERSION: u8 = 3;
/// What follows the name in the key of an attempt.
pub(super) const ATTEMPT: u8 = 2;
/// What follows the name in the key of a definition.
pub(super) const DEFINITION: u8 = 3;
/// What follows the name in the key of a run's shards.
pub(super) const SHARDS: u8 = 4;
/// Attempts that are kept of a task: the newest ones.
pub const SLOTS: u8 = 32;

const HELD: u8 = 1;
const BEGUN: u8 = 2;
const OPEN: u8 = 4;
const CANCELLING: u8 = 8;
const BREAKER: u8 = 16;
const AWAITED: u8 = 32;
/// Nominal times of a schedule are that far apart in seconds, not in milliseconds.
const IN_SECONDS: u32 = 1 << 31;
/// Bytes of a progress.
pub(super) const SIZE: usize = 31;

/// A turn that a worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBy {
    /// The partition of `<ns>.tasks` that it stands in.
    pub partition: TasksPartition,
    /// What it takes of the credits of its scope.
    pub credits: u16,
}

/// How far a task is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// How often it was dispatched; of a schedule: how often it has gone on, from 1 after a change.
    pub turn: u32,
    /// Turns in which a call was made and ended; of a schedule: its tasks.
    pub attempts: u32,
    /// Attempts that failed, since the last answer that was none.
    pub failures: u32,
    /// How often it was asked and was not ready yet.
    pub rounds: u32,
    /// Turns of which nobody knows whether a call was made, since the last one of which somebody does.
    pub interruptions: u16,
    /// A worker has it.
    pub held: Option<HeldBy>,
    /// A call was made, or may have been.
    pub begun: bool,
    /// The worker says that its call is open; or its executor has given a sign.
    pub open: bool,
    /// It ends as cancelled once its worker says that nothing is open.
    pub cancelling: bool,
    /// Its worker has sent it back, since the other side had failed too often. It is called again at `next_at` at the earliest.
    pub breaker: bool,
    /// Its executor has the turn, and is to report by `next_at`. Its record stands in the line meanwhile.
    pub with_executor: bool,
    /// When it is acted on next. Of a task that has ended: until when that is remembered, as its project says.
    pub next_at: UnixMillis,
}

impl Progress {
    /// Of a schedule: the last nominal time that has a task, if any has.
    #[must_use]
    pub fn last_nominal(&self) -> Option<UnixMillis> {
        let at = u64::from(self.interruptions) << 32 | u64::from(self.rounds);
        (at > 0).then_some(UnixMillis(at))
    }

    /// Of a schedule: the nominal time whose task that of the last one waits for, or waited for.
    #[must_use]
    pub fn nominal_before(&self) -> Option<UnixMillis> {
        let apart = u64::from(self.failures & !IN_SECONDS);
        let unit = if self.failures & IN_SECONDS == 0 { 1 } else { 1_000 };
        self.last_nominal().filter(|_| apart > 0).map(|last| last - Millis(apart * unit))
    }

    /// Of a schedule: the same with one more task, which waits for that of another nominal time, or for none. Both times stand where a
    /// task's rounds, interruptions and failures are counted: a schedule has none. Farther apart than 24 days they are kept in
    /// seconds: less than that no pattern has, and a period that has makes the first one look as if it had ended.
    pub(crate) fn with_occurrence(self, nominal: UnixMillis, behind: Option<UnixMillis>) -> Self {
        let apart = behind.map_or(0, |behind| (nominal - behind).0);
        let failures = match u32::try_from(apart) {
            Ok(apart) if apart & IN_SECONDS == 0 => apart,
            _ => (apart / 1_000) as u32 | IN_SECONDS,
        };
        Self {
            attempts: self.attempts.saturating_add(1),
            interruptions: (nominal.0 >> 32) as u16,
            rounds: nominal.0 as u32,
            failures,
            ..self
        }
    }

    /// With its turn over.
    pub(crate) fn ended(self) -> Self {
        Self { held: None, open: false, breaker: false, with_executor: false, ..self }
    }

    pub(super) fn put(&self, bytes: &mut Vec<u8>) {
        for number in [self.turn, self.attempts, self.failures, self.rounds] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(self.interruptions.to_be_bytes());
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        bytes.push(
            flag(self.held.is_some(), HELD)
                | flag(self.begun, BEGUN)
                | flag(self.open, OPEN)
                | flag(self.cancelling, CANCELLING)
                | flag(self.breaker, BREAKER)
                | flag(self.with_executor, AWAITED),
        );
        let (partition, credits) =
            self.held.map_or((0, 0), |held| (held.partition.0, held.credits));
        bytes.extend(partition.to_be_bytes());
        bytes.extend(credits.to_be_bytes());
        bytes.extend(self.next_at.0.to_be_bytes());
    }

    /// Reads what [`put`](Self::put) wrote; `None`: a newer waterclock wrote it.
    pub(super) fn read(bytes: [u8; SIZE]) -> Option<Self> {
        let mut rest = &bytes[..];
        let mut long = || {
            let (number, after) = rest.split_first_chunk()?;
            rest = after;
            Some(u32::from_be_bytes(*number))
        };
        let (turn, attempts, failures, rounds) = (long()?, long()?, long()?, long()?);
        let (interruptions, rest) = rest.split_first_chunk()?;
        let (flags, rest) = rest.split_first()?;
        let (partition, rest) = rest.split_first_chunk()?;
        let (credits, rest) = rest.split_first_chunk()?;
        let (next_at, _) = rest.split_first_chunk()?;
        let has = |flag: u8| flags & flag != 0;
        let held = HeldBy {
            partition: TasksPartition(u16::from_be_bytes(*partition)),
            credits: u16::from_be_bytes(*credits),
        };
        let is_known = flags & !(HELD | BEGUN | OPEN | CANCELLING | BREAKER | AWAITED) == 0;
        is_known.then(|| Self {
            turn,
            attempts,
            failures,
            rounds,
            interruptions: u16::from_be_bytes(*interruptions),
            held: has(HELD).then_some(held),
            begun: has(BEGUN),
            open: has(OPEN),
            cancelling: has(CANCELLING),
            breaker: has(BREAKER),
            with_executor: has(AWAITED),
            next_at: UnixMillis(u64::from_be_bytes(*next_at)),
        })
    }
}

/// An attempt: a turn of a task in which a call was made, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Which task.
    pub timer_id: TimerId,
    /// Which turn it was.
    pub turn: u32,
    /// Which attempt, from 1.
    pub number: u32,
    /// What its worker said of it.
    pub result: TaskResult,
}

impl Attempt {
    /// What its executor said of it that its next turn, or the next owner of its lane, is to know.
    #[must_use]
    pub fn cursor(&self) -> Option<Cursor> {
        let text = self.result.cursor.as_deref().map(Arc::from);
        let is_open = self.result.outcome == Outcome::Started;
        let began = self.result.started.filter(|_| is_open);
        let open = began.map(|began| OpenTurn::of(began, &self.result));
        (text.is_some() || open.is_some()).then_some(Cursor { number: self.number, text, open })
    }

    /// The place that it is kept in: one of [`SLOTS`].
    #[must_use]
    pub fn slot(&self) -> u8 {
        slot(self.number)
    }

    pub(super) fn value(&self) -> Vec<u8> {
        let json = self.result.to_json();
        let mut bytes = Vec::with_capacity(9 + json.len());
        bytes.push(VERSION);
        bytes.extend(self.turn.to_be_bytes());
        bytes.extend(self.number.to_be_bytes());
        bytes.extend(json.as_bytes());
        bytes
    }

    pub(super) fn read(timer_id: TimerId, value: &[u8]) -> Result<Self, DecodeError> {
        let size = DecodeError::Size { bytes: value.len() };
        let (version, rest) = value.split_first().ok_or(size)?;
        if *version != VERSION {
            return Err(DecodeError::Version { version: *version });
        }
        let (turn, rest) = rest.split_first_chunk().ok_or(size)?;
        let (number, json) = rest.split_first_chunk().ok_or(size)?;
        let result = TaskResult::parse(json).map_err(|_| DecodeError::Text)?;
        let (turn, number) = (u32::from_be_bytes(*turn), u32::from_be_bytes(*number));
        Ok(Self { timer_id, turn, number, result })
    }
}

/// How far an executor said that it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// In which attempt: the last one counts.
    pub number: u32,
    /// What it said.
    pub text: Option<Arc<str>>,
    /// What is known of that attempt, if it was open then.
    pub open: Option<OpenTurn>,
}

/// What is known of the turn that an executor has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenTurn {
    /// When it was begun.
    pub began: UnixMillis,
    /// Who has it, if that was said.
    pub worker: Option<Arc<str>>,
    /// How much is done, in percent, if that was said.
    pub percent: Option<u8>,
}

impl OpenTurn {
    /// One that was begun then, of which this was said first.
    #[must_use]
    pub fn of(began: UnixMillis, said: &TaskResult) -> Self {
        Self { began, worker: said.worker.as_deref().map(Arc::from), percent: said.percent }
    }

    /// More is said of it.
    pub fn hear(&mut self, said: &TaskResult) {
        if said.worker.as_deref().is_some_and(|worker| self.worker.as_deref() != Some(worker)) {
            self.worker = said.worker.as_deref().map(Arc::from);
        }
        self.percent = said.percent.or(self.percent);
    }

    /// Tells what its end did not say.
    pub fn complete(&self, end: &mut TaskResult) {
        end.started.get_or_insert(self.began);
        end.worker = end.worker.take().or_else(|| self.worker.as_deref().map(str::to_owned));
        if end.outcome != Outcome::Finished {
            end.percent = end.percent.or(self.percent);
        }
    }
}

/// The place in which the attempt of a number is kept.
#[must_use]
pub fn slot(number: u32) -> u8 {
    (number.wrapping_sub(1) % u32::from(SLOTS)) as u8
}

/// The key of an attempt in `<ns>.timers`.
#[must_use]
pub fn attempt_key(timer_id: TimerId, slot: u8) -> [u8; 18] {
    let mut key = [ATTEMPT; 18];
    key[..16].copy_from_slice(&timer_id.0);
    key[17] = slot;
    key
}

/// The key of a task's definition in `<ns>.timers`.
#[must_use]
pub fn definition_key(timer_id: TimerId) -> [u8; 17] {
    let mut key = [DEFINITION; 17];
    key[..16].copy_from_slice(&timer_id.0);
    key
}

/// The key in `<ns>.timers` of how far the shards of a run are.
#[must_use]
pub fn shards_key(timer_id: TimerId) -> [u8; 17] {
    let mut key = [SHARDS; 17];
    key[..16].copy_from_slice(&timer_id.0);
    key
}

/// The value of a task's definition.
#[must_use]
pub fn definition_value(spec: &[u8]) -> Vec<u8> {
    [&[VERSION][..], spec].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_knows_its_last_time_and_the_one_before() {
        let none = Progress::default();
        assert_eq!((none.last_nominal(), none.nominal_before()), (None, None));
        let last = UnixMillis(1_800_000_000_500);
        for apart in [1_500, (1 << 31) - 1, 1 << 31, 1 << 40] {
            // Far apart, in whole seconds.
            let apart = if apart < 1 << 31 { apart } else { apart / 1_000 * 1_000 };
            let of = none.with_occurrence(last, Some(last - Millis(apart)));
            assert_eq!(of.last_nominal(), Some(last));
            assert_eq!(of.nominal_before(), Some(last - Millis(apart)), "{apart}");
            let mut bytes = Vec::new();
            of.put(&mut bytes);
            assert_eq!(Progress::read(bytes.try_into().expect("its size")), Some(of));
        }
        let of = none.with_occurrence(last, None);
        assert_eq!((of.last_nominal(), of.nominal_before(), of.attempts), (Some(last), None, 1));
    }
}
