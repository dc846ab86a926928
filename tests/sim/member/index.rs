//! The index of a process: what it has read of the changelog of its lanes. It may survive on the process's disk, or
//! not.
//!
//! Each query waits until the index has passed the end offset that was asked for before. The queries are: the pieces of
//! pending timers at a take-over, the timers that ended long ago, and the end of a timer that a cancel did not find.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use waterclock::engine::messages::{Answer, Event, Outcome};
use waterclock::engine::task::follow_up::FollowUp;
use waterclock::engine::timers::{
    self, About, CancelMark, Change, Cursor, Ended, Forgettable, Found, Live, RunProgress, Timer,
    TimerId, Written,
};
use waterclock::engine::{After, Lane, Offset, UnixMillis};

use super::{Up, number_of};
use crate::broker::Place;
use crate::mutation::Mutation;
use crate::network::{Request, Scheduled, Told, Wake, Why};
use crate::plan::SECOND;
use crate::world::World;

/// Timers that are told as ended at once, at most.
const ENDED_MAX: usize = 500;
/// Overdue timers that are told at once, at most.
const OVERDUE_MAX: usize = 20;
/// Older states of a lane's index that a crash may bring back.
const SNAPSHOTS: usize = 3;

/// One lane's index.
#[derive(Clone, Debug, Default)]
pub struct Index {
    next: Offset,
    /// When something was taken in last.
    at: UnixMillis,
    timers: BTreeMap<TimerId, Timer>,
    cancel_marks: BTreeMap<TimerId, CancelMark>,
    /// Of tasks whose executors report.
    follow_ups: BTreeMap<TimerId, Arc<FollowUp>>,
    /// How far executors came.
    cursors: BTreeMap<TimerId, Cursor>,
    /// How far the shards of runs are.
    runs: BTreeMap<TimerId, Box<RunProgress>>,
}

impl Index {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Timer(timer) => drop(self.timers.insert(timer.timer_id, timer)),
            Change::CancelMark(mark) => drop(self.cancel_marks.insert(mark.timer_id, mark)),
            Change::ForgottenTimer(timer_id) => drop(self.timers.remove(&timer_id)),
            Change::ForgottenCancelMark(timer_id) => drop(self.cancel_marks.remove(&timer_id)),
            Change::Definition(timer_id, definition) => {
                let follow_up = FollowUp::of_awaited(&definition).map(Arc::new);
                self.follow_ups.extend(follow_up.map(|follow_up| (timer_id, follow_up)));
            }
            Change::ForgottenDefinition(timer_id) => drop(self.follow_ups.remove(&timer_id)),
            Change::Attempt(attempt) => {
                self.cursors.extend(attempt.cursor().map(|cursor| (attempt.timer_id, cursor)));
            }
            Change::ForgottenAttempt(timer_id, _) => drop(self.cursors.remove(&timer_id)),
            Change::Shards(timer_id, run) => drop(self.runs.insert(timer_id, run)),
            Change::ForgottenShards(timer_id) => drop(self.runs.remove(&timer_id)),
        }
    }
}

/// All indexes on a slot's disk, and older states of them that were written once.
#[derive(Debug, Default)]
pub struct Disk {
    lanes: BTreeMap<i32, Index>,
    snapshots: BTreeMap<i32, VecDeque<Index>>,
}

/// One who waits until the index has passed an offset.
#[derive(Debug)]
pub struct Waiting {
    lane: i32,
    end: Offset,
    what: What,
}

#[derive(Debug)]
enum What {
    Known,
    Ended,
    Recall(Vec<TimerId>),
    /// A command that found nothing: its submission, and what it was about.
    Lookup {
        number: usize,
        name: TimerId,
        about: About,
    },
}

/// Pieces of what is known of a lane, the last of them whole.
pub type Pieces = VecDeque<(Vec<Live>, Vec<CancelMark>)>;

impl World {
    fn changelog(&self, lane: i32) -> Place {
        Place { topic: self.timers_topic, partition: lane }
    }

    /// Where the changelog of a lane ends, open transactions or not.
    pub fn changelog_end(&self, lane: i32) -> Offset {
        self.broker.partition(self.changelog(lane)).map(|log| log.end()).unwrap_or_default()
    }

    /// Lets the indexes of living processes go on, each in its own time.
    pub(super) fn rouse_index(&mut self, slot: usize) {
        let member = &self.members[slot];
        let behind = |lane: &i32| {
            let log = self.broker.partition(self.changelog(*lane));
            let next = member.disk.lanes.get(lane).map_or(Offset(0), |index| index.next);
            log.is_some_and(|log| next < log.last_stable())
        };
        if member.up != Up::Alive || member.following {
            return;
        }
        let waits = || member.waiting.iter().any(|waiting| self.is_past(slot, waiting));
        if waits() || member.followed.iter().any(behind) {
            let wait = self.chance.latency(self.plan.index_lag_max);
            let process = self.members[slot].process();
            self.member(slot).following = true;
            self.wake(process, wait, Wake::Follow);
        }
    }

    fn is_past(&self, slot: usize, waiting: &Waiting) -> bool {
        let index = self.members[slot].disk.lanes.get(&waiting.lane);
        index.map_or(Offset(0), |index| index.next) >= waiting.end
    }

    /// Takes in some of the changelog, and answers those who waited for it.
    pub(super) fn follow(&mut self, slot: usize) {
        self.member(slot).following = false;
        for lane in self.members[slot].followed.clone() {
            let most = self.chance.spread(1, 200) as usize;
            self.follow_lane(slot, lane, most);
        }
        let waiting = std::mem::take(&mut self.member(slot).waiting);
        let round = self.members[slot].round;
        let (ready, rest): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|waiting| self.is_past(slot, waiting));
        self.member(slot).waiting = rest;
        for waiting in ready {
            let member = self.member(slot);
            if member.round != round {
                break;
            }
            // The process may freeze at an answer. It gets the others once it goes on.
            if member.up == Up::Alive {
                self.answer_waiting(slot, waiting);
            } else {
                member.waiting.push(waiting);
            }
        }
        self.stirred = true;
    }

    fn follow_lane(&mut self, slot: usize, lane: i32, most: usize) {
        let (place, now) = (self.changelog(lane), self.now(slot));
        let mut index = self.member(slot).disk.lanes.remove(&lane).unwrap_or_default();
        for _ in 0..most {
            let Ok(Some((offset, entry))) = self.broker.fetch(place, index.next) else { break };
            let record = entry.record.as_ref();
            match record.map(|record| Change::decode(record.key(), record.value())) {
                Some(Ok(change)) => index.apply(change),
                unreadable => {
                    let what = format!("{offset:?} of lane {lane}: {unreadable:?}");
                    self.breach("timers", what);
                    break;
                }
            }
            (index.next, index.at) = (offset.next(), now);
        }
        let log = self.broker.partition(place);
        if let Some(log) = log
            && matches!(self.broker.fetch(place, index.next), Ok(None))
        {
            index.next = index.next.max(log.last_stable());
            index.at = now;
        }
        if self.chance.percent(20) {
            let snapshots = self.member(slot).disk.snapshots.entry(lane).or_default();
            snapshots.truncate(SNAPSHOTS - 1);
            snapshots.push_front(index.clone());
        }
        self.member(slot).disk.lanes.insert(lane, index);
    }

    /// Begins to follow a lane. What the disk has of it is of use only if the changelog still has every tombstone that it
    /// has not seen. So that is looked at before anything more is read, as `Work::load` does it.
    pub(super) fn look_at_index(&mut self, slot: usize, lane: i32) {
        let (now, keep) = (self.now(slot), self.plan.tombstones);
        self.member(slot).followed.insert(lane);
        let end = self.changelog_end(lane);
        let Some(index) = self.members[slot].disk.lanes.get(&lane) else { return };
        let stale = (now - index.at).0 > keep / 2 && index.next > Offset(0);
        if stale || index.next > end {
            self.count("indexes refused");
            self.member(slot).disk.lanes.remove(&lane);
            self.member(slot).disk.snapshots.remove(&lane);
        }
    }

    /// What a crash leaves of the indexes: all, what was written some time ago, or nothing.
    pub fn tear_index(&mut self, slot: usize) {
        let lanes: Vec<i32> = self.members[slot].disk.lanes.keys().copied().collect();
        for lane in lanes {
            let torn = match self.chance.between(0, 5) {
                0 => {
                    self.count("indexes missing");
                    Some(Index::default())
                }
                1 | 2 => {
                    let of = self.members[slot].disk.snapshots.get(&lane).map_or(0, VecDeque::len);
                    let older = (of > 0).then(|| self.chance.below(of));
                    older.and_then(|older| {
                        let snapshots = self.members[slot].disk.snapshots.get(&lane)?;
                        snapshots.get(older).cloned()
                    })
                }
                _ => None,
            };
            if let Some(torn) = torn {
                self.count("indexes torn");
                self.member(slot).disk.lanes.insert(lane, torn);
            }
        }
    }

    /// Somebody waits until the index has passed this.
    pub(super) fn wait_for_index(&mut self, slot: usize, lane: i32, why: Why, end: Offset) {
        let what = match why {
            Why::Known => What::Known,
            Why::Ended => What::Ended,
            Why::Recall(timers) => What::Recall(timers),
        };
        self.member(slot).waiting.push(Waiting { lane, end, what });
        self.stirred = true;
    }

    fn answer_waiting(&mut self, slot: usize, waiting: Waiting) {
        let Waiting { lane, what, .. } = waiting;
        match what {
            What::Known => self.tell_known(slot, lane),
            What::Ended => self.tell_ended(slot, lane),
            What::Recall(timers) => self.tell_recalled(slot, lane, timers),
            What::Lookup { number, name: timer_id, about } => {
                let last = self.members[slot].disk.lanes[&lane].timers.get(&timer_id);
                let told = match last {
                    // Whatever the last state is of.
                    Some(last) if self.mutation == Some(Mutation::AnswersOfAnother) => {
                        Found::Ended(last.state)
                    }
                    last => about.found(last),
                };
                let told = match told {
                    Found::Nothing if self.mutation == Some(Mutation::SaysSuperseded) => {
                        Found::Replaced
                    }
                    told => told,
                };
                self.tell_client(slot, number, Told::Found(told));
            }
        }
    }

    // What is known at a take-over.

    fn tell_known(&mut self, slot: usize, lane: i32) {
        let index = self.members[slot].disk.lanes.get(&lane).cloned().unwrap_or_default();
        let mut live: Vec<Live> = index.timers.values().filter_map(Timer::live).collect();
        for live in &mut live {
            live.follow_up = index.follow_ups.get(&live.timer_id).map(Arc::clone);
            live.run = index.runs.get(&live.timer_id).cloned();
            if self.mutation != Some(Mutation::ForgetsCursors) {
                let cursor = index.cursors.get(&live.timer_id);
                live.cursor = cursor.cloned();
            }
        }
        let mut cancel_marks: Vec<CancelMark> = index.cancel_marks.values().copied().collect();
        match self.mutation {
            Some(Mutation::ForgetsVoids) => cancel_marks.clear(),
            Some(Mutation::ForgetsLive) => live.clear(),
            Some(Mutation::ComparesWithoutOrder) => {
                for mark in &mut cancel_marks {
                    let offset = Offset(timers::NOT_IN_LOG_ORDER - 1);
                    let last = timers::Version { first_appended: UnixMillis(u64::MAX), offset };
                    mark.before = mark.before.or(last);
                }
            }
            _ => {}
        }
        self.misremember(&mut live);
        self.note(|| {
            format!(
                "slot {slot} knows {} live, {} void of lane {lane}",
                live.len(),
                cancel_marks.len()
            )
        });
        let mut pieces = Pieces::new();
        for _ in 0..self.chance.between(0, 3) {
            let (some, more) = (live.len() / 2, cancel_marks.len() / 2);
            pieces.push_back((live.split_off(some), cancel_marks.split_off(more)));
        }
        let last = (live, cancel_marks);
        pieces.push_back(if self.mutation == Some(Mutation::DropsLastPiece) {
            Default::default()
        } else {
            last
        });
        self.member(slot).pieces.insert(lane, pieces);
        self.next_piece(slot, lane);
    }

    fn next_piece(&mut self, slot: usize, lane: i32) {
        let wait = self.chance.latency(self.plan.index_lag_max);
        let (process, round) = (self.members[slot].process(), self.members[slot].round);
        self.wake(process, wait, Wake::Piece(round, lane));
    }

    pub(super) fn piece(&mut self, slot: usize, lane: i32) {
        let Some(pieces) = self.member(slot).pieces.get_mut(&lane) else { return };
        let Some((live, cancel_marks)) = pieces.pop_front() else { return };
        let whole = pieces.is_empty();
        if whole {
            self.member(slot).pieces.remove(&lane);
            self.member(slot).loaded.insert(lane);
            self.count("lanes known");
        } else {
            self.next_piece(slot, lane);
        }
        self.step(
            slot,
            Event::TimersLoaded { lane: Lane(lane as u16), live, cancel_marks, last: whole },
        );
        self.step(slot, Event::Tick);
    }

    fn tell_ended(&mut self, slot: usize, lane: i32) {
        let now = self.members[slot].last_now;
        let forgettable = Forgettable::at(now, self.plan.setup.limits.history);
        let index = self.members[slot].disk.lanes.get(&lane);
        let ended = index.into_iter().flat_map(|index| index.timers.values());
        let ended: Vec<&Timer> =
            ended.filter(|timer| forgettable.has(timer)).take(ENDED_MAX).collect();
        let timers = ended.iter().map(|timer| timer.timer_id).collect();
        let written = |timer: &&Timer| Some((timer.timer_id, Written::of(timer)?));
        let tasks = ended.iter().filter_map(written).collect();
        self.step(slot, Event::Expired { lane: Lane(lane as u16), timers, tasks });
    }

    fn tell_recalled(&mut self, slot: usize, lane: i32, timers: Vec<TimerId>) {
        // A copy of a task that has ended is seen twice: by its turn, and by what the index remembers.
        let forgets =
            matches!(self.mutation, Some(Mutation::ForgetsEnded | Mutation::RevivesCopies));
        let index = self.members[slot].disk.lanes.get(&lane).filter(|_| !forgets);
        let ended = |timer_id: TimerId| {
            let timer = index.and_then(|index| index.timers.get(&timer_id));
            let ended = timer.and_then(Timer::ended);
            // Only what has failed may be brought back.
            let was_cancelled = |of: &Ended| of.state == timers::TimerState::Cancelled;
            let is_misread = self.mutation == Some(Mutation::RevivesCancelled)
                && ended.as_ref().is_some_and(was_cancelled);
            let state = |of: Ended| Ended { state: timers::TimerState::Dead, ..of };
            (timer_id, if is_misread { ended.map(state) } else { ended })
        };
        let timers: Vec<_> = timers.into_iter().map(ended).collect();
        let found = timers.iter().filter(|(_, ended)| ended.is_some()).count() as u64;
        *self.seen.entry("recalled").or_default() += timers.len() as u64;
        *self.seen.entry("recalled as ended").or_default() += found;
        self.step(slot, Event::Recalled { lane: Lane(lane as u16), timers });
        self.step(slot, Event::Tick);
    }

    /// Reports what the index has by now, even if it is behind.
    pub(super) fn tell_overdue(
        &mut self,
        slot: usize,
        lane: Lane,
        before: UnixMillis,
        after: Option<After>,
    ) {
        let index = self.members[slot].disk.lanes.get(&i32::from(lane.0));
        let pending = index.into_iter().flat_map(|index| index.timers.values());
        let mut overdue: Vec<Timer> = pending
            .filter(|timer| !timer.state.is_final() && timer.due < before)
            .filter(|timer| after.is_none_or(|after| after < (timer.due, timer.timer_id)))
            .cloned()
            .collect();
        overdue.sort_unstable_by_key(|timer| (timer.due, timer.timer_id));
        let is_all = overdue.len() <= OVERDUE_MAX;
        overdue.truncate(OVERDUE_MAX);
        let more = overdue.last().map(|last| (last.due, last.timer_id)).filter(|_| !is_all);
        let lost = |world: &Self| {
            world.members[slot].engine.as_ref().map_or(0, |engine| engine.figures().lost_timers)
        };
        let lost_before = lost(self);
        self.step(slot, Event::Overdue { lane, timers: overdue, more });
        // A lane was counted that has all its records: where timers are, nothing is deleted. In at_least_once a former owner may
        // have said that one is pending which had ended.
        let has_all = self.plan.exactly_once();
        if has_all && before == UnixMillis(u64::MAX) && lost(self) > lost_before {
            self.breach(
                "never lost",
                format!("slot {slot} has counted lane {} and missed timers", lane.0),
            );
        }
    }

    pub(super) fn order_changelog_end(&mut self, slot: usize, lane: Lane, why: Why) {
        self.ask(slot, Request::Changelog(i32::from(lane.0), why));
    }

    // Answers.

    /// A command's answer may leave: what it was in is committed.
    pub(super) fn answer(&mut self, slot: usize, answer: &Answer) {
        if self.plan.tasks.is_some() {
            return self.task_answered(answer);
        }
        let (place, lane) = (self.place(answer.source), i32::from(answer.source.lane.0));
        let entry = self.broker.partition(place).and_then(|log| log.read(answer.offset));
        let record = entry.and_then(|entry| entry.record.as_ref());
        let Some(number) = record.and_then(number_of).map(|number| number as usize) else {
            let what = format!("slot {slot} answers what is not there: {answer:?}");
            return self.breach("answers", what);
        };
        if answer.outcome != Outcome::Absent {
            return self.tell_client(slot, number, Told::By(answer.outcome));
        }
        let Answer { timer_id, about, .. } = *answer;
        let what = What::Lookup { number, name: timer_id, about };
        let end = self.changelog_end(lane);
        self.member(slot).waiting.push(Waiting { lane, end, what });
        self.stirred = true;
    }

    fn tell_client(&mut self, slot: usize, number: usize, told: Told) {
        self.note(|| format!("slot {slot} tells n={number} {told:?}"));
        if !self.healed() && self.chance.percent(self.plan.network.answers_lost) {
            return self.count("answers lost");
        }
        let late = if self.chance.percent(10) { self.chance.spread(1, 2 * SECOND) } else { 0 };
        let wait = self.latency() + late;
        let told = match told {
            Told::By(Outcome::Cancelled) if self.mutation == Some(Mutation::SaysDelivered) => {
                Told::Found(Found::Ended(timers::TimerState::Delivered))
            }
            told => told,
        };
        if self.mutation == Some(Mutation::AnswersTwice) && self.chance.percent(20) {
            self.after(wait, Scheduled::Told(number, Told::By(Outcome::Superseded)));
        }
        self.after(wait, Scheduled::Told(number, told));
    }
}
