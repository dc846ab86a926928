//! Tasks: timers that call back. Creates them, looks them up, cancels and retries them, and reports for the executors of those
//! that have feedback. `docs/tasks.md` says what a task is.
//!
//! ```text
//!  create, get, list, cancel, retry ──▶ HTTP ──▶ any instance with the API
//!  consumed record, or call ──▶ Handed ──▶ Turn ──▶ heartbeats in the background, then one result
//! ```
//!
//! It speaks HTTP only, and needs no Kafka client of its own. An executor brings the consumer that it likes.
//!
//! ```no_run
//! use std::time::Duration;
//! use waterclock_client::tasks::{CancelOutcome, HttpTask, Retry, Tasks, TasksConfig};
//!
//! # async fn service() -> Result<(), waterclock_client::tasks::Error> {
//! let tasks = Tasks::new(TasksConfig::new("http://localhost:8080"))?;
//! let expire = HttpTask::to_url("shop", "orders", "https://shop.example/orders/17/expire")
//!     .after(Duration::from_secs(15 * 60))
//!     .retry(Retry::times(3))
//!     .request_id("expire-17");
//! let created = tasks.create(&expire).await?;
//!
//! match tasks.cancel(&created.task_id, Duration::from_secs(5)).await? {
//!     CancelOutcome::Cancelled => println!("it was never called"),
//!     CancelOutcome::Stopped => println!("it was called, and is not any more"),
//!     other => println!("too late: {}", other.as_str()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The executor of a Kafka task with feedback, with rdkafka as an example:
//!
//! ```no_run
//! use std::time::Duration;
//! use waterclock_client::Message;
//! use waterclock_client::tasks::{Error, Handed, Tasks, Turn};
//!
//! # async fn import(turn: &Turn, from: Option<&str>) -> Result<(), String> { Ok(()) }
//! # async fn consumed(tasks: &Tasks, message: &Message) -> Result<(), Error> {
//! let handed = Handed::of(message.headers())?;
//! let turn = match tasks.begin(handed).await {
//!     Err(Error::Stale { .. }) => return Ok(()), // another turn has begun, or the task has ended: commit the offset
//!     begun => begun?,
//! };
//! // The first heartbeat was answered: commit the offset of the record now.
//! match turn.unless_over(import(&turn, turn.cursor())).await {
//!     Ok(Ok(())) => drop(turn.finished().await?),
//!     Ok(Err(error)) => drop(turn.failed(&error, Some(Duration::from_secs(60))).await?),
//!     Err(over) => eprintln!("{over}"), // the work was dropped where it stood
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//! 1. A request is sent again only if nothing can happen twice by that: one with a request id, a cancel, a report, a look-up. Any
//!    other only if no instance can have acted on it.
//! 2. No call lasts longer than its bound, but for the end of an attempt that was begun before: a second at most.
//! 3. No error names a ticket, a token or a payload.
//! 4. A turn that is not known to be ours is reported as over: within one heartbeat period after the last heartbeat that was answered
//!    was sent.

mod error;
mod lease;
mod length;
mod request;
mod shard;
#[cfg(test)]
pub(crate) mod tests;
mod turn;
mod view;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::ask::millis;
use super::http::{
    self, Answer, Http, Method, Problem, Request, Silence, StatusCode, Url, WAIT_MAX, below, origin,
};
use super::{Tls, Token};

pub use error::{Advice, Error};
pub use request::{GrpcTask, HttpTask, KafkaTask, NewTask, OnResult, Retry};
pub use shard::ShardIndex;
pub(crate) use turn::Beats;
pub use turn::{Handed, Over, Report, Turn};
pub use view::{Attempt, CancelOutcome, Created, Feedback, Reported, Task, TaskFilter, TaskStatus};

/// The first pause between two attempts; each is twice the one before.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest, unless an instance asks for a longer one.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// An attempt has this long at least.
const ATTEMPT_MIN: Duration = Duration::from_secs(1);
/// In what time an instance answers: a look-up, a create, a list, a report or a retry. `docs/http-api.md` promises a little less.
const LOOK: Duration = Duration::from_secs(9);
const CREATE: Duration = Duration::from_secs(19);
const LIST: Duration = Duration::from_secs(22);
/// Tasks of one batch.
const BATCH_MAX: usize = 1_000;
/// Bytes of one batch: instances take 4 MiB.
const BATCH_BYTES_MAX: usize = (4 << 20) - 1_024;
/// Tasks of one page.
const PAGE: usize = 1_000;

/// How a client of tasks finds instances.
#[derive(Clone, Debug)]
pub struct TasksConfig {
    /// `http://host:port`, or with `https`, of instances with the API, or of a load balancer before them. After one that does not answer the next is
    /// asked.
    pub servers: Vec<String>,
    /// The bearer token that instances want of callers (their `[[api.tokens]]`); `None`: they want none.
    pub token: Option<Token>,
    /// Whom to trust and what to show where instances take TLS; by default the authorities of the system, and nothing.
    pub tls: Tls,
    /// How long a call is tried. A cancel has its wait on top.
    pub within: Duration,
    /// Who reports, as attempts show it: a text of at most 255 bytes, such as the name of the host.
    pub worker: Option<String>,
}

impl TasksConfig {
    /// The instance at this address, without a token, 30 s for a call.
    #[must_use]
    pub fn new(server: impl Into<String>) -> Self {
        Self {
            servers: vec![server.into()],
            token: None,
            tls: Tls::default(),
            within: Duration::from_secs(30),
            worker: None,
        }
    }
}

/// A client of tasks. Clones share its connections.
#[derive(Clone)]
pub struct Tasks(Arc<Inner>);

struct Inner {
    http: Http,
    servers: Vec<Url>,
    within: Duration,
    worker: Option<String>,
}

/// Without the token.
impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let servers: Vec<String> = self.0.servers.iter().map(origin).collect();
        f.debug_struct("Tasks").field("servers", &servers).finish_non_exhaustive()
    }
}

/// One request, and how it may be tried.
struct Call<'a> {
    method: Method,
    path: &'a [&'a str],
    query: Vec<(&'static str, String)>,
    body: Option<&'a Value>,
    /// In what time an instance answers.
    promised: Duration,
    /// Whether nothing happens twice if it is sent twice.
    repeats: bool,
}

impl<'a> Call<'a> {
    fn new(method: Method, path: &'a [&'a str], promised: Duration) -> Self {
        Self { method, path, query: Vec::new(), body: None, promised, repeats: true }
    }
}

/// Why an attempt has to be made again, or cannot be.
struct Passing {
    code: Option<String>,
    retry_after: Option<Duration>,
    source: Option<Box<http::Error>>,
}

impl Passing {
    /// For a caller who may ask again after so long, or after what an instance says.
    fn busy(self, url: &Url, wait: Duration) -> Error {
        let Self { code, retry_after, source } = self;
        let retry_after = retry_after.unwrap_or_default().max(wait);
        Error::Busy { url: origin(url), code, retry_after, source }
    }
}

impl Tasks {
    /// A client of the instances at these addresses. Nobody is asked yet.
    ///
    /// # Errors
    /// [`Error::Address`]: one is none, or there is none. [`Error::Start`]: the system is out of something.
    pub fn new(config: TasksConfig) -> Result<Self, Error> {
        let servers = config.servers.iter().map(|text| http::address(text));
        let servers = servers.collect::<Result<Vec<Url>, _>>()?;
        let Some(first) = servers.first() else {
            return Err(Error::Address { url: String::new() });
        };
        let http = Http::new(Some(first), &config.tls);
        let http = http.map_err(|error| Error::Start(Box::new(error)))?;
        let http = http.with_token(config.token.map(|token| token.0));
        let TasksConfig { within, worker, .. } = config;
        Ok(Self(Arc::new(Inner { http, servers, within, worker })))
    }

    /// Creates a task, and waits until Kafka has it. With a request id it may be called again after an error, and the task is
    /// created once; a task that there is already keeps its time and what it sends.
    ///
    /// # Errors
    /// [`Error::Refused`]: nothing was created. [`Error::Busy`]: call again. [`Error::Unknown`]: it has no request id, and may have
    /// been created.
    pub async fn create(&self, task: impl Into<NewTask>) -> Result<Created, Error> {
        let task = task.into();
        let (path, body) = (["v1", "tasks", task.task_type()], task.body());
        let call = Call::new(Method::POST, &path, CREATE);
        self.ask(Call { body: Some(&body), repeats: task.has_request_id(), ..call }).await
    }

    /// Creates many tasks, each for itself: gives what became of each, in the same order. Those that pass (an instance is busy, a
    /// project over its rate) are sent again while there is time, if they have a request id.
    ///
    /// # Errors
    /// Nobody answered for some of them, as for [`create`](Self::create). Others may have been created: with request ids, call again.
    pub async fn create_all(
        &self,
        tasks: &[NewTask],
    ) -> Result<Vec<Result<Created, Error>>, Error> {
        let until = Instant::now() + self.0.within;
        let bodies: Vec<Value> = tasks.iter().map(NewTask::of_batch).collect();
        let mut all: Vec<Option<Result<Created, Error>>> = tasks.iter().map(|_| None).collect();
        let mut left: Vec<usize> = (0..tasks.len()).collect();
        let mut pause = PAUSE_MIN;
        while !left.is_empty() {
            let mut passing = Vec::new();
            for batch in batches(&left, &bodies) {
                let of_batch: Vec<&Value> = batch.iter().map(|at| &bodies[*at]).collect();
                let body = json!({ "tasks": of_batch });
                let call = Call::new(Method::POST, &["v1", "tasks:batchCreate"], CREATE);
                let repeats = batch.iter().all(|at| tasks[*at].has_request_id());
                let answer = self.call(Call { body: Some(&body), repeats, ..call }, until).await?;
                let url = origin(&answer.url);
                let CreatedAll { tasks: each } = read(&answer)?;
                for (at, each) in batch.iter().zip(each) {
                    let each = each.outcome(&url, tasks[*at].has_request_id());
                    // One that has to wait for longer than there is time does not keep the others waiting.
                    if let Err(Error::Busy { retry_after, .. }) = &each
                        && Instant::now() + *retry_after < until
                    {
                        passing.push(*at);
                    }
                    all[*at] = Some(each);
                }
            }
            let asked = passing.iter().filter_map(|at| match &all[*at] {
                Some(Err(Error::Busy { retry_after, .. })) => Some(*retry_after),
                _ => None,
            });
            let wait = asked.max().unwrap_or_default().max(jittered(pause));
            if passing.is_empty() || Instant::now() + wait >= until {
                break;
            }
            tokio::time::sleep(wait).await;
            pause = (pause * 2).min(PAUSE_MAX);
            left = passing;
        }
        // An instance that answered for fewer than it was asked about is not understood.
        let silent = || Error::Refused {
            url: origin(&self.0.servers[0]),
            status: 500,
            code: "internal_error".to_owned(),
            detail: "the batch has no answer about this task".to_owned(),
            fields: Vec::new(),
        };
        Ok(all.into_iter().map(|each| each.unwrap_or_else(|| Err(silent()))).collect())
    }

    /// A task as it is now, with its attempts; `None`: it was never created, or its history has run out. One whose create was
    /// acknowledged is found.
    ///
    /// # Errors
    /// [`Error::Busy`]: call again. [`Error::Refused`]: the id is none.
    pub async fn get(&self, id: &str) -> Result<Option<Task>, Error> {
        let asked = self.ask(Call::new(Method::GET, &["v1", "tasks", id], LOOK)).await;
        match asked {
            Ok(task) => Ok(Some(task)),
            Err(Error::Refused { code, .. }) if code == "unknown_task" => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists tasks in the order of their due times, without their attempts. What changes meanwhile is listed or not; what does not
    /// change is listed once. A limit keeps the answer small.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn list(&self, filter: &TaskFilter) -> Result<Vec<Task>, Error> {
        let most = filter.limit.unwrap_or(usize::MAX);
        let filters = [
            ("project", filter.project.clone()),
            ("group", filter.group.clone()),
            ("status", filter.status.as_ref().map(|status| status.as_str().to_owned())),
            ("type", filter.task_type.clone()),
            ("due_before", filter.due_before.map(|at| millis(at).to_string())),
        ];
        let filters = filters.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let (mut tasks, mut next) = (Vec::new(), None::<String>);
        while tasks.len() < most {
            let mut query: Vec<_> = filters.clone().collect();
            query.push(("limit", (most - tasks.len()).min(PAGE).to_string()));
            query.extend(next.take().map(|next| ("page", next)));
            let call = Call::new(Method::GET, &["v1", "tasks"], LIST);
            let page: Page = self.ask(Call { query, ..call }).await?;
            tasks.extend(page.tasks);
            next = page.next;
            if next.is_none() {
                break;
            }
        }
        Ok(tasks)
    }

    /// Cancels a task, and waits so long, a minute at most, for what becomes of that. It may be repeated: a task that was cancelled is
    /// answered as before.
    ///
    /// # Errors
    /// [`Error::Busy`]: it may have been cancelled, call again. [`Error::Refused`]: there is no such task (404), or it may not be
    /// changed by this token.
    pub async fn cancel(&self, id: &str, wait: Duration) -> Result<CancelOutcome, Error> {
        #[derive(Deserialize)]
        struct Cancelled {
            outcome: CancelOutcome,
        }
        let wait = wait.min(WAIT_MAX);
        let path = ["v1", "tasks", id];
        let call = Call::new(Method::DELETE, &path, wait + LOOK);
        let query = vec![("wait", format!("{}ms", wait.as_millis()))];
        let until = Instant::now() + wait + self.0.within;
        let answer = self.call(Call { query, ..call }, until).await?;
        read::<Cancelled>(&answer).map(|cancelled| cancelled.outcome)
    }

    /// Makes a task due now that waits for its time, or that has failed; gives it back as it is then.
    ///
    /// # Errors
    /// [`Error::Refused`] with `not_retryable` or `payload_gone`: its words say what to do. [`Error::Unknown`]: it may have been
    /// retried; look the task up. It is not repeated by itself: of a task that failed in between, each would be a further attempt.
    pub async fn retry(&self, id: &str) -> Result<Task, Error> {
        let segment = format!("{id}:retry");
        let (path, body) = (["v1", "tasks", &*segment], json!({}));
        let call = Call::new(Method::POST, &path, LIST);
        self.ask(Call { body: Some(&body), repeats: false, ..call }).await
    }

    /// Says what came of a turn. To say it again is safe. Most executors report by a [`Turn`].
    ///
    /// # Errors
    /// [`Error::Stale`]: the turn is over, and only a success would count. [`Error::Busy`]: report again. [`Error::Refused`]: the ticket
    /// is not one of this task (403), or there is no such task (404).
    pub async fn report(&self, handed: &Handed, report: &Report) -> Result<Reported, Error> {
        #[derive(Deserialize)]
        struct Outcome {
            outcome: Reported,
        }
        let until = Instant::now() + self.0.within;
        let body = report.result(handed, self.0.worker.as_deref());
        let told: Outcome = self.tell(handed, "result", &body, until).await?;
        Ok(told.outcome)
    }

    /// Says once that the executor of a turn is at work, and how far it is. Gives by when the next heartbeat or the result has to be
    /// there, in milliseconds since 1970. A [`Turn`] does this in the background.
    ///
    /// # Errors
    /// As [`report`](Self::report).
    pub async fn heartbeat(&self, handed: &Handed, report: &Report) -> Result<u64, Error> {
        let body = report.heartbeat(handed, self.0.worker.as_deref());
        let until = Instant::now() + self.0.within;
        self.tell::<Next>(handed, "heartbeat", &body, until).await.map(|told| told.next_at)
    }

    /// The same, asked once of one of the servers, and waited for so long.
    async fn heartbeat_once(
        &self,
        handed: &Handed,
        report: &Report,
        attempt: usize,
        most: Duration,
    ) -> Result<u64, Error> {
        let body = report.heartbeat(handed, self.0.worker.as_deref());
        let path = ["v1", "tasks", handed.task_id(), "heartbeat"];
        let call = Call { body: Some(&body), ..Call::new(Method::POST, &path, most) };
        let url = self.url(&call, attempt);
        match self.attempt(&call, &url, most).await? {
            Ok(answer) => read::<Next>(&answer).map(|told| told.next_at),
            Err(passing) => Err(passing.busy(&url, PAUSE_MIN)),
        }
    }

    async fn tell<T: DeserializeOwned>(
        &self,
        handed: &Handed,
        what: &str,
        body: &Value,
        until: Instant,
    ) -> Result<T, Error> {
        let path = ["v1", "tasks", handed.task_id(), what];
        let call = Call::new(Method::POST, &path, LIST);
        read(&self.call(Call { body: Some(body), ..call }, until).await?)
    }

    async fn ask<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<T, Error> {
        read(&self.call(call, Instant::now() + self.0.within).await?)
    }

    /// Asks until there is an answer that waiting does not change, or `until` is over. It is asked once at least.
    async fn call(&self, call: Call<'_>, until: Instant) -> Result<Answer, Error> {
        let (mut attempt, mut pause) = (0, PAUSE_MIN);
        loop {
            let url = self.url(&call, attempt);
            let left = until.saturating_duration_since(Instant::now());
            let most = call.promised.min(left).max(ATTEMPT_MIN);
            let passing = match self.attempt(&call, &url, most).await? {
                Ok(answer) => return Ok(answer),
                Err(passing) => passing,
            };
            let wait = passing.retry_after.unwrap_or_default().max(jittered(pause));
            if Instant::now() + wait >= until {
                return Err(passing.busy(&url, wait));
            }
            tokio::time::sleep(wait).await;
            attempt += 1;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Asks once, and waits so long. What may be asked again is an answer of its own.
    async fn attempt(
        &self,
        call: &Call<'_>,
        url: &Url,
        most: Duration,
    ) -> Result<Result<Answer, Passing>, Error> {
        let request = Request {
            method: &call.method,
            body: call.body,
            if_match: None,
            promised: Some(most),
            looks_first: false,
            is_change: call.method != Method::GET,
            may_repeat: call.repeats,
            silent_max: None,
        };
        let unknown = |code, source| Error::Unknown { url: origin(url), code, source };
        match self.0.http.attempt(&request, url, most).await {
            Ok(answer) if answer.status.is_success() => Ok(Ok(answer)),
            Ok(answer) => {
                let problem = answer.problem();
                if !answer.is_passing() && problem.code != "attempt_open" {
                    return Err(refused(origin(url), answer.status.as_u16(), problem));
                }
                let code = Some(problem.code).filter(|code| !code.is_empty());
                if !call.repeats && !is_undone(answer.status, code.as_deref()) {
                    return Err(unknown(code, None));
                }
                Ok(Err(Passing { code, retry_after: answer.retry_after, source: None }))
            }
            Err(Silence { may_be_read: true, source }) if !call.repeats => {
                Err(unknown(None, Some(Box::new(source))))
            }
            Err(Silence { source, .. }) => {
                Ok(Err(Passing { code: None, retry_after: None, source: Some(Box::new(source)) }))
            }
        }
    }

    /// Whom to ask: one after the other.
    fn url(&self, call: &Call<'_>, attempt: usize) -> Url {
        let mut url = below(&self.0.servers[attempt % self.0.servers.len()], call.path);
        for (name, value) in &call.query {
            url.query_pairs_mut().append_pair(name, value);
        }
        url
    }
}

/// Whether an instance that answers this has done nothing. Of any other 503 it does not know.
fn is_undone(status: StatusCode, code: Option<&str>) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || code == Some("too_busy")
}

fn refused(url: String, status: u16, problem: Problem) -> Error {
    let Problem { code, detail, errors, at, .. } = problem;
    let detail = detail.unwrap_or_default();
    if status == 409 && code == "stale" {
        return Error::Stale { detail };
    }
    let mut fields: Vec<_> = errors.into_iter().map(|wrong| (wrong.at, wrong.detail)).collect();
    if let Some(at) = at.filter(|_| fields.is_empty()) {
        fields.push((at, detail.clone()));
    }
    Error::Refused { url, status, code, detail, fields }
}

fn read<T: DeserializeOwned>(answer: &Answer) -> Result<T, Error> {
    let url = origin(&answer.url);
    answer.json().map_err(|source| Error::Answer { url, source: Box::new(source) })
}

/// Somewhat shorter, by chance: callers that failed together do not come back together.
fn jittered(pause: Duration) -> Duration {
    let chance = RandomState::new().hash_one(()) % 512;
    pause.mul_f64(1.0 - chance as f64 / 1_024.0)
}

/// Divides these tasks into batches that an instance takes.
fn batches(of: &[usize], bodies: &[Value]) -> Vec<Vec<usize>> {
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut bytes = 0;
    for at in of {
        let size = bodies[*at].to_string().len() + 1;
        match batches.last_mut() {
            Some(last) if last.len() < BATCH_MAX && bytes + size <= BATCH_BYTES_MAX => {
                last.push(*at);
                bytes += size;
            }
            _ => {
                batches.push(vec![*at]);
                bytes = size;
            }
        }
    }
    batches
}

#[derive(Deserialize)]
struct Next {
    next_at: u64,
}

#[derive(Deserialize)]
struct Page {
    tasks: Vec<Task>,
    #[serde(default)]
    next: Option<String>,
}

#[derive(Deserialize)]
struct CreatedAll {
    tasks: Vec<CreatedEach>,
}

/// What became of one request of a batch.
#[derive(Deserialize)]
struct CreatedEach {
    status: u16,
    #[serde(flatten)]
    created: Option<Created>,
    #[serde(default)]
    problem: Problem,
}

impl CreatedEach {
    fn outcome(self, url: &str, repeats: bool) -> Result<Created, Error> {
        let Self { status, created, problem } = self;
        if let Some(created) = created {
            return Ok(created);
        }
        let url = url.to_owned();
        let code = Some(problem.code.clone());
        match StatusCode::from_u16(status) {
            Ok(of)
                if is_undone(of, code.as_deref())
                    || of == StatusCode::SERVICE_UNAVAILABLE && repeats =>
            {
                let asked = problem.retry_after.map(|seconds| Duration::from_secs(seconds.into()));
                let retry_after = asked.unwrap_or(PAUSE_MAX / 5);
                Err(Error::Busy { url, code, retry_after, source: None })
            }
            Ok(StatusCode::SERVICE_UNAVAILABLE) => Err(Error::Unknown { url, code, source: None }),
            _ => Err(refused(url, status, problem)),
        }
    }
}
