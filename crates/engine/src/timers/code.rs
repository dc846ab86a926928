//! What the records of `<ns>.timers` look like.
//!
//! The key is the timer's name, 16 bytes: the timer itself. With one more byte, 1, it is about its cancel mark.
//! Numbers are big-endian; a value begins with the version of this code.
//!
//! ```text
//! timer: version u8 (2; 3: of a task, with its progress), state u8, flags u8 (1: has a key, 2: it is cut, 4: supersedes, 8: has a label, 16: has a code,
//!        32: supersedes several), first append u64, offset i64, due u64, since u64,
//!        [of what it supersedes: first append u64, offset i64 [of the first of several: the same]],
//!        target (u8 length, bytes), id (the same), [label (the same)], [code (the same)], [key: the rest]
//! mark:  version u8, flags u8 (1: seen, 2: may repeat, 4: two bounds, 8: cancels), first append u64, offset i64, until u64,
//!        [of the bound not in log order: first append u64, offset i64]
//! ```

use super::super::header::Code;
use super::super::{Offset, Record, UnixMillis};
use super::progress::{self, Attempt, Progress};
use super::runs::RunProgress;
use super::{CancelMark, Replaced, Timer, TimerId, TimerState, Version, VersionBound};

/// The version of this code.
pub const VERSION: u8 = 2;
/// How much of a record's key is kept, in bytes.
pub const KEY_MAX: usize = 1_024;

/// What follows a timer's id in the key of its cancel mark.
const CANCEL_MARK: u8 = 1;
const CANCEL_MARK_SIZE_MAX: usize = 42;
const SEEN: u8 = 1;
const MAY_REPEAT: u8 = 2;
const TWO: u8 = 4;
const CANCELS: u8 = 8;

const HAS_KEY: u8 = 1;
const KEY_CUT: u8 = 2;
const SUPERSEDES: u8 = 4;
const HAS_LABEL: u8 = 8;
const HAS_CODE: u8 = 16;
const SEVERAL_OF_THEM: u8 = 32;

const STATES: [(TimerState, u8); 6] = [
    (TimerState::Delay, 1),
    (TimerState::Delivered, 2),
    (TimerState::Cancelled, 3),
    (TimerState::Expired, 4),
    (TimerState::Dead, 5),
    (TimerState::Lost, 6),
];

/// What a record of `<ns>.timers` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This is what the timer is from now on.
    Timer(Timer),
    /// From now on this mark covers versions of it.
    CancelMark(CancelMark),
    /// A tombstone: what became of the timer is not kept any longer.
    ForgottenTimer(TimerId),
    /// A tombstone: it has no cancel mark any longer.
    ForgottenCancelMark(TimerId),
    /// An attempt of a task. It takes the place of another one of its slot.
    Attempt(Attempt),
    /// A tombstone: the attempt of this slot is not kept any longer.
    ForgottenAttempt(TimerId, u8),
    /// The specification of a task, as JSON.
    Definition(TimerId, Box<str>),
    /// A tombstone: it has none any longer.
    ForgottenDefinition(TimerId),
    /// How far the shards of a run are.
    Shards(TimerId, Box<RunProgress>),
    /// A tombstone: that is not kept any longer.
    ForgottenShards(TimerId),
}

/// A timer's fields, borrowed: what [`value`] writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimerFields<'a> {
    pub(crate) state: TimerState,
    pub(crate) version: Version,
    pub(crate) supersedes: Option<Replaced>,
    pub(crate) due: UnixMillis,
    pub(crate) since: UnixMillis,
    pub(crate) target: &'a str,
    pub(crate) label: Option<&'a [u8]>,
    pub(crate) id: &'a [u8],
    /// The whole key; [`value`] cuts it.
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) code: Option<Code>,
    /// How far it is; only of a task.
    pub(crate) task: Option<Progress>,
}

impl<'a> TimerFields<'a> {
    /// Reads a record of `<ns>.timers` that says how far a task is; `None`: it says something else.
    pub(crate) fn of_task(change: &'a Record) -> Option<(TimerId, Self)> {
        let (key, value) = (change.key()?, change.value()?);
        // Most changes are not of tasks.
        if value.first() != Some(&progress::VERSION) {
            return None;
        }
        let timer_id = TimerId(key.try_into().ok()?);
        let (fields, _) = Self::read(value).ok()?;
        Some((timer_id, fields))
    }

    /// Reads what [`value`] wrote; with it: whether the key was cut.
    pub(crate) fn read(value: &'a [u8]) -> Result<(Self, bool), DecodeError> {
        let mut rest = Rest { bytes: value, size: value.len() };
        let is_task = rest.bytes.first() == Some(&progress::VERSION);
        match is_task {
            true => drop(rest.array::<1>()?),
            false => rest.version()?,
        }
        let [state, flags] = rest.array()?;
        let has = |flag: u8| flags & flag != 0;
        let known = HAS_KEY | KEY_CUT | SUPERSEDES | HAS_LABEL | HAS_CODE | SEVERAL_OF_THEM;
        let is_whole =
            (has(HAS_KEY) || !has(KEY_CUT)) && (has(SUPERSEDES) || !has(SEVERAL_OF_THEM));
        let found = STATES.iter().find(|(_, byte)| *byte == state).map(|(found, _)| *found);
        let Some(found) = found.filter(|_| flags & !known == 0 && is_whole) else {
            return Err(DecodeError::State { state, flags });
        };
        let version = rest.timer_version()?;
        let (due, since) = (UnixMillis(rest.word()?), UnixMillis(rest.word()?));
        let task = match is_task {
            true => {
                let progress = Progress::read(rest.array()?);
                Some(progress.ok_or(DecodeError::State { state, flags })?)
            }
            false => None,
        };
        let mut supersedes = None;
        if has(SUPERSEDES) {
            let last = rest.timer_version()?;
            let first = if has(SEVERAL_OF_THEM) { rest.timer_version()? } else { last };
            supersedes = Some(Replaced { first, last });
        }
        let (target, id) = (rest.text()?, rest.part()?);
        let label = has(HAS_LABEL).then(|| rest.part()).transpose()?;
        let code = has(HAS_CODE)
            .then(|| rest.text()?.parse::<Code>().map_err(|_| DecodeError::Text))
            .transpose()?;
        let key = has(HAS_KEY).then(|| std::mem::take(&mut rest.bytes));
        rest.end()?;
        if key.is_some_and(|key| key.len() > KEY_MAX) {
            return Err(DecodeError::Size { bytes: value.len() });
        }
        let fields = Self {
            state: found,
            version,
            supersedes,
            due,
            since,
            target,
            label,
            id,
            key,
            code,
            task,
        };
        Ok((fields, has(KEY_CUT)))
    }
}

/// The value of a timer's record. Target, id and label have the lengths that the header contract allows.
pub(crate) fn value(fields: &TimerFields<'_>) -> Vec<u8> {
    let cut = fields.key.is_some_and(|key| key.len() > KEY_MAX);
    write(fields, cut)
}

fn write(fields: &TimerFields<'_>, cut: bool) -> Vec<u8> {
    let key = fields.key.map(|key| &key[..key.len().min(KEY_MAX)]);
    let mut bytes = Vec::with_capacity(
        71 + progress::SIZE
            + fields.target.len()
            + fields.id.len()
            + fields.label.map_or(0, |label| 1 + label.len())
            + fields.code.map_or(0, |code| 1 + code.as_str().len())
            + key.map_or(0, <[u8]>::len),
    );
    let state =
        STATES.iter().find(|(state, _)| *state == fields.state).map_or(0, |(_, byte)| *byte);
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    let flags = flag(key.is_some(), HAS_KEY)
        | flag(cut, KEY_CUT)
        | flag(fields.supersedes.is_some(), SUPERSEDES)
        | flag(fields.label.is_some(), HAS_LABEL)
        | flag(fields.code.is_some(), HAS_CODE)
        | flag(fields.supersedes.is_some_and(|of| of.first != of.last), SEVERAL_OF_THEM);
    let version = if fields.task.is_some() { progress::VERSION } else { VERSION };
    bytes.extend([version, state, flags]);
    put_version(&mut bytes, fields.version);
    bytes.extend(fields.due.0.to_be_bytes());
    bytes.extend(fields.since.0.to_be_bytes());
    if let Some(task) = &fields.task {
        task.put(&mut bytes);
    }
    if let Some(Replaced { first, last }) = fields.supersedes {
        put_version(&mut bytes, last);
        if first != last {
            put_version(&mut bytes, first);
        }
    }
    let code = fields.code.map(|code| code.as_str().as_bytes());
    let parts = [Some(fields.target.as_bytes()), Some(fields.id), fields.label, code];
    for part in parts.into_iter().flatten() {
        let part = &part[..part.len().min(usize::from(u8::MAX))];
        bytes.push(part.len() as u8);
        bytes.extend_from_slice(part);
    }
    bytes.extend_from_slice(key.unwrap_or_default());
    bytes
}

fn put_version(bytes: &mut Vec<u8>, version: Version) {
    bytes.extend(version.first_appended.0.to_be_bytes());
    bytes.extend(version.offset.0.to_be_bytes());
}

impl CancelMark {
    /// The key of its record.
    #[must_use]
    pub fn key(timer_id: TimerId) -> [u8; 17] {
        let mut key = [CANCEL_MARK; 17];
        key[..16].copy_from_slice(&timer_id.0);
        key
    }

    /// The value of its record.
    #[must_use]
    pub fn value(&self) -> Vec<u8> {
        let VersionBound { log, not_in_log_order: other } = self.before;
        let (one, other) = match (log == Version::default(), other == Version::default()) {
            (true, _) => (other, None),
            (false, true) => (log, None),
            (false, false) => (log, Some(other)),
        };
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let flags = flag(self.seen, SEEN)
            | flag(self.may_repeat, MAY_REPEAT)
            | flag(other.is_some(), TWO)
            | flag(self.cancels, CANCELS);
        let mut bytes = Vec::with_capacity(CANCEL_MARK_SIZE_MAX);
        bytes.extend([VERSION, flags]);
        put_version(&mut bytes, one);
        bytes.extend(self.until.0.to_be_bytes());
        if let Some(other) = other {
            put_version(&mut bytes, other);
        }
        bytes
    }
}

impl Change {
    /// Which timer it is about.
    #[must_use]
    pub fn timer_id(&self) -> TimerId {
        match self {
            Self::Timer(timer) => timer.timer_id,
            Self::CancelMark(mark) => mark.timer_id,
            Self::Attempt(attempt) => attempt.timer_id,
            Self::ForgottenTimer(timer_id)
            | Self::ForgottenCancelMark(timer_id)
            | Self::ForgottenAttempt(timer_id, _)
            | Self::Definition(timer_id, _)
            | Self::ForgottenDefinition(timer_id)
            | Self::Shards(timer_id, _)
            | Self::ForgottenShards(timer_id) => *timer_id,
        }
    }

    /// Key and value of its record.
    #[must_use]
    pub fn encode(&self) -> (Vec<u8>, Option<Vec<u8>>) {
        match self {
            Self::Timer(timer) => {
                let fields = TimerFields {
                    state: timer.state,
                    version: timer.version,
                    supersedes: timer.supersedes,
                    due: timer.due,
                    since: timer.since,
                    target: &timer.target,
                    label: timer.label.as_deref().map(str::as_bytes),
                    id: &timer.id,
                    key: timer.key.as_deref(),
                    code: timer.code,
                    task: timer.task,
                };
                (timer.timer_id.0.to_vec(), Some(write(&fields, timer.key_cut)))
            }
            Self::CancelMark(mark) => (CancelMark::key(mark.timer_id).to_vec(), Some(mark.value())),
            Self::ForgottenTimer(timer_id) => (timer_id.0.to_vec(), None),
            Self::ForgottenCancelMark(timer_id) => (CancelMark::key(*timer_id).to_vec(), None),
            Self::Attempt(attempt) => {
                let key = progress::attempt_key(attempt.timer_id, attempt.slot());
                (key.to_vec(), Some(attempt.value()))
            }
            Self::ForgottenAttempt(timer_id, slot) => {
                (progress::attempt_key(*timer_id, *slot).to_vec(), None)
            }
            Self::Definition(timer_id, spec) => {
                let value = progress::definition_value(spec.as_bytes());
                (progress::definition_key(*timer_id).to_vec(), Some(value))
            }
            Self::ForgottenDefinition(timer_id) => {
                (progress::definition_key(*timer_id).to_vec(), None)
            }
            Self::Shards(timer_id, run) => {
                (progress::shards_key(*timer_id).to_vec(), Some(run.value()))
            }
            Self::ForgottenShards(timer_id) => (progress::shards_key(*timer_id).to_vec(), None),
        }
    }

    /// Reads a record of `<ns>.timers`.
    ///
    /// # Errors
    /// It says nothing that this version knows. Pass it over, count it, and go on.
    pub fn decode(key: Option<&[u8]>, value: Option<&[u8]>) -> Result<Self, DecodeError> {
        let key = key.unwrap_or_default();
        let (timer_id, is_void) = match key.split_first_chunk::<16>() {
            Some((name, [])) => (TimerId(*name), false),
            Some((name, [CANCEL_MARK])) => (TimerId(*name), true),
            Some((name, [progress::ATTEMPT, slot])) if *slot < progress::SLOTS => {
                return read_attempt(TimerId(*name), *slot, value);
            }
            Some((name, [progress::DEFINITION])) => return read_definition(TimerId(*name), value),
            Some((name, [progress::SHARDS])) => {
                let timer_id = TimerId(*name);
                return Ok(match value {
                    Some(value) => Self::Shards(timer_id, Box::new(RunProgress::read(value)?)),
                    None => Self::ForgottenShards(timer_id),
                });
            }
            _ => return Err(DecodeError::Key { bytes: key.len() }),
        };
        match (value, is_void) {
            (None, false) => Ok(Self::ForgottenTimer(timer_id)),
            (None, true) => Ok(Self::ForgottenCancelMark(timer_id)),
            (Some(value), true) => read_cancel_mark(timer_id, value).map(Self::CancelMark),
            (Some(value), false) => read_timer(timer_id, value).map(Self::Timer),
        }
    }
}

fn read_attempt(timer_id: TimerId, slot: u8, value: Option<&[u8]>) -> Result<Change, DecodeError> {
    let Some(value) = value else { return Ok(Change::ForgottenAttempt(timer_id, slot)) };
    let attempt = Attempt::read(timer_id, value)?;
    let is_here = attempt.slot() == slot;
    is_here.then_some(Change::Attempt(attempt)).ok_or(DecodeError::Size { bytes: value.len() })
}

fn read_definition(timer_id: TimerId, value: Option<&[u8]>) -> Result<Change, DecodeError> {
    let Some(value) = value else { return Ok(Change::ForgottenDefinition(timer_id)) };
    match value.split_first() {
        Some((&progress::VERSION, spec)) => {
            let spec = std::str::from_utf8(spec).map_err(|_| DecodeError::Text)?;
            Ok(Change::Definition(timer_id, spec.into()))
        }
        Some((&version, _)) => Err(DecodeError::Version { version }),
        None => Err(DecodeError::Size { bytes: 0 }),
    }
}

fn read_cancel_mark(timer_id: TimerId, value: &[u8]) -> Result<CancelMark, DecodeError> {
    let mut rest = Rest { bytes: value, size: value.len() };
    rest.version()?;
    let [flags] = rest.array()?;
    if flags & !(SEEN | MAY_REPEAT | TWO | CANCELS) != 0 {
        return Err(DecodeError::State { state: 0, flags });
    }
    let (mut before, until) = (VersionBound::of(rest.timer_version()?), UnixMillis(rest.word()?));
    if flags & TWO != 0 {
        before = before.or(rest.timer_version()?);
    }
    rest.end()?;
    let has = |flag: u8| flags & flag != 0;
    Ok(CancelMark {
        timer_id,
        before,
        until,
        seen: has(SEEN),
        may_repeat: has(MAY_REPEAT),
        cancels: has(CANCELS),
    })
}

fn read_timer(timer_id: TimerId, value: &[u8]) -> Result<Timer, DecodeError> {
    let (fields, key_cut) = TimerFields::read(value)?;
    let label = fields.label.map(std::str::from_utf8).transpose().map_err(|_| DecodeError::Text)?;
    Ok(Timer {
        timer_id,
        state: fields.state,
        version: fields.version,
        supersedes: fields.supersedes,
        due: fields.due,
        since: fields.since,
        target: fields.target.into(),
        label: label.map(Box::from),
        id: fields.id.into(),
        key: fields.key.map(Box::from),
        key_cut,
        code: fields.code,
        task: fields.task,
    })
}

/// The unread rest of a value.
struct Rest<'a> {
    bytes: &'a [u8],
    size: usize,
}

impl<'a> Rest<'a> {
    fn short(&self) -> DecodeError {
        DecodeError::Size { bytes: self.size }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self.bytes.split_first_chunk().ok_or_else(|| self.short())?;
        self.bytes = rest;
        Ok(*array)
    }

    fn version(&mut self) -> Result<(), DecodeError> {
        match self.array()? {
            [VERSION] => Ok(()),
            [version] => Err(DecodeError::Version { version }),
        }
    }

    fn word(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    fn timer_version(&mut self) -> Result<Version, DecodeError> {
        let first_appended = UnixMillis(self.word()?);
        Ok(Version { first_appended, offset: Offset(self.word()?.cast_signed()) })
    }

    fn part(&mut self) -> Result<&'a [u8], DecodeError> {
        let [len] = self.array()?;
        let split = self.bytes.split_at_checked(usize::from(len));
        let (part, rest) = split.ok_or_else(|| self.short())?;
        self.bytes = rest;
        Ok(part)
    }

    fn text(&mut self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.part()?).map_err(|_| DecodeError::Text)
    }

    fn end(&self) -> Result<(), DecodeError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(self.short()) }
    }
}

/// Why a record of `<ns>.timers` says nothing to this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Somebody else wrote it.
    #[error(
        "its key has {bytes} bytes, want 16, 17 with a 1, a 3 or a 4 at the end, or 18 of an attempt"
    )]
    Key {
        /// How many.
        bytes: usize,
    },
    /// Another waterclock wrote it.
    #[error("its value is of version {version}, want {VERSION}")]
    Version {
        /// Which.
        version: u8,
    },
    /// Somebody else wrote it, or it is damaged.
    #[error("its value has {bytes} bytes, more or less than it says")]
    Size {
        /// How many.
        bytes: usize,
    },
    /// A newer waterclock wrote it.
    #[error("its value is of state {state} with flags {flags}")]
    State {
        /// Which state.
        state: u8,
        /// Which flags.
        flags: u8,
    },
    /// A text in it is none, or a code of a newer waterclock.
    #[error("its value has a text that is not UTF-8, or an unknown code")]
    Text,
}
