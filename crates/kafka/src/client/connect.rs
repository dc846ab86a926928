//! How every client of ours reaches the brokers.
//!
//! # Invariants
//! 1. Every client is configured by [`Connection::client`], so that a person's settings of librdkafka hold for all.
//! 2. Every client can be given tokens: its context has the items of [`tokens!`]. A client that is asked before anybody
//!    polls it (a reader, an admin client) is handed one when it is made. A client that lives for long without being
//!    polled is handed one by [`Connection::token`] before each use.
//! 3. Every consumer is configured by [`Connection::consumer`]: none chooses another position by itself when its own is
//!    not in the log (`auto.offset.reset` is `error`), and none commits by itself. A [`GroupConsumer`](super::GroupConsumer)
//!    begins at the start of the log instead: what it passes over has a deadline elsewhere.
//! 4. A client that gets no answer says why, as far as librdkafka knows: a wrong password is no silence.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rdkafka::admin::AdminClient;
use rdkafka::client::Client;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::metadata::Metadata;
use rdkafka::types::RDKafkaType;
use rdkafka::{ClientConfig, ClientContext};

use super::errors::{self, ErrorKind};
use super::oauth::{Tokens, tokens};
use super::outages::Outages;
use super::raw;
use super::settings::{self, Given};

/// A consumer that reads a topic to its end and leaves: that it has reached it is no error.
pub(crate) type Reader = BaseConsumer<Quiet>;
/// What a [`Reader`] sees of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Records of transactions that committed, up to the first that is open.
    Committed,
    /// All records; ends are those of the log.
    Uncommitted,
}

/// A client for questions and orders that are not about records. A thread of its own takes their answers.
pub(crate) type Admin = AdminClient<Quiet>;
/// The same without that thread, for those of [`raw::ask`].
pub(crate) type Asker = Client<Quiet>;

/// Closes a client on a thread of its own: that takes librdkafka a tenth of a second, for which nobody need wait.
pub(crate) fn aside<T: Send + 'static>(client: T) {
    // Where no thread can be had, it is closed here.
    let closing = std::thread::Builder::new().name("wc-close".into()).spawn(move || drop(client));
    drop(closing);
}

/// Closes clients side by side, and waits for that; false: one hangs, as librdkafka's close can, and is left behind.
pub(crate) fn close<T: Send + 'static>(
    clients: impl IntoIterator<Item = T>,
    most: Duration,
) -> bool {
    let (open, closed) = channel::<()>();
    for client in clients {
        aside(Closing { client: Some(client), _open: open.clone() });
    }
    drop(open);
    // Nothing is ever sent: it ends when the last one is closed.
    closed.recv_timeout(most) == Err(RecvTimeoutError::Disconnected)
}

/// A client, and the word that it is not closed yet, in the order in which they are to be dropped.
struct Closing<T> {
    client: Option<T>,
    _open: Sender<()>,
}

impl<T> Drop for Closing<T> {
    fn drop(&mut self) {
        drop(self.client.take());
    }
}

/// The context of a [`Reader`] and of an [`Admin`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quiet;

/// What a system says that gives no more files, in librdkafka's words.
const NO_FILES: &str = "Too many open files";
/// Between two lines about that.
const NO_FILES_EVERY: Duration = Duration::from_secs(30);

/// A line of librdkafka's own goes on as one. One about this process is said in ours: without more files it can do nothing, and
/// librdkafka's lines are not shown.
pub(crate) fn said(level: RDKafkaLogLevel, facility: &str, message: &str) {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    if message.contains(NO_FILES) {
        let mut last = LAST.lock();
        if last.is_none_or(|at| at.elapsed() >= NO_FILES_EVERY) {
            *last = Some(Instant::now());
            tracing::warn!(
                why = message,
                "no more files may be open here, and Kafka cannot be reached: raise the limit (ulimit -n)"
            );
        }
    }
    match level {
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error => {
            tracing::error!(target: "librdkafka", facility, "{message}");
        }
        RDKafkaLogLevel::Warning => tracing::warn!(target: "librdkafka", facility, "{message}"),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
            tracing::info!(target: "librdkafka", facility, "{message}");
        }
        RDKafkaLogLevel::Debug => tracing::debug!(target: "librdkafka", facility, "{message}"),
    }
}

impl ClientContext for Quiet {
    tokens!();

    fn error(&self, error: KafkaError, reason: &str) {
        if errors::kind(&error) != ErrorKind::EndOfPartition {
            tracing::debug!(%error, reason, "reader");
        }
    }
}

impl ConsumerContext for Quiet {}

/// `socket.timeout.ms` of every client: a leader that is paused rather than dead is noticed after this long (faults F8).
/// A commit slower than half of it is dirty.
pub(crate) const SOCKET_TIMEOUT: Duration = Duration::from_secs(8);
/// How long a broker has for the first answer on a new connection. One that is frozen accepts connections all the same, and
/// librdkafka does not look for another coordinator of the group as long as it waits for this one.
const FIRST_ANSWER: Duration = Duration::from_secs(2);

/// How long brokers that only refuse are asked: one that restarts may be back by then.
const REFUSED_MAX: Duration = Duration::from_secs(3);

/// How long it is listened to why there was no answer.
const LISTEN: Duration = Duration::from_millis(100);

/// Where the brokers are, and what every client needs to speak to them.
#[derive(Clone, Default)]
pub struct Connection {
    /// `host:port`, comma-separated.
    pub brokers: String,
    given: Given,
    tokens: Option<Arc<Tokens>>,
    pub(super) outages: Outages,
}

/// Settings are not shown: there may be passwords among them.
impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&String> = self.given.keys().collect();
        f.debug_struct("Connection")
            .field("brokers", &self.brokers)
            .field("settings", &names)
            .finish()
    }
}

/// Nobody answered.
#[derive(Debug, thiserror::Error)]
#[error("no answer from Kafka at {brokers}{}", reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default())]
pub struct NoAnswer {
    /// The addresses that were tried.
    pub brokers: String,
    /// The most telling of what librdkafka said meanwhile, in its words.
    pub reason: Option<String>,
    /// What it said at the end.
    #[source]
    pub source: Box<KafkaError>,
}

impl Connection {
    /// The brokers at these addresses, and settings of librdkafka that every client gets; if they ask for tokens, these
    /// are fetched from now on.
    #[must_use]
    pub fn new(brokers: &str, given: Given) -> Self {
        let tokens = Tokens::start(&given);
        Self { brokers: brokers.to_owned(), given, tokens, outages: Outages::default() }
    }

    /// Whom the brokers are told that we are, where a name and a password say it.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.given.get("sasl.username").map(|name| name.expose())
    }

    /// A configuration for one producer or admin client, named `client_id` in the brokers' logs.
    #[must_use]
    pub fn client(&self, client_id: &str) -> ClientConfig {
        let mut config = settings::config(&self.given);
        if let Some(tokens) = &self.tokens {
            config.set("sasl.oauthbearer.config", tokens.id());
        }
        config.set("bootstrap.servers", &self.brokers).set("client.id", client_id);
        config.set("socket.timeout.ms", SOCKET_TIMEOUT.as_millis().to_string());
        config.set("api.version.request.timeout.ms", FIRST_ANSWER.as_millis().to_string());
        config.set("reconnect.backoff.ms", "50").set("reconnect.backoff.max.ms", "1000");
        config
    }

    /// A configuration for one consumer, named `client_id` in the brokers' logs and in the group; without a group it can
    /// only ask.
    pub(crate) fn consumer(&self, client_id: &str) -> ClientConfig {
        let mut config = self.client(client_id);
        config
            // `earliest` or `latest` would turn lost records into silence.
            .set("auto.offset.reset", "error")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            // Checksums are where batches are looked at before librdkafka reads them (ADR 0019).
            .set("check.crcs", "true")
            .set("allow.auto.create.topics", "false");
        config
    }

    /// A client for questions and orders. Hand it a [`token`](Self::token) before each use, if it lives for long.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub(crate) fn admin(&self, client_id: &str) -> Result<Admin, KafkaError> {
        let admin: Admin = self.client(client_id).create_with_context(Quiet)?;
        self.token(admin.inner());
        Ok(admin)
    }

    /// The same without a thread that takes answers.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub(crate) fn asker(&self, client_id: &str) -> Result<Asker, KafkaError> {
        let config = self.client(client_id);
        let native = config.create_native_config()?;
        let asker = Client::new(&config, native, RDKafkaType::RD_KAFKA_PRODUCER, Quiet)?;
        self.token(&asker);
        Ok(asker)
    }

    /// A reader that is given its partitions, by [`raw::partitions`], and has no group. `wait`: how long a broker holds a fetch
    /// for which there is nothing; `to_ends`: it says when it is at a partition's end.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub(crate) fn reader(
        &self,
        client_id: &str,
        isolation: Isolation,
        wait: Duration,
        to_ends: bool,
    ) -> Result<Reader, KafkaError> {
        self.reader_with(client_id, isolation, wait, |config| {
            config.set("enable.partition.eof", to_ends.to_string());
        })
    }

    /// The same in a group, whose positions it can be asked for. It is assigned its partitions, and joins and commits nothing.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub(crate) fn reader_in_group(
        &self,
        client_id: &str,
        group: &str,
        isolation: Isolation,
        wait: Duration,
    ) -> Result<Reader, KafkaError> {
        self.reader_with(client_id, isolation, wait, |config| {
            config.set("enable.partition.eof", "true").set("group.id", group);
        })
    }

    fn reader_with(
        &self,
        client_id: &str,
        isolation: Isolation,
        wait: Duration,
        further: impl FnOnce(&mut ClientConfig),
    ) -> Result<Reader, KafkaError> {
        let mut config = self.consumer(client_id);
        config
            .set(
                "isolation.level",
                match isolation {
                    Isolation::Committed => "read_committed",
                    Isolation::Uncommitted => "read_uncommitted",
                },
            )
            .set("fetch.wait.max.ms", wait.as_millis().to_string())
            // A reader that is behind must not fill the memory with what it will read later: librdkafka's own 64 MiB are
            // some 170 MiB of small records.
            .set("fetch.max.bytes", "4194304")
            .set("queued.min.messages", "10000")
            .set("queued.max.messages.kbytes", "4096")
            .set("fetch.queue.backoff.ms", "5");
        further(&mut config);
        let reader: Reader = config.create_with_context(Quiet)?;
        // It may be asked before it is polled, which is when a token would come by itself.
        self.token(reader.client());
        Ok(reader)
    }

    /// Hands a client that nobody polls the token in hand, if tokens are asked for. Without one it will not connect;
    /// why there is none has been logged.
    pub(crate) fn token<C: ClientContext>(&self, client: &Client<C>) {
        let Some(tokens) = &self.tokens else { return };
        match tokens.token() {
            Ok(token) => raw::set_token(client, &token),
            Err(trouble) => tracing::debug!(trouble, "no token to hand out"),
        }
    }

    /// Asks for all topics and brokers: to ask for a topic by its name can create it.
    ///
    /// Returns early when librdkafka has said why there will be no answer.
    ///
    /// # Errors
    /// Nobody answered within `most`.
    pub fn metadata(&self, most: Duration) -> Result<Metadata, NoAnswer> {
        let worst = WorstError::default();
        let failed = |source| NoAnswer {
            brokers: self.brokers.clone(),
            reason: worst.get().map(|(_, reason)| reason),
            source: Box::new(source),
        };
        let consumer: BaseConsumer<WorstError> =
            self.consumer("waterclock-ask").create_with_context(worst.clone()).map_err(failed)?;
        if let Some(tokens) = &self.tokens {
            match tokens.token() {
                Ok(token) => raw::set_token(consumer.client(), &token),
                Err(trouble) => worst.note(Weight::Refused, &trouble),
            }
        }
        let began = Instant::now();
        let mut slice = Duration::from_secs(1);
        loop {
            let left = most.saturating_sub(began.elapsed());
            let error = match consumer.fetch_metadata(None, slice.min(left)) {
                Ok(metadata) => return Ok(metadata),
                Err(error) => error,
            };
            // What went wrong meanwhile waits to be polled, between lines of the log, which end a poll without a word.
            let until = Instant::now() + LISTEN;
            while Instant::now() < until {
                let _ = consumer.poll(until.saturating_duration_since(Instant::now()));
            }
            let enough = match worst.get() {
                Some((Weight::Refused, _)) => true,
                Some((Weight::Lost, _)) => began.elapsed() >= REFUSED_MAX,
                None => false,
            };
            if enough || began.elapsed() >= most {
                return Err(failed(error));
            }
            slice *= 2;
        }
    }
}

/// How much an error says about why nobody answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    /// A connection was not made, or broke.
    Lost,
    /// Somebody has to mend something: a password, a certificate, an address.
    Refused,
}

/// Keeps the most telling error.
#[derive(Clone, Default)]
struct WorstError(Arc<Mutex<Option<(Weight, String)>>>);

impl WorstError {
    fn note(&self, weight: Weight, reason: &str) {
        let mut worst = self.0.lock();
        if worst.as_ref().is_none_or(|(known, _)| *known < weight) {
            *worst = Some((weight, reason.to_owned()));
        }
    }

    fn get(&self) -> Option<(Weight, String)> {
        self.0.lock().clone()
    }
}

impl ClientContext for WorstError {
    tokens!();

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "asking for metadata");
        match errors::kind(&error) {
            kind if kind.is_refusal() => self.note(Weight::Refused, reason),
            ErrorKind::AllBrokersAway => {}
            // What librdkafka says of bytes that are no frame of Kafka's.
            _ if reason.contains("receive.message.max.bytes") => {
                self.note(Weight::Refused, "what answers there does not speak Kafka's protocol");
            }
            _ => self.note(Weight::Lost, reason),
        }
    }
}

impl ConsumerContext for WorstError {}

/// Whether this machine alone is meant by a host, or by a host and its port. An IPv6 address may stand in brackets.
#[must_use]
pub fn is_loopback(address: &str) -> bool {
    let host = match address.rsplit_once(':') {
        Some((host, _)) if !host.contains(':') || host.ends_with(']') => host,
        _ => address,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let ip = host.parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Closing it takes until somebody lets it.
    struct Hangs(std::sync::mpsc::Receiver<()>);

    impl Drop for Hangs {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    #[test]
    fn a_client_whose_close_hangs_is_left_behind() {
        let (let_go, hangs) = channel();
        assert!(!close([Hangs(hangs)], Duration::from_millis(50)), "it is still closing");
        drop(let_go);
        let (let_go, hangs) = channel();
        drop(let_go);
        assert!(close([Hangs(hangs)], Duration::from_secs(60)), "nothing holds it");
        assert!(close(Vec::<Hangs>::new(), Duration::from_secs(60)), "there is none");
    }
}
