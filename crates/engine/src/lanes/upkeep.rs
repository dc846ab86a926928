//! What each tick does about timers beside their records: what came late, what is to be forgotten, what was lost.

use super::super::messages::{Action, ChangeReason, Left};
use super::super::setup::Tracking;
use super::super::task::id::TaskId;
use super::super::timers::{
    After, ByName, CancelMark, Change, Ended, Timer, TimerId, TimerState, Version, Written,
    group_of, progress,
};
use super::behind::Behind;
use super::inventory::{AGAIN_AFTER, Step};
use super::lost::{Look, Turn};
use super::past::Waiting;
use super::retention::FORGET_MAX;
use super::writes::PendingWrite;
use super::{Lane, LaneEngine, Record, TopicId, UnixMillis};

impl LaneEngine {
    // What has ended, for records that come late.

    /// Asks what has ended, once all is committed that was decided before.
    pub(super) fn ask_for_past(&mut self, out: &mut Vec<Action>) {
        let by_lane = self.timers.past.ask(&self.writes, &self.batches);
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
        if !self.timers.past.answered(lane) {
            return;
        }
        for (timer_id, ended) in timers {
            let Some(queue) = self.timers.past.learn((lane, timer_id), ended) else { continue };
            for waiting in queue {
                match waiting {
                    Waiting::Entry(entry) => self.admit(now, entry, out),
                    Waiting::Refused(refused) => {
                        let (letter, dead) = *refused;
                        let is_live = self.timers.table().live(lane, timer_id).is_some();
                        // What waited before it may have been pending, and ended.
                        let is_known = is_live || !self.timers.past.is_blank((lane, timer_id));
                        self.write_dead_letter_and_change(
                            lane,
                            letter,
                            (!is_known).then_some(dead),
                        );
                    }
                }
            }
            self.timers.past.forget();
        }
        self.wake_waiting(lane);
        self.agenda.wake(now);
    }

    // What is to be forgotten.

    /// Forgets cancel marks whose time is over.
    pub(super) fn forget(&mut self, now: UnixMillis) {
        if self.timers.table().forget_at().is_none_or(|at| at > now) {
            return;
        }
        let lanes = self.partitions.may_forget(now);
        let may = |lane: Lane| lanes.binary_search(&lane).is_ok();
        for (lane, timer_id) in self.timers.forget(now, FORGET_MAX, may) {
            self.write_forgotten(lane, &CancelMark::key(timer_id));
        }
    }

    /// Lists what has expired, when it is time for that.
    pub(super) fn list_expired(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        if self.setup.limits.tracking != Tracking::Full {
            return;
        }
        let partitions = &self.partitions;
        let lanes = || {
            let may = partitions.may_forget(now).into_iter();
            may.filter(|lane| partitions.runs(*lane)).collect()
        };
        let (lanes, at) = self.timers.retention.ask(now, (&self.writes, &self.batches), lanes);
        out.extend(lanes.into_iter().map(Action::ListExpired));
        if let Some(at) = at {
            self.agenda.wake(at);
        }
    }

    /// The index has told which timers of a lane may be forgotten.
    pub(super) fn expired(
        &mut self,
        now: UnixMillis,
        lane: Lane,
        timers: Vec<TimerId>,
        tasks: &[(TimerId, Written)],
    ) {
        if let Some(expired) = self.timers.expired(lane, timers) {
            let tasks: ByName<Written> = tasks.iter().copied().collect();
            for timer_id in &expired {
                if let Some(Written { attempts, is_run }) = tasks.get(timer_id).copied() {
                    self.write_forgotten(lane, &progress::definition_key(*timer_id));
                    if is_run {
                        self.write_forgotten(lane, &progress::shards_key(*timer_id));
                    }
                    for number in 1..=attempts.min(u32::from(progress::SLOTS)) {
                        let key = progress::attempt_key(*timer_id, progress::slot(number));
                        self.write_forgotten(lane, &key);
                    }
                }
                self.write_forgotten(lane, &timer_id.0);
            }
            self.agenda.wake(now);
        }
        if let Some(at) = self.timers.retention.settle(now) {
            self.agenda.wake(at);
        }
    }

    pub(super) fn write_forgotten(&mut self, lane: Lane, key: &[u8]) {
        let record = Record::new(Some(key), None, std::iter::empty());
        self.writes.push(PendingWrite::timer_change(lane, record, ChangeReason::Forgotten));
    }

    // What was lost.

    /// Looks for lost timers, a step at a time.
    pub(super) fn look_for_lost(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        if self.memory.is_draining() {
            return;
        }
        if !self.is_full() || self.timers.table().live_len() == 0 {
            // No timer is pending, or none is known: there is nothing to count.
            for lane in self.timers.calling.all_to_count() {
                if self.partitions.is_at_work(lane) {
                    self.end_count(lane);
                }
            }
            return;
        }
        if self.begin_to_count(now) {
            return;
        }
        match self.timers.calling.turn(now) {
            Turn::Wait => {}
            Turn::Ask => self.ask_for_overdue(now, out),
            Turn::Call => self.call_roll(now, out),
            Turn::Count => self.count(out),
        }
        if let Some(at) = self.timers.calling.wake_at() {
            self.agenda.wake(at);
        }
    }

    fn ask_for_overdue(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        let is_at_work = |lane| self.partitions.is_at_work(lane);
        let asked = self.timers.calling.ask(now, self.setup.lanes, is_at_work);
        let before = now - self.setup.limits.lost_after;
        out.extend(asked.map(|(lane, after)| Action::Overdue { lane, before, after }));
    }

    /// The index has told which timers of a lane are overdue, or pending.
    pub(super) fn overdue(
        &mut self,
        now: UnixMillis,
        lane: Lane,
        timers: Vec<Timer>,
        more: Option<After>,
    ) {
        if let Some(counting) = self.timers.calling.counting() {
            if counting.was_listed(lane, more) {
                self.listed(now, lane, timers);
            }
            return;
        }
        if !self.timers.calling.answered(lane, more) {
            return;
        }
        let table = self.timers.table();
        let is_absent = |timer: &Timer| {
            // A task that waits for its next turn or round stands in the tier for that time.
            let due = timer.task.map_or(timer.due, |progress| progress.next_at.max(timer.due));
            due < now - self.setup.limits.lost_after
                && table.is_absent(lane, timer.timer_id, timer.version)
        };
        let absent: ByName<Timer> =
            timers.into_iter().filter(is_absent).map(|timer| (timer.timer_id, timer)).collect();
        if !absent.is_empty() {
            self.agenda.wake(now);
        }
        self.timers.calling.call(now, lane, absent, Behind::all(&self.writes));
    }

    fn call_roll(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        let known = (&*self.setup, &self.partitions, &self.writes, &self.batches);
        match self.timers.calling.look(now, known) {
            Look::Wait => {}
            Look::Lost(lane, absent) => {
                for timer in absent.into_values() {
                    self.lose(now, lane, timer);
                }
            }
            Look::Ask(mut behind) => {
                behind.retain(|source| self.watermarks.ask(*source));
                if !behind.is_empty() {
                    out.push(Action::ListEndOffsets(behind));
                }
            }
        }
    }

    /// A timer ends as lost, if it is what was pending still.
    fn lose(&mut self, now: UnixMillis, lane: Lane, timer: Timer) {
        let is_absent = self.timers.table().is_absent(lane, timer.timer_id, timer.version);
        // Its record stands in `<ns>.tasks`, which nobody looks through here. Another copy of it may have gone into a tier since.
        let progress = self.timers.tasks.progress(timer.timer_id);
        let is_held = progress.is_some_and(|progress| progress.held.is_some());
        if !is_absent || is_held || self.came_by_an_unknown_intake(timer.version) {
            return;
        }
        let label = timer.label.as_deref();
        let project = group_of(label).map(|(project, _)| project);
        let task = timer.task.map(|task| self.kept(now, project, task));
        let id = std::str::from_utf8(&timer.id).ok().and_then(|id| TaskId::parse(id).ok());
        let lost = Timer { state: TimerState::Lost, since: now, task, ..timer };
        let timer_id = lost.timer_id;
        let (key, value) = Change::Timer(lost).encode();
        let record = Record::new(Some(&key), value.as_deref(), std::iter::empty());
        if let (Some(live), Some(id)) = (self.timers.table().live(lane, timer_id), id) {
            self.cancel_shards(now, &id, (lane, timer_id, live));
        }
        self.timers.lose(now, lane, timer_id);
        self.writes.push(PendingWrite::timer_change(lane, record, ChangeReason::Lost));
        self.agenda.wake(now);
    }

    /// Whether a version came by an intake that is not configured any more: its record may wait there, and is not read.
    fn came_by_an_unknown_intake(&self, version: Version) -> bool {
        let topics = &self.setup.topics;
        let mut marks = (0..topics.names().len()).map(|topic| topics.mark(TopicId(topic as u16)));
        version.mark().is_some_and(|mark| !marks.any(|known| known == mark))
    }

    // Lanes that are counted.

    /// Whether a lane is counted: what is left of it comes in pieces.
    #[must_use]
    pub fn is_counting(&self) -> bool {
        self.timers.calling.is_counting() && self.timers.table().live_len() > 0
    }

    /// The next owner of the lane need not count it again: the lane's positions are committed as they are now.
    fn end_count(&mut self, lane: Lane) {
        self.timers.calling.was_counted(lane);
        self.partitions.touch(lane);
        self.batches.touch();
    }

    /// Begins with a lane that has shrunk, if there is one here.
    fn begin_to_count(&mut self, now: UnixMillis) -> bool {
        let may = |lane| self.partitions.is_at_work(lane);
        let Some(lane) = self.timers.calling.to_count(now, may) else { return false };
        if self.timers.miss(lane) == 0 {
            self.end_count(lane);
            return false;
        }
        self.timers.calling.begin_to_count(lane, Behind::all(&self.writes));
        self.agenda.wake(now);
        true
    }

    /// The next step of a count.
    fn count(&mut self, out: &mut Vec<Action>) {
        let Some(counting) = self.timers.calling.counting() else { return };
        let lane = counting.lane();
        match counting.step(&self.writes, &self.batches) {
            Step::Wait => {}
            Step::Read => {
                let low = |source| Some((source, self.partitions.get(source)?.low()));
                let from = self.partitions.of_lane(lane).filter_map(low).collect();
                out.push(Action::Inventory { lane, from });
            }
            Step::List(after) => {
                out.push(Action::Overdue { lane, before: UnixMillis(u64::MAX), after });
            }
            Step::Done => {
                self.timers.calling.end_count();
                self.end_count(lane);
            }
        }
    }

    /// Records were found.
    pub(super) fn left(&mut self, lane: Lane, records: &[Left]) {
        for Left { source, offset, timer_id, version } in records {
            let hold = self.partitions.get(*source);
            if source.lane == lane && hold.is_some_and(|hold| hold.is_open(*offset)) {
                self.timers.found(lane, *timer_id, *version);
            }
        }
    }

    /// A lane was read.
    pub(super) fn counted(&mut self, now: UnixMillis, lane: Lane, is_complete: bool) {
        let counting = self.timers.calling.counting();
        if !counting.is_some_and(|counting| counting.was_read(lane)) {
            return;
        }
        if !is_complete {
            self.timers.calling.count_again(lane, now + AGAIN_AFTER);
            self.timers.calling.end_count();
        }
        self.agenda.wake(now);
    }

    /// The index has told of some of a lane's pending timers.
    fn listed(&mut self, now: UnixMillis, lane: Lane, timers: Vec<Timer>) {
        for timer in timers {
            if self.timers.table().is_missing(lane, timer.timer_id, timer.version) {
                self.lose(now, lane, timer);
            }
        }
        self.agenda.wake(now);
    }
}
