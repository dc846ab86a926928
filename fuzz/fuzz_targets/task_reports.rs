#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| waterclock_fuzz_targets::task_reports(bytes));
