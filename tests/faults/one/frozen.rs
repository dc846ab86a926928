//! F4, F6: instances that stand still (SIGSTOP), for longer than their session and for less. F8: their only broker does.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::checkers::{Wish, check};
use crate::load::{Load, Mix, mode};
use crate::support::{
    Cluster, END_TXN, Fixture, Log, Mode, OFFSET_COMMIT, Process, Proxy, State, assert_promise,
    eventually, eventually_within, out, patient, tasks::command, whole, written_again,
};

/// Twice the suite's session timeout.
const LONGER_THAN_A_SESSION: Duration = Duration::from_secs(12);

#[track_caller]
fn wait_until_shared(lanes: usize, members: &[&Process]) {
    eventually("the lanes are shared", || {
        let own: Vec<usize> = members.iter().map(|member| member.lanes()).collect();
        let all = own.iter().sum::<usize>() == lanes && own.iter().all(|lanes| *lanes > 0);
        if all { Ok(()) } else { Err(format!("{own:?} of {lanes}")) }
    });
}

/// A commit is held so often at most until one had deliveries in it.
const HOLDS_MAX: usize = 6;

#[test]
fn f4_a_zombie_that_wakes_in_the_middle_of_a_commit_commits_nothing() {
    let fixture = Fixture::with("f4", |request| request.lanes = Some(6));
    let proxy = Proxy::shared();
    let through = fixture.launch(mode()).data("a").brokers(&proxy.brokers);
    let mut zombie = through.env("WATERCLOCK_INSTANCE", "zombie").start();
    let mut other = fixture.launch(mode()).data("b").start();
    wait_until_shared(6, &[&zombie, &other]);
    // So many that the commit which is held most likely finishes deliveries, too.
    let load = Load::begin(&fixture, Mix { rate: 400, ..Mix::default() });
    let mut uncommitted = Log::uncommitted(&fixture, &load.target);
    load.cancel_through(&[&other]);
    load.wait_for_more(100);

    // Whether the commit that is held has deliveries in it is chance.
    let (mut holds, mut taken_over) = (0, Duration::ZERO);
    while written_again(&uncommitted.seen) == 0 && holds < HOLDS_MAX {
        holds += 1;
        // Its commit stands on the way when it does not any more.
        let hold = match mode() {
            Mode::ExactlyOnce => {
                proxy.hold(END_TXN, &format!("{}/zombie/", fixture.namespace()), None)
            }
            Mode::AtLeastOnce => proxy.hold(OFFSET_COMMIT, "waterclock/zombie/", None),
        };
        hold.wait_until(State::Held);
        zombie.freeze();
        let frozen = Instant::now();
        wait_until_shared(6, &[&other]);
        taken_over = frozen.elapsed();
        std::thread::sleep(LONGER_THAN_A_SESSION.saturating_sub(frozen.elapsed()));
        hold.release();
        zombie.thaw();
        load.healed();
        wait_until_shared(6, &[&zombie, &other]);
        load.wait_for_more(100);
        uncommitted.read_on(Duration::from_secs(2));
    }
    let renewed = zombie.metric("waterclock_producers_renewed_total");
    let history = load.finish("f4");
    uncommitted.read_on(Duration::from_secs(1));
    zombie.stop_well();
    other.stop_well();
    let again = written_again(&uncommitted.seen);
    println!("f4: {holds} holds, taken over after {taken_over:?}, {again} were written again");
    let log = zombie.log();
    match mode() {
        Mode::ExactlyOnce => assert!(renewed >= 1.0, "the zombie was not fenced"),
        Mode::AtLeastOnce => assert!(log.contains("commit failed"), "it was not refused: {log}"),
    }
    assert!(again > 0, "what was on its way was not done again");
    // What was open when it froze times out: until then its offsets are not stable.
    check(&history, Wish { recovery: Duration::from_secs(12) });
}

/// Long enough to be felt, and less than half of what makes a commit a slow one.
const SHORT: [u64; 6] = [1_000, 2_500, 1_500, 3_500, 2_000, 3_000];

#[test]
fn f6_short_stops_cost_no_rebalance() {
    let fixture = Fixture::with("f6", |request| request.lanes = Some(6));
    let mut members = ["a", "b"].map(|name| fixture.launch(mode()).data(name).start());
    let [a, b] = &members;
    wait_until_shared(6, &[a, b]);
    let load = Load::begin(&fixture, Mix { rate: 40, ..Mix::default() });
    load.cancel_through(&[a, b]);
    load.wait_for_more(100);
    let rebalances = |member: &Process| member.log().matches("revoked partitions").count();
    let before = [rebalances(a), rebalances(b)];
    for (n, ms) in SHORT.into_iter().enumerate() {
        let member = &members[n % 2];
        member.freeze();
        std::thread::sleep(Duration::from_millis(ms));
        member.thaw();
        load.wait_for_more(60);
    }
    load.healed();
    load.wait_for_more(60);
    let [a, b] = &members;
    assert_eq!([rebalances(a), rebalances(b)], before, "lanes moved");
    let history = load.finish("f6");
    members.iter_mut().for_each(Process::stop_well);
    let late = history.late_by_more_than(1_000);
    assert!(late > 0, "nobody felt the stops");
    check(&history, Wish { recovery: Duration::from_secs(3) });
}

/// Longer than a session, than a transaction may live, and than any wait for an answer.
const BROKER_FROZEN: Duration = Duration::from_secs(25);
const BROKER_ROUNDS: usize = 3;
/// For how long a broker names no broker; a controller counts one that was fenced among the living again within a second or two.
const NAMELESS: Duration = Duration::from_secs(3);
/// From the broker's wake-up until both instances have lanes, say that they are ready, and deliver.
const BACK_WITHIN: Duration = Duration::from_secs(30);

#[test]
fn f8_after_their_only_broker_stood_still_both_instances_are_back_and_deliver() {
    let cluster = Cluster::start("");
    let fixture = Fixture::on(cluster.connection(), "f8-only", |of| of.lanes = Some(4));
    let target = fixture.target("in", 1);
    let start = |data: &str| fixture.launch(mode()).data(data).start();
    let mut members = [start("a"), start("b")];
    wait_until_shared(4, &[&members[0], &members[1]]);
    let producer = fixture.producer();
    let mut sent = Vec::new();
    for round in 0..BROKER_ROUNDS {
        cluster.pause();
        std::thread::sleep(BROKER_FROZEN);
        for member in &members {
            let ready = member.get("/health/ready").map(|told| told.0);
            assert_ne!(ready, Ok(200), "Kafka is away");
        }
        cluster.resume();
        let woken = Instant::now();
        // To all lanes, whoever has them.
        for n in 0..16 {
            let value = format!("{round}-{n}");
            let record = out(&value).key(&value).to(&target).delay(500);
            producer.send_one(&fixture.names.intake(), &record);
            sent.push(value);
        }
        let left = || patient(BACK_WITHIN).saturating_sub(woken.elapsed());
        eventually_within(left(), "both are ready and have lanes", || {
            let told = members.each_ref().map(|of| (of.get("/health/ready"), of.lanes()));
            let is_back = told.iter().all(|(ready, lanes)| {
                ready.as_ref().is_ok_and(|(code, _)| *code == 200) && *lanes == 2
            });
            if is_back { Ok(()) } else { Err(format!("{told:?}")) }
        });
        eventually_within(left(), "all is delivered", || {
            let there = whole(&fixture, &target).len();
            if there >= sent.len() { Ok(()) } else { Err(format!("{there} of {}", sent.len())) }
        });
        println!("f8: round {round}, back after {:?}", woken.elapsed());
    }
    assert_promise(mode(), sent, &whole(&fixture, &target));
    for member in &mut members {
        member.stop_well();
        let log = member.log();
        assert!(!log.contains("none tells its time"), "the topic can be written:\n{log}");
    }
}

/// A broker that was frozen wakes, and answers before its controller counts it among the living. librdkafka forgets all its brokers
/// by such an answer. Where nothing was silent before, the lanes' consumer alone may do so, and its group may still be heard.
#[test]
fn f8_a_broker_that_names_no_broker_for_a_moment_is_found_again() {
    let cluster = Cluster::start("");
    let fixture = Fixture::on(cluster.connection(), "f8-nameless", |of| of.lanes = Some(2));
    let (target, other) = (fixture.target("out", 1), fixture.target("other", 1));
    let proxy = cluster.proxy();
    let mut process = fixture.launch(mode()).brokers(&proxy.brokers).start();
    let producer = fixture.producer();
    let mut sent = Vec::new();
    for round in 0..8 {
        let (is_silent_before, breaks_again) = (round < 4, round % 2 == 1);
        if is_silent_before {
            // Nothing is heard of it for as long as its controller waits before it fences it, and a little longer.
            proxy.everywhere(|weather| weather.cut_to_client = true);
            std::thread::sleep(Duration::from_secs(10));
            proxy.everywhere(|weather| weather.cut_to_client = false);
        }
        proxy.everywhere(|weather| weather.no_brokers = true);
        proxy.reset(0);
        std::thread::sleep(if is_silent_before { NAMELESS } else { 2 * NAMELESS });
        if breaks_again {
            proxy.reset(0);
        }
        proxy.heal();
        let woken = Instant::now();
        for n in 0..8 {
            let value = format!("{round}-{n}");
            let record = out(&value).key(&value).to(&target).delay(500);
            producer.send_one(&fixture.names.intake(), &record);
            sent.push(value);
        }
        // Without a silence nothing tells, until it is seen that a partition grows and is not fetched.
        let within = patient(if is_silent_before { BACK_WITHIN } else { 2 * BACK_WITHIN });
        eventually_within(within, "all is delivered", || {
            let there = whole(&fixture, &target).len();
            if there >= sent.len() { Ok(()) } else { Err(format!("{there} of {}", sent.len())) }
        });
        eventually_within(within, "it is ready", || {
            let ready = process.get("/health/ready")?;
            if ready.0 == 200 { Ok(()) } else { Err(ready.1) }
        });
        // What is in force comes by the meta topic, which a client of its own reads.
        let word = if round % 2 == 0 { "pause" } else { "resume" };
        eventually_within(within, "what is changed is in force", || {
            let told = command(&process, &["target", word, &other, "--json"]);
            let (_, shown) = process.get(&format!("/v1/targets/{other}"))?;
            let is_paused =
                serde_json::from_str::<Value>(&shown).is_ok_and(|shown| shown["paused"] == true);
            if is_paused == (word == "pause") { Ok(()) } else { Err(format!("{told:?}, {shown}")) }
        });
        let counts = process.log().matches("a partition is not fetched").count();
        println!("f8: round {round}, back after {:?}; not fetched: {counts}", woken.elapsed());
    }
    assert_promise(mode(), sent, &whole(&fixture, &target));
    process.stop_well();
}
