//! Reads requests. It guesses nothing, and names each mistake with its place.
//!
//! # Invariants
//! 1. Every unknown parameter and member is refused: a misspelt filter must not mean everything.
//! 2. Ids and keys are bytes when they arrive, and become text only if they are UTF-8.

use std::cell::RefCell;
use std::fmt;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde::Deserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::super::problem::Problem;
use super::model::{Filter, TimerName, TimerState};
use crate::engine::header::{self, When};
use crate::engine::timers::{BadVersion, Version};
use crate::engine::{Millis, UnixMillis};

/// Longest id, in bytes; as in the header contract.
const ID_BYTES_MAX: usize = 255;

/// `%41b` as bytes; `+` is a space where forms are read.
fn percent_decoded(text: &str, form: bool, at: &str) -> Result<Vec<u8>, Problem> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (bytes, mut read, mut next) = (text.as_bytes(), Vec::with_capacity(text.len()), 0);
    while let Some(byte) = bytes.get(next) {
        match byte {
            b'%' => {
                let high = bytes.get(next + 1).copied().and_then(digit);
                let low = bytes.get(next + 2).copied().and_then(digit);
                let (Some(high), Some(low)) = (high, low) else {
                    let detail = "a % is followed by two hexadecimal digits";
                    return Err(Problem::bad("bad_encoding", at, detail));
                };
                read.push(high << 4 | low);
                next += 3;
            }
            b'+' if form => {
                read.push(b' ');
                next += 1;
            }
            _ => {
                read.push(*byte);
                next += 1;
            }
        }
    }
    Ok(read)
}

/// The parameters behind the question mark, each of which may be taken once.
#[derive(Debug)]
pub(in crate::api) struct Query(Vec<(String, Vec<u8>)>);

impl Query {
    /// Reads them; only those `known` may be there, and each once.
    pub(in crate::api) fn read(query: Option<&str>, known: &[&str]) -> Result<Self, Problem> {
        let mut all: Vec<(String, Vec<u8>)> = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = percent_decoded(name, true, "query")?;
            let name = String::from_utf8_lossy(&name).into_owned();
            let at = format!("query.{name}");
            if !known.contains(&name.as_str()) {
                let detail = match known {
                    [] => "it takes no parameters".to_owned(),
                    _ => format!("want one of {}", known.join(", ")),
                };
                return Err(Problem::bad("unknown_parameter", at, detail));
            }
            if all.iter().any(|(other, _)| *other == name) {
                return Err(Problem::bad("doubled_parameter", at, "it stands there twice"));
            }
            let value = percent_decoded(value, true, &at)?;
            all.push((name, value));
        }
        Ok(Self(all))
    }

    fn take(&mut self, name: &str) -> Option<Vec<u8>> {
        let at = self.0.iter().position(|(other, _)| other == name)?;
        Some(self.0.swap_remove(at).1)
    }

    pub(in crate::api) fn text(&mut self, name: &str) -> Result<Option<String>, Problem> {
        let text = |bytes: Vec<u8>| {
            String::from_utf8(bytes).map_err(|_| {
                Problem::bad("not_utf8", format!("query.{name}"), "want text in UTF-8")
            })
        };
        self.take(name).map(text).transpose()
    }

    /// `key` or `key_base64`; `None`: a timer without a key.
    pub(super) fn key(&mut self) -> Result<Option<Vec<u8>>, Problem> {
        match (self.take("key"), self.text("key_base64")?) {
            (Some(_), Some(_)) => {
                let detail = "say key or key_base64, not both";
                Err(Problem::bad("two_keys", "query.key_base64", detail))
            }
            (Some(key), None) if std::str::from_utf8(&key).is_err() => {
                let detail = "want text in UTF-8; say key_base64 for other bytes";
                Err(Problem::bad("not_utf8", "query.key", detail))
            }
            (Some(key), None) => Ok(Some(key)),
            (None, Some(text)) => base64_key(&text, "query.key_base64").map(Some),
            (None, None) => Ok(None),
        }
    }
}

fn base64_key(text: &str, at: &str) -> Result<Vec<u8>, Problem> {
    let read =
        STANDARD.decode(text).or_else(|_| URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')));
    read.map_err(|_| Problem::bad("bad_base64", at, "want base64"))
}

/// An id as the header contract takes it.
pub(super) fn id(bytes: Vec<u8>, at: &str) -> Result<String, Problem> {
    let wrong = |detail: String| Problem::bad("bad_id", at, detail);
    if bytes.is_empty() {
        return Err(wrong("the id is empty; want 1 to 255 bytes".to_owned()));
    }
    if bytes.len() > ID_BYTES_MAX {
        return Err(wrong(format!("the id has {} bytes; want 1 to {ID_BYTES_MAX}", bytes.len())));
    }
    let Ok(id) = String::from_utf8(bytes) else {
        return Err(wrong("the id is not UTF-8".to_owned()));
    };
    if id.chars().any(char::is_control) {
        return Err(wrong("the id has control characters".to_owned()));
    }
    if id.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err(wrong("the id has a segment . or .., which paths take for another".to_owned()));
    }
    Ok(id)
}

/// The id in a path, behind its prefix.
pub(in crate::api) fn id_of_path(path: &str, prefix: &str) -> Result<String, Problem> {
    let text = path.strip_prefix(prefix).unwrap_or_default();
    id(percent_decoded(text, false, "path.id")?, "path.id")
}

/// The body as an object with members of these names only.
pub(super) fn body(
    body: Result<Bytes, BytesRejection>,
    known: &[&str],
) -> Result<Map<String, Value>, Problem> {
    let body = body.map_err(|error| {
        let status = error.status();
        let code = if status == StatusCode::PAYLOAD_TOO_LARGE { "too_large" } else { "no_body" };
        Problem::new(status, code, error.body_text())
    })?;
    object(json(&body)?, "body", known)
}

/// Reads JSON. An object that has a member twice is refused: readers differ in which of the two they take.
pub(in crate::api) fn json(body: &[u8]) -> Result<Value, Problem> {
    let doubled = RefCell::new(None);
    let mut reader = serde_json::Deserializer::from_slice(body);
    let read = Part { at: "body", doubled: &doubled }.deserialize(&mut reader);
    let read = read.and_then(|value| reader.end().map(|()| value));
    read.map_err(|error| match doubled.take() {
        Some(at) => Problem::bad("doubled_member", at, "it stands there twice"),
        None => Problem::bad("not_json", "body", format!("want JSON: {error}")),
    })
}

/// A part of a body that is read, and where it stands.
struct Part<'a> {
    at: &'a str,
    /// The member that was met twice.
    doubled: &'a RefCell<Option<String>>,
}

impl Part<'_> {
    fn within<'a>(&'a self, at: &'a str) -> Part<'a> {
        Part { at, doubled: self.doubled }
    }
}

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        loop {
            let at = format!("{}[{}]", self.at, values.len());
            match all.next_element_seed(self.within(&at))? {
                Some(value) => values.push(value),
                None => return Ok(Value::Array(values)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = all.next_key::<String>()? {
            let at = format!("{}.{name}", self.at);
            if map.contains_key(&name) {
                self.doubled.replace(Some(at));
                return Err(A::Error::custom("a member stands there twice"));
            }
            let value = all.next_value_seed(self.within(&at))?;
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

/// An object with members of these names only.
pub(in crate::api) fn object(
    value: Value,
    at: &str,
    known: &[&str],
) -> Result<Map<String, Value>, Problem> {
    let Value::Object(map) = value else {
        return Err(Problem::bad("not_an_object", at, "want a JSON object"));
    };
    if let Some(name) = map.keys().find(|name| !known.contains(&name.as_str())) {
        let detail = format!("want one of {}", known.join(", "));
        return Err(Problem::bad("unknown_member", format!("{at}.{name}"), detail));
    }
    Ok(map)
}

/// A member of a JSON object; `null` is as if it were not there.
pub(super) fn member<T: DeserializeOwned>(
    map: &mut Map<String, Value>,
    at: &str,
    name: &str,
    want: &str,
) -> Result<Option<T>, Problem> {
    match map.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => serde_json::from_value(value).map(Some).map_err(|_| {
            Problem::bad("wrong_type", format!("{at}.{name}"), format!("want {want}"))
        }),
    }
}

/// `id` with `key` or `key_base64` of a JSON object.
pub(super) fn name(map: &mut Map<String, Value>, at: &str) -> Result<TimerName, Problem> {
    let text: Option<String> = member(map, at, "id", "a string")?;
    let id = id(text.unwrap_or_default().into_bytes(), &format!("{at}.id"))?;
    let key: Option<String> = member(map, at, "key", "a string")?;
    let base64: Option<String> = member(map, at, "key_base64", "a string")?;
    let at = format!("{at}.key_base64");
    let key = match (key, base64) {
        (Some(_), Some(_)) => {
            return Err(Problem::bad("two_keys", at, "say key or key_base64, not both"));
        }
        (Some(key), None) => Some(key.into_bytes()),
        (None, Some(text)) => Some(base64_key(&text, &at)?),
        (None, None) => None,
    };
    Ok(TimerName { id, key })
}

/// A point in time, as the header contract reads it; in a body as text or as a number.
pub(in crate::api) fn moment(value: &Value, at: &str) -> Result<UnixMillis, Problem> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => {
            let detail = "want RFC 3339 with a zone, or epoch milliseconds";
            return Err(Problem::bad("bad_time", at, detail));
        }
    };
    match header::until(&text) {
        Ok(When::At(at)) => Ok(at),
        _ => {
            let detail = format!(
                "{text:?} is no point in time; want RFC 3339 with a zone, or epoch milliseconds from 10^12 to 10^14"
            );
            Err(Problem::bad("bad_time", at, detail))
        }
    }
}

/// A length of time in milliseconds, as the header contract reads it; at most `most_ms`.
pub(super) fn span(text: &str, at: &str, most_ms: u64) -> Result<u64, Problem> {
    match header::duration(text) {
        Ok(Millis(ms)) if ms <= most_ms => Ok(ms),
        Ok(_) => {
            let detail = format!("want at most {} s", most_ms / 1_000);
            Err(Problem::bad("bad_duration", at, detail))
        }
        Err(error) => Err(Problem::bad("bad_duration", at, error.to_string())),
    }
}

/// A version, as answers show it.
pub(super) fn version(text: &str, at: &str) -> Result<Version, Problem> {
    text.parse().map_err(|error: BadVersion| Problem::bad("bad_version", at, error.to_string()))
}

/// A state, as answers show it.
pub(super) fn state(text: &str, at: &str) -> Result<TimerState, Problem> {
    text.parse().map_err(|_| {
        let states = TimerState::ALL.map(TimerState::as_str).join(", ");
        Problem::bad("bad_state", at, format!("{text:?} is no state; want one of {states}"))
    })
}

/// Checks a filter whose members were each read already.
pub(super) fn checked(filter: Filter, at: &str) -> Result<Filter, Problem> {
    if let (Some(after), Some(before)) = (filter.due_after, filter.due_before)
        && after >= before
    {
        let detail = "due_before is not after due_after: no timer can be meant";
        return Err(Problem::bad("bad_window", format!("{at}.due_before"), detail));
    }
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_paths_are_percent_decoded_once_and_checked() {
        let long = "a".repeat(256);
        #[rustfmt::skip]
        let cases = [
            ("plain",               "a-1",          Ok("a-1")),
            ("a slash and a space", "a%2Fb%20c",    Ok("a/b c")),
            ("a plus is a plus",    "a+b",          Ok("a+b")),
            ("decoded once",        "%2525",        Ok("%25")),
            ("dots",                "a/%2e%2e",     Err("bad_id")),
            ("dots in a name",      "a..b",         Ok("a..b")),
            ("umlaut",              "%C3%A4",       Ok("ä")),
            ("empty",               "",             Err("bad_id")),
            ("too long",            &long,          Err("bad_id")),
            ("not UTF-8",           "%FF",          Err("bad_id")),
            ("a line feed",         "a%0A",         Err("bad_id")),
            ("a C1 control",        "%C2%85",       Err("bad_id")),
            ("half a digit",        "%4",           Err("bad_encoding")),
            ("no digit",            "%zz",          Err("bad_encoding")),
        ];
        for (why, text, want) in cases {
            let read = id_of_path(&format!("/v1/timers/{text}"), "/v1/timers/");
            let code = |problem: Problem| problem.as_json()["code"].as_str().map(str::to_owned);
            match (read, want) {
                (Ok(id), Ok(want)) => assert_eq!(id, want, "{why}"),
                (Err(problem), Err(want)) => {
                    assert_eq!(code(problem).as_deref(), Some(want), "{why}");
                }
                (read, want) => panic!("{why}: {read:?}, want {want:?}"),
            }
        }
    }

    #[test]
    fn keys_are_text_or_base64_and_never_both() {
        type Case<'a> = (&'a str, &'a str, Result<Option<&'a [u8]>, &'a str>);
        #[rustfmt::skip]
        let cases: [Case<'_>; 8] = [
            ("none",            "",                         Ok(None)),
            ("empty is a key",  "key=",                     Ok(Some(b""))),
            ("a plus is space", "key=a+b",                  Ok(Some(b"a b"))),
            ("binary",          "key_base64=%2F%2B8%3D",    Ok(Some(b"\xff\xef"))),
            ("url-safe",        "key_base64=_-8",           Ok(Some(b"\xff\xef"))),
            ("both",            "key=a&key_base64=YQ%3D%3D", Err("two_keys")),
            ("not UTF-8",       "key=%FF",                  Err("not_utf8")),
            ("no base64",       "key_base64=%21",           Err("bad_base64")),
        ];
        for (why, query, want) in cases {
            let mut query = Query::read(Some(query), &["key", "key_base64"]).expect(why);
            match (query.key(), want) {
                (Ok(key), Ok(want)) => assert_eq!(key.as_deref(), want, "{why}"),
                (Err(problem), Err(want)) => assert_eq!(problem.as_json()["code"], want, "{why}"),
                (read, want) => panic!("{why}: {read:?}, want {want:?}"),
            }
        }
    }

    #[test]
    fn a_misspelt_or_doubled_parameter_is_no_filter() {
        for (query, code) in [("stat=delay", "unknown_parameter"), ("a=1&a=2", "doubled_parameter")]
        {
            let problem = Query::read(Some(query), &["a", "state"]).expect_err(query);
            assert_eq!(problem.as_json()["code"], code, "{query}");
        }
    }
}
