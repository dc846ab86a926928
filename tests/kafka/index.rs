//! `waterclock send --id` and `cancel`, and the index of what was cancelled, on a real Kafka.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use waterclock::engine::UnixMillis;
use waterclock::engine::timers::Change;
use waterclock::index::Index;

use crate::support::{self, Fixture, Log, Mode, Process, Rec, eventually, out, whole};

/// The program with these arguments, on the Kafka and the namespace of a fixture.
fn command(fixture: &Fixture, arguments: &[&str]) -> Command {
    let mut command = support::waterclock();
    command.args(["--brokers", &fixture.connection.brokers, "--namespace", fixture.namespace()]);
    command.args(arguments);
    command
}

/// A command's standard output, once it went well.
#[track_caller]
fn waterclock(fixture: &Fixture, arguments: &[&str]) -> String {
    let output = command(fixture, arguments).output().expect("the binary runs");
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
    assert_eq!(
        waterclock(&fixture, &["cancel", "i", "--key", "k", "--wait", "20s"]),
        "cancelled\n"
    );
    assert_eq!(waterclock(&fixture, &["cancel", "i", "--wait", "20s"]), "cancelled\n");
    let told = waterclock(&fixture, &["cancel", "i", "--key", "m", "--wait", "20s", "--json"]);
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

#[test]
fn a_restart_reads_the_index_and_without_one_the_changelog() {
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

    let mut last = fixture.start(Mode::ExactlyOnce);
    Log::open(&fixture, &target).count(20);
    fixture.wait_until_nothing_is_pending();
    last.stop_well();
    let seen: BTreeSet<String> = whole(&fixture, &target).iter().map(Rec::text).collect();
    assert_eq!(seen, (CANCELLED..CANCELLED + 20).map(|n| n.to_string()).collect());
}

/// `waterclock index` for the instance of a fixture: its exit code and what it says in JSON.
#[track_caller]
fn index(fixture: &Fixture, arguments: &[&str]) -> (i32, serde_json::Value) {
    let data = fixture.path("a");
    let mut command = command(fixture, &["index", "--json"]);
    command.args(arguments).arg("--data-dir").arg(data);
    let output = command.output().expect("the binary runs");
    let told = if output.stdout.is_empty() { &output.stderr } else { &output.stdout };
    let told = String::from_utf8_lossy(told).into_owned();
    let json = serde_json::from_str(&told).unwrap_or_else(|_| panic!("no JSON: {told}"));
    (output.status.code().expect("an exit code"), json)
}

fn sum(told: &serde_json::Value, name: &str) -> u64 {
    let lanes = told["lanes"].as_array().expect("lanes").iter();
    lanes.map(|lane| lane[name].as_u64().expect("whole")).sum()
}

#[test]
fn an_index_is_inspected_verified_and_rebuilt_while_its_instance_rests() {
    const PENDING: u64 = 90;
    let fixture = Fixture::new("index-cli");
    let target = fixture.target("out", 3);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let (intake, producer) = (fixture.names.intake(), fixture.producer());
    for n in 0..PENDING + 10 {
        let delay = if n < PENDING { "2h" } else { "1s" };
        let record = out(n.to_string()).key(n.to_string()).header("x-delay-id", format!("id-{n}"));
        producer.send(&intake, &record.header("x-delay-label", "test").delay(delay).to(&target));
    }
    producer.acks();
    Log::open(&fixture, &target).count(10);
    eventually("the index has followed", || {
        let (_, told) = process.get("/v1/timers?state=delivered&limit=100")?;
        let told: serde_json::Value = serde_json::from_str(&told).map_err(|e| e.to_string())?;
        let ended = told["timers"].as_array().map_or(0, Vec::len);
        if ended == 10 { Ok(()) } else { Err(format!("{ended} are delivered")) }
    });
    for asked in ["inspect", "verify", "rebuild"] {
        let (exit, told) = index(&fixture, &[asked]);
        assert_eq!(exit, 73, "{asked} while it runs: {told}");
    }
    process.stop_well();

    let (exit, told) = index(&fixture, &["rebuild", "--lanes", "0,99"]);
    let told = told.to_string();
    assert!(exit == 2 && told.contains("no lane 99"), "nothing is changed: {exit} {told}");
    let (exit, told) = index(&fixture, &["inspect"]);
    assert_eq!((exit, sum(&told, "pending"), sum(&told, "ended")), (0, PENDING, 10), "{told}");
    let (exit, told) = index(&fixture, &["verify"]);
    assert_eq!((exit, &told["differences"]), (0, &0.into()), "{told}");

    // One is lost and one is another, behind the changelog's back.
    let place = index_of(&fixture);
    let mut changed = Index::look(&place).expect("whole").expect("there");
    let mut timers = Vec::new();
    for lane in changed.lanes().expect("whole") {
        let each = |change| match change {
            Change::Timer(timer) if timers.len() < 2 => timers.push((lane, timer)),
            _ => {}
        };
        changed.entries(lane, each).expect("whole");
    }
    let [(lost_in, lost), (other_in, mut other)] = <[_; 2]>::try_from(timers).expect("two");
    other.due = UnixMillis(1);
    let (lost_id, other_id) = (lost.id.clone(), other.id.clone());
    for (lane, change) in
        [(lost_in, Change::ForgottenTimer(lost.timer_id)), (other_in, Change::Timer(other))]
    {
        let position = changed.position(lane).expect("whole").expect("there");
        changed.apply(lane, &[change], position.next, position.at).expect("applied");
    }
    changed.close();
    let (exit, told) = index(&fixture, &["verify"]);
    assert_eq!((exit, &told["differences"]), (1, &2.into()), "{told}");
    let found = |what: &str, id: &[u8]| {
        let id = serde_json::json!(String::from_utf8_lossy(id));
        let listed = told["listed"].as_array().expect("a list");
        listed.iter().any(|one| one["what"] == what && one["id"] == id && one["offset"].is_u64())
    };
    assert!(found("missing", &lost_id) && found("other", &other_id), "{told}");

    let (exit, told) = index(&fixture, &["rebuild"]);
    assert_eq!(
        (exit, &told["pending"], &told["ended"]),
        (0, &PENDING.into(), &10.into()),
        "{told}"
    );
    let (exit, told) = index(&fixture, &["verify"]);
    assert_eq!((exit, &told["differences"]), (0, &0.into()), "{told}");

    let mut warm = fixture.start(Mode::ExactlyOnce);
    let (known, read) = took_over(&warm);
    assert!(known >= PENDING && read < PENDING / 10, "{known} known, {read} read");
    warm.stop_well();

    for file in files(&place).iter().filter(|file| file.ends_with("db")) {
        let mut bytes = fs::read(file).expect("readable");
        bytes.iter_mut().step_by(256).for_each(|byte| *byte ^= 0x55);
        fs::write(file, bytes).expect("written");
    }
    let (exit, told) = index(&fixture, &["inspect"]);
    assert_eq!(exit, 1, "{told}");
    let (exit, told) = index(&fixture, &["rebuild"]);
    assert_eq!((exit, &told["pending"]), (0, &PENDING.into()), "{told}");
}
