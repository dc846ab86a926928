//! F1, F3: instances that are killed.

use std::time::Duration;

use crate::checkers::{Wish, check};
use crate::load::{Load, Mix, mode};
use crate::support::{Fixture, Log, Mode, PATIENCE, Process, written_again};

/// The suite's session timeout, and what a take-over takes besides on a machine that does much else.
pub const TAKEN_OVER: Duration = Duration::from_secs(6 + 6);

/// A run kills at least so many...
const KILLS: usize = 4;
/// ...and goes on until a transaction was open when its instance died, but not for ever.
const KILLS_MAX: usize = 16;

#[test]
fn f1_random_ones_of_three_are_killed_and_restarted_in_their_slots() {
    let fixture = Fixture::with("f1", |request| request.lanes = Some(6));
    let start = |name: &str| fixture.launch(mode()).data(name).start();
    let names = ["a", "b", "c"];
    let mut members = names.map(start);
    let load = Load::begin(&fixture, Mix { rate: 50, ..Mix::default() });
    load.cancel_through(&members.each_ref());
    let mut uncommitted = Log::uncommitted(&fixture, &load.target);
    load.wait_for_more(100);
    let (mut kills, mut aborted) = (0, 0);
    // Nothing is aborted in `at_least_once`: what was in flight is there again.
    let aborts = mode() == Mode::ExactlyOnce;
    while kills < KILLS || (aborts && aborted == 0 && kills < KILLS_MAX) {
        let dies = usize::from(uuid::Uuid::new_v4().as_bytes()[0]) % names.len();
        members[dies].kill();
        kills += 1;
        load.wait_for_more(40);
        members[dies] = start(names[dies]);
        load.cancel_through(&members.each_ref());
        uncommitted.read_on(Duration::from_secs(1));
        aborted = written_again(&uncommitted.seen);
    }
    load.healed();
    load.wait_for_more(60);
    let history = load.finish("f1");
    members.iter_mut().for_each(Process::stop_well);
    println!("f1: {kills} kills, {aborted} records were written again after an abort");
    assert!(!aborts || aborted > 0, "no transaction was open at any of {kills} kills");
    check(&history, Wish { recovery: TAKEN_OVER });
}

/// `transaction_timeout` of the suite, the broker's look for what timed out, and a take-over.
const ABORTED_AND_TAKEN_OVER: Duration = Duration::from_secs(10 + 2 + 8);

/// In `exactly_once` it dies with a transaction open, of which another slot cannot say that it is over; in `at_least_once`
/// with deliveries that are acknowledged, and no commit of where they stood.
#[test]
fn f3_what_a_killed_instance_left_open_is_taken_over_by_another_slot() {
    let step = match mode() {
        Mode::ExactlyOnce => "after_send_offsets",
        Mode::AtLeastOnce => "before_commit",
    };
    let fixture = Fixture::new("f3");
    // So many that most commits finish deliveries, also on a machine that commits fifty times a second.
    let load = Load::begin(&fixture, Mix { rate: 250, ..Mix::default() });
    let mut uncommitted = Log::uncommitted(&fixture, &load.target);
    // Whether deliveries are in it is chance.
    let mut second: Option<Process> = None;
    let mut deaths = 0;
    while written_again(&uncommitted.seen) == 0 && deaths < KILLS_MAX {
        if let Some(mut second) = second.take() {
            second.stop_well();
        }
        let failpoint = format!("{step}={}*off->return", 20 + deaths);
        // It may die before it is ready, as it takes what waits while it starts.
        let mut first = fixture.launch(mode()).data("a").env("FAILPOINTS", &failpoint).spawn();
        assert_eq!(first.wait(PATIENCE), None, "it was to be ended by a signal");
        deaths += 1;
        load.healed();
        second = Some(fixture.launch(mode()).data("b").start());
        load.wait_for_more(100);
        uncommitted.read_on(Duration::from_secs(2));
    }
    let again = written_again(&uncommitted.seen);
    let history = load.finish("f3");
    second.iter_mut().for_each(Process::stop_well);
    println!("f3: {deaths} deaths, {again} records were written again");
    assert!(again > 0, "nothing was left open");
    check(&history, Wish { recovery: ABORTED_AND_TAKEN_OVER });
}
