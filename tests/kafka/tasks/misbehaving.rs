//! Services that misbehave, and addresses that may not be called.

use std::net::TcpListener;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Api, fixture, launch, launch_for, task, turns, with};
use crate::support::{Endpoint, Fixture, Log, patient};

/// A call that a service has asked for is so late at most.
pub(super) const LATE: Duration = Duration::from_secs(5);

/// How a task ends.
struct End {
    /// Its own project, so that no breaker of another one keeps it waiting.
    project: &'static str,
    task: Value,
    status: &'static str,
    /// Of its last attempt: the status of the answer, and the word that its error begins with.
    last: (Option<u16>, Option<&'static str>),
    attempts: u64,
}

#[test]
fn a_task_of_a_service_that_misbehaves_ends_as_the_page_about_callbacks_says() {
    let fixture = fixture("tasks-misbehaving");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    // A port on which nobody listens any more.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let distrusted = Endpoint::distrusted();

    let once = json!({"retry": {"count": 1, "interval": 1}});
    let quick = json!({"retry": {"count": 1, "interval": 1}, "timeout": "1s"});
    let thrice = json!({"retry": {"count": 3, "interval": 1}});
    let at = |url: String| json!({"group": "g", "delay": 0, "url": url});
    let to = |target: &str| at(stub.url(target));
    let end = |project, task, status, last, attempts| End { project, task, status, last, attempts };
    #[rustfmt::skip]
    let ends = [
        end("fine",       to("/ok"),                                   "finished", (Some(200), None), 1),
        end("expected",   with(to("/status?is=404"), json!({"expect": "404"})), "finished", (Some(404), None), 1),
        end("fails",      with(to("/fail?n=9"), once.clone()),         "failed",   (Some(500), Some("unexpected_status")), 2),
        end("wrong",      with(to("/status?is=404"), once.clone()),    "failed",   (Some(404), Some("unexpected_status")), 2),
        end("no-poll",    with(to("/status?is=425"), json!({})),       "failed",   (Some(425), Some("unexpected_status")), 1),
        end("later",      with(to("/later?n=1&after=2"), once.clone()), "finished", (Some(200), None), 2),
        end("gone",       with(to("/410"), thrice.clone()),            "failed",   (Some(410), Some("gone")), 1),
        end("redirected", with(to("/redirect"), once.clone()),         "failed",   (Some(302), Some("unexpected_status")), 2),
        end("hangs",      with(to("/hang"), quick.clone()),            "failed",   (None, Some("timeout")), 2),
        end("drips",      with(to("/drip"), quick.clone()),            "failed",   (Some(200), Some("timeout")), 2),
        end("slow",       with(to("/slow?ms=3000"), quick.clone()),    "failed",   (None, Some("timeout")), 2),
        end("reset",      with(to("/reset"), once.clone()),            "failed",   (None, Some("call_broken")), 2),
        end("big",        with(to("/big"), once.clone()),              "failed",   (Some(200), Some("answer_too_large")), 2),
        end("distrusted", with(at(format!("https://{distrusted}/")), once.clone()), "failed", (None, Some("connection_failed")), 2),
        end("silent",     with(at(format!("http://{silent}/")), once.clone()), "failed", (None, Some("no_connection")), 2),
        end("polls",      with(to("/notyet?n=9"), json!({"poll": {"interval": "1s", "rounds": 2}})), "failed", (Some(202), Some("not_ready")), 1),
    ];
    let create = |end: &End| api.create(&with(end.task.clone(), json!({"project": end.project})));
    let ids: Vec<String> = ends.iter().map(create).collect();
    for (end, id) in ends.iter().zip(&ids) {
        let told = api.end_of(id);
        assert_eq!(told["task_status"], end.status, "{}: {told}", end.project);
        assert_eq!(told["attempts_total"], end.attempts, "{}: {told}", end.project);
        let last = told["attempts"].as_array().and_then(|all| all.last()).expect("an attempt");
        assert_eq!(last["status"], json!(end.last.0), "{}: {told}", end.project);
        let error = last["error"].as_str();
        let word = error.and_then(|error| error.split(':').next());
        assert_eq!(word, end.last.1, "{}: {told}", end.project);
        assert!(last["worker"].is_string() && last["started"].is_u64(), "{told}");
    }

    let id_of =
        |project: &str| &ids[ends.iter().position(|end| end.project == project).expect("there")];
    let calls = stub.calls_of(id_of("later"));
    assert_eq!(turns(&calls), [1, 2]);
    let gap = calls[1].began - calls[0].ended.expect("it has ended");
    let most = 2_000 + patient(LATE).as_millis() as u64;
    assert!((2_000..most).contains(&gap), "Retry-After is kept: {gap} ms");
    assert_eq!(turns(&stub.calls_of(id_of("polls"))), [1, 2], "two rounds");
    assert_eq!(stub.calls_of(id_of("redirected")).len(), 2, "no redirect is followed");
    // Of each answer 64 KiB, and what the connection holds.
    assert!(stub.sent() < 64 << 20, "{} bytes of 2 GiB were taken", stub.sent());
    // Whoever failed is a dead letter, once.
    let failed = ends.iter().filter(|end| end.status == "failed").count();
    let mut dead = Log::open(&fixture, &fixture.names.dead());
    let letters = dead.count(failed);
    let codes: Vec<_> = letters.iter().map(|rec| rec.header("x-delay-error-code")).collect();
    assert!(codes.iter().all(|code| code.as_deref() == Some("task_failed")), "{codes:?}");
    assert_eq!(codes.len(), failed);
    process.stop_well();
}

/// Tasks that are due at one moment for a service that is busy.
const BURST: usize = 20;

#[test]
fn a_burst_that_is_answered_429_comes_again_when_the_service_has_said_and_costs_one_attempt_each() {
    // One partition, so that all are behind one breaker, which so many in a row open.
    let fixture = Fixture::with("tasks-busy", |request| request.lanes = Some(1));
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    // Of one more attempt nothing would be left.
    let retry = json!({"retry": {"count": 1, "interval": 1}});
    let one = with(task("shop", &stub, "/later?n=1&after=2", "1s"), retry);
    let ids = api.create_all(vec![one; BURST]);
    let ended = api.wait_for(Duration::from_secs(30), "shop", "finished", BURST);
    for task in &ended {
        let told = ["attempts_total", "failures"].map(|of| task[of].clone());
        assert_eq!(told, [json!(2), json!(1)], "the 429 is an attempt, and nothing else: {task}");
    }
    let mut waited = Vec::new();
    for id in &ids {
        let calls = stub.calls_of(id);
        assert_eq!(calls.len(), 2, "{calls:?}");
        waited.push(calls[1].began - calls[0].ended.expect("it has ended"));
    }
    waited.sort_unstable();
    let turns = ended.iter().filter(|task| task["turn"] != 2).count();
    println!("called again after {waited:?} ms; the breaker sent {turns} back");
    assert!(waited[0] >= 2_000, "Retry-After is kept: {waited:?}");
    process.stop_well();
}

/// Hosts that are not public, in every way to write them; a worker that may call 127.0.0.2 alone may call none of them.
pub(super) const NOT_PUBLIC: [&str; 12] = [
    "169.254.169.254",
    "127.0.0.1",
    "2130706433",
    "0x7f.1",
    "0.0.0.0",
    "10.0.0.1",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:127.0.0.2]",
    "[64:ff9b::7f00:1]",
    "localhost",
    "LOCALHOST",
];

#[test]
fn addresses_that_are_not_public_are_never_connected_to() {
    let fixture = fixture("tasks-denied");
    // So 127.0.0.1 stands for what a worker can reach and must not.
    let mut process = launch_for(&fixture, "a", "lanes,worker,api", "127.0.0.2/32").start();
    let api = Api::of(&process);
    let (inside, may) = (Endpoint::start(), Endpoint::on("127.0.0.2"));
    let port = inside.address.port();
    let urls = NOT_PUBLIC.map(|host| format!("http://{host}:{port}/ok")).into_iter();
    let urls = urls.chain(["http://169.254.169.254/latest/meta-data/".to_owned()]);
    let mut created = Vec::new();
    for url in urls {
        let asked = json!({"project": "denied", "group": "g", "delay": 0, "url": url});
        match api.answered("POST", "/v1/tasks/http", Some(&asked)) {
            (201, told) => created.push((url, told["task_id"].as_str().expect("an id").to_owned())),
            (status, told) => {
                assert_eq!(
                    (status, &told["errors"][0]["at"]),
                    (422, &json!("url")),
                    "{url}: {told}"
                );
            }
        }
    }
    println!("found out at the call: {created:?}");
    assert!(created.iter().any(|(url, _)| url.contains("localhost")), "a name is looked up later");
    // A service may be put there or not; it is not called.
    let address = format!("http://localhost:{port}");
    let service = json!({ "address": address });
    let (status, told) = api.answered("PUT", "/v1/projects/denied/services/s", Some(&service));
    assert_eq!(status, 200, "{told}");
    let of_service =
        json!({"project": "denied", "group": "g", "delay": "3s", "service": "s", "path": "/ok"});
    created.push((address, api.create(&of_service)));
    for (url, id) in &created {
        let told = api.end_of(id);
        assert_eq!(told["task_status"], "failed", "{url}: {told}");
        let error = told["attempts"][0]["error"].as_str().unwrap_or_default();
        assert!(error.starts_with("address_denied: "), "{url}: {told}");
    }
    let fine = api.create(&task("fine", &may, "/ok", "0s"));
    assert_eq!(api.end_of(&fine)["task_status"], "finished");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!((inside.connections(), may.begun()), (0, 1), "{:?}", inside.calls());
    process.stop_well();
}
