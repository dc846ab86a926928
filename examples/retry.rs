//! A consumer that tries a record again later when its work fails: after 1 s, 2 s, 4 s, and then gives it up.
//!
//! The consumer is not held up meanwhile: what is to be tried again waits in Kafka, and comes back to its partition.
//!
//! ```sh
//! waterclock topics apply && waterclock run &
//! for topic in orders orders.failed; do
//!     kafka-topics.sh --bootstrap-server localhost:9092 --create --topic $topic --partitions 6
//! done
//! cargo run --example retry --no-default-features --features client -- localhost:9092 &
//! echo 'fail: no such customer' | kafka-console-producer.sh --bootstrap-server localhost:9092 --topic orders
//! ```

use std::time::Duration;

use rdkafka::ClientConfig as KafkaConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::Message as _;
use tokio::runtime::Runtime;
use waterclock::client::{Client, ClientConfig, Delayed, Message};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How often a record is tried again before it is given up.
const RETRIES: u32 = 3;

fn main() -> Result<(), Failure> {
    let brokers = std::env::args().nth(1).unwrap_or_else(|| "localhost:9092".to_owned());
    let runtime = Runtime::new()?;
    let client = runtime.block_on(Client::connect(ClientConfig::new(&*brokers)))?;
    let consumer: BaseConsumer = KafkaConfig::new()
        .set("bootstrap.servers", &brokers)
        .set("group.id", "orders-worker")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .create()?;
    consumer.subscribe(&["orders"])?;

    loop {
        let Some(message) = consumer.poll(Duration::from_secs(1)) else { continue };
        let message = message?;
        let consumed = Message::from(&message);
        if let Err(why) = work(message.payload().unwrap_or_default()) {
            let next = next_attempt(&consumed, &why);
            runtime.block_on(client.send(&next))?;
        }
        // Only now: if we end before, the record is consumed again and nothing is lost.
        consumer.commit_message(&message, CommitMode::Sync)?;
    }
}

/// A traced record says how often it was delivered; the first time it came from elsewhere, and says nothing.
fn next_attempt(consumed: &Message, why: &str) -> Delayed {
    let tried = consumed.attempt();
    if tried >= RETRIES {
        eprintln!("given up after {RETRIES} retries: {why}");
        return consumed.delayed_to("orders.failed").after(Duration::ZERO).header("why", why);
    }
    let pause = Duration::from_secs(1 << tried);
    eprintln!("again in {pause:?}: {why}");
    consumed.delayed().after(pause).trace()
}

/// The work.
fn work(value: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy(value);
    match text.strip_prefix("fail: ") {
        Some(why) => Err(why.to_owned()),
        None => {
            eprintln!("done: {text}");
            Ok(())
        }
    }
}
