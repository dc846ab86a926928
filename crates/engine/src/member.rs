//! What a member of the group decides, pure. The shell carries it out, and the simulation runs it as it ships.
//!
//! Time comes in as a number of milliseconds. Who decides about the records of a member is behind [`Rules`]: lanes today,
//! workers next.

mod fence;
mod life;
mod positions;
mod read_goals;
mod take_over;

pub use fence::{Announced, Fenced};
pub use life::{Failure, Life, Restarts};
pub use positions::{
    Checkpoint, LaneRules, LogBounds, Loss, LossCause, Plan, PositionGone, Positions, Rules,
    StartAt, Unknown,
};
pub use read_goals::ReadGoals;
pub use take_over::{Ask, TakeOver, TakeOverError};
