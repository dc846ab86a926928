//! The topics that a group works on.

use std::sync::Arc;

use waterclock_engine::{Lane, Source, TopicId};

/// The topics that a group works on. Partitions of one number belong together: who owns that of the first topic works on
/// those of the others, too.
#[derive(Clone, Debug)]
pub(crate) struct GroupTopics {
    /// Their names, by [`TopicId`].
    pub(crate) names: Vec<Arc<str>>,
    /// So many of them are intakes, which come first.
    pub(crate) intakes: usize,
    /// So many partitions of each count.
    pub(crate) count: u16,
    /// What is decided is written here, too, in a partition of the same number.
    pub(crate) changelog: Option<Arc<str>>,
    /// Positions are kept here, too, for ever.
    pub(crate) checkpoints: Option<Arc<str>>,
    /// Positions of this topic are read by nobody: a member commits one to show that the group still has it ([`Signs`]). `None`:
    /// nobody asks for signs.
    ///
    /// [`Signs`]: super::sign::Signs
    pub(crate) sign: Option<Arc<str>>,
    /// The id that the first topic had at the beginning, if it was written down. With another id it was recreated.
    pub(crate) first_id: Option<String>,
}

impl GroupTopics {
    /// A partition of theirs, by its topic's name.
    pub(crate) fn source(&self, topic: &str, partition: i32) -> Option<Source> {
        let topic = self.names.iter().position(|name| **name == *topic)?;
        let lane = Lane(u16::try_from(partition).ok()?);
        Some(Source { topic: TopicId(topic as u16), lane })
    }

    /// The name of a partition's topic, and its number.
    pub(crate) fn place(&self, source: Source) -> (&str, i32) {
        (self.name(source), i32::from(source.lane.0))
    }

    /// The name of a partition's topic.
    pub(crate) fn name(&self, source: Source) -> &Arc<str> {
        &self.names[usize::from(source.topic.0)]
    }

    /// Whether a partition is one of an intake.
    pub(crate) fn is_intake(&self, source: Source) -> bool {
        usize::from(source.topic.0) < self.intakes
    }
}
