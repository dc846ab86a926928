//! `waterclock.v1.Schedules`.

use std::future::Future;

use serde_json::Value;
use tonic::{Request, Response, Status};
use waterclock_proto::v1;

use super::super::audit::{self, Revisions};
use super::super::auth::{Caller, Peer};
use super::super::guard::Came;
use super::super::problem::Problem;
use super::super::schedules::{self, ID_WANTED, Kept, of_one, times};
use super::super::tasks::single::{self, Asked};
use super::super::tasks::{self, Tasks};
use super::super::timers::params::moment;
use super::convert::{schedules as convert, template};
use super::tasks::{most, name, wait, wrong};
use super::{asked_by, of_problem, peer};
use crate::engine::UnixMillis;
use crate::engine::schedule::LISTED_MAX;
use crate::engine::task::Wrong;
use crate::engine::task::id::TaskId;
use crate::engine::task::spec::Spec;
use crate::engine::timers::Version;

/// See the module.
pub(super) struct Service(pub(super) Tasks);

type Answered<T> = Result<Response<T>, Status>;

fn told(problem: Problem) -> Status {
    of_problem(&problem)
}

fn id_of(text: &str) -> Result<TaskId, Status> {
    schedules::parsed(text).ok_or_else(|| wrong("schedule_id", ID_WANTED))
}

fn message(kept: &Kept) -> v1::Schedule {
    convert::schedule(schedules::view(kept), &kept.spec)
}

fn shown(kept: &Kept) -> Response<v1::Schedule> {
    Response::new(message(kept))
}

/// A point in time.
fn time(ms: i64, at: &str) -> Result<UnixMillis, Problem> {
    moment(&ms.into(), at)
}

/// The version that is to be in force; `None`: any.
fn version(text: &str) -> Result<Option<Version>, Problem> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse::<Version>().map(Some).map_err(|_| {
        let detail = "is no version; want one as a schedule has it: 1764000000000-42".to_owned();
        Problem::wrong_fields(&[Wrong { at: "if_version".to_owned(), detail }])
    })
}

/// Reads a schedule. `of`: the one that the request names.
fn read(settings: Option<v1::ScheduleSettings>, of: Option<&TaskId>) -> Result<Spec, Problem> {
    let settings = settings.unwrap_or_default();
    let service = template::service_within(settings.task.as_ref());
    let json = Value::from(convert::fields(settings)).to_string();
    let read = Spec::read_schedule(json.as_bytes(), of.and_then(TaskId::as_schedule));
    read.map_err(|mut wrongs| {
        template::name_service(&mut wrongs, service.as_deref());
        Problem::wrong_fields(&wrongs)
    })
}

/// A change of one schedule that somebody asks for.
struct Change {
    caller: Caller,
    came: Came,
    from: Option<Peer>,
    id: TaskId,
}

impl Change {
    fn of<T>(request: &Request<T>, id: &str) -> Result<Self, Status> {
        let (caller, came) = asked_by(request)?;
        Ok(Self { caller, came, from: peer(request), id: id_of(id)? })
    }

    /// Whether the caller may change it.
    fn is_allowed(&self, tasks: &Tasks) -> Result<(), Problem> {
        schedules::may_change(tasks, &self.caller)?;
        schedules::is_seen(&self.id, &self.caller)
    }

    /// When the request came.
    fn now(&self) -> Result<UnixMillis, Problem> {
        tasks::time(self.came)
    }

    /// Makes it, and writes its line. `of`: the versions before and after it.
    async fn made<T>(
        &self,
        action: &'static str,
        change: impl Future<Output = Result<T, Problem>>,
        of: impl FnOnce(&T) -> Option<Revisions>,
    ) -> Result<T, Status> {
        let (who, key) = ((&self.caller, self.from), format!("schedules/{}", self.id));
        audit::made(who, (action, key), change, of).await.map_err(told)
    }
}

impl Service {
    /// The schedule of an id, if the caller may know of its project.
    fn seen(caller: &Caller, id: &str) -> Result<TaskId, Status> {
        let id = id_of(id)?;
        schedules::is_seen(&id, caller).map_err(told)?;
        Ok(id)
    }

    async fn set_paused(
        &self,
        request: Request<v1::ChangeScheduleRequest>,
        (action, paused): (&'static str, bool),
    ) -> Answered<v1::Schedule> {
        let asked = Change::of(&request, &request.get_ref().schedule_id)?;
        let if_version = request.into_inner().if_version;
        let change = async {
            asked.is_allowed(&self.0)?;
            let follows = version(&if_version)?;
            of_one::pause(&self.0, asked.now()?, (&asked.id, follows), paused).await
        };
        let revisions = |(before, after): &(Option<Kept>, Kept)| {
            Some(schedules::revisions(before.as_ref().or(Some(after)), Some(after)))
        };
        let (_, after) = asked.made(action, change, revisions).await?;
        Ok(shown(&after))
    }
}

#[tonic::async_trait]
impl v1::schedules_server::Schedules for Service {
    async fn create(&self, request: Request<v1::CreateScheduleRequest>) -> Answered<v1::Schedule> {
        let (caller, came) = asked_by(&request)?;
        let from = peer(&request);
        let settings = request.into_inner().settings;
        let change = async {
            schedules::may_change(&self.0, &caller)?;
            let spec = read(settings, None)?;
            of_one::create(&self.0, &caller, tasks::time(came)?, &spec).await
        };
        // One that was there already is not changed.
        let revisions =
            |(kept, is_new): &(Kept, bool)| is_new.then(|| schedules::revisions(None, Some(kept)));
        let what = ("create", "schedules".to_owned());
        let made = audit::made((&caller, from), what, change, revisions).await;
        let (kept, _) = made.map_err(told)?;
        Ok(shown(&kept))
    }

    async fn get(&self, request: Request<v1::GetScheduleRequest>) -> Answered<v1::Schedule> {
        let (caller, _) = asked_by(&request)?;
        let id = Self::seen(&caller, &request.get_ref().schedule_id)?;
        let kept = schedules::look(&self.0, &id).await.map_err(told)?;
        let kept = kept.ok_or_else(schedules::nobody).map_err(told)?;
        let view = schedules::whole_view(&self.0, &kept).await;
        Ok(Response::new(convert::schedule(view, &kept.spec)))
    }

    async fn list(
        &self,
        request: Request<v1::ListSchedulesRequest>,
    ) -> Answered<v1::ListSchedulesResponse> {
        let (caller, came) = asked_by(&request)?;
        let of = request.into_inner();
        let asked = Asked {
            project: name("project", of.project)?,
            group: name("group", of.group)?,
            limit: most("limit", of.limit, (single::LIMIT, single::LIMIT_MAX))?,
            page: Some(of.page).filter(|page| !page.is_empty()),
        };
        let now = tasks::time(came).map_err(told)?;
        let listed = schedules::listed(&self.0, &caller, now, asked).await;
        let (all, next) = listed.map_err(told)?;
        let schedules = all.iter().map(message).collect();
        let next = next.unwrap_or_default();
        Ok(Response::new(v1::ListSchedulesResponse { schedules, next }))
    }

    async fn update(&self, request: Request<v1::UpdateScheduleRequest>) -> Answered<v1::Schedule> {
        let asked = Change::of(&request, &request.get_ref().schedule_id)?;
        let v1::UpdateScheduleRequest { settings, if_version, .. } = request.into_inner();
        let change = async {
            asked.is_allowed(&self.0)?;
            let follows = version(&if_version)?;
            let spec = read(settings, Some(&asked.id))?;
            of_one::put(&self.0, asked.now()?, (&asked.id, follows), &spec).await
        };
        let revisions = |(before, after): &(Option<Kept>, Kept)| {
            let before = before.as_ref().filter(|before| !before.is_over());
            Some(schedules::revisions(before, Some(after)))
        };
        let (_, after) = asked.made("put", change, revisions).await?;
        Ok(shown(&after))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteScheduleRequest>,
    ) -> Answered<v1::DeleteScheduleResponse> {
        let asked = Change::of(&request, &request.get_ref().schedule_id)?;
        let v1::DeleteScheduleRequest { wait: span, if_version, .. } = request.into_inner();
        let wait = wait(span)?;
        let change = async {
            asked.is_allowed(&self.0)?;
            let of = (&asked.id, version(&if_version)?);
            of_one::delete(&self.0, &asked.caller, of, wait).await
        };
        let deleted = asked.made("delete", change, |_| None).await?;
        Ok(Response::new(convert::deleted(deleted)))
    }

    async fn pause(&self, request: Request<v1::ChangeScheduleRequest>) -> Answered<v1::Schedule> {
        self.set_paused(request, ("pause", true)).await
    }

    async fn resume(&self, request: Request<v1::ChangeScheduleRequest>) -> Answered<v1::Schedule> {
        self.set_paused(request, ("resume", false)).await
    }

    async fn trigger(
        &self,
        request: Request<v1::TriggerScheduleRequest>,
    ) -> Answered<v1::ScheduledTask> {
        let asked = Change::of(&request, &request.get_ref().schedule_id)?;
        let change = async {
            asked.is_allowed(&self.0)?;
            times::trigger(&self.0, &asked.id, asked.now()?).await
        };
        let task = asked.made("trigger", change, |_| None).await?;
        Ok(Response::new(convert::triggered(task)))
    }

    async fn backfill(
        &self,
        request: Request<v1::BackfillScheduleRequest>,
    ) -> Answered<v1::BackfillScheduleResponse> {
        let asked = Change::of(&request, &request.get_ref().schedule_id)?;
        let v1::BackfillScheduleRequest { start, end, .. } = request.into_inner();
        let change = async {
            asked.is_allowed(&self.0)?;
            let span = (time(start, "start")?, time(end, "end")?);
            times::backfill(&self.0, &asked.id, span, asked.now()?).await
        };
        let tasks = asked.made("backfill", change, |_| None).await?;
        Ok(Response::new(convert::backfilled(tasks)))
    }

    async fn preview(
        &self,
        request: Request<v1::PreviewScheduleRequest>,
    ) -> Answered<v1::PreviewScheduleResponse> {
        let (caller, came) = asked_by(&request)?;
        let of = request.into_inner();
        let id = Self::seen(&caller, &of.schedule_id)?;
        let count = most("count", of.count, (times::SHOWN, LISTED_MAX))?;
        let start = match of.start {
            0 => tasks::time(came),
            start => time(start, "start"),
        };
        let start = start.map_err(told)?;
        let shown = times::preview(&self.0, &id, (start, count)).await.map_err(told)?;
        Ok(Response::new(convert::preview(shown)))
    }
}
