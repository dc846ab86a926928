//! Closes batches: what goes to Kafka together, and what is committed by it. No batch says anything without a commit.

use std::sync::Arc;

use super::super::header::{Code, Refusal};
use super::super::messages::{Answer, Blame, Carried, ChangeReason, Refused};
use super::super::setup::{Arrival, Setup};
use super::super::state::{Kind, SubmissionOrder};
use super::super::verdict::{self, Delivery, PendingRecord};
use super::handed::{Mark, There};
use super::lifecycle::{is_standing, stands};
use super::strict_order::Rank;
use super::{
    Action, Batch, BatchId, Commit, Destination, HeaderRewrite, InFlight, Lane, LaneEngine, Millis,
    Named, Offset, PendingWrite, Produce, Record, Source, Suspected, TopicId, UnixMillis,
};

/// Progress without a record to produce (what was done before a restart, gaps) is committed this often.
const IDLE_COMMIT: Millis = Millis(1_000);

/// With something due within this long, hops leave in smaller batches: what is due waits for the batch before it.
const DUE_SOON: Millis = Millis(20);
/// How many then, at least; a quarter of those that there are, if that is more.
const HOPS_BESIDE_DUE: usize = 256;
/// The part of a batch that dead letters may take then, in records and in bytes.
const LETTERS_SHARE: usize = 4;

impl LaneEngine {
    pub(super) fn committed(&mut self, now: UnixMillis, id: BatchId) {
        // Batches come back in order; one of an assignment that is gone is not among them.
        if self.in_flight.front().is_some_and(|first| first.id == id)
            && let Some(flight) = self.in_flight.pop_front()
        {
            self.figures.memory_bytes -= flight.bytes;
            flight.hops.iter().for_each(|(lane, rank)| self.strict_order.left(*lane, *rank));
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
        if let Some(flight) = self.in_flight.iter().find(|flight| flight.id == refused.batch) {
            self.suspects.refused(now, &flight.carried, self.in_flight.len() == 1, refused);
        }
    }

    /// Closes batches, as long as one may be closed and there is something for it.
    pub(super) fn close(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        while self.in_flight.len() < self.setup.limits.batches_max {
            let open_at = self.last_batch + self.setup.limits.batch_gap;
            let gap = self.in_flight.is_empty()
                && self.last_batch <= now
                && now < open_at
                && !self.draining;
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
            out.push(Action::Batch(batch));
        }
        // With no room for another batch the answer to one is what wakes us.
        if self.in_flight.len() < self.setup.limits.batches_max {
            if let Some(due) = self.wheel.next_due() {
                self.wake(due);
            }
            if let Some(ripe) = self.hop_buffer.ripe_at(self.linger()) {
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
        if self.in_flight.iter().any(|flight| flight.test) {
            return Test::Wait;
        }
        match self.next_test() {
            Some(group) if !self.tested && (self.test_at <= now || self.draining) => {
                if self.in_flight.is_empty() { Test::Now(group) } else { Test::Wait }
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
    fn firsts(&self, group: u64) -> Vec<Option<(UnixMillis, SubmissionOrder)>> {
        let mut firsts: Vec<Option<(UnixMillis, SubmissionOrder)>> = vec![None; self.gates.len()];
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
        let mut builder = BatchBuilder::new(&self.setup);
        let firsts = self.firsts(group);
        let may = |held: &Suspected| {
            let first = firsts[usize::from(held.source.lane.0)];
            first.is_none_or(|first| held.rank().is_none_or(|rank| rank <= first))
        };
        while builder.room()
            && let Some(suspected) = self.suspects.take_where(group, may)
        {
            let Suspected { source, offset, send, order, mark, named, timer } = suspected;
            // A cancel may have come while it was held.
            match named.filter(|named| !is_standing(&self.timers, source.lane, *named)) {
                Some(Named { timer_id, version, .. }) => {
                    if self.is_strict() && matches!(send.to, Destination::Lane(_)) {
                        self.strict_order.left(source.lane, (send.due, order));
                    }
                    let named = Some((timer_id, version));
                    self.suppress_record(now, (source, offset), named, send.record);
                    self.wake(now);
                }
                None => {
                    builder.note(source.lane, &send, order);
                    self.send_off(now, &mut builder, (source, offset), (send, mark), named, timer)
                }
            }
        }
        if builder.sends.is_empty() {
            return None;
        }
        builder.test = true;
        self.seal_batch(now, builder)
    }

    /// Puts a send into a batch, or aside if it is under suspicion. `mark`: it is to be remembered, `named`: the version that
    /// it is of, and `timer`: what is said of that then.
    fn load(
        &mut self,
        now: UnixMillis,
        builder: &mut BatchBuilder,
        (source, offset): (Source, Offset),
        (send, order, mark): (Produce, SubmissionOrder, Option<Mark>),
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
            None => self.send_off(now, builder, (source, offset), (send, mark), named, timer),
        }
    }

    /// Puts a send into a batch, and what becomes of its timer by that.
    fn send_off(
        &mut self,
        now: UnixMillis,
        builder: &mut BatchBuilder,
        (source, offset): (Source, Offset),
        (send, mark): (Produce, Option<Mark>),
        named: Option<Named>,
        timer: Option<Record>,
    ) {
        let held = send.record.size();
        if let Some(mark) = mark {
            self.handed.insert(mark);
            builder.marks.push(mark);
        }
        let is_hop = matches!(send.to, Destination::Lane(_));
        builder.push(Some((source, offset)), send, held);
        match (named, timer) {
            (Some(named), Some(record)) => {
                self.end(now, source.lane, named.timer_id);
                let said = PendingWrite::timer_change(source.lane, record, ChangeReason::Delivered);
                builder.take(said);
            }
            // From here on it stands in a tier, and nowhere else.
            (Some(named), None) if is_hop => {
                self.timers.set_here(source.lane, named.timer_id, false);
            }
            _ => {}
        }
    }

    /// Takes pending writes while there is room. A write that belongs to the next one stays with it.
    fn load_ready(&mut self, now: UnixMillis, builder: &mut BatchBuilder) {
        let mut with_next = false;
        while (with_next || builder.room())
            && let Some(ready) = self.ready.pop_front()
        {
            self.taken += 1;
            with_next = ready.with_next;
            match (ready.done, ready.send) {
                // A move may be under suspicion.
                (Some(done), Some(send)) if matches!(send.to, Destination::Lane(_)) => {
                    self.load(
                        now,
                        builder,
                        done,
                        (send, SubmissionOrder::default(), None),
                        None,
                        None,
                    );
                }
                (done, send) => builder.take(PendingWrite { done, send, ..ready }),
            }
        }
    }

    /// Takes dead letters, as long as there is room; fewer if something is due soon, which waits for this batch.
    fn load_letters(&mut self, now: UnixMillis, builder: &mut BatchBuilder) {
        let soon = self.wheel.next_due().is_some_and(|due| due <= now + DUE_SOON);
        let share = if soon { LETTERS_SHARE } else { 1 };
        let limits = &self.setup.limits;
        let (most, bytes_max) = (limits.batch_records_max / share, limits.batch_bytes_max / share);
        let (mut taken, before) = (0, builder.bytes);
        while taken < most.max(1)
            && builder.bytes - before < bytes_max
            && builder.room()
            && let Some(letter) = self.letters.pop_front()
        {
            taken += 1;
            builder.take(letter);
        }
    }

    /// Builds one batch, in this order: moves and timer changes; due records in order; ripe hops of few partitions;
    /// dead letters. Nobody waits for dead letters, so due records leave first, however many dead letters there are.
    fn fill(&mut self, now: UnixMillis, out: &mut Vec<Action>) -> Option<Batch> {
        let mut builder = BatchBuilder::new(&self.setup);
        self.forget(now);
        self.load_ready(now, &mut builder);
        self.fire_ordered();
        for entry in std::mem::take(&mut self.late) {
            self.wheel.insert(entry.due, entry.order, entry);
        }
        let mut due = Vec::new();
        while builder.room() {
            // In small bites: a batch is over its bytes by one bite at most.
            let bite = builder.records_left.min(32);
            self.wheel.pop_due(now, bite, |_, _, entry| due.push(entry));
            if due.is_empty() {
                break;
            }
            for entry in due.drain(..) {
                self.fire(now, entry, &mut builder, out);
            }
        }
        self.take_hops(now, &mut builder);
        // What firing has refused or suppressed goes along.
        self.load_ready(now, &mut builder);
        self.load_letters(now, &mut builder);
        let idle = self.dirty && self.last_commit + IDLE_COMMIT <= now;
        if builder.sends.is_empty() && builder.answers.is_empty() && !idle {
            // An offset that finishes without a record to send need not be committed at once.
            self.dirty |= !builder.done.is_empty();
            self.figures.memory_bytes -= builder.held;
            self.finish_all(&builder.done);
            return None;
        }
        self.tested = false;
        self.seal_batch(now, builder)
    }

    fn fire(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
        builder: &mut BatchBuilder,
        out: &mut Vec<Action>,
    ) {
        if !self.stands(&entry) {
            return self.suppress(now, *entry, None);
        }
        let Some(entry) = self.let_through(now, entry) else { return };
        let setup = Arc::clone(&self.setup);
        let supersedes =
            entry.timer_id.and_then(|timer_id| self.timers.replaced(entry.source.lane, timer_id));
        // A record that may be in its target must not become a dead letter, too. A record that certainly is there is
        // finished once it has expired.
        let mark = (entry.expires.is_some() && !setup.limits.aborts).then(|| Mark::of(&entry));
        let there = mark.and_then(|mark| self.handed.is_there(mark));
        let is_copy = there == Some(There::Surely) && entry.timer_id.is_none();
        let hand = (there.is_none() || is_copy).then(|| self.expiry_margin.at(now));
        let checked = match verdict::allowed(&setup, &self.targets, entry.intake, &entry.target) {
            Err(refusal) => Err(refusal),
            Ok(()) => match self.look(now, &entry.target, out) {
                None => {
                    if let Some(entry) = self.park(entry) {
                        self.defer(now, entry);
                    }
                    return;
                }
                Some(target) => verdict::deliver(&entry, (now, hand), target, supersedes)
                    .and_then(|delivery| self.permitted(now, &entry).map(|()| delivery)),
            },
        };
        match checked {
            Ok(Delivery { partition, trace, timer }) => {
                let Some(partition) = self.within_reach(&entry, partition) else {
                    return self.defer(now, entry);
                };
                let version = entry.version();
                let PendingRecord {
                    source,
                    offset,
                    record,
                    target,
                    due,
                    order,
                    decided,
                    expires,
                    ..
                } = *entry;
                let named = entry.timer_id.map(|timer_id| Named { timer_id, version, decided });
                let rewrite = HeaderRewrite::Deliver { trace, from: source.topic };
                let send = Produce {
                    to: Destination::Target(target),
                    partition,
                    record,
                    rewrite,
                    due,
                    expires,
                };
                self.load(now, builder, (source, offset), (send, order, mark), named, timer);
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
    fn permitted(&mut self, now: UnixMillis, entry: &PendingRecord) -> Result<(), Refusal> {
        match self.suspects.blocked(now, self.setup.limits.target_fresh, &entry.target) {
            None => Ok(()),
            Some(why) => {
                let detail = format!("target {} is refused by Kafka: {why}", entry.target);
                Err(verdict::refusal(Code::TargetRefused, detail))
            }
        }
    }

    fn take_hops(&mut self, now: UnixMillis, builder: &mut BatchBuilder) {
        let setup = Arc::clone(&self.setup);
        let (linger, partitions) = (self.linger(), self.setup.limits.hop_partitions_max);
        let mut refused = Vec::new();
        if !builder.room() {
            return;
        }
        let soon = self.wheel.next_due().is_some_and(|due| due <= now + DUE_SOON);
        let mut left =
            if soon { HOPS_BESIDE_DUE.max(self.hop_buffer.len() / 4) } else { usize::MAX };
        let (mut suppressed, mut back) = (Vec::new(), Vec::new());
        let tiers = setup.topics.ladder.tiers().len();
        let too_late: Vec<Option<Millis>> = (0..tiers).map(|tier| self.needs(now, tier)).collect();
        let Self { suspects, hop_buffer, timers, strict_order, .. } = self;
        hop_buffer.take(now, linger, partitions, |tier, lane, entry| {
            strict_order.collected = strict_order.collected.saturating_sub(entry.record.size());
            if !stands(timers, &entry) {
                suppressed.push(entry);
                return true;
            }
            if !entry.deferred && too_late[tier].is_some_and(|needs| entry.due < now + needs) {
                back.push(entry);
                return true;
            }
            match verdict::seal(&setup, &entry, Kind::Hop) {
                Ok(sealed) => {
                    let version = entry.version();
                    let PendingRecord {
                        source,
                        offset,
                        record,
                        due,
                        order,
                        deferred,
                        timer_id,
                        ..
                    } = *entry;
                    let decided = entry.decided;
                    let due = if deferred { UnixMillis(u64::MAX) } else { due };
                    let to = Destination::Lane(setup.topics.of_tier(tier));
                    let partition = Some(i32::from(lane.0));
                    let (rewrite, expires) = (HeaderRewrite::State(sealed), None);
                    let send = Produce { to, partition, record, rewrite, due, expires };
                    match suspects.group(source, offset, &send.to) {
                        Some(group) => {
                            let named =
                                timer_id.map(|timer_id| Named { timer_id, version, decided });
                            let (mark, timer) = (None, None);
                            let held =
                                Suspected { source, offset, send, order, mark, named, timer };
                            suspects.hold(group, held);
                        }
                        None => {
                            let held = send.record.size();
                            builder.note(source.lane, &send, order);
                            builder.push(Some((source, offset)), send, held);
                            if let Some(timer_id) = timer_id {
                                timers.set_here(source.lane, timer_id, false);
                            }
                        }
                    }
                }
                Err(refusal) => refused.push((entry, refusal)),
            }
            left -= 1;
            left > 0 && builder.room()
        });
        for entry in suppressed {
            self.hops_not(&entry);
            self.suppress(now, *entry, None);
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
    fn fence(&mut self, builder: &BatchBuilder) -> Option<Commit> {
        let said = builder.sends.first().map(|send| send.partition);
        let lane = match said {
            Some(partition) => Lane(u16::try_from(partition?).ok()?),
            None => builder.answers.first()?.source.lane,
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
    fn seal_batch(&mut self, now: UnixMillis, builder: BatchBuilder) -> Option<Batch> {
        self.finish_all(&builder.done);
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
            commits.extend(self.fence(&builder));
        }
        self.dirty = false;
        self.last_commit = now;
        if builder.sends.is_empty() && builder.answers.is_empty() && commits.is_empty() {
            return None;
        }
        let id = self.next_batch;
        self.next_batch = BatchId(id.0 + 1);
        let BatchBuilder { sends, answers, held, carried, hops, marks, test, .. } = builder;
        let due = sends.iter().filter_map(Produce::delivered_at).min();
        self.in_flight.push_back(InFlight { id, bytes: held, carried, hops, marks, test, due });
        Some(Batch { id, sends, commits, answers })
    }
}

/// Whether the next batch is one of suspects.
enum Test {
    No,
    /// Once the batches in flight are back.
    Wait,
    /// Of this group.
    Now(u64),
}

/// A batch being filled.
struct BatchBuilder {
    sends: Vec<Produce>,
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

impl BatchBuilder {
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
    fn note(&mut self, lane: Lane, send: &Produce, order: SubmissionOrder) {
        if let (Destination::Lane(topic), Some(first)) = (&send.to, self.tiers_from)
            && *topic >= first
        {
            self.hops.push((lane, (send.due, order)));
        }
    }

    /// Adds a record, and the offset that is done with it.
    fn push(&mut self, done: Option<(Source, Offset)>, send: Produce, held: usize) {
        self.bytes += send.body().size();
        self.held += held;
        self.records_left = self.records_left.saturating_sub(1);
        // A timer change finishes no offset by itself: no record is to blame for it.
        let (source, offset) = done.unwrap_or_default();
        self.done.extend(done);
        self.carried.push(Carried { source, offset, to: send.to.clone() });
        self.sends.push(send);
    }

    fn take(&mut self, ready: PendingWrite) {
        let PendingWrite { done, send, held, answer, .. } = ready;
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
