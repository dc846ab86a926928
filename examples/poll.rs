//! Asks for something at equal intervals until it is there: each record is a question, and comes again if the answer is
//! "not yet".
//!
//! ```sh
//! waterclock topics apply && waterclock run &
//! kafka-topics.sh --bootstrap-server localhost:9092 --create --topic polls --partitions 6
//! cargo run --example poll --no-default-features --features client -- localhost:9092
//! ```

#![allow(clippy::disallowed_methods, reason = "a service looks at its own clock")]

use std::time::{Duration, SystemTime};

use rdkafka::ClientConfig as KafkaConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::Message as _;
use tokio::runtime::Runtime;
use waterclock::client::{Client, ClientConfig, Delayed, Message};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Between two questions; the first comes after it, too.
const INTERVAL: Duration = Duration::from_secs(3);
/// A question that was asked this often is not asked again.
const ROUNDS_MAX: u32 = 20;

fn main() -> Result<(), Failure> {
    let brokers = std::env::args().nth(1).unwrap_or_else(|| "localhost:9092".to_owned());
    let runtime = Runtime::new()?;
    let client = runtime.block_on(Client::connect(ClientConfig::new(&*brokers)))?;

    let question = format!("is the export {} there?", std::process::id());
    // With a trace it comes with how often, and after how long.
    let first = Delayed::to("polls").key("exports").value(&*question).after(INTERVAL).trace();
    runtime.block_on(client.send(&first))?;

    let consumer: BaseConsumer = KafkaConfig::new()
        .set("bootstrap.servers", &brokers)
        .set("group.id", "polls-worker")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .create()?;
    consumer.subscribe(&["polls"])?;

    loop {
        let Some(message) = consumer.poll(Duration::from_secs(1)) else { continue };
        let message = message?;
        let asked = Message::from(&message);
        let late = asked.due().and_then(|due| SystemTime::now().duration_since(due).ok());
        eprintln!("round {}, {late:?} after it was due", asked.attempt());

        let is_there = is_there(asked.attempt());
        if !is_there && asked.attempt() < ROUNDS_MAX {
            runtime.block_on(client.again(&asked))?;
        }
        // Only now: if we end before, the question is asked again and nothing is lost.
        consumer.commit_message(&message, CommitMode::Sync)?;
        if is_there && message.payload() == Some(question.as_bytes()) {
            eprintln!("it is there");
            return Ok(());
        }
    }
}

/// Stands for a question to another service: the third time it is there.
fn is_there(round: u32) -> bool {
    round >= 3
}
