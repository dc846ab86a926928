//! A member of a consumer group that works on one shard at a time, and polls all the while.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use waterclock_kafka::{GroupConsumer, GroupRecord, KafkaError};

use super::executor::{Executor, Place};
use super::first::{First, first};
use super::{Error, Event};

/// How long one poll blocks a thread.
const POLL: Duration = Duration::from_millis(250);
/// Work that lasts longer than this keeps the partitions paused: what was read ahead is fetched again after that.
const LONG: Duration = Duration::from_millis(500);

/// See the module.
pub(super) struct Member {
    polls: Polls,
    executor: Executor,
}

/// The polls of a consumer: one at a time, and none is lost if its caller stops to wait for it.
struct Polls {
    consumer: Arc<GroupConsumer>,
    going_on: Option<JoinHandle<Polled>>,
    /// Records that came while the one before them is worked on.
    waiting: VecDeque<GroupRecord>,
}

type Polled = Result<Option<GroupRecord>, KafkaError>;

impl Member {
    pub(super) fn new(consumer: GroupConsumer, executor: Executor) -> Self {
        let polls =
            Polls { consumer: Arc::new(consumer), going_on: None, waiting: VecDeque::new() };
        Self { polls, executor }
    }

    pub(super) async fn run(self) -> Result<(), Error> {
        let Self { mut polls, executor } = self;
        let ended = loop {
            if executor.is_stopping() {
                break Ok(());
            }
            let record = match polls.next().await {
                Ok(Some(record)) => record,
                Ok(None) => continue,
                Err(error) => match fails(&executor, error) {
                    Ok(()) => continue,
                    Err(lost) => break Err(lost),
                },
            };
            let consumer = Arc::clone(&polls.consumer);
            let place = InGroup { consumer: &consumer, record: &record };
            // What else comes is kept. A consumer that is lost is noticed again by the next poll.
            match first(executor.execute(&record.record, &place), polls.keep(&executor)).await {
                First::One(()) => {}
                First::Other(never) => match never {},
            }
        };
        polls.leave().await;
        ended
    }
}

/// An error of a poll: librdkafka goes on by itself, unless it cannot.
fn fails(executor: &Executor, error: KafkaError) -> Result<(), Error> {
    let topic = executor.topic.clone();
    if GroupConsumer::is_lost(&error) {
        return Err(Error::Kafka { topic, source: error });
    }
    executor.say(Event::Kafka { topic, error });
    Ok(())
}

impl Polls {
    /// The next record of a partition that is still ours.
    async fn next(&mut self) -> Polled {
        while let Some(record) = self.waiting.pop_front() {
            if self.consumer.has(&record) {
                return Ok(Some(record));
            }
        }
        self.poll(GroupConsumer::poll).await
    }

    /// Stays a member while a record is worked on.
    async fn keep(&mut self, executor: &Executor) -> std::convert::Infallible {
        tokio::time::sleep(LONG).await;
        loop {
            match self.poll(GroupConsumer::wait).await {
                Ok(record) => self.waiting.extend(record),
                Err(error) => {
                    // The handler goes on: its offset is committed.
                    if let Err(Error::Kafka { topic, source: error }) = fails(executor, error) {
                        executor.say(Event::Kafka { topic, error });
                    }
                    tokio::time::sleep(POLL).await;
                }
            }
        }
    }

    async fn poll(&mut self, how: fn(&GroupConsumer, Duration) -> Polled) -> Polled {
        let consumer = &self.consumer;
        let going_on = self.going_on.get_or_insert_with(|| {
            let consumer = Arc::clone(consumer);
            tokio::task::spawn_blocking(move || how(&consumer, POLL))
        });
        let polled = going_on.await;
        self.going_on = None;
        // The runtime ends.
        polled.unwrap_or(Err(KafkaError::Canceled))
    }

    async fn leave(self) {
        let Self { consumer, going_on, .. } = self;
        if let Some(polling) = going_on {
            drop(polling.await);
        }
        if let Some(consumer) = Arc::into_inner(consumer) {
            // Waited for, so that a process that ends now has left.
            drop(tokio::task::spawn_blocking(move || consumer.leave()).await);
        }
    }
}

struct InGroup<'a> {
    consumer: &'a Arc<GroupConsumer>,
    record: &'a GroupRecord,
}

impl Place for InGroup<'_> {
    fn is_ours(&self) -> bool {
        self.consumer.has(self.record)
    }

    async fn commit(&self) -> Result<bool, KafkaError> {
        let (consumer, record) = (Arc::clone(self.consumer), self.record.clone());
        let committed = tokio::task::spawn_blocking(move || consumer.commit(&record)).await;
        committed.unwrap_or(Err(KafkaError::Canceled))
    }
}
