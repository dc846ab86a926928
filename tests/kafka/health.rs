//! `waterclock health`, as an image or a unit calls it.

use std::time::{Duration, Instant};

use crate::support::{Fixture, Mode, Process, eventually, eventually_within, patient, waterclock};

/// Exit code, what it says, and its error.
fn health(arguments: &[&str], http: Option<&str>) -> (Option<i32>, String, String) {
    let mut command = waterclock();
    command.arg("health").args(arguments);
    // A proxy of the environment is not asked for what runs on this machine.
    command.env("http_proxy", "http://127.0.0.1:1");
    for name in ["no_proxy", "NO_PROXY"] {
        command.env_remove(name);
    }
    if let Some(http) = http {
        command.env("WATERCLOCK_HTTP", http);
    }
    let told = command.output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (told.status.code(), text(&told.stdout), text(&told.stderr))
}

fn address(process: &Process) -> String {
    eventually("it serves", || process.address())
}

#[test]
fn who_starts_an_instance_is_told_how_it_is() {
    let fixture = Fixture::new("health");
    let mut process = fixture.start(Mode::ExactlyOnce);
    let http = address(&process);
    let server = format!("http://{http}");
    let (code, said, _) = health(&["--server", &server], None);
    assert_eq!((code, said.lines().next()), (Some(0), Some("ready")), "{said}");
    let (code, said, _) = health(&["--json"], Some(&http));
    assert!(code == Some(0) && said.starts_with(r#"{"ok":true,"#), "{code:?} {said}");
    let port = http.rsplit_once(':').expect("a port").1;
    let (code, said, error) =
        health(&["--live", "--server", &format!("http://localhost:{port}")], None);
    assert_eq!((code, said.lines().next()), (Some(0), Some("live")), "{said} {error}");

    process.freeze();
    let since = Instant::now();
    let (code, _, error) = health(&[], Some(&http));
    assert_eq!(code, Some(69), "nobody answers: {error}");
    assert!(
        since.elapsed() < patient(Duration::from_secs(10)),
        "it gives up: {:?}",
        since.elapsed()
    );
    process.thaw();
    process.stop_well();
    let (code, _, error) = health(&[], Some(&http));
    assert!(code == Some(69) && error.contains(&http), "{code:?} {error}");
    let (code, _, error) = health(&[], None);
    assert!(code == Some(2) && error.contains("--server"), "no address: {code:?} {error}");
}

#[test]
fn an_instance_that_waits_for_kafka_lives_and_is_not_ready() {
    let fixture = Fixture::new("health-away");
    // Nobody listens there.
    let process = fixture.launch(Mode::ExactlyOnce).brokers("127.0.0.1:1").spawn();
    let http = address(&process);
    let (code, said, _) = health(&[], Some(&http));
    assert!(
        code == Some(1) && said.starts_with("not ready\n"),
        "with its reasons: {code:?} {said}"
    );
    let (code, said, _) = health(&["--live"], Some(&http));
    assert_eq!((code, said.lines().next()), (Some(0), Some("live")), "{said}");
}

/// Clients of librdkafka in a process with one lane thread on one broker: the lane consumer, two producers that take turns,
/// the producer of commands, producer and reader of meta, the index's reader, and the client for questions; the consumer of
/// the worker, and two producers that take turns.
const CLIENTS: usize = 11;
/// Its threads at rest, those of all libraries among them. Each client has a thread of its own and one for each connection.
/// For a moment now and then there is one more, which asks the brokers something (`wc-upkeep`).
const THREADS: usize = 61;

#[test]
fn a_process_at_rest_has_few_clients_and_few_threads() {
    let fixture = Fixture::new("few");
    let process = fixture.start(Mode::ExactlyOnce);
    eventually("it is ready", || match process.get("/health/ready") {
        Ok((200, _)) => Ok(()),
        told => Err(format!("{told:?}")),
    });
    let tasks = format!("/proc/{}/task", process.pid());
    let names = || -> Vec<String> {
        let tasks = std::fs::read_dir(&tasks).expect("it runs").filter_map(Result::ok);
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
        let mut names: Vec<String> =
            tasks.filter_map(|task| name(task).ok()).map(|name| name.trim().to_owned()).collect();
        names.sort();
        names
    };
    // What a start needs has gone within a minute.
    eventually_within(patient(Duration::from_secs(60)), "it rests", || {
        let names = names();
        let clients = names.iter().filter(|name| *name == "rdk:main").count();
        let is_few = (1..=CLIENTS).contains(&clients) && names.len() <= THREADS;
        if is_few { Ok(()) } else { Err(format!("{clients} clients, {}: {names:?}", names.len())) }
    });
    let polling = names().into_iter().find(|name| name.starts_with("producer pollin"));
    assert_eq!(polling, None, "a thread of rdkafka's spins through the clock");
}
