//! Topics and what is in force, on a real Kafka: made, read back, refused, drained.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use waterclock::engine::Millis;
use waterclock::engine::ladder::Ladder;
use waterclock::kafka::Connection;
use waterclock::kafka::meta::{self, LadderInForce, Value};
use waterclock::kafka::topics::{
    Error, Names, Request, Severity, apply, check, compare, create, delete, inspect, wanted,
};

const S: Millis = Millis::SECOND;
const M: Millis = Millis::MINUTE;
const H: Millis = Millis::HOUR;

/// A namespace of its own on a shared broker; gone with the test.
struct Corner {
    connection: Connection,
    request: Request,
    names: Names,
}

impl Corner {
    #[allow(clippy::disallowed_methods, reason = "a test must be told where the broker is")]
    fn new(test: &str) -> Self {
        let brokers = std::env::var("KAFKA_BOOTSTRAP")
            .expect("set KAFKA_BOOTSTRAP, as `scripts/kafka start` prints it");
        let namespace = format!("{test}-{}", uuid::Uuid::new_v4().simple());
        Self {
            connection: Connection::new(&brokers, BTreeMap::new()),
            names: Names::new(&namespace),
            request: Request {
                namespace,
                further_intakes: Vec::new(),
                lanes: Some(2),
                holds: Some(vec![S, M]),
                lead_max: Millis(2_000),
                horizon: Millis(2_000),
                tasks: false,
            },
        }
    }

    fn with(&self, lanes: Option<u16>, holds: Option<&[Millis]>) -> Request {
        Request { lanes, holds: holds.map(<[Millis]>::to_vec), ..self.request.clone() }
    }

    fn client(&self) -> ClientConfig {
        self.connection.client("test")
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.client().create().unwrap()
    }

    fn consumer(&self) -> BaseConsumer {
        let mut config = self.client();
        config.set("group.id", &self.request.namespace).set("enable.auto.commit", "false");
        config.set("session.timeout.ms", "6000").create().unwrap()
    }

    fn meta(&self) -> meta::Meta {
        meta::read(&self.connection, &self.names.meta(), &self.request.namespace).unwrap()
    }

    fn produce(&self, topic: &str, partition: i32, key: &str, value: &str) {
        let producer: BaseProducer = self.client().set("acks", "all").create().unwrap();
        let record = BaseRecord::to(topic).partition(partition).key(key).payload(value);
        producer.send(record).map_err(|(error, _)| error).unwrap();
        producer.flush(Duration::from_secs(20)).unwrap();
    }

    /// In a transaction, so that its mark stands behind it in the log.
    fn produce_in_transaction(&self, topic: &str, partition: i32) {
        let mut config = self.client();
        config.set("transactional.id", &self.request.namespace);
        let producer: BaseProducer = config.create().unwrap();
        producer.init_transactions(Duration::from_secs(20)).unwrap();
        producer.begin_transaction().unwrap();
        let record = BaseRecord::to(topic).partition(partition).key("k").payload("v");
        producer.send(record).map_err(|(error, _)| error).unwrap();
        producer.commit_transaction(Duration::from_secs(20)).unwrap();
    }

    fn commit(&self, topic: &str, partition: i32, next: i64) {
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(topic, partition, Offset::Offset(next)).unwrap();
        self.consumer().commit(&offsets, CommitMode::Sync).unwrap();
    }
}

impl Drop for Corner {
    fn drop(&mut self) {
        let topics = inspect(&self.connection, &self.names).map(|found| found.topics);
        let names: Vec<String> = topics.unwrap_or_default().into_keys().collect();
        if !names.is_empty() {
            let _ = delete(&self.connection, &names);
        }
    }
}

fn block<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Asks until it is so, with a deadline instead of a sleep of some length.
fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !so() {
        assert!(Instant::now() < until, "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn apply_makes_what_check_accepts_and_a_second_one_changes_nothing() {
    let mut corner = Corner::new("apply");
    corner.request.further_intakes = vec!["eu".to_owned()];
    let refused = check(&corner.connection, &corner.request);
    assert!(matches!(refused, Err(Error::NotApplied { .. })), "{refused:?}");
    let missing = compare(&corner.connection, &corner.request).unwrap();
    assert_eq!(missing.len(), 9);
    assert!(missing.iter().all(|finding| finding.severity == Severity::Missing));

    let first = apply(&corner.connection, &corner.request).unwrap();
    let what = "two intakes, two tiers, dead, meta, timers, tasks, results";
    assert_eq!(first.created.len(), 9, "{what}: {first:?}");
    assert!(first.changed && first.tasks, "a new namespace has tasks");
    assert_eq!(corner.meta().tasks, Some(1));
    assert_eq!(first.findings, []);
    assert_eq!(first.in_force, LadderInForce { lanes: 2, holds: vec![S, M], draining: vec![] });

    let in_force = check(&corner.connection, &corner.with(None, None)).unwrap();
    let ns = &corner.request.namespace;
    let want = ["intake", "intake.eu", "delay.1s", "delay.1m", "results"];
    assert_eq!(in_force.topics, want.map(|name| format!("{ns}.{name}")));
    assert_eq!((in_force.lanes, in_force.tasks, in_force.notes), (2, true, vec![]));

    let second = apply(&corner.connection, &corner.with(None, None)).unwrap();
    assert_eq!((second.changed, second.created.len(), second.findings.len()), (false, 0, 0));
    assert_eq!(second.in_force, first.in_force);
    assert_eq!(corner.meta().secret, Some(in_force.secret));
}

#[test]
fn a_setting_that_cannot_hold_is_refused_and_left_as_it_is() {
    let corner = Corner::new("unfit");
    apply(&corner.connection, &corner.request).unwrap();
    let tier = corner.names.tier(M);
    let change = AlterConfig::new(ResourceSpecifier::Topic(&tier)).set("retention.ms", "1000");
    block(corner.admin().alter_configs([&change], &AdminOptions::new())).unwrap();

    // Brokers take a moment to agree on a change.
    eventually("the broken retention is refused", || {
        matches!(check(&corner.connection, &corner.request), Err(Error::Misconfigured(findings))
            if findings.iter().any(|f| f.topic == tier && f.what == "retention.ms" && f.found == "1000"))
    });
    let applied = apply(&corner.connection, &corner.request).unwrap();
    let finding = applied.findings.iter().find(|finding| finding.what == "retention.ms").unwrap();
    assert_eq!((finding.found.as_str(), finding.severity), ("1000", Severity::Wrong));
    assert!(finding.remedy.contains("--add-config retention.ms=-1"), "{}", finding.remedy);
}

#[test]
fn a_topic_that_is_there_with_other_partitions_fixes_no_lanes() {
    let corner = Corner::new("partitions");
    let intake = corner.names.intake();
    let new = NewTopic::new(&intake, 3, TopicReplication::Fixed(1));
    block(corner.admin().create_topics([&new], &AdminOptions::new())).unwrap();
    eventually("the topic is there", || {
        inspect(&corner.connection, &corner.names).unwrap().topics.contains_key(&intake)
    });

    let refused = apply(&corner.connection, &corner.request);
    let Err(Error::Misconfigured(findings)) = refused else { panic!("{refused:?}") };
    assert_eq!((findings[0].found.as_str(), findings[0].wanted.as_str()), ("3", "2"));
    let found = inspect(&corner.connection, &corner.names).unwrap();
    assert_eq!(found.topics.into_keys().collect::<Vec<_>>(), [intake], "nothing was created");
}

#[test]
fn lanes_are_fixed_and_an_instance_with_other_settings_does_not_start() {
    let corner = Corner::new("lanes");
    apply(&corner.connection, &corner.request).unwrap();
    for refused in [
        apply(&corner.connection, &corner.with(Some(3), None)).map(|_| ()),
        check(&corner.connection, &corner.with(Some(3), None)).map(|_| ()),
    ] {
        assert!(
            matches!(refused, Err(Error::Lanes { requested: 3, in_force: 2, .. })),
            "{refused:?}"
        );
    }
    let refused = check(&corner.connection, &corner.with(None, Some(&[S])));
    assert!(matches!(refused, Err(Error::Ladder { .. })), "{refused:?}");
    assert!(check(&corner.connection, &corner.with(Some(2), Some(&[M, S]))).is_ok());
}

#[test]
fn the_ladder_does_not_change_under_a_live_member() {
    let corner = Corner::new("live");
    apply(&corner.connection, &corner.request).unwrap();
    let member = corner.consumer();
    member.subscribe(&[&corner.names.intake()]).unwrap();
    eventually("the member has joined", || {
        let _ = member.poll(Duration::from_millis(50));
        member.assignment().unwrap().count() > 0
    });
    let other = corner.with(None, Some(&[S, M, H]));
    let refused = apply(&corner.connection, &other);
    assert!(matches!(refused, Err(Error::Live { members: 1, .. })), "{refused:?}");
    apply(&corner.connection, &corner.request).expect("what is in force may be applied again");
    drop(member);
    let mut applied = None;
    eventually("the ladder changes when the member is gone", || {
        applied = apply(&corner.connection, &other).ok();
        applied.is_some()
    });
    assert_eq!(applied.unwrap().created, [corner.names.tier(H)]);
}

/// A namespace as programs from before tasks have made it.
fn of_before(test: &str) -> Corner {
    let corner = Corner::new(test);
    let ladder = Ladder::new(&[S, M], &[], Millis(2_000)).unwrap();
    let specs = wanted(&corner.names, 2, &ladder, &[], 1, false);
    create(&corner.connection, &specs).unwrap();
    let began = LadderInForce { lanes: 2, holds: vec![S, M], draining: vec![] };
    let first = Value::first(began, false).unwrap();
    meta::write(&corner.connection, &corner.names.meta(), &first).unwrap();
    corner
}

#[test]
fn a_namespace_of_before_gets_tasks_when_it_is_told_to_and_nobody_is_there() {
    let corner = of_before("tasks");
    let of_tasks = [corner.names.tasks(), corner.names.results()];
    let is_there = || {
        let found = inspect(&corner.connection, &corner.names).unwrap().topics;
        of_tasks.iter().any(|topic| found.contains_key(topic))
    };
    // A new program changes nothing by itself.
    let in_force = check(&corner.connection, &corner.request).unwrap();
    assert!(!in_force.tasks && in_force.specs.iter().all(|spec| !of_tasks.contains(&spec.name)));
    assert_eq!(compare(&corner.connection, &corner.request).unwrap(), []);
    let applied = apply(&corner.connection, &corner.request).unwrap();
    assert_eq!((applied.tasks, applied.changed, applied.created.len()), (false, false, 0));
    assert!(!is_there());

    let asked = Request { tasks: true, ..corner.request.clone() };
    let missing = compare(&corner.connection, &asked).unwrap();
    let missing: Vec<&String> = missing.iter().map(|finding| &finding.topic).collect();
    assert_eq!(missing, of_tasks.iter().collect::<Vec<_>>(), "`topics diff --tasks` tells them");
    let member = corner.consumer();
    member.subscribe(&[&corner.names.intake()]).unwrap();
    eventually("the member has joined", || {
        let _ = member.poll(Duration::from_millis(50));
        member.assignment().unwrap().count() > 0
    });
    let refused = apply(&corner.connection, &asked);
    assert!(matches!(refused, Err(Error::LiveForTasks { members: 1, .. })), "{refused:?}");
    assert!(!is_there());
    assert_eq!(corner.meta().tasks, None);

    drop(member);
    let mut applied = None;
    eventually("tasks come into force when the member is gone", || {
        applied = apply(&corner.connection, &asked).ok();
        applied.is_some()
    });
    let applied = applied.unwrap();
    assert_eq!(applied.created, of_tasks);
    assert!(applied.tasks && applied.changed);
    assert_eq!(applied.findings, []);
    assert_eq!(corner.meta().tasks, Some(1));
    for request in [&asked, &corner.request] {
        let again = apply(&corner.connection, request).unwrap();
        assert_eq!((again.tasks, again.changed, again.created.len()), (true, false, 0));
    }
    let in_force = check(&corner.connection, &corner.request).unwrap();
    assert!(in_force.tasks && in_force.specs.iter().any(|spec| spec.name == of_tasks[0]));
}

#[test]
fn tasks_do_not_come_into_force_on_a_topic_that_cannot_hold_them() {
    let corner = of_before("tasks-misfit");
    let tasks = corner.names.tasks();
    let new = NewTopic::new(&tasks, 3, TopicReplication::Fixed(1));
    block(corner.admin().create_topics([&new], &AdminOptions::new())).unwrap();
    let asked = Request { tasks: true, ..corner.request.clone() };
    eventually("the topic is there", || {
        inspect(&corner.connection, &corner.names).unwrap().topics.contains_key(&tasks)
    });
    let refused = apply(&corner.connection, &asked);
    let Err(Error::Misconfigured(told)) = refused else { panic!("{refused:?}") };
    assert!(told.iter().all(|finding| finding.topic == tasks), "{told:?}");
    assert!(told.iter().any(|finding| finding.what == "partitions"), "{told:?}");
    assert_eq!(corner.meta().tasks, None);
    assert!(check(&corner.connection, &corner.request).is_ok(), "all goes on without tasks");
}

/// Without its meta topic a namespace of before looks new, but for what else is there.
#[test]
fn a_namespace_of_before_whose_meta_topic_is_gone_gets_no_tasks_by_itself() {
    let corner = of_before("tasks-meta");
    delete(&corner.connection, &[corner.names.meta()]).unwrap();
    eventually("it is gone", || {
        // While it goes, a broker may know its name and not its settings.
        inspect(&corner.connection, &corner.names)
            .is_ok_and(|found| !found.topics.contains_key(&corner.names.meta()))
    });
    let applied = apply(&corner.connection, &corner.request).unwrap();
    assert_eq!((applied.tasks, applied.created), (false, vec![corner.names.meta()]));
    assert_eq!(corner.meta().tasks, None);
}

#[test]
fn a_tier_that_was_taken_away_is_read_until_nothing_is_pending_in_it() {
    let corner = Corner::new("drain");
    let all = corner.with(None, Some(&[S, M, H]));
    apply(&corner.connection, &Request { lanes: Some(2), ..all }).unwrap();
    let (minute, hour) = (corner.names.tier(M), corner.names.tier(H));
    // Two partitions in two states: one with the mark of a transaction behind its record, one without.
    corner.produce_in_transaction(&minute, 1);
    corner.produce(&minute, 0, "k", "v");

    let applied = apply(&corner.connection, &corner.with(None, Some(&[S]))).unwrap();
    assert_eq!(applied.in_force.draining, [M], "the hour was empty, the minute is not");
    assert_eq!(applied.drained, [H]);
    let stray = applied.findings.iter().find(|finding| finding.topic == hour).unwrap();
    assert_eq!(stray.severity, Severity::Note);
    let in_force = check(&corner.connection, &corner.with(None, None)).unwrap();
    assert!(in_force.topics.contains(&minute), "a tier that is drained is still read");
    let tier = &in_force.ladder.tiers()[1];
    assert_eq!((tier.hold, tier.open), (M, false), "and not written to");

    corner.commit(&minute, 0, 1);
    let applied = apply(&corner.connection, &corner.with(None, None)).unwrap();
    assert_eq!(applied.in_force.draining, [M], "one of two partitions is done");
    corner.commit(&minute, 1, 1);
    let applied = apply(&corner.connection, &corner.with(None, None)).unwrap();
    assert_eq!((applied.drained, applied.in_force.draining), (vec![M], vec![]));
}

#[test]
fn a_transaction_that_was_left_open_keeps_its_tier_on_the_list() {
    let corner = Corner::new("open");
    let all = corner.with(Some(2), Some(&[S, M]));
    apply(&corner.connection, &all).unwrap();
    let mut config = corner.client();
    config.set("transactional.id", &corner.request.namespace);
    let producer: BaseProducer = config.create().unwrap();
    producer.init_transactions(Duration::from_secs(20)).unwrap();
    producer.begin_transaction().unwrap();
    let minute = corner.names.tier(M);
    let record = BaseRecord::to(&minute).partition(0).key("k").payload("v");
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(Duration::from_secs(20)).unwrap();

    let applied = apply(&corner.connection, &corner.with(None, Some(&[S]))).unwrap();
    assert_eq!(applied.in_force.draining, [M], "it may yet be committed");
    // Started again under the same name, which aborts what the old one left.
    drop(producer);
    let producer: BaseProducer = config.create().unwrap();
    producer.init_transactions(Duration::from_secs(20)).unwrap();
    eventually("the aborted record is not waited for", || {
        let applied = apply(&corner.connection, &corner.with(None, None)).unwrap();
        applied.in_force.draining.is_empty()
    });
}

#[test]
fn three_first_starts_at_once_agree() {
    for round in 0..3 {
        let corner = Corner::new("first");
        let apply_once = || {
            let (connection, request) = (corner.connection.clone(), corner.request.clone());
            std::thread::spawn(move || {
                let applied = apply(&connection, &request)?;
                let in_force = check(&connection, &request)?;
                Ok::<_, Error>((applied, in_force.secret))
            })
        };
        let starts = [apply_once(), apply_once(), apply_once()];
        let starts = starts.map(|start| start.join().unwrap().unwrap());
        let agreed = corner.meta();
        let in_force = LadderInForce { lanes: 2, holds: vec![S, M], draining: vec![] };
        assert_eq!(agreed.ladder, Some(in_force.clone()), "round {round}");
        let mut created: Vec<&String> = Vec::new();
        for (applied, secret) in &starts {
            assert_eq!(applied.in_force, in_force, "round {round}");
            assert_eq!(Some(secret), agreed.secret.as_ref(), "round {round}");
            assert_eq!(applied.findings, [], "round {round}");
            created.extend(&applied.created);
        }
        assert_eq!(created.len(), 8, "each topic was made once: {created:?}");
        assert_eq!(starts.iter().filter(|(applied, _)| applied.changed).count(), 1);
    }
}

#[test]
fn of_two_first_starts_that_ask_for_something_else_one_counts_and_the_other_is_told() {
    let corner = Corner::new("differ");
    let apply_with = |request: Request| {
        let connection = corner.connection.clone();
        std::thread::spawn(move || apply(&connection, &request))
    };
    let three = apply_with(corner.with(Some(3), Some(&[S, M])));
    let unsaid = apply_with(corner.with(None, None));
    let (three, unsaid) = (three.join().unwrap(), unsaid.join().unwrap());
    let ladder = corner.meta().ladder.unwrap();
    let found = inspect(&corner.connection, &corner.names).unwrap();
    // Of a ladder that did not come first some tiers may have been made: nothing uses them.
    let tiers = ladder.holds.iter().map(|hold| corner.names.tier(*hold));
    let used: Vec<String> = tiers.chain([corner.names.intake(), corner.names.timers()]).collect();
    for (name, topic) in found.topics.iter().filter(|(name, _)| used.contains(name)) {
        assert_eq!(topic.partitions, i32::from(ladder.lanes), "{name}");
    }
    match ladder.lanes {
        3 => assert!(three.is_ok() && unsaid.unwrap().in_force.lanes == 3),
        6 => {
            assert!(unsaid.is_ok());
            // By what is in force, or by the topics themselves, if the other one had made them by then.
            let told = match &three {
                Err(Error::Lanes { requested: 3, in_force: 6, .. }) => true,
                Err(Error::Misconfigured(findings)) => {
                    findings.iter().any(|of| of.what == "partitions" && of.found == "6")
                }
                _ => false,
            };
            assert!(told, "{three:?}");
        }
        other => panic!("{other} lanes"),
    }
}

/// A start that has seen nothing in force, and is slow to say what it begins with.
#[test]
fn a_late_first_start_changes_nothing_also_when_the_log_was_compacted() {
    let corner = Corner::new("late");
    let topic = corner.names.meta();
    apply(&corner.connection, &corner.request).unwrap();
    let before = corner.meta();
    let ladder = LadderInForce { lanes: 9, holds: vec![S], draining: vec![] };
    for _ in 0..2 {
        let late = Value::first(ladder.clone(), false).unwrap();
        meta::write(&corner.connection, &topic, &late).unwrap();
    }
    assert_eq!(corner.meta(), before);
    let change = AlterConfig::new(ResourceSpecifier::Topic(&topic))
        .set("cleanup.policy", "compact")
        .set("message.timestamp.type", "LogAppendTime")
        .set("min.cleanable.dirty.ratio", "0.001")
        .set("segment.ms", "100");
    block(corner.admin().alter_configs([&change], &AdminOptions::new())).unwrap();
    // Compacted is what has become less: many values of one key.
    let probes = || {
        let reader = corner.consumer();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&topic, meta::PARTITION, Offset::Beginning).unwrap();
        reader.assign(&list).unwrap();
        let (_, end) =
            reader.fetch_watermarks(&topic, meta::PARTITION, Duration::from_secs(10)).unwrap();
        let mut probes = 0;
        while let Some(message) = reader.poll(Duration::from_secs(10)) {
            let message = message.unwrap();
            probes += usize::from(message.key() == Some(b"clock-x"));
            if message.offset() + 1 == end {
                break;
            }
        }
        probes
    };
    let mut written = 0;
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        corner.produce(&topic, meta::PARTITION, "clock-x", "probe");
        written += 1;
        if written > 10 && probes() < written / 2 {
            break;
        }
        assert!(Instant::now() < until, "not compacted within 120 s");
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(corner.meta(), before);
}

#[test]
fn what_is_in_force_outlives_strangers_and_garbage_in_meta() {
    let corner = Corner::new("meta");
    let topic = corner.names.meta();
    let read = || meta::read(&corner.connection, &topic, &corner.request.namespace);
    assert!(matches!(read(), Err(meta::Error::Missing { .. })));
    apply(&corner.connection, &corner.request).unwrap();
    let before = corner.meta();
    for (key, value) in [("clock-1", "probe"), ("later", "{}"), ("ladder", "{"), ("secret", "x")] {
        corner.produce(&topic, meta::PARTITION, key, value);
    }
    assert_eq!(corner.meta(), before);
    let ladder = LadderInForce { lanes: 2, holds: vec![S, M, H], draining: vec![] };
    meta::write(
        &corner.connection,
        &topic,
        &Value::Ladder { ladder: ladder.clone(), tasks: false },
    )
    .unwrap();
    assert_eq!(corner.meta().ladder, Some(ladder));
    assert_eq!(corner.meta().secret, before.secret);
}
