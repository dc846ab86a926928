//! Executors of runs: handlers that work on the shards of a run, and on other Kafka tasks with feedback.
//!
//! ```text
//!  topic ──▶ member of its group ──▶ first heartbeat ──▶ commit of the offset ──▶ Handler ──▶ one result
//!            (weight of them)        heartbeats go on in the background ─────────────┘
//! ```
//!
//! A run is divided into shards, and each shard is a record of the topic that the run names. Every member works on one shard at a
//! time, so the weight of a process says how many shards it works on at once. Add a process, and the group gives it shards that
//! nobody has begun.
//!
//! ```no_run
//! use serde_json::{Value, json};
//! use waterclock_client::ClientConfig;
//! use waterclock_client::tasks::{Tasks, TasksConfig};
//! use waterclock_client::worker::{Context, Failed, Handler, Shard, Worker};
//!
//! struct Settle;
//!
//! impl Handler for Settle {
//!     async fn run(&self, shard: Shard, context: Context) -> Result<Value, Failed> {
//!         let begin = shard.cursor.as_deref().and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
//!         for row in begin..1_000_u64 {
//!             // Here goes the work on this row of shard `shard.index` of `shard.count`.
//!             context.progress(u8::try_from(row / 10).ok(), Some(&(row + 1).to_string()))?;
//!         }
//!         Ok(json!({ "rows": 1_000 - begin }))
//!     }
//! }
//!
//! # async fn service() -> Result<(), Box<dyn std::error::Error>> {
//! let tasks = Tasks::new(TasksConfig::new("http://localhost:8080"))?;
//! let worker = Worker::builder(ClientConfig::new("localhost:9092"), tasks)
//!     .handler("settlement", Settle)
//!     .weight(4)
//!     .observe(|event| eprintln!("{event}"))
//!     .build()?;
//! worker.run(std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! For bulk work inside of one shard there is a [`Pool`].
//!
//! # Invariants
//! 1. A handler runs only once a heartbeat of its turn was answered and the offset of its record is committed, by a member that had
//!    the partition all the while. So no other member is handed this turn.
//! 2. A handler is stopped once no heartbeat was answered for 0.8 of the period, by the monotonic clock, and that is looked at before
//!    each step of it. waterclock hands the next turn out after a whole period. So two executors never work on one shard at a
//!    time; what does not wait (`await`) cannot be stopped, and belongs into small pieces.
//! 3. A shard that runs goes on when its partition moves. Members poll while handlers run.
//! 4. Every turn whose handler ends is reported once, and one that is over is not reported.
//!
//! The result of a handler goes to [`Event::Finished`]: reports have no place for it yet.

mod context;
mod executor;
mod first;
mod member;
pub mod pool;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use waterclock_kafka::settings::{self, Fault};
use waterclock_kafka::{Connection, GroupConsumer, KafkaError};

use super::ClientConfig;
use super::tasks::{self, Handed, Over, Reported, Tasks};

pub use context::Context;
pub use pool::Pool;

use executor::{Erased, Executor};
use member::Member;

/// A shard of a run, or a whole task that is no shard: then it is shard 0 of 1.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shard {
    /// The topic that it was handed over by.
    pub topic: String,
    /// The id of its task.
    pub task_id: String,
    /// Which shard, from 0.
    pub index: u32,
    /// Shards of the run, from 1 to 10,000.
    pub count: u32,
    /// For which nominal time of a schedule it is: the day that is to be settled, say. It is the same in all shards of a run and in each
    /// turn. `None`: the run or the task is of no schedule, or was asked for by hand.
    pub nominal: Option<SystemTime>,
    /// Which turn of the task, from 1.
    pub attempt: u32,
    /// The key of the record.
    pub key: Option<Vec<u8>>,
    /// The value of the record; empty if it has none.
    pub value: Vec<u8>,
    /// How far an earlier turn said that it came, at most 256 bytes. What that turn did behind it may be done already.
    pub cursor: Option<String>,
}

impl Shard {
    fn of(topic: &str, handed: &Handed, key: Option<&[u8]>, value: Option<&[u8]>) -> Self {
        let which = handed.shard().unwrap_or(tasks::ShardIndex::WHOLE);
        Self {
            topic: topic.to_owned(),
            task_id: handed.task_id().to_owned(),
            index: which.index(),
            count: which.count(),
            nominal: handed.nominal(),
            attempt: handed.attempt(),
            key: key.map(<[u8]>::to_vec),
            value: value.unwrap_or_default().to_vec(),
            cursor: handed.cursor().map(str::to_owned),
        }
    }
}

/// Why a shard was not done.
///
/// Any error becomes one that is tried again, so `?` works in a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it is a failure only if it is returned"]
pub struct Failed {
    error: String,
    is_final: bool,
    retry_after: Option<Duration>,
}

impl Failed {
    /// It is tried again while there are retries left. Attempts show the error: one line, and what is longer than 200 bytes is cut.
    pub fn retry(error: impl Into<String>) -> Self {
        Self { error: error.into(), is_final: false, retry_after: None }
    }

    /// It will never be possible: no retry. The error is as in [`retry`](Self::retry).
    pub fn gone(error: impl Into<String>) -> Self {
        Self { is_final: true, ..Self::retry(error) }
    }

    /// The next turn begins so much later, if that is longer than the backoff of the task; at most one hour.
    pub fn after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    /// Whether no retry follows.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.is_final
    }

    fn report(&self) -> tasks::Report {
        match (self.is_final, self.retry_after) {
            (true, _) => tasks::Report::gone(&self.error),
            (false, None) => tasks::Report::failed(&self.error),
            (false, Some(wait)) => tasks::Report::failed(&self.error).retry_after(wait),
        }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)
    }
}

impl<E: std::error::Error> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::retry(error.to_string())
    }
}

/// What works on the shards of a topic.
pub trait Handler: Send + Sync + 'static {
    /// Works on one shard. It is dropped where it last waited once its turn is over, or the worker was stopped and its grace has
    /// passed. So it waits often, and what blocks a thread goes into `tokio::task::spawn_blocking` in small pieces, which ask
    /// [`Context::is_cancelled`] in between.
    ///
    /// What is done behind the last cursor is done again if the turn is lost. So it must do no harm to do it twice.
    ///
    /// # Errors
    /// The turn is reported as failed. A panic counts as one that may be tried again.
    fn run(
        &self,
        shard: Shard,
        context: Context,
    ) -> impl Future<Output = Result<Value, Failed>> + Send;
}

/// What a worker tells the one who [observes](Builder::observe) it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A handler begins.
    Begun {
        /// What it works on.
        shard: Shard,
    },
    /// A handler is done, and this was reported.
    Finished {
        /// What it worked on.
        shard: Shard,
        /// What it gave.
        value: Value,
        /// What became of the task.
        reported: Reported,
    },
    /// A handler has failed, and this was reported.
    Failed {
        /// What it worked on.
        shard: Shard,
        /// Why.
        failed: Failed,
        /// What became of the task.
        reported: Reported,
    },
    /// The turn was over before its handler had ended. The handler was dropped.
    Over {
        /// What it worked on.
        shard: Shard,
        /// Why.
        over: Over,
    },
    /// A handler has ended, and its report was not taken. Its turn fails a heartbeat period later, or is over already.
    NotReported {
        /// What it worked on.
        shard: Shard,
        /// Why.
        error: Arc<tasks::Error>,
    },
    /// A record is not worked on: it is of no task, or its turn is over.
    Passed {
        /// The topic that it stands in.
        topic: String,
        /// Why.
        error: Arc<tasks::Error>,
    },
    /// A turn cannot begin now. It is tried again for as long as its partition stays with this process.
    NotBegun {
        /// The topic that it stands in.
        topic: String,
        /// Why.
        error: Arc<tasks::Error>,
    },
    /// The partition of a record went to another member before its handler began. That member works on it.
    Moved {
        /// The topic that it stands in.
        topic: String,
    },
    /// Kafka did not answer well. This passes, or lasts until a person mends it. While it lasts it is told once.
    Kafka {
        /// The topic that is consumed.
        topic: String,
        /// What librdkafka says.
        error: KafkaError,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |f: &mut fmt::Formatter<'_>, shard: &Shard| {
            let Shard { topic, task_id, index, count, attempt, .. } = shard;
            write!(f, "{topic}: {task_id}, shard {index}/{count}, turn {attempt}: ")
        };
        match self {
            Self::Begun { shard } => of(f, shard).and_then(|()| f.write_str("begun")),
            Self::Finished { shard, reported, .. } => {
                of(f, shard)?;
                write!(f, "done, the task is {}", reported.as_str())
            }
            Self::Failed { shard, failed, reported } => {
                of(f, shard)?;
                write!(f, "failed ({failed}), the task is {}", reported.as_str())
            }
            Self::Over { shard, over } => {
                of(f, shard)?;
                write!(f, "stopped: {over}")
            }
            Self::NotReported { shard, error } => {
                of(f, shard)?;
                write!(f, "not reported: {error}")
            }
            Self::Passed { topic, error } => write!(f, "{topic}: a record is passed over: {error}"),
            Self::NotBegun { topic, error } => write!(f, "{topic}: not begun yet: {error}"),
            Self::Moved { topic } => write!(f, "{topic}: a record went to another member"),
            Self::Kafka { topic, error } => match GroupConsumer::remedy(error) {
                Some(remedy) => write!(f, "{topic}: {remedy} ({error})"),
                None => write!(f, "{topic}: {error}"),
            },
        }
    }
}

/// Why a worker does not start, or has ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting for librdkafka cannot be used; nothing was connected. Put it right.
    #[error("setting {}: {}, want {}", _0.name, _0.got, _0.want)]
    Setting(Fault),
    /// It has no handler. Give it one for each topic.
    #[error("a worker without a handler does nothing")]
    NoHandler,
    /// librdkafka refused its settings, or can do nothing any more. Start the worker again.
    #[error("the consumer of {topic} has ended")]
    Kafka {
        /// The topic.
        topic: String,
        /// What librdkafka says.
        #[source]
        source: KafkaError,
    },
}

type Observer = Arc<dyn Fn(Event) + Send + Sync>;

/// What is wrong with Kafka has passed if it was not said for so long.
const PASSED: Duration = Duration::from_secs(60);

/// The same observer, which is told once what is wrong with Kafka: librdkafka says it to each member, many times a second.
fn calm(observer: Observer) -> Observer {
    let said: Mutex<HashMap<String, Instant>> = Mutex::default();
    Arc::new(move |event: Event| {
        let is_known = matches!(event, Event::Kafka { .. }) && {
            let (now, mut said) = (Instant::now(), said.lock());
            said.retain(|_, last| now.saturating_duration_since(*last) < PASSED);
            said.insert(event.to_string(), now).is_some()
        };
        if !is_known {
            observer(event);
        }
    })
}

/// What a worker is made of.
#[must_use = "it does nothing before it is built and run"]
pub struct Builder {
    kafka: ClientConfig,
    tasks: Tasks,
    handlers: BTreeMap<String, Arc<dyn Erased>>,
    group: Option<String>,
    weight: usize,
    heartbeat: Option<Duration>,
    grace: Duration,
    session: Duration,
    observer: Observer,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topics: Vec<&String> = self.handlers.keys().collect();
        f.debug_struct("Builder")
            .field("topics", &topics)
            .field("weight", &self.weight)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Works on the shards in this topic. The name of the topic is the name of the handler: a run is given to it by that. The last
    /// handler of a topic counts.
    pub fn handler(mut self, topic: impl Into<String>, handler: impl Handler) -> Self {
        self.handlers.insert(topic.into(), Arc::new(handler));
        self
    }

    /// The consumer group, in place of `<topic>-executors`. All its members are workers like this one, or have the same assignor
    /// (`cooperative-sticky`). Each group is handed every shard of a topic: executors of two groups would work on it at once.
    pub fn group(self, group: impl Into<String>) -> Self {
        Self { group: Some(group.into()), ..self }
    }

    /// How many shards of each topic this process works on at once, each by a member of the group of its own; at least 1, which is
    /// the default. More members than partitions have nothing to do.
    pub fn weight(self, weight: usize) -> Self {
        Self { weight: weight.max(1), ..self }
    }

    /// The heartbeat period of all the tasks, as their `feedback` says it (its `deadline`, if it has none): from 2 s. Without this, it is
    /// looked up for each shard. One that is longer than theirs breaks the rule of the two executors.
    pub fn heartbeat(self, period: Duration) -> Self {
        Self { heartbeat: Some(period), ..self }
    }

    /// How long handlers may go on when the worker stops; 30 s by default. After that they are dropped, and their turns are reported
    /// as failed, to be tried again.
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// So long after a process has died its partitions go to others (`session.timeout.ms`); 10 s by default. Shards that it had begun
    /// wait for their heartbeat period instead. Brokers take 6 s and more, unless they are set otherwise.
    pub fn session(self, session: Duration) -> Self {
        Self { session, ..self }
    }

    /// Calls this with all that happens, from the tasks of the members: it must not block. Log it, or count it.
    pub fn observe(self, observer: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self { observer: Arc::new(observer), ..self }
    }

    /// Checks what was said. Nothing is connected yet; files that the settings name are read.
    ///
    /// # Errors
    /// [`Error::NoHandler`], [`Error::Setting`].
    pub fn build(self) -> Result<Worker, Error> {
        if self.handlers.is_empty() {
            return Err(Error::NoHandler);
        }
        let given = self.kafka.kafka.iter();
        let given = given.map(|(name, value)| (name.clone(), value.clone().into())).collect();
        if let Some(fault) = settings::check(&given).into_iter().next() {
            return Err(Error::Setting(fault));
        }
        let connection = Connection::new(&self.kafka.brokers, given);
        Ok(Worker { connection, of: self })
    }
}

/// Handlers, and the members of consumer groups that bring them shards.
#[derive(Debug)]
#[must_use = "it does nothing before it is run"]
pub struct Worker {
    connection: Connection,
    of: Builder,
}

/// Which members a process has: topic, group and name of each.
fn members<'a>(
    topics: impl IntoIterator<Item = &'a String>,
    group: Option<&str>,
    weight: usize,
) -> Vec<(&'a str, String, String)> {
    let of = |topic: &'a str| {
        let group = group.map_or_else(|| format!("{topic}-executors"), str::to_owned);
        (0..weight).map(move |number| (topic, group.clone(), format!("waterclock-worker-{number}")))
    };
    topics.into_iter().flat_map(|topic| of(topic)).collect()
}

impl Worker {
    /// One that consumes from these brokers, with these settings of librdkafka, and reports by this client of tasks. Nothing else of
    /// the configuration counts.
    pub fn builder(kafka: ClientConfig, tasks: Tasks) -> Builder {
        Builder {
            kafka,
            tasks,
            handlers: BTreeMap::new(),
            group: None,
            weight: 1,
            heartbeat: None,
            grace: Duration::from_secs(30),
            session: Duration::from_secs(10),
            observer: Arc::new(|_| ()),
        }
    }

    /// Works until `until` is there. Then it takes no more shards, lets handlers go on for their grace, and leaves the groups. If this is
    /// dropped, all handlers are dropped at once, and their turns fail a heartbeat period later.
    ///
    /// Call it inside a tokio runtime with time and I/O enabled, of several threads if handlers compute.
    ///
    /// # Errors
    /// [`Error::Kafka`]: it could not begin, or a member can do nothing any more. The others have ended, too.
    pub async fn run(self, until: impl Future<Output = ()>) -> Result<(), Error> {
        let Self { connection, of } = self;
        let stop = watch::Sender::new(false);
        let observer = calm(of.observer);
        let mut all = Vec::new();
        for (topic, group, name) in members(of.handlers.keys(), of.group.as_deref(), of.weight) {
            let Some(handler) = of.handlers.get(topic) else { continue };
            let consumer = GroupConsumer::join(&connection, (&name, &group, topic), of.session)
                .map_err(|source| Error::Kafka { topic: topic.to_owned(), source })?;
            let executor = Executor {
                topic: topic.to_owned(),
                handler: Arc::clone(handler),
                tasks: of.tasks.clone(),
                heartbeat: of.heartbeat,
                grace: of.grace,
                stop: stop.subscribe(),
                observer: Arc::clone(&observer),
            };
            all.push(Member::new(consumer, executor));
        }
        let mut running: JoinSet<Result<(), Error>> = all.into_iter().map(Member::run).collect();
        let ended = async {
            let mut first = Ok(());
            while let Some(ended) = running.join_next().await {
                // A member has no panics of handlers; one of an observer is the caller's.
                let ended = ended.unwrap_or_else(|error| match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => Ok(()),
                });
                if ended.is_err() {
                    stop.send_replace(true);
                }
                first = first.and(ended);
            }
            first
        };
        let stopping = async {
            until.await;
            stop.send_replace(true);
            std::future::pending::<()>().await;
        };
        match first::first(ended, stopping).await {
            first::First::One(ended) => ended,
            first::First::Other(()) => Ok(()),
        }
    }
}
