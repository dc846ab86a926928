//! A Kafka of logs in memory, and one engine at a time that works on it: everything is there at once, nothing fails but by
//! order.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use crate::allow::Allow;
use crate::header::Code;
use crate::ladder::Ladder;
use crate::messages::{
    Action, Answer, Batch, ChangeReason, Commit, Destination, Event, HeaderRewrite, Start, Target,
};
use crate::setup::{Intake, Limits, Setup, Topics};
use crate::state::StateKey;
use crate::timers::{CancelMark, Change, Live, Timer, TimerId};
use crate::window::Window;
use crate::{
    BatchId, Figures, Lane, LaneEngine, Millis, Offset, Record, Source, TopicId, UnixMillis, left,
    murmur2,
};

pub(super) const LANES: u16 = 2;
pub(super) const BEGAN: UnixMillis = UnixMillis(1_800_000_000_000);
pub(super) const TARGET: &str = "orders.out";
pub(super) const MISSING: &str = "orders.missing";
pub(super) const HISTORY: Millis = Millis(60_000);

/// What came out: the `n` of a record, when, and with what code if it is a dead letter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Out {
    pub(super) n: String,
    pub(super) at: UnixMillis,
    pub(super) code: Option<Code>,
}

pub(super) struct Kafka {
    pub(super) engine: LaneEngine,
    pub(super) setup: Arc<Setup>,
    pub(super) now: UnixMillis,
    logs: HashMap<Source, Vec<(UnixMillis, Record)>>,
    /// Next offset to tell, and whether it is paused.
    reading: BTreeMap<Source, (usize, bool)>,
    commits: HashMap<Source, Commit>,
    /// Where logs begin of which something was deleted.
    starts: HashMap<Source, Offset>,
    /// The changelog, compacted.
    pub(super) timers: BTreeMap<(u16, Vec<u8>), Change>,
    pub(super) said: Vec<(ChangeReason, Change)>,
    pub(super) out: Vec<Out>,
    pub(super) answers: Vec<Answer>,
    /// Intakes were created again.
    is_remade: bool,
    /// Ends of intakes are not told.
    pub(super) silent: bool,
    pub(super) asked: Vec<Vec<Source>>,
    /// The next batch fails, and what was held with it.
    pub(super) fails: bool,
    /// Lanes of which not everything is told.
    pub(super) unknown: Vec<Lane>,
    pub(super) batches: Vec<usize>,
    pub(super) is_up: bool,
    /// Questions about what has ended that are not answered, and whether they stay so for now.
    recalls: Vec<(Lane, Vec<TimerId>)>,
    pub(super) recalls_late: bool,
    /// Timers that the index was asked about.
    pub(super) recalled: usize,
    /// Partitions that are not read: their owner stands still.
    pub(super) stalled: BTreeSet<Source>,
    /// How far the leaders of what waterclock writes are ahead.
    pub(super) ahead: Millis,
    /// A new owner of lanes is told that records are gone: of all, or of none.
    pub(super) is_told_gone: bool,
    /// Lanes whose topics cannot be read beside their work.
    pub(super) unreadable: Vec<Lane>,
    /// The rest of the lane is read when the test [says so](Self::read_left).
    pub(super) counts_late: bool,
    left: Option<(Lane, Vec<(Source, Offset)>)>,
    /// How long a batch is on its way, and those that are: when each lands.
    pub(super) flight: Millis,
    in_flight: VecDeque<(UnixMillis, Batch)>,
    /// How often what is left was read.
    pub(super) inventories: usize,
}

/// Logs by partition: append times and records.
pub(super) type Logs = Vec<(Source, Vec<(UnixMillis, Record)>)>;

pub(super) fn source(topic: u16, lane: u16) -> Source {
    Source { topic: TopicId(topic), lane: Lane(lane) }
}

pub(super) fn lane_of(key: &str) -> u16 {
    murmur2::partition(key.as_bytes(), LANES)
}

pub(super) fn record(key: &str, headers: &[(&str, &str)]) -> Record {
    let headers = headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
    Record::new(Some(key.as_bytes()), Some(b"value"), headers)
}

fn n(record: &Record) -> String {
    let n = record.headers().find(|(name, _)| *name == b"n").and_then(|(_, value)| value);
    n.map(|n| String::from_utf8_lossy(n).into_owned()).unwrap_or_default()
}

impl Kafka {
    pub(super) fn new(limits: Limits) -> Self {
        Self::with_intakes(limits, &[""])
    }

    pub(super) fn with_intakes(limits: Limits, intakes: &[&str]) -> Self {
        let ladder = Ladder::new(&[1_000, 5_000, 60_000].map(Millis), &[], Millis(2_000));
        let allow = Allow::new("wc", Some(&["orders\\..*".to_owned()])).expect("patterns");
        let intake = |name: &&str| Intake::new(name, None, None, allow.clone());
        let intakes = intakes.iter().map(intake).collect();
        let topics = Topics::new("wc", intakes, ladder.expect("a ladder"));
        let setup = Setup { lanes: LANES, topics, key: StateKey::new([7; 32]), limits };
        let setup = Arc::new(setup);
        let mut kafka = Self {
            engine: LaneEngine::new(Arc::clone(&setup)),
            setup,
            now: BEGAN,
            logs: HashMap::new(),
            reading: BTreeMap::new(),
            commits: HashMap::new(),
            starts: HashMap::new(),
            timers: BTreeMap::new(),
            said: Vec::new(),
            out: Vec::new(),
            answers: Vec::new(),
            is_remade: false,
            silent: false,
            asked: Vec::new(),
            fails: false,
            unknown: Vec::new(),
            batches: Vec::new(),
            is_up: false,
            recalls: Vec::new(),
            recalls_late: false,
            recalled: 0,
            stalled: BTreeSet::new(),
            ahead: Millis(0),
            is_told_gone: false,
            unreadable: Vec::new(),
            counts_late: false,
            left: None,
            flight: Millis(0),
            in_flight: VecDeque::new(),
            inventories: 0,
        };
        kafka.take_over(&[]);
        kafka
    }

    pub(super) fn limits() -> Limits {
        Limits {
            hop_linger: Millis(50),
            batch_gap: Millis(0),
            history: HISTORY,
            ..Limits::default()
        }
    }

    pub(super) fn figures(&self) -> Figures {
        self.engine.figures()
    }

    /// Appends a record. A running member reads it at once.
    pub(super) fn append(&mut self, at: Source, record: Record) -> Offset {
        self.append_at(at, self.now, record)
    }

    /// As [`append`](Self::append), by a leader whose clock shows this time.
    pub(super) fn append_at(&mut self, at: Source, time: UnixMillis, record: Record) -> Offset {
        let log = self.logs.entry(at).or_default();
        log.push((time, record));
        Offset(log.len() as i64 - 1)
    }

    pub(super) fn end(&self, at: Source) -> Offset {
        Offset(self.logs.get(&at).map_or(0, Vec::len) as i64)
    }

    /// Appends a record to the intake, in its lane.
    pub(super) fn submit(&mut self, key: &str, headers: &[(&str, &str)]) -> Offset {
        self.append(source(0, lane_of(key)), record(key, headers))
    }

    /// The owner is gone, with all that it held.
    pub(super) fn stop(&mut self) {
        self.is_up = false;
        self.in_flight.clear();
        self.engine.step(self.now, Event::Revoked, &mut Vec::new());
    }

    /// Somebody deletes the intake and makes it again.
    pub(super) fn remake_intake(&mut self) {
        self.is_remade = true;
        for lane in 0..LANES {
            self.logs.remove(&source(0, lane));
            self.commits.remove(&source(0, lane));
        }
    }

    /// Somebody deletes all that stands in a partition.
    pub(super) fn delete(&mut self, at: Source) {
        self.starts.insert(at, self.end(at));
    }

    /// Takes all logs of these partitions away, to be [shown](Self::show) again.
    pub(super) fn hide(&mut self, at: &[Source]) -> Logs {
        at.iter().filter_map(|at| Some((*at, self.logs.remove(at)?))).collect()
    }

    /// Puts logs back behind what was read of them.
    pub(super) fn show(&mut self, logs: Logs) {
        for (at, records) in logs {
            self.logs.entry(at).or_default().extend(records);
        }
    }

    /// Another owner takes the lanes over; of these it is not told all that is known.
    pub(super) fn take_over(&mut self, unknown: &[Lane]) {
        self.engine = LaneEngine::new(Arc::clone(&self.setup));
        self.assign(unknown);
    }

    fn assign(&mut self, unknown: &[Lane]) {
        let topics = self.setup.topics.names().len() as u16;
        let every = (0..topics).flat_map(|topic| (0..LANES).map(move |lane| source(topic, lane)));
        let mut starts = Vec::new();
        for source in every {
            let commit = self.commits.get(&source);
            let next = commit.map_or(Offset(0), |commit| commit.next);
            let metadata = commit.map_or_else(String::new, |commit| commit.metadata.clone());
            let start = self.starts.get(&source).copied().unwrap_or_default();
            let (next, metadata) = if next < start {
                let (next, metadata, _) = Window::cut(next, &metadata, start).expect("ours");
                (next, metadata)
            } else {
                (next, metadata)
            };
            self.reading.insert(source, (next.0 as usize, false));
            let (end, gone) = (self.end(source), self.is_told_gone);
            starts.push(Start { source, next, metadata, end, gone });
        }
        self.is_up = true;
        self.unknown = unknown.to_vec();
        self.tell(Event::Registry(Arc::default()));
        self.tell(Event::Assigned { starts });
        if self.is_remade {
            self.tell(Event::Recreated);
        }
        for lane in (0..LANES).map(Lane) {
            self.know(lane, !unknown.contains(&lane));
        }
    }

    /// Tells what is known of a lane in small pieces: all of it, or a part.
    fn know(&mut self, lane: Lane, whole: bool) {
        let of_lane = self.timers.range((lane.0, Vec::new())..(lane.0 + 1, Vec::new()));
        let changes: Vec<Change> = of_lane.map(|(_, change)| change.clone()).collect();
        for change in changes {
            let (mut live, mut cancel_marks): (Vec<Live>, Vec<CancelMark>) = Default::default();
            match change {
                Change::Timer(timer) => live.extend(timer.live()),
                Change::CancelMark(mark) => cancel_marks.push(mark),
                _ => {}
            }
            if whole {
                self.tell(Event::TimersLoaded { lane, live, cancel_marks, last: false });
            }
        }
        if whole {
            let (live, cancel_marks) = (Vec::new(), Vec::new());
            self.tell(Event::TimersLoaded { lane, live, cancel_marks, last: whole });
        }
    }

    /// Tells what has not been told of a lane.
    pub(super) fn tell_unknown(&mut self) {
        for lane in std::mem::take(&mut self.unknown) {
            self.know(lane, true);
        }
        self.quiesce();
    }

    fn tell(&mut self, event: Event) {
        let mut out = Vec::new();
        self.engine.step(self.now, event, &mut out);
        for order in out {
            self.carry_out(order);
        }
    }

    /// Reads the next partition of what is left of a lane, or says that this was all.
    pub(super) fn read_left(&mut self) {
        let Some((lane, mut from)) = self.left.take() else { return };
        if from.is_empty() {
            let is_complete = !self.unreadable.contains(&lane);
            return self.tell(Event::Counted { lane, is_complete });
        }
        let (source, low) = from.remove(0);
        let start = self.starts.get(&source).copied().unwrap_or_default().max(low);
        let log = self.logs.get(&source).into_iter().flatten().enumerate();
        let records = log.skip(start.0 as usize).filter_map(|(at, (time, record))| {
            left(&self.setup, (source, Offset(at as i64)), *time, record)
        });
        let records = records.collect();
        self.left = Some((lane, from));
        self.tell(Event::Left { lane, records });
    }

    fn carry_out(&mut self, order: Action) {
        match order {
            Action::Pause(at) => self.reading.entry(at).or_default().1 = true,
            Action::Resume(at) => self.reading.entry(at).or_default().1 = false,
            Action::Seek(at, offset) => {
                self.reading.entry(at).or_default().0 = offset.0 as usize;
            }
            Action::DescribeTarget(name) => {
                let target = if *name == *MISSING {
                    Target::Missing
                } else {
                    Target::Found { partitions: 3, record_bytes_max: 1_048_588, keyed: false }
                };
                self.tell(Event::Target(name, target));
            }
            Action::ListEndOffsets(sources) => {
                self.asked.push(sources.clone());
                if !self.silent {
                    self.read();
                    let at = self.now;
                    for source in sources {
                        // A paused partition gets no `ReadUpTo`.
                        if self.reading[&source].0 as i64 >= self.end(source).0 {
                            self.tell(Event::ReadUpTo { source, at });
                        }
                    }
                }
            }
            Action::Overdue { lane, before, after } => {
                assert!(after.is_none(), "all were told");
                let of_lane = self.timers.range((lane.0, Vec::new())..(lane.0 + 1, Vec::new()));
                let timers = of_lane.filter_map(|(_, change)| match change {
                    Change::Timer(timer) if !timer.state.is_final() && timer.due < before => {
                        Some(timer.clone())
                    }
                    _ => None,
                });
                let timers = timers.collect();
                self.tell(Event::Overdue { lane, timers, more: None });
            }
            Action::Inventory { lane, from } => {
                self.inventories += 1;
                self.left = Some((lane, from));
                while !self.counts_late && self.left.is_some() {
                    self.read_left();
                }
            }
            Action::ListExpired(lane) => {
                let before = self.now - HISTORY;
                let of_lane = self.timers.range((lane.0, Vec::new())..(lane.0 + 1, Vec::new()));
                let timers = of_lane.filter_map(|(_, change)| match change {
                    Change::Timer(timer) if timer.state.is_final() && timer.since < before => {
                        Some(timer.timer_id)
                    }
                    _ => None,
                });
                let timers = timers.take(3).collect();
                self.tell(Event::Expired { lane, timers, tasks: Vec::new() });
            }
            Action::Recall { lane, timers } => {
                self.recalls.push((lane, timers));
                if !self.recalls_late {
                    self.recall();
                }
            }
            Action::Batch(batch) => self.take(batch),
        }
    }

    /// Tells how timers ended that were asked about.
    pub(super) fn recall(&mut self) {
        for (lane, timers) in std::mem::take(&mut self.recalls) {
            self.recalled += timers.len();
            let ended = |timer_id: TimerId| match self.timers.get(&(lane.0, timer_id.0.to_vec())) {
                Some(Change::Timer(timer)) => (timer_id, timer.ended()),
                _ => (timer_id, None),
            };
            let timers = timers.into_iter().map(ended).collect();
            self.tell(Event::Recalled { lane, timers });
        }
    }

    fn take(&mut self, batch: Batch) {
        if std::mem::take(&mut self.fails) {
            self.tell(Event::Revoked);
            let unknown = std::mem::take(&mut self.unknown);
            return self.assign(&unknown);
        }
        self.batches.push(batch.sends.len());
        if self.flight > Millis(0) {
            return self.in_flight.push_back((self.now + self.flight, batch));
        }
        self.land(batch);
    }

    fn land(&mut self, batch: Batch) {
        let Batch { id, sends, commits, answers } = batch;
        for send in sends {
            match (&send.to, &send.rewrite) {
                (Destination::Lane(topic), _) => {
                    let mut headers = Vec::new();
                    send.headers(|name, value| headers.push((name.to_vec(), value.map(Vec::from))));
                    let (key, value) = (send.record.key(), send.record.value());
                    let headers = headers.iter().map(|(n, v)| (&n[..], v.as_deref()));
                    let record = Record::new(key, value, headers);
                    let lane = send.partition.expect("a lane") as u16;
                    self.append_at(source(topic.0, lane), self.now + self.ahead, record);
                }
                (Destination::Target(_), _) => {
                    self.out.push(Out { n: n(&send.record), at: self.now, code: None });
                }
                (Destination::Dead, HeaderRewrite::Dead(letter)) => {
                    let code = Some(letter.code);
                    self.out.push(Out { n: n(&send.record), at: self.now, code });
                }
                (Destination::Timers, HeaderRewrite::Timer(said)) => {
                    let (key, value) = (said.record.key(), said.record.value());
                    let change = Change::decode(key, value).expect("ours");
                    let lane = send.partition.expect("a lane") as u16;
                    let key = (lane, key.expect("a key").to_vec());
                    match value {
                        Some(_) => self.timers.insert(key, change.clone()),
                        None => self.timers.remove(&key),
                    };
                    self.said.push((said.reason, change));
                }
                other => panic!("{other:?}"),
            }
        }
        self.commits.extend(commits.into_iter().map(|commit| (commit.source, commit)));
        self.answers.extend(answers);
        self.commit(id);
    }

    fn commit(&mut self, id: BatchId) {
        self.tell(Event::Committed(id));
    }

    /// Tells everything that may be read: intakes first.
    fn read(&mut self) -> bool {
        let mut told = false;
        let sources: Vec<Source> = self.reading.keys().copied().collect();
        for source in sources {
            while !self.stalled.contains(&source)
                && let Some(&(next, false)) = self.reading.get(&source)
                && let Some((appended, record)) =
                    self.logs.get(&source).and_then(|log| log.get(next))
            {
                let (appended, record) = (*appended, record.clone());
                self.reading.entry(source).or_default().0 += 1;
                let offset = Offset(next as i64);
                self.tell(Event::Record { source, offset, appended, record });
                told = true;
            }
        }
        told
    }

    /// Lets everything happen that can happen at this time.
    pub(super) fn quiesce(&mut self) {
        for _ in 0..1_000 {
            if !self.is_up {
                return;
            }
            let (batches, asked) = (self.batches.len(), self.asked.len());
            let told = self.read();
            self.tell(Event::Tick);
            let still = !told && (batches, asked) == (self.batches.len(), self.asked.len());
            if still && self.engine.wake_at().is_none_or(|at| at > self.now) {
                return;
            }
        }
        if !self.silent {
            panic!("no end");
        }
    }

    /// Lets time pass.
    pub(super) fn after(&mut self, wait: Millis) {
        let until = self.now + wait;
        self.quiesce();
        while self.now < until {
            let wake = if self.is_up { self.engine.wake_at() } else { None };
            let lands = self.in_flight.front().map(|(at, _)| *at);
            let next = wake.into_iter().chain(lands).min().unwrap_or(until);
            self.now = next.clamp(self.now + Millis(1), until);
            while let Some((_, batch)) = self.in_flight.pop_front_if(|(at, _)| *at <= self.now) {
                self.land(batch);
            }
            self.quiesce();
        }
    }

    /// What the changelog says of a timer.
    pub(super) fn timer(&self, key: &str, id: &str) -> Option<Timer> {
        let timer_id = TimerId::new(Some(key.as_bytes()), id.as_bytes());
        match self.timers.get(&(lane_of(key), timer_id.0.to_vec())) {
            Some(Change::Timer(timer)) => Some(timer.clone()),
            _ => None,
        }
    }

    /// The `n` of the record that stands there.
    pub(super) fn n_at(&self, at: Source, offset: Offset) -> String {
        n(&self.logs[&at][offset.0 as usize].1)
    }

    /// How many records are pending.
    pub(super) fn pending(&self) -> usize {
        self.engine.read_positions().map(|read| read.pending).sum()
    }
}
