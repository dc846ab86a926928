//! Rows that take longer than a minute and a half: `scripts/faults --long`.

mod crowd;
mod expiry;
