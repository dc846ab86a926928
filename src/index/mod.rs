//! The index: a copy on disk of what stands in the changelog `<ns>.timers`, so that a restart need not read all of it.
//!
//! A cache and no more (ADR 0008). sled's flush is no fsync, and what a power cut, a full disk or a flipped bit leaves
//! behind makes it panic as often as it makes it return an error. So every access runs under `catch_unwind`, and
//! whatever is not beyond doubt is set aside and read from the changelog again.
//!
//! # Invariants
//! 1. Entries and the position in the changelog that they reach change together, in one batch of one tree.
//! 2. What [`Index::load`] gave is exactly what was applied up to its position: number and digest of all entries are kept
//!    with the position and compared. Anything else is [`Error::Broken`].
//! 3. An index of another cluster, namespace or format is never read.
//! 4. A store that is set aside is left as it is; the newest [`ASIDE_MAX`] of them are kept.
//!
//! What it does not do: it knows neither Kafka nor what keys and values mean, and it has no lock of its own: one thread
//! owns it.

mod directory;
mod position;
mod store;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::engine::{Lane, Offset, UnixMillis};
use crate::telemetry;

pub use self::directory::ASIDE_MAX;
pub use self::position::Position;
use self::store::{Store, Trouble};

/// Changes of one call of [`Index::apply`], at most: sled took 3.1 GB of memory for batches of 5,000.
pub const BATCH_MAX: usize = 500;
/// The form of what stands on disk.
const FORMAT: u32 = 1;

/// Whose index it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Kafka's name for the cluster.
    pub cluster_id: String,
    /// Namespace of waterclock, with whatever else tells it from one of the same name.
    pub namespace: String,
    /// Form of keys and values.
    pub version: u32,
}

impl Identity {
    fn text(&self) -> String {
        let Self { cluster_id, namespace, version } = self;
        format!("waterclock index {FORMAT}\n{cluster_id}\n{namespace}\n{version}\n")
    }
}

/// Why an index was thrown away and begun anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// What stands on disk cannot be read.
    Corrupt,
    /// The store panicked.
    Panicked,
    /// Another cluster, namespace or format.
    Foreign,
    /// So old that the changelog may have dropped tombstones which it has not seen.
    Stale,
    /// Its position is not in the changelog.
    Outside,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Corrupt, Self::Panicked, Self::Foreign, Self::Stale, Self::Outside];

    /// The value of the metric's label `reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Corrupt => "corrupt",
            Self::Panicked => "panicked",
            Self::Foreign => "foreign",
            Self::Stale => "stale",
            Self::Outside => "outside",
        }
    }
}

/// Why the index could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has it. A person must give one of the two another directory.
    #[error("index {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The system does not let us. A person must mend the directory.
    #[error("could not {what} {}", path.display())]
    Refused {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The disk is full, or does not work. Go on without an index.
    #[error("could not {what} index {}", path.display())]
    Disk {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It cannot be trusted: begin anew with [`Index::renew`], and use nothing that it gave.
    #[error("could not {what} index {}: {detail}", path.display())]
    Broken {
        /// Which kind of broken.
        reason: Reason,
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What the store said, or panicked with.
        detail: String,
    },
}

/// One change of an entry: its key, and its new value; `None` removes it.
pub type Change = (Vec<u8>, Option<Vec<u8>>);

/// The index of one process, of all lanes that ever ran in it.
#[derive(Debug)]
pub struct Index {
    store: Store,
    directory: PathBuf,
    identity: Identity,
    _lock: std::fs::File,
}

impl Index {
    /// Opens the index in a directory, which is made if it is not there. One that is broken or foreign is set aside first.
    ///
    /// # Errors
    /// [`Error::InUse`] and [`Error::Refused`]: a person must mend it. Others: go on without an index.
    pub fn open(directory: &Path, identity: &Identity) -> Result<Self, Error> {
        directory::make(directory)?;
        let lock = directory::lock(directory)?;
        let store = match open_store(&directory::newest(directory)?, identity) {
            Err(why @ Error::Broken { .. }) => begin_anew(directory, identity, &why)?,
            opened => opened?,
        };
        let (directory, identity) = (directory.to_owned(), identity.clone());
        Ok(Self { store, directory, identity, _lock: lock })
    }

    /// Sets a broken index aside and begins an empty one in its place.
    ///
    /// # Errors
    /// As those of [`open`](Self::open).
    pub fn renew(self, why: &Error) -> Result<Self, Error> {
        self.store.abandon();
        let store = begin_anew(&self.directory, &self.identity, why)?;
        Ok(Self { store, ..self })
    }

    fn trouble(&self, what: &'static str) -> impl Fn(Trouble) -> Error + '_ {
        move |trouble| trouble.into_error(what, &self.directory)
    }

    /// How far a lane's entries reach; `None` where there are none to go on from.
    ///
    /// # Errors
    /// [`Error::Broken`]: begin anew.
    pub fn position(&self, lane: Lane) -> Result<Option<Position>, Error> {
        match self.store.position(lane).map_err(self.trouble("read"))? {
            None => Ok(None),
            Some(bytes) => match Position::read(&bytes) {
                Some(position) => Ok(Some(position)),
                None => Err(self.corrupt(lane, "its position cannot be read")),
            },
        }
    }

    /// Tells every entry of a lane, and then how far they reach; `None` and no entries where there is nothing to go on
    /// from. What was told before an error is not to be used.
    ///
    /// # Errors
    /// [`Error::Broken`]: begin anew.
    pub fn load(
        &self,
        lane: Lane,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<Option<Position>, Error> {
        let Some(kept) = self.position(lane)? else { return Ok(None) };
        let mut found = Position { entries: 0, digest: 0, ..kept };
        self.store
            .each(lane, |key, value| {
                found.add(key, value);
                each(key, value);
            })
            .map_err(self.trouble("read"))?;
        if found != kept {
            let detail =
                format!("{} entries where {} were written, or others", found.entries, kept.entries);
            return Err(self.corrupt(lane, &detail));
        }
        Ok(Some(kept))
    }

    /// Carries changes out in their order, and notes that the lane's entries now reach the changelog up to `next`; `at` is
    /// a time by which nothing before `next` was missing. At most [`BATCH_MAX`] changes a call.
    ///
    /// # Errors
    /// [`Error::Disk`]: the index is of no use until the next start. [`Error::Broken`]: begin anew.
    pub fn apply(
        &self,
        lane: Lane,
        changes: &[Change],
        next: Offset,
        at: UnixMillis,
    ) -> Result<Position, Error> {
        let kept = self.position(lane)?.unwrap_or_default();
        let mut position = Position { next, at, ..kept };
        // What this batch has made of a key so far, since the store does not know it yet.
        let mut latest: HashMap<&[u8], Option<&[u8]>> = HashMap::with_capacity(changes.len());
        for (key, value) in changes {
            let value = value.as_deref();
            match latest.insert(key, value) {
                Some(Some(before)) => position.remove(key, before),
                Some(None) => {}
                None => {
                    if let Some(old) = self.store.entry(lane, key).map_err(self.trouble("read"))? {
                        position.remove(key, &old);
                    }
                }
            }
            if let Some(value) = value {
                position.add(key, value);
            }
        }
        self.store
            .write(lane, latest.into_iter(), &position.bytes())
            .map_err(self.trouble("write to"))?;
        Ok(position)
    }

    /// Throws a lane's entries and its position away.
    ///
    /// # Errors
    /// As those of [`apply`](Self::apply).
    pub fn clear(&self, lane: Lane) -> Result<(), Error> {
        self.store.clear(lane).map_err(self.trouble("clear"))
    }

    /// Throws a lane away because the changelog has gone past what it knows, and counts that as a rebuild.
    ///
    /// # Errors
    /// As those of [`apply`](Self::apply).
    pub fn outdated(&self, lane: Lane, reason: Reason) -> Result<(), Error> {
        tracing::warn!(
            lane = lane.0,
            reason = reason.as_str(),
            "the lane's index is of no use; it is read from the changelog again"
        );
        telemetry::index_rebuilt(reason);
        self.clear(lane)
    }

    /// Bytes that it takes on disk.
    ///
    /// # Errors
    /// [`Error::Disk`]: the system does not tell.
    pub fn disk_bytes(&self) -> Result<u64, Error> {
        self.store.disk_bytes().map_err(self.trouble("measure"))
    }

    /// Hands everything to the operating system and closes; what goes wrong with that is made good by the changelog.
    pub fn close(self) {
        self.store.close();
    }

    /// Leaves an index that cannot be written to; nobody waits until it is closed.
    pub fn abandon(self) {
        self.store.abandon();
    }

    fn corrupt(&self, lane: Lane, detail: &str) -> Error {
        Error::Broken {
            reason: Reason::Corrupt,
            what: "read",
            path: self.directory.clone(),
            detail: format!("lane {}: {detail}", lane.0),
        }
    }
}

fn open_store(path: &Path, identity: &Identity) -> Result<Store, Error> {
    let trouble = |what| move |trouble: Trouble| trouble.into_error(what, path);
    let store = Store::open(path).map_err(trouble("open"))?;
    let text = identity.text();
    match store.identity().map_err(trouble("read the identity of"))? {
        Some(found) if found == text.as_bytes() => Ok(store),
        None if store.is_empty() => {
            store.set_identity(text.as_bytes()).map_err(trouble("name"))?;
            Ok(store)
        }
        found => {
            store.abandon();
            let found = found.unwrap_or_default();
            let found = String::from_utf8_lossy(&found).trim().replace('\n', " ");
            Err(Error::Broken {
                reason: Reason::Foreign,
                what: "take",
                path: path.to_owned(),
                detail: format!("it belongs to {found:?}"),
            })
        }
    }
}

fn begin_anew(directory: &Path, identity: &Identity, why: &Error) -> Result<Store, Error> {
    let reason = match why {
        Error::Broken { reason, .. } => *reason,
        _ => Reason::Corrupt,
    };
    let path = directory::next(directory)?;
    tracing::warn!(
        reason = reason.as_str(),
        %why,
        anew = %path.display(),
        "the index is set aside and read from the changelog again"
    );
    telemetry::index_rebuilt(reason);
    open_store(&path, identity)
}
