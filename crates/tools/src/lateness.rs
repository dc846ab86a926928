//! Latenesses, and what most of them are below.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Highest lateness that is told apart, in microseconds: an hour.
const LATENESS_US_MAX: u64 = 3_600_000_000;
/// Significant digits of a lateness.
const DIGITS: u8 = 3;

/// Latenesses, in microseconds.
pub(super) struct Lateness(Histogram<u64>);

impl Lateness {
    pub(super) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENESS_US_MAX, DIGITS);
        // Constant bounds: a test makes one.
        Self(histogram.unwrap_or_else(|error| panic!("bounds of a histogram: {error}")))
    }

    pub(super) fn record(&mut self, us: u64) {
        self.0.saturating_record(us);
    }

    /// Takes in what another one has.
    pub(super) fn add(&mut self, other: &Self) {
        // The bounds of both are the same, so nothing is out of range.
        let _ = self.0.add(&other.0);
    }

    /// Percentiles in milliseconds; `None` when nothing was recorded.
    pub(super) fn spread(&self) -> Option<Spread> {
        if self.0.is_empty() {
            return None;
        }
        let ms = |us: u64| us as f64 / 1_000.0;
        let at = |quantile| ms(self.0.value_at_quantile(quantile));
        Some(Spread { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: ms(self.0.max()) })
    }
}

/// Lateness in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}
