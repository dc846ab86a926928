//! A token bucket (GCRA: it keeps a time, not a count). Who wants to begin something takes a token.
//!
//! Time is handed in, and counts in whole milliseconds. All arithmetic is in whole numbers: no token is lost or won by
//! rounding, however long a bucket runs, and the parts of a rate that was divided add up to the rate.
//!
//! # Invariants
//! 1. In any `t` milliseconds at most `rate * t + burst` tokens are taken.
//! 2. Who takes each token as soon as there is one gets all tokens that the rate gives.
//! 3. A new bucket is empty: its first token comes after 1/rate. So a partition that changes hands brings no burst.
//! 4. No time, rate or burst makes it overflow. A clock that goes back gives no tokens.

use std::num::{NonZeroU16, NonZeroU64};

use crate::Millis;

/// A rate counts tokens for this long, so that three decimals per second are whole numbers.
const PER_SECONDS: u64 = 1_000;
/// The same in milliseconds.
const PER_MILLIS: u128 = 1_000_000;

/// How many tokens come in a time, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Tokens in 1,000 s, for all parts together.
    per_1000_s: NonZeroU64,
    /// It is divided by so many.
    parts: NonZeroU16,
}

impl Rate {
    /// So many tokens in 1,000 s; `None` of zero, which would be a pause.
    #[must_use]
    pub fn per_1000_s(tokens: u64) -> Option<Self> {
        Some(Self { per_1000_s: NonZeroU64::new(tokens)?, parts: NonZeroU16::MIN })
    }

    /// One of so many equal parts of the whole rate, which is not divided twice. Of none there is one.
    #[must_use]
    pub fn part_of(self, parts: u16) -> Self {
        Self { parts: NonZeroU16::new(parts).unwrap_or(NonZeroU16::MIN), ..self }
    }

    /// Tokens in a second, of all parts together, rounded up.
    #[must_use]
    pub fn per_second_rounded_up(self) -> u64 {
        self.per_1000_s.get().div_ceil(PER_SECONDS)
    }

    /// Tokens in 1,000 s, of all parts together.
    #[must_use]
    pub fn whole_per_1000_s(self) -> u64 {
        self.per_1000_s.get()
    }
}

/// Gives tokens at a rate. What is not taken is kept, up to `burst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Units in a millisecond: as many as tokens come in 1,000 s, of all parts. So a token takes a whole number of units.
    millisecond: u128,
    /// Units in which one token comes.
    token: u128,
    /// Units in which it is full.
    full: u128,
    /// When it was empty, if it has filled ever since, in units.
    empty_at: u128,
}

impl Bucket {
    /// An empty one. Of a burst of zero it keeps one token, or nothing could ever be taken.
    #[must_use]
    pub fn new(rate: Rate, burst: u32, now: Millis) -> Self {
        let millisecond = u128::from(rate.per_1000_s.get());
        let token = PER_MILLIS * u128::from(rate.parts.get());
        // What comes in one millisecond has room beside the burst. The clock has no finer steps, so it could not be taken
        // earlier, and would be lost: a rate above 1,000 per second could not be reached with a burst of one.
        let full = token * u128::from(burst.max(1)) + millisecond;
        Self { millisecond, token, full, empty_at: millisecond * u128::from(now.0) }
    }

    /// The tokens that it has, whole ones, in a bucket of another rate or burst.
    #[must_use]
    pub fn moved_to(&self, rate: Rate, burst: u32, now: Millis) -> Self {
        let filled = (self.millisecond * u128::from(now.0)).saturating_sub(self.empty_at);
        let tokens = (filled.min(self.full) / self.token).min(u128::from(burst.max(1)));
        let mut moved = Self::new(rate, burst, now);
        moved.empty_at = moved.empty_at.saturating_sub(tokens * moved.token);
        moved
    }

    /// Takes a token, if there is one.
    pub fn take(&mut self, now: Millis) -> bool {
        let now = self.millisecond * u128::from(now.0);
        if now.saturating_sub(self.empty_at) < self.token {
            return false;
        }
        // Not behind `now`: it is full for at least one token.
        self.empty_at = self.empty_at.max(now.saturating_sub(self.full)) + self.token;
        true
    }

    /// When a token can be taken, if nobody takes one before: `now` or later. The end of time stands for never.
    #[must_use]
    pub fn next_at(&self, now: Millis) -> Millis {
        let at = self.empty_at.saturating_add(self.token).div_ceil(self.millisecond);
        Millis(u64::try_from(at).unwrap_or(u64::MAX)).max(now)
    }
}

#[cfg(test)]
mod tests;
