//! The rooms of tasks and projects behind their real router, with a desk in memory.

mod client;

use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::net::{IpAddr, Ipv4Addr};

use axum::body::{Body, to_bytes};
use axum::http::header;
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};
use tower_service::Service as _;

use super::super::auth::{self, Peer, Principal, Role, Token};
use super::super::members::MemberView;
use super::super::projects::PutError;
use super::super::schedules::Written;
use super::super::serve::Rooms;
use super::super::timers::Peers;
use super::super::timers::tests::without_timers;
use super::super::{Gate, Hosts};
use super::model::*;
use super::*;
use crate::engine::sealed::Follows;
use crate::engine::task::registry::{Change, Registry};
use crate::engine::task::report::Report;
use crate::engine::task::result::Outcome;
use crate::engine::task::spec::Spec;
use crate::engine::timers::{TaskRecord, Version};

pub(in crate::api) const NOW: u64 = 1_795_293_475_106;
const LANES: u16 = 6;

/// What is behind the desk.
#[derive(Default)]
pub(in crate::api) struct World {
    pub(in crate::api) submitted: Vec<Submission>,
    pub(in crate::api) tasks: BTreeMap<String, TaskView>,
    pub(in crate::api) registry: Registry,
    /// The last revision that was put.
    pub(in crate::api) revision: u64,
    pub(in crate::api) counts: BTreeMap<String, TaskCounts>,
    pub(in crate::api) cancelled: Vec<String>,
    pub(in crate::api) retried: Vec<String>,
    /// What executors said, and what becomes of that.
    pub(in crate::api) reported: Vec<(String, Report)>,
    pub(in crate::api) report: Option<TaskReport>,
    /// What a cancel becomes; `None`: it hangs.
    pub(in crate::api) outcome: Option<CancelOutcome>,
    /// Ids that were looked up.
    pub(in crate::api) looks: Vec<TaskId>,
    /// The filter of the last list.
    pub(in crate::api) filter: Option<TaskFilter>,
    /// Why everything fails.
    pub(in crate::api) failure: Option<Failure>,
    /// Why a cancel fails, and nothing else.
    pub(in crate::api) cancel_failure: Option<Failure>,
    not_in_force: Option<Failure>,
    /// Why the registry is not known yet.
    pub(in crate::api) unread: Option<Failure>,
    /// Schedules, as their lanes keep them.
    pub(in crate::api) schedules: BTreeMap<String, TaskRecord>,
    /// Runs, likewise.
    pub(in crate::api) runs: BTreeMap<String, TaskRecord>,
    /// What a schedule that is written becomes in place of being in force.
    pub(in crate::api) written: Option<Written>,
    pub(in crate::api) members: Vec<MemberView>,
    /// How many read each topic; of another one that is not known.
    pub(in crate::api) readers: BTreeMap<String, u32>,
}

impl World {
    fn fails<T>(&self, of: T) -> Result<T, Failure> {
        self.failure.clone().map_or(Ok(of), Err)
    }
}

#[derive(Default)]
struct Fake(Mutex<World>);

impl Desk for Fake {
    fn in_force(&self) -> Result<(), Failure> {
        self.0.lock().not_in_force.clone().map_or(Ok(()), Err)
    }

    fn lanes(&self) -> u16 {
        LANES
    }

    fn instances(&self) -> u16 {
        1
    }

    fn now(&self) -> Option<UnixMillis> {
        Some(UnixMillis(NOW))
    }

    fn max_delay(&self) -> Millis {
        Millis(400 * Millis::DAY.0)
    }

    fn submit(&self, tasks: Vec<Submission>) -> Soon<'_, Vec<Result<(), Failure>>> {
        let mut world = self.0.lock();
        let told = tasks.iter().map(|_| world.fails(())).collect();
        if world.failure.is_none() {
            world.submitted.extend(tasks);
        }
        Box::pin(ready(told))
    }

    fn get<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<Option<TaskView>, Failure>> {
        let mut world = self.0.lock();
        world.looks.push(id.clone());
        Box::pin(ready(world.fails(world.tasks.get(id.as_str()).cloned())))
    }

    fn kept<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<Option<TaskRecord>, Failure>> {
        let mut world = self.0.lock();
        world.looks.push(id.clone());
        let found = world.schedules.get(id.as_str()).or_else(|| world.runs.get(id.as_str()));
        Box::pin(ready(world.fails(found.cloned())))
    }

    fn records<'a>(
        &'a self,
        filter: &'a timers::TaskFilter,
        _: Option<&'a str>,
        _: usize,
    ) -> Soon<'a, Result<Page, Failure>> {
        let world = self.0.lock();
        let all = world.schedules.values().chain(world.runs.values());
        let found = all.filter(|kept| filter.matches(kept)).cloned();
        Box::pin(ready(world.fails((found.collect(), None))))
    }

    fn payload<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<Option<Payload>, Failure>> {
        let world = self.0.lock();
        let body = Payload { body: Some(format!("of {id}")), ..Payload::default() };
        Box::pin(ready(world.fails((!id.as_str().starts_with("gone")).then_some(body))))
    }

    fn list<'a>(&'a self, filter: &'a TaskFilter) -> Soon<'a, Result<TaskPage, Failure>> {
        let mut world = self.0.lock();
        world.filter = Some(filter.clone());
        let tasks = world.tasks.values().cloned().collect();
        Box::pin(ready(world.fails(TaskPage { tasks, next: None })))
    }

    fn counts<'a>(
        &'a self,
        projects: &'a BTreeSet<String>,
    ) -> Soon<'a, Result<BTreeMap<String, TaskCounts>, Failure>> {
        let world = self.0.lock();
        let mut found = world.counts.clone();
        found.retain(|project, _| projects.contains(project));
        Box::pin(ready(world.fails(found)))
    }

    fn cancel<'a>(
        &'a self,
        id: &'a TaskId,
        _: Duration,
    ) -> Soon<'a, Result<CancelAnswer, Failure>> {
        let mut world = self.0.lock();
        world.cancelled.push(id.to_string());
        let Some(outcome) = world.outcome else { return Box::pin(std::future::pending()) };
        let answer = CancelAnswer { task_id: id.to_string(), outcome, again: None };
        let failure = world.cancel_failure.clone();
        Box::pin(ready(failure.map_or_else(|| world.fails(answer), Err)))
    }

    fn retry<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<TaskView, Failure>> {
        let mut world = self.0.lock();
        world.retried.push(id.to_string());
        if let Some(run) = world.runs.get_mut(id.as_str()) {
            // As its lane does.
            (run.timer.state, run.run) = (timers::TimerState::Delay, None);
            run.timer.version.offset.0 += 1;
            return Box::pin(ready(world.fails(task(id.as_str(), "shop"))));
        }
        let task = world.tasks.get(id.as_str()).cloned().ok_or(Failure::NoTask);
        Box::pin(ready(world.fails(()).and(task)))
    }

    fn is_ticket(&self, _: &TaskId, ticket: &str) -> Result<(), Failure> {
        let is_ours = ticket != FORGED;
        is_ours.then_some(()).ok_or_else(|| Failure::WrongTicket("want the ticket".to_owned()))
    }

    fn last_ticket<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<Option<String>, Failure>> {
        let is_awaited = id.as_str() != NOBODYS;
        Box::pin(ready(Ok(is_awaited.then(|| LAST_TICKET.to_owned()))))
    }

    fn report<'a>(
        &'a self,
        id: &'a TaskId,
        ticket: &'a str,
        result: &'a TaskResult,
    ) -> Soon<'a, Result<TaskReport, Failure>> {
        let report = Report { ticket: Some(ticket.to_owned()), result: result.clone() };
        Box::pin(ready(self.taken(id, &report)))
    }

    fn readers<'a>(&'a self, topic: &'a str) -> Soon<'a, Option<u32>> {
        Box::pin(ready(self.0.lock().readers.get(topic).copied()))
    }
}

/// A ticket of a task, and one of no task.
pub(in crate::api) const TICKET: &str = "ours";
pub(in crate::api) const FORGED: &str = "theirs";
/// The ticket of the last turn of any task but one.
pub(in crate::api) const LAST_TICKET: &str = "last";
/// A task that nobody reports on.
const NOBODYS: &str = "nobodys";

impl Fake {
    fn taken(&self, id: &TaskId, report: &Report) -> Result<TaskReport, Failure> {
        let mut world = self.0.lock();
        world.reported.push((id.to_string(), report.clone()));
        let by_itself = match report.result.outcome {
            Outcome::Started => TaskReport::Running(UnixMillis(NOW)),
            _ => TaskReport::Finished,
        };
        let report = world.report.unwrap_or(by_itself);
        world.fails(report)
    }
}

impl Projects for Fake {
    fn registry(&self) -> Result<Arc<Registry>, Failure> {
        let world = self.0.lock();
        world.unread.clone().map_or_else(|| Ok(Arc::new(world.registry.clone())), Err)
    }

    fn put(&self, change: Change, revision: Option<u64>) -> Soon<'_, Result<u64, PutError>> {
        let mut world = self.0.lock();
        let mut names = change.key().split('/').skip(1);
        let (project, service) = (names.next().unwrap_or_default(), names.next());
        let is_target = change.key().starts_with("target/");
        let current = match service {
            None if is_target => world.registry.target(project).revision,
            Some(service) => world.registry.service(project, service).map_or(0, |of| of.revision),
            None => world.registry.project(project).revision,
        };
        if revision.is_some_and(|revision| revision != current) {
            return Box::pin(ready(Err(PutError::Conflict { current })));
        }
        world.revision += 1;
        let revision = world.revision;
        let applied = world.registry.apply(change.with_revision(revision));
        Box::pin(ready(applied.map(|()| revision).map_err(PutError::NoRoom)))
    }
}

impl Schedules for Fake {
    fn write<'a>(
        &'a self,
        id: &'a TaskId,
        follows: Option<Follows>,
        spec: &'a Spec,
        (due, _): (UnixMillis, Duration),
    ) -> Soon<'a, Result<Written, Failure>> {
        let mut world = self.0.lock();
        if let Some(written) = world.written.take() {
            return Box::pin(ready(world.fails(written)));
        }
        let current = world.schedules.get(id.as_str()).cloned();
        let followed = |kept: &TaskRecord| Follows {
            version: kept.timer.version,
            has_ended: kept.timer.state.is_final(),
        };
        if current.as_ref().map(followed) != follows {
            return Box::pin(ready(Ok(Written::Superseded(current.map(Box::new)))));
        }
        world.revision += 1;
        let version = Version {
            first_appended: UnixMillis(NOW),
            offset: crate::engine::Offset(world.revision as i64),
        };
        let kept = super::super::schedules::tests::kept(id, version, spec, due);
        world.schedules.insert(id.to_string(), kept.clone());
        Box::pin(ready(world.fails(Written::Done(Box::new(kept)))))
    }
}

impl Members for Fake {
    fn members(&self) -> Soon<'_, Result<Vec<MemberView>, Failure>> {
        let world = self.0.lock();
        Box::pin(ready(world.fails(world.members.clone())))
    }
}

/// An API with its world.
pub(in crate::api) struct Api {
    world: Arc<Fake>,
    tasks: Tasks,
    pub(in crate::api) access: Arc<Access>,
    pub(in crate::api) router: Router,
}

/// What was answered.
#[derive(Debug)]
pub(in crate::api) struct Told {
    pub(in crate::api) status: u16,
    pub(in crate::api) headers: axum::http::HeaderMap,
    pub(in crate::api) json: Value,
}

impl Told {
    pub(in crate::api) fn code(&self) -> &str {
        self.json["code"].as_str().unwrap_or_default()
    }

    fn places(&self) -> Vec<&str> {
        let errors = self.json["errors"].as_array();
        errors.into_iter().flatten().filter_map(|error| error["at"].as_str()).collect()
    }
}

impl Api {
    pub(in crate::api) fn new() -> Self {
        let (world, access) = (Arc::new(Fake::default()), Arc::new(Access::default()));
        let screen: Screen = Arc::new(|url: &Url| match url.host_str() {
            Some("169.254.169.254") => Err("is an address that may not be called".to_owned()),
            _ => Ok(()),
        });
        let desk = Arc::clone(&world) as Arc<dyn Desk>;
        let projects = Arc::clone(&world) as Arc<dyn Projects>;
        let gate = Arc::new(Gate::new(None));
        let front = Front::new(Hosts::new([]), gate, Arc::clone(&access), Peers::default());
        let topics = Arc::new(Allow::any("wc"));
        let schedules = Arc::clone(&world) as Arc<dyn Schedules>;
        let (members, quotas) = (Arc::clone(&world) as Arc<dyn Members>, Arc::default());
        let tasks = Tasks { desk, schedules, projects, members, screen, topics, quotas };
        let router = Rooms { timers: without_timers(), tasks: Some(tasks.clone()) }.router(&front);
        Self { world, tasks, access, router }
    }

    pub(in crate::api) fn world(&self) -> parking_lot::MutexGuard<'_, World> {
        self.world.0.lock()
    }

    /// Four tokens: a reader, a writer and an admin (`chief`) of the project shop, and an admin of all.
    pub(in crate::api) fn with_tokens() -> Self {
        let api = Self::new();
        api.let_in(Vec::new());
        api
    }

    /// The same for one that is there, and these are known by a certificate.
    pub(in crate::api) fn let_in(&self, principals: Vec<Principal>) {
        let token = |name: &str, projects: Option<&str>, role| Token {
            name: name.to_owned(),
            sha256: auth::sha256(name),
            projects: projects.map(|one| [one.to_owned()].into()),
            role,
        };
        self.access.set(
            vec![
                token("reader", Some("shop"), Role::Read),
                token("writer", Some("shop"), Role::Write),
                token("chief", Some("shop"), Role::Admin),
                token("admin", None, Role::Admin),
            ],
            None,
            principals,
        );
    }

    /// All of it, to be served.
    pub(in crate::api) fn router(&self) -> Router {
        self.router.clone()
    }

    pub(in crate::api) async fn send(
        &self,
        request: axum::http::request::Builder,
        body: Body,
    ) -> Told {
        let mut request = request.header("host", "localhost").body(body).expect("a request");
        request.extensions_mut().insert(Peer(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        let mut router = self.router.clone();
        let answer = router.call(request).await.unwrap_or_else(|never| match never {});
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let bytes = to_bytes(answer.into_body(), usize::MAX).await.expect("a body");
        let json = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Told { status, headers, json }
    }

    /// Asks with a token, or without one where it is empty.
    pub(in crate::api) async fn ask(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Told {
        let mut request = Request::builder().method(method).uri(path);
        if !token.is_empty() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if body.is_null() {
            return self.send(request, Body::empty()).await;
        }
        let request = request.header(header::CONTENT_TYPE, "application/json");
        self.send(request, Body::from(body.to_string())).await
    }

    /// The owners of the lanes count what is pending.
    pub(in crate::api) async fn count(&self) {
        self.tasks.quotas.count(&self.tasks).await;
    }

    async fn create(&self, more: &Value) -> Told {
        self.ask("", "POST", "/v1/tasks/http", &call(more)).await
    }

    pub(in crate::api) fn put_task(&self, id: &str, project: &str) {
        self.world().tasks.insert(id.to_owned(), task(id, project));
    }
}

fn call(more: &Value) -> Value {
    let mut task = json!({
        "project": "shop", "group": "orders", "delay": "15m", "url": "https://shop.example/expire",
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        task[name] = value.clone();
    }
    task
}

pub(in crate::api) fn task(id: &str, project: &str) -> TaskView {
    TaskView {
        task_id: id.to_owned(),
        task_type: "http".to_owned(),
        task_status: TaskStatus::Ready,
        outcome: None,
        trigger_at: NOW,
        nominal_at: None,
        expires_at: None,
        project: project.to_owned(),
        group: "orders".to_owned(),
        request_id: None,
        created_at: NOW - 1,
        retry: Some(RetryInfo { count: Some(3), ..RetryInfo::default() }),
        turn: 1,
        attempts_total: 1,
        failures: 1,
        rounds: 0,
        interruptions: 0,
        method: Some("POST".to_owned()),
        url: Some("http://a.example/x".to_owned()),
        service: None,
        named_service: None,
        host: None,
        tls: None,
        format: None,
        path: None,
        timeout: Some(Length::Seconds(5)),
        expect: Some("2xx".to_owned()),
        poll: Some(PollInfo { interval: Length::Seconds(60), rounds: 9 }),
        feedback: None,
        on_result: None,
        follow_up: None,
        headers: vec![("x-a".to_owned(), "b".to_owned())],
        topic: None,
        partition: None,
        attempts: vec![Attempt {
            turn: 1,
            status: Some(503),
            outcome: "failed".to_owned(),
            ..Attempt::default()
        }],
        next_at: Some(NOW),
        waits_for: Some(WaitsFor::Paused),
        paused_by: vec![PausedBy::Project],
        cancelling: true,
        ended_at: None,
        code: None,
        last: None,
        cursor: None,
        payload: None,
    }
}

#[tokio::test]
async fn a_create_is_answered_with_its_id_and_handed_to_the_desk() {
    let api = Api::new();
    let told = api.create(&json!({"body": "{}", "retry": {"count": 3, "interval": 5}})).await;
    assert_eq!(told.status, 201, "{told:?}");
    let id = told.json["task_id"].as_str().expect("an id").to_owned();
    assert_eq!(told.json, json!({"task_id": id, "trigger_at": NOW + 900_000}));
    assert_eq!(told.headers[header::LOCATION], format!("/v1/tasks/{id}"));
    assert_eq!(told.headers[header::CACHE_CONTROL], "no-store");
    let submission = api.world().submitted.pop().expect("one");
    assert_eq!((submission.id.as_str(), submission.created), (id.as_str(), UnixMillis(NOW)));
    assert_eq!(submission.lane, submission.id.lane_of(LANES));
    assert_eq!(submission.key, None);
    assert_eq!(submission.value.as_deref(), Some(&b"{}"[..]));

    let record = json!({
        "project": "shop", "group": "orders", "trigger_at": 1_000_000_000_000_u64, "topic": "orders.late",
        "key": "o-17", "value": "v", "headers": {"a": "b"},
    });
    let told = api.ask("", "POST", "/v1/tasks/kafka", &record).await;
    // What is over is due at once, and is said as it was asked for.
    assert_eq!((told.status, &told.json["trigger_at"]), (201, &json!(1_000_000_000_000_u64)));
    let submission = api.world().submitted.pop().expect("one");
    assert_eq!(submission.spec.type_name(), "kafka");
    assert!(submission.id.as_str().starts_with('k'), "{}", submission.id);
    assert_eq!(submission.headers, [("a".to_owned(), Some(b"b".to_vec()))]);
}

#[tokio::test]
async fn the_same_request_id_is_the_same_task() {
    let api = Api::new();
    let id = |told: Told| told.json["task_id"].as_str().expect("an id").to_owned();
    let first = id(api.create(&json!({"request_id": "o-17"})).await);
    let want = TaskId::of_request("shop", "o-17", None).expect("an id");
    assert_eq!(first, want.as_str());
    assert_eq!(id(api.create(&json!({"request_id": "o-17", "delay": "1h"})).await), first);
    assert_ne!(id(api.create(&json!({"request_id": "o-18"})).await), first);
    assert_ne!(id(api.create(&json!({"request_id": "o-17", "project": "other"})).await), first);
    assert_ne!(id(api.create(&json!({})).await), id(api.create(&json!({})).await));

    let with = |key: &'static [u8]| {
        Request::builder()
            .method("POST")
            .uri("/v1/tasks/http")
            .header(header::CONTENT_TYPE, "application/json")
            .header("idempotency-key", axum::http::HeaderValue::from_bytes(key).expect("a value"))
    };
    let named = |more: &Value| Body::from(call(more).to_string());
    assert_eq!(id(api.send(with(b"o-17"), named(&json!({}))).await), first);
    assert_eq!(id(api.send(with(b"o-17"), named(&json!({"request_id": "o-17"}))).await), first);
    let before = api.world().submitted.len();
    let other = api.send(with(b"o-17"), named(&json!({"request_id": "o-18"}))).await;
    assert_eq!((other.status, other.places()), (422, vec!["request_id"]));
    for bad in [&b""[..], b"\xff"] {
        let told = api.send(with(bad), named(&json!({}))).await;
        assert_eq!((told.status, told.places()), (422, vec!["Idempotency-Key"]));
    }
    assert_eq!(api.world().submitted.len(), before);
}

#[tokio::test]
async fn every_wrong_field_is_named_and_nothing_is_submitted() {
    let api = Api::new();
    #[rustfmt::skip]
    let cases: Vec<(Value, &[&str])> = vec![
        (json!({"project": "Shop", "retry": {"count": -1}, "colour": 1}), &["colour", "project", "retry.count"]),
        (json!({"url": "http://169.254.169.254/latest"}),                 &["url"]),
        (json!({"on_result": {"url": "http://169.254.169.254/"}}),        &["on_result.url"]),
        (json!({"on_result": {"url": "https://a.example", "topic": "t"}}), &["on_result"]),
        (json!({"url": "http://169.254.169.254/", "delay": "401d"}),      &["url", "delay"]),
        (json!({"expires_at": NOW}),                                      &["expires_at"]),
        (json!({"headers": {"x-a": "b\r\nhost: evil"}}),                  &["headers[0][1]"]),
        (json!({"headers": {"x-a\r\nhost": "b"}}),                        &["headers[0][0]"]),
        (json!({"headers": {"Authorization": "b"}}),                      &["headers[0][0]"]),
        (json!({"headers": {"webhook-id": "b"}}),                         &["headers[0][0]"]),
        (json!({"headers": {"x-a": "y".repeat(17 << 10)}}),               &["request"]),
        (json!({"body": "y".repeat((1 << 20) + 1)}),                      &["body"]),
    ];
    for (more, want) in cases {
        let told = api.create(&more).await;
        assert_eq!((told.status, told.code()), (422, "wrong_fields"), "{want:?}: {told:?}");
        assert_eq!(told.places(), want);
        assert_eq!(told.headers[header::CONTENT_TYPE], "application/problem+json");
    }
    assert_eq!(api.world().submitted, []);
}

#[tokio::test]
async fn who_is_told_of_a_task_has_to_be_somebody_whom_its_project_may_tell() {
    let api = Api::new();
    let settings = json!({"targets": ["orders\\..*"], "hosts": ["*.example"]});
    assert_eq!(api.ask("", "PUT", "/v1/projects/shop", &settings).await.status, 200);
    for (name, settings) in [
        ("billing", json!({"address": "https://b.example"})),
        ("stock", json!({"address": "https://s.example", "protocol": "grpc"})),
    ] {
        let path = format!("/v1/projects/shop/services/{name}");
        assert_eq!(api.ask("", "PUT", &path, &settings).await.status, 200);
    }
    for (to, wrong) in [
        (json!({"topic": "orders.done"}), None),
        (json!({"topic": "bills"}), Some("on_result.topic")),
        (json!({"service": "billing"}), None),
        // It may be put before the task ends.
        (json!({"service": "later"}), None),
        (json!({"service": "stock"}), Some("on_result.service")),
        (json!({"url": "https://told.example/x"}), None),
        (json!({"url": "https://elsewhere.test/x"}), Some("on_result.url")),
    ] {
        let told = api.create(&json!({"on_result": to, "url": "https://a.example/"})).await;
        match wrong {
            None => {
                assert_eq!(told.status, 201, "{to}: {told:?}");
                let submission = api.world().submitted.pop().expect("one");
                assert!(submission.spec.on_result().is_some());
            }
            Some(place) => assert_eq!((told.status, told.places()), (422, vec![place]), "{to}"),
        }
    }
}

#[tokio::test]
async fn a_topic_of_waterclocks_or_of_kafkas_own_is_no_target_of_a_task() {
    let api = Api::new();
    let taken = |topic: &'static str| {
        let api = &api;
        async move {
            let told = api.create(&json!({"on_result": {"topic": topic}})).await;
            let record =
                json!({"project": "shop", "group": "g", "delay": 5, "topic": topic, "value": "v"});
            let of_kafka = api.ask("", "POST", "/v1/tasks/kafka", &record).await;
            (told, of_kafka)
        }
    };
    for topic in
        ["__consumer_offsets", "wc.intake", "wc.intake.eu", "wc.delay.1m", "wc.results", "wc.dead"]
    {
        let (told, of_kafka) = taken(topic).await;
        assert_eq!((told.status, told.code()), (422, "wrong_fields"), "{topic}: {told:?}");
        assert_eq!(told.places(), ["on_result.topic"], "{topic}");
        assert_eq!((of_kafka.status, of_kafka.places()), (422, vec!["topic"]), "{topic}");
    }
    assert_eq!(api.world().submitted, []);
    for topic in ["wc.orders", "orders.dead", "wc2.intake", "_mine"] {
        let (told, of_kafka) = taken(topic).await;
        assert_eq!((told.status, of_kafka.status), (201, 201), "{topic}: {told:?} {of_kafka:?}");
    }
    // What a project says opens none of them.
    let settings = json!({"targets": ["wc\\..*", "__.*"]});
    assert_eq!(api.ask("", "PUT", "/v1/projects/shop", &settings).await.status, 200);
    for topic in ["wc.dead", "__consumer_offsets"] {
        let (told, of_kafka) = taken(topic).await;
        assert_eq!((told.status, of_kafka.status), (422, 422), "{topic}");
    }
}

#[tokio::test]
async fn a_delay_that_is_too_long_is_told_the_longest_one() {
    let api = Api::new();
    let longest = "is more than 400d ahead, which is the longest delay here (max-delay)";
    let length = r#"want a length of time ("1m30s"; a number is seconds)"#;
    for (delay, want) in [
        (json!("401d"), longest.to_owned()),
        (json!(34_560_001), longest.to_owned()),
        (json!("9999999999d"), longest.to_owned()),
        (json!(u64::MAX), longest.to_owned()),
        (json!("soon"), format!(r#"is "soon"; {length}"#)),
        (json!(-1), format!("is -1; {length}")),
    ] {
        let told = api.create(&json!({"delay": delay})).await;
        assert_eq!(told.status, 422, "{delay}");
        assert_eq!(told.json["errors"], json!([{"at": "delay", "detail": want}]), "{delay}");
    }
    assert_eq!(api.create(&json!({"delay": "400d"})).await.status, 201);
}

#[tokio::test]
async fn a_body_that_is_too_large_too_deep_or_none_is_refused() {
    let api = Api::new();
    let send = |kind: &'static str, path: &'static str, body: String| {
        let request =
            Request::builder().method("POST").uri(path).header(header::CONTENT_TYPE, kind);
        api.send(request, Body::from(body))
    };
    let json = "application/json";
    let huge = "x".repeat(CREATE_BYTES_MAX + 1);
    assert_eq!(send(json, "/v1/tasks/http", huge.clone()).await.status, 413);
    let told = send(json, "/v1/tasks:batchCreate", huge.repeat(2)).await;
    assert_eq!((told.status, told.code()), (413, "too_large"));
    let told = send(json, "/v1/tasks/http", format!("{{\"retry\":{}", "[".repeat(100_000))).await;
    assert_eq!((told.status, told.places()), (422, vec!["request"]));
    let told = send("text/plain", "/v1/tasks/http", call(&Value::Null).to_string()).await;
    assert_eq!((told.status, told.code()), (415, "not_json_type"));
    assert_eq!(send("text/plain", "/v1/tasks/abc:retry", String::new()).await.status, 415);
    assert_eq!(api.world().submitted, []);
    // A body of 1 MiB is taken, in base64 too.
    let body = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, vec![7; 1 << 20]);
    assert_eq!(api.create(&json!({"body_b64": body})).await.status, 201);
}

#[tokio::test]
async fn an_action_has_no_fields_and_one_that_is_there_is_named() {
    let api = Api::new();
    api.put_task("abc", "shop");
    let none = Value::Null;
    assert_eq!(api.ask("", "PUT", "/v1/projects/shop", &json!({})).await.status, 200);
    let (service, address) =
        ("/v1/projects/shop/services/billing", json!({"address": "https://b.example"}));
    assert_eq!(api.ask("", "PUT", service, &address).await.status, 200);
    let before = api.world().revision;
    let mut paths = vec!["/v1/tasks/abc:retry".to_owned()];
    for of in ["/v1/projects/shop", service, "/v1/targets/orders"] {
        paths.extend([":pause", ":resume"].map(|action| format!("{of}{action}")));
    }
    let json = "application/json";
    for path in &paths {
        for (body, at, want) in [
            (r#"{"at": 5}"#, "at", "is not a field of this request; it has no fields"),
            ("[]", "request", "is []; want a JSON object"),
            ("null", "request", "is null; want a JSON object"),
            ("{", "request", "is not JSON"),
        ] {
            let request =
                Request::builder().method("POST").uri(path).header(header::CONTENT_TYPE, json);
            let told = api.send(request, Body::from(body)).await;
            assert_eq!((told.status, told.code()), (422, "wrong_fields"), "{path} {body}");
            assert_eq!(told.places(), [at], "{path} {body}");
            let detail = told.json["errors"][0]["detail"].as_str().expect("a detail");
            assert!(detail.starts_with(want), "{path} {body}: {detail}");
        }
    }
    assert_eq!(api.world().revision, before, "nothing was changed");
    for path in &paths {
        for body in [&none, &json!({})] {
            let told = api.ask("", "POST", path, body).await;
            assert_eq!(told.status, 200, "{path} {body}: {told:?}");
        }
    }
}

#[tokio::test]
async fn each_task_of_a_batch_has_its_own_status() {
    let api = Api::with_tokens();
    let good = call(&json!({"type": "http", "request_id": "a"}));
    let other = call(&json!({"type": "http", "project": "other"}));
    let bad = call(&json!({"type": "http", "method": "BREW"}));
    let batch = json!({"tasks": [good, bad, other, good]});
    let told = api.ask("writer", "POST", BATCH_CREATE, &batch).await;
    let tasks = told.json["tasks"].as_array().expect("a list");
    let seen: Vec<_> =
        tasks.iter().map(|task| task["status"].as_u64().unwrap_or_default()).collect();
    assert_eq!((told.status, &seen[..]), (200, &[201, 422, 404, 201][..]));
    assert_eq!(tasks[0]["task_id"], tasks[3]["task_id"]);
    assert_eq!(tasks[1]["problem"]["errors"][0]["at"], "method");
    assert_eq!(api.world().submitted.len(), 2);
    api.world().failure = Some(Failure::Away("no broker answers".to_owned()));
    let told = api.ask("admin", "POST", BATCH_CREATE, &json!({"tasks": [good]})).await;
    assert_eq!((told.status, &told.json["tasks"][0]["status"]), (200, &json!(503)));
    let none = api.ask("admin", "POST", BATCH_CREATE, &json!({"tasks": []})).await;
    assert_eq!((none.status, none.places()), (422, vec!["tasks"]));
}

#[tokio::test]
async fn a_task_is_shown_listed_cancelled_and_retried() {
    let api = Api::new();
    api.put_task("a1", "shop");
    let told = api.ask("", "GET", "/v1/tasks/a1", &Value::Null).await;
    assert_eq!((told.status, &told.json), (200, &json!(task("a1", "shop"))));
    assert_eq!(told.json["waits_for"], "paused");
    assert_eq!(told.json["paused_by"], json!(["project"]));
    assert_eq!(told.json["cancelling"], json!(true));
    let query = "/v1/tasks?project=shop&group=orders&status=ready&type=http&due_before=2030-01-31T08:00:00Z&limit=7&page=x";
    assert_eq!(api.ask("", "GET", query, &Value::Null).await.status, 200);
    let filter = api.world().filter.take().expect("a filter");
    let want = TaskFilter {
        projects: Some(["shop".to_owned()].into()),
        group: Some("orders".to_owned()),
        status: Some(TaskStatus::Ready),
        task_type: Some("http".to_owned()),
        due_before: Some(UnixMillis(1_896_076_800_000)),
        page: Some("x".to_owned()),
        limit: 7,
    };
    assert_eq!(filter, want);
    for bad in [
        "status=done",
        "type=run",
        "limit=0",
        "limit=1001",
        "project=A",
        "state=ready",
        "due_before=soon",
    ] {
        let told = api.ask("", "GET", &format!("/v1/tasks?{bad}"), &Value::Null).await;
        assert_eq!(told.status, 400, "{bad}: {told:?}");
    }

    api.world().outcome = Some(CancelOutcome::Stopped);
    let told = api.ask("", "DELETE", "/v1/tasks/a1?wait=5s", &Value::Null).await;
    assert_eq!((told.status, told.json), (200, json!({"task_id": "a1", "outcome": "stopped"})));
    assert_eq!(api.ask("", "DELETE", "/v1/tasks/a1?wait=5", &Value::Null).await.status, 400);
    assert_eq!(api.world().cancelled, ["a1"]);
    let told = api.ask("", "POST", "/v1/tasks/a1:retry", &Value::Null).await;
    assert_eq!((told.status, &told.json["task_id"]), (200, &json!("a1")));
    assert_eq!(api.world().retried, ["a1"]);
    assert_eq!(
        api.ask("", "POST", "/v1/tasks/zz:retry", &Value::Null).await.code(),
        "unknown_task"
    );
    let told = api.ask("", "GET", "/v1/tasks/a1?payload=1", &Value::Null).await;
    assert_eq!(told.json["payload"], json!({"body": "of a1"}));
    let told = api.ask("", "GET", "/v1/tasks/a1?payload=0", &Value::Null).await;
    assert_eq!((told.status, told.json.get("payload")), (200, None));
    let told = api.ask("", "GET", "/v1/tasks/a1?payload=yes", &Value::Null).await;
    assert_eq!((told.status, told.code()), (400, "wrong_type"));
    let told = api.ask("", "POST", "/v1/tasks/a1:cancel", &json!({})).await;
    let detail = told.json["detail"].as_str().expect("a text");
    assert_eq!((told.status, told.code()), (405, "no_such_method"));
    assert!(
        detail.ends_with("; a task has the action :retry; to cancel it, DELETE it"),
        "{detail}"
    );
    // Who guesses where a task is created is told.
    for guess in ["/v1/tasks", "/v1/tasks/run"] {
        let told = api.ask("", "POST", guess, &json!({})).await;
        let detail = told.json["detail"].as_str().expect("a text");
        assert_eq!((told.status, told.code()), (405, "no_such_method"), "{guess}");
        assert!(
            detail.ends_with("POST to /v1/tasks/http, /v1/tasks/kafka or /v1/tasks/grpc"),
            "{detail}"
        );
    }
    assert_eq!(api.ask("", "GET", "/v1/tasks/A", &Value::Null).await.code(), "bad_id");
}

#[tokio::test]
async fn a_cancel_that_hangs_is_pending_when_its_wait_is_over() {
    let api = Api::new();
    let told = api.ask("", "DELETE", "/v1/tasks/a1?wait=50ms", &Value::Null).await;
    assert_eq!(told.status, 202);
    assert_eq!(told.json, json!({"task_id": "a1", "outcome": "pending", "again": "/v1/tasks/a1"}));
}

#[tokio::test]
async fn a_record_and_a_call_may_be_reported_on() {
    let api = Api::new();
    let record = |more: Value| {
        let mut task = json!({
            "project": "shop", "group": "g", "delay": 1, "topic": "orders", "value": "x",
        });
        for (name, value) in more.as_object().expect("fields") {
            task[name] = value.clone();
        }
        task
    };
    let large = "x".repeat((64 << 10) + 1);
    let soon = json!({"deadline": "1h", "heartbeat": "5s"});
    #[rustfmt::skip]
    let cases = [
        (record(json!({"feedback": {"deadline": "1h"}})),                                  201, ""),
        (record(json!({"feedback": soon})),                                                201, ""),
        (record(json!({"feedback": soon, "value": large})),                                422, "feedback.heartbeat"),
        (record(json!({"feedback": {"deadline": "1h", "heartbeat": 30}, "value": large})), 201, ""),
        (record(json!({"feedback": {}})),                                                  422, "feedback.deadline"),
    ];
    for (task, status, at) in cases {
        let told = api.ask("", "POST", "/v1/tasks/kafka", &task).await;
        assert_eq!(told.status, status, "{told:?}");
        let found = told.json["errors"][0]["at"].as_str().unwrap_or_default();
        assert_eq!(found, at, "{told:?}");
    }
    #[rustfmt::skip]
    let cases = [
        (json!({"feedback": {"deadline": "1h"}}),              201, "",                   ""),
        (json!({"feedback": soon}),                            201, "",                   ""),
        (json!({"feedback": soon, "body": large}),             422, "feedback.heartbeat", "with a body of more than"),
        (json!({"feedback": soon, "poll": {"interval": "1s", "rounds": 2}}), 422, "feedback", "beside poll"),
    ];
    for (more, status, at, detail) in cases {
        let told = api.create(&more).await;
        assert_eq!(told.status, status, "{told:?}");
        let wrong = &told.json["errors"][0];
        assert_eq!(wrong["at"].as_str().unwrap_or_default(), at, "{told:?}");
        assert!(wrong["detail"].as_str().unwrap_or_default().contains(detail), "{told:?}");
    }
}

#[tokio::test]
async fn a_grpc_task_names_a_host_that_may_be_called_or_a_service_of_its_protocol() {
    let api = Api::new();
    for (service, put) in [
        ("web", json!({"address": "https://b.example"})),
        ("rpc", json!({"protocol": "grpc", "address": "https://b.example:50051"})),
    ] {
        let path = format!("/v1/projects/shop/services/{service}");
        assert_eq!(api.ask("", "PUT", &path, &put).await.status, 200);
    }
    let rpc = |more: Value| {
        let mut task =
            json!({"project": "shop", "group": "o", "delay": 5, "service": "s.S", "method": "M"});
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task
    };
    let soon = json!({"deadline": "1h", "heartbeat": "5s"});
    #[rustfmt::skip]
    let cases = [
        ("grpc", rpc(json!({"host": "b.example:50051"})),             201, ""),
        ("grpc", rpc(json!({"host": "b.example:443", "tls": true})),  201, ""),
        ("grpc", rpc(json!({"named_service": "rpc"})),                201, ""),
        // It may be put before the task is due.
        ("grpc", rpc(json!({"named_service": "later"})),              201, ""),
        ("grpc", rpc(json!({"named_service": "web"})),                422, "named_service"),
        ("grpc", rpc(json!({"host": "169.254.169.254:50051"})),       422, "host"),
        ("grpc", rpc(json!({"host": "b.example"})),                   422, "host"),
        ("grpc", rpc(json!({"host": "b.example:1", "feedback": {}})),                              422, "feedback.deadline"),
        ("grpc", rpc(json!({"host": "b.example:1", "feedback": soon})),                            201, ""),
        ("grpc", rpc(json!({"host": "b.example:1", "feedback": soon, "poll": {"interval": 1, "rounds": 2}})), 422, "feedback"),
        ("http", json!({"project": "shop", "group": "o", "delay": 5, "service": "rpc"}), 422, "service"),
    ];
    for (of, task, status, at) in cases {
        let told = api.ask("", "POST", &format!("/v1/tasks/{of}"), &task).await;
        assert_eq!(told.status, status, "{task}: {told:?}");
        let found = told.json["errors"][0]["at"].as_str().unwrap_or_default();
        assert_eq!(found, at, "{task}: {told:?}");
    }
}

#[tokio::test]
async fn an_executor_hears_what_became_of_what_it_said() {
    let api = Api::new();
    let result = json!({"outcome": "finished", "ticket": TICKET, "worker": "w"});
    let beat = json!({"ticket": TICKET, "cursor": "row:7", "percent": 70});
    let ended = |outcome: &str| json!({ "outcome": outcome });
    #[rustfmt::skip]
    let cases = [
        (TaskReport::Finished,               200, ended("finished"),  409, "stale"),
        (TaskReport::Retrying,               200, ended("retrying"),  409, "stale"),
        (TaskReport::Failed,                 200, ended("failed"),    409, "stale"),
        (TaskReport::Cancelled,              200, ended("cancelled"), 409, "stale"),
        (TaskReport::Stale,                  409, json!("stale"),        409, "stale"),
        (TaskReport::Open,                   409, json!("attempt_open"), 409, "attempt_open"),
        (TaskReport::Absent,                 404, json!("unknown_task"), 404, "unknown_task"),
        (TaskReport::Pending,                503, json!("lane_moving"),  503, "lane_moving"),
        (TaskReport::Running(UnixMillis(9)), 500, json!("internal_error"), 200, ""),
    ];
    for (became, status, want, of_beat, code) in cases {
        api.world().report = Some(became);
        let told = api.ask("", "POST", "/v1/tasks/a1/result", &result).await;
        let found = if status == 200 { told.json.clone() } else { json!(told.code()) };
        assert_eq!((told.status, found), (status, want), "{became:?}");
        let told = api.ask("", "POST", "/v1/tasks/a1/heartbeat", &beat).await;
        assert_eq!((told.status, told.code()), (of_beat, code), "{became:?}");
        if of_beat == 200 {
            assert_eq!(told.json, json!({"next_at": 9}));
        }
    }
    let reported = std::mem::take(&mut api.world().reported);
    assert_eq!(reported.len(), 18);
    let (id, said) = &reported[1];
    assert_eq!((&**id, said.result.cursor.as_deref()), ("a1", Some("row:7")));
    // What is wrong is not taken, and a ticket of somebody else neither.
    let forged = json!({"outcome": "finished", "ticket": FORGED});
    let told = api.ask("", "POST", "/v1/tasks/a1/result", &forged).await;
    assert_eq!((told.status, told.code()), (403, "wrong_ticket"));
    let told = api.ask("", "POST", "/v1/tasks/a1/heartbeat", &json!({"percent": 101})).await;
    assert_eq!((told.status, told.code()), (422, "wrong_fields"));
    let wrong = json!({"outcome": "started", "ticket": TICKET});
    let told = api.ask("", "POST", "/v1/tasks/a1/result", &wrong).await;
    assert_eq!((told.status, told.code()), (422, "wrong_fields"));
    assert!(api.world().reported.is_empty());
}

#[tokio::test]
async fn without_a_ticket_only_an_admin_reports_and_of_the_last_turn() {
    let api = Api::with_tokens();
    api.put_task("mine", "shop");
    api.put_task(NOBODYS, "shop");
    let result = json!({"outcome": "failed"});
    for (token, id, status, code) in [
        ("reader", "mine", 403, "role_denied"),
        ("writer", "mine", 403, "role_denied"),
        ("admin", NOBODYS, 409, "stale"),
    ] {
        for (what, body) in [("result", &result), ("heartbeat", &json!({}))] {
            let told = api.ask(token, "POST", &format!("/v1/tasks/{id}/{what}"), body).await;
            assert_eq!((told.status, told.code()), (status, code), "{token} {id} {what}");
        }
    }
    assert!(api.world().reported.is_empty());
    api.world().report = Some(TaskReport::Retrying);
    let told = api.ask("admin", "POST", "/v1/tasks/mine/result", &result).await;
    assert_eq!((told.status, told.json), (200, json!({"outcome": "retrying"})));
    let reported = std::mem::take(&mut api.world().reported);
    let of = reported.iter().map(|(id, said)| (&**id, said.ticket.as_deref()));
    assert_eq!(of.collect::<Vec<_>>(), [("mine", Some(LAST_TICKET))]);
}

#[tokio::test]
async fn each_failure_has_its_status_and_says_when_to_come_back() {
    let api = Api::new();
    let text = || "why".to_owned();
    #[rustfmt::skip]
    let cases = [
        (Failure::Moving(text()),       503, "lane_moving",      true),
        (Failure::Unknown(text()),      503, "lane_moving",      true),
        (Failure::Away(text()),         503, "kafka_away",       true),
        (Failure::Busy(text()),         503, "too_busy",         true),
        (Failure::NoIndex(text()),      503, "no_index",         true),
        (Failure::NoTask,               404, "unknown_task",     false),
        (Failure::NotRetryable(text()), 409, "not_retryable",    false),
        (Failure::PayloadGone(text()),  409, "payload_gone",     false),
        (Failure::TooLarge(text()),     413, "record_too_large", false),
    ];
    for (failure, status, code, is_later) in cases {
        api.world().failure = Some(failure);
        let told = api.ask("", "POST", "/v1/tasks/a1:retry", &Value::Null).await;
        assert_eq!((told.status, told.code()), (status, code));
        assert_eq!(told.headers.contains_key(header::RETRY_AFTER), is_later, "{code}");
    }
    api.world().not_in_force = Some(Failure::NotAvailable("run topics apply --tasks".to_owned()));
    for (method, path) in [
        ("POST", "/v1/tasks/http"),
        ("GET", "/v1/tasks/a1"),
        ("GET", "/v1/tasks"),
        ("DELETE", "/v1/tasks/a1"),
    ] {
        let body = if method == "POST" { call(&Value::Null) } else { Value::Null };
        let told = api.ask("", method, path, &body).await;
        assert_eq!((told.status, told.code()), (409, "not_available"), "{method} {path}");
    }
}

#[tokio::test]
async fn a_token_does_what_its_role_allows_in_its_projects() {
    let api = Api::with_tokens();
    api.put_task("mine", "shop");
    api.put_task("other", "bank");
    api.world().outcome = Some(CancelOutcome::Cancelled);
    let (none, own, foreign) = (Value::Null, call(&Value::Null), call(&json!({"project": "bank"})));
    api.world().report = Some(TaskReport::Finished);
    let result = json!({"outcome": "finished", "ticket": TICKET});
    #[rustfmt::skip]
    let cases: &[(&str, &str, &str, &Value, u16, &str)] = &[
        ("",       "GET",    "/v1/tasks/mine",         &none,    401, "no_credentials"),
        ("nobody", "GET",    "/v1/tasks/mine",         &none,    401, "bad_credentials"),
        ("reader", "GET",    "/v1/tasks/mine",         &none,    200, ""),
        ("reader", "GET",    "/v1/tasks/other",        &none,    404, "unknown_task"),
        ("reader", "GET",    "/v1/tasks/never",        &none,    404, "unknown_task"),
        ("admin",  "GET",    "/v1/tasks/other",        &none,    200, ""),
        ("reader", "POST",   "/v1/tasks/http",         &own,     403, "role_denied"),
        ("writer", "POST",   "/v1/tasks/http",         &own,     201, ""),
        ("writer", "POST",   "/v1/tasks/http",         &foreign, 404, "unknown_project"),
        ("reader", "DELETE", "/v1/tasks/mine",         &none,    403, "role_denied"),
        ("writer", "DELETE", "/v1/tasks/mine",         &none,    200, ""),
        ("writer", "DELETE", "/v1/tasks/other",        &none,    404, "unknown_task"),
        ("writer", "POST",   "/v1/tasks/other:retry",  &none,    404, "unknown_task"),
        ("reader", "POST",   "/v1/tasks/mine/result",  &result,  403, "role_denied"),
        ("writer", "POST",   "/v1/tasks/mine/result",  &result,  200, ""),
        ("writer", "POST",   "/v1/tasks/other/result", &result,  404, "unknown_task"),
        ("reader", "POST",   "/v1/tasks/mine:retry",   &none,    403, "role_denied"),
        ("reader", "GET",    "/v1/tasks?project=bank", &none,    404, "unknown_project"),
        ("writer", "PUT",    "/v1/projects/shop",      &none,    415, "not_json_type"),
        ("writer", "POST",   "/v1/tasks/http",         &none,    415, "not_json_type"),
        ("writer", "POST",   "/v1/tasks:batchCreate",  &none,    415, "not_json_type"),
        ("writer", "POST",   "/v1/tasks/mine:restart", &none,    405, "no_such_method"),
        ("writer", "POST",   "/v1/projects/shop:stop", &none,    405, "no_such_method"),
        ("writer", "PUT",    "/v1/tasks",              &none,    405, "no_such_method"),
        ("writer", "PUT",    "/v1/tasks/mine",         &none,    405, "no_such_method"),
        ("writer", "POST",   "/v1/tasks",              &none,    405, "no_such_method"),
        ("reader", "GET",    "/v1/timers",             &none,    403, "project_denied"),
        ("",       "GET",    "/v1/timers",             &none,    401, "no_credentials"),
        ("",       "GET",    "/openapi.json",          &none,    200, ""),
    ];
    for (token, method, path, body, status, code) in cases {
        let told = api.ask(token, method, path, body).await;
        assert_eq!((told.status, told.code()), (*status, *code), "{token} {method} {path}");
        assert_eq!(told.headers.contains_key(header::WWW_AUTHENTICATE), *status == 401);
    }
    assert_eq!(api.world().cancelled, ["mine"]);
    // Of a foreign task as long as of none: the look at nothing is made, too.
    for (id, absent) in [("other", true), ("mine", false), ("never", false)] {
        api.world().looks.clear();
        api.ask("reader", "GET", &format!("/v1/tasks/{id}"), &none).await;
        let mut want = vec![TaskId::parse(id).expect("an id")];
        want.extend(absent.then(|| want[0].absent_beside()));
        assert_eq!(api.world().looks, want);
    }
    // A list without a project is one of the token's projects.
    for (token, want) in [("reader", Some(["shop".to_owned()].into())), ("admin", None)] {
        api.ask(token, "GET", "/v1/tasks", &none).await;
        assert_eq!(api.world().filter.take().expect("a filter").projects, want);
    }
    // Tokens that are read again hold at once.
    api.access.set(
        vec![Token {
            name: "new".to_owned(),
            sha256: auth::sha256("new"),
            projects: None,
            role: Role::Read,
        }],
        None,
        Vec::new(),
    );
    assert_eq!(api.ask("reader", "GET", "/v1/tasks/mine", &none).await.status, 401);
    assert_eq!(api.ask("new", "GET", "/v1/tasks/mine", &none).await.status, 200);
}

#[tokio::test]
async fn a_project_that_was_deleted_takes_no_tasks() {
    let api = Api::new();
    assert_eq!(api.ask("", "PUT", "/v1/projects/shop", &json!({})).await.status, 200);
    assert_eq!(api.ask("", "DELETE", "/v1/projects/shop", &Value::Null).await.status, 200);
    let told = api.create(&Value::Null).await;
    assert_eq!((told.status, told.code()), (409, "project_deleted"));
    assert_eq!(api.world().submitted, []);
}

/// Any value that JSON has, not too deep.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 20, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{1,10}", inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Fields of a request that is right, replaced by anything: it is taken, or refused with places.
    #[test]
    fn no_body_causes_an_error_of_ours(
        fields in prop::collection::vec((
            prop::sample::select(vec![
                "project", "group", "delay", "trigger_at", "url", "service", "path", "method", "headers", "body",
                "body_b64", "retry", "poll", "timeout", "expect", "on_result", "expires_at", "window", "request_id", "type", "x",
            ]),
            any_json(),
        ), 0..4),
        path in prop::sample::select(vec!["/v1/tasks/http", "/v1/tasks/kafka", "/v1/tasks/grpc", BATCH_CREATE]),
        bytes in prop::option::of(prop::collection::vec(any::<u8>(), 0..50)),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let api = Api::new();
        let body = match bytes {
            Some(bytes) => bytes,
            None => call(&Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())).to_string().into_bytes(),
        };
        let request = Request::builder().method("POST").uri(path).header("content-type", "application/json");
        let told = runtime.block_on(api.send(request, Body::from(body)));
        prop_assert!([200, 201, 422].contains(&told.status), "{told:?}");
        if told.status == 422 {
            prop_assert!(!told.places().is_empty(), "{told:?}");
            prop_assert!(api.world().submitted.is_empty());
        }
    }
}

#[tokio::test]
async fn creates_over_the_rate_of_a_project_are_told_when_to_come_back() {
    let api = Api::new();
    let limits = json!({"create_rate": 0.01, "create_burst": 2});
    assert_eq!(api.ask("", "PUT", "/v1/projects/shop", &limits).await.status, 200);
    let task = |project: &str| json!({"type": "http", "project": project, "group": "o", "delay": 5, "url": "https://a.example"});
    let mut one = task("shop");
    one.as_object_mut().expect("an object").remove("type");
    assert_eq!(api.ask("", "POST", "/v1/tasks/http", &one).await.status, 201);
    let mut wrong = one.clone();
    wrong["group"] = json!("No");
    assert_eq!(api.ask("", "POST", "/v1/tasks/http", &wrong).await.status, 422);
    let batch = json!({"tasks": [task("shop"), task("shop"), task("other")]});
    let told = api.ask("", "POST", "/v1/tasks:batchCreate", &batch).await;
    let statuses: Vec<u64> = told.json["tasks"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|of| of["status"].as_u64())
        .collect();
    assert_eq!(statuses, [201, 429, 201], "what was refused has cost nothing: {told:?}");
    let in_batch = &told.json["tasks"][1]["problem"];
    assert_eq!(in_batch["code"], "over_create_rate");
    let seconds = in_batch["retry_after"].as_u64().expect("it says when");
    assert!((90..=100).contains(&seconds), "{in_batch}");
    let told = api.ask("", "POST", "/v1/tasks/http", &one).await;
    assert_eq!((told.status, told.code()), (429, "over_create_rate"));
    let seconds: u64 = told.headers[header::RETRY_AFTER].to_str().unwrap().parse().unwrap();
    assert!((90..=100).contains(&seconds), "{seconds}");
    assert_eq!(told.json["retry_after"], seconds);
    let told = api.ask("", "POST", "/v1/tasks/http", &wrong).await;
    assert!(told.json.get("retry_after").is_none(), "to wait does not help: {told:?}");
    assert_eq!(api.world().submitted.len(), 3);
}

#[tokio::test]
async fn a_repeated_create_over_a_quota_is_answered_as_the_first_one() {
    let api = Api::new();
    let limits = json!({"create_rate": 0.01, "create_burst": 1});
    assert_eq!(api.ask("", "PUT", "/v1/projects/shop", &limits).await.status, 200);
    let named = |name: &str| json!({"request_id": name});
    let first = api.create(&named("r1")).await;
    assert_eq!(first.status, 201);
    let id = first.json["task_id"].as_str().expect("an id").to_owned();
    assert!(api.world().looks.is_empty(), "within the quota nothing is looked up");
    // Its record is not seen yet, or its history has run out.
    assert_eq!(api.create(&named("r1")).await.code(), "over_create_rate");
    api.world().tasks.insert(id.clone(), task(&id, "shop"));
    let again = api.create(&named("r1")).await;
    assert_eq!((again.status, &again.json["task_id"]), (201, &first.json["task_id"]));
    assert_eq!(api.create(&named("r2")).await.status, 429);
    let looks = api.world().looks.len();
    assert_eq!(api.create(&json!({})).await.status, 429);
    assert_eq!(api.world().looks.len(), looks, "without a name it cannot be there");
    api.world().failure = Some(Failure::Moving("moves".to_owned()));
    assert_eq!(api.create(&named("r1")).await.status, 429);
    api.world().failure = None;

    let of = |more: &Value| {
        let mut of = call(more);
        of["type"] = json!("http");
        of
    };
    let batch = json!({"tasks": [
        of(&json!({"project": "other"})), of(&named("r1")), of(&named("r2")), of(&json!({})),
        of(&json!({"project": "other", "url": "https://other.example/"})),
    ]});
    let told = api.ask("", "POST", "/v1/tasks:batchCreate", &batch).await.json;
    let told = told["tasks"].as_array().expect("a list");
    let statuses: Vec<_> = told.iter().map(|of| of["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 201, 429, 429, 201]);
    assert_eq!(told[1]["task_id"], first.json["task_id"]);
    let submitted: Vec<_> = api.world().submitted.iter().map(|of| of.id.to_string()).collect();
    let ids: Vec<_> = [0, 4].map(|nth: usize| told[nth]["task_id"].as_str().unwrap()).into();
    assert_eq!(submitted[1..], ids, "each answer is that of its own task");
    let stats = api.ask("", "GET", "/v1/projects/shop/stats", &Value::Null).await.json;
    assert_eq!(stats["refused"]["over_create_rate"], 6, "what exists was not refused");
}

#[tokio::test]
async fn a_project_says_how_far_ahead_and_how_large_its_tasks_may_be() {
    let api = Api::new();
    let limits = json!({"max_delay": "1h", "max_body": 4});
    assert_eq!(api.ask("", "PUT", "/v1/projects/shop", &limits).await.status, 200);
    let told = api.ask("", "GET", "/v1/projects/shop", &Value::Null).await;
    assert_eq!((&told.json["max_delay"], &told.json["max_body"]), (&json!("1h"), &json!(4)));
    #[rustfmt::skip]
    let cases: [(Value, &[&str]); 8] = [
        (json!({"delay": "1h", "body": "1234"}),                      &[]),
        (json!({"delay": "1h", "body_b64": "MTIzNA=="}),              &[]),
        (json!({"delay": 3_601, "body": "12345"}),                    &["body", "delay"]),
        (json!({"delay": 5, "body_b64": "MTIzNDU="}),                 &["body_b64"]),
        (json!({"delay": 5, "url": "http://169.254.169.254/", "body": "12345"}), &["url", "body"]),
        (json!({"delay": "401d"}),                                    &["delay"]),
        (json!({"delay": "1d", "project": "other", "body": "12345"}), &[]),
        (json!({"delay": "401d", "project": "other"}),                &["delay"]),
    ];
    for (more, places) in cases {
        let told = api.create(&more).await;
        let want = if places.is_empty() { 201 } else { 422 };
        assert_eq!((told.status, told.places()), (want, places.to_vec()), "{more}: {told:?}");
    }
    let record = |more: &Value| {
        let mut record =
            json!({"project": "shop", "group": "o", "trigger_at": NOW + 3_600_000, "topic": "a"});
        for (name, value) in more.as_object().into_iter().flatten() {
            record[name] = value.clone();
        }
        record
    };
    #[rustfmt::skip]
    let cases: [(Value, &[&str]); 4] = [
        (json!({"value": "1234"}),                                          &[]),
        (json!({}),                                                         &[]),
        (json!({"trigger_at": NOW + 3_600_001, "value": "12345"}),          &["value", "trigger_at"]),
        (json!({"value_b64": "MTIzNDU="}),                                  &["value_b64"]),
    ];
    for (more, places) in cases {
        let told = api.ask("", "POST", "/v1/tasks/kafka", &record(&more)).await;
        let want = if places.is_empty() { 201 } else { 422 };
        assert_eq!((told.status, told.places()), (want, places.to_vec()), "{more}: {told:?}");
    }
    // The lanes take 400 days: a project cannot promise more.
    for (delay, status) in [("400d", 200), ("401d", 422)] {
        let told = api.ask("", "PUT", "/v1/projects/shop", &json!({"max_delay": delay})).await;
        assert_eq!(told.status, status, "{delay}: {told:?}");
        assert_eq!(told.places(), if status == 200 { vec![] } else { vec!["max_delay"] });
    }
}

#[tokio::test]
async fn a_project_says_which_hosts_its_tasks_and_services_may_name() {
    let api = Api::new();
    let hosts = json!({"hosts": ["shop.example", "*.pay.example", "169.254.169.254"]});
    assert_eq!(api.ask("", "PUT", "/v1/projects/shop", &hosts).await.status, 200);
    let told = api.ask("", "GET", "/v1/projects/shop", &Value::Null).await;
    assert_eq!(told.json["hosts"], hosts["hosts"]);
    #[rustfmt::skip]
    let cases = [
        ("shop", "https://shop.example/a",       ""),
        ("shop", "https://eu.pay.example:8443/", ""),
        ("shop", "https://pay.example/",         "pay.example is not among the hosts of its project"),
        ("shop", "https://shop.example.evil/",   "shop.example.evil is not among"),
        ("shop", "http://169.254.169.254/",      "may not be called"),
        ("other", "https://pay.example/",        ""),
    ];
    for (project, url, want) in cases {
        let status = |of_ok| if want.is_empty() { of_ok } else { 422 };
        let told = api.create(&json!({"project": project, "url": url})).await;
        assert_eq!(told.status, status(201), "{url}: {told:?}");
        assert!(told.json.to_string().contains(want), "{url}: {told:?}");
        let service = format!("/v1/projects/{project}/services/a");
        let told = api.ask("", "PUT", &service, &json!({"address": url})).await;
        assert_eq!(told.status, status(200), "{url}: {told:?}");
        assert!(told.json.to_string().contains(want), "{url}: {told:?}");
        if !want.is_empty() {
            assert_eq!(told.places(), ["address"]);
        }
    }
    // No host at all.
    assert_eq!(api.ask("", "PUT", "/v1/projects/shop", &json!({"hosts": []})).await.status, 200);
    assert_eq!(api.create(&json!({})).await.places(), ["url"]);
}

#[tokio::test]
async fn tasks_are_spread_over_the_window_of_their_project_or_their_own() {
    const HOUR: u64 = 3_600_000;
    let api = Api::new();
    let window = json!({"window": "10m"});
    assert_eq!(api.ask("", "PUT", "/v1/projects/shop", &window).await.status, 200);
    let told = api.ask("", "GET", "/v1/projects/shop", &Value::Null).await;
    assert_eq!(told.json["window"], "10m");
    let base = NOW + HOUR;
    let at = |n: usize, more: Value| {
        let mut fields = json!({"delay": "1h", "request_id": n.to_string()});
        fields.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
        let api = &api;
        async move {
            let told = api.create(&fields).await;
            assert_eq!(told.status, 201, "{fields}: {told:?}");
            told.json["trigger_at"].as_u64().expect("a time")
        }
    };
    let mut seen = BTreeSet::new();
    for n in 0..100 {
        let due = at(n, json!({})).await;
        assert!((base..base + 600_000).contains(&due), "{due}");
        assert_eq!(due, at(n, json!({})).await, "the same request is due at the same time");
        assert_eq!(api.world().submitted.last().expect("one").due, UnixMillis(due));
        seen.insert((due - base) / 60_000);
        // Its own window wins.
        let own = at(n, json!({"window": 60})).await;
        assert!((base..base + 60_000).contains(&own), "{own}");
        assert_eq!(at(n, json!({"window": "0s"})).await, base);
        // Half of the time until it expires, and never beyond the longest delay.
        let due = at(n, json!({"expires_at": base + 100})).await;
        assert!((base..base + 50).contains(&due), "{due}");
        let due = at(n, json!({"delay": 400 * 24 * 3_600 - 1})).await;
        assert!(due < NOW + 400 * 24 * HOUR, "{due}");
        assert_eq!(at(n, json!({"project": "other"})).await, base);
    }
    assert_eq!(seen.len(), 10, "every minute of the window has some");
    for bad in [json!("61m"), json!(-1), json!("soon")] {
        assert_eq!(api.create(&json!({"window": bad})).await.places(), ["window"]);
    }
}

#[tokio::test]
async fn creates_over_what_a_project_may_have_pending_are_refused_once_that_is_counted() {
    let api = Api::new();
    let bound = json!({"max_pending": 3});
    assert_eq!(api.ask("", "PUT", "/v1/projects/shop", &bound).await.status, 200);
    assert_eq!(api.ask("", "GET", "/v1/projects/shop", &Value::Null).await.json["max_pending"], 3);
    let count = async |ready| {
        let counts = TaskCounts { ready, ..TaskCounts::default() };
        api.world().counts.insert("shop".to_owned(), counts);
        api.count().await;
    };
    count(2).await;
    assert_eq!(api.create(&json!({})).await.status, 201);
    let told = api.create(&json!({})).await;
    assert_eq!((told.status, told.code()), (429, "over_pending"));
    assert_eq!(told.headers[header::RETRY_AFTER], "5");
    assert_eq!(api.create(&json!({"project": "other"})).await.status, 201);
    count(3).await;
    assert_eq!(api.create(&json!({})).await.status, 429);
    // Nobody answers: the last count stands.
    api.world().failure = Some(Failure::Moving("moves".to_owned()));
    count(1).await;
    api.world().failure = None;
    assert_eq!(api.create(&json!({})).await.status, 429);
    count(1).await;
    assert_eq!(api.create(&json!({})).await.status, 201);
    let told = api.ask("", "GET", "/v1/projects/shop/stats", &Value::Null).await;
    assert_eq!(told.json["refused"]["over_pending"], 3);
}
