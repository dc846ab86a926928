//! `waterclock demo`: a producer, the lane threads and a consumer in one process, and a look at what they do.
//!
//! By default it plays on a broker inside this process, which is a stand-in and says so. With `--brokers` or `--kafka`
//! it plays on a real Kafka. The lane threads are those that `run` runs. All numbers are counted from outside, by
//! consumers of the topics: see `ledger`. On a real Kafka there are callbacks, too, counted by the service that is called: see
//! `callbacks`.
//!
//! # Invariants
//! 1. The terminal is as before when this ends, however it ends.
//! 2. Clients end before the broker, and topics are deleted after the clients: see `play`.
//! 3. With `--json` standard output has the summary and nothing else.

mod callbacks;
mod environment;
mod kafka_script;
mod ledger;
mod report;
mod spec;
mod view;
mod workload;

use parking_lot::{Mutex, MutexGuard};
use std::io::{self, IsTerminal as _, Write as _};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Args;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use waterclock_engine::header;
use waterclock_engine::{Millis, Record, UnixMillis};
use waterclock_kafka::{
    self as kafka, Ack, DemoReader, DemoWriter, KafkaError, LaneThreads, Seen, member,
};
use waterclock_terminal::{Exit, Failure, Key, Outcome, Screen, Stop, output};

use self::callbacks::{CallFigures, Callbacks, Calling};
use self::environment::{Choice, Environment, LANES};
use self::ledger::{Arrival, Figures, Ledger};
use self::report::Summary;
use self::spec::Spec;
use self::view::{Phase, Picture};
use self::workload::{Destination, Workload};
use crate::Program;
use crate::line::AskError;

/// Between two drawings.
const DRAW_EVERY: Duration = Duration::from_millis(100);
/// Between two lines where nothing is drawn.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for the lane threads to own their lanes. The embedded broker takes 3 s for it.
const JOIN_MAX: Duration = Duration::from_secs(60);
/// Longest wait for the records that go before the clock starts.
const WARM_MAX: Duration = Duration::from_secs(15);
/// After the last write: what falls due within this long is waited for.
const SOON: Millis = Millis(1_000);
/// And no longer than this.
const SOON_MAX: Duration = Duration::from_secs(10);
/// Longest wait for the lane threads to leave their group; their own drain is shorter.
const LEAVE_MAX: Duration = Duration::from_secs(10);
/// After the lane threads have ended, what they delivered last is still read for this long.
const LAST_READ: Duration = Duration::from_millis(300);
/// How long the embedded broker holds an empty answer back: an append does not end the wait.
const EMBEDDED_WAIT: Duration = Duration::from_millis(5);
/// The same of a Kafka, where it does.
const KAFKA_WAIT: Duration = Duration::from_millis(500);

/// Arguments of `demo`.
#[derive(Args, Debug)]
pub struct Demo {
    /// Seconds for which records are written
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(2..=3_600))]
    seconds: u32,
    /// Records a second; some hundreds more come in bursts
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rate: u32,
    /// Starts a real Kafka with scripts/kafka, plays on it, stops it
    #[arg(long)]
    kafka: bool,
    /// One line a second in place of the live view; always so where standard output is no terminal
    #[arg(long)]
    plain: bool,
    /// Where scripts/kafka is
    #[arg(long, value_name = "PATH", env = "WATERCLOCK_KAFKA_SCRIPT", hide = true)]
    kafka_script: Option<PathBuf>,
}

/// Why the demo could not go on.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    #[error("--kafka starts a Kafka, --brokers names one: say one of them")]
    Both,
    #[error("could not {0}")]
    System(&'static str, #[source] io::Error),
    #[error("could not make a Kafka client for the demo")]
    Client(#[source] KafkaError),
    #[error("the lane threads own no lanes after {JOIN_MAX:?}{0}")]
    NoLanes(String),
    #[error("the lane threads cannot go on")]
    LaneThreads(#[source] member::Error),
    #[error("the demo's {0} ended by a mistake")]
    Died(&'static str),
    #[error("could not write to Kafka")]
    Write(#[source] KafkaError),
    #[error("could not read from Kafka")]
    Read(#[source] KafkaError),
    #[error("could not make the topics of the demo's tasks")]
    CallTopics(#[source] kafka::topics::Error),
    #[error("the first tasks were not called within {} s: {why}", callbacks::WARM_MAX.as_secs())]
    NoCalls { why: String },
    #[error("the instance that has the demo's tasks gave no answer of use")]
    Ask(#[source] AskError),
}

/// One line for people on standard error; nobody there is nobody's problem.
fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "demo: {text}");
}

fn internal(error: DemoError) -> Failure {
    Failure::new(Exit::Internal, error)
}

fn unavailable(error: DemoError) -> Failure {
    Failure::new(Exit::Unavailable, error)
}

impl Demo {
    /// Plays the demo, and prints its summary.
    ///
    /// # Errors
    /// There is no broker to play on, or something that must not end ended.
    pub fn run(self, program: &dyn Program) -> Outcome {
        let stop = Stop::listen(|| {})
            .map_err(|error| internal(DemoError::System("listen for signals", error)))?;
        let plain = self.plain || !io::stdout().is_terminal();
        let choice = match (program.names_brokers(), self.kafka) {
            (true, true) => return Err(Failure::new(Exit::Usage, DemoError::Both)),
            (true, false) => Choice::Brokers(program.connection()?),
            (false, true) => Choice::Script(self.kafka_script.as_deref()),
            (false, false) => Choice::Embedded,
        };
        tell(match choice {
            Choice::Embedded => {
                "starting a broker inside this process, the client library's mock: a stand-in for Kafka. Nothing on \
                 disk, no real transactions, so at_least_once. --kafka or --brokers play on a real one, exactly_once"
            }
            Choice::Brokers(_) => "making topics of its own, which are deleted at the end",
            Choice::Script(_) => "starting a Kafka with scripts/kafka",
        });
        let environment = match Environment::prepare(program, &choice, &stop) {
            Err(_) if stop.asked() => return output_interrupted(),
            prepared => prepared?,
        };
        let spec = environment.spec(Millis(u64::from(self.seconds) * 1_000), self.rate);
        let Some(Played { elapsed, figures, calls }) =
            play(program, &environment, &spec, plain, &stop)?
        else {
            return output_interrupted();
        };
        drop(environment);
        let interrupted = stop.asked();
        let calls = calls.as_ref();
        let summary = Summary { spec: &spec, elapsed, interrupted, figures: &figures, calls };
        if program.is_json() {
            output::line(&summary.json().to_string())?;
        } else {
            output::write(summary.text().as_bytes())?;
        }
        let pending = figures.pending + calls.map_or(0, CallFigures::pending);
        let is_clean = figures.is_clean() && calls.is_none_or(|calls| calls.wrong == 0);
        Ok(if is_clean && (pending == 0 || interrupted) { Exit::Ok } else { Exit::Negative })
    }
}

fn output_interrupted() -> Outcome {
    tell("interrupted before the first record");
    Ok(Exit::Ok)
}

/// What came of it.
struct Played {
    elapsed: Millis,
    figures: Figures,
    /// `None`: the broker is the stand-in, which has none.
    calls: Option<CallFigures>,
}

/// Plays it, and gives the figures at its end; `None` when it was ended before it began.
///
/// When this returns every client of the demo's is closed, but for those that the lane threads leave to the exit.
fn play(
    program: &dyn Program,
    environment: &Environment,
    spec: &Spec,
    plain: bool,
    stop: &Stop,
) -> Result<Option<Played>, Failure> {
    let client = |error| unavailable(DemoError::Client(error));
    let ledger = Arc::new(Mutex::new(Ledger::new(&environment.ladder, environment.horizon)));
    let mut readers = Readers::new(environment).map_err(client)?;
    let books = Arc::clone(&ledger);
    let mut writer =
        DemoWriter::new(&environment.connection, move |ack| acked(&books, &ack)).map_err(client)?;
    let mut callbacks = match environment.is_embedded {
        true => None,
        false => Some(Callbacks::prepare(program, environment)?),
    };
    let lane_threads = environment.start(program)?;
    let mut is_ready =
        joined(&lane_threads, stop)? && warm(environment, &mut writer, &mut readers, stop)?;
    if is_ready && let Some(callbacks) = &mut callbacks {
        is_ready = callbacks.warm(stop)?;
    }
    if !is_ready {
        lane_threads.stop();
        let _ = lane_threads.ended().recv_timeout(LEAVE_MAX);
        return Ok(None);
    }

    let started = Instant::now();
    let reading = readers.start(environment, &ledger, started)?;
    let calling = callbacks.map(|callbacks| callbacks.start(spec, started));
    let seen = Seeing { ledger: &ledger, lane_threads: &lane_threads, calling: calling.as_ref() };
    let mut show = Show::new(spec, started, seen, plain, program.is_json(), stop)?;
    let writing = Writing::start(environment, spec, writer, &ledger, started)?;
    let total = Duration::from_millis(spec.total.0);
    let mut failed = Ok(());
    show.until(Phase::Running, stop, || {
        failed = alive(&lane_threads, &reading, &writing, calling.as_ref());
        failed.is_err() || stop.asked() || started.elapsed() >= total
    })?;
    failed?;

    let written = writing.end();
    if let Some(calling) = &calling {
        calling.stop();
    }
    let (soon, soon_max) = (kafka::wall_clock() + SOON, Instant::now() + SOON_MAX);
    // Of an interrupted demo the tasks may be due much later.
    let are_called = || {
        let pending = calling.as_ref().map_or(0, |calling| calling.figures().pending());
        pending == 0 || stop.asked()
    };
    show.until(Phase::Draining, stop, || {
        lock(&ledger).due_by(soon) == 0 && are_called()
            || stop.insisted()
            || Instant::now() >= soon_max
    })?;
    lane_threads.stop();
    let leave_max = Instant::now() + LEAVE_MAX;
    let mut ended = None;
    show.until(Phase::Leaving, stop, || {
        ended = ended.take().or_else(|| lane_threads.ended().try_recv().ok());
        ended.is_some() || Instant::now() >= leave_max
    })?;
    std::thread::sleep(LAST_READ);
    let elapsed = show.elapsed();
    drop(show);
    let read = reading.end();
    let figures = lock(&ledger).figures(kafka::wall_clock());
    let calls = calling.map(Calling::end).transpose();
    written?;
    read?;
    if let Some(Err(error)) = ended {
        return Err(internal(DemoError::LaneThreads(error)));
    }
    Ok(Some(Played { elapsed, figures, calls: calls? }))
}

fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock()
}

/// Token of the records that go before the clock starts, which are in no books.
const UNCOUNTED: usize = usize::MAX;
/// Set in the token of what cancels the record with the rest of the number.
const CANCELS: usize = 1 << (usize::BITS - 1);

fn acked(ledger: &Mutex<Ledger>, ack: &Ack) {
    let number = ack.token & !CANCELS;
    match (ack.token, &ack.written) {
        (UNCOUNTED, _) => {}
        (token, Ok(())) if token == number => lock(ledger).acked(number),
        (token, Err(_)) if token == number => lock(ledger).failed(number),
        (_, Ok(())) => lock(ledger).cancelled(number, kafka::wall_clock()),
        (_, Err(_)) => lock(ledger).uncancelled(),
    }
}

/// Waits until the lane threads own all lanes; false when somebody ended the demo.
fn joined(lane_threads: &LaneThreads, stop: &Stop) -> Result<bool, Failure> {
    tell("the lane threads join their group");
    let until = Instant::now() + JOIN_MAX;
    loop {
        let owned: usize =
            lane_threads.statuses().iter().map(|status| status.lanes.load(Ordering::Relaxed)).sum();
        if owned == usize::from(LANES) {
            return Ok(true);
        }
        if let Ok(Err(error)) = lane_threads.ended().try_recv() {
            return Err(unavailable(DemoError::LaneThreads(error)));
        }
        if stop.asked() {
            return Ok(false);
        }
        if Instant::now() >= until {
            let why = trouble(lane_threads).map_or_else(String::new, |why| format!(": {why}"));
            return Err(unavailable(DemoError::NoLanes(why)));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a record through every lane, so that what a broker does for its first transaction and its first fetch is not
/// taken for what it always does. They carry no number, so nobody counts them; false when somebody ended the demo.
fn warm<F: Fn(Ack) + Send + Sync>(
    environment: &Environment,
    writer: &mut DemoWriter<F>,
    readers: &mut Readers,
    stop: &Stop,
) -> Result<bool, Failure> {
    tell("a record through every lane first, not counted; then the clock starts");
    let intake = kafka::topics::Names::new(&environment.namespace).intake().into();
    let headers = [(header::DELAY, "100"), (header::TARGET, &*environment.target)];
    let headers = headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
    let record = Record::new(None, Some(b"warm"), headers);
    for lane in 0..LANES {
        writer
            .send(&intake, Some(i32::from(lane)), &record, UNCOUNTED)
            .map_err(|error| unavailable(DemoError::Write(error)))?;
    }
    let until = Instant::now() + WARM_MAX;
    let mut left = LANES;
    while left > 0 && Instant::now() < until && !stop.asked() {
        let seen = readers.target.next(Duration::from_millis(100));
        left -= u16::from(seen.map_err(|error| unavailable(DemoError::Read(error)))?.is_some());
    }
    Ok(!stop.asked())
}

fn trouble(lane_threads: &LaneThreads) -> Option<String> {
    lane_threads.statuses().iter().find_map(|status| status.trouble())
}

/// Whether everything still works.
fn alive(
    lane_threads: &LaneThreads,
    reading: &Reading,
    writing: &Writing,
    calling: Option<&Calling>,
) -> Result<(), Failure> {
    match lane_threads.ended().try_recv() {
        Ok(Err(error)) => return Err(internal(DemoError::LaneThreads(error))),
        Ok(Ok(())) => return Err(internal(DemoError::Died("lane threads"))),
        Err(_) => {}
    }
    if reading.threads.iter().any(JoinHandle::is_finished) {
        return Err(internal(DemoError::Died("consumer")));
    }
    // The producer ends a little before the demo, when nothing more would be due in time.
    if writing.thread.is_finished() && writing.failed.load(Ordering::Relaxed) {
        return Err(internal(DemoError::Died("producer")));
    }
    if calling.is_some_and(|calling| !calling.is_alive()) {
        return Err(internal(DemoError::Died("creator of tasks")));
    }
    Ok(())
}

/// The terminal, taken over, and what draws on it.
struct View {
    // Never dropped: it would show the cursor again, which the screen does, and panic where the terminal is gone.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<io::Stdout>>>,
    screen: Screen,
}

impl View {
    fn open() -> io::Result<Self> {
        let screen = Screen::open()?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(Self { terminal: ManuallyDrop::new(terminal), screen })
    }
}

/// Where what is shown comes from.
#[derive(Clone, Copy)]
struct Seeing<'a> {
    ledger: &'a Mutex<Ledger>,
    lane_threads: &'a LaneThreads,
    calling: Option<&'a Calling>,
}

/// What is shown, and where.
struct Show<'a> {
    spec: &'a Spec,
    started: Instant,
    of: Seeing<'a>,
    view: Option<View>,
    /// The terminal is gone.
    is_over: bool,
    /// Lines go to standard error, since standard output is for the summary.
    json: bool,
    told: Option<Instant>,
    full: u64,
}

impl<'a> Show<'a> {
    fn new(
        spec: &'a Spec,
        started: Instant,
        of: Seeing<'a>,
        plain: bool,
        json: bool,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let opened = (!plain).then(View::open).transpose();
        let (view, is_over) = match opened {
            Ok(view) => (view, false),
            // It went while the lane threads joined.
            Err(_) if !io::stdout().is_terminal() => {
                stop.ask();
                (None, true)
            }
            Err(e) => return Err(internal(DemoError::System("take the terminal over", e))),
        };
        Ok(Self { spec, started, of, view, is_over, json, told: None, full: 0 })
    }

    fn elapsed(&self) -> Millis {
        Millis(self.started.elapsed().as_millis() as u64)
    }

    /// Shows what happens until `done`.
    fn until(
        &mut self,
        phase: Phase,
        stop: &Stop,
        mut done: impl FnMut() -> bool,
    ) -> Result<(), Failure> {
        while !done() {
            self.show(phase, stop)?;
            match &self.view {
                None => std::thread::sleep(DRAW_EVERY),
                Some(view) => {
                    let key = view.screen.wait(DRAW_EVERY);
                    match key.map_err(|e| internal(DemoError::System("read the keys", e)))? {
                        Key::None => {}
                        Key::End => stop.ask(),
                        Key::Gone => self.leave_terminal(stop),
                    }
                }
            }
        }
        Ok(())
    }

    /// Nobody sees anything any more: ends the demo as a key would.
    fn leave_terminal(&mut self, stop: &Stop) {
        self.view = None;
        self.is_over = true;
        stop.ask();
    }

    fn show(&mut self, phase: Phase, stop: &Stop) -> Result<(), Failure> {
        let line_is_due = self.told.is_none_or(|told| told.elapsed() >= LINE_EVERY);
        if self.is_over || self.view.is_none() && !line_is_due {
            return Ok(());
        }
        let figures = lock(self.of.ledger).figures(kafka::wall_clock());
        let levels = &figures.levels;
        let highest = levels.tiers.iter().chain([&levels.moving, &levels.wheel]).max();
        self.full = self.full.max(highest.copied().unwrap_or(0));
        let calls = self.of.calling.map(Calling::figures);
        let picture = Picture {
            spec: self.spec,
            phase,
            elapsed: self.elapsed(),
            figures: &figures,
            calls: calls.as_ref(),
            full: self.full,
            trouble: trouble(self.of.lane_threads),
        };
        if let Some(view) = &mut self.view {
            if view.terminal.draw(|frame| view::draw(frame, &picture)).is_err() {
                self.leave_terminal(stop);
            }
            return Ok(());
        }
        // Lines keep to whole seconds, whatever a look costs.
        self.told = Some(self.told.map_or_else(Instant::now, |told| told + LINE_EVERY));
        let line = report::line(&picture);
        if self.json {
            let _ = writeln!(io::stderr(), "{line}");
            Ok(())
        } else {
            output::line(&line).map(drop)
        }
    }
}

/// The onlookers: one of the lanes' topics and the dead letters, one of the target alone, so that what it measures
/// does not wait for the others.
struct Readers {
    lanes: DemoReader,
    target: DemoReader,
}

/// The onlookers, reading.
struct Reading {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<(), KafkaError>>>,
}

impl Readers {
    fn new(environment: &Environment) -> Result<Self, KafkaError> {
        let wait = if environment.is_embedded { EMBEDDED_WAIT } else { KAFKA_WAIT };
        let names = kafka::topics::Names::new(&environment.namespace);
        let mut lanes = names.of_lanes(&[], &environment.ladder, false);
        lanes.push(names.dead());
        let target = vec![environment.target.to_string()];
        Ok(Self {
            lanes: DemoReader::new(&environment.connection, lanes, LANES, wait)?,
            target: DemoReader::new(&environment.connection, target, LANES, wait)?,
        })
    }

    fn start(
        self,
        environment: &Environment,
        ledger: &Arc<Mutex<Ledger>>,
        started: Instant,
    ) -> Result<Reading, Failure> {
        let Self { lanes, target } = self;
        let stop = Arc::new(AtomicBool::new(false));
        // The dead letters stand after the intake and the tiers.
        let dead = 1 + environment.ladder.tiers().len();
        let books = Arc::clone(ledger);
        let of_lanes = read(lanes, &stop, move |seen, number| match seen.topic.checked_sub(1) {
            Some(tier) if tier + 1 == dead => {
                lock(&books).died(number, code_of(&seen.record));
            }
            tier => lock(&books).seen(number, tier, seen.stamped),
        });
        let books = Arc::clone(ledger);
        let is_embedded = environment.is_embedded;
        let of_target = read(target, &stop, move |seen, number| {
            let arrived: UnixMillis = kafka::wall_clock();
            let measured = if is_embedded { arrived } else { seen.stamped };
            let elapsed = Millis(started.elapsed().as_millis() as u64);
            let arrival = Arrival { stamped: seen.stamped, measured, elapsed };
            lock(&books).delivered(number, arrival);
        });
        let unstarted = |e| internal(DemoError::System("start a thread", e));
        Ok(Reading {
            stop,
            threads: vec![of_lanes.map_err(unstarted)?, of_target.map_err(unstarted)?],
        })
    }
}

fn read(
    mut reader: DemoReader,
    stop: &Arc<AtomicBool>,
    saw: impl Fn(&Seen, u32) + Send + 'static,
) -> io::Result<JoinHandle<Result<(), KafkaError>>> {
    let stop = Arc::clone(stop);
    std::thread::Builder::new().name("wc-demo-reader".into()).spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            if let Some(seen) = reader.next(Duration::from_millis(100))?
                && let Some(number) = workload::number_of(&seen.record)
            {
                saw(&seen, number);
            }
        }
        Ok(())
    })
}

fn code_of(record: &Record) -> Option<header::Code> {
    let is_code = |name: &[u8]| name == header::ERROR_CODE.as_bytes();
    let (_, value) = record.headers().find(|(name, _)| is_code(name))?;
    std::str::from_utf8(value?).ok()?.parse().ok()
}

impl Reading {
    fn end(self) -> Result<(), Failure> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            match thread.join() {
                Ok(read) => read.map_err(|error| unavailable(DemoError::Read(error)))?,
                Err(_) => return Err(internal(DemoError::Died("consumer"))),
            }
        }
        Ok(())
    }
}

/// The producer, writing.
struct Writing {
    stop: Arc<AtomicBool>,
    failed: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), KafkaError>>,
}

impl Writing {
    fn start<F: Fn(Ack) + Send + Sync>(
        environment: &Environment,
        spec: &Spec,
        mut writer: DemoWriter<F>,
        ledger: &Arc<Mutex<Ledger>>,
        started: Instant,
    ) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let failed = Arc::new(AtomicBool::new(false));
        let (stopped, fails) = (Arc::clone(&stop), Arc::clone(&failed));
        let shortest = environment.ladder.tiers()[0].hold;
        let workload = Workload::new(&environment.target, LANES, shortest, spec.total, spec.rate);
        let names = kafka::topics::Names::new(&environment.namespace);
        let topics = [names.intake().into(), names.tier(shortest).into()];
        let (ledger, rate) = (Arc::clone(ledger), spec.rate);
        let thread = std::thread::Builder::new().name("wc-demo-producer".into()).spawn(move || {
            let written = write(&mut writer, workload, &topics, &ledger, started, rate, &stopped)
                .and_then(|()| writer.flush(Duration::from_secs(5)));
            fails.store(written.is_err(), Ordering::Relaxed);
            written
        });
        let thread = thread.map_err(|e| internal(DemoError::System("start a thread", e)))?;
        Ok(Self { stop, failed, thread })
    }

    fn end(self) -> Result<(), Failure> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(written) => written.map_err(|error| unavailable(DemoError::Write(error))),
            Err(_) => Err(internal(DemoError::Died("producer"))),
        }
    }
}

/// Writes at the given rate until told to stop, or until nothing more would be due in time.
fn write<F: Fn(Ack) + Send + Sync>(
    writer: &mut DemoWriter<F>,
    mut workload: Workload,
    topics: &[Arc<str>; 2],
    ledger: &Mutex<Ledger>,
    started: Instant,
    rate: u32,
    stop: &AtomicBool,
) -> Result<(), KafkaError> {
    let mut random = rand::rng();
    let mut written = 0;
    while !stop.load(Ordering::Relaxed) {
        let elapsed = Millis(started.elapsed().as_millis() as u64);
        let owed = elapsed.0 * u64::from(rate) / 1_000;
        while written < owed || workload.burst() > 0 {
            written += u64::from(workload.burst() == 0);
            let number = lock(ledger).next_number();
            let Some(next) = workload.next(number, elapsed, kafka::wall_clock(), &mut random)
            else {
                return Ok(());
            };
            let (topic, partition, tier) = match next.destination {
                Destination::Intake => (&topics[0], None, None),
                Destination::Partition(partition) => (&topics[0], Some(i32::from(partition)), None),
                Destination::Tier => (&topics[1], None, Some(0)),
            };
            lock(ledger).handed(next.expect, tier);
            writer.send(topic, partition, &next.record, number as usize)?;
        }
        while let Some((number, cancel)) = workload.cancel(elapsed) {
            writer.send(&topics[0], None, &cancel, CANCELS | number as usize)?;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
