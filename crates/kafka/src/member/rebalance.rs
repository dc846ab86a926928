//! Takes lanes over and lets them go, inside librdkafka's rebalance callback. Partitions of workers are let go after it has
//! returned (ADR 0027).
//!
//! The broker fences old generations, not ownership. A member that reads the group metadata just before
//! a commit can commit for partitions that are another member's. So the metadata is taken with the assignment, and goes
//! with every batch of it. The pending records of revoked lanes are dropped before the lanes are let go.
//!
//! # Invariants
//! 1. Every partition is given its offset explicitly, as [`TakeOver`] says: `auto.offset.reset` is `error`.
//! 2. The member waits for a transaction in flight, for a bounded time, before it acknowledges that its lanes are
//!    revoked.
//! 3. Committed offsets are fetched only after an earlier transaction of ours is decided (`Committer::ready`). Only
//!    stable ones are fetched (`isolation.level=read_committed` asks for those), so that nothing is read twice.
//! 4. What is lost is reported once the take-over has succeeded: one that fails is done again, and finds it again.
//! 5. The owner of a partition of the main intake runs its lane, with all topics that it knows. What the group says of
//!    other topics is ignored: it may be of a time when other intakes were known, or of members that know others.

mod owners;
mod progress;

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::groups::{GroupInfo, GroupList, GroupMemberInfo};
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};
use rdkafka::types::RDKafkaRespErr;

pub(crate) use self::progress::Progress;
use super::checkpoint;
use super::commit::{AssignmentEpoch, Committer, chunks, offsets_of};
use super::fence::Fence;
use super::group_topics::GroupTopics;
use super::sign::Signs;
use crate::client::Connection;
use crate::client::connect::{Admin, aside};
use crate::client::errors;
use crate::client::oauth::tokens;
use crate::client::raw::{self, ask};
use crate::cluster::end_offsets::{self, EndOffsets, Partition};
use waterclock_engine::member::{
    Ask, Checkpoint, LogBounds, LossCause, Plan, PositionGone, Positions, Rules, StartAt, TakeOver,
    TakeOverError,
};
use waterclock_engine::{Commit, Lane, Offset, Source, Start, TopicId, UnixMillis};
use waterclock_telemetry as telemetry;

/// How long a revoke waits for what is on its way; well below the session and the transaction timeout.
pub(crate) const SETTLE: Duration = Duration::from_secs(5);
/// How long taking over may take: a dead member's transaction is decided after its timeout (15 s) plus the
/// coordinator's next look (10 s).
const TAKE_OVER: Duration = Duration::from_secs(40);
/// How long a stop may spend on asking which members there are.
const LEAVING: Duration = Duration::from_millis(500);
/// One attempt of it.
const ATTEMPT: Duration = Duration::from_secs(10);
/// No shorter, however soon it fails.
const ATTEMPT_MIN: Duration = Duration::from_millis(100);
/// One by a client that may ask in vain.
const FIRST_ATTEMPT: Duration = Duration::from_secs(1);
/// How clients beside the consumer are named in the brokers' logs.
const CLIENT: &str = "waterclock-group";

/// What happened in a callback, for the lane thread.
pub(crate) enum GroupEvent {
    /// Lanes came.
    Assigned(Taken),
    /// The group wants all partitions back, and waits until they are [let go](Context::let_go).
    Revoking,
    /// All lanes went.
    Revoked,
    /// There are more members than lanes, and none is for this one; so many lanes are nobody's all the same.
    Spare(Vec<Lane>),
    /// Taking over failed; the consumer is to be created again.
    Failed(Error),
}

/// What the take-over found out about its lanes.
pub(crate) struct Taken {
    /// Where they start.
    pub(crate) starts: Vec<Start>,
    /// Everything before these offsets is done, and was not deleted.
    pub(crate) done: Vec<(Source, Offset)>,
    /// The main intake is not the first one of its name.
    pub(crate) is_recreated: bool,
    /// When it was asked where their logs ended: a lower bound of their leaders' time.
    pub(crate) asked_at: UnixMillis,
    /// Where the lanes' changelogs ended.
    pub(crate) changelogs: Vec<(Lane, Offset)>,
    /// The right to commit for them.
    pub(crate) epoch: Arc<AssignmentEpoch>,
    /// Lanes that the group gave to nobody.
    pub(crate) nobodys: Vec<Lane>,
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
        "group {group} has no committed offset for {topic}/{partition}, and meta no checkpoint, though records before \
         {first} are gone. To deliver again what may have been delivered: stop all instances, wait for the session-timeout (Kafka keeps the last one's place in the group for so long), then kafka-consumer-groups.sh --bootstrap-server {brokers} --group {group} --topic {topic}:{partition} --reset-offsets --to-earliest \
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
        /// The addresses of the brokers.
        brokers: String,
    },
    /// Another live process uses the same name: one of the two must go, and it is this one.
    #[error(
        "instance {instance} is in use by another live member of group {group} ({host}); give this one \
         another `instance` (WATERCLOCK_INSTANCE), or leave it out and give it a --data-dir of its own"
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
pub(crate) struct Who {
    pub(crate) group: String,
    pub(crate) instance: String,
    /// `client.id` of this consumer: names instance, thread and start.
    pub(crate) client_id: String,
    /// The part of it that names the instance and the thread, however often it was started.
    pub(crate) client_prefix: String,
    /// The part of it that names the instance.
    pub(crate) process: String,
    /// `group.instance.id`: instance, thread and the directory's id. Its holder is this thread, or the one that this thread succeeds.
    pub(crate) group_instance_id: String,
    /// What the group works on.
    pub(crate) topics: GroupTopics,
    /// The embedded broker knows no groups to describe.
    pub(crate) embedded: bool,
}

impl Who {
    /// The broker makes a member's id from its `group.instance.id`, and keeps the client id of the first member that took it.
    fn is_me(&self, member: &GroupMemberInfo) -> bool {
        member.id().strip_prefix(&*self.group_instance_id).is_some_and(|rest| rest.starts_with('-'))
    }
}

/// Which members hold a `group.instance.id` of the group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupPresence {
    /// This thread.
    pub(crate) mine: bool,
    /// Threads of another process.
    pub(crate) others: bool,
}

/// The consumer's context.
pub(crate) struct Context<R> {
    pub(crate) who: Who,
    pub(crate) committer: Arc<Committer>,
    connection: Connection,
    ends: EndOffsets,
    fence: Fence,
    events: Mutex<Vec<GroupEvent>>,
    /// Of the assignment that was taken over last.
    epoch: Mutex<Option<Arc<AssignmentEpoch>>>,
    /// What is known of positions, beyond one take-over.
    positions: Mutex<Positions>,
    /// The offsets that the group's coordinator has acknowledged as committed since the last call (`at_least_once`).
    acknowledged: Mutex<BTreeMap<Source, Offset>>,
    progress: Arc<Progress>,
    /// A revoke is only noted, and partitions are let go after its callback has returned.
    lets_go_later: AtomicBool,
    /// What the group's coordinator has heard of this member.
    pub(crate) signs: Signs,
    /// By whose rules positions are read.
    rules: PhantomData<fn() -> R>,
}

impl<R: Rules> Context<R> {
    pub(crate) fn new(
        who: Who,
        committer: Arc<Committer>,
        connection: Connection,
        ends: EndOffsets,
        fence: Fence,
        progress: Arc<Progress>,
        lets_go_later: bool,
    ) -> Self {
        Self {
            who,
            committer,
            connection,
            ends,
            fence,
            events: Mutex::default(),
            epoch: Mutex::default(),
            positions: Mutex::default(),
            acknowledged: Mutex::default(),
            progress,
            lets_go_later: AtomicBool::new(lets_go_later),
            signs: Signs::default(),
            rules: PhantomData,
        }
    }

    /// A broker said that a position is outside of its log.
    pub(crate) fn is_outside(&self) {
        self.positions.lock().refused();
    }

    /// Takes what the group's coordinator has acknowledged since the last call: the low watermark of each partition.
    pub(crate) fn take_acknowledged(&self) -> BTreeMap<Source, Offset> {
        std::mem::take(&mut *self.acknowledged.lock())
    }

    pub(crate) fn events(&self) -> Vec<GroupEvent> {
        std::mem::take(&mut *self.events.lock())
    }

    fn push(&self, event: GroupEvent) {
        self.events.lock().push(event);
    }

    /// From now on partitions are let go inside of the callback: nobody waits for anything any more.
    pub(crate) fn lets_go_at_once(&self) {
        self.lets_go_later.store(false, Ordering::Relaxed);
    }

    /// Lets all partitions go that the group wants back, as [`GroupEvent::Revoked`] then says. A batch that is still on its way
    /// is waited for, but for no longer than `most`.
    pub(crate) fn let_go(&self, consumer: &BaseConsumer<Self>, most: Duration) {
        if consumer.assignment_lost() {
            // Other members may have the lanes by now, or a broker does not answer. The thread cannot wait for
            // batches in flight before it joins the group again.
            self.commit(consumer, CommitMode::Async);
            if let Err(error) = self.committer.abandon() {
                tracing::warn!(%error, "could not abandon the commit thread, waiting for batches in flight");
            }
        } else {
            self.release(consumer, most);
        }
        if let Err(error) = consumer.unassign() {
            tracing::warn!(%error, "could not release the lanes");
        }
        self.push(GroupEvent::Revoked);
    }

    /// Releases all lanes: waits for batches in flight, commits what is acknowledged.
    pub(crate) fn release(&self, consumer: &BaseConsumer<Self>, most: Duration) {
        if !self.committer.settle(most) {
            tracing::warn!(
                "a batch is still on its way while its lanes are revoked; its generation is fenced"
            );
        }
        self.commit(consumer, CommitMode::Sync);
    }

    /// Asks about the group at a stop. The consumer's own questions stand in line behind what it fetches, for up to half a
    /// second; at a take-over it is the consumer that is asked, which knows best which brokers are there.
    pub(crate) fn asker(&self) -> Option<Admin> {
        let admin = || self.connection.admin(CLIENT).ok();
        (!self.who.embedded).then(admin).flatten()
    }

    /// Whether this member and those of other processes are in the group now; nothing where nobody answers.
    pub(crate) fn presence(&self, asker: &Admin) -> Option<GroupPresence> {
        let list = asker.inner().fetch_group_list(Some(&self.who.group), LEAVING).ok()?;
        let members = || list.groups().iter().flat_map(|group| group.members());
        Some(GroupPresence {
            mine: members().any(|member| self.who.is_me(member)),
            others: members().any(|member| !member.client_id().starts_with(&self.who.process)),
        })
    }

    /// Commits what is acknowledged and not committed yet (`at_least_once`).
    pub(crate) fn commit(&self, consumer: &BaseConsumer<Self>, mode: CommitMode) {
        let commits = self.committer.take_commits();
        if commits.is_empty() {
            return;
        }
        let epoch = self.epoch();
        let committed = self.commit_all(consumer, &commits, mode);
        if let Err(error) = committed {
            tracing::warn!(%error, partitions = commits.len(), "could not commit; what was delivered since is delivered again");
            // One of an old generation must not have the last word in the checkpoints.
            return;
        }
        if let Some(epoch) = epoch {
            self.committer.checkpoint(commits, epoch);
        }
    }

    fn epoch(&self) -> Option<Arc<AssignmentEpoch>> {
        self.epoch.lock().clone()
    }

    fn commit_all(
        &self,
        consumer: &BaseConsumer<Self>,
        commits: &[Commit],
        mode: CommitMode,
    ) -> Result<(), KafkaError> {
        fail::fail_point!("before_commit", |_| std::process::abort());
        for chunk in chunks(commits) {
            let offsets = offsets_of(chunk, &self.who.topics.names)?;
            match mode {
                CommitMode::Sync => {
                    consumer.commit(&offsets, mode)?;
                    self.acknowledge(chunk.iter().map(|commit| (commit.source, commit.next)));
                }
                // Its answer comes to `commit_callback`, which the consumer's own call does not see to.
                CommitMode::Async => {
                    fail::fail_point!("commit_unheard", |_| Ok(()));
                    raw::commit(consumer.client(), &offsets)?;
                }
            }
        }
        Ok(())
    }

    fn acknowledge(&self, lows: impl Iterator<Item = (Source, Offset)>) {
        self.acknowledged.lock().extend(lows);
    }

    /// Finds where every partition starts, and assigns them there.
    pub(crate) fn take_over(
        &self,
        consumer: &BaseConsumer<Self>,
        partitions: &TopicPartitionList,
    ) -> Result<Taken, Error> {
        let count = partitions.count();
        let failed = |what| move |source| Error::TakeOver { partitions: count, what, source };
        let _in_progress = self.progress.begin(count);
        self.progress.turn("asking who is in the group");
        let nobodys = self.look_around(consumer)?;
        self.committer.drop_commits();
        self.progress.turn("waiting until earlier transactions are decided");
        if let Err(not_ready) = self.committer.ready(TAKE_OVER) {
            let fatal = not_ready.fatal;
            return Err(Error::Producer { partitions: count, why: not_ready.to_string(), fatal });
        }
        let (plan, ends) = self.find_positions(consumer, partitions)?;
        let mut list = TopicPartitionList::with_capacity(count);
        for start in &plan.starts {
            let is_first = self.who.embedded && start.is_new && start.next == Offset(0);
            let at = if is_first { At::Beginning } else { At::Offset(start.next.0) };
            let (topic, partition) = self.who.topics.place(start.source);
            list.add_partition_offset(topic, partition, at).map_err(failed("start offsets"))?;
        }
        let group =
            consumer.group_metadata().ok_or(KafkaError::Canceled).map_err(failed("group"))?;
        self.progress.turn("assigning");
        consumer.assign(&list).map_err(failed("assign"))?;
        // A pause survives a revoke and an assign in librdkafka (1849, 5113): begin with none.
        consumer.resume(&list).map_err(failed("resume"))?;
        fresh_positions(consumer).map_err(failed("positions"))?;
        self.progress.turn("committing new positions");
        // A lane that was started is known by that from now on; the group knows again what had expired; and what was found
        // lost once is not found again.
        let fresh: Vec<Commit> =
            if self.who.embedded { Vec::new() } else { plan.fresh().collect() };
        self.commit_all(consumer, &fresh, CommitMode::Sync).map_err(failed("first positions"))?;
        plan.starts.iter().for_each(|start| self.report(start));
        telemetry::position_lost(plan.lost());
        self.positions.lock().taken(&plan);
        let changelog = self.who.topics.changelog.as_ref();
        let changelogs = ends.iter().filter(|end| Some(&end.topic) == changelog);
        let changelogs = changelogs
            .filter_map(|end| Some((Lane(u16::try_from(end.partition).ok()?), end.last?)))
            .collect();
        let first = self.who.topics.first_id.as_ref();
        let is_recreated = first.zip(plan.ids.first()).is_some_and(|(first, now)| first != now);
        let (starts, done) = (plan.starts().collect(), plan.done().collect());
        let epoch = Arc::new(AssignmentEpoch { group, ids: plan.ids });
        *self.epoch.lock() = Some(Arc::clone(&epoch));
        if !fresh.is_empty() {
            self.committer.checkpoint(fresh, Arc::clone(&epoch));
        }
        let asked_at = ends.iter().map(|end| end.at).min().unwrap_or_default();
        Ok(Taken { starts, done, is_recreated, asked_at, changelogs, epoch, nobodys })
    }

    /// Asks for all that says where the partitions begin. Gives that, and where the logs end.
    fn find_positions(
        &self,
        consumer: &BaseConsumer<Self>,
        partitions: &TopicPartitionList,
    ) -> Result<(Plan, Vec<end_offsets::EndOffset>), Error> {
        let count = partitions.count();
        let failed = |what| move |source| Error::TakeOver { partitions: count, what, source };
        let elements = partitions.elements();
        let source = |(topic, partition): (&str, i32)| self.who.topics.source(topic, partition);
        let sources = elements.iter().map(|of| (of.topic(), of.partition())).filter_map(source);
        let mut take_over = TakeOver::new(sources.collect(), self.who.topics.intakes);
        let (mut ask, mut ends) = (Ask::Committed, Vec::new());
        loop {
            let next = match ask {
                Ask::Committed => {
                    self.progress.turn("waiting for the committed offsets");
                    let committed = self.committed(consumer, partitions);
                    let mut committed = committed.map_err(failed("committed offsets"))?;
                    let of = take_over.partitions().iter();
                    let committed = of.map(|source| committed.remove(source)).collect();
                    take_over.committed::<R>(committed, &self.positions.lock())
                }
                Ask::Logs => {
                    self.progress.turn("asking where the logs begin and end");
                    fail::fail_point!("take_over_waits");
                    ends = self.ends(partitions).map_err(failed("ends of the logs"))?;
                    let bounds = self.bounds(&ends);
                    let of = |source| bounds.get(source).copied().unwrap_or(LogBounds::UNKNOWN);
                    let logs = take_over.partitions().iter().map(of).collect();
                    self.progress.turn("asking for the ids of the topics");
                    let ids = self.ids(consumer).map_err(failed("ids of the topics"))?;
                    take_over.logs::<R>(logs, ids, &self.positions.lock())
                }
                Ask::Checkpoints => {
                    self.progress.turn("reading checkpoints");
                    let found = self.checkpoints(take_over.missing(), count);
                    let found = found.map_err(failed("checkpoints"))?;
                    take_over.checkpoints::<R>(found, &self.positions.lock())
                }
                Ask::Begin(plan) => return Ok((plan, ends)),
            };
            ask = next.map_err(|error| match error {
                TakeOverError::Gone(gone) => self.position_gone(gone),
                TakeOverError::Unsettled => {
                    failed("committed offsets that somebody else changes")(errors::unsettled())
                }
            })?;
        }
    }

    /// The committed offsets of these partitions, and their metadata, once none of them waits for a transaction.
    fn committed(
        &self,
        consumer: &BaseConsumer<Self>,
        partitions: &TopicPartitionList,
    ) -> Result<HashMap<Source, (Offset, String)>, KafkaError> {
        let deadline = Instant::now() + TAKE_OVER;
        let list = loop {
            let began = Instant::now();
            match consumer.committed_offsets(partitions.clone(), ATTEMPT) {
                Ok(list) => break list,
                Err(error) if Instant::now() < deadline && !errors::is_closing(&error) => {
                    tracing::info!(%error, "committed offsets are not stable yet");
                    // Some errors come at once.
                    std::thread::sleep(ATTEMPT_MIN.saturating_sub(began.elapsed()));
                    // It may have lost its brokers in the middle of this, where the thread looks after no outage.
                    raw::add_brokers(consumer.client(), &self.connection.brokers);
                }
                Err(error) => return Err(error),
            }
        };
        let mut committed = HashMap::with_capacity(list.count());
        for element in list.elements() {
            element.error()?;
            let source = self.who.topics.source(element.topic(), element.partition());
            if let (Some(source), At::Offset(next)) = (source, element.offset()) {
                committed.insert(source, (Offset(next), element.metadata().to_owned()));
            }
        }
        Ok(committed)
    }

    fn position_gone(&self, PositionGone { source, first }: PositionGone) -> Error {
        let (topic, partition) = self.who.topics.place(source);
        let (topic, group) = (topic.to_owned(), self.who.group.clone());
        let brokers = self.connection.brokers.clone();
        Error::PositionGone { topic, partition, first: first.0, group, brokers }
    }

    /// Says in the log what is lost of a partition, and whether it rests.
    fn report(&self, start: &StartAt) {
        let (topic, partition) = self.who.topics.place(start.source);
        let (first, end) = (start.log.first.0, start.log.end.0);
        match start.loss.map(|loss| (loss.cause, loss.from.0)) {
            None => {}
            Some((LossCause::Outside, offset)) => tracing::error!(
                topic,
                partition,
                offset,
                low = first,
                high = end,
                "the position is outside of the log: records were deleted that were not done, or the log was cut. What is left \
                 is delivered. Find out who did it (retention, DeleteRecords, an unclean election)"
            ),
            Some((LossCause::Recreated, _)) => tracing::error!(
                topic,
                partition,
                low = first,
                "the topic was deleted and created again: what was pending in it is gone, what stands there now is delivered"
            ),
            Some((LossCause::AllDeleted, _)) => tracing::error!(
                topic,
                partition,
                first,
                end,
                "all records of a partition were deleted, and what of them was done is not known: what was pending is \
                 lost. Find out who did it (retention, DeleteRecords)"
            ),
            Some((LossCause::BeforeFirstRead, _)) => tracing::error!(
                topic,
                partition,
                first,
                end,
                "all records of an intake were deleted before it was read for the first time: if they were delays, these are \
                 lost. Find out who did it (retention, DeleteRecords)"
            ),
        }
        if !start.is_readable {
            let offset = start.next.0;
            tracing::error!(
                topic,
                partition,
                offset,
                "what is pending cannot be read, the lane rests"
            );
        }
    }

    /// The ids of the lane topics.
    fn ids(&self, consumer: &BaseConsumer<Self>) -> Result<Vec<String>, KafkaError> {
        if self.who.embedded {
            return Ok(Vec::new());
        }
        let names: Vec<String> = self.who.topics.names.iter().map(ToString::to_string).collect();
        // The consumer's client is connected, but it may go on asking a broker that has died. A new one asks any that
        // answers.
        let answers = ask::ids(consumer.client(), &names, FIRST_ATTEMPT).or_else(|error| {
            tracing::info!(%error, "the consumer got no answer to its question for topic ids; a new client asks");
            let asker = self.connection.admin(CLIENT)?;
            let answers = ask::ids(asker.inner(), &names, ATTEMPT);
            aside(asker);
            answers
        });
        let ids: HashMap<String, Result<String, RDKafkaErrorCode>> = answers?.into_iter().collect();
        let id = |name: &String| match ids.get(name) {
            Some(Ok(id)) => Ok(id.clone()),
            Some(Err(code)) => Err(KafkaError::AdminOp(*code)),
            None => Err(KafkaError::AdminOp(errors::NO_TOPIC)),
        };
        names.iter().map(id).collect()
    }

    /// Our own checkpoints; so many positions are missing, of so many partitions.
    fn checkpoints(
        &self,
        missing: usize,
        partitions: usize,
    ) -> Result<BTreeMap<Source, Checkpoint>, KafkaError> {
        let Some(topic) = self.who.topics.checkpoints.as_ref().filter(|_| !self.who.embedded)
        else {
            return Ok(BTreeMap::new());
        };
        let began = Instant::now();
        let of = (topic, &*self.who.group);
        let found = checkpoint::read(&self.connection, &self.ends, of, TAKE_OVER)?;
        let (found_count, took) = (found.len(), began.elapsed());
        tracing::info!(
            found = found_count,
            ?took,
            "the group has no position for {missing} of {partitions} partitions, as at a first start; read the checkpoints in meta"
        );
        let of = |((topic, partition), position): ((String, i32), Checkpoint)| {
            let lane = Lane(u16::try_from(partition).ok()?);
            // One of a topic that is none of ours any more shows that its lane was read.
            let elsewhere = Source { topic: TopicId(u16::MAX), lane };
            Some((self.who.topics.source(&topic, partition).unwrap_or(elsewhere), position))
        };
        Ok(found.into_iter().filter_map(of).collect())
    }

    /// Where the logs of these partitions and the changelogs of their lanes begin and end. An end may lie behind
    /// records of an open transaction: everything that users were told is written stands before that. One question for
    /// all of them.
    fn ends(
        &self,
        partitions: &TopicPartitionList,
    ) -> Result<Vec<end_offsets::EndOffset>, KafkaError> {
        let mut all: Vec<Partition> = Vec::with_capacity(partitions.count());
        for element in partitions.elements() {
            let (topics, partition) = (&self.who.topics, element.partition());
            let Some(source) = topics.source(element.topic(), partition) else { continue };
            all.push((Arc::clone(topics.name(source)), partition));
            if source.topic == TopicId(0) {
                all.extend(topics.changelog.iter().map(|topic| (Arc::clone(topic), partition)));
            }
        }
        self.ends.wait(&all, ATTEMPT)
    }

    /// Where the logs of lane topics begin and end, as far as that is known.
    fn bounds(&self, ends: &[end_offsets::EndOffset]) -> HashMap<Source, LogBounds> {
        let bounds = ends.iter().filter_map(|end| {
            let source = self.who.topics.source(&end.topic, end.partition)?;
            Some((source, LogBounds { first: end.first?, end: end.last? }))
        });
        bounds.collect()
    }

    /// Refuses to run beside a live member of the same name that was there first: the two would fence each other for
    /// ever. Those that are not there any more are fenced. Says which lanes are nobody's.
    fn look_around(&self, consumer: &BaseConsumer<Self>) -> Result<Vec<Lane>, Error> {
        let Some(list) = self.group(consumer) else { return Ok(Vec::new()) };
        let members = || list.groups().iter().flat_map(|group| group.members());
        let is_me = |member: &GroupMemberInfo| self.who.is_me(member);
        let me = members().find(|member| is_me(member)).map(GroupMemberInfo::client_id);
        let me = me.unwrap_or(&self.who.client_id);
        let other = members().find(|member| {
            // The same thread of the same instance, and a start before ours: the later one goes, and the earlier one stays.
            member.client_id().starts_with(&self.who.client_prefix)
                && !is_me(member)
                && member.client_id() < me
        });
        match other {
            None => {
                self.fence.fence(|instance| {
                    let process = format!("waterclock/{instance}/");
                    members().any(|member| member.client_id().starts_with(&process))
                });
                Ok(self.nobodys(list.groups()))
            }
            Some(member) => Err(Error::NameInUse {
                instance: self.who.instance.clone(),
                group: self.who.group.clone(),
                host: member.client_host().to_owned(),
            }),
        }
    }

    /// Lanes that the group has given to nobody; none while it is giving them out.
    fn nobodys(&self, groups: &[GroupInfo]) -> Vec<Lane> {
        let [group] = groups else { return Vec::new() };
        if group.state() != "Stable" || !group.members().iter().any(|member| self.who.is_me(member))
        {
            return Vec::new();
        }
        let assignments = group.members().iter().filter_map(GroupMemberInfo::assignment);
        owners::without(&self.who.topics.names[0], self.who.topics.count, assignments)
    }

    /// What a spare finds that looks around.
    fn nobodys_beside(&self, consumer: &BaseConsumer<Self>) -> Vec<Lane> {
        let list = self.group(consumer);
        list.map(|list| self.nobodys(list.groups())).unwrap_or_default()
    }

    /// The group and its members, as its coordinator describes them; nothing where nobody tells.
    fn group(&self, consumer: &BaseConsumer<Self>) -> Option<GroupList> {
        if self.who.embedded {
            return None;
        }
        let list = consumer.fetch_group_list(Some(&self.who.group), ATTEMPT);
        let unknown = |error: &KafkaError| {
            tracing::warn!(
                %error,
                "could not list the group's members; their names and the owners of lanes are not checked"
            );
        };
        list.inspect_err(unknown).ok()
    }

    /// The lanes that the group has given us, with all of their topics.
    fn of_lanes(&self, given: &TopicPartitionList) -> TopicPartitionList {
        let is_lane = |lane: &i32| (0..i32::from(self.who.topics.count)).contains(lane);
        let given = given.elements_for_topic(&self.who.topics.names[0]);
        let lanes = given.iter().map(|element| element.partition()).filter(is_lane);
        let lanes: Vec<i32> = lanes.collect();
        let mut list = TopicPartitionList::with_capacity(lanes.len() * self.who.topics.names.len());
        for topic in &self.who.topics.names {
            for lane in &lanes {
                list.add_partition(topic, *lane);
            }
        }
        list
    }
}

/// Waits until no partition has the position of an earlier assignment any more: stopping to fetch goes on behind an
/// assign, and a position that is believed tells the engine what was read. Nobody polls meanwhile, so none is new.
fn fresh_positions<R: Rules>(consumer: &BaseConsumer<Context<R>>) -> Result<(), KafkaError> {
    let deadline = Instant::now() + ATTEMPT;
    loop {
        let positions = consumer.position()?;
        if positions.elements().iter().all(|element| element.offset() == At::Invalid) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(errors::no_answer());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl<R: Rules> ClientContext for Context<R> {
    tokens!();

    fn error(&self, error: KafkaError, reason: &str) {
        // The thread that polls gets the error, too, and logs it.
        tracing::debug!(%error, reason, "consumer");
    }
}

impl<R: Rules> ConsumerContext for Context<R> {
    fn commit_callback(&self, result: Result<(), KafkaError>, offsets: &TopicPartitionList) {
        if let Some(sign) = &self.who.topics.sign
            && let [position] = &*offsets.elements_for_topic(sign)
        {
            return self.signs.answered(&result.and_then(|()| position.error()), position.offset());
        }
        if let Err(error) = result {
            return tracing::warn!(%error, partitions = offsets.count(), "a commit failed; what was delivered since may be delivered again");
        }
        let acknowledged = offsets.elements().into_iter().filter(|element| element.error().is_ok());
        self.acknowledge(acknowledged.filter_map(|element| {
            let At::Offset(next) = element.offset() else { return None };
            Some((self.who.topics.source(element.topic(), element.partition())?, Offset(next)))
        }));
    }

    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        event: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        if event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            let lanes = self.of_lanes(partitions);
            tracing::info!(given = partitions.count(), partitions = lanes.count(), "assigned");
            if lanes.count() == 0 {
                // More members than lanes: a spare. It takes its share, which is empty: to librdkafka an unassign is no answer to
                // an assignment, and without one it does not join again for the next.
                if let Err(error) = consumer.assign(&TopicPartitionList::new()) {
                    tracing::warn!(%error, "could not take an empty share of the lanes");
                }
                return self.push(GroupEvent::Spare(self.nobodys_beside(consumer)));
            }
            match self.take_over(consumer, &lanes) {
                Ok(taken) => self.push(GroupEvent::Assigned(taken)),
                Err(error) => {
                    let _ = consumer.unassign();
                    self.push(GroupEvent::Failed(error));
                }
            }
        } else {
            tracing::info!(
                partitions = partitions.count(),
                lost = consumer.assignment_lost(),
                "revoked"
            );
            if self.lets_go_later.load(Ordering::Relaxed) && !consumer.assignment_lost() {
                return self.push(GroupEvent::Revoking);
            }
            self.let_go(consumer, SETTLE);
        }
    }
}
