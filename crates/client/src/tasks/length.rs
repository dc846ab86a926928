//! Lengths of time as requests and answers have them: seconds, or a text with units.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use waterclock_engine::header::duration_with_unit;

use super::super::delayed::millis;

/// As a request says it: never shorter.
pub(super) fn length(of: Duration) -> Value {
    Value::String(format!("{}ms", millis(of).0))
}

/// Reads one of an answer.
pub(super) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Length {
        Seconds(u64),
        Text(String),
    }
    match Length::deserialize(from)? {
        Length::Seconds(seconds) => Ok(Duration::from_secs(seconds)),
        Length::Text(text) => duration_with_unit(&text)
            .map(|length| Duration::from_millis(length.0))
            .ok_or_else(|| D::Error::custom(format!("{text:?} is no length of time"))),
    }
}

/// The same, where it may be missing.
pub(super) fn read_some<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    read(from).map(Some)
}
