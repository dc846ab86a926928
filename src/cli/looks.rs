//! Looks that a thread takes for a command that draws them, so that keys, signals and a terminal that goes are seen meanwhile.

use std::io;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::{Exit, Failure};

/// How long to wait at the end for what is being asked.
const ASKED_MAX: Duration = Duration::from_secs(1);
/// Between two checks whether a look is done or a signal came.
pub(super) const CHECK_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error("could not {0}")]
    System(&'static str, #[source] io::Error),
    #[error("the thread that asks the instances ended by a mistake")]
    Died,
}

/// What the system did not do for a command that draws.
pub(super) fn system(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::new(Exit::Internal, LookError::System(what, error))
}

/// A thread that takes a look each time that it is asked to.
pub(super) struct Looks<T> {
    wanted: mpsc::Sender<()>,
    taken: mpsc::Receiver<Result<T, Failure>>,
}

impl<T: Send + 'static> Looks<T> {
    /// Starts the thread. `take` takes a look.
    pub(super) fn start(
        name: &str,
        mut take: impl FnMut() -> Result<T, Failure> + Send + 'static,
    ) -> Result<Self, Failure> {
        let (wanted, asked) = mpsc::channel();
        let (give, taken) = mpsc::channel();
        let looking = move || {
            while let Ok(()) = asked.recv() {
                if give.send(take()).is_err() {
                    break;
                }
            }
        };
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(looking);
        started.map_err(system("start a thread"))?;
        Ok(Self { wanted, taken })
    }

    /// Asks for a look. If the thread has ended, [`Self::next`] says so.
    pub(super) fn ask(&self) {
        let _ = self.wanted.send(());
    }

    /// The look that was asked for, or why there is none; `None`: it is not done yet.
    pub(super) fn next(&self) -> Option<Result<T, Failure>> {
        match self.taken.try_recv() {
            Ok(look) => Some(look),
            Err(mpsc::TryRecvError::Empty) => None,
            Err(mpsc::TryRecvError::Disconnected) => {
                Some(Err(Failure::new(Exit::Internal, LookError::Died)))
            }
        }
    }

    /// Ends the thread. One that still waits for an answer is left to the end of the process.
    pub(super) fn end(self) {
        let Self { wanted, taken } = self;
        drop(wanted);
        let until = Instant::now() + ASKED_MAX;
        // It sends what it has taken, and ends then.
        while taken.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok() {}
    }
}
