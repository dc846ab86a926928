//! Retention: forgets cancel marks whose time is over, and what became of timers that ended long ago.
//!
//! The engine does not remember timers that ended; the index does, and is behind. So the index lists those that have
//! expired. What ends between the question and the answer is noted: the index does not mean that.
//!
//! # Invariants
//! 1. Cancel marks are forgotten after their `until`, and what ended after `history`; and while their lane is on time: in a
//!    lane that is late a record of them may still stand in a tier. Nor soon after their lane was taken over: while nobody
//!    owned it time went on, and a record of them may still stand in the intake of another lane.
//! 2. A timer is forgotten only if it is not pending and has not ended since the question; whatever ended before that
//!    was committed when the question left.
//! 3. One question at a time for a lane, and none while the last one is not answered.

use super::super::Record;
use super::super::messages::ChangeReason;
use super::super::timers::{CancelMark, Names, TimerId};
use super::behind::Behind;
use super::{Action, Lane, LaneEngine, Millis, PendingWrite, Tracking, UnixMillis};

/// Cancel marks that one batch forgets, at most: it must not grow because their time is over.
const FORGET_MAX: usize = 100;
/// How often to ask what may be forgotten, when there was nothing the last time.
const ASK_EVERY: Millis = Millis(60_000);
/// More than these that ended meanwhile are not noted, and the answer is passed over.
const NOTES_MAX: usize = 200_000;

/// Where the question stands.
#[derive(Debug, Default)]
pub(super) struct Retention {
    stage: Stage,
    /// Timers that ended since.
    notes: Names,
    is_overrun: bool,
    /// Somebody had something to forget: ask again at once.
    again: bool,
}

#[derive(Debug, Default)]
enum Stage {
    /// No question is open; the next one is due then, once that is set.
    #[default]
    Fresh,
    Idle(UnixMillis),
    /// Earlier decisions are not committed yet.
    Behind(Behind),
    /// These lanes have not answered.
    Asked(Vec<Lane>),
}

impl Retention {
    /// A timer has ended.
    pub(super) fn note(&mut self, timer_id: TimerId) {
        if matches!(self.stage, Stage::Fresh | Stage::Idle(_)) || self.is_overrun {
            return;
        }
        self.notes.insert(timer_id);
        if self.notes.len() > NOTES_MAX {
            self.notes = Names::default();
            self.is_overrun = true;
        }
    }
}

impl LaneEngine {
    /// Forgets cancel marks whose time is over.
    pub(super) fn forget(&mut self, now: UnixMillis) {
        if self.timers.forget_at().is_none_or(|at| at > now) {
            return;
        }
        let lanes = self.may_forget(now);
        let may = |lane: Lane| lanes.binary_search(&lane).is_ok();
        for (lane, timer_id) in self.timers.forget(now, FORGET_MAX, may) {
            let record = Record::new(Some(&CancelMark::key(timer_id)), None, std::iter::empty());
            self.writes.push(PendingWrite::timer_change(lane, record, ChangeReason::Forgotten));
        }
    }

    /// The lanes that may forget, ascending.
    fn may_forget(&self, now: UnixMillis) -> Vec<Lane> {
        let may = |lane: &Lane| {
            let at = usize::from(lane.0);
            let mut holds = self.holds.iter().map(|holds| &holds[at]);
            let gate = &self.gates[at];
            gate.is_known
                && gate.forgets_from <= now
                && holds.all(|hold| hold.as_ref().is_none_or(|hold| hold.on_time(now)))
        };
        (0..self.setup.lanes).map(Lane).filter(may).collect()
    }

    fn runs(&self, lane: Lane) -> bool {
        self.holds[0][usize::from(lane.0)].is_some()
    }

    /// Lists what has expired, when it is time for that.
    pub(super) fn list_expired(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        if self.setup.limits.tracking != Tracking::Full {
            return;
        }
        match self.retention.stage {
            Stage::Fresh => self.retention.stage = Stage::Idle(now + ASK_EVERY),
            Stage::Idle(at) if at <= now => {
                let stage = Stage::Behind(self.decided());
                self.retention = Retention { stage, ..Retention::default() };
            }
            _ => {}
        }
        if let Stage::Behind(mut behind) = self.retention.stage {
            if self.is_committed(&mut behind) {
                let lanes: Vec<Lane> =
                    self.may_forget(now).into_iter().filter(|lane| self.runs(*lane)).collect();
                out.extend(lanes.iter().map(|lane| Action::ListExpired(*lane)));
                self.retention.stage = Stage::Asked(lanes);
                self.settle_retention(now);
            } else {
                self.retention.stage = Stage::Behind(behind);
            }
        }
        if let Stage::Idle(at) = self.retention.stage {
            self.wake(at);
        }
    }

    /// The index has told which timers of a lane may be forgotten.
    pub(super) fn expired(&mut self, now: UnixMillis, lane: Lane, timers: Vec<TimerId>) {
        let Stage::Asked(lanes) = &mut self.retention.stage else { return };
        let Some(at) = lanes.iter().position(|asked| *asked == lane) else { return };
        lanes.remove(at);
        self.retention.again |= !timers.is_empty();
        if !self.retention.is_overrun {
            for timer_id in timers {
                if self.timers.live(lane, timer_id).is_some()
                    || self.retention.notes.contains(&timer_id)
                {
                    continue;
                }
                let record = Record::new(Some(&timer_id.0), None, std::iter::empty());
                self.writes.push(PendingWrite::timer_change(
                    lane,
                    record,
                    ChangeReason::Forgotten,
                ));
            }
            self.wake(now);
        }
        self.settle_retention(now);
    }

    /// Begins to wait for the next question once all lanes have answered.
    fn settle_retention(&mut self, now: UnixMillis) {
        if let Stage::Asked(lanes) = &self.retention.stage
            && lanes.is_empty()
        {
            let wait = if self.retention.again { Millis(0) } else { ASK_EVERY };
            self.retention = Retention { stage: Stage::Idle(now + wait), ..Retention::default() };
            self.wake(now + wait);
        }
    }
}
