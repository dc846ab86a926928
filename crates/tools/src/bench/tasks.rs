//! Tasks: how fast they are created and called, how late, what a pause and a killed worker cost, and what waits in memory. And
//! the same over gRPC, in a thousand projects, and beside a noisy one. And, as a case of its own, schedules and runs.
//!
//! The stub that is called, the load and its clients are in this process. waterclock is another process, with all roles; for
//! the pause and the killed worker it is three, one with the lanes and the API and two workers.
//!
//! # Invariants
//! 1. Each task of the cases without a fault is called once, and not before it is due; otherwise the run has failed.
//! 2. Each rate has the raw limit of the same run beside it, measured by the same load.

mod company;
mod faults;
mod figures;
mod grpc;
mod lines;
mod schedules;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::runtime::Runtime;

use super::Failed;
use super::cases::Cases;
use super::report::{Floor, median, name};
use super::tally::{Check, Tally};
use crate::lateness::{Lateness, Spread};
use crate::line::{AskError, Question};
use crate::machine::Cpu;
use crate::service::{Service, Start};
use crate::stub::{CALL, Call, Stub};
use waterclock_engine::{Millis, UnixMillis};
use waterclock_kafka::Delivery;
use waterclock_kafka::bench::{self, Directions, Watch as _};

pub(super) use figures::Tasks;
pub(super) use schedules::Recurring;

use figures::{Calls, Creates, Memory, Steady};
use lines::{Answers, Make, Until, closed, drive, paced};

/// The project of all tasks, and its service.
const PROJECT: &str = "bench";
const SERVICE: &str = "stub";
/// Open calls that both may have.
const CONCURRENCY: u32 = 1_000;
/// Connections that create single tasks. The API takes an eighth of its 1,024 connections for that.
const LINES: usize = 64;
/// Connections that create batches, and tasks in each of them.
const BATCH_LINES: usize = 4;
const BATCH: u64 = 500;
/// Rounds of each rate and of its raw limit, in turn; the median counts. None is longer than the steady case.
const ROUNDS: u64 = 3;
const RAW_ROUND: Duration = Duration::from_secs(2);
const CREATE_ROUND: Duration = Duration::from_secs(5);
/// One task of so many of the memory case is called in the spike.
const SPIKE_PART: u64 = 5;
/// Calls a second of the steady case, and their records on the floor.
const RATE: u64 = 500;
const EVERY: Duration = Duration::from_millis(2);
const FLOOR_SECONDS_MAX: u64 = 10;
/// How far ahead a spike is due, besides what its creation takes; no farther than the tasks of the steady case.
const AHEAD: Millis = Millis(8_000);
/// Longest wait for what should have come.
const WAIT_MAX: Duration = Duration::from_secs(90);
/// The same for the first tasks: an instance with an empty directory reads all timers first.
const FIRST_MAX: Duration = Duration::from_secs(600);
/// How long the stub is listened to after the last call.
const AFTER_LAST: Duration = Duration::from_secs(1);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);
/// Tasks that show that every lane and every partition is running.
const WARM: u64 = 120;
/// The clock of this process and that of waterclock are each behind the brokers' by up to a millisecond.
const CLOCKS: Millis = Millis(2);
/// A body of 200 bytes, as the records of the other cases have them.
const BODY: &str = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-._ 0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-._ 0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-._ !";

/// How tasks are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Http,
    Grpc,
}

/// What the answer to a create says.
#[derive(Deserialize)]
struct Created {
    task_id: String,
}

/// The same, or that of a batch.
#[derive(Deserialize)]
#[serde(untagged)]
enum Named {
    One(Created),
    Batch { tasks: Vec<Created> },
}

/// Many calls that were due at one instant.
struct Volley {
    /// How long before they were due the last task was acknowledged; negative: it came too late.
    created_before_due_ms: i64,
    /// From the due instant to the last call, in microseconds.
    last_us: u64,
    /// Calls a second, without the first and the last tenth.
    middle_per_second: f64,
    /// From the due instant on.
    cpu: Cpu,
    check: Check,
}

/// What the parts of the case share.
struct Stage<'a, 'b> {
    cases: &'a Cases<'b>,
    runtime: Runtime,
    stub: Stub,
    /// Of the steady case.
    seconds: u64,
    delay: Millis,
}

impl Cases<'_> {
    /// Measures everything about tasks.
    pub(super) fn tasks(&self, records: u64, seconds: u64, delay: Millis) -> Result<Tasks, Failed> {
        let stage = self.stage(seconds, delay)?;
        let (service, memory, batched) = stage.memory(records)?;
        let single = stage.singles(&service, Over::Http)?;
        let calls = stage.spike(&service, (records / SPIKE_PART).max(1), batched.per_second)?;
        let steady = stage.steady(&service)?;
        drop(service);
        let faults = stage.faults(most(records))?;
        let company = stage.company(records, batched.per_second)?;
        let delivery = name(Delivery::ExactlyOnce);
        Ok(Tasks { delivery, single, batched, calls, steady, faults, company, memory })
    }

    fn stage(&self, seconds: u64, delay: Millis) -> Result<Stage<'_, '_>, Failed> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().map_err(Failed::Start)?;
        let stub = runtime.block_on(Stub::start()).map_err(Failed::Start)?;
        Ok(Stage { cases: self, runtime, stub, seconds, delay })
    }
}

impl Stage<'_, '_> {
    /// Runs it on the runtime, and looks meanwhile whether somebody wants the end.
    fn run<T: Send + 'static>(
        &self,
        what: &'static str,
        future: impl Future<Output = Result<T, AskError>> + Send + 'static,
    ) -> Result<T, Failed> {
        let running = self.runtime.spawn(future);
        while !running.is_finished() {
            if self.cases.observer.stopped() {
                running.abort();
                return Err(bench::Error::Interrupted.into());
            }
            thread::sleep(LOOK);
        }
        let ended = self.runtime.block_on(running).map_err(|_| Failed::Died)?;
        ended.map_err(|source| Failed::Ask { what, source })
    }

    fn over(&self, round: Duration) -> Until {
        Until::Over(round.min(Duration::from_secs(self.seconds)))
    }

    fn sleep(&self, span: Duration) -> Result<(), Failed> {
        self.wait(span, || false).map(drop)
    }

    /// Waits until this is true; says whether it became so in time.
    fn wait(&self, longest: Duration, is_there: impl Fn() -> bool) -> Result<bool, Failed> {
        let by = Instant::now() + longest;
        while !is_there() {
            if self.cases.observer.stopped() {
                return Err(bench::Error::Interrupted.into());
            }
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            thread::sleep(left.min(LOOK));
        }
        Ok(true)
    }

    /// Starts a process of waterclock.
    fn start(&self, slot: &str, roles: Option<&str>, most: u64) -> Result<Service, Failed> {
        let cases = self.cases;
        let profile = cases.profiles.as_ref().map(|dir| dir.join(format!("tasks-{slot}")));
        let dir = cases.dir.join(slot);
        std::fs::create_dir_all(&dir).map_err(Failed::Start)?;
        Service::start(&Start {
            brokers: &cases.connection.brokers,
            namespace: &cases.namespace,
            config: cases.config_file.as_deref(),
            delivery: name(Delivery::ExactlyOnce),
            lanes: cases.lanes,
            horizon: None,
            tracked_max: Some(most),
            roles,
            calls_loopback: true,
            dir: &dir,
            profile: profile.as_deref(),
        })
        .map_err(Failed::Start)
    }

    /// Starts a process with all roles, and waits until each lane has had a task called.
    fn whole(&self, records: u64) -> Result<Service, Failed> {
        let mut service = self.start("whole", None, most(records))?;
        self.warm_up(&mut service)?;
        Ok(service)
    }

    /// Puts project and service, and waits until tasks are called.
    fn warm_up(&self, service: &mut Service) -> Result<(), Failed> {
        self.cases.observer.phase("waiting for waterclock", WARM);
        let limits = serde_json::json!({ "concurrency": CONCURRENCY });
        let address = format!("http://{}", self.stub.address);
        let mut named = limits.clone();
        named["address"] = address.into();
        let project = format!("/v1/projects/{PROJECT}");
        let at = format!("{project}/services/{SERVICE}");
        self.put(service, &project, &limits)?;
        self.put(service, &at, &named)?;
        let now = self.cases.now();
        // What is asked again must not be a second task, which another case would count.
        let make: Make = Arc::new(move |n| {
            let mut task = task(CALL, n, now);
            task["request_id"] = format!("warm-{}-{n}", now.0).into();
            create(&task)
        });
        let by = Instant::now() + FIRST_MAX;
        let to = service.http;
        loop {
            let until = (0, Until::Count(WARM));
            match self.run("create the first tasks", closed(to, 4, until, Arc::clone(&make))) {
                Ok(_) => break,
                // It may not have its lanes yet.
                Err(Failed::Ask { source: AskError::Answer { .. }, .. }) if Instant::now() < by => {
                    self.sleep(Duration::from_millis(200))?;
                }
                Err(error) => return Err(error),
            }
        }
        if !self.wait(FIRST_MAX, || self.stub.count() >= WARM)? {
            let log = service.ended().unwrap_or_else(|| "it is running".to_owned());
            return Err(Failed::NotReady { seen: self.stub.count(), of: WARM, log });
        }
        self.stub.take();
        Ok(())
    }

    /// Puts a project or a service, once the process listens and has read what there is.
    fn put(
        &self,
        service: &mut Service,
        path: &str,
        value: &serde_json::Value,
    ) -> Result<(), Failed> {
        let by = Instant::now() + WAIT_MAX;
        loop {
            let question = Question::put(path, value.to_string());
            let make: Make = Arc::new(move |_| question.clone());
            let until = (0, Until::Count(1));
            match self.run("put a project or a service", closed(service.http, 1, until, make)) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > by => return Err(error),
                Err(Failed::Ask { .. }) => self.sleep(Duration::from_millis(100))?,
                Err(error) => return Err(error),
            }
            if let Some(log) = service.ended() {
                return Err(Failed::Ended(log));
            }
        }
    }

    /// The raw limit of creates: what one producer writes to a topic, without anybody who reads it, a second.
    fn produce(&self, topic: &str, records: u64) -> Result<f64, Failed> {
        let cases = self.cases;
        let mut writer = bench::Writer::new(&cases.connection, topic, cases.lanes, 5)?;
        writer.warm_up(cases.observer)?;
        let began = Instant::now();
        for n in 0..records {
            writer.write(&cases.payload.record(n, UnixMillis(0), None), cases.observer)?;
        }
        writer.settle(cases.observer)?;
        Ok(records as f64 / began.elapsed().as_secs_f64())
    }

    fn settled(&self, service: &Service) -> Result<Option<u64>, Failed> {
        self.cases.observer.phase("waiting until nothing is left to do", 0);
        self.cases.settle(service)?;
        Ok(service.memory())
    }

    /// What pending tasks take, and as many timers with an id: each on top of as many tasks that were there before, as the first
    /// of anything brings along what is there once. It is looked at after a restart, so that nothing is counted that only their
    /// submission took. The tasks are created in batches, which is measured the first time.
    fn memory(&self, records: u64) -> Result<(Service, Memory, Creates), Failed> {
        let cases = self.cases;
        let service = self.whole(records)?;
        let batched = self.batches(&service, records, Over::Http)?;
        self.settled(&service)?;
        drop(service);
        let service = self.whole(records)?;
        let first_bytes = self.settled(&service)?;

        let topic = cases.topic("timers");
        bench::create(&cases.connection, std::slice::from_ref(&topic), cases.lanes)?;
        cases.observer.phase("submitting timers", records);
        let mut writer = cases.submitter()?;
        let directions = Directions { target: &topic, tracked: true };
        let now = cases.now();
        for n in 0..records {
            let record = cases.payload.record(n, far_ahead(n, now), Some(directions));
            writer.write(&record, cases.observer)?;
        }
        writer.settle(cases.observer)?;
        self.settled(&service)?;
        drop(service);
        let service = self.whole(records)?;
        let timers_bytes = self.settled(&service)?;

        let now = cases.now();
        let make = batch((0, records), move |n| far(n, now));
        let of = closed(service.http, BATCH_LINES, (0, batch_count(records)), make);
        self.run("create as many tasks again", of)?;
        self.settled(&service)?;
        drop(service);
        let service = self.whole(records)?;
        let tasks_bytes = self.settled(&service)?;
        let memory = Memory { pending: records, first_bytes, timers_bytes, tasks_bytes };
        Ok((service, memory, batched))
    }

    /// Creates so many tasks in batches, and writes as many records without waterclock, in turns.
    fn batches(&self, service: &Service, records: u64, over: Over) -> Result<Creates, Failed> {
        let cases = self.cases;
        let topic = cases.topic(match over {
            Over::Http => "produced",
            Over::Grpc => "produced.grpc",
        });
        bench::create(&cases.connection, std::slice::from_ref(&topic), cases.lanes)?;
        cases.observer.phase("creating tasks in batches", records);
        let (mut rounds, mut raw) = (Vec::new(), Vec::new());
        let (mut latency, mut taken_in, mut cpu) =
            (Lateness::new(), Duration::ZERO, Cpu::default());
        let part = |round: u64| records * round / ROUNDS;
        for round in 0..ROUNDS {
            let (first, last) = (part(round), part(round + 1));
            raw.push(self.produce(&topic, last - first)?);
            let before = service.cpu();
            let answers = self.batch(service, (first, last), over, 1)?;
            taken_in = taken_in.max(self.taken_in(service, task_ids(&answers))?);
            cpu = service.cpu().since(&before);
            rounds.push((last - first) as f64 / answers.took.as_secs_f64());
            latency.add(&answers.latency);
            cases.observer.done(last);
        }
        let last = records - part(ROUNDS - 1);
        Ok(Creates {
            per_second: median(&rounds),
            rounds_per_second: rounds,
            raw_per_second: median(&raw),
            answer_ms: latency.spread(),
            taken_in_ms: taken_in.as_secs_f64() * 1_000.0,
            cpu_us: per_record(&cpu, last),
            by_thread_us: cpu.per_record_us(last),
        })
    }

    /// Creates tasks in batches, spread over so many projects.
    fn batch(
        &self,
        service: &Service,
        (first, last): (u64, u64),
        over: Over,
        projects: u64,
    ) -> Result<Answers, Failed> {
        const WHAT: &str = "create tasks in batches";
        let (to, now) = (service.http, self.cases.now());
        let until = (0, batch_count(last - first));
        match over {
            Over::Http => {
                let make = batch((first, last), move |n| in_one_of(projects, n, far(n, now)));
                self.run(WHAT, closed(to, BATCH_LINES, until, make))
            }
            Over::Grpc => {
                let make = grpc::Make { now, projects };
                let callers = grpc::batches(to, make, (first, last), BATCH);
                self.run(WHAT, async move { drive(callers.await?, until).await })
            }
        }
    }

    /// How long until each of these tasks can be looked up: then its lane has taken it in, and those before it.
    fn taken_in(&self, service: &Service, ids: Vec<String>) -> Result<Duration, Failed> {
        self.cases.observer.phase("waiting until the lanes have them", 0);
        let began = Instant::now();
        let to = service.http;
        for id in ids {
            loop {
                let question = Question::get(&format!("/v1/tasks/{id}")).naming(1);
                let make: Make = Arc::new(move |_| question.clone());
                match self.run("look a task up", closed(to, 1, (0, Until::Count(1)), make)) {
                    Ok(_) => break,
                    Err(Failed::Ask { source: AskError::Answer { .. }, .. })
                        if began.elapsed() < WAIT_MAX => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(began.elapsed())
    }

    /// Single creates, and requests that look at nothing, as many at once, in turns.
    fn singles(&self, service: &Service, over: Over) -> Result<Creates, Failed> {
        let to = service.http;
        let (mut rounds, mut raw) = (Vec::new(), Vec::new());
        let (mut latency, mut count, mut ids) = (Lateness::new(), 0, Vec::new());
        let mut cpu = Cpu::default();
        self.cases.observer.phase("creating single tasks", ROUNDS);
        for round in 0..ROUNDS {
            let until = (0, self.over(RAW_ROUND));
            let asked = match over {
                Over::Http => {
                    let live: Make = Arc::new(|_| Question::get("/health/live"));
                    self.run("ask whether it lives", closed(to, LINES, until, live))
                }
                Over::Grpc => {
                    let callers = grpc::health(to);
                    let asking = async move { drive(callers.await?, until).await };
                    self.run("ask whether it lives", asking)
                }
            };
            raw.push(asked?.per_second());
            let now = self.cases.now();
            let before = service.cpu();
            let until = (round << 32, self.over(CREATE_ROUND));
            let answers = match over {
                Over::Http => {
                    let make: Make = Arc::new(move |n| create(&far(n, now)));
                    self.run("create tasks", closed(to, LINES, until, make))
                }
                Over::Grpc => {
                    let callers = grpc::singles(to, grpc::Make { now, projects: 1 });
                    self.run("create tasks", async move { drive(callers.await?, until).await })
                }
            };
            let answers = answers?;
            cpu = service.cpu().since(&before);
            rounds.push(answers.per_second());
            latency.add(&answers.latency);
            (count, ids) = (answers.count, task_ids(&answers));
            self.cases.observer.done(round);
        }
        let taken_in = self.taken_in(service, ids)?;
        Ok(Creates {
            per_second: median(&rounds),
            rounds_per_second: rounds,
            raw_per_second: median(&raw),
            answer_ms: latency.spread(),
            taken_in_ms: taken_in.as_secs_f64() * 1_000.0,
            cpu_us: per_record(&cpu, count),
            by_thread_us: cpu.per_record_us(count),
        })
    }

    /// All due at one instant, and called as fast as can be.
    fn spike(&self, service: &Service, count: u64, created: f64) -> Result<Calls, Failed> {
        self.cases.observer.phase("calling the stub without waterclock", ROUNDS);
        let mut raw = Vec::new();
        for _ in 0..ROUNDS {
            let make: Make = Arc::new(|n| Question::post(&format!("{CALL}{n}"), BODY.to_owned()));
            let until = (0, self.over(RAW_ROUND));
            let asked = closed(self.stub.address, LINES, until, make);
            raw.push(self.run("call the stub", asked)?.per_second());
        }
        let volley = self.volley(service, count, created, 1)?;
        self.cases.settle(service)?;
        let us = volley.last_us.max(1);
        Ok(Calls {
            created_before_due_ms: volley.created_before_due_ms,
            per_second: volley.check.seen as f64 * 1e6 / us as f64,
            middle_per_second: volley.middle_per_second,
            raw_per_second: median(&raw),
            cpu_us: per_record(&volley.cpu, count),
            by_thread_us: volley.cpu.per_record_us(count),
            memory_peak_bytes: service.memory_peak(),
            check: volley.check,
        })
    }

    /// Calls that are all due at one instant, in so many projects.
    fn volley(
        &self,
        service: &Service,
        count: u64,
        created: f64,
        projects: u64,
    ) -> Result<Volley, Failed> {
        self.stub.take();
        // Creation may be half as fast as before.
        let creating = Millis((2_000.0 * count as f64 / created.max(1.0)) as u64);
        let due = self.cases.now() + AHEAD.min(self.delay) + creating;
        self.cases.observer.phase("creating a spike", count);
        let make = batch((0, count), move |n| in_one_of(projects, n, task(CALL, n, due)));
        let until = (0, batch_count(count));
        self.run("create a spike", closed(service.http, BATCH_LINES, until, make))?;
        let created_before_due_ms = due.0 as i64 - self.cases.now().0 as i64;
        self.cases.observer.phase("spike of calls", count);
        while self.cases.now() + Millis(100) < due {
            self.sleep(LOOK)?;
        }
        let before = service.cpu();
        self.wait(WAIT_MAX, || self.stub.count() >= count)?;
        let cpu = service.cpu().since(&before);
        let calls = self.all_calls()?;
        let tally = self.tally(&calls, count);
        Ok(Volley {
            created_before_due_ms,
            last_us: tally.last_us.saturating_sub(due.0 * 1_000),
            middle_per_second: middle(&calls),
            cpu,
            check: tally.check,
        })
    }

    /// Created and called at a steady rate.
    fn steady(&self, service: &Service) -> Result<Steady, Failed> {
        let seconds = self.seconds;
        let Floor { arrival_ms: floor_ms, .. } =
            self.cases.floor(RATE, seconds.min(FLOOR_SECONDS_MAX))?;
        let count = RATE * seconds;
        let before = service.cpu();
        let (call_ms, check) = self.regular(service, RATE)?;
        let cpu = service.cpu().since(&before);
        let cpu_us = per_record(&cpu, count);
        let by_thread_us = cpu.per_record_us(count);
        Ok(Steady { rate: RATE, call_ms, floor_ms, cpu_us, by_thread_us, check })
    }

    /// Tasks that are created and called, so many a second: how late their calls are.
    fn regular(&self, service: &Service, rate: u64) -> Result<(Spread, Check), Failed> {
        let count = rate * self.seconds;
        self.cases.observer.phase("steady calls", count);
        let due = self.cases.now() + self.delay;
        let make: Make = Arc::new(move |n| create(&task(CALL, n, due + Millis(n * 1_000 / rate))));
        let every = Duration::from_micros(1_000_000 / rate);
        self.run("create tasks", paced(service.http, LINES, (count, every), make))?;
        let longest = WAIT_MAX + Duration::from_millis(self.delay.0);
        self.wait(longest, || self.stub.count() >= count)?;
        let tally = self.tally(&self.all_calls()?, count);
        let call_ms = tally.arrival.spread();
        let call_ms = call_ms.ok_or(Failed::Nothing { topic: "the stub".to_owned() })?;
        Ok((call_ms, tally.check))
    }

    /// All calls, once as many have come as are wanted: with those of one more second, in which a task may come twice.
    fn all_calls(&self) -> Result<Vec<Call>, Failed> {
        self.sleep(AFTER_LAST)?;
        Ok(self.stub.take())
    }

    fn tally(&self, calls: &[Call], count: u64) -> Tally {
        let mut tally = Tally::new(count);
        // The clock of the brokers never goes back: it has no time for what was.
        let now = Instant::now();
        let now_us = self.cases.clock.now_us(now).unwrap_or_default();
        for call in calls {
            let ago = now.saturating_duration_since(call.at).as_micros() as u64;
            let at_us = now_us.saturating_sub(ago);
            tally.meet(call.n, call.due, UnixMillis(at_us / 1_000) + CLOCKS, at_us);
        }
        tally
    }
}

/// Pending timers and tasks that a process may have: those of all parts, with room for one project to have most of them.
fn most(records: u64) -> u64 {
    records * 8 + 2_000_000
}

fn per_record(cpu: &Cpu, records: u64) -> f64 {
    cpu.total().as_secs_f64() * 1e6 / records.max(1) as f64
}

/// The rate between the first tenth of the calls and the last one.
fn middle(calls: &[Call]) -> f64 {
    let mut at: Vec<Instant> = calls.iter().map(|call| call.at).collect();
    at.sort_unstable();
    let (from, to) = (at.len() / 10, at.len() * 9 / 10);
    match (at.get(from), at.get(to)) {
        (Some(first), Some(last)) if last > first => {
            (to - from) as f64 / (*last - *first).as_secs_f64()
        }
        _ => 0.0,
    }
}

/// The ids that the last answers of a load have: of a batch that of its last task.
fn task_ids(answers: &Answers) -> Vec<String> {
    answers.last.iter().filter_map(|body| last_id(body)).collect()
}

/// A project, or one of so many.
fn project(n: u64, projects: u64) -> String {
    match projects {
        0 | 1 => PROJECT.to_owned(),
        _ => format!("{PROJECT}-{}", n % projects),
    }
}

fn in_one_of(projects: u64, n: u64, mut task: serde_json::Value) -> serde_json::Value {
    task["project"] = project(n, projects).into();
    task
}

/// Hours ahead, spread over a day: none of it is due while this runs.
fn far_ahead(n: u64, now: UnixMillis) -> UnixMillis {
    now + Millis(2 * 3_600_000 + n.wrapping_mul(7_919) % (22 * 3_600_000))
}

fn far(n: u64, now: UnixMillis) -> serde_json::Value {
    task(CALL, n, far_ahead(n, now))
}

fn task(path: &str, n: u64, due: UnixMillis) -> serde_json::Value {
    serde_json::json!({
        "project": PROJECT, "group": "bench", "service": SERVICE, "path": format!("{path}{n}"),
        "trigger_at": due.0, "body": BODY,
    })
}

/// A request that creates a task.
fn create(task: &serde_json::Value) -> Question {
    Question::post("/v1/tasks/http", task.to_string()).naming(1)
}

/// Requests that create the tasks of these numbers, [`BATCH`] at once.
fn batch(
    (first, last): (u64, u64),
    task: impl Fn(u64) -> serde_json::Value + Send + Sync + 'static,
) -> Make {
    Arc::new(move |at| {
        let from = first + at * BATCH;
        let to = last.min(from + BATCH);
        let each = |n| {
            let mut task = task(n);
            task["type"] = "http".into();
            task
        };
        let tasks: Vec<serde_json::Value> = (from..to).map(each).collect();
        let body = serde_json::json!({ "tasks": tasks }).to_string();
        Question::post("/v1/tasks:batchCreate", body).naming(to.saturating_sub(from))
    })
}

fn batch_count(tasks: u64) -> Until {
    Until::Count(tasks.div_ceil(BATCH))
}

/// The id of the last task that an answer has.
fn last_id(body: &[u8]) -> Option<String> {
    let named = serde_json::from_slice(body).ok()?;
    let last = match named {
        Named::One(one) => one,
        Named::Batch { tasks } => tasks.into_iter().next_back()?,
    };
    Some(last.task_id)
}
