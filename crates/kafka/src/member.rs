//! The lane threads and the worker of a process: members of groups, which take partitions over, read and commit.
//!
//! They know no index and no API. The part that keeps their lanes' timers implements [`Timers`].

mod changelog_end;
mod checkpoint;
mod commit;
mod fence;
mod group_topics;
mod inventory;
mod lane_batches;
mod lanes;
mod load;
mod rebalance;
mod sign;
mod thread;
mod timers;
mod work_batches;
mod workers;

pub use changelog_end::Written;
pub use commit::Delivery;
pub use lanes::{ClusterView, LaneThreads, Settings};
pub use rebalance::Error as TakeOverError;
pub use thread::{Calls, Error, Policies, Status};
pub use timers::{AssignmentEvent, TakenOver, Timers};
pub use workers::{Ends, EndsHeard, WorkerParts, WorkerPlan, WorkerThread, WorkerView};
