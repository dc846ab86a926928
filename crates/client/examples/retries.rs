//! A consumer that works on a failed record again after 5 s, after 1 min more and after 10 min more, and then puts it into a
//! dead letter topic. It never waits for a record that failed: the next one is worked on at once.
//!
//! ```sh
//! waterclock topics apply && waterclock run --allow 'orders(\.dead)?' &
//! kafka-topics.sh --bootstrap-server localhost:9092 --create --topic orders --partitions 6
//! kafka-topics.sh --bootstrap-server localhost:9092 --create --topic orders.dead --partitions 1
//! cargo run -p waterclock-client --example retries -- orders orders.dead 5s 1m 10m
//! ```

#![allow(clippy::disallowed_methods, reason = "a service looks at its own environment")]
#![allow(clippy::print_stdout, reason = "a program for people, and for the test that runs it")]

use std::time::Duration;

use rdkafka::ClientConfig as KafkaConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use waterclock_client::{Client, ClientConfig, Message};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Which attempt a record is for, in a header of our own. A producer of orders need not set it.
const ATTEMPT: &str = "attempt";
/// Why a record is in the dead letter topic.
const REASON: &str = "reason";

const USAGE: &str = "\
retries TOPIC DEAD STEP...
  consumes TOPIC; what fails is tried again after each STEP in turn (5s 1m 10m), and then written to DEAD

BROKERS and NAMESPACE in the environment say where: localhost:9092, waterclock.";

fn env(name: &str, otherwise: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| otherwise.to_owned())
}

/// `10m`: a number with one unit.
fn length(text: &str) -> Result<Duration, Failure> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let seconds = match &text[digits..] {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => return Err(format!("{text} is not like 10m").into()),
    };
    let length = text[..digits].parse::<u64>()?.checked_mul(seconds);
    Ok(Duration::from_secs(length.ok_or_else(|| format!("{text} is too long"))?))
}

/// 1 where no header says it, or where it says something else than a number.
fn attempt(message: &Message) -> usize {
    let found = message.headers().filter(|(name, _)| *name == ATTEMPT.as_bytes()).last();
    let text = found.and_then(|(_, value)| std::str::from_utf8(value?).ok());
    text.and_then(|text| text.parse().ok()).filter(|attempt| *attempt > 0).unwrap_or(1)
}

/// Stands for your work: the order `fails 2, ...` fails twice.
fn work(order: &str, attempt: usize) -> Result<(), String> {
    let digits = order.strip_prefix("fails ").unwrap_or_default();
    let digits = digits.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    let fails = digits.parse().unwrap_or(0);
    if attempt > fails { Ok(()) } else { Err(format!("failure {attempt}")) }
}

async fn consume(
    client: &Client,
    topic: &str,
    dead: &str,
    steps: &[Duration],
) -> Result<(), Failure> {
    let consumer: BaseConsumer = KafkaConfig::new()
        .set("bootstrap.servers", env("BROKERS", "localhost:9092"))
        .set("group.id", format!("{topic}-worker"))
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        // If this process is killed, another one has its partitions so much later.
        .set("session.timeout.ms", "6000")
        .create()?;
    consumer.subscribe(&[topic])?;
    loop {
        let polled = tokio::task::block_in_place(|| consumer.poll(Duration::from_secs(1)));
        let message = match polled {
            None => continue,
            Some(Ok(message)) => message,
            Some(Err(fatal @ KafkaError::MessageConsumptionFatal(_))) => return Err(fatal.into()),
            // A broker is away, say: librdkafka goes on by itself.
            Some(Err(error)) => {
                eprintln!("{error}");
                continue;
            }
        };
        let order = String::from_utf8_lossy(message.payload().unwrap_or_default());
        let consumed = Message::from(&message);
        let attempt = attempt(&consumed);
        match (work(&order, attempt), steps.get(attempt - 1)) {
            (Ok(()), _) => println!("{order}: done at attempt {attempt}"),
            // The same record, for the partition that it came from. Its producer need not know of this.
            (Err(why), Some(step)) => {
                let next = consumed.delayed().after(*step);
                let next = next.replace_header(ATTEMPT, (attempt + 1).to_string());
                client.send(&next).await?;
                println!("{order}: {why}, again in {} s", step.as_secs());
            }
            (Err(why), None) => {
                let letter = consumed.delayed_to(dead).after(Duration::ZERO);
                client.send(&letter.replace_header(REASON, why.as_str())).await?;
                println!("{order}: {why}, given up");
            }
        }
        // Only now: if we are killed before, the record is consumed once more, and nothing is lost. If it is another
        // consumer's by now, that one consumes it once more, too.
        if let Err(error) = consumer.commit_message(&message, CommitMode::Sync) {
            eprintln!("{order}: not committed: {error}");
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [topic, dead, steps @ ..] = &arguments[..] else {
        eprintln!("{USAGE}");
        std::process::exit(1)
    };
    let steps: Vec<Duration> = steps.iter().map(|step| length(step)).collect::<Result<_, _>>()?;
    let client = Client::connect(ClientConfig {
        namespace: env("NAMESPACE", "waterclock"),
        ..ClientConfig::new(env("BROKERS", "localhost:9092"))
    });
    consume(&client.await?, topic, dead, &steps).await
}
