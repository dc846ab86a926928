//! `x-delay-result`: what a worker or an executor says of one turn of a task.
//!
//! # Invariants
//! 1. What [`to_json`](TaskResult::to_json) writes is legal, whatever the fields hold: texts that are too long are cut.
//! 2. A legal result has at most [`RESULT_MAX`] bytes as it is written.
//! 3. A result that was read is written as it was read, and read again unchanged.
//!
//! Whether a result counts is for the lane to decide: it knows the live version and turn.

use serde::Serialize;
use serde_json::Value;

use super::super::{Millis, UnixMillis};
use super::Wrong;
use super::fields::{Fields, Wrongs, base64, bytes, document, integer, text, to_json, wanted};

/// The header that has it.
pub const HEADER: &str = "x-delay-result";
/// Longest result, in bytes.
pub const RESULT_MAX: usize = 4 * 1024;
/// Longest `error`, in bytes.
pub const ERROR_MAX: usize = 200;
/// Longest `worker`, in bytes.
pub const WORKER_MAX: usize = 255;
/// Longest `cursor`, in bytes.
pub const CURSOR_MAX: usize = 256;
/// Longest response that is kept, in bytes before base64.
pub const RESPONSE_MAX: usize = 1024;

/// What became of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The call began and is still open.
    Started,
    /// The task is done.
    Finished,
    /// The call was taken; feedback follows.
    Accepted,
    /// The thing that is waited for has not happened: the next polling round follows.
    NotYet,
    /// It will never be possible: no further attempt.
    Gone,
    /// The attempt failed.
    Failed,
    /// No call was made, and none is to be made before `until`.
    Deferred,
    /// The turn was cut off; a call may have been made.
    Interrupted,
    /// The call never began and never will.
    Cancelled,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 9] = [
        Self::Started,
        Self::Finished,
        Self::Accepted,
        Self::NotYet,
        Self::Gone,
        Self::Failed,
        Self::Deferred,
        Self::Interrupted,
        Self::Cancelled,
    ];

    /// As written in a result.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Finished => "finished",
            Self::Accepted => "accepted",
            Self::NotYet => "not_yet",
            Self::Gone => "gone",
            Self::Failed => "failed",
            Self::Deferred => "deferred",
            Self::Interrupted => "interrupted",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether its record brings value and headers of the task back: the task goes on, or becomes a dead letter.
    #[must_use]
    pub const fn carries_payload(self) -> bool {
        !matches!(self, Self::Started | Self::Finished | Self::Cancelled)
    }
}

/// What is said of one turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskResult {
    /// What became of it.
    pub outcome: Outcome,
    /// When the call began.
    pub started: Option<UnixMillis>,
    /// When it ended.
    pub ended: Option<UnixMillis>,
    /// The status that the other side answered with.
    pub status: Option<u16>,
    /// What went wrong: at most [`ERROR_MAX`] bytes without control characters.
    pub error: Option<String>,
    /// How long the other side asked to be left alone.
    pub retry_after: Option<Millis>,
    /// When the task is to be taken up again; with `deferred`. Without it: at once.
    pub until: Option<UnixMillis>,
    /// Who says so: at most [`WORKER_MAX`] bytes without control characters.
    pub worker: Option<String>,
    /// The beginning of the answer, at most [`RESPONSE_MAX`] bytes.
    pub response: Option<Vec<u8>>,
    /// Nobody knows whether the call was made. Only of `interrupted`; elsewhere it is not written.
    pub in_doubt: bool,
    /// The task's value and headers stand in a dead letter that was written with this result: Kafka took no result that had them.
    /// The task fails.
    pub letter: bool,
    /// No call was made, since the other side has failed too often. Only of `deferred`; elsewhere it is not written.
    pub breaker: bool,
    /// How far an executor says that it is, for the next turn: at most [`CURSOR_MAX`] bytes without control characters.
    pub cursor: Option<String>,
    /// The same, for people: 0 to 100.
    pub percent: Option<u8>,
}

const FIELDS: [&str; 14] = [
    "outcome",
    "started",
    "ended",
    "status",
    "error",
    "retry_after_ms",
    "until",
    "worker",
    "response_b64",
    "in_doubt",
    "letter",
    "breaker",
    "cursor",
    "percent",
];

impl TaskResult {
    /// One that says nothing else.
    #[must_use]
    pub const fn new(outcome: Outcome) -> Self {
        Self {
            outcome,
            started: None,
            ended: None,
            status: None,
            error: None,
            retry_after: None,
            until: None,
            worker: None,
            response: None,
            in_doubt: false,
            letter: false,
            breaker: false,
            cursor: None,
            percent: None,
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse(json: &[u8]) -> Result<Self, Wrong> {
        let mut wrongs = Wrongs::default();
        let map = document(HEADER, json, RESULT_MAX, &mut wrongs);
        let result = map.and_then(|map| Self::read(&Fields::of_document(&map), &mut wrongs));
        match (wrongs.list(HEADER).into_iter().next(), result) {
            (None, Some(result)) => Ok(result),
            (Some(wrong), _) => Err(wrong),
            // Nothing is missing without being named.
            (None, None) => Err(Wrong { at: HEADER.to_owned(), detail: "is wrong".to_owned() }),
        }
    }

    fn read(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Option<Self> {
        fields.only(&FIELDS, "results", wrongs);
        let outcome = fields.require("outcome", wrongs, outcome);
        let time = |name, wrongs: &mut Wrongs| {
            fields.read(name, wrongs, |value| integer(value, 0..=u64::MAX))
        };
        let result = Self {
            started: time("started", wrongs).map(UnixMillis),
            ended: time("ended", wrongs).map(UnixMillis),
            status: fields
                .read("status", wrongs, |value| integer(value, 0..=u64::from(u16::MAX)))
                .map(|status| status as u16),
            error: fields.read("error", wrongs, |value| line(value, ERROR_MAX)),
            retry_after: time("retry_after_ms", wrongs).map(Millis),
            until: time("until", wrongs).map(UnixMillis),
            worker: fields.read("worker", wrongs, |value| line(value, WORKER_MAX)),
            response: fields.read("response_b64", wrongs, |value| bytes(value, RESPONSE_MAX)),
            in_doubt: fields.read("in_doubt", wrongs, flag).unwrap_or_default(),
            letter: fields.read("letter", wrongs, flag).unwrap_or_default(),
            breaker: fields.read("breaker", wrongs, flag).unwrap_or_default(),
            cursor: fields.read("cursor", wrongs, |value| line(value, CURSOR_MAX)),
            percent: fields.read("percent", wrongs, percent),
            ..Self::new(outcome?)
        };
        let only_of = [
            ("in_doubt", result.in_doubt, Outcome::Interrupted),
            ("breaker", result.breaker, Outcome::Deferred),
        ];
        for (name, is, outcome) in only_of {
            if is && result.outcome != outcome {
                let (has, want) = (result.outcome.as_str(), outcome.as_str());
                let detail = format!("is true of a result that is {has}; want it of {want} only");
                wrongs.add(name, detail);
            }
        }
        Some(result)
    }

    /// Writes it, compact and within the bounds: what is too long is cut, and control characters become spaces.
    #[must_use]
    pub fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct Wire {
            outcome: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            started: Option<UnixMillis>,
            #[serde(skip_serializing_if = "Option::is_none")]
            ended: Option<UnixMillis>,
            #[serde(skip_serializing_if = "Option::is_none")]
            status: Option<u16>,
            #[serde(skip_serializing_if = "Option::is_none")]
            error: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            retry_after_ms: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            until: Option<UnixMillis>,
            #[serde(skip_serializing_if = "Option::is_none")]
            worker: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            response_b64: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            in_doubt: Option<bool>,
            #[serde(skip_serializing_if = "Option::is_none")]
            letter: Option<bool>,
            #[serde(skip_serializing_if = "Option::is_none")]
            breaker: Option<bool>,
            #[serde(skip_serializing_if = "Option::is_none")]
            cursor: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            percent: Option<u8>,
        }
        let response = self.response.as_deref();
        to_json(&Wire {
            outcome: self.outcome.as_str(),
            started: self.started,
            ended: self.ended,
            status: self.status,
            error: self.error.as_deref().map(|error| fit(error, ERROR_MAX)),
            retry_after_ms: self.retry_after.map(|after| after.0),
            until: self.until,
            worker: self.worker.as_deref().map(|worker| fit(worker, WORKER_MAX)),
            response_b64: response.map(|bytes| base64(&bytes[..bytes.len().min(RESPONSE_MAX)])),
            in_doubt: (self.in_doubt && self.outcome == Outcome::Interrupted).then_some(true),
            letter: self.letter.then_some(true),
            breaker: (self.breaker && self.outcome == Outcome::Deferred).then_some(true),
            cursor: self.cursor.as_deref().map(|cursor| fit(cursor, CURSOR_MAX)),
            percent: self.percent.map(|percent| percent.min(100)),
        })
    }
}

pub(super) fn percent(value: &Value) -> Result<u8, String> {
    integer(value, 0..=100).map(|percent| percent as u8)
}

fn flag(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| wanted(value, "true or false"))
}

fn outcome(value: &Value) -> Result<Outcome, String> {
    let found = Outcome::ALL.into_iter().find(|known| value.as_str() == Some(known.as_str()));
    found.ok_or_else(|| wanted(value, &Outcome::ALL.map(Outcome::as_str).join(", ")))
}

/// A text of one line. A control character takes six bytes in JSON, so two such texts could not be kept within the bound.
pub(super) fn line(value: &Value, max: usize) -> Result<String, String> {
    let want = format!("at most {max} bytes of text without control characters");
    let text = text(value, &want)?;
    let is_fit = text.len() <= max && !text.chars().any(char::is_control);
    if is_fit { Ok(text.to_owned()) } else { Err(wanted(value, &want)) }
}

/// A text for [`line()`]: cut where a character ends.
fn fit(text: &str, max: usize) -> String {
    let end = text.floor_char_boundary(max);
    text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests;
