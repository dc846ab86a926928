//! Whether anybody is there to execute a run: what is told of the members of consumer groups that read the topic of its shards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::{Value, json};

use super::executors::{Crew, Work};
use super::{create, end_of, get, run_for, until};
use crate::support::tasks::{Api, command};
use crate::support::{Fixture, PATIENCE, eventually, eventually_within};
use crate::tasks::{fixture, launch};

/// An answer is kept for 3 s, and nothing is said while any group of this Kafka is in a rebalance: other tests have groups, too.
const KNOWN_WITHIN: Duration = Duration::from_secs(3 * PATIENCE.as_secs());

/// A consumer in a group of the protocol of KIP-848, which leaves when it is dropped.
struct Newcomer {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Newcomer {
    fn start(fixture: &Fixture, topic: &str) -> Self {
        let mut config = fixture.client();
        config.set("group.id", format!("{topic}-newcomers")).set("group.protocol", "consumer");
        let consumer: BaseConsumer = config.create().expect("a consumer");
        consumer.subscribe(&[topic]).expect("subscribed");
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            while !ends.load(SeqCst) {
                if let Some(Err(error)) = consumer.poll(Duration::from_millis(50)) {
                    println!("newcomer: {error}");
                }
            }
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        self.is_over.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            assert!(joined.is_ok() || std::thread::panicking(), "the newcomer has panicked");
        }
    }
}

/// What a schedule is told to have.
#[track_caller]
fn schedule(api: &Api) -> Value {
    let (status, told) = api.answered("GET", "/v1/schedules/schedule.shop.settle", None);
    assert_eq!(status, 200, "{told}");
    told
}

#[test]
fn a_run_says_how_many_are_there_to_execute_its_shards() {
    let fixture = fixture("runs-members");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, topic) = (Api::of(&process), fixture.target("settlement", 4));
    let crew = Crew::new(&fixture, &topic, 3, &[&process]);
    // Nothing is handed out while this test runs.
    let work = Work { rows: 1, ms: 1 };
    let id = create(&api, &run_for(&crew, 2, work, json!({"delay": "1h"})));
    let settle = json!({
        "project": "shop", "group": "nightly", "name": "settle", "every": "30d",
        "task": {"type": "run", "shards": 2, "task": crew.task(work)},
    });
    let (status, told) = api.answered("POST", "/v1/schedules", Some(&settle));
    assert_eq!(status, 201, "{told}");
    let says = |count: u64| {
        let what = format!("says {count} members");
        until(&api, &id, KNOWN_WITHIN, &what, |run| run["members"] == count);
        eventually_within(KNOWN_WITHIN, &format!("the schedule {what}"), || match schedule(&api) {
            told if told["members"] == count => Ok(()),
            told => Err(told.to_string()),
        });
    };
    // A line of what people are shown.
    let shows = |want: &str| {
        eventually_within(KNOWN_WITHIN, want, || {
            let said = command(&process, &["run-status", &id]).said;
            if said.lines().any(|line| line == want) { Ok(()) } else { Err(said) }
        });
    };

    says(0);
    shows(&format!("nobody reads topic {topic}: start an executor"));
    let executor = crew.start("one");
    says(1);
    shows(&format!("1 member of a consumer group reads topic {topic}"));
    let newcomer = Newcomer::start(&fixture, &topic);
    says(2);
    drop(executor);
    says(1);
    drop(newcomer);
    says(0);

    // One that has ended needs nobody, and a list does not say it of any.
    let list = || {
        let (status, told) = api.answered("GET", "/v1/runs?project=shop", None);
        assert_eq!(status, 200, "{told}");
        told["runs"].as_array().cloned().unwrap_or_default()
    };
    let listed = eventually("it is listed", || match list() {
        runs if runs.is_empty() => Err("no run".to_owned()),
        runs => Ok(runs),
    });
    assert!(listed.iter().all(|run| run.get("members").is_none()), "{listed:?}");
    let (status, told) = api.answered("DELETE", &format!("/v1/runs/{id}?wait=20s"), None);
    assert_eq!((status, &told["outcome"]), (200, &json!("cancelled")), "{told}");
    end_of(&api, &id, PATIENCE);
    assert_eq!(get(&api, &id).get("members"), None);
    process.stop_well();
}
