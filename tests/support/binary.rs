//! The binary as a shell would run it, and how patient a test is; for test targets that need no Kafka, too.

use std::ffi::OsStr;
use std::process::Command;

/// The binary for a short command, without what the shell of a test run exports: no variable of that is its configuration.
pub fn waterclock() -> Command {
    without_settings(env!("CARGO_BIN_EXE_waterclock").as_ref())
}

/// Any program, without those variables.
pub fn without_settings(program: &OsStr) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("WATERCLOCK_") {
            command.env_remove(name);
        }
    }
    command
}

/// What times of a test are multiplied by on a machine that does much else: `TEST_PATIENCE`, else 1.
#[allow(clippy::disallowed_methods, reason = "a test is told how patient it is to be")]
pub fn patience() -> u32 {
    std::env::var("TEST_PATIENCE").ok().and_then(|told| told.parse().ok()).unwrap_or(1)
}
