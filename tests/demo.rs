//! The demo on its embedded broker, as a shell sees it.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waterclock"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("WATERCLOCK_") {
            command.env_remove(name);
        }
    }
    command.arg("demo").args(arguments).stdin(Stdio::null());
    command
}

#[test]
fn the_demo_delivers_all_it_sent_once_and_never_early_and_nothing_that_it_cancelled() {
    let output = demo(&["--seconds", "6", "--plain", "--json"]).output().expect("the binary runs");
    let told = String::from_utf8_lossy(&output.stderr);
    let summary: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("no summary: {error}\n{told}"));
    let count = |name: &str| summary[name].as_u64().unwrap_or_else(|| panic!("{name}: {summary}"));
    assert!(count("delivered") > 100, "{summary}");
    assert!(count("bad") > 0, "{summary}");
    assert_eq!(count("dead_letters"), count("bad"), "{summary}");
    assert!(count("cancelled") > 0, "{summary}");
    let kept_back = count("bad") + count("cancelled");
    assert_eq!(count("delivered"), count("sent") - kept_back, "{summary}");
    for nothing in ["escaped", "early", "duplicates", "wrong", "unsent", "pending"] {
        assert_eq!(count(nothing), 0, "{nothing}: {summary}");
    }
    assert_eq!(summary["delivery"], "at_least_once");
    assert!(told.contains("stand-in"), "{told}");
    assert!(told.lines().filter(|line| line.contains(" s  sent ")).count() >= 5, "{told}");
    assert_eq!(output.status.code(), Some(0), "{summary}");
}

#[test]
fn an_interrupt_ends_the_demo_with_its_summary() {
    let started = Instant::now();
    let demo = demo(&["--seconds", "600", "--plain", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    // Long enough to be writing on most machines; before that it ends without a summary, which is right, too.
    std::thread::sleep(Duration::from_secs(7));
    let kill = Command::new("kill").args(["-INT", &demo.id().to_string()]).status();
    assert!(kill.expect("kill runs").success());
    let output = demo.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(started.elapsed() < Duration::from_secs(60), "{told}");
    match serde_json::from_slice::<Value>(&output.stdout) {
        Ok(summary) => assert_eq!(summary["interrupted"], true, "{summary}"),
        Err(_) => assert!(told.contains("interrupted before the first record"), "{told}"),
    }
}

#[test]
fn two_brokers_at_once_are_refused() {
    let output = demo(&["--kafka", "--brokers", "127.0.0.1:1"]).output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
}
