//! Cron: which times of a wall clock match a pattern. Zones are no business of it.
//!
//! Times of a wall clock are told in seconds, as if the clock were one of UTC.
//!
//! # Invariants
//! 1. A pattern has one meaning or is refused. What other programs read in several ways (`?`, `5/15`, seven fields) is refused.
//! 2. There is a time that matches: what the calendar never has, as 30 February, is refused.
//! 3. A search looks at each month of its span once, and at no single day or second that does not match.

use std::fmt;
use std::ops::Range;

use super::calendar::{DAY, Month};

mod read;

/// Longest pattern, in bytes.
pub const CRON_MAX: usize = 512;
/// The calendar repeats itself after so many months.
const CYCLE: i64 = 400 * 12;

/// A pattern of five fields, or of six with the seconds first.
///
/// **Days.** If both the day of the month and the day of the week are restricted, a day matches that either of them has. A field
/// that contains a `*` is not restricted; then both must have the day. That is the rule of the classic cron.
///
/// **Clock changes.** If seconds, minutes or hours contain a `*`, the pattern [follows the clock](Self::follows_clock). Else its times
/// are fixed.
#[derive(Clone, PartialEq, Eq)]
pub struct Cron {
    /// The text as it is written back: upper case, one blank between two fields; or a name with `@`.
    text: Box<str>,
    /// Bit n: second n.
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: Days,
    /// Bit n: month n, from 0.
    months: u16,
    follows_clock: bool,
}

/// Which days match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Days {
    /// Bit n: day n of the month, from 0.
    of_month: u32,
    /// Bit n: the weekday that is nearest to day n, within the month.
    nearest: u32,
    /// The last day of the month.
    last: bool,
    /// The last day of the month from Monday to Friday.
    last_weekday: bool,
    /// Bit n: weekday n; Sunday is 0.
    of_week: u8,
    /// The same, the first of the month to the fifth.
    nth: [u8; 5],
    /// The same, the last of the month.
    last_of_week: u8,
    /// A field of days contains a `*`.
    has_star: bool,
}

impl Cron {
    /// Reads a pattern.
    ///
    /// # Errors
    /// What is wanted instead, and which part of it is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let cron = read::cron(text)?;
        // Any cycle will do.
        let is_ever = (0..CYCLE).any(|month| cron.days_of(Month::of_year(2000).plus(month)) != 0);
        if is_ever { Ok(cron) } else { Err("days that some month has".to_owned()) }
    }

    /// Whether it goes by what the clock shows: what is shown twice matches twice, and what is not shown does not match. Else each
    /// of its times is meant once: the first time that the clock shows it, or jumps over it.
    #[must_use]
    pub const fn follows_clock(&self) -> bool {
        self.follows_clock
    }

    /// The first time of a span that matches.
    pub(super) fn first_in(&self, span: Range<i64>) -> Option<i64> {
        let (mut month, day) = Month::of_day(span.start.div_euclid(DAY));
        let mut days = self.days_of(month) & (u32::MAX << day);
        // On its first day not all times are left.
        let mut first = Some((day, span.start.rem_euclid(DAY)));
        while month.first_day() * DAY < span.end {
            while days != 0 {
                let day = days.trailing_zeros();
                let second = first.filter(|(first, _)| *first == day).map_or(0, |(_, at)| at);
                if let Some(second) = self.second_from(second) {
                    let at = (month.first_day() + i64::from(day)) * DAY + second;
                    return (at < span.end).then_some(at);
                }
                days &= days - 1;
            }
            month = month.plus(1);
            days = self.days_of(month);
            first = None;
        }
        None
    }

    /// The last time of a span that matches.
    pub(super) fn last_in(&self, span: Range<i64>) -> Option<i64> {
        let end = span.end - 1;
        let (mut month, day) = Month::of_day(end.div_euclid(DAY));
        let mut days = self.days_of(month) & (u32::MAX >> (31 - day));
        // On its last day not all times are there yet.
        let mut last = Some((day, end.rem_euclid(DAY)));
        while month.plus(1).first_day() * DAY > span.start {
            while days != 0 {
                let day = days.ilog2();
                let second = last.filter(|(last, _)| *last == day).map_or(DAY - 1, |(_, at)| at);
                if let Some(second) = self.second_until(second) {
                    let at = (month.first_day() + i64::from(day)) * DAY + second;
                    return (at >= span.start).then_some(at);
                }
                days &= !(1 << day);
            }
            month = month.plus(-1);
            days = self.days_of(month);
            last = None;
        }
        None
    }

    /// The first second of a day that matches, from this one on.
    fn second_from(&self, second: i64) -> Option<i64> {
        let [hour, minute, second] = parts(second);
        if has(self.hours, hour) {
            if has(self.minutes, minute)
                && let Some(second) = from(self.seconds, second)
            {
                return Some(joined([hour, minute, second]));
            }
            if let Some(minute) = from(self.minutes, minute + 1) {
                return Some(joined([hour, minute, from(self.seconds, 0)?]));
            }
        }
        let hour = from(self.hours, hour + 1)?;
        Some(joined([hour, from(self.minutes, 0)?, from(self.seconds, 0)?]))
    }

    /// The last second of a day that matches, up to this one.
    fn second_until(&self, second: i64) -> Option<i64> {
        let [hour, minute, second] = parts(second);
        if has(self.hours, hour) {
            if has(self.minutes, minute)
                && let Some(second) = until(self.seconds, second)
            {
                return Some(joined([hour, minute, second]));
            }
            if let Some(minute) = minute.checked_sub(1).and_then(|to| until(self.minutes, to)) {
                return Some(joined([hour, minute, until(self.seconds, 59)?]));
            }
        }
        let hour = hour.checked_sub(1).and_then(|to| until(self.hours, to))?;
        Some(joined([hour, until(self.minutes, 59)?, until(self.seconds, 59)?]))
    }

    /// The days of a month that match; bit n is day n, from 0.
    fn days_of(&self, month: Month) -> u32 {
        if self.months & (1 << month.in_year()) == 0 { 0 } else { self.days.of(month) }
    }
}

impl Days {
    fn of(&self, month: Month) -> u32 {
        let (len, first) = (month.len(), month.first_weekday());
        let all = u32::MAX >> (32 - len);
        // All days of one weekday.
        let every = |weekday: u32| (0x1020_4081 << ((weekday + 7 - first) % 7)) & all;
        let weekend = every(0) | every(6);

        let mut of_month = self.of_month & all;
        if self.last {
            of_month |= 1 << (len - 1);
        }
        if self.last_weekday {
            of_month |= 1 << (all & !weekend).ilog2();
        }
        for day in (0..len).filter(|day| self.nearest & (1 << day) != 0) {
            of_month |= 1 << nearest_weekday(day, first, len);
        }

        let mut of_week = 0;
        for weekday in 0..7 {
            let (bit, every) = (1 << weekday, every(weekday));
            if self.of_week & bit != 0 {
                of_week |= every;
            }
            if self.last_of_week & bit != 0 {
                of_week |= 1 << every.ilog2();
            }
            for (week, nth) in (0u32..).zip(self.nth) {
                if nth & bit != 0 {
                    of_week |= every & (0x7f << (7 * week));
                }
            }
        }
        if self.has_star { of_month & of_week } else { of_month | of_week }
    }
}

/// The day from Monday to Friday that is nearest to this one and of the same month.
fn nearest_weekday(day: u32, first_weekday: u32, len: u32) -> u32 {
    match (first_weekday + day) % 7 {
        0 if day + 1 == len => day - 2,
        0 => day + 1,
        6 if day == 0 => day + 2,
        6 => day - 1,
        _ => day,
    }
}

fn has(set: u64, n: u32) -> bool {
    set & (1 << n) != 0
}

/// The least number of a set that is not below `n`.
fn from(set: u64, n: u32) -> Option<u32> {
    let left = set & (u64::MAX << n);
    (left != 0).then(|| left.trailing_zeros())
}

/// The greatest number of a set that is not above `n`.
fn until(set: u64, n: u32) -> Option<u32> {
    (set & (u64::MAX >> (63 - n))).checked_ilog2()
}

/// Hour, minute and second of a second of a day.
fn parts(second: i64) -> [u32; 3] {
    [second / 3_600, second / 60 % 60, second % 60].map(|part| part as u32)
}

fn joined([hour, minute, second]: [u32; 3]) -> i64 {
    i64::from(hour * 3_600 + minute * 60 + second)
}

/// As it is written back.
impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
pub(super) mod tests;
