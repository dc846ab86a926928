//! Counts the rest of a lane of which records were found gone: timers without a record end as lost at once.
//!
//! A position that stands outside of its log shows that records are gone. To know which timers those were, the member
//! reads everything that is left, once, beside the lane's work. In memory that takes one bit of each pending timer.
//!
//! # Invariants
//! 1. A timer is lost if no record of its version was found. None was in memory when the count began. None was in a
//!    batch that had not landed before the lane's topics were read. None was among the records of those topics. None
//!    has come up since.
//! 2. A done record does not count: its copy stands in its topic for a while.
//! 3. A topic that was not read to its end loses no timer: the lane is counted again later. The same holds for an index
//!    that does not answer.
//! 4. A lane is counted until everything that follows from the count is committed. After a failed batch it is counted
//!    anew. Until then the group has the position that was found outside of its log, if nothing behind that was done:
//!    another owner counts the lane anew, too.
//!
//! What it does not see: a record that was read, and is deleted during the count. Its timer is overdue for
//! [`lost_after`](super::super::setup::Limits::lost_after) before it is lost.

use super::super::hold::Hold;
use super::super::messages::Left;
use super::super::timers::Timer;
use super::lost::{After, Calling, Stage};
use super::{
    Action, BatchId, Lane, LaneEngine, Millis, Offset, Source, TopicId, UnixMillis,
};

/// A lane that could not be counted is counted again after this time.
const AGAIN_AFTER: Millis = Millis(60_000);
/// More timers are asked for only while less than this waits to be written.
const READY_MAX: usize = 1_000;

/// A lane that is counted, and how far that is.
#[derive(Debug)]
pub(in super::super) struct Counting {
    lane: Lane,
    at: At,
}

#[derive(Debug)]
enum At {
    /// Batches before this one may carry what is missing.
    Landing(BatchId),
    /// Its topics are read.
    Read,
    /// The index is to be asked for its timers from here on.
    List(Option<After>),
    /// It was asked.
    Listed,
    /// All missing timers have ended. Their timer changes are not in a batch yet.
    Said,
    /// Nor committed: batches before this one may carry it.
    Written(BatchId),
}

impl Calling {
    /// How far the count of this lane is, if it is the one that is counted.
    fn counting(&mut self, lane: Lane) -> Option<&mut At> {
        match &mut self.stage {
            Stage::Counting(counting) if counting.lane == lane => Some(&mut counting.at),
            _ => None,
        }
    }
}

impl LaneEngine {
    /// Whether a lane is counted: what is left of it comes in pieces.
    #[must_use]
    pub fn is_counting(&self) -> bool {
        matches!(self.calling.stage, Stage::Counting(_)) && self.timers.live_len() > 0
    }

    /// No timer is pending, or none is known: there is nothing to count.
    pub(super) fn count_nothing(&mut self) {
        let shrunk = self.calling.shrunk.keys().copied();
        for lane in shrunk.filter(|lane| self.is_at_work(*lane)).collect::<Vec<_>>() {
            self.is_counted(lane);
        }
    }

    /// The next owner of the lane need not count it again: the lane's positions are committed as they are now.
    fn is_counted(&mut self, lane: Lane) {
        self.calling.shrunk.remove(&lane);
        for hold in self.holds.iter_mut().filter_map(|holds| holds[usize::from(lane.0)].as_mut()) {
            hold.touch();
        }
        self.batches.touch();
    }

    /// Begins with a lane that has shrunk, if there is one here.
    pub(super) fn begin_to_count(&mut self, now: UnixMillis) -> bool {
        let shrunk = &self.calling.shrunk;
        let may = |(lane, from): &(&Lane, &UnixMillis)| **from <= now && self.is_at_work(**lane);
        // The one that waits for longest: one that cannot be read keeps no other waiting.
        let Some((&lane, _)) = shrunk.iter().filter(may).min_by_key(|(_, from)| **from) else {
            return false;
        };
        if self.timers.miss(lane) == 0 {
            self.is_counted(lane);
            return false;
        }
        let at = At::Landing(self.batches.next());
        self.calling.stage = Stage::Counting(Counting { lane, at });
        self.wake(now);
        true
    }

    /// The next step of a count.
    pub(super) fn count(&mut self, out: &mut Vec<Action>) {
        let Stage::Counting(Counting { lane, at }) = &mut self.calling.stage else { return };
        let lane = *lane;
        match *at {
            At::Landing(batch) if self.batches.have_landed(batch) => {
                *at = At::Read;
                let low = |(topic, holds): (usize, &Vec<Option<Hold>>)| {
                    let hold = holds[usize::from(lane.0)].as_ref()?;
                    Some((Source { topic: TopicId(topic as u16), lane }, hold.low()))
                };
                let from: Vec<(Source, Offset)> =
                    self.holds.iter().enumerate().filter_map(low).collect();
                out.push(Action::Inventory { lane, from });
            }
            At::List(after) if self.writes.len() < READY_MAX => {
                *at = At::Listed;
                out.push(Action::Overdue { lane, before: UnixMillis(u64::MAX), after });
            }
            At::Said if !self.writes.reports_a_loss() => {
                *at = At::Written(self.batches.next());
                self.count(out);
            }
            At::Written(batch) if self.batches.have_landed(batch) => {
                self.calling.stage = Stage::Fresh;
                self.is_counted(lane);
            }
            At::Landing(_) | At::Read | At::List(_) | At::Listed | At::Said | At::Written(_) => {}
        }
    }

    /// Records were found.
    pub(super) fn left(&mut self, lane: Lane, records: &[Left]) {
        for Left { source, offset, timer_id, version } in records {
            let hold = self.hold(*source);
            if source.lane == lane && hold.is_some_and(|hold| hold.is_open(*offset)) {
                self.timers.found(lane, *timer_id, *version);
            }
        }
    }

    /// A lane was read.
    pub(super) fn counted(&mut self, now: UnixMillis, lane: Lane, whole: bool) {
        let Some(at @ At::Read) = self.calling.counting(lane) else { return };
        *at = At::List(None);
        if !whole {
            self.calling.shrunk.insert(lane, now + AGAIN_AFTER);
            self.calling.stage = Stage::Fresh;
        }
        self.wake(now);
    }

    /// The index has told of some of a lane's pending timers.
    pub(super) fn listed(
        &mut self,
        now: UnixMillis,
        lane: Lane,
        timers: Vec<Timer>,
        more: Option<After>,
    ) {
        let Some(at @ At::Listed) = self.calling.counting(lane) else { return };
        *at = if more.is_some() { At::List(more) } else { At::Said };
        for timer in timers {
            if self.timers.is_missing(lane, timer.timer_id, timer.version) {
                self.lose(now, lane, timer);
            }
        }
        self.wake(now);
    }
}
