//! What is known of projects and their services: limits, pause, where calls go. And which topics are paused, or have a rate.
//!
//! It stands as JSON in `<ns>.meta`, under the keys `project/<name>`, `service/<project>/<name>` and `target/<topic>`. Every instance reads
//! it there. What a person sends to the API is read here too, more strictly.
//!
//! # Invariants
//! 1. A project that was never put has the defaults. A service may be heard of before its project.
//! 2. The last record of a key wins, whatever its revision.
//! 3. At most [`KEYS_MAX`] keys and [`BYTES_MAX`] bytes are kept. What is over it is refused, and what was there stays.
//! 4. Of a text that is wrong every wrong field is named. No value is shown where a secret is named, or an address: it could be a password.
//! 5. What [`Change::value`] writes, [`read`] reads as the same change.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};
use url::Url;

use super::bucket::Rate;
use super::fields::{self, Fields, Wrong, Wrongs, integer, length, wanted, wanted_address};
use super::hosts::{HOST_WANTED, HOSTS_MAX, Hosts};
use super::request::BODY_MAX;
use super::retry::Retry;
use super::scope::{Limits, PROJECT_CONCURRENCY, SERVICE_CONCURRENCY};
use crate::Millis;
use crate::allow::{Allow, BadPattern};
use crate::header::Refusal;

/// Most keys that are kept.
pub const KEYS_MAX: usize = 10_000;
/// Most bytes of keys and values that are kept.
pub const BYTES_MAX: usize = 16 << 20;
/// Longest value of one key, in bytes.
pub const VALUE_MAX: usize = 64 << 10;
/// Longest name of a project, a service, a group or a secret, in bytes.
pub const NAME_MAX: usize = 64;
/// Longest name of a topic, in bytes: Kafka has no longer ones.
pub const TOPIC_MAX: usize = 249;
/// Longest address of a service, in bytes.
pub const ADDRESS_MAX: usize = 2_048;
/// Most expressions in [`Project::targets`].
pub const TARGETS_MAX: usize = 1_000;
/// Most open calls that can be set.
pub const CONCURRENCY_MAX: u32 = 10_000;
/// Largest burst that can be set.
pub const BURST_MAX: u32 = 1_000_000;
/// How long a call may take, at most. What takes longer gives feedback.
pub const TIMEOUT_MAX: Millis = Millis(5 * 60_000);
/// How long a call may take, if nothing else is said.
pub const TIMEOUT: Millis = Millis(10_000);
/// How long what ended is kept, at least.
pub const HISTORY_MIN: Millis = Millis::HOUR;
/// How long what ended is kept, at most.
pub const HISTORY_MAX: Millis = Millis(400 * 86_400_000);
/// How long what ended is kept, if nothing else is said.
pub const HISTORY: Millis = Millis(7 * 86_400_000);
/// Most pending tasks that a project can be bounded to.
pub const PENDING_MAX: u64 = 1_000_000_000;
/// How far ahead a project may let its tasks be, at least.
pub const DELAY_MIN: Millis = Millis::SECOND;
/// How far ahead a project may let its tasks be, at most: no installation has a longer `max-delay`.
pub const DELAY_MAX: Millis = Millis(3650 * 86_400_000);
/// Over how long a time tasks may be spread, at most.
pub const WINDOW_MAX: Millis = Millis::HOUR;
/// The largest rate, in calls per 1,000 s: a million per second.
const PER_1000_S_MAX: f64 = 1e9;
/// The version of the JSON in meta. A higher one is for what an older program must not read.
const VERSION: u64 = 1;

/// What is known of one project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// Counts its changes, from 1; 0: it was never put.
    pub revision: u64,
    /// It takes no more tasks, and those that wait end.
    pub is_deleted: bool,
    /// None of its tasks is dispatched.
    pub paused: bool,
    /// Open calls: 1 to [`CONCURRENCY_MAX`].
    pub concurrency: u32,
    /// Calls that may begin in a time; `None`: any number.
    pub rate: Option<Rate>,
    /// Calls that may begin at once. Without a rate it is 1 and says nothing; with one, what comes in a second is usual.
    pub burst: u32,
    /// Tasks that may be created in a time; `None`: any number.
    pub create_rate: Option<Rate>,
    /// Tasks that may be created at once. As `burst` is to `rate`.
    pub create_burst: u32,
    /// Pending tasks that it may have, up to [`PENDING_MAX`]; `None`: any number. A soft bound: the API counts every few seconds.
    pub max_pending: Option<u64>,
    /// How far ahead its tasks may be when they are created, [`DELAY_MIN`] to [`DELAY_MAX`]; `None`: as far as the lanes take them.
    pub max_delay: Option<Millis>,
    /// How many bytes the body of a call or the value of a record may have, up to [`BODY_MAX`]; `None`: so many.
    pub max_body: Option<usize>,
    /// Its tasks are spread over so long a time behind what was asked for, up to [`WINDOW_MAX`]; zero: they are not.
    pub window: Millis,
    /// Kafka topics that its tasks may deliver to; `None`: all that the intake permits.
    pub targets: Option<Topics>,
    /// Hosts that its tasks may call, by URLs of their own or by services; `None`: all that the installation permits.
    pub hosts: Option<Hosts>,
    /// How long its tasks are remembered after their end.
    pub history: Millis,
    /// Its services by name.
    pub services: BTreeMap<String, Service>,
}

impl Project {
    /// A project that was never put.
    pub const NEVER_PUT: Self = Self {
        revision: 0,
        is_deleted: false,
        paused: false,
        concurrency: PROJECT_CONCURRENCY,
        rate: None,
        burst: 1,
        create_rate: None,
        create_burst: 1,
        max_pending: None,
        max_delay: None,
        max_body: None,
        window: Millis(0),
        targets: None,
        hosts: None,
        history: HISTORY,
        services: BTreeMap::new(),
    };

    /// What it may do at one time.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits { concurrency: self.concurrency, rate: self.rate, burst: self.burst }
    }

    /// Whether its tasks may deliver to this topic, as far as it says.
    ///
    /// # Errors
    /// `target_denied`, or `target_forbidden` for a topic of Kafka's own: the task is to be refused.
    pub fn permits(&self, topic: &str) -> Result<(), Refusal> {
        let Some(targets) = &self.targets else { return Ok(()) };
        targets.allow.permits(topic).map_err(|code| {
            let detail = format!("target {topic} is not among the topics that its project permits");
            Refusal::new(code, detail)
        })
    }

    /// Whether its tasks may call this URL, as far as its list of hosts says. The installation's rules hold besides.
    #[must_use]
    pub fn permits_host_of(&self, url: &Url) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.permit(url))
    }

    fn read(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Self {
        let (rate, burst) = rate_and_burst(fields, wrongs, ["rate", "burst"]);
        let of_creates = ["create_rate", "create_burst"];
        let (create_rate, create_burst) = rate_and_burst(fields, wrongs, of_creates);
        let max_pending =
            fields.read("max_pending", wrongs, |value| integer(value, 0..=PENDING_MAX));
        let max_delay =
            fields.read("max_delay", wrongs, |value| length(value, DELAY_MIN..=DELAY_MAX));
        let max_body = fields.read("max_body", wrongs, |value| integer(value, 0..=BODY_MAX as u64));
        let window = fields.read("window", wrongs, window);
        let history =
            fields.read("history", wrongs, |value| length(value, HISTORY_MIN..=HISTORY_MAX));
        Self {
            paused: fields.read("paused", wrongs, flag).unwrap_or(false),
            concurrency: concurrency(fields, wrongs).unwrap_or(PROJECT_CONCURRENCY),
            rate,
            burst,
            create_rate,
            create_burst,
            max_pending,
            max_delay,
            max_body: max_body.map(|bytes| bytes as usize),
            window: window.unwrap_or(Millis(0)),
            targets: targets(fields, wrongs),
            hosts: hosts(fields, wrongs),
            history: history.unwrap_or(HISTORY),
            ..Self::NEVER_PUT
        }
    }

    fn write(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
        put("version", json!(VERSION));
        put("revision", json!(self.revision));
        if self.is_deleted {
            put("deleted", json!(true));
        }
        put("paused", json!(self.paused));
        put("concurrency", json!(self.concurrency));
        if let Some(rate) = self.rate {
            put("rate", number(rate));
            put("burst", json!(self.burst));
        }
        if let Some(rate) = self.create_rate {
            put("create_rate", number(rate));
            put("create_burst", json!(self.create_burst));
        }
        if let Some(tasks) = self.max_pending {
            put("max_pending", json!(tasks));
        }
        if let Some(delay) = self.max_delay {
            put("max_delay", json!(delay.to_string()));
        }
        if let Some(bytes) = self.max_body {
            put("max_body", json!(bytes));
        }
        if self.window > Millis(0) {
            put("window", json!(self.window.to_string()));
        }
        if let Some(targets) = &self.targets {
            put("targets", json!(targets.patterns));
        }
        if let Some(hosts) = &self.hosts {
            put("hosts", json!(hosts.texts()));
        }
        put("history", json!(self.history.to_string()));
        fields
    }
}

/// By which protocol a service is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP or HTTPS, as the address says.
    #[default]
    Http,
    /// gRPC: with TLS if the address is https, else in plain HTTP/2.
    Grpc,
}

impl Protocol {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }

    fn of(text: &str) -> Option<Self> {
        [Self::Http, Self::Grpc].into_iter().find(|of| of.as_str() == text)
    }
}

/// What is known of one service of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Counts its changes, from 1.
    pub revision: u64,
    /// How it is called.
    pub protocol: Protocol,
    /// The URL that paths are put behind; for gRPC one without a path. Nothing is resolved here: whether it may be called is decided before each call.
    pub address: String,
    /// None of its tasks is dispatched.
    pub paused: bool,
    /// Open calls: 1 to [`CONCURRENCY_MAX`].
    pub concurrency: u32,
    /// Calls that may begin in a time; `None`: any number.
    pub rate: Option<Rate>,
    /// As of a [`Project`].
    pub burst: u32,
    /// How long a call may take, where the task does not say it.
    pub timeout: Millis,
    /// When an attempt that failed is made again, where the task does not say it.
    pub retry: Retry,
    /// The name of the secret that calls are signed with. Its value stands in the configuration of the workers only.
    pub secret: Option<String>,
    /// The name of the secret that is sent as bearer token.
    pub bearer: Option<String>,
    /// The name of the secret with the certificate that a worker shows when a call asks for one.
    pub client_certificate: Option<String>,
}

impl Service {
    /// What it may do at one time.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits { concurrency: self.concurrency, rate: self.rate, burst: self.burst }
    }

    /// `None`: it has no sound address, which is named among what is wrong.
    fn read(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Option<Self> {
        let (rate, burst) = rate_and_burst(fields, wrongs, ["rate", "burst"]);
        let protocol = fields.read("protocol", wrongs, |value| {
            secretive(value, "http or grpc", |text| Protocol::of(text).is_some())
        });
        let protocol = protocol.and_then(|text| Protocol::of(&text)).unwrap_or_default();
        let timeout =
            fields.read("timeout", wrongs, |value| length(value, Millis(1)..=TIMEOUT_MAX));
        let retry = fields.inside("retry", wrongs);
        let (want, is_sound): (_, fn(&str) -> bool) = match protocol {
            Protocol::Http => (ADDRESS, is_base_url),
            Protocol::Grpc => (GRPC_ADDRESS, is_grpc_address),
        };
        let address = fields.require("address", wrongs, |value| secretive(value, want, is_sound));
        let mut secret =
            |name| fields.read(name, wrongs, |value| secretive(value, SECRET, is_name));
        let (secret, bearer, client_certificate) =
            (secret("secret"), secret("bearer"), secret(CERTIFICATE));
        if client_certificate.is_some()
            && address.as_ref().is_some_and(|address| address.starts_with("http:"))
        {
            wrongs.add(CERTIFICATE, "is shown to addresses https:// only; want such an address");
        }
        Some(Self {
            revision: 0,
            protocol,
            address: address?,
            paused: fields.read("paused", wrongs, flag).unwrap_or(false),
            concurrency: concurrency(fields, wrongs).unwrap_or(SERVICE_CONCURRENCY),
            rate,
            burst,
            timeout: timeout.unwrap_or(TIMEOUT),
            retry: retry.map_or_else(Retry::default, |retry| Retry::read(&retry, wrongs)),
            secret,
            bearer,
            client_certificate,
        })
    }

    fn write(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
        put("version", json!(VERSION));
        put("revision", json!(self.revision));
        put("protocol", json!(self.protocol.as_str()));
        put("address", json!(self.address));
        put("paused", json!(self.paused));
        put("concurrency", json!(self.concurrency));
        if let Some(rate) = self.rate {
            put("rate", number(rate));
            put("burst", json!(self.burst));
        }
        put("timeout", json!(self.timeout.to_string()));
        put("retry", json!(self.retry.wire()));
        let secrets = [
            ("secret", &self.secret),
            ("bearer", &self.bearer),
            (CERTIFICATE, &self.client_certificate),
        ];
        for (name, secret) in secrets {
            if let Some(secret) = secret {
                put(name, json!(secret));
            }
        }
        fields
    }
}

/// What is known of a topic that records go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetTopic {
    /// Counts its changes, from 1; 0: nothing was ever put.
    pub revision: u64,
    /// No record goes there: neither of timers nor of tasks.
    pub paused: bool,
    /// Records that may go there in a time, of timers and tasks together; `None`: any number.
    pub rate: Option<Rate>,
    /// Records that may go there at once. As the burst of a [project](Project) is to its rate.
    pub burst: u32,
}

impl TargetTopic {
    /// A topic of which nothing was ever put.
    pub const NEVER_PUT: Self = Self { revision: 0, paused: false, rate: None, burst: 1 };

    /// How many records may go there, if that has a limit: the rate, and the burst.
    #[must_use]
    pub fn limit(self) -> Option<(Rate, u32)> {
        Some((self.rate?, self.burst))
    }

    fn read(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Self {
        let paused = fields.read("paused", wrongs, flag).unwrap_or(false);
        let (rate, burst) = rate_and_burst(fields, wrongs, ["rate", "burst"]);
        Self { paused, rate, burst, ..Self::NEVER_PUT }
    }

    fn write(self) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
        put("version", json!(VERSION));
        put("revision", json!(self.revision));
        put("paused", json!(self.paused));
        if let Some((rate, burst)) = self.limit() {
            put("rate", number(rate));
            put("burst", json!(burst));
        }
        fields
    }
}

/// One record of meta, or one that is to be written there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    key: String,
    /// Of key and value.
    bytes: usize,
    setting: Setting,
}

/// What a change sets; `None`: nothing is said any more.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Setting {
    Project(String, Option<Project>),
    Service(String, String, Option<Service>),
    Target(String, Option<TargetTopic>),
}

impl Change {
    /// Sets a project, but not its services. To delete one, set [`Project::is_deleted`].
    #[must_use]
    pub fn of_project(name: &str, project: Project) -> Self {
        let project = Project { services: BTreeMap::new(), ..project };
        Self::of(format!("project/{name}"), Setting::Project(name.to_owned(), Some(project)))
    }

    /// Sets a service of a project; `None` deletes it.
    #[must_use]
    pub fn of_service(project: &str, name: &str, service: Option<Service>) -> Self {
        let key = format!("service/{project}/{name}");
        Self::of(key, Setting::Service(project.to_owned(), name.to_owned(), service))
    }

    /// Sets a topic that records go to; `None`: what was said of it counts no more.
    #[must_use]
    pub fn of_target(topic: &str, target: Option<TargetTopic>) -> Self {
        Self::of(format!("target/{topic}"), Setting::Target(topic.to_owned(), target))
    }

    fn of(key: String, setting: Setting) -> Self {
        let mut change = Self { key, bytes: 0, setting };
        change.bytes = change.key.len() + change.value().map_or(0, |value| value.len());
        change
    }

    /// The key in meta.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value in meta: JSON; `None`: a tombstone. Fields that a later release wrote are not in it.
    #[must_use]
    pub fn value(&self) -> Option<String> {
        let fields = match &self.setting {
            Setting::Project(_, project) => project.as_ref()?.write(),
            Setting::Service(_, _, service) => service.as_ref()?.write(),
            Setting::Target(_, target) => target.as_ref()?.write(),
        };
        Some(Value::Object(fields).to_string())
    }

    /// Its revision; 0: it has none yet, or takes away what was there.
    #[must_use]
    pub fn revision(&self) -> u64 {
        match &self.setting {
            Setting::Project(_, Some(project)) => project.revision,
            Setting::Service(_, _, Some(service)) => service.revision,
            Setting::Target(_, Some(target)) => target.revision,
            _ => 0,
        }
    }

    /// The project that it sets, if it sets one.
    #[must_use]
    pub fn project(&self) -> Option<&Project> {
        match &self.setting {
            Setting::Project(_, project) => project.as_ref(),
            _ => None,
        }
    }

    fn is_tombstone(&self) -> bool {
        use Setting::{Project, Service, Target};
        matches!(self.setting, Project(_, None) | Service(_, _, None) | Target(_, None))
    }

    /// The same as another revision.
    #[must_use]
    pub fn with_revision(mut self, revision: u64) -> Self {
        match &mut self.setting {
            Setting::Project(_, Some(project)) => project.revision = revision,
            Setting::Service(_, _, Some(service)) => service.revision = revision,
            Setting::Target(_, Some(target)) => target.revision = revision,
            _ => {}
        }
        Self::of(self.key, self.setting)
    }
}

/// Whether a key of meta is of a project, a service or a target. Other keys are for others to read.
#[must_use]
pub fn is_key(key: &str) -> bool {
    ["project/", "service/", "target/"].iter().any(|start| key.starts_with(start))
}

/// Reads a record of meta. Fields that are not known are passed over: a later release may have written them.
///
/// # Errors
/// All that is wrong with it. The record has no effect: what was there stays.
pub fn read(key: &str, value: Option<&[u8]>) -> Result<Change, Vec<Wrong>> {
    let Some(value) = value else {
        let tombstone = tombstone(key).map_err(|wrong| vec![wrong])?;
        return Ok(Change::of(key.to_owned(), tombstone));
    };
    let mut wrongs = Wrongs::default();
    let document = fields::document(key, value, VALUE_MAX, &mut wrongs);
    let change = document.and_then(|document| {
        let fields = Fields::of_document(&document);
        let number = |range: RangeInclusive<u64>| move |value: &Value| integer(value, range);
        fields.require("version", &mut wrongs, number(VERSION..=VERSION));
        let counted = fields.require("revision", &mut wrongs, number(1..=u64::MAX));
        let mut setting = setting(key, &fields, &mut wrongs)?;
        match &mut setting {
            Setting::Project(_, Some(project)) => {
                project.is_deleted = fields.read("deleted", &mut wrongs, flag).unwrap_or(false);
                project.revision = counted?;
            }
            Setting::Service(_, _, Some(service)) => service.revision = counted?,
            Setting::Target(_, Some(target)) => target.revision = counted?,
            _ => {}
        }
        Some(Change { key: key.to_owned(), bytes: key.len() + value.len(), setting })
    });
    sound(key, change, wrongs)
}

/// Reads what somebody wants a project, a service or a target to be. Every field that is not known is wrong. The change has
/// revision 0; [give it one](Change::with_revision) before it is written.
///
/// # Errors
/// All that is wrong with it, for the caller to read.
pub fn read_request(key: &str, body: &[u8]) -> Result<Change, Vec<Wrong>> {
    let mut wrongs = Wrongs::default();
    let document = fields::document(key, body, VALUE_MAX, &mut wrongs);
    let change = document.and_then(|document| {
        let fields = Fields::of_document(&document);
        let setting = setting(key, &fields, &mut wrongs)?;
        match setting {
            Setting::Project(..) => fields.only(&PROJECT_FIELDS, "a project", &mut wrongs),
            Setting::Service(..) => fields.only(&SERVICE_FIELDS, "a service", &mut wrongs),
            Setting::Target(..) => fields.only(&TARGET_FIELDS, "a target", &mut wrongs),
        }
        Some(Change::of(key.to_owned(), setting))
    });
    sound(key, change, wrongs)
}

/// What was read, if nothing is wrong with it.
fn sound(key: &str, change: Option<Change>, wrongs: Wrongs) -> Result<Change, Vec<Wrong>> {
    match change {
        Some(change) if wrongs.is_empty() => Ok(change),
        _ => Err(wrongs.list(key)),
    }
}

/// What a key is about, and that nothing is said of it.
fn tombstone(key: &str) -> Result<Setting, Wrong> {
    let named = |name: &str| is_name(name).then(|| name.to_owned());
    let of_project = || Some(Setting::Project(named(key.strip_prefix("project/")?)?, None));
    let of_service = || {
        let (project, name) = key.strip_prefix("service/")?.split_once('/')?;
        Some(Setting::Service(named(project)?, named(name)?, None))
    };
    let of_target = || {
        let topic = key.strip_prefix("target/")?;
        is_topic(topic).then(|| Setting::Target(topic.to_owned(), None))
    };
    of_project()
        .or_else(of_service)
        .or_else(of_target)
        .ok_or_else(|| Wrong { at: key.to_owned(), detail: KEYS.to_owned() })
}

const KEYS: &str = "is not a key of a project, a service or a target; want project/<name> or service/<project>/<name>, each name 1 to 64 of a-z 0-9 . _ -, not . or .., or target/<topic>";

/// What fields say of what the key is about.
fn setting(key: &str, fields: &Fields<'_>, wrongs: &mut Wrongs) -> Option<Setting> {
    match tombstone(key) {
        Ok(Setting::Project(name, _)) => {
            Some(Setting::Project(name, Some(Project::read(fields, wrongs))))
        }
        Ok(Setting::Service(project, name, _)) => {
            Some(Setting::Service(project, name, Service::read(fields, wrongs)))
        }
        Ok(Setting::Target(topic, _)) => {
            Some(Setting::Target(topic, Some(TargetTopic::read(fields, wrongs))))
        }
        Err(Wrong { at, detail }) => {
            wrongs.add(at, detail);
            None
        }
    }
}

const PROJECT_FIELDS: [&str; 13] = [
    "paused",
    "concurrency",
    "rate",
    "burst",
    "create_rate",
    "create_burst",
    "max_pending",
    "max_delay",
    "max_body",
    "window",
    "targets",
    "hosts",
    "history",
];
const CERTIFICATE: &str = "client_certificate";
const SERVICE_FIELDS: [&str; 11] = [
    "protocol",
    "address",
    "paused",
    "concurrency",
    "rate",
    "burst",
    "timeout",
    "retry",
    "secret",
    "bearer",
    CERTIFICATE,
];
const TARGET_FIELDS: [&str; 3] = ["paused", "rate", "burst"];
const ADDRESS: &str =
    "a URL http:// or https:// of at most 2048 bytes, without user information, query and fragment";
const GRPC_ADDRESS: &str = "a URL http:// (plain HTTP/2) or https:// (TLS) of at most 2048 bytes, without user information, path, query and fragment";
const SECRET: &str =
    "the name of a secret: 1 to 64 of a-z 0-9 . _ -; its value stands in the workers' [secrets]";

/// What [`is_name`] wants.
pub const NAME_WANTED: &str = "1 to 64 of a-z 0-9 . _ -, not . or ..";

/// Whether a project, a service, a group or a secret may have this name. Names stand in URLs.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(allowed) && !matches!(text, "." | "..")
}

/// Whether a topic of Kafka may have this name.
#[must_use]
pub fn is_topic(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=TOPIC_MAX).contains(&text.len())
        && text.bytes().all(allowed)
        && !matches!(text, "." | "..")
}

/// Whether a text could be an address. Paths are put behind it, so nothing may stand behind its path.
fn is_base_url(text: &str) -> bool {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let Some(rest) = rest else { return false };
    let host = rest.split('/').next().unwrap_or_default();
    // Parsers of URLs read a backslash as a slash.
    let allowed = |byte: u8| byte.is_ascii_graphic() && !b"\\?#\"<>`{}|^".contains(&byte);
    text.len() <= ADDRESS_MAX
        && text.bytes().all(allowed)
        && !host.is_empty()
        && !host.starts_with(':')
        && !host.contains('@')
}

/// Whether a text could be the address of a gRPC service. The path of a call is made of the names of service and method alone.
fn is_grpc_address(text: &str) -> bool {
    let behind = text.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
    is_base_url(text) && behind.is_none_or(|(_, path)| path.is_empty())
}

/// A text that passes a check. What is wrong is not shown: people paste passwords where only names belong.
fn secretive(value: &Value, want: &str, is_sound: fn(&str) -> bool) -> Result<String, String> {
    match value {
        Value::Null => Err(wanted(value, want)),
        Value::String(text) if is_sound(text) => Ok(text.clone()),
        _ => Err(format!("is something else (not shown, as it may be a secret); want {want}")),
    }
}

/// Over how long a time tasks are spread.
pub(super) fn window(value: &Value) -> Result<Millis, String> {
    length(value, Millis(0)..=WINDOW_MAX)
}

fn flag(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| wanted(value, "true or false"))
}

fn concurrency(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Option<u32> {
    let calls =
        fields.read("concurrency", wrongs, |value| integer(value, 1..=CONCURRENCY_MAX.into()))?;
    u32::try_from(calls).ok()
}

/// A number of calls or records per second.
fn per_second(value: &Value) -> Result<Rate, String> {
    let rate = value.as_f64().and_then(|number| {
        let tokens = (number * 1e3).round();
        // A text of three decimals is read as the number next to it, and so is this quotient.
        let is_exact = (1.0..=PER_1000_S_MAX).contains(&tokens) && tokens / 1e3 == number;
        if is_exact { Rate::per_1000_s(tokens as u64) } else { None }
    });
    rate.ok_or_else(|| {
        wanted(value, "a number per second from 0.001 to 1000000, of at most 3 decimals")
    })
}

fn rate_and_burst(
    fields: &Fields<'_>,
    wrongs: &mut Wrongs,
    [rate_at, burst_at]: [&str; 2],
) -> (Option<Rate>, u32) {
    let rate = fields.read(rate_at, wrongs, per_second);
    let burst = fields.read(burst_at, wrongs, |value| integer(value, 1..=BURST_MAX.into()));
    if burst.is_some() && !fields.has(rate_at) {
        wrongs.add(burst_at, "says nothing without a rate; want both or none");
    }
    // What comes in a second: a caller who says `5 per second` may begin five at once.
    let usual = rate.map_or(1, Rate::per_second_rounded_up);
    let burst = u32::try_from(burst.unwrap_or(usual)).unwrap_or(BURST_MAX);
    (rate, burst)
}

/// Topics, by regular expressions for whole names.
#[derive(Clone, Debug)]
pub struct Topics {
    patterns: Vec<String>,
    allow: Allow,
}

impl Topics {
    /// Topics whose whole names one of the expressions matches.
    ///
    /// # Errors
    /// One is no regular expression, or all are too large together.
    pub fn new(patterns: Vec<String>) -> Result<Self, BadPattern> {
        let allow = Allow::new("", Some(&patterns))?;
        Ok(Self { patterns, allow })
    }

    /// The expressions.
    #[must_use]
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }
}

impl PartialEq for Topics {
    fn eq(&self, other: &Self) -> bool {
        self.patterns == other.patterns
    }
}

impl Eq for Topics {}

fn texts(value: &Value, most: usize) -> Result<Vec<String>, String> {
    let list = value.as_array().filter(|list| list.len() <= most);
    let texts =
        list.and_then(|list| list.iter().map(|text| text.as_str().map(str::to_owned)).collect());
    texts.ok_or_else(|| wanted(value, &format!("a list of at most {most} texts")))
}

/// A list with an entry that is none is refused as a whole.
fn hosts(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Option<Hosts> {
    let hosts = fields.read("hosts", wrongs, |value| texts(value, HOSTS_MAX))?;
    for (nth, host) in hosts.iter().enumerate() {
        if Hosts::new(vec![host.clone()]).is_err() {
            wrongs.add(fields::item("hosts", nth), wanted_address(host, HOST_WANTED));
        }
    }
    Hosts::new(hosts).ok()
}

fn targets(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Option<Topics> {
    let patterns = fields.read("targets", wrongs, |value| texts(value, TARGETS_MAX))?;
    let mut is_sound = true;
    for (nth, pattern) in patterns.iter().enumerate() {
        if let Err(bad) = Allow::new("", Some(std::slice::from_ref(pattern))) {
            let shown = fields::shown(&Value::from(bad.pattern));
            let detail = format!("is {shown}, which is no regular expression: {}", bad.why);
            wrongs.add(fields::item("targets", nth), detail);
            is_sound = false;
        }
    }
    let topics = Topics::new(patterns);
    if is_sound && topics.is_err() {
        wrongs.add("targets", "is too large together; want fewer or simpler expressions");
    }
    // A list that is not sound is refused as a whole.
    topics.ok()
}

/// A rate as JSON: whole numbers without a point.
fn number(rate: Rate) -> Value {
    let tokens = rate.whole_per_1000_s();
    if tokens.is_multiple_of(1_000) { json!(tokens / 1_000) } else { json!(tokens as f64 / 1e3) }
}

/// What makes tasks wait that are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paused {
    /// Their project is paused.
    pub project: bool,
    /// The service that they call is.
    pub service: bool,
    /// The topic that they go to is.
    pub topic: bool,
}

/// All projects, services and targets that this instance has heard of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registry {
    projects: BTreeMap<String, Project>,
    /// Topics by name.
    targets: BTreeMap<String, TargetTopic>,
    /// Bytes of each key and its value.
    sizes: BTreeMap<String, usize>,
    /// Bytes of all of them.
    bytes: usize,
}

impl Registry {
    /// Takes a change in.
    ///
    /// # Errors
    /// There is no room for it. What was there stays.
    pub fn apply(&mut self, change: Change) -> Result<(), Wrong> {
        self.has_room(&change)?;
        self.bytes -= self.sizes.remove(&change.key).unwrap_or_default();
        if !change.is_tombstone() {
            self.bytes += change.bytes;
            self.sizes.insert(change.key, change.bytes);
        }
        let name = match &change.setting {
            Setting::Project(name, _) | Setting::Service(name, _, _) => name.clone(),
            Setting::Target(topic, target) => {
                match *target {
                    Some(target) => self.targets.insert(topic.clone(), target),
                    None => self.targets.remove(topic),
                };
                return Ok(());
            }
        };
        let project = self.projects.entry(name.clone()).or_insert(Project::NEVER_PUT);
        match change.setting {
            Setting::Project(_, to) => {
                let services = std::mem::take(&mut project.services);
                *project = Project { services, ..to.unwrap_or(Project::NEVER_PUT) };
            }
            Setting::Service(_, name, Some(to)) => {
                project.services.insert(name, to);
            }
            Setting::Service(_, name, None) => {
                project.services.remove(&name);
            }
            Setting::Target(..) => {}
        }
        if *project == Project::NEVER_PUT {
            self.projects.remove(&name);
        }
        Ok(())
    }

    /// Whether a change could be applied.
    ///
    /// # Errors
    /// It would be one key or one byte too many.
    pub fn has_room(&self, change: &Change) -> Result<(), Wrong> {
        if change.is_tombstone() {
            return Ok(());
        }
        let wrong = |detail| Err(Wrong { at: change.key.clone(), detail });
        let before = self.sizes.get(&change.key);
        if before.is_none() && self.sizes.len() >= KEYS_MAX {
            return wrong(format!(
                "there are {KEYS_MAX} projects, services and targets already; delete some"
            ));
        }
        let bytes = self.bytes - before.copied().unwrap_or_default() + change.bytes;
        if bytes > BYTES_MAX {
            return wrong(format!(
                "projects, services and targets would take {bytes} bytes; want at most {BYTES_MAX}"
            ));
        }
        Ok(())
    }

    /// Whether it has what a change says, as that revision.
    #[must_use]
    pub fn has(&self, change: &Change) -> bool {
        match &change.setting {
            Setting::Project(name, Some(project)) => {
                let known = self.project(name);
                *project == Project { services: BTreeMap::new(), ..known.clone() }
            }
            Setting::Service(project, name, service) => {
                self.service(project, name) == service.as_ref()
            }
            Setting::Target(topic, target) => self.targets.get(topic) == target.as_ref(),
            Setting::Project(name, None) => self.project(name).revision == 0,
        }
    }

    /// Whether a change may be made, now that all else is known.
    ///
    /// # Errors
    /// It is a service of a project that was deleted.
    pub fn permits(&self, change: &Change) -> Result<(), Wrong> {
        match &change.setting {
            Setting::Service(project, _, Some(_)) if self.project(project).is_deleted => {
                let detail = format!("the project {project} was deleted; put it first");
                Err(Wrong { at: change.key.clone(), detail })
            }
            _ => Ok(()),
        }
    }

    /// What goes away with a change: the services of a project that is deleted.
    #[must_use]
    pub fn goes_with(&self, change: &Change) -> Vec<Change> {
        match &change.setting {
            Setting::Project(name, Some(project)) if project.is_deleted => {
                let services = self.project(name).services.keys();
                services.map(|service| Change::of_service(name, service, None)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The revision of what a change would take the place of; 0: nothing is said of it.
    #[must_use]
    pub fn revision_before(&self, change: &Change) -> u64 {
        match &change.setting {
            Setting::Project(name, _) => self.project(name).revision,
            Setting::Service(project, name, _) => {
                self.service(project, name).map_or(0, |service| service.revision)
            }
            Setting::Target(topic, _) => self.target(topic).revision,
        }
    }

    /// A project. One that was never put has the defaults.
    #[must_use]
    pub fn project(&self, name: &str) -> &Project {
        static NEVER_PUT: Project = Project::NEVER_PUT;
        self.projects.get(name).unwrap_or(&NEVER_PUT)
    }

    /// A service of a project.
    #[must_use]
    pub fn service(&self, project: &str, name: &str) -> Option<&Service> {
        self.project(project).services.get(name)
    }

    /// A topic that records go to.
    #[must_use]
    pub fn target(&self, topic: &str) -> TargetTopic {
        self.targets.get(topic).copied().unwrap_or(TargetTopic::NEVER_PUT)
    }

    /// All topics of which something is said, by name.
    pub fn targets(&self) -> impl Iterator<Item = (&str, TargetTopic)> {
        self.targets.iter().map(|(name, target)| (name.as_str(), *target))
    }

    /// Whether no record may go to a topic.
    #[must_use]
    pub fn is_target_paused(&self, topic: &str) -> bool {
        self.target(topic).paused
    }

    /// The topics to which no record may go.
    pub fn paused_targets(&self) -> impl Iterator<Item = &str> {
        self.targets().filter(|(_, target)| target.paused).map(|(name, _)| name)
    }

    /// Whether tasks of this project, for this service, are to wait.
    #[must_use]
    pub fn paused(&self, project: &str, service: Option<&str>) -> bool {
        self.paused_by(project, service, None) != Paused::default()
    }

    /// What makes tasks of this project wait, for this service, or to this topic.
    #[must_use]
    pub fn paused_by(&self, project: &str, service: Option<&str>, topic: Option<&str>) -> Paused {
        let of = self.project(project);
        let service = service.and_then(|name| of.services.get(name));
        Paused {
            project: of.paused,
            service: service.is_some_and(|service| service.paused),
            topic: topic.is_some_and(|topic| self.is_target_paused(topic)),
        }
    }

    /// All projects of which something is said, by name.
    pub fn projects(&self) -> impl Iterator<Item = (&str, &Project)> {
        self.projects.iter().map(|(name, project)| (name.as_str(), project))
    }
}

#[cfg(test)]
mod tests;
