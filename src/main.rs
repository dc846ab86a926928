//! Arguments to configuration to app to exit code; everything is in the library.

/// Gives memory back after a spike, which glibc's does not (docs/performance.md); C (librdkafka, OpenSSL) allocates by it, too.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    // `FAILPOINTS="after_produce=3*off->return"` ends the process there, as a kill would; only in builds for tests.
    #[cfg(feature = "failpoints")]
    let _scenario = fail::FailScenario::setup();
    waterclock::cli::main()
}
