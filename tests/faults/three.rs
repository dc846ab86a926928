//! Rows on a cluster of three: `scripts/faults --brokers 3`.
