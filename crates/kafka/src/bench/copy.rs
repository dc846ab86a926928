//! The raw limit of a broker: consume and produce, no delay, no decision.

use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;
use rdkafka::message::Message as _;
use rdkafka::producer::Producer as _;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::reader::{consumer, is_passing};
use super::{Error, Watch, Writer};
use crate::client::connect::Reader;
use crate::client::{Connection, raw};

/// The time between two commits. Shorter ones cost, longer ones gain little (measured).
const COMMIT_EVERY: Duration = Duration::from_millis(100);
/// Longest wait for one call of a transaction.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// Without a record for this long there are none.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// The progress is told, and the time looked at, every so many records.
const LOOK_EVERY: u64 = 256;

/// What a copy took.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// Records.
    pub records: u64,
    /// From the first record read to the last one acknowledged, or committed.
    pub took: Duration,
}

/// Copies `records` from the beginning of one topic to another of as many partitions.
///
/// With a transactional id in transactions of 100 ms that carry the offsets, too; else acknowledged produces only.
///
/// # Errors
/// The copy is not whole.
pub fn copy(
    connection: &Connection,
    (from, to): (&str, &str),
    partitions: u16,
    records: u64,
    transactional_id: Option<&str>,
    watch: &dyn Watch,
) -> Result<Copied, Error> {
    let mut settings = vec![("linger.ms", "5")];
    settings.extend(transactional_id.map(|id| ("transactional.id", id)));
    let writer = Writer::with(connection, to, partitions, &settings)?;
    let mut run = Run { writer, transactional: transactional_id.is_some(), next: Vec::new() };
    run.open()?;
    run.writer.warm_up(watch)?;
    let consumer = consumer(connection, &format!("{from}-copy"), from, partitions)?;
    run.next = vec![None; usize::from(partitions)];

    let (mut copied, mut began, mut heard, mut committed) =
        (0, None, Instant::now(), Instant::now());
    while copied < records {
        let message = match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => message,
            Some(Err(error)) if !is_passing(&error) => {
                return Err(Error::kafka("read what is copied")(error));
            }
            Some(Err(_)) | None => {
                if watch.stopped() {
                    return Err(Error::Interrupted);
                }
                if heard.elapsed() > SILENCE_MAX {
                    let topic = from.to_owned();
                    return Err(Error::Silent { topic, seen: copied, expected: records });
                }
                continue;
            }
        };
        if began.is_none() {
            let now = Instant::now();
            (began, committed) = (Some(now), now);
        }
        let record = raw::copy_record(&message);
        run.next[message.partition() as usize] = Some(message.offset() + 1);
        run.writer.put(None, &record, watch)?;
        copied += 1;
        if copied % LOOK_EVERY == 0 {
            heard = Instant::now();
            watch.done(copied);
            if watch.stopped() {
                return Err(Error::Interrupted);
            }
            if run.transactional && heard - committed >= COMMIT_EVERY {
                run.commit(&consumer, from)?;
                run.open()?;
                committed = Instant::now();
            }
        }
    }
    if run.transactional {
        run.commit(&consumer, from)?;
    } else {
        run.writer.settle(watch)?;
    }
    let took = began.map_or(Duration::ZERO, |began| began.elapsed());
    watch.done(copied);
    Ok(Copied { records: copied, took })
}

struct Run {
    writer: Writer,
    transactional: bool,
    /// The offset after the last one read, by partition; none where there is nothing new.
    next: Vec<Option<i64>>,
}

impl Run {
    fn open(&mut self) -> Result<(), Error> {
        if !self.transactional {
            return Ok(());
        }
        let producer = self.writer.producer().inner();
        if self.next.is_empty() {
            producer.init_transactions(ANSWER_MAX).map_err(Error::kafka("start a producer"))?;
        }
        producer.begin_transaction().map_err(Error::kafka("begin a transaction"))
    }

    fn commit(&mut self, consumer: &Reader, from: &str) -> Result<(), Error> {
        let mut offsets = TopicPartitionList::with_capacity(self.next.len());
        for (partition, next) in self.next.iter_mut().enumerate() {
            if let Some(next) = next.take() {
                offsets
                    .add_partition_offset(from, partition as i32, Offset::Offset(next))
                    .map_err(Error::kafka("note the offsets"))?;
            }
        }
        let metadata = consumer.group_metadata();
        let producer = self.writer.producer();
        if let Some(metadata) = metadata {
            producer
                .inner()
                .send_offsets_to_transaction(&offsets, &metadata, ANSWER_MAX)
                .map_err(Error::kafka("send the offsets"))?;
        }
        producer.commit(ANSWER_MAX).map_err(|(_, text)| Error::Commit(text))
    }
}
