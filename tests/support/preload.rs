//! A library that a process under test loads before its own, from a C source beside this file.

use std::path::Path;
use std::process::Command;

/// Compiles `tests/support/<name>.c` into `directory`; gives the library's path, which is the value of `LD_PRELOAD`.
#[track_caller]
pub fn compile(name: &str, directory: &Path) -> String {
    let source = format!("{}/tests/support/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let library = directory.join(format!("{name}.so"));
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-pthread", "-o"]);
    compiler.arg(&library).arg(source).arg("-ldl");
    let ended = compiler.output().expect("cc is here, the build needs it");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    library.display().to_string()
}
