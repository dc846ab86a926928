//! Log lines to standard error, as text or JSON; librdkafka's lines among them (by the `log` crate, which
//! `tracing-subscriber` listens to).

use parking_lot::Mutex;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{FilterExt as _, LevelFilter, Targets, dynamic_filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::AUDIT;
use crate::config::{LogConfig, LogFormat, LogLevel};

/// Whose lines are not ours: librdkafka's, and those of the library that calls it.
const RAW: [&str; 2] = ["librdkafka", "rdkafka"];
/// So many of those lines are shown in this time at most.
const RAW_MAX: (u32, Duration) = (20, Duration::from_secs(10));

/// Counts lines.
#[derive(Debug, Default)]
struct Bound(Mutex<Option<(Instant, u32)>>);

impl Bound {
    /// Whether one more may be shown.
    fn admits(&self, now: Instant) -> bool {
        let (most, time) = RAW_MAX;
        let mut state = self.0.lock();
        let (since, count) = state.filter(|(since, _)| now - *since < time).unwrap_or((now, 0));
        *state = Some((since, count + 1));
        count < most
    }
}

/// Lines are written by somebody else already; go on without.
#[derive(Debug, thiserror::Error)]
#[error("another log is set up in this process")]
pub struct LogError;

/// Starts to write log lines. To be called before any Kafka client is made: librdkafka is told the level then.
///
/// # Errors
/// [`LogError`]: a caller that embeds us may go on without.
pub fn init(config: &LogConfig) -> Result<(), LogError> {
    let level = match config.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // HTTP's own lines are about single connections.
    let quiet = level.min(LevelFilter::INFO);
    // librdkafka has hundreds for a broker that restarts, from each of its clients. What an operator needs to know of that is
    // said in lines of ours.
    let raw = if level >= LevelFilter::DEBUG { level } else { LevelFilter::OFF };
    let targets = Targets::new().with_default(level).with_target("hyper", quiet);
    let targets = targets.with_target(AUDIT, level.max(LevelFilter::INFO));
    let targets = RAW.into_iter().fold(targets, |targets, name| targets.with_target(name, raw));
    let bound = Bound::default();
    let targets = targets.and(dynamic_filter_fn(move |metadata, _| {
        let is_raw = RAW.iter().any(|name| metadata.target().starts_with(name));
        !is_raw || bound.admits(Instant::now())
    }));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry();
    let set = match config.format {
        LogFormat::Json => registry.with(lines.json().with_filter(targets)).try_init(),
        LogFormat::Text => {
            let lines = lines.with_ansi(std::io::stderr().is_terminal());
            registry.with(lines.with_filter(targets)).try_init()
        }
    };
    set.map_err(|_| LogError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_not_ours_are_bounded_and_come_again() {
        let (bound, start) = (Bound::default(), Instant::now());
        let shown = |from: u64| {
            let times = (0..300).map(|n| start + Duration::from_millis(from + n * 10));
            times.filter(|at| bound.admits(*at)).count()
        };
        assert_eq!((shown(0), shown(3_000), shown(10_000)), (20, 0, 20));
    }
}
