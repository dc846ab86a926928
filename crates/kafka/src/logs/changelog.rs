//! Reads `<ns>.timers`, lane by lane, from its beginning to its end, to compare an index with it or to build one.

use rdkafka::Offset as At;
use rdkafka::message::Message as _;

use super::whole::{ReadError, Whole};
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
pub struct Changelog(Whole);

impl Changelog {
    /// Finds the topic and its ends.
    ///
    /// # Errors
    /// Kafka cannot be reached, or there is no such topic.
    pub fn open(connection: &Connection, namespace: &str) -> Result<Self, ReadError> {
        Whole::open(connection, format!("{namespace}.timers"), (CLIENT, CLIENT)).map(Self)
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
        ends.map_or(0, |(low, end)| u64::try_from(end - low).unwrap_or(0))
    }

    /// Tells every committed record of a lane in order, until told to stop; then, where reading ended.
    ///
    /// # Errors
    /// Reading failed in the middle; what was told before is right. `E` is what stopped it.
    pub fn read<E: From<ReadError>>(
        &self,
        lane: Lane,
        mut each: impl FnMut(Logged<'_>) -> Result<(), E>,
    ) -> Result<Offset, E> {
        let partition = i32::from(lane.0);
        self.0.assign([(partition, At::Beginning)])?;
        let mut next = self.0.ends().get(&partition).map_or(Offset(0), |(low, _)| Offset(*low));
        self.0.poll::<E>(|event| match event {
            Ok(message) if message.partition() == partition => {
                let offset = Offset(message.offset());
                let at = message.timestamp().to_millis().and_then(|ms| u64::try_from(ms).ok());
                let change = Change::decode(message.key(), message.payload());
                let key = message.key().unwrap_or_default();
                each(Logged { offset, at: UnixMillis(at.unwrap_or_default()), key, change })?;
                next = offset.next();
                Ok(false)
            }
            Err(ended) => Ok(ended == partition),
            // Of a lane that was read before.
            Ok(_) => Ok(false),
        })?;
        // The position is also beyond marks of transactions, which leave no record.
        Ok(self.0.position(partition)?.map_or(next, |at| next.max(at)))
    }
}
