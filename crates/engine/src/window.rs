//! Tracks which offsets of one partition are still pending, and writes them into a commit.
//!
//! Records complete out of order. A commit has the low watermark. Its metadata says which offsets between the watermark
//! and the last one read are pending. Every other offset there is done, seen or not (transaction markers, aborted and
//! compacted records are never seen). The bytes are those of [`code`].
//!
//! # Invariants
//! 1. An offset is done only after [`finish`](Window::finish), or when the log no longer shows it.
//! 2. Loading a commit and reading again from its offset meets every pending offset once, as pending, and every other
//!    offset below [`upto`](Window::upto) as [`OffsetState::Done`].
//! 3. Metadata is never longer than [`METADATA_MAX`]: `room` allows only what even the worst order of completion can
//!    bear, because finishing never makes the encoding longer (see [`code`]).
//! 4. Memory follows the blocks of offsets that hold something pending, not the distance between them.
//!
//! It does not keep records, know their due times, or talk to Kafka.

use std::collections::VecDeque;

use super::Offset;

mod code;

use code::{BLOCK_SHIFT, Block, PENDING_BITS_MAX};
pub use code::{METADATA_MAX, WindowError};

/// The state of an offset when its record is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetState {
    /// Read for the first time: it is pending from now on.
    New,
    /// Pending when it was loaded (or before a rewind), and read again: handle it.
    Known,
    /// Handled before the crash: skip it, and do not finish it.
    Done,
}

/// The answer to [`Window::begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Began {
    /// What to do with the record.
    pub state: OffsetState,
    /// Pending offsets below this one that were expected again and not shown: they were deleted under us.
    /// They are given up here and now; the caller counts them.
    pub lost: u32,
}

/// The pending offsets of one partition.
#[derive(Clone, Debug)]
pub struct Window {
    /// Blocks in order; those in the middle may have become empty.
    blocks: VecDeque<Block>,
    /// How many of `blocks` are empty.
    hollow: usize,
    /// How many offsets are pending.
    pending: usize,
    /// The lowest pending offset, or `upto`.
    low: i64,
    /// One past the last offset read, now or before what was loaded.
    upto: i64,
    /// The next offset that may be shown again; equal to `known` when all were.
    cursor: i64,
    /// Offsets below this one were read before: they are not new.
    known: i64,
    /// Bits that all blocks but the open one take at most, whatever finishes.
    sealed_bits: usize,
    /// The block that new offsets go into; it is accounted for at its worst.
    open: Option<i64>,
    /// Bits that the open block takes at most.
    open_bits: usize,
    /// Whether a restart from the last commit would do something again that need not be.
    changed: bool,
}

impl Window {
    /// Takes up what a commit said: `next` is the first offset to read, `metadata` what [`commit`](Self::commit)
    /// returned with it. Empty metadata: nothing from `next` on was read.
    ///
    /// # Errors
    /// The metadata is not ours or damaged. Nothing is known of the offsets above `next` then, and reading on
    /// may deliver twice: the caller stops and names the partition.
    pub fn load(next: Offset, metadata: &str) -> Result<Self, WindowError> {
        let (upto, blocks) = code::decode(next.0, metadata)?;
        let mut window = Self::of(next, upto, blocks);
        window.settle();
        window.measure();
        Ok(window)
    }

    fn of(next: Offset, upto: i64, blocks: Vec<Block>) -> Self {
        Self {
            hollow: 0,
            pending: blocks.iter().map(Block::count).sum(),
            blocks: blocks.into(),
            low: next.0,
            upto,
            cursor: next.0,
            known: upto,
            sealed_bits: 0,
            open: None,
            open_bits: 0,
            changed: false,
        }
    }

    /// A log of which nothing was read yet: reading begins at `next`.
    #[must_use]
    pub fn empty(next: Offset) -> Self {
        Self::of(next, next.0, Vec::new())
    }

    /// Corrects a position whose log now begins at `start`, beyond it. Gives where to go on, the metadata for that, and
    /// the number of lost offsets. Pending offsets before `start` are given up. Offsets above it that are done stay
    /// done.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn cut(
        next: Offset,
        metadata: &str,
        start: Offset,
    ) -> Result<(Offset, String, u64), WindowError> {
        let mut window = Self::load(next, metadata)?;
        let unread = start.0.saturating_sub(window.upto).max(0).unsigned_abs();
        let lost = unread + u64::from(window.pass(start));
        let (low, metadata) = window.commit_anyway();
        Ok((low, metadata, lost))
    }

    /// How much of what a commit can say is taken, at the worst, in thousandths. At 1000 reading stops.
    #[must_use]
    pub fn fill_permille(&self) -> u32 {
        ((self.sealed_bits + self.open_bits) * 1_000).div_ceil(PENDING_BITS_MAX).min(1_000) as u32
    }

    /// Whether the record at `offset` may begin: its pending mark is sure to fit into every later commit. What was
    /// read before may always begin again. When false, spill the [`lowest`](Self::lowest), and commit.
    #[must_use]
    pub fn room(&self, offset: Offset) -> bool {
        let block = offset.0 >> BLOCK_SHIFT;
        if offset.0 < self.upto || self.open == Some(block) {
            return true;
        }
        let (sealed_bits, open_bits) = if self.cursor < self.known {
            // What is skipped by reading this one will be given up, and must not bar its way.
            self.bits_below(self.cursor)
        } else {
            (self.sealed_bits, self.open_bits)
        };
        let new_bits = code::worst_bits(self.last_index(), block);
        sealed_bits + open_bits + new_bits <= PENDING_BITS_MAX
    }

    /// A record was read. Offsets increase strictly from the loaded `next` (or from a rewind) on.
    pub fn begin(&mut self, offset: Offset) -> Began {
        let at = offset.0;
        if self.cursor < self.known || at < self.upto {
            return self.begin_again(at);
        }
        self.mark(at);
        Began { state: OffsetState::New, lost: 0 }
    }

    /// The record's outcome is in the batch that is being closed. It must have begun and not finished yet.
    pub fn finish(&mut self, offset: Offset) {
        let cleared = self.clear(offset.0);
        debug_assert!(cleared, "{offset:?} finished but not pending");
        if offset.0 == self.low {
            self.settle();
        }
    }

    /// As [`finish`](Self::finish), of a record that a commit [said](Self::commit_with) to be done.
    pub fn finish_told(&mut self, offset: Offset) {
        let changed = self.changed;
        self.finish(offset);
        self.changed = changed;
    }

    /// Reading has reached `next` without a record before it (the end of the log, say). Answers how many pending
    /// offsets were expected before it and are given up, as in [`Began::lost`].
    pub fn pass(&mut self, next: Offset) -> u32 {
        let lost = self.give_up(next.0);
        if self.pending == 0 && next.0 > self.upto {
            (self.low, self.upto) = (next.0, next.0);
            (self.cursor, self.known) = (next.0, next.0);
        }
        lost
    }

    /// Everything read from `from` on was dropped and will be read again: it begins as [`OffsetState::Known`] then.
    pub fn rewind(&mut self, from: Offset) {
        let read = if self.cursor < self.known { self.cursor } else { self.upto };
        self.cursor = from.0.min(read);
        self.known = self.upto;
    }

    /// The low watermark: everything below is done. The offset to commit.
    #[must_use]
    pub fn low(&self) -> Offset {
        Offset(self.low)
    }

    /// One past the last offset that was read, here or before a crash.
    #[must_use]
    pub fn upto(&self) -> Offset {
        Offset(self.upto)
    }

    /// Whether the record at an offset is not done, as far as is known here: also if it was not read.
    #[must_use]
    pub fn is_open(&self, offset: Offset) -> bool {
        let index = offset.0 >> BLOCK_SHIFT;
        let at = self.blocks.binary_search_by_key(&index, |block| block.index);
        offset.0 >= self.upto || at.is_ok_and(|at| self.blocks[at].has(offset.0))
    }

    /// How many offsets are pending, those included that are still to be read again.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Bytes of memory in use, for the budget.
    #[must_use]
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.blocks.capacity() * size_of::<Block>()
    }

    /// The position is to be committed, even if nothing finishes.
    pub fn touch(&mut self) {
        self.changed = true;
    }

    /// Whether a restart from the last commit would do something again that need not be.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.changed
    }

    /// What to commit, if anything finished since the last call: the low watermark and the metadata for it, at most
    /// [`METADATA_MAX`] ASCII characters. Offsets that only began need no commit: a restart reads them anyway.
    pub fn commit(&mut self) -> Option<(Offset, String)> {
        if self.changed { Some(self.commit_anyway()) } else { None }
    }

    /// As [`commit`](Self::commit), even if nothing finished.
    pub fn commit_anyway(&mut self) -> (Offset, String) {
        self.changed = false;
        self.measure();
        let metadata = code::encode(self.low, self.upto, &self.blocks);
        debug_assert!(metadata.len() <= METADATA_MAX, "begun without room");
        (Offset(self.low), metadata)
    }

    /// As [`commit_anyway`](Self::commit_anyway), as if these were done, too. They are pending here until
    /// [`finish_told`](Self::finish_told): a commit that fails has changed nothing.
    pub fn commit_with(&mut self, finished: &[Offset]) -> (Offset, String) {
        self.changed = false;
        if finished.is_empty() {
            return self.commit_anyway();
        }
        let mut then = self.clone();
        finished.iter().for_each(|offset| then.finish(*offset));
        then.commit_anyway()
    }

    /// The lowest `n` pending offsets in order, for spilling; only those whose record was read here.
    pub fn lowest(&self, n: usize) -> impl Iterator<Item = Offset> {
        let shown = if self.cursor < self.known { self.cursor } else { i64::MAX };
        self.blocks
            .iter()
            .flat_map(Block::offsets)
            .take_while(move |at| *at < shown)
            .take(n)
            .map(Offset)
    }

    fn last_index(&self) -> Option<i64> {
        self.blocks.iter().rev().find(|block| !block.is_empty()).map(|block| block.index)
    }

    #[cold]
    fn begin_again(&mut self, at: i64) -> Began {
        let lost = self.give_up(at);
        self.cursor = at.saturating_add(1).clamp(self.cursor, self.known.max(self.cursor));
        let state = if at >= self.upto {
            self.measure();
            self.mark(at);
            OffsetState::New
        } else if self.find(at).is_some_and(|i| self.blocks[i].has(at)) {
            OffsetState::Known
        } else {
            OffsetState::Done
        };
        Began { state, lost }
    }

    /// Clears what was expected in `[cursor, before)` and not shown.
    fn give_up(&mut self, before: i64) -> u32 {
        let before = before.min(self.known);
        let mut lost = 0;
        while self.cursor < before {
            let first = self.blocks.partition_point(|block| block.end() <= self.cursor);
            let next =
                self.blocks.range(first..).flat_map(Block::offsets).find(|at| *at >= self.cursor);
            let Some(at) = next.filter(|at| *at < before) else {
                self.cursor = before;
                break;
            };
            self.clear(at);
            self.cursor = at + 1;
            lost += 1;
        }
        if lost > 0 {
            self.settle();
            self.measure();
        }
        lost
    }

    /// Adds a pending offset above all others.
    fn mark(&mut self, at: i64) {
        let index = at >> BLOCK_SHIFT;
        if self.open != Some(index) {
            self.open_block(index);
        }
        if self.pending == 0 {
            self.low = at;
        }
        match self.blocks.back_mut() {
            Some(block) if block.index == index => {
                self.hollow -= usize::from(block.is_empty());
                block.set(at);
            }
            _ => self.blocks.push_back(Block::with(at)),
        }
        self.pending += 1;
        self.upto = at.saturating_add(1);
    }

    /// Takes the open block at its cost as it stands, and the new one at its worst.
    fn open_block(&mut self, index: i64) {
        let worst = code::worst_bits(self.last_index(), index);
        if let (Some(open), Some(last)) = (self.open, self.blocks.back())
            && last.index == open
            && !last.is_empty()
        {
            let gap = self.open_bits - code::BLOCK_BITS_MAX;
            self.sealed_bits += gap + code::bits(last, self.low);
        }
        (self.open, self.open_bits) = (Some(index), worst);
    }

    fn find(&self, at: i64) -> Option<usize> {
        let index = at >> BLOCK_SHIFT;
        // Without gaps the place is the distance; with gaps it can only be lower.
        let guess = usize::try_from(index - self.blocks.front()?.index).ok()?;
        if self.blocks.get(guess).is_some_and(|block| block.index == index) {
            return Some(guess);
        }
        self.blocks.binary_search_by_key(&index, |block| block.index).ok()
    }

    /// Takes an offset out, leaving `low` to [`settle`](Self::settle).
    fn clear(&mut self, at: i64) -> bool {
        let Some(place) = self.find(at) else { return false };
        let block = &mut self.blocks[place];
        if !block.clear(at) {
            return false;
        }
        self.changed = true;
        self.pending -= 1;
        if block.is_empty() {
            self.hollow += 1;
            // Half of them must have become empty for each sweep, so it costs O(1) per block.
            if self.hollow > 32 && self.hollow * 2 > self.blocks.len() {
                self.blocks.retain(|block| !block.is_empty());
                self.hollow = 0;
            }
        }
        true
    }

    /// Moves `low` up to the lowest pending offset.
    fn settle(&mut self) {
        if self.pending == 0 {
            self.blocks.clear();
            (self.hollow, self.sealed_bits, self.open, self.open_bits) = (0, 0, None, 0);
            self.low = self.upto;
            return;
        }
        while let Some(block) = self.blocks.front() {
            if let Some(first) = block.first(self.low) {
                self.low = first;
                return;
            }
            self.blocks.pop_front();
            self.hollow -= 1;
        }
    }

    /// Takes every block at its cost as it stands, but the open one.
    fn measure(&mut self) {
        (self.sealed_bits, self.open_bits) = self.bits_below(i64::MAX);
    }

    /// What sealed blocks and the open one take at most, of those with something pending below `end`.
    fn bits_below(&self, end: i64) -> (usize, usize) {
        let (mut last, mut sealed_bits) = (None, 0);
        for block in &self.blocks {
            let shown = block.first(self.low).is_some_and(|first| first < end);
            if shown && self.open != Some(block.index) {
                sealed_bits += code::gap_bits(last, block.index) + code::bits(block, self.low);
                last = Some(block.index);
            }
        }
        (sealed_bits, self.open.map_or(0, |open| code::worst_bits(last, open)))
    }
}

#[cfg(test)]
mod tests;
