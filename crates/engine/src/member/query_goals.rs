//! When all is decided and committed that stood in a lane's intakes when somebody asked.
//!
//! Somebody who looks a timer up is not to be told less than Kafka has acknowledged to him. So his question waits until the member
//! has read up to where the intakes ended, and until what it read is in a batch that is committed.
//!
//! # Invariants
//! 1. A query is answered only when every partition was read to its end, and what was read until then is committed: either nothing
//!    is left to be done, or every batch was sent later, by the time that a record may take to get into one.
//! 2. While no query waits, nothing is looked at.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{Millis, Offset, Source};

/// A busy member has always something under way. What was read is in a batch after this long and the time that hops are
/// collected for.
const IN_A_BATCH: Millis = Millis(500);

/// Up to where a query wants everything to be decided, by its number.
pub type QueryGoal = (u64, Vec<(Source, Offset)>);

/// The queries that wait.
#[derive(Debug)]
pub struct QueryGoals {
    collected: Millis,
    looked: Option<Millis>,
    /// Those whose partitions are read so far: since when.
    read: BTreeMap<u64, Millis>,
}

impl QueryGoals {
    /// How often there is something to look at while a query waits.
    pub const EVERY: Millis = Millis(5);

    /// None yet. Hops are collected for so long.
    #[must_use]
    pub fn new(hop_linger: Millis) -> Self {
        Self { collected: IN_A_BATCH + hop_linger, looked: None, read: BTreeMap::new() }
    }

    /// Forgets how far reading was: the lanes have gone.
    pub fn clear(&mut self) {
        self.read.clear();
    }

    /// Whether it is time to look again. If it is, the next look is a while later.
    pub fn is_due(&mut self, now: Millis) -> bool {
        let is_due = self.looked.is_none_or(|at| now.saturating_sub(at) >= Self::EVERY);
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

    /// Takes in how far the partitions are read. `idle`: everything that was read is decided and committed. `first_sent`: when the
    /// earliest batch on its way was sent. Gives the queries that may be answered, each once.
    pub fn look(
        &mut self,
        now: Millis,
        open: &[QueryGoal],
        positions: &[(Source, Offset)],
        (idle, first_sent): (bool, Option<Millis>),
    ) -> Vec<u64> {
        self.read.retain(|number, _| open.iter().any(|(of, _)| of == number));
        let is_read = |(source, end): &(Source, Offset)| {
            positions.iter().any(|(of, next)| of == source && next >= end)
        };
        for (number, ends) in open {
            if !self.read.contains_key(number) && ends.iter().all(is_read) {
                self.read.insert(*number, now);
            }
        }
        // What stands behind a batch that takes so long may not be in one yet.
        if first_sent.is_some_and(|sent| now.saturating_sub(sent) >= self.collected) {
            self.read.values_mut().for_each(|since| *since = now);
        }
        let is_committed = |since: Millis| {
            let by = since + self.collected;
            idle || now >= by && first_sent.is_none_or(|sent| sent >= by)
        };
        let reached: Vec<u64> = self
            .read
            .iter()
            .filter(|(_, since)| is_committed(**since))
            .map(|(of, _)| *of)
            .collect();
        self.read.retain(|number, _| !reached.contains(number));
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Lane, TopicId};
    use super::*;

    const INTAKE: Source = Source { topic: TopicId(0), lane: Lane(0) };
    const OTHER: Source = Source { topic: TopicId(1), lane: Lane(0) };
    const BUSY: (bool, Option<Millis>) = (false, None);
    const IDLE: (bool, Option<Millis>) = (true, None);
    const NONE: [u64; 0] = [];

    fn goal(number: u64, ends: &[(Source, i64)]) -> QueryGoal {
        (number, ends.iter().map(|(source, end)| (*source, Offset(*end))).collect())
    }

    fn at(positions: &[(Source, i64)]) -> Vec<(Source, Offset)> {
        positions.iter().map(|(source, next)| (*source, Offset(*next))).collect()
    }

    #[test]
    fn an_idle_member_answers_as_soon_as_every_partition_is_read() {
        let mut goals = QueryGoals::new(Millis(250));
        let open = [goal(7, &[(INTAKE, 10), (OTHER, 4)])];
        assert_eq!(goals.unread(&open), [INTAKE, OTHER]);
        assert_eq!(goals.look(Millis(1), &open, &at(&[(INTAKE, 10), (OTHER, 3)]), IDLE), NONE);
        assert_eq!(
            goals.look(Millis(2), &open, &at(&[(INTAKE, 10)]), IDLE),
            NONE,
            "one is not known"
        );
        assert_eq!(goals.look(Millis(3), &open, &at(&[(INTAKE, 12), (OTHER, 4)]), IDLE), [7]);
    }

    #[test]
    fn a_busy_member_answers_when_all_that_was_read_is_in_a_batch_that_is_committed() {
        let mut goals = QueryGoals::new(Millis(250));
        let open = [goal(1, &[(INTAKE, 10)])];
        let read = at(&[(INTAKE, 10)]);
        assert_eq!(goals.look(Millis(1_000), &open, &read, (false, Some(Millis(990)))), NONE);
        assert_eq!(goals.unread(&open), [], "it is read");
        // It was sent before the last record that was read can have been in one.
        assert_eq!(goals.look(Millis(1_700), &open, &read, (false, Some(Millis(1_600)))), NONE);
        assert_eq!(
            goals.look(Millis(1_749), &open, &read, BUSY),
            NONE,
            "it may be collected still"
        );
        assert_eq!(goals.look(Millis(1_760), &open, &read, (false, Some(Millis(1_749)))), NONE);
        assert_eq!(goals.look(Millis(1_761), &open, &read, (false, Some(Millis(1_750)))), [1]);
        assert_eq!(goals.look(Millis(1_762), &open, &[], IDLE), NONE, "each once");
    }

    #[test]
    fn behind_a_batch_that_takes_long_the_time_begins_again() {
        let mut goals = QueryGoals::new(Millis(0));
        let (open, read) = ([goal(1, &[(INTAKE, 1)])], at(&[(INTAKE, 1)]));
        assert_eq!(goals.look(Millis(100), &open, &read, (false, Some(Millis(100)))), NONE);
        assert_eq!(
            goals.look(Millis(600), &open, &read, (false, Some(Millis(100)))),
            NONE,
            "500 ms"
        );
        assert_eq!(goals.look(Millis(700), &open, &read, BUSY), NONE, "it began again at 600");
        assert_eq!(goals.look(Millis(1_100), &open, &read, BUSY), [1]);
    }

    #[test]
    fn a_query_that_nobody_asks_any_more_is_forgotten_and_lanes_that_go_begin_again() {
        let mut goals = QueryGoals::new(Millis(0));
        let (open, read) = ([goal(1, &[(INTAKE, 1)])], at(&[(INTAKE, 1)]));
        assert_eq!(goals.look(Millis(0), &open, &read, BUSY), NONE);
        assert_eq!(goals.look(Millis(600), &[], &[], BUSY), NONE);
        assert_eq!(goals.unread(&open), [INTAKE]);
        assert_eq!(goals.look(Millis(700), &open, &read, BUSY), NONE);
        goals.clear();
        assert_eq!(
            goals.look(Millis(1_300), &open, &at(&[]), BUSY),
            NONE,
            "another may have read it"
        );
    }

    #[test]
    fn it_is_looked_at_every_few_milliseconds() {
        let mut goals = QueryGoals::new(Millis(0));
        assert_eq!(
            [0, 4, 5, 9, 10].map(|at| goals.is_due(Millis(at))),
            [true, false, true, false, true]
        );
    }
}
