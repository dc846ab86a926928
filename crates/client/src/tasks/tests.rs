use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::watch;
use waterclock_engine::Millis;
use waterclock_engine::task::request::{self, Due, TaskType};
use waterclock_engine::task::spec::Kind;

use super::*;

/// What an instance was asked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    /// Method and path.
    pub(crate) line: String,
    pub(crate) body: Value,
}

impl Asked {
    pub(crate) fn is(&self, end: &str) -> bool {
        self.line.ends_with(end)
    }
}

/// Status, further headers, body. `None`: the connection is closed without an answer.
pub(crate) type Said = Option<(u16, &'static str, Value)>;

pub(crate) fn said(status: u16, body: Value) -> Said {
    Some((status, "", body))
}

pub(crate) fn passing(code: &str) -> Said {
    Some((503, "retry-after: 0\r\n", json!({ "code": code, "detail": "later" })))
}

/// An instance that answers as it is told, and what it was asked.
#[derive(Clone)]
pub(crate) struct Instance {
    address: String,
    asked: Arc<watch::Sender<Vec<Asked>>>,
}

impl Instance {
    /// `answer` is given the number of the request, from 0.
    pub(crate) fn start(answer: impl Fn(usize, &Asked) -> Said + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        let asked = Arc::new(watch::Sender::new(Vec::new()));
        let heard = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let Some(asked) = read_request(&stream) else { continue };
                let number = heard.borrow().len();
                heard.send_modify(|heard: &mut Vec<Asked>| heard.push(asked.clone()));
                let Some((status, headers, body)) = answer(number, &asked) else { continue };
                let body = body.to_string();
                let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", body.len());
                let answer = format!("{head}{headers}connection: close\r\n\r\n{body}");
                // The client may have gone meanwhile.
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        Self { address, asked }
    }

    /// One that gives these answers, and the last one for ever.
    fn says(answers: Vec<Said>) -> Self {
        Self::start(move |number, _| answers[number.min(answers.len() - 1)].clone())
    }

    pub(crate) fn tasks(&self, within: Duration) -> Tasks {
        Tasks::new(TasksConfig { within, ..TasksConfig::new(&*self.address) }).expect("a client")
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.borrow().clone()
    }

    fn lines(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.line).collect()
    }
}

fn read_request(stream: &TcpStream) -> Option<Asked> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line).ok()?;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(of) = header.strip_prefix("content-length:") {
            length = of.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    Some(Asked { line, body: serde_json::from_slice(&body).unwrap_or_default() })
}

pub(crate) fn block_on<F: Future>(work: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(1).enable_all().build().expect("a runtime").block_on(work)
}

pub(crate) const LONG: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_secs(3_600);

fn http(id: Option<&str>) -> HttpTask {
    let task = HttpTask::to_url("shop", "orders", "https://a.example/").after(HOUR);
    match id {
        Some(id) => task.request_id(id),
        None => task,
    }
}

fn created(id: &str) -> Said {
    said(201, json!({ "task_id": id, "trigger_at": 7 }))
}

#[test]
fn what_the_builders_say_is_what_an_instance_reads() {
    let at = UNIX_EPOCH + Duration::from_millis(1_767_225_600_000);
    let task = HttpTask::to_service("shop", "orders", "billing")
        .after(HOUR)
        .path("/expire")
        .method("PUT")
        .header("x-a", "1")
        .header("x-a", "2")
        .body(vec![0xff])
        .body("now a text")
        .timeout(Duration::from_millis(1_500))
        .expect("2xx,404")
        .poll(Duration::from_secs(10), 360)
        .retry(
            Retry::times(3)
                .interval(Duration::from_secs(5))
                .exponential()
                .max_interval(HOUR)
                .jitter(0.5),
        )
        .window(Duration::from_secs(60))
        .expires_at(at + HOUR)
        .request_id("r")
        .at(at);
    let read = |of, task: NewTask| {
        request::read(of, task.body().to_string().as_bytes(), 1 << 22).expect("it is taken")
    };
    let taken = read(TaskType::Http, task.into());
    assert_eq!(taken.due, Due::At(waterclock_engine::UnixMillis(1_767_225_600_000)));
    assert_eq!(taken.window, Some(Millis(60_000)));
    assert_eq!(taken.expires.map(|at| at.0), Some(1_767_229_200_000));
    assert_eq!(taken.request_id.as_deref(), Some("r"));
    assert_eq!(taken.value.as_deref(), Some(&b"now a text"[..]));
    let spec = taken.spec.to_json();
    let spec: Value = serde_json::from_slice(spec.as_bytes()).expect("JSON");
    let want = json!({
        "type": "http", "project": "shop", "group": "orders", "service": "billing", "path": "/expire", "method": "PUT",
        "headers": [["x-a", "1"], ["x-a", "2"]], "timeout": "1s500ms", "expect": "2xx,404",
        "poll": {"interval": 10, "rounds": 360},
        "retry": {"count": 3, "interval": 5, "backoff": "exponential", "max_interval": 3_600, "jitter": 0.5},
    });
    assert_eq!(spec, want);

    let task = KafkaTask::to("shop", "imports", "work")
        .key(vec![0xff, 0])
        .value(vec![0xfe])
        .header("a", "b")
        .partition(3)
        .feedback(Feedback::within(HOUR).heartbeat(Duration::from_secs(30)))
        .on_result(OnResult::Topic("imports.done".to_owned()));
    let taken = read(TaskType::Kafka, task.into());
    let told = waterclock_engine::task::spec::OnResult::Topic("imports.done".to_owned());
    assert_eq!(taken.spec.on_result(), Some(&told));
    assert_eq!(taken.due, Due::In(Millis(0)), "at once");
    assert_eq!((taken.key, taken.value), (Some(vec![0xff, 0]), Some(vec![0xfe])));
    assert_eq!(taken.headers, [("a".to_owned(), Some(b"b".to_vec()))]);
    let Kind::Kafka(kafka) = taken.spec.kind() else { panic!("a Kafka task") };
    let feedback = kafka.feedback.expect("it has feedback");
    assert_eq!((feedback.deadline.0, feedback.heartbeat.0), (3_600_000, 30_000));
}

#[test]
fn tasks_that_call_have_feedback_and_methods_of_grpc_are_called_too() {
    let read = |of, task: NewTask| {
        let of_batch = task.of_batch()["type"].clone();
        assert_eq!(of_batch, task.task_type());
        request::read(of, task.body().to_string().as_bytes(), 1 << 22).expect("it is taken")
    };
    let json_of = |spec: &waterclock_engine::task::spec::Spec| -> Value {
        serde_json::from_slice(spec.to_json().as_bytes()).expect("JSON")
    };
    let feedback = Feedback::within(HOUR).heartbeat(Duration::from_secs(30));
    let taken = read(TaskType::Http, http(None).feedback(feedback).into());
    let want = json!({"deadline": 3_600, "heartbeat": 30});
    assert_eq!(json_of(&taken.spec)["feedback"], want);

    let to_host = || GrpcTask::to_host("shop", "orders", "a.example:50051", "s.v1.S", "M");
    let task = to_host()
        .message(vec![8, 1])
        .json(r#"{"order": 17}"#)
        .tls()
        .metadata("x-a", "1")
        .timeout(Duration::from_secs(2))
        .feedback(feedback)
        .request_id("r");
    let taken = read(TaskType::Grpc, (&task).into());
    assert_eq!(taken.value.as_deref(), Some(&br#"{"order": 17}"#[..]));
    assert_eq!(taken.request_id.as_deref(), Some("r"));
    let want = json!({
        "type": "grpc", "project": "shop", "group": "orders", "host": "a.example:50051", "tls": true,
        "service": "s.v1.S", "method": "M", "format": "json", "headers": [["x-a", "1"]], "timeout": 2,
        "feedback": {"deadline": 3_600, "heartbeat": 30},
    });
    assert_eq!(json_of(&taken.spec), want);
    let taken = read(TaskType::Grpc, to_host().json("{}").message(vec![8, 1]).into());
    assert_eq!(taken.value.as_deref(), Some(&[8, 1][..]));
    let polls = GrpcTask::to_named_service("shop", "orders", "billing", "s.v1.S", "M")
        .poll(Duration::from_secs(10), 6);
    let spec = json_of(&read(TaskType::Grpc, polls.into()).spec);
    assert_eq!((&spec["named_service"], &spec["poll"]["rounds"]), (&"billing".into(), &6.into()));
}

#[test]
fn a_call_hands_a_turn_over_as_a_record_does() {
    let all: [(&str, &[u8]); 6] = [
        ("content-type", b"text/plain"),
        ("Webhook-Id", b"9f2c"),
        ("waterclock-ticket", b"AAAB"),
        ("waterclock-attempt", b"2"),
        ("waterclock-cursor", b"row:7"),
        ("x-binary", b"\xff"),
    ];
    let handed = Handed::of_call(all).expect("it is of a task");
    assert_eq!((handed.task_id(), handed.attempt(), handed.cursor()), ("9f2c", 2, Some("row:7")));
    assert!(!format!("{handed:?}").contains("AAAB"));
    // Of gRPC, with padding and without.
    for cursor in ["cm93Ojc=", "cm93Ojc"] {
        let bin = all.map(|(name, value)| match name {
            "waterclock-cursor" => ("waterclock-cursor-bin", cursor.as_bytes()),
            _ => (name, value),
        });
        assert_eq!(Handed::of_call(bin).expect("it is of a task").cursor(), Some("row:7"));
    }
    assert_eq!(Handed::of_call(all).expect("it is of a task").shard(), None);
    let of_shard =
        |text: &'static [u8]| Handed::of_call(all.into_iter().chain([("waterclock-shard", text)]));
    let shard = of_shard(b"3/60").expect("a shard").shard().expect("a shard");
    assert_eq!((shard.index(), shard.count()), (3, 60));
    assert!(matches!(of_shard(b"60/60"), Err(Error::BadShard { got }) if got == "60/60"));
    assert_eq!(Handed::of_call(all).expect("it is of a task").nominal(), None);
    let of_time = |text: &'static [u8]| {
        Handed::of_call(all.into_iter().chain([("waterclock-nominal", text)]))
    };
    let nominal = of_time(b"1801353600000").expect("a time").nominal();
    assert_eq!(nominal, Some(UNIX_EPOCH + Duration::from_millis(1_801_353_600_000)));
    for wrong in ["", "today", "-1", "100000000000001"] {
        let read = of_time(wrong.as_bytes());
        assert!(matches!(&read, Err(Error::BadNominal { got }) if got == wrong), "{read:?}");
    }
    for missing in ["Webhook-Id", "waterclock-ticket"] {
        let rest = all.into_iter().filter(|(name, _)| *name != missing);
        let error = Handed::of_call(rest).expect_err("nobody waits for it");
        let name = missing.to_ascii_lowercase();
        assert!(matches!(error, Error::NotHanded { header } if header == name), "{error:?}");
    }
}

#[test]
fn a_create_with_a_request_id_is_repeated_and_one_without_is_not() {
    block_on(async {
        let instance = Instance::says(vec![passing("lane_moving"), None, created("a")]);
        let told = instance.tasks(LONG).create(http(Some("r"))).await.expect("created");
        assert_eq!((&*told.task_id, told.trigger_at), ("a", 7));
        let asked = instance.asked();
        assert_eq!(asked.len(), 3, "{asked:?}");
        assert!(asked.iter().all(|each| *each == asked[0]), "the same request");
        assert_eq!(asked[0].line, "POST /v1/tasks/http");

        for answer in [passing("lane_moving"), passing("kafka_away"), None] {
            let instance = Instance::says(vec![answer, created("a")]);
            let error = instance.tasks(LONG).create(http(None)).await.expect_err("nobody knows");
            assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
            assert_eq!(error.advice(), Advice::Look);
            assert_eq!(instance.asked().len(), 1, "once");
        }
        // These say that nothing was created.
        let full = Some((429, "retry-after: 0\r\n", json!({ "code": "over_create_rate" })));
        let instance = Instance::says(vec![full, passing("too_busy"), created("a")]);
        instance.tasks(LONG).create(http(None)).await.expect("created");
        assert_eq!(instance.asked().len(), 3);
    });
}

#[test]
fn an_error_says_what_to_do_and_when() {
    block_on(async {
        let wrong = json!({
            "code": "wrong_fields", "detail": "url is 7; want a URL; and 1 more, see errors",
            "errors": [{"at": "url", "detail": "is 7"}, {"at": "colour", "detail": "is not a field"}],
        });
        let full = Some((429, "retry-after: 17\r\n", json!({ "code": "over_pending" })));
        let cases = [
            (said(422, wrong), Advice::Correct),
            (said(403, json!({ "code": "role_denied", "detail": "no" })), Advice::Correct),
            (said(500, json!({ "code": "internal_error", "detail": "oh" })), Advice::Look),
            (said(201, json!({ "id": 7 })), Advice::Look),
            (full, Advice::Retry { after: Duration::from_secs(17) }),
        ];
        for (answer, want) in cases {
            let instance = Instance::says(vec![answer]);
            let began = Instant::now();
            let error = instance.tasks(Duration::from_secs(9)).create(http(Some("r"))).await;
            let error = error.expect_err("it was not created");
            assert_eq!(error.advice(), want, "{error}");
            assert!(began.elapsed() < Duration::from_secs(5), "it waits for nothing: {error}");
            assert_eq!(instance.asked().len(), 1);
            if let Error::Refused { fields, .. } = &error
                && fields.len() == 2
            {
                assert!(error.to_string().ends_with("; colour is not a field"), "{error}");
            }
        }
        let nobody = Tasks::new(TasksConfig { servers: Vec::new(), ..TasksConfig::new("") });
        assert!(matches!(nobody, Err(Error::Address { .. })), "{nobody:?}");
    });
}

#[test]
fn the_next_server_is_asked_after_one_that_does_not_answer_and_no_longer_than_the_bound() {
    block_on(async {
        let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("one");
        let there = Instance::says(vec![created("a")]);
        let config = |servers| TasksConfig { servers, within: LONG, ..TasksConfig::new("") };
        let servers = vec![format!("http://{closed}"), there.address.clone()];
        // Without a connection nothing was asked: this one may be asked without a request id, too.
        let tasks = Tasks::new(config(servers)).expect("a client");
        tasks.create(http(None)).await.expect("created");

        let tasks = Tasks::new(TasksConfig {
            within: Duration::from_millis(700),
            ..TasksConfig::new(format!("http://{closed}"))
        });
        let began = Instant::now();
        let error = tasks.expect("a client").create(http(None)).await.expect_err("nobody");
        assert!(matches!(error, Error::Busy { source: Some(_), .. }), "{error:?}");
        let took = began.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
    });
}

#[test]
fn each_of_a_batch_has_its_own_answer_and_only_what_passes_goes_again() {
    let answer = |number: usize, asked: &Asked| {
        let each = asked.body["tasks"].as_array().expect("tasks").iter();
        let each = each.map(|task| match (number, task["request_id"].as_str()) {
            (_, Some("wrong")) => {
                json!({ "status": 422, "problem": { "code": "wrong_fields", "detail": "no" } })
            }
            (_, Some("over")) => json!({
                "status": 429,
                "problem": { "code": "over_create_rate", "detail": "full", "retry_after": 1_000 },
            }),
            (0, Some("slow")) | (_, None) => {
                json!({ "status": 503, "problem": { "code": "lane_moving", "detail": "later" } })
            }
            (_, Some(id)) => json!({ "status": 201, "task_id": id, "trigger_at": 7 }),
        });
        said(200, json!({ "tasks": each.collect::<Vec<_>>() }))
    };
    block_on(async {
        let instance = Instance::start(answer);
        let ids = [Some("fine"), Some("slow"), Some("wrong"), None, Some("over")];
        let tasks: Vec<NewTask> = ids.iter().map(|id| http(*id).into()).collect();
        let told = instance.tasks(LONG).create_all(&tasks).await.expect("answered");
        let ids: Vec<_> = told.iter().flatten().map(|created| &*created.task_id).collect();
        assert_eq!(ids, ["fine", "slow"], "{told:?}");
        assert!(matches!(&told[2], Err(Error::Refused { status: 422, .. })), "{told:?}");
        assert!(matches!(&told[3], Err(Error::Unknown { .. })), "{told:?}");
        let Err(Error::Busy { retry_after, .. }) = &told[4] else { panic!("{told:?}") };
        assert_eq!(retry_after.as_secs(), 1_000);
        let asked = instance.asked();
        let sizes = asked.iter().map(|asked| asked.body["tasks"].as_array().map_or(0, Vec::len));
        assert_eq!(sizes.collect::<Vec<_>>(), [5, 1]);
        assert_eq!(asked[1].body["tasks"][0]["type"], "http");

        // As many and as large as an instance takes.
        let instance = Instance::start(answer);
        let many: Vec<NewTask> = (0..1_001).map(|n| http(Some(&format!("n{n}"))).into()).collect();
        let told = instance.tasks(LONG).create_all(&many).await.expect("answered");
        assert!(told.iter().enumerate().all(|(n, told)| {
            told.as_ref().is_ok_and(|created| created.task_id == format!("n{n}"))
        }));
        let large = (0..5).map(|n| http(Some(&format!("n{n}"))).body(vec![b'x'; 1 << 20]).into());
        let large: Vec<NewTask> = large.collect();
        instance.tasks(LONG).create_all(&large).await.expect("answered");
        let sizes = instance.asked().into_iter();
        let sizes = sizes.map(|asked| asked.body["tasks"].as_array().map_or(0, Vec::len));
        assert_eq!(sizes.collect::<Vec<_>>(), [1_000, 1, 3, 2]);
    });
}

fn task(id: &str, status: &str) -> Value {
    json!({
        "task_id": id, "task_type": "kafka", "task_status": status, "project": "shop", "group": "g", "trigger_at": 1,
        "created_at": 1, "turn": 1, "attempts_total": 0, "failures": 0, "rounds": 0, "interruptions": 0, "attempts": [],
        "feedback": {"deadline": 3600, "heartbeat": "2s400ms"}, "colour": "green",
    })
}

#[test]
fn tasks_are_looked_up_listed_cancelled_and_retried() {
    let answer = |_: usize, asked: &Asked| match &*asked.line {
        "GET /v1/tasks/a" => said(200, task("a", "running")),
        "GET /v1/tasks/none" => said(404, json!({ "code": "unknown_task", "detail": "none" })),
        "GET /v1/tasks?project=p+%26&status=delay&due_before=1000&limit=1000" => {
            said(200, json!({ "tasks": [task("a", "delay"), task("b", "paused")], "next": "x/y" }))
        }
        "GET /v1/tasks?project=p+%26&status=delay&due_before=1000&limit=1000&page=x%2Fy" => {
            said(200, json!({ "tasks": [task("c", "delay")], "next": null }))
        }
        "DELETE /v1/tasks/a?wait=60000ms" => {
            said(202, json!({ "task_id": "a", "outcome": "pending", "again": "/v1/tasks/a" }))
        }
        "POST /v1/tasks/a:retry" => passing("lane_moving"),
        other => panic!("{other}"),
    };
    block_on(async {
        let instance = Instance::start(answer);
        let tasks = instance.tasks(LONG);
        let found = tasks.get("a").await.expect("answered").expect("there");
        assert_eq!(
            (&found.task_status, &found.more["colour"]),
            (&TaskStatus::Running, &json!("green"))
        );
        let period = found.feedback.map(|feedback| feedback.period());
        assert_eq!(period, Some(PERIOD));
        assert_eq!(tasks.get("none").await.expect("answered"), None);
        let filter = TaskFilter {
            project: Some("p &".to_owned()),
            status: Some(TaskStatus::Delay),
            due_before: Some(UNIX_EPOCH + Duration::from_secs(1)),
            ..TaskFilter::default()
        };
        let listed = tasks.list(&filter).await.expect("answered");
        let listed: Vec<_> =
            listed.iter().map(|task| (&*task.task_id, task.task_status.as_str())).collect();
        assert_eq!(listed, [("a", "delay"), ("b", "paused"), ("c", "delay")]);
        let outcome = tasks.cancel("a", HOUR).await.expect("answered");
        assert_eq!(outcome, CancelOutcome::Pending);
        // Each would be a further attempt.
        let retried = tasks.retry("a").await;
        assert!(matches!(retried, Err(Error::Unknown { .. })), "{retried:?}");
        let retries = instance.lines().iter().filter(|line| line.ends_with(":retry")).count();
        assert_eq!(retries, 1);
    });
}

fn headers<'a>(of: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> {
    of.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())))
}

const RECORD: [(&str, &str); 4] = [
    ("x-delay-id", "a"),
    ("x-delay-ticket", "secret"),
    ("x-delay-attempt", "2"),
    ("x-delay-cursor", "row:7"),
];

fn handed() -> Handed {
    Handed::of(headers(&RECORD)).expect("it is of a task")
}

#[test]
fn a_record_says_what_was_handed_over_and_nobody_shows_the_ticket() {
    let of = handed();
    assert_eq!((of.task_id(), of.attempt(), of.cursor()), ("a", 2, Some("row:7")));
    assert!(!format!("{of:?}").contains("secret"), "{of:?}");
    for missing in ["x-delay-id", "x-delay-ticket"] {
        let rest: Vec<_> = RECORD.into_iter().filter(|(name, _)| *name != missing).collect();
        let error = Handed::of(headers(&rest)).expect_err("nobody waits for it");
        assert!(matches!(error, Error::NotHanded { header } if header == missing), "{error:?}");
    }
}

/// An instance with a task of a short period, whose heartbeats are answered by this.
fn executing(beat: impl Fn(usize) -> Said + Send + 'static) -> Instance {
    let beats = AtomicUsize::new(0);
    Instance::start(move |_, asked| {
        if asked.is("/heartbeat") {
            return beat(beats.fetch_add(1, Ordering::Relaxed));
        }
        if asked.is("/result") {
            return said(200, json!({ "outcome": "finished" }));
        }
        said(200, task("a", "running"))
    })
}

fn beats(instance: &Instance) -> Vec<Value> {
    let asked = instance.asked().into_iter().filter(|asked| asked.is("/heartbeat"));
    asked.map(|asked| asked.body).collect()
}

fn alive() -> Said {
    said(200, json!({ "next_at": 9 }))
}

/// The period of [`task`].
const PERIOD: Duration = Duration::from_millis(2_400);

#[test]
fn a_turn_sends_heartbeats_until_it_is_reported_and_each_says_how_far_it_is() {
    block_on(async {
        let instance = executing(|_| alive());
        let turn = instance.tasks(LONG).begin(handed()).await.expect("begun");
        assert_eq!(beats(&instance), [json!({ "ticket": "secret", "cursor": "row:7" })]);
        turn.progress("row:9", Some(40)).expect("sound");
        assert!(turn.progress("a\nb", None).is_err() && turn.progress("c", Some(101)).is_err());
        let began = Instant::now();
        let work = async {
            while beats(&instance).len() < 4 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        turn.unless_over(work).await.expect("it is ours all the while");
        // The first of the four was sent before, and the last one a moment ago.
        let took = began.elapsed();
        assert!(took >= PERIOD - PERIOD / 10, "a third of a period between two: {took:?}");
        let sent = beats(&instance);
        let want = json!({ "ticket": "secret", "cursor": "row:9", "percent": 40 });
        assert_eq!(sent[1], want);
        assert_eq!(turn.finished().await.expect("answered"), Reported::Finished);
        let told = instance.asked().pop().expect("a result");
        assert_eq!(told.line, "POST /v1/tasks/a/result");
        assert_eq!(
            told.body,
            json!({ "ticket": "secret", "outcome": "finished", "cursor": "row:9", "percent": 40 })
        );
        let count = instance.asked().len();
        tokio::time::sleep(PERIOD).await;
        assert_eq!(instance.asked().len(), count, "none follows a result");
        assert_eq!(turn.is_over(), None);
    });
}

#[test]
fn a_failure_says_how_far_it_came() {
    block_on(async {
        let instance = executing(|_| alive());
        let turn = instance.tasks(LONG).begin(handed()).await.expect("begun");
        turn.progress("row:8", None).expect("sound");
        turn.failed("no stock", None).await.expect("answered");
        let asked = instance.asked().split_off(2);
        let lines: Vec<_> = asked.iter().map(|asked| &*asked.line).collect();
        assert_eq!(lines, ["POST /v1/tasks/a/result"]);
        assert_eq!(asked[0].body["cursor"], "row:8");
    });
}

#[test]
fn a_turn_that_is_dropped_sends_nothing_more() {
    block_on(async {
        let instance = executing(|_| alive());
        drop(instance.tasks(LONG).begin(handed()).await.expect("begun"));
        let count = instance.asked().len();
        tokio::time::sleep(PERIOD).await;
        assert_eq!(instance.asked().len(), count);
    });
}

#[test]
fn the_work_of_a_stale_turn_is_dropped() {
    let stale = || said(409, json!({ "code": "stale", "detail": "another turn has begun" }));
    block_on(async {
        let instance = executing(move |number| if number < 2 { alive() } else { stale() });
        let turn = instance.tasks(LONG).begin(handed()).await.expect("begun");
        let began = Instant::now();
        let over = turn.unless_over(std::future::pending::<()>()).await.expect_err("it is over");
        assert!(began.elapsed() < 5 * PERIOD, "{:?}", began.elapsed());
        assert_eq!(over, Over::Stale { detail: "another turn has begun".to_owned() });
        assert_eq!(turn.is_over(), Some(over));
        tokio::time::sleep(PERIOD).await;
        assert_eq!(beats(&instance).len(), 3, "and none follows");

        // It may be so at once: there is nothing to do.
        let instance = executing(move |_| stale());
        let error = instance.tasks(LONG).begin(handed()).await.expect_err("over");
        assert_eq!(error.advice(), Advice::Stop, "{error:?}");
    });
}

#[test]
fn a_turn_of_which_nobody_hears_is_over_after_a_period_and_one_answer_is_enough() {
    block_on(async {
        // Every other one is lost.
        let instance = executing(|number| if number % 2 == 0 { alive() } else { None });
        let turn = instance.tasks(LONG).begin(handed()).await.expect("begun");
        tokio::time::sleep(2 * PERIOD).await;
        assert_eq!(turn.is_over(), None, "{:?}", beats(&instance));

        let instance =
            executing(|number| if number == 0 { alive() } else { passing("kafka_away") });
        let began = Instant::now();
        let turn = instance.tasks(LONG).begin(handed()).await.expect("begun");
        let over = turn.over().await;
        let took = began.elapsed();
        assert!(matches!(&over, Over::Unheard { period: PERIOD, .. }), "{over:?}");
        assert!(over.to_string().contains("kafka_away"), "{over}");
        let slow = Duration::from_secs(5);
        assert!((PERIOD..PERIOD + slow).contains(&took), "{took:?}");
        // What it has done counts all the same.
        assert_eq!(turn.finished().await.expect("answered"), Reported::Finished);
    });
}

#[test]
fn a_report_is_one_line_and_is_sent_until_it_is_answered() {
    let answer = |number: usize, _: &Asked| match number {
        0 => passing("lane_moving"),
        1 => None,
        2 => Some((409, "retry-after: 0\r\n", json!({ "code": "attempt_open", "detail": "open" }))),
        _ => said(200, json!({ "outcome": "retrying" })),
    };
    block_on(async {
        let instance = Instance::start(answer);
        let config =
            TasksConfig { worker: Some("w".to_owned()), ..TasksConfig::new(&*instance.address) };
        let tasks = Tasks::new(config).expect("a client");
        let report = Report::failed(&format!("a\nb{}", "ü".repeat(200))).retry_after(HOUR);
        let told = tasks.report(&handed(), &report).await.expect("answered");
        assert_eq!(told, Reported::Retrying);
        let asked = instance.asked();
        assert_eq!(asked.len(), 4);
        let body = &asked[3].body;
        assert_eq!(body["retry_after"], "3600000ms");
        assert_eq!(body["error"], format!("a b{}", "ü".repeat(98)));
        let read = waterclock_engine::task::report::read_result(body.to_string().as_bytes(), 4_096);
        assert_eq!(read.expect("as an instance reads it").result.worker.as_deref(), Some("w"));
        let at_work = Report::at_work().progress("row:1", Some(1)).expect("sound");
        let body = at_work.heartbeat(&handed(), Some("w")).to_string();
        waterclock_engine::task::report::read_heartbeat(body.as_bytes(), 4_096).expect("taken");
    });
}
