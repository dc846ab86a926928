//! The role of a lane thread: the engine of its lanes decides about their records.

mod asks;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use tokio::sync::watch;

use super::role::{Committed, Polled, Role};
use super::session::{Membership, POLL_MAX, POLL_SHORT};
use super::{Policies, millis};
use crate::cluster::end_offsets;
use crate::cluster::targets::{Answer, Lookup};
use crate::member::changelog_end::Written;
use crate::member::commit::{BatchOwner, Report};
use crate::member::fence::Members;
use crate::member::inventory;
use crate::member::lane_batches::LaneBatches;
use crate::member::load::Work;
use crate::member::rebalance::Taken;
use crate::member::timers::{AssignmentEvent, TakenOver, Timers};
use crate::meta::RegistryFeed;
use waterclock_engine::member::{LOOK_EVERY, LaneRules, LateHop, QueryGoals, ReadGoals};
use waterclock_engine::task::registry::Registry;
use waterclock_engine::timers::Forgettable;
use waterclock_engine::{
    Action, BatchId, Decided, Event, Figures, Lane, LaneEngine, Offset, Refused, Setup, Source,
    Start,
};
use waterclock_telemetry::{LaneFigures, LaneLevels};

type Member<'a> = Membership<'a, LaneRules>;

/// What the lanes of a process work with.
#[derive(Clone)]
pub(in crate::member) struct LaneParts {
    /// What the engine is given.
    pub(in crate::member) setup: Arc<Setup>,
    /// Where records may go.
    pub(in crate::member) policies: Arc<Policies>,
    /// How long what is due waits for a transaction of somebody else that stays open on an intake.
    pub(in crate::member) foreign_wait: Duration,
    /// The id of the main intake that was there first, if it was written down.
    pub(in crate::member) first_intake: Option<String>,
    /// Finds out about targets.
    pub(in crate::member) lookup: Lookup,
    /// Keeps the timers, and answers for them.
    pub(in crate::member) timers: Arc<dyn Timers>,
    /// How far their changelog is written.
    pub(in crate::member) written: Arc<Written>,
    /// What the metrics get.
    pub(in crate::member) figures: Arc<LaneFigures>,
    /// What is done here, for the own announcement.
    pub(in crate::member) work: Arc<Work>,
    /// Projects and services, for tasks.
    pub(in crate::member) registry: RegistryFeed,
}

/// The lanes of one thread, while it is in the group.
pub(super) struct Lanes<'a> {
    parts: &'a LaneParts,
    engine: LaneEngine,
    levels: LaneLevels,
    /// What the metrics have been told of.
    counted: Figures,
    /// Which change of the policies the engine has been told.
    policies: u64,
    /// Says when projects or services change.
    registry: watch::Receiver<Arc<Registry>>,
    /// The engine has been told of them once.
    knows_registry: bool,
    answers: (Sender<Answer>, Receiver<Answer>),
    /// Look-ups of targets that are not answered yet.
    lookups_open: usize,
    end_offsets: (Sender<end_offsets::Answer>, Receiver<end_offsets::Answer>),
    /// Partitions whose ends are asked for.
    ends_asked: usize,
    /// Partitions whose end nobody reported, to be asked for again then.
    retry_ends: Vec<(Instant, Source)>,
    /// Partitions that are to be read to where they ended.
    read_goals: ReadGoals,
    timer_events: (Sender<AssignmentEvent>, Receiver<AssignmentEvent>),
    /// Lanes of which it is not known yet what is pending.
    unknown: usize,
    /// Lanes whose query for ended timers is open.
    recalls: usize,
    /// While this is alive, the rest of some lanes is read for this assignment.
    counting: Arc<()>,
    /// Those who look timers up, and wait until what they may know of is decided.
    queries: QueryGoals<Decided>,
    out: Vec<Action>,
}

impl<'a> Lanes<'a> {
    pub(super) fn new(parts: &'a LaneParts, thread: usize) -> Self {
        let (policies, setup) = parts.policies.now();
        Self {
            parts,
            levels: LaneLevels::new(thread, setup.limits.memory_bytes as u64),
            engine: LaneEngine::new(setup),
            counted: Figures::default(),
            policies,
            registry: parts.registry.subscribe(),
            knows_registry: false,
            answers: crossbeam_channel::unbounded(),
            lookups_open: 0,
            end_offsets: crossbeam_channel::unbounded(),
            ends_asked: 0,
            retry_ends: Vec::new(),
            read_goals: ReadGoals::new(
                parts.setup.topics.intakes.len(),
                millis(parts.foreign_wait),
            ),
            timer_events: crossbeam_channel::unbounded(),
            unknown: 0,
            recalls: 0,
            counting: Arc::default(),
            queries: QueryGoals::default(),
            out: Vec::new(),
        }
    }

    /// Tells the engine one fact and carries out what it orders.
    fn step(&mut self, member: &mut Member<'_>, event: Event) {
        let now = member.now();
        let mut out = std::mem::take(&mut self.out);
        self.engine.step(now, event, &mut out);
        let (mut pause, mut resume) = (Vec::new(), Vec::new());
        for order in out.drain(..) {
            match order {
                Action::Pause(source) => pause.push(source),
                Action::Resume(source) => resume.push(source),
                Action::Seek(source, offset) => member.seek(source, offset),
                Action::DescribeTarget(topic) => {
                    self.lookups_open += 1;
                    self.parts.lookup.ask(topic, self.answers.0.clone());
                }
                Action::ListEndOffsets(sources) => self.ask_for_ends(member, &sources, false),
                Action::ListExpired(lane) => {
                    if let Some(assignment) = member.assignment() {
                        let history = self.parts.setup.limits.history;
                        let what = Forgettable::at(now, history);
                        self.parts.timers.list_expired(
                            assignment,
                            lane,
                            what,
                            &self.timer_events.0,
                        );
                    }
                }
                Action::Recall { lane, timers } => {
                    if let Some(assignment) = member.assignment() {
                        self.recalls += 1;
                        self.parts.timers.recall(assignment, lane, timers, &self.timer_events.0);
                    }
                }
                Action::Overdue { lane, before, after } => {
                    if let Some(assignment) = member.assignment() {
                        let overdue = (lane, before, after);
                        self.parts.timers.list_overdue(assignment, overdue, &self.timer_events.0);
                    }
                }
                Action::Inventory { lane, from } => self.take_inventory(member, lane, from),
                Action::Batch(batch) => member.submit(batch),
            }
        }
        self.out = out;
        member.pause(&pause);
        member.resume(resume);
    }

    fn take_inventory(&mut self, member: &mut Member<'_>, lane: Lane, from: Vec<(Source, Offset)>) {
        let Some(assignment) = member.assignment() else { return };
        let order = inventory::InventoryRequest {
            connection: member.plan.connection.clone(),
            setup: Arc::clone(&self.parts.setup),
            ends: member.shared.ends.clone(),
            assignment,
            lane,
            from,
            stands: Arc::downgrade(&self.counting),
            to: self.timer_events.0.clone(),
        };
        if let Err(error) = inventory::begin(order) {
            tracing::warn!(%error, lane = lane.0, "could not start a thread to read what is left of a lane");
            self.step(member, Event::Counted { lane, is_complete: false });
        }
    }

    /// Tells the metrics what is held, and what was counted since the last time.
    fn tell(&mut self, member: &Member<'_>) {
        let figures = self.engine.figures();
        if figures.waiting > 0 || figures.rated > 0 {
            member.shared.clock.want();
        }
        self.levels.pending.set(figures.waiting as u64);
        self.levels.memory_bytes.set(figures.memory_bytes as u64);
        self.levels.lanes.set(figures.lanes as u64);
        self.levels.paused.set(figures.paused as u64);
        self.levels.cancels.set(figures.remembered as u64);
        self.levels.timers.set(figures.live as u64);
        member.status.has_timers((self.unknown == 0).then_some(figures.live as u64));
        self.levels.gated.set(figures.gated as u64);
        self.levels.ordered.set(figures.ordered as u64);
        self.levels.rated.set(figures.rated as u64);
        self.levels.window(figures.window_permille);
        let now = member.shared.clock.now(Instant::now());
        let overdue = now.zip(figures.first_due).map(|(now, due)| now - due);
        self.levels.overdue(overdue.unwrap_or_default());
        self.parts.figures.lost(figures.lost - self.counted.lost);
        self.parts.figures.late_hops(figures.late_hops - self.counted.late_hops);
        self.parts.figures.spilled(figures.spilled - self.counted.spilled);
        self.parts.figures.put_off(figures.deferred - self.counted.deferred);
        self.parts.figures.put_off_paused(figures.put_off_paused - self.counted.put_off_paused);
        self.parts.figures.over_rate(figures.over_rate - self.counted.over_rate);
        self.parts.figures.unreadable(figures.unreadable - self.counted.unreadable);
        self.levels.suspects.set(figures.suspects as u64);
        let lost = figures.lost_timers - self.counted.lost_timers;
        if lost > 0 {
            tracing::error!(
                thread = member.plan.thread,
                timers = lost,
                "timers are lost, as their records are gone: `list --state lost` shows them. Somebody has deleted records or topics \
                 that were not done"
            );
            self.parts.figures.lost_timers(lost);
        }
        self.parts.figures.timers(
            figures.duplicates - self.counted.duplicates,
            figures.superseded - self.counted.superseded,
        );
        self.parts.figures.halved(figures.halvings - self.counted.halvings);
        self.levels.tasks_waiting.set(figures.tasks_waiting as u64);
        let overdue = figures.tasks_overdue;
        self.levels.tasks_paused.set(overdue.paused as u64);
        self.levels.tasks_over_limit.set(overdue.limit as u64);
        self.levels.tasks_behind_breaker.set(overdue.breaker as u64);
        self.levels.tasks_held.set(figures.tasks_credits as u64);
        self.levels.runs_open.set(figures.runs_open as u64);
        self.parts.figures.tasks(
            figures.tasks_dispatched - self.counted.tasks_dispatched,
            figures.tasks_put_off - self.counted.tasks_put_off,
            figures.tasks_stale - self.counted.tasks_stale,
        );
        self.parts.figures.schedules(
            figures.occurrences - self.counted.occurrences,
            figures.occurrences_skipped - self.counted.occurrences_skipped,
        );
        self.parts.figures.shards(figures.shards_created - self.counted.shards_created);
        self.counted = figures;
        if member.status.reads.is_asked() {
            let reads = self.engine.read_positions();
            member.status.reads.tell(reads.map(|read| member.fetched(read)).collect());
        }
    }
}

impl Role for Lanes<'_> {
    type Rules = LaneRules;
    const MEMBERS: Members = Members::Lanes;
    const LETS_GO_LATER: bool = false;
    const GOES_ON: bool = false;
    const WAITS: bool = false;

    fn batches(&self) -> Arc<dyn BatchOwner> {
        let LaneParts { setup, first_intake, written, figures, work, .. } = self.parts.clone();
        Arc::new(LaneBatches::new(setup, first_intake, written, (figures, work)))
    }

    fn begin(&mut self, member: &mut Member<'_>, assignment: u64, taken: Taken) {
        let Taken { starts, is_recreated, asked_at, changelogs, .. } = taken;
        let (partitions, now) = (starts.len(), member.at());
        let (behind, read): (Vec<&Start>, Vec<&Start>) =
            starts.iter().partition(|start| start.next < start.end);
        for start in behind {
            self.read_goals.begin(start.source, start.end, asked_at, now);
        }
        let read: Vec<Source> = read.iter().map(|start| start.source).collect();
        let of_intakes = starts.iter().filter(|start| member.topics().is_intake(start.source));
        let intakes: Vec<Start> = of_intakes.cloned().collect();
        // Of these events the engine asks nothing yet: it knows no timer.
        self.step(member, Event::Assigned { starts });
        if is_recreated {
            self.step(member, Event::Recreated);
        }
        for source in read {
            self.step(member, Event::ReadUpTo { source, at: asked_at });
        }
        let lanes = self.engine.lanes();
        self.unknown = lanes.len();
        let changelogs = changelogs.into_iter().filter(|(lane, _)| lanes.contains(lane)).collect();
        let taken = TakenOver { assignment, lanes, changelogs, intakes };
        self.parts.timers.begin(taken, &self.timer_events.0);
        let figures = self.engine.figures();
        tracing::info!(
            thread = member.plan.thread,
            assignment,
            lanes = figures.lanes,
            partitions,
            unreadable = figures.unreadable,
            "lanes taken over"
        );
    }

    fn revoked(&mut self, member: &mut Member<'_>, assignment: Option<u64>) {
        self.read_goals.clear();
        self.retry_ends.clear();
        self.queries.clear();
        if let Some(assignment) = assignment {
            self.parts.timers.release(assignment);
        }
        self.unknown = 0;
        self.recalls = 0;
        self.counting = Arc::default();
        self.step(member, Event::Revoked);
    }

    fn read(&mut self, member: &mut Member<'_>, polled: Polled) {
        let Polled { source, offset, appended, record } = polled;
        self.step(member, Event::Record { source, offset, appended, record });
    }

    fn committed(&mut self, member: &mut Member<'_>, batch: Committed) {
        let Committed { id, answers, late } = batch;
        answers.iter().for_each(|answer| self.parts.figures.answered(answer.outcome));
        self.parts.timers.answered(answers);
        for LateHop { source, offset, due } in late {
            self.step(member, Event::Late { source, offset, due });
        }
        self.step(member, Event::Committed(id));
    }

    fn failed(
        &mut self,
        member: &mut Member<'_>,
        doubted: Vec<Arc<str>>,
        acknowledged: Vec<(BatchId, usize)>,
    ) {
        self.step(member, Event::InvalidateTargets(doubted));
        self.step(member, Event::PartlyAcknowledged(acknowledged));
    }

    fn refused(&mut self, member: &mut Member<'_>, refused: Refused) {
        self.step(member, Event::Refused(refused));
    }

    fn patience(&self, member: &Member<'_>) -> Duration {
        let until = self.engine.wake_at().map_or(POLL_MAX, |at| {
            let now_us = member.shared.clock.now_us(Instant::now()).unwrap_or_default();
            Duration::from_micros((at.0 * 1_000).saturating_sub(now_us))
        });
        let awaited = self.lookups_open > 0
            || self.ends_asked > 0
            || self.unknown > 0
            || self.recalls > 0
            || self.engine.is_counting();
        let soon = self.read_goals.patience(|source| self.engine.is_awaited(source));
        let soon = soon.or_else(|| self.parts.timers.has_goals().then_some(LOOK_EVERY));
        let soon = soon.map(|soon| Duration::from_millis(soon.0));
        let most = match (awaited, soon) {
            (true, _) => POLL_SHORT,
            // That a marker was passed does not end a poll.
            (false, Some(soon)) => soon,
            (false, None) => POLL_MAX,
        };
        until.min(most)
    }

    fn wait(&mut self, member: &mut Member<'_>, most: Duration) -> Option<Report> {
        self.await_answers(member, most)
    }

    fn turn(&mut self, member: &mut Member<'_>) {
        self.take_answers(member);
        if let Some((change, setup)) = self.parts.policies.since(self.policies) {
            self.policies = change;
            self.step(member, Event::Policies(setup));
        }
        // A closed channel says nothing new.
        let has_changed = self.registry.has_changed().unwrap_or(false);
        if has_changed || !self.knows_registry && self.parts.registry.is_known() {
            self.knows_registry = self.parts.registry.is_known();
            let registry = Arc::clone(&self.registry.borrow_and_update());
            self.step(member, Event::Registry(registry));
        }
        self.look_at_positions(member);
        self.step(member, Event::Tick);
        self.look_at_goals(member);
    }

    fn tell_figures(&mut self, member: &mut Member<'_>) {
        self.tell(member);
    }

    fn drain(&mut self, member: &mut Member<'_>) {
        self.step(member, Event::Drain);
    }

    fn is_drained(&self) -> bool {
        self.engine.is_drained()
    }

    fn lanes(&self) -> Vec<Lane> {
        self.engine.lanes()
    }
}
