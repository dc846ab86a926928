//! What was read, counted: once each, never early, how late.

use serde::Serialize;

use super::timeline::Samples;
use crate::lateness::Lateness;
use waterclock_engine::UnixMillis;

/// Whether a run delivered what it was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    pub(super) expected: u64,
    /// Different ones that came.
    pub(super) seen: u64,
    /// How often one came again.
    pub(super) duplicates: u64,
    /// How many were appended to the target before they were due, by the broker's clock.
    pub(super) early: u64,
    /// Records that were never sent.
    pub(super) strangers: u64,
}

impl Check {
    pub(super) fn holds(&self) -> bool {
        *self == Self { expected: self.expected, seen: self.expected, ..Self::default() }
    }
}

/// Counts the records of one run.
pub(super) struct Tally {
    met: Vec<bool>,
    pub(super) check: Check,
    /// Until it was with the reader.
    pub(super) arrival: Lateness,
    /// Until the broker appended it.
    pub(super) append: Lateness,
    pub(super) samples: Samples,
    /// When the last one that had not been met came, in microseconds of the broker's clock.
    pub(super) last_us: u64,
}

impl Tally {
    pub(super) fn new(expected: u64) -> Self {
        Self {
            met: vec![false; usize::try_from(expected).unwrap_or(usize::MAX)],
            check: Check { expected, ..Check::default() },
            arrival: Lateness::new(),
            append: Lateness::new(),
            samples: Samples::default(),
            last_us: 0,
        }
    }

    /// Takes in record `n`; `at_us` is when it arrived. True once every one has.
    pub(super) fn meet(
        &mut self,
        n: u64,
        due: UnixMillis,
        appended: UnixMillis,
        at_us: u64,
    ) -> bool {
        let met = usize::try_from(n).ok().and_then(|n| self.met.get_mut(n));
        match met {
            None => self.check.strangers += 1,
            Some(met) if *met => self.check.duplicates += 1,
            Some(met) => {
                *met = true;
                self.check.seen += 1;
                self.check.early += u64::from(appended < due);
                let late_us = at_us.saturating_sub(due.0 * 1_000);
                self.arrival.record(late_us);
                self.samples.add(at_us, late_us);
                self.append.record((appended - due).0 * 1_000);
                self.last_us = at_us;
            }
        }
        self.check.seen == self.check.expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let mut lateness = Lateness::new();
        assert_eq!(lateness.spread(), None);
        (1..=100).for_each(|ms| lateness.record(ms * 1_000));
        let spread = lateness.spread().unwrap();
        let near = |got: f64, want: f64| (got - want).abs() < want * 0.001;
        assert!(near(spread.p50, 50.0), "{spread:?}");
        assert!(near(spread.p90, 90.0), "{spread:?}");
        assert!(near(spread.p99, 99.0), "{spread:?}");
        assert!(near(spread.max, 100.0), "{spread:?}");
    }

    type Met = &'static [(u64, u64)];

    #[test]
    fn a_check_fails_for_anything_that_should_not_be() {
        let due = UnixMillis(1_000);
        #[rustfmt::skip]
        let cases: [(&str, Met, bool); 6] = [
            ("all once, in time",  &[(0, 1_000), (1, 1_001)],             true),
            ("in any order",       &[(1, 1_000), (0, 1_000)],             true),
            ("one is missing",     &[(0, 1_000)],                         false),
            ("one came twice",     &[(0, 1_000), (1, 1_000), (0, 1_000)], false),
            ("one was early",      &[(0, 999), (1, 1_000)],               false),
            ("one was never sent", &[(0, 1_000), (1, 1_000), (2, 1_000)], false),
        ];
        for (why, met, holds) in cases {
            let mut tally = Tally::new(2);
            for (n, appended) in met {
                tally.meet(*n, due, UnixMillis(*appended), appended * 1_000);
            }
            assert_eq!(tally.check.holds(), holds, "{why}: {:?}", tally.check);
        }
    }

    #[test]
    fn the_last_one_is_the_last_new_one() {
        let (mut tally, due) = (Tally::new(2), UnixMillis(1));
        assert!(!tally.meet(0, due, due, 2_000));
        assert!(tally.meet(1, due, due, 3_500));
        tally.meet(1, due, due, 9_000);
        assert_eq!(tally.last_us, 3_500);
    }
}
