//! Timers and answers as programs see them: in JSON, with a stable form.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::known::{Answer, Name, Timer};
use super::token::Ticket;

/// `id` and `key`; a key that is not UTF-8 stands in `key_base64`.
pub(super) fn name(name: &Name) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("id".to_owned(), json!(name.id));
    match name.key.as_deref().map(|key| (key, std::str::from_utf8(key))) {
        None => map.insert("key".to_owned(), Value::Null),
        Some((_, Ok(text))) => map.insert("key".to_owned(), json!(text)),
        Some((key, Err(_))) => map.insert("key_base64".to_owned(), json!(STANDARD.encode(key))),
    };
    map
}

/// A timer whole.
pub(super) fn timer(timer: &Timer) -> Value {
    let mut map = name(&timer.name);
    if timer.key_cut {
        map.insert("key_cut".to_owned(), json!(true));
    }
    map.insert("state".to_owned(), json!(timer.state));
    map.insert("target".to_owned(), json!(timer.target));
    map.insert("due".to_owned(), json!(timer.due));
    map.insert("lane".to_owned(), json!(timer.lane));
    map.insert("label".to_owned(), json!(timer.label));
    map.insert("version".to_owned(), json!(timer.version));
    map.insert("since".to_owned(), json!(timer.since));
    if let Some(superseded) = &timer.supersedes {
        map.insert("supersedes".to_owned(), json!(superseded));
    }
    if let Some(code) = &timer.code {
        map.insert("code".to_owned(), json!(code));
    }
    Value::Object(map)
}

/// The way to ask again.
pub(super) fn again(ticket: &Ticket) -> String {
    format!("/v1/cancels/{}", ticket.encode())
}

/// `{"id", "key", "outcome"}`; with `again` where it is pending.
pub(super) fn outcome(ticket: &Ticket, answer: &Answer) -> Value {
    let mut map = name(&ticket.name);
    match answer {
        Answer::Decided { outcome, state, code, .. } => {
            map.insert("outcome".to_owned(), json!(outcome));
            if let Some(state) = state {
                map.insert("state".to_owned(), json!(state));
            }
            if let Some(code) = code {
                map.insert("code".to_owned(), json!(code));
            }
        }
        Answer::Pending | Answer::Lost => {
            map.insert("outcome".to_owned(), json!("pending"));
            map.insert("again".to_owned(), json!(again(ticket)));
        }
    }
    Value::Object(map)
}
