//! What the threads of a process do, as it announces it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::meta::Load;

/// A rate covers at least so long: lanes that move make announcements that follow each other fast.
const RATE_MIN: Duration = Duration::from_secs(5);

/// What all threads of a process count.
#[derive(Debug, Default)]
pub(crate) struct Work {
    done: AtomicU64,
    open_calls: AtomicU64,
}

impl Work {
    /// So many records more were delivered, or calls finished, and that is committed.
    pub(crate) fn done(&self, count: usize) {
        self.done.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// So many calls are open.
    pub(crate) fn calls(&self, open: usize) {
        self.open_calls.store(open as u64, Ordering::Relaxed);
    }
}

/// Makes a rate of what is counted.
#[derive(Debug)]
pub(crate) struct Meter {
    work: Arc<Work>,
    /// What was done by when, as the last rate has it.
    before: (u64, Instant),
    per_second: u64,
}

impl Meter {
    pub(crate) fn new(work: Arc<Work>) -> Self {
        let done = work.done.load(Ordering::Relaxed);
        Self { work, before: (done, Instant::now()), per_second: 0 }
    }

    /// What is open, and how much was done a second since the rate before.
    pub(crate) fn read(&mut self, now: Instant) -> Load {
        let (before, at) = self.before;
        let passed = now.saturating_duration_since(at);
        if passed >= RATE_MIN {
            let done = self.work.done.load(Ordering::Relaxed);
            self.before = (done, now);
            self.per_second = ((done - before) as f64 / passed.as_secs_f64()).round() as u64;
        }
        let open_calls = self.work.open_calls.load(Ordering::Relaxed);
        Load { open_calls, per_second: self.per_second, ..Load::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_covers_what_was_done_since_the_one_before_and_no_moment() {
        let work = Arc::new(Work::default());
        let mut meter = Meter::new(Arc::clone(&work));
        let start = meter.before.1;
        let mut read = |seconds: u64| {
            let load = meter.read(start + Duration::from_secs(seconds));
            (load.per_second, load.open_calls)
        };
        work.done(300);
        work.calls(2);
        assert_eq!(read(1), (0, 2), "too soon");
        assert_eq!(read(30), (10, 2));
        work.done(1_000);
        work.calls(0);
        assert_eq!(read(31), (10, 0), "the one before holds");
        assert_eq!(read(40), (100, 0));
        assert_eq!(read(70), (0, 0));
    }
}
