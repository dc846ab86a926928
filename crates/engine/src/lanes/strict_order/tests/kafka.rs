//! Logs, transactions and one engine at a time. Its leaders stall (they take nothing and give nothing) and crawl.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::allow::Allow;
use crate::ladder::Ladder;
use crate::member::Timing;
use crate::messages::{Blame, Refused};
use crate::setup::{Arrival, Intake, Limits, Setup, Topics};
use crate::state::StateKey;
use crate::task::registry::Registry;
use crate::{
    Action, Batch, Commit, Destination, Event, Lane, LaneEngine, Millis, Offset, Record, Source,
    Start, Target, TopicId, UnixMillis, murmur2,
};

pub(super) const LANES: u16 = 2;
pub(super) const TIERS: [u64; 4] = [1_000, 3_000, 5_000, 10_000];
pub(super) const SETTLE: Millis = Millis(50);
const BEGAN: UnixMillis = UnixMillis(1_800_000_000_000);
/// What every question and every commit takes.
const LATENCY: Millis = Millis(3);
/// Between two records of a partition that crawls.
const CRAWL: Millis = Millis(150);
/// Before lanes are taken over again.
const RETAKE: Millis = Millis(300);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pace {
    Stalls,
    Crawls,
    #[default]
    Runs,
}

/// A record as its producer knows it.
#[derive(Clone, Debug)]
pub(super) struct Submitted {
    pub(super) key: String,
    pub(super) due: UnixMillis,
    /// Where it counts from: where it was written, or where it was moved to.
    pub(super) source: Source,
    pub(super) appended: UnixMillis,
    pub(super) offset: Offset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    Committed,
    Aborted,
}

struct Entry {
    appended: UnixMillis,
    record: Record,
    fate: Fate,
}

#[derive(Default)]
struct Reading {
    next: usize,
    paused: bool,
    from: UnixMillis,
}

struct Flight {
    batch: Batch,
    /// Where each hop or move stands, once it is appended.
    places: Vec<Option<(Source, usize)>>,
    /// When it may be committed; set once all of it is appended.
    ready: Option<UnixMillis>,
}

/// A question to a leader: when it is there, when it was asked, and what it said.
struct Question {
    arrives: UnixMillis,
    at: UnixMillis,
    end: Option<usize>,
}

pub(super) struct Kafka {
    pub(super) engine: LaneEngine,
    pub(super) now: UnixMillis,
    pub(super) submitted: Vec<Submitted>,
    /// What arrived, and when.
    pub(super) arrived: Vec<(usize, UnixMillis)>,
    pub(super) asked: usize,
    pub(super) aborted: usize,
    /// One of so many transactions is aborted, and the lanes are taken over again.
    pub(super) aborts_every: Option<usize>,
    /// Every hop stands in its tier so many times: what a crash leaves behind in `at_least_once`.
    pub(super) copies: usize,
    /// What is said of the target.
    pub(super) registry: Arc<Registry>,
    ended: usize,
    setup: Arc<Setup>,
    logs: BTreeMap<Source, Vec<Entry>>,
    paces: BTreeMap<u16, Pace>,
    reading: BTreeMap<Source, Reading>,
    commits: BTreeMap<Source, Commit>,
    flight: Option<Flight>,
    questions: BTreeMap<Source, Question>,
    /// Partitions that are not read to their end at the take-over.
    behind: BTreeMap<Source, usize>,
    is_up: bool,
    retake: Option<UnixMillis>,
}

pub(super) fn source(topic: u16, lane: u16) -> Source {
    Source { topic: TopicId(topic), lane: Lane(lane) }
}

pub(super) fn lane_of(key: &str) -> u16 {
    murmur2::partition(key.as_bytes(), LANES)
}

fn n(record: &Record) -> usize {
    let n = record.headers().find(|(name, _)| *name == b"n").and_then(|(_, value)| value);
    n.and_then(|n| std::str::from_utf8(n).ok()?.parse().ok()).expect("a number")
}

impl Kafka {
    pub(super) fn limits() -> Limits {
        Limits { arrival: Arrival::Strict, settle: Some(SETTLE), ..Limits::default() }
    }

    pub(super) fn new(limits: Limits) -> Self {
        let ladder = Ladder::new(&TIERS.map(Millis), &[], Millis(2_000)).expect("a ladder");
        let allow = Allow::new("wc", Some(&["out".to_owned()])).expect("patterns");
        let topics = Topics::new("wc", vec![Intake::new("", None, Some("out"), allow)], ladder);
        let setup = Setup { lanes: LANES, topics, key: StateKey::new([7; 32]), limits };
        let setup = Arc::new(setup);
        let mut kafka = Self {
            engine: LaneEngine::new(Arc::clone(&setup)),
            now: BEGAN,
            submitted: Vec::new(),
            arrived: Vec::new(),
            asked: 0,
            aborted: 0,
            aborts_every: None,
            copies: 1,
            registry: Arc::default(),
            ended: 0,
            setup,
            logs: BTreeMap::new(),
            paces: BTreeMap::new(),
            reading: BTreeMap::new(),
            commits: BTreeMap::new(),
            flight: None,
            questions: BTreeMap::new(),
            behind: BTreeMap::new(),
            is_up: false,
            retake: None,
        };
        kafka.take_over();
        kafka
    }

    // Producers.

    pub(super) fn submit(&mut self, key: &str, headers: &[(&str, &str)], stray: bool) {
        let at = source(0, (lane_of(key) + u16::from(stray)) % LANES);
        let (name, value) = headers[0];
        let value: u64 = value.parse().expect("milliseconds");
        let due = if name == "x-delay" { self.now + Millis(value) } else { UnixMillis(value) };
        self.write(at, key, due, headers);
    }

    pub(super) fn write_to_tier(&mut self, key: &str, tier: usize) {
        let at = source(tier as u16 + 1, lane_of(key));
        // The main intake's default is its target, too.
        self.write(at, key, self.now + Millis(TIERS[tier]), &[]);
    }

    fn write(&mut self, at: Source, key: &str, due: UnixMillis, headers: &[(&str, &str)]) {
        let n = self.submitted.len().to_string();
        let headers = headers.iter().copied().chain([("n", n.as_str())]);
        let headers = headers.map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
        let headers: Vec<_> = headers.collect();
        let record = Record::new(Some(key.as_bytes()), Some(b"v"), headers.into_iter());
        let offset = self.append(at, record, Fate::Committed);
        let (key, appended) = (key.to_owned(), self.now);
        self.submitted.push(Submitted { key, due, source: at, appended, offset });
    }

    fn append(&mut self, at: Source, record: Record, fate: Fate) -> Offset {
        let log = self.logs.entry(at).or_default();
        log.push(Entry { appended: self.now, record, fate });
        Offset(log.len() as i64 - 1)
    }

    fn end(&self, at: Source) -> usize {
        self.logs.get(&at).map_or(0, Vec::len)
    }

    // Weather.

    pub(super) fn pace(&mut self, topic: usize, pace: Pace) {
        self.paces.insert(topic as u16, pace);
    }

    pub(super) fn heal(&mut self) {
        self.paces.clear();
    }

    fn pace_of(&self, at: Source) -> Pace {
        self.paces.get(&at.topic.0).copied().unwrap_or_default()
    }

    // Owners.

    pub(super) fn stop(&mut self) {
        self.is_up = false;
        self.retake = None;
        self.abort();
        self.questions.clear();
        self.behind.clear();
    }

    fn abort(&mut self) {
        let Some(flight) = self.flight.take() else { return };
        for (at, offset) in flight.places.into_iter().flatten() {
            self.logs.get_mut(&at).expect("a log")[offset].fate = Fate::Aborted;
        }
    }

    pub(super) fn take_over(&mut self) {
        self.abort();
        self.retake = None;
        self.engine = LaneEngine::new(Arc::clone(&self.setup));
        self.hear();
        self.assign();
    }

    /// The engine hears of the target.
    pub(super) fn hear(&mut self) {
        self.tell(Event::Registry(Arc::clone(&self.registry)));
    }

    fn assign(&mut self) {
        self.questions.clear();
        self.behind.clear();
        let topics = self.setup.topics.names().len() as u16;
        let every = (0..topics).flat_map(|topic| (0..LANES).map(move |lane| source(topic, lane)));
        let (mut starts, mut read) = (Vec::new(), Vec::new());
        for source in every {
            let commit = self.commits.get(&source);
            let next = commit.map_or(Offset(0), |commit| commit.next);
            let metadata = commit.map_or_else(String::new, |commit| commit.metadata.clone());
            let end = self.end(source);
            self.reading.insert(source, Reading { next: next.0 as usize, ..Reading::default() });
            if (next.0 as usize) < end {
                self.behind.insert(source, end);
            } else {
                read.push(source);
            }
            starts.push(Start { source, next, metadata, end: Offset(end as i64), gone: false });
        }
        self.is_up = true;
        self.tell(Event::Assigned { starts });
        let at = self.now;
        for source in read {
            self.tell(Event::ReadUpTo { source, at });
        }
        for lane in (0..LANES).map(Lane) {
            self.tell(Event::TimersLoaded {
                lane,
                live: Vec::new(),
                cancel_marks: Vec::new(),
                last: true,
            });
        }
    }

    fn tell(&mut self, event: Event) {
        let mut out = Vec::new();
        self.engine.step(self.now, event, &mut out);
        for order in out {
            self.carry_out(order);
        }
    }

    fn carry_out(&mut self, order: Action) {
        match order {
            Action::Pause(at) => self.reading.entry(at).or_default().paused = true,
            Action::Resume(at) => self.reading.entry(at).or_default().paused = false,
            Action::Seek(at, offset) => {
                self.reading.entry(at).or_default().next = offset.0 as usize;
            }
            Action::Recall { lane, timers } => {
                let timers = timers.into_iter().map(|timer_id| (timer_id, None)).collect();
                self.tell(Event::Recalled { lane, timers });
            }
            Action::DescribeTarget(name) => {
                let found =
                    Target::Found { partitions: 3, record_bytes_max: 1_048_588, keyed: false };
                self.tell(Event::Target(name, found));
            }
            Action::ListEndOffsets(sources) => {
                self.asked += sources.len();
                let at = self.now;
                for source in sources {
                    let question = Question { arrives: at + LATENCY, at, end: None };
                    self.questions.insert(source, question);
                }
            }
            Action::Overdue { lane, .. } => {
                self.tell(Event::Overdue { lane, timers: Vec::new(), more: None });
            }
            Action::Inventory { .. } => unreachable!("nothing is gone"),
            Action::ListExpired(lane) => {
                self.tell(Event::Expired { lane, timers: Vec::new(), tasks: Vec::new() })
            }
            Action::Batch(batch) => {
                assert!(self.flight.is_none(), "one transaction at a time");
                let places = vec![None; batch.sends.len()];
                self.flight = Some(Flight { batch, places, ready: None });
            }
        }
    }

    /// Appends what can be appended of the batch on its way, and commits it when that is all.
    fn fly(&mut self) -> bool {
        let Some(mut flight) = self.flight.take() else { return false };
        let (mut any, mut whole) = (false, true);
        for (send, place) in flight.batch.sends.iter().zip(&mut flight.places) {
            let (Destination::Lane(topic), None) = (&send.to, &place) else { continue };
            let at = source(topic.0, send.partition.expect("a lane") as u16);
            if self.pace_of(at) == Pace::Stalls {
                whole = false;
                continue;
            }
            let mut headers = Vec::new();
            send.headers(|name, value| headers.push((name.to_vec(), value.map(Vec::from))));
            let headers = headers.iter().map(|(name, value)| (&name[..], value.as_deref()));
            let record = Record::new(send.record.key(), send.record.value(), headers);
            for _ in 1..self.copies {
                self.append(at, record.clone(), Fate::Committed);
            }
            *place = Some((at, self.append(at, record, Fate::Open).0 as usize));
            any = true;
        }
        if whole && flight.ready.is_none() {
            flight.ready = Some(self.now + LATENCY);
        }
        if flight.ready.is_some_and(|at| at <= self.now) {
            self.land(flight);
            return true;
        }
        self.flight = Some(flight);
        any
    }

    fn land(&mut self, flight: Flight) {
        self.ended += 1;
        if self.aborts_every.is_some_and(|every| self.ended.is_multiple_of(every)) {
            return self.fail(flight);
        }
        let mut late = Vec::new();
        for (send, place) in flight.batch.sends.iter().zip(&flight.places) {
            let Some((source, offset)) = *place else { continue };
            let (due, appended) = (send.due, self.logs[&source][offset].appended);
            match self.setup.timing_of_hop(source, due) {
                Timing::Hop { last, must_abort: true, .. } if appended > last => {
                    return self.refuse(flight);
                }
                Timing::Hop { last, .. } if appended > last => {
                    late.push(Event::Late { source, offset: Offset(offset as i64), due });
                }
                _ => {}
            }
        }
        let Flight { batch, places, .. } = flight;
        for (send, place) in batch.sends.iter().zip(&places) {
            match (&send.to, place) {
                (Destination::Lane(topic), Some((at, offset))) => {
                    let entry = &mut self.logs.get_mut(at).expect("a log")[*offset];
                    entry.fate = Fate::Committed;
                    if topic.0 == 0 {
                        let moved = &mut self.submitted[n(&send.record)];
                        moved.source = *at;
                        moved.appended = entry.appended;
                        moved.offset = Offset(*offset as i64);
                    }
                }
                (Destination::Target(_), _) => self.arrived.push((n(&send.record), self.now)),
                other => panic!("{other:?}"),
            }
        }
        self.commits.extend(batch.commits.into_iter().map(|commit| (commit.source, commit)));
        for event in late {
            self.tell(event);
        }
        self.tell(Event::Committed(batch.id));
    }

    fn refuse(&mut self, flight: Flight) {
        let batch = flight.batch.id;
        let (named, blame, why) = (Vec::new(), Blame::Late, "late".into());
        self.tell(Event::Refused(Refused { batch, named, blame, why }));
        self.fail(flight);
    }

    fn fail(&mut self, flight: Flight) {
        self.aborted += 1;
        self.flight = Some(flight);
        self.abort();
        self.tell(Event::Revoked);
        self.is_up = false;
        self.retake = Some(self.now + RETAKE);
    }

    /// Tells everything that may be read now, and answers what was asked.
    fn read(&mut self) -> bool {
        let mut any = false;
        let sources: Vec<Source> = self.reading.keys().copied().collect();
        for source in sources {
            while self.read_one(source) {
                any = true;
            }
        }
        let questions: Vec<Source> = self.questions.keys().copied().collect();
        for source in questions {
            let (end, next) = (self.end(source), self.position(source));
            let stalls = self.pace_of(source) == Pace::Stalls;
            let Some(question) = self.questions.get_mut(&source) else { continue };
            if question.arrives <= self.now && question.end.is_none() && !stalls {
                question.end = Some(end);
            }
            if question.end.is_some_and(|end| next >= end) {
                let at = question.at;
                self.questions.remove(&source);
                self.tell(Event::ReadUpTo { source, at });
                any = true;
            }
        }
        let passed = self.behind.iter().filter(|(source, end)| self.position(**source) >= **end);
        let passed: BTreeSet<Source> = passed.map(|(source, _)| *source).collect();
        for source in passed {
            self.behind.remove(&source);
            self.tell(Event::ReadUpTo { source, at: UnixMillis(0) });
            any = true;
        }
        any
    }

    /// Where reading is, which passes what was aborted.
    fn position(&self, at: Source) -> usize {
        let Some(reading) = self.reading.get(&at) else { return 0 };
        let log = self.logs.get(&at).map_or(&[][..], Vec::as_slice);
        let aborted = log.iter().skip(reading.next).take_while(|e| e.fate == Fate::Aborted);
        reading.next + aborted.count()
    }

    fn read_one(&mut self, source: Source) -> bool {
        let (pace, next) = (self.pace_of(source), self.position(source));
        let Some(reading) = self.reading.get_mut(&source) else { return false };
        if !self.is_up || reading.paused || reading.from > self.now || pace == Pace::Stalls {
            return false;
        }
        let entry = self.logs.get(&source).and_then(|log| log.get(next));
        let Some(entry) = entry.filter(|entry| entry.fate != Fate::Open) else { return false };
        reading.next = next + 1;
        if pace == Pace::Crawls {
            reading.from = self.now + CRAWL;
        }
        let (offset, appended) = (Offset(next as i64), entry.appended);
        let record = entry.record.clone();
        self.tell(Event::Record { source, offset, appended, record });
        true
    }

    fn quiesce(&mut self) {
        for _ in 0..100_000 {
            if self.retake.is_some_and(|at| at <= self.now) {
                self.retake = None;
                self.assign();
            }
            if !self.is_up {
                return;
            }
            let mut any = self.fly() | self.read();
            if self.is_up {
                let on_its_way = self.flight.is_some();
                self.tell(Event::Tick);
                any |= self.flight.is_some() != on_its_way;
                // Partitions that this resumed are read at once.
                any |= self.read();
            }
            if !any && self.engine.wake_at().is_none_or(|at| at > self.now) {
                return;
            }
        }
        panic!("no end: {:?}", self.engine.figures());
    }

    /// When something happens next by itself.
    fn next(&self) -> Option<UnixMillis> {
        if !self.is_up {
            return self.retake;
        }
        let questions = self.questions.values().map(|question| question.arrives);
        let crawls = self.reading.values().map(|reading| reading.from);
        let flight = self.flight.as_ref().and_then(|flight| flight.ready);
        let later = questions.chain(crawls).chain(flight).filter(|at| *at > self.now);
        later.chain(self.engine.wake_at()).min()
    }

    /// Lets time pass.
    pub(super) fn run(&mut self, wait: Millis) {
        let until = self.now + wait;
        self.quiesce();
        while self.now < until {
            let next = self.next().unwrap_or(until);
            self.now = next.max(self.now + Millis(1)).min(until);
            self.quiesce();
        }
    }
}
