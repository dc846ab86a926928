//! A batch that is being filled.
//!
//! # Invariants
//! 1. Each send has its place in `carried`: an error of Kafka finds the record by it.
//! 2. It takes more only while it has room. So it is over its bounds by no more than what was added last.

use super::super::messages::{Answer, Carried, Destination, Produce};
use super::super::setup::{Arrival, Setup};
use super::super::state::SubmissionOrder;
use super::handed::Mark;
use super::rank::Rank;
use super::writes::PendingWrite;
use super::{Lane, Offset, Source, TopicId};

/// What a batch is made of, besides its commits.
#[derive(Debug, Default)]
pub(super) struct Filled {
    pub(super) sends: Vec<Produce>,
    pub(super) answers: Vec<Answer>,
    /// What becomes of each send, in their order.
    pub(super) carried: Vec<Carried>,
    /// The hops in it, where order matters: their lanes, and when they are due.
    pub(super) hops: Vec<(Lane, Rank)>,
    /// Deliveries in it of records that expire, where nothing can be aborted.
    pub(super) marks: Vec<Mark>,
    /// It is all of one group of suspects.
    pub(super) is_test: bool,
    /// Bytes of the budget that it gives back.
    pub(super) held: usize,
}

/// A batch that is being filled.
#[derive(Debug)]
pub(super) struct BatchBuilder {
    filled: Filled,
    done: Vec<(Source, Offset)>,
    bytes: usize,
    records_left: usize,
    bytes_max: usize,
    /// The first topic that hops go to, where order matters.
    tiers_from: Option<TopicId>,
}

impl BatchBuilder {
    pub(super) fn new(setup: &Setup, is_test: bool) -> Self {
        let limits = &setup.limits;
        let strict = limits.arrival == Arrival::Strict;
        Self {
            filled: Filled { is_test, ..Filled::default() },
            done: Vec::new(),
            tiers_from: strict.then(|| setup.topics.of_tier(0)),
            bytes: 0,
            records_left: limits.batch_records_max,
            bytes_max: limits.batch_bytes_max,
        }
    }

    pub(super) fn room(&self) -> bool {
        self.records_left > 0 && self.bytes < self.bytes_max
    }

    /// How many records it takes yet.
    pub(super) fn records_left(&self) -> usize {
        self.records_left
    }

    /// Bytes of what it sends.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the budget that it gives back.
    pub(super) fn held(&self) -> usize {
        self.filled.held
    }

    /// Offsets that finish with it.
    pub(super) fn done(&self) -> &[(Source, Offset)] {
        &self.done
    }

    /// Whether it sends nothing and answers nothing.
    pub(super) fn is_silent(&self) -> bool {
        self.filled.sends.is_empty() && self.filled.answers.is_empty()
    }

    /// The lane that says or answers something first. Shards are submitted to lanes that may be another member's, and news of them go
    /// there.
    pub(super) fn lane(&self) -> Option<Lane> {
        let is_said = |send: &&Produce| {
            matches!(send.to, Destination::Timers | Destination::Dead | Destination::Lane(_))
        };
        match self.filled.sends.iter().find(is_said) {
            Some(send) => Some(Lane(u16::try_from(send.partition?).ok()?)),
            None => Some(self.filled.answers.first()?.source.lane),
        }
    }

    /// Notes a hop, where order matters.
    pub(super) fn note(&mut self, lane: Lane, send: &Produce, order: SubmissionOrder) {
        if let (Destination::Lane(topic), Some(first)) = (&send.to, self.tiers_from)
            && *topic >= first
        {
            self.filled.hops.push((lane, (send.due, order)));
        }
    }

    /// Notes a delivery that cannot be aborted.
    pub(super) fn mark(&mut self, mark: Mark) {
        self.filled.marks.push(mark);
    }

    /// Adds a record, and the offset that is done with it.
    pub(super) fn push(&mut self, done: Option<(Source, Offset)>, send: Produce, held: usize) {
        self.bytes += send.body().size();
        self.filled.held += held;
        self.records_left = self.records_left.saturating_sub(1);
        // A timer change finishes no offset by itself: no record is to blame for it.
        let (source, offset) = done.unwrap_or_default();
        self.done.extend(done);
        self.filled.carried.push(Carried { source, offset, to: send.to.clone() });
        self.filled.sends.push(send);
    }

    /// Adds a second record that is made of one that was added.
    pub(super) fn push_beside(&mut self, (source, offset): (Source, Offset), send: Produce) {
        self.bytes += send.body().size();
        self.records_left = self.records_left.saturating_sub(1);
        self.filled.carried.push(Carried { source, offset, to: send.to.clone() });
        self.filled.sends.push(send);
    }

    /// Adds a write.
    pub(super) fn take(&mut self, write: PendingWrite) {
        let PendingWrite { done, send, held, answer, .. } = write;
        self.filled.answers.extend(answer);
        match send {
            Some(send) => self.push(done, send, held),
            None => {
                self.filled.held += held;
                self.done.extend(done);
            }
        }
    }

    /// What was collected.
    pub(super) fn finish(self) -> Filled {
        self.filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allow::Allow;
    use crate::ladder::Ladder;
    use crate::messages::{ChangeReason, HeaderRewrite};
    use crate::setup::{Intake, Limits, Topics};
    use crate::state::StateKey;
    use crate::{Millis, Record, UnixMillis};

    #[test]
    fn a_batch_that_begins_with_what_goes_to_other_lanes_is_of_the_lane_that_says_so() {
        let ladder = Ladder::new(&[Millis(1_000)], &[], Millis(800)).expect("one");
        let allow = Allow::new("wc", None).expect("none");
        let topics = Topics::new("wc", vec![Intake::new("", None, None, allow)], ladder);
        let (key, limits) = (StateKey::new([7; 32]), Limits::default());
        let setup = Setup { lanes: 6, topics, key, limits };
        let elsewhere = |to: Destination| Produce {
            to,
            partition: Some(5),
            record: Record::empty(),
            rewrite: HeaderRewrite::Whole,
            due: UnixMillis(0),
            expires: None,
        };
        let mut builder = BatchBuilder::new(&setup, false);
        for to in [Destination::Submitted, Destination::Results] {
            let send = Some(elsewhere(to));
            builder.take(PendingWrite { send, ..PendingWrite::default() });
        }
        assert_eq!(builder.lane(), None);
        let change = PendingWrite::timer_change(Lane(2), Record::empty(), ChangeReason::Reported);
        builder.take(change);
        assert_eq!(builder.lane(), Some(Lane(2)), "its position is what Kafka checks the owner by");
    }
}
