//! F18: the clock of the machine that waterclock runs on is set.

use std::time::{Duration, Instant};

use crate::checkers::{Wish, check};
use crate::load::{Load, Mix};
use crate::support::{Clock, Fixture, Mode, Process, eventually};

const STEPS: &str = "waterclock_local_clock_steps_total";
/// Nothing stalls: what waited for a clock would be late by its step.
const AT_ONCE: Wish = Wish { recovery: Duration::from_secs(3) };

/// A process with a clock of its own, under load.
struct Machine<'a> {
    clock: Clock,
    process: Process,
    load: Load<'a>,
    steps: f64,
}

impl<'a> Machine<'a> {
    #[track_caller]
    fn begin(fixture: &'a Fixture) -> Self {
        let clock = Clock::new();
        let mut launch = fixture.launch(Mode::ExactlyOnce);
        for (name, value) in clock.environment() {
            launch = launch.env(name, &value);
        }
        let process = launch.start();
        let load = Load::begin(fixture, Mix::default());
        load.cancel_through(&[&process]);
        load.wait_for_more(60);
        let steps = process.metric(STEPS);
        Self { clock, process, load, steps }
    }

    /// Sets the clock, and waits until the process has noticed that.
    #[track_caller]
    fn set(&mut self, ahead_ms: i64) {
        self.clock.set(ahead_ms);
        self.noticed(self.steps);
    }

    #[track_caller]
    fn noticed(&mut self, before: f64) {
        self.steps = eventually("the step is noticed", || match self.process.metric(STEPS) {
            steps if steps > before => Ok(steps),
            steps => Err(format!("{steps}")),
        });
    }

    /// From here on all goes well, with the clock as it is now.
    #[track_caller]
    fn ends_well(mut self, name: &str, wish: Wish) {
        self.load.healed();
        self.load.wait_for_more(300);
        let history = self.load.finish(name);
        self.process.stop_well();
        check(&history, wish);
        println!("{name}: {} steps noticed", self.steps);
    }
}

#[test]
#[ignore = "scripts/faults --long"]
fn f18_a_step_forward_of_the_own_clock_fires_nothing_early() {
    let fixture = Fixture::new("f18-forward");
    let mut machine = Machine::begin(&fixture);
    machine.set(3_600_000);
    machine.ends_well("f18-forward", AT_ONCE);
}

#[test]
#[ignore = "scripts/faults --long"]
fn f18_a_step_back_of_the_own_clock_stalls_nothing() {
    let fixture = Fixture::new("f18-back");
    let mut machine = Machine::begin(&fixture);
    machine.set(-3_600_000);
    machine.ends_well("f18-back", AT_ONCE);
}

#[test]
#[ignore = "scripts/faults --long"]
fn f18_a_strobe_of_the_own_clock_disturbs_nothing() {
    let fixture = Fixture::new("f18-strobe");
    let mut machine = Machine::begin(&fixture);
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        for ahead_ms in [500, -500] {
            machine.clock.set(ahead_ms);
            std::thread::sleep(Duration::from_millis(120));
        }
    }
    machine.clock.set(0);
    machine.noticed(machine.steps + 10.0);
    machine.ends_well("f18-strobe", AT_ONCE);
}
