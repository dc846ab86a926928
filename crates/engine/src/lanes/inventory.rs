//! Counts the rest of a lane of which records were found gone: timers without a record end as lost at once.
//!
//! A position that stands outside of its log shows that records are gone. To know which timers those were, the member
//! reads everything that is left, once, beside the lane's work. In memory that takes one bit of each pending timer.
//!
//! # Invariants
//! 1. A timer is lost if no record of its version was found. None was in memory when the count began. None was in what
//!    waited for a batch then, or in a batch, that had not landed before the lane's topics were read. None was among the
//!    records of those topics. None has come up since.
//! 2. A done record does not count: its copy stands in its topic for a while.
//! 3. A topic that was not read to its end loses no timer: the lane is counted again later. The same holds for an index
//!    that does not answer.
//! 4. A lane is counted until everything that follows from the count is committed. After a failed batch it is counted
//!    again. Until then the group has the position that was found outside of its log, if nothing behind that was done:
//!    another owner counts the lane again, too.
//!
//! What it does not see: a record that was read, and is deleted during the count. Its timer is overdue for
//! [`lost_after`](super::super::setup::Limits::lost_after) before it is lost.

use super::super::timers::After;
use super::batches::Batches;
use super::behind::Behind;
use super::writes::Writes;
use super::{BatchId, Lane, Millis};

/// A lane that could not be counted is counted again after this time.
pub(super) const AGAIN_AFTER: Millis = Millis(60_000);
/// More timers are asked for only while less than this waits to be written.
const READY_MAX: usize = 1_000;

/// A lane that is counted, and how far that is.
#[derive(Debug)]
pub(super) struct Counting {
    lane: Lane,
    at: At,
}

#[derive(Debug)]
enum At {
    /// Writes that were decided before the count began may carry what is missing.
    Landing(Behind),
    /// Its topics are read.
    Read,
    /// The index is to be asked for its timers from here on.
    List(Option<After>),
    /// It was asked.
    Listed,
    /// All missing timers have ended. Their timer changes are not in a batch yet.
    Reported,
    /// Nor committed: batches before this one may carry it.
    Written(BatchId),
}

/// What the count asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Wait,
    /// Read what is left of the lane's topics.
    Read,
    /// List its timers from here on.
    List(Option<After>),
    /// It is counted, and everything that follows from that is committed.
    Done,
}

impl Counting {
    /// Begins. What is decided by now may carry what is missing.
    pub(super) fn new(lane: Lane, behind: Behind) -> Self {
        Self { lane, at: At::Landing(behind) }
    }

    pub(super) fn lane(&self) -> Lane {
        self.lane
    }

    /// The next step of the count.
    pub(super) fn step(&mut self, writes: &Writes, batches: &Batches) -> Step {
        if let At::Landing(behind) = &mut self.at
            && behind.is_committed(writes, batches)
        {
            self.at = At::Read;
            return Step::Read;
        }
        match self.at {
            At::List(after) if writes.in_order() < READY_MAX => {
                self.at = At::Listed;
                Step::List(after)
            }
            At::Reported if !writes.reports_a_loss() => {
                self.at = At::Written(batches.next());
                self.step(writes, batches)
            }
            At::Written(batch) if batches.have_landed(batch) => Step::Done,
            At::Landing(_)
            | At::Read
            | At::List(_)
            | At::Listed
            | At::Reported
            | At::Written(_) => Step::Wait,
        }
    }

    /// A lane was read; false: not this one, or it was not to be read.
    pub(super) fn was_read(&mut self, lane: Lane) -> bool {
        let is_this = self.lane == lane && matches!(self.at, At::Read);
        if is_this {
            self.at = At::List(None);
        }
        is_this
    }

    /// The index has told of some of a lane's pending timers; false: it was not asked.
    pub(super) fn was_listed(&mut self, lane: Lane, more: Option<After>) -> bool {
        let is_this = self.lane == lane && matches!(self.at, At::Listed);
        if is_this {
            self.at = if more.is_some() { At::List(more) } else { At::Reported };
        }
        is_this
    }
}
