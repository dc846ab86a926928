//! The dispatches that were read from a partition of `<ns>.tasks` lately: one that stands there a second time is not called again.
//!
//! Who may write to the topic may write a genuine record of it once more. Such a copy cannot be told from a dispatch by its seal, which
//! says the partition and when the lane wrote it.
//!
//! # Invariants
//! 1. A dispatch that was remembered is remembered for [`REMEMBERED`] of the partition's time, or `forgotten` says that it may not be.
//! 2. What is neither remembered nor surely new is left to its lane, which knows the turn that it is at. So no copy is called, unless
//!    it was written within [`AT_ONCE`] of the dispatch and partitions were given anew in between.
//! 3. Memory is bounded: at most [`MOST`] dispatches.

use std::collections::{HashMap, VecDeque};

use super::Turn;
use crate::{Millis, Offset, UnixMillis};

/// How long a dispatch is remembered, by the append times of its partition.
const REMEMBERED: Millis = Millis(30_000);
/// How far the clocks of a lane and of a broker may be apart.
const CLOCKS: Millis = Millis(5_000);
/// How long after its lane wrote it a dispatch is appended, if Kafka is well.
const SURELY_NEW: Millis = Millis(REMEMBERED.0 - CLOCKS.0);
/// As [`SURELY_NEW`], of what the owner before may have read.
const AT_ONCE: Millis = Millis(2_000);
/// Dispatches that are remembered of a partition: what 3,300 a second need.
const MOST: usize = 100_000;

/// What is known of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It was not read before.
    New,
    /// It stands in the partition before.
    Before,
    /// It may have been read before: it was written long ago.
    Unsure,
}

/// What was read from one partition lately.
#[derive(Debug, Default)]
pub(super) struct Recent {
    turns: HashMap<Turn, Offset>,
    order: VecDeque<(UnixMillis, Turn)>,
    /// What was appended until then may have been forgotten.
    forgotten: UnixMillis,
    /// What was dispatched before that may have been read by the owner before; `None`: nothing was read yet.
    read_before: Option<UnixMillis>,
}

impl Recent {
    /// Whether a dispatch is remembered.
    pub(super) fn knows(&self, turn: Turn) -> bool {
        self.turns.contains_key(&turn)
    }

    /// Says what is known of the dispatch at an offset, and remembers it.
    pub(super) fn seen(
        &mut self,
        turn: Turn,
        offset: Offset,
        (dispatched, appended): (UnixMillis, UnixMillis),
    ) -> Seen {
        let keep_from = UnixMillis(appended.0.saturating_sub(REMEMBERED.0));
        while let Some((at, turn)) = self.order.front().copied()
            && (at < keep_from || self.order.len() >= MOST)
        {
            self.order.pop_front();
            self.turns.remove(&turn);
            self.forgotten = self.forgotten.max(at);
        }
        match self.turns.get(&turn) {
            // It is read again.
            Some(first) if *first == offset => return Seen::New,
            Some(_) => return Seen::Before,
            None => {}
        }
        self.turns.insert(turn, offset);
        self.order.push_back((appended, turn));
        let read_before = *self.read_before.get_or_insert(appended + CLOCKS);
        let within = if dispatched < read_before { AT_ONCE } else { SURELY_NEW };
        let surely_new_from = UnixMillis(appended.0.saturating_sub(within.0));
        match dispatched < surely_new_from.max(self.forgotten) {
            true => Seen::Unsure,
            false => Seen::New,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::timers::{TimerId, Version};
    use super::*;

    fn turn(turn: u32) -> Turn {
        Turn { name: TimerId([7; 16]), version: Version::default(), turn }
    }

    /// What is said of a turn that stands at an offset; `at`: when it was dispatched, and appended.
    fn seen(recent: &mut Recent, of: u32, offset: i64, at: (u64, u64)) -> Seen {
        recent.seen(turn(of), Offset(offset), (UnixMillis(at.0), UnixMillis(at.1)))
    }

    #[test]
    fn a_second_one_is_known_and_the_same_one_may_be_read_again() {
        let mut recent = Recent::default();
        assert_eq!(seen(&mut recent, 1, 10, (100_000, 100_050)), Seen::New);
        assert_eq!(seen(&mut recent, 1, 11, (100_000, 100_060)), Seen::Before);
        assert_eq!(seen(&mut recent, 1, 10, (100_000, 100_050)), Seen::New, "a rewind");
        assert_eq!(seen(&mut recent, 2, 12, (100_100, 100_160)), Seen::New);
        assert_eq!(seen(&mut recent, 1, 13, (100_000, 129_000)), Seen::Before);
        // It is forgotten, and too old.
        assert_eq!(seen(&mut recent, 1, 14, (100_000, 131_000)), Seen::Unsure);
        assert_eq!(
            seen(&mut recent, 1, 15, (100_000, 131_000)),
            Seen::Before,
            "now it is known again"
        );
    }

    #[test]
    fn what_was_written_long_before_it_was_appended_is_unsure() {
        let mut recent = Recent::default();
        assert_eq!(seen(&mut recent, 1, 0, (60_000, 60_000)), Seen::New);
        assert_eq!(seen(&mut recent, 2, 1, (75_000, 100_000)), Seen::New);
        assert_eq!(seen(&mut recent, 3, 2, (74_999, 100_000)), Seen::Unsure);
        assert_eq!(seen(&mut recent, 4, 3, (0, 100_000)), Seen::Unsure);
        assert_eq!(seen(&mut recent, 5, 4, (200_000, 100_000)), Seen::New, "its clock is ahead");
    }

    #[test]
    fn what_the_owner_before_may_have_read_is_new_only_if_it_was_appended_at_once() {
        let mut recent = Recent::default();
        assert_eq!(seen(&mut recent, 1, 0, (98_000, 100_000)), Seen::New);
        assert_eq!(seen(&mut recent, 2, 1, (97_999, 100_000)), Seen::Unsure);
        // For as long as clocks may be apart.
        assert_eq!(seen(&mut recent, 3, 2, (104_999, 107_000)), Seen::Unsure);
        assert_eq!(seen(&mut recent, 4, 3, (105_000, 107_100)), Seen::New);
    }

    #[test]
    fn memory_is_bounded_and_what_is_forgotten_for_it_is_unsure() {
        let mut recent = Recent::default();
        let most = MOST as u32;
        for nth in 0..most + 10 {
            let at = 100_000 + u64::from(nth) / 10;
            assert_eq!(seen(&mut recent, nth, i64::from(nth), (at, at)), Seen::New);
        }
        assert_eq!((recent.turns.len(), recent.order.len()), (MOST, MOST));
        let now = 100_000 + u64::from(most) / 10;
        assert_eq!(seen(&mut recent, 5, 1 << 30, (99_999, now)), Seen::Unsure);
        assert_eq!(seen(&mut recent, most, 1 << 31, (now, now)), Seen::Before);
    }
}
