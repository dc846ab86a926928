//! The whole surface of configuration: one value per key, checked before anything connects.
//!
//! Layers, the later wins: defaults, the file (TOML), the environment (`WATERCLOCK_DATA_DIR`; `__` between the
//! levels, as in `WATERCLOCK_LOG__LEVEL`), flags. The field documentation is the manual: `docs/configuration.md`
//! is made from it, and a test compares defaults and ranges with the code.
//!
//! # Invariants
//! 1. A [`Config`] that [`Config::load`] gave keeps every range and relation stated here.
//! 2. Every error of all layers is reported at once, with the key as written, where, the value and the range.
//! 3. These types stop at the door: rooms are handed engine types or their own parameters, never a [`Config`].

mod callbacks;
mod check;
mod kafka;
mod load;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use crate::engine::Millis;
use crate::engine::allow::{Allow, BadPattern};
use crate::engine::ladder::Preset;
use crate::kafka::settings::Secret;

pub use callbacks::{CallbacksConfig, SecretConfig, SecretText};
pub use kafka::KafkaConfig;
pub use load::{ConfigErrors, Invalid, Origin, Overrides};
pub use text::ByteSize;

/// The intake whose topic is `<ns>.intake`; any other name `n` under `intakes` means `<ns>.intake.n`.
pub const MAIN_INTAKE: &str = "default";
/// What a list of holds has to be, here and on the command line.
pub(crate) const ASCENDING: &str = "holds in ascending order";

/// Everything that can be configured.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Addresses of Kafka, `host:port`, comma-separated; any one that answers names the others.
    ///
    /// Default: `localhost:9092`. Range: 1 to 4096 bytes.
    pub brokers: String,

    /// Prefix of every topic that waterclock owns, and the name of its consumer group. Several live side by side.
    /// One may be the beginning of another, as `a` and `a.intake`: no topic is of both, since an intake cannot be named like a
    /// topic of a namespace (see `intakes`).
    ///
    /// Default: `waterclock`. Range: a letter or digit, then letters, digits, `.`, `_`, `-`; at most 100 bytes.
    pub namespace: String,

    /// Directory that keeps this instance's name and its index of timers between starts. Locked while running.
    /// It can be deleted while nothing runs: the index is read from Kafka again.
    ///
    /// Default: not set; the first directory below `./waterclock-data` that no other process holds, so that one
    /// more process needs no configuration.
    #[serde(deserialize_with = "text::some")]
    pub data_dir: Option<PathBuf>,

    /// This instance's name among those of the namespace. Kafka fences an older owner of the same name, so no two
    /// may have the same.
    ///
    /// Default: not set; made up at the first start and kept in the data directory.
    /// Range: letters, digits, `.`, `_`, `-`; at most 64 bytes.
    pub instance: Option<String>,

    /// Address to serve health, metrics and the API on; with `api.tls` over TLS. Port 0 takes a free one. Without `api.tokens`,
    /// `api.jwt` and `api.tls.principals` there is no authentication: anyone who reaches it may look at timers and cancel them. So an
    /// address that others reach than this machine is refused unless there is one of them, or `http-unauthenticated` says that this is
    /// meant.
    ///
    /// Default: not set; a free port on 127.0.0.1, written to the log.
    /// Range: `localhost` or an IP address, and a port, as in `127.0.0.1:8080` or `[::1]:8080`.
    #[serde(deserialize_with = "text::some")]
    pub http: Option<SocketAddr>,

    /// Whether the API of timers may be served to other machines, though it asks nobody who he is: `http` and `advertise`
    /// may then be addresses that are not this machine's own. Tasks and projects are then still open to this machine alone:
    /// others need a token or a certificate.
    ///
    /// Default: `false`. Range: `true` or `false`.
    #[serde(deserialize_with = "text::one")]
    pub http_unauthenticated: bool,

    /// Further names of this instance, as a load balancer or callers use them. A request to the API that names another host
    /// is refused, so that a page of the web cannot ask by a name of its own that points here. IP addresses, `localhost`
    /// and the host of `advertise` always do; health and metrics answer to any name.
    ///
    /// Default: empty. Range: at most 100 host names, without ports.
    pub http_hosts: Vec<String>,

    /// Where the other instances, and clients that ask the owner of a timer, reach the address above; it is put into
    /// `<ns>.meta`. Needed where they see another address than this process does.
    ///
    /// Default: not set; the address that is served on, with this machine's name where that is all addresses.
    /// Range: `host:port`; at most 260 bytes.
    pub advertise: Option<String>,

    /// What this process does: `lanes` holds records and timers, `worker` makes the calls of tasks, `api` takes tasks over HTTP and gRPC.
    /// Health and metrics are served in any case. Without `lanes` it has no lane thread, whatever `threads` says.
    ///
    /// Default: `lanes,worker,api`. Range: one or more of these, with commas; `lanes` or `worker` among them.
    #[serde(deserialize_with = "text::one")]
    pub roles: Roles,

    /// Lane threads in this process, each a member of the group with a consumer and a producer of its own. More
    /// than there are lanes are idle.
    ///
    /// Default: `1`. Range: 1 to 64.
    #[serde(deserialize_with = "text::one")]
    pub threads: u16,

    /// What a crash may do: nothing that a `read_committed` consumer sees (`exactly_once`), or repeat what was in
    /// flight (`at_least_once`, which is faster and needs no transactions, and repeats it after a stall of a broker or an
    /// instance, too).
    ///
    /// Default: `exactly_once`. Range: `exactly_once` or `at_least_once`.
    #[serde(deserialize_with = "text::one")]
    pub delivery: Delivery,

    /// What is remembered of records that have an id. `full`: every timer, so that it can be looked up, listed and
    /// replaced, and a cancel is answered with what became of it. `cancellations`: only the ids that were cancelled or
    /// replaced, for more timers than a process should remember; a cancel is answered with `recorded`. After a change to
    /// `full`, what was submitted before is not known: a create or a replace of its id does not find it, and both are delivered
    /// if the newer one is due first; a cancel does.
    ///
    /// Default: `full`. Range: `full` or `cancellations`.
    #[serde(deserialize_with = "text::one")]
    pub tracking: Tracking,

    /// How long it is remembered what became of a timer. With `tracking = "cancellations"`: how long a cancelled id is
    /// remembered after a record of it was kept from its target, so that a second submit of it by a producer that did
    /// not hear of the first is caught, too; and how much longer than `max-delay` one of which no record was met.
    ///
    /// Default: `24h`. Range: 1m to 30d.
    #[serde(deserialize_with = "text::one")]
    pub history: Millis,

    /// Timers that this process remembers, at most: pending ones, and cancelled or replaced ones of which a record may
    /// still come up. Each takes 85 to 145 bytes of memory in that table (some 300 with all else that a process keeps of it). What is one too many is a dead letter (`too_many_timers`). A project may have
    /// three times as many pending tasks as there are free places: so one that leaves its tasks pending takes three quarters at most, and others go on.
    ///
    /// Default: `1000000`. Range: 1000 to 100000000.
    #[serde(deserialize_with = "text::one")]
    pub max_tracked: u64,

    /// How long before the due time of a record with an id a cancel of it must be readable in the intake to win for
    /// certain: it is delivered only once the intake is known to be read up to then. A later cancel may win or not; its
    /// answer says which. Shorter means more questions to the brokers for where idle intakes end.
    ///
    /// Default: `50ms`. Range: 0s to 1s.
    #[serde(deserialize_with = "text::one")]
    pub settle: Millis,

    /// In which order records of one key arrive at one target when waterclock is late: after a stop, behind a broker that
    /// stalls, with a backlog. `by-due`: each as soon as it can, so that a record that comes up late may arrive after
    /// one that was due later. `strict`: by due time, and at the same due time by submission, always; a record then
    /// waits while one that was due before it may still be unread in any topic of its lane.
    ///
    /// Default: `by-due`. Range: `by-due` or `strict`.
    #[serde(deserialize_with = "text::one")]
    pub order: Order,

    /// How long due records with an id wait while a producer holds a transaction open on their intake or on the main one,
    /// behind which a cancel may stand. After that they are delivered, with a warning and a metric; such a cancel comes too late.
    ///
    /// Default: `10s`. Range: 0s to 15m.
    #[serde(deserialize_with = "text::one")]
    pub foreign_wait: Millis,

    /// Topics that may be delivered to: regular expressions, each of which must match the whole name. The right
    /// to write a delay is thereby no right to write anywhere. The topics of every waterclock namespace and `__*` are always
    /// refused.
    ///
    /// Default: not set; every topic where the brokers are on this machine, with a warning at the start; elsewhere `run`
    /// does not start. Range: 1 to 1000 expressions.
    pub allow: Option<Vec<String>>,

    /// Every topic may be delivered to that this process may write to, wherever the brokers are: a client that may
    /// write a delay may thereby write anywhere. In the place of `allow`.
    ///
    /// Default: `false`. Range: `true` or `false`.
    #[serde(deserialize_with = "text::one")]
    pub allow_all: bool,

    /// `run` starts although a topic of waterclock that has three replicas or more asks for one of them only
    /// (`min.insync.replicas` below 2): what it acknowledged may be lost with one broker.
    ///
    /// Default: `false`. Range: `true` or `false`.
    #[serde(deserialize_with = "text::one")]
    pub weak_topics: bool,

    /// Longest delay that is accepted, from the append of a record to its due time; more is a dead letter. A cancel is
    /// remembered for as long: where this is lowered, a cancel may end before what was accepted with the longer one.
    ///
    /// Default: `400d`. Range: 1s to 3650d.
    #[serde(deserialize_with = "text::one")]
    pub max_delay: Millis,

    /// What is due within this long waits in memory, to the millisecond; the rest waits in tiers. Longer means
    /// fewer appends and more memory.
    ///
    /// Default: `2s`. Range: 1s to 1m.
    #[serde(deserialize_with = "text::one")]
    pub horizon: Millis,

    /// How long before the end of its hold a tier lets a record go, so that fetching and committing fall into this
    /// time and not into the lateness. Never above the horizon, and never above half the hold.
    ///
    /// Default: not set; 2s, or the horizon if that is shorter. Range: 100ms to 1m.
    #[serde(deserialize_with = "text::some")]
    pub lead: Option<Millis>,

    /// How long hops are collected before they are written, since a transaction's cost grows with the partitions
    /// that it touches. Due records never wait for this. At most half the lead.
    ///
    /// Default: not set; 500ms, or half the lead if that is shorter. Range: 0s to 1s.
    #[serde(deserialize_with = "text::some")]
    pub hop_linger: Option<Millis>,

    /// Budget of this process for records in memory: windows, buffers and the queues of the Kafka client. Over it,
    /// reading stops. Binary units (`MiB`, `GiB`) or an integer of bytes.
    ///
    /// Default: `128MiB`. Range: 32MiB to 1TiB.
    #[serde(deserialize_with = "text::one")]
    pub memory: ByteSize,

    /// The tiers: `classic`, `round`, `clock`, or a list of holds, shortest first. An instance whose ladder is not
    /// the one in force (`waterclock topics apply --ladder`) does not start.
    ///
    /// Default: not set; the ladder in force, and `round` where there is none.
    /// Range: a preset, or 1 to 256 holds, each 1s to 400d, ascending.
    pub ladder: Option<LadderConfig>,

    /// Partitions of every lane topic. An instance for which another number is set than the one in force does not
    /// start.
    ///
    /// Default: not set; the number in force, and 6 where there is none. Range: 1 to 1000.
    #[serde(deserialize_with = "text::some")]
    pub lanes: Option<u16>,

    /// Intake topics and their defaults, by name. The name `default` is the main intake, `<ns>.intake`, which is
    /// always there; any other name `n` adds `<ns>.intake.n`. `intake`, `delay`, `dead`, `meta` and
    /// `timers` are refused: `<ns>.intake.intake` is the main intake of the namespace `<ns>.intake`, and both would deliver
    /// what stands there.
    ///
    /// Default: empty. Range: at most 32; names of letters, digits, `_`, `-`; at most 100 bytes.
    pub intakes: BTreeMap<String, IntakeConfig>,

    /// Settings of librdkafka that every client gets, by librdkafka's names: `security.protocol`, `ssl.ca.location`,
    /// `sasl.password` and the like. A name and `.file` names a file that holds the value.
    ///
    /// Default: empty. Range: what librdkafka takes, but for the settings that waterclock decides (below).
    pub kafka: KafkaConfig,

    /// A member that Kafka has not heard of for this long loses its lanes to the others. Longer forgives longer pauses;
    /// who is started again on its data directory has its lanes at once. The broker's `group.min.session.timeout.ms` is
    /// 6s by default.
    ///
    /// Default: `6s`. Range: 6s to 30m.
    #[serde(deserialize_with = "text::one")]
    pub session_timeout: Millis,

    /// Kafka aborts a transaction that is open for this long; until then a `read_committed` consumer waits for it.
    /// The broker's `transaction.max.timeout.ms` is 15m by default.
    ///
    /// Default: `15s`. Range: 10s to 15m.
    #[serde(deserialize_with = "text::one")]
    pub transaction_timeout: Millis,

    /// Least time from the end of a commit to the next. Shorter is less late, longer is cheaper for the brokers.
    ///
    /// Default: `2ms`. Range: 0s to 500ms.
    #[serde(deserialize_with = "text::one")]
    pub commit_interval: Millis,

    /// Which addresses workers may call.
    pub callbacks: CallbacksConfig,

    /// Secrets that services may name, by name: each with the projects whose services may. Their values stand here only, and in no
    /// topic.
    ///
    /// Default: empty. Range: at most 1000; names of `a-z`, `0-9`, `.`, `_`, `-`; at most 64 bytes.
    pub secrets: BTreeMap<String, SecretConfig>,

    /// Who may ask the API.
    pub api: ApiConfig,

    /// What is logged to standard error, and how.
    pub log: LogConfig,

    /// Longest wait at a stop for what is in flight; what is left then is taken over by others.
    ///
    /// Default: `8s`. Range: 0s to 1m.
    #[serde(deserialize_with = "text::one")]
    pub drain: Millis,
}

/// `[intakes.<name>]`: what holds for records of one intake.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct IntakeConfig {
    /// Delay of a record that has no time header.
    ///
    /// Default: not set; such a record is a dead letter. Range: 0s to `max-delay`.
    #[serde(deserialize_with = "text::some")]
    pub delay: Option<Millis>,

    /// Target of a record that has no target header.
    ///
    /// Default: not set; such a record is a dead letter. Range: the name of a topic that `allow` permits.
    pub target: Option<String>,

    /// Topics that records of this intake may be delivered to, beside being permitted by the `allow` of all.
    ///
    /// Default: not set; what the `allow` of all permits. Range: 1 to 1000 expressions.
    pub allow: Option<Vec<String>>,
}

/// `[api]`: who may ask the API.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ApiConfig {
    /// The token that commands of this configuration send to instances, as `--api-token` does. Best set in the environment.
    ///
    /// Default: not set; commands send none. Range: text.
    #[serde(deserialize_with = "text::some")]
    pub token: Option<Secret>,

    /// Tokens that callers of the API may send, each an `[[api.tokens]]` with `name` (for the log), `sha256` (of the token, in
    /// hexadecimal digits), `role` and `projects`. Role `read`: get and list; `write`: create, cancel, retry and report, too;
    /// `admin`: projects, services, pauses and reports without a ticket, too. `projects` is a list of names, or `["*"]` for all;
    /// an `admin` without it has all.
    /// `waterclock token` makes one. They are read again at SIGHUP.
    ///
    /// Default: empty. Range: at most 1000; the file only.
    pub tokens: Vec<TokenConfig>,

    /// Whose signed tokens are taken, too.
    pub jwt: JwtConfig,

    /// The file with the authorities that sign the certificates of instances, in PEM. Commands of this configuration, and this
    /// instance when it asks another one, trust these and no other, as `--api-ca` does. Read again when it changes.
    ///
    /// Default: not set; the authorities of the system. Range: a path.
    #[serde(deserialize_with = "text::some")]
    pub ca: Option<PathBuf>,

    /// The file with the certificate that commands of this configuration, and this instance when it asks another one, show where
    /// they are asked for one, as `--api-client-certificate` does: in PEM, and then its chain. Read again when it changes.
    ///
    /// Default: not set; they show none. Range: a path; with `api.client-key`.
    #[serde(deserialize_with = "text::some")]
    pub client_certificate: Option<PathBuf>,

    /// The file with the key of `api.client-certificate`, in PEM and without a password.
    ///
    /// Default: not set; they show none. Range: a path of a file that not everybody may read.
    #[serde(deserialize_with = "text::some")]
    pub client_key: Option<PathBuf>,

    /// TLS of the listener.
    pub tls: TlsConfig,
}

/// `[api.tls]`: TLS on the address of `http`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TlsConfig {
    /// The file with the certificate of this instance, in PEM, and then its chain. With it the listener takes TLS only, 1.2 or newer.
    /// It has to be valid for the host of `advertise`. The files of `api.tls` are read again when they change.
    ///
    /// Default: not set; the listener is plain. Range: a path; with `api.tls.key`.
    #[serde(deserialize_with = "text::some")]
    pub certificate: Option<PathBuf>,

    /// The file with the key of `api.tls.certificate`, in PEM and without a password.
    ///
    /// Default: not set; the listener is plain. Range: a path of a file that not everybody may read.
    #[serde(deserialize_with = "text::some")]
    pub key: Option<PathBuf>,

    /// The file with the authorities that sign the certificates of clients, in PEM (mTLS). A client whose certificate none of them has
    /// signed is refused with its handshake.
    ///
    /// Default: not set; clients are asked for no certificate. Range: a path; with `api.tls.principals`, or `api.tls.client-auth` `required`.
    #[serde(deserialize_with = "text::some")]
    pub client_ca: Option<PathBuf>,

    /// Whether every client must show a certificate (`required`), those that ask for health and metrics, too, and other instances: so
    /// `api.client-certificate` has to be set. `optional`: a client without one is asked for a token.
    ///
    /// Default: `optional`. Range: `optional` or `required`.
    #[serde(deserialize_with = "text::one")]
    pub client_auth: ClientAuth,

    /// Who is known by a client certificate, each an `[[api.tls.principals]]` with `name` (for the log), `subject` (a name of the
    /// certificate with its kind: `dns:`, `uri:`, `email:`, or `cn:` for the common name), `role` and `projects`, both as in `api.tokens`. The
    /// first whose subject the certificate has is meant. They are read again at SIGHUP.
    ///
    /// Default: empty. Range: at most 1000; the file only; with `api.tls.client-ca`.
    pub principals: Vec<PrincipalConfig>,
}

/// Whether a client must show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// It may.
    #[default]
    Optional,
    /// It must.
    Required,
}

/// `[[api.tls.principals]]`: somebody who is known by a client certificate.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PrincipalConfig {
    /// Who it is, for the log: 1 to 64 of letters, digits, `.`, `_`, `-`.
    pub name: String,
    /// A name of the certificate, with its kind.
    pub subject: String,
    /// The projects that he may know of; `*`: all.
    pub projects: Vec<String>,
    /// What he may do.
    #[serde(deserialize_with = "text::one")]
    pub role: TokenRole,
}

impl PrincipalConfig {
    /// The projects that he may know of; `None`: all.
    #[must_use]
    pub fn covered(&self) -> Option<&[String]> {
        covered(&self.projects, self.role)
    }
}

/// `[api.jwt]`: who signs tokens (JWT) for callers of the API.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct JwtConfig {
    /// Who signs the tokens: their claim `iss`, exactly. With it `audience` and `jwks` have to be set. All of `[api.jwt]` is read
    /// again at SIGHUP.
    ///
    /// Default: not set; no signed token is taken. Range: 1 to 1024 bytes.
    pub issuer: Option<String>,

    /// Whom the tokens are for: one of their claim `aud`, exactly.
    ///
    /// Default: not set; no signed token is taken. Range: 1 to 1024 bytes.
    pub audience: Option<String>,

    /// Where the issuer's public keys are (JWKS). They are fetched at the start, before they grow old, and for a token of an unknown
    /// key; at most once a minute. Keys that were fetched hold until others are.
    ///
    /// Default: not set; no signed token is taken. Range: a URL `https://`, or `http://` of this machine alone; without user information.
    pub jwks: Option<String>,

    /// The claim that has the projects: a list of names, or a text with blanks between them; `*` is all. A token without it covers
    /// none. A name that begins with `/` is a JSON pointer, as in `/resource_access/waterclock/projects`.
    ///
    /// Default: `projects`. Range: 1 to 1024 bytes.
    pub projects_claim: String,

    /// The claim that has the role, `read`, `write` or `admin`: a text, or a list of which the highest counts. A name that begins
    /// with `/` is a JSON pointer, as in `/realm_access/roles`.
    ///
    /// Default: `role`. Range: 1 to 1024 bytes.
    pub role_claim: String,
}

impl Default for JwtConfig {
    fn default() -> Self {
        Self {
            issuer: None,
            audience: None,
            jwks: None,
            projects_claim: "projects".to_owned(),
            role_claim: "role".to_owned(),
        }
    }
}

impl ApiConfig {
    /// Whether callers have to say who they are.
    #[must_use]
    pub fn wants_credentials(&self) -> bool {
        !self.tokens.is_empty() || self.jwt.issuer.is_some() || !self.tls.principals.is_empty()
    }
}

/// `[[api.tokens]]`: one token that callers may send.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TokenConfig {
    /// Whose it is, for the log: 1 to 64 of letters, digits, `.`, `_`, `-`.
    pub name: String,
    /// The SHA-256 of the token in 64 hexadecimal digits.
    pub sha256: String,
    /// The projects that it covers; `*`: all.
    pub projects: Vec<String>,
    /// What its holder may do.
    #[serde(deserialize_with = "text::one")]
    pub role: TokenRole,
}

impl TokenConfig {
    /// The hash as bytes; `None`: it is none.
    #[must_use]
    pub fn hash(&self) -> Option<[u8; 32]> {
        let digits: Option<Vec<u8>> = self
            .sha256
            .chars()
            .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect();
        let byte = |pair: &[u8]| pair.iter().fold(0, |byte, digit| byte << 4 | digit);
        let bytes: Vec<u8> = digits?.chunks(2).map(byte).collect();
        (self.sha256.len() == 64).then(|| bytes.try_into().ok())?
    }

    /// The projects that it covers; `None`: all.
    #[must_use]
    pub fn covered(&self) -> Option<&[String]> {
        covered(&self.projects, self.role)
    }
}

/// `None`: all of them.
fn covered(projects: &[String], role: TokenRole) -> Option<&[String]> {
    let is_all = projects.is_empty() && role == TokenRole::Admin
        || projects.iter().any(|name| name == ALL_PROJECTS);
    (!is_all).then_some(projects)
}

/// Stands for all projects.
const ALL_PROJECTS: &str = "*";

/// What the holder of a token may do; each may do what those before it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenRole {
    /// Get and list.
    #[default]
    Read,
    /// Create, cancel and retry.
    Write,
    /// Change projects and services.
    Admin,
}

/// `[log]`: what is logged to standard error, and how.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LogConfig {
    /// The least important lines that are written.
    ///
    /// Default: `info`. Range: `error`, `warn`, `info`, `debug` or `trace`.
    #[serde(deserialize_with = "text::one")]
    pub level: LogLevel,

    /// Lines for people, or one JSON object per line for programs.
    ///
    /// Default: `text`. Range: `text` or `json`.
    #[serde(deserialize_with = "text::one")]
    pub format: LogFormat,
}

/// What a crash may do to what was in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Records, offsets and pending marks go into one Kafka transaction.
    #[default]
    ExactlyOnce,
    /// Offsets are committed after the records were acknowledged; a crash may repeat records, never lose them.
    AtLeastOnce,
}

/// As it is written in a configuration.
impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ExactlyOnce => "exactly_once",
            Self::AtLeastOnce => "at_least_once",
        })
    }
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// It holds records and timers.
    pub lanes: bool,
    /// It makes the calls of tasks.
    pub worker: bool,
    /// It takes tasks over HTTP and gRPC.
    pub api: bool,
}

impl Default for Roles {
    fn default() -> Self {
        Self { lanes: true, worker: true, api: true }
    }
}

/// What is remembered of records that have an id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tracking {
    /// Every timer, from its creation until `history` after its end.
    #[default]
    Full,
    /// Only what was cancelled or replaced.
    Cancellations,
}

/// In which order records of one key arrive when waterclock is late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Each as soon as it can.
    #[default]
    ByDue,
    /// By due time, whatever that takes.
    Strict,
}

/// The tiers as configured; [`Config::load`] has checked names, range and order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LadderConfig {
    /// One that has a name.
    Preset(Preset),
    /// One tier per hold, ascending.
    Holds(Vec<Millis>),
}

/// Importance of log lines, from the most to the least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something is wrong and stays so without a person.
    Error,
    /// Something is wrong and waterclock goes on.
    Warn,
    /// Rare events that matter: starts, stops, lanes that come and go.
    #[default]
    Info,
    /// What one needs to follow a problem.
    Debug,
    /// Single records.
    Trace,
}

/// Form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            brokers: "localhost:9092".to_owned(),
            namespace: "waterclock".to_owned(),
            data_dir: None,
            instance: None,
            http: None,
            http_unauthenticated: false,
            http_hosts: Vec::new(),
            advertise: None,
            roles: Roles::default(),
            threads: 1,
            delivery: Delivery::ExactlyOnce,
            tracking: Tracking::Full,
            history: Millis::DAY,
            max_tracked: 1_000_000,
            settle: Millis(50),
            order: Order::ByDue,
            foreign_wait: Millis(10_000),
            allow: None,
            allow_all: false,
            weak_topics: false,
            max_delay: Millis(400 * Millis::DAY.0),
            horizon: Millis(2_000),
            lead: None,
            hop_linger: None,
            memory: ByteSize(128 << 20),
            ladder: None,
            lanes: None,
            intakes: BTreeMap::new(),
            kafka: KafkaConfig::default(),
            session_timeout: Millis(6_000),
            transaction_timeout: Millis(15_000),
            commit_interval: Millis(2),
            callbacks: CallbacksConfig::default(),
            secrets: BTreeMap::new(),
            api: ApiConfig::default(),
            log: LogConfig::default(),
            drain: Millis(8_000),
        }
    }
}

impl Config {
    /// The lead in force: what is set, else 2 s, never above the horizon.
    #[must_use]
    pub fn lead(&self) -> Millis {
        self.lead.unwrap_or(Millis(2_000)).min(self.horizon)
    }

    /// The linger of hops in force: what is set, else 500 ms, never above half the lead.
    #[must_use]
    pub fn hop_linger(&self) -> Millis {
        self.hop_linger.unwrap_or(Millis(500)).min(self.lead().half())
    }

    /// The holds that are set, ascending; `None` takes the ladder in force.
    #[must_use]
    pub fn holds(&self) -> Option<Vec<Millis>> {
        self.ladder.as_ref().map(|ladder| match ladder {
            LadderConfig::Preset(preset) => preset.holds(),
            LadderConfig::Holds(holds) => holds.clone(),
        })
    }

    /// Where records of an intake may go: what `allow` permits, and the intake's own list, too.
    ///
    /// # Errors
    /// None for a configuration from [`Config::load`], which has tried it.
    pub fn allow(&self, intake: &str) -> Result<Allow, BadPattern> {
        let allow = Allow::new(&self.namespace, self.allow.as_deref())?;
        match self.intakes.get(intake).and_then(|intake| intake.allow.as_deref()) {
            Some(patterns) => allow.narrow(patterns),
            None => Ok(allow),
        }
    }

    /// Where records of each intake may go, in the order of the engine's intakes: the main one first.
    ///
    /// # Errors
    /// As [`allow`](Self::allow).
    pub fn allow_of_all(&self) -> Result<Vec<Allow>, BadPattern> {
        std::iter::once(MAIN_INTAKE)
            .chain(self.further_intakes())
            .map(|name| self.allow(name))
            .collect()
    }

    /// This configuration with the allow-lists and the tokens of another one, for a process that goes on; and the keys in which the
    /// other differs besides, which hold only after a restart.
    #[must_use]
    pub fn reloaded(&self, other: &Self) -> (Self, Vec<&'static str>) {
        let (allow, allow_all) = (other.allow.clone(), other.allow_all);
        let api = ApiConfig {
            ca: self.api.ca.clone(),
            client_certificate: self.api.client_certificate.clone(),
            client_key: self.api.client_key.clone(),
            tls: TlsConfig { principals: other.api.tls.principals.clone(), ..self.api.tls.clone() },
            ..other.api.clone()
        };
        let mut new = Self { allow, allow_all, api, ..self.clone() };
        for (name, intake) in &mut new.intakes {
            match other.intakes.get(name) {
                Some(other) => intake.allow.clone_from(&other.allow),
                None if name == MAIN_INTAKE => intake.allow = None,
                // It is gone only after a restart; until then its list must not be.
                None => {}
            }
        }
        // The main intake is always there, whether something is set for it or not.
        if let (None, Some(main)) = (new.intakes.get(MAIN_INTAKE), other.intakes.get(MAIN_INTAKE)) {
            let only_allow = IntakeConfig { allow: main.allow.clone(), ..IntakeConfig::default() };
            new.intakes.insert(MAIN_INTAKE.to_owned(), only_allow);
        }
        // A remaining difference is no allow-list and nothing of `api` but its files, or is a list of an intake that this process does not read. No field is
        // left out: a new one does not compile until it stands here.
        #[rustfmt::skip]
        let Self {
            allow: _, allow_all: _, api,
            brokers, namespace, data_dir, instance, http, http_unauthenticated, http_hosts, advertise,
            roles, threads, delivery, tracking, history, max_tracked, settle, order, foreign_wait, weak_topics,
            max_delay, horizon, lead, hop_linger, memory, ladder, lanes, intakes, kafka, session_timeout,
            transaction_timeout, commit_interval, callbacks, secrets, log, drain,
        } = other;
        #[rustfmt::skip]
        let differs = [
            ("brokers",              new.brokers              != *brokers),
            ("namespace",            new.namespace            != *namespace),
            ("data-dir",             new.data_dir             != *data_dir),
            ("instance",             new.instance             != *instance),
            ("http",                 new.http                 != *http),
            ("http-unauthenticated", new.http_unauthenticated != *http_unauthenticated),
            ("http-hosts",           new.http_hosts           != *http_hosts),
            ("advertise",            new.advertise            != *advertise),
            ("roles",                new.roles                != *roles),
            ("threads",              new.threads              != *threads),
            ("delivery",             new.delivery             != *delivery),
            ("tracking",             new.tracking             != *tracking),
            ("history",              new.history              != *history),
            ("max-tracked",          new.max_tracked          != *max_tracked),
            ("settle",               new.settle               != *settle),
            ("order",                new.order                != *order),
            ("foreign-wait",         new.foreign_wait         != *foreign_wait),
            ("weak-topics",          new.weak_topics          != *weak_topics),
            ("max-delay",            new.max_delay            != *max_delay),
            ("horizon",              new.horizon              != *horizon),
            ("lead",                 new.lead                 != *lead),
            ("hop-linger",           new.hop_linger           != *hop_linger),
            ("memory",               new.memory               != *memory),
            ("ladder",               new.ladder               != *ladder),
            ("lanes",                new.lanes                != *lanes),
            ("intakes",              new.intakes              != *intakes),
            ("kafka",                new.kafka                != *kafka),
            ("session-timeout",      new.session_timeout      != *session_timeout),
            ("transaction-timeout",  new.transaction_timeout  != *transaction_timeout),
            ("commit-interval",      new.commit_interval      != *commit_interval),
            ("callbacks",            new.callbacks            != *callbacks),
            ("secrets",              new.secrets              != *secrets),
            ("api.ca",               new.api.ca               != api.ca),
            ("api.client-certificate", new.api.client_certificate != api.client_certificate),
            ("api.client-key",       new.api.client_key       != api.client_key),
            ("api.tls",              new.api.tls              != api.tls),
            ("log",                  new.log                  != *log),
            ("drain",                new.drain                != *drain),
        ];
        let restart = differs.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key);
        (new, restart.collect())
    }

    /// Whether records may go to every topic though nobody said so, on brokers that others may use, too.
    #[must_use]
    pub fn is_ajar(&self) -> bool {
        let is_local = |address: &str| {
            let address = address.trim();
            crate::kafka::is_loopback(
                address.rsplit_once("//").map_or(address, |(_, behind)| behind),
            )
        };
        let is_open = self.allow.is_none() && !self.allow_all;
        is_open && !self.brokers.split(',').all(is_local)
    }

    /// The settings of an intake, by its name in the configuration; the defaults where it has none.
    #[must_use]
    pub fn intake(&self, name: &str) -> IntakeConfig {
        self.intakes.get(name).cloned().unwrap_or_default()
    }

    /// The names of all intakes but the main one, in the order of the alphabet.
    pub fn further_intakes(&self) -> impl Iterator<Item = &str> {
        self.intakes.keys().map(String::as_str).filter(|name| *name != MAIN_INTAKE)
    }
}

#[cfg(test)]
mod tests;
