//! What the lanes know of tasks beside what they know of every timer: how far each is, and who may be called.
//!
//! A task that is due goes to a worker only if its scope has a *credit* left: so no more of a scope stands in `<ns>.tasks` than its
//! workers can soon call. All others wait in the line. A few of a scope wait in memory. The rest is *put off*: each waits in a tier
//! and comes up again.
//!
//! # Invariants
//! 1. The credits in use are those of the tasks that workers hold: [`Tasks::set`] and [`Tasks::end`] are the only places that change
//!    either.
//! 2. What waits in memory is bounded: so many tasks of a scope, so many and so many bytes of a lane.
//! 3. A put-off grows with how long its scope has been blocked, and with how many wait and how large they are: a scope is asked
//!    for at a bounded rate of tasks and of bytes, however many tasks it has.

pub(super) mod decide;
mod pace;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::super::sealed::SUBMIT_MAX;
use super::super::task::follow_up::FollowUp;
use super::super::task::registry::Registry;
use super::super::task::scope::{Limits, SERVICE_CONCURRENCY, Serving};
use super::super::timers::{
    ByName, HeldBy, OpenTurn, Progress, RunProgress, ShardNews, ShardReport, ShardState, TimerId,
};
use super::super::verdict::PendingRecord;
use super::super::verdict::tasks::topics_of;
use super::super::work::{Callee, Scope};
use super::hops::PUT_OFF_MAX;
use super::rank::Rank;
use super::{Lane, Millis, UnixMillis};
pub(super) use pace::PutOff;

use pace::Pace;

/// Credits of a service or host: twice its share of open calls, within these.
const SCOPE_CREDITS: (u32, u32) = (16, 512);
/// Credits of a project in a lane, at most; and at least, whatever the lane's total is.
const PROJECT_CREDITS: (u32, u32) = (16, 2_048);
/// Credits of all projects in a lane.
const LANE_CREDITS: u32 = 8_192;
/// One more credit for each of these of a task's bytes.
const BYTES_PER_CREDIT: usize = 64 << 10;
/// Tasks of a scope that wait in memory: as many as end within the shortest put-off, within these.
const WAITING_OF_SCOPE: (usize, usize) = (256, 2_048);
/// Tasks of a lane that wait in memory, and their bytes.
const WAITING_OF_LANE: (usize, usize) = (4_096, 16 << 20);
/// A larger task does not wait in memory.
const WAITING_BYTES_MAX: usize = 64 << 10;
/// The shortest time for which a task is put off.
const PUT_OFF_MIN: Millis = Millis(1_000);
/// A scope has no more than so many of its tasks come up in a second.
const PUT_OFFS_PER_SECOND: u64 = 1_000;
/// How often what waits in memory is looked at, though nothing has ended.
const LOOK_EVERY: Millis = Millis(1_000);

/// Whether a task may go to its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permit {
    /// To this partition, for so many credits.
    Go(HeldBy),
    /// It waits in memory.
    Wait,
    /// It waits in a tier for about so long.
    PutOff(PutOff),
    /// Its project was deleted.
    Deleted,
}

/// One service or host of a project, in one lane.
#[derive(Debug, Default)]
struct ScopeState {
    /// Credits in use.
    credits: u32,
    /// What its worker said when it could not call: no more than so many, until it answers again.
    slow: Option<u32>,
    /// No call may begin before that, as its worker says.
    closed_until: UnixMillis,
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    waiting: BTreeMap<Rank, Box<PendingRecord>>,
    /// Tasks that stand in tiers though they are overdue.
    put_off: u64,
    /// Since when nothing of it may go.
    blocked_since: Option<UnixMillis>,
    /// Since when some of it are put off, or since when something of it may go again, if that is later.
    crowded_since: Option<UnixMillis>,
    /// How fast its turns end.
    pace: Pace,
}

impl ScopeState {
    fn is_idle(&self) -> bool {
        self.credits == 0 && self.waiting.is_empty() && self.put_off == 0 && self.slow.is_none()
    }

    /// A turn has ended, in one way or another.
    fn ended(&mut self, now: UnixMillis) {
        self.pace.ended(now, !self.waiting.is_empty());
        // Slow start: as many again with each answer.
        self.slow = self.slow.map(|slow| slow * 2).filter(|slow| *slow < SCOPE_CREDITS.1);
    }

    /// For how long one more task is put off.
    fn put_off_for(&mut self, now: UnixMillis, bytes: usize, is_blocked: bool) -> PutOff {
        let overdue = self.put_off + self.waiting.len() as u64 + 1;
        let blocked = is_blocked.then(|| *self.blocked_since.get_or_insert(now));
        let crowded = *self.crowded_since.get_or_insert(now);
        self.pace.put_off(now, bytes, overdue, blocked, crowded)
    }

    /// Something of it may go again. What was put off meanwhile says nothing of how slow it is.
    fn unblock(&mut self) {
        if self.blocked_since.take().is_some() {
            self.crowded_since = None;
        }
    }

    /// How many of it may wait in memory.
    fn waiting_max(&self, now: UnixMillis) -> usize {
        let (least, most) = WAITING_OF_SCOPE;
        let soon = self.pace.rate(now).unwrap_or_default() * PUT_OFF_MIN.0 / 1_000_000;
        (soon as usize).clamp(least, most)
    }
}

/// What waits in the memory of one lane, and the credits that are in use there.
#[derive(Clone, Copy, Debug, Default)]
struct LaneState {
    credits: u32,
    waiting: usize,
    bytes: usize,
}

/// How far the tasks of all lanes are.
#[derive(Debug)]
pub(super) struct Tasks {
    registry: Arc<Registry>,
    /// It was heard of: until then nothing is dispatched, as a pause or a limit could be missed.
    is_known: bool,
    lanes: u16,
    /// Of those that were dispatched at least once.
    progress: ByName<Progress>,
    /// How far executors said that they are, of those that were heard of here.
    cursors: ByName<Arc<str>>,
    /// Turns that executors have, and have given a sign of.
    open_turns: ByName<OpenTurn>,
    /// Tasks of schedules whose creates were written, and not read yet: when that was.
    announced: ByName<UnixMillis>,
    /// Of those whose executors report, and of whose end somebody is told: what that needs beside what is reported.
    follow_ups: ByName<Arc<FollowUp>>,
    /// Runs that have shards.
    runs: ByName<PendingRun>,
    /// Shards that have not ended, and what their runs were told of them.
    told: ByName<Told>,
    scopes: BTreeMap<(Lane, Scope), ScopeState>,
    /// Credits in use.
    projects: HashMap<(Lane, Arc<str>), u32>,
    of_lanes: Vec<LaneState>,
    looked: UnixMillis,
    counts: Counts,
}

/// A run that has shards.
#[derive(Debug)]
struct PendingRun {
    of: RunProgress,
    /// A write of it waits for its batch.
    is_to_write: bool,
}

/// What a run was told of a shard.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    begun: bool,
    again: bool,
}

/// What has happened to tasks since the start.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    stale: u64,
    put_off: u64,
    dispatched: u64,
    occurrences: u64,
    skipped: u64,
    shards: u64,
}

impl Tasks {
    pub(super) fn new(lanes: u16) -> Self {
        Self {
            registry: Arc::default(),
            is_known: false,
            lanes,
            progress: ByName::default(),
            cursors: ByName::default(),
            open_turns: ByName::default(),
            announced: ByName::default(),
            follow_ups: ByName::default(),
            runs: ByName::default(),
            told: ByName::default(),
            scopes: BTreeMap::new(),
            projects: HashMap::new(),
            of_lanes: vec![LaneState::default(); usize::from(lanes)],
            looked: UnixMillis(0),
            counts: Counts::default(),
        }
    }

    /// The lanes are gone. Projects and services are as they were.
    pub(super) fn renewed(&self) -> Self {
        let Self { ref registry, is_known, counts, .. } = *self;
        Self { registry: Arc::clone(registry), is_known, counts, ..Self::new(self.lanes) }
    }

    /// Counts for the metrics.
    pub(super) fn count(&self, figures: &mut super::figures::Figures) {
        figures.tasks_stale = self.counts.stale;
        figures.tasks_put_off = self.counts.put_off;
        figures.tasks_dispatched = self.counts.dispatched;
        figures.occurrences = self.counts.occurrences;
        figures.occurrences_skipped = self.counts.skipped;
        figures.shards_created = self.counts.shards;
        figures.runs_open = self.runs.len();
        let overdue = &mut figures.tasks_overdue;
        for ((_, scope), state) in self.scopes.iter().filter(|(_, state)| state.put_off > 0) {
            let count = match (is_paused(&self.registry, scope), state.slow) {
                (true, _) => &mut overdue.paused,
                (false, Some(_)) => &mut overdue.breaker,
                (false, None) => &mut overdue.limit,
            };
            *count += state.put_off as usize;
        }
        figures.tasks_waiting = self.of_lanes.iter().map(|lane| lane.waiting).sum();
        figures.tasks_credits = self.of_lanes.iter().map(|lane| lane.credits as usize).sum();
    }

    /// Projects and services are others now, or were heard of for the first time.
    pub(super) fn set_registry(&mut self, registry: Arc<Registry>) {
        self.registry = registry;
        self.is_known = true;
    }

    pub(super) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Whether projects and services were heard of.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// Something was said of a turn that is over.
    pub(super) fn count_stale(&mut self) {
        self.counts.stale += 1;
    }

    pub(super) fn count_dispatched(&mut self) {
        self.counts.dispatched += 1;
    }

    pub(super) fn count_put_off(&mut self) {
        self.counts.put_off += 1;
    }

    /// Nominal times of schedules have passed: so many with a task, and so many without one.
    pub(super) fn count_occurrences(&mut self, created: u64, skipped: u64) {
        self.counts.occurrences += created;
        self.counts.skipped += skipped;
    }

    /// So many shards of a run were created.
    pub(super) fn count_shards(&mut self, created: u64) {
        self.counts.shards += created;
    }

    // Runs, and shards.

    /// How far the shards of a run are, if it has some.
    pub(super) fn run(&self, timer_id: TimerId) -> Option<&RunProgress> {
        self.runs.get(&timer_id).map(|run| &run.of)
    }

    /// The shards of a run are that far.
    pub(super) fn set_run(&mut self, timer_id: TimerId, of: RunProgress) {
        let is_to_write = self.runs.get(&timer_id).is_some_and(|run| run.is_to_write);
        self.runs.insert(timer_id, PendingRun { of, is_to_write });
    }

    /// Takes in what is heard of a shard: whether it is new, and whether the run ends by what is known of its shards; `None`: there is no
    /// such run.
    pub(super) fn hear_of_shard(
        &mut self,
        timer_id: TimerId,
        said: ShardReport,
    ) -> Option<(bool, bool)> {
        let run = self.runs.get_mut(&timer_id)?;
        let is_new = run.of.hear(said);
        let stops = run.of.stops() && run.of.state(said.index) == ShardState::Failed;
        Some((is_new, stops || run.of.is_over()))
    }

    /// How far a run is is to be written; false: a write of it waits for its batch, and says this, too.
    pub(super) fn begin_to_write_run(&mut self, timer_id: TimerId) -> bool {
        let run = self.runs.get_mut(&timer_id);
        run.is_some_and(|run| !std::mem::replace(&mut run.is_to_write, true))
    }

    /// What is written of a run now.
    pub(super) fn run_to_write(&mut self, timer_id: TimerId) -> Option<&RunProgress> {
        let run = self.runs.get_mut(&timer_id)?;
        run.is_to_write = false;
        Some(&run.of)
    }

    /// Whether the run of a shard was not told that yet; it is from now on.
    pub(super) fn is_news_of_shard(&mut self, timer_id: TimerId, news: ShardNews) -> bool {
        let told = match news {
            ShardNews::Finished | ShardNews::Failed => {
                self.told.remove(&timer_id);
                return true;
            }
            ShardNews::Begun => &mut self.told.entry(timer_id).or_default().begun,
            ShardNews::Again => &mut self.told.entry(timer_id).or_default().again,
        };
        !std::mem::replace(told, true)
    }

    // Whether a task of a schedule is on its way.

    /// The create of a task is written: until it is read, the task is not pending, and has not ended.
    pub(super) fn announce(&mut self, now: UnixMillis, timer_id: TimerId) {
        self.announced.insert(timer_id, now);
    }

    /// A create is read.
    pub(super) fn arrived(&mut self, timer_id: TimerId) {
        self.announced.remove(&timer_id);
    }

    /// Whether the create of a task is on its way. One that is not read in time is not believed any more.
    pub(super) fn is_announced(&self, now: UnixMillis, timer_id: TimerId) -> bool {
        self.announced.get(&timer_id).is_some_and(|at| now < *at + SUBMIT_MAX)
    }

    // How far they are.

    /// How far a pending task is; `None`: it was never dispatched.
    pub(super) fn progress(&self, timer_id: TimerId) -> Option<Progress> {
        self.progress.get(&timer_id).copied()
    }

    /// How far an executor of a task said that it is, to the next one.
    pub(super) fn cursor(&self, timer_id: TimerId) -> Option<Arc<str>> {
        self.cursors.get(&timer_id).map(Arc::clone)
    }

    /// An executor says how far it is.
    pub(super) fn set_cursor(&mut self, timer_id: TimerId, cursor: Arc<str>) {
        self.cursors.insert(timer_id, cursor);
    }

    /// The turn that an executor has, if it has given a sign.
    pub(super) fn open_turn(&mut self, timer_id: TimerId) -> Option<&mut OpenTurn> {
        self.open_turns.get_mut(&timer_id)
    }

    /// An executor has begun a turn.
    pub(super) fn begin(&mut self, timer_id: TimerId, turn: OpenTurn) {
        self.open_turns.insert(timer_id, turn);
    }

    /// The turn of an executor is over: says what was known of it.
    pub(super) fn end_turn(&mut self, timer_id: TimerId) -> Option<OpenTurn> {
        self.open_turns.remove(&timer_id)
    }

    /// What is needed to tell of the end of a task whose executor reports it; `None`: nobody is told.
    pub(super) fn follow_up(&self, timer_id: TimerId) -> Option<Arc<FollowUp>> {
        self.follow_ups.get(&timer_id).map(Arc::clone)
    }

    /// A task is pending whose executor will report.
    pub(super) fn set_follow_up(&mut self, timer_id: TimerId, follow_up: Option<Arc<FollowUp>>) {
        if let Some(follow_up) = follow_up {
            self.follow_ups.insert(timer_id, follow_up);
        }
    }

    /// A task is pending no more, whether it was ever dispatched or not.
    pub(super) fn forget(&mut self, timer_id: TimerId) {
        self.follow_ups.remove(&timer_id);
        self.runs.remove(&timer_id);
    }

    /// A task is that far now. `scope`: whose limits it is under, if it makes calls.
    pub(super) fn set(
        &mut self,
        lane: Lane,
        timer_id: TimerId,
        scope: Option<&Scope>,
        progress: Progress,
    ) {
        let old = self.progress.insert(timer_id, progress).and_then(|old| old.held);
        self.change_credits(lane, scope, old, progress.held);
    }

    /// A task is pending no more.
    pub(super) fn end(&mut self, lane: Lane, timer_id: TimerId, scope: Option<&Scope>) {
        let old = self.progress.remove(&timer_id).and_then(|old| old.held);
        self.cursors.remove(&timer_id);
        self.open_turns.remove(&timer_id);
        self.change_credits(lane, scope, old, None);
    }

    fn change_credits(
        &mut self,
        lane: Lane,
        scope: Option<&Scope>,
        old: Option<HeldBy>,
        new: Option<HeldBy>,
    ) {
        let credits = |held: Option<HeldBy>| held.map_or(0, |held| u32::from(held.credits));
        let (old, new) = (credits(old), credits(new));
        let Some(scope) = scope.filter(|_| old != new) else { return };
        let change = |credits: &mut u32| *credits = credits.saturating_sub(old) + new;
        let of_project = (lane, Arc::clone(&scope.project));
        let credits = self.projects.entry(of_project.clone()).or_default();
        change(credits);
        if *credits == 0 {
            self.projects.remove(&of_project);
        }
        if let Some(of_lane) = self.of_lanes.get_mut(usize::from(lane.0)) {
            change(&mut of_lane.credits);
        }
        change(&mut self.scope(lane, scope).credits);
    }

    fn scope(&mut self, lane: Lane, scope: &Scope) -> &mut ScopeState {
        self.scopes.entry((lane, scope.clone())).or_default()
    }

    /// One more task of a scope waits in a tier though it is overdue, or one less.
    pub(super) fn put_off(&mut self, lane: Lane, scope: &Scope, is_put_off: bool) {
        let state = self.scope(lane, scope);
        state.put_off =
            if is_put_off { state.put_off + 1 } else { state.put_off.saturating_sub(1) };
        if state.put_off == 0 {
            state.crowded_since = None;
        }
    }

    /// A turn has ended.
    pub(super) fn turn_ended(&mut self, now: UnixMillis, lane: Lane, scope: &Scope) {
        self.scope(lane, scope).ended(now);
    }

    /// A worker could not call a task of this scope: none goes there until then, and few until it answers.
    pub(super) fn slow_down(&mut self, lane: Lane, scope: &Scope, until: UnixMillis) {
        let state = self.scope(lane, scope);
        state.slow = Some(1);
        state.closed_until = until.max(state.closed_until);
    }

    // Who may go.

    fn limits(&self, scope: &Scope) -> (Limits, Limits) {
        let project = self.registry.project(&scope.project);
        let service = match &scope.callee {
            Callee::Service(service) => project.services.get(&**service),
            Callee::Host(_) => None,
        };
        let of_callee =
            service.map_or(Limits::of_concurrency(SERVICE_CONCURRENCY), |service| service.limits());
        (project.limits(), of_callee)
    }

    /// For how long a task that goes to a topic is put off: its project is paused, or nothing was heard of it yet.
    pub(super) fn put_off_topics(
        &mut self,
        now: UnixMillis,
        lane: Lane,
        label: &str,
        bytes: usize,
    ) -> PutOff {
        let is_known = self.is_known;
        self.scope(lane, &topics_of(label)).put_off_for(now, bytes, is_known)
    }

    /// Whether a task of so many bytes may go to its worker.
    pub(super) fn permit(
        &mut self,
        now: UnixMillis,
        lane: Lane,
        scope: &Scope,
        bytes: usize,
    ) -> Permit {
        if !self.is_known {
            return Permit::PutOff(PutOff::LEAST);
        }
        if self.registry.project(&scope.project).is_deleted {
            return Permit::Deleted;
        }
        if is_paused(&self.registry, scope) {
            return Permit::PutOff(self.scope(lane, scope).put_off_for(now, bytes, true));
        }
        let (of_project, of_callee) = self.limits(scope);
        let serving = Serving::of_project(&scope.project, &of_project, self.lanes);
        let serving = serving.of_service(&of_callee);
        let partition = serving.partition_for(lane);
        let share = serving.share(&of_callee, partition).map_or(1, |share| share.concurrency);
        let (least, most) = SCOPE_CREDITS;
        let limit = share.saturating_mul(2).clamp(least, most);
        // A body is 1 MiB at most, so this fits.
        let cost = 1 + (bytes / BYTES_PER_CREDIT) as u32;
        let of_lane = self.of_lanes.get(usize::from(lane.0)).copied().unwrap_or_default();
        let held = self.projects.get(&(lane, Arc::clone(&scope.project))).copied();
        let held = held.unwrap_or_default();
        let projects = self.projects.keys().filter(|(of, _)| *of == lane).count().max(1) as u32;
        let share_of_lane = (LANE_CREDITS / projects).max(PROJECT_CREDITS.0);
        let is_small = held + cost <= PROJECT_CREDITS.0;
        let has_lane = of_lane.credits + cost <= LANE_CREDITS && held + cost <= share_of_lane;
        let has_project = held + cost <= PROJECT_CREDITS.1 && (is_small || has_lane);
        let state = self.scope(lane, scope);
        let limit = state.slow.map_or(limit, |slow| slow.min(limit));
        // One goes in any case where none is held.
        let has_scope = state.credits + cost <= limit || state.credits == 0;
        let is_closed = state.closed_until > now;
        if !is_closed {
            state.unblock();
        }
        let has_scope = has_scope && !is_closed;
        if has_scope && (has_project || held == 0) {
            return Permit::Go(HeldBy { partition, credits: cost as u16 });
        }
        state.pace.denied(now);
        let (waiting_max, bytes_max) = WAITING_OF_LANE;
        let may_wait = bytes <= WAITING_BYTES_MAX
            && state.waiting.len() < state.waiting_max(now)
            && of_lane.waiting < waiting_max
            && of_lane.bytes + bytes <= bytes_max;
        if may_wait {
            Permit::Wait
        } else {
            Permit::PutOff(state.put_off_for(now, bytes, is_closed))
        }
    }

    /// A task waits in memory until its scope has a credit. Gives back another copy of it that waited there: a result that was
    /// written twice brings two.
    #[must_use]
    pub(super) fn wait(
        &mut self,
        scope: &Scope,
        entry: Box<PendingRecord>,
    ) -> Option<Box<PendingRecord>> {
        let (lane, size) = (entry.source.lane, entry.record.size());
        let rank = (entry.due, entry.order);
        let before = self.scope(lane, scope).waiting.insert(rank, entry);
        if let Some(of_lane) = self.of_lanes.get_mut(usize::from(lane.0)) {
            let (waited, of_before) = before.as_ref().map_or((0, 0), |of| (1, of.record.size()));
            of_lane.waiting = (of_lane.waiting + 1).saturating_sub(waited);
            of_lane.bytes = (of_lane.bytes + size).saturating_sub(of_before);
        }
        before
    }

    /// Takes out of memory what may find a credit now that a turn has ended, the first due first: one more than it gives back
    /// credits, as one that is taken may have been cancelled meanwhile.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    pub(super) fn freed(
        &mut self,
        lane: Lane,
        scope: &Scope,
        credits: u16,
    ) -> Vec<Box<PendingRecord>> {
        self.take_waiting(lane, scope, usize::from(credits) + 1)
    }

    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    fn take_waiting(&mut self, lane: Lane, scope: &Scope, most: usize) -> Vec<Box<PendingRecord>> {
        let Some(state) = self.scopes.get_mut(&(lane, scope.clone())) else { return Vec::new() };
        let free = match state.slow {
            Some(slow) => (slow.saturating_sub(state.credits).max(1) as usize).min(most),
            None => most,
        };
        let mut taken = Vec::new();
        while taken.len() < free
            && let Some((_, entry)) = state.waiting.pop_first()
        {
            taken.push(entry);
        }
        if let Some(of_lane) = self.of_lanes.get_mut(usize::from(lane.0)) {
            of_lane.waiting = of_lane.waiting.saturating_sub(taken.len());
            let bytes: usize = taken.iter().map(|entry| entry.record.size()).sum();
            of_lane.bytes = of_lane.bytes.saturating_sub(bytes);
        }
        taken
    }

    /// When to look again at what waits in memory; `None`: nothing does.
    pub(super) fn look_at(&self) -> Option<UnixMillis> {
        let waits = self.of_lanes.iter().any(|lane| lane.waiting > 0);
        waits.then(|| self.looked + LOOK_EVERY)
    }

    /// Takes those out of memory of whose scope no worker holds a task: what would free them may have gone.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    pub(super) fn look(&mut self, now: UnixMillis) -> Vec<Box<PendingRecord>> {
        if self.look_at().is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.looked = now;
        let is_free = |state: &ScopeState| {
            state.credits == 0 && !state.waiting.is_empty() && state.closed_until <= now
        };
        let free = self.scopes.iter().filter(|(_, state)| is_free(state));
        let free: Vec<(Lane, Scope)> = free.map(|(of, _)| of.clone()).collect();
        let most = SCOPE_CREDITS.1 as usize;
        free.iter().flat_map(|(lane, scope)| self.take_waiting(*lane, scope, most)).collect()
    }

    /// Takes all out of memory: who may go is another now. Scopes of which nothing is left are forgotten.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    pub(super) fn reconsider(&mut self, now: UnixMillis) -> Vec<Box<PendingRecord>> {
        self.scopes.retain(|_, state| !state.is_idle());
        let mut taken = Vec::new();
        let registry = Arc::clone(&self.registry);
        for ((_, scope), state) in &mut self.scopes {
            if !is_paused(&registry, scope) && state.closed_until <= now {
                state.unblock();
            }
            taken.extend(std::mem::take(&mut state.waiting).into_values());
        }
        for of_lane in &mut self.of_lanes {
            (of_lane.waiting, of_lane.bytes) = (0, 0);
        }
        taken
    }
}

fn is_paused(registry: &Registry, scope: &Scope) -> bool {
    let service = match &scope.callee {
        Callee::Service(service) => Some(&**service),
        Callee::Host(_) => None,
    };
    registry.paused(&scope.project, service)
}

#[cfg(test)]
mod tests;
