//! One lane's entries: many in each value of the store, in the order of their keys.
//!
//! Changes are appended to the store as runs, and kept in memory (*fresh*). A sweep goes round and round over all keys,
//! and puts the fresh changes of a range into their leaves at once. So a change costs a part of a leaf instead of a
//! whole one, and the store has few and large values.
//!
//! # Invariants
//! 1. What is fresh in memory also stands in runs on disk. Runs are deleted oldest first, and only after the sweep went
//!    round.
//! 2. A reader that looks into the fresh changes first, and then into the leaf, finds an entry wherever it is on its
//!    way.
//! 3. A leaf covers the keys from its own to its next one's; the first one begins with the empty key.
//! 4. Position and run are written together; what [`Shelf::open`] gave is what was written up to that position.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::bytes::check;
use super::filter::Filter;
use super::leaf::{Damaged, Entries, Writer, opened, sealed};
use super::position::Position;
use super::store::{Batch, Bytes, Tree, Trouble};

/// A leaf that is larger is split. A larger one costs more to write, smaller ones take more of sled's memory.
const LEAF_MAX: usize = if cfg!(test) { 512 } else { 4_096 };
/// A leaf that is smaller takes in its neighbour.
const LEAF_MIN: usize = LEAF_MAX / 4;
/// Bytes of a run in one value of the store.
const RUN_MAX: usize = if cfg!(test) { 512 } else { 4_096 };
/// Leaves written in one batch.
const SWEEP: usize = 16;
/// Fresh entries, at most: a part of all that there are, but so many in any case. More of them are swept with less work.
const FRESH: (u64, u64) = (16, if cfg!(test) { 64 } else { 8_192 });
/// The same of all lanes together: each takes some two hundred bytes of memory.
const FRESH_OF_ALL: u64 = 400_000;
/// Runs kept on disk, at most: a part of all entries, within bounds.
const RUNS: (u64, u64, u64) = (64, if cfg!(test) { 32 } else { 16_384 }, 65_536);
/// Runs deleted with one batch.
const PRUNE: u64 = 64;

const LEAF: u8 = b'l';
const RUN: u8 = b'r';
const ROUND: &[u8] = b"s";
pub(super) const POSITION: &[u8] = b"p";

type Fresh = BTreeMap<Box<[u8]>, Option<Box<[u8]>>>;

impl From<Damaged> for Trouble {
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
struct View {
    fresh: Fresh,
    position: Option<Position>,
}

/// What readers share with the writer.
#[derive(Debug)]
pub(super) struct Entered {
    tree: Tree,
    view: RwLock<View>,
}

/// One leaf, as it stands in the store.
struct Leaf {
    /// The least key that it may hold.
    from: Vec<u8>,
    /// Name in the store, and value; `None` where nothing was ever swept.
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

impl Entered {
    fn view(&self) -> RwLockReadGuard<'_, View> {
        self.view.read()
    }

    fn view_mut(&self) -> RwLockWriteGuard<'_, View> {
        self.view.write()
    }

    pub(super) fn position(&self) -> Option<Position> {
        self.view().position
    }

    /// The leaf that covers a key.
    fn leaf(&self, key: &[u8]) -> Result<Leaf, Trouble> {
        let Some((name, bytes)) = self.tree.floor(&named(LEAF, key))? else {
            return Ok(Leaf { from: Vec::new(), value: None, next: None });
        };
        let next = Entries::of_leaf(&name, &bytes)?.1.map(<[u8]>::to_vec);
        if next.as_deref().is_some_and(|next| next <= key) {
            return Err(Trouble::Damaged("a leaf is missing".to_owned()));
        }
        Ok(Leaf { from: name[1..].to_vec(), value: Some((name, bytes)), next })
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Trouble> {
        if let Some(fresh) = self.view().fresh.get(key) {
            return Ok(fresh.as_ref().map(|value| value.to_vec()));
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
    ) -> Result<(), Trouble> {
        let view = self.view();
        let mut from = from.to_vec();
        loop {
            let leaf = self.leaf(&from)?;
            let fresh = view.fresh.range::<[u8], _>(range(&from, leaf.next.as_deref()));
            if merged(leaf.entries()?, fresh, &from, &mut each)?.is_break() {
                return Ok(());
            }
            match leaf.next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }
}

/// Tells the entries of a leaf with what is fresh laid over them, beginning with a key.
fn merged<'f>(
    entries: Option<Entries<'_>>,
    fresh: impl Iterator<Item = (&'f Box<[u8]>, &'f Option<Box<[u8]>>)>,
    from: &[u8],
    mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, Damaged> {
    let mut fresh = fresh.peekable();
    let mut told = ControlFlow::Continue(());
    if let Some(entries) = entries {
        entries.each(|key, value| {
            if key < from {
                return ControlFlow::Continue(());
            }
            while let Some((fresh_key, fresh_value)) = fresh.next_if(|(fresh, _)| ***fresh <= *key)
            {
                if let Some(value) = fresh_value {
                    told = each(fresh_key, value);
                }
                if told.is_break() || **fresh_key == *key {
                    return told;
                }
            }
            if let Some(value) = value {
                told = each(key, value);
            }
            told
        })?;
    }
    for (key, value) in fresh {
        if told.is_break() {
            break;
        }
        if let Some(value) = value {
            told = each(key, value);
        }
    }
    Ok(told)
}

/// The writer's side.
#[derive(Debug)]
pub(super) struct Shelf {
    entered: Arc<Entered>,
    /// Which of the keys that are looked up are surely not there.
    filter: Filter,
    /// The next run's number.
    run: u64,
    /// The oldest run that is kept.
    oldest: u64,
    round: Round,
}

/// How far the sweep is on its way round.
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
    fn has_swept(&self, run: u64, key: &[u8]) -> bool {
        run < self.done || run < self.began && *key < *self.cursor
    }
}

impl Shelf {
    /// Opens a lane's tree, and tells every entry in the order of the keys. `names`: what of a key is looked up most,
    /// for those that are.
    pub(super) fn open(
        tree: Tree,
        named_by: fn(&[u8]) -> Option<u64>,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<Self, Trouble> {
        let position = match tree.get(POSITION)? {
            None => None,
            Some(bytes) => match Position::read(&bytes) {
                Some(position) => Some(position),
                None => return Err(Trouble::Damaged("the position cannot be read".to_owned())),
            },
        };
        let round =
            tree.get(ROUND)?.map_or_else(|| Ok(Round::default()), |bytes| Round::read(&bytes))?;
        let mut fresh = Fresh::new();
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
                if !round.has_swept(run, key) {
                    fresh.insert(key.into(), value.map(Into::into));
                }
                ControlFlow::Continue(())
            })?;
            run += 1;
        }
        let entries = position.map_or(0, |position| position.entries);
        let mut filter = Filter::new(usize::try_from(entries).unwrap_or(0) + 4_096);
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
                    let _ = merged(None, fresh.iter(), &[], &mut tell)?;
                    break;
                }
                return Err(Trouble::Damaged("a leaf is missing".to_owned()));
            };
            let (entries, follows) = Entries::of_leaf(&name, &bytes)?;
            let of_range = fresh.range::<[u8], _>(range(&from, follows));
            let _ = merged(Some(entries), of_range, &[], &mut tell)?;
            next = follows.map(<[u8]>::to_vec);
        }
        if found != position {
            let [found, kept] = [found, position].map(|p| p.map_or(0, |p| p.entries));
            let detail = format!("{found} entries where {kept} were written, or others");
            return Err(Trouble::Damaged(detail));
        }
        let entered = Arc::new(Entered { tree, view: RwLock::new(View { fresh, position }) });
        Ok(Self { entered, filter, run, oldest, round })
    }

    pub(super) fn entered(&self) -> &Arc<Entered> {
        &self.entered
    }

    /// The value of a key that is looked up.
    pub(super) fn get(&self, key: &[u8], name: u64) -> Result<Option<Vec<u8>>, Trouble> {
        if self.filter.may_have(name) { self.entered.get(key) } else { Ok(None) }
    }

    /// Writes changes to disk with the position that they reach; readers know nothing of them yet.
    pub(super) fn write(
        &mut self,
        changes: &BTreeMap<Vec<u8>, Change>,
        position: &Position,
    ) -> Result<(), Trouble> {
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
        self.entered.tree.write(batch)
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
        let mut view = self.entered.view_mut();
        for (key, change) in changes {
            let value = change.new.map(Vec::into_boxed_slice);
            view.fresh.insert(key.into_boxed_slice(), value);
        }
        view.position = Some(position);
    }

    /// Puts what is fresh beyond its bound into leaves, as far as so many changes are to pay for it. `lanes`: how many share
    /// the memory for it.
    pub(super) fn sweep(
        &mut self,
        changes: usize,
        lanes: usize,
        named_by: fn(&[u8]) -> Option<u64>,
    ) -> Result<(), Trouble> {
        let entries = self.entered.position().map_or(0, |position| position.entries);
        let fresh_max = (entries / FRESH.0).min(FRESH_OF_ALL / lanes.max(1) as u64).max(FRESH.1);
        let runs_max = (entries / RUNS.0).clamp(RUNS.1, RUNS.2);
        for _ in 0..4 + changes / 8 {
            let runs = self.run - self.oldest;
            if self.fresh() as u64 <= fresh_max && runs <= runs_max {
                break;
            }
            self.sweep_on()?;
        }
        if self.filter.is_full() {
            let mut filter = Filter::new(usize::try_from(entries).unwrap_or(0) + 4_096);
            self.entered.each_from(&[], |key, _| {
                if let Some(name) = named_by(key) {
                    filter.add(name);
                }
                ControlFlow::Continue(())
            })?;
            self.filter = filter;
        }
        Ok(())
    }

    pub(super) fn fresh(&self) -> usize {
        self.entered.view().fresh.len()
    }

    /// Writes the next few leaves that something fresh belongs to.
    fn sweep_on(&mut self) -> Result<(), Trouble> {
        let mut batch = Batch::default();
        let mut swept: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::with_capacity(SWEEP);
        let mut at = Some(self.round.cursor.clone());
        let view = self.entered.view();
        while swept.len() < SWEEP
            && let Some(from) = &at
        {
            let Some((key, _)) = view.fresh.range::<[u8], _>(range(from, None)).next() else {
                at = None;
                break;
            };
            let (from, next) = self.sweep_leaf(&view.fresh, key, &mut batch)?;
            at = next.clone();
            swept.push((from, next));
        }
        drop(view);
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
        self.entered.tree.write(batch)?;
        (self.round, self.oldest) = (round, prune_to);
        let mut view = self.entered.view_mut();
        for (from, next) in swept {
            let from = Bound::Included(from.into_boxed_slice());
            let next = next.map_or(Bound::Unbounded, |next| Bound::Excluded(next.into()));
            view.fresh.extract_if((from, next), |_, _| true).for_each(drop);
        }
        Ok(())
    }

    /// Merges what is fresh into the leaf of a key; tells the range that this covers.
    fn sweep_leaf(
        &self,
        fresh: &Fresh,
        key: &[u8],
        batch: &mut Batch,
    ) -> Result<(Vec<u8>, Option<Vec<u8>>), Trouble> {
        let mut leaves = vec![self.entered.leaf(key)?];
        let from = leaves[0].from.clone();
        let mut next = leaves[0].next.clone();
        let size_of = |leaf: &Leaf| {
            let fresh = fresh.range::<[u8], _>(range(&leaf.from, leaf.next.as_deref()));
            let fresh = fresh.map(|(key, value)| key.len() + value.as_ref().map_or(0, |v| v.len()));
            leaf.len() + fresh.sum::<usize>()
        };
        let mut size = size_of(&leaves[0]);
        while size < LEAF_MIN
            && let Some(name) = next
        {
            let leaf = self.entered.leaf(&name)?;
            batch.remove(&named(LEAF, &leaf.from));
            size += size_of(&leaf);
            next = leaf.next.clone();
            leaves.push(leaf);
        }
        let part = size / (size / LEAF_MAX + 1);
        let mut writer = Writer::default();
        let mut begin = from.clone();
        for leaf in &leaves {
            let fresh = fresh.range::<[u8], _>(range(&leaf.from, leaf.next.as_deref()));
            let _ = merged(leaf.entries()?, fresh, &[], |key, value| {
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
