//! Follows `<ns>.timers`: keeps the index up with it, and tells lane threads what holds when they take lanes over.
//!
//! One thread, and it alone writes to the index. The owner's own writes come back through the changelog, so what is on
//! disk is never ahead of what is committed (ADR 0008). Lanes come up one by one: each is read to where its changelog
//! ended when it was taken over, and then told, piece by piece, whatever the others do.
//!
//! # Invariants
//! 1. What is told of a lane covers everything before the end that was asked for after its committed offsets were
//!    fetched: what the index had, if that is believed, and what the changelog has from there to the end.
//! 2. It is told once for each assignment, which it names; whoever has another one by then drops it.
//! 3. An index that is broken is begun anew, a few times; one whose disk is full is given up until the next start.
//! 4. No lane thread waits for it; it waits for no lane thread. It joins no group and commits nothing.

mod indexing;
mod progress;
mod telling;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use super::connect::{Isolation, Reader};
use super::ends::{self, Ends};
use super::written::Written;
use super::{BrokerClock, Connection};
use crate::engine::timers::Change;
use crate::engine::{Input, Lane, Millis, Offset, UnixMillis};
use crate::index::{self, BATCH_MAX, Index, Reason};
use crate::telemetry;

pub use indexing::Indexing;
use indexing::give_up;
pub(super) use progress::{Progress, Reach};
use telling::Holding;

/// How readers of the changelog are named in the brokers' logs.
const CLIENT: &str = "waterclock-timers";
/// The longest wait in one poll: an order is noticed within it.
const POLL_MAX: Duration = Duration::from_millis(50);
/// The same while somebody waits for a position, which a marker passes without ending a poll.
const POLL_SHORT: Duration = Duration::from_millis(5);
/// How long a broker holds a fetch for which there is nothing: an idle follower costs next to nothing, and a record
/// ends the wait at once.
const WAIT: Duration = Duration::from_secs(1);
/// How often it is looked whether lanes have reached the end of the changelog, which keeps them from getting old.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The same after lanes came or something was written: a restart soon after finds the index up with the changelog.
const LOOK_SOON: Duration = Duration::from_secs(1);
/// Timers to be forgotten that are told at once, at most.
const FORGET_MAX: usize = 500;
/// How often it is said how far it is.
const SAY_EVERY: Duration = Duration::from_secs(2);
/// How often an index is begun anew in one run. What breaks more often has a cause that beginning anew does not mend.
const RENEWALS_MAX: u32 = 3;
/// A position that is further ahead of the brokers' time is of a clock that went wrong.
const AHEAD_MAX: Millis = Millis(600_000);

/// What a lane thread is told, and for which of its assignments.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) assignment: u64,
    pub(super) input: Input,
}

#[derive(Debug)]
enum Order {
    /// Tell what holds of these lanes; each with where its changelog ended when it was taken over.
    Begin { assignment: u64, lanes: Vec<(Lane, Offset)>, to: Sender<Told> },
    /// The lanes of this assignment are another's.
    Leave { assignment: u64 },
    /// Tell which timers of the lane are final since before a time.
    Forgettable { assignment: u64, lane: Lane, before: UnixMillis, to: Sender<Told> },
}

/// Handle on the following thread, which ends with the last handle.
#[derive(Clone, Debug)]
pub(super) struct Follower {
    orders: Sender<Order>,
    written: Arc<Written>,
    progress: Arc<Progress>,
    reader: Option<index::Reader>,
}

/// What a follower is made from.
pub(super) struct Plan {
    pub(super) connection: Connection,
    /// The changelog.
    pub(super) topic: Arc<str>,
    pub(super) lanes: u16,
    pub(super) indexing: Option<Indexing>,
    pub(super) clock: Arc<BrokerClock>,
    pub(super) ends: Ends,
    pub(super) written: Arc<Written>,
}

impl Follower {
    /// Starts the thread.
    ///
    /// # Errors
    /// librdkafka refused its settings, or there is no thread.
    pub(super) fn start(plan: Plan) -> Result<Self, KafkaError> {
        let Plan { connection, topic, lanes, indexing, clock, ends, written } = plan;
        let progress = Arc::new(Progress::new(lanes));
        let (index, tombstones) =
            indexing.map_or((None, Millis(0)), |of| (Some(of.index), of.tombstones));
        if index.is_none() {
            progress.give_up();
        }
        let reader = index.as_ref().map(Index::reader);
        let consumer = connection.reader(CLIENT, Isolation::Committed, WAIT)?;
        let (sender, orders) = crossbeam_channel::unbounded();
        let work = Work {
            index,
            connection,
            consumer,
            topic,
            tombstones,
            clock,
            ends,
            written: Arc::clone(&written),
            asked: None,
            lanes: BTreeMap::new(),
            progress: Arc::clone(&progress),
            is_moved: false,
            renewals: 0,
            look: Instant::now(),
            loading: Loading::new(),
        };
        std::thread::Builder::new()
            .name("wc-index".into())
            .spawn(move || work.run(&orders))
            .map_err(|_| KafkaError::Canceled)?;
        Ok(Self { orders: sender, written, progress, reader })
    }

    /// Has a lane thread told what holds of these lanes, each of which has its changelog's end with it.
    pub(super) fn begin(&self, assignment: u64, lanes: Vec<(Lane, Offset)>, to: &Sender<Told>) {
        for (lane, end) in &lanes {
            self.written.begin(*lane, *end);
        }
        let _ = self.orders.send(Order::Begin { assignment, lanes, to: to.clone() });
    }

    /// The lanes of this assignment are another's from now on, or are to be told again.
    pub(super) fn leave(&self, assignment: u64) {
        let _ = self.orders.send(Order::Leave { assignment });
    }

    /// Has a lane thread told which timers of a lane are final since before a time, in all that is committed by now.
    pub(super) fn forgettable(
        &self,
        assignment: u64,
        lane: Lane,
        before: UnixMillis,
        to: &Sender<Told>,
    ) {
        let _ = self.orders.send(Order::Forgettable { assignment, lane, before, to: to.clone() });
    }

    /// Whoever looks timers up; `None`: this run has no index.
    pub(super) fn reader(&self) -> Option<&index::Reader> {
        self.reader.as_ref()
    }

    /// How far each lane's index is.
    pub(super) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }
}

/// The thread that owns the index.
struct Work {
    /// `None` once it is given up.
    index: Option<Index>,
    connection: Connection,
    /// Made anew with every assignment: positions of an earlier one linger, and would be taken for what was read.
    consumer: Reader,
    topic: Arc<str>,
    tombstones: Millis,
    clock: Arc<BrokerClock>,
    ends: Ends,
    written: Arc<Written>,
    /// The ends on their way, and what they will make good.
    asked: Option<(Receiver<ends::Answer>, Vec<(Lane, u64)>)>,
    lanes: BTreeMap<Lane, Following>,
    progress: Arc<Progress>,
    /// The consumer does not read yet what is followed.
    is_moved: bool,
    renewals: u32,
    look: Instant,
    /// Of the lanes that come up.
    loading: Loading,
}

/// How lanes come up.
#[derive(Debug)]
struct Loading {
    began: Instant,
    said: Instant,
    lanes: usize,
    /// Entries that the index had of them.
    indexed: u64,
    /// Records of the changelog that were read for them.
    records: u64,
}

impl Loading {
    fn new() -> Self {
        let now = Instant::now();
        Self { began: now, said: now, lanes: 0, indexed: 0, records: 0 }
    }
}

/// One lane that is followed.
struct Following {
    assignment: u64,
    to: Sender<Told>,
    /// Up to where it was read.
    next: Offset,
    /// Read and not in the index yet, at most [`BATCH_MAX`] of all lanes.
    changes: Vec<Change>,
    /// Append time of the last of them.
    at: UnixMillis,
    /// What is to be told once reading is past this; `None` once it is.
    telling: Option<(Offset, Holding)>,
    /// Timers that are final since before this time are told once reading is past that.
    forgettable: Option<(Offset, UnixMillis)>,
    /// Records that this version cannot read.
    unreadable: u64,
}

impl Work {
    fn run(mut self, orders: &Receiver<Order>) {
        loop {
            let order = match (self.lanes.is_empty(), orders.try_recv()) {
                (_, Ok(order)) => Ok(order),
                (true, _) => orders.recv_timeout(POLL_MAX * 20),
                (false, Err(crossbeam_channel::TryRecvError::Disconnected)) => {
                    Err(RecvTimeoutError::Disconnected)
                }
                (false, Err(_)) => Err(RecvTimeoutError::Timeout),
            };
            match order {
                Ok(order) => self.obey(order),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => self.turn(),
            }
        }
        if let Some(index) = self.index.take() {
            index.close();
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Begin { assignment, lanes, to } => {
                if self.loading.lanes == 0 {
                    self.loading = Loading::new();
                }
                for (lane, end) in lanes {
                    let (next, holding, entries) = self.load(lane, end).unwrap_or_else(|error| {
                        self.failed(error);
                        (Offset(0), Holding::default(), 0)
                    });
                    self.loading.lanes += 1;
                    self.loading.indexed += entries;
                    let following = Following {
                        assignment,
                        to: to.clone(),
                        next,
                        changes: Vec::new(),
                        at: UnixMillis(0),
                        telling: Some((end, holding)),
                        forgettable: None,
                        unreadable: 0,
                    };
                    self.lanes.insert(lane, following);
                    self.progress.set(lane, None);
                    self.is_moved = true;
                    // What the index has may be all.
                    self.tell();
                }
                self.look = Instant::now() + LOOK_SOON;
            }
            Order::Leave { assignment } => {
                let gone = self.lanes.extract_if(.., |_, of| of.assignment == assignment);
                for (lane, _) in gone.collect::<Vec<_>>() {
                    self.progress.set(lane, None);
                    self.is_moved = true;
                    if let Some(index) = &mut self.index {
                        index.release(lane);
                    }
                }
                if !self.lanes.values().any(|of| of.telling.is_some()) {
                    self.loading.lanes = 0;
                    telemetry::lanes_loading(0, 0);
                }
            }
            Order::Forgettable { assignment, lane, before, to } => {
                // Without a mark it is not known what is committed by now; it is soon, and asked again in a minute.
                let mark = self.written.mark(lane).filter(|_| self.index.is_some());
                let following = self.lanes.get_mut(&lane).filter(|of| of.assignment == assignment);
                match (following, mark) {
                    (Some(following), Some(mark)) => following.forgettable = Some((mark, before)),
                    // Without an index nobody knows; they are forgotten in a run that has one.
                    _ => {
                        let input = Input::Ended { lane, timers: Vec::new() };
                        let _ = to.send(Told { assignment, input });
                    }
                }
            }
        }
    }

    fn now(&self) -> UnixMillis {
        self.clock.now(Instant::now()).unwrap_or_default()
    }

    /// What the index has of a lane and up to where, if that is still of use, and how many entries that is.
    fn load(&mut self, lane: Lane, end: Offset) -> Result<(Offset, Holding, u64), index::Error> {
        let now = self.now();
        let nothing = || (Offset(0), Holding::default(), 0);
        let Some(index) = &mut self.index else { return Ok(nothing()) };
        let mut holding = Holding::default();
        match index.load(lane, |held| holding.hold(held))? {
            None => index.clear(lane)?,
            Some(position) if is_stale(position.at, now, self.tombstones) => {
                index.outdated(lane, Reason::Stale)?;
            }
            // The changelog was made anew.
            Some(position) if position.next > end => index.outdated(lane, Reason::Outside)?,
            Some(position) => return Ok((position.next, holding, position.entries)),
        }
        Ok(nothing())
    }

    /// Has the consumer read the lanes that are followed, each from where it is.
    fn assign(&mut self) -> Result<(), KafkaError> {
        let mut list = TopicPartitionList::with_capacity(self.lanes.len());
        for (lane, following) in &self.lanes {
            let at = match following.next {
                Offset(0) => At::Beginning,
                Offset(next) => At::Offset(next),
            };
            list.add_partition_offset(&self.topic, i32::from(lane.0), at)?;
        }
        let consumer = self.connection.reader(CLIENT, Isolation::Committed, WAIT)?;
        consumer.assign(&list)?;
        self.consumer = consumer;
        self.is_moved = false;
        Ok(())
    }

    /// Reads what is there, puts it into the index, and tells what is to be told.
    fn turn(&mut self) {
        if self.is_moved
            && let Err(error) = self.assign()
        {
            tracing::warn!(%error, "could not read the changelog, trying again");
            return std::thread::sleep(POLL_MAX);
        }
        self.read();
        let mut done = self.write();
        if done.is_ok() && self.lanes.values().any(Following::is_awaited) {
            self.pass();
            self.tell();
            done = self.forget();
        }
        if let Err(error) = done.and_then(|()| self.look()) {
            self.failed(error);
        }
    }

    fn read(&mut self) {
        let is_awaited = self.lanes.values().any(Following::is_awaited);
        let mut timeout = if is_awaited { POLL_SHORT } else { POLL_MAX };
        for _ in 0..BATCH_MAX {
            match self.consumer.poll(timeout) {
                None => break,
                Some(Ok(message)) => {
                    let lane = u16::try_from(message.partition()).map(Lane).ok();
                    let Some(following) = lane.and_then(|lane| self.lanes.get_mut(&lane)) else {
                        continue;
                    };
                    self.loading.records += u64::from(following.telling.is_some());
                    following.take(self.index.is_some(), message.key(), message.payload());
                    following.next = Offset(message.offset()).next();
                    let at = message.timestamp().to_millis().and_then(|ms| u64::try_from(ms).ok());
                    following.at = at.map_or(following.at, UnixMillis);
                }
                Some(Err(error)) => {
                    let what = "following the changelog";
                    match error.rdkafka_error_code() {
                        Some(
                            RDKafkaErrorCode::Fatal
                            | RDKafkaErrorCode::TopicAuthorizationFailed
                            | RDKafkaErrorCode::UnknownTopicOrPartition,
                        ) => tracing::warn!(%error, what),
                        _ => tracing::debug!(%error, what),
                    }
                }
            }
            timeout = Duration::ZERO;
        }
    }

    fn write(&mut self) -> Result<(), index::Error> {
        let Some(index) = &mut self.index else { return Ok(()) };
        for (lane, following) in &mut self.lanes {
            if following.changes.is_empty() {
                continue;
            }
            let changes = std::mem::take(&mut following.changes);
            index.apply(*lane, &changes, following.next, following.at)?;
            self.progress.set(*lane, Some(following.next));
            self.look = self.look.min(Instant::now() + LOOK_SOON);
        }
        Ok(())
    }

    /// Tells of the lanes that are read to where somebody waits for it.
    fn tell(&mut self) {
        for (lane, following) in &mut self.lanes {
            let next = following.next;
            if let Some((_, holding)) = following.telling.take_if(|(end, _)| next >= *end) {
                following.say_unreadable(*lane);
                holding.tell(*lane, following.assignment, &following.to);
                self.progress.set(*lane, Some(next));
            }
        }
        if self.index.is_none() {
            // Nobody needs to hear more of those that were told.
            let before = self.lanes.len();
            self.lanes.retain(|_, following| following.telling.is_some());
            self.is_moved |= before != self.lanes.len();
        }
        self.say();
    }

    /// Tells which timers are final for long enough.
    fn forget(&mut self) -> Result<(), index::Error> {
        let Some(index) = &mut self.index else { return Ok(()) };
        for (lane, following) in &mut self.lanes {
            let next = following.next;
            if let Some((_, before)) = following.forgettable.take_if(|(mark, _)| next >= *mark) {
                let timers = index.ended(*lane, before, FORGET_MAX)?;
                let input = Input::Ended { lane: *lane, timers };
                let _ = following.to.send(Told { assignment: following.assignment, input });
            }
        }
        Ok(())
    }

    fn pass(&mut self) {
        let Ok(passed) = self.consumer.position() else { return };
        for (lane, following) in &mut self.lanes {
            let passed = passed.find_partition(&self.topic, i32::from(lane.0));
            if let Some(At::Offset(passed)) = passed.map(|at| at.offset())
                && Offset(passed) > following.next
            {
                following.next = Offset(passed);
            }
        }
    }

    /// Says how far the lanes are that come up.
    fn say(&mut self) {
        let left = self.lanes.values().filter_map(|following| {
            let (end, _) = following.telling.as_ref()?;
            Some(end.0.saturating_sub(following.next.0).max(0).unsigned_abs())
        });
        let (lanes, offsets) = left.fold((0_u64, 0_u64), |(n, sum), left| (n + 1, sum + left));
        telemetry::lanes_loading(lanes, offsets);
        let Loading { began, said, lanes: all, indexed, records } = &mut self.loading;
        if lanes == 0 && *all > 0 {
            let (lanes, took) = (std::mem::take(all), began.elapsed());
            tracing::info!(lanes, indexed, records, ?took, "read what is pending");
        } else if lanes > 0 && said.elapsed() >= SAY_EVERY {
            *said = Instant::now();
            let of = *all;
            tracing::info!(lanes, of, offsets_left = offsets, records, "reading what is pending");
        }
    }

    /// Asks now and then where the changelog ends, and notes for lanes that have nothing left to read that they are up with
    /// it; makes good what is not known of how far it is written.
    fn look(&mut self) -> Result<(), index::Error> {
        if let Some((answer, gaps)) = self.asked.take() {
            match answer.try_recv() {
                Ok(answer) => self.ends(&answer.told, &gaps)?,
                Err(crossbeam_channel::TryRecvError::Empty) => self.asked = Some((answer, gaps)),
                Err(crossbeam_channel::TryRecvError::Disconnected) => {}
            }
            return Ok(());
        }
        let has_gap = self.lanes.keys().any(|lane| self.written.mark(*lane).is_none());
        if self.index.is_some()
            && !self.lanes.is_empty()
            && (has_gap || self.look <= Instant::now())
        {
            self.look = Instant::now() + LOOK_EVERY;
            let gaps = self.lanes.keys().map(|lane| (*lane, self.written.gap(*lane))).collect();
            let partitions =
                self.lanes.keys().map(|lane| (Arc::clone(&self.topic), i32::from(lane.0)));
            let (reply, answer) = crossbeam_channel::bounded(1);
            self.ends.ask(0, partitions.collect(), false, reply);
            self.asked = Some((answer, gaps));
        }
        Ok(())
    }

    fn ends(&mut self, told: &[ends::Told], gaps: &[(Lane, u64)]) -> Result<(), index::Error> {
        self.pass();
        let Some(index) = &mut self.index else { return Ok(()) };
        let mut lag = 0;
        for told in told {
            let lane = u16::try_from(told.partition).map(Lane).ok();
            let (Some(lane), Some(end)) = (lane, told.last) else { continue };
            let Some(following) = self.lanes.get(&lane) else { continue };
            if let Some((_, gap)) = gaps.iter().find(|(of, _)| *of == lane) {
                self.written.mend(lane, *gap, end);
            }
            if following.next >= end {
                index.apply(lane, &[], following.next, told.at)?;
                self.progress.set(lane, Some(following.next));
            } else {
                lag += (end.0 - following.next.0).unsigned_abs();
                self.look = self.look.min(Instant::now() + LOOK_SOON);
            }
        }
        let index::Figures { live, ended, voids, .. } = index.reader().figures()?;
        let entries = live + ended + voids;
        let disk_bytes = index.disk_bytes()?;
        telemetry::index_size(entries, disk_bytes);
        telemetry::index_lag(lag);
        tracing::debug!(lanes = self.lanes.len(), lag, entries, disk_bytes, "index");
        Ok(())
    }

    /// Begins the index anew, or goes on without.
    fn failed(&mut self, why: index::Error) {
        let Some(index) = self.index.take() else { return };
        let renewed = match why {
            index::Error::Broken { .. } if self.renewals < RENEWALS_MAX => {
                self.renewals += 1;
                index.renew(&why)
            }
            why => {
                index.abandon();
                Err(why)
            }
        };
        match renewed {
            Ok(index) => self.index = Some(index),
            Err(error) => {
                give_up(&error);
                self.progress.give_up();
                for (lane, following) in &mut self.lanes {
                    if following.forgettable.take().is_some() {
                        let input = Input::Ended { lane: *lane, timers: Vec::new() };
                        let told = Told { assignment: following.assignment, input };
                        let _ = following.to.send(told);
                    }
                }
                self.lanes.retain(|_, following| following.telling.is_some());
            }
        }
        for (lane, following) in &mut self.lanes {
            following.next = Offset(0);
            following.changes.clear();
            if let Some((_, holding)) = &mut following.telling {
                *holding = Holding::default();
            }
            self.progress.set(*lane, None);
        }
        self.is_moved = true;
    }
}

impl Following {
    /// Whether somebody waits until reading has come to some offset.
    fn is_awaited(&self) -> bool {
        self.telling.is_some() || self.forgettable.is_some()
    }

    fn take(&mut self, has_index: bool, key: Option<&[u8]>, value: Option<&[u8]>) {
        let Ok(change) = Change::decode(key, value) else {
            self.unreadable += 1;
            return;
        };
        if let Some((_, holding)) = &mut self.telling {
            holding.take(&change);
        }
        if has_index {
            self.changes.push(change);
        }
    }

    fn say_unreadable(&mut self, lane: Lane) {
        let records = std::mem::take(&mut self.unreadable);
        if records > 0 {
            tracing::error!(
                lane = lane.0,
                records,
                "records of another version, or of somebody else's, were passed over in the changelog"
            );
        }
    }
}

/// Whether tombstones may have gone that were written after this time. Half the time that they are kept is left for reading
/// what came since.
fn is_stale(at: UnixMillis, now: UnixMillis, tombstones: Millis) -> bool {
    now - at > tombstones.half() || at - now > AHEAD_MAX
}
