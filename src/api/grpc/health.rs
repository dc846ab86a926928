//! `grpc.health.v1.Health`: whether this instance is ready, of all its services alike.

use std::sync::Arc;
use std::time::Duration;

use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use waterclock_proto::v1::projects_server::SERVICE_NAME as PROJECTS;
use waterclock_proto::v1::runs_server::SERVICE_NAME as RUNS;
use waterclock_proto::v1::schedules_server::SERVICE_NAME as SCHEDULES;
use waterclock_proto::v1::tasks_server::SERVICE_NAME as TASKS;

use super::super::health::Status;

/// What answers.
pub(in super::super) type Server = HealthServer<HealthService>;

/// Between two looks at whether the instance is ready.
const LOOK: Duration = Duration::from_millis(500);

/// What answers, and what is told how the instance is.
pub(in super::super) fn server() -> (Server, HealthReporter) {
    let reporter = HealthReporter::new();
    (HealthServer::new(HealthService::from_health_reporter(reporter.clone())), reporter)
}

/// Looks again and again how the instance is, and tells of each change.
pub(in super::super) async fn follow(status: Arc<dyn Status>, reporter: HealthReporter) {
    let mut told = None;
    loop {
        let is_ready = status.ready().ok;
        // Watchers hear of all that the reporter is told, changed or not.
        if told.replace(is_ready) != Some(is_ready) {
            let now = match is_ready {
                true => ServingStatus::Serving,
                false => ServingStatus::NotServing,
            };
            for service in ["", TASKS, PROJECTS, SCHEDULES, RUNS] {
                reporter.set_service_status(service, now).await;
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
