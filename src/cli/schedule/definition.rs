//! A schedule as a file defines it, in TOML or in JSON.
//!
//! # Invariants
//! 1. A file is checked as an instance checks a request. So every field that is wrong is named before anything is sent.
//! 2. What is sent is what the file says, and nothing besides.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Map, Value};

use super::ScheduleId;
use crate::engine::schedule::LAST_OF_COUNT;
use crate::engine::task::id::TaskId;
use crate::engine::task::spec::Spec;

/// A schedule as a file defines it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Definition {
    /// Which schedule it is.
    pub(super) id: ScheduleId,
    /// Its fields as the file has them.
    pub(super) settings: Value,
    /// Its fields with their defaults, as an instance keeps them.
    pub(super) fields: Map<String, Value>,
}

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Format {
    Toml,
    Json,
}

impl Format {
    /// As the name of a file says; `None`: it does not say.
    pub(super) fn of_name(file: &Path) -> Option<Self> {
        match file.extension()?.to_str()? {
            "toml" => Some(Self::Toml),
            "json" => Some(Self::Json),
            _ => None,
        }
    }

    /// As the text says: no TOML begins with a brace.
    fn of_text(text: &str) -> Self {
        if text.trim_start().starts_with('{') { Self::Json } else { Self::Toml }
    }
}

impl Definition {
    /// Reads a file; `-` is standard input.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn read(file: &Path) -> Result<Self, String> {
        let is_input = file == Path::new("-");
        let name: Cow<'_, str> =
            if is_input { "standard input".into() } else { file.to_string_lossy() };
        let text =
            if is_input { io::read_to_string(io::stdin()) } else { fs::read_to_string(file) };
        let text = text.map_err(|error| unread(&name, &error))?;
        Self::parse(&name, &text, Format::of_name(file).unwrap_or_else(|| Format::of_text(&text)))
    }

    /// Reads the text of a file that is called so.
    ///
    /// # Errors
    /// What is wrong with it: the file, the line where one is to blame, and every field that is wrong.
    pub(super) fn parse(file: &str, text: &str, format: Format) -> Result<Self, String> {
        let settings = match format {
            Format::Toml => of_toml(text),
            Format::Json => of_json(text),
        };
        let settings = settings.map_err(|(line, why)| format!("{file}:{line}: {why}"))?;
        // In the text itself, a field that is there twice is found.
        let spec = match format {
            Format::Toml => Spec::read_schedule(settings.to_string().as_bytes(), None),
            Format::Json => Spec::read_schedule(text.as_bytes(), None),
        };
        let spec = spec.map_err(|wrongs| {
            let wrongs: Vec<String> = wrongs.iter().map(ToString::to_string).collect();
            format!("{file}: {}", wrongs.join("; "))
        })?;
        let name = spec.schedule().map(|schedule| schedule.name()).unwrap_or_default();
        let id = TaskId::schedule(spec.project(), name)
            .map_err(|_| format!("{file}: project and name make no id of a schedule"))?;
        Ok(Self { id: ScheduleId(id), fields: as_kept(&spec), settings })
    }
}

/// Says that a file could not be read.
pub(in crate::cli) fn unread(file: &str, error: &io::Error) -> String {
    format!("{file}: could not read it: {error}")
}

/// The fields that an instance told of a schedule, with their defaults. What this release does not know stays as it came.
pub(super) fn with_defaults(settings: Value) -> Map<String, Value> {
    match (Spec::read_schedule(settings.to_string().as_bytes(), None), settings) {
        (Ok(spec), _) => as_kept(&spec),
        (Err(_), Value::Object(fields)) => fields,
        (Err(_), _) => Map::new(),
    }
}

/// The fields of a schedule as it is written to Kafka.
fn as_kept(spec: &Spec) -> Map<String, Value> {
    let mut fields: Map<String, Value> = serde_json::from_str(&spec.to_json()).unwrap_or_default();
    // The one says that a record is no task, the other one follows from the rest. Callers do not say them.
    fields.remove("type");
    fields.remove(LAST_OF_COUNT);
    fields
}

/// Why a text is not what it should be, and in which line.
pub(in crate::cli) type BadText = (usize, String);

pub(in crate::cli) fn of_json(text: &str) -> Result<Value, BadText> {
    serde_json::from_str(text).map_err(|error| {
        let why = error.to_string();
        // The line stands before it.
        let why = why.split(" at line ").next().unwrap_or_default();
        (error.line(), format!("it is no JSON: {why}"))
    })
}

fn of_toml(text: &str) -> Result<Value, BadText> {
    let table: Result<toml::Table, _> = toml::from_str(text);
    let table = table.map_err(|error: toml::de::Error| {
        let end = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = 1 + text.as_bytes()[..end].iter().filter(|byte| **byte == b'\n').count();
        (line, format!("it is no TOML: {}", error.message()))
    })?;
    Ok(to_json(toml::Value::Table(table)))
}

/// A value of TOML as JSON has it. Points in time are texts there.
fn to_json(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(is) => is.into(),
        toml::Value::Datetime(at) => at.to_string().into(),
        toml::Value::Array(items) => Value::Array(items.into_iter().map(to_json).collect()),
        toml::Value::Table(table) => {
            Value::Object(table.into_iter().map(|(name, value)| (name, to_json(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NIGHTLY: &str =
        "project = \"shop\"\ngroup = \"reports\"\nname = \"nightly\"\ncron = \"30 2 * * *\"\n";
    const TASK: &str = "[task]\ntype = \"http\"\nurl = \"https://a.example/\"\n";

    #[test]
    fn a_file_in_toml_and_one_in_json_define_the_same_schedule() {
        let toml = format!(
            "{NIGHTLY}zone = \"Europe/Berlin\"\nstart = 2027-01-01T00:00:00Z\ncount = 3\n{TASK}\
             retry = {{ count = 3, interval = \"5s\" }}\n"
        );
        let toml = Definition::parse("a.toml", &toml, Format::Toml).expect("a schedule");
        let json = json!({
            "project": "shop", "group": "reports", "name": "nightly", "cron": "30 2 * * *", "zone": "Europe/Berlin",
            "start": "2027-01-01T00:00:00Z", "count": 3,
            "task": {"type": "http", "url": "https://a.example/", "retry": {"count": 3, "interval": "5s"}},
        });
        let json =
            Definition::parse("a.json", &json.to_string(), Format::Json).expect("a schedule");
        assert_eq!(toml, json);
        assert_eq!(toml.id.to_string(), "shop/nightly");
        assert_eq!(toml.settings["task"]["retry"]["count"], 3);
        assert_eq!(toml.fields["misfire"], "fire_once", "defaults are written out");
        assert_eq!(toml.settings.get("misfire"), None, "and are not sent");
    }

    #[test]
    fn what_an_instance_tells_is_compared_with_its_defaults() {
        let file = format!("{NIGHTLY}jitter = \"0s\"\n{TASK}");
        let file = Definition::parse("a.toml", &file, Format::Toml).expect("a schedule");
        let told = json!({
            "project": "shop", "group": "reports", "name": "nightly", "cron": "30 2 * * *", "zone": "UTC", "jitter": 0,
            "misfire": "fire_once", "overlap": "allow", "task": {"type": "http", "url": "https://a.example/"},
        });
        assert_eq!(with_defaults(told.clone()), file.fields);
        // A newer instance may have what this release does not know.
        let mut newer = told;
        newer["moon"] = "full".into();
        assert_eq!(with_defaults(newer)["moon"], "full");
    }

    #[test]
    fn what_is_wrong_is_said_with_file_and_line_or_field() {
        let wrong =
            |text: &str, format| Definition::parse("dir/a", text, format).expect_err("it is wrong");
        let said = wrong(&format!("{NIGHTLY}zone = Berlin\n{TASK}"), Format::Toml);
        assert!(said.starts_with("dir/a:5: it is no TOML: "), "{said}");
        let said = wrong("{\n  \"project\": \"shop\"\n  \"name\": 1\n}", Format::Json);
        assert!(said.starts_with("dir/a:3: it is no JSON: expected "), "{said}");
        assert!(!said.contains(" line "), "{said}");
        // All of them at once.
        let said = wrong(
            &format!("{NIGHTLY}colour = 1\n[task]\ntype = \"http\"\nurl = \"nowhere\"\n"),
            Format::Toml,
        );
        assert!(said.starts_with("dir/a: "), "{said}");
        assert!(said.contains("colour is not a field of schedules"), "{said}");
        assert!(said.contains("task.url "), "{said}");
        let said = wrong(r#"{"name": "a", "name": "b"}"#, Format::Json);
        assert!(said.contains("name is there more than once"), "{said}");
        // No zone says when that is.
        let said = wrong(&format!("{NIGHTLY}start = 2027-01-01T00:00:00\n{TASK}"), Format::Toml);
        assert!(
            said.contains("start is \"2027-01-01T00:00:00\"; want RFC 3339 with a zone"),
            "{said}"
        );
    }

    #[test]
    fn the_name_of_a_file_or_its_text_says_how_it_is_written() {
        for (name, want) in [
            ("a.toml", Some(Format::Toml)),
            ("d/b.json", Some(Format::Json)),
            ("a.yaml", None),
            ("-", None),
            (".toml", None),
        ] {
            assert_eq!(Format::of_name(Path::new(name)), want, "{name}");
        }
        assert_eq!(Format::of_text("\n {\"project\": 1}"), Format::Json);
        assert_eq!(Format::of_text(NIGHTLY), Format::Toml);
    }

    #[test]
    fn the_file_that_the_document_shows_defines_a_schedule() {
        let page = include_str!("../../../docs/schedules.md");
        let (_, block) = page.split_once("```toml\n").expect("a file");
        let (block, _) = block.split_once("```").expect("its end");
        let shown = Definition::parse("workday.toml", block, Format::Toml).expect("a schedule");
        assert_eq!(shown.id.to_string(), "shop/workday");
    }
}
