//! What instances answer to commands, in JSON: the API writes these types, and the client and the command line read them.
//!
//! The lower half of [`Client`](crate::Client), like [`http`](crate::http): a service does not need it. What a newer instance
//! adds is kept, and written again.

use std::collections::BTreeMap;

use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};
use waterclock_engine::timers::{CommandStatus, TimerName};

use crate::http::Problem;
use crate::timer::{write_key, written};

/// What became of a cancel of a timer, or of another time for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct CommandResult {
    /// The id of the timer.
    #[serde(default)]
    pub id: String,
    /// The key of its record, if it has one that is text.
    #[serde(default)]
    pub key: Option<String>,
    /// The key of its record in base64, if it has one that is no text.
    #[serde(default)]
    pub key_base64: Option<String>,
    /// `pending` while it is not decided; else a word of
    /// [`CommandOutcome`](waterclock_engine::timers::CommandOutcome).
    pub outcome: String,
    /// How the timer ended, if the outcome does not say so.
    #[serde(default)]
    pub state: Option<String>,
    /// Why it is a dead letter, if it is: a code of the header contract.
    #[serde(default)]
    pub code: Option<String>,
    /// When it is due now, in milliseconds since 1970, if it was given another time.
    #[serde(default)]
    pub due: Option<u64>,
    /// While it is pending: the path at which to ask again.
    #[serde(default)]
    pub again: Option<String>,
    /// What a newer instance adds.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl CommandResult {
    /// The outcome of a command that is not decided.
    pub const PENDING: &str = "pending";

    /// What is known of a command about this timer; `again` is where to ask while that is not much.
    #[must_use]
    pub fn new(name: &TimerName, status: &CommandStatus, again: impl FnOnce() -> String) -> Self {
        let (key, key_base64) = written(name.key.as_deref());
        let named = Self { id: name.id.clone(), key, key_base64, ..Self::default() };
        match status {
            CommandStatus::Decided { outcome, state, code, .. } => Self {
                outcome: outcome.as_str().to_owned(),
                state: state.map(|state| state.as_str().to_owned()),
                code: code.map(|code| code.as_str().to_owned()),
                ..named
            },
            CommandStatus::Pending | CommandStatus::Lost => {
                Self { outcome: Self::PENDING.to_owned(), again: Some(again()), ..named }
            }
        }
    }

    /// The ticket to ask again with, if there is one: the end of the path.
    #[must_use]
    pub fn ticket(&self) -> Option<&str> {
        self.again.as_deref().and_then(|path| path.rsplit('/').next())
    }
}

/// By hand, as for a [`Timer`](crate::Timer): without a key there is `"key": null`, and with a key that is no text no `key`.
impl Serialize for CommandResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        write_key(&mut map, &self.key, &self.key_base64)?;
        map.serialize_entry("outcome", &self.outcome)?;
        for (name, text) in [("state", &self.state), ("code", &self.code), ("again", &self.again)] {
            if let Some(text) = text {
                map.serialize_entry(name, text)?;
            }
        }
        if let Some(due) = self.due {
            map.serialize_entry("due", &due)?;
        }
        for (name, value) in &self.more {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// How many timers a bulk cancel would cancel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkCount {
    /// How many.
    pub count: u64,
    /// What to cancel them with.
    pub token: String,
    /// Until when, in milliseconds since 1970.
    #[serde(default)]
    pub expires: u64,
    /// What a newer instance adds.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// What became of a page of a bulk cancel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkPage {
    /// How many were counted in all.
    pub count: u64,
    /// How many there are of each outcome.
    pub outcomes: BTreeMap<String, u64>,
    /// The next page, if this was not the last one.
    pub next: Option<String>,
}

/// Answers about many timers, in the order in which these were named.
#[derive(Clone, Debug, Deserialize)]
pub struct Batch<T> {
    /// One for each.
    pub timers: Vec<Each<T>>,
}

/// One of a batch: the answer, or what is wrong with it.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Each<T> {
    /// There is no answer.
    Wrong {
        /// Why.
        problem: Wrong,
    },
    /// The answer.
    Right(T),
}

/// What is wrong with one of a batch.
#[derive(Clone, Debug, Deserialize)]
pub struct Wrong {
    /// The status that it would have alone.
    pub status: u16,
    /// What it is.
    #[serde(flatten)]
    pub problem: Problem,
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use waterclock_engine::header::Code;
    use waterclock_engine::timers::{CommandOutcome, TimerState};

    use super::*;

    #[test]
    fn a_result_is_written_as_documented_and_read_back() {
        let decided =
            |outcome, state, code| CommandStatus::Decided { outcome, state, code, is_last: false };
        let cancelled = decided(CommandOutcome::Cancelled, None, None);
        let dead = decided(CommandOutcome::Unknown, Some(TimerState::Dead), Some(Code::TooLarge));
        let (text, bytes) = (b"k".as_slice(), b"\xff\xef".as_slice());
        #[rustfmt::skip]
        let cases = [
            (None,        &cancelled,              r#"{"id":"i","key":null,"outcome":"cancelled"}"#),
            (Some(text),  &dead,                   r#"{"id":"i","key":"k","outcome":"unknown","state":"dead","code":"too_large"}"#),
            (Some(bytes), &CommandStatus::Pending, r#"{"id":"i","key_base64":"/+8=","outcome":"pending","again":"/v1/cancels/t"}"#),
            (None,        &CommandStatus::Lost,    r#"{"id":"i","key":null,"outcome":"pending","again":"/v1/cancels/t"}"#),
        ];
        for (key, status, want) in cases {
            let name = TimerName { id: "i".to_owned(), key: key.map(<[u8]>::to_vec) };
            let result = CommandResult::new(&name, status, || "/v1/cancels/t".to_owned());
            let text = serde_json::to_string(&result).expect("JSON");
            assert_eq!(text, want);
            assert_eq!(result.ticket(), want.contains("again").then_some("t"));
            assert_eq!(serde_json::from_str::<CommandResult>(&text).expect("read"), result);
        }
    }

    #[test]
    fn what_a_newer_instance_adds_is_written_again() {
        let result = json!({ "id": "i", "key": "k", "outcome": "paused", "until": { "at": 5 } });
        let read: CommandResult = serde_json::from_value(result.clone()).expect("read");
        assert_eq!((read.outcome.as_str(), json!(read)), ("paused", result));
        let count = json!({ "count": 2, "expires": 7, "token": "t", "lanes": [1] });
        let read: BulkCount = serde_json::from_value(count.clone()).expect("read");
        assert_eq!((read.count, json!(read)), (2, count));
    }

    #[test]
    fn each_of_a_batch_is_an_answer_or_a_problem() {
        let text = r#"{"timers":[{"id":"i","outcome":"recorded"},{"id":"j","problem":{"code":"key_needed","detail":"d","status":409}}]}"#;
        let read: Batch<CommandResult> = serde_json::from_str(text).expect("read");
        match &*read.timers {
            [Each::Right(result), Each::Wrong { problem: Wrong { status: 409, problem } }] => {
                assert_eq!((&*result.outcome, &*problem.code), ("recorded", "key_needed"));
            }
            other => panic!("{other:?}"),
        }
    }
}
