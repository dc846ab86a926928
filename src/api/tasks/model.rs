//! Tasks as programs see them in JSON: what they send, and what they get. The command line uses the same types.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::engine::task::id::TaskId;
use crate::engine::task::request::Header;
use crate::engine::task::spec::{OnResult, Spec};
use crate::engine::{Lane, Millis, UnixMillis};

/// A length of time: seconds, or a text with units such as `1m30s` or `500ms`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Length {
    /// Whole seconds.
    Seconds(u64),
    /// With units.
    Text(String),
}

impl From<Millis> for Length {
    fn from(length: Millis) -> Self {
        if length.0.is_multiple_of(1_000) {
            Self::Seconds(length.0 / 1_000)
        } else {
            Self::Text(length.to_string())
        }
    }
}

/// When an attempt that failed is made again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RetryInfo {
    /// Attempts after the first one, at most 1,000; 0 if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// The wait after the first failure; 5 s if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Length>,
    /// `fixed`: the same wait every time. `exponential`: doubled each time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<String>,
    /// The longest wait; 1 h if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_interval: Option<Length>,
    /// The part of a wait that chance may take away, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
}

/// Asks again after the same interval while the answer is 202 or 425.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PollInfo {
    /// Between two rounds, from 1 s to 1 d.
    pub interval: Length,
    /// How many rounds at most, from 1 to 100,000.
    pub rounds: u32,
}

/// By when the executor of a task has to report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FeedbackInfo {
    /// So long after it was handed over, or its call was answered, a turn has failed of which nothing was heard: from 1 s to 30 d.
    pub deadline: Length,
    /// From the first heartbeat on, the same without another one: from 2 s, with more than 64 KiB to send from 30 s, to `deadline`;
    /// `deadline` if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Length>,
}

/// Who is told how a task ended, by a task of its own: exactly one of the three.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResultTo {
    /// A topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// A named service of the project: its address is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// A URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

impl From<&OnResult> for ResultTo {
    fn from(to: &OnResult) -> Self {
        match to {
            OnResult::Topic(topic) => Self { topic: Some(topic.clone()), ..Self::default() },
            OnResult::Service(name) => Self { service: Some(name.clone()), ..Self::default() },
            OnResult::Url(url) => Self { url: Some(url.to_string()), ..Self::default() },
        }
    }
}

/// What every request for a task has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskBase {
    /// The project: 1 to 64 of a-z 0-9 . _ -
    pub project: String,
    /// A word for lists, such as the kind of the task: 1 to 64 of a-z 0-9 . _ -
    pub group: String,
    /// When it is due, in epoch milliseconds; at once if that is over. Exactly one of this and `delay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger_at: Option<u64>,
    /// How long after the request it is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Length>,
    /// It is due up to so much later, at most 1h, to spread tasks: its id says how much. If nothing is said, its project says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Length>,
    /// It is not begun any more from then on, in epoch milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
    /// 1 to 128 bytes. The same project and request id are the same task, which is created once. The header `Idempotency-Key` says the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// When an attempt that failed is made again; else the policy of the service, else never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryInfo>,
    /// Who is told how it ended: by a record for a topic, or by a POST.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_result: Option<ResultTo>,
}

/// A request for an HTTP call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HttpTask {
    /// What every task has.
    #[serde(flatten)]
    pub base: TaskBase,
    /// Who is called: http or https, without user information. Exactly one of this and `service`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A named service of the project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// What follows the service's address; begins with `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS; POST if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Headers of the call. A list of [name, value] pairs is taken, too.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The body as text, at most 1 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The body in base64, in the place of `body`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_b64: Option<String>,
    /// How long a call may take, at most 5 min; 10 s if neither the task nor the service says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Length>,
    /// Which statuses mean that the task is done: `2xx` if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expect: Option<String>,
    /// Asks again until the thing has happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll: Option<PollInfo>,
    /// A call that succeeds hands the task over: it goes on until an executor reports. Not beside `poll`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feedback: Option<FeedbackInfo>,
}

/// A request for a record in a topic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KafkaTask {
    /// What every task has.
    #[serde(flatten)]
    pub base: TaskBase,
    /// The topic.
    pub topic: String,
    /// Its partition; by the key if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    /// The key as text, at most 1,024 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The key in base64, in the place of `key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_b64: Option<String>,
    /// The value as text, at most 1 MiB; none is a tombstone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The value in base64, in the place of `value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_b64: Option<String>,
    /// Headers of the record. A list of [name, value] pairs is taken, too.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The task goes on after its record was delivered, until an executor reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feedback: Option<FeedbackInfo>,
}

/// A request for a call over gRPC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GrpcTask {
    /// What every task has.
    #[serde(flatten)]
    pub base: TaskBase,
    /// Who is called: host and port. Exactly one of this and `named_service`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Whether that host is called with TLS; plain HTTP/2 if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<bool>,
    /// A named service of the project, with the protocol `grpc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub named_service: Option<String>,
    /// The gRPC service: a name, or a package and a name, as in `shop.v1.Orders`.
    pub service: String,
    /// The method of that service; one message each way.
    pub method: String,
    /// What the body is: `protobuf` or `json`; protobuf if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// With the format `json`: the message, a JSON object, or the same as text. Without it the message is `{}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<serde_json::Value>,
    /// The message in base64, at most 1 MiB of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_b64: Option<String>,
    /// Metadata of the call. A list of [name, value] pairs is taken, too. The value of a name that ends in `-bin` is base64.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// How long a call may take, at most 5 min; 10 s if neither the task nor the named service says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Length>,
    /// Asks again until the thing has happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll: Option<PollInfo>,
    /// The task goes on after its call was answered with OK, until an executor reports. Not beside `poll`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feedback: Option<FeedbackInfo>,
}

/// A request for one task, in a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum AnyTask {
    /// An HTTP call.
    Http(HttpTask),
    /// A record in a topic.
    Kafka(KafkaTask),
    /// A call over gRPC.
    Grpc(GrpcTask),
}

/// A batch of 1 to 1,000 requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskBatch {
    /// Each with its `type`.
    pub tasks: Vec<AnyTask>,
}

/// What became of a request for a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Created {
    /// The id; the same for the same project and request id.
    pub task_id: String,
    /// When it is due, in epoch milliseconds. Where there was such a task already, that task keeps its own time.
    pub trigger_at: u64,
}

/// What became of one request of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreatedEach {
    /// The status that it would have had alone.
    pub status: u16,
    /// As [`Created::task_id`], if it was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// As [`Created::trigger_at`], if it was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger_at: Option<u64>,
    /// Why it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Problem>)]
    pub problem: Option<serde_json::Value>,
}

/// What became of a batch, in its order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreatedBatch {
    /// One for each request.
    pub tasks: Vec<CreatedEach>,
}

/// A problem as of RFC 9457.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// A URN that ends with the code.
    #[serde(rename = "type")]
    pub of_type: String,
    /// What a problem of this type is.
    pub title: String,
    /// The status of the answer.
    pub status: u16,
    /// The word for programs.
    pub code: String,
    /// What it is here.
    pub detail: String,
    /// Which part of the request is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Every field that is wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<WrongField>,
    /// After how many seconds the request may be sent again, if that helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u32>,
}

/// A field that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WrongField {
    /// Where it stands: `retry.count`, `headers[2][0]`; `request`: all of it.
    pub at: String,
    /// What is wrong with it, and what is wanted.
    pub detail: String,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TaskStatus {
    /// It waits for its time: the first one, a retry, or a polling round.
    Delay,
    /// It is due, and waits for a worker or for what `waits_for` names.
    Ready,
    /// Its call is open, or its executor is to report.
    Running,
    /// It is done.
    Finished,
    /// It failed, and is not tried again.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// Its time was over before it began.
    Expired,
}

impl TaskStatus {
    /// Every status.
    pub const ALL: [Self; 7] = [
        Self::Delay,
        Self::Ready,
        Self::Running,
        Self::Finished,
        Self::Failed,
        Self::Cancelled,
        Self::Expired,
    ];

    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }

    /// Whether nothing follows.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Cancelled | Self::Expired)
    }
}

/// Why a task that is due has not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WaitsFor {
    /// Its project, its service or its topic is paused; `paused_by` says which.
    Paused,
    /// As many calls as may be are open or have begun; or its topic has a rate.
    Limit,
    /// The other side failed too often; calls begin again soon.
    Breaker,
    /// It was given to the workers, and none has begun. `waterclock doctor` says whether there is any.
    Worker,
}

/// What keeps a task from being called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PausedBy {
    /// Its project is paused.
    Project,
    /// Its service is paused.
    Service,
    /// Its topic is paused.
    Topic,
}

/// A turn in which a call was made and ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Attempt {
    /// Which turn, from 1. 0 if the record of a task could not go to its topic.
    pub turn: u32,
    /// When the call began, in epoch milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    /// The status that the other side answered with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// `finished`, `failed`, `gone`, `not_yet` or `interrupted`; `started`: its executor has given a sign, and works.
    pub outcome: String,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Who made the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// How the answer begins, at most 1 KiB of it, if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// The same in base64, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_b64: Option<String>,
    /// How far its executor said that it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// The same for people, from 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
}

/// What came of a turn of a task with feedback, as its executor says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResultReport {
    /// `finished`; `failed`: it is to be tried again, if retries are left; `gone`: it is not.
    pub outcome: String,
    /// `x-delay-ticket` of the record, or `waterclock-ticket` of the call. Without it the last turn is meant: only the role `admin`
    /// may say that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ticket: Option<String>,
    /// What went wrong: one line, at most 200 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// With `failed`: how long to wait before the next turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Length>,
    /// Who says so: one line, at most 255 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// How far it came: one line, at most 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// The same for people, from 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
}

/// A sign that the executor of a turn is at work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatReport {
    /// `x-delay-ticket` of the record, or `waterclock-ticket` of the call. Without it the last turn is meant: only the role `admin`
    /// may say that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ticket: Option<String>,
    /// Who says so: one line, at most 255 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// How far it is: one line, at most 256 bytes. The next turn is told, if this one is lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// The same for people, from 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
}

/// What became of a task by a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReportOutcome {
    /// It is finished.
    Finished,
    /// It waits for its next turn.
    Retrying,
    /// It has failed, and is not tried again.
    Failed,
    /// It was cancelled before.
    Cancelled,
}

impl ReportOutcome {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Retrying => "retrying",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The answer to a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReportAnswer {
    /// What became of the task.
    pub outcome: ReportOutcome,
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatAnswer {
    /// By when the next heartbeat or the result has to be there, in epoch milliseconds.
    pub next_at: u64,
}

/// A task as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskView {
    /// Its id.
    pub task_id: String,
    /// `http`, `kafka` or `grpc`.
    pub task_type: String,
    /// Where it stands.
    pub task_status: TaskStatus,
    /// What a cancel of it is answered with once it was cancelled: `cancelled` if no call ever began, else `stopped`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<CancelOutcome>,
    /// When it was to be due first, in epoch milliseconds. A retry by hand of a task that was never dispatched sets it.
    pub trigger_at: u64,
    /// For which nominal time it is, in epoch milliseconds, of a task of a schedule and of a shard of its run. Absent of one that was asked
    /// for by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nominal_at: Option<u64>,
    /// When it is not begun any more, in epoch milliseconds, if it was created with such a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
    /// Its project.
    pub project: String,
    /// Its group.
    pub group: String,
    /// How it calls: POST, say; over gRPC the method of its `service`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The URL that it calls, if it names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The service of its project that it calls, if it names one; of a task of type `grpc` the service of gRPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The service of its project that a task of type `grpc` calls, if it names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named_service: Option<String>,
    /// Host and port that a task of type `grpc` calls, if it names them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Whether that host is called with TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<bool>,
    /// What the body of a task of type `grpc` is: `protobuf` or `json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// What follows the address of that service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// How long a call may take, if the task says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Length>,
    /// Which statuses mean that it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<String>,
    /// It asks again until the thing has happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll: Option<PollInfo>,
    /// Its executor reports what comes of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<FeedbackInfo>,
    /// Who is told how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_result: Option<ResultTo>,
    /// The id of the task by which that is told, once it is finished or has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_up: Option<String>,
    /// Headers of its calls, as [name, value].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// The topic that its record goes to, of a task of type `kafka`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// The partition, if the task says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    /// The request id that it was created with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// When it was created, or brought back by a retry by hand, in epoch milliseconds.
    pub created_at: u64,
    /// When attempts are made again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryInfo>,
    /// How often it was dispatched.
    pub turn: u32,
    /// Attempts that were made, those that are not listed any more, too. A polling round is no attempt.
    pub attempts_total: u32,
    /// Failures in a row.
    pub failures: u32,
    /// Polling rounds that were made.
    pub rounds: u32,
    /// Turns in a row of which a worker was lost, and that may have called.
    #[serde(default)]
    pub interruptions: u32,
    /// The last attempts, the oldest first; at most 32. Empty in lists.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
    /// Somebody has cancelled it, and that is not decided yet: a call may be open.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancelling: bool,
    /// When waterclock acts on it again, in epoch milliseconds; absent once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_at: Option<u64>,
    /// Why it has not begun though it is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<WaitsFor>,
    /// What is paused, if it waits for that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paused_by: Vec<PausedBy>,
    /// When it ended, in epoch milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
    /// Why it failed: the code of its dead letter. `task_failed`: its attempts failed, and `last` says why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Attempt>,
    /// How far its executors said that they came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// What it sends; only where that was asked for, and as long as it stands anywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Payload>,
}

/// What a task sends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Payload {
    /// The body of a call, or the value of a record, if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The same in base64, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_b64: Option<String>,
    /// The key of a record, if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The same in base64, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_b64: Option<String>,
    /// The headers of a record, in their order. Those of a call are not shown: they stand in the specification.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<PayloadHeader>,
}

/// A header of a record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PayloadHeader {
    /// Its name.
    pub name: String,
    /// Its value, if it has one and that is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The same in base64, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_b64: Option<String>,
}

/// Tasks in the order of their due times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskPage {
    /// May be fewer than `limit` though there are more.
    pub tasks: Vec<TaskView>,
    /// The `page=` of what follows; null: there is no more.
    pub next: Option<String>,
}

/// What became of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CancelOutcome {
    /// No call ever began, and none will.
    Cancelled,
    /// Calls were made, or may have been; none follows.
    Stopped,
    /// Too late: it is done.
    Finished,
    /// Too late: it failed, and is not tried again.
    Failed,
    /// Too late: its time was over before it began.
    Expired,
    /// Not decided within the wait.
    Pending,
}

/// The answer to a cancel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CancelAnswer {
    /// The id.
    pub task_id: String,
    /// What became of it.
    pub outcome: CancelOutcome,
    /// With `pending`: the path to GET what became of it from (`outcome`), or to DELETE again and wait longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub again: Option<String>,
}

/// Selects tasks. A field that is not set matches any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFilter {
    /// Of one of these projects; `None`: of any.
    pub projects: Option<BTreeSet<String>>,
    /// Of this group.
    pub group: Option<String>,
    /// With this status.
    pub status: Option<TaskStatus>,
    /// Of this type: `http`, `kafka` or `grpc`.
    pub task_type: Option<String>,
    /// Due earlier.
    pub due_before: Option<UnixMillis>,
    /// Behind the page that ended with this; it is as [`TaskPage::next`] had it.
    pub page: Option<String>,
    /// At most so many: 1 to 1,000.
    pub limit: usize,
}

/// A task that is to be created: the desk that takes it seals and writes the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The id. The same request again has the same id.
    pub id: TaskId,
    /// The lane of the id.
    pub lane: Lane,
    /// When the request came, by the brokers' time.
    pub created: UnixMillis,
    /// When it is due; at once if that is over.
    pub due: UnixMillis,
    /// It is not begun any more from then on.
    pub expires: Option<UnixMillis>,
    /// What is to be done.
    pub spec: Spec,
    /// What the caller named the request.
    pub request_id: Option<String>,
    /// The key of the record; Kafka tasks only.
    pub key: Option<Vec<u8>>,
    /// The body of the call, or the value of the record.
    pub value: Option<Vec<u8>>,
    /// Headers of the record; Kafka tasks only.
    pub headers: Vec<Header>,
}
