//! Closes batches: what goes to Kafka together, and what is committed by it. No batch says anything without a commit.

use std::sync::Arc;

use super::super::header::{Code, Refusal};
use super::super::orders::{Answer, Because, Blame, Carried, Refused};
use super::super::setup::{Arrival, Setup};
use super::super::state::{Kind, Order};
use super::super::verdict::{self, Delivery, Entry};
use super::floor::Rank;
use super::handed::{Mark, There};
use super::lifecycle::{is_standing, stands};
use super::{
    Batch, BatchId, Commit, Edit, Engine, Flight, Lane, Millis, Named, Offset, Output, Ready,
    Record, Send, Source, Suspected, To, TopicId, UnixMillis,
};

/// Progress without a record to produce (what was done before a restart, gaps) is committed this often.
const IDLE_COMMIT: Millis = Millis(1_000);

/// With something due within this long, hops leave in smaller batches: what is due waits for the batch before it.
const DUE_SOON: Millis = Millis(20);
/// How many then, at least; a quarter of those that there are, if that is more.
const HOPS_BESIDE_DUE: usize = 256;
/// The part of a batch that dead letters may take then, in records and in bytes.
const LETTERS_SHARE: usize = 4;

impl Engine {
    pub(super) fn committed(&mut self, now: UnixMillis, id: BatchId) {
        // Batches come back in order; one of an assignment that is gone is not among them.
        if self.flying.front().is_some_and(|first| first.id == id)
            && let Some(flight) = self.flying.pop_front()
        {
            self.figures.memory_bytes -= flight.bytes;
            flight.hops.iter().for_each(|(lane, rank)| self.floors.left(*lane, *rank));
            flight.marks.iter().for_each(|mark| self.handed.acknowledged(*mark));
            self.last_batch = now;
            self.suspects.acknowledged(&flight.carried);
        }
    }

    /// Kafka refused something of a batch: whom to suspect is remembered, the batch itself goes with `Revoked`.
    pub(super) fn refused(&mut self, now: UnixMillis, refused: &Refused) {
        match refused.blame {
            Blame::Late => return self.hops_margin.widen(now),
            Blame::Expired => return self.expiry_margin.widen(now),
            Blame::Record | Blame::Target | Blame::Unclear => {}
        }
        if let Some(flight) = self.flying.iter().find(|flight| flight.id == refused.batch) {
            self.suspects.refused(now, &flight.carried, self.flying.len() == 1, refused);
        }
    }

    /// Closes batches, as long as one may be closed and there is something for it.
    pub(super) fn close(&mut self, now: UnixMillis, out: &mut Vec<Output>) {
        while self.flying.len() < self.setup.limits.batches_max {
            let open_at = self.last_batch + self.setup.limits.batch_gap;
            let gap =
                self.flying.is_empty() && self.last_batch <= now && now < open_at && !self.draining;
            if gap {
                self.wake(open_at);
                return;
            }
            let batch = match self.turn_to_test(now) {
                Test::Wait => return,
                Test::Now(group) => self.fill_test(now, group),
                Test::No => self.fill(now, out),
            };
            // Nothing else is to be done: what is held for a test need not wait for its turn.
            let Some(batch) = batch.or_else(|| self.idle_test(now)) else { break };
            out.push(Output::Batch(batch));
        }
        // With no room for another batch the answer to one is what wakes us.
        if self.flying.len() < self.setup.limits.batches_max {
            if let Some(due) = self.wheel.next_due() {
                self.wake(due);
            }
            if let Some(ripe) = self.outbox.ripe_at(self.linger()) {
                self.wake(ripe);
            }
            if self.dirty {
                self.wake(self.last_commit + IDLE_COMMIT);
            }
            if self.suspects.next().is_some() {
                self.wake(self.test_at);
            }
            if let Some(at) = self.timers.forget_at() {
                self.wake(at);
            }
        }
    }

    // Suspects leave in batches of their own, one at a time; in turns with the others, which so are held up by one
    // failure and never by all of them.

    fn turn_to_test(&self, now: UnixMillis) -> Test {
        if self.flying.iter().any(|flight| flight.test) {
            return Test::Wait;
        }
        match self.next_test() {
            Some(group) if !self.tested && (self.test_at <= now || self.draining) => {
                if self.flying.is_empty() { Test::Now(group) } else { Test::Wait }
            }
            _ => Test::No,
        }
    }

    /// The group to test next; in strict order that of the record that is due first, which is held up by none.
    fn next_test(&self) -> Option<u64> {
        let next = self.suspects.next()?;
        if !self.is_strict() {
            return Some(next);
        }
        let ranked = self.suspects.held_by_group();
        let ranked = ranked.filter_map(|(group, held)| Some((held.rank()?, group)));
        Some(ranked.min().map_or(next, |(_, group)| group))
    }

    /// By lane, in strict order: what other groups have that is to arrive first.
    fn firsts(&self, group: u64) -> Vec<Option<(UnixMillis, Order)>> {
        let mut firsts: Vec<Option<(UnixMillis, Order)>> = vec![None; self.gates.len()];
        if self.is_strict() {
            let others = self.suspects.held_by_group().filter(|(of, _)| *of != group);
            for (lane, rank) in
                others.filter_map(|(_, held)| Some((held.source.lane, held.rank()?)))
            {
                let first = &mut firsts[usize::from(lane.0)];
                *first = Some(first.map_or(rank, |first| first.min(rank)));
            }
        }
        firsts
    }

    fn idle_test(&mut self, now: UnixMillis) -> Option<Batch> {
        self.tested = false;
        match self.turn_to_test(now) {
            Test::Now(group) => self.fill_test(now, group),
            Test::Wait | Test::No => None,
        }
    }

    fn fill_test(&mut self, now: UnixMillis, group: u64) -> Option<Batch> {
        self.tested = true;
        let mut load = Load::new(&self.setup);
        let firsts = self.firsts(group);
        let may = |held: &Suspected| {
            let first = firsts[usize::from(held.source.lane.0)];
            first.is_none_or(|first| held.rank().is_none_or(|rank| rank <= first))
        };
        while load.room()
            && let Some(suspected) = self.suspects.take_where(group, may)
        {
            let Suspected { source, offset, send, order, mark, named, timer } = suspected;
            // A cancel may have come while it was held.
            match named.filter(|named| !is_standing(&self.timers, source.lane, *named)) {
                Some(Named { name, place, .. }) => {
                    if self.is_strict() && matches!(send.to, To::Lane(_)) {
                        self.floors.left(source.lane, (send.due, order));
                    }
                    let named = Some((name, place));
                    self.meet_record(now, (source, offset), named, send.record);
                    self.wake(now);
                }
                None => {
                    load.note(source.lane, &send, order);
                    self.send_off(now, &mut load, (source, offset), (send, mark), named, timer)
                }
            }
        }
        if load.sends.is_empty() {
            return None;
        }
        load.test = true;
        self.seal_batch(now, load)
    }

    /// Puts a send into a batch, or aside if it is under suspicion. `mark`: it is to be remembered, `named`: the version that
    /// it is of, and `timer`: what is said of that then.
    fn load(
        &mut self,
        now: UnixMillis,
        load: &mut Load,
        (source, offset): (Source, Offset),
        (send, order, mark): (Send, Order, Option<Mark>),
        named: Option<Named>,
        timer: Option<Record>,
    ) {
        match self.suspects.group(source, offset, &send.to) {
            Some(group) => {
                let suspected = Suspected { source, offset, send, order, mark, named, timer };
                if let Some(rank) = suspected.rank() {
                    self.lower_floor(source.lane, rank);
                }
                self.suspects.hold(group, suspected);
            }
            None => self.send_off(now, load, (source, offset), (send, mark), named, timer),
        }
    }

    /// Puts a send into a batch, and what becomes of its timer by that.
    fn send_off(
        &mut self,
        now: UnixMillis,
        load: &mut Load,
        (source, offset): (Source, Offset),
        (send, mark): (Send, Option<Mark>),
        named: Option<Named>,
        timer: Option<Record>,
    ) {
        let held = send.record.size();
        if let Some(mark) = mark {
            self.handed.insert(mark);
            load.marks.push(mark);
        }
        let is_hop = matches!(send.to, To::Lane(_));
        load.push(Some((source, offset)), send, held);
        match (named, timer) {
            (Some(named), Some(record)) => {
                self.end(now, source.lane, named.name);
                let said = Ready::said(source.lane, record, Because::Delivered);
                load.take(said);
            }
            // From here on it stands in a tier, and nowhere else.
            (Some(named), None) if is_hop => {
                self.timers.set_here(source.lane, named.name, false);
            }
            _ => {}
        }
    }

    /// Takes what is ready, as long as there is room; what is glued together stays so.
    fn load_ready(&mut self, now: UnixMillis, load: &mut Load) {
        let mut glued = false;
        while (glued || load.room())
            && let Some(ready) = self.ready.pop_front()
        {
            self.taken += 1;
            glued = ready.glued;
            match (ready.done, ready.send) {
                // A move may be under suspicion.
                (Some(done), Some(send)) if matches!(send.to, To::Lane(_)) => {
                    self.load(now, load, done, (send, Order::default(), None), None, None);
                }
                (done, send) => load.take(Ready { done, send, ..ready }),
            }
        }
    }

    /// Takes dead letters, as long as there is room; fewer if something is due soon, which waits for this batch.
    fn load_letters(&mut self, now: UnixMillis, load: &mut Load) {
        let soon = self.wheel.next_due().is_some_and(|due| due <= now + DUE_SOON);
        let share = if soon { LETTERS_SHARE } else { 1 };
        let limits = &self.setup.limits;
        let (most, bytes_max) = (limits.batch_records_max / share, limits.batch_bytes_max / share);
        let (mut taken, before) = (0, load.bytes);
        while taken < most.max(1)
            && load.bytes - before < bytes_max
            && load.room()
            && let Some(letter) = self.letters.pop_front()
        {
            taken += 1;
            load.take(letter);
        }
    }

    /// One batch: moves and what is said of timers, then what is due in order, then ripe hops of few partitions, then dead
    /// letters, for which nobody waits: however many there are, what is due leaves first.
    fn fill(&mut self, now: UnixMillis, out: &mut Vec<Output>) -> Option<Batch> {
        let mut load = Load::new(&self.setup);
        self.forget(now);
        self.load_ready(now, &mut load);
        self.fire_ordered();
        for entry in std::mem::take(&mut self.late) {
            self.wheel.insert(entry.due, entry.order, entry);
        }
        let mut due = Vec::new();
        while load.room() {
            // In small bites: a batch is over its bytes by one bite at most.
            let bite = load.records_left.min(32);
            self.wheel.pop_due(now, bite, |_, _, entry| due.push(entry));
            if due.is_empty() {
                break;
            }
            for entry in due.drain(..) {
                self.fire(now, entry, &mut load, out);
            }
        }
        self.take_hops(now, &mut load);
        // What firing has refused or met goes along.
        self.load_ready(now, &mut load);
        self.load_letters(now, &mut load);
        let idle = self.dirty && self.last_commit + IDLE_COMMIT <= now;
        if load.sends.is_empty() && load.answers.is_empty() && !idle {
            // What is finished without anything to send need not be committed at once.
            self.dirty |= !load.done.is_empty();
            self.figures.memory_bytes -= load.held;
            self.finish_all(&load.done);
            return None;
        }
        self.tested = false;
        self.seal_batch(now, load)
    }

    fn fire(&mut self, now: UnixMillis, entry: Box<Entry>, load: &mut Load, out: &mut Vec<Output>) {
        if !self.stands(&entry) {
            return self.meet(now, *entry, None);
        }
        let Some(entry) = self.let_through(now, entry) else { return };
        let setup = Arc::clone(&self.setup);
        let supersedes = entry.timer.and_then(|name| self.timers.replaced(entry.source.lane, name));
        // What may be there is no dead letter besides; what is there for certain is nothing any more once it has expired.
        let mark = (entry.expires.is_some() && !setup.limits.aborts).then(|| Mark::of(&entry));
        let there = mark.and_then(|mark| self.handed.is_there(mark));
        let is_copy = there == Some(There::Surely) && entry.timer.is_none();
        let hand = (there.is_none() || is_copy).then(|| self.expiry_margin.at(now));
        let checked = match verdict::allowed(&setup, &self.targets, entry.intake, &entry.target) {
            Err(refusal) => Err(refusal),
            Ok(()) => match self.look(now, &entry.target, out) {
                None => {
                    if let Some(entry) = self.park(entry) {
                        self.put_off(now, entry);
                    }
                    return;
                }
                Some(target) => verdict::deliver(&entry, (now, hand), target, supersedes)
                    .and_then(|edit| self.permitted(now, &entry).map(|()| edit)),
            },
        };
        match checked {
            Ok(Delivery { partition, trace, timer }) => {
                let Some(partition) = self.within_reach(&entry, partition) else {
                    return self.put_off(now, entry);
                };
                let place = entry.place();
                let Entry { source, offset, record, target, due, order, decided, expires, .. } =
                    *entry;
                let named = entry.timer.map(|name| Named { name, place, decided });
                let edit = Edit::Deliver { trace, from: source.topic };
                let send = Send { to: To::Target(target), partition, record, edit, due, expires };
                self.load(now, load, (source, offset), (send, order, mark), named, timer);
            }
            Err(refusal) if is_copy && refusal.code == Code::Expired => self.finish(&entry, None),
            Err(refusal) if self.may_have_grown(now, &entry.target, &refusal, out) => {
                if let Some(entry) = self.park(entry) {
                    self.refuse(now, *entry, refusal);
                }
            }
            Err(refusal) => self.refuse(now, *entry, refusal),
        }
    }

    /// Whether Kafka has not refused this target a moment ago.
    fn permitted(&mut self, now: UnixMillis, entry: &Entry) -> Result<(), Refusal> {
        match self.suspects.denied(now, self.setup.limits.target_fresh, &entry.target) {
            None => Ok(()),
            Some(why) => {
                let detail = format!("target {} is refused by Kafka: {why}", entry.target);
                Err(verdict::refusal(Code::TargetRefused, detail))
            }
        }
    }

    fn take_hops(&mut self, now: UnixMillis, load: &mut Load) {
        let setup = Arc::clone(&self.setup);
        let (linger, partitions) = (self.linger(), self.setup.limits.hop_partitions_max);
        let mut refused = Vec::new();
        if !load.room() {
            return;
        }
        let soon = self.wheel.next_due().is_some_and(|due| due <= now + DUE_SOON);
        let mut left = if soon { HOPS_BESIDE_DUE.max(self.outbox.len() / 4) } else { usize::MAX };
        let (mut void, mut back) = (Vec::new(), Vec::new());
        let tiers = setup.topics.ladder.tiers().len();
        let too_late: Vec<Option<Millis>> = (0..tiers).map(|tier| self.needs(now, tier)).collect();
        let Self { suspects, outbox, timers, floors, .. } = self;
        outbox.take(now, linger, partitions, |tier, lane, entry| {
            floors.collected = floors.collected.saturating_sub(entry.record.size());
            if !stands(timers, &entry) {
                void.push(entry);
                return true;
            }
            if !entry.put_off && too_late[tier].is_some_and(|needs| entry.due < now + needs) {
                back.push(entry);
                return true;
            }
            match verdict::seal(&setup, &entry, Kind::Hop) {
                Ok(sealed) => {
                    let place = entry.place();
                    let Entry { source, offset, record, due, order, put_off, timer, .. } = *entry;
                    let decided = entry.decided;
                    let due = if put_off { UnixMillis(u64::MAX) } else { due };
                    let to = To::Lane(setup.topics.of_tier(tier));
                    let partition = Some(i32::from(lane.0));
                    let (edit, expires) = (Edit::State(sealed), None);
                    let send = Send { to, partition, record, edit, due, expires };
                    match suspects.group(source, offset, &send.to) {
                        Some(group) => {
                            let named = timer.map(|name| Named { name, place, decided });
                            let (mark, timer) = (None, None);
                            let held =
                                Suspected { source, offset, send, order, mark, named, timer };
                            suspects.hold(group, held);
                        }
                        None => {
                            let held = send.record.size();
                            load.note(source.lane, &send, order);
                            load.push(Some((source, offset)), send, held);
                            if let Some(name) = timer {
                                timers.set_here(source.lane, name, false);
                            }
                        }
                    }
                }
                Err(refusal) => refused.push((entry, refusal)),
            }
            left -= 1;
            left > 0 && load.room()
        });
        for entry in void {
            self.hops_not(&entry);
            self.meet(now, *entry, None);
        }
        for entry in back {
            self.hops_not(&entry);
            self.route(now, entry);
        }
        for (entry, refusal) in refused {
            self.hops_not(&entry);
            self.refuse(now, *entry, refusal);
        }
    }

    /// Kafka fences a member whose lanes are another's by the positions that it commits, and by nothing else: a batch that
    /// finishes nothing, but says something, commits an intake's position as it stands.
    fn fence(&mut self, load: &Load) -> Option<Commit> {
        let said = load.sends.first().map(|send| send.partition);
        let lane = match said {
            Some(partition) => Lane(u16::try_from(partition?).ok()?),
            None => load.answers.first()?.source.lane,
        };
        let source = Source { topic: TopicId(0), lane };
        let (next, metadata) = self.hold(source)?.window.commit_anyway();
        Some(Commit { source, next, metadata })
    }

    fn finish_all(&mut self, done: &[(Source, Offset)]) {
        for (source, offset) in done {
            if let Some(hold) = self.hold(*source) {
                hold.window.finish(*offset);
            }
        }
    }

    /// Finishes the offsets of a batch and adds where reading stands because of it.
    fn seal_batch(&mut self, now: UnixMillis, load: Load) -> Option<Batch> {
        self.finish_all(&load.done);
        let mut commits = Vec::new();
        for (topic, lanes) in self.holds.iter_mut().enumerate() {
            for (lane, hold) in lanes.iter_mut().enumerate() {
                if let Some((next, metadata)) = hold.as_mut().and_then(|hold| hold.window.commit())
                {
                    let source = Source { topic: TopicId(topic as u16), lane: Lane(lane as u16) };
                    commits.push(Commit { source, next, metadata });
                }
            }
        }
        if commits.is_empty() {
            commits.extend(self.fence(&load));
        }
        self.dirty = false;
        self.last_commit = now;
        if load.sends.is_empty() && load.answers.is_empty() && commits.is_empty() {
            return None;
        }
        let id = self.next_batch;
        self.next_batch = BatchId(id.0 + 1);
        let Load { sends, answers, held, carried, hops, marks, test, .. } = load;
        let due = sends.iter().filter_map(Send::delivered_at).min();
        self.flying.push_back(Flight { id, bytes: held, carried, hops, marks, test, due });
        Some(Batch { id, sends, commits, answers })
    }
}

/// Whether the next batch is one of suspects.
enum Test {
    No,
    /// Once what is on its way is back.
    Wait,
    /// Of this group.
    Now(u64),
}

/// A batch being filled.
struct Load {
    sends: Vec<Send>,
    done: Vec<(Source, Offset)>,
    /// What becomes of each send, in their order.
    carried: Vec<Carried>,
    /// The hops in it, where order matters: their lanes, and when they are due.
    hops: Vec<(Lane, Rank)>,
    /// Deliveries in it of records that expire, where nothing can be aborted.
    marks: Vec<Mark>,
    /// It is all of one group of suspects.
    test: bool,
    answers: Vec<Answer>,
    bytes: usize,
    /// Bytes of the budget that it gives back.
    held: usize,
    records_left: usize,
    bytes_max: usize,
    /// The first topic that hops go to, where order matters.
    tiers_from: Option<TopicId>,
}

impl Load {
    fn new(setup: &Setup) -> Self {
        let limits = &setup.limits;
        let strict = limits.arrival == Arrival::Strict;
        Self {
            sends: Vec::new(),
            done: Vec::new(),
            carried: Vec::new(),
            hops: Vec::new(),
            marks: Vec::new(),
            tiers_from: strict.then(|| setup.topics.of_tier(0)),
            test: false,
            answers: Vec::new(),
            bytes: 0,
            held: 0,
            records_left: limits.batch_records_max,
            bytes_max: limits.batch_bytes_max,
        }
    }

    fn room(&self) -> bool {
        self.records_left > 0 && self.bytes < self.bytes_max
    }

    /// Notes a hop, where order matters.
    fn note(&mut self, lane: Lane, send: &Send, order: Order) {
        if let (To::Lane(topic), Some(first)) = (&send.to, self.tiers_from)
            && *topic >= first
        {
            self.hops.push((lane, (send.due, order)));
        }
    }

    /// Adds a record, and the offset that is done with it.
    fn push(&mut self, done: Option<(Source, Offset)>, send: Send, held: usize) {
        self.bytes += send.body().size();
        self.held += held;
        self.records_left = self.records_left.saturating_sub(1);
        // What is said of a timer finishes nothing by itself: nobody is to blame for it.
        let (source, offset) = done.unwrap_or_default();
        self.done.extend(done);
        self.carried.push(Carried { source, offset, to: send.to.clone() });
        self.sends.push(send);
    }

    fn take(&mut self, ready: Ready) {
        let Ready { done, send, held, answer, .. } = ready;
        self.answers.extend(answer);
        match send {
            Some(send) => self.push(done, send, held),
            None => {
                self.held += held;
                self.done.extend(done);
            }
        }
    }
}
