//! Whether somebody wants a command to end: by a signal, or by a key where the terminal makes keys of signals.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

/// Signals that come within this time are one: `timeout` signals its child and then its group, and a terminal that closes
/// may send SIGHUP twice.
pub const ONE_SIGNAL: Duration = Duration::from_millis(500);

/// How many times somebody asked for the end.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Counts SIGINT, SIGTERM and SIGHUP from now on, which end the process no more by themselves. A SIGHUP that is ignored
    /// (as below `nohup`) stays ignored. `insisted` is called at every signal after the first.
    ///
    /// # Errors
    /// The system gives no thread, or no signals.
    pub fn listen(insisted: impl Fn() + Send + 'static) -> io::Result<Self> {
        let stop = Self::default();
        let asked = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let entered = runtime.enter();
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let mut hangup = (!ignores_hangup()).then(|| signal(SignalKind::hangup())).transpose()?;
        drop(entered);
        std::thread::Builder::new().name("wc-stop-signals".into()).spawn(move || {
            runtime.block_on(async {
                let mut counted = None;
                loop {
                    let closed = async {
                        match &mut hangup {
                            Some(hangup) => hangup.recv().await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                        _ = closed => {}
                    }
                    if !is_another(&mut counted, Instant::now()) {
                        continue;
                    }
                    asked.ask();
                    if asked.insisted() {
                        insisted();
                    }
                }
            });
        })?;
        Ok(stop)
    }

    /// Once more.
    pub fn ask(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether to end.
    #[must_use]
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Whether to end without waiting for what is due soon.
    #[must_use]
    pub fn insisted(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 1
    }
}

/// Whether a signal is another one than that which was counted last, which it then is.
fn is_another(counted: &mut Option<Instant>, now: Instant) -> bool {
    let is_another = counted.is_none_or(|at| now.saturating_duration_since(at) >= ONE_SIGNAL);
    if is_another {
        *counted = Some(now);
    }
    is_another
}

/// Whether this process ignores SIGHUP. Only Linux says so; elsewhere it is taken for ignored, and left as it is.
fn ignores_hangup() -> bool {
    std::fs::read_to_string("/proc/self/status").map_or(true, |status| is_hangup_among(&status))
}

/// Whether SIGHUP, which is signal 1, is among those that the text of `/proc/PID/status` says are ignored.
fn is_hangup_among(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_none_or(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_come_at_once_are_one() {
        let (mut counted, first) = (None, Instant::now());
        for (ms, want) in [(0, true), (3, false), (499, false), (500, true), (700, false)] {
            let at = first + Duration::from_millis(ms);
            assert_eq!(is_another(&mut counted, at), want, "{ms} ms");
        }
    }

    #[test]
    fn a_hangup_that_is_ignored_is_told_from_one_that_is_not() {
        for (status, want) in [
            ("Name:\twc\nSigIgn:\t0000000000001001\n", true),
            ("SigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n", false),
            ("Name:\twc\n", true),
        ] {
            assert_eq!(is_hangup_among(status), want, "{status:?}");
        }
    }
}
