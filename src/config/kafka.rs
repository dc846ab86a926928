//! `[kafka]`: settings of librdkafka by its own names, and secrets from files.
//!
//! A name has dots, and so has a path of tables in TOML: `"sasl.password"`, `sasl.password` and `[kafka.sasl]` with
//! `password` are the same here. A name and `.file` is a file that holds the value.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use figment::value::{Dict, Value};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use super::check::Fault;
use crate::kafka::settings::{self, Given, readable_by_all};

/// The table, and what begins the path of every key in it.
pub(super) const TABLE: &str = "kafka";
/// Ends the name of a setting whose value is in a file.
const FILE: &str = ".file";
/// Certificates and keys in PEM are the longest values.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// What the file of a secret has to be.
pub(super) const FILE_WANTED: &str = "a file of text that not everybody may read";

/// Settings of librdkafka, which every client gets. Printing it shows their names only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KafkaConfig(Given);

impl KafkaConfig {
    /// The settings, by name.
    #[must_use]
    pub fn given(&self) -> &Given {
        &self.0
    }

    /// Puts what the files hold in the place of their paths, and finds everything that is wrong.
    pub(super) fn settle(&mut self) -> Vec<Fault> {
        let (mut faults, mut from) = (Vec::new(), BTreeMap::new());
        let names: Vec<String> =
            self.0.keys().filter(|name| name.ends_with(FILE)).cloned().collect();
        for name in names {
            let Some(path) = self.0.remove(&name) else { continue };
            let setting = name.trim_end_matches(FILE).to_owned();
            match read_secret(Path::new(path.expose())) {
                Ok(value) => {
                    self.0.insert(setting.clone(), value.into());
                }
                Err(what) => {
                    let value = format!("{:?}, {what}", path.expose());
                    let want = FILE_WANTED.to_owned();
                    faults.push(Fault { key: format!("{TABLE}.{name}"), value, want });
                }
            }
            from.insert(setting, name);
        }
        // Of what is missing by a fault above nothing can be said.
        let wrong = if faults.is_empty() { settings::check(&self.0) } else { Vec::new() };
        faults.extend(wrong.into_iter().map(|settings::Fault { name, got, want }| {
            let (written, value) = match from.get(&name) {
                Some(written) => (written, "what is in that file (not shown)".to_owned()),
                None => (&name, got),
            };
            let key =
                if written.is_empty() { TABLE.to_owned() } else { format!("{TABLE}.{written}") };
            Fault { key, value, want }
        }));
        faults
    }
}

/// What a file holds, without the end of its last line.
pub(super) fn read_secret(path: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("which cannot be read ({error})");
    let about = std::fs::metadata(path).map_err(failed)?;
    if !about.is_file() {
        return Err("which is no file".to_owned());
    }
    if about.len() > FILE_BYTES_MAX {
        return Err(format!("which has more than {FILE_BYTES_MAX} bytes"));
    }
    if let Some(mode) = readable_by_all(&about) {
        return Err(format!("which everybody may read (mode {mode:o}; chmod o-r)"));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() { Err("which is empty".to_owned()) } else { Ok(text.to_owned()) }
}

/// Secrets that stand in a file of the configuration which everybody may read.
pub(super) fn open_secrets(path: &Path, data: &Dict) -> Vec<Fault> {
    let mode = std::fs::metadata(path).ok().and_then(|about| readable_by_all(&about));
    let (Some(mode), Some(Value::Dict(_, table))) = (mode, data.get(TABLE)) else {
        return Vec::new();
    };
    let mut leaves = Vec::new();
    flatten("", table, &mut leaves);
    leaves
        .into_iter()
        .filter(|(name, _)| settings::is_secret(name) && !name.ends_with(FILE))
        .map(|(name, _)| Fault {
            key: format!("{TABLE}.{name}"),
            value: format!("a secret in a file that everybody may read (mode {mode:o})"),
            want: format!("chmod o-r, or a file of its own: {TABLE}.{name}{FILE}"),
        })
        .collect()
}

/// Makes every way to write a name the same, tables within tables; gives back names that are there twice.
pub(super) fn unify(data: &mut Dict) -> Vec<String> {
    let Some(Value::Dict(tag, table)) = data.remove(TABLE) else { return Vec::new() };
    let (mut leaves, mut unified, mut twice) = (Vec::new(), Dict::new(), Vec::new());
    flatten("", &table, &mut leaves);
    for (name, value) in leaves {
        if !put(&mut unified, &name, value) {
            twice.push(name);
        }
    }
    data.insert(TABLE.to_owned(), Value::Dict(tag, unified));
    twice
}

fn flatten(prefix: &str, table: &Dict, into: &mut Vec<(String, Value)>) {
    for (key, value) in table {
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            Value::Dict(_, deeper) => flatten(&name, deeper, into),
            leaf => into.push((name, leaf.clone())),
        }
    }
}

/// Puts a value below its path; false when there is one already, at the path, on the way or below.
pub(super) fn put(table: &mut Dict, name: &str, value: Value) -> bool {
    match name.split_once('.') {
        None if table.contains_key(name) => false,
        None => {
            table.insert(name.to_owned(), value);
            true
        }
        Some((first, rest)) => {
            match table.entry(first.to_owned()).or_insert_with(|| Value::from(Dict::new())) {
                Value::Dict(_, deeper) => put(deeper, rest, value),
                _ => false,
            }
        }
    }
}

/// `KAFKA__SASL_PASSWORD` to `sasl.password`: no setting that can be given as text has `_` in its name.
pub(super) fn name_of(variable: &str) -> Option<String> {
    let name = variable.strip_prefix("KAFKA__")?;
    Some(name.to_ascii_lowercase().replace('_', "."))
}

impl<'de> Deserialize<'de> for KafkaConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Top;
        impl<'de> Visitor<'de> for Top {
            type Value = Given;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of librdkafka's settings")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Given, A::Error> {
                let mut given = Given::new();
                Below { prefix: "", into: &mut given }.visit_map(map)?;
                Ok(given)
            }
        }
        from.deserialize_map(Top).map(Self)
    }
}

/// A value, or a table of further names.
struct Below<'a> {
    prefix: &'a str,
    into: &'a mut Given,
}

impl Below<'_> {
    fn take<E>(self, value: String) -> Result<(), E> {
        self.into.insert(self.prefix.to_owned(), value.into());
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Below<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Below<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text, a number, true or false")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let name = if self.prefix.is_empty() { key } else { format!("{}.{key}", self.prefix) };
            map.next_value_seed(Below { prefix: &name, into: self.into })?;
        }
        Ok(())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.take(value.to_owned())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.take(value.to_string())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.take(value.to_string())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.take(value.to_string())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.take(value.to_string())
    }
}
