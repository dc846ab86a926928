//! What is asked of the brokers now and then, off the hot path: deletes what is done, looks at the topics, counts the backlog.
//!
//! Each need has a tick of its own. One thread takes turns, by the one client for questions.
//!
//! # Invariants
//! 1. Nobody waits for this thread: a broker that is silent delays all three needs, and nothing else.
//! 2. No question stays with a broker for long: Kafka answers the requests of a connection one after the other, and others
//!    ask by the same client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crossbeam_channel::{RecvTimeoutError, Sender};
use rdkafka::error::KafkaError;

use super::backlog::Count;
use super::delete_records::{Deletes, Lows};
use super::topic_monitor::Look;

/// The thread; stops when dropped.
#[derive(Debug)]
pub(crate) struct Upkeep {
    stop: Arc<AtomicBool>,
    wake: Sender<Lows>,
}

/// What is to be done.
pub(crate) struct Needs {
    pub(crate) deletes: Deletes,
    pub(crate) look: Option<Look>,
    pub(crate) count: Option<Count>,
}

impl Upkeep {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub(crate) fn start(needs: Needs) -> Result<Self, KafkaError> {
        let stop = Arc::new(AtomicBool::new(false));
        let wake = needs.deletes.sender();
        let stopped = Arc::clone(&stop);
        std::thread::Builder::new()
            .name("wc-upkeep".into())
            .spawn(move || run(needs, &stopped))
            .map_err(|_| KafkaError::Canceled)?;
        Ok(Self { stop, wake })
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Where there is no room the thread is awake. Not waited for: with the brokers away it may be asking still.
        let _ = self.wake.try_send(Lows::new());
    }
}

fn run(mut needs: Needs, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let looks = needs.look.as_ref().map(Look::due);
        let counts = needs.count.as_ref().map(Count::due);
        let order = match looks.into_iter().chain(counts).min() {
            Some(due) => needs.deletes.next(due),
            None => needs.deletes.next_of_all(),
        };
        match order {
            Ok(lows) => needs.deletes.delete(&lows),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let is_due = |due: Instant| due <= Instant::now() && !stop.load(Ordering::Relaxed);
        if let Some(look) = needs.look.as_mut().filter(|look| is_due(look.due())) {
            look.tick();
        }
        if let Some(count) = needs.count.as_mut().filter(|count| is_due(count.due())) {
            count.tick(stop);
        }
    }
    if let Some(count) = &mut needs.count {
        count.end();
    }
}
