//! Arguments to configuration to app to exit code; everything is in the library.

fn main() -> std::process::ExitCode {
    // `FAILPOINTS="after_produce=3*off->return"` ends the process there, as a kill would; only in builds for tests.
    #[cfg(feature = "failpoints")]
    let _scenario = fail::FailScenario::setup();
    waterclock::cli::main()
}
