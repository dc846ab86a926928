//! What a `read_committed` consumer of a topic sees.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::{Offset, TopicPartitionList};
use waterclock::kafka::copy_record;

use super::{Fixture, PATIENCE, eventually, now_ms, patience};

/// A record as it was read, with names of headers as bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Rec {
    pub partition: i32,
    pub offset: i64,
    /// Its time, epoch milliseconds: that of its append in an intake and a `timed_target`.
    pub at: u64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Rec {
    fn of(message: &BorrowedMessage<'_>) -> Self {
        // The safe access of rdkafka panics on a name that is not UTF-8.
        let record = copy_record(message);
        Self {
            partition: message.partition(),
            offset: message.offset(),
            at: message.timestamp().to_millis().unwrap_or_default() as u64,
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers: record
                .headers()
                .map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec)))
                .collect(),
        }
    }

    /// The value as text: the record's id in most tests.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.value.as_deref().unwrap_or(b"null")).into_owned()
    }

    /// The last header of a name, as text.
    pub fn header(&self, name: &str) -> Option<String> {
        let found = self.headers.iter().rev().find(|(known, _)| known == name.as_bytes())?;
        found.1.as_deref().map(|value| String::from_utf8_lossy(value).into_owned())
    }
}

impl std::fmt::Debug for Rec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = |bytes: &Option<Vec<u8>>| match bytes {
            None => "null".to_owned(),
            Some(bytes) => format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(60)])),
        };
        write!(f, "{}@{} at {} ", self.partition, self.offset, self.at)?;
        write!(f, "{}={}", short(&self.key), short(&self.value))?;
        for (name, value) in &self.headers {
            write!(f, " {}:{}", String::from_utf8_lossy(name), short(value))?;
        }
        Ok(())
    }
}

/// A reader of one topic from its beginning.
pub struct Log {
    consumer: BaseConsumer,
    topic: String,
    partitions: i32,
    /// Everything that was read so far.
    pub seen: Vec<Rec>,
    /// When each of it was read, by this machine's clock.
    pub read_at: Vec<u64>,
    /// Partitions of which the end was seen since they were assigned.
    ended: BTreeSet<i32>,
    /// The last that this consumer complained of.
    trouble: Option<KafkaError>,
}

impl Log {
    #[track_caller]
    pub fn open(fixture: &Fixture, topic: &str) -> Self {
        Self::open_to(fixture, topic, "read_committed")
    }

    /// The same for what every transaction wrote, whether it was committed or not.
    #[track_caller]
    pub fn uncommitted(fixture: &Fixture, topic: &str) -> Self {
        Self::open_to(fixture, topic, "read_uncommitted")
    }

    #[track_caller]
    fn open_to(fixture: &Fixture, topic: &str, isolation: &str) -> Self {
        let mut config = fixture.client();
        config
            .set("group.id", "reads-without-a-group")
            .set("enable.auto.commit", "false")
            .set("isolation.level", isolation)
            .set("enable.partition.eof", "true")
            .set("fetch.message.max.bytes", "4000000")
            .set("fetch.wait.max.ms", "50");
        let consumer: BaseConsumer = config.create().expect("a consumer");
        let partitions = eventually("the topic's partitions are known", || {
            let metadata = consumer
                .fetch_metadata(Some(topic), Duration::from_secs(10))
                .map_err(|error| error.to_string())?;
            let found = metadata.topics().iter().find(|found| found.name() == topic);
            match found.map_or(0, |found| found.partitions().len()) {
                0 => Err("none".to_owned()),
                count => Ok(count as i32),
            }
        });
        let mut list = TopicPartitionList::new();
        for partition in 0..partitions {
            list.add_partition_offset(topic, partition, Offset::Beginning).expect("an offset");
        }
        consumer.assign(&list).expect("assigned");
        let (ended, trouble) = (BTreeSet::new(), None);
        let (topic, seen, read_at) = (topic.to_owned(), Vec::new(), Vec::new());
        Self { consumer, topic, partitions, seen, read_at, ended, trouble }
    }

    /// Reads for so long, or a little less.
    pub fn read_on(&mut self, most: Duration) {
        let until = Instant::now() + most;
        while Instant::now() < until && self.read(most / 2) {}
    }

    fn read(&mut self, most: Duration) -> bool {
        match self.consumer.poll(most) {
            Some(Ok(message)) => {
                self.seen.push(Rec::of(&message));
                self.read_at.push(now_ms());
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                self.ended.insert(partition);
            }
            Some(Err(error)) => self.trouble = Some(error),
            None => return false,
        }
        true
    }

    /// Reads until it is so; fails with what was seen.
    #[track_caller]
    pub fn until(&mut self, what: &str, so: impl FnMut(&[Rec]) -> bool) -> &[Rec] {
        self.until_within(PATIENCE, what, so)
    }

    /// The same with another deadline.
    #[track_caller]
    pub fn until_within(
        &mut self,
        most: Duration,
        what: &str,
        mut so: impl FnMut(&[Rec]) -> bool,
    ) -> &[Rec] {
        let most = most * patience();
        let until = Instant::now() + most;
        while !so(&self.seen) {
            let last = &self.seen[self.seen.len().saturating_sub(20)..];
            assert!(
                Instant::now() < until,
                "not within {most:?} in {}: {what}; seen {}, the last of them {last:#?}; \
                 ends seen: {:?}, trouble: {:?}",
                self.topic,
                self.seen.len(),
                self.ended,
                self.trouble,
            );
            let mut left = 500;
            while left > 0 && self.read(Duration::from_millis(20)) {
                left -= 1;
            }
        }
        &self.seen
    }

    /// Reads until there are so many.
    #[track_caller]
    pub fn count(&mut self, count: usize) -> &[Rec] {
        self.until(&format!("{count} records"), |seen| seen.len() >= count)
    }

    /// Waits until this many different values were seen, however often each.
    #[track_caller]
    pub fn ids(&mut self, count: usize) -> &[Rec] {
        let (mut ids, mut counted) = (BTreeSet::new(), 0);
        self.until(&format!("{count} different ids"), move |seen| {
            ids.extend(seen[counted..].iter().map(Rec::text));
            counted = seen.len();
            ids.len() >= count
        })
    }
}

/// How many records are there more than once, for any reader: with `uncommitted`, those that a transaction wrote again
/// after one was aborted.
pub fn written_again(seen: &[Rec]) -> usize {
    let different: BTreeSet<_> = seen.iter().map(|rec| (&rec.key, &rec.value)).collect();
    seen.len() - different.len()
}

/// The whole of a topic, up to its very end: waits until no transaction is open in it, and reads it again.
#[track_caller]
pub fn whole(fixture: &Fixture, topic: &str) -> Vec<Rec> {
    let mut log = Log::open(fixture, topic);
    let mut config = fixture.client();
    config.set("group.id", "reads-without-a-group").set("isolation.level", "read_uncommitted");
    let plain: BaseConsumer = config.create().expect("a consumer");
    eventually("no transaction is open", || {
        for partition in 0..log.partitions {
            let ends = |consumer: &BaseConsumer| {
                consumer
                    .fetch_watermarks(topic, partition, Duration::from_secs(10))
                    .map_err(|error| error.to_string())
            };
            // A commit is answered before its marks are written: the stable end may still be behind.
            let (stable, high) = (ends(&log.consumer)?.1, ends(&plain)?.1);
            if stable < high {
                return Err(format!("partition {partition}: stable to {stable} of {high}"));
            }
        }
        Ok(())
    });
    // The ends that were seen before that moment do not count.
    log = Log::open(fixture, topic);
    let until = Instant::now() + PATIENCE * patience();
    while (log.ended.len() as i32) < log.partitions {
        assert!(Instant::now() < until, "the end of {topic} was not reached: {:?}", log.ended);
        log.read(Duration::from_millis(50));
    }
    log.seen
}
