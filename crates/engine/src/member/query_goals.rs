//! When all is decided and committed that stood in a lane's intakes when somebody asked.
//!
//! Somebody who looks a timer up is not to be told less than Kafka has acknowledged to him. So his question waits until the member
//! has read up to where the intakes ended, and until the engine has decided what it read, and that is committed.
//!
//! # Invariants
//! 1. A query is answered only when every partition was read to its end, and the engine has said after that, that all before these
//!    ends is decided and committed.
//! 2. While no query waits, nothing is looked at.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{Millis, Offset, Source};

/// Up to where a query wants everything to be decided, by its number.
pub type QueryGoal = (u64, Vec<(Source, Offset)>);

/// How often there is something to look at while a query waits.
pub const LOOK_EVERY: Millis = Millis(5);

/// The queries that wait. `D`: how far it is decided what one asked about, as the engine says it.
#[derive(Debug, Default)]
pub struct QueryGoals<D> {
    looked: Option<Millis>,
    /// Those whose partitions are read so far.
    read: BTreeMap<u64, D>,
}

impl<D: Default> QueryGoals<D> {
    /// Forgets how far reading was: the lanes have gone.
    pub fn clear(&mut self) {
        self.read.clear();
    }

    /// Whether it is time to look again. If it is, the next look is a while later.
    pub fn is_due(&mut self, now: Millis) -> bool {
        let is_due = self.looked.is_none_or(|at| now.saturating_sub(at) >= LOOK_EVERY);
        if is_due {
            self.looked = Some(now);
        }
        is_due
    }

    /// The partitions whose positions are to be known for the next look.
    #[must_use]
    pub fn unread(&self, open: &[QueryGoal]) -> Vec<Source> {
        let unread = open.iter().filter(|(number, _)| !self.read.contains_key(number));
        let sources = unread.flat_map(|(_, ends)| ends.iter().map(|(source, _)| *source));
        sources.collect::<BTreeSet<Source>>().into_iter().collect()
    }

    /// Takes in how far the partitions are read; `has_decided`: what the engine says of a query's ends. Gives the queries that may be
    /// answered, each once.
    pub fn look(
        &mut self,
        open: &[QueryGoal],
        positions: &[(Source, Offset)],
        mut has_decided: impl FnMut(&[(Source, Offset)], &mut D) -> bool,
    ) -> Vec<u64> {
        self.read.retain(|number, _| open.iter().any(|(of, _)| of == number));
        let is_read = |(source, end): &(Source, Offset)| {
            positions.iter().any(|(of, next)| of == source && next >= end)
        };
        let mut reached = Vec::new();
        for (number, ends) in open {
            if !self.read.contains_key(number) && !ends.iter().all(is_read) {
                continue;
            }
            if has_decided(ends, self.read.entry(*number).or_default()) {
                self.read.remove(number);
                reached.push(*number);
            }
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Lane, TopicId};
    use super::*;

    const INTAKE: Source = Source { topic: TopicId(0), lane: Lane(0) };
    const OTHER: Source = Source { topic: TopicId(1), lane: Lane(0) };
    const NONE: [u64; 0] = [];

    fn goal(number: u64, ends: &[(Source, i64)]) -> QueryGoal {
        (number, at(ends))
    }

    fn at(positions: &[(Source, i64)]) -> Vec<(Source, Offset)> {
        positions.iter().map(|(source, next)| (*source, Offset(*next))).collect()
    }

    fn yes(_: &[(Source, Offset)], (): &mut ()) -> bool {
        true
    }

    fn no(_: &[(Source, Offset)], (): &mut ()) -> bool {
        false
    }

    #[test]
    fn a_query_is_answered_once_every_partition_is_read_and_decided() {
        let mut goals = QueryGoals::<()>::default();
        let open = [goal(7, &[(INTAKE, 10), (OTHER, 4)])];
        assert_eq!(goals.unread(&open), [INTAKE, OTHER]);
        assert_eq!(goals.look(&open, &at(&[(INTAKE, 10), (OTHER, 3)]), yes), NONE);
        assert_eq!(goals.look(&open, &at(&[(INTAKE, 10)]), yes), NONE, "one is not known");
        assert_eq!(goals.look(&open, &at(&[(INTAKE, 12), (OTHER, 4)]), no), NONE, "not decided");
        assert_eq!(goals.unread(&open), [], "it is read");
        let mut asked = Vec::new();
        let reached = goals.look(&open, &[], |ends, ()| {
            asked.push(ends.to_vec());
            true
        });
        assert_eq!((reached, asked), (vec![7], vec![open[0].1.clone()]));
    }

    #[test]
    fn a_query_that_nobody_asks_any_more_is_forgotten_and_lanes_that_go_begin_again() {
        let mut goals = QueryGoals::<()>::default();
        let (open, read) = ([goal(1, &[(INTAKE, 1)])], at(&[(INTAKE, 1)]));
        assert_eq!(goals.look(&open, &read, no), NONE);
        assert_eq!(goals.look(&[], &[], yes), NONE);
        assert_eq!(goals.unread(&open), [INTAKE]);
        assert_eq!(goals.look(&open, &read, no), NONE);
        goals.clear();
        assert_eq!(goals.look(&open, &at(&[]), yes), NONE, "another may have read it");
    }

    #[test]
    fn it_is_looked_at_every_few_milliseconds() {
        let mut goals = QueryGoals::<()>::default();
        assert_eq!(
            [0, 4, 5, 9, 10].map(|at| goals.is_due(Millis(at))),
            [true, false, true, false, true]
        );
    }
}
