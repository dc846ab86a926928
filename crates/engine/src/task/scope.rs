//! Which partitions of `<ns>.tasks` serve a project or a service, and which share of a limit each of them has.
//!
//! Nobody coordinates the workers. Each partition of `<ns>.tasks` has one owner, and each owner works out from the
//! registry alone what its partitions may do. So every instance has to come to the same answer.
//!
//! # Invariants
//! 1. The shares of a concurrency add up to it, and each is at least one. Those of a rate add up to it. Those of a burst add up to
//!    no more than it.
//! 2. The partitions of a service are among those of its project.
//! 3. A lane dispatches only to a partition that serves the task's scope: [`Serving::partition_for`] is the only place that
//!    says to which.

use serde::{Deserialize, Serialize};

use super::bucket::Rate;
use crate::{Lane, murmur2};

/// Open calls that a project may have, if nothing else is said.
pub const PROJECT_CONCURRENCY: u32 = 256;
/// Open calls that a service or the host of a URL may have, if nothing else is said.
pub const SERVICE_CONCURRENCY: u32 = 64;

/// A partition of `<ns>.tasks`. It is told apart from a lane, as a lane dispatches to the partition of another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TasksPartition(pub u16);

/// What a project or a service may do at one time: all of it, or the share of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open calls.
    pub concurrency: u32,
    /// Calls that may begin in a time; `None`: any number.
    pub rate: Option<Rate>,
    /// Calls that may begin at once after a pause. It says nothing without a rate.
    pub burst: u32,
}

impl Limits {
    /// Limits of so many calls at one time and no rate.
    #[must_use]
    pub const fn of_concurrency(concurrency: u32) -> Self {
        Self { concurrency, rate: None, burst: 1 }
    }

    /// How many partitions can each have a share that is worth something. Each with a rate keeps one token, so there are no more
    /// of them than may begin at once.
    fn partitions(&self, lanes: u16) -> u16 {
        let calls = u16::try_from(self.concurrency).unwrap_or(u16::MAX);
        let tokens = |rate: Rate| rate.per_second_rounded_up().min(u64::from(self.burst));
        let rate = u16::try_from(self.rate.map_or(u64::MAX, tokens)).unwrap_or(u16::MAX);
        lanes.min(calls).min(rate).max(1)
    }
}

/// The partitions of `<ns>.tasks` that serve one scope: one behind the other from the first on, past the last goes on at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serving {
    first: u16,
    count: u16,
    lanes: u16,
}

impl Serving {
    /// Those of a project. `lanes`: partitions of `<ns>.tasks`, as many as there are lanes; of none there is one.
    #[must_use]
    pub fn of_project(project: &str, limits: &Limits, lanes: u16) -> Self {
        let lanes = lanes.max(1);
        // Projects begin at different places, so that small ones do not all burden the first partitions.
        let first = murmur2::partition(project.as_bytes(), lanes);
        Self { first, count: limits.partitions(lanes), lanes }
    }

    /// Of the project's, those of one of its services or of one host.
    #[must_use]
    pub fn of_service(&self, limits: &Limits) -> Self {
        Self { count: self.count.min(limits.partitions(self.lanes)), ..*self }
    }

    /// How many there are: at least one.
    #[must_use]
    pub fn count(&self) -> u16 {
        self.count
    }

    /// All of them, from the first on.
    pub fn partitions(&self) -> impl Iterator<Item = TasksPartition> + use<> {
        let serving = *self;
        (0..serving.count).map(move |k| serving.nth(k))
    }

    /// Where a lane dispatches tasks of this scope to.
    #[must_use]
    pub fn partition_for(&self, lane: Lane) -> TasksPartition {
        self.nth(lane.0 % self.count)
    }

    fn nth(&self, k: u16) -> TasksPartition {
        let at = (u32::from(self.first) + u32::from(k)) % u32::from(self.lanes);
        // The remainder is below a u16, so nothing is cut off.
        TasksPartition(at as u16)
    }

    /// Which of them a partition is, from 0; `None`: it does not serve the scope.
    #[must_use]
    pub fn position(&self, partition: TasksPartition) -> Option<u16> {
        let (at, lanes) = (u32::from(partition.0), u32::from(self.lanes));
        if at >= lanes {
            return None;
        }
        let k = ((at + lanes - u32::from(self.first)) % lanes) as u16;
        (k < self.count).then_some(k)
    }

    /// What a partition may do of what the scope may do; `None`: it does not serve the scope. `limits` are those that the
    /// partitions were made of.
    #[must_use]
    pub fn share(&self, limits: &Limits, partition: TasksPartition) -> Option<Limits> {
        let k = u32::from(self.position(partition)?);
        let count = u32::from(self.count);
        let one_more = u32::from(k < limits.concurrency % count);
        Some(Limits {
            concurrency: limits.concurrency / count + one_more,
            rate: limits.rate.map(|rate| rate.part_of(self.count)),
            burst: (limits.burst / count).max(1),
        })
    }
}

#[cfg(test)]
mod tests;
