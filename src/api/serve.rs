//! The listener: accepts, bounds, and stops.

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::header;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tower_service::Service as _;

use super::answer::{Answer, Ending, Endless};
use super::auth::{Access, Peer};
use super::gate::{Gate, Held};
use super::grpc;
use super::guard::{Clock, Guard, Rules};
use super::health::{Status, router};
use super::hosts::Hosts;
use super::stream::Stream;
use super::tasks::{self, Tasks};
use super::timers::{self, Peers, model::Timers};
use super::tls::{Tls, Wire};
use super::{members, openapi, projects, runs, schedules};

/// Bounds of time and number; a test has others, so as not to take so long.
#[derive(Clone, Copy)]
struct Limits {
    /// Longest wait for the head of a request, and for the next one on an open connection.
    head: Duration,
    /// Longest wait for a client to take an answer.
    answer: Duration,
    /// After this long a connection takes no further request. One that is being answered is answered.
    connection: Duration,
    /// How long it may then still take: longer than any request. What hangs for longer is cut.
    last: Duration,
    /// How long a request may still take when everything stops. Then it is answered with what can be said.
    stop: Duration,
    /// Connections at once; for a further one, that which has been idle for the longest is closed.
    connections: usize,
}

impl Limits {
    fn new(connections: usize) -> Self {
        Self {
            head: Duration::from_secs(10),
            answer: Duration::from_secs(30),
            connection: Duration::from_secs(300),
            last: Duration::from_secs(300),
            stop: Duration::from_millis(500),
            connections,
        }
    }
}

/// Bytes of a request's body where none is read.
const BODY_BYTES_MAX: usize = 16 << 10;
/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Requests at once on one connection of HTTP/2.
const STREAMS_MAX: u32 = 100;
/// Requests of HTTP/2 that their client has reset before they were looked at, on one connection at once; with one more it ends, with
/// ENHANCE_YOUR_CALM. The bound on streams that the server resets is hyper's own: 1,024 in the life of a connection.
const RESETS_MAX: usize = 20;
/// Bytes that a client of HTTP/2 may send ahead: on one request, and on one connection.
const WINDOW_BYTES: (u32, u32) = (128 << 10, 256 << 10);
/// A connection of HTTP/2 on which nothing comes is asked whether somebody is there, and has as long to answer.
const PING: Duration = Duration::from_secs(20);
/// Longest wait for open requests at the end.
const CLOSE_MAX: Duration = Duration::from_secs(1);
/// Wait after an accept that failed (too many open files, mostly), so that it is not tried in a circle.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What every room of the API asks before it answers. Clones share it.
#[derive(Clone)]
pub struct Front {
    hosts: Hosts,
    pub(super) gate: Arc<Gate>,
    access: Arc<Access>,
    pub(super) peers: Peers,
}

impl Front {
    /// By which names the instance may be asked, how much at once, and by whom; and how it asks others.
    #[must_use]
    pub const fn new(hosts: Hosts, gate: Arc<Gate>, access: Arc<Access>, peers: Peers) -> Self {
        Self { hosts, gate, access, peers }
    }

    /// What stands before a room.
    pub(super) fn guard(&self, rules: Rules, clock: Clock) -> Arc<Guard> {
        let (hosts, gate) = (self.hosts.clone(), Arc::clone(&self.gate));
        Arc::new(Guard { rules, clock, hosts, access: Arc::clone(&self.access), gate })
    }
}

/// What the API serves beside health.
pub struct Rooms {
    /// `/v1/timers`.
    pub timers: Arc<dyn Timers>,
    /// `/v1/tasks`, `/v1/projects` and what else needs the API's role; `None`: there are no such paths.
    pub tasks: Option<Tasks>,
}

impl Rooms {
    pub(super) fn router(self, front: &Front) -> Router {
        let app = openapi::router().merge(timers::router(self.timers, front));
        match self.tasks {
            Some(of) => app
                .merge(tasks::router(of.clone(), front))
                .merge(projects::router(of.clone(), front))
                .merge(schedules::router(of.clone(), front))
                .merge(runs::router(of.clone(), front))
                .merge(members::router(of.clone(), front))
                .merge(grpc::router(of, front)),
            None => app,
        }
    }
}

/// Answers on `listener` until `stop` resolves; then lets open requests end, for a second at most. With `tls` it takes nothing
/// else.
pub async fn serve(
    (listener, tls): (TcpListener, Option<Arc<Tls>>),
    status: Arc<dyn Status>,
    rooms: Rooms,
    front: Front,
    stop: impl Future<Output = ()>,
) {
    let limits = Limits::new(front.gate.connections);
    let app = router(Arc::clone(&status)).layer(DefaultBodyLimit::max(BODY_BYTES_MAX));
    let (health, reporter) = grpc::health();
    let app = app.merge(grpc::open_router(front.hosts.clone(), health, rooms.tasks.is_some()));
    tokio::select! {
        () = serve_within(limits, (listener, tls), app.merge(rooms.router(&front)), stop) => {}
        () = grpc::follow(status, reporter) => {}
    }
}

async fn serve_within(
    limits: Limits,
    (listener, tls): (TcpListener, Option<Arc<Tls>>),
    app: Router,
    stop: impl Future<Output = ()>,
) {
    let open = Arc::new(Connections::default());
    let (stopping, stopped) = watch::channel(());
    let (mut stop, mut running) = (pin!(stop), JoinSet::new());
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(_) = running.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => {
                    // With none idle it is closed: there are fewer places for requests than connections.
                    let Some(mine) = open.enter(limits.connections) else { continue };
                    // An answer of several parts would wait for the client's acknowledgement of the first one: 40 ms.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "a connection stays with small packets held back");
                    }
                    let of_client = (stream, tls.clone(), Peer(from.ip()));
                    running.spawn(connection(limits, of_client, app.clone(), mine, stopped.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            },
        }
    }
    drop((listener, stopping, stopped));
    let ended = async { while running.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(CLOSE_MAX, ended).await;
}

/// All connections that are open, so that an idle one can give way to a new one.
#[derive(Debug, Default)]
struct Connections(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    next: u64,
    all: BTreeMap<u64, OfOne>,
}

#[derive(Debug)]
struct OfOne {
    /// Since when the last answer is written and no request is being answered; `None`: one is.
    idle: Option<Instant>,
    close: Arc<Notify>,
}

/// One connection among all, until this is dropped.
struct Mine {
    open: Arc<Connections>,
    number: u64,
    close: Arc<Notify>,
    stage: Mutex<Stage>,
}

/// What a connection does. It is idle if neither is so: no request is there, or not all of its head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stage {
    /// So many requests are being answered: one at most over HTTP/1.
    answering: usize,
    /// The end of an answer is to be written.
    writes: bool,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock()
    }

    /// One more; where there are as many as may be, the one that is idle for the longest is told to close. `None`: none is.
    fn enter(self: &Arc<Self>, most: usize) -> Option<Mine> {
        let mut open = self.lock();
        if open.all.len() >= most {
            let idle = open.all.iter().filter_map(|(number, of)| Some((of.idle?, *number)));
            let (_, oldest) = idle.min()?;
            open.all.remove(&oldest)?.close.notify_one();
        }
        open.next += 1;
        let (number, close) = (open.next, Arc::new(Notify::new()));
        open.all.insert(number, OfOne { idle: Some(Instant::now()), close: Arc::clone(&close) });
        Some(Mine { open: Arc::clone(self), number, close, stage: Mutex::default() })
    }
}

impl Mine {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock()
    }

    fn begin(&self) {
        self.stage().answering += 1;
        self.is_idle(false);
    }

    /// An answer will be written, or its last part.
    fn answer(&self) {
        let mut stage = self.stage();
        stage.answering -= 1;
        stage.writes = true;
    }

    /// All is written that was to be written. Before an answer that is `100 Continue`, and the request goes on.
    fn written(&self) {
        let mut stage = self.stage();
        if *stage == (Stage { answering: 0, writes: true }) {
            stage.writes = false;
            self.is_idle(true);
        }
    }

    fn is_idle(&self, is_idle: bool) {
        if let Some(of) = self.open.lock().all.get_mut(&self.number) {
            of.idle = is_idle.then(Instant::now);
        }
    }
}

/// One request, until the end of its answer is to be written.
struct OfRequest(Option<Arc<Mine>>);

impl OfRequest {
    fn begin(mine: Arc<Mine>) -> Self {
        mine.begin();
        Self(Some(mine))
    }
}

impl Ending for OfRequest {
    fn handed_over(mut self) {
        if let Some(mine) = self.0.take() {
            mine.answer();
        }
    }
}

/// The client has given it up.
impl Drop for OfRequest {
    fn drop(&mut self) {
        if let Some(mine) = self.0.take() {
            mine.answer();
            // Perhaps nothing is written any more.
            mine.written();
        }
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        self.open.lock().all.remove(&self.number);
    }
}

/// Why a connection takes no further request.
#[derive(Clone, Copy, Debug)]
enum End {
    Idle,
    Old,
    Stop,
}

async fn connection(
    limits: Limits,
    (stream, tls, peer): (TcpStream, Option<Arc<Tls>>, Peer),
    app: Router,
    mine: Mine,
    mut stopped: watch::Receiver<()>,
) {
    let (held, mine, cut) = (Held::default(), Arc::new(mine), Arc::new(Notify::new()));
    let written = {
        let (held, mine) = (held.clone(), Arc::clone(&mine));
        move || {
            held.clear();
            mine.written();
        }
    };
    let begin = async {
        let (wire, shown) = match tls {
            Some(tls) => tls.accept(stream).await?,
            None => (Wire::Plain(stream), None),
        };
        let mut stream = Stream::new(wire, limits.answer, written);
        let is_http2 = stream.speaks_http2().await?;
        io::Result::Ok((stream, is_http2, shown))
    };
    let (stream, is_http2, shown) = tokio::select! {
        begun = tokio::time::timeout(limits.head, begin) => match begun {
            Ok(Ok(begun)) => begun,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a connection has not begun");
                return;
            }
            Err(_) => return,
        },
        () = mine.close.notified() => return,
        _ = stopped.changed() => return,
    };
    let (of_requests, stopping) = (Arc::clone(&mine), stopped.clone());
    let of_answers = Arc::clone(&cut);
    let answer = service_fn(move |mut request: Request<Incoming>| {
        let (mut app, mine) = (app.clone(), Arc::clone(&of_requests));
        let (mut stopping, cut) = (stopping.clone(), Arc::clone(&of_answers));
        // Over HTTP/2 each request has its own end, and over HTTP/1 all of it is written before the next one.
        let held = if is_http2 { Held::default() } else { held.clone() };
        request.extensions_mut().insert(held.clone());
        request.extensions_mut().insert(peer);
        if let Some(shown) = &shown {
            request.extensions_mut().insert(shown.clone());
        }
        let (reads, is_grpc) = (request.method().is_safe(), grpc::is_grpc(request.headers()));
        async move {
            let of_request = OfRequest::begin(mine);
            let is_over = async {
                // The other end is dropped when everything stops.
                let _ = stopping.changed().await;
                tokio::time::sleep(limits.stop).await;
            };
            let mut answer = tokio::select! {
                answer = app.call(request) => answer.unwrap_or_else(|never| match never {}),
                () = is_over => grpc::told(is_grpc, timers::stopping(reads)),
            };
            if !is_http2 {
                of_request.handed_over();
                return Ok::<_, Infallible>(answer);
            }
            // Of HTTP/1 alone.
            answer.headers_mut().remove(header::CONNECTION);
            let is_endless = answer.extensions().get::<Endless>().is_some();
            let most = (!is_endless).then_some((limits.answer, cut));
            Ok(answer.map(|body| Body::new(Answer::new(body, of_request, held, most))))
        }
    });
    let stream = TokioIo::new(stream);
    let ends = Ends { limits, mine, cut };
    if is_http2 {
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .max_pending_accept_reset_streams(RESETS_MAX)
            .max_header_list_size(HEAD_BYTES_MAX as u32)
            .initial_stream_window_size(WINDOW_BYTES.0)
            .initial_connection_window_size(WINDOW_BYTES.1)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .serve_connection(stream, answer);
        ends.meet(connection, |connection| connection.graceful_shutdown(), stopped).await;
    } else {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(stream, answer);
        ends.meet(connection, |connection| connection.graceful_shutdown(), stopped).await;
    }
}

/// What ends a connection.
struct Ends {
    limits: Limits,
    mine: Arc<Mine>,
    /// The client does not take an answer.
    cut: Arc<Notify>,
}

impl Ends {
    /// Serves the connection until it ends. `finish`: has it take no further request, and answer those that are open.
    async fn meet<C>(
        self,
        connection: C,
        finish: impl FnOnce(Pin<&mut C>),
        mut stopped: watch::Receiver<()>,
    ) where
        C: Future<Output = Result<(), hyper::Error>>,
    {
        let mut connection = pin!(connection);
        let why = tokio::select! {
            end = connection.as_mut() => return ended(end),
            () = self.cut.notified() => return is_cut(),
            () = self.mine.close.notified() => End::Idle,
            () = tokio::time::sleep(self.limits.connection) => End::Old,
            // The other end is dropped when everything stops.
            _ = stopped.changed() => End::Stop,
        };
        tracing::debug!(?why, "a connection takes no further request");
        if matches!(why, End::Idle) && *self.mine.stage() == Stage::default() {
            // It has given up its place, so half a head is not waited for.
            return;
        }
        // Requests in progress still get their responses.
        finish(connection.as_mut());
        tokio::select! {
            end = tokio::time::timeout(self.limits.last, connection) => match end {
                Ok(end) => ended(end),
                Err(_) => tracing::debug!("a connection was open for too long"),
            },
            () = self.cut.notified() => is_cut(),
        }
    }
}

fn is_cut() {
    tracing::debug!("a client did not take its answer");
}

fn ended(end: Result<(), hyper::Error>) {
    if let Err(error) = end {
        tracing::debug!(%error, "a connection ended badly");
    }
}

#[cfg(test)]
mod tests;
