//! What the engine was given and has not given back, counted from outside.

use std::collections::{BTreeMap, BTreeSet};

use waterclock::engine::{Offset, Record, Source};

use super::number_of;

/// What the engine was given and has not given back.
#[derive(Debug, Default)]
pub struct Tally {
    /// By submission: where each copy was read, and its size.
    pub(super) held: BTreeMap<u32, Vec<(Source, Offset, usize)>>,
    pub(super) bytes: usize,
    pub(super) largest: usize,
    /// Partitions that were read while the engine was over its budget: each may be, once, before it is paused.
    pub(super) over: BTreeSet<Source>,
    /// No window was loaded, so nothing that is read was done before; and nothing is dropped without a word, as strict order
    /// drops what waits.
    pub(super) exact: bool,
}

impl Tally {
    pub(super) fn take_in(&mut self, source: Source, offset: Offset, record: &Record) {
        let size = record.size();
        self.largest = self.largest.max(size);
        // Commands, duplicates and what is void go without a word; and what has no number cannot be told when it goes.
        let Some(number) = number_of(record) else { return };
        if record.headers().any(|(name, _)| name == b"x-delay-id") {
            return;
        }
        self.held.entry(number).or_default().push((source, offset, size));
        self.bytes += size;
    }

    pub(super) fn give_back(&mut self, number: u32) {
        // Of several copies the largest counts: the rest is then surely held.
        let Some(copies) = self.held.get_mut(&number) else { return };
        copies.sort_by_key(|(_, _, size)| *size);
        self.bytes -= copies.pop().map_or(0, |(_, _, size)| size);
    }

    /// What was read of a partition from here on is dropped.
    pub(super) fn drop_from(&mut self, source: Source, offset: Offset) {
        for copies in self.held.values_mut() {
            copies.retain(|(of, at, _)| *of != source || *at < offset);
        }
        self.bytes = self.held.values().flatten().map(|(_, _, size)| size).sum();
    }
}
