//! Reads partitions as an onlooker: it joins no group and commits nothing. Everybody who reads a topic from somewhere to its
//! end, or follows one, reads by this; only the lane threads and [`GroupConsumer`](super::GroupConsumer) have consumers of their own.
//!
//! # Invariants
//! 1. [`read`](TopicReader::read) ends a partition at the position that its caller gave, and at no other. Marks of transactions
//!    and what was compacted away leave no record: librdkafka tells at which offset a partition ended, and that counts. A new
//!    leader that does not know its end yet says an offset before it, and is asked on.
//! 2. A record is handed over once, in the order of its partition, and only if its partition is being read: none of an earlier
//!    assignment.
//! 3. What was deleted while it was to be read is passed over by [`read`](TopicReader::read). One who follows is told by
//!    [`Polled::Outside`], since what he knows may be wrong then.
//! 4. Reading has an end: without a word for some time, at a deadline, or when nobody waits for it any more.
//! 5. An error names topic and partition, and the offset that was to be read next.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use super::Connection;
use super::connect::{Isolation, Reader};
use super::errors::{self, ErrorKind};
use super::outages::Bootstrap;
use super::raw::ask::{self, End};
use super::raw::bell::Bell;
use super::raw::poll::Fetched;
use super::raw::{self, Waker};
use waterclock_engine::{Offset, Record, UnixMillis};

/// How long one poll waits, in [`TopicReader::read`].
const POLL: Duration = Duration::from_millis(100);
/// Longest wait for the ends of a partition whose records were deleted meanwhile.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Between two questions to a leader that did not answer.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Where reading of a partition begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// With the first record that is there.
    Beginning,
    /// With the first record from this offset on.
    Offset(Offset),
    /// With what is appended from now on.
    End,
}

/// A part of a partition that is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The partition.
    pub partition: i32,
    /// Where it begins.
    pub from: StartAt,
    /// Where it ends: the first offset that is not read any more. It must have been the end of the log at some time.
    pub to: Offset,
}

/// Where something stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordPosition {
    /// The topic.
    pub topic: String,
    /// The partition of it.
    pub partition: i32,
    /// The offset, as far as one is known.
    pub offset: Option<Offset>,
}

impl fmt::Display for RecordPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)?;
        self.offset.map_or(Ok(()), |offset| write!(f, "@{}", offset.0))
    }
}

/// How long it is read.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    /// The longest time without a word of what is read.
    pub silence: Duration,
    /// When it must be read; `None`: as long as something comes.
    pub by: Option<Instant>,
    /// Whether anybody waits for it still.
    pub is_wanted: &'a dyn Fn() -> bool,
}

impl Patience<'_> {
    /// As long as something comes within this time.
    #[must_use]
    pub fn silence(silence: Duration) -> Self {
        Self { silence, by: None, is_wanted: &|| true }
    }

    /// Until then.
    #[must_use]
    pub fn by(by: Instant) -> Self {
        let silence = by.saturating_duration_since(Instant::now());
        Self { silence, by: Some(by), is_wanted: &|| true }
    }
}

/// How reading came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything was read.
    Whole,
    /// The one who was handed a record has seen enough.
    Enough,
    /// Nobody waited for it any more.
    Unwanted,
}

/// Why partitions were not read to their ends. What was handed over before is right.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It needs somebody to mend it.
    #[error("could not read {at}")]
    Kafka {
        /// Where it stood.
        at: RecordPosition,
        /// What librdkafka said.
        #[source]
        source: Box<KafkaError>,
    },
    /// The log ends before what was to be read: it was cut, or the topic was created again.
    #[error("{at} is not in the log, which ends at {}", end.0)]
    Cut {
        /// What was to be read.
        at: RecordPosition,
        /// Where the log ends.
        end: Offset,
    },
    /// Nothing came for long, or not all in time; try again.
    #[error("nothing came of {at} for {} s", waited.as_secs())]
    Silent {
        /// The first partition that was not read to its end, and how far it was.
        at: RecordPosition,
        /// How long it was waited for.
        waited: Duration,
        /// The last error meanwhile, if there was one.
        #[source]
        source: Option<Box<KafkaError>>,
    },
}

impl ReadError {
    /// That librdkafka could not read there.
    pub fn kafka(at: RecordPosition, source: KafkaError) -> Self {
        Self::Kafka { at, source: Box::new(source) }
    }

    /// What librdkafka said, for a caller that says by itself where.
    pub(crate) fn into_kafka(self) -> KafkaError {
        match self {
            Self::Kafka { source, .. } => *source,
            Self::Silent { source, .. } => source.map_or_else(errors::no_answer, |source| *source),
            Self::Cut { .. } => errors::no_answer(),
        }
    }
}

/// What a poll came to.
pub enum Polled<'a> {
    /// A record.
    Record(Consumed<'a>),
    /// A partition is read to its end, which is here. Only a reader that was made with [`TopicReader::to_ends`] says so.
    End(RecordPosition),
    /// A partition is not read on: this position is not in the log, since what was to be read next was deleted.
    Outside(RecordPosition, KafkaError),
    /// Something went wrong. Reading goes on by itself, unless it [`is_lasting`].
    Failed(KafkaError, Option<RecordPosition>),
}

/// Whether an error of reading lasts until a person mends it.
#[must_use]
pub fn is_lasting(error: &KafkaError) -> bool {
    errors::is_consumer_lost(error) || errors::kind(error).is_lasting()
}

/// A record that was polled; it is librdkafka's until it is copied.
pub struct Consumed<'a>(Fetched<'a>);

impl Consumed<'_> {
    /// Its topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        self.0.topic()
    }

    /// Its partition.
    #[must_use]
    pub fn partition(&self) -> i32 {
        self.0.partition()
    }

    /// Its offset.
    #[must_use]
    pub fn offset(&self) -> Offset {
        Offset(self.0.offset())
    }

    /// Its timestamp: when it was appended, where the topic is set so.
    #[must_use]
    pub fn appended(&self) -> Option<UnixMillis> {
        u64::try_from(self.0.timestamp()).ok().map(UnixMillis)
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        raw::key_and_value(&self.0).0
    }

    /// Its value.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        raw::key_and_value(&self.0).1
    }

    /// Whether it has this header with this value.
    #[must_use]
    pub fn has_header(&self, name: &[u8], value: &[u8]) -> bool {
        raw::has_header(&self.0, name, value)
    }

    /// A copy of all of it.
    #[must_use]
    pub fn copy(&self) -> Record {
        raw::copy_whole(&self.0)
    }

    /// A copy of it; of one that is larger than `most` bytes, what is kept of such.
    #[must_use]
    pub fn record(&self, most: usize) -> Record {
        raw::copy_fetched(&self.0, most)
    }
}

/// How far a partition is read.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// Where it began.
    start: StartAt,
    /// The offset to be read next; `None`: where that is was not told yet.
    next: Option<Offset>,
    /// Where it is read to; `None`: it is followed.
    to: Option<Offset>,
}

impl Progress {
    /// As librdkafka is told to begin.
    fn from(&self) -> At {
        match (self.start, self.next) {
            (_, Some(next)) => At::Offset(next.0),
            (StartAt::End, None) => At::End,
            (StartAt::Beginning | StartAt::Offset(_), None) => At::Beginning,
        }
    }

    fn is_open(&self) -> bool {
        self.to.is_some_and(|to| self.next.unwrap_or_default() < to)
    }
}

/// What is read, and how far.
#[derive(Debug, Default)]
struct Assigned(HashMap<String, BTreeMap<i32, Progress>>);

impl Assigned {
    fn add(&mut self, topic: &str, partition: i32, start: StartAt, to: Option<Offset>) {
        let next = match start {
            StartAt::Offset(next) => Some(next),
            StartAt::Beginning | StartAt::End => None,
        };
        let partitions = self.0.entry(topic.to_owned()).or_default();
        partitions.insert(partition, Progress { start, next, to });
    }

    /// Leaves out the partitions of which there is nothing to read.
    fn forget_whole(&mut self) {
        for partitions in self.0.values_mut() {
            partitions.retain(|_, progress| progress.to.is_none() || progress.is_open());
        }
        self.0.retain(|_, partitions| !partitions.is_empty());
    }

    /// Whether a record stands behind what is read of its partition: it was appended meanwhile.
    fn is_beyond(&mut self, record: &Consumed<'_>) -> bool {
        let progress = self.get(record.topic(), record.partition());
        progress.and_then(|progress| progress.to).is_some_and(|to| record.offset() >= to)
    }

    fn get(&mut self, topic: &str, partition: i32) -> Option<&mut Progress> {
        self.0.get_mut(topic)?.get_mut(&partition)
    }

    /// Whether a record of this offset is one that was to come; then the one behind it is next.
    fn pass(&mut self, topic: &str, partition: i32, offset: Offset) -> bool {
        let Some(progress) = self.get(topic, partition) else { return false };
        if progress.next.is_some_and(|next| offset < next) {
            return false;
        }
        progress.next = Some(offset.next());
        true
    }

    fn is_open(&self) -> bool {
        self.0.values().flat_map(BTreeMap::values).any(Progress::is_open)
    }

    /// The first partition that is not read to its end.
    fn open(&self) -> Option<RecordPosition> {
        let mut open: Vec<RecordPosition> = Vec::new();
        for (topic, partitions) in &self.0 {
            let first = partitions.iter().find(|(_, progress)| progress.is_open());
            open.extend(first.map(|(partition, progress)| RecordPosition {
                topic: topic.clone(),
                partition: *partition,
                offset: progress.next,
            }));
        }
        open.into_iter().min_by(|a, b| a.topic.cmp(&b.topic))
    }
}

/// See the module.
pub struct TopicReader {
    connection: Connection,
    bootstrap: Bootstrap,
    /// Of the consumer, and so dropped before it.
    queue: Waker,
    consumer: Reader,
    /// It has a group, and so it is assigned its partitions.
    in_group: bool,
    isolation: Isolation,
    assigned: Assigned,
    /// What librdkafka reads, by topic; of no group.
    started: HashMap<String, Vec<i32>>,
}

impl Drop for TopicReader {
    fn drop(&mut self) {
        self.stop();
    }
}

impl TopicReader {
    /// A reader with this name in the brokers' logs. `wait`: how long a broker holds a fetch for which there is nothing.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub fn new(
        connection: &Connection,
        client_id: &str,
        isolation: Isolation,
        wait: Duration,
    ) -> Result<Self, KafkaError> {
        let reader = connection.reader(client_id, isolation, wait, false)?;
        Ok(Self::of(connection, reader, isolation, false))
    }

    /// The same, which says when it is at a partition's end.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub fn to_ends(
        connection: &Connection,
        client_id: &str,
        isolation: Isolation,
        wait: Duration,
    ) -> Result<Self, KafkaError> {
        let reader = connection.reader(client_id, isolation, wait, true)?;
        Ok(Self::of(connection, reader, isolation, false))
    }

    /// The same under the name of a group, whose rights it needs. It is no member of it.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub(crate) fn in_group(
        connection: &Connection,
        (client_id, group): (&str, &str),
        isolation: Isolation,
        wait: Duration,
    ) -> Result<Self, KafkaError> {
        let reader = connection.reader_in_group(client_id, group, isolation, wait)?;
        Ok(Self::of(connection, reader, isolation, true))
    }

    fn of(connection: &Connection, consumer: Reader, isolation: Isolation, in_group: bool) -> Self {
        let queue = Waker::of_reader(consumer.client());
        let bootstrap = Bootstrap::new(connection);
        let (connection, assigned) = (connection.clone(), Assigned::default());
        let started = HashMap::new();
        Self { connection, bootstrap, queue, consumer, in_group, isolation, assigned, started }
    }

    /// Wakes a thread when there is something to poll. It must be dropped before this is. Not for one in a group.
    pub(crate) fn bell(&self, thread: std::thread::Thread) -> Bell {
        Bell::of(self.consumer.client(), thread)
    }

    /// Has these partitions of a topic followed, and no others.
    ///
    /// # Errors
    /// librdkafka refused it.
    pub fn assign(
        &mut self,
        topic: &str,
        partitions: impl IntoIterator<Item = (i32, StartAt)>,
    ) -> Result<(), KafkaError> {
        self.assign_all(partitions.into_iter().map(|(partition, from)| (topic, partition, from)))
    }

    /// Has these partitions of some topics followed, and no others.
    ///
    /// # Errors
    /// librdkafka refused it.
    pub(crate) fn assign_all<'a>(
        &mut self,
        partitions: impl IntoIterator<Item = (&'a str, i32, StartAt)>,
    ) -> Result<(), KafkaError> {
        let mut assigned = Assigned::default();
        for (topic, partition, from) in partitions {
            assigned.add(topic, partition, from, None);
        }
        self.set(assigned)
    }

    fn set(&mut self, assigned: Assigned) -> Result<(), KafkaError> {
        if self.in_group {
            let mut list = TopicPartitionList::new();
            for (topic, partitions) in &assigned.0 {
                for (partition, progress) in partitions {
                    list.add_partition_offset(topic, *partition, progress.from())?;
                }
            }
            self.consumer.assign(&list)?;
            self.assigned = assigned;
            return Ok(());
        }
        self.stop();
        self.assigned = assigned;
        for (topic, partitions) in &self.assigned.0 {
            // To stop what was not started does no harm.
            self.started.insert(topic.clone(), partitions.keys().copied().collect());
            let from = partitions.iter().map(|(partition, of)| (*partition, of.from()));
            raw::partitions::start(self.consumer.client(), &self.queue, topic, from)?;
        }
        Ok(())
    }

    /// Has librdkafka read nothing any more.
    fn stop(&mut self) {
        for (topic, partitions) in self.started.drain() {
            raw::partitions::stop(self.consumer.client(), &topic, partitions);
        }
    }

    /// Gives it its brokers again after an outage. `poll` does so, too; who polls only when a bell has rung calls this all the
    /// time: no bell rings for a client that has forgotten all brokers.
    pub(crate) fn after_outage(&mut self) {
        self.bootstrap.after_outage(self.consumer.client());
    }

    /// What comes next; `None`: nothing within this time.
    #[must_use]
    pub fn poll(&mut self, most: Duration) -> Option<Polled<'_>> {
        self.after_outage();
        poll(&self.consumer, &self.queue, &mut self.assigned, most)
    }

    /// Reads parts of a topic, and hands every record over, each partition in its order, until it breaks.
    ///
    /// # Errors
    /// Reading failed in the middle; what was handed over before is right. `E` is what stopped it.
    pub fn read<E: From<ReadError>>(
        &mut self,
        topic: &str,
        spans: impl IntoIterator<Item = Span>,
        patience: Patience<'_>,
        mut each: impl FnMut(&Consumed<'_>) -> Result<ControlFlow<()>, E>,
    ) -> Result<Ended, E> {
        let mut assigned = Assigned::default();
        for Span { partition, from, to } in spans {
            assigned.add(topic, partition, from, Some(to));
        }
        assigned.forget_whole();
        let Some(first) = assigned.open() else { return Ok(Ended::Whole) };
        self.set(assigned).map_err(|source| ReadError::kafka(first.clone(), source))?;
        let (mut heard, mut last) = (Instant::now(), None);
        // By every record: where it stands is looked up only to be named.
        while self.assigned.is_open() {
            if !(patience.is_wanted)() {
                return Ok(Ended::Unwanted);
            }
            let is_late = patience.by.is_some_and(|by| Instant::now() >= by);
            if is_late || heard.elapsed() > patience.silence {
                let at = self.assigned.open().unwrap_or(first);
                let waited = patience.silence;
                return Err(ReadError::Silent { at, waited, source: last.map(Box::new) }.into());
            }
            match poll(&self.consumer, &self.queue, &mut self.assigned, POLL) {
                None => {}
                Some(Polled::Record(record)) => {
                    heard = Instant::now();
                    if self.assigned.is_beyond(&record) {
                        continue;
                    }
                    if each(&record)?.is_break() {
                        return Ok(Ended::Enough);
                    }
                }
                Some(Polled::End(_)) => heard = Instant::now(),
                Some(Polled::Outside(at, _)) => self.pass_over(at)?,
                Some(Polled::Failed(source, of)) if is_lasting(&source) => {
                    let at = of.or_else(|| self.assigned.open()).unwrap_or(first);
                    return Err(ReadError::kafka(at, source).into());
                }
                Some(Polled::Failed(error, _)) => last = Some(error),
            }
        }
        Ok(Ended::Whole)
    }

    /// Goes on behind what was deleted.
    fn pass_over(&mut self, at: RecordPosition) -> Result<(), ReadError> {
        let (first, end) = self.ends(&at.topic, at.partition, ANSWER_MAX)?;
        let mut assigned = std::mem::take(&mut self.assigned);
        let Some(progress) = assigned.get(&at.topic, at.partition) else { return Ok(()) };
        let next = progress.next.or(at.offset).unwrap_or_default();
        if next > end {
            return Err(ReadError::Cut { at, end });
        }
        // What it was asked for is in the log again: it was cut, and written again.
        tracing::debug!(%at, first = first.0, "records were deleted before they were read");
        progress.next = Some(next.max(first));
        assigned.forget_whole();
        self.set(assigned).map_err(|source| ReadError::kafka(at, source))
    }

    /// How far the partitions of a topic are read: one past the last record, and past the marks of transactions behind
    /// that. Those of which nothing was polled yet are left out.
    ///
    /// # Errors
    /// librdkafka does not know.
    pub fn positions(&self, topic: &str) -> Result<Vec<(i32, Offset)>, KafkaError> {
        let mut positions = TopicPartitionList::new();
        for partition in self.assigned.0.get(topic).into_iter().flat_map(BTreeMap::keys) {
            positions.add_partition(topic, *partition);
        }
        raw::positions(self.consumer.client(), &positions)?;
        let of_topic = positions.elements_for_topic(topic).into_iter();
        let known = of_topic.filter_map(|element| match element.offset() {
            At::Offset(next) => Some((element.partition(), Offset(next))),
            _ => None,
        });
        Ok(known.collect())
    }

    /// First offset and end of a partition. The end is what this reader may read up to: one that is committed only is held
    /// back by open transactions.
    ///
    /// # Errors
    /// Its leader did not answer.
    pub fn ends(
        &self,
        topic: &str,
        partition: i32,
        most: Duration,
    ) -> Result<(Offset, Offset), ReadError> {
        let of = |end| -> Result<Offset, ReadError> {
            let told = self.offsets(topic, [partition], end, most)?;
            Ok(told.get(&partition).copied().unwrap_or_default())
        };
        Ok((of(End::First)?, of(self.end())?))
    }

    /// The end of what this reader may read.
    pub(crate) fn end(&self) -> End {
        match self.isolation {
            Isolation::Committed => End::Stable,
            Isolation::Uncommitted => End::Last,
        }
    }

    /// The first offset of a partition that has this time or a later one; `None`: nothing is as late.
    ///
    /// # Errors
    /// Its leader did not answer.
    pub fn offset_at(
        &self,
        topic: &str,
        partition: i32,
        time: UnixMillis,
        most: Duration,
    ) -> Result<Option<Offset>, ReadError> {
        let told = self.offsets(topic, [partition], End::Since(time), most)?;
        Ok(told.get(&partition).copied().filter(|offset| offset.0 >= 0))
    }

    /// Asks the leaders of these partitions where they begin or end, until all have answered.
    ///
    /// # Errors
    /// One of them refused, or gave no answer in time.
    pub(crate) fn offsets(
        &self,
        topic: &str,
        partitions: impl IntoIterator<Item = i32>,
        end: End,
        most: Duration,
    ) -> Result<BTreeMap<i32, Offset>, ReadError> {
        let until = Instant::now() + most;
        let mut open: Vec<(String, i32)> =
            partitions.into_iter().map(|partition| (topic.to_owned(), partition)).collect();
        let mut known = BTreeMap::new();
        while !open.is_empty() {
            // A client that nobody polls is asked for no token.
            self.connection.token(self.consumer.client());
            let within = until.saturating_duration_since(Instant::now());
            let told = ask::ends(self.consumer.client(), &open, end, within);
            let mut failed = None;
            match told {
                Ok(told) => {
                    open.clear();
                    for (topic, partition, offset) in told {
                        match offset {
                            Ok(offset) => {
                                known.insert(partition, Offset(offset));
                            }
                            Err(code) => {
                                failed = Some((partition, KafkaError::AdminOp(code)));
                                open.push((topic, partition));
                            }
                        }
                    }
                }
                Err(error) => failed = open.first().map(|(_, partition)| (*partition, error)),
            }
            if let Some((partition, source)) = failed {
                let kind = errors::kind(&source);
                // A topic that was made a moment ago is not known to all brokers yet.
                let may_pass = kind.is_passing() || kind.may_be_new();
                if !may_pass || Instant::now() + ASK_AGAIN >= until {
                    let at = RecordPosition { topic: topic.to_owned(), partition, offset: None };
                    return Err(ReadError::kafka(at, source));
                }
                std::thread::sleep(ASK_AGAIN);
            }
        }
        Ok(known)
    }

    /// Whether a partition's log ended here when its leader last answered. [`Polled::End`] says so, too, but only once a fetch
    /// found nothing, which may never be while others write.
    pub(crate) fn is_at_end(&self, topic: &str, partition: i32, next: Offset) -> bool {
        let end = raw::partitions::known_end(self.consumer.client(), topic, partition);
        end.is_some_and(|end| next.0 >= end)
    }

    /// The positions that its group has committed in these partitions of a topic; `None`: it has none.
    ///
    /// # Errors
    /// The group's coordinator refused, or gave no answer.
    pub(crate) fn committed(
        &self,
        topic: &str,
        partitions: impl IntoIterator<Item = i32>,
        most: Duration,
    ) -> Result<BTreeMap<i32, Option<Offset>>, KafkaError> {
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            list.add_partition(topic, partition);
        }
        let committed = self.consumer.committed_offsets(list, most)?;
        let mut known = BTreeMap::new();
        for element in committed.elements() {
            element.error()?;
            let next = match element.offset() {
                At::Offset(next) => Some(Offset(next)),
                _ => None,
            };
            known.insert(element.partition(), next);
        }
        Ok(known)
    }

    /// Finds out who leads the partitions of a topic, before one of them is assigned. If a topic is new to a client that runs
    /// already, librdkafka itself asks for its leaders only once a second: the partition is silent for 500 to 1,000 ms, and
    /// for 100 ms if they are known (measured).
    ///
    /// # Errors
    /// Nobody answered.
    pub fn find_leaders(&self, topic: &str, most: Duration) -> Result<(), KafkaError> {
        self.consumer.fetch_metadata(Some(topic), most).map(drop)
    }
}

/// The one place where a topic's records come in.
fn poll<'a>(
    consumer: &'a Reader,
    queue: &Waker,
    assigned: &mut Assigned,
    most: Duration,
) -> Option<Polled<'a>> {
    let until = Instant::now() + most;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let (error, at) = match raw::poll::poll(consumer, queue, left)? {
            raw::poll::Polled::Record(record) => {
                let (partition, offset) = (record.partition(), Offset(record.offset()));
                if assigned.pass(record.topic(), partition, offset) {
                    return Some(Polled::Record(Consumed(record)));
                }
                continue;
            }
            raw::poll::Polled::Error { error, at } => (error, at),
        };
        let Some((topic, partition, offset)) = at else {
            return Some(Polled::Failed(error, None));
        };
        // Of an earlier assignment.
        let Some(progress) = assigned.get(&topic, partition) else { continue };
        let offset = u64::try_from(offset).ok().map(|offset| Offset(offset.cast_signed()));
        let place = RecordPosition { topic, partition, offset: offset.or(progress.next) };
        return Some(match errors::kind(&error) {
            ErrorKind::EndOfPartition => {
                progress.next = progress.next.max(place.offset);
                Polled::End(place)
            }
            ErrorKind::OffsetOutOfRange => Polled::Outside(place, error),
            _ => Polled::Failed(error, Some(place)),
        });
    }
}

#[cfg(test)]
mod tests;
