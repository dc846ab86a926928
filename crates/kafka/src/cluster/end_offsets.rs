//! Reports where partitions end now, and where they begin, to any caller, by the client for questions and a thread for each
//! leader.
//!
//! A record with an id fires only when everything that was written before some time has been read. On a busy partition
//! the next record tells. On an idle one nothing does, so this room asks for its end offset.
//!
//! # Invariants
//! 1. An answer's time was taken before the brokers were asked. So everything that was acknowledged before that time
//!    stands before the end that is reported.
//! 2. Questions to a leader that came while one was on its way are asked together, in one request.
//! 3. A leader that is away delays no question about partitions of others.
//! 4. A client that learns from nobody who leads is created again: it may go on asking a broker that stands still.
//! 5. Every question is answered for every partition, in one piece or several, even if nothing is known.
//!
//! What it does not do: it asks only once by itself. A caller that got no answer asks again, later.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rdkafka::error::KafkaError;

use super::BrokerClock;
use crate::client::errors;
use crate::client::raw::ask::End;
use crate::client::resilient_admin::ResilientAdmin;
use waterclock_engine::{Offset, UnixMillis};

/// One question to a leader.
const ASK_MAX: Duration = Duration::from_secs(1);
/// A thread that was not asked for this long ends; the next question has another.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// A caller that waits asks again after this long.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// A partition.
pub type Partition = (Arc<str>, i32);

/// Where a partition ends, as it was at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndOffset {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition of it.
    pub partition: i32,
    /// A lower bound of the brokers' time from before they were asked.
    pub at: UnixMillis,
    /// The end of its log, committed or not; `None`: its leader did not answer.
    pub last: Option<Offset>,
    /// Where the first open transaction begins, else the end; `None` where nobody asked for it.
    pub stable: Option<Offset>,
    /// Where its log begins; `None` where nobody asked for it.
    pub first: Option<Offset>,
}

/// What to ask for beside the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Also {
    Nothing,
    /// Where open transactions begin.
    Stable,
    /// Where the logs begin.
    First,
}

/// An answer to one question.
#[derive(Debug)]
pub struct Answer {
    /// As it was asked: whatever tells the asker's questions apart.
    pub of: u64,
    /// It was asked for stable ends, too.
    pub stable: bool,
    /// Of every partition that was asked for.
    pub ends: Vec<EndOffset>,
}

#[derive(Debug)]
struct Question {
    of: u64,
    partitions: Vec<Partition>,
    also: Also,
    reply: Sender<Answer>,
}

/// Stands for the leader of a partition whose leader is unknown.
const NOBODY: i32 = -1;

/// Asks, on threads of its own, which end with the last handle.
#[derive(Clone)]
pub struct EndOffsets {
    asker: Arc<Asker>,
    threads: Arc<Mutex<Threads>>,
}

/// By the leader that they ask.
type Threads = BTreeMap<i32, Sender<Question>>;

impl std::fmt::Debug for EndOffsets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndOffsets").finish_non_exhaustive()
    }
}

impl EndOffsets {
    /// Asks by this client.
    pub(crate) fn new(admin: ResilientAdmin, clock: Arc<BrokerClock>) -> Self {
        let asker = Asker { admin, leaders: Mutex::default(), clock };
        Self { asker: Arc::new(asker), threads: Arc::default() }
    }

    /// Asks for the ends of these partitions, with `stable` also for where open transactions begin. The answers come by
    /// `reply`, of each leader by itself.
    pub fn ask(&self, of: u64, partitions: Vec<Partition>, stable: bool, reply: &Sender<Answer>) {
        let also = if stable { Also::Stable } else { Also::Nothing };
        self.ask_also(of, partitions, also, reply);
    }

    fn ask_also(&self, of: u64, partitions: Vec<Partition>, also: Also, reply: &Sender<Answer>) {
        let mut by_leader: BTreeMap<i32, Vec<Partition>> = BTreeMap::new();
        {
            let leaders = self.asker.leaders.lock();
            for partition in partitions {
                let leader = leaders.get(&partition).copied().unwrap_or(NOBODY);
                by_leader.entry(leader).or_default().push(partition);
            }
        }
        let mut threads = self.threads.lock();
        for (leader, partitions) in by_leader {
            let question = Question { of, partitions, also, reply: reply.clone() };
            let thread = threads.entry(leader).or_insert_with(|| self.start(leader));
            if let Err(crossbeam_channel::SendError(question)) = thread.send(question) {
                // There was no thread to be had.
                threads.remove(&leader);
                question.answer(UnixMillis(0), &Found::default());
            }
        }
    }

    fn start(&self, leader: i32) -> Sender<Question> {
        let (questions, inbox) = crossbeam_channel::unbounded();
        let (asker, threads) = (Arc::clone(&self.asker), Arc::downgrade(&self.threads));
        let started = std::thread::Builder::new()
            .name("wc-ends".into())
            .spawn(move || asker.run(leader, &inbox, &threads));
        if let Err(error) = started {
            tracing::warn!(%error, "no thread to ask for ends");
        }
        questions
    }

    /// Asks where these partitions begin and end, and waits until all leaders have answered: one question for all of
    /// them that have the same leader.
    ///
    /// # Errors
    /// Not all leaders answered within `most`; ask again.
    pub fn wait(
        &self,
        partitions: &[Partition],
        most: Duration,
    ) -> Result<Vec<EndOffset>, KafkaError> {
        let deadline = Instant::now() + most;
        let (reply, answers) = crossbeam_channel::unbounded();
        let mut ends = Vec::with_capacity(partitions.len());
        self.ask_also(0, partitions.to_vec(), Also::First, &reply);
        while ends.len() < partitions.len() {
            let Ok(answer) = answers.recv_deadline(deadline) else {
                return Err(errors::no_answer());
            };
            let (known, missing): (Vec<EndOffset>, Vec<EndOffset>) =
                answer.ends.into_iter().partition(|end| end.last.is_some() && end.first.is_some());
            ends.extend(known);
            if !missing.is_empty() {
                std::thread::sleep(ASK_AGAIN);
                let again = missing.into_iter().map(|end| (end.topic, end.partition));
                self.ask_also(0, again.collect(), Also::First, &reply);
            }
        }
        Ok(ends)
    }
}

/// What the leaders answered.
#[derive(Debug, Default)]
struct Found {
    last: BTreeMap<Partition, Offset>,
    stable: BTreeMap<Partition, Offset>,
    first: BTreeMap<Partition, Offset>,
}

impl Question {
    fn answer(self, at: UnixMillis, found: &Found) {
        let Self { of, partitions, also, reply } = self;
        let ends = partitions.into_iter().map(|partition| {
            let last = found.last.get(&partition).copied();
            let stable = found.stable.get(&partition).copied().filter(|_| also == Also::Stable);
            let first = found.first.get(&partition).copied().filter(|_| also == Also::First);
            let (topic, partition) = partition;
            EndOffset { topic, partition, at, last, stable, first }
        });
        let ends = ends.collect();
        // Nobody waits any more when the lanes have gone.
        let _ = reply.send(Answer { of, stable: also == Also::Stable, ends });
    }
}

struct Asker {
    admin: ResilientAdmin,
    /// Who leads which partition, by the last metadata.
    leaders: Mutex<BTreeMap<Partition, i32>>,
    clock: Arc<BrokerClock>,
}

impl Asker {
    fn run(&self, leader: i32, inbox: &Receiver<Question>, threads: &Weak<Mutex<Threads>>) {
        loop {
            let first = match inbox.recv_timeout(IDLE_MAX) {
                Ok(first) => first,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    let Some(threads) = threads.upgrade() else { return };
                    // Questions are sent under this lock: none is lost.
                    let mut threads = threads.lock();
                    if inbox.is_empty() {
                        threads.remove(&leader);
                        return;
                    }
                    continue;
                }
            };
            let questions: Vec<Question> = std::iter::once(first).chain(inbox.try_iter()).collect();
            // Read the clock before the ends, and the stable end before the last one: so the stable end that is
            // reported is never beyond the last one. Neither is a beginning.
            let at = self.clock.now(Instant::now()).unwrap_or_default();
            let of = |which: &dyn Fn(&Question) -> bool, end: End| {
                let partitions = all(&questions, which);
                (partitions.len(), self.ends(&partitions, end))
            };
            let (_, stable) = of(&|question| question.also == Also::Stable, End::Stable);
            let (_, first) = of(&|question| question.also == Also::First, End::First);
            let (count, last) = of(&|_| true, End::Last);
            let is_lost = last.len() < count;
            let found = Found { last, stable, first };
            for question in questions {
                question.answer(at, &found);
            }
            if leader == NOBODY || is_lost {
                self.find_leaders();
            }
        }
    }

    /// Where partitions end or begin; without those for which there is no answer.
    fn ends(&self, partitions: &[Partition], end: End) -> BTreeMap<Partition, Offset> {
        let names: Vec<(String, i32)> =
            partitions.iter().map(|(t, p)| (t.to_string(), *p)).collect();
        let answers = self.admin.ends_of_one_leader(&names, end, ASK_MAX);
        let answers = answers.unwrap_or_else(|error| {
            tracing::debug!(%error, partitions = partitions.len(), "asking for ends");
            Vec::new()
        });
        let mut offsets: BTreeMap<(&str, i32), Offset> = BTreeMap::new();
        for (topic, partition, offset) in &answers {
            match offset {
                Ok(offset) => {
                    offsets.insert((topic, *partition), Offset(*offset));
                }
                Err(error) => tracing::debug!(%error, topic, partition, "asking for an end"),
            }
        }
        let found = |partition: &Partition| {
            let offset = offsets.get(&(&*partition.0, partition.1)).copied();
            offset.filter(|offset| offset.0 >= 0).map(|offset| (partition.clone(), offset))
        };
        partitions.iter().filter_map(found).collect()
    }

    /// Asks who leads what, so that questions go where their answers are.
    fn find_leaders(&self) {
        // Of all topics: to ask for one by its name can create it.
        let metadata = match self.admin.ask(|admin| admin.fetch_metadata(None, ASK_MAX)) {
            Ok(metadata) => metadata,
            Err(error) => return tracing::debug!(%error, "asking who leads"),
        };
        self.admin.remember(&metadata);
        let leaders = metadata.topics().iter().flat_map(|topic| {
            let name: Arc<str> = Arc::from(topic.name());
            let led = topic.partitions().iter().filter(|partition| partition.leader() >= 0);
            led.map(move |led| ((Arc::clone(&name), led.id()), led.leader()))
        });
        let leaders = leaders.collect();
        *self.leaders.lock() = leaders;
    }
}

/// The partitions of some of the questions, each once.
fn all(questions: &[Question], which: impl Fn(&Question) -> bool) -> Vec<Partition> {
    let mut all: Vec<Partition> =
        questions.iter().filter(|q| which(q)).flat_map(|q| q.partitions.iter().cloned()).collect();
    all.sort_unstable();
    all.dedup();
    all
}
