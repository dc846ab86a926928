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

use super::super::timers::{Names, TimerId};
use super::batches::Batches;
use super::behind::Behind;
use super::writes::Writes;
use super::{Lane, Millis, UnixMillis};

/// Cancel marks that one batch forgets, at most: it must not grow because their time is over.
pub(super) const FORGET_MAX: usize = 100;
/// How often to ask what may be forgotten, when there was nothing the last time.
const ASK_EVERY: Millis = Millis(60_000);
/// More than these that ended meanwhile are not noted, and the answer is passed over.
const NOTES_MAX: usize = 200_000;

/// Where the question stands.
#[derive(Debug, Default)]
pub(super) struct Retention {
    stage: RetentionStage,
    /// Timers that ended since.
    notes: Names,
    is_overrun: bool,
    /// Somebody had something to forget: ask again at once.
    again: bool,
}

#[derive(Debug, Default)]
enum RetentionStage {
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
        if matches!(self.stage, RetentionStage::Fresh | RetentionStage::Idle(_)) || self.is_overrun
        {
            return;
        }
        self.notes.insert(timer_id);
        if self.notes.len() > NOTES_MAX {
            self.notes = Names::default();
            self.is_overrun = true;
        }
    }
    /// The lanes to ask for what has expired, when it is time for that; and when to look again. `lanes`: those that may
    /// forget.
    pub(super) fn ask(
        &mut self,
        now: UnixMillis,
        (writes, batches): (&Writes, &Batches),
        lanes: impl FnOnce() -> Vec<Lane>,
    ) -> (Vec<Lane>, Option<UnixMillis>) {
        match self.stage {
            RetentionStage::Fresh => self.stage = RetentionStage::Idle(now + ASK_EVERY),
            RetentionStage::Idle(at) if at <= now => {
                *self =
                    Self { stage: RetentionStage::Behind(Behind::all(writes)), ..Self::default() };
            }
            _ => {}
        }
        let mut to_ask = Vec::new();
        if let RetentionStage::Behind(behind) = &mut self.stage
            && behind.is_committed(writes, batches)
        {
            to_ask = lanes();
            self.stage = RetentionStage::Asked(to_ask.clone());
            self.settle(now);
        }
        let at = if let RetentionStage::Idle(at) = self.stage { Some(at) } else { None };
        (to_ask, at)
    }

    /// A lane has answered. Gives back what is to be forgotten; `None`: too much has ended meanwhile, or it was not asked.
    pub(super) fn answered(
        &mut self,
        lane: Lane,
        mut timers: Vec<TimerId>,
        is_live: impl Fn(TimerId) -> bool,
    ) -> Option<Vec<TimerId>> {
        let RetentionStage::Asked(lanes) = &mut self.stage else { return None };
        let at = lanes.iter().position(|asked| *asked == lane)?;
        lanes.remove(at);
        self.again |= !timers.is_empty();
        timers.retain(|timer_id| !is_live(*timer_id) && !self.notes.contains(timer_id));
        (!self.is_overrun).then_some(timers)
    }

    /// Begins to wait for the next question once all lanes have answered. Says when it is due.
    pub(super) fn settle(&mut self, now: UnixMillis) -> Option<UnixMillis> {
        if !matches!(&self.stage, RetentionStage::Asked(lanes) if lanes.is_empty()) {
            return None;
        }
        let at = now + if self.again { Millis(0) } else { ASK_EVERY };
        *self = Self { stage: RetentionStage::Idle(at), ..Self::default() };
        Some(at)
    }
}
