//! When the tasks of a schedule are due, and what they are.
//!
//! A schedule has *nominal times*. Each of them is one task, which is due then, or up to `jitter` later.
//!
//! # Invariants
//! 1. Nominal times strictly increase. The same schedule has the same ones on every instance of one release.
//! 2. A question takes bounded work, whatever the schedule and however long ago its last time was. See [`Timing`].
//! 3. What comes from outside is in order, or every mistake in it is named. What is written here is read back as it was.
//!
//! [`Timing`] is the arithmetic, [`Schedule`] what is kept of a schedule. What becomes of it is decided by its lane. About cron and clock
//! changes: `docs/adr/0041-schedules.md`; about the chain of times: `docs/adr/0042-the-chain-of-a-schedule.md`.

use serde::Serialize;
use serde_json::Value;

use crate::header::{EPOCH_MIN, When, until};
use crate::task::Wrong;
use crate::task::fields::{
    Fields, Length, Wrongs, document, integer, length, text, to_json, wanted,
};
use crate::task::id::TaskId;
use crate::{Millis, UnixMillis};

use rule::{Rule, TIME_MAX};

mod calendar;
mod cron;
mod definition;
mod late;
mod rule;
mod zone;

pub use cron::{CRON_MAX, Cron};
pub use definition::{GRACE, NAME_MAX, NEVER, SCHEDULE_MAX, Schedule, Submitted};
pub(crate) use definition::{Place, Wire as ScheduleWire, fields};
pub use late::{FIRE_ALL_MAX, Late};
pub use zone::{ZONE_MAX, Zone, database_version};

/// What a document goes by in answers.
const DOCUMENT: &str = "schedule";
/// Longest document that says when, in bytes.
pub const TIMING_MAX: usize = 4 * 1024;
/// Shortest and longest period.
pub const EVERY: (Millis, Millis) = (Millis::SECOND, Millis(3_650 * Millis::DAY.0));
/// Most nominal times that a schedule can be bounded to by `count`.
pub const COUNT_MAX: u32 = 10_000;
/// Longest jitter.
pub const JITTER_MAX: Millis = Millis::HOUR;
/// Most nominal times that are listed at once.
pub const LISTED_MAX: usize = 1_000;

/// What waterclock writes, and no request has: the last time that `count` leaves. So nobody who reads a schedule counts it out again.
pub const LAST_OF_COUNT: &str = "last_of_count";

/// The fields that are read here, of what is asked for.
pub const FIELDS: [&str; 10] =
    ["cron", "zone", "every", "aligned", "start", "end", "count", "jitter", "misfire", "overlap"];

/// What becomes of nominal times that nobody was there for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Misfire {
    /// The last one of them is made up for.
    #[default]
    FireOnce,
    /// None is.
    Skip,
    /// The last [`FIRE_ALL_MAX`] of them are.
    FireAll,
}

impl Misfire {
    const ALL: [Self; 3] = [Self::FireOnce, Self::Skip, Self::FireAll];

    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FireOnce => "fire_once",
            Self::Skip => "skip",
            Self::FireAll => "fire_all",
        }
    }
}

/// What becomes of a nominal time while the task of another one has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// Its task is created all the same.
    #[default]
    Allow,
    /// It has no task.
    Skip,
    /// Its task waits for the end of the other one. If the other one was not begun yet, it has none: one waits at most.
    QueueOne,
}

impl Overlap {
    const ALL: [Self; 3] = [Self::Allow, Self::Skip, Self::QueueOne];

    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Skip => "skip",
            Self::QueueOne => "queue_one",
        }
    }
}

/// When the tasks of a schedule are due, and what becomes of times that are missed or that overlap.
///
/// **Bounds.** A search for the next time gives up after 100 years. No question takes longer than that search does as many times as it
/// has answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    rule: Rule,
    /// There is none before it.
    start: Option<UnixMillis>,
    /// There is none from then on.
    end: Option<UnixMillis>,
    /// So many from `start` on. There is a start then.
    count: Option<u32>,
    /// The last one that `count` leaves; `None`: there is no count, or it bounds nothing.
    last: Option<UnixMillis>,
    jitter: Millis,
    misfire: Misfire,
    overlap: Overlap,
}

/// Nominal times of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// They, the first ones first.
    pub times: Vec<UnixMillis>,
    /// The span has more of them.
    pub has_more: bool,
}

impl Timing {
    /// Reads one from a JSON document that has nothing else.
    ///
    /// # Errors
    /// Every field that is wrong, at least one.
    pub fn parse(json: &[u8]) -> Result<Self, Vec<Wrong>> {
        let mut wrongs = Wrongs::default();
        let map = document(DOCUMENT, json, TIMING_MAX, &mut wrongs);
        let timing = map.and_then(|map| {
            let fields = Fields::of_document(&map);
            fields.only(&FIELDS, "schedules", &mut wrongs);
            Self::read(&fields, &mut wrongs)
        });
        match timing {
            Some(timing) if wrongs.is_empty() => Ok(timing),
            _ => Err(wrongs.list(DOCUMENT)),
        }
    }

    /// Reads [`FIELDS`] of a document that may have others. All are read before it gives up: each one that is wrong is to be named.
    pub(crate) fn read(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Option<Self> {
        let start = fields.read("start", wrongs, time);
        let end = fields.read("end", wrongs, time);
        if let (Some(start), Some(end)) = (start, end)
            && end <= start
        {
            wrongs.add(fields.at("end"), "is not after start; want a time after it");
        }
        let count = fields.read("count", wrongs, |value| integer(value, 1..=u64::from(COUNT_MAX)));
        if fields.has("count") && !fields.has("start") {
            wrongs.add(fields.at("count"), "is there without start; want the time to count from");
        }
        let jitter = fields.read("jitter", wrongs, |value| length(value, Millis(0)..=JITTER_MAX));
        let misfire = fields.read("misfire", wrongs, |value| {
            one_of(value, Misfire::ALL.map(|of| (of.as_str(), of)))
        });
        let overlap = fields.read("overlap", wrongs, |value| {
            one_of(value, Overlap::ALL.map(|of| (of.as_str(), of)))
        });
        let last = fields.read(LAST_OF_COUNT, wrongs, time);
        let rule = read_rule(fields, start, wrongs);
        let mut timing = Self {
            rule: rule?,
            start,
            end,
            count: count.map(|count| count as u32),
            last,
            jitter: jitter.unwrap_or(Millis(0)),
            misfire: misfire.unwrap_or_default(),
            overlap: overlap.unwrap_or_default(),
        };
        // What is refused anyway is not counted out, and neither is what was counted out when it was asked for.
        if wrongs.is_empty() && last.is_none() {
            timing.last = timing.last_of_count();
        }
        Some(timing)
    }

    /// Writes it, compact, with its defaults: another version's defaults change nothing.
    #[must_use]
    pub fn to_json(&self) -> String {
        to_json(&self.wire())
    }

    /// As [`read`](Self::read) takes it.
    pub(crate) fn wire(&self) -> Wire<'_> {
        let (cron, zone, every, aligned) = match &self.rule {
            Rule::Cron { cron, zone } => (Some(cron.to_string()), Some(zone.name()), None, None),
            Rule::Every { every, anchor } => {
                (None, None, Some(Length(*every)), Some(*anchor == UnixMillis(0)))
            }
        };
        Wire {
            cron,
            zone,
            every,
            aligned,
            start: self.start,
            end: self.end,
            count: self.count,
            jitter: Length(self.jitter),
            misfire: self.misfire.as_str(),
            overlap: self.overlap.as_str(),
        }
    }

    /// What becomes of nominal times that nobody was there for.
    #[must_use]
    pub const fn misfire(&self) -> Misfire {
        self.misfire
    }

    /// What becomes of a nominal time while the task of another one has not ended.
    #[must_use]
    pub const fn overlap(&self) -> Overlap {
        self.overlap
    }

    /// Whose clock it goes by; `None`: by none, but every so often.
    #[must_use]
    pub const fn zone(&self) -> Option<&Zone> {
        match &self.rule {
            Rule::Cron { zone, .. } => Some(zone),
            Rule::Every { .. } => None,
        }
    }

    /// The first nominal time after this one, which need not be nominal itself; `None`: there is none within 100 years.
    #[must_use]
    pub fn next_after(&self, time: UnixMillis) -> Option<UnixMillis> {
        let from = (time + Millis(1)).max(self.start.unwrap_or_default());
        self.rule.first_from(from).filter(|next| *next <= self.latest())
    }

    /// The first nominal time after `now`, for who creates a schedule or changes it.
    ///
    /// # Errors
    /// There is none: the field that is the reason.
    pub fn first_after(&self, now: UnixMillis) -> Result<UnixMillis, Wrong> {
        if let Some(next) = self.next_after(now) {
            return Ok(next);
        }
        let from = (now + Millis(1)).max(self.start.unwrap_or_default());
        let (at, detail) = match (self.rule.first_from(from), self.end, self.last, self.zone()) {
            // A pattern whose days there are, but at an hour that the clock always jumps over then.
            (None, _, _, Some(zone)) => {
                ("cron", format!("has no time within 100 years on the clock of {}", zone.name()))
            }
            (None, _, _, None) => ("every", "has no more time".to_owned()),
            (Some(next), Some(end), _, _) if end <= next => {
                ("end", format!("leaves no time; the next one would be {} ({})", next.0, utc(next)))
            }
            _ => ("count", "leaves no time: all of them are past".to_owned()),
        };
        Err(Wrong { at: at.to_owned(), detail })
    }

    /// The last nominal time from `first` on that has passed.
    pub(crate) fn last_passed(&self, first: UnixMillis, now: UnixMillis) -> Option<UnixMillis> {
        self.last_until(now, first)
    }

    /// The last nominal time that is not after `time` and not before `since`.
    fn last_until(&self, time: UnixMillis, since: UnixMillis) -> Option<UnixMillis> {
        let since = since.max(self.start.unwrap_or_default());
        self.rule.last_until(time.min(self.latest()), since)
    }

    /// The nominal times from `from` on that are before `to`: the first ones, at most `max` and at most [`LISTED_MAX`].
    ///
    /// This is the preview of a schedule, and what a backfill creates.
    #[must_use]
    pub fn times(&self, from: UnixMillis, to: UnixMillis, max: usize) -> Listed {
        let max = max.min(LISTED_MAX);
        let mut times = Vec::new();
        let begin = self.rule.first_from(from.max(self.start.unwrap_or_default()));
        let mut next = begin.filter(|first| *first <= self.latest());
        while let Some(time) = next.filter(|next| *next < to) {
            if times.len() == max {
                return Listed { times, has_more: true };
            }
            times.push(time);
            next = self.next_after(time);
        }
        Listed { times, has_more: false }
    }

    /// When the task of a nominal time is due: then, or later by less than the jitter. The same for one id always.
    #[must_use]
    pub fn due(&self, nominal: UnixMillis, id: &TaskId) -> UnixMillis {
        nominal + id.offset_in(self.jitter)
    }

    /// No nominal time is after this one.
    fn latest(&self) -> UnixMillis {
        let before_end = self.end.map_or(TIME_MAX, |end| end - Millis(1));
        before_end.min(self.last.unwrap_or(TIME_MAX))
    }

    /// The last one of `count` from `start` on; the last one before `end`, if that comes first.
    fn last_of_count(&self) -> Option<UnixMillis> {
        let (start, count) = (self.start?, self.count?);
        let first = self.rule.first_from(start)?;
        match self.rule {
            Rule::Every { every, .. } => {
                Some(first + Millis(every.0.saturating_mul(u64::from(count - 1))))
                    .filter(|last| *last <= TIME_MAX)
            }
            Rule::Cron { .. } => {
                let latest = self.latest();
                let next = |time: &UnixMillis| {
                    self.rule.first_from(*time + Millis(1)).filter(|next| *next <= latest)
                };
                std::iter::successors(Some(first), next).take(count as usize).last()
            }
        }
    }
}

/// Timing as JSON has it.
#[derive(Debug, Serialize)]
pub(crate) struct Wire<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    cron: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    every: Option<Length>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aligned: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<UnixMillis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<UnixMillis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    jitter: Length,
    misfire: &'static str,
    overlap: &'static str,
}

/// `cron` with its zone, or `every`.
fn read_rule(fields: &Fields<'_>, start: Option<UnixMillis>, wrongs: &mut Wrongs) -> Option<Rule> {
    let cron = fields.read("cron", wrongs, |value| {
        let want = "a text with five or six fields, or one as @daily";
        Cron::parse(text(value, want)?).map_err(|want| wanted(value, &want))
    });
    let zone = fields.read("zone", wrongs, |value| {
        let want = "the name of an IANA zone, as Europe/Berlin or UTC";
        Zone::parse(text(value, want)?).map_err(|want| wanted(value, &want))
    });
    let every = fields.read("every", wrongs, |value| length(value, EVERY.0..=EVERY.1));
    let aligned = fields.read("aligned", wrongs, |value| {
        value.as_bool().ok_or_else(|| wanted(value, "true or false"))
    });
    match (fields.has("cron"), fields.has("every")) {
        (true, true) => {
            wrongs.add(fields.at("every"), "is there beside cron; want exactly one of them");
            return None;
        }
        (false, false) => {
            wrongs.add(fields.at("cron"), "is missing; want exactly one of cron and every");
            return None;
        }
        (true, false) if fields.has("aligned") => {
            wrongs.add(fields.at("aligned"), "is there beside cron; want it beside every only");
        }
        (false, true) if fields.has("zone") => {
            wrongs.add(fields.at("zone"), "is there beside every; want it beside cron only");
        }
        _ => {}
    }
    if aligned == Some(false) && !fields.has("start") {
        let detail = "is false, and there is no start; want the time that periods are counted from";
        wrongs.add(fields.at("aligned"), detail);
    }
    let anchor = if aligned == Some(true) { None } else { start };
    cron.map(|cron| Rule::Cron { cron: Box::new(cron), zone: zone.unwrap_or_default() })
        .or_else(|| every.map(|every| Rule::Every { every, anchor: anchor.unwrap_or_default() }))
}

/// A point in time.
fn time(value: &Value) -> Result<UnixMillis, String> {
    let read = match value {
        Value::Number(number) => number.as_u64().map(UnixMillis),
        Value::String(text) if text.contains('-') => match until(text) {
            Ok(When::At(at)) => Some(at),
            _ => None,
        },
        _ => None,
    };
    read.filter(|at| (UnixMillis(EPOCH_MIN)..=TIME_MAX).contains(at)).ok_or_else(|| {
        wanted(value, "RFC 3339 with a zone (\"2027-01-31T08:00:00Z\"), or epoch milliseconds, from 2001 to 5138")
    })
}

fn one_of<T: Copy, const N: usize>(value: &Value, known: [(&str, T); N]) -> Result<T, String> {
    let found = known.iter().find(|(name, _)| value.as_str() == Some(*name));
    let found = found.map(|(_, one)| *one);
    found.ok_or_else(|| wanted(value, &known.map(|(name, _)| name).join(", ")))
}

fn utc(at: UnixMillis) -> String {
    Zone::default().show(at)
}

#[cfg(test)]
mod tests;
