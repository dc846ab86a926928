//! A worker in a process of its own, which a test may kill: the test binary, started for one of its tests.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;
use waterclock::engine::UnixMillis;
use waterclock::engine::task::registry::Registry;
use waterclock::engine::task::result::{Outcome, TaskResult};
use waterclock::engine::work::{CallEnd, CallId, Task};
use waterclock::kafka::{
    Calls, ClusterView, Connection, Delivery, Ends, Settings, WorkerParts, WorkerPlan, WorkerThread,
};

use super::records::{id_of, setup};
use crate::support::{Fixture, eventually_within, now_ms, variable_if_set};

/// What the process is to do, as JSON.
const ORDER: &str = "WATERCLOCK_TEST_WORKER";

/// What a worker did with one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) what: String,
    pub(super) id: String,
    /// When, by this machine's clock.
    pub(super) at: u64,
}

/// A worker's process; killed when it is dropped.
pub(super) struct Worker {
    child: Child,
    calls: PathBuf,
    log: PathBuf,
}

/// How a worker is started.
pub(super) struct Launch<'a> {
    pub(super) fixture: &'a Fixture,
    pub(super) brokers: String,
    pub(super) lanes: u16,
    /// How long a call takes.
    pub(super) call: Duration,
    pub(super) failpoints: &'a str,
}

impl<'a> Launch<'a> {
    pub(super) fn new(fixture: &'a Fixture, call: Duration) -> Self {
        let brokers = fixture.connection.brokers.clone();
        Self { fixture, brokers, lanes: fixture.lanes(), call, failpoints: "" }
    }

    /// Starts a worker of this name, which takes the place of the one that had it.
    #[track_caller]
    pub(super) fn start(&self, name: &str) -> Worker {
        let path = |kind: &str| self.fixture.path(&format!("{name}-{}.{kind}", now_ms()));
        let (calls, log) = (path("calls"), path("log"));
        let order = json!({
            "brokers": self.brokers,
            "namespace": self.fixture.namespace(),
            "name": name,
            "lanes": self.lanes,
            "call_ms": self.call.as_millis() as u64,
            "calls": calls,
        });
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command.args(["--exact", "workers::process::of_another_test", "--nocapture"]);
        command.env(ORDER, order.to_string()).env("FAILPOINTS", self.failpoints);
        command.env("RUST_LOG", "info,waterclock_kafka=debug");
        let out = File::create(&log).expect("a file");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(out);
        let child = command.spawn().expect("the test binary starts");
        Worker { child, calls, log }
    }
}

impl Worker {
    /// What it did with its calls so far.
    pub(super) fn calls(&self) -> Vec<Line> {
        lines(&self.calls)
    }

    /// How many calls have begun.
    pub(super) fn begun(&self) -> usize {
        self.calls().iter().filter(|line| line.what == "began").count()
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// SIGSTOP.
    pub(super) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub(super) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }

    /// SIGKILL, and waits until it is gone.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Tells it to stop, and waits until it has.
    #[track_caller]
    pub(super) fn stop_well(&mut self) {
        self.signal(Signal::TERM);
        let code = eventually_within(Duration::from_secs(30), "the worker has stopped", || {
            self.child.try_wait().expect("a child").ok_or_else(|| "it runs".to_owned())
        });
        assert!(code.success(), "it ended badly: {code}");
    }

    /// Waits until it has partitions.
    #[track_caller]
    pub(super) fn wait_until_it_has_partitions(&self) {
        eventually_within(Duration::from_secs(60), "the worker has partitions", || {
            let has = self.log().contains("worker has taken partitions over");
            if has { Ok(()) } else { Err(String::new()) }
        });
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let from = lines.len().saturating_sub(120);
            eprintln!("---- {}\n{}", self.log.display(), lines[from..].join("\n"));
        }
    }
}

fn lines(path: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        let (what, id, at) = (words.next()?, words.next()?, words.next()?);
        Some(Line { what, id, at: at.parse().ok()? })
    };
    text.lines().filter_map(line).collect()
}

/// Calls that take a while and do nothing else than to say so.
struct Sleeps {
    file: Arc<File>,
    runtime: Arc<Runtime>,
    took: Duration,
    ends: Ends,
    open: Arc<Mutex<HashMap<CallId, (String, AbortHandle)>>>,
}

fn say(mut file: &File, what: &str, id: &str) {
    // One write: a process that is killed has written all of a line or nothing of it.
    file.write_all(format!("{what} {id} {}\n", now_ms()).as_bytes()).expect("written");
}

impl Calls for Sleeps {
    fn begin(&self, call: CallId, task: Arc<Task>, by: Instant) {
        if Instant::now() > by {
            let mut result = TaskResult::new(Outcome::Deferred);
            result.until = Some(UnixMillis(now_ms()));
            let _ = self.ends.tell(call, Box::new(CallEnd { result, is_away: false }));
            return;
        }
        let id = id_of(&task.record);
        say(&self.file, "began", &id);
        // So that they end in another order than they began.
        let part = u64::from(id.as_bytes()[0] % 8) + 4;
        let (took, ends) = (self.took * part as u32 / 8, self.ends.clone());
        let (file, open, of) = (Arc::clone(&self.file), Arc::clone(&self.open), id.clone());
        let running = self.runtime.spawn(async move {
            tokio::time::sleep(took).await;
            say(&file, "ended", &of);
            open.lock().remove(&call);
            let result = TaskResult::new(Outcome::Finished);
            let _ = ends.tell(call, Box::new(CallEnd { result, is_away: false }));
        });
        self.open.lock().insert(call, (id, running.abort_handle()));
    }

    fn cut(&self, call: CallId) {
        if let Some((id, running)) = self.open.lock().remove(&call) {
            running.abort();
            say(&self.file, "cut", &id);
        }
    }
}

/// No test: the process of a worker. It runs for as long as the test that started it wants.
#[test]
fn of_another_test() {
    let Some(order) = variable_if_set(ORDER) else { return };
    let order: Value = serde_json::from_str(&order).expect("an order");
    let text = |name: &str| order[name].as_str().expect("a text").to_owned();
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let _failpoints = fail::FailScenario::setup();
    let lanes = order["lanes"].as_u64().expect("a number") as u16;
    let setup = Arc::new(setup(&text("namespace"), lanes));
    let connection = Connection::new(&text("brokers"), Default::default());
    let settings = Settings {
        connection: connection.clone(),
        namespace: text("namespace"),
        instance: text("name"),
        directory_id: "d".to_owned(),
        incarnation: now_ms().to_string(),
        setup: Arc::clone(&setup),
        delivery: Delivery::ExactlyOnce,
        threads: 1,
        session_timeout: Duration::from_secs(6),
        transaction_timeout: Duration::from_secs(10),
        drain: Duration::from_secs(8),
        foreign_wait: Duration::from_secs(5),
        watched: None,
        first_intake: None,
        embedded: false,
    };
    let view = ClusterView::new(&settings).expect("clients");
    let (ends, heard) = Ends::channel();
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let calls = Sleeps {
        file: Arc::new(
            File::options().create(true).append(true).open(text("calls")).expect("a file"),
        ),
        runtime: Arc::clone(&runtime),
        took: Duration::from_millis(order["call_ms"].as_u64().expect("a number")),
        ends,
        open: Arc::default(),
    };
    let (_registry, registry) = tokio::sync::watch::channel(Arc::new(Registry::default()));
    let plan = WorkerPlan {
        connection,
        namespace: text("namespace"),
        instance: text("name"),
        directory_id: "d".to_owned(),
        incarnation: settings.incarnation.clone(),
        setup,
        session_timeout: settings.session_timeout,
        transaction_timeout: settings.transaction_timeout,
        drain: Duration::from_secs(20),
        calls: 1_000,
        memory_bytes: 64 << 20,
    };
    let parts = WorkerParts {
        view: view.for_worker(),
        calls: Box::new(calls),
        ends: heard,
        registry,
        is_heard: Box::new(|| true),
    };
    let worker = WorkerThread::start(plan, parts).expect("a thread");
    runtime.block_on(async {
        let mut terminated =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
                .expect("a handler");
        tokio::select! {
            _ = terminated.recv() => worker.stop(),
            () = worker.ends() => {}
        }
    });
    let ended = worker.ended().recv().expect("it says why");
    ended.expect("it ended well");
    std::process::exit(0);
}
