//! Rows that need root and the kernel's help: `scripts/faults --root`. What a row made it takes away, also when it fails.

mod disk;
mod limits;

pub(crate) use limits::Group;

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a command, and fails with what it says if it does not go well.
#[track_caller]
fn run(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).output().expect("it is installed");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{words:?}: {said}");
    said
}

/// Something that is mounted; not any more when this is dropped.
struct Mount {
    at: PathBuf,
}

impl Mount {
    /// `mount` with these arguments and the directory, which is made.
    #[track_caller]
    fn new(arguments: &[&str], at: &Path) -> Self {
        std::fs::create_dir_all(at).expect("a directory");
        let at = at.to_owned();
        run(&[&["mount"], arguments, &[&*at.to_string_lossy()]].concat());
        Self { at }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily, if a process still has files there; the last that closes one ends it.
        let umount = |lazy: &[&str]| {
            let ended = Command::new("umount").args(lazy).arg(&self.at).output();
            ended.is_ok_and(|ended| ended.status.success())
        };
        let _ = umount(&[]) || umount(&["--lazy"]);
    }
}
