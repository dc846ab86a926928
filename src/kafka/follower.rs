//! Keeps the index up with the changelog, behind everything else, so that a restart finds most of it on disk.
//!
//! One thread, and it alone touches the index. Lane threads ask it what it knows when they take lanes over, and read
//! the rest from the changelog by themselves; from then on it follows the changelog, which the owner's own writes come
//! back through. So what is on disk is never ahead of what is committed (ADR 0008).
//!
//! # Invariants
//! 1. A lane thread never waits for it for longer than [`KNOW_MAX`]: a store that hangs costs time, once.
//! 2. An index that is broken is begun anew, a few times; one whose disk is full is given up until the next start. The
//!    lanes never notice.
//! 3. It joins no group and commits nothing.
//!
//! What it does not do: it decides nothing, and nobody waits for what it writes.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use sha2::{Digest as _, Sha256};

use super::connect::{Isolation, Reader};
use super::timers::{CLIENT, Error, Known, Timers};
use super::topics::InForce;
use super::{BrokerClock, Changelog, Connection};
use crate::engine::timers::{Change, Void};
use crate::engine::{Lane, Millis, Offset, UnixMillis};
use crate::index::{self, BATCH_MAX, Held, Identity, Index, Reason};
use crate::telemetry;

/// Form of keys and values in the index: those of the changelog.
const VERSION: u32 = crate::engine::timers::VERSION as u32;
/// How long a take-over waits for what the index knows; a million entries are read in a part of it.
const KNOW_MAX: Duration = Duration::from_secs(20);
/// The longest wait in one poll: an order is noticed within it.
const POLL_MAX: Duration = Duration::from_millis(50);
/// How long a broker holds a fetch for which there is nothing: an idle follower costs next to nothing, and a record
/// ends the wait at once.
const WAIT: Duration = Duration::from_secs(1);
/// One question to the brokers.
const ASK_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether lanes have reached the end of the changelog, which keeps them from getting old.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The same after lanes came or something was written: a restart soon after finds the index up with the changelog.
const LOOK_SOON: Duration = Duration::from_secs(1);
/// How often an index is begun anew in one run. What breaks more often has a cause that beginning anew does not mend.
const RENEWALS_MAX: u32 = 3;
/// A position that is further ahead of the brokers' time is of a clock that went wrong.
const AHEAD_MAX: Millis = Millis(600_000);

/// An index, and what must be known of its changelog to believe it.
#[derive(Debug)]
pub struct Indexing {
    index: Index,
    tombstones: Millis,
}

impl Indexing {
    /// Opens the index of what is in force for a namespace, in this directory.
    ///
    /// `None`: this run goes without, since the disk does not work; it has been logged.
    ///
    /// # Errors
    /// A person must mend it: another process has it, or the system does not let us.
    pub fn open(
        connection: &Connection,
        namespace: &str,
        in_force: &InForce,
        directory: &Path,
    ) -> Result<Option<Self>, index::Error> {
        let asker = connection.reader(CLIENT, Isolation::Committed, WAIT);
        let cluster_id = asker.ok().and_then(|asker| asker.client().fetch_cluster_id(ASK_MAX));
        let Some(cluster_id) = cluster_id else {
            give_up(&"Kafka does not tell its cluster's id");
            return Ok(None);
        };
        // One of the same name that was deleted had another secret; what stands on disk must not tell it.
        let secret = Sha256::new().chain_update("index").chain_update(in_force.secret.bytes());
        let mark: String =
            secret.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let namespace = format!("{namespace} {mark}");
        let identity = Identity { cluster_id, namespace, version: VERSION };
        match Index::open(directory, &identity) {
            Ok(index) => Ok(Some(Self { index, tombstones: in_force.tombstones })),
            Err(error @ (index::Error::InUse(_) | index::Error::Refused { .. })) => Err(error),
            Err(error) => {
                give_up(&error);
                Ok(None)
            }
        }
    }
}

fn give_up(why: &dyn fmt::Display) {
    tracing::warn!(%why, "no index in this run; what was cancelled is read from the changelog whenever a lane is taken over");
    telemetry::index_given_up();
}

/// What was cancelled: from the index as far as it reaches, from there on from the changelog.
#[derive(Clone, Debug)]
pub(super) struct Indexed {
    changelog: Changelog,
    orders: Sender<Order>,
}

#[derive(Debug)]
enum Order {
    /// Tell what is known of these lanes.
    Know(Vec<Lane>, Sender<HashMap<Lane, Known>>),
    /// Follow these lanes. Positions of the second ones turned out not to be in the changelog.
    Follow(Vec<Lane>, Vec<Lane>),
    /// These are another's.
    Leave(Vec<Lane>),
}

impl Indexed {
    /// Starts the thread.
    ///
    /// # Errors
    /// librdkafka refused its settings, or there is no thread.
    pub(super) fn start(
        connection: &Connection,
        topic: &str,
        indexing: Indexing,
        clock: Arc<BrokerClock>,
    ) -> Result<Self, KafkaError> {
        let Indexing { index, tombstones } = indexing;
        let follower = Follower {
            index: Some(index),
            connection: connection.clone(),
            consumer: connection.reader(CLIENT, Isolation::Committed, WAIT)?,
            topic: topic.to_owned(),
            tombstones,
            clock,
            lanes: BTreeMap::new(),
            renewals: 0,
            look: Instant::now(),
        };
        let (sender, orders) = crossbeam_channel::unbounded();
        std::thread::Builder::new()
            .name("wc-index".into())
            .spawn(move || follower.run(&orders))
            .map_err(|_| KafkaError::Canceled)?;
        Ok(Self { changelog: Changelog::new(connection, topic), orders: sender })
    }

    fn known(&self, lanes: &[Lane]) -> HashMap<Lane, Known> {
        let (reply, known) = crossbeam_channel::bounded(1);
        // A thread that has ended drops the order, and the answer with it.
        let _ = self.orders.send(Order::Know(lanes.to_vec(), reply));
        known.recv_timeout(KNOW_MAX).unwrap_or_else(|error| {
            tracing::warn!(%error, "the index does not answer; reading the changelog from its start");
            HashMap::new()
        })
    }
}

impl Timers for Indexed {
    fn load(&self, lanes: &[Lane]) -> Result<Vec<(Lane, Vec<Void>)>, Error> {
        let read = self.changelog.read_on(lanes, self.known(lanes))?;
        let _ = self.orders.send(Order::Follow(lanes.to_vec(), read.outside));
        Ok(read.held)
    }

    fn released(&self, lanes: &[Lane]) {
        let _ = self.orders.send(Order::Leave(lanes.to_vec()));
    }
}

/// The thread that owns the index.
struct Follower {
    /// `None` once it is given up.
    index: Option<Index>,
    connection: Connection,
    /// Made anew with every assignment: positions of an earlier one linger, and would be taken for what was read.
    consumer: Reader,
    topic: String,
    tombstones: Millis,
    clock: Arc<BrokerClock>,
    lanes: BTreeMap<Lane, Following>,
    renewals: u32,
    look: Instant,
}

/// One lane that is followed.
#[derive(Debug, Default)]
struct Following {
    /// Where the index goes on.
    next: Offset,
    /// Read and not in the index yet, at most [`BATCH_MAX`] of all lanes.
    changes: Vec<Change>,
    /// Append time of the last of them.
    at: UnixMillis,
}

impl Follower {
    fn run(mut self, orders: &Receiver<Order>) {
        loop {
            let order = match (self.lanes.is_empty(), orders.try_recv()) {
                (_, Ok(order)) => Ok(order),
                (true, _) => orders.recv_timeout(POLL_MAX * 20),
                (false, Err(crossbeam_channel::TryRecvError::Disconnected)) => {
                    Err(RecvTimeoutError::Disconnected)
                }
                (false, Err(_)) => Err(RecvTimeoutError::Timeout),
            };
            match order {
                Ok(order) => self.obey(order),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => self.turn(),
            }
        }
        if let Some(index) = self.index.take() {
            index.close();
        }
    }

    fn obey(&mut self, order: Order) {
        let done = match order {
            Order::Know(lanes, reply) => {
                let known = self.know(&lanes);
                let (known, done) = match known {
                    Ok(known) => (known, Ok(())),
                    Err(error) => (HashMap::new(), Err(error)),
                };
                // Who asked may have waited long enough.
                let _ = reply.send(known);
                done
            }
            Order::Follow(lanes, outside) => self.follow(&lanes, &outside),
            Order::Leave(lanes) => {
                let before = self.lanes.len();
                if let Some(index) = &mut self.index {
                    lanes.iter().for_each(|lane| index.release(*lane));
                }
                self.lanes.retain(|lane, _| !lanes.contains(lane));
                if self.lanes.len() != before {
                    self.assign();
                }
                Ok(())
            }
        };
        if let Err(error) = done {
            self.failed(error);
        }
    }

    fn now(&self) -> UnixMillis {
        self.clock.now(Instant::now()).unwrap_or_default()
    }

    /// What the index has of these lanes, if that is still of use.
    fn know(&mut self, lanes: &[Lane]) -> Result<HashMap<Lane, Known>, index::Error> {
        let (now, tombstones) = (self.now(), self.tombstones);
        let Some(index) = &mut self.index else { return Ok(HashMap::new()) };
        let mut all = HashMap::with_capacity(lanes.len());
        for lane in lanes {
            let mut known = Known::default();
            let position = index.load(*lane, |held| {
                if let Held::Void(void) = held {
                    known.timers.insert(void.name, void);
                }
            })?;
            let Some(position) = position else { continue };
            if is_stale(position.at, now, tombstones) {
                index.outdated(*lane, Reason::Stale)?;
                continue;
            }
            known.next = position.next;
            all.insert(*lane, known);
        }
        Ok(all)
    }

    fn follow(&mut self, lanes: &[Lane], outside: &[Lane]) -> Result<(), index::Error> {
        let Some(index) = &mut self.index else { return Ok(()) };
        for lane in lanes {
            if outside.contains(lane) {
                index.outdated(*lane, Reason::Outside)?;
            }
            let following = match index.position(*lane)? {
                Some(position) => Following { next: position.next, ..Following::default() },
                None => {
                    index.clear(*lane)?;
                    Following::default()
                }
            };
            self.lanes.insert(*lane, following);
        }
        self.assign();
        self.look = Instant::now() + LOOK_SOON;
        Ok(())
    }

    /// Has the consumer read the lanes that are followed, each from where the index goes on.
    fn assign(&mut self) {
        if let Err(error) = self.try_assign() {
            give_up(&error);
            self.lanes.clear();
            if let Some(index) = self.index.take() {
                index.abandon();
            }
        }
    }

    fn try_assign(&mut self) -> Result<(), KafkaError> {
        let mut list = TopicPartitionList::with_capacity(self.lanes.len());
        for (lane, following) in &self.lanes {
            let at = match following.next {
                Offset(0) => At::Beginning,
                Offset(next) => At::Offset(next),
            };
            list.add_partition_offset(&self.topic, i32::from(lane.0), at)?;
        }
        self.consumer = self.connection.reader(CLIENT, Isolation::Committed, WAIT)?;
        self.consumer.assign(&list)
    }

    /// Reads what is there and puts it into the index.
    fn turn(&mut self) {
        let mut timeout = POLL_MAX;
        for _ in 0..BATCH_MAX {
            match self.consumer.poll(timeout) {
                None => break,
                Some(Ok(message)) => {
                    let lane = u16::try_from(message.partition()).map(Lane).ok();
                    let following = lane.and_then(|lane| self.lanes.get_mut(&lane));
                    let (Some(following), Some(key)) = (following, message.key()) else { continue };
                    // What this version cannot read is passed over, as it is at a take-over.
                    following.changes.extend(Change::decode(Some(key), message.payload()));
                    following.next = Offset(message.offset()).next();
                    let at = message.timestamp().to_millis().and_then(|ms| u64::try_from(ms).ok());
                    following.at = at.map_or(following.at, UnixMillis);
                }
                Some(Err(error)) => {
                    let what = "following the changelog";
                    match error.rdkafka_error_code() {
                        Some(RDKafkaErrorCode::Fatal) => tracing::warn!(%error, what),
                        _ => tracing::debug!(%error, what),
                    }
                }
            }
            timeout = Duration::ZERO;
        }
        let mut done = self.write();
        if done.is_ok() && self.look <= Instant::now() {
            self.look = Instant::now() + LOOK_EVERY;
            done = self.look_at_ends();
        }
        if let Err(error) = done {
            self.failed(error);
        }
    }

    fn write(&mut self) -> Result<(), index::Error> {
        let Some(index) = &mut self.index else { return Ok(()) };
        for (lane, following) in &mut self.lanes {
            if following.changes.is_empty() {
                continue;
            }
            let changes = std::mem::take(&mut following.changes);
            index.apply(*lane, &changes, following.next, following.at)?;
            self.look = self.look.min(Instant::now() + LOOK_SOON);
        }
        Ok(())
    }

    /// Notes for lanes that have nothing left to read that they are up with the changelog now.
    fn look_at_ends(&mut self) -> Result<(), index::Error> {
        let (now, ends) = (self.now(), self.ends());
        let Some(index) = &mut self.index else { return Ok(()) };
        let mut behind = 0;
        match ends {
            // Next time.
            Err(error) => tracing::debug!(%error, "asking for the ends of the changelog"),
            Ok(ends) => {
                let passed = self.consumer.position().unwrap_or_default();
                for (lane, following) in &mut self.lanes {
                    // The consumer's position also passes markers, which leave no message.
                    let passed = passed.find_partition(&self.topic, i32::from(lane.0));
                    if let Some(At::Offset(passed)) = passed.map(|at| at.offset()) {
                        following.next = following.next.max(Offset(passed));
                    }
                    if ends.get(lane).is_some_and(|end| following.next >= *end) {
                        index.apply(*lane, &[], following.next, now)?;
                    } else {
                        behind += 1;
                    }
                }
            }
        }
        let index::Figures { live, ended, voids, .. } = index.reader().figures()?;
        let entries = live + ended + voids;
        let disk_bytes = index.disk_bytes()?;
        telemetry::index_size(entries, disk_bytes);
        tracing::debug!(lanes = self.lanes.len(), behind, entries, disk_bytes, "index");
        Ok(())
    }

    fn ends(&self) -> Result<HashMap<Lane, Offset>, KafkaError> {
        let mut list = TopicPartitionList::with_capacity(self.lanes.len());
        for lane in self.lanes.keys() {
            list.add_partition_offset(&self.topic, i32::from(lane.0), At::End)?;
        }
        let told = self.consumer.offsets_for_times(list, ASK_MAX)?;
        let end = |element: rdkafka::topic_partition_list::TopicPartitionListElem<'_>| {
            let lane = Lane(u16::try_from(element.partition()).ok()?);
            match (element.error(), element.offset()) {
                (Ok(()), At::Offset(end)) => Some((lane, Offset(end))),
                _ => None,
            }
        };
        Ok(told.elements().into_iter().filter_map(end).collect())
    }

    /// Begins the index anew, or goes on without.
    fn failed(&mut self, why: index::Error) {
        let Some(index) = self.index.take() else { return };
        let renewed = match why {
            index::Error::Broken { .. } if self.renewals < RENEWALS_MAX => {
                self.renewals += 1;
                index.renew(&why)
            }
            why => {
                index.abandon();
                Err(why)
            }
        };
        match renewed {
            Ok(index) => {
                self.index = Some(index);
                for following in self.lanes.values_mut() {
                    *following = Following::default();
                }
            }
            Err(error) => {
                give_up(&error);
                self.lanes.clear();
            }
        }
        self.assign();
    }
}

/// Whether tombstones may have gone that were written after this time. Half the time that they are kept is left for
/// reading what came since.
fn is_stale(at: UnixMillis, now: UnixMillis, tombstones: Millis) -> bool {
    now - at > tombstones.half() || at - now > AHEAD_MAX
}
