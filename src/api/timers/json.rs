//! Timers and answers as programs see them: in JSON, with a stable form.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::model::{CommandStatus, LaneTimer, TimerName};
use super::token::Ticket;
use crate::client;
use crate::client::command::CommandResult;

/// `id` and `key`; a key that is not UTF-8 stands in `key_base64`.
pub(super) fn name(name: &TimerName) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("id".to_owned(), json!(name.id));
    match name.key.as_deref().map(|key| (key, std::str::from_utf8(key))) {
        None => map.insert("key".to_owned(), Value::Null),
        Some((_, Ok(text))) => map.insert("key".to_owned(), json!(text)),
        Some((key, Err(_))) => map.insert("key_base64".to_owned(), json!(STANDARD.encode(key))),
    };
    map
}

/// A timer, as the client reads it.
pub(super) fn timer(of: &LaneTimer) -> Value {
    json!(client::Timer::from(of))
}

/// The path that tells what became of a command.
pub(super) fn status_path(ticket: &Ticket) -> String {
    format!("/v1/cancels/{}", ticket.encode())
}

/// `{"id", "key", "outcome"}`; with `again` where it is pending.
pub(super) fn outcome(ticket: &Ticket, status: &CommandStatus) -> CommandResult {
    CommandResult::new(&ticket.name, status, || status_path(ticket))
}
