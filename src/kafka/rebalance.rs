//! Takes lanes over and lets them go, inside librdkafka's rebalance callback.
//!
//! The broker fences old generations, not ownership (core notes 2): whoever reads the group metadata just before a
//! commit can commit for partitions that are another member's. So the metadata is taken with the assignment and
//! goes with every batch of it, and whatever was pending of revoked lanes is dropped before they are let go.
//!
//! # Invariants
//! 1. Every partition is given its offset explicitly: what is committed, else the log's start; `auto.offset.reset`
//!    is `error`.
//! 2. A transaction that is on its way is waited for before the lanes are acknowledged as revoked, for a bounded time.
//! 3. Where the logs end is asked after the committed offsets are known: whoever reads `<ns>.timers` up to there misses
//!    nothing of what was done by then.
//! 4. Committed offsets are fetched only after an earlier transaction of ours is decided (`Committer::ready`) and only
//!    stable ones (`isolation.level=read_committed` asks for those), so that nothing is read twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::consumer::{
    BaseConsumer, CommitMode, Consumer as _, ConsumerContext, ConsumerGroupMetadata,
};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};
use rdkafka::types::RDKafkaRespErr;

use super::committer::{Committer, offsets_of};
use super::ends::{self, Ends, Partition};
use super::oauth::tokens;
use crate::engine::window::Window;
use crate::engine::{Lane, Offset, Source, Start, TopicId};
use crate::telemetry;

/// How long a revoke waits for what is on its way; well below the session and the transaction timeout.
const SETTLE: Duration = Duration::from_secs(5);
/// How long taking over may take: a dead member's transaction is decided after its timeout (15 s) plus the
/// coordinator's next look (10 s).
const TAKE_OVER: Duration = Duration::from_secs(40);
/// One attempt of it.
const ATTEMPT: Duration = Duration::from_secs(10);

/// What happened in a callback, for the lane thread.
pub(super) enum Event {
    /// Lanes came.
    Assigned(Taken),
    /// All lanes went.
    Revoked,
    /// Taking over failed; the consumer is to be made anew.
    Failed(Error),
}

/// What is known of lanes that were taken over.
pub(super) struct Taken {
    /// Where they start.
    pub(super) starts: Vec<Start>,
    /// Where the lanes' changelogs ended.
    pub(super) changelogs: Vec<(Lane, Offset)>,
    /// The group's metadata of this assignment.
    pub(super) group: Arc<ConsumerGroupMetadata>,
}

/// Why lanes could not be taken over.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Kafka did not answer in time, or said no. Trying again helps.
    #[error("could not take over {partitions} partitions: {what}")]
    TakeOver {
        /// How many.
        partitions: usize,
        /// Which step.
        what: &'static str,
        /// What Kafka said.
        #[source]
        source: KafkaError,
    },
    /// There is no producer to take over with.
    #[error("could not take over {partitions} partitions: {why}")]
    Producer {
        /// How many.
        partitions: usize,
        /// Why there is none.
        why: String,
        /// Trying again is of no use.
        fatal: bool,
    },
    /// A lane was worked on and its position is not known any more: what was done cannot be told from what was not.
    #[error(
        "group {group} has no committed offset for {topic}/{partition}, though records before {first} are done: offsets \
         expire when a group is away for longer than the broker's offsets.retention.minutes. To deliver again what may \
         have been delivered: kafka-consumer-groups.sh --group {group} --topic {topic} --reset-offsets --to-earliest \
         --execute"
    )]
    PositionGone {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
        /// Where its log starts.
        first: i64,
        /// The group.
        group: String,
    },
    /// Another live process uses the same name: one of the two must go, and it is this one.
    #[error(
        "instance {instance} is in use by another live member of group {group} ({host}); give this one another \
         --instance or --data-dir"
    )]
    NameInUse {
        /// The name.
        instance: String,
        /// The group.
        group: String,
        /// Where the other is.
        host: String,
    },
}

/// Names that taking over needs.
#[derive(Clone, Debug)]
pub(super) struct Who {
    pub(super) group: String,
    pub(super) instance: String,
    /// `client.id` of this consumer: names instance, thread and start.
    pub(super) client_id: String,
    /// The part of it that names the instance and the thread, however often it was started.
    pub(super) slot: String,
    /// Names of the lane topics, by [`TopicId`].
    pub(super) lanes: Vec<Arc<str>>,
    /// Name of the changelog.
    pub(super) timers: Arc<str>,
    /// The embedded broker knows no groups to describe.
    pub(super) embedded: bool,
}

/// The consumer's context.
pub(super) struct Context {
    pub(super) who: Who,
    pub(super) committer: Arc<Committer>,
    ends: Ends,
    events: Mutex<Vec<Event>>,
    /// A position was outside of its log: the next take-over compares every one with its log's ends.
    look_at_ends: AtomicBool,
}

impl Context {
    pub(super) fn new(who: Who, committer: Arc<Committer>, ends: Ends) -> Self {
        Self {
            who,
            committer,
            ends,
            events: Mutex::default(),
            look_at_ends: AtomicBool::new(false),
        }
    }

    /// Has the next take-over look for positions outside of their logs.
    pub(super) fn look_at_ends(&self) {
        self.look_at_ends.store(true, Ordering::Relaxed);
    }

    pub(super) fn events(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn push(&self, event: Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Lets everything go: waits for what is on its way, commits what is acknowledged.
    pub(super) fn let_go(&self, consumer: &BaseConsumer<Self>) {
        if !self.committer.settle(SETTLE) {
            tracing::warn!(
                "a batch is still on its way while its lanes are revoked; its generation is fenced"
            );
        }
        self.commit(consumer, CommitMode::Sync);
    }

    /// Commits what is acknowledged and not committed yet (`at_least_once`).
    pub(super) fn commit(&self, consumer: &BaseConsumer<Self>, mode: CommitMode) {
        let commits = self.committer.take_commits();
        if commits.is_empty() {
            return;
        }
        let committed =
            offsets_of(&commits, &self.who.lanes).and_then(|list| consumer.commit(&list, mode));
        if let Err(error) = committed {
            tracing::warn!(%error, partitions = commits.len(), "could not commit; what was delivered since is delivered again");
        }
    }

    /// Finds where every partition starts, and assigns them there.
    pub(super) fn take_over(
        &self,
        consumer: &BaseConsumer<Self>,
        partitions: &TopicPartitionList,
    ) -> Result<Taken, Error> {
        let count = partitions.count();
        let failed = |what| move |source| Error::TakeOver { partitions: count, what, source };
        self.alone(consumer)?;
        self.committer.drop_commits();
        if let Err(not_ready) = self.committer.ready(TAKE_OVER) {
            let fatal = not_ready.fatal;
            return Err(Error::Producer { partitions: count, why: not_ready.to_string(), fatal });
        }
        let deadline = Instant::now() + TAKE_OVER;
        let committed = loop {
            match consumer.committed_offsets(partitions.clone(), ATTEMPT) {
                Ok(committed) => break committed,
                Err(error) if Instant::now() < deadline => {
                    tracing::info!(%error, "committed offsets are not stable yet");
                }
                Err(error) => return Err(failed("committed offsets")(error)),
            }
        };
        let told = self.ends_of(partitions).map_err(failed("ends of the logs"))?;
        let log_ends: HashMap<(&str, i32), Offset> =
            told.iter().filter_map(|t| Some(((&*t.topic, t.partition), t.last?))).collect();
        let ends = self.look_at_ends.swap(false, Ordering::Relaxed);
        let mut starts = Vec::with_capacity(count);
        let mut list = TopicPartitionList::with_capacity(count);
        let mut fresh = TopicPartitionList::new();
        for element in committed.elements() {
            element.error().map_err(failed("committed offsets"))?;
            let (next, metadata, at) = match element.offset() {
                At::Offset(next) if ends => {
                    let (topic, partition) = (element.topic(), element.partition());
                    let (low, high) = consumer
                        .fetch_watermarks(topic, partition, ATTEMPT)
                        .map_err(failed("ends of the log"))?;
                    let start = next.clamp(low, high);
                    if start != next {
                        // What stood between is gone; what is left is delivered, and somebody is told.
                        tracing::error!(
                            topic,
                            partition,
                            offset = next,
                            low,
                            high,
                            "committed position is outside of the log"
                        );
                        telemetry::position_lost(next.abs_diff(start));
                    }
                    let metadata = if start == next { element.metadata() } else { "" };
                    (start, metadata.to_owned(), At::Offset(start))
                }
                At::Offset(next) => (next, element.metadata().to_owned(), At::Offset(next)),
                _ if self.who.embedded => (0, String::new(), At::Beginning),
                _ => {
                    let first =
                        self.never_started(consumer, element.topic(), element.partition())?;
                    fresh
                        .add_partition_offset(
                            element.topic(),
                            element.partition(),
                            At::Offset(first),
                        )
                        .map_err(failed("start offsets"))?;
                    (first, String::new(), At::Offset(first))
                }
            };
            list.add_partition_offset(element.topic(), element.partition(), at)
                .map_err(failed("start offsets"))?;
            let topic = self.who.lanes.iter().position(|name| **name == *element.topic());
            let lane = u16::try_from(element.partition()).ok();
            if let (Some(topic), Some(lane)) = (topic, lane) {
                let source = Source { topic: TopicId(topic as u16), lane: Lane(lane) };
                if let Err(error) = Window::load(Offset(next), &metadata) {
                    let (topic, partition) = (element.topic(), element.partition());
                    tracing::error!(%error, topic, partition, offset = next, "what is pending cannot be read, the lane rests");
                }
                let end = log_ends.get(&(element.topic(), element.partition()));
                let end = end.copied().unwrap_or(Offset(i64::MAX));
                starts.push(Start { source, next: Offset(next), metadata, end });
            }
        }
        let group =
            consumer.group_metadata().ok_or(KafkaError::Canceled).map_err(failed("group"))?;
        consumer.assign(&list).map_err(failed("assign"))?;
        // A pause survives a revoke and an assign in librdkafka (1849, 5113): begin with none.
        consumer.resume(&list).map_err(failed("resume"))?;
        fresh_positions(consumer).map_err(failed("positions"))?;
        // A lane that was started is known by that from now on.
        if fresh.count() > 0 {
            consumer.commit(&fresh, CommitMode::Sync).map_err(failed("first positions"))?;
        }
        let changelogs = told.iter().filter(|told| told.topic == self.who.timers);
        let changelogs = changelogs
            .filter_map(|told| Some((Lane(u16::try_from(told.partition).ok()?), told.last?)))
            .collect();
        Ok(Taken { starts, changelogs, group: Arc::new(group) })
    }

    /// Where the logs of these partitions and the changelogs of their lanes end, be it that what stands last is of a
    /// transaction that is open: what users were told is written stands before that.
    fn ends_of(&self, partitions: &TopicPartitionList) -> Result<Vec<ends::Told>, KafkaError> {
        let mut asked: Vec<Partition> = Vec::with_capacity(partitions.count());
        for element in partitions.elements() {
            let topic = self.who.lanes.iter().position(|name| **name == *element.topic());
            let Some(topic) = topic else { continue };
            asked.push((Arc::clone(&self.who.lanes[topic]), element.partition()));
            if topic == 0 {
                asked.push((Arc::clone(&self.who.timers), element.partition()));
            }
        }
        self.ends.wait(&asked, ATTEMPT)
    }

    /// Where a partition without a committed position starts: at its log's start, if nothing of it was ever done.
    fn never_started(
        &self,
        consumer: &BaseConsumer<Self>,
        topic: &str,
        partition: i32,
    ) -> Result<i64, Error> {
        let (first, end) = consumer
            .fetch_watermarks(topic, partition, ATTEMPT)
            .map_err(|source| Error::TakeOver { partitions: 1, what: "ends of the log", source })?;
        if first > 0 && first < end {
            let topic = topic.to_owned();
            return Err(Error::PositionGone {
                topic,
                partition,
                first,
                group: self.who.group.clone(),
            });
        }
        Ok(first)
    }

    /// Refuses to run beside a live member of the same name that was there first: the two would fence each other for
    /// ever. Once an assignment is here, a dead namesake has left the group already.
    fn alone(&self, consumer: &BaseConsumer<Self>) -> Result<(), Error> {
        if self.who.embedded {
            return Ok(());
        }
        let list = match consumer.fetch_group_list(Some(&self.who.group), ATTEMPT) {
            Ok(list) => list,
            Err(error) => {
                tracing::warn!(%error, "could not list the group's members; their names are not checked");
                return Ok(());
            }
        };
        let other = list.groups().iter().flat_map(|group| group.members()).find(|member| {
            // The same slot, and a start before ours: the later one goes, and the earlier one stays.
            member.client_id().starts_with(&self.who.slot)
                && *member.client_id() < *self.who.client_id
        });
        match other {
            None => Ok(()),
            Some(member) => Err(Error::NameInUse {
                instance: self.who.instance.clone(),
                group: self.who.group.clone(),
                host: member.client_host().to_owned(),
            }),
        }
    }
}

/// Waits until no partition has the position of an earlier assignment any more: stopping to fetch goes on behind an
/// assign, and a position that is believed tells the engine what was read. Nobody polls meanwhile, so none is new.
fn fresh_positions(consumer: &BaseConsumer<Context>) -> Result<(), KafkaError> {
    let deadline = Instant::now() + ATTEMPT;
    loop {
        let positions = consumer.position()?;
        if positions.elements().iter().all(|element| element.offset() == At::Invalid) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(KafkaError::OffsetFetch(RDKafkaErrorCode::OperationTimedOut));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl ClientContext for Context {
    tokens!();

    fn error(&self, error: KafkaError, reason: &str) {
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::AllBrokersDown) => {
                tracing::info!(%error, reason, "consumer lost a broker");
            }
            _ => tracing::warn!(%error, reason, "consumer"),
        }
    }
}

impl ConsumerContext for Context {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        event: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        if event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            tracing::info!(partitions = partitions.count(), "assigned");
            if partitions.count() == 0 {
                // More members than lanes: a spare.
                let _ = consumer.unassign();
                return self.push(Event::Revoked);
            }
            match self.take_over(consumer, partitions) {
                Ok(taken) => self.push(Event::Assigned(taken)),
                Err(error) => {
                    let _ = consumer.unassign();
                    self.push(Event::Failed(error));
                }
            }
        } else {
            tracing::info!(
                partitions = partitions.count(),
                lost = consumer.assignment_lost(),
                "revoked"
            );
            self.let_go(consumer);
            if let Err(error) = consumer.unassign() {
                tracing::warn!(%error, "could not let the lanes go");
            }
            self.push(Event::Revoked);
        }
    }
}
