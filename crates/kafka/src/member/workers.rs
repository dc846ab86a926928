//! The worker of a process: a member of the group `<ns>-workers`, which makes the calls of tasks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use rdkafka::error::KafkaError;
use tokio::sync::{Notify, watch};

use super::Delivery;
use super::lanes::End;
use super::thread::{self, Calls, Ended, Plan, Shared, Status, WorkParts};
use crate::client::Connection;
use crate::cluster::BrokerClock;
use waterclock_engine::member::WORKER;
use waterclock_engine::task::registry::Registry;
use waterclock_engine::work::{CallEnd, CallId, WorkLimits};
use waterclock_engine::{Millis, Setup};
use waterclock_telemetry::WorkerFigures;

/// What a worker may be silent in a session: it begins no call later than this before the session ends. So a call that is not on
/// its way so long after it began must not be sent: the process stood still, and its task may be another worker's.
pub(super) const SEND_WITHIN: Duration = Duration::from_secs(2);
/// What of a hand-over or a stop is kept for the commit of what was cut.
const COMMIT_WITHIN: Duration = Duration::from_millis(1_500);
/// `batch.size` of a worker's producers: below Kafka's own default of `max.message.bytes`.
const BATCH_BYTES: usize = 900_000;
/// How long the first reading of projects and services may take before the log says so.
const READ_MAX: Duration = Duration::from_secs(30);
/// Between two looks for that.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What the worker of a process is made from.
#[derive(Clone, Debug)]
pub struct WorkerPlan {
    /// How to reach the brokers.
    pub connection: Connection,
    /// The namespace; the group is `<namespace>-workers`.
    pub namespace: String,
    /// This process's name.
    pub instance: String,
    /// Tells its data directory from others.
    pub directory_id: String,
    /// Tells this start from the one before.
    pub incarnation: String,
    /// The lanes, the key of sealed records, and the names of topics.
    pub setup: Arc<Setup>,
    /// `session.timeout.ms`; more than two seconds.
    pub session_timeout: Duration,
    /// `transaction.timeout.ms`. What is left of a dead worker's transaction is waited for after its session.
    pub transaction_timeout: Duration,
    /// How long open calls may go on when the process stops.
    pub drain: Duration,
    /// Calls that may be open at once.
    pub calls: usize,
    /// Bytes of tasks that may be in memory.
    pub memory_bytes: usize,
}

impl WorkerPlan {
    /// The group of a namespace's workers.
    #[must_use]
    pub fn group(namespace: &str) -> String {
        format!("{namespace}-workers")
    }

    fn limits(&self) -> WorkLimits {
        let millis = |time: Duration| Millis(time.as_millis() as u64);
        WorkLimits {
            calls: self.calls,
            bytes: self.memory_bytes,
            fresh: millis(self.session_timeout.saturating_sub(SEND_WITHIN)),
            commit_within: millis(COMMIT_WITHIN),
        }
    }
}

/// What a worker works with.
pub struct WorkerParts {
    /// What is known of the brokers, from [`ClusterView::for_worker`](super::ClusterView::for_worker).
    pub view: WorkerView,
    /// Makes the calls.
    pub calls: Box<dyn Calls>,
    /// Hears how each of them has ended; the other half is what `calls` tells it with.
    pub ends: EndsHeard,
    /// Projects and services.
    pub registry: watch::Receiver<Arc<Registry>>,
    /// Whether projects and services were heard of. No call begins before: its project may be paused.
    pub is_heard: Box<dyn Fn() -> bool + Send>,
}

/// Tells the worker's thread how calls have ended.
#[derive(Clone, Debug)]
pub struct Ends {
    to: Sender<Ended>,
    worker: Arc<Mutex<Option<Thread>>>,
}

/// The half of [`Ends`] that the worker's thread gets.
#[derive(Debug)]
pub struct EndsHeard {
    inbox: Receiver<Ended>,
    worker: Arc<Mutex<Option<Thread>>>,
}

impl Ends {
    /// One that tells, and the half that hears.
    #[must_use]
    pub fn channel() -> (Self, EndsHeard) {
        let (to, inbox) = crossbeam_channel::unbounded();
        let worker = Arc::default();
        (Self { to, worker: Arc::clone(&worker) }, EndsHeard { inbox, worker })
    }

    /// Tells how a call has ended, and wakes the worker's thread. False: it has ended, and nobody listens.
    #[must_use]
    pub fn tell(&self, call: CallId, end: Box<CallEnd>) -> bool {
        let is_heard = self.to.send((call, end)).is_ok();
        if let Some(worker) = &*self.worker.lock() {
            worker.unpark();
        }
        is_heard
    }
}

/// What a worker shares with the lane threads of its process.
#[derive(Clone, Debug)]
pub struct WorkerView(pub(super) Shared);

impl WorkerView {
    /// The brokers' time.
    #[must_use]
    pub fn clock(&self) -> &Arc<BrokerClock> {
        &self.0.clock
    }
}

/// The worker of a process, running.
#[derive(Debug)]
pub struct WorkerThread {
    stop: Arc<AtomicBool>,
    status: Arc<Status>,
    ended: Receiver<Result<(), thread::Error>>,
    ends: Arc<Notify>,
}

impl WorkerThread {
    /// Starts the worker; it joins the group once the brokers' time is known.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn start(plan: WorkerPlan, parts: WorkerParts) -> Result<Self, KafkaError> {
        let WorkerParts { view: WorkerView(view), calls, ends: heard, registry, is_heard } = parts;
        let stop = Arc::new(AtomicBool::new(false));
        let shared = Shared { stop: Arc::clone(&stop), drain: plan.drain, ..view };
        let parts = WorkParts {
            namespace: plan.namespace.clone(),
            setup: Arc::clone(&plan.setup),
            instance: plan.instance.clone(),
            limits: plan.limits(),
            calls,
            ended: heard.inbox,
            registry,
            drain: plan.drain,
            figures: Arc::new(WorkerFigures::default()),
        };
        let member = Plan {
            connection: plan.connection,
            group: WorkerPlan::group(&plan.namespace),
            namespace: plan.namespace,
            instance: plan.instance,
            directory_id: plan.directory_id,
            thread: 0,
            thread_name: WORKER.to_owned(),
            incarnation: plan.incarnation,
            record_bytes_max: plan.setup.limits.record_bytes_max,
            batch_bytes: Arc::new(AtomicUsize::new(BATCH_BYTES)),
            delivery: Delivery::ExactlyOnce,
            session_timeout: plan.session_timeout,
            transaction_timeout: plan.transaction_timeout,
            embedded: false,
        };
        let (results, ended) = crossbeam_channel::unbounded();
        let ends = Arc::new(Notify::new());
        let end = End { results: Some(results), ends: Arc::clone(&ends) };
        let status = Arc::new(Status::default());
        let of_thread = Arc::clone(&status);
        let worker = std::thread::Builder::new().name("wc-worker".into()).spawn(move || {
            let run = || run(&member, &shared, (&parts, &*is_heard), &of_thread);
            let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
                let what = panic.downcast_ref::<String>().cloned();
                let what = what.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                Err(thread::Error::Panicked { thread: 0, what: what.unwrap_or_default() })
            });
            drop(parts);
            end.tell(result);
        });
        let worker = worker.map_err(|_| KafkaError::Canceled)?;
        *heard.worker.lock() = Some(worker.thread().clone());
        Ok(Self { stop, status, ended, ends })
    }

    /// What it is doing.
    #[must_use]
    pub fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// One message when it has ended, with why it did.
    #[must_use]
    pub fn ended(&self) -> &Receiver<Result<(), thread::Error>> {
        &self.ended
    }

    /// Waits until it has ended; for one caller. Then [`ended`](Self::ended) has why.
    pub async fn ends(&self) {
        self.ends.notified().await;
    }

    /// Tells it to begin no further call, to wait for open ones for as long as the plan's `drain`, and to leave;
    /// [`ended`](Self::ended) says when.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Drop for WorkerThread {
    /// A thread that nobody can stop any more must not go on.
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(
    plan: &Plan,
    shared: &Shared,
    (parts, is_heard): (&WorkParts, &dyn Fn() -> bool),
    status: &Status,
) -> Result<(), thread::Error> {
    let began = Instant::now();
    let mut is_said = false;
    while shared.clock.now(Instant::now()).is_none() || !is_heard() {
        if shared.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        status.beat();
        if began.elapsed() > READ_MAX && !is_said {
            is_said = true;
            tracing::warn!("projects and services are not read yet, no call is made until then");
        }
        std::thread::sleep(LOOK_EVERY);
    }
    thread::run_worker(plan, shared, parts, status)
}
