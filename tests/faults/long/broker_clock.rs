//! F19: the clock of a broker is set.

use std::path::Path;
use std::time::Duration;

use crate::checkers::{Wish, check};
use crate::load::{Load, Mix};
use crate::support::{Cluster, Fixture, Mode, Process, eventually, faketime};

const SKEW: &str = "waterclock_clock_skew_seconds";
const STEPS: &str = "waterclock_clock_steps_total";

#[track_caller]
fn skewed(process: &Process, what: &str, so: impl Fn(f64) -> bool) {
    eventually(what, || match process.metric(SKEW) {
        skew if so(skew) => Ok(()),
        skew => Err(format!("{skew} s")),
    });
}

#[test]
#[ignore = "scripts/faults --long: a broker of its own"]
fn f19_nothing_is_early_by_the_clock_of_a_broker_that_is_set() {
    let files = tempfile::tempdir().expect("a directory");
    let file = files.path().join("clock");
    let set = |by: &str| {
        let fresh = file.with_extension("new");
        std::fs::write(&fresh, format!("{by}\n")).expect("written");
        std::fs::rename(fresh, &file).expect("renamed");
    };
    set("+0");
    let mut environment = faketime(Path::new(&file));
    // Read once a second, not at every look at the clock: a JVM looks often.
    environment.retain(|(name, _)| name != "FAKETIME_NO_CACHE");
    environment.push(("FAKETIME_CACHE_DURATION".into(), "1".into()));
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(name, value)| (&**name, &**value)).collect();
    let cluster = Cluster::start_with("", &environment);
    let [first, second] =
        ["f19-ahead", "f19-behind"].map(|name| Fixture::on(cluster.connection(), name, |_| {}));
    let [mut ahead, mut behind] = [&first, &second].map(|f| f.start(Mode::ExactlyOnce));
    skewed(&ahead, "the clocks agree", |skew| skew.abs() < 0.5);

    // Ahead: whatever is pending is due by that clock, and not before.
    let load = Load::begin(&first, Mix::default());
    load.wait_for_more(60);
    set("+600");
    skewed(&ahead, "the skew is a metric", |skew| (599.0..601.0).contains(&skew));
    ahead.wait_until_logged(
        Duration::from_secs(10),
        "the clocks of a broker and of this machine differ",
    );
    let (_, body) = ahead.get("/health/ready").expect("an answer");
    assert!(body.contains("ahead of this machine's"), "{body}");
    load.wait_for_more(60);
    let history = load.finish("f19-ahead");
    check(&history, Wish { recovery: Duration::from_secs(620) });

    // Behind, by a step back of twenty minutes.
    set("-600");
    skewed(&behind, "the skew is a metric", |skew| (-601.0..-599.0).contains(&skew));
    assert!(behind.metric(STEPS) >= 1.0, "that it went back is counted");
    let load = Load::begin(&second, Mix::default());
    load.wait_for_more(120);
    let history = load.finish("f19-behind");
    check(&history, Wish { recovery: Duration::from_secs(10) });
    ahead.stop_well();
    behind.stop_well();
}
