//! Calls over gRPC: to services of tonic, and to servers that misbehave.

use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::net::TcpListener;
use tower_service::Service as _;

use super::*;

/// A request as the other side had it.
#[derive(Clone, Debug)]
struct Call {
    path: String,
    headers: HeaderMap,
    /// The message, without what stands before it.
    message: Bytes,
}

impl Call {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// A server that answers as the method says that it is asked for.
struct Server {
    address: SocketAddr,
    calls: Arc<Mutex<Vec<Call>>>,
    connections: Arc<Mutex<usize>>,
    /// Until it is set, calls of `Held` have no answer.
    released: Arc<AtomicBool>,
    _runtime: tokio::runtime::Runtime,
}

/// An answer, frame by frame; then it ends or hangs.
struct Script {
    frames: std::collections::VecDeque<Frame<Bytes>>,
    hangs: bool,
    floods: bool,
}

impl Body for Script {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None if self.floods => Poll::Ready(Some(Ok(Frame::data(vec![0; 16 << 10].into())))),
            None if self.hangs => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

fn framed(flag: u8, length: usize, message: &[u8]) -> Frame<Bytes> {
    let mut bytes = vec![flag];
    bytes.extend((length as u32).to_be_bytes());
    bytes.extend(message);
    Frame::data(bytes.into())
}

fn message(message: &[u8]) -> Frame<Bytes> {
    framed(0, message.len(), message)
}

fn trailers(pairs: &[(&str, &str)]) -> HeaderMap {
    let pairs = pairs.iter().map(|(name, value)| {
        (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap())
    });
    pairs.collect()
}

/// A status with a detail that says to call again after 2 s.
fn retry_info() -> String {
    let value = tonic_types::pb::RetryInfo {
        retry_delay: Some(prost_types::Duration { seconds: 2, nanos: 0 }),
    };
    let detail = prost_types::Any {
        type_url: "type.googleapis.com/google.rpc.RetryInfo".to_owned(),
        value: value.encode_to_vec(),
    };
    let status =
        tonic_types::pb::Status { code: 14, message: String::new(), details: vec![detail] };
    STANDARD.encode(status.encode_to_vec())
}

fn answer(method: &str) -> Response<Script> {
    let mut script = Script { frames: Default::default(), hangs: false, floods: false };
    let mut push = |frame| script.frames.push_back(frame);
    let end = |pairs: &[(&str, &str)]| Frame::trailers(trailers(pairs));
    let mut headers = HeaderMap::new();
    let mut status = StatusCode::OK;
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc+proto"));
    match method {
        "Ok" => {
            push(message(b"done"));
            push(end(&[("grpc-status", "0")]));
        }
        "Pieces" => {
            for byte in [&[0][..], &[0, 0], &[0, 2, b'h'], b"i"] {
                push(Frame::data(Bytes::copy_from_slice(byte)));
            }
            push(end(&[("grpc-status", "0")]));
        }
        "Empty" => {
            push(message(b""));
            push(end(&[("grpc-status", "0")]));
        }
        "Long" => {
            push(message(&[b'y'; 64 << 10]));
            push(end(&[("grpc-status", "0")]));
        }
        "Retry" => {
            let details = retry_info();
            push(end(&[("grpc-status", "14"), ("grpc-status-details-bin", &details)]));
        }
        "Broken" => push(end(&[("grpc-status", "14"), ("grpc-status-details-bin", "%%%")])),
        "OnlyTrailers" => {
            headers.extend(trailers(&[("grpc-status", "5"), ("grpc-message", "no%20x")]))
        }
        "OnlyOk" => headers.extend(trailers(&[("grpc-status", "0")])),
        "NoMessage" => push(end(&[("grpc-status", "0")])),
        "NoStatus" => push(message(b"done")),
        "NoStatusEither" => {
            push(message(b"done"));
            push(end(&[("x-other", "0")]));
        }
        "Compressed" => push(framed(1, 4, b"done")),
        "Two" => {
            push(message(b"a"));
            push(message(b"b"));
            push(end(&[("grpc-status", "0")]));
        }
        "Half" => {
            push(framed(0, 10, b"half"));
            push(end(&[("grpc-status", "0")]));
        }
        "Huge" => {
            push(framed(0, 1 << 30, b""));
            script.floods = true;
        }
        "HangsBody" => {
            push(message(b"done"));
            script.hangs = true;
        }
        "Headers" => {
            headers.insert("x-large", HeaderValue::from_str(&"x".repeat(17 << 10)).unwrap());
        }
        "Trailers" => {
            push(message(b"done"));
            push(end(&[("grpc-status", "0"), ("x-large", &"x".repeat(17 << 10))]));
        }
        "Html" => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html"));
        }
        method => match (method.strip_prefix("Http"), method.strip_prefix('S')) {
            (Some(of), _) => status = of.parse().unwrap(),
            (None, Some(code)) => push(end(&[("grpc-status", code), ("grpc-message", "why")])),
            (None, None) => panic!("{method}"),
        },
    }
    let mut response = Response::new(script);
    *response.headers_mut() = headers;
    *response.status_mut() = status;
    response
}

/// The message; `None`: the caller gave up.
async fn read(mut body: Incoming) -> Option<Bytes> {
    let mut read = BytesMut::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        if let Ok(bytes) = frame.ok()?.into_data() {
            read.extend_from_slice(&bytes);
        }
    }
    let length = u32::from_be_bytes(read[1..5].try_into().unwrap()) as usize;
    assert_eq!((read[0], read.len()), (0, 5 + length), "one message and nothing else");
    Some(read.freeze().slice(5..))
}

impl Server {
    fn start() -> Self {
        Self::taking(None)
    }

    /// One that takes so many calls of a connection at once.
    fn taking(streams: Option<u32>) -> Self {
        let (calls, connections) =
            (Arc::<Mutex<Vec<Call>>>::default(), Arc::<Mutex<usize>>::default());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (log, many) = (Arc::clone(&calls), Arc::clone(&connections));
        let released = Arc::<AtomicBool>::default();
        let goes_on = Arc::clone(&released);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                *many.lock() += 1;
                let (log, goes_on) = (Arc::clone(&log), Arc::clone(&goes_on));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (log, goes_on) = (Arc::clone(&log), Arc::clone(&goes_on));
                    async move {
                        let (head, body) = request.into_parts();
                        let path = head.uri.path().to_owned();
                        let method = path.rsplit('/').next().unwrap().to_owned();
                        let Some(message) = read(body).await else {
                            return Ok(answer("S1"));
                        };
                        log.lock().push(Call { path, headers: head.headers, message });
                        if method == "Hangs" {
                            std::future::pending::<()>().await;
                        }
                        while method == "Held" && !goes_on.load(Ordering::Relaxed) {
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                        let method = if method == "Held" { "Ok" } else { &method };
                        Ok::<_, Infallible>(answer(method))
                    }
                });
                let mut connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                connection.max_concurrent_streams(streams);
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, calls, connections, released, _runtime: runtime }
    }

    /// Services of tonic: health, and reflection in one of its versions or none.
    fn of_tonic(reflection: Option<&str>) -> Self {
        let (calls, connections) =
            (Arc::<Mutex<Vec<Call>>>::default(), Arc::<Mutex<usize>>::default());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::clone(&calls);
        let version = reflection.map(str::to_owned);
        runtime.spawn(async move {
            let (_, health) = tonic_health::server::health_reporter();
            let files = || {
                tonic_reflection::server::Builder::configure()
                    .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            };
            let (v1, alpha) = (files().build_v1().unwrap(), files().build_v1alpha().unwrap());
            while let Ok((stream, _)) = listener.accept().await {
                let (log, version) = (Arc::clone(&log), version.clone());
                let (health, v1, alpha) = (health.clone(), v1.clone(), alpha.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let (mut health, mut v1, mut alpha) =
                        (health.clone(), v1.clone(), alpha.clone());
                    let (path, headers) =
                        (request.uri().path().to_owned(), request.headers().clone());
                    log.lock().push(Call { path: path.clone(), headers, message: Bytes::new() });
                    let version = version.clone();
                    async move {
                        let is_wanted = |of: &str| {
                            version.as_deref() == Some(of)
                                && path.starts_with(&format!("/grpc.reflection.{of}.Server"))
                        };
                        if path.starts_with("/grpc.health.v1.Health/") {
                            health.call(request).await
                        } else if is_wanted("v1") {
                            v1.call(request).await
                        } else if is_wanted("v1alpha") {
                            alpha.call(request).await
                        } else {
                            Ok(tonic::Status::unimplemented("").into_http())
                        }
                    }
                });
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, calls, connections, released: Arc::default(), _runtime: runtime }
    }

    fn paths(&self) -> Vec<String> {
        self.calls.lock().iter().map(|call| call.path.clone()).collect()
    }
}

fn grpc_task(address: impl std::fmt::Display, method: &str, more: Value, body: &[u8]) -> Arc<Task> {
    let mut spec =
        json!({"type": "grpc", "host": address.to_string(), "service": "t.T", "method": method});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    if spec["named_service"].is_string() {
        spec.as_object_mut().unwrap().remove("host");
    }
    Arc::new(task(spec, body))
}

#[test]
fn each_status_and_each_failure_of_grpc_means_one_thing() {
    let (server, worker) = (Server::start(), Worker::local());
    use Outcome::{Failed, Finished, NotYet};
    let polls = json!({"poll": {"interval": "1s", "rounds": 3}});
    let (plain, short) = (json!({}), json!({"timeout": "300ms"}));
    #[rustfmt::skip]
    let cases = [
        ("Ok",             &plain, Some(0),  Finished, "",                 false),
        ("Pieces",         &plain, Some(0),  Finished, "",                 false),
        ("Empty",          &plain, Some(0),  Finished, "",                 false),
        ("Long",           &plain, Some(0),  Finished, "",                 false),
        ("S5",             &plain, Some(5),  Failed,   "grpc_status: NOT_FOUND (5): why", false),
        ("S9",             &plain, Some(9),  Failed,   "grpc_status: FAILED_PRECONDITION (9): why", false),
        ("S9",             &polls, Some(9),  NotYet,   "",                 false),
        ("S14",            &plain, Some(14), Failed,   "grpc_status: UNAVAILABLE (14): why", true),
        ("S14",            &polls, Some(14), Failed,   "grpc_status: UNAVAILABLE", true),
        ("Retry",          &plain, Some(14), Failed,   "grpc_status: UNAVAILABLE (14): no message", true),
        ("Retry",          &polls, Some(14), NotYet,   "",                 false),
        ("Broken",         &polls, Some(14), Failed,   "grpc_status: UNAVAILABLE", true),
        ("S77",            &plain, Some(2),  Failed,   "grpc_status: UNKNOWN", false),
        ("OnlyTrailers",   &plain, Some(5),  Failed,   "grpc_status: NOT_FOUND (5): no x", false),
        ("OnlyOk",         &plain, None,     Failed,   "call_broken: the status is OK, and there is no message", false),
        ("NoMessage",      &plain, None,     Failed,   "call_broken: the status is OK, and there is no message", false),
        ("NoStatus",       &plain, None,     Failed,   "call_broken: the answer ends without a grpc-status", false),
        ("NoStatusEither", &plain, None,     Failed,   "call_broken: the answer ends without a grpc-status", false),
        ("Compressed",     &plain, None,     Failed,   "call_broken: the message of the answer is compressed", false),
        ("Two",            &plain, None,     Failed,   "call_broken: the answer has more than one message", false),
        ("Half",           &plain, None,     Failed,   "call_broken: the answer ends within a message", false),
        ("Huge",           &plain, None,     Failed,   "answer_too_large: its message has 1073741824 bytes", false),
        ("Headers",        &plain, None,     Failed,   "",                 false),
        // What is too much of them is not kept.
        ("Trailers",       &plain, Some(0),  Finished, "",                 false),
        ("Html",           &plain, None,     Failed,   "call_broken: the answer is no gRPC", false),
        ("Http503",        &plain, Some(14), Failed,   "grpc_status: UNAVAILABLE (14): HTTP status 503", true),
        ("Http404",        &plain, Some(12), Failed,   "grpc_status: UNIMPLEMENTED (12): HTTP status 404", false),
        ("Hangs",          &short, None,     Failed,   "timeout: no whole answer within 300ms", true),
        ("HangsBody",      &short, None,     Failed,   "timeout: no whole answer within 300ms", true),
    ];
    for (method, more, status, outcome, error, is_away) in cases {
        let end = worker.call(&grpc_task(server.address, method, more.clone(), b"body"));
        let said = end.result.error.clone().unwrap_or_default();
        assert_eq!((end.result.status, end.result.outcome), (status, outcome), "{method}: {end:?}");
        assert!(said.starts_with(error), "{method}: {said}");
        assert_eq!(said.is_empty(), outcome != Failed, "{method}: {said}");
        assert_eq!(end.is_away, is_away, "{method}: {end:?}");
        assert_eq!((end.result.started, end.result.ended), (Some(NOW), Some(NOW)));
    }
    let asked: Vec<_> = cases.iter().map(|(method, ..)| format!("/t.T/{method}")).collect();
    assert_eq!(server.paths(), asked, "each once");
}

#[test]
fn calls_share_a_connection_until_one_of_them_breaks() {
    let (server, worker) = (Server::start(), Worker::local());
    let call = |method: &str| worker.call(&grpc_task(server.address, method, json!({}), b""));
    for method in ["Ok", "S5", "S14", "Ok"] {
        call(method);
    }
    assert_eq!(*server.connections.lock(), 1);
    call("NoStatus");
    call("Ok");
    assert_eq!(*server.connections.lock(), 2);
    // Nobody waits for what others have open.
    let hangs = grpc_task(server.address, "Hangs", json!({"timeout": "1m"}), b"");
    let before = server.paths().len();
    let open: Vec<_> = (0..50).map(|_| worker.begin(&hangs)).collect();
    // A server takes many resets of calls that it has not even seen for an attack.
    let until = std::time::Instant::now() + patient(Duration::from_secs(20));
    while server.paths().len() < before + open.len() {
        assert!(std::time::Instant::now() < until, "{} calls came", server.paths().len() - before);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(call("S5").result.status, Some(5));
    for call in open {
        worker.order(Order::Cut(call));
    }
    assert_eq!(call("Ok").result.outcome, Outcome::Finished);
    assert!(worker.ended.try_recv().is_err(), "of those that were cut nothing is told");
    assert_eq!(*server.connections.lock(), 2);
    // Another project's calls are on another connection.
    let mut other = json!({"type": "grpc", "host": server.address.to_string(), "service": "t.T", "method": "Ok"});
    other["project"] = json!("other");
    worker.call(&Arc::new(task(other, b"")));
    assert_eq!(*server.connections.lock(), 3);
}

#[test]
fn what_is_kept_of_a_message_is_bounded_and_who_wants_to_be_left_alone_is_heard() {
    let (server, worker) = (Server::start(), Worker::local());
    let call = |method| worker.call(&grpc_task(server.address, method, json!({}), b"")).result;
    assert_eq!(call("Ok").response.as_deref(), Some(&b"done"[..]));
    assert_eq!(call("Pieces").response.as_deref(), Some(&b"hi"[..]));
    assert_eq!(call("Empty").response, None);
    assert_eq!(call("Long").response, Some(vec![b'y'; 1_024]));
    assert_eq!(call("Retry").retry_after, Some(Millis(2_000)));
    assert_eq!(call("S14").retry_after, None);
}

#[test]
fn a_grpc_service_is_called_as_it_is_known_at_the_call() {
    let (server, worker) = (Server::start(), Worker::local());
    let named = |more: Value| {
        let mut all = json!({"named_service": "billing", "timeout": "5s", "headers": [["X-A", "1"], ["trace-bin", "AAE="]]});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        grpc_task("", "Ok", all, b"to sign")
    };
    assert_eq!(seen(&worker.call(&named(json!({})))).2, "service_missing");
    let address = format!("http://{}", server.address);
    worker.put_service(&json!({"address": address}));
    let end = worker.call(&named(json!({})));
    assert_eq!(seen(&end), (None, Outcome::Failed, "service_protocol".to_owned(), false));
    worker.put_service(
        &json!({"protocol": "grpc", "address": address, "secret": "signs", "bearer": "token"}),
    );
    let end = worker.call(&Arc::new(task(json!({"service": "billing"}), b"")));
    assert_eq!(seen(&end).2, "service_protocol", "an http task does not call a grpc service");
    assert_eq!(*server.connections.lock(), 0);
    let end = worker.call(&named(json!({})));
    assert_eq!(end.result.outcome, Outcome::Finished, "{end:?}");
    let calls = server.calls.lock().clone();
    let [call] = calls.as_slice() else { panic!("one call: {calls:?}") };
    assert_eq!((call.path.as_str(), &call.message[..]), ("/t.T/Ok", &b"to sign"[..]));
    let agent = concat!("waterclock/", env!("CARGO_PKG_VERSION"));
    #[rustfmt::skip]
    let wanted = [
        ("content-type", "application/grpc"), ("te", "trailers"),           ("user-agent", agent),
        ("webhook-id", "9f2c"),               ("idempotency-key", "9f2c"),  ("waterclock-turn", "3"),
        ("waterclock-attempt", "2"),          ("waterclock-due", "5000"),   ("authorization", "Bearer t0ken"),
        ("webhook-timestamp", "784111687"),   ("x-a", "1"),                 ("trace-bin", "AAE="),
    ];
    for (name, value) in wanted {
        assert_eq!(call.header(name), Some(value), "{name}");
    }
    let left = call.header("grpc-timeout").unwrap().strip_suffix('m').unwrap();
    let left: u64 = left.parse().unwrap();
    assert!((1..=5_000).contains(&left), "{left} ms");
    let want = signed("9f2c", 784_111_687, b"to sign");
    assert_eq!(call.header("webhook-signature"), Some(&*want));
}

#[test]
fn a_grpc_call_says_for_which_nominal_time_it_is() {
    let (server, worker) = (Server::start(), Worker::local());
    let spec = json!({
        "type": "grpc", "host": server.address.to_string(), "service": "t.T", "method": "Ok",
    });
    for (id, _) in of_schedules() {
        worker.call(&Arc::new(task_of(&id, spec.clone(), b"x")));
    }
    let calls = server.calls.lock().clone();
    let said: Vec<_> = calls.iter().map(|call| call.header("waterclock-nominal")).collect();
    assert_eq!(said, of_schedules().map(|(_, nominal)| nominal));
}

#[test]
fn a_grpc_call_hands_a_task_with_feedback_over_and_says_no_more() {
    let (server, worker) = (Server::start(), Worker::local());
    let call = |method: &str, cursor: Option<&str>| {
        let more = json!({"feedback": {"deadline": "1h"}});
        let task = Arc::unwrap_or_clone(grpc_task(server.address, method, more, b"x"));
        let traced = TracedTurn {
            ticket: "AAABmF-x_".to_owned(),
            cursor: cursor.map(Arc::from),
            shard: None,
        };
        worker.call(&Arc::new(Task { traced: Some(traced), ..task })).result.outcome
    };
    assert_eq!(call("Ok", None), Outcome::Accepted);
    assert_eq!(call("Ok", Some("Zeile 7 \u{fc}")), Outcome::Accepted);
    // What is not OK hands nothing over.
    assert_eq!(call("S14", None), Outcome::Failed);
    let calls = server.calls.lock().clone();
    let headers = |name: &str| calls.iter().map(|call| call.header(name)).collect::<Vec<_>>();
    assert_eq!(headers("waterclock-ticket"), [Some("AAABmF-x_"); 3]);
    let cursor = STANDARD.encode("Zeile 7 \u{fc}");
    assert_eq!(headers("waterclock-cursor-bin"), [None, Some(cursor.as_str()), None]);
    assert_eq!(headers("waterclock-cursor"), [None; 3]);
}

#[test]
fn a_body_in_json_is_encoded_by_what_the_target_says_of_itself() {
    for version in ["v1", "v1alpha"] {
        let (server, worker) = (Server::of_tonic(Some(version)), Worker::local());
        let call = |method: &str, service: &str, body: &str| {
            let more = json!({"service": service, "format": "json"});
            worker.call(&grpc_task(server.address, method, more, body.as_bytes()))
        };
        let health = "grpc.health.v1.Health";
        for body in ["", "{}", r#"{"service": ""}"#] {
            let end = call("Check", health, body);
            assert_eq!(end.result.outcome, Outcome::Finished, "{version} {body}: {end:?}");
            assert_eq!(end.result.response.as_deref(), Some(&br#"{"status":"SERVING"}"#[..]));
        }
        // The name is in the message: nobody knows such a service.
        let end = call("Check", health, r#"{"service": "nobody"}"#);
        assert_eq!((end.result.status, end.result.outcome), (Some(5), Outcome::Failed), "{end:?}");
        let asked = |server: &Server| {
            let is_reflection = |path: &&String| path.contains("ServerReflectionInfo");
            server.paths().iter().filter(is_reflection).count()
        };
        let want = if version == "v1" { 1 } else { 2 };
        assert_eq!(asked(&server), want, "what was said is kept: {:?}", server.paths());
        #[rustfmt::skip]
        let cases = [
            ("Check", health,     r#"{"servise": ""}"#, "body_mismatch"),
            ("Check", health,     r#"{"service": 1}"#,  "body_mismatch"),
            ("Check", health,     r#"{"service": "" "#, "body_mismatch"),
            ("Check", health,     "{} {}",              "body_mismatch"),
            ("check", health,     "{}",                 "method_unknown"),
            ("Watch", health,     "{}",                 "method_streams"),
            ("Check", "shop.None", "{}",                "method_unknown"),
        ];
        for (method, service, body, code) in cases {
            let end = call(method, service, body);
            let want = (None, Outcome::Failed, code.to_owned(), false);
            assert_eq!(seen(&end), want, "{version} {method} {service} {body}: {end:?}");
        }
    }
}

#[test]
fn the_signature_of_a_body_in_json_is_over_what_is_sent() {
    let (server, worker) = (Server::of_tonic(Some("v1")), Worker::local());
    let address = format!("http://{}", server.address);
    worker.put_service(
        &json!({"protocol": "grpc", "address": address, "secret": "signs", "bearer": "token"}),
    );
    let more =
        json!({"named_service": "billing", "service": "grpc.health.v1.Health", "format": "json"});
    worker.call(&grpc_task("", "Check", more, br#"{"service": "a"}"#));
    let calls = server.calls.lock().clone();
    let [question, call] = calls.as_slice() else { panic!("two calls: {calls:?}") };
    let want = signed("9f2c", 784_111_687, b"\x0a\x01a");
    assert_eq!(call.header("webhook-signature"), Some(&*want));
    // Who may ask is for the target to say; which task it is about is not its business.
    assert_eq!(question.header("authorization"), Some("Bearer t0ken"));
    assert_eq!((question.header("webhook-id"), question.header("waterclock-turn")), (None, None));
}

#[test]
fn a_target_that_cannot_say_what_it_takes_is_not_called() {
    let (server, worker) = (Server::of_tonic(None), Worker::local());
    let more = json!({"service": "grpc.health.v1.Health", "format": "json"});
    let end = worker.call(&grpc_task(server.address, "Check", more, b"{}"));
    assert_eq!(seen(&end).2, "reflection_missing", "{end:?}");
    let bytes = json!({"service": "grpc.health.v1.Health"});
    let end = worker.call(&grpc_task(server.address, "Check", bytes, b""));
    assert_eq!(end.result.response.as_deref(), Some(&[8, 1][..]), "protobuf needs no reflection");
    // Descriptors that never come take no longer than the call may.
    let more = json!({"format": "json", "timeout": "300ms"});
    let never = raw(|_| std::thread::sleep(Duration::from_secs(5)));
    let end = worker.call(&grpc_task(never, "Ok", more.clone(), b"{}"));
    assert_eq!(seen(&end), (None, Outcome::Failed, "timeout".to_owned(), true));
    // Whatever else comes in their place is no call.
    let other = Server::start();
    let end = worker.call(&grpc_task(other.address, "Ok", more, b"{}"));
    assert_eq!(seen(&end).2, "reflection_failed", "{end:?}");
    assert!(other.paths().iter().all(|path| path.contains("reflection")), "{:?}", other.paths());
}

/// A server that does what it likes with each connection.
fn raw(serve: impl Fn(&mut std::net::TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, serve) = (stream.unwrap(), Arc::clone(&serve));
            std::thread::spawn(move || serve(&mut stream));
        }
    });
    address
}

/// The settings of a server of HTTP/2, and that it has read those of the client.
pub(super) const SETTINGS: [u8; 18] = [0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 0, 0, 0, 0];

fn after_settings(then: &'static [u8]) -> SocketAddr {
    raw(move |stream| {
        let _ = stream.write_all(&SETTINGS);
        let mut bytes = [0; 4_096];
        // The preface, the settings and the request come in one or more pieces.
        let _ = stream.read(&mut bytes);
        std::thread::sleep(Duration::from_millis(100));
        let _ = stream.write_all(then);
        while stream.read(&mut bytes).is_ok_and(|read| read > 0) {}
    })
}

#[test]
fn a_server_that_does_not_keep_to_http2_ends_one_attempt_and_holds_nobody_up() {
    let worker = Worker::local();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    #[rustfmt::skip]
    let cases = [
        ("nobody listens",  closed,                                                               "no_connection", true),
        ("HTTP/1.1",        raw(|to| { let _ = to.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"); std::thread::sleep(Duration::from_secs(1)); }), "call_broken", false),
        ("garbage",         raw(|to| { let _ = to.write_all(&[0xff; 4_096]); }),                  "call_broken",   false),
        ("closes at once",  raw(|_| ()),                                                          "call_broken",   false),
        ("says nothing",    raw(|to| { let _ = to.read_to_end(&mut Vec::new()); }),               "timeout",       true),
        ("only settings",   after_settings(&[]),                                                  "timeout",       true),
        // GOAWAY: the last stream is 0, and all is in order.
        ("goes away",       after_settings(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), "call_broken",   false),
        // GOAWAY: enhance your calm.
        ("is angry",        after_settings(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11]), "call_broken",  false),
        // RST_STREAM of stream 1: internal error.
        ("resets",          after_settings(&[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 2]),             "call_broken",   false),
        // DATA of a stream that has no headers.
        ("data first",      after_settings(&[0, 0, 1, 0, 0, 0, 0, 0, 1, 0]),                      "call_broken",   false),
    ];
    for (what, address, code, is_away) in cases {
        let since = std::time::Instant::now();
        let end = worker.call(&grpc_task(address, "Ok", json!({"timeout": "700ms"}), b""));
        let want = (None, Outcome::Failed, code.to_owned(), is_away);
        assert_eq!(seen(&end), want, "{what}: {end:?}");
        assert!(since.elapsed() < patient(Duration::from_secs(5)), "{what}: {:?}", since.elapsed());
    }
    // Those that hang hold up nobody else.
    let hangs = raw(|to| drop(to.read_to_end(&mut Vec::new())));
    for _ in 0..500 {
        worker.begin(&grpc_task(hangs, "Ok", json!({"timeout": "5m"}), b""));
    }
    let server = Server::start();
    let end = worker.call(&grpc_task(server.address, "Ok", json!({}), b""));
    assert_eq!(end.result.outcome, Outcome::Finished);
}

#[test]
fn no_address_is_connected_to_over_grpc_that_is_not_allowed() {
    let server = Server::start();
    let port = server.address.port();
    let open = Worker::local();
    let shut = Worker::start(settings(&[]));
    let call = |worker: &Worker, host: &str, more: Value| {
        let more = {
            let mut all = json!({"timeout": "2s"});
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            all
        };
        seen(&worker.call(&grpc_task(format!("{host}:{port}"), "Ok", more, b""))).2
    };
    // The host would be asked for its descriptors first.
    let as_json = || json!({"format": "json"});
    for host in
        ["127.0.0.1", "[::ffff:127.0.0.1]", "2130706433", "loopback.example", "mixed.example"]
    {
        assert_eq!(call(&shut, host, json!({})), "address_denied", "{host}");
        assert_eq!(call(&shut, host, as_json()), "address_denied", "{host}");
    }
    // One of its addresses may not be called.
    assert_eq!(call(&open, "mixed.example", json!({})), "address_denied");
    assert_eq!(call(&open, "mixed.example", as_json()), "address_denied");
    assert_eq!(call(&open, "nowhere.example", json!({})), "name_unresolved");
    assert_eq!(call(&open, "unknown.example", json!({})), "name_unresolved");
    let hangs = call(&open, "hangs.example", json!({}));
    assert_eq!(hangs, "timeout");
    assert_eq!(*server.connections.lock(), 0);
    assert_eq!(call(&open, "loopback.example", json!({})), "");
    assert_eq!(*server.connections.lock(), 1);
    // The hosts of the project hold, for services as well.
    let change = registry::read_request("project/shop", br#"{"hosts": ["a.example"]}"#);
    let mut registry = Registry::default();
    registry.apply(change.unwrap().with_revision(1)).unwrap();
    open.registry.send_replace(Arc::new(registry));
    assert_eq!(call(&open, "loopback.example", json!({})), "address_denied");
    assert_eq!(call(&open, "loopback.example", as_json()), "address_denied");
    assert_eq!(*server.connections.lock(), 1);
    // Nor over the connection that was open.
    assert_eq!(server.paths().len(), 1, "{:?}", server.paths());
}

/// A process that stood still may not make the calls that it had begun.
#[test]
fn a_call_over_grpc_that_is_not_on_its_way_in_time_is_not_made() {
    let (server, worker) = (Server::start(), Worker::local());
    let call = worker.begin_late(&grpc_task(server.address, "Ok", json!({}), b""));
    let ended = worker.end();
    assert_eq!((ended.call, ended.end.result.outcome), (call, Outcome::Deferred));
    assert_eq!(*server.connections.lock(), 0);
}

/// It waits for its place on the connection, and the process may stand still meanwhile.
#[test]
fn a_call_over_grpc_that_waits_too_long_for_its_place_is_not_made_and_is_no_attempt() {
    let (server, worker) = (Server::taking(Some(1)), Worker::local());
    // So the other side has said how many it takes.
    worker.call(&grpc_task(server.address, "Ok", json!({}), b""));
    let first = worker.begin(&grpc_task(server.address, "Held", json!({}), b""));
    let until = std::time::Instant::now() + patient(Duration::from_secs(20));
    while server.paths().len() < 2 {
        assert!(std::time::Instant::now() < until, "the first call does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
    let soon = Instant::now() + Duration::from_millis(200);
    let late = worker.begin_by(&grpc_task(server.address, "S5", json!({}), b""), soon);
    let hangs = json!({"timeout": "300ms"});
    let short = worker.begin(&grpc_task(server.address, "S5", hangs, b""));
    let mut ended = Vec::new();
    while ended.iter().all(|end: &Ended| end.call != short) {
        ended.push(worker.end());
    }
    std::thread::sleep(soon.saturating_duration_since(Instant::now()) + Duration::from_millis(5));
    server.released.store(true, Ordering::Relaxed);
    while ended.len() < 3 {
        ended.push(worker.end());
    }
    ended.sort_by_key(|end| end.call.0);
    let outcomes: Vec<_> = ended.iter().map(|end| (end.call, end.end.result.outcome)).collect();
    let want = [(first, Outcome::Finished), (late, Outcome::Deferred), (short, Outcome::Deferred)];
    assert_eq!(outcomes, want);
    assert_eq!(server.calls.lock().iter().filter(|call| call.path.ends_with("/S5")).count(), 0);
    assert_eq!(
        worker.call(&grpc_task(server.address, "Ok", json!({}), b"")).result.outcome,
        Outcome::Finished
    );
}

#[test]
fn calls_over_grpc_go_through_the_proxy_if_there_is_one() {
    let server = Server::start();
    let to = server.address;
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&asked);
    let proxy = raw(move |client| {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        log.lock().push(head.lines().next().unwrap().to_owned());
        if head.contains("refused.example") {
            let _ = client.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n");
            return;
        }
        client.write_all(b"HTTP/1.1 200 OK\r\nvia: me\r\n\r\n").unwrap();
        let server = std::net::TcpStream::connect(to).unwrap();
        let (mut from, mut there) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || io::copy(&mut from, &mut there));
        let _ = io::copy(&mut &server, client);
    });
    let hosts = ["far.example", "refused.example"].map(str::to_owned);
    let worker = Worker::start(Settings {
        guard: Guard::new(&[], Some(&hosts)).unwrap(),
        proxy: Some(format!("http://{proxy}").parse().unwrap()),
        ..settings(&[])
    });
    let call = |host: &str| worker.call(&grpc_task(host, "Ok", json!({}), b""));
    assert_eq!(call("far.example:50051").result.outcome, Outcome::Finished);
    let refused = call("refused.example:50051");
    assert!(refused.result.error.unwrap_or_default().contains("HTTP/1.1 403 Forbidden"));
    assert_eq!(seen(&call("near.example:50051")).2, "address_denied");
    let want = ["far.example", "refused.example"].map(|of| format!("CONNECT {of}:50051 HTTP/1.1"));
    assert_eq!(*asked.lock(), want);
}
