//! F50, F51: what breaks around workers while their calls are open.
//!
//! What must hold, judged by the service that is called: each task ends once and none is lost; a turn is called once, and none once
//! a later one has begun; no more calls are open than the project allows; no call begins while no worker may; the attempts that are
//! told are calls that were made, and how they were answered.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::tasks::{Api, task, with};
use crate::support::{
    Call, Cluster, Endpoint, Fixture, Launch, Mode, Process, eventually, now_ms, patient,
};

/// When the broker looks for transactions that have timed out: not while it starts.
const LATE_TIMEOUTS: &str = "transaction.abort.timed.out.transaction.cleanup.interval.ms=120000\n";
pub(super) const LANES: u16 = 4;
pub(super) const PROJECT: &str = "shop";
const TASKS: usize = 240;
/// Calls that the project may have open: one of each partition. So many tasks are with the workers that wait for their call.
const CONCURRENCY: usize = 4;
/// How long a call takes, in milliseconds.
const TAKES: u64 = 400;
/// A worker begins no call so long after the last sign that it has its partitions, and sends none that is older: the session.
const SESSION: Duration = Duration::from_secs(6);
/// How long the fault lasts.
const LASTS: Duration = Duration::from_secs(20);

/// A process with these roles; its worker may call loopback.
pub(super) fn launch<'a>(
    fixture: &'a Fixture,
    data: &str,
    roles: &str,
    brokers: &str,
) -> Launch<'a> {
    let launch = fixture.launch(Mode::ExactlyOnce).data(data).arg("--roles").arg(roles);
    launch.config("[callbacks]\nnetworks = [\"127.0.0.0/8\"]\n").brokers(brokers)
}

/// Waits until both workers have partitions.
#[track_caller]
fn share(workers: [&Process; 2]) {
    let taken = |worker: &Process| {
        let log = worker.log();
        let line = log.lines().rfind(|line| line.contains("worker has taken partitions over"));
        let count =
            line.and_then(|line| line.split_once("partitions=")?.1.split(' ').next()?.parse().ok());
        count.unwrap_or(0_u16)
    };
    eventually("both workers have partitions", || {
        let owned = workers.map(taken);
        if owned == [LANES / 2; 2] { Ok(()) } else { Err(format!("{owned:?}")) }
    });
}

/// Tasks of a project that may have few calls open, due at once; every third fails at its first call.
#[track_caller]
fn begin(api: &Api, stub: &Endpoint) -> Vec<String> {
    let (status, told) = api.answered(
        "PUT",
        &format!("/v1/projects/{PROJECT}"),
        Some(&json!({"concurrency": CONCURRENCY})),
    );
    assert_eq!(status, 200, "{told}");
    let retry = json!({"retry": {"count": 3, "interval": 1}});
    let one = |n: usize| {
        let fails = if n.is_multiple_of(3) { "&n=1" } else { "" };
        with(task(PROJECT, stub, &format!("/slow?ms={TAKES}{fails}"), "3s"), retry.clone())
    };
    let ids = api.create_all((0..TASKS).map(one).collect());
    eventually("a part of the calls has ended", || {
        let ended = stub.ended();
        // They come in waves: now one of them is open.
        let is_open = stub.begun() > stub.ended();
        if ended >= TASKS / 8 && is_open { Ok(()) } else { Err(format!("{ended}, {is_open}")) }
    });
    ids
}

/// The most calls that were open at one time.
fn most_open(calls: &[Call]) -> usize {
    let opens = calls.iter().map(|call| (call.began, 1_i32));
    let ends = calls.iter().filter_map(|call| Some((call.ended?, -1)));
    let mut changes: Vec<(u64, i32)> = opens.chain(ends).collect();
    // What ends within the same millisecond as another begins has ended first.
    changes.sort_unstable();
    let mut open = 0;
    let most = changes.into_iter().map(|(_, change)| {
        open += change;
        open
    });
    most.max().unwrap_or_default() as usize
}

/// Waits until all have finished, and checks what must hold. Says which were called more often than their attempts say.
#[track_caller]
fn check(api: &Api, stub: &Endpoint, ids: &[String]) -> Vec<Vec<Call>> {
    api.wait_for(Duration::from_secs(120), PROJECT, "finished", ids.len());
    let calls = stub.calls();
    assert!(calls.iter().all(|call| call.ended.is_some()), "a call is open though all have ended");
    assert!(most_open(&calls) <= CONCURRENCY, "{} calls were open at once", most_open(&calls));
    let mut by_task: BTreeMap<&str, Vec<Call>> = BTreeMap::new();
    for call in &calls {
        by_task.entry(call.task()).or_default().push(call.clone());
    }
    assert_eq!(by_task.len(), ids.len(), "each was called, and nothing else");
    let mut again = Vec::new();
    for id in ids {
        let of = by_task.remove(id.as_str()).unwrap_or_else(|| panic!("{id} was never called"));
        // As they began.
        let is_once = of.windows(2).all(|two| two[0].turn < two[1].turn);
        assert!(is_once, "a turn is called once, and none after a later one: {of:?}");
        let told = api.task(id);
        let attempts = told["attempts"].as_array().expect("attempts");
        assert_eq!(told["attempts_total"], attempts.len(), "{told}");
        let failed = attempts.iter().filter(|one| one["outcome"] == "failed").count();
        assert_eq!(attempts.last().map(|one| &one["outcome"]), Some(&json!("finished")), "{told}");
        for attempt in attempts {
            let nth = of.iter().position(|call| attempt["turn"] == call.turn);
            let nth = nth.unwrap_or_else(|| panic!("no such call was made: {attempt}, {of:?}"));
            let is_early = nth == 0 && of[0].target.contains("n=1");
            let want = if is_early { 500 } else { 200 };
            assert_eq!(attempt["status"], want, "{told}: {of:?}");
            let during = |at: &Value| at.as_u64().is_some_and(|at| at + 1_000 >= of[nth].began);
            assert!(during(&attempt["ended"]), "{attempt}: {of:?}");
        }
        assert_eq!(attempts.len(), failed + 1, "{told}");
        if of.len() > attempts.len() {
            again.push(of);
        }
    }
    again
}

/// None of these calls began within a time.
#[track_caller]
fn none_began(calls: &[Call], from: u64, to: u64) {
    let began: Vec<_> = calls.iter().filter(|call| (from..to).contains(&call.began)).collect();
    assert!(began.is_empty(), "{} calls began though no worker may: {began:?}", began.len());
}

#[test]
fn f50_the_broker_dies_while_calls_are_open_and_comes_back() {
    // Kafka 4.3 forgets a transaction that has timed out when its only broker starts again: it looks for those before it knows
    // the leaders, and takes their partitions for deleted (docs/reliability.md). So it looks for them later here.
    let cluster = Cluster::start(LATE_TIMEOUTS);
    let fixture = Fixture::on(cluster.connection(), "f50", |of| of.lanes = Some(LANES));
    let brokers = &cluster.bootstrap;
    let mut a = launch(&fixture, "a", "lanes,worker,api", brokers).start();
    let mut b = launch(&fixture, "b", "worker", brokers).start();
    share([&a, &b]);
    let (api, stub) = (Api::of(&a), Endpoint::start());
    let ids = begin(&api, &stub);
    let before = now_ms();
    cluster.kill();
    let killed = now_ms();
    assert!(stub.calls().iter().any(|call| call.was_open(before, killed)), "no call was open");
    std::thread::sleep(LASTS);
    let restarted = now_ms();
    cluster.restart();
    let back = Instant::now();
    let again = check(&api, &stub, &ids);
    println!(
        "f50: all are finished {:?} after the restart; {} calls were made again",
        back.elapsed(),
        again.len()
    );
    let calls = stub.calls();
    let after =
        |from: u64, to: u64| calls.iter().filter(|call| (from..to).contains(&call.began)).count();
    println!(
        "f50: {} calls began after the kill, {} in all",
        after(killed, restarted),
        calls.len()
    );
    none_began(&calls, killed + SESSION.as_millis() as u64, restarted);
    assert!(after(restarted, u64::MAX) > 0, "nothing was left to be called");
    a.stop_well();
    b.stop_well();
}

#[test]
fn f51_a_worker_that_cannot_reach_kafka_calls_nothing_that_another_has() {
    let cluster = Cluster::start("");
    let fixture = Fixture::on(cluster.connection(), "f51", |of| of.lanes = Some(LANES));
    let proxy = cluster.proxy();
    let mut a = launch(&fixture, "a", "lanes,worker,api", &cluster.bootstrap).start();
    let mut b = launch(&fixture, "b", "worker", &proxy.brokers).start();
    share([&a, &b]);
    let (api, stub) = (Api::of(&a), Endpoint::start());
    let ids = begin(&api, &stub);
    proxy.everywhere(|weather| (weather.cut_to_broker, weather.cut_to_client) = (true, true));
    let cut = now_ms();
    std::thread::sleep(LASTS);
    let healed = now_ms();
    proxy.heal();
    share([&a, &b]);
    println!("f51: it is a worker again {} ms after that", now_ms() - healed);
    let again = check(&api, &stub, &ids);
    println!("f51: {} calls were made again", again.len());
    for of in &again {
        // The cut hid how they ended.
        let hidden = of.iter().any(|call| {
            let since = cut.saturating_sub(patient(Duration::from_secs(1)).as_millis() as u64);
            (since..cut + SESSION.as_millis() as u64).contains(&call.began)
        });
        assert!(hidden, "{of:?}");
    }
    assert!(!again.is_empty(), "the cut came while calls were open");
    a.stop_well();
    b.stop_well();
}
