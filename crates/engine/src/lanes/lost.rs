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
//!    memory, nor in what waited for a batch, nor in a batch in flight. It did not come up before the lane let go of every record that could hold it and
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
use super::super::setup::Setup;
use super::super::timers::{After, ByName, Timer, TimerId};
use super::batches::Batches;
use super::behind::Behind;
use super::hops::last_for_overdue;
use super::inventory::Counting;
use super::partitions::Partitions;
use super::writes::Writes;
use super::{Lane, Millis, Source, UnixMillis};

/// Between two questions for what is overdue, each about one lane.
const ASK_EVERY: Millis = Millis(5_000);
/// During a roll call, how often to ask where the lane's partitions end.
const ENDS_EVERY: Millis = Millis(2_000);
/// A lane that is not read so far by then is passed over, until it is its turn again.
const GIVE_UP_AFTER: Millis = Millis(120_000);
/// How far the clock of a leader that appended one of its hops may be ahead of what is known of the brokers' time, and of all
/// that was read of its lane.
const CLOCKS_APART: Millis = Millis(5_000);

/// Which timers the roll call looks for.
#[derive(Debug, Default)]
pub(super) struct Calling {
    stage: RollStage,
    /// Whose turn it is, and where its listing goes on.
    lane: u16,
    after: Option<After>,
    /// Lanes of which records were found gone, and that are to be counted, not before a time.
    shrunk: BTreeMap<Lane, UnixMillis>,
}

#[derive(Debug, Default)]
enum RollStage {
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
struct Roll {
    lane: Lane,
    /// All that was appended before this must have been let go. It starts again when those writes have landed: a hop that
    /// was one of them stands after the time of the question.
    at: UnixMillis,
    has_landed: bool,
    /// Writes that were decided before may carry them.
    behind: Behind,
    absent: ByName<Timer>,
    ends_listed: Option<UnixMillis>,
}

impl Calling {
    /// Begins again where all held records were dropped: lanes are still to be counted.
    pub(super) fn renewed(&mut self) -> Self {
        Self { shrunk: std::mem::take(&mut self.shrunk), ..Self::default() }
    }

    /// Records of this lane were found gone.
    pub(super) fn has_shrunk(&mut self, lane: Lane) {
        self.shrunk.insert(lane, UnixMillis(0));
    }

    /// A record of this version is here.
    pub(super) fn found(&mut self, lane: Lane, timer_id: TimerId) {
        if let RollStage::Called(roll) = &mut self.stage
            && roll.lane == lane
        {
            roll.absent.remove(&timer_id);
        }
    }
    /// What is to be done next.
    pub(super) fn turn(&mut self, now: UnixMillis) -> Turn {
        match &self.stage {
            RollStage::Fresh => {
                self.stage = RollStage::Idle(now + ASK_EVERY);
                Turn::Wait
            }
            RollStage::Counting(_) => Turn::Count,
            RollStage::Idle(at) if *at <= now => Turn::Ask,
            RollStage::Called(_) => Turn::Call,
            RollStage::Idle(_) | RollStage::Asked(_) => Turn::Wait,
        }
    }

    /// When to look again, though nothing is told. Between two questions there is no hurry: a tick for another reason comes
    /// by here, too.
    pub(super) fn wake_at(&self) -> Option<UnixMillis> {
        match &self.stage {
            RollStage::Called(Roll { ends_listed: Some(at), .. }) => Some(*at + ENDS_EVERY),
            _ => None,
        }
    }

    // What is overdue.

    /// The lane to ask the index about, and where its listing goes on; of those that are at work.
    pub(super) fn ask(
        &mut self,
        now: UnixMillis,
        lanes: u16,
        is_at_work: impl Fn(Lane) -> bool,
    ) -> Option<(Lane, Option<After>)> {
        let lanes = lanes.max(1);
        let mut of = (0..lanes).map(|n| (self.lane + n) % lanes);
        let Some(of) = of.find(|lane| is_at_work(Lane(*lane))) else {
            self.stage = RollStage::Idle(now + ASK_EVERY);
            return None;
        };
        self.after = self.after.filter(|_| of == self.lane);
        self.lane = of;
        self.stage = RollStage::Asked(Lane(of));
        Some((Lane(of), self.after))
    }

    /// The index has answered about a lane; false: it was not asked.
    pub(super) fn answered(&mut self, lane: Lane, more: Option<After>) -> bool {
        let is_asked = matches!(self.stage, RollStage::Asked(asked) if asked == lane);
        if is_asked {
            self.after = more;
        }
        is_asked
    }

    /// Calls the roll for timers of the lane that was asked about. They are nowhere in memory; what is decided by now may
    /// carry them.
    pub(super) fn call(
        &mut self,
        now: UnixMillis,
        lane: Lane,
        absent: ByName<Timer>,
        behind: Behind,
    ) {
        if absent.is_empty() {
            return self.next_call(now);
        }
        let roll = Roll { lane, at: now, has_landed: false, behind, absent, ends_listed: None };
        self.stage = RollStage::Called(roll);
    }

    fn next_call(&mut self, now: UnixMillis) {
        if self.after.is_none() {
            self.lane = self.lane.wrapping_add(1);
        }
        self.stage = RollStage::Idle(now + ASK_EVERY);
    }

    /// Looks whether all was let go that could hold the absent ones.
    pub(super) fn look(
        &mut self,
        now: UnixMillis,
        (setup, partitions, writes, batches): (&Setup, &Partitions, &Writes, &Batches),
    ) -> Look {
        let RollStage::Called(roll) = &mut self.stage else { return Look::Wait };
        if !roll.behind.is_committed(writes, batches) {
            return Look::Wait;
        }
        let (lane, latest) = (roll.lane, latest(partitions, roll.lane).max(now));
        if !roll.has_landed {
            roll.has_landed = true;
            roll.at = latest + CLOCKS_APART;
        }
        let at = roll.at;
        let is_behind = |source: &Source| !has_let_go(setup, partitions, *source, at);
        let behind: Vec<Source> = partitions.of_lane(lane).filter(is_behind).collect();
        if behind.is_empty() || roll.absent.is_empty() {
            let absent = std::mem::take(&mut roll.absent);
            self.next_call(now);
            return Look::Lost(lane, absent);
        }
        if now > at + GIVE_UP_AFTER {
            self.next_call(now);
        } else if roll.ends_listed.is_none_or(|at| at + ENDS_EVERY <= now) {
            roll.ends_listed = Some(now);
            return Look::Ask(behind);
        }
        Look::Wait
    }

    // Lanes that are counted.

    /// The lane to count next, if none is counted and no roll is called. `may`: it is at work.
    pub(super) fn to_count(&self, now: UnixMillis, may: impl Fn(Lane) -> bool) -> Option<Lane> {
        if !matches!(self.stage, RollStage::Fresh | RollStage::Idle(_)) {
            return None;
        }
        // The one that waits for longest: one that cannot be read keeps no other waiting.
        let due = self.shrunk.iter().filter(|(lane, from)| **from <= now && may(**lane));
        due.min_by_key(|(_, from)| **from).map(|(lane, _)| *lane)
    }

    /// All lanes that are to be counted.
    pub(super) fn all_to_count(&self) -> Vec<Lane> {
        self.shrunk.keys().copied().collect()
    }

    /// Begins to count a lane. What is decided by now may carry what is missing.
    pub(super) fn begin_to_count(&mut self, lane: Lane, behind: Behind) {
        self.stage = RollStage::Counting(Counting::new(lane, behind));
    }

    /// The lane that is counted.
    pub(super) fn counting(&mut self) -> Option<&mut Counting> {
        if let RollStage::Counting(counting) = &mut self.stage { Some(counting) } else { None }
    }

    /// Whether a lane is counted.
    pub(super) fn is_counting(&self) -> bool {
        matches!(self.stage, RollStage::Counting(_))
    }

    /// Nothing follows from the count any more.
    pub(super) fn end_count(&mut self) {
        self.stage = RollStage::Fresh;
    }

    /// A lane need not be counted again.
    pub(super) fn was_counted(&mut self, lane: Lane) {
        self.shrunk.remove(&lane);
    }

    /// A lane was not read to its end: it is counted again then.
    pub(super) fn count_again(&mut self, lane: Lane, at: UnixMillis) {
        self.shrunk.insert(lane, at);
    }
}

/// What the roll call is about to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    Wait,
    /// Ask the index what is overdue.
    Ask,
    /// See who is absent.
    Call,
    /// Go on counting a lane.
    Count,
}

/// What was found of the absent timers.
#[derive(Debug)]
pub(super) enum Look {
    Wait,
    /// These partitions may hold them: ask where they end.
    Ask(Vec<Source>),
    /// These have not come up.
    Lost(Lane, ByName<Timer>),
}

/// The time up to which a lane's partitions are to be read, by their leaders' clocks. A leader whose clock is ahead
/// may have appended the missing records, too.
fn latest(partitions: &Partitions, lane: Lane) -> UnixMillis {
    let holds = partitions.of_lane(lane).filter_map(|source| partitions.get(source));
    holds.map(Hold::read_upto).max().unwrap_or_default()
}

/// Whether a partition has let go all that was appended before a time and could hold what was overdue then.
fn has_let_go(setup: &Setup, partitions: &Partitions, source: Source, at: UnixMillis) -> bool {
    let ladder = &setup.topics.ladder;
    let wait = match setup.topics.tier_of(source.topic) {
        Some(tier) if tier > last_for_overdue(setup) => {
            ladder.tiers().get(tier).map_or(Millis(0), |tier| tier.wait())
        }
        _ => Millis(0),
    };
    partitions.get(source).is_some_and(|hold| hold.gone_upto() >= at - wait)
}
