//! The form of a lane's entries: keys by their purpose, and values in few bytes.
//!
//! ```text
//! 0 number u32            a text that many entries name: target or label
//! 1 name                  a timer: phase and flags u8, [of a task: flags u8], then numbers in few bytes: first append,
//!                         offset, due and since as distances from it, [the same two of what it supersedes, and of the
//!                         first of that, each from the one before], target, [label], [of a task: turn, attempts,
//!                         failures, rounds, interruptions, [partition, credits], next_at as a distance from due],
//!                         id, [code], [key]
//! 2 due u64, name         by due time: phase, label flag and task flag u8, target, [label]
//! 3 since u64, name       ended timers that are no tasks, by when they ended: nothing
//! 4 name                  void versions: as on the wire
//! 5 name, slot u8         an attempt of a task: as on the wire
//! 6 name                  the definition of a task: as on the wire
//! 7 kept until u64, name  ended tasks, by how long that is remembered: their attempts, and of a run a 1
//! 8 name                  how far the shards of a run are: as on the wire
//! ```
//!
//! The first flags of a task say that its key is cut and that it has none, which no timer's do. Its second flags say both of its
//! key.
//!
//! A text is 1 + its number, or 0 and the text itself with its length (by due time: 0, look at the timer).

use std::sync::Arc;

use super::bytes::{put_varint, take_bytes, take_varint};
use super::string_table::StringTable;
use crate::engine::header::Code;
use crate::engine::task::scope::TasksPartition;
use crate::engine::timers::progress::{
    attempt_key as wire_attempt_key, definition_key as wire_definition_key,
    shards_key as wire_shards_key,
};
use crate::engine::timers::{
    Attempt, CancelMark, Change, HeldBy, Live, Progress, Replaced, RunProgress, Timer, TimerId,
    TimerState, Version, Written,
};
use crate::engine::{Offset, UnixMillis};

pub(super) const TEXT: u8 = 0;
pub(super) const TIMER: u8 = 1;
pub(super) const DUE: u8 = 2;
pub(super) const END: u8 = 3;
pub(super) const CANCEL_MARK: u8 = 4;
pub(super) const ATTEMPT: u8 = 5;
pub(super) const DEFINITION: u8 = 6;
pub(super) const KEPT: u8 = 7;
pub(super) const SHARDS: u8 = 8;

const STATE: u8 = 0b111;
const HAS_LABEL: u8 = 8;
const HAS_KEY: u8 = 16;
const KEY_CUT: u8 = 32;
const SUPERSEDES: u8 = 64;
const HAS_CODE: u8 = 128;
/// What stands in these two bits of the first flags of a task.
const KEY: u8 = HAS_KEY | KEY_CUT;
const IS_TASK: u8 = KEY_CUT;
/// In a value by due time.
const DUE_IS_TASK: u8 = HAS_KEY;

// The second flags of a task, beside `HAS_KEY` and `KEY_CUT`.
const HELD: u8 = 1;
const BEGUN: u8 = 2;
const OPEN: u8 = 4;
const CANCELLING: u8 = 8;
const BREAKER: u8 = 64;
const AWAITED: u8 = 128;

pub(super) fn text_key(number: u32) -> Vec<u8> {
    [&[TEXT][..], &number.to_be_bytes()].concat()
}

pub(super) fn timer_key(timer_id: TimerId) -> Vec<u8> {
    [&[TIMER][..], &timer_id.0].concat()
}

pub(super) fn cancel_mark_key(timer_id: TimerId) -> Vec<u8> {
    [&[CANCEL_MARK][..], &timer_id.0].concat()
}

pub(super) fn attempt_key(timer_id: TimerId, slot: u8) -> Vec<u8> {
    [&[ATTEMPT][..], &timer_id.0, &[slot]].concat()
}

pub(super) fn definition_key(timer_id: TimerId) -> Vec<u8> {
    [&[DEFINITION][..], &timer_id.0].concat()
}

pub(super) fn shards_key(timer_id: TimerId) -> Vec<u8> {
    [&[SHARDS][..], &timer_id.0].concat()
}

/// A key below [`DUE`] or [`END`].
pub(super) fn timed_key(kind: u8, at: UnixMillis, timer_id: TimerId) -> Vec<u8> {
    [&[kind][..], &at.0.to_be_bytes(), &timer_id.0].concat()
}

/// What a key below [`DUE`] or [`END`] says.
pub(super) fn timed(key: &[u8]) -> Option<(UnixMillis, TimerId)> {
    let (at, name) = key.get(1..)?.split_first_chunk::<8>()?;
    Some((UnixMillis(u64::from_be_bytes(*at)), TimerId(name.try_into().ok()?)))
}

/// The name in a key below [`TIMER`], [`CANCEL_MARK`], [`DEFINITION`] or [`SHARDS`].
pub(super) fn name_in(key: &[u8]) -> Option<TimerId> {
    key.get(1..)?.try_into().ok().map(TimerId)
}

/// Name and slot in a key below [`ATTEMPT`].
pub(super) fn attempt_in(key: &[u8]) -> Option<(TimerId, u8)> {
    let (slot, name) = key.get(1..)?.split_last()?;
    Some((TimerId(name.try_into().ok()?), *slot))
}

/// What of a key is looked up before it is written, for the filter.
pub(super) fn looked_up(key: &[u8]) -> Option<u64> {
    let (kind, name) = key.split_first()?;
    // The beginning of a name is the id's, which many may share.
    let word = u64::from_le_bytes(*name.last_chunk()?);
    match *kind {
        TIMER => Some(word),
        CANCEL_MARK => Some(!word),
        ATTEMPT => Some(word.rotate_left(1)),
        DEFINITION => Some(!word.rotate_left(1)),
        SHARDS => Some(word.rotate_left(2)),
        _ => None,
    }
}

fn state_byte(state: TimerState) -> u8 {
    TimerState::ALL.iter().position(|known| *known == state).map_or(STATE, |at| at as u8)
}

fn state_of(byte: u8) -> Option<TimerState> {
    TimerState::ALL.get(usize::from(byte & STATE)).copied()
}

fn zigzag(distance: u64) -> u64 {
    let signed = distance.cast_signed();
    ((signed << 1) ^ (signed >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

fn put_text(bytes: &mut Vec<u8>, number: Option<u32>, text: &str) {
    match number {
        Some(number) => put_varint(bytes, u64::from(number) + 1),
        None => {
            put_varint(bytes, 0);
            put_part(bytes, text.as_bytes());
        }
    }
}

fn put_part(bytes: &mut Vec<u8>, part: &[u8]) {
    put_varint(bytes, part.len() as u64);
    bytes.extend_from_slice(part);
}

/// A place as its distance from another one.
fn put_version(bytes: &mut Vec<u8>, version: Version, from: Version) {
    put_varint(bytes, zigzag(version.first_appended.0.wrapping_sub(from.first_appended.0)));
    let distance = version.offset.0.wrapping_sub(from.offset.0);
    put_varint(bytes, zigzag(distance.cast_unsigned()));
}

fn take_version(value: &mut &[u8], from: Version) -> Option<Version> {
    let first_appended = from.first_appended.0.wrapping_add(unzigzag(take_varint(value)?));
    let distance = unzigzag(take_varint(value)?).cast_signed();
    let offset = Offset(from.offset.0.wrapping_add(distance));
    Some(Version { first_appended: UnixMillis(first_appended), offset })
}

/// The value of a timer.
pub(super) fn timer_value(timer: &Timer, strings: &StringTable) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    let has_key = timer.key.is_some();
    let key = flag(has_key, HAS_KEY) | flag(has_key && timer.key_cut, KEY_CUT);
    bytes.push(
        state_byte(timer.state)
            | flag(timer.label.is_some(), HAS_LABEL)
            | timer.task.map_or(key, |_| IS_TASK)
            | flag(timer.supersedes.is_some(), SUPERSEDES)
            | flag(timer.code.is_some(), HAS_CODE),
    );
    if let Some(task) = &timer.task {
        bytes.push(
            key | flag(task.held.is_some(), HELD)
                | flag(task.begun, BEGUN)
                | flag(task.open, OPEN)
                | flag(task.cancelling, CANCELLING)
                | flag(task.breaker, BREAKER)
                | flag(task.with_executor, AWAITED),
        );
    }
    let Version { first_appended, offset } = timer.version;
    put_varint(&mut bytes, first_appended.0);
    put_varint(&mut bytes, offset.0.cast_unsigned());
    for at in [timer.due, timer.since] {
        put_varint(&mut bytes, zigzag(at.0.wrapping_sub(first_appended.0)));
    }
    if let Some(Replaced { first, last }) = timer.supersedes {
        put_version(&mut bytes, last, timer.version);
        put_version(&mut bytes, first, last);
    }
    put_text(&mut bytes, strings.number(&timer.target), &timer.target);
    if let Some(label) = &timer.label {
        put_text(&mut bytes, strings.number(label), label);
    }
    if let Some(task) = &timer.task {
        put_progress(&mut bytes, task, timer.due);
    }
    put_part(&mut bytes, &timer.id);
    if let Some(code) = timer.code {
        put_part(&mut bytes, code.as_str().as_bytes());
    }
    bytes.extend_from_slice(timer.key.as_deref().unwrap_or_default());
    bytes
}

/// How far a task is, but for its flags.
fn put_progress(bytes: &mut Vec<u8>, task: &Progress, due: UnixMillis) {
    for number in [task.turn, task.attempts, task.failures, task.rounds, task.interruptions.into()]
    {
        put_varint(bytes, number.into());
    }
    if let Some(HeldBy { partition, credits }) = task.held {
        put_varint(bytes, partition.0.into());
        put_varint(bytes, credits.into());
    }
    put_varint(bytes, zigzag(task.next_at.0.wrapping_sub(due.0)));
}

fn take_progress(value: &mut &[u8], flags: u8, due: UnixMillis) -> Option<Progress> {
    let has = |flag: u8| flags & flag != 0;
    let mut number = || u32::try_from(take_varint(value)?).ok();
    let (turn, attempts, failures, rounds) = (number()?, number()?, number()?, number()?);
    let mut short = || u16::try_from(number()?).ok();
    let interruptions = short()?;
    let held = match has(HELD) {
        true => Some(HeldBy { partition: TasksPartition(short()?), credits: short()? }),
        false => None,
    };
    let next_at = UnixMillis(due.0.wrapping_add(unzigzag(take_varint(value)?)));
    Some(Progress {
        turn,
        attempts,
        failures,
        rounds,
        interruptions,
        held,
        begun: has(BEGUN),
        open: has(OPEN),
        cancelling: has(CANCELLING),
        breaker: has(BREAKER),
        with_executor: has(AWAITED),
        next_at,
    })
}

/// The flags that begin the value of a timer, and of a task the second ones; `None`: nobody wrote them.
fn take_flags(value: &mut &[u8]) -> Option<(u8, Option<u8>)> {
    let flags = take_bytes(value, 1)?[0];
    if flags & KEY != IS_TASK {
        return Some((flags, None));
    }
    let of_task = take_bytes(value, 1)?[0];
    let known = HAS_KEY | KEY_CUT | HELD | BEGUN | OPEN | CANCELLING | BREAKER | AWAITED;
    (of_task & !known == 0 && of_task & KEY != KEY_CUT).then_some((flags, Some(of_task)))
}

/// The value by due time of a timer with this value.
pub(super) fn due_value(mut timer: &[u8]) -> Option<Vec<u8>> {
    let (flags, of_task) = take_flags(&mut timer)?;
    for _ in 0..if flags & SUPERSEDES == 0 { 4 } else { 8 } {
        take_varint(&mut timer)?;
    }
    let is_task = if of_task.is_some() { DUE_IS_TASK } else { 0 };
    let mut bytes = vec![flags & (STATE | HAS_LABEL) | is_task];
    for _ in 0..if flags & HAS_LABEL == 0 { 1 } else { 2 } {
        let text = take_varint(&mut timer)?;
        if text == 0 {
            take_part(&mut timer)?;
        }
        put_varint(&mut bytes, text);
    }
    Some(bytes)
}

/// The key by which an ended timer is forgotten.
pub(super) fn end_key(timer: &Timer) -> Vec<u8> {
    match timer.kept_until() {
        Some(until) => timed_key(KEPT, until, timer.timer_id),
        None => timed_key(END, timer.since, timer.timer_id),
    }
}

/// The value of a timer below [`END`] or [`KEPT`].
pub(super) fn end_value(timer: &Timer) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(Written { attempts, is_run }) = Written::of(timer) {
        put_varint(&mut bytes, attempts.into());
        bytes.extend(is_run.then_some(1));
    }
    bytes
}

/// What a value below [`END`] or [`KEPT`] says, if it is of a task.
pub(super) fn read_end(mut value: &[u8]) -> Option<Option<Written>> {
    if value.is_empty() {
        return Some(None);
    }
    let attempts = u32::try_from(take_varint(&mut value)?).ok()?;
    let is_run = value == [1];
    (is_run || value.is_empty()).then_some(Some(Written { attempts, is_run }))
}

/// What the value by due time says.
pub(super) struct Due {
    pub(super) state: TimerState,
    pub(super) is_task: bool,
    /// 0: look at the timer.
    pub(super) target: u64,
    /// 0: look at the timer; `None`: it has none.
    pub(super) label: Option<u64>,
}

pub(super) fn read_due(mut value: &[u8]) -> Option<Due> {
    let flags = take_bytes(&mut value, 1)?[0];
    let target = take_varint(&mut value)?;
    let label = if flags & HAS_LABEL == 0 { None } else { Some(take_varint(&mut value)?) };
    let is_task = flags & DUE_IS_TASK != 0;
    value.is_empty().then_some(Due { state: state_of(flags)?, is_task, target, label })
}

fn take_part<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take_varint(from)?;
    take_bytes(from, length)
}

fn take_text(from: &mut &[u8], strings: &StringTable) -> Option<Arc<str>> {
    match take_varint(from)? {
        0 => std::str::from_utf8(take_part(from)?).ok().map(Arc::from),
        number => strings.text(u32::try_from(number - 1).ok()?).map(Arc::clone),
    }
}

/// What begins the value of a timer: all that the engine is told.
struct Begun {
    flags: u8,
    /// `HAS_KEY` and `KEY_CUT`, if they are so.
    key: u8,
    live: Live,
    since: UnixMillis,
}

fn begin(timer_id: TimerId, value: &mut &[u8], strings: &StringTable) -> Option<Begun> {
    let (flags, of_task) = take_flags(value)?;
    let first = take_varint(value)?;
    let offset = take_varint(value)?.cast_signed();
    let mut at = || Some(UnixMillis(first.wrapping_add(unzigzag(take_varint(value)?))));
    let (due, since) = (at()?, at()?);
    let version = Version { first_appended: UnixMillis(first), offset: Offset(offset) };
    let mut supersedes = None;
    if flags & SUPERSEDES != 0 {
        let last = take_version(value, version)?;
        supersedes = Some(Replaced { first: take_version(value, last)?, last });
    }
    let target = take_text(value, strings)?;
    let label = if flags & HAS_LABEL == 0 { None } else { Some(take_text(value, strings)?) };
    let task = match of_task {
        Some(of_task) => Some(take_progress(value, of_task, due)?),
        None => None,
    };
    let (follow_up, cursor, run) = (None, None, None);
    #[rustfmt::skip]
    let live = Live { timer_id, version, supersedes, due, target, label, task, follow_up, cursor, run };
    Some(Begun { flags, key: of_task.unwrap_or(flags) & KEY, live, since })
}

/// What the value of a timer says.
pub(super) fn read_timer(
    timer_id: TimerId,
    mut value: &[u8],
    strings: &StringTable,
) -> Option<Timer> {
    let Begun { flags, key, live, since } = begin(timer_id, &mut value, strings)?;
    let id = take_part(&mut value)?.into();
    let code = if flags & HAS_CODE == 0 {
        None
    } else {
        let code = std::str::from_utf8(take_part(&mut value)?).ok()?;
        Some(code.parse::<Code>().ok()?)
    };
    let key_cut = key & KEY_CUT != 0;
    let key = match key & HAS_KEY {
        0 if !value.is_empty() => return None,
        0 => None,
        _ => Some(value.into()),
    };
    let Live { timer_id, version, supersedes, due, target, label, task, .. } = live;
    let label = label.map(|label| label.as_ref().into());
    let state = state_of(flags)?;
    #[rustfmt::skip]
    let timer = Timer { timer_id, state, version, supersedes, due, since, target, label, id, key, key_cut, code, task };
    Some(timer)
}

/// What the engine is told of a timer: its phase, and what it is.
pub(super) fn read_live(
    timer_id: TimerId,
    mut value: &[u8],
    strings: &StringTable,
) -> Option<(TimerState, Live)> {
    let begun = begin(timer_id, &mut value, strings)?;
    Some((state_of(begun.flags)?, begun.live))
}

/// What the value of void versions says.
pub(super) fn read_cancel_mark(timer_id: TimerId, value: &[u8]) -> Option<CancelMark> {
    match Change::decode(Some(&CancelMark::key(timer_id)), Some(value)) {
        Ok(Change::CancelMark(mark)) => Some(mark),
        _ => None,
    }
}

/// What the value of an attempt says.
pub(super) fn read_attempt(timer_id: TimerId, slot: u8, value: &[u8]) -> Option<Attempt> {
    match Change::decode(Some(&wire_attempt_key(timer_id, slot)), Some(value)) {
        Ok(Change::Attempt(attempt)) => Some(attempt),
        _ => None,
    }
}

/// What the value of a definition says.
pub(super) fn read_definition(timer_id: TimerId, value: &[u8]) -> Option<Box<str>> {
    match Change::decode(Some(&wire_definition_key(timer_id)), Some(value)) {
        Ok(Change::Definition(_, spec)) => Some(spec),
        _ => None,
    }
}

/// What the value of a run's shards says.
pub(super) fn read_shards(timer_id: TimerId, value: &[u8]) -> Option<Box<RunProgress>> {
    match Change::decode(Some(&wire_shards_key(timer_id)), Some(value)) {
        Ok(Change::Shards(_, run)) => Some(run),
        _ => None,
    }
}
