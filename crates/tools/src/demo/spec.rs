//! What stays the same while the demo runs.

use waterclock_engine::Millis;

/// What the demo does, and on what.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    /// The namespace, which is gone at the end.
    pub(super) namespace: String,
    /// Which broker.
    pub(super) broker: String,
    /// Which delivery, in the words of the configuration.
    pub(super) delivery: &'static str,
    /// What should be known about the broker.
    pub(super) note: String,
    /// What lateness is measured from and to.
    pub(super) measured: &'static str,
    /// Names of the tiers, shortest hold first.
    pub(super) tiers: Vec<String>,
    /// Lanes.
    pub(super) lanes: u16,
    /// How long records are written.
    pub(super) total: Millis,
    /// Records a second.
    pub(super) rate: u32,
}
