//! F37, F39, F47: records that nobody can deliver, and rights that are taken away at run time.

use std::time::Duration;

use crate::checkers::{Wish, check};
use crate::load::{Fate, Load, Mix, mode};
use crate::support::{
    Fixture, Mode, PATIENCE, Resource, Right, allow, allow_only, eventually, whole,
};

const AT_ONCE: Wish = Wish { recovery: Duration::from_secs(3) };

#[test]
fn f37_what_is_larger_than_its_target_takes_is_a_dead_letter_and_holds_nobody_up() {
    let fixture = Fixture::new("f37");
    let mut process = fixture.start(mode());
    let target = vec![("max.message.bytes", "2000")];
    let load = Load::begin(&fixture, Mix { rate: 50, large_every: 7, target, ..Mix::default() });
    load.cancel_through(&[&process]);
    load.wait_for_more(400);
    let history = load.finish("f37");
    process.stop_well();
    assert!(history.dead.len() > 40, "{} dead letters", history.dead.len());
    check(&history, AT_ONCE);
}

#[test]
fn f47_half_of_all_records_are_malformed_and_the_others_are_on_time() {
    let fixture = Fixture::new("f47");
    let mut process = fixture.start(mode());
    let load = Load::begin(&fixture, Mix { rate: 300, poison_every: 2, ..Mix::default() });
    load.cancel_through(&[&process]);
    load.wait_for_more(2_000);
    let history = load.finish("f47");
    process.stop_well();
    assert!(history.dead.len() > 1_500, "{} dead letters", history.dead.len());
    check(&history, AT_ONCE);
}

#[test]
fn f39_a_target_that_may_not_be_written_to_any_more_costs_its_own_records_only() {
    let fixture = Fixture::new("f39-target");
    let mut process = fixture.start(mode());
    let load = Load::begin(&fixture, Mix::default());
    load.cancel_through(&[&process]);
    load.wait_for_more(60);
    let rights = [Right::Describe, Right::DescribeConfigs, Right::Read, Right::Delete];
    allow_only(&load.target, &rights);
    eventually("records are refused", || {
        let dead = process.metric("waterclock_dead_letters_total");
        if dead >= 20.0 { Ok(()) } else { Err(format!("{dead} dead letters")) }
    });
    allow_only(&load.target, &[Right::Write]);
    load.healed();
    load.wait_for_more(60);
    let mut history = load.finish("f39-target");
    process.stop_well();
    history.sent.iter_mut().for_each(|sent| sent.fate = Fate::Either("target_refused"));
    check(&history, Wish { recovery: Duration::from_secs(5) });
}

#[test]
fn f39_a_process_without_its_transactional_ids_stops_and_says_why() {
    let fixture = Fixture::new("f39-ids");
    let mut process = fixture.start(Mode::ExactlyOnce);
    let load = Load::begin(&fixture, Mix::default());
    load.cancel_through(&[&process]);
    load.wait_for_more(60);
    let ids = Resource::TransactionalIds(fixture.namespace());
    allow(ids, &[Right::Describe]);
    let code = process.wait(PATIENCE);
    let log = process.log();
    let last = log.lines().last().unwrap_or_default();
    println!("f39-ids: ended with {code:?}: {last}");
    assert_eq!(code, Some(70), "{log}");
    assert!(log.to_lowercase().contains("transactional id authorization failed"), "{log}");
    allow(ids, &[Right::All]);
    load.healed();
    process = fixture.start(Mode::ExactlyOnce);
    load.cancel_through(&[&process]);
    load.wait_for_more(100);
    let history = load.finish("f39-ids");
    process.stop_well();
    check(&history, Wish { recovery: Duration::from_secs(15) });
}

#[test]
fn f39_a_process_without_its_group_waits_until_it_may_use_it_again() {
    let fixture = Fixture::new("f39-group");
    let mut process = fixture.start(mode());
    let load = Load::begin(&fixture, Mix::default());
    load.cancel_through(&[&process]);
    load.wait_for_more(60);
    let group = Resource::Group(fixture.namespace());
    allow(group, &[Right::Describe]);
    eventually("nothing is delivered any more", || {
        let seen = load.seen();
        std::thread::sleep(Duration::from_secs(2));
        if load.seen() == seen { Ok(()) } else { Err(format!("{seen}, {}", load.seen())) }
    });
    let (ready, why) = process.get("/health/ready").expect("it answers");
    println!("f39-group: ready {ready}: {why}");
    allow(group, &[Right::All]);
    load.healed();
    load.wait_for_more(100);
    let history = load.finish("f39-group");
    process.stop_well();
    assert!(whole(&fixture, &fixture.names.dead()).is_empty());
    check(&history, Wish { recovery: Duration::from_secs(15) });
}
