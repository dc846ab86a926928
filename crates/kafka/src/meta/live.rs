//! Keeps what is read from `<ns>.meta` up to date: for the members, and for clients that live long.
//!
//! # Invariants
//! 1. When records were deleted before they were read, or the topic was deleted and created again, it reads the topic from its
//!    beginning. Until it has reached the end, the last state stays as it was.

use std::sync::Arc;
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::error::KafkaError;

use super::PARTITION;
use crate::client::outages::OutageWatch;
use crate::client::raw::bell::Bell;
use crate::client::topic_reader::{Consumed, Polled, StartAt};
use crate::client::{Connection, TopicReader};

/// Nothing came for this long: no instance runs, no broker answers, or this client has forgotten all brokers.
const SILENT: Duration = Duration::from_secs(10);

/// What follows from the records of `<ns>.meta`.
pub(super) trait MetaState: Default {
    /// Takes in the next record.
    fn take(&mut self, record: &Consumed<'_>);

    /// All records that the topic had when its leader last answered are taken in.
    fn reached_end(&mut self) {}

    /// Becomes what a reading from the topic's beginning has given.
    fn replace_by(&mut self, rebuilt: Self) {
        *self = rebuilt;
    }
}

/// Reads `<ns>.meta` into a state.
pub(super) struct LiveMeta<S> {
    reader: TopicReader,
    topic: String,
    state: Arc<Mutex<S>>,
    /// The state that takes the place of the other one at the topic's end.
    rebuilt: Option<S>,
    /// Where reading has to begin, as long as librdkafka has not accepted it.
    start: Option<StartAt>,
    /// When something was last read.
    last_read: Instant,
    outages: OutageWatch,
}

/// What one poll brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// There may be more at once.
    More,
    /// There was nothing.
    Nothing,
}

impl<S: MetaState> LiveMeta<S> {
    /// Goes on from `start`; before it is what `state` has.
    pub(super) fn new(
        connection: &Connection,
        reader: TopicReader,
        topic: &str,
        state: Arc<Mutex<S>>,
        start: StartAt,
    ) -> Self {
        Self {
            reader,
            topic: topic.to_owned(),
            state,
            rebuilt: None,
            start: Some(start),
            last_read: Instant::now(),
            outages: OutageWatch::rarely(connection),
        }
    }

    /// As [`TopicReader::bell`].
    pub(super) fn bell(&self, thread: Thread) -> Bell {
        self.reader.bell(thread)
    }

    /// Whether the next poll has something to do, though librdkafka rings no bell for it.
    pub(super) fn has_to_begin(&self) -> bool {
        self.start.is_some()
    }

    /// Reads the topic from its beginning again. What was read until now holds until the end is reached.
    pub(super) fn begin_again(&mut self) {
        self.rebuilt = Some(S::default());
        self.start = Some(StartAt::Beginning);
    }

    /// Begins to read, if it has not.
    ///
    /// # Errors
    /// librdkafka does not take the assignment; the next call tries again.
    pub(super) fn begin(&mut self) -> Result<(), KafkaError> {
        if let Some(start) = self.start {
            self.reader.assign(&self.topic, [(PARTITION, start)])?;
            self.start = None;
        }
        Ok(())
    }

    /// Takes in one record at most, and waits for it no longer than this.
    pub(super) fn poll(&mut self, wait: Duration) -> Progress {
        if let Err(error) = self.begin() {
            let topic = &self.topic;
            tracing::warn!(%error, topic, "could not begin to read meta, trying again");
            std::thread::sleep(wait);
            return Progress::Nothing;
        }
        match self.reader.poll(wait) {
            None => return Progress::Nothing,
            Some(Polled::Record(record)) => {
                self.last_read = Instant::now();
                match &mut self.rebuilt {
                    Some(state) => state.take(&record),
                    None => self.state.lock().take(&record),
                }
                let next = record.offset().next();
                drop(record);
                if self.reader.is_at_end(&self.topic, PARTITION, next) {
                    self.reached_end();
                }
            }
            Some(Polled::End(_)) => self.reached_end(),
            // The last value of a key may stand behind what was deleted.
            Some(Polled::Outside(at, error)) => {
                tracing::warn!(%error, %at, "records of meta were deleted, reading it from its beginning");
                self.begin_again();
            }
            Some(Polled::Failed(error, _)) => {
                tracing::debug!(%error, topic = self.topic, "could not read meta, trying again");
            }
        }
        Progress::More
    }

    /// Looks whether the client has forgotten its brokers, and gives them to it again. Is to be called every second or so, whether
    /// there is something to poll or not.
    pub(super) fn look_at_brokers(&mut self) {
        // Instances that run write every second.
        self.outages.look(Instant::now(), self.last_read.elapsed() > SILENT);
        self.reader.after_outage();
    }

    fn reached_end(&mut self) {
        let mut state = self.state.lock();
        if let Some(rebuilt) = self.rebuilt.take() {
            state.replace_by(rebuilt);
        }
        state.reached_end();
    }
}
