//! Closes batches: what goes to Kafka together, and what is committed by it. No batch says anything without a commit.

use std::sync::Arc;

use super::super::messages::{Blame, ChangeReason, Refused};
use super::super::state::{Kind, SubmissionOrder};
use super::super::verdict::{self, PendingRecord};
use super::builder::BatchBuilder;
use super::handed::Mark;
use super::lifecycle::Named;
use super::poison::{Beside, Suspected, Test};
use super::writes::PendingWrite;
use super::{
    Action, Batch, BatchId, Destination, HeaderRewrite, LaneEngine, Millis, Offset, Produce,
    Source, UnixMillis,
};

/// With something due within this long, hops leave in smaller batches: what is due waits for the batch before it.
const DUE_SOON: Millis = Millis(20);
/// How many then, at least; a quarter of those that there are, if that is more.
const HOPS_BESIDE_DUE: usize = 256;
/// The part of a batch that dead letters may take then, in records and in bytes.
const LETTERS_SHARE: usize = 4;

impl LaneEngine {
    pub(super) fn committed(&mut self, now: UnixMillis, id: BatchId) {
        let Some(batch) = self.batches.landed(now, id) else { return };
        self.memory.free(batch.bytes);
        batch.hops.iter().for_each(|(lane, rank)| self.strict_order.left(*lane, *rank));
        self.poison.acknowledged(&batch.carried);
    }

    /// Deliveries of batches that failed are in their targets: they must not become dead letters, too.
    pub(super) fn partly_acknowledged(&mut self, sends: &[(BatchId, usize)]) {
        let Self { batches, poison, .. } = self;
        let carried = |(id, at): &(BatchId, usize)| batches.find(*id)?.0.get(*at);
        poison.delivered(sends.iter().filter_map(carried));
    }

    /// Kafka refused something of a batch: whom to suspect is remembered, the batch itself goes with `Revoked`.
    pub(super) fn refused(&mut self, now: UnixMillis, refused: &Refused) {
        match refused.blame {
            Blame::Late => self.hops.widen_margin(now),
            Blame::Expired => self.batches.expired(now),
            Blame::Record | Blame::Target | Blame::Unclear => {
                if let Some(batch) = self.batches.find(refused.batch) {
                    self.poison.refused(now, batch, refused);
                }
            }
        }
    }

    /// Closes batches, as long as one may be closed and there is something for it.
    pub(super) fn close(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        while self.batches.len() < self.setup.limits.batches_max {
            let opens_at = self.batches.opens_at(now, self.setup.limits.batch_gap);
            if let Some(open_at) = opens_at.filter(|_| !self.memory.is_draining()) {
                self.agenda.wake(open_at);
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
        if self.batches.len() < self.setup.limits.batches_max {
            if let Some(due) = self.agenda.next_due() {
                self.agenda.wake(due);
            }
            if let Some(ripe) = self.hops.ripe_at(self.linger()) {
                self.agenda.wake(ripe);
            }
            if let Some(at) = self.targets.rated().next_at(now) {
                self.agenda.wake(at);
            }
            let times = [
                self.batches.idle_commit_at(),
                self.poison.test_at(),
                self.timers.table().forget_at(),
            ];
            times.into_iter().flatten().for_each(|at| self.agenda.wake(at));
        }
    }

    // Suspects leave in batches of their own.

    fn turn_to_test(&self, now: UnixMillis) -> Test {
        self.poison.turn(now, &self.batches, self.is_strict(), self.memory.is_draining())
    }

    fn idle_test(&mut self, now: UnixMillis) -> Option<Batch> {
        self.poison.yield_turn();
        match self.turn_to_test(now) {
            Test::Now(group) => self.fill_test(now, group),
            Test::Wait | Test::No => None,
        }
    }

    fn fill_test(&mut self, now: UnixMillis, group: u64) -> Option<Batch> {
        let mut builder = BatchBuilder::new(&self.setup, true);
        let test = self.poison.begin_test(group, self.setup.lanes, self.is_strict());
        while builder.room()
            && let Some(suspected) = self.poison.take(&test)
        {
            let Suspected { source, offset, send, order, mark, named, beside } = suspected;
            // A cancel may have come while it was held.
            match named.filter(|named| !self.timers.is_standing(source.lane, *named)) {
                Some(Named { timer_id, version, .. }) => {
                    if self.is_strict() && matches!(send.to, Destination::Lane(_)) {
                        self.strict_order.left(source.lane, (send.due, order));
                    }
                    let named = Some((timer_id, version));
                    self.suppress_record(now, (source, offset), named, send.record);
                    self.agenda.wake(now);
                }
                None => {
                    builder.note(source.lane, &send, order);
                    self.send_off(now, &mut builder, (source, offset), (send, mark), named, beside)
                }
            }
        }
        if builder.is_silent() {
            return None;
        }
        self.seal_batch(now, builder)
    }

    /// Puts a send into a batch, or aside if it is under suspicion. `mark`: it is to be remembered, `named`: the version that
    /// it is of, and `beside`: what leaves with it.
    pub(super) fn load(
        &mut self,
        now: UnixMillis,
        builder: &mut BatchBuilder,
        (source, offset): (Source, Offset),
        (send, order, mark): (Produce, SubmissionOrder, Option<Mark>),
        named: Option<Named>,
        beside: Beside,
    ) {
        match self.poison.group(source, offset, &send.to) {
            Some(group) => {
                let suspected = Suspected { source, offset, send, order, mark, named, beside };
                if let Some(rank) = self.poison.hold(group, suspected) {
                    self.strict_order.lower_floor(source.lane, rank);
                }
            }
            None => self.send_off(now, builder, (source, offset), (send, mark), named, beside),
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
        Beside { timer, copy, submitted, run }: Beside,
    ) {
        let held = send.record.size();
        if let Some(mark) = mark {
            self.batches.hand_over(mark);
            builder.mark(mark);
        }
        let is_hop = matches!(send.to, Destination::Lane(_));
        builder.push(Some((source, offset)), send, held);
        let goes_on = copy.is_some();
        for send in copy.into_iter().chain(submitted) {
            builder.push_beside((source, offset), send);
        }
        match (named, timer) {
            (Some(Named { timer_id, task: Some(after), .. }), Some(record)) => {
                let reason = if is_hop {
                    // A schedule goes on to its next time, and a run waits for its shards.
                    self.timers.set_progress(source.lane, timer_id, after);
                    if let Some(run) = run {
                        self.timers.tasks.set_run(timer_id, *run);
                    }
                    ChangeReason::Reported
                } else {
                    self.dispatched(source.lane, timer_id, after);
                    ChangeReason::Dispatched
                };
                let change = PendingWrite::timer_change(source.lane, record, reason);
                self.take(builder, change);
                if goes_on || is_hop {
                    self.timers.stands_in_tier(source.lane, timer_id);
                }
            }
            (Some(named), Some(record)) => {
                self.timers.end(now, source.lane, named.timer_id);
                let change =
                    PendingWrite::timer_change(source.lane, record, ChangeReason::Delivered);
                self.take(builder, change);
            }
            // From here on it stands in a tier, and nowhere else.
            (Some(named), None) if is_hop => {
                self.timers.stands_in_tier(source.lane, named.timer_id);
            }
            _ => {}
        }
    }

    /// Takes pending writes while there is room. A write that belongs to the next one stays with it.
    pub(super) fn load_ready(&mut self, now: UnixMillis, builder: &mut BatchBuilder) {
        let mut with_next = false;
        while (with_next || builder.room())
            && let Some(mut ready) = self.writes.pop()
        {
            with_next = ready.with_next;
            if let Some((_, timer_id)) = ready.shards
                && let Some(change) = self.shards_now(timer_id)
            {
                ready.settle_shards(change);
            }
            match (ready.done, ready.send) {
                // A move may be under suspicion.
                (Some(done), Some(send)) if matches!(send.to, Destination::Lane(_)) => {
                    self.load(
                        now,
                        builder,
                        done,
                        (send, SubmissionOrder::default(), None),
                        None,
                        Beside::default(),
                    );
                }
                (done, send) => self.take(builder, PendingWrite { done, send, ..ready }),
            }
        }
    }

    /// Puts a write into a batch. If it says something of a shard, its run is told of it in the same batch.
    fn take(&mut self, builder: &mut BatchBuilder, write: PendingWrite) {
        let news = match write.send.as_ref().map(|send| &send.rewrite) {
            Some(HeaderRewrite::Timer(change)) => self.news_of_shard(&change.record),
            _ => None,
        };
        builder.take(write);
        if let Some(news) = news {
            builder.take(PendingWrite::send(news));
        }
    }

    /// Takes dead letters, as long as there is room; fewer if something is due soon, which waits for this batch.
    fn load_letters(&mut self, now: UnixMillis, builder: &mut BatchBuilder) {
        let soon = self.agenda.next_due().is_some_and(|due| due <= now + DUE_SOON);
        let share = if soon { LETTERS_SHARE } else { 1 };
        let limits = &self.setup.limits;
        let (most, bytes_max) = (limits.batch_records_max / share, limits.batch_bytes_max / share);
        let (mut taken, before) = (0, builder.bytes());
        while taken < most.max(1)
            && builder.bytes() - before < bytes_max
            && builder.room()
            && let Some(letter) = self.writes.pop_letter()
        {
            taken += 1;
            builder.take(letter);
        }
    }

    /// Builds one batch, in this order: moves and timer changes; due records in order; ripe hops of few partitions;
    /// dead letters. Nobody waits for dead letters, so due records leave first, however many dead letters there are.
    fn fill(&mut self, now: UnixMillis, out: &mut Vec<Action>) -> Option<Batch> {
        let mut builder = BatchBuilder::new(&self.setup, false);
        self.forget(now);
        self.load_ready(now, &mut builder);
        self.fire_ordered();
        if builder.room() {
            self.release_rated(now);
        }
        self.agenda.settle();
        let mut due = Vec::new();
        let most = self.setup.limits.batch_records_max;
        while builder.room() && self.writes.in_order() < most {
            // In small bites, of which those go back for which there is no room.
            let bite = builder.records_left().min(32);
            self.agenda.pop_due(now, bite, |entry| due.push(entry));
            if due.is_empty() {
                break;
            }
            for entry in due.drain(..) {
                // A schedule or a run may fill a batch alone.
                if builder.room() && self.writes.in_order() < most {
                    self.fire(now, entry, &mut builder, out);
                } else {
                    self.agenda.insert(entry);
                }
            }
        }
        self.take_hops(now, &mut builder);
        // What firing has refused or suppressed goes along.
        self.load_ready(now, &mut builder);
        self.load_letters(now, &mut builder);
        let is_idle = self.batches.idle_commit_at().is_some_and(|at| at <= now);
        if builder.is_silent() && !is_idle {
            // An offset that finishes without a record to send need not be committed at once.
            if !builder.done().is_empty() {
                self.batches.touch();
            }
            self.memory.free(builder.held());
            self.partitions.finish(builder.done());
            return None;
        }
        self.poison.yield_turn();
        self.seal_batch(now, builder)
    }

    fn take_hops(&mut self, now: UnixMillis, builder: &mut BatchBuilder) {
        let setup = Arc::clone(&self.setup);
        let (linger, partitions) = (self.linger(), self.setup.limits.hop_partitions_max);
        let mut refused = Vec::new();
        if !builder.room() {
            return;
        }
        let soon = self.agenda.next_due().is_some_and(|due| due <= now + DUE_SOON);
        let mut left = if soon { HOPS_BESIDE_DUE.max(self.hops.len() / 4) } else { usize::MAX };
        let (mut suppressed, mut back) = (Vec::new(), Vec::new());
        let tiers = setup.topics.ladder.tiers().len();
        let too_late: Vec<Option<Millis>> =
            (0..tiers).map(|tier| self.hops.needs(&setup, now, tier)).collect();
        let Self { poison, hops, timers, .. } = self;
        hops.take(now, (linger, partitions), |tier, lane, entry| {
            if !timers.stands(&entry) {
                suppressed.push(entry);
                return true;
            }
            if !entry.deferred && too_late[tier].is_some_and(|needs| entry.due < now + needs) {
                back.push(entry);
                return true;
            }
            match verdict::seal(&setup, &entry, Kind::Hop) {
                Ok(sealed) => {
                    let named = entry.named();
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
                    let due = if deferred { UnixMillis(u64::MAX) } else { due };
                    let to = Destination::Lane(setup.topics.of_tier(tier));
                    let partition = Some(i32::from(lane.0));
                    let (rewrite, expires) = (HeaderRewrite::State(sealed), None);
                    let send = Produce { to, partition, record, rewrite, due, expires };
                    match poison.group(source, offset, &send.to) {
                        Some(group) => {
                            let (mark, beside) = (None, Beside::default());
                            let held =
                                Suspected { source, offset, send, order, mark, named, beside };
                            poison.hold(group, held);
                        }
                        None => {
                            let held = send.record.size();
                            builder.note(source.lane, &send, order);
                            builder.push(Some((source, offset)), send, held);
                            if let Some(timer_id) = timer_id {
                                timers.stands_in_tier(source.lane, timer_id);
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

    /// A hop that was collected will not be one.
    fn hops_not(&mut self, entry: &PendingRecord) {
        if self.is_strict() {
            self.strict_order.left(entry.source.lane, (entry.due, entry.order));
        }
    }

    /// Finishes the offsets of a batch and adds where reading stands because of it.
    fn seal_batch(&mut self, now: UnixMillis, builder: BatchBuilder) -> Option<Batch> {
        self.partitions.finish(builder.done());
        let mut commits = self.partitions.commits();
        if commits.is_empty() {
            commits.extend(builder.lane().and_then(|lane| self.partitions.fence(lane)));
        }
        self.batches.seal(now, builder, commits)
    }
}
