//! The executor: one queue of events, one at a time, in an order that the seed alone decides.
//!
//! Time jumps from event to event, so seven days of waiting cost nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use waterclock::engine::{Offset, timers};

use crate::broker::{Broker, EPOCH_MS, Place, Refusal, Time, Writer};
use crate::chance::Chance;
use crate::member::{Member, Up};
use crate::mutation::Mutation;
use crate::network::{Event, Process, Reply, Request, Taken, Told, Wake};
use crate::plan::{Fault, Plan, SECOND, SESSION, TRANSACTION};
use crate::workload::{self, DENIED, End, TARGETS, WIDENED, When, Workload};

/// More events than this mean that something spins.
const EVENTS_MAX: u64 = 3_000_000;

/// A breach, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    pub promise: &'static str,
    pub what: String,
}

/// An answer that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    pub told: Told,
    /// When, in the order of all that happened in the cluster.
    pub moment: u64,
}

/// The world of one seed.
pub struct World {
    pub plan: Plan,
    pub at: Time,
    pub broker: Broker,
    pub workload: Workload,
    /// Where each submission was acknowledged.
    pub accepted: BTreeMap<usize, (Place, Offset)>,
    pub members: Vec<Member>,
    pub chance: Chance,
    pub mutation: Option<Mutation>,
    /// The versions that submissions name.
    pub named: BTreeMap<usize, timers::Place>,
    /// What clients were told of their commands.
    pub told: BTreeMap<usize, Vec<Answered>>,
    /// Partitions from which nothing comes, and until when.
    silent: BTreeMap<Place, Time>,
    /// Submissions that a crash may double (`at_least_once`).
    pub exposed: BTreeSet<u32>,
    /// What was seen to be wrong while it ran.
    pub breaches: Vec<Breach>,
    /// How often the named thing happened: faults that never bite prove nothing.
    pub seen: BTreeMap<&'static str, u64>,
    /// Bytes of the longest metadata of a commit.
    pub longest_metadata: usize,
    /// Lane topics by the engine's index.
    pub lane_topics: Vec<usize>,
    pub timers_topic: usize,
    queue: BTreeMap<(Time, u64), Event>,
    sequence: u64,
    writers: BTreeMap<usize, Writer>,
    marker_queued: bool,
    /// Something became readable, or someone may read again.
    pub stirred: bool,
    pub deadline: Time,
    pub history: Option<VecDeque<String>>,
    /// Events that are kept for the report of a failure.
    history_max: usize,
}

impl World {
    pub fn new(mut plan: Plan, mutation: Option<Mutation>, history_max: usize) -> Self {
        if matches!(mutation, Some(Mutation::SkipsSettle | Mutation::SkipsGate)) {
            Arc::make_mut(&mut plan.setup).limits.settle = None;
        }
        let mut broker = Broker::new(plan.skews.clone());
        broker.hands_out_unstable = mutation == Some(Mutation::TakesUnstable);
        broker.forgives_generations = mutation == Some(Mutation::OldGenerations);
        broker.reads_uncommitted = mutation == Some(Mutation::ReadsUncommitted);
        let lanes = usize::from(plan.setup.lanes);
        let names = plan.setup.topics.names();
        let lane_topics = names.iter().map(|name| broker.create(name, lanes, 4 << 20)).collect();
        broker.create(&plan.setup.topics.dead(), lanes, 8 << 20);
        let timers_topic = broker.create(&plan.setup.topics.timers(), lanes, 1 << 20);
        for (name, partitions, limit) in TARGETS.iter().filter(|(name, ..)| *name != "later") {
            let topic = broker.create(name, *partitions, *limit);
            broker.topics[topic].picky = true;
        }
        let denied = broker.create(DENIED, 2, 1 << 20);
        broker.topics[denied].denied = true;
        let (mut for_load, chance) =
            std::mem::replace(&mut plan.luck, (Chance::new(0), Chance::new(0)));
        let workload = workload::draw(&plan, &mut for_load);
        let members = (0..plan.slots).map(Member::new).collect();
        let ends = workload.submissions.iter().map(|s| {
            let appended = EPOCH_MS + s.at;
            s.when.due(appended).max(appended + plan.hold_of(s.topic))
        });
        let last_due = ends.max().unwrap_or_default().saturating_sub(EPOCH_MS);
        let deadline = last_due.max(plan.heal_at).max(plan.submits.1) + plan.recovery();
        let mut world = Self {
            plan,
            at: 0,
            broker,
            workload,
            accepted: BTreeMap::new(),
            named: BTreeMap::new(),
            told: BTreeMap::new(),
            silent: BTreeMap::new(),
            members,
            chance,
            mutation,
            exposed: BTreeSet::new(),
            breaches: Vec::new(),
            seen: BTreeMap::new(),
            longest_metadata: 0,
            lane_topics,
            timers_topic,
            queue: BTreeMap::new(),
            sequence: 0,
            writers: BTreeMap::new(),
            marker_queued: false,
            stirred: false,
            deadline,
            history: (history_max > 0).then(VecDeque::new),
            history_max,
        };
        world.lay_out();
        world
    }

    /// Puts everything into the queue that is known from the start.
    fn lay_out(&mut self) {
        for index in 0..self.workload.submissions.len() {
            self.push(self.workload.submissions[index].at, Event::Submit(index));
        }
        for index in 0..self.workload.transactions.len() {
            match self.workload.transactions[index] {
                End::Commit(at) | End::Abort(at) => self.push(at, Event::EndTransaction(index)),
                End::Hang => {}
            }
        }
        for slot in 0..self.plan.slots {
            let at = self.chance.between(0, self.plan.start_max);
            self.push(at, Event::Start(slot));
        }
        for index in 0..self.plan.faults.len() {
            self.push(self.plan.faults[index].0, Event::Fault(index));
        }
        let (from, to) = self.plan.submits;
        let at = self.chance.between(from, to + 10 * SECOND);
        self.push(at, Event::MakeTarget);
        if !self.plan.healthy() {
            let at = self.chance.between(from, to + 10 * SECOND);
            self.push(at, Event::WidenTarget);
        }
    }

    pub fn push(&mut self, at: Time, event: Event) {
        self.sequence += 1;
        self.queue.insert((at.max(self.at), self.sequence), event);
    }

    pub fn after(&mut self, wait: Time, event: Event) {
        self.push(self.at + wait, event);
    }

    pub fn wake(&mut self, process: Process, wait: Time, wake: Wake) {
        self.after(wait, Event::Process(process, wake));
    }

    pub fn latency(&mut self) -> Time {
        self.chance.latency(self.plan.network.latency_max)
    }

    pub fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(history) = &mut self.history {
            if history.len() == self.history_max {
                history.pop_front();
            }
            history.push_back(format!("{:>12} {}", self.at, what()));
        }
    }

    pub fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    pub fn breach(&mut self, promise: &'static str, what: String) {
        self.note(|| format!("BREACH {promise}: {what}"));
        self.breaches.push(Breach { promise, what });
    }

    /// The cancels that a submission is covered by for sure: of the same timer, and appended after it.
    pub fn cancels_of(&self, number: usize) -> impl Iterator<Item = (usize, Place, Offset)> {
        let of = self.workload.submissions.get(number).filter(|of| !of.act.cancels());
        let cancels = of.and_then(|of| self.workload.cancels.get(&of.timer?));
        let own = self.appended(number);
        cancels.into_iter().flatten().filter_map(move |&cancel| {
            let (own, (at, place, offset)) = (own?, self.appended(cancel)?);
            let after = at > own.0 || (at == own.0 && place == own.1 && offset > own.2);
            after.then_some((cancel, place, offset))
        })
    }

    /// Whether a submission's timer was ever forgotten.
    pub fn was_forgotten(&self, number: usize) -> bool {
        let timer = self.workload.submissions.get(number).and_then(|of| of.timer);
        let logs = &self.broker.topics[self.timers_topic].partitions;
        logs.iter().flat_map(|log| log.ledger()).any(|(_, entry)| {
            entry.record.as_ref().is_some_and(|record| {
                let name = record.key().and_then(|key| key.get(..16));
                record.value().is_none() && name == timer.as_ref().map(|t| &t.0[..])
            })
        })
    }

    /// Where and when a submission was appended, once its transaction is committed.
    pub fn appended(&self, number: usize) -> Option<(u64, Place, Offset)> {
        let &(place, offset) = self.accepted.get(&number)?;
        let entry = self.broker.partition(place)?.read(offset)?;
        Some((entry.appended.0, place, offset))
    }

    pub fn healed(&self) -> bool {
        self.at >= self.plan.heal_at
    }

    /// Runs to the deadline, or to the first breach that is seen on the way.
    pub fn run(&mut self) {
        let mut events = 0;
        while let Some(((at, _), event)) = self.queue.pop_first() {
            if at > self.deadline || !self.breaches.is_empty() {
                break;
            }
            self.at = at;
            self.happen(event);
            if std::mem::take(&mut self.stirred) {
                self.rouse();
            }
            events += 1;
            if events == EVENTS_MAX {
                self.breach("liveness", format!("{events} events and no end: something spins"));
            }
        }
        *self.seen.entry("events").or_default() += events;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Submit(index) => self.submit(index),
            Event::EndTransaction(index) => self.end_transaction(index),
            Event::Start(slot) => self.start(slot),
            Event::Process(process, wake) => match self.members[process.slot].up {
                _ if self.members[process.slot].life != process.life => {}
                Up::Dead => {}
                // What comes for a frozen process waits for it.
                Up::Frozen { until, .. } if self.at >= until => {
                    self.members[process.slot].up = Up::Alive;
                    self.awaken(process, wake);
                    self.stirred = true;
                }
                Up::Frozen { until, .. } => self.push(until, Event::Process(process, wake)),
                Up::Alive => self.awaken(process, wake),
            },
            Event::Arrives(process, round, request) => self.arrives(process, round, request),
            Event::Marker => self.marker(),
            Event::Expire(id) => {
                self.broker.expire(self.at, &id, TRANSACTION);
                self.want_marker();
            }
            Event::Silent(process, member) => self.silent(process, &member),
            Event::Fault(index) => self.fault(self.plan.faults[index].1),
            Event::MakeTarget => self.make_target(),
            Event::Told(number, told) => self.told_client(number, told),
            Event::Stir => self.stirred = true,
            Event::WidenTarget => {
                let (name, partitions) = WIDENED;
                if let Some(topic) = self.broker.topic(name) {
                    self.broker.widen(topic, partitions);
                    self.tell_of(name);
                }
            }
        }
    }

    // Users.

    fn submit(&mut self, index: usize) {
        if self.workload.submissions[index].act.names_a_version() && !self.name_version(index) {
            return;
        }
        let submission = &self.workload.submissions[index];
        let topic = self.lane_topics[submission.topic];
        let place = Place { topic, partition: submission.partition };
        let record = submission.record.clone();
        let writer = match submission.transaction {
            None => None,
            Some(transaction) => match self.users_writer(transaction) {
                Some(writer) => Some(writer),
                None => return,
            },
        };
        match self.broker.produce(self.at, writer.as_ref(), place, record) {
            Ok(offset) => {
                self.note(|| format!("submit n={index} to {place:?} at {offset:?}"));
                self.accepted.insert(index, (place, offset));
                self.stirred = true;
            }
            // Its transaction has ended already: the user was told, nothing was submitted.
            Err(Refusal::Fenced) => {}
            Err(refusal) => {
                self.breach("model", format!("submission {index} refused: {refusal:?}"))
            }
        }
    }

    /// Seals a command about one version, which its client has learned of by now; `false`: it has not.
    fn name_version(&mut self, index: usize) -> bool {
        let submission = &self.workload.submissions[index];
        let (Some(of), Some(name)) = (submission.act.version(), submission.timer) else {
            return false;
        };
        let Some((appended, _, offset)) = self.appended(of) else { return false };
        let made = &self.workload.submissions[of];
        let stays = made.own_lane && made.topic < self.plan.setup.topics.intakes.len();
        let place = Place { topic: self.timers_topic, partition: submission.partition };
        let log = self.broker.partition(place);
        let said = log.into_iter().flat_map(|log| log.ledger()).filter_map(|(_, entry)| {
            let record = entry.record.as_ref()?;
            match timers::Change::decode(record.key(), record.value()) {
                Ok(timers::Change::Timer(timer)) if timer.name == name => Some(timer.version),
                _ => None,
            }
        });
        let is_it = |version: &timers::Place| {
            version.first_appended.0 == appended
                && (!stays || version.offset.0 & !timers::ELSEWHERE == offset.0)
        };
        let version = said.filter(is_it).last();
        let Some(version) = version else { return false };
        let due = match submission.when {
            When::At(due) => due,
            When::After(_) => EPOCH_MS + self.at,
        };
        let sealed = workload::amend(&submission.record, version, due, &self.plan.setup.key);
        self.workload.submissions[index].record = sealed;
        self.named.insert(index, version);
        self.count("amends");
        true
    }

    /// Whether nobody's transaction hid what stands there for as long as such a one is waited for.
    pub fn was_readable(&self, place: Place, offset: Offset) -> bool {
        let hidden = self.broker.partition(place).and_then(|log| log.hidden_for(offset));
        hidden.is_some_and(|hidden| hidden < self.plan.foreign_wait)
    }

    /// How far the brokers' clocks are apart, at most, with what they have stepped.
    pub fn clocks_apart(&self) -> u64 {
        let skews = &self.plan.skews;
        let (low, high) = (skews.iter().min(), skews.iter().max());
        let steps = self.plan.faults.iter().map(|(_, fault)| match fault {
            Fault::ClockStep { by, .. } => *by,
            _ => 0,
        });
        low.zip(high).map_or(0, |(low, high)| high.abs_diff(*low)) + steps.sum::<u64>()
    }

    fn users_writer(&mut self, transaction: usize) -> Option<Writer> {
        if let Some(writer) = self.writers.get(&transaction) {
            return Some(writer.clone());
        }
        let id: Arc<str> = format!("user-{transaction}").into();
        let writer = self.broker.init(&id).ok()?;
        self.writers.insert(transaction, writer.clone());
        self.after(TRANSACTION + SECOND, Event::Expire(id));
        Some(writer)
    }

    fn end_transaction(&mut self, index: usize) {
        let commit = matches!(self.workload.transactions[index], End::Commit(_));
        if let Some(writer) = self.writers.get(&index).cloned() {
            let ended = self.broker.end(&writer, commit);
            self.note(|| format!("user's transaction {index} ends, commit {commit}: {ended:?}"));
            self.want_marker();
        }
    }

    fn make_target(&mut self) {
        let Some((name, partitions, limit)) = TARGETS.iter().find(|(name, ..)| *name == "later")
        else {
            return;
        };
        self.broker.create(name, *partitions, *limit);
        self.tell_of(name);
    }

    /// Some notice by themselves that a target changed, others when they ask again.
    fn tell_of(&mut self, name: &str) {
        for slot in 0..self.members.len() {
            let process = self.members[slot].process();
            let wait = self.chance.between(0, 5 * SECOND);
            if self.chance.percent(50) {
                self.wake(process, wait, Wake::TargetChanged(Arc::from(name)));
            }
        }
    }

    /// A client learns what became of its command.
    fn told_client(&mut self, number: usize, told: Told) {
        self.note(|| format!("n={number} is told {told:?}"));
        let moment = self.broker.next_moment();
        let answers = self.told.entry(number).or_default();
        if let Some(before) = answers.iter().find(|before| before.told != told) {
            let before = before.told;
            // A record that is read again after a crash is decided anew.
            // A replace is its own record: it is read, and answered, again as long as it is pending.
            let replaces = self.workload.submissions[number].act.replaces();
            if self.plan.exactly_once() && !replaces {
                self.breach("answers", format!("n={number}: {before:?}, then {told:?}"));
            }
            return;
        }
        answers.push(Answered { told, moment });
        self.count("answers");
    }

    /// Nothing comes from this partition's leader at present.
    pub fn is_silent(&self, place: Place) -> bool {
        self.silent.get(&place).is_some_and(|until| *until > self.at)
    }

    // The cluster.

    /// Transactions end in their own time, partition by partition.
    pub fn want_marker(&mut self) {
        if !self.marker_queued && !self.broker.missing_markers().is_empty() {
            self.marker_queued = true;
            let wait = self.chance.latency(self.plan.network.marker_max);
            self.after(wait, Event::Marker);
        }
    }

    fn marker(&mut self) {
        self.marker_queued = false;
        let missing = self.broker.missing_markers();
        if !missing.is_empty() {
            let marker = *self.chance.pick(&missing);
            self.broker.write_marker(self.at, marker);
            self.stirred = true;
        }
        self.want_marker();
    }

    fn silent(&mut self, process: Process, member: &str) {
        let of = &self.members[process.slot];
        let alive = of.life == process.life && of.up == Up::Alive;
        let fresh = matches!(of.up, Up::Frozen { since, .. } if self.at < since + SESSION);
        if (alive || fresh) && of.life == process.life {
            return;
        }
        self.note(|| format!("{member} is silent"));
        self.broker.group.remove(member);
        self.count("members lost");
        self.regroup();
    }

    /// Lets the group's round go on after any change to it.
    pub fn regroup(&mut self) {
        let lanes = self.plan.setup.lanes;
        if self.broker.group.complete(lanes) {
            self.count("generations");
            for slot in 0..self.members.len() {
                let wait = self.latency();
                self.wake(self.members[slot].process(), wait, Wake::Assigned);
            }
            return;
        }
        for name in self.broker.group.awaited() {
            let of =
                self.members.iter().find(|member| member.name == name && member.up != Up::Dead);
            if let Some(process) = of.map(Member::process) {
                let heartbeat = self.chance.between(0, 3 * SECOND);
                self.wake(process, heartbeat, Wake::Rebalance);
            }
        }
    }

    /// Sends a request on its way.
    pub fn request(&mut self, process: Process, round: u64, request: Request) {
        let wait = self.latency();
        self.after(wait, Event::Arrives(process, round, request));
    }

    fn arrives(&mut self, process: Process, round: u64, request: Request) {
        let again = request.clone();
        let reply = match request {
            Request::Init(id) => Reply::Init(self.broker.init(&id)),
            Request::Join(name) => {
                // One that has another name by now would have joined a second time.
                let of = &self.members[process.slot];
                if of.up == Up::Dead || of.name != name {
                    return;
                }
                if self.broker.group.has_joined(&name) {
                    let wait = self.latency();
                    return self.wake(process, wait, Wake::Assigned);
                }
                self.broker.group.join(&name);
                return self.regroup();
            }
            Request::Leave(name) => {
                self.broker.group.remove(&name);
                return self.regroup();
            }
            Request::FetchCommitted(places) => {
                let committed = self.broker.committed(&places);
                Reply::Committed(places, committed)
            }
            Request::Ends(places, committed) => {
                let end = |place: &Place| self.broker.partition(*place).map(|log| log.end());
                let ends = places.iter().map(|place| end(place).unwrap_or_default()).collect();
                Reply::Taken(Taken { places, committed, ends })
            }
            Request::End(source, place, at) => {
                if let Some(until) = self.silent.get(&place).filter(|until| **until > self.at) {
                    return self.push(*until, Event::Arrives(process, round, again));
                }
                let end = self.broker.partition(place).map(|log| log.end());
                Reply::End(source, at, end.unwrap_or_default())
            }
            Request::Changelog(lane, why) => Reply::Changelog(lane, why, self.changelog_end(lane)),
            Request::Produce(writer, records) => {
                Reply::Produced(self.produce(writer.as_ref(), records))
            }
            Request::SendOffsets(writer, who, positions) => {
                let sent = self.broker.send_offsets(
                    self.at,
                    &writer,
                    &who.member,
                    who.generation,
                    &positions,
                );
                Reply::OffsetsSent(sent)
            }
            Request::EndTransaction(writer, commit) => {
                let ended = self.broker.end(&writer, commit);
                self.note(|| format!("end of {writer:?}, commit {commit}: {ended:?}"));
                Reply::Ended(ended)
            }
            Request::CommitOffsets(who, positions) => {
                let done = self.broker.commit(&who.member, who.generation, &positions);
                Reply::OffsetsCommitted(done)
            }
            Request::DeleteRecords(until) => {
                until
                    .into_iter()
                    .for_each(|(place, until)| self.broker.delete_records(place, until));
                return;
            }
            Request::Describe(name) => {
                let found = self.broker.topic(&name).map(|topic| {
                    let topic = &self.broker.topics[topic];
                    (topic.partitions.len() as i32, topic.record_bytes_max)
                });
                Reply::Described(name, found)
            }
        };
        self.want_marker();
        let wait = self.latency();
        let waits = matches!(
            reply,
            Reply::Init(Err(Refusal::Concurrent))
                | Reply::Produced(Err(Refusal::Concurrent))
                | Reply::OffsetsSent(Err(Refusal::Concurrent))
                | Reply::Ended(Err(Refusal::Concurrent))
                | Reply::Committed(_, Err(Refusal::Unstable))
        );
        if waits {
            let backoff = self.chance.between(1, 50);
            self.wake(process, wait + backoff, Wake::Again(round, again));
        } else {
            self.wake(process, wait, Wake::Reply(round, reply));
        }
    }

    /// All or, from the first refusal on, none of the rest.
    fn produce(
        &mut self,
        writer: Option<&Writer>,
        records: Vec<crate::network::Outgoing>,
    ) -> Result<(), Refusal> {
        if let Some(writer) = writer {
            self.after(TRANSACTION + SECOND, Event::Expire(Arc::clone(&writer.id)));
        }
        for sent in records {
            let topic = self.broker.topic(&sent.topic).ok_or(Refusal::UnknownTopic)?;
            let place = Place { topic, partition: sent.partition };
            self.broker.produce(self.at, writer, place, sent.record)?;
        }
        self.stirred = true;
        Ok(())
    }

    // What goes wrong.

    fn fault(&mut self, fault: Fault) {
        self.note(|| format!("{fault:?}"));
        match fault {
            Fault::Kill { slot, back_after } => {
                if self.members[slot].up != Up::Dead {
                    self.count("kills");
                    self.kill(slot);
                    self.after(back_after, Event::Start(slot));
                }
            }
            Fault::Stop { slot, back_after } => {
                if self.members[slot].up != Up::Dead {
                    self.count("stops");
                    self.members[slot].back_after = back_after;
                    self.wake(self.members[slot].process(), 0, Wake::Drain);
                }
            }
            Fault::Freeze { slot, lasts } => self.freeze(slot, lasts),
            Fault::ClockStep { node, by } => self.broker.step_clock(node, by),
            Fault::Leader { topic, partition, node } => {
                let place = Place { topic: self.lane_topics[topic], partition: partition as i32 };
                self.broker.move_leader(place, node);
            }
            Fault::Silence { topic, partition, lasts } => {
                self.count("silences");
                let place = Place { topic: self.lane_topics[topic], partition: partition as i32 };
                let until = (self.at + lasts).min(self.plan.heal_at.max(self.at));
                self.silent.insert(place, until);
                self.push(until, Event::Stir);
            }
        }
    }

    pub fn kill(&mut self, slot: usize) {
        self.note(|| format!("slot {slot} dies"));
        self.members[slot].expose(&mut self.exposed);
        let (process, name) = (self.members[slot].process(), self.members[slot].name.clone());
        self.members[slot].up = Up::Dead;
        self.members[slot].engine = None;
        self.tear_index(slot);
        self.after(SESSION, Event::Silent(process, name));
    }

    pub fn freeze(&mut self, slot: usize, lasts: Time) {
        if self.members[slot].up != Up::Alive {
            return;
        }
        self.note(|| format!("slot {slot} stands still for {lasts} ms"));
        self.count(if lasts >= SESSION { "zombies" } else { "freezes" });
        let (process, name) = (self.members[slot].process(), self.members[slot].name.clone());
        self.members[slot].up = Up::Frozen { since: self.at, until: self.at + lasts };
        if lasts >= SESSION {
            self.after(SESSION, Event::Silent(process, name));
            // The first heartbeat after it wakes says that nobody knows it any more.
            let heartbeat = self.chance.between(0, 3 * SECOND);
            self.wake(process, lasts + heartbeat, Wake::Rebalance);
        }
        self.wake(process, lasts, Wake::Poll);
    }
}
