//! Carries out what becomes of tasks: submissions, copies that come up, dispatches, results, cancels.
//!
//! # Invariants
//! 1. Each step is one transaction with the offset that caused it.
//! 2. A copy counts only if its version and its turn are the live ones, and no worker holds the task. Every other copy is stale, and
//!    is finished without effect.
//! 3. A copy that was dispatched once is never revived. The copy of a task that never was is the only one that there is.

mod by_hand;
mod feedback;
mod follow_up;
mod runs;
mod schedules;

use std::sync::Arc;

use super::super::header::{Code, Refusal};
use super::super::messages::{
    Action, Answer, ChangeReason, Destination, HeaderRewrite, Outcome, Produce,
};
use super::super::sealed;
use super::super::state::{Dispatched, TaskState};
use super::super::task::registry::{HISTORY_MIN, Registry};
use super::super::task::result::{Outcome as CallOutcome, TaskResult};
use super::super::task::retry::Retry;
use super::super::task::spec::Spec;
use super::super::timers::{
    Attempt, CancelMark, Change, OpenTurn, Pending, Progress, TimerFields, TimerId, TimerState,
    group_of, progress,
};
use super::super::verdict::tasks::{self as read, TaskRecord};
use super::super::verdict::{self, Origin, PendingRecord, StateChange, refusal};
use super::super::work::{Scope, Turn};
use super::builder::BatchBuilder;
use super::hops::{PUT_OFF_MAX, last_for_overdue};
use super::lifecycle::{CANCEL_MARK_SLACK, Named, answer, fields_of_cancel};
use super::past::{CLOCKS_APART, Waiting};
use super::poison::Beside;
use super::tasks::decide::{IN_DOUBT_MAX, Next, Policy, decide};
use super::tasks::{Permit, PutOff};
use super::writes::PendingWrite;
use super::{Lane, LaneEngine, Offset, Record, Source, UnixMillis};

impl LaneEngine {
    /// Takes a record of a task that its partition let go, or a record of a topic where only such records stand.
    pub(super) fn accept_task(
        &mut self,
        now: UnixMillis,
        at: (Source, Offset),
        appended: UnixMillis,
        record: Record,
        out: &mut Vec<Action>,
    ) {
        let setup = Arc::clone(&self.setup);
        match read::read(&setup, at, appended, record) {
            Err((record, refusal)) => {
                let shard = read::broken_shard(&setup, at, appended, &record);
                let is_news = |shard: &PendingRecord| {
                    shard.timer_id.is_some_and(|timer_id| self.is_news(at.0.lane, timer_id))
                };
                match shard.filter(|shard| is_news(shard)) {
                    Some(shard) => {
                        let shard = *self.with_version(shard);
                        self.refuse(now, PendingRecord { record, ..shard }, refusal);
                    }
                    None => self.refuse_broken(now, at, appended, record, refusal),
                }
            }
            Ok(TaskRecord::Copy(entry)) => {
                let entry = self.with_version(entry);
                self.admit_task(now, entry, out);
            }
            Ok(TaskRecord::Cancel(entry) | TaskRecord::Retry(entry)) => {
                let entry = self.with_version(entry);
                self.admit_task(now, entry, out);
            }
            Ok(TaskRecord::Result(entry, said)) => {
                let (spec, result) = *said;
                self.report(now, entry, &spec, result);
            }
            Ok(TaskRecord::Absent(entry, turn, partition)) => {
                self.absent(now, *entry, (turn, partition));
            }
            Ok(TaskRecord::Feedback(entry, said)) => self.hear(now, entry, *said),
            Ok(TaskRecord::Shard(entry, said)) => self.hear_of_shard(now, *entry, said),
        }
    }

    /// Whether a record is to be taken as that of a task.
    pub(super) fn is_of_task(&self, source: Source, record: &Record) -> bool {
        self.setup.topics.results() == Some(source.topic) || sealed::is_of_task(record)
    }

    /// Projects and services are others now.
    pub(super) fn registry(&mut self, now: UnixMillis, registry: Arc<Registry>) {
        self.set_paused_targets(now, &registry);
        self.set_rated_targets(now, &registry);
        self.timers.tasks.set_registry(registry);
        let waiting = self.timers.tasks.reconsider(now);
        self.agenda.put_back(waiting);
        self.agenda.wake(now);
    }

    /// Admits a submission, a copy or a cancel, once all is known that counts for it.
    pub(super) fn admit_task(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
        out: &mut Vec<Action>,
    ) {
        let (lane, Some(timer_id)) = (entry.source.lane, entry.timer_id) else { return };
        if entry.origin == Origin::Create {
            self.timers.tasks.arrived(timer_id);
        }
        if entry.origin != Origin::Hop && self.timers.past.has_waiting((lane, timer_id)) {
            return self.wait_for_past(now, entry, timer_id);
        }
        let live = self.timers.table().live(lane, timer_id);
        match (entry.origin, live) {
            (Origin::Cancel(_), live) => self.cancel_task(now, *entry, timer_id, live),
            (Origin::Replace(Some(follows)), _) => {
                let Some((entry, found)) = self.followed(now, entry, (timer_id, follows)) else {
                    return;
                };
                let task = entry.task.as_ref();
                match task.and_then(|task| task.schedule.clone()) {
                    Some(of) => self.change_schedule(now, entry, &of, (timer_id, found)),
                    None if task.is_some_and(|task| task.run.is_some()) => {
                        self.run_again(now, entry, (timer_id, found));
                    }
                    None => self.retry_by_hand(now, entry, (timer_id, found), out),
                }
            }
            (Origin::Hop, Some(live)) if live.version == entry.version() => {
                self.copy(now, entry, timer_id);
            }
            (Origin::Hop, Some(_)) => self.stale(&entry),
            (Origin::Hop, None) => self.copy_of_nothing(now, entry, timer_id),
            (_, Some(live)) if live.version == entry.version() => self.copy(now, entry, timer_id),
            // Whatever is said of a task that there is changes nothing: to create it is to find it.
            (_, Some(_)) => self.known(&entry),
            (_, None) if self.is_covered(&entry, timer_id) => self.suppress(now, *entry, None),
            (_, None) => match self.timers.past.recalled((lane, timer_id)) {
                None => self.wait_for_past(now, entry, timer_id),
                Some(Some(_)) => self.known(&entry),
                Some(None) => self.create(now, entry, timer_id, out),
            },
        }
    }

    fn wait_for_past(&mut self, now: UnixMillis, entry: Box<PendingRecord>, timer_id: TimerId) {
        let of = (entry.source.lane, timer_id);
        if !self.timers.past.has_waiting(of) {
            self.agenda.wake(now);
        }
        self.timers.past.wait(of, Waiting::Entry(entry));
    }

    fn is_covered(&self, entry: &PendingRecord, timer_id: TimerId) -> bool {
        let mark = self.timers.table().cancel_mark(entry.source.lane, timer_id);
        mark.is_some_and(|mark| mark.covers(entry.version()))
    }

    /// A submission of a task that there is, or was.
    fn known(&mut self, entry: &PendingRecord) {
        self.timers.count_duplicate();
        self.finish(entry, None);
    }

    /// A copy that counts no more, or a result of a turn that is over.
    fn stale(&mut self, entry: &PendingRecord) {
        self.timers.tasks.count_stale();
        self.finish(entry, None);
    }

    /// A copy of the live version.
    fn copy(&mut self, now: UnixMillis, mut entry: Box<PendingRecord>, timer_id: TimerId) {
        let lane = entry.source.lane;
        let progress = self.timers.tasks.progress(timer_id).unwrap_or_default();
        if progress.held.is_some() || entry.turn() != Some(progress.turn) {
            return self.stale(&entry);
        }
        if let Err(refusal) = self.poison.permits_record(entry.source, entry.offset) {
            entry.decided = true;
            return self.refuse(now, *entry, refusal);
        }
        if progress.next_at > UnixMillis(0) {
            entry.due = progress.next_at;
        }
        entry.decided = true;
        self.timers.here(lane, timer_id);
        match progress.with_executor {
            true => self.wait_for_feedback(now, entry, progress),
            false => self.route(now, entry),
        }
    }

    /// A copy of a task of which nothing is known.
    fn copy_of_nothing(
        &mut self,
        now: UnixMillis,
        mut entry: Box<PendingRecord>,
        timer_id: TimerId,
    ) {
        if self.is_covered(&entry, timer_id) {
            return self.suppress(now, *entry, None);
        }
        if entry.turn() != Some(0) {
            return self.stale(&entry);
        }
        // It has ended, and somebody who may write to a tier has copied it; or what `<ns>.timers` said of it was deleted.
        match self.timers.past.recalled((entry.source.lane, timer_id)) {
            None => return self.wait_for_past(now, entry, timer_id),
            Some(Some(ended)) if !ended.version.is_before(entry.version()) => {
                return self.stale(&entry);
            }
            Some(_) => {}
        }
        if entry.due + HISTORY_MIN < now {
            // That it has ended may be forgotten since then.
            let detail =
                format!("nothing is known of this task, and it was due at {} ms", entry.due.0);
            return self.refuse(now, *entry, refusal(Code::BadTask, detail));
        }
        match self.begin_task(now, &mut entry, timer_id, None) {
            Ok(()) => self.route(now, entry),
            Err(refusal) => self.refuse(now, *entry, refusal),
        }
    }

    /// A task that there was not.
    fn create(
        &mut self,
        now: UnixMillis,
        mut entry: Box<PendingRecord>,
        timer_id: TimerId,
        out: &mut Vec<Action>,
    ) {
        let created = self.may_be_created(&entry);
        let created = created.and_then(|()| self.begin_task(now, &mut entry, timer_id, None));
        if let Err(refusal) = created {
            return self.refuse(now, *entry, refusal);
        }
        if entry.task.as_ref().is_some_and(|task| task.goes_to_topic()) {
            self.look(now, &entry.target, entry.intake, out);
        }
        self.route(now, entry);
    }

    fn may_be_created(&self, entry: &PendingRecord) -> Result<(), Refusal> {
        self.poison.permits_record(entry.source, entry.offset)?;
        if !self.is_full() {
            let detail = "tasks need tracking = \"full\"";
            return Err(refusal(Code::TaskForbidden, detail));
        }
        let Some(task) = &entry.task else { return self.facts().room() };
        self.facts().room_of(&task.project)?;
        read::is_as_submitted(&entry.record, &task.digest)?;
        let project = self.timers.tasks.registry().project(&task.project);
        if project.is_deleted {
            return Err(project_deleted(&task.project));
        }
        if task.goes_to_topic() {
            project.permits(&entry.target)?;
            verdict::allowed(&self.setup, &self.targets, entry.intake, &entry.target)?;
        }
        Ok(())
    }

    /// A task is pending from now on; one that was so before is so far.
    fn begin_task(
        &mut self,
        now: UnixMillis,
        entry: &mut PendingRecord,
        timer_id: TimerId,
        progress: Option<Progress>,
    ) -> Result<(), Refusal> {
        let lane = entry.source.lane;
        let directive = super::header::read(entry.record.headers())?;
        let label = entry.task.as_ref().map(|task| task.label.clone());
        let definition = progress::definition_value(directive.task.unwrap_or_default());
        let stage = StateChange { task: progress, ..StateChange::new(TimerState::Delay, now) };
        let said = verdict::timer_change(entry, &directive, stage);
        entry.decided = true;
        self.timers.make_live(entry, timer_id, label.as_deref(), None);
        if let Some(progress) = progress {
            self.timers.set_progress(lane, timer_id, progress);
        }
        self.timers.tasks.set_follow_up(timer_id, entry.follow_up_of_awaited());
        let key = progress::definition_key(timer_id);
        let definition = Record::new(Some(&key), Some(&definition), std::iter::empty());
        let definition = PendingWrite::timer_change(lane, definition, ChangeReason::Created);
        self.writes.push_with_next(definition);
        if let Some(record) = said {
            self.writes.push(PendingWrite::timer_change(lane, record, ChangeReason::Created));
        }
        Ok(())
    }

    // It is due.

    /// Gives a due task to its worker, or has it wait until it may go. A task that goes to a topic is given back, if it may go.
    pub(super) fn dispatch(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
        builder: &mut BatchBuilder,
    ) -> Option<Box<PendingRecord>> {
        let entry = self.unless_behind(now, entry, builder)?;
        let Some(task) = entry.task.clone() else { return Some(entry) };
        if let Some(schedule) = &task.schedule {
            self.occur(now, entry, schedule, builder);
            return None;
        }
        if let Some(run) = &task.run {
            self.create_shards(now, entry, run, builder);
            return None;
        }
        let lane = entry.source.lane;
        let mut entry = entry;
        let Some(scope) = task.scope.as_ref() else {
            if let (Some(timer_id), Some(of)) = (entry.timer_id, entry.task.as_mut()) {
                let progress = self.timers.tasks.progress(timer_id).unwrap_or_default();
                of.progress = match task.feedback {
                    Some(_) => progress,
                    // It ends with its delivery.
                    None => self.kept(now, Some(&task.project), progress),
                };
            }
            let registry = self.timers.tasks.registry();
            let project = registry.project(&task.project);
            if project.is_deleted {
                self.refuse(now, *entry, project_deleted(&task.project));
                return None;
            }
            if let Err(refusal) = project.permits(&entry.target) {
                self.refuse(now, *entry, refusal);
                return None;
            }
            if project.paused || !self.timers.tasks.is_known() {
                let bytes = entry.record.size();
                let wait = self.timers.tasks.put_off_topics(now, lane, &task.label, bytes);
                self.put_off(now, entry, wait);
                return None;
            }
            if let Some(timer_id) = entry.timer_id {
                self.set_put_off(lane, timer_id, false);
            }
            return Some(entry);
        };
        if let Err(refusal) = self.is_sound(now, &entry) {
            self.refuse(now, *entry, refusal);
            return None;
        }
        match self.timers.tasks.permit(now, lane, scope, entry.record.size()) {
            Permit::Go(held) => self.dispatch_to(now, entry, held, builder),
            Permit::Wait => {
                // Two copies of one turn: the first one up takes it, and one is enough.
                if let Some(other) = self.timers.tasks.wait(scope, entry) {
                    self.stale(&other);
                }
            }
            Permit::PutOff(wait) => self.put_off(now, entry, wait),
            Permit::Deleted => {
                self.refuse(now, *entry, project_deleted(&task.project));
            }
        }
        None
    }

    fn is_sound(&self, now: UnixMillis, entry: &PendingRecord) -> Result<(), Refusal> {
        self.poison.permits_record(entry.source, entry.offset)?;
        match entry.expires.filter(|expires| *expires < now) {
            Some(expires) => {
                let detail = format!("expired {} ago, at {} ms", now - expires, expires.0);
                Err(refusal(Code::Expired, detail))
            }
            None => Ok(()),
        }
    }

    fn dispatch_to(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
        held: super::super::timers::HeldBy,
        builder: &mut BatchBuilder,
    ) {
        let (Some(timer_id), Some(task)) = (entry.timer_id, entry.task.as_ref()) else { return };
        let before = self.timers.tasks.progress(timer_id).unwrap_or_default();
        let after = Progress {
            turn: before.turn.saturating_add(1),
            held: Some(held),
            open: false,
            breaker: false,
            next_at: entry.due,
            ..before
        };
        let state = TaskState {
            turn: after.turn,
            attempt: after.attempts.saturating_add(1),
            round: after.rounds,
            trigger: task.trigger,
            digest: task.digest,
        };
        let to = Dispatched { partition: Lane(held.partition.0), at: now };
        let executors = self.said_by_executor(&entry);
        let state = (state, executors.as_deref());
        let made = read::seal_dispatch(&self.setup, &entry, to, state).and_then(|sealed| {
            let directive = super::header::read(entry.record.headers())?;
            let stage =
                StateChange { task: Some(after), ..StateChange::new(TimerState::Delay, now) };
            Ok((sealed, verdict::timer_change(&entry, &directive, stage)))
        });
        let (sealed, said) = match made {
            Ok(made) => made,
            Err(refusal) => return self.refuse(now, *entry, refusal),
        };
        let named = Named { task: Some(after), ..entry.named_as(timer_id) };
        let PendingRecord { source, offset, record, due, order, .. } = *entry;
        let send = Produce {
            to: Destination::Tasks,
            partition: Some(i32::from(held.partition.0)),
            record,
            rewrite: HeaderRewrite::Dispatch(sealed, executors),
            due,
            expires: None,
        };
        let beside = Beside { timer: said, ..Beside::default() };
        self.load(now, builder, (source, offset), (send, order, None), Some(named), beside);
    }

    /// A task was put into a batch for its worker.
    pub(super) fn dispatched(&mut self, lane: Lane, timer_id: TimerId, after: Progress) {
        self.set_put_off(lane, timer_id, false);
        self.timers.set_progress(lane, timer_id, after);
        self.timers.tasks.count_dispatched();
    }

    fn set_put_off(&mut self, lane: Lane, timer_id: TimerId, is_put_off: bool) {
        self.timers.set_put_off(lane, timer_id, is_put_off);
    }

    /// A task waits in a tier, though it is overdue.
    fn put_off(&mut self, now: UnixMillis, mut entry: Box<PendingRecord>, wait: PutOff) {
        let luck = luck(entry.timer_id.unwrap_or_default(), now.0 as u32);
        let tier = wait.tier(&self.setup.topics.ladder, last_for_overdue(&self.setup), luck);
        if let Some(timer_id) = entry.timer_id {
            self.set_put_off(entry.source.lane, timer_id, true);
        }
        entry.deferred = true;
        self.timers.tasks.count_put_off();
        // However often, it is no fault of the task's.
        entry.hops = entry.hops.saturating_sub(1);
        self.hop(now, tier, entry);
    }

    /// A task could not be delivered to its topic. Gives it back if it is not to be tried again.
    pub(super) fn try_again(
        &mut self,
        now: UnixMillis,
        mut entry: Box<PendingRecord>,
        refusal: &Refusal,
    ) -> Option<Box<PendingRecord>> {
        // It may have been cancelled while its target was looked up.
        let may_pass = matches!(refusal.code, Code::TargetMissing | Code::TargetRefused)
            && self.timers.stands(&entry);
        let of_task = entry.task.as_ref().filter(|task| may_pass && task.scope.is_none());
        let (Some(before), Some(timer_id)) = (of_task.map(|task| task.progress), entry.timer_id)
        else {
            return Some(entry);
        };
        let spec = super::header::read(entry.record.headers())
            .and_then(|directive| sealed::spec(&directive));
        let Ok(spec) = spec else { return Some(entry) };
        let error = Some(refusal.to_string());
        let result = TaskResult { error, ended: Some(now), ..TaskResult::new(CallOutcome::Failed) };
        let luck = luck(timer_id, before.attempts);
        let (next, _) =
            self.with_policy(&spec, luck, |policy| decide(before, &result, policy, now));
        let next = feedback::not_at_once(now, next);
        let (Next::Again(after) | Next::Failed(after, _)) = next else { return Some(entry) };
        let lane = entry.source.lane;
        self.write_attempt(lane, timer_id, before, &next, result.clone());
        self.timers.set_progress(lane, timer_id, after);
        if let Next::Failed(..) = next {
            entry.ends_with(&result);
            return Some(entry);
        }
        self.write_progress(now, &entry, after, TimerState::Delay);
        entry.due = after.next_at;
        self.route(now, entry);
        None
    }

    /// Tasks that wait in memory and of which none is at a worker are looked at again, once a second.
    pub(super) fn look_at_tasks(&mut self, now: UnixMillis) {
        let waiting = self.timers.tasks.look(now);
        if let Some(at) = self.timers.tasks.look_at() {
            self.agenda.wake(at);
        }
        if !waiting.is_empty() {
            self.agenda.put_back(waiting);
            self.agenda.wake(now);
        }
    }

    // What workers say.

    fn report(
        &mut self,
        now: UnixMillis,
        mut entry: Box<PendingRecord>,
        spec: &Spec,
        mut result: TaskResult,
    ) {
        let (lane, Some(timer_id)) = (entry.source.lane, entry.timer_id) else { return };
        let live = self.timers.table().live(lane, timer_id);
        let before = self.timers.tasks.progress(timer_id);
        let is_live = live.is_some_and(|live| live.version == entry.version());
        let Some(before) = before.filter(|of| is_live && entry.turn() == Some(of.turn)) else {
            return self.stale(&entry);
        };
        let has_body = result.outcome.carries_payload() && !result.letter;
        let digest = entry.task.as_ref().filter(|_| has_body).map(|task| task.digest);
        let altered = digest.and_then(|of| read::is_as_submitted(&entry.record, &of).err());
        let Some(held) = before.held else {
            // It was decided, and is read again: it has the body of the turn that follows.
            return match altered {
                Some(refusal) => self.refuse(now, *entry, refusal),
                None if has_body => self.copy(now, entry, timer_id),
                None => self.stale(&entry),
            };
        };
        let registry = Arc::clone(self.timers.tasks.registry());
        let default = Retry::default();
        let retry = retry_of(spec, &registry, &default);
        let (poll, feedback) = (spec.poll(), spec.feedback());
        let policy = Policy { retry, poll, feedback, luck: luck(timer_id, before.turn) };
        let appended = entry.appended;
        let (next, is_attempt) = match &altered {
            // Its body is lost: no turn can follow.
            Some(refusal) => (Next::Failed(before.ended(), refusal.code), false),
            None => decide(before, &result, policy, appended),
        };
        let scope = entry.task.as_ref().and_then(|task| task.scope.clone());
        if let Some(scope) = scope.as_ref().filter(|_| !matches!(next, Next::Running(_))) {
            match result.outcome {
                CallOutcome::Deferred => {
                    // A task that comes back because it has expired says nothing of its service.
                    if result.until.is_none() || result.until != entry.expires {
                        let until = result.until.unwrap_or(appended);
                        self.timers.tasks.slow_down(lane, scope, until);
                    }
                }
                _ => self.timers.tasks.turn_ended(now, lane, scope),
            }
        }
        if is_attempt {
            if result.in_doubt {
                result.error = Some(workers_lost(&next));
            }
            if let (CallOutcome::NotYet, Next::Failed(after, _)) = (result.outcome, &next) {
                result.error.get_or_insert_with(|| not_ready(*after));
            }
            self.write_attempt(lane, timer_id, before, &next, result.clone());
        }
        entry.decided = true;
        match next {
            Next::Running(after) => {
                self.timers.set_progress(lane, timer_id, after);
                self.write_progress(now, &entry, after, TimerState::Delay);
                self.writes.complete_with((entry.source, entry.offset), entry.record);
            }
            Next::Awaited(after) => {
                self.timers.set_progress(lane, timer_id, after);
                self.write_progress(now, &entry, after, TimerState::Delay);
                self.timers.here(lane, timer_id);
                let began = result.started.unwrap_or(appended);
                self.timers.tasks.begin(timer_id, OpenTurn::of(began, &result));
                if self.timers.tasks.cursor(timer_id).is_some() {
                    // Who takes the lane over is to know what was said while the call was open.
                    let open = Progress { attempts: after.attempts.saturating_add(1), ..after };
                    let said = TaskResult {
                        worker: result.worker.clone(),
                        started: result.started,
                        ..TaskResult::new(CallOutcome::Started)
                    };
                    self.write_attempt(lane, timer_id, after, &Next::Awaited(open), said);
                }
                self.wait_for_feedback(now, entry, after);
            }
            Next::Again(after) => {
                self.timers.set_progress(lane, timer_id, after);
                self.write_progress(now, &entry, after, TimerState::Delay);
                self.timers.here(lane, timer_id);
                entry.due = after.next_at;
                self.route(now, entry);
            }
            Next::Ended(after, state) => {
                if state == TimerState::Delivered {
                    entry.ends_with(&result);
                    let follow_up = self.follow_up(now, &entry, after, None);
                    self.write_follow_up(follow_up);
                }
                self.write_progress(now, &entry, after, state);
                self.timers.end(now, lane, timer_id);
                self.writes.complete_with((entry.source, entry.offset), entry.record);
            }
            Next::Failed(after, code) if result.letter => {
                // Its worker has written its letter.
                self.timers.set_progress(lane, timer_id, after);
                entry.ends_with(&result);
                self.end_without_letter(now, &entry, code);
                self.writes.complete_with((entry.source, entry.offset), entry.record);
            }
            Next::Failed(after, code) => {
                // What its letter says of it.
                self.timers.set_progress(lane, timer_id, after);
                entry.ends_with(&result);
                let refusal =
                    altered.unwrap_or_else(|| Refusal::new(code, failure(&result, after)));
                self.refuse(now, *entry, refusal);
            }
        }
        if let Some(scope) = scope {
            self.put_back_freed(now, lane, &scope, held.credits);
        }
    }

    /// A worker was to cancel a turn, and nothing of it stands in its partition. If the lane has heard nothing else of that turn by
    /// then, somebody has deleted its record: nobody will call it any more, and nobody knows whether it was called.
    fn absent(&mut self, now: UnixMillis, entry: PendingRecord, (turn, partition): (u32, Lane)) {
        let (lane, Some(timer_id)) = (entry.source.lane, entry.timer_id) else { return };
        let live = self.timers.table().live(lane, timer_id);
        let live = live.filter(|live| live.version == entry.version());
        let before = self.timers.tasks.progress(timer_id).unwrap_or_default();
        let is_awaited = before.cancelling && before.turn == turn;
        let held = before.held.filter(|of| is_awaited && of.partition.0 == partition.0);
        let (Some(live), Some(held)) = (live, held) else { return self.stale(&entry) };
        let after = Progress { begun: true, cancelling: false, ..before.ended() };
        let end = (TimerState::Cancelled, None);
        let said = self.said_by_cancel(now, &entry, (timer_id, live), after, end);
        self.writes.push(PendingWrite::timer_change(lane, said, ChangeReason::Cancelled));
        let scope = self.timers.scope(lane, timer_id);
        self.timers.end(now, lane, timer_id);
        self.writes.complete_with((entry.source, entry.offset), entry.record);
        self.let_go_of_turn(now, lane, scope, held.credits);
    }

    /// A turn that a worker held is over, and its credits are free.
    fn let_go_of_turn(&mut self, now: UnixMillis, lane: Lane, scope: Option<Scope>, credits: u16) {
        if let Some(scope) = scope {
            self.timers.tasks.turn_ended(now, lane, &scope);
            self.put_back_freed(now, lane, &scope, credits);
        }
    }

    /// So many credits of a scope are free: what waited for them is looked at again.
    fn put_back_freed(&mut self, now: UnixMillis, lane: Lane, scope: &Scope, credits: u16) {
        let freed = self.timers.tasks.freed(lane, scope, credits);
        if !freed.is_empty() {
            self.agenda.put_back(freed);
            self.agenda.wake(now);
        }
    }

    fn write_attempt(
        &mut self,
        lane: Lane,
        timer_id: TimerId,
        before: Progress,
        next: &Next,
        result: TaskResult,
    ) {
        let number = next.progress().attempts;
        // How far it came was said before, maybe in an earlier turn: who takes the lane over has it from here.
        let cursor = self.timers.tasks.cursor(timer_id);
        let cursor = result.cursor.or_else(|| cursor.as_deref().map(str::to_owned));
        let result = TaskResult { cursor, ..result };
        let attempt = Attempt { timer_id, turn: before.turn, number, result };
        let (key, value) = Change::Attempt(attempt).encode();
        let record = Record::new(Some(&key), value.as_deref(), std::iter::empty());
        let record = PendingWrite::timer_change(lane, record, ChangeReason::Reported);
        self.writes.push_with_next(record);
    }

    fn write_progress(
        &mut self,
        now: UnixMillis,
        entry: &PendingRecord,
        after: Progress,
        state: TimerState,
    ) {
        let lane = entry.source.lane;
        // It was read once.
        let directive = super::header::read(entry.record.headers()).unwrap_or_default();
        let project = entry.task.as_ref().map(|task| &*task.project);
        let after = if state.is_final() { self.kept(now, project, after) } else { after };
        let stage = StateChange { task: Some(after), ..StateChange::new(state, now) };
        let reason = match state {
            TimerState::Delivered => ChangeReason::Delivered,
            TimerState::Cancelled => ChangeReason::Cancelled,
            _ => ChangeReason::Reported,
        };
        if let Some(record) = verdict::timer_change(entry, &directive, stage) {
            self.writes.push(PendingWrite::timer_change(lane, record, reason));
        }
    }

    /// How far a task is that ends then: with how long that is remembered.
    pub(super) fn kept(
        &self,
        now: UnixMillis,
        project: Option<&str>,
        progress: Progress,
    ) -> Progress {
        let history = self.timers.tasks.registry().project(project.unwrap_or_default()).history;
        Progress { next_at: now + history, ..progress }
    }

    // Cancels.

    fn cancel_task(
        &mut self,
        now: UnixMillis,
        cancel: PendingRecord,
        timer_id: TimerId,
        live: Option<Pending>,
    ) {
        let Some(live) = live.filter(|live| live.version.is_before(cancel.version())) else {
            let answer = answer(&cancel, Outcome::Absent);
            return self.finish(&cancel, answer);
        };
        let progress = self.timers.tasks.progress(timer_id).unwrap_or_default();
        let was_called = progress.turn > 0 || progress.begun;
        if was_called && live.version.first_appended > cancel.due + CLOCKS_APART {
            // It was asked for before the task was retried by hand: somebody has written it once more.
            let answer = answer(&cancel, Outcome::Absent);
            return self.finish(&cancel, answer);
        }
        match progress.held {
            Some(held) => {
                self.follow_to_worker(now, cancel, (timer_id, live), progress, held.partition.0);
            }
            None if self.is_run(live) => {
                self.cancel_shards_of(now, &cancel.record, (cancel.source.lane, timer_id, live));
                let after = Progress { with_executor: false, ..progress };
                self.end_task_by_cancel(now, cancel, (timer_id, live), after);
            }
            None => self.end_task_by_cancel(now, cancel, (timer_id, live), progress),
        }
    }

    /// The record that says how far a task is that a command without its payload is about.
    fn said_by_cancel(
        &self,
        now: UnixMillis,
        cancel: &PendingRecord,
        (timer_id, live): (TimerId, Pending),
        after: Progress,
        (state, code): (TimerState, Option<Code>),
    ) -> Record {
        let table = self.timers.table();
        let words = table.words(live);
        let at = (live.version, live.due);
        let project = group_of(words.1).map(|(project, _)| project);
        let after = if state.is_final() { self.kept(now, project, after) } else { after };
        let fields = fields_of_cancel(cancel, state, now, at, words);
        verdict::timer_record(timer_id, &TimerFields { task: Some(after), code, ..fields })
    }

    /// A cancel goes after a task to the worker that holds it: only the worker knows whether its call has begun. So does each further
    /// one: the note of the first may have been deleted.
    fn follow_to_worker(
        &mut self,
        now: UnixMillis,
        cancel: PendingRecord,
        of: (TimerId, Pending),
        before: Progress,
        partition: u16,
    ) {
        let (lane, (timer_id, live)) = (cancel.source.lane, of);
        if !before.cancelling {
            let after = Progress { cancelling: true, ..before };
            let said = self.said_by_cancel(now, &cancel, of, after, (TimerState::Delay, None));
            self.timers.set_progress(lane, timer_id, after);
            let said = PendingWrite::timer_change(lane, said, ChangeReason::Reported);
            self.writes.push_with_next(said);
        }
        let answer = answer(&cancel, Outcome::Underway);
        self.note_to_worker(now, cancel, (timer_id, live), (before.turn, partition), answer);
    }

    /// Tells the worker of a partition that the turn that it holds is not wanted any more.
    fn note_to_worker(
        &mut self,
        now: UnixMillis,
        command: PendingRecord,
        (timer_id, live): (TimerId, Pending),
        (turn, partition): (u32, u16),
        answer: Option<Answer>,
    ) {
        let turn = Turn { name: timer_id, version: live.version, turn };
        let directive = super::header::read(command.record.headers()).unwrap_or_default();
        let id = directive.id.unwrap_or_default();
        let note = sealed::cancel_note(&self.setup.key, turn, id);
        let PendingRecord { source, offset, record, .. } = command;
        let send = Produce::own(Destination::Tasks, Lane(partition), now, note);
        let done = Some((source, offset));
        self.writes.push(PendingWrite { held: record.size(), ..PendingWrite::of(done, send) });
        self.writes.reply_with(answer);
    }

    fn end_task_by_cancel(
        &mut self,
        now: UnixMillis,
        cancel: PendingRecord,
        of: (TimerId, Pending),
        after: Progress,
    ) {
        let (lane, (timer_id, live)) = (cancel.source.lane, of);
        // Its executor has begun, and the attempt ends with this.
        let attempts = after.attempts.saturating_add(u32::from(after.with_executor));
        let after = Progress { attempts, with_executor: false, ..after };
        let end = (TimerState::Cancelled, None);
        let said = self.said_by_cancel(now, &cancel, of, after, end);
        let until = copy_is_up_by(now, live, after);
        let until = self.longest_mark(now, live).map_or(until, |most| until.min(most));
        let mark = self.timers.table().mark_before((lane, timer_id), cancel.version(), until);
        let mark = CancelMark { cancels: true, ..mark };
        self.timers.end(now, lane, timer_id);
        self.writes.push_with_next(PendingWrite::timer_change(lane, said, ChangeReason::Cancelled));
        self.write_cancel_mark(lane, mark, ChangeReason::Recorded);
        let answer = answer(&cancel, Outcome::Cancelled);
        self.writes.complete_with((cancel.source, cancel.offset), cancel.record);
        self.writes.reply_with(answer);
    }
}

/// By when the copy comes up of a task that is pending, and is that far.
fn copy_is_up_by(now: UnixMillis, live: Pending, progress: Progress) -> UnixMillis {
    live.due.max(progress.next_at).max(now) + PUT_OFF_MAX + CANCEL_MARK_SLACK
}

/// When attempts of a task are made again: as it says itself, or its service does.
fn retry_of<'a>(spec: &'a Spec, registry: &'a Registry, default: &'a Retry) -> &'a Retry {
    spec.retry().unwrap_or_else(|| {
        let service = spec.service().and_then(|name| registry.service(spec.project(), name));
        service.map_or(default, |service| &service.retry)
    })
}

fn project_deleted(project: &str) -> Refusal {
    refusal(Code::ProjectDeleted, format!("project {project} was deleted"))
}

/// What is said of turns in doubt that count as an attempt, and of what a person can do then.
fn workers_lost(next: &Next) -> String {
    let remedy = match next {
        Next::Failed(..) => {
            "; mend what ends the workers, then call it again: waterclock task retry"
        }
        _ => "",
    };
    format!(
        "worker_lost: its worker was lost {IN_DOUBT_MAX} times in a row, maybe before a call was made{remedy}"
    )
}

/// What a dead letter says of a task that has failed.
fn failure(result: &TaskResult, after: Progress) -> String {
    let what = match (result.outcome, result.status, result.error.as_deref()) {
        (CallOutcome::NotYet, ..) => not_ready(after),
        (_, Some(status), None) => format!("status {status}"),
        (_, Some(status), Some(error)) => format!("status {status}: {error}"),
        (_, None, Some(error)) => error.to_owned(),
        (outcome, None, None) => outcome.as_str().to_owned(),
    };
    format!("attempt {}: {what}", after.attempts)
}

fn not_ready(after: Progress) -> String {
    format!("not_ready: its answer was \"not yet\" in all of its {} rounds", after.rounds)
}

/// What jitter goes by: tasks that failed together do not come back together.
fn luck(timer_id: TimerId, turn: u32) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&timer_id.0[8..]);
    let mixed = u64::from_be_bytes(word) ^ u64::from(turn).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

#[cfg(test)]
mod tests;
