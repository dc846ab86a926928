//! Many engines in a group that loses members: killed, frozen, moved, with commits that are late, refused, or land though their
//! answer is lost. A seed decides everything.
//!
//! What is checked is seen from outside: which calls began and when, and what is committed.
//! 1. No turn is called twice.
//! 2. Of which a committed result says that it was never called, it never was, and never will be.
//! 3. What is told of a turn is of one kind, and true: what ended had begun, and so had what was cut.
//! 4. At the end of the world each task is reported.
//! 5. No call begins once a committed position says that a cancel of it is done.
//! 6. Members that live never have more calls open of a service than a partition's share.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::Blame;
use crate::window::Window;

const PARTITIONS: usize = 4;
const WORKERS: usize = 3;
const SESSION: u64 = 6_000;
/// A member that does not join again in that time is left behind.
const REBALANCE: u64 = 8_000;
/// A transaction that its producer does not end is aborted after so long.
const TRANSACTION: u64 = 10_000;
const ENDING: u64 = 5_000;
const TICK: u64 = 20;
/// How long things go wrong, and how long the world goes on in peace then.
const WRONG: u64 = 60_000;
const PEACE: u64 = 60_000;
const SHARE: usize = 3;

/// A generator of numbers that look random: splitmix64.
struct Luck(u64);

impl Luck {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What stands in a partition.
enum Stands {
    Task(Arc<Task>),
    Cancel(Turn),
    /// The end of a transaction.
    Marker,
}

/// What a worker is told later.
enum Told {
    Event(WorkEvent),
    /// To let its partitions go.
    Rebalance,
    /// The coordinator does not know it.
    Unknown,
    Assigned(u64, Vec<usize>),
}

struct Worker {
    engine: WorkEngine,
    /// Counted up with each start.
    life: u64,
    is_alive: bool,
    frozen_until: u64,
    inbox: Vec<(u64, Told)>,
    /// The generation that it knows, and its partitions with where it reads.
    generation: u64,
    reading: BTreeMap<usize, usize>,
    paused: BTreeSet<usize>,
    is_joining: bool,
    /// Its name in the group.
    name: u64,
    /// Its calls: when they end, and which turns they are of.
    calls: BTreeMap<CallId, (u64, u32, Lane, Arc<str>)>,
    heartbeat: u64,
}

/// A batch on its way: sent, then accepted by the group, then landed or aborted.
struct Sent {
    worker: usize,
    life: u64,
    name: u64,
    generation: u64,
    batch: WorkBatch,
    accept_at: u64,
    land_at: u64,
    is_accepted: bool,
    is_answer_lost: bool,
}

#[derive(Default)]
struct Group {
    generation: u64,
    /// Members, and when the session of each ends.
    members: BTreeMap<usize, u64>,
    /// By which name the group knows each: it has another one after it was unknown.
    names: BTreeMap<usize, u64>,
    /// A rebalance: since when, and who has joined again.
    rebalance: Option<(u64, BTreeSet<usize>)>,
}

#[derive(Default)]
struct Fate {
    began: u32,
    ended: bool,
    /// What committed results say of it.
    said: BTreeSet<&'static str>,
}

struct World {
    luck: Luck,
    now: u64,
    limits: WorkLimits,
    logs: Vec<Vec<Stands>>,
    positions: Vec<Option<Position>>,
    workers: Vec<Worker>,
    group: Group,
    sent: Vec<Sent>,
    fates: BTreeMap<u32, Fate>,
    wrong: Vec<String>,
    lives: u64,
}

fn engine(limits: WorkLimits) -> WorkEngine {
    WorkEngine::new(limits, PARTITIONS as u16, registry((SHARE * PARTITIONS) as u32, None, ""))
}

fn number(turn: &Turn) -> u32 {
    let [a, b, c, d, ..] = turn.name.0;
    u32::from_be_bytes([a, b, c, d])
}

fn kind(said: &Said) -> Option<&'static str> {
    match said {
        Said::Started(_) => None,
        Said::Deferred { .. } => Some("deferred"),
        Said::Interrupted { in_doubt: true } => Some("in doubt"),
        Said::Interrupted { in_doubt: false } => Some("cut"),
        Said::Cancelled => Some("cancelled"),
        Said::Ended(_) => Some("ended"),
    }
}

impl World {
    fn new(seed: u64, limits: WorkLimits) -> Self {
        let worker = |life| Worker {
            engine: engine(limits),
            life,
            is_alive: true,
            frozen_until: 0,
            inbox: Vec::new(),
            generation: 0,
            reading: BTreeMap::new(),
            paused: BTreeSet::new(),
            is_joining: true,
            name: life,
            calls: BTreeMap::new(),
            heartbeat: 0,
        };
        Self {
            luck: Luck(seed),
            now: 0,
            limits,
            logs: (0..PARTITIONS).map(|_| Vec::new()).collect(),
            positions: vec![None; PARTITIONS],
            workers: (0..WORKERS as u64).map(worker).collect(),
            group: Group::default(),
            sent: Vec::new(),
            fates: BTreeMap::new(),
            wrong: Vec::new(),
            lives: WORKERS as u64,
        }
    }

    fn live(mut self) -> Vec<String> {
        while self.now < WRONG + PEACE && self.wrong.is_empty() {
            self.now += TICK;
            if self.now < WRONG {
                self.produce();
                self.strike();
            }
            self.tend_group();
            self.land();
            for worker in 0..WORKERS {
                if self.workers[worker].is_alive && self.now >= self.workers[worker].frozen_until {
                    self.work(worker);
                }
            }
            self.check_shares();
        }
        if self.wrong.is_empty() {
            self.check_end();
        }
        self.wrong
    }

    fn produce(&mut self) {
        while self.luck.one_in(3) {
            let partition = self.luck.below(PARTITIONS as u64) as usize;
            let n = self.fates.len() as u32;
            self.fates.insert(n, Fate::default());
            let mut name = [0; 16];
            name[..4].copy_from_slice(&n.to_be_bytes());
            let turn = Turn { name: TimerId(name), version: Version::default(), turn: 1 };
            let project = ["p", "q"][self.luck.below(2) as usize];
            let service = ["s", "t"][self.luck.below(2) as usize];
            let headers: [(&[u8], Option<&[u8]>); 0] = [];
            let task = Task {
                turn,
                lane: Lane(0),
                scope: Scope { project: project.into(), callee: Callee::Service(service.into()) },
                sealed: Dispatch::default(),
                traced: None,
                record: Record::new(None, None, headers.into_iter()),
            };
            let log = &mut self.logs[partition];
            log.push(Stands::Task(Arc::new(task)));
            if self.luck.one_in(2) {
                log.push(Stands::Marker);
            }
            if self.luck.one_in(4) {
                // Of any task that stands before.
                let at = self.luck.below(log.len() as u64) as usize;
                if let Stands::Task(task) = &log[at] {
                    let cancel = Stands::Cancel(task.turn);
                    log.push(cancel);
                }
            }
        }
    }

    /// Something goes wrong.
    fn strike(&mut self) {
        let worker = self.luck.below(WORKERS as u64) as usize;
        match self.luck.below(1_500) {
            0 => self.kill(worker),
            1 => {
                let long = self.luck.below(15_000);
                self.workers[worker].frozen_until = self.now + long;
            }
            // Somebody joins, so all let go.
            2 => self.begin_rebalance(),
            _ => {}
        }
    }

    fn kill(&mut self, worker: usize) {
        self.lives += 1;
        let life = self.lives;
        let now = self.now;
        let of = &mut self.workers[worker];
        of.engine = engine(self.limits);
        of.life = life;
        of.inbox.clear();
        of.reading.clear();
        of.calls.clear();
        of.generation = 0;
        of.is_joining = true;
        of.name = life;
        // It starts again after a while.
        of.frozen_until = now + 1 + self.luck.below(9_000);
    }

    // The group.

    fn begin_rebalance(&mut self) {
        if self.group.rebalance.is_none() {
            self.group.rebalance = Some((self.now, BTreeSet::new()));
        }
    }

    fn tend_group(&mut self) {
        let now = self.now;
        let before = self.group.members.len();
        let joined = self.group.rebalance.as_ref().map(|(_, joined)| joined.clone());
        // Who waits for the others has no session to keep.
        let is_waiting = |of: &usize| joined.as_ref().is_some_and(|joined| joined.contains(of));
        self.group.members.retain(|of, until| *until > now || is_waiting(of));
        if self.group.members.len() < before {
            self.begin_rebalance();
        }
        let Some((since, joined)) = &self.group.rebalance else { return };
        let all = self.group.members.keys().all(|member| joined.contains(member));
        if joined.is_empty() || !all && now < since + REBALANCE {
            return;
        }
        let joined = joined.clone();
        self.group.members = joined.iter().map(|of| (*of, now + SESSION)).collect();
        self.group.generation += 1;
        self.group.rebalance = None;
        let members: Vec<usize> = joined.into_iter().collect();
        for (at, member) in members.iter().enumerate() {
            let given = (0..PARTITIONS).filter(|p| p % members.len() == at).collect();
            self.tell(*member, 100, Told::Assigned(self.group.generation, given));
        }
    }

    fn tell(&mut self, worker: usize, within: u64, what: Told) {
        let at = self.now + 1 + self.luck.below(within);
        self.workers[worker].inbox.push((at, what));
    }

    // Batches.

    fn land(&mut self) {
        let now = self.now;
        for mut sent in std::mem::take(&mut self.sent) {
            let of = &self.workers[sent.worker];
            let is_gone = of.life != sent.life;
            let is_frozen = now < of.frozen_until;
            if !sent.is_accepted && now >= sent.accept_at {
                let is_member = self.group.members.contains_key(&sent.worker)
                    && self.group.names.get(&sent.worker) == Some(&sent.name)
                    && self.group.generation == sent.generation;
                // A transaction without offsets asks no group.
                let is_member = is_member || sent.batch.positions.is_empty();
                if is_gone || !is_member {
                    self.answer(&sent, WorkEvent::Failed(sent.batch.id));
                    continue;
                }
                sent.is_accepted = true;
            }
            if sent.is_accepted && now >= sent.land_at && !is_gone && !is_frozen {
                // What Kafka took once it takes again.
                if now < WRONG && self.luck.one_in(10) && !self.is_told(&sent.batch) {
                    self.refuse(&sent);
                    continue;
                }
                self.commit(&sent);
                let answer = if sent.is_answer_lost {
                    WorkEvent::Failed(sent.batch.id)
                } else {
                    WorkEvent::Committed(sent.batch.id)
                };
                self.answer(&sent, answer);
                continue;
            }
            // Nobody ends it: it is aborted in time, or by who comes under its producer's name.
            let is_over = now >= sent.accept_at + TRANSACTION;
            if sent.is_accepted && (is_over || is_gone && self.luck.one_in(50)) {
                self.answer(&sent, WorkEvent::Failed(sent.batch.id));
                continue;
            }
            self.sent.push(sent);
        }
    }

    fn answer(&mut self, sent: &Sent, event: WorkEvent) {
        if self.workers[sent.worker].life == sent.life {
            self.tell(sent.worker, 50, Told::Event(event));
        }
    }

    /// Whether a result of a batch stands there already.
    fn is_told(&self, batch: &WorkBatch) -> bool {
        let told = |entry: &Entry| match entry {
            Entry::Result(task, said, _) => kind(said).is_some_and(|kind| {
                let fate = self.fates.get(&number(&task.turn));
                fate.is_some_and(|fate| fate.said.contains(kind))
            }),
            Entry::Absent { .. } | Entry::Dead { .. } => false,
        };
        batch.entries.iter().any(told)
    }

    /// Kafka refuses some entries of a batch, or does not say which, or refuses their topic.
    fn refuse(&mut self, sent: &Sent) {
        let entries = sent.batch.entries.len();
        let named = (0..entries).filter(|_| self.luck.one_in(3)).collect();
        let blame = [Blame::Record, Blame::Record, Blame::Target][self.luck.below(3) as usize];
        let refused = Refused { batch: sent.batch.id, named, blame, why: "no".into() };
        // It is told with the failure.
        if self.workers[sent.worker].life == sent.life {
            let at = self.now + 1;
            for event in [WorkEvent::Refused(refused), WorkEvent::Failed(sent.batch.id)] {
                self.workers[sent.worker].inbox.push((at, Told::Event(event)));
            }
        }
    }

    fn commit(&mut self, sent: &Sent) {
        for (partition, position) in &sent.batch.positions {
            self.positions[usize::from(partition.0)] = Some(position.clone());
        }
        for entry in &sent.batch.entries {
            if let Entry::Absent { turn, .. } = entry {
                // All that is to be cancelled here stands before.
                let fate = self.fates.get(&number(turn));
                if fate.is_none_or(|fate| fate.said.is_empty()) {
                    self.wrong.push(format!("{} is told as absent, and is not done", number(turn)));
                }
            }
            let Entry::Result(task, said, _) = entry else { continue };
            let n = number(&task.turn);
            let (Some(fate), Some(kind)) = (self.fates.get_mut(&n), kind(said)) else { continue };
            fate.said.insert(kind);
            let is_true = match kind {
                "deferred" | "cancelled" => fate.began == 0,
                "cut" => fate.began > 0,
                "ended" => fate.ended,
                _ => true,
            };
            if !is_true || fate.said.len() > 1 {
                self.wrong.push(format!("{n} is told as {:?}, began {}", fate.said, fate.began));
            }
        }
    }

    // A worker.

    fn step(&mut self, worker: usize, event: WorkEvent) {
        let now = Now { monotonic: Millis(self.now), broker: UnixMillis(self.now) };
        for action in self.workers[worker].engine.step(now, event) {
            self.carry_out(worker, action);
        }
    }

    fn carry_out(&mut self, worker: usize, action: WorkAction) {
        let now = self.now;
        match action {
            WorkAction::Call(call, task) => {
                let n = number(&task.turn);
                let most = if self.luck.one_in(10) { 9_000 } else { 400 };
                let until = now + 1 + self.luck.below(most);
                let partition = self.partition_of(n);
                let service = format!("{:?}", task.scope);
                let of = (until, n, partition, service.into());
                self.workers[worker].calls.insert(call, of);
                if self.is_cancel_done(n) {
                    self.wrong.push(format!("{n} is called at {now}, though its cancel is done"));
                }
                if let Some(fate) = self.fates.get_mut(&n) {
                    fate.began += 1;
                    if fate.began > 1 || !fate.said.is_empty() {
                        self.wrong.push(format!(
                            "{n} is called by {worker} at {now}: began {}, told as {:?}",
                            fate.began, fate.said
                        ));
                    }
                }
            }
            WorkAction::Cut(call) => drop(self.workers[worker].calls.remove(&call)),
            WorkAction::Commit(batch) => {
                let slow = if self.luck.one_in(20) { 3_000 } else { 60 };
                let accept_at = now + 1 + self.luck.below(slow);
                let land_at = accept_at + 1 + self.luck.below(slow);
                let Worker { life, name, generation, .. } = self.workers[worker];
                let is_answer_lost = now < WRONG && self.luck.one_in(50);
                self.sent.push(Sent {
                    worker,
                    life,
                    name,
                    generation,
                    batch,
                    accept_at,
                    land_at,
                    is_accepted: false,
                    is_answer_lost,
                });
            }
            WorkAction::LetGo => {
                self.step(worker, WorkEvent::Gone);
                self.workers[worker].reading.clear();
                self.workers[worker].is_joining = true;
            }
            WorkAction::Pause(partition) => {
                self.workers[worker].paused.insert(partition.0.into());
            }
            WorkAction::Resume(partition) => {
                self.workers[worker].paused.remove(&usize::from(partition.0));
            }
            WorkAction::Lost(..) | WorkAction::Damaged(..) => {
                self.wrong.push(format!("{action:?}"));
            }
        }
    }

    /// Whether a committed position says that a cancel of this one is done.
    fn is_cancel_done(&self, n: u32) -> bool {
        let p = usize::from(self.partition_of(n).0);
        let Some(Position { next, metadata }) = &self.positions[p] else { return false };
        let window = Window::load(*next, &metadata[1..]).expect("as it was committed");
        let mut log = (0..).zip(&self.logs[p]);
        log.any(|(at, stands)| {
            matches!(stands, Stands::Cancel(turn) if number(turn) == n)
                && at < window.upto().0
                && !window.is_open(Offset(at))
        })
    }

    fn partition_of(&self, n: u32) -> Lane {
        let has = |log: &Vec<Stands>| {
            log.iter().any(|stands| matches!(stands, Stands::Task(task) if number(&task.turn) == n))
        };
        Lane(self.logs.iter().position(has).unwrap_or_default() as u16)
    }

    fn work(&mut self, worker: usize) {
        let now = self.now;
        let mut inbox = std::mem::take(&mut self.workers[worker].inbox);
        inbox.sort_by_key(|(at, _)| *at);
        for (at, told) in inbox {
            if at > now {
                self.workers[worker].inbox.push((at, told));
                continue;
            }
            match told {
                Told::Event(event) => self.step(worker, event),
                Told::Rebalance => {
                    if !self.workers[worker].is_joining {
                        self.step(worker, WorkEvent::Ending(Millis(ENDING)));
                    }
                }
                Told::Unknown => {
                    self.step(worker, WorkEvent::Gone);
                    self.lives += 1;
                    let of = &mut self.workers[worker];
                    of.reading.clear();
                    (of.is_joining, of.name) = (true, self.lives);
                }
                Told::Assigned(generation, given) => self.take_over(worker, generation, given),
            }
        }
        self.speak(worker);
        self.end_calls(worker);
        self.read(worker);
        self.step(worker, WorkEvent::Tick);
    }

    fn take_over(&mut self, worker: usize, generation: u64, given: Vec<usize>) {
        // Committed offsets cannot be read while a transaction with them is open.
        let is_open = |sent: &Sent| {
            let mut of = sent.batch.positions.iter().map(|(of, _)| usize::from(of.0));
            sent.is_accepted && of.any(|of| given.contains(&of))
        };
        if self.sent.iter().any(is_open) {
            let again = Told::Assigned(generation, given);
            self.tell(worker, 200, again);
            return;
        }
        if generation < self.group.generation {
            return;
        }
        let taken = given.iter().map(|p| Taken {
            partition: Lane(*p as u16),
            position: self.positions[*p].clone(),
            start: Offset(0),
            end: Offset(self.logs[*p].len() as i64),
        });
        let taken: Vec<Taken> = taken.collect();
        let from = |of: &Taken| of.position.as_ref().map_or(0, |position| position.next.0 as usize);
        let of = &mut self.workers[worker];
        of.reading = given.iter().copied().zip(taken.iter().map(from)).collect();
        of.paused.clear();
        of.generation = generation;
        of.is_joining = false;
        self.step(worker, WorkEvent::Assigned(taken));
    }

    /// Joins, and sends heartbeats. A heartbeat that is answered is a sign that it has its partitions.
    fn speak(&mut self, worker: usize) {
        let now = self.now;
        if now < self.workers[worker].heartbeat {
            return;
        }
        self.workers[worker].heartbeat = now + 1_000 + self.luck.below(1_000);
        let generation = self.workers[worker].generation;
        if self.workers[worker].is_joining {
            let waits = self.workers[worker]
                .inbox
                .iter()
                .any(|(_, told)| matches!(told, Told::Assigned(..)));
            if !waits {
                self.begin_rebalance();
                self.group.members.insert(worker, now + SESSION);
                self.group.names.insert(worker, self.workers[worker].name);
                if let Some((_, joined)) = &mut self.group.rebalance {
                    joined.insert(worker);
                }
            }
            return;
        }
        let is_known = self.group.members.contains_key(&worker)
            && self.group.names.get(&worker) == Some(&self.workers[worker].name);
        if generation != self.group.generation || !is_known {
            self.tell(worker, 50, Told::Unknown);
            return;
        }
        self.group.members.insert(worker, now + SESSION);
        if self.group.rebalance.is_some() {
            self.tell(worker, 50, Told::Rebalance);
        } else {
            self.tell(worker, 300, Told::Event(WorkEvent::Fresh { since: Millis(now) }));
        }
    }

    fn end_calls(&mut self, worker: usize) {
        let now = self.now;
        let over = self.workers[worker].calls.extract_if(.., |_, (until, ..)| *until <= now);
        for (call, (_, n, ..)) in over.collect::<Vec<_>>() {
            if let Some(fate) = self.fates.get_mut(&n) {
                fate.ended = true;
            }
            let is_away = self.luck.one_in(3);
            let end = Box::new(CallEnd { result: TaskResult::new(Outcome::Finished), is_away });
            self.step(worker, WorkEvent::Ended { call, end });
        }
    }

    fn read(&mut self, worker: usize) {
        let reading = self.workers[worker].reading.clone();
        for (p, from) in reading {
            if self.workers[worker].paused.contains(&p) {
                continue;
            }
            let partition = Lane(p as u16);
            let upto = (from + self.luck.below(12) as usize).min(self.logs[p].len());
            let events: Vec<WorkEvent> = (from..upto)
                .filter_map(|at| {
                    let offset = Offset(at as i64);
                    match &self.logs[p][at] {
                        Stands::Task(task) => {
                            let task = Arc::clone(task);
                            Some(WorkEvent::Task { partition, offset, task })
                        }
                        Stands::Cancel(turn) => {
                            Some(WorkEvent::Cancel { partition, offset, turn: *turn, id: id() })
                        }
                        Stands::Marker => None,
                    }
                })
                .collect();
            for event in events {
                self.step(worker, event);
            }
            self.step(worker, WorkEvent::Read { partition, next: Offset(upto as i64) });
            self.workers[worker].reading.entry(p).and_modify(|at| *at = upto);
        }
    }

    // What must hold.

    fn check_shares(&mut self) {
        let mut open = BTreeMap::<(Lane, &str), usize>::new();
        for worker in &self.workers {
            if worker.is_alive && worker.frozen_until <= self.now {
                for (_, _, partition, service) in worker.calls.values() {
                    *open.entry((*partition, service)).or_default() += 1;
                }
            }
        }
        let over = open.into_iter().find(|(_, open)| *open > SHARE);
        if let Some(((partition, service), open)) = over {
            self.wrong.push(format!("{open} calls of {service} are open in {partition:?}"));
        }
    }

    fn check_end(&mut self) {
        let silent: Vec<u32> =
            self.fates.iter().filter(|(_, fate)| fate.said.is_empty()).map(|(n, _)| *n).collect();
        if !silent.is_empty() {
            self.wrong.push(format!("{} are not reported: {:?}", silent.len(), &silent[..1]));
        }
        let bytes: usize = self.workers.iter().map(|of| of.engine.waiting.bytes()).sum();
        if bytes > 0 {
            self.wrong.push(format!("{bytes} bytes are held though all is done"));
        }
        if self.fates.len() < 100 {
            self.wrong.push("nothing happened in this world".to_owned());
        }
    }
}

fn limits() -> WorkLimits {
    WorkLimits { calls: 30, ..LIMITS }
}

#[test]
fn every_world_keeps_every_promise() {
    let mut wrong = Vec::new();
    for seed in 0..60 {
        wrong.extend(World::new(seed, limits()).live().into_iter().map(|what| (seed, what)));
    }
    assert!(wrong.is_empty(), "{} worlds: {:#?}", wrong.len(), &wrong[..wrong.len().min(5)]);
}

/// The checks bite: a worker that begins calls for longer than its session may last is found out.
#[test]
fn a_worker_that_trusts_old_signs_is_found_out() {
    let limits = WorkLimits { fresh: Millis(30_000), ..limits() };
    assert!((0..60).any(|seed| !World::new(seed, limits).live().is_empty()));
}
