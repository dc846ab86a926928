//! One thread of a group member: a consumer polled by one owner, its role, and a committer beside it.
//!
//! Every turn of the loop reads the records at hand and gives them to the role. That of lanes gives them to their engine as
//! events, and carries out its actions.
//! It has no await, no lock that anything slow holds, and blocks in three calls only: when it takes lanes over, when it lets them go, and for a commit after a refusal.
//!
//! # Invariants
//! 1. The consumer is polled at least every `POLL_MAX`, whatever is paused.
//! 2. The role is told of an assignment before it gets any record of it.
//! 3. After a failed batch nothing is read, produced or committed until the lanes are taken over again.

mod lanes;
mod role;
mod session;
mod settings;
mod workers;

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;

use super::commit::Delivery;
use super::load::Work;
use super::rebalance::{Error as TakeOver, Progress};
use crate::client::Connection;
use crate::cluster::BrokerClock;
use crate::cluster::backlog::Reads;
use crate::cluster::delete_records::Trim;
use crate::cluster::end_offsets::EndOffsets;
use crate::cluster::topic_monitor::TopicHealth;
use crate::cluster::wall_clock_steps::Steps;
use crate::meta::SharedRoster;
use waterclock_engine::allow::Allow;
use waterclock_engine::member::Restarts;
use waterclock_engine::{Lane, Millis, Setup};

pub(super) use lanes::LaneParts;
use lanes::Lanes;
use role::Role;
use session::Session;
pub use workers::Calls;
pub(super) use workers::Ended;
pub(super) use workers::WorkParts;
use workers::Workers;

/// What one thread of a member is made from.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// How to reach the brokers.
    pub connection: Connection,
    /// The namespace, which the transactional ids begin with.
    pub namespace: String,
    /// The group that it joins.
    pub group: String,
    /// This process's name.
    pub instance: String,
    /// Tells its data directory from others.
    pub directory_id: String,
    /// Which of its threads, for people.
    pub thread: usize,
    /// The same in the names that Kafka knows the member by.
    pub thread_name: String,
    /// This start of the process: tells it from the one before it.
    pub incarnation: String,
    /// Of a longer record only the beginning is read, in bytes.
    pub record_bytes_max: usize,
    /// No batch may be larger, in bytes.
    pub batch_bytes: Arc<AtomicUsize>,
    /// Exactly or at least once.
    pub delivery: Delivery,
    /// `session.timeout.ms`.
    pub session_timeout: Duration,
    /// `transaction.timeout.ms`.
    pub transaction_timeout: Duration,
    /// A broker inside the process (the demo): no groups to list, no records to delete.
    pub embedded: bool,
}

/// What the rest of the process sees of a lane thread.
#[derive(Debug)]
pub struct Status {
    /// Lanes that it runs.
    pub lanes: AtomicUsize,
    /// The thread has the share that the group has given it, which may be empty. It is false while the thread takes its
    /// share over, or has let it go.
    pub joined: AtomicBool,
    /// Why it is not working now, for people.
    trouble: Mutex<Option<String>>,
    /// Lanes that it is taking over, which holds it.
    pub(crate) taking: Arc<Progress>,
    owned: Mutex<Owned>,
    /// How far each of its partitions was read.
    pub(crate) reads: Arc<Reads>,
    began: Instant,
    /// Milliseconds from `began` to the last sign of life.
    beat_ms: AtomicU64,
}

/// What a thread has.
#[derive(Debug)]
struct Owned {
    /// Which lanes it runs.
    lanes: Vec<Lane>,
    /// Timers that are pending in them; `None`: that is not known yet.
    timers: Option<u64>,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            lanes: AtomicUsize::new(0),
            joined: AtomicBool::new(false),
            trouble: Mutex::default(),
            taking: Arc::default(),
            owned: Mutex::new(Owned { lanes: Vec::new(), timers: Some(0) }),
            reads: Arc::default(),
            began: Instant::now(),
            beat_ms: AtomicU64::new(0),
        }
    }
}

impl Status {
    /// How long the thread has given no sign of life. Its loop turns many times a second; taking lanes over from a
    /// member that died can hold it for more than a minute.
    #[must_use]
    pub fn silence(&self) -> Duration {
        let beat = Duration::from_millis(self.beat_ms.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(beat)
    }

    pub(crate) fn beat(&self) {
        self.beat_ms.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Why it is not working now.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// What it is taking over, and for how long by now.
    #[must_use]
    pub fn taking(&self) -> Option<String> {
        self.taking.text()
    }

    /// Which lanes it runs, ascending.
    pub(crate) fn owned(&self) -> Vec<Lane> {
        self.owned.lock().lanes.clone()
    }

    /// Timers that are pending in its lanes; `None`: that is not known yet.
    pub(crate) fn timers(&self) -> Option<u64> {
        self.owned.lock().timers
    }

    fn own(&self, lanes: Vec<Lane>) {
        self.lanes.store(lanes.len(), Ordering::Relaxed);
        let mut owned = self.owned.lock();
        if owned.lanes != lanes {
            let timers = lanes.is_empty().then_some(0);
            *owned = Owned { lanes, timers };
        }
    }

    /// So many timers are pending in its lanes; `None`: that is not known yet.
    fn has_timers(&self, timers: Option<u64>) {
        self.owned.lock().timers = timers;
    }

    fn tell(&self, trouble: Option<String>) {
        *self.trouble.lock() = trouble;
    }
}

/// Why a lane thread ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A client could not be made.
    #[error("could not make a {what}")]
    Client {
        /// Consumer or producer thread.
        what: &'static str,
        /// What was wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Lanes could not be taken over.
    #[error(transparent)]
    TakeOver(#[from] TakeOver),
    /// Another process takes the same `group.instance.id` again and again: one of the two must go, and it is this one.
    #[error(
        "the group.instance.id of instance {instance} in group {group} is taken by another process, which must have a copy of this \
         one's data directory; give one of them an empty one"
    )]
    Fenced {
        /// The name.
        instance: String,
        /// The group.
        group: String,
    },
    /// The group has given these lanes to nobody: its assignment is older than they are.
    #[error(
        "no member owns lanes {lanes}: the group's assignment is older than a change of the topics. This lane thread leaves the group \
         and joins it again"
    )]
    Nobodys {
        /// Which.
        lanes: String,
    },
    /// A thread panicked: a defect of ours. The process stops, and another takes over.
    #[error("thread {thread} of a member panicked: {what}")]
    Panicked {
        /// Which thread.
        thread: usize,
        /// What it said.
        what: String,
    },
    /// librdkafka says that this consumer can do nothing any more.
    #[error("consumer of group {group} failed for good")]
    Consumer {
        /// The group.
        group: String,
        /// What it said.
        #[source]
        source: KafkaError,
    },
}

impl Error {
    /// Whether the thread may start again; otherwise the process stops and says why.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Client { .. }
            | Self::Panicked { .. }
            | Self::Fenced { .. }
            | Self::TakeOver(TakeOver::NameInUse { .. } | TakeOver::PositionGone { .. }) => true,
            Self::TakeOver(TakeOver::Producer { fatal, .. }) => *fatal,
            Self::TakeOver(TakeOver::TakeOver { .. })
            | Self::Nobodys { .. }
            | Self::Consumer { .. } => false,
        }
    }
}

/// The setup with the allow-lists that are in force, for every lane thread to look at.
#[derive(Debug)]
pub struct Policies {
    setup: Mutex<Arc<Setup>>,
    /// How often it was changed.
    changes: AtomicU64,
}

impl Policies {
    pub(crate) fn new(setup: Arc<Setup>) -> Self {
        Self { setup: Mutex::new(setup), changes: AtomicU64::new(0) }
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Arc<Setup>> {
        self.setup.lock()
    }

    /// Puts other allow-lists in force; each thread sees them at its next turn.
    pub(crate) fn allow(&self, allow: impl IntoIterator<Item = Allow>) {
        let mut setup = self.lock();
        *setup = Arc::new(setup.with_allow(allow));
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// What is in force, by the names of the intakes, for others to read.
    pub(crate) fn said(&self) -> BTreeMap<String, Vec<Vec<String>>> {
        let setup = Arc::clone(&self.lock());
        let intakes = setup.topics.intakes.iter();
        intakes.map(|intake| (intake.name.to_string(), intake.allow.sets())).collect()
    }

    /// What is in force, and which change made it so.
    fn now(&self) -> (u64, Arc<Setup>) {
        let setup = self.lock();
        (self.changes.load(Ordering::Acquire), Arc::clone(&setup))
    }

    /// The same if there was a change since; no lock otherwise.
    fn since(&self, change: u64) -> Option<(u64, Arc<Setup>)> {
        (self.changes.load(Ordering::Acquire) != change).then(|| self.now())
    }
}

/// What the threads of a member share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    /// The result of the last look at the topics: whether records may be admitted.
    pub(crate) seen: Arc<TopicHealth>,
    /// Notices when this machine's clock is set.
    pub(crate) steps: Arc<Steps>,
    /// The brokers' time.
    pub clock: Arc<BrokerClock>,
    /// Says where partitions end.
    pub(crate) ends: EndOffsets,
    /// What the members have announced.
    pub roster: SharedRoster,
    /// What is done here, for the own announcement.
    pub(crate) work: Arc<Work>,
    /// Deletes what is done.
    pub trim: Option<Trim>,
    /// Set when the process is to stop.
    pub stop: Arc<AtomicBool>,
    /// How long it may take to finish what has begun.
    pub drain: Duration,
}

/// Runs a lane thread until it is told to stop.
///
/// # Errors
/// See [`run`].
pub(super) fn run_lanes(
    plan: &Plan,
    shared: &Shared,
    parts: &LaneParts,
    status: &Status,
) -> Result<(), Error> {
    run(plan, shared, status, || Lanes::new(parts, plan.thread))
}

/// Runs the worker of a process until it is told to stop.
///
/// # Errors
/// See [`run`].
pub(super) fn run_worker(
    plan: &Plan,
    shared: &Shared,
    parts: &WorkParts,
    status: &Status,
) -> Result<(), Error> {
    run(plan, shared, status, || Workers::new(parts))
}

/// Runs a thread of a member until it is told to stop. After a trouble that may pass it starts again, with a new role.
///
/// # Errors
/// Only what will not pass: see [`Error::is_final`].
fn run<R: Role>(
    plan: &Plan,
    shared: &Shared,
    status: &Status,
    role: impl Fn() -> R,
) -> Result<(), Error> {
    let (first, mut restarts) = (Instant::now(), Restarts::default());
    while !shared.stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let session = Session::new(plan, shared, status, restarts.rejoin_after(), role());
        match session.and_then(Session::run) {
            Ok(()) => return Ok(()),
            Err(Error::Fenced { .. })
                if restarts.fenced(millis(began - first), millis(first.elapsed())) =>
            {
                tracing::warn!(
                    thread = plan.thread,
                    "another member took the group.instance.id, taking it again"
                );
                status.own(Vec::new());
                continue;
            }
            Err(error @ Error::Nobodys { .. }) => {
                restarts.left_for_nobodys();
                status.tell(Some(error.to_string()));
                status.own(Vec::new());
                status.joined.store(false, Ordering::Relaxed);
                continue;
            }
            Err(error) if error.is_final() => return Err(error),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    thread = plan.thread,
                    group = plan.group,
                    "thread starts again"
                );
                status.tell(Some(error.to_string()));
            }
        }
        status.own(Vec::new());
        status.joined.store(false, Ordering::Relaxed);
        let Millis(pause) = restarts.pause(millis(began.elapsed()));
        wait(shared, status, Duration::from_millis(pause));
    }
    Ok(())
}

/// A time as the core counts it.
fn millis(time: Duration) -> Millis {
    Millis(time.as_millis() as u64)
}

fn wait(shared: &Shared, status: &Status, most: Duration) {
    let until = Instant::now() + most;
    while Instant::now() < until && !shared.stop.load(Ordering::Relaxed) {
        status.beat();
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_many_timers_are_pending_is_not_known_of_lanes_that_have_just_come() {
        let status = Status::default();
        assert_eq!(status.timers(), Some(0), "it has no lane");
        let lanes = |lanes: &[u16]| lanes.iter().copied().map(Lane).collect::<Vec<_>>();
        status.own(lanes(&[0, 2]));
        assert_eq!((status.owned(), status.timers()), (lanes(&[0, 2]), None));
        status.has_timers(Some(7));
        status.own(lanes(&[0, 2]));
        assert_eq!(status.timers(), Some(7), "they are the same");
        status.own(lanes(&[0, 1, 2]));
        assert_eq!(status.timers(), None);
        status.own(Vec::new());
        assert_eq!(status.timers(), Some(0));
    }
}
