//! Log lines to standard error, as text or JSON; librdkafka's lines among them (by the `log` crate, which
//! `tracing-subscriber` listens to).

use std::io::IsTerminal as _;

use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{LogConfig, LogFormat, LogLevel};

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
    let targets = Targets::new().with_default(level).with_target("hyper", quiet);
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
