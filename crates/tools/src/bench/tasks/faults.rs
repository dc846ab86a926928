//! A pause, and a worker that is killed: what becomes of calls then. The lanes and the API are one process, each worker another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::figures::{Faults, Killed};
use super::lines::{Make, Until, closed, paced};
use super::{EVERY, Failed, LINES, PROJECT, RATE, Stage, WAIT_MAX, create, task};
use crate::line::Question;
use crate::service::Service;
use crate::stub::{CALL, HOLD};
use waterclock_engine::Millis;

/// How long both workers have to be given their partitions.
const JOIN: Duration = Duration::from_secs(10);
/// The calls go on for so long before the pause, and are paused for so long.
const BEFORE: Duration = Duration::from_secs(4);
const PAUSED: Duration = Duration::from_secs(6);
/// Calls are created for longer than that, so that some fall due in the pause.
const SECONDS: u64 = 12;
/// Calls that are held open when a worker is killed.
const HELD: u64 = 60;
/// How long such a call may take.
const HELD_MAX: &str = "100s";
/// Longest until the system has closed the connections of a killed process: less than any session.
const CLOSED_WITHIN: Duration = Duration::from_millis(1_500);

impl Stage<'_, '_> {
    pub(super) fn faults(&self, most: u64) -> Result<Faults, Failed> {
        let mut lanes = self.start("lanes", Some("lanes,api"), most)?;
        let first = self.start("first", Some("worker"), most)?;
        let second = self.start("second", Some("worker"), most)?;
        self.warm_up(&mut lanes)?;
        self.sleep(JOIN)?;
        let faults = self.pause(&lanes)?;
        let killed = self.killed(&lanes, first)?;
        drop(second);
        Ok(Faults { killed, ..faults })
    }

    /// Pauses the project while its tasks are called, and ends the pause.
    fn pause(&self, lanes: &Service) -> Result<Faults, Failed> {
        let count = RATE * SECONDS;
        self.cases.observer.phase("calls, a pause, and its end", count);
        let due = self.cases.now() + Millis(1_000);
        let make: Make = Arc::new(move |n| create(&task(CALL, n, due + Millis(n * 1_000 / RATE))));
        let load = self.runtime.spawn(paced(lanes.http, LINES, (count, EVERY), make));
        self.sleep(BEFORE)?;
        let asked = Instant::now();
        self.act(lanes, "pause")?;
        let answered = asked.elapsed();
        self.sleep(PAUSED)?;
        let last = self.stub.calls().iter().map(|call| call.at).max().unwrap_or(asked);
        let resumed = Instant::now();
        self.act(lanes, "resume")?;
        let created = self.runtime.block_on(load).map_err(|_| Failed::Died)?;
        created.map_err(|source| Failed::Ask { what: "create tasks", source })?;
        self.wait(WAIT_MAX, || self.stub.count() >= count)?;
        let calls = self.all_calls()?;
        let tally = self.tally(&calls, count);
        let ms = |span: Duration| span.as_secs_f64() * 1_000.0;
        let later = calls.iter().map(|call| call.at).filter(|at| *at > resumed);
        let went_on = later.min().unwrap_or(resumed).saturating_duration_since(resumed);
        Ok(Faults {
            pause_answered_ms: ms(answered),
            paused_after_ms: ms(last.saturating_duration_since(asked)),
            went_on_after_ms: ms(went_on),
            check: tally.check,
            killed: None,
        })
    }

    fn act(&self, lanes: &Service, what: &str) -> Result<(), Failed> {
        let question = Question::post(&format!("/v1/projects/{PROJECT}:{what}"), String::new());
        let make: Make = Arc::new(move |_| question.clone());
        let asked = closed(lanes.http, 1, (0, Until::Count(1)), make);
        self.run("pause or resume the project", asked).map(drop)
    }

    /// Kills a worker that has calls open: how many it had, and when they were made again.
    fn killed(&self, lanes: &Service, worker: Service) -> Result<Option<Killed>, Failed> {
        self.cases.observer.phase("killing a worker", HELD);
        let now = self.cases.now();
        let make: Make = Arc::new(move |n| {
            let mut task = task(HOLD, n, now);
            task["timeout"] = HELD_MAX.into();
            create(&task)
        });
        self.run("create tasks", closed(lanes.http, 4, (0, Until::Count(HELD)), make))?;
        if !self.wait(WAIT_MAX, || self.stub.count() >= HELD)? {
            return Ok(None);
        }
        let killed = Instant::now();
        worker.kill();
        self.sleep(CLOSED_WITHIN)?;
        // The other worker closes some, too, but not before the group has lost this one.
        let of_it: BTreeSet<u64> = self.stub.broken().into_iter().map(|(n, _)| n).collect();
        let again = || {
            let later = self.stub.calls().into_iter().filter(|call| call.at > killed);
            let mut again = BTreeMap::new();
            for call in later.filter(|call| of_it.contains(&call.n)) {
                again.entry(call.n).or_insert(call.at);
            }
            again
        };
        if of_it.is_empty() || !self.wait(WAIT_MAX, || again().len() == of_it.len())? {
            return Ok(None);
        }
        let again: BTreeSet<Instant> = again().into_values().collect();
        let ms = |at: Option<&Instant>| {
            at.map_or(0.0, |at| at.saturating_duration_since(killed).as_secs_f64() * 1_000.0)
        };
        self.stub.take();
        Ok(Some(Killed { calls: of_it.len(), again_ms: [ms(again.first()), ms(again.last())] }))
    }
}
