//! From due to a batch: what a due record waits for, and its delivery.
//!
//! # Invariants
//! 1. A record with an id fires once its lane's gate is open and its intake is known up to `settle` before it is due. In
//!    strict order a keyed record fires when it is its turn.
//! 2. Before anything is produced to a target, the target is known and may be written to.
//! 3. A version that is pending no more never fires.
//! 4. Nothing goes to a target that is paused, and no more to one than its rate allows.

use std::sync::Arc;

use super::super::header::Code;
use super::super::messages::{Action, Destination, HeaderRewrite, Produce};
use super::super::setup::Arrival;
use super::super::state::SubmissionOrder;
use super::super::verdict::{self, Delivery, PendingRecord};
use super::builder::BatchBuilder;
use super::handed::{Mark, There};
use super::lifecycle::Named;
use super::poison::Beside;
use super::strict_order::Elsewhere;
use super::{Lane, LaneEngine, Millis, Offset, Source, TopicId, UnixMillis};

/// Where commands about a timer stand: in the intake by which it came, and in the main one, to which instances write them.
fn command_intakes(intake: u16, lane: Lane) -> impl Iterator<Item = Source> {
    let main = Some(0).filter(|_| intake != 0);
    [Some(intake), main]
        .into_iter()
        .flatten()
        .map(move |topic| Source { topic: TopicId(topic), lane })
}

impl LaneEngine {
    pub(super) fn is_strict(&self) -> bool {
        self.setup.limits.arrival == Arrival::Strict
    }

    // What it waits for.

    /// Returns a record that may fire, and keeps one that must wait.
    pub(super) fn let_through(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
    ) -> Option<Box<PendingRecord>> {
        let (lane, due) = (entry.source.lane, entry.due);
        let Self { setup, partitions, poison, timers, strict_order, .. } = self;
        let elsewhere = Elsewhere { setup, partitions, poison, past: &timers.past };
        let Some(entry) = strict_order.let_arrive(elsewhere, entry) else {
            self.want_all(now, lane, due);
            return None;
        };
        if entry.timer_id.is_none() {
            return Some(entry);
        }
        // It is refused: nobody asks what its intake says.
        let Some(intake) = entry.intake else { return Some(entry) };
        let settle = self.setup.limits.settle;
        let is_open = self.partitions.is_open(lane);
        let holds_it = |source: &Source| {
            let hold = self.partitions.get(*source);
            let is_read = |upto: UnixMillis| settle.is_none_or(|settle| upto >= due - settle);
            hold.is_some_and(|hold| !(is_open && is_read(hold.gone_upto())))
        };
        let Some(source) = command_intakes(intake, lane).find(holds_it) else {
            return Some(entry);
        };
        self.watermarks.wait(source, entry);
        if settle.is_some() {
            self.want_commands(now, intake, lane, due);
        }
        None
    }

    /// Where records may be that are to fire before others.
    pub(super) fn elsewhere(&self) -> Elsewhere<'_> {
        let Self { setup, partitions, poison, timers, .. } = self;
        Elsewhere { setup, partitions, poison, past: &timers.past }
    }

    /// Records of a partition were let go, or there are none: fires the records that have waited for that.
    pub(super) fn released(&mut self, source: Source) {
        if self.partitions.try_open(source.lane) {
            for topic in 0..self.setup.topics.intakes.len() {
                self.fire_waiting(Source { topic: TopicId(topic as u16), ..source });
            }
        }
        self.fire_waiting(source);
    }

    fn fire_waiting(&mut self, source: Source) {
        if !self.partitions.is_open(source.lane) {
            return;
        }
        let gone_upto = self.partitions.get(source).map_or(UnixMillis(0), |hold| hold.gone_upto());
        let free = self.watermarks.take_free(source, gone_upto, self.setup.limits.settle);
        if free.len() > 0 {
            self.agenda.put_back(free);
            // At the next tick.
            self.agenda.wake(UnixMillis(0));
        }
    }

    /// Puts records whose turn has come back among those that are due.
    pub(super) fn fire_ordered(&mut self) {
        if self.is_strict() {
            let Self { setup, partitions, poison, timers, strict_order, .. } = self;
            let elsewhere = Elsewhere { setup, partitions, poison, past: &timers.past };
            self.agenda.put_back(strict_order.take_free(elsewhere));
        }
    }

    /// A lane has made progress: the next tick checks which waiting records may fire.
    pub(super) fn wake_waiting(&mut self, lane: Lane) {
        if self.strict_order.first(lane).is_some() {
            self.agenda.wake(UnixMillis(0));
        }
    }

    // What is to be known for that.

    /// A record is due then, so the partition must be known to be read up to there.
    pub(super) fn want(&mut self, now: UnixMillis, source: Source, due: UnixMillis) {
        let known = (&*self.setup, &self.partitions);
        if let Some(at) = self.watermarks.want(now, known, source, due) {
            self.agenda.wake(at);
        }
    }

    /// A timer that came by this intake is due then, so commands about it must be known up to there.
    pub(super) fn want_commands(
        &mut self,
        now: UnixMillis,
        intake: u16,
        lane: Lane,
        due: UnixMillis,
    ) {
        command_intakes(intake, lane).for_each(|source| self.want(now, source, due));
    }

    /// A record with a key is due then, so all partitions of its lane must be known to be read up to there.
    pub(super) fn want_all(&mut self, now: UnixMillis, lane: Lane, due: UnixMillis) {
        let results = self.setup.topics.results();
        for source in self.partitions.of_lane(lane).filter(|source| Some(source.topic) != results) {
            self.want(now, source, due + Millis(1));
        }
    }

    /// Lists the end offsets of the partitions for which it is time.
    pub(super) fn list_end_offsets(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        // What waits longest must know of everything that may hold it up.
        for lane in (0..self.setup.lanes).map(Lane) {
            if let Some((due, _)) = self.strict_order.first(lane) {
                self.want_all(now, lane, due);
            }
        }
        let (ask, next) = self.watermarks.list(now, (&self.setup, &self.partitions));
        if !ask.is_empty() {
            out.push(Action::ListEndOffsets(ask));
        }
        if let Some(at) = next {
            self.agenda.wake(at);
        }
    }

    /// A partition was read up to where it ended at a time.
    pub(super) fn read_up_to(&mut self, now: UnixMillis, source: Source, at: UnixMillis) {
        let Some(hold) = self.partitions.get_mut(source) else { return };
        hold.passed(at);
        if at > UnixMillis(0) {
            let first = self.watermarks.answered(source);
            // Records that wait for a later time ask again.
            self.agenda.wake(now);
            if let Some(due) = first.filter(|_| self.setup.limits.settle.is_some()) {
                self.want(now, source, due);
            }
        }
        self.released(source);
    }

    /// A hop was appended late, and is committed.
    pub(super) fn late_hop(&mut self, source: Source, offset: Offset, due: UnixMillis) {
        self.hops.count_late();
        let hold = self.partitions.get(source);
        if self.is_strict() && hold.is_some_and(|hold| !hold.is_gone(offset)) {
            // Of those that are due then the first that may be meant.
            let hops = self.batches.hops();
            let ranks = hops.filter(|(lane, rank)| *lane == source.lane && rank.0 == due);
            let rank = ranks.map(|(_, rank)| *rank).min();
            let rank = rank.unwrap_or_else(|| (due, SubmissionOrder::default()));
            self.strict_order.note_late(source, offset, rank);
        }
    }

    /// Whether the first that waits in the lane for its order waits for this partition: the shell should be quick to tell
    /// how far it is read.
    #[must_use]
    pub fn is_awaited(&self, source: Source) -> bool {
        self.strict_order.is_awaited(self.elsewhere(), source)
    }

    // Its delivery.

    /// Puts a due record into a batch, if it may leave now.
    pub(super) fn fire(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
        builder: &mut BatchBuilder,
        out: &mut Vec<Action>,
    ) {
        if !self.timers.stands(&entry) {
            return self.suppress(now, *entry, None);
        }
        let Some(entry) = self.unless_ahead(now, entry) else { return };
        let Some(entry) = self.let_through(now, entry) else { return };
        let Some(entry) = self.unless_silent(now, entry) else { return };
        let Some(entry) = self.dispatch(now, entry, builder) else { return };
        let Some(entry) = self.unless_paused(now, entry) else { return };
        let setup = Arc::clone(&self.setup);
        let supersedes = entry
            .timer_id
            .and_then(|timer_id| self.timers.table().replaced(entry.source.lane, timer_id));
        // A record that may be in its target must not become a dead letter, too. A record that certainly is there is
        // finished once it has expired.
        let mark = (entry.expires.is_some() && !setup.limits.aborts).then(|| Mark::of(&entry));
        let there = mark.and_then(|mark| self.batches.is_there(mark));
        let is_copy = there == Some(There::Surely) && entry.timer_id.is_none();
        let hand = (there.is_none() || is_copy).then(|| self.batches.expiry_margin(now));
        let checked = match verdict::allowed(&setup, &self.targets, entry.intake, &entry.target) {
            Err(refusal) => Err(refusal),
            Ok(()) => match self.look(now, &entry.target, None, out) {
                None => {
                    if let Some(entry) = self.targets.park(&setup.limits, entry) {
                        self.defer(now, entry);
                    }
                    return;
                }
                Some(target) => {
                    let told = (supersedes, self.traced_turn(&entry));
                    verdict::deliver(&entry, (now, hand), target, told).and_then(|delivery| {
                        let fresh = setup.limits.target_fresh;
                        // Admission lets a poisonous one through that is in its target already.
                        self.poison.permits_record(entry.source, entry.offset)?;
                        self.poison.permits_target(now, fresh, &entry.target).map(|()| delivery)
                    })
                }
            },
        };
        match checked {
            Ok(delivery) => self.deliver(now, entry, delivery, mark, builder),
            Err(refusal) if is_copy && refusal.code == Code::Expired => self.finish(&entry, None),
            Err(refusal) if self.may_have_grown(now, &entry.target, &refusal, out) => {
                if let Some(entry) = self.targets.park(&setup.limits, entry) {
                    self.refuse(now, *entry, refusal);
                }
            }
            Err(refusal) if entry.task.is_some() => {
                if let Some(entry) = self.try_again(now, entry, &refusal) {
                    self.refuse(now, *entry, refusal);
                }
            }
            Err(refusal) => self.refuse(now, *entry, refusal),
        }
    }

    /// Delivers a record, if its partition has a leader and the rate of its target lets it go. `mark`: remember it.
    fn deliver(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
        Delivery { partition, added, timer, task, with_executor: awaited }: Delivery,
        mark: Option<Mark>,
        builder: &mut BatchBuilder,
    ) {
        let Some(partition) = self.targets.partition_for(&entry, partition) else {
            return self.defer(now, entry);
        };
        let Some(mut entry) = self.unless_over_rate(now, entry) else { return };
        let named = entry.named().map(|named| Named { task: awaited, ..named });
        let copy = awaited.map(|after| self.copy_of_awaited(now, &mut entry, after)).transpose();
        let copy = match copy {
            Ok(copy) => copy,
            Err(refusal) => return self.refuse(now, *entry, refusal),
        };
        let task = task.filter(|_| timer.is_some());
        let follow_up = task.and_then(|progress| self.follow_up(now, &entry, progress, None));
        let PendingRecord {
            source,
            offset,
            record,
            target,
            due,
            order,
            first_appended,
            expires,
            ..
        } = *entry;
        let rewrite = HeaderRewrite::Deliver { added, from: source.topic, first_appended };
        let to = Destination::Target(target);
        let send = Produce { to, partition, record, rewrite, due, expires };
        let submitted = follow_up.into_iter().collect();
        let beside = Beside { timer, copy, submitted, ..Beside::default() };
        self.load(now, builder, (source, offset), (send, order, mark), named, beside);
    }
}
