//! How long the lanes pause after a fault: `scripts/recovery` starts a cluster of three and runs this.
//!
//! Records fall due every 10 ms, over all lanes. All of them are submitted before the fault, so the test measures the
//! processor and not the submission. An outside `read_committed` reader runs from before the first. The lateness of a
//! record is the time that the target's leader gave it, minus its due time. *Seen* is counted in the same way from when
//! the reader had the record, and includes the reader's own recovery. Every record must be there once and none early,
//! or the case has failed.
//!
//! What it does not do: it decides nothing. `tests/faults` has the bounds.
#![allow(unreachable_pub, reason = "a test target has no outside")]
#![allow(clippy::print_stdout, reason = "the result is what is printed")]
#![allow(clippy::unwrap_used, reason = "in a test that is how a wish is stated")]

mod stream;
#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "the tests on a real Kafka use another part of it"
)]
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use stream::{Fault, Outcome, Stream};
use support::{Fixture, Launch, Mode, Nodes, Process, eventually};

/// From the first due record to the fault.
const BEFORE: Duration = Duration::from_secs(8);

/// What is done to whom.
struct Case {
    name: &'static str,
    what: &'static str,
    /// From the fault to the last due record.
    after: Duration,
    run: fn(&Bed<'_>, &Stream) -> Fault,
}

const CASES: [Case; 7] = [
    Case {
        name: "killed",
        what: "the only process is killed (-9) and started again at once",
        after: Duration::from_secs(25),
        run: killed,
    },
    Case {
        name: "taken-over",
        what: "one of two processes is killed (-9) and stays away",
        after: Duration::from_secs(25),
        run: taken_over,
    },
    Case {
        name: "restarted",
        what: "the only process is stopped (SIGTERM) and started again when it has ended",
        after: Duration::from_secs(15),
        run: restarted,
    },
    Case {
        name: "restarted-of-two",
        what: "the same, beside another",
        after: Duration::from_secs(15),
        run: restarted_of_two,
    },
    Case {
        name: "broker-killed",
        what: "the broker that coordinates the group is killed (-9) and stays away",
        after: Duration::from_secs(35),
        run: broker_killed,
    },
    Case {
        name: "broker-frozen",
        what: "the broker that coordinates the group is frozen (SIGSTOP) and stays so",
        after: Duration::from_secs(35),
        run: broker_frozen,
    },
    Case {
        name: "broker-stopped",
        what: "the broker that coordinates the group is stopped (SIGTERM) and stays away",
        after: Duration::from_secs(25),
        run: broker_stopped,
    },
];

/// What a case runs on.
struct Bed<'a> {
    fixture: &'a Fixture,
    nodes: &'a Nodes,
    mode: Mode,
}

impl Bed<'_> {
    /// With the times that waterclock has by itself.
    fn launch(&self, data: &str) -> Launch<'_> {
        self.fixture.launch(self.mode).data(data).defaults()
    }

    /// Two that have shared the lanes.
    fn two(&self) -> (Process, Process) {
        let (a, b) = (self.launch("a").start(), self.launch("b").start());
        eventually("two share the lanes", || {
            let owned = (a.lanes(), b.lanes());
            if owned == (3, 3) { Ok(()) } else { Err(format!("{owned:?}")) }
        });
        (a, b)
    }
}

fn killed(bed: &Bed<'_>, stream: &Stream) -> Fault {
    let mut process = bed.launch("a").start();
    let fault = stream.until_fault(BEFORE);
    process.kill();
    fault.with([process, bed.launch("a").spawn()])
}

fn taken_over(bed: &Bed<'_>, stream: &Stream) -> Fault {
    let (mut a, b) = bed.two();
    let fault = stream.until_fault(BEFORE);
    a.kill();
    fault.with([a, b])
}

fn restarted(bed: &Bed<'_>, stream: &Stream) -> Fault {
    let mut process = bed.launch("a").start();
    let fault = stream.until_fault(BEFORE);
    let (code, took) = process.stop();
    assert_eq!(code, Some(0), "after {took:?}");
    println!("  the stop took {took:?}");
    fault.with([process, bed.launch("a").spawn()])
}

fn restarted_of_two(bed: &Bed<'_>, stream: &Stream) -> Fault {
    let (mut a, b) = bed.two();
    let fault = stream.until_fault(BEFORE);
    let (code, took) = a.stop();
    assert_eq!(code, Some(0), "after {took:?}");
    println!("  the stop took {took:?}");
    fault.with([a, bed.launch("a").spawn(), b])
}

fn broker_killed(bed: &Bed<'_>, stream: &Stream) -> Fault {
    let process = bed.launch("a").start();
    let node = bed.nodes.group_coordinator(bed.fixture.namespace());
    let fault = stream.until_fault(BEFORE);
    bed.nodes.kill(node);
    fault.with([process])
}

fn broker_frozen(bed: &Bed<'_>, stream: &Stream) -> Fault {
    let process = bed.launch("a").start();
    let node = bed.nodes.group_coordinator(bed.fixture.namespace());
    let fault = stream.until_fault(BEFORE);
    bed.nodes.pause(node);
    fault.with([process])
}

fn broker_stopped(bed: &Bed<'_>, stream: &Stream) -> Fault {
    let process = bed.launch("a").start();
    let node = bed.nodes.group_coordinator(bed.fixture.namespace());
    let fault = stream.until_fault(BEFORE);
    bed.nodes.stop(node);
    fault.with([process])
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

fn measure(nodes: &Nodes, case: &Case) -> Outcome {
    nodes.heal();
    let mode = Mode::ExactlyOnce;
    let fixture = Fixture::with(&format!("recovery-{}", case.name), |request| {
        request.lanes = Some(6);
        request.holds = None;
    });
    let target = fixture.target("out", 6);
    let bed = Bed { fixture: &fixture, nodes, mode };
    let stream = Stream::prepare(&fixture, &target, BEFORE + case.after);
    let fault = (case.run)(&bed, &stream);
    let outcome = stream.end(fault);
    nodes.heal();
    outcome
}

fn main() {
    let logs = std::env::args().any(|word| word == "--logs");
    let asked: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let chosen = |case: &&Case| asked.is_empty() || asked.iter().any(|name| name == case.name);
    let unknown = asked.iter().find(|name| !CASES.iter().any(|case| case.name == **name));
    if let Some(name) = unknown {
        let names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
        println!("no case {name}; there are {}", names.join(", "));
        std::process::exit(64);
    }
    let nodes = Nodes::ours();
    println!("{} brokers; load average {} before", nodes.all.len(), load());
    let mut all_good = true;
    for case in CASES.iter().filter(chosen) {
        println!("{}: {}", case.name, case.what);
        let outcome = measure(&nodes, case);
        println!("{outcome}");
        all_good &= outcome.is_good();
        if logs {
            outcome.logs.iter().for_each(|log| println!("---- log\n{log}"));
        }
        println!("  load average {} after", load());
    }
    std::process::exit(i32::from(!all_good));
}
