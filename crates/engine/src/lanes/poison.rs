//! Records and targets that Kafka may have refused: what is held of them, and when they are tried by themselves.
//! [`Suspects`] finds out which of them it refuses.
//!
//! # Invariants
//! 1. Suspects leave in batches of their own, one at a time, with no other batch in flight. They take turns with the
//!    others, which so are held up by one failure and never by all of them.
//! 2. In strict order the group is tested first whose record is due first, and no record of it leaves before a record of
//!    another group that is to arrive before it.
//! 3. What is held goes with the lanes. Suspicions stay, for records that are pending here after the take-over.

use std::sync::Arc;

use super::super::header::{Code, Refusal};
use super::super::messages::{Carried, Refused};
use super::super::state::SubmissionOrder;
use super::super::timers::RunProgress;
use super::super::verdict::refusal;
use super::batches::Batches;
use super::figures::Figures;
use super::handed::Mark;
use super::lifecycle::Named;
use super::rank::Rank;
use super::suspects::Suspects;
use super::{Destination, Lane, Millis, Offset, Produce, Record, Source, UnixMillis};

/// After a take-over suspects wait this long: the others are read again meanwhile, and leave first.
const TEST_AFTER: Millis = Millis(250);

/// A send that is held until its suspicion is tested.
#[derive(Debug)]
pub(super) struct Suspected {
    pub(super) source: Source,
    pub(super) offset: Offset,
    pub(super) send: Produce,
    /// Its place among records of the same due time.
    pub(super) order: SubmissionOrder,
    /// A delivery is to be remembered: it expires.
    pub(super) mark: Option<Mark>,
    /// A delivery's version of its timer: a cancel mark may cover it by then.
    pub(super) named: Option<Named>,
    pub(super) beside: Beside,
}

/// What leaves in the batch of a send.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// The timer change to write.
    pub(super) timer: Option<Record>,
    /// The copy of a task that is delivered, and goes on.
    pub(super) copy: Option<Produce>,
    /// What is submitted: the follow-up of a task that ends with its delivery, or the tasks of a schedule.
    pub(super) submitted: Vec<Produce>,
    /// Of a run whose last shards are among them: how far it is then.
    pub(super) run: Option<Box<RunProgress>>,
}

impl Suspected {
    /// Its place in the order of its lane, if order matters for it.
    fn rank(&self) -> Option<Rank> {
        let keyed =
            matches!(self.send.to, Destination::Target(_)) && self.send.record.key().is_some();
        keyed.then_some((self.send.due, self.order))
    }
}

/// Whether the next batch is one of suspects.
pub(super) enum Test {
    No,
    /// Once the batches in flight are back.
    Wait,
    /// Of this group.
    Now(u64),
}

/// What is known of suspects, and held of them.
#[derive(Debug)]
pub(super) struct Poison {
    suspects: Suspects<Suspected>,
    /// Suspects are tested from then on, and only when the last batch was not such a test.
    test_at: UnixMillis,
    is_tested: bool,
}

impl Poison {
    pub(super) fn new() -> Self {
        Self { suspects: Suspects::default(), test_at: UnixMillis(0), is_tested: true }
    }

    /// The lanes are gone, with all that was held of them.
    pub(super) fn reset(&mut self) {
        self.suspects.release();
        (self.test_at, self.is_tested) = (UnixMillis(0), true);
    }

    /// Lanes were taken over, in which these records are pending.
    pub(super) fn assigned(&mut self, now: UnixMillis, pending: impl Fn(Source, Offset) -> bool) {
        self.test_at = now + TEST_AFTER;
        self.suspects.keep(pending);
    }

    // What Kafka says.

    /// A batch failed. `alone`: no other was in flight.
    pub(super) fn refused(
        &mut self,
        now: UnixMillis,
        (batch, alone): (&[Carried], bool),
        refused: &Refused,
    ) {
        self.suspects.refused(now, batch, alone, refused);
    }

    /// These sends are acknowledged, and their batch has failed.
    pub(super) fn delivered<'a>(&mut self, sends: impl Iterator<Item = &'a Carried>) {
        self.suspects.delivered(sends);
    }

    /// A batch is committed.
    pub(super) fn acknowledged(&mut self, batch: &[Carried]) {
        self.suspects.acknowledged(batch);
    }

    /// Nothing goes to this target any more, so that nothing is to be tested.
    pub(super) fn clear_target(&mut self, target: &Arc<str>) {
        self.suspects.clear_target(target);
    }

    // What is known.

    /// Whether Kafka has not refused this record when it stood alone.
    pub(super) fn permits_record(&self, source: Source, offset: Offset) -> Result<(), Refusal> {
        match self.suspects.verdict(source, offset) {
            None => Ok(()),
            Some(why) => Err(refusal(Code::TargetRefused, format!("refused by Kafka: {why}"))),
        }
    }

    /// Whether Kafka has not refused this target a moment ago.
    pub(super) fn permits_target(
        &mut self,
        now: UnixMillis,
        fresh: Millis,
        target: &Arc<str>,
    ) -> Result<(), Refusal> {
        match self.suspects.blocked(now, fresh, target) {
            None => Ok(()),
            Some(why) => {
                let detail = format!("target {target} is refused by Kafka: {why}");
                Err(refusal(Code::TargetRefused, detail))
            }
        }
    }

    /// Whether a record is in its target for certain, though its batch failed.
    pub(super) fn is_delivered(&self, source: Source, offset: Offset) -> bool {
        self.suspects.is_delivered(source, offset)
    }

    /// The group that a send must be tested with; `None`: it is under no suspicion.
    pub(super) fn group(&self, source: Source, offset: Offset, to: &Destination) -> Option<u64> {
        self.suspects.group(source, offset, to)
    }

    /// Counts for the metrics.
    pub(super) fn count(&self, figures: &mut Figures) {
        (figures.suspects, figures.halvings) = (self.suspects.len(), self.suspects.halvings);
        figures.due(self.suspects.held().filter_map(|held| held.send.delivered_at()).min());
    }

    // What is held.

    /// Keeps a send until its group is tested. The answer is its place in the order of its lane, if order matters for it.
    pub(super) fn hold(&mut self, group: u64, suspected: Suspected) -> Option<Rank> {
        let rank = suspected.rank();
        self.suspects.hold(group, suspected);
        rank
    }

    /// When the next test may begin, if anything is held for one.
    pub(super) fn test_at(&self) -> Option<UnixMillis> {
        self.suspects.next().map(|_| self.test_at)
    }

    /// The places of what is held of a lane.
    pub(super) fn ranks(&self, lane: Lane) -> impl Iterator<Item = Rank> {
        self.suspects
            .held()
            .filter(move |held| held.source.lane == lane)
            .filter_map(Suspected::rank)
    }

    // Tests.

    /// Whether it is the turn of a test. `hurry`: nothing else is to come.
    pub(super) fn turn(
        &self,
        now: UnixMillis,
        batches: &Batches,
        is_strict: bool,
        hurry: bool,
    ) -> Test {
        if batches.is_testing() {
            return Test::Wait;
        }
        match self.next_group(is_strict) {
            Some(group) if !self.is_tested && (self.test_at <= now || hurry) => {
                if batches.len() == 0 { Test::Now(group) } else { Test::Wait }
            }
            _ => Test::No,
        }
    }

    /// The group to test next; in strict order that of the record that is due first, which is held up by none.
    fn next_group(&self, is_strict: bool) -> Option<u64> {
        let next = self.suspects.next()?;
        if !is_strict {
            return Some(next);
        }
        let ranked = self.suspects.held_by_group();
        let ranked = ranked.filter_map(|(group, held)| Some((held.rank()?, group)));
        Some(ranked.min().map_or(next, |(_, group)| group))
    }

    /// A batch of others was closed, or nothing else is to be done: the next one may be a test.
    pub(super) fn yield_turn(&mut self) {
        self.is_tested = false;
    }

    /// Begins the test of a group; the next batch is one of others.
    pub(super) fn begin_test(&mut self, group: u64, lanes: u16, is_strict: bool) -> Tested {
        self.is_tested = true;
        let mut firsts: Vec<Option<Rank>> = vec![None; usize::from(lanes)];
        if is_strict {
            let others = self.suspects.held_by_group().filter(|(of, _)| *of != group);
            for (lane, rank) in
                others.filter_map(|(_, held)| Some((held.source.lane, held.rank()?)))
            {
                let first = &mut firsts[usize::from(lane.0)];
                *first = Some(first.map_or(rank, |first| first.min(rank)));
            }
        }
        Tested { group, firsts }
    }

    /// Takes the next send of a test.
    pub(super) fn take(&mut self, of: &Tested) -> Option<Suspected> {
        let may = |held: &Suspected| {
            let first = of.firsts[usize::from(held.source.lane.0)];
            first.is_none_or(|first| held.rank().is_none_or(|rank| rank <= first))
        };
        self.suspects.take_where(of.group, may)
    }
}

/// A test that is being put together.
#[derive(Debug)]
pub(super) struct Tested {
    group: u64,
    /// By lane, in strict order: what other groups have that is to arrive first.
    firsts: Vec<Option<Rank>>,
}
