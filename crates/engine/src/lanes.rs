//! The engine of one thread: all its lanes, from a record read to a batch handed out.
//!
//! ```text
//!            Record            released           due <= now
//!  Kafka ──────────▶ hold ──────────────▶ accept ───────────▶ wheel ───────────▶ deliver ──▶ batch ──▶ Kafka
//!           (one per partition)             │  remains > horizon                   │
//!                                           ├──────────────▶ hop buffer (hops) ────┤
//!                                           └── other lane, refused ───────────────┘
//! ```
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

mod backpressure;
mod batch;
mod batches;
mod behind;
mod duplicates;
mod handed;
mod intake_watermark;
mod inventory;
mod lifecycle;
mod lookups;
mod lost;
mod margin;
mod outage;
mod past;
mod poison;
mod reread;
mod retention;
mod strict_order;
mod suspects;
mod writes;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::header::{self, Code, Refusal};
use super::hold::{Held, Hold, Turn};
use super::hop_buffer::HopBuffer;
use super::messages::{
    Action, Answer, Batch, ChangeReason, Commit, DeadLetter, Destination, Event,
    HeaderRewrite, Outcome, Produce, Start, Target,
};
use super::setup::{Setup, Tracking};
use super::state::{Kind, Sealed};
use super::timers::{About, CancelMark, Live, Remembered, TimerId, Version};
use super::verdict::{self, Known, Origin, PendingRecord, Verdict, refusal};
use super::wheel::Wheel;
use super::window::{Began, Standing, Window};
use super::{BatchId, Lane, Millis, Offset, Record, Source, TopicId, UnixMillis};
use duplicates::Duplicates;
use batches::Batches;
use intake_watermark::IntakeWatermark;
use lifecycle::Fate;
use lookups::Parked;
pub use lost::After;
use lost::Calling;
use margin::Margin;
use past::Past;
use retention::Retention;
use strict_order::StrictOrder;
use poison::Poison;
use writes::{PendingWrite, Writes};

/// Counts since the start, and what is held now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes of records held: buffers, wheel, parked, hop buffer, batches.
    pub memory_bytes: usize,
    /// Records in the wheel.
    pub waiting: usize,
    /// Lanes that run here.
    pub lanes: usize,
    /// Partitions that are paused.
    pub paused: usize,
    /// The fullest window, in thousandths of what a commit can say; at 1000 its partition is not read.
    pub window_permille: u32,
    /// Pending records that were gone when their partition was read again: deleted under us.
    pub lost: u64,
    /// Partitions whose committed metadata could not be read: their lanes rest until somebody has looked.
    pub unreadable: u64,
    /// Records that hopped again to free a window or memory.
    pub spilled: u64,
    /// Due records that were deferred: they went back to a tier because of an outage of their target.
    pub deferred: u64,
    /// Records and targets that Kafka may have refused, and that are being found out about.
    pub suspects: usize,
    /// Groups of suspects that failed and were halved.
    pub halvings: u64,
    /// Timers that are pending.
    pub live: usize,
    /// Timers that have a cancel mark.
    pub remembered: usize,
    /// Due records with an id that wait until the lane knows that no cancel was there in time.
    pub gated: usize,
    /// Due records with a key that wait for their order.
    pub ordered: usize,
    /// Records that wait to hear what has ended of their timer.
    pub recalling: usize,
    /// Hops that came to stand later than their tier needs and were committed, counted once for a partition and batch.
    pub late_hops: u64,
    /// Records whose id was pending already: nothing was done with them.
    pub duplicates: u64,
    /// Pending versions that another one replaced.
    pub superseded: u64,
    /// Timers that were overdue and whose records were gone.
    pub lost_timers: u64,
    /// When the record is due that is the first of all in memory that are not in their targets.
    pub first_due: Option<UnixMillis>,
}

/// How far a partition was read, and what of that is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The partition.
    pub source: Source,
    /// One past the last offset read.
    pub upto: Offset,
    /// Offsets below that are pending.
    pub pending: usize,
}

/// How far the records of a lane that have an id may go.
#[derive(Debug, Default)]
struct Gate {
    /// All is known of the lane's timers: it may decide.
    is_known: bool,
    /// Cancel marks, and timers that have ended, are forgotten from then on.
    forgets_from: UnixMillis,
    /// Whatever ended since then has ended here.
    ends_from: UnixMillis,
    /// All that stood in the lane's intakes when it was taken over was let go: they may fire.
    is_open: bool,
    /// What tiers have let go before anything could be decided about it.
    early: Vec<(Source, Held)>,
}

/// All lanes of one thread. Pure: see the module's invariants.
#[derive(Debug)]
pub struct LaneEngine {
    setup: Arc<Setup>,
    /// By lane topic, then lane; `None` where this thread does not run the lane.
    holds: Vec<Vec<Option<Hold>>>,
    wheel: Wheel<Box<PendingRecord>>,
    hop_buffer: HopBuffer<Box<PendingRecord>>,
    writes: Writes,
    batches: Batches,
    poison: Poison,
    strict_order: StrictOrder,
    /// What hops take to be appended.
    hops_margin: Margin,
    /// Due records that had to wait for something: they go back into the wheel, which has them in order.
    late: VecDeque<Box<PendingRecord>>,
    timers: Remembered,
    retention: Retention,
    past: Past,
    duplicates: Duplicates,
    calling: Calling,
    /// The main intake was recreated.
    is_recreated: bool,
    /// By lane.
    gates: Vec<Gate>,
    /// By lane topic, then lane.
    intake_watermarks: Vec<Vec<IntakeWatermark>>,
    targets: HashMap<Arc<str>, Known>,
    /// With more names than this those that no record is for are forgotten.
    targets_max: usize,
    parked: Parked,
    /// Bytes in the holds' buffers, which may take a quarter of the budget together.
    held_bytes: usize,
    /// Reading is stopped: over the budget, until it is well below it.
    stopped: bool,
    /// Not tried to make room, or to free windows, before these.
    spill_at: UnixMillis,
    unblock_at: UnixMillis,
    draining: bool,
    figures: Figures,
    /// Nothing changes before this unless something is told.
    wake: Option<UnixMillis>,
    hops_limit: u16,
}

impl LaneEngine {
    /// An engine without lanes.
    #[must_use]
    pub fn new(setup: Arc<Setup>) -> Self {
        let topics = setup.topics.names().len();
        let limits = &setup.limits;
        // Spills and large records hop more often than the ladder alone would have it.
        let hops = setup
            .topics
            .ladder
            .hops_max(limits.max_delay, limits.large_horizon.min(limits.horizon));
        Self {
            holds: (0..topics).map(|_| (0..setup.lanes).map(|_| None).collect()).collect(),
            wheel: Wheel::new(limits.horizon),
            hop_buffer: HopBuffer::new(setup.topics.ladder.tiers().len()),
            writes: Writes::default(),
            batches: Batches::new(),
            poison: Poison::new(),
            late: VecDeque::new(),
            timers: Remembered::new(setup.lanes),
            retention: Retention::default(),
            past: Past::default(),
            duplicates: Duplicates::default(),
            calling: Calling::default(),
            is_recreated: false,
            gates: (0..setup.lanes).map(|_| Gate::default()).collect(),
            strict_order: StrictOrder::new(setup.lanes),
            hops_margin: Margin::new(strict_order::MARGIN),
            intake_watermarks: (0..topics)
                .map(|_| (0..setup.lanes).map(|_| IntakeWatermark::default()).collect())
                .collect(),
            targets: HashMap::new(),
            targets_max: lookups::TARGETS_MAX,
            parked: Parked::default(),
            held_bytes: 0,
            stopped: false,
            spill_at: UnixMillis(0),
            unblock_at: UnixMillis(0),
            draining: false,
            figures: Figures::default(),
            wake: None,
            hops_limit: u16::try_from(hops)
                .unwrap_or(u16::MAX)
                .saturating_mul(2)
                .saturating_add(64),
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
            Event::Refused(refused) => self.refused(now, &refused),
            Event::Target(name, target) => self.target(now, &name, target),
            Event::TargetOutage(name, partitions) => self.target_outage(now, &name, partitions),
            Event::InvalidateTargets(names) => self.invalidate_targets(&names),
            Event::Policies(setup) => {
                self.setup = setup;
                for known in self.targets.values_mut() {
                    known.allowed = 0;
                }
            }
            Event::ReadUpTo { source, at } => self.read_up_to(now, source, at),
            Event::Late { source, offset, due } => self.late_hop(source, offset, due),
            Event::Assigned { starts } => self.assigned(now, starts, out),
            Event::TimersLoaded { lane, live, cancel_marks, last } => {
                self.timers_loaded(now, lane, &live, cancel_marks, last, out);
            }
            Event::Expired { lane, timers } => self.expired(now, lane, timers),
            Event::Recalled { lane, timers } => self.recalled(now, lane, timers, out),
            Event::Overdue { lane, timers, more } => self.overdue(now, lane, timers, more),
            Event::Left { lane, records } => self.left(lane, &records),
            Event::Counted { lane, whole } => self.counted(now, lane, whole),
            Event::Recreated => self.is_recreated = true,
            Event::Revoked => self.reset(),
            Event::Drain => {
                self.draining = true;
                self.tick(now, out);
                self.close(now, out);
            }
        }
    }

    /// When to call [`step`](Self::step) with a `Tick` if nothing is told before; `None`: nothing waits for time.
    #[must_use]
    pub fn wake_at(&self) -> Option<UnixMillis> {
        self.wake
    }

    /// Whether nothing is left that could be finished now: after `Drain`, the process may stop.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.batches.len() == 0
            && self.writes.is_empty()
            && self.late.is_empty()
            && self.hop_buffer.is_empty()
            && self.poison.test_at().is_none()
    }

    /// Counts for the metrics.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let holds = || self.holds.iter().flatten().flatten();
        let (suspects, halvings) = self.poison.counts();
        Figures {
            waiting: self.wheel.len(),
            lanes: self.holds.first().map_or(0, |lanes| lanes.iter().flatten().count()),
            paused: holds().filter(|hold| hold.is_paused()).count(),
            suspects,
            halvings,
            window_permille: holds().map(|hold| hold.window.fill_permille()).max().unwrap_or(0),
            live: self.timers.live_len(),
            remembered: self.timers.cancel_marks_len(),
            gated: self.gated(),
            ordered: self.strict_order.waiting(),
            recalling: self.past.waiting(),
            first_due: self.first_due(),
            ..self.figures
        }
    }

    /// When the first of the records in memory is due that are not committed in their targets, whatever they wait for.
    fn first_due(&self) -> Option<UnixMillis> {
        let parked = self.targets.values().flat_map(|known| &known.parked);
        let watermarks = self.intake_watermarks.iter().flatten().map(IntakeWatermark::first_due);
        let waiting = [
            self.wheel.next_due(),
            self.strict_order.first_due(),
            self.past.first_due(),
            self.poison.first_due(),
            self.batches.first_due(),
        ];
        let entries = self.late.iter().chain(parked).map(|entry| entry.due);
        entries
            .chain(watermarks.flatten())
            .chain(waiting.into_iter().flatten())
            .min()
    }

    /// The lanes that run here, ascending.
    #[must_use]
    pub fn lanes(&self) -> Vec<Lane> {
        let held = self.holds.first().into_iter().flatten().enumerate();
        held.filter_map(|(lane, hold)| hold.as_ref().map(|_| Lane(lane as u16))).collect()
    }

    /// The pending offsets of each partition that runs here, as far as it was read.
    pub fn standings(&self) -> impl Iterator<Item = Read> {
        self.holds.iter().enumerate().flat_map(|(topic, holds)| {
            holds.iter().enumerate().filter_map(move |(lane, hold)| {
                let window = &hold.as_ref()?.window;
                let source = Source { topic: TopicId(topic as u16), lane: Lane(lane as u16) };
                Some(Read { source, upto: window.upto(), pending: window.pending() })
            })
        })
    }

    fn hold(&mut self, source: Source) -> Option<&mut Hold> {
        self.holds
            .get_mut(usize::from(source.topic.0))?
            .get_mut(usize::from(source.lane.0))?
            .as_mut()
    }

    fn wake(&mut self, at: UnixMillis) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    // Lanes come and go.

    fn reset(&mut self) {
        let fresh = Self::new(Arc::clone(&self.setup));
        let mut old = std::mem::replace(self, fresh);
        self.figures = Figures { memory_bytes: 0, ..old.figures };
        self.draining = old.draining;
        self.hops_margin = old.hops_margin;
        self.calling = old.calling.anew();
        old.batches.reset();
        self.batches = old.batches;
        old.poison.reset();
        self.poison = old.poison;
    }

    fn assigned(&mut self, now: UnixMillis, starts: Vec<Start>, out: &mut Vec<Action>) {
        self.reset();
        let topics = self.holds.len();
        let mut given = vec![0; usize::from(self.setup.lanes)];
        for start in &starts {
            if start.gone {
                self.calling.has_shrunk(start.source.lane);
            }
            if usize::from(start.source.topic.0) < topics
                && let Some(count) = given.get_mut(usize::from(start.source.lane.0))
            {
                *count += 1;
            }
        }
        let mut windows = Vec::with_capacity(starts.len());
        for start in &starts {
            let window = Window::load(start.next, &start.metadata).ok();
            if window.is_none()
                && let Some(count) = given.get_mut(usize::from(start.source.lane.0))
            {
                // The commit does not tell which offsets above the watermark are done. Reading on might deliver twice.
                *count = 0;
                self.figures.unreadable += 1;
            }
            windows.push(window);
        }
        for (Start { source, next, end, .. }, window) in starts.into_iter().zip(windows) {
            let whole = given.get(usize::from(source.lane.0)) == Some(&topics);
            let (Some(window), true) = (window, whole) else {
                // Not all of the lane is here (a ladder is being changed), or its commit is not ours: it rests.
                out.push(Action::Pause(source));
                continue;
            };
            let wait = self
                .setup
                .topics
                .tier_of(source.topic)
                .map_or(Millis(0), |tier| self.setup.topics.ladder.tiers()[tier].wait());
            self.holds[usize::from(source.topic.0)][usize::from(source.lane.0)] =
                Some(Hold::new(wait, (next, end), window));
        }
        let holds = &self.holds;
        self.poison.assigned(now, |Source { topic, lane }, offset| {
            let of =
                holds.get(usize::from(topic.0)).and_then(|lanes| lanes.get(usize::from(lane.0)));
            of.and_then(Option::as_ref).is_some_and(|hold| !hold.is_before(offset))
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
        let at = usize::from(lane.0);
        let runs = self.holds.first().and_then(|holds| holds.get(at)).is_some_and(Option::is_some);
        if !runs || self.gates[at].is_known {
            return;
        }
        self.know(lane, live, cancel_marks);
        if !last {
            return;
        }
        self.gates[at].is_known = true;
        self.gates[at].forgets_from = now + lifecycle::CANCEL_MARK_SLACK;
        self.gates[at].ends_from = now + past::CLOCKS_APART;
        for (source, held) in std::mem::take(&mut self.gates[at].early) {
            self.accept(now, source, held, out);
        }
        for topic in 0..self.holds.len() {
            self.release_due(now, Source { topic: TopicId(topic as u16), lane }, out);
        }
        self.wake(now);
    }

    // From a partition to the wheel or the hop buffer.

    fn read(&mut self, now: UnixMillis, source: Source, held: Held, out: &mut Vec<Action>) {
        let size = held.record.size();
        let room = (!self.stopped, !self.is_over_hard_limit());
        self.end_reread(source, held.offset);
        let Some(hold) = self.hold(source) else { return };
        if hold.is_before(held.offset) {
            self.read_again(now, source, held, out);
        } else {
            hold.read(held);
            self.figures.memory_bytes += size;
            self.held_bytes += size;
            self.release_due(now, source, out);
        }
        self.update_fetching(now, source, out);
        if room.0 && self.stopped || room.1 && self.is_over_hard_limit() {
            // At once everywhere: every partition could hand over one more large record.
            self.update_fetching_everywhere(now, out);
        }
    }

    /// Lets go of what may go, in one partition.
    fn release_due(&mut self, now: UnixMillis, source: Source, out: &mut Vec<Action>) {
        let is_intake = usize::from(source.topic.0) < self.setup.topics.intakes.len();
        let is_known = self.gates.get(usize::from(source.lane.0)).is_some_and(|gate| gate.is_known);
        if is_intake && !is_known {
            // What its commands do depends on what is pending.
            return;
        }
        let mut any = false;
        while let Some(hold) = self.hold(source)
            && let Some((held, began)) = hold.release(now)
        {
            let size = held.record.size();
            self.held_bytes -= size;
            any = true;
            let Began { standing, lost } = began;
            self.figures.lost += u64::from(lost);
            match standing {
                Standing::New | Standing::Known if !is_known && has_id(&held.record) => {
                    self.gates[usize::from(source.lane.0)].early.push((source, held));
                }
                Standing::New | Standing::Known => self.accept(now, source, held, out),
                Standing::Done => {
                    self.figures.memory_bytes -= size;
                    self.batches.touch();
                }
            }
        }
        if let Some(hold) = self.hold(source)
            && let Some(head) = hold.head()
            && head > now
        {
            self.wake(head);
        }
        if is_intake {
            self.let_go(source);
        }
        if any {
            self.wake_waiting(source.lane);
        }
    }

    fn accept(&mut self, now: UnixMillis, source: Source, held: Held, out: &mut Vec<Action>) {
        let setup = Arc::clone(&self.setup);
        let Held { offset, appended, record } = held;
        let verdict = verdict::accept(&setup, &self.targets, (source, offset), appended, record);
        match self.with_version(source, verdict) {
            Verdict::Cancel(entry) | Verdict::Wait(entry) => self.decide(now, entry, out),
            Verdict::Move(entry, lane) => match self.checked_move(&entry) {
                Ok((intake, sealed)) => {
                    let PendingRecord { record, due, .. } = *entry;
                    let send = Produce {
                        to: Destination::Lane(intake),
                        partition: Some(i32::from(lane.0)),
                        record,
                        rewrite: HeaderRewrite::State(sealed),
                        due,
                        expires: None,
                    };
                    let done = Some((source, offset));
                    self.writes.push(PendingWrite::of(done, send));
                }
                Err(refusal) => {
                    let has_id = entry.timer_id.is_some();
                    let letter = self.letter(source, offset, appended, entry.record, refusal);
                    self.bury(letter, has_id);
                }
            },
            Verdict::Refuse(record, refusal) => {
                let timer_id =
                    asked(&record).filter(|_| self.setup.topics.tier_of(source.topic).is_none());
                let outcome = Outcome::Refused(refusal.code);
                let unborn = verdict::unborn(&setup, source, offset, appended, &record);
                let unborn = unborn.filter(|(timer_id, _)| self.is_news(source.lane, *timer_id));
                let said = unborn.map(|(timer_id, told)| (timer_id, told(refusal.code)));
                let letter = self.letter(source, offset, appended, record, refusal);
                // A refused caller gets no other answer.
                let about = About::Before(Version { first_appended: appended, offset });
                let answer =
                    timer_id.map(|timer_id| Answer { source, offset, timer_id, about, outcome });
                let letter = PendingWrite { answer, ..letter };
                match said {
                    Some((timer_id, said)) => {
                        self.bury_unborn(now, (source.lane, timer_id), letter, said);
                    }
                    None => self.writes.push_letter(letter),
                }
            }
        }
    }

    /// Decides what becomes of a record of this lane, once all is known that counts for that.
    fn decide(&mut self, now: UnixMillis, entry: Box<PendingRecord>, out: &mut Vec<Action>) {
        let Some((mut entry, past)) = self.with_past(now, entry) else { return };
        self.recognise(&mut entry, past);
        if matches!(entry.origin, Origin::Cancel(_)) {
            return self.cancel(now, *entry);
        }
        let fate = self.decide_fate(now, &entry, past);
        if !matches!(fate, Fate::Aside(_)) {
            self.no_more_aside(&entry);
        }
        if let Some(entry) = self.drop_noop(entry, fate, now) {
            self.admit(now, entry, fate, out);
        }
    }

    /// A record that goes on: to its target, down the ladder, or to the dead letters.
    fn admit(
        &mut self,
        now: UnixMillis,
        mut entry: Box<PendingRecord>,
        fate: Fate,
        out: &mut Vec<Action>,
    ) {
        if let Fate::Aside(of) = fate {
            return self.set_aside(now, of, entry);
        }
        entry.decided = matches!(fate, Fate::Live);
        if let Some(timer_id) = entry.timer_id.filter(|_| entry.decided) {
            self.here(entry.source.lane, timer_id);
        }
        let setup = Arc::clone(&self.setup);
        let checked = self
            .poison
            .permits_record(entry.source, entry.offset)
            .and_then(|()| {
                // Its intake may be configured again before it is due.
                let Some(intake) = entry.intake else { return Ok(Some(())) };
                verdict::allowed(&setup, &self.targets, entry.intake, &entry.target)?;
                let answer = self.look(now, &entry.target, out);
                if let Some(known) = self.targets.get_mut(&entry.target) {
                    known.allow(intake);
                }
                let present = answer.map(|target| verdict::present(&entry.target, target));
                Ok(present.transpose()?.map(|_| ()))
            })
            .and_then(|present| self.apply(now, &mut entry, fate).map(|()| present));
        match checked {
            Ok(Some(())) => self.route(now, entry),
            // With no room it goes on as if its target were there: that is asked again when it is due.
            Ok(None) => {
                if let Some(entry) = self.park(entry) {
                    self.route(now, entry);
                }
            }
            Err(refusal) => self.refuse(now, *entry, refusal),
        }
    }

    /// The intake that a record is moved in, and its state there.
    fn checked_move(&self, entry: &PendingRecord) -> Result<(TopicId, Sealed), Refusal> {
        self.poison.permits_record(entry.source, entry.offset)?;
        // A record with an id is refused where its timer is: no other lane may report its outcome.
        if entry.timer_id.is_none() {
            verdict::allowed(&self.setup, &self.targets, entry.intake, &entry.target)?;
        }
        let sealed = verdict::seal(&self.setup, entry, Kind::Move)?;
        // One without an intake is refused before it gets here.
        Ok((TopicId(entry.intake.unwrap_or_default()), sealed))
    }

    /// By what remains: into the wheel, or to the largest tier that lets it go in time.
    fn route(&mut self, now: UnixMillis, entry: Box<PendingRecord>) {
        let limits = &self.setup.limits;
        let remains = entry.due - now;
        let large = entry.record.size() > limits.large_bytes;
        let horizon = if large { limits.large_horizon.min(limits.horizon) } else { limits.horizon };
        let ladder = &self.setup.topics.ladder;
        let pick = |remains| strict_order::pick(ladder, self.margin(now), remains);
        let tier = if remains > horizon { pick(remains) } else { None };
        match tier {
            None => {
                self.wake(entry.due);
                if self.is_strict() && entry.record.key().is_some() {
                    self.want_all(now, entry.source.lane, entry.due);
                } else if entry.timer_id.is_some() {
                    let topic = TopicId(entry.intake.unwrap_or_default());
                    self.want(now, Source { topic, lane: entry.source.lane }, entry.due);
                }
                self.wheel.insert(entry.due, entry.order, entry);
            }
            Some(tier) => self.hop(now, tier, entry),
        }
    }

    fn hop(&mut self, now: UnixMillis, tier: usize, entry: Box<PendingRecord>) {
        if entry.hops >= self.hops_limit {
            let detail =
                format!("{} hops; no delay takes more than {}", entry.hops, self.hops_limit);
            return self.refuse(now, *entry, refusal(Code::TooManyHops, detail));
        }
        let lane = entry.source.lane;
        if self.is_strict() {
            let rank = (entry.due, entry.order);
            self.strict_order.leaves(lane, rank);
            self.strict_order.collected += entry.record.size();
            self.lower_floor(lane, rank);
        }
        self.hop_buffer.push(now, tier, lane, entry);
        if let Some(ripe) = self.hop_buffer.ripe_at(self.linger()) {
            self.wake(ripe);
        }
    }

    fn linger(&self) -> Millis {
        if self.draining { Millis(0) } else { self.setup.limits.hop_linger }
    }

    // Refusals become dead letters.

    fn refuse(&mut self, now: UnixMillis, entry: PendingRecord, refusal: Refusal) {
        if !self.stands(&entry) {
            return self.suppress(now, entry, None);
        }
        let timer = self.end_dead(now, &entry, refusal.code);
        let answer = if entry.decided {
            None
        } else {
            lifecycle::answer(&entry, Outcome::Refused(refusal.code))
        };
        let unborn = self.unborn(&entry, refusal.code);
        let PendingRecord { source, offset, appended, record, timer_id, .. } = entry;
        let letter =
            PendingWrite { answer, ..self.letter(source, offset, appended, record, refusal) };
        match (timer, unborn) {
            (None, Some((timer_id, said))) => {
                self.bury_unborn(now, (source.lane, timer_id), letter, said);
            }
            (timer @ Some(_), _) => self.bury_told(source.lane, letter, timer),
            (None, None) => self.bury(letter, timer_id.is_some()),
        }
    }

    /// A dead letter of a record with an id, together with what is said of its timer.
    fn bury_told(&mut self, lane: Lane, letter: PendingWrite, said: Option<Record>) {
        let with_next = said.is_some();
        self.writes.push(PendingWrite { with_next, ..letter });
        self.writes
            .extend(said.map(|said| PendingWrite::timer_change(lane, said, ChangeReason::Dead)));
    }

    /// A dead letter waits for its batch: of a record with an id in the order of what is decided, since a cancel that comes
    /// after it must not be committed before it.
    fn bury(&mut self, letter: PendingWrite, has_id: bool) {
        if has_id { self.writes.push(letter) } else { self.writes.push_letter(letter) }
    }

    fn letter(
        &self,
        source: Source,
        offset: Offset,
        timestamp: UnixMillis,
        record: Record,
        refusal: Refusal,
    ) -> PendingWrite {
        let letter = DeadLetter {
            intake: verdict::came_by(&self.setup, source.topic, &record),
            code: refusal.code,
            detail: refusal.detail,
            topic: Arc::clone(self.setup.topics.name(source.topic)),
            partition: i32::from(source.lane.0),
            offset,
            timestamp,
        };
        let rewrite = HeaderRewrite::Dead(Box::new(letter));
        // Its own lane: few partitions per transaction, and in the order of the lane.
        let partition = Some(i32::from(source.lane.0));
        let (due, expires) = (timestamp, None);
        let send = Produce { to: Destination::Dead, partition, record, rewrite, due, expires };
        PendingWrite::of(Some((source, offset)), send)
    }
}

/// Whether a record has an id, valid or not.
fn has_id(record: &Record) -> bool {
    record.headers().any(|(name, _)| name == header::ID.as_bytes())
}

/// The timer that a record which breaks the contract is about, if it is a command.
fn asked(record: &Record) -> Option<TimerId> {
    let of = |wanted: &str| {
        let mut headers = record.headers();
        headers.find(|(name, _)| *name == wanted.as_bytes()).and_then(|(_, value)| value)
    };
    let is_command = of(header::ACTION).is_some_and(|action| action != b"create");
    is_command.then(|| TimerId::new(record.key(), of(header::ID).unwrap_or_default()))
}

#[cfg(test)]
mod tests;
