//! The state of a take-over, for health and the log, while it holds its thread.

use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

/// A step that takes longer is told in the log.
const LONG: Duration = Duration::from_secs(1);
/// While it goes on, the log tells this often how far it is: each question of it may take half a minute.
const SAY_EVERY: Duration = Duration::from_secs(4);

/// Partitions that are being taken over.
#[derive(Clone, Copy, Debug)]
struct Taking {
    partitions: usize,
    since: Instant,
    step: &'static str,
    step_since: Instant,
}

/// The state of the take-over in progress, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<Option<Taking>>);

/// Ends what is told when the take-over does, however it ends.
pub(super) struct ProgressGuard<'a> {
    progress: &'a Progress,
    /// Ends the thread that writes to the log meanwhile.
    _going_on: Sender<()>,
}

impl Drop for ProgressGuard<'_> {
    fn drop(&mut self) {
        self.progress.turn("");
        self.progress.set(None);
    }
}

impl Progress {
    fn set(&self, taking: Option<Taking>) {
        *self.0.lock() = taking;
    }

    fn get(&self) -> Option<Taking> {
        *self.0.lock()
    }

    /// So many partitions are being taken over from now on.
    pub(super) fn begin(self: &Arc<Self>, partitions: usize) -> ProgressGuard<'_> {
        let now = Instant::now();
        tracing::info!(partitions, "taking lanes over");
        self.set(Some(Taking { partitions, since: now, step: "", step_since: now }));
        let (going_on, over) = bounded::<()>(0);
        let progress = Arc::clone(self);
        // The thread of the lanes is inside of a call all the time. Without this thread the lanes are taken over all the same.
        let saying = std::thread::Builder::new().name("wc-take-over".into()).spawn(move || {
            while over.recv_timeout(SAY_EVERY) == Err(RecvTimeoutError::Timeout) {
                progress.say();
            }
        });
        if let Err(error) = saying {
            tracing::debug!(%error, "no thread to say how far the take-over is");
        }
        ProgressGuard { progress: self, _going_on: going_on }
    }

    /// Says in the log how far it is.
    fn say(&self) {
        let Some(Taking { partitions, since, step, step_since }) = self.get() else { return };
        let (took, step_took) = (since.elapsed(), step_since.elapsed());
        tracing::info!(partitions, step, ?step_took, ?took, "still taking lanes over");
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
    /// The state of the take-over, for people; nothing while no lanes are taken over.
    pub(crate) fn text(&self) -> Option<String> {
        self.get().map(|taking| taking.to_string())
    }
}
