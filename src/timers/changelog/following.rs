//! One lane that is followed, and how lanes come up.

use std::time::Instant;

use crossbeam_channel::Sender;

use super::holding::Holding;
use crate::engine::timers::{Change, Ended, Forgettable, TimerId};
use crate::engine::{Event, Lane, Millis, Offset, UnixMillis};
use crate::kafka::member::AssignmentEvent;

/// A position that is further ahead of the brokers' time is of a clock that went wrong.
const AHEAD_MAX: Millis = Millis(600_000);

/// How lanes come up.
#[derive(Debug)]
pub(super) struct Loading {
    pub(super) began: Instant,
    pub(super) logged_at: Instant,
    pub(super) lanes: Vec<Lane>,
    /// Entries that the index had of them.
    pub(super) indexed: u64,
    /// Records of the changelog that were read for them.
    pub(super) records: u64,
}

impl Loading {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { began: now, logged_at: now, lanes: Vec::new(), indexed: 0, records: 0 }
    }
}

/// One lane that is followed.
pub(super) struct Following {
    pub(super) assignment: u64,
    pub(super) to: Sender<AssignmentEvent>,
    /// Up to where it was read.
    pub(super) next: Offset,
    /// Read and not in the index yet, at most `BATCH_MAX` of all lanes.
    pub(super) changes: Vec<Change>,
    /// Append time of the last of them.
    pub(super) at: UnixMillis,
    /// What to report once reading is past this; `None` once it is reported.
    pub(super) handover: Option<(Offset, Holding)>,
    /// Timers that are final since before this time are told once reading is past that.
    pub(super) expired: Option<(Offset, Forgettable)>,
    /// How these timers ended is told once reading is past that; `None`: it is not known yet how far that is.
    pub(super) recall: Option<(Option<Offset>, Vec<TimerId>)>,
    /// Records that this version cannot read.
    pub(super) unreadable: u64,
}

impl Following {
    /// Whether somebody waits until reading has come to some offset.
    pub(super) fn is_awaited(&self) -> bool {
        self.handover.is_some() || self.expired.is_some() || self.recall.is_some()
    }

    pub(super) fn take(&mut self, has_index: bool, key: Option<&[u8]>, value: Option<&[u8]>) {
        let Ok(change) = Change::decode(key, value) else {
            self.unreadable += 1;
            return;
        };
        if let Some((_, holding)) = &mut self.handover {
            holding.take(&change);
        }
        if has_index {
            self.changes.push(change);
        }
    }

    /// Reports how timers ended, to the lane thread that waits for that.
    pub(super) fn tell_ended(&self, lane: Lane, timers: Vec<(TimerId, Option<Ended>)>) {
        let event = Event::Recalled { lane, timers };
        let _ = self.to.send(AssignmentEvent { assignment: self.assignment, event });
    }

    pub(super) fn say_unreadable(&mut self, lane: Lane) {
        let records = std::mem::take(&mut self.unreadable);
        if records > 0 {
            tracing::error!(
                lane = lane.0,
                records,
                "skipped records of the changelog that this version cannot read"
            );
        }
    }
}

/// Whether tombstones may have gone that were written after this time. Half the time that they are kept is left for reading
/// what came since.
pub(super) fn is_stale(at: UnixMillis, now: UnixMillis, tombstones: Millis) -> bool {
    now - at > tombstones.half() || at - now > AHEAD_MAX
}
