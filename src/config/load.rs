//! Layers, and all their errors at once.
//!
//! figment merges the layers and remembers where each value came from. serde stops at the first error, so what
//! it refuses is noted, taken out and the rest is read again, until nothing is left to refuse; then the ranges are
//! checked.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use figment::error::Kind;
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use toml::de::{DeTable, DeValue};

use super::{Config, callbacks, check, kafka, text};

/// Prefix of every variable of ours.
const PREFIX: &str = "WATERCLOCK_";
/// Bytes of a configuration file; ours are a few hundred.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// More than this many errors help nobody, and bound the loop over a file made to have many.
const ERRORS_MAX: usize = 100;

/// What was given on the command line, as text; `None` leaves the key to the other layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--brokers`.
    pub brokers: Option<String>,
    /// `--namespace`.
    pub namespace: Option<String>,
    /// `--data-dir`.
    pub data_dir: Option<String>,
    /// `--http`.
    pub http: Option<String>,
    /// `--http-unauthenticated`.
    pub http_unauthenticated: bool,
    /// `--roles`.
    pub roles: Option<String>,
    /// `--threads`.
    pub threads: Option<String>,
    /// `--delivery`.
    pub delivery: Option<String>,
    /// `--log-format`.
    pub log_format: Option<String>,
    /// `--allow`, each time it was given; empty: not given.
    pub allow: Vec<String>,
    /// `--allow-all`.
    pub allow_all: bool,
    /// `--weak-topics`.
    pub weak_topics: bool,
}

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nowhere: it is the default, which does not go together with something that was written.
    Default,
    /// This file.
    File(PathBuf),
    /// A variable of the environment.
    Environment,
    /// The command line.
    Flag,
    /// A program that made the configuration by itself.
    Code,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The key as it is written there: `max-delay`, `WATERCLOCK_MAX_DELAY`, `--max-delay`.
    pub key: String,
    /// Where it was written.
    pub origin: Origin,
    /// In which line of a file, from 1; `None`: in no file, or nobody can say.
    pub line: Option<usize>,
    /// What was found; if nothing is wanted in its place, a sentence that says what is wrong.
    pub value: String,
    /// What is allowed; empty: `value` says it all.
    pub want: String,
}

/// Everything that is wrong, at least one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<Invalid>);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, origin, line, value, want } = self;
        match origin {
            Origin::Default => write!(f, "{key} (default): ")?,
            Origin::File(path) => {
                write!(f, "{key} in {}", path.display())?;
                line.map_or(Ok(()), |line| write!(f, ", line {line}"))?;
                f.write_str(": ")?;
            }
            Origin::Environment => write!(f, "{key} in the environment: ")?,
            Origin::Flag | Origin::Code => write!(f, "{key}: ")?,
        }
        match &**want {
            "" => f.write_str(value),
            want => write!(f, "got {value}, want {want}"),
        }
    }
}

/// One line each.
impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, invalid) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{invalid}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

impl Config {
    /// Checks a configuration that was made in code, as [`Config::load`] checks what it reads.
    ///
    /// # Errors
    /// Every range and relation that does not hold, at once; [`run`](crate::run) expects that they do.
    pub fn checked(self) -> Result<Self, ConfigErrors> {
        let invalid = |fault: check::Fault| Invalid {
            key: key_shown(fault.key.split('.')),
            origin: Origin::Code,
            line: None,
            value: fault.value,
            want: fault.want,
        };
        let found: Vec<Invalid> = check::check(&self).into_iter().map(invalid).collect();
        if found.is_empty() { Ok(self) } else { Err(ConfigErrors(found)) }
    }

    /// Whether the log is to be JSON, by the flag or the environment: known also where the rest is wrong.
    #[must_use]
    pub fn asks_for_json(flags: &Overrides) -> bool {
        let variable = || std::env::vars_os().find(|(name, _)| name == "WATERCLOCK_LOG__FORMAT");
        match &flags.log_format {
            Some(format) => format == "json",
            None => variable().is_some_and(|(_, format)| format == "json"),
        }
    }

    /// Reads all layers: defaults, `file`, the environment of this process, `flags`. Connects to nothing.
    ///
    /// # Errors
    /// Everything that is wrong, at once; the caller shows it and stops.
    pub fn load(file: Option<&Path>, flags: Overrides) -> Result<Self, ConfigErrors> {
        Self::load_from(file, std::env::vars_os(), flags)
    }

    /// The same with an environment that is handed in.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_from(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        flags: Overrides,
    ) -> Result<Self, ConfigErrors> {
        let mut layers = Layers::new(file);
        let from_file = file.map(|path| layers.read_file(path)).unwrap_or_default();
        let in_file = from_file.clone();
        let from_environment = layers.read_environment(environment);
        let figment = Figment::new()
            .merge(Layer { name: FILE, data: from_file })
            .merge(Layer { name: ENVIRONMENT, data: from_environment })
            .merge(Layer { name: FLAG, data: of_flags(flags) });

        let mut config = layers.extract(&figment);
        let open = file.map(|path| {
            let of_kafka = kafka::open_secrets(path, &in_file);
            of_kafka.into_iter().chain(callbacks::open_secrets(path, &in_file)).collect::<Vec<_>>()
        });
        let (settings, secrets) = (config.kafka.settle(), callbacks::settle(&mut config.secrets));
        let of_files = open.into_iter().flatten().chain(settings).chain(secrets);
        for fault in check::check(&config).into_iter().chain(of_files) {
            let key: Vec<String> = fault.key.split('.').map(str::to_owned).collect();
            // What could not be read has its default by now.
            if !layers.left_out.contains(&key) {
                layers.note(&figment, &key, fault.value, fault.want);
            }
        }
        if layers.found.is_empty() { Ok(config) } else { Err(ConfigErrors(layers.found)) }
    }
}

const FILE: &str = "file";
const ENVIRONMENT: &str = "environment";
const FLAG: &str = "flag";

/// One source of values for figment, by name.
struct Layer {
    name: &'static str,
    data: Dict,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name)
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Ok(Profile::Default.collect(self.data.clone()))
    }
}

struct Layers {
    file: Option<PathBuf>,
    /// In which line of it each key stands.
    lines: HashMap<String, usize>,
    /// What could not be read.
    left_out: Vec<Vec<String>>,
    found: Vec<Invalid>,
}

impl Layers {
    fn new(file: Option<&Path>) -> Self {
        let (lines, left_out, found) = (HashMap::new(), Vec::new(), Vec::new());
        Self { file: file.map(Path::to_owned), lines, left_out, found }
    }

    /// Reads the whole configuration, noting and leaving out what cannot be read.
    fn extract(&mut self, figment: &Figment) -> Config {
        let Ok(mut tree) = figment.find_value("") else { return Config::default() };
        while self.found.len() < ERRORS_MAX {
            let error = match tree.deserialize::<Config>() {
                Ok(config) => return config,
                Err(error) => error,
            };
            let (value, want) = match &error.kind {
                Kind::UnknownField(name, known) => (unknown(name, known), String::new()),
                Kind::InvalidType(got, want) | Kind::InvalidValue(got, want) => {
                    (shown(got), want.replace("a sequence", "a list"))
                }
                other => (other.to_string(), "something else".to_owned()),
            };
            let want = match error.path.first().and_then(|key| check::range(key)) {
                Some(range) if !want.is_empty() => format!("{want}, {range}"),
                _ => want,
            };
            let value = match holder(figment, &error.path) {
                Some(name) if want.is_empty() => format!("{value} (of {name:?})"),
                Some(name) => format!("{value} for {name:?}"),
                None => value,
            };
            self.note(figment, &error.path, value, want);
            self.left_out.push(error.path.clone());
            if !remove(&mut tree, &error.path) {
                break;
            }
        }
        Config::default()
    }

    fn note(&mut self, figment: &Figment, path: &[String], value: String, want: String) {
        let dotted = key_shown(path.iter().map(String::as_str));
        let key: Vec<&str> = dotted.split('.').collect();
        let metadata =
            (1..=key.len()).rev().find_map(|n| figment.find_metadata(&key[..n].join(".")));
        let mut line = None;
        let (key, origin) = match metadata.map(|m| m.name.as_ref()) {
            Some(FILE) => {
                // A key that is missing in a table is reported at the line of the table.
                line = (1..=path.len()).rev().find_map(|n| self.lines.get(&path[..n].join(".")));
                (dotted, Origin::File(self.file.clone().unwrap_or_default()))
            }
            Some(ENVIRONMENT) => (variable(&dotted), Origin::Environment),
            Some(FLAG) => (format!("--{}", dotted.replace('.', "-")), Origin::Flag),
            _ => (dotted, Origin::Default),
        };
        self.found.push(Invalid { key, origin, line: line.copied(), value, want });
    }

    fn read_file(&mut self, path: &Path) -> Dict {
        match parse_file(path) {
            Ok((mut data, lines)) => {
                self.lines = lines;
                for name in kafka::unify(&mut data) {
                    self.found.push(Invalid {
                        key: format!("{}.{name}", kafka::TABLE),
                        origin: Origin::File(path.to_owned()),
                        line: None,
                        value: "another value for it".to_owned(),
                        want: "one value, written in one way".to_owned(),
                    });
                }
                data
            }
            Err((line, value)) => {
                let (key, want) = ("the configuration".to_owned(), String::new());
                let origin = Origin::File(path.to_owned());
                self.found.push(Invalid { key, origin, line, value, want });
                Dict::new()
            }
        }
    }

    fn read_environment(
        &mut self,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Dict {
        let mut data = Dict::new();
        let mut ours: Vec<_> = environment
            .into_iter()
            .filter_map(|(name, value)| {
                let name = name.into_string().ok()?;
                let key = name.strip_prefix(PREFIX)?.to_owned();
                (!is_foreign(&key)).then_some((key, value))
            })
            .collect();
        // The order of an environment is arbitrary; that of errors should not be.
        ours.sort();
        for (key, value) in ours {
            match value.into_string() {
                Ok(value) => {
                    if let Some(twice) = insert(&mut data, &key, value) {
                        self.found.push(twice);
                    }
                }
                Err(value) => self.found.push(Invalid {
                    key: format!("{PREFIX}{key}"),
                    origin: Origin::Environment,
                    line: None,
                    value: format!("{value:?}"),
                    want: "text in UTF-8".to_owned(),
                }),
            }
        }
        data
    }
}

/// Variables with our prefix that are not keys: the path of the file (the command line's matter), those of
/// `scripts/`, and what Kubernetes puts into every pod beside a service named `waterclock`.
fn is_foreign(key: &str) -> bool {
    const NAMES: [&str; 5] = ["CONFIG", "MAVEN_REPOSITORY", "PORT", "SERVICE_HOST", "SERVICE_PORT"];
    const FAMILIES: [&str; 3] = ["KAFKA_", "PORT_", "SERVICE_PORT_"];
    // Two underscores are a level: what follows is a key below `kafka`.
    let is_below =
        |family: &&str| key.strip_prefix(*family).is_some_and(|rest| !rest.starts_with('_'));
    NAMES.contains(&key) || FAMILIES.iter().any(is_below)
}

/// `LOG__LEVEL` to `log.level`.
fn key_of(variable: &str) -> String {
    if let Some(name) = kafka::name_of(variable) {
        return format!("{}.{name}", kafka::TABLE);
    }
    variable.replace("__", ".").replace('_', "-").to_ascii_lowercase()
}

/// `log.level` to `WATERCLOCK_LOG__LEVEL`.
fn variable(key: &str) -> String {
    if let Some(name) = key.strip_prefix("kafka.") {
        return format!("{PREFIX}KAFKA__{}", name.replace('.', "_").to_ascii_uppercase());
    }
    format!("{PREFIX}{}", key.replace('.', "__").replace('-', "_").to_ascii_uppercase())
}

/// Puts the text of a variable at its key; a list key gets a list.
fn insert(data: &mut Dict, name: &str, value: String) -> Option<Invalid> {
    let key = &key_of(name);
    if key.starts_with("kafka.") {
        // A setting and its file: neither is later than the other.
        let put = kafka::put(data, key, Value::from(value));
        return (!put).then(|| Invalid {
            key: format!("{PREFIX}{name}"),
            origin: Origin::Environment,
            line: None,
            value: "another variable for the same setting".to_owned(),
            want: "a value, or a file that holds it".to_owned(),
        });
    }
    let is_list = match key.rsplit('.').next() {
        Some("allow" | "hosts" | "http-hosts" | "networks" | "projects") => true,
        Some("ladder") => value.contains(',') || value.starts_with(|c: char| c.is_ascii_digit()),
        _ => false,
    };
    let value = if is_list { Value::from(text::split_list(&value)) } else { Value::from(value) };
    let tree = figment::util::nest(key, value).into_dict()?;
    merge(data, tree);
    None
}

fn merge(into: &mut Dict, from: Dict) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Dict(_, into)), Value::Dict(_, from)) => merge(into, from),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

fn of_flags(flags: Overrides) -> Dict {
    let mut data = Dict::new();
    let Overrides {
        brokers,
        namespace,
        data_dir,
        http,
        http_unauthenticated,
        roles,
        threads,
        delivery,
        log_format,
        allow,
        allow_all,
        weak_topics,
    } = flags;
    let single = [
        ("brokers", brokers),
        ("namespace", namespace),
        ("data-dir", data_dir),
        ("http", http),
        ("roles", roles),
        ("threads", threads),
        ("delivery", delivery),
    ];
    for (key, value) in single {
        if let Some(value) = value {
            data.insert(key.to_owned(), Value::from(value));
        }
    }
    if http_unauthenticated {
        data.insert("http-unauthenticated".to_owned(), Value::from(true));
    }
    if !allow.is_empty() {
        data.insert("allow".to_owned(), Value::from(allow));
    }
    if let Some(format) = log_format {
        data.extend(
            figment::util::nest("log.format", Value::from(format)).into_dict().unwrap_or_default(),
        );
    }
    if allow_all {
        data.insert("allow-all".to_owned(), Value::from(true));
    }
    if weak_topics {
        data.insert("weak-topics".to_owned(), Value::from(true));
    }
    data
}

/// What is wrong with a file as such: in which line, and what.
type FileFault = (Option<usize>, String);

fn parse_file(path: &Path) -> Result<(Dict, HashMap<String, usize>), FileFault> {
    let unread = |error: std::io::Error| (None, format!("it cannot be read: {error}"));
    let size = std::fs::metadata(path).map_err(unread)?.len();
    if size > FILE_BYTES_MAX {
        return Err((None, format!("it has {size} bytes, and {FILE_BYTES_MAX} are allowed")));
    }
    let text = std::fs::read_to_string(path).map_err(unread)?;
    if text.starts_with('\u{feff}') {
        let what = "it begins with a byte order mark; save it as UTF-8 without one";
        return Err((Some(1), what.to_owned()));
    }
    if let Some(line) = text.split('\n').position(|line| line.ends_with('\r')) {
        let what = "this line ends in a carriage return; save the file with lines that end in LF";
        return Err((Some(line + 1), what.to_owned()));
    }
    let lines = Lines::new(&text);
    let no_toml = |error: toml::de::Error| {
        let line = error.span().map(|span| lines.at(span.start));
        (line, format!("it is no TOML: {}", error.message()))
    };
    let table: toml::Table = toml::from_str(&text).map_err(no_toml)?;
    let mut of_keys = HashMap::new();
    lines.note(DeTable::parse(&text).map_err(no_toml)?.get_ref(), "", &mut of_keys);
    let value = Value::serialize(table).map_err(|error| (None, error.to_string()))?;
    Ok((value.into_dict().unwrap_or_default(), of_keys))
}

/// Where the lines of a file begin.
struct Lines(Vec<usize>);

impl Lines {
    fn new(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at + 1).collect())
    }

    /// The line of a byte, from 1.
    fn at(&self, byte: usize) -> usize {
        1 + self.0.partition_point(|begin| *begin <= byte)
    }

    /// Notes where each key of a table stands, and of those below it.
    fn note(&self, table: &DeTable<'_>, above: &str, noted: &mut HashMap<String, usize>) {
        for (key, value) in table.iter() {
            let name = match above {
                "" => key.get_ref().to_string(),
                above => format!("{above}.{}", key.get_ref()),
            };
            match value.get_ref() {
                DeValue::Table(table) => self.note(table, &name, noted),
                DeValue::Array(list) => {
                    for (n, value) in list.iter().enumerate() {
                        if let DeValue::Table(table) = value.get_ref() {
                            let name = format!("{name}.{n}");
                            self.note(table, &name, noted);
                            noted.insert(name, self.at(value.span().start));
                        }
                    }
                }
                _ => {}
            }
            noted.insert(name, self.at(key.span().start));
        }
    }
}

/// A key as it is written: an element of a list is named by its list.
fn key_shown<'a>(path: impl Iterator<Item = &'a str>) -> String {
    path.filter(|part| part.parse::<usize>().is_err()).collect::<Vec<_>>().join(".")
}

/// The name of the table in a list that something is of, as in `[[api.tokens]]`.
fn holder(figment: &Figment, path: &[String]) -> Option<String> {
    let at = path.iter().position(|part| part.parse::<usize>().is_ok())?;
    let list = figment.find_value(&path[..at].join(".")).ok()?.into_array()?;
    let table = list.get(path[at].parse::<usize>().ok()?)?.as_dict()?;
    Some(table.get("name")?.as_str()?.to_owned())
}

/// What is said of a key that nobody knows.
fn unknown(name: &str, known: &[&str]) -> String {
    let near = known.iter().map(|known| (strsim::damerau_levenshtein(name, known), known));
    // Of a short word a third of its letters, and of any word no more than three.
    let near = near.filter(|(apart, _)| *apart <= 3.min(1 + name.len() / 4)).min();
    match near {
        Some((_, near)) => format!("there is no such key; did you mean {near:?}?"),
        None if known.len() <= 5 => format!("there is no such key; there are {}", known.join(", ")),
        None => "there is no such key; docs/configuration.md has all".to_owned(),
    }
}

fn shown(got: &figment::error::Actual) -> String {
    use figment::error::Actual;
    match got {
        Actual::Str(text) => format!("{text:?}"),
        Actual::Unsigned(number) => number.to_string(),
        Actual::Signed(number) => number.to_string(),
        Actual::Seq => "a list".to_owned(),
        Actual::Map => "a table".to_owned(),
        other => format!("a {other}"),
    }
}

/// Takes the value at `path` out, or the nearest one above it; false when there is none.
fn remove(tree: &mut Value, path: &[String]) -> bool {
    let Some((first, rest)) = path.split_first() else { return false };
    match tree {
        Value::Dict(_, dict) => {
            let deeper =
                dict.get_mut(first).is_some_and(|value| !rest.is_empty() && remove(value, rest));
            deeper || dict.remove(first).is_some()
        }
        Value::Array(_, list) => match first.parse::<usize>() {
            Ok(n) if n < list.len() => {
                if rest.is_empty() || !remove(&mut list[n], rest) {
                    list.remove(n);
                }
                true
            }
            _ => false,
        },
        _ => false,
    }
}
