//! What is asked, and in which order, until a member knows where its partitions begin.
//!
//! # Invariants
//! 1. Committed offsets are asked for only after an earlier transaction of ours is decided: nothing is read twice.
//! 2. The ends of the logs are asked for after the committed offsets. So a reader that reads up to there misses nothing of
//!    what was done by then.
//! 3. Checkpoints are read only where the group has no position, and after the ends.
//! 4. Nothing is said to be lost by a position that was asked for before the log's start. A member that stood still in
//!    between would take for lost what another one has done, committed and deleted. So the committed offsets are asked
//!    for once more, and everything starts again if they have changed.

use std::collections::BTreeMap;

use super::positions::{Checkpoint, Facts, LogBounds, Plan, PositionGone, Positions, Rules};
use crate::{Offset, Source};

/// Committed offsets that have changed so often belong to somebody else.
const TURNS_MAX: u32 = 4;

/// What is to be asked next.
#[derive(Debug)]
pub enum Ask {
    /// The committed offsets of all partitions, none of which waits for a transaction.
    Committed,
    /// Where the logs of all partitions begin and end, and which topics these are.
    Logs,
    /// Our own checkpoints.
    Checkpoints,
    /// Nothing: the partitions begin there.
    Begin(Plan),
}

/// Why the partitions cannot be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeOverError {
    /// A person has to decide.
    #[error("the position of partition {} is gone", .0.source.lane.0)]
    Gone(PositionGone),
    /// Somebody else commits. Trying again helps.
    #[error("somebody else commits positions of these partitions")]
    Unsettled,
}

/// A take-over that is under way.
#[derive(Debug)]
pub struct TakeOver {
    partitions: Vec<Source>,
    intakes: usize,
    committed: Vec<Option<(Offset, String)>>,
    logs: Vec<LogBounds>,
    ids: Vec<String>,
    checkpoints: BTreeMap<Source, Checkpoint>,
    /// The logs are known, and the committed offsets are asked for once more.
    asks_again: bool,
    /// The committed offsets are at least as new as the bounds of the logs.
    is_sure: bool,
    turns: u32,
}

impl TakeOver {
    /// Begins, once an earlier transaction of ours is decided. The first question is for the committed offsets. The first of
    /// the topics are so many intakes.
    #[must_use]
    pub fn new(partitions: Vec<Source>, intakes: usize) -> Self {
        Self {
            partitions,
            intakes,
            committed: Vec::new(),
            logs: Vec::new(),
            ids: Vec::new(),
            checkpoints: BTreeMap::new(),
            asks_again: false,
            is_sure: false,
            turns: 0,
        }
    }

    /// The partitions, in the order in which answers name them.
    #[must_use]
    pub fn partitions(&self) -> &[Source] {
        &self.partitions
    }

    /// How many partitions have no committed offset.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.committed.iter().filter(|position| position.is_none()).count()
    }

    /// The committed offsets and their metadata.
    ///
    /// # Errors
    /// The partitions cannot be taken over.
    pub fn committed<R: Rules>(
        &mut self,
        committed: Vec<Option<(Offset, String)>>,
        positions: &Positions,
    ) -> Result<Ask, TakeOverError> {
        let is_again = std::mem::replace(&mut self.asks_again, false);
        if is_again && committed == self.committed {
            self.is_sure = true;
            return self.decide::<R>(positions);
        }
        self.committed = committed;
        self.turns += 1;
        if self.turns > TURNS_MAX { Err(TakeOverError::Unsettled) } else { Ok(Ask::Logs) }
    }

    /// Where the logs begin and end, and the ids of the topics, which are empty where topics have none.
    ///
    /// # Errors
    /// The partitions cannot be taken over.
    pub fn logs<R: Rules>(
        &mut self,
        logs: Vec<LogBounds>,
        ids: Vec<String>,
        positions: &Positions,
    ) -> Result<Ask, TakeOverError> {
        (self.logs, self.ids) = (logs, ids);
        if self.missing() > 0 { Ok(Ask::Checkpoints) } else { self.decide::<R>(positions) }
    }

    /// All checkpoints that there are, by partition. One of a topic that is none of ours has an index beyond all topics.
    ///
    /// # Errors
    /// The partitions cannot be taken over.
    pub fn checkpoints<R: Rules>(
        &mut self,
        checkpoints: BTreeMap<Source, Checkpoint>,
        positions: &Positions,
    ) -> Result<Ask, TakeOverError> {
        self.checkpoints = checkpoints;
        self.decide::<R>(positions)
    }

    fn decide<R: Rules>(&mut self, positions: &Positions) -> Result<Ask, TakeOverError> {
        let plan = positions.plan::<R>(&Facts {
            partitions: &self.partitions,
            committed: &self.committed,
            logs: &self.logs,
            checkpoints: &self.checkpoints,
            ids: &self.ids,
            intakes: self.intakes,
        });
        match plan {
            Ok(plan) if self.is_sure || !plan.is_doubtful() => Ok(Ask::Begin(plan)),
            Err(gone) if self.is_sure => Err(TakeOverError::Gone(gone)),
            Ok(_) | Err(_) => {
                self.asks_again = true;
                Ok(Ask::Committed)
            }
        }
    }
}

#[cfg(test)]
mod tests;
