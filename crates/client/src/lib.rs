//! A client for services: sends what is to arrive later, and cancels it with an answer.
//!
//! ```text
//!  send, replace ──▶ the tier of that hold, or the intake ──▶ Kafka
//!  cancel, find ──▶ HTTP ──▶ the instance that owns the lane, or the server that was named
//!                     ▲
//!  <ns>.meta ─────────┴── the ladder, the lanes, and who owns them, as they change
//! ```
//!
//! Any Kafka client can do this by headers; this one picks the tier, knows the lanes, and hears answers. It comes without
//! the dependencies of the server:
//!
//! ```toml
//! waterclock-client = { path = "../waterclock/crates/client" }
//! ```
//!
//! ```no_run
//! use std::time::Duration;
//! use waterclock_client::{Client, ClientConfig, Delayed, Outcome};
//!
//! # async fn service() -> Result<(), waterclock_client::Error> {
//! let client = Client::connect(ClientConfig::new("localhost:9092")).await?;
//!
//! let reminder = Delayed::to("reminders")
//!     .key("customer-7")
//!     .value("your basket is waiting")
//!     .after(Duration::from_secs(30 * 60))
//!     .id("basket-42");
//! let sent = client.send(&reminder).await?;
//! println!("due {:?}", sent.due);
//!
//! match client.cancel(Some(b"customer-7"), "basket-42").await? {
//!     Outcome::Cancelled => println!("it will never arrive"),
//!     Outcome::Delivered => println!("too late"),
//!     other => println!("{other:?}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Tasks, which are timers that call back, have a client of their own: [`tasks`]. What works on the shards of runs is a [`worker`].
//!
//! # Invariants
//! 1. A tier is written to only while it is known, as of a few seconds ago, that it is open and that instances run; else
//!    the intake is, which is always right.
//! 2. Whatever is returned as sent is on all in-sync replicas.
//! 3. What the contract refuses is not sent. What only the instances know (allowed targets, the longest delay) is not
//!    checked here: such a record becomes a dead letter.

mod ask;
pub mod command;
mod delayed;
mod error;
pub mod http;
mod message;
pub mod tasks;
#[cfg(test)]
mod tests;
mod timer;
pub mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use waterclock_engine::header::{self, TimerAction, When};
use waterclock_engine::{Lane, Record, murmur2};
use waterclock_kafka::meta::{Follower, LadderInForce};
use waterclock_kafka::{Connection, Receipt, SubmitError, Submitter, settings};

pub use ask::{Filter, Outcome, Rescheduled};
pub use delayed::Delayed;
pub use error::Error;
pub use http::Tls;
pub use message::Message;
pub use timer::Timer;

use ask::Ask;
use http::{Http, Url};

/// How a client finds Kafka and the instances.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// `host:port` of some brokers, comma-separated.
    pub brokers: String,
    /// The namespace, as the instances have it.
    pub namespace: String,
    /// A further intake to write to, `<namespace>.intake.<name>`, with its defaults and allow-list; `None`: the main one.
    pub intake: Option<String>,
    /// Settings for librdkafka by its own names, as `[kafka]` of the instances: `security.protocol`, `sasl.username`, ...
    pub kafka: BTreeMap<String, String>,
    /// Where to cancel and look up: `http://host:port` or `https://host:port` of one instance, or of a load balancer before several. Without it
    /// the instance that owns the lane is asked, at the address that it gives in Kafka (`advertise` of its configuration).
    pub server: Option<String>,
    /// The bearer token that instances want of callers (their `[[api.tokens]]`), for cancels, other times and look-ups; `None`:
    /// they want none. It has to cover all projects.
    pub token: Option<Token>,
    /// Whom to trust and what to show where instances take TLS; by default the authorities of the system, and nothing.
    pub tls: Tls,
    /// How long a cancel, another time or a look-up is tried, while lanes move too. A change that is undecided then is
    /// `Pending`.
    pub within: Duration,
}

/// A bearer token. It is not shown: neither here nor in errors.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// One with this text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl ClientConfig {
    /// The brokers at these addresses, the namespace `waterclock`, 10 s for an answer.
    #[must_use]
    pub fn new(brokers: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            namespace: "waterclock".to_owned(),
            intake: None,
            kafka: BTreeMap::new(),
            server: None,
            token: None,
            tls: Tls::default(),
            within: Duration::from_secs(10),
        }
    }
}

/// Where a record was written to, on all in-sync replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The intake, or the tier.
    pub topic: String,
    /// Partition of it.
    pub partition: i32,
    /// Offset in it; `None`: it was sent again after an answer was lost, Kafka had it already, and does not say where.
    pub offset: Option<i64>,
    /// When the broker appended it; `None`: as of the offset.
    pub appended: Option<SystemTime>,
    /// When it is due; `None` if that was left to the default of the intake, or follows from when it was appended and that is
    /// not known.
    pub due: Option<SystemTime>,
}

/// A client of one namespace. Clones share it; the last one that is dropped ends its threads.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    namespace: String,
    intake: String,
    /// Whether that is the main one: what waits in tiers has come by that, if its state does not say otherwise.
    is_main: bool,
    follower: Follower,
    submitter: Submitter,
    http: Http,
    server: Option<Url>,
    within: Duration,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("namespace", &self.0.namespace).finish_non_exhaustive()
    }
}

impl Client {
    /// Reads what is in force for the namespace, and follows it from then on.
    ///
    /// Call it inside a tokio runtime with time and I/O enabled; the first read may take some seconds.
    ///
    /// # Errors
    /// [`Error::Setting`], [`Error::Address`]: put the configuration right. [`Error::Meta`], [`Error::NotApplied`]: Kafka is
    /// away, or there is no such namespace.
    pub async fn connect(config: ClientConfig) -> Result<Self, Error> {
        let server = config.server.as_deref().map(http::address).transpose()?;
        let http = Http::new(server.as_ref(), &config.tls)
            .map_err(|error| Error::Start(Box::new(error)))?;
        let http = http.with_token(config.token.as_ref().map(|token| token.0.clone()));
        let connecting = tokio::task::spawn_blocking(move || {
            let ClientConfig { brokers, namespace, intake, kafka, within, .. } = config;
            let kafka = kafka.into_iter().map(|(name, value)| (name, value.into())).collect();
            if let Some(fault) = settings::check(&kafka).into_iter().next() {
                return Err(Error::Setting(fault));
            }
            let connection = Connection::new(&brokers, kafka);
            let meta = format!("{namespace}.meta");
            let follower = Follower::start(&connection, &meta, &namespace);
            let follower = follower.map_err(|source| Error::Meta {
                namespace: namespace.clone(),
                source: Box::new(source),
            })?;
            let submitter = Submitter::new(&connection)?;
            let is_main = intake.is_none();
            let further = intake.map(|name| format!(".{name}")).unwrap_or_default();
            let intake = format!("{namespace}.intake{further}");
            header::topic_name(&intake)?;
            let inner =
                Inner { namespace, intake, is_main, follower, submitter, http, server, within };
            inner.ladder()?;
            Ok(Self(Arc::new(inner)))
        });
        connecting.await.map_err(|error| Error::Start(Box::new(error)))?
    }

    /// Sends a record that is to arrive later, and waits until Kafka has it.
    ///
    /// If it has no id and its delay is the hold of a tier, it goes straight to that tier and saves an append. With an
    /// id, a second send while the first is pending does nothing, so it may be repeated after an error.
    ///
    /// # Errors
    /// [`Error::Contract`]: nothing was sent. [`Error::Submit`]: see there for whether something was written.
    pub async fn send(&self, delayed: &Delayed) -> Result<Sent, Error> {
        let ladder = self.0.ladder()?;
        let hold = delayed.hold().filter(|hold| ladder.holds.contains(hold));
        if let Some(hold) = hold.filter(|_| self.0.is_main && self.0.follower.is_fresh()) {
            let tier = format!("{}.delay.{hold}", self.0.namespace);
            let record = delayed.record(TimerAction::Create, true)?;
            match self.0.write(&tier, &ladder, delayed, &record).await {
                // Taken away this moment: the intake is always there.
                Err(SubmitError::NoTopic { .. }) => {}
                written => return Ok(sent(tier, delayed, written?)),
            }
        }
        self.create(&ladder, delayed, TimerAction::Create).await
    }

    /// Sends a record in the place of the pending one of the same key and id, or creates it if there is none.
    ///
    /// # Errors
    /// [`Error::NoId`]: it has no id. Others: as [`send`](Self::send); it may be repeated.
    pub async fn replace(&self, delayed: &Delayed) -> Result<Sent, Error> {
        if delayed.id.is_none() {
            return Err(Error::NoId);
        }
        self.create(&self.0.ladder()?, delayed, TimerAction::Replace).await
    }

    /// Sends a consumed record for its topic again, after the same interval as before: a poll that is not done yet, a
    /// retry. Commit the offset of the consumed record after this; if that fails both may arrive, unless there is an id.
    ///
    /// # Errors
    /// [`Error::NoInterval`]: it was not sent with [`trace`](Delayed::trace) and a delay; send
    /// [`Message::delayed`] instead. Others: as [`send`](Self::send).
    pub async fn again(&self, message: &Message) -> Result<Sent, Error> {
        self.send(&message.again()?).await
    }

    /// Cancels the timer of this key and id, and waits for what became of it. `key` is that of its record; `None` for a
    /// record without one.
    ///
    /// It may be repeated: a timer that was cancelled is answered as `Cancelled` again.
    ///
    /// # Errors
    /// [`Error::NoInstance`], [`Error::Busy`]: nobody could be asked; it may have been cancelled, cancel again.
    /// [`Error::Refused`]: the id, or the request, is not in order.
    pub async fn cancel(&self, key: Option<&[u8]>, id: &str) -> Result<Outcome, Error> {
        self.0.ask().cancel(self.0.timer(key, id)?).await
    }

    /// Cancels one version of a timer, as [`Timer::version`] shows it; a version that was put in its place, or was made later,
    /// is left alone.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel).
    pub async fn cancel_version(
        &self,
        key: Option<&[u8]>,
        id: &str,
        version: &str,
    ) -> Result<Outcome, Error> {
        let at = self.0.timer(key, id)?;
        let of_version = |attempt| -> Result<Url, Error> {
            let mut url = at(attempt)?;
            url.query_pairs_mut().append_pair("version", version);
            Ok(url)
        };
        self.0.ask().cancel(of_version).await
    }

    /// Cancels many timers at once, each named by the key of its record and its id. Gives the outcome of each, in the
    /// same order. A mistake in one is reported in its place.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel), or all of them are wrong; some may have been cancelled.
    pub async fn cancel_all(
        &self,
        names: &[(Option<&[u8]>, &str)],
    ) -> Result<Vec<Result<Outcome, Error>>, Error> {
        let at = |attempt| Ok(ask::timers(&self.0.any(attempt)?, "timers:batchCancel"));
        self.0.ask().cancel_all(names, at).await
    }

    /// Gives the pending timer of this key and id another time; key, value and headers of its record stay. With a `version`, as
    /// [`Timer::version`] shows it, only that one. A time that is past is now.
    ///
    /// It may be repeated with the same time.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel); a time beyond the longest delay is [`Error::Refused`], too.
    pub async fn reschedule(
        &self,
        key: Option<&[u8]>,
        id: &str,
        version: Option<&str>,
        due: SystemTime,
    ) -> Result<Rescheduled, Error> {
        let at = self.0.timer(key, id)?;
        let of_version = |attempt| -> Result<Url, Error> {
            let mut url = at(attempt)?;
            if let Some(version) = version {
                url.query_pairs_mut().append_pair("version", version);
            }
            Ok(url)
        };
        self.0.ask().reschedule(ask::millis(due), of_version).await
    }

    /// Lists timers in the order of their due times. What changes meanwhile is listed or not; what does not change is listed
    /// once.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel); nothing is changed.
    pub async fn list(&self, filter: &Filter) -> Result<Vec<Timer>, Error> {
        let at = |attempt| Ok(ask::timers(&self.0.any(attempt)?, "timers"));
        self.0.ask().list(filter, at).await
    }

    /// Looks the timer of this key and id up; `None` if nothing is known of it. What was sent a moment ago may not be known
    /// yet: its lane's owner has to read it first.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel).
    pub async fn find(&self, key: Option<&[u8]>, id: &str) -> Result<Option<Timer>, Error> {
        self.0.ask().find(self.0.timer(key, id)?).await
    }

    async fn create(
        &self,
        ladder: &LadderInForce,
        delayed: &Delayed,
        action: TimerAction,
    ) -> Result<Sent, Error> {
        let record = delayed.record(action, false)?;
        let receipt = self.0.write(&self.0.intake, ladder, delayed, &record).await?;
        Ok(sent(self.0.intake.clone(), delayed, receipt))
    }
}

impl Inner {
    fn ladder(&self) -> Result<LadderInForce, Error> {
        let namespace = || self.namespace.clone();
        match self.follower.ladder() {
            Ok(Some(ladder)) => Ok(ladder),
            Ok(None) => Err(Error::NotApplied { namespace: namespace() }),
            Err(source) => Err(Error::Meta { namespace: namespace(), source: Box::new(source) }),
        }
    }

    async fn write(
        &self,
        topic: &str,
        ladder: &LadderInForce,
        delayed: &Delayed,
        record: &Record,
    ) -> Result<Receipt, SubmitError> {
        let lanes = i32::from(ladder.lanes);
        self.submitter.submitted(topic, lanes, delayed.lane_key(), record).await
    }

    fn ask(&self) -> Ask<'_> {
        Ask { http: &self.http, within: self.within }
    }

    /// Where to ask for a timer: at the named server, or at the owner of its lane as it is known by then. Every second
    /// time it is another instance, which passes the request on.
    fn timer(
        &self,
        key: Option<&[u8]>,
        id: &str,
    ) -> Result<impl Fn(usize) -> Result<Url, Error>, Error> {
        let lanes = self.ladder()?.lanes;
        let lane = Lane(murmur2::partition(key.unwrap_or(id.as_bytes()), lanes));
        Ok(move |attempt| Ok(ask::timer(&self.base(lane, attempt)?, key, id)))
    }

    /// Whom to ask about a lane.
    fn base(&self, lane: Lane, attempt: usize) -> Result<Url, Error> {
        if let Some(server) = &self.server {
            return Ok(server.clone());
        }
        let url = self.follower.url(lane, attempt);
        let url = url.ok_or_else(|| Error::NoInstance { namespace: self.namespace.clone() })?;
        Ok(http::address(&url)?)
    }

    /// Whom to ask about several lanes: any instance does.
    fn any(&self, attempt: usize) -> Result<Url, Error> {
        self.base(Lane(0), attempt)
    }
}

fn sent(topic: String, delayed: &Delayed, receipt: Receipt) -> Sent {
    let appended = receipt.stands.map(|stands| stands.appended);
    let due = delayed.when.and_then(|when| match when {
        When::After(delay) => appended.map(|appended| appended + delay),
        When::At(due) => Some(due),
    });
    Sent {
        topic,
        partition: receipt.partition,
        offset: receipt.stands.map(|stands| stands.offset.0),
        appended: appended.map(delayed::system),
        due: due.map(delayed::system),
    }
}
