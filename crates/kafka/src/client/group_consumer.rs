//! A member of a consumer group that takes one record at a time, and commits it before it is worked on.
//!
//! # Invariants
//! 1. A commit is sent only while the partition has been this member's without a break since the record was polled, and the
//!    member gives no partition away meanwhile. So once a commit has succeeded, no other member is given the record.
//! 2. While it waits, no partition gives records: neither those that it has, nor those that it gets meanwhile. A record that was
//!    on its way is handed over all the same.
//! 3. It polls for as long as its owner calls it, so `max.poll.interval.ms` is no bound of the work on a record.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use super::Connection;
use super::connect::aside;
use super::errors::{self, ErrorKind};
use super::oauth::tokens;
use super::raw::copy_record;
use waterclock_engine::Record;

/// A record, and where it was polled from.
#[derive(Clone, Debug)]
pub struct GroupRecord {
    /// Key, value and headers.
    pub record: Record,
    /// The partition that it stands in.
    pub partition: i32,
    /// Where it stands there.
    pub offset: i64,
    /// Since when the partition is this member's.
    assignment: u64,
}

/// See the module.
pub struct GroupConsumer {
    topic: String,
    /// `None` only while it is dropped.
    consumer: Option<BaseConsumer<Membership>>,
}

impl std::fmt::Debug for GroupConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupConsumer").field("topic", &self.topic).finish_non_exhaustive()
    }
}

/// What the member has.
#[derive(Default)]
struct Membership(Mutex<Assigned>);

#[derive(Default)]
struct Assigned {
    /// The assignment by which it has each partition.
    partitions: HashMap<i32, u64>,
    last: u64,
    paused: bool,
}

impl ClientContext for Membership {
    tokens!();

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "member of a group");
    }
}

impl ConsumerContext for Membership {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        // A commit that is under way holds the lock: it is answered before the partition is given away.
        let mut assigned = self.0.lock();
        match rebalance {
            Rebalance::Assign(partitions) => {
                assigned.last += 1;
                let last = assigned.last;
                let all = partitions.elements();
                assigned.partitions.extend(all.iter().map(|one| (one.partition(), last)));
            }
            Rebalance::Revoke(partitions) => {
                for one in partitions.elements() {
                    assigned.partitions.remove(&one.partition());
                }
            }
            Rebalance::Error(_) => assigned.partitions.clear(),
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(partitions) = rebalance
            && self.0.lock().paused
            && let Err(error) = consumer.pause(partitions)
        {
            tracing::debug!(%error, "new partitions of a member that is at work are not paused");
        }
    }
}

impl GroupConsumer {
    /// Joins the group for this topic. The members of the group share its partitions, by `cooperative-sticky`. A group without
    /// a position begins with the first record.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub fn join(
        connection: &Connection,
        (client_id, group, topic): (&str, &str, &str),
        session: Duration,
    ) -> Result<Self, KafkaError> {
        let mut config = connection.consumer(client_id);
        config
            .set("group.id", group)
            .set("group.protocol", "classic")
            // A partition that stays where it is is not taken away for a moment.
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", session.as_millis().to_string())
            .set("isolation.level", "read_committed")
            // A record that is deleted before it is read is no loss in silence: its task waits for a report, and has a deadline.
            .set("auto.offset.reset", "earliest")
            // One record at a time: what is read ahead is read again after a long one.
            .set("queued.min.messages", "100")
            .set("queued.max.messages.kbytes", "4096");
        let consumer: BaseConsumer<Membership> =
            config.create_with_context(Membership::default())?;
        consumer.subscribe(&[topic])?;
        Ok(Self { topic: topic.to_owned(), consumer: Some(consumer) })
    }

    /// The next record, or `None` within this time. It blocks. One call at a time.
    ///
    /// # Errors
    /// librdkafka goes on by itself, unless the member [is lost](Self::is_lost).
    pub fn poll(&self, most: Duration) -> Result<Option<GroupRecord>, KafkaError> {
        self.set_paused(false)?;
        self.take(most)
    }

    /// Stays a member for this time, at the most, without reading on. It blocks. One call at a time.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn wait(&self, most: Duration) -> Result<Option<GroupRecord>, KafkaError> {
        self.set_paused(true)?;
        self.take(most)
    }

    /// Whether the record's partition is this member's as it was when the record was polled, as far as is known.
    #[must_use]
    pub fn has(&self, record: &GroupRecord) -> bool {
        let of = |consumer: &BaseConsumer<Membership>| {
            let assigned = consumer.context().0.lock();
            assigned.partitions.get(&record.partition) == Some(&record.assignment)
        };
        self.consumer.as_ref().is_some_and(|consumer| of(consumer) && !consumer.assignment_lost())
    }

    /// Commits the offset behind a record, and waits for that; false: its partition is not this member's any more, so another
    /// member is given the record. It blocks.
    ///
    /// # Errors
    /// Nobody knows whether it is committed. Commit it again.
    pub fn commit(&self, record: &GroupRecord) -> Result<bool, KafkaError> {
        let consumer = self.consumer()?;
        let assigned = consumer.context().0.lock();
        if assigned.partitions.get(&record.partition) != Some(&record.assignment)
            || consumer.assignment_lost()
        {
            return Ok(false);
        }
        let mut next = TopicPartitionList::new();
        next.add_partition_offset(&self.topic, record.partition, At::Offset(record.offset + 1))?;
        consumer.commit(&next, CommitMode::Sync)?;
        // A member that was lost meanwhile may have committed as nobody, to a group of which all others have left.
        Ok(!consumer.assignment_lost())
    }

    /// Leaves the group, so that its partitions go to others at once. It blocks.
    pub fn leave(mut self) {
        drop(self.consumer.take());
    }

    /// Whether the member can do nothing any more.
    #[must_use]
    pub fn is_lost(error: &KafkaError) -> bool {
        errors::is_consumer_lost(error)
    }

    /// What a person can do about an error of [`poll`](Self::poll) that lasts; `None`: nothing is known.
    #[must_use]
    pub fn remedy(error: &KafkaError) -> Option<&'static str> {
        match errors::kind(error) {
            ErrorKind::BrokerAway | ErrorKind::AllBrokersAway => {
                Some("no broker answers; is Kafka there, at the addresses that were given?")
            }
            ErrorKind::NoAddress => Some("the name of a broker has no address; mend it"),
            ErrorKind::TopicMissing => Some("there is no such topic; create it"),
            ErrorKind::NoRight(_) => {
                Some("a right is missing; give Read on the topic and the group")
            }
            ErrorKind::LoginRefused => Some("the broker refuses who we are; mend the credentials"),
            _ => None,
        }
    }

    fn consumer(&self) -> Result<&BaseConsumer<Membership>, KafkaError> {
        self.consumer.as_ref().ok_or(KafkaError::Canceled)
    }

    fn set_paused(&self, paused: bool) -> Result<(), KafkaError> {
        let consumer = self.consumer()?;
        let was = std::mem::replace(&mut consumer.context().0.lock().paused, paused);
        if was == paused {
            return Ok(());
        }
        let all = consumer.assignment()?;
        if paused { consumer.pause(&all) } else { consumer.resume(&all) }
    }

    fn take(&self, most: Duration) -> Result<Option<GroupRecord>, KafkaError> {
        let consumer = self.consumer()?;
        let Some(message) = consumer.poll(most) else { return Ok(None) };
        let message = message?;
        let partition = message.partition();
        let assigned = consumer.context().0.lock().partitions.get(&partition).copied();
        // Of a partition that was given away: another member reads it.
        let Some(assignment) = assigned else { return Ok(None) };
        let (record, offset) = (copy_record(&message), message.offset());
        Ok(Some(GroupRecord { record, partition, offset, assignment }))
    }
}

/// On a thread of its own: to leave a group takes a while.
impl Drop for GroupConsumer {
    fn drop(&mut self) {
        if let Some(consumer) = self.consumer.take() {
            aside(consumer);
        }
    }
}
