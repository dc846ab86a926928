//! Runs: so many shards of one task, which count as one.
//!
//! A run is a task whose results come from its shards. Each of them is an ordinary task, which knows which of how many it is.
//!
//! # Invariants
//! 1. What was read makes a legal task of each shard.
//! 2. What comes from outside is in order, or every mistake in it is named. What is written here is read back as it was.
//!
//! [`Run`] is what was asked for. How far its shards are stands in `timers`, and what becomes of it is decided by its lane: see
//! `docs/adr/0043-runs.md`.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::task::Wrong;
use crate::task::fields::{Fields, Length, Wrongs, integer, length, wanted};
use crate::task::request::Request;
use crate::task::spec::{Kind, RUN, SPEC_MAX, Shard};
use crate::task::template::{TASK, Template};
use crate::{Millis, UnixMillis};

/// Most shards of a run.
pub const SHARDS_MAX: u32 = 10_000;
/// Most bytes of the bodies of all shards together.
pub const BODIES_MAX: usize = 16 << 20;
/// Shortest and longest deadline.
pub const DEADLINE: (Millis, Millis) = (Millis::SECOND, Millis(30 * Millis::DAY.0));
/// The deadline of a run that says none.
pub const DEADLINE_DEFAULT: Millis = Millis::DAY;

/// Who hears how a run ended. It stands where a task has `on_result`.
pub(crate) const ON_FINISHED: &str = "on_finished";

/// What a run says of its shards, and they do not say themselves.
const NOT_OF_TASK: [(&str, &str); 9] = [
    ("project", "a shard has the project of its run"),
    ("group", "a shard has the group of its run"),
    ("trigger_at", "a shard is due when its run is"),
    ("delay", "a shard is due when its run is"),
    ("window", "a shard is due when its run is"),
    ("expires_at", "want expires_at or the deadline of the run"),
    ("request_id", "a shard is named by its run"),
    ("occurrence", "it is what waterclock writes"),
    ("shard", "it is what waterclock writes"),
];

/// What becomes of a run with the failure of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnShardFailure {
    /// The other shards go on. The run has failed once all have ended.
    #[default]
    Continue,
    /// The run has failed, and what has not ended is cancelled.
    Stop,
}

impl OnShardFailure {
    const ALL: [Self; 2] = [Self::Continue, Self::Stop];

    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Continue => "continue",
            Self::Stop => "stop",
        }
    }
}

/// A run: how many shards, and what they are.
#[derive(Clone, PartialEq, Eq)]
pub struct Run {
    shards: u32,
    deadline: Millis,
    on_shard_failure: OnShardFailure,
    task: Template,
}

impl fmt::Debug for Run {
    /// A task may have what is not for a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("shards", &self.shards)
            .field("deadline", &self.deadline)
            .field("on_shard_failure", &self.on_shard_failure)
            .finish_non_exhaustive()
    }
}

impl Run {
    /// Reads the fields of one. `of`: project and group, where those could be read.
    pub(crate) fn read(
        fields: &Fields<'_>,
        of: Option<(&str, &str)>,
        wrongs: &mut Wrongs,
    ) -> Option<Self> {
        let shards =
            fields.require("shards", wrongs, |value| integer(value, 1..=u64::from(SHARDS_MAX)));
        let deadline =
            fields.read("deadline", wrongs, |value| length(value, DEADLINE.0..=DEADLINE.1));
        let on_shard_failure = fields.read("on_shard_failure", wrongs, on_shard_failure);
        // Looked at first: each run within a run would be read twice, and so what is within it.
        if fields.get(TASK).is_some_and(|task| task.get("type").is_some_and(|of| of == RUN)) {
            wrongs.add(format!("{TASK}.type"), "is \"run\"; a shard is no run");
            return None;
        }
        let task = Template::read(fields, of, &NOT_OF_TASK, wrongs);
        let run = Self {
            // What else is wrong is named, too.
            shards: shards.unwrap_or(1) as u32,
            deadline: deadline.unwrap_or(DEADLINE_DEFAULT),
            on_shard_failure: on_shard_failure.unwrap_or_default(),
            task: task?,
        };
        // What is wrong with it was named.
        if let Ok(request) = run.request(of?, crate::task::request::TIME_MAX) {
            run.check(&request, wrongs);
        }
        Some(run)
    }

    /// What a task must be to be a shard.
    fn check(&self, request: &Request, wrongs: &mut Wrongs) {
        let is_kafka = matches!(request.spec.kind(), Kind::Kafka(_));
        if is_kafka && request.spec.feedback().is_none() {
            let detail = "is missing; want it: who executes a shard reports how it went";
            wrongs.add(format!("{TASK}.feedback"), detail);
        }
        let last = Shard { index: self.shards - 1, count: self.shards };
        let len = request.spec.clone().with_shard(last).to_json().len();
        if len > SPEC_MAX {
            let detail = format!("has {len} bytes as the last shard; want at most {SPEC_MAX}");
            wrongs.add(TASK, detail);
        }
        let body = request.value.as_ref().map_or(0, Vec::len);
        if body.saturating_mul(self.shards as usize) > BODIES_MAX {
            let detail = format!(
                "has {body} bytes; want at most {} for {} shards",
                BODIES_MAX / self.shards as usize,
                self.shards
            );
            wrongs.add(format!("{TASK}.{}", request.value_at), detail);
        }
    }

    /// The fields that were read, for who writes them.
    pub(crate) fn wire(&self) -> Wire<'_> {
        Wire {
            shards: self.shards,
            deadline: Length(self.deadline),
            on_shard_failure: self.on_shard_failure.as_str(),
            task: self.task.as_map(),
        }
    }

    /// How many shards it has.
    #[must_use]
    pub const fn shards(&self) -> u32 {
        self.shards
    }

    /// How long after its shards are created first it expires, if they have not ended.
    #[must_use]
    pub const fn deadline(&self) -> Millis {
        self.deadline
    }

    /// What becomes of it with the failure of a shard.
    #[must_use]
    pub const fn on_shard_failure(&self) -> OnShardFailure {
        self.on_shard_failure
    }

    /// The task of each shard, as it was written.
    #[must_use]
    pub const fn task(&self) -> &Map<String, Value> {
        self.task.as_map()
    }

    /// The type of its shards, as it is written.
    #[must_use]
    pub fn type_of_task(&self) -> &str {
        self.task.type_of_task()
    }

    /// The task of its shards as a request of this project and group, due then.
    ///
    /// # Errors
    /// It was read by another release, and this one does not take it: every field that is wrong.
    pub fn request(&self, of: (&str, &str), due: UnixMillis) -> Result<Request, Vec<Wrong>> {
        self.task.request(of, due)
    }
}

/// How many shards of a run stand where. Who hears how the run ended is told what is written of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShardCounts {
    /// Those that there are.
    pub created: u32,
    /// Those of them that somebody has begun, whatever became of them.
    #[serde(skip)]
    pub begun: u32,
    /// Those that were handed out once more and have not ended.
    #[serde(skip)]
    pub again: u32,
    /// Those that are finished.
    pub finished: u32,
    /// Those that have ended in another way.
    pub failed: u32,
}

/// A run as JSON has it, beside what every specification has.
#[derive(Serialize)]
pub(crate) struct Wire<'a> {
    shards: u32,
    deadline: Length,
    on_shard_failure: &'static str,
    task: &'a Map<String, Value>,
}

fn on_shard_failure(value: &Value) -> Result<OnShardFailure, String> {
    let known = OnShardFailure::ALL;
    let found = known.into_iter().find(|known| value.as_str() == Some(known.as_str()));
    found.ok_or_else(|| wanted(value, &known.map(OnShardFailure::as_str).join(", ")))
}

#[cfg(test)]
mod tests;
