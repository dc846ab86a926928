//! `x-delay-task`: the specification of a task. This is its only reader.
//!
//! # Invariants
//! 1. A specification has one meaning or is refused, and the answer names every field that is wrong.
//! 2. A [`Spec`] is only made here, so each one is legal, and fits into [`SPEC_MAX`] bytes as it is written.
//! 3. What [`to_json`](Spec::to_json) writes is read back as the same specification. Defaults are written out, so that
//!    another version's defaults change nothing.
//! 4. An answer does not repeat user information of a URL or a header's value: they may be secrets.
//!
//! What a service is, and whether an address may be called, is looked up when the call is made.

use std::fmt;

use serde::Serialize;
use serde_json::Value;
use url::{Position, Url};

use super::super::header::{TOPIC_WANTED, is_topic_name};
use super::super::run::{self, ON_FINISHED, Run, SHARDS_MAX};
use super::super::schedule::{self, LAST_OF_COUNT, NEVER, SCHEDULE_MAX, Schedule};
use super::super::{Millis, UnixMillis};
use super::fields::{
    Fields, Length, Wrongs, base64, bytes, document, integer, item, length, text, to_json, wanted,
};
use super::follow_up::CONTENT_TYPE;
use super::id::REQUEST_ID_MAX;
use super::retry::Retry;
use super::template::TASK;
use super::{Wrong, retry};

mod address;
mod expect;
mod grpc;

pub use expect::Expect;
pub use grpc::{BodyFormat, Grpc, GrpcAddress, HOST_MAX, SERVICE_MAX};

/// The header that has it.
pub const HEADER: &str = "x-delay-task";
/// Longest specification, in bytes.
pub const SPEC_MAX: usize = 16 * 1024;
/// Longest name of a project, a group or a service, in bytes.
pub const NAME_MAX: usize = 64;
/// Longest URL and longest path, in bytes, also when they are percent-encoded.
pub const URL_MAX: usize = 2_048;
/// Most headers of a call. The specification's own bound keeps them below 16 KiB in all.
pub const HEADERS_MAX: usize = 64;
/// Longest key of a Kafka task, in bytes.
pub const KEY_MAX: usize = 1_024;
/// Longest time that a call may take; what takes longer reports by feedback.
pub const TIMEOUT_MAX: Millis = Millis(300_000);
/// Shortest and longest interval between two polling rounds.
pub const POLL_INTERVAL: (Millis, Millis) = (Millis::SECOND, Millis::DAY);
/// Most polling rounds: one a second makes a little more than a day.
pub const ROUNDS_MAX: u32 = 100_000;
/// Shortest and longest deadline of a turn with feedback.
pub const DEADLINE: (Millis, Millis) = (Millis::SECOND, Millis(30 * Millis::DAY.0));
/// Shortest heartbeat: the task's record hops once in each.
pub const HEARTBEAT_MIN: Millis = Millis(2_000);
/// A body of more bytes is large.
pub const LARGE_BYTES: usize = 64 << 10;
/// Shortest heartbeat of a task with a large body.
pub const HEARTBEAT_MIN_LARGE: Millis = Millis(30_000);

/// What is to be done when a task is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    project: String,
    group: String,
    request_id: Option<String>,
    kind: Kind,
    retry: Option<Retry>,
    on_result: Option<OnResult>,
    occurrence: Option<Occurrence>,
    shard: Option<Shard>,
    expires: Option<UnixMillis>,
}

/// Which shard of a run it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which one, from 0.
    pub index: u32,
    /// Of how many.
    pub count: u32,
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

/// Which task of a schedule it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// The name of the schedule, which is of the same project.
    pub schedule: String,
    /// The nominal time that it stands for; of one that somebody asked for: when.
    pub nominal: UnixMillis,
    /// The nominal time whose task is to have ended before it is begun.
    pub after: Option<UnixMillis>,
}

/// The types of tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An HTTP call whose body is the record's value.
    Http(Http),
    /// A record for a topic.
    Kafka(Kafka),
    /// A call over gRPC whose body is the record's value.
    Grpc(Grpc),
    /// What submits tasks again and again. It is no task itself.
    Schedule(Box<Schedule>),
    /// Many tasks that count as one.
    Run(Box<Run>),
}

/// An HTTP call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http {
    /// Who is called.
    pub address: Address,
    /// The method; POST unless another one is named.
    pub method: Method,
    /// Names and values, as they were written.
    pub headers: Vec<(String, String)>,
    /// How long the call may take; `None`: the service's time, or waterclock's default.
    pub timeout: Option<Millis>,
    /// Which statuses mean that the task is done.
    pub expect: Expect,
    /// Present: the call is made again until the thing has happened.
    pub poll: Option<Poll>,
    /// Present: the call only hands the task over, and who took it reports later. There is no `poll` then.
    pub feedback: Option<Feedback>,
}

/// Who is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A named service of the project.
    Service {
        /// Its name.
        name: String,
        /// What follows its address: begins with one `/`, percent-encoded, no `.` or `..` segments. May have a query.
        path: Option<String>,
    },
    /// A URL: http or https, with a host, without user information and fragment.
    Url(Url),
}

/// A method of HTTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Method {
    /// GET
    Get,
    /// HEAD
    Head,
    /// POST
    #[default]
    Post,
    /// PUT
    Put,
    /// PATCH
    Patch,
    /// DELETE
    Delete,
    /// OPTIONS
    Options,
}

impl Method {
    /// Every method that a task may have.
    pub const ALL: [Self; 7] =
        [Self::Get, Self::Head, Self::Post, Self::Put, Self::Patch, Self::Delete, Self::Options];

    /// As HTTP writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Options => "OPTIONS",
        }
    }
}

/// A call that is made again until the thing that it asks for has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    /// Between two rounds, the same every time.
    pub interval: Millis,
    /// How many of them, from 1.
    pub rounds: u32,
}

/// Who takes a task reports what comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feedback {
    /// Who takes a turn is given so long. Then the turn has failed.
    pub deadline: Millis,
    /// From the first heartbeat on, the turn has failed once there was none for so long. At most the deadline, and the deadline
    /// unless it is told.
    pub heartbeat: Millis,
}

/// A record for a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kafka {
    /// The topic.
    pub topic: String,
    /// Its partition, zero or more; whether the topic has it is not known here.
    pub partition: Option<i32>,
    /// The key at delivery, where it is not the record's.
    pub key: Option<Vec<u8>>,
    /// Present: the task goes on after its delivery, until who took the record reports.
    pub feedback: Option<Feedback>,
}

/// Who hears how a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnResult {
    /// A topic.
    Topic(String),
    /// A named service of the project.
    Service(String),
    /// A URL, as that of a task.
    Url(Url),
}

/// What limits apply to besides the project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope<'a> {
    /// A named service of the task's project.
    Service(&'a str),
    /// The host of a raw URL, with its port where that is not the scheme's own. That of a gRPC task is written the same way.
    Host(&'a str),
}

/// The fields of every task.
pub(super) const COMMON_FIELDS: [&str; 9] =
    ["type", "project", "group", "request_id", "retry", "on_result", OCCURRENCE, SHARD, EXPIRES];
/// Those of runs.
pub(super) const RUN_FIELDS: [&str; 10] = [
    "type",
    "project",
    "group",
    "request_id",
    OCCURRENCE,
    "shards",
    "deadline",
    "on_shard_failure",
    ON_FINISHED,
    TASK,
];
/// Those of HTTP tasks besides.
pub(super) const HTTP_FIELDS: [&str; 9] =
    ["service", "url", "path", "method", "headers", "timeout", "expect", "poll", "feedback"];
/// Those of Kafka tasks besides.
pub(super) const KAFKA_FIELDS: [&str; 4] = ["topic", "partition", "key_b64", "feedback"];
/// Those of gRPC tasks besides.
pub(super) const GRPC_FIELDS: [&str; 10] = [
    "named_service",
    "host",
    "tls",
    "service",
    "method",
    "format",
    "headers",
    "timeout",
    "poll",
    "feedback",
];
/// What waterclock writes, and no request has.
pub(super) const OCCURRENCE: &str = "occurrence";
/// The same.
pub(super) const SHARD: &str = "shard";
/// The same, for who looks at the task. What counts is in the seal of its record.
pub(super) const EXPIRES: &str = "expires_at";

/// The type of runs, as it is written.
pub const RUN: &str = "run";
/// The type of schedules, as it is written.
pub const SCHEDULE: &str = "schedule";

/// What a request for a schedule does not say.
const NOT_OF_SCHEDULE: [(&str, &str); 2] = [
    ("type", "a schedule has none, and its task has one"),
    (LAST_OF_COUNT, "it is what waterclock writes"),
];

const NAME_WANTED: &str = "1 to 64 of a-z 0-9 . _ -, not . or ..";

/// A type that is read now.
#[derive(Clone, Copy)]
enum Type {
    Http,
    Kafka,
    Grpc,
    Schedule,
    Run,
}

impl Spec {
    /// Reads one.
    ///
    /// # Errors
    /// Every field that is wrong, at least one.
    pub fn parse(json: &[u8]) -> Result<Self, Vec<Wrong>> {
        let mut wrongs = Wrongs::default();
        let map = document(HEADER, json, SCHEDULE_MAX, &mut wrongs);
        let spec = map.and_then(|map| Self::read(&Fields::of_document(&map), &mut wrongs));
        if let Some(spec) = &spec {
            let (len, max) = (json.len(), spec.bytes_max());
            if len > max {
                wrongs.add(HEADER, format!("has {len} bytes; want at most {max}"));
            }
            // Percent-encoding and defaults make it longer than it was.
            let len = spec.to_json().len();
            if len > max {
                let detail = format!(
                    "has {len} bytes once its defaults are written out; want at most {max}"
                );
                wrongs.add(HEADER, detail);
            }
        }
        match spec {
            Some(spec) if wrongs.is_empty() => Ok(spec),
            _ => Err(wrongs.list(HEADER)),
        }
    }

    /// Reads a schedule from what a caller asks for, which says no type. `of`: the project and the name of the schedule that is asked for;
    /// what is asked for may leave them out, and may not say others.
    ///
    /// # Errors
    /// Every field that is wrong, at least one.
    pub fn read_schedule(json: &[u8], of: Option<(&str, &str)>) -> Result<Self, Vec<Wrong>> {
        let mut wrongs = Wrongs::default();
        let map = document(SCHEDULE, json, SCHEDULE_MAX, &mut wrongs);
        let spec = map.and_then(|mut map| {
            for (field, why) in NOT_OF_SCHEDULE.iter().filter(|(field, _)| map.contains_key(*field))
            {
                wrongs.add(*field, format!("is there; {why}"));
            }
            map.insert("type".to_owned(), SCHEDULE.into());
            let named = of.map(|(project, name)| [("project", project), ("name", name)]);
            for (field, want) in named.into_iter().flatten() {
                let given = map.entry(field).or_insert_with(|| want.into());
                if given != want {
                    wrongs.add(field, wanted(given, &format!("{want}, as the path says")));
                }
            }
            Self::read(&Fields::of_document(&map), &mut wrongs)
        });
        let len = spec.as_ref().map_or(0, |spec| spec.to_json().len());
        if len > SCHEDULE_MAX {
            let detail = format!("has {len} bytes with its defaults; want at most {SCHEDULE_MAX}");
            wrongs.add(SCHEDULE, detail);
        }
        match spec {
            Some(spec) if wrongs.is_empty() => Ok(spec),
            _ => Err(wrongs.list(SCHEDULE)),
        }
    }

    /// Reads all fields before it gives up: each one that is wrong is to be named.
    pub(super) fn read(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Option<Self> {
        let kind = fields.require("type", wrongs, kind);
        let project = fields.require("project", wrongs, name);
        let group = fields.require("group", wrongs, name);
        let request_id = fields.read("request_id", wrongs, request_id);
        let kind = match kind {
            Some(Type::Http) => {
                fields.only(&[&COMMON_FIELDS[..], &HTTP_FIELDS].concat(), "http tasks", wrongs);
                read_http(fields, wrongs).map(Kind::Http)
            }
            Some(Type::Kafka) => {
                fields.only(&[&COMMON_FIELDS[..], &KAFKA_FIELDS].concat(), "kafka tasks", wrongs);
                read_kafka(fields, wrongs).map(Kind::Kafka)
            }
            Some(Type::Grpc) => {
                fields.only(&[&COMMON_FIELDS[..], &GRPC_FIELDS].concat(), "grpc tasks", wrongs);
                grpc::read(fields, wrongs).map(Kind::Grpc)
            }
            Some(Type::Schedule) => {
                let known = COMMON_FIELDS[..3].iter().copied().chain(schedule::fields());
                // Known where it is, and offered to nobody.
                let known = known.chain(Some(LAST_OF_COUNT).filter(|field| fields.has(field)));
                fields.only(&known.collect::<Vec<_>>(), "schedules", wrongs);
                let of = project.as_deref().zip(group.as_deref());
                Schedule::read(fields, of, wrongs).map(Box::new).map(Kind::Schedule)
            }
            Some(Type::Run) => {
                fields.only(&RUN_FIELDS, "runs", wrongs);
                let of = project.as_deref().zip(group.as_deref());
                Run::read(fields, of, wrongs).map(Box::new).map(Kind::Run)
            }
            None => {
                let of_grpc = ["named_service", "host", "tls", "format"];
                let known =
                    [&COMMON_FIELDS[..], &HTTP_FIELDS, &KAFKA_FIELDS[..3], &of_grpc].concat();
                fields.only(&known, "tasks", wrongs);
                None
            }
        };
        let retry = fields.inside("retry", wrongs).map(|fields| Retry::read(&fields, wrongs));
        let on_result = if matches!(kind, Some(Kind::Run(_))) { ON_FINISHED } else { "on_result" };
        let on_result = fields
            .inside(on_result, wrongs)
            .and_then(|inside| read_on_result(&inside, &fields.at(on_result), wrongs));
        let occurrence =
            fields.inside(OCCURRENCE, wrongs).and_then(|inside| read_occurrence(&inside, wrongs));
        Some(Self {
            project: project?,
            group: group?,
            request_id,
            kind: kind?,
            retry,
            on_result,
            occurrence,
            shard: fields.read(SHARD, wrongs, shard),
            expires: fields
                .read(EXPIRES, wrongs, |value| integer(value, 0..=NEVER.0).map(UnixMillis)),
        })
    }

    /// That of the task of a project and group by which is told how another one ended. Nobody is told how it ends itself.
    pub(super) fn of_follow_up(
        (project, group): (&str, &str),
        to: &OnResult,
        retry: Option<Retry>,
    ) -> Self {
        let post = |address: Address| {
            let (name, value) = CONTENT_TYPE;
            Kind::Http(Http {
                address,
                method: Method::Post,
                headers: vec![(name.to_owned(), value.to_owned())],
                timeout: None,
                expect: Expect::default(),
                poll: None,
                feedback: None,
            })
        };
        let kind = match to {
            OnResult::Url(url) => post(Address::Url(url.clone())),
            OnResult::Service(name) => post(Address::Service { name: name.clone(), path: None }),
            OnResult::Topic(topic) => Kind::Kafka(Kafka {
                topic: topic.clone(),
                partition: None,
                key: None,
                feedback: None,
            }),
        };
        let (project, group) = (project.to_owned(), group.to_owned());
        let (request_id, on_result, occurrence, shard) = (None, None, None, None);
        let expires = None;
        Self { project, group, request_id, kind, retry, on_result, occurrence, shard, expires }
    }

    /// Longest specification of its type, in bytes.
    pub(super) const fn bytes_max(&self) -> usize {
        match self.kind {
            // They have a task in them.
            Kind::Schedule(_) | Kind::Run(_) => SCHEDULE_MAX,
            _ => SPEC_MAX,
        }
    }

    /// The project.
    #[must_use]
    pub fn project(&self) -> &str {
        &self.project
    }

    /// The group: a word for lists.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The caller's name for the request that created it: one task per project and request.
    #[must_use]
    pub fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }

    /// The same with the request id that made the id of the task.
    #[must_use]
    pub fn with_request_id(self, request_id: Option<String>) -> Self {
        Self { request_id, ..self }
    }

    /// The same of a task that is not begun any more after that. A schedule and a run have no such time.
    #[must_use]
    pub fn with_expires(self, expires: Option<UnixMillis>) -> Self {
        match self.kind {
            Kind::Schedule(_) | Kind::Run(_) => self,
            _ => Self { expires, ..self },
        }
    }

    /// When it is not begun any more.
    #[must_use]
    pub const fn expires(&self) -> Option<UnixMillis> {
        self.expires
    }

    /// The same as a task of a schedule.
    pub(crate) fn with_occurrence(self, occurrence: Occurrence) -> Self {
        Self { occurrence: Some(occurrence), ..self }
    }

    /// Which task of a schedule it is, if it is one.
    #[must_use]
    pub const fn occurrence(&self) -> Option<&Occurrence> {
        self.occurrence.as_ref()
    }

    /// The same as a shard of a run.
    pub(crate) fn with_shard(self, shard: Shard) -> Self {
        Self { shard: Some(shard), ..self }
    }

    /// Which shard of a run it is, if it is one.
    #[must_use]
    pub const fn shard(&self) -> Option<Shard> {
        self.shard
    }

    /// The run, if it is one.
    #[must_use]
    pub const fn run(&self) -> Option<&Run> {
        match &self.kind {
            Kind::Run(run) => Some(run),
            _ => None,
        }
    }

    /// The schedule, if it is one.
    #[must_use]
    pub const fn schedule(&self) -> Option<&Schedule> {
        match &self.kind {
            Kind::Schedule(schedule) => Some(schedule),
            _ => None,
        }
    }

    /// The same schedule, paused or not; a task stays as it is.
    #[must_use]
    pub fn with_paused(self, paused: bool) -> Self {
        let kind = match self.kind {
            Kind::Schedule(schedule) => Kind::Schedule(Box::new(schedule.with_paused(paused))),
            kind => kind,
        };
        Self { kind, ..self }
    }

    /// What is to be done.
    #[must_use]
    pub const fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The type as it is written.
    #[must_use]
    pub const fn type_name(&self) -> &'static str {
        match self.kind {
            Kind::Http(_) => "http",
            Kind::Kafka(_) => "kafka",
            Kind::Grpc(_) => "grpc",
            Kind::Schedule(_) => SCHEDULE,
            Kind::Run(_) => RUN,
        }
    }

    /// The task's own policy, as a whole; `None`: the service's, or [`Retry::default`].
    #[must_use]
    pub const fn retry(&self) -> Option<&Retry> {
        self.retry.as_ref()
    }

    /// Who hears how it ended.
    #[must_use]
    pub const fn on_result(&self) -> Option<&OnResult> {
        self.on_result.as_ref()
    }

    /// The named service that is called, if one is.
    #[must_use]
    pub fn service(&self) -> Option<&str> {
        match &self.kind {
            Kind::Http(Http { address: Address::Service { name, .. }, .. })
            | Kind::Grpc(Grpc { address: GrpcAddress::Service(name), .. }) => Some(name),
            _ => None,
        }
    }

    /// By when who takes a turn has to report; `None`: nobody reports.
    #[must_use]
    pub const fn feedback(&self) -> Option<Feedback> {
        match &self.kind {
            Kind::Http(http) => http.feedback,
            Kind::Kafka(kafka) => kafka.feedback,
            Kind::Grpc(grpc) => grpc.feedback,
            Kind::Schedule(_) | Kind::Run(_) => None,
        }
    }

    /// The topic whose readers execute it and report on it: its own, or that of the shards of a run, or of the task of a schedule.
    /// `None`: nobody reports what became of a record.
    #[must_use]
    pub fn executed_from(&self) -> Option<String> {
        let of = (self.project(), self.group());
        let within = match &self.kind {
            Kind::Kafka(kafka) => return kafka.feedback.map(|_| kafka.topic.clone()),
            Kind::Http(_) | Kind::Grpc(_) => return None,
            Kind::Run(run) => run.request(of, NEVER),
            Kind::Schedule(schedule) => schedule.request(of, NEVER),
        };
        within.ok()?.spec.executed_from()
    }

    /// How its call is made again until the thing has happened; `None`: it is not.
    #[must_use]
    pub const fn poll(&self) -> Option<Poll> {
        match &self.kind {
            Kind::Http(http) => http.poll,
            Kind::Grpc(grpc) => grpc.poll,
            Kind::Kafka(_) | Kind::Schedule(_) | Kind::Run(_) => None,
        }
    }

    /// What limits apply to besides the project; a Kafka task has no such scope.
    #[must_use]
    pub fn scope(&self) -> Option<Scope<'_>> {
        match &self.kind {
            Kind::Http(Http { address: Address::Service { name, .. }, .. })
            | Kind::Grpc(Grpc { address: GrpcAddress::Service(name), .. }) => {
                Some(Scope::Service(name))
            }
            Kind::Http(Http { address: Address::Url(url), .. })
            | Kind::Grpc(Grpc { address: GrpcAddress::Host(url), .. }) => {
                Some(Scope::Host(&url[Position::BeforeHost..Position::AfterPort]))
            }
            Kind::Kafka(_) | Kind::Schedule(_) | Kind::Run(_) => None,
        }
    }

    /// Writes it, compact, with its defaults.
    #[must_use]
    pub fn to_json(&self) -> String {
        let on_result = self.on_result.as_ref().map(|to| match to {
            OnResult::Topic(topic) => WireOnResult::Topic(topic),
            OnResult::Service(service) => WireOnResult::Service(service),
            OnResult::Url(url) => WireOnResult::Url(url.as_str()),
        });
        let (on_result, on_finished) =
            if self.run().is_some() { (None, on_result) } else { (on_result, None) };
        let mut wire = Wire {
            of_type: self.type_name(),
            project: &self.project,
            group: &self.group,
            request_id: self.request_id.as_deref(),
            retry: self.retry.as_ref().map(Retry::wire),
            poll: self
                .poll()
                .map(|poll| WirePoll { interval: Length(poll.interval), rounds: poll.rounds }),
            feedback: self.feedback().map(WireFeedback::of),
            on_result,
            on_finished,
            shard: self.shard.as_ref().map(Shard::to_string),
            expires_at: self.expires,
            occurrence: self.occurrence.as_ref().map(|of| WireOccurrence {
                schedule: &of.schedule,
                nominal: of.nominal,
                after: of.after,
            }),
            ..Wire::default()
        };
        match &self.kind {
            Kind::Http(http) => {
                match &http.address {
                    Address::Service { name, path } => {
                        wire.service = Some(name);
                        wire.path = path.as_deref();
                    }
                    Address::Url(url) => wire.url = Some(url.as_str()),
                }
                wire.method = Some(http.method.as_str());
                wire.headers = &http.headers;
                wire.timeout = http.timeout.map(Length);
                wire.expect = Some(http.expect.to_string());
            }
            Kind::Kafka(kafka) => {
                wire.topic = Some(&kafka.topic);
                wire.partition = kafka.partition;
                wire.key_b64 = kafka.key.as_deref().map(base64);
            }
            Kind::Grpc(grpc) => {
                if let GrpcAddress::Service(name) = &grpc.address {
                    wire.named_service = Some(name);
                }
                (wire.host, wire.tls) = grpc.host().unzip();
                wire.service = Some(&grpc.service);
                wire.method = Some(&grpc.method);
                wire.format = Some(grpc.format.as_str());
                wire.headers = &grpc.headers;
                wire.timeout = grpc.timeout.map(Length);
            }
            Kind::Schedule(schedule) => wire.schedule = Some(schedule.wire()),
            Kind::Run(run) => wire.run = Some(run.wire()),
        }
        to_json(&wire)
    }
}

/// A specification as JSON has it.
#[derive(Default, Serialize)]
struct Wire<'a> {
    #[serde(rename = "type")]
    of_type: &'a str,
    project: &'a str,
    group: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    named_service: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    headers: &'a [(String, String)],
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<Length>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expect: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_b64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<retry::Wire>,
    #[serde(skip_serializing_if = "Option::is_none")]
    poll: Option<WirePoll>,
    #[serde(skip_serializing_if = "Option::is_none")]
    feedback: Option<WireFeedback>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_result: Option<WireOnResult<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_finished: Option<WireOnResult<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    occurrence: Option<WireOccurrence<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<UnixMillis>,
    #[serde(flatten)]
    schedule: Option<schedule::ScheduleWire<'a>>,
    #[serde(flatten)]
    run: Option<run::Wire<'a>>,
}

#[derive(Serialize)]
struct WireOccurrence<'a> {
    schedule: &'a str,
    nominal: UnixMillis,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<UnixMillis>,
}

#[derive(Serialize)]
struct WirePoll {
    interval: Length,
    rounds: u32,
}

#[derive(Serialize)]
struct WireFeedback {
    deadline: Length,
    #[serde(skip_serializing_if = "Option::is_none")]
    heartbeat: Option<Length>,
}

impl WireFeedback {
    fn of(feedback: Feedback) -> Self {
        let Feedback { deadline, heartbeat } = feedback;
        let heartbeat = (heartbeat != deadline).then_some(Length(heartbeat));
        Self { deadline: Length(deadline), heartbeat }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum WireOnResult<'a> {
    Topic(&'a str),
    Service(&'a str),
    Url(&'a str),
}

fn request_id(value: &Value) -> Result<String, String> {
    let want = format!("a text of 1 to {REQUEST_ID_MAX} bytes without control characters");
    let text = text(value, &want)?;
    let is_sound =
        (1..=REQUEST_ID_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
    is_sound.then(|| text.to_owned()).ok_or_else(|| wanted(value, &want))
}

fn kind(value: &Value) -> Result<Type, String> {
    match value.as_str() {
        Some("http") => Ok(Type::Http),
        Some("kafka") => Ok(Type::Kafka),
        Some("grpc") => Ok(Type::Grpc),
        Some(SCHEDULE) => Ok(Type::Schedule),
        Some(RUN) => Ok(Type::Run),
        _ => Err(wanted(value, "http, kafka or grpc")),
    }
}

fn read_http(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Option<Http> {
    let service = fields.read("service", wrongs, name);
    let url = fields.read("url", wrongs, address::url);
    let path = fields.read("path", wrongs, address::path);
    match (fields.has("service"), fields.has("url")) {
        (true, true) => {
            wrongs.add(fields.at("url"), "is there beside service; want exactly one of them");
        }
        (false, false) => {
            wrongs.add(fields.at("url"), "is missing; want exactly one of url and service");
        }
        (false, true) if fields.has("path") => {
            wrongs.add(fields.at("path"), "is there beside url; want it as a part of the url");
        }
        _ => {}
    }
    let method = fields.read("method", wrongs, method);
    let headers = read_headers(fields, wrongs);
    let timeout = fields.read("timeout", wrongs, |value| length(value, Millis(1)..=TIMEOUT_MAX));
    let expect = fields.read("expect", wrongs, expect::read);
    let (poll, feedback) = read_what_follows(fields, wrongs);
    let address = match (service, url) {
        (Some(name), _) => Address::Service { name, path },
        (None, Some(url)) => Address::Url(url),
        (None, None) => return None,
    };
    Some(Http {
        address,
        method: method.unwrap_or_default(),
        headers,
        timeout,
        expect: expect.unwrap_or_default(),
        poll,
        feedback,
    })
}

fn read_kafka(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Option<Kafka> {
    let topic = fields.require("topic", wrongs, topic);
    let partition = fields
        .read("partition", wrongs, |value| integer(value, 0..=u64::from(i32::MAX.unsigned_abs())));
    let key = fields.read("key_b64", wrongs, |value| bytes(value, KEY_MAX));
    let feedback = read_feedback(fields, wrongs);
    let partition = partition.map(|partition| partition as i32);
    Some(Kafka { topic: topic?, partition, key, feedback })
}

/// What follows a call that was answered: it is made again until the thing has happened, or somebody reports.
fn read_what_follows(fields: &Fields<'_>, wrongs: &mut Wrongs) -> (Option<Poll>, Option<Feedback>) {
    let poll = fields.inside("poll", wrongs).and_then(|inside| read_poll(&inside, wrongs));
    let feedback = read_feedback(fields, wrongs);
    if feedback.is_some() && fields.has("poll") {
        wrongs.add(fields.at("feedback"), "is there beside poll; want at most one of them");
    }
    (poll, feedback)
}

fn read_feedback(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Option<Feedback> {
    let inside = fields.inside("feedback", wrongs)?;
    inside.only(&["deadline", "heartbeat"], "feedback", wrongs);
    let (shortest, longest) = DEADLINE;
    let deadline = inside.require("deadline", wrongs, |value| length(value, shortest..=longest));
    let heartbeat =
        inside.read("heartbeat", wrongs, |value| length(value, HEARTBEAT_MIN..=longest));
    let deadline = deadline?;
    if heartbeat.is_some_and(|heartbeat| heartbeat > deadline) {
        wrongs.add(inside.at("heartbeat"), "is longer than the deadline; want at most that");
    }
    Some(Feedback { deadline, heartbeat: heartbeat.unwrap_or(deadline) })
}

fn read_poll(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Option<Poll> {
    fields.only(&["interval", "rounds"], "poll", wrongs);
    let (shortest, longest) = POLL_INTERVAL;
    let interval = fields.require("interval", wrongs, |value| length(value, shortest..=longest));
    let rounds =
        fields.require("rounds", wrongs, |value| integer(value, 1..=u64::from(ROUNDS_MAX)));
    Some(Poll { interval: interval?, rounds: rounds? as u32 })
}

/// What a lane or an API instance wrote.
fn read_occurrence(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Option<Occurrence> {
    fields.only(&["schedule", "nominal", "after"], OCCURRENCE, wrongs);
    let time = |value: &Value| integer(value, 0..=NEVER.0).map(UnixMillis);
    let schedule = fields.require("schedule", wrongs, name);
    let nominal = fields.require("nominal", wrongs, time);
    let after = fields.read("after", wrongs, time);
    Some(Occurrence { schedule: schedule?, nominal: nominal?, after })
}

/// What a lane wrote: `3/60`.
fn shard(value: &Value) -> Result<Shard, String> {
    let read = value.as_str().and_then(|text| text.split_once('/')).and_then(|(index, count)| {
        Some(Shard { index: index.parse().ok()?, count: count.parse().ok()? })
    });
    let shard = read.filter(|shard| shard.index < shard.count && shard.count <= SHARDS_MAX);
    shard.ok_or_else(|| wanted(value, "which shard of how many, as 3/60"))
}

fn read_on_result(fields: &Fields<'_>, at: &str, wrongs: &mut Wrongs) -> Option<OnResult> {
    const KNOWN: [&str; 3] = ["topic", "service", "url"];
    fields.only(&KNOWN, "on_result", wrongs);
    let topic = fields.read("topic", wrongs, topic).map(OnResult::Topic);
    let service = fields.read("service", wrongs, name).map(OnResult::Service);
    let url = fields.read("url", wrongs, address::url).map(OnResult::Url);
    let there = KNOWN.into_iter().filter(|name| fields.has(name)).collect::<Vec<_>>();
    if there.len() != 1 {
        let has = if there.is_empty() { "none".to_owned() } else { there.join(" and ") };
        wrongs.add(at, format!("has {has}; want exactly one of topic, service, url"));
    }
    topic.or(service).or(url)
}

/// The headers of a call, each one a pair.
fn read_headers(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Vec<(String, String)> {
    let list = fields.read("headers", wrongs, |value| {
        value.as_array().ok_or_else(|| wanted(value, "a list of [name, value] pairs"))
    });
    let Some(list) = list else { return Vec::new() };
    let at = fields.at("headers");
    if list.len() > HEADERS_MAX {
        wrongs.add(&at, format!("has {} headers; want at most {HEADERS_MAX}", list.len()));
    }
    let mut headers = Vec::with_capacity(list.len());
    for (index, pair) in list.iter().enumerate() {
        let at = item(&at, index);
        let Some([name, value]) = pair.as_array().map(Vec::as_slice) else {
            wrongs.add(at, "is not a pair; want [name, value]");
            continue;
        };
        let name = header_name(name).map_err(|detail| wrongs.add(item(&at, 0), detail));
        let value = header_value(value).map_err(|detail| wrongs.add(item(&at, 1), detail));
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.push((name, value));
        }
    }
    headers
}

/// Headers that are about the connection, or that HTTP's own rules make from the body.
const OF_CONNECTION: [&str; 12] = [
    "expect",
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "te",
    "trailer",
    "upgrade",
    "http2-settings",
];
/// Headers that have secrets, which a record must not carry.
const OF_SECRETS: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];
/// How the names begin that the receiver is to believe.
const OF_WATERCLOCK: [&str; 3] = ["x-forwarded-", "webhook-", "waterclock-"];

fn header_name(value: &Value) -> Result<String, String> {
    const WANTED: &str = "the name of a header: letters, digits and !#$%&'*+-.^_`|~";
    let name = text(value, WANTED)?;
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_of_token) {
        return Err(wanted(value, WANTED));
    }
    let lower = name.to_ascii_lowercase();
    if OF_CONNECTION.contains(&lower.as_str()) {
        return Err(wanted(value, "none of the headers that HTTP itself sets"));
    }
    if OF_SECRETS.contains(&lower.as_str()) {
        return Err(wanted(value, "no secret in a task: use a service's secret"));
    }
    if OF_WATERCLOCK.iter().any(|start| lower.starts_with(start)) {
        return Err(wanted(value, "none of the headers that only waterclock may set"));
    }
    Ok(name.to_owned())
}

/// What is wrong with it is said without it: the value may be a secret.
fn header_value(value: &Value) -> Result<String, String> {
    let Some(text) = value.as_str() else {
        return Err("is not a text; want the value of a header".to_owned());
    };
    match text.chars().position(char::is_control) {
        Some(at) => Err(format!("has a control character at {at}; want a value without them")),
        None => Ok(text.to_owned()),
    }
}

fn method(value: &Value) -> Result<Method, String> {
    let found = Method::ALL.into_iter().find(|known| value.as_str() == Some(known.as_str()));
    found.ok_or_else(|| wanted(value, &Method::ALL.map(Method::as_str).join(", ")))
}

/// The name of a project, a group or a service. They stand in URLs and keys, where `.` and `..` would mean another path.
fn name(value: &Value) -> Result<String, String> {
    let is_fit = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-')
    };
    let name = text(value, NAME_WANTED)?;
    let is_name = (1..=NAME_MAX).contains(&name.len())
        && name.bytes().all(is_fit)
        && !matches!(name, "." | "..");
    if is_name { Ok(name.to_owned()) } else { Err(wanted(value, NAME_WANTED)) }
}

fn topic(value: &Value) -> Result<String, String> {
    let topic = text(value, TOPIC_WANTED)?;
    if is_topic_name(topic) { Ok(topic.to_owned()) } else { Err(wanted(value, TOPIC_WANTED)) }
}

#[cfg(test)]
mod tests;
