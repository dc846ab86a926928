//! The real binary as a child process.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal};

use super::binary::without_settings;
use super::{Fixture, Mode, eventually, eventually_within, patient};

/// Lines of a log that a failed test prints.
const LINES_SHOWN: usize = 200;

/// How a process is started.
pub struct Launch<'a> {
    fixture: &'a Fixture,
    data: String,
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
    brokers: String,
    /// A command that becomes the binary.
    through: Vec<OsString>,
}

impl<'a> Launch<'a> {
    pub fn new(fixture: &'a Fixture, mode: Mode) -> Self {
        let launch = Self {
            fixture,
            data: "a".to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            brokers: fixture.connection.brokers.clone(),
            through: Vec::new(),
        };
        // The shortest times that the configuration allows, so that a crash is over soon.
        launch
            .env("WATERCLOCK_DELIVERY", mode.as_str())
            .env("WATERCLOCK_SESSION_TIMEOUT", "6s")
            .env("WATERCLOCK_TRANSACTION_TIMEOUT", "10s")
    }

    /// With the times that it has by itself.
    pub fn defaults(mut self) -> Self {
        self.environment.retain(|(name, _)| !name.ends_with("_TIMEOUT"));
        self
    }

    /// The name of its data directory: `a` unless told.
    pub fn data(self, name: &str) -> Self {
        Self { data: name.to_owned(), ..self }
    }

    pub fn brokers(self, brokers: &str) -> Self {
        Self { brokers: brokers.to_owned(), ..self }
    }

    #[track_caller]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        // Without the feature the process would not read it, and the test would see no fault.
        let is_read = cfg!(feature = "failpoints") || name != "FAILPOINTS";
        assert!(is_read, "this test needs --features failpoints, as scripts/test has it");
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Has it started by a command that becomes the binary, such as `prlimit --nofile=64`.
    pub fn through(mut self, command: &[&str]) -> Self {
        self.through = command.iter().map(OsString::from).collect();
        self
    }

    /// A file of configuration.
    pub fn config(self, toml: &str) -> Self {
        let path = self.fixture.path(&format!("{}.toml", self.data));
        std::fs::write(&path, toml).expect("written");
        self.arg("--config").arg(path)
    }

    /// Starts it and does not wait.
    pub fn spawn(self) -> Process {
        let mut words = self.through;
        words.push(env!("CARGO_BIN_EXE_waterclock").into());
        let mut command = without_settings(&words[0]);
        command
            .args(&words[1..])
            .args(["run", "--http", "127.0.0.1:0"])
            .args(["--brokers", &self.brokers, "--namespace", self.fixture.namespace()])
            .arg("--data-dir")
            .arg(self.fixture.path(&self.data))
            .args(&self.arguments);
        command.envs(self.environment);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let errors = child.stderr.take().expect("piped");
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&log);
        let reading = std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                lines.lock().push(line);
            }
        });
        Process { name: self.data, child, log, reading: Some(reading), ended: None }
    }

    /// Starts it and waits until it is ready.
    #[track_caller]
    pub fn start(self) -> Process {
        let mut process = self.spawn();
        process.wait_until_ready();
        process
    }
}

/// Starts them at the same time, and waits until each is ready.
#[track_caller]
pub fn start_all<const COUNT: usize>(launches: [Launch<'_>; COUNT]) -> [Process; COUNT] {
    let mut started = launches.map(Launch::spawn);
    started.iter_mut().for_each(Process::wait_until_ready);
    started
}

/// A running waterclock; killed when it is dropped.
pub struct Process {
    name: String,
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    reading: Option<JoinHandle<()>>,
    ended: Option<ExitStatus>,
}

impl Process {
    /// All that it has logged.
    pub fn log(&self) -> String {
        self.log.lock().join("\n")
    }

    #[track_caller]
    pub fn wait_until_ready(&mut self) {
        eventually("ready", || {
            assert!(self.status().is_none(), "{} ended before it was ready", self.name);
            let (code, body) = self.get("/health/ready")?;
            if code == 200 { Ok(()) } else { Err(body) }
        });
    }

    /// Waits for a line of its log.
    #[track_caller]
    pub fn wait_until_logged(&mut self, within: Duration, words: &str) {
        eventually_within(within, &format!("{words:?} is logged"), || {
            if self.log().contains(words) { Ok(()) } else { Err(String::new()) }
        });
    }

    /// Where it answers HTTP, as it has logged.
    pub fn address(&self) -> Result<String, String> {
        let log = self.log.lock();
        let mut found = log.iter().filter_map(|line| {
            let rest = line.split_once("HTTP server listens")?.1;
            let address = rest.split_once("address=")?.1;
            Some(address.split_whitespace().next()?.to_owned())
        });
        found.next().ok_or_else(|| "it has not logged its address".to_owned())
    }

    /// Asks its HTTP: code and body.
    pub fn get(&self, path: &str) -> Result<(u16, String), String> {
        let address = self.address()?;
        let failed = |error: std::io::Error| format!("{address}{path}: {error}");
        let mut stream = TcpStream::connect(&address).map_err(failed)?;
        stream.set_read_timeout(Some(patient(Duration::from_secs(5)))).map_err(failed)?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .map_err(failed)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(failed)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Ok((code.ok_or("no status line")?, body.to_owned()))
    }

    /// The sum of a metric over its labels; 0 while it is not there.
    pub fn metric(&self, name: &str) -> f64 {
        let Ok((200, body)) = self.get("/metrics") else { return 0.0 };
        let of_name =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        let values = body.lines().filter(of_name);
        values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Lanes that it owns.
    pub fn lanes(&self) -> usize {
        self.metric("waterclock_lanes_owned") as usize
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The most memory that it has had so far (`VmHWM`), or since it was [begun anew](Self::begin_memory_peak).
    pub fn memory_peak_kib(&self) -> u64 {
        self.memory("VmHWM:")
    }

    /// What it has had before does not count as its most.
    pub fn begin_memory_peak(&self) {
        let of_peak = format!("/proc/{}/clear_refs", self.pid());
        std::fs::write(of_peak, "5").expect("Linux takes it");
    }

    /// The memory that it has now (`VmRSS`).
    pub fn memory_kib(&self) -> u64 {
        self.memory("VmRSS:")
    }

    fn memory(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let line = status.ok().and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok())
        });
        line.expect("Linux says it")
    }

    /// SIGSTOP: it stands still until it is told to go on.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let sent = rustix::process::kill_process(Pid::from_child(&self.child), signal);
        sent.unwrap_or_else(|error| panic!("{signal:?} to {}: {error}", self.child.id()));
    }

    /// SIGHUP: its configuration is to be read again.
    pub fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// SIGTERM, and how long it took to end with which code.
    #[track_caller]
    pub fn stop(&mut self) -> (Option<i32>, Duration) {
        let began = Instant::now();
        self.terminate();
        let code = self.wait(Duration::from_secs(30));
        (code, began.elapsed())
    }

    /// Stops it as an operator does, and fails if it does not go well.
    #[track_caller]
    pub fn stop_well(&mut self) {
        let (code, took) = self.stop();
        assert_eq!(code, Some(0), "{} ended badly after {took:?}", self.name);
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        if self.status().is_none() {
            self.child.kill().expect("killed");
            self.ended = Some(self.child.wait().expect("gone"));
        }
    }

    fn status(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("a child");
        }
        self.ended
    }

    /// Waits until it has ended by itself; `None` if a signal did it.
    #[track_caller]
    pub fn wait(&mut self, most: Duration) -> Option<i32> {
        let ended = eventually_within(most, "the process has ended", || {
            self.status().ok_or_else(|| "it runs".to_owned())
        });
        if let Some(reading) = self.reading.take() {
            let _ = reading.join();
        }
        ended.code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let metrics = if std::thread::panicking() { self.get("/metrics").ok() } else { None };
        if self.status().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if let Some(reading) = self.reading.take() {
            let _ = reading.join();
        }
        if std::thread::panicking() {
            let log = self.log.lock();
            let from = log.len().saturating_sub(LINES_SHOWN);
            eprintln!("---- {} ({:?}), the end of its log", self.name, self.ended);
            for line in &log[from..] {
                eprintln!("{line}");
            }
            let metrics = metrics.map(|(_, body)| body).unwrap_or_default();
            let told = |line: &&str| !line.starts_with('#') && !line.contains("_bucket");
            for line in metrics.lines().filter(told).filter(|line| !line.ends_with(" 0")) {
                eprintln!("{line}");
            }
        }
    }
}
