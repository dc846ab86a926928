//! When all is decided and committed that was read of some partitions.
//!
//! # Invariants
//! 1. That is said only once each record before those ends was let go, has not to wait for the index any more, and what was
//!    decided about it is in a batch that was committed.

use super::behind::Behind;
use super::{LaneEngine, Offset, Source};

/// How far that is; none of it at first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Decided(Stage);

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    /// A full window may hold some back.
    #[default]
    Held,
    /// All were let go. Those of them that have to wait for the index have numbers before this one.
    Recalling(u64),
    /// All are decided.
    Behind(Behind),
}

impl LaneEngine {
    /// Whether all is decided and committed that stands before these ends. They must have been read, and `so_far` is what the last
    /// call left there.
    pub fn has_decided(&self, ends: &[(Source, Offset)], so_far: &mut Decided) -> bool {
        let Decided(stage) = so_far;
        if matches!(stage, Stage::Held) && self.partitions.have_let_go(ends) {
            *stage = Stage::Recalling(self.timers.past.next_number());
        }
        if let Stage::Recalling(before) = *stage
            && self.timers.past.first_number().is_none_or(|first| first >= before)
        {
            *stage = Stage::Behind(Behind::all(&self.writes));
        }
        match stage {
            Stage::Held | Stage::Recalling(_) => false,
            Stage::Behind(behind) => behind.is_committed(&self.writes, &self.batches),
        }
    }
}
