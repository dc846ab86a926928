//! How far `<ns>.timers` is written, by lane: what a look-up must have seen to be up to date.
//!
//! The owner of a lane is the only one that writes its partition of the changelog. So a reader that has read up to the
//! highest acknowledged offset of the committed batches knows all that was ever reported about the lane's timers.
//!
//! # Invariants
//! 1. A lane's mark is set before anybody gets an answer that rests on the batch that it stands for.
//! 2. A record whose acknowledgement names no offset (it was sent twice) makes its lane's mark unknown until it is set
//!    again, and never a smaller one.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use waterclock_engine::{Lane, Offset};

/// One lane's mark.
#[derive(Debug, Default)]
struct Mark {
    /// One past the last offset that is known to count.
    next: AtomicI64,
    /// How often something came to count whose offset is not known.
    unknown: AtomicU64,
    /// How much of that was made good by asking for the end.
    mended: AtomicU64,
}

/// One past the last offset that counts, of each lane; shared by all threads of a process.
#[derive(Debug)]
pub struct Written {
    lanes: Vec<Mark>,
}

impl Written {
    /// Of lanes of which nothing is known.
    pub fn new(lanes: u16) -> Self {
        let lanes: Vec<Mark> = (0..lanes).map(|_| Mark::default()).collect();
        lanes.iter().for_each(|mark| mark.unknown.store(1, Ordering::Release));
        Self { lanes }
    }

    fn of(&self, lane: Lane) -> Option<&Mark> {
        self.lanes.get(usize::from(lane.0))
    }

    /// A record that counts stands at `offset`; `None`: nobody knows where.
    pub fn raise(&self, lane: Lane, offset: Option<Offset>) {
        let Some(mark) = self.of(lane) else { return };
        match offset {
            Some(offset) => mark.next.fetch_max(offset.next().0, Ordering::AcqRel),
            None => mark.unknown.fetch_add(1, Ordering::AcqRel).cast_signed(),
        };
    }

    /// Up to where a lane must have been read; `None`: nobody knows, ask for the end.
    pub fn mark(&self, lane: Lane) -> Option<Offset> {
        let mark = self.of(lane)?;
        let known = mark.mended.load(Ordering::Acquire) == mark.unknown.load(Ordering::Acquire);
        known.then(|| Offset(mark.next.load(Ordering::Acquire)))
    }

    /// Before the end of a lane is asked for: what to [`mend`](Self::mend) with it.
    pub fn gap(&self, lane: Lane) -> u64 {
        self.of(lane).map_or(0, |mark| mark.unknown.load(Ordering::Acquire))
    }

    /// All that had come to count when `gap` was taken stands before `end`.
    pub fn mend(&self, lane: Lane, gap: u64, end: Offset) {
        let Some(mark) = self.of(lane) else { return };
        mark.next.fetch_max(end.0, Ordering::AcqRel);
        mark.mended.fetch_max(gap, Ordering::AcqRel);
    }

    /// A lane was taken over, and all that counts stands before `end`. To be called before anything is written to it.
    pub fn begin(&self, lane: Lane, end: Offset) {
        let Some(mark) = self.of(lane) else { return };
        mark.next.store(end.0, Ordering::Release);
        mark.mended.store(mark.unknown.load(Ordering::Acquire), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_grows_until_the_lane_is_taken_over_and_is_unknown_until_what_is_missing_was_asked_for()
     {
        let (written, lane) = (Written::new(2), Lane(1));
        assert_eq!(written.mark(lane), None);
        written.raise(lane, Some(Offset(3)));
        assert_eq!(written.mark(lane), None, "what stood before is not known");
        written.mend(lane, written.gap(lane), Offset(10));
        written.raise(lane, Some(Offset(8)));
        assert_eq!(written.mark(lane), Some(Offset(10)));
        written.raise(lane, Some(Offset(12)));
        assert_eq!(written.mark(lane), Some(Offset(13)));
        written.raise(lane, None);
        written.raise(lane, Some(Offset(14)));
        assert_eq!(written.mark(lane), None, "one of them stands nobody knows where");
        let gap = written.gap(lane);
        written.raise(lane, None);
        written.mend(lane, gap, Offset(16));
        assert_eq!(written.mark(lane), None, "another came while the end was asked for");
        written.mend(lane, written.gap(lane), Offset(12));
        assert_eq!(written.mark(lane), Some(Offset(16)));
        written.raise(lane, None);
        written.begin(lane, Offset(2));
        assert_eq!(
            written.mark(lane),
            Some(Offset(2)),
            "taken over, of a topic that was created again"
        );
        assert_eq!((written.mark(Lane(0)), written.mark(Lane(9))), (None, None));
    }
}
