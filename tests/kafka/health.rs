//! `waterclock health`, as an image or a unit calls it.

use std::time::{Duration, Instant};

use crate::support::{Fixture, Mode, Process, eventually, patient, waterclock};

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
