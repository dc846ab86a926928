//! Holds the records of one partition until they may go: one lane's part of a tier, or of an intake (hold 0).
//!
//! Every record of a partition waits the same time from its append, so the head is always the next to go, whatever
//! the due times are: they cannot block each other.
//!
//! # Invariants
//! 1. A record of a tier is let go at or after `appended + wait`, one of an intake at once, both in offset order. Also one
//!    that was appended later than it is now, since a clock was set back: it waits in the wheel, and what stands behind
//!    it does not.
//! 2. A record is in the window from when it is let go, not from when it is read: what is only read need not be
//!    committed, and can be dropped and read again.
//! 3. The partition is paused while what was read of it reaches further ahead than `read_ahead`, or takes more than
//!    its share of memory, or reading is stopped; it is resumed `resume_lead` before the last record read may go.

use std::collections::VecDeque;

use super::window::{Began, Window};
use super::{Millis, Offset, Record, UnixMillis};

/// A record that was read and not let go yet.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) offset: Offset,
    pub(super) appended: UnixMillis,
    pub(super) record: Record,
}

/// How fetching of the partition is to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Pause,
    Resume,
}

/// One partition.
#[derive(Debug)]
pub(super) struct Hold {
    /// How long after its append a record is let go: hold - lead of a tier, zero of an intake.
    wait: Millis,
    /// Records read and not let go, in offset order.
    buffer: VecDeque<Held>,
    /// Their bytes.
    pub(super) bytes: usize,
    /// Offsets that were let go and are not committed as done.
    pub(super) window: Window,
    /// The least offset that may come next; guards against a client that reads twice.
    next: Offset,
    /// As last told to the shell.
    paused: bool,
    /// When the first record of a dropped buffer is to be let go; it is read again before that.
    dropped: Option<UnixMillis>,
    /// Where the log ended when it was taken over; where reading was when that end was passed.
    end: Offset,
    /// Everything that was appended up to then was read.
    read_upto: UnixMillis,
}

impl Hold {
    pub(super) fn new(wait: Millis, (next, end): (Offset, Offset), window: Window) -> Self {
        Self {
            wait,
            buffer: VecDeque::new(),
            bytes: 0,
            window,
            next,
            paused: false,
            dropped: None,
            end,
            read_upto: UnixMillis(0),
        }
    }

    /// Reading has passed the end that the partition had at a time (zero: that time is not known). The last entry may be a
    /// transaction marker, so only the shell can say this.
    pub(super) fn passed(&mut self, at: UnixMillis) {
        // Dropped records are read again; until then nobody can tell.
        if self.dropped.is_none() {
            self.end = self.end.min(self.next);
            self.read_upto = self.read_upto.max(at);
        }
    }

    /// Everything that was appended up to then was read.
    pub(super) fn read_upto(&self) -> UnixMillis {
        self.read_upto
    }

    /// Everything that was appended up to then was let go.
    pub(super) fn gone_upto(&self) -> UnixMillis {
        let first = self.buffer.front().map(|held| held.appended - Millis(1));
        first.map_or(self.read_upto, |first| first.min(self.read_upto))
    }

    /// The earliest due time of any record that is not let go, if none here is due sooner than `reach` after its append.
    pub(super) fn floor(&self, reach: Millis) -> UnixMillis {
        self.buffer.front().map_or(self.read_upto, |held| held.appended) + reach
    }

    /// Whether this offset was let go, or never had a record.
    pub(super) fn is_gone(&self, offset: Offset) -> bool {
        self.next > offset && self.buffer.front().is_none_or(|held| held.offset > offset)
    }

    /// Whether all that was read before this offset was let go.
    pub(super) fn has_let_go(&self, before: Offset) -> bool {
        self.buffer.front().is_none_or(|held| held.offset >= before)
    }

    /// Its position is to be committed.
    pub(super) fn touch(&mut self) {
        self.window.touch();
    }

    /// Nothing before it is pending.
    pub(super) fn low(&self) -> Offset {
        self.window.low()
    }

    /// Whether this offset is not done.
    pub(super) fn is_open(&self, offset: Offset) -> bool {
        self.window.is_open(offset)
    }

    /// Whether this offset stood here when the partition was taken over: an owner before may have decided about it.
    pub(super) fn stood_at_take_over(&self, offset: Offset) -> bool {
        offset < self.end
    }

    /// Whether all that stood here at the take-over was let go.
    pub(super) fn caught_up(&self) -> bool {
        self.next >= self.end && self.buffer.front().is_none_or(|held| held.offset >= self.end)
    }

    /// Whether the partition is on time: all that should have been let go was.
    pub(super) fn on_time(&self, now: UnixMillis) -> bool {
        self.caught_up() || self.head().or(self.dropped).is_some_and(|head| head > now)
    }

    /// Takes the next record that was read.
    pub(super) fn read(&mut self, held: Held) {
        if held.offset < self.next {
            return;
        }
        self.next = held.offset.next();
        self.dropped = None;
        // Another of the same millisecond may follow.
        self.read_upto = self.read_upto.max(held.appended - Millis(1));
        self.bytes += held.record.size();
        self.buffer.push_back(held);
    }

    /// Whether what stands here was read before, or is committed as done.
    pub(super) fn is_before(&self, offset: Offset) -> bool {
        offset < self.next
    }

    /// Lets the head go, if it may: its record, and whether it is new to the window. Also how many records were lost.
    pub(super) fn release(&mut self, now: UnixMillis) -> Option<(Held, Began)> {
        if self.head()? > now || !self.roomy() {
            return None;
        }
        let held = self.buffer.pop_front()?;
        self.bytes -= held.record.size();
        let began = self.window.begin(held.offset);
        Some((held, began))
    }

    /// When the head may be let go.
    pub(super) fn head(&self) -> Option<UnixMillis> {
        self.buffer.front().map(|held| self.goes_at(held))
    }

    fn last(&self) -> Option<UnixMillis> {
        self.buffer.back().map(|held| self.goes_at(held))
    }

    fn goes_at(&self, held: &Held) -> UnixMillis {
        if self.wait == Millis(0) { UnixMillis(0) } else { held.appended + self.wait }
    }

    /// Whether only a full window keeps the head.
    pub(super) fn blocked(&self, now: UnixMillis) -> bool {
        self.head().is_some_and(|head| head <= now) && !self.roomy()
    }

    /// Whether the window has room for the head.
    fn roomy(&self) -> bool {
        self.buffer.front().is_none_or(|held| self.window.room(held.offset))
    }

    /// Drops what was read of a paused partition whose head has long to wait; says where to read again from.
    pub(super) fn drop_buffer(&mut self, soon: UnixMillis) -> Option<(Offset, usize)> {
        let head = self.head().filter(|&head| self.paused && head > soon)?;
        let Held { offset: first, appended, .. } = *self.buffer.front()?;
        let freed = self.bytes;
        self.read_upto = appended - Millis(1);
        self.buffer.clear();
        self.bytes = 0;
        self.next = first;
        self.dropped = Some(head);
        Some((first, freed))
    }

    /// Derives whether to fetch from what is held. `stop`: nothing may be read now. `share`: bytes that it may hold, if
    /// what comes next is to be held.
    pub(super) fn update_fetching(
        &mut self,
        now: UnixMillis,
        (ahead, lead): (Millis, Millis),
        share: Option<usize>,
        stop: bool,
    ) -> Option<Turn> {
        let last = self.last().or(self.dropped);
        let pause = stop
            || share.zip(last).is_some_and(|(share, last)| {
                let reach = if self.paused { lead } else { ahead };
                let share = if self.paused { share / 2 } else { share };
                last > now + reach || self.bytes > share
            });
        if pause == self.paused {
            return None;
        }
        self.paused = pause;
        Some(if pause { Turn::Pause } else { Turn::Resume })
    }

    /// The shell is told to pause it, whatever is held.
    pub(super) fn pause(&mut self) {
        self.paused = true;
    }

    /// When to look again, if nothing is read before: the head's release, or the resume.
    pub(super) fn wake_at(&self, lead: Millis) -> Option<UnixMillis> {
        let resume =
            if self.paused { self.last().or(self.dropped).map(|at| at - lead) } else { None };
        match (self.head(), resume) {
            (Some(head), Some(resume)) => Some(head.min(resume)),
            (head, resume) => head.or(resume),
        }
    }

    /// Whether the shell was told to pause it.
    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }
}
