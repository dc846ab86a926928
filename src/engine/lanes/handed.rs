//! Remembers deliveries of records that expire, where a batch that failed may yet have been carried out (`at_least_once`):
//! what may be in its target is no dead letter besides.
//!
//! # Invariants
//! 1. It outlives the take-over that follows a failure, but not the process, and does not go with a lane: after a crash such
//!    a record may be delivered and a dead letter, as it may be delivered twice.
//! 2. It remembers the last [`MOST`] of them, which is more than can be on their way.

use std::collections::{HashSet, VecDeque};

use super::{Lane, Order};

/// How many are remembered.
const MOST: usize = 1 << 16;

/// The lanes and places in order of records that were handed over: copies of one have the same.
#[derive(Debug, Default)]
pub(super) struct Handed {
    places: HashSet<(Lane, Order)>,
    order: VecDeque<(Lane, Order)>,
}

impl Handed {
    pub(super) fn insert(&mut self, place: (Lane, Order)) {
        if !self.places.insert(place) {
            return;
        }
        self.order.push_back(place);
        if self.order.len() > MOST
            && let Some(first) = self.order.pop_front()
        {
            self.places.remove(&first);
        }
    }

    pub(super) fn contains(&self, place: &(Lane, Order)) -> bool {
        self.places.contains(place)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Offset, UnixMillis};
    use super::*;

    #[test]
    fn the_last_are_remembered_and_no_more() {
        let (mut handed, most) = (Handed::default(), MOST as i64);
        let place = |at| (Lane(0), Order { appended: UnixMillis(0), offset: Offset(at) });
        (0..most).chain(0..5).for_each(|at| handed.insert(place(at)));
        assert!(handed.contains(&place(0)) && handed.contains(&place(most - 1)));
        handed.insert(place(most));
        assert!(!handed.contains(&place(0)) && handed.contains(&place(1)));
        assert_eq!((handed.places.len(), handed.order.len()), (MOST, MOST));
    }
}
