//! `waterclock run` as a process of its own, the one that people run: its processor time and its memory are its own,
//! and its clients share nothing with those that measure it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::machine::{self, Cpu};

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
    /// Keeps its name, and its log.
    pub(super) dir: &'a Path,
}

/// The process; ended when dropped.
pub(super) struct Service {
    child: Child,
    log: PathBuf,
}

impl Service {
    pub(super) fn start(start: &Start<'_>) -> std::io::Result<Self> {
        let log = start.dir.join("log");
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--brokers", start.brokers, "--namespace", start.namespace]);
        if let Some(config) = start.config {
            command.arg("--config").arg(config);
        }
        command.args(["run", "--http", "127.0.0.1:0", "--delivery", start.delivery]);
        command.arg("--data-dir").arg(start.dir.join("data"));
        command.args(["--allow", &format!(r"{}-.*", start.namespace)]);
        // There is no flag for these, and the environment is above the file.
        command.env("WATERCLOCK_LANES", start.lanes.to_string());
        if let Some(horizon) = start.horizon {
            command.env("WATERCLOCK_HORIZON", horizon);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()?;
        Ok(Self { child, log })
    }

    /// The end of its log, if it has ended by itself.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let shown = lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n");
        Some(format!("{status}\n{shown}"))
    }

    pub(super) fn cpu(&self) -> Cpu {
        Cpu::of(self.child.id())
    }

    pub(super) fn memory_peak(&self) -> Option<u64> {
        machine::memory_peak(self.child.id())
    }
}

impl Drop for Service {
    /// As an operator does it, so that it leaves the group and its topics can go.
    fn drop(&mut self) {
        let by = Instant::now() + STOP_MAX;
        // The standard library sends no signal but SIGKILL, and every shell can.
        let told = Command::new("sh")
            .args(["-c", "kill -TERM \"$0\"", &self.child.id().to_string()])
            .stderr(Stdio::null())
            .status();
        while told.is_ok() && Instant::now() < by {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
