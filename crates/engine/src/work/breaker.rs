//! The circuit breaker of one scope in one partition: where nothing answers, tasks go back to their lane and burn no attempt.
//!
//! # Invariants
//! 1. It opens after [`FAILURES`] failures in a row, for a second; each failed probe doubles that, up to a minute.
//! 2. While it is half open, one call is out: the probe.
//!
//! A failure here says that the other side is away or overloaded: no connection, no answer in time, 429, 502 to 504.

use crate::Millis;

/// So many in a row open it.
const FAILURES: u32 = 10;
/// How long it is open at first.
const OPEN: Millis = Millis(1_000);
/// How long it is open at most.
const OPEN_MAX: Millis = Millis(60_000);
/// After so long without a failure one is forgotten. Longer than it may be open.
const FORGOTTEN: Millis = Millis(120_000);

/// What a breaker says of the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// It may begin.
    Closed,
    /// It may begin, as the only one.
    Probe,
    /// A probe is out: the call waits for what becomes of it.
    Probing,
    /// No call before then.
    Open(Millis),
}

/// A breaker.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Breaker {
    /// Failures in a row.
    failures: u32,
    /// Until when it is open, and for how long it was opened.
    open: Option<(Millis, Millis)>,
    /// A probe is out.
    is_probing: bool,
    /// When it last failed.
    failed: Millis,
}

impl Breaker {
    /// Whether a call may begin now.
    pub(super) fn gate(&self, now: Millis) -> Gate {
        match self.open {
            None => Gate::Closed,
            Some((until, _)) if now < until => Gate::Open(until),
            Some(_) if self.is_probing => Gate::Probing,
            Some(_) => Gate::Probe,
        }
    }

    /// A call begins that [`gate`](Self::gate) let through.
    pub(super) fn begin(&mut self) {
        self.is_probing = self.open.is_some();
    }

    /// A call has ended; `is_away`: it was such a failure.
    pub(super) fn end(&mut self, now: Millis, is_away: bool) {
        let was_probing = std::mem::take(&mut self.is_probing);
        if !is_away {
            *self = Self::default();
            return;
        }
        self.failures = self.failures.saturating_add(1);
        self.failed = now;
        match self.open {
            // One that had begun before it opened says nothing new.
            Some((until, _)) if now < until || !was_probing => {}
            Some((_, long)) => {
                let long = Millis((long.0 * 2).min(OPEN_MAX.0));
                self.open = Some((now + long, long));
            }
            None if self.failures >= FAILURES => self.open = Some((now + OPEN, OPEN)),
            None => {}
        }
    }

    /// Whether it says what a new one would: no failure, or none for a long time.
    pub(super) fn is_at_rest(&self, now: Millis) -> bool {
        self.failures == 0 || now.saturating_sub(self.failed) > FORGOTTEN
    }

    /// A call was cut: nobody knows how it would have ended.
    pub(super) fn forget(&mut self) {
        self.is_probing = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(breaker: &mut Breaker, now: Millis, times: u32) {
        for _ in 0..times {
            breaker.begin();
            breaker.end(now, true);
        }
    }

    #[test]
    fn ten_failures_in_a_row_open_it_and_one_that_is_none_begins_again() {
        let mut breaker = Breaker::default();
        failed(&mut breaker, Millis(0), 9);
        breaker.end(Millis(0), false);
        failed(&mut breaker, Millis(0), 9);
        assert_eq!(breaker.gate(Millis(0)), Gate::Closed);
        failed(&mut breaker, Millis(0), 1);
        assert_eq!(breaker.gate(Millis(0)), Gate::Open(Millis(1_000)));
    }

    #[test]
    fn each_failed_probe_doubles_it_up_to_a_minute() {
        let mut breaker = Breaker::default();
        failed(&mut breaker, Millis(0), FAILURES);
        let (mut now, mut long) = (Millis(0), 1_000);
        for _ in 0..8 {
            now = now + Millis(long);
            assert_eq!(breaker.gate(now), Gate::Probe);
            breaker.begin();
            assert_eq!(breaker.gate(now), Gate::Probing);
            breaker.end(now, true);
            long = (long * 2).min(60_000);
            assert_eq!(breaker.gate(now), Gate::Open(now + Millis(long)));
        }
        now = now + Millis(long);
        breaker.begin();
        breaker.end(now, false);
        assert_eq!(breaker.gate(now), Gate::Closed);
    }

    #[test]
    fn calls_that_had_begun_before_it_opened_do_not_open_it_for_longer() {
        let mut breaker = Breaker::default();
        failed(&mut breaker, Millis(0), FAILURES);
        breaker.end(Millis(900), true);
        breaker.end(Millis(1_100), true);
        assert_eq!(breaker.gate(Millis(1_100)), Gate::Probe);
    }

    #[test]
    fn a_probe_that_was_cut_is_followed_by_another() {
        let mut breaker = Breaker::default();
        failed(&mut breaker, Millis(0), FAILURES);
        breaker.begin();
        breaker.forget();
        assert_eq!(breaker.gate(Millis(1_000)), Gate::Probe);
    }
}
