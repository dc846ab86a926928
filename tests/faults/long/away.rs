//! F10, F45: all brokers are away.

use std::time::{Duration, Instant};

use crate::checkers::{Wish, check};
use crate::load::{Load, Mix, mode};
use crate::support::{Cluster, Fixture, Process, eventually, patient};

const AWAY: Duration = Duration::from_secs(120);
/// `drain` is 8 s by default; beyond it a stop takes at most 4 s.
const STOP_MAX: Duration = Duration::from_secs(12);

/// Seconds of CPU that a process has used.
fn cpu_seconds(process: &Process) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).expect("it runs");
    let of = stat.rsplit(") ").next().expect("fields").split(' ').collect::<Vec<_>>();
    let ticks: f64 = [11, 12].iter().map(|n| of[*n].parse::<f64>().expect("ticks")).sum();
    // USER_HZ is 100 on every Linux.
    ticks / 100.0
}

#[test]
#[ignore = "scripts/faults --long: two minutes without brokers"]
fn f10_all_brokers_away_for_two_minutes_are_waited_for_in_peace() {
    let cluster = Cluster::start("");
    let fixture = Fixture::on(cluster.connection(), "f10", |_| {});
    let mut process = fixture.start(mode());
    let mut stopped = fixture.launch(mode()).data("b").start();
    let load = Load::begin(&fixture, Mix { rate: 20, ..Mix::default() });
    load.wait_for_more(60);
    cluster.kill();
    let began = Instant::now();

    // F45: a stop is bounded then, too.
    let (code, took) = stopped.stop();
    assert!(code == Some(0) && took < patient(STOP_MAX), "{code:?} after {took:?}");

    eventually("it says that it is not ready", || match process.get("/health/ready")? {
        (503, _) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let (before, at) = (cpu_seconds(&process), Instant::now());
    while began.elapsed() < AWAY {
        let (code, body) = process.get("/health/live").expect("it lives");
        assert_eq!(code, 200, "{body}");
        std::thread::sleep(Duration::from_secs(2));
    }
    let used = (cpu_seconds(&process) - before) / at.elapsed().as_secs_f64();
    assert!(used < 0.1, "it used {:.0} % of a core while it waited", used * 100.0);
    cluster.restart();
    load.healed();
    load.wait_for_more(60);
    let history = load.finish_within("f10", Duration::from_secs(120));
    process.stop_well();
    check(&history, Wish { recovery: Duration::from_secs(40) });
    println!("f10: {:.1} % of a core while away; a stop then took {took:.1?}", used * 100.0);
}
