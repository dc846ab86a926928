//! A consumed record, to be delivered again.

use std::time::{Duration, SystemTime};

use super::delayed::{Delayed, system};
use super::error::Error;
use waterclock_engine::header::{self, EPOCH_MAX};
use waterclock_engine::{Record, UnixMillis};
use waterclock_kafka::{BorrowedMessage, copy_record, place};

/// The header in which a traced record says how long it waited, in milliseconds.
pub(super) const INTERVAL: &str = "waterclock-interval";

/// A record as it was consumed from its target.
///
/// Made of a message of `rdkafka`, or by [`Message::new`] of what any other consumer gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    topic: String,
    partition: i32,
    record: Record,
}

impl From<&BorrowedMessage<'_>> for Message {
    fn from(message: &BorrowedMessage<'_>) -> Self {
        let (topic, partition) = place(message);
        Self { topic: topic.to_owned(), partition, record: copy_record(message) }
    }
}

impl Message {
    /// A record with where it was consumed from. `headers` are in their order, repeats kept.
    #[must_use]
    pub fn new<'a>(
        topic: &str,
        partition: i32,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
    ) -> Self {
        let record = Record::new(key, value, headers);
        Self { topic: topic.to_owned(), partition, record }
    }

    /// Its headers in their order, repeats kept.
    pub fn headers(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> + Clone {
        self.record.headers()
    }

    /// When it was due, if its delivery was traced.
    #[must_use]
    pub fn due(&self) -> Option<SystemTime> {
        self.number(header::DUE).filter(|ms| *ms <= EPOCH_MAX).map(|ms| system(UnixMillis(ms)))
    }

    /// How many times it was delivered, this time included; 0 if its delivery was not traced.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.number(header::ATTEMPT).and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
    }

    /// How long it waited, if its delivery was traced and it was sent by a delay and not for a time.
    #[must_use]
    pub fn interval(&self) -> Option<Duration> {
        self.number(INTERVAL).map(Duration::from_millis)
    }

    /// Its id, if it had one and its delivery was traced.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.text(header::ID)
    }

    /// The same record for the same partition of the same topic, after the same interval as before.
    ///
    /// # Errors
    /// [`Error::NoInterval`]: nothing says how long that was; use [`Message::delayed`].
    pub fn again(&self) -> Result<Delayed, Error> {
        let interval = self.interval().ok_or(Error::NoInterval)?;
        Ok(self.delayed().after(interval))
    }

    /// The same record for the same partition of the same topic; its time is still to be set. A traced record keeps its
    /// id, and will report that it was delivered once more.
    pub fn delayed(&self) -> Delayed {
        let delayed = self.delayed_to(self.topic.clone());
        match u32::try_from(self.partition) {
            Ok(partition) => delayed.partition(partition),
            Err(_) => delayed,
        }
    }

    /// The same for another topic, in the partition of its key: to give a record up, for example.
    pub fn delayed_to(&self, target: impl Into<String>) -> Delayed {
        let mut delayed = Delayed::to(target);
        if let Some(key) = self.record.key() {
            delayed = delayed.key(key);
        }
        if let Some(value) = self.record.value() {
            delayed = delayed.value(value);
        }
        for (name, value) in self.record.headers() {
            if !header::is_control(name) && name != INTERVAL.as_bytes() {
                delayed = delayed.header_or_null(name, value);
            }
        }
        if let Some(id) = self.id() {
            delayed = delayed.id(id);
        }
        if self.text(header::DUE).is_some() {
            delayed = delayed.trace();
        }
        delayed.attempt(self.attempt())
    }

    fn text(&self, name: &str) -> Option<&str> {
        let found = self.record.headers().filter(|(found, _)| *found == name.as_bytes()).last()?;
        std::str::from_utf8(found.1?).ok()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }
}
