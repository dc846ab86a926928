//! `waterclock bench`: how fast, how late, beside the raw limits of the same broker in the same run.
//!
//! # Invariants
//! 1. Everything it makes begins with a namespace of its own, and is gone at its end, also after Ctrl-C.
//! 2. A run whose records did not all arrive, once each and never early, has failed: exit code 1.
//! 3. No figure without the copy rate beside it: only ratios travel from one machine to another.

mod cases;
mod report;
mod tally;
mod tasks;
mod timeline;
mod timers;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use waterclock_engine::{Millis, UnixMillis, header};
use waterclock_kafka::bench::{self as kafka, Payload, Watch};
use waterclock_kafka::topics;
use waterclock_kafka::{BrokerClock, Connection, Delivery, Probe};
use waterclock_terminal::{Exit, Failure, Outcome, Progress, Stop, output};

use crate::Program;
use crate::corner::Corner;
use crate::line::AskError;
use crate::machine::{self, Machine};

use cases::{Cases, Held, SETTLE_LOOK};
use report::{Parameters, Report};

/// Longest wait for the brokers' time.
const TIME_MAX: Duration = Duration::from_secs(20);
/// The floor needs fewer seconds than the run that it is held against.
const FLOOR_SECONDS_MAX: u64 = 10;

/// Arguments of `bench`.
#[derive(Args, Debug)]
pub struct Bench {
    /// Records of a copy and of a spike, or pending ones
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=50_000_000))]
    records: u64,
    /// Records a second of the steady case
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// Seconds of the steady case
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Delay of the steady case
    #[arg(long, default_value = "10s", value_parser = delay)]
    delay: Millis,
    /// Lanes, which are the partitions of every topic
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    lanes: u16,
    /// Which way of delivery
    #[arg(long, value_enum, default_value_t = Ways::Both)]
    delivery: Ways,
    /// What to measure; the raw copy is always measured beside it
    #[arg(long, value_enum, default_value_t = Case::All)]
    case: Case,
    /// Writes the JSON to a file, too; with --json it goes to standard output instead of the table
    #[arg(long, value_name = "FILE")]
    json_file: Option<PathBuf>,
    /// Draws throughput and lateness over time, a picture for each case, into a directory
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Profiles the process of waterclock with perf, from its start to its end, into a directory
    #[arg(long, value_name = "DIR")]
    profile: Option<PathBuf>,
    /// Prints the table as Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Version of the brokers, to be noted in the result: no client can ask for it
    #[arg(long, value_name = "VERSION")]
    kafka: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Ways {
    Both,
    ExactlyOnce,
    AtLeastOnce,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    /// Only the raw copy
    Copy,
    /// All records due at one instant, held in tiers and held in memory
    Spike,
    /// A steady rate with one delay, and the floor of lateness
    Steady,
    /// Memory with a tenth of the records pending, and with all; no part of all
    Pending,
    /// Spikes without and with an id
    Tracked,
    /// As many pending timers: memory, index, look-ups, cancels, restarts; no part of all
    Timers,
    /// Tasks: creates, calls, lateness, a pause, a killed worker, memory; no part of all
    Tasks,
    /// Schedules that have a time in each second, and a run of many shards; no part of all
    Schedules,
    /// Copy, spike and steady
    All,
}

fn delay(text: &str) -> Result<Millis, String> {
    match header::duration(text) {
        Ok(delay) if delay <= Millis::HOUR => Ok(delay),
        _ => Err("want a time of at most 1h, as in 10s".to_owned()),
    }
}

impl Ways {
    fn all(self) -> &'static [Delivery] {
        match self {
            Self::Both => &[Delivery::ExactlyOnce, Delivery::AtLeastOnce],
            Self::ExactlyOnce => &[Delivery::ExactlyOnce],
            Self::AtLeastOnce => &[Delivery::AtLeastOnce],
        }
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Kafka(#[from] kafka::Error),
    #[error(transparent)]
    Topics(#[from] topics::Error),
    #[error("the brokers' time is not known after {} s", TIME_MAX.as_secs())]
    NoTime,
    #[error("could not listen for signals")]
    Signals(#[source] std::io::Error),
    #[error("could not start waterclock")]
    Start(#[source] std::io::Error),
    #[error("waterclock ended by itself: {0}")]
    Ended(String),
    #[error("waterclock delivered {seen} of the {of} first records: {log}")]
    NotReady { seen: u64, of: u64, log: String },
    #[error("nothing arrived in {topic}")]
    Nothing { topic: String },
    #[error("no answer from waterclock at {url}")]
    Http {
        url: String,
        #[source]
        source: reqwest::Error,
    },
    #[error("could not {what} at waterclock")]
    Ask {
        what: &'static str,
        #[source]
        source: AskError,
    },
    #[error("waterclock did not find its timers within {seconds} s of its start: {last}")]
    NotFound { seconds: u64, last: String },
    #[error("a reader ended without a word")]
    Died,
    #[error(
        "waterclock still used {:.0} % of a core when it should have nothing to do", core * 100.0
    )]
    NotSettled { core: f64 },
    #[error("could not write the result to {}", path.display())]
    Unwritten {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} checks failed:\n  {}", .0.len(), .0.join("\n  "))]
    Checks(Vec<String>),
}

impl From<Failed> for Failure {
    fn from(failed: Failed) -> Self {
        let exit = match &failed {
            Failed::Topics(error) if error.is_away() => Exit::Unavailable,
            Failed::Checks(_) | Failed::Kafka(kafka::Error::Interrupted) => Exit::Negative,
            Failed::NoTime => Exit::Unavailable,
            _ => Exit::Internal,
        };
        Self::new(exit, failed)
    }
}

/// What a person sees meanwhile, and whether they want it to end.
struct Observer {
    progress: Progress,
    stop: Stop,
}

impl Observer {
    fn phase(&self, what: &'static str, records: u64) {
        self.progress.begin(what, records);
    }
}

impl Watch for Observer {
    fn done(&self, count: u64) {
        self.progress.set(count);
    }

    fn stopped(&self) -> bool {
        self.stop.asked()
    }
}

impl Bench {
    /// Measures, and prints what was measured.
    ///
    /// # Errors
    /// Nothing could be measured, or a check of what was measured failed.
    pub fn run(self, program: &dyn Program) -> Outcome {
        let namespace = format!("waterclock-bench-{:08x}", rand::random::<u32>());
        let request = program.bench_topics(&namespace, self.lanes)?;
        let connection = program.connection()?;
        let token = program.api_token()?;
        // The first signal asks for the end, the second does not ask.
        let stop = Stop::listen(|| std::process::exit(130)).map_err(Failed::Signals)?;
        let observer = Observer { progress: Progress::new(0), stop };
        let report = self.measure(program, (connection, token), &request, &observer);
        drop(observer);
        self.show(&report?, program.is_json())
    }

    fn measure(
        &self,
        program: &dyn Program,
        (connection, token): (Connection, Option<String>),
        request: &topics::Request,
        observer: &Observer,
    ) -> Result<Report, Failed> {
        let namespace = &request.namespace;
        if let Some(profiles) = &self.profile {
            std::fs::create_dir_all(profiles)
                .map_err(|source| Failed::Unwritten { path: profiles.clone(), source })?;
        }
        let mut machine = Machine::look(self.kafka.clone());
        let corner = Corner::make(&connection, namespace).map_err(Failed::Start)?;
        let dir = corner.dir.clone();
        observer.phase("making topics", 0);
        topics::apply(&connection, request)?;
        let clock = Arc::new(BrokerClock::new());
        let meta = format!("{namespace}.meta");
        let _probe = Probe::start(&connection, &meta, Arc::clone(&clock))
            .map_err(|source| kafka::Error::Kafka { what: "ask for the brokers' time", source })?;
        let bench = Cases {
            connection,
            namespace: namespace.clone(),
            config_file: program.config_file().map(Path::to_owned),
            token,
            lanes: self.lanes,
            clock,
            payload: Payload::default(),
            observer,
            settle_look: SETTLE_LOOK.min(Duration::from_secs(self.seconds)),
            dir,
            profiles: self.profile.clone(),
        };
        let began = wait_for_time(&bench.clock, observer)?;
        let mut report = Report {
            began: output::time(began),
            namespace: namespace.clone(),
            asked: Parameters {
                records: self.records,
                rate: self.rate,
                seconds: self.seconds,
                delay_ms: self.delay.0,
                lanes: self.lanes,
            },
            machine: machine.clone(),
            copies: Vec::new(),
            floor: None,
            spikes: Vec::new(),
            steady: Vec::new(),
            pending: Vec::new(),
            timers: Vec::new(),
            tasks: None,
            schedules: None,
        };
        self.cases(&bench, &mut report)?;
        machine.load_after = machine::load();
        report.machine = machine;
        Ok(report)
    }

    fn cases(&self, bench: &Cases<'_>, report: &mut Report) -> Result<(), Failed> {
        let deliveries = self.delivery.all();
        match self.case {
            Case::Pending => return self.pending(bench, report),
            Case::Timers => {
                for delivery in deliveries {
                    report.timers.push(bench.timers(*delivery, self.records)?);
                }
                return Ok(());
            }
            Case::Tasks => {
                report.tasks = Some(bench.tasks(self.records, self.seconds, self.delay)?);
                return Ok(());
            }
            Case::Schedules => {
                report.schedules = Some(bench.schedules(self.records, self.seconds, self.delay)?);
                return Ok(());
            }
            _ => {}
        }
        let (copies, written) = bench.copies(self.records, deliveries)?;
        report.copies = copies;
        let steady = matches!(self.case, Case::Steady | Case::All);
        let spike = matches!(self.case, Case::Spike | Case::Tracked | Case::All);
        let kinds: &[bool] = if self.case == Case::Tracked { &[false, true] } else { &[false] };
        if steady {
            report.floor = Some(bench.floor(self.rate, self.seconds.min(FLOOR_SECONDS_MAX))?);
        }
        for (at, delivery) in deliveries.iter().enumerate() {
            let rates = (report.copies[at].median_per_second, written);
            for held in [Held::Tiers, Held::Memory] {
                let steady = steady && held == Held::Tiers;
                if !steady && !spike {
                    continue;
                }
                let service = bench.service(*delivery, held)?;
                if steady {
                    let pace = (self.rate, self.seconds);
                    report.steady.push(bench.steady(*delivery, &service, pace, self.delay)?);
                }
                for tracked in kinds.iter().filter(|_| spike) {
                    let kind = (held, *tracked);
                    let spike = bench.spike(*delivery, kind, &service, self.records, rates)?;
                    report.spikes.push(spike);
                }
            }
        }
        Ok(())
    }

    /// No copies, whose source would only fill the disk: nothing here is a rate.
    fn pending(&self, bench: &Cases<'_>, report: &mut Report) -> Result<(), Failed> {
        for delivery in self.delivery.all() {
            let service = bench.service(*delivery, Held::Tiers)?;
            let mut before = 0;
            for pending in [self.records / 10, self.records] {
                report.pending.push(bench.pending(*delivery, &service, (before, pending))?);
                before = pending;
            }
        }
        Ok(())
    }

    /// Draws what ran over time.
    fn draw(&self, report: &Report) -> Result<(), Failed> {
        let Some(dir) = &self.svg else { return Ok(()) };
        let failed = |path: &PathBuf| {
            let path = path.clone();
            move |source| Failed::Unwritten { path, source }
        };
        std::fs::create_dir_all(dir).map_err(failed(dir))?;
        let steady = report.steady.iter().map(|steady| {
            let what = format!("{}/s with a delay of {}", self.rate, self.delay);
            (format!("steady-{}", steady.delivery), what, steady.delivery, &steady.course)
        });
        let spikes = report.spikes.iter().map(|spike| {
            let what = format!("{} due at one instant, held in {}", self.records, spike.held);
            let kind = if spike.tracked { "timers" } else { "spike" };
            let file = format!("{kind}-{}-{}", spike.held, spike.delivery);
            (file, what, spike.delivery, &spike.course)
        });
        for (file, what, delivery, course) in steady.chain(spikes) {
            let path = dir.join(file).with_extension("svg");
            timeline::draw(&path, &format!("{what}, {delivery}"), course).map_err(failed(&path))?;
        }
        Ok(())
    }

    fn show(&self, report: &Report, json: bool) -> Outcome {
        let text = report.json().to_string();
        if let Some(path) = &self.json_file {
            std::fs::write(path, format!("{text}\n"))
                .map_err(|source| Failed::Unwritten { path: path.clone(), source })?;
        }
        self.draw(report)?;
        match (json, self.markdown) {
            (true, _) => output::line(&text)?,
            (false, true) => output::line(report.markdown().trim_end())?,
            (false, false) => output::line(report.table().trim_end())?,
        };
        match report.failures() {
            failures if failures.is_empty() => Ok(Exit::Ok),
            failures => Err(Failed::Checks(failures).into()),
        }
    }
}

fn wait_for_time(clock: &BrokerClock, observer: &Observer) -> Result<UnixMillis, Failed> {
    let by = Instant::now() + TIME_MAX;
    while Instant::now() < by {
        if let Some(now) = clock.now(Instant::now()) {
            return Ok(now);
        }
        if observer.stopped() {
            return Err(kafka::Error::Interrupted.into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(Failed::NoTime)
}
