//! What is remembered of cancelled timers, read from `<ns>.timers` when lanes are taken over.
//!
//! # Invariants
//! 1. What [`Timers::load`] gives covers everything that was committed before it was called: it reads past the ends
//!    that the partitions had then, markers included (commit may return up to 49 ms before they are written).
//! 2. A record that this version cannot read is passed over and counted; it never stops a lane.
//! 3. It takes a bounded time, and says how far it is.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use super::Connection;
use super::connect::Isolation;
use crate::engine::timers::{Change, TimerKey, Void};
use crate::engine::{Lane, Offset};

/// How readers of the changelog are named in the brokers' logs.
pub(super) const CLIENT: &str = "waterclock-timers";
/// How long reading may take in all: with all else of taking over it stays below `max.poll.interval.ms`.
const LOAD_MAX: Duration = Duration::from_secs(80);
/// One question to the brokers.
const ASK_MAX: Duration = Duration::from_secs(10);
/// How long a broker holds a fetch of a reader that waits for the end.
const WAIT: Duration = Duration::from_millis(10);
/// Records between two looks at how far reading is.
const LOOK_EVERY: u64 = 500;
/// How often it is said how far reading is.
const SAY_EVERY: Duration = Duration::from_secs(2);

/// Where a lane thread gets what is remembered of its lanes.
///
/// Called from the rebalance callback of any lane thread, several at once for different lanes.
pub trait Timers: fmt::Debug + Send + Sync {
    /// All that holds of these lanes' timers now. The caller has fetched stable committed offsets before.
    ///
    /// # Errors
    /// It is not known what was cancelled: nothing may be delivered. Try again.
    fn load(&self, lanes: &[Lane]) -> Result<Vec<(Lane, Vec<Void>)>, Error>;

    /// These lanes are another's from now on, or are to be loaded again.
    fn released(&self, lanes: &[Lane]);
}

/// Why it is not known what was cancelled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Kafka did not answer, or said no.
    #[error("could not read {topic}")]
    Kafka {
        /// The changelog.
        topic: String,
        /// What Kafka said.
        #[source]
        source: KafkaError,
    },
    /// The brokers are slow, or a transaction is open.
    #[error(
        "could not read {topic} to its end within {LOAD_MAX:?}: {left} of {partitions} partitions left"
    )]
    Slow {
        /// The changelog.
        topic: String,
        /// How many partitions are not read.
        left: usize,
        /// Of how many.
        partitions: usize,
    },
}

/// What is known of a lane before its changelog is read, and from where on reading goes on.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The first offset that is not known.
    pub(super) next: Offset,
    /// What holds up to there.
    pub(super) timers: HashMap<TimerKey, Void>,
}

/// What reading gave.
pub(super) struct Read {
    /// All that holds, by lane.
    pub(super) held: Vec<(Lane, Vec<Void>)>,
    /// Lanes of which more was known than stands in the changelog: it was made anew, and they were read from its start.
    pub(super) outside: Vec<Lane>,
}

/// Reads the whole changelog of a lane, from its start, whenever the lane is taken over.
#[derive(Clone, Debug)]
pub struct Changelog {
    connection: Connection,
    topic: String,
}

impl Changelog {
    /// The changelog of this name.
    #[must_use]
    pub fn new(connection: &Connection, topic: &str) -> Self {
        Self { connection: connection.clone(), topic: topic.to_owned() }
    }

    fn failed(&self, source: KafkaError) -> Error {
        Error::Kafka { topic: self.topic.clone(), source }
    }

    fn read(&self, lanes: &[Lane], mut known: HashMap<Lane, Known>) -> Result<Read, KafkaOr> {
        let began = Instant::now();
        let mut open = self.ends(lanes)?;
        let mut outside = Vec::new();
        let mut from = HashMap::with_capacity(lanes.len());
        let mut held: HashMap<Lane, HashMap<TimerKey, Void>> = HashMap::new();
        for lane in lanes {
            let mut known = known.remove(lane).unwrap_or_default();
            let end = open.iter().find(|(of, _)| of == lane).map_or(0, |(_, end)| *end);
            if known.next > Offset(end) {
                outside.push(*lane);
                known = Known::default();
            }
            from.insert(*lane, known.next);
            held.insert(*lane, known.timers);
        }
        let indexed: usize = held.values().map(HashMap::len).sum();
        open.retain(|(lane, end)| from[lane] < Offset(*end));
        let reader = self.connection.reader(CLIENT, Isolation::Committed, WAIT)?;
        let mut list = TopicPartitionList::with_capacity(open.len());
        for (lane, _) in &open {
            let at = match from[lane] {
                Offset(0) => At::Beginning,
                Offset(next) => At::Offset(next),
            };
            list.add_partition_offset(&self.topic, i32::from(lane.0), at)?;
        }
        reader.assign(&list)?;
        let (mut records, mut unknown, mut said) = (0_u64, 0_u64, began);
        while !open.is_empty() {
            let polled = match reader.poll(Duration::from_millis(20)) {
                Some(Ok(message)) => {
                    records += 1;
                    let lane = u16::try_from(message.partition()).map(Lane).ok();
                    let of_lane = lane.and_then(|lane| held.get_mut(&lane));
                    match (of_lane, Change::decode(message.key(), message.payload())) {
                        (Some(of_lane), Ok(Change::Void(void))) => {
                            of_lane.insert(void.name, void);
                        }
                        (Some(of_lane), Ok(Change::ForgottenVoid(timer))) => {
                            of_lane.remove(&timer);
                        }
                        (Some(_), Ok(Change::Timer(_) | Change::ForgottenTimer(_))) => {}
                        (None, _) | (_, Err(_)) => unknown += 1,
                    }
                    true
                }
                Some(Err(error)) => match error.rdkafka_error_code() {
                    Some(
                        RDKafkaErrorCode::Fatal
                        | RDKafkaErrorCode::TopicAuthorizationFailed
                        | RDKafkaErrorCode::UnknownTopicOrPartition,
                    ) => return Err(error.into()),
                    _ => {
                        tracing::debug!(%error, "reading what was cancelled");
                        false
                    }
                },
                None => false,
            };
            if polled && !records.is_multiple_of(LOOK_EVERY) {
                continue;
            }
            // The position also passes markers, which leave no message.
            let positions = reader.position()?;
            open.retain(|(lane, end)| {
                let at = positions.find_partition(&self.topic, i32::from(lane.0));
                !matches!(at.map(|at| at.offset()), Some(At::Offset(next)) if next >= *end)
            });
            if began.elapsed() > LOAD_MAX {
                return Err(KafkaOr::Slow(open.len()));
            }
            if said.elapsed() > SAY_EVERY {
                said = Instant::now();
                tracing::info!(
                    topic = self.topic,
                    records,
                    partitions_left = open.len(),
                    "reading what was cancelled"
                );
            }
        }
        if unknown > 0 {
            tracing::error!(
                topic = self.topic,
                records = unknown,
                "records of a newer version, or of somebody else's, were passed over"
            );
        }
        tracing::info!(
            topic = self.topic,
            lanes = lanes.len(),
            indexed,
            records,
            took = ?began.elapsed(),
            "read what was cancelled"
        );
        let held = held.into_iter().map(|(lane, of)| (lane, of.into_values().collect())).collect();
        Ok(Read { held, outside })
    }

    /// All that holds of these lanes' timers, by what is known of them and what stands in the changelog since.
    ///
    /// # Errors
    /// As those of [`Timers::load`].
    pub(super) fn read_on(
        &self,
        lanes: &[Lane],
        known: HashMap<Lane, Known>,
    ) -> Result<Read, Error> {
        self.read(lanes, known).map_err(|error| match error {
            KafkaOr::Kafka(source) => self.failed(source),
            KafkaOr::Slow(left) => {
                Error::Slow { topic: self.topic.clone(), left, partitions: lanes.len() }
            }
        })
    }

    /// The ends of the lanes' partitions; without those to which nothing was ever written.
    fn ends(&self, lanes: &[Lane]) -> Result<Vec<(Lane, i64)>, KafkaError> {
        let mut list = TopicPartitionList::with_capacity(lanes.len());
        for lane in lanes {
            list.add_partition(&self.topic, i32::from(lane.0));
        }
        let ends = ends(&self.connection, &list)?.into_iter().filter_map(|(_, partition, end)| {
            let lane = u16::try_from(partition).ok()?;
            (end > 0).then_some((Lane(lane), end))
        });
        Ok(ends.collect())
    }
}

impl Timers for Changelog {
    fn load(&self, lanes: &[Lane]) -> Result<Vec<(Lane, Vec<Void>)>, Error> {
        Ok(self.read_on(lanes, HashMap::new())?.held)
    }

    fn released(&self, _: &[Lane]) {}
}

enum KafkaOr {
    Kafka(KafkaError),
    Slow(usize),
}

impl From<KafkaError> for KafkaOr {
    fn from(error: KafkaError) -> Self {
        Self::Kafka(error)
    }
}

/// Where the logs of these partitions end, be it that what stands last is of a transaction that is open: what users were
/// told is written stands before that.
///
/// # Errors
/// Not all leaders answered; ask again.
pub(super) fn ends(
    connection: &Connection,
    partitions: &TopicPartitionList,
) -> Result<Vec<(String, i32, i64)>, KafkaError> {
    if partitions.count() == 0 {
        return Ok(Vec::new());
    }
    // One question to each leader. A read_committed client would be told where transactions are open.
    let asker = connection.reader(CLIENT, Isolation::Uncommitted, WAIT)?;
    let mut list = TopicPartitionList::with_capacity(partitions.count());
    for asked in partitions.elements() {
        list.add_partition_offset(asked.topic(), asked.partition(), At::End)?;
    }
    let told = asker.offsets_for_times(list, ASK_MAX)?;
    let mut ends = Vec::with_capacity(told.count());
    for element in told.elements() {
        element.error()?;
        let At::Offset(end) = element.offset() else {
            return Err(KafkaError::OffsetFetch(RDKafkaErrorCode::NoOffset));
        };
        ends.push((element.topic().to_owned(), element.partition(), end));
    }
    Ok(ends)
}
