//! `waterclock.v1.Projects`.

use serde_json::Value;
use tonic::{Request, Response, Status};
use waterclock_proto::v1;

use super::super::audit::{self, Revisions};
use super::super::problem::Problem;
use super::super::projects::{self, Action, Named};
use super::super::tasks::Tasks;
use super::{asked_by, convert, of_problem, peer};

/// See the module.
pub(super) struct Service(pub(super) Tasks);

type Answered<T> = Result<Response<T>, Status>;

fn told(problem: Problem) -> Status {
    of_problem(&problem)
}

/// What a request names: a project, or a service of it.
fn named<'a>(project: &'a str, service: Option<&'a str>) -> Result<Named<'a>, Status> {
    Named::new(project, service, "").map_err(told)
}

fn changed(made: Revisions) -> Response<v1::Changed> {
    Response::new(v1::Changed { revision: made.after })
}

const fn word(action: Action) -> &'static str {
    match action {
        Action::Delete => "delete",
        Action::Pause => "pause",
        Action::Resume => "resume",
    }
}

impl Service {
    async fn apply<T>(
        &self,
        request: &Request<T>,
        (project, service): (&str, Option<&str>),
        action: Action,
        revision: Option<u64>,
    ) -> Answered<v1::Changed> {
        let (caller, _) = asked_by(request)?;
        let (named, who) = (named(project, service)?, (&caller, peer(request)));
        let made = projects::apply(&self.0, &caller, &named, action, revision);
        let made = audit::made(who, (word(action), named.path()), made, |made| Some(*made)).await;
        made.map(changed).map_err(told)
    }

    async fn of_project(
        &self,
        request: Request<v1::ChangeProjectRequest>,
        action: Action,
    ) -> Answered<v1::Changed> {
        let of = request.get_ref();
        self.apply(&request, (&of.project, None), action, of.if_revision).await
    }

    async fn of_service(
        &self,
        request: Request<v1::ChangeServiceRequest>,
        action: Action,
    ) -> Answered<v1::Changed> {
        let of = request.get_ref();
        self.apply(&request, (&of.project, Some(&of.service)), action, of.if_revision).await
    }

    async fn set<T>(
        &self,
        request: &Request<T>,
        (project, service): (&str, Option<&str>),
        settings: &Value,
        revision: Option<u64>,
    ) -> Answered<v1::Changed> {
        let (caller, _) = asked_by(request)?;
        let (named, who) = (named(project, service)?, (&caller, peer(request)));
        let json = settings.to_string();
        let made = projects::set(&self.0, &caller, &named, json.as_bytes(), revision);
        let made = audit::made(who, ("put", named.path()), made, |made| Some(*made)).await;
        made.map(changed).map_err(told)
    }
}

#[tonic::async_trait]
impl v1::projects_server::Projects for Service {
    async fn list(
        &self,
        request: Request<v1::ListProjectsRequest>,
    ) -> Answered<v1::ListProjectsResponse> {
        let (caller, _) = asked_by(&request)?;
        let all = projects::all(&self.0, &caller).map_err(told)?;
        let projects = all.projects.into_iter().map(convert::project_row).collect();
        Ok(Response::new(v1::ListProjectsResponse { projects }))
    }

    async fn get(&self, request: Request<v1::GetProjectRequest>) -> Answered<v1::Project> {
        let (caller, _) = asked_by(&request)?;
        let project = &request.get_ref().project;
        named(project, None)?;
        let project = projects::look(&self.0, &caller, project).map_err(told)?;
        Ok(Response::new(convert::project(project)))
    }

    async fn get_stats(
        &self,
        request: Request<v1::GetProjectRequest>,
    ) -> Answered<v1::ProjectStats> {
        let (caller, _) = asked_by(&request)?;
        let project = request.into_inner().project;
        named(&project, None)?;
        let stats = projects::stats(&self.0, &caller, project).await.map_err(told)?;
        Ok(Response::new(convert::project_stats(stats)))
    }

    async fn put(&self, request: Request<v1::PutProjectRequest>) -> Answered<v1::Changed> {
        let of = request.get_ref();
        let settings = convert::project_fields(of.settings.clone().unwrap_or_default());
        self.set(&request, (&of.project, None), &settings, of.if_revision).await
    }

    async fn delete(&self, request: Request<v1::ChangeProjectRequest>) -> Answered<v1::Changed> {
        self.of_project(request, Action::Delete).await
    }

    async fn pause(&self, request: Request<v1::ChangeProjectRequest>) -> Answered<v1::Changed> {
        self.of_project(request, Action::Pause).await
    }

    async fn resume(&self, request: Request<v1::ChangeProjectRequest>) -> Answered<v1::Changed> {
        self.of_project(request, Action::Resume).await
    }

    async fn put_service(&self, request: Request<v1::PutServiceRequest>) -> Answered<v1::Changed> {
        let of = request.get_ref();
        let settings = convert::service_fields(of.settings.clone().unwrap_or_default());
        self.set(&request, (&of.project, Some(&of.service)), &settings, of.if_revision).await
    }

    async fn delete_service(
        &self,
        request: Request<v1::ChangeServiceRequest>,
    ) -> Answered<v1::Changed> {
        self.of_service(request, Action::Delete).await
    }

    async fn pause_service(
        &self,
        request: Request<v1::ChangeServiceRequest>,
    ) -> Answered<v1::Changed> {
        self.of_service(request, Action::Pause).await
    }

    async fn resume_service(
        &self,
        request: Request<v1::ChangeServiceRequest>,
    ) -> Answered<v1::Changed> {
        self.of_service(request, Action::Resume).await
    }
}
