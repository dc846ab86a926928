//! `waterclock run` as a process of its own, the one that people run: its processor time and its memory are its own,
//! and its clients share nothing with those that measure it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::machine::{self, Cpu};

/// Longest wait for its end after SIGTERM.
const STOP_MAX: Duration = Duration::from_secs(12);
/// Lines of its log that are shown when it ended by itself.
const LINES_SHOWN: usize = 12;

/// What the process is started with.
pub(super) struct Start<'a> {
    pub(super) brokers: &'a str,
    pub(super) namespace: &'a str,
    pub(super) config: Option<&'a Path>,
    pub(super) delivery: &'a str,
    pub(super) lanes: u16,
    /// The horizon, if it is not to be the configured one.
    pub(super) horizon: Option<&'a str>,
    /// How many timers it may track, if it is not to be the configured number.
    pub(super) tracked_max: Option<u64>,
    /// What it does, if it is not to do everything.
    pub(super) roles: Option<&'a str>,
    /// Workers may call this machine.
    pub(super) calls_loopback: bool,
    /// Keeps its name, and its log.
    pub(super) dir: &'a Path,
    /// Where a profile of it goes, without the ending.
    pub(super) profile: Option<&'a Path>,
}

/// The process; ended when dropped.
pub(super) struct Service {
    child: Child,
    log: PathBuf,
    /// Where its health, its metrics and its timers are served.
    pub(super) http: SocketAddr,
    profile: Option<Profile>,
}

impl Service {
    pub(super) fn start(start: &Start<'_>) -> std::io::Result<Self> {
        let log = start.dir.join("log");
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--brokers", start.brokers, "--namespace", start.namespace]);
        if let Some(config) = start.config {
            command.arg("--config").arg(config);
        }
        let http = free_address()?;
        command.args(["run", "--http", &http.to_string(), "--delivery", start.delivery]);
        command.arg("--data-dir").arg(start.dir.join("data"));
        command.args(["--allow", &format!(r"{}-.*", start.namespace)]);
        if let Some(roles) = start.roles {
            command.args(["--roles", roles]);
        }
        // There is no flag for these, and the environment is above the file.
        command.env("WATERCLOCK_LANES", start.lanes.to_string());
        if let Some(most) = start.tracked_max {
            command.env("WATERCLOCK_MAX_TRACKED", most.to_string());
        }
        if let Some(horizon) = start.horizon {
            command.env("WATERCLOCK_HORIZON", horizon);
        }
        if start.calls_loopback {
            command.env("WATERCLOCK_CALLBACKS__NETWORKS", "127.0.0.0/8");
        }
        // Who presses Ctrl-C ends the tool, and the tool ends this.
        command.process_group(0);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()?;
        let profile = start.profile.map(|path| Profile::start(child.id(), path)).transpose()?;
        Ok(Self { child, log, http, profile })
    }

    /// The end of its log, if it has ended by itself.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let shown = lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n");
        Some(format!("{status}\n{shown}"))
    }

    /// Ends it as a crash does.
    pub(super) fn kill(mut self) {
        // That it has ended already is what the caller wants.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(super) fn cpu(&self) -> Cpu {
        Cpu::of(self.child.id())
    }

    /// Resident memory now.
    pub(super) fn memory(&self) -> Option<u64> {
        machine::memory(self.child.id())
    }

    pub(super) fn memory_peak(&self) -> Option<u64> {
        machine::memory_peak(self.child.id())
    }
}

impl Drop for Service {
    /// As an operator does it, so that it leaves the group and its topics can go.
    fn drop(&mut self) {
        if let Some(profile) = self.profile.take() {
            profile.end();
        }
        end(&mut self.child, "TERM");
    }
}

/// An address of this machine that is free now.
fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Sends a signal, waits, and kills what does not listen. The standard library sends no signal but SIGKILL, and every
/// shell can.
fn end(child: &mut Child, signal: &str) {
    let by = Instant::now() + STOP_MAX;
    let kill = format!("kill -{signal} \"$0\"");
    let told = Command::new("sh")
        .args(["-c", &kill, &child.id().to_string()])
        .stderr(Stdio::null())
        .status();
    while told.is_ok() && Instant::now() < by {
        if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// `perf record` beside the process, from its start to its end.
struct Profile {
    perf: Child,
    path: PathBuf,
}

impl Profile {
    /// Samples a second: not a divisor of anything that happens regularly here.
    const RATE: &'static str = "499";

    fn start(process: u32, path: &Path) -> std::io::Result<Self> {
        let path = path.with_extension("perf");
        let perf = Command::new("perf")
            .args(["record", "--quiet", "--call-graph", "fp", "--freq", Self::RATE])
            .args(["--pid", &process.to_string(), "--output"])
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { perf, path })
    }

    /// Ends it and writes beside the samples what they say: by thread, and by function.
    fn end(mut self) {
        end(&mut self.perf, "INT");
        let written = || -> std::io::Result<()> {
            let report = Command::new("perf")
                .args(["report", "--stdio", "--no-children", "--call-graph", "none"])
                .args(["--sort", "comm,symbol", "--percent-limit", "0.5", "--input"])
                .arg(&self.path)
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .output()?;
            fs::write(self.path.with_extension("txt"), report.stdout)
        };
        if let Err(error) = written() {
            tracing::warn!(%error, path = %self.path.display(), "no report of the profile");
        }
    }
}
