//! F20, F21, F23: the disk of the index is full, does not work, or loses its power.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal};

use super::{Mount, run};
use crate::checkers::{Wish, check};
use crate::load::{Load, Mix, mode};
use crate::one::index::{index_of, mix};
use crate::support::{Fixture, Process, eventually};

const AT_ONCE: Wish = Wish { recovery: Duration::from_secs(5) };
const RESTARTED: Wish = Wish { recovery: Duration::from_secs(12) };

/// Writes until there is no room left.
#[track_caller]
fn fill(directory: &Path) {
    let mut filler = fs::File::create(directory.join("filler")).expect("made");
    for size in [1 << 20, 4_096, 1] {
        while filler.write_all(&vec![0; size]).is_ok() {}
    }
}

/// What an index that does not work is worth: a word in the metrics.
#[track_caller]
fn wait_until_told(process: &Process) {
    eventually("the index is said to be bad", || {
        let given_up = process.metric("waterclock_index_given_up");
        let rebuilds = process.metric("waterclock_index_rebuilds_total");
        if given_up + rebuilds >= 1.0 { Ok(()) } else { Err(process.log()) }
    });
}

#[test]
#[ignore = "needs root: scripts/faults --root"]
fn f20_the_disk_of_the_index_fills_up_under_a_running_process() {
    let fixture = Fixture::new("f20");
    let data = fixture.path("a");
    let _disk = Mount::new(&["-t", "tmpfs", "-o", "size=24m", "tmpfs"], &data);
    let mut process = fixture.start(mode());
    let load = Load::begin(&fixture, Mix { rate: 80, ..mix() });
    load.cancel_through(&[&process]);
    load.wait_for_more(60);
    fill(&data);
    wait_until_told(&process);
    load.wait_for_more(100);
    fs::remove_file(data.join("filler")).expect("removed");
    load.healed();
    load.wait_for_more(60);
    // With room again, a restart has an index again.
    process.stop_well();
    process = fixture.start(mode());
    assert_eq!(process.metric("waterclock_index_given_up"), 0.0);
    load.cancel_through(&[&process]);
    load.wait_for_more(60);
    let history = load.finish("f20");
    process.stop_well();
    check(&history, RESTARTED);
}

/// `strace` of a process, and what it has told.
struct Traced {
    child: Child,
    told: Arc<Mutex<Vec<String>>>,
}

impl Traced {
    /// Has these system calls fail in every thread of a process.
    fn failing(pid: u32, calls: &str, error: &str) -> Self {
        let mut child = Command::new("strace")
            .args(["-f", "-p", &pid.to_string(), "-e", &format!("trace={calls}")])
            .args(["-e", &format!("inject={calls}:error={error}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("strace is installed");
        let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let told = Arc::<Mutex<Vec<String>>>::default();
        let to = Arc::clone(&told);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                to.lock().push(line);
            }
        });
        Self { child, told }
    }

    fn injected(&self) -> usize {
        let told = self.told.lock();
        told.iter().filter(|line| line.contains("(INJECTED)")).count()
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // It lets go of the traced process when it is asked to end. Killed, it would leave that process as it is.
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "needs root: scripts/faults --root"]
fn f21_an_index_whose_disk_cannot_be_synced_is_given_up_and_nothing_else_is() {
    let fixture = Fixture::new("f21");
    let mut process = fixture.start(mode());
    let load = Load::begin(&fixture, mix());
    load.cancel_through(&[&process]);
    load.wait_for_more(60);
    let traced = Traced::failing(process.pid(), "fsync,fdatasync,sync_file_range", "EIO");
    eventually("a sync has failed", || match traced.injected() {
        0 => Err(traced.told.lock().join("\n")),
        count => Ok(count),
    });
    wait_until_told(&process);
    load.wait_for_more(60);
    println!("f21: {} syncs failed", traced.injected());
    drop(traced);
    load.healed();
    load.wait_for_more(60);
    let history = load.finish("f21");
    process.stop_well();
    check(&history, AT_ONCE);
}

/// `EXT4_IOC_SHUTDOWN` with `EXT4_GOING_FLAGS_NOLOGFLUSH`: nothing that was not synced is there after the next mount.
const POWER_OFF: &str = "import fcntl, os, struct, sys\n\
    fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";

#[test]
#[ignore = "needs root: scripts/faults --root"]
fn f23_what_was_cancelled_before_the_power_failed_stays_cancelled() {
    let fixture = Fixture::new("f23");
    let (data, image) = (fixture.path("a"), fixture.path("image"));
    let image = image.to_string_lossy().into_owned();
    run(&["truncate", "--size", "64M", &image]);
    run(&["mkfs.ext4", "-q", &image]);
    let mount = || Mount::new(&["-o", "loop", &image], &data);
    let mut disk = mount();
    let mut process = fixture.start(mode());
    let load = Load::begin(&fixture, mix());
    load.cancel_through(&[&process]);
    load.wait_for_more(60);
    for round in 1..=2 {
        run(&["python3", "-c", POWER_OFF, &*data.to_string_lossy()]);
        assert!(fs::write(data.join("after"), "x").is_err(), "the power is still on");
        process.kill();
        drop(disk);
        disk = mount();
        let left = fs::read_dir(index_of(&data)).map_or(0, Iterator::count);
        process = fixture.start(mode());
        load.cancel_through(&[&process]);
        let rebuilds = process.metric("waterclock_index_rebuilds_total");
        println!("f23: round {round}, {left} files of the index were left, {rebuilds} rebuilds");
        load.healed();
        load.wait_for_more(60);
    }
    let history = load.finish("f23");
    process.stop_well();
    drop(disk);
    check(&history, RESTARTED);
}
