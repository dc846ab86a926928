//! Follow-ups: the tasks that tell how others ended, as those wish (`on_result`).
//!
//! # Invariants
//! 1. The id of a follow-up follows from the id and the version of the task that ended ([`TaskId::follow_up`]). So a follow-up that
//!    is written twice is one task.
//! 2. A follow-up has none itself.

use serde::Serialize;
use serde_json::{Map, Value};

use super::super::header::{Code, Refusal};
use super::super::run::ShardCounts;
use super::super::{Offset, UnixMillis};
use super::fields::to_json;
use super::id::TaskId;
use super::result::TaskResult;
use super::retry::Retry;
use super::spec::{OnResult, Spec};

/// What the body of a follow-up is.
pub(crate) const CONTENT_TYPE: (&str, &str) = ("content-type", "application/json");

/// What a follow-up has from the specification of its task, however that ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowUp {
    to: OnResult,
    task_type: &'static str,
    project: Box<str>,
    group: Box<str>,
    request_id: Option<Box<str>>,
}

/// How a task ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End<'a> {
    /// Which task.
    pub(crate) id: &'a TaskId,
    /// Which version of it: when that was appended first, and where.
    pub(crate) version: (UnixMillis, Offset),
    /// When it was due first.
    pub(crate) trigger: UnixMillis,
    /// When it ended.
    pub(crate) at: UnixMillis,
    /// How often it was dispatched, how many attempts were made, and how many failed in a row.
    pub(crate) counts: (u32, u32, u32),
    /// Why it failed; `None`: it is finished.
    pub(crate) failed: Option<(Code, Option<&'a Refusal>)>,
    /// What was said of its last turn, if anything was.
    pub(crate) last: Option<&'a TaskResult>,
    /// Of a run: what has become of its shards.
    pub(crate) shards: Option<ShardCounts>,
}

/// What of a result is told.
const SHOWN: [&str; 9] = [
    "outcome",
    "started",
    "ended",
    "status",
    "error",
    "worker",
    "response_b64",
    "cursor",
    "percent",
];

impl FollowUp {
    /// That of tasks with this specification; `None`: nobody is told how they end.
    #[must_use]
    pub fn of(spec: &Spec) -> Option<Self> {
        Some(Self {
            to: spec.on_result()?.clone(),
            task_type: spec.type_name(),
            project: spec.project().into(),
            group: spec.group().into(),
            request_id: spec.request_id().map(Into::into),
        })
    }

    /// That of a task whose lane has nothing but its definition at hand when it ends: its executor reports that.
    #[must_use]
    pub fn of_awaited(definition: &str) -> Option<Self> {
        // Most have none, and need not be read.
        let has = |field: &str| definition.contains(field);
        let is_told = has("\"on_result\"") || has("\"on_finished\"");
        let spec = is_told.then(|| Spec::parse(definition.as_bytes()))?.ok()?;
        let is_awaited = spec.feedback().is_some() || spec.run().is_some();
        is_awaited.then(|| Self::of(&spec)).flatten()
    }

    /// The specification of the follow-up. A service is called again as it says itself; anybody else as by [`Retry::of_follow_up`].
    pub(crate) fn spec(&self) -> Spec {
        let retry = match &self.to {
            OnResult::Service(_) => None,
            OnResult::Topic(_) | OnResult::Url(_) => Some(Retry::of_follow_up()),
        };
        Spec::of_follow_up((&self.project, &self.group), &self.to, retry)
    }

    /// The body of the follow-up: JSON.
    pub(crate) fn body(&self, end: &End<'_>) -> String {
        let (turn, attempts_total, failures) = end.counts;
        // What is too long in it is cut as in any result.
        let last = end.last.map(TaskResult::to_json);
        let last = last.and_then(|json| serde_json::from_str::<Map<String, Value>>(&json).ok());
        let last = last.map(|mut last| {
            last.retain(|name, _| SHOWN.contains(&name.as_str()));
            last
        });
        to_json(&Body {
            task_id: end.id.as_str(),
            task_type: self.task_type,
            task_status: if end.failed.is_some() { "failed" } else { "finished" },
            project: &self.project,
            group: &self.group,
            request_id: self.request_id.as_deref(),
            trigger_at: end.trigger,
            nominal_at: end.id.nominal(),
            ended_at: end.at,
            turn,
            attempts_total,
            failures,
            code: end.failed.map(|(code, _)| code.as_str()),
            detail: end.failed.and_then(|(_, refusal)| Some(refusal?.detail.as_str())),
            last,
            shards: end.shards,
        })
    }
}

/// The names are those of a task as it is shown.
#[derive(Serialize)]
struct Body<'a> {
    task_id: &'a str,
    task_type: &'a str,
    task_status: &'a str,
    project: &'a str,
    group: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    trigger_at: UnixMillis,
    #[serde(skip_serializing_if = "Option::is_none")]
    nominal_at: Option<UnixMillis>,
    ended_at: UnixMillis,
    turn: u32,
    attempts_total: u32,
    failures: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shards: Option<ShardCounts>,
}

#[cfg(test)]
mod tests;
