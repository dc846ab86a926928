//! How far a take-over is, as health and the log tell it while it holds its thread.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A step that takes longer is told in the log.
const LONG: Duration = Duration::from_secs(1);

/// Partitions that are being taken over.
#[derive(Clone, Copy, Debug)]
struct Taking {
    partitions: usize,
    since: Instant,
    step: &'static str,
    step_since: Instant,
}

/// What is known of the take-over that is going on, if one is.
#[derive(Debug, Default)]
pub(in crate::kafka) struct Progress(Mutex<Option<Taking>>);

/// Ends what is told when the take-over does, however it ends.
pub(super) struct Told<'a>(&'a Progress);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.turn("");
        self.0.set(None);
    }
}

impl Progress {
    fn set(&self, taking: Option<Taking>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = taking;
    }

    fn get(&self) -> Option<Taking> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many partitions are being taken over from now on.
    pub(super) fn begin(&self, partitions: usize) -> Told<'_> {
        let now = Instant::now();
        tracing::info!(partitions, "taking lanes over");
        self.set(Some(Taking { partitions, since: now, step: "", step_since: now }));
        Told(self)
    }

    /// It has come to this step.
    pub(super) fn turn(&self, step: &'static str) {
        let Some(taking) = self.get() else { return };
        let took = taking.step_since.elapsed();
        if took >= LONG {
            tracing::info!(step = taking.step, ?took, "a step of taking lanes over took long");
        }
        self.set(Some(Taking { step, step_since: Instant::now(), ..taking }));
    }
}

impl fmt::Display for Taking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { partitions, since, step, .. } = self;
        let seconds = since.elapsed().as_secs();
        write!(f, "takes {partitions} partitions over, for {seconds} s by now: {step}")
    }
}

impl Progress {
    /// What is going on, for people; nothing while no lanes are taken over.
    pub(in crate::kafka) fn text(&self) -> Option<String> {
        self.get().map(|taking| taking.to_string())
    }
}
