//! One lane's entries: many in each value of the store, in the order of their keys.
//!
//! It is a small log-structured merge tree. Changes are appended to the store as runs, and kept in memory (the
//! *memtable*). Compaction goes round and round over all keys, and merges the changes of a range into their leaves at
//! once. So a change costs a part of a leaf instead of a whole one, and the store has few and large values.
//!
//! # Invariants
//! 1. All that is in the memtable also stands in runs on disk. Runs are deleted oldest first, and only after a whole
//!    round of compaction.
//! 2. A reader that looks into the memtable first, and then into the leaf, finds an entry wherever it is on its way.
//! 3. A leaf covers the keys from its own to its next one's; the first one begins with the empty key.
//! 4. Position and run are written together; what [`LaneTree::open`] gave is what was written up to that position.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::bytes::check;
use super::key_filter::KeyFilter;
use super::leaf::{Damaged, Entries, Writer, opened, sealed};
use super::position::Position;
use super::store::{Batch, Bytes, StoreError, Tree};

/// A leaf that is larger is split. A larger one costs more to write, smaller ones take more of sled's memory.
const LEAF_MAX: usize = if cfg!(test) { 512 } else { 4_096 };
/// A leaf that is smaller takes in its neighbour.
const LEAF_MIN: usize = LEAF_MAX / 4;
/// Bytes of a run in one value of the store.
const RUN_MAX: usize = if cfg!(test) { 512 } else { 4_096 };
/// Leaves written in one batch.
const COMPACT_MAX: usize = 16;
/// Entries of the memtable, at most: a part of all that there are, but so many in any case. The more there are, the less work is
/// it to compact one.
const MEMTABLE_MAX: (u64, u64) = (16, if cfg!(test) { 64 } else { 8_192 });
/// The same of all lanes together: each takes some two hundred bytes of memory.
const MEMTABLE_MAX_OF_ALL: u64 = 400_000;
/// Runs kept on disk, at most: a part of all entries, within bounds.
const RUNS: (u64, u64, u64) = (64, if cfg!(test) { 32 } else { 16_384 }, 65_536);
/// Runs deleted with one batch.
const PRUNE: u64 = 64;

const LEAF: u8 = b'l';
const RUN: u8 = b'r';
const ROUND: &[u8] = b"s";
pub(super) const POSITION: &[u8] = b"p";

type Memtable = BTreeMap<Box<[u8]>, Option<Box<[u8]>>>;

impl From<Damaged> for StoreError {
    fn from(_: Damaged) -> Self {
        Self::Damaged("a value is not what was written".to_owned())
    }
}

/// What an entry was and is to be.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub(super) old: Option<Vec<u8>>,
    pub(super) new: Option<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Recent {
    memtable: Memtable,
    position: Option<Position>,
}

/// What readers share with the writer.
#[derive(Debug)]
pub(super) struct ReadView {
    tree: Tree,
    recent: RwLock<Recent>,
}

/// One leaf, as it stands in the store.
struct Leaf {
    /// The least key that it may hold.
    from: Vec<u8>,
    /// Name in the store, and value; `None` where nothing was ever compacted.
    value: Option<(Bytes, Bytes)>,
    next: Option<Vec<u8>>,
}

impl Leaf {
    fn entries(&self) -> Result<Option<Entries<'_>>, Damaged> {
        self.value.as_ref().map(|(name, bytes)| Ok(Entries::of_leaf(name, bytes)?.0)).transpose()
    }

    fn len(&self) -> usize {
        self.value.as_ref().map_or(0, |(_, bytes)| bytes.len())
    }
}

fn named(kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(rest.len() + 1);
    name.push(kind);
    name.extend_from_slice(rest);
    name
}

fn range<'a>(from: &'a [u8], next: Option<&'a [u8]>) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    (Bound::Included(from), next.map_or(Bound::Unbounded, Bound::Excluded))
}

impl ReadView {
    fn recent(&self) -> RwLockReadGuard<'_, Recent> {
        self.recent.read()
    }

    fn recent_mut(&self) -> RwLockWriteGuard<'_, Recent> {
        self.recent.write()
    }

    pub(super) fn position(&self) -> Option<Position> {
        self.recent().position
    }

    /// The leaf that covers a key.
    fn leaf(&self, key: &[u8]) -> Result<Leaf, StoreError> {
        let Some((name, bytes)) = self.tree.floor(&named(LEAF, key))? else {
            return Ok(Leaf { from: Vec::new(), value: None, next: None });
        };
        let next = Entries::of_leaf(&name, &bytes)?.1.map(<[u8]>::to_vec);
        if next.as_deref().is_some_and(|next| next <= key) {
            return Err(StoreError::Damaged("a leaf is missing".to_owned()));
        }
        Ok(Leaf { from: name[1..].to_vec(), value: Some((name, bytes)), next })
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some(recent) = self.recent().memtable.get(key) {
            return Ok(recent.as_ref().map(|value| value.to_vec()));
        }
        let leaf = self.leaf(key)?;
        let Some(entries) = leaf.entries()? else { return Ok(None) };
        Ok(entries.find(key)?.map(<[u8]>::to_vec))
    }

    /// Tells entries from a key on in their order until told to stop.
    pub(super) fn each_from(
        &self,
        from: &[u8],
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let recent = self.recent();
        let mut from = from.to_vec();
        loop {
            let leaf = self.leaf(&from)?;
            let changes = recent.memtable.range::<[u8], _>(range(&from, leaf.next.as_deref()));
            if merged(leaf.entries()?, changes, &from, &mut each)?.is_break() {
                return Ok(());
            }
            match leaf.next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }
}

/// Tells the entries of a leaf with those of the memtable laid over them, beginning with a key.
fn merged<'f>(
    entries: Option<Entries<'_>>,
    newer: impl Iterator<Item = (&'f Box<[u8]>, &'f Option<Box<[u8]>>)>,
    from: &[u8],
    mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, Damaged> {
    let mut newer = newer.peekable();
    let mut flow = ControlFlow::Continue(());
    if let Some(entries) = entries {
        entries.each(|key, value| {
            if key < from {
                return ControlFlow::Continue(());
            }
            while let Some((newer_key, newer_value)) = newer.next_if(|(newer, _)| ***newer <= *key)
            {
                if let Some(value) = newer_value {
                    flow = each(newer_key, value);
                }
                if flow.is_break() || **newer_key == *key {
                    return flow;
                }
            }
            if let Some(value) = value {
                flow = each(key, value);
            }
            flow
        })?;
    }
    for (key, value) in newer {
        if flow.is_break() {
            break;
        }
        if let Some(value) = value {
            flow = each(key, value);
        }
    }
    Ok(flow)
}

/// The writer's side.
#[derive(Debug)]
pub(super) struct LaneTree {
    view: Arc<ReadView>,
    /// Which of the keys that are looked up are surely not there.
    filter: KeyFilter,
    /// The next run's number.
    run: u64,
    /// The oldest run that is kept.
    oldest: u64,
    round: Round,
}

/// How far a round of compaction is.
#[derive(Debug, Default)]
struct Round {
    /// Where it goes on: keys before that are in their leaves, as far as runs from before the round have them.
    cursor: Vec<u8>,
    /// The first run that was written after the round began.
    began: u64,
    /// All of the runs before that is in leaves.
    done: u64,
}

impl Round {
    fn bytes(&self) -> Vec<u8> {
        let bytes = [&self.began.to_be_bytes()[..], &self.done.to_be_bytes(), &self.cursor];
        sealed(ROUND, bytes.concat())
    }

    fn read(bytes: &[u8]) -> Result<Self, Damaged> {
        let (began, rest) = opened(ROUND, bytes)?.split_first_chunk().ok_or(Damaged)?;
        let (done, cursor) = rest.split_first_chunk().ok_or(Damaged)?;
        let (began, done) = (u64::from_be_bytes(*began), u64::from_be_bytes(*done));
        Ok(Self { cursor: cursor.to_vec(), began, done })
    }

    /// Whether what a run has of a key stands in its leaf.
    fn is_compacted(&self, run: u64, key: &[u8]) -> bool {
        run < self.done || run < self.began && *key < *self.cursor
    }
}

impl LaneTree {
    /// Opens a lane's tree, and tells every entry in the order of the keys. `names`: what of a key is looked up most,
    /// for those that are.
    pub(super) fn open(
        tree: Tree,
        named_by: fn(&[u8]) -> Option<u64>,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<Self, StoreError> {
        let position = match tree.get(POSITION)? {
            None => None,
            Some(bytes) => match Position::read(&bytes) {
                Some(position) => Some(position),
                None => return Err(StoreError::Damaged("the position cannot be read".to_owned())),
            },
        };
        let round =
            tree.get(ROUND)?.map_or_else(|| Ok(Round::default()), |bytes| Round::read(&bytes))?;
        let mut memtable = Memtable::new();
        // Value by value: sled forgets pages only after they were asked for some dozens of times, and a scan asks once.
        let first = tree.ceiling(&[RUN])?.filter(|(name, _)| name[0] == RUN);
        let mut run = match &first {
            None => round.began,
            Some((name, _)) => u64::from_be_bytes(name[1..].try_into().map_err(|_| Damaged)?),
        };
        let oldest = run;
        loop {
            let name = named(RUN, &run.to_be_bytes());
            let Some(bytes) = tree.get(&name)? else { break };
            Entries::of_run(&name, &bytes)?.each(|key, value| {
                if !round.is_compacted(run, key) {
                    memtable.insert(key.into(), value.map(Into::into));
                }
                ControlFlow::Continue(())
            })?;
            run += 1;
        }
        let entries = position.map_or(0, |position| position.entries);
        let mut filter = KeyFilter::new(usize::try_from(entries).unwrap_or(0) + 4_096);
        let mut found = position.map(|kept| Position { entries: 0, digest: 0, ..kept });
        let mut tell = |key: &[u8], value: &[u8]| {
            if let Some(found) = &mut found {
                found.add(check(key, value));
            }
            if let Some(name) = named_by(key) {
                filter.add(name);
            }
            each(key, value);
            ControlFlow::Continue(())
        };
        let mut next = Some(Vec::new());
        while let Some(from) = next {
            let name = named(LEAF, &from);
            let Some(bytes) = tree.get(&name)? else {
                if from.is_empty() {
                    let _ = merged(None, memtable.iter(), &[], &mut tell)?;
                    break;
                }
                return Err(StoreError::Damaged("a leaf is missing".to_owned()));
            };
            let (entries, follows) = Entries::of_leaf(&name, &bytes)?;
            let of_range = memtable.range::<[u8], _>(range(&from, follows));
            let _ = merged(Some(entries), of_range, &[], &mut tell)?;
            next = follows.map(<[u8]>::to_vec);
        }
        if found != position {
            let [found, kept] = [found, position].map(|p| p.map_or(0, |p| p.entries));
            let detail = format!("{found} entries where {kept} were written, or others");
            return Err(StoreError::Damaged(detail));
        }
        let view = Arc::new(ReadView { tree, recent: RwLock::new(Recent { memtable, position }) });
        Ok(Self { view, filter, run, oldest, round })
    }

    pub(super) fn view(&self) -> &Arc<ReadView> {
        &self.view
    }

    /// The value of a key that is looked up.
    pub(super) fn get(&self, key: &[u8], name: u64) -> Result<Option<Vec<u8>>, StoreError> {
        if self.filter.may_have(name) { self.view.get(key) } else { Ok(None) }
    }

    /// Writes changes to disk with the position that they reach; readers know nothing of them yet.
    pub(super) fn write(
        &mut self,
        changes: &BTreeMap<Vec<u8>, Change>,
        position: &Position,
    ) -> Result<(), StoreError> {
        let mut batch = Batch::default();
        let mut writer = Writer::run();
        for (key, change) in changes {
            writer.add(key, change.new.as_deref());
            if writer.len() >= RUN_MAX {
                self.end_run(&mut writer, &mut batch);
            }
        }
        if !writer.is_empty() {
            self.end_run(&mut writer, &mut batch);
        }
        batch.put(POSITION, position.bytes().to_vec());
        self.view.tree.write(batch)
    }

    fn end_run(&mut self, writer: &mut Writer, batch: &mut Batch) {
        let name = named(RUN, &self.run.to_be_bytes());
        batch.put(&name, writer.end_run(&name));
        self.run += 1;
    }

    /// Shows readers what was written.
    pub(super) fn show(
        &mut self,
        changes: BTreeMap<Vec<u8>, Change>,
        position: Position,
        named_by: fn(&[u8]) -> Option<u64>,
    ) {
        for (key, change) in &changes {
            if let (None, Some(_), Some(name)) = (&change.old, &change.new, named_by(key)) {
                self.filter.add(name);
            }
        }
        let mut recent = self.view.recent_mut();
        for (key, change) in changes {
            let value = change.new.map(Vec::into_boxed_slice);
            recent.memtable.insert(key.into_boxed_slice(), value);
        }
        recent.position = Some(position);
    }

    /// Compacts what the memtable has beyond its bound, as far as so many changes are to pay for it. `lanes`: how many
    /// share the memory for it.
    pub(super) fn compact(
        &mut self,
        changes: usize,
        lanes: usize,
        named_by: fn(&[u8]) -> Option<u64>,
    ) -> Result<(), StoreError> {
        let entries = self.view.position().map_or(0, |position| position.entries);
        let memtable_max = (entries / MEMTABLE_MAX.0)
            .min(MEMTABLE_MAX_OF_ALL / lanes.max(1) as u64)
            .max(MEMTABLE_MAX.1);
        let runs_max = (entries / RUNS.0).clamp(RUNS.1, RUNS.2);
        for _ in 0..4 + changes / 8 {
            let runs = self.run - self.oldest;
            if self.memtable_len() as u64 <= memtable_max && runs <= runs_max {
                break;
            }
            self.compact_next()?;
        }
        if self.filter.is_full() {
            let mut filter = KeyFilter::new(usize::try_from(entries).unwrap_or(0) + 4_096);
            self.view.each_from(&[], |key, _| {
                if let Some(name) = named_by(key) {
                    filter.add(name);
                }
                ControlFlow::Continue(())
            })?;
            self.filter = filter;
        }
        Ok(())
    }

    pub(super) fn memtable_len(&self) -> usize {
        self.view.recent().memtable.len()
    }

    /// Writes the next few leaves that entries of the memtable belong to.
    fn compact_next(&mut self) -> Result<(), StoreError> {
        let mut batch = Batch::default();
        let mut compacted: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::with_capacity(COMPACT_MAX);
        let mut at = Some(self.round.cursor.clone());
        let recent = self.view.recent();
        while compacted.len() < COMPACT_MAX
            && let Some(from) = &at
        {
            let Some((key, _)) = recent.memtable.range::<[u8], _>(range(from, None)).next() else {
                at = None;
                break;
            };
            let (from, next) = self.compact_leaf(&recent.memtable, key, &mut batch)?;
            at = next.clone();
            compacted.push((from, next));
        }
        drop(recent);
        let Round { began, done, .. } = self.round;
        let round = match at {
            Some(cursor) => Round { cursor, began, done },
            None => Round { cursor: Vec::new(), began: self.run, done: began },
        };
        batch.put(ROUND, round.bytes());
        let prune_to = round.done.clamp(self.oldest, self.oldest + PRUNE);
        for run in self.oldest..prune_to {
            batch.remove(&named(RUN, &run.to_be_bytes()));
        }
        self.view.tree.write(batch)?;
        (self.round, self.oldest) = (round, prune_to);
        let mut recent = self.view.recent_mut();
        for (from, next) in compacted {
            let from = Bound::Included(from.into_boxed_slice());
            let next = next.map_or(Bound::Unbounded, |next| Bound::Excluded(next.into()));
            recent.memtable.extract_if((from, next), |_, _| true).for_each(drop);
        }
        Ok(())
    }

    /// Merges the memtable into the leaf of a key; returns the range that this covers.
    fn compact_leaf(
        &self,
        memtable: &Memtable,
        key: &[u8],
        batch: &mut Batch,
    ) -> Result<(Vec<u8>, Option<Vec<u8>>), StoreError> {
        let mut leaves = vec![self.view.leaf(key)?];
        let from = leaves[0].from.clone();
        let mut next = leaves[0].next.clone();
        let size_of = |leaf: &Leaf| {
            let changes = memtable.range::<[u8], _>(range(&leaf.from, leaf.next.as_deref()));
            let changes =
                changes.map(|(key, value)| key.len() + value.as_ref().map_or(0, |v| v.len()));
            leaf.len() + changes.sum::<usize>()
        };
        let mut size = size_of(&leaves[0]);
        while size < LEAF_MIN
            && let Some(name) = next
        {
            let leaf = self.view.leaf(&name)?;
            batch.remove(&named(LEAF, &leaf.from));
            size += size_of(&leaf);
            next = leaf.next.clone();
            leaves.push(leaf);
        }
        let part = size / (size / LEAF_MAX + 1);
        let mut writer = Writer::default();
        let mut begin = from.clone();
        for leaf in &leaves {
            let changes = memtable.range::<[u8], _>(range(&leaf.from, leaf.next.as_deref()));
            let _ = merged(leaf.entries()?, changes, &[], |key, value| {
                if writer.len() >= part {
                    let name = named(LEAF, &begin);
                    batch.put(&name, writer.end_leaf(&name, Some(key)));
                    begin = key.to_vec();
                }
                writer.add(key, Some(value));
                ControlFlow::Continue(())
            })?;
        }
        let name = named(LEAF, &begin);
        batch.put(&name, writer.end_leaf(&name, next.as_deref()));
        Ok((from, next))
    }
}
