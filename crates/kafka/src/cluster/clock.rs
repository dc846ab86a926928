//! The brokers' time, from below.
//!
//! A due time is kept by the clock of the target partition's leader. So the member needs a *lower bound* of that clock:
//! the append time of an acknowledged produce plus the monotonic time since, less the possible drift of clocks. A small
//! probe to `<ns>.meta`, which has a leader on every broker, renews it. `now` is the least bound of all brokers, so it
//! is right for every source and target. A step of this machine's wall clock changes nothing.
//!
//! # Invariants
//! 1. `now` is not ahead of any known broker's clock, unless that clock was stepped back since the last probe.
//! 2. An append may show that a broker's clock went back. It replaces the bound at once, and is counted.
//! 3. A broker that is not probed has no bound until an append of ours shows that its clock is behind `now`. Then it
//!    has a bound from that append and those that follow it, for as long as there are any.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::client::wall_clock;
use waterclock_engine::UnixMillis;

/// What a clock may gain or lose on another: 500 ppm is the most that NTP slews by.
const DRIFT_PPM: u64 = 500;

/// How long the bound of a broker that is not probed is kept after its last append: by then it has lost 30 ms to drift.
const LEARNED_FOR: Duration = Duration::from_secs(60);

/// How long it counts that somebody wanted the time to the millisecond.
const WANTED_FOR: Duration = Duration::from_secs(3);

/// A broker's clock that differs from this machine's by more than this is told of: one of the two is wrong, and people who
/// write absolute times count on both.
const SKEW_MAX: Duration = Duration::from_millis(500);

fn is_skewed(ahead_ms: i64) -> bool {
    u128::from(ahead_ms.unsigned_abs()) > SKEW_MAX.as_millis()
}

/// A lower bound of one broker's clock.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// The broker's time of an append, in microseconds.
    appended_us: u64,
    /// When its acknowledgement was here.
    acked: Instant,
    /// It is known by a probe, and not by what else was appended alone.
    is_probed: bool,
}

impl Bound {
    fn at(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.acked).as_micros() as u64;
        self.appended_us + since - since * DRIFT_PPM / 1_000_000
    }
}

/// Lower bounds of every broker's clock.
#[derive(Debug, Default)]
pub struct BrokerClock {
    bounds: Mutex<BTreeMap<i32, Bound>>,
    /// How far each broker's clock is ahead of this machine's for certain, in milliseconds.
    skews: Mutex<BTreeMap<i32, i64>>,
    /// When the last acknowledgement came, of whichever broker.
    heard: Mutex<Option<Instant>>,
    /// When somebody last said that the time matters to the millisecond.
    wanted: Mutex<Option<Instant>>,
    /// A record came to stand before a time that its broker's clock was held to have reached.
    doubted: AtomicBool,
    /// Set in the embedded mode, where one process is everything: this machine's own clock.
    local: Option<(UnixMillis, Instant)>,
}

impl BrokerClock {
    /// A clock that knows no broker yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The clock of this machine, read once and advanced by monotonic time: for a broker inside the process.
    #[must_use]
    pub fn local() -> Self {
        Self { local: Some((wall_clock(), Instant::now())), ..Self::default() }
    }

    /// A name for one start of a process: later ones sort after earlier ones.
    #[must_use]
    pub fn incarnation() -> String {
        let wall = Self::local().now(Instant::now()).unwrap_or_default();
        format!("{:013}-{:08x}", wall.0, rand::random::<u32>())
    }

    /// Takes in an acknowledged probe. True when the broker's clock must have been stepped back.
    pub fn observe(
        &self,
        broker: i32,
        appended: UnixMillis,
        sent: Instant,
        acked: Instant,
    ) -> bool {
        self.take(broker, appended, (sent, acked), true)
    }

    /// Takes in another acknowledged append, of a broker that is not probed or whose clock it shows to be behind. True when
    /// that clock must have been stepped back.
    pub fn learn(&self, broker: i32, appended: UnixMillis, sent: Instant, acked: Instant) -> bool {
        self.take(broker, appended, (sent, acked), false)
    }

    fn take(
        &self,
        broker: i32,
        appended: UnixMillis,
        (sent, acked): (Instant, Instant),
        is_probed: bool,
    ) -> bool {
        *self.heard.lock() = Some(acked);
        let mut fresh = Bound { appended_us: appended.0 * 1_000, acked, is_probed };
        let mut bounds = self.bounds.lock();
        let Some(bound) = bounds.get_mut(&broker) else {
            bounds.insert(broker, fresh);
            return false;
        };
        fresh.is_probed |= bound.is_probed;
        bound.is_probed = fresh.is_probed;
        let known = bound.at(acked);
        let round_trip = acked.saturating_duration_since(sent).as_micros() as u64;
        // The append was after `sent`, so the clock is at most this far now; a millisecond was cut off.
        let most = fresh.appended_us + 1_000 + round_trip + round_trip * DRIFT_PPM / 1_000_000;
        let stepped_back = known > most;
        if stepped_back || fresh.appended_us >= known {
            *bound = fresh;
        }
        stepped_back
    }

    /// Notes how far a broker's clock is ahead of this machine's for certain, 0 within what a probe cannot tell. True when it
    /// is newly beyond half a second, or newly within it.
    pub fn note_skew(&self, broker: i32, ahead_ms: i64) -> bool {
        let mut skews = self.skews.lock();
        let before = skews.insert(broker, ahead_ms).unwrap_or_default();
        is_skewed(before) != is_skewed(ahead_ms)
    }

    /// Brokers whose clocks differ from this machine's by more than half a second, and by how many milliseconds they
    /// are ahead.
    pub fn skewed(&self) -> Vec<(i32, i64)> {
        let skews = self.skews.lock();
        skews.iter().map(|(id, ms)| (*id, *ms)).filter(|(_, ms)| is_skewed(*ms)).collect()
    }

    /// How long no broker has acknowledged anything; `None` before the first did. A broker inside the process is
    /// never silent.
    pub fn silence(&self, at: Instant) -> Option<Duration> {
        if self.local.is_some() {
            return Some(Duration::ZERO);
        }
        let heard = *self.heard.lock();
        heard.map(|heard| at.saturating_duration_since(heard))
    }

    /// Says that something falls due soon: for some seconds the bounds are renewed more often.
    pub fn want(&self) {
        *self.wanted.lock() = Some(Instant::now());
    }

    /// Whether somebody has said so within the last seconds.
    pub fn is_wanted(&self) -> bool {
        let wanted = self.wanted.lock();
        wanted.is_some_and(|at| at.elapsed() < WANTED_FOR)
    }

    /// Says that a clock is behind its bound, or that a broker leads whose clock nobody has asked.
    pub fn doubt(&self) {
        self.doubted.store(true, Ordering::Relaxed);
    }

    /// Whether somebody has said so since the last call.
    pub fn take_doubt(&self) -> bool {
        self.doubted.swap(false, Ordering::Relaxed)
    }

    /// Brokers that have a bound and are not probed.
    pub fn unprobed(&self) -> Vec<i32> {
        let bounds = self.bounds.lock();
        bounds.iter().filter(|(_, bound)| !bound.is_probed).map(|(broker, _)| *broker).collect()
    }

    /// Forgets brokers that are not among those that are probed, and of which nothing was heard for a while if they never were.
    pub fn keep(&self, brokers: &[i32], at: Instant) {
        let mut bounds = self.bounds.lock();
        bounds.retain(|broker, bound| {
            let is_fresh = at.saturating_duration_since(bound.acked) < LEARNED_FOR;
            brokers.contains(broker) || !bound.is_probed && is_fresh
        });
        let mut skews = self.skews.lock();
        skews.retain(|broker, _| brokers.contains(broker));
    }

    /// A time that no known broker's clock is behind; `None` before the first probe was answered.
    pub fn now(&self, at: Instant) -> Option<UnixMillis> {
        if let Some((wall, since)) = self.local {
            return Some(UnixMillis(
                wall.0 + at.saturating_duration_since(since).as_millis() as u64,
            ));
        }
        let bounds = self.bounds.lock();
        bounds.values().map(|bound| UnixMillis(bound.at(at) / 1_000)).min()
    }

    /// The same in microseconds since the Unix epoch, for measurements.
    pub fn now_us(&self, at: Instant) -> Option<u64> {
        if let Some((wall, since)) = self.local {
            return Some(wall.0 * 1_000 + at.saturating_duration_since(since).as_micros() as u64);
        }
        let bounds = self.bounds.lock();
        bounds.values().map(|bound| bound.at(at)).min()
    }

    /// How far each broker's bound is ahead of the least one: skew plus what the last probes took.
    pub fn offsets(&self, at: Instant) -> Vec<(i32, Duration)> {
        let bounds = self.bounds.lock();
        let least = bounds.values().map(|bound| bound.at(at)).min().unwrap_or_default();
        bounds.iter().map(|(id, b)| (*id, Duration::from_micros(b.at(at) - least))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn now_is_the_slowest_broker_and_never_ahead_of_an_append() {
        let (clock, start) = (BrokerClock::new(), Instant::now());
        assert_eq!(clock.now(start), None);
        clock.observe(1, UnixMillis(10_000), start, start + 2 * MS);
        clock.observe(2, UnixMillis(10_400), start, start + 2 * MS);
        assert_eq!(clock.now(start + 2 * MS), Some(UnixMillis(10_000)));
        // Ten seconds later it has lost 5 ms to the drift that clocks may have.
        assert_eq!(clock.now(start + 10_002 * MS), Some(UnixMillis(19_995)));
        assert_eq!(clock.silence(start + 10_002 * MS), Some(10_000 * MS));
        assert_eq!(BrokerClock::new().silence(start), None);
    }

    #[test]
    fn a_skew_is_told_when_it_comes_and_when_it_goes() {
        let clock = BrokerClock::new();
        let told = [0, 500, 501, 9_000, -700, 3, -501].map(|ms| clock.note_skew(1, ms));
        assert_eq!(told, [false, false, true, false, false, true, true]);
        assert_eq!(clock.skewed(), [(1, -501)]);
        clock.keep(&[2], Instant::now());
        assert!(clock.skewed().is_empty());
    }

    #[test]
    fn a_slow_probe_does_not_set_the_bound_back() {
        let (clock, start) = (BrokerClock::new(), Instant::now());
        clock.observe(1, UnixMillis(10_000), start, start + MS);
        // Appended at 10,100 and acknowledged 900 ms later: less than what is known already.
        assert!(!clock.observe(1, UnixMillis(10_100), start + 100 * MS, start + 1_000 * MS));
        assert_eq!(clock.now(start + 1_000 * MS), Some(UnixMillis(10_998)));
    }

    #[test]
    fn a_clock_that_was_stepped_back_takes_the_bound_with_it() {
        let (clock, start) = (BrokerClock::new(), Instant::now());
        clock.observe(1, UnixMillis(10_000), start, start + MS);
        assert!(clock.observe(1, UnixMillis(5_000), start + 1_000 * MS, start + 1_002 * MS));
        assert_eq!(clock.now(start + 1_002 * MS), Some(UnixMillis(5_000)));
    }

    #[test]
    fn a_broker_that_is_not_probed_is_known_by_its_appends_for_as_long_as_there_are_any() {
        let (clock, start) = (BrokerClock::new(), Instant::now());
        let at = |ms| start + ms * MS;
        clock.observe(1, UnixMillis(10_000), at(0), at(0));
        // Three seconds behind, as a delivery shows.
        assert!(!clock.learn(2, UnixMillis(7_000), at(0), at(0)));
        assert_eq!((clock.now(at(0)), clock.unprobed()), (Some(UnixMillis(7_000)), vec![2]));
        clock.keep(&[1], at(59_000));
        assert_eq!(clock.now(at(59_000)), Some(UnixMillis(65_970)));
        // The next delivery takes the drift back.
        assert!(!clock.learn(2, UnixMillis(66_001), at(58_999), at(59_000)));
        assert_eq!(clock.now(at(59_000)), Some(UnixMillis(66_001)));
        clock.keep(&[1], at(118_000));
        assert_eq!(clock.unprobed(), [2]);
        clock.keep(&[1], at(119_000));
        assert_eq!((clock.now(at(0)), clock.unprobed()), (Some(UnixMillis(10_000)), vec![]));
    }

    #[test]
    fn a_delivery_that_is_early_shows_that_a_clock_was_stepped_back_before_a_probe_does() {
        let (clock, start) = (BrokerClock::new(), Instant::now());
        clock.observe(1, UnixMillis(10_000), start, start);
        assert!(clock.learn(1, UnixMillis(9_050), start + 50 * MS, start + 60 * MS));
        assert_eq!(clock.now(start + 60 * MS), Some(UnixMillis(9_050)));
        assert!(clock.unprobed().is_empty(), "it is probed still");
    }
}
