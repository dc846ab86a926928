//! Projects and services as programs see them in JSON. The command line uses the same types.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::tasks::model::{Length, RetryInfo};

/// What a project may do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProjectSettings {
    /// None of its tasks is dispatched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Open calls at once, from 1 to 10,000; 256 if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Calls that may begin per second; any number if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Calls that may begin at once; what comes in a second if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Tasks that may be created per second; any number if nothing is said. Each instance takes its share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_rate: Option<f64>,
    /// Tasks that may be created at once; what comes in a second if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_burst: Option<u32>,
    /// Pending tasks that it may have; any number if nothing is said. The API counts every 5 s, so some more may be created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_pending: Option<u64>,
    /// How far ahead its tasks may be when they are created, from 1s to the `max-delay` of the lanes; so far if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_delay: Option<Length>,
    /// How many bytes the body of a call or the value of a record may have, from 0 to 1,048,576; so many if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_body: Option<u32>,
    /// Its tasks are spread over so long a time behind what was asked for, up to 1h; they are not if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Length>,
    /// Topics that its Kafka tasks may go to, as regular expressions for whole names; all that are allowed if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<Vec<String>>,
    /// Hosts that its tasks may call, by URLs of their own or by services: names, IP addresses, or `*.` and a name for all names
    /// below it; all that are allowed if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
    /// How long its tasks are remembered after their end, from 1h to 400d; 7d if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<Length>,
}

/// Where a service is, and what it may be sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServiceSettings {
    /// The URL that the paths of tasks are put behind.
    pub address: String,
    /// `http` or `grpc`. Both may have TLS: the address says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// None of its tasks is dispatched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Open calls at once, from 1 to 10,000; 64 if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Calls that may begin per second; any number if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Calls that may begin at once; what comes in a second if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// How long a call may take, at most 5m; 10s if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Length>,
    /// When an attempt that failed is made again, where the task does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryInfo>,
    /// The name of the secret that calls are signed with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The name of the secret that is sent as bearer token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bearer: Option<String>,
    /// The name of the secret with the client certificate that its calls show. The address must be `https://`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<String>,
}

/// A project as it is now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProjectView {
    /// Its name.
    pub project: String,
    /// Counts its changes; 0: it was never put, and has the defaults.
    pub revision: u64,
    /// What it may do.
    #[serde(flatten)]
    pub settings: ProjectSettings,
    /// Its services by name.
    pub services: BTreeMap<String, ServiceView>,
}

/// A service as it is now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServiceView {
    /// Counts its changes.
    pub revision: u64,
    /// Where it is, and what it may be sent.
    #[serde(flatten)]
    pub settings: ServiceSettings,
}

/// A project in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProjectRow {
    /// Its name.
    pub project: String,
    /// Counts its changes; 0: only its services were put.
    pub revision: u64,
    /// None of its tasks is dispatched.
    pub paused: bool,
    /// Open calls at once.
    pub concurrency: u32,
    /// The names of its services.
    pub services: Vec<String>,
}

/// All projects that a caller may know of, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProjectList {
    /// Those of which something was put.
    pub projects: Vec<ProjectRow>,
}

/// Tasks of a project that have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PendingTasks {
    /// All of them.
    pub total: u64,
    /// They wait for their time. One that falls due counts here until the minute is over, unless a worker has it.
    pub delay: u64,
    /// They are due, and their calls have not begun.
    pub ready: u64,
    /// Those among the ready ones that no worker has, because of a limit or a pause. They fell due in a minute that is over.
    pub overdue: u64,
    /// Their calls are open, as far as that is known: for 200 ms at least.
    pub running: u64,
}

/// Tasks of a project that have ended, as long as its history has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndedTasks {
    /// They are done.
    pub finished: u64,
    /// They failed.
    pub failed: u64,
    /// Somebody cancelled them.
    pub cancelled: u64,
    /// Their time was over before they began.
    pub expired: u64,
}

/// Creates that the instance which answers has refused since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedCreates {
    /// With 429, `over_create_rate`.
    pub over_create_rate: u64,
    /// With 429, `over_pending`.
    pub over_pending: u64,
}

/// How many tasks a project has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProjectStats {
    /// Its name.
    pub project: String,
    /// Those that have not ended.
    pub pending: PendingTasks,
    /// Those that have.
    pub ended: EndedTasks,
    /// Creates that were refused here.
    pub refused: RefusedCreates,
}

/// What may go to a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TargetSettings {
    /// No record goes there, neither of timers nor of tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Records that may go there per second, of timers and tasks together; any number if nothing is said. Each lane has an equal share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Records that may go there at once; what comes in a second if nothing is said. Each lane has one at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

/// A topic as it is now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TargetView {
    /// Its name.
    pub topic: String,
    /// Counts its changes; 0: nothing was ever put.
    pub revision: u64,
    /// No record goes there, neither of timers nor of tasks.
    pub paused: bool,
    /// Records that may go there per second; any number if it is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Records that may go there at once; it is there if `rate` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

/// All topics of which something was put, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TargetList {
    /// Those of which something was put.
    pub targets: Vec<TargetView>,
}

/// What a change made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// The revision that is in force now.
    pub revision: u64,
}
