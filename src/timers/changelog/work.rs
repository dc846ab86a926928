//! The thread that owns the index: reads, writes, reports.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::following::{Following, Loading, is_stale};
use super::holding::Holding;
use super::upkeep::LOOK_SOON;
use super::{CLIENT, Progress, Request, WAIT};
use crate::engine::timers::{Filter, TimerId, TimerState};
use crate::engine::{Event, Lane, Millis, Offset, UnixMillis};
use crate::kafka::end_offsets::{self, EndOffsets};
use crate::kafka::member::AssignmentEvent;
use crate::kafka::topic_reader::{Polled, StartAt, is_lasting};
use crate::kafka::{BrokerClock, Connection, Isolation, KafkaError, TopicReader, Written};
use crate::telemetry::{self, Rebuilt};
use crate::timers::index::{self, BATCH_MAX, Index};

/// The longest wait in one poll: an order is noticed within it.
const POLL_MAX: Duration = Duration::from_millis(50);
/// The same while somebody waits for a position, which a marker passes without ending a poll.
const POLL_SHORT: Duration = Duration::from_millis(5);
/// Longest wait for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Overdue timers that are told at once, at most.
const OVERDUE_MAX: usize = 500;
/// Timers to be forgotten that are told at once, at most.
const FORGET_MAX: usize = 500;

/// Where ends come, lanes with what they will make good of them, and how far the index is behind those that came.
type EndsListing = (Receiver<end_offsets::Answer>, Vec<(Lane, u64)>, u64);

/// The thread that owns the index.
pub(super) struct IndexThread {
    /// `None` once it is given up.
    pub(super) index: Option<Index>,
    pub(super) connection: Connection,
    /// Made again with every assignment: positions of an earlier one linger, and would be taken for what was read.
    pub(super) consumer: TopicReader,
    pub(super) topic: Arc<str>,
    pub(super) tombstones: Millis,
    pub(super) clock: Arc<BrokerClock>,
    pub(super) ends: EndOffsets,
    pub(super) written: Arc<Written>,
    /// The ends on their way.
    pub(super) listing: Option<EndsListing>,
    pub(super) lanes: BTreeMap<Lane, Following>,
    pub(super) progress: Arc<Progress>,
    /// The consumer does not read yet what is followed.
    pub(super) is_moved: bool,
    pub(super) renewals: u32,
    pub(super) look: Instant,
    /// Of the lanes that come up.
    pub(super) loading: Loading,
}

impl IndexThread {
    pub(super) fn run(mut self, requests: &Receiver<Request>) {
        loop {
            let request = match (self.lanes.is_empty(), requests.try_recv()) {
                (_, Ok(order)) => Ok(order),
                (true, _) => requests.recv_timeout(POLL_MAX * 20),
                (false, Err(crossbeam_channel::TryRecvError::Disconnected)) => {
                    Err(RecvTimeoutError::Disconnected)
                }
                (false, Err(_)) => Err(RecvTimeoutError::Timeout),
            };
            match request {
                Ok(Request::Close) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(request) => self.serve(request),
                Err(RecvTimeoutError::Timeout) => self.turn(),
            }
        }
        if let Some(index) = self.index.take() {
            index.close();
        }
    }

    fn serve(&mut self, request: Request) {
        match request {
            // Ends the thread, and does not come here.
            Request::Close => {}
            Request::Begin { assignment, lanes, to } => {
                if self.loading.lanes.is_empty() {
                    self.loading = Loading::new();
                }
                for (lane, end) in lanes {
                    let (next, holding, entries) = self.load(lane, end).unwrap_or_else(|error| {
                        self.failed(error);
                        (Offset(0), Holding::default(), 0)
                    });
                    self.loading.lanes.push(lane);
                    self.loading.indexed += entries;
                    let following = Following {
                        assignment,
                        to: to.clone(),
                        next,
                        changes: Vec::new(),
                        at: UnixMillis(0),
                        handover: Some((end, holding)),
                        expired: None,
                        recall: None,
                        unreadable: 0,
                    };
                    self.lanes.insert(lane, following);
                    self.progress.set(lane, None);
                    self.is_moved = true;
                    // What the index has may be all.
                    self.hand_over();
                }
                self.look = Instant::now() + LOOK_SOON;
            }
            Request::Release { assignment } => {
                let gone = self.lanes.extract_if(.., |_, of| of.assignment == assignment);
                for (lane, _) in gone.collect::<Vec<_>>() {
                    self.progress.set(lane, None);
                    self.is_moved = true;
                    if let Some(index) = &mut self.index {
                        index.release(lane);
                    }
                }
                if !self.lanes.values().any(|of| of.handover.is_some()) {
                    self.loading.lanes.clear();
                    telemetry::lanes_loading(0, 0);
                }
            }
            Request::Recall { assignment, lane, timers, to } => {
                self.recall((assignment, lane), timers, &to);
            }
            Request::Overdue { assignment, of, to } => {
                let lane = of.0;
                let index::Listing { timers, more } = self.overdue(of);
                let _ = to.send(AssignmentEvent {
                    assignment,
                    event: Event::Overdue { lane, timers, more },
                });
            }
            Request::ListExpired { assignment, lane, what, to } => {
                // Without a mark, the committed end is unknown. It will be known soon; ask again in a minute.
                let mark = self.written.mark(lane).filter(|_| self.index.is_some());
                let following = self.lanes.get_mut(&lane).filter(|of| of.assignment == assignment);
                match (following, mark) {
                    (Some(following), Some(mark)) => following.expired = Some((mark, what)),
                    // Without an index nobody knows; they are forgotten in a run that has one.
                    _ => {
                        let event = Event::Expired { lane, timers: Vec::new(), tasks: Vec::new() };
                        let _ = to.send(AssignmentEvent { assignment, event });
                    }
                }
            }
        }
    }

    fn recall(
        &mut self,
        (assignment, lane): (u64, Lane),
        timers: Vec<TimerId>,
        to: &Sender<AssignmentEvent>,
    ) {
        let following = self.lanes.get_mut(&lane).filter(|of| of.assignment == assignment);
        match following.filter(|_| self.index.is_some()) {
            Some(following) => following.recall = Some((self.written.mark(lane), timers)),
            // Without an index nobody knows.
            None => {
                let timers = timers.into_iter().map(|timer_id| (timer_id, None)).collect();
                let event = Event::Recalled { lane, timers };
                let _ = to.send(AssignmentEvent { assignment, event });
            }
        }
    }

    /// Pending timers that were due before a time. Without an index nobody knows; they are found in a run that has one.
    fn overdue(&self, (lane, before, after): super::Overdue) -> index::Listing {
        let Some(reader) = self.index.as_ref().map(Index::reader) else {
            return index::Listing::default();
        };
        let found = reader.first_due(lane).and_then(|first| match first {
            Some(first) if first < before => {
                let filter = Filter {
                    state: Some(TimerState::Delay),
                    due_after: Some(first),
                    due_before: Some(before),
                    ..Filter::default()
                };
                reader.page_with_tasks(lane, &filter, after, OVERDUE_MAX)
            }
            _ => Ok(index::Listing::default()),
        });
        // An error of the index is found by the thread that writes to it.
        found.unwrap_or_default()
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
                index.outdated(lane, Rebuilt::Stale)?;
            }
            // The changelog was created again.
            Some(position) if position.next > end => index.outdated(lane, Rebuilt::Outside)?,
            Some(position) => return Ok((position.next, holding, position.entries)),
        }
        Ok(nothing())
    }

    /// Has the consumer read the lanes that are followed, each from where it is.
    fn assign(&mut self) -> Result<(), KafkaError> {
        let places = self.lanes.iter().map(|(lane, following)| {
            let from = match following.next {
                Offset(0) => StartAt::Beginning,
                next => StartAt::Offset(next),
            };
            (i32::from(lane.0), from)
        });
        let mut consumer = TopicReader::new(&self.connection, CLIENT, Isolation::Committed, WAIT)?;
        consumer.assign(&self.topic, places)?;
        self.consumer = consumer;
        self.is_moved = false;
        Ok(())
    }

    /// Reads the records at hand, puts them into the index, and reports what is to be reported.
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
            self.hand_over();
            done = self.forget().and_then(|()| self.remember());
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
                Some(Polled::Record(message)) => {
                    let lane = u16::try_from(message.partition()).map(Lane).ok();
                    let Some(following) = lane.and_then(|lane| self.lanes.get_mut(&lane)) else {
                        continue;
                    };
                    self.loading.records += u64::from(following.handover.is_some());
                    following.take(self.index.is_some(), message.key(), message.value());
                    following.next = message.offset().next();
                    following.at = message.appended().unwrap_or(following.at);
                }
                Some(Polled::Outside(at, error)) => {
                    tracing::warn!(%error, %at, "records of the changelog were deleted, reading the lanes again");
                    if let Err(error) = self.read_again() {
                        self.failed(error);
                    }
                    break;
                }
                Some(Polled::End(_)) => {}
                Some(Polled::Failed(error, _)) => {
                    let what = "following the changelog";
                    if is_lasting(&error) {
                        tracing::warn!(%error, what);
                    } else {
                        tracing::debug!(%error, what);
                    }
                }
            }
            timeout = Duration::ZERO;
        }
    }

    /// Begins the lanes again whose positions are not in the changelog any more. A lane that cannot be looked at is started again,
    /// too: that costs time and no timer.
    fn read_again(&mut self) -> Result<(), index::Error> {
        for (lane, following) in &mut self.lanes {
            let inside = self
                .consumer
                .ends(&self.topic, i32::from(lane.0), ANSWER_MAX)
                .is_ok_and(|(first, end)| (first..=end).contains(&following.next));
            if inside {
                continue;
            }
            following.changes.clear();
            following.next = Offset(0);
            if let Some((_, holding)) = &mut following.handover {
                *holding = Holding::default();
            }
            if let Some(index) = &mut self.index {
                index.outdated(*lane, Rebuilt::Outside)?;
            }
        }
        self.is_moved = true;
        Ok(())
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
    fn hand_over(&mut self) {
        for (lane, following) in &mut self.lanes {
            let next = following.next;
            if let Some((_, holding)) = following.handover.take_if(|(end, _)| next >= *end) {
                following.say_unreadable(*lane);
                holding.hand_over(*lane, following.assignment, &following.to);
                self.progress.set(*lane, Some(next));
            }
        }
        if self.index.is_none() {
            // Nobody needs to hear more of those that were told.
            let before = self.lanes.len();
            self.lanes.retain(|_, following| following.handover.is_some());
            self.is_moved |= before != self.lanes.len();
        }
        self.say();
    }

    /// Tells which timers are final for long enough.
    fn forget(&mut self) -> Result<(), index::Error> {
        let Some(index) = &mut self.index else { return Ok(()) };
        for (lane, following) in &mut self.lanes {
            let next = following.next;
            if let Some((_, what)) = following.expired.take_if(|(mark, _)| next >= *mark) {
                let gone = index.forgettable(*lane, what, FORGET_MAX)?;
                let timers = gone.iter().map(|of| of.timer_id).collect();
                let tasks = gone.iter().filter_map(|of| Some((of.timer_id, of.task?))).collect();
                let event = Event::Expired { lane: *lane, timers, tasks };
                let _ =
                    following.to.send(AssignmentEvent { assignment: following.assignment, event });
            }
        }
        Ok(())
    }

    /// Tells how timers ended that are asked about.
    fn remember(&mut self) -> Result<(), index::Error> {
        let Some(index) = &mut self.index else { return Ok(()) };
        for (lane, following) in &mut self.lanes {
            let Some((mark, timers)) = &mut following.recall else { continue };
            *mark = mark.or_else(|| self.written.mark(*lane));
            if mark.is_none_or(|mark| following.next < mark) {
                continue;
            }
            let mut ended = Vec::with_capacity(timers.len());
            for timer_id in timers.iter() {
                ended.push((
                    *timer_id,
                    index.find(*lane, *timer_id)?.and_then(|timer| timer.ended()),
                ));
            }
            following.recall = None;
            following.tell_ended(*lane, ended);
        }
        Ok(())
    }

    pub(super) fn pass(&mut self) {
        let Ok(passed) = self.consumer.positions(&self.topic) else { return };
        for (partition, passed) in passed {
            let lane = u16::try_from(partition).map(Lane).ok();
            if let Some(following) = lane.and_then(|lane| self.lanes.get_mut(&lane)) {
                following.next = following.next.max(passed);
            }
        }
    }
}
