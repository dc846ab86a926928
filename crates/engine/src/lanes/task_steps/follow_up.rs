//! Follow-ups: what a lane submits when a task ends that wishes it (`on_result`).
//!
//! # Invariants
//! 1. A follow-up is in the transaction that says how its task ended.
//! 2. Nobody is told of what was cancelled, has expired or was lost.
//! 3. A lane that ends a task has what its follow-up needs at hand: in the record that brings the payload, in the result of a worker,
//!    or, of a task whose executor reports, in memory.

use std::sync::Arc;

use super::super::super::header::{self, Code, Refusal};
use super::super::super::messages::Produce;
use super::super::super::sealed;
use super::super::super::task::follow_up::{End, FollowUp};
use super::super::super::task::result::TaskResult;
use super::super::super::timers::{Progress, RunProgress, ShardCounts, Version};
use super::super::super::verdict::PendingRecord;
use super::super::writes::PendingWrite;
use super::{Lane, LaneEngine, Record, UnixMillis};

/// A task that has ended, as far as its follow-up says more of it than its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Of<'a> {
    pub(super) lane: Lane,
    pub(super) follow_up: &'a FollowUp,
    /// A record that has its id.
    pub(super) record: &'a Record,
    pub(super) version: Version,
    pub(super) trigger: UnixMillis,
    pub(super) last: Option<&'a TaskResult>,
    /// Of a run that has some.
    pub(super) shards: Option<ShardCounts>,
}

impl LaneEngine {
    /// The follow-up of the task of a record, which ends now; `None`: nobody is told.
    pub(crate) fn follow_up(
        &self,
        now: UnixMillis,
        entry: &PendingRecord,
        progress: Progress,
        failed: Option<(Code, Option<&Refusal>)>,
    ) -> Option<Produce> {
        let task = entry.task.as_ref()?;
        let run = entry.timer_id.and_then(|timer_id| self.timers.tasks.run(timer_id));
        let of = Of {
            lane: entry.source.lane,
            follow_up: task.follow_up.as_ref()?,
            record: &entry.record,
            version: entry.version(),
            trigger: task.trigger,
            last: task.last.as_deref(),
            shards: run.map(RunProgress::counts_at_end),
        };
        let was_told = !matches!(failed, Some((Code::Expired, _)));
        was_told.then(|| self.follow_up_of(now, of, progress, failed)).flatten()
    }

    /// The same, of one of which there is no such record.
    pub(super) fn follow_up_of(
        &self,
        now: UnixMillis,
        of: Of<'_>,
        progress: Progress,
        failed: Option<(Code, Option<&Refusal>)>,
    ) -> Option<Produce> {
        let Of { lane, follow_up, record, version, trigger, last, shards } = of;
        let directive = header::read(record.headers()).ok()?;
        let id = sealed::task_id(&directive).ok()?;
        let end = End {
            id: &id,
            version: (version.first_appended, version.offset),
            trigger,
            at: now,
            counts: (progress.turn, progress.attempts, progress.failures),
            failed,
            last,
            shards,
        };
        let record = sealed::follow_up(&self.setup.key, now, follow_up, &end);
        Some(Produce::submitted(lane, now, record))
    }

    /// Writes a follow-up, which leaves in the batch of the next write.
    pub(crate) fn write_follow_up(&mut self, follow_up: Option<Produce>) {
        if let Some(send) = follow_up {
            self.writes.push_with_next(PendingWrite::send(send));
        }
    }
}

impl PendingRecord {
    /// Remembers what ends the task of a record, if that is told.
    pub(super) fn ends_with(&mut self, result: &TaskResult) {
        if let Some(task) = self.task.as_mut().filter(|task| task.follow_up.is_some()) {
            task.last = Some(Box::new(result.clone()));
        }
    }

    /// What the lane keeps of a task whose executor reports how it ended, or whose shards do: that brings no payload.
    pub(crate) fn follow_up_of_awaited(&self) -> Option<Arc<FollowUp>> {
        let task = self.task.as_deref()?;
        let is_awaited = task.feedback.is_some() || task.run.is_some();
        task.follow_up.clone().filter(|_| is_awaited)
    }
}
