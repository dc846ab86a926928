//! The texts of times: lengths (`90s`, `1500`) and points (RFC 3339, epoch milliseconds).
//!
//! Nothing is guessed: a text has one meaning or none. Everything rounds towards later, never earlier.

use jiff::civil::{Date, date};

use super::{Code, DELAY, EXPIRES, Refusal, UNTIL};
use crate::{Millis, UnixMillis};

/// The smallest integer that is read as epoch milliseconds (2001-09-09); below, it could be seconds.
pub const EPOCH_MIN: u64 = 1_000_000_000_000;
/// The largest integer that is read as epoch milliseconds (year 5138); above, it could be microseconds.
pub const EPOCH_MAX: u64 = 100_000_000_000_000;

/// Kafka counts time in signed 64-bit milliseconds; what is beyond has no timestamp.
const TIME_MAX: u64 = i64::MAX as u64;

const EPOCH: Date = date(1970, 1, 1);

/// When something is to happen, as the producer said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// This long after the record was first appended.
    After(Millis),
    /// At this time.
    At(UnixMillis),
}

impl When {
    /// The due time of a record that was first appended at `appended`. It may be in the past: then it is due at once.
    ///
    /// # Errors
    /// `delay_overflow` or `delay_too_long`: the record is to be dead-lettered.
    pub fn resolve(self, appended: UnixMillis, max_delay: Millis) -> Result<UnixMillis, Refusal> {
        let due = match self {
            Self::At(due) => due,
            Self::After(delay) => {
                let due = appended.0.checked_add(delay.0).filter(|due| *due <= TIME_MAX);
                UnixMillis(due.ok_or_else(|| overflow(&delay.0.to_string()))?)
            }
        };
        if due - appended > max_delay {
            let detail = format!(
                "due {} after its append; the longest delay here is {max_delay} (max-delay)",
                due - appended
            );
            return Err(Refusal::new(Code::DelayTooLong, detail));
        }
        Ok(due)
    }
}

/// The moment after which a record that was first appended at `appended` is no longer delivered.
///
/// # Errors
/// `bad_expires` for a relative one above `max_delay`: the record is to be dead-lettered.
pub fn expires_at(
    when: When,
    appended: UnixMillis,
    max_delay: Millis,
) -> Result<UnixMillis, Refusal> {
    match when {
        When::At(at) => Ok(at),
        When::After(after) if after <= max_delay => Ok(appended + after),
        When::After(after) => {
            let detail = format!(
                "{EXPIRES} is {after} ({} ms); want at most {max_delay} (max-delay), or epoch milliseconds from 10^12",
                after.0
            );
            Err(Refusal::new(Code::BadExpires, detail))
        }
    }
}

/// Why a text is not a length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// It does not follow the grammar.
    #[error(
        "not a length of time; want milliseconds (1500) or units, largest first (7d, 1h30m, 90s, 250ms)"
    )]
    Malformed,
    /// It does, but for a minus sign.
    #[error("a length of time below zero")]
    Negative,
    /// It does not fit into 63 bits of milliseconds.
    #[error("a length of time beyond 2^63 - 1 milliseconds")]
    Overflow,
}

/// Reads a length of time: an integer of milliseconds, or numbers with units `d h m s ms`, largest first, each at most
/// once.
///
/// Headers, arguments and the configuration all use this one parser of units. It reads everything that [`Millis`]
/// prints.
///
/// # Errors
/// Describes the mistake; does not repeat the text.
pub fn duration(text: &str) -> Result<Millis, DurationError> {
    if text.strip_prefix('-').is_some_and(|rest| length(rest.as_bytes()).is_some()) {
        return Err(DurationError::Negative);
    }
    match length(text.as_bytes()) {
        None => Err(DurationError::Malformed),
        Some(millis) if millis > TIME_MAX => Err(DurationError::Overflow),
        Some(millis) => Ok(Millis(millis)),
    }
}

/// Reads a length of time that says its unit, as [`duration`] does; `None`: it is none, or has no unit. A text of digits alone would
/// be milliseconds, and who writes one for people mostly means seconds.
#[must_use]
pub fn duration_with_unit(text: &str) -> Option<Millis> {
    duration(text).ok().filter(|_| text.ends_with(|last: char| last.is_ascii_alphabetic()))
}

/// Milliseconds of a text that follows the grammar, saturated.
fn length(text: &[u8]) -> Option<u64> {
    const UNITS: [(&[u8], u64); 5] =
        [(b"d", 86_400_000), (b"h", 3_600_000), (b"m", 60_000), (b"s", 1_000), (b"ms", 1)];
    if let Some(millis) = integer(text) {
        return Some(millis);
    }
    let mut units = UNITS.iter();
    let mut total = 0u64;
    let mut rest = text;
    while !rest.is_empty() {
        let (digits, after) = split_run(rest, u8::is_ascii_digit);
        let (name, after) = split_run(after, u8::is_ascii_alphabetic);
        // The iterator only moves forward: a unit that is repeated or out of order is not found any more.
        let (_, size) = units.find(|(unit, _)| *unit == name)?;
        total = total.saturating_add(integer(digits)?.saturating_mul(*size));
        rest = after;
    }
    (!text.is_empty()).then_some(total)
}

fn split_run(text: &[u8], belongs: impl Fn(&u8) -> bool) -> (&[u8], &[u8]) {
    text.split_at(text.iter().position(|byte| !belongs(byte)).unwrap_or(text.len()))
}

/// A text of ASCII digits and nothing else, saturated.
pub(super) fn integer(text: &[u8]) -> Option<u64> {
    let plain = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    plain.then(|| {
        text.iter()
            .fold(0u64, |n, digit| n.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
    })
}

fn overflow(shown: &str) -> Refusal {
    Refusal::of_value(
        Code::DelayOverflow,
        DELAY,
        shown.as_bytes(),
        "a due time below 2^63 epoch milliseconds",
    )
}

/// Reads `x-delay`.
pub(super) fn delay(text: &str) -> Result<When, Refusal> {
    duration(text).map(When::After).map_err(|error| match error {
        DurationError::Overflow => overflow(text),
        DurationError::Negative => {
            Refusal::of_value(Code::NegativeDelay, DELAY, text.as_bytes(), "zero or more")
        }
        DurationError::Malformed => Refusal::of_value(
            Code::BadDelay,
            DELAY,
            text.as_bytes(),
            "milliseconds (1500) or units, largest first (7d, 1h30m, 90s, 250ms)",
        ),
    })
}

/// Reads `x-delay-until`, and every point in time that is said like it.
///
/// # Errors
/// What is wrong with it.
pub fn until(text: &str) -> Result<When, Refusal> {
    const WANTED: &str = "RFC 3339 with a zone (2026-01-31T08:00:00Z) or epoch milliseconds";
    let refused = |code, wanted| Refusal::of_value(code, UNTIL, text.as_bytes(), wanted);
    match integer(text.as_bytes()) {
        Some(millis @ EPOCH_MIN..=EPOCH_MAX) => Ok(When::At(UnixMillis(millis))),
        Some(_) => Err(refused(
            Code::AmbiguousTimestamp,
            "epoch milliseconds from 10^12 to 10^14 (13 to 15 digits; seconds have 10), or RFC 3339 with a zone (2026-01-31T08:00:00Z)",
        )),
        None => match rfc3339(text.as_bytes()) {
            Some(at) => Ok(When::At(at)),
            None => Err(refused(Code::BadUntil, WANTED)),
        },
    }
}

/// Reads `x-delay-expires`. Whether a relative one is too long is for [`expires_at`] to say.
pub(super) fn expires(text: &str) -> Result<When, Refusal> {
    const WANTED: &str = "RFC 3339 with a zone, units (90s), milliseconds up to max_delay, or epoch milliseconds from 10^12 to 10^14";
    let when = match integer(text.as_bytes()) {
        Some(millis @ 0..EPOCH_MIN) => Some(When::After(Millis(millis))),
        Some(millis @ EPOCH_MIN..=EPOCH_MAX) => Some(When::At(UnixMillis(millis))),
        Some(_) => None,
        None => match duration(text) {
            Ok(after) => Some(When::After(after)),
            Err(_) => rfc3339(text.as_bytes()).map(When::At),
        },
    };
    when.ok_or_else(|| Refusal::of_value(Code::BadExpires, EXPIRES, text.as_bytes(), WANTED))
}

/// Reads a point in time as RFC 3339 has it: no part may be missing, and no other form of ISO 8601 is one.
///
/// A fraction beyond milliseconds rounds up. A time before 1970 is 1970: it is past either way. A leap second,
/// which Unix time does not have, is the second after it.
fn rfc3339(text: &[u8]) -> Option<UnixMillis> {
    let (head, rest) = text.split_first_chunk::<19>()?;
    let [y @ .., b'-', mo0, mo1, b'-', d0, d1, b'T' | b't', h0, h1, b':', mi0, mi1, b':', s0, s1] =
        head
    else {
        return None;
    };
    let pair = |tens: &u8, ones: &u8| integer(&[*tens, *ones]).map(|n| n as i64);
    let year = integer(y)? as i16;
    let day = Date::new(year, pair(mo0, mo1)? as i8, pair(d0, d1)? as i8).ok()?;
    let (hour, minute, second) = (pair(h0, h1)?, pair(mi0, mi1)?, pair(s0, s1)?);
    let (millis, zone) = fraction(rest)?;
    let ahead = offset(zone)?;
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = day.duration_since(EPOCH).as_secs() + hour * 3_600 + minute * 60 + second - ahead;
    // A leap second ends a day of UTC, wherever it is written down.
    if second == 60 && seconds.rem_euclid(86_400) != 0 {
        return None;
    }
    let millis = seconds * 1_000 + millis;
    Some(UnixMillis(u64::try_from(millis).unwrap_or(0)))
}

/// Splits `.25Z` into milliseconds, rounded up, and the zone.
fn fraction(rest: &[u8]) -> Option<(i64, &[u8])> {
    let Some(rest) = rest.strip_prefix(b".") else { return Some((0, rest)) };
    let (digits, zone) = split_run(rest, u8::is_ascii_digit);
    if digits.is_empty() {
        return None;
    }
    let digit = |at: usize| digits.get(at).map_or(0, |digit| i64::from(digit - b'0'));
    let finer = digits.iter().skip(3).any(|digit| *digit != b'0');
    Some((digit(0) * 100 + digit(1) * 10 + digit(2) + i64::from(finer), zone))
}

/// Seconds that a zone is ahead of UTC.
fn offset(zone: &[u8]) -> Option<i64> {
    let (sign, hours, minutes) = match zone {
        b"Z" | b"z" => return Some(0),
        [b'+', h0, h1, b':', m0, m1] => (1, [*h0, *h1], [*m0, *m1]),
        [b'-', h0, h1, b':', m0, m1] => (-1, [*h0, *h1], [*m0, *m1]),
        _ => return None,
    };
    let (hours, minutes) = (integer(&hours)? as i64, integer(&minutes)? as i64);
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 3_600 + minutes * 60))
}
