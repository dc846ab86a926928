//! F35, F38, F43, F48: threads that stand still, quotas, limits of the system, and foreign transactions that hang.

use std::time::{Duration, Instant};

use rdkafka::producer::Producer as _;

use crate::checkers::{Wish, arrivals, check};
use crate::load::{Load, Mix, STAMPED, mode};
use crate::support::{Fixture, Mode, PATIENCE, eventually, open_transaction, out, patience, tool};

#[test]
fn f35_a_lane_thread_that_does_not_poll_in_time_loses_its_lanes_and_joins_again() {
    let fixture = Fixture::with("f35", |request| request.lanes = Some(4));
    let slow_points = "short_poll_interval=return;lane_stalls=400*off->1*sleep(16000)->off";
    // A worker would take the one stall in the place of the lanes, now and then.
    let slow = fixture.launch(mode()).data("a").arg("--roles").arg("lanes,api");
    let mut slow = slow.env("FAILPOINTS", slow_points).start();
    let mut other = fixture.launch(mode()).data("b").start();
    let load = Load::begin(&fixture, Mix::default());
    eventually("the other has all lanes", || {
        let own = other.lanes();
        if own == 4 { Ok(()) } else { Err(format!("{own}")) }
    });
    eventually("the slow one has joined again", || {
        let (own, others) = (slow.lanes(), other.lanes());
        if own > 0 && own + others == 4 { Ok(()) } else { Err(format!("{own} and {others}")) }
    });
    load.healed();
    load.cancel_through(&[&slow, &other]);
    load.wait_for_more(100);
    let history = load.finish("f35");
    slow.stop_well();
    other.stop_well();
    let log = slow.log();
    assert!(log.contains("lost=true"), "it did not lose its lanes: {log}");
    check(&history, Wish { recovery: Duration::from_secs(12) });
}

/// The client is asked to commit, and does not come back for an hour.
#[test]
fn f35_a_client_that_never_comes_back_is_left_behind() {
    let fixture = Fixture::new("f35-hangs");
    let hangs = "commit_hangs=100*off->1*sleep(3600000)->off";
    // Else a worker may be the one that hangs.
    let process = fixture.launch(Mode::ExactlyOnce).arg("--roles").arg("lanes,api");
    let mut process = process.env("FAILPOINTS", hangs).start();
    let load = Load::begin(&fixture, Mix { rate: 20, ..Mix::default() });
    eventually("it starts again", || {
        let log = process.log();
        if log.contains("hangs for") { Ok(()) } else { Err(format!("{} were seen", load.seen())) }
    });
    load.healed();
    load.cancel_through(&[&process]);
    load.wait_for_more(100);
    let history = load.finish("f35-hangs");
    // What hangs is not waited for.
    process.stop_well();
    check(&history, Wish { recovery: Duration::from_secs(12) });
}

/// The process loses its lanes while it is asked to commit, and it comes back when they have long been taken over again.
#[test]
fn f35_a_client_that_comes_back_after_its_lanes_were_taken_over_again_commits_nothing() {
    let fixture = Fixture::new("f35-late");
    let hangs = "commit_hangs=100*off->1*sleep(30000)->off";
    // Else a worker may be the one that hangs.
    let process = fixture.launch(Mode::ExactlyOnce).arg("--roles").arg("lanes,api");
    let mut process = process.env("FAILPOINTS", hangs).start();
    let load = Load::begin(&fixture, Mix { rate: 20, ..Mix::default() });
    let mut last = (load.seen(), Instant::now());
    eventually("it hangs", || {
        if load.seen() != last.0 {
            last = (load.seen(), Instant::now());
        }
        let (seen, since) = (last.0, last.1.elapsed());
        let hangs = seen > 0 && since > Duration::from_secs(2);
        if hangs { Ok(()) } else { Err(format!("{seen} were seen, the last {since:?} ago")) }
    });
    // Beyond its session, so that the group gives its lanes away and it has them back.
    process.freeze();
    std::thread::sleep(Duration::from_secs(8));
    process.thaw();
    load.healed();
    load.wait_for_more(60);
    assert!(process.log().contains("lost=true"), "it did not lose its lanes: {}", process.log());
    process.wait_until_logged(PATIENCE, "an abandoned committer came back");
    load.cancel_through(&[&process]);
    load.wait_for_more(60);
    let history = load.finish("f35-late");
    process.stop_well();
    // What hangs does so for twice as long.
    check(&history, Wish { recovery: Duration::from_secs(10) });
}

/// Changes the quota of one `client.id`.
#[track_caller]
fn quota(client: &str, change: [&str; 2]) {
    let of_client = ["--alter", "--entity-type", "clients", "--entity-name", client];
    tool("kafka.admin.ConfigCommand", &[&of_client[..], &change].concat());
}

#[test]
fn f38_a_quota_of_the_broker_makes_it_late_and_breaks_nothing() {
    let fixture = Fixture::new("f38");
    let mut process = fixture.launch(mode()).env("WATERCLOCK_INSTANCE", "throttled").start();
    let load = Load::begin(&fixture, Mix { rate: 40, ..Mix::default() });
    load.cancel_through(&[&process]);
    load.wait_for_more(60);
    let clients = [0, 1].map(|turn| format!("{}/throttled/0/{turn}", fixture.namespace()));
    clients.iter().for_each(|id| quota(id, ["--add-config", "producer_byte_rate=1500"]));
    std::thread::sleep(Duration::from_secs(12));
    clients.iter().for_each(|id| quota(id, ["--delete-config", "producer_byte_rate"]));
    load.healed();
    load.wait_for_more(100);
    let history = load.finish("f38");
    process.stop_well();
    assert!(history.late_by_more_than(2_000) > 0, "nobody felt the quota");
    check(&history, Wish { recovery: Duration::from_secs(20) });
}

#[test]
fn f43_a_process_with_too_few_files_says_so_and_breaks_nothing() {
    let fixture = Fixture::new("f43");
    let load = Load::begin(&fixture, Mix::default());
    let limited = ["prlimit", "--nofile=64"];
    let mut process = fixture.launch(mode()).through(&limited).spawn();
    process.wait_until_logged(PATIENCE, "the limit of open files is low");
    // It meets the limit, and then is not ready, or it is and delivers; both are right.
    eventually("it meets the limit", || {
        let open =
            std::fs::read_dir(format!("/proc/{}/fd", process.pid())).expect("it runs").count();
        let seen = process.log().contains("Too many open files");
        if seen { Ok(()) } else { Err(format!("{open} are open")) }
    });
    let ready = process.get("/health/ready").map(|(code, _)| code);
    println!("f43: ready with 64 files: {ready:?}");
    process.kill();
    load.healed();
    process = fixture.start(mode());
    load.cancel_through(&[&process]);
    load.wait_for_more(100);
    let history = load.finish("f43");
    process.stop_well();
    check(&history, Wish { recovery: Duration::from_secs(15) });
}

/// How long the foreign transaction hangs.
const HANGS: Duration = Duration::from_secs(12);

/// A transaction that hangs in a partition of a topic of waterclock's: others go on, and nothing is lost.
#[track_caller]
fn hangs_in(name: &str, topic: impl Fn(&Fixture) -> String) {
    let fixture = Fixture::new(name);
    let mut process = fixture.launch(mode()).env("WATERCLOCK_FOREIGN_WAIT", "5s").start();
    let load = Load::begin(&fixture, Mix::default());
    load.cancel_through(&[&process]);
    load.wait_for_more(100);
    let foreign = open_transaction(&fixture, &topic(&fixture), Some(1), &out("foreign"));
    std::thread::sleep(HANGS);
    let waits = process.metric("waterclock_foreign_waits_total");
    foreign.abort_transaction(PATIENCE).expect("aborted");
    load.healed();
    load.wait_for_more(60);
    let history = load.finish(name);
    process.stop_well();
    let late = |lane: bool| {
        let of = |n: usize| history.sent[n].ack.is_some_and(|ack| (ack.partition == 1) == lane);
        // What was held up was so on any machine.
        let most = if lane { 5_000 } else { 5_000 * u64::from(patience()) };
        let late = arrivals(&history).filter(|(n, rec, due)| of(*n) && rec.at > due + most);
        late.count()
    };
    println!(
        "{name}: {} of its lane were late, {} of the others, {waits} waits",
        late(true),
        late(false)
    );
    assert!(late(true) > 0, "the transaction held nothing up");
    assert_eq!(late(false), 0, "others are not held up");
    check(&history, Wish { recovery: Duration::from_secs(5) });
}

#[test]
fn f48_a_foreign_transaction_that_hangs_in_a_tier_holds_up_its_lane_only() {
    hangs_in("f48-tier", |fixture| fixture.lane_topics().pop().expect("a tier"));
}

#[test]
fn f48_a_foreign_transaction_that_hangs_in_an_intake_holds_up_its_lane_only() {
    hangs_in("f48-intake", |fixture| fixture.names.intake());
}

#[test]
fn f48_a_foreign_transaction_that_hangs_in_a_target_is_not_felt_by_waterclock() {
    let fixture = Fixture::new("f48-target");
    let mut process = fixture.start(mode());
    // The reader is held up, so only the broker's timestamps tell when each record was there.
    let load = Load::begin(&fixture, Mix { target: STAMPED.to_vec(), ..Mix::default() });
    load.cancel_through(&[&process]);
    load.wait_for_more(100);
    // One of waterclock's own kind, so that the checkers know it: it is aborted.
    let foreign = open_transaction(&fixture, &load.target, Some(1), &out("foreign"));
    let before = load.seen();
    std::thread::sleep(HANGS);
    let others = load.seen() - before;
    foreign.abort_transaction(PATIENCE).expect("aborted");
    load.wait_for_more(60);
    let history = load.finish("f48-target");
    process.stop_well();
    let there = history.late.iter().filter(|rec| rec.partition != 1).count();
    assert!(others > 0 && there > 0, "readers of other partitions went on");
    check(&history, Wish { recovery: Duration::from_secs(3) });
}
