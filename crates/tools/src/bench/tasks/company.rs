//! What teams that share one installation want to know: creates over gRPC, a thousand projects, and a noisy one.

use std::sync::Arc;
use std::time::Duration;

use super::figures::{AtRate, Company, Many, Noisy};
use super::grpc;
use super::lines::{Make, Until, closed, keep_pace};
use super::{
    BATCH, BATCH_LINES, CONCURRENCY, Failed, LINES, Over, ROUNDS, SERVICE, SPIKE_PART, Stage,
    WAIT_MAX, batch, batch_count, median, per_record, project, task, task_ids,
};
use crate::bench::tally::Check;
use crate::line::Question;
use crate::service::Service;
use crate::stub::{HOLD, Stub};

/// Tasks a second that are created in batches at a rate, for so long at most, and no more of them than records.
const BATCH_RATE: u64 = 20_000;
const AT_RATE_SECONDS_MAX: u64 = 10;
/// So many projects at most, each with a service of its own, and no more than a tenth of the records: 24 or so can be put in a second.
const PROJECTS_MAX: u64 = 1_000;
/// Rounds of one project and of all, in turn.
const SPIKES: usize = 2;
/// How long until every instance has heard of a project.
const HEARD: Duration = Duration::from_secs(3);
/// Tasks of each of the batches that are sent at a rate.
const AT_RATE_BATCHES: [u64; 2] = [100, BATCH];
/// The project that disturbs the other, what it may have open (more than a process opens), and how long a call of it may take: longer
/// than this part.
const NOISY: &str = "noisy";
const NOISY_CONCURRENCY: u32 = 5_000;
const NOISY_TIMEOUT: &str = "5m";
/// Its overdue tasks at most.
const OVERDUE_MAX: u64 = 105_000;
/// So many of its calls hang before it is measured: a process opens a quarter of its 1,000 to one service.
const HANGING: u64 = 250;
/// Calls a second of the other project.
const QUIET_RATE: u64 = 100;

impl Stage<'_, '_> {
    pub(super) fn company(&self, records: u64, created: f64) -> Result<Company, Failed> {
        let mut service = self.whole(records)?;
        let single = self.singles(&service, Over::Grpc)?;
        let batched = self.batches(&service, records, Over::Grpc)?;
        let [smaller, larger] = AT_RATE_BATCHES;
        let at_rate =
            [self.at_rate(&service, records, smaller)?, self.at_rate(&service, records, larger)?];
        let many = self.many(&service, records, created)?;
        let noisy = self.noisy(&mut service, records)?;
        Ok(Company { single, batched, at_rate, many, noisy })
    }

    /// Batches over gRPC of so many tasks, at a rate: from when each was to be sent to its answer.
    fn at_rate(&self, service: &Service, records: u64, batch: u64) -> Result<AtRate, Failed> {
        let seconds = self.seconds.min(AT_RATE_SECONDS_MAX);
        let tasks = (BATCH_RATE * seconds).min(records);
        self.cases.observer.phase("creating tasks in batches at a rate", tasks);
        let (to, now) = (service.http, self.cases.now());
        let pace = (tasks.div_ceil(batch), Duration::from_micros(1_000_000 * batch / BATCH_RATE));
        let callers = grpc::batches(to, grpc::Make { now, projects: 1 }, (0, tasks), batch);
        let asking = async move { keep_pace(callers.await?, pace).await };
        let answers = self.run("create tasks in batches", asking)?;
        self.taken_in(service, task_ids(&answers))?;
        Ok(AtRate {
            rate: BATCH_RATE,
            batch,
            per_second: answers.per_second() * batch as f64,
            answer_ms: answers.latency.spread(),
        })
    }

    /// Creates and spikes of calls, in one project and in many, in turns.
    fn many(&self, service: &Service, records: u64, created: f64) -> Result<Many, Failed> {
        let projects = (records / 10).clamp(1, PROJECTS_MAX);
        self.cases.observer.phase("putting projects", projects);
        for of_service in [false, true] {
            let make = put(self.stub.address.to_string(), projects, of_service);
            let puts = closed(service.http, LINES, (0, Until::Count(projects)), make);
            self.run("put a project or a service", puts)?;
        }
        self.sleep(HEARD)?;
        let part = (records / ROUNDS).max(1);
        let spike = (records / SPIKE_PART).max(1);
        // What was measured, for one project and for all.
        let mut create_rates = [Vec::new(), Vec::new()];
        let mut create_us = [Vec::new(), Vec::new()];
        let mut call_rates = [Vec::new(), Vec::new()];
        let mut call_us = [Vec::new(), Vec::new()];
        let mut checks: [Option<Check>; 2] = [None, None];
        for _ in 0..ROUNDS {
            for (at, projects) in [1, projects].into_iter().enumerate() {
                let before = service.cpu();
                let answers = self.batch(service, (0, part), Over::Grpc, projects)?;
                self.taken_in(service, task_ids(&answers))?;
                let cpu = service.cpu().since(&before);
                create_rates[at].push(part as f64 / answers.took.as_secs_f64());
                create_us[at].push(per_record(&cpu, part));
            }
        }
        for _ in 0..SPIKES {
            for (at, projects) in [1, projects].into_iter().enumerate() {
                let volley = self.volley(service, spike, created, projects)?;
                call_rates[at].push(volley.middle_per_second);
                call_us[at].push(per_record(&volley.cpu, spike));
                // One that is not right counts, whatever the others were.
                if checks[at].as_ref().is_none_or(Check::holds) {
                    checks[at] = Some(volley.check);
                }
            }
        }
        let medians = |of: [Vec<f64>; 2]| of.map(|of| median(&of));
        let checks = checks.map(Option::unwrap_or_default);
        Ok(Many {
            projects,
            creates_per_second: medians(create_rates),
            create_cpu_us: medians(create_us),
            calls_per_second: medians(call_rates),
            call_cpu_us: medians(call_us),
            checks,
        })
    }

    /// The calls of one project, alone and beside one whose calls hang and whose tasks are all overdue.
    fn noisy(&self, service: &mut Service, records: u64) -> Result<Noisy, Failed> {
        let (alone_ms, _) = self.regular(service, QUIET_RATE)?;
        let noise = self.runtime.block_on(Stub::start()).map_err(Failed::Start)?;
        let overdue = (records * 21 / 10).min(OVERDUE_MAX);
        self.cases.observer.phase("creating the tasks of a noisy project", overdue);
        let mut limits = serde_json::json!({ "concurrency": NOISY_CONCURRENCY });
        let project = format!("/v1/projects/{NOISY}");
        self.put(service, &project, &limits)?;
        limits["address"] = format!("http://{}", noise.address).into();
        self.put(service, &format!("{project}/services/{SERVICE}"), &limits)?;
        self.sleep(HEARD)?;
        let now = self.cases.now();
        let make = batch((0, overdue), move |n| {
            let mut task = task(HOLD, n, now);
            task["project"] = NOISY.into();
            task["timeout"] = NOISY_TIMEOUT.into();
            task
        });
        let until = (0, batch_count(overdue));
        self.run("create tasks in batches", closed(service.http, BATCH_LINES, until, make))?;
        self.wait(WAIT_MAX, || noise.open() >= HANGING)?;
        let (beside_ms, check) = self.regular(service, QUIET_RATE)?;
        Ok(Noisy { rate: QUIET_RATE, overdue, hanging: noise.open(), alone_ms, beside_ms, check })
    }
}

/// Puts a project of many, or its service.
fn put(address: String, projects: u64, of_service: bool) -> Make {
    Arc::new(move |n| {
        let mut value = serde_json::json!({ "concurrency": CONCURRENCY });
        let mut path = format!("/v1/projects/{}", project(n, projects));
        if of_service {
            path += &format!("/services/{SERVICE}");
            value["address"] = format!("http://{address}").into();
        }
        Question::put(&path, value.to_string())
    })
}
