//! Tasks, through the binary on a real Kafka: what callers are told, and what the services that are called see.

mod before;
mod calls;
mod client;
mod commands;
mod crashes;
mod deleted;
mod described;
mod feedback;
mod follow_ups;
mod forged;
mod grpc;
mod grpc_calls;
mod grpc_health;
mod grpc_projects;
mod grpc_schedules;
mod limits;
mod misbehaving;
mod payloads;
mod quotas;
mod refused;
mod schedules;
mod targets;
mod tls;
mod tokens;

use serde_json::Value;

use crate::support::tasks::{Api, command, is_final, task, turns, with};
use crate::support::{Fixture, Launch, Mode, Process, eventually};

const LANES: u16 = 4;

fn fixture(test: &str) -> Fixture {
    Fixture::with(test, |request| request.lanes = Some(LANES))
}

/// A process with these roles; its worker may call loopback.
fn launch<'a>(fixture: &'a Fixture, data: &str, roles: &str) -> Launch<'a> {
    launch_for(fixture, data, roles, "127.0.0.0/8")
}

/// The same; its worker may call this network.
fn launch_for<'a>(fixture: &'a Fixture, data: &str, roles: &str, network: &str) -> Launch<'a> {
    let launch = fixture.launch(Mode::ExactlyOnce).data(data).arg("--roles").arg(roles);
    launch.config(&format!("[callbacks]\nnetworks = [\"{network}\"]\n"))
}

/// Puts a service of a project.
#[track_caller]
fn put_service(api: &Api, project: &str, service: &str, settings: &Value) {
    let path = format!("/v1/projects/{project}/services/{service}");
    let (status, told) = api.answered("PUT", &path, Some(settings));
    assert_eq!(status, 200, "{told}");
}

/// Partitions of tasks that the worker of a process has taken over last.
fn partitions(worker: &Process) -> usize {
    let log = worker.log();
    let taken = log.lines().rfind(|line| line.contains("worker has taken partitions over"));
    let count =
        taken.and_then(|line| line.split_once("partitions=")?.1.split(' ').next()?.parse().ok());
    count.unwrap_or_default()
}

/// Waits until each has partitions of the workers' group, and none has another's.
#[track_caller]
fn share(workers: &[&Process]) {
    eventually("all workers have partitions", || {
        let owned: Vec<usize> = workers.iter().map(|worker| partitions(worker)).collect();
        let all: usize = owned.iter().sum();
        let is_shared = all == usize::from(LANES) && !owned.contains(&0);
        if is_shared { Ok(()) } else { Err(format!("{owned:?}")) }
    });
}
