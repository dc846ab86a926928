//! One partition: a log of records and markers, its last stable offset, and where it starts.

use std::collections::{BTreeMap, BTreeSet};

use waterclock::engine::{Offset, Record, UnixMillis};

use super::{Refusal, Time, TxId};

/// One position of a log.
#[derive(Clone, Debug)]
pub struct Entry {
    /// LogAppendTime.
    pub appended: UnixMillis,
    /// The transaction that it belongs to.
    pub tx: Option<TxId>,
    /// `None` for a transaction's marker.
    pub record: Option<Record>,
    /// When it was appended, in the order of all that happened in the cluster.
    pub moment: u64,
    /// The same in the world's time.
    pub at: Time,
    /// The node that led the partition then.
    pub node: usize,
}

/// A log.
#[derive(Debug)]
pub struct Partition {
    /// The node whose clock stamps.
    pub leader: usize,
    /// The log start offset.
    start: i64,
    entries: Vec<Entry>,
    /// The first offset of every transaction that has no marker here yet.
    open: BTreeMap<TxId, i64>,
    aborted: BTreeSet<TxId>,
    /// What compaction has taken away.
    compacted: BTreeSet<i64>,
}

impl Partition {
    pub fn new(leader: usize) -> Self {
        Self {
            leader,
            start: 0,
            entries: Vec::new(),
            open: BTreeMap::new(),
            aborted: BTreeSet::new(),
            compacted: BTreeSet::new(),
        }
    }

    pub fn append(&mut self, entry: Entry) -> Offset {
        let offset = self.entries.len() as i64;
        if let Some(tx) = entry.tx {
            self.open.entry(tx).or_insert(offset);
        }
        self.entries.push(entry);
        Offset(offset)
    }

    /// Somebody changes a record where it stands.
    pub fn alter(&mut self, offset: Offset, record: Record) {
        self.entries[offset.0 as usize].record = Some(record);
    }

    /// Ends a transaction here.
    pub fn mark(&mut self, tx: TxId, committed: bool, marker: Entry) {
        self.open.remove(&tx);
        if !committed {
            self.aborted.insert(tx);
        }
        self.entries.push(marker);
    }

    /// How long the transactions that hid this offset were open here, at most; `None`: one still is.
    pub fn hidden_for(&self, offset: Offset) -> Option<Time> {
        let mut first: BTreeMap<TxId, Time> = BTreeMap::new();
        for entry in &self.entries[..=(offset.0 as usize)] {
            match (entry.tx, &entry.record) {
                (Some(tx), Some(_)) => drop(first.entry(tx).or_insert(entry.at)),
                (Some(tx), None) => drop(first.remove(&tx)),
                (None, _) => {}
            }
        }
        let end = |tx: &TxId| {
            let rest = &self.entries[offset.0 as usize..];
            rest.iter().find(|entry| entry.tx == Some(*tx) && entry.record.is_none())
        };
        first
            .iter()
            .map(|(tx, from)| Some(end(tx)?.at - from))
            .try_fold(0, |longest, of| Some(longest.max(of?)))
    }

    pub fn start(&self) -> Offset {
        Offset(self.start)
    }

    pub fn end(&self) -> Offset {
        Offset(self.entries.len() as i64)
    }

    /// No transaction is open before this.
    pub fn last_stable(&self) -> Offset {
        Offset(self.open.values().copied().min().unwrap_or(self.entries.len() as i64))
    }

    pub fn delete_before(&mut self, until: Offset) {
        self.start = self.start.max(until.0.min(self.end().0));
    }

    /// Retention: what was appended before `stamp` goes, as far as its transactions have ended. What went, if anything.
    pub fn retain_from(&mut self, stamp: UnixMillis) -> Option<(Offset, Offset)> {
        let from = self.start;
        let until = self.last_stable().0;
        let young = (from..until).find(|at| self.entries[*at as usize].appended >= stamp);
        self.start = young.unwrap_or(until);
        (self.start > from).then_some((Offset(from), Offset(self.start)))
    }

    /// Compaction: of each key the last record stays; a tombstone that was written before `gone` goes, too.
    pub fn compact(&mut self, gone: UnixMillis) -> u64 {
        let mut last: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
        let mut away = Vec::new();
        for (offset, entry) in self.readable_from(Offset(0)) {
            let Some(key) = entry.record.as_ref().and_then(Record::key) else { continue };
            away.extend(last.insert(key.to_vec(), offset.0));
        }
        let tombstone = |offset: &&i64| {
            let entry = &self.entries[**offset as usize];
            entry.record.as_ref().is_some_and(|record| record.value().is_none())
                && entry.appended < gone
        };
        away.extend(last.values().filter(tombstone));
        let before = self.compacted.len();
        self.compacted.extend(away);
        (self.compacted.len() - before) as u64
    }

    /// The next record that a `read_committed` consumer may see.
    pub fn next_readable(&self, from: Offset) -> Result<Option<(Offset, &Entry)>, Refusal> {
        if from.0 < self.start || from > self.end() {
            return Err(Refusal::OutOfRange);
        }
        let there = |offset: &Offset| !self.compacted.contains(&offset.0);
        Ok(self.readable_from(from).find(|(offset, _)| there(offset)))
    }

    fn readable_from(&self, from: Offset) -> impl Iterator<Item = (Offset, &Entry)> {
        let until = self.last_stable().0;
        (from.0..until)
            .map(|offset| (Offset(offset), &self.entries[offset as usize]))
            .filter(|(_, entry)| entry.record.is_some() && !self.is_aborted(entry))
    }

    fn is_aborted(&self, entry: &Entry) -> bool {
        entry.tx.is_some_and(|tx| self.aborted.contains(&tx))
    }

    /// Everything that was ever committed here, deleted or not: for the checkers.
    pub fn ledger(&self) -> impl Iterator<Item = (Offset, &Entry)> {
        self.readable_from(Offset(0))
    }

    /// The same from an offset on.
    pub fn ledger_from(&self, from: Offset) -> impl Iterator<Item = (Offset, &Entry)> {
        self.readable_from(from)
    }

    /// One of them.
    pub fn read(&self, offset: Offset) -> Option<&Entry> {
        self.readable_from(offset)
            .next()
            .filter(|(found, _)| *found == offset)
            .map(|(_, entry)| entry)
    }

    /// All that stand here, but those of aborted transactions; open ones have yet to be told from decided ones.
    pub fn unless_aborted(&self) -> impl Iterator<Item = (Offset, &Entry)> {
        let all = self.entries.iter().enumerate().map(|(at, entry)| (Offset(at as i64), entry));
        all.filter(|(_, entry)| entry.record.is_some() && !self.is_aborted(entry))
    }

    /// The next record, whatever became of its transaction.
    pub fn next_any(&self, from: Offset) -> Option<(Offset, &Entry)> {
        let rest = self.entries.iter().enumerate().skip(from.0.max(0) as usize);
        rest.map(|(at, entry)| (Offset(at as i64), entry)).find(|(_, entry)| entry.record.is_some())
    }
}

/// The size of a record as a batch of its own (format 2), which `max.message.bytes` bounds.
pub fn batch_bytes(record: &Record) -> u64 {
    const BATCH_HEADER: u64 = 61;
    let part = |part: Option<&[u8]>| match part {
        Some(bytes) => varint(bytes.len() as i64) + bytes.len() as u64,
        None => varint(-1),
    };
    let count = record.headers().count() as i64;
    let headers: u64 = record.headers().map(|(name, value)| part(Some(name)) + part(value)).sum();
    let body = 3 + part(record.key()) + part(record.value()) + varint(count) + headers;
    BATCH_HEADER + varint(body as i64) + body
}

/// Bytes of a number as Kafka writes it: zigzag, seven bits to the byte.
fn varint(number: i64) -> u64 {
    let zigzag = ((number << 1) ^ (number >> 63)) as u64;
    u64::from(64 - zigzag.max(1).leading_zeros()).div_ceil(7)
}
