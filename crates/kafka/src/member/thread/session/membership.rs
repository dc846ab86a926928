//! What a role does by its membership: it pauses, seeks, commits, and asks how far it has read.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use crate::client::raw;
use crate::client::raw::bell::Bell;
use crate::cluster::stalls::Fetched;
use crate::member::commit::{AssignmentEpoch, Committer, Report};
use crate::member::group_topics::GroupTopics;
use crate::member::rebalance::Context;
use crate::member::thread::role::Polled;
use crate::member::thread::{Plan, Shared, Status, millis};
use waterclock_engine::member::{Life, Rules};
use waterclock_engine::{Answer, Batch, BatchId, Commit, Millis, Offset, Read, Source, UnixMillis};

/// A batch on its way.
pub(super) struct InFlight {
    pub(super) id: BatchId,
    pub(super) since: Instant,
    /// The low watermarks that it commits.
    pub(super) lows: Vec<(Source, Offset)>,
    /// Answers to give once their batch is committed.
    pub(super) answers: Vec<Answer>,
}

/// A place in the group. It knows how far the assignment in force was read, and which batches are in flight.
pub(in crate::member::thread) struct Membership<'a, R: Rules> {
    pub(in crate::member::thread) plan: &'a Plan,
    pub(in crate::member::thread) shared: &'a Shared,
    pub(in crate::member::thread) status: &'a Status,
    /// Unparks this thread when there is something to poll; gone before the consumer.
    pub(super) bell: Option<Bell>,
    pub(super) consumer: BaseConsumer<Context<R>>,
    pub(super) committer: Arc<Committer>,
    /// The right to commit, of the assignment in force.
    pub(super) epoch: Option<Arc<AssignmentEpoch>>,
    /// The assignment in force.
    pub(super) assignment: Option<u64>,
    /// Whether it has partitions, and when it takes them over again or leaves the group.
    pub(super) life: Life,
    /// When its own time began.
    pub(super) began: Instant,
    /// Where every partition began: its position until something of it was polled.
    pub(super) starts: HashMap<Source, Offset>,
    /// Partitions that the role wants paused.
    pub(super) paused: HashSet<Source>,
    /// Intakes are held: records are not admitted.
    pub(super) held: bool,
    /// Batches on their way.
    pub(super) in_flight: VecDeque<InFlight>,
    /// Low watermarks committed and not trimmed to yet, as far as the group's coordinator has said so.
    pub(super) lows: BTreeMap<Source, Offset>,
    /// When the group was last asked whether it has this member, in this assignment.
    pub(super) signed: Option<Instant>,
}

impl<R: Rules> Membership<'_, R> {
    pub(in crate::member::thread) fn now(&self) -> UnixMillis {
        // The process waits for the first probe before it starts its threads, so there is one.
        self.shared.clock.now(Instant::now()).unwrap_or_default()
    }

    /// Time as the core counts it.
    pub(in crate::member::thread) fn at(&self) -> Millis {
        millis(self.began.elapsed())
    }

    /// Whether there is something to poll, where the role waits by itself.
    pub(in crate::member::thread) fn has_events(&self) -> bool {
        self.bell.as_ref().is_none_or(Bell::has_events)
    }

    /// The topics that the group works on.
    pub(in crate::member::thread) fn topics(&self) -> &GroupTopics {
        &self.consumer.context().who.topics
    }

    /// The number of the assignment in force.
    pub(in crate::member::thread) fn assignment(&self) -> Option<u64> {
        self.assignment
    }

    /// What the committer reports of the batches.
    pub(in crate::member::thread) fn reports(&self) -> Receiver<Report> {
        self.committer.reports()
    }

    /// Hands a batch to the committer.
    pub(in crate::member::thread) fn submit(&mut self, mut batch: Batch) {
        let lows = batch.commits.iter().map(|c: &Commit| (c.source, c.next)).collect();
        let answers = std::mem::take(&mut batch.answers);
        self.in_flight.push_back(InFlight { id: batch.id, since: Instant::now(), lows, answers });
        if let Some(epoch) = &self.epoch {
            self.committer.submit(batch, Arc::clone(epoch));
        }
    }

    /// Stops fetching these partitions.
    pub(in crate::member::thread) fn pause(&mut self, sources: &[Source]) {
        self.paused.extend(sources);
        self.stop_fetching(sources);
    }

    /// Fetches these partitions again, but for intakes while they are held.
    pub(in crate::member::thread) fn resume(&mut self, mut sources: Vec<Source>) {
        for source in &sources {
            self.paused.remove(source);
        }
        sources.retain(|source| !self.is_held(*source));
        self.fetch(&sources);
    }

    fn is_held(&self, source: Source) -> bool {
        self.held && self.topics().is_intake(source)
    }

    /// Holds the intakes, or lets them go on where the role does not want them paused.
    pub(super) fn hold(&mut self, held: bool) {
        self.held = held;
        let of = self.starts.keys().copied().filter(|source| self.topics().is_intake(*source));
        let mut intakes: Vec<Source> = of.collect();
        if held {
            self.stop_fetching(&intakes);
        } else {
            intakes.retain(|source| !self.paused.contains(source));
            self.fetch(&intakes);
        }
    }

    fn stop_fetching(&self, sources: &[Source]) {
        if !sources.is_empty()
            && let Err(error) = self.consumer.pause(&self.list(sources))
        {
            tracing::warn!(%error, partitions = sources.len(), "could not pause");
        }
    }

    fn fetch(&self, sources: &[Source]) {
        if !sources.is_empty()
            && let Err(error) = self.consumer.resume(&self.list(sources))
        {
            tracing::warn!(%error, partitions = sources.len(), "could not resume");
        }
    }

    /// Reads a paused partition from this offset on.
    pub(in crate::member::thread) fn seek(&self, source: Source, offset: Offset) {
        let (topic, partition) = self.topics().place(source);
        // No waiting: the partition is paused, and what was fetched before is dropped by librdkafka.
        let sought = self.consumer.seek(topic, partition, At::Offset(offset.0), Duration::ZERO);
        if let Err(error) = sought {
            tracing::warn!(
                %error,
                topic,
                partition,
                offset = offset.0,
                "the consumer could not seek back to this offset to read a record again"
            );
        }
    }

    /// How far the consumer is in these partitions. Where it polled nothing yet it says nothing, and is where it began.
    pub(in crate::member::thread) fn positions(&self, sources: &[Source]) -> Vec<(Source, Offset)> {
        if sources.is_empty() {
            return Vec::new();
        }
        let list = self.list(sources);
        if raw::positions(self.consumer.client(), &list).is_err() {
            return Vec::new();
        }
        let position = |source: &Source| {
            let (name, partition) = self.topics().place(*source);
            let element = list.find_partition(name, partition)?;
            match element.offset() {
                At::Offset(next) => Some((*source, Offset(next))),
                _ => self.starts.get(source).map(|next| (*source, *next)),
            }
        };
        sources.iter().filter_map(position).collect()
    }

    /// Takes the low watermarks that the reader has passed. What was done in an assignment before is committed as done before it
    /// is read again: if it was deleted first, the reader would be outside of its log.
    pub(super) fn take_passed(&mut self) -> Vec<(Source, Offset)> {
        let sources: Vec<Source> = self.lows.keys().copied().collect();
        let positions: HashMap<Source, Offset> = self.positions(&sources).into_iter().collect();
        let has_passed =
            |source: &Source, low: &mut Offset| positions.get(source).is_some_and(|at| *low <= *at);
        self.lows.extract_if(.., has_passed).collect()
    }

    /// How far a partition was read and fetched.
    pub(in crate::member::thread) fn fetched(&self, read: Read) -> Fetched {
        let is_paused = self.is_held(read.source) || self.paused.contains(&read.source);
        let (topic, partition) = self.topics().place(read.source);
        let end = raw::partitions::known_end(self.consumer.client(), topic, partition);
        Fetched { read, is_paused, end }
    }

    /// Copies a message of librdkafka's into a record of ours.
    pub(super) fn own(&self, message: &BorrowedMessage<'_>) -> Option<Polled> {
        let source = self.topics().source(message.topic(), message.partition())?;
        let appended = message.timestamp().to_millis().and_then(|ms| u64::try_from(ms).ok());
        Some(Polled {
            source,
            offset: Offset(message.offset()),
            // Without a time a record of ours cannot be: it counts from now rather than from 1970.
            appended: appended.map_or_else(|| self.now(), UnixMillis),
            record: raw::copy_bounded(message, self.plan.record_bytes_max),
        })
    }

    fn list(&self, sources: &[Source]) -> TopicPartitionList {
        let mut list = TopicPartitionList::with_capacity(sources.len());
        for source in sources {
            let (topic, partition) = self.topics().place(*source);
            list.add_partition(topic, partition);
        }
        list
    }
}
