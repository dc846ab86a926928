//! F34: members that come and go all the time.

use std::time::Duration;

use crate::checkers::{Wish, check};
use crate::load::{Load, Mix, mode};
use crate::support::{Fixture, Nodes, Process, eventually};

/// The session timeout of the suite, and what a take-over takes besides.
const SETTLED: Duration = Duration::from_secs(12);
/// How often one of the three goes and comes back.
const TIMES: usize = 16;

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f34_one_of_three_stops_and_starts_every_3_s() {
    let nodes = Nodes::ours();
    nodes.heal();
    let fixture = Fixture::with("f34", |request| request.lanes = Some(6));
    let start = |name: &str| fixture.launch(mode()).data(name).start();
    let names = ["a", "b", "c"];
    let mut members = names.map(start);
    let load = Load::begin(&fixture, Mix { rate: 60, ..Mix::default() });
    load.cancel_through(&members.each_ref());
    load.wait_for_more(120);
    let before: f64 = rebalances(&members);
    for turn in 0..TIMES {
        let goes = turn % names.len();
        // Every fourth goes without a word: its lanes are there again with it, or with another after its session.
        if turn % 4 == 3 {
            members[goes].kill()
        } else {
            members[goes].stop_well()
        }
        std::thread::sleep(Duration::from_secs(3));
        members[goes] = fixture.launch(mode()).data(names[goes]).spawn();
        std::thread::sleep(Duration::from_secs(3));
        // There is progress between the storms.
        load.wait_for_more(1);
    }
    load.healed();
    members.iter_mut().for_each(Process::wait_until_ready);
    load.cancel_through(&members.each_ref());
    println!("f34: {} take-overs by those that were there last", rebalances(&members) - before);
    load.wait_for_more(100);
    eventually("all lanes have an owner", || {
        let owned: Vec<usize> = members.iter().map(Process::lanes).collect();
        if owned.iter().sum::<usize>() == 6 { Ok(()) } else { Err(format!("{owned:?}")) }
    });
    let history = load.finish("f34");
    members.iter_mut().for_each(Process::stop_well);
    check(&history, Wish { recovery: SETTLED });
}

/// Lanes that were taken over by these, as their logs tell.
fn rebalances(members: &[Process; 3]) -> f64 {
    members.iter().map(|member| member.log().matches("lanes taken over").count() as f64).sum()
}
