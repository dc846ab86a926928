//! `waterclock.v1.Runs`.

use tonic::{Request, Response, Status};
use waterclock_proto::v1;
use waterclock_proto::v1::new_task::Task as New;

use super::super::audit;
use super::super::problem::Problem;
use super::super::runs::model::RunView;
use super::super::runs::shards::{self, AskedShards, PAGE_MAX};
use super::super::runs::{self, Kept};
use super::super::tasks::single::{self, Asked};
use super::super::tasks::{self, Tasks, create};
use super::convert::runs as convert;
use super::tasks::{most, name, read, wait, wrong};
use super::{asked_by, of_problem, peer};
use crate::engine::task::id::TaskId;

/// See the module.
pub(super) struct Service(pub(super) Tasks);

type Answered<T> = Result<Response<T>, Status>;

fn told(problem: Problem) -> Status {
    of_problem(&problem)
}

fn id_of(text: &str) -> Result<TaskId, Status> {
    TaskId::parse(text).map_err(|error| wrong("run_id", format!("is {error}")))
}

fn shown(view: RunView, kept: &Kept) -> Response<v1::Run> {
    Response::new(convert::run(view, kept.spec()))
}

#[tonic::async_trait]
impl v1::runs_server::Runs for Service {
    async fn create(
        &self,
        request: Request<v1::CreateRunRequest>,
    ) -> Answered<v1::CreateRunResponse> {
        let (caller, came) = asked_by(&request)?;
        create::may_create(&self.0, &caller).map_err(told)?;
        let read = read(New::Run(Box::new(request.into_inner())));
        let request = read.map_err(|wrongs| told(Problem::wrong_fields(&wrongs)))?;
        let created = create::create(&self.0, came, &caller, request).await.map_err(told)?;
        Ok(Response::new(convert::created(created)))
    }

    async fn get(&self, request: Request<v1::GetRunRequest>) -> Answered<v1::Run> {
        let (caller, _) = asked_by(&request)?;
        let id = id_of(&request.get_ref().run_id)?;
        let kept = runs::seen(&self.0, &caller, &id).await.map_err(told)?;
        Ok(shown(kept.whole(&self.0).await, &kept))
    }

    async fn list(&self, request: Request<v1::ListRunsRequest>) -> Answered<v1::ListRunsResponse> {
        let (caller, came) = asked_by(&request)?;
        let of = request.into_inner();
        let status = convert::wanted_status(of.status).map_err(|why| wrong("status", why))?;
        let asked = Asked {
            project: name("project", of.project)?,
            group: name("group", of.group)?,
            limit: most("limit", of.limit, (single::LIMIT, single::LIMIT_MAX))?,
            page: Some(of.page).filter(|page| !page.is_empty()),
        };
        let now = tasks::time(came).map_err(told)?;
        let listed = runs::listed(&self.0, &caller, (now, status), asked).await;
        let (all, next) = listed.map_err(told)?;
        let runs = all.iter().map(|kept| convert::run(kept.brief(), kept.spec())).collect();
        Ok(Response::new(v1::ListRunsResponse { runs, next: next.unwrap_or_default() }))
    }

    async fn list_shards(
        &self,
        request: Request<v1::ListShardsRequest>,
    ) -> Answered<v1::ListShardsResponse> {
        let (caller, _) = asked_by(&request)?;
        let of = request.into_inner();
        let id = id_of(&of.run_id)?;
        let page = Some(&*of.page).filter(|page| !page.is_empty());
        let asked = AskedShards {
            state: convert::wanted_state(of.state).map_err(|why| wrong("state", why))?,
            limit: most("limit", of.limit, (PAGE_MAX, PAGE_MAX))?,
            from: shards::from(page).map_err(|failure| told(failure.into()))?,
        };
        let kept = runs::seen(&self.0, &caller, &id).await.map_err(told)?;
        let page = shards::shards(&self.0, &kept, &asked).await.map_err(told)?;
        let shards = page.shards.into_iter().map(convert::shard_of_run).collect();
        let next = page.next.unwrap_or_default();
        Ok(Response::new(v1::ListShardsResponse { shards, next }))
    }

    async fn cancel(
        &self,
        request: Request<v1::CancelRunRequest>,
    ) -> Answered<v1::CancelRunResponse> {
        let (caller, _) = asked_by(&request)?;
        let of = request.into_inner();
        let (id, wait) = (id_of(&of.run_id)?, wait(of.wait)?);
        let answer = runs::cancel(&self.0, &caller, &id, wait).await.map_err(told)?;
        Ok(Response::new(convert::cancelled(answer)))
    }

    async fn retry(&self, request: Request<v1::RetryRunRequest>) -> Answered<v1::Run> {
        let (caller, _) = asked_by(&request)?;
        let from = peer(&request);
        let id = id_of(&request.get_ref().run_id)?;
        let what = ("retry", format!("runs/{id}"));
        let again = runs::again(&self.0, &caller, &id);
        let made = audit::made((&caller, from), what, again, |_| None).await;
        let kept = made.map_err(told)?;
        Ok(shown(kept.view(), &kept))
    }
}
