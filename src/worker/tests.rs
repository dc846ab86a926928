use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::process::Command;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::engine::header;
use crate::engine::messages::TracedTurn;
use crate::engine::task::digest;
use crate::engine::task::id::TaskId;
use crate::engine::task::registry;
use crate::engine::timers::{TimerId, Version};
use crate::engine::work::{Callee, Dispatch, Scope, Turn};
use crate::engine::{Lane, Millis, Offset, Record};
use crate::patient::patient;

pub(super) mod certificate;
mod grpc;
mod stub;
use stub::Stub;

const KEY: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OLD: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// 90 s before the date that the stub tells.
const NOW: UnixMillis = UnixMillis(784_111_777_000 - 90_000);
/// This machine.
const LOCAL: [&str; 1] = ["127.0.0.0/8"];

/// The callers of one worker, on a runtime of their own.
struct Worker {
    runtime: tokio::runtime::Runtime,
    orders: Option<mpsc::UnboundedSender<Order>>,
    ended: crossbeam_channel::Receiver<Ended>,
    registry: watch::Sender<Arc<Registry>>,
    handle: JoinHandle<()>,
    next: std::cell::Cell<u64>,
}

fn names(name: String) -> Addresses {
    Box::pin(async move {
        let of = |list: &[&str]| Ok(list.iter().map(|ip| ip.parse::<IpAddr>().unwrap()).collect());
        match name.as_str() {
            "loopback.example" => of(&["127.0.0.1"]),
            "mixed.example" => of(&["127.0.0.1", "10.0.0.1"]),
            "nowhere.example" => of(&[]),
            "hangs.example" => std::future::pending().await,
            _ => Err(io::Error::other("no such name")),
        }
    })
}

fn settings(networks: &[&str]) -> Settings {
    let networks: Vec<_> = networks.iter().map(|text| (*text).to_owned()).collect();
    let secret = |name: &str, value, previous| {
        (name.to_owned(), Secret::new(value, previous, ["shop".to_owned()]).unwrap())
    };
    Settings {
        worker: "w-1".to_owned(),
        guard: Guard::new(&networks, None).unwrap(),
        secrets: [
            secret("signs", KEY, Some(OLD)),
            secret("token", "t0ken", None),
            secret("shown", &certificate::PEM, None),
        ]
        .into_iter()
        .collect(),
        proxy: None,
        lookup: Arc::new(names),
    }
}

impl Worker {
    fn start(settings: Settings) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (orders, from_us) = mpsc::unbounded_channel();
        let (to_us, ended) = crossbeam_channel::unbounded();
        let (registry, heard) = watch::channel(Arc::<Registry>::default());
        let clock: Clock = Arc::new(|| NOW);
        let tell = move |end| to_us.send(end).is_ok();
        let handle = start(runtime.handle(), settings, heard, clock, from_us, tell).unwrap();
        Self { runtime, orders: Some(orders), ended, registry, handle, next: 0.into() }
    }

    /// One that may call this machine.
    fn local() -> Self {
        Self::start(settings(&LOCAL))
    }

    fn order(&self, order: Order) {
        self.orders.as_ref().unwrap().send(order).unwrap();
    }

    fn begin(&self, task: &Arc<Task>) -> CallId {
        let call = CallId(self.next.replace(self.next.get() + 1));
        self.order(Order::Begin(call, Arc::clone(task), Instant::now() + Duration::from_secs(60)));
        call
    }

    /// A call that should have been on its way by now.
    fn begin_late(&self, task: &Arc<Task>) -> CallId {
        self.begin_by(task, Instant::now() - Duration::from_millis(1))
    }

    fn begin_by(&self, task: &Arc<Task>, by: Instant) -> CallId {
        let call = CallId(self.next.replace(self.next.get() + 1));
        self.order(Order::Begin(call, Arc::clone(task), by));
        call
    }

    fn end(&self) -> Ended {
        self.ended.recv_timeout(patient(Duration::from_secs(20))).expect("an end")
    }

    fn call(&self, task: &Arc<Task>) -> CallEnd {
        let call = self.begin(task);
        let ended = self.end();
        assert_eq!(ended.call, call);
        // Whatever is said fits into the record.
        let json = ended.end.result.to_json();
        assert!(TaskResult::parse(json.as_bytes()).is_ok(), "{json}");
        *ended.end
    }

    fn put_service(&self, body: &Value) {
        let change = registry::read_request("service/shop/billing", body.to_string().as_bytes());
        let mut registry = Registry::default();
        registry.apply(change.unwrap().with_revision(1)).unwrap();
        self.registry.send_replace(Arc::new(registry));
    }
}

/// Runs a test that is ignored in a process of its own, as variables hold for all of a process.
#[track_caller]
fn of_its_own_process(name: &str, variables: &[(&str, &OsStr)]) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("worker::tests::{name}"), "--ignored"])
        .env_remove("no_proxy")
        .env_remove("NO_PROXY")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[child.stdout, child.stderr].concat()).into_owned();
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

/// A task as it stands in `<ns>.tasks`.
fn task(spec: Value, body: &[u8]) -> Task {
    task_of("9f2c", spec, body)
}

/// The same with this id.
fn task_of(id: &str, spec: Value, body: &[u8]) -> Task {
    let mut all = json!({"type": "http", "project": "shop", "group": "g"});
    let fields = spec.as_object().unwrap().clone();
    all.as_object_mut().unwrap().extend(fields);
    let spec = all.to_string();
    let headers: [(&[u8], Option<&[u8]>); 3] = [
        (header::ID.as_bytes(), Some(id.as_bytes())),
        (header::TASK.as_bytes(), Some(spec.as_bytes())),
        (b"of-the-record", Some(b"not sent")),
    ];
    let record = Record::new(None, Some(body), headers.into_iter());
    let sealed = Dispatch {
        due: UnixMillis(5_000),
        attempt: 2,
        digest: digest(&record),
        ..Dispatch::default()
    };
    Task {
        turn: Turn { name: TimerId([7; 16]), version: Version::default(), turn: 3 },
        lane: Lane(0),
        scope: Scope { project: "shop".into(), callee: Callee::Service("billing".into()) },
        sealed,
        traced: None,
        record,
    }
}

fn to(stub: &Stub, path: &str, more: Value) -> Arc<Task> {
    let mut spec = json!({"url": format!("http://{}{path}", stub.address)});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Arc::new(task(spec, b"body"))
}

/// Status, outcome, the code of the error, and whether the other side is away.
fn seen(end: &CallEnd) -> (Option<u16>, Outcome, String, bool) {
    let error = end.result.error.as_deref().unwrap_or_default();
    let code = error.split(':').next().unwrap_or_default().to_owned();
    (end.result.status, end.result.outcome, code, end.is_away)
}

/// A process that stood still may not make the calls that it had begun: another worker may have their tasks by now.
#[test]
fn a_call_that_is_not_on_its_way_in_time_is_not_made() {
    let (stub, worker) = (Stub::start(), Worker::local());
    let call = worker.begin_late(&to(&stub, "/ok", json!({})));
    let ended = worker.end();
    assert_eq!((ended.call, ended.end.result.outcome), (call, Outcome::Deferred));
    assert_eq!(worker.call(&to(&stub, "/ok", json!({}))).result.outcome, Outcome::Finished);
    assert_eq!(stub.requests().len(), 1);
}

#[test]
fn each_answer_and_each_failure_means_one_thing() {
    let (stub, worker) = (Stub::start(), Worker::local());
    use Outcome::{Failed, Finished, Gone, NotYet};
    let polls = json!({"poll": {"interval": "1s", "rounds": 3}});
    let (plain, short) = (json!({}), json!({"timeout": "300ms"}));
    #[rustfmt::skip]
    let cases = [
        ("/ok",         &plain, Some(200), Finished, "",                  false),
        ("/204",        &plain, Some(204), Finished, "",                  false),
        ("/status/202", &plain, Some(202), Finished, "",                  false),
        ("/status/202", &polls, Some(202), NotYet,   "",                  false),
        ("/status/425", &polls, Some(425), NotYet,   "",                  false),
        ("/status/410", &plain, Some(410), Gone,     "gone",              false),
        ("/gone",       &plain, Some(410), Gone,     "gone",              false),
        ("/status/404", &plain, Some(404), Failed,   "unexpected_status", false),
        ("/status/500", &plain, Some(500), Failed,   "unexpected_status", false),
        ("/status/502", &plain, Some(502), Failed,   "unexpected_status", true),
        ("/redirect",   &plain, Some(302), Failed,   "unexpected_status", false),
        ("/seconds",    &plain, Some(429), Failed,   "unexpected_status", true),
        ("/hang",       &short, None,      Failed,   "timeout",           true),
        ("/drip",       &short, Some(200), Failed,   "timeout",           true),
        ("/close",      &plain, None,      Failed,   "call_broken",       false),
        ("/reset",      &plain, None,      Failed,   "call_broken",       false),
        ("/garbage",    &plain, None,      Failed,   "call_broken",       false),
        ("/half",       &plain, Some(200), Failed,   "call_broken",       false),
        ("/whole",      &plain, Some(200), Finished, "",                  false),
        ("/big",        &plain, Some(200), Failed,   "answer_too_large",  false),
        ("/headers",    &plain, Some(200), Failed,   "answer_too_large",  false),
        ("/zipped",     &plain, Some(200), Finished, "",                  false),
    ];
    for (path, more, status, outcome, code, is_away) in cases {
        let end = worker.call(&to(&stub, path, more.clone()));
        assert_eq!(seen(&end), (status, outcome, code.to_owned(), is_away), "{path}: {end:?}");
        let TaskResult { started, ended, worker, .. } = end.result;
        assert_eq!((started, ended, worker.as_deref()), (Some(NOW), Some(NOW), Some("w-1")));
    }
    let asked: Vec<_> = stub.requests().into_iter().map(|request| request.target).collect();
    assert_eq!(asked, cases.map(|(path, ..)| path), "each once, and no redirect was followed");
}

/// Some servers answer 411 to a POST that does not say how long its body is.
#[test]
fn a_call_without_a_body_says_so_where_its_method_has_one() {
    let (stub, worker) = (Stub::start(), Worker::local());
    for (method, length) in [
        ("POST", Some("0")),
        ("PUT", Some("0")),
        ("PATCH", Some("0")),
        ("GET", None),
        ("DELETE", None),
    ] {
        let spec = json!({"url": format!("http://{}/ok", stub.address), "method": method});
        let end = worker.call(&Arc::new(task(spec, b"")));
        assert_eq!(end.result.outcome, Outcome::Finished, "{method}");
        let seen = stub.requests().pop().expect("a request");
        assert_eq!((seen.method.as_str(), seen.header("content-length")), (method, length));
        assert_eq!(seen.header("transfer-encoding"), None, "{method}");
    }
}

#[test]
fn what_is_kept_of_an_answer_is_bounded() {
    let (stub, worker) = (Stub::start(), Worker::local());
    let response = |path| worker.call(&to(&stub, path, json!({}))).result.response;
    assert_eq!(response("/ok").as_deref(), Some(&b"done"[..]));
    assert_eq!(response("/204"), None);
    assert_eq!(response("/long"), Some(vec![b'y'; 1_024]));
    assert_eq!(response("/zipped").as_deref(), Some(&b"not unpacked"[..]));
    assert_eq!(response("/big"), Some(vec![b'x'; 1_024]));
    stub.wait_for("the flood ends", |log| log.given_up.load(SeqCst) == 1);
    let sent = stub.log.sent.load(SeqCst);
    assert!(sent < 64 << 20, "{sent} bytes were taken of a body that is too large");
}

#[test]
fn retry_after_is_taken_in_both_forms() {
    let (stub, worker) = (Stub::start(), Worker::local());
    let after = |path| worker.call(&to(&stub, path, json!({}))).result.retry_after;
    assert_eq!(after("/seconds"), Some(Millis(7_000)));
    assert_eq!(after("/date"), Some(Millis(90_000)));
    assert_eq!(after("/ok"), None);
}

/// What a receiver's library has for `webhook-signature`, while its keys change from one to the other.
fn signed(id: &str, seconds: i64, body: &[u8]) -> String {
    let signed = [KEY, OLD].map(|key| {
        let library = standardwebhooks::Webhook::new(key).expect("a key");
        library.sign(id, seconds, body).expect("signed")
    });
    signed.join(" ")
}

#[test]
fn a_service_is_called_as_it_is_known_at_the_call() {
    let (stub, worker) = (Stub::start(), Worker::local());
    let of = |path: Option<&str>| {
        let mut spec = json!({"service": "billing", "method": "PUT", "headers": [
            ["content-type", "text/plain"], ["x-a", "1"], ["x-a", "ä"], ["user-agent", "mine"],
            ["Idempotency-Key", "mine"],
        ]});
        if let Some(path) = path {
            spec["path"] = json!(path);
        }
        Arc::new(task(spec, b"to sign"))
    };
    assert_eq!(seen(&worker.call(&of(Some("/expire")))).2, "service_missing");
    let address = format!("http://{}/base/", stub.address);
    worker.put_service(&json!({"address": address, "secret": "signs", "bearer": "token"}));
    for path in [Some("/expire?a=b%20c"), None] {
        let end = worker.call(&of(path));
        assert_eq!(end.result.outcome, Outcome::Finished, "{end:?}");
    }
    let requests = stub.requests();
    let [first, second] = requests.as_slice() else { panic!("two calls: {requests:?}") };
    assert_eq!((first.target.as_str(), second.target.as_str()), ("/base/expire?a=b%20c", "/base/"));
    assert_eq!((first.method.as_str(), first.body.as_slice()), ("PUT", &b"to sign"[..]));
    let host = stub.address.to_string();
    #[rustfmt::skip]
    let wanted = [
        ("content-type", "text/plain"),   ("user-agent", "mine"),      ("webhook-id", "9f2c"),
        ("idempotency-key", "9f2c"),      ("waterclock-turn", "3"),    ("waterclock-attempt", "2"),
        ("waterclock-due", "5000"),       ("authorization", "Bearer t0ken"), ("host", &host),
        ("webhook-timestamp", "784111687"),
    ];
    for (name, value) in wanted {
        assert_eq!(first.header(name), Some(value), "{name}");
    }
    let own: Vec<_> = first
        .headers
        .iter()
        .filter(|(name, _)| name == "x-a")
        .map(|(_, value)| value.as_str())
        .collect();
    assert_eq!(own, ["1", "ä"]);
    for name in ["of-the-record", header::TASK, header::ID] {
        assert_eq!(first.header(name), None);
    }
    let want = signed("9f2c", 784_111_687, b"to sign");
    assert_eq!(first.header("webhook-signature"), Some(&*want));
}

#[test]
fn a_raw_url_is_called_without_a_signature_and_a_round_of_polling_has_an_id_of_its_own() {
    let (stub, worker) = (Stub::start(), Worker::local());
    let polls = json!({"poll": {"interval": "1s", "rounds": 3}, "method": "GET"});
    for (round, more) in [(0, polls.clone()), (2, polls), (2, json!({}))] {
        let mut task = Arc::unwrap_or_clone(to(&stub, "/ok", more));
        task.sealed.round = round;
        worker.call(&Arc::new(task));
    }
    let requests = stub.requests();
    let ids: Vec<_> =
        requests.iter().map(|request| request.header("webhook-id").unwrap()).collect();
    assert_eq!(ids, ["9f2c", "9f2c.r2", "9f2c"]);
    assert_eq!(requests[1].header("idempotency-key"), Some("9f2c.r2"));
    let agent = concat!("waterclock/", env!("CARGO_PKG_VERSION"));
    for request in &requests {
        assert_eq!(request.header("user-agent"), Some(agent));
        assert!(
            request.header("webhook-signature").is_none()
                && request.header("authorization").is_none()
        );
    }
}

/// Of a task of a schedule, of a shard of its run, of a shard of one that somebody asked for, and of a task of no schedule.
fn of_schedules() -> [(String, Option<&'static str>); 4] {
    let schedule = TaskId::schedule("shop", "nightly").unwrap();
    let version = (UnixMillis(1_801_353_600_012), Offset(42));
    let (run, by_hand) =
        (schedule.occurrence(UnixMillis(1_801_353_600_000)), schedule.triggered([7; 8]));
    let shard = |of: &TaskId| of.shard(version, 7).to_string();
    let nominal = Some("1801353600000");
    [
        (run.to_string(), nominal),
        (shard(&run), nominal),
        (shard(&by_hand), None),
        ("9f2c".to_owned(), None),
    ]
}

#[test]
fn a_call_says_for_which_nominal_time_it_is() {
    let (stub, worker) = (Stub::start(), Worker::local());
    let url = format!("http://{}/ok", stub.address);
    for (id, _) in of_schedules() {
        worker.call(&Arc::new(task_of(&id, json!({"url": url}), b"body")));
    }
    let requests = stub.requests();
    let said: Vec<_> = requests
        .iter()
        .map(|request| (request.header("webhook-id"), request.header("waterclock-nominal")))
        .collect();
    let want = of_schedules();
    let want: Vec<_> = want.iter().map(|(id, nominal)| (Some(id.as_str()), *nominal)).collect();
    assert_eq!(said, want);
}

#[test]
fn a_call_hands_a_task_with_feedback_over_and_says_no_more() {
    let (stub, worker) = (Stub::start(), Worker::local());
    let of = |path: &str, more: Value, traced: Option<TracedTurn>| {
        let task = Arc::unwrap_or_clone(to(&stub, path, more));
        seen(&worker.call(&Arc::new(Task { traced, ..task })))
    };
    let (ticket, cursor) = ("AAABmF-x_".to_owned(), Some(Arc::from("Zeile 7 \u{fc}")));
    let first = Some(TracedTurn { ticket: ticket.clone(), cursor: None, shard: None });
    let again = Some(TracedTurn { ticket: ticket.clone(), cursor, shard: None });
    let feedback = json!({"feedback": {"deadline": "1h"}});
    let accepted = |status| (Some(status), Outcome::Accepted, String::new(), false);
    assert_eq!(of("/status/202", feedback.clone(), first.clone()), accepted(202));
    assert_eq!(of("/ok", feedback.clone(), again), accepted(200));
    // What is no success hands nothing over.
    let failed = of("/status/503", feedback.clone(), first.clone());
    assert_eq!((failed.1, failed.3), (Outcome::Failed, true));
    assert_eq!(of("/status/410", feedback, first).1, Outcome::Gone);
    assert_eq!(of("/status/202", json!({}), None).1, Outcome::Finished);
    let requests = stub.requests();
    let headers = |name: &str| -> Vec<Option<String>> {
        requests.iter().map(|request| request.header(name).map(str::to_owned)).collect()
    };
    let ticket = Some(ticket);
    let tickets = [ticket.clone(), ticket.clone(), ticket.clone(), ticket, None];
    assert_eq!(headers("waterclock-ticket"), tickets);
    let cursor = Some("Zeile 7 \u{fc}".to_owned());
    assert_eq!(headers("waterclock-cursor"), [None, cursor, None, None, None]);
}

#[test]
fn what_is_not_in_order_is_not_called() {
    let (stub, worker) = (Stub::start(), Worker::local());
    let sound = to(&stub, "/ok", json!({}));
    let other_body = Task {
        record: task(json!({"url": "http://a.example"}), b"another").record,
        ..(*sound).clone()
    };
    let with = |headers: &[(&str, &str)]| {
        let pairs = headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
        let record = Record::new(None, None, pairs);
        let sealed = Dispatch { digest: digest(&record), ..sound.sealed };
        Task { record, sealed, ..(*sound).clone() }
    };
    let url = format!("http://{}/ok", stub.address);
    let spec = |more: &str| {
        format!(r#"{{"type":"http","project":"shop","group":"g","url":"{url}"{more}}}"#)
    };
    #[rustfmt::skip]
    let cases = [
        ("another body",        other_body,                                                             "bad_task"),
        ("no specification",    with(&[(header::ID, "a")]),                                             "bad_task"),
        ("no id",               with(&[(header::TASK, &spec(""))]),                                     "bad_task"),
        ("no JSON",             with(&[(header::ID, "a"), (header::TASK, "{")]),                        "bad_task"),
        ("a line in its id",    with(&[(header::ID, "a\r\nb: c"), (header::TASK, &spec(""))]),          "bad_task"),
        ("a line in a value",   with(&[(header::ID, "a"), (header::TASK, &spec(r#","headers":[["a","b\r\nc: d"]]"#))]), "bad_task"),
        ("a header of HTTP's",  with(&[(header::ID, "a"), (header::TASK, &spec(r#","headers":[["Host","b"]]"#))]), "bad_task"),
        ("a header of ours",    with(&[(header::ID, "a"), (header::TASK, &spec(r#","headers":[["webhook-id","b"]]"#))]), "bad_task"),
        ("a secret",            with(&[(header::ID, "a"), (header::TASK, &spec(r#","headers":[["Authorization","b"]]"#))]), "bad_task"),
        ("of Kafka",            task(json!({"type": "kafka", "topic": "orders"}), b""),                 "bad_task"),
    ];
    for (why, task, code) in cases {
        let end = worker.call(&Arc::new(task));
        let want = (None, Outcome::Gone, code.to_owned(), false);
        assert_eq!(seen(&end), want, "{why}: no other call ends otherwise: {end:?}");
    }
    assert_eq!(worker.call(&sound).result.outcome, Outcome::Finished);
    assert_eq!((stub.connections(), stub.requests().len()), (1, 1));
}

#[test]
fn a_secret_that_a_project_may_not_use_is_not_sent_and_not_told() {
    let (stub, worker) = (Stub::start(), Worker::local());
    let address = format!("http://{}", stub.address);
    let https = format!("https://{}", stub.address);
    let named = Arc::new(task(json!({"service": "billing"}), b""));
    for (service, want) in [
        (json!({"address": address, "secret": "missing"}), "not in this worker's configuration"),
        (json!({"address": address, "secret": "token"}), "cannot sign"),
        (json!({"address": address, "secret": "shown"}), "cannot sign"),
        (json!({"address": address, "bearer": "missing"}), "not in this worker's configuration"),
        (json!({"address": address, "bearer": "shown"}), "is a client certificate; want a token"),
        (json!({"address": https, "client_certificate": "missing"}), "not in this worker's"),
        (json!({"address": https, "client_certificate": "token"}), "want PEM with one private key"),
    ] {
        worker.put_service(&service);
        let end = worker.call(&named);
        assert_eq!(seen(&end).2, "secret_denied");
        let error = end.result.error.unwrap_or_default();
        assert!(error.contains(want) && !error.contains("t0ken"), "{error}");
    }
    for service in [
        json!({"address": address, "bearer": "token"}),
        json!({"address": https, "client_certificate": "shown"}),
    ] {
        let service =
            registry::read_request("service/other/billing", service.to_string().as_bytes());
        let mut registry = Registry::default();
        registry.apply(service.unwrap().with_revision(1)).unwrap();
        worker.registry.send_replace(Arc::new(registry));
        let other = task(json!({"service": "billing", "project": "other"}), b"");
        let error = worker.call(&Arc::new(other)).result.error.unwrap_or_default();
        assert!(
            error.contains("of project other is not in this worker's configuration"),
            "{error}"
        );
    }
    assert_eq!(stub.connections(), 0);
}

#[test]
fn a_project_that_was_deleted_calls_nobody() {
    let (stub, worker) = (Stub::start(), Worker::local());
    let deleted =
        registry::Project { is_deleted: true, revision: 1, ..registry::Project::NEVER_PUT };
    let mut registry = Registry::default();
    registry.apply(registry::Change::of_project("shop", deleted)).unwrap();
    worker.registry.send_replace(Arc::new(registry));
    assert_eq!(seen(&worker.call(&to(&stub, "/ok", json!({})))).2, "project_deleted");
    assert_eq!(stub.connections(), 0);
}

/// The list of a project holds for tasks that wait when it is put, whether they name a URL or a service.
#[test]
fn a_host_that_is_not_among_those_of_the_project_is_not_connected_to() {
    let (stub, worker) = (Stub::start(), Worker::local());
    let port = stub.address.port();
    let of = |spec: Value| worker.call(&Arc::new(task(spec, b"")));
    let raw = |host: &str| of(json!({"url": format!("http://{host}:{port}/ok")}));
    let address = format!("http://loopback.example:{port}");
    let service = registry::read_request(
        "service/shop/billing",
        json!({"address": address}).to_string().as_bytes(),
    );
    let service = service.unwrap().with_revision(1);
    let permit = |hosts: &[&str]| {
        let body = json!({"hosts": hosts}).to_string();
        let project = registry::read_request("project/shop", body.as_bytes()).unwrap();
        let mut registry = Registry::default();
        registry.apply(project.with_revision(1)).unwrap();
        registry.apply(service.clone()).unwrap();
        worker.registry.send_replace(Arc::new(registry));
    };
    permit(&["*.other.example", "127.0.0.2"]);
    for end in [raw("loopback.example"), raw("127.0.0.1"), of(json!({"service": "billing"}))] {
        assert_eq!(seen(&end).2, "address_denied");
        let error = end.result.error.unwrap_or_default();
        assert!(error.ends_with("is not in the hosts of the project shop"), "{error}");
    }
    assert_eq!(stub.connections(), 0);
    permit(&["*.example"]);
    assert_eq!(raw("loopback.example").result.outcome, Outcome::Finished);
    assert_eq!(of(json!({"service": "billing"})).result.outcome, Outcome::Finished);
    assert_eq!(seen(&raw("127.0.0.1")).2, "address_denied");
    let other = json!({"project": "other", "url": format!("http://127.0.0.1:{port}/ok")});
    assert_eq!(of(other).result.outcome, Outcome::Finished, "each project has its own list");
    // A list of a project opens nothing that the installation keeps closed.
    permit(&["10.0.0.1"]);
    let error = raw("10.0.0.1").result.error.unwrap_or_default();
    assert!(error.contains("callbacks.networks"), "{error}");
}

#[test]
fn an_address_that_is_not_allowed_is_not_connected_to() {
    let stub = Stub::start();
    let port = stub.address.port();
    let of = |host: &str| Arc::new(task(json!({"url": format!("http://{host}:{port}/ok")}), b""));
    let strict = Worker::start(settings(&[]));
    for host in [
        "127.0.0.1",
        "2130706433",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "169.254.169.254",
        "loopback.example",
        "mixed.example",
    ] {
        let end = strict.call(&of(host));
        assert_eq!(
            seen(&end),
            (None, Outcome::Failed, "address_denied".to_owned(), false),
            "{host}: {end:?}"
        );
    }
    let local = Worker::local();
    assert_eq!(
        seen(&local.call(&of("mixed.example"))).2,
        "address_denied",
        "one forbidden address is enough"
    );
    assert_eq!(stub.connections(), 0);
    assert_eq!(local.call(&of("loopback.example")).result.outcome, Outcome::Finished);
    // A service is no way round.
    strict.put_service(&json!({"address": format!("http://loopback.example:{port}")}));
    assert_eq!(
        seen(&strict.call(&Arc::new(task(json!({"service": "billing"}), b"")))).2,
        "address_denied"
    );
    assert_eq!(stub.connections(), 1);
}

#[test]
fn a_name_that_does_not_resolve_and_a_port_that_nobody_listens_at_are_told_apart() {
    let worker = Worker::local();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let to = |url: String| {
        seen(&worker.call(&Arc::new(task(json!({"url": url, "timeout": "300ms"}), b""))))
    };
    let failed = |code: &str, is_away| (None, Outcome::Failed, code.to_owned(), is_away);
    assert_eq!(to("http://unknown.example/".to_owned()), failed("name_unresolved", false));
    assert_eq!(to("http://nowhere.example/".to_owned()), failed("name_unresolved", false));
    assert_eq!(to(format!("http://{free}/")), failed("no_connection", true));
    assert_eq!(to("http://hangs.example/".to_owned()), failed("timeout", true));
}

#[test]
fn a_certificate_that_nobody_trusts_is_refused() {
    let worker = Worker::local();
    let made = rcgen::generate_simple_self_signed(["loopback.example".to_owned()]).unwrap();
    let identity = native_tls::Identity::from_pkcs8(
        made.cert.pem().as_bytes(),
        made.signing_key.serialize_pem().as_bytes(),
    );
    let acceptor = native_tls::TlsAcceptor::new(identity.unwrap()).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || acceptor.accept(listener.accept().unwrap().0).is_ok());
    let end = worker
        .call(&Arc::new(task(json!({"url": format!("https://loopback.example:{port}/")}), b"")));
    assert_eq!(
        seen(&end),
        (None, Outcome::Failed, "connection_failed".to_owned(), false),
        "{end:?}"
    );
    assert!(end.result.error.unwrap_or_default().contains("certificate"));
    assert!(!server.join().unwrap(), "the handshake fails");
}

#[test]
fn a_call_that_is_cut_closes_its_connection_and_is_not_told() {
    let (stub, worker) = (Stub::start(), Worker::local());
    let call = worker.begin(&to(&stub, "/hang", json!({})));
    stub.wait_for("the call begins", |log| log.requests.lock().len() == 1);
    worker.order(Order::Cut(call));
    stub.wait_for("its connection is closed", |log| log.given_up.load(SeqCst) == 1);
    // One that is unknown, or has ended, does nothing.
    worker.order(Order::Cut(CallId(99)));
    assert_eq!(worker.call(&to(&stub, "/ok", json!({}))).result.outcome, Outcome::Finished);
    assert!(worker.ended.is_empty());
}

#[test]
fn calls_end_with_the_channel_of_their_orders() {
    let (stub, mut worker) = (Stub::start(), Worker::local());
    worker.begin(&to(&stub, "/hang", json!({})));
    stub.wait_for("the call begins", |log| log.requests.lock().len() == 1);
    worker.orders = None;
    worker.runtime.block_on(&mut worker.handle).unwrap();
    stub.wait_for("its connection is closed", |log| log.given_up.load(SeqCst) == 1);
    assert!(worker.ended.recv().is_err(), "nothing is told of it");
}

#[test]
fn connections_are_used_again_and_calls_do_not_wait_for_each_other() {
    let (stub, worker) = (Stub::start(), Worker::local());
    for _ in 0..50 {
        assert_eq!(worker.call(&to(&stub, "/ok", json!({}))).result.outcome, Outcome::Finished);
    }
    // A connection comes back a moment after its call has ended; the next call may be faster.
    assert!(stub.connections() < 10, "{} connections for 50 calls", stub.connections());
    // One after another they would take 40 s.
    let begun = Instant::now();
    let mut open: Vec<_> = (0..200).map(|_| worker.begin(&to(&stub, "/slow", json!({})))).collect();
    while !open.is_empty() {
        let Ended { call, end } = worker.end();
        assert_eq!(end.result.outcome, Outcome::Finished, "{end:?}");
        open.retain(|one| *one != call);
    }
    assert!(begun.elapsed() < patient(Duration::from_secs(20)), "{:?}", begun.elapsed());
    let before = stub.connections();
    assert_eq!(worker.call(&to(&stub, "/ok", json!({}))).result.outcome, Outcome::Finished);
    assert_eq!(stub.connections(), before);
}

/// It would look names up by itself, and call what the guard has not seen.
#[test]
fn a_proxy_of_the_environment_is_not_asked() {
    let proxy = Stub::start();
    let address = format!("http://{}", proxy.address);
    let names =
        ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
    let variables = names.map(|name| (name, OsStr::new(&address)));
    of_its_own_process("child_calls_beside_a_proxy", &variables);
    assert_eq!(proxy.connections(), 0);
}

#[test]
#[ignore = "a child of the test above"]
fn child_calls_beside_a_proxy() {
    assert!(std::env::var_os("http_proxy").is_some(), "run by another test");
    let (stub, worker) = (Stub::start(), Worker::local());
    let port = stub.address.port();
    for host in ["loopback.example", "127.0.0.1"] {
        let task = task(json!({"url": format!("http://{host}:{port}/ok")}), b"");
        assert_eq!(worker.call(&Arc::new(task)).result.outcome, Outcome::Finished, "{host}");
    }
    assert_eq!(stub.connections(), 2);
}

/// What is checked is what is called: a name that changes between the two would be a way around the guard.
#[test]
fn a_name_is_looked_up_once_for_a_connection() {
    let stub = Stub::start();
    let port = stub.address.port();
    let url = json!({"url": format!("http://changes.example:{port}/ok")});
    let worker_of = |answers: [&'static str; 2]| {
        let asks = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asks);
        let lookup: Lookup = Arc::new(move |_| {
            let nth = counted.fetch_add(1, SeqCst).min(1);
            Box::pin(async move { Ok(vec![answers[nth].parse().unwrap()]) })
        });
        (Worker::start(Settings { lookup, ..settings(&LOCAL) }), asks)
    };
    let (worker, asks) = worker_of(["127.0.0.1", "10.0.0.1"]);
    let end = worker.call(&Arc::new(task(url.clone(), b"")));
    assert_eq!((end.result.outcome, asks.load(SeqCst)), (Outcome::Finished, 1));
    let (worker, asks) = worker_of(["10.0.0.1", "127.0.0.1"]);
    let end = worker.call(&Arc::new(task(url, b"")));
    assert_eq!((seen(&end).2, asks.load(SeqCst)), ("address_denied".to_owned(), 1));
    assert_eq!(stub.connections(), 1);
}

#[test]
fn a_proxy_is_asked_for_every_host_that_is_listed() {
    let (proxy, direct) = (Stub::start(), Stub::start());
    let hosts = ["far.example".to_owned()];
    let worker = Worker::start(Settings {
        guard: Guard::new(&[], Some(&hosts)).unwrap(),
        proxy: Some(format!("http://{}", proxy.address).parse().unwrap()),
        ..settings(&[])
    });
    let to = |url: String| worker.call(&Arc::new(task(json!({"url": url}), b"")));
    assert_eq!(to("http://far.example/a".to_owned()).result.outcome, Outcome::Finished);
    assert_eq!(proxy.requests()[0].target, "http://far.example/a");
    assert_eq!(seen(&to("http://near.example/".to_owned())).2, "address_denied");
    assert_eq!(seen(&to(format!("http://{}/", direct.address))).2, "address_denied");
    assert_eq!((proxy.requests().len(), direct.connections()), (1, 0));
}
