//! Executors of shards: threads with a consumer each, all of one group, which speak HTTP. They do as the contract says: the first
//! heartbeat, then the offset, then the work; a third of the period between heartbeats; and an end of the work, by their own clock, once
//! none was answered for 0.8 of it.
//!
//! What each does stands in one log, by one clock. [`judge`] says whether it was right.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{ClientConfig, ClientContext, Offset, TopicPartitionList};
use serde_json::{Value, json};

use crate::support::{Fixture, PATIENCE, Process, client, eventually, patient};

/// For so long an executor may be without a sign before the others have its partitions.
const SESSION: Duration = Duration::from_secs(6);
/// How often an executor looks at what is to be done.
const LOOK: Duration = Duration::from_millis(10);
/// For so long a report is made again and again.
const REPORTED_WITHIN: Duration = Duration::from_secs(60);

/// What a shard is: so many rows, of so long each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) rows: u32,
    pub(super) ms: u64,
}

/// What an executor did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The work begins behind this row.
    Begin(u32),
    /// This row is done.
    Row(u32),
    /// A heartbeat that was sent then, with this row, was answered.
    Said(u32),
    /// The work ended before it was done.
    Stop(String),
    /// The result was reported, and this was answered.
    End(String),
}

/// A line of the log.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) who: String,
    pub(super) task: String,
    pub(super) shard: u32,
    pub(super) turn: u32,
    pub(super) at: Instant,
    pub(super) what: What,
}

/// What all executors of a topic share.
pub(super) struct Crew {
    config: ClientConfig,
    topic: String,
    /// `heartbeat` of the shards.
    pub(super) period: Duration,
    /// Where the API is.
    servers: Mutex<Vec<String>>,
    log: Mutex<Vec<Line>>,
    /// Shards that do not come to an end; heartbeats are sent all the same.
    hanging: Mutex<BTreeSet<u32>>,
    /// Shards that fail for good.
    failing: Mutex<BTreeSet<u32>>,
    /// How many shards an executor has in hand at once, beside those that hang.
    at_once: AtomicUsize,
    /// Nobody begins anything.
    is_closed: AtomicBool,
    /// Records that were passed over, as their turn was over.
    passed_over: AtomicUsize,
}

impl Crew {
    /// For a topic of so many partitions; `period`: of heartbeats, in seconds.
    pub(super) fn new(
        fixture: &Fixture,
        topic: &str,
        period: u64,
        processes: &[&Process],
    ) -> Arc<Self> {
        let session = patient(SESSION).as_millis().to_string();
        let mut config = fixture.client();
        config
            .set("group.id", format!("{topic}-executors"))
            .set("auto.offset.reset", "earliest")
            .set("isolation.level", "read_committed")
            .set("enable.auto.commit", "false")
            .set("session.timeout.ms", &session)
            .set("heartbeat.interval.ms", "500")
            // One that stands still is out of the group as soon as one that is dead.
            .set("max.poll.interval.ms", &session)
            .set("fetch.wait.max.ms", "50");
        let crew = Self {
            config,
            topic: topic.to_owned(),
            period: patient(Duration::from_secs(period)),
            servers: Mutex::default(),
            log: Mutex::default(),
            hanging: Mutex::default(),
            failing: Mutex::default(),
            at_once: AtomicUsize::new(1),
            is_closed: AtomicBool::new(false),
            passed_over: AtomicUsize::new(0),
        };
        crew.serve(processes);
        Arc::new(crew)
    }

    /// The API is at these processes now.
    pub(super) fn serve(&self, processes: &[&Process]) {
        let address = |process: &&Process| process.address().expect("it serves");
        *self.servers.lock() = processes.iter().map(address).collect();
    }

    /// The task of each shard.
    pub(super) fn task(&self, Work { rows, ms }: Work) -> Value {
        json!({
            "type": "kafka", "topic": self.topic,
            "value": json!({"rows": rows, "ms": ms}).to_string(),
            "feedback": {"deadline": "10m", "heartbeat": self.period.as_secs()},
            "retry": {"count": 20, "interval": 1},
        })
    }

    /// Each executor has so many shards in hand at once.
    pub(super) fn widen(&self, at_once: usize) {
        self.at_once.store(at_once, SeqCst);
    }

    /// Starts an executor of this name.
    pub(super) fn start(self: &Arc<Self>, name: &str) -> Executor {
        let orders = Arc::<Orders>::default();
        let hand = Hand {
            crew: Arc::clone(self),
            name: name.to_owned(),
            orders: Arc::clone(&orders),
            http: client(PATIENCE),
            server: 0,
            open: Vec::new(),
        };
        let context = Context { waiting: Mutex::default() };
        let consumer: BaseConsumer<Context> =
            self.config.create_with_context(context).expect("a consumer");
        consumer.subscribe(&[&self.topic]).expect("subscribed");
        let thread = std::thread::spawn(move || hand.work(consumer));
        Executor { name: name.to_owned(), orders, thread: Some(thread) }
    }

    /// Nobody begins anything, until it is opened.
    pub(super) fn close(&self) {
        self.is_closed.store(true, SeqCst);
    }

    pub(super) fn open(&self) {
        self.is_closed.store(false, SeqCst);
    }

    /// A shard does not come to an end, until it is let go.
    pub(super) fn hang(&self, shard: u32) {
        self.hanging.lock().insert(shard);
    }

    pub(super) fn let_go(&self) {
        self.hanging.lock().clear();
    }

    /// A shard fails for good, until it is mended.
    pub(super) fn fail(&self, shard: u32) {
        self.failing.lock().insert(shard);
    }

    pub(super) fn mend(&self) {
        self.failing.lock().clear();
    }

    /// What was done so far.
    pub(super) fn log(&self) -> Vec<Line> {
        self.log.lock().clone()
    }

    /// How many shards were begun, and begun again.
    pub(super) fn begun(&self) -> usize {
        self.log.lock().iter().filter(|line| matches!(line.what, What::Begin(_))).count()
    }

    /// How many shards were reported as finished.
    pub(super) fn finished(&self) -> usize {
        self.log.lock().iter().filter(|line| line.what == What::End("finished".to_owned())).count()
    }

    /// How many records were passed over, as their turn was over.
    pub(super) fn passed_over(&self) -> usize {
        self.passed_over.load(SeqCst)
    }

    /// Waits until so many shards were reported as finished.
    #[track_caller]
    pub(super) fn until_finished(&self, count: usize) {
        eventually(&format!("{count} shards are finished"), || {
            let finished = self.finished();
            if finished >= count { Ok(()) } else { Err(finished.to_string()) }
        });
    }

    /// What an executor has in hand, once it has said of it that some rows are done, and most of so many are left. Those that hang are
    /// not meant.
    #[track_caller]
    pub(super) fn in_hand(&self, executor: &Executor, rows: u32) -> Line {
        eventually(&format!("{} has done some of its shard", executor.name), || {
            let (log, hanging) = (self.log(), self.hanging.lock().clone());
            let of = |line: &&Line| line.who == executor.name && !hanging.contains(&line.shard);
            let last = log.iter().rev().find(of).ok_or("nothing")?;
            let is_said = log.iter().rev().filter(of).any(|line| {
                let is_of = line.task == last.task && line.turn == last.turn;
                is_of && matches!(line.what, What::Said(row) if row > 0)
            });
            match last.what {
                What::Row(row) | What::Said(row) if is_said && row < rows * 2 / 5 => {
                    Ok(last.clone())
                }
                _ => Err(format!("{last:?}")),
            }
        })
    }

    /// Waits until a turn has come to this: the first line of it behind the others.
    #[track_caller]
    pub(super) fn until_line(&self, what: &str, so: impl Fn(&Line) -> bool) -> Line {
        eventually(what, || {
            let log = self.log.lock();
            let last = log.last().map(|line| format!("{line:?}")).unwrap_or_default();
            log.iter().find(|line| so(line)).cloned().ok_or(last)
        })
    }
}

/// What an executor is told by the test.
#[derive(Default)]
struct Orders {
    is_dead: AtomicBool,
    is_frozen: AtomicBool,
    is_mute: AtomicBool,
    is_over: AtomicBool,
}

/// An executor; it leaves when it is dropped.
pub(super) struct Executor {
    pub(super) name: String,
    orders: Arc<Orders>,
    thread: Option<JoinHandle<()>>,
}

impl Executor {
    /// It is gone from one moment to the next, and its group does not hear of it.
    pub(super) fn kill(&mut self) {
        self.orders.is_dead.store(true, SeqCst);
        self.join();
    }

    /// It stands still with all that it does.
    pub(super) fn freeze(&self) {
        self.orders.is_frozen.store(true, SeqCst);
    }

    pub(super) fn thaw(&self) {
        self.orders.is_frozen.store(false, SeqCst);
    }

    /// No call of it arrives anywhere, while it works on.
    pub(super) fn mute(&self) {
        self.orders.is_mute.store(true, SeqCst);
    }

    pub(super) fn unmute(&self) {
        self.orders.is_mute.store(false, SeqCst);
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            assert!(joined.is_ok() || std::thread::panicking(), "{} has panicked", self.name);
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.orders.is_over.store(true, SeqCst);
        self.thaw();
        self.join();
    }
}

/// A record of a shard whose work has not begun.
#[derive(Clone, Debug)]
struct Record {
    partition: i32,
    offset: i64,
    headers: BTreeMap<String, String>,
    value: Vec<u8>,
}

impl Record {
    fn of(message: &BorrowedMessage<'_>) -> Self {
        let text =
            |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
        let headers = message.headers().map(|of| {
            of.iter().map(|header| (header.key.to_owned(), text(header.value))).collect()
        });
        Self {
            partition: message.partition(),
            offset: message.offset(),
            headers: headers.unwrap_or_default(),
            value: message.payload().map(<[u8]>::to_vec).unwrap_or_default(),
        }
    }

    #[track_caller]
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name}: {self:?}"))
    }
}

/// What a consumer has read, and nobody has begun.
struct Context {
    waiting: Mutex<VecDeque<Record>>,
}

impl ClientContext for Context {
    fn error(&self, _: KafkaError, _: &str) {}
}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        // Whoever has the partitions next reads from what is committed.
        if !matches!(rebalance, Rebalance::Assign(_)) {
            self.waiting.lock().clear();
        }
    }
}

/// A turn in the hands of an executor.
struct Turn {
    task: String,
    ticket: String,
    shard: u32,
    number: u32,
    work: Work,
    row: u32,
    /// When the last heartbeat was sent that was answered.
    heard: Instant,
    beat_at: Instant,
    row_at: Instant,
    /// What is to be reported, and since when.
    done: Option<(&'static str, Instant)>,
}

/// What an instance said.
enum Answer {
    Taken(Value),
    /// The turn is over, and why.
    Gone(String),
    /// The same call may go well later.
    Later,
}

/// An executor at work.
struct Hand {
    crew: Arc<Crew>,
    name: String,
    orders: Arc<Orders>,
    http: reqwest::blocking::Client,
    server: usize,
    open: Vec<Turn>,
}

impl Hand {
    fn work(mut self, consumer: BaseConsumer<Context>) {
        loop {
            while self.orders.is_frozen.load(SeqCst) && !self.orders.is_dead.load(SeqCst) {
                sleep(LOOK);
            }
            if self.orders.is_dead.load(SeqCst) {
                // It leaves no group that is not told so.
                std::mem::forget(consumer);
                return;
            }
            if self.orders.is_over.load(SeqCst) {
                for turn in std::mem::take(&mut self.open) {
                    self.log(&turn, What::Stop("stopping".to_owned()), Instant::now());
                }
                return;
            }
            // Each record of these partitions is read at once, and begun when its turn has come.
            let mut wait = LOOK;
            while let Some(polled) = consumer.poll(wait) {
                match polled {
                    Ok(message) => {
                        consumer.context().waiting.lock().push_back(Record::of(&message));
                    }
                    Err(error) => println!("{}: {error}", self.name),
                }
                wait = Duration::ZERO;
            }
            let mut kept = Vec::new();
            for mut turn in std::mem::take(&mut self.open) {
                if self.go_on(&mut turn) {
                    kept.push(turn);
                }
            }
            self.open = kept;
            if !self.is_busy() && !self.crew.is_closed.load(SeqCst) {
                self.take(&consumer);
            }
        }
    }

    /// Whether it works on as many shards as it may; those that hang do not count.
    fn is_busy(&self) -> bool {
        let hanging = self.crew.hanging.lock();
        let open = self.open.iter().filter(|turn| !hanging.contains(&turn.shard)).count();
        open >= self.crew.at_once.load(SeqCst)
    }

    fn log(&self, turn: &Turn, what: What, at: Instant) {
        self.crew.log.lock().push(Line {
            who: self.name.clone(),
            task: turn.task.clone(),
            shard: turn.shard,
            turn: turn.number,
            at,
            what,
        });
    }

    /// Tells an instance, one after the other with each try.
    fn post(&mut self, turn: &Turn, what: &str, body: &Value, within: Duration) -> Answer {
        if self.orders.is_mute.load(SeqCst) || within.is_zero() {
            return Answer::Later;
        }
        let server = {
            let servers = self.crew.servers.lock();
            servers[self.server % servers.len()].clone()
        };
        let url = format!("http://{server}/v1/tasks/{}/{what}", turn.task);
        let sent = self.http.post(url).timeout(within).json(body).send();
        let told = sent.and_then(|answer| {
            let status = answer.status().as_u16();
            answer.text().map(|text| (status, text))
        });
        let (status, text) = match told {
            Ok(told) => told,
            Err(_) => {
                self.server += 1;
                return Answer::Later;
            }
        };
        let told: Value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        match status {
            200 => Answer::Taken(told),
            403 | 404 | 409 => {
                let code = told["code"].as_str().unwrap_or("no code");
                Answer::Gone(code.to_owned())
            }
            429 | 500.. => {
                self.server += 1;
                Answer::Later
            }
            _ => panic!("{status} to {what} of {}: {told}", turn.task),
        }
    }

    fn beat(&mut self, turn: &mut Turn) -> Answer {
        let sent = Instant::now();
        let period = self.crew.period;
        let silent = sent.saturating_duration_since(turn.heard);
        let within = (period / 3).min((period * 4 / 5).saturating_sub(silent));
        let mut body = json!({"ticket": turn.ticket, "worker": self.name});
        if turn.row > 0 {
            body["cursor"] = json!(format!("row:{}", turn.row));
            body["percent"] = json!(100 * turn.row / turn.work.rows);
        }
        let answer = self.post(turn, "heartbeat", &body, within);
        match answer {
            Answer::Taken(_) => {
                turn.heard = sent;
                turn.beat_at = sent + period / 3;
                self.log(turn, What::Said(turn.row), sent);
            }
            Answer::Gone(_) => {}
            Answer::Later => turn.beat_at = Instant::now() + period / 12,
        }
        answer
    }

    /// Begins the next shard, if there is one: the first heartbeat, then the offset, then the work.
    fn take(&mut self, consumer: &BaseConsumer<Context>) {
        let waiting = &consumer.context().waiting;
        let Some(record) = waiting.lock().pop_front() else { return };
        let now = Instant::now();
        let told: Value = serde_json::from_slice(&record.value).expect("the value of the run");
        let number = |of: &Value| of.as_u64().unwrap_or_else(|| panic!("{record:?}"));
        let work = Work { rows: number(&told["rows"]) as u32, ms: number(&told["ms"]) };
        let (shard, _) = record.header("x-delay-shard").split_once('/').expect("i/n");
        let cursor = record.headers.get("x-delay-cursor").and_then(|of| of.strip_prefix("row:"));
        let mut turn = Turn {
            task: record.header("x-delay-id").to_owned(),
            ticket: record.header("x-delay-ticket").to_owned(),
            shard: shard.parse().expect("a number"),
            number: record.header("x-delay-attempt").parse().expect("a number"),
            work,
            row: cursor.map_or(0, |row| row.parse().expect("a row")),
            heard: now,
            beat_at: now,
            row_at: now,
            done: None,
        };
        let answer = self.beat(&mut turn);
        let mut offset = TopicPartitionList::new();
        let next = Offset::Offset(record.offset + 1);
        offset.add_partition_offset(&self.crew.topic, record.partition, next).expect("an offset");
        match answer {
            Answer::Taken(_) => {}
            Answer::Gone(_) => {
                let _ = consumer.commit(&offset, CommitMode::Async);
                self.crew.passed_over.fetch_add(1, SeqCst);
                return;
            }
            Answer::Later => return waiting.lock().push_front(record),
        }
        if let Err(error) = consumer.commit(&offset, CommitMode::Sync) {
            println!("{}: shard {shard} waits: {error}", self.name);
            return waiting.lock().push_front(record);
        }
        // A commit may take a while.
        let begins = Instant::now();
        if begins.saturating_duration_since(turn.heard) > self.crew.period * 4 / 5 {
            return;
        }
        turn.row_at = begins + Duration::from_millis(work.ms);
        self.log(&turn, What::Begin(turn.row), begins);
        self.open.push(turn);
    }

    /// Works on, for a moment; false: that was the end.
    fn go_on(&mut self, turn: &mut Turn) -> bool {
        let now = Instant::now();
        if let Some((outcome, since)) = turn.done {
            return self.report(turn, outcome, since);
        }
        if now.saturating_duration_since(turn.heard) > self.crew.period * 4 / 5 {
            self.log(turn, What::Stop("unheard".to_owned()), now);
            return false;
        }
        if now >= turn.beat_at {
            let Answer::Gone(code) = self.beat(turn) else { return true };
            self.log(turn, What::Stop(code), Instant::now());
            return false;
        }
        if now < turn.row_at || self.crew.hanging.lock().contains(&turn.shard) {
            return true;
        }
        if turn.row < turn.work.rows {
            turn.row += 1;
            turn.row_at = now + Duration::from_millis(turn.work.ms);
            self.log(turn, What::Row(turn.row), now);
        }
        let fails = self.crew.failing.lock().contains(&turn.shard);
        if fails || turn.row >= turn.work.rows {
            turn.done = Some((if fails { "gone" } else { "finished" }, now));
        }
        true
    }

    fn report(&mut self, turn: &Turn, outcome: &'static str, since: Instant) -> bool {
        let mut body = json!({"ticket": turn.ticket, "worker": self.name, "outcome": outcome});
        if outcome != "finished" {
            body["error"] = json!("no such account");
        }
        let within = SESSION / 2;
        match self.post(turn, "result", &body, within) {
            Answer::Taken(told) => {
                let outcome = told["outcome"].as_str().expect("an outcome").to_owned();
                self.log(turn, What::End(outcome), Instant::now());
                false
            }
            Answer::Gone(code) => {
                self.log(turn, What::Stop(code), Instant::now());
                false
            }
            Answer::Later if since.elapsed() > patient(REPORTED_WITHIN) => {
                self.log(turn, What::Stop("unreported".to_owned()), Instant::now());
                false
            }
            Answer::Later => true,
        }
    }
}

/// What the executors of a run did beside the first turns of its shards.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// Turns above the first that were begun.
    pub(super) again: usize,
    /// Those of them that went on from a row.
    pub(super) from_row: usize,
}

/// The executors of a run whose shards are all finished did as they should: each shard was finished once, its turns begun once each; no
/// row of a turn was done once the next one had begun; and each turn went on from the row that was said last.
#[track_caller]
pub(super) fn judge(log: &[Line], shards: u32) -> Judged {
    let mut tasks: BTreeMap<&str, BTreeMap<u32, Vec<&Line>>> = BTreeMap::new();
    for line in log {
        tasks.entry(&line.task).or_default().entry(line.turn).or_default().push(line);
    }
    let mut judged = Judged::default();
    let mut seen = BTreeSet::new();
    for turns in tasks.values() {
        let shows = || format!("{:#?}", turns.values().flatten().collect::<Vec<_>>());
        let of = |turn: &[&Line], so: fn(&What) -> Option<u32>| -> Vec<(u32, Instant)> {
            turn.iter().filter_map(|line| Some((so(&line.what)?, line.at))).collect()
        };
        // A turn of which only the first heartbeat is known was read once more by somebody else.
        let begun: Vec<_> = turns
            .iter()
            .map(|(number, turn)| (*number, &turn[..]))
            .filter(|(_, turn)| turn.iter().any(|line| matches!(line.what, What::Begin(_))))
            .collect();
        let all: Vec<&&Line> = turns.values().flatten().collect();
        let shard = all[0].shard;
        assert!(shard < shards && all.iter().all(|line| line.shard == shard), "{}", shows());
        assert!(seen.insert(shard), "shard {shard} has two tasks");
        let ended = all.iter().filter(|line| line.what == What::End("finished".to_owned()));
        assert_eq!(ended.count(), 1, "shard {shard} is finished once: {}", shows());

        let (mut said, mut done, mut before) = (0, 0, None::<(u32, Instant)>);
        for (number, turn) in begun {
            let begins = of(turn, |what| match what {
                What::Begin(row) => Some(*row),
                _ => None,
            });
            let &[(from, at)] = &begins[..] else { panic!("two begin: {}", shows()) };
            if let Some((last, row_at)) = before {
                assert!(last < number && row_at <= at, "two work on {shard}: {}", shows());
                judged.again += 1;
                judged.from_row += usize::from(from > 0);
            }
            assert!(
                (said..=done.max(said)).contains(&from),
                "turn {number} of {shard} goes on from {from}, of {said} to {done}: {}",
                shows()
            );
            let rows = of(turn, |what| match what {
                What::Row(row) => Some(*row),
                _ => None,
            });
            let want: Vec<u32> = (from + 1..).take(rows.len()).collect();
            let numbers: Vec<u32> = rows.iter().map(|(row, _)| *row).collect();
            assert_eq!(numbers, want, "{}", shows());
            let last = rows.last().map_or(at, |(_, at)| *at);
            before = Some((number, last));
            done = done.max(numbers.last().copied().unwrap_or(from));
            let beats = of(turn, |what| match what {
                What::Said(row) => Some(*row),
                _ => None,
            });
            said = said.max(beats.iter().map(|(row, _)| *row).max().unwrap_or_default());
        }
    }
    assert_eq!(seen.len(), shards as usize, "all shards were executed");
    judged
}
