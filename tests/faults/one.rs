//! Rows on the one broker that they all share, and on brokers of their own.

mod held;
mod killed;
