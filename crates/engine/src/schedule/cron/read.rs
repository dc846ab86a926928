//! Reads patterns.

use serde_json::Value;

use super::{CRON_MAX, Cron, Days};
use crate::task::fields::shown;

/// Names for patterns.
const NAMED: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// What a field may have.
struct Field {
    min: u32,
    /// The greatest number of a `*`.
    max: u32,
    /// Names of its numbers, from `min` on.
    names: &'static [&'static str],
    wanted: &'static str,
}

const SECONDS: Field = Field { wanted: "seconds from 0 to 59", ..MINUTES };
const MINUTES: Field = Field { min: 0, max: 59, names: &[], wanted: "minutes from 0 to 59" };
const HOURS: Field = Field { max: 23, wanted: "hours from 0 to 23", ..MINUTES };
const DAYS: Field = Field {
    min: 1,
    max: 31,
    names: &[],
    wanted: "days of the month from 1 to 31, L (the last), LW or 15W (the nearest weekday)",
};
const MONTHS: Field = Field {
    min: 1,
    max: 12,
    names: &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
    wanted: "months from 1 to 12 or JAN to DEC",
};
const WEEKDAYS: Field = Field {
    min: 0,
    max: 6,
    names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
    wanted: "days of the week from 0 to 7 (0 and 7 are Sunday) or SUN to SAT, FRI#2 (the second), FRIL (the last)",
};

pub(super) fn cron(text: &str) -> Result<Cron, String> {
    if text.len() > CRON_MAX {
        return Err(format!("a pattern of at most {CRON_MAX} bytes"));
    }
    let text = text.trim_matches([' ', '\t']);
    if text.starts_with('@') {
        let name = text.to_ascii_lowercase();
        let known = NAMED.iter().find(|(known, _)| *known == name);
        let (name, pattern) = known.ok_or_else(|| {
            format!("five fields, or one of {}", NAMED.map(|(name, _)| name).join(", "))
        })?;
        return Ok(Cron { text: (*name).into(), ..cron(pattern)? });
    }
    let text = text.to_ascii_uppercase();
    let fields: Vec<_> = text.split([' ', '\t']).filter(|field| !field.is_empty()).collect();
    let (seconds, rest) = match fields.as_slice() {
        rest @ [_, _, _, _, _] => ("0", rest),
        [seconds, rest @ ..] if rest.len() == 5 => (*seconds, rest),
        other => {
            return Err(format!(
                "five fields (minute, hour, day of the month, month, day of the week), six with the second before them, or @daily; \
                 it has {}",
                other.len()
            ));
        }
    };
    let [minutes, hours, days, months, weekdays] = rest else { return Err(String::new()) };
    let in_clock = [seconds, minutes, hours];
    Ok(Cron {
        text: fields.join(" ").into(),
        seconds: set(&SECONDS, seconds)?,
        minutes: set(&MINUTES, minutes)?,
        hours: set(&HOURS, hours)?,
        days: read_days(days, weekdays)?,
        months: (set(&MONTHS, months)? >> 1) as u16,
        follows_clock: in_clock.iter().any(|field| field.contains('*')),
    })
}

fn read_days(of_month: &str, of_week: &str) -> Result<Days, String> {
    let mut days =
        Days { has_star: of_month.contains('*') || of_week.contains('*'), ..Days::default() };
    for item in of_month.split(',') {
        match item {
            "L" => days.last = true,
            "LW" => days.last_weekday = true,
            _ => match item.strip_suffix('W') {
                Some(day) => {
                    let day = number(&DAYS, day).ok_or_else(|| wanted(&DAYS, item))?;
                    days.nearest |= 1 << (day - 1);
                }
                None => days.of_month |= (read(&DAYS, item)? >> 1) as u32,
            },
        }
    }
    for item in of_week.split(',') {
        let weekday =
            |text| number(&WEEKDAYS, text).map(|n| n % 7).ok_or_else(|| wanted(&WEEKDAYS, item));
        if let Some((day, week)) = item.split_once('#') {
            let week = ["1", "2", "3", "4", "5"].iter().position(|known| *known == week);
            days.nth[week.ok_or_else(|| wanted(&WEEKDAYS, item))?] |= 1 << weekday(day)?;
        } else if let Some(day) = item.strip_suffix('L') {
            days.last_of_week |= 1 << weekday(day)?;
        } else {
            let set = read(&WEEKDAYS, item)?;
            days.of_week |= (set | set >> 7) as u8 & 0x7f;
        }
    }
    Ok(days)
}

/// The numbers that a list has, as bits.
fn set(field: &Field, list: &str) -> Result<u64, String> {
    list.split(',').try_fold(0, |set, item| Ok(set | read(field, item)?))
}

/// The numbers of one item of a list.
fn read(field: &Field, item: &str) -> Result<u64, String> {
    let numbers = || {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (item, None),
        };
        let (first, last) = if range == "*" {
            (field.min, field.max)
        } else if let Some((first, last)) = range.split_once('-') {
            let (first, last) = (number(field, first)?, number(field, last)?);
            // From Friday to Sunday.
            let is_sunday = field.min == 0 && field.max == 6 && last == 0 && first > 0;
            (first, if is_sunday { 7 } else { last })
        } else if step.is_none() {
            let one = number(field, range)?;
            (one, one)
        } else {
            // Some programs begin there, and some take that number only.
            return None;
        };
        // With a longer step the first number is left alone, and */90 is no hour and a half.
        let step = match step {
            Some(step) => digits(step).filter(|step| (1..=field.max - field.min).contains(step))?,
            None => 1,
        };
        let numbers = (first..=last).step_by(step as usize);
        (first <= last).then(|| numbers.fold(0, |set, number| set | 1 << number))
    };
    numbers().ok_or_else(|| wanted(field, item))
}

/// A number of a field, or its name. That of a Sunday may be 7.
fn number(field: &Field, text: &str) -> Option<u32> {
    if let Some(at) = field.names.iter().position(|name| *name == text) {
        return Some(field.min + at as u32);
    }
    let is_weekday = field.max == 6;
    let max = field.max + u32::from(is_weekday);
    digits(text).filter(|number| (field.min..=max).contains(number))
}

/// One or two digits: a parser of numbers would read a plus sign, too.
fn digits(text: &str) -> Option<u32> {
    let is_short = (1..=2).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit());
    is_short.then(|| text.parse().ok()).flatten()
}

fn wanted(field: &Field, item: &str) -> String {
    format!(
        "{}, with *, lists (1,3), ranges (1-5) and steps (*/2, 1-5/2), not {}",
        field.wanted,
        shown(&Value::from(item))
    )
}
