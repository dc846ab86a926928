//! The transaction coordinator: epochs, one transaction at a time per id, markers that take their time.

use std::collections::BTreeSet;
use std::sync::Arc;

use waterclock::engine::{Offset, Record};

use super::{Broker, Entry, Place, Position, Refusal, Time};

/// A transaction, numbered upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TxId(pub usize);

/// A producer as it names itself to the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    pub id: Arc<str>,
    pub epoch: u32,
}

/// What the coordinator keeps of a transactional id.
#[derive(Debug, Default)]
pub struct Producer {
    epoch: u32,
    current: Option<TxId>,
    /// How the last one ended: the same answer again is no error.
    last: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Open,
    /// Decided (`true`: committed); the markers are on their way.
    Ending(bool),
    Done,
}

/// One transaction.
#[derive(Debug)]
pub struct Transaction {
    owner: Arc<str>,
    started: Time,
    status: Status,
    /// When it was decided, in the order of all that happened in the cluster.
    decided: u64,
    places: BTreeSet<Place>,
    offsets: Vec<(Place, Position)>,
}

/// Where a marker is still to be written; `None` is the log of committed offsets.
pub type Marker = (TxId, Option<Place>);

impl Broker {
    /// Fences the producer that had this id, ends what it left open, and gives out the next epoch.
    pub fn init(&mut self, id: &Arc<str>) -> Result<Writer, Refusal> {
        let producer = self.producers.entry(Arc::clone(id)).or_default();
        if let Some(tx) = producer.current {
            if self.transactions[tx.0].status == Status::Open {
                producer.epoch += 1;
                self.decide(tx, false);
            }
            // The caller is told to come back, as the markers have yet to be written.
            return Err(Refusal::Concurrent);
        }
        producer.epoch += 1;
        Ok(Writer { id: Arc::clone(id), epoch: producer.epoch })
    }

    fn producer_of(&mut self, writer: &Writer) -> Result<&mut Producer, Refusal> {
        match self.producers.get_mut(&writer.id) {
            Some(producer) if producer.epoch == writer.epoch => Ok(producer),
            _ => Err(Refusal::Fenced),
        }
    }

    /// The open transaction of a producer; begins one if there is none.
    fn open(&mut self, at: Time, writer: &Writer) -> Result<TxId, Refusal> {
        let fresh = TxId(self.transactions.len());
        let current = self.producer_of(writer)?.current;
        match current {
            Some(tx) if self.transactions[tx.0].status == Status::Open => Ok(tx),
            Some(_) => Err(Refusal::Concurrent),
            None => {
                self.producer_of(writer)?.current = Some(fresh);
                self.transactions.push(Transaction {
                    owner: Arc::clone(&writer.id),
                    started: at,
                    status: Status::Open,
                    decided: 0,
                    places: BTreeSet::new(),
                    offsets: Vec::new(),
                });
                Ok(fresh)
            }
        }
    }

    pub(super) fn enlist(
        &mut self,
        at: Time,
        writer: &Writer,
        place: Place,
    ) -> Result<TxId, Refusal> {
        let tx = self.open(at, writer)?;
        self.transactions[tx.0].places.insert(place);
        Ok(tx)
    }

    /// Adds positions to the open transaction.
    pub fn send_offsets(
        &mut self,
        at: Time,
        writer: &Writer,
        member: &str,
        generation: u32,
        positions: &[(Place, Position)],
    ) -> Result<(), Refusal> {
        self.producer_of(writer)?;
        self.check_commit(member, generation, positions)?;
        let tx = self.open(at, writer)?;
        self.transactions[tx.0].offsets.extend(positions.iter().cloned());
        Ok(())
    }

    /// Decides the open transaction. Its markers follow by [`Broker::write_marker`].
    ///
    /// As of protocol version 1 a late request of the same epoch ends whichever transaction is open then.
    pub fn end(&mut self, writer: &Writer, commit: bool) -> Result<(), Refusal> {
        let Producer { current, last, .. } = *self.producer_of(writer)?;
        match (current, last) {
            (None, Some(last)) if last == commit => Ok(()),
            (None, _) => Err(Refusal::InvalidState),
            (Some(tx), _) => match self.transactions[tx.0].status {
                Status::Open => {
                    self.decide(tx, commit);
                    Ok(())
                }
                Status::Ending(so) if so == commit => Err(Refusal::Concurrent),
                Status::Ending(_) | Status::Done => Err(Refusal::InvalidState),
            },
        }
    }

    fn decide(&mut self, tx: TxId, commit: bool) {
        self.transactions[tx.0].status = Status::Ending(commit);
        self.transactions[tx.0].decided = self.next_moment();
        if self.transactions[tx.0].places.is_empty() && self.transactions[tx.0].offsets.is_empty() {
            self.finish(tx, commit);
        }
    }

    /// Ends the transaction if it is open since `longest` or more.
    pub fn expire(&mut self, at: Time, id: &Arc<str>, longest: Time) {
        let Some(producer) = self.producers.get_mut(id) else { return };
        let Some(tx) = producer.current else { return };
        let transaction = &self.transactions[tx.0];
        if transaction.status == Status::Open && transaction.started + longest <= at {
            producer.epoch += 1;
            self.decide(tx, false);
        }
    }

    /// All markers that decided transactions still lack.
    pub fn missing_markers(&self) -> Vec<Marker> {
        let mut missing = Vec::new();
        for producer in self.producers.values() {
            let Some(tx) = producer.current else { continue };
            let transaction = &self.transactions[tx.0];
            if !matches!(transaction.status, Status::Ending(_)) {
                continue;
            }
            missing.extend(transaction.places.iter().map(|place| (tx, Some(*place))));
            if !transaction.offsets.is_empty() {
                missing.push((tx, None));
            }
        }
        missing
    }

    /// Writes one marker; the last one lets the producer start again.
    pub fn write_marker(&mut self, at: Time, (tx, place): Marker) {
        let Status::Ending(committed) = self.transactions[tx.0].status else { return };
        match place {
            None => {
                let offsets = std::mem::take(&mut self.transactions[tx.0].offsets);
                if committed {
                    self.offsets.extend(offsets);
                }
            }
            Some(place) => {
                if !self.transactions[tx.0].places.remove(&place) {
                    return;
                }
                let leader = self.partition(place).map_or(0, |partition| partition.leader);
                let appended = self.clock(leader, at);
                let moment = self.next_moment();
                if let Some(partition) = self.partition_mut(place) {
                    let marker =
                        Entry { appended, tx: Some(tx), record: None, moment, at, node: leader };
                    partition.mark(tx, committed, marker);
                }
            }
        }
        let transaction = &self.transactions[tx.0];
        if transaction.places.is_empty() && transaction.offsets.is_empty() {
            self.finish(tx, committed);
        }
    }

    /// Every entry of a partition whose record is there for good, even if a reader has yet to see it.
    pub fn decided_entries(&self, place: Place) -> impl Iterator<Item = (Offset, &Entry)> {
        let all = self.partition(place).into_iter().flat_map(|log| log.unless_aborted());
        let decided = |tx: TxId| {
            matches!(self.transactions[tx.0].status, Status::Ending(true) | Status::Done)
        };
        all.filter(move |(_, entry)| entry.tx.is_none_or(decided))
    }

    /// Their records.
    pub fn decided_records(&self, place: Place) -> impl Iterator<Item = (Offset, &Record)> {
        let all = self.decided_entries(place);
        all.filter_map(|(offset, entry)| Some((offset, entry.record.as_ref()?)))
    }

    /// When an entry was there for good, in the order of all that happened in the cluster.
    pub fn moment_of(&self, entry: &Entry) -> u64 {
        entry.tx.map_or(entry.moment, |tx| self.transactions[tx.0].decided)
    }

    fn finish(&mut self, tx: TxId, committed: bool) {
        self.transactions[tx.0].status = Status::Done;
        let owner = Arc::clone(&self.transactions[tx.0].owner);
        if let Some(producer) = self.producers.get_mut(&owner) {
            producer.current = None;
            producer.last = Some(committed);
        }
    }

    /// Positions of this partition whose transactions are decided to commit.
    pub(super) fn decided(&self, place: Place) -> impl Iterator<Item = &Position> {
        let current = self.producers.values().filter_map(|producer| producer.current);
        let ending = current
            .map(|tx| &self.transactions[tx.0])
            .filter(|tx| tx.status == Status::Ending(true));
        ending
            .flat_map(|tx| &tx.offsets)
            .filter(move |(of, _)| *of == place)
            .map(|(_, position)| position)
    }

    /// Whether any of these positions is in a transaction that has not ended.
    pub(super) fn waits_for_transaction(&self, places: &[Place]) -> bool {
        self.producers.values().filter_map(|producer| producer.current).any(|tx| {
            self.transactions[tx.0].offsets.iter().any(|(place, _)| places.contains(place))
        })
    }
}
