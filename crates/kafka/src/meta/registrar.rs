//! Changes what is known of projects and services: writes it to `<ns>.meta`, for all instances to read.
//!
//! # Invariants
//! 1. A change is compared with all that stands in the topic before it: one instance writes at a time, by an
//!    [`ExclusiveWriter`].
//! 2. A project that is deleted takes its services with it, in the same transaction.
//! 3. What was put is in the [`RegistryFeed`] of this process when [`Registrar::put`] returns.
//! 4. Nothing is written that [`registry::read`] would refuse.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::CLOCK;
use super::exclusive::{ExclusiveWriter, Lost};
use super::log;
use super::registry::RegistryFeed;
use crate::client::Connection;
use waterclock_engine::task::Wrong;
use waterclock_engine::task::registry::{self, Change};

/// How long it begins again, if others do, too.
const FENCED_MAX: Duration = Duration::from_secs(10);
/// Between two such tries, at first and at most.
const WAIT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Longest wait until this process has read what it wrote.
const READ_MAX: Duration = Duration::from_secs(5);

/// Why a project or a service was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// It has another revision than the caller has seen. Nothing was written: look at it, and put again.
    #[error("{key} has revision {revision} by now; read it and put it again")]
    Conflict {
        /// The key in meta.
        key: String,
        /// The revision that it has; 0: it is not there.
        revision: u64,
    },
    /// There are too many projects and services. Nothing was written: delete some.
    #[error("there is no room for it: {0}")]
    NoRoom(Wrong),
    /// No instance could read it. Nothing was written.
    #[error("{}", list(.0))]
    Wrong(Vec<Wrong>),
    /// Its project was deleted. Nothing was written: put the project first.
    #[error("{0}")]
    Deleted(Wrong),
    /// This process could not read the end of meta. Nothing was written: try again.
    #[error(
        "this instance could not read what is known of projects within {} s; try again",
        READ_MAX.as_secs()
    )]
    Behind,
    /// Other instances change projects all the time. Nothing was written: try again.
    #[error("other instances changed projects for {} s without a gap; try again", FENCED_MAX.as_secs())]
    Busy,
    /// Kafka did not take it, or did not say so. See the source for whether it may be in force.
    #[error("the change could not be written")]
    Write(#[from] log::Error),
    /// It is in force, and this process has not read it yet. Look at it before you put it again.
    #[error("the change is written, and this instance has not read it within {} s", READ_MAX.as_secs())]
    Unread,
}

fn list(wrongs: &[Wrong]) -> String {
    wrongs.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Changes projects and services of one namespace. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Registrar(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connection: Connection,
    topic: String,
    /// The transactional id of all writers.
    id: String,
    feed: RegistryFeed,
    turn: Mutex<()>,
}

impl Registrar {
    /// `topic` is `<ns>.meta`; `feed` is what this process reads there.
    pub(super) fn new(connection: Connection, topic: String, feed: RegistryFeed) -> Self {
        let namespace = topic.strip_suffix(".meta").unwrap_or(&topic);
        let id = format!("{namespace}/registry");
        Self(Arc::new(Inner { connection, topic, id, feed, turn: Mutex::default() }))
    }

    /// Puts a change in force as the next revision, which it gives back; 0 where it takes something away. `expected`: the
    /// revision that the caller has seen, 0 for nothing; `None`: whatever is there.
    ///
    /// Blocks for at most 25 s, and for other puts of this process. Call it on a thread that may block.
    ///
    /// # Errors
    /// See [`PutError`]. Of [`PutError::Write`] and [`PutError::Unread`] the change may be in force.
    pub fn put(&self, change: Change, expected: Option<u64>) -> Result<u64, PutError> {
        let _turn = self.0.turn.lock();
        let began = Instant::now();
        let (mut wait, mut tried) = (WAIT.0, None);
        loop {
            match self.0.put(&change, expected, &mut tried) {
                Ok(revision) => return Ok(revision),
                Err(Trouble::Again(_)) if began.elapsed() < FENCED_MAX => {}
                Err(Trouble::Again(error) | Trouble::Put(error)) => return Err(error),
            }
            // Two that fence each other come apart.
            std::thread::sleep(wait.mul_f64(0.5 + rand::random::<f64>()));
            wait = (wait * 2).min(WAIT.1);
        }
    }
}

/// Why one try has not put a change in force.
enum Trouble {
    /// Another instance has begun to write, or Kafka did not say what became of it: the next try reads that.
    Again(PutError),
    Put(PutError),
}

impl From<PutError> for Trouble {
    fn from(error: PutError) -> Self {
        Self::Put(error)
    }
}

impl From<Lost> for Trouble {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Fenced => Self::Again(PutError::Busy),
            Lost::Failed(error @ log::Error::Unacknowledged { .. }) => Self::Again(error.into()),
            Lost::Failed(error) => Self::Put(error.into()),
        }
    }
}

impl Inner {
    /// One try. `tried`: what the last one has written, if it is not known whether that stands.
    fn put(
        &self,
        change: &Change,
        expected: Option<u64>,
        tried: &mut Option<Change>,
    ) -> Result<u64, Trouble> {
        let writer = ExclusiveWriter::begin(&self.connection, &self.topic, &self.id)?;
        // All that writers before have committed stands in front of this record, which says nothing.
        let here = writer.write(&[(CLOCK, None)])?;
        if !self.feed.wait_until_read(here, READ_MAX) {
            return Err(PutError::Behind.into());
        }
        let known = self.feed.get();
        if let Some(written) = tried.take().filter(|tried| known.has(tried)) {
            return Ok(written.revision());
        }
        let revision = known.revision_before(change);
        if expected.is_some_and(|expected| expected != revision) {
            let key = change.key().to_owned();
            return Err(PutError::Conflict { key, revision }.into());
        }
        known.permits(change).map_err(PutError::Deleted)?;
        let change = change.clone().with_revision(revision.saturating_add(1));
        known.has_room(&change).map_err(PutError::NoRoom)?;
        let value = change.value();
        registry::read(change.key(), value.as_deref().map(str::as_bytes))
            .map_err(PutError::Wrong)?;
        let with = known.goes_with(&change);
        let mut records: Vec<_> = with.iter().map(|with| (with.key(), with.value())).collect();
        records.push((change.key(), value));
        *tried = Some(change.clone());
        let offset = writer.write(&records)?;
        if !self.feed.wait_until_read(offset, READ_MAX) {
            return Err(PutError::Unread.into());
        }
        tracing::info!(
            key = change.key(),
            revision = change.revision(),
            "project or service changed"
        );
        Ok(change.revision())
    }
}
