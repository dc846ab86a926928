//! The listener: accepts, bounds, and stops.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tower_service::Service as _;

use super::health::{Status, router};
use super::timers::{self, known::Timers};

/// Bounds of time and number; a test has others, so as not to take so long.
#[derive(Clone, Copy)]
struct Limits {
    /// Longest wait for the head of a request, and for the next one on an open connection.
    head: Duration,
    /// Longest life of a connection: no page here is long.
    connection: Duration,
    /// Connections at once; further ones wait to be accepted.
    connections: u32,
}

const LIMITS: Limits = Limits {
    head: Duration::from_secs(10),
    connection: Duration::from_secs(300),
    // Instances ask each other by this door, too.
    connections: 1_024,
};
/// Bytes of a request's body where none is read.
const BODY_BYTES_MAX: usize = 16 << 10;
/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Longest wait for open requests at the end.
const CLOSE_MAX: Duration = Duration::from_secs(1);
/// Wait after an accept that failed (too many open files, mostly), so that it is not tried in a circle.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Answers on `listener` until `stop` resolves; then lets open requests end, for a second at most.
pub async fn serve(
    listener: TcpListener,
    status: Arc<dyn Status>,
    timers: Arc<dyn Timers>,
    stop: impl Future<Output = ()>,
) {
    let app = router(status).layer(DefaultBodyLimit::max(BODY_BYTES_MAX));
    serve_within(LIMITS, listener, app.merge(timers::router(timers)), stop).await;
}

async fn serve_within(
    limits: Limits,
    listener: TcpListener,
    app: Router,
    stop: impl Future<Output = ()>,
) {
    let places = Arc::new(Semaphore::new(limits.connections as usize));
    let (stopping, stopped) = watch::channel(());
    let mut stop = pin!(stop);
    loop {
        let accepted = async {
            // The semaphore is never closed; were it, nobody would be let in.
            let place = Arc::clone(&places).acquire_owned().await.ok()?;
            match listener.accept().await {
                Ok((stream, _)) => Some((place, stream)),
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    None
                }
            }
        };
        tokio::select! {
            () = &mut stop => break,
            accepted = accepted => {
                if let Some((place, stream)) = accepted {
                    let (app, stopped) = (app.clone(), stopped.clone());
                    tokio::spawn(async move {
                        connection(limits, stream, app, stopped).await;
                        drop(place);
                    });
                }
            }
        }
    }
    drop((listener, stopping));
    let _ = tokio::time::timeout(CLOSE_MAX, places.acquire_many(limits.connections)).await;
}

async fn connection(
    limits: Limits,
    stream: TcpStream,
    app: Router,
    mut stopped: watch::Receiver<()>,
) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let mut app = app.clone();
        async move {
            Ok::<_, Infallible>(app.call(request).await.unwrap_or_else(|never| match never {}))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    let mut connection = pin!(connection);
    let end = tokio::time::timeout(limits.connection, async {
        tokio::select! {
            end = connection.as_mut() => end,
            // The other end is dropped when everything stops.
            _ = stopped.changed() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    });
    match end.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection ended badly"),
        Err(_) => tracing::debug!("a connection was open for too long"),
    }
}

#[cfg(test)]
mod tests;
