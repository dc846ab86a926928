//! Points and lengths of time, told apart by type.
//!
//! The engine reads no clock: every `now` is handed in, and it is the *broker's* time (a lower bound
//! of it, see `docs/adr/0002-broker-time.md`), because due times are kept by the target's leader.

use std::fmt;
use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch, UTC. The engine never asks for one; it is handed one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct UnixMillis(pub u64);

/// A length of time in milliseconds; never a point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// One second.
    pub const SECOND: Self = Self(1_000);
    /// One minute.
    pub const MINUTE: Self = Self(60_000);
    /// One hour.
    pub const HOUR: Self = Self(3_600_000);
    /// One day of 24 hours.
    pub const DAY: Self = Self(86_400_000);

    /// The difference, zero when `rhs` is longer.
    #[must_use]
    pub fn saturating_sub(self, rhs: Self) -> Self {
        Self(self.0.saturating_sub(rhs.0))
    }

    /// Half of it, rounded down.
    #[must_use]
    pub fn half(self) -> Self {
        Self(self.0 / 2)
    }
}

impl Add<Millis> for UnixMillis {
    type Output = Self;
    /// Stops at the end of time instead of wrapping: a record that far away is refused elsewhere.
    fn add(self, rhs: Millis) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }
}

impl Sub<Millis> for UnixMillis {
    type Output = Self;
    /// Stops at the epoch.
    fn sub(self, rhs: Millis) -> Self {
        Self(self.0.saturating_sub(rhs.0))
    }
}

impl Sub for UnixMillis {
    type Output = Millis;
    /// Zero when `rhs` is later: a record that is overdue has nothing left to wait.
    fn sub(self, rhs: Self) -> Millis {
        Millis(self.0.saturating_sub(rhs.0))
    }
}

impl Add for Millis {
    type Output = Self;
    fn add(self, rhs: Self) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }
}

/// Prints the largest units that divide it: `90s` as `1m30s`, `1500` as `1s500ms`, `0` as `0s`.
impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0;
        for (unit, size) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
            if rest >= size {
                write!(f, "{}{unit}", rest / size)?;
                rest %= size;
            }
        }
        if rest > 0 {
            write!(f, "{rest}ms")?;
        }
        Ok(())
    }
}
