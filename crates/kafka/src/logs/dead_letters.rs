//! Reads the dead letters, from the beginning to where they ended when asked.

use std::collections::BTreeMap;

use rdkafka::Offset as Position;
use rdkafka::message::{BorrowedMessage, Message as _};

use super::whole::{ReadError, Whole};
use crate::client::Connection;
use crate::client::raw::copy_record;
use waterclock_engine::{Offset, Record, UnixMillis};

/// One dead letter, where it stands now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadRecord {
    /// Partition of `<ns>.dead`.
    pub partition: i32,
    /// Offset in it.
    pub offset: Offset,
    /// When it was put there.
    pub timestamp: UnixMillis,
    /// Its bytes, with what was added at the end of its headers.
    pub record: Record,
}

/// The dead letters of one namespace, ready to be read.
pub struct DeadLetters(Whole);

impl DeadLetters {
    /// Finds the topic and its ends.
    ///
    /// # Errors
    /// Kafka cannot be reached, or there is no such topic.
    pub fn open(connection: &Connection, namespace: &str) -> Result<Self, ReadError> {
        let group = format!("{namespace}-dead");
        Whole::open(connection, format!("{namespace}.dead"), ("waterclock-dead", &group)).map(Self)
    }

    /// How many offsets there are to be read: a few more than dead letters, as marks of transactions count, too.
    #[must_use]
    pub fn span(&self) -> u64 {
        self.0.ends().values().map(|(low, end)| end.saturating_sub(*low).max(0) as u64).sum()
    }

    /// Tells every dead letter, in the order of each partition.
    ///
    /// # Errors
    /// Reading failed in the middle; what was told before is right.
    pub fn read(&self, mut each: impl FnMut(DeadRecord)) -> Result<(), ReadError> {
        let mut open: BTreeMap<i32, i64> = self
            .0
            .ends()
            .iter()
            .filter(|(_, (low, end))| low < end)
            .map(|(p, (_, end))| (*p, *end))
            .collect();
        if open.is_empty() {
            return Ok(());
        }
        self.0.assign(open.keys().map(|partition| (*partition, Position::Beginning)))?;
        self.0.poll(|event| {
            match event {
                Ok(message) => {
                    let partition = message.partition();
                    if let Some(end) = open.get(&partition) {
                        let last = message.offset() + 1 >= *end;
                        if message.offset() < *end {
                            each(dead_record(&message));
                        }
                        if last {
                            open.remove(&partition);
                        }
                    }
                }
                // An end that is a transaction's mark is never told as a record.
                Err(partition) => {
                    open.remove(&partition);
                }
            }
            Ok(open.is_empty())
        })
    }

    /// The dead letter at one place; `None` when there is none.
    ///
    /// # Errors
    /// Reading failed.
    pub fn at(&self, partition: i32, offset: Offset) -> Result<Option<DeadRecord>, ReadError> {
        let Some((low, end)) = self.0.ends().get(&partition) else { return Ok(None) };
        if !(*low..*end).contains(&offset.0) {
            return Ok(None);
        }
        self.0.assign([(partition, Position::Offset(offset.0))])?;
        let mut found = None;
        self.0.poll(|event| {
            found = event.ok().filter(|m| m.offset() == offset.0).map(|m| dead_record(&m));
            Ok::<_, ReadError>(true)
        })?;
        Ok(found)
    }
}

fn dead_record(message: &BorrowedMessage<'_>) -> DeadRecord {
    let timestamp = message.timestamp().to_millis().and_then(|ms| u64::try_from(ms).ok());
    DeadRecord {
        partition: message.partition(),
        offset: Offset(message.offset()),
        timestamp: UnixMillis(timestamp.unwrap_or_default()),
        record: copy_record(message),
    }
}
