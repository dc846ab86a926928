//! Names of places: lanes, topics of a lane, partitions, offsets.

use serde::{Deserialize, Serialize};

/// Partition number `p` of every lane topic, with one owner at a time.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Lane(pub u16);

/// A lane topic, as its index in [`Topics`](super::Topics): intakes first, then tiers, shortest hold first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub u16);

/// One partition of one lane topic: where a record stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    /// Which lane topic.
    pub topic: TopicId,
    /// Which partition of it.
    pub lane: Lane,
}

/// Position of a record in one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset(pub i64);

impl Offset {
    /// What Kafka calls the committed offset is the *next* one to read.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// One hand-over of records and offsets to the producer; numbered upwards within a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);
