//! Earlier decisions, until they are committed. The index knows only what is committed, and logs have only what is. So a
//! query to the index, and a search of the logs, wait for the decisions before them.

use super::super::BatchId;
use super::batches::Batches;
use super::writes::Writes;

/// Where that is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Behind {
    /// On its way into a batch: writes before this one.
    Ready(u64),
    /// In this batch, or in one before it.
    Sealed(BatchId),
}

impl Behind {
    /// All that is decided by now.
    pub(super) fn all(writes: &Writes) -> Self {
        Self::Ready(writes.next_number())
    }

    /// Whether that is committed.
    pub(super) fn is_committed(&mut self, writes: &Writes, batches: &Batches) -> bool {
        if let Self::Ready(ready) = *self
            && writes.are_taken(ready)
        {
            *self = Self::Sealed(batches.next());
        }
        matches!(*self, Self::Sealed(batch) if batches.have_landed(batch))
    }
}
