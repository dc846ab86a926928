//! Notices when this machine's wall clock is set, and wakes the threads that wait by it.
//!
//! No due time is kept by this clock (`clock`). But librdkafka's waits end at a wall-clock time (librdkafka 2145): when
//! the clock is set back by an hour, a wait of 100 ms takes an hour, unless something wakes it. A wait that began after
//! the step is right again. So waiting clients are woken at each step.
//!
//! # Invariants
//! 1. The thread that looks waits by the monotonic clock, and for nothing of librdkafka's.
//! 2. A registered client is alive: it is taken off the list before it goes.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;

use crate::client::events::{Events, Task, Turns};
use crate::client::raw::Waker;
use crate::client::wall_clock_us;
use waterclock_telemetry as telemetry;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(100);
/// A difference that is a step: slewing is 500 ppm at most, and reading the clocks takes less.
const STEP_US: u64 = 50_000;
/// Both clocks are read within this long, or read again.
const READ_MAX: Duration = Duration::from_millis(2);
/// A clock that is set all the time is told of this often.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// The clients that wait, and how often the clock was set.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    count: AtomicU64,
    wakers: Mutex<(u64, BTreeMap<u64, Waker>)>,
}

/// Takes its waker off the list when it is dropped, which must be before the client is.
#[derive(Debug)]
pub(crate) struct Waits {
    steps: Arc<Steps>,
    id: u64,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.steps.wakers.lock().1.remove(&self.id);
    }
}

impl Steps {
    /// Has a client woken at each step, as long as the answer lives.
    pub(crate) fn wake(self: &Arc<Self>, waker: Waker) -> Waits {
        let mut wakers = self.wakers.lock();
        wakers.0 += 1;
        let id = wakers.0;
        wakers.1.insert(id, waker);
        Waits { steps: Arc::clone(self), id }
    }

    /// How often the clock was seen to be set.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn stepped(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        telemetry::local_clock_stepped();
        let wakers = self.wakers.lock();
        wakers.1.values().for_each(Waker::wake);
    }
}

/// Looks at the clocks; stops when dropped.
#[derive(Debug)]
pub(crate) struct Looking(
    #[expect(dead_code, reason = "it looks for as long as this lives")] Turns,
);

impl Looking {
    /// Begins to look, on this thread.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn start(steps: Arc<Steps>, events: &Events) -> Result<Self, KafkaError> {
        let look = Look { steps, before: read(), said: None };
        Ok(Self(events.add(EVERY, look)?))
    }
}

struct Look {
    steps: Arc<Steps>,
    /// The clocks at the last look.
    before: (u64, Instant),
    /// When a step was last logged.
    said: Option<Instant>,
}

impl Task for Look {
    fn turn(&mut self) -> bool {
        // The thread has other reasons to wake.
        if self.before.1.elapsed() < EVERY {
            return false;
        }
        let now = read();
        let step_us = step_us(self.before, now);
        self.before = now;
        if step_us.unsigned_abs() < STEP_US {
            return false;
        }
        self.steps.stepped();
        if self.said.is_none_or(|at| at.elapsed() > SAY_EVERY) {
            self.said = Some(Instant::now());
            tracing::warn!(
                by_ms = step_us / 1_000,
                "this machine's clock was set; no due time is kept by it. Have it slewed (chrony, ntpd -x)"
            );
        }
        false
    }
}

/// Both clocks, at the same time.
fn read() -> (u64, Instant) {
    loop {
        let before = Instant::now();
        let wall = wall_clock_us();
        if before.elapsed() < READ_MAX {
            return (wall, before);
        }
    }
}

/// By how much the wall clock went ahead of the monotonic one. Pure.
fn step_us(before: (u64, Instant), now: (u64, Instant)) -> i64 {
    let monotonic = now.1.saturating_duration_since(before.1).as_micros() as i64;
    now.0.cast_signed() - before.0.cast_signed() - monotonic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_what_the_wall_clock_did_and_time_did_not() {
        let (start, wall) = (Instant::now(), 1_800_000_000_000_000);
        let later = start + Duration::from_millis(100);
        #[rustfmt::skip]
        let table = [
            (100_000_i64,       0,              "both went on"),
            (100_050,           50,             "slewed, at the most that NTP does"),
            (600_000,           500_000,        "half a second forward"),
            (-400_000,          -500_000,       "and back"),
            (-3_599_900_000,    -3_600_000_000, "an hour back"),
        ];
        for (wall_went, want, why) in table {
            let now = ((wall + wall_went).cast_unsigned(), later);
            assert_eq!(step_us((wall.cast_unsigned(), start), now), want, "{why}");
        }
    }
}
