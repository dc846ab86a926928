//! Until when a turn is known to be an executor's. No clock in here: it is told what time it is.

use std::time::{Duration, Instant};

/// No period of a task is longer; so no time is out of range.
const LENGTH_MAX: Duration = Duration::from_secs(366 * 86_400);

/// A turn is ours for this long after the last heartbeat was sent that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    length: Duration,
    /// `None`: the turn was reported, and time does not count any more.
    until: Option<Instant>,
}

impl Lease {
    /// The first heartbeat that was answered was sent then.
    pub(super) fn new(sent: Instant, length: Duration) -> Self {
        let length = length.min(LENGTH_MAX);
        Self { length, until: Some(sent + length) }
    }

    /// A heartbeat that was sent then is answered now. An answer that comes too late brings nothing back.
    pub(super) fn renew(&mut self, sent: Instant, now: Instant) {
        if !self.is_over(now) {
            self.until = self.until.map(|until| until.max(sent + self.length));
        }
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    /// `None`: for ever.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(now))
    }

    /// The turn was reported: it does not end by time.
    pub(super) fn release(&mut self) {
        self.until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn a_turn_is_ours_from_when_the_heartbeat_was_sent() {
        let start = Instant::now();
        let mut lease = Lease::new(start, S(8));
        assert!(!lease.is_over(start + S(7)));
        assert_eq!(lease.left(start + S(3)), Some(S(5)));
        // Sent at 2, answered at 7: counted from 2.
        lease.renew(start + S(2), start + S(7));
        assert!(!lease.is_over(start + S(9)) && lease.is_over(start + S(10)));
        // An older one that is answered later takes nothing away.
        lease.renew(start + S(1), start + S(8));
        assert_eq!(lease.left(start + S(8)), Some(S(2)));
    }

    #[test]
    fn an_answer_behind_the_end_brings_nothing_back() {
        let start = Instant::now();
        let mut lease = Lease::new(start, S(8));
        // The process stood still from 7 to 30. The heartbeat that was under way is answered then.
        lease.renew(start + S(7), start + S(30));
        assert!(lease.is_over(start + S(30)));
        assert_eq!(lease.left(start + S(30)), Some(S(0)));
    }

    #[test]
    fn a_reported_turn_does_not_end_by_time() {
        let start = Instant::now();
        let mut lease = Lease::new(start, Duration::MAX);
        lease.release();
        lease.renew(start, start);
        assert!(!lease.is_over(start + LENGTH_MAX));
        assert_eq!(lease.left(start), None);
    }
}
