//! What fuzzing has found and kept, read again with the pinned toolchain: `fuzz/corpus`, one directory a target. Then the same with
//! changes that a seed decides: a moment of fuzzing, without a nightly toolchain.

#![allow(clippy::print_stdout, reason = "the file that fails is named")]

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use waterclock_fuzz_targets as targets;

/// How many changed inputs a target gets.
const CHANGED: usize = 20_000;

/// Runs a target over its corpus, and over changed inputs of it.
fn read_again(name: &str, target: impl Fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let mut inputs = Vec::new();
    let entries = fs::read_dir(&directory);
    for entry in entries.unwrap_or_else(|e| panic!("{}: {e}", directory.display())) {
        let path = entry.expect("an entry").path();
        println!("{}", path.display());
        let input = fs::read(&path).expect("a file");
        target(&input);
        inputs.push(input);
    }
    assert!(!inputs.is_empty(), "{} is empty", directory.display());
    // The file system gives them in any order.
    inputs.sort_unstable();
    let mut luck = Luck(0x9e37_79b9_7f4a_7c15);
    for _ in 0..CHANGED {
        let input = luck.change(&inputs);
        if panic::catch_unwind(AssertUnwindSafe(|| target(&input))).is_err() {
            let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
            panic!("{name}: mend it, and keep this input in fuzz/corpus/{name} (xxd -r -p): {hex}");
        }
    }
}

/// What changes inputs, the same in each run.
struct Luck(u64);

impl Luck {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % most.max(1)
    }

    /// One input with one to four changes, of which one may bring a part of another.
    fn change(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let mut input = inputs[self.below(inputs.len())].clone();
        for _ in 0..=self.below(4) {
            let at = self.below(input.len() + 1);
            let end = (at + 1 + self.below(16)).min(input.len());
            match self.below(5) {
                0 => input.truncate(at),
                1 => input.insert(at, self.below(256) as u8),
                2 => drop(input.drain(at..end)),
                3 => {
                    let other = &inputs[self.below(inputs.len())];
                    let from = self.below(other.len());
                    let to = (from + 1 + self.below(64)).min(other.len());
                    input.splice(at..at, other[from..to].iter().copied());
                }
                _ => {
                    if let Some(byte) = input.get_mut(at) {
                        *byte ^= 1 << self.below(8);
                    }
                }
            }
        }
        input
    }
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
fn reports_of_executors_are_read_and_tickets_open_for_their_task_only() {
    read_again("task_reports", targets::task_reports);
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
