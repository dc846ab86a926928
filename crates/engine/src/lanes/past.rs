//! Finds what has ended, for records that come late: records that were moved from another lane's partition, came by a
//! further intake, or were written to a tier. Timers that ended meanwhile may have been submitted after such a record,
//! or while it was on its way.
//!
//! The engine does not remember ended timers. The index does, but it is behind. So a late record waits until the index
//! has reported its timer's end, and all later records of that timer wait with it. So does the record of a schedule whose
//! next task depends on whether that one has ended. Most records need not ask. The lane remembers *when* a timer with a
//! similar name last ended here; a record that was submitted after that is not late.
//!
//! # Invariants
//! 1. Where a record's timer may have ended after the record was submitted, the lane decides only once it knows. Where
//!    nobody knows (a run that gave up its index, or an end older than `history`), the record counts as not late.
//! 2. The changes of one timer are decided in the order in which their records came, whether the index was asked or
//!    not.
//! 3. One query is open at a time. It leaves once every earlier decision is committed.
//! 4. A record that was refused before it was pending is reported as dead only where nothing is known of its timer:
//!    what ended before it may still count for late records.

use std::collections::{BTreeMap, VecDeque};

use super::super::timers::{Ended, TimerId};
use super::super::verdict::{Origin, PendingRecord};
use super::batches::Batches;
use super::behind::Behind;
use super::rank::Rank;
use super::writes::{DeadTimer, PendingWrite, Writes};
use super::{Lane, Millis, UnixMillis};

/// A table of 128 KiB: with 20,000 ends a second one in a hundred records that are moved within 10 ms asks in vain.
const SLOTS: usize = 1 << 14;
/// After a take-over the clock of the owner before may have been ahead of ours by this much, at most.
pub(super) const CLOCKS_APART: Millis = Millis(10_000);

/// A timer of a lane.
pub(super) type Of = (Lane, TimerId);

/// A record that waits for the outcome of a timer, mostly of its own.
#[derive(Debug)]
pub(super) enum Waiting {
    /// It is decided about then.
    Entry(Box<PendingRecord>),
    /// Its dead letter, and what to write beside it if nothing is known of the timer.
    Refused(Box<(PendingWrite, DeadTimer)>),
}

/// Records that wait for the outcome of one timer.
#[derive(Debug)]
struct Queue {
    /// The number of the first of them.
    first: u64,
    records: VecDeque<Waiting>,
}

/// What the lane remembers of ended timers, and what waits for their outcome.
#[derive(Debug)]
pub(super) struct Past {
    /// By some bits of their names: up to when timers have ended here.
    ends: Box<[UnixMillis]>,
    /// Records that wait, by their timer and in the order in which they came.
    waiting: BTreeMap<Of, Queue>,
    /// How many records have begun to wait.
    begun: u64,
    /// The number of the first of those that are being decided about: one of them that has to wait again has waited since then.
    decided: Option<u64>,
    /// Timers that the next question is about, which nobody has begun to ask.
    wanted: Vec<Of>,
    stage: RecallStage,
    /// The index's answer about the timer that is being decided about.
    recalled: Option<(Of, Option<Ended>)>,
}

/// Where the question stands.
#[derive(Debug, Default)]
enum RecallStage {
    #[default]
    Idle,
    /// Earlier decisions are not committed yet. The query is about these timers and no others: a decision about another
    /// timer, made meanwhile, would not be committed when the query leaves.
    Behind(Behind, Vec<Of>),
    /// These lanes have not answered.
    Asked(Vec<Lane>),
}

impl Default for Past {
    fn default() -> Self {
        Self {
            ends: vec![UnixMillis(0); SLOTS].into(),
            waiting: BTreeMap::new(),
            begun: 0,
            decided: None,
            wanted: Vec::new(),
            stage: RecallStage::Idle,
            recalled: None,
        }
    }
}

fn slot(timer_id: TimerId) -> usize {
    // The beginning of a name is the id's, which many may share.
    let [.., high, low] = timer_id.0;
    usize::from(u16::from_be_bytes([high, low])) % SLOTS
}

impl Past {
    /// A timer has ended: what was submitted up to then may be late.
    pub(super) fn note(&mut self, lane: Lane, timer_id: TimerId, at: UnixMillis) {
        let end = &mut self.ends[slot(timer_id)];
        *end = at.max(*end);
        // It is not what was told any more.
        self.recalled.take_if(|(of, _)| *of == (lane, timer_id));
    }

    /// The rank of the first that waits in a lane, of those that order matters for.
    pub(super) fn first(&self, lane: Lane) -> Option<Rank> {
        let of_lane = self.waiting.iter().filter(|((of, _), _)| *of == lane);
        let entries =
            of_lane.flat_map(|(_, queue)| &queue.records).filter_map(|waiting| match waiting {
                Waiting::Entry(entry) => Some(entry),
                Waiting::Refused(_) => None,
            });
        let ordered = entries.filter(|entry| {
            entry.record.key().is_some() && !matches!(entry.origin, Origin::Cancel(_))
        });
        ordered.map(|entry| (entry.due, entry.order)).min()
    }

    /// When the first record is due that waits.
    pub(super) fn first_due(&self) -> Option<UnixMillis> {
        let dues = self.waiting.values().flat_map(|queue| &queue.records).filter_map(|waiting| {
            match waiting {
                Waiting::Entry(entry) => Some(entry.due),
                Waiting::Refused(_) => None,
            }
        });
        dues.min()
    }

    /// How many records wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.values().map(|queue| queue.records.len()).sum()
    }

    /// The number of the next record that will wait.
    pub(super) fn next_number(&self) -> u64 {
        self.begun
    }

    /// The number of the record that has waited longest; `None`: none waits.
    pub(super) fn first_number(&self) -> Option<u64> {
        self.waiting.values().map(|queue| queue.first).min()
    }

    // What is known.

    /// How a timer has ended, for one of its records for which that counts. `ends_from`: what ended in the lane since then
    /// has ended here; none, if an owner before may have ended it at any time.
    pub(super) fn of(
        &self,
        now: UnixMillis,
        (lane, timer_id): Of,
        entry: &PendingRecord,
        ends_from: Option<UnixMillis>,
    ) -> History {
        if let Some((_, ended)) =
            self.recalled.filter(|(recalled, _)| *recalled == (lane, timer_id))
        {
            return History::Known(ended);
        }
        let is_late = entry.origin == Origin::Duplicate
            || ends_from.is_none_or(|from| entry.first_appended < from)
            // Some clock was set back: its time does not tell that it came after the take-over.
            || entry.first_appended > now + CLOCKS_APART
            || entry.first_appended <= self.ends[slot(timer_id)];
        if is_late { History::Unknown } else { History::Known(None) }
    }

    /// How a timer has ended, if the index was asked for it just now.
    pub(super) fn recalled(&self, of: Of) -> Option<Option<Ended>> {
        self.recalled.filter(|(recalled, _)| *recalled == of).map(|(_, ended)| ended)
    }

    /// Whether the index has told that it knows of no end of this timer, and it has not ended here since.
    pub(super) fn is_blank(&self, of: Of) -> bool {
        matches!(self.recalled, Some((recalled, None)) if recalled == of)
    }

    /// Whether records of a timer wait: later ones wait behind them.
    pub(super) fn has_waiting(&self, of: Of) -> bool {
        !self.waiting.is_empty() && self.waiting.contains_key(&of)
    }

    // Questions.

    /// A record waits until the index has told what became of its timer.
    pub(super) fn wait(&mut self, of: Of, waiting: Waiting) {
        let number = self.decided.unwrap_or(self.begun);
        self.begun += 1;
        let queue = self.waiting.entry(of).or_insert_with(|| {
            self.wanted.push(of);
            Queue { first: number, records: VecDeque::new() }
        });
        queue.first = queue.first.min(number);
        queue.records.push_back(waiting);
    }

    /// The timers to ask about, by lane, once all is committed that was decided before.
    pub(super) fn ask(
        &mut self,
        writes: &Writes,
        batches: &Batches,
    ) -> BTreeMap<Lane, Vec<TimerId>> {
        let mut by_lane: BTreeMap<Lane, Vec<TimerId>> = BTreeMap::new();
        let (mut behind, wanted) = match std::mem::take(&mut self.stage) {
            RecallStage::Idle if self.wanted.is_empty() => return by_lane,
            RecallStage::Idle => (Behind::all(writes), std::mem::take(&mut self.wanted)),
            RecallStage::Behind(behind, wanted) => (behind, wanted),
            asked @ RecallStage::Asked(_) => {
                self.stage = asked;
                return by_lane;
            }
        };
        if !behind.is_committed(writes, batches) {
            self.stage = RecallStage::Behind(behind, wanted);
            return by_lane;
        }
        for (lane, timer_id) in wanted {
            by_lane.entry(lane).or_default().push(timer_id);
        }
        self.stage = RecallStage::Asked(by_lane.keys().copied().collect());
        by_lane
    }

    /// A lane has answered; false: it was not asked.
    pub(super) fn answered(&mut self, lane: Lane) -> bool {
        let RecallStage::Asked(lanes) = &mut self.stage else { return false };
        let Some(at) = lanes.iter().position(|asked| *asked == lane) else { return false };
        lanes.remove(at);
        if lanes.is_empty() {
            self.stage = RecallStage::Idle;
        }
        true
    }

    /// The index has told this of a timer. It counts until it ends here, or [`forget`](Self::forget). Gives back what waited
    /// for it.
    pub(super) fn learn(&mut self, of: Of, ended: Option<Ended>) -> Option<VecDeque<Waiting>> {
        let queue = self.waiting.remove(&of)?;
        self.recalled = Some((of, ended));
        self.decided = Some(queue.first);
        Some(queue.records)
    }

    /// All that waited for the last answer is decided.
    pub(super) fn forget(&mut self) {
        self.recalled = None;
        self.decided = None;
    }
}

/// What is known of how a timer has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum History {
    /// This, as far as it counts.
    Known(Option<Ended>),
    /// Only the index knows.
    Unknown,
}
