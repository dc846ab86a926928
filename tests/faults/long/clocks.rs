//! F18: the clock of the machine that waterclock runs on is set.

use std::time::{Duration, Instant};

use crate::checkers::{Wish, check};
use crate::load::{Load, Mix, mode};
use crate::support::{Clock, Fixture, Mode, Process, eventually};

const STEPS: &str = "waterclock_local_clock_steps_total";
/// Nothing stalls: what waited for a clock would be late by its step.
const AT_ONCE: Wish = Wish { recovery: Duration::from_secs(3) };

/// Settings of a target: the time of the append, or Kafka's default, which refuses the times of a writer whose clock is an hour
/// ahead, and here of one that is an hour behind.
type Target = &'static [(&'static str, &'static str)];
const BY_APPEND: Target = &[];
const BY_WRITER: Target =
    &[("message.timestamp.type", "CreateTime"), ("message.timestamp.before.max.ms", "3600000")];

/// A process with a clock of its own, under load.
struct Machine<'a> {
    clock: Clock,
    process: Process,
    load: Load<'a>,
    steps: f64,
}

impl<'a> Machine<'a> {
    #[track_caller]
    fn begin(fixture: &'a Fixture, mode: Mode, target: Target) -> Self {
        let clock = Clock::new();
        let mut launch = fixture.launch(mode);
        for (name, value) in clock.environment() {
            launch = launch.env(name, &value);
        }
        let process = launch.start();
        let load = Load::begin(fixture, Mix { target: target.to_vec(), ..Mix::default() });
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
    let mut machine = Machine::begin(&fixture, mode(), BY_APPEND);
    machine.set(3_600_000);
    machine.ends_well("f18-forward", AT_ONCE);
}

#[test]
#[ignore = "scripts/faults --long"]
fn f18_two_hours_forward_cost_nothing_where_targets_keep_the_times_of_writers() {
    for mode in [Mode::ExactlyOnce, Mode::AtLeastOnce] {
        let fixture = Fixture::new("f18-two-forward");
        let mut machine = Machine::begin(&fixture, mode, BY_WRITER);
        machine.set(7_200_000);
        machine.ends_well("f18-two-forward", AT_ONCE);
    }
}

#[test]
#[ignore = "scripts/faults --long"]
fn f18_two_hours_back_cost_nothing_where_targets_keep_the_times_of_writers() {
    for mode in [Mode::ExactlyOnce, Mode::AtLeastOnce] {
        let fixture = Fixture::new("f18-two-back");
        let mut machine = Machine::begin(&fixture, mode, BY_WRITER);
        machine.set(-7_200_000);
        machine.ends_well("f18-two-back", AT_ONCE);
    }
}

#[test]
#[ignore = "scripts/faults --long"]
fn f18_a_step_back_of_the_own_clock_stalls_nothing() {
    let fixture = Fixture::new("f18-back");
    let mut machine = Machine::begin(&fixture, mode(), BY_APPEND);
    machine.set(-3_600_000);
    machine.ends_well("f18-back", AT_ONCE);
}

#[test]
#[ignore = "scripts/faults --long"]
fn f18_a_strobe_of_the_own_clock_disturbs_nothing() {
    let fixture = Fixture::new("f18-strobe");
    let mut machine = Machine::begin(&fixture, mode(), BY_WRITER);
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
