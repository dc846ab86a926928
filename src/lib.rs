//! Delayed delivery for Apache Kafka: a header in, a record out, on time, exactly once, in order.
//!
//! A service that sends, cancels and looks up needs [`client`] only: the crate `waterclock-client`, without the server.
//!
//! The binary `waterclock` is a thin shell around this library. A service that has a runtime of its own can run a whole
//! instance inside itself instead of beside itself: [`run`] is what `waterclock run` calls.
//!
//! ```no_run
//! use waterclock::{Config, run};
//!
//! # async fn service() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config {
//!     brokers: "kafka-1:9092,kafka-2:9092".to_owned(),
//!     allow: Some(vec![r"orders\..*".to_owned()]),
//!     data_dir: Some("/var/lib/orders/waterclock".into()),
//!     ..Config::default()
//! }
//! .checked()?;
//! let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
//! let running = tokio::spawn(run(config, async {
//!     // Whatever tells the service to stop; a sender that is dropped does, too.
//!     let _ = stopped.await;
//! }));
//!
//! // ... the service ...
//!
//! let _ = stop.send(());
//! running.await??;
//! # Ok(())
//! # }
//! ```
//!
//! `examples/embed.rs` is a small service that does this. What to know:
//!
//! - The topics must be there (`waterclock topics apply`); [`run`] returns an error if they are not fit.
//! - Records never touch the host's runtime: lane threads are threads. The runtime serves HTTP and waits;
//!   both flavours of tokio's will do, with time and I/O enabled.
//! - No signal handler and no logger is installed: lines go to the `tracing` subscriber of the host.
//! - Figures go to the host's `metrics` recorder if it has installed one before; else one is installed.
//! - [`run`] returns when it has drained. A future that is dropped before tells the lane threads to stop, and does not wait.
//! - Two in one process need a data directory each.
//! - `default-features = false` leaves out what only the binary needs: its allocator, and `bench` and `demo`.

pub mod api;
pub mod app;
pub mod cli;
pub mod config;
#[cfg(test)]
mod documented;
#[cfg(test)]
mod patient;
pub mod telemetry;
pub mod timers;
pub mod worker;

/// A client for services; they need the crate `waterclock-client` only.
pub use waterclock_client as client;
/// The pure part: decides what happens to every record, and when.
pub use waterclock_engine as engine;
/// The shell around Kafka: moves records, decides nothing.
pub use waterclock_kafka as kafka;
/// How commands talk: results, failures, progress.
pub(crate) use waterclock_terminal as terminal;
/// `bench` and `demo`, which only the feature `tools` takes in.
#[cfg(feature = "tools")]
pub(crate) use waterclock_tools as tools;

pub use app::{Error, run};
pub use config::Config;
pub use timers::index;
