//! Finds what has ended, for records that come late: records that were moved from another lane's partition, came by a
//! further intake, or were written to a tier. Timers that ended meanwhile may have been submitted after such a record,
//! or while it was on its way.
//!
//! The engine does not remember ended timers. The index does, but it is behind. So a late record waits until the index
//! has reported its timer's end, and all later records of that timer wait with it. Most records need not ask. The lane
//! remembers *when* a timer with a similar name last ended here; a record that was submitted after that is not late.
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
use super::behind::Behind;
use super::strict_order::Rank;
use super::{Action, Lane, LaneEngine, Millis, PendingWrite, Record, Tracking, UnixMillis};

/// A table of 128 KiB: with 20,000 ends a second one in a hundred records that are moved within 10 ms asks in vain.
const SLOTS: usize = 1 << 14;
/// After a take-over the clock of the owner before may have been ahead of ours by this much, at most.
pub(super) const CLOCKS_APART: Millis = Millis(10_000);

/// A timer of a lane.
type Of = (Lane, TimerId);

/// A record that waits for the outcome of its timer.
#[derive(Debug)]
enum Waiting {
    /// It is decided about then.
    Entry(Box<PendingRecord>),
    /// Its dead letter, and the timer change to write if nothing is known of the timer.
    Refused(Box<(PendingWrite, Record)>),
}

/// What the lane remembers of ended timers, and what waits for their outcome.
#[derive(Debug)]
pub(super) struct Past {
    /// By some bits of their names: up to when timers have ended here.
    ends: Box<[UnixMillis]>,
    /// Records that wait, by their timer and in the order in which they came.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    waiting: BTreeMap<Of, VecDeque<Waiting>>,
    /// Timers that the next question is about, which nobody has begun to ask.
    wanted: Vec<Of>,
    stage: Stage,
    /// The index's answer about the timer that is being decided about.
    told: Option<(Of, Option<Ended>)>,
}

/// Where the question stands.
#[derive(Debug, Default)]
enum Stage {
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
            wanted: Vec::new(),
            stage: Stage::Idle,
            told: None,
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
        self.told.take_if(|(of, _)| *of == (lane, timer_id));
    }

    /// The rank of the first that waits in a lane, of those that order matters for.
    pub(super) fn first(&self, lane: Lane) -> Option<Rank> {
        let of_lane = self.waiting.iter().filter(|((of, _), _)| *of == lane);
        let entries = of_lane.flat_map(|(_, queue)| queue).filter_map(|waiting| match waiting {
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
        let dues = self.waiting.values().flatten().filter_map(|waiting| match waiting {
            Waiting::Entry(entry) => Some(entry.due),
            Waiting::Refused(_) => None,
        });
        dues.min()
    }

    /// How many records wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }
}

impl LaneEngine {
    /// How a record's timer has ended, as far as it counts for that record; `None`: ask the index.
    pub(super) fn past(&self, now: UnixMillis, entry: &PendingRecord) -> Option<Option<Ended>> {
        let Some(timer_id) = entry.timer_id.filter(|_| self.past_counts(entry)) else {
            return Some(None);
        };
        let of = (entry.source.lane, timer_id);
        if let Some((_, ended)) = self.past.told.filter(|(told, _)| *told == of) {
            return Some(ended);
        }
        let from = self.gates.get(usize::from(of.0.0)).map(|gate| gate.ends_from);
        let is_late = entry.origin == Origin::Duplicate
            || from.is_none_or(|from| entry.first_appended < from)
            // Some clock was set back: its time does not tell that it came after the take-over.
            || entry.first_appended > now + CLOCKS_APART
            || entry.first_appended <= self.past.ends[slot(timer_id)];
        (!is_late).then_some(None)
    }

    /// Whether it matters for a record what has ended.
    pub(super) fn past_counts(&self, entry: &PendingRecord) -> bool {
        let makes = matches!(
            entry.origin,
            Origin::Create | Origin::Tier | Origin::Duplicate | Origin::Replace(None)
        );
        let Some(timer_id) = entry.timer_id.filter(|_| makes) else { return false };
        let (lane, version) = (entry.source.lane, entry.version());
        // A cancel mark that is seen for the first time was about this record, or about one that ended since.
        let mark = self.timers.cancel_mark(lane, timer_id).filter(|mark| mark.covers(version));
        // Of a duplicate it must be known in any case: whether what was pending was cancelled, or delivered.
        let counts = match entry.origin {
            Origin::Duplicate => mark.is_none(),
            _ => version.is_not_in_log_order() && mark.is_none_or(|mark| !mark.seen),
        };
        counts
            && self.setup.limits.tracking == Tracking::Full
            && self.timers.live(lane, timer_id).is_none()
    }

    /// Gives a record back that can be decided about, with what counts for it; keeps one that must wait.
    pub(super) fn with_past(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
    ) -> Option<(Box<PendingRecord>, Option<Ended>)> {
        let Some(timer_id) = entry.timer_id else { return Some((entry, None)) };
        let of = (entry.source.lane, timer_id);
        if let Some(queue) = self.past.waiting.get_mut(&of) {
            queue.push_back(Waiting::Entry(entry));
            return None;
        }
        if let Some(past) = self.past(now, &entry) {
            return Some((entry, past));
        }
        if self.is_strict() {
            self.lower_floor(of.0, (entry.due, entry.order));
        }
        self.wait_for_past(now, of, Waiting::Entry(entry));
        None
    }

    /// A dead letter of a record that never was pending, and the timer change to write if nothing is known of the
    /// timer.
    pub(super) fn bury_unborn(
        &mut self,
        now: UnixMillis,
        (lane, timer_id): (Lane, TimerId),
        letter: PendingWrite,
        said: Record,
    ) {
        self.wait_for_past(now, (lane, timer_id), Waiting::Refused(Box::new((letter, said))));
    }

    fn wait_for_past(&mut self, now: UnixMillis, of: Of, waiting: Waiting) {
        let queue = self.past.waiting.entry(of).or_default();
        if queue.is_empty() {
            self.past.wanted.push(of);
        }
        queue.push_back(waiting);
        self.wake(now);
    }

    /// Asks what has ended, once all is committed that was decided before.
    pub(super) fn ask_for_past(&mut self, out: &mut Vec<Action>) {
        let (mut behind, wanted) = match std::mem::take(&mut self.past.stage) {
            Stage::Idle if self.past.wanted.is_empty() => return,
            Stage::Idle => (self.decided(), std::mem::take(&mut self.past.wanted)),
            Stage::Behind(behind, wanted) => (behind, wanted),
            asked @ Stage::Asked(_) => return self.past.stage = asked,
        };
        if !self.is_committed(&mut behind) {
            self.past.stage = Stage::Behind(behind, wanted);
            return;
        }
        let mut by_lane: BTreeMap<Lane, Vec<TimerId>> = BTreeMap::new();
        for (lane, timer_id) in wanted {
            by_lane.entry(lane).or_default().push(timer_id);
        }
        self.past.stage = Stage::Asked(by_lane.keys().copied().collect());
        out.extend(by_lane.into_iter().map(|(lane, timers)| Action::Recall { lane, timers }));
    }

    /// The index has told what became of timers of a lane.
    pub(super) fn recalled(
        &mut self,
        now: UnixMillis,
        lane: Lane,
        timers: Vec<(TimerId, Option<Ended>)>,
        out: &mut Vec<Action>,
    ) {
        let Stage::Asked(lanes) = &mut self.past.stage else { return };
        let Some(at) = lanes.iter().position(|asked| *asked == lane) else { return };
        lanes.remove(at);
        if lanes.is_empty() {
            self.past.stage = Stage::Idle;
        }
        for (timer_id, ended) in timers {
            let of = (lane, timer_id);
            let Some(queue) = self.past.waiting.remove(&of) else { continue };
            self.past.told = Some((of, ended));
            for waiting in queue {
                match waiting {
                    Waiting::Entry(entry) => self.decide(now, entry, out),
                    Waiting::Refused(refused) => {
                        let (letter, said) = *refused;
                        let is_known =
                            ended.is_some() || self.timers.live(lane, timer_id).is_some();
                        self.bury_told(lane, letter, (!is_known).then_some(said));
                    }
                }
            }
            self.past.told = None;
        }
        self.wake_waiting(lane);
        self.wake(now);
    }
}
