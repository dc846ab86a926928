//! Executors and owners of lanes that die, stand still, hear nothing and come while a run executes.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::executors::{Crew, Line, What, Work, judge};
use super::{Watch, check_finished, count, create, end_of, get, run_for, shards, status, until};
use crate::members::{at, said_of_members};
use crate::support::tasks::Api;
use crate::support::{Fixture, Process, eventually, patience, patient, start_all};
use crate::tasks::{LANES, fixture, has_all_lanes, launch, owner_of, share_lanes};

const SHARDS: u32 = 60;
const PARTITIONS: i32 = 6;
/// Rows of a shard: it takes 4 s, which is longer than a heartbeat may.
const ROWS: u32 = 40;
/// A run of these shards takes a minute with two executors; and the lanes of a dead owner have none for ten seconds.
const LONG: Duration = Duration::from_secs(180);
/// What a lost executor's shards may wait for beside its heartbeat.
const ELSEWHERE: Duration = Duration::from_secs(10);

fn work() -> Work {
    Work { rows: ROWS, ms: 100 * u64::from(patience()) }
}

/// Waits until a shard was handed out once more than to this turn.
#[track_caller]
fn handed_out_again(api: &Api, id: &str, turn: &Line) {
    eventually("its shard is handed out once more", || {
        let shard = shards(api, id, "").swap_remove(turn.shard as usize);
        let is_again = shard["turn"].as_u64() > Some(u64::from(turn.turn));
        if is_again { Ok(()) } else { Err(shard.to_string()) }
    });
}

/// The work of this turn has ended before it was done, for this reason.
fn stopped<'a>(of: &'a Line, why: &'a str) -> impl Fn(&Line) -> bool + 'a {
    move |line| {
        let is_of = (&line.who, &line.task, line.turn) == (&of.who, &of.task, of.turn);
        is_of && line.what == What::Stop(why.to_owned())
    }
}

#[test]
fn a_run_outlives_executors_that_die_and_stand_still_and_hear_nothing() {
    let fixture = fixture("runs-fleet");
    let [mut a, mut b] = start_all([
        launch(&fixture, "a", "lanes,worker,api"),
        launch(&fixture, "b", "lanes,worker,api"),
    ]);
    share_lanes([&a, &b]);
    let api = Api::of(&a);
    let topic = fixture.target("settlement", PARTITIONS);
    let crew = Crew::new(&fixture, &topic, 3, &[&a, &b]);
    crew.widen(2);
    crew.close();
    let mut dies = crew.start("dies");
    let freezes = crew.start("freezes");
    let mutes = crew.start("mutes");
    let id = create(&api, &run_for(&crew, SHARDS, work(), json!({"delay": "4s"})));
    let watch = Watch::start(&b, &id);
    let shown = get(&api, &id);
    assert!(status(&shown) == "waiting" && shown["grid"].is_null(), "{shown}");
    let shown = until(&api, &id, LONG, "has its shards", |run| {
        status(run) == "triggered" && count(run, "created") == u64::from(SHARDS)
    });
    assert_eq!(shown["grid"], "o".repeat(SHARDS as usize), "{shown}");
    crew.open();
    crew.until_finished(6);

    // One is gone.
    let lost = crew.in_hand(&dies, ROWS);
    dies.kill();
    // One comes.
    let comes = crew.start("comes");
    // One stands still for longer than its heartbeat may. Its shard is handed out again, and it stops by its own clock when it wakes.
    let frozen = crew.in_hand(&freezes, ROWS);
    freezes.freeze();
    handed_out_again(&api, &id, &frozen);
    freezes.thaw();
    crew.until_line("it stops, as it wakes", stopped(&frozen, "unheard"));
    // One works on, and nobody hears it.
    let unheard = crew.in_hand(&mutes, ROWS);
    mutes.mute();
    let stop = crew.until_line("it stops by itself", stopped(&unheard, "unheard"));
    mutes.unmute();
    let heard = crew.log().into_iter().rev().find(|line| {
        (&line.task, line.turn) == (&unheard.task, unheard.turn)
            && matches!(line.what, What::Said(_))
    });
    let silent = stop.at - heard.expect("it was heard before").at;
    println!("it stopped {silent:?} after the last heartbeat of every {:?}", crew.period);
    assert!(silent < crew.period * 4 / 5 + patient(Duration::from_millis(500)), "{silent:?}");

    // The last one that nobody has begun does not end: all others do, and all are begun.
    let shown = get(&api, &id);
    let last = shown["grid"].as_str().and_then(|grid| grid.rfind('o'));
    crew.hang(last.unwrap_or_else(|| panic!("all are begun already: {shown}")) as u32);
    let shown = until(&api, &id, LONG, "is locked, with one shard left", |run| {
        status(run) == "locked" && count(run, "finished") == u64::from(SHARDS) - 1
    });
    assert_eq!(count(&shown, "begun"), u64::from(SHARDS), "{shown}");
    crew.let_go();
    end_of(&api, &id, LONG);
    let shown = check_finished(&api, &id, SHARDS);
    let seen = watch.seen();
    println!("seen: {seen:?}");
    for want in ["waiting", "triggered", "executing", "re-executing", "locked", "finished"] {
        assert!(seen.iter().any(|status| status == want), "{want}: {seen:?}");
    }
    assert_eq!(seen.last().map(String::as_str), Some("finished"));

    let log = crew.log();
    let judged = judge(&log, SHARDS);
    println!("{judged:?}");
    assert!(judged.again >= 3 && judged.from_row >= 3, "{judged:?}");
    for line in [&lost, &frozen, &unheard] {
        let next = log.iter().find(|next| {
            next.task == line.task && next.turn > line.turn && matches!(next.what, What::Begin(_))
        });
        let next = next.unwrap_or_else(|| panic!("nobody went on with {line:?}"));
        assert!(matches!(next.what, What::Begin(row) if row > 0), "{next:?}");
        let shard = &shown[line.shard as usize];
        assert!(shard["turn"].as_u64() >= Some(2), "{shard}");
        assert!(shard["attempts_total"].as_u64() >= Some(2), "{shard}");
    }
    assert!(log.iter().any(|line| line.who == "comes"), "who comes has shards");
    for shard in &shown {
        let told = ["task_id", "worker"].map(|of| shard[of].as_str().unwrap_or_default());
        let of = |line: &&Line| line.task == told[0] && matches!(line.what, What::End(_));
        let by = log.iter().find(of).unwrap_or_else(|| panic!("nobody has done it: {shard}"));
        assert_eq!(by.who, told[1], "{shard}");
        let times = ["started", "ended"].map(|of| shard[of].as_u64());
        assert!(times[0].is_some() && times[0] <= times[1], "{shard}");
    }
    drop((freezes, mutes, comes));
    b.stop_well();
    a.stop_well();
}

/// Instances are listed like this, by one of them and by a command: how each of these is, and how many lanes it has.
#[track_caller]
fn are_listed(
    fixture: &Fixture,
    asked: &Process,
    want: [(&Process, &str, usize); 2],
) -> Vec<Value> {
    eventually("the members are listed as they are", || {
        let both = said_of_members(fixture, asked);
        let lanes = |member: &Value| member["lanes"].as_array().map_or(0, Vec::len);
        let are_so = both.iter().all(|members| {
            let mut each =
                want.iter().map(|(process, health, lanes)| (at(members, process), health, lanes));
            members.len() == 2
                && each.all(|(member, health, count)| {
                    member["health"] == **health && lanes(member) == *count
                })
        });
        let [told, said] = both;
        if are_so { Ok(told) } else { Err(format!("{told:?} by HTTP, {said:?} by the command")) }
    })
}

#[test]
fn a_run_outlives_the_owner_of_its_lane_three_times() {
    /// In each round some more of them are executed.
    const MANY: u32 = 90;
    /// In the last round the owner is stopped well. In the others it is killed.
    const ROUNDS: usize = 3;
    let fixture = fixture("runs-owner");
    let of = |data: &str| launch(&fixture, data, "lanes,worker,api");
    let names = ["a", "b"];
    let mut processes = start_all(names.map(of));
    share_lanes([&processes[0], &processes[1]]);
    let topic = fixture.target("settlement", PARTITIONS);
    // The lanes of a dead owner have none for longer than a heartbeat.
    let crew = Crew::new(&fixture, &topic, 5, &processes.each_ref());
    crew.widen(2);
    let executors = ["one", "two", "three"].map(|name| crew.start(name));
    let id = create(&Api::of(&processes[0]), &run_for(&crew, MANY, work(), json!({})));
    for round in 1..=ROUNDS {
        crew.until_finished(round * 15);
        let lost = owner_of(&fixture, &id, &processes.each_ref());
        let is_killed = round < ROUNDS;
        let how = if is_killed { "killed" } else { "stopped" };
        println!("round {round}: {} is {how}", names[lost]);
        let half = usize::from(LANES) / 2;
        let both = processes.each_ref();
        let before = are_listed(&fixture, both[0], both.map(|process| (process, "ready", half)));
        let name = at(&before, both[lost])["instance"].clone();
        if is_killed {
            processes[lost].kill();
        } else {
            processes[lost].stop_well();
        }
        let (left, gone) = (&processes[1 - lost], &processes[lost]);
        if is_killed {
            are_listed(&fixture, left, [(left, "ready", half), (gone, "silent", half)]);
        }
        has_all_lanes(left);
        if is_killed {
            are_listed(&fixture, left, [(left, "ready", 2 * half), (gone, "silent", 0)]);
        }
        processes[lost] = of(names[lost]).start();
        share_lanes([&processes[0], &processes[1]]);
        let both = processes.each_ref();
        let after = are_listed(&fixture, both[lost], both.map(|process| (process, "ready", half)));
        assert_eq!(at(&after, both[lost])["instance"], name, "it has come back: {after:?}");
        crew.serve(&both);
        assert!(crew.finished() < MANY as usize, "the run went on all the while");
    }
    let api = Api::of(&processes[0]);
    end_of(&api, &id, LONG);
    check_finished(&api, &id, MANY);
    println!("{:?}", judge(&crew.log(), MANY));
    drop(executors);
    for process in &mut processes {
        process.stop_well();
    }
}

#[test]
fn a_run_outlives_an_owner_of_its_lane_that_stands_still_and_wakes() {
    /// Three times as many as are executed at once.
    const FEW: u32 = 18;
    let fixture = fixture("runs-owner-frozen");
    let mut server = launch(&fixture, "api", "worker,api").spawn();
    let names = ["a", "b"];
    let mut owners = start_all(names.map(|data| launch(&fixture, data, "lanes")));
    server.wait_until_ready();
    share_lanes(owners.each_ref());
    let topic = fixture.target("settlement", PARTITIONS);
    let crew = Crew::new(&fixture, &topic, 5, &[&server]);
    crew.widen(2);
    let executors = ["one", "two", "three"].map(|name| crew.start(name));
    let api = Api::of(&server);
    let id = create(&api, &run_for(&crew, FEW, work(), json!({})));
    crew.until_finished(4);
    let frozen = owner_of(&fixture, &id, &owners.each_ref());
    println!("{} stands still", names[frozen]);
    owners[frozen].freeze();
    has_all_lanes(&owners[1 - frozen]);
    // It wakes while the other one goes on with the run, and is an owner again.
    owners[frozen].thaw();
    assert!(crew.finished() < FEW as usize, "it woke in the middle");
    share_lanes(owners.each_ref());
    end_of(&api, &id, LONG);
    check_finished(&api, &id, FEW);
    println!("{:?}", judge(&crew.log(), FEW));
    drop(executors);
    for owner in &mut owners {
        owner.stop_well();
    }
    server.stop_well();
}

#[test]
fn the_shards_of_a_lost_executor_are_executed_elsewhere_within_its_heartbeat_and_ten_seconds() {
    let fixture = fixture("runs-lost");
    let mut a = launch(&fixture, "a", "lanes,worker,api").start();
    let api = Api::of(&a);
    let topic = fixture.target("settlement", PARTITIONS);
    let crew = Crew::new(&fixture, &topic, 3, &[&a]);
    // None waits behind another one.
    crew.widen(2);
    let mut executors: Vec<_> = ["one", "two", "three", "four"].map(|name| crew.start(name)).into();
    let work = Work { rows: 100_000, ms: 100 };
    let id = create(&api, &run_for(&crew, 2, work, json!({})));
    for _ in 0..2 {
        // Who has a shard of which something is done.
        let victim = eventually("somebody is at work", || {
            let log = crew.log();
            let alive = |who: &str| executors.iter().position(|of| of.name == who);
            let works = log.iter().rev().find_map(|line| match line.what {
                What::Said(row) if row > 0 => alive(&line.who),
                _ => None,
            });
            works.ok_or_else(|| format!("{} lines", log.len()))
        });
        let mut victim = executors.remove(victim);
        let of_victim = |line: &&Line| {
            line.who == victim.name && matches!(line.what, What::Said(row) if row > 0)
        };
        let log = crew.log();
        let had = log.iter().rev().find(of_victim).expect("it works").clone();
        victim.kill();
        let killed = Instant::now();
        let next = crew.until_line("its shard is executed elsewhere", |line| {
            line.task == had.task && line.turn > had.turn && matches!(line.what, What::Begin(_))
        });
        let took = next.at.saturating_duration_since(killed);
        println!("{} goes on with shard {} after {took:?}", next.who, next.shard);
        assert!(took <= crew.period + patient(ELSEWHERE), "{took:?}");
        assert!(matches!(next.what, What::Begin(row) if row > 0), "{next:?}");
    }
    let (_, told) = api.answered("DELETE", &format!("/v1/runs/{id}?wait=20s"), None);
    assert_eq!(told["outcome"], "stopped", "{told}");
    drop(executors);
    a.stop_well();
}
