//! Rows that take longer than a minute and a half: `scripts/faults --long`.

mod away;
mod broker_clock;
mod clocks;
mod crowd;
mod expiry;
mod idle;
mod topics;
