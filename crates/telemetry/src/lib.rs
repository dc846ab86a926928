//! What a running process counts: one file has the name of every metric and label, and one function for each thing that is
//! counted.
//!
//! # Invariants
//! 1. Recording never blocks and never fails; where nobody has installed a recorder it does nothing.
//! 2. A label is one of a bounded set: a tier, a code, a reason. Never a topic of a user, a key or an id.

mod names;
mod workers;

pub use names::{
    ALL, Kind, LaneFigures, LaneLevels, Level, Metric, Rebuilt, api_refused, api_requests,
    call_cut, call_ended, calls_open, certificate_expires, certificates_read, clock_offset,
    clock_skew, clock_stepped_back, describe, end_offsets_asked, foreign_wait, held_back,
    index_given_up, index_lag, index_rebuilt, index_size, lanes_loading, local_clock_stepped,
    pending, position_lost, ready, reason_of, topic_remade, topics_unfit, topics_weak,
};
pub use workers::{WorkerFigures, WorkerLevels};

/// The histograms, each with the upper bounds of its buckets in seconds.
pub const BUCKETS: [(&str, &[f64]); 3] = [
    (names::LATENESS, &LATENESS_BUCKETS),
    (names::COMMIT, &COMMIT_BUCKETS),
    (names::CALL, &CALL_BUCKETS),
];

/// Upper bounds of the buckets of lateness, in seconds: half a millisecond to an hour.
const LATENESS_BUCKETS: [f64; 21] = [
    0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0, 600.0, 1_800.0, 3_600.0,
];

/// Upper bounds of the buckets of a commit's time, in seconds; 15 s is the default time limit of a transaction.
const COMMIT_BUCKETS: [f64; 13] =
    [0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 15.0];

/// Upper bounds of the buckets of a call's time, in seconds; a call may take five minutes.
const CALL_BUCKETS: [f64; 14] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 10.0, 60.0, 300.0];
