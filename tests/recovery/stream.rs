//! Records that fall due one after the other, and what became of each.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::{Offset, TopicPartitionList};

use crate::support::{Ack, Fixture, Process, out};

/// Between two due times.
const EVERY_MS: u64 = 10;
/// From the beginning of the submission to the first due time: enough for all of it, and to start what is measured.
const LEAD: Duration = Duration::from_secs(14);
/// Windows of due times, for when the lateness is normal again.
const WINDOW_MS: u64 = 500;
/// Beyond what was normal before, that is still normal.
const NORMAL_MS: u64 = 100;
/// How long what is late may still come after the last due time.
const TAIL: Duration = Duration::from_secs(60);

#[allow(clippy::disallowed_methods, reason = "an outside observer has an outside clock")]
fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// What a reader saw of one record.
#[derive(Clone, Copy, Debug)]
struct Seen {
    appended: u64,
    at: u64,
}

type Found = Arc<Mutex<BTreeMap<usize, Vec<Seen>>>>;

/// The records, submitted.
pub struct Stream {
    acks: Vec<Ack>,
    delays: Vec<u64>,
    /// When the first falls due, by the wall clock.
    first: u64,
    found: Found,
    stop: Arc<AtomicBool>,
    reader: JoinHandle<()>,
}

/// A fault, as it was made.
pub struct Fault {
    at: u64,
    /// Run to the end.
    processes: Vec<Process>,
}

impl Fault {
    pub fn with<const N: usize>(self, processes: [Process; N]) -> Self {
        Self { processes: processes.into(), ..self }
    }
}

impl Stream {
    /// Submits records that fall due for so long, the first a while from now.
    pub fn prepare(fixture: &Fixture, target: &str, long: Duration) -> Self {
        let found = Found::default();
        let stop = Arc::new(AtomicBool::new(false));
        let reader = read(fixture, target, Arc::clone(&found), Arc::clone(&stop));
        let producer = fixture.producer();
        let began = Instant::now();
        let first = wall_ms() + LEAD.as_millis() as u64;
        let count = long.as_millis() as u64 / EVERY_MS;
        let delays: Vec<u64> = (0..count)
            .map(|n| {
                let due = LEAD.as_millis() as u64 + n * EVERY_MS;
                let delay = due - began.elapsed().as_millis() as u64;
                let record = out(n.to_string()).key(format!("k{}", n % 97)).delay(delay).to(target);
                producer.send(&fixture.names.intake(), &record);
                delay
            })
            .collect();
        let acks = producer.acks();
        Self { acks, delays, first, found, stop, reader }
    }

    /// Waits until records have fallen due for so long, and it is time for the fault.
    pub fn until_fault(&self, before: Duration) -> Fault {
        let at = self.first + before.as_millis() as u64;
        let now = wall_ms();
        assert!(now + 3_000 < at, "what is measured was not ready in time");
        std::thread::sleep(Duration::from_millis(at - now));
        Fault { at: wall_ms(), processes: Vec::new() }
    }

    /// Waits until all is there, and says how late it was.
    pub fn end(self, mut fault: Fault) -> Outcome {
        let last = self.first + self.acks.len() as u64 * EVERY_MS;
        let until = Duration::from_millis(last.saturating_sub(wall_ms())) + TAIL;
        let until = Instant::now() + until;
        while Instant::now() < until && self.found.lock().len() < self.acks.len() {
            std::thread::sleep(Duration::from_millis(50));
        }
        // A record that comes twice may come a little later.
        std::thread::sleep(Duration::from_secs(1));
        self.stop.store(true, Ordering::SeqCst);
        self.reader.join().expect("the reader ran");
        let logs: Vec<String> = fault.processes.iter().map(Process::log).collect();
        fault.processes.iter_mut().for_each(Process::kill);
        let found = self.found.lock();
        let mut outcome =
            Outcome { count: self.acks.len(), fault: fault.at, logs, ..Outcome::default() };
        for (n, (ack, delay)) in self.acks.iter().zip(&self.delays).enumerate() {
            let due = ack.at + delay;
            let seen = found.get(&n).map_or(&[][..], Vec::as_slice);
            outcome.missing += usize::from(seen.is_empty());
            outcome.doubled += usize::from(seen.len() > 1);
            outcome.early += seen.iter().filter(|seen| seen.appended < due).count();
            if let Some(first) = seen.first() {
                outcome.late.push(Late {
                    lane: ack.partition,
                    due,
                    appended: first.appended.saturating_sub(due),
                    seen: first.at.saturating_sub(due),
                });
            }
        }
        outcome
    }
}

fn read(fixture: &Fixture, target: &str, found: Found, stop: Arc<AtomicBool>) -> JoinHandle<()> {
    let mut config = fixture.client();
    config
        .set("group.id", "recovery-reads-without-a-group")
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .set("fetch.wait.max.ms", "50");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    let metadata = consumer.fetch_metadata(Some(target), Duration::from_secs(20)).expect("answers");
    let partitions = metadata.topics()[0].partitions().len() as i32;
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(target, partition, Offset::Beginning).expect("an offset");
    }
    consumer.assign(&list).expect("assigned");
    std::thread::spawn(move || {
        while !stop.load(Ordering::SeqCst) {
            let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) else { continue };
            let text = String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned();
            let appended = message.timestamp().to_millis().unwrap_or_default() as u64;
            let seen = Seen { appended, at: wall_ms() };
            found.lock().entry(text.parse().unwrap()).or_default().push(seen);
        }
    })
}

/// How late one record was, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Late {
    lane: i32,
    due: u64,
    appended: u64,
    seen: u64,
}

/// What became of all.
#[derive(Debug, Default)]
pub struct Outcome {
    count: usize,
    missing: usize,
    doubled: usize,
    early: usize,
    fault: u64,
    late: Vec<Late>,
    pub logs: Vec<String>,
}

fn percentile(mut of: Vec<u64>, part: f64) -> u64 {
    of.sort_unstable();
    let at = (of.len() as f64 * part) as usize;
    of.get(at.min(of.len().saturating_sub(1))).copied().unwrap_or_default()
}

impl Outcome {
    /// Whether everything came once and nothing early.
    pub fn is_good(&self) -> bool {
        self.missing + self.doubled + self.early == 0
    }

    /// Percentiles of what fell due well before the fault.
    fn before(&self, of: fn(&Late) -> u64, part: f64) -> u64 {
        let calm = self.late.iter().filter(|late| late.due + late.seen < self.fault);
        percentile(calm.map(of).collect(), part)
    }

    /// The longest lateness of each lane from the fault on.
    fn longest(&self, of: fn(&Late) -> u64) -> BTreeMap<i32, u64> {
        let mut lanes = BTreeMap::new();
        for late in self.late.iter().filter(|late| late.due + late.seen >= self.fault) {
            let longest: &mut u64 = lanes.entry(late.lane).or_default();
            *longest = (*longest).max(of(late));
        }
        lanes
    }

    /// From the fault to the end of the last window whose p99 was not normal.
    fn normal_after(&self) -> u64 {
        let normal = self.before(|late| late.appended, 0.99) + NORMAL_MS;
        let mut windows: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for late in self.late.iter().filter(|late| late.due >= self.fault.saturating_sub(WINDOW_MS))
        {
            windows.entry(late.due / WINDOW_MS).or_default().push(late.appended);
        }
        let mut late = windows.into_iter().filter(|(_, of)| percentile(of.clone(), 0.99) > normal);
        late.next_back()
            .map_or(0, |(window, _)| ((window + 1) * WINDOW_MS).saturating_sub(self.fault))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  {} records: {} missing, {} doubled, {} early",
            self.count, self.missing, self.doubled, self.early
        )?;
        let (appended, seen) = (|late: &Late| late.appended, |late: &Late| late.seen);
        let [p50, p99] =
            [0.5, 0.99].map(|part| (self.before(appended, part), self.before(seen, part)));
        writeln!(f, "  before, p50 / p99 ms: {} / {}, seen {} / {}", p50.0, p99.0, p50.1, p99.1)?;
        let show = |lanes: BTreeMap<i32, u64>| {
            let lanes: Vec<String> = lanes.into_values().map(|ms| ms.to_string()).collect();
            lanes.join(" ")
        };
        writeln!(f, "  longest by lane, ms: {}", show(self.longest(appended)))?;
        writeln!(f, "  the same, seen, ms: {}", show(self.longest(seen)))?;
        write!(f, "  p99 within {NORMAL_MS} ms of before again after {} ms", self.normal_after())
    }
}
