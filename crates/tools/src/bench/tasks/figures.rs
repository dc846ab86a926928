//! What the case found, and how it is shown.

use serde::Serialize;

use super::super::report::{fine, mib, ratio, spread};
use super::super::tally::Check;
use crate::lateness::Spread;

/// How tasks are created.
#[derive(Debug, Serialize)]
pub(crate) struct Creates {
    /// Tasks that were acknowledged a second, the median of the rounds.
    pub(super) per_second: f64,
    pub(super) rounds_per_second: Vec<f64>,
    /// Requests that look at nothing over as many connections; of batches: records that one producer writes.
    pub(super) raw_per_second: f64,
    /// From a request to its answer.
    pub(super) answer_ms: Option<Spread>,
    /// From the last answer until the last tasks could be looked up.
    pub(super) taken_in_ms: f64,
    /// Processor time of waterclock for each, in microseconds.
    pub(super) cpu_us: f64,
    pub(super) by_thread_us: Vec<(String, f64)>,
}

impl Creates {
    /// The rows of what they are called, beside their raw limit.
    fn rows(&self, what: &str, raw: &str) -> Vec<(String, String)> {
        let mut rows = vec![
            row(&format!("{what}, part of {raw}"), part(self.per_second, self.raw_per_second)),
            row(raw, rate(self.raw_per_second)),
            row(what, rate(self.per_second)),
            row(&format!("{what} are with their lanes, ms"), format!("{:.0}", self.taken_in_ms)),
            row(&format!("processor time of {what}, us each"), format!("{:.0}", self.cpu_us)),
        ];
        if let Some(answer) = self.answer_ms {
            rows.push(row(&format!("answers to {what}, p50 / p90 / p99 / max ms"), fine(answer)));
        }
        rows
    }
}

/// Many calls that are due at one instant.
#[derive(Debug, Serialize)]
pub(crate) struct Calls {
    /// How long before they were due the last task was acknowledged; negative: it came too late.
    pub(super) created_before_due_ms: i64,
    /// From the due instant to the last call.
    pub(super) per_second: f64,
    /// From the first tenth of the calls to the last one.
    pub(super) middle_per_second: f64,
    /// What the load calls the stub by itself.
    pub(super) raw_per_second: f64,
    /// Processor time of waterclock for each from the due instant on, in microseconds.
    pub(super) cpu_us: f64,
    pub(super) by_thread_us: Vec<(String, f64)>,
    pub(super) memory_peak_bytes: Option<u64>,
    pub(super) check: Check,
}

/// Tasks that are created and called at a steady rate.
#[derive(Debug, Serialize)]
pub(crate) struct Steady {
    /// Calls a second.
    pub(super) rate: u64,
    /// From when a task was due until its call was with the stub.
    pub(super) call_ms: Spread,
    /// A record at the same rate, produced when it is due, until a reader has it.
    pub(super) floor_ms: Spread,
    pub(super) cpu_us: f64,
    pub(super) by_thread_us: Vec<(String, f64)>,
    pub(super) check: Check,
}

/// A pause, and a killed worker.
#[derive(Debug, Serialize)]
pub(crate) struct Faults {
    /// From the request for a pause to its answer.
    pub(super) pause_answered_ms: f64,
    /// From the request to the last call.
    pub(super) paused_after_ms: f64,
    /// From the request to go on to the first call.
    pub(super) went_on_after_ms: f64,
    pub(super) check: Check,
    /// `None`: the calls of the killed worker were not made, or not made again.
    pub(super) killed: Option<Killed>,
}

/// A worker that was killed with calls open.
#[derive(Debug, Serialize)]
pub(crate) struct Killed {
    /// How many.
    pub(super) calls: usize,
    /// From the kill until the first and the last of them was made again.
    pub(super) again_ms: [f64; 2],
}

/// Resident memory with so many tasks, with as many timers besides, and with as many tasks more.
#[derive(Debug, Serialize)]
pub(crate) struct Memory {
    pub(super) pending: u64,
    pub(super) first_bytes: Option<u64>,
    pub(super) timers_bytes: Option<u64>,
    pub(super) tasks_bytes: Option<u64>,
}

impl Memory {
    /// Bytes of one task and of one timer.
    fn each(&self) -> Option<(f64, f64)> {
        let (first, timers, tasks) = (self.first_bytes?, self.timers_bytes?, self.tasks_bytes?);
        let each = |more: u64, less: u64| (more as f64 - less as f64) / self.pending.max(1) as f64;
        Some((each(tasks, timers), each(timers, first)))
    }
}

/// Tasks of one project, and of many; the second of two figures is that of the many.
#[derive(Debug, Serialize)]
pub(crate) struct Many {
    pub(super) projects: u64,
    /// Batched creates over gRPC.
    pub(super) creates_per_second: [f64; 2],
    /// Processor time of waterclock for each, in microseconds.
    pub(super) create_cpu_us: [f64; 2],
    /// Calls of a spike, without the first and the last tenth.
    pub(super) calls_per_second: [f64; 2],
    pub(super) call_cpu_us: [f64; 2],
    pub(super) checks: [Check; 2],
}

/// A project beside one whose calls hang and whose tasks are all overdue.
#[derive(Debug, Serialize)]
pub(crate) struct Noisy {
    /// Calls a second of the quiet project.
    pub(super) rate: u64,
    /// Tasks of the noisy one.
    pub(super) overdue: u64,
    /// How many calls of those hung all the time.
    pub(super) hanging: u64,
    /// From when a task of the quiet project was due until its call, without the noisy one and beside it.
    pub(super) alone_ms: Spread,
    pub(super) beside_ms: Spread,
    pub(super) check: Check,
}

/// Batches that are sent at a rate, as fast as that or not.
#[derive(Debug, Serialize)]
pub(crate) struct AtRate {
    /// Tasks a second that were to be created.
    pub(super) rate: u64,
    /// Tasks of each batch.
    pub(super) batch: u64,
    /// Tasks a second that were acknowledged.
    pub(super) per_second: f64,
    /// From when a batch was to be sent to its answer.
    pub(super) answer_ms: Option<Spread>,
}

/// What teams that share one installation want to know.
#[derive(Debug, Serialize)]
pub(crate) struct Company {
    /// Over gRPC.
    pub(super) single: Creates,
    pub(super) batched: Creates,
    pub(super) at_rate: [AtRate; 2],
    pub(super) many: Many,
    pub(super) noisy: Noisy,
}

/// Everything about tasks.
#[derive(Debug, Serialize)]
pub(crate) struct Tasks {
    pub(crate) delivery: &'static str,
    pub(super) single: Creates,
    pub(super) batched: Creates,
    pub(super) calls: Calls,
    pub(super) steady: Steady,
    pub(super) faults: Faults,
    pub(super) company: Company,
    pub(super) memory: Memory,
}

impl Tasks {
    /// What was checked, and its name.
    pub(crate) fn checks(&self) -> [(&'static str, &Check); 6] {
        let Company { many, noisy, .. } = &self.company;
        [
            ("spikes of calls in one project", &many.checks[0]),
            ("spikes of calls in many projects", &many.checks[1]),
            ("calls beside a noisy project", &noisy.check),
            ("spike of calls", &self.calls.check),
            ("steady calls", &self.steady.check),
            ("calls about a pause", &self.faults.check),
        ]
    }

    /// How much too late the spike was created, in ms.
    pub(crate) fn created_late_ms(&self) -> Option<i64> {
        let before = self.calls.created_before_due_ms;
        (before < 0).then_some(-before)
    }

    /// Whether the calls of a killed worker were made again.
    pub(crate) fn were_called_again(&self) -> bool {
        self.faults.killed.is_some()
    }

    /// The rows of the table.
    pub(crate) fn rows(&self) -> Vec<(String, String)> {
        let Self { single, batched, calls, steady, faults, company, memory, .. } = self;
        let Company { single: grpc, batched: grpc_batched, at_rate, many, noisy } = company;
        let mut rows = single.rows("single creates", "requests that look at nothing");
        rows.extend(batched.rows("batched creates", "raw writes"));
        rows.extend(grpc.rows("single creates over gRPC", "health checks over gRPC"));
        rows.extend(grpc_batched.rows("batched creates over gRPC", "raw writes beside them"));
        for AtRate { rate: asked, batch, per_second, answer_ms } in at_rate {
            let Some(answer) = *answer_ms else { continue };
            rows.extend([
                row(
                    &format!("batches of {batch} over gRPC, {asked}/s asked for"),
                    rate(*per_second),
                ),
                row(
                    &format!(
                        "answers to batches of {batch} at that rate, p50 / p90 / p99 / max ms"
                    ),
                    fine(answer),
                ),
            ]);
        }
        rows.extend([
            row(
                "calls, part of calls without waterclock",
                part(calls.middle_per_second, calls.raw_per_second),
            ),
            row("calls without waterclock", rate(calls.raw_per_second)),
            row("calls of a spike, in the middle", rate(calls.middle_per_second)),
            row("calls of a spike, to the last one", rate(calls.per_second)),
            row(
                &format!("due to the call at {}/s, p50 / p90 / p99 / max ms", steady.rate),
                spread(steady.call_ms),
            ),
            row("floor at that rate, p50 / p90 / p99 / max ms", spread(steady.floor_ms)),
            row("a pause is in force, ms", format!("{:.0}", faults.paused_after_ms)),
            row("calls go on after a pause, ms", format!("{:.0}", faults.went_on_after_ms)),
            row("processor time of a call in a spike, us", format!("{:.0}", calls.cpu_us)),
            row("processor time of a task at the rate, us", format!("{:.0}", steady.cpu_us)),
        ]);
        let [one, all] = many.creates_per_second;
        rows.push(row(
            &format!("batched creates in {} projects, part of those in one", many.projects),
            part(all, one),
        ));
        let [one, all] = many.calls_per_second;
        rows.push(row(
            &format!("calls of a spike in {} projects, part of those in one", many.projects),
            part(all, one),
        ));
        let pair = |[one, all]: [f64; 2]| format!("{one:.0} / {all:.0}");
        rows.extend([
            row(
                "processor time of a batched create, in one / in all, us",
                pair(many.create_cpu_us),
            ),
            row("processor time of a call, in one / in all, us", pair(many.call_cpu_us)),
            row(
                &format!("due to the call at {}/s, alone, p50 / p90 / p99 / max ms", noisy.rate),
                spread(noisy.alone_ms),
            ),
            row(
                &format!("the same beside {} overdue tasks whose calls hang", noisy.overdue),
                spread(noisy.beside_ms),
            ),
            row("calls of those that hung all the time", noisy.hanging.to_string()),
        ]);
        if let Some(Killed { calls, again_ms: [first, last] }) = &faults.killed {
            rows.push(row(
                &format!("{calls} calls of a killed worker again, first / last ms"),
                format!("{first:.0} / {last:.0}"),
            ));
        }
        if let Some((task, timer)) = memory.each() {
            rows.push(row(
                &format!("memory of each of {} tasks / timers, bytes", memory.pending),
                format!("{task:.0} / {timer:.0}"),
            ));
        }
        if let Some(bytes) = calls.memory_peak_bytes {
            rows.push(row("memory at most, MiB", format!("{:.0}", mib(bytes))));
        }
        rows
    }
}

fn row(what: &str, cell: String) -> (String, String) {
    (format!("tasks: {what}"), cell)
}

pub(super) fn rate(rate: f64) -> String {
    format!("{rate:.0}/s")
}

fn part(rate: f64, of: f64) -> String {
    format!("{:.3}", ratio(rate, of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_that_of_one_more() {
        let mut memory = Memory {
            pending: 1_000,
            first_bytes: Some(50_000),
            timers_bytes: Some(350_000),
            tasks_bytes: Some(750_000),
        };
        let (task, timer) = memory.each().unwrap();
        assert!((task - 400.0).abs() < 1e-9 && (timer - 300.0).abs() < 1e-9, "{task} {timer}");
        memory.tasks_bytes = None;
        assert_eq!(memory.each(), None, "the system does not tell");
    }
}
