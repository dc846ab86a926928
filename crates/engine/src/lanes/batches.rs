//! Batches on their way to Kafka.
//!
//! # Invariants
//! 1. Batches have ascending numbers, also over take-overs. They come back in this order; an answer to any other batch is
//!    of an assignment that is gone, and changes nothing.
//! 2. Deliveries that may have got through are remembered ([`handed`](super::handed)) until their batch has come back, and
//!    after it: also over take-overs.
//! 3. Progress without a record to produce is committed within [`IDLE_COMMIT`].

use std::collections::VecDeque;

use super::super::messages::{Batch, Carried, Commit, Produce};
use super::builder::{BatchBuilder, Filled};
use super::figures::Figures;
use super::handed::{Handed, Mark, There};
use super::margin::Margin;
use super::rank::Rank;
use super::{BatchId, Lane, Millis, UnixMillis};

/// Progress without a record to produce (what was done before a restart, gaps) is committed this often.
const IDLE_COMMIT: Millis = Millis(1_000);
/// What a delivery may take between firing and its append, as long as none took longer: a record that expires before that is
/// not delivered.
const EXPIRY_MARGIN: Millis = Millis(50);

/// A batch in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    id: BatchId,
    /// Bytes of the budget that it gives back.
    pub(super) bytes: usize,
    /// What becomes of each send, in their order.
    pub(super) carried: Vec<Carried>,
    /// The hops in it, where order matters: their lanes, and when they are due.
    pub(super) hops: Vec<(Lane, Rank)>,
    /// Deliveries in it of records that expire, where nothing can be aborted.
    marks: Vec<Mark>,
    /// It is all of one group of suspects.
    is_test: bool,
    /// When the first of the deliveries in it was due.
    due: Option<UnixMillis>,
}

/// The batches in flight, and what they leave behind.
#[derive(Debug)]
pub(super) struct Batches {
    in_flight: VecDeque<InFlight>,
    next: BatchId,
    /// When the last batch came back, and when commits were last looked through.
    last_batch: UnixMillis,
    last_commit: UnixMillis,
    /// A window changed without a batch.
    is_dirty: bool,
    /// Deliveries of records that expire, where nothing can be aborted.
    handed: Handed,
    /// What deliveries take to be appended.
    expiry_margin: Margin,
}

impl Batches {
    pub(super) fn new() -> Self {
        Self {
            in_flight: VecDeque::new(),
            next: BatchId(0),
            last_batch: UnixMillis(0),
            last_commit: UnixMillis(0),
            is_dirty: false,
            handed: Handed::default(),
            expiry_margin: Margin::new(EXPIRY_MARGIN),
        }
    }

    /// The lanes are gone: what is in flight comes back to nobody.
    pub(super) fn reset(&mut self) {
        let (next, handed) = (self.next, std::mem::take(&mut self.handed));
        *self = Self { next, handed, expiry_margin: self.expiry_margin, ..Self::new() };
    }

    // What comes back.

    /// A batch is committed; `None`: it is of an assignment that is gone.
    pub(super) fn landed(&mut self, now: UnixMillis, id: BatchId) -> Option<InFlight> {
        let batch = self.in_flight.pop_front_if(|first| first.id == id)?;
        batch.marks.iter().for_each(|mark| self.handed.acknowledged(*mark));
        self.last_batch = now;
        Some(batch)
    }

    /// What a batch in flight carries, and whether no other is in flight.
    pub(super) fn find(&self, id: BatchId) -> Option<(&[Carried], bool)> {
        let batch = self.in_flight.iter().find(|batch| batch.id == id)?;
        Some((&batch.carried, self.in_flight.len() == 1))
    }

    /// A delivery was appended after its record had expired.
    pub(super) fn expired(&mut self, now: UnixMillis) {
        self.expiry_margin.widen(now);
    }

    // What leaves.

    /// The batch of what was collected, with these commits; `None`: there is nothing in it.
    pub(super) fn seal(
        &mut self,
        now: UnixMillis,
        builder: BatchBuilder,
        commits: Vec<Commit>,
    ) -> Option<Batch> {
        self.is_dirty = false;
        self.last_commit = now;
        let Filled { sends, answers, held, carried, hops, marks, is_test } = builder.finish();
        if sends.is_empty() && answers.is_empty() && commits.is_empty() {
            return None;
        }
        let id = self.next;
        self.next = BatchId(id.0 + 1);
        let due = sends.iter().filter_map(Produce::delivered_at).min();
        self.in_flight.push_back(InFlight { id, bytes: held, carried, hops, marks, is_test, due });
        Some(Batch { id, sends, commits, answers })
    }

    /// A delivery goes into a batch that cannot be aborted.
    pub(super) fn hand_over(&mut self, mark: Mark) {
        self.handed.insert(mark);
    }

    /// Whether a copy of a record may be in its target; `None`: it was not handed over.
    pub(super) fn is_there(&self, mark: Mark) -> Option<There> {
        self.handed.is_there(mark)
    }

    /// How long before its end a record that expires must leave.
    pub(super) fn expiry_margin(&self, now: UnixMillis) -> Millis {
        self.expiry_margin.at(now)
    }

    /// A window changed without a batch.
    pub(super) fn touch(&mut self) {
        self.is_dirty = true;
    }

    /// When commits without a record are to leave, if there are any.
    pub(super) fn idle_commit_at(&self) -> Option<UnixMillis> {
        self.is_dirty.then(|| self.last_commit + IDLE_COMMIT)
    }

    // What is on its way.

    /// How many batches are in flight.
    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether a group of suspects is being tested.
    pub(super) fn is_testing(&self) -> bool {
        self.in_flight.iter().any(|batch| batch.is_test)
    }

    /// When the next batch may be closed, if the last one came back a moment ago and none is in flight.
    pub(super) fn opens_at(&self, now: UnixMillis, gap: Millis) -> Option<UnixMillis> {
        let open_at = self.last_batch + gap;
        let waits = self.in_flight.is_empty() && self.last_batch <= now && now < open_at;
        waits.then_some(open_at)
    }

    /// The batch that is sealed next.
    pub(super) fn next(&self) -> BatchId {
        self.next
    }

    /// Whether all batches before this one have come back.
    pub(super) fn have_landed(&self, before: BatchId) -> bool {
        self.in_flight.front().is_none_or(|first| first.id >= before)
    }

    /// The hops in flight, where order matters.
    pub(super) fn hops(&self) -> impl Iterator<Item = &(Lane, Rank)> {
        self.in_flight.iter().flat_map(|batch| &batch.hops)
    }

    #[cfg(test)]
    pub(super) fn first(&self) -> Option<BatchId> {
        self.in_flight.front().map(|first| first.id)
    }

    /// Bytes in flight.
    pub(super) fn bytes(&self) -> usize {
        self.in_flight.iter().map(|batch| batch.bytes).sum()
    }

    /// Counts for the metrics.
    pub(super) fn count(&self, figures: &mut Figures) {
        figures.due(self.in_flight.iter().filter_map(|batch| batch.due).min());
    }
}
