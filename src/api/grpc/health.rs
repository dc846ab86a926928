//! `grpc.health.v1.Health`: whether this instance is ready, of all its services alike.

use std::sync::Arc;
use std::time::Duration;

use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use waterclock_proto::v1::projects_server::SERVICE_NAME as PROJECTS;
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

/// Tells how the instance is, again and again.
pub(in super::super) async fn follow(status: Arc<dyn Status>, reporter: HealthReporter) {
    loop {
        let now = match status.ready().ok {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        };
        for service in ["", TASKS, PROJECTS] {
            reporter.set_service_status(service, now).await;
        }
        tokio::time::sleep(LOOK).await;
    }
}
