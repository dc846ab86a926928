//! Ranges and relations that types cannot express.

use std::collections::BTreeSet;
use std::fmt;

use super::callbacks;
use super::{
    ASCENDING, ApiConfig, ByteSize, ClientAuth, Config, IntakeConfig, JwtConfig, LadderConfig,
    MAIN_INTAKE,
};
use crate::api::auth::{BadSubject, Subject, is_safe};
use crate::engine::Millis;
use crate::engine::allow::Allow;
use crate::engine::header::{self, TOPIC_MAX};
use crate::engine::ladder::{HOLD_MAX, Ladder, TIERS_MAX};
use crate::engine::task::registry::{NAME_WANTED, is_name as is_project};

/// Least and most of a value, both allowed.
pub(super) enum Range {
    Count(u64, u64),
    Span(Millis, Millis),
    Size(ByteSize, ByteSize),
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(min, max) => write!(f, "{min} to {max}"),
            Self::Span(min, max) => write!(f, "{min} to {max}"),
            Self::Size(min, max) => write!(f, "{min} to {max}"),
        }
    }
}

/// The range of every key that has one in numbers; as in the documentation of the fields.
#[rustfmt::skip]
pub(super) const RANGES: [(&str, Range); 15] = [
    ("threads",             Range::Count(1, 64)),
    ("history",             Range::Span(Millis::MINUTE, Millis(30 * Millis::DAY.0))),
    ("max-tracked",         Range::Count(1_000, 100_000_000)),
    ("settle",              Range::Span(Millis(0), Millis::SECOND)),
    ("foreign-wait",        Range::Span(Millis(0), Millis(15 * Millis::MINUTE.0))),
    ("max-delay",           Range::Span(Millis::SECOND, Millis(3650 * Millis::DAY.0))),
    ("horizon",             Range::Span(Millis::SECOND, Millis::MINUTE)),
    ("lead",                Range::Span(Millis(100), Millis::MINUTE)),
    ("hop-linger",          Range::Span(Millis(0), Millis::SECOND)),
    ("memory",              Range::Size(ByteSize(32 << 20), ByteSize(1 << 40))),
    ("lanes",               Range::Count(1, 1000)),
    ("session-timeout",     Range::Span(Millis(6_000), Millis(30 * Millis::MINUTE.0))),
    ("transaction-timeout", Range::Span(Millis(10_000), Millis(15 * Millis::MINUTE.0))),
    ("commit-interval",     Range::Span(Millis(0), Millis(500))),
    ("drain",               Range::Span(Millis(0), Millis::MINUTE)),
];

/// Most expressions in one list of allowed targets; each costs a match per new target.
const ALLOW_MAX: usize = 1000;
/// Most intake topics: a lane has a partition of each.
const INTAKES_MAX: usize = 32;
/// Longest instance name, as in the data directory.
const INSTANCE_BYTES_MAX: usize = 64;
/// What the topics of a namespace are called behind its name. A further intake of one namespace with such a name would be a
/// topic of another one, `<ns>.intake`: both would read it, and deliver twice.
const OF_A_NAMESPACE: [&str; 5] = ["intake", "delay", "dead", "meta", "timers"];
/// Longest namespace or name of an intake, so that what is built from them stays below Kafka's limit.
const NAME_BYTES_MAX: usize = 100;

/// Longest address that the others are told: a name of DNS, and a port.
const ADDRESS_BYTES_MAX: usize = 260;

/// Most names that an instance has beside its own.
const HOSTS_MAX: usize = 100;

/// Most tokens: each request compares with all.
const TOKENS_MAX: usize = 1_000;

/// Longest issuer, audience, URL and name of a claim.
const CLAIM_BYTES_MAX: usize = 1024;

/// The range of a key, or `None` if it is not a number.
pub(super) fn range(key: &str) -> Option<&'static Range> {
    RANGES.iter().find(|(name, _)| *name == key).map(|(_, range)| range)
}

/// One value that is out of its range, by the key's path.
pub(super) struct Fault {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) want: String,
}

/// Checks everything, and says everything that is wrong.
pub(super) fn check(config: &Config) -> Vec<Fault> {
    let mut found = Faults(Vec::new());
    found.names(config);
    found.reach(config);
    found.tokens(config);
    found.jwt(&config.api.jwt);
    found.tls(&config.api);
    found.numbers(config);
    found.relations(config);
    found.patterns("allow", config.allow.as_deref());
    if config.allow_all && config.allow.is_some() {
        found.say("allow-all", "true beside allow", "one of them");
    }
    found.ladder(config);
    if config.intakes.len() > INTAKES_MAX {
        found.say("intakes", config.intakes.len(), format!("at most {INTAKES_MAX}"));
    }
    for (name, intake) in &config.intakes {
        found.intake(name, intake, config);
    }
    found.0.extend(callbacks::check(config));
    found.0
}

struct Faults(Vec<Fault>);

impl Faults {
    fn say(&mut self, key: impl Into<String>, value: impl fmt::Display, want: impl Into<String>) {
        self.0.push(Fault { key: key.into(), value: value.to_string(), want: want.into() });
    }

    fn names(&mut self, config: &Config) {
        let brokers = &config.brokers;
        // Kafka's own addresses have no scheme, and those of its tools neither.
        let scheme = brokers.split(',').find_map(|part| part.trim().split_once("://"));
        let address = |part: &str| {
            part.trim()
                .rsplit_once(':')
                .is_none_or(|(_, port)| port.parse::<u16>().is_ok_and(|p| p > 0))
        };
        let is_number = |part: &str| part.trim().bytes().all(|byte| byte.is_ascii_digit());
        if let Some((scheme, _)) = scheme {
            let what =
                format!("{brokers:?}: an address of Kafka has no \"{scheme}://\"; say host:port");
            self.0.push(Fault { key: "brokers".to_owned(), value: what, want: String::new() });
        } else if !(1..=4096).contains(&brokers.len())
            || brokers.split(',').any(|part| is_number(part) || !address(part))
        {
            self.say(
                "brokers",
                format!("{brokers:?}"),
                "host:port, comma-separated, at most 4096 bytes",
            );
        }
        let namespace = &config.namespace;
        if !is_name(namespace) || !namespace.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            self.say(
                "namespace",
                format!("{namespace:?}"),
                format!(
                    "a letter or digit, then letters, digits, '.', '_', '-'; at most {NAME_BYTES_MAX} bytes"
                ),
            );
        }
        if let Some(instance) = config
            .instance
            .as_ref()
            .filter(|name| !is_name(name) || name.len() > INSTANCE_BYTES_MAX)
        {
            self.say(
                "instance",
                format!("{instance:?}"),
                format!("letters, digits, '.', '_', '-'; 1 to {INSTANCE_BYTES_MAX} bytes"),
            );
        }
        if let Some(address) = config.advertise.as_ref().filter(|address| !is_address(address)) {
            self.say(
                "advertise",
                format!("{address:?}"),
                format!("host:port, with IPv6 in brackets; at most {ADDRESS_BYTES_MAX} bytes"),
            );
        }
    }

    /// Who can reach the API.
    fn reach(&mut self, config: &Config) {
        let hosts = &config.http_hosts;
        if hosts.len() > HOSTS_MAX {
            self.say("http-hosts", hosts.len(), format!("at most {HOSTS_MAX} host names"));
        }
        for host in hosts.iter().filter(|host| !is_address(&format!("{host}:1"))) {
            self.say("http-hosts", format!("{host:?}"), "host names, without ports");
        }
        if config.http_unauthenticated || config.api.wants_credentials() {
            return;
        }
        let want = "an address of this machine alone, as 127.0.0.1:8080; or tokens or principals ([[api.tokens]], [api.jwt], \
             [[api.tls.principals]]); or http-unauthenticated = true (--http-unauthenticated), for anyone who reaches it may see every timer and cancel it";
        if let Some(http) = config.http.filter(|http| !http.ip().to_canonical().is_loopback()) {
            self.say("http", http, want);
        }
        if let Some(address) = config.advertise.as_ref()
            && is_address(address)
            && !crate::kafka::is_loopback(address)
        {
            self.say("advertise", format!("{address:?}"), want);
        }
    }

    /// Who may ask the API, and about what.
    fn tokens(&mut self, config: &Config) {
        let all = &config.api.tokens;
        if all.len() > TOKENS_MAX {
            self.say("api.tokens", all.len(), format!("at most {TOKENS_MAX}"));
        }
        let mut names = BTreeSet::new();
        for (n, token) in all.iter().enumerate() {
            let (key, name) = (format!("api.tokens.{n}"), &token.name);
            self.holder(&key, name, &mut names, token.covered());
            if token.hash().is_none() {
                // Somebody may have put the token itself there.
                let value = format!("something else for {name:?} (not shown)");
                let want = "the SHA-256 of the token, 64 hexadecimal digits (`waterclock token`)";
                self.say(format!("{key}.sha256"), value, want);
            }
        }
    }

    /// The name of somebody who may ask, and the projects that he has.
    fn holder<'n>(
        &mut self,
        key: &str,
        name: &'n str,
        names: &mut BTreeSet<&'n str>,
        covered: Option<&[String]>,
    ) {
        if !is_name(name) || name.len() > INSTANCE_BYTES_MAX {
            let want = format!("letters, digits, '.', '_', '-'; 1 to {INSTANCE_BYTES_MAX} bytes");
            self.say(format!("{key}.name"), format!("{name:?}"), want);
        } else if !names.insert(name) {
            self.say(format!("{key}.name"), format!("{name:?} twice"), "another name for each");
        }
        if covered.is_some_and(<[String]>::is_empty) {
            let value = format!("none for {name:?}");
            let want = "names of projects, or [\"*\"] for all; only an admin may be without";
            self.say(format!("{key}.projects"), value, want);
        }
        for project in covered.unwrap_or_default().iter().filter(|name| !is_project(name)) {
            self.say(format!("{key}.projects"), format!("{project:?} for {name:?}"), NAME_WANTED);
        }
    }

    /// Which files go together, and who is known by a certificate. The files are read when an instance starts.
    fn tls(&mut self, api: &ApiConfig) {
        let tls = &api.tls;
        let pairs = [
            ("api.tls.certificate", &tls.certificate, "api.tls.key", &tls.key),
            ("api.client-certificate", &api.client_certificate, "api.client-key", &api.client_key),
        ];
        for (one, first, other, second) in pairs {
            let (has, lacks) = match (first, second) {
                (Some(_), None) => (one, other),
                (None, Some(_)) => (other, one),
                _ => continue,
            };
            self.say(has, format!("no {lacks}"), "both, or none of them");
        }
        let has_ca = tls.client_ca.is_some();
        if has_ca && tls.certificate.is_none() {
            self.say(
                "api.tls.client-ca",
                "no api.tls.certificate",
                "both: TLS asks for certificates",
            );
        }
        let is_required = tls.client_auth == ClientAuth::Required;
        if is_required && !has_ca {
            let want = "the file with the authorities of clients";
            self.say("api.tls.client-auth", "required without api.tls.client-ca", want);
        }
        let all = &tls.principals;
        if has_ca && all.is_empty() && !is_required {
            let want = "[[api.tls.principals]], or client-auth = \"required\"";
            self.say("api.tls.client-ca", "nobody who is known by a certificate", want);
        }
        if !has_ca && !all.is_empty() {
            let want = "api.tls.client-ca, the file with their authorities";
            self.say("api.tls.principals", "no authority that signs certificates", want);
        }
        if all.len() > TOKENS_MAX {
            self.say("api.tls.principals", all.len(), format!("at most {TOKENS_MAX}"));
        }
        let (mut names, mut subjects) = (BTreeSet::new(), BTreeSet::new());
        for (n, of) in all.iter().enumerate() {
            let key = format!("api.tls.principals.{n}");
            self.holder(&key, &of.name, &mut names, of.covered());
            let (key, value) =
                (format!("{key}.subject"), format!("{:?} for {:?}", of.subject, of.name));
            match of.subject.parse::<Subject>() {
                Err(want @ BadSubject) => self.say(key, value, want.to_string()),
                Ok(subject) => {
                    if !subjects.insert(subject) {
                        self.say(key, format!("{value}, twice"), "another one for each");
                    }
                }
            }
        }
    }

    /// Whose signed tokens are taken.
    fn jwt(&mut self, jwt: &JwtConfig) {
        let JwtConfig { issuer, audience, jwks, projects_claim, role_claim } = jwt;
        let all = [("issuer", issuer), ("audience", audience), ("jwks", jwks)];
        let missing = all.iter().filter(|(_, text)| text.is_none());
        let missing: Vec<&str> = missing.map(|(key, _)| *key).collect();
        if !missing.is_empty() && missing.len() < all.len() {
            let value = format!("no {}", missing.join(" and no "));
            self.say("api.jwt", value, "issuer, audience and jwks, or none of them");
        }
        let claims = [("projects-claim", Some(projects_claim)), ("role-claim", Some(role_claim))];
        for (key, text) in all.map(|(key, text)| (key, text.as_ref())).into_iter().chain(claims) {
            if text.is_some_and(|text| !(1..=CLAIM_BYTES_MAX).contains(&text.len())) {
                let value = format!("{} bytes", text.map_or(0, String::len));
                self.say(format!("api.jwt.{key}"), value, format!("1 to {CLAIM_BYTES_MAX} bytes"));
            }
        }
        if jwks.as_ref().is_some_and(|text| !text.parse().is_ok_and(|url| is_safe(&url))) {
            // It could have a password.
            let want = "a URL https://, or http:// of this machine alone; without user information";
            self.say("api.jwt.jwks", "something else (not shown)", want);
        }
    }

    fn count(&mut self, key: &str, value: Option<u64>) {
        if let (Some(value), Some(range @ Range::Count(min, max))) = (value, range(key))
            && !(*min..=*max).contains(&value)
        {
            self.say(key, value, range.to_string());
        }
    }

    fn span(&mut self, key: &str, value: Option<Millis>) {
        if let (Some(value), Some(range @ Range::Span(min, max))) = (value, range(key))
            && !(*min..=*max).contains(&value)
        {
            self.say(key, value, range.to_string());
        }
    }

    fn numbers(&mut self, config: &Config) {
        self.count("threads", Some(config.threads.into()));
        self.count("lanes", config.lanes.map(u64::from));
        self.span("max-delay", Some(config.max_delay));
        self.span("horizon", Some(config.horizon));
        self.span("lead", config.lead);
        self.span("hop-linger", config.hop_linger);
        self.span("history", Some(config.history));
        self.count("max-tracked", Some(config.max_tracked));
        self.span("settle", Some(config.settle));
        self.span("foreign-wait", Some(config.foreign_wait));
        self.span("session-timeout", Some(config.session_timeout));
        self.span("transaction-timeout", Some(config.transaction_timeout));
        self.span("commit-interval", Some(config.commit_interval));
        self.span("drain", Some(config.drain));
        if let Some(range @ Range::Size(min, max)) = range("memory")
            && !(*min..=*max).contains(&config.memory)
        {
            self.say("memory", config.memory, range.to_string());
        }
    }

    fn relations(&mut self, config: &Config) {
        if let Some(lead) = config.lead.filter(|lead| *lead > config.horizon) {
            self.say("lead", lead, format!("at most the horizon, {}", config.horizon));
        }
        let half = config.lead().half();
        if let Some(linger) = config.hop_linger.filter(|linger| *linger > half) {
            self.say("hop-linger", linger, format!("at most half the lead, {half}"));
        }
    }

    fn patterns(&mut self, key: &str, patterns: Option<&[String]>) {
        let Some(patterns) = patterns else { return };
        if !(1..=ALLOW_MAX).contains(&patterns.len()) {
            self.say(
                key,
                format!("{} expressions", patterns.len()),
                format!("1 to {ALLOW_MAX} expressions"),
            );
        }
        for pattern in patterns {
            if pattern.is_empty() || Allow::new("", Some(std::slice::from_ref(pattern))).is_err() {
                self.say(
                    key,
                    format!("{pattern:?}"),
                    "a regular expression for the whole name of a topic",
                );
            }
        }
    }

    fn ladder(&mut self, config: &Config) {
        let before = self.0.len();
        if let Some(LadderConfig::Holds(holds)) = &config.ladder {
            if !(1..=TIERS_MAX).contains(&holds.len()) {
                self.say(
                    "ladder",
                    format!("{} holds", holds.len()),
                    format!("1 to {TIERS_MAX} holds"),
                );
            }
            for hold in holds.iter().filter(|hold| !(Millis::SECOND..=HOLD_MAX).contains(*hold)) {
                self.say("ladder", hold, format!("holds from {} to {HOLD_MAX}", Millis::SECOND));
            }
            for pair in holds.windows(2).filter(|pair| pair[0] >= pair[1]) {
                self.say("ladder", format!("{} before {}", pair[0], pair[1]), ASCENDING);
            }
        }
        let Some(holds) = config.holds().filter(|_| self.0.len() == before) else { return };
        let sound = Ladder::new(&holds, &[], config.lead()).and_then(|l| l.check(config.horizon));
        if let Err(error) = sound {
            let first = holds.first().copied().unwrap_or_default();
            let value = format!("a shortest hold of {first}");
            self.say("ladder", value, format!("a ladder without gaps ({error})"));
        }
    }

    fn intake(&mut self, name: &str, intake: &IntakeConfig, config: &Config) {
        if !is_name(name) || name.contains('.') {
            self.say(
                "intakes",
                format!("{name:?}"),
                format!(
                    "names of letters, digits, '_', '-', 1 to {NAME_BYTES_MAX} bytes; {MAIN_INTAKE:?} is the main intake"
                ),
            );
        }
        if OF_A_NAMESPACE.contains(&name) {
            let (namespace, of) = (&config.namespace, OF_A_NAMESPACE.join(", "));
            self.say(
                "intakes",
                format!("{name:?}"),
                format!(
                    "another name than {of}: {namespace}.intake.{name} may be a topic of the namespace {namespace}.intake"
                ),
            );
        }
        let key = |field: &str| format!("intakes.{name}.{field}");
        if let Some(delay) = intake.delay.filter(|delay| *delay > config.max_delay) {
            self.say(key("delay"), delay, format!("0s to max-delay, {}", config.max_delay));
        }
        if let Some(target) = intake.target.as_ref().filter(|target| !is_topic(target)) {
            self.say(
                key("target"),
                format!("{target:?}"),
                format!("a topic: letters, digits, '.', '_', '-'; 1 to {TOPIC_MAX} bytes"),
            );
        }
        self.patterns(&key("allow"), intake.allow.as_deref());
        if let (Some(target), Ok(allow)) = (&intake.target, config.allow(name))
            && is_topic(target)
            && let Err(code) = allow.permits(target)
        {
            self.say(
                key("target"),
                format!("{target:?}"),
                format!("a topic that is allowed ({code})"),
            );
        }
    }
}

fn is_name(name: &str) -> bool {
    is_topic(name) && name.len() <= NAME_BYTES_MAX
}

/// What can stand in a URL as it is.
fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inside) => inside.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(name),
    };
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    host && digits
        && port.parse::<u16>().is_ok_and(|port| port > 0)
        && text.len() <= ADDRESS_BYTES_MAX
}

fn is_topic(name: &str) -> bool {
    header::topic_name(name).is_ok()
}
