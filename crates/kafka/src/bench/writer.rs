//! Writes the records of a benchmark: 200 bytes of value, 8 of key, three small headers.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::{Rng as _, SeedableRng as _};
use rdkafka::ClientContext;
use rdkafka::producer::{DeliveryResult, Producer as _, ProducerContext};

use super::{Error, Watch};
use crate::client::Connection;
use crate::client::errors::{self, ErrorKind};
use crate::client::oauth::tokens;
use crate::client::raw::TopicProducer;
use waterclock_engine::{Record, UnixMillis, header, murmur2};

/// The header with the number of a record, 8 bytes.
pub const SEQUENCE: &[u8] = b"n";
/// The header with when it is due, 8 bytes of epoch milliseconds.
pub(super) const DUE: &[u8] = b"due";
/// A third one, as records have them.
const SOURCE: &[u8] = b"source";

const VALUE_BYTES: usize = 200;
/// Different values; more would only cost memory.
const VALUES: usize = 64;
/// Longest wait for all acknowledgements.
const SETTLE_MAX: Duration = Duration::from_secs(60);
/// One wait of it, between two looks whether to give up.
const SETTLE_STEP: Duration = Duration::from_millis(100);

/// Makes the records.
pub struct Payload {
    values: Vec<[u8; VALUE_BYTES]>,
}

/// What a record has besides its own bytes, for waterclock to read.
#[derive(Clone, Copy, Debug)]
pub struct Directions<'a> {
    /// Where it is to be delivered.
    pub target: &'a str,
    /// It has an id ([`id`]), which makes it a timer.
    pub tracked: bool,
}

impl<'a> Directions<'a> {
    /// To a target, without an id.
    #[must_use]
    pub fn to(target: &'a str) -> Self {
        Self { target, tracked: false }
    }
}

impl Default for Payload {
    /// Values whose first half is random text: the same in every run.
    fn default() -> Self {
        let mut random = rand::rngs::StdRng::seed_from_u64(7);
        let mut value = || {
            let mut value = [b'x'; VALUE_BYTES];
            value[..VALUE_BYTES / 2].fill_with(|| random.random_range(b' '..=b'~'));
            value
        };
        Self { values: (0..VALUES).map(|_| value()).collect() }
    }
}

impl Payload {
    /// Record number `n`, due then; with directions, it has the headers that waterclock reads.
    #[must_use]
    pub fn record(&self, n: u64, due: UnixMillis, directions: Option<Directions<'_>>) -> Record {
        let (number, time, until) = (n.to_be_bytes(), due.0.to_be_bytes(), due.0.to_string());
        let name = directions.is_some_and(|directions| directions.tracked).then(|| id(n));
        let own: [(&[u8], Option<&[u8]>); 3] =
            [(SEQUENCE, Some(&number)), (DUE, Some(&time)), (SOURCE, Some(b"bench"))];
        let control = directions.into_iter().flat_map(|directions| {
            [
                (header::TARGET.as_bytes(), Some(directions.target.as_bytes())),
                (header::UNTIL.as_bytes(), Some(until.as_bytes())),
            ]
        });
        let named = name.iter().map(|name| (header::ID.as_bytes(), Some(name.as_bytes())));
        let value = &self.values[n as usize % VALUES];
        Record::new(Some(&key(n)), Some(value), own.into_iter().chain(control).chain(named))
    }
}

/// The id of record number `n`.
#[must_use]
pub fn id(n: u64) -> String {
    format!("timer-{n}")
}

/// The key of record number `n`: all different, spread over the partitions.
#[must_use]
pub fn key(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

#[derive(Default)]
struct Refusals {
    count: AtomicU64,
    first: Mutex<Option<String>>,
}

impl Refusals {
    fn note(&self, what: &str) {
        if self.count.fetch_add(1, Ordering::Relaxed) == 0 {
            *self.first.lock() = Some(what.to_owned());
        }
    }

    fn check(&self, topic: &str) -> Result<(), Error> {
        let count = self.count.load(Ordering::Relaxed);
        if count == 0 {
            return Ok(());
        }
        let first = self.first.lock().clone();
        let first = first.unwrap_or_default();
        Err(Error::Unacknowledged { topic: topic.to_owned(), count, first })
    }
}

struct Reports(Arc<Refusals>);

impl ClientContext for Reports {
    tokens!();
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, _: usize) {
        if let Err((error, _)) = result {
            self.0.note(&error.to_string());
        }
    }
}

/// An idempotent producer for one topic.
pub struct Writer {
    producer: TopicProducer<Reports>,
    topic: Arc<str>,
    partitions: u16,
    refusals: Arc<Refusals>,
}

impl Writer {
    /// Makes the producer. `linger_ms` 0 sends each record as soon as it can.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub fn new(
        connection: &Connection,
        topic: &str,
        partitions: u16,
        linger_ms: u16,
    ) -> Result<Self, Error> {
        Self::with(connection, topic, partitions, &[("linger.ms", &linger_ms.to_string())])
    }

    pub(super) fn with(
        connection: &Connection,
        topic: &str,
        partitions: u16,
        settings: &[(&str, &str)],
    ) -> Result<Self, Error> {
        let mut config = connection.client("waterclock-bench");
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("partitioner", "murmur2_random")
            .set("queue.buffering.max.messages", "200000")
            .set("queue.buffering.max.kbytes", "262144")
            .set("batch.size", "1000000")
            .set("batch.num.messages", "10000")
            .set("retry.backoff.ms", "2")
            .set("retry.backoff.max.ms", "50")
            .set("delivery.report.only.error", "true");
        for (name, value) in settings {
            config.set(*name, *value);
        }
        let refusals = Arc::<Refusals>::default();
        let reports = Reports(Arc::clone(&refusals));
        let producer =
            TopicProducer::create(&config, reports).map_err(Error::kafka("make a producer"))?;
        Ok(Self { producer, topic: Arc::from(topic), partitions, refusals })
    }

    pub(super) fn producer(
        &self,
    ) -> &TopicProducer<impl ProducerContext<DeliveryOpaque = usize> + use<>> {
        &self.producer
    }

    /// Writes one record to the partition of its key; waits while the queue is full.
    ///
    /// # Errors
    /// It cannot be produced, or the caller asked for the end.
    pub fn write(&mut self, record: &Record, watch: &dyn Watch) -> Result<(), Error> {
        let partition = record.key().map(|key| i32::from(murmur2::partition(key, self.partitions)));
        self.put(partition, record, watch)
    }

    /// The same to a given partition, or to the one that the client's partitioner chooses.
    pub(super) fn put(
        &mut self,
        partition: Option<i32>,
        record: &Record,
        watch: &dyn Watch,
    ) -> Result<(), Error> {
        loop {
            let headers = record.headers();
            let produced = self.producer.produce(
                &self.topic,
                partition,
                None,
                record,
                |add| headers.for_each(|(name, value)| add(name, value)),
                0,
            );
            match produced {
                Ok(()) => return Ok(()),
                Err(error) if errors::kind(&error) == ErrorKind::QueueFull => {
                    if watch.stopped() {
                        return Err(Error::Interrupted);
                    }
                    self.refusals.check(&self.topic)?;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(Error::kafka("produce a record")(error)),
            }
        }
    }

    /// Writes one record to every partition and waits: the first produce of an idempotent producer takes long.
    ///
    /// # Errors
    /// As [`Writer::settle`].
    pub fn warm_up(&mut self, watch: &dyn Watch) -> Result<(), Error> {
        for partition in 0..self.partitions {
            self.put(Some(i32::from(partition)), &Record::empty(), watch)?;
        }
        self.settle(watch)
    }

    /// Waits until everything written is acknowledged.
    ///
    /// # Errors
    /// Something was refused, or took too long, or the caller asked for the end.
    pub fn settle(&self, watch: &dyn Watch) -> Result<(), Error> {
        let mut waited = Duration::ZERO;
        loop {
            match self.producer.inner().flush(SETTLE_STEP) {
                Ok(()) => return self.refusals.check(&self.topic),
                Err(_) if watch.stopped() => return Err(Error::Interrupted),
                Err(_) if waited < SETTLE_MAX => waited += SETTLE_STEP,
                Err(error) => return Err(Error::kafka("have records acknowledged")(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_two_hundred_bytes_eight_of_key_and_three_headers() {
        let payload = Payload::default();
        let record = payload.record(3, UnixMillis(1_700_000_000_000), None);
        assert_eq!(record.value().map(<[u8]>::len), Some(200));
        assert_eq!(record.key().map(<[u8]>::len), Some(8));
        assert_eq!(record.headers().count(), 3);
    }

    #[test]
    fn with_a_target_the_header_contract_reads_it() {
        let due = UnixMillis(1_700_000_000_000);
        let record =
            Payload::default().record(3, due, Some(Directions { target: "t", tracked: true }));
        let directive = header::read(record.headers()).unwrap();
        assert_eq!(directive.target, Some("t"));
        assert_eq!(directive.id, Some(&b"timer-3"[..]));
        assert_eq!(directive.when, Some(header::When::At(due)));
    }

    #[test]
    fn keys_reach_every_partition() {
        let reached: std::collections::BTreeSet<u16> =
            (0..200).map(|n| murmur2::partition(&key(n), 12)).collect();
        assert_eq!(reached.len(), 12);
    }
}
