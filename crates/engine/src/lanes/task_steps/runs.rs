//! Runs: their shards, and what is heard of them.
//!
//! A run that is due creates its shards, so many in each transaction. Then its record waits for the deadline, as that of a task whose
//! executor reports. Each shard is an ordinary task of a lane of its own. What that lane writes to `<ns>.timers` of a shard, it says to
//! the lane of the run in the same transaction, by a record in `<ns>.results`. The run ends when its last shard has.
//!
//! # Invariants
//! 1. Shards that were created and how many there are stand in one transaction. After a crash the others follow.
//! 2. The end of a shard is in the transaction that tells its run of it. So no end gets lost, and one that is told twice changes nothing.
//! 3. A run that ends before its shards cancels them in the same transaction: how these end then does not count as theirs did before.
//! 4. What is said of another version of the run changes nothing.
//! 5. What ends a run is read again until the end is committed. So the run ends by what is known of its shards, new or not.

use std::ops::Range;

use super::super::super::Millis;
use super::super::super::header::{self, Code, Refusal};
use super::super::super::hold::Hold;
use super::super::super::messages::{ChangeReason, Destination, Outcome, Produce};
use super::super::super::run::{OnShardFailure, Run};
use super::super::super::sealed::{self, Submission};
use super::super::super::task::id::TaskId;
use super::super::super::task::request::Request;
use super::super::super::task::spec::Shard;
use super::super::super::timers::{
    Ended, Pending, Progress, RUN_TARGET, RunProgress, ShardNews, ShardReport, TimerFields,
    TimerId, TimerState, Version, group_of, progress, type_of_task,
};
use super::super::super::verdict::{self, Origin, PendingRecord, StateChange, refusal};
use super::super::builder::BatchBuilder;
use super::super::lifecycle::{Named, answer};
use super::super::poison::Beside;
use super::super::writes::PendingWrite;
use super::by_hand::Followed;
use super::follow_up::Of;
use super::{Lane, LaneEngine, Record, Source, UnixMillis, project_deleted};

/// While what a lane has heard is not read yet, a run whose deadline is over is looked at this often.
const LOOK_AGAIN: Millis = Millis(200);
/// Shards that are created in one transaction, and their bytes.
const SHARDS_AT_ONCE: (u32, usize) = (1_000, 1 << 20);

/// A run that is pending: its lane, its name, its version.
pub(crate) type OfRun = (Lane, TimerId, Pending);

/// Why a run ends.
#[derive(Clone, Copy)]
enum RunEnd {
    /// All shards have ended, or one has failed that ends it.
    Shards,
    /// Its deadline is over.
    Deadline,
}

impl LaneEngine {
    /// A run is due, or has shards to create yet.
    pub(super) fn create_shards(
        &mut self,
        now: UnixMillis,
        mut entry: Box<PendingRecord>,
        run: &Run,
        builder: &mut BatchBuilder,
    ) {
        let Some(timer_id) = entry.timer_id else { return };
        let lane = entry.source.lane;
        let known = self.timers.tasks.run(timer_id).cloned();
        let live = self.timers.table().live(lane, timer_id);
        if let (Some(of), Some(live)) = (&known, live)
            && of.until() <= now
        {
            return self.end_run(now, *entry, (lane, timer_id, live), RunEnd::Deadline);
        }
        let sound = if known.is_some() { Ok(()) } else { self.is_sound(now, &entry) };
        let named = entry.named_as(timer_id);
        let made = sound.and_then(|()| {
            let (id, request) = self.shards_of(&entry, run, now)?;
            let mut of = known.unwrap_or_else(|| {
                let stops = run.on_shard_failure() == OnShardFailure::Stop;
                RunProgress::new(run.shards(), now + run.deadline(), stops)
            });
            let bytes = request.value.as_ref().map_or(0, Vec::len) + entry.record.size();
            let most = (SHARDS_AT_ONCE.1 / bytes.max(1)).max(1) as u32;
            let from = of.created();
            of.create_to(from.saturating_add(most.min(SHARDS_AT_ONCE.0)));
            let shards = (from..of.created(), run.shards());
            Ok((self.creates_of(now, (&id, entry.version()), shards, request), of))
        });
        let (creates, of) = match made {
            Ok(made) => made,
            Err(refusal) => return self.refuse(now, *entry, refusal),
        };
        let before = self.timers.tasks.progress(timer_id).unwrap_or_default();
        let shards = shards_change(timer_id, &of);
        let shards = PendingWrite::timer_change(lane, shards, ChangeReason::Reported);
        let is_last = of.created() == of.shards();
        self.timers.tasks.count_shards(creates.len() as u64);
        if !is_last {
            let after = Progress { begun: true, next_at: now + Millis(1), ..before };
            for send in creates {
                self.writes.push_with_next(PendingWrite::send(send));
            }
            self.writes.push_with_next(shards);
            self.timers.tasks.set_run(timer_id, of);
            self.timers.set_progress(lane, timer_id, after);
            self.write_progress(now, &entry, after, TimerState::Delay);
            entry.due = after.next_at;
            return self.route(now, entry);
        }
        // From now on its record waits in a tier until its deadline, and nothing of it stands here.
        let after = Progress {
            turn: before.turn.saturating_add(1),
            begun: true,
            with_executor: true,
            next_at: of.until(),
            ..before
        };
        let made = header::read(entry.record.headers()).map(|directive| {
            let stage =
                StateChange { task: Some(after), ..StateChange::new(TimerState::Delay, now) };
            verdict::timer_change(&entry, &directive, stage)
        });
        let made = made.and_then(|said| Ok((said, self.copy_of_awaited(now, &mut entry, after)?)));
        let (said, send) = match made {
            Ok(made) => made,
            Err(refusal) => return self.refuse(now, *entry, refusal),
        };
        let run = Some(Box::new(of));
        let PendingRecord { source, offset, order, .. } = *entry;
        let named = Named { task: Some(after), ..named };
        let submitted = creates.into_iter().chain(shards.send).collect();
        let beside = Beside { timer: said, submitted, run, ..Beside::default() };
        self.load(now, builder, (source, offset), (send, order, None), Some(named), beside);
    }

    /// The id of a run, and what each of its shards is.
    fn shards_of(
        &self,
        entry: &PendingRecord,
        run: &Run,
        now: UnixMillis,
    ) -> Result<(TaskId, Request), Refusal> {
        let directive = header::read(entry.record.headers())?;
        let id = sealed::task_id(&directive)?;
        let label = entry.task.as_ref().map(|task| &*task.label);
        let of @ (project, _) = group_of(label).unwrap_or_default();
        if self.timers.tasks.registry().project(project).is_deleted {
            return Err(project_deleted(project));
        }
        let request = run.request(of, now).map_err(|wrongs| {
            let wrong = wrongs.first().map(ToString::to_string).unwrap_or_default();
            refusal(Code::BadTask, format!("its shards: {wrong}"))
        })?;
        Ok((id, request))
    }

    /// The creates of these shards, of so many in all.
    fn creates_of(
        &self,
        now: UnixMillis,
        (run, version): (&TaskId, Version),
        (indices, count): (Range<u32>, u32),
        request: Request,
    ) -> Vec<Produce> {
        let Request { mut spec, key, value, headers, .. } = request;
        let mut creates = Vec::with_capacity(indices.len());
        for index in indices {
            let id = run.shard((version.first_appended, version.offset), index);
            spec = spec.with_shard(Shard { index, count });
            let submission = Submission {
                id: &id,
                spec: &spec,
                due: now,
                expires: None,
                key: key.as_deref(),
                value: value.as_deref(),
                headers: &headers,
            };
            let record = sealed::submit(&self.setup.key, now, &submission);
            creates.push(Produce::submitted(id.lane_of(self.setup.lanes), now, record));
        }
        creates
    }

    // What is heard of shards.

    /// What the lane of a run is told with a change of one of its shards; `None`: it is none, or all of that was told.
    pub(crate) fn news_of_shard(&mut self, change: &Record) -> Option<Produce> {
        let (timer_id, fields) = TimerFields::of_task(change)?;
        // Most tasks are no shards.
        let (run, (first_appended, offset), index) =
            TaskId::read_shard(std::str::from_utf8(fields.id).ok()?)?;
        let news = news_in(&fields)?;
        if !self.timers.tasks.is_news_of_shard(timer_id, news) {
            return None;
        }
        let version = Version { first_appended, offset };
        let turn = fields.task.map_or(0, |task| task.turn);
        let said = ShardReport { index, turn, news };
        let record = sealed::shard_record(&self.setup.key, (&run, version), said);
        let lane = run.lane_of(self.setup.lanes);
        Some(Produce::own(Destination::Results, lane, UnixMillis(0), record))
    }

    /// Takes what the lane of a shard says.
    pub(super) fn hear_of_shard(
        &mut self,
        now: UnixMillis,
        entry: PendingRecord,
        said: ShardReport,
    ) {
        let (lane, Some(timer_id)) = (entry.source.lane, entry.timer_id) else { return };
        let live = self.timers.table().live(lane, timer_id);
        let live = live.filter(|live| live.version == entry.version());
        let Some(live) = live else { return self.stale(&entry) };
        let Some((is_new, is_over)) = self.timers.tasks.hear_of_shard(timer_id, said) else {
            return self.stale(&entry);
        };
        // Also by what is not new: it may have been written in a batch before that of the end, and that one may be lost.
        if is_over {
            return self.end_run(now, entry, (lane, timer_id, live), RunEnd::Shards);
        }
        if is_new && self.timers.tasks.begin_to_write_run(timer_id) {
            self.writes.push(PendingWrite::shards(lane, timer_id));
        }
        self.finish(&entry, None);
    }

    /// What is known of the shards of a run now, for `<ns>.timers`.
    pub(crate) fn shards_now(&mut self, timer_id: TimerId) -> Option<Record> {
        Some(shards_change(timer_id, self.timers.tasks.run_to_write(timer_id)?))
    }

    // Its end.

    /// Its deadline is over; any other record is given back.
    pub(super) fn unless_run_is_over(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
    ) -> Option<Box<PendingRecord>> {
        let (lane, timer_id) = (entry.source.lane, entry.timer_id);
        if entry.task.as_ref().is_none_or(|task| task.run.is_none()) {
            return Some(entry);
        }
        let live = timer_id.and_then(|timer_id| self.timers.table().live(lane, timer_id));
        let (Some(timer_id), Some(live)) = (timer_id, live) else { return Some(entry) };
        // What stood there when the lane was taken over may say that all shards had ended in time.
        let results = self.setup.topics.results().map(|topic| Source { topic, lane });
        let is_read = results.and_then(|source| self.partitions.get(source));
        if !is_read.is_none_or(Hold::caught_up) {
            let mut entry = entry;
            entry.due = now + LOOK_AGAIN;
            self.agenda.wake(entry.due);
            self.agenda.insert(entry);
            return None;
        }
        self.end_run(now, *entry, (lane, timer_id, live), RunEnd::Deadline);
        None
    }

    /// A run ends by a record, which has its id.
    fn end_run(
        &mut self,
        now: UnixMillis,
        entry: PendingRecord,
        (lane, timer_id, live): OfRun,
        why: RunEnd,
    ) {
        let before = self.timers.tasks.progress(timer_id).unwrap_or_default();
        let after = Progress { with_executor: false, open: false, ..before };
        let shards = self.timers.tasks.run(timer_id).map(RunProgress::counts_at_end);
        let has_failed = shards.is_some_and(|shards| shards.failed > 0);
        let (state, reason, code) = match why {
            RunEnd::Deadline => (TimerState::Expired, ChangeReason::Dead, None),
            RunEnd::Shards if has_failed => {
                (TimerState::Dead, ChangeReason::Dead, Some(Code::TaskFailed))
            }
            RunEnd::Shards => (TimerState::Delivered, ChangeReason::Delivered, None),
        };
        self.cancel_shards_of(now, &entry.record, (lane, timer_id, live));
        let told = self.timers.tasks.follow_up(timer_id).filter(|_| state != TimerState::Expired);
        let told = told.and_then(|follow_up| {
            let of = Of {
                lane,
                follow_up: &follow_up,
                record: &entry.record,
                version: live.version,
                trigger: live.due,
                last: None,
                shards,
            };
            self.follow_up_of(now, of, after, code.map(|code| (code, None)))
        });
        self.write_follow_up(told);
        // The leader's clock may be ahead of ours; what is dead since before it came never was pending.
        let at = now.max(live.version.first_appended);
        let said = self.said_by_cancel(at, &entry, (timer_id, live), after, (state, code));
        self.timers.end(now, lane, timer_id);
        self.writes.push(PendingWrite::timer_change(lane, said, reason));
        self.writes.complete_with((entry.source, entry.offset), entry.record);
    }

    /// Cancels the shards of a run that are not finished, and says how far all were. `record`: one that has the id of the run.
    pub(crate) fn cancel_shards_of(&mut self, now: UnixMillis, record: &Record, of: OfRun) {
        if self.timers.tasks.run(of.1).is_none() {
            return;
        }
        let directive = header::read(record.headers()).unwrap_or_default();
        if let Ok(run) = sealed::task_id(&directive) {
            self.cancel_shards(now, &run, of);
        }
    }

    /// The same, of one of this id. All of that is in the batch of the next write: see invariant 3.
    pub(crate) fn cancel_shards(
        &mut self,
        now: UnixMillis,
        run: &TaskId,
        (lane, timer_id, live): OfRun,
    ) {
        let Self { timers, writes, setup, .. } = self;
        let Some(of) = timers.tasks.run(timer_id) else { return };
        let shards = shards_change(timer_id, of);
        writes.settle_shards(timer_id, &shards);
        let version = (live.version.first_appended, live.version.offset);
        for index in of.unfinished() {
            let id = run.shard(version, index);
            let cancel = sealed::cancel(&setup.key, now, &id);
            let send = Produce::submitted(id.lane_of(setup.lanes), now, cancel);
            writes.push_with_next(PendingWrite::send(send));
        }
        let shards = PendingWrite::timer_change(lane, shards, ChangeReason::Reported);
        writes.push_with_next(shards);
    }

    /// Whether what is pending is a run.
    pub(super) fn is_run(&self, live: Pending) -> bool {
        self.timers.table().words(live).0.starts_with(RUN_TARGET)
    }

    /// A run that has ended is made anew, as another version.
    pub(super) fn run_again(
        &mut self,
        now: UnixMillis,
        mut entry: Box<PendingRecord>,
        (timer_id, followed): (TimerId, Followed),
    ) {
        // Who cancelled it has the last word.
        let Followed::Ended(Ended { state: TimerState::Dead | TimerState::Expired, .. }) = followed
        else {
            return self.outrun(&entry);
        };
        let told = answer(&entry, Outcome::Replaced);
        let turn = entry.turn().unwrap_or_default();
        entry.due = entry.appended;
        if let Some(task) = &mut entry.task {
            task.trigger = entry.due;
        }
        let after = Progress { turn, next_at: entry.due, ..Progress::default() };
        let made = self.may_be_created(&entry);
        let made = made.and_then(|()| self.begin_task(now, &mut entry, timer_id, Some(after)));
        if let Err(refusal) = made {
            return self.refuse_retry(&entry, refusal.code);
        }
        // It has no shards yet: those of the version that it follows are not its own.
        self.writes.keep_with_next();
        self.write_forgotten(entry.source.lane, &progress::shards_key(timer_id));
        self.writes.reply_with(told);
        entry.origin = Origin::Hop;
        self.route(now, entry);
    }
}

/// The record of `<ns>.timers` that says how far the shards of a run are.
fn shards_change(timer_id: TimerId, of: &RunProgress) -> Record {
    Record::new(Some(&progress::shards_key(timer_id)), Some(&of.value()), std::iter::empty())
}

/// What a change of a shard is to its run.
fn news_in(timer: &TimerFields<'_>) -> Option<ShardNews> {
    match timer.state {
        TimerState::Delivered => Some(ShardNews::Finished),
        state if state.is_final() => Some(ShardNews::Failed),
        _ => {
            let task = timer.task?;
            let is_out = task.held.is_some() || task.with_executor;
            // A call that was taken has begun; a record that was delivered has not, until its executor says so.
            let is_taken = task.with_executor && type_of_task(timer.target) != "kafka";
            match () {
                () if task.open || is_taken => Some(ShardNews::Begun),
                // A round of polling is no second try, and neither is a turn behind one that could not be called.
                () if is_out && task.turn > 1 && task.rounds == 0 && task.begun => {
                    Some(ShardNews::Again)
                }
                () => None,
            }
        }
    }
}
