//! Asks the brokers, and creates what is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use rdkafka::error::KafkaError;
use rdkafka::metadata::{Metadata, MetadataTopic};

use super::{Error, Found, FoundTopic, Names, TopicSpec};
use crate::client::Connection;
use crate::client::connect::{Admin, Asker, aside};
use crate::client::errors::{self, ErrorKind};
use crate::client::raw::ask;

/// Longest wait for one answer.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Longest wait for the cluster's id.
const CLUSTER_ID_MAX: Duration = Duration::from_secs(5);
/// Longest wait until every new partition has a leader; three busy brokers took some seconds for 170 topics.
const LEADERS_MAX: Duration = Duration::from_secs(60);
/// Between two looks at the metadata.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) fn failed(what: impl Into<String>) -> impl FnOnce(KafkaError) -> Error {
    let what = what.into();
    move |source| Error::Kafka { what, source }
}

/// The id of a topic.
pub(super) fn id_of(connection: &Connection, topic: &str) -> Result<String, Error> {
    let what = "ask for the id of a topic";
    let told = ask::ids(admin(connection)?.inner(), &[topic.to_owned()], ANSWER_MAX);
    let id = told.map_err(failed(what))?.into_iter().next().map(|(_, id)| id);
    id.unwrap_or(Err(errors::NO_TOPIC)).map_err(|code| failed(what)(KafkaError::AdminOp(code)))
}

fn admin(connection: &Connection) -> Result<Admin, Error> {
    connection.admin("waterclock-topics").map_err(failed("make an admin client"))
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(ANSWER_MAX)).operation_timeout(Some(ANSWER_MAX))
}

/// Looks at all topics whose names begin with the namespace's.
///
/// # Errors
/// The brokers did not answer, or do not let us look; nothing was changed.
pub fn inspect(connection: &Connection, names: &Names) -> Result<Found, Error> {
    let metadata = connection.metadata(ANSWER_MAX)?;
    let admin = admin(connection)?;
    let found = found(admin.inner(), connection, names, &metadata);
    aside(admin);
    found
}

/// The same with a client that is there already.
///
/// # Errors
/// As [`inspect`].
pub(crate) fn inspect_with(
    admin: &Asker,
    connection: &Connection,
    names: &Names,
) -> Result<Found, Error> {
    // Of all topics: to ask for one by its name can create it.
    let metadata = admin.fetch_metadata(None, ANSWER_MAX).map_err(failed("list topics"))?;
    found(admin, connection, names, &metadata)
}

fn found(
    admin: &Asker,
    connection: &Connection,
    names: &Names,
    metadata: &Metadata,
) -> Result<Found, Error> {
    let prefix = format!("{}.", names.namespace);
    let mut topics: BTreeMap<String, FoundTopic> = metadata
        .topics()
        .iter()
        .filter(|topic| topic.name().starts_with(&prefix) && !topic.partitions().is_empty())
        .map(|topic| (topic.name().to_owned(), shape(topic)))
        .collect();
    settings(admin, &mut topics)?;
    Ok(Found {
        bootstrap: connection.brokers.clone(),
        // It has come with the first answer that the client got.
        cluster_id: admin.fetch_cluster_id(CLUSTER_ID_MAX),
        brokers: metadata.brokers().iter().map(|broker| broker.id()).collect(),
        topics,
    })
}

fn shape(topic: &MetadataTopic) -> FoundTopic {
    let partitions = topic.partitions();
    let replicas = partitions.iter().map(|partition| partition.replicas().len() as i32);
    let leaders: BTreeSet<i32> =
        partitions.iter().map(|partition| partition.leader()).filter(|id| *id >= 0).collect();
    FoundTopic {
        partitions: partitions.len() as i32,
        replication: replicas.min().unwrap_or_default(),
        leaders,
        leaderless: partitions.iter().filter(|partition| partition.leader() < 0).count() as i32,
        settings: BTreeMap::new(),
    }
}

fn settings(admin: &Asker, topics: &mut BTreeMap<String, FoundTopic>) -> Result<(), Error> {
    let names: Vec<String> = topics.keys().cloned().collect();
    let answers = ask::settings(admin, &names, ANSWER_MAX)
        .map_err(failed("read the settings of the topics"))?;
    for (name, answer) in answers {
        let settings = answer.map_err(|source| Error::Topic {
            what: "read the settings of",
            topic: name.clone(),
            source,
        })?;
        if let Some(topic) = topics.get_mut(&name) {
            topic.settings = settings;
        }
    }
    Ok(())
}

/// Creates these topics and waits until each partition has a leader; gives back which were created. One that is there by
/// now is left as it is.
///
/// # Errors
/// Kafka refused one, or leaders took too long. What was created stays; call again.
pub fn create(connection: &Connection, specs: &[TopicSpec]) -> Result<Vec<String>, Error> {
    if specs.is_empty() {
        return Ok(Vec::new());
    }
    let admin = admin(connection)?;
    let new: Vec<NewTopic<'_>> = specs.iter().map(new_topic).collect();
    let answers = block(admin.create_topics(&new, &options())).map_err(failed("create topics"))?;
    let mut created = Vec::with_capacity(specs.len());
    for answer in answers {
        match answer {
            Ok(topic) => created.push(topic),
            Err((_, code)) if ErrorKind::of(code) == ErrorKind::TopicExists => {}
            Err((topic, source)) => return Err(Error::Topic { what: "create", topic, source }),
        }
    }
    leaders(&admin, specs)?;
    Ok(created)
}

fn new_topic(spec: &TopicSpec) -> NewTopic<'_> {
    let new = NewTopic::new(&spec.name, spec.partitions, TopicReplication::Fixed(spec.replication));
    let all = spec.must.iter().chain(&spec.advice);
    all.fold(new, |new, (name, value)| new.set(name, value))
}

fn leaders(admin: &Admin, specs: &[TopicSpec]) -> Result<(), Error> {
    let until = Instant::now() + LEADERS_MAX;
    loop {
        let metadata = admin
            .inner()
            .fetch_metadata(None, ANSWER_MAX)
            .map_err(failed("wait for the leaders of new topics"))?;
        let led: BTreeMap<&str, bool> = metadata
            .topics()
            .iter()
            .map(|topic| {
                let led = topic.partitions().iter().all(|partition| partition.leader() >= 0);
                (topic.name(), led && !topic.partitions().is_empty())
            })
            .collect();
        let waits = specs.iter().find(|spec| led.get(spec.name.as_str()) != Some(&true));
        match waits {
            None => return Ok(()),
            Some(spec) if Instant::now() >= until => {
                return Err(Error::NoLeader { topic: spec.name.clone() });
            }
            Some(_) => thread::sleep(LOOK_EVERY),
        }
    }
}

/// Deletes topics; those that are not there are not missed. For demonstrations and tests.
///
/// # Errors
/// Kafka refused one; others may be gone.
pub fn delete(connection: &Connection, topics: &[String]) -> Result<(), Error> {
    let admin = admin(connection)?;
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    let answers =
        block(admin.delete_topics(&topics, &options())).map_err(failed("delete topics"))?;
    for answer in answers {
        match answer {
            Ok(_) => {}
            Err((_, code)) if ErrorKind::of(code) == ErrorKind::TopicMissing => {}
            Err((topic, source)) => return Err(Error::Topic { what: "delete", topic, source }),
        }
    }
    Ok(())
}

/// Deletes the group of a namespace and its committed offsets, once its members have left. For demonstrations and
/// tests.
///
/// # Errors
/// Kafka refused it, as it does while there are members.
pub fn delete_group(connection: &Connection, namespace: &str) -> Result<(), Error> {
    let admin = admin(connection)?;
    let what = format!("delete the group {namespace}");
    let answers =
        block(admin.delete_groups(&[namespace], &options())).map_err(failed(what.clone()))?;
    for answer in answers {
        match answer {
            Ok(_) => {}
            Err((_, code)) if ErrorKind::of(code) == ErrorKind::GroupMissing => {}
            Err((_, code)) => {
                return Err(Error::Kafka { what, source: KafkaError::AdminOp(code) });
            }
        }
    }
    Ok(())
}

/// How many members the group of a namespace has now.
///
/// # Errors
/// The brokers did not answer, or do not let us ask.
pub fn live_members(connection: &Connection, namespace: &str) -> Result<usize, Error> {
    let admin = admin(connection)?;
    let groups = admin
        .inner()
        .fetch_group_list(Some(namespace), ANSWER_MAX)
        .map_err(failed(format!("list the members of group {namespace}")))?;
    Ok(groups.groups().iter().map(|group| group.members().len()).sum())
}

/// Waits for a future that some other thread completes, as rdkafka's admin futures are.
pub(crate) fn block<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
