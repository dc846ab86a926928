//! A model of the shell: one process that reads, feeds its engine, carries out its orders and reports back.
//!
//! It does what the real one does in the same order: begin, produce, send offsets, commit, tell the engine; and
//! after anything doubtful it throws its state away, renews its producer and takes its lanes over again.
//!
//! # Invariants
//! 1. Answers to requests of an older round are void: the round ends with every revocation and renewal.
//! 2. The group's generation is that of the assignment being worked on, never a fresher one.
//! 3. In `at_least_once` offsets are committed only after every record of their batch and of all before it.

mod batches;
mod clock;
mod group;
mod index;
mod ledger;
mod mutating;
mod reading;
mod tally;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use waterclock::engine::member::{
    Appends, Failures, Fenced, Life, Positions as Known, ReadGoals, Step, TakeOver,
};
use waterclock::engine::messages::{Answer, Event, Target};
use waterclock::engine::{BatchId, LaneEngine, Millis, Offset, Record, Source, UnixMillis};

use crate::broker::{Place, Position, Time, Writer};
use crate::network::{Identity, Outgoing, Process, Reply, Request, Scheduled, Wake};
use crate::plan::{Kind, Plan, SECOND};
use crate::workload::NUMBER;
use crate::world::World;
use clock::Clocks;
use index::{Disk, Pieces, Waiting};
use tally::Tally;

/// How long a stop may take.
const DRAIN_MAX: Time = 10 * SECOND;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Up {
    Dead,
    Alive,
    Frozen { since: Time, until: Time },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for its first producer.
    Starting,
    /// Something failed: it takes its lanes over again in time.
    Resting,
    /// Waits for a new producer, with lanes.
    Renewing,
    Joining,
    /// Waits for the committed offsets.
    Fetching,
    Running,
    /// Finishes what is on its way, then joins the group's next round.
    Finishing,
}

/// Where one partition is read.
#[derive(Clone, Copy, Debug)]
struct Reading {
    next: Offset,
    /// The furthest that it has been.
    upto: Offset,
    paused: bool,
    /// Nothing comes before this: a resume takes its time.
    from: Time,
}

/// Where partitions stand.
type Positions = Vec<(Place, Position)>;

/// A batch on its way.
#[derive(Debug)]
struct Flight {
    id: BatchId,
    outgoing: VecDeque<Outgoing>,
    positions: Positions,
    numbers: Vec<u32>,
    /// They may leave once it is committed.
    answers: Vec<Answer>,
    offsets_sent: bool,
    /// Records handed to brokers, and the topics of those in the last request.
    sent: usize,
    asked: Vec<Arc<str>>,
    /// When its first request was sent, and its last.
    began: Option<Time>,
    step: (Step, Time),
}

impl Flight {
    /// How many records were in the requests before the last one.
    fn before_asked(&self) -> usize {
        self.sent - self.asked.len()
    }
}

pub struct Member {
    slot: usize,
    pub life: u32,
    pub up: Up,
    /// The member id in the group.
    pub name: String,
    pub engine: Option<LaneEngine>,
    pub back_after: Time,
    phase: Phase,
    round: u64,
    writer: Option<Writer>,
    generation: u32,
    lanes: Vec<u16>,
    reading: BTreeMap<Source, Reading>,
    /// Where the logs ended when they were taken over.
    pub ends: BTreeMap<Place, Offset>,
    /// Partitions that are to be read to somewhere.
    goals: ReadGoals,
    /// A look at these is to come, wanted or not.
    looks_queued: bool,
    /// Partitions whose end the engine has asked for.
    asked: BTreeSet<Source>,
    /// When the ends of the logs were asked for at the take-over.
    logs_asked: UnixMillis,
    /// When what was last asked of the group's coordinator arrives.
    pub coordinated: Time,
    /// Targets that the engine has asked for.
    asking: BTreeSet<Arc<str>>,
    /// What is on the slot's disk: it survives the process.
    pub disk: Disk,
    /// The engine's actions are being carried out.
    ordering: bool,
    /// Lanes whose changelogs the index reads: from when they are told of till they are another's.
    followed: BTreeSet<i32>,
    /// The index is about to go on.
    following: bool,
    waiting: Vec<Waiting>,
    /// By lane: what is yet to be told of its timers.
    pieces: BTreeMap<i32, Pieces>,
    /// Lanes whose timers are loaded.
    loaded: BTreeSet<i32>,
    flights: VecDeque<Flight>,
    /// The first flight's request is on its way.
    busy: bool,
    /// `at_least_once`: positions whose records are acknowledged, to be committed next.
    positions: BTreeMap<Place, Position>,
    /// Positions are on their way; the submissions that they cover.
    committing: Option<(Vec<u32>, Positions)>,
    /// Submissions acknowledged whose offsets are not committed yet.
    acknowledged: Vec<u32>,
    last_now: UnixMillis,
    clocks: Clocks,
    /// What it knows of positions, beyond one take-over.
    known: Known,
    /// The take-over that is under way.
    taking: Option<TakeOver>,
    /// The committed offsets that it was told first (for a mutation).
    told_first: Option<Vec<Option<Position>>>,
    /// When it takes its lanes over again.
    rest: Life,
    /// Whose transactions it has ended.
    fenced: Fenced,
    /// What the delivery reports of its producer say.
    appends: Appends,
    failures: Failures,
    /// What it writes can be taken back.
    aborts: bool,
    /// A connection of its producer has ended.
    disconnected: bool,
    tick_at: Option<Time>,
    /// When it is woken for a tick, wanted or not.
    ticks: BTreeSet<Time>,
    poll_queued: bool,
    draining: bool,
    /// Records that the engine said it spilled, as last seen.
    spilled: u64,
    tally: Tally,
}

impl Member {
    pub fn new(slot: usize, plan: &Plan) -> Self {
        let intakes = plan.setup.topics.intakes.len();
        Self {
            slot,
            life: 0,
            up: Up::Dead,
            name: String::new(),
            engine: None,
            back_after: 0,
            phase: Phase::Starting,
            round: 0,
            writer: None,
            generation: 0,
            lanes: Vec::new(),
            reading: BTreeMap::new(),
            ends: BTreeMap::new(),
            goals: ReadGoals::new(intakes, Millis(plan.foreign_wait)),
            looks_queued: false,
            asked: BTreeSet::new(),
            logs_asked: UnixMillis(0),
            asking: BTreeSet::new(),
            coordinated: 0,
            disk: Disk::default(),
            ordering: false,
            followed: BTreeSet::new(),
            following: false,
            waiting: Vec::new(),
            pieces: BTreeMap::new(),
            loaded: BTreeSet::new(),
            flights: VecDeque::new(),
            busy: false,
            positions: BTreeMap::new(),
            committing: None,
            acknowledged: Vec::new(),
            last_now: UnixMillis(0),
            clocks: Clocks::default(),
            known: Known::default(),
            taking: None,
            told_first: None,
            rest: Life::new(Millis(0)),
            fenced: Fenced::default(),
            appends: Appends::default(),
            failures: Failures::default(),
            aborts: false,
            disconnected: false,
            tick_at: None,
            ticks: BTreeSet::new(),
            poll_queued: false,
            draining: false,
            spilled: 0,
            tally: Tally::default(),
        }
    }

    pub fn process(&self) -> Process {
        Process { slot: self.slot, life: self.life }
    }

    /// Marks what a crash now may double.
    pub fn expose(&self, exposed: &mut BTreeSet<u32>) {
        exposed.extend(self.flights.iter().flat_map(|flight| &flight.numbers));
        exposed.extend(&self.acknowledged);
        exposed.extend(self.committing.iter().flat_map(|(numbers, _)| numbers));
    }

    fn forget(&mut self) {
        self.round += 1;
        self.flights.clear();
        self.appends = Appends::new(self.aborts);
        self.failures = Failures::default();
        self.busy = false;
        self.positions.clear();
        self.committing = None;
        self.acknowledged.clear();
        self.reading.clear();
        self.goals.clear();
        self.looks_queued = false;
        self.asked.clear();
        self.followed.clear();
        self.waiting.clear();
        self.pieces.clear();
        self.loaded.clear();
        self.taking = None;
        self.tally = Tally::default();
    }

    /// The lanes that it runs, if all that it has decided is committed.
    pub fn settled_lanes(&self) -> Option<&[u16]> {
        let is_settled = self.up == Up::Alive
            && self.phase == Phase::Running
            && self.idle()
            && self.loaded.len() == self.lanes.len();
        is_settled.then_some(&self.lanes)
    }

    fn idle(&self) -> bool {
        self.flights.is_empty() && self.positions.is_empty() && self.committing.is_none()
    }

    fn identity(&self) -> Identity {
        Identity { member: self.name.clone(), generation: self.generation }
    }
}

/// The submission that a record is of.
pub fn number_of(record: &Record) -> Option<u32> {
    let (_, value) = record.headers().find(|(name, _)| *name == NUMBER)?;
    std::str::from_utf8(value?).ok()?.parse().ok()
}

impl World {
    pub(super) fn member(&mut self, slot: usize) -> &mut Member {
        &mut self.members[slot]
    }

    pub(super) fn ask(&mut self, slot: usize, request: Request) {
        let (process, round) = (self.members[slot].process(), self.members[slot].round);
        self.request(process, round, request);
    }

    // Life of a process.

    pub fn start(&mut self, slot: usize) {
        if self.members[slot].up != Up::Dead {
            return;
        }
        let life = self.members[slot].life + 1;
        let name = self.fresh_name(slot, life);
        let engine = LaneEngine::new(Arc::clone(&self.plan.setup));
        let disk = std::mem::take(&mut self.member(slot).disk);
        let aborts = self.plan.exactly_once();
        let (engine, appends) = (Some(engine), Appends::new(aborts));
        let up = Up::Alive;
        let fresh = Member {
            life,
            up,
            name,
            engine,
            disk,
            appends,
            aborts,
            ..Member::new(slot, &self.plan)
        };
        self.members[slot] = fresh;
        self.hear_registry(slot);
        if self.plan.exactly_once() {
            self.renew(slot)
        } else {
            self.join(slot)
        }
        if self.members[slot].phase == Phase::Renewing {
            self.member(slot).phase = Phase::Starting;
        }
    }

    pub(super) fn fresh_name(&mut self, slot: usize, life: u32) -> String {
        format!("{:04x}-{slot}-{life}", self.chance.between(0, 0xffff))
    }

    pub(super) fn renew(&mut self, slot: usize) {
        let id: Arc<str> = format!("waterclock-{slot}").into();
        self.member(slot).phase = Phase::Renewing;
        self.ask(slot, Request::Init(id));
    }

    pub(super) fn join(&mut self, slot: usize) {
        let life = self.members[slot].life;
        self.member(slot).phase = Phase::Joining;
        self.member(slot).round += 1;
        if !self.broker.group.knows(&self.members[slot].name) {
            self.member(slot).name = self.fresh_name(slot, life);
        }
        let name = self.members[slot].name.clone();
        self.note(|| format!("slot {slot} joins as {name}"));
        self.ask(slot, Request::Join(name));
    }

    pub fn awaken(&mut self, process: Process, wake: Wake) {
        let slot = process.slot;
        let current = |world: &Self, round: u64| world.members[slot].round == round;
        match wake {
            Wake::Tick => {
                let at = self.at;
                self.member(slot).ticks.retain(|tick| *tick > at);
                let due = self.members[slot].tick_at.is_some_and(|at| at <= self.at);
                if due {
                    self.member(slot).tick_at = None;
                    if self.members[slot].phase == Phase::Running {
                        self.step(slot, Event::Tick);
                    }
                }
            }
            Wake::Poll => {
                self.member(slot).poll_queued = false;
                self.poll(slot);
            }
            Wake::Rebalance => self.rebalance(slot),
            Wake::Assigned => self.round_over(slot),
            Wake::Reply(_, Reply::Described(name, target, away)) => {
                self.told(slot, name, target, away);
            }
            Wake::Reply(round, reply) if current(self, round) => self.reply(slot, reply),
            Wake::Again(round, request) if current(self, round) => {
                self.request(process, round, request);
            }
            Wake::Reply(..) | Wake::Again(..) => {}
            Wake::Drain => {
                self.member(slot).draining = true;
                self.wake(process, DRAIN_MAX, Wake::DrainEnds);
                self.step(slot, Event::Drain);
            }
            Wake::DrainEnds => self.leave(slot),
            Wake::Follow => self.follow(slot),
            Wake::Piece(round, lane) if current(self, round) => self.piece(slot, lane),
            Wake::Left(round, lane, from) if current(self, round) => {
                self.read_left(slot, lane, from);
            }
            Wake::Look(round) if current(self, round) => {
                self.member(slot).looks_queued = false;
                self.poll(slot);
            }
            Wake::Resume(round) if current(self, round) => self.resume_lanes(slot),
            Wake::ReadUpTo(round, source, at) => self.read_up_to(slot, round, source, at),
            Wake::Registry => {
                let registry = self.heard_now();
                self.step(slot, Event::Registry(registry));
            }
            Wake::Piece(..) | Wake::Left(..) | Wake::Look(_) | Wake::Resume(_) => {}
            Wake::TargetChanged(name) => {
                let process = self.members[slot].process();
                self.request(process, 0, Request::Describe(name));
            }
        }
        self.leave_if_drained(slot);
    }

    pub(super) fn told(&mut self, slot: usize, name: Arc<str>, target: Target, away: Arc<[i32]>) {
        if self.plan.kind == Kind::Hostile {
            // Before what waits for the answer is let go.
            self.step(slot, Event::TargetOutage(Arc::clone(&name), away));
        }
        self.member(slot).asking.remove(&name);
        self.step(slot, Event::Target(name, target));
        self.stirred = true;
    }

    pub(super) fn leave_if_drained(&mut self, slot: usize) {
        let member = &self.members[slot];
        let running = matches!(member.phase, Phase::Running | Phase::Finishing);
        let drained = member.engine.as_ref().is_some_and(LaneEngine::is_drained);
        if member.draining && member.up == Up::Alive && (!running || (drained && member.idle())) {
            self.leave(slot);
        }
    }

    /// Goes, and says so.
    pub(super) fn leave(&mut self, slot: usize) {
        if self.members[slot].up != Up::Alive {
            return;
        }
        self.members[slot].expose(&mut self.exposed);
        let (name, back_after) = (self.members[slot].name.clone(), self.members[slot].back_after);
        self.note(|| format!("slot {slot} leaves as {name}"));
        self.ask(slot, Request::Leave(name));
        self.member(slot).up = Up::Dead;
        self.member(slot).engine = None;
        self.after(back_after, Scheduled::Start(slot));
    }
}
