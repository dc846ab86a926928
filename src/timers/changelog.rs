//! Follows `<ns>.timers`: keeps the index up with it, and tells lane threads which timers hold when they take lanes
//! over.
//!
//! One thread, and it alone writes to the index. The owner's own writes come back through the changelog. So the disk is
//! never ahead of the committed state (ADR 0008). Lanes come up one by one. Each is read to where its changelog ended
//! when it was taken over. Then its timers are reported, piece by piece, whatever the other lanes do.
//!
//! # Invariants
//! 1. A lane's timers cover everything before the end that was asked for after its committed offsets were fetched: what
//!    the index had, if it is believed, and what the changelog has from there to the end.
//! 2. They are reported once for each assignment, and name it. A lane thread that has another assignment by then drops
//!    them.
//! 3. A broken index is started again, a few times. An index whose disk is full is given up until the next start.
//! 4. No lane thread waits for it until the last one ends, which waits a moment until the index is closed; it waits for
//!    no lane thread. It joins no group and commits nothing.

mod following;
mod holding;
mod indexing;
mod progress;
mod upkeep;
mod work;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::timers::{Forgettable, TimerId};
use crate::engine::{Lane, Millis, Offset, UnixMillis};
use crate::kafka::end_offsets::EndOffsets;
use crate::kafka::member::AssignmentEvent;
use crate::kafka::{BrokerClock, Connection, Isolation, KafkaError, TopicReader, Written};
use crate::timers::index::{self, Index};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use following::Loading;
pub use indexing::Indexing;
pub(super) use progress::{Progress, Reach};
use work::IndexThread;

/// How readers of the changelog are named in the brokers' logs.
const CLIENT: &str = "waterclock-timers";
/// How long a broker holds a fetch for which there is nothing: an idle follower costs next to nothing, and a record
/// ends the wait at once.
const WAIT: Duration = Duration::from_secs(1);
/// How long the end of a process waits until the index is closed. What is not on the disk by then is read from the
/// changelog again.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// How far the thread steps back: a tenth of what others get when all want more than there is.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

#[derive(Debug)]
enum Request {
    /// Tell what holds of these lanes; each with where its changelog ended when it was taken over.
    Begin { assignment: u64, lanes: Vec<(Lane, Offset)>, to: Sender<AssignmentEvent> },
    /// The lanes of this assignment are another's.
    Release { assignment: u64 },
    /// Tell which timers of the lane may be forgotten.
    ListExpired { assignment: u64, lane: Lane, what: Forgettable, to: Sender<AssignmentEvent> },
    /// Tell how these timers of the lane ended.
    Recall { assignment: u64, lane: Lane, timers: Vec<TimerId>, to: Sender<AssignmentEvent> },
    /// Tell which pending timers of the lane were due before a time, by what the index has.
    Overdue { assignment: u64, of: Overdue, to: Sender<AssignmentEvent> },
    /// Close the index, and end.
    Close,
}

/// A lane, a time, and where the listing of what was due before it goes on.
pub(super) type Overdue = (Lane, UnixMillis, Option<index::After>);

/// Handle on the following thread. When it is dropped the thread closes the index and ends; the drop waits for that, at
/// most [`CLOSE_MAX`].
#[derive(Debug)]
pub(super) struct Follower {
    requests: Sender<Request>,
    /// Disconnected once the thread has ended.
    ended: Receiver<Infallible>,
    written: Arc<Written>,
    progress: Arc<Progress>,
    reader: Option<index::Reader>,
}

/// What a follower is made from.
pub(super) struct Plan {
    pub(super) connection: Connection,
    /// The changelog.
    pub(super) topic: Arc<str>,
    pub(super) lanes: u16,
    pub(super) indexing: Option<Indexing>,
    pub(super) clock: Arc<BrokerClock>,
    pub(super) ends: EndOffsets,
    pub(super) written: Arc<Written>,
}

impl Follower {
    /// Starts the thread.
    ///
    /// # Errors
    /// librdkafka refused its settings, or there is no thread.
    pub(super) fn start(plan: Plan) -> Result<Self, KafkaError> {
        let Plan { connection, topic, lanes, indexing, clock, ends, written } = plan;
        let progress = Arc::new(Progress::new(lanes));
        let (index, tombstones) =
            indexing.map_or((None, Millis(0)), |of| (Some(of.index), of.tombstones));
        if index.is_none() {
            progress.give_up();
        }
        let reader = index.as_ref().map(Index::reader);
        let consumer = TopicReader::new(&connection, CLIENT, Isolation::Committed, WAIT)?;
        let (requests, receiver) = crossbeam_channel::unbounded();
        let work = IndexThread {
            index,
            connection,
            consumer,
            topic,
            tombstones,
            clock,
            ends,
            written: Arc::clone(&written),
            listing: None,
            lanes: BTreeMap::new(),
            progress: Arc::clone(&progress),
            is_moved: false,
            renewals: 0,
            look: Instant::now(),
            loading: Loading::new(),
        };
        let (running, ended) = crossbeam_channel::bounded(0);
        std::thread::Builder::new()
            .name("wc-index".into())
            .spawn(move || {
                step_back();
                work.run(&receiver);
                drop(running);
            })
            .map_err(|_| KafkaError::Canceled)?;
        Ok(Self { requests, ended, written, progress, reader })
    }

    /// Has a lane thread told what holds of these lanes, each of which has its changelog's end with it.
    pub(super) fn begin(
        &self,
        assignment: u64,
        lanes: Vec<(Lane, Offset)>,
        to: &Sender<AssignmentEvent>,
    ) {
        for (lane, end) in &lanes {
            self.written.begin(*lane, *end);
        }
        let _ = self.requests.send(Request::Begin { assignment, lanes, to: to.clone() });
    }

    /// The lanes of this assignment are another's from now on, or are to be told again.
    pub(super) fn release(&self, assignment: u64) {
        let _ = self.requests.send(Request::Release { assignment });
    }

    /// Has a lane thread told which timers of a lane may be forgotten, in all that is committed by now.
    pub(super) fn list_expired(
        &self,
        assignment: u64,
        lane: Lane,
        what: Forgettable,
        to: &Sender<AssignmentEvent>,
    ) {
        let _ = self.requests.send(Request::ListExpired { assignment, lane, what, to: to.clone() });
    }

    /// Has a lane thread told how timers of a lane ended, by all that is committed by now.
    pub(super) fn recall(
        &self,
        assignment: u64,
        lane: Lane,
        timers: Vec<TimerId>,
        to: &Sender<AssignmentEvent>,
    ) {
        let _ = self.requests.send(Request::Recall { assignment, lane, timers, to: to.clone() });
    }

    /// Has a lane thread told which pending timers of a lane were due before a time.
    pub(super) fn overdue(&self, assignment: u64, of: Overdue, to: &Sender<AssignmentEvent>) {
        let _ = self.requests.send(Request::Overdue { assignment, of, to: to.clone() });
    }

    /// For look-ups of timers; `None`: this run has no index.
    pub(super) fn reader(&self) -> Option<&index::Reader> {
        self.reader.as_ref()
    }

    /// How far each lane's index is.
    pub(super) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.requests.send(Request::Close);
        if let Err(RecvTimeoutError::Timeout) = self.ended.recv_timeout(CLOSE_MAX) {
            tracing::warn!(
                "index not closed in time; it reads the changelog again at the next start"
            );
        }
    }
}

/// Where processor time is scarce, leaves it to the threads that decide and deliver. Only queries wait for the index,
/// and a spike of timers is twice as many changes of it. The threads that this one starts (the store's own) step back
/// with it.
fn step_back() {
    // Elsewhere it is a process that is nice, and not a thread.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(NICE) {
        tracing::debug!(%error, "could not lower the priority of the index thread");
    }
}
