//! A Kafka target that somebody pauses, or gives a rate: what is due for it waits, whether timers or tasks send it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use waterclock::engine::murmur2;

use super::{Api, LANES, with};
use crate::support::{
    Fixture, Log, Mode, Out, Rec, assert_each_once, eventually_within, in_both_modes, now_ms, out,
    patience, patient, waterclock, whole,
};

in_both_modes!(
    what_is_due_for_a_paused_target_waits_and_comes_once_and_in_order_after_the_end,
    what_finds_no_room_in_memory_for_a_paused_target_comes_once_after_the_end,
    a_pause_stops_what_is_delivered_all_the_time_within_two_seconds,
    what_is_over_the_rate_of_a_target_comes_once_at_that_rate_while_lanes_move,
);

/// Tasks of a project that is paused, and of one that is not.
const OF_PROJECT: usize = 60;

const PROJECT: &str = "shop";
const RECORDS: usize = 120;
/// So many of them are due before the pause ends.
const PAUSED: usize = 90;
/// Records that are due after the pause are not in order any more where they come later than that, in milliseconds.
const LATE: u64 = 100;
/// Between two records of one target, in milliseconds.
const APART: u64 = 40;

fn fixture(test: &str, mode: Mode) -> Fixture {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    Fixture::with(&format!("{test}-{short}"), |request| request.lanes = Some(LANES))
}

/// `waterclock target`, about one topic.
#[track_caller]
pub(super) fn target(fixture: &Fixture, command: &str, topic: &str) -> Value {
    target_with(fixture, command, topic, &[])
}

/// The same with these options.
#[track_caller]
fn target_with(fixture: &Fixture, command: &str, topic: &str, options: &[&str]) -> Value {
    let mut asked = waterclock();
    asked.args(["target", command, topic, "--json"]).args(options);
    asked.args(["--brokers", &fixture.connection.brokers, "--namespace", fixture.namespace()]);
    let told = asked.output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, error) = (text(&told.stdout), text(&told.stderr));
    assert!(told.status.success(), "target {command}: {said} {error}");
    serde_json::from_str(&said).unwrap_or_else(|_| panic!("{command}: {said}"))
}

#[track_caller]
fn is_paused(api: &Api, topic: &str) -> Value {
    let (status, told) = api.answered("GET", &format!("/v1/targets/{topic}"), None);
    assert_eq!(status, 200, "{told}");
    told["paused"].clone()
}

/// The record of a number for a target, due then.
fn record(n: usize, to: &str, due: u64) -> Out {
    let due = due.to_string();
    out(n.to_string()).key(format!("k{}", n % 7)).to(to).header("x-delay-until", due)
}

/// The same as a task.
fn task(n: usize, to: &str, due: u64) -> Value {
    json!({
        "type": "kafka", "project": PROJECT, "group": "g", "trigger_at": due,
        "topic": to, "key": format!("k{}", n % 7), "value": n.to_string(),
    })
}

/// What the API says of a cancel of a timer.
#[track_caller]
fn cancel(api: &Api, id: &str, key: &str) -> Value {
    let (status, told) =
        api.answered("DELETE", &format!("/v1/timers/{id}?key={key}&wait=20s"), None);
    assert_eq!(status, 200, "{told}");
    told["outcome"].clone()
}

fn numbers(seen: &[Rec]) -> Vec<usize> {
    seen.iter().map(|rec| rec.text().parse().expect("a number")).collect()
}

fn what_is_due_for_a_paused_target_waits_and_comes_once_and_in_order_after_the_end(mode: Mode) {
    let has_tasks = mode == Mode::ExactlyOnce;
    let fixture = fixture("tasks-target", mode);
    let (paused, other) = (fixture.timed_target("paused", 1), fixture.timed_target("other", 1));
    let mut process = fixture.start(mode);
    let api = Api::of(&process);
    assert_eq!(target(&fixture, "pause", &paused), json!({"revision": 1}));
    assert_eq!([&paused, &other].map(|topic| is_paused(&api, topic)), [json!(true), json!(false)]);

    // It is in force within two seconds. The numbers are in the order of due times, the records are not.
    let first = now_ms() + 4_000;
    let due = |n: usize| {
        let later = if n < PAUSED { 0 } else { 6_000 };
        first + n as u64 * APART + later
    };
    let mixed = || (0..RECORDS).map(|n| n * 77 % RECORDS);
    let (producer, intake) = (fixture.producer(), fixture.names.intake());
    let is_task = |n: usize| has_tasks && n.is_multiple_of(3);
    for to in [&paused, &other] {
        for n in mixed().filter(|n| !is_task(*n)) {
            producer.send(&intake, &record(n, to, due(n)));
        }
    }
    let timer = record(RECORDS, &paused, due(1)).key("cancelled").header("x-delay-id", "timer");
    producer.send(&intake, &timer);
    producer.acks();
    let tasks: Vec<usize> = mixed().filter(|n| is_task(*n)).collect();
    let mut cancelled_task = None;
    if has_tasks {
        let of = |to: &str| tasks.iter().map(|n| task(*n, to, due(*n))).collect::<Vec<_>>();
        api.create_all([of(&paused), of(&other)].concat());
        cancelled_task = api.create_all(vec![task(RECORDS, &paused, due(1))]).pop();
    }
    assert!(now_ms() < first, "this machine is too slow for this test");

    // All of the other target come, each in time; of the paused one nothing.
    let seen = Log::open(&fixture, &other).count(PAUSED).to_vec();
    for (n, rec) in numbers(&seen).into_iter().zip(&seen) {
        let most = due(n) + 2_000 * u64::from(patience());
        assert!((due(n)..most).contains(&rec.at), "due {}: {rec:?}", due(n));
    }
    let waiting = || api.list(&format!("project={PROJECT}&status=ready"));
    if let Some(id) = &cancelled_task {
        let before_the_end = tasks.iter().filter(|n| **n < PAUSED).count();
        let waiting = eventually_within(Duration::from_secs(10), "the tasks are ready", || {
            let found = waiting();
            if found.len() == before_the_end + 1 { Ok(found) } else { Err(format!("{found:?}")) }
        });
        let waits_for: BTreeSet<_> = waiting.iter().map(|of| of["waits_for"].as_str()).collect();
        assert_eq!(waits_for, BTreeSet::from([Some("paused")]));
        assert_eq!(api.cancel(id), "cancelled");
        assert_eq!(api.task(id)["task_status"], "cancelled");
    }
    assert_eq!(cancel(&api, "timer", "cancelled"), "cancelled");
    assert_eq!(whole(&fixture, &paused), [], "nothing went to the paused target");
    assert!(now_ms() < due(PAUSED), "this machine is too slow for this test");

    let ended = now_ms();
    assert_eq!(target(&fixture, "resume", &paused), json!({"revision": 2}));
    let resumed = Instant::now();
    Log::open(&fixture, &paused).count(PAUSED);
    println!("{PAUSED} came {:?} after the end of the pause, {mode:?}", resumed.elapsed());
    for topic in [&paused, &other] {
        Log::open(&fixture, topic).count(RECORDS);
    }
    fixture.wait_until_nothing_is_pending();
    let all = whole(&fixture, &paused);
    assert_each_once((0..RECORDS).map(|n| n.to_string()), &all);
    // What the pause held back is late by the pause alone. What is due after it is in order if this machine kept its times.
    let in_time = |(n, rec): (usize, &Rec)| n < PAUSED || rec.at < due(n) + LATE;
    let ordered = if numbers(&all).into_iter().zip(&all).all(in_time) { RECORDS } else { PAUSED };
    assert_eq!(numbers(&all)[..ordered], (0..ordered).collect::<Vec<_>>(), "by due time");
    let early = all.iter().enumerate().find(|(n, rec)| rec.at < ended.max(due(*n)));
    assert!(early.is_none(), "{early:?}");
    assert_each_once((0..RECORDS).map(|n| n.to_string()), &whole(&fixture, &other));
    assert_eq!(whole(&fixture, &fixture.names.dead()), []);
    if has_tasks {
        api.wait_for(Duration::from_secs(10), PROJECT, "finished", 2 * tasks.len());
    }
    process.stop_well();
}

#[test]
fn kafka_tasks_of_a_paused_project_are_delivered_once_after_the_end_and_cancelled_ones_never() {
    let fixture = fixture("tasks-paused-kafka", Mode::ExactlyOnce);
    let (paused, other) = (fixture.timed_target("paused", 2), fixture.timed_target("other", 2));
    let mut process = fixture.start(Mode::ExactlyOnce);
    let api = Api::of(&process);
    let act = |action: &str| {
        let (status, told) =
            api.answered("POST", &format!("/v1/projects/{PROJECT}:{action}"), None);
        assert_eq!(status, 200, "{told}");
    };
    act("pause");
    // It is in force within two seconds.
    let due = now_ms() + 3_000;
    let of = |to: &str, project: &str| -> Vec<Value> {
        let one = |n| with(task(n, to, due + n as u64), json!({ "project": project }));
        (0..OF_PROJECT).map(one).collect()
    };
    let ids = api.create_all(of(&paused, PROJECT));
    api.create_all(of(&other, "other"));
    let within = Duration::from_secs(20);
    api.wait_for(within, "other", "finished", OF_PROJECT);
    let waiting = api.wait_for(within, PROJECT, "ready", OF_PROJECT);
    let waits_for: BTreeSet<_> = waiting.iter().map(|of| of["waits_for"].as_str()).collect();
    assert_eq!(waits_for, BTreeSet::from([Some("paused")]));
    for id in ids.iter().step_by(3) {
        assert_eq!(api.cancel(id), "cancelled");
    }
    // Some of them come up and wait again.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(whole(&fixture, &paused), [], "the project is paused");
    let ended = now_ms();
    act("resume");
    let is_left = |n: &usize| !n.is_multiple_of(3);
    let left: Vec<usize> = (0..OF_PROJECT).filter(is_left).collect();
    api.wait_for(within, PROJECT, "finished", left.len());
    println!("all were delivered {} ms after the end of the pause", now_ms() - ended);
    let cancelled = api.wait_for(within, PROJECT, "cancelled", OF_PROJECT - left.len());
    assert!(cancelled.iter().all(|task| task["attempts_total"] == 0), "{cancelled:?}");
    let seen = whole(&fixture, &paused);
    assert!(seen.iter().all(|rec| rec.at >= ended), "before the end at {ended}: {seen:?}");
    assert_each_once(left.iter().map(usize::to_string), &seen);
    let all = (0..OF_PROJECT).map(|n| n.to_string());
    assert_each_once(all, &whole(&fixture, &other));
    assert_eq!(whole(&fixture, &fixture.names.dead()), []);
    process.stop_well();
}

/// Bytes of a large value; more than the eighth of the budget that a paused target may keep in memory.
const LARGE: usize = 100_000;
const LARGE_RECORDS: usize = 120;

fn what_finds_no_room_in_memory_for_a_paused_target_comes_once_after_the_end(mode: Mode) {
    let fixture = fixture("tasks-target-large", mode);
    let paused = fixture.timed_target("paused", 2);
    let launch = fixture.launch(mode).env("WATERCLOCK_MEMORY", "32MiB");
    let mut process = launch.start();
    target(&fixture, "pause", &paused);
    let (producer, intake) = (fixture.producer(), fixture.names.intake());
    let id = |n: usize| format!("{n} {}", "x".repeat(LARGE));
    let due = now_ms() + 4_000;
    for n in 0..LARGE_RECORDS {
        let record = out(id(n)).key(format!("k{n}")).to(&paused);
        producer.send(&intake, &record.header("x-delay-until", (due + n as u64).to_string()));
    }
    producer.acks();
    let tiers = || process.metric("waterclock_put_off_paused_total");
    eventually_within(Duration::from_secs(30), "some wait in tiers", || {
        if tiers() > 0.0 { Ok(()) } else { Err("none does".to_owned()) }
    });
    // Those come up again meanwhile, and wait again.
    let first = tiers();
    eventually_within(Duration::from_secs(30), "they wait again", || {
        let again = tiers();
        if again > first + 2.0 { Ok(()) } else { Err(format!("{again} after {first}")) }
    });
    assert_eq!(whole(&fixture, &paused), [], "nothing went to the paused target");
    assert_eq!(process.metric("waterclock_put_off_total"), 0.0, "no target is away");
    target(&fixture, "resume", &paused);
    let resumed = Instant::now();
    Log::open(&fixture, &paused).ids(LARGE_RECORDS);
    println!("all came {:?} after the end of the pause, {mode:?}", resumed.elapsed());
    assert!(resumed.elapsed() < Duration::from_secs(40) * patience(), "as docs/tasks.md says");
    fixture.wait_until_nothing_is_pending();
    process.stop_well();
    assert_each_once((0..LARGE_RECORDS).map(id), &whole(&fixture, &paused));
}

/// Records that are due one after the other.
const FLOWING: usize = 2_000;
/// Between two of them, in milliseconds.
const FLOW_APART: u64 = 10;
/// So many of them in a second are all the time.
const FLOW: usize = 60;

fn a_pause_stops_what_is_delivered_all_the_time_within_two_seconds(mode: Mode) {
    let has_tasks = mode == Mode::ExactlyOnce;
    let fixture = fixture("tasks-target-flow", mode);
    let flowing = fixture.timed_target("flowing", 1);
    let mut process = fixture.start(mode);
    let api = Api::of(&process);
    let first = now_ms() + 3_000;
    let due = |n: usize| first + n as u64 * FLOW_APART;
    let (tasks, timers): (Vec<_>, Vec<_>) =
        (0..FLOWING).partition(|n: &usize| has_tasks && n.is_multiple_of(3));
    let (producer, intake) = (fixture.producer(), fixture.names.intake());
    for n in timers {
        producer.send(&intake, &record(n, &flowing, due(n)));
    }
    producer.acks();
    if has_tasks {
        api.create_all(tasks.iter().map(|n| task(*n, &flowing, due(*n))).collect());
    }
    let mut log = Log::open(&fixture, &flowing);
    log.until("records come all the time", |seen| {
        let since = now_ms() - 1_000;
        seen.iter().filter(|rec| rec.at > since).count() >= FLOW
    });
    target(&fixture, "pause", &flowing);
    let answered = now_ms();
    let most = patient(Duration::from_secs(2));
    std::thread::sleep(most + Duration::from_secs(3));
    let seen = whole(&fixture, &flowing);
    let last = seen.iter().map(|rec| rec.at).max().expect("records");
    let late = last.saturating_sub(answered);
    println!("the last of {} records came {late} ms after the answer, {mode:?}", seen.len());
    assert!(late < most.as_millis() as u64, "{late} ms after the answer");
    assert!(now_ms() < due(FLOWING - FLOW), "there was nothing left to deliver");
    target(&fixture, "resume", &flowing);
    Log::open(&fixture, &flowing).count(FLOWING);
    fixture.wait_until_nothing_is_pending();
    assert_each_once((0..FLOWING).map(|n| n.to_string()), &whole(&fixture, &flowing));
    process.stop_well();
}

/// Records per second that a target takes, and how many are due for it at once.
const RATE: u64 = 20;
const RATED: usize = 200;
/// Of another target so many are due then.
const BESIDE: usize = 20;
/// For so long a record that has its token may be on its way to Kafka, in milliseconds, while nothing goes wrong.
const ON_ITS_WAY: u64 = 1_000;

/// A key of each lane in turn, so that each has its share of them.
fn spread(n: usize) -> String {
    let lane = (n % usize::from(LANES)) as u16;
    let mut keys = (0..).map(|of| format!("{n}-{of}"));
    keys.find(|key| murmur2::partition(key.as_bytes(), LANES) == lane).expect("there is one")
}

fn what_is_over_the_rate_of_a_target_comes_once_at_that_rate_while_lanes_move(mode: Mode) {
    let has_tasks = mode == Mode::ExactlyOnce;
    let fixture = fixture("tasks-target-rate", mode);
    let (rated, other) = (fixture.timed_target("rated", 1), fixture.timed_target("other", 1));
    let mut first = fixture.launch(mode).data("a").start();
    let api = Api::of(&first);
    let rate = RATE.to_string();
    let put = target_with(&fixture, "put", &rated, &["--rate", &rate, "--if-revision", "0"]);
    assert_eq!(put, json!({"revision": 1}));
    let want = json!({"topic": rated, "revision": 1, "paused": false, "rate": 20.0, "burst": 20});
    assert_eq!(target(&fixture, "get", &rated), want);

    // It is in force within two seconds, and a second later no lane lacks a token.
    let due = now_ms() + 5_000;
    let (producer, intake) = (fixture.producer(), fixture.names.intake());
    let (tasks, timers): (Vec<_>, Vec<_>) =
        (0..RATED).partition(|n| has_tasks && n / usize::from(LANES) % 2 == 0);
    for n in &timers {
        producer.send(&intake, &record(*n, &rated, due).key(spread(*n)));
    }
    for n in 0..BESIDE {
        producer.send(&intake, &record(n, &other, due).key(spread(n)));
    }
    producer.acks();
    if has_tasks {
        let of = |n: &usize| with(task(*n, &rated, due), json!({"key": spread(*n)}));
        api.create_all(tasks.iter().map(of).collect());
    }
    assert!(now_ms() < due - 1_000, "this machine is too slow for this test");

    let seen = Log::open(&fixture, &other).count(BESIDE).to_vec();
    let late = seen.iter().map(|rec| rec.at - due).max().expect("records");
    println!("the other target had its records {late} ms after they were due, {mode:?}");
    assert!(late < patient(Duration::from_secs(2)).as_millis() as u64, "{late} ms late");
    let mut log = Log::open(&fixture, &rated);
    log.count(RATED / 4);
    if has_tasks {
        let ready = api.list(&format!("project={PROJECT}&status=ready"));
        let waits_for: BTreeSet<_> = ready.iter().map(|of| of["waits_for"].as_str()).collect();
        assert_eq!(waits_for, BTreeSet::from([Some("limit")]), "{ready:?}");
    }
    // What waits is gone with its lanes, and so are their tokens: another instance takes half of them over.
    let mut second = fixture.launch(mode).data("b").start();
    let seen = log.ids(RATED).to_vec();
    let took = seen.iter().map(|rec| rec.at).max().expect("records") - due;
    println!("{RATED} records took {took} ms at {RATE} in a second, {mode:?}");
    let least = (RATED as u64 - RATE) * 1_000 / RATE;
    let most = Duration::from_secs(15) * patience();
    assert!((least..most.as_millis() as u64).contains(&took), "{took} ms");
    let mut at: Vec<u64> = seen.iter().map(|rec| rec.at).collect();
    at.sort_unstable();
    for (from, first) in at.iter().enumerate() {
        for (to, last) in at.iter().enumerate().skip(from) {
            let (count, ms) = ((to - from + 1) as u64, last - first);
            let may = RATE + RATE * (ms + ON_ITS_WAY) / 1_000;
            assert!(count <= may, "{count} in {ms} ms, and {may} may");
        }
    }
    fixture.wait_until_nothing_is_pending();
    if has_tasks {
        api.wait_for(Duration::from_secs(20), PROJECT, "finished", tasks.len());
    }
    first.stop_well();
    second.stop_well();
    let all = || (0..RATED).map(|n| n.to_string());
    match mode {
        Mode::ExactlyOnce => assert_each_once(all(), &whole(&fixture, &rated)),
        // Lanes that move may have a record delivered twice.
        Mode::AtLeastOnce => {
            let seen: BTreeSet<String> = whole(&fixture, &rated).iter().map(Rec::text).collect();
            assert_eq!(seen, all().collect());
        }
    }
    assert_each_once((0..BESIDE).map(|n| n.to_string()), &whole(&fixture, &other));
    assert_eq!(whole(&fixture, &fixture.names.dead()), []);
}
