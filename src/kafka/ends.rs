//! Says where partitions end now, on a thread of its own with one client, for whoever asks.
//!
//! A record with an id fires only when everything that was written before some time has been read. On a busy partition
//! the next record tells; on an idle one nobody does, so its end is asked for.
//!
//! # Invariants
//! 1. An answer's time was taken before the brokers were asked: whatever was acknowledged before that time stands before
//!    the end that is told.
//! 2. Questions that came while one was on its way are asked together, in one request to each leader.
//! 3. Every question is answered for every partition, be it that nothing is known.
//!
//! What it does not do: of its own it asks only once. Who was told nothing asks again, later.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use super::connect::{Isolation, Reader};
use super::{BrokerClock, Connection};
use crate::engine::{Offset, UnixMillis};

/// How the client is named in the brokers' logs.
const CLIENT: &str = "waterclock-ends";
/// It fetches nothing.
const WAIT: Duration = Duration::from_secs(1);
/// One question to the brokers. A leader that is away keeps the others waiting for so long.
const ASK_MAX: Duration = Duration::from_secs(1);
/// Who waits asks again after this long.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// A partition.
pub(super) type Partition = (Arc<str>, i32);

/// Where a partition ends, as it was at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// The topic.
    pub(super) topic: Arc<str>,
    /// The partition of it.
    pub(super) partition: i32,
    /// A lower bound of the brokers' time from before they were asked.
    pub(super) at: UnixMillis,
    /// The end of its log, committed or not; `None`: its leader did not answer.
    pub(super) last: Option<Offset>,
    /// Where the first open transaction begins, else the end; `None` where nobody asked for it.
    pub(super) stable: Option<Offset>,
}

/// An answer to one question.
#[derive(Debug)]
pub(super) struct Answer {
    /// As it was asked: whatever tells the asker's questions apart.
    pub(super) of: u64,
    /// It was asked for stable ends, too.
    pub(super) stable: bool,
    /// Of every partition that was asked for.
    pub(super) told: Vec<Told>,
}

#[derive(Debug)]
struct Question {
    of: u64,
    partitions: Vec<Partition>,
    stable: bool,
    reply: Sender<Answer>,
}

/// Handle on the asking thread, which ends with the last handle.
#[derive(Clone, Debug)]
pub(super) struct Ends {
    questions: Sender<Question>,
}

impl Ends {
    /// Starts the thread.
    ///
    /// # Errors
    /// librdkafka refused its settings, or there is no thread.
    pub(super) fn start(
        connection: &Connection,
        clock: Arc<BrokerClock>,
    ) -> Result<Self, KafkaError> {
        let (questions, inbox) = crossbeam_channel::unbounded();
        let asker = Asker {
            connection: connection.clone(),
            last: connection.reader(CLIENT, Isolation::Uncommitted, WAIT)?,
            stable: None,
            clock,
        };
        std::thread::Builder::new()
            .name("wc-ends".into())
            .spawn(move || asker.run(&inbox))
            .map_err(|_| KafkaError::Canceled)?;
        Ok(Self { questions })
    }

    /// Asks for the ends of these partitions, with `stable` also for where open transactions begin. The answer comes by
    /// `reply`, for all of them at once.
    pub(super) fn ask(
        &self,
        of: u64,
        partitions: Vec<Partition>,
        stable: bool,
        reply: Sender<Answer>,
    ) {
        let _ = self.questions.send(Question { of, partitions, stable, reply });
    }

    /// Asks until all of it is told, and waits for that.
    ///
    /// # Errors
    /// Not all leaders answered within `most`; ask again.
    pub(super) fn wait(
        &self,
        partitions: &[Partition],
        most: Duration,
    ) -> Result<Vec<Told>, KafkaError> {
        let deadline = Instant::now() + most;
        while Instant::now() < deadline {
            let (reply, answer) = crossbeam_channel::bounded(1);
            self.ask(0, partitions.to_vec(), false, reply);
            match answer.recv_deadline(deadline) {
                Ok(Answer { told, .. }) if told.iter().all(|told| told.last.is_some()) => {
                    return Ok(told);
                }
                Ok(_) => std::thread::sleep(ASK_AGAIN),
                Err(_) => break,
            }
        }
        Err(KafkaError::OffsetFetch(RDKafkaErrorCode::OperationTimedOut))
    }
}

struct Asker {
    connection: Connection,
    last: Reader,
    /// Made when it is first needed: transactions of others are rare.
    stable: Option<Reader>,
    clock: Arc<BrokerClock>,
}

impl Asker {
    fn run(mut self, inbox: &Receiver<Question>) {
        while let Ok(first) = inbox.recv() {
            let questions: Vec<Question> = std::iter::once(first).chain(inbox.try_iter()).collect();
            // The clock before the ends, and the stable end before the last one: what is told as stable is never beyond.
            let at = self.clock.now(Instant::now()).unwrap_or_default();
            let stable = self.stable(&questions);
            let last = told(&self.connection, &self.last, all(&questions, |_| true));
            for Question { of, partitions, stable: wants, reply } in questions {
                let told = partitions.into_iter().map(|partition| {
                    let last = last.get(&partition).copied();
                    let stable = stable.get(&partition).copied().filter(|_| wants);
                    let (topic, partition) = partition;
                    Told { topic, partition, at, last, stable }
                });
                // Nobody waits any more when the lanes have gone.
                let _ = reply.send(Answer { of, stable: wants, told: told.collect() });
            }
        }
    }

    fn stable(&mut self, questions: &[Question]) -> BTreeMap<Partition, Offset> {
        let asked = all(questions, |question| question.stable);
        if asked.is_empty() {
            return BTreeMap::new();
        }
        if self.stable.is_none() {
            let made = self.connection.reader(CLIENT, Isolation::Committed, WAIT);
            self.stable = made.inspect_err(|error| tracing::warn!(%error, "no client")).ok();
        }
        self.stable
            .as_ref()
            .map_or_else(BTreeMap::new, |asker| told(&self.connection, asker, asked))
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

/// The ends that a client sees; without those that are not told.
fn told(
    connection: &Connection,
    asker: &Reader,
    partitions: Vec<Partition>,
) -> BTreeMap<Partition, Offset> {
    connection.token(asker.client());
    let ask = || -> Result<TopicPartitionList, KafkaError> {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for (topic, partition) in &partitions {
            list.add_partition_offset(topic, *partition, At::End)?;
        }
        asker.offsets_for_times(list, ASK_MAX)
    };
    let list = match ask() {
        Ok(list) => list,
        Err(error) => {
            tracing::debug!(%error, partitions = partitions.len(), "asking for ends");
            return BTreeMap::new();
        }
    };
    let end = |partition: Partition| {
        let element = list.find_partition(&partition.0, partition.1)?;
        match (element.error(), element.offset()) {
            (Ok(()), At::Offset(end)) => Some((partition, Offset(end))),
            _ => None,
        }
    };
    partitions.into_iter().filter_map(end).collect()
}
