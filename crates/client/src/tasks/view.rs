//! Tasks as answers show them. What a newer instance adds is kept, or read as `Other`.

use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::length;

/// A word of an answer. One that this version does not know is kept.
macro_rules! words {
    ($(#[$of:meta])* $name:ident { $($(#[$about:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$of])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
        #[serde(from = "String")]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$about])* $variant,)+
            /// A word of a newer instance.
            Other(String),
        }

        impl $name {
            /// As it is written.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)+
                    Self::Other(word) => word,
                }
            }
        }

        impl From<String> for $name {
            fn from(word: String) -> Self {
                match word.as_str() {
                    $($word => Self::$variant,)+
                    _ => Self::Other(word),
                }
            }
        }
    };
}

words! {
    /// Where a task stands.
    TaskStatus {
        /// It waits for its time: the first one, a retry, or a polling round.
        Delay = "delay",
        /// It is due, and waits for a worker or for what `waits_for` names.
        Ready = "ready",
        /// Its call is open, or its executor is to report.
        Running = "running",
        /// It is done.
        Finished = "finished",
        /// It failed, and is not tried again.
        Failed = "failed",
        /// It was cancelled.
        Cancelled = "cancelled",
        /// Its time was over before it began.
        Expired = "expired",
    }
}

impl TaskStatus {
    /// Whether nothing follows.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Cancelled | Self::Expired)
    }
}

words! {
    /// What became of a cancel.
    CancelOutcome {
        /// No call ever began, and none will.
        Cancelled = "cancelled",
        /// Calls were made, or may have been; none follows. An executor hears of it by its next heartbeat.
        Stopped = "stopped",
        /// Too late: it is done.
        Finished = "finished",
        /// Too late: it failed, and is not tried again.
        Failed = "failed",
        /// Too late: its time was over before it began.
        Expired = "expired",
        /// Not decided within the wait. Cancel again to wait longer: nothing happens twice.
        Pending = "pending",
    }
}

words! {
    /// What became of a task by a report.
    Reported {
        /// It is finished.
        Finished = "finished",
        /// It waits for its next turn.
        Retrying = "retrying",
        /// It has failed, and is not tried again.
        Failed = "failed",
        /// It was cancelled before.
        Cancelled = "cancelled",
    }
}

/// A task that was created, or that there was already.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Created {
    /// Its id; the same for the same project and request id.
    pub task_id: String,
    /// When it is due, in milliseconds since 1970. A task that there was already keeps its own time.
    pub trigger_at: u64,
}

/// By when the executor of a task has to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Feedback {
    /// So long after it was handed over a turn has failed of which nothing was heard.
    #[serde(deserialize_with = "length::read")]
    pub deadline: Duration,
    /// From the first heartbeat on, the same without another one; `None`: `deadline`.
    #[serde(default, deserialize_with = "length::read_some")]
    pub heartbeat: Option<Duration>,
}

impl Feedback {
    /// A report within this time, from 1 s to 30 d; so long may pass between two heartbeats, too.
    #[must_use]
    pub const fn within(deadline: Duration) -> Self {
        Self { deadline, heartbeat: None }
    }

    /// From the first heartbeat on, another one within this time: from 2 s, with a value above 64 KiB from 30 s, to the deadline.
    #[must_use]
    pub const fn heartbeat(self, period: Duration) -> Self {
        Self { heartbeat: Some(period), ..self }
    }

    /// How long may pass between two heartbeats.
    #[must_use]
    pub fn period(&self) -> Duration {
        self.heartbeat.unwrap_or(self.deadline)
    }
}

/// A task as it is now. Times are in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Task {
    /// Its id.
    pub task_id: String,
    /// `http`, `kafka` or `grpc`.
    pub task_type: String,
    /// Where it stands.
    pub task_status: TaskStatus,
    /// What a cancel of it is answered with, once it was cancelled.
    #[serde(default)]
    pub outcome: Option<CancelOutcome>,
    /// When it was to be due first.
    pub trigger_at: u64,
    /// For which nominal time it is, of a task of a schedule and of a shard of its run. Absent of one that was asked for by hand.
    #[serde(default)]
    pub nominal_at: Option<u64>,
    /// Its project.
    pub project: String,
    /// Its group.
    pub group: String,
    /// How it calls: POST, say; over gRPC the method of its `service`.
    #[serde(default)]
    pub method: Option<String>,
    /// The URL that it calls, if it names one.
    #[serde(default)]
    pub url: Option<String>,
    /// The service of its project that it calls, if it names one; of a task of type `grpc` the service of gRPC.
    #[serde(default)]
    pub service: Option<String>,
    /// The service of its project that a task of type `grpc` calls, if it names one.
    #[serde(default)]
    pub named_service: Option<String>,
    /// Host and port that a task of type `grpc` calls, if it names them.
    #[serde(default)]
    pub host: Option<String>,
    /// What follows the address of the service of its project.
    #[serde(default)]
    pub path: Option<String>,
    /// The topic that its record goes to.
    #[serde(default)]
    pub topic: Option<String>,
    /// The partition of it, if the task says it.
    #[serde(default)]
    pub partition: Option<i32>,
    /// Its executor reports what comes of it.
    #[serde(default)]
    pub feedback: Option<Feedback>,
    /// The id of the task by which is told how this one ended, once it is finished or has failed.
    #[serde(default)]
    pub follow_up: Option<String>,
    /// The request id that it was created with.
    #[serde(default)]
    pub request_id: Option<String>,
    /// When it was created, or brought back by a retry by hand.
    pub created_at: u64,
    /// How often it was dispatched.
    pub turn: u32,
    /// Attempts that were made, those that are not listed any more, too. A polling round is no attempt.
    pub attempts_total: u32,
    /// Failures in a row.
    pub failures: u32,
    /// Polling rounds that were made.
    pub rounds: u32,
    /// The last attempts, the oldest first; at most 32. Empty in lists.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
    /// Somebody has cancelled it, and that is not decided yet: a call may be open.
    #[serde(default)]
    pub cancelling: bool,
    /// When waterclock acts on it again; absent once it has ended.
    #[serde(default)]
    pub next_at: Option<u64>,
    /// Why it has not begun though it is due: `paused`, `limit`, `breaker` or `worker`.
    #[serde(default)]
    pub waits_for: Option<String>,
    /// When it ended.
    #[serde(default)]
    pub ended_at: Option<u64>,
    /// Why it failed: the code of its dead letter. `task_failed`: its attempts failed, and `last` says why.
    #[serde(default)]
    pub code: Option<String>,
    /// The last attempt.
    #[serde(default)]
    pub last: Option<Attempt>,
    /// How far its executors said that they came.
    #[serde(default)]
    pub cursor: Option<String>,
    /// All other members of the answer: its `retry`, `poll` and `headers`, say, as docs/tasks.md has them.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A turn in which a call was made and ended, or that an executor works on. Times are in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Attempt {
    /// Which turn, from 1. 0 if the record of a task could not go to its topic.
    pub turn: u32,
    /// `finished`, `failed`, `gone`, `not_yet` or `interrupted`; `started`: its executor has given a sign, and works.
    pub outcome: String,
    /// When the call began.
    #[serde(default)]
    pub started: Option<u64>,
    /// When it ended.
    #[serde(default)]
    pub ended: Option<u64>,
    /// The status that the other side answered with.
    #[serde(default)]
    pub status: Option<u16>,
    /// What went wrong.
    #[serde(default)]
    pub error: Option<String>,
    /// Who made the call, or reported.
    #[serde(default)]
    pub worker: Option<String>,
    /// How the answer begins, if it is UTF-8.
    #[serde(default)]
    pub response: Option<String>,
    /// How far its executor said that it came.
    #[serde(default)]
    pub cursor: Option<String>,
    /// The same for people, from 0 to 100.
    #[serde(default)]
    pub percent: Option<u8>,
    /// All other members of the answer.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Which tasks are meant; what is not said does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFilter {
    /// Those of this project.
    pub project: Option<String>,
    /// Those of this group.
    pub group: Option<String>,
    /// Those with this status.
    pub status: Option<TaskStatus>,
    /// Those of this type: `http`, `kafka` or `grpc`.
    pub task_type: Option<String>,
    /// Those due before.
    pub due_before: Option<SystemTime>,
    /// At most so many, the earliest first.
    pub limit: Option<usize>,
}
