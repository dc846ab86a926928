//! The connections that calls over gRPC share: one for each project, address and client certificate.
//!
//! # Invariants
//! 1. A connection on which one certificate was shown serves no call that shows another, or none.
//! 2. Who asks for one target at one time shares one attempt to connect, and how it ends.
//! 3. At most [`CONNECTIONS`] are kept, and none that was idle for [`IDLE`]. Calls that are open keep theirs beside that.
//! 4. A connection that nobody has any more is closed.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::super::call::HEADERS_MAX;
use super::connect::{Connector, Stream};
use super::exchange::Message;
use super::request::Target;
use super::{Failure, last_cause};

/// A connection that is not used for so long is closed.
const IDLE: Duration = Duration::from_secs(30);
/// Connections that are kept.
const CONNECTIONS: usize = 1_024;
/// How much of one answer may be on its way, and of all answers of one connection.
const WINDOWS: (u32, u32) = (128 << 10, 1 << 20);
/// While calls are open, the other side is asked so often whether it is there, and has so long to answer.
const SIGNS: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

/// A connection, for as long as somebody has it.
pub(super) struct Connection {
    pub(super) sender: SendRequest<Message>,
    /// The authority of its requests, with their scheme before it.
    pub(super) base: String,
    driver: AbortHandle,
    used: Mutex<Instant>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Notes that it was used.
    pub(super) fn touch(&self) {
        *self.used.lock() = Instant::now();
    }

    /// Speaks HTTP/2 on a stream.
    async fn over(stream: Box<dyn Stream>, base: String) -> Result<Self, Failure> {
        let handshake = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOWS.0)
            .initial_connection_window_size(WINDOWS.1)
            .max_header_list_size(HEADERS_MAX as u32)
            .keep_alive_interval(SIGNS.0)
            .keep_alive_timeout(SIGNS.1)
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, connection) = handshake
            .map_err(|error| Failure::broken(format!("call_broken: {}", last_cause(&error))))?;
        let driver = tokio::spawn(async move {
            // Each call that was open hears of it by itself.
            if let Err(error) = connection.await {
                tracing::debug!(error = last_cause(&error), "a connection of gRPC calls ended");
            }
        });
        let used = Mutex::new(Instant::now());
        Ok(Self { sender, base, driver: driver.abort_handle(), used })
    }
}

/// Project, scheme with host and port, and the secret with the client certificate.
type Key = (String, String, Option<String>);
type Made = Result<Arc<Connection>, Failure>;
type Slot = watch::Receiver<Option<Made>>;

pub(super) struct Connections(Arc<Inner>);

struct Inner {
    connector: Connector,
    slots: Mutex<HashMap<Key, Slot>>,
}

impl Target {
    /// What stands before the path of a call.
    pub(super) fn base(&self) -> &str {
        self.url[..url::Position::AfterPort].trim_end_matches('/')
    }

    fn key(&self) -> Key {
        let secret = self.certificate.as_ref().map(|(secret, _)| secret.clone());
        (self.project.clone(), self.base().to_owned(), secret)
    }
}

impl Connections {
    pub(super) fn new(connector: Connector) -> Self {
        Self(Arc::new(Inner { connector, slots: Mutex::default() }))
    }

    /// The connection to a target; makes one if there is none.
    pub(super) async fn to(&self, target: &Target) -> Made {
        let key = target.key();
        let mut slot = {
            let mut slots = self.0.slots.lock();
            match slots.get(&key).filter(|slot| is_good(slot)) {
                Some(slot) => slot.clone(),
                None => {
                    let (tell, slot) = watch::channel(None);
                    slots.insert(key.clone(), slot.clone());
                    evict(&mut slots);
                    drop(slots);
                    self.begin(key, target, tell);
                    slot
                }
            }
        };
        let ended = || Failure::broken("call_broken: the attempt to connect was cut off");
        let made = match slot.wait_for(Option::is_some).await {
            Ok(made) => made.clone().unwrap_or_else(|| Err(ended())),
            Err(_) => Err(ended()),
        };
        made.inspect(|connection| connection.touch())
    }

    /// Takes a connection away, unless another one has its place by now.
    pub(super) fn forget(&self, target: &Target, gone: &Arc<Connection>) {
        let key = target.key();
        let mut slots = self.0.slots.lock();
        if slots.get(&key).is_some_and(|slot| has(slot, gone)) {
            slots.remove(&key);
        }
    }

    /// Connects, and goes on if the call that wanted it gives up. Then it waits until the connection is idle.
    fn begin(&self, key: Key, target: &Target, tell: watch::Sender<Option<Made>>) {
        let inner = Arc::clone(&self.0);
        let target = Target {
            project: target.project.clone(),
            url: target.url.clone(),
            certificate: target.certificate.clone(),
        };
        tokio::spawn(async move {
            let made = match inner.connector.connect(&target).await {
                Ok(stream) => Connection::over(stream, target.base().to_owned()).await,
                Err(failure) => Err(failure),
            };
            let made = made.map(Arc::new);
            let connection = made.as_ref().map(Arc::downgrade).unwrap_or_default();
            // Who comes from now on connects anew.
            if made.is_err() {
                inner.remove(&key, &tell);
            }
            let pool = Arc::downgrade(&inner);
            drop(inner);
            tell.send_replace(Some(made));
            watch_idle(pool, connection, key, tell).await;
        });
    }
}

impl Inner {
    /// Takes a slot away, unless another one has its place by now.
    fn remove(&self, key: &Key, tell: &watch::Sender<Option<Made>>) {
        let mut slots = self.slots.lock();
        if slots.get(key).is_some_and(|slot| slot.same_channel(&tell.subscribe())) {
            slots.remove(key);
        }
    }
}

/// Takes a connection away once it was idle for long enough.
async fn watch_idle(
    pool: Weak<Inner>,
    connection: Weak<Connection>,
    key: Key,
    tell: watch::Sender<Option<Made>>,
) {
    loop {
        tokio::select! {
            // It was taken away; open calls keep it for themselves.
            () = tell.closed() => return,
            () = tokio::time::sleep(IDLE / 2) => {}
        }
        let (Some(pool), Some(open)) = (pool.upgrade(), connection.upgrade()) else { return };
        // The place where the connection waits for calls has it, too.
        let is_idle = Arc::strong_count(&open) == 2 && open.used.lock().elapsed() >= IDLE;
        if is_idle || open.sender.is_closed() {
            pool.remove(&key, &tell);
            return;
        }
    }
}

fn is_good(slot: &Slot) -> bool {
    match &*slot.borrow() {
        // One whose other end has gone was cut off.
        None => slot.has_changed().is_ok(),
        Some(Ok(connection)) => !connection.sender.is_closed(),
        Some(Err(_)) => false,
    }
}

fn has(slot: &Slot, wanted: &Arc<Connection>) -> bool {
    matches!(&*slot.borrow(), Some(Ok(connection)) if Arc::ptr_eq(connection, wanted))
}

/// Makes room: what was used longest ago goes first.
fn evict(slots: &mut HashMap<Key, Slot>) {
    if slots.len() <= CONNECTIONS {
        return;
    }
    let used = |slot: &Slot| match &*slot.borrow() {
        Some(Ok(connection)) => Some(*connection.used.lock()),
        _ => None,
    };
    let oldest = slots.iter().filter_map(|(key, slot)| Some((used(slot)?, key.clone()))).min();
    if let Some((_, key)) = oldest {
        slots.remove(&key);
    }
}
