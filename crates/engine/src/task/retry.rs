//! When an attempt that failed is made again.
//!
//! # Invariants
//! 1. A wait is never longer than `max_interval`. What the other side asked for counts instead, up to [`RETRY_AFTER_MAX`],
//!    or up to `interval` where that is longer.
//! 2. Jitter only shortens a wait. It never shortens one that the other side asked for.
//! 3. The same numbers give the same wait: there is no randomness here.

use serde::Serialize;
use serde_json::Value;

use super::super::Millis;
use super::fields::{Fields, Length, Wrongs, integer, length, wanted};

/// Most attempts after the first one.
pub const COUNT_MAX: u32 = 1_000;
/// Shortest interval.
pub const INTERVAL_MIN: Millis = Millis::SECOND;
/// Longest interval, also after backoff.
pub const INTERVAL_MAX: Millis = Millis::DAY;
/// Longest wait that the other side may ask for (`Retry-After`).
pub const RETRY_AFTER_MAX: Millis = Millis::HOUR;

/// How the wait grows with the failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backoff {
    /// It does not.
    #[default]
    Fixed,
    /// It doubles with each failure, up to `max_interval`.
    Exponential,
}

impl Backoff {
    /// As written in a specification.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Exponential => "exponential",
        }
    }
}

/// How often an attempt is made again, and after which waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Attempts after the first one, at most [`COUNT_MAX`].
    count: u32,
    /// The wait after the first failure.
    interval: Millis,
    backoff: Backoff,
    /// The longest wait; at least `interval`.
    max_interval: Millis,
    /// Thousandths of a wait that jitter may take away, at most 1,000.
    jitter: u16,
}

impl Default for Retry {
    /// No second attempt.
    fn default() -> Self {
        Self {
            count: 0,
            interval: Millis(5_000),
            backoff: Backoff::default(),
            max_interval: Millis::HOUR,
            jitter: 0,
        }
    }
}

impl Retry {
    /// That of follow-ups to whom no service says another one: five more attempts within 2 min 35 s.
    pub(super) const fn of_follow_up() -> Self {
        Self {
            count: 5,
            interval: Millis(5_000),
            backoff: Backoff::Exponential,
            max_interval: Millis::HOUR,
            jitter: 0,
        }
    }

    /// Attempts after the first one.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// The wait after the first failure.
    #[must_use]
    pub const fn interval(&self) -> Millis {
        self.interval
    }

    /// How the wait grows.
    #[must_use]
    pub const fn backoff(&self) -> Backoff {
        self.backoff
    }

    /// The longest wait.
    #[must_use]
    pub const fn max_interval(&self) -> Millis {
        self.max_interval
    }

    /// The part of a wait that jitter may take away, in thousandths.
    #[must_use]
    pub const fn jitter_thousandths(&self) -> u16 {
        self.jitter
    }

    /// Whether one more attempt may be made after so many failures.
    #[must_use]
    pub const fn is_left(&self, failures: u32) -> bool {
        failures <= self.count
    }

    /// How long to wait after the last of so many failures.
    ///
    /// `retry_after` is what the other side asked for. `luck` decides what jitter takes away: the caller hashes the
    /// task and the turn, so that tasks which failed together do not come back together.
    #[must_use]
    pub fn after(&self, failures: u32, retry_after: Option<Millis>, luck: u64) -> Millis {
        if let Some(asked) = retry_after {
            return asked.min(RETRY_AFTER_MAX).max(self.interval);
        }
        let factor = match self.backoff {
            Backoff::Fixed => 1,
            Backoff::Exponential => {
                1u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX)
            }
        };
        let wait = Millis(self.interval.0.saturating_mul(factor)).min(self.max_interval);
        // A day, a thousand and 64 bits of luck take 101 bits.
        let most = u128::from(wait.0) * u128::from(self.jitter);
        let taken = most * u128::from(luck) / (1_000 * u128::from(u64::MAX));
        wait.saturating_sub(Millis(taken as u64))
    }

    /// Reads the object `retry` of a specification, or of a service's defaults.
    pub(super) fn read(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Self {
        fields.only(&["count", "interval", "backoff", "max_interval", "jitter"], "retry", wrongs);
        let default = Self::default();
        let in_bounds = |value| length(value, INTERVAL_MIN..=INTERVAL_MAX);
        let count = fields.read("count", wrongs, |value| integer(value, 0..=u64::from(COUNT_MAX)));
        let interval = fields.read("interval", wrongs, in_bounds);
        let given_max = fields.read("max_interval", wrongs, in_bounds);
        let known_interval = interval.unwrap_or(default.interval);
        // Where the interval itself is wrong, nothing is known of what its maximum may be.
        let is_compared = interval.is_some() || !fields.has("interval");
        if is_compared
            && given_max.is_some_and(|max| max < known_interval)
            && let Some(value) = fields.get("max_interval")
        {
            let at = fields.at("max_interval");
            let interval = fields.at("interval");
            wrongs.add(at, wanted(value, &format!("at least {interval} ({known_interval})")));
        }
        Self {
            count: count.map_or(default.count, |count| count as u32),
            interval: known_interval,
            backoff: fields.read("backoff", wrongs, backoff).unwrap_or_default(),
            max_interval: given_max.unwrap_or_else(|| default.max_interval.max(known_interval)),
            jitter: fields.read("jitter", wrongs, jitter).unwrap_or(default.jitter),
        }
    }

    /// As [`read`](Self::read) takes it. Every field is written: a default of another version changes nothing.
    pub(super) fn wire(&self) -> Wire {
        Wire {
            count: self.count,
            interval: Length(self.interval),
            backoff: self.backoff.as_str(),
            max_interval: Length(self.max_interval),
            jitter: f64::from(self.jitter) / 1_000.0,
        }
    }
}

/// A policy as JSON has it.
#[derive(Debug, Serialize)]
pub(super) struct Wire {
    count: u32,
    interval: Length,
    backoff: &'static str,
    max_interval: Length,
    jitter: f64,
}

fn backoff(value: &Value) -> Result<Backoff, String> {
    let known = [Backoff::Fixed, Backoff::Exponential];
    let found = known.into_iter().find(|known| value.as_str() == Some(known.as_str()));
    found.ok_or_else(|| wanted(value, "fixed or exponential"))
}

/// Finer parts than thousandths are rounded: no wait shows them.
fn jitter(value: &Value) -> Result<u16, String> {
    let part = value.as_f64().filter(|part| (0.0..=1.0).contains(part));
    part.map(|part| (part * 1_000.0).round() as u16)
        .ok_or_else(|| wanted(value, "a number from 0 to 1"))
}

#[cfg(test)]
pub(super) mod tests;
