//! The load of a row: records with and without ids, short and long delays, hops, cancels; and what became of it.
//!
//! # Invariants
//! 1. A [`History`] holds what the broker acknowledged, what waterclock answered and what readers saw, and nothing that
//!    waterclock says of itself.
//! 2. What was not acknowledged is unknown, not failed: it may be seen, once.
//! 3. One reader reads from the first record on, through all faults; another begins when all is over.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::checkers::{arrivals, number};
use crate::support::{
    Ack, Fixture, Log, Mode, Out, PATIENCE, Process, Producer, Rec, client, eventually, now_ms,
    out, variable_if_set, whole,
};
use parking_lot::Mutex;

/// How long a load goes on if nobody ends it.
const LOAD_MAX: Duration = Duration::from_secs(900);
/// What a cancel by HTTP waits for its answer.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// How the rows of this run deliver, where a row makes sense in both: `scripts/faults --at-least-once` has the other half.
pub fn mode() -> Mode {
    let told = variable_if_set("FAULTS_DELIVERY");
    let other = Mode::AtLeastOnce;
    if told.is_some_and(|told| told == other.as_str()) { other } else { Mode::ExactlyOnce }
}

/// What decides when a record arrived: the topic's setting of it.
const STAMP: &str = "message.timestamp.type";

/// Where a broker's clock is not the reader's clock.
pub const STAMPED: [(&str, &str); 1] = [(STAMP, "LogAppendTime")];

/// Half of all rows deliver to targets as Kafka makes them, which do not keep append times: always the same half, and the
/// other one in the other mode.
fn keeps_append_times(row: &str) -> bool {
    let odd = row.bytes().fold(0, |sum: u8, byte| sum.wrapping_mul(31).wrapping_add(byte)) % 2 == 1;
    odd == (mode() == Mode::ExactlyOnce)
}

/// Bytes of a value.
const SMALL: usize = 64;
const LARGE: usize = 5_000;

/// What is sent.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Records a second.
    pub rate: u64,
    /// Delays in milliseconds, taken in turns.
    pub delays: Vec<u64>,
    /// Every so many has an id; 0: none.
    pub tracked_every: usize,
    /// Every so many of those with an id is cancelled.
    pub cancelled_every: usize,
    /// Different keys.
    pub keys: usize,
    /// Partitions of the target.
    pub partitions: i32,
    /// Every so many is malformed, and a dead letter; 0: none.
    pub poison_every: usize,
    /// Every so many is larger than 5 kB, and a dead letter if the target does not take that; 0: none.
    pub large_every: usize,
    /// Settings of the target.
    pub target: Vec<(&'static str, &'static str)>,
}

impl Default for Mix {
    /// Through the wheel alone, through one tier and through two.
    fn default() -> Self {
        Self {
            rate: 30,
            // Seven, so that each of them is met by what every third and every twelfth is.
            delays: vec![0, 400, 1_100, 1_800, 2_600, 4_300, 7_700],
            tracked_every: 3,
            cancelled_every: 4,
            keys: 23,
            partitions: 3,
            poison_every: 0,
            large_every: 0,
            target: Vec::new(),
        }
    }
}

/// What is to become of a record if nobody cancels it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Delivered,
    /// A dead letter with this code.
    Dead(&'static str),
    /// One of the two: what it meets when it is due is not known to the load.
    Either(&'static str),
}

/// How a record was cancelled, and what is known of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// A record; where and when the broker took it, if that is known.
    Record(Option<Ack>),
    /// A question by HTTP; the answer, if there was one.
    Answer(Option<String>),
}

/// One record of a load.
#[derive(Clone, Debug)]
pub struct Sent {
    pub record: Out,
    pub delay_ms: u64,
    /// Nothing: it is not known whether the broker has it. Of several copies the first.
    pub ack: Option<Ack>,
    /// How often its producer wrote it: librdkafka's idempotent one begins its sequence again when it cannot know what
    /// became of a request, as when leaders change, and then a record may stand in the intake twice.
    pub copies: usize,
    pub fate: Fate,
    pub cancel: Option<Cancel>,
}

/// All that is known from outside of a row. Arrivals are as of their append times; where the target does not keep those, as of
/// when they were read by the reader that was there all the time.
#[derive(Clone, Debug)]
pub struct History {
    pub name: String,
    pub mode: Mode,
    /// Number `n` begins its value with `n` and a space.
    pub sent: Vec<Sent>,
    /// What the reader saw that was there all the time, in its order.
    pub concurrent: Vec<Rec>,
    /// What the reader saw that came last.
    pub late: Vec<Rec>,
    pub dead: Vec<Rec>,
    /// When the fault was over, epoch milliseconds; nothing: there was none.
    pub healed_at: Option<u64>,
}

/// What threads of a load share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    sent: AtomicUsize,
    seen: AtomicUsize,
    healed_at: Mutex<Option<u64>>,
    /// Where waterclock answers HTTP now.
    doors: Mutex<Vec<String>>,
    /// Read by the concurrent reader until it has all of these: the end of each partition.
    ends: Mutex<Option<Vec<(i32, i64)>>>,
}

/// A running load.
pub struct Load<'a> {
    fixture: &'a Fixture,
    pub target: String,
    shared: Arc<Shared>,
    sending: Option<JoinHandle<Vec<Sent>>>,
    reading: Option<JoinHandle<(Vec<Rec>, Vec<u64>)>>,
    /// The target keeps append times.
    stamped: bool,
    /// Reads the intake, whose records are deleted when they are done.
    writing: Option<JoinHandle<Vec<Rec>>>,
}

impl Drop for Load<'_> {
    /// Of a row that failed: the threads end with it.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.read_to(Vec::new());
    }
}

impl Shared {
    fn read_to(&self, ends: Vec<(i32, i64)>) {
        *self.ends.lock() = Some(ends);
    }
}

impl<'a> Load<'a> {
    /// Makes a target, and begins.
    #[track_caller]
    pub fn begin(fixture: &'a Fixture, mix: Mix) -> Self {
        let row = fixture.namespace().rsplit_once('-').map_or("", |(row, _)| row);
        let told = mix.target.iter().find(|(name, _)| *name == STAMP).map(|(_, value)| *value);
        let stamped = told.map_or_else(|| keeps_append_times(row), |told| told == "LogAppendTime");
        let stamp = if stamped { "LogAppendTime" } else { "CreateTime" };
        println!("{row}: {}, target with {stamp}", mode().as_str());
        let settings = [&[(STAMP, stamp)], &mix.target[..]].concat();
        let target = fixture.target_with("out", mix.partitions, &settings);
        let shared = Arc::<Shared>::default();
        let mut log = Log::open(fixture, &target);
        let of_reader = Arc::clone(&shared);
        let reading = std::thread::spawn(move || {
            while !has_all(&of_reader, &log.seen) {
                log.read_on(Duration::from_millis(100));
                of_reader.seen.store(log.seen.len(), Ordering::SeqCst);
            }
            (log.seen, log.read_at)
        });
        let mut written = Log::uncommitted(fixture, &fixture.names.intake());
        let of_intake = Arc::clone(&shared);
        let writing = std::thread::spawn(move || {
            while of_intake.ends.lock().is_none() {
                written.read_on(Duration::from_millis(100));
            }
            written.seen
        });
        let producer = fixture.producer();
        let (intake, to) = (fixture.names.intake(), target.clone());
        let of_sender = Arc::clone(&shared);
        let sending = std::thread::spawn(move || send(&of_sender, &producer, &intake, &to, &mix));
        let (sending, reading, writing) = (Some(sending), Some(reading), Some(writing));
        Self { fixture, target, shared, sending, reading, writing, stamped }
    }

    /// Records sent so far.
    pub fn sent(&self) -> usize {
        self.shared.sent.load(Ordering::SeqCst)
    }

    /// Records that the concurrent reader has seen.
    pub fn seen(&self) -> usize {
        self.shared.seen.load(Ordering::SeqCst)
    }

    /// Waits until the concurrent reader has seen so many more.
    #[track_caller]
    pub fn wait_for_more(&self, count: usize) {
        let before = self.seen();
        eventually(&format!("{count} more are delivered"), || {
            let more = self.seen() - before;
            if more >= count { Ok(()) } else { Err(format!("{more}, of {} sent", self.sent())) }
        });
    }

    /// Some cancels are questions by HTTP, to these processes; until this is called all are records.
    pub fn cancel_through(&self, processes: &[&Process]) {
        let doors = processes.iter().filter_map(|process| process.address().ok());
        *self.shared.doors.lock() = doors.collect();
    }

    /// The fault is over, as of now: from here on counts what recovery takes.
    pub fn healed(&self) {
        self.healed_by(0);
    }

    /// The same by the clock of a broker that is so far ahead of this machine's.
    pub fn healed_by(&self, ahead_ms: i64) {
        let healed_at = now_ms().saturating_add_signed(ahead_ms);
        *self.shared.healed_at.lock() = Some(healed_at);
    }

    /// Stops sending, waits until nothing is pending, and tells all that happened.
    #[track_caller]
    pub fn finish(self, name: &str) -> History {
        self.finish_within(name, PATIENCE)
    }

    /// The same with another deadline.
    #[track_caller]
    pub fn finish_within(mut self, name: &str, patience: Duration) -> History {
        self.shared.stop.store(true, Ordering::SeqCst);
        let (sending, reading) = (self.sending.take(), self.reading.take());
        let mut sent = sending.expect("it began").join().expect("the load was sent");
        let reading = reading.expect("it began");
        self.fixture.wait_until_nothing_is_pending_within(patience);
        let mut late = whole(self.fixture, &self.target);
        let dead = whole(self.fixture, &self.fixture.names.dead());
        let ends: BTreeMap<i32, i64> = late.iter().map(|rec| (rec.partition, rec.offset)).collect();
        self.shared.read_to(ends.into_iter().collect());
        eventually("the concurrent reader has reached the end", || {
            if reading.is_finished() { Ok(()) } else { Err(format!("saw {}", self.seen())) }
        });
        let (mut concurrent, read_at) = reading.join().expect("the reader read");
        if !self.stamped {
            arrive_when_read((&mut concurrent, &read_at), &mut late);
        }
        let written = self.writing.take().expect("it began").join().expect("the intake was read");
        copied(&mut sent, &written);
        let healed_at = *self.shared.healed_at.lock();
        History { name: name.to_owned(), mode: mode(), sent, concurrent, late, dead, healed_at }
    }
}

/// Notes when each was read first.
fn arrive_when_read((concurrent, read_at): (&mut [Rec], &[u64]), late: &mut [Rec]) {
    let mut first: BTreeMap<(i32, i64), u64> = BTreeMap::new();
    for (rec, at) in concurrent.iter_mut().zip(read_at) {
        rec.at = *at;
        first.entry((rec.partition, rec.offset)).or_insert(*at);
    }
    for rec in late {
        // What only the late reader saw is told by the checkers.
        rec.at = first.get(&(rec.partition, rec.offset)).copied().unwrap_or(u64::MAX);
    }
}

/// Notes what was written more than once.
fn copied(sent: &mut [Sent], written: &[Rec]) {
    let mut copies: BTreeMap<usize, Vec<&Rec>> = BTreeMap::new();
    for rec in written {
        if let Some(n) = number(rec) {
            copies.entry(n).or_default().push(rec);
        }
    }
    for (n, of) in copies.into_iter().filter(|(_, of)| of.len() > 1) {
        let Some(sent) = sent.get_mut(n) else { continue };
        let first = of.iter().min_by_key(|rec| rec.offset).expect("more than one");
        println!("n={n} was written {} times by its producer", of.len());
        sent.copies = of.len();
        sent.ack = sent.ack.and(Some(Ack {
            partition: first.partition,
            offset: first.offset,
            at: first.at,
        }));
    }
}

fn has_all(shared: &Shared, seen: &[Rec]) -> bool {
    let ends = shared.ends.lock();
    ends.as_ref().is_some_and(|ends| {
        ends.iter().all(|(partition, last)| {
            seen.iter().any(|rec| rec.partition == *partition && rec.offset >= *last)
        })
    })
}

/// Record number `n` of a mix.
fn record(mix: &Mix, target: &str, n: usize) -> Sent {
    let delay_ms = mix.delays[n % mix.delays.len()];
    let mut value = format!("{n} ").into_bytes();
    let is_large = mix.large_every > 0 && n.is_multiple_of(mix.large_every);
    // Bytes that are no text, others for each.
    value.extend((0..if is_large { LARGE } else { SMALL }).map(|at| (n * 131 + at * 7) as u8));
    let mut record = out(value)
        .key(format!("k{}", n % mix.keys))
        .header("own", format!("of {n}"))
        .null_header("empty")
        .header("own", [n as u8, 0xff])
        .to(target);
    let mut fate = if is_large { Fate::Dead("too_large") } else { Fate::Delivered };
    if mix.poison_every > 0 && n.is_multiple_of(mix.poison_every) {
        record = record.header("x-delay", "soon");
        fate = Fate::Dead("bad_delay");
    } else {
        record = record.delay(delay_ms);
    }
    if mix.tracked_every > 0 && n.is_multiple_of(mix.tracked_every) {
        record = record.header("x-delay-id", format!("id-{n}"));
    }
    Sent { record, delay_ms, ack: None, copies: 1, fate, cancel: None }
}

/// A cancel that is to be sent.
struct Plan {
    n: usize,
    at: Instant,
}

fn send(
    shared: &Arc<Shared>,
    producer: &Producer,
    intake: &str,
    target: &str,
    mix: &Mix,
) -> Vec<Sent> {
    let began = Instant::now();
    let mut all: Vec<Sent> = Vec::new();
    // Where in the producer's order each record and each cancel is.
    let (mut places, mut cancels, mut count) = (Vec::new(), Vec::new(), 0);
    let mut plans: Vec<Plan> = Vec::new();
    let mut asking = Vec::new();
    while !shared.stop.load(Ordering::SeqCst) && began.elapsed() < LOAD_MAX {
        let wanted = began.elapsed().as_millis() as u64 * mix.rate / 1_000;
        while (all.len() as u64) < wanted {
            let n = all.len();
            let sent = record(mix, target, n);
            producer.send(intake, &sent.record);
            places.push(count);
            count += 1;
            if let Some(at) = cancel_at(mix, n, sent.delay_ms, sent.fate) {
                plans.push(Plan { n, at: Instant::now() + at });
            }
            all.push(sent);
            shared.sent.store(all.len(), Ordering::SeqCst);
        }
        plans.retain(|plan| {
            // Only of what the broker has can the answer not be "unknown".
            let due = plan.at <= Instant::now() && producer.has(places[plan.n]);
            if due {
                let key = all[plan.n].record.key.clone().expect("a key");
                let doors = shared.doors.lock();
                match doors.get(plan.n % doors.len().max(1)).filter(|_| plan.n % 2 == 0) {
                    Some(door) => asking.push((plan.n, ask(door, &key, plan.n))),
                    None => {
                        let cancel = Out { key: Some(key), value: None, ..Out::default() }
                            .header("x-delay-id", format!("id-{}", plan.n))
                            .header("x-delay-action", "cancel");
                        producer.send(intake, &cancel);
                        cancels.push((plan.n, count));
                        count += 1;
                    }
                }
            }
            !due
        });
        std::thread::sleep(Duration::from_millis(5));
    }
    let heard: Vec<Option<Ack>> =
        producer.settled().into_iter().map(|ack| ack.and_then(Result::ok)).collect();
    for (sent, place) in all.iter_mut().zip(places) {
        sent.ack = heard[place];
    }
    for (n, place) in cancels {
        all[n].cancel = Some(Cancel::Record(heard[place]));
    }
    for (n, asked) in asking {
        all[n].cancel = Some(Cancel::Answer(asked.join().expect("asked")));
    }
    all
}

/// When a record is cancelled, if it is: at once, long before it is due, shortly before, and about then.
fn cancel_at(mix: &Mix, n: usize, delay_ms: u64, fate: Fate) -> Option<Duration> {
    let every = mix.tracked_every * mix.cancelled_every;
    if every == 0 || !n.is_multiple_of(every) || fate != Fate::Delivered {
        return None;
    }
    let before = [delay_ms, 3_000, 500, 150, 20, 0][n / every % 6];
    Some(Duration::from_millis(delay_ms.saturating_sub(before)))
}

/// One for all: each has a thread of its own.
fn http() -> &'static reqwest::blocking::Client {
    static HTTP: OnceLock<reqwest::blocking::Client> = OnceLock::new();
    HTTP.get_or_init(|| client(ANSWER_MAX))
}

/// Asks for a cancel by HTTP; the answer, if there is one.
fn ask(door: &str, key: &[u8], n: usize) -> JoinHandle<Option<String>> {
    let key = String::from_utf8_lossy(key).into_owned();
    let url = format!("http://{door}/v1/timers/id-{n}?key={key}&wait=15s");
    std::thread::spawn(move || {
        let answer = http().delete(url).send().ok()?;
        if answer.status() == reqwest::StatusCode::NOT_FOUND {
            return Some("unknown".to_owned());
        }
        // 202 is "not decided yet".
        if answer.status() != reqwest::StatusCode::OK {
            return None;
        }
        let told: serde_json::Value = serde_json::from_str(&answer.text().ok()?).ok()?;
        told["outcome"].as_str().map(str::to_owned)
    })
}

impl History {
    /// How many arrived later than so many milliseconds after they were due.
    pub fn late_by_more_than(&self, ms: u64) -> usize {
        arrivals(self).filter(|(_, rec, due)| rec.at > due + ms).count()
    }
}
