//! Members that come, go and die under load, and those that are refused.

use std::time::Duration;

use rdkafka::Offset;
use serde_json::{Value, json};
use waterclock::engine::Lane;
use waterclock::kafka::Roster;
use waterclock::kafka::topics::{Request, apply};

use crate::support::{
    Fixture, Load, Log, Mode, PATIENCE, Process, Proxy, Resource, Right, allow, ask,
    assert_each_once, assert_promise, eventually, eventually_within, free_address, in_both_modes,
    out, patient, start_all, waterclock, whole,
};

in_both_modes!(
    members_join_leave_and_die_under_load,
    a_process_that_is_told_to_stop_under_load_ends_within_10_s,
    a_process_that_is_killed_finds_its_place_again,
);

#[test]
fn members_say_which_lanes_they_run_and_where_they_answer() {
    let fixture = fixture("roster", Mode::ExactlyOnce, 4);
    let meta = format!("{}.meta", fixture.namespace());
    let roster =
        || Roster::read(&fixture.connection, &meta, fixture.namespace()).expect("meta is read");
    let mut a = fixture.launch(Mode::ExactlyOnce).data("a").start();
    let b = fixture.launch(Mode::ExactlyOnce).data("b").env("WATERCLOCK_ADVERTISE", "b.example:80");
    let b = b.arg("--http-unauthenticated");
    let mut b = b.start();
    wait_until_shared(4, &[&a, &b]);
    eventually("every lane has its owner", || {
        let roster = roster();
        let owners: Vec<_> = (0..4).map(|lane| roster.owner(Lane(lane)).cloned()).collect();
        let at = |address: &str| {
            owners.iter().flatten().filter(|owner| owner.address == address).count()
        };
        let own = at(&a.address().expect("it listens"));
        if (own, at("b.example:80")) == (2, 2) { Ok(()) } else { Err(format!("{owners:?}")) }
    });
    b.stop_well();
    wait_until_shared(4, &[&a]);
    eventually("the one that is left owns all", || {
        let roster = roster();
        let members: Vec<_> = roster.members().collect();
        match members[..] {
            [only] if only.lanes.len() == 4 => Ok(()),
            _ => Err(format!("{members:?}")),
        }
    });
    // A start after it reads the same topic, and what is in force in it.
    a.stop_well();
    a = fixture.launch(Mode::ExactlyOnce).data("a").start();
    a.stop_well();
    assert_eq!(roster().members().count(), 0, "who has left is nobody's owner");
}

/// What is named is gone 95 s after its last announcement.
const GONE_MAX: Duration = Duration::from_secs(120);

/// What this instance and a command say of the members, once both say the same, and that they are so, in the order of the words.
#[track_caller]
fn listed(fixture: &Fixture, process: &Process, health: &[&str]) -> Vec<Value> {
    eventually_within(GONE_MAX, &format!("both say {health:?}"), || {
        let [told, said] = said_of_members(fixture, process);
        let mut found: Vec<&str> =
            said.iter().filter_map(|member| member["health"].as_str()).collect();
        found.sort_unstable();
        if told == said && found == health {
            return Ok(said);
        }
        Err(format!("{told:?} by HTTP, {said:?} by the command"))
    })
}

/// What this instance says of the members, and what a command does.
#[track_caller]
pub fn said_of_members(fixture: &Fixture, process: &Process) -> [Vec<Value>; 2] {
    let told = ask(process, "GET", "/v1/members", None).body;
    let mut command = waterclock();
    command.args(["members", "--json", "--brokers", &fixture.connection.brokers]);
    let said = command.args(["--namespace", fixture.namespace()]).output().expect("it runs");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let said = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    [told["members"].as_array().cloned().unwrap_or_default(), said]
}

/// What is said of the member that answers there.
#[track_caller]
pub fn at<'a>(members: &'a [Value], process: &Process) -> &'a Value {
    let address = process.address().expect("it serves");
    let mut found = members.iter().filter(|member| member["address"] == *address);
    found.next().unwrap_or_else(|| panic!("{address} is not in {members:?}"))
}

#[test]
fn a_member_joins_without_configuration_dies_is_silent_then_gone_and_comes_back_under_its_name() {
    let fixture = fixture("listed", Mode::ExactlyOnce, 4);
    let mut a = fixture.launch(Mode::ExactlyOnce).data("a").start();
    let record = out("later").key("k").to(&fixture.target("out", 1)).delay(3_600_000);
    let record = record.header("x-delay-id", "i");
    fixture.producer().send_one(&fixture.names.intake(), &record);
    eventually("it is pending", || match a.metric("waterclock_timers_pending") {
        1.0 => Ok(()),
        pending => Err(pending.to_string()),
    });

    // Nobody tells the one of the other.
    let mut b = fixture.launch(Mode::ExactlyOnce).data("b").start();
    wait_until_shared(4, &[&a, &b]);
    let members = eventually("each has its lanes, and one of them has the timer", || {
        let members = listed(&fixture, &a, &["ready", "ready"]);
        let sum = |of: &dyn Fn(&Value) -> usize| members.iter().map(of).sum::<usize>();
        let lanes = |member: &Value| member["lanes"].as_array().map_or(0, Vec::len);
        let timers = sum(&|member| member["load"]["timers"].as_u64().unwrap_or(0) as usize);
        // Of lanes that have just moved it is not known, and nothing is said.
        let is_said = |member: &Value| lanes(member) == 2 && member["load"].is_object();
        assert!(!members.iter().all(is_said) || timers > 0, "there is one: {members:?}");
        if (sum(&lanes), timers) == (4, 1) { Ok(members) } else { Err(format!("{members:?}")) }
    });
    for member in [at(&members, &a), at(&members, &b)] {
        assert_eq!(member["version"], env!("CARGO_PKG_VERSION"), "{member}");
        assert_eq!(member["threads"], 1, "{member}");
        assert!(member["roles"].as_array().is_some_and(|roles| roles.contains(&json!("api"))));
    }
    let before = at(&members, &b).clone();
    assert!(before["since"].as_u64() > at(&members, &a)["since"].as_u64(), "{members:?}");

    // One that stands still is not waited for.
    b.freeze();
    let told = ask(&a, "GET", "/v1/members", None);
    assert!(told.took < patient(Duration::from_secs(4)), "{:?}", told.took);
    let members = told.body["members"].as_array().cloned().unwrap_or_default();
    assert_eq!(at(&members, &b)["health"], "silent", "{members:?}");
    b.kill();
    let members = listed(&fixture, &a, &["ready", "silent"]);
    assert_eq!(at(&members, &b)["instance"], before["instance"]);
    wait_until_shared(4, &[&a]);
    let members = listed(&fixture, &a, &["ready"]);
    assert_eq!(at(&members, &a)["lanes"], json!([0, 1, 2, 3]));

    let mut b = fixture.launch(Mode::ExactlyOnce).data("b").start();
    wait_until_shared(4, &[&a, &b]);
    let members = listed(&fixture, &b, &["ready", "ready"]);
    let after = at(&members, &b);
    assert_eq!(after["instance"], before["instance"], "its directory has its name");
    assert!(after["since"].as_u64() > before["since"].as_u64(), "{before} {after}");
    a.stop_well();
    listed(&fixture, &b, &["ready"]);
    b.stop_well();
}

/// A spare answers each of the group's assignments. Else the group waits for it for three minutes.
#[test]
fn spares_hold_up_no_rebalance_and_take_the_lane_that_is_free() {
    let fixture = fixture("spare", Mode::ExactlyOnce, 1);
    let mut members: Vec<Process> = Vec::new();
    for data in ["a", "b", "c"] {
        members.push(fixture.launch(Mode::ExactlyOnce).data(data).start());
        wait_until_shared(1, &Vec::from_iter(&members));
    }
    for _ in 0..2 {
        let owner = members.iter().position(|member| member.lanes() == 1).expect("one has it");
        members.remove(owner).stop_well();
        wait_until_shared(1, &Vec::from_iter(&members));
    }
    members.remove(0).stop_well();
}

#[test]
fn records_of_meta_that_were_deleted_unread_do_not_end_what_an_instance_knows_of_the_others() {
    let fixture = fixture("unread", Mode::ExactlyOnce, 6);
    let [mut a, mut b, mut c] = start_all([
        fixture.launch(Mode::ExactlyOnce).data("a"),
        fixture.launch(Mode::ExactlyOnce).data("b"),
        fixture.launch(Mode::ExactlyOnce).data("c"),
    ]);
    wait_until_shared(6, &[&a, &b, &c]);
    let lists_all = || {
        let told = ask(&a, "GET", "/v1/timers?limit=10", None);
        if told.status == 200 { Ok(()) } else { Err(told.body.to_string()) }
    };
    eventually("it passes questions on to their owners", lists_all);
    // The probes of the others go on, so that there is something that it has not read.
    a.freeze();
    std::thread::sleep(Duration::from_secs(4));
    let meta = fixture.names.meta();
    // Brokers refuse to delete records of a topic that is only compacted.
    let settings =
        [("cleanup.policy", "compact,delete"), ("message.timestamp.type", "LogAppendTime")];
    fixture.configure(&meta, &settings);
    fixture.delete_records(&meta, 0, Offset::End);
    a.thaw();
    eventually("it finds them gone", || {
        let log = a.log();
        if log.contains("records of meta were deleted") { Ok(()) } else { Err(log) }
    });
    c.stop_well();
    wait_until_shared(6, &[&a, &b]);
    eventually("it passes questions on to the new owners", lists_all);
    a.stop_well();
    b.stop_well();
}

#[test]
fn an_instance_ends_once_its_meta_topic_was_made_again_and_what_is_sent_after_that_survives_the_next_start()
 {
    meta_is_made_again("refounded", false);
}

#[test]
fn an_instance_ends_also_if_its_meta_topic_is_longer_than_it_was_when_it_reads_on() {
    meta_is_made_again("refounded-longer", true);
}

/// `unseen`: the instance stands still meanwhile, and where it had read up to stands something in the new topic.
fn meta_is_made_again(test: &str, unseen: bool) {
    let fixture = fixture(test, Mode::ExactlyOnce, 2);
    let (target, intake) = (fixture.target("out", 1), fixture.names.intake());
    let mut process = fixture.launch(Mode::ExactlyOnce).data("a").start();
    wait_until_shared(2, &[&process]);
    let meta = fixture.names.meta();
    if unseen {
        process.freeze();
    }
    fixture.delete_target(&meta);
    // The lanes were in it: they are those of the intake.
    let request = Request { lanes: None, ..fixture.request.clone() };
    eventually("topics apply", || {
        apply(&fixture.connection, &request).map_err(|error| format!("{error:?}"))
    });
    if unseen {
        let producer = fixture.producer();
        for _ in 0..2_000 {
            producer.send(&meta, &out("filler").key("clock").at(0));
        }
        producer.acks();
        process.thaw();
    }
    assert_eq!(process.wait(patient(Duration::from_secs(40))), Some(69), "{}", process.log());
    assert!(process.log().contains("has another secret"), "{}", process.log());
    let mut process = fixture.launch(Mode::ExactlyOnce).data("a").start();
    wait_until_shared(2, &[&process]);
    // In a tier when the instance is killed, with the new seal.
    let record = out("after").key("k").to(&target).delay(6_000).header("x-delay-id", "i");
    fixture.producer().send_one(&intake, &record);
    eventually("it is pending", || {
        let told = ask(&process, "GET", "/v1/timers/i?key=k", None);
        if told.body["state"] == "delay" { Ok(()) } else { Err(told.body.to_string()) }
    });
    process.kill();
    let mut process = fixture.launch(Mode::ExactlyOnce).data("a").start();
    Log::open(&fixture, &target).count(1);
    process.stop_well();
    assert_each_once(["after".to_owned()], &whole(&fixture, &target));
}

/// What a stop may take: the drain and leaving the group.
const STOP_MAX: Duration = Duration::from_secs(10);

fn fixture(test: &str, mode: Mode, lanes: u16) -> Fixture {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    Fixture::with(&format!("{test}-{short}"), |request| request.lanes = Some(lanes))
}

/// Waits until the members own all lanes between them, as evenly as it goes.
#[track_caller]
fn wait_until_shared(lanes: usize, members: &[&Process]) {
    eventually("the lanes are shared", || {
        let mut own: Vec<usize> = members.iter().map(|member| member.lanes()).collect();
        own.sort_unstable();
        let even = own[own.len() - 1] - own[0] <= 1;
        let all = own.iter().sum::<usize>() == lanes;
        if even && all { Ok(()) } else { Err(format!("{own:?} of {lanes}")) }
    });
}

fn members_join_leave_and_die_under_load(mode: Mode) {
    let fixture = fixture("members", mode, 4);
    let target = fixture.target("out", 3);
    let mut log = Log::open(&fixture, &target);
    std::thread::scope(|scope| {
        let mut a = fixture.launch(mode).data("a").start();
        wait_until_shared(4, &[&a]);
        let load = Load::start(scope, &fixture, &target, 200);
        let mut b = fixture.launch(mode).data("b").start();
        wait_until_shared(4, &[&a, &b]);
        a.stop_well();
        wait_until_shared(4, &[&b]);
        let mut c = fixture.launch(mode).data("c").start();
        wait_until_shared(4, &[&b, &c]);
        b.kill();
        wait_until_shared(4, &[&c]);
        let sent = load.end();
        println!("{sent} were sent");
        log.ids(sent);
        fixture.wait_until_nothing_is_pending();
        c.stop_well();
        assert_promise(mode, Load::ids(sent), &whole(&fixture, &target));
    });
}

fn a_process_that_is_told_to_stop_under_load_ends_within_10_s(mode: Mode) {
    let fixture = fixture("stop", mode, 3);
    let target = fixture.target("out", 3);
    let mut log = Log::open(&fixture, &target);
    std::thread::scope(|scope| {
        let mut first = fixture.start(mode);
        let load = Load::start(scope, &fixture, &target, 300);
        log.count(200);
        let (code, took) = first.stop();
        assert_eq!(code, Some(0), "after {took:?}");
        assert!(took < patient(STOP_MAX), "took {took:?}");
        let mut second = fixture.start(mode);
        let sent = load.end();
        log.ids(sent);
        fixture.wait_until_nothing_is_pending();
        second.stop_well();
        // A clean stop repeats nothing in either mode.
        assert_each_once(Load::ids(sent), &whole(&fixture, &target));
    });
}

fn a_process_that_is_killed_finds_its_place_again(mode: Mode) {
    let fixture = fixture("kill", mode, 3);
    let target = fixture.target("out", 3);
    let mut log = Log::open(&fixture, &target);
    std::thread::scope(|scope| {
        let mut process = fixture.start(mode);
        let load = Load::start(scope, &fixture, &target, 200);
        for kill in 1..=2 {
            log.count(150 * kill);
            process.kill();
            process = fixture.start(mode);
        }
        let sent = load.end();
        log.ids(sent);
        fixture.wait_until_nothing_is_pending();
        process.stop_well();
        let seen = whole(&fixture, &target);
        println!("{mode:?}: {sent} were sent, {} arrived", seen.len());
        assert_promise(mode, Load::ids(sent), &seen);
    });
}

#[test]
fn three_members_have_two_of_six_lanes_each() {
    let fixture = fixture("three", Mode::ExactlyOnce, 6);
    let target = fixture.target("out", 3);
    let of = |name| fixture.launch(Mode::ExactlyOnce).data(name);
    let mut members = start_all(["a", "b", "c"].map(of));
    let [a, b, c] = &members;
    wait_until_shared(6, &[a, b, c]);
    deliver(&fixture, &target, "together", 120);
    members.iter_mut().for_each(Process::stop_well);
    assert_each_once((0..120).map(|n| format!("together {n}")), &whole(&fixture, &target));
}

/// Sends records and waits until they are there.
#[track_caller]
fn deliver(fixture: &Fixture, target: &str, id: &str, count: usize) {
    let (producer, mut log) = (fixture.producer(), Log::open(fixture, target));
    for n in 0..count {
        let record = out(format!("{id} {n}")).key(format!("k{n}")).delay(n % 1_500).to(target);
        producer.send(&fixture.names.intake(), &record);
    }
    producer.acks();
    log.until(id, |seen| seen.iter().filter(|r| r.text().starts_with(id)).count() >= count);
}

#[test]
fn the_threads_of_one_process_are_members_of_the_group() {
    let fixture = fixture("threads", Mode::ExactlyOnce, 6);
    let target = fixture.target("out", 3);
    let mut process = fixture.launch(Mode::ExactlyOnce).arg("--threads").arg("2").start();
    wait_until_shared(6, &[&process]);
    let (_, body) = process.get("/health/ready").unwrap();
    assert_eq!(body.matches("owns 3 lanes").count(), 2, "{body}");
    deliver(&fixture, &target, "by two", 200);
    process.stop_well();
    assert_each_once((0..200).map(|n| format!("by two {n}")), &whole(&fixture, &target));
}

#[test]
fn the_second_owner_of_a_name_is_refused_and_the_first_goes_on() {
    let fixture = fixture("name", Mode::ExactlyOnce, 3);
    let target = fixture.target("out", 1);
    let named = |data| fixture.launch(Mode::ExactlyOnce).data(data).env("WATERCLOCK_INSTANCE", "x");
    let mut first = named("a").start();
    let mut second = named("b").spawn();
    assert_eq!(second.wait(PATIENCE), Some(73));
    let last = second.log().lines().last().unwrap_or_default().to_owned();
    assert!(last.contains("instance x is in use by another live member"), "{last}");
    assert!(last.contains("WATERCLOCK_INSTANCE") && last.contains("--data-dir"), "{last}");
    wait_until_shared(3, &[&first]);
    deliver(&fixture, &target, "after", 60);
    first.stop_well();
    assert_each_once((0..60).map(|n| format!("after {n}")), &whole(&fixture, &target));
}

#[test]
fn a_process_waits_for_a_kafka_that_does_not_answer_and_says_so() {
    let fixture = fixture("away", Mode::ExactlyOnce, 3);
    let target = fixture.target("out", 1);
    let address = free_address();
    let mut process = fixture.launch(Mode::ExactlyOnce).brokers(&address).spawn();
    process.wait_until_logged(Duration::from_secs(30), "Kafka does not answer");
    assert!(process.log().contains(&address), "it says where it asked");
    let (ready, body) = process.get("/health/ready").unwrap();
    assert_eq!(ready, 503, "{body}");
    assert_eq!(process.get("/health/live").unwrap().0, 200);
    // The metadata there names the broker's own address, so the proxy is needed for the first step only.
    let brokers = &fixture.connection.brokers;
    let broker = brokers.split(',').next().unwrap_or(brokers);
    let _proxy = Proxy::start(&[(&*address, broker)]);
    process.wait_until_ready();
    deliver(&fixture, &target, "at last", 10);
    process.stop_well();
}

#[test]
fn who_may_not_be_in_the_group_any_more_says_why_and_goes_on_once_it_may() {
    let fixture = fixture("denied", Mode::ExactlyOnce, 2);
    let target = fixture.target("out", 1);
    let mut process = fixture.start(Mode::ExactlyOnce);
    allow(Resource::Group(fixture.namespace()), &[Right::Describe]);
    eventually("it says why it is not ready", || match process.get("/health/ready") {
        Ok((503, body)) if body.contains("no right to be a member of group") => Ok(()),
        answer => Err(format!("{answer:?}")),
    });
    allow(Resource::Group(fixture.namespace()), &[Right::Read]);
    process.wait_until_ready();
    deliver(&fixture, &target, "after", 1);
    process.stop_well();
}
