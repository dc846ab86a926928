//! Finds timers whose records are gone. They end as lost, and their names are free again.
//!
//! Somebody may delete records, or a topic, and with them pending timers. The index would then list these timers as
//! pending for ever. Where the member found records gone, the lane counts the rest at once: see
//! [`inventory`](super::inventory). Otherwise the index names the timers that have been overdue for long. The lane
//! calls the roll for those that are nowhere in memory: once it has let go of everything that could hold them, each
//! timer that has not come up is lost.
//!
//! # Invariants
//! 1. A timer is lost only if three things hold. It is overdue for `lost_after`. At some moment it was neither in
//!    memory nor in a batch in flight. It did not come up before the lane let go of every record that could hold it and
//!    was appended before that moment.
//! 2. "Every record" means those of all the lane's intakes, and of the tiers into which overdue records may hop. Into
//!    any other tier a record hops only if the tier lets it go by its due time; so there, the records to be let go by
//!    then.
//! 3. Missing knowledge only delays, and never loses a pending timer: an end offset that nobody reports, a partition
//!    that is not read, an index that is behind.
//! 4. Nor is a timer lost that came by an intake which is not configured any more: nothing reads the records there.
//! 5. A lost timer may still come up (a leader's clock was ahead of all that was read). It is revived, unless another
//!    version is pending by then.

use std::collections::BTreeMap;

use super::super::hold::Hold;
use super::super::messages::ChangeReason;
use super::super::setup::Tracking;
use super::super::timers::{ByName, Change, Timer, TimerId, TimerState, Version};
use super::inventory::Counting;
use super::{
    Action, BatchId, Lane, LaneEngine, Millis, PendingWrite, Record, Source, TopicId, UnixMillis,
};

/// Between two questions for what is overdue, each about one lane.
const ASK_EVERY: Millis = Millis(5_000);
/// During a roll call, how often to ask where the lane's partitions end.
const ENDS_EVERY: Millis = Millis(2_000);
/// A lane that is not read so far by then is passed over, until it is its turn again.
const GIVE_UP_AFTER: Millis = Millis(120_000);
/// How far the clock of a leader that appended one of its hops may be ahead of what is known of the brokers' time, and of all
/// that was read of its lane.
const CLOCKS_APART: Millis = Millis(5_000);

/// Where a listing of timers by due time goes on: behind the timer of this due time and name.
pub type After = (UnixMillis, TimerId);

/// Which timers the roll call looks for.
#[derive(Debug, Default)]
pub(super) struct Calling {
    pub(super) stage: Stage,
    /// Whose turn it is, and where its listing goes on.
    lane: u16,
    after: Option<After>,
    /// Lanes of which records were found gone, and that are to be counted, not before a time.
    pub(super) shrunk: BTreeMap<Lane, UnixMillis>,
}

#[derive(Debug, Default)]
pub(super) enum Stage {
    #[default]
    Fresh,
    /// The next question is due then.
    Idle(UnixMillis),
    /// This lane has not answered.
    Asked(Lane),
    Called(Roll),
    Counting(Counting),
}

/// Timers of a lane that were nowhere to be found at a time.
#[derive(Debug)]
pub(super) struct Roll {
    lane: Lane,
    /// All that was appended before this must have been let go. It begins anew when those batches have landed: a hop that
    /// was in one of them stands after the time of the question.
    at: UnixMillis,
    has_landed: bool,
    /// Batches before this one may carry them.
    batch: BatchId,
    absent: ByName<Timer>,
    asked: Option<UnixMillis>,
}

impl Calling {
    /// Begins again where all held records were dropped: lanes are still to be counted.
    pub(super) fn anew(&mut self) -> Self {
        Self { shrunk: std::mem::take(&mut self.shrunk), ..Self::default() }
    }

    /// Records of this lane were found gone.
    pub(super) fn has_shrunk(&mut self, lane: Lane) {
        self.shrunk.insert(lane, UnixMillis(0));
    }

    /// A record of this version is here.
    pub(super) fn met(&mut self, lane: Lane, timer_id: TimerId) {
        if let Stage::Called(roll) = &mut self.stage
            && roll.lane == lane
        {
            roll.absent.remove(&timer_id);
        }
    }
}

impl LaneEngine {
    /// Looks for lost timers, a step at a time.
    pub(super) fn look_for_lost(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        let is_full = self.setup.limits.tracking == Tracking::Full;
        if self.draining {
            return;
        }
        if !is_full || self.timers.live_len() == 0 {
            return self.count_nothing();
        }
        if let Stage::Fresh | Stage::Idle(_) = self.calling.stage
            && self.begin_to_count(now)
        {
            return;
        }
        match &self.calling.stage {
            Stage::Fresh => self.calling.stage = Stage::Idle(now + ASK_EVERY),
            Stage::Counting(_) => self.count(out),
            Stage::Idle(at) if *at <= now => self.ask_for_overdue(now, out),
            Stage::Called(_) => self.call(now, out),
            Stage::Idle(_) | Stage::Asked(_) => {}
        }
        // Between two questions there is no hurry: a tick for another reason comes by here, too.
        if let Stage::Called(Roll { asked: Some(asked), .. }) = &self.calling.stage {
            self.wake(*asked + ENDS_EVERY);
        }
    }

    fn ask_for_overdue(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        let lanes = self.setup.lanes.max(1);
        let mut of = (0..lanes).map(|n| (self.calling.lane + n) % lanes);
        let of = of.find(|lane| self.is_at_work(Lane(*lane)));
        let Some(of) = of else {
            self.calling.stage = Stage::Idle(now + ASK_EVERY);
            return;
        };
        let after = self.calling.after.filter(|_| of == self.calling.lane);
        let calling = std::mem::take(&mut self.calling);
        self.calling = Calling { stage: Stage::Asked(Lane(of)), lane: of, after, ..calling };
        out.push(Action::Overdue {
            lane: Lane(of),
            before: now - self.setup.limits.lost_after,
            after,
        });
    }

    /// Whether a lane is here, and all is known of its timers.
    pub(super) fn is_at_work(&self, lane: Lane) -> bool {
        let at = usize::from(lane.0);
        self.gates[at].is_known && self.holds.iter().all(|holds| holds[at].is_some())
    }

    /// The index has told which timers of a lane are overdue.
    pub(super) fn overdue(
        &mut self,
        now: UnixMillis,
        lane: Lane,
        timers: Vec<Timer>,
        more: Option<After>,
    ) {
        match &self.calling.stage {
            Stage::Counting(_) => return self.listed(now, lane, timers, more),
            Stage::Asked(asked) if *asked == lane => {}
            _ => return,
        }
        self.calling.after = more;
        let is_absent = |timer: &Timer| {
            timer.due < now - self.setup.limits.lost_after
                && self.timers.is_absent(lane, timer.timer_id, timer.version)
        };
        let absent: ByName<Timer> =
            timers.into_iter().filter(is_absent).map(|timer| (timer.timer_id, timer)).collect();
        if absent.is_empty() {
            return self.next_call(now);
        }
        let (at, batch) = (now, self.batches.next());
        let roll = Roll { lane, at, has_landed: false, batch, absent, asked: None };
        self.calling.stage = Stage::Called(roll);
        self.wake(now);
    }

    fn next_call(&mut self, now: UnixMillis) {
        if self.calling.after.is_none() {
            self.calling.lane = (self.calling.lane + 1) % self.setup.lanes.max(1);
        }
        self.calling.stage = Stage::Idle(now + ASK_EVERY);
    }

    fn call(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        let Stage::Called(Roll { lane, batch, .. }) = self.calling.stage else { return };
        if !self.batches.have_landed(batch) {
            return;
        }
        let latest = self.latest(lane).max(now);
        let Stage::Called(roll) = &mut self.calling.stage else { return };
        if !roll.has_landed {
            roll.has_landed = true;
            roll.at = latest + CLOCKS_APART;
        }
        let (lane, at) = (roll.lane, roll.at);
        let behind: Vec<Source> = (0..self.holds.len())
            .map(|topic| Source { topic: TopicId(topic as u16), lane })
            .filter(|source| !self.has_let_go(*source, at))
            .collect();
        let Stage::Called(roll) = &mut self.calling.stage else { return };
        if behind.is_empty() || roll.absent.is_empty() {
            let absent = std::mem::take(&mut roll.absent);
            for timer in absent.into_values() {
                self.lose(now, lane, timer);
            }
            self.next_call(now);
        } else if now > at + GIVE_UP_AFTER {
            self.next_call(now);
        } else if roll.asked.is_none_or(|asked| asked + ENDS_EVERY <= now) {
            roll.asked = Some(now);
            let ask: Vec<Source> =
                behind.into_iter().filter(|source| self.ask_unasked(*source)).collect();
            if !ask.is_empty() {
                out.push(Action::ListEndOffsets(ask));
            }
        }
    }

    /// The time up to which a lane's partitions are to be read, by their leaders' clocks. A leader whose clock is ahead
    /// may have appended the missing records, too.
    fn latest(&self, lane: Lane) -> UnixMillis {
        let holds = self.holds.iter().filter_map(|holds| holds[usize::from(lane.0)].as_ref());
        holds.map(Hold::read_upto).max().unwrap_or_default()
    }

    /// Whether a partition has let go all that was appended before a time and could hold what was overdue then.
    fn has_let_go(&self, source: Source, at: UnixMillis) -> bool {
        let hold = self.holds[usize::from(source.topic.0)][usize::from(source.lane.0)].as_ref();
        let wait = match self.setup.topics.tier_of(source.topic) {
            Some(tier) if tier > self.last_for_overdue() => {
                self.setup.topics.ladder.tiers().get(tier).map_or(Millis(0), |tier| tier.wait())
            }
            _ => Millis(0),
        };
        hold.is_some_and(|hold| hold.gone_upto() >= at - wait)
    }

    /// Whether a version came by an intake that is not configured any more: its record may wait there, and is not read.
    fn came_by_an_unknown_intake(&self, version: Version) -> bool {
        let topics = &self.setup.topics;
        let mut marks = (0..topics.names().len()).map(|topic| topics.mark(TopicId(topic as u16)));
        version.mark().is_some_and(|mark| !marks.any(|known| known == mark))
    }

    /// A timer ends as lost, if it is what was pending still.
    pub(super) fn lose(&mut self, now: UnixMillis, lane: Lane, timer: Timer) {
        let is_absent = self.timers.is_absent(lane, timer.timer_id, timer.version);
        if !is_absent || self.came_by_an_unknown_intake(timer.version) {
            return;
        }
        let lost = Timer { state: TimerState::Lost, since: now, ..timer };
        let timer_id = lost.timer_id;
        let (key, value) = Change::Timer(lost).encode();
        let record = Record::new(Some(&key), value.as_deref(), std::iter::empty());
        self.figures.lost_timers += 1;
        self.end(now, lane, timer_id);
        self.writes.push(PendingWrite::timer_change(lane, record, ChangeReason::Lost));
        self.wake(now);
    }
}
