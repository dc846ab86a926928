//! What a running process tells about itself: figures for Prometheus and log lines.
//!
//! For the binary: a service that runs an instance needs only `run` and `Config` of the crate.
//!
//! `crates/telemetry` is the only place that spells a metric or a label; here they are installed. `log` sets up the lines.
//!
//! # Invariants
//! 1. Recording never blocks and never fails; without [`install`] it does nothing.
//! 2. A label is one of a bounded set: a tier, a code, a reason. Never a topic of a user, a key or an id.

mod log;

use parking_lot::RwLock;
use std::sync::OnceLock;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

pub use log::{LogError, init as init_log};
pub use waterclock_telemetry::*;

/// The target of the lines that say who changed what; they are written at every level.
pub const AUDIT: &str = "waterclock::audit";

/// Why figures are not kept.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// Another part of this process keeps the figures of the `metrics` crate; they go there.
    #[error("another recorder of metrics is installed in this process")]
    Taken,
    /// The layout of a histogram was refused.
    #[error("could not lay out the histograms")]
    Buckets(#[source] metrics_exporter_prometheus::BuildError),
}

/// Figures of this process, as Prometheus reads them. Cheap to clone.
#[derive(Clone)]
pub struct Figures(PrometheusHandle);

impl Figures {
    /// All of them in Prometheus's text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.0.render()
    }

    /// Moves what was recorded into the histograms' buckets; call it every few seconds, or memory grows until
    /// somebody scrapes.
    pub fn tidy(&self) {
        self.0.run_upkeep();
    }
}

static INSTALLED: OnceLock<PrometheusHandle> = OnceLock::new();
static INSTALLING: RwLock<()> = RwLock::new(());

/// Starts to keep figures; a second call in a process gives the same ones.
///
/// # Errors
/// Figures are kept by somebody else, or not at all. A caller that embeds us may go on without.
pub fn install() -> Result<Figures, TelemetryError> {
    let _one_at_a_time = INSTALLING.write();
    if let Some(handle) = INSTALLED.get() {
        return Ok(Figures(handle.clone()));
    }
    let recorder = builder()?.build_recorder();
    let handle = recorder.handle();
    let installed = metrics::set_global_recorder(recorder);
    // A process that keeps these numbers should know what they are.
    describe();
    installed.map_err(|_| TelemetryError::Taken)?;
    Ok(Figures(INSTALLED.get_or_init(|| handle).clone()))
}

fn builder() -> Result<PrometheusBuilder, TelemetryError> {
    BUCKETS.into_iter().try_fold(PrometheusBuilder::new(), |builder, (name, buckets)| {
        let name = Matcher::Full(name.to_owned());
        builder.set_buckets_for_metric(name, buckets).map_err(TelemetryError::Buckets)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The document's table is made here; `UPDATE_DOCS=1 cargo test --lib documented` writes it.
    #[test]
    fn the_documented_metrics_are_those_of_the_code() {
        use std::fmt::Write as _;
        let mut table = String::from("| metric | kind | label | meaning |\n|---|---|---|---|\n");
        for Metric { name, kind, label, help, .. } in ALL {
            let label = if label.is_empty() { String::new() } else { format!("`{label}`") };
            let kind = format!("{kind:?}").to_lowercase();
            writeln!(table, "| `{name}` | {kind} | {label} | {help} |").unwrap();
        }
        crate::documented::compare("operations.md", "metrics", &table);
    }
}
