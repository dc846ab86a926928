//! What waits in memory, by due time, to the millisecond.
//!
//! One slot per millisecond of the horizon, a bitmap of those that hold something, and a vector per slot, so that
//! putting in and taking out touch one place in memory and compare nothing.
//!
//! # Invariants
//! 1. Nothing leaves before its due time, by the `now` that is handed in, whatever `now` was before.
//! 2. What leaves in one call leaves by due time, then order; what is inserted later with an earlier due time leaves
//!    first in the next call.
//! 3. An entry stands in one place: `late` when its slot is behind or being emptied, `far` beyond the slots, else
//!    in the slot of its due time.
//! 4. Memory follows what waits: an emptied vector goes to the next slot that needs one, and a huge one is freed.
//!
//! It does not bound itself: the engine's byte budget does.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use super::state::SubmissionOrder;
use super::{Millis, UnixMillis};

/// Most slots of a wheel, about a minute; what is due later waits in a map.
const SLOTS_MAX: u64 = 1 << 16;
/// How many emptied vectors are kept for other slots.
const SPARES_MAX: usize = 64;
/// Entries above which an emptied vector is freed: a spike should not be paid for for ever.
const SPARE_ENTRIES_MAX: usize = 4096;

/// Entries by due time and order.
#[derive(Debug)]
pub struct Wheel<T> {
    /// Slot `due % slots.len()` for due times in `[start, start + slots.len())`.
    slots: Vec<Vec<(SubmissionOrder, T)>>,
    /// One bit for each slot that holds something.
    occupied: Vec<u64>,
    /// The first due time that the slots hold; `None` until something was inserted or popped.
    start: Option<u64>,
    /// Whether the slot of `start` is being emptied: sorted, last first.
    draining: bool,
    /// Due before `start`, or at it while that slot is being emptied.
    late: BinaryHeap<Late<T>>,
    /// Due after the last slot, in order of insertion.
    far: BTreeMap<u64, Vec<(SubmissionOrder, T)>>,
    spares: Vec<Vec<(SubmissionOrder, T)>>,
    len: usize,
    /// Numbers what goes to `late`, for the order of equals.
    inserted: u64,
    horizon_ms: u64,
}

#[derive(Debug)]
struct Late<T> {
    due: u64,
    order: SubmissionOrder,
    inserted: u64,
    entry: T,
}

impl<T> Ord for Late<T> {
    /// Turned round: the heap's greatest is the one to leave first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due, other.order, other.inserted).cmp(&(self.due, self.order, self.inserted))
    }
}

impl<T> PartialOrd for Late<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Late<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Late<T> {}

impl<T> Wheel<T> {
    /// A wheel for due times up to `horizon` from now. Later ones are allowed and slower.
    #[must_use]
    pub fn new(horizon: Millis) -> Self {
        // As much again for a clock that is behind: `now` moves only when something is popped.
        let slots = horizon.0.saturating_mul(2).clamp(64, SLOTS_MAX).next_power_of_two() as usize;
        Self {
            slots: std::iter::repeat_with(Vec::new).take(slots).collect(),
            occupied: vec![0; slots / 64],
            start: None,
            draining: false,
            late: BinaryHeap::new(),
            far: BTreeMap::new(),
            spares: Vec::new(),
            len: 0,
            inserted: 0,
            horizon_ms: horizon.0,
        }
    }

    /// How many entries wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts an entry in. One that is due already leaves at the next [`pop_due`](Self::pop_due).
    pub fn insert(&mut self, due: UnixMillis, order: SubmissionOrder, entry: T) {
        let due = due.0;
        // Before the first `now`, the entry itself says best where it is: at most a horizon away.
        let start = *self.start.get_or_insert_with(|| due.saturating_sub(self.horizon_ms));
        self.len += 1;
        if due < start || due == start && self.draining {
            self.inserted += 1;
            self.late.push(Late { due, order, inserted: self.inserted, entry });
        } else if due - start < self.slots.len() as u64 {
            self.put(due, |slot| slot.push((order, entry)));
        } else {
            self.far.entry(due).or_default().push((order, entry));
        }
    }

    /// Takes out what is due at `now`, at most `limit` entries, and calls `each` with due time, order and entry, in
    /// this order. Answers how many. A `now` before an earlier one takes out only what is due then.
    pub fn pop_due(
        &mut self,
        now: UnixMillis,
        limit: usize,
        mut each: impl FnMut(UnixMillis, SubmissionOrder, T),
    ) -> usize {
        let mut left = limit;
        while left > 0 {
            let next = self.next_slot();
            let late = self.late.peek().map(|late| late.due);
            let due = match (next, late) {
                // A slot's own entries were inserted before those that came late.
                (Some(slot), Some(late)) if late < slot => {
                    if late > now.0 {
                        break;
                    }
                    self.pop_late(&mut each);
                    left -= 1;
                    continue;
                }
                (None, Some(late)) if late <= now.0 => {
                    self.pop_late(&mut each);
                    left -= 1;
                    continue;
                }
                (None, Some(_)) => break,
                (Some(slot), _) => slot,
                (None, None) => match self.far.first_key_value() {
                    Some((due, _)) => *due,
                    None => break,
                },
            };
            if due > now.0 {
                break;
            }
            self.turn_to(due);
            left -= self.drain(due, left, &mut each);
        }
        let popped = limit - left;
        self.len -= popped;
        if left > 0 && self.start.is_none_or(|start| start < now.0) {
            self.turn_to(now.0);
        }
        popped
    }

    /// When the next entry is due; may be in the past.
    #[must_use]
    pub fn next_due(&self) -> Option<UnixMillis> {
        let late = self.late.peek().map(|late| late.due);
        let ahead = self.next_slot().or_else(|| self.far.keys().next().copied());
        late.into_iter().chain(ahead).min().map(UnixMillis)
    }

    /// Takes out every entry that `pred` says, by due time and order. Looks at all of them.
    pub fn take_where(
        &mut self,
        mut pred: impl FnMut(&T) -> bool,
    ) -> Vec<(UnixMillis, SubmissionOrder, T)> {
        let mut taken = Vec::new();
        let late = std::mem::take(&mut self.late).into_vec();
        let (out, keep): (Vec<_>, Vec<_>) = late.into_iter().partition(|late| pred(&late.entry));
        self.late = keep.into();
        for due in self.due_slots() {
            let at = self.index(due);
            let slot = &mut self.slots[at];
            let out = slot.extract_if(.., |(_, entry)| pred(entry));
            taken.extend(out.map(|(order, entry)| (UnixMillis(due), order, entry)));
            self.tidy(due);
        }
        self.far.retain(|due, entries| {
            let out = entries.extract_if(.., |(_, entry)| pred(entry));
            taken.extend(out.map(|(order, entry)| (UnixMillis(*due), order, entry)));
            !entries.is_empty()
        });
        taken.extend(out.into_iter().map(|late| (UnixMillis(late.due), late.order, late.entry)));
        taken.sort_by_key(|(due, order, _)| (*due, *order));
        self.len -= taken.len();
        taken
    }

    /// Takes everything out and forgets the time.
    pub fn clear(&mut self) {
        for due in self.due_slots() {
            let at = self.index(due);
            self.slots[at].clear();
            self.tidy(due);
        }
        self.late = BinaryHeap::new();
        self.far.clear();
        (self.start, self.draining, self.len) = (None, false, 0);
    }

    fn index(&self, due: u64) -> usize {
        (due % self.slots.len() as u64) as usize
    }

    /// Changes the slot of a due time within the range by adding to it.
    fn put(&mut self, due: u64, add: impl FnOnce(&mut Vec<(SubmissionOrder, T)>)) {
        let at = self.index(due);
        let (word, bit) = (at / 64, 1 << (at % 64));
        if self.occupied[word] & bit == 0 {
            self.occupied[word] |= bit;
            if let Some(spare) = self.spares.pop() {
                self.slots[at] = spare;
            }
        }
        add(&mut self.slots[at]);
    }

    /// Gives the vector of a slot back if it is empty now.
    fn tidy(&mut self, due: u64) {
        let at = self.index(due);
        if !self.slots[at].is_empty() {
            return;
        }
        self.occupied[at / 64] &= !(1 << (at % 64));
        if Some(due) == self.start {
            self.draining = false;
        }
        let empty = std::mem::take(&mut self.slots[at]);
        if empty.capacity() <= SPARE_ENTRIES_MAX && self.spares.len() < SPARES_MAX {
            self.spares.push(empty);
        }
    }

    /// The due time of the first slot that holds something.
    fn next_slot(&self) -> Option<u64> {
        let start = self.start?;
        let from = self.index(start);
        let words = self.occupied.len();
        // The first word is looked at twice: from `start`'s slot on, and at the end up to it.
        for i in 0..=words {
            let word = (from / 64 + i) % words;
            let mut bits = self.occupied[word];
            if i == 0 {
                bits &= u64::MAX << (from % 64);
            } else if i == words {
                bits &= !(u64::MAX << (from % 64));
            }
            if bits != 0 {
                let at = word * 64 + bits.trailing_zeros() as usize;
                let ahead = (at + self.slots.len() - from) % self.slots.len();
                return Some(start + ahead as u64);
            }
        }
        None
    }

    /// The due times of all slots that hold something.
    fn due_slots(&self) -> Vec<u64> {
        let Some(start) = self.start else { return Vec::new() };
        let range = start..start.saturating_add(self.slots.len() as u64);
        range
            .filter(|due| {
                let at = self.index(*due);
                self.occupied[at / 64] >> (at % 64) & 1 == 1
            })
            .collect()
    }

    /// Moves the range up; all slots before `start` are empty.
    fn turn_to(&mut self, start: u64) {
        if self.start == Some(start) {
            return;
        }
        self.start = Some(start);
        self.draining = false;
        while let Some(first) = self.far.first_entry()
            && *first.key() - start < self.slots.len() as u64
        {
            let (due, mut entries) = first.remove_entry();
            self.put(due, |slot| slot.append(&mut entries));
        }
    }

    fn pop_late(&mut self, each: &mut impl FnMut(UnixMillis, SubmissionOrder, T)) {
        if let Some(late) = self.late.pop() {
            each(UnixMillis(late.due), late.order, late.entry);
        }
        if self.late.is_empty() && self.late.capacity() > SPARE_ENTRIES_MAX {
            self.late = BinaryHeap::new();
        }
    }

    /// Takes up to `limit` entries from the slot of `due`, which is `start`, and from `late` what belongs between.
    fn drain(
        &mut self,
        due: u64,
        limit: usize,
        each: &mut impl FnMut(UnixMillis, SubmissionOrder, T),
    ) -> usize {
        let at = self.index(due);
        if !self.draining {
            // The sort is stable, and quick for nearly sorted input, such as records that were read in order.
            self.slots[at].sort_by_key(|(order, _)| *order);
            self.slots[at].reverse();
            self.draining = true;
        }
        let mut popped = 0;
        while popped < limit
            && let Some((order, _)) = self.slots[at].last()
        {
            if self.late.peek().is_some_and(|late| (late.due, late.order) < (due, *order)) {
                self.pop_late(each);
            } else if let Some((order, entry)) = self.slots[at].pop() {
                each(UnixMillis(due), order, entry);
            }
            popped += 1;
        }
        self.tidy(due);
        popped
    }
}

#[cfg(test)]
mod tests;
