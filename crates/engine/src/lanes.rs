//! The engine of one thread: all its lanes, from a record read to a batch handed out.
//!
//! ```text
//!            Record               released               due <= now
//!  Kafka ──────────▶ partitions ──────────▶ admission ───────────▶ agenda ──────▶ firing ──▶ batch ──▶ Kafka
//!                                           │  remains > horizon                   │
//!                                           ├──────────────▶ hops ─────────────────┤
//!                                           └──────────────▶ writes ───────────────┘
//!                                                moves, dead letters, timer changes
//! ```
//!
//! [`LaneEngine`] has eleven parts beside its setup. A part keeps what belongs together, alone: its fields are private, and its file says at
//! the top what always holds. A part knows no engine. Where it needs another part, it is given that one to read. The files
//! with `impl LaneEngine` join the parts, and keep nothing.
//!
//! # Invariants
//! 1. Nothing leaves the wheel before its due time by the `now` that was given.
//! 2. An offset is finished in its window when its record is put into a batch, and that batch's commits say so; a
//!    batch that fails takes everything with it (`Revoked`, then `Assigned` from what is committed).
//! 3. Batches are closed only on `Tick`, `Committed` and `Drain`, so that what was read together leaves together.
//! 4. A record with an id fires only when the cancels that were written before its lane was taken over are known, and
//!    never when one of them covers it.
//! 5. Over the memory budget nothing is read. What is held goes away by itself: the wheel within the horizon, hops
//!    within the linger, buffers of far tiers, and what waits for its order, by being dropped and read again later.

mod admission;
mod agenda;
mod apply;
mod backpressure;
mod batch;
mod batches;
mod behind;
mod builder;
mod dead_letters;
mod decided;
mod duplicates;
mod figures;
mod firing;
mod handed;
mod hops;
mod intake_watermark;
mod inventory;
mod lifecycle;
mod lookups;
mod lost;
mod margin;
mod memory;
mod outage;
mod partitions;
mod past;
mod poison;
mod rank;
mod reread;
mod retention;
mod strict_order;
mod suspects;
mod task_steps;
mod tasks;
mod upkeep;
mod writes;

use std::sync::Arc;

use super::header;
use super::hold::{Held, Hold};
use super::messages::{Action, Batch, Destination, Event, HeaderRewrite, Produce, Start};
use super::setup::Setup;
use super::targets::Targets;
use super::timers::{CancelMark, Live};
use super::window::OffsetState;
use super::{BatchId, Lane, Millis, Offset, Record, Source, TopicId, UnixMillis};
use agenda::Agenda;
use batches::Batches;
pub use decided::Decided;
pub use figures::{Figures, Read, TasksOverdue};
use hops::Hops;
use intake_watermark::IntakeWatermarks;
use lifecycle::{CANCEL_MARK_SLACK, Timers};
use memory::Memory;
use partitions::Partitions;
use poison::Poison;
use strict_order::StrictOrder;
use writes::Writes;

/// All lanes of one thread. Pure: see the module's invariants.
#[derive(Debug)]
pub struct LaneEngine {
    setup: Arc<Setup>,
    /// The lanes that run here, and how far each is.
    partitions: Partitions,
    /// What is held, and whether to read.
    memory: Memory,
    /// What is known of timers.
    timers: Timers,
    /// What is known of targets, and what waits for that.
    targets: Targets,
    /// What Kafka may have refused, and what waits for its test.
    poison: Poison,
    /// What waits until it is due.
    agenda: Agenda,
    /// What is due and waits for cancels to be known.
    watermarks: IntakeWatermarks,
    /// What is due and waits for its order.
    strict_order: StrictOrder,
    /// What goes to a tier.
    hops: Hops,
    /// What is decided and waits for a batch.
    writes: Writes,
    /// What is in flight.
    batches: Batches,
}

impl LaneEngine {
    /// An engine without lanes.
    #[must_use]
    pub fn new(setup: Arc<Setup>) -> Self {
        Self {
            partitions: Partitions::new(&setup),
            memory: Memory::default(),
            timers: Timers::new(setup.lanes),
            targets: Targets::new(setup.lanes),
            poison: Poison::new(),
            agenda: Agenda::new(setup.limits.horizon),
            watermarks: IntakeWatermarks::new(&setup),
            strict_order: StrictOrder::new(setup.lanes),
            hops: Hops::new(&setup),
            writes: Writes::default(),
            batches: Batches::new(),
            setup,
        }
    }

    /// Takes one event at `now` and adds the actions that follow from it to `out`.
    ///
    /// `now` is a lower bound of the brokers' time; if it goes back, nothing happens that had not happened before.
    pub fn step(&mut self, now: UnixMillis, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Record { source, offset, appended, record } => {
                self.read(now, source, Held { offset, appended, record }, out);
            }
            Event::Tick => {
                self.tick(now, out);
                self.close(now, out);
            }
            Event::Committed(id) => {
                self.committed(now, id);
                self.tick(now, out);
                self.close(now, out);
            }
            Event::PartlyAcknowledged(sends) => self.partly_acknowledged(&sends),
            Event::Refused(refused) => self.refused(now, &refused),
            Event::Target(name, target) => self.target(now, &name, target),
            Event::TargetOutage(name, away) => self.targets.set_outage(now, &name, away),
            Event::InvalidateTargets(names) => self.targets.invalidate(&names),
            Event::Registry(registry) => self.registry(now, registry),
            Event::Policies(setup) => {
                self.setup = setup;
                self.targets.forget_policies();
            }
            Event::ReadUpTo { source, at } => self.read_up_to(now, source, at),
            Event::Late { source, offset, due } => self.late_hop(source, offset, due),
            Event::Assigned { starts } => self.assigned(now, starts, out),
            Event::TimersLoaded { lane, live, cancel_marks, last } => {
                self.timers_loaded(now, lane, &live, cancel_marks, last, out);
            }
            Event::Expired { lane, timers, tasks } => self.expired(now, lane, timers, &tasks),
            Event::Recalled { lane, timers } => self.recalled(now, lane, timers, out),
            Event::Overdue { lane, timers, more } => self.overdue(now, lane, timers, more),
            Event::Left { lane, records } => self.left(lane, &records),
            Event::Counted { lane, is_complete } => self.counted(now, lane, is_complete),
            Event::Recreated => self.timers.recreate(),
            Event::Revoked => self.reset(now),
            Event::Drain => {
                self.memory.drain();
                self.tick(now, out);
                self.close(now, out);
            }
        }
    }

    /// When to call [`step`](Self::step) with a `Tick` if nothing is told before; `None`: nothing waits for time.
    #[must_use]
    pub fn wake_at(&self) -> Option<UnixMillis> {
        self.agenda.wake_at()
    }

    /// Whether nothing is left that could be finished now: after `Drain`, the process may stop.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.batches.len() == 0
            && self.writes.is_empty()
            && !self.agenda.has_late()
            && self.hops.is_empty()
            && self.poison.test_at().is_none()
    }

    /// Counts for the metrics.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        self.partitions.count(&mut figures);
        self.memory.count(&mut figures);
        self.timers.count(&mut figures);
        self.poison.count(&mut figures);
        self.agenda.count(&mut figures);
        self.watermarks.count(&mut figures);
        self.strict_order.count(&mut figures);
        self.hops.count(&mut figures);
        self.batches.count(&mut figures);
        let first_parked;
        (figures.deferred, figures.put_off_paused, first_parked) = self.targets.counts();
        (figures.over_rate, figures.rated) = self.targets.rated().counts();
        figures.due(first_parked);
        figures
    }

    /// The lanes that run here, ascending.
    #[must_use]
    pub fn lanes(&self) -> Vec<Lane> {
        self.partitions.lanes().collect()
    }

    /// The pending offsets of each partition that runs here, as far as it was read.
    pub fn read_positions(&self) -> impl Iterator<Item = Read> {
        self.partitions.read_positions()
    }

    // Lanes come and go.

    fn reset(&mut self, now: UnixMillis) {
        let setup = &*self.setup;
        self.partitions.reset(setup);
        self.memory.reset();
        self.timers.reset(setup.lanes);
        self.targets.reset(now, setup.lanes);
        self.poison.reset();
        self.agenda = Agenda::new(setup.limits.horizon);
        self.watermarks = IntakeWatermarks::new(setup);
        self.strict_order = StrictOrder::new(setup.lanes);
        self.hops.reset(setup);
        self.writes = Writes::default();
        self.batches.reset();
    }

    fn assigned(&mut self, now: UnixMillis, starts: Vec<Start>, out: &mut Vec<Action>) {
        self.reset(now);
        for start in starts.iter().filter(|start| start.gone) {
            self.timers.calling.has_shrunk(start.source.lane);
        }
        let rest = self.partitions.assign(&self.setup, starts);
        out.extend(rest.into_iter().map(Action::Pause));
        let partitions = &self.partitions;
        self.poison.assigned(now, |source, offset| {
            partitions.get(source).is_some_and(|hold| !hold.is_before(offset))
        });
    }

    /// Takes in what holds of a lane's timers; once that is all of it, the lane goes to work.
    fn timers_loaded(
        &mut self,
        now: UnixMillis,
        lane: Lane,
        live: &[Live],
        cancel_marks: Vec<CancelMark>,
        last: bool,
        out: &mut Vec<Action>,
    ) {
        if !self.partitions.runs(lane) || self.partitions.is_known(lane) {
            return;
        }
        self.timers.know(lane, live, cancel_marks, self.is_full());
        if !last {
            return;
        }
        let (forgets_from, ends_from) = (now + CANCEL_MARK_SLACK, now + past::CLOCKS_APART);
        for (source, held) in self.partitions.know(lane, forgets_from, ends_from) {
            self.accept(now, source, held, out);
        }
        for source in self.partitions.of_lane(lane) {
            self.release_due(now, source, out);
        }
        self.agenda.wake(now);
    }

    // From a partition to its admission.

    fn read(&mut self, now: UnixMillis, source: Source, held: Held, out: &mut Vec<Action>) {
        let size = held.record.size();
        let had_room = (!self.memory.is_stopped(), !self.is_over_hard_limit());
        self.strict_order.end_reread(source, held.offset);
        let Some(hold) = self.partitions.get_mut(source) else { return };
        if hold.is_before(held.offset) {
            self.read_again(now, source, held, out);
        } else {
            hold.read(held);
            self.memory.buffer(size);
            self.release_due(now, source, out);
        }
        self.update_fetching(now, source, out);
        if had_room.0 && self.memory.is_stopped() || had_room.1 && self.is_over_hard_limit() {
            // At once everywhere: every partition could hand over one more large record.
            self.update_fetching_everywhere(now, out);
        }
    }

    /// Lets go of what may go, in one partition.
    fn release_due(&mut self, now: UnixMillis, source: Source, out: &mut Vec<Action>) {
        let is_intake = self.setup.topics.is_intake(source.topic);
        let is_known = self.partitions.is_known(source.lane);
        let is_of_workers = self.setup.topics.results() == Some(source.topic);
        if (is_intake || is_of_workers) && !is_known {
            // What commands and results do depends on what is pending.
            return;
        }
        let mut any = false;
        while let Some((held, state)) = self.partitions.release(now, source) {
            let size = held.record.size();
            self.memory.unbuffer(size);
            any = true;
            match state {
                OffsetState::New | OffsetState::Known if !is_known && has_id(&held.record) => {
                    self.partitions.keep_early(source, held);
                }
                OffsetState::New | OffsetState::Known => self.accept(now, source, held, out),
                OffsetState::Done => {
                    self.memory.free(size);
                    self.batches.touch();
                }
            }
        }
        let head = self.partitions.get(source).and_then(Hold::head);
        if let Some(head) = head.filter(|head| *head > now) {
            self.agenda.wake(head);
        }
        if is_intake {
            self.released(source);
        }
        if any {
            self.wake_waiting(source.lane);
        }
    }
}

/// Whether a record has an id, valid or not.
fn has_id(record: &Record) -> bool {
    record.headers().any(|(name, _)| name == header::ID.as_bytes())
}

#[cfg(test)]
mod tests;
