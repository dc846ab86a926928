//! `waterclock send --id` and `cancel`, and the index of what was cancelled, on a real Kafka.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Fixture, Log, Mode, Process, Rec, eventually, out, whole};

/// A command's standard output, once it went well.
#[track_caller]
fn waterclock(fixture: &Fixture, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waterclock"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("WATERCLOCK_") {
            command.env_remove(name);
        }
    }
    command.args(["--brokers", &fixture.connection.brokers, "--namespace", fixture.namespace()]);
    let output = command.args(arguments).output().expect("the binary runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {told}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn what_send_named_cancel_keeps_back_and_nothing_else() {
    let fixture = Fixture::new("cancel-cli");
    let target = fixture.target("out", 3);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let send = |value: &str, more: &[&str]| {
        let to = ["send", "--target", &target, "--in", "8s"];
        waterclock(&fixture, &[&to, more, &[value]].concat());
    };
    send("of a key", &["--key", "k", "--id", "i"]);
    send("of another key", &["--key", "l", "--id", "i"]);
    send("of another id", &["--key", "k", "--id", "j"]);
    send("without a key", &["--id", "i"]);
    send("told as JSON", &["--key", "m", "--id", "i"]);
    assert_eq!(waterclock(&fixture, &["cancel", "i", "--key", "k"]), "cancelled\n");
    assert_eq!(waterclock(&fixture, &["cancel", "i"]), "cancelled\n");
    let told = waterclock(&fixture, &["cancel", "i", "--key", "m", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(told, serde_json::json!({ "id": "i", "key": "m", "outcome": "cancelled" }));
    Log::open(&fixture, &target).count(2);
    eventually("all that were cancelled are met", || {
        let met = process.metric("waterclock_cancelled_total");
        if met >= 3.0 { Ok(()) } else { Err(format!("{met}")) }
    });
    process.stop_well();
    let seen: BTreeSet<String> = whole(&fixture, &target).iter().map(Rec::text).collect();
    assert_eq!(seen, BTreeSet::from(["of another key".to_owned(), "of another id".to_owned()]));
}

const CANCELLED: u64 = 200;

/// What it read of the changelog when it took its lanes over: entries of the index, records of the changelog.
#[track_caller]
fn took_over(process: &Process) -> (u64, u64) {
    let what = "read what is pending";
    eventually("its lanes are known", || {
        let log = process.log();
        if log.contains(what) { Ok(()) } else { Err(log) }
    });
    let log = process.log();
    let count = |line: &str, name: &str| -> u64 {
        let rest = line.split_once(&format!(" {name}=")).expect("logged").1;
        rest.split_whitespace().next().expect("a value").parse().expect("a number")
    };
    let read = log.lines().filter(|line| line.contains(what));
    read.fold((0, 0), |(indexed, records), line| {
        (indexed + count(line, "indexed"), records + count(line, "records"))
    })
}

/// Waits until the index has all that was cancelled.
#[track_caller]
fn indexed(process: &Process) {
    eventually("the index has followed", || {
        let entries = process.metric("waterclock_index_entries");
        if entries >= CANCELLED as f64 { Ok(()) } else { Err(format!("{entries} entries")) }
    });
}

fn files(below: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(below).expect("there") {
        let path = entry.expect("readable").path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// The directory of the index, wherever it is below the data directory.
fn index_of(fixture: &Fixture) -> PathBuf {
    let all = files(&fixture.path("a"));
    let inside = all.iter().find(|path| path.parent().is_some_and(|at| at.ends_with("index")));
    inside.and_then(|path| path.parent()).expect("an index").to_owned()
}

/// One byte in the middle is another.
fn flip(mut bytes: Vec<u8>) -> Vec<u8> {
    let middle = bytes.len() / 2;
    bytes.iter_mut().skip(middle).take(1).for_each(|byte| *byte ^= 0x55);
    bytes
}

/// The second half is gone.
fn cut(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len() / 2);
    bytes
}

#[test]
fn a_restart_reads_the_index_and_without_one_or_with_a_broken_one_the_changelog() {
    let fixture = Fixture::new("index");
    let target = fixture.target("out", 3);
    let mut first = fixture.start(Mode::ExactlyOnce);
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    for n in 0..CANCELLED + 20 {
        let record = out(n.to_string()).key(n.to_string()).header("x-delay-id", "i");
        producer.send(&intake, &record.delay("30s").to(&target));
    }
    for n in 0..CANCELLED {
        let cancel = out("").key(n.to_string()).header("x-delay-id", "i");
        producer.send(&intake, &cancel.header("x-delay-action", "cancel"));
    }
    producer.acks();
    indexed(&first);
    first.stop_well();

    let mut warm = fixture.start(Mode::ExactlyOnce);
    let (known, read) = took_over(&warm);
    assert!(known >= CANCELLED && read < CANCELLED / 10, "{known} known, {read} read");
    indexed(&warm);
    warm.stop_well();

    fs::remove_dir_all(index_of(&fixture)).expect("removed");
    let mut cold = fixture.start(Mode::ExactlyOnce);
    let (known, read) = took_over(&cold);
    assert!(known == 0 && read >= CANCELLED, "{known} known, {read} read");
    assert_eq!(cold.metric("waterclock_index_rebuilds_total"), 0.0);
    indexed(&cold);
    cold.stop_well();

    for damage in [flip, cut] {
        for file in files(&index_of(&fixture)) {
            let bytes = fs::read(&file).expect("readable");
            fs::write(&file, damage(bytes)).expect("written");
        }
        let mut broken = fixture.start(Mode::ExactlyOnce);
        let (known, read) = took_over(&broken);
        assert!(known == 0 && read >= CANCELLED, "{known} known, {read} read");
        assert!(broken.metric("waterclock_index_rebuilds_total") >= 1.0);
        indexed(&broken);
        broken.stop_well();
    }

    let mut last = fixture.start(Mode::ExactlyOnce);
    Log::open(&fixture, &target).count(20);
    fixture.wait_until_nothing_is_pending();
    last.stop_well();
    let seen: BTreeSet<String> = whole(&fixture, &target).iter().map(Rec::text).collect();
    assert_eq!(seen, (CANCELLED..CANCELLED + 20).map(|n| n.to_string()).collect());
}
