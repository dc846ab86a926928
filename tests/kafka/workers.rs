//! Workers: members of `<ns>-workers`, which make the calls of tasks and write what became of them.
//!
//! What must hold whatever happens: of each turn one result is committed; no call begins twice; of nothing that began is said
//! that it never did.

mod process;
mod records;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use crate::support::{
    Cluster, END_TXN, Fixture, Log, Nodes, Proxy, State, TXN_OFFSET_COMMIT, eventually, now_ms,
    patient,
};
use process::{Launch, Line, Worker};
use records::{Said, Tasks, task_id};

const LANES: u16 = 4;
/// What a worker logs of a batch that failed.
const FAILED: &str = "batch failed, renewing the producer";

fn fixture(test: &str) -> Fixture {
    Fixture::with(test, |request| request.lanes = Some(LANES))
}

/// Waits until so many turns have a result that ends them.
#[track_caller]
fn wait_for_results(fixture: &Fixture, tasks: &Tasks<'_>, count: usize) {
    let mut log = Log::open(fixture, tasks.results_topic());
    log.until(&format!("{count} results"), |seen| {
        let ends = seen.iter().map(Said::of).filter(|said| said.outcome != "started");
        ends.map(|said| said.id).collect::<BTreeSet<_>>().len() >= count
    });
}

/// What was said of each turn, by its id, without that its call is open.
fn by_id(said: &[Said]) -> BTreeMap<String, Vec<Said>> {
    let mut found: BTreeMap<String, Vec<Said>> = BTreeMap::new();
    for said in said.iter().filter(|said| said.outcome != "started") {
        found.entry(said.id.clone()).or_default().push(said.clone());
    }
    found
}

/// Checks what must hold, and says how many results there are of each kind.
#[track_caller]
fn check(count: usize, said: &[Said], calls: &[Line]) -> BTreeMap<String, usize> {
    let (said, mut kinds) = (by_id(said), BTreeMap::new());
    let mut begun: BTreeMap<&str, usize> = BTreeMap::new();
    for line in calls.iter().filter(|line| line.what == "began") {
        *begun.entry(&line.id).or_default() += 1;
    }
    let twice: Vec<_> = begun.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "calls began twice: {twice:?}");
    for n in 0..count {
        let id = task_id(n);
        let of = said.get(id.as_str()).map(Vec::as_slice).unwrap_or_default();
        let [one] = of else { panic!("task {n} ({}) has results {of:?}", id.as_str()) };
        assert_eq!(one.partition, i32::from(id.lane_of(LANES).0), "the lane of the task");
        let began = begun.contains_key(id.as_str());
        let is_right = match one.outcome.as_str() {
            "finished" => began,
            "interrupted" => one.in_doubt || began,
            "cancelled" | "deferred" => !began,
            _ => false,
        };
        assert!(is_right, "task {n} began: {began}, and {one:?}");
        let kind = if one.in_doubt { "in doubt" } else { &*one.outcome };
        *kinds.entry(kind.to_owned()).or_default() += 1;
    }
    assert_eq!(said.len(), count, "nothing else has a result");
    println!("results: {kinds:?}; calls begun: {}", begun.len());
    kinds
}

fn calls(workers: &[&Worker]) -> Vec<Line> {
    workers.iter().flat_map(|worker| worker.calls()).collect()
}

/// The committed positions of the workers' group in a topic: offset and metadata.
fn positions(fixture: &Fixture, topic: &str) -> Vec<(i64, String)> {
    let group = format!("{}-workers", fixture.namespace());
    let mut config = fixture.client();
    config.set("group.id", group).set("isolation.level", "read_committed");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    let mut list = TopicPartitionList::new();
    list.add_partition_range(topic, 0, i32::from(LANES) - 1);
    let found = consumer.committed_offsets(list, Duration::from_secs(20)).expect("an answer");
    let of = |element: rdkafka::topic_partition_list::TopicPartitionListElem<'_>| {
        (element.offset().to_raw().unwrap_or(-1), element.metadata().to_owned())
    };
    found.elements().into_iter().map(of).collect()
}

#[test]
fn every_task_has_one_result_and_who_stops_leaves_nothing_in_doubt() {
    let fixture = fixture("workers-all");
    let tasks = Tasks::new(&fixture);
    let launch = Launch::new(&fixture, Duration::from_millis(200));
    let (mut a, mut b) = (launch.start("a"), launch.start("b"));
    a.wait_until_it_has_partitions();
    tasks.dispatch(0..400);
    wait_for_results(&fixture, &tasks, 400);
    let kinds = check(400, &tasks.results(), &calls(&[&a, &b]));
    assert_eq!(kinds["finished"], 400, "{kinds:?}");
    let marked = positions(&fixture, tasks.tasks_topic());
    assert!(marked.iter().all(|(_, metadata)| metadata.starts_with('d')), "{marked:?}");

    // Both have calls open.
    let begun = a.begun() + b.begun();
    tasks.dispatch(400..600);
    eventually("calls are open", || {
        if a.begun() + b.begun() > begun { Ok(()) } else { Err(String::new()) }
    });
    a.stop_well();
    b.stop_well();
    let clean = positions(&fixture, tasks.tasks_topic());
    assert!(clean.iter().all(|(_, metadata)| metadata.starts_with('c')), "{clean:?}");
    let mut c = launch.start("c");
    wait_for_results(&fixture, &tasks, 600);
    let kinds = check(600, &tasks.results(), &calls(&[&a, &b, &c]));
    assert_eq!(kinds["finished"], 600, "{kinds:?}");
    c.stop_well();
}

#[test]
fn what_a_killed_worker_may_have_begun_is_in_doubt_and_nothing_else_is_said_of_it() {
    let fixture = fixture("workers-kill");
    let tasks = Tasks::new(&fixture);
    let launch = Launch::new(&fixture, Duration::from_millis(300));
    let (mut a, b) = (launch.start("a"), launch.start("b"));
    a.wait_until_it_has_partitions();
    b.wait_until_it_has_partitions();
    tasks.dispatch(0..600);
    eventually("both have calls open", || {
        if a.begun() > 40 && b.begun() > 40 { Ok(()) } else { Err(String::new()) }
    });
    a.kill();
    let killed = now_ms();
    wait_for_results(&fixture, &tasks, 600);
    let kinds = check(600, &tasks.results(), &calls(&[&a, &b]));
    println!("all are known {} ms after the kill", now_ms() - killed);
    assert!(kinds.get("in doubt").is_some_and(|count| *count > 0), "{kinds:?}");
    assert!(kinds["finished"] > 0, "{kinds:?}");
}

#[test]
fn a_worker_that_stood_still_begins_nothing_when_it_wakes() {
    let fixture = fixture("workers-frozen");
    let tasks = Tasks::new(&fixture);
    let launch = Launch::new(&fixture, Duration::from_millis(300));
    let (a, b) = (launch.start("a"), launch.start("b"));
    a.wait_until_it_has_partitions();
    b.wait_until_it_has_partitions();
    // More than it may call at once.
    tasks.dispatch(0..700);
    eventually("it has calls open", || if a.begun() > 40 { Ok(()) } else { Err(String::new()) });
    let taken = || a.log().matches("worker has taken partitions over").count();
    let taken_before = taken();
    a.freeze();
    let begun = a.begun();
    let frozen = Instant::now();
    // All that it had is reported by the other one meanwhile: nothing is left that it may begin.
    wait_for_results(&fixture, &tasks, 700);
    std::thread::sleep(Duration::from_secs(15).saturating_sub(frozen.elapsed()));
    assert_eq!(a.begun(), begun, "it stands still");
    let thawed = now_ms();
    a.thaw();
    eventually("it has partitions again", || {
        let taken = taken();
        if taken > taken_before { Ok(()) } else { Err(format!("{taken}")) }
    });
    println!("it has partitions again {} ms after it woke", now_ms() - thawed);
    let late = a.calls().into_iter().filter(|line| line.what == "began");
    let late: Vec<_> = late.skip(begun).collect();
    assert!(late.is_empty(), "it began calls of before when it woke: {late:?}");
    let kinds = check(700, &tasks.results(), &calls(&[&a, &b]));
    assert!(kinds.get("in doubt").is_some_and(|count| *count > 0), "{kinds:?}");
    // What it begins from now on is of its next assignment.
    tasks.dispatch(700..720);
    wait_for_results(&fixture, &tasks, 720);
    check(720, &tasks.results(), &calls(&[&a, &b]));
    assert!(a.begun() > begun, "it is a worker again");
}

#[test]
fn partitions_move_without_a_doubt_once_the_open_calls_have_ended() {
    let fixture = fixture("workers-join");
    let tasks = Tasks::new(&fixture);
    let launch = Launch::new(&fixture, Duration::from_millis(300));
    let (a, b) = (launch.start("a"), launch.start("b"));
    a.wait_until_it_has_partitions();
    b.wait_until_it_has_partitions();
    tasks.dispatch(0..800);
    eventually("both have calls open", || {
        if a.begun() > 40 && b.begun() > 40 { Ok(()) } else { Err(String::new()) }
    });
    let c = launch.start("c");
    c.wait_until_it_has_partitions();
    wait_for_results(&fixture, &tasks, 800);
    let kinds = check(800, &tasks.results(), &calls(&[&a, &b, &c]));
    assert_eq!(kinds["finished"], 800, "{kinds:?}");
    assert!(a.log().contains("revoked") && b.log().contains("revoked"), "they let go");
}

#[test]
fn calls_that_are_open_when_partitions_move_are_cut() {
    let fixture = fixture("workers-cut");
    let tasks = Tasks::new(&fixture);
    let launch = Launch::new(&fixture, Duration::from_secs(30));
    let a = launch.start("a");
    a.wait_until_it_has_partitions();
    tasks.dispatch(0..80);
    eventually("calls are open", || if a.begun() == 80 { Ok(()) } else { Err(String::new()) });
    let joined = now_ms();
    let b = launch.start("b");
    wait_for_results(&fixture, &tasks, 80);
    let kinds = check(80, &tasks.results(), &calls(&[&a, &b]));
    assert_eq!(kinds, BTreeMap::from([("interrupted".to_owned(), 80)]));
    let cut = a.calls().into_iter().filter(|line| line.what == "cut");
    let last = cut.map(|line| line.at).max().expect("they were cut");
    let most = patient(Duration::from_secs(10));
    assert!(last - joined < most.as_millis() as u64, "cut after {} ms", last - joined);
    b.wait_until_it_has_partitions();
    let clean = positions(&fixture, tasks.tasks_topic());
    println!("cut {} ms after the other was started; positions: {clean:?}", last - joined);
}

#[test]
fn a_cancel_stands_behind_its_task() {
    let fixture = fixture("workers-cancel");
    let tasks = Tasks::new(&fixture);
    // Each partition calls 16 of a host at once.
    let launch = Launch::new(&fixture, Duration::from_secs(4));
    tasks.dispatch(0..3_000);
    tasks.cancel(1_500..3_000);
    let mut a = launch.start("a");
    wait_for_results(&fixture, &tasks, 3_000);
    let said = tasks.results();
    let kinds = check(3_000, &said, &a.calls());
    let by_id = by_id(&said);
    let outcome = |n: usize| by_id[task_id(n).as_str()][0].outcome.clone();
    assert!((0..1_500).all(|n| outcome(n) != "cancelled"), "nobody cancelled these");
    assert!(kinds.get("cancelled").is_some_and(|count| *count > 0), "{kinds:?}");
    a.stop_well();
}

/// Tasks and a worker behind a proxy, with calls open.
fn behind<'a>(fixture: &'a Fixture, proxy: &Proxy, count: usize) -> (Tasks<'a>, Worker) {
    let tasks = Tasks::new(fixture);
    let launch = Launch {
        brokers: proxy.brokers.clone(),
        ..Launch::new(fixture, Duration::from_millis(300))
    };
    let worker = launch.start("a");
    worker.wait_until_it_has_partitions();
    tasks.dispatch(0..count);
    eventually("calls are open", || if worker.begun() > 40 { Ok(()) } else { Err(String::new()) });
    (tasks, worker)
}

/// The worker has gone on in the assignment that it had.
#[track_caller]
fn check_that_it_went_on(worker: &Worker) {
    let log = worker.log();
    assert!(log.contains(FAILED), "no batch failed");
    assert_eq!(log.matches("worker has taken partitions over").count(), 1, "it was taken over");
}

#[test]
fn results_whose_commit_was_not_answered_go_again_in_the_same_assignment() {
    let cluster = Cluster::start("");
    let fixture = Fixture::on(cluster.connection(), "workers-unheard", |of| of.lanes = Some(LANES));
    let proxy = cluster.proxy();
    let (tasks, mut a) = behind(&fixture, &proxy, 400);
    let hold = proxy.hold(END_TXN, &format!("{}/a/w/", fixture.namespace()), None);
    hold.wait_until(State::Held);
    // It lands, and nobody hears of that.
    proxy.everywhere(|weather| weather.cut_to_client = true);
    hold.release();
    hold.wait_until(State::CarriedOut);
    proxy.reset(0);
    proxy.heal();
    wait_for_results(&fixture, &tasks, 400);
    a.stop_well();
    let said = tasks.results();
    let by_id = by_id(&said);
    assert_eq!(by_id.len(), 400);
    assert!(by_id.values().flatten().all(|said| said.outcome == "finished"));
    let twice = by_id.values().filter(|of| of.len() == 2).count();
    assert!(by_id.values().all(|of| of.len() <= 2) && twice > 0, "{twice} went again");
    assert_eq!(a.begun(), 400, "no call began twice");
    println!("{twice} results went again");
    check_that_it_went_on(&a);
}

#[test]
fn results_of_a_transaction_that_was_aborted_go_again_in_the_same_assignment() {
    let fixture = fixture("workers-aborted");
    let proxy = Proxy::shared();
    let (tasks, mut a) = behind(&fixture, &proxy, 400);
    // The client asks a second time, and waits no longer for that than for all of the transaction's offsets.
    let producer = format!("{}/a/w/", fixture.namespace());
    let holds = [(); 2].map(|()| proxy.hold(TXN_OFFSET_COMMIT, &producer, None));
    holds.iter().for_each(|hold| hold.wait_until(State::Held));
    eventually("the batch has failed", || {
        if a.log().contains(FAILED) { Ok(()) } else { Err(String::new()) }
    });
    wait_for_results(&fixture, &tasks, 400);
    let kinds = check(400, &tasks.results(), &a.calls());
    assert_eq!(kinds["finished"], 400, "{kinds:?}");
    drop(holds);
    check_that_it_went_on(&a);
    assert!(a.log().contains("step=\"send_offsets\""), "it was aborted before its commit");
    a.stop_well();
    let mut uncommitted = Log::uncommitted(&fixture, tasks.results_topic());
    uncommitted.until("results of the aborted transaction", |seen| {
        let ends = seen.iter().filter(|rec| Said::of(rec).outcome != "started");
        ends.count() > 400
    });
}

#[test]
fn without_a_sign_of_the_group_no_call_begins() {
    let fixture = fixture("workers-signs");
    let tasks = Tasks::new(&fixture);
    let launch = Launch::new(&fixture, Duration::from_millis(100));
    let mut a = Launch { failpoints: "no_signs=return", ..launch }.start("a");
    a.wait_until_it_has_partitions();
    tasks.dispatch(0..20);
    // Its positions are committed, in transactions.
    eventually("the partitions are marked", || {
        let found = positions(&fixture, tasks.tasks_topic());
        let is_marked = found.iter().all(|(_, metadata)| metadata.starts_with('d'));
        if is_marked { Ok(()) } else { Err(format!("{found:?}")) }
    });
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(a.begun(), 0);
    a.stop_well();
    let b = Launch::new(&fixture, Duration::from_millis(100)).start("b");
    wait_for_results(&fixture, &tasks, 20);
    check(20, &tasks.results(), &calls(&[&a, &b]));
}

#[test]
#[ignore = "scripts/test --brokers 3"]
fn the_coordinator_of_the_group_is_killed() {
    let nodes = Nodes::ours();
    nodes.heal();
    let fixture = fixture("workers-coordinator");
    let tasks = Tasks::new(&fixture);
    let launch = Launch::new(&fixture, Duration::from_millis(300));
    let (mut a, mut b) = (launch.start("a"), launch.start("b"));
    a.wait_until_it_has_partitions();
    b.wait_until_it_has_partitions();
    tasks.dispatch(0..800);
    eventually("both have calls open", || {
        if a.begun() > 40 && b.begun() > 40 { Ok(()) } else { Err(String::new()) }
    });
    let coordinator = nodes.group_coordinator(&format!("{}-workers", fixture.namespace()));
    nodes.kill(coordinator);
    let killed = now_ms();
    wait_for_results(&fixture, &tasks, 800);
    println!("all are known {} ms after the kill", now_ms() - killed);
    check_doubled(800, &tasks.results(), &calls(&[&a, &b]));
    nodes.heal();
    a.stop_well();
    b.stop_well();
}

/// Checks what must hold where a commit may have landed though nobody heard of it: its results may be there twice, word for
/// word.
#[track_caller]
fn check_doubled(count: usize, said: &[Said], calls: &[Line]) {
    let mut once = said.to_vec();
    once.sort_by(|a, b| (&a.id, &a.outcome).cmp(&(&b.id, &b.outcome)));
    once.dedup_by(|a, b| (&a.id, &a.outcome, a.in_doubt) == (&b.id, &b.outcome, b.in_doubt));
    println!("{} results are there twice", said.len() - once.len());
    check(count, &once, calls);
}
