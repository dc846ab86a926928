//! What a member of the group decides, pure. The shell carries it out, and the simulation runs it as it ships. It does not
//! run when a query may be answered, how soon a membership starts again, and when the group is left for lanes that are
//! nobody's: tables test those.
//!
//! Time comes in as a number of milliseconds. A batch is produces, offsets, and when each record may be appended. What
//! differs between those who decide about a member's records is behind [`Rules`]: lanes, and workers.

mod append_times;
mod blame;
mod fence;
mod life;
mod positions;
mod query_goals;
mod read_goals;
mod take_over;
mod transaction;
mod work_rules;

pub use append_times::{Appended, Appends, Clocks, LateHop, News, Timing, Untimely};
pub use blame::{ErrorClass, Failures};
pub use fence::{Announced, Fenced, Named, WORKER};
pub use life::{Failure, Life, Restarts};
pub use positions::{
    Checkpoint, LaneRules, LogBounds, Loss, LossCause, Plan, PositionGone, Positions, Rules,
    StartAt, Unknown,
};
pub use query_goals::{LOOK_EVERY, QueryGoal, QueryGoals};
pub use read_goals::ReadGoals;
pub use take_over::{Ask, TakeOver, TakeOverError};
pub use transaction::{Broken, Course, Dirty, Failed, Patience, Renewed, Step};
pub use work_rules::WorkRules;
