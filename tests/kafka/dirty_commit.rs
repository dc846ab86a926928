//! A commit that was delayed on its way must not end a later transaction (KAFKA-17754, librdkafka 5423).
//!
//! A proxy holds one `EndTxn` until librdkafka gives up waiting (`socket.timeout.ms`, 8 s) and asks again on a new
//! connection. The held one reaches the broker in the middle of the next transaction, before its offsets. If that
//! transaction had the same epoch, a part of it would be committed without the rest.

use std::sync::{Mutex, PoisonError};

use crate::support::{
    END_TXN, Fixture, Launch, Load, Log, Mode, Proxy, Rec, TXN_OFFSET_COMMIT, assert_each_once,
    eventually, variable, whole,
};

/// There is one listener behind which a proxy can stand.
static PROXY: Mutex<()> = Mutex::new(());

/// What came of a load during which one commit was delayed.
struct Outcome {
    sent: usize,
    seen: Vec<Rec>,
    /// Producers that were renewed since.
    renewed: f64,
    log: String,
}

#[track_caller]
fn with_a_delayed_commit(test: &str, change: fn(Launch<'_>) -> Launch<'_>) -> Outcome {
    let _alone = PROXY.lock().unwrap_or_else(PoisonError::into_inner);
    let fixture = Fixture::new(test);
    let target = fixture.target("out", 3);
    let listen = variable("KAFKA_PROXY_LISTEN");
    let proxy = Proxy::start(&listen, &variable("KAFKA_PROXY_UPSTREAM"));
    let mut log = Log::open(&fixture, &target);
    let outcome = std::thread::scope(|scope| {
        let mut process = change(fixture.launch(Mode::ExactlyOnce)).brokers(&listen).start();
        let load = Load::start(scope, &fixture, &target, 100);
        log.count(100);
        let before = process.metric(RENEWED);
        proxy.hold(END_TXN, TXN_OFFSET_COMMIT);
        eventually("a commit was held and let go", || match proxy.held_and_released() {
            (1, 1) => Ok(()),
            other => Err(format!("(held, released) is {other:?}")),
        });
        let sent = load.end();
        log.ids(sent);
        fixture.wait_until_nothing_is_pending();
        let renewed = process.metric(RENEWED) - before;
        process.stop_well();
        let log = process.log();
        println!("{log}");
        Outcome { sent, seen: whole(&fixture, &target), renewed, log }
    });
    drop(proxy);
    eventually("the listener's address is free again", || {
        std::net::TcpListener::bind(&listen).map(drop).map_err(|error| error.to_string())
    });
    outcome
}

const RENEWED: &str = "waterclock_producers_renewed_total";

/// What the broker answers when a transaction goes on that was ended already.
const ENDED_BEFORE: &str = "INVALID_TXN_STATE";

#[test]
fn a_delayed_commit_does_not_end_a_later_transaction() {
    let Outcome { sent, seen, renewed, log } = with_a_delayed_commit("dirty", |launch| launch);
    assert_each_once(Load::ids(sent), &seen);
    assert!(renewed >= 1.0, "a commit that slow makes a producer dirty");
    assert!(!log.contains(ENDED_BEFORE), "the held commit ended a later transaction");
}

/// Shows that the test above can fail: without the rule the held commit does end the next transaction.
#[cfg(feature = "failpoints")]
#[test]
fn without_a_new_producer_a_delayed_commit_ends_the_next_transaction() {
    let Outcome { log, .. } = with_a_delayed_commit("dirty-kept", |launch| {
        launch.env("FAILPOINTS", "keep_dirty_producer=return")
    });
    assert!(log.contains(ENDED_BEFORE), "nothing was ended by the held commit");
}
