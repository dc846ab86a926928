//! stub until cli lands
pub mod instance;
pub mod lanes;
