//! The form of a lane's entries: keys by their purpose, and values in few bytes.
//!
//! ```text
//! 0 number u32            a text that many entries name: target or label
//! 1 name                  a timer: phase and flags u8, then numbers in few bytes: first append, offset, due and since
//!                         as distances from it, [the same two of what it supersedes, and of the first of
//!                         that, each from the one before], target, [label], id, [code], [key]
//! 2 due u64, name         by due time: phase and label flag u8, target, [label]
//! 3 since u64, name       ended timers, by when they ended: nothing
//! 4 name                  void versions: as on the wire
//! ```
//!
//! A text is 1 + its number, or 0 and the text itself with its length (by due time: 0, look at the timer).

use std::sync::Arc;

use super::bytes::{put_varint, take_bytes, take_varint};
use super::string_table::StringTable;
use crate::engine::header::Code;
use crate::engine::timers::{
    CancelMark, Change, Live, Replaced, Timer, TimerId, TimerState, Version,
};
use crate::engine::{Offset, UnixMillis};

pub(super) const TEXT: u8 = 0;
pub(super) const TIMER: u8 = 1;
pub(super) const DUE: u8 = 2;
pub(super) const END: u8 = 3;
pub(super) const CANCEL_MARK: u8 = 4;

const STATE: u8 = 0b111;
const HAS_LABEL: u8 = 8;
const HAS_KEY: u8 = 16;
const KEY_CUT: u8 = 32;
const SUPERSEDES: u8 = 64;
const HAS_CODE: u8 = 128;

pub(super) fn text_key(number: u32) -> Vec<u8> {
    [&[TEXT][..], &number.to_be_bytes()].concat()
}

pub(super) fn timer_key(timer_id: TimerId) -> Vec<u8> {
    [&[TIMER][..], &timer_id.0].concat()
}

pub(super) fn cancel_mark_key(timer_id: TimerId) -> Vec<u8> {
    [&[CANCEL_MARK][..], &timer_id.0].concat()
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

/// The name in a key below [`TIMER`] or [`CANCEL_MARK`].
pub(super) fn name_in(key: &[u8]) -> Option<TimerId> {
    key.get(1..)?.try_into().ok().map(TimerId)
}

/// What of a key is looked up before it is written, for the filter.
pub(super) fn looked_up(key: &[u8]) -> Option<u64> {
    let (kind, name) = key.split_first()?;
    // The beginning of a name is the id's, which many may share.
    let word = u64::from_le_bytes(*name.last_chunk()?);
    match *kind {
        TIMER => Some(word),
        CANCEL_MARK => Some(!word),
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
    bytes.push(
        state_byte(timer.state)
            | flag(timer.label.is_some(), HAS_LABEL)
            | flag(timer.key.is_some(), HAS_KEY)
            | flag(timer.key_cut, KEY_CUT)
            | flag(timer.supersedes.is_some(), SUPERSEDES)
            | flag(timer.code.is_some(), HAS_CODE),
    );
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
    put_part(&mut bytes, &timer.id);
    if let Some(code) = timer.code {
        put_part(&mut bytes, code.as_str().as_bytes());
    }
    bytes.extend_from_slice(timer.key.as_deref().unwrap_or_default());
    bytes
}

/// The value by due time of a timer with this value.
pub(super) fn due_value(mut timer: &[u8]) -> Option<Vec<u8>> {
    let flags = take_bytes(&mut timer, 1)?[0];
    for _ in 0..if flags & SUPERSEDES == 0 { 4 } else { 8 } {
        take_varint(&mut timer)?;
    }
    let mut bytes = vec![flags & (STATE | HAS_LABEL)];
    for _ in 0..if flags & HAS_LABEL == 0 { 1 } else { 2 } {
        let text = take_varint(&mut timer)?;
        if text == 0 {
            take_part(&mut timer)?;
        }
        put_varint(&mut bytes, text);
    }
    Some(bytes)
}

/// What the value by due time says.
pub(super) struct Due {
    pub(super) state: TimerState,
    /// 0: look at the timer.
    pub(super) target: u64,
    /// 0: look at the timer; `None`: it has none.
    pub(super) label: Option<u64>,
}

pub(super) fn read_due(mut value: &[u8]) -> Option<Due> {
    let flags = take_bytes(&mut value, 1)?[0];
    let target = take_varint(&mut value)?;
    let label = if flags & HAS_LABEL == 0 { None } else { Some(take_varint(&mut value)?) };
    value.is_empty().then_some(Due { state: state_of(flags)?, target, label })
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
    live: Live,
    since: UnixMillis,
}

fn begin(timer_id: TimerId, value: &mut &[u8], strings: &StringTable) -> Option<Begun> {
    let flags = take_bytes(value, 1)?[0];
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
    let live = Live { timer_id, version, supersedes, due, target, label };
    Some(Begun { flags, live, since })
}

/// What the value of a timer says.
pub(super) fn read_timer(
    timer_id: TimerId,
    mut value: &[u8],
    strings: &StringTable,
) -> Option<Timer> {
    let Begun { flags, live, since } = begin(timer_id, &mut value, strings)?;
    let id = take_part(&mut value)?.into();
    let code = if flags & HAS_CODE == 0 {
        None
    } else {
        let code = std::str::from_utf8(take_part(&mut value)?).ok()?;
        Some(code.parse::<Code>().ok()?)
    };
    let key = match flags & HAS_KEY {
        0 if !value.is_empty() => return None,
        0 => None,
        _ => Some(value.into()),
    };
    let Live { timer_id, version, supersedes, due, target, label } = live;
    let label = label.map(|label| label.as_ref().into());
    let (state, key_cut) = (state_of(flags)?, flags & KEY_CUT != 0);
    #[rustfmt::skip]
    let timer = Timer { timer_id, state, version, supersedes, due, since, target, label, id, key, key_cut, code };
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
