//! One test's corner of a shared broker.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use waterclock::engine::Millis;
use waterclock::kafka::Connection;
use waterclock::kafka::topics::{Names, Request, apply, delete, inspect};

use super::{Launch, Mode, PATIENCE, Process, Producer, eventually, eventually_within, variable};

/// For how long nothing has to be pending.
const QUIET: Duration = Duration::from_millis(500);

/// A namespace with its topics in place; gone with the test.
pub struct Fixture {
    pub connection: Connection,
    pub names: Names,
    pub request: Request,
    dir: tempfile::TempDir,
    targets: Mutex<Vec<String>>,
}

impl Fixture {
    /// Three lanes and three short tiers.
    pub fn new(test: &str) -> Self {
        Self::with(test, |_| {})
    }

    /// The same, but for what is changed.
    pub fn with(test: &str, change: impl FnOnce(&mut Request)) -> Self {
        Self::on(Connection::new(&variable("KAFKA_BOOTSTRAP"), BTreeMap::new()), test, change)
    }

    /// The same on another Kafka.
    pub fn on(connection: Connection, test: &str, change: impl FnOnce(&mut Request)) -> Self {
        let fixture = Self::cold_on(connection, test, change);
        eventually("topics apply", || {
            apply(&fixture.connection, &fixture.request).map_err(|error| format!("{error:?}"))
        });
        fixture
    }

    /// A namespace of which nothing is there.
    pub fn cold(test: &str) -> Self {
        Self::cold_on(Connection::new(&variable("KAFKA_BOOTSTRAP"), BTreeMap::new()), test, |_| {})
    }

    fn cold_on(connection: Connection, test: &str, change: impl FnOnce(&mut Request)) -> Self {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let namespace = format!("{test}-{}", &id[..8]);
        let mut request = Request {
            namespace: namespace.clone(),
            further_intakes: Vec::new(),
            lanes: Some(3),
            holds: Some([1_000, 2_000, 5_000].map(Millis).to_vec()),
            lead_max: Millis(2_000),
            horizon: Millis(2_000),
            tasks: false,
        };
        change(&mut request);
        Self {
            names: Names::new(&namespace),
            connection,
            request,
            dir: tempfile::tempdir().expect("a directory"),
            targets: Mutex::default(),
        }
    }

    pub fn namespace(&self) -> &str {
        &self.request.namespace
    }

    pub fn lanes(&self) -> u16 {
        self.request.lanes.unwrap_or(6)
    }

    /// A file or directory of this test.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn client(&self) -> ClientConfig {
        self.connection.client("test")
    }

    /// A name that a target of this test may have; nothing is made.
    pub fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace())
    }

    /// Makes a topic to deliver to. In half of all tests, by their names, its records have the time that the writer says, as
    /// Kafka's default is; in the others that of their append.
    pub fn target(&self, name: &str, partitions: i32) -> String {
        self.target_with(name, partitions, &[])
    }

    /// One whose records have the time of their append, for a test that judges by that: nobody else tells when they came.
    pub fn timed_target(&self, name: &str, partitions: i32) -> String {
        self.target_with(name, partitions, &[("message.timestamp.type", "LogAppendTime")])
    }

    /// The same with further settings.
    pub fn target_with(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) -> String {
        self.make_target(name, partitions, TopicReplication::Fixed(-1), settings)
    }

    /// One whose only partition has one replica.
    pub fn lonely_target(&self, name: &str) -> String {
        let settings = [("min.insync.replicas", "1")];
        self.make_target(name, 1, TopicReplication::Fixed(1), &settings)
    }

    fn make_target(
        &self,
        name: &str,
        partitions: i32,
        replication: TopicReplication<'_>,
        settings: &[(&str, &str)],
    ) -> String {
        self.make_topic(self.name(name), partitions, replication, settings)
    }

    fn make_topic(
        &self,
        topic: String,
        partitions: i32,
        replication: TopicReplication<'_>,
        settings: &[(&str, &str)],
    ) -> String {
        let test = self.namespace().rsplit_once('-').map_or("", |(test, _)| test);
        let is_default = test.bytes().fold(0, u8::wrapping_add) % 2 == 0;
        let stamp = if is_default { "CreateTime" } else { "LogAppendTime" };
        let mut new = NewTopic::new(&topic, partitions, replication)
            .set("message.timestamp.type", stamp)
            .set("max.message.bytes", "2097152");
        for (key, value) in settings {
            new = new.set(key, value);
        }
        let admin = self.admin();
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(20)));
        let made = block(admin.create_topics([&new], &options)).expect("create topics");
        for result in made {
            result.expect("a target");
        }
        self.targets.lock().push(topic.clone());
        // The controller answers before the brokers know: a record that is due by then would find no target.
        eventually("the broker knows the target", || {
            let seen = admin
                .inner()
                .fetch_metadata(Some(&topic), Duration::from_secs(10))
                .map_err(|error| error.to_string())?;
            let found = seen.topics().iter().find(|found| found.name() == topic);
            let leaders = found.map_or(0, |found| {
                found.partitions().iter().filter(|partition| partition.leader() >= 0).count()
            });
            if leaders == partitions as usize { Ok(()) } else { Err(format!("{leaders} leaders")) }
        });
        topic
    }

    /// Deletes a target, and waits until the broker knows: what comes before that is taken, and goes with it.
    #[track_caller]
    pub fn delete_target(&self, topic: &str) {
        delete(&self.connection, &[topic.to_owned()]).expect("deleted");
        let consumer: BaseConsumer = self.client().create().expect("a client");
        eventually("the broker does not know the target any more", || {
            let seen = consumer.fetch_metadata(None, Duration::from_secs(10));
            let seen = seen.map_err(|error| error.to_string())?;
            let is_there = seen.topics().iter().any(|found| found.name() == topic);
            if is_there { Err("it is there".to_owned()) } else { Ok(()) }
        });
    }

    /// Gives a topic these settings and no others, as `kafka-configs.sh` does.
    pub fn configure(&self, topic: &str, settings: &[(&str, &str)]) {
        let mut change = AlterConfig::new(ResourceSpecifier::Topic(topic));
        for (key, value) in settings {
            change = change.set(key, value);
        }
        let options = AdminOptions::new().request_timeout(Some(Duration::from_secs(10)));
        let answers = block(self.admin().alter_configs([&change], &options)).expect("an answer");
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }

    /// Gives a topic so many partitions, as `kafka-topics.sh --alter` does.
    pub fn grow(&self, topic: &str, partitions: usize) {
        let options = AdminOptions::new().request_timeout(Some(Duration::from_secs(10)));
        let more = NewPartitions::new(topic, partitions);
        let answers = block(self.admin().create_partitions([&more], &options)).expect("an answer");
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }

    /// Deletes records of a partition before an offset, as `kafka-delete-records.sh` does.
    pub fn delete_records(&self, topic: &str, partition: i32, before: Offset) {
        let options = AdminOptions::new().request_timeout(Some(Duration::from_secs(10)));
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, before).expect("an offset");
        // A broker goes by a topic's new settings a moment after `configure` was answered.
        eventually("the broker deletes the records", || {
            let deleted = block(self.admin().delete_records(&list, &options)).expect("an answer");
            deleted.elements_for_topic(topic)[0].error().map_err(|error| error.to_string())
        });
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.client().create().expect("an admin client")
    }

    /// A producer that hashes as Java's clients do.
    pub fn producer(&self) -> Producer {
        Producer::new(self, &[("partitioner", "murmur2_random")])
    }

    /// How a process of this namespace is started.
    pub fn launch(&self, mode: Mode) -> Launch<'_> {
        Launch::new(self, mode)
    }

    /// A process that owns all lanes.
    #[track_caller]
    pub fn start(&self, mode: Mode) -> Process {
        self.launch(mode).start()
    }

    /// All topics that records wait in.
    pub fn lane_topics(&self) -> Vec<String> {
        let mut topics = vec![self.names.intake()];
        topics.extend(self.request.further_intakes.iter().map(|n| self.names.further_intake(n)));
        topics.extend(self.request.holds.iter().flatten().map(|hold| self.names.tier(*hold)));
        topics
    }

    /// Waits until every position of the group is committed behind the last record of its partition.
    #[track_caller]
    pub fn wait_until_nothing_is_pending(&self) {
        self.wait_until_nothing_is_pending_within(PATIENCE);
    }

    /// The same with another deadline.
    #[track_caller]
    pub fn wait_until_nothing_is_pending_within(&self, patience: Duration) {
        let mut config = self.client();
        config.set("group.id", self.namespace()).set("enable.auto.commit", "false");
        config.set("enable.partition.eof", "true").set("isolation.level", "read_committed");
        let consumer: BaseConsumer = config.create().expect("a consumer");
        config.set("isolation.level", "read_uncommitted");
        let of_all: BaseConsumer = config.create().expect("a consumer");
        let mut wanted = TopicPartitionList::new();
        // Records go down the tiers: a reader that goes from the top sees each.
        let (intakes, tiers) = (1 + self.request.further_intakes.len(), self.lane_topics());
        for topic in tiers[..intakes].iter().chain(tiers[intakes..].iter().rev()) {
            wanted.add_partition_range(topic, 0, i32::from(self.lanes()) - 1);
        }
        let most = Duration::from_secs(20);
        // A hop's offsets may be committed before its record can be read, on a busy machine by half a second: one look sees
        // neither, but for the transaction that is still open where the record is.
        let mut quiet = None;
        eventually_within(patience, "nothing is pending", || {
            let since: Option<Instant> = quiet.take();
            let committed =
                consumer.committed_offsets(wanted.clone(), most).map_err(|e| e.to_string())?;
            for element in committed.elements() {
                let (topic, partition) = (element.topic(), element.partition());
                let end = |of: &BaseConsumer| {
                    of.fetch_watermarks(topic, partition, most).map_err(|error| error.to_string())
                };
                let ((_, end_of_all), (low, high)) = (end(&of_all)?, end(&consumer)?);
                if high < end_of_all {
                    return Err(format!("{topic}/{partition}: a transaction is open at {high}"));
                }
                let next = match element.offset() {
                    Offset::Offset(next) if next < low => {
                        return Err(format!("{topic}/{partition}: trimmed since the look began"));
                    }
                    Offset::Offset(next) => next,
                    _ => low,
                };
                if next < high && self.holds_records(&consumer, topic, partition, next) {
                    return Err(format!(
                        "{topic}/{partition}: committed {next} {:?} of {high}",
                        element.metadata()
                    ));
                }
            }
            // From the end of one look to the end of another: on a busy machine a look alone takes as long.
            let since = *quiet.insert(since.unwrap_or_else(Instant::now));
            if since.elapsed() < QUIET { Err("it is, for a moment".to_owned()) } else { Ok(()) }
        });
    }

    /// Whether there is a record from `next` on that may be delivered: no mark of a transaction, and no duplicate, which is kept
    /// for ten minutes.
    fn holds_records(
        &self,
        consumer: &BaseConsumer,
        topic: &str,
        partition: i32,
        next: i64,
    ) -> bool {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, Offset::Offset(next)).expect("an offset");
        consumer.assign(&list).expect("assigned");
        let holds = loop {
            match consumer.poll(Duration::from_secs(10)) {
                Some(Ok(message)) if is_kept_duplicate(&message) => {}
                Some(Ok(_)) | None => break true,
                Some(Err(rdkafka::error::KafkaError::PartitionEOF(_))) => break false,
                Some(Err(_)) => {}
            }
        };
        consumer.unassign().expect("unassigned");
        holds
    }
}

/// By the second byte of `x-delay-state`, as `docs/header-contract.md` has it.
fn is_kept_duplicate(message: &BorrowedMessage<'_>) -> bool {
    let state = message.headers().and_then(|of| of.iter().find(|one| one.key == "x-delay-state"));
    state.and_then(|state| state.value).is_some_and(|state| state.get(1) == Some(&4))
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let topics = inspect(&self.connection, &self.names).map(|found| found.topics);
        let mut names: Vec<String> = topics.unwrap_or_default().into_keys().collect();
        names.extend(self.targets.lock().iter().cloned());
        if !names.is_empty() {
            let _ = delete(&self.connection, &names);
        }
    }
}

fn block<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}
