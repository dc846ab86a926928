//! One partition of `<ns>.tasks`, as the worker that owns it knows it: what is done, what is in doubt, and what its position says.
//!
//! # Invariants
//! 1. A committed position begins with [`MAY_HAVE_BEGUN`] unless no call from the partition is open and all that ended is in
//!    that commit or an earlier one. Who takes such a position over calls nothing that stood there.
//! 2. No call begins before a position with [`MAY_HAVE_BEGUN`] is committed in this assignment.
//! 3. [`NONE_BEGUN`] is not written while something is in doubt that was not reported: the next owner would call it.

use std::collections::VecDeque;

use super::WorkEvent;
use super::recent::Recent;
use crate::Offset;
use crate::window::{Began, Window, WindowError};

/// Calls from the partition may have begun.
const MAY_HAVE_BEGUN: char = 'd';
/// Whatever is pending in the partition was never called in the turn that it has there.
const NONE_BEGUN: char = 'c';

/// Where a group stands in a partition, as it was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The first offset that is not done.
    pub next: Offset,
    /// What was committed with it.
    pub metadata: String,
}

impl Position {
    /// That of a partition of which nobody knows one. If its log begins later than at 0, somebody has worked there, and what
    /// they committed is gone.
    #[must_use]
    pub fn first(start: Offset) -> Self {
        let letter = if start.0 > 0 { MAY_HAVE_BEGUN } else { NONE_BEGUN };
        Self { next: start, metadata: letter.to_string() }
    }

    /// Corrects a position whose log now begins at `start`, beyond it, and says how many offsets that were not done are gone.
    /// `None`: the metadata cannot be read.
    #[must_use]
    pub fn cut(next: Offset, metadata: &str, start: Offset) -> Option<(Self, u64)> {
        let letter = if metadata.starts_with(NONE_BEGUN) { NONE_BEGUN } else { MAY_HAVE_BEGUN };
        let pending = metadata.get(1..).unwrap_or_default();
        let (next, pending, lost) = Window::cut(next, pending, start).ok()?;
        Some((Self { next, metadata: format!("{letter}{pending}") }, lost))
    }
}

/// What a take-over found.
#[derive(Debug)]
pub(super) struct Gone {
    /// Tasks that were deleted before they were done.
    pub(super) lost: u64,
    /// The position cannot be read: everything behind it is in doubt.
    pub(super) damaged: Option<WindowError>,
}

/// A partition that this worker owns.
pub(super) struct Part {
    window: Window,
    /// What is pending below this offset may have been called by the owner before.
    doubt_below: Offset,
    /// All that is in doubt was read.
    is_doubt_read: bool,
    /// A position that says so is committed in this assignment: calls may begin.
    is_marked: bool,
    /// What was read and has no room in the window yet.
    pub(super) backlog: VecDeque<WorkEvent>,
    /// Calls that are open.
    pub(super) open: usize,
    /// What has ended, or needs no call, and is in no committed batch.
    pub(super) ended: usize,
    /// Its last committed position says that nothing has begun.
    is_clean: bool,
    /// What was read from it lately.
    pub(super) recent: Recent,
}

impl Part {
    /// Takes a partition over. `end`: where its log ended then; `start`: where it began.
    pub(super) fn take_over(
        position: Option<&Position>,
        start: Offset,
        end: Offset,
    ) -> (Self, Gone) {
        let mut gone = Gone { lost: 0, damaged: None };
        let (mut window, is_in_doubt) = match position {
            // Nobody has ever worked here. If the log begins later, somebody has, and what they committed is gone.
            None => (Window::empty(start), start.0 > 0),
            Some(Position { next, metadata }) => {
                let pending = metadata.get(1..).unwrap_or_default();
                match Window::load(*next, pending) {
                    Ok(window) => (window, !metadata.starts_with(NONE_BEGUN)),
                    Err(error) => {
                        gone.damaged = Some(error);
                        (Window::empty(*next.max(&start)), true)
                    }
                }
            }
        };
        gone.lost = window.pass(start).into();
        let doubt_below = if is_in_doubt { end } else { Offset(0) };
        let is_doubt_read = !is_in_doubt || window.pending() == 0 && window.upto() >= doubt_below;
        let part = Self {
            window,
            doubt_below,
            is_doubt_read,
            is_marked: false,
            backlog: VecDeque::new(),
            open: 0,
            ended: 0,
            is_clean: false,
            recent: Recent::default(),
        };
        (part, gone)
    }

    /// A record was read. `true`: its owner before may have begun to call it.
    pub(super) fn begin(&mut self, offset: Offset) -> (Began, bool) {
        self.is_doubt_read |= offset.next() >= self.doubt_below;
        (self.window.begin(offset), offset < self.doubt_below)
    }

    /// Whether one more record fits into what a position can say.
    pub(super) fn has_room(&self, offset: Offset) -> bool {
        self.window.room(offset)
    }

    /// How much of what a position can say is taken, in thousandths.
    pub(super) fn fill_permille(&self) -> u32 {
        self.window.fill_permille()
    }

    /// Reading is past `next`, and found no record before it.
    pub(super) fn pass(&mut self, next: Offset) -> u32 {
        self.is_doubt_read |= next >= self.doubt_below;
        self.window.pass(next)
    }

    /// What became of the record at an offset is committed, with a position that says so.
    pub(super) fn finish(&mut self, offset: Offset) {
        self.window.finish_told(offset);
    }

    /// Whether a record was read and is not done.
    #[cfg(test)]
    pub(super) fn is_pending(&self, offset: Offset) -> bool {
        self.window.is_open(offset)
    }

    /// Whether calls may begin.
    pub(super) fn is_marked(&self) -> bool {
        self.is_marked
    }

    /// Whether its position is to be committed though nothing has ended.
    pub(super) fn wants_commit(&self, is_ending: bool) -> bool {
        if is_ending { !self.is_clean && self.may_be_clean() } else { !self.is_marked }
    }

    /// Whether a position can say that nothing has begun, once this batch is committed.
    fn may_be_clean(&self) -> bool {
        self.open == 0 && self.ended == 0 && self.is_doubt_read
    }

    /// What to commit for it, with these offsets done by the same batch. They are done only once that
    /// [is committed](Self::finish). `is_ending`: no call begins any more.
    pub(super) fn position(&mut self, is_ending: bool, finished: &[Offset]) -> (Position, bool) {
        let is_clean = is_ending && self.may_be_clean();
        let letter = if is_clean { NONE_BEGUN } else { MAY_HAVE_BEGUN };
        let (next, pending) = self.window.commit_with(finished);
        (Position { next, metadata: format!("{letter}{pending}") }, is_clean)
    }

    /// Whether something finished that is not in a commit yet.
    pub(super) fn has_changed(&self) -> bool {
        self.window.has_changed()
    }

    /// A position is committed.
    pub(super) fn committed(&mut self, is_clean: bool) {
        self.is_clean = is_clean;
        self.is_marked |= !is_clean;
    }

    /// The position is to be committed again: it was not, or it is what fences a batch that says something else.
    pub(super) fn touch(&mut self) {
        self.window.touch();
    }
}
