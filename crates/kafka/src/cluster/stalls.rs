//! Finds partitions that a consumer does not fetch although there is more of them. Pure.
//!
//! librdkafka may have forgotten its brokers ([`outages`](crate::client::outages)) while the group's coordinator is heard by a
//! connection of its own. The member keeps its lanes then and reads nothing, and no error says so.
//!
//! # Invariants
//! 1. A partition that is paused is not fetched on purpose. It never counts.
//! 2. What was appended after the last count has time until the next one.
//! 3. A partition of which records are read is fetched, however far behind it is.

use std::collections::BTreeMap;

use crate::client::raw::ask::EndOf;
use waterclock_engine::Read;

/// How far a lane thread has read a partition, and what its consumer knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fetched {
    pub(crate) read: Read,
    /// Nothing more of it is to be fetched for now.
    pub(crate) is_paused: bool,
    /// Where the log ended when a fetch of it was last answered; `None`: none was.
    pub(crate) end: Option<i64>,
}

/// A partition that is not fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stalled {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    /// One past the last offset read.
    pub(crate) offset: i64,
    /// Where its log ended at the count before.
    pub(crate) end: i64,
}

/// What the last count saw of the partitions that were to be fetched: how far they were read, and where they ended then.
#[derive(Debug, Default)]
pub(crate) struct Stalls(BTreeMap<(String, i32), (i64, i64)>);

impl Stalls {
    /// Takes in one count. `fetched` was asked before `ends`, and has the same order.
    pub(crate) fn look(&mut self, fetched: &[Fetched], ends: &[EndOf]) -> Vec<Stalled> {
        let before = std::mem::take(&mut self.0);
        let mut stalled = Vec::new();
        for (fetched, (topic, partition, end)) in fetched.iter().zip(ends) {
            let at = (topic.clone(), *partition);
            let upto = fetched.read.upto.0;
            if fetched.is_paused {
                continue;
            }
            let ended = before.get(&at).filter(|(read, _)| *read == upto).map(|(_, end)| *end);
            if let Some(end) = ended.filter(|end| fetched.end.unwrap_or(upto) < *end) {
                let (topic, partition) = at.clone();
                stalled.push(Stalled { topic, partition, offset: upto, end });
            }
            // Of one whose leader did not answer the end before stays.
            if let Some(end) = end.ok().or(ended) {
                self.0.insert(at, (upto, end));
            }
        }
        stalled
    }
}

#[cfg(test)]
mod tests {
    use waterclock_engine::{Lane, Offset, Source, TopicId};

    use super::*;
    use crate::client::errors;

    fn fetched(upto: i64, end: Option<i64>) -> Fetched {
        let source = Source { topic: TopicId(0), lane: Lane(3) };
        let read = Read { source, upto: Offset(upto), pending: 0 };
        Fetched { read, is_paused: false, end }
    }

    fn ends_at(end: i64) -> [EndOf; 1] {
        [("ns.intake".to_owned(), 3, Ok(end))]
    }

    #[test]
    fn a_partition_that_grew_and_was_not_fetched_until_the_next_count_is_stalled() {
        let mut stalls = Stalls::default();
        assert_eq!(stalls.look(&[fetched(10, Some(10))], &ends_at(10)), []);
        let grown = stalls.look(&[fetched(10, Some(10))], &ends_at(12));
        assert_eq!(grown, [], "it grew just now");
        let stalled = Stalled { topic: "ns.intake".to_owned(), partition: 3, offset: 10, end: 12 };
        let found = stalls.look(&[fetched(10, Some(10))], &ends_at(13));
        assert_eq!(found, [stalled]);
        let away = [("ns.intake".to_owned(), 3, Err(errors::NO_ANSWER))];
        assert_eq!(stalls.look(&[fetched(10, Some(10))], &away).len(), 1);
        assert_eq!(stalls.look(&[fetched(10, Some(10))], &away).len(), 1, "its end is still known");
        assert_eq!(stalls.look(&[fetched(10, Some(13))], &ends_at(13)), [], "it is fetched again");
    }

    #[test]
    fn a_partition_of_which_no_fetch_was_ever_answered_is_stalled_if_there_is_something_to_read() {
        let mut stalls = Stalls::default();
        for _ in 0..3 {
            assert_eq!(stalls.look(&[fetched(10, None)], &ends_at(10)), []);
        }
        stalls.look(&[fetched(10, None)], &ends_at(11));
        assert_eq!(stalls.look(&[fetched(10, None)], &ends_at(11)).len(), 1);
    }

    #[test]
    fn markers_paused_partitions_and_long_queues_are_no_stall() {
        let mut stalls = Stalls::default();
        for at in 0..3 {
            let marker = stalls.look(&[fetched(10, Some(11))], &ends_at(11));
            assert_eq!(marker, [], "only a transaction's marker stands behind it");
            let paused = Fetched { is_paused: true, ..fetched(10, Some(11)) };
            assert_eq!(stalls.look(&[paused], &ends_at(20 + at)), []);
        }
        stalls = Stalls::default();
        for upto in 10..20 {
            let behind = stalls.look(&[fetched(upto, Some(50))], &ends_at(1_000));
            assert_eq!(behind, [], "it is read, so it is fetched when there is room");
        }
    }
}
