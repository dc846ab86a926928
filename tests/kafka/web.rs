//! What reaches the API from outside, as bytes: pages of the web, strangers at the door of the peers, and too much at once.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde_json::Value;

use crate::support::{Fixture, Mode, PATIENCE, Process, eventually, out, patience};

/// How soon an answer must be there that waits for nothing.
const SOON: Duration = Duration::from_secs(5);

fn open(process: &Process) -> TcpStream {
    let stream = TcpStream::connect(process.address().expect("it serves")).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    stream
}

/// What stands on a connection until it ends.
fn rest(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // What was sent and not read makes the end a reset.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Sends a request as it is, and gives the status and all of the answer.
fn raw(process: &Process, head: &str, body: &str) -> (u16, String) {
    let mut stream = open(process);
    let length =
        if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    write!(stream, "{head}\r\nConnection: close\r\n{length}\r\n{body}").expect("sent");
    let answer = rest(&mut stream);
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_default(), answer)
}

fn get(process: &Process, path: &str) -> (u16, String) {
    raw(process, &format!("GET {path} HTTP/1.1\r\nHost: localhost"), "")
}

/// A process that knows the timer `t` of the key `k`, which is due in an hour.
fn with_a_timer(fixture: &Fixture, process: &Process) {
    let target = fixture.target("out", 1);
    let record = out("v").key("k").header("x-delay-id", "t").delay(3_600_000).to(&target);
    fixture.producer().send_one(&fixture.names.intake(), &record);
    eventually("the timer is known", || match get(process, "/v1/timers/t?key=k") {
        (200, _) => Ok(()),
        (_, answer) => Err(answer),
    });
}

#[track_caller]
fn is_pending(process: &Process) {
    let (status, answer) = get(process, "/v1/timers/t?key=k");
    assert!(status == 200 && answer.contains("\"state\":\"delay\""), "{answer}");
}

/// Health, figures and a look-up answer, each soon.
#[track_caller]
fn others_are_answered(process: &Process, why: &str) {
    for path in ["/health/live", "/metrics", "/v1/timers/t?key=k"] {
        let began = Instant::now();
        let (status, answer) = get(process, path);
        assert_eq!(status, 200, "{why}: {path}: {answer}");
        assert!(began.elapsed() < SOON * patience(), "{why}: {path} took {:?}", began.elapsed());
    }
}

#[test]
fn a_page_of_the_web_reaches_no_timer_and_who_watches_may_use_any_name() {
    let fixture = Fixture::new("web-pages");
    let launch = fixture.launch(Mode::ExactlyOnce);
    let launch = launch.env("WATERCLOCK_HTTP_HOSTS", "timers.example.org, lb");
    let mut process = launch.start();
    with_a_timer(&fixture, &process);
    let address = process.address().expect("it serves");
    let (cancel, batch) = ("DELETE /v1/timers/t?key=k", "POST /v1/timers:batchCancel");
    let body = r#"{"timers":[{"id":"t","key":"k"}]}"#;
    #[rustfmt::skip]
    let refused = [
        ("a name that points here",     format!("{cancel} HTTP/1.1\r\nHost: evil.example"),                                        "",   403),
        ("the same with our port",      "GET /v1/timers HTTP/1.1\r\nHost: evil.example:8080".to_owned(),                         "",   403),
        ("a name in the target",        format!("DELETE http://evil.example/v1/timers/t?key=k HTTP/1.1\r\nHost: {address}"),        "",   403),
        ("no name",                     format!("{cancel} HTTP/1.1"),                                                               "",   403),
        ("two names",                   format!("{cancel} HTTP/1.1\r\nHost: localhost\r\nHost: evil.example"),                     "",   403),
        ("an old request with a name",  format!("{cancel} HTTP/1.0\r\nHost: evil.example"),                                        "",   403),
        ("a page of another place",     format!("{cancel} HTTP/1.1\r\nHost: {address}\r\nOrigin: https://evil.example"),           "",   403),
        ("a page of nowhere",           format!("{cancel} HTTP/1.1\r\nHost: {address}\r\nOrigin: null"),                           "",   403),
        ("a page of another site",      format!("GET /v1/timers HTTP/1.1\r\nHost: {address}\r\nSec-Fetch-Site: cross-site"),       "",   403),
        ("a form",                      format!("{batch} HTTP/1.1\r\nHost: {address}\r\nContent-Type: text/plain"),                body, 415),
        ("a body of no kind",           format!("{batch} HTTP/1.1\r\nHost: {address}"),                                            body, 415),
        ("a form of another place",     format!("{batch} HTTP/1.1\r\nHost: {address}\r\nOrigin: http://x\r\nContent-Type: application/json"), body, 403),
        ("a stranger at the peers'",    format!("POST /v1/peer HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json"),
            r#"{"lanes":[0],"what":{"ByIds":["t"]}}"#, 403),
    ];
    for (why, head, body, want) in refused {
        let (status, answer) = raw(&process, &head, body);
        assert_eq!(status, want, "{why}: {answer}");
        assert!(answer.contains("application/problem+json"), "{why}: {answer}");
    }
    is_pending(&process);
    for host in [&address, "localhost", "LOCALHOST:1", "timers.example.org", "lb.:80", "[::1]:80"] {
        let head = format!("GET /v1/timers/t?key=k HTTP/1.1\r\nHost: {host}");
        let (status, answer) = raw(&process, &head, "");
        assert_eq!(status, 200, "{host}: {answer}");
    }
    for path in ["/metrics", "/health/live", "/health/ready"] {
        let head = format!("GET {path} HTTP/1.1\r\nHost: waterclock.monitoring.svc");
        let (status, answer) = raw(&process, &head, "");
        assert_eq!(status, 200, "{path}: {answer}");
    }
    // As curl does it.
    let head = format!("{cancel}&wait=20s HTTP/1.1\r\nHost: {address}\r\nAccept: */*");
    let (status, answer) = raw(&process, &head, "");
    assert!(status == 200 && answer.contains("\"outcome\":\"cancelled\""), "{answer}");
    process.stop_well();
}

/// Where to ask for what becomes of a command that nobody has written yet.
fn of_nothing(process: &Process) -> String {
    let head = "DELETE /v1/timers/other?key=k&wait=0s HTTP/1.1\r\nHost: localhost";
    let again = eventually("a cancel is not decided in no time", || {
        let (_, answer) = raw(process, head, "");
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
        let told: Value = serde_json::from_str(body).unwrap_or_default();
        told["again"].as_str().map(str::to_owned).ok_or(answer)
    });
    let ticket = again.strip_prefix("/v1/cancels/").expect("a path");
    let ticket = URL_SAFE_NO_PAD.decode(ticket).expect("base64");
    let mut ticket: Value = serde_json::from_slice(&ticket).expect("JSON");
    let place = ticket["t"].as_str().expect("a place").to_owned();
    let (lane, rest) = place.split_once('-').expect("a lane");
    let (_, name) = rest.split_once('-').expect("a name");
    ticket["t"] = format!("{lane}-1000000000-{name}").into();
    format!("/v1/cancels/{}", URL_SAFE_NO_PAD.encode(ticket.to_string()))
}

#[test]
fn requests_that_wait_leave_room_for_all_others() {
    let fixture = Fixture::new("web-waits");
    let mut process = fixture.start(Mode::ExactlyOnce);
    with_a_timer(&fixture, &process);
    let path = of_nothing(&process);
    let mut all: Vec<TcpStream> = (0..520).map(|_| open(&process)).collect();
    for stream in &mut all {
        write!(
            stream,
            "GET {path}?wait=60s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        .expect("sent");
    }
    let mut waiting = Vec::new();
    eventually("as many wait as may", || {
        let (status, answer) = get(&process, "/health/ready");
        if status == 503 && answer.contains("the API refuses") { Ok(()) } else { Err(answer) }
    });
    others_are_answered(&process, "while many wait");
    // Those that are refused are told at once; the others wait.
    for mut stream in all {
        stream.set_read_timeout(Some(Duration::from_millis(20))).expect("a time limit");
        let mut begin = [0; 12];
        match stream.read_exact(&mut begin) {
            Ok(()) => {
                stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
                let answer = rest(&mut stream);
                assert!(begin.ends_with(b" 503"), "{begin:?}: {answer}");
                assert!(
                    answer.contains("retry-after: 1") && answer.contains("too_busy"),
                    "{answer}"
                );
            }
            Err(_) => waiting.push(stream),
        }
    }
    assert!((8..=256).contains(&waiting.len()), "{} wait", waiting.len());
    assert_eq!(process.metric("waterclock_api_requests"), waiting.len() as f64);
    others_are_answered(&process, "when the rest was refused");
    let cancel = "DELETE /v1/timers/t?key=k&wait=20s HTTP/1.1\r\nHost: localhost";
    let (status, answer) = raw(&process, cancel, "");
    assert!(status == 503 && answer.contains("too_busy"), "{answer}");
    is_pending(&process);
    drop(waiting);
    eventually("it is ready again", || {
        let (status, answer) = get(&process, "/health/ready");
        if status == 200 { Ok(()) } else { Err(answer) }
    });
    let (status, answer) = raw(&process, cancel, "");
    assert!(status == 200 && answer.contains("cancelled"), "{answer}");
    process.stop_well();
}

#[test]
fn another_time_whose_body_comes_too_slowly_is_refused_within_the_time_for_bodies() {
    let fixture = Fixture::new("web-slow-patch");
    let mut process = fixture.start(Mode::ExactlyOnce);
    with_a_timer(&fixture, &process);
    let body = r#"{"delay": "2h"}"#;
    let head = "PATCH /v1/timers/t?key=k&wait=1s HTTP/1.1\r\nHost: localhost";
    let began = Instant::now();
    let mut stream = open(&process);
    write!(
        stream,
        "{head}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .expect("sent");
    // A byte now and then: it would be whole after a quarter of a minute.
    stream.set_read_timeout(Some(Duration::from_secs(1))).expect("a time limit");
    let mut bytes = body.as_bytes().iter();
    let mut begin = [0; 12];
    let told = loop {
        match stream.read_exact(&mut begin) {
            Ok(()) => break String::from_utf8_lossy(&begin).into_owned() + &rest(&mut stream),
            Err(_) => stream.write_all(&[*bytes.next().expect("an answer by now")]).expect("sent"),
        }
    };
    let took = began.elapsed();
    assert!(told.starts_with("HTTP/1.1 408") && told.contains("too_slow"), "{told}");
    let (least, most) = (Duration::from_secs(9), Duration::from_secs(12) * patience());
    assert!((least..most).contains(&took), "{took:?}");
    let (_, answer) = get(&process, "/v1/timers/t?key=k");
    assert!(!answer.contains("supersedes"), "it was put off: {answer}");
    is_pending(&process);
    process.stop_well();
}

/// Stands before an instance, hands everything on, and keeps what the others ask of it.
struct Recorder {
    address: String,
    upstream: Arc<Mutex<String>>,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let (upstream, heard) = (Arc::<Mutex<String>>::default(), Arc::<Mutex<Vec<u8>>>::default());
        let (to, keep) = (Arc::clone(&upstream), Arc::clone(&heard));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let to = to.lock().clone();
                let Ok(server) = TcpStream::connect(to) else { continue };
                let copies = (client.try_clone(), server.try_clone());
                let (Ok(mut back), Ok(mut answers)) = copies else { continue };
                std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
                let keep = Arc::clone(&keep);
                std::thread::spawn(move || record(client, server, &keep));
            }
        });
        Self { address, upstream, heard }
    }

    /// What was asked since this was called the last time.
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.heard.lock())
    }
}

fn record(mut client: TcpStream, mut server: TcpStream, keep: &Mutex<Vec<u8>>) {
    let mut part = [0; 4_096];
    while let Ok(read @ 1..) = client.read(&mut part) {
        keep.lock().extend_from_slice(&part[..read]);
        if server.write_all(&part[..read]).is_err() {
            return;
        }
    }
}

#[test]
fn a_cancel_that_somebody_recorded_between_instances_meets_nothing_that_was_created_again() {
    let fixture = Fixture::with("web-repeat", |request| request.lanes = Some(2));
    let target = fixture.target("out", 1);
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    let recorder = Recorder::start();
    let mut a = fixture.launch(Mode::ExactlyOnce).data("a").start();
    let b = fixture.launch(Mode::ExactlyOnce).data("b");
    let mut b = b.env("WATERCLOCK_ADVERTISE", &recorder.address).start();
    *recorder.upstream.lock() = b.address().expect("it serves");
    eventually("each has a lane and knows the other", || {
        let own = [a.lanes(), b.lanes()];
        let (status, answer) = get(&a, "/v1/timers");
        if (own, status) == ([1, 1], 200) { Ok(()) } else { Err(format!("{own:?} {answer}")) }
    });
    let path = |key: &str| format!("/v1/timers/t?key={key}");
    let submit = |key: &str| {
        let record = out("v").key(key).header("x-delay-id", "t").delay(3_600_000).to(&target);
        producer.send_one(&intake, &record);
        eventually("it is pending", || match get(&a, &path(key)) {
            (200, answer) if answer.contains("\"state\":\"delay\"") => Ok(()),
            (_, answer) => Err(answer),
        });
    };
    let cancel = |key: &str| {
        let head = format!("DELETE {}&wait=20s HTTP/1.1\r\nHost: localhost", path(key));
        let (status, answer) = raw(&a, &head, "");
        assert!(status == 200 && answer.contains("\"outcome\":\"cancelled\""), "{answer}");
    };
    // Two timers whose lane the other instance runs: it gets the query for them.
    let mut keys = (0..).map(|n| format!("k{n}")).filter(|key| {
        recorder.take();
        submit(key);
        !recorder.take().is_empty()
    });
    let (key, other) = (keys.next().expect("one"), keys.next().expect("another"));
    recorder.take();
    cancel(&key);
    let question = recorder.take();
    assert!(String::from_utf8_lossy(&question).contains("Cancel"), "it is asked to cancel it");
    submit(&key);
    let mut stream = open(&b);
    stream.set_read_timeout(Some(SOON)).expect("a time limit");
    stream.write_all(&question).expect("sent");
    let answer = rest(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("not_a_peer"), "{answer}");
    // What is decided afterwards shows that nothing was before.
    cancel(&other);
    let (_, answer) = get(&a, &path(&key));
    assert!(answer.contains("\"state\":\"delay\""), "{answer}");
    a.stop_well();
    b.stop_well();
}

#[test]
fn slow_bodies_and_idle_connections_end_and_keep_nobody_out() {
    let fixture = Fixture::new("web-slow");
    // So few that half of them are taken by what is opened here.
    let launch = fixture.launch(Mode::ExactlyOnce).through(&["prlimit", "--nofile=512:512"]);
    let mut process = launch.start();
    with_a_timer(&fixture, &process);
    let began = Instant::now();
    let mut slow: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = open(&process);
            let head = "POST /v1/timers:batchGet HTTP/1.1\r\nHost: localhost";
            write!(
                stream,
                "{head}\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{{"
            )
            .expect("sent");
            stream
        })
        .collect();
    let idle: Vec<TcpStream> = (0..400).map(|_| open(&process)).collect();
    others_are_answered(&process, "beside slow bodies and idle connections");
    let mut codes: Vec<String> = slow
        .iter_mut()
        .map(|stream| rest(stream).split(' ').nth(1).unwrap_or_default().to_owned())
        .collect();
    assert!(began.elapsed() < Duration::from_secs(30) * patience(), "{:?}", began.elapsed());
    codes.sort();
    codes.dedup();
    assert_eq!(codes, ["408", "503"], "as many as may are waited for, the others refused");
    drop(idle);
    // Files are left for Kafka, and places for everybody.
    let head = "POST /v1/timers:batchCancel HTTP/1.1\r\nHost: localhost";
    let body = r#"{"timers":[{"id":"t","key":"k"}],"wait":"20s"}"#;
    let (status, answer) =
        raw(&process, &format!("{head}\r\nContent-Type: application/json"), body);
    assert!(status == 200 && answer.contains("cancelled"), "{answer}");
    process.stop_well();
}
