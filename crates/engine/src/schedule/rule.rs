//! The times that a rule has: cron in a zone, or every so often.
//!
//! # Invariants
//! 1. A rule has no time twice: the searches find times that strictly increase.
//! 2. Work is bounded: a search looks at [`HORIZON`] at most, and not at single times that do not match.
//!
//! **Where a clock is changed.** A stretch of a zone is a time in which its clock runs steadily. A pattern that follows the clock
//! matches what the clock shows in each stretch. A fixed time is meant once: in the stretch in which the clock shows it for the first
//! time. If the clock jumps over it, it is at the beginning of that stretch.

use super::calendar::DAY;
use super::cron::Cron;
use super::zone::{Stretch, Zone};
use crate::{Millis, UnixMillis};

/// How far a search looks, in seconds: 100 years. No day that the calendar has is farther from the next one than 40 years.
pub(super) const HORIZON: i64 = 100 * 366 * DAY;
/// The last time that there is for schedules: waterclock takes no later one from anybody.
pub(super) const TIME_MAX: UnixMillis = UnixMillis(crate::header::EPOCH_MAX);

/// When the nominal times of a schedule are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// By a pattern, on the clock of a zone.
    Cron {
        /// The pattern.
        cron: Box<Cron>,
        /// Whose clock it is.
        zone: Zone,
    },
    /// Every so often.
    Every {
        /// The period.
        every: Millis,
        /// One of the times; the others are whole periods before and behind it. Zero: they are aligned to the epoch.
        anchor: UnixMillis,
    },
}

impl Rule {
    /// The first time that is not before `at`; `None`: there is none within [`HORIZON`].
    pub(super) fn first_from(&self, at: UnixMillis) -> Option<UnixMillis> {
        let found = match self {
            Self::Every { every, anchor } => {
                let since = at.0.saturating_sub(anchor.0);
                anchor.0.checked_add(since.div_ceil(every.0).checked_mul(every.0)?)?
            }
            Self::Cron { cron, zone } => {
                let at = i64::try_from(at.0.min(TIME_MAX.0 + 1).div_ceil(1_000)).ok()?;
                u64::try_from(first_from(cron, zone, at)?).ok()? * 1_000
            }
        };
        Some(UnixMillis(found)).filter(|found| *found <= TIME_MAX)
    }

    /// The last time that is not after `at` and not before `since`; `None`: there is none within [`HORIZON`].
    pub(super) fn last_until(&self, at: UnixMillis, since: UnixMillis) -> Option<UnixMillis> {
        let at = at.min(TIME_MAX);
        let found = match self {
            Self::Every { every, anchor } => {
                let whole = at.0.checked_sub(anchor.0)? / every.0;
                anchor.0 + whole * every.0
            }
            Self::Cron { cron, zone } => {
                let [at, since] = [at.0 / 1_000, since.0.div_ceil(1_000)];
                let since = i64::try_from(since).ok()?;
                u64::try_from(last_until(cron, zone, i64::try_from(at).ok()?, since)?).ok()? * 1_000
            }
        };
        Some(UnixMillis(found)).filter(|found| *found >= since)
    }
}

/// In seconds since the epoch.
fn first_from(cron: &Cron, zone: &Zone, mut at: i64) -> Option<i64> {
    let horizon = at + HORIZON;
    while at <= horizon {
        let stretch = zone.stretch(at)?;
        let (offset, until) = (stretch.offset, stretch.until.min(horizon) + stretch.offset);
        let from = if at == stretch.from && !cron.follows_clock() {
            // Also what the clock jumped over.
            stretch.reached
        } else {
            lowest(cron, &stretch).max(at + offset)
        };
        if let Some(shown) = cron.first_in(from..until) {
            return Some((shown - offset).max(stretch.from));
        }
        at = stretch.until;
    }
    None
}

/// In seconds since the epoch.
fn last_until(cron: &Cron, zone: &Zone, mut at: i64, since: i64) -> Option<i64> {
    let horizon = since.max(at - HORIZON);
    while at >= horizon {
        let stretch = zone.stretch(at)?;
        let offset = stretch.offset;
        let mut from = lowest(cron, &stretch);
        if stretch.from < horizon {
            from = from.max(horizon + offset);
        }
        if let Some(shown) = cron.last_in(from..at + offset + 1) {
            return Some((shown - offset).max(stretch.from));
        }
        at = stretch.from - 1;
    }
    None
}

/// The least that the clock shows in a stretch and that counts there.
fn lowest(cron: &Cron, stretch: &Stretch) -> i64 {
    if cron.follows_clock() { stretch.from + stretch.offset } else { stretch.reached }
}
