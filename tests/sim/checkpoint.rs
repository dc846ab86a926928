//! The positions that stand in `<ns>.meta`, too: written with what they are the positions of, and read where the group has
//! forgotten its own.
//!
//! In `exactly_once` they are part of the transaction; in `at_least_once` they are written behind the offsets.

use std::sync::Arc;

use waterclock::engine::Record;
use waterclock::engine::member::Timing;

use crate::broker::{Place, Position, Refusal};
use crate::mutation::Mutation;
use crate::network::Outgoing;
use crate::world::World;

pub const META: &str = "waterclock.meta";

fn key(place: Place) -> String {
    format!("position/{}/{}", place.topic, place.partition)
}

fn read(record: &Record) -> Option<Position> {
    let text = std::str::from_utf8(record.value()?).ok()?;
    let (next, metadata) = text.split_once(' ')?;
    Some(Position { next: next.parse().ok()?, metadata: metadata.to_owned() })
}

impl World {
    /// Where the checkpoints of a lane are written: by the lane alone, so that one lane's are in order.
    pub fn meta_place(&self, lane: i32) -> Place {
        let count = self.broker.topics[self.meta_topic].partitions.len() as i32;
        Place { topic: self.meta_topic, partition: lane % count }
    }

    /// What is written of these positions.
    pub fn checkpoints_of(&mut self, positions: &[(Place, Position)]) -> Vec<Outgoing> {
        if self.mutation == Some(Mutation::StaleCheckpoint) && self.chance.percent(50) {
            return Vec::new();
        }
        if self.mutation == Some(Mutation::NoCheckpoints) {
            return Vec::new();
        }
        let one = |(place, position): &(Place, Position)| {
            let value = format!("{} {}", position.next, position.metadata);
            let record =
                crate::workload::record(Some(key(*place).as_bytes()), Some(value.as_bytes()), &[]);
            let partition = self.meta_place(place.partition).partition;
            Outgoing { topic: Arc::from(META), partition, record, timing: Timing::Any }
        };
        positions.iter().map(one).collect()
    }

    /// `at_least_once`: by themselves, behind the offsets.
    pub fn write_checkpoints(&mut self, positions: &[(Place, Position)]) {
        for sent in self.checkpoints_of(positions) {
            let place = Place { topic: self.meta_topic, partition: sent.partition };
            if let Err(refusal) = self.broker.produce(self.at, None, place, sent.record) {
                self.breach("model", format!("a checkpoint is refused: {refusal:?}"));
            }
        }
    }

    /// The last checkpoint of each place that has no position, once nothing is open before the end of its partition.
    pub fn checkpoints(
        &mut self,
        places: &[Place],
        committed: Vec<Option<Position>>,
    ) -> Result<Vec<Option<Position>>, Refusal> {
        let mut found = Vec::with_capacity(places.len());
        for (place, position) in places.iter().zip(committed) {
            if position.is_some() {
                found.push(position);
                continue;
            }
            let Some(log) = self.broker.partition(self.meta_place(place.partition)) else {
                return Err(Refusal::UnknownTopic);
            };
            if log.last_stable() < log.end() {
                return Err(Refusal::Unstable);
            }
            let last = self.checkpoint(*place);
            if last.is_some() {
                self.count("checkpoints taken");
            }
            found.push(match self.mutation {
                Some(Mutation::StartsFromBeginning | Mutation::StartsFromEnd) => None,
                _ => last,
            });
        }
        Ok(found)
    }

    fn checkpoint(&self, place: Place) -> Option<Position> {
        let log = self.broker.partition(self.meta_place(place.partition))?;
        let of = |record: &Record| record.key() == Some(key(place).as_bytes());
        let all = log.ledger().filter_map(|(_, entry)| entry.record.as_ref());
        all.filter(|record| of(record)).last().and_then(read)
    }

    /// Where a partition stands by all that is written: the group's offset, else the checkpoint.
    pub fn position(&self, place: Place) -> Option<Position> {
        let committed = self.broker.stable(place).cloned();
        committed.or_else(|| self.checkpoint(place))
    }

    /// As [`position`](Self::position), with decided commits that are yet to be seen.
    pub fn decided_position(&self, place: Place) -> Option<Position> {
        self.broker.last_decided(place).or_else(|| self.position(place))
    }

    /// The group was empty for as long as its offsets are kept.
    pub fn expire_offsets(&mut self, whole: bool) {
        if !self.broker.group.is_empty() {
            return;
        }
        let Self { broker, chance, .. } = self;
        let gone = broker.expire_offsets(|_| whole || chance.percent(50));
        self.note(|| format!("{gone} committed offsets expire"));
        if gone > 0 {
            self.count("offsets expired");
        }
    }
}
