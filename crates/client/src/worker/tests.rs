use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use serde_json::json;
use waterclock_engine::Record;
use waterclock_kafka::Embedded;

use super::executor::{Place, hold};
use super::pool::{Load, PoolHandle};
use super::*;
use crate::tasks::tests::{Asked, Instance, LONG, Said, block_on, passing, said};

const PERIOD: Duration = Duration::from_secs(5);

/// An instance that takes every heartbeat, and every result as it is said.
fn takes_all(_: usize, asked: &Asked) -> Said {
    match asked.body["outcome"].as_str() {
        None => said(200, json!({ "next_at": 7 })),
        Some("failed") => said(200, json!({ "outcome": "retrying" })),
        Some("gone") => said(200, json!({ "outcome": "failed" })),
        Some(outcome) => said(200, json!({ "outcome": outcome })),
    }
}

fn record(id: &str, shard: &str, cursor: Option<&str>) -> Record {
    let mut headers = vec![
        ("x-delay-id", id),
        ("x-delay-ticket", "AAAB"),
        ("x-delay-attempt", "2"),
        ("x-delay-shard", shard),
        ("x-delay-nominal", "1801353600000"),
    ];
    headers.extend(cursor.map(|cursor| ("x-delay-cursor", cursor)));
    let headers = headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
    Record::new(Some(b"key"), Some(b"value"), headers)
}

/// A place in a group that commits as it is told, and what was asked of the instance when it did.
#[derive(Default)]
struct Fake {
    is_lost: bool,
    commits: AtomicUsize,
}

impl Place for Fake {
    fn is_ours(&self) -> bool {
        !self.is_lost
    }

    async fn commit(&self) -> Result<bool, KafkaError> {
        // The first one has no answer.
        match self.commits.fetch_add(1, Ordering::SeqCst) {
            0 => Err(KafkaError::Canceled),
            _ => Ok(!self.is_lost),
        }
    }
}

/// Executes a record, and gives what was said of it.
struct Scene {
    executor: Executor,
    events: Arc<Mutex<Vec<Event>>>,
    stop: watch::Sender<bool>,
}

impl Scene {
    fn new(instance: &Instance, handler: impl Handler) -> Self {
        let (events, stop) = (Arc::new(Mutex::new(Vec::new())), watch::Sender::new(false));
        let said = Arc::clone(&events);
        let executor = Executor {
            topic: "settlement".to_owned(),
            handler: Arc::new(handler),
            tasks: instance.tasks(LONG),
            heartbeat: Some(PERIOD),
            grace: Duration::ZERO,
            stop: stop.subscribe(),
            observer: Arc::new(move |event| said.lock().push(event)),
        };
        Self { executor, events, stop }
    }

    async fn execute(&self, record: &Record, place: &Fake) -> Vec<Event> {
        self.executor.execute(record, place).await;
        std::mem::take(&mut *self.events.lock())
    }
}

/// A handler of a function.
struct Of<F>(F);

impl<F, W> Handler for Of<F>
where
    F: Fn(Shard, Context) -> W + Send + Sync + 'static,
    W: Future<Output = Result<Value, Failed>> + Send,
{
    async fn run(&self, shard: Shard, context: Context) -> Result<Value, Failed> {
        (self.0)(shard, context).await
    }
}

#[test]
fn the_weight_is_the_number_of_members_of_each_topic() {
    let topics = ["a".to_owned(), "b".to_owned()];
    let of = |group, weight| members(&topics, group, weight);
    let member = |topic: &'static str, group: &str, number: usize| {
        (topic, group.to_owned(), format!("waterclock-worker-{number}"))
    };
    let want = [
        member("a", "a-executors", 0),
        member("a", "a-executors", 1),
        member("b", "b-executors", 0),
        member("b", "b-executors", 1),
    ];
    assert_eq!(of(None, 2), want);
    assert_eq!(of(Some("g"), 1), [member("a", "g", 0), member("b", "g", 0)]);
}

#[test]
fn an_executor_stops_a_fifth_of_the_period_before_the_next_turn_may_begin() {
    assert_eq!(hold(Duration::from_secs(30)), Duration::from_secs(24));
    assert_eq!(hold(Duration::from_secs(2)), Duration::from_millis(1_600));
}

#[test]
fn a_worker_without_a_handler_or_with_a_wrong_setting_is_not_built() {
    let tasks = || Tasks::new(tasks::TasksConfig::new("http://localhost:8080")).expect("a client");
    let built = Worker::builder(ClientConfig::new("localhost:9092"), tasks()).build();
    assert!(matches!(built, Err(Error::NoHandler)));
    let mut kafka = ClientConfig::new("localhost:9092");
    kafka.kafka.insert("group.id".to_owned(), "g".to_owned());
    let nothing = Of(|_, _| async { Ok(Value::Null) });
    let built = Worker::builder(kafka, tasks()).handler("a", nothing).build();
    assert!(matches!(built, Err(Error::Setting(fault)) if fault.name == "group.id"));
}

#[test]
fn a_handler_runs_after_the_first_heartbeat_and_the_commit_and_its_result_is_reported() {
    block_on(async {
        let instance = Instance::start(|number, asked| match number {
            0 => passing("lane_moving"),
            _ => takes_all(number, asked),
        });
        let (asked_of, place) = (instance.clone(), Arc::new(Fake::default()));
        let committed = Arc::clone(&place);
        let handler = Of(move |shard: Shard, context: Context| {
            assert_eq!(asked_of.asked().len(), 2, "heartbeats");
            assert_eq!(committed.commits.load(Ordering::SeqCst), 2);
            async move {
                let want = ("t", 3, 60, 2, Some("row:5"));
                let Shard { task_id, index, count, attempt, cursor, .. } = &shard;
                assert_eq!((&**task_id, *index, *count, *attempt, cursor.as_deref()), want);
                let nominal = SystemTime::UNIX_EPOCH + Duration::from_millis(1_801_353_600_000);
                assert_eq!(shard.nominal, Some(nominal));
                assert_eq!(
                    (shard.key.as_deref(), &*shard.value),
                    (Some(&b"key"[..]), &b"value"[..])
                );
                context.progress(Some(40), None)?;
                assert!(context.progress(Some(101), Some("row:6")).is_err());
                context.heartbeat(None, Some("row:7")).await?;
                assert!(!context.is_cancelled());
                Ok(json!({ "sum": 7 }))
            }
        });
        let scene = Scene::new(&instance, handler);
        let events = scene.execute(&record("t", "3/60", Some("row:5")), &place).await;
        let [Event::Kafka { .. }, Event::Begun { .. }, Event::Finished { value, reported, .. }] =
            &events[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!((value, reported), (&json!({ "sum": 7 }), &Reported::Finished));
        let asked = instance.asked();
        let [_, first, again, result] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!(first.body["cursor"], "row:5", "what is known is said again");
        assert_eq!((&again.body["cursor"], &again.body["percent"]), (&json!("row:7"), &json!(40)));
        assert!(result.is("/v1/tasks/t/result"), "{result:?}");
        assert_eq!(result.body["cursor"], "row:7");
    });
}

#[test]
fn a_failure_a_final_one_and_a_panic_are_reported() {
    block_on(async {
        let instance = Instance::start(takes_all);
        let handler = Of(|shard: Shard, _| async move {
            match shard.index {
                0 => Err(Failed::retry("no stock").after(Duration::from_secs(60))),
                1 => Err(Failed::gone("no such file")),
                2 => panic!("at {}", shard.index),
                _ => Ok("x".parse::<u32>()?.into()),
            }
        });
        let scene = Scene::new(&instance, handler);
        for (shard, outcome, error, reported) in [
            ("0/4", "failed", "no stock", Reported::Retrying),
            ("1/4", "gone", "no such file", Reported::Failed),
            ("2/4", "failed", "the handler panicked: at 2", Reported::Retrying),
            ("3/4", "failed", "invalid digit found in string", Reported::Retrying),
        ] {
            let events = scene.execute(&record("t", shard, None), &Fake::default()).await;
            let Some(Event::Failed { reported: told, .. }) = events.last() else {
                panic!("{events:?}")
            };
            assert_eq!(*told, reported);
            let body = instance.asked().pop().expect("asked").body;
            assert_eq!((&body["outcome"], &body["error"]), (&json!(outcome), &json!(error)));
            let wait = if shard == "0/4" { json!("60000ms") } else { Value::Null };
            assert_eq!(body["retry_after"], wait);
        }
    });
}

#[test]
fn a_record_that_is_not_ours_or_of_no_turn_is_not_worked_on() {
    block_on(async {
        let handler = || Of(|_, _| async { panic!("it must not run") });
        let instance = Instance::start(takes_all);
        let lost = Fake { is_lost: true, ..Fake::default() };
        let events =
            Scene::new(&instance, handler()).execute(&record("t", "0/1", None), &lost).await;
        assert!(matches!(events.last(), Some(Event::Moved { .. })), "{events:?}");
        assert!(instance.asked().iter().all(|asked| asked.is("/heartbeat")), "no result");

        let refused = |status, code: &'static str| {
            Instance::start(move |_, _| said(status, json!({ "code": code, "detail": "no" })))
        };
        let cases = [
            (refused(409, "stale"), record("t", "0/1", None)),
            (refused(404, "unknown_task"), record("t", "0/1", None)),
            (refused(403, "wrong_ticket"), record("t", "0/1", None)),
            (refused(500, "internal_error"), record("t", "1/1", None)),
            (refused(500, "internal_error"), Record::new(None, None, [].into_iter())),
        ];
        for (instance, record) in cases {
            let place = Fake { commits: AtomicUsize::new(1), ..Fake::default() };
            let events = Scene::new(&instance, handler()).execute(&record, &place).await;
            assert!(matches!(&events[..], [Event::Passed { .. }]), "{events:?}");
            assert_eq!(place.commits.load(Ordering::SeqCst), 2, "committed");
        }
        // A token without the rights: somebody mends it, and nothing is passed over.
        let instance = Instance::start(|number, asked| match number {
            0 => said(403, json!({ "code": "role_denied", "detail": "no" })),
            _ => takes_all(number, asked),
        });
        let scene = Scene::new(&instance, Of(|_, _| async { Ok(Value::Null) }));
        let events = scene.execute(&record("t", "0/1", None), &Fake::default()).await;
        let is_begun_then = matches!(
            &events[..],
            [
                Event::NotBegun { .. },
                Event::Kafka { .. },
                Event::Begun { .. },
                Event::Finished { .. }
            ]
        );
        assert!(is_begun_then, "{events:?}");
    });
}

#[test]
fn a_handler_that_nobody_hears_of_is_dropped_in_time_and_not_reported() {
    struct Dropped(Arc<Mutex<Option<Instant>>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            *self.0.lock() = Some(Instant::now());
        }
    }
    block_on(async {
        for code in ["stale", "lane_moving"] {
            let instance = Instance::start(move |number, asked| match number {
                0 => takes_all(number, asked),
                _ if code == "stale" => said(409, json!({ "code": code, "detail": "cancelled" })),
                // It takes them, and does not answer for longer than the turn lasts.
                _ => {
                    std::thread::sleep(Duration::from_secs(3));
                    None
                }
            });
            let (dropped, spawned) = (Arc::default(), Arc::new(Mutex::new(None)));
            let (in_handler, in_spawned) = (Arc::clone(&dropped), Arc::clone(&spawned));
            let handler = Of(move |_, context: Context| {
                let guard = Dropped(Arc::clone(&in_handler));
                let told = Arc::clone(&in_spawned);
                let of_spawned = context.clone();
                tokio::spawn(async move { *told.lock() = Some(of_spawned.cancelled().await) });
                async move {
                    let _guard = guard;
                    std::future::pending().await
                }
            });
            let scene = Scene::new(&instance, handler);
            let began = Instant::now();
            let place = Fake { commits: AtomicUsize::new(1), ..Fake::default() };
            let events = scene.execute(&record("t", "0/1", None), &place).await;
            let Some(Event::Over { over, .. }) = events.last() else { panic!("{events:?}") };
            assert_eq!(matches!(over, Over::Stale { .. }), code == "stale", "{over}");
            let after = dropped.lock().expect("it is dropped").duration_since(began);
            assert!(after < PERIOD, "{after:?}: the next turn may have begun");
            assert!(instance.asked().iter().all(|asked| asked.is("/heartbeat")), "no result");
            let until = Instant::now() + LONG;
            while spawned.lock().is_none() {
                assert!(Instant::now() < until, "what it has spawned hears of it, too");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
}

#[test]
fn a_stopped_worker_gives_its_shard_back_and_begins_none() {
    block_on(async {
        let instance = Instance::start(takes_all);
        let scene = Scene::new(&instance, Of(|_, _| std::future::pending()));
        let (work, place) = (record("t", "0/1", None), Fake::default());
        let stop = async {
            while !scene.events.lock().iter().any(|event| matches!(event, Event::Begun { .. })) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            scene.stop.send_replace(true);
            std::future::pending::<()>().await;
        };
        let first::First::One(events) = first::first(scene.execute(&work, &place), stop).await
        else {
            panic!("it stops")
        };
        assert!(matches!(events.last(), Some(Event::Failed { .. })), "{events:?}");
        let result = instance.asked().pop().expect("asked").body;
        assert_eq!(result["error"], "the executor was stopped");
        let silent = Instance::start(|_, _| passing("lane_moving"));
        let scene = Scene::new(&silent, Of(|_, _| std::future::pending()));
        scene.stop.send_replace(true);
        let events = scene.execute(&work, &Fake::default()).await;
        assert!(events.is_empty(), "{events:?}");
    });
}

/// Rows from 0 on, and which were processed.
type Rows = Arc<Mutex<Vec<u64>>>;

/// A pool over this many rows of two parts: the even ones, and the odd ones. Row `bad` fails.
fn pool(rows: u64, bad: Option<u64>, done: &Rows) -> impl Handler + Clone {
    let load = move |load: Load| async move {
        let after = load.cursor.map(|cursor| cursor.parse::<u64>()).transpose()?;
        let from = after.map_or_else(|| load.part.index.into(), |after| after + 2);
        let next = (from..rows).step_by(2).take(load.limit + 1);
        Ok(next.map(|row| (row.to_string(), row)).collect())
    };
    let done = Arc::clone(done);
    let process = move |_: Arc<Shard>, row: u64| {
        let done = Arc::clone(&done);
        async move {
            // Not in their order.
            tokio::time::sleep(Duration::from_micros(row * 7_919 % 2_000)).await;
            if bad == Some(row) {
                return Err(Failed::retry(format!("row {row}")));
            }
            done.lock().push(row);
            Ok(())
        }
    };
    Pool::new(load, process)
        .parts(2)
        .producers(2)
        .consumers(7)
        .queue(20)
        .retries(1, Duration::from_millis(1))
}

#[test]
fn a_pool_goes_on_behind_its_cursor_and_processes_nothing_below_it_twice() {
    block_on(async {
        let instance = Instance::start(takes_all);
        let done = Rows::default();
        let scene = Scene::new(&instance, pool(300, Some(151), &done));
        let events = scene.execute(&record("t", "0/1", None), &Fake::default()).await;
        let Some(Event::Failed { failed, .. }) = events.last() else { panic!("{events:?}") };
        assert_eq!(failed.to_string(), "row 151");
        let cursor = instance.asked().pop().expect("asked").body["cursor"].clone();
        let cursor = cursor.as_str().expect("a cursor").to_owned();
        let parts: Vec<u64> = serde_json::from_str::<Vec<String>>(&cursor)
            .expect("a list")
            .iter()
            .map(|part| part.parse().expect("a row"))
            .collect();
        assert_eq!(parts[1], 149, "{cursor}");
        let first = std::mem::take(&mut *done.lock());
        let is_below = |row: &u64| *row <= parts[usize::from(row % 2 == 1)];
        let mut below: Vec<u64> = first.iter().copied().filter(|row| is_below(row)).collect();
        below.sort_unstable();
        assert_eq!(below, (0..300).filter(|row| is_below(row)).collect::<Vec<_>>());

        let scene = Scene::new(&instance, pool(300, None, &done));
        let events = scene.execute(&record("t", "0/1", Some(&cursor)), &Fake::default()).await;
        let Some(Event::Finished { value, .. }) = events.last() else { panic!("{events:?}") };
        let mut second = done.lock().clone();
        second.sort_unstable();
        assert_eq!(second, (0..300).filter(|row| !is_below(row)).collect::<Vec<_>>());
        assert_eq!(value["processed"], second.len());
    });
}

#[test]
fn the_counts_of_a_pool_change_while_it_runs() {
    block_on(async {
        let instance = Instance::start(takes_all);
        let (most, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (seen, now) = (Arc::clone(&most), Arc::clone(&open));
        let load = |load: Load| async move {
            let from = load.cursor.map_or(Ok(0), |cursor| cursor.parse::<u32>())?;
            Ok((from..400.min(from + 10)).map(|row| ((row + 1).to_string(), row)).collect())
        };
        let process = move |_: Arc<Shard>, _: u32| {
            let (seen, now) = (Arc::clone(&seen), Arc::clone(&now));
            async move {
                seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(2)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
        };
        let pool = Pool::new(load, process).consumers(2).queue(20);
        let handle: PoolHandle = pool.handle();
        let scene = Scene::new(&instance, pool);
        let change = async {
            let until_processed = |count: u64| {
                let handle = handle.clone();
                async move {
                    while handle.figures().processed < count {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
            };
            until_processed(50).await;
            assert_eq!(most.load(Ordering::SeqCst), 2);
            handle.set_consumers(0);
            while handle.figures().processing > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let still = handle.figures();
            assert_eq!((still.consumers, still.queue > 0), (0, true), "{still:?}");
            handle.set_producers(0);
            handle.set_consumers(5);
            while handle.figures().queue > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            handle.set_producers(1);
            until_processed(400).await;
            assert_eq!(most.load(Ordering::SeqCst), 5);
            std::future::pending::<()>().await;
        };
        let (work, place) = (record("t", "0/1", None), Fake::default());
        let first::First::One(events) = first::first(scene.execute(&work, &place), change).await
        else {
            panic!("it ends")
        };
        assert!(matches!(events.last(), Some(Event::Finished { .. })), "{events:?}");
        let ended = handle.figures();
        assert_eq!((ended.loaded, ended.processed, ended.failed, ended.queue), (400, 400, 0, 0));
        assert!(ended.process_seconds > 0.5 && ended.loading + ended.processing == 0, "{ended:?}");
    });
}

#[test]
fn a_panic_of_an_item_fails_its_shard() {
    block_on(async {
        let instance = Instance::start(takes_all);
        let load = |load: Load| async move {
            Ok(if load.cursor.is_none() { vec![("1".to_owned(), ())] } else { Vec::new() })
        };
        let pool = Pool::new(load, |_: Arc<Shard>, ()| async { panic!("a bad row") });
        let handle = pool.handle();
        let scene = Scene::new(&instance, pool);
        let events = scene.execute(&record("t", "0/1", None), &Fake::default()).await;
        let Some(Event::Failed { failed, .. }) = events.last() else { panic!("{events:?}") };
        assert_eq!(failed.to_string(), "the handler panicked: a bad row");
        assert_eq!((handle.figures().failed, handle.figures().processing), (1, 0));
    });
}

#[test]
fn what_is_wrong_with_kafka_is_told_once_with_what_to_do() {
    use rdkafka::error::RDKafkaErrorCode;
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let all = Arc::clone(&told);
    let observer = calm(Arc::new(move |event: Event| all.lock().push(event.to_string())));
    let of = |topic: &str, code| {
        let error = KafkaError::MessageConsumption(code);
        Event::Kafka { topic: topic.to_owned(), error }
    };
    let missing = RDKafkaErrorCode::UnknownTopicOrPartition;
    for _ in 0..3 {
        observer(of("a", missing));
        observer(of("a", RDKafkaErrorCode::AllBrokersDown));
        observer(of("b", missing));
        observer(Event::Moved { topic: "a".to_owned() });
    }
    let told = told.lock();
    let count = |begin: &str| told.iter().filter(|said| said.starts_with(begin)).count();
    assert_eq!(count("a: there is no such topic; create it ("), 1, "{told:?}");
    assert_eq!(count("a: no broker answers; "), 1, "{told:?}");
    assert_eq!(count("b: there is no such topic; create it ("), 1, "{told:?}");
    assert_eq!((count("a: a record went"), told.len()), (3, 6), "{told:?}");
}

/// On librdkafka's own stand-in for a broker. It is no Kafka; `tests/kafka` has that.
#[test]
fn members_share_the_shards_of_a_topic_and_one_that_joins_gets_some() {
    const SHARDS: usize = 24;
    let kafka = Embedded::start(["settlement"], 6).expect("a stand-in");
    let connection = kafka.connection();
    let instance = Instance::start(takes_all);
    let ran: Arc<Mutex<BTreeMap<u32, Vec<&'static str>>>> = Arc::default();
    let worker = |name: &'static str| {
        let ran = Arc::clone(&ran);
        let handler = Of(move |shard: Shard, _| {
            ran.lock().entry(shard.index).or_default().push(name);
            let ran = Arc::clone(&ran);
            async move {
                // The first worker's consumers are paused, and lose partitions, while it works on what they gave.
                while !ran.lock().values().flatten().any(|name| *name == "second") {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Ok(Value::Null)
            }
        });
        Worker::builder(ClientConfig::new(&*connection.brokers), instance.tasks(LONG))
            .handler("settlement", handler)
            .weight(2)
            .heartbeat(Duration::from_secs(30))
            .session(Duration::from_secs(6))
            .build()
            .expect("a worker")
    };
    let submitter = waterclock_kafka::Submitter::new(&connection).expect("a producer");
    for index in 0..SHARDS {
        let key = index.to_string();
        let shard = record("t", &format!("{index}/{SHARDS}"), None);
        submitter.submit("settlement", 6, Some(key.as_bytes()), &shard).expect("written");
    }
    block_on(async {
        let stop = watch::Sender::new(false);
        let until = || {
            let mut stop = stop.subscribe();
            async move { drop(stop.wait_for(|stop| *stop).await) }
        };
        let has_begun = |count: usize| {
            let ran = Arc::clone(&ran);
            async move {
                let by = Instant::now() + Duration::from_secs(90);
                while ran.lock().len() < count {
                    assert!(Instant::now() < by, "{:?}", ran.lock());
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        };
        let first = tokio::spawn(worker("first").run(until()));
        has_begun(2).await;
        let second = tokio::spawn(worker("second").run(until()));
        has_begun(SHARDS).await;
        stop.send_replace(true);
        for ended in [first, second] {
            ended.await.expect("no panic").expect("no error");
        }
    });
    let ran = ran.lock().clone();
    assert_eq!(ran.len(), SHARDS);
    assert!(ran.values().all(|names| names.len() == 1), "{ran:?}");
    let results = instance.asked().iter().filter(|asked| asked.is("/result")).count();
    assert_eq!(results, SHARDS);
}
