//! What an engine tells of itself, for the metrics. Each part counts its own.

use super::{Offset, Source, UnixMillis};

/// Counts since the start, and what is held now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes of records held: buffers, wheel, parked, hop buffer, batches.
    pub memory_bytes: usize,
    /// Records in the wheel.
    pub waiting: usize,
    /// Tasks that wait in memory until their scope has a credit.
    pub tasks_waiting: usize,
    /// Tasks that wait in tiers though they are overdue, by what they wait for.
    pub tasks_overdue: TasksOverdue,
    /// Credits of the tasks that workers hold.
    pub tasks_credits: usize,
    /// Tasks that were dispatched.
    pub tasks_dispatched: u64,
    /// Tasks that schedules have submitted.
    pub occurrences: u64,
    /// Nominal times of schedules that passed without a task. Of those that nobody was there for at most one is counted.
    pub occurrences_skipped: u64,
    /// Shards of runs that were created.
    pub shards_created: u64,
    /// Runs that have shards and have not ended.
    pub runs_open: usize,
    /// Times that an overdue task was put off.
    pub tasks_put_off: u64,
    /// Results and copies of tasks that counted no more.
    pub tasks_stale: u64,
    /// Lanes that run here.
    pub lanes: usize,
    /// Partitions that are paused.
    pub paused: usize,
    /// The fullest window, in thousandths of what a commit can say; at 1000 its partition is not read.
    pub window_permille: u32,
    /// Pending records that were gone when their partition was read again: deleted under us.
    pub lost: u64,
    /// Partitions whose committed metadata could not be read: their lanes rest until somebody has looked.
    pub unreadable: u64,
    /// Records that hopped again to free a window or memory.
    pub spilled: u64,
    /// Due records that were deferred: they went back to a tier because of an outage of their target.
    pub deferred: u64,
    /// Due records that went back to a tier because their target is paused.
    pub put_off_paused: u64,
    /// Due records that went back to a tier because of the rate of their target.
    pub over_rate: u64,
    /// Due records that wait in memory for the rate of their target.
    pub rated: usize,
    /// Records and targets that Kafka may have refused, and that are being found out about.
    pub suspects: usize,
    /// Groups of suspects that failed and were halved.
    pub halvings: u64,
    /// Timers that are pending.
    pub live: usize,
    /// Timers that have a cancel mark.
    pub remembered: usize,
    /// Due records with an id that wait until the lane knows that no cancel was there in time.
    pub gated: usize,
    /// Due records with a key that wait for their order.
    pub ordered: usize,
    /// Records that wait to hear what has ended of their timer.
    pub recalling: usize,
    /// Hops that came to stand later than their tier needs and were committed, counted once for a partition and batch.
    pub late_hops: u64,
    /// Records whose id was pending already: nothing was done with them.
    pub duplicates: u64,
    /// Pending versions that another one replaced.
    pub superseded: u64,
    /// Timers that were overdue and whose records were gone.
    pub lost_timers: u64,
    /// When the record is due that is the first of all in memory that are not in their targets.
    pub first_due: Option<UnixMillis>,
}

/// How many tasks wait in tiers though they are overdue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TasksOverdue {
    /// Their project or service is paused.
    pub paused: usize,
    /// Their service or project has enough to do.
    pub limit: usize,
    /// A worker could not call their service, and it has not answered often enough since.
    pub breaker: usize,
}

impl Figures {
    /// The first record that a part holds is due then.
    pub(super) fn due(&mut self, first: Option<UnixMillis>) {
        self.first_due = self.first_due.into_iter().chain(first).min();
    }
}

/// How far a partition was read, and what of that is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The partition.
    pub source: Source,
    /// One past the last offset read.
    pub upto: Offset,
    /// Offsets below that are pending.
    pub pending: usize,
}
