//! Runs as programs see them in JSON. The command line uses the same types.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::super::tasks::model::{CancelOutcome, Length, ResultTo, TaskStatus};
use crate::engine::timers::{self, RunStatus};

/// What the shards of a run are, and how many.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunSettings {
    /// The project: 1 to 64 of a-z 0-9 . _ -
    pub project: String,
    /// A word for lists, which its shards have too: 1 to 64 of a-z 0-9 . _ -
    pub group: String,
    /// 1 to 128 bytes. The same project and request id are the same run, which is created once. The header `Idempotency-Key` says the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// How many there are: 1 to 10,000.
    pub shards: u32,
    /// How long after its shards were created it expires, if they have not ended: from 1s to 30d; 1d if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Length>,
    /// What becomes of it once a shard has failed: `continue` (the others go on; the default), or `stop` (they are cancelled).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_shard_failure: Option<String>,
    /// Who is told that it is finished or has failed: by a record for a topic, or by a POST. Nobody is told of one that expires or is cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_finished: Option<ResultTo>,
    /// The task of each shard: a request for one (`type` and its fields), without project, group, times and request id. One of type `kafka`
    /// has `feedback`.
    #[schema(value_type = Object)]
    pub task: Map<String, Value>,
}

/// A request for a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunRequest {
    /// What it is.
    #[serde(flatten)]
    pub settings: RunSettings,
    /// When it is due, in epoch milliseconds; at once if that is over. Exactly one of this and `delay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger_at: Option<u64>,
    /// How long after the request it is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Length>,
    /// It is due up to so much later, at most 1h: its id says how much. If nothing is said, its project says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Length>,
    /// Its shards are not created any more from then on, in epoch milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
}

/// What became of a request for a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunCreated {
    /// The id; the same for the same project and request id.
    pub run_id: String,
    /// When it is due, in epoch milliseconds. Where there was such a run already, that run keeps its own time.
    pub trigger_at: u64,
}

/// How many shards of a run stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShardCounts {
    /// Those that there are.
    pub created: u32,
    /// Those of them that somebody has begun, whatever became of them.
    pub begun: u32,
    /// Those that were handed out once more and have not ended.
    pub again: u32,
    /// Those that are finished.
    pub finished: u32,
    /// Those that have failed, have expired or were cancelled.
    pub failed: u32,
}

impl From<timers::ShardCounts> for ShardCounts {
    fn from(of: timers::ShardCounts) -> Self {
        let timers::ShardCounts { created, begun, again, finished, failed } = of;
        Self { created, begun, again, finished, failed }
    }
}

/// A run, and how far it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunView {
    /// Its id.
    pub run_id: String,
    /// Where it stands: `waiting`, `triggered` (nobody has begun a shard), `executing`, `locked` (all were begun), `re-executing` (one that
    /// was handed out once more has not ended), `finished`, `failed`, `expired` or `cancelled`.
    #[schema(value_type = String)]
    pub run_status: RunStatus,
    /// Its version, which a retry makes anew. The ids of its shards have it.
    pub version: String,
    /// When it was to be due, in epoch milliseconds.
    pub trigger_at: u64,
    /// For which nominal time it is, in epoch milliseconds, of a run of a schedule. Absent of one that was asked for by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nominal_at: Option<u64>,
    /// When it was created, or brought back by a retry.
    pub created_at: u64,
    /// When it expires, once it has shards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<u64>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
    /// Why it failed. `task_failed`: a shard has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// How many of its shards stand where.
    pub counts: ShardCounts,
    /// One character a shard: `.` to create, `o` waiting, `>` executing, `r` handed out once more, `#` finished, `x` failed. Absent before
    /// there are shards, and in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grid: Option<String>,
    /// How many members of consumer groups read the topic of its Kafka shards. 0: nobody is there to execute them. Absent if its shards
    /// are calls, if it has ended, if Kafka does not say, and in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<u32>,
    /// What it is.
    #[serde(flatten)]
    pub settings: RunSettings,
}

/// Runs in the order of their due times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunPage {
    /// They, without their grids.
    pub runs: Vec<RunView>,
    /// The `page` of the next request; nothing: that was all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Where a shard stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShardState {
    /// It is not there yet.
    ToCreate,
    /// Nobody has begun it.
    Waiting,
    /// Somebody executes it.
    Executing,
    /// It was handed out once more.
    Again,
    /// It is finished.
    Finished,
    /// It has failed, has expired or was cancelled.
    Failed,
}

impl ShardState {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::ToCreate, Self::Waiting, Self::Executing, Self::Again, Self::Finished, Self::Failed];

    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ToCreate => "to_create",
            Self::Waiting => "waiting",
            Self::Executing => "executing",
            Self::Again => "again",
            Self::Finished => "finished",
            Self::Failed => "failed",
        }
    }

    /// How its task stands, as far as the run knows.
    #[must_use]
    pub(super) const fn status(self) -> TaskStatus {
        match self {
            Self::ToCreate => TaskStatus::Delay,
            Self::Waiting => TaskStatus::Ready,
            Self::Executing | Self::Again => TaskStatus::Running,
            Self::Finished => TaskStatus::Finished,
            Self::Failed => TaskStatus::Failed,
        }
    }
}

impl From<timers::ShardState> for ShardState {
    fn from(of: timers::ShardState) -> Self {
        match of {
            timers::ShardState::ToCreate => Self::ToCreate,
            timers::ShardState::Waiting => Self::Waiting,
            timers::ShardState::Executing => Self::Executing,
            timers::ShardState::Again => Self::Again,
            timers::ShardState::Finished => Self::Finished,
            timers::ShardState::Failed => Self::Failed,
        }
    }
}

/// A shard of a run, and how far its task is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShardView {
    /// Which one, from 0.
    pub index: u32,
    /// The id of its task.
    pub task_id: String,
    /// Where its task stands. That of a task that is not found is what its run knows.
    pub task_status: TaskStatus,
    /// Where it stands, as its run knows: a little behind its task. `failed`, too, if it had not ended when its run did.
    pub shard_state: ShardState,
    /// Who made its last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// How often it was dispatched.
    pub turn: u32,
    /// Attempts that were made.
    pub attempts_total: u32,
    /// When its last attempt began, in epoch milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    /// When that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    /// What went wrong with it; else the code of its task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How far its executor said that it is, from 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// The same for the executor of its next turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Shards of a run, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShardPage {
    /// They.
    pub shards: Vec<ShardView>,
    /// The `page` of the next request; nothing: that was all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The answer to a cancel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunCancelled {
    /// The id.
    pub run_id: String,
    /// What became of it. `stopped`: shards were created, and those that have not ended are cancelled.
    pub outcome: CancelOutcome,
    /// With `pending`: the path to GET what became of it from, or to DELETE again and wait longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<String>,
}
