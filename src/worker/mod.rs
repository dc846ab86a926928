//! Makes the calls of tasks, over HTTP and gRPC. Which calls begin, and when, is decided by the engine of workers
//! ([`work`](crate::engine::work)); this room makes them and tells how they ended.
//!
//! # Invariants
//! 1. Each call that is ordered ends once, or is cut; of a call that was cut nothing is told.
//! 2. A call that is cut has its connection closed; over gRPC, where calls share connections, its stream is reset.
//! 3. No task can make a worker call an address that the configuration does not allow (`guard`).
//! 4. The value of a secret is in no log, error or result (`secrets`).
//!
//! It knows neither Kafka nor the API.

mod call;
mod certificate;
mod clients;
mod grpc;
mod guard;
mod request;
mod resolver;
mod secrets;
mod sign;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinError, JoinHandle, JoinSet};
use tokio::time::Instant;
use url::Url;

use crate::engine::UnixMillis;
use crate::engine::task::registry::Registry;
use crate::engine::task::result::{Outcome, TaskResult};
use crate::engine::work::{CallEnd, CallId, Task};
use crate::telemetry;

pub use guard::{Denied, Guard, Malformed};
pub use resolver::{Addresses, Lookup, system};
pub use secrets::{Secret, Secrets};

use call::Caller;

/// What is to be done.
#[derive(Debug)]
pub enum Order {
    /// Make the call of this task. What is not on its way by that time is not sent: the process stood still, and its task may be
    /// another worker's.
    Begin(CallId, Arc<Task>, Instant),
    /// Stop it at once, and tell nothing of it any more. If it ended a moment before, its end may be in the channel already.
    Cut(CallId),
}

/// A call has ended.
#[derive(Debug)]
pub struct Ended {
    /// Which.
    pub call: CallId,
    /// How.
    pub end: Box<CallEnd>,
}

/// The time of the brokers.
pub type Clock = Arc<dyn Fn() -> UnixMillis + Send + Sync>;

/// What calls depend on.
#[derive(Clone)]
pub struct Settings {
    /// The name of this worker, for results.
    pub worker: String,
    /// Which addresses may be called.
    pub guard: Guard,
    /// What services may name.
    pub secrets: Secrets,
    /// All calls go through this proxy, which looks names up by itself: so the guard should have a list of hosts.
    pub proxy: Option<Url>,
    /// How names are looked up; [`system`].
    pub lookup: Lookup,
}

/// Why no calls can be made.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The client of calls over HTTP does not work.
    #[error("could not set up the HTTP client of callbacks")]
    Http(#[from] reqwest::Error),
    /// TLS of calls over gRPC does not work.
    #[error("could not set up TLS for callbacks over gRPC")]
    Tls(#[from] native_tls::Error),
}

/// Begins to take orders, and tells `ended` how calls end, which says whether anybody listens. It stops, and cuts the calls that are open, once nobody can
/// send an order any more or nobody listens; the handle tells when.
///
/// # Errors
/// The library for TLS does not work, or the proxy is none.
pub fn start(
    runtime: &Handle,
    settings: Settings,
    registry: watch::Receiver<Arc<Registry>>,
    clock: Clock,
    orders: mpsc::UnboundedReceiver<Order>,
    ended: impl Fn(Ended) -> bool + Send + 'static,
) -> Result<JoinHandle<()>, StartError> {
    let caller = Arc::new(Caller::new(settings, registry, clock)?);
    Ok(runtime
        .spawn(Calls { caller, open: HashMap::new(), running: JoinSet::new() }.run(orders, ended)))
}

/// How long a call that has begun waits before it is made, if a test says so, in milliseconds.
fn call_waits() -> Option<Duration> {
    fail::fail_point!("call_waits", |wait| Some(Duration::from_millis(wait?.parse().ok()?)));
    None
}

/// The calls that are open.
struct Calls {
    caller: Arc<Caller>,
    open: HashMap<CallId, AbortHandle>,
    running: JoinSet<(CallId, Box<CallEnd>)>,
}

impl Calls {
    async fn run(
        mut self,
        mut orders: mpsc::UnboundedReceiver<Order>,
        ended: impl Fn(Ended) -> bool + Send,
    ) {
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(Order::Begin(call, task, by)) => self.begin(call, task, by),
                    Some(Order::Cut(call)) => self.cut(call),
                    None => break,
                },
                Some(joined) = self.running.join_next() => {
                    if let Some(end) = self.ended(joined)
                        && !ended(end)
                    {
                        break;
                    }
                }
            }
            telemetry::calls_open(self.open.len());
        }
        telemetry::calls_open(0);
    }

    fn begin(&mut self, call: CallId, task: Arc<Task>, by: Instant) {
        let caller = Arc::clone(&self.caller);
        let running = self.running.spawn(async move {
            if let Some(wait) = call_waits() {
                tokio::time::sleep(wait).await;
            }
            (call, caller.call(&task, by).await)
        });
        self.open.insert(call, running);
    }

    fn cut(&mut self, call: CallId) {
        if let Some(running) = self.open.remove(&call) {
            running.abort();
            telemetry::call_cut();
        }
    }

    /// What is to be told of a call whose task of the runtime has ended; `None`: it was cut.
    fn ended(&mut self, joined: Result<(CallId, Box<CallEnd>), JoinError>) -> Option<Ended> {
        let (call, end) = match joined {
            Ok(ended) => ended,
            Err(error) => {
                let (call, _) = self.open.iter().find(|(_, running)| running.id() == error.id())?;
                tracing::error!(%error, "a call ended by a fault of waterclock");
                let mut result = TaskResult::new(Outcome::Failed);
                result.error =
                    Some("internal: the worker failed in this call; its log says more".to_owned());
                (*call, Box::new(CallEnd { result, is_away: false }))
            }
        };
        // A call that was cut may have ended before it heard of that.
        self.open.remove(&call).map(|_| Ended { call, end })
    }
}
