//! The generated code that is committed is what the files in `proto` say.
//!
//! After a change to them: `WATERCLOCK_PROTO=write cargo test -p waterclock-proto`.

use std::path::Path;

/// The files of the contract, below `proto`.
const FILES: [&str; 4] = [
    "waterclock/v1/tasks.proto",
    "waterclock/v1/projects.proto",
    "waterclock/v1/schedules.proto",
    "waterclock/v1/runs.proto",
];

#[allow(clippy::disallowed_methods, reason = "who changes the contract says so")]
#[test]
fn the_committed_code_is_that_of_the_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let proto = root.join("../../proto");
    let mut compiler = protox::Compiler::new([&proto]).expect("a directory");
    // Only the comments of the contract go along, so that the code has them as documentation.
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(FILES).unwrap_or_else(|error| panic!("{error:?}"));
    let made = tempfile::tempdir().expect("a directory");
    tonic_prost_build::configure()
        .build_client(true)
        .out_dir(made.path())
        .compile_fds(compiler.file_descriptor_set())
        .expect("code");
    compiler.include_source_info(false);
    let descriptors = compiler.encode_file_descriptor_set();
    std::fs::write(made.path().join("descriptors.bin"), descriptors).expect("written");
    let writes = std::env::var("WATERCLOCK_PROTO").is_ok_and(|word| word == "write");
    for name in ["waterclock.v1.rs", "descriptors.bin"] {
        let made = std::fs::read(made.path().join(name)).expect(name);
        let committed = root.join("src/generated").join(name);
        if writes {
            std::fs::create_dir_all(root.join("src/generated")).expect("a directory");
            std::fs::write(&committed, &made).expect(name);
        }
        let committed = std::fs::read(&committed).expect(name);
        assert!(
            made == committed,
            "{name} is not what proto says: WATERCLOCK_PROTO=write cargo test -p waterclock-proto"
        );
    }
}
