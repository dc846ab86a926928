//! Positions and pending marks of lanes, kept in `<ns>.meta` beside the offsets that the group keeps.
//!
//! Committed offsets of a group that is away for longer than `offsets.retention.minutes` (7 days by default) expire,
//! while records may wait for a year. So every commit of a position is also written here, in the same transaction: one
//! record for each partition that changed, under the key `position/<topic>/<partition>`. The topic is compacted and
//! keeps the last one for ever.
//!
//! # Invariants
//! 1. The group's offsets count. A checkpoint is asked for only where the group has none.
//! 2. All checkpoints stand in one partition, [`CHECKPOINT_PARTITION`]. So a transaction has one partition more, and not one for
//!    each lane. Partitions may be added to the topic, and the last value of a key still wins.
//! 3. Reading goes to the end that the partition had when it was asked, and waits until all open transactions before it
//!    are decided, those of other programs too. So a commit that was acknowledged before is never missed.
//! 4. A checkpoint names the topic's id, and counts for that topic only: a topic that was deleted and recreated is
//!    another.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;

use crate::client::connect::Isolation;
use crate::client::raw::ask::End;
use crate::client::topic_reader::{Patience, ReadError, RecordPosition, Span, StartAt};
use crate::client::{Connection, TopicReader};
use crate::cluster::end_offsets::EndOffsets;
use crate::meta::CHECKPOINT_PARTITION;
use waterclock_engine::member::Checkpoint as Position;
use waterclock_engine::{Commit, Offset, Record};

/// Begins the key of every checkpoint; topic and partition follow.
const POSITION: &str = "position/";
/// The form of the values that this program writes. It does not understand a newer one.
const VERSION: &str = "1";
/// How long a broker holds a fetch for which there is nothing.
const WAIT: Duration = Duration::from_millis(20);
/// Between two looks whether a transaction has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest wait for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The record of a position in the topic of this name and id.
pub(crate) fn record(topic: &str, id: &str, commit: &Commit) -> Record {
    let key = format!("{POSITION}{topic}/{}", commit.source.lane.0);
    let value = format!("{VERSION} {id} {} {}", commit.next.0, commit.metadata);
    Record::new(Some(key.as_bytes()), Some(value.as_bytes()), std::iter::empty())
}

/// Topic and partition of a key; `None` where it is no checkpoint's.
fn read_key(key: &[u8]) -> Option<(&str, i32)> {
    let rest = std::str::from_utf8(key).ok()?.strip_prefix(POSITION)?;
    let (topic, partition) = rest.rsplit_once('/')?;
    Some((topic, partition.parse().ok()?))
}

fn read_value(value: &[u8]) -> Option<Position> {
    let mut parts = std::str::from_utf8(value).ok()?.splitn(4, ' ');
    if parts.next()? != VERSION {
        return None;
    }
    let (id, next) = (parts.next()?.to_owned(), parts.next()?.parse().ok()?);
    Some(Position { id, next: Offset(next), metadata: parts.next()?.to_owned() })
}

/// The positions that were found, by topic and partition.
pub(crate) type Positions = HashMap<(String, i32), Position>;

/// Reads the last checkpoints from `<ns>.meta`. Blocks for at most `most`, and some seconds.
///
/// # Errors
/// They could not be read to the end in time; try again.
pub(crate) fn read(
    connection: &Connection,
    ends: &EndOffsets,
    (meta, group): (&Arc<str>, &str),
    most: Duration,
) -> Result<Positions, KafkaError> {
    let deadline = Instant::now() + most;
    let told = ends.wait(&[(Arc::clone(meta), CHECKPOINT_PARTITION)], ANSWER_MAX)?;
    let to = told.first().and_then(|told| told.last).unwrap_or_default();
    let mut found = Positions::new();
    if to == Offset(0) {
        return Ok(found);
    }
    let who = ("waterclock-checkpoints", group);
    let mut reader = TopicReader::in_group(connection, who, Isolation::Committed, WAIT)?;
    let span = Span { partition: CHECKPOINT_PARTITION, from: StartAt::Beginning, to };
    let read = decided(&reader, meta, to, deadline).and_then(|()| {
        reader.read(meta, [span], Patience::by(deadline), |record| {
            take(&mut found, record.key(), record.value(), record.offset().0);
            Ok::<_, ReadError>(ControlFlow::Continue(()))
        })
    });
    match read {
        Ok(_) => Ok(found),
        Err(error) => {
            tracing::info!(%error, "could not read the checkpoints");
            Err(error.into_kafka())
        }
    }
}

/// Waits until no transaction is open before an end.
fn decided(
    reader: &TopicReader,
    topic: &str,
    end: Offset,
    deadline: Instant,
) -> Result<(), ReadError> {
    let waited = deadline.saturating_duration_since(Instant::now());
    loop {
        let told = reader.offsets(topic, [CHECKPOINT_PARTITION], End::Stable, ANSWER_MAX)?;
        let stable = told.get(&CHECKPOINT_PARTITION).copied();
        if stable.is_some_and(|stable| stable >= end) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let (topic, partition) = (topic.to_owned(), CHECKPOINT_PARTITION);
            let at = RecordPosition { topic, partition, offset: stable };
            return Err(ReadError::Silent { at, waited, source: None });
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn take(found: &mut Positions, key: Option<&[u8]>, value: Option<&[u8]>, offset: i64) {
    let Some((topic, partition)) = key.and_then(read_key) else { return };
    let at = (topic.to_owned(), partition);
    match value.map(read_value) {
        Some(Some(position)) => {
            found.insert(at, position);
        }
        // Better none than one from before: what was done since would be done again.
        Some(None) => {
            tracing::error!(topic, partition, offset, "a checkpoint in meta cannot be read");
            found.remove(&at);
        }
        None => {
            found.remove(&at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use waterclock_engine::{Lane, Source, TopicId};

    fn commit(next: i64, metadata: &str) -> Commit {
        let source = Source { topic: TopicId(3), lane: Lane(4) };
        Commit { source, next: Offset(next), metadata: metadata.to_owned() }
    }

    #[test]
    fn what_is_written_is_read_and_the_last_one_counts() {
        let mut found = Positions::new();
        for (at, (next, metadata)) in [(7, ""), (9, "b64=="), (12, "")].into_iter().enumerate() {
            let record = record("a.b-c.delay.1m", "id_1-x", &commit(next, metadata));
            take(&mut found, record.key(), record.value(), at as i64);
            let position = &found[&("a.b-c.delay.1m".to_owned(), 4)];
            let id = "id_1-x".to_owned();
            assert_eq!(*position, Position { id, next: Offset(next), metadata: metadata.into() });
        }
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn what_cannot_be_read_hides_what_was_before_and_other_keys_are_passed_over() {
        let mut found = Positions::new();
        let key = b"position/t/4".as_slice();
        type Case<'a> = (&'a [u8], Option<&'a [u8]>, usize, &'a str);
        #[rustfmt::skip]
        let table: [Case<'_>; 7] = [
            (key,                   Some(b"1 id 5 "),   1, "a position without marks"),
            (b"clock",              None,               1, "a probe"),
            (b"member/a",           Some(b"{}"),        1, "a member"),
            (key,                   Some(b"2 id 6 "),   0, "a newer form: what it says is not known"),
            (key,                   Some(b"1 id 7 x"),  1, "and again one that is"),
            (key,                   Some(b"1 id y x"),  0, "no offset"),
            (b"position/t",         Some(b"1 id 5 "),   0, "no partition"),
        ];
        for (key, value, count, why) in table {
            take(&mut found, Some(key), value, 0);
            assert_eq!(found.len(), count, "{why}");
        }
    }
}
