use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::super::Report;
use super::super::gate::{Kind, Who};
use super::super::timers::model::PeerAddress;
use super::*;
use crate::patient::{eventually, patient};

mod tls;

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
    (
        address,
        stop,
        tokio::spawn(serve_within(limits, (listener, None), router(Arc::new(Half)), stopped)),
    )
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
    let (address, _stop, _serving) = start(Limits::new(1_024)).await;
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
async fn an_instance_hears_of_another_one_how_it_is_and_waits_for_no_silent_one() {
    let (address, _stop, _serving) = start(Limits::new(1_024)).await;
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other_address = other.local_addr().unwrap();
    let page = Router::new().route("/health/ready", axum::routing::get(async || "yes"));
    tokio::spawn(serve_within(Limits::new(16), (other, None), page, std::future::pending()));
    let half = Half.ready();
    for (why, address, want) in [
        ("it answers", address, Some(half)),
        ("it says nothing", mute.local_addr().unwrap(), None),
        ("nobody is there", gone, None),
        ("it is no instance", other_address, None),
    ] {
        let peer = PeerAddress { address: address.to_string(), tls: false };
        let asked = Peers::default();
        let told = tokio::time::timeout(patient(Duration::from_secs(5)), asked.ready(&peer)).await;
        assert_eq!(told.ok(), Some(want), "{why}");
    }
}

#[tokio::test]
async fn a_head_that_does_not_come_or_is_too_long_ends_the_connection() {
    let limits = Limits { head: Duration::from_millis(100), ..Limits::new(1_024) };
    let (address, _stop, _serving) = start(limits).await;
    let slow = exchange(address, "GET /health/live HTTP/1.1\r\nHost: x\r\n");
    // Without a limit this would wait for ever.
    let answer = tokio::time::timeout(patient(Duration::from_secs(5)), slow).await;
    assert!(answer.is_ok_and(|answer| !answer.contains(" 200 ")));
    let long = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "x".repeat(4 * HEAD_BYTES_MAX));
    let answer = exchange(address, &long).await;
    assert!(answer.is_empty() || answer.contains(" 431 "), "{answer}");
}

#[tokio::test]
async fn where_all_connections_are_taken_the_longest_idle_one_gives_way() {
    let limits = Limits { connections: 2, ..Limits::new(1_024) };
    let (address, _stop, _serving) = start(limits).await;
    let mut first = TcpStream::connect(address).await.unwrap();
    let asked = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut second = TcpStream::connect(address).await.unwrap();
    for stream in [&mut second, &mut first] {
        stream.write_all(asked).await.unwrap();
        assert!(stream.read(&mut [0; 512]).await.is_ok_and(|read| read > 0));
    }
    let third = request("GET", "/health/live");
    let answer =
        tokio::time::timeout(patient(Duration::from_secs(5)), exchange(address, &third)).await;
    assert!(answer.is_ok_and(|answer| answer.contains(" 200 ")));
    let closed =
        tokio::time::timeout(patient(Duration::from_secs(5)), second.read(&mut [0; 1])).await;
    assert!(closed.is_ok_and(|read| !read.is_ok_and(|read| read > 0)), "it is open still");
    first.write_all(asked).await.unwrap();
    assert!(first.read(&mut [0; 512]).await.is_ok_and(|read| read > 0), "idle for less long");
}

/// A page that takes a second, and one that is more than the system takes by itself.
async fn start_slow(limits: Limits) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let slow = async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        "all of it"
    };
    let app = Router::new().route("/slow", axum::routing::get(slow));
    let app = app.route("/large", axum::routing::get(async || vec![b'x'; LARGE]));
    tokio::spawn(serve_within(limits, (listener, None), app, std::future::pending()));
    address
}

const LARGE: usize = 16 << 20;

/// Asks over one connection of HTTP/2.
type Http2 = hyper::client::conn::http2::SendRequest<Body>;

/// A connection of HTTP/2, and when it ends. The client takes so many bytes of one answer ahead.
async fn http2(address: SocketAddr, window: u32) -> (Http2, JoinHandle<()>) {
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        // So that an answer that is not taken leaves room for others.
        .initial_connection_window_size(4 * window)
        .handshake(stream)
        .await
        .unwrap();
    (sender, tokio::spawn(async { drop(connection.await) }))
}

/// An answer over HTTP/2, of which nothing was read yet.
async fn asked(sender: &Http2, path: &str) -> hyper::Result<axum::http::Response<Incoming>> {
    let request = Request::builder().uri(format!("http://x{path}"));
    sender.clone().send_request(request.body(Body::empty()).unwrap()).await
}

async fn text(answer: axum::http::Response<Incoming>) -> String {
    let bytes = axum::body::to_bytes(Body::new(answer.into_body()), usize::MAX).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn one_connection_of_http2_has_many_requests_at_once() {
    let address = start_slow(Limits::new(1_024)).await;
    let (sender, _connection) = http2(address, 1 << 20).await;
    let began = Instant::now();
    let mut asking = JoinSet::new();
    for _ in 0..50 {
        let sender = sender.clone();
        asking.spawn(async move { text(asked(&sender, "/slow").await.unwrap()).await });
    }
    while let Some(answer) = asking.join_next().await {
        assert_eq!(answer.unwrap(), "all of it");
    }
    assert!(began.elapsed() < Duration::from_secs(25), "one after the other takes 50 s");
    // A large answer comes whole, in parts.
    let large = text(asked(&sender, "/large").await.unwrap()).await;
    assert!(large.len() == LARGE && large.bytes().all(|byte| byte == b'x'));
}

#[tokio::test]
async fn a_client_of_http2_that_does_not_take_an_answer_is_cut() {
    let limits = Limits { answer: Duration::from_millis(500), ..Limits::new(1_024) };
    let address = start_slow(limits).await;
    let (sender, connection) = http2(address, 64 << 10).await;
    let untaken = asked(&sender, "/large").await.unwrap();
    let end = tokio::time::timeout(patient(Duration::from_secs(20)), connection).await;
    assert!(end.is_ok(), "it is open still");
    drop(untaken);
    // One that waits for longer than that for its answer, and takes it, is served.
    let (sender, _connection) = http2(address, 64 << 10).await;
    assert_eq!(text(asked(&sender, "/slow").await.unwrap()).await, "all of it");
}

#[tokio::test]
async fn a_connection_of_http2_gives_way_only_while_it_is_idle() {
    let address = start_slow(Limits { connections: 1, ..Limits::new(1_024) }).await;
    let (sender, connection) = http2(address, 64 << 10).await;
    let large = asked(&sender, "/large").await.unwrap();
    assert_eq!(text(asked(&sender, "/slow").await.unwrap()).await, "all of it");
    for _ in 0..3 {
        let refused = exchange(address, &request("GET", "/slow")).await;
        assert_eq!(refused, "", "there is no place for it");
    }
    assert_eq!(text(large).await.len(), LARGE, "it is cut");
    // A request that is given up leaves it idle, too.
    let given_up = tokio::time::timeout(Duration::from_millis(200), asked(&sender, "/slow")).await;
    assert!(given_up.is_err(), "it takes a second");
    let after = eventually("there is a place", async || {
        let after = exchange(address, &request("GET", "/slow")).await;
        if after.is_empty() { Err("nothing was answered".to_owned()) } else { Ok(after) }
    })
    .await;
    assert!(after.ends_with("all of it"), "{after:?}");
    let end = tokio::time::timeout(patient(Duration::from_secs(20)), connection).await;
    assert!(end.is_ok(), "it is open still");
}

/// A frame of HTTP/2, as it is sent.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

/// Kind and payload of each frame that is whole.
fn frames(mut bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut found = Vec::new();
    while let [a, b, c, kind, _, _, _, _, _, rest @ ..] = bytes {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some((payload, next)) = rest.split_at_checked(length) else { break };
        found.push((*kind, payload));
        bytes = next;
    }
    found
}

/// So many requests for `/slow`, each of which is reset at once, as one client sends them; what is answered until the other side
/// closes. `None`: it does not.
async fn flood(address: SocketAddr, requests: u32) -> Option<Vec<u8>> {
    const CANCEL: u32 = 8;
    // GET, http, and by no table: the path /slow and the authority x.
    let head = b"\x82\x86\x04\x05/slow\x01\x01x";
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, b""));
    for nth in 0..requests {
        // The end of the head, which is that of the request.
        bytes.extend(frame(HEADERS, 5, 2 * nth + 1, head));
        bytes.extend(frame(RST_STREAM, 0, 2 * nth + 1, &CANCEL.to_be_bytes()));
    }
    let mut stream = TcpStream::connect(address).await.unwrap();
    // All at once, so that none is looked at before the next one is there.
    stream.write_all(&bytes).await.unwrap();
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let read = tokio::time::timeout(patient(Duration::from_secs(5)), read).await;
    read.is_ok().then_some(answer)
}

#[tokio::test]
async fn requests_of_http2_that_are_reset_by_the_dozen_end_their_connection_and_no_other() {
    const ENHANCE_YOUR_CALM: u32 = 11;
    let address = start_slow(Limits::new(1_024)).await;
    let (sender, _connection) = http2(address, 64 << 10).await;
    let meanwhile = {
        let sender = sender.clone();
        tokio::spawn(async move { text(asked(&sender, "/slow").await.unwrap()).await })
    };
    let answer = flood(address, 5 * RESETS_MAX as u32).await.expect("it is open still");
    let frames = frames(&answer);
    let goaway = frames.iter().find(|(kind, _)| *kind == GOAWAY);
    let code = goaway.and_then(|(_, payload)| payload.get(4..8));
    assert_eq!(code, Some(&ENHANCE_YOUR_CALM.to_be_bytes()[..]), "{frames:?}");
    // Another one goes on, and a further one is served.
    assert_eq!(meanwhile.await.unwrap(), "all of it");
    assert_eq!(text(asked(&sender, "/slow").await.unwrap()).await, "all of it");
    assert!(exchange(address, &request("GET", "/slow")).await.ends_with("all of it"));
}

#[tokio::test]
async fn how_a_client_begins_may_come_in_parts_and_not_too_slowly() {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let address = start_slow(Limits::new(1_024)).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    for part in preface.chunks(5) {
        stream.write_all(part).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Empty settings, and those of the server.
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!((head[3], head[5..].to_vec()), (4, vec![0; 4]), "settings of the connection");
    let limits = Limits { head: Duration::from_millis(100), ..Limits::new(1_024) };
    let address = start_slow(limits).await;
    for begin in ["", "P", "PRI * HTTP/2.0\r\n", "PRI / HTTP/1.1\r\n"] {
        let slow = exchange(address, begin);
        let answer = tokio::time::timeout(patient(Duration::from_secs(5)), slow).await;
        assert!(answer.is_ok_and(|answer| !answer.contains(" 200 ")), "{begin:?}");
    }
}

#[tokio::test]
async fn a_connection_that_is_old_answers_what_it_was_asked_and_takes_no_more() {
    let limits = Limits { connection: Duration::from_millis(300), ..Limits::new(1_024) };
    let address = start_slow(limits).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    // It is open for the client: the server says that it ends.
    stream.write_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    let read =
        tokio::time::timeout(patient(Duration::from_secs(20)), stream.read_to_string(&mut answer));
    read.await.expect("it ends").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("all of it"), "{answer:?}");
    assert!(answer.contains("connection: close"), "{answer:?}");
    // One that asks nothing is closed.
    let mut idle = TcpStream::connect(address).await.unwrap();
    let closed =
        tokio::time::timeout(patient(Duration::from_secs(20)), idle.read(&mut [0; 1])).await;
    assert!(closed.is_ok(), "it is open still");
    // What hangs is cut in the end.
    let short = Duration::from_millis(300);
    let limits = Limits { connection: short, last: short, ..Limits::new(1_024) };
    let address = start_slow(limits).await;
    assert_eq!(exchange(address, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await, "");
}

#[tokio::test]
async fn a_connection_whose_answer_is_being_written_gives_way_to_nobody() {
    let address = start_slow(Limits { connections: 1, ..Limits::new(1_024) }).await;
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    // The answer is made, and its beginning is on the way.
    let mut begin = [0; 12];
    first.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
    for _ in 0..3 {
        let refused = exchange(address, &request("GET", "/slow")).await;
        assert_eq!(refused, "", "there is no place for it");
    }
    let mut rest = vec![0; LARGE];
    let all =
        tokio::time::timeout(patient(Duration::from_secs(20)), first.read_exact(&mut rest)).await;
    assert!(all.is_ok_and(|all| all.is_ok()), "it is cut");
    // Once it is written, it gives way.
    let after = eventually("there is a place", async || {
        let after = exchange(address, &request("GET", "/slow")).await;
        if after.is_empty() { Err("nothing was answered".to_owned()) } else { Ok(after) }
    })
    .await;
    assert!(after.ends_with("all of it"), "{after:?}");
}

#[tokio::test]
async fn a_client_that_does_not_take_its_answer_is_left() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let gate = Arc::new(Gate::new(None));
    let inside = Arc::clone(&gate);
    // More than the system takes by itself, with a place until it is written.
    let large = move |request: Request| {
        let place = inside.enter(Who::Caller, Kind::Large).expect("a place");
        request.extensions().get::<Held>().expect("of a connection").keep(place);
        std::future::ready(vec![b'x'; 16 << 20])
    };
    let app = Router::new().route("/", axum::routing::get(large));
    let limits = Limits { answer: Duration::from_secs(3), ..Limits::new(1_024) };
    tokio::spawn(serve_within(limits, (listener, None), app, std::future::pending()));
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    slow.readable().await.unwrap();
    assert_eq!(gate.taken(), 1, "it is not written yet");
    eventually("it is left", async || match gate.taken() {
        0 => Ok(()),
        taken => Err(format!("{taken} are taken")),
    })
    .await;
    // A client that reads the response gets all of it, and gives the place back.
    let all = exchange(address, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(all.len() > 16 << 20, "{}", all.len());
    assert_eq!(gate.taken(), 0);
}

#[tokio::test]
async fn a_request_that_waits_when_everything_stops_is_told_so() {
    for (method, changes) in [("GET", false), ("DELETE", true)] {
        let here = Arc::new(Notify::new());
        let told = Arc::clone(&here);
        let waits = async move || {
            told.notify_one();
            std::future::pending::<&str>().await
        };
        let app = Router::new().route("/", axum::routing::get(waits.clone()).delete(waits));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async move {
            let _ = stopped.await;
        };
        let serving = tokio::spawn(serve_within(Limits::new(16), (listener, None), app, stopped));
        let request = format!("{method} / HTTP/1.1\r\nHost: x\r\n\r\n");
        let asked = tokio::spawn(async move { exchange(address, &request).await });
        here.notified().await;
        stop.send(()).unwrap();
        let told = asked.await.unwrap();
        assert!(told.starts_with("HTTP/1.1 503 "), "{told}");
        assert!(
            told.contains("\"lane_moving\"") && told.contains("this instance is stopping"),
            "{told}"
        );
        assert_eq!(told.contains("may have been done"), changes, "{told}");
        serving.await.unwrap();
    }
}

#[tokio::test]
async fn a_stop_closes_idle_connections_and_the_listener() {
    let (address, stop, serving) = start(Limits::new(1_024)).await;
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = [0; 15];
    idle.read_exact(&mut answer).await.unwrap();
    stop.send(()).unwrap();
    tokio::time::timeout(patient(Duration::from_secs(5)), serving)
        .await
        .expect("it stops")
        .unwrap();
    let mut rest = Vec::new();
    let closed =
        tokio::time::timeout(patient(Duration::from_secs(5)), idle.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "the idle connection is open still");
    assert!(TcpStream::connect(address).await.is_err(), "it listens still");
}
