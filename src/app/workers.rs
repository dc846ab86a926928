//! The worker of a process: the member of the group `<ns>-workers`, joined with the room that makes the calls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::config::{Config, Delivery, Tracking};
use crate::engine::UnixMillis;
use crate::engine::work::{CallId, Task};
use crate::kafka::{
    Calls, Ends, KafkaError, RegistryFeed, Settings, WorkerParts, WorkerPlan, WorkerThread,
    WorkerView, member,
};
use crate::worker::{self, Order};

/// Calls that may be open in a process.
const CALLS: usize = 1_000;
/// Bytes of tasks that may be in the memory of a worker.
const MEMORY: usize = 64 << 20;
/// What is left of a dead worker's transaction is waited for after its session.
const TRANSACTION: Duration = Duration::from_secs(10);

/// Why there is no worker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration of callbacks is wrong; it was checked when it was loaded.
    #[error("callbacks")]
    Callbacks(#[from] worker::Malformed),
    /// The library for TLS does not work, or the proxy is none.
    #[error(transparent)]
    Client(#[from] worker::StartError),
    /// The operating system gives no thread.
    #[error("could not start the worker's thread")]
    Thread(#[source] KafkaError),
}

/// Whether this configuration can have tasks: their states change in transactions, and are remembered.
pub(super) fn are_possible(config: &Config) -> bool {
    config.delivery == Delivery::ExactlyOnce && config.tracking == Tracking::Full
}

/// The worker of this process, running.
pub struct Worker(WorkerThread);

impl Worker {
    pub(super) fn stop(&self) {
        self.0.stop();
    }

    pub(super) async fn ends(&self) {
        self.0.ends().await;
    }

    pub(super) fn ended(&self) -> &Receiver<Result<(), member::Error>> {
        self.0.ended()
    }

    pub(super) fn status(&self) -> &member::Status {
        self.0.status()
    }
}

/// Hands the orders of the worker's thread to the room that makes calls.
struct Orders(mpsc::UnboundedSender<Order>);

impl Calls for Orders {
    fn begin(&self, call: CallId, task: Arc<Task>, by: Instant) {
        // That nobody takes it means that the process stops.
        let _ = self.0.send(Order::Begin(call, task, by.into()));
    }

    fn cut(&self, call: CallId) {
        let _ = self.0.send(Order::Cut(call));
    }
}

/// Starts the worker.
///
/// # Errors
/// See [`Error`].
pub(super) fn start(
    config: &Config,
    settings: &Settings,
    view: WorkerView,
    registry: &RegistryFeed,
    runtime: &Handle,
) -> Result<Worker, Error> {
    let clock = Arc::clone(view.clock());
    let now = move || clock.now(Instant::now()).unwrap_or(UnixMillis(0));
    let (orders, ordered) = mpsc::unbounded_channel();
    let (ends, heard) = Ends::channel();
    let tell = move |worker::Ended { call, end }| ends.tell(call, end);
    let callers = config.callers(&settings.instance)?;
    worker::start(runtime, callers, registry.subscribe(), Arc::new(now), ordered, tell)?;
    let plan = WorkerPlan {
        connection: settings.connection.clone(),
        namespace: settings.namespace.clone(),
        instance: settings.instance.clone(),
        directory_id: settings.directory_id.clone(),
        incarnation: settings.incarnation.clone(),
        setup: Arc::clone(&settings.setup),
        session_timeout: settings.session_timeout,
        transaction_timeout: TRANSACTION,
        drain: settings.drain,
        calls: CALLS,
        memory_bytes: MEMORY,
    };
    let parts = WorkerParts {
        view,
        calls: Box::new(Orders(orders)),
        ends: heard,
        registry: registry.subscribe(),
        is_heard: Box::new({
            let registry = registry.clone();
            move || registry.is_known()
        }),
    };
    WorkerThread::start(plan, parts).map(Worker).map_err(Error::Thread)
}
