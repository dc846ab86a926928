//! Earlier decisions, until they are committed. The index knows only what is committed. So a query to the index waits
//! for the decisions before it.

use super::super::BatchId;
use super::LaneEngine;

/// Where that is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Behind {
    /// On its way into a batch: these many are ready before it.
    Ready(u64),
    /// In this batch, or in one before it.
    Sealed(BatchId),
}

impl LaneEngine {
    /// All that is decided by now.
    pub(super) fn decided(&self) -> Behind {
        Behind::Ready(self.writes.next_number())
    }

    /// Whether that is committed.
    pub(super) fn is_committed(&self, behind: &mut Behind) -> bool {
        if let Behind::Ready(ready) = *behind
            && self.writes.are_taken(ready)
        {
            *behind = Behind::Sealed(self.batches.next());
        }
        matches!(*behind, Behind::Sealed(batch) if self.batches.have_landed(batch))
    }
}
