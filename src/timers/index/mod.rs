//! The index: a copy on disk of the changelog `<ns>.timers`. Thanks to it a restart need not read all of the changelog,
//! and neither need a query for timers.
//!
//! It is only a cache (ADR 0008, ADR 0011). sled's flush is no fsync. After a power cut, a full disk or a flipped bit, sled
//! panics as often as it returns an error. So every access runs under `catch_unwind`. An index that fails any check is set
//! aside, and rebuilt from the changelog.
//!
//! # Invariants
//! 1. Entries and the position in the changelog that they reach change together, in one batch of one tree.
//! 2. What [`Index::load`] gave is exactly what was applied up to its position: number and digest of all entries are
//!    kept with the position and compared. Every value has a check of its own, so what a [`Reader`] gives is right,
//!    too.
//! 3. An index of another cluster, namespace or format is never read.
//! 4. A store that is set aside is left as it is; the newest [`ASIDE_MAX`] of them are kept.
//! 5. Readers see what was written, never what is about to be.
//!
//! What it does not do: it knows no Kafka, and decides nothing. One thread owns the [`Index`]; any may have a
//! [`Reader`].

mod bytes;
mod directory;
mod entry;
#[doc(hidden)]
pub mod fuzz;
mod key_filter;
mod lane;
mod lane_tree;
mod leaf;
mod position;
mod reader;
mod store;
mod string_table;
#[cfg(test)]
mod tests;

use parking_lot::{RwLock, RwLockWriteGuard};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::engine::timers::{Change, Forgettable, Timer, TimerId};
use crate::engine::{Lane, Offset, UnixMillis};
use crate::telemetry::{self, Rebuilt};

pub use self::directory::ASIDE_MAX;
pub use self::lane::{Gone, Held};
pub use self::position::Position;
pub use self::reader::{Counted, IndexCounts, LOOKED_AT_MAX, Listing, Reader, TaskListing};
use self::store::{Store, StoreError};
pub use crate::engine::After;

/// Changes of one call of [`Index::apply`], at most: sled's memory grows with its batches.
pub const BATCH_MAX: usize = 500;
/// The form of what stands on disk.
const FORMAT: u32 = 5;
/// What sled says of a store that another process holds; it has no word of its own for that.
const LOCKED: &str = "could not acquire lock";

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

    /// What [`text`](Self::text) wrote; `None`: something else did.
    fn read(text: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(text).ok()?.lines().skip(1);
        let mut line = || lines.next().map(str::to_owned);
        let identity =
            Self { cluster_id: line()?, namespace: line()?, version: line()?.parse().ok()? };
        (identity.text().as_bytes() == text).then_some(identity)
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
    /// It cannot be trusted: start again with [`Index::renew`], and use nothing that it gave.
    #[error("could not {what} index {}: {detail}", path.display())]
    Broken {
        /// Which kind of broken.
        reason: Rebuilt,
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What the store said, or panicked with.
        detail: String,
    },
    /// It was set aside or closed. A new one may be built: ask again later.
    #[error("the index is set aside until it is rebuilt")]
    Aside,
    /// Nothing of this lane is open: another instance has it, or it is being taken over. Ask again later.
    #[error("the index of lane {} is not open", .0.0)]
    Closed(Lane),
}

/// What readers and the writer share.
#[derive(Debug)]
struct Lanes {
    open: HashMap<Lane, Arc<lane::Shared>>,
    is_aside: bool,
    /// What a reader came upon; the writer has not seen it yet.
    broken: Option<(Rebuilt, String)>,
    path: Arc<Path>,
}

/// The index of one process, of all lanes that ever ran in it: the writer's side.
#[derive(Debug)]
pub struct Index {
    store: Store,
    lanes: HashMap<Lane, lane::Lane>,
    shared: Arc<RwLock<Lanes>>,
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
            Err(why @ Error::Broken { .. }) => start_over(directory, identity, &why)?,
            opened => opened?,
        };
        Ok(Self::of(store, directory, identity, lock))
    }

    fn of(store: Store, directory: &Path, identity: &Identity, lock: std::fs::File) -> Self {
        let path = Arc::from(directory);
        let shared = Lanes { open: HashMap::new(), is_aside: false, broken: None, path };
        Self {
            store,
            lanes: HashMap::new(),
            shared: Arc::new(RwLock::new(shared)),
            directory: directory.to_owned(),
            identity: identity.clone(),
            _lock: lock,
        }
    }

    /// Opens the index that is in a directory, whosever it is, and changes nothing; `None` if there is none.
    ///
    /// # Errors
    /// As those of [`open`](Self::open); also [`Error::Broken`], as nothing is set aside.
    pub fn look(directory: &Path) -> Result<Option<Self>, Error> {
        if !directory.is_dir() {
            return Ok(None);
        }
        let lock = directory::lock(directory)?;
        let path = directory::newest(directory)?;
        if !path.exists() {
            return Ok(None);
        }
        let error = |what| {
            let path = path.clone();
            move |error: StoreError| error.into_error(what, &path)
        };
        let store = Store::open(&path).map_err(error("open"))?;
        let text = store.identity().map_err(error("read the identity of"))?;
        let identity = text.as_deref().and_then(Identity::read);
        let identity = identity.ok_or_else(|| foreign(&path, text.as_deref()))?;
        Ok(Some(Self::of(store, directory, &identity, lock)))
    }

    /// Begins an empty index, and sets the one aside that is in the directory, whatever is wrong with it, or nothing.
    ///
    /// # Errors
    /// As those of [`open`](Self::open).
    pub fn started_over(directory: &Path, identity: &Identity) -> Result<Self, Error> {
        directory::make(directory)?;
        let lock = directory::lock(directory)?;
        let store = open_store(&directory::next(directory)?, identity)?;
        Ok(Self::of(store, directory, identity, lock))
    }

    /// Whose it is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// How many stores are kept in the directory that were set aside.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn aside(&self) -> Result<usize, Error> {
        Ok(directory::count(&self.directory)?.saturating_sub(1))
    }

    /// A reader for queries. When this index is renewed, the reader goes on with the new one.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader { lanes: Arc::clone(&self.shared) }
    }

    fn shared(&self) -> RwLockWriteGuard<'_, Lanes> {
        self.shared.write()
    }

    /// Keeps readers away, and forgets what is known of lanes.
    fn close_lanes(&mut self) {
        let mut shared = self.shared();
        shared.is_aside = true;
        let open = std::mem::take(&mut shared.open);
        drop(shared);
        drop(open);
        self.lanes.clear();
    }

    /// Sets a broken index aside and begins an empty one in its place.
    ///
    /// # Errors
    /// As those of [`open`](Self::open).
    pub fn renew(mut self, why: &Error) -> Result<Self, Error> {
        self.close_lanes();
        self.store.abandon();
        let store = start_over(&self.directory, &self.identity, why)?;
        let mut shared = self.shared.write();
        (shared.is_aside, shared.broken) = (false, None);
        drop(shared);
        Ok(Self { store, ..self })
    }

    fn error(&self, what: &'static str) -> impl Fn(StoreError) -> Error + use<> {
        let directory = self.directory.clone();
        move |error| error.into_error(what, &directory)
    }

    /// Reads a lane from disk and opens it for readers. Tells what holds of it, and then how far that reaches; nothing and
    /// `None` where there is nothing to go on from. What was told before an error is not to be used.
    ///
    /// # Errors
    /// [`Error::Broken`]: start again.
    pub fn load(&mut self, lane: Lane, each: impl FnMut(Held)) -> Result<Option<Position>, Error> {
        self.release(lane);
        let opened = self.store.tree(&tree(lane)).and_then(|tree| {
            // The caller's part of it is guarded with the rest: what it was told is not used then.
            store::guard(|| lane::Lane::open(tree, each))
        });
        let opened = opened.map_err(|error| {
            let error = match error {
                StoreError::Damaged(detail) => {
                    StoreError::Damaged(format!("lane {}: {detail}", lane.0))
                }
                other => other,
            };
            self.error("read")(error)
        })?;
        let position = opened.position();
        self.shared().open.insert(lane, Arc::clone(opened.shared()));
        self.lanes.insert(lane, opened);
        Ok(position)
    }

    /// The lane, loaded if it was not.
    fn lane(&mut self, lane: Lane) -> Result<&mut lane::Lane, Error> {
        if let Some((reason, detail)) = self.shared().broken.take() {
            let path = self.directory.clone();
            return Err(Error::Broken { reason, what: "read", path, detail });
        }
        if !self.lanes.contains_key(&lane) {
            self.load(lane, |_| ())?;
        }
        self.lanes.get_mut(&lane).ok_or(Error::Closed(lane))
    }

    /// How far a lane's entries reach; `None` where there are none to go on from.
    ///
    /// # Errors
    /// [`Error::Broken`]: start again.
    pub fn position(&mut self, lane: Lane) -> Result<Option<Position>, Error> {
        Ok(self.lane(lane)?.position())
    }

    /// Carries changes out in their order, and notes that the lane's entries now reach the changelog up to `next`; `at` is
    /// a time by which nothing before `next` was missing. At most [`BATCH_MAX`] changes a call.
    ///
    /// # Errors
    /// [`Error::Disk`]: the index is of no use until the next start. [`Error::Broken`]: start again.
    pub fn apply(
        &mut self,
        lane: Lane,
        changes: &[Change],
        next: Offset,
        at: UnixMillis,
    ) -> Result<Position, Error> {
        let error = self.error("write to");
        let lanes = self.lanes.len();
        self.lane(lane)?.apply(changes, next, at, lanes).map_err(error)
    }

    /// Timers and tasks that may be forgotten, the oldest first, at most so many.
    ///
    /// # Errors
    /// [`Error::Broken`]: start again.
    pub fn forgettable(
        &mut self,
        lane: Lane,
        what: Forgettable,
        most: usize,
    ) -> Result<Vec<Gone>, Error> {
        let error = self.error("read");
        self.lane(lane)?.forgettable(what, most).map_err(error)
    }

    /// The timer of a name, pending or ended.
    ///
    /// # Errors
    /// [`Error::Broken`]: start again.
    pub fn find(&mut self, lane: Lane, timer_id: TimerId) -> Result<Option<Timer>, Error> {
        let error = self.error("read");
        self.lane(lane)?.shared().timer(timer_id).map_err(error)
    }

    /// Tells all that a lane has, as changes that would make it.
    ///
    /// # Errors
    /// [`Error::Broken`]: start again. What was told before is right, but not all.
    pub fn entries(&mut self, lane: Lane, each: impl FnMut(Change)) -> Result<(), Error> {
        let error = self.error("read");
        self.lane(lane)?.entries(each).map_err(error)
    }

    /// Lets a lane go that is another's now: it takes no memory any more, and readers do not find it.
    pub fn release(&mut self, lane: Lane) {
        let shared = self.shared().open.remove(&lane);
        drop(shared);
        self.lanes.remove(&lane);
    }

    /// Throws a lane's entries and its position away.
    ///
    /// # Errors
    /// As those of [`apply`](Self::apply).
    pub fn clear(&mut self, lane: Lane) -> Result<(), Error> {
        self.release(lane);
        let cleared = self.store.tree(&tree(lane)).and_then(|old| {
            // First what makes the rest believed.
            old.remove(lane_tree::POSITION)?;
            self.store.drop_tree(&tree(lane))
        });
        cleared.map_err(self.error("clear"))
    }

    /// Throws a lane away because the changelog has gone past what it knows, and counts that as a rebuild.
    ///
    /// # Errors
    /// As those of [`apply`](Self::apply).
    pub fn outdated(&mut self, lane: Lane, reason: Rebuilt) -> Result<(), Error> {
        tracing::warn!(
            lane = lane.0,
            reason = reason.as_str(),
            "the lane's index is broken; rebuilding it from the changelog"
        );
        telemetry::index_rebuilt(reason);
        self.clear(lane)
    }

    /// The lanes of which something stands on disk, open or not.
    ///
    /// # Errors
    /// [`Error::Broken`]: start again.
    pub fn lanes(&self) -> Result<Vec<Lane>, Error> {
        let names = self.store.trees().map_err(self.error("read"))?;
        let mut lanes: Vec<Lane> = names.iter().filter_map(|name| lane_of(name)).collect();
        lanes.sort_unstable();
        Ok(lanes)
    }

    /// Bytes that it takes on disk.
    ///
    /// # Errors
    /// [`Error::Disk`]: the system does not tell.
    pub fn disk_bytes(&self) -> Result<u64, Error> {
        self.store.disk_bytes().map_err(self.error("measure"))
    }

    /// Hands everything to the operating system and closes; what goes wrong with that is made good by the changelog.
    pub fn close(mut self) {
        self.close_lanes();
        self.store.close();
    }

    /// Leaves an index that cannot be written to; nobody waits until it is closed.
    pub fn abandon(mut self) {
        self.close_lanes();
        self.store.abandon();
    }
}

/// The name of a lane's tree.
fn tree(lane: Lane) -> [u8; 6] {
    let [high, low] = lane.0.to_be_bytes();
    [b'l', b'a', b'n', b'e', high, low]
}

fn lane_of(tree: &[u8]) -> Option<Lane> {
    let number = tree.strip_prefix(b"lane")?;
    Some(Lane(u16::from_be_bytes(number.try_into().ok()?)))
}

impl StoreError {
    fn into_error(self, what: &'static str, at: &Path) -> Error {
        let path = at.to_owned();
        let broken = |reason, detail| Error::Broken { reason, what, path: path.clone(), detail };
        match self {
            Self::Panic(message) => broken(Rebuilt::Panicked, message),
            Self::Damaged(detail) => broken(Rebuilt::Corrupt, detail),
            Self::Sled(sled::Error::Io(source)) if source.to_string().contains(LOCKED) => {
                Error::InUse(path)
            }
            Self::Sled(sled::Error::Io(source)) => {
                use std::io::ErrorKind::{
                    InvalidData, InvalidInput, NotFound, Other, UnexpectedEof,
                };
                match source.kind() {
                    // A missing or incomplete file is created again; `Other` is sled's own word for its mistakes.
                    NotFound | UnexpectedEof | InvalidData | InvalidInput | Other => {
                        broken(Rebuilt::Corrupt, source.to_string())
                    }
                    _ => directory::of_system(what, path, source),
                }
            }
            Self::Sled(other) => broken(Rebuilt::Corrupt, other.to_string()),
        }
    }
}

fn open_store(path: &Path, identity: &Identity) -> Result<Store, Error> {
    let error = |what| move |error: StoreError| error.into_error(what, path);
    let store = Store::open(path).map_err(error("open"))?;
    let text = identity.text();
    match store.identity().map_err(error("read the identity of"))? {
        Some(found) if found == text.as_bytes() => Ok(store),
        None if store.is_empty() => {
            store.set_identity(text.as_bytes()).map_err(error("name"))?;
            Ok(store)
        }
        found => {
            store.abandon();
            Err(foreign(path, found.as_deref()))
        }
    }
}

fn foreign(path: &Path, found: Option<&[u8]>) -> Error {
    let found = String::from_utf8_lossy(found.unwrap_or_default()).trim().replace('\n', " ");
    let (reason, path) = (Rebuilt::Foreign, path.to_owned());
    Error::Broken { reason, what: "take", path, detail: format!("it belongs to {found:?}") }
}

fn start_over(directory: &Path, identity: &Identity, why: &Error) -> Result<Store, Error> {
    let reason = match why {
        Error::Broken { reason, .. } => *reason,
        _ => Rebuilt::Corrupt,
    };
    let path = directory::next(directory)?;
    tracing::warn!(
        reason = reason.as_str(),
        %why,
        again = %path.display(),
        "the index is set aside; rebuilding it from the changelog"
    );
    telemetry::index_rebuilt(reason);
    open_store(&path, identity)
}
