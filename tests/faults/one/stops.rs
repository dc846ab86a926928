//! F45: told to stop, in the middle of whatever.

use std::time::{Duration, Instant};

use crate::checkers::{Wish, check};
use crate::load::{Load, Mix, mode};
use crate::support::{Fixture, Mode, Process, patient};

/// `drain` is 8 s by default; beyond it a stop takes at most 4 s.
const STOP_MAX: Duration = Duration::from_secs(12);

/// SIGTERM; it ends with 0 within the bound.
#[track_caller]
fn ends_in_time(process: &mut Process, when: &str) -> Duration {
    let (code, took) = process.stop();
    assert!(code == Some(0) && took < patient(STOP_MAX), "{when}: {code:?} after {took:?}");
    took
}

#[test]
fn f45_a_stop_is_bounded_and_loses_nothing() {
    let fixture = Fixture::new("f45");
    let mut process = fixture.start(mode());
    let load = Load::begin(&fixture, Mix { rate: 120, ..Mix::default() });
    load.wait_for_more(150);

    let under_load = ends_in_time(&mut process, "under load");

    // While it starts: as soon as it can be told anything, and somewhat later.
    let mut starting = Vec::new();
    for words in ["HTTP server listens", "starting", "assigned", "lanes taken over"] {
        let mut process = fixture.launch(mode()).spawn();
        process.wait_until_logged(Duration::from_secs(60), words);
        starting.push(ends_in_time(&mut process, words));
    }

    // With its index gone, so that it is read again from the changelog.
    std::fs::remove_dir_all(fixture.path("a").join("index")).expect("an index");
    let mut process = fixture.launch(mode()).spawn();
    process.wait_until_logged(Duration::from_secs(60), "lanes taken over");
    let rebuilding = ends_in_time(&mut process, "while the index is rebuilt");

    // While it waits for a transaction that another left open.
    // Or, where there are none, for the session of one that was killed.
    let dying = fixture.launch(mode()).data("dies");
    if mode() == Mode::ExactlyOnce {
        let mut dying = dying.env("FAILPOINTS", "after_send_offsets=20*off->return").spawn();
        assert_eq!(dying.wait(Duration::from_secs(60)), None, "it aborted itself");
    } else {
        dying.start().kill();
    }
    let mut heir = fixture.launch(mode()).data("heir").spawn();
    heir.wait_until_logged(Duration::from_secs(60), "assigned");
    let taking_over = ends_in_time(&mut heir, "while it takes over");

    // Twice: at once, and it says so.
    let mut process = fixture.start(mode());
    load.wait_for_more(50);
    process.terminate();
    process.wait_until_logged(Duration::from_secs(10), "stopping; a second");
    let again = Instant::now();
    process.terminate();
    let code = process.wait(Duration::from_secs(5));
    // The first may have been enough by then.
    assert!(matches!(code, Some(143 | 0)), "{code:?}");
    let twice = again.elapsed();

    let mut process = fixture.start(mode());
    load.healed();
    load.wait_for_more(150);
    let history = load.finish("f45");
    process.stop_well();
    check(&history, Wish { recovery: Duration::from_secs(20) });
    println!(
        "f45: under load {under_load:.1?}, starting {starting:.1?}, rebuilding {rebuilding:.1?}, taking over \
         {taking_over:.1?}, twice {twice:.1?}"
    );
}
