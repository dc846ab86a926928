//! F16: requests that are delayed on their way until they are no longer welcome.
//!
//! A proxy holds one `EndTxn` until librdkafka gives up waiting (`socket.timeout.ms`, 8 s) and asks again on a new
//! connection. The held one reaches the broker in the middle of the next transaction, before its offsets. If that
//! transaction had the same epoch, a part of it would be committed without the rest (KAFKA-17754, librdkafka 5423).

use std::time::Duration;

use crate::checkers::{Wish, check};
use crate::load::{History, Load, Mix};
use crate::support::{END_TXN, Fixture, Launch, Mode, Proxy, State, TXN_OFFSET_COMMIT};

const RENEWED: &str = "waterclock_producers_renewed_total";

/// What the broker answers when a transaction goes on that was ended already.
const ENDED_BEFORE: &str = "INVALID_TXN_STATE";

/// What came of a load during which one commit was delayed.
struct Outcome {
    history: History,
    /// Producers that were renewed since.
    renewed: f64,
    log: String,
}

#[track_caller]
fn with_a_delayed_commit(name: &str, change: fn(Launch<'_>) -> Launch<'_>) -> Outcome {
    let fixture = Fixture::new(name);
    let proxy = Proxy::shared();
    let mut process = change(fixture.launch(Mode::ExactlyOnce)).brokers(&proxy.brokers).start();
    let load = Load::begin(&fixture, Mix { rate: 80, ..Mix::default() });
    load.cancel_through(&[&process]);
    load.wait_for_more(100);
    let before = process.metric(RENEWED);
    let hold = proxy.hold(END_TXN, fixture.namespace(), Some(TXN_OFFSET_COMMIT));
    hold.wait_until(State::CarriedOut);
    load.healed();
    load.wait_for_more(100);
    let renewed = process.metric(RENEWED) - before;
    let history = load.finish(name);
    process.stop_well();
    Outcome { history, renewed, log: process.log() }
}

#[test]
fn f16_a_held_commit_never_shows_an_aborted_read() {
    let Outcome { history, renewed, log } = with_a_delayed_commit("f16", |launch| launch);
    assert!(renewed >= 1.0, "a commit that slow makes a producer dirty");
    assert!(!log.contains(ENDED_BEFORE), "the held commit ended a later transaction");
    check(&history, Wish { recovery: Duration::from_secs(5) });
}

/// Shows that the row above can fail: without the rule the held commit does end the next transaction.
#[test]
fn f16_without_a_new_producer_a_held_commit_ends_the_next_transaction() {
    let Outcome { log, .. } = with_a_delayed_commit("f16-kept", |launch| {
        launch.env("FAILPOINTS", "keep_dirty_producer=return")
    });
    assert!(log.contains(ENDED_BEFORE), "nothing was ended by the held commit");
}
