//! How much memory is held, and whether anything may be read.
//!
//! # Invariants
//! 1. All bytes of records are counted from when they are read until their batch has come back, or they are dropped.
//! 2. Over the budget nothing is read, until three quarters of it are held. While the process stops nothing is read.
//! 3. The buffers of all partitions may take a quarter of the budget together: beyond that each is kept to its share.
//! 4. Making room looks through all that waits. So it begins no more often than every [`SPILL_AGAIN`].

use super::figures::Figures;
use super::{Millis, UnixMillis};

/// Making room is tried again after this long.
const SPILL_AGAIN: Millis = Millis(250);

/// What is held, and what follows for reading.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Bytes of records held: buffers, wheel, parked, hop buffer, batches.
    bytes: usize,
    /// Those of them in the buffers of partitions.
    buffered: usize,
    /// Over the budget, until it is well below it.
    is_stopped: bool,
    /// Not tried to make room, or to free windows, before these.
    spill_at: UnixMillis,
    unblock_at: UnixMillis,
    is_draining: bool,
    /// Records that hopped again to free a window or memory.
    spilled: u64,
}

impl Memory {
    /// Everything that was held is dropped.
    pub(super) fn reset(&mut self) {
        let Self { is_draining, spilled, .. } = *self;
        *self = Self { is_draining, spilled, ..Self::default() };
    }

    // What is held.

    /// A record was read into the buffer of its partition.
    pub(super) fn buffer(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.buffered += bytes;
    }

    /// A partition has let a record go, which is still held.
    pub(super) fn unbuffer(&mut self, bytes: usize) {
        self.buffered -= bytes;
    }

    /// A record is held that was read before.
    pub(super) fn hold(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// These are not held any more.
    pub(super) fn free(&mut self, bytes: usize) {
        self.bytes -= bytes;
    }

    // Whether to read.

    /// The process is to stop.
    pub(super) fn drain(&mut self) {
        self.is_draining = true;
    }

    pub(super) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Derives from what is held whether reading is stopped.
    pub(super) fn update(&mut self, budget: usize) -> bool {
        let most = if self.is_stopped { budget / 4 * 3 } else { budget };
        self.is_stopped = self.is_draining || self.bytes > most;
        self.is_stopped
    }

    /// Whether reading was stopped when that was looked at last.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Whether not even what others wait for may be read. `first`: the size of the very first record that waits, which
    /// does not count, since it cannot be let go.
    pub(super) fn is_over_hard_limit(&self, budget: usize, first: impl FnOnce() -> usize) -> bool {
        let most = budget / 4 * 5;
        self.bytes > most && self.bytes > most + first()
    }

    /// How much the buffer of one partition of these may take.
    pub(super) fn share(&self, budget: usize, partitions: usize) -> usize {
        if self.buffered <= budget / 4 {
            budget / 8
        } else {
            (budget / 4 / partitions).max(64 << 10)
        }
    }

    // Making room.

    /// How many bytes are to be freed.
    pub(super) fn excess(&self, budget: usize) -> usize {
        self.bytes.saturating_sub(budget / 4 * 3)
    }

    /// Whether room may be made now, and when to look again.
    pub(super) fn begin_spill(&mut self, now: UnixMillis) -> (bool, UnixMillis) {
        let may = self.spill_at <= now;
        if may {
            self.spill_at = now + SPILL_AGAIN;
        }
        (may, self.spill_at)
    }

    /// When windows may be freed next.
    pub(super) fn unblock_at(&self) -> UnixMillis {
        self.unblock_at
    }

    /// Windows are being freed; says when they may be freed next.
    pub(super) fn begin_unblock(&mut self, now: UnixMillis) -> UnixMillis {
        self.unblock_at = now + SPILL_AGAIN;
        self.unblock_at
    }

    /// Records hop once more.
    pub(super) fn count_spilled(&mut self, records: usize) {
        self.spilled += records as u64;
    }

    /// Counts for the metrics.
    pub(super) fn count(&self, figures: &mut Figures) {
        (figures.memory_bytes, figures.spilled) = (self.bytes, self.spilled);
    }
}
