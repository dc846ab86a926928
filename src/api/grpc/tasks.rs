//! `waterclock.v1.Tasks`.

use std::time::Duration;

use serde_json::Value;
use tonic::{Request, Response, Status};
use waterclock_proto::v1;
use waterclock_proto::v1::new_task::Task as New;

use super::super::audit;
use super::super::problem::Problem;
use super::super::tasks::model::{Created, TaskFilter};
use super::super::tasks::{self, create, single};
use super::super::timers::{WAIT_MS, WAIT_MS_MAX};
use super::convert::{self, Span, template};
use super::{asked_by, of_problem, peer, status};
use crate::engine::UnixMillis;
use crate::engine::task::Wrong;
use crate::engine::task::id::TaskId;
use crate::engine::task::registry::is_name;
use crate::engine::task::report;
use crate::engine::task::request::{self, BATCH_MAX};

/// Bytes of a report, as its reader takes them.
const REPORT_BYTES_MAX: usize = 128 << 10;

/// See the module.
pub(super) struct Service(pub(super) tasks::Tasks);

type Answered<T> = Result<Response<T>, Status>;

fn told(problem: Problem) -> Status {
    of_problem(&problem)
}

/// Some fields are wrong.
pub(super) fn wrong(at: &str, detail: impl Into<String>) -> Status {
    let wrong = Wrong { at: at.to_owned(), detail: detail.into() };
    of_problem(&Problem::wrong_fields(&[wrong]))
}

/// Reads a request for a task.
pub(super) fn read(task: New) -> Result<request::Request, Vec<Wrong>> {
    let service = template::service_of_grpc(&task);
    let (of_type, (fields, payload)) = template::request(task);
    let read = request::read_beside(of_type, fields, payload);
    read.map_err(|mut wrongs| {
        template::name_service(&mut wrongs, service.as_deref());
        wrongs
    })
}

fn id_of(text: &str) -> Result<TaskId, Status> {
    TaskId::parse(text).map_err(|error| wrong("task_id", format!("is {error}")))
}

/// A length of time that is waited for, from nothing to a minute.
pub(super) fn wait(span: Option<Span>) -> Result<Duration, Status> {
    let Some(span) = span else { return Ok(Duration::from_millis(WAIT_MS)) };
    let most = Duration::from_millis(WAIT_MS_MAX);
    let wait = Duration::try_from(span).ok().filter(|wait| *wait <= most);
    wait.ok_or_else(|| wrong("wait", format!("want 0 to {} s", most.as_secs())))
}

/// A name to look for; `None`: any.
pub(super) fn name(at: &str, text: String) -> Result<Option<String>, Status> {
    if text.is_empty() || is_name(&text) {
        return Ok(Some(text).filter(|text| !text.is_empty()));
    }
    Err(wrong(at, format!("{text:?} is no name; want 1 to 64 of a-z 0-9 . _ -, not . or ..")))
}

/// How many are wanted at most; 0: as many as if nothing is said.
pub(super) fn most(at: &str, number: u32, (unsaid, max): (usize, usize)) -> Result<usize, Status> {
    match usize::try_from(number) {
        Ok(0) => Ok(unsaid),
        Ok(number) if number <= max => Ok(number),
        _ => Err(wrong(at, format!("want 1 to {max}"))),
    }
}

fn created(of: Created) -> v1::CreateTaskResponse {
    let trigger_at = i64::try_from(of.trigger_at).unwrap_or(i64::MAX);
    v1::CreateTaskResponse { task_id: of.task_id, trigger_at }
}

fn batch_created(of: Result<Created, Problem>) -> v1::BatchCreated {
    match of.map(created) {
        Ok(v1::CreateTaskResponse { task_id, trigger_at }) => {
            v1::BatchCreated { task_id, trigger_at, problem: None }
        }
        Err(problem) => {
            let errors = problem.wrong_fields_named().into_iter();
            let errors = errors
                .map(|(at, description)| v1::WrongField { field: status::field(&at), description });
            let problem = v1::Problem {
                grpc_code: status::code_of(&problem) as i32,
                code: problem.code().to_owned(),
                detail: problem.detail().to_owned(),
                errors: errors.collect(),
                retry_after: problem.retry_s(),
            };
            v1::BatchCreated { problem: Some(problem), ..v1::BatchCreated::default() }
        }
    }
}

impl Service {
    async fn create<T>(
        &self,
        request: Request<T>,
        task: impl FnOnce(T) -> New,
    ) -> Answered<v1::CreateTaskResponse> {
        let (caller, came) = asked_by(&request)?;
        create::may_create(&self.0, &caller).map_err(told)?;
        let read = read(task(request.into_inner()));
        let request = read.map_err(|wrongs| of_problem(&Problem::wrong_fields(&wrongs)))?;
        let task = create::create(&self.0, came, &caller, request).await.map_err(told)?;
        Ok(Response::new(created(task)))
    }
}

#[tonic::async_trait]
impl v1::tasks_server::Tasks for Service {
    async fn create_http_task(
        &self,
        request: Request<v1::CreateHttpTaskRequest>,
    ) -> Answered<v1::CreateTaskResponse> {
        self.create(request, New::Http).await
    }

    async fn create_kafka_task(
        &self,
        request: Request<v1::CreateKafkaTaskRequest>,
    ) -> Answered<v1::CreateTaskResponse> {
        self.create(request, New::Kafka).await
    }

    async fn create_grpc_task(
        &self,
        request: Request<v1::CreateGrpcTaskRequest>,
    ) -> Answered<v1::CreateTaskResponse> {
        self.create(request, New::Grpc).await
    }

    async fn batch_create_tasks(
        &self,
        request: Request<v1::BatchCreateTasksRequest>,
    ) -> Answered<v1::BatchCreateTasksResponse> {
        let (caller, came) = asked_by(&request)?;
        create::may_create(&self.0, &caller).map_err(told)?;
        let tasks = request.into_inner().tasks;
        if !(1..=BATCH_MAX).contains(&tasks.len()) {
            return Err(wrong(
                "tasks",
                format!("has {} tasks; want 1 to {BATCH_MAX}", tasks.len()),
            ));
        }
        let read = |task: v1::NewTask| match task.task {
            Some(task) => read(task),
            None => {
                let detail = "is missing; want one of http, kafka, grpc and run".to_owned();
                Err(vec![Wrong { at: "task".to_owned(), detail }])
            }
        };
        let batch = tasks.into_iter().map(read).collect();
        let tasks = create::create_all(&self.0, came, &caller, batch).await.map_err(told)?;
        let tasks = tasks.into_iter().map(batch_created).collect();
        Ok(Response::new(v1::BatchCreateTasksResponse { tasks }))
    }

    async fn get_task(&self, request: Request<v1::GetTaskRequest>) -> Answered<v1::Task> {
        let (caller, _) = asked_by(&request)?;
        let v1::GetTaskRequest { task_id, payload } = request.into_inner();
        let task = single::look(&self.0, &caller, &id_of(&task_id)?, payload).await;
        Ok(Response::new(convert::task(task.map_err(told)?)))
    }

    async fn list_tasks(
        &self,
        request: Request<v1::ListTasksRequest>,
    ) -> Answered<v1::ListTasksResponse> {
        let (caller, _) = asked_by(&request)?;
        let asked = request.into_inner();
        let limit = most("limit", asked.limit, (single::LIMIT, single::LIMIT_MAX))?;
        let due_before = u64::try_from(asked.due_before);
        let due_before = due_before.map_err(|_| wrong("due_before", "want epoch milliseconds"))?;
        let project = name("project", asked.project)?;
        let filter = TaskFilter {
            projects: None,
            group: name("group", asked.group)?,
            status: convert::wanted_status(asked.status).map_err(|why| wrong("status", why))?,
            task_type: convert::wanted_type(asked.r#type).map_err(|why| wrong("type", why))?,
            due_before: Some(due_before).filter(|at| *at != 0).map(UnixMillis),
            page: Some(asked.page).filter(|page| !page.is_empty()),
            limit,
        };
        let page = single::page(&self.0, &caller, project, filter).await.map_err(told)?;
        let tasks = page.tasks.into_iter().map(convert::task).collect();
        let next = page.next.unwrap_or_default();
        Ok(Response::new(v1::ListTasksResponse { tasks, next }))
    }

    async fn cancel_task(
        &self,
        request: Request<v1::CancelTaskRequest>,
    ) -> Answered<v1::CancelTaskResponse> {
        let (caller, _) = asked_by(&request)?;
        let asked = request.into_inner();
        let wait = wait(asked.wait)?;
        let answer = single::stop(&self.0, &caller, &id_of(&asked.task_id)?, wait).await;
        let answer = answer.map_err(told)?;
        let outcome = convert::outcome(answer.outcome).into();
        Ok(Response::new(v1::CancelTaskResponse { task_id: answer.task_id, outcome }))
    }

    async fn report_result(
        &self,
        request: Request<v1::ReportResultRequest>,
    ) -> Answered<v1::ReportResultResponse> {
        let (caller, _) = asked_by(&request)?;
        let from = peer(&request);
        let asked = request.into_inner();
        let id = id_of(&asked.task_id)?;
        let fields = Value::from(convert::result_fields(asked)).to_string();
        let read = report::read_result(fields.as_bytes(), REPORT_BYTES_MAX);
        let report = read.map_err(|wrongs| of_problem(&Problem::wrong_fields(&wrongs)))?;
        let outcome = tasks::report::take_result(&self.0, (&caller, from), &id, &report).await;
        let outcome = outcome.map_err(told)?.as_str().to_owned();
        Ok(Response::new(v1::ReportResultResponse { outcome }))
    }

    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Answered<v1::HeartbeatResponse> {
        let (caller, _) = asked_by(&request)?;
        let from = peer(&request);
        let asked = request.into_inner();
        let id = id_of(&asked.task_id)?;
        let texts = (asked.ticket, asked.worker, asked.cursor);
        let fields = Value::from(convert::report_fields(texts, asked.percent)).to_string();
        let read = report::read_heartbeat(fields.as_bytes(), REPORT_BYTES_MAX);
        let report = read.map_err(|wrongs| of_problem(&Problem::wrong_fields(&wrongs)))?;
        let next_at = tasks::report::take_heartbeat(&self.0, (&caller, from), &id, &report).await;
        let next_at = i64::try_from(next_at.map_err(told)?.0).unwrap_or(i64::MAX);
        Ok(Response::new(v1::HeartbeatResponse { next_at }))
    }

    async fn retry_task(&self, request: Request<v1::RetryTaskRequest>) -> Answered<v1::Task> {
        let (caller, _) = asked_by(&request)?;
        let from = peer(&request);
        let id = id_of(&request.into_inner().task_id)?;
        let again = single::again(&self.0, &caller, &id);
        let what = ("retry", format!("tasks/{id}"));
        let task = audit::made((&caller, from), what, again, |_| None).await.map_err(told)?;
        Ok(Response::new(convert::task(task)))
    }
}
