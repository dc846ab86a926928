//! Lanes and a worker on one Kafka of logs in memory: tasks live their whole lives here, and either side can die at any moment.
//!
//! Transactions land at once, or not at all. What is seen is what a user sees: which calls began, and what the changelog says.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use crate::allow::Allow;
use crate::header;
use crate::ladder::Ladder;
use crate::messages::{
    Action, Answer, Batch, Blame, Commit, Destination, Event, HeaderRewrite, Refused, Start,
    Target, TracedTurn,
};
use crate::sealed::Ticket;
use crate::sealed::{self, CopyTerms, Submission, WantedCopy, Work};
use crate::setup::{Intake, Limits, Setup, Topics};
use crate::state::{State, StateKey, intake_tag};
use crate::task::follow_up::FollowUp;
use crate::task::id::TaskId;
use crate::task::registry::{self, Registry};
use crate::task::result::{Outcome, TaskResult};
use crate::task::spec::Spec;
use crate::timers::progress::{definition_key, shards_key};
use crate::timers::{
    Attempt, CancelMark, Change, Forgettable, Live, RunStatus, Timer, TimerId, TimerState, Version,
    Written,
};
use crate::work::{
    CallEnd, CallId, Entry, Now, Position, Taken, Task, WorkAction, WorkEngine, WorkEvent,
    WorkLimits,
};
use crate::{Lane, LaneEngine, Millis, Offset, Record, Source, TopicId, UnixMillis};

pub(super) const LANES: u16 = 2;
pub(super) const BEGAN: UnixMillis = UnixMillis(1_800_000_000_000);
const HISTORY: Millis = Millis(3_600_000);

/// What an endpoint does with the nth call of a task, from 0, and how long that takes.
pub(super) type Endpoint = Box<dyn FnMut(&str, usize) -> (u64, TaskResult)>;

/// A call that began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Called {
    pub(super) id: String,
    pub(super) turn: u32,
    pub(super) attempt: u32,
    pub(super) round: u32,
    pub(super) at: UnixMillis,
    pub(super) body: Vec<u8>,
    pub(super) traced: Option<TracedTurn>,
}

/// A turn as its executor is handed it.
#[derive(Clone, Debug)]
pub(super) struct Handed {
    pub(super) at: UnixMillis,
    pub(super) id: TaskId,
    pub(super) ticket: String,
    pub(super) attempt: String,
    pub(super) cursor: Option<String>,
    /// Which shard of a run it is.
    pub(super) shard: Option<String>,
    /// For which nominal time it is.
    pub(super) nominal: Option<UnixMillis>,
    /// Where it stands in its topic.
    pub(super) partition: Option<i32>,
}

impl Handed {
    fn of(at: UnixMillis, record: &Record, partition: Option<i32>) -> Option<Self> {
        let of = |wanted: &str| told(record, wanted);
        let ticket = of(header::TICKET)?;
        let id = TaskId::parse(&of(header::ID)?).expect("an id");
        assert_eq!(of(header::STATE), None, "no state leaves");
        let attempt = of(header::ATTEMPT).expect("its attempt");
        let (cursor, shard) = (of(header::CURSOR), of(header::SHARD));
        let nominal = nominal(record);
        Some(Self { at, id, ticket, attempt, cursor, shard, nominal, partition })
    }
}

/// What a header of a record says.
fn told(record: &Record, wanted: &str) -> Option<String> {
    let (_, value) = record.headers().find(|(name, _)| *name == wanted.as_bytes())?;
    Some(String::from_utf8(value?.to_vec()).expect("text"))
}

fn nominal(record: &Record) -> Option<UnixMillis> {
    told(record, header::NOMINAL).map(|at| UnixMillis(at.parse().expect("ms")))
}

struct Open {
    call: CallId,
    ends: UnixMillis,
    result: TaskResult,
}

pub(super) struct World {
    pub(super) setup: Arc<Setup>,
    pub(super) now: UnixMillis,
    pub(super) registry: Arc<Registry>,
    // What stands in Kafka.
    logs: BTreeMap<Source, Vec<(UnixMillis, Record)>>,
    tasks: Vec<Vec<(UnixMillis, Record)>>,
    /// Where each partition of `<ns>.tasks` begins: what stood before was deleted.
    begins: Vec<usize>,
    commits: HashMap<Source, Commit>,
    positions: HashMap<Lane, Position>,
    pub(super) timers: BTreeMap<(u16, Vec<u8>), Change>,
    pub(super) dead: Vec<(String, header::Code, Option<Vec<u8>>)>,
    letters: Vec<Record>,
    pub(super) delivered: Vec<(UnixMillis, Option<Vec<u8>>)>,
    /// For which nominal times that was.
    pub(super) nominals: Vec<Option<UnixMillis>>,
    /// What executors were handed.
    pub(super) handed: Vec<Handed>,
    pub(super) answers: Vec<Answer>,
    // The lanes.
    lanes: LaneEngine,
    reading: BTreeMap<Source, (usize, bool)>,
    recalls: VecDeque<(Lane, Vec<TimerId>)>,
    /// Where partitions ended when that was asked, and are not read up to yet.
    ends: Vec<(Source, usize, UnixMillis)>,
    /// Topics that are there.
    pub(super) targets: BTreeSet<String>,
    /// `Some`: what is asked about topics is answered later.
    pub(super) asked: Option<Vec<Arc<str>>>,
    // The worker.
    work: Option<WorkEngine>,
    next_task: Vec<usize>,
    paused: BTreeSet<Lane>,
    open: Vec<Open>,
    endpoint: Endpoint,
    pub(super) calls: Vec<Called>,
    /// Records that are in a transaction that lands only if this many more have landed. For kills between two steps.
    pub(super) fails_in: Option<usize>,
    pub(super) hops: usize,
    /// How many shards each run had, in each transaction that says so.
    pub(super) created: Vec<u32>,
    /// How each version of a run has ended, in each transaction that says so.
    pub(super) ends_of_runs: Vec<(TimerId, Version, RunStatus)>,
    /// How many records were appended, by anybody, to which kind of topic.
    pub(super) appends: BTreeMap<&'static str, usize>,
    /// Brokers hand out nothing of the intake.
    pub(super) intake_hangs: bool,
    /// They do so once a transaction of the lanes is lost.
    pub(super) intake_hangs_with_loss: bool,
    /// The lanes seal dispatches as they did before these said where and when they were written.
    pub(super) dispatches_as_before: bool,
    /// Whether Kafka refuses a result, and how often it did.
    pub(super) refuses: fn(&Record) -> bool,
    pub(super) refused: usize,
}

pub(super) fn finished() -> TaskResult {
    TaskResult { status: Some(200), ..TaskResult::new(Outcome::Finished) }
}

pub(super) fn failed(status: u16) -> TaskResult {
    TaskResult { status: Some(status), ..TaskResult::new(Outcome::Failed) }
}

pub(super) fn not_yet() -> TaskResult {
    TaskResult { status: Some(202), ..TaskResult::new(Outcome::NotYet) }
}

pub(super) fn spec(more: &str) -> Spec {
    let json = format!(
        r#"{{"type":"http","project":"shop","group":"g","url":"http://a.example/x"{more}}}"#
    );
    Spec::parse(json.as_bytes()).expect("sound")
}

pub(super) fn id(n: u32) -> TaskId {
    TaskId::of_request("shop", &format!("r{n}"), None).expect("sound")
}

impl World {
    pub(super) fn new(endpoint: impl FnMut(&str, usize) -> (u64, TaskResult) + 'static) -> Self {
        Self::within(Limits::default(), endpoint)
    }

    pub(super) fn within(
        limits: Limits,
        endpoint: impl FnMut(&str, usize) -> (u64, TaskResult) + 'static,
    ) -> Self {
        let ladder =
            Ladder::new(&[1_000, 5_000, 60_000, 600_000, 1_800_000].map(Millis), &[], Millis(800));
        let allow = Allow::new("wc", Some(&["orders\\..*".to_owned()])).expect("patterns");
        let topics =
            Topics::new("wc", vec![Intake::new("", None, None, allow)], ladder.expect("one"));
        let limits =
            Limits { hop_linger: Millis(50), batch_gap: Millis(0), history: HISTORY, ..limits };
        let topics = topics.with_tasks();
        let setup = Arc::new(Setup { lanes: LANES, topics, key: StateKey::new([7; 32]), limits });
        let mut world = Self {
            now: BEGAN,
            registry: Arc::default(),
            logs: BTreeMap::new(),
            tasks: vec![Vec::new(); usize::from(LANES)],
            begins: vec![0; usize::from(LANES)],
            commits: HashMap::new(),
            positions: HashMap::new(),
            timers: BTreeMap::new(),
            dead: Vec::new(),
            letters: Vec::new(),
            delivered: Vec::new(),
            nominals: Vec::new(),
            handed: Vec::new(),
            answers: Vec::new(),
            lanes: LaneEngine::new(Arc::clone(&setup)),
            reading: BTreeMap::new(),
            recalls: VecDeque::new(),
            ends: Vec::new(),
            targets: BTreeSet::from(["orders.out".to_owned()]),
            asked: None,
            work: None,
            next_task: vec![0; usize::from(LANES)],
            paused: BTreeSet::new(),
            open: Vec::new(),
            endpoint: Box::new(endpoint),
            calls: Vec::new(),
            fails_in: None,
            hops: 0,
            created: Vec::new(),
            ends_of_runs: Vec::new(),
            appends: BTreeMap::new(),
            intake_hangs: false,
            intake_hangs_with_loss: false,
            dispatches_as_before: false,
            refuses: |_| false,
            refused: 0,
            setup,
        };
        world.take_lanes_over();
        world.start_worker();
        world
    }

    // What users do.

    pub(super) fn create(&mut self, n: u32, delay: u64, more: &str) -> TaskId {
        self.create_spec(n, delay, &spec(more), None)
    }

    pub(super) fn create_spec(
        &mut self,
        n: u32,
        delay: u64,
        spec: &Spec,
        expires: Option<UnixMillis>,
    ) -> TaskId {
        let id = id(n);
        let record = self.sealed(&id, delay, spec, expires);
        self.append_to_intake(&id, record);
        id
    }

    pub(super) fn sealed(
        &self,
        id: &TaskId,
        delay: u64,
        spec: &Spec,
        expires: Option<UnixMillis>,
    ) -> Record {
        let submission = Submission {
            id,
            spec,
            due: self.now + Millis(delay),
            expires,
            key: None,
            value: Some(b"body"),
            headers: &[("trace".to_owned(), Some(b"t".to_vec()))],
        };
        sealed::submit(&self.setup.key, self.now, &submission)
    }

    pub(super) fn append_to_intake(&mut self, id: &TaskId, record: Record) -> Offset {
        self.append(Source { topic: TopicId(0), lane: id.lane_of(LANES) }, record)
    }

    pub(super) fn cancel(&mut self, id: &TaskId) -> Offset {
        let record = sealed::cancel(&self.setup.key, self.now, id);
        self.append_to_intake(id, record)
    }

    /// The record that retries a task as it is now: with the copy that is found in the lane's topics, or in its dead letter.
    pub(super) fn retry_record(&self, id: &TaskId) -> Option<Record> {
        let timer = self.timer(id)?;
        let progress = timer.task?;
        let (version, turn, trigger) = (timer.version, progress.turn, timer.due);
        let wanted = WantedCopy { id, version, turn, trigger };
        let lane = id.lane_of(LANES);
        let in_logs = self.logs.iter().filter(|(at, _)| at.lane == lane).flat_map(|(_, log)| {
            let each = log.iter().enumerate();
            each.map(|(at, (appended, record))| (record.clone(), (Offset(at as i64), *appended)))
        });
        let letters = self.letters.iter().rev().filter_map(sealed::of_letter);
        let mut all = in_logs.filter(|_| !timer.state.is_final()).chain(letters);
        all.find_map(|(record, place)| {
            let terms = sealed::copy_of(&self.setup.key, &record, place, &wanted)?;
            Some(sealed::retry(&self.setup.key, self.now, (&record, terms), &wanted, &progress))
        })
    }

    pub(super) fn retry(&mut self, id: &TaskId) -> Offset {
        let record = self.retry_record(id).expect("a copy of it");
        self.append_to_intake(id, record)
    }

    /// An executor reports; with the payload where that is needed and found.
    pub(super) fn report(&mut self, handed: &Handed, result: &TaskResult) -> Offset {
        let record = self.feedback(handed, result).expect("a copy of it");
        self.append_to_intake(&handed.id, record)
    }

    pub(super) fn feedback(&self, handed: &Handed, result: &TaskResult) -> Option<Record> {
        let Handed { id, ticket, .. } = handed;
        let key = &self.setup.key;
        let ticket = Ticket::read(ticket, key, id).expect("ours");
        let copy = match result.outcome.carries_payload() {
            true => Some(self.copy_for(id)?),
            false => None,
        };
        let copy = copy.as_ref().map(|(record, terms, trigger)| (record, *terms, *trigger));
        Some(sealed::feedback(key, self.now, (id, ticket), result, copy))
    }

    /// The record that brings the payload of a task as it is now.
    fn copy_for(&self, id: &TaskId) -> Option<(Record, CopyTerms, UnixMillis)> {
        let timer = self.timer(id)?;
        let (version, turn, trigger) = (timer.version, timer.task?.turn, timer.due);
        let wanted = WantedCopy { id, version, turn, trigger };
        let lane = id.lane_of(LANES);
        let logs = self.logs.iter().filter(|(at, _)| at.lane == lane);
        logs.flat_map(|(_, log)| log.iter().enumerate()).find_map(|(at, (appended, record))| {
            let place = (Offset(at as i64), *appended);
            let terms = sealed::copy_of(&self.setup.key, record, place, &wanted)?;
            Some((record.clone(), terms, trigger))
        })
    }

    pub(super) fn set_registry(&mut self, key: &str, json: &str) {
        self.change_registry(registry::read_request(key, json.as_bytes()).expect("sound"));
    }

    pub(super) fn delete_project(&mut self, name: &str) {
        let deleted = br#"{"version":1,"revision":2,"deleted":true}"#;
        let change = registry::read(&format!("project/{name}"), Some(deleted));
        self.change_registry(change.expect("sound"));
    }

    fn change_registry(&mut self, change: registry::Change) {
        let mut registry = (*self.registry).clone();
        registry.apply(change).expect("room");
        self.registry = Arc::new(registry);
        self.tell_lanes(Event::Registry(Arc::clone(&self.registry)));
        self.tell_worker(WorkEvent::Registry(Arc::clone(&self.registry)));
    }

    /// Somebody who may write to a tier copies a task's record there, with another value. It comes up soon.
    pub(super) fn copy_with(&mut self, id: &TaskId, value: &[u8]) {
        let topics = &self.setup.topics;
        let is_of = |record: &Record| {
            let mut headers = record.headers();
            headers.any(|(name, of)| {
                name == header::ID.as_bytes() && of == Some(id.as_str().as_bytes())
            })
        };
        let tiers = self.logs.iter().filter(|(at, _)| topics.tier_of(at.topic).is_some());
        let (_, genuine) = tiers
            .flat_map(|(_, log)| log)
            .find(|(_, record)| is_of(record))
            .expect("it stands in a tier");
        let copy = Record::new(genuine.key(), Some(value), genuine.headers());
        let all = (0..topics.names().len() as u16).map(TopicId);
        let first = all.filter(|of| topics.tier_of(*of).is_some()).min().expect("a tier");
        self.append(Source { topic: first, lane: id.lane_of(LANES) }, copy);
    }

    // What they see.

    pub(super) fn timer(&self, id: &TaskId) -> Option<Timer> {
        let key = (id.lane_of(LANES).0, TimerId::task(id).0.to_vec());
        match self.timers.get(&key) {
            Some(Change::Timer(timer)) => Some(timer.clone()),
            _ => None,
        }
    }

    pub(super) fn state(&self, id: &TaskId) -> Option<TimerState> {
        self.timer(id).map(|timer| timer.state)
    }

    pub(super) fn attempts(&self, id: &TaskId) -> Vec<Attempt> {
        let name = TimerId::task(id);
        let of_task = self.timers.values().filter_map(|change| match change {
            Change::Attempt(attempt) if attempt.timer_id == name => Some(attempt.clone()),
            _ => None,
        });
        of_task.collect()
    }

    pub(super) fn has_definition(&self, id: &TaskId) -> bool {
        self.definition(id).is_some()
    }

    pub(super) fn definition(&self, id: &TaskId) -> Option<&str> {
        let name = TimerId::task(id);
        self.timers.values().find_map(|change| match change {
            Change::Definition(of, definition) if *of == name => Some(&**definition),
            _ => None,
        })
    }

    /// How often a task was submitted.
    pub(super) fn submitted(&self, id: &TaskId) -> usize {
        let source = Source { topic: TopicId(0), lane: id.lane_of(LANES) };
        let log = self.logs.get(&source).map_or(&[][..], Vec::as_slice);
        let is_of = |record: &Record| {
            let mut headers = record.headers();
            headers.any(|(name, of)| {
                name == header::ID.as_bytes() && of == Some(id.as_str().as_bytes())
            })
        };
        log.iter().filter(|(_, record)| is_of(record)).count()
    }

    pub(super) fn calls_of(&self, id: &TaskId) -> Vec<&Called> {
        self.calls.iter().filter(|call| call.id == id.as_str()).collect()
    }

    pub(super) fn figures(&self) -> crate::Figures {
        self.lanes.figures()
    }

    /// Credits that the lanes count, and those of the tasks that a worker holds by the changelog.
    pub(super) fn credits(&self) -> (usize, usize) {
        let held = self.timers.values().filter_map(|change| match change {
            Change::Timer(timer) if !timer.state.is_final() => timer.task?.held,
            _ => None,
        });
        (self.lanes.figures().tasks_credits, held.map(|held| usize::from(held.credits)).sum())
    }

    // What goes wrong.

    /// Somebody deletes all that stands in `<ns>.tasks`, while no worker runs.
    pub(super) fn delete_dispatched(&mut self) {
        assert!(self.work.is_none(), "a worker may have read it");
        self.begins = self.tasks.iter().map(Vec::len).collect();
    }

    /// The owner of the lanes is gone, and another one takes them over.
    pub(super) fn take_lanes_over(&mut self) {
        self.lanes = LaneEngine::new(Arc::clone(&self.setup));
        self.recalls.clear();
        self.ends.clear();
        self.tell_lanes(Event::Registry(Arc::clone(&self.registry)));
        let topics = self.setup.topics.names().len() as u16;
        let mut starts = Vec::new();
        for topic in (0..topics).map(TopicId) {
            for lane in (0..LANES).map(Lane) {
                let source = Source { topic, lane };
                let commit = self.commits.get(&source);
                let next = commit.map_or(Offset(0), |commit| commit.next);
                let metadata = commit.map_or_else(String::new, |commit| commit.metadata.clone());
                let end = Offset(self.logs.get(&source).map_or(0, Vec::len) as i64);
                self.reading.insert(source, (next.0 as usize, false));
                starts.push(Start { source, next, metadata, end, gone: false });
            }
        }
        self.tell_lanes(Event::Assigned { starts });
        for lane in (0..LANES).map(Lane) {
            let of_lane = self.timers.range((lane.0, Vec::new())..(lane.0 + 1, Vec::new()));
            let (mut live, mut cancel_marks): (Vec<Live>, Vec<CancelMark>) = Default::default();
            for (_, change) in of_lane {
                match change {
                    Change::Timer(timer) => live.extend(timer.live()),
                    Change::CancelMark(mark) => cancel_marks.push(*mark),
                    _ => {}
                }
            }
            for live in &mut live {
                let key = (lane.0, definition_key(live.timer_id).to_vec());
                if let Some(Change::Definition(_, definition)) = self.timers.get(&key) {
                    live.follow_up = FollowUp::of_awaited(definition).map(Arc::new);
                }
                live.run = match self.timers.get(&(lane.0, shards_key(live.timer_id).to_vec())) {
                    Some(Change::Shards(_, run)) => Some(run.clone()),
                    _ => None,
                };
                let attempts = self.timers.values().filter_map(|change| match change {
                    Change::Attempt(attempt) if attempt.timer_id == live.timer_id => {
                        attempt.cursor()
                    }
                    _ => None,
                });
                live.cursor = attempts.max_by_key(|of| of.number);
            }
            self.tell_lanes(Event::TimersLoaded { lane, live, cancel_marks, last: true });
        }
    }

    /// The worker is gone with its calls, and another one begins.
    pub(super) fn kill_worker(&mut self) {
        self.open.clear();
        self.work = None;
    }

    pub(super) fn start_worker(&mut self) {
        let limits = WorkLimits {
            calls: 100,
            bytes: 64 << 20,
            fresh: Millis(4_000),
            commit_within: Millis(500),
        };
        self.work = Some(WorkEngine::new(limits, LANES, Arc::clone(&self.registry)));
        self.paused.clear();
        let mut taken = Vec::new();
        for partition in (0..LANES).map(Lane) {
            let position = self.positions.get(&partition).cloned();
            let at = usize::from(partition.0);
            let end = Offset(self.tasks[at].len() as i64);
            let next = position.as_ref().map_or(0, |position| position.next.0 as usize);
            self.next_task[at] = next.max(self.begins[at]);
            let start = Offset(self.begins[at] as i64);
            taken.push(Taken { partition, position, start, end });
        }
        self.tell_worker(WorkEvent::Assigned(taken));
    }

    // How it works.

    fn count(&mut self, kind: &'static str) {
        *self.appends.entry(kind).or_default() += 1;
    }

    fn append(&mut self, at: Source, record: Record) -> Offset {
        let kind = match at.topic {
            of if Some(of) == self.setup.topics.results() => "results",
            of if self.setup.topics.tier_of(of).is_some() => "tiers",
            _ => "intake",
        };
        self.count(kind);
        let log = self.logs.entry(at).or_default();
        log.push((self.now, record));
        Offset(log.len() as i64 - 1)
    }

    /// Appends every record of the tiers to its tier once more, by somebody who may write there.
    pub(super) fn copy_tiers(&mut self) -> usize {
        let tiers: Vec<Source> = self
            .logs
            .keys()
            .copied()
            .filter(|at| self.setup.topics.tier_of(at.topic).is_some())
            .collect();
        let mut count = 0;
        for at in tiers {
            let log = self.logs.get_mut(&at).expect("a key of it");
            let copies: Vec<_> = log.iter().map(|(_, record)| (self.now, record.clone())).collect();
            count += copies.len();
            log.extend(copies);
        }
        count
    }

    /// Appends the record of `<ns>.tasks` that was dispatched last to a partition once more, by somebody who may write there.
    pub(super) fn dispatch_again(&mut self, partition: Lane) {
        let last = self.tasks.iter().flatten().max_by_key(|(appended, _)| *appended);
        let (_, record) = last.cloned().expect("something was dispatched");
        self.tasks[usize::from(partition.0)].push((self.now, record));
    }

    /// Appends all records of `<ns>.tasks` to their partitions once more.
    pub(super) fn dispatch_all_again(&mut self) {
        for log in &mut self.tasks {
            let copies: Vec<_> = log.iter().map(|(_, record)| (self.now, record.clone())).collect();
            log.extend(copies);
        }
    }

    /// Puts another record where the create of a task stands, before anybody has read it: as if the lane had written that.
    pub(super) fn change_create(&mut self, id: &TaskId, change: impl FnOnce(&Record) -> Record) {
        let log = self.logs.get_mut(&Source { topic: TopicId(0), lane: id.lane_of(LANES) });
        let is_of = |record: &Record| {
            let mut headers = record.headers();
            headers.any(|(name, of)| {
                name == header::ID.as_bytes() && of == Some(id.as_str().as_bytes())
            })
        };
        let mut creates = log.expect("its lane").iter_mut().filter(|(_, record)| is_of(record));
        let (_, record) = creates.next().expect("it was written");
        *record = change(record);
    }

    /// Puts another body into what stands last in each partition of `<ns>.tasks`. No broker lets anybody do so; a broken disk may.
    pub(super) fn alter_dispatched(&mut self) {
        for (_, record) in self.tasks.iter_mut().filter_map(|log| log.last_mut()) {
            *record = Record::new(record.key(), Some(b"another body"), record.headers());
        }
    }

    /// The partition of `<ns>.tasks` in which something stands.
    pub(super) fn dispatched_to(&self) -> Lane {
        let at = self.tasks.iter().position(|log| !log.is_empty());
        Lane(at.expect("something was dispatched") as u16)
    }

    /// A dispatch as it was sealed before these said where and when they were written.
    fn as_before(&self, record: &Record) -> Record {
        let directive = header::read(record.headers()).expect("ours");
        let (key, bound) = (&self.setup.key, directive.bound(record.key()));
        let state = State::open(directive.state.expect("sealed"), key, &bound).expect("sealed");
        let sealed = State { intake: intake_tag(""), ..state }.seal(key, &bound);
        let name = header::STATE.as_bytes();
        let kept = record.headers().filter(|(found, _)| *found != name);
        let state = [(name, Some(sealed.as_ref()))];
        Record::new(record.key(), record.value(), kept.chain(state))
    }

    /// Appends to `<ns>.results`, by somebody who may write there.
    pub(super) fn append_result(&mut self, lane: Lane, record: Record) {
        let topic = self.setup.topics.results().expect("in force");
        self.append(Source { topic, lane }, record);
    }

    /// What a worker said last in a lane, it says again: it did not hear that it was committed.
    pub(super) fn say_last_again(&mut self, lane: Lane) {
        let topic = self.setup.topics.results().expect("in force");
        let said = self.logs.get(&Source { topic, lane }).and_then(|log| log.last());
        let (_, record) = said.cloned().expect("something was said");
        self.append_result(lane, record);
    }

    /// What stands in `<ns>.tasks`.
    pub(super) fn dispatched(&self) -> impl Iterator<Item = &Record> {
        self.tasks.iter().flatten().map(|(_, record)| record)
    }

    pub(super) fn tell_lanes(&mut self, event: Event) {
        let mut out = Vec::new();
        self.lanes.step(self.now, event, &mut out);
        for action in out {
            self.carry_out(action);
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Pause(at) => self.reading.entry(at).or_default().1 = true,
            Action::Resume(at) => self.reading.entry(at).or_default().1 = false,
            Action::Seek(at, offset) => self.reading.entry(at).or_default().0 = offset.0 as usize,
            Action::DescribeTarget(name) => {
                if let Some(asked) = &mut self.asked {
                    return asked.push(name);
                }
                let target = match self.targets.contains(&*name) {
                    true => {
                        Target::Found { partitions: 3, record_bytes_max: 1_048_588, keyed: false }
                    }
                    false => Target::Missing,
                };
                self.tell_lanes(Event::Target(name, target));
            }
            Action::ListEndOffsets(sources) => {
                for source in sources {
                    let end = self.logs.get(&source).map_or(0, Vec::len);
                    match self.reading[&source].0 >= end {
                        true => self.tell_lanes(Event::ReadUpTo { source, at: self.now }),
                        false => self.ends.push((source, end, self.now)),
                    }
                }
            }
            Action::Overdue { lane, before, .. } => {
                let of_lane = self.timers.range((lane.0, Vec::new())..(lane.0 + 1, Vec::new()));
                let overdue = of_lane.filter_map(|(_, change)| match change {
                    Change::Timer(timer) if timer.due < before => Some(timer),
                    _ => None,
                });
                let overdue = overdue.filter(|timer| timer.state == TimerState::Delay);
                let timers = overdue.cloned().collect();
                self.tell_lanes(Event::Overdue { lane, timers, more: None });
            }
            Action::Inventory { lane, .. } => {
                self.tell_lanes(Event::Counted { lane, is_complete: true });
            }
            Action::ListExpired(lane) => {
                let forgettable = Forgettable::at(self.now, HISTORY);
                let of_lane = self.timers.range((lane.0, Vec::new())..(lane.0 + 1, Vec::new()));
                let ended = of_lane.filter_map(|(_, change)| match change {
                    Change::Timer(timer) if forgettable.has(timer) => Some(timer.clone()),
                    _ => None,
                });
                let ended: Vec<Timer> = ended.collect();
                let written = |timer: &Timer| Some((timer.timer_id, Written::of(timer)?));
                let tasks = ended.iter().filter_map(written).collect();
                let timers = ended.iter().map(|timer| timer.timer_id).collect();
                self.tell_lanes(Event::Expired { lane, timers, tasks });
            }
            Action::Recall { lane, timers } => self.recalls.push_back((lane, timers)),
            Action::Batch(batch) => self.land(batch),
        }
    }

    fn answer_recalls(&mut self) {
        while let Some((lane, timers)) = self.recalls.pop_front() {
            let ended = |timer_id: TimerId| match self.timers.get(&(lane.0, timer_id.0.to_vec())) {
                Some(Change::Timer(timer)) => (timer_id, timer.ended()),
                _ => (timer_id, None),
            };
            let timers = timers.into_iter().map(ended).collect();
            self.tell_lanes(Event::Recalled { lane, timers });
        }
    }

    /// Whether a transaction is lost, and its member with it.
    fn is_lost(&mut self) -> bool {
        match &mut self.fails_in {
            Some(0) => {
                self.fails_in = None;
                true
            }
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }

    fn land(&mut self, batch: Batch) {
        if self.is_lost() {
            self.intake_hangs |= self.intake_hangs_with_loss;
            return self.take_lanes_over();
        }
        let Batch { id, sends, commits, answers } = batch;
        for send in sends {
            let mut headers = Vec::new();
            send.headers(|name, value| headers.push((name.to_vec(), value.map(Vec::from))));
            let headers = headers.iter().map(|(n, v)| (&n[..], v.as_deref()));
            let record = Record::new(send.body().key(), send.body().value(), headers);
            match send.to {
                // That counts where it is appended.
                Destination::Lane(_) | Destination::Submitted | Destination::Results => {}
                Destination::Tasks => self.count("tasks"),
                Destination::Target(_) => self.count("target"),
                Destination::Dead => self.count("dead"),
                _ => self.count("timers"),
            }
            match (&send.to, &send.rewrite) {
                (Destination::Lane(topic), _) => {
                    self.hops += 1;
                    let lane = Lane(send.partition.expect("a lane") as u16);
                    self.append(Source { topic: *topic, lane }, record);
                }
                (Destination::Results, HeaderRewrite::Whole) => {
                    self.append_result(Lane(send.partition.expect("a lane") as u16), record);
                }
                (Destination::Submitted, HeaderRewrite::Whole) => {
                    let lane = Lane(send.partition.expect("a lane") as u16);
                    self.append(Source { topic: TopicId(0), lane }, record);
                }
                (Destination::Tasks, _) => {
                    let partition = send.partition.expect("one") as usize;
                    let is_old = self.dispatches_as_before;
                    let record = if is_old { self.as_before(&record) } else { record };
                    self.tasks[partition].push((self.now, record));
                }
                (Destination::Target(_), _) => {
                    match Handed::of(self.now, &record, send.partition) {
                        Some(handed) => self.handed.push(handed),
                        None => {
                            let names = record.headers().map(|(name, _)| name);
                            let mut names =
                                names.filter(|name| *name != header::NOMINAL.as_bytes());
                            assert!(names.all(|name| !header::is_control(name)), "ours");
                        }
                    }
                    self.nominals.push(nominal(&record));
                    self.delivered.push((self.now, record.value().map(Vec::from)));
                }
                (Destination::Dead, HeaderRewrite::Dead(letter)) => {
                    let value = record.value().map(Vec::from);
                    self.dead.push((letter.detail.clone(), letter.code, value));
                    self.letters.push(record);
                }
                (Destination::Timers, HeaderRewrite::Timer(said)) => {
                    let (key, value) = (said.record.key(), said.record.value());
                    let change = Change::decode(key, value).expect("ours");
                    if let Change::Shards(_, run) = &change {
                        self.created.push(run.created());
                    }
                    if let Some(end) = RunStatus::end_in(&said.record) {
                        let Change::Timer(timer) = &change else { panic!("{change:?}") };
                        self.ends_of_runs.push((timer.timer_id, timer.version, end));
                    }
                    let lane = send.partition.expect("a lane") as u16;
                    let key = (lane, key.expect("a key").to_vec());
                    match value {
                        Some(_) => self.timers.insert(key, change),
                        None => self.timers.remove(&key),
                    };
                }
                other => panic!("{other:?}"),
            }
        }
        self.commits.extend(commits.into_iter().map(|commit| (commit.source, commit)));
        self.answers.extend(answers);
        self.tell_lanes(Event::Committed(id));
    }

    pub(super) fn tell_worker(&mut self, event: WorkEvent) {
        let now = Now { monotonic: Millis(self.now.0 - BEGAN.0), broker: self.now };
        let Some(work) = &mut self.work else { return };
        for action in work.step(now, event) {
            match action {
                WorkAction::Pause(partition) => drop(self.paused.insert(partition)),
                WorkAction::Resume(partition) => drop(self.paused.remove(&partition)),
                WorkAction::Call(call, task) => self.begin(call, &task),
                WorkAction::Cut(call) => self.open.retain(|open| open.call != call),
                WorkAction::Commit(batch) => {
                    if self.is_lost() {
                        self.kill_worker();
                        return self.start_worker();
                    }
                    let key = &self.setup.key;
                    let results = batch.entries.iter().map(|entry| match entry {
                        Entry::Result(task, said, form) => {
                            let record = sealed::result_record(key, task, said, "w", *form);
                            Some((task.lane, record))
                        }
                        Entry::Absent { partition, lane, turn, id } => {
                            let record = sealed::absent_record(key, (*turn, id), *partition, "w");
                            Some((*lane, record))
                        }
                        Entry::Dead { .. } => None,
                    });
                    let results: Vec<_> = results.collect();
                    let is_refused = |of: &Option<(Lane, Record)>| {
                        of.as_ref().is_some_and(|(_, record)| (self.refuses)(record))
                    };
                    let named = (0..results.len()).filter(|nth| is_refused(&results[*nth]));
                    let named: Vec<usize> = named.collect();
                    if !named.is_empty() {
                        self.refused += 1;
                        let (batch, blame, why) = (batch.id, Blame::Record, "too large".into());
                        let refused = Refused { batch, named, blame, why };
                        self.tell_worker(WorkEvent::Refused(refused));
                        return self.tell_worker(WorkEvent::Failed(batch));
                    }
                    for (entry, result) in batch.entries.into_iter().zip(results) {
                        if let Some((lane, record)) = result {
                            self.append_result(lane, record);
                        }
                        if let Entry::Dead { refusal, record, .. } = entry {
                            self.count("dead");
                            let value = record.value().map(<[u8]>::to_vec);
                            self.dead.push((refusal.detail, refusal.code, value));
                        }
                    }
                    self.positions.extend(batch.positions);
                    self.tell_worker(WorkEvent::Committed(batch.id));
                }
                WorkAction::LetGo | WorkAction::Lost(..) | WorkAction::Damaged(..) => {}
            }
        }
    }

    fn begin(&mut self, call: CallId, task: &Task) {
        let id = task.record.headers().find(|(name, _)| *name == header::ID.as_bytes());
        let id =
            String::from_utf8_lossy(id.and_then(|(_, id)| id).unwrap_or_default()).into_owned();
        if task.sealed.digest != crate::task::digest(&task.record) {
            // As the shell does.
            let result = TaskResult {
                error: Some("bad_task: its body is another".into()),
                ..TaskResult::new(Outcome::Gone)
            };
            return self.open.push(Open { call, ends: self.now, result });
        }
        assert!(self.now >= task.sealed.due, "it is called too early");
        let nth = self.calls.iter().filter(|call| call.id == id).count();
        let (takes, result) = (self.endpoint)(&id, nth);
        self.calls.push(Called {
            id,
            turn: task.turn.turn,
            attempt: task.sealed.attempt,
            round: task.sealed.round,
            at: self.now,
            body: task.record.value().map(Vec::from).unwrap_or_default(),
            traced: task.traced.clone(),
        });
        self.open.push(Open { call, ends: self.now + Millis(takes), result });
    }

    fn read(&mut self) -> bool {
        let mut told = self.read_on();
        let is_past =
            |(source, end, _): &(Source, usize, UnixMillis)| self.reading[source].0 >= *end;
        let (past, ahead) = self.ends.iter().copied().partition(is_past);
        self.ends = ahead;
        let past: Vec<(Source, usize, UnixMillis)> = past;
        for (source, _, at) in past {
            self.tell_lanes(Event::ReadUpTo { source, at });
            told = true;
        }
        told
    }

    /// The lanes wait no longer for what the intake hides.
    pub(super) fn give_up_hidden(&mut self) {
        self.ends.retain(|(source, ..)| source.topic != TopicId(0));
        for lane in (0..LANES).map(Lane) {
            let source = Source { topic: TopicId(0), lane };
            self.tell_lanes(Event::ReadUpTo { source, at: self.now });
        }
    }

    fn read_on(&mut self) -> bool {
        let mut told = false;
        let sources: Vec<Source> = self.reading.keys().copied().collect();
        for source in sources {
            if self.intake_hangs && source.topic == TopicId(0) {
                continue;
            }
            while let Some(&(next, false)) = self.reading.get(&source)
                && let Some((appended, record)) =
                    self.logs.get(&source).and_then(|log| log.get(next))
            {
                let (appended, record) = (*appended, record.clone());
                self.reading.entry(source).or_default().0 += 1;
                let offset = Offset(next as i64);
                self.tell_lanes(Event::Record { source, offset, appended, record });
                told = true;
            }
        }
        for partition in (0..LANES).map(Lane) {
            let at = usize::from(partition.0);
            while self.work.is_some()
                && !self.paused.contains(&partition)
                && let Some((appended, record)) = self.tasks[at].get(self.next_task[at])
            {
                let stood = (partition, *appended);
                let offset = Offset(self.next_task[at] as i64);
                self.next_task[at] += 1;
                let event = match sealed::read_work(&self.setup.key, LANES, stood, record.clone()) {
                    Ok(Work::Task(task)) => {
                        WorkEvent::Task { partition, offset, task: Arc::new(*task) }
                    }
                    Ok(Work::Cancel(turn, id)) => WorkEvent::Cancel { partition, offset, turn, id },
                    Err((record, refusal)) => {
                        WorkEvent::Foreign { partition, offset, appended: stood.1, record, refusal }
                    }
                };
                self.tell_worker(event);
                told = true;
            }
        }
        told
    }

    /// Lets everything happen that can happen at this time.
    fn quiesce(&mut self) {
        for _ in 0..10_000 {
            let ended: Vec<Open> = {
                let (ended, open) = std::mem::take(&mut self.open)
                    .into_iter()
                    .partition(|open| open.ends <= self.now);
                self.open = open;
                ended
            };
            let mut told = !ended.is_empty();
            for Open { call, mut result, ends } in ended {
                result.ended = Some(ends);
                let end = Box::new(CallEnd { is_away: result.status == Some(503), result });
                self.tell_worker(WorkEvent::Ended { call, end });
            }
            told |= self.read();
            let before = self.sizes();
            self.tell_lanes(Event::Tick);
            self.tell_worker(WorkEvent::Tick);
            told |= !self.recalls.is_empty();
            self.answer_recalls();
            let wakes = self.lanes.wake_at().is_some_and(|at| at <= self.now);
            if !told && !wakes && before == self.sizes() {
                return;
            }
        }
        panic!("no end");
    }

    fn sizes(&self) -> (usize, usize, usize) {
        let logs = self.logs.values().map(Vec::len).sum();
        (logs, self.tasks.iter().map(Vec::len).sum(), self.calls.len())
    }

    /// Lets the lanes read all that there is, and act once at the next millisecond. What they write is not read yet.
    pub(super) fn step_lanes(&mut self) {
        self.now = self.now + Millis(1);
        self.read();
        self.tell_lanes(Event::Tick);
        self.answer_recalls();
    }

    /// Lets time pass.
    pub(super) fn after(&mut self, wait: u64) {
        let until = self.now + Millis(wait);
        self.quiesce();
        while self.now < until {
            let of_worker = self.work.as_ref().and_then(WorkEngine::next_tick);
            let of_worker = of_worker.map(|at| BEGAN + at);
            let calls = self.open.iter().map(|open| open.ends).min();
            // A worker hears of its coordinator once a second.
            let second = UnixMillis((self.now.0 / 1_000 + 1) * 1_000);
            let times = self.lanes.wake_at().into_iter().chain(of_worker).chain(calls);
            let next = times.chain([second]).min().unwrap_or(until);
            self.now = next.clamp(self.now + Millis(1), until);
            if self.now.0.is_multiple_of(1_000) {
                self.tell_worker(WorkEvent::Fresh { since: Millis(self.now.0 - BEGAN.0) });
            }
            self.quiesce();
        }
    }
}
