//! Takes lanes over and lets them go, inside librdkafka's rebalance callback.
//!
//! The broker fences old generations, not ownership (core notes 2). A member that reads the group metadata just before
//! a commit can commit for partitions that are another member's. So the metadata is taken with the assignment, and goes
//! with every batch of it. The pending records of revoked lanes are dropped before the lanes are let go.
//!
//! # Invariants
//! 1. Every partition is given its offset explicitly: the committed one, else our own checkpoint, else the log's start;
//!    `auto.offset.reset` is `error`.
//! 2. The member waits for a transaction in flight, for a bounded time, before it acknowledges that its lanes are
//!    revoked.
//! 3. The end offsets are asked for after the committed offsets are known. So a reader that reads `<ns>.timers` up to
//!    there misses nothing of what was done by then.
//! 4. Committed offsets are fetched only after an earlier transaction of ours is decided (`Committer::ready`). Only
//!    stable ones are fetched (`isolation.level=read_committed` asks for those), so that nothing is read twice.
//! 5. The owner of a partition of the main intake runs its lane, with all topics that it knows. What the group says of
//!    other topics is ignored: it may be of a time when other intakes were known, or of members that know others.

mod owners;
mod progress;
mod unknown;

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
use self::unknown::{Unknown, is_new, unknown};
use super::checkpoint::{self, Position, Positions};
use super::commit::{AssignmentEpoch, Committer, chunks, offsets_of};
use super::fence::Fence;
use crate::client::Connection;
use crate::client::connect::{Admin, aside};
use crate::client::oauth::tokens;
use crate::client::raw::{self, ask};
use crate::cluster::end_offsets::{self, EndOffsets, Partition};
use waterclock_engine::window::Window;
use waterclock_engine::{Commit, Lane, Offset, Source, Start, TopicId, UnixMillis};
use waterclock_telemetry as telemetry;

/// How long a revoke waits for what is on its way; well below the session and the transaction timeout.
const SETTLE: Duration = Duration::from_secs(5);
/// How long taking over may take: a dead member's transaction is decided after its timeout (15 s) plus the
/// coordinator's next look (10 s).
const TAKE_OVER: Duration = Duration::from_secs(40);
/// How long a stop may spend on asking which members there are.
const LEAVING: Duration = Duration::from_millis(500);
/// One attempt of it.
const ATTEMPT: Duration = Duration::from_secs(10);
/// One by a client that may ask in vain.
const FIRST_ATTEMPT: Duration = Duration::from_secs(1);
/// How clients beside the consumer are named in the brokers' logs.
const CLIENT: &str = "waterclock-group";

/// What happened in a callback, for the lane thread.
pub(crate) enum GroupEvent {
    /// Lanes came.
    Assigned(Taken),
    /// All lanes went.
    Revoked,
    /// There are more members than lanes, and none is for this one; so many lanes are nobody's all the same.
    Spare(Vec<Lane>),
    /// Taking over failed; the consumer is to be made anew.
    Failed(Error),
}

/// What the take-over found out about its lanes.
pub(crate) struct Taken {
    /// Where they start.
    pub(crate) starts: Vec<Start>,
    /// The main intake is not the first one of its name.
    pub(crate) is_remade: bool,
    /// When it was asked where their logs ended: a lower bound of their leaders' time.
    pub(crate) asked: UnixMillis,
    /// Where the lanes' changelogs ended.
    pub(crate) changelogs: Vec<(Lane, Offset)>,
    /// The right to commit for them.
    pub(crate) tenure: Arc<AssignmentEpoch>,
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
         {first} are gone. To deliver again what may have been delivered: stop all instances, wait for the session-timeout, which the last one's seat is kept for, and: kafka-consumer-groups.sh --bootstrap-server {brokers} --group {group} --topic {topic}:{partition} --reset-offsets --to-earliest \
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
    pub(crate) slot: String,
    /// The part of it that names the instance.
    pub(crate) process: String,
    /// `group.instance.id`: instance, thread and home. Its holder is this thread, or the one that this thread succeeds.
    pub(crate) seat: String,
    /// Names of the lane topics, by [`TopicId`].
    pub(crate) lanes: Vec<Arc<str>>,
    /// So many of them are intakes, which come first.
    pub(crate) intakes: usize,
    /// How many lanes there are.
    pub(crate) count: u16,
    /// Name of the changelog.
    pub(crate) timers: Arc<str>,
    /// Where the checkpoints are.
    pub(crate) meta: Arc<str>,
    /// The id of the main intake that was there first.
    pub(crate) first_intake: Option<String>,
    /// The embedded broker knows no groups to describe.
    pub(crate) embedded: bool,
}

impl Who {
    /// The broker makes a member's id from its seat, and keeps the client id of the first member that took the seat.
    fn is_me(&self, member: &GroupMemberInfo) -> bool {
        member.id().strip_prefix(&*self.seat).is_some_and(|rest| rest.starts_with('-'))
    }
}

/// Which members have a seat in the group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seats {
    /// This thread.
    pub(crate) mine: bool,
    /// Threads of another process.
    pub(crate) others: bool,
}

/// The consumer's context.
pub(crate) struct Context {
    pub(crate) who: Who,
    pub(crate) committer: Arc<Committer>,
    connection: Connection,
    ends: EndOffsets,
    fence: Fence,
    events: Mutex<Vec<GroupEvent>>,
    /// Of the assignment that was taken over last.
    tenure: Mutex<Option<Arc<AssignmentEpoch>>>,
    /// A broker said that a position is outside of its log: one that is beyond the end is believed to be.
    is_outside: AtomicBool,
    /// Positions outside of their logs that were told of: topic, partition, offset.
    told: Mutex<BTreeSet<(String, i32, i64)>>,
    /// The offsets that the group's coordinator has acknowledged as committed since the last call (`at_least_once`).
    acknowledged: Mutex<BTreeMap<Source, Offset>>,
    progress: Arc<Progress>,
}

impl Context {
    pub(crate) fn new(
        who: Who,
        committer: Arc<Committer>,
        connection: Connection,
        ends: EndOffsets,
        fence: Fence,
        progress: Arc<Progress>,
    ) -> Self {
        Self {
            who,
            committer,
            connection,
            ends,
            fence,
            events: Mutex::default(),
            tenure: Mutex::default(),
            is_outside: AtomicBool::new(false),
            told: Mutex::default(),
            acknowledged: Mutex::default(),
            progress,
        }
    }

    /// A broker said that a position is outside of its log.
    pub(crate) fn is_outside(&self) {
        self.is_outside.store(true, Ordering::Relaxed);
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

    /// Lets everything go: waits for batches in flight, commits what is acknowledged.
    pub(crate) fn let_go(&self, consumer: &BaseConsumer<Self>) {
        if !self.committer.settle(SETTLE) {
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

    /// Which members have a seat in the group now; nothing where nobody answers.
    pub(crate) fn seats(&self, asker: &Admin) -> Option<Seats> {
        let list = asker.inner().fetch_group_list(Some(&self.who.group), LEAVING).ok()?;
        let members = || list.groups().iter().flat_map(|group| group.members());
        Some(Seats {
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
        let tenure = self.tenure();
        let committed = self.commit_all(consumer, &commits, mode);
        if let Err(error) = committed {
            tracing::warn!(%error, partitions = commits.len(), "could not commit; what was delivered since is delivered again");
            // One of an old generation must not have the last word in the checkpoints.
            return;
        }
        if let Some(tenure) = tenure {
            self.committer.checkpoint(commits, tenure);
        }
    }

    fn tenure(&self) -> Option<Arc<AssignmentEpoch>> {
        self.tenure.lock().clone()
    }

    fn commit_all(
        &self,
        consumer: &BaseConsumer<Self>,
        commits: &[Commit],
        mode: CommitMode,
    ) -> Result<(), KafkaError> {
        fail::fail_point!("before_commit", |_| std::process::abort());
        for chunk in chunks(commits) {
            let offsets = offsets_of(chunk, &self.who.lanes)?;
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

    /// A partition of the lanes, by its topic's name.
    fn source(&self, topic: &str, partition: i32) -> Option<Source> {
        let topic = self.who.lanes.iter().position(|name| **name == *topic)?;
        let lane = Lane(u16::try_from(partition).ok()?);
        Some(Source { topic: TopicId(topic as u16), lane })
    }

    /// Finds where every partition starts, and assigns them there.
    pub(crate) fn take_over(
        &self,
        consumer: &BaseConsumer<Self>,
        partitions: &TopicPartitionList,
    ) -> Result<Taken, Error> {
        let count = partitions.count();
        let failed = |what| move |source| Error::TakeOver { partitions: count, what, source };
        let _told = self.progress.begin(count);
        self.progress.turn("asking who is in the group");
        let nobodys = self.look_around(consumer)?;
        self.committer.drop_commits();
        self.progress.turn("waiting until earlier transactions are decided");
        if let Err(not_ready) = self.committer.ready(TAKE_OVER) {
            let fatal = not_ready.fatal;
            return Err(Error::Producer { partitions: count, why: not_ready.to_string(), fatal });
        }
        self.progress.turn("waiting for the committed offsets");
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
        self.progress.turn("asking where the logs begin and end");
        fail::fail_point!("take_over_waits");
        let bounds = self.bounds(partitions).map_err(failed("ends of the logs"))?;
        self.progress.turn("asking for the ids of the topics");
        let ids = self.ids(consumer).map_err(failed("ids of the topics"))?;
        // The group's offsets of a topic go with it, sooner or later; those that it may still have are of the old one.
        let before = self.tenure().map(|tenure| tenure.ids.clone()).unwrap_or_default();
        let elements = committed.elements();
        let missing = elements.iter().filter(|e| !matches!(e.offset(), At::Offset(_))).count();
        self.progress.turn("reading checkpoints");
        let checkpoints = self.checkpoints(missing).map_err(failed("checkpoints"))?;
        // Where anybody ever knew a position.
        let mut places: Vec<(&str, i32)> = elements
            .iter()
            .filter(|element| matches!(element.offset(), At::Offset(_)))
            .map(|element| (element.topic(), element.partition()))
            .collect();
        places.extend(checkpoints.keys().map(|(topic, partition)| (&**topic, *partition)));
        let is_outside = self.is_outside.swap(false, Ordering::Relaxed);
        let mut told = self.told.lock();
        let mut starts = Vec::with_capacity(count);
        let mut list = TopicPartitionList::with_capacity(count);
        // Positions that the group does not have, and how much was found lost with them.
        let (mut fresh, mut lost) = (Vec::new(), 0);
        for element in &elements {
            element.error().map_err(failed("committed offsets"))?;
            let (topic, partition) = (element.topic(), element.partition());
            let source = self.source(topic, partition);
            let id = source.and_then(|source| ids.get(usize::from(source.topic.0)));
            let is_remade = !before.is_empty()
                && source.is_some_and(|source| before.get(usize::from(source.topic.0)) != id);
            let log = bounds.of(topic, partition);
            let found = checkpoints.get(&(topic.to_owned(), partition));
            let from = match (element.offset(), found.filter(|found| Some(&found.id) == id)) {
                (At::Offset(_), _) if is_remade => made_anew(log),
                (At::Offset(next), _) => {
                    inside(log, next, element.metadata(), is_outside, &mut told)
                }
                _ if self.who.embedded => From { next: 0, ..From::default() },
                (_, Some(Position { next, metadata, .. })) => {
                    From { is_new: true, ..inside(log, next.0, metadata, true, &mut told) }
                }
                (_, None) if found.is_some() => made_anew(log),
                (_, None) => {
                    let is_intake =
                        source.is_some_and(|s| usize::from(s.topic.0) < self.who.intakes);
                    self.never_started(log, is_intake && is_new(&places, topic, partition))?
                }
            };
            let From { next, metadata, is_new, lost: count, gone } = from;
            lost += count;
            let at = if self.who.embedded && !matches!(element.offset(), At::Offset(_)) {
                At::Beginning
            } else {
                At::Offset(next)
            };
            list.add_partition_offset(topic, partition, at).map_err(failed("start offsets"))?;
            let Some(source) = source else { continue };
            if is_new {
                fresh.push(Commit { source, next: Offset(next), metadata: metadata.clone() });
            }
            if let Err(error) = Window::load(Offset(next), &metadata) {
                tracing::error!(%error, topic, partition, offset = next, "what is pending cannot be read, the lane rests");
            }
            let end = Offset(log.end);
            starts.push(Start { source, next: Offset(next), metadata, end, gone });
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
        self.commit_all(consumer, &fresh, CommitMode::Sync).map_err(failed("first positions"))?;
        telemetry::position_lost(lost);
        let changelogs = bounds.told.iter().filter(|told| told.topic == self.who.timers);
        let changelogs = changelogs
            .filter_map(|told| Some((Lane(u16::try_from(told.partition).ok()?), told.last?)))
            .collect();
        let first = self.who.first_intake.as_ref();
        let is_remade = first.zip(ids.first()).is_some_and(|(first, now)| first != now);
        let tenure = Arc::new(AssignmentEpoch { group, ids });
        *self.tenure.lock() = Some(Arc::clone(&tenure));
        if !fresh.is_empty() {
            self.committer.checkpoint(fresh, Arc::clone(&tenure));
        }
        let asked = bounds.told.iter().map(|told| told.at).min().unwrap_or_default();
        Ok(Taken { starts, is_remade, asked, changelogs, tenure, nobodys })
    }

    /// The ids of the lane topics.
    fn ids(&self, consumer: &BaseConsumer<Self>) -> Result<Vec<String>, KafkaError> {
        if self.who.embedded {
            return Ok(Vec::new());
        }
        let names: Vec<String> = self.who.lanes.iter().map(ToString::to_string).collect();
        // The consumer's client is connected, but it may go on asking a broker that has died. A new one asks any that
        // answers.
        let told = ask::ids(consumer.client(), &names, FIRST_ATTEMPT).or_else(|error| {
            tracing::info!(%error, "ids of the topics: asking by another client");
            let asker = self.connection.admin(CLIENT)?;
            let told = ask::ids(asker.inner(), &names, ATTEMPT);
            aside(asker);
            told
        });
        let told: HashMap<String, Result<String, RDKafkaErrorCode>> = told?.into_iter().collect();
        let id = |name: &String| match told.get(name) {
            Some(Ok(id)) => Ok(id.clone()),
            Some(Err(code)) => Err(KafkaError::AdminOp(*code)),
            None => Err(KafkaError::AdminOp(RDKafkaErrorCode::UnknownTopicOrPartition)),
        };
        names.iter().map(id).collect()
    }

    /// Our own checkpoints, if there are positions that the group does not know.
    fn checkpoints(&self, missing: usize) -> Result<Positions, KafkaError> {
        if missing == 0 || self.who.embedded {
            return Ok(Positions::new());
        }
        let began = Instant::now();
        let of = (&self.who.meta, &*self.who.group);
        let found = checkpoint::read(&self.connection, &self.ends, of, TAKE_OVER)?;
        let (found_count, took) = (found.len(), began.elapsed());
        tracing::info!(
            missing,
            found = found_count,
            ?took,
            "the group has no position for some partitions, as at a first start; looked among the checkpoints"
        );
        Ok(found)
    }

    /// Where the logs of these partitions and the changelogs of their lanes begin and end. An end may lie behind
    /// records of an open transaction: everything that users were told is written stands before that. One question for
    /// all of them.
    fn bounds(&self, partitions: &TopicPartitionList) -> Result<Bounds, KafkaError> {
        let mut asked: Vec<Partition> = Vec::with_capacity(partitions.count());
        for element in partitions.elements() {
            let topic = self.who.lanes.iter().position(|name| **name == *element.topic());
            let Some(topic) = topic else { continue };
            asked.push((Arc::clone(&self.who.lanes[topic]), element.partition()));
            if topic == 0 {
                asked.push((Arc::clone(&self.who.timers), element.partition()));
            }
        }
        let told = self.ends.wait(&asked, ATTEMPT)?;
        let of = |told: &end_offsets::EndOffset| {
            let (first, last) = (told.first?.0, told.last?.0);
            Some(((Arc::clone(&told.topic), told.partition), (first, last)))
        };
        let by_name = told.iter().filter_map(of).collect();
        Ok(Bounds { told, by_name })
    }

    /// Where a partition starts of which nobody knows a position; `is_new`: it is an intake that was not read before.
    fn never_started(&self, log: Log<'_>, is_new: bool) -> Result<From, Error> {
        let Log { topic, partition, first, end } = log;
        let mut lost = 0;
        match unknown(first, end, is_new) {
            Unknown::Fresh => {}
            Unknown::Gone => {
                let (topic, group) = (topic.to_owned(), self.who.group.clone());
                let brokers = self.connection.brokers.clone();
                return Err(Error::PositionGone { topic, partition, first, group, brokers });
            }
            Unknown::Lost => {
                tracing::error!(
                    topic,
                    partition,
                    first,
                    end,
                    "all records of a partition were deleted, and nobody knows what of them was done: what was pending is \
                     lost. Find out who did it (retention, DeleteRecords)"
                );
                // More than that it cannot be.
                lost = first.unsigned_abs();
            }
            Unknown::Before => tracing::error!(
                topic,
                partition,
                first,
                end,
                "all records of an intake were deleted before it was read for the first time: if they were delays, these are \
                 lost. Find out who did it (retention, DeleteRecords)"
            ),
        }
        Ok(From { next: first, metadata: String::new(), is_new: true, lost, gone: lost > 0 })
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
            // The same slot, and a start before ours: the later one goes, and the earlier one stays.
            member.client_id().starts_with(&self.who.slot)
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
        owners::without(&self.who.lanes[0], self.who.count, assignments)
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
        let is_lane = |lane: &i32| (0..i32::from(self.who.count)).contains(lane);
        let given = given.elements_for_topic(&self.who.lanes[0]);
        let lanes = given.iter().map(|element| element.partition()).filter(is_lane);
        let lanes: Vec<i32> = lanes.collect();
        let mut list = TopicPartitionList::with_capacity(lanes.len() * self.who.lanes.len());
        for topic in &self.who.lanes {
            for lane in &lanes {
                list.add_partition(topic, *lane);
            }
        }
        list
    }
}

/// Where logs begin and end.
struct Bounds {
    told: Vec<end_offsets::EndOffset>,
    by_name: HashMap<Partition, (i64, i64)>,
}

impl Bounds {
    /// Nothing is known of a topic that is none of ours: any position is inside.
    fn of<'a>(&self, topic: &'a str, partition: i32) -> Log<'a> {
        let bounds = self.by_name.get(&(Arc::from(topic), partition));
        let (first, end) = bounds.copied().unwrap_or((0, i64::MAX));
        Log { topic, partition, first, end }
    }
}

/// A partition's log.
#[derive(Clone, Copy)]
struct Log<'a> {
    topic: &'a str,
    partition: i32,
    first: i64,
    end: i64,
}

/// Where a partition starts.
#[derive(Debug, Default)]
struct From {
    next: i64,
    metadata: String,
    /// The group does not have it, and is to have it at once.
    is_new: bool,
    /// So many records are gone that were not done, as far as that can be counted.
    lost: u64,
    /// Records are gone that were not done.
    gone: bool,
}

/// A position that is inside of its log, and its marks: the records in between are gone. The rest is delivered, and
/// somebody is told. `is_outside`: a broker has said so of a position beyond the end; a leader that has just become one
/// may not know yet how far its log goes.
fn inside(
    log: Log<'_>,
    next: i64,
    metadata: &str,
    is_outside: bool,
    told: &mut BTreeSet<(String, i32, i64)>,
) -> From {
    let Log { topic, partition, first, end } = log;
    let start = next.clamp(first, if is_outside { end.max(first) } else { i64::MAX });
    if start == next {
        return From { next, metadata: metadata.to_owned(), ..From::default() };
    }
    let is_news = told.insert((topic.to_owned(), partition, next));
    if is_news {
        tracing::error!(
            topic,
            partition,
            offset = next,
            low = first,
            high = end,
            "the position is outside of the log: records were deleted that were not done, or the log was cut. What is left \
             is delivered. Find out who did it (retention, DeleteRecords, an unclean election)"
        );
    }
    let cut = (start > next).then(|| Window::cut(Offset(next), metadata, Offset(start)));
    // It is committed once the lane is counted: its next owner would not know.
    let is_new = !matches!(cut, Some(Ok((.., 1..))));
    // Metadata that cannot be read is told of by who reads it; of a log that was cut at its end it says nothing.
    let (next, metadata, lost) = match cut {
        Some(Ok((start, metadata, lost))) => (start.0, metadata, lost),
        Some(Err(_)) => (start, metadata.to_owned(), start.abs_diff(next)),
        None => (start, String::new(), next.abs_diff(start)),
    };
    From { next, metadata, is_new, lost: if is_news { lost } else { 0 }, gone: lost > 0 }
}

/// Where a topic begins that was deleted and made anew: what was pending in the old one is gone, nothing of the new one is
/// done.
fn made_anew(log: Log<'_>) -> From {
    let Log { topic, partition, first, .. } = log;
    tracing::error!(
        topic,
        partition,
        low = first,
        "the topic was deleted and made anew: what was pending in it is gone, what stands there now is delivered"
    );
    From { next: first, is_new: true, gone: true, ..From::default() }
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
                tracing::debug!(%error, reason, "consumer lost a broker");
            }
            // The thread that polls gets the error, too, and logs it.
            _ => tracing::debug!(%error, reason, "consumer"),
        }
    }
}

impl ConsumerContext for Context {
    fn commit_callback(&self, result: Result<(), KafkaError>, offsets: &TopicPartitionList) {
        if let Err(error) = result {
            return tracing::warn!(%error, partitions = offsets.count(), "a commit failed; what was delivered since may be delivered again");
        }
        let acknowledged = offsets.elements().into_iter().filter(|element| element.error().is_ok());
        self.acknowledge(acknowledged.filter_map(|element| {
            let At::Offset(next) = element.offset() else { return None };
            Some((self.source(element.topic(), element.partition())?, Offset(next)))
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
                // More members than lanes: a spare.
                let _ = consumer.unassign();
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
            if consumer.assignment_lost() {
                // Other members may have the lanes by now, or a broker does not answer. The thread cannot wait for
                // batches in flight before it joins the group again.
                self.commit(consumer, CommitMode::Async);
                if let Err(error) = self.committer.leave() {
                    tracing::warn!(%error, "what is on its way is waited for");
                }
            } else {
                self.let_go(consumer);
            }
            if let Err(error) = consumer.unassign() {
                tracing::warn!(%error, "could not let the lanes go");
            }
            self.push(GroupEvent::Revoked);
        }
    }
}
