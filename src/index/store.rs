//! sled behind one door: every access of it may panic, and none leaves this file as a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use super::{Error, Reason, directory};
use crate::engine::Lane;

/// Memory that sled keeps pages in, in bytes. It takes more than that all the same.
const CACHE_BYTES: u64 = 16 << 20;
/// How often it writes in the background, in milliseconds.
const FLUSH_EVERY_MS: u64 = 500;
/// Key of whose index it is, in the tree without a name.
const IDENTITY: &[u8] = b"identity";
/// Key of a lane's position, in its tree.
const POSITION: &[u8] = b"p";
/// Begins the key of every entry, in the tree of its lane.
const ENTRY: u8 = b'e';

/// What sled says of a store that another process holds; it has no word of its own for that.
const LOCKED: &str = "could not acquire lock";

/// What went wrong in the store.
#[derive(Debug)]
pub(super) enum Trouble {
    Sled(sled::Error),
    Panic(String),
}

impl Trouble {
    pub(super) fn into_error(self, what: &'static str, at: &Path) -> Error {
        let path = at.to_owned();
        let broken = |reason, detail| Error::Broken { reason, what, path: path.clone(), detail };
        match self {
            Self::Panic(said) => broken(Reason::Panicked, said),
            Self::Sled(sled::Error::Io(source)) if source.to_string().contains(LOCKED) => {
                Error::InUse(path)
            }
            Self::Sled(sled::Error::Io(source)) => {
                use std::io::ErrorKind::{
                    InvalidData, InvalidInput, NotFound, Other, UnexpectedEof,
                };
                match source.kind() {
                    // What is not there, or not whole, is made anew; `Other` is sled's own word for its mistakes.
                    NotFound | UnexpectedEof | InvalidData | InvalidInput | Other => {
                        broken(Reason::Corrupt, source.to_string())
                    }
                    _ => directory::of_system(what, path, source),
                }
            }
            Self::Sled(other) => broken(Reason::Corrupt, other.to_string()),
        }
    }
}

/// One sled database.
#[derive(Debug)]
pub(super) struct Store {
    db: sled::Db,
}

fn guarded<T>(access: impl FnOnce() -> sled::Result<T>) -> Result<T, Trouble> {
    match catch_unwind(AssertUnwindSafe(access)) {
        Ok(done) => done.map_err(Trouble::Sled),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().cloned();
            let said = said.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Err(Trouble::Panic(said.unwrap_or_else(|| "without a word".to_owned())))
        }
    }
}

/// The name of a lane's tree.
fn tree(lane: Lane) -> [u8; 6] {
    let [high, low] = lane.0.to_be_bytes();
    [b'l', b'a', b'n', b'e', high, low]
}

fn entry(key: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(key.len() + 1);
    name.push(ENTRY);
    name.extend_from_slice(key);
    name
}

impl Store {
    pub(super) fn open(path: &Path) -> Result<Self, Trouble> {
        guarded(|| {
            let config = sled::Config::new()
                .path(path)
                .cache_capacity(CACHE_BYTES)
                .flush_every_ms(Some(FLUSH_EVERY_MS));
            Ok(Self { db: config.open()? })
        })
    }

    pub(super) fn identity(&self) -> Result<Option<Vec<u8>>, Trouble> {
        guarded(|| Ok(self.db.get(IDENTITY)?.map(|found| found.to_vec())))
    }

    pub(super) fn set_identity(&self, text: &[u8]) -> Result<(), Trouble> {
        guarded(|| self.db.insert(IDENTITY, text).map(drop))
    }

    /// Whether nobody has written to it.
    pub(super) fn is_empty(&self) -> bool {
        guarded(|| Ok(self.db.is_empty() && self.db.tree_names().len() <= 1)).unwrap_or(false)
    }

    pub(super) fn position(&self, lane: Lane) -> Result<Option<Vec<u8>>, Trouble> {
        guarded(|| {
            let found = self.db.open_tree(tree(lane))?.get(POSITION)?;
            Ok(found.map(|found| found.to_vec()))
        })
    }

    pub(super) fn entry(&self, lane: Lane, key: &[u8]) -> Result<Option<sled::IVec>, Trouble> {
        guarded(|| self.db.open_tree(tree(lane))?.get(entry(key)))
    }

    pub(super) fn each(
        &self,
        lane: Lane,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Trouble> {
        guarded(|| {
            for found in self.db.open_tree(tree(lane))?.scan_prefix([ENTRY]) {
                let (key, value) = found?;
                each(&key[1..], &value);
            }
            Ok(())
        })
    }

    pub(super) fn write<'a>(
        &self,
        lane: Lane,
        entries: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
        position: &[u8],
    ) -> Result<(), Trouble> {
        guarded(|| {
            fail::fail_point!("index-write", |_| Err(sled::Error::Io(
                std::io::ErrorKind::StorageFull.into()
            )));
            let mut batch = sled::Batch::default();
            for (key, value) in entries {
                match value {
                    Some(value) => batch.insert(entry(key), value),
                    None => batch.remove(entry(key)),
                }
            }
            batch.insert(POSITION, position);
            self.db.open_tree(tree(lane))?.apply_batch(batch)
        })
    }

    /// The position goes first: whatever is left without one is not believed.
    pub(super) fn clear(&self, lane: Lane) -> Result<(), Trouble> {
        guarded(|| {
            self.db.open_tree(tree(lane))?.remove(POSITION)?;
            self.db.drop_tree(tree(lane)).map(drop)
        })
    }

    pub(super) fn disk_bytes(&self) -> Result<u64, Trouble> {
        guarded(|| self.db.size_on_disk())
    }

    pub(super) fn close(self) {
        // Dropping writes what is left, and may panic over it.
        let _ = guarded(move || self.db.flush().map(drop));
    }

    /// Leaves a store that cannot be trusted: closing it may panic or wait for ever, so nobody waits for that.
    pub(super) fn abandon(self) {
        let closing = move || {
            let _ = guarded(move || {
                drop(self.db);
                Ok(())
            });
        };
        let _ = std::thread::Builder::new().name("wc-index-close".into()).spawn(closing);
    }
}
