//! What is to be created.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::super::ask::millis;
use super::Feedback;
use super::length::length;

/// When an attempt that failed is made again.
///
/// ```
/// use std::time::Duration;
/// use waterclock_client::tasks::Retry;
///
/// let retry = Retry::times(5).interval(Duration::from_secs(10)).exponential().jitter(0.2);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Retry(Map<String, Value>);

impl Retry {
    /// So many attempts after the first one, at most 1,000. Between two of them 5 s, unless [`interval`](Self::interval) says another
    /// time.
    pub fn times(count: u32) -> Self {
        Self([("count".to_owned(), json!(count))].into_iter().collect())
    }

    /// The wait after a failure.
    pub fn interval(self, wait: Duration) -> Self {
        self.with("interval", length(wait))
    }

    /// The wait doubles with each failure.
    pub fn exponential(self) -> Self {
        self.with("backoff", json!("exponential"))
    }

    /// The longest wait; 1 h if nothing is said.
    pub fn max_interval(self, wait: Duration) -> Self {
        self.with("max_interval", length(wait))
    }

    /// The part of a wait that chance may take away, from 0 to 1.
    pub fn jitter(self, part: f64) -> Self {
        self.with("jitter", json!(part))
    }

    fn with(mut self, name: &str, value: Value) -> Self {
        self.0.insert(name.to_owned(), value);
        self
    }
}

/// Who is told how a task ended, by a task of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OnResult {
    /// A record goes to this topic. Its key is the id of the task.
    Topic(String),
    /// The address of this service of the project gets a POST.
    Service(String),
    /// This URL gets a POST.
    Url(String),
}

/// A task of any type.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum NewTask {
    /// An HTTP call.
    Http(HttpTask),
    /// A call over gRPC.
    Grpc(GrpcTask),
    /// A record for a topic.
    Kafka(KafkaTask),
}

impl From<&Self> for NewTask {
    fn from(task: &Self) -> Self {
        task.clone()
    }
}

impl NewTask {
    /// The word for its type, which is the end of the path that creates it.
    pub(super) fn task_type(&self) -> &'static str {
        match self {
            Self::Http(_) => "http",
            Self::Grpc(_) => "grpc",
            Self::Kafka(_) => "kafka",
        }
    }

    /// Whether it may be sent twice and is one task.
    pub(super) fn has_request_id(&self) -> bool {
        self.fields().0.contains_key(REQUEST_ID)
    }

    /// The request for it alone.
    pub(super) fn body(&self) -> Value {
        Value::Object(self.fields().0.clone())
    }

    fn fields(&self) -> &Fields {
        match self {
            Self::Http(HttpTask(fields))
            | Self::Grpc(GrpcTask(fields))
            | Self::Kafka(KafkaTask(fields)) => fields,
        }
    }

    /// The same as one of a batch.
    pub(super) fn of_batch(&self) -> Value {
        let mut body = self.body();
        body["type"] = json!(self.task_type());
        body
    }
}

const REQUEST_ID: &str = "request_id";
const DELAY: &str = "delay";
const TRIGGER_AT: &str = "trigger_at";

/// A request as it is sent, without its type.
#[derive(Clone, Debug, PartialEq)]
struct Fields(Map<String, Value>);

impl Fields {
    fn new(project: String, group: String) -> Self {
        let fields =
            [("project", json!(project)), ("group", json!(group)), (DELAY, length(Duration::ZERO))];
        Self(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    fn put(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// Bytes as text, or in base64 where they are none.
    fn put_bytes(&mut self, name: &str, bytes: Vec<u8>) {
        let in_base64 = format!("{name}_b64");
        match String::from_utf8(bytes) {
            Ok(text) => {
                self.0.remove(&in_base64);
                self.put(name, Value::String(text));
            }
            Err(error) => {
                self.0.remove(name);
                self.put(&in_base64, Value::String(STANDARD.encode(error.as_bytes())));
            }
        }
    }

    fn push_header(&mut self, name: String, value: String) {
        let headers = self.0.entry("headers").or_insert_with(|| json!([]));
        if let Value::Array(headers) = headers {
            headers.push(json!([name, value]));
        }
    }
}

/// What all types have.
macro_rules! common {
    ($task:ident, $variant:ident) => {
        impl From<$task> for NewTask {
            fn from(task: $task) -> Self {
                Self::$variant(task)
            }
        }

        impl From<&$task> for NewTask {
            fn from(task: &$task) -> Self {
                Self::$variant(task.clone())
            }
        }

        impl $task {
            /// Due so long after an instance has taken the request, rounded up to a millisecond. Takes the place of an earlier
            /// [`at`](Self::at). A task for which nothing is said is due at once.
            pub fn after(mut self, delay: Duration) -> Self {
                self.0.0.remove(TRIGGER_AT);
                self.0.put(DELAY, length(delay));
                self
            }

            /// Due at this time, rounded up to a millisecond; at once if that is over. Takes the place of an earlier
            /// [`after`](Self::after).
            pub fn at(mut self, due: SystemTime) -> Self {
                self.0.0.remove(DELAY);
                self.0.put(TRIGGER_AT, json!(millis(due)));
                self
            }

            /// Due up to so much later, at most 1 h, to spread tasks: its id says how much.
            pub fn window(mut self, window: Duration) -> Self {
                self.0.put("window", length(window));
                self
            }

            /// Not begun any more from then on.
            pub fn expires_at(mut self, end: SystemTime) -> Self {
                self.0.put("expires_at", json!(millis(end)));
                self
            }

            /// Your name for this request, 1 to 128 bytes: the same project and request id are the same task, which is created
            /// once. Give each task one: only then may a create be repeated.
            pub fn request_id(mut self, id: impl Into<String>) -> Self {
                self.0.put(REQUEST_ID, Value::String(id.into()));
                self
            }

            /// When an attempt that failed is made again. Without this: as the service says, else never.
            pub fn retry(mut self, retry: Retry) -> Self {
                self.0.put("retry", Value::Object(retry.0));
                self
            }

            /// It goes on after its record was delivered, or its call was answered with a success, until an executor reports: see
            /// [`Turn`](super::Turn). A task that calls has either this or a poll.
            pub fn feedback(mut self, feedback: Feedback) -> Self {
                let mut fields = json!({ "deadline": length(feedback.deadline) });
                if let Some(heartbeat) = feedback.heartbeat {
                    fields["heartbeat"] = length(heartbeat);
                }
                self.0.put("feedback", fields);
                self
            }

            /// Who is told how it ended: once it is finished, or has failed.
            pub fn on_result(mut self, to: OnResult) -> Self {
                let (kind, name) = match to {
                    OnResult::Topic(topic) => ("topic", topic),
                    OnResult::Service(service) => ("service", service),
                    OnResult::Url(url) => ("url", url),
                };
                self.0.put("on_result", json!({ kind: name }));
                self
            }
        }
    };
}

/// What tasks that call have.
macro_rules! calls {
    ($task:ident, $not_yet:literal) => {
        impl $task {
            /// How long a call may take, at most 5 min.
            pub fn timeout(mut self, most: Duration) -> Self {
                self.0.put("timeout", length(most));
                self
            }

            #[doc = concat!("Asks again after the same interval, from 1 s to 1 d, while the answer is ", $not_yet, ": so many rounds at most.")]
            pub fn poll(mut self, interval: Duration, rounds: u32) -> Self {
                self.0.put("poll", json!({ "interval": length(interval), "rounds": rounds }));
                self
            }
        }
    };
}

/// A task that makes an HTTP call.
///
/// ```
/// use std::time::Duration;
/// use waterclock_client::tasks::{HttpTask, Retry};
///
/// let expire = HttpTask::to_url("shop", "orders", "https://shop.example/orders/17/expire")
///     .after(Duration::from_secs(15 * 60))
///     .header("content-type", "application/json")
///     .body(r#"{"order": 17}"#)
///     .retry(Retry::times(3))
///     .request_id("expire-17");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "nothing is created before it is handed to a client"]
pub struct HttpTask(Fields);

common!(HttpTask, Http);
calls!(HttpTask, "202 or 425");

impl HttpTask {
    /// One of this project and group that calls this URL, by POST.
    pub fn to_url(
        project: impl Into<String>,
        group: impl Into<String>,
        url: impl Into<String>,
    ) -> Self {
        let mut fields = Fields::new(project.into(), group.into());
        fields.put("url", Value::String(url.into()));
        Self(fields)
    }

    /// One of this project and group that calls this service of the project, by POST. Say behind which [`path`](Self::path).
    pub fn to_service(
        project: impl Into<String>,
        group: impl Into<String>,
        service: impl Into<String>,
    ) -> Self {
        let mut fields = Fields::new(project.into(), group.into());
        fields.put("service", Value::String(service.into()));
        Self(fields)
    }

    /// What follows the address of the service; begins with `/`.
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.0.put("path", Value::String(path.into()));
        self
    }

    /// GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS.
    pub fn method(mut self, method: impl Into<String>) -> Self {
        self.0.put("method", Value::String(method.into()));
        self
    }

    /// One more header of the call.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.push_header(name.into(), value.into());
        self
    }

    /// The body, byte for byte, at most 1 MiB. waterclock adds no `content-type`.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.0.put_bytes("body", body.into());
        self
    }

    /// Which statuses mean that it is done: `2xx` if nothing is said.
    pub fn expect(mut self, statuses: impl Into<String>) -> Self {
        self.0.put("expect", Value::String(statuses.into()));
        self
    }
}

/// A task that calls a method of a gRPC service, with one message each way.
///
/// ```
/// use std::time::Duration;
/// use waterclock_client::tasks::{GrpcTask, Retry};
///
/// let expire = GrpcTask::to_host("shop", "orders", "orders.example:50051", "shop.v1.Orders", "Expire")
///     .tls()
///     .json(r#"{"order": 17}"#)
///     .after(Duration::from_secs(15 * 60))
///     .retry(Retry::times(3))
///     .request_id("expire-rpc-17");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "nothing is created before it is handed to a client"]
pub struct GrpcTask(Fields);

common!(GrpcTask, Grpc);
calls!(GrpcTask, "`FAILED_PRECONDITION`");

impl GrpcTask {
    /// One of this project and group that calls a method of the gRPC service of this name, with its package, at `host:port`: over
    /// plain HTTP/2, unless [`tls`](Self::tls) is said.
    pub fn to_host(
        project: impl Into<String>,
        group: impl Into<String>,
        host: impl Into<String>,
        service: impl Into<String>,
        method: impl Into<String>,
    ) -> Self {
        Self::new(
            project.into(),
            group.into(),
            ("host", host.into()),
            service.into(),
            method.into(),
        )
    }

    /// The same at the address of a service of the project, which was put with the protocol `grpc`.
    pub fn to_named_service(
        project: impl Into<String>,
        group: impl Into<String>,
        named: impl Into<String>,
        service: impl Into<String>,
        method: impl Into<String>,
    ) -> Self {
        let named = ("named_service", named.into());
        Self::new(project.into(), group.into(), named, service.into(), method.into())
    }

    fn new(
        project: String,
        group: String,
        (at, address): (&str, String),
        service: String,
        method: String,
    ) -> Self {
        let mut fields = Fields::new(project, group);
        for (name, value) in [(at, address), ("service", service), ("method", method)] {
            fields.put(name, Value::String(value));
        }
        Self(fields)
    }

    /// Over TLS. The address of a named service says by itself whether it has TLS.
    pub fn tls(mut self) -> Self {
        self.0.put("tls", json!(true));
        self
    }

    /// The message, as it is sent. Takes the place of an earlier [`json`](Self::json). Without either, the message is empty.
    pub fn message(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.0.put("format", json!("protobuf"));
        self.0.0.remove("body");
        self.0.put("body_b64", Value::String(STANDARD.encode(bytes.into())));
        self
    }

    /// The message in JSON: a worker encodes it by the reflection of the target. Takes the place of an earlier
    /// [`message`](Self::message).
    pub fn json(mut self, json: impl Into<String>) -> Self {
        self.0.put("format", json!("json"));
        self.0.0.remove("body_b64");
        self.0.put("body", Value::String(json.into()));
        self
    }

    /// One more entry of the metadata. The value of a name that ends in `-bin` is in base64.
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.push_header(name.into(), value.into());
        self
    }
}

/// A task that writes a record to a topic.
///
/// ```
/// use std::time::Duration;
/// use waterclock_client::tasks::{Feedback, KafkaTask, Retry};
///
/// let import = KafkaTask::to("shop", "imports", "imports")
///     .value("file-7")
///     .feedback(Feedback::within(Duration::from_secs(3_600)).heartbeat(Duration::from_secs(30)))
///     .retry(Retry::times(3).interval(Duration::from_secs(60)))
///     .request_id("import-7");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "nothing is created before it is handed to a client"]
pub struct KafkaTask(Fields);

common!(KafkaTask, Kafka);

impl KafkaTask {
    /// One of this project and group for this topic: null key, null value, no headers.
    pub fn to(
        project: impl Into<String>,
        group: impl Into<String>,
        topic: impl Into<String>,
    ) -> Self {
        let mut fields = Fields::new(project.into(), group.into());
        fields.put("topic", Value::String(topic.into()));
        Self(fields)
    }

    /// Its key, at most 1,024 bytes. It decides the partition, and belongs to the id: the same request id with another key is
    /// another task.
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.0.put_bytes("key", key.into());
        self
    }

    /// Its value, byte for byte, at most 1 MiB.
    pub fn value(mut self, value: impl Into<Vec<u8>>) -> Self {
        self.0.put_bytes("value", value.into());
        self
    }

    /// One more header of the record. Names that begin with `x-delay` are the contract's.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.push_header(name.into(), value.into());
        self
    }

    /// The partition, in place of the one of the key.
    pub fn partition(mut self, partition: u32) -> Self {
        self.0.put("partition", json!(partition));
        self
    }
}
