//! The cases of a bench, one function each; they share a clock, a way of making records, and a reader.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::report::{Copies, Floor, Pending, Process, Spike, Steady, median, name, ratio};
use super::tally::{Check, Tally};
use super::{Failed, Observer};
use crate::machine::Cpu;
use crate::service::{Service, Start};
use waterclock_engine::{Millis, UnixMillis};
use waterclock_kafka::Delivery;
use waterclock_kafka::bench::{self, Directions, Payload, Watch, Writer};
use waterclock_kafka::{BrokerClock, Connection};

/// Copies of each kind; the median counts.
const COPY_ROUNDS: usize = 3;
/// The horizon of a process that is to hold a spike in memory, and what a spike may then lie ahead.
const MEMORY_HORIZON: (&str, u64) = ("1m", 55_000);
/// How far ahead a spike is due, besides what its submission takes.
const AHEAD_MS: u64 = 12_000;
/// Longest wait for what should have come.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// A process has settled when it used less than this part of a core, looked at so often for so long, or for as long as the steady case
/// lasts.
const SETTLED_CORE: f64 = 0.06;
const SETTLED_LOOKS: u32 = 3;
pub(super) const SETTLE_LOOK: Duration = Duration::from_secs(5);
/// Longest wait for that.
const SETTLE_MAX: Duration = Duration::from_secs(1_800);
/// Records that show that every lane is running.
const WARM: u64 = 200;

/// What all cases work with.
pub(super) struct Cases<'a> {
    pub(super) connection: Connection,
    pub(super) namespace: String,
    pub(super) config_file: Option<PathBuf>,
    /// What requests say who asks, if instances of this configuration want to know.
    pub(super) token: Option<String>,
    pub(super) lanes: u16,
    pub(super) clock: Arc<BrokerClock>,
    pub(super) payload: Payload,
    pub(super) observer: &'a Observer,
    /// How long a look whether a process has settled lasts.
    pub(super) settle_look: Duration,
    pub(super) dir: PathBuf,
    /// Where profiles go, if they are wanted.
    pub(super) profiles: Option<PathBuf>,
}

/// Ends a reader whose writer has failed.
struct Reading<'a> {
    observer: &'a Observer,
    over: &'a AtomicBool,
}

impl Watch for Reading<'_> {
    fn done(&self, _: u64) {}

    fn stopped(&self) -> bool {
        self.over.load(Ordering::Relaxed) || self.observer.stopped()
    }
}

/// Where a spike waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    Tiers,
    Memory,
}

impl Cases<'_> {
    pub(super) fn topic(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    pub(super) fn now(&self) -> UnixMillis {
        self.clock.now(Instant::now()).unwrap_or_default()
    }

    fn sleep_until(&self, at: UnixMillis) -> Result<(), Failed> {
        loop {
            let left = at - self.now();
            if left == Millis(0) {
                return Ok(());
            }
            if self.observer.stopped() {
                return Err(bench::Error::Interrupted.into());
            }
            thread::sleep(Duration::from_millis(left.0.min(50)));
        }
    }

    /// Reads `topic` while `write` runs, until `expected` records came.
    fn measure<T>(
        &self,
        topic: &str,
        expected: u64,
        longest: Duration,
        write: impl FnOnce() -> Result<T, Failed>,
    ) -> Result<(Tally, T), Failed> {
        let by = Instant::now() + longest;
        let over = AtomicBool::new(false);
        let watch = Reading { observer: self.observer, over: &over };
        thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let mut tally = Tally::new(expected);
                bench::read(&self.connection, topic, self.lanes, by, &watch, |arrival| {
                    let at_us = self.clock.now_us(arrival.at).unwrap_or_default();
                    let all = tally.meet(arrival.n, arrival.due, arrival.appended, at_us);
                    self.observer.done(tally.check.seen);
                    if all { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })?;
                Ok::<_, bench::Error>(tally)
            });
            let written = write();
            if written.is_err() {
                over.store(true, Ordering::Relaxed);
            }
            let read = reading.join().map_err(|_| Failed::Died)?;
            let written = written?;
            Ok((read?, written))
        })
    }

    /// Writes at a rate, each record due `delay` after its turn; straight to the writer's topic without a target.
    fn drip(
        &self,
        writer: &mut Writer,
        (rate, count): (u64, u64),
        delay: Millis,
        target: Option<&str>,
    ) -> Result<(), Failed> {
        let start = self.now() + Millis(500);
        for n in 0..count {
            let turn = start + Millis(n * 1_000 / rate);
            self.sleep_until(turn)?;
            let directions = target.map(Directions::to);
            writer.write(&self.payload.record(n, turn + delay, directions), self.observer)?;
        }
        writer.settle(self.observer)?;
        Ok(())
    }

    /// The raw limits of the broker: one of each kind in turn, so that what else the machine does meets both.
    pub(super) fn copies(
        &self,
        records: u64,
        deliveries: &[Delivery],
    ) -> Result<(Vec<Copies>, f64), Failed> {
        let source = self.topic("source");
        bench::create(&self.connection, std::slice::from_ref(&source), self.lanes)?;
        self.observer.phase("writing what is copied", records);
        let mut writer = Writer::new(&self.connection, &source, self.lanes, 5)?;
        let began = Instant::now();
        for n in 0..records {
            writer.write(&self.payload.record(n, UnixMillis(0), None), self.observer)?;
            self.observer.done(n);
        }
        writer.settle(self.observer)?;
        let written_per_second = records as f64 / began.elapsed().as_secs_f64();

        let of = |delivery| (delivery, Vec::new(), Vec::new());
        let mut all: Vec<(Delivery, Vec<f64>, Vec<Check>)> =
            deliveries.iter().copied().map(of).collect();
        for round in 0..COPY_ROUNDS {
            for (delivery, rates, checks) in &mut all {
                let to = self.topic(&format!("copy-{}-{round}", name(*delivery)));
                bench::create(&self.connection, std::slice::from_ref(&to), self.lanes)?;
                self.observer.phase("copying", records);
                let id = (*delivery == Delivery::ExactlyOnce).then_some(to.as_str());
                let topics = (source.as_str(), to.as_str());
                let copied =
                    bench::copy(&self.connection, topics, self.lanes, records, id, self.observer)?;
                rates.push(copied.records as f64 / copied.took.as_secs_f64());
                self.observer.phase("checking the copy", records);
                let (tally, ()) = self.measure(&to, records, WAIT_MAX, || Ok(()))?;
                checks.push(tally.check);
            }
        }
        let copies = all.into_iter().map(|(delivery, rates, checks)| Copies {
            delivery: name(delivery),
            median_per_second: median(&rates),
            rounds_per_second: rates,
            checks,
        });
        Ok((copies.collect(), written_per_second))
    }

    /// The lateness of a record that is produced when it is due, without anything between.
    pub(super) fn floor(&self, rate: u64, seconds: u64) -> Result<Floor, Failed> {
        let topic = self.topic("floor");
        bench::create(&self.connection, std::slice::from_ref(&topic), self.lanes)?;
        let count = rate * seconds;
        self.observer.phase("floor of lateness", count);
        let longest = Duration::from_secs(seconds) + WAIT_MAX;
        let (tally, ()) = self.measure(&topic, count, longest, || {
            let mut writer = Writer::new(&self.connection, &topic, self.lanes, 0)?;
            writer.warm_up(self.observer)?;
            self.drip(&mut writer, (rate, count), Millis(0), None)
        })?;
        let arrival_ms = tally.arrival.spread().ok_or(Failed::Nothing { topic })?;
        Ok(Floor { arrival_ms, check: tally.check })
    }

    /// Starts waterclock and waits until it has delivered something from every lane.
    pub(super) fn service(&self, delivery: Delivery, held: Held) -> Result<Service, Failed> {
        self.service_tracking(delivery, held, None)
    }

    /// The same for one that may track so many timers.
    pub(super) fn service_tracking(
        &self,
        delivery: Delivery,
        held: Held,
        tracked_max: Option<u64>,
    ) -> Result<Service, Failed> {
        let mut service = self.start(delivery, held, tracked_max)?;
        self.warm_up(&mut service, &format!("warm-{}-{}", name(delivery), held.name()))?;
        Ok(service)
    }

    /// Starts waterclock.
    pub(super) fn start(
        &self,
        delivery: Delivery,
        held: Held,
        tracked_max: Option<u64>,
    ) -> Result<Service, Failed> {
        let profile = self
            .profiles
            .as_ref()
            .map(|dir| dir.join(format!("{}-{}", name(delivery), held.name())));
        Service::start(&Start {
            brokers: &self.connection.brokers,
            namespace: &self.namespace,
            config: self.config_file.as_deref(),
            delivery: name(delivery),
            lanes: self.lanes,
            horizon: (held == Held::Memory).then_some(MEMORY_HORIZON.0),
            tracked_max,
            roles: None,
            calls_loopback: false,
            dir: &self.dir,
            profile: profile.as_deref(),
        })
        .map_err(Failed::Start)
    }

    /// Waits until it has delivered something from every lane.
    fn warm_up(&self, service: &mut Service, topic: &str) -> Result<(), Failed> {
        let target = self.topic(topic);
        bench::create(&self.connection, std::slice::from_ref(&target), self.lanes)?;
        self.observer.phase("waiting for waterclock", WARM);
        let (tally, ()) = self.measure(&target, WARM, WAIT_MAX, || {
            let mut writer = self.submitter()?;
            for n in 0..WARM {
                let record = self.payload.record(n, self.now(), Some(Directions::to(&target)));
                writer.write(&record, self.observer)?;
            }
            writer.settle(self.observer)?;
            // One that ends by itself has a reason to tell, which is better than silence.
            thread::sleep(Duration::from_millis(500));
            service.ended().map_or(Ok(()), |log| Err(Failed::Ended(log)))
        })?;
        if tally.check.seen < WARM {
            let log = service.ended().unwrap_or_else(|| "it is running".to_owned());
            return Err(Failed::NotReady { seen: tally.check.seen, of: WARM, log });
        }
        Ok(())
    }

    pub(super) fn submitter(&self) -> Result<Writer, Failed> {
        let intake = format!("{}.intake", self.namespace);
        Ok(Writer::new(&self.connection, &intake, self.lanes, 5)?)
    }

    /// A steady rate, one delay, and how late each is.
    pub(super) fn steady(
        &self,
        delivery: Delivery,
        service: &Service,
        (rate, seconds): (u64, u64),
        delay: Millis,
    ) -> Result<Steady, Failed> {
        let topic = self.topic(&format!("steady-{}", name(delivery)));
        bench::create(&self.connection, std::slice::from_ref(&topic), self.lanes)?;
        let count = rate * seconds;
        self.observer.phase("steady rate", count);
        let before = service.cpu();
        let longest = Duration::from_secs(seconds) + Duration::from_millis(delay.0) + WAIT_MAX;
        let (tally, ()) = self.measure(&topic, count, longest, || {
            let mut writer = self.submitter()?;
            self.drip(&mut writer, (rate, count), delay, Some(&topic))
        })?;
        let cpu = service.cpu().since(&before);
        let spreads = tally.arrival.spread().zip(tally.append.spread());
        let (arrival_ms, append_ms) = spreads.ok_or(Failed::Nothing { topic })?;
        let process = self.process(service, &cpu, &Cpu::default(), count);
        let course = tally.samples.course();
        let delivery = name(delivery);
        Ok(Steady { delivery, arrival_ms, append_ms, process, check: tally.check, course })
    }

    /// Submits records that are due in hours until `pending` are there, and looks at the process once it has nothing
    /// more to do.
    pub(super) fn pending(
        &self,
        delivery: Delivery,
        service: &Service,
        (before, pending): (u64, u64),
    ) -> Result<Pending, Failed> {
        let topic = self.topic(&format!("pending-{}", name(delivery)));
        if before == 0 {
            bench::create(&self.connection, std::slice::from_ref(&topic), self.lanes)?;
        }
        self.observer.phase("submitting what stays pending", pending);
        let began = Instant::now();
        let mut writer = self.submitter()?;
        for n in before..pending {
            // Spread over a day, and none of it while this runs.
            let due = self.now() + Millis(2 * 3_600_000 + n * 7_919 % (22 * 3_600_000));
            writer
                .write(&self.payload.record(n, due, Some(Directions::to(&topic))), self.observer)?;
            self.observer.done(n);
        }
        writer.settle(self.observer)?;
        self.observer.phase("waiting until nothing is left to do", 0);
        let idle_core = self.settle(service)?;
        Ok(Pending {
            delivery: name(delivery),
            records: pending,
            settled_bytes: service.memory(),
            peak_bytes: service.memory_peak(),
            took_seconds: began.elapsed().as_secs_f64(),
            idle_core,
        })
    }

    /// Waits until the process has used next to nothing for a while; says how much that was, of a core.
    pub(super) fn settle(&self, service: &Service) -> Result<f64, Failed> {
        let by = Instant::now() + SETTLE_MAX;
        let mut quiet = 0;
        loop {
            let (before, began) = (service.cpu(), Instant::now());
            while began.elapsed() < self.settle_look {
                if self.observer.stopped() {
                    return Err(bench::Error::Interrupted.into());
                }
                thread::sleep(Duration::from_millis(50));
            }
            let used = service.cpu().since(&before).total();
            let core = used.as_secs_f64() / began.elapsed().as_secs_f64();
            quiet = if core < SETTLED_CORE { quiet + 1 } else { 0 };
            if quiet == SETTLED_LOOKS {
                return Ok(core);
            }
            if Instant::now() > by {
                return Err(Failed::NotSettled { core });
            }
        }
    }

    /// All due at one instant, submitted before; measured until the last one is with the reader.
    pub(super) fn spike(
        &self,
        delivery: Delivery,
        (held, tracked): (Held, bool),
        service: &Service,
        records: u64,
        (copy, written): (f64, f64),
    ) -> Result<Spike, Failed> {
        let kind = if tracked { "-tracked" } else { "" };
        let topic = self.topic(&format!("spike-{}-{}{kind}", name(delivery), held.name()));
        bench::create(&self.connection, std::slice::from_ref(&topic), self.lanes)?;
        // The same kind of write took so long before; twice that, since waterclock now reads beside it.
        let submitting_ms = 2.0 * 1_000.0 * records as f64 / written;
        let mut ahead = AHEAD_MS + submitting_ms as u64;
        if held == Held::Memory {
            ahead = ahead.min(MEMORY_HORIZON.1);
        }
        let due = self.now() + Millis(ahead);
        let start = service.cpu();
        let longest = Duration::from_millis(ahead) + WAIT_MAX;
        let written = || {
            self.observer.phase("submitting a spike", records);
            let mut writer = self.submitter()?;
            let began = Instant::now();
            let directions = Directions { target: &topic, tracked };
            for n in 0..records {
                writer.write(&self.payload.record(n, due, Some(directions)), self.observer)?;
                self.observer.done(n);
            }
            writer.settle(self.observer)?;
            let (took, ended) = (began.elapsed(), self.now());
            self.observer.phase("spike", records);
            self.sleep_until(due - Millis(200))?;
            Ok((took, due.0 as i64 - ended.0 as i64, service.cpu()))
        };
        let (tally, (took, before_due_ms, at_due)) =
            self.measure(&topic, records, longest, written)?;
        let end = service.cpu();
        let drain_us = tally.last_us.saturating_sub(due.0 * 1_000).max(1);
        let drained_per_second = tally.check.seen as f64 * 1e6 / drain_us as f64;
        Ok(Spike {
            delivery: name(delivery),
            held: held.name(),
            tracked,
            submitted_per_second: records as f64 / took.as_secs_f64(),
            submitted_before_due_ms: before_due_ms,
            drain_ms: drain_us as f64 / 1_000.0,
            drained_per_second,
            of_copy: ratio(drained_per_second, copy),
            process: self.process(service, &end.since(&start), &end.since(&at_due), records),
            check: tally.check,
            course: tally.samples.course(),
        })
    }

    fn process(&self, service: &Service, all: &Cpu, drain: &Cpu, records: u64) -> Process {
        Process {
            cpu_us: all.total().as_secs_f64() * 1e6 / records.max(1) as f64,
            drain_cpu_us: drain.per_record_us(records),
            memory_peak_bytes: service.memory_peak(),
        }
    }
}

impl Held {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tiers => "tiers",
            Self::Memory => "memory",
        }
    }
}
