//! A wall clock that a test sets, for a process or a broker: `clock.c`, preloaded.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::preload;

/// A clock, as far from this machine's as the test says. A process that runs by it must end before it.
pub struct Clock {
    files: tempfile::TempDir,
    library: String,
    ahead: File,
}

impl Clock {
    /// One that agrees with this machine's.
    #[track_caller]
    pub fn new() -> Self {
        let files = tempfile::tempdir().expect("a directory");
        let library = preload::compile("clock", files.path());
        let ahead = File::create_new(files.path().join("ahead")).expect("a file");
        let clock = Self { files, library, ahead };
        clock.set(0);
        clock
    }

    /// What makes a process go by it.
    pub fn environment(&self) -> [(&'static str, String); 2] {
        let ahead = self.files.path().join("ahead").display().to_string();
        [("LD_PRELOAD", self.library.clone()), ("TEST_CLOCK", ahead)]
    }

    /// Sets it so many milliseconds ahead of this machine's, or behind.
    pub fn set(&self, ahead_ms: i64) {
        // In place, since it is mapped.
        let ahead_ns = (ahead_ms * 1_000_000).to_ne_bytes();
        self.ahead.write_all_at(&ahead_ns, 0).expect("written");
    }
}
