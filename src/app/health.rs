//! What the lane threads say of themselves, as health tells it.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::api::{Gate, Report, Status};
use crate::kafka::{LaneThreads, RegistryFeed};
use crate::telemetry::{self, Figures};

use super::Threads;

/// A lane thread that is silent for longer hangs: longer than two attempts to take lanes over.
const SILENCE_MAX: Duration = Duration::from_secs(180);

/// Probes go out every second; after this long without an answer there is no Kafka to work with.
const DEAF_MAX: Duration = Duration::from_secs(10);

/// Health of this process; filled in when its threads have started.
pub(super) struct Health {
    figures: Option<Figures>,
    /// What is asked of the API.
    gate: Arc<Gate>,
    running: OnceLock<(Threads, RegistryFeed)>,
    /// What holds the start up.
    starting: Mutex<String>,
    stopping: AtomicBool,
}

impl Health {
    pub(super) fn new(figures: Option<Figures>, gate: Arc<Gate>) -> Self {
        Self {
            figures,
            gate,
            running: OnceLock::new(),
            starting: Mutex::new("the topics are being checked".to_owned()),
            stopping: AtomicBool::new(false),
        }
    }

    /// Says why it has not started yet.
    pub(super) fn waits(&self, why: &str) {
        why.clone_into(&mut self.starting.lock());
    }

    /// From now on it takes no new work.
    pub(super) fn stops(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Nobody waits for the threads any more.
    pub(super) fn abandon(&self) {
        if let Some(threads) = self.threads() {
            threads.stop();
        }
    }

    /// `registry`: what this process has read of projects, and whether tasks are in force.
    pub(super) fn started(&self, threads: Threads, registry: RegistryFeed) {
        // There is one start in a run.
        let _ = self.running.set((threads, registry));
    }

    fn threads(&self) -> Option<&Threads> {
        self.running.get().map(|(threads, _)| threads)
    }

    fn lane_threads(&self) -> Option<&LaneThreads> {
        self.threads().map(|threads| &*threads.of_lanes.0)
    }
}

impl Status for Health {
    fn live(&self) -> Report {
        // A thread that cannot go on ends the process. One that can recover starts again by itself. Only a thread that
        // hangs is left to find here.
        let statuses = self.lane_threads().map_or(&[][..], |lane_threads| lane_threads.statuses());
        let of_lanes = statuses.iter().enumerate();
        let of_lanes = of_lanes.map(|(n, status)| (format!("thread {n}"), status.silence()));
        let worker = self.threads().and_then(|threads| threads.worker.as_ref());
        let worker = worker.map(|worker| ("the worker".to_owned(), worker.status().silence()));
        let hung: Vec<String> = of_lanes
            .chain(worker)
            .filter(|(_, silence)| *silence > SILENCE_MAX)
            .map(|(who, silence)| {
                format!("{who} has given no sign of life for {} s", silence.as_secs())
            })
            .collect();
        if hung.is_empty() {
            return Report { ok: true, reasons: vec!["every thread turns".to_owned()] };
        }
        Report { ok: false, reasons: hung }
    }

    fn ready(&self) -> Report {
        if self.stopping.load(Ordering::Relaxed) {
            return no(
                "it is stopping: it takes no new work and finishes what it has begun".to_owned()
            );
        }
        let Some((threads, registry)) = self.running.get() else {
            return no(self.starting.lock().clone());
        };
        let lane_threads = &*threads.of_lanes.0;
        match lane_threads.silence() {
            None => return no("the brokers' time is not known yet".to_owned()),
            Some(silence) if silence > DEAF_MAX => {
                return no(format!(
                    "no broker has returned its time for {} s: Kafka is away, or the meta topic is gone",
                    silence.as_secs()
                ));
            }
            Some(_) => {}
        }
        let mut reasons = lane_threads.misconfigured();
        reasons.iter_mut().for_each(|reason| reason.insert_str(0, "nothing new is admitted: "));
        reasons.extend(
            lane_threads
                .weak()
                .into_iter()
                .map(|weak| format!("one lost broker loses records: {weak}")),
        );
        reasons.extend(lane_threads.skewed().into_iter().map(|(broker, ahead_ms)| {
            format!("the clock of broker {broker} is {ahead_ms} ms ahead of this machine's")
        }));
        let views = lane_threads.statuses().iter().map(|status| View {
            trouble: status.taking().or_else(|| status.trouble()),
            joined: status.joined.load(Ordering::Relaxed),
            lanes: status.lanes.load(Ordering::Relaxed),
        });
        let mut report = ready(views);
        if let Some(worker) = self.threads().and_then(|threads| threads.worker.as_ref()) {
            let status = worker.status();
            let waits = || Some("waits for the group's assignment".to_owned());
            let trouble = status.taking().or_else(|| status.trouble());
            let joined = status.joined.load(Ordering::Relaxed);
            if let Some(why) = trouble.or_else(|| if joined { None } else { waits() }) {
                // Others make its calls meanwhile: what has lanes is ready without it.
                report.ok &= !lane_threads.statuses().is_empty();
                report.reasons.push(format!("the worker: {why}"));
            }
        }
        // Before, nobody can be told whether there are tasks here, or which project is paused.
        if !registry.is_known() {
            report.ok = false;
            report.reasons.push("the projects in the meta topic are not read yet".to_owned());
        }
        report.reasons.append(&mut reasons);
        if let Some(offset) = crate::kafka::damaged() {
            report.ok = false;
            report.reasons.push(format!(
                "a batch at offset {offset} is not as it was written (its checksum is wrong): its partition waits until its \
                 leader has a whole one; see docs/operations.md"
            ));
        }
        let mut refused = self.gate.trouble();
        report.ok &= refused.is_empty();
        report.reasons.append(&mut refused);
        report
    }

    fn metrics(&self) -> String {
        telemetry::ready(self.ready().ok);
        telemetry::api_requests(self.gate.taken());
        self.figures.as_ref().map_or_else(
            || "# the metrics of this process are kept by a recorder of its own\n".to_owned(),
            Figures::render,
        )
    }
}

fn no(reason: String) -> Report {
    Report { ok: false, reasons: vec![reason] }
}

/// What is known of one lane thread.
struct View {
    /// Why it is not working now, or what it is taking over.
    trouble: Option<String>,
    /// The member has the share that the group has given it, which may be empty.
    joined: bool,
    lanes: usize,
}

/// Whether every thread owns lanes or is a spare of the group.
fn ready(views: impl Iterator<Item = View>) -> Report {
    let (mut ok, mut reasons) = (true, Vec::new());
    for (n, View { trouble, joined, lanes }) in views.enumerate() {
        let (good, reason) = match (trouble, joined, lanes) {
            (Some(trouble), _, _) => (false, format!("thread {n}: {trouble}")),
            (None, false, _) => (false, format!("thread {n} waits for the group's assignment")),
            (None, true, 0) => (true, format!("thread {n} is a spare: there are not more lanes")),
            (None, true, lanes) => (true, format!("thread {n} owns {lanes} lanes")),
        };
        ok &= good;
        reasons.push(reason);
    }
    Report { ok, reasons }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_when_every_thread_owns_lanes_or_is_a_spare() {
        let view = |trouble: Option<&str>, joined, lanes| View {
            trouble: trouble.map(str::to_owned),
            joined,
            lanes,
        };
        #[rustfmt::skip]
        let cases = [
            ("both start",         [view(None, false, 0), view(None, false, 0)],         false),
            ("one still starts",   [view(None, true, 6),  view(None, false, 0)],         false),
            ("one is a spare",     [view(None, true, 6),  view(None, true, 0)],          true),
            ("both own",           [view(None, true, 3),  view(None, true, 3)],          true),
            ("idle, but known",    [view(None, true, 0),  view(None, true, 0)],          true),
            ("one has trouble",    [view(None, true, 3),  view(Some("no"), true, 3)],    false),
        ];
        for (why, views, want) in cases {
            let report = ready(views.into_iter());
            assert_eq!((report.ok, report.reasons.len()), (want, 2), "{why}: {report:?}");
        }
    }

    #[test]
    fn a_process_whose_lane_threads_have_not_started_is_alive_and_not_ready() {
        let health = Health::new(None, Arc::new(Gate::new(None)));
        assert!(health.live().ok);
        let ready = health.ready();
        assert_eq!((ready.ok, ready.reasons.len()), (false, 1));
        health.waits("Kafka does not answer");
        assert_eq!(health.ready().reasons, ["Kafka does not answer"]);
        health.stops();
        assert!(health.ready().reasons[0].starts_with("it is stopping"));
        assert!(health.live().ok, "a process that drains is not to be killed");
    }
}
