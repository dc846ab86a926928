//! Rows on the one broker that they all share, and on brokers of their own.

mod away;
mod crash;
mod frozen;
pub mod held;
pub mod index;
pub mod killed;
mod late;
mod refused;
mod stalled;
mod steps;
mod stops;
pub mod topics;
mod workers;
