//! What fuzzing has found and kept, read again with the pinned toolchain: `fuzz/corpus`, one directory a target.

#![allow(clippy::print_stdout, reason = "the file that fails is named")]

use std::fs;
use std::path::Path;

use waterclock_fuzz_targets as targets;

/// Runs a target over its corpus.
fn read_again(name: &str, target: impl Fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let mut read = 0;
    for entry in fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()))
    {
        let path = entry.expect("an entry").path();
        println!("{}", path.display());
        target(&fs::read(&path).expect("a file"));
        read += 1;
    }
    assert!(read > 0, "{} is empty", directory.display());
}

#[test]
fn headers_of_producers_do_no_harm() {
    read_again("headers", targets::headers);
}

#[test]
fn whole_records_come_to_an_end() {
    read_again("records", targets::records);
}

#[test]
fn states_are_opened_for_their_record_only() {
    read_again("state", targets::state);
}

#[test]
fn specifications_of_tasks_are_read_back_or_refused() {
    read_again("task_specification", targets::task_specification);
}

#[test]
fn results_of_tasks_are_read_back_or_refused() {
    read_again("task_result", targets::task_result);
}

#[test]
fn records_of_tasks_are_read_as_they_were_sealed_or_refused() {
    read_again("task_records", targets::task_records);
}

#[test]
fn projects_services_and_targets_are_read_back_or_refused() {
    read_again("registry", targets::registry);
}

#[test]
fn metadata_of_commits_does_no_harm() {
    read_again("metadata", targets::metadata);
}

#[test]
fn records_of_the_changelog_do_no_harm() {
    read_again("changelog", targets::changelog);
}

#[test]
fn texts_of_people_do_no_harm() {
    read_again("texts", targets::texts);
}

#[test]
fn tokens_that_come_back_do_no_harm() {
    read_again("tokens", targets::tokens);
}

#[test]
fn what_stands_on_disk_does_no_harm() {
    read_again("index", targets::index);
}
