//! Keeps the [`BrokerClock`] fresh: one small acknowledged produce to a partition of `<ns>.meta` on every broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::client::Client;
use rdkafka::error::KafkaError;
use rdkafka::message::{Message as _, Timestamp};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext};

use super::oauth::tokens;
use super::{BrokerClock, Connection};
use crate::engine::UnixMillis;
use crate::telemetry;

/// Between two probes while something falls due soon. An append time is cut to the millisecond, and what a clock may drift
/// (0.5 ms a second) is lateness: of several probes in a second the best one counts.
const EVERY: Duration = Duration::from_millis(250);
/// Between two probes when nothing does.
const IDLE_EVERY: Duration = Duration::from_secs(1);
/// Leaders are looked up again this often.
const LEADERS_EVERY: Duration = Duration::from_secs(15);
/// The key of a probe; readers of `<ns>.meta` pass over it.
pub const PROBE_KEY: &str = "clock";

/// A probe on its way: which broker, and when it was sent.
struct Sent {
    broker: i32,
    at: Instant,
}

struct Context {
    clock: Arc<BrokerClock>,
}

impl ClientContext for Context {
    tokens!();

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "clock probe");
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = Box<Sent>;

    fn delivery(&self, result: &DeliveryResult<'_>, sent: Self::DeliveryOpaque) {
        let acked = Instant::now();
        if let Ok(message) = result
            && let Timestamp::LogAppendTime(appended) = message.timestamp()
            && let Ok(appended) = u64::try_from(appended)
            && self.clock.observe(sent.broker, UnixMillis(appended), sent.at, acked)
        {
            telemetry::clock_stepped_back(sent.broker);
            tracing::warn!(broker = sent.broker, "clock of a broker was stepped back");
        }
    }
}

/// The probing thread; stops when dropped.
#[derive(Debug)]
pub struct Probe {
    stop: Arc<AtomicBool>,
}

impl Probe {
    /// Starts probing.
    ///
    /// # Errors
    /// The client could not be made: the configuration is wrong.
    pub fn start(
        connection: &Connection,
        meta: String,
        clock: Arc<BrokerClock>,
    ) -> Result<Self, KafkaError> {
        let mut config = connection.client("waterclock-clock");
        config
            .set("acks", "1")
            .set("linger.ms", "0")
            .set("message.timeout.ms", "5000")
            .set("message.send.max.retries", "0");
        let context = Context { clock: Arc::clone(&clock) };
        let producer: BaseProducer<Context> = config.create_with_context(context)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        std::thread::Builder::new()
            .name("wc-clock".into())
            .spawn(move || run(&producer, &meta, &clock, &stopped))
            .map_err(|_| KafkaError::Canceled)?;
        Ok(Self { stop })
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The thread is not waited for: with the brokers away it may be asking for metadata still.
    }
}

fn run(producer: &BaseProducer<Context>, meta: &str, clock: &BrokerClock, stop: &AtomicBool) {
    let mut leaders: Vec<(i32, i32)> = Vec::new();
    let mut looked: Option<Instant> = None;
    while !stop.load(Ordering::Relaxed) {
        if leaders.is_empty() || looked.is_none_or(|at| at.elapsed() > LEADERS_EVERY) {
            if let Some(found) = leaders_of(producer.client(), meta) {
                clock.keep(&found.iter().map(|(broker, _)| *broker).collect::<Vec<_>>());
                leaders = found;
            }
            looked = Some(Instant::now());
        }
        for (broker, partition) in &leaders {
            let sent = Box::new(Sent { broker: *broker, at: Instant::now() });
            let record: BaseRecord<'_, str, [u8], Box<Sent>> =
                BaseRecord::with_opaque_to(meta, sent).key(PROBE_KEY).partition(*partition);
            if let Err((error, _)) = producer.send(record) {
                tracing::debug!(%error, broker, "clock probe not sent");
            }
        }
        for (broker, ahead) in clock.offsets(Instant::now()) {
            telemetry::clock_offset(broker, ahead);
        }
        let known = !leaders.is_empty() && clock.now(Instant::now()).is_some();
        // Acknowledgements are taken as they come. One poll and not many: rdkafka spins through the last millisecond of each.
        producer.poll(if known && !clock.is_wanted() { IDLE_EVERY } else { EVERY });
    }
}

/// One partition of the topic for every broker that leads any.
fn leaders_of(client: &Client<Context>, meta: &str) -> Option<Vec<(i32, i32)>> {
    let metadata = client.fetch_metadata(Some(meta), Duration::from_secs(5)).ok()?;
    let topic = metadata.topics().iter().find(|topic| topic.name() == meta)?;
    let mut leaders = std::collections::BTreeMap::new();
    for partition in topic.partitions().iter().filter(|partition| partition.leader() >= 0) {
        leaders.entry(partition.leader()).or_insert_with(|| partition.id());
    }
    Some(leaders.into_iter().collect())
}
