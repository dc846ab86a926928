//! How far the shards of a run are: four bits for each.
//!
//! ```text
//! in <ns>.timers, key = name, 4:  version u8, shards u32, created u32, until u64, stops u8, then four bits a shard, the first one lowest,
//!                                 then of each shard that has failed, even if it goes on: its index u32, the turn u32
//! ```
//!
//! Version 1 has no turns.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{DecodeError, RUN_TARGET, TimerFields, TimerState};
use crate::run::{SHARDS_MAX, ShardCounts};
use crate::{Record, UnixMillis};

/// The version of its form.
const VERSION: u8 = 2;
/// Bytes of a turn that has failed.
const FAILURE: usize = 8;
/// A shard was begun.
const BEGUN: u8 = 1;
/// A shard was handed out once more.
const AGAIN: u8 = 2;
/// A shard has ended.
const ENDED: u8 = 4;
/// A shard has failed: that, or it was cancelled.
const FAILED: u8 = 8;

/// What is heard of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ShardNews {
    /// Who executes it has begun.
    Begun,
    /// It was handed out once more.
    Again,
    /// It is finished.
    Finished,
    /// It has ended in another way.
    Failed,
}

/// What the lane of a shard says of it to the lane of its run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardReport {
    pub(crate) index: u32,
    /// The turn of the shard that this is about.
    pub(crate) turn: u32,
    pub(crate) news: ShardNews,
}

/// Where a shard stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardState {
    /// It is not there yet.
    ToCreate,
    /// Nobody has begun it.
    Waiting,
    /// Somebody executes it.
    Executing,
    /// It was handed out once more.
    Again,
    /// It is finished.
    Finished,
    /// It has failed, has expired or was cancelled.
    Failed,
}

impl ShardState {
    /// The character that stands for it in the grid of a run.
    #[must_use]
    pub const fn as_char(self) -> char {
        match self {
            Self::ToCreate => '.',
            Self::Waiting => 'o',
            Self::Executing => '>',
            Self::Again => 'r',
            Self::Finished => '#',
            Self::Failed => 'x',
        }
    }
}

impl ShardCounts {
    /// A shard has other marks now.
    fn change(&mut self, before: u8, after: u8) {
        for (count, of, want) in [
            (&mut self.begun, BEGUN, BEGUN),
            (&mut self.again, AGAIN | ENDED, AGAIN),
            (&mut self.finished, ENDED | FAILED, ENDED),
            (&mut self.failed, FAILED, FAILED),
        ] {
            let is = |mark: u8| u32::from(mark & of == want);
            *count = *count + is(after) - is(before);
        }
    }
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunStatus {
    /// It waits for its time.
    Waiting,
    /// Its shards are being created, or are, and nobody has begun one.
    Triggered,
    /// One of its shards was begun at least.
    Executing,
    /// All were begun.
    Locked,
    /// One that was handed out once more has not ended.
    ReExecuting,
    /// All shards are finished.
    Finished,
    /// A shard has failed; or the run was refused.
    Failed,
    /// Its deadline came first; or its time was over before it began.
    Expired,
    /// It was cancelled.
    Cancelled,
}

impl RunStatus {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Waiting,
        Self::Triggered,
        Self::Executing,
        Self::Locked,
        Self::ReExecuting,
        Self::Finished,
        Self::Failed,
        Self::Expired,
        Self::Cancelled,
    ];

    /// The status of a run whose timer is in this state.
    #[must_use]
    pub fn of(state: TimerState, run: Option<&RunProgress>) -> Self {
        match state {
            TimerState::Delivered => Self::Finished,
            TimerState::Dead | TimerState::Lost => Self::Failed,
            TimerState::Expired => Self::Expired,
            TimerState::Cancelled => Self::Cancelled,
            TimerState::Delay => run.map_or(Self::Waiting, |run| {
                let ShardCounts { created, begun, again, .. } = run.counts();
                match (created, begun) {
                    (0, _) => Self::Waiting,
                    _ if again > 0 => Self::ReExecuting,
                    (_, 0) => Self::Triggered,
                    _ if run.is_locked() => Self::Locked,
                    _ => Self::Executing,
                }
            }),
        }
    }

    /// How a run ends by a record of `<ns>.timers`; `None`: no run ends by it.
    #[must_use]
    pub fn end_in(change: &Record) -> Option<Self> {
        let (_, fields) = TimerFields::of_task(change)?;
        let is_end = fields.state.is_final() && fields.target.starts_with(RUN_TARGET);
        is_end.then(|| Self::of(fields.state, None))
    }

    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Triggered => "triggered",
            Self::Executing => "executing",
            Self::Locked => "locked",
            Self::ReExecuting => "re-executing",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing follows.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Expired | Self::Cancelled)
    }
}

/// How far the shards of a run are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunProgress {
    shards: u32,
    /// What the marks say.
    counts: ShardCounts,
    /// When the run expires.
    until: UnixMillis,
    /// It ends with the failure of a shard.
    stops: bool,
    /// Four bits each.
    marks: Box<[u8]>,
    /// The last turn that has failed, of each shard that has failed and is not finished.
    failures: BTreeMap<u32, u32>,
}

impl RunProgress {
    /// That of a run of so many shards, of which there is none yet. It expires then; or ends with the failure of a shard, if it `stops`.
    #[must_use]
    pub fn new(shards: u32, until: UnixMillis, stops: bool) -> Self {
        let marks = vec![0; (shards as usize).div_ceil(2)].into();
        let counts = ShardCounts::default();
        Self { shards, counts, until, stops, marks, failures: BTreeMap::new() }
    }

    /// How many shards the run has.
    #[must_use]
    pub const fn shards(&self) -> u32 {
        self.shards
    }

    /// How many of them there are: the first ones.
    #[must_use]
    pub const fn created(&self) -> u32 {
        self.counts.created
    }

    /// When the run expires.
    #[must_use]
    pub const fn until(&self) -> UnixMillis {
        self.until
    }

    /// Whether the run ends with the failure of a shard.
    #[must_use]
    pub const fn stops(&self) -> bool {
        self.stops
    }

    /// The shards before this one are created.
    pub(crate) fn create_to(&mut self, created: u32) {
        self.counts.created = created.min(self.shards);
    }

    /// Takes in what is heard of a turn of a shard; false: it is nothing new. What is heard twice changes nothing, in whatever order. A
    /// shard that has failed and was retried by hand is open again once it is handed out, as a later turn.
    pub(crate) fn hear(&mut self, ShardReport { index, turn, news }: ShardReport) -> bool {
        let is_over = self.failures.get(&index).is_some_and(|failed| turn <= *failed);
        if index >= self.created() || (is_over && news != ShardNews::Finished) {
            return false;
        }
        let before = self.mark(index);
        let open = if before & FAILED == 0 { before } else { before & !(ENDED | FAILED) };
        let after = match news {
            ShardNews::Begun => open | BEGUN,
            ShardNews::Again => open | AGAIN,
            ShardNews::Finished => (before | BEGUN | ENDED) & !FAILED,
            ShardNews::Failed if before & (ENDED | FAILED) == ENDED => before,
            ShardNews::Failed => before | ENDED | FAILED,
        };
        let known = match news {
            ShardNews::Finished => self.failures.remove(&index),
            ShardNews::Failed if after & FAILED != 0 => self.failures.insert(index, turn),
            _ => None,
        };
        self.counts.change(before, after);
        let shift = 4 * (index % 2);
        if let Some(byte) = self.marks.get_mut(index as usize / 2) {
            *byte = *byte & !(0xf << shift) | after << shift;
        }
        after != before || known.is_some()
    }

    fn mark(&self, index: u32) -> u8 {
        self.marks.get(index as usize / 2).map_or(0, |byte| byte >> (4 * (index % 2)) & 0xf)
    }

    /// Where a shard stands.
    #[must_use]
    pub fn state(&self, index: u32) -> ShardState {
        let mark = self.mark(index);
        let has = |bit: u8| mark & bit != 0;
        match () {
            () if index >= self.created() => ShardState::ToCreate,
            () if has(FAILED) => ShardState::Failed,
            () if has(ENDED) => ShardState::Finished,
            () if has(AGAIN) => ShardState::Again,
            () if has(BEGUN) => ShardState::Executing,
            () => ShardState::Waiting,
        }
    }

    /// How many stand where.
    #[must_use]
    pub const fn counts(&self) -> ShardCounts {
        self.counts
    }

    /// The same of a run that has ended: a shard that had not ended was cancelled with it, and counts as failed.
    #[must_use]
    pub const fn counts_at_end(&self) -> ShardCounts {
        let ShardCounts { created, finished, .. } = self.counts;
        ShardCounts { again: 0, failed: created - finished, ..self.counts }
    }

    /// One character a shard: [`ShardState::as_char`].
    #[must_use]
    pub fn grid(&self) -> String {
        (0..self.shards).map(|index| self.state(index).as_char()).collect()
    }

    /// The shards that there are and that are not finished: one that has failed may have been retried by hand since.
    pub fn unfinished(&self) -> impl Iterator<Item = u32> {
        (0..self.created()).filter(|index| self.mark(*index) & (ENDED | FAILED) != ENDED)
    }

    /// Whether there is no shard that somebody could begin.
    fn is_locked(&self) -> bool {
        let is_taken = |index: u32| self.mark(index) & (BEGUN | ENDED) != 0;
        self.created() == self.shards && (0..self.shards).all(is_taken)
    }

    /// Whether all shards have ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let ShardCounts { finished, failed, .. } = self.counts;
        finished + failed == self.shards
    }

    /// Its bytes in `<ns>.timers`.
    #[must_use]
    pub fn value(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(18 + self.marks.len() + FAILURE * self.failures.len());
        bytes.push(VERSION);
        bytes.extend(self.shards.to_be_bytes());
        bytes.extend(self.created().to_be_bytes());
        bytes.extend(self.until.0.to_be_bytes());
        bytes.push(u8::from(self.stops));
        bytes.extend_from_slice(&self.marks);
        for (index, turn) in &self.failures {
            bytes.extend(index.to_be_bytes());
            bytes.extend(turn.to_be_bytes());
        }
        bytes
    }

    /// Reads what [`value`](Self::value) wrote.
    ///
    /// # Errors
    /// Somebody else wrote it, or a newer waterclock.
    pub fn read(value: &[u8]) -> Result<Self, DecodeError> {
        let size = DecodeError::Size { bytes: value.len() };
        let (version, rest) = value.split_first().ok_or(size)?;
        if !(1..=VERSION).contains(version) {
            return Err(DecodeError::Version { version: *version });
        }
        let (shards, rest) = rest.split_first_chunk().ok_or(size)?;
        let (created, rest) = rest.split_first_chunk().ok_or(size)?;
        let (until, rest) = rest.split_first_chunk().ok_or(size)?;
        let (stops, rest) = rest.split_first().ok_or(size)?;
        let (shards, created) = (u32::from_be_bytes(*shards), u32::from_be_bytes(*created));
        let until = UnixMillis(u64::from_be_bytes(*until));
        let bytes_of_marks = (shards as usize).div_ceil(2);
        let (marks, failures) = rest.split_at_checked(bytes_of_marks).ok_or(size)?;
        let (failures, none) = failures.as_chunks::<FAILURE>();
        let is_whole = shards <= SHARDS_MAX
            && created <= shards
            && *stops <= 1
            && none.is_empty()
            && failures.len() <= shards as usize;
        if !is_whole {
            return Err(size);
        }
        let mut run = Self::new(shards, until, *stops == 1);
        (run.marks, run.counts.created) = (marks.into(), created);
        for [a, b, c, d, turn @ ..] in failures {
            let (index, turn) = (u32::from_be_bytes([*a, *b, *c, *d]), u32::from_be_bytes(*turn));
            let is_next = run.failures.last_key_value().is_none_or(|(last, _)| *last < index);
            if !is_next || index >= created {
                return Err(size);
            }
            run.failures.insert(index, turn);
        }
        for index in 0..created {
            run.counts.change(0, run.mark(index));
        }
        // Nothing is heard of a shard that is not there yet.
        let is_sound = (created..2 * run.marks.len() as u32).all(|index| run.mark(index) == 0);
        is_sound.then_some(run).ok_or(size)
    }
}

#[cfg(test)]
mod tests;
