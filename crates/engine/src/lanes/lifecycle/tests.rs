//! Timers, decided: tables by hand, and the whole engine against a small model of what becomes of them.

mod cases;
mod kafka;
mod late;
mod lost;
mod model;
