//! A model of the shell: one process that reads, feeds its engine, carries out its orders and reports back.
//!
//! It does what the real one does in the same order: begin, produce, send offsets, commit, tell the engine; and
//! after anything doubtful it throws its state away, renews its producer and takes its lanes over anew.
//!
//! # Invariants
//! 1. Answers to requests of an older round are void: the round ends with every revocation and renewal.
//! 2. The group's generation is that of the assignment being worked on, never a fresher one.
//! 3. In `at_least_once` offsets are committed only after every record of their batch and of all before it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use waterclock::engine::orders::{Batch, Input, Output, Send, Start, Target, To};
use waterclock::engine::{BatchId, Engine, Lane, Offset, Record, Source, TopicId, UnixMillis};

use crate::broker::{Place, Position, Refusal, Time, Writer};
use crate::mutation::Mutation;
use crate::network::{Event, Identity, Outgoing, Process, Reply, Request, Wake};
use crate::plan::SECOND;
use crate::workload::{NUMBER, java_partition};
use crate::world::World;

/// Records that one produce request carries, at most.
const PRODUCE_MAX: u64 = 40;
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
    offsets_sent: bool,
}

/// What the engine was given and has not given back.
#[derive(Debug, Default)]
pub struct Tally {
    /// By submission: where each copy was read, and its size.
    held: BTreeMap<u32, Vec<(Source, Offset, usize)>>,
    bytes: usize,
    largest: usize,
    /// Partitions that were read while the engine was over its budget: each may be, once, before it is paused.
    over: BTreeSet<Source>,
    /// No window was loaded, so nothing that is read was done before.
    exact: bool,
}

impl Tally {
    fn take_in(&mut self, source: Source, offset: Offset, record: &Record) {
        let size = record.size();
        self.held
            .entry(number_of(record).unwrap_or(u32::MAX))
            .or_default()
            .push((source, offset, size));
        self.bytes += size;
        self.largest = self.largest.max(size);
    }

    fn give_back(&mut self, number: u32) {
        // Of several copies the largest: what is left is then surely held.
        let Some(copies) = self.held.get_mut(&number) else { return };
        copies.sort_by_key(|(_, _, size)| *size);
        self.bytes -= copies.pop().map_or(0, |(_, _, size)| size);
    }

    /// What was read of a partition from here on is dropped.
    fn drop_from(&mut self, source: Source, offset: Offset) {
        for copies in self.held.values_mut() {
            copies.retain(|(of, at, _)| *of != source || *at < offset);
        }
        self.bytes = self.held.values().flatten().map(|(_, _, size)| size).sum();
    }
}

pub struct Member {
    slot: usize,
    pub life: u32,
    pub up: Up,
    /// The member id in the group.
    pub name: String,
    pub engine: Option<Engine>,
    pub back_after: Time,
    phase: Phase,
    round: u64,
    writer: Option<Writer>,
    generation: u32,
    lanes: Vec<u16>,
    reading: BTreeMap<Source, Reading>,
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
    tick_at: Option<Time>,
    poll_queued: bool,
    draining: bool,
    /// Records that the engine said it spilled, as last seen.
    spilled: u64,
    tally: Tally,
}

impl Member {
    pub fn new(slot: usize) -> Self {
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
            flights: VecDeque::new(),
            busy: false,
            positions: BTreeMap::new(),
            committing: None,
            acknowledged: Vec::new(),
            last_now: UnixMillis(0),
            tick_at: None,
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
        self.busy = false;
        self.positions.clear();
        self.committing = None;
        self.acknowledged.clear();
        self.reading.clear();
        self.tally = Tally::default();
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
    fn member(&mut self, slot: usize) -> &mut Member {
        &mut self.members[slot]
    }

    fn ask(&mut self, slot: usize, request: Request) {
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
        let engine = Engine::new(Arc::clone(&self.plan.setup));
        let fresh = Member { life, up: Up::Alive, name, engine: Some(engine), ..Member::new(slot) };
        self.members[slot] = fresh;
        if self.plan.exactly_once() {
            self.renew(slot)
        } else {
            self.join(slot)
        }
        if self.members[slot].phase == Phase::Renewing {
            self.member(slot).phase = Phase::Starting;
        }
    }

    fn fresh_name(&mut self, slot: usize, life: u32) -> String {
        format!("{:04x}-{slot}-{life}", self.chance.between(0, 0xffff))
    }

    fn renew(&mut self, slot: usize) {
        let id: Arc<str> = format!("waterclock-{slot}").into();
        self.member(slot).phase = Phase::Renewing;
        self.ask(slot, Request::Init(id));
    }

    fn join(&mut self, slot: usize) {
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

    fn fetch_committed(&mut self, slot: usize) {
        self.member(slot).phase = Phase::Fetching;
        let places = self
            .lane_topics
            .iter()
            .flat_map(|&topic| {
                let of = move |&lane: &u16| Place { topic, partition: i32::from(lane) };
                self.members[slot].lanes.iter().map(of)
            })
            .collect();
        self.ask(slot, Request::FetchCommitted(places));
    }

    pub fn awaken(&mut self, process: Process, wake: Wake) {
        let slot = process.slot;
        let current = |world: &Self, round: u64| world.members[slot].round == round;
        match wake {
            Wake::Tick => {
                let due = self.members[slot].tick_at.is_some_and(|at| at <= self.at);
                if due {
                    self.member(slot).tick_at = None;
                    if self.members[slot].phase == Phase::Running {
                        self.step(slot, Input::Tick);
                    }
                }
            }
            Wake::Poll => {
                self.member(slot).poll_queued = false;
                self.poll(slot);
            }
            Wake::Rebalance => self.rebalance(slot),
            Wake::Assigned => self.round_over(slot),
            Wake::Reply(_, Reply::Described(name, found)) => self.told(slot, name, found),
            Wake::Reply(round, reply) if current(self, round) => self.reply(slot, reply),
            Wake::Again(round, request) if current(self, round) => {
                self.request(process, round, request);
            }
            Wake::Reply(..) | Wake::Again(..) => {}
            Wake::Drain => {
                self.member(slot).draining = true;
                self.wake(process, DRAIN_MAX, Wake::DrainEnds);
                self.step(slot, Input::Drain);
            }
            Wake::DrainEnds => self.leave(slot),
            Wake::TargetChanged(name) => {
                let process = self.members[slot].process();
                self.request(process, 0, Request::Describe(name));
            }
        }
        self.leave_if_drained(slot);
    }

    fn told(&mut self, slot: usize, name: Arc<str>, found: Option<(i32, u64)>) {
        let target = match found {
            None => Target::Missing,
            Some((partitions, record_bytes_max)) => Target::Found { partitions, record_bytes_max },
        };
        self.step(slot, Input::Target(name, target));
    }

    fn leave_if_drained(&mut self, slot: usize) {
        let member = &self.members[slot];
        let running = matches!(member.phase, Phase::Running | Phase::Finishing);
        let drained = member.engine.as_ref().is_some_and(Engine::is_drained);
        if member.draining && member.up == Up::Alive && (!running || (drained && member.idle())) {
            self.leave(slot);
        }
    }

    /// Goes, and says so.
    fn leave(&mut self, slot: usize) {
        if self.members[slot].up != Up::Alive {
            return;
        }
        self.members[slot].expose(&mut self.exposed);
        let (name, back_after) = (self.members[slot].name.clone(), self.members[slot].back_after);
        self.note(|| format!("slot {slot} leaves as {name}"));
        self.ask(slot, Request::Leave(name));
        self.member(slot).up = Up::Dead;
        self.member(slot).engine = None;
        self.after(back_after, Event::Start(slot));
    }

    // The group.

    fn rebalance(&mut self, slot: usize) {
        let member = &self.members[slot];
        let known = self.broker.group.knows(&member.name);
        if known && !self.broker.group.awaited().contains(&member.name) {
            return;
        }
        match member.phase {
            Phase::Starting | Phase::Finishing => {}
            Phase::Joining => self.join(slot),
            Phase::Renewing | Phase::Fetching => {
                self.member(slot).forget();
                self.join(slot);
            }
            Phase::Running if !member.idle() && self.chance.percent(50) => {
                self.count("revoked after finishing");
                self.member(slot).phase = Phase::Finishing;
            }
            Phase::Running => {
                self.revoke(slot);
                self.join(slot);
            }
        }
    }

    /// Drops everything. What is on its way in a transaction is left to the next producer of the same id to abort.
    fn revoke(&mut self, slot: usize) {
        if !self.members[slot].flights.is_empty() {
            self.count("revoked in flight");
            self.member(slot).writer = None;
        }
        self.members[slot].expose(&mut self.exposed);
        self.member(slot).forget();
        self.step(slot, Input::Revoked);
    }

    fn round_over(&mut self, slot: usize) {
        let member = &self.members[slot];
        if member.phase != Phase::Joining {
            return;
        }
        let Some((generation, lanes)) = self.broker.group.assignment(&member.name) else { return };
        let lanes = lanes.to_vec();
        self.note(|| format!("slot {slot} has lanes {lanes:?} in generation {generation}"));
        let member = self.member(slot);
        (member.generation, member.lanes) = (generation, lanes);
        member.round += 1;
        if self.plan.exactly_once() && self.members[slot].writer.is_none() {
            self.renew(slot);
        } else {
            self.fetch_committed(slot);
        }
    }

    /// Lanes are taken over from what is committed.
    fn take_over(&mut self, slot: usize, places: &[Place], committed: Vec<Option<Position>>) {
        let mut starts = Vec::new();
        // With doubles about, which of them was given back cannot be told.
        let mut exact = self.plan.exactly_once();
        for (place, position) in places.iter().zip(committed) {
            let Some(source) = self.source(*place) else { continue };
            let log_start = self.broker.partition(*place).map(|p| p.start()).unwrap_or_default();
            let (next, metadata) = match position {
                Some(position) => (Offset(position.next), position.metadata),
                None => (log_start, String::new()),
            };
            exact &= metadata.is_empty();
            let reading = Reading { next, paused: false, from: self.at };
            self.member(slot).reading.insert(source, reading);
            starts.push(Start { source, next, metadata });
        }
        self.member(slot).tally = Tally { exact, ..Tally::default() };
        self.member(slot).phase = Phase::Running;
        self.count("assignments");
        self.step(slot, Input::Assigned(starts));
        self.step(slot, Input::Tick);
        self.stirred = true;
    }

    /// After anything doubtful: nothing that is held is believed, and the producer is another one.
    fn discard(&mut self, slot: usize, why: &'static str) {
        self.note(|| format!("slot {slot} discards its lanes: {why}"));
        self.count(why);
        let finishing = self.members[slot].phase == Phase::Finishing;
        self.members[slot].expose(&mut self.exposed);
        self.member(slot).forget();
        self.member(slot).writer = None;
        // Not running: a step's orders are not carried out any more.
        self.member(slot).phase = Phase::Renewing;
        self.step(slot, Input::Revoked);
        if finishing || why == "old generation" || why == "old position" {
            self.join(slot);
        } else if self.plan.exactly_once() {
            self.renew(slot);
        } else {
            self.fetch_committed(slot);
        }
    }

    // The engine.

    /// A lower bound of every broker's clock, which never goes back within a process.
    fn now(&mut self, slot: usize) -> UnixMillis {
        let slowest = self.broker.slowest_clock(self.at);
        if let Some(Mutation::Hasty(by)) = self.mutation {
            return UnixMillis(slowest.0 + by);
        }
        let lag =
            if self.chance.percent(40) { 0 } else { self.chance.between(0, self.plan.lag_max) };
        let now = UnixMillis(slowest.0.saturating_sub(lag)).max(self.members[slot].last_now);
        self.member(slot).last_now = now;
        now
    }

    fn step(&mut self, slot: usize, input: Input) {
        let now = self.now(slot);
        self.note(|| format!("slot {slot} now {} {}", now.0, brief(&input)));
        let mut out = Vec::new();
        let Some(engine) = self.member(slot).engine.as_mut() else { return };
        engine.step(now, input, &mut out);
        let wake_at = engine.wake_at();
        for output in out {
            self.note(|| format!("slot {slot}   -> {}", brief_order(&output)));
            self.carry_out(slot, output);
        }
        self.check_memory(slot);
        if let Some(wake_at) = wake_at {
            let oversleeps = self.mutation == Some(Mutation::Oversleeps);
            let wait = (wake_at - now).0.max(1) + if oversleeps { 2 * SECOND } else { 0 };
            let at = self.at + wait;
            if self.members[slot].tick_at.is_none_or(|queued| at < queued) {
                self.member(slot).tick_at = Some(at);
                let process = self.members[slot].process();
                self.wake(process, wait, Wake::Tick);
            }
        } else {
            self.member(slot).tick_at = None;
        }
        self.drive(slot);
    }

    fn check_memory(&mut self, slot: usize) {
        let member = &self.members[slot];
        let Some(figures) = member.engine.as_ref().map(Engine::figures) else { return };
        let budget = self.plan.setup.limits.memory_bytes;
        let (held, tally) = (figures.memory_bytes, &member.tally);
        if held > budget + tally.largest * (1 + tally.over.len()) {
            let what =
                format!("slot {slot} holds {held}; budget {budget}, largest {}", tally.largest);
            self.breach("memory", what);
        } else if tally.exact && tally.bytes > held {
            let what = format!("slot {slot} says {held} and was given {}", tally.bytes);
            self.breach("memory", what);
        }
        let spilled = figures.spilled - self.members[slot].spilled;
        if spilled > 0 {
            self.member(slot).spilled = figures.spilled;
            *self.seen.entry("spilled").or_default() += spilled;
        }
        if figures.lost + figures.unreadable > 0 {
            self.breach("never lost", format!("slot {slot}: {figures:?}"));
        }
    }

    fn carry_out(&mut self, slot: usize, output: Output) {
        match output {
            Output::Pause(source) => {
                if self.mutation != Some(Mutation::NeverPauses)
                    && let Some(reading) = self.member(slot).reading.get_mut(&source)
                {
                    reading.paused = true;
                }
            }
            Output::Resume(source) => self.resume(slot, source),
            Output::Rewind(source, offset) => self.rewind(slot, source, offset),
            Output::Lookup(name) => {
                let process = self.members[slot].process();
                self.request(process, 0, Request::Describe(name));
            }
            Output::Batch(batch) => self.take_batch(slot, batch),
        }
    }

    fn resume(&mut self, slot: usize, source: Source) {
        if self.mutation == Some(Mutation::NeverResumes) {
            return;
        }
        let wait = self.chance.between(0, self.plan.network.resume_max);
        let at = self.at + wait;
        if let Some(reading) = self.member(slot).reading.get_mut(&source) {
            *reading = Reading { paused: false, from: at, ..*reading };
            let process = self.members[slot].process();
            self.wake(process, wait, Wake::Poll);
        }
    }

    fn rewind(&mut self, slot: usize, source: Source, offset: Offset) {
        self.count("rewinds");
        let Some(reading) = self.member(slot).reading.get_mut(&source) else { return };
        if !reading.paused || offset > reading.next {
            let what = format!("rewind of {source:?} to {offset:?} while it is at {reading:?}");
            return self.breach("contract", what);
        }
        reading.next = offset;
        self.member(slot).tally.drop_from(source, offset);
    }

    // Reading.

    /// Polls those who could read something.
    pub fn rouse(&mut self) {
        for slot in 0..self.members.len() {
            let member = &self.members[slot];
            if member.up == Up::Alive
                && member.phase == Phase::Running
                && !member.poll_queued
                && self.first_readable(slot).is_some()
            {
                let wait = self.latency();
                let process = self.members[slot].process();
                self.member(slot).poll_queued = true;
                self.wake(process, wait, Wake::Poll);
            }
        }
    }

    fn first_readable(&self, slot: usize) -> Option<Source> {
        self.members[slot].reading.keys().copied().find(|source| self.is_readable(slot, *source))
    }

    fn is_readable(&self, slot: usize, source: Source) -> bool {
        self.members[slot].reading.get(&source).is_some_and(|reading| {
            !reading.paused
                && reading.from <= self.at
                && !matches!(self.broker.fetch(self.place(source), reading.next), Ok(None))
        })
    }

    fn poll(&mut self, slot: usize) {
        if self.members[slot].phase != Phase::Running {
            return;
        }
        let round = self.members[slot].round;
        let sources: Vec<Source> = self.members[slot].reading.keys().copied().collect();
        let mut ready: Vec<Source> =
            sources.into_iter().filter(|source| self.is_readable(slot, *source)).collect();
        for _ in 0..self.chance.between(1, self.plan.poll_max) {
            let able = self.members[slot].round == round && self.members[slot].up == Up::Alive;
            if ready.is_empty() || !able {
                break;
            }
            let index = self.chance.below(ready.len());
            if !self.read(slot, ready[index]) {
                ready.swap_remove(index);
            }
        }
        if self.members[slot].round == round && self.members[slot].phase == Phase::Running {
            self.step(slot, Input::Tick);
        }
        self.stirred = true;
    }

    /// Hands over the next record of a partition, if there is one and it may be read.
    fn read(&mut self, slot: usize, source: Source) -> bool {
        if !self.is_readable(slot, source) {
            return false;
        }
        let next = self.members[slot].reading[&source].next;
        let fetched = self.broker.fetch(self.place(source), next);
        let (offset, appended, record) = match fetched {
            Ok(Some((offset, entry))) => (offset, entry.appended, entry.record.clone()),
            Ok(None) => return false,
            // Deleted by the owner after this one: what a zombie meets when it wakes.
            Err(Refusal::OutOfRange) if !self.owns(slot) => {
                self.discard(slot, "old position");
                return false;
            }
            // What was done before a takeover is committed as done before it is read again, and may then be
            // deleted; `auto.offset.reset=error` tells, and the lanes are taken over anew.
            Err(Refusal::OutOfRange) if self.broker.is_done(self.place(source), next) => {
                self.discard(slot, "deleted before the reader");
                return false;
            }
            Err(refusal) => {
                self.breach(
                    "never lost",
                    format!("{source:?} cannot be read at {next:?}: {refusal:?}"),
                );
                return false;
            }
        };
        let Some(record) = record else { return false };
        if let Some(reading) = self.member(slot).reading.get_mut(&source) {
            reading.next = offset.next();
        }
        let budget = self.plan.setup.limits.memory_bytes;
        let member = self.member(slot);
        let held = member.engine.as_ref().map_or(0, |engine| engine.figures().memory_bytes);
        if held > budget {
            member.tally.over.insert(source);
        } else {
            member.tally.over.clear();
        }
        member.tally.take_in(source, offset, &record);
        self.step(slot, Input::Record { source, offset, appended, record });
        true
    }

    fn owns(&self, slot: usize) -> bool {
        let member = &self.members[slot];
        self.broker.group.is_current(&member.name, member.generation)
    }

    pub fn place(&self, source: Source) -> Place {
        let topic = self.lane_topics[usize::from(source.topic.0)];
        Place { topic, partition: i32::from(source.lane.0) }
    }

    fn source(&self, place: Place) -> Option<Source> {
        let topic = self.lane_topics.iter().position(|topic| *topic == place.topic)?;
        Some(Source { topic: TopicId(topic as u16), lane: Lane(place.partition as u16) })
    }

    // Batches.

    fn take_batch(&mut self, slot: usize, batch: Batch) {
        let Batch { id, sends, commits } = batch;
        let numbers: Vec<u32> = sends.iter().filter_map(|send| number_of(&send.record)).collect();
        numbers.iter().for_each(|number| self.member(slot).tally.give_back(*number));
        let positions: Positions = commits
            .into_iter()
            .map(|c| (self.place(c.source), Position { next: c.next.0, metadata: c.metadata }))
            .collect();
        let longest = positions.iter().map(|(_, position)| position.metadata.len());
        self.longest_metadata = self.longest_metadata.max(longest.max().unwrap_or_default());
        for send in &sends {
            self.count(match send.to {
                To::Lane(topic) if self.plan.setup.topics.tier_of(topic).is_none() => "moves",
                To::Lane(_) => "hops",
                To::Target(_) => "deliveries",
                To::Dead => "dead letters",
            });
        }
        let mut outgoing: VecDeque<Outgoing> =
            sends.iter().map(|send| self.outgoing(send)).collect();
        self.mutate(&mut outgoing);
        self.count(if outgoing.is_empty() { "batches of offsets only" } else { "batches" });
        if self.plan.exactly_once() && !self.members[slot].flights.is_empty() {
            self.breach("contract", "two batches at once in exactly_once".to_owned());
        }
        let flight = Flight { id, outgoing, positions, numbers, offsets_sent: false };
        self.member(slot).flights.push_back(flight);
    }

    fn outgoing(&mut self, send: &Send) -> Outgoing {
        let mut headers: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
        send.headers(|name, value| headers.push((name.to_vec(), value.map(<[u8]>::to_vec))));
        let record = crate::workload::record(send.record.key(), send.record.value(), &headers);
        let topic = match &send.to {
            To::Lane(topic) => Arc::clone(self.plan.setup.topics.name(*topic)),
            To::Target(name) => Arc::clone(name),
            To::Dead => self.plan.setup.topics.dead(),
        };
        let count = self.broker.topic(&topic).map_or(1, |t| self.broker.topics[t].partitions.len());
        let partition = match (send.partition, send.record.key()) {
            (Some(partition), _) => partition,
            (None, Some(key)) => java_partition(key, count as u32),
            (None, None) => self.chance.below(count) as i32,
        };
        Outgoing { topic, partition, record }
    }

    fn commits_fail(&mut self, percent: u32) -> bool {
        !self.healed() && percent > 0 && self.chance.percent(percent)
    }

    /// Takes the next step of the first batch, unless one is being taken.
    fn drive(&mut self, slot: usize) {
        let member = &self.members[slot];
        let able = matches!(member.phase, Phase::Running | Phase::Finishing);
        if member.busy || !able || member.flights.is_empty() {
            return;
        }
        self.member(slot).busy = true;
        self.fault_between_steps(slot);
        if self.members[slot].up == Up::Dead {
            return;
        }
        let most = self.chance.between(1, PRODUCE_MAX) as usize;
        let Some(flight) = self.member(slot).flights.front_mut() else { return };
        if !flight.outgoing.is_empty() {
            let count = most.min(flight.outgoing.len());
            let records = flight.outgoing.drain(..count).collect();
            return self.produce_some(slot, records);
        }
        if !self.plan.exactly_once() {
            return self.acknowledged(slot);
        }
        let Some(writer) = self.members[slot].writer.clone() else { return };
        let Some(flight) = self.member(slot).flights.front_mut() else { return };
        if !flight.offsets_sent && !flight.positions.is_empty() {
            flight.offsets_sent = true;
            let positions = flight.positions.clone();
            if self.mutation == Some(Mutation::RecordsAlone) {
                return self.reply(slot, Reply::OffsetsSent(Ok(())));
            }
            let identity = self.members[slot].identity();
            return self.ask(slot, Request::SendOffsets(writer, identity, positions));
        }
        self.commit(slot, writer);
    }

    /// Kills or freezes the process here: what was sent before is on its way, what comes next is not sent, or late.
    fn fault_between_steps(&mut self, slot: usize) {
        let spent = self.seen.get("faults between steps").copied().unwrap_or_default();
        if spent >= self.plan.step_faults_max || !self.commits_fail(self.plan.network.step_faults) {
            return;
        }
        self.count("faults between steps");
        if self.chance.percent(50) {
            self.kill(slot);
            let back_after = self.chance.spread(50, 40 * SECOND);
            self.after(back_after, Event::Start(slot));
        } else {
            let lasts = self.chance.spread(SECOND, 40 * SECOND);
            self.freeze(slot, lasts);
        }
    }

    fn produce_some(&mut self, slot: usize, records: Vec<Outgoing>) {
        if self.mutation == Some(Mutation::OffsetsAlone) && self.chance.percent(10) {
            return self.reply(slot, Reply::Produced(Ok(())));
        }
        let fails = self.commits_fail(self.plan.network.produce_fails);
        let writer = self.members[slot].writer.clone();
        let request = Request::Produce(writer, records);
        if !fails {
            return self.ask(slot, request);
        }
        let process = self.members[slot].process();
        if self.chance.percent(50) {
            // It arrives, and nobody learns of it.
            self.request(process, 0, request);
        }
        let wait = self.chance.between(100, 6 * SECOND);
        let round = self.members[slot].round;
        self.wake(process, wait, Wake::Reply(round, Reply::TimedOut));
    }

    fn commit(&mut self, slot: usize, writer: Writer) {
        let process = self.members[slot].process();
        let round = self.members[slot].round;
        if self.commits_fail(self.plan.network.commit_aborts) {
            self.request(process, 0, Request::End(writer, false));
            let wait = self.chance.between(1, 50);
            self.wake(process, wait, Wake::Reply(round, Reply::Ended(Err(Refusal::InvalidState))));
            return;
        }
        if !self.commits_fail(self.plan.network.commit_unknown) {
            return self.ask(slot, Request::End(writer, true));
        }
        match self.chance.between(0, 2) {
            0 => self.request(process, 0, Request::End(writer, true)),
            1 => {
                let late = self.chance.spread(100, 20 * SECOND);
                self.after(late, Event::Arrives(process, 0, Request::End(writer, true)));
            }
            _ => {}
        }
        let wait = self.chance.between(SECOND, 6 * SECOND);
        self.wake(process, wait, Wake::Reply(round, Reply::TimedOut));
    }

    fn reply(&mut self, slot: usize, reply: Reply) {
        match reply {
            Reply::Init(Ok(writer)) => {
                self.member(slot).writer = Some(writer);
                match self.members[slot].phase {
                    Phase::Starting => self.join(slot),
                    _ => self.fetch_committed(slot),
                }
            }
            Reply::Committed(places, Ok(committed)) => self.take_over(slot, &places, committed),
            Reply::Produced(Ok(())) | Reply::OffsetsSent(Ok(())) => {
                self.member(slot).busy = false;
                self.drive(slot);
            }
            Reply::Ended(Ok(())) => self.finished(slot),
            Reply::OffsetsCommitted(Ok(())) => self.offsets_committed(slot),
            Reply::TimedOut if self.mutation == Some(Mutation::GoesOnAfterUnknown) => {
                let ended = self.members[slot].flights.front().is_some_and(|f| f.offsets_sent);
                if ended { self.finished(slot) } else { self.discard(slot, "timed out") }
            }
            Reply::TimedOut => self.discard(slot, "timed out"),
            Reply::Produced(Err(refusal))
            | Reply::OffsetsSent(Err(refusal))
            | Reply::Ended(Err(refusal))
            | Reply::OffsetsCommitted(Err(refusal)) => match refusal {
                Refusal::IllegalGeneration => self.discard(slot, "old generation"),
                Refusal::Fenced => self.discard(slot, "fenced"),
                Refusal::InvalidState => self.discard(slot, "commit aborted"),
                refusal => {
                    self.breach("liveness", format!("a batch that can never pass: {refusal:?}"))
                }
            },
            Reply::Init(Err(refusal)) | Reply::Committed(_, Err(refusal)) => {
                self.breach("model", format!("{refusal:?} has no answer"));
            }
            Reply::Described(..) => {}
        }
    }

    /// A transaction is committed.
    fn finished(&mut self, slot: usize) {
        self.member(slot).busy = false;
        let Some(flight) = self.member(slot).flights.pop_front() else { return };
        self.delete_records(slot, flight.positions);
        self.tell(slot, flight.id);
    }

    /// `at_least_once`: all records of the first batch are there.
    fn acknowledged(&mut self, slot: usize) {
        self.member(slot).busy = false;
        let Some(flight) = self.member(slot).flights.pop_front() else { return };
        let member = self.member(slot);
        member.acknowledged.extend(&flight.numbers);
        member.positions.extend(flight.positions);
        self.commit_offsets(slot);
        self.tell(slot, flight.id);
    }

    fn tell(&mut self, slot: usize, id: BatchId) {
        match self.members[slot].phase {
            Phase::Finishing if self.members[slot].idle() => {
                self.revoke(slot);
                self.join(slot);
            }
            Phase::Finishing => self.drive(slot),
            _ if self.mutation == Some(Mutation::ForgetsAnswer) => {}
            _ => self.step(slot, Input::Committed(id)),
        }
    }

    fn commit_offsets(&mut self, slot: usize) {
        if self.mutation == Some(Mutation::RecordsAlone) {
            self.member(slot).positions.clear();
            self.member(slot).acknowledged.clear();
            return;
        }
        let member = self.member(slot);
        if member.committing.is_some() || member.positions.is_empty() {
            return;
        }
        let numbers = std::mem::take(&mut member.acknowledged);
        let positions: Positions = std::mem::take(&mut member.positions).into_iter().collect();
        member.committing = Some((numbers, positions.clone()));
        let identity = member.identity();
        self.ask(slot, Request::CommitOffsets(identity, positions));
    }

    fn offsets_committed(&mut self, slot: usize) {
        if let Some((_, positions)) = self.member(slot).committing.take() {
            self.delete_records(slot, positions);
        }
        self.commit_offsets(slot);
        if self.members[slot].phase == Phase::Finishing && self.members[slot].idle() {
            self.revoke(slot);
            self.join(slot);
        }
    }

    /// After a clean commit, what is done may be deleted.
    fn delete_records(&mut self, slot: usize, positions: Positions) {
        if positions.is_empty() || !self.chance.percent(30) {
            return;
        }
        let until = positions.into_iter().map(|(place, p)| (place, Offset(p.next))).collect();
        let process = self.members[slot].process();
        let wait = self.chance.spread(1, 5 * SECOND);
        self.after(wait, Event::Arrives(process, 0, Request::DeleteRecords(until)));
    }

    /// Does to a batch what a mutation asks for, now and then.
    fn mutate(&mut self, outgoing: &mut VecDeque<Outgoing>) {
        let Some(mutation) = self.mutation else { return };
        if outgoing.is_empty() || !self.chance.percent(20) {
            return;
        }
        let index = self.chance.below(outgoing.len());
        let target = !outgoing[index].topic.starts_with("waterclock.");
        match mutation {
            Mutation::DropsSend => drop(outgoing.remove(index)),
            Mutation::SendsTwice => {
                let again = outgoing[index].clone();
                outgoing.push_back(again);
            }
            Mutation::Swaps if index + 1 < outgoing.len() => outgoing.swap(index, index + 1),
            Mutation::WrongPartition if target => outgoing[index].partition ^= 1,
            Mutation::KeepsControl if target => rewrite(&mut outgoing[index], |_, headers| {
                headers.push((b"x-delay-target".to_vec(), Some(b"t0".to_vec())));
            }),
            Mutation::NullBecomesEmpty if target => rewrite(&mut outgoing[index], |value, _| {
                value.get_or_insert_default();
            }),
            Mutation::Misleads => rewrite(&mut outgoing[index], |_, headers| {
                for (name, value) in headers {
                    if name == b"x-delay-error-offset" {
                        *value = Some(b"999999".to_vec());
                    }
                }
            }),
            Mutation::TurnsHeaders if target => {
                rewrite(&mut outgoing[index], |_, headers| headers.reverse());
            }
            _ => {}
        }
    }
}

type Headers = Vec<(Vec<u8>, Option<Vec<u8>>)>;

fn rewrite(outgoing: &mut Outgoing, edit: impl FnOnce(&mut Option<Vec<u8>>, &mut Headers)) {
    let record = &outgoing.record;
    let mut value = record.value().map(<[u8]>::to_vec);
    let mut headers: Headers =
        record.headers().map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec))).collect();
    edit(&mut value, &mut headers);
    outgoing.record = crate::workload::record(record.key(), value.as_deref(), &headers);
}

fn brief(input: &Input) -> String {
    match input {
        Input::Record { source, offset, appended, record } => {
            format!(
                "record n={:?} {source:?} {offset:?} appended {}",
                number_of(record),
                appended.0
            )
        }
        other => format!("{other:?}"),
    }
}

fn brief_order(output: &Output) -> String {
    match output {
        Output::Batch(batch) => {
            let one = |send: &Send| {
                format!("n={:?} {:?} due {}", number_of(&send.record), send.to, send.due.0)
            };
            let sends: Vec<String> = batch.sends.iter().map(one).collect();
            format!("batch {:?} {sends:?} {:?}", batch.id, batch.commits)
        }
        other => format!("{other:?}"),
    }
}
