//! The service that tasks call, inside this process. It notes each call. It answers at once, after a while, or holds the call open.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::any;
use axum::serve::ListenerExt as _;
use parking_lot::Mutex;
use tokio::net::TcpListener;

use waterclock_engine::UnixMillis;

/// Begins the path of a call that is answered at once; its number follows.
pub(super) const CALL: &str = "/call/";
/// Begins the path of a call whose first turn is held open.
pub(super) const HOLD: &str = "/hold/";
/// Begins the path of a call that takes a while; whether it fails follows from its number: [`fails`].
pub(super) const WORK: &str = "/work/";
/// Longer than a case that holds calls open.
const HELD: Duration = Duration::from_secs(120);

/// One call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// The number in its path; of a shard its index.
    pub(super) n: u64,
    /// Which attempt of its task it is, from 1.
    pub(super) attempt: u32,
    /// When its task was due.
    pub(super) due: UnixMillis,
    /// When it was here.
    pub(super) at: Instant,
}

/// What came.
#[derive(Debug, Default)]
struct Seen {
    calls: Mutex<Vec<Call>>,
    /// Calls that have no answer yet.
    open: AtomicU64,
    /// Calls that had no answer, and whose connection the caller closed.
    broken: Mutex<Vec<(u64, Instant)>>,
}

impl Seen {
    /// Notes a call; says which turn and which attempt it is.
    fn note(&self, n: u64, headers: &HeaderMap) -> (u32, u32) {
        let number = |name| headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
        let count = |name| number(name).and_then(|count| u32::try_from(count).ok());
        let attempt = count("waterclock-attempt").unwrap_or_default();
        let due = UnixMillis(number("waterclock-due").unwrap_or_default());
        let n = shard(headers).unwrap_or(n);
        self.calls.lock().push(Call { n, attempt, due, at: Instant::now() });
        (count("waterclock-turn").unwrap_or_default(), attempt)
    }
}

/// Which shard a call is of: `7/60` is the one with the index 7.
fn shard(headers: &HeaderMap) -> Option<u64> {
    let (index, _) = headers.get("waterclock-shard")?.to_str().ok()?.split_once('/')?;
    index.parse().ok()
}

/// A call that has no answer yet. The server drops it when the caller is gone.
struct Open {
    seen: Arc<Seen>,
    n: u64,
    answered: bool,
}

impl Open {
    /// Takes its time until the answer.
    async fn answer_after(seen: Arc<Seen>, n: u64, wait: Duration) {
        seen.open.fetch_add(1, Ordering::Relaxed);
        let mut open = Self { seen, n, answered: false };
        tokio::time::sleep(wait).await;
        open.answered = true;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.seen.open.fetch_sub(1, Ordering::Relaxed);
        if !self.answered {
            self.seen.broken.lock().push((self.n, Instant::now()));
        }
    }
}

async fn call(
    State(seen): State<Arc<Seen>>,
    Path(n): Path<u64>,
    headers: HeaderMap,
    _: Bytes,
) -> StatusCode {
    seen.note(n, &headers);
    StatusCode::OK
}

/// It reads the whole body: the server does not see that a caller has gone while there is something to read.
async fn hold(
    State(seen): State<Arc<Seen>>,
    Path(n): Path<u64>,
    headers: HeaderMap,
    _: Bytes,
) -> StatusCode {
    let (turn, _) = seen.note(n, &headers);
    if turn <= 1 {
        Open::answer_after(seen, n, HELD).await;
    }
    StatusCode::OK
}

/// Whether an attempt of the call of a number fails: of eight the first attempt of one, of forty every attempt of one.
pub(super) fn fails(n: u64, attempt: u32) -> bool {
    n % 40 == 17 || n % 8 == 5 && attempt <= 1
}

async fn work(
    State(seen): State<Arc<Seen>>,
    Path(n): Path<u64>,
    headers: HeaderMap,
    _: Bytes,
) -> StatusCode {
    let (_, attempt) = seen.note(n, &headers);
    Open::answer_after(seen, n, Duration::from_millis(20 + n * 37 % 180)).await;
    if fails(n, attempt) { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK }
}

/// The service, which ends with the runtime that it was started on.
pub(super) struct Stub {
    /// Where it listens.
    pub(super) address: SocketAddr,
    seen: Arc<Seen>,
}

impl Stub {
    /// Listens on loopback.
    ///
    /// # Errors
    /// The system gives no port.
    pub(super) async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let seen = Arc::new(Seen::default());
        let routes = Router::new()
            .route(&format!("{CALL}{{n}}"), any(call))
            .route(&format!("{HOLD}{{n}}"), any(hold))
            .route(&format!("{WORK}{{n}}"), any(work))
            .with_state(Arc::clone(&seen));
        let listener = listener.tap_io(|stream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "a connection stays with small packets held back");
            }
        });
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, routes).await {
                tracing::warn!(%error, "the service that tasks call has ended");
            }
        });
        Ok(Self { address, seen })
    }

    /// How many calls were made since the last [`take`](Self::take).
    pub(super) fn count(&self) -> u64 {
        self.seen.calls.lock().len() as u64
    }

    /// The calls since the last time, which are forgotten then.
    pub(super) fn take(&self) -> Vec<Call> {
        self.seen.broken.lock().clear();
        std::mem::take(&mut *self.seen.calls.lock())
    }

    /// The calls so far.
    pub(super) fn calls(&self) -> Vec<Call> {
        self.seen.calls.lock().clone()
    }

    /// How many calls have no answer yet, of those that take their time.
    pub(super) fn open(&self) -> u64 {
        self.seen.open.load(Ordering::Relaxed)
    }

    /// Numbers of calls whose caller has gone before the answer, and when.
    pub(super) fn broken(&self) -> Vec<(u64, Instant)> {
        self.seen.broken.lock().clone()
    }
}
