//! The demo's callbacks: tasks that call a service in this process.
//!
//! They need workers, whose group the stand-in broker does not have. So they are made on a real Kafka only. An instance of its
//! own runs them there, `waterclock run` as a process with all roles, in a namespace beside the demo's.
//!
//! # Invariants
//! 1. What is counted is what the service has seen, and what the API says of each task once its calls should be over.
//! 2. The instance ends before its topics go.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use parking_lot::Mutex;
use rand::Rng as _;
use serde::Deserialize;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use waterclock_engine::{Millis, UnixMillis};
use waterclock_kafka as kafka;
use waterclock_kafka::topics;
use waterclock_terminal::{Failure, Stop};

use super::environment::{Environment, LANES};
use super::spec::Spec;
use super::{DemoError, internal, unavailable};
use crate::Program;
use crate::corner::Corner;
use crate::lateness::{Lateness, Spread};
use crate::line::{AskError, Line, Question};
use crate::service::{Service, Start};
use crate::stub::{CALL, Call, Stub, WORK, fails};

/// One task for so many records.
const RECORDS_PER_TASK: u64 = 10;
/// Tasks are due so long after their creation.
const DELAY: std::ops::Range<u64> = 500..8_000;
/// What must be left of the demo after a due time.
const MARGIN: Millis = Millis(500);
/// Tasks that go before the clock starts: so many for each lane.
const WARM: u64 = 8 * LANES as u64;
/// Their numbers begin here.
const WARM_FROM: u64 = 1 << 40;
/// Longest wait for their calls.
pub(super) const WARM_MAX: Duration = Duration::from_secs(60);
/// After a due time until the API is asked what became of the task, and between two questions about it.
const LOOK_AFTER: Duration = Duration::from_millis(500);
/// Between two rounds.
const ROUND: Duration = Duration::from_millis(5);
/// The clocks of this process and of the worker are both behind the brokers' by up to a millisecond.
const CLOCKS: Millis = Millis(2);

/// What is known of them at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CallFigures {
    /// Tasks that the API has acknowledged.
    pub(super) created: u64,
    /// Calls that the service has seen.
    pub(super) called: u64,
    /// Those of them that were no first attempts.
    pub(super) retried: u64,
    /// Tasks of which the API says that they are finished.
    pub(super) finished: u64,
    /// Tasks of which it says that they have failed.
    pub(super) failed: u64,
    /// Calls without an answer.
    pub(super) open: u64,
    /// Calls that came before their task was due, and tasks that ended otherwise than the service answered.
    pub(super) wrong: u64,
    /// From the due time until the first attempt was with the service.
    pub(super) late: Option<Spread>,
}

impl CallFigures {
    /// Tasks that have not ended.
    pub(super) fn pending(&self) -> u64 {
        self.created - self.finished - self.failed
    }

    /// p50 and p99 of the lateness, in whole milliseconds.
    pub(super) fn late_ms(&self) -> (u64, u64) {
        self.late.map_or((0, 0), |late| (late.p50.round() as u64, late.p99.round() as u64))
    }
}

/// What is counted.
struct Books {
    figures: CallFigures,
    late: Lateness,
}

impl Books {
    fn called(&mut self, call: &Call, at: UnixMillis) {
        if call.n >= WARM_FROM {
            return;
        }
        let figures = &mut self.figures;
        figures.called += 1;
        figures.wrong += u64::from(at + CLOCKS < call.due);
        match call.attempt {
            0 | 1 => self.late.record((at - call.due).0 * 1_000),
            _ => figures.retried += 1,
        }
    }

    fn ended(&mut self, n: u64, is_finished: bool) {
        let figures = &mut self.figures;
        figures.finished += u64::from(is_finished);
        figures.failed += u64::from(!is_finished);
        figures.wrong += u64::from(is_finished == fails(n, u32::MAX));
    }
}

/// What the API says of a task.
#[derive(Deserialize)]
struct View {
    task_id: String,
    #[serde(default)]
    task_status: Option<String>,
}

/// Everything that they need.
pub(super) struct Callbacks {
    books: Arc<Mutex<Books>>,
    token: Option<String>,
    // Dropped in this order: the instance before its topics.
    runtime: Runtime,
    stub: Stub,
    service: Service,
    _corner: Corner,
}

impl Callbacks {
    /// Makes topics, and starts the service and the instance.
    pub(super) fn prepare(
        program: &dyn Program,
        environment: &Environment,
    ) -> Result<Self, Failure> {
        let started = |error| internal(DemoError::System("start what the callbacks need", error));
        let connection = &environment.connection;
        let namespace = format!("{}-calls", environment.namespace);
        let request = program.bench_topics(&namespace, LANES)?;
        let corner = Corner::make(connection, &namespace).map_err(started)?;
        topics::apply(connection, &request)
            .map_err(|error| unavailable(DemoError::CallTopics(error)))?;
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).thread_name("wc-demo-calls").enable_all().build();
        let runtime = runtime.map_err(started)?;
        let stub = runtime.block_on(Stub::start()).map_err(started)?;
        let service = Service::start(&Start {
            brokers: &connection.brokers,
            namespace: &namespace,
            config: program.config_file(),
            delivery: "exactly_once",
            lanes: LANES,
            horizon: None,
            tracked_max: None,
            roles: None,
            calls_loopback: true,
            dir: &corner.dir,
            profile: None,
        });
        let service = service.map_err(started)?;
        let figures = CallFigures::default();
        let books = Arc::new(Mutex::new(Books { figures, late: Lateness::new() }));
        let token = program.api_token()?;
        Ok(Self { books, token, runtime, stub, service, _corner: corner })
    }

    /// Has tasks called that nobody counts, until each lane is running; false when somebody ended the demo.
    pub(super) fn warm(&mut self, stop: &Stop) -> Result<bool, Failure> {
        let until = Instant::now() + WARM_MAX;
        let now = kafka::wall_clock();
        let (mut next, mut last) = (WARM_FROM, String::new());
        while self.stub.count() < WARM {
            if stop.asked() {
                return Ok(false);
            }
            if let Some(log) = self.service.ended() {
                return Err(unavailable(DemoError::NoCalls { why: log }));
            }
            if Instant::now() >= until {
                return Err(unavailable(DemoError::NoCalls { why: last }));
            }
            let (to, token, stub) = (self.service.http, self.token.clone(), self.stub.address);
            let made: Result<(), AskError> = self.runtime.block_on(async {
                while next < WARM_FROM + WARM {
                    let mut line = Line::open(to).await?.with_token(token.clone());
                    line.ask(create(stub, next, now)).await?;
                    next += 1;
                }
                Ok(())
            });
            if let Err(error) = made {
                last = error.to_string();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(true)
    }

    fn figures(&self) -> CallFigures {
        let mut books = self.books.lock();
        let (now, read) = (kafka::wall_clock(), Instant::now());
        for call in self.stub.take() {
            let ago = Millis(read.saturating_duration_since(call.at).as_millis() as u64);
            books.called(&call, UnixMillis(now.0.saturating_sub(ago.0)));
        }
        CallFigures { open: self.stub.open(), late: books.late.spread(), ..books.figures.clone() }
    }

    /// Creates tasks at a rate that follows from the demo's, and looks what becomes of them.
    pub(super) fn start(self, spec: &Spec, started: Instant) -> Calling {
        let stop = Arc::new(AtomicBool::new(false));
        let end = Arc::new(AtomicBool::new(false));
        let asking = Asking {
            to: self.service.http,
            token: self.token.clone(),
            stub: self.stub.address,
            books: Arc::clone(&self.books),
            every: Duration::from_millis(1_000 * RECORDS_PER_TASK / u64::from(spec.rate.max(1))),
            last_due: kafka::wall_clock() + spec.total.saturating_sub(MARGIN),
            stop: Arc::clone(&stop),
            end: Arc::clone(&end),
        };
        let asking = self.runtime.spawn(asking.run(started));
        Calling { stop, end, asking, of: self }
    }
}

/// A request that creates a task. Asked again it is the same task.
fn create(stub: SocketAddr, n: u64, due: UnixMillis) -> Question {
    let path = if n >= WARM_FROM { CALL } else { WORK };
    let task = serde_json::json!({
        "project": "demo", "group": "leaves", "url": format!("http://{stub}{path}{n}"),
        "trigger_at": due.0, "body": "{\"leaf\":\"amber\"}", "request_id": n.to_string(),
        "retry": {"count": 2, "interval": 1},
    });
    Question::post("/v1/tasks/http", task.to_string()).naming(1)
}

/// The part that talks with the API.
struct Asking {
    to: SocketAddr,
    token: Option<String>,
    stub: SocketAddr,
    books: Arc<Mutex<Books>>,
    every: Duration,
    /// No task is due later.
    last_due: UnixMillis,
    /// No more are created.
    stop: Arc<AtomicBool>,
    /// Nothing is asked any more.
    end: Arc<AtomicBool>,
}

impl Asking {
    async fn run(self, started: Instant) -> Result<(), AskError> {
        let mut line = Line::open(self.to).await?.with_token(self.token.clone());
        let mut looks: BTreeMap<(Instant, u64), String> = BTreeMap::new();
        let mut next = 0;
        while !self.end.load(Ordering::Relaxed) {
            let owed = started.elapsed().as_millis() / self.every.as_millis().max(1);
            while u128::from(next) < owed && !self.stop.load(Ordering::Relaxed) {
                let now = kafka::wall_clock();
                let due = (now + Millis(rand::rng().random_range(DELAY))).min(self.last_due);
                if due <= now {
                    break;
                }
                let Some(view) = not_yet(line.ask(create(self.stub, next, due)).await)? else {
                    break;
                };
                self.books.lock().figures.created += 1;
                let look = Instant::now() + Duration::from_millis((due - now).0) + LOOK_AFTER;
                looks.insert((look, next), view.task_id);
                next += 1;
            }
            while let Some(entry) = looks.first_entry()
                && entry.key().0 <= Instant::now()
            {
                let ((_, n), id) = entry.remove_entry();
                let question = Question::get(&format!("/v1/tasks/{id}")).naming(1);
                let view = not_yet(line.ask(question).await)?;
                match view.and_then(|view| view.task_status).as_deref() {
                    Some("finished") => self.books.lock().ended(n, true),
                    Some("failed") => self.books.lock().ended(n, false),
                    _ => drop(looks.insert((Instant::now() + LOOK_AFTER, n), id)),
                }
            }
            tokio::time::sleep(ROUND).await;
        }
        Ok(())
    }
}

/// The task of an answer; `None`: it is to be asked again.
fn not_yet(answer: Result<bytes::Bytes, AskError>) -> Result<Option<View>, AskError> {
    match answer {
        Ok(body) => Ok(serde_json::from_slice(&body).ok()),
        Err(AskError::Answer {
            status:
                StatusCode::NOT_FOUND | StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE,
            ..
        }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Tasks are created and called.
pub(super) struct Calling {
    stop: Arc<AtomicBool>,
    end: Arc<AtomicBool>,
    asking: JoinHandle<Result<(), AskError>>,
    of: Callbacks,
}

impl Calling {
    /// What is known now.
    pub(super) fn figures(&self) -> CallFigures {
        self.of.figures()
    }

    /// No more are created.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether it goes on.
    pub(super) fn is_alive(&self) -> bool {
        !self.asking.is_finished()
    }

    /// Ends all of it; the last figures.
    pub(super) fn end(self) -> Result<CallFigures, Failure> {
        self.end.store(true, Ordering::Relaxed);
        match self.of.runtime.block_on(self.asking) {
            Ok(Ok(())) => Ok(self.of.figures()),
            Ok(Err(error)) => Err(unavailable(DemoError::Ask(error))),
            Err(_) => Err(internal(DemoError::Died("creator of tasks"))),
        }
    }
}
