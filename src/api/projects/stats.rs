//! `/v1/projects/{project}/stats`: how many tasks a project has, and how many it was refused.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::http::Uri;
use axum::response::IntoResponse as _;
use axum::routing::{MethodRouter, get};
use axum::{Extension, Json};

use super::super::auth::Caller;
use super::super::problem::Problem;
use super::super::tasks::model::Problem as ProblemBody;
use super::super::tasks::{self, Tasks};
use super::model::{EndedTasks, PendingTasks, ProjectStats, RefusedCreates};
use super::{Answered, Named, no_project};
use crate::engine::timers::TaskCounts;

/// What ends the path.
const STATS: &str = "/stats";

/// What its path answers to.
pub(super) fn methods() -> MethodRouter<Tasks> {
    get(show_stats)
}

/// Counts the tasks of a project, whether it was put or not.
#[utoipa::path(
    get,
    path = "/v1/projects/{project}/stats", tag = "projects", operation_id = "getProjectStats",
    params(("project" = String, Path, description = "The name of the project.")),
    responses(
        (status = 200, description = "What the owners of all lanes have counted", body = ProjectStats),
        (status = "4XX", description = "404: the token does not cover this project", body = ProblemBody),
        (status = 503, description = "Try again", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn show_stats(
    State(tasks): State<Tasks>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answered {
    let project = Named::of(&uri, STATS)?.project.to_owned();
    Ok(Json(stats(&tasks, &caller, project).await?).into_response())
}

/// Counts the tasks of a project.
pub(in crate::api) async fn stats(
    tasks: &Tasks,
    caller: &Caller,
    project: String,
) -> Result<ProjectStats, Problem> {
    if !caller.sees(&project) {
        return Err(no_project(&project));
    }
    let mut counts = tasks::counts(tasks, &BTreeSet::from([project.clone()])).await?;
    let counts = counts.remove(&project).unwrap_or_default();
    let refused = tasks.quotas.refused(&project);
    Ok(of_counts(project, counts, refused))
}

fn of_counts(project: String, counts: TaskCounts, refused: RefusedCreates) -> ProjectStats {
    let TaskCounts { delay, ready, overdue, running, finished, failed, cancelled, expired } =
        counts;
    ProjectStats {
        project,
        pending: PendingTasks { total: counts.pending(), delay, ready, overdue, running },
        ended: EndedTasks { finished, failed, cancelled, expired },
        refused,
    }
}
