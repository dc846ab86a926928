//! Settings of librdkafka that a person may give, and those that they may not.
//!
//! A setting is passed to every client as it is, by librdkafka's own name. Before anything connects, this room checks
//! four things. Is there a setting of this name? Does it take this value? Do all of them go together (librdkafka makes
//! a client of them, which loads certificates and keys, and connects to nothing)? Does a promise rest on it?
//!
//! # Invariants
//! 1. A setting that this room sets itself, or that a promise rests on, is never taken from a person: [`PROTECTED`]
//!    names it, with the reason. A test holds it against every `.set("...")` of this room.
//! 2. A value is never printed nor logged, unless it is wrong and its name says that it is no secret.
//!
//! Settings for tokens (`sasl.oauthbearer.*`) are not librdkafka's matter in this build: see [`oauth`](crate::client::oauth).

use std::collections::BTreeMap;
use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rdkafka::ClientConfig;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError;

use super::oauth::Source;

/// A text that nothing prints.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text itself, to be handed on and not to be shown.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not shown)")
    }
}

/// Settings by librdkafka's names.
pub type Given = BTreeMap<String, Secret>;

/// Settings that waterclock decides, and why.
pub struct Protected {
    /// librdkafka's names of it, and of what belongs with it.
    pub names: &'static [&'static str],
    /// The key of ours to use instead, if there is one.
    pub instead: Option<&'static str>,
    /// Why it is not a person's to set.
    pub reason: &'static str,
}

const fn protected(
    names: &'static [&'static str],
    instead: Option<&'static str>,
    reason: &'static str,
) -> Protected {
    Protected { names, instead, reason }
}

/// Every setting that waterclock decides. `docs/configuration.md` has the same table; a test compares them.
#[rustfmt::skip]
pub const PROTECTED: [Protected; 23] = [
    protected(&["bootstrap.servers", "metadata.broker.list"],
        Some("brokers"), "where Kafka is has a key of its own"),
    protected(&["client.id"],
        Some("instance"), "a second process of the same name is found by it"),
    protected(&["group.id"],
        Some("namespace"), "the group is the namespace, so that all its instances share the lanes"),
    protected(&["group.instance.id"],
        Some("data-dir"), "a restarted process finds its place in the group by it, and no other may take that"),
    protected(&["partition.assignment.strategy", "group.protocol", "group.protocol.type", "group.remote.assignor"],
        None, "all topics of a lane must go to one member, and only the classic protocol's range does that"),
    protected(&["session.timeout.ms", "heartbeat.interval.ms"],
        Some("session-timeout"), "it decides how long a crashed member's lanes rest"),
    protected(&["max.poll.interval.ms"],
        None, "taking lanes over from a crashed member may hold a thread for more than a minute"),
    protected(&["enable.auto.commit", "auto.commit.enable", "auto.commit.interval.ms", "enable.auto.offset.store",
                "offset.store.method", "offset.store.path", "offset.store.sync.interval.ms"],
        None, "an offset is committed only with what became of its record, or records would be lost"),
    protected(&["auto.offset.reset"],
        None, "anything but an error would pass over lost records in silence"),
    protected(&["isolation.level"],
        None, "a record of an aborted transaction must never be delivered"),
    protected(&["allow.auto.create.topics"],
        None, "a misspelt target must become a dead letter and not a topic"),
    protected(&["enable.idempotence", "acks", "request.required.acks", "retries", "message.send.max.retries",
                "max.in.flight", "max.in.flight.requests.per.connection", "enable.gapless.guarantee", "queuing.strategy"],
        Some("delivery"), "without them records would be lost, doubled or out of order"),
    protected(&["transactional.id"],
        Some("instance"), "a restarted instance fences what is left of itself by it"),
    protected(&["transaction.timeout.ms", "message.timeout.ms", "delivery.timeout.ms", "request.timeout.ms"],
        Some("transaction-timeout"), "no record may be on its way for longer than its transaction lives"),
    protected(&["partitioner"],
        None, "a lane is a key's partition, and targets are partitioned as Java's clients do it"),
    protected(&["linger.ms", "queue.buffering.max.ms", "queue.buffering.max.messages", "queue.buffering.max.kbytes",
                "queue.buffering.backpressure.threshold", "batch.size", "batch.num.messages", "message.max.bytes",
                "message.copy.max.bytes", "delivery.report.only.error", "produce.offset.report"],
        Some("commit-interval"), "batches are cut to what the targets take and as due records need it"),
    protected(&["fetch.wait.max.ms", "fetch.queue.backoff.ms", "fetch.error.backoff.ms", "fetch.min.bytes", "fetch.max.bytes",
                "fetch.message.max.bytes", "max.partition.fetch.bytes", "receive.message.max.bytes",
                "queued.min.messages", "queued.max.messages.kbytes", "enable.partition.eof"],
        Some("memory"), "the memory budget and the lateness rest on how much is read ahead, and when"),
    protected(&["socket.timeout.ms"],
        None, "a commit that takes half of it counts as unknown, on which exactly-once rests"),
    protected(&["log.connection.close"],
        None, "a producer whose connection has ended is not used again, on which exactly-once rests"),
    protected(&["reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms", "retry.backoff.max.ms",
                "topic.metadata.propagation.max.ms", "api.version.request.timeout.ms"],
        None, "how late a record is after a fault rests on them"),
    protected(&["check.crcs"],
        None, "it is how a batch that cannot be read is kept from stopping its lane"),
    protected(&["topic.blacklist"],
        None, "a target that is hidden from the client would count as missing"),
    protected(&["plugin.library.paths", "interceptors", "log.queue", "log_level", "enabled_events", "enable_sasl_queue",
                "internal.termination.signal"],
        None, "it changes how librdkafka works inside this process"),
];

/// What is wrong with a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its name; empty: all of them together.
    pub name: String,
    /// What was found, if it may be shown.
    pub got: String,
    /// The wanted value, or why the setting is refused.
    pub want: String,
}

/// Why a person may not set this; `None`: they may.
#[must_use]
pub fn why_protected(name: &str) -> Option<&'static Protected> {
    PROTECTED.iter().find(|protected| protected.names.contains(&name))
}

/// Whether the value of a setting is to be kept from people who may read logs and configuration.
#[must_use]
pub fn is_secret(name: &str) -> bool {
    const PARTS: [&str; 4] = ["password", "passphrase", "secret", "key.pem"];
    name != "sasl.kerberos.keytab"
        && (PARTS.iter().any(|part| name.contains(part)) || name == "sasl.oauthbearer.config")
}

/// Finds everything that is wrong with these settings. Connects to nothing, but reads the files that they name.
#[must_use]
pub fn check(given: &Given) -> Vec<Fault> {
    let mut faults: Vec<Fault> =
        given.iter().filter_map(|(name, value)| check_one(name, value)).collect();
    if faults.is_empty() {
        faults.extend(Source::check(given));
    }
    if faults.is_empty()
        && let Err(error) = together(given)
    {
        let want = format!("settings that librdkafka can work with: {}", said(error));
        faults.push(Fault { name: String::new(), got: "these settings".to_owned(), want });
    }
    faults
}

fn check_one(name: &str, value: &Secret) -> Option<Fault> {
    let fault = |got: String, want: String| Some(Fault { name: name.to_owned(), got, want });
    if let Some(Protected { instead, reason, .. }) = why_protected(name) {
        let instead = instead.map(|key| format!(" (use the key {key})")).unwrap_or_default();
        return fault(
            "a setting that waterclock decides".to_owned(),
            format!("none: {reason}{instead}"),
        );
    }
    if Source::takes(name) {
        return unusable(name, value);
    }
    let shown =
        if is_secret(name) { "(not shown)".to_owned() } else { format!("{:?}", value.expose()) };
    let mut config = blank();
    match config.set(name, value.expose()).create_native_config() {
        Ok(_) => unusable(name, value),
        Err(KafkaError::ClientConfig(_, why, ..)) if why.starts_with("No such configuration") => {
            fault(
                "an unknown setting".to_owned(),
                "a name of librdkafka's CONFIGURATION.md".to_owned(),
            )
        }
        // Its text may repeat the value.
        Err(_) if is_secret(name) => fault(shown, "a value that librdkafka takes".to_owned()),
        Err(error) => fault(shown, format!("what librdkafka takes: {}", said(error))),
    }
}

/// A setting whose file cannot be used. librdkafka does not say which of its files it could not read, and reads a key
/// that everybody can read, too.
fn unusable(name: &str, value: &Secret) -> Option<Fault> {
    let path = Path::new(value.expose());
    if !name.ends_with(".location") || path == Path::new("probe") {
        return None;
    }
    let what = match std::fs::File::open(path).and_then(|file| file.metadata()) {
        Err(error) => error.to_string(),
        Ok(about) => {
            let is_key = matches!(name, "ssl.key.location" | "ssl.keystore.location");
            let open = readable_by_all(&about).filter(|_| is_key)?;
            format!("everybody may read it, mode {open:o}; chmod o-r")
        }
    };
    let (got, want) =
        (format!("{:?}", value.expose()), format!("a file that can be used ({what})"));
    Some(Fault { name: name.to_owned(), got, want })
}

/// The mode of a file that everybody may read.
#[must_use]
pub fn readable_by_all(about: &Metadata) -> Option<u32> {
    let mode = about.permissions().mode() & 0o777;
    (mode & 0o004 != 0).then_some(mode)
}

/// A client of all of them: reads certificates and keys, and finds what does not go together. Without an address it
/// connects to nothing.
fn together(given: &Given) -> Result<(), KafkaError> {
    config(given).create::<BaseConsumer>().map(drop)
}

/// A configuration of nothing yet; the only way to one.
///
/// OpenSSL is begun by us and not by librdkafka, so that it registers no exit handler: that would clean up under
/// librdkafka's threads, which nobody waits for, and one that makes a connection just then crashes the process.
fn blank() -> ClientConfig {
    openssl::init();
    ClientConfig::new()
}

/// The configuration of every client: the given settings, without those that we read ourselves.
pub(crate) fn config(given: &Given) -> ClientConfig {
    let mut config = blank();
    for (name, value) in given.iter().filter(|(name, _)| !Source::takes(name)) {
        config.set(name, value.expose());
    }
    // The OpenSSL that is built along knows no directory of this system.
    if config.get("ssl.ca.location").is_none() && config.get("ssl.ca.pem").is_none() {
        config.set("ssl.ca.location", "probe");
    }
    config
}

/// librdkafka's words, without those of the crate around them.
fn said(error: KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, why, ..) | KafkaError::ClientCreation(why) => why,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
