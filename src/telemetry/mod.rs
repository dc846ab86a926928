//! What a running process tells about itself: figures for Prometheus and log lines.
//!
//! Two files: `names` is the only place that spells a metric or a label, `log` sets up the lines.
//!
//! # Invariants
//! 1. Recording never blocks and never fails; without [`install`] it does nothing.
//! 2. A label is one of a bounded set: a tier, a code, a reason. Never a topic of a user, a key or an id.

mod log;
mod names;

use parking_lot::RwLock;
use std::sync::OnceLock;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

pub use log::{LogError, init as init_log};
pub use names::{
    ALL, Kind, LaneFigures, LaneLevels, Level, Metric, Renewed, api_refused, api_requests, asked,
    clock_offset, clock_skew, clock_stepped_back, foreign_wait, held_back, index_given_up,
    index_lag, index_rebuilt, index_size, lanes_loading, local_clock_stepped, pending,
    position_lost, ready, topic_remade, topics_unfit, topics_weak,
};

/// Upper bounds of the buckets of lateness, in seconds: half a millisecond to an hour.
const LATENESS_BUCKETS: [f64; 21] = [
    0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0, 600.0, 1_800.0, 3_600.0,
];

/// Upper bounds of the buckets of a commit's time, in seconds; 15 s is the default time limit of a transaction.
const COMMIT_BUCKETS: [f64; 13] =
    [0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 15.0];

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
    names::describe();
    installed.map_err(|_| TelemetryError::Taken)?;
    Ok(Figures(INSTALLED.get_or_init(|| handle).clone()))
}

fn builder() -> Result<PrometheusBuilder, TelemetryError> {
    let full = |name: &str| Matcher::Full(name.to_owned());
    PrometheusBuilder::new()
        .set_buckets_for_metric(full(names::LATENESS), &LATENESS_BUCKETS)
        .and_then(|b| b.set_buckets_for_metric(full(names::COMMIT), &COMMIT_BUCKETS))
        .map_err(TelemetryError::Buckets)
}
