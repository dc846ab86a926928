//! What a caller sends who wants a task: the fields of the specification and those of the record, flat in one JSON object.
//!
//! # Invariants
//! 1. A request has one meaning or is refused, and the answer names every field that is wrong, those of the specification too.
//! 2. A request that was read has a legal [`Spec`], and a body, a key and headers within their bounds.

use std::ops::RangeInclusive;

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::super::{Millis, UnixMillis};
use super::Wrong;
use super::fields::{self, Fields, Wrongs, any_length, bytes, document, item, text, wanted};
use super::id::REQUEST_ID_MAX;
use super::registry;
use super::spec::{self, BodyFormat, KEY_MAX, Kind, Spec};

/// Longest body of a task, in bytes.
pub const BODY_MAX: usize = 1 << 20;
/// Most tasks in one batch.
pub const BATCH_MAX: usize = 1_000;
/// Most headers of a Kafka task.
pub const HEADERS_MAX: usize = 64;
/// Most bytes of a Kafka task's headers, names and values together.
pub const HEADERS_BYTES_MAX: usize = 16 << 10;
/// Points in time in epoch milliseconds, as the header contract takes them. Below are seconds, which somebody wrote by mistake.
const TIMES: RangeInclusive<u64> = 1_000_000_000_000..=TIME_MAX.0;
/// The last one.
pub(crate) const TIME_MAX: UnixMillis = UnixMillis(100_000_000_000_000);
/// What a request is called in an answer about all of it.
pub(crate) const DOCUMENT: &str = "request";

/// A type of task that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskType {
    /// An HTTP call.
    Http,
    /// A record for a topic.
    Kafka,
    /// A call over gRPC.
    Grpc,
    /// Many tasks that count as one.
    Run,
}

impl TaskType {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Kafka => "kafka",
            Self::Grpc => "grpc",
            Self::Run => spec::RUN,
        }
    }
}

/// When a task is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Then; at once if that is over.
    At(UnixMillis),
    /// So long after the request came.
    In(Millis),
}

/// What a task sends, where it does not stand in the JSON of its request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// The key of the record; Kafka tasks only.
    pub key: Option<Vec<u8>>,
    /// The body of the call, or the value of the record.
    pub value: Option<Vec<u8>>,
    /// Headers of the record; Kafka tasks only. Those of a call stand in the specification.
    pub headers: Vec<Header>,
}

/// A header of a record.
pub type Header = (String, Option<Vec<u8>>);

/// What a caller wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is to be done.
    pub spec: Spec,
    /// When.
    pub due: Due,
    /// Over how long a time behind that it may be put off, to spread tasks; `None`: as its project says.
    pub window: Option<Millis>,
    /// After this time it is not begun any more.
    pub expires: Option<UnixMillis>,
    /// The same request id is the same task.
    pub request_id: Option<String>,
    /// The key of the record; Kafka tasks only.
    pub key: Option<Vec<u8>>,
    /// The body of the call, or the value of the record.
    pub value: Option<Vec<u8>>,
    /// The field that has it: `body_b64`, say; the usual one if there is none.
    pub value_at: &'static str,
    /// Headers of the record; Kafka tasks only. Those of a call stand in the specification.
    pub headers: Vec<Header>,
}

/// Fields of a request beside those of its specification.
const COMMON: [&str; 5] = ["trigger_at", "delay", "window", "expires_at", "request_id"];
const CALL: [&str; 2] = [BODY, BODY_B64];
const BODY: &str = "body";
const BODY_B64: &str = "body_b64";
const VALUE: &str = "value";
const VALUE_B64: &str = "value_b64";
/// `key_b64` stands in a specification, too, and means the record's key here.
const KAFKA: [&str; 5] = ["key", "key_b64", VALUE, VALUE_B64, "headers"];

/// Reads one request for a task of this type.
///
/// # Errors
/// Every field that is wrong, at least one.
pub fn read(of: TaskType, json: &[u8], max: usize) -> Result<Request, Vec<Wrong>> {
    let mut wrongs = Wrongs::default();
    let map = document(DOCUMENT, json, max, &mut wrongs);
    let request = map.and_then(|map| one(Some(of), map, None, &mut wrongs));
    sound(request, wrongs)
}

/// Reads one request that has its type among its fields.
///
/// # Errors
/// Every field that is wrong, at least one.
pub(crate) fn read_map(map: Map<String, Value>) -> Result<Request, Vec<Wrong>> {
    let mut wrongs = Wrongs::default();
    let request = one(None, map, None, &mut wrongs);
    sound(request, wrongs)
}

/// Reads one request whose payload did not come as JSON, but beside these fields.
///
/// # Errors
/// Every field that is wrong, at least one.
pub fn read_beside(
    of: TaskType,
    fields: Map<String, Value>,
    payload: Payload,
) -> Result<Request, Vec<Wrong>> {
    let mut wrongs = Wrongs::default();
    let request = one(Some(of), fields, Some(payload), &mut wrongs);
    sound(request, wrongs)
}

/// What is wrong with an `expires_at` that is not behind the time when the task is due.
#[must_use]
pub fn expires_too_early(expires: UnixMillis, due: UnixMillis) -> String {
    let (gap, expires, due) = (due - expires, expires.0, due.0);
    format!("is {expires}, which is {gap} too early; want a time after the task is due ({due})")
}

/// Reads the body of a request that has no fields: there is none, or it is an object without fields.
///
/// # Errors
/// Every field that stands there, or what is there instead of an object.
pub fn read_empty(json: &[u8], max: usize) -> Result<(), Vec<Wrong>> {
    if json.is_empty() {
        return Ok(());
    }
    let mut wrongs = Wrongs::default();
    let map = document(DOCUMENT, json, max, &mut wrongs);
    if let Some(map) = &map {
        Fields::of_document(map).only(&[], "this request", &mut wrongs);
    }
    sound(map.map(drop), wrongs)
}

/// Each task of a batch, or what is wrong with it.
pub type Batch = Vec<Result<Request, Vec<Wrong>>>;

/// Reads `{"tasks": [...]}`: each task has its `type` beside its other fields. A field that is there twice is wrong of the
/// whole batch.
///
/// # Errors
/// What is wrong with all of it; nothing is said of single tasks then.
pub fn read_batch(json: &[u8], max: usize) -> Result<Batch, Vec<Wrong>> {
    let mut wrongs = Wrongs::default();
    let map = document(DOCUMENT, json, max, &mut wrongs);
    let tasks = map.and_then(|mut map| {
        let fields = Fields::of_document(&map);
        fields.only(&["tasks"], "a batch", &mut wrongs);
        fields.require("tasks", &mut wrongs, |value| {
            let count = value.as_array().map(Vec::len);
            count.filter(|count| (1..=BATCH_MAX).contains(count)).ok_or_else(|| match count {
                Some(count) => format!("has {count} tasks; want 1 to {BATCH_MAX}"),
                None => wanted(value, "a list of tasks"),
            })
        })?;
        match map.remove("tasks") {
            Some(Value::Array(tasks)) => Some(tasks),
            _ => None,
        }
    });
    let tasks = sound(tasks, wrongs)?;
    let read = |task: Value| {
        let mut wrongs = Wrongs::default();
        let request = match task {
            Value::Object(map) => one(None, map, None, &mut wrongs),
            other => {
                wrongs.add(DOCUMENT, wanted(&other, "a JSON object"));
                None
            }
        };
        sound(request, wrongs)
    };
    Ok(tasks.into_iter().map(read).collect())
}

fn sound<T>(read: Option<T>, wrongs: Wrongs) -> Result<T, Vec<Wrong>> {
    match read {
        Some(read) if wrongs.is_empty() => Ok(read),
        _ => Err(wrongs.list(DOCUMENT)),
    }
}

/// Reads one request; `of`: its path says which type it is. `beside`: its payload, if that does not stand among the fields.
fn one(
    of: Option<TaskType>,
    mut map: Map<String, Value>,
    beside: Option<Payload>,
    wrongs: &mut Wrongs,
) -> Option<Request> {
    if let Some(of) = of {
        let given = map.entry("type").or_insert_with(|| of.as_str().into());
        if given != of.as_str() {
            wrongs.add("type", wanted(given, &format!("{}, as the path says", of.as_str())));
            return None;
        }
    }
    let is_of = |name: &str| map.get("type").is_some_and(|of_type| of_type == name);
    let (is_kafka, is_grpc, is_run) = (is_of("kafka"), is_of("grpc"), is_of(spec::RUN));
    if is_of(spec::SCHEDULE) {
        wrongs.add("type", "is \"schedule\", which is no task; want http, kafka or grpc");
        return None;
    }
    let is_known = is_kafka || is_grpc || is_run || is_of("http");
    let (own, of_spec, name) = if is_run {
        (&[][..], &spec::RUN_FIELDS[..], "a run")
    } else if is_kafka {
        (&KAFKA[..], &spec::KAFKA_FIELDS[..], "a kafka task")
    } else if is_grpc {
        (&CALL[..], &spec::GRPC_FIELDS[..], "a grpc task")
    } else {
        (&CALL[..], &spec::HTTP_FIELDS[..], "an http task")
    };
    let own = [&COMMON[..], own].concat();
    let of_every = if is_run { &[][..] } else { &spec::COMMON_FIELDS[..] };
    let of_spec = of_every.iter().chain(of_spec);
    let of_spec = of_spec
        .filter(|name| !own.contains(name) && ![spec::OCCURRENCE, spec::SHARD].contains(*name));
    let known: Vec<&str> = own.iter().chain(of_spec).copied().collect();
    {
        let fields = Fields::of_document(&map);
        // Of a type that nobody knows, the fields are not known either; the specification's reader names the type.
        if is_known {
            fields.only(&known, name, wrongs);
        }
    }
    // The specification gets what is its own; what nobody knows was named above.
    let mut rest = Map::new();
    for name in map.keys().cloned().collect::<Vec<_>>() {
        let is_own = own.contains(&name.as_str());
        if !is_own
            && known.contains(&name.as_str())
            && let Some(value) = map.remove(&name)
        {
            rest.insert(name, value);
        }
    }
    if let Some(Value::Object(headers)) = rest.get("headers") {
        let pairs = headers
            .iter()
            .map(|(name, value)| Value::from(vec![name.as_str().into(), value.clone()]));
        let pairs = pairs.collect();
        rest.insert("headers".to_owned(), Value::Array(pairs));
    }
    let spec = Spec::read(&Fields::of_document(&rest), wrongs);
    let fields = Fields::of_document(&map);
    let due = due(&fields, wrongs);
    let window = fields.read("window", wrongs, registry::window);
    let expires = fields.read("expires_at", wrongs, time);
    if let (Some(expires), Some(Due::At(due))) = (expires, due)
        && expires <= due
    {
        wrongs.add("expires_at", expires_too_early(expires, due));
    }
    let request_id = fields.read("request_id", wrongs, request_id);
    // Percent-encoding and defaults make it longer than it was.
    if let Some(spec) = &spec {
        let written = spec.clone().with_request_id(request_id.clone()).with_expires(expires);
        let (len, max) = (written.to_json().len(), spec.bytes_max());
        if len > max {
            let what = "without when it is due, its body and its key";
            wrongs.add(DOCUMENT, format!("has {len} bytes {what}; want at most {max}"));
        }
    }
    let Payload { key, value, headers } = match beside {
        Some(payload) => bounded(payload, if is_kafka { VALUE } else { BODY }, wrongs),
        // Its shards have what is to be sent.
        None if is_run => Payload::default(),
        None if is_kafka => Payload {
            key: either(&fields, "key", KEY_MAX, wrongs),
            value: either(&fields, VALUE, BODY_MAX, wrongs),
            headers: record_headers(&fields, wrongs),
        },
        None if is_grpc => Payload { value: message(&fields, wrongs), ..Payload::default() },
        None => Payload { value: either(&fields, BODY, BODY_MAX, wrongs), ..Payload::default() },
    };
    let value_at = match (is_kafka, fields.has(VALUE_B64), fields.has(BODY_B64)) {
        (true, true, _) => VALUE_B64,
        (true, false, _) => VALUE,
        (false, _, true) => BODY_B64,
        (false, _, false) => BODY,
    };
    let (spec, due) = (spec?, due?);
    if let Kind::Grpc(grpc) = spec.kind() {
        fits_format(grpc.format, &fields, value.as_deref(), value_at, wrongs);
    }
    Some(Request { spec, due, window, expires, request_id, key, value, value_at, headers })
}

/// `trigger_at` or `delay`.
fn due(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Option<Due> {
    let at = fields.read("trigger_at", wrongs, time).map(Due::At);
    // The lanes' longest delay is looked at where it is known.
    let delay = fields.read("delay", wrongs, any_length).map(Due::In);
    match (fields.has("trigger_at"), fields.has("delay")) {
        (true, true) => {
            wrongs.add("delay", "is there beside trigger_at; want exactly one of them");
            None
        }
        (false, false) => {
            wrongs.add("trigger_at", "is missing; want exactly one of trigger_at and delay");
            None
        }
        _ => at.or(delay),
    }
}

fn time(value: &Value) -> Result<UnixMillis, String> {
    let at = value.as_u64().filter(|at| TIMES.contains(at)).map(UnixMillis);
    at.ok_or_else(|| {
        let (from, to) = (TIMES.start(), TIMES.end());
        wanted(value, &format!("epoch milliseconds, an integer from {from} to {to}"))
    })
}

/// Reads a request id, which may stand in a header of the request as well.
///
/// # Errors
/// What is wrong with it, as a sentence whose subject is the field.
pub fn request_id(value: &Value) -> Result<String, String> {
    let want = format!("1 to {REQUEST_ID_MAX} bytes of text without control characters");
    let id = text(value, &want)?;
    let is_fit = (1..=REQUEST_ID_MAX).contains(&id.len()) && !id.chars().any(char::is_control);
    if is_fit { Ok(id.to_owned()) } else { Err(wanted(value, &want)) }
}

/// Bytes: text in a field of this name, or base64 in the one with `_b64` behind it.
fn either(fields: &Fields<'_>, name: &str, max: usize, wrongs: &mut Wrongs) -> Option<Vec<u8>> {
    let in_base64 = format!("{name}_b64");
    let plain = fields.read(name, wrongs, |value| {
        let text =
            text(value, &format!("text of at most {max} bytes; other bytes go into {in_base64}"))?;
        let is_fit = text.len() <= max;
        let too_long = || format!("has {} bytes; want at most {max}", text.len());
        is_fit.then(|| text.as_bytes().to_vec()).ok_or_else(too_long)
    });
    let other = fields.read(&in_base64, wrongs, |value| bytes(value, max));
    if fields.has(name) && fields.has(&in_base64) {
        wrongs.add(in_base64, format!("is there beside {name}; want at most one of them"));
    }
    plain.or(other)
}

/// The body of a gRPC task: a JSON object as it stands here, text that is JSON, or bytes in base64.
fn message(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Option<Vec<u8>> {
    if !fields.get(BODY).is_some_and(Value::is_object) {
        return either(fields, BODY, BODY_MAX, wrongs);
    }
    if fields.has(BODY_B64) {
        wrongs.add(BODY_B64, format!("is there beside {BODY}; want at most one of them"));
    }
    fields.read(BODY, wrongs, |value| {
        let text = value.to_string();
        let too_long = format!("has {} bytes; want at most {BODY_MAX}", text.len());
        if text.len() <= BODY_MAX { Ok(text.into_bytes()) } else { Err(too_long) }
    })
}

/// Whether the body of a gRPC task can be what its format says. Whether it is the method's message is seen at the call.
fn fits_format(
    format: BodyFormat,
    fields: &Fields<'_>,
    body: Option<&[u8]>,
    at: &str,
    wrongs: &mut Wrongs,
) {
    match format {
        BodyFormat::Protobuf if fields.has(BODY) => {
            let detail = format!(
                "is text, and a message of protobuf is bytes; want {BODY_B64}, or format json"
            );
            wrongs.add(BODY, detail);
        }
        BodyFormat::Json => {
            let json = body.unwrap_or_default();
            if !json.is_empty()
                && let Err(error) = serde_json::from_slice::<IgnoredAny>(json)
            {
                wrongs.add(at, format!("is not JSON, as its format says: {error}"));
            }
        }
        BodyFormat::Protobuf => {}
    }
}

/// A payload within its bounds; `value`: what its value is called.
fn bounded(payload: Payload, value: &str, wrongs: &mut Wrongs) -> Payload {
    for (name, bytes, max) in [("key", &payload.key, KEY_MAX), (value, &payload.value, BODY_MAX)] {
        if let Some(bytes) = bytes.as_ref().filter(|bytes| bytes.len() > max) {
            wrongs.add(name, format!("has {} bytes; want at most {max}", bytes.len()));
        }
    }
    if payload.headers.len() > HEADERS_MAX {
        let detail = format!("has {} headers; want at most {HEADERS_MAX}", payload.headers.len());
        wrongs.add("headers", detail);
    }
    for (index, (name, _)) in payload.headers.iter().enumerate() {
        if let Err(detail) = header_name(&Value::from(name.as_str())) {
            wrongs.add(item("headers", index), detail);
        }
    }
    small_headers(&payload.headers, wrongs);
    payload
}

/// Refuses headers that have too many bytes together.
fn small_headers(headers: &[Header], wrongs: &mut Wrongs) {
    let all = headers.iter().map(|(name, value)| name.len() + value.as_ref().map_or(0, Vec::len));
    let all: usize = all.sum();
    if all > HEADERS_BYTES_MAX {
        wrongs.add("headers", format!("has {all} bytes; want at most {HEADERS_BYTES_MAX}"));
    }
}

/// The headers of a record: an object, or a list of pairs where a name is there twice.
fn record_headers(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Vec<Header> {
    let pairs: Vec<(String, &Value, &Value)>;
    let names: Vec<Value>;
    match fields.get("headers") {
        None => return Vec::new(),
        Some(Value::Object(map)) => {
            names = map.keys().map(|name| Value::from(name.as_str())).collect();
            let at = |name: &Value| fields::field("headers", name.as_str().unwrap_or_default());
            pairs = names
                .iter()
                .zip(map.values())
                .map(|(name, value)| (at(name), name, value))
                .collect();
        }
        Some(Value::Array(list)) => {
            let mut found = Vec::with_capacity(list.len());
            for (index, pair) in list.iter().enumerate() {
                let at = item("headers", index);
                match pair.as_array().map(Vec::as_slice) {
                    Some([name, value]) => found.push((at, name, value)),
                    _ => wrongs.add(at, "is not a pair; want [name, value]"),
                }
            }
            pairs = found;
        }
        Some(other) => {
            wrongs.add("headers", wanted(other, "an object, or a list of [name, value] pairs"));
            return Vec::new();
        }
    }
    if pairs.len() > HEADERS_MAX {
        wrongs.add("headers", format!("has {} headers; want at most {HEADERS_MAX}", pairs.len()));
        return Vec::new();
    }
    let mut headers = Vec::with_capacity(pairs.len());
    for (at, name, value) in pairs {
        // Said without it: a value may be a secret.
        let value = value.as_str().ok_or_else(|| "has a value that is not a text".to_owned());
        match (header_name(name), value) {
            (Ok(name), Ok(value)) => headers.push((name, Some(value.as_bytes().to_vec()))),
            (name, value) => {
                for detail in [name.err(), value.err()].into_iter().flatten() {
                    wrongs.add(at.as_str(), detail);
                }
            }
        }
    }
    small_headers(&headers, wrongs);
    headers
}

fn header_name(value: &Value) -> Result<String, String> {
    let want = "the name of a header: 1 to 255 bytes without control characters";
    let name = text(value, want)?;
    if !(1..=255).contains(&name.len()) || name.chars().any(char::is_control) {
        return Err(wanted(value, want));
    }
    if name.to_ascii_lowercase().starts_with("x-delay") {
        return Err(wanted(value, "none of the headers that only waterclock sets (x-delay...)"));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests;
