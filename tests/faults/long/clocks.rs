//! F18: the clock of the machine that waterclock runs on is set.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::checkers::{Wish, check};
use crate::load::{Load, Mix};
use crate::support::{Fixture, Mode, Process, eventually, faketime};

const STEPS: &str = "waterclock_local_clock_steps_total";

/// Sets the clock by so many seconds, as seen by the process.
fn set(file: &Path, by: &str) {
    // Whole at once: it is read all the time.
    let fresh = file.with_extension("new");
    std::fs::write(&fresh, format!("{by}\n")).expect("written");
    std::fs::rename(fresh, file).expect("renamed");
}

#[track_caller]
fn noticed(process: &Process, before: f64) -> f64 {
    eventually("the step is noticed", || match process.metric(STEPS) {
        steps if steps > before => Ok(steps),
        steps => Err(format!("{steps}")),
    })
}

#[test]
#[ignore = "scripts/faults --long: fails when the clock is set back by an hour, see rows.txt"]
fn f18_no_step_of_the_own_clock_fires_early_or_stalls() {
    let fixture = Fixture::new("f18");
    let file: PathBuf = fixture.path("clock");
    set(&file, "+0");
    let mut launch = fixture.launch(Mode::ExactlyOnce);
    for (name, value) in faketime(&file) {
        launch = launch.env(&name, &value);
    }
    let mut process = launch.start();
    let load = Load::begin(&fixture, Mix::default());
    load.cancel_through(&[&process]);
    load.wait_for_more(60);
    let mut steps = process.metric(STEPS);
    for by in ["+3600", "+0", "-3600", "+0"] {
        set(&file, by);
        steps = noticed(&process, steps);
        load.wait_for_more(60);
    }
    // A strobe: half a second forward and back, several times a second.
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        for by in ["+0.5", "-0.5"] {
            set(&file, by);
            std::thread::sleep(Duration::from_millis(120));
        }
    }
    set(&file, "+0");
    steps = noticed(&process, steps + 10.0);
    load.healed();
    load.wait_for_more(60);
    let history = load.finish("f18");
    process.stop_well();
    // Nothing stalled at any step: what waited for a clock would be late by its step.
    check(&history, Wish { recovery: Duration::from_secs(3) });
    println!("f18: {steps} steps noticed");
}
