//! A model of what Kafka promises: logs, transactions, a consumer group and its offsets. No network, no thread.
//!
//! Every call happens at once, and at a time of the world that the caller gives. The caller models delays, lost answers
//! and the order of arrival.
//!
//! # Invariants
//! 1. A `read_committed` reader sees a record once every transaction that was open before it has its marker.
//! 2. A producer of an older epoch, and a group member of an older generation, is refused.
//! 3. Offsets sent in a transaction are unstable until the transaction's marker, and nobody may fetch them so.
//! 4. What is deleted is gone for readers; the ledger for the checkers keeps everything.

mod group;
mod log;
#[cfg(test)]
mod tests;
mod transactions;

use std::collections::BTreeMap;
use std::sync::Arc;

use waterclock::engine::{Offset, Record, UnixMillis};

pub use group::Group;
pub use log::{Entry, Partition, batch_bytes};
use transactions::{Producer, Transaction};
pub use transactions::{TxId, Writer};

/// Milliseconds since the run began: the time that nobody in the world can read.
pub type Time = u64;

/// The broker's clock at the beginning of the world.
pub const EPOCH_MS: u64 = 1_800_000_000_000;

/// What the names of workers in their group begin with.
pub const WORKER: &str = "worker";

/// Kafka's `offset.metadata.max.bytes`.
pub const METADATA_BYTES_MAX: usize = 4_096;

/// A partition of a topic of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub topic: usize,
    pub partition: i32,
}

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A newer producer has the transactional id, or the transaction ran out of time.
    Fenced,
    /// The transaction before is still writing its markers: ask again.
    Concurrent,
    /// The transaction is not in a state for this.
    InvalidState,
    IllegalGeneration,
    UnknownTopic,
    RecordTooLarge,
    MetadataTooLarge,
    OutOfRange,
    /// Offsets wait for their transaction: ask again.
    Unstable,
    /// The broker does not take this record.
    Poison,
    /// Nobody may write to this topic.
    Denied,
}

/// A committed position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub next: i64,
    pub metadata: String,
}

/// One topic.
pub struct Topic {
    pub name: Arc<str>,
    pub partitions: Vec<Partition>,
    /// `max.message.bytes`.
    pub record_bytes_max: u64,
    /// Records with a header of [`POISON`] are refused.
    pub picky: bool,
    /// Everything is refused.
    pub denied: bool,
}

/// The header that makes a picky topic refuse a record.
pub const POISON: &[u8] = b"poison";

/// The cluster.
pub struct Broker {
    /// How far each node's clock is from the world's time plus [`EPOCH_MS`].
    skews: Vec<i64>,
    pub topics: Vec<Topic>,
    by_name: BTreeMap<Arc<str>, usize>,
    producers: BTreeMap<Arc<str>, Producer>,
    transactions: Vec<Transaction>,
    offsets: BTreeMap<Place, Position>,
    moment: u64,
    pub group: Group,
    /// The group of the workers.
    pub workers: Group,
    /// A mutation for the tests: give out offsets that still wait for their transaction's end.
    pub hands_out_unstable: bool,
    /// A mutation for the tests: take offsets from members of any generation.
    pub forgives_generations: bool,
    /// A mutation for the tests: hand out records of transactions that are open or aborted.
    pub reads_uncommitted: bool,
}

impl Broker {
    /// A cluster with one node per skew.
    pub fn new(skews: Vec<i64>) -> Self {
        Self {
            skews,
            topics: Vec::new(),
            by_name: BTreeMap::new(),
            producers: BTreeMap::new(),
            transactions: Vec::new(),
            offsets: BTreeMap::new(),
            moment: 0,
            group: Group::default(),
            workers: Group::default(),
            hands_out_unstable: false,
            forgives_generations: false,
            reads_uncommitted: false,
        }
    }

    pub fn create(&mut self, name: &str, partitions: usize, record_bytes_max: u64) -> usize {
        let (id, name) = (self.topics.len(), Arc::<str>::from(name));
        let nodes = self.skews.len();
        let partitions = (0..partitions).map(|p| Partition::new((id + p) % nodes)).collect();
        self.by_name.insert(Arc::clone(&name), id);
        self.topics.push(Topic { name, partitions, record_bytes_max, picky: false, denied: false });
        id
    }

    /// Adds partitions to a topic, as an administrator may.
    pub fn widen(&mut self, topic: usize, partitions: usize) {
        let nodes = self.skews.len();
        self.topics[topic].partitions.resize_with(partitions, || Partition::new(topic % nodes));
    }

    pub fn topic(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    pub fn partition(&self, place: Place) -> Option<&Partition> {
        self.topics.get(place.topic)?.partitions.get(usize::try_from(place.partition).ok()?)
    }

    fn partition_mut(&mut self, place: Place) -> Option<&mut Partition> {
        self.topics.get_mut(place.topic)?.partitions.get_mut(usize::try_from(place.partition).ok()?)
    }

    /// Somebody changes a record on the disk of a broker.
    pub fn alter(&mut self, place: Place, offset: Offset, record: Record) {
        if let Some(log) = self.partition_mut(place) {
            log.alter(offset, record);
        }
    }

    /// What the leader of a partition would stamp on a record.
    pub fn clock(&self, node: usize, at: Time) -> UnixMillis {
        UnixMillis((EPOCH_MS + at).saturating_add_signed(self.skews[node]))
    }

    /// The clock that is behind all others: nothing may be later than this in the engine's eyes.
    pub fn slowest_clock(&self, at: Time) -> UnixMillis {
        let skew = self.skews.iter().copied().min().unwrap_or_default();
        UnixMillis((EPOCH_MS + at).saturating_add_signed(skew))
    }

    pub fn nodes(&self) -> usize {
        self.skews.len()
    }

    pub fn leader(&self, place: Place) -> usize {
        self.partition(place).map_or(0, |partition| partition.leader)
    }

    /// Steps a node's clock.
    pub fn step_clock(&mut self, node: usize, by: i64) {
        self.skews[node] += by;
    }

    /// Another node becomes leader; append times of a partition may step back by that.
    pub fn move_leader(&mut self, place: Place, node: usize) {
        if let Some(partition) = self.partition_mut(place) {
            partition.leader = node;
        }
    }

    /// Appends one record.
    pub fn produce(
        &mut self,
        at: Time,
        writer: Option<&Writer>,
        place: Place,
        record: Record,
    ) -> Result<Offset, Refusal> {
        let topic = self.topics.get(place.topic).ok_or(Refusal::UnknownTopic)?;
        let leader = self.partition(place).ok_or(Refusal::UnknownTopic)?.leader;
        if batch_bytes(&record) > topic.record_bytes_max {
            return Err(Refusal::RecordTooLarge);
        }
        if topic.denied {
            return Err(Refusal::Denied);
        }
        if topic.picky && record.headers().any(|(name, _)| name == POISON) {
            return Err(Refusal::Poison);
        }
        let tx = match writer {
            Some(writer) => Some(self.enlist(at, writer, place)?),
            None => None,
        };
        let appended = self.clock(leader, at);
        let moment = self.next_moment();
        let partition = self.partition_mut(place).ok_or(Refusal::UnknownTopic)?;
        Ok(partition.append(Entry { appended, tx, record: Some(record), moment, at, node: leader }))
    }

    /// The next record from `from` on that a `read_committed` consumer may see.
    pub fn fetch(&self, place: Place, from: Offset) -> Result<Option<(Offset, &Entry)>, Refusal> {
        let partition = self.partition(place).ok_or(Refusal::UnknownTopic)?;
        if self.reads_uncommitted {
            Ok(partition.next_any(from))
        } else {
            partition.next_readable(from)
        }
    }

    pub fn next_moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// Deletes what stands before `until`.
    pub fn delete_records(&mut self, place: Place, until: Offset) {
        if let Some(partition) = self.partition_mut(place) {
            partition.delete_before(until);
        }
    }

    /// Retention: deletes what was appended more than `keep` ago. The offsets that went, if any.
    pub fn retain(&mut self, at: Time, place: Place, keep: Time) -> Option<(Offset, Offset)> {
        let now = self.clock(self.leader(place), at);
        self.partition_mut(place)?.retain_from(UnixMillis(now.0.saturating_sub(keep)))
    }

    /// Compacts a partition; `keep`: how long tombstones stay.
    pub fn compact(&mut self, at: Time, place: Place, keep: Time) -> u64 {
        let now = self.clock(self.leader(place), at);
        let gone = UnixMillis(now.0.saturating_sub(keep));
        self.partition_mut(place).map_or(0, |partition| partition.compact(gone))
    }

    /// The group was empty for longer than offsets are kept: those that `which` names are gone.
    pub fn expire_offsets(&mut self, mut which: impl FnMut(Place) -> bool) -> usize {
        let before = self.offsets.len();
        self.offsets.retain(|place, _| !which(*place));
        before - self.offsets.len()
    }

    /// Commits offsets without a transaction.
    pub fn commit(
        &mut self,
        member: &str,
        generation: u32,
        positions: &[(Place, Position)],
    ) -> Result<(), Refusal> {
        self.check_commit(member, generation, positions)?;
        self.offsets.extend(positions.iter().cloned());
        Ok(())
    }

    fn check_commit(
        &self,
        member: &str,
        generation: u32,
        positions: &[(Place, Position)],
    ) -> Result<(), Refusal> {
        let group = if member.starts_with(WORKER) { &self.workers } else { &self.group };
        if !self.forgives_generations && !group.is_current(member, generation) {
            return Err(Refusal::IllegalGeneration);
        }
        if positions.iter().any(|(_, p)| p.metadata.len() > METADATA_BYTES_MAX) {
            return Err(Refusal::MetadataTooLarge);
        }
        Ok(())
    }

    /// The committed position of a partition, whatever is on its way.
    pub fn stable(&self, place: Place) -> Option<&Position> {
        self.offsets.get(&place)
    }

    /// The furthest position that is decided to be committed, though its marker is still on its way.
    pub fn last_decided(&self, place: Place) -> Option<Position> {
        self.decided(place).max_by_key(|position| position.next).cloned()
    }

    /// The committed positions of these partitions, once none of them waits for a transaction.
    pub fn committed(&self, places: &[Place]) -> Result<Vec<Option<Position>>, Refusal> {
        if !self.hands_out_unstable && self.waits_for_transaction(places) {
            return Err(Refusal::Unstable);
        }
        Ok(places.iter().map(|place| self.offsets.get(place).cloned()).collect())
    }
}
