//! Reads the fields of a JSON document, and collects every one that is wrong.
//!
//! # Invariants
//! 1. Nothing is guessed: a field that nobody knows, a field that is there twice and a null are wrong.
//! 2. An answer is bounded: it names at most [`WRONG_MAX`] fields, and counts the rest.
//! 3. An answer has no control character, and shows at most [`SHOWN_MAX`] characters of a value or of a name.

use std::fmt;
use std::ops::RangeInclusive;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::super::Millis;
use super::super::header::duration_with_unit;

/// Most wrong fields that one answer names.
const WRONG_MAX: usize = 100;
/// Most characters of a value that an answer shows.
const SHOWN_MAX: usize = 60;

/// A field that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at} {detail}")]
pub struct Wrong {
    /// Where it stands: `retry.count`, `headers[2][0]`. The document as a whole goes by the name of its header.
    pub at: String,
    /// What is wrong with it, and what is wanted. A sentence whose subject is the field.
    pub detail: String,
}

/// The fields of one document that are wrong.
#[derive(Debug, Default)]
pub(crate) struct Wrongs {
    named: Vec<Wrong>,
    more: usize,
}

impl Wrongs {
    pub(crate) fn add(&mut self, at: impl Into<String>, detail: impl Into<String>) {
        if self.named.len() < WRONG_MAX {
            self.named.push(Wrong { at: at.into(), detail: detail.into() });
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    /// All of them; those that are only counted come last, under the name of the document.
    pub(crate) fn list(mut self, document: &str) -> Vec<Wrong> {
        if self.more > 0 {
            let detail = format!("has {} more mistakes", self.more);
            self.named.push(Wrong { at: document.to_owned(), detail });
        }
        self.named
    }
}

/// Reads a document that is to be one JSON object of at most `max` bytes. It goes by the name of its header.
pub(crate) fn document(
    name: &str,
    bytes: &[u8],
    max: usize,
    wrongs: &mut Wrongs,
) -> Option<Map<String, Value>> {
    if bytes.len() > max {
        wrongs.add(name, format!("has {} bytes; want at most {max}", bytes.len()));
        return None;
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let tree = Tree { at: "", wrongs: &mut *wrongs }.deserialize(&mut reader);
    match tree.and_then(|tree| reader.end().map(|()| tree)) {
        Ok(Value::Object(map)) => Some(map),
        Ok(other) => {
            wrongs.add(name, wanted(&other, "a JSON object"));
            None
        }
        Err(error) => {
            wrongs.add(name, format!("is not JSON: {}", escaped(&error.to_string())));
            None
        }
    }
}

/// Reads any JSON. A plain `Value` would take the last of two fields of one name, and say nothing.
struct Tree<'a> {
    at: &'a str,
    wrongs: &'a mut Wrongs,
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, is: bool) -> Result<Value, E> {
        Ok(is.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let at = item(self.at, list.len());
            match items.next_element_seed(Tree { at: &at, wrongs: &mut *self.wrongs })? {
                Some(value) => list.push(value),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let at = field(self.at, &name);
            let value = fields.next_value_seed(Tree { at: &at, wrongs: &mut *self.wrongs })?;
            if map.insert(name, value).is_some() {
                self.wrongs.add(at, "is there more than once; want it once");
            }
        }
        Ok(Value::Object(map))
    }
}

/// Where a field of an object stands.
pub(crate) fn field(at: &str, name: &str) -> String {
    let name = cut(&escaped(name));
    if at.is_empty() { name } else { format!("{at}.{name}") }
}

/// Where an item of a list stands.
pub(crate) fn item(at: &str, index: usize) -> String {
    format!("{at}[{index}]")
}

/// The fields of one object.
#[derive(Debug)]
pub(crate) struct Fields<'v> {
    at: String,
    map: &'v Map<String, Value>,
}

impl<'v> Fields<'v> {
    /// Those of the document itself.
    pub(crate) fn of_document(map: &'v Map<String, Value>) -> Self {
        Self { at: String::new(), map }
    }

    /// Those of a field that is to be an object, if it is there.
    pub(crate) fn inside(&self, name: &str, wrongs: &mut Wrongs) -> Option<Self> {
        let map = self.read(name, wrongs, |value| {
            value.as_object().ok_or_else(|| wanted(value, "a JSON object"))
        })?;
        Some(Self { at: self.at(name), map })
    }

    pub(crate) fn at(&self, name: &str) -> String {
        field(&self.at, name)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'v Value> {
        self.map.get(name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// A field that may be missing.
    pub(crate) fn read<T>(
        &self,
        name: &str,
        wrongs: &mut Wrongs,
        read: impl FnOnce(&'v Value) -> Result<T, String>,
    ) -> Option<T> {
        read(self.get(name)?).map_err(|detail| wrongs.add(self.at(name), detail)).ok()
    }

    /// A field that may not be missing.
    pub(crate) fn require<T>(
        &self,
        name: &str,
        wrongs: &mut Wrongs,
        read: impl FnOnce(&'v Value) -> Result<T, String>,
    ) -> Option<T> {
        if self.has(name) {
            return self.read(name, wrongs, read);
        }
        // No reader takes a null, and each one says what it wants instead.
        let detail = read(&Value::Null).err().unwrap_or_default();
        wrongs.add(self.at(name), detail.replacen("is null", "is missing", 1));
        None
    }

    /// Names the fields that are not in the list; `of` says whose list it is.
    pub(crate) fn only(&self, known: &[&str], of: &str, wrongs: &mut Wrongs) {
        for name in self.map.keys().filter(|name| !known.contains(&name.as_str())) {
            let hint = match nearest(name, known) {
                Some(near) => format!("did you mean {near}?"),
                None if known.is_empty() => "it has no fields".to_owned(),
                None => format!("the fields are {}", known.join(", ")),
            };
            wrongs.add(self.at(name), format!("is not a field of {of}; {hint}"));
        }
    }
}

/// The name that somebody meant who wrote this one.
pub(crate) fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    // The distance takes memory with the product of the lengths.
    if name.len() > SHOWN_MAX {
        return None;
    }
    let near = known.iter().map(|known| (strsim::damerau_levenshtein(name, known), *known));
    // A quarter of the letters and one more, but never more than three.
    let near = near.filter(|(apart, _)| *apart <= 3.min(1 + name.len() / 4)).min();
    near.map(|(_, near)| near)
}

/// Says that a value is not what is wanted.
pub(crate) fn wanted(value: &Value, want: &str) -> String {
    format!("is {}; want {want}", shown(value))
}

/// What is wrong with an address. It is not shown if it may have a password.
pub(crate) fn wanted_address(text: &str, want: &str) -> String {
    match text {
        text if text.contains(['@', '?']) => {
            format!("is something else (not shown, as it may have a password); want {want}")
        }
        text => wanted(&Value::from(text), want),
    }
}

/// A value as an answer may show it.
pub(crate) fn shown(value: &Value) -> String {
    cut(&escaped(&value.to_string()))
}

/// A text without control characters, which could forge a line of a log.
fn escaped(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { clean.extend(c.escape_default()) } else { clean.push(c) }
    }
    clean
}

/// The first characters of a text.
fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// A text.
pub(crate) fn text<'v>(value: &'v Value, want: &str) -> Result<&'v str, String> {
    value.as_str().ok_or_else(|| wanted(value, want))
}

/// An integer within bounds.
pub(crate) fn integer(value: &Value, bounds: RangeInclusive<u64>) -> Result<u64, String> {
    value.as_u64().filter(|number| bounds.contains(number)).ok_or_else(|| {
        wanted(value, &format!("an integer from {} to {}", bounds.start(), bounds.end()))
    })
}

/// What an answer wants for a length of time.
const LENGTH: &str = "a length of time (\"1m30s\"; a number is seconds)";

/// A length of time of any size: an integer of *seconds*, or a text as `x-delay` takes it, with its unit.
pub(crate) fn any_length(value: &Value) -> Result<Millis, String> {
    read_length(value).ok_or_else(|| wanted(value, LENGTH))
}

/// A length of time as [`any_length`] reads it, within bounds.
pub(crate) fn length(value: &Value, bounds: RangeInclusive<Millis>) -> Result<Millis, String> {
    read_length(value).filter(|length| bounds.contains(length)).ok_or_else(|| {
        wanted(value, &format!("{LENGTH}, from {} to {}", bounds.start(), bounds.end()))
    })
}

fn read_length(value: &Value) -> Option<Millis> {
    match value {
        Value::Number(number) => number.as_u64().map(|s| Millis(s.saturating_mul(1_000))),
        Value::String(text) => duration_with_unit(text),
        _ => None,
    }
}

/// Bytes in base64, at most so many.
pub(crate) fn bytes(value: &Value, max: usize) -> Result<Vec<u8>, String> {
    let want = format!("base64 with padding, of at most {max} bytes");
    let bytes = STANDARD.decode(text(value, &want)?).ok();
    bytes.filter(|bytes| bytes.len() <= max).ok_or_else(|| wanted(value, &want))
}

/// Writes bytes for [`bytes`].
pub(crate) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Writes a length of time for [`length`]: as seconds where it is a number of them.
#[derive(Debug)]
pub(crate) struct Length(pub(crate) Millis);

impl Serialize for Length {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.0.0.is_multiple_of(1_000) {
            to.serialize_u64(self.0.0 / 1_000)
        } else {
            to.collect_str(&self.0)
        }
    }
}

/// Writes a document that consists of texts and numbers; there is nothing in it that JSON does not have.
pub(crate) fn to_json(document: &impl Serialize) -> String {
    serde_json::to_string(document).expect("texts and numbers")
}

#[cfg(test)]
mod tests;
