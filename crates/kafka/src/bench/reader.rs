//! Reads with `read_committed`, and says when each record arrived.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::writer::DUE;
use super::{Error, SEQUENCE, Watch};
use crate::client::connect::{Quiet, Reader};
use crate::client::{Connection, errors, raw};
use waterclock_engine::UnixMillis;

/// One poll's wait.
const POLL_MAX: Duration = Duration::from_millis(100);
/// Reading goes on for this long after the last that was awaited, to see what comes twice.
const GRACE: Duration = Duration::from_secs(1);

/// One record of the benchmark that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its number.
    pub n: u64,
    /// When it was due.
    pub due: UnixMillis,
    /// When the target's leader appended it, by its clock.
    pub appended: UnixMillis,
    /// When it was here.
    pub at: Instant,
}

/// A consumer of all partitions from their beginning, as waterclock's and as any service's.
pub(super) fn consumer(
    connection: &Connection,
    group: &str,
    topic: &str,
    partitions: u16,
) -> Result<Reader, Error> {
    let consumer: Reader = connection
        .consumer("waterclock-bench")
        .set("group.id", group)
        .set("isolation.level", "read_committed")
        .set("fetch.queue.backoff.ms", "5")
        .set("fetch.wait.max.ms", "100")
        .create_with_context(Quiet)
        .map_err(Error::kafka("make a consumer"))?;
    connection.token(consumer.client());
    // Connected before anything is measured.
    consumer
        .fetch_metadata(Some(topic), Duration::from_secs(20))
        .map_err(Error::kafka("ask for a topic"))?;
    let mut all = TopicPartitionList::with_capacity(usize::from(partitions));
    for partition in 0..partitions {
        all.add_partition_offset(topic, i32::from(partition), Offset::Beginning)
            .map_err(Error::kafka("choose the partitions"))?;
    }
    consumer.assign(&all).map_err(Error::kafka("choose the partitions"))?;
    Ok(consumer)
}

/// Tells every record of the benchmark in `topic` until `each` has enough, and a second more, or `by` is over.
///
/// # Errors
/// Reading failed, or the caller asked for the end. That time ran out is none: the caller counts.
pub fn read(
    connection: &Connection,
    topic: &str,
    partitions: u16,
    by: Instant,
    watch: &dyn Watch,
    mut each: impl FnMut(Arrival) -> ControlFlow<()>,
) -> Result<(), Error> {
    let consumer = consumer(connection, topic, topic, partitions)?;
    let mut until = by;
    let mut enough = false;
    while Instant::now() < until {
        if watch.stopped() {
            return Err(Error::Interrupted);
        }
        match consumer.poll(POLL_MAX) {
            None => {}
            Some(Ok(message)) => {
                let at = Instant::now();
                if let Some(arrival) = arrival(&message, at)
                    && each(arrival).is_break()
                    && !enough
                {
                    enough = true;
                    until = at + GRACE;
                }
            }
            Some(Err(error)) if is_passing(&error) => {}
            Some(Err(error)) => return Err(Error::kafka("read a target")(error)),
        }
    }
    Ok(())
}

/// The client goes on by itself after these.
pub(super) fn is_passing(error: &rdkafka::error::KafkaError) -> bool {
    errors::kind(error).is_passing()
}

fn arrival(message: &BorrowedMessage<'_>, at: Instant) -> Option<Arrival> {
    let record = raw::copy_record(message);
    let number = |wanted: &[u8]| {
        let (_, value) = record.headers().find(|(name, _)| *name == wanted)?;
        Some(u64::from_be_bytes(value?.try_into().ok()?))
    };
    let appended = message.timestamp().to_millis().and_then(|ms| u64::try_from(ms).ok())?;
    Some(Arrival {
        n: number(SEQUENCE)?,
        due: UnixMillis(number(DUE)?),
        appended: UnixMillis(appended),
        at,
    })
}
