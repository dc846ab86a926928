//! Schedules as programs see them in JSON. The command line uses the same types.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::super::tasks::model::Length;

/// When the tasks of a schedule are due, and what they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleSettings {
    /// The project: 1 to 64 of a-z 0-9 . _ -
    pub project: String,
    /// A word for lists, which its tasks have too: 1 to 64 of a-z 0-9 . _ -
    pub group: String,
    /// Its name: one in its project, 1 to 64 of a-z 0-9 _ -
    pub name: String,
    /// Five fields (minute, hour, day of the month, month, day of the week), six with the second before them, or a word such as `@daily`.
    /// Exactly one of this and `every`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// The IANA zone whose clock the pattern goes by; UTC if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// A period, from 1s to 3650d. Exactly one of this and `cron`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Length>,
    /// Whether the periods of `every` are counted from the epoch, and not from `start`. If nothing is said: true without a `start`, else
    /// false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aligned: Option<bool>,
    /// There is no time before it: epoch milliseconds, or RFC 3339 with a zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub start: Option<Value>,
    /// There is no time from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub end: Option<Value>,
    /// So many times from `start` on, 10,000 at most. `start` is needed then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// A task is due up to so much later than its time, at most 1h: its id says how much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Length>,
    /// What becomes of times that nobody was there for: `fire_once` (the last one is made up for; the default), `skip`, or `fire_all`
    /// (the last 100).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misfire: Option<String>,
    /// What becomes of a time while the task of another one is open: `allow` (the default), `skip`, or `queue_one`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap: Option<String>,
    /// A task is not begun later than so long after it is due, from 1s to 30d; of one that is made up for, after it was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Length>,
    /// It has no tasks while this is true.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The task of each time: a request for one (`type` and its fields), without project, group, times and request id.
    #[schema(value_type = Object)]
    pub task: Map<String, Value>,
}

/// What has become of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleStatus {
    /// It has a next time.
    Active,
    /// It is paused.
    Paused,
    /// Its last time has passed.
    Finished,
    /// Somebody has deleted it.
    Deleted,
    /// It could not go on: a dead letter says why.
    Failed,
}

impl ScheduleStatus {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Finished => "finished",
            Self::Deleted => "deleted",
            Self::Failed => "failed",
        }
    }

    /// Whether it has no times any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Finished | Self::Deleted | Self::Failed)
    }
}

/// A schedule, and how far it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleView {
    /// Its id: `schedule.`, its project and its name, with a dot between them.
    pub schedule_id: String,
    /// Its version, which each change makes anew. `ETag` and `If-Match` have it in quotes.
    pub version: String,
    /// What has become of it.
    pub status: ScheduleStatus,
    /// When it is acted on next, in epoch milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_at: Option<u64>,
    /// Its last time that has a task, in epoch milliseconds; of this version or one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_at: Option<u64>,
    /// The task of that time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_task_id: Option<String>,
    /// How many tasks it has submitted.
    pub tasks_total: u32,
    /// When this version was made.
    pub changed_at: u64,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
    /// Why it could not go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// How many members of consumer groups read the topic of its tasks, or of the shards of its runs, where they report. 0: nobody is
    /// there to execute them. Absent if nobody has to be, if it has ended, if Kafka does not say, and in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<u32>,
    /// What it is.
    #[serde(flatten)]
    pub settings: ScheduleSettings,
}

/// Schedules, in the order of the first time that each had when it was made, or last changed or resumed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SchedulePage {
    /// They.
    pub schedules: Vec<ScheduleView>,
    /// The `page` of the next request; nothing: that was all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A task that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Triggered {
    /// Its id.
    pub task_id: String,
    /// When it is due.
    pub trigger_at: u64,
}

/// A span whose times are to have tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BackfillRequest {
    /// From then on: epoch milliseconds, or RFC 3339 with a zone.
    #[schema(value_type = u64)]
    pub from: Value,
    /// Before then; at most now.
    #[schema(value_type = u64)]
    pub to: Value,
}

/// What was asked for of a span.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Backfilled {
    /// The tasks of its times, 1,000 at most. What ran before does not run again.
    pub tasks: Vec<Triggered>,
    /// The span has more times: go on from this one, in epoch milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_from: Option<u64>,
}

/// The next times of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Preview {
    /// In epoch milliseconds.
    pub times: Vec<u64>,
    /// The same on the clock of its zone.
    pub shown: Vec<String>,
    /// There are more.
    pub has_more: bool,
    /// The version of the database of zones.
    pub zones: String,
}

/// What has become of a request to delete a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeletedSchedule {
    /// Its id.
    pub schedule_id: String,
    /// `deleted`, or `pending`: it is written, and not decided within the wait.
    pub outcome: String,
}
