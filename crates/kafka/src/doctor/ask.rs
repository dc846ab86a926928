//! Asks the brokers for all facts that the conclusions need.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminOptions, ResourceSpecifier};
use rdkafka::consumer::Consumer as _;
use rdkafka::error::KafkaError;
use rdkafka::metadata::Metadata;
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use super::{Broker, Facts, Partition, Position, Settings, Unreachable, Wish, clocks};
use crate::client::connect::{Admin, Isolation, Quiet, Reader};
use crate::client::errors::{self, ErrorKind, On};
use crate::client::raw::ask::{self as raw, End};
use crate::client::topic_reader::{Polled, StartAt};
use crate::client::{Connection, TopicReader};
use crate::topics::{Names, Survey, block, survey};
use waterclock_engine::Offset;
use waterclock_engine::allow::is_owned;
use waterclock_engine::window::Window;

/// Longest wait for the first answer: a longer wait means a wrong address.
const FIRST_MAX: Duration = Duration::from_secs(5);
/// Longest wait for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// A broker that does not tell its settings within this long is silent.
const BROKER_MAX: Duration = Duration::from_secs(5);
/// Partitions whose open transaction is looked at; more tell nothing new.
const OPEN_MAX: usize = 32;
/// How long a broker holds a fetch for which there is nothing.
const WAIT: Duration = Duration::from_millis(500);
/// Longest look at them.
const OPEN_LOOK: Duration = Duration::from_secs(5);
/// Kafka's own topics that ours depend on.
const INTERNAL: [&str; 2] = ["__consumer_offsets", "__transaction_state"];

/// Asks everything. The facts say where there was no answer. Blocks for some seconds; with brokers that do not answer,
/// for up to two minutes.
///
/// # Errors
/// No broker answers: nothing is known.
pub fn ask(connection: &Connection, wish: &Wish) -> Result<Facts, Unreachable> {
    let metadata = connection.metadata(FIRST_MAX).map_err(Unreachable::Silent)?;
    let admin = connection.admin("waterclock-doctor").map_err(Unreachable::Client)?;
    let survey = survey(connection, &wish.request).map_err(|error| told(&error));

    let names = Names::new(&wish.request.namespace);
    let targets = targets(&metadata, wish);
    let mut partitions = partitions(&metadata, survey.as_ref().ok(), &targets);
    ends(&admin, &mut partitions);
    open_since(connection, &mut partitions);
    let own = survey.iter().flat_map(|survey| {
        survey.wanted.iter().map(|spec| &spec.name).filter(|n| survey.found.topics.contains_key(*n))
    });
    let asked: Vec<String> = own.chain(&targets).cloned().collect();
    let group = raw::group(admin.inner(), &wish.request.namespace, ANSWER_MAX);
    let has_tasks = survey.as_ref().is_ok_and(|survey| survey.applied && survey.tasks);
    let workers = has_tasks.then(|| {
        let group = raw::group(admin.inner(), &names.workers_group(), ANSWER_MAX);
        group.map_err(|error| told(&error))
    });
    let committed = match &survey {
        Ok(survey) => committed(connection, &wish.request.namespace, survey).map_err(|e| told(&e)),
        Err(_) => Ok(BTreeMap::new()),
    };
    let leaders = leaders(&metadata, &names.meta());
    let (mut skews, mut commit) = (BTreeMap::new(), None);
    if let Some((_, partition)) = leaders.first().filter(|_| !wish.read_only) {
        match clocks::skews(connection, &names.meta(), &leaders) {
            Ok(seen) => skews = seen,
            Err(error) => tracing::info!(%error, "could not probe the brokers' clocks"),
        }
        if wish.exactly_once {
            let namespace = &wish.request.namespace;
            let timeout = wish.transaction_timeout;
            let took = clocks::commit(connection, namespace, &names.meta(), *partition, timeout);
            commit = Some(took.map_err(|error| told(&error)));
        }
    }
    Ok(Facts {
        bootstrap: connection.brokers.clone(),
        brokers: brokers(&admin, &metadata),
        controller: raw::controller(admin.inner(), ANSWER_MAX),
        survey,
        partitions,
        rights: rights(&admin, &asked),
        targets,
        group: group.map_err(|error| told(&error)),
        workers,
        committed,
        clocks: skews,
        commit,
    })
}

/// An error with its sources, in one line.
fn told(error: &dyn std::error::Error) -> String {
    let (mut text, mut next) = (error.to_string(), error.source());
    while let Some(source) = next {
        let more = source.to_string();
        // rdkafka's errors say their source's text in their own.
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}

/// Topics that are there and may be delivered to.
fn targets(metadata: &Metadata, wish: &Wish) -> Vec<String> {
    let names: BTreeSet<&str> = metadata.topics().iter().map(|topic| topic.name()).collect();
    let is_target =
        |name: &&str| wish.permits(name) && !is_owned(name, |beside| names.contains(beside));
    names.iter().copied().filter(is_target).map(str::to_owned).collect()
}

fn partitions(
    metadata: &Metadata,
    survey: Option<&Survey>,
    targets: &[String],
) -> BTreeMap<(String, i32), Partition> {
    let own: BTreeSet<&str> =
        survey.iter().flat_map(|survey| survey.found.topics.keys().map(String::as_str)).collect();
    let is_wanted = |name: &str| {
        own.contains(name) || INTERNAL.contains(&name) || targets.iter().any(|t| t == name)
    };
    let topics = metadata.topics().iter().filter(|topic| is_wanted(topic.name()));
    topics
        .flat_map(|topic| {
            topic.partitions().iter().map(|partition| {
                let known = Partition {
                    leader: Some(partition.leader()).filter(|id| *id >= 0),
                    replicas: partition.replicas().to_vec(),
                    in_sync: partition.isr().to_vec(),
                    ..Partition::default()
                };
                ((topic.name().to_owned(), partition.id()), known)
            })
        })
        .collect()
}

/// Keeps one of the ends of a partition.
type Put = fn(&mut Partition, Option<i64>);

/// Fills in the ends, as far as they are told.
fn ends(admin: &Admin, partitions: &mut BTreeMap<(String, i32), Partition>) {
    let asked: Vec<(String, i32)> = partitions
        .iter()
        .filter(|((topic, _), partition)| {
            partition.leader.is_some() && !INTERNAL.contains(&topic.as_str())
        })
        .map(|(at, _)| at.clone())
        .collect();
    // The last stable offset comes last: a record that is appended in between is not taken for an open transaction.
    let ends: [(End, Put); 3] = [
        (End::First, |known, offset| known.first = offset),
        (End::Last, |known, offset| known.last = offset),
        (End::Stable, |known, offset| known.stable = offset),
    ];
    for (end, put) in ends {
        let told = match raw::ends(admin.inner(), &asked, end, ANSWER_MAX) {
            Ok(told) => told,
            Err(error) => {
                tracing::info!(%error, "could not list offsets");
                continue;
            }
        };
        for (topic, partition, offset) in told {
            if let Some(known) = partitions.get_mut(&(topic, partition)) {
                put(known, offset.ok());
            }
        }
    }
}

/// Reads the first record of each open transaction, for its time.
fn open_since(connection: &Connection, partitions: &mut BTreeMap<(String, i32), Partition>) {
    let mut open: Vec<(String, i32, i64)> = partitions
        .iter()
        .filter_map(|((topic, id), partition)| {
            let (stable, last) = (partition.stable?, partition.last?);
            (stable < last).then(|| (topic.clone(), *id, stable))
        })
        .collect();
    open.truncate(OPEN_MAX);
    if open.is_empty() {
        return;
    }
    // It does not wait for commits of an open transaction.
    let isolation = Isolation::Uncommitted;
    let reader = TopicReader::to_ends(connection, "waterclock-doctor", isolation, WAIT);
    let Ok(mut reader) = reader else { return };
    let from = open.iter().map(|(topic, id, at)| (&**topic, *id, StartAt::Offset(Offset(*at))));
    if let Err(error) = reader.assign_all(from) {
        return tracing::debug!(%error, "looking at open transactions");
    }
    let until = Instant::now() + OPEN_LOOK;
    while !open.is_empty() && Instant::now() < until {
        match reader.poll(Duration::from_millis(100)) {
            Some(Polled::Record(record)) => {
                let at = (record.topic().to_owned(), record.partition());
                open.retain(|(topic, partition, _)| (topic, *partition) != (&at.0, at.1));
                if let Some(known) = partitions.get_mut(&at)
                    && known.open_since.is_none()
                {
                    known.open_since = record.appended();
                }
            }
            // By now everything up to the end is decided.
            Some(Polled::End(at)) => {
                open.retain(|(topic, id, _)| (topic, *id) != (&at.topic, at.partition));
            }
            Some(Polled::Outside(_, error) | Polled::Failed(error, _)) => {
                tracing::debug!(%error, "looking at open transactions");
            }
            None => {}
        }
    }
}

/// A client that can be asked for the positions of a group.
fn reader(connection: &Connection, group: &str) -> Result<Reader, KafkaError> {
    connection.consumer("waterclock-doctor").set("group.id", group).create_with_context(Quiet)
}

fn committed(
    connection: &Connection,
    group: &str,
    survey: &Survey,
) -> Result<BTreeMap<(String, i32), Option<Position>>, KafkaError> {
    let mut list = TopicPartitionList::new();
    for topic in &survey.topics {
        let there = survey.found.topics.get(topic).map_or(0, |topic| topic.partitions);
        if there > 0 {
            list.add_partition_range(topic, 0, there.min(i32::from(survey.lanes)) - 1);
        }
    }
    if list.count() == 0 {
        return Ok(BTreeMap::new());
    }
    let answers = reader(connection, group)?.committed_offsets(list, ANSWER_MAX)?;
    let mut committed = BTreeMap::new();
    for element in answers.elements() {
        element.error()?;
        let position = match element.offset() {
            At::Offset(next) => {
                let window = Window::load(Offset(next), element.metadata()).ok();
                Some(Position { next, window: window.map(|w| (w.pending(), w.upto().0)) })
            }
            _ => None,
        };
        committed.insert((element.topic().to_owned(), element.partition()), position);
    }
    Ok(committed)
}

/// One partition of the topic for every broker that leads any; not the one with waterclock's own values, if another is
/// there: an open transaction holds its readers back.
fn leaders(metadata: &Metadata, topic: &str) -> Vec<(i32, i32)> {
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let mut leaders = BTreeMap::new();
    for partition in found.iter().flat_map(|topic| topic.partitions()) {
        if partition.leader() >= 0 {
            leaders.insert(partition.leader(), partition.id());
        }
    }
    leaders.into_iter().collect()
}

fn brokers(admin: &Admin, metadata: &Metadata) -> BTreeMap<i32, Broker> {
    let options = AdminOptions::new().request_timeout(Some(BROKER_MAX));
    let settings = |id: i32| {
        // Only the broker itself answers this.
        let answer = block(admin.describe_configs(&[ResourceSpecifier::Broker(id)], &options));
        match answer.map(|answers| answers.into_iter().next()) {
            Ok(Some(Ok(config))) => {
                let known = config.entries.into_iter();
                Settings::Known(
                    known.filter_map(|entry| Some((entry.name, entry.value?))).collect(),
                )
            }
            Ok(Some(Err(code))) if is_refused(ErrorKind::of(code)) => Settings::Refused,
            Ok(Some(Err(code))) => Settings::Silent(code.to_string()),
            Ok(None) => Settings::Silent("an empty answer".to_owned()),
            Err(error) if is_refused(errors::kind(&error)) => Settings::Refused,
            Err(error) => Settings::Silent(told(&error)),
        }
    };
    let brokers = metadata.brokers().iter().map(|broker| {
        let address = format!("{}:{}", broker.host(), broker.port());
        (broker.id(), Broker { address, settings: settings(broker.id()) })
    });
    brokers.collect()
}

fn is_refused(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NoRight(On::Cluster | On::Topic))
}

fn rights(admin: &Admin, topics: &[String]) -> BTreeMap<String, Result<raw::Rights, String>> {
    match raw::topics(admin.inner(), topics, ANSWER_MAX) {
        Ok(told) => told
            .into_iter()
            .map(|(topic, rights)| (topic, rights.map_err(|code| code.to_string())))
            .collect(),
        Err(error) => {
            let why = told(&error);
            topics.iter().map(|topic| (topic.clone(), Err(why.clone()))).collect()
        }
    }
}
