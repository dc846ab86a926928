//! Reads the dead letters, from the beginning to where they ended when asked.

use super::log::{Log, LogError};
use crate::client::Connection;
use crate::client::topic_reader::Consumed;
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
pub struct DeadLetters(Log);

impl DeadLetters {
    /// Finds the topic and its ends.
    ///
    /// # Errors
    /// Kafka cannot be reached, or there is no such topic.
    pub fn open(connection: &Connection, namespace: &str) -> Result<Self, LogError> {
        let group = format!("{namespace}-dead");
        Log::open(connection, format!("{namespace}.dead"), ("waterclock-dead", &group)).map(Self)
    }

    /// How many offsets there are to be read: a few more than dead letters, as marks of transactions count, too.
    #[must_use]
    pub fn span(&self) -> u64 {
        let ends = self.0.ends().values();
        ends.map(|(low, end)| u64::try_from(end.0 - low.0).unwrap_or(0)).sum()
    }

    /// Tells every dead letter, in the order of each partition.
    ///
    /// # Errors
    /// Reading failed in the middle; what was told before is right.
    pub fn read(&mut self, mut each: impl FnMut(DeadRecord)) -> Result<(), LogError> {
        self.0.read(|record| {
            each(dead_record(record));
            Ok(())
        })
    }

    /// The dead letter at one place; `None` when there is none.
    ///
    /// # Errors
    /// Reading failed.
    pub fn at(&mut self, partition: i32, offset: Offset) -> Result<Option<DeadRecord>, LogError> {
        let Some((low, end)) = self.0.ends().get(&partition) else { return Ok(None) };
        if !(*low..*end).contains(&offset) {
            return Ok(None);
        }
        let mut found = None;
        self.0.read_one(partition, offset, |record| found = Some(dead_record(record)))?;
        Ok(found)
    }
}

fn dead_record(record: &Consumed<'_>) -> DeadRecord {
    DeadRecord {
        partition: record.partition(),
        offset: record.offset(),
        timestamp: record.appended().unwrap_or_default(),
        record: record.copy(),
    }
}
