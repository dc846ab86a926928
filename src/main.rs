//! Arguments to configuration to app to exit code; everything is in the library.

fn main() -> std::process::ExitCode {
    waterclock::cli::main()
}
