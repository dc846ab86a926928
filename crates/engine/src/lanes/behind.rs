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
        Behind::Ready(self.taken + self.ready.len() as u64)
    }

    /// Whether that is committed.
    pub(super) fn is_committed(&self, behind: &mut Behind) -> bool {
        if let Behind::Ready(ready) = *behind
            && self.taken >= ready
        {
            *behind = Behind::Sealed(self.next_batch);
        }
        let first = self.in_flight.front();
        matches!(*behind, Behind::Sealed(batch) if first.is_none_or(|first| first.id >= batch))
    }
}
