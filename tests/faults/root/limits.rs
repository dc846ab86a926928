//! F42, F43: a fifth of a core, and too little memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::checkers::{Wish, check};
use crate::load::{Load, Mix, mode};
use crate::support::{Fixture, Log, PATIENCE, eventually, hostile};

/// A control group of this row's, gone with it.
pub(crate) struct Group {
    at: PathBuf,
}

impl Group {
    /// With these limits, in the words of version 1 of control groups and of version 2.
    #[track_caller]
    fn new(name: &str, controller: &str, first: &[(&str, &str)], second: &[(&str, &str)]) -> Self {
        Self::try_new(name, controller, first, second).expect("a control group")
    }

    /// The same; `None` where we may not make one.
    pub(crate) fn try_new(
        name: &str,
        controller: &str,
        first: &[(&str, &str)],
        second: &[(&str, &str)],
    ) -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let of_first = root.join(controller);
        let (root, limits) =
            if of_first.is_dir() { (of_first, first) } else { (root.into(), second) };
        let at = root.join(format!("waterclock-{name}-{}", std::process::id()));
        fs::create_dir(&at).ok()?;
        let group = Self { at };
        for (file, value) in limits {
            fs::write(group.at.join(file), value).unwrap_or_else(|e| panic!("{file}: {e}"));
        }
        Some(group)
    }

    /// The command by which a process begins in it.
    pub(crate) fn enter(&self) -> [String; 4] {
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.at.display());
        ["sh".to_owned(), "-c".to_owned(), enter, "sh".to_owned()]
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.at.join(name)).unwrap_or_default()
    }

    /// A count in one of its files.
    fn count(&self, file: &str, name: &str) -> u64 {
        let text = self.file(file);
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        found.unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process may still be on its way out.
        for _ in 0..50 {
            if fs::remove_dir(&self.at).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
#[ignore = "needs root: scripts/faults --root"]
fn f42_a_fifth_of_a_core_is_late_and_never_early_and_keeps_its_session() {
    let fixture = Fixture::new("f42");
    let group = Group::new(
        "f42",
        "cpu",
        &[("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "20000")],
        &[("cpu.max", "20000 100000")],
    );
    let enter = group.enter();
    let enter = enter.each_ref().map(|word| &**word);
    let mut process = fixture.launch(mode()).through(&enter).start();
    let load = Load::begin(&fixture, Mix { rate: 15, ..Mix::default() });
    load.cancel_through(&[&process]);
    // Beside other tests it may not get so much as its limit: questions make it want more.
    eventually("it wants more than it gets", || {
        for _ in 0..50 {
            process.get("/metrics")?;
        }
        match group.count("cpu.stat", "nr_throttled ") {
            0 => Err("it had all that it wanted".to_owned()),
            _ => Ok(()),
        }
    });
    load.wait_for_more(300);
    let revoked = process.log().matches("revoked partitions").count();
    let history = load.finish("f42");
    process.stop_well();
    let throttled = group.count("cpu.stat", "nr_throttled ");
    println!("f42: throttled {throttled} times");
    assert!(throttled > 0, "it had all that it wanted");
    assert_eq!(revoked, 0, "its session was lost");
    check(&history, Wish { recovery: Duration::from_secs(10) });
}

#[test]
#[ignore = "needs root: scripts/faults --root"]
fn f43_a_process_that_the_kernel_kills_for_its_memory_loses_nothing() {
    let fixture = Fixture::new("f43-memory");
    let few = "25165824";
    let group = Group::new(
        "f43",
        "memory",
        &[("memory.limit_in_bytes", few)],
        &[("memory.max", few), ("memory.swap.max", "0")],
    );
    let enter = group.enter();
    let enter = enter.each_ref().map(|word| &**word);
    let load = Load::begin(&fixture, Mix::default());
    let mut process = fixture.launch(mode()).through(&enter).spawn();
    assert_eq!(process.wait(PATIENCE), None, "it was to be killed: {}", group.file("memory.stat"));
    load.healed();
    process = fixture.start(mode());
    load.cancel_through(&[&process]);
    load.wait_for_more(100);
    let history = load.finish("f43-memory");
    process.stop_well();
    check(&history, Wish { recovery: Duration::from_secs(15) });
}

#[test]
#[ignore = "needs root: scripts/faults --root"]
fn f43_a_hostile_producer_cannot_have_a_process_killed_in_half_a_gibibyte() {
    let fixture = Fixture::new("f43-hostile");
    let target = fixture.target("hostile", 1);
    let most = "536870912";
    let group = Group::new(
        "f43-hostile",
        "memory",
        &[("memory.limit_in_bytes", most)],
        &[("memory.max", most), ("memory.swap.max", "0")],
    );
    let enter = group.enter();
    let enter = enter.each_ref().map(|word| &**word);
    let memory = "memory = \"128MiB\"\n";
    let mut process = fixture.launch(mode()).config(memory).through(&enter).start();
    let pid = process.pid();
    let load = Load::begin(&fixture, Mix { rate: 20, ..Mix::default() });
    load.cancel_through(&[&process]);
    load.wait_for_more(100);
    let zeros = hostile::zeros(&fixture, &target).len();
    hostile::wide(&fixture, &target);
    hostile::many(&fixture, &target);
    hostile::crowded(&fixture, &target);
    // Those of the batch of many for which there is no room, too.
    Log::open(&fixture, &fixture.names.dead()).until("all are dead letters", |dead| {
        dead.len() > zeros + hostile::WIDE + hostile::CROWDS + hostile::MANY / 2
    });
    load.wait_for_more(100);
    let peak = process.memory_peak_kib();
    println!("f43: {peak} KiB at most");
    assert!(peak < 400 << 10, "{peak} KiB");
    let mut history = load.finish("f43-hostile");
    // Those are not of the load.
    history.dead.retain(|dead| dead.header("x-delay-error-code").as_deref() != Some("too_large"));
    assert_eq!(process.pid(), pid);
    process.stop_well();
    check(&history, Wish { recovery: Duration::from_secs(15) });
}
