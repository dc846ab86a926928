//! F2: a process that dies between any two steps of a commit, and of what follows it, as by `kill -9`.

use crate::checkers::{Wish, check};
use crate::load::{Load, Mix, mode};
use crate::one::killed::TAKEN_OVER;
use crate::support::{Fixture, PATIENCE};

/// Commits that go well before the one that does not.
const GOOD: usize = 25;

#[track_caller]
fn dies_at(step: &str) {
    let name = format!("f2-{}", step.replace('_', "-"));
    let fixture = Fixture::new(&name);
    let failpoint = format!("{step}={GOOD}*off->return");
    let mut first = fixture.launch(mode()).env("FAILPOINTS", &failpoint).start();
    let load = Load::begin(&fixture, Mix::default());
    assert_eq!(first.wait(PATIENCE), None, "it was to be ended by a signal at {step}");
    assert!(load.seen() > 0, "something was delivered before");
    load.healed();
    let mut second = fixture.start(mode());
    load.cancel_through(&[&second]);
    load.wait_for_more(100);
    let history = load.finish(&name);
    second.stop_well();
    check(&history, Wish { recovery: TAKEN_OVER });
}

#[test]
fn f2_dies_before_a_transaction_begins() {
    dies_at("before_begin");
}

#[test]
fn f2_dies_before_anything_is_produced() {
    dies_at("before_produce");
}

#[test]
fn f2_dies_after_records_were_produced() {
    dies_at("after_produce");
}

#[test]
fn f2_dies_after_offsets_were_sent() {
    dies_at("after_send_offsets");
}

#[test]
fn f2_dies_before_the_commit() {
    dies_at("before_commit");
}

#[test]
fn f2_dies_after_the_commit() {
    dies_at("after_commit");
}

#[test]
fn f2_dies_before_its_index_is_written() {
    dies_at("before_index_write");
}
