//! `waterclock task`: creates, shows, lists, cancels and retries tasks over the HTTP API, and reports for executors.

use std::fmt::Write as _;
use std::time::Duration;

use clap::builder::RangedI64ValueParser;
use clap::{ArgGroup, Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

use super::cancel::asked;
use super::client::{Client, Kind, ServerArg, StartWait, typed, wait};
use super::list::Moment;
use super::pages::{PAGE, Pages};
use super::{Exit, Failure, Global, Outcome, output};
use crate::api::tasks::model::{
    CancelAnswer, CancelOutcome, Created, FeedbackInfo, GrpcTask, HeartbeatAnswer, HeartbeatReport,
    HttpTask, KafkaTask, Length, PollInfo, ReportAnswer, ReportOutcome, ResultReport, ResultTo,
    RetryInfo, TaskBase, TaskStatus, TaskView,
};
use crate::client::http::Method;
use crate::config::Overrides;
use crate::engine::UnixMillis;
use crate::engine::header;
use crate::engine::task::id::TaskId;
use crate::engine::task::report::OUTCOMES;
use crate::engine::task::result::Outcome as CallOutcome;
use crate::engine::task::{registry, retry, spec};

pub(super) mod show;

use show::{attempts, rows, whole, word};

/// Arguments of `task`.
#[derive(Args)]
pub(super) struct Task {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Creates a task
    Create(Create),
    /// Says what is known of a task; exit code 1 if there is none
    Get(Get),
    /// Lists the attempts of a task
    History(One),
    /// Lists tasks by due time
    List(List),
    /// Keeps a task from being called, and says what became of that
    Cancel(Cancel),
    /// Makes a task due now that waits for its time, or that has failed
    Retry(One),
    /// Reports what came of a turn of a task with feedback
    Report(Report),
    /// Gives a sign that a turn of a task with feedback is being worked on
    Heartbeat(Heartbeat),
}

#[derive(Args)]
struct One {
    /// The id of the task
    #[arg(value_name = "ID")]
    id: TaskId,
    #[command(flatten)]
    to: To,
}

#[derive(Args)]
struct Get {
    #[command(flatten)]
    one: One,
    /// Also shows what it sends, as long as Kafka has that
    #[arg(long)]
    payload: bool,
}

/// Whom to ask.
#[derive(Args)]
struct To {
    #[command(flatten)]
    wait: StartWait,
    #[command(flatten)]
    server: ServerArg,
}

impl To {
    fn open(&self, global: &Global) -> Result<Client, Failure> {
        let config = global.load(Overrides::default())?;
        Ok(self.server.open_within(self.wait.wait, global, &config)?.of_options())
    }
}

#[derive(Args)]
struct Create {
    #[command(subcommand)]
    of: Type,
}

#[derive(Subcommand)]
enum Type {
    /// A task that calls a URL or a named service
    Http(Box<CreateHttp>),
    /// A task that writes a record to a topic
    Kafka(Box<CreateKafka>),
    /// A task that calls a method of a gRPC service
    Grpc(Box<CreateGrpc>),
}

/// How often what failed is tried again, and when. What is not said of a task comes from its service, if it has one.
#[derive(Args)]
pub(super) struct Retries {
    /// Attempts after the first one that failed [default: 0; a task without them has those of its service]
    #[arg(long, value_name = "N", value_parser = at_most::<u32>(retry::COUNT_MAX.into()))]
    retries: Option<u32>,
    /// The wait after the first failure [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = length, requires = "retries")]
    retry_interval: Option<Length>,
    /// How the wait grows [default: fixed]
    #[arg(long, value_parser = ["fixed", "exponential"], requires = "retries")]
    backoff: Option<String>,
    /// The longest wait [default: 1h, or --retry-interval if that is longer]
    #[arg(long, value_name = "DURATION", value_parser = length, requires = "retries")]
    max_interval: Option<Length>,
    /// The part of a wait that chance may take away [default: 0]
    #[arg(long, value_name = "0-1", value_parser = part, requires = "retries")]
    jitter: Option<f64>,
}

impl Retries {
    /// As the API takes it; `None`: nothing is said of it.
    pub(super) fn info(&self) -> Option<RetryInfo> {
        Some(RetryInfo {
            count: Some(self.retries?),
            interval: self.retry_interval.clone(),
            backoff: self.backoff.clone(),
            max_interval: self.max_interval.clone(),
            jitter: self.jitter,
        })
    }
}

/// What every task has.
#[derive(Args)]
#[command(group(ArgGroup::new("due").required(true).args(["delay", "at"])))]
struct Common {
    /// The project
    #[arg(long, value_name = "NAME")]
    project: String,
    /// A word for lists, such as the kind of the task
    #[arg(long, value_name = "NAME")]
    group: String,
    /// How long from now it is due, e.g. 15m
    #[arg(long = "in", value_name = "DURATION", value_parser = length)]
    delay: Option<Length>,
    /// When it is due: RFC 3339, epoch milliseconds, or how long from now
    #[arg(long, value_name = "TIME")]
    at: Option<Moment>,
    /// Spreads tasks over so long a time behind that, at most 1h [default: as the project says]
    #[arg(long, value_name = "DURATION", value_parser = length)]
    window: Option<Length>,
    /// When it is not begun any more, as for `--at`: 2h is two hours from now
    #[arg(long, value_name = "TIME")]
    expires: Option<Moment>,
    /// The same id of a project is the same task [default: a new one]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    request_id: Option<String>,
    #[command(flatten)]
    retries: Retries,
    /// A header, as NAME=VALUE; may be given several times
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = pair)]
    headers: Vec<(String, String)>,
    /// It goes on until an executor reports; a turn has failed of which nothing is heard for so long
    #[arg(long, value_name = "DURATION", value_parser = length)]
    deadline: Option<Length>,
    /// The same from the first heartbeat on [default: the deadline]
    #[arg(long, value_name = "DURATION", value_parser = length, requires = "deadline")]
    heartbeat: Option<Length>,
    /// Who is told how it ended: topic=NAME, service=NAME (one of the project) or url=URL
    #[arg(long, value_name = "WHO", value_parser = told)]
    on_result: Option<ResultTo>,
    #[command(flatten)]
    to: To,
}

impl Common {
    fn base(&self) -> TaskBase {
        TaskBase {
            project: self.project.clone(),
            group: self.group.clone(),
            trigger_at: self.at.map(|at| at.0),
            delay: self.delay.clone(),
            window: self.window.clone(),
            expires_at: self.expires.map(|at| at.0),
            // So the request may be sent again where nobody answers.
            request_id: Some(
                self.request_id.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string()),
            ),
            retry: self.retries.info(),
            on_result: self.on_result.clone(),
        }
    }

    fn feedback(&self) -> Option<FeedbackInfo> {
        let deadline = self.deadline.clone()?;
        Some(FeedbackInfo { deadline, heartbeat: self.heartbeat.clone() })
    }

    /// `key`: that of the record, which its id says too.
    fn send(&self, of: &str, key: Option<&[u8]>, body: &Value, global: &Global) -> Outcome {
        let client = self.to.open(global)?;
        // A request id may be that of a task that there is, or was: then nothing is created.
        let id = self.request_id.as_deref();
        let id = id.and_then(|id| TaskId::of_request(&self.project, id, key).ok());
        let before = id.and_then(|id| {
            let path = format!("v1/tasks/{id}");
            let told = client.ask(Kind::Look, &Method::GET, &path, &[], None).ok()?;
            typed::<TaskView>(&told).ok()
        });
        let path = format!("v1/tasks/{of}");
        let told = client.ask(Kind::Create, &Method::POST, &path, &[], Some(body))?;
        let new: Created = typed(&told)?;
        let before = before.as_ref();
        output::line(&match global.json() {
            true => json!(CreatedOrThere::of(new, before)).to_string(),
            false => created(&new.task_id, new.trigger_at, before),
        })
    }
}

/// What a create has come to, for a program.
#[derive(Serialize)]
struct CreatedOrThere {
    #[serde(flatten)]
    task: Created,
    /// There was one with the request id already, and nothing was created: its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    existed: Option<TaskStatus>,
}

impl CreatedOrThere {
    fn of(new: Created, before: Option<&TaskView>) -> Self {
        match before.filter(|task| !is_unborn(task)) {
            Some(old) => Self {
                task: Created { trigger_at: old.trigger_at, ..new },
                existed: Some(old.task_status),
            },
            None => Self { task: new, existed: None },
        }
    }
}

/// One that was refused when it was created can be created again.
fn is_unborn(task: &TaskView) -> bool {
    task.task_status == TaskStatus::Failed && task.attempts_total == 0
}

/// What a create has come to, by what was there before it.
fn created(task_id: &str, trigger_at: u64, before: Option<&TaskView>) -> String {
    let due = |at| output::time(UnixMillis(at));
    match before {
        None => format!("{task_id}  due {}", due(trigger_at)),
        Some(task) if is_unborn(task) => {
            format!(
                "{task_id}  due {}; it failed before ({}): `waterclock task get {task_id}` says whether it is there now",
                due(trigger_at),
                task.code.as_deref().unwrap_or("refused"),
            )
        }
        Some(task) => format!(
            "{task_id}  exists already, nothing was created: {}, due {}",
            word(task.task_status),
            due(task.trigger_at)
        ),
    }
}

#[derive(Args)]
#[command(group(ArgGroup::new("callee").required(true).args(["url", "service"])))]
struct CreateHttp {
    #[command(flatten)]
    common: Common,
    /// Who is called
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The named service of the project that is called
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// What follows the service's address
    #[arg(long, value_name = "PATH", conflicts_with = "url")]
    path: Option<String>,
    /// The method [default: POST]
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// The body
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    body: Option<String>,
    /// How long a call may take, at most 5m
    #[arg(long, value_name = "DURATION", value_parser = length)]
    timeout: Option<Length>,
    /// Which statuses mean that it is done, e.g. 200,204 [default: 2xx]
    #[arg(long, value_name = "STATUSES")]
    expect: Option<String>,
    /// Asks again after this interval while the answer is 202 or 425
    #[arg(long, value_name = "DURATION", value_parser = length, requires = "rounds", conflicts_with = "deadline")]
    poll: Option<Length>,
    /// How often it asks, at most; the first time counts
    #[arg(long, value_name = "N", requires = "poll", value_parser = at_most::<u32>(spec::ROUNDS_MAX.into()))]
    rounds: Option<u32>,
}

#[derive(Args)]
struct CreateKafka {
    #[command(flatten)]
    common: Common,
    /// The topic
    #[arg(long, value_name = "TOPIC")]
    topic: String,
    /// Its partition [default: by the key]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    /// The key
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    key: Option<String>,
    /// The value; without it the record is a tombstone
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    value: Option<String>,
}

#[derive(Args)]
#[command(group(ArgGroup::new("callee").required(true).args(["host", "named_service"])))]
struct CreateGrpc {
    #[command(flatten)]
    common: Common,
    /// Who is called
    #[arg(long, value_name = "HOST:PORT")]
    host: Option<String>,
    /// Calls the host with TLS
    #[arg(long, conflicts_with = "named_service")]
    tls: bool,
    /// The named service of the project that is called
    #[arg(long, value_name = "NAME")]
    named_service: Option<String>,
    /// The gRPC service, with its package: shop.v1.Orders
    #[arg(long, value_name = "NAME")]
    service: String,
    /// The method of that service
    #[arg(long, value_name = "NAME")]
    method: String,
    /// The message as JSON; the target's reflection says what it is there
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    body: Option<String>,
    /// The message as it is sent, in base64
    #[arg(long, value_name = "BASE64", conflicts_with = "body")]
    body_b64: Option<String>,
    /// How long a call may take, at most 5m
    #[arg(long, value_name = "DURATION", value_parser = length)]
    timeout: Option<Length>,
    /// Asks again after this interval while the answer is FAILED_PRECONDITION, or UNAVAILABLE with RetryInfo
    #[arg(long, value_name = "DURATION", value_parser = length, requires = "rounds", conflicts_with = "deadline")]
    poll: Option<Length>,
    /// How often it asks, at most; the first time counts
    #[arg(long, value_name = "N", requires = "poll", value_parser = at_most::<u32>(spec::ROUNDS_MAX.into()))]
    rounds: Option<u32>,
}

#[derive(Args)]
struct List {
    /// Only those of this project
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
    /// Only those of this group
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Only those with this status
    #[arg(long, value_parser = TaskStatus::ALL.map(TaskStatus::as_str))]
    status: Option<String>,
    /// Only those of this type
    #[arg(long = "type", value_parser = ["http", "kafka", "grpc"])]
    of_type: Option<String>,
    /// Only those due before: RFC 3339, epoch milliseconds, or how long from now, e.g. 2h
    #[arg(long, value_name = "TIME")]
    due_before: Option<Moment>,
    /// At most so many [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    #[command(flatten)]
    to: To,
}

#[derive(Args)]
struct Cancel {
    /// The id of the task
    #[arg(value_name = "ID")]
    id: TaskId,
    /// How long to wait for an instance that is starting, and then for what becomes of it, at most 1m each
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = wait)]
    wait: Duration,
    #[command(flatten)]
    server: ServerArg,
}

/// Whose turn is reported on, and how far it is.
#[derive(Args)]
struct Executor {
    #[command(flatten)]
    one: One,
    /// What came with the turn: x-delay-ticket of the record, or waterclock-ticket of the call [default: the last turn is meant, which
    /// needs the role admin]
    #[arg(long, value_name = "TICKET", allow_hyphen_values = true)]
    ticket: Option<String>,
    /// How far it is; the next turn is told, if this one is lost
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    cursor: Option<String>,
    /// The same for people
    #[arg(long, value_name = "0-100", value_parser = clap::value_parser!(u8).range(0..=100))]
    percent: Option<u8>,
    /// Who says so
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
}

#[derive(Args)]
struct Report {
    #[command(flatten)]
    of: Executor,
    /// What came of it. `failed` is tried again if retries are left, `gone` is not
    #[arg(value_name = "OUTCOME", value_parser = OUTCOMES.map(CallOutcome::as_str))]
    outcome: String,
    /// What went wrong
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    error: Option<String>,
    /// With `failed`: how long to wait before the next turn, at least; at most 1h
    #[arg(long, value_name = "DURATION", value_parser = length)]
    retry_after: Option<Length>,
}

#[derive(Args)]
struct Heartbeat {
    #[command(flatten)]
    of: Executor,
}

/// A name, as it stands in the path of a request: it must name nothing else there.
pub(super) fn segment(text: &str) -> Result<String, String> {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match text.chars().all(is_legal) && !matches!(text, "" | "." | "..") {
        true => Ok(text.to_owned()),
        false => Err("want letters, digits, '.', '_', '-'".to_owned()),
    }
}

/// The name of a project or a service, as the API takes it.
pub(super) fn name(text: &str) -> Result<String, String> {
    match registry::is_name(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("want {}", registry::NAME_WANTED)),
    }
}

/// A number from 0 to this one.
pub(super) fn at_most<T>(max: u64) -> RangedI64ValueParser<T>
where
    T: TryFrom<i64> + Clone + Send + Sync,
{
    RangedI64ValueParser::new().range(0..=i64::try_from(max).unwrap_or(i64::MAX))
}

/// A length of time with its unit. It is sent as it was typed: then an answer has it so, too.
pub(super) fn length(text: &str) -> Result<Length, String> {
    let length = header::duration_with_unit(text).map(|_| Length::Text(text.to_owned()));
    length.ok_or_else(|| "want a length of time with its unit, as in 15m or 1m30s".to_owned())
}

/// A part of a whole.
fn part(text: &str) -> Result<f64, String> {
    let part = text.parse().ok().filter(|part| (0.0..=1.0).contains(part));
    part.ok_or_else(|| "want a number from 0 to 1, as in 0.25".to_owned())
}

fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "want NAME=VALUE".to_owned())
}

/// Who is told how a task ended.
fn told(text: &str) -> Result<ResultTo, String> {
    let to = |name: &str| Some(name.to_owned()).filter(|name| !name.is_empty());
    let none = ResultTo::default();
    let to = match text.split_once('=') {
        Some(("topic", name)) => to(name).map(|topic| ResultTo { topic: Some(topic), ..none }),
        Some(("service", name)) => to(name).map(|name| ResultTo { service: Some(name), ..none }),
        Some(("url", url)) => to(url).map(|url| ResultTo { url: Some(url), ..none }),
        _ => None,
    };
    to.ok_or_else(|| "want topic=NAME, service=NAME or url=URL".to_owned())
}

impl Task {
    pub(super) fn run(self, global: &Global) -> Outcome {
        match self.command {
            Command::Create(Create { of: Type::Http(create) }) => create.run(global),
            Command::Create(Create { of: Type::Kafka(create) }) => create.run(global),
            Command::Create(Create { of: Type::Grpc(create) }) => create.run(global),
            Command::Get(get) => get.run(global),
            Command::History(one) => one.history(global),
            Command::List(list) => list.run(global),
            Command::Cancel(cancel) => cancel.run(global),
            Command::Retry(one) => one.retry(global),
            Command::Report(report) => report.run(global),
            Command::Heartbeat(heartbeat) => heartbeat.run(global),
        }
    }
}

impl CreateHttp {
    fn run(self, global: &Global) -> Outcome {
        self.common.send("http", None, &json!(self.task()), global)
    }

    fn task(&self) -> HttpTask {
        HttpTask {
            base: self.common.base(),
            url: self.url.clone(),
            service: self.service.clone(),
            path: self.path.clone(),
            method: self.method.clone(),
            headers: self.common.headers.iter().cloned().collect(),
            body: self.body.clone(),
            timeout: self.timeout.clone(),
            expect: self.expect.clone(),
            poll: self
                .poll
                .clone()
                .zip(self.rounds)
                .map(|(interval, rounds)| PollInfo { interval, rounds }),
            feedback: self.common.feedback(),
            ..HttpTask::default()
        }
    }
}

impl CreateKafka {
    fn run(self, global: &Global) -> Outcome {
        let key = self.key.as_deref().map(str::as_bytes);
        self.common.send("kafka", key, &json!(self.task()), global)
    }

    fn task(&self) -> KafkaTask {
        KafkaTask {
            base: self.common.base(),
            topic: self.topic.clone(),
            partition: self.partition,
            key: self.key.clone(),
            value: self.value.clone(),
            headers: self.common.headers.iter().cloned().collect(),
            feedback: self.common.feedback(),
            ..KafkaTask::default()
        }
    }
}

impl CreateGrpc {
    fn run(self, global: &Global) -> Outcome {
        self.common.send("grpc", None, &json!(self.task()), global)
    }

    fn task(&self) -> GrpcTask {
        GrpcTask {
            base: self.common.base(),
            host: self.host.clone(),
            tls: self.tls.then_some(true),
            named_service: self.named_service.clone(),
            service: self.service.clone(),
            method: self.method.clone(),
            format: self.body.as_ref().map(|_| "json".to_owned()),
            body: self.body.clone().map(Value::from),
            body_b64: self.body_b64.clone(),
            headers: self.common.headers.iter().cloned().collect(),
            timeout: self.timeout.clone(),
            poll: self
                .poll
                .clone()
                .zip(self.rounds)
                .map(|(interval, rounds)| PollInfo { interval, rounds }),
            feedback: self.common.feedback(),
        }
    }
}

impl Get {
    fn run(self, global: &Global) -> Outcome {
        let (kind, query) = match self.payload {
            // It is searched in Kafka.
            true => (Kind::AllLanes, &[("payload", "1".to_owned())][..]),
            false => (Kind::Look, &[][..]),
        };
        let told = self.one.find(global, kind, query)?;
        show(&told, global)?;
        if self.payload && told["payload"].is_null() {
            let task: TaskView = typed(&told)?;
            output::aside(if task.task_status.is_final() {
                "what it sends is not kept any more: only a task that has failed or expired keeps it once it has ended"
            } else {
                "what it sends was not found: it may be on its way between topics; ask again"
            });
        }
        Ok(Exit::Ok)
    }
}

impl One {
    fn find(
        &self,
        global: &Global,
        kind: Kind<'_>,
        query: &[(&str, String)],
    ) -> Result<Value, Failure> {
        let client = self.to.open(global)?;
        Ok(client.ask(kind, &Method::GET, &format!("v1/tasks/{}", self.id), query, None)?)
    }

    fn history(self, global: &Global) -> Outcome {
        let told = self.find(global, Kind::Look, &[])?;
        let task: TaskView = typed(&told)?;
        if global.json() {
            let lines = task.attempts.iter().fold(String::new(), |mut lines, attempt| {
                let _ = writeln!(lines, "{}", json!(attempt));
                lines
            });
            output::write(lines.as_bytes())?;
        } else if task.attempts.is_empty() {
            output::line(match task.attempts_total {
                0 => "no attempts",
                _ => {
                    "of a task that goes to a topic only the number of its attempts is kept: waterclock task get"
                }
            })?;
        } else {
            output::line(&attempts(&task.attempts))?;
        }
        Ok(Exit::Ok)
    }

    fn retry(self, global: &Global) -> Outcome {
        let client = self.to.open(global)?;
        let path = format!("v1/tasks/{}:retry", self.id);
        show(&client.ask(Kind::Change(None), &Method::POST, &path, &[], Some(&json!({})))?, global)
    }
}

impl Executor {
    fn say(&self, what: &str, body: &Value, global: &Global) -> Result<Value, Failure> {
        let client = self.one.to.open(global)?;
        let path = format!("v1/tasks/{}/{what}", self.one.id);
        Ok(client.ask(Kind::Report, &Method::POST, &path, &[], Some(body))?)
    }
}

impl Report {
    fn body(&self) -> ResultReport {
        let Executor { ticket, cursor, percent, worker, .. } = &self.of;
        ResultReport {
            outcome: self.outcome.clone(),
            ticket: ticket.clone(),
            error: self.error.clone(),
            retry_after: self.retry_after.clone(),
            worker: worker.clone(),
            cursor: cursor.clone(),
            percent: *percent,
        }
    }

    fn run(self, global: &Global) -> Outcome {
        let told = self.of.say("result", &json!(self.body()), global)?;
        let ReportAnswer { outcome } = typed(&told)?;
        match global.json() {
            true => output::line(&told.to_string())?,
            false => output::line(outcome.as_str())?,
        };
        Ok(match outcome {
            ReportOutcome::Finished | ReportOutcome::Retrying | ReportOutcome::Failed => Exit::Ok,
            ReportOutcome::Cancelled => Exit::Negative,
        })
    }
}

impl Heartbeat {
    fn body(&self) -> HeartbeatReport {
        let Executor { ticket, cursor, percent, worker, .. } = &self.of;
        let (ticket, worker, cursor) = (ticket.clone(), worker.clone(), cursor.clone());
        HeartbeatReport { ticket, worker, cursor, percent: *percent }
    }

    fn run(self, global: &Global) -> Outcome {
        let told = self.of.say("heartbeat", &json!(self.body()), global)?;
        let HeartbeatAnswer { next_at } = typed(&told)?;
        match global.json() {
            true => output::line(&told.to_string()),
            false => {
                output::line(&format!("report again by {}", output::time(UnixMillis(next_at))))
            }
        }
    }
}

impl List {
    fn run(self, global: &Global) -> Outcome {
        let client = self.to.open(global)?;
        let filters = [
            ("project", self.project),
            ("group", self.group),
            ("status", self.status),
            ("type", self.of_type),
            ("due_before", self.due_before.map(|at| at.0.to_string())),
        ];
        let filters: Vec<(&str, String)> =
            filters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let pages =
            Pages { path: "v1/tasks", items: "tasks", filters, limit: self.limit, page: PAGE };
        pages.show::<TaskView>(&client, global, rows)
    }
}

impl Cancel {
    fn run(self, global: &Global) -> Outcome {
        let config = global.load(Overrides::default())?;
        let client = self.server.open_within(self.wait, global, &config)?;
        let (path, query) = (format!("v1/tasks/{}", self.id), [("wait", asked(self.wait))]);
        let told = client.ask(Kind::Cancel(self.wait), &Method::DELETE, &path, &query, None)?;
        let CancelAnswer { outcome, .. } = typed(&told)?;
        match global.json() {
            true => output::line(&told.to_string())?,
            false => output::line(told["outcome"].as_str().unwrap_or_default())?,
        };
        if matches!(outcome, CancelOutcome::Pending) && !global.json() {
            output::aside(
                "the cancel is written, and was not decided within the wait: a call of the task may be open, and its end decides. Cancel again to wait longer, or see what became of it with `waterclock task get`. If it stays so, `waterclock doctor` says whether a worker runs",
            );
        }
        Ok(match outcome {
            CancelOutcome::Cancelled | CancelOutcome::Stopped => Exit::Ok,
            CancelOutcome::Pending => Exit::Pending,
            CancelOutcome::Finished | CancelOutcome::Failed | CancelOutcome::Expired => {
                Exit::Negative
            }
        })
    }
}

fn show(told: &Value, global: &Global) -> Outcome {
    match global.json() {
        true => output::line(&told.to_string()),
        false => output::line(&whole(&typed(told)?)),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::engine::task::report;
    use crate::engine::task::request::{self, TaskType};

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: Command,
    }

    fn body(words: &str) -> Value {
        let line = Line::try_parse_from(words.split_whitespace()).expect("arguments");
        match line.command {
            Command::Create(Create { of: Type::Http(create) }) => json!(create.task()),
            Command::Create(Create { of: Type::Grpc(create) }) => json!(create.task()),
            _ => panic!("a create"),
        }
    }

    #[test]
    fn what_the_options_say_is_a_request_that_is_taken() {
        let body = body(
            "x create http --project shop --group orders --in 1m30s --url https://a.example/ --body {} \
             --retries 3 --retry-interval 1500ms --backoff exponential --max-interval 5m --jitter 0.25 --header x-a=b=c --poll 10s --rounds 5 \
             --timeout 5s --expect 2xx --method PUT",
        );
        let read = request::read(TaskType::Http, body.to_string().as_bytes(), 1 << 20);
        let request = read.expect("taken");
        assert_eq!(body["delay"], "1m30s");
        let retry = json!({
            "count": 3, "interval": "1500ms", "backoff": "exponential", "max_interval": "5m", "jitter": 0.25,
        });
        assert_eq!(body["retry"], retry);
        assert_eq!(body["headers"], json!({"x-a": "b=c"}));
        assert!(request.request_id.is_some(), "a create may be repeated");
    }

    #[test]
    fn the_part_of_a_wait_that_chance_may_take_is_a_part() {
        assert_eq!((part("0"), part("0.25"), part("1")), (Ok(0.0), Ok(0.25), Ok(1.0)));
        for wrong in ["", "1.1", "-0.1", "NaN", "inf", "25%"] {
            assert!(part(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_executors_say_is_a_report_that_is_taken() {
        let parsed =
            |words: &str| Line::try_parse_from(words.split_whitespace()).map(|line| line.command);
        let all = "--ticket -T --cursor row:7 --percent 70 --worker w-1";
        let Ok(Command::Report(report)) =
            parsed(&format!("x report 9f2c failed {all} --error no-stock --retry-after 1m"))
        else {
            panic!("a report")
        };
        let read = report::read_result(json!(report.body()).to_string().as_bytes(), 1_000);
        let read = read.expect("taken");
        let result = &read.result;
        assert_eq!((read.ticket.as_deref(), result.outcome), (Some("-T"), CallOutcome::Failed));
        assert_eq!(result.retry_after, Some(crate::engine::Millis(60_000)));
        assert_eq!(result.error.as_deref(), Some("no-stock"));
        let far = (result.cursor.as_deref(), result.percent, result.worker.as_deref());
        assert_eq!(far, (Some("row:7"), Some(70), Some("w-1")));
        let Ok(Command::Heartbeat(beat)) = parsed(&format!("x heartbeat 9f2c {all}")) else {
            panic!("a heartbeat")
        };
        let read = report::read_heartbeat(json!(beat.body()).to_string().as_bytes(), 1_000);
        let result = read.expect("taken").result;
        let far = (result.cursor.as_deref(), result.percent, result.worker.as_deref());
        assert_eq!(far, (Some("row:7"), Some(70), Some("w-1")));
        // Without a ticket: the last turn is meant.
        let Ok(Command::Report(report)) = parsed("x report 9f2c gone") else { panic!("a report") };
        assert_eq!(report.body().ticket, None);
        for wrong in [
            "x report 9f2c --ticket t",
            "x report 9f2c started --ticket t",
            "x report 9f2c finished --ticket t --percent 101",
            "x heartbeat ../x --ticket t",
            "x heartbeat 9f2c --ticket t --error e",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_task_may_have_an_executor_that_reports() {
        let common = "--project p --group g --in 1s --deadline 1h --heartbeat 30s";
        let body = body(&format!("x create http {common} --url http://a.example/"));
        assert_eq!(body["feedback"], json!({"deadline": "1h", "heartbeat": "30s"}));
        assert!(request::read(TaskType::Http, body.to_string().as_bytes(), 1 << 20).is_ok());
        let line = format!("x create kafka {common} --topic orders --value v");
        let line = Line::try_parse_from(line.split_whitespace()).expect("arguments");
        let Command::Create(Create { of: Type::Kafka(create) }) = line.command else {
            panic!("a create")
        };
        assert_eq!(json!(create.task())["feedback"], body["feedback"]);
        let grpc = "--host a.example:1 --service s --method m";
        let of_grpc = self::body(&format!("x create grpc {common} {grpc}"));
        assert_eq!(of_grpc["feedback"], body["feedback"]);
        for more in ["--heartbeat 30s", "--deadline 1h --poll 1s --rounds 3"] {
            for of_type in ["http --url http://a.example/", &format!("grpc {grpc}")] {
                let line = format!("x create {of_type} --project p --group g --in 1s {more}");
                assert!(Line::try_parse_from(line.split_whitespace()).is_err(), "{line}");
            }
        }
    }

    #[test]
    fn somebody_may_be_told_how_a_task_ended() {
        let start = "x create http --project p --group g --in 1s --url http://a.example/";
        for (to, want) in [
            ("topic=orders.done", json!({"topic": "orders.done"})),
            ("service=billing", json!({"service": "billing"})),
            ("url=http://a.example/?a=b", json!({"url": "http://a.example/?a=b"})),
        ] {
            let body = body(&format!("{start} --on-result {to}"));
            assert_eq!(body["on_result"], want);
            assert!(request::read(TaskType::Http, body.to_string().as_bytes(), 1 << 20).is_ok());
        }
        for to in ["orders.done", "topic=", "queue=orders", "http://a.example/"] {
            let line = format!("{start} --on-result {to}");
            assert!(Line::try_parse_from(line.split_whitespace()).is_err(), "{to}");
        }
    }

    #[test]
    fn what_the_options_of_a_grpc_task_say_is_a_request_that_is_taken() {
        let start = "x create grpc --project shop --group orders --in 1m --service shop.v1.Orders --method Expire";
        for (more, want) in [
            (
                "--host a.example:443 --tls --body {\"id\":7} --poll 10s --rounds 5",
                br#"{"id":7}"#.to_vec(),
            ),
            ("--named-service billing --body-b64 CAc= --timeout 5s --header x-a=b", vec![8, 7]),
        ] {
            let body = body(&format!("{start} {more}"));
            let read = request::read(TaskType::Grpc, body.to_string().as_bytes(), 1 << 20);
            assert_eq!(read.expect(more).value, Some(want));
        }
        for wrong in [
            "",
            "--host a:1 --named-service b",
            "--named-service b --tls",
            "--host a:1 --body {} --body-b64 CAc=",
        ] {
            let line = format!("{start} {wrong}");
            assert!(Line::try_parse_from(line.split_whitespace()).is_err(), "{line}");
        }
    }

    #[test]
    fn a_create_says_what_was_there_before_it() {
        let before = |status: &str, attempts: u32| -> TaskView {
            let task = json!({
                "task_id": "a1", "task_type": "http", "task_status": status, "project": "shop", "group": "g",
                "trigger_at": 1_767_225_600_000_u64, "created_at": 1, "turn": 0, "attempts_total": attempts,
                "failures": 0, "rounds": 0, "code": "target_denied",
            });
            serde_json::from_value(task).expect("a task")
        };
        // A day after the one before it.
        let said = |before: Option<&TaskView>| created("a1", 1_767_312_000_000, before);
        assert!(said(None).starts_with("a1  due 2026-01-02T00:00:00"), "{}", said(None));
        for status in ["delay", "ready", "running", "finished", "cancelled", "expired"] {
            let said = said(Some(&before(status, 0)));
            assert!(
                said.starts_with(&format!(
                    "a1  exists already, nothing was created: {status}, due 2026-01-01T"
                )),
                "{said}"
            );
        }
        // Its attempts failed. That of a Kafka task is no turn.
        assert!(said(Some(&before("failed", 1))).contains("exists already"));
        // It was refused when it was created: nobody knows yet whether it is again.
        let again = said(Some(&before("failed", 0)));
        assert!(again.contains("it failed before (target_denied)"), "{again}");
        // A program learns the same.
        let json = |before: Option<&TaskView>| {
            let new = Created { task_id: "a1".to_owned(), trigger_at: 1_767_312_000_000 };
            json!(CreatedOrThere::of(new, before))
        };
        let new = json!({"task_id": "a1", "trigger_at": 1_767_312_000_000_u64});
        assert_eq!((json(None), json(Some(&before("failed", 0)))), (new.clone(), new));
        let there =
            json!({"task_id": "a1", "trigger_at": 1_767_225_600_000_u64, "existed": "cancelled"});
        assert_eq!(json(Some(&before("cancelled", 0))), there);
    }

    #[test]
    fn what_stands_in_a_path_names_nothing_else_there() {
        for legal in ["9f2c53b1f4e04dd9a4a3d4a0c9cf4c11", "shop", "orders.expire", "a_b-c", "..."] {
            assert_eq!(segment(legal).as_deref(), Ok(legal));
        }
        for wrong in
            ["", ".", "..", "../tasks/9f2c", "shop/services/x", "shop:pause", "a?b", "a%2fb", "a b"]
        {
            assert!(segment(wrong).is_err(), "{wrong}");
            assert!(Line::try_parse_from(["x", "get", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_command_takes_the_id_of_a_task_of_a_schedule() {
        let schedule = TaskId::schedule("shop", "s1").expect("names");
        for id in [schedule.occurrence(UnixMillis(1_767_312_000_000)), schedule.triggered([7; 8])] {
            for command in [
                "get {id}",
                "history {id}",
                "cancel {id}",
                "retry {id}",
                "report {id} finished",
                "heartbeat {id}",
            ] {
                let line = format!("x {}", command.replace("{id}", id.as_str()));
                assert!(Line::try_parse_from(line.split_whitespace()).is_ok(), "{line}");
            }
        }
    }

    #[test]
    fn a_length_of_time_has_a_unit_and_a_task_one_time() {
        assert_eq!(length("15m"), Ok(Length::Text("15m".to_owned())));
        assert_eq!(length("500ms"), Ok(Length::Text("500ms".to_owned())));
        for wrong in ["15", "", "soon"] {
            assert!(length(wrong).is_err(), "{wrong}");
        }
        let create = "x create http --project p --group g --url http://a.example/";
        for more in
            ["", " --in 1s --at 2030-01-01T00:00:00Z", " --in 1s --path /x", " --in 1s --poll 1s"]
        {
            let line = format!("{create}{more}");
            assert!(Line::try_parse_from(line.split_whitespace()).is_err(), "{line}");
        }
    }
}
