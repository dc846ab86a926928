//! What this instance knows of tasks and projects, for the API: its service writes, and the owners of lanes answer.

mod report;
mod retry;
mod schedules;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;

use super::executors::Executors;
use super::timers::{TimersOfInstance, error};
use crate::api::members::Members;
use crate::api::projects::{Projects, PutError};
use crate::api::schedules::Schedules;
use crate::api::tasks::model::{
    Attempt, CancelAnswer, CancelOutcome, FeedbackInfo, PausedBy, Payload, PollInfo, RetryInfo,
    Submission, TaskFilter, TaskPage, TaskStatus, TaskView, WaitsFor,
};
use crate::api::tasks::{Desk, Failure, Page, Tasks};
use crate::api::timers::Peers;
use crate::api::timers::model::{NOT_READY, Soon, Timers as _, TimersError};
use crate::api::timers::tasks::{TaskOwners, page_token, place_of};
use crate::config::Config;
use crate::engine::allow::Allow;
use crate::engine::sealed;
use crate::engine::task::id::TaskId;
use crate::engine::task::registry::{Change, Registry};
use crate::engine::task::result::TaskResult;
use crate::engine::task::retry::Retry;
use crate::engine::task::spec::{Address, Grpc, Kind, RUN, Spec};
use crate::engine::timers::{
    self, TaskCancel, TaskCounts, TaskRecord, TaskReport, TimerState, Version, group_of,
};
use crate::engine::{Millis, UnixMillis};
use crate::kafka::{RegistryFeed, SubmitError, meta};
use crate::timers::service::{self, Service};
use crate::worker::Guard;

/// How long Kafka may take to acknowledge creates, and a cancel.
const WRITE_MAX: Duration = Duration::from_secs(10);
/// Begins the path of one task.
const TASKS: &str = "/v1/tasks/";

/// Takes creates of tasks, and answers for tasks and projects; see [`TimersOfInstance`].
#[derive(Clone)]
pub(super) struct TasksOfInstance {
    timers: Arc<TimersOfInstance>,
    owners: TaskOwners,
    executors: Executors,
}

impl TasksOfInstance {
    pub(super) fn new(timers: &Arc<TimersOfInstance>, peers: Peers, executors: Executors) -> Self {
        let owners = TaskOwners::new(Arc::clone(timers) as _, peers);
        Self { timers: Arc::clone(timers), owners, executors }
    }

    /// What the rooms of tasks and projects need.
    pub(super) fn rooms(self, members: Arc<dyn Members>, config: &Config) -> Tasks {
        let this = Arc::new(self);
        let callbacks = &config.callbacks;
        // The configuration was checked when it was loaded.
        let guard = Guard::new(&callbacks.networks, callbacks.hosts.as_deref()).ok();
        Tasks {
            desk: Arc::clone(&this) as Arc<dyn Desk>,
            schedules: Arc::clone(&this) as Arc<dyn Schedules>,
            projects: this,
            members,
            // A name is looked at again before each call, by the addresses that it has then.
            screen: Arc::new(move |url| match &guard {
                Some(guard) => guard.url(url).map_err(|denied| denied.to_string()),
                None => Ok(()),
            }),
            topics: Arc::new(Allow::any(&config.namespace)),
            quotas: Arc::default(),
        }
    }

    fn service(&self) -> Result<&Arc<Service>, Failure> {
        self.timers.service().map_err(failure)
    }

    /// What is known of projects, once it was read.
    fn feed(&self) -> Result<&RegistryFeed, Failure> {
        let feed = self.timers.members().map(|members| members.registry());
        let unread = || Failure::Moving("this instance has not read <ns>.meta yet".to_owned());
        feed.filter(|feed| feed.is_known()).ok_or_else(unread)
    }

    fn time(&self) -> Result<UnixMillis, Failure> {
        Desk::now(self).ok_or_else(|| failure(error(service::Error::Timeless)))
    }

    /// All that is kept of an id.
    async fn find(&self, id: &TaskId) -> Result<Option<TaskRecord>, Failure> {
        let lane = id.lane_of(self.service()?.lanes());
        self.owners.find(lane.0, id).await.map_err(failure)
    }

    async fn task(&self, id: &TaskId) -> Result<Option<TaskView>, Failure> {
        let now = self.time()?;
        let found = self.find(id).await?;
        let registry = self.feed()?.get();
        Ok(found.map(|task| view(&task, now, &registry)))
    }

    async fn page(&self, filter: &TaskFilter) -> Result<TaskPage, Failure> {
        let wanted = timers::TaskFilter {
            projects: filter.projects.clone(),
            group: filter.group.clone(),
            status: filter.status.map(status_in_index),
            of_type: filter.task_type.clone(),
            due_before: filter.due_before,
            now: self.time()?,
        };
        let (tasks, next) = self.pages(&wanted, filter.page.as_deref(), filter.limit).await?;
        let registry = self.feed()?.get();
        let tasks = tasks.iter().map(|task| view(task, wanted.now, &registry)).collect();
        Ok(TaskPage { tasks, next })
    }

    /// What is kept of those that are meant, behind the page with this token.
    async fn pages(
        &self,
        filter: &timers::TaskFilter,
        page: Option<&str>,
        limit: usize,
    ) -> Result<Page, Failure> {
        let place = page.map(|token| place_of(token, filter)).transpose();
        let place = place.map_err(|bad| Failure::BadPage(bad.of_page().to_owned()))?;
        let (found, next) = self.owners.page(filter, place, limit).await.map_err(failure)?;
        Ok((found, next.map(|cursor| page_token(cursor, filter))))
    }

    async fn write(&self, tasks: Vec<Submission>) -> Vec<Result<(), Failure>> {
        let service = match self.service() {
            Ok(service) => service,
            Err(failure) => return tasks.iter().map(|_| Err(failure.clone())).collect(),
        };
        let specs: Vec<Spec> = tasks
            .iter()
            .map(|task| task.spec.clone().with_request_id(task.request_id.clone()))
            .collect();
        let headers: Vec<Vec<(String, Option<Vec<u8>>)>> =
            tasks.iter().map(|task| task.headers.clone()).collect();
        let submissions: Vec<sealed::Submission<'_>> = tasks
            .iter()
            .zip(specs.iter().zip(&headers))
            .map(|(task, (spec, headers))| sealed::Submission {
                id: &task.id,
                spec,
                due: task.due,
                expires: task.expires,
                key: task.key.as_deref(),
                value: task.value.as_deref(),
                headers,
            })
            .collect();
        let done = service.submit_tasks(&submissions, Instant::now() + WRITE_MAX).await;
        done.into_iter().map(|done| done.map_err(not_created)).collect()
    }

    async fn end(&self, id: &TaskId, wait: Duration) -> Result<CancelAnswer, Failure> {
        let service = self.service()?;
        let lane = id.lane_of(service.lanes());
        let began = Instant::now();
        let ticket = service.cancel_task(id, began + WRITE_MAX).await.map_err(not_cancelled)?;
        let left = wait.saturating_sub(began.elapsed());
        let end = self.owners.cancelled(lane.0, ticket.to_string(), left).await;
        let outcome = outcome_of(end.map_err(failure)?).ok_or(Failure::NoTask)?;
        let is_pending = outcome == CancelOutcome::Pending;
        let again = is_pending.then(|| format!("{TASKS}{id}"));
        Ok(CancelAnswer { task_id: id.to_string(), outcome, again })
    }
}

impl Desk for TasksOfInstance {
    fn in_force(&self) -> Result<(), Failure> {
        let service = self.service()?;
        if !service.may_have_tasks() {
            let detail = "tasks need delivery = \"exactly_once\" and tracking = \"full\"";
            return Err(Failure::NotAvailable(detail.to_owned()));
        }
        if self.feed()?.has_tasks() {
            return Ok(());
        }
        let detail = "this namespace has no tasks yet: stop all instances, run `waterclock topics apply --tasks`, and start them";
        Err(Failure::NotAvailable(detail.to_owned()))
    }

    fn lanes(&self) -> u16 {
        self.timers.lanes()
    }

    fn instances(&self) -> u16 {
        let members = self.timers.members().map(|members| members.members()).unwrap_or_default();
        let members = members.iter().filter(|member| member.api).count();
        u16::try_from(members).unwrap_or(u16::MAX).max(1)
    }

    fn now(&self) -> Option<UnixMillis> {
        self.timers.now().map(UnixMillis)
    }

    fn max_delay(&self) -> Millis {
        self.service().map_or(Millis(0), |service| service.max_delay())
    }

    fn submit(&self, tasks: Vec<Submission>) -> Soon<'_, Vec<Result<(), Failure>>> {
        Box::pin(self.write(tasks))
    }

    fn get<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<Option<TaskView>, Failure>> {
        Box::pin(self.task(id))
    }

    fn list<'a>(&'a self, filter: &'a TaskFilter) -> Soon<'a, Result<TaskPage, Failure>> {
        Box::pin(self.page(filter))
    }

    fn cancel<'a>(
        &'a self,
        id: &'a TaskId,
        wait: Duration,
    ) -> Soon<'a, Result<CancelAnswer, Failure>> {
        Box::pin(self.end(id, wait))
    }

    fn retry<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<TaskView, Failure>> {
        Box::pin(self.call_now(id))
    }

    fn counts<'a>(
        &'a self,
        projects: &'a BTreeSet<String>,
    ) -> Soon<'a, Result<BTreeMap<String, TaskCounts>, Failure>> {
        Box::pin(async move { self.owners.counts(projects).await.map_err(failure) })
    }

    fn kept<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<Option<TaskRecord>, Failure>> {
        Box::pin(self.find(id))
    }

    fn records<'a>(
        &'a self,
        filter: &'a timers::TaskFilter,
        page: Option<&'a str>,
        limit: usize,
    ) -> Soon<'a, Result<Page, Failure>> {
        Box::pin(self.pages(filter, page, limit))
    }

    fn payload<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<Option<Payload>, Failure>> {
        Box::pin(self.sent_by(id))
    }

    fn is_ticket(&self, id: &TaskId, ticket: &str) -> Result<(), Failure> {
        self.turn_of(id, ticket).map(drop)
    }

    fn last_ticket<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<Option<String>, Failure>> {
        Box::pin(self.ticket_in_force(id))
    }

    fn report<'a>(
        &'a self,
        id: &'a TaskId,
        ticket: &'a str,
        result: &'a TaskResult,
    ) -> Soon<'a, Result<TaskReport, Failure>> {
        Box::pin(self.hear(id, ticket, result))
    }

    fn readers<'a>(&'a self, topic: &'a str) -> Soon<'a, Option<u32>> {
        Box::pin(self.executors.of(topic))
    }
}

impl Projects for TasksOfInstance {
    fn registry(&self) -> Result<Arc<Registry>, Failure> {
        Ok(self.feed()?.get())
    }

    fn put(&self, change: Change, revision: Option<u64>) -> Soon<'_, Result<u64, PutError>> {
        Box::pin(async move {
            let away = |detail: String| PutError::Unavailable(detail);
            let members = self.timers.members();
            let members = members.ok_or_else(|| away(NOT_READY.to_owned()))?;
            let registrar = members.registrar().clone();
            let putting = spawn_blocking(move || registrar.put(change, revision)).await;
            match putting {
                Ok(put) => put.map_err(|error| match error {
                    meta::PutError::Conflict { revision, .. } => {
                        PutError::Conflict { current: revision }
                    }
                    meta::PutError::NoRoom(wrong) => PutError::NoRoom(wrong),
                    meta::PutError::Deleted(wrong) => PutError::Deleted(wrong),
                    other => {
                        tracing::warn!(
                            error = &other as &dyn std::error::Error,
                            "could not change a project"
                        );
                        away(other.to_string())
                    }
                }),
                Err(error) => {
                    tracing::error!(%error, "a change of a project panicked");
                    Err(away("internal error; see the log".to_owned()))
                }
            }
        })
    }
}

/// Why a create was not acknowledged.
fn not_created(why: service::Error) -> Failure {
    match why {
        service::Error::Submit(error) if error.is_too_large() => {
            let detail = "the record is larger than the intake takes (its max.message.bytes)";
            Failure::TooLarge(detail.to_owned())
        }
        service::Error::Submit(error @ SubmitError::Unacknowledged { .. }) => Failure::Unknown(
            format!("{error}; with a request_id, to ask again is safe: it is one task then"),
        ),
        why => failure(error(why)),
    }
}

/// Why a cancel was not written.
fn not_cancelled(why: service::Error) -> Failure {
    match why {
        service::Error::Submit(error @ SubmitError::Unacknowledged { .. }) => {
            Failure::Unknown(format!("{error}; to cancel again is safe"))
        }
        why => failure(error(why)),
    }
}

pub(super) fn failure(error: TimersError) -> Failure {
    match error {
        TimersError::Moving(detail) | TimersError::NotFound(detail) => Failure::Moving(detail),
        TimersError::Unknown(detail) => Failure::Unknown(detail),
        TimersError::Away(detail) => Failure::Away(detail),
        TimersError::NoIndex(detail) => Failure::NoIndex(detail),
        TimersError::Busy(detail) => Failure::Busy(detail),
        // About times of timers, which nobody asks of tasks.
        TimersError::NotPending(_) => Failure::Moving("the task is not pending".to_owned()),
        TimersError::Refused(_, detail) => Failure::Moving(detail),
    }
}

fn status_in_index(status: TaskStatus) -> timers::TaskStatus {
    match status {
        TaskStatus::Delay => timers::TaskStatus::Delay,
        TaskStatus::Ready => timers::TaskStatus::Ready,
        TaskStatus::Running => timers::TaskStatus::Running,
        TaskStatus::Finished => timers::TaskStatus::Finished,
        TaskStatus::Failed => timers::TaskStatus::Failed,
        TaskStatus::Cancelled => timers::TaskStatus::Cancelled,
        TaskStatus::Expired => timers::TaskStatus::Expired,
    }
}

fn status_shown(status: timers::TaskStatus) -> TaskStatus {
    match status {
        timers::TaskStatus::Delay => TaskStatus::Delay,
        timers::TaskStatus::Ready => TaskStatus::Ready,
        timers::TaskStatus::Running => TaskStatus::Running,
        timers::TaskStatus::Finished => TaskStatus::Finished,
        timers::TaskStatus::Failed => TaskStatus::Failed,
        timers::TaskStatus::Cancelled => TaskStatus::Cancelled,
        timers::TaskStatus::Expired => TaskStatus::Expired,
    }
}

/// What a cancel is answered with; `None`: there is no task.
const fn outcome_of(cancel: TaskCancel) -> Option<CancelOutcome> {
    Some(match cancel {
        TaskCancel::Cancelled => CancelOutcome::Cancelled,
        TaskCancel::Stopped => CancelOutcome::Stopped,
        TaskCancel::Finished => CancelOutcome::Finished,
        TaskCancel::Failed => CancelOutcome::Failed,
        TaskCancel::Expired => CancelOutcome::Expired,
        TaskCancel::Pending => CancelOutcome::Pending,
        TaskCancel::Absent => return None,
    })
}

/// A task as callers see it at a time.
fn view(task: &TaskRecord, now: UnixMillis, registry: &Registry) -> TaskView {
    let TaskRecord { timer, attempts, .. } = task;
    let progress = timer.task.unwrap_or_default();
    let spec = task.spec.as_deref().and_then(|spec| Spec::parse(spec.as_bytes()).ok());
    let status = timers::TaskStatus::of(timer, now);
    let group = group_of(timer.label.as_deref());
    let named = |of_spec: Option<&str>, of_label: Option<&str>| {
        of_spec.or(of_label).unwrap_or_default().to_owned()
    };
    let project = named(spec.as_ref().map(Spec::project), group.map(|(project, _)| project));
    let service = spec.as_ref().and_then(Spec::service);
    let (http, kafka, grpc) = match spec.as_ref().map(Spec::kind) {
        Some(Kind::Http(http)) => (Some(http), None, None),
        Some(Kind::Kafka(kafka)) => (None, Some(kafka), None),
        Some(Kind::Grpc(grpc)) => (None, None, Some(grpc)),
        Some(Kind::Schedule(_) | Kind::Run(_)) => (None, None, None),
        None => (None, None, None),
    };
    let (host, tls) = grpc.and_then(Grpc::host).unzip();
    let topic = kafka.map(|kafka| &kafka.topic);
    let paused = registry.paused_by(&project, service, topic.map(String::as_str));
    let paused = [
        (PausedBy::Project, paused.project),
        (PausedBy::Service, paused.service),
        (PausedBy::Topic, paused.topic),
    ];
    let paused: Vec<PausedBy> =
        paused.into_iter().filter_map(|(by, is_paused)| is_paused.then_some(by)).collect();
    let waits_for = match status {
        // It is under no limit: its shards are.
        _ if timer.type_of_task() == RUN => None,
        timers::TaskStatus::Ready if progress.held.is_some() => Some(WaitsFor::Worker),
        timers::TaskStatus::Ready if !paused.is_empty() => Some(WaitsFor::Paused),
        timers::TaskStatus::Ready if progress.breaker => Some(WaitsFor::Breaker),
        // A record for a topic without a rate is under no limit: it leaves with the next batch.
        timers::TaskStatus::Ready
            if topic.is_some_and(|topic| registry.target(topic).limit().is_none()) =>
        {
            None
        }
        timers::TaskStatus::Ready => Some(WaitsFor::Limit),
        _ => None,
    };
    let attempts: Vec<Attempt> = attempts.iter().map(attempt).collect();
    let (url, path) = match http.map(|http| &http.address) {
        Some(Address::Url(url)) => (Some(url.to_string()), None),
        Some(Address::Service { path, .. }) => (None, path.clone()),
        None => (None, None),
    };
    TaskView {
        method: http
            .map(|http| http.method.as_str())
            .or_else(|| grpc.map(|grpc| grpc.method.as_str()))
            .map(str::to_owned),
        url,
        // Each type has the names of the fields that create it.
        service: grpc.map(|grpc| grpc.service.as_str()).or(service).map(str::to_owned),
        named_service: service.filter(|_| grpc.is_some()).map(str::to_owned),
        host,
        tls,
        format: grpc.map(|grpc| grpc.format.as_str().to_owned()),
        path,
        timeout: http
            .and_then(|http| http.timeout)
            .or_else(|| grpc.and_then(|grpc| grpc.timeout))
            .map(Into::into),
        expect: http.map(|http| http.expect.to_string()),
        poll: spec
            .as_ref()
            .and_then(Spec::poll)
            .map(|poll| PollInfo { interval: poll.interval.into(), rounds: poll.rounds }),
        feedback: spec.as_ref().and_then(Spec::feedback).map(|feedback| FeedbackInfo {
            deadline: feedback.deadline.into(),
            heartbeat: Some(feedback.heartbeat.into()),
        }),
        follow_up: spec.as_ref().and_then(Spec::on_result).and_then(|_| follow_up(task)),
        on_result: spec.as_ref().and_then(Spec::on_result).map(Into::into),
        headers: http
            .map(|http| &http.headers)
            .or_else(|| grpc.map(|grpc| &grpc.headers))
            .cloned()
            .unwrap_or_default(),
        partition: kafka.and_then(|kafka| kafka.partition),
        // One that was refused when it was created has no specification.
        topic: topic.cloned().or_else(|| {
            let is_topic = spec.is_none() && timer.type_of_task() == "kafka";
            is_topic.then(|| timer.target.to_string())
        }),
        task_id: task.id.to_string(),
        task_type: spec.as_ref().map_or_else(|| timer.type_of_task(), Spec::type_name).to_owned(),
        task_status: status_shown(status),
        outcome: TaskCancel::of(timer)
            .filter(|_| status == timers::TaskStatus::Cancelled)
            .and_then(outcome_of),
        trigger_at: timer.due.0,
        nominal_at: task.id.nominal().map(|at| at.0),
        expires_at: spec.as_ref().and_then(Spec::expires).map(|at| at.0),
        group: named(spec.as_ref().map(Spec::group), group.map(|(_, group)| group)),
        request_id: spec.as_ref().and_then(Spec::request_id).map(str::to_owned),
        created_at: timer.version.first_appended.0,
        retry: spec.as_ref().and_then(Spec::retry).map(retry),
        turn: progress.turn,
        attempts_total: progress.attempts,
        failures: progress.failures,
        rounds: progress.rounds,
        interruptions: progress.interruptions.into(),
        cancelling: progress.cancelling && !status.is_final(),
        next_at: (!status.is_final()).then_some(progress.next_at.0),
        waits_for,
        paused_by: if waits_for == Some(WaitsFor::Paused) { paused } else { Vec::new() },
        ended_at: status.is_final().then(|| timer.shown_since().0),
        code: timer.code.map(|code| code.as_str().to_owned()),
        last: attempts.last().cloned(),
        cursor: attempts.iter().rev().find_map(|attempt| attempt.cursor.clone()),
        attempts,
        payload: None,
        project,
    }
}

/// The id of the follow-up of a task that has one, if it has ended so that one was written.
fn follow_up(task: &TaskRecord) -> Option<String> {
    let is_told = matches!(task.timer.state, TimerState::Delivered | TimerState::Dead);
    let Version { first_appended, offset } = task.timer.version;
    is_told.then(|| task.id.follow_up((first_appended, offset)).to_string())
}

fn retry(of: &Retry) -> RetryInfo {
    RetryInfo {
        count: Some(of.count()),
        interval: Some(of.interval().into()),
        backoff: Some(of.backoff().as_str().to_owned()),
        max_interval: Some(of.max_interval().into()),
        jitter: Some(f64::from(of.jitter_thousandths()) / 1_000.0),
    }
}

fn attempt(of: &timers::Attempt) -> Attempt {
    let result = &of.result;
    let (response, response_b64) = beginning(result.response.as_deref());
    Attempt {
        turn: of.turn,
        started: result.started.map(|at| at.0),
        ended: result.ended.map(|at| at.0),
        status: result.status,
        outcome: result.outcome.as_str().to_owned(),
        error: result.error.clone(),
        worker: result.worker.clone(),
        response,
        response_b64,
        cursor: result.cursor.clone(),
        percent: result.percent,
    }
}

/// The beginning of an answer, as text or in base64. A character at its end may be cut.
fn beginning(bytes: Option<&[u8]>) -> (Option<String>, Option<String>) {
    let whole = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    };
    retry::text(bytes.map(|bytes| &bytes[..whole(bytes)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::task::result::{Outcome, TaskResult};
    use crate::engine::task::scope::TasksPartition;
    use crate::engine::timers::{HeldBy, LaneTimer, Progress, Timer, TimerId, TimerState, Version};
    use crate::engine::{Lane, Offset};

    #[test]
    fn the_beginning_of_an_answer_is_shown_as_text_where_it_is_one() {
        let text = |text: &str| (Some(text.to_owned()), None);
        assert_eq!(beginning(None), (None, None));
        assert_eq!(beginning(Some(b"paid")), text("paid"));
        // The limit is in bytes, so it may cut a character.
        assert_eq!(beginning(Some(&"pa\u{e9}".as_bytes()[..3])), text("pa"));
        assert_eq!(beginning(Some(b"\xffpaid")), (None, Some("/3BhaWQ=".to_owned())));
    }

    const OVER_HTTP: &str = r#"{"type":"http","project":"shop","group":"orders","request_id":"a","service":"billing","path":"/x","retry":{"count":3,"interval":5}}"#;

    fn record(state: TimerState, progress: Progress) -> TaskRecord {
        record_of(OVER_HTTP, state, progress)
    }

    fn record_of(spec: &str, state: TimerState, progress: Progress) -> TaskRecord {
        let timer_id = TimerId([1; 16]);
        let timer = Timer {
            timer_id,
            state,
            version: Version { first_appended: UnixMillis(5), offset: Offset(1) },
            supersedes: None,
            due: UnixMillis(100),
            since: UnixMillis(200),
            target: "shop/billing".into(),
            label: Some("shop/orders".into()),
            id: b"9f2c".as_slice().into(),
            key: None,
            key_cut: false,
            code: None,
            task: Some(progress),
        };
        let result = TaskResult {
            started: Some(UnixMillis(101)),
            status: Some(503),
            worker: Some("w".to_owned()),
            ..TaskResult::new(Outcome::Failed)
        };
        let attempt = timers::Attempt { timer_id, turn: 2, number: 1, result };
        let of = LaneTimer { lane: Lane(0), timer };
        TaskRecord::new(of, Some(spec.into()), vec![attempt]).unwrap()
    }

    fn shown(state: TimerState, progress: Progress, now: u64) -> TaskView {
        view(&record(state, progress), UnixMillis(now), &Registry::default())
    }

    #[test]
    fn a_task_that_has_ended_names_the_task_by_which_that_is_told() {
        let to = |of: &str| {
            let spec = format!(
                r#"{{"type":"http","project":"shop","group":"orders","service":"billing"{of}}}"#
            );
            move |state| {
                let of = record(state, Progress { turn: 1, ..Progress::default() });
                let task = TaskRecord { spec: Some(spec.as_str().into()), ..of };
                let shown = view(&task, UnixMillis(300), &Registry::default());
                (shown.on_result.is_some(), shown.follow_up)
            }
        };
        let told = to(r#","on_result":{"topic":"done"}"#);
        let id = TaskId::parse("9f2c").unwrap().follow_up((UnixMillis(5), Offset(1))).to_string();
        for state in [TimerState::Delivered, TimerState::Dead] {
            assert_eq!(told(state), (true, Some(id.clone())), "{state:?}");
            assert_eq!(to("")(state), (false, None), "{state:?}");
        }
        for state in [TimerState::Delay, TimerState::Cancelled, TimerState::Expired] {
            assert_eq!(told(state), (true, None), "{state:?}");
        }
    }

    #[test]
    fn a_task_of_a_schedule_is_shown_with_its_nominal_time() {
        let of = |id: &TaskId| {
            let task = record(TimerState::Delay, Progress::default());
            let task = TaskRecord { id: id.clone(), ..task };
            view(&task, UnixMillis(300), &Registry::default()).nominal_at
        };
        let schedule = TaskId::schedule("shop", "nightly").unwrap();
        let at = UnixMillis(1_801_353_600_000);
        assert_eq!(of(&schedule.occurrence(at)), Some(at.0));
        assert_eq!(of(&schedule.triggered([7; 8])), None);
        assert_eq!(of(&TaskId::parse("9f2c").unwrap()), None);
    }

    #[test]
    fn a_task_is_shown_with_its_specification_its_progress_and_its_attempts() {
        let progress = Progress {
            turn: 2,
            attempts: 1,
            failures: 1,
            begun: true,
            next_at: UnixMillis(300),
            ..Progress::default()
        };
        let of = shown(TimerState::Delay, progress, 250);
        assert_eq!(
            (&*of.task_id, &*of.task_type, of.task_status),
            ("9f2c", "http", TaskStatus::Delay)
        );
        assert_eq!(
            (&*of.project, &*of.group, of.request_id.as_deref()),
            ("shop", "orders", Some("a"))
        );
        assert_eq!((of.trigger_at, of.created_at, of.next_at), (100, 5, Some(300)));
        let calls = (of.method.as_deref(), of.service.as_deref(), of.path.as_deref());
        assert_eq!(calls, (Some("POST"), Some("billing"), Some("/x")));
        assert_eq!((of.url, of.topic), (None, None));
        assert_eq!((of.turn, of.attempts_total, of.failures), (2, 1, 1));
        assert_eq!(of.retry.and_then(|retry| retry.count), Some(3));
        let last = of.last.unwrap();
        assert_eq!((last.turn, last.status, &*last.outcome), (2, Some(503), "failed"));
        assert_eq!(of.attempts, [last]);
        assert_eq!((of.waits_for, of.ended_at), (None, None));
        let of = shown(TimerState::Delivered, progress, 250);
        assert_eq!(
            (of.task_status, of.ended_at, of.next_at),
            (TaskStatus::Finished, Some(200), None)
        );
        assert_eq!(of.outcome, None);
        // A call began, whether its end was heard of or not.
        let of = shown(TimerState::Cancelled, Progress { attempts: 0, ..progress }, 250);
        assert_eq!(
            (of.task_status, of.outcome),
            (TaskStatus::Cancelled, Some(CancelOutcome::Stopped))
        );
        let of = shown(TimerState::Cancelled, Progress { begun: false, ..progress }, 250);
        assert_eq!(of.outcome, Some(CancelOutcome::Cancelled));
    }

    #[test]
    fn a_task_that_is_due_says_what_it_waits_for() {
        let held = Some(HeldBy { partition: TasksPartition(0), credits: 1 });
        let due = Progress { next_at: UnixMillis(100), ..Progress::default() };
        let ready = Progress { held, ..due };
        let running = Progress { open: true, ..ready };
        let of = |progress, now| {
            let of = shown(TimerState::Delay, progress, now);
            (of.task_status, of.waits_for)
        };
        assert_eq!(of(due, 99), (TaskStatus::Delay, None));
        assert_eq!(of(due, 100), (TaskStatus::Ready, Some(WaitsFor::Limit)));
        assert_eq!(of(ready, 100), (TaskStatus::Ready, Some(WaitsFor::Worker)));
        assert_eq!(of(running, 100), (TaskStatus::Running, None));
        let sent_back = Progress { breaker: true, ..due };
        assert_eq!(of(sent_back, 99), (TaskStatus::Ready, Some(WaitsFor::Breaker)));
        let again = Progress { held, ..sent_back };
        assert_eq!(of(again, 99), (TaskStatus::Ready, Some(WaitsFor::Worker)));
        let paused = br#"{"version":1,"revision":1,"paused":true}"#;
        let service = br#"{"version":1,"revision":1,"paused":true,"address":"http://a.example/"}"#;
        let (of_project, of_service) =
            (("project/shop", &paused[..]), ("service/shop/billing", &service[..]));
        let none: [(&str, &[u8]); 0] = [];
        let cases = [
            (&none[..], &[][..]),
            (&[of_project][..], &[PausedBy::Project][..]),
            (&[of_service][..], &[PausedBy::Service][..]),
            (&[of_project, of_service][..], &[PausedBy::Project, PausedBy::Service][..]),
            (&[("service/shop/other", &service[..])][..], &[][..]),
            (&[("target/billing", &paused[..])][..], &[][..]),
        ];
        for (puts, want) in cases {
            let mut registry = Registry::default();
            for (key, value) in puts {
                let change = crate::engine::task::registry::read(key, Some(value)).unwrap();
                registry.apply(change).unwrap();
            }
            let of = view(&record(TimerState::Delay, due), UnixMillis(100), &registry);
            let waits_for = if want.is_empty() { WaitsFor::Limit } else { WaitsFor::Paused };
            assert_eq!((of.waits_for, &*of.paused_by), (Some(waits_for), want), "{puts:?}");
        }
    }

    #[test]
    fn a_task_that_goes_to_a_topic_waits_for_its_rate_if_it_has_one() {
        let spec = r#"{"type":"kafka","project":"shop","group":"orders","topic":"orders.out"}"#;
        let due = Progress { next_at: UnixMillis(100), ..Progress::default() };
        let cases = [
            ("{}", "orders.out", 100, None),
            (r#"{"rate":5}"#, "orders.out", 100, Some(WaitsFor::Limit)),
            (r#"{"rate":5}"#, "orders.out", 99, None),
            (r#"{"rate":5}"#, "orders.other", 100, None),
            (r#"{"rate":5,"paused":true}"#, "orders.out", 100, Some(WaitsFor::Paused)),
        ];
        for (settings, topic, now, want) in cases {
            let mut registry = Registry::default();
            let key = format!("target/{topic}");
            let change = crate::engine::task::registry::read_request(&key, settings.as_bytes());
            registry.apply(change.unwrap().with_revision(1)).unwrap();
            let record = record_of(spec, TimerState::Delay, due);
            let waits_for = view(&record, UnixMillis(now), &registry).waits_for;
            assert_eq!(waits_for, want, "{settings} of {topic} at {now}");
        }
    }

    #[test]
    fn a_cancel_that_is_not_decided_is_shown_until_it_is() {
        let cancelling = Progress { cancelling: true, open: true, ..Progress::default() };
        assert!(shown(TimerState::Delay, cancelling, 250).cancelling);
        assert!(
            !shown(TimerState::Delay, Progress { cancelling: false, ..cancelling }, 250).cancelling
        );
        let over = shown(TimerState::Delivered, cancelling, 250);
        assert!(!over.cancelling && !serde_json::to_string(&over).unwrap().contains("cancelling"));
    }
}
