//! `/v1/members`: the instances that run, what each does, and how it is.
//!
//! # Invariants
//! 1. An instance that does not answer holds an answer up for no longer than [`ANSWER_MAX`].

use std::time::Duration;

use axum::extract::State;
use axum::http::Uri;
use axum::response::IntoResponse as _;
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::{Caller, Role};
use super::health::Report;
use super::problem::Problem;
use super::serve::Front;
use super::tasks::model::Problem as ProblemBody;
use super::tasks::{self, Failure, Tasks};
use super::timers::model::Soon;
use super::timers::params::Query;

/// How long an instance may take to say how it is, which waits for nothing.
pub const ANSWER_MAX: Duration = Duration::from_millis(1_500);

/// Knows the instances of the namespace.
pub trait Members: Send + Sync + 'static {
    /// All that are not gone, this one among them, in the order of their names. Each was asked how it is.
    ///
    /// # Errors
    /// [`Failure::Moving`]: this instance has not started yet.
    fn members(&self) -> Soon<'_, Result<Vec<MemberView>, Failure>>;
}

/// The instances of the namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberList {
    /// In the order of their names.
    pub members: Vec<MemberView>,
}

/// An instance, as it announced itself, and how it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberView {
    /// Its name.
    pub instance: String,
    /// Where it answers, as `host:port`.
    pub address: String,
    /// What it does.
    pub roles: Vec<MemberRole>,
    /// Its lanes that no other has claimed since, ascending.
    pub lanes: Vec<u16>,
    /// Its lane threads.
    pub threads: u16,
    /// The version of its program. An older program does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// When this start of it began, in epoch milliseconds, by its own clock. An older program does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// What it had to do when it announced itself, which it does every 30 s. Absent until it is known, some seconds after lanes have moved. An
    /// older program does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<MemberLoad>,
    /// What it says when it is asked.
    pub health: MemberHealth,
    /// Why.
    pub reasons: Vec<String>,
}

/// What an instance does, in the words of `roles` in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MemberRole {
    /// It has lanes, or waits for some.
    Lanes,
    /// It makes the calls of tasks.
    Worker,
    /// It has the API of tasks and projects.
    Api,
}

impl MemberRole {
    /// As it is configured.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lanes => "lanes",
            Self::Worker => "worker",
            Self::Api => "api",
        }
    }
}

/// What an instance has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberLoad {
    /// Offsets of its lanes that are not done, in intakes and tiers, as counted every 15 s. Some are marks of transactions.
    pub pending: u64,
    /// Timers and tasks that are pending in its lanes: those of the records that have an id.
    pub timers: u64,
    /// Calls that its worker has open.
    pub open_calls: u64,
    /// Records that it delivered, and calls that it finished, a second since the announcement before.
    pub per_second: u64,
}

/// How an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum MemberHealth {
    /// It does what it is there for.
    #[serde(rename = "ready")]
    Ready,
    /// It does not.
    #[serde(rename = "not ready")]
    NotReady,
    /// It does not answer where it says that it does.
    #[serde(rename = "silent")]
    Silent,
}

impl MemberHealth {
    /// As people and programs see it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::NotReady => "not ready",
            Self::Silent => "silent",
        }
    }

    /// What an instance has answered, with the reasons; `None`: nothing.
    #[must_use]
    pub fn of(report: Option<Report>) -> (Self, Vec<String>) {
        match report {
            Some(Report { ok: true, reasons }) => (Self::Ready, reasons),
            Some(Report { ok: false, reasons }) => (Self::NotReady, reasons),
            None => (Self::Silent, vec!["it does not answer there".to_owned()]),
        }
    }
}

/// The routes, as the document at `/openapi.json` has to have them.
pub(super) fn routes() -> [(&'static str, MethodRouter<Tasks>); 1] {
    [("/v1/members", get(list_members))]
}

pub(super) fn router(tasks: Tasks, front: &Front) -> Router {
    let mut router = Router::new();
    for (path, methods) in routes() {
        router = router.route(path, methods);
    }
    tasks::finish(router, tasks, front)
}

/// Lists the instances that run, and those that died in the last minute and a half.
#[utoipa::path(
    get,
    path = "/v1/members", tag = "members", operation_id = "listMembers",
    responses(
        (status = 200, description = "By name; each was asked how it is", body = MemberList),
        (status = "4XX", description = "The request is wrong; 403: it needs a token of all projects", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(super) async fn list_members(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Response, Problem> {
    Query::read(uri.query(), &[])?;
    caller.may_with_all_projects(Role::Read, "a member")?;
    let members = tasks.members.members().await?;
    Ok(Json(MemberList { members }).into_response())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tasks::tests::Api;
    use super::*;

    fn member() -> MemberView {
        let (health, reasons) =
            MemberHealth::of(Some(Report { ok: true, reasons: vec!["thread 0 owns".to_owned()] }));
        MemberView {
            instance: "a".to_owned(),
            address: "a.example:80".to_owned(),
            roles: vec![MemberRole::Lanes, MemberRole::Worker, MemberRole::Api],
            lanes: vec![0, 2],
            threads: 1,
            version: Some("1.2.3".to_owned()),
            since: Some(1_700_000_000_000),
            load: Some(MemberLoad { pending: 9, timers: 7, open_calls: 2, per_second: 40 }),
            health,
            reasons,
        }
    }

    #[tokio::test]
    async fn members_are_listed_with_all_that_they_say_and_an_older_one_with_less() {
        let api = Api::new();
        let (health, reasons) = MemberHealth::of(None);
        let (version, since, load) = (None, None, None);
        let older = MemberView {
            instance: "b".to_owned(),
            version,
            since,
            load,
            health,
            reasons,
            ..member()
        };
        api.world().members = vec![member(), older.clone()];
        let told = api.ask("", "GET", "/v1/members", &Value::Null).await;
        let want = json!({"members": [
            {
                "instance": "a", "address": "a.example:80", "roles": ["lanes", "worker", "api"], "lanes": [0, 2],
                "threads": 1, "version": "1.2.3", "since": 1_700_000_000_000_u64,
                "load": {"pending": 9, "timers": 7, "open_calls": 2, "per_second": 40},
                "health": "ready", "reasons": ["thread 0 owns"],
            },
            {
                "instance": "b", "address": "a.example:80", "roles": ["lanes", "worker", "api"], "lanes": [0, 2],
                "threads": 1, "health": "silent", "reasons": ["it does not answer there"],
            },
        ]});
        assert_eq!((told.status, &told.json), (200, &want));
        let read: MemberList = serde_json::from_value(told.json).expect("its own form");
        assert_eq!(read.members, [member(), older]);
        let told = api.ask("", "GET", "/v1/members?lane=1", &Value::Null).await;
        assert_eq!((told.status, told.code()), (400, "unknown_parameter"));
        api.world().failure = Some(Failure::Moving("it starts".to_owned()));
        let told = api.ask("", "GET", "/v1/members", &Value::Null).await;
        assert_eq!((told.status, told.code()), (503, "lane_moving"));
    }

    #[tokio::test]
    async fn members_are_of_no_project() {
        let api = Api::with_tokens();
        #[rustfmt::skip]
        let cases = [
            ("admin",  200, ""),
            ("reader", 403, "project_denied"),
            ("chief",  403, "project_denied"),
            ("nobody", 401, "bad_credentials"),
            ("",       401, "no_credentials"),
        ];
        for (token, status, code) in cases {
            let told = api.ask(token, "GET", "/v1/members", &Value::Null).await;
            assert_eq!((told.status, told.code()), (status, code), "{token}");
        }
    }

    #[test]
    fn the_words_of_programs_are_those_of_people() {
        for role in member().roles {
            assert_eq!(json!(role), role.as_str());
        }
        for health in [MemberHealth::Ready, MemberHealth::NotReady, MemberHealth::Silent] {
            assert_eq!(json!(health), health.as_str());
        }
    }
}
