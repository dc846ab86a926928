//! Finds timers whose records are gone: they end as lost, and their names are free again.
//!
//! Who deletes records, or a topic, takes what was pending there; that it was pending is known all the same, and would be for
//! ever. The index tells which timers are overdue for long, and of those that are nowhere in memory the roll is called: once
//! their lane has let go all that could hold them, whoever has not come up is lost.
//!
//! # Invariants
//! 1. A timer is lost if it is overdue for `lost_after`, and at some time was neither in memory nor in a batch on its way, and
//!    was not met until all was let go that had been appended before that time and could hold it.
//! 2. That is all of the lane's intakes and of the tiers into which overdue records may hop. Into any other tier a record hops
//!    only if it is let go there by its due time: of those, what was to be let go by then.
//! 3. What is pending is never lost by what is not known: an end that nobody tells, a partition that is not read, an index that is
//!    behind all delay it.
//! 4. One that comes up all the same (a broker's clock that was ahead by more than `lost_after`) is revived, unless another
//!    version is pending by then.

use super::super::orders::Because;
use super::super::setup::Tracking;
use super::super::timers::{ByName, Change, Phase, Timer, TimerKey};
use super::{BatchId, Engine, Lane, Millis, Output, Ready, Record, Source, TopicId, UnixMillis};

/// Between two questions for what is overdue, each about one lane.
const ASK_EVERY: Millis = Millis(5_000);
/// While the roll is called it is asked this often where the lane's partitions end.
const ENDS_EVERY: Millis = Millis(2_000);
/// A lane that is not read so far by then is passed over, until it is its turn again.
const GIVE_UP_AFTER: Millis = Millis(120_000);
/// How far the clock of a leader that appended one of its hops may be ahead of what is known of the brokers' time.
const CLOCKS_APART: Millis = Millis(5_000);

/// Where a listing of timers by due time goes on: behind the timer of this due time and name.
pub type After = (UnixMillis, TimerKey);

/// Which timers are looked for.
#[derive(Debug, Default)]
pub(super) struct Calling {
    stage: Stage,
    /// Whose turn it is, and where its listing goes on.
    lane: u16,
    after: Option<After>,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Fresh,
    /// The next question is due then.
    Idle(UnixMillis),
    /// This lane has not answered.
    Asked(Lane),
    Called(Roll),
}

/// Timers of a lane that were nowhere to be found at a time.
#[derive(Debug)]
struct Roll {
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
    /// A record of this version is here.
    pub(super) fn met(&mut self, lane: Lane, name: TimerKey) {
        if let Stage::Called(roll) = &mut self.stage
            && roll.lane == lane
        {
            roll.absent.remove(&name);
        }
    }
}

impl Engine {
    /// Looks for lost timers, a step at a time.
    pub(super) fn look_for_lost(&mut self, now: UnixMillis, out: &mut Vec<Output>) {
        let is_full = self.setup.limits.tracking == Tracking::Full;
        if !is_full || self.draining || self.timers.live_len() == 0 {
            return;
        }
        match &self.calling.stage {
            Stage::Fresh => self.calling.stage = Stage::Idle(now + ASK_EVERY),
            Stage::Idle(at) if *at <= now => self.ask_for_overdue(now, out),
            Stage::Called(_) => self.call(now, out),
            Stage::Idle(_) | Stage::Asked(_) => {}
        }
        // Between two questions there is no hurry: whoever turns for something else comes by.
        if let Stage::Called(Roll { asked: Some(asked), .. }) = &self.calling.stage {
            self.wake(*asked + ENDS_EVERY);
        }
    }

    fn ask_for_overdue(&mut self, now: UnixMillis, out: &mut Vec<Output>) {
        let lanes = self.setup.lanes.max(1);
        let runs = |lane: u16| {
            let at = usize::from(lane);
            self.gates[at].is_known && self.holds.iter().all(|holds| holds[at].is_some())
        };
        let of = (0..lanes).map(|n| (self.calling.lane + n) % lanes).find(|lane| runs(*lane));
        let Some(of) = of else {
            self.calling.stage = Stage::Idle(now + ASK_EVERY);
            return;
        };
        let after = self.calling.after.filter(|_| of == self.calling.lane);
        self.calling = Calling { stage: Stage::Asked(Lane(of)), lane: of, after };
        out.push(Output::Overdue {
            lane: Lane(of),
            before: now - self.setup.limits.lost_after,
            after,
        });
    }

    /// The index has told which timers of a lane are overdue.
    pub(super) fn overdue(
        &mut self,
        now: UnixMillis,
        lane: Lane,
        timers: Vec<Timer>,
        more: Option<After>,
    ) {
        if !matches!(self.calling.stage, Stage::Asked(asked) if asked == lane) {
            return;
        }
        self.calling.after = more;
        let is_absent = |timer: &Timer| {
            timer.due < now - self.setup.limits.lost_after
                && self.timers.is_absent(lane, timer.name, timer.version)
        };
        let absent: ByName<Timer> =
            timers.into_iter().filter(is_absent).map(|timer| (timer.name, timer)).collect();
        if absent.is_empty() {
            return self.next_call(now);
        }
        let (at, batch) = (now, self.next_batch);
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

    fn call(&mut self, now: UnixMillis, out: &mut Vec<Output>) {
        let Stage::Called(roll) = &mut self.calling.stage else { return };
        if self.flying.front().is_some_and(|first| first.id < roll.batch) {
            return;
        }
        if !roll.has_landed {
            roll.has_landed = true;
            roll.at = now + CLOCKS_APART;
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
                out.push(Output::Ask(ask));
            }
        }
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

    /// A timer ends as lost, if it is what was pending still.
    fn lose(&mut self, now: UnixMillis, lane: Lane, timer: Timer) {
        if !self.timers.is_absent(lane, timer.name, timer.version) {
            return;
        }
        let lost = Timer { phase: Phase::Lost, since: now, ..timer };
        let name = lost.name;
        let (key, value) = Change::Timer(lost).encode();
        let record = Record::new(Some(&key), value.as_deref(), std::iter::empty());
        self.figures.lost_timers += 1;
        self.end(now, lane, name);
        self.ready.push_back(Ready::said(lane, record, Because::Lost));
        self.wake(now);
    }
}
