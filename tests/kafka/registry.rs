//! What is known of projects and services: put by one instance, heard by all, on a real Kafka.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use waterclock::Config;
use waterclock::app::lanes::{self, Started};
use waterclock::config::{LadderConfig, Roles};
use waterclock::engine::task::registry::{Change, Project, Registry, read_request};
use waterclock::kafka::topics::apply;
use waterclock::kafka::{PutError, RegistryFeed, meta};

use crate::support::{Fixture, eventually};

/// An instance in this process, without its API.
fn start(fixture: &Fixture, data: &str) -> Started {
    let config = Config {
        brokers: fixture.connection.brokers.clone(),
        namespace: fixture.namespace().to_owned(),
        data_dir: Some(fixture.path(data)),
        ladder: fixture.request.holds.clone().map(LadderConfig::Holds),
        weak_topics: true,
        // What is tested here makes no calls.
        roles: Roles { worker: false, ..Roles::default() },
        ..Config::default()
    };
    let config = config.checked().expect("the ranges hold");
    let stopping = AtomicBool::new(false);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let with = (runtime.handle(), &stopping);
    let started = lanes::start(&config, "127.0.0.1:9".to_owned(), with, |_| {});
    let started = started.unwrap_or_else(|error| panic!("{error:?}"));
    let feed = started.members.registry();
    eventually("meta is read", || if feed.is_known() { Ok(()) } else { Err("not yet".to_owned()) });
    started
}

fn stop(started: Started) {
    started.members.leave();
    started.lane_threads.stop();
    while started.lane_threads.ended().recv().is_ok() {}
}

/// How long it takes until another instance knows what it waits for.
fn heard(feed: &RegistryFeed, since: Instant, is_it: impl Fn(&Registry) -> bool) -> Duration {
    while !is_it(&feed.get()) {
        assert!(since.elapsed() < Duration::from_secs(30), "not heard within 30 s");
        std::thread::sleep(Duration::from_millis(1));
    }
    since.elapsed()
}

fn paused(paused: bool) -> Change {
    Change::of_project("shop", Project { paused, ..Project::NEVER_PUT })
}

fn write(fixture: &Fixture, key: &str, value: &str) {
    let producer: BaseProducer = fixture.client().set("acks", "all").create().expect("a client");
    let topic = fixture.names.meta();
    let record = BaseRecord::to(&topic).partition(meta::PARTITION).key(key).payload(value);
    producer.send(record).map_err(|(error, _)| error).expect("sent");
    producer.flush(Duration::from_secs(20)).expect("flushed");
}

#[test]
fn what_one_instance_puts_all_others_hear_within_two_seconds() {
    let fixture = Fixture::new("registry");
    let (a, b) = (start(&fixture, "a"), start(&fixture, "b"));
    let (put, feed) = (a.members.registrar().clone(), b.members.registry().clone());
    assert!(feed.has_tasks(), "a new namespace has them");
    let mut told = feed.subscribe();
    told.mark_unchanged();

    // A change is heard when it stands in the log, so the time of the put counts, too.
    let mut worst = Duration::ZERO;
    for round in 1..=20u64 {
        let began = Instant::now();
        let revision = put.put(paused(round % 2 == 1), Some(round - 1)).expect("put");
        assert_eq!(revision, round);
        assert_eq!(a.members.registry().get().project("shop").revision, round, "heard here");
        let took = heard(&feed, began, |known| known.project("shop").revision == round);
        assert_eq!(feed.get().paused("shop", None), round % 2 == 1);
        worst = worst.max(took);
    }
    println!("heard within {worst:?}, with the put");
    assert!(worst < Duration::from_secs(2), "{worst:?}");
    assert!(told.has_changed().expect("it is there"));

    // Of what somebody else has changed meanwhile, the one who has not seen it is told.
    let other = b.members.registrar().put(paused(true), Some(7));
    assert!(matches!(other, Err(PutError::Conflict { revision: 20, .. })), "{other:?}");
    let absent = b.members.registrar().put(Change::of_service("shop", "pay", None), Some(1));
    assert!(matches!(absent, Err(PutError::Conflict { revision: 0, .. })), "{absent:?}");
    assert_eq!(b.members.registrar().put(paused(false), None).expect("whatever is there"), 21);
    let began = Instant::now();
    heard(a.members.registry(), began, |known| known.project("shop").revision == 21);

    // A service comes and goes.
    let service = read_request("service/shop/pay", br#"{"address":"https://pay.example"}"#);
    assert_eq!(put.put(service.expect("sound"), Some(0)).expect("put"), 1);
    heard(&feed, Instant::now(), |known| known.service("shop", "pay").is_some());
    assert_eq!(put.put(Change::of_service("shop", "pay", None), Some(1)).expect("deleted"), 0);
    heard(&feed, Instant::now(), |known| known.service("shop", "pay").is_none());

    // What nobody could read is not written.
    let broken = Project { concurrency: 0, ..Project::NEVER_PUT };
    let refused = put.put(Change::of_project("shop", broken), None);
    assert!(matches!(refused, Err(PutError::Wrong(_))), "{refused:?}");
    assert_eq!(put.put(paused(true), Some(21)).expect("nothing was written"), 22);
    stop(a);
    stop(b);
}

#[test]
fn of_two_that_change_one_revision_at_the_same_time_one_is_told_of_the_other() {
    let fixture = Fixture::new("registry-race");
    let (a, b) = (start(&fixture, "a"), start(&fixture, "b"));
    for round in 0..6u64 {
        let gate = Arc::new(std::sync::Barrier::new(2));
        let puts = [&a, &b].map(|of| {
            let (put, gate) = (of.members.registrar().clone(), Arc::clone(&gate));
            let concurrency = if std::ptr::eq(of, &raw const a) { 7 } else { 8 };
            let change = Change::of_project("shop", Project { concurrency, ..Project::NEVER_PUT });
            std::thread::spawn(move || {
                gate.wait();
                (concurrency, put.put(change, Some(round)))
            })
        });
        let done = puts.map(|put| put.join().expect("no panic"));
        let won: Vec<_> = done.iter().filter(|(_, put)| put.is_ok()).collect();
        assert_eq!(won.len(), 1, "round {round}: {done:?}");
        for (_, put) in &done {
            let lost =
                matches!(put, Err(PutError::Conflict { revision, .. }) if *revision == round + 1);
            assert!(lost || *put.as_ref().expect("the one that won") == round + 1, "{done:?}");
        }
        for of in [&a, &b] {
            heard(of.members.registry(), Instant::now(), |known| {
                let shop = known.project("shop");
                (shop.revision, shop.concurrency) == (round + 1, won[0].0)
            });
        }
    }
    // Without a revision both come in, one after the other.
    let puts = [&a, &b].map(|of| {
        let put = of.members.registrar().clone();
        std::thread::spawn(move || put.put(paused(true), None))
    });
    let mut revisions = puts.map(|put| put.join().expect("no panic").expect("put"));
    revisions.sort_unstable();
    assert_eq!(revisions, [7, 8]);
    stop(a);
    stop(b);
}

#[test]
fn a_project_that_is_deleted_takes_its_services_with_it() {
    let fixture = Fixture::new("registry-delete");
    let (a, b) = (start(&fixture, "a"), start(&fixture, "b"));
    let put = a.members.registrar().clone();
    let service = || {
        let read = read_request("service/shop/pay", br#"{"address":"https://pay.example"}"#);
        read.expect("sound")
    };
    put.put(paused(false), None).expect("put");
    put.put(service(), None).expect("put");
    let deleted = Project { is_deleted: true, ..Project::NEVER_PUT };
    put.put(Change::of_project("shop", deleted), Some(1)).expect("deleted");
    let refused = b.members.registrar().put(service(), None);
    assert!(matches!(refused, Err(PutError::Deleted(_))), "{refused:?}");
    b.members.registrar().put(paused(false), None).expect("put again");
    for of in [&a, &b] {
        heard(of.members.registry(), Instant::now(), |known| known.project("shop").revision == 3);
        let known = of.members.registry().get();
        assert!(known.service("shop", "pay").is_none(), "its services are gone");
    }
    stop(a);
    stop(b);
}

#[test]
fn a_value_that_cannot_be_read_leaves_the_last_and_a_topic_that_was_made_again_counts_as_it_is() {
    let fixture = Fixture::new("registry-broken");
    let a = start(&fixture, "a");
    let feed = a.members.registry().clone();
    a.members.registrar().put(paused(true), None).expect("put");
    write(&fixture, "project/shop", r#"{"version":1,"revision":2,"paused":"no"}"#);
    write(&fixture, "project/shop", "{");
    write(&fixture, "project/other", r#"{"version":1,"revision":5}"#);
    heard(&feed, Instant::now(), |known| known.project("other").revision == 5);
    let shop = feed.get().project("shop").clone();
    assert_eq!((shop.paused, shop.revision), (true, 1));
    // Put again, it counts from the last good one.
    assert_eq!(a.members.registrar().put(paused(false), Some(1)).expect("put"), 2);

    let before: Arc<Registry> = feed.get();
    fixture.delete_target(&fixture.names.meta());
    eventually("topics apply", || {
        apply(&fixture.connection, &fixture.request).map_err(|error| format!("{error:?}"))
    });
    write(&fixture, "project/new", r#"{"version":1,"revision":9}"#);
    eventually("it is read from its beginning", || {
        let known = feed.get();
        if known.project("new").revision == 9 { Ok(()) } else { Err(format!("{known:?}")) }
    });
    assert_eq!(before.project("shop").revision, 2);
    assert_eq!(feed.get().project("shop"), &Project::NEVER_PUT, "that went with the topic");
    stop(a);
}
