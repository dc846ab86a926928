//! How runs end that are not all well: by their deadline, by a shard that fails, by a cancel; and what is told of it, and done again.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::executors::{Crew, Executor, Line, What, Work};
use super::{check_finished, count, create, end_of, run_for, shards, status, until};
use crate::support::tasks::Api;
use crate::support::{Fixture, Log, PATIENCE, Process, eventually, patient};
use crate::tasks::{fixture, launch};

const SHARDS: u32 = 12;

/// A process, and executors of its topic.
pub(super) struct Site {
    pub(super) process: Process,
    pub(super) api: Api,
    pub(super) crew: Arc<Crew>,
    executors: Vec<Executor>,
}

impl Site {
    pub(super) fn new(fixture: &Fixture) -> Self {
        let process = launch(fixture, "a", "lanes,worker,api").start();
        let (api, topic) = (Api::of(&process), fixture.target("settlement", 4));
        let crew = Crew::new(fixture, &topic, 3, &[&process]);
        let executors = ["one", "two"].map(|name| crew.start(name)).into();
        Self { process, api, crew, executors }
    }

    pub(super) fn create(&self, shards: u32, work: Work, more: Value) -> String {
        create(&self.api, &run_for(&self.crew, shards, work, more))
    }

    /// The process has counted so many runs that ended like that, and none is open.
    #[track_caller]
    fn has_counted(&self, status: &str, want: f64) {
        let of_status = format!("waterclock_runs_ended_total{{status=\"{status}\"}}");
        eventually("the ends of runs are counted", || {
            let found = [&*of_status, "waterclock_runs_open"].map(|name| self.process.metric(name));
            if found == [want, 0.0] { Ok(()) } else { Err(format!("{status}, open: {found:?}")) }
        });
    }

    pub(super) fn stop_well(mut self) {
        self.executors.clear();
        self.process.stop_well();
    }
}

/// How many shards of a run have this status, once each has ended.
#[track_caller]
fn ended(api: &Api, id: &str) -> (Vec<Value>, impl Fn(&str) -> usize + use<>) {
    let all = eventually("all shards have ended", || {
        let all = shards(api, id, "");
        let is_final = |shard: &Value| {
            let status = shard["task_status"].as_str().unwrap_or_default();
            ["finished", "failed", "cancelled", "expired"].contains(&status)
        };
        match all.iter().find(|shard| !is_final(shard)) {
            None => Ok(all),
            Some(open) => Err(open.to_string()),
        }
    });
    let of = all.clone();
    let count = move |status: &str| of.iter().filter(|of| of["task_status"] == status).count();
    (all, count)
}

#[test]
fn a_run_whose_deadline_comes_first_expires_and_its_open_shards_are_cancelled() {
    let fixture = fixture("runs-deadline");
    let site = Site::new(&fixture);
    let api = &site.api;
    // There is more to do than two can do in ten seconds.
    let deadline = patient(Duration::from_secs(10));
    let more = json!({"deadline": deadline.as_secs()});
    let id = site.create(SHARDS, Work { rows: 40, ms: deadline.as_millis() as u64 / 100 }, more);
    // And the first one that is begun never ends.
    let begins = |line: &Line| matches!(line.what, What::Begin(_));
    let hangs = site.crew.until_line("one is begun", begins).shard;
    site.crew.hang(hangs);
    let shown = end_of(api, &id, deadline + PATIENCE);
    assert_eq!(status(&shown), "expired", "{shown}");
    let [until, at] = ["deadline_at", "ended_at"].map(|of| shown[of].as_u64().expect("a time"));
    let trigger = shown["trigger_at"].as_u64().expect("a time");
    let created = until - deadline.as_millis() as u64;
    let late = patient(Duration::from_secs(2)).as_millis() as u64;
    println!(
        "its shards were there {} ms after it was due, it ended {} ms after its deadline",
        created - trigger,
        at - until
    );
    assert!((trigger..trigger + late).contains(&created), "{shown}");
    assert!((until..until + late).contains(&at), "{shown}");
    let (all, counted) = ended(api, &id);
    let (finished, cancelled) = (counted("finished"), counted("cancelled"));
    let hung = &all[hangs as usize];
    assert_eq!(hung["task_status"], "cancelled", "{hung}");
    assert!(finished > 0 && cancelled > 1, "{all:?}");
    assert_eq!(finished + cancelled, SHARDS as usize, "{all:?}");
    // Those that had not ended count as failed, and nothing says that they still wait.
    let [done, failed, again] = ["finished", "failed", "again"].map(|of| count(&shown, of));
    assert_eq!((done + failed, again), (u64::from(SHARDS), 0), "{shown}");
    let grid = shown["grid"].as_str().unwrap_or_default();
    assert!(grid.len() == SHARDS as usize && grid.matches('x').count() as u64 == failed, "{shown}");
    assert!(grid.chars().all(|shard| "#x".contains(shard)), "{shown}");
    // Who works on one hears of it, and nobody begins another one.
    let stop = site.crew.until_line("its executor is told", |line| {
        line.shard == hangs && line.what == What::Stop("stale".to_owned())
    });
    let begun = site.crew.log().into_iter().filter(|line| {
        matches!(line.what, What::Begin(_)) && line.at > stop.at + patient(Duration::from_secs(2))
    });
    assert_eq!(begun.count(), 0);
    site.has_counted("expired", 1.0);
    site.stop_well();
}

#[test]
fn the_first_failure_stops_a_run_that_is_to_stop() {
    let fixture = fixture("runs-stop");
    let site = Site::new(&fixture);
    let api = &site.api;
    let done = fixture.target("done", 1);
    let mut log = Log::open(&fixture, &done);
    site.crew.fail(3);
    let more = json!({"on_shard_failure": "stop", "on_finished": {"topic": done}});
    // The others would take for hours.
    (0..SHARDS).filter(|shard| *shard != 3).for_each(|shard| site.crew.hang(shard));
    let id = site.create(SHARDS, Work { rows: 10, ms: 100 }, more);
    let shown = end_of(api, &id, PATIENCE);
    assert_eq!(status(&shown), "failed", "{shown}");
    let (all, counted) = ended(api, &id);
    assert_eq!((counted("failed"), counted("cancelled")), (1, SHARDS as usize - 1), "{all:?}");
    assert_eq!(all[3]["task_status"], "failed", "{}", all[3]);
    assert_eq!(all[3]["error"], "no such account", "{}", all[3]);
    let told = log.count(1)[0].clone();
    let told: Value = serde_json::from_str(&told.text()).expect("JSON");
    for of in ["created", "finished", "failed"] {
        assert_eq!(told["shards"][of], count(&shown, of), "as it is shown: {told} {shown}");
    }
    assert_eq!(count(&shown, "failed"), u64::from(SHARDS), "{shown}");
    site.has_counted("failed", 1.0);
    site.stop_well();
}

#[test]
fn a_run_goes_on_beside_a_shard_that_failed_and_is_told_of_once_and_finishes_when_it_is_retried() {
    let fixture = fixture("runs-retry");
    let site = Site::new(&fixture);
    let api = &site.api;
    let done = fixture.target("done", 1);
    let mut log = Log::open(&fixture, &done);
    site.crew.fail(3);
    let work = Work { rows: 5, ms: 50 };
    let id = site.create(SHARDS, work, json!({"on_finished": {"topic": done}}));
    // It has not failed yet.
    let retry = format!("/v1/runs/{id}:retry");
    let (code, told) = api.answered("POST", &retry, None);
    assert_eq!(code, 409, "{told}");
    let shown = end_of(api, &id, PATIENCE);
    let counts = ["created", "finished", "failed"].map(|of| count(&shown, of));
    let n = u64::from(SHARDS);
    assert_eq!((status(&shown), counts), ("failed", [n, n - 1, 1]), "{shown}");
    let grid = shown["grid"].as_str().unwrap_or_default();
    assert_eq!((grid.rfind('x'), grid.matches('#').count()), (Some(3), 11), "{shown}");
    let failed = shards(api, &id, "&state=failed");
    assert_eq!(failed.len(), 1, "{failed:?}");
    let failed = (&failed[0]["index"], &failed[0]["error"]);
    assert_eq!(failed, (&json!(3), &json!("no such account")));
    let told = log.count(1)[0].clone();
    let body: Value = serde_json::from_str(&told.text()).expect("JSON");
    let of = body.get("run_id").or_else(|| body.get("task_id"));
    assert_eq!((told.key.as_deref(), of), (Some(id.as_bytes()), Some(&json!(id))), "{body}");
    let of = (&body["task_status"], &body["shards"]["finished"], &body["shards"]["failed"]);
    assert_eq!(of, (&json!("failed"), &json!(n - 1), &json!(1)), "{body}");

    site.crew.mend();
    let version = shown["version"].clone();
    let (code, told) = api.answered("POST", &retry, None);
    assert_eq!((code, &told["run_id"]), (200, &json!(id)), "{told}");
    let shown = until(api, &id, PATIENCE, "ends once more", |run| {
        run["version"] != version && super::is_final(run)
    });
    assert_eq!(status(&shown), "finished", "{shown}");
    check_finished(api, &id, SHARDS);
    // Each was executed in each version: but for one they are finished twice.
    eventually("all reports were answered", || match site.crew.finished() {
        finished if finished == 2 * SHARDS as usize - 1 => Ok(()),
        finished => Err(finished.to_string()),
    });
    log.count(2);
    log.read_on(Duration::from_secs(3));
    assert_eq!(log.seen.len(), 2, "once of each version: {:?}", log.seen);
    let (code, told) = api.answered("POST", &retry, None);
    assert_eq!(code, 409, "what is finished stays so: {told}");
    site.has_counted("failed", 1.0);
    site.has_counted("finished", 1.0);
    site.stop_well();
}

#[test]
fn a_run_that_was_cancelled_before_it_began_has_no_shards() {
    let fixture = fixture("runs-cancelled");
    let site = Site::new(&fixture);
    let api = &site.api;
    let id = site.create(SHARDS, Work { rows: 1, ms: 1 }, json!({"delay": "1h"}));
    let of = |project: &str| {
        let path = format!("/v1/runs?project={project}&status=waiting");
        let (code, told) = api.answered("GET", &path, None);
        assert_eq!(code, 200, "{told}");
        let runs = told["runs"].as_array().unwrap_or_else(|| panic!("{told}"));
        runs.iter().map(|run| run["run_id"].clone()).collect::<Vec<_>>()
    };
    eventually("it is listed", || match of("shop") {
        listed if listed == [json!(id)] => Ok(()),
        listed => Err(format!("{listed:?}")),
    });
    assert!(of("bank").is_empty() && api.list("project=shop").is_empty(), "a run is no task");
    let (code, told) = api.answered("POST", &format!("/v1/tasks/{id}:retry"), None);
    assert_eq!((code, &told["code"]), (409, &json!("not_retryable")), "it has not ended: {told}");
    let (code, told) = api.answered("DELETE", &format!("/v1/runs/{id}?wait=20s"), None);
    assert_eq!((code, &told["outcome"]), (200, &json!("cancelled")), "{told}");
    let shown = end_of(api, &id, PATIENCE);
    assert!(status(&shown) == "cancelled" && shown["grid"].is_null(), "{shown}");
    let (code, told) = api.answered("POST", &format!("/v1/runs/{id}:retry"), None);
    assert_eq!(code, 409, "who cancelled it has the last word: {told}");
    for path in ["/v1/runs/nobody", "/v1/runs/nobody/shards"] {
        assert_eq!(api.answered("GET", path, None).0, 404, "{path}");
    }
    assert_eq!(site.crew.begun(), 0);
    site.has_counted("cancelled", 1.0);
    site.stop_well();
}
