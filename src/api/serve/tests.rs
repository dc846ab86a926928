use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::super::Report;
use super::*;

/// A process that is alive and not ready.
struct Half;

impl Status for Half {
    fn live(&self) -> Report {
        Report { ok: true, reasons: vec!["yes".to_owned()] }
    }

    fn ready(&self) -> Report {
        Report { ok: false, reasons: vec!["thread 0 waits".to_owned()] }
    }

    fn metrics(&self) -> String {
        "waterclock_delivered_total 7\n".to_owned()
    }
}

async fn start(limits: Limits) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let stopped = async move {
        let _ = stopped.await;
    };
    (address, stop, tokio::spawn(serve_within(limits, listener, router(Arc::new(Half)), stopped)))
}

/// Sends what is given and reads until the other side closes.
async fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A close with what was sent unread is a reset; what was answered before counts.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

fn request(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
}

#[tokio::test]
async fn each_page_answers_with_its_code_and_form() {
    let (address, _stop, _serving) = start(LIMITS).await;
    #[rustfmt::skip]
    let cases = [
        ("GET",  "/health/live",    "200", "{\"ok\":true,\"reasons\":[\"yes\"]}"),
        ("GET",  "/health/ready",   "503", "{\"ok\":false,\"reasons\":[\"thread 0 waits\"]}"),
        ("GET",  "/metrics",        "200", "waterclock_delivered_total 7\n"),
        ("HEAD", "/health/live",    "200", ""),
        ("POST", "/health/live",    "405", ""),
        ("GET",  "/",               "404", "no such page\n"),
        ("GET",  "/health/live/",   "404", "no such page\n"),
        ("GET",  "/%2e%2e/etc",     "404", "no such page\n"),
    ];
    for (method, path, code, body) in cases {
        let answer = exchange(address, &request(method, path)).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{method} {path}: {answer}");
        assert!(answer.ends_with(&format!("\r\n\r\n{body}")), "{method} {path}: {answer}");
    }
    let metrics = exchange(address, &request("GET", "/metrics")).await;
    assert!(
        metrics.contains("content-type: text/plain; version=0.0.4; charset=utf-8"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_head_that_does_not_come_or_is_too_long_ends_the_connection() {
    let limits = Limits { head: Duration::from_millis(100), ..LIMITS };
    let (address, _stop, _serving) = start(limits).await;
    let slow = exchange(address, "GET /health/live HTTP/1.1\r\nHost: x\r\n");
    // Without a limit this would wait for ever.
    let answer = tokio::time::timeout(Duration::from_secs(5), slow).await;
    assert!(answer.is_ok_and(|answer| !answer.contains(" 200 ")));
    let long = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "x".repeat(4 * HEAD_BYTES_MAX));
    let answer = exchange(address, &long).await;
    assert!(answer.is_empty() || answer.contains(" 431 "), "{answer}");
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_until_one_closes() {
    let (address, _stop, _serving) = start(Limits { connections: 1, ..LIMITS }).await;
    let held = TcpStream::connect(address).await.unwrap();
    let second = request("GET", "/health/live");
    let mut waiting = Box::pin(exchange(address, &second));
    let early = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
    assert!(early.is_err(), "answered beyond the limit");
    drop(held);
    let answer = tokio::time::timeout(Duration::from_secs(5), waiting).await;
    assert!(answer.is_ok_and(|answer| answer.contains(" 200 ")));
}

#[tokio::test]
async fn a_stop_closes_idle_connections_and_the_listener() {
    let (address, stop, serving) = start(LIMITS).await;
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = [0; 15];
    idle.read_exact(&mut answer).await.unwrap();
    stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(5), serving).await.expect("it stops").unwrap();
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(5), idle.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "the idle connection is open still");
    assert!(TcpStream::connect(address).await.is_err(), "it listens still");
}
