//! Reads `<ns>.timers`, lane by lane, from its beginning to its end, to compare an index with it or to build one.

use super::log::{Log, LogError};
use crate::client::Connection;
use waterclock_engine::timers::{Change, DecodeError};
use waterclock_engine::{Lane, Offset, UnixMillis};

/// How it is named in the brokers' logs.
const CLIENT: &str = "waterclock-index";

/// One record of the changelog.
#[derive(Debug)]
pub struct Logged<'a> {
    /// Where it stands in its lane.
    pub offset: Offset,
    /// When it was appended.
    pub at: UnixMillis,
    /// Its key as it stands there.
    pub key: &'a [u8],
    /// What it says.
    pub change: Result<Change, DecodeError>,
}

/// The changelog of one namespace, ready to be read.
pub struct Changelog(Log);

impl Changelog {
    /// Finds the topic and its ends.
    ///
    /// # Errors
    /// Kafka cannot be reached, or there is no such topic.
    pub fn open(connection: &Connection, namespace: &str) -> Result<Self, LogError> {
        Log::open(connection, format!("{namespace}.timers"), (CLIENT, CLIENT)).map(Self)
    }

    /// All lanes that it has.
    #[must_use]
    pub fn lanes(&self) -> Vec<Lane> {
        self.0.ends().keys().filter_map(|lane| u16::try_from(*lane).ok()).map(Lane).collect()
    }

    /// Offsets of a lane that are to be read: more than records, as those that are compacted count, too.
    #[must_use]
    pub fn span(&self, lane: Lane) -> u64 {
        let ends = self.0.ends().get(&i32::from(lane.0));
        ends.map_or(0, |(low, end)| u64::try_from(end.0 - low.0).unwrap_or(0))
    }

    /// Tells every committed record of a lane in order, until told to stop; then, where reading ended.
    ///
    /// # Errors
    /// Reading failed in the middle; what was told before is right. `E` is what stopped it.
    pub fn read<E: From<LogError>>(
        &mut self,
        lane: Lane,
        mut each: impl FnMut(Logged<'_>) -> Result<(), E>,
    ) -> Result<Offset, E> {
        let partition = i32::from(lane.0);
        // Marks of transactions and what was compacted leave no record: what counts is the end that was reached.
        self.0.read_now(partition, |record| {
            let (offset, at) = (record.offset(), record.appended().unwrap_or_default());
            let change = Change::decode(record.key(), record.value());
            let key = record.key().unwrap_or_default();
            each(Logged { offset, at, key, change })
        })
    }
}
