//! Runs, through the binary on a real Kafka, judged from outside: what executors did and when, what was delivered and called, and what
//! the API tells meanwhile.

mod calls;
mod commands;
mod creation;
mod ends;
mod executors;
mod fleet;
mod members;
mod scheduled;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::support::tasks::{Api, with};
use crate::support::{Endpoint, Process, eventually, eventually_within};
use crate::tasks::put_service;

use executors::{Crew, Work};

/// Shards of a page.
const PAGE: usize = 100;

/// A run of the project shop whose shards do this.
fn run_of(shards: u32, task: Value, more: Value) -> Value {
    let run = json!({
        "project": "shop", "group": "nightly", "shards": shards, "delay": "1s", "task": task,
    });
    with(run, more)
}

/// One whose shards the crew executes.
fn run_for(crew: &Crew, shards: u32, work: Work, more: Value) -> Value {
    run_of(shards, crew.task(work), more)
}

/// The service `books` of the project shop, with these limits; and who asks.
#[track_caller]
fn books(process: &Process, limits: Value) -> (Api, Endpoint) {
    let (api, stub) = (Api::of(process), Endpoint::start());
    put_service(&api, "shop", "books", &with(json!({"address": stub.url("")}), limits));
    (api, stub)
}

/// A shard that calls it.
fn call(path: &str, more: Value) -> Value {
    with(json!({"type": "http", "service": "books", "path": path}), more)
}

#[track_caller]
fn create(api: &Api, run: &Value) -> String {
    let (status, told) = api.answered("POST", "/v1/runs", Some(run));
    assert_eq!(status, 201, "{run}: {told}");
    assert!(told["trigger_at"].is_u64(), "{told}");
    told["run_id"].as_str().expect("an id").to_owned()
}

#[track_caller]
fn get(api: &Api, id: &str) -> Value {
    let (status, told) = api.answered("GET", &format!("/v1/runs/{id}"), None);
    assert_eq!(status, 200, "{told}");
    told
}

fn status(run: &Value) -> &str {
    run["run_status"].as_str().unwrap_or_else(|| panic!("no status: {run}"))
}

/// One of the counts of its shards.
fn count(run: &Value, of: &str) -> u64 {
    run["counts"][of].as_u64().unwrap_or_else(|| panic!("no count {of}: {run}"))
}

fn is_final(run: &Value) -> bool {
    ["finished", "failed", "expired", "cancelled"].contains(&status(run))
}

/// Asks for a run until this is so, and gives what it was told last.
#[track_caller]
fn until(api: &Api, id: &str, within: Duration, what: &str, so: impl Fn(&Value) -> bool) -> Value {
    eventually_within(within, &format!("run {id} {what}"), || {
        let run = get(api, id);
        if so(&run) { Ok(run) } else { Err(run.to_string()) }
    })
}

/// Waits until the run has ended, and says how.
#[track_caller]
fn end_of(api: &Api, id: &str, within: Duration) -> Value {
    until(api, id, within, "ends", is_final)
}

/// All shards of a run that stand there, of all pages, in their order.
#[track_caller]
fn shards(api: &Api, id: &str, filter: &str) -> Vec<Value> {
    let (mut all, mut page) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/runs/{id}/shards?limit={PAGE}{filter}{page}");
        let (status, told) = api.answered("GET", &path, None);
        assert_eq!(status, 200, "{told}");
        let shards = told["shards"].as_array().unwrap_or_else(|| panic!("no shards: {told}"));
        assert!(shards.len() <= PAGE, "{}", shards.len());
        all.extend(shards.iter().cloned());
        match told["next"].as_str() {
            Some(next) => page = format!("&page={next}"),
            None => return all,
        }
    }
}

/// All shards of a run are finished: its counts, its grid, and each of them says so.
#[track_caller]
fn check_finished(api: &Api, id: &str, shards_want: u32) -> Vec<Value> {
    let run = get(api, id);
    let n = u64::from(shards_want);
    assert_eq!((status(&run), &run["shards"]), ("finished", &json!(n)), "{run}");
    let counts = ["created", "begun", "finished", "again", "failed"].map(|of| count(&run, of));
    assert_eq!(counts, [n, n, n, 0, 0], "{run}");
    assert_eq!(run["grid"], "#".repeat(shards_want as usize), "{run}");
    assert!(run["ended_at"].is_u64() && run["deadline_at"].is_u64(), "{run}");
    let all = eventually("each shard is shown as finished", || {
        let all = shards(api, id, "");
        let open = all.iter().find(|shard| shard["task_status"] != "finished");
        match open {
            None => Ok(all),
            Some(open) => Err(open.to_string()),
        }
    });
    let indices: Vec<u64> = all.iter().filter_map(|shard| shard["index"].as_u64()).collect();
    assert_eq!(indices, (0..n).collect::<Vec<_>>(), "each once, in their order");
    assert!(all.iter().all(|shard| shard["shard_state"] == "finished"), "{all:?}");
    all
}

/// Asks for a run again and again, and keeps each status that it did not have before.
struct Watch {
    seen: Arc<Mutex<Vec<String>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    fn start(process: &Process, id: &str) -> Self {
        let (api, path) = (Api::of(process), format!("/v1/runs/{id}"));
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let is_over = Arc::new(AtomicBool::new(false));
        let (to, ends) = (Arc::clone(&seen), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            while !ends.load(SeqCst) {
                // Where a lane has no owner for a moment it is a 503.
                if let (200, run) = api.ask("GET", &path, None) {
                    let status = status(&run).to_owned();
                    let mut seen = to.lock();
                    if seen.last() != Some(&status) {
                        seen.push(status);
                    }
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Self { seen, is_over, thread: Some(thread) }
    }

    /// Each status, in the order in which they were seen.
    #[track_caller]
    fn seen(mut self) -> Vec<String> {
        self.is_over.store(true, SeqCst);
        let thread = self.thread.take().expect("it is asked once");
        thread.join().expect("the API answered all the while");
        self.seen.lock().clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, SeqCst);
    }
}
