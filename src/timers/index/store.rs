//! Wraps sled: every access of it may panic, and no panic leaves this file.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Memory that sled keeps pages in, in bytes. It takes more than that all the same.
const CACHE_BYTES: u64 = 16 << 20;
/// How often it writes in the background, in milliseconds.
const FLUSH_EVERY_MS: u64 = 500;
/// Key of whose index it is, in the tree without a name.
const IDENTITY: &[u8] = b"identity";

/// What went wrong in the store.
#[derive(Debug)]
pub(super) enum StoreError {
    Sled(sled::Error),
    Panic(String),
    /// What it gave is not what was written.
    Damaged(String),
}

fn guarded<T>(access: impl FnOnce() -> sled::Result<T>) -> Result<T, StoreError> {
    guard(|| access().map_err(StoreError::Sled))
}

/// Turns a panic into an error.
pub(super) fn guard<T>(access: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    match catch_unwind(AssertUnwindSafe(access)) {
        Ok(done) => done,
        Err(panic) => {
            let message = panic.downcast_ref::<String>().cloned();
            let message = message.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Err(StoreError::Panic(message.unwrap_or_else(|| "without a word".to_owned())))
        }
    }
}

/// One sled database.
#[derive(Debug)]
pub(super) struct Store {
    db: sled::Db,
}

/// Bytes that the store gave.
pub(super) type Bytes = sled::IVec;

impl Store {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        guarded(|| {
            let config = sled::Config::new()
                .path(path)
                .cache_capacity(CACHE_BYTES)
                .flush_every_ms(Some(FLUSH_EVERY_MS));
            Ok(Self { db: config.open()? })
        })
    }

    pub(super) fn identity(&self) -> Result<Option<Vec<u8>>, StoreError> {
        guarded(|| Ok(self.db.get(IDENTITY)?.map(|found| found.to_vec())))
    }

    pub(super) fn set_identity(&self, text: &[u8]) -> Result<(), StoreError> {
        guarded(|| self.db.insert(IDENTITY, text).map(drop))
    }

    /// Whether nobody has written to it.
    pub(super) fn is_empty(&self) -> bool {
        guarded(|| Ok(self.db.is_empty() && self.db.tree_names().len() <= 1)).unwrap_or(false)
    }

    /// The tree of this name, which is made if it is not there.
    pub(super) fn tree(&self, name: &[u8]) -> Result<Tree, StoreError> {
        guarded(|| Ok(Tree { tree: self.db.open_tree(name)? }))
    }

    /// The names of all trees.
    pub(super) fn trees(&self) -> Result<Vec<Bytes>, StoreError> {
        guarded(|| Ok(self.db.tree_names()))
    }

    /// Throws a tree away.
    pub(super) fn drop_tree(&self, name: &[u8]) -> Result<(), StoreError> {
        guarded(|| self.db.drop_tree(name).map(drop))
    }

    pub(super) fn disk_bytes(&self) -> Result<u64, StoreError> {
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

/// One tree of the database.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    tree: sled::Tree,
}

/// Writes that become visible together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    batch: sled::Batch,
}

impl Batch {
    pub(super) fn put(&mut self, key: &[u8], value: Vec<u8>) {
        self.batch.insert(key, value);
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        self.batch.remove(key);
    }
}

impl Tree {
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        guarded(|| self.tree.get(key))
    }

    /// The last entry that is not beyond a key.
    pub(super) fn floor(&self, key: &[u8]) -> Result<Option<(Bytes, Bytes)>, StoreError> {
        guarded(|| self.tree.range(..=key).next_back().transpose())
    }

    /// The first entry that is not before a key.
    pub(super) fn ceiling(&self, key: &[u8]) -> Result<Option<(Bytes, Bytes)>, StoreError> {
        guarded(|| self.tree.range(key..).next().transpose())
    }

    pub(super) fn remove(&self, key: &[u8]) -> Result<(), StoreError> {
        guarded(|| self.tree.remove(key).map(drop))
    }

    pub(super) fn write(&self, batch: Batch) -> Result<(), StoreError> {
        fail::fail_point!("before_index_write", |_| std::process::abort());
        guarded(|| {
            fail::fail_point!("index-write", |_| Err(sled::Error::Io(
                std::io::ErrorKind::StorageFull.into()
            )));
            self.tree.apply_batch(batch.batch)
        })
    }
}
