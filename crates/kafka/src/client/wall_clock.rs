//! This machine's time, read in one place.

use waterclock_engine::UnixMillis;

/// This machine's time: what its own records are stamped with. Never what a due time is kept by, except where the
/// broker is inside this process.
#[must_use]
pub fn wall_clock() -> UnixMillis {
    UnixMillis(wall_clock_us() / 1_000)
}

/// The same in microseconds.
#[allow(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub(crate) fn wall_clock_us() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}
