//! Schedules: many that have a time in each second. How late the calls of their tasks are, and what they cost. And a run of many
//! shards.
//!
//! # Invariants
//! 1. Each time and each shard is called once; otherwise the bench has failed.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::figures::rate;
use super::lines::{Make, Until, closed};
use super::{AHEAD, BODY, Failed, LINES, LOOK, PROJECT, SERVICE, Stage, WAIT_MAX, per_record};
use crate::bench::cases::Cases;
use crate::bench::report::{mib, name, spread};
use crate::bench::tally::Check;
use crate::lateness::Spread;
use crate::line::{Line, Question};
use crate::service::Service;
use crate::stub::{CALL, Call};
use waterclock_engine::{Millis, UnixMillis};
use waterclock_kafka::Delivery;
use waterclock_kafka::bench::Watch as _;

/// Schedules at most, and one for so many records of the case.
const SCHEDULES_MAX: u64 = 1_000;
const SCHEDULES_PART: u64 = 50;
/// For so long at most.
const SECONDS_MAX: u64 = 60;
/// What it may take to make one.
const MAKING: Millis = Millis(30);
const SECOND: u64 = 1_000;
/// Shards of the run, at most, and one for so many records of the case.
const SHARDS_MAX: u64 = 10_000;
const SHARDS_PART: u64 = 20;

/// Schedules that have a time in each second.
#[derive(Debug, Serialize)]
struct Schedules {
    schedules: u64,
    seconds: u64,
    /// Schedules that were made a second.
    put_per_second: f64,
    /// How long before the first time the last one was made; negative: it came too late.
    put_before_ms: i64,
    /// From a time until the call of its task was with the stub.
    call_ms: Spread,
    /// Processor time of waterclock for each time, in microseconds: its chain, its task and its call.
    cpu_us: f64,
    by_thread_us: Vec<(String, f64)>,
    check: Check,
}

/// A run whose shards are calls. One process creates them, takes them and calls them.
#[derive(Debug, Serialize)]
struct Run {
    shards: u64,
    /// From when it was due until all shards were created, and until it was finished.
    created_ms: f64,
    finished_ms: f64,
    /// Processor time of waterclock for each shard, in microseconds.
    cpu_us: f64,
    /// Resident memory of the process before it, and the most of it from then on.
    memory_bytes: [Option<u64>; 2],
    check: Check,
}

/// Everything about schedules and runs.
#[derive(Debug, Serialize)]
pub(crate) struct Recurring {
    pub(crate) delivery: &'static str,
    schedules: Schedules,
    run: Run,
}

impl Recurring {
    /// What was checked, and its name.
    pub(crate) fn checks(&self) -> [(&'static str, &Check); 2] {
        [("calls of schedules", &self.schedules.check), ("shards of a run", &self.run.check)]
    }

    /// How much too late the schedules were made, in ms.
    pub(crate) fn put_late_ms(&self) -> Option<i64> {
        let before = self.schedules.put_before_ms;
        (before < 0).then_some(-before)
    }

    /// The rows of the table.
    pub(crate) fn rows(&self) -> Vec<(String, String)> {
        let Self { schedules, run, .. } = self;
        let [before, most] = run.memory_bytes;
        let mut rows = vec![
            row("schedules that are put", rate(schedules.put_per_second)),
            row(
                &format!(
                    "{} schedules, each second for {} s: due to the call, p50 / p90 / p99 / max ms",
                    schedules.schedules, schedules.seconds
                ),
                spread(schedules.call_ms),
            ),
            row(
                "processor time of a time of a schedule, with its task and call, us",
                format!("{:.0}", schedules.cpu_us),
            ),
            row(
                &format!("{} shards of a run, due to created / finished, ms", run.shards),
                format!("{:.0} / {:.0}", run.created_ms, run.finished_ms),
            ),
            row("processor time of a shard, us", format!("{:.0}", run.cpu_us)),
        ];
        if let (Some(before), Some(most)) = (before, most) {
            rows.push(row(
                "memory before the run / at most from then on, MiB",
                format!("{:.0} / {:.0}", mib(before), mib(most)),
            ));
        }
        rows
    }
}

/// What the answer to a new run says.
#[derive(Deserialize)]
struct Made {
    run_id: String,
}

/// What is told of a run.
#[derive(Deserialize)]
struct Told {
    run_status: String,
    counts: Counts,
}

#[derive(Deserialize)]
struct Counts {
    created: u64,
}

impl Cases<'_> {
    /// Measures schedules and runs.
    pub(in crate::bench) fn schedules(
        &self,
        records: u64,
        seconds: u64,
        delay: Millis,
    ) -> Result<Recurring, Failed> {
        let stage = self.stage(seconds, delay)?;
        let service = stage.whole(records)?;
        let schedules = stage.schedules(&service, records)?;
        let run = stage.shards(&service, records)?;
        Ok(Recurring { delivery: name(Delivery::ExactlyOnce), schedules, run })
    }
}

impl Stage<'_, '_> {
    /// Each schedule has a time in each second. Each time has to be one call.
    fn schedules(&self, service: &Service, records: u64) -> Result<Schedules, Failed> {
        let schedules = (records / SCHEDULES_PART).clamp(1, SCHEDULES_MAX);
        let seconds = self.seconds.min(SECONDS_MAX);
        let count = schedules * seconds;
        self.stub.take();
        self.cases.observer.phase("putting schedules", schedules);
        let ready = self.cases.now() + AHEAD + Millis(MAKING.0 * schedules);
        let start = UnixMillis(ready.0.next_multiple_of(SECOND));
        let make: Make = Arc::new(move |n| {
            let of = serde_json::json!({
                "group": "bench", "every": "1s", "start": start.0, "count": seconds,
                "task": {
                    "type": "http", "service": SERVICE, "path": format!("{CALL}{n}"), "body": BODY,
                },
            });
            Question::put(&format!("/v1/schedules/schedule.{PROJECT}.s{n}"), of.to_string())
        });
        let puts = closed(service.http, LINES, (0, Until::Count(schedules)), make);
        let put_per_second = self.run("put a schedule", puts)?.per_second();
        let put_before_ms = start.0 as i64 - self.cases.now().0 as i64;
        self.cases.observer.phase("schedules that have a time in each second", count);
        while self.cases.now() + Millis(100) < start {
            self.sleep(Duration::from_millis(5))?;
        }
        let before = service.cpu();
        let longest = WAIT_MAX + Duration::from_secs(seconds);
        self.wait(longest, || self.stub.count() >= count)?;
        let cpu = service.cpu().since(&before);
        let calls = self.all_calls()?;
        // Each time of each schedule has a number of its own.
        let of_time = |call: &Call| {
            let second = (call.due - start).0 / SECOND;
            Call { n: call.n * seconds + second.min(seconds), ..*call }
        };
        let numbered: Vec<Call> = calls.iter().map(of_time).collect();
        let tally = self.tally(&numbered, count);
        let call_ms = tally.arrival.spread();
        Ok(Schedules {
            schedules,
            seconds,
            put_per_second,
            put_before_ms,
            call_ms: call_ms.ok_or(Failed::Nothing { topic: "the stub".to_owned() })?,
            cpu_us: per_record(&cpu, count),
            by_thread_us: cpu.per_record_us(count),
            check: tally.check,
        })
    }

    /// One run, whose shards are called as soon as they are created.
    fn shards(&self, service: &Service, records: u64) -> Result<Run, Failed> {
        let shards = (records / SHARDS_PART).clamp(1, SHARDS_MAX);
        self.stub.take();
        self.cases.observer.phase("shards of a run", shards);
        let due = self.cases.now() + Millis(SECOND);
        let of = serde_json::json!({
            "project": PROJECT, "group": "bench", "shards": shards, "trigger_at": due.0,
            "task": { "type": "http", "service": SERVICE, "path": format!("{CALL}0"), "body": BODY },
        });
        let made = self.ask(service, "make a run", Question::post("/v1/runs", of.to_string()))?;
        let Made { run_id } = serde_json::from_slice(&made).map_err(|_| Failed::Died)?;
        let path = format!("/v1/runs/{run_id}");
        let (before, memory) = (service.cpu(), service.memory());
        let (mut most, mut created_ms) = (memory, None);
        let by = due + Millis(WAIT_MAX.as_millis() as u64);
        let finished_ms = loop {
            let told = self.ask(service, "look a run up", Question::get(&path))?;
            let told: Told = serde_json::from_slice(&told).map_err(|_| Failed::Died)?;
            let now = self.cases.now();
            let since_due = (now - due).0 as f64;
            most = most.max(service.memory());
            if told.counts.created == shards && created_ms.is_none() {
                created_ms = Some(since_due);
            }
            if told.run_status == "finished" || now > by {
                break since_due;
            }
            self.cases.observer.done(self.stub.count());
            thread::sleep(LOOK);
        };
        let cpu = service.cpu().since(&before);
        Ok(Run {
            shards,
            created_ms: created_ms.unwrap_or(finished_ms),
            finished_ms,
            cpu_us: per_record(&cpu, shards),
            memory_bytes: [memory, most],
            check: self.tally(&self.all_calls()?, shards).check,
        })
    }

    /// Asks once, over a connection of its own.
    fn ask(
        &self,
        service: &Service,
        what: &'static str,
        question: Question,
    ) -> Result<Bytes, Failed> {
        let to = service.http;
        self.run(what, async move { Line::open(to).await?.ask(question).await })
    }
}

fn row(what: &str, cell: String) -> (String, String) {
    (format!("schedules: {what}"), cell)
}
