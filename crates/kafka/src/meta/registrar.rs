//! Changes what is known of projects and services: writes it to `<ns>.meta`, for all instances to read.
//!
//! # Invariants
//! 1. A change is compared with what this process has read, which is [`FRESH`] old at most. Of two instances that change one
//!    key within that time the last write wins.
//! 2. One change at a time, from here: the next one is compared with what the one before has made.
//! 3. What was put is in the [`RegistryFeed`] of this process when [`Registrar::put`] returns.
//! 4. Nothing is written that [`registry::read`] would refuse.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::durable;
use super::log;
use super::registry::RegistryFeed;
use crate::client::Connection;
use waterclock_engine::task::Wrong;
use waterclock_engine::task::registry::{self, Change};

/// How old what a change is compared with may be.
const FRESH: Duration = Duration::from_secs(2);
/// Longest wait for that. Probes of the brokers' clocks bring the end of the topic every second.
const FRESH_MAX: Duration = Duration::from_secs(5);
/// Longest wait for all replicas in sync.
const WRITE_MAX: Duration = Duration::from_secs(10);
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
    /// This process has not read the end of meta for too long. Nothing was written: try again.
    #[error(
        "what is known of projects is older than {} s, since Kafka does not answer; try again",
        FRESH.as_secs()
    )]
    Behind,
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
    feed: RegistryFeed,
    turn: Mutex<()>,
}

impl Registrar {
    /// `topic` is `<ns>.meta`; `feed` is what this process reads there.
    pub(super) fn new(connection: Connection, topic: String, feed: RegistryFeed) -> Self {
        Self(Arc::new(Inner { connection, topic, feed, turn: Mutex::default() }))
    }

    /// Puts a change in force as the next revision, which it gives back; 0 where it takes something away. `expected`: the
    /// revision that the caller has seen, 0 for nothing; `None`: whatever is there.
    ///
    /// Blocks for at most 25 s, and for other puts of this process. Call it on a thread that may block.
    ///
    /// # Errors
    /// See [`PutError`]. Of [`PutError::Write`] and [`PutError::Unread`] the change may be in force.
    pub fn put(&self, change: Change, expected: Option<u64>) -> Result<u64, PutError> {
        let Inner { connection, topic, feed, turn } = &*self.0;
        let _turn = turn.lock();
        if !feed.wait_until_fresh(FRESH, FRESH_MAX) {
            return Err(PutError::Behind);
        }
        let known = feed.get();
        let revision = known.revision_before(&change);
        if expected.is_some_and(|expected| expected != revision) {
            return Err(PutError::Conflict { key: change.key().to_owned(), revision });
        }
        let change = change.with_revision(revision.saturating_add(1));
        known.has_room(&change).map_err(PutError::NoRoom)?;
        let value = change.value();
        registry::read(change.key(), value.as_deref().map(str::as_bytes))
            .map_err(PutError::Wrong)?;
        let offset = durable::write(connection, topic, change.key(), value.as_deref(), WRITE_MAX)?;
        if !feed.wait_until_read(offset, READ_MAX) {
            return Err(PutError::Unread);
        }
        tracing::info!(
            key = change.key(),
            revision = change.revision(),
            "project or service changed"
        );
        Ok(change.revision())
    }
}
