//! How fast a scope's turns end, and for how long one more of its tasks is put off.
//!
//! # Invariants
//! 1. The rate is what a scope can do, and not what it was asked to: time counts only while others of it wait for a credit. So a scope
//!    that had little to do for an hour is not taken for a slow one when a spike comes.
//! 2. A rate is used only after it was looked at for a while. Until then nothing is known, and a put-off is the shortest.

use super::super::{Millis, UnixMillis};
use super::{PUT_OFF_MAX, PUT_OFF_MIN, PUT_OFFS_PER_SECOND};

/// How long a rate is looked at before it is used, and until the next look begins.
const LOOK: (Millis, Millis) = (Millis(500), Millis(8_000));

/// How fast the turns of a scope end, while others wait.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Since when somebody waits, if so.
    since: Option<UnixMillis>,
    /// How long somebody has waited before that in this look.
    before: Millis,
    /// Turns that have ended in this look while somebody waited.
    ended: u64,
    /// What the last whole look has shown: turns in a thousand seconds.
    last: Option<u64>,
    /// Since when nothing has ended though somebody waits.
    silent: Option<UnixMillis>,
}

impl Pace {
    /// A task finds no credit.
    pub(super) fn denied(&mut self, now: UnixMillis) {
        self.since.get_or_insert(now);
        self.silent.get_or_insert(now);
    }

    /// A turn has ended. `waits`: whether others still wait in memory.
    pub(super) fn ended(&mut self, now: UnixMillis, waits: bool) {
        self.silent = None;
        let Some(since) = self.since else { return };
        self.ended += 1;
        let over = self.before + (now - since);
        if over >= LOOK.1 {
            self.last = Some(per_thousand_seconds(self.ended, over));
            (self.since, self.before, self.ended) = (Some(now), Millis(0), 0);
        }
        if !waits {
            self.before = self.before + self.since.map_or(Millis(0), |since| now - since);
            self.since = None;
        }
    }

    /// Turns that end in a thousand seconds, if that is known.
    pub(super) fn rate(&self, now: UnixMillis) -> Option<u64> {
        let over = self.before + self.since.map_or(Millis(0), |since| now - since);
        if over < LOOK.0 { self.last } else { Some(per_thousand_seconds(self.ended, over)) }
    }

    /// For how long one more task is put off, of so many that are overdue. `blocked`: since when none may go, if so.
    pub(super) fn put_off(
        &self,
        now: UnixMillis,
        overdue: u64,
        blocked: Option<UnixMillis>,
    ) -> Millis {
        let wait = match (blocked, self.rate(now).filter(|rate| *rate > 0)) {
            (Some(since), _) => (now - since).0 / 4,
            (None, Some(rate)) => overdue.saturating_mul(1_000_000) / (rate * 4),
            (None, None) => self.silent.map_or(0, |since| (now - since).0 / 4),
        };
        let least = PUT_OFF_MIN.0.max(overdue * 1_000 / PUT_OFFS_PER_SECOND);
        Millis(wait.max(least)).min(PUT_OFF_MAX)
    }
}

fn per_thousand_seconds(count: u64, over: Millis) -> u64 {
    count * 1_000_000 / over.0.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: UnixMillis = UnixMillis(1_000_000);

    /// So many turns end, one every `every`, while others wait.
    fn busy(pace: &mut Pace, from: UnixMillis, turns: u64, every: Millis) -> UnixMillis {
        pace.denied(from);
        (1..=turns).fold(from, |_, n| {
            let at = from + Millis(every.0 * n);
            pace.ended(at, true);
            at
        })
    }

    #[test]
    fn the_first_of_a_spike_are_put_off_for_the_shortest_time() {
        let mut pace = Pace::default();
        pace.denied(T0);
        assert_eq!(pace.put_off(T0, 1, None), Millis(1_000));
        // One turn has ended in a millisecond: that is no rate yet.
        pace.ended(T0 + Millis(1), true);
        assert_eq!(pace.rate(T0 + Millis(1)), None);
        assert_eq!(pace.put_off(T0 + Millis(1), 3_000, None), Millis(3_000));
    }

    #[test]
    fn an_idle_hour_makes_no_scope_slow() {
        let mut pace = Pace::default();
        // 20 turns in an hour, none of which waited.
        for n in 0..20 {
            pace.ended(T0 + Millis(n * 180_000), false);
        }
        let now = T0 + Millis(3_600_000);
        assert_eq!(pace.rate(now), None);
        pace.denied(now);
        assert_eq!(pace.put_off(now, 100, None), Millis(1_000));
        // Neither does one that comes after a busy time.
        let busy_until = busy(&mut pace, now, 10_000, Millis(1));
        pace.ended(busy_until, false);
        let later = busy_until + Millis(3_600_000);
        pace.denied(later);
        let rate = pace.rate(later).expect("known");
        assert!((900_000..=1_100_000).contains(&rate), "{rate}");
    }

    #[test]
    fn over_the_limit_the_wait_is_a_quarter_of_the_time_that_all_take() {
        let mut pace = Pace::default();
        // 10 turns a second for 20 s.
        let now = busy(&mut pace, T0, 200, Millis(100));
        let wait = pace.put_off(now, 4_000, None);
        assert!((95_000..=105_000).contains(&wait.0), "4,000 take 400 s, not four times {wait}");
    }

    #[test]
    fn a_blocked_scope_is_asked_again_after_a_quarter_of_that_time_and_at_a_bounded_rate() {
        let pace = Pace::default();
        let at = |after: u64, overdue| pace.put_off(T0 + Millis(after), overdue, Some(T0));
        assert_eq!(at(0, 1), Millis(1_000));
        assert_eq!(at(60_000, 1), Millis(15_000));
        assert_eq!(at(60_000, 100_000), Millis(100_000));
        assert_eq!(at(3_600_000, 1), PUT_OFF_MAX);
        assert_eq!(at(60_000, 10_000_000), PUT_OFF_MAX);
    }

    #[test]
    fn where_nothing_ends_the_wait_grows_with_the_silence() {
        let mut pace = Pace::default();
        pace.denied(T0);
        assert_eq!(pace.put_off(T0 + Millis(40_000), 1, None), Millis(10_000));
        pace.ended(T0 + Millis(40_000), true);
        pace.denied(T0 + Millis(40_001));
        let wait = pace.put_off(T0 + Millis(40_001), 1, None);
        assert_eq!(wait, Millis(10_000), "one in 40 s: a quarter of what the next takes");
    }
}
