//! The demo on its embedded broker, as a shell sees it.
#![allow(unreachable_pub, reason = "a test target has no outside")]

#[allow(dead_code, reason = "the tests on a real Kafka use another part of it")]
#[path = "support/binary.rs"]
mod binary;
#[path = "support/terminal.rs"]
mod terminal;

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use binary::{patience, waterclock};
use terminal::{ignores_hangup, on_a_terminal, read_until};

fn demo(arguments: &[&str]) -> Command {
    let mut command = waterclock();
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
    assert!(summary["callbacks"].is_null(), "the stand-in has no workers: {summary}");
    assert!(told.contains("stand-in"), "{told}");
    assert!(told.lines().filter(|line| line.contains(" s  sent ")).count() >= 5, "{told}");
    assert_eq!(output.status.code(), Some(0), "{summary}");
}

/// Runs a long demo, interrupts it by this signal once it has told a line that `is_time` wants, and gives what it told, and its output.
fn interrupted(by: Signal, is_time: impl Fn(&str) -> bool) -> (String, Output) {
    let mut demo = demo(&["--seconds", "600", "--plain", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut told = String::new();
    let mut lines = BufReader::new(demo.stderr.take().expect("piped")).lines();
    while let Some(Ok(line)) = lines.next() {
        let is_time = is_time(&line);
        told += &(line + "\n");
        if is_time {
            break;
        }
    }
    rustix::process::kill_process(Pid::from_child(&demo), by).expect("it runs");
    let asked = Instant::now();
    told.extend(lines.map_while(Result::ok).map(|line| line + "\n"));
    let output = demo.wait_with_output().expect("it ends");
    assert!(asked.elapsed() < Duration::from_secs(60) * patience(), "{told}");
    assert_eq!(output.status.code(), Some(0), "{told}");
    (told, output)
}

#[test]
fn the_demo_ends_when_its_terminal_is_gone() {
    let mut command = demo(&["--seconds", "600"]);
    let mut window = on_a_terminal(command.env("TERM", "xterm"));
    let mut demo = command.spawn().expect("the binary runs");
    drop(command);
    read_until(&mut window, "delivered");
    drop(window);
    let gone = Instant::now();
    let ended = loop {
        if let Some(ended) = demo.try_wait().expect("its end") {
            break ended;
        }
        assert!(gone.elapsed() < Duration::from_secs(60) * patience(), "it goes on");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(ended.code(), Some(0), "{ended}");
}

/// The records that a line of progress says were sent.
fn sent(line: &str) -> Option<u64> {
    line.split_once(" s  sent ")?.1.split_whitespace().next()?.parse().ok()
}

#[test]
fn an_interrupt_ends_the_demo_with_its_summary() {
    // A terminal that is closed sends SIGHUP.
    let hangup = (!ignores_hangup()).then_some(Signal::HUP);
    for signal in [Signal::INT].into_iter().chain(hangup) {
        let (told, output) = interrupted(signal, |line| sent(line).is_some_and(|sent| sent > 0));
        let summary: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("no summary: {error}\n{told}"));
        assert_eq!(summary["interrupted"], true, "{summary}");
        assert!(summary["sent"].as_u64() > Some(0), "{summary}");
    }
}

#[test]
fn an_interrupt_before_the_first_record_ends_the_demo_and_says_so() {
    let (told, output) = interrupted(Signal::INT, |line| line.contains("starting a broker"));
    assert!(told.contains("interrupted before the first record"), "{told}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_summary_says_that_callbacks_need_a_real_kafka() {
    let output = demo(&["--seconds", "2", "--plain"]).output().expect("the binary runs");
    let summary = String::from_utf8_lossy(&output.stdout);
    assert!(
        summary.contains("\n  callbacks     none: they need a real Kafka (--kafka or --brokers)"),
        "{summary}"
    );
}

#[test]
fn two_brokers_at_once_are_refused() {
    let output = demo(&["--kafka", "--brokers", "127.0.0.1:1"]).output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
}
