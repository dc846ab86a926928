//! Tasks from Rust: one that calls a URL, one whose executor reports, and one that is cancelled. And such an executor: it goes on where
//! an earlier turn came to.
//!
//! ```sh
//! waterclock topics apply && WATERCLOCK_CALLBACKS__NETWORKS=127.0.0.0/8 waterclock run --allow imports --http 127.0.0.1:8080 &
//! kafka-topics.sh --bootstrap-server localhost:9092 --create --topic imports
//! # and something at port 9000 that answers a POST
//! cargo run -p waterclock-client --example tasks -- imports http://127.0.0.1:9000/
//! cargo run -p waterclock-client --example tasks -- imports          # works on the tasks for this topic, until it is stopped
//! ```

#![allow(clippy::print_stdout, reason = "it says what it does")]
#![allow(clippy::disallowed_methods, reason = "a program reads its environment")]

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientConfig, Message as _};
use waterclock_client::Message;
use waterclock_client::tasks::{
    Error, Feedback, Handed, HttpTask, KafkaTask, Reported, Retry, Tasks, TasksConfig, Turn,
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
    let tasks = Tasks::new(TasksConfig::new(env("SERVER", "http://localhost:8080")))?;
    let (topic, url) = match arguments.as_slice() {
        [topic] => return execute(&tasks, topic, usize::MAX).await,
        [topic, url] => (topic, url),
        _ => return Err("tasks TOPIC [URL]".into()),
    };
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

    // 90 rows last longer than a heartbeat may be away.
    let import = KafkaTask::to("shop", "imports", topic)
        .after(Duration::from_secs(1))
        .value("90")
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

/// Works on what is handed over, until so many tasks are finished.
async fn execute(tasks: &Tasks, topic: &str, mut left: usize) -> Result<(), Failure> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", env("BROKERS", "localhost:9092"))
        .set("group.id", format!("{topic}-executors"))
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        .set("enable.auto.commit", "false")
        // So long after an executor has died another one reads its partitions.
        .set("session.timeout.ms", "10000")
        .create()?;
    consumer.subscribe(&[topic])?;
    while left > 0 {
        let polled = tokio::task::block_in_place(|| consumer.poll(Duration::from_secs(1)));
        let message = match polled {
            Some(Ok(message)) => message,
            // The work lasted longer than max.poll.interval.ms, and others got its partitions. It gets some again.
            Some(Err(KafkaError::MessageConsumption(RDKafkaErrorCode::PollExceeded))) | None => {
                continue;
            }
            Some(Err(error)) => return Err(error.into()),
        };
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
        let value = String::from_utf8_lossy(message.payload().unwrap_or_default());
        println!("{value} rows: turn {}", turn.attempt());
        let told = match turn.unless_over(work(&turn, &value)).await {
            Ok(Ok(())) => turn.finished().await,
            Ok(Err(error)) => turn.failed(&error.to_string(), None).await,
            // Another executor has it, or the task was cancelled. The work was dropped where it stood.
            Err(over) => {
                eprintln!("{over}");
                continue;
            }
        };
        match told {
            Ok(told) => {
                println!("{}", told.as_str());
                left -= usize::from(told == Reported::Finished);
            }
            Err(error @ Error::Stale { .. }) => eprintln!("{error}"),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// This is what you replace: it imports so many rows. The cursor says how many are done, and an earlier turn may have done some. What
/// this turn does behind its last heartbeat is done again if it is lost, so it must do no harm to do a row twice.
async fn work(turn: &Turn, value: &str) -> Result<(), Failure> {
    let rows: u32 = value.parse()?;
    let done = turn.cursor().and_then(|cursor| cursor.strip_prefix("row:")?.parse().ok());
    let done = done.unwrap_or(0);
    println!("from row {done}");
    for row in done..rows {
        tokio::time::sleep(Duration::from_millis(100)).await;
        turn.progress(&format!("row:{}", row + 1), None)?;
    }
    Ok(())
}
