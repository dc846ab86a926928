//! Whether somebody wants a tool to end: by a signal, or by a key where the terminal makes keys of signals.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::signal::unix::{SignalKind, signal};

/// How many times somebody asked for the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Counts SIGINT and SIGTERM from now on, which end the process no more by themselves.
    ///
    /// # Errors
    /// The system gives no thread, or no signals.
    pub(crate) fn listen() -> io::Result<Self> {
        let stop = Self::default();
        let asked = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let entered = runtime.enter();
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        drop(entered);
        std::thread::Builder::new().name("wc-tool-signals".into()).spawn(move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                    }
                    asked.ask();
                }
            });
        })?;
        Ok(stop)
    }

    /// Once more.
    pub(crate) fn ask(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether to end.
    pub(crate) fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Whether to end without waiting for what is due soon.
    pub(crate) fn insisted(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 1
    }
}
