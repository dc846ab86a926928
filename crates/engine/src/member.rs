//! What a member of the group decides, pure. The shell carries it out, and the simulation runs it as it ships.
//!
//! Nothing here knows lanes or workers: a batch is produces, offsets, and when each record may be appended.

mod append_times;
mod blame;
mod transaction;

pub use append_times::{Appended, Appends, Clocks, LateHop, News, Timing, Untimely};
pub use blame::{ErrorClass, Failures};
pub use transaction::{Broken, Course, Dirty, Failed, Patience, Renewed, Step};
