//! The engine of one thread: all its lanes, from a record read to a batch handed out.
//!
//! ```text
//!            Record            released           due <= now
//!  Kafka ──────────▶ hold ──────────────▶ accept ───────────▶ wheel ───────────▶ deliver ──▶ batch ──▶ Kafka
//!           (one per partition)             │  remains > horizon                   │
//!                                           ├────────────────▶ outbox (hops) ──────┤
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

mod again;
mod away;
mod barrier;
mod batch;
mod behind;
mod bounds;
mod duplicates;
mod endings;
mod floor;
mod handed;
mod inventory;
mod lifecycle;
mod lookups;
mod lost;
mod margin;
mod past;
mod suspects;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::header::{self, Code, Refusal};
use super::hold::{Held, Hold, Turn};
use super::orders::{
    Answer, Batch, Because, Carried, Commit, DeadLetter, Edit, Input, Outcome, Output, Send, Start,
    Target, To,
};
use super::outbox::Outbox;
use super::setup::{Setup, Tracking};
use super::state::{Kind, Order, Sealed};
use super::timers::{About, Live, Place, Remembered, TimerKey, Void};
use super::verdict::{self, Entry, Known, Verdict, Way, refusal};
use super::wheel::Wheel;
use super::window::{Began, Standing, Window};
use super::{BatchId, Lane, Millis, Offset, Record, Source, TopicId, UnixMillis};
use barrier::Barrier;
use duplicates::Duplicates;
use endings::Endings;
use floor::Floors;
use handed::{Handed, Mark};
use lifecycle::{Fate, Named};
use lookups::Parked;
pub use lost::After;
use lost::Calling;
use margin::Margin;
use past::Past;
use suspects::Suspects;

/// After a take-over suspects wait this long: the others are read again meanwhile, and leave first.
const TEST_AFTER: Millis = Millis(250);

/// What a delivery may take between firing and its append, as long as none took longer: a record that expires before that is
/// not delivered.
const EXPIRY_MARGIN: Millis = Millis(50);

/// Counts since the start, and what is held now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes of records held: buffers, wheel, parked, outbox, batches.
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
    /// Due records that went back to a tier, since their target is away.
    pub put_off: u64,
    /// Records and targets that Kafka may have refused, and that are being found out about.
    pub suspects: usize,
    /// Groups of suspects that failed and were halved.
    pub halvings: u64,
    /// Timers that are pending.
    pub live: usize,
    /// Timers of which cancelled or replaced versions may still be on their way.
    pub remembered: usize,
    /// Due records with an id that wait until it is known that no cancel was there in time.
    pub gated: usize,
    /// Due records with a key that wait for their order.
    pub ordered: usize,
    /// Records that wait to hear what has ended of their timer.
    pub recalling: usize,
    /// Hops that came to stand later than their tier needs and were committed, counted once for a partition and batch.
    pub late_hops: u64,
    /// Records whose id was pending already: nothing was done with them.
    pub duplicates: u64,
    /// Pending versions in whose place another one was put.
    pub superseded: u64,
    /// Timers that were overdue and whose records were gone.
    pub lost_timers: u64,
    /// When the record is due that is the first of all in memory that are not in their targets.
    pub first_due: Option<UnixMillis>,
}

/// A send that is held until its suspicion is tested.
#[derive(Debug)]
struct Suspected {
    source: Source,
    offset: Offset,
    send: Send,
    /// Its place among records of the same due time.
    order: Order,
    /// A delivery is to be remembered: it expires.
    mark: Option<Mark>,
    /// A delivery's version of its timer: it may be void by then.
    named: Option<Named>,
    /// What is said of its timer when it leaves.
    timer: Option<Record>,
}

impl Suspected {
    /// Its place in the order of its lane, if order matters for it.
    fn rank(&self) -> Option<(UnixMillis, Order)> {
        let keyed = matches!(self.send.to, To::Target(_)) && self.send.record.key().is_some();
        keyed.then_some((self.send.due, self.order))
    }
}

/// What goes with the next batch, in this order.
#[derive(Debug, Default)]
struct Ready {
    /// What is finished with it.
    done: Option<(Source, Offset)>,
    send: Option<Send>,
    /// Bytes of the budget that it gives back.
    held: usize,
    answer: Option<Answer>,
    /// It is in one batch with the next one.
    glued: bool,
}

/// A batch on its way.
#[derive(Debug)]
struct Flight {
    id: BatchId,
    bytes: usize,
    carried: Vec<Carried>,
    /// The hops in it, where order matters: their lanes, and when they are due.
    hops: Vec<(Lane, floor::Rank)>,
    /// Deliveries in it of records that expire, where nothing can be aborted.
    marks: Vec<Mark>,
    /// It is all of one group of suspects.
    test: bool,
    /// When the first of the deliveries in it was due.
    due: Option<UnixMillis>,
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
    /// What is void, and what has ended, is forgotten from then on.
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
pub struct Engine {
    setup: Arc<Setup>,
    /// By lane topic, then lane; `None` where this thread does not run the lane.
    holds: Vec<Vec<Option<Hold>>>,
    wheel: Wheel<Box<Entry>>,
    outbox: Outbox<Box<Entry>>,
    /// Moves, dead letters of records with an id, what is said of timers, and what is finished without anything.
    ready: VecDeque<Ready>,
    /// Dead letters of records that follow nothing of the contract, or have no id: no decision depends on when they leave.
    letters: VecDeque<Ready>,
    /// How many of those have been taken into batches.
    taken: u64,
    floors: Floors,
    /// What hops take to be appended, and what deliveries take.
    hops_margin: Margin,
    expiry_margin: Margin,
    /// Deliveries of records that expire, where nothing can be aborted.
    handed: Handed,
    /// Due records that had to wait for something: they go back into the wheel, which has them in order.
    late: VecDeque<Box<Entry>>,
    timers: Remembered,
    endings: Endings,
    past: Past,
    duplicates: Duplicates,
    calling: Calling,
    /// The main intake was made anew.
    is_remade: bool,
    /// By lane.
    gates: Vec<Gate>,
    /// By lane topic, then lane.
    barriers: Vec<Vec<Barrier>>,
    targets: HashMap<Arc<str>, Known>,
    /// With more names than this those that no record is for are forgotten.
    targets_max: usize,
    parked: Parked,
    /// Batches on their way.
    flying: VecDeque<Flight>,
    suspects: Suspects<Suspected>,
    /// Suspects are tested from then on, and only when the last batch was not such a test.
    test_at: UnixMillis,
    tested: bool,
    next_batch: BatchId,
    /// When the last batch came back, and when commits were last looked through.
    last_batch: UnixMillis,
    last_commit: UnixMillis,
    /// A window changed without a batch.
    dirty: bool,
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

impl Engine {
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
            outbox: Outbox::new(setup.topics.ladder.tiers().len()),
            ready: VecDeque::new(),
            letters: VecDeque::new(),
            taken: 0,
            late: VecDeque::new(),
            timers: Remembered::new(setup.lanes),
            endings: Endings::default(),
            past: Past::default(),
            duplicates: Duplicates::default(),
            calling: Calling::default(),
            is_remade: false,
            gates: (0..setup.lanes).map(|_| Gate::default()).collect(),
            floors: Floors::new(setup.lanes),
            hops_margin: Margin::new(floor::MARGIN),
            expiry_margin: Margin::new(EXPIRY_MARGIN),
            handed: Handed::default(),
            barriers: (0..topics)
                .map(|_| (0..setup.lanes).map(|_| Barrier::default()).collect())
                .collect(),
            targets: HashMap::new(),
            targets_max: lookups::TARGETS_MAX,
            parked: Parked::default(),
            flying: VecDeque::new(),
            suspects: Suspects::default(),
            test_at: UnixMillis(0),
            tested: true,
            next_batch: BatchId(0),
            last_batch: UnixMillis(0),
            last_commit: UnixMillis(0),
            dirty: false,
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

    /// Takes one fact at `now` and adds what follows from it to `out`.
    ///
    /// `now` is a lower bound of the brokers' time; if it goes back, nothing happens that had not happened before.
    pub fn step(&mut self, now: UnixMillis, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Record { source, offset, appended, record } => {
                self.read(now, source, Held { offset, appended, record }, out);
            }
            Input::Tick => {
                self.sweep(now, out);
                self.close(now, out);
            }
            Input::Committed(id) => {
                self.committed(now, id);
                self.sweep(now, out);
                self.close(now, out);
            }
            Input::Refused(refused) => self.refused(now, &refused),
            Input::Target(name, target) => self.target(now, &name, target),
            Input::Away(name, partitions) => self.away(now, &name, partitions),
            Input::Doubt(names) => self.doubt(&names),
            Input::Policies(setup) => {
                self.setup = setup;
                for known in self.targets.values_mut() {
                    known.allowed = 0;
                }
            }
            Input::Passed { source, at } => self.passed(now, source, at),
            Input::Late { source, offset, due } => self.late_hop(source, offset, due),
            Input::Assigned { starts } => self.assigned(now, starts, out),
            Input::Known { lane, live, voids, whole } => {
                self.known(now, lane, &live, voids, whole, out);
            }
            Input::Ended { lane, timers } => self.ended(now, lane, timers),
            Input::Recalled { lane, timers } => self.recalled(now, lane, timers, out),
            Input::Overdue { lane, timers, more } => self.overdue(now, lane, timers, more),
            Input::Left { lane, records } => self.left(lane, &records),
            Input::Counted { lane, whole } => self.counted(now, lane, whole),
            Input::Remade => self.is_remade = true,
            Input::Revoked => self.reset(),
            Input::Drain => {
                self.draining = true;
                self.sweep(now, out);
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
        self.flying.is_empty()
            && self.ready.is_empty()
            && self.letters.is_empty()
            && self.late.is_empty()
            && self.outbox.is_empty()
            && self.suspects.next().is_none()
    }

    /// Counts for the metrics.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let holds = || self.holds.iter().flatten().flatten();
        Figures {
            waiting: self.wheel.len(),
            lanes: self.holds.first().map_or(0, |lanes| lanes.iter().flatten().count()),
            paused: holds().filter(|hold| hold.is_paused()).count(),
            suspects: self.suspects.len(),
            halvings: self.suspects.halvings,
            window_permille: holds().map(|hold| hold.window.fill_permille()).max().unwrap_or(0),
            live: self.timers.live_len(),
            remembered: self.timers.voids_len(),
            gated: self.gated(),
            ordered: self.floors.waiting(),
            recalling: self.past.waiting(),
            first_due: self.first_due(),
            ..self.figures
        }
    }

    /// When the first of the records in memory is due that are not committed in their targets, whatever they wait for.
    fn first_due(&self) -> Option<UnixMillis> {
        let parked = self.targets.values().flat_map(|known| &known.parked);
        let barriers = self.barriers.iter().flatten().map(Barrier::first_due);
        let held = self.suspects.held().filter_map(|suspected| suspected.send.delivered_at());
        let flying = self.flying.iter().filter_map(|flight| flight.due);
        let waiting = [self.wheel.next_due(), self.floors.first_due(), self.past.first_due()];
        let entries = self.late.iter().chain(parked).map(|entry| entry.due);
        entries
            .chain(barriers.flatten())
            .chain(held)
            .chain(flying)
            .chain(waiting.into_iter().flatten())
            .min()
    }

    /// The lanes that run here, ascending.
    #[must_use]
    pub fn lanes(&self) -> Vec<Lane> {
        let held = self.holds.first().into_iter().flatten().enumerate();
        held.filter_map(|(lane, hold)| hold.as_ref().map(|_| Lane(lane as u16))).collect()
    }

    /// What is pending in each partition that runs here, as far as it was read.
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
        let setup = Arc::clone(&self.setup);
        let (next_batch, mut figures) = (self.next_batch, self.figures);
        figures.memory_bytes = 0;
        let draining = self.draining;
        let mut suspects = std::mem::take(&mut self.suspects);
        suspects.let_go();
        let (hops_margin, expiry_margin) = (self.hops_margin, self.expiry_margin);
        let handed = std::mem::take(&mut self.handed);
        let calling = self.calling.anew();
        let kept = Self { hops_margin, expiry_margin, handed, calling, ..Self::new(setup) };
        *self = Self { next_batch, figures, draining, suspects, ..kept };
    }

    fn assigned(&mut self, now: UnixMillis, starts: Vec<Start>, out: &mut Vec<Output>) {
        self.reset();
        self.test_at = now + TEST_AFTER;
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
                // What is done above the watermark is not known: reading on might deliver twice.
                *count = 0;
                self.figures.unreadable += 1;
            }
            windows.push(window);
        }
        for (Start { source, next, end, .. }, window) in starts.into_iter().zip(windows) {
            let whole = given.get(usize::from(source.lane.0)) == Some(&topics);
            let (Some(window), true) = (window, whole) else {
                // Not all of the lane is here (a ladder is being changed), or its commit is not ours: it rests.
                out.push(Output::Pause(source));
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
        self.suspects.keep(|Source { topic, lane }, offset| {
            let of =
                holds.get(usize::from(topic.0)).and_then(|lanes| lanes.get(usize::from(lane.0)));
            of.and_then(Option::as_ref).is_some_and(|hold| !hold.is_before(offset))
        });
    }

    /// Takes in what holds of a lane's timers; once that is all of it, the lane goes to work.
    fn known(
        &mut self,
        now: UnixMillis,
        lane: Lane,
        live: &[Live],
        voids: Vec<Void>,
        whole: bool,
        out: &mut Vec<Output>,
    ) {
        let at = usize::from(lane.0);
        let runs = self.holds.first().and_then(|holds| holds.get(at)).is_some_and(Option::is_some);
        if !runs || self.gates[at].is_known {
            return;
        }
        self.know(lane, live, voids);
        if !whole {
            return;
        }
        self.gates[at].is_known = true;
        self.gates[at].forgets_from = now + lifecycle::VOID_SLACK;
        self.gates[at].ends_from = now + past::CLOCKS_APART;
        for (source, held) in std::mem::take(&mut self.gates[at].early) {
            self.accept(now, source, held, out);
        }
        for topic in 0..self.holds.len() {
            self.pump(now, Source { topic: TopicId(topic as u16), lane }, out);
        }
        self.wake(now);
    }

    // From a partition to the wheel or the outbox.

    fn read(&mut self, now: UnixMillis, source: Source, held: Held, out: &mut Vec<Output>) {
        let size = held.record.size();
        let room = (!self.stopped, !self.is_brimful());
        self.end_again(source, held.offset);
        let Some(hold) = self.hold(source) else { return };
        if hold.is_before(held.offset) {
            self.read_again(now, source, held, out);
        } else {
            hold.read(held);
            self.figures.memory_bytes += size;
            self.held_bytes += size;
            self.pump(now, source, out);
        }
        self.turn(now, source, out);
        if room.0 && self.stopped || room.1 && self.is_brimful() {
            // At once everywhere: every partition could hand over one more large record.
            self.turn_all(now, out);
        }
    }

    /// Lets go of what may go, in one partition.
    fn pump(&mut self, now: UnixMillis, source: Source, out: &mut Vec<Output>) {
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
                    self.dirty = true;
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
            self.stir(source.lane);
        }
    }

    fn accept(&mut self, now: UnixMillis, source: Source, held: Held, out: &mut Vec<Output>) {
        let setup = Arc::clone(&self.setup);
        let Held { offset, appended, record } = held;
        let verdict = verdict::accept(&setup, &self.targets, (source, offset), appended, record);
        match self.placed(source, verdict) {
            Verdict::Cancel(entry) | Verdict::Wait(entry) => self.decide(now, entry, out),
            Verdict::Move(entry, lane) => match self.checked_move(&entry) {
                Ok((intake, sealed)) => {
                    let Entry { record, due, .. } = *entry;
                    let send = Send {
                        to: To::Lane(intake),
                        partition: Some(i32::from(lane.0)),
                        record,
                        edit: Edit::State(sealed),
                        due,
                        expires: None,
                    };
                    let done = Some((source, offset));
                    self.ready.push_back(Ready::of(done, send));
                }
                Err(refusal) => {
                    let has_id = entry.timer.is_some();
                    let letter = self.letter(source, offset, appended, entry.record, refusal);
                    self.bury(letter, has_id);
                }
            },
            Verdict::Refuse(record, refusal) => {
                let name =
                    asked(&record).filter(|_| self.setup.topics.tier_of(source.topic).is_none());
                let outcome = Outcome::Refused(refusal.code);
                let unborn = verdict::unborn(&setup, source, offset, appended, &record);
                let unborn = unborn.filter(|(name, _)| self.is_news(source.lane, *name));
                let said = unborn.map(|(name, told)| (name, told(refusal.code)));
                let letter = self.letter(source, offset, appended, record, refusal);
                // Who is refused is told nothing else.
                let about = About::Before(Place { first_appended: appended, offset });
                let answer = name.map(|name| Answer { source, offset, name, about, outcome });
                let letter = Ready { answer, ..letter };
                match said {
                    Some((name, said)) => {
                        self.bury_unborn(now, (source.lane, name), letter, said);
                    }
                    None => self.letters.push_back(letter),
                }
            }
        }
    }

    /// Decides what becomes of a record of this lane, once all is known that counts for that.
    fn decide(&mut self, now: UnixMillis, entry: Box<Entry>, out: &mut Vec<Output>) {
        let Some((mut entry, past)) = self.with_past(now, entry) else { return };
        self.recognise(&mut entry, past);
        if matches!(entry.way, Way::Cancel(_)) {
            return self.cancel(now, *entry);
        }
        let fate = self.judge(now, &entry, past);
        if !matches!(fate, Fate::Aside(_)) {
            self.no_more_aside(&entry);
        }
        if let Some(entry) = self.lay_to_rest(entry, fate, now) {
            self.take_up(now, entry, fate, out);
        }
    }

    /// A record that goes on: to its target, down the ladder, or to the dead letters.
    fn take_up(
        &mut self,
        now: UnixMillis,
        mut entry: Box<Entry>,
        fate: Fate,
        out: &mut Vec<Output>,
    ) {
        if let Fate::Aside(of) = fate {
            return self.set_aside(now, of, entry);
        }
        entry.decided = matches!(fate, Fate::Live);
        if let Some(name) = entry.timer.filter(|_| entry.decided) {
            self.here(entry.source.lane, name);
        }
        let setup = Arc::clone(&self.setup);
        let checked = self
            .innocent(entry.source, entry.offset)
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
            .and_then(|present| self.enact(now, &mut entry, fate).map(|()| present));
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

    /// Whether Kafka has not refused this record when it stood alone.
    fn innocent(&self, source: Source, offset: Offset) -> Result<(), Refusal> {
        match self.suspects.verdict(source, offset) {
            None => Ok(()),
            Some(why) => Err(refusal(Code::TargetRefused, format!("refused by Kafka: {why}"))),
        }
    }

    /// The intake that a record is moved in, and its state there.
    fn checked_move(&self, entry: &Entry) -> Result<(TopicId, Sealed), Refusal> {
        self.innocent(entry.source, entry.offset)?;
        // What has an id is refused where its timer is: nobody else may say what became of that.
        if entry.timer.is_none() {
            verdict::allowed(&self.setup, &self.targets, entry.intake, &entry.target)?;
        }
        let sealed = verdict::seal(&self.setup, entry, Kind::Move)?;
        // One without an intake is refused before it gets here.
        Ok((TopicId(entry.intake.unwrap_or_default()), sealed))
    }

    /// By what remains: into the wheel, or to the largest tier that lets it go in time.
    fn route(&mut self, now: UnixMillis, entry: Box<Entry>) {
        let limits = &self.setup.limits;
        let remains = entry.due - now;
        let large = entry.record.size() > limits.large_bytes;
        let horizon = if large { limits.large_horizon.min(limits.horizon) } else { limits.horizon };
        let ladder = &self.setup.topics.ladder;
        let pick = |remains| floor::pick(ladder, self.margin(now), remains);
        let tier = if remains > horizon { pick(remains) } else { None };
        match tier {
            None => {
                self.wake(entry.due);
                if self.is_strict() && entry.record.key().is_some() {
                    self.want_all(now, entry.source.lane, entry.due);
                } else if entry.timer.is_some() {
                    let topic = TopicId(entry.intake.unwrap_or_default());
                    self.want(now, Source { topic, lane: entry.source.lane }, entry.due);
                }
                self.wheel.insert(entry.due, entry.order, entry);
            }
            Some(tier) => self.hop(now, tier, entry),
        }
    }

    fn hop(&mut self, now: UnixMillis, tier: usize, entry: Box<Entry>) {
        if entry.hops >= self.hops_limit {
            let detail =
                format!("{} hops; no delay takes more than {}", entry.hops, self.hops_limit);
            return self.refuse(now, *entry, refusal(Code::TooManyHops, detail));
        }
        let lane = entry.source.lane;
        if self.is_strict() {
            let rank = (entry.due, entry.order);
            self.floors.leaves(lane, rank);
            self.floors.collected += entry.record.size();
            self.lower_floor(lane, rank);
        }
        self.outbox.push(now, tier, lane, entry);
        if let Some(ripe) = self.outbox.ripe_at(self.linger()) {
            self.wake(ripe);
        }
    }

    fn linger(&self) -> Millis {
        if self.draining { Millis(0) } else { self.setup.limits.hop_linger }
    }

    // Refusals become dead letters.

    fn refuse(&mut self, now: UnixMillis, entry: Entry, refusal: Refusal) {
        if !self.stands(&entry) {
            return self.meet(now, entry, None);
        }
        let timer = self.buried(now, &entry, refusal.code);
        let answer = if entry.decided {
            None
        } else {
            lifecycle::answer(&entry, Outcome::Refused(refusal.code))
        };
        let unborn = self.unborn(&entry, refusal.code);
        let Entry { source, offset, appended, record, timer: name, .. } = entry;
        let letter = Ready { answer, ..self.letter(source, offset, appended, record, refusal) };
        match (timer, unborn) {
            (None, Some((name, said))) => {
                self.bury_unborn(now, (source.lane, name), letter, said);
            }
            (timer @ Some(_), _) => self.bury_told(source.lane, letter, timer),
            (None, None) => self.bury(letter, name.is_some()),
        }
    }

    /// A dead letter of a record with an id, together with what is said of its timer.
    fn bury_told(&mut self, lane: Lane, letter: Ready, said: Option<Record>) {
        let glued = said.is_some();
        self.ready.push_back(Ready { glued, ..letter });
        self.ready.extend(said.map(|said| Ready::said(lane, said, Because::Dead)));
    }

    /// A dead letter waits for its batch: of a record with an id in the order of what is decided, since a cancel that comes
    /// after it must not be committed before it.
    fn bury(&mut self, letter: Ready, has_id: bool) {
        let queue = if has_id { &mut self.ready } else { &mut self.letters };
        queue.push_back(letter);
    }

    fn letter(
        &self,
        source: Source,
        offset: Offset,
        timestamp: UnixMillis,
        record: Record,
        refusal: Refusal,
    ) -> Ready {
        let letter = DeadLetter {
            intake: verdict::came_by(&self.setup, source.topic, &record),
            code: refusal.code,
            detail: refusal.detail,
            topic: Arc::clone(self.setup.topics.name(source.topic)),
            partition: i32::from(source.lane.0),
            offset,
            timestamp,
        };
        let edit = Edit::Dead(Box::new(letter));
        // Its own lane: few partitions per transaction, and in the order of the lane.
        let partition = Some(i32::from(source.lane.0));
        let (due, expires) = (timestamp, None);
        let send = Send { to: To::Dead, partition, record, edit, due, expires };
        Ready::of(Some((source, offset)), send)
    }
}

impl Ready {
    /// A send, and what is finished with it.
    fn of(done: Option<(Source, Offset)>, send: Send) -> Self {
        Self { done, held: send.record.size(), send: Some(send), ..Self::default() }
    }
}

/// Whether a record has an id, be it a bad one.
fn has_id(record: &Record) -> bool {
    record.headers().any(|(name, _)| name == header::ID.as_bytes())
}

/// The timer that a record which breaks the contract is about, if it is a command.
fn asked(record: &Record) -> Option<TimerKey> {
    let of = |wanted: &str| {
        let mut headers = record.headers();
        headers.find(|(name, _)| *name == wanted.as_bytes()).and_then(|(_, value)| value)
    };
    let is_command = of(header::ACTION).is_some_and(|action| action != b"create");
    is_command.then(|| TimerKey::new(record.key(), of(header::ID).unwrap_or_default()))
}

#[cfg(test)]
mod tests;
