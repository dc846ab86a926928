//! What is asked of the brokers now and then, off the hot path: deletes what is done, looks at the topics, counts the backlog.
//!
//! Each need has a tick of its own. One thread takes turns, by the one client for questions. It runs while there is anything to
//! do; a task of the process's thread for events looks whether there is, and starts it.
//!
//! # Invariants
//! 1. Nobody waits for this thread: a broker that is silent delays all three needs, and nothing else.
//! 2. One thread at most runs at a time.
//! 3. No question stays with a broker for long: Kafka answers the requests of a connection one after the other, and others
//!    ask by the same client.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;

use super::backlog::Count;
use super::delete_records::Deletes;
use super::topic_monitor::Look;
use crate::client::events::{Events, Task, Turns};

/// Between two looks whether there is anything to do.
const EVERY: Duration = Duration::from_millis(100);
/// Longest wait for a thread that is about to end.
const END_MAX: Duration = Duration::from_millis(10);

/// Does it; stops when dropped.
#[derive(Debug)]
pub(crate) struct Upkeep {
    work: Arc<UpkeepState>,
    _turns: Turns,
}

struct UpkeepState {
    needs: Mutex<Needs>,
    is_running: AtomicBool,
    stop: AtomicBool,
}

impl std::fmt::Debug for UpkeepState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpkeepState").field("is_running", &self.is_running).finish_non_exhaustive()
    }
}

/// What is to be done.
pub(crate) struct Needs {
    pub(crate) deletes: Deletes,
    pub(crate) look: Option<Look>,
    pub(crate) count: Option<Count>,
}

impl Upkeep {
    /// Begins to look whether there is anything to do, on the thread of `events`.
    ///
    /// # Errors
    /// There is no such thread.
    pub(crate) fn start(needs: Needs, events: &Events) -> Result<Self, KafkaError> {
        let work = Arc::new(UpkeepState {
            needs: Mutex::new(needs),
            is_running: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let turns = events.add(EVERY, Starter(Arc::clone(&work)))?;
        Ok(Self { work, _turns: turns })
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.work.stop.store(true, Ordering::Relaxed);
        // A thread that runs is not waited for: with the brokers away it may be asking still. It ends by itself.
        if let Some(mut needs) = self.work.needs.try_lock_for(END_MAX) {
            needs.end();
        }
    }
}

/// Starts the thread when there is anything to do.
struct Starter(Arc<UpkeepState>);

impl Task for Starter {
    fn turn(&mut self) -> bool {
        let work = &self.0;
        if work.is_running.load(Ordering::Acquire) || work.stop.load(Ordering::Relaxed) {
            return false;
        }
        if work.needs.try_lock().is_none_or(|needs| !needs.are_due()) {
            return false;
        }
        work.is_running.store(true, Ordering::Release);
        let works = Arc::clone(work);
        let thread = std::thread::Builder::new().name("wc-upkeep".into());
        if let Err(error) = thread.spawn(move || works.run()) {
            tracing::debug!(%error, "no thread for the upkeep");
            work.is_running.store(false, Ordering::Release);
        }
        false
    }
}

impl UpkeepState {
    fn run(&self) {
        let mut needs = self.needs.lock();
        while !self.stop.load(Ordering::Relaxed) && needs.are_due() {
            needs.turn(&self.stop);
        }
        if self.stop.load(Ordering::Relaxed) {
            needs.end();
        }
        drop(needs);
        self.is_running.store(false, Ordering::Release);
    }
}

impl Needs {
    fn are_due(&self) -> bool {
        let looks = self.look.as_ref().map(Look::due);
        let counts = self.count.as_ref().map(Count::due);
        let now = Instant::now();
        self.deletes.is_asked() || looks.into_iter().chain(counts).any(|due| due <= now)
    }

    fn turn(&mut self, stop: &AtomicBool) {
        if let Some(lows) = self.deletes.next() {
            self.deletes.delete(&lows);
        }
        let is_due = |due: Instant| due <= Instant::now() && !stop.load(Ordering::Relaxed);
        if let Some(look) = self.look.as_mut().filter(|look| is_due(look.due())) {
            look.tick();
        }
        if let Some(count) = self.count.as_mut().filter(|count| is_due(count.due())) {
            count.tick(stop);
        }
    }

    fn end(&mut self) {
        if let Some(count) = &mut self.count {
            count.end();
        }
    }
}
