//! A topic of ours that is read from its beginning to where it ended when it was opened.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use rdkafka::error::KafkaError;

use crate::client::connect::Isolation;
use crate::client::raw::ask::End;
use crate::client::topic_reader::{Consumed, Patience, ReadError, RecordPosition, Span, StartAt};
use crate::client::{Connection, NoAnswer, TopicReader};
use waterclock_engine::Offset;

/// Longest wait for a first answer of the brokers.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the next record, once they have answered.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long a broker holds a fetch for which there is nothing.
const WAIT: Duration = Duration::from_millis(50);

/// Why a topic could not be read. Nothing has changed by it.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Nobody answered; try again.
    #[error("could not reach Kafka")]
    Unreachable(#[from] NoAnswer),
    /// Another namespace is meant, or `waterclock topics apply` is still to be run.
    #[error("there is no topic {topic}; `waterclock topics apply` makes those of a namespace")]
    NoTopic {
        /// Its name.
        topic: String,
    },
    /// The brokers answer, but not with this; or they stopped answering in the middle.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// One topic, ready to be read.
pub(super) struct Log {
    reader: TopicReader,
    topic: String,
    /// First offset and end of every partition, as they were when this was opened.
    ends: BTreeMap<i32, (Offset, Offset)>,
}

impl Log {
    /// Finds a topic and its ends. `client` and `group` are what it is named by in the brokers' logs and rights.
    ///
    /// # Errors
    /// Kafka cannot be reached, or there is no such topic.
    pub(super) fn open(
        connection: &Connection,
        topic: String,
        who: (&str, &str),
    ) -> Result<Self, LogError> {
        let metadata = connection.metadata(ANSWER_MAX)?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let found = found.filter(|t| t.error().is_none() && !t.partitions().is_empty());
        let Some(found) = found else { return Err(LogError::NoTopic { topic }) };
        let failed = |source: KafkaError| {
            let at = RecordPosition { topic: topic.clone(), partition: 0, offset: None };
            ReadError::kafka(at, source)
        };
        let reader = TopicReader::in_group(connection, who, Isolation::Committed, WAIT);
        let reader = reader.map_err(failed)?;
        let partitions = || found.partitions().iter().map(|partition| partition.id());
        let first = reader.offsets(&topic, partitions(), End::First, ANSWER_MAX)?;
        let end = reader.offsets(&topic, partitions(), reader.end(), ANSWER_MAX)?;
        let of = |partition| Some((partition, (*first.get(&partition)?, *end.get(&partition)?)));
        let ends = partitions().filter_map(of).collect();
        Ok(Self { reader, topic, ends })
    }

    /// First offset and end of every partition, as they were when this was opened.
    pub(super) fn ends(&self) -> &BTreeMap<i32, (Offset, Offset)> {
        &self.ends
    }

    /// Hands over the records of all partitions up to these ends, each partition in its order.
    ///
    /// # Errors
    /// Reading failed in the middle; what was handed over before is right. `E` is what stopped it.
    pub(super) fn read<E: From<LogError>>(
        &mut self,
        mut each: impl FnMut(&Consumed<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let from = StartAt::Beginning;
        let span = |(partition, (_, to)): (&i32, &(Offset, Offset))| Span {
            partition: *partition,
            from,
            to: *to,
        };
        let spans: Vec<Span> = self.ends.iter().map(span).collect();
        self.read_spans(spans, |record| each(record).map(ControlFlow::Continue))
    }

    /// Hands over the records of one partition up to the end that it has now, and gives that end.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(super) fn read_now<E: From<LogError>>(
        &mut self,
        partition: i32,
        mut each: impl FnMut(&Consumed<'_>) -> Result<(), E>,
    ) -> Result<Offset, E> {
        let end = self.reader.offsets(&self.topic, [partition], self.reader.end(), ANSWER_MAX);
        let end = end.map_err(LogError::Read)?;
        let to = end.get(&partition).copied().unwrap_or_default();
        let span = Span { partition, from: StartAt::Beginning, to };
        self.read_spans([span], |record| each(record).map(ControlFlow::Continue))?;
        Ok(to)
    }

    /// Hands over the record that stands there, if one does.
    ///
    /// # Errors
    /// Reading failed.
    pub(super) fn read_one(
        &mut self,
        partition: i32,
        offset: Offset,
        mut take: impl FnMut(&Consumed<'_>),
    ) -> Result<(), LogError> {
        let from = StartAt::Offset(offset);
        let span = Span { partition, from, to: offset.next() };
        self.read_spans([span], |record| {
            take(record);
            Ok::<_, LogError>(ControlFlow::Break(()))
        })
    }

    fn read_spans<E: From<LogError>>(
        &mut self,
        spans: impl IntoIterator<Item = Span>,
        mut each: impl FnMut(&Consumed<'_>) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        let patience = Patience::silence(SILENCE_MAX);
        // What stops it, on its way through the reader.
        enum Stop<E> {
            Of(E),
            Reading(ReadError),
        }
        impl<E> From<ReadError> for Stop<E> {
            fn from(error: ReadError) -> Self {
                Self::Reading(error)
            }
        }
        let read =
            self.reader.read(&self.topic, spans, patience, |record| each(record).map_err(Stop::Of));
        match read {
            Ok(_) => Ok(()),
            Err(Stop::Of(error)) => Err(error),
            Err(Stop::Reading(error)) => Err(LogError::Read(error).into()),
        }
    }
}
