//! Tasks from Rust: one that calls a URL, one whose executor reports, and one that is cancelled.
//!
//! ```sh
//! waterclock topics apply && WATERCLOCK_CALLBACKS__NETWORKS=127.0.0.0/8 waterclock run --allow imports --http 127.0.0.1:8080 &
//! kafka-topics.sh --bootstrap-server localhost:9092 --create --topic imports
//! # and something at port 9000 that answers a POST
//! cargo run -p waterclock-client --example tasks -- imports http://127.0.0.1:9000/
//! ```

#![allow(clippy::print_stdout, reason = "it says what it does")]
#![allow(clippy::disallowed_methods, reason = "a program reads its environment")]

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use waterclock_client::Message;
use waterclock_client::tasks::{
    Error, Feedback, Handed, HttpTask, KafkaTask, Retry, Tasks, TasksConfig, Turn,
};

/// A heartbeat has to come within this time. A [`Turn`] sends them at a third of it.
const HEARTBEAT: Duration = Duration::from_secs(6);

type Failure = Box<dyn std::error::Error>;

fn env(name: &str, otherwise: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| otherwise.to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [topic, url] = arguments.as_slice() else {
        return Err("tasks TOPIC URL".into());
    };
    let tasks = Tasks::new(TasksConfig::new(env("SERVER", "http://localhost:8080")))?;
    // A name for each request of this run: in a service it is made of what the task is about.
    let id = |what: &str| format!("{what}-{}", std::process::id());

    let call = HttpTask::to_url("shop", "orders", url)
        .after(Duration::from_secs(2))
        .header("content-type", "application/json")
        .body("{}")
        .retry(Retry::times(3).interval(Duration::from_secs(1)))
        .request_id(id("expire"));
    let called = tasks.create(&call).await?;
    let again = tasks.create(&call).await?;
    let is_same = called.task_id == again.task_id;
    println!("{}", if is_same { "the same task" } else { "two tasks" });

    let import = KafkaTask::to("shop", "imports", topic)
        .after(Duration::from_secs(1))
        .value("file-7")
        .feedback(Feedback::within(Duration::from_secs(3_600)).heartbeat(HEARTBEAT))
        .retry(Retry::times(3))
        .request_id(id("import"));
    let imported = tasks.create(&import).await?;
    execute(&tasks, topic, 1).await?;

    for id in [&imported.task_id, &called.task_id] {
        loop {
            let task = tasks.get(id).await?.ok_or("the task is not there")?;
            if task.task_status.is_final() {
                println!("{} {}", task.task_status.as_str(), task.attempts_total);
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    let later = call.after(Duration::from_secs(3_600)).request_id(id("later"));
    let later = tasks.create(later).await?;
    println!("{}", tasks.cancel(&later.task_id, Duration::from_secs(5)).await?.as_str());
    Ok(())
}

/// Works on what is handed over, until so many tasks are done.
async fn execute(tasks: &Tasks, topic: &str, mut left: usize) -> Result<(), Failure> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", env("BROKERS", "localhost:9092"))
        .set("group.id", format!("{topic}-executors"))
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        .set("enable.auto.commit", "false")
        .create()?;
    consumer.subscribe(&[topic])?;
    while left > 0 {
        let polled = tokio::task::block_in_place(|| consumer.poll(Duration::from_secs(1)));
        let Some(message) = polled.transpose()? else { continue };
        let begun = match Handed::of(Message::from(&message).headers()) {
            Ok(handed) => tasks.begin(handed).await,
            Err(error) => Err(error),
        };
        let turn = match begun {
            Ok(turn) => Some(turn),
            // Somebody else has written it, or another turn has begun: there is nothing to do.
            Err(Error::NotHanded { .. } | Error::Stale { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        // After the first heartbeat: then a crash before it costs nothing but time.
        consumer.commit_message(&message, CommitMode::Sync)?;
        let Some(turn) = turn else { continue };
        println!("file-7: turn {}", turn.attempt());
        match turn.unless_over(work(tasks, &turn)).await {
            Ok(Ok(())) => {
                println!("{}", turn.finished().await?.as_str());
                left -= 1;
            }
            Ok(Err(error)) => drop(turn.failed(&error.to_string(), None).await?),
            // Another executor has it, or the task was cancelled. The work was dropped where it stood.
            Err(over) => eprintln!("{over}"),
        }
    }
    Ok(())
}

/// Your work stands here. It lasts longer than a heartbeat may be away.
async fn work(tasks: &Tasks, turn: &Turn) -> Result<(), Error> {
    for row in 0..90 {
        turn.progress(&format!("row:{row}"), None)?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    if let Some(task) = tasks.get(turn.task_id()).await? {
        let cursor = task.last.and_then(|last| last.cursor).unwrap_or_default();
        let cursor = cursor.trim_end_matches(|c: char| c.is_ascii_digit());
        println!("{}, {cursor}", task.task_status.as_str());
    }
    Ok(())
}
